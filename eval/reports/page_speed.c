/* page_speed.c - bench, acceptance, lossless and comparisons on the page. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/page_parts.h"

/* ---- bench: plain decoding ---------------------------------------------------------------- */

static void spread_row(kk_page *p, const char *what, const json_t *spread) {
    if (!json_is_object(spread)) return;
    kk_page_row(p);
    kk_page_cell(p, what);
    kk_page_cell_of(p, spread, "median");
    kk_page_cell_of(p, spread, "min");
    kk_page_cell_of(p, spread, "max");
    kk_page_cell_of(p, spread, "n");
    kk_page_put(p, "</tr>");
}

static void put_plain(kk_page *p, const json_t *report) {
    const json_t *plain = json_object_get(json_object_get(report, "arms"), "plain");
    const json_t *settings = json_object_get(report, "settings");
    if (!plain) return;
    kk_page_put(p, "<h3>Plain decoding</h3>");
    kk_page_table(p, "tok/s|#median|#min|#max|#repeats");
    spread_row(p, "decode", json_object_get(plain, "decode_tok_s"));
    spread_row(p, "prefill", json_object_get(plain, "prefill_tok_s"));
    kk_page_table_end(p);
    kk_page_put(p,
                "<p class=\"dim\">%s tokens at context %s; %s ms a round; %s of the memory "
                "bandwidth.</p>\n",
                kk_page_figure(kk_gate_number_or(settings, "predict", 0)).text,
                kk_page_figure(kk_gate_number_or(settings, "ctx", 0)).text,
                kk_page_figure(kk_gate_number_or(plain, "round_ms", 0)).text,
                kk_page_share(kk_gate_number_or(plain, "bandwidth_share", 0)).text);
}

/* ---- bench: arms -------------------------------------------------------------------------- */

static void arm_row(kk_page *p, const char *set, const char *name, const json_t *arm) {
    const json_t *lossless = json_object_get(arm, "lossless");
    const json_t *spread = json_object_get(arm, "tok_s_spread");
    if (!kk_gate_get(arm, "tok_s")) return;
    kk_page_row(p);
    kk_page_cell(p, set);
    kk_page_cell(p, name);
    kk_page_cell_of(p, arm, "tokens");
    kk_page_cell_of(p, arm, "tok_s");
    kk_page_cell_of(p, spread, "min");
    kk_page_cell_of(p, spread, "max");
    if (kk_gate_get(arm, "speedup") || strcmp(name, "plain") == 0)
        kk_page_cell_of(p, arm, "speedup");
    else
        kk_page_cell(p, kk_gate_text(arm, "withheld"));
    kk_page_cell_of(p, arm, "accept_len");
    kk_page_cell(p, json_is_true(lossless) ? "yes" : json_is_false(lossless) ? "no" : "-");
    kk_page_put(p, "</tr>");
}

static void arm_rows(kk_page *p, const char *set, const json_t *arms) {
    const char *name;
    json_t *arm;
    json_object_foreach((json_t *)arms, name, arm) { arm_row(p, set, name, arm); }
}

static void put_arms(kk_page *p, const json_t *report) {
    kk_page_put(p, "<h3>Ways to decode</h3>");
    kk_page_table(p, "prompts|arm|#tokens|#tok/s|#min|#max|#speed-up|#tokens a round|lossless");
    for (size_t i = 0; i < kk_gate_size(report, "sets"); i++) {
        const json_t *set = kk_gate_item(report, "sets", i);
        arm_rows(p, kk_gate_text(set, "set"), json_object_get(set, "arms"));
    }
    arm_rows(p, "all", json_object_get(report, "arms"));
    kk_page_table_end(p);
}

static size_t range_of(kk_page_range *out, size_t n, const char *set, const json_t *arms) {
    const char *name;
    json_t *arm;
    int32_t colour = 0;
    json_object_foreach((json_t *)arms, name, arm) {
        double rate;
        if (n >= KK_PAGE_BARS || !kk_gate_number(arm, "tok_s", &rate)) continue;
        const json_t *spread = json_object_get(arm, "tok_s_spread");
        out[n] = (kk_page_range){.colour = colour,
                                 .mid = rate,
                                 .low = kk_gate_number_or(spread, "min", rate),
                                 .high = kk_gate_number_or(spread, "max", rate)};
        snprintf(out[n++].label, sizeof out->label, "%.12s, %.8s", set, name);
        colour++;
    }
    return n;
}

