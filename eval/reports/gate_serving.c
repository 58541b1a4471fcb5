/* gate_serving.c - rules about reports of a server; see gate_serving.h. */
#include "eval/reports/gate_serving.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/gate_rules.h"

static bool is_kind(const json_t *report, const char *kind) {
    return strcmp(kk_gate_text(report, "kind"), kind) == 0;
}

static double setting(const json_t *report, const char *key) {
    return kk_gate_number_or(kk_gate_get(report, "settings"), key, 0);
}

static bool sum_rows(const json_t *rows, const char *key, double *out) {
    *out = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        double one;
        if (!kk_gate_number(json_array_get(rows, i), key, &one)) return false;
        *out += one;
    }
    return json_array_size(rows) > 0;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the n rows from the first-th on; false: there are none, or one does not have it. */
static bool median_rows(const json_t *rows, const char *key, size_t first, size_t n, double *out) {
    double *x = n ? kk_calloc(n, sizeof *x) : NULL;
    bool good = x != NULL && first + n <= json_array_size(rows);
    for (size_t i = 0; good && i < n; i++)
        good = kk_gate_number(json_array_get(rows, first + i), key, &x[i]);
    if (good) qsort(x, n, sizeof *x, by_value);
    if (good) *out = (x[(n - 1) / 2] + x[n / 2]) / 2;
    kk_free(x);
    return good;
}

/* ---- load ---------------------------------------------------------------------------------- */

static const char *const spec_names[] = {"none", "auto"};

/* Tokens per second of an arm, from its rows; 0: there is none. */
static double rate_of(const json_t *report, const char *arm, const char *spec, double ctx,
                      double streams) {
    for (size_t i = 0; i < kk_gate_size(report, "arms"); i++) {
        const json_t *a = kk_gate_item(report, "arms", i);
        double tokens, seconds;
        if (strcmp(kk_gate_text(a, "arm"), arm) != 0 ||
            strcmp(kk_gate_text(a, "spec"), spec) != 0 || kk_gate_number_or(a, "ctx", 0) != ctx ||
            kk_gate_number_or(a, "streams", 0) != streams)
            continue;
        const json_t *rows = json_object_get(a, "rows");
        if (!sum_rows(rows, "tokens", &tokens) || !sum_rows(rows, "seconds", &seconds)) return 0;
        return seconds > 0 ? tokens / seconds : 0;
    }
    return 0;
}

static bool ratio(double over, double under, double *out) {
    if (over <= 0 || under <= 0) return false;
    *out = over / under;
    return true;
}

/* Streams of which the hashes alone and together differ. */
static bool count_different(const json_t *report, double *out) {
    const json_t *identity = json_object_get(report, "identity");
    size_t compared = 0;
    *out = 0;
    for (size_t i = 0; i < json_array_size(identity); i++) {
        const json_t *one = json_array_get(identity, i);
        for (size_t k = 0; k < kk_gate_size(one, "logprob_hashes"); k++, compared++) {
            const json_t *h = kk_gate_item(one, "logprob_hashes", k);
            const char *alone = kk_gate_text(h, "alone");
            *out += !*alone || strcmp(alone, kk_gate_text(h, "together")) != 0;
        }
    }
    return compared > 0;
}

static bool speed_value(const json_t *report, const char *figure, const char *arm, double *out) {
    char spec[8] = "";
    double ctx = 0;
    const double clients = setting(report, "clients");
    if (sscanf(arm, "%7s %lf", spec, &ctx) != 2) return false;
    const double one = rate_of(report, "served", spec, ctx, 1);
    const double many = rate_of(report, "served", spec, ctx, clients);
    if (strcmp(figure, "served_ratio") == 0)
        return ratio(one, rate_of(report, "run", spec, ctx, 1), out);
    if (strcmp(figure, "together_ratio") == 0)
        return ratio(many, rate_of(report, "served", "none", ctx, 1), out);
    return strcmp(figure, "drafted_ratio") == 0 && ratio(many, one, out);
}

