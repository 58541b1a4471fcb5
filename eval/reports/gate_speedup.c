/* gate_speedup.c - rules about speed-ups: over what, of how much, and under which conditions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/gate_rules.h"

/* One speed-up of a bench: an arm over another, on one set or over all. */
typedef struct {
    char where[96];
    const json_t *arms; /* all of them, on this set */
    const json_t *set;  /* or policy; NULL: over all sets */
    const char *name, *base_name;
    const json_t *arm, *base;
    double speedup;
} claim;

typedef void (*claim_fn)(kk_gate *g, const claim *c);

static const char *baseline_of(const json_t *arm) {
    const char *name = kk_gate_text(arm, "baseline");
    return *name ? name : "plain";
}

static void each_of(kk_gate *g, const json_t *arms, const json_t *set, claim_fn fn) {
    const char *name;
    json_t *arm;
    json_object_foreach((json_t *)arms, name, arm) {
        claim c = {.arms = arms, .set = set, .name = name, .arm = arm};
        c.base_name = baseline_of(arm);
        c.base = json_object_get(arms, c.base_name);
        if (!kk_gate_number(arm, "speedup", &c.speedup)) continue;
        if (arm == c.base && c.speedup == 1) continue; /* it says that it is the baseline */
        snprintf(c.where, sizeof c.where, "%.30s%s%.40s", name, set ? " on " : "",
                 kk_gate_timed_name(set));
        fn(g, &c);
    }
}

static void each_claim(kk_gate *g, claim_fn fn) {
    each_of(g, json_object_get(g->report, "arms"), NULL, fn);
    const json_t *set;
    for (size_t i = 0; (set = kk_gate_timed(g, i)); i++)
        each_of(g, json_object_get(set, "arms"), set, fn);
}

/* The rows of an arm that a claim is of, borrowed by a list of the caller's. */
static json_t *rows_of(const kk_gate *g, const claim *c, const char *name) {
    json_t *all = json_array();
    const size_t n = c->set ? 1 : kk_gate_size(g->report, "sets");
    for (size_t i = 0; all && i < n; i++) {
        const json_t *set = c->set ? c->set : kk_gate_item(g->report, "sets", i);
        const json_t *arm = json_object_get(json_object_get(set, "arms"), name);
        json_t *rows = json_object_get(arm, "rows");
        if (json_is_array(rows)) json_array_extend(all, rows);
    }
    return all;
}

static size_t count_rows(const kk_gate *g, const claim *c, const char *name) {
    json_t *rows = rows_of(g, c, name);
    const size_t n = json_array_size(rows);
    json_decref(rows);
    return n;
}

/* ---- over what ---------------------------------------------------------------------------- */

static void recount(kk_gate *g, const claim *c) {
    double own, base;
    if (!kk_gate_number(c->arm, "tok_s", &own) || !kk_gate_number(c->base, "tok_s", &base) ||
        base <= 0)
        kk_gate_say(g, "%s: %.4gx without the rates of both arms", c->where, c->speedup);
    else if (!kk_gate_same(c->speedup, own / base))
        kk_gate_say(g, "%s: %.6gx, and %.6g over %.6g tok/s is %.6gx", c->where, c->speedup, own,
                    base, own / base);
}

/* Ratios of a comparison with another engine, turn by turn. */
static void recount_peer(kk_gate *g, const char *what, const char *spread) {
    const size_t n = kk_gate_size(g->report, "rows");
    double *ratio = n ? kk_calloc(n, sizeof *ratio) : NULL, said;
    if (n && !ratio) g->status = KK_ENOMEM;
    for (size_t i = 0; ratio && i < n; i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        const double peer = kk_gate_number_or(json_object_get(row, "peer"), what, 0);
        const double own = kk_gate_number_or(json_object_get(row, "kakeya"), what, 0);
        size_t at = i;
        const double one = peer > 0 ? own / peer : 0;
        for (; at > 0 && ratio[at - 1] > one; at--) ratio[at] = ratio[at - 1];
        ratio[at] = one;
    }
    if (ratio && kk_gate_number(json_object_get(g->report, spread), "median", &said)) {
        const double median = (ratio[(n - 1) / 2] + ratio[n / 2]) / 2;
        if (!kk_gate_same(said, median))
            kk_gate_say(g, "`%s` has the median %.6g, and the turns give %.6g", spread, said,
                        median);
    }
    kk_free(ratio);
}

static void rule_speedup_recount(kk_gate *g) {
    if (kk_gate_like(g, "bench")) each_claim(g, recount);
    if (!kk_gate_is(g, "compare")) return;
    recount_peer(g, "decode", "decode_ratio");
    recount_peer(g, "prefill", "prefill_ratio");
}

