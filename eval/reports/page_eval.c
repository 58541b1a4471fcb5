/* page_eval.c - evaluations and training on the page: recall by depth and length, KL, bytes against
 * context, sweeps, formats, and what the stages of training gave. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/page_parts.h"

enum { DEPTHS = 10 };

static const char kv_names[][12] = {"kv.sliding", "kv.full", "kv.drafter", "kv.latents"};

static double kv_bytes(const json_t *o) {
    const json_t *bytes = json_object_get(o, "bytes");
    double all = 0;
    for (size_t i = 0; i < 4; i++) all += kk_gate_number_or(bytes, kv_names[i], 0);
    return all;
}

/* Whether an entry before this one has the same name. */
static bool seen(const json_t *report, const char *list, const char *key, size_t before) {
    const char *name = kk_gate_text(kk_gate_item(report, list, before), key);
    for (size_t i = 0; i < before; i++)
        if (strcmp(kk_gate_text(kk_gate_item(report, list, i), key), name) == 0) return true;
    return false;
}

/* The number of an arm among those of the rungs, for a colour that is the same in all plots. */
static int32_t arm_number(const json_t *report, const char *arm) {
    int32_t n = 0;
    for (size_t i = 0; i < kk_gate_size(report, "rungs"); i++) {
        if (seen(report, "rungs", "arm", i)) continue;
        if (strcmp(kk_gate_text(kk_gate_item(report, "rungs", i), "arm"), arm) == 0) return n;
        n++;
    }
    return n;
}

/* ---- needle ------------------------------------------------------------------------------- */

static double mean_restored(const json_t *rung) {
    double sum;
    const size_t n = kk_gate_size(rung, "rows");
    return n && kk_gate_sum(rung, "rows", "restored_rows", &sum) ? sum / (double)n : 0;
}