static bool load_value(const json_t *report, const char *figure, const char *arm, double *out) {
    const json_t *identity = json_object_get(report, "identity");
    const json_t *arrival = json_object_get(json_object_get(report, "arrival"), "rows");
    double passes, sessions, most = 0;
    if (strcmp(figure, "different") == 0) return count_different(report, out);
    if (strcmp(figure, "sessions_per_pass") == 0)
        return sum_rows(identity, "passes", &passes) &&
               sum_rows(identity, "sessions_in_passes", &sessions) && ratio(sessions, passes, out);
    if (strcmp(figure, "first_in_chunks") == 0) {
        for (size_t i = 0; i < json_array_size(arrival); i++) {
            const json_t *r = json_array_get(arrival, i);
            const double chunk =
                kk_gate_number_or(r, "alone_s", 0) / kk_gate_number_or(r, "chunks", 0);
            most = fmax(most, kk_gate_number_or(r, "first_s", 0) / chunk);
        }
        *out = most;
        return json_array_size(arrival) > 0 && most > 0;
    }
    if (strcmp(figure, "failed") == 0) return kk_gate_number(report, "failed", out);
    return speed_value(report, figure, arm, out);
}

static size_t load_limits(const json_t *report, kk_serving_limit *out) {
    const json_t *s = kk_gate_get(report, "settings");
    const size_t specs = setting(report, "specs") >= 2 ? 2 : 1;
    size_t n = 0;
    for (size_t k = 0; k < kk_gate_size(s, "ctx") && k < 4; k++)
        for (size_t spec = 0; spec < specs; spec++) {
            const double together = json_number_value(kk_gate_item(s, "min_together", k));
            const double limits[] = {setting(report, "min_served"), together,
                                     setting(report, "min_drafted")};
            static const char *const names[] = {"served_ratio", "together_ratio", "drafted_ratio"};
            for (size_t i = 0; i < 2 + spec; i++, n++) {
                out[n] = (kk_serving_limit){.limit = limits[i], .at_least = true};
                snprintf(out[n].figure, sizeof out[n].figure, "%s", names[i]);
                snprintf(out[n].arm, sizeof out[n].arm, "%s %.0f", spec_names[spec],
                         json_number_value(kk_gate_item(s, "ctx", k)));
            }
        }
    const kk_serving_limit rest[] = {
        {"different", "streams", 0, false},
        {"sessions_per_pass", "streams", setting(report, "clients") > 1 ? 2 : 1, true},
        {"first_in_chunks", "arrival", setting(report, "max_chunks"), false},
        {"failed", "requests", 0, false},
    };
    memcpy(out + n, rest, sizeof rest);
    return n + sizeof rest / sizeof *rest;
}

/* ---- soak ---------------------------------------------------------------------------------- */

/* Seconds that count as the start: five minutes, or a sixth of a shorter run. */
static double start_s(const json_t *report) { return fmin(300, setting(report, "seconds") / 6); }

/* The first bucket after the start. */
static size_t warm_bucket(const json_t *report) {
    const json_t *b = json_object_get(report, "buckets");
    size_t i = 0;
    while (i < json_array_size(b) &&
           kk_gate_number_or(json_array_get(b, i), "from_s", 0) < start_s(report))
        i++;
    return i;
}

/* Mean of the last quarter of the buckets after the start over that of the first quarter. */
static bool drift(const json_t *b, size_t first, const char *key, double *out) {
    const size_t n = json_array_size(b) - first, part = n / 4;
    double early = 0, late = 0;
    if (json_array_size(b) < first || part == 0) return false;
    for (size_t i = 0; i < part; i++) {
        early += kk_gate_number_or(json_array_get(b, first + i), key, 0);
        late += kk_gate_number_or(json_array_get(b, first + n - 1 - i), key, 0);
    }
    if (early <= 0) return false;
    *out = fabs(late / early - 1);
    return true;
}

/* Largest over smallest, less 1, of the buckets after the start. */
static bool range_of(const json_t *b, size_t first, const char *key, double *out) {
    double least = INFINITY, most = 0;
    for (size_t i = first; i < json_array_size(b); i++) {
        const double v = kk_gate_number_or(json_array_get(b, i), key, 0);
        least = fmin(least, v);
        most = fmax(most, v);
    }
    *out = (most - least) / fmax(least, 1);
    return first < json_array_size(b) && least > 0;
}