static double drafted(const json_t *arm) { return kk_gate_number_or(arm, "drafted", 0); }

/* Neither drafts, neither rebuilds, both keep their rows alike: the same computation twice. */
static void self(kk_gate *g, const claim *c) {
    const bool alike = drafted(c->arm) <= 0 && drafted(c->base) <= 0 &&
                       kk_gate_same_cache(c->arm, c->base) &&
                       kk_gate_number_or(c->arm, "restored_rows", 0) ==
                           kk_gate_number_or(c->base, "restored_rows", 0);
    if (c->arm == c->base || alike)
        kk_gate_say(g, "%s: %.4gx over %.30s, and both did the same computation", c->where,
                    c->speedup, c->base_name);
}
static void rule_speedup_self(kk_gate *g) { each_claim(g, self); }

/* Plain decoding with all rows kept. */
static bool is_plain(const json_t *arm) {
    const char *sliding = kk_gate_text(arm, "kv_sliding"), *full = kk_gate_text(arm, "kv_full");
    return drafted(arm) <= 0 && kk_gate_number_or(arm, "restored_rows", 0) <= 0 &&
           (!*sliding || strcmp(sliding, "native") == 0) && (!*full || strcmp(full, "exact") == 0);
}

static void best_plain(kk_gate *g, const claim *c) {
    const double base = kk_gate_number_or(c->base, "tok_s", 0);
    const char *name;
    json_t *arm;
    if (drafted(c->base) > 0)
        kk_gate_say(g, "%s: its baseline %.30s drafts", c->where, c->base_name);
    json_object_foreach((json_t *)c->arms, name, arm) {
        const double rate = kk_gate_number_or(arm, "tok_s", 0);
        if (arm != c->arm && is_plain(arm) && rate > base && !kk_gate_same(rate, base))
            kk_gate_say(g, "%s is held against %.30s (%.6g tok/s), and %.30s is faster (%.6g)",
                        c->where, c->base_name, base, name, rate);
    }
}
static void rule_speedup_baseline(kk_gate *g) { each_claim(g, best_plain); }

/* ---- of how much -------------------------------------------------------------------------- */

static void shown(kk_gate *g, const claim *c) {
    const size_t own = count_rows(g, c, c->name), base = count_rows(g, c, c->base_name);
    if (own == 0 || base == 0)
        kk_gate_say(g, "%s: %.4gx, and no rows of %.30s", c->where, c->speedup,
                    own == 0 ? c->name : c->base_name);
}
static void rule_speedup_rows(kk_gate *g) { each_claim(g, shown); }

static void enough(kk_gate *g, const claim *c) {
    const size_t own = count_rows(g, c, c->name), base = count_rows(g, c, c->base_name);
    const size_t least = own < base ? own : base;
    const double told = kk_gate_number_or(c->set, "prompts", KK_GATE_SAMPLES); /* legacy */
    if (least ? least < KK_GATE_SAMPLES : told < KK_GATE_SAMPLES)
        kk_gate_say(g, "%s: %.4gx from %.0f samples, and %d is the least", c->where, c->speedup,
                    least ? (double)least : told, KK_GATE_SAMPLES);
}

