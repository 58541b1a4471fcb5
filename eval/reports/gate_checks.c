/* gate_checks.c - rules about a report's own gate: every boolean of it is computed again. */
#include <math.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

static void rule_gate_constant(kk_gate *g) {
    const json_t *gate = kk_gate_get(g->report, "gate");
    const char *key;
    json_t *v;
    if (!json_is_object(gate)) return;
    json_object_foreach((json_t *)gate, key, v) if (json_is_boolean(v) && strcmp(key, "holds") != 0)
        kk_gate_say(g, "the gate says `%.40s` without a check", key);
    if (json_is_boolean(json_object_get(gate, "holds")) && kk_gate_size(gate, "checks") == 0 &&
        !kk_gate_get(gate, "min_recall"))
        kk_gate_say(g, "the gate %s and checks nothing",
                    kk_gate_true(gate, "holds") ? "holds" : "does not hold");
}

/* ---- figures ------------------------------------------------------------------------------ */

static bool of_arm(const json_t *o, const char *arm) {
    return !arm || strcmp(kk_gate_text(o, "arm"), arm) == 0;
}

/* arm NULL: of any arm. */
static bool least_recall(const kk_gate *g, const char *arm, double *out) {
    bool any = false;
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        double recall;
        if (!of_arm(r, arm) || !kk_gate_number(r, "recall", &recall)) continue;
        if (!any || recall < *out) *out = recall;
        any = true;
    }
    return any;
}

static const json_t *exact_rung(const kk_gate *g, const json_t *like) {
    const double lines = kk_gate_number_or(like, "lines", -1);
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        if (of_arm(r, "exact") && kk_gate_number_or(r, "lines", -1) == lines) return r;
    }
    return NULL;
}

static double kv_bytes(const json_t *rung) {
    static const char *const parts[] = {"kv.sliding", "kv.full", "kv.drafter", "kv.latents"};
    const json_t *bytes = json_object_get(rung, "bytes");
    double all = 0;
    for (size_t i = 0; i < 4; i++) all += kk_gate_number_or(bytes, parts[i], 0);
    return all;
}

static bool most_drop(const kk_gate *g, const char *arm, double *out) {
    bool any = false;
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        double recall, exact;
        if (!of_arm(r, arm) || !kk_gate_number(r, "recall", &recall)) continue;
        if (!kk_gate_number(exact_rung(g, r), "recall", &exact)) return false;
        if (!any || exact - recall > *out) *out = exact - recall;
        any = true;
    }
    return any;
}

static bool least_ratio(const kk_gate *g, const char *arm, double *out) {
    bool any = false;
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        if (!of_arm(r, arm)) continue;
        const double own = kv_bytes(r), exact = kv_bytes(exact_rung(g, r));
        if (own <= 0 || exact <= 0) return false;
        if (!any || exact / own < *out) *out = exact / own;
        any = true;
    }
    return any;
}

static bool fewest_restored(const kk_gate *g, const char *arm, double *out) {
    bool any = false;
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        for (size_t j = 0; of_arm(r, arm) && j < kk_gate_size(r, "rows"); j++) {
            double n;
            if (!kk_gate_number(kk_gate_item(r, "rows", j), "restored_rows", &n)) return false;
            if (!any || n < *out) *out = n;
            any = true;
        }
    }
    return any;
}

/* From the rows, not from the sums beside them. */
static bool kl_of(const kk_gate *g, const char *arm, const char *key, double *out) {
    double rows = 0, total = 0, worst = 0;
    for (size_t i = 0; i < kk_gate_size(g->report, "quality"); i++) {
        const json_t *q = kk_gate_item(g->report, "quality", i);
        if (!of_arm(q, arm)) continue;
        const double n = kk_gate_number_or(q, "rows", 0), w = kk_gate_number_or(q, "worst_kl", 0);
        total += n * kk_gate_number_or(q, "mean_kl", 0);
        if (rows == 0 || w > worst) worst = w;
        rows += n;
    }
    *out = strcmp(key, "worst_kl") == 0 ? worst : rows > 0 ? total / rows : 0;
    return rows > 0;
}

static bool growth_of(const kk_gate *g, const char *policy, double *out) {
    for (size_t i = 0; i < kk_gate_size(g->report, "growth"); i++) {
        const json_t *o = kk_gate_item(g->report, "growth", i);
        if (strcmp(kk_gate_text(o, "policy"), policy) == 0) return kk_gate_number(o, "ratio", out);
    }
    return false;
}