/* Change of the buckets' median latency over the run, by least squares, over the spread of turns
 * at the start (largest p95 less smallest p05). */
static bool latency_slope(const json_t *report, const json_t *b, size_t warm, double *out) {
    const double n = (double)json_array_size(b);
    double x = 0, y = 0, xx = 0, xy = 0, low = INFINITY, high = 0;
    for (size_t i = 0; i < json_array_size(b); i++) {
        const json_t *one = json_array_get(b, i);
        const double at = kk_gate_number_or(one, "from_s", 0);
        const double median = kk_gate_number_or(one, "latency_median_s", 0);
        x += at;
        y += median;
        xx += at * at;
        xy += at * median;
        if (i >= warm) continue;
        low = fmin(low, kk_gate_number_or(one, "latency_p05_s", 0));
        high = fmax(high, kk_gate_number_or(one, "latency_p95_s", 0));
    }
    const double square = n * xx - x * x;
    if (square <= 0 || high <= low) return false;
    *out = fabs((n * xy - x * y) / square * setting(report, "seconds")) / (high - low);
    return true;
}

static bool soak_value(const json_t *report, const char *figure, double *out) {
    const json_t *b = json_object_get(report, "buckets");
    const size_t n = json_array_size(b), warm = warm_bucket(report);
    double early, late;
    if (strcmp(figure, "memory_drift") == 0) return drift(b, warm, "resident", out);
    if (strcmp(figure, "kv_range") == 0) return range_of(b, warm, "kv", out);
    if (strcmp(figure, "latency_slope") == 0) return latency_slope(report, b, warm, out);
    if (strcmp(figure, "prefill_growth_s") == 0) {
        if (n < 10 || !median_rows(b, "first_median_s", 0, 5, &early) ||
            !median_rows(b, "first_median_s", n - 5, 5, &late))
            return false;
        *out = late - early;
        return true;
    }
    if (strcmp(figure, "failed") == 0) return sum_rows(b, "failed", out);
    if (strcmp(figure, "different") == 0) return sum_rows(b, "different", out);
    return strcmp(figure, "checked") == 0 && sum_rows(b, "checked", out);
}

static size_t soak_limits(const json_t *report, kk_serving_limit *out) {
    const kk_serving_limit all[] = {
        {"memory_drift", "server", setting(report, "max_memory_drift"), false},
        {"kv_range", "server", setting(report, "max_kv_range"), false},
        {"latency_slope", "turns", 1, false},
        {"prefill_growth_s", "turns", setting(report, "max_prefill_growth_s"), false},
        {"failed", "turns", 0, false},
        {"different", "turns", 0, false},
        {"checked", "turns", 1, true},
    };
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* ---- chaos --------------------------------------------------------------------------------- */

static bool most_rows(const json_t *rows, const char *key, double *out) {
    *out = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        double one;
        if (!kk_gate_number(json_array_get(rows, i), key, &one)) return false;
        *out = fmax(*out, one);
    }
    return json_array_size(rows) > 0;
}

/* Of the fault of that name; its members are sums of what was counted. */
static bool fault_value(const json_t *report, const char *figure, const char *name, double *out) {
    for (size_t i = 0; i < kk_gate_size(report, "faults"); i++) {
        const json_t *f = kk_gate_item(report, "faults", i);
        if (strcmp(kk_gate_text(f, "fault"), name) == 0) return kk_gate_number(f, figure, out);
    }
    return false;
}

/* Of malformed requests over one protocol.  A leak is what memory grew by, in bytes a request. */
static bool malformed_value(const json_t *m, const char *figure, double *out) {
    double before, after, requests;
    if (strcmp(figure, "leak") != 0) return kk_gate_number(m, figure, out);
    if (!kk_gate_number(m, "resident_before", &before) ||
        !kk_gate_number(m, "resident_after", &after) || !kk_gate_number(m, "requests", &requests) ||
        before <= 0 || requests <= 0)
        return false;
    *out = (after - before) / requests;
    return true;
}

