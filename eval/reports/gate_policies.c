/* gate_policies.c - rules about the policies of a bench: what a token costs by what layers keep.
 *
 * Their turns are the rows; all other figures are computed from these again. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/gate_rules.h"

/* One way to decode under one policy. */
typedef struct {
    const char *policy, *arm;
    const json_t *is;
} timed;

static void compare(kk_gate *g, const timed *t, const json_t *o, const char *key, double is) {
    double said;
    if (kk_gate_number(o, key, &said) && !kk_gate_same(said, is))
        kk_gate_say(g, "%.30s, %.20s: `%s` is %.6g, and its turns give %.6g", t->policy, t->arm,
                    key, said, is);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_times(kk_gate *g, const timed *t) {
    const size_t n = kk_gate_size(t->is, "rows");
    const json_t *said = json_object_get(t->is, "token_ms");
    double *ms = n ? kk_calloc(n, sizeof *ms) : NULL;
    if (n && !ms) g->status = KK_ENOMEM;
    if (!ms) return;
    for (size_t i = 0; i < n; i++) {
        const json_t *row = kk_gate_item(t->is, "rows", i);
        const double tokens = kk_gate_number_or(row, "tokens", 0);
        ms[i] = tokens > 0 ? 1e3 * kk_gate_number_or(row, "seconds", 0) / tokens : 0;
    }
    qsort(ms, n, sizeof *ms, by_value);
    compare(g, t, said, "median", (ms[(n - 1) / 2] + ms[n / 2]) / 2);
    compare(g, t, said, "min", ms[0]);
    compare(g, t, said, "max", ms[n - 1]);
    compare(g, t, said, "n", (double)n);
    kk_free(ms);
}

static double sum_of(const json_t *arm, const char *within, const char *key) {
    double sum = 0;
    for (size_t i = 0; i < kk_gate_size(arm, "rows"); i++) {
        const json_t *row = kk_gate_item(arm, "rows", i);
        sum += kk_gate_number_or(within ? json_object_get(row, within) : row, key, 0);
    }
    return sum;
}

static void check_counts(kk_gate *g, const timed *t) {
    const json_t *keys = json_object_get(t->is, "keys_per_query");
    const double tokens = sum_of(t->is, NULL, "tokens"),
                 rows = sum_of(t->is, NULL, "restored_rows");
    const double queries = sum_of(t->is, "reach", "queries");
    compare(g, t, t->is, "restored_rows", rows);
    if (tokens > 0) compare(g, t, t->is, "rows_per_token", rows / tokens);
    if (queries <= 0) return;
    compare(g, t, keys, "stored", sum_of(t->is, "reach", "keys_stored") / queries);
    compare(g, t, keys, "rebuilt", sum_of(t->is, "reach", "keys_rebuilt") / queries);
}

static double plain_ms(const json_t *policy) {
    const json_t *plain = json_object_get(json_object_get(policy, "arms"), "plain");
    return kk_gate_number_or(json_object_get(plain, "token_ms"), "median", 0);
}

static void check_ratio(kk_gate *g, const json_t *policy, double exact) {
    const char *name = kk_gate_text(policy, "policy");
    double ratio;
    if (!kk_gate_number(policy, "ratio", &ratio)) return;
    if (exact <= 0 || plain_ms(policy) <= 0)
        kk_gate_say(g, "%.30s: %.4gx without the times of both", name, ratio);
    else if (!kk_gate_same(ratio, plain_ms(policy) / exact))
        kk_gate_say(g, "%.30s takes %.6gx the time of exact, and %.6g over %.6g ms is %.6gx", name,
                    ratio, plain_ms(policy), exact, plain_ms(policy) / exact);
}

static void rule_policy_recount(kk_gate *g) {
    const json_t *exact = kk_gate_item(g->report, "policies", 0);
    if (!exact) return;
    if (strcmp(kk_gate_text(exact, "kv_sliding"), "native") != 0 ||
        strcmp(kk_gate_text(exact, "kv_full"), "exact") != 0)
        kk_gate_say(g, "the first of the policies, %.30s, does not keep all rows",
                    kk_gate_text(exact, "policy"));
    for (size_t i = 0; i < kk_gate_size(g->report, "policies"); i++) {
        const json_t *policy = kk_gate_item(g->report, "policies", i);
        timed t = {.policy = kk_gate_text(policy, "policy")};
        json_t *arm;
        json_object_foreach(json_object_get(policy, "arms"), t.arm, arm) {
            t.is = arm;
            check_times(g, &t);
            check_counts(g, &t);
        }
        check_ratio(g, policy, plain_ms(exact));
    }
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry policies_rules[] = {
    {"POLICY_RECOUNT", rule_policy_recount,
     "policies are held against exact, and their figures are those of their turns"},
};
KK_GATE_GROUP(policies, policies_rules);
