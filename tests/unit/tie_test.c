/* tie_test.c - near ties: how near the two largest logits of a row must lie, against the row's own
 * size and whatever else stands in it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/tie.h"

enum { N = 64 };

/* Alternating signs of size 1: the root mean square stays near 1. */
static void fill(float *x) {
    for (int i = 0; i < N; i++) x[i] = i % 2 ? 1.0f : -1.0f;
    x[1] = 3; /* the largest, by far */
}

static double rms(const float *x) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum / N);
}

static void test_edge(void **state) {
    (void)state;
    float x[N];
    fill(x);
    assert_false(kk_near_tie(x, N, KK_LOGIT_TOLERANCE));
    for (int at = 0; at < N; at += 9) { /* before and behind the largest */
        if (at == 1) continue;
        fill(x);
        x[at] = 3 - (float)(1.9 * KK_LOGIT_TOLERANCE * rms(x));
        assert_true(kk_near_tie(x, N, KK_LOGIT_TOLERANCE));
        x[at] = 3 - (float)(2.3 * KK_LOGIT_TOLERANCE * rms(x));
        assert_false(kk_near_tie(x, N, KK_LOGIT_TOLERANCE));
    }
}

/* A share of the row: the same row larger is as near. */
static void test_scale(void **state) {
    (void)state;
    float x[N];
    for (float scale = 1e-3f; scale < 1e6f; scale *= 100) {
        fill(x);
        x[7] = 2.999f;
        for (int i = 0; i < N; i++) x[i] *= scale;
        assert_true(kk_near_tie(x, N, KK_LOGIT_TOLERANCE));
        x[7] = 2.9f * scale;
        assert_false(kk_near_tie(x, N, KK_LOGIT_TOLERANCE));
    }
}

static void test_odd_rows(void **state) {
    (void)state;
    float x[N] = {0};
    assert_true(kk_near_tie(x, N, KK_LOGIT_TOLERANCE));  /* all equal */
    assert_false(kk_near_tie(x, 1, KK_LOGIT_TOLERANCE)); /* nothing to choose from */
    fill(x);
    x[1] = x[2] = 3;
    assert_true(kk_near_tie(x, N, 0)); /* a tie is near by any measure */
    x[5] = NAN;
    assert_false(kk_near_tie(x, N, KK_LOGIT_TOLERANCE)); /* such a row chooses nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edge),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_odd_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
