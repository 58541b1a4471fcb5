/* gate_shares.c - rules about figures that follow from others beside them: medians, shares of the
 * bandwidth, ratios, rates of other engines. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/gate_rules.h"

static void compare(kk_gate *g, const char *where, const json_t *o, const char *key, double is) {
    double said;
    if (kk_gate_number(o, key, &said) && !kk_gate_same(said, is))
        kk_gate_say(g, "%s: `%s` is %.6g, and what stands beside it gives %.6g", where, key, said,
                    is);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A spread against the n values it is of, which are sorted. */
static void check_spread(kk_gate *g, const char *where, const json_t *spread, double *x, size_t n) {
    if (n == 0 || !json_is_object(spread)) return;
    qsort(x, n, sizeof *x, by_value);
    compare(g, where, spread, "median", (x[(n - 1) / 2] + x[n / 2]) / 2);
    compare(g, where, spread, "min", x[0]);
    compare(g, where, spread, "max", x[n - 1]);
    compare(g, where, spread, "n", (double)n);
}

/* ---- spreads of samples and of rows --------------------------------------------------------- */

typedef double (*row_fn)(const json_t *row);

static double rate_of(const json_t *row) {
    const double s = kk_gate_number_or(row, "seconds", 0);
    return s > 0 ? kk_gate_number_or(row, "tokens", 0) / s : 0;
}
static double prefill_of(const json_t *row) {
    const double s = kk_gate_number_or(row, "prefill_s", 0);
    return s > 0 ? kk_gate_number_or(row, "tokens", 0) / s : 0;
}
static double decode_of(const json_t *row) {
    const double s = kk_gate_number_or(row, "decode_s", 0);
    return s > 0 ? (kk_gate_number_or(row, "generated", 0) - 1) / s : 0;
}
static double itself(const json_t *x) { return json_number_value(x); }

/* Values that are 0 were not measured, and no part of a spread. */
static void check_of(kk_gate *g, const char *where, const json_t *spread, const json_t *rows,
                     row_fn fn) {
    const size_t n = json_array_size(rows);
    double *x = n ? kk_calloc(n, sizeof *x) : NULL;
    size_t of = 0;
    if (n && !x) g->status = KK_ENOMEM;
    for (size_t i = 0; x && i < n; i++) {
        const double one = fn(json_array_get(rows, i));
        if (one > 0) x[of++] = one;
    }
    if (x) check_spread(g, where, spread, x, of);
    kk_free(x);
}

static void visit_spreads(kk_gate *g, const char *where, const json_t *o) {
    const json_t *rows = json_object_get(o, "rows"), *samples = json_object_get(o, "samples");
    if (json_is_array(samples)) check_of(g, where, o, samples, itself);
    check_of(g, where, json_object_get(o, "tok_s_spread"), rows, rate_of);
    if (!kk_gate_is(g, "needle")) return;
    check_of(g, where, json_object_get(o, "prefill_tok_s_spread"), rows, prefill_of);
    check_of(g, where, json_object_get(o, "decode_tok_s_spread"), rows, decode_of);
}

/* An arm over all sets has its spread from the rows of all of them. */
static void check_totals(kk_gate *g) {
    const char *name;
    json_t *arm;
    json_object_foreach(json_object_get(g->report, "arms"), name, arm) {
        json_t *rows = json_array();
        for (size_t i = 0; rows && i < kk_gate_size(g->report, "sets"); i++) {
            const json_t *set = kk_gate_item(g->report, "sets", i);
            json_t *own =
                json_object_get(json_object_get(json_object_get(set, "arms"), name), "rows");
            if (json_is_array(own)) json_array_extend(rows, own);
        }
        check_of(g, name, json_object_get(arm, "tok_s_spread"), rows, rate_of);
        json_decref(rows);
    }
}

static void rule_spread_recount(kk_gate *g) {
    kk_gate_walk(g, visit_spreads);
    if (kk_gate_is(g, "bench")) check_totals(g);
}

/* ---- shares -------------------------------------------------------------------------------- */

/* What a device reads for a token, as it keeps the weights: on some they take more than in the
 * file.  Reports of earlier schemas say what the file has. */
static double bytes_of_token(kk_gate *g, const json_t *plain) {
    const double file = kk_gate_number_or(json_object_get(g->report, "model"), "token_bytes", 0);
    const double own = kk_gate_number_or(plain, "token_bytes", file);
    const char *device = kk_gate_text(json_object_get(g->report, "machine"), "device");
    if (own < file || (own > file && strcmp(device, "mlx") != 0))
        kk_gate_say(g, "plain: %s reads %.10g bytes of weights for a token that has %.10g", device,
                    own, file);
    return own;
}

