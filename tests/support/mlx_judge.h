/* mlx_judge.h - how near the MLX device must come to the plain reference.
 *
 * MLX multiplies float32 by float32, where the CPU rounds activations beside quantised weights: so
 * products are held against sums in float64, each output on its own, and experts of quantised
 * weights by the relative size of the whole error.  All else is float32 on both sides and agrees to
 * rounding. */
#ifndef KK_TESTS_MLX_JUDGE_H
#define KK_TESTS_MLX_JUDGE_H

#include "support/op_rig.h"

/* Sums of float32 terms: as a share of the root of their squares. */
static const double product_limit = 2e-5;

static double limit_of(const char *label) {
    static const char *const quantised[] = {" q8_0", " q4_0", " q5_0", " q5_1",
                                            " q4_k", " q5_k", " q6_k", " mlx"};
    for (size_t i = 0; i < sizeof quantised / sizeof *quantised; i++)
        if (!strncmp(label, "experts", 7) && strstr(label, quantised[i])) return 5e-2;
    if (strstr(label, "separate up")) return 5e-2; /* whose type no label says */
    return 2e-5;
}

/* Integers are equal; packed bytes may round a value in its last bit otherwise. */
static void judge_equal(const rig_record *w, const rig_record *g) {
    const size_t width = rig_width(w->kind);
    size_t differ = 0;
    for (size_t i = 0; i < w->n; i++)
        differ += memcmp((const char *)w->data + i * width, (const char *)g->data + i * width,
                         width) != 0;
    if ((double)differ > (w->kind == RIG_BYTES ? 0.002 : 0) * (double)w->n)
        fail_msg("mlx: %s: %zu of %zu values differ", w->label, differ, w->n);
}

static void judge_near(const rig_record *w, const rig_record *g) {
    const double limit = w->kind == RIG_BF16 ? 1e-3 : limit_of(w->label);
    double d2 = 0, w2 = 0;
    for (size_t i = 0; i < w->n; i++) {
        const double a = rig_value(w, i), b = rig_value(g, i);
        if (isfinite(a) != isfinite(b))
            fail_msg("mlx: %s: value %zu is %g, the reference says %g", w->label, i, b, a);
        if (!isfinite(a)) continue;
        d2 += (a - b) * (a - b);
        w2 += a * a;
    }
    const double e = w2 > 0 ? sqrt(d2 / w2) : sqrt(d2);
    if (!(e <= limit)) fail_msg("mlx: %s: relative error %g, limit %g", w->label, e, limit);
}

static void judge_products(const rig_record *w, const rig_record *g) {
    assert_int_equal(w->n, w->sums.n_rows * w->sums.width);
    for (size_t i = 0; i < w->n; i++) {
        const double off = fabs(rig_value(g, i) - w->sums.sum[i]);
        if (!(off <= product_limit * w->sums.size[i] + 1e-30))
            fail_msg("mlx: %s: value %zu is %.9g, want %.9g", w->label, i, rig_value(g, i),
                     w->sums.sum[i]);
    }
}

/* A router's choice by its logits in float64: no expert that is left has a clearly larger one than
 * one that was taken; and the weights are those of what was taken. */
static void judge_router(const rig_record *w, const rig_record *g, const rig_record *weights) {
    const size_t n = w->sums.width, used = w->n / w->sums.n_rows;
    for (size_t r = 0; r < w->sums.n_rows; r++) {
        const double *logit = w->sums.sum + r * n, *size = w->sums.size + r * n;
        const int32_t *taken = (const int32_t *)g->data + r * used;
        double least = INFINITY, most = -INFINITY, all = 0;
        bool is_taken[512] = {false};
        for (size_t s = 0; s < used; s++) {
            assert_true(taken[s] >= 0 && (size_t)taken[s] < n && !is_taken[taken[s]]);
            is_taken[taken[s]] = true;
            least = fmin(least, logit[taken[s]]);
            most = fmax(most, logit[taken[s]]);
        }
        for (size_t e = 0; e < n; e++)
            if (!is_taken[e] && logit[e] > least + 1e-4 * (1 + size[e]))
                fail_msg("mlx: %s: row %zu leaves expert %zu", w->label, r, e);
        for (size_t s = 0; s < used; s++) all += exp(logit[taken[s]] - most);
        for (size_t s = 0; s < used; s++) {
            const double want = exp(logit[taken[s]] - most) / all * (double)w->sums.by[taken[s]];
            const double got = rig_value(weights, r * used + s);
            if (!(fabs(got - want) <= 1e-4 * (1 + fabs(want))))
                fail_msg("mlx: %s: weight %zu of row %zu is %g, want %g", w->label, s, r, got,
                         want);
        }
    }
}

static void judge(const rig_record *w, const rig_record *g) {
    assert_string_equal(w->label, g->label);
    assert_int_equal(w->n, g->n);
    if (strstr(w->label, "hard")) return;             /* the case itself looks at these */
    if (strncmp(w->label, "weights", 7) == 0) return; /* with the choice before them */
    if (w->sums.by) {
        judge_router(w, g, g + 1);
        return;
    }
    if (w->kind == RIG_INTS || w->kind == RIG_BYTES)
        judge_equal(w, g);
    else if (w->sums.sum)
        judge_products(w, g);
    else
        judge_near(w, g);
}

#endif