typedef enum { UNKNOWN, NO_ROWS, AT_LEAST, AT_MOST } sense;

static sense figure(const kk_gate *g, const char *name, const char *arm, double *out) {
    static const sense senses[] = {UNKNOWN, NO_ROWS, AT_LEAST, AT_MOST};
    bool there = false;
    sense s = senses[kk_gate_serving_figure(g, name, arm, out)];
    if (s != UNKNOWN) return s;
    s = AT_LEAST;
    if (strcmp(name, "recall") == 0) {
        there = least_recall(g, arm, out);
    } else if (strcmp(name, "restored_rows") == 0) {
        there = fewest_restored(g, arm, out);
    } else if (strcmp(name, "kv_ratio") == 0) {
        there = least_ratio(g, arm, out);
    } else if (strcmp(name, "growth_ratio") == 0) {
        there = growth_of(g, arm, out);
    } else if (strcmp(name, "recall_drop") == 0) {
        there = most_drop(g, arm, out);
        s = AT_MOST;
    } else if (strcmp(name, "mean_kl") == 0 || strcmp(name, "worst_kl") == 0) {
        there = kl_of(g, arm, name, out);
        s = AT_MOST;
    } else {
        return senses[kk_gate_step_figure(g, name, arm, out)];
    }
    return there ? s : NO_ROWS;
}

/* ---- checks ------------------------------------------------------------------------------- */

/* Six digits of a limit and of what is held against it. */
static bool holds(sense s, double value, double limit) {
    const double slack = KK_GATE_BEYOND * fabs(limit) + KK_GATE_BEYOND_NEAR_0;
    return s == AT_LEAST ? value >= limit - slack : value <= limit + slack;
}

/* Differences of recalls lose digits. */
static bool agrees(double a, double b) {
    return kk_gate_same(a, b) || fabs(a - b) < KK_GATE_DROP_DIGITS;
}

static bool recheck(kk_gate *g, const json_t *c) {
    const char *name = kk_gate_text(c, "figure"), *arm = kk_gate_text(c, "arm");
    double limit, value, is = 0;
    const sense s = figure(g, name, arm, &is);
    if (s == UNKNOWN || !kk_gate_number(c, "limit", &limit)) {
        kk_gate_say(g, "a check of '%.40s', which is no figure with a limit", name);
        return false;
    }
    if (s == NO_ROWS) {
        kk_gate_say(g, "a check of %.40s of %.40s, and the report has no rows for it", name, arm);
        return false;
    }
    if (kk_gate_number(c, "value", &value) && !agrees(value, is))
        kk_gate_say(g, "%.40s of %.40s is said to be %.6g, and the rows give %.6g", name, arm,
                    value, is);
    const bool truly = holds(s, is, limit);
    if (truly != kk_gate_true(c, "holds"))
        kk_gate_say(g, "%.40s of %.40s is %.6g with the limit %.6g, and is said %s", name, arm, is,
                    limit, truly ? "not to hold" : "to hold");
    return truly;
}

static void rule_gate_recount(kk_gate *g) {
    const json_t *gate = kk_gate_get(g->report, "gate"), *said = json_object_get(gate, "holds");
    bool all = true;
    double limit, least = 0;
    if (!json_is_object(gate)) return;
    const size_t n = kk_gate_size(gate, "checks");
    for (size_t i = 0; i < n; i++) all &= recheck(g, kk_gate_item(gate, "checks", i));
    if (n == 0 && kk_gate_number(gate, "min_recall", &limit))
        all = least_recall(g, NULL, &least) && holds(AT_LEAST, least, limit);
    if (json_is_boolean(said) && json_is_true(said) != all)
        kk_gate_say(g, "the gate is said %s, and its checks %s",
                    json_is_true(said) ? "to hold" : "not to hold",
                    all ? "all hold" : "do not all hold");
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry checks_rules[] = {
    {"GATE_CONSTANT", rule_gate_constant,
     "what a gate says comes from checks with a figure and a limit"},
    {"GATE_RECOUNT", rule_gate_recount,
     "checks are what the rows give when they are computed again"},
};
KK_GATE_GROUP(checks, checks_rules);