static void check_plain(kk_gate *g) {
    const json_t *plain = json_object_get(json_object_get(g->report, "arms"), "plain");
    const json_t *band = json_object_get(g->report, "bandwidth"), *first;
    const double bytes = bytes_of_token(g, plain) / 1e9;
    const double rate = kk_gate_number_or(json_object_get(plain, "decode_tok_s"), "median", 0);
    const double before = kk_gate_number_or(band, "before_gb_s", 0);
    const double after = kk_gate_number_or(band, "after_gb_s", 0);
    const double best = before > after ? before : after;
    const double lowest = kk_gate_number_or(band, "floor_gb_s", 0);
    compare(g, "plain", plain, "decode_gb_s", rate * bytes);
    if (best > 0) compare(g, "plain", plain, "bandwidth_share", rate * bytes / best);
    if (lowest > 0)
        compare(g, "plain", plain, "floor_share",
                kk_gate_number_or(plain, "tok_s", rate) * bytes / lowest);
    /* Of an even number of repeats the median is a mean of two, of rates and of times another. */
    const double n = kk_gate_number_or(json_object_get(plain, "decode_tok_s"), "n", 0);
    if (rate > 0 && fmod(n, 2) == 1) compare(g, "plain", plain, "round_ms", 1e3 / rate);
    first = json_object_get(kk_gate_item(g->report, "contexts", 0), "decode_tok_s");
    if (first && !json_equal(first, json_object_get(plain, "decode_tok_s")))
        kk_gate_say(g, "decoding at the first length of context has other rates than `arms.plain`");
}

/* The median, shortest and longest of the times that are stored. */
static void check_times(kk_gate *g, const char *where, const json_t *pass) {
    const json_t *samples = json_object_get(pass, "samples_ms");
    const size_t n = json_array_size(samples);
    double *x = n ? kk_calloc(n, sizeof *x) : NULL;
    if (n && !x) g->status = KK_ENOMEM;
    if (!x) return;
    for (size_t i = 0; i < n; i++) x[i] = json_number_value(json_array_get(samples, i));
    qsort(x, n, sizeof *x, by_value);
    compare(g, where, pass, "ms", (x[(n - 1) / 2] + x[n / 2]) / 2);
    compare(g, where, pass, "ms_min", x[0]);
    compare(g, where, pass, "ms_max", x[n - 1]);
    kk_free(x);
}

/* Passes of several rows beside the pass of the first. */
static void check_passes(kk_gate *g, const char *where, const json_t *list) {
    const double one = kk_gate_number_or(json_array_get(list, 0), "ms", 0);
    for (size_t i = 0; one > 0 && i < json_array_size(list); i++) {
        const json_t *pass = json_array_get(list, i);
        const double ms = kk_gate_number_or(pass, "ms", 0);
        double gb;
        check_times(g, where, pass);
        if (kk_gate_number_or(json_array_get(list, 0), "rows", 1) == 1)
            compare(g, where, pass, "ratio", ms / one);
        if (ms > 0 && kk_gate_number(pass, "gb", &gb))
            compare(g, where, pass, "gb_s", gb / ms * 1e3);
    }
}

static void check_arm(kk_gate *g, const char *where, const json_t *arm) {
    double best, predicted;
    const double seconds = kk_gate_number_or(arm, "seconds", 0);
    if (kk_gate_number(arm, "best_tok_s", &best) && best > 0)
        compare(g, where, arm, "of_best", kk_gate_number_or(arm, "tok_s", 0) / best);
    if (!kk_gate_sum(arm, "rows", "predicted_s", &predicted) || predicted <= 0 || seconds <= 0)
        return;
    compare(g, where, arm, "of_predicted", predicted / seconds);
    compare(g, where, arm, "predicted_tok_s", kk_gate_number_or(arm, "tokens", 0) / predicted);
}

static void check_bench(kk_gate *g) {
    const json_t *rows = json_object_get(g->report, "rows"), *formats;
    check_plain(g);
    check_passes(g, "whole_model", json_object_get(rows, "whole_model"));
    check_passes(g, "dense_q4_0", json_object_get(rows, "dense_q4_0"));
    formats = json_object_get(json_object_get(g->report, "attention"), "formats");
    check_passes(g, "attention", formats);
    for (size_t i = 0; i < kk_gate_size(g->report, "sets"); i++) {
        const json_t *set = kk_gate_item(g->report, "sets", i);
        const char *name;
        json_t *arm;
        json_object_foreach(json_object_get(set, "arms"), name, arm) if (kk_gate_size(arm, "rows"))
            check_arm(g, name, arm);
    }
}

/* ---- other engines --------------------------------------------------------------------------- */