static bool chaos_value(const json_t *report, const char *figure, const char *arm, double *out) {
    const json_t *kills = json_object_get(report, "kills");
    if (strcmp(arm, "kills") == 0) {
        if (strcmp(figure, "ready_s") == 0) return most_rows(kills, "ready_s", out);
        if (strcmp(figure, "count") != 0) return sum_rows(kills, figure, out);
        *out = (double)json_array_size(kills);
        return true;
    }
    if (strncmp(arm, "malformed", 9) == 0)
        return malformed_value(json_object_get(report, arm), figure, out);
    return fault_value(report, figure, arm, out);
}

static size_t chaos_limits(const json_t *report, kk_serving_limit *out) {
    static const char *const faults[] = {"full disk", "slow clients", "vanishing clients",
                                         "corrupt state"};
    static const char *const protocols[] = {"malformed", "malformed_grpc"};
    size_t n = 0;
    const kk_serving_limit kills[] = {
        {"count", "kills", setting(report, "kills"), true},
        {"turns", "kills", 1, true},
        {"lost", "kills", 0, false},
        {"different", "kills", 0, false},
        {"ready_s", "kills", setting(report, "max_ready_s"), false},
    };
    memcpy(out, kills, sizeof kills);
    n = sizeof kills / sizeof *kills;
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++) {
        const kk_serving_limit malformed[] = {
            {"requests", "", setting(report, "requests"), true},
            {"crashes", "", 0, false},
            {"hangs", "", 0, false},
            {"leak", "", setting(report, "max_leak"), false},
        };
        for (size_t k = 0; k < sizeof malformed / sizeof *malformed; k++, n++) {
            out[n] = malformed[k];
            snprintf(out[n].arm, sizeof out[n].arm, "%s", protocols[i]);
        }
    }
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        out[n] = (kk_serving_limit){.figure = "injected", .limit = 1, .at_least = true};
        snprintf(out[n++].arm, sizeof out[n].arm, "%s", faults[i]);
        out[n] = (kk_serving_limit){.figure = "wrong", .limit = 0};
        snprintf(out[n++].arm, sizeof out[n].arm, "%s", faults[i]);
    }
    return n;
}

/* ---- all kinds ----------------------------------------------------------------------------- */

size_t kk_serving_limits(const json_t *report, kk_serving_limit out[KK_SERVING_MOST_LIMITS]) {
    if (is_kind(report, "load")) return load_limits(report, out);
    if (is_kind(report, "soak")) return soak_limits(report, out);
    return is_kind(report, "chaos") ? chaos_limits(report, out) : 0;
}

bool kk_serving_value(const json_t *report, const char *figure, const char *arm, double *out) {
    bool there = false;
    if (is_kind(report, "load")) there = load_value(report, figure, arm, out);
    if (is_kind(report, "soak")) there = soak_value(report, figure, out);
    if (is_kind(report, "chaos")) there = chaos_value(report, figure, arm, out);
    return there && isfinite(*out);
}

/* Six digits, as the gate compares. */
static bool holds(const kk_serving_limit *l, double value) {
    const double slack = KK_GATE_BEYOND * fabs(l->limit) + KK_GATE_BEYOND_NEAR_0;
    return l->at_least ? value >= l->limit - slack : value <= l->limit + slack;
}

json_t *kk_serving_gate(const json_t *report) {
    kk_serving_limit limits[KK_SERVING_MOST_LIMITS];
    const size_t n = kk_serving_limits(report, limits);
    json_t *checks = json_array();
    bool all = n > 0;
    for (size_t i = 0; i < n; i++) {
        const kk_serving_limit *l = &limits[i];
        double value = 0;
        const bool good = kk_serving_value(report, l->figure, l->arm, &value) && holds(l, value);
        json_array_append_new(checks,
                              json_pack("{s:s, s:s, s:f, s:f, s:b}", "figure", l->figure, "arm",
                                        l->arm, "limit", l->limit, "value", value, "holds", good));
        all &= good;
    }
    return json_pack("{s:b, s:o}", "holds", all, "checks", checks);
}

/* The figure for the rule that computes checks again. */
kk_step_figure kk_gate_serving_figure(const kk_gate *g, const char *name, const char *arm,
                                      double *out) {
    kk_serving_limit limits[KK_SERVING_MOST_LIMITS];
    const size_t n = kk_serving_limits(g->report, limits);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(limits[i].figure, name) != 0 || strcmp(limits[i].arm, arm) != 0) continue;
        if (!kk_serving_value(g->report, name, arm, out)) return KK_STEP_NO_ROWS;
        return limits[i].at_least ? KK_STEP_AT_LEAST : KK_STEP_AT_MOST;
    }
    return KK_STEP_NO_FIGURE;
}