static void rule_speedup_samples(kk_gate *g) {
    static const char *const ratios[] = {"decode_ratio", "prefill_ratio"};
    if (kk_gate_like(g, "bench")) each_claim(g, enough);
    for (size_t i = 0; kk_gate_is(g, "compare") && i < 2; i++) {
        const double n = kk_gate_number_or(json_object_get(g->report, ratios[i]), "n", 0);
        if (n < KK_GATE_SAMPLES)
            kk_gate_say(g, "`%s` is of %.0f turns, and %d is the least", ratios[i], n,
                        KK_GATE_SAMPLES);
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(kk_gate *g, const json_t *rows, const char *key) {
    const size_t n = json_array_size(rows);
    double *x = n ? kk_calloc(n, sizeof *x) : NULL, median = 0;
    if (n && !x) g->status = KK_ENOMEM;
    if (!x) return 0;
    for (size_t i = 0; i < n; i++) x[i] = kk_gate_number_or(json_array_get(rows, i), key, 0);
    qsort(x, n, sizeof *x, by_value);
    median = (x[(n - 1) / 2] + x[n / 2]) / 2;
    kk_free(x);
    return median;
}

static void long_enough(kk_gate *g, const claim *c) {
    const char *const names[] = {c->name, c->base_name};
    for (size_t i = 0; i < 2; i++) {
        json_t *rows = rows_of(g, c, names[i]);
        const double median = median_of(g, rows, "tokens");
        if (json_array_size(rows) && median < KK_GATE_TOKENS)
            kk_gate_say(g, "%s: %.4gx, and the median sample of %.30s has %.4g tokens", c->where,
                        c->speedup, names[i], median);
        json_decref(rows);
    }
}
static void rule_speedup_tokens(kk_gate *g) { each_claim(g, long_enough); }

/* ---- under which conditions --------------------------------------------------------------- */

static bool warmed(const json_t *set, const char *prompt) {
    for (size_t i = 0; i < kk_gate_size(set, "warm_up"); i++) {
        const char *one = json_string_value(kk_gate_item(set, "warm_up", i));
        if (one && strcmp(one, prompt) == 0) return true;
    }
    return false;
}

static void check_warm_up(kk_gate *g, const json_t *set) {
    const char *name;
    json_t *arm;
    if (!kk_gate_get(set, "warm_up"))
        kk_gate_say(g, "%.40s does not say what warmed up", kk_gate_timed_name(set));
    json_object_foreach(json_object_get(set, "arms"), name,
                        arm) for (size_t i = 0; i < kk_gate_size(arm, "rows"); i++) {
        const char *prompt = kk_gate_text(kk_gate_item(arm, "rows", i), "prompt");
        if (warmed(set, prompt))
            kk_gate_say(g, "%.30s on %.30s: prompt %.20s was timed, and warmed up on", name,
                        kk_gate_timed_name(set), prompt);
    }
}

static void count_claim(kk_gate *g, const claim *c) {
    (void)c;
    g->said++;
}

static void rule_speedup_warm_up(kk_gate *g) {
    each_claim(g, count_claim);
    const size_t claims = g->said;
    g->said = 0;
    const json_t *set;
    for (size_t i = 0; claims && (set = kk_gate_timed(g, i)); i++) check_warm_up(g, set);
}

/* By token where the prompt's length is known: prompts of a set differ. */
static double prefill_of(const json_t *row) {
    const double tokens = kk_gate_number_or(row, "prompt_tokens", 1);
    return kk_gate_number_or(row, "prefill_s", 0) / (tokens > 0 ? tokens : 1);
}

static void steady(kk_gate *g, const claim *c) {
    const char *const names[] = {c->name, c->base_name};
    for (size_t i = 0; c->set && i < 2; i++) {
        json_t *rows = rows_of(g, c, names[i]);
        double least = 0, most = 0;
        for (size_t j = 0; j < json_array_size(rows); j++) {
            const double s = prefill_of(json_array_get(rows, j));
            if (s <= 0) continue;
            if (least <= 0 || s < least) least = s;
            if (s > most) most = s;
        }
        if (least > 0 && most > KK_GATE_PREFILL_SPREAD * least)
            kk_gate_say(g, "%s: %.4gx, and prefill of %.30s varied %.3gx", c->where, c->speedup,
                        names[i], most / least);
        json_decref(rows);
    }
}
static void rule_speedup_prefill(kk_gate *g) { each_claim(g, steady); }

static void same_scope(kk_gate *g, const claim *c) {
    const char *own = kk_gate_text(c->arm, "timing"), *base = kk_gate_text(c->base, "timing");
    if (!*own || strcmp(own, base) != 0)
        kk_gate_say(g, "%s times '%.20s', and %.30s '%.20s'", c->where, own, c->base_name, base);
}
static void rule_speedup_scope(kk_gate *g) { each_claim(g, same_scope); }

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry speedup_rules[] = {
    {"SPEEDUP_RECOUNT", rule_speedup_recount, "a speed-up is the ratio of two rates of the report"},
    {"SPEEDUP_SELF", rule_speedup_self, "no speed-up of one computation over itself"},
    {"SPEEDUP_BASELINE", rule_speedup_baseline,
     "speed-ups are over the fastest plain decoding of the report"},
    {"SPEEDUP_ROWS", rule_speedup_rows, "a speed-up shows the rows of both arms"},
    {"SPEEDUP_SAMPLES", rule_speedup_samples, "a speed-up is of 5 samples or more"},
    {"SPEEDUP_TOKENS", rule_speedup_tokens,
     "a speed-up is of 32 tokens or more in the median sample"},
    {"SPEEDUP_WARM_UP", rule_speedup_warm_up, "warm-up is on other prompts than the ones timed"},
    {"SPEEDUP_PREFILL", rule_speedup_prefill, "prefill times of an arm lie within a factor of 3"},
    {"SPEEDUP_SCOPE", rule_speedup_scope, "both arms of a speed-up time the same thing"},
};
KK_GATE_GROUP(speedup, speedup_rules);