static void check_peer(kk_gate *g, const char *who, const char *what, const char *list) {
    const size_t n = kk_gate_size(g->report, "rows");
    double *x = n ? kk_calloc(n, sizeof *x) : NULL;
    char where[60];
    if (n && !x) g->status = KK_ENOMEM;
    for (size_t i = 0; x && i < n; i++)
        x[i] = kk_gate_number_or(json_object_get(kk_gate_item(g->report, "rows", i), who), what, 0);
    snprintf(where, sizeof where, "%s of %s", list, who);
    if (x) check_spread(g, where, json_object_get(json_object_get(g->report, list), who), x, n);
    kk_free(x);
}

static double ratio_of(const json_t *row, const char *what) {
    const double peer = kk_gate_number_or(json_object_get(row, "peer"), what, 0);
    const double own = kk_gate_number_or(json_object_get(row, "kakeya"), what, 0);
    return peer > 0 ? own / peer : 0;
}
static double decode_ratio(const json_t *row) { return ratio_of(row, "decode"); }
static double prefill_ratio(const json_t *row) { return ratio_of(row, "prefill"); }
static double share_of(const json_t *r) { return kk_gate_number_or(r, "share_of_bandwidth", 0); }
static double band_of(const json_t *r) { return kk_gate_number_or(r, "bandwidth_gb_s", 0); }

static void check_compare(kk_gate *g) {
    const json_t *rows = json_object_get(g->report, "rows");
    const double bytes =
        kk_gate_number_or(json_object_get(g->report, "model"), "token_bytes", 0) / 1e9;
    check_peer(g, "kakeya", "decode", "decode_tok_s");
    check_peer(g, "peer", "decode", "decode_tok_s");
    check_peer(g, "kakeya", "prefill", "prefill_tok_s");
    check_peer(g, "peer", "prefill", "prefill_tok_s");
    check_of(g, "decode_ratio", json_object_get(g->report, "decode_ratio"), rows, decode_ratio);
    check_of(g, "prefill_ratio", json_object_get(g->report, "prefill_ratio"), rows, prefill_ratio);
    check_of(g, "share_of_bandwidth", json_object_get(g->report, "share_of_bandwidth"), rows,
             share_of);
    check_of(g, "bandwidth_gb_s", json_object_get(g->report, "bandwidth_gb_s"), rows, band_of);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const double rate = kk_gate_number_or(json_object_get(row, "kakeya"), "decode", 0);
        if (band_of(row) > 0)
            compare(g, "a turn", row, "share_of_bandwidth", rate * bytes / band_of(row));
    }
}

/* Arms of an exactness are held against the first by the error of their logits. */
static void check_exactness(kk_gate *g) {
    const json_t *e = kk_gate_get(g->report, "exactness"), *said = json_object_get(e, "holds");
    const double limit = kk_gate_number_or(e, "limit", 0);
    const double first =
        kk_gate_number_or(json_object_get(kk_gate_item(e, "arms", 0), "logits"), "rms", 0);
    bool holds = first > 0 && kk_gate_size(e, "arms") > 1;
    for (size_t i = 1; i < kk_gate_size(e, "arms"); i++) {
        const json_t *arm = kk_gate_item(e, "arms", i);
        const double is =
            kk_gate_number_or(json_object_get(arm, "logits"), "rms", 0) / (first > 0 ? first : 1);
        compare(g, kk_gate_text(arm, "arm"), arm, "ratio", is);
        holds &= is <= limit;
    }
    if (json_is_boolean(said) && json_is_true(said) != holds)
        kk_gate_say(g, "exactness is said %s, and its arms say otherwise",
                    holds ? "not to hold" : "to hold");
}

/* The first length of context is that of the turns. */
static void check_contexts(kk_gate *g) {
    static const char *const who[] = {"kakeya", "peer"};
    const json_t *first = kk_gate_item(g->report, "contexts", 0);
    check_passes(g, "forwards", json_object_get(g->report, "forwards"));
    for (size_t i = 0; first && i < 2; i++) {
        const json_t *a = json_object_get(json_object_get(g->report, "decode_tok_s"), who[i]);
        const json_t *b = json_object_get(json_object_get(first, "decode_tok_s"), who[i]);
        if (!kk_gate_same(kk_gate_number_or(a, "median", 0), kk_gate_number_or(b, "median", 0)))
            kk_gate_say(g, "%s has other rates at the first length of context than in its turns",
                        who[i]);
    }
}

static void rule_share_recount(kk_gate *g) {
    if (kk_gate_is(g, "bench")) check_bench(g);
    if (kk_gate_is(g, "compare")) {
        check_compare(g);
        check_contexts(g);
        check_exactness(g);
    }
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry shares_rules[] = {
    {"SPREAD_RECOUNT", rule_spread_recount, "medians and spreads are those of samples and rows"},
    {"SHARE_RECOUNT", rule_share_recount,
     "shares, ratios and rates of other engines follow from what is stored beside them"},
};
KK_GATE_GROUP(shares, shares_rules);