static void plot_rates(kk_page *p, const json_t *report) {
    kk_page_range rows[KK_PAGE_BARS];
    size_t n = 0;
    for (size_t i = 0; i < kk_gate_size(report, "sets"); i++) {
        const json_t *set = kk_gate_item(report, "sets", i);
        n = range_of(rows, n, kk_gate_text(set, "set"), json_object_get(set, "arms"));
    }
    kk_page_ranges(p, "Tokens per second: of all tokens (dot), slowest to fastest prompt (line)",
                   "tok/s", false, rows, n);
}

static void plot_rounds(kk_page *p, const json_t *report) {
    static const char *const names[] = {"draft", "verify", "choose", "commit", "other"};
    static const char *const keys[] = {"draft_s", "verify_s", "choose_s", "commit_s", "other_s"};
    kk_page_bar rows[KK_PAGE_BARS];
    size_t n = 0;
    const char *name;
    json_t *arm;
    json_object_foreach(json_object_get(report, "arms"), name, arm) {
        const json_t *parts = json_object_get(arm, "parts");
        const double rounds = kk_gate_number_or(arm, "rounds", 0);
        if (n == KK_PAGE_BARS || !parts || rounds <= 0) continue;
        rows[n] = (kk_page_bar){.label = ""};
        snprintf(rows[n].label, sizeof rows->label, "%.20s", name);
        for (size_t i = 0; i < 5; i++)
            rows[n].part[i] = 1e3 * kk_gate_number_or(parts, keys[i], 0) / rounds;
        n++;
    }
    kk_page_bars(p, "Time per round, by what it went to", "ms", names, 5, rows, n);
}

/* ---- bench: costs ------------------------------------------------------------------------- */

static void passes_series(kk_page_series *s, const char *name, const json_t *list) {
    snprintf(s->name, sizeof s->name, "%.50s", name);
    s->n = 0;
    for (size_t i = 0; i < json_array_size(list) && s->n < KK_PAGE_POINTS; i++) {
        const json_t *pass = json_array_get(list, i);
        if (!kk_gate_number(pass, "rows", &s->x[s->n]) || !kk_gate_number(pass, "ms", &s->y[s->n]))
            continue;
        s->n++;
    }
}

static void plot_costs(kk_page *p, const json_t *report, kk_page_series *s) {
    const json_t *rows = json_object_get(report, "rows");
    const json_t *costs = json_object_get(kk_gate_item(report, "sets", 0), "costs");
    const kk_page_axes axes = {.title = "Time of a forward by its rows", .x = "rows", .y = "ms"};
    size_t n = 0;
    const struct {
        const char *name;
        const json_t *list;
    } lists[] = {{"whole model", json_object_get(rows, "whole_model")},
                 {"verify", json_object_get(costs, "verify")},
                 {"draft", json_object_get(costs, "draft")}};
    for (size_t i = 0; i < 3; i++) {
        passes_series(&s[n], lists[i].name, lists[i].list);
        n += s[n].n > 1;
    }
    kk_page_lines(p, &axes, s, n);
}