/* ---- rules --------------------------------------------------------------------------------- */

static void rule_serving_limits(kk_gate *g) {
    kk_serving_limit limits[KK_SERVING_MOST_LIMITS];
    const size_t n = kk_serving_limits(g->report, limits);
    for (size_t i = 0; i < n; i++) {
        const kk_serving_limit *l = &limits[i];
        const json_t *c = kk_gate_check_of(g, l->figure, l->arm);
        double said;
        if (!c || !kk_gate_number(c, "limit", &said))
            kk_gate_say(g, "the gate has no check of %s of %s", l->figure, l->arm);
        else if (!kk_gate_same(said, l->limit))
            kk_gate_say(g, "%s of %s is held to %.6g, and the limit is %.6g", l->figure, l->arm,
                        said, l->limit);
    }
}

static void expect(kk_gate *g, const char *what, double is, double asked) {
    if (is != asked) kk_gate_say(g, "%s: %.0f, and %.0f were asked for", what, is, asked);
}

static void count_load(kk_gate *g) {
    const json_t *s = kk_gate_get(g->report, "settings"), *mixed;
    const double specs = setting(g->report, "specs"), sizes = (double)kk_gate_size(s, "ctx");
    const size_t arms = kk_gate_size(g->report, "arms");
    expect(g, "arms", (double)arms, 3 * specs * sizes);
    for (size_t i = 0; i < arms; i++)
        expect(g, "turns of an arm",
               (double)kk_gate_size(kk_gate_item(g->report, "arms", i), "rows"),
               setting(g->report, "turns"));
    expect(g, "comparisons", (double)kk_gate_size(g->report, "identity"), specs * sizes);
    for (size_t i = 0; i < kk_gate_size(g->report, "identity"); i++)
        expect(g, "streams compared",
               (double)kk_gate_size(kk_gate_item(g->report, "identity", i), "logprob_hashes"),
               setting(g->report, "clients"));
    /* The first reports have the number in their command alone, where it was not the usual one. */
    double arrivals = 5;
    if (!kk_gate_number(s, "arrivals", &arrivals)) (void)kk_gate_typed(g, "--arrivals", &arrivals);
    expect(g, "arrivals", (double)kk_gate_size(json_object_get(g->report, "arrival"), "rows"),
           arrivals);
    mixed = json_object_get(g->report, "mixed");
    expect(g, "mixed requests", (double)kk_gate_size(mixed, "rows"),
           setting(g->report, "requests"));
}

/* Buckets follow each other, and reach to the end. */
static void count_soak(kk_gate *g) {
    const double seconds = setting(g->report, "seconds"), bucket = setting(g->report, "bucket_s");
    const size_t n = kk_gate_size(g->report, "buckets");
    if (bucket <= 0 || (double)n + 1 < seconds / bucket)
        kk_gate_say(g, "%zu buckets of %.6g s do not make %.6g s", n, bucket, seconds);
    for (size_t i = 0; i < n; i++) {
        const double from = kk_gate_number_or(kk_gate_item(g->report, "buckets", i), "from_s", -1);
        if (fabs(from - (double)i * bucket) > 0.5 * bucket)
            kk_gate_say(g, "bucket %zu begins at %.6g s", i, from);
    }
}

static void rule_serving_counts(kk_gate *g) {
    if (kk_gate_is(g, "load")) count_load(g);
    if (kk_gate_is(g, "soak")) count_soak(g);
    if (kk_gate_is(g, "chaos"))
        expect(g, "kills", (double)kk_gate_size(g->report, "kills"), setting(g->report, "kills"));
}

static const kk_gate_entry serving_rules[] = {
    {"SERVING_LIMITS", rule_serving_limits,
     "a report about a server checks every figure of its kind with the limits of its settings"},
    {"SERVING_COUNTS", rule_serving_counts,
     "arms, turns, requests, buckets and kills are as many as the settings ask for"},
};
KK_GATE_GROUP(serving, serving_rules);