static void put_rungs(kk_page *p, const json_t *report) {
    kk_page_put(p, "<h3>Recall</h3>");
    kk_page_table(p, "arm|#lines|#tokens|#hits|#of|#recall|#rebuilt rows|#K/V and latents");
    for (size_t i = 0; i < kk_gate_size(report, "rungs"); i++) {
        const json_t *r = kk_gate_item(report, "rungs", i);
        kk_page_row(p);
        kk_page_cell(p, kk_gate_text(r, "arm"));
        kk_page_cell_of(p, r, "lines");
        kk_page_cell_of(p, r, "tokens");
        kk_page_cell_of(p, r, "hits");
        kk_page_cell_of(p, r, "samples");
        kk_page_cell_of(p, r, "recall");
        kk_page_cell_number(p, kk_page_figure(mean_restored(r)));
        kk_page_cell_number(p, kk_page_bytes(kv_bytes(r)));
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

/* Hits by tenths of the document. */
static void grid_row(kk_page_grid *g, const json_t *rung) {
    double hits[DEPTHS] = {0}, all[DEPTHS] = {0};
    const size_t r = g->n_rows++;
    snprintf(g->row[r], sizeof g->row[r], "%.16s tok",
             kk_page_figure(kk_gate_number_or(rung, "tokens", 0)).text);
    for (size_t i = 0; i < kk_gate_size(rung, "rows"); i++) {
        const json_t *row = kk_gate_item(rung, "rows", i);
        const double depth = kk_gate_number_or(row, "depth", 0);
        const size_t at = depth > 0 ? depth < 1 ? (size_t)(depth * DEPTHS) : DEPTHS - 1 : 0;
        all[at]++;
        hits[at] += kk_gate_true(row, "hit");
    }
    for (size_t c = 0; c < DEPTHS; c++) g->share[r][c] = all[c] > 0 ? hits[c] / all[c] : -1;
}

static void plot_recall(kk_page *p, const json_t *report, const char *arm) {
    char title[120];
    snprintf(title, sizeof title, "Recall in percent, %.40s: where the code stood, by length", arm);
    kk_page_grid g = {.title = title,
                      .columns = "depth in the document, %",
                      .rows = "length",
                      .n_columns = DEPTHS};
    for (size_t c = 0; c < DEPTHS; c++)
        snprintf(g.column[c], sizeof g.column[c], "%zu", 100 * c / DEPTHS + 5);
    for (size_t i = 0; i < kk_gate_size(report, "rungs") && g.n_rows < KK_PAGE_SERIES; i++) {
        const json_t *r = kk_gate_item(report, "rungs", i);
        if (strcmp(kk_gate_text(r, "arm"), arm) == 0) grid_row(&g, r);
    }
    kk_page_heat(p, &g);
}

static void put_checks(kk_page *p, const json_t *report) {
    const json_t *gate = kk_gate_get(report, "gate");
    if (kk_gate_size(gate, "checks") == 0) return;
    kk_page_put(p, "<h3>Checks of the run: %s</h3>",
                kk_gate_true(gate, "holds") ? "all hold" : "not all hold");
    kk_page_table(p, "figure|arm|#value|#limit|holds");
    for (size_t i = 0; i < kk_gate_size(gate, "checks"); i++) {
        const json_t *c = kk_gate_item(gate, "checks", i);
        kk_page_row(p);
        kk_page_cell(p, kk_gate_text(c, "figure"));
        kk_page_cell(p, kk_gate_text(c, "arm"));
        kk_page_cell_of(p, c, "value");
        kk_page_cell_of(p, c, "limit");
        kk_page_cell(p, kk_gate_true(c, "holds") ? "yes" : "no");
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

static void quality_row(kk_page *p, const char *arm, const json_t *q) {
    kk_page_row(p);
    kk_page_cell(p, arm);
    kk_page_cell(p, kk_gate_text(q, "text"));
    kk_page_cell_of(p, q, "rows");
    kk_page_cell_of(p, q, "mean_kl");
    kk_page_cell_of(p, q, "worst_kl");
    kk_page_cell_of(p, q, "loss_exact");
    kk_page_cell_of(p, q, "loss_arm");
    kk_page_cell_of(p, q, "same_prefix");
    kk_page_put(p, "</tr>");
}

static void put_quality(kk_page *p, const json_t *report) {
    kk_page_range rows[KK_PAGE_BARS];
    size_t n = 0;
    if (kk_gate_size(report, "quality") == 0) return;
    kk_page_put(p, "<h3>What recall is blind to</h3>");
    kk_page_table(p, "arm|text|#rows|#mean KL|#worst KL|#loss, exact|#loss, arm|#same prefix");
    for (size_t i = 0; i < kk_gate_size(report, "quality"); i++) {
        const json_t *q = kk_gate_item(report, "quality", i);
        quality_row(p, kk_gate_text(q, "arm"), q);
    }
    kk_page_table_end(p);
    for (size_t i = 0; i < kk_gate_size(report, "sums") && n < KK_PAGE_BARS; i++) {
        const json_t *s = kk_gate_item(report, "sums", i);
        const double mean = kk_gate_number_or(s, "mean_kl", 0);
        if (mean <= 0) continue;
        rows[n] = (kk_page_range){.low = mean, .mid = mean};
        rows[n].colour = arm_number(report, kk_gate_text(s, "arm"));
        rows[n].high = kk_gate_number_or(s, "worst_kl", mean);
        snprintf(rows[n++].label, sizeof rows->label, "%.20s", kk_gate_text(s, "arm"));
    }
    kk_page_ranges(p, "KL against exact decoding: mean (dot) to worst position", "nats", true, rows,
                   n);
}

/* ---- bytes against context ---------------------------------------------------------------- */

static void plot_bytes(kk_page *p, const json_t *report, const char *list, const char *key,
                       kk_page_series *s) {
    const kk_page_axes axes = {
        .title = "K/V and latents against context, by the allocator", .x = "tokens", .bytes = true};
    size_t n = 0, most = 0;
    for (size_t i = 0; i < kk_gate_size(report, list) && n < KK_PAGE_SERIES; i++) {
        if (seen(report, list, key, i)) continue;
        const char *name = kk_gate_text(kk_gate_item(report, list, i), key);
        kk_page_series *one = &s[n++];
        one->n = 0;
        snprintf(one->name, sizeof one->name, "%.50s", name);
        for (size_t j = i; j < kk_gate_size(report, list) && one->n < KK_PAGE_POINTS; j++) {
            const json_t *o = kk_gate_item(report, list, j);
            if (strcmp(kk_gate_text(o, key), name) != 0) continue;
            one->x[one->n] = kk_gate_number_or(o, "tokens", 0);
            one->y[one->n++] = kv_bytes(o);
        }
        if (one->n > most) most = one->n;
    }
    if (most > 1) kk_page_lines(p, &axes, s, n);
}

static kk_page_series *series(kk_page *p) {
    kk_page_series *s = p->failed ? NULL : kk_calloc(KK_PAGE_SERIES, sizeof *s);
    if (!s) p->failed = true;
    return s;
}

void kk_page_needle(kk_page *p, const json_t *report) {
    put_checks(p, report);
    put_rungs(p, report);
    size_t arms = 0;
    for (size_t i = 0; i < kk_gate_size(report, "rungs") && arms < KK_PAGE_SERIES; i++) {
        if (seen(report, "rungs", "arm", i)) continue;
        arms++;
        plot_recall(p, report, kk_gate_text(kk_gate_item(report, "rungs", i), "arm"));
    }
    put_quality(p, report);
    kk_page_series *s = series(p);
    if (s) plot_bytes(p, report, "rungs", "arm", s);
    kk_free(s);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void put_growth(kk_page *p, const json_t *report) {
    if (kk_gate_size(report, "growth") == 0) return;
    kk_page_put(p, "<h3>Growth with context</h3>");
    kk_page_table(p, "policy|#from|#to|#bytes a token|against|#fewer, times");
    for (size_t i = 0; i < kk_gate_size(report, "growth"); i++) {
        const json_t *o = kk_gate_item(report, "growth", i);
        kk_page_row(p);
        kk_page_cell(p, kk_gate_text(o, "policy"));
        kk_page_cell_of(p, o, "from");
        kk_page_cell_of(p, o, "to");
        kk_page_cell_of(p, o, "bytes_per_token");
        kk_page_cell(p, kk_gate_text(o, "against"));
        kk_page_cell_of(p, o, "ratio");
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

static void put_memory(kk_page *p, const json_t *report) {
    kk_page_put(p, "<h3>Bytes of a session</h3>");
    kk_page_table(p, "policy|#tokens|#sliding|#full|#drafter|#latents|#workspace|#recall|#mean KL");
    for (size_t i = 0; i < kk_gate_size(report, "rows"); i++) {
        const json_t *r = kk_gate_item(report, "rows", i), *bytes = json_object_get(r, "bytes");
        kk_page_row(p);
        kk_page_cell(p, kk_gate_text(r, "policy"));
        kk_page_cell_of(p, r, "tokens");
        for (size_t c = 0; c < 4; c++)
            kk_page_cell_number(p, kk_page_bytes(kk_gate_number_or(bytes, kv_names[c], 0)));
        kk_page_cell_number(p, kk_page_bytes(kk_gate_number_or(bytes, "workspace", 0)));
        kk_page_cell_of(p, r, "recall");
        kk_page_cell_of(p, r, "mean_kl");
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

void kk_page_memory(kk_page *p, const json_t *report) {
    kk_page_series *s = series(p);
    if (!s) return;
    put_growth(p, report);
    plot_bytes(p, report, "rows", "policy", s);
    put_memory(p, report);
    put_checks(p, report);
    kk_free(s);
}

/* ---- rows by something: sweep, kv --------------------------------------------------------- */

static void put_rows(kk_page *p, const json_t *report, const char *key, const char *heads) {
    kk_page_table(p, heads);
    for (size_t i = 0; i < kk_gate_size(report, "rows"); i++) {
        const json_t *r = kk_gate_item(report, "rows", i), *errors = json_object_get(r, "rel_mse");
        kk_page_row(p);
        if (strcmp(key, "format") == 0) {
            kk_page_cell(p, kk_gate_text(r, "format"));
            kk_page_cell_of(p, r, "bits");
        } else {
            kk_page_cell_of(p, r, key);
        }
        kk_page_cell_of(p, errors, "all");
        kk_page_cell_of(p, errors, "sliding");
        kk_page_cell_of(p, errors, "full");
        kk_page_cell_of(p, r, "recall");
        kk_page_cell_of(p, r, "mean_kl");
        kk_page_cell_of(p, r, "worst_kl");
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
}

static void line_of(kk_page_series *s, const char *name, const json_t *report, const char *list,
                    const char *x, const char *y) {
    snprintf(s->name, sizeof s->name, "%.50s", name);
    s->n = 0;
    for (size_t i = 0; i < kk_gate_size(report, list) && s->n < KK_PAGE_POINTS; i++) {
        const json_t *r = kk_gate_item(report, list, i);
        if (kk_gate_number(r, x, &s->x[s->n]) && kk_gate_number(r, y, &s->y[s->n])) s->n++;
    }
}

void kk_page_sweep(kk_page *p, const json_t *report) {
    const kk_page_axes recall = {.title = "Recall against alpha", .x = "alpha", .y = "recall"};
    const kk_page_axes kl = {.title = "KL against alpha", .x = "alpha", .y = "nats", .log_y = true};
    kk_page_series *s = series(p);
    double knee;
    if (!s) return;
    if (kk_gate_number(report, "knee", &knee))
        kk_page_put(p, "<p>Knee at alpha %s.</p>\n", kk_page_figure(knee).text);
    put_rows(p, report, "alpha", "#alpha|#rel. error|#sliding|#full|#recall|#mean KL|#worst KL");
    line_of(&s[0], "recall", report, "rows", "alpha", "recall");
    kk_page_lines(p, &recall, s, 1);
    line_of(&s[0], "mean KL", report, "rows", "alpha", "mean_kl");
    line_of(&s[1], "worst KL", report, "rows", "alpha", "worst_kl");
    kk_page_lines(p, &kl, s, 2);
    kk_free(s);
}

static void plot_row_kl(kk_page *p, const json_t *report, const char *list, const char *key) {
    kk_page_range rows[KK_PAGE_BARS];
    size_t n = 0;
    for (size_t i = 0; i < kk_gate_size(report, list) && n < KK_PAGE_BARS; i++) {
        const json_t *r = kk_gate_item(report, list, i);
        const double mean = kk_gate_number_or(r, "mean_kl", 0);
        if (mean <= 0) continue;
        rows[n] = (kk_page_range){.colour = 0, .low = mean, .mid = mean};
        rows[n].high = kk_gate_number_or(r, "worst_kl", mean);
        snprintf(rows[n++].label, sizeof rows->label, "%.20s", kk_gate_text(r, key));
    }
    kk_page_ranges(p, "KL against exact decoding: mean (dot) to worst position", "nats", true, rows,
                   n);
}

void kk_page_kv(kk_page *p, const json_t *report) {
    put_rows(p, report, "format",
             "format|#bits|#rel. error|#sliding|#full|#recall|#mean KL|#worst KL");
    plot_row_kl(p, report, "rows", "format");
}

/* ---- training ----------------------------------------------------------------------------- */

void kk_page_projection(kk_page *p, const json_t *report) {
    const kk_page_axes axes = {.title = "Loss by step", .x = "step", .y = "loss", .log_y = true};
    kk_page_series *s = series(p);
    if (!s) return;
    kk_page_put(p, "<h3>Stages</h3>");
    kk_page_table(p, "loss|#steps|#seconds|#rel. error|#sliding|#full|#mean KL|#worst KL");
    for (size_t i = 0; i < kk_gate_size(report, "stages"); i++) {
        const json_t *r = kk_gate_item(report, "stages", i);
        const json_t *errors = json_object_get(r, "rel_mse");
        kk_page_row(p);
        kk_page_cell(p, kk_gate_text(r, "loss"));
        kk_page_cell_of(p, r, "steps");
        kk_page_cell_of(p, r, "seconds");
        kk_page_cell_of(p, errors, "all");
        kk_page_cell_of(p, errors, "sliding");
        kk_page_cell_of(p, errors, "full");
        kk_page_cell_of(p, r, "mean_kl");
        kk_page_cell_of(p, r, "worst_kl");
        kk_page_put(p, "</tr>");
    }
    kk_page_table_end(p);
    plot_row_kl(p, report, "stages", "loss");
    line_of(&s[0], "loss", report, "curve", "step", "loss");
    kk_page_lines(p, &axes, s, 1);
    kk_free(s);
}