static void put_attention(kk_page *p, const json_t *report) {
    const json_t *attention = kk_gate_get(report, "attention");
    if (!attention) return;
    kk_page_put(p, "<h3>Attention over K/V formats</h3>");
    kk_page_table(p, "format|#ms|#time, of bf16|#bytes|#bytes, of bf16");
    for (size_t i = 0; i < kk_gate_size(attention, "formats"); i++) {
        const json_t *f = kk_gate_item(attention, "formats", i);
        kk_page_row(p);
        kk_page_cell(p, kk_gate_text(f, "kv_format"));
        kk_page_cell_of(p, f, "ms");
        kk_page_cell_of(p, f, "ratio");
        kk_page_cell_number(p, kk_page_bytes(kk_gate_number_or(f, "kv_bytes", 0)));
        kk_page_cell_of(p, f, "kv_ratio");
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

void kk_page_bench(kk_page *p, const json_t *report) {
    kk_page_series *s = kk_calloc(KK_PAGE_SERIES, sizeof *s);
    if (!s) {
        p->failed = true;
        return;
    }
    put_plain(p, report);
    if (kk_gate_size(report, "sets")) {
        put_arms(p, report);
        plot_rates(p, report);
        plot_rounds(p, report);
    }
    plot_costs(p, report, s);
    put_attention(p, report);
    kk_page_bytes_table(p, json_object_get(report, "bytes"));
    kk_free(s);
}

/* ---- acceptance --------------------------------------------------------------------------- */

static void accept_row(kk_page *p, const json_t *f) {
    kk_page_row(p);
    kk_page_cell(p, kk_gate_text(f, "set"));
    kk_page_cell(p, kk_gate_text(f, "arm"));
    kk_page_cell(p, kk_gate_text(f, "embed_scale"));
    kk_page_cell_of(p, f, "prompts");
    kk_page_cell_of(p, f, "drafted");
    kk_page_cell_of(p, f, "rate");
    kk_page_cell_of(p, f, "length");
    kk_page_cell(p, kk_gate_true(f, "lossless") ? "yes" : "no");
    kk_page_put(p, "</tr>");
}

void kk_page_accept(kk_page *p, const json_t *report) {
    static const char *const names[] = {"accepted of drafted"};
    static const char *const lists[] = {"sets", "all"};
    kk_page_bar bars[KK_PAGE_BARS];
    size_t n = 0;
    kk_page_put(p, "<h3>Acceptance by kinds of text</h3>");
    kk_page_table(p, "prompts|arm|scale|#prompts|#drafted|#rate|#tokens a round|lossless");
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < kk_gate_size(report, lists[l]); i++) {
            const json_t *f = kk_gate_item(report, lists[l], i);
            accept_row(p, f);
            if (n == KK_PAGE_BARS) continue;
            bars[n] = (kk_page_bar){.part = {kk_gate_number_or(f, "rate", 0)}};
            snprintf(bars[n++].label, sizeof bars->label, "%.14s %.6s", kk_gate_text(f, "set"),
                     kk_gate_text(f, "embed_scale"));
        }
    kk_page_table_end(p);
    kk_page_bars(p, "Accepted of drafted tokens", "share", names, 1, bars, n);
}

/* ---- lossless, compare -------------------------------------------------------------------- */

void kk_page_lossless(kk_page *p, const json_t *report) {
    const char *axis, *name;
    json_t *values, *count;
    kk_page_put(p, "<p>%s cases, %s differ.</p>\n",
                kk_page_figure(kk_gate_number_or(report, "cases", 0)).text,
                kk_page_figure(kk_gate_number_or(report, "mismatches", 0)).text);
    kk_page_table(p, "axis|value|#cases");
    json_object_foreach(json_object_get(report, "cases_by"), axis, values) {
        json_object_foreach(values, name, count) {
            kk_page_row(p);
            kk_page_cell(p, axis);
            kk_page_cell(p, name);
            kk_page_cell_number(p, kk_page_figure(json_number_value(count)));
            kk_page_put(p, "</tr>");
        }
    }
    kk_page_table_end(p);
}

static void compare_rows(kk_page *p, const json_t *report, const char *key) {
    const char *name;
    json_t *spread;
    json_object_foreach(json_object_get(report, key), name, spread) {
        char what[64];
        snprintf(what, sizeof what, "%.7s, %.20s", key, name);
        spread_row(p, what, spread);
    }
}

static size_t compare_ranges(kk_page_range *rows, size_t n, const json_t *report, const char *key) {
    const char *name;
    json_t *spread;
    int32_t colour = 0;
    json_object_foreach(json_object_get(report, key), name, spread) {
        if (n == KK_PAGE_BARS) break;
        rows[n] = (kk_page_range){.colour = colour,
                                  .low = kk_gate_number_or(spread, "min", 0),
                                  .mid = kk_gate_number_or(spread, "median", 0),
                                  .high = kk_gate_number_or(spread, "max", 0)};
        snprintf(rows[n++].label, sizeof rows->label, "%.7s, %.12s", key, name);
        colour++;
    }
    return n;
}

void kk_page_compare(kk_page *p, const json_t *report) {
    kk_page_range rows[KK_PAGE_BARS];
    kk_page_table(p, "tok/s|#median|#min|#max|#turns");
    compare_rows(p, report, "decode_tok_s");
    compare_rows(p, report, "prefill_tok_s");
    spread_row(p, "decode, ratio", json_object_get(report, "decode_ratio"));
    spread_row(p, "prefill, ratio", json_object_get(report, "prefill_ratio"));
    kk_page_table_end(p);
    size_t n = compare_ranges(rows, 0, report, "decode_tok_s");
    n = compare_ranges(rows, n, report, "prefill_tok_s");
    kk_page_ranges(p, "Tokens per second: median (dot), least to most of the turns (line)", "tok/s",
                   false, rows, n);
}
