/* needle_gate.c - what a run of needles must show, each figure computed from its rows; see
 * needle.h.  A report's reader computes all of them again (gate_checks.c). */
#include <math.h>

#include "eval/reports/gate_rules.h"
#include "eval/tasks/needle.h"

int64_t kk_needle_kv_bytes(const kk_needle_rung *r) {
    static const kk_mem_category parts[] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL, KK_MEM_KV_DRAFTER,
                                            KK_MEM_KV_LATENTS};
    int64_t all = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) all += r->bytes[parts[i]];
    return all;
}

/* ---- figures ------------------------------------------------------------------------------ */

static double least_recall(const kk_needle_arm *arm) {
    double least = 1;
    for (int32_t i = 0; i < arm->n_rungs; i++) least = fmin(least, arm->rung[i].recall);
    return least;
}

static double most_drop(const kk_needle_arm *exact, const kk_needle_arm *arm) {
    double most = -1;
    for (int32_t i = 0; i < arm->n_rungs; i++)
        most = fmax(most, exact->rung[i].recall - arm->rung[i].recall);
    return most;
}

static double fewest_restored(const kk_needle_arm *arm) {
    double fewest = INFINITY;
    for (int32_t i = 0; i < arm->n_rungs; i++)
        for (int32_t j = 0; j < arm->rung[i].n_samples; j++)
            fewest = fmin(fewest, (double)arm->rung[i].samples[j].counts.rows_rebuilt);
    return isfinite(fewest) ? fewest : 0;
}

static double least_ratio(const kk_needle_arm *exact, const kk_needle_arm *arm) {
    double least = INFINITY;
    for (int32_t i = 0; i < arm->n_rungs; i++) {
        const double own = (double)kk_needle_kv_bytes(&arm->rung[i]);
        if (own > 0) least = fmin(least, (double)kk_needle_kv_bytes(&exact->rung[i]) / own);
    }
    return isfinite(least) ? least : 0;
}

/* ---- checks ------------------------------------------------------------------------------- */

typedef struct {
    kk_needle_check *out;
    int32_t n;
} checks;

/* Six digits of a limit, which is all that a report keeps of it. */
static bool reaches(double value, double limit) {
    return value >= limit - (1e-6 * fabs(limit) + 1e-9);
}

static void at_least(checks *c, const char *figure, kk_needle_way arm, double value, double limit) {
    c->out[c->n++] = (kk_needle_check){.figure = figure,
                                       .arm = kk_needle_way_name(arm),
                                       .limit = limit,
                                       .value = value,
                                       .holds = reaches(value, limit)};
}

static void at_most(checks *c, const char *figure, kk_needle_way arm, double value, double limit) {
    at_least(c, figure, arm, value, limit);
    c->out[c->n - 1].holds = value <= limit + (1e-6 * fabs(limit) + 1e-9);
}

static void judge_restored(checks *c, const kk_needle_arm *exact, const kk_needle_arm *arm,
                           const kk_needle_limits *l) {
    at_most(c, "recall_drop", arm->way, most_drop(exact, arm), KK_GATE_RECALL_DROP);
    at_least(c, "restored_rows", arm->way, fewest_restored(arm), 1);
    if (l->max_kl >= 0) at_most(c, "mean_kl", arm->way, arm->sum.mean_kl, (double)l->max_kl);
    if (l->min_kv_ratio >= 0)
        at_least(c, "kv_ratio", arm->way, least_ratio(exact, arm), (double)l->min_kv_ratio);
}

int32_t kk_needle_judge(const kk_needle_result *r, const kk_needle_limits *limits,
                        kk_needle_check out[KK_NEEDLE_CHECKS]) {
    checks c = {.out = out};
    for (int32_t a = 0; a < r->n_arms; a++) {
        const kk_needle_arm *arm = &r->arm[a];
        if (limits->min_recall >= 0 && arm->way != KK_NEEDLE_WINDOW)
            at_least(&c, "recall", arm->way, least_recall(arm), (double)limits->min_recall);
        if (arm->way == KK_NEEDLE_RESTORED || arm->way == KK_NEEDLE_DRAFTED)
            judge_restored(&c, &r->arm[0], arm, limits);
    }
    return c.n;
}
