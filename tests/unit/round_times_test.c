/* round_times_test.c - times of single rounds: how they are summed up, and that a bench's own
 * report of them holds.  Reports that were changed afterwards: gate_rounds_test.c. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/measure/bench_parts.h"
#include "eval/reports/gate.h"
#include "support/scratch.h"

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-9 * (1 + fabs(b)))) fail_msg("%.12g is not %.12g", a, b);
}

/* ---- sums --------------------------------------------------------------------------------- */

static void test_sums(void **state) {
    (void)state;
    const double a[] = {9e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 4e-3, 6e-3};
    const double b[] = {3e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 8e-3};
    kk_bench_rounds one = kk_bench_rounds_of(a, 11), two = kk_bench_rounds_of(b, 9);
    assert_int_equal(one.n, 11);
    assert_int_equal(one.n_first, 8);
    assert_int_equal(one.n_steady, 3);
    near(one.first_ms[0], 9);
    near(one.longest_ms, 9);
    near(one.sum_ms, 28);
    near(one.steady_mean_ms, 4);
    near(one.steady_squares, 8); /* (2 - 4)^2 + (6 - 4)^2 */
    near(kk_bench_rounds_cv(&one), sqrt(8.0 / 3) / 4);
    assert_true(kk_bench_rounds_cv(&two) < 0); /* of a single round */
    /* Together: 2, 4, 6 and 8 are steady, and the first eight are the first one's. */
    kk_bench_rounds_add(&one, &two);
    assert_int_equal(one.n, 20);
    assert_int_equal(one.n_steady, 4);
    near(one.first_ms[0], 9);
    near(one.steady_mean_ms, 5);
    near(one.steady_squares, 20);
    kk_bench_rounds none = kk_bench_rounds_of(a, 0);
    kk_bench_rounds_add(&none, &two);
    assert_int_equal(none.n, 9);
    near(none.first_ms[0], 3);
}

/* ---- a bench ------------------------------------------------------------------------------ */

/* Arms, policies and two lengths of context, of a model with random weights. */
static void test_measured(void **state) {
    scratch *s = *state;
    kk_bench_opts o = {.engine = {.synthetic = "tiny:q4_0:3",
                                  .drafter = "synthetic",
                                  .projection = "synthetic:16",
                                  .threads = 1},
                       .ctx = 150,
                       .longer = {170},
                       .n_longer = 1,
                       .predict = 33,
                       .repeat = 2,
                       .read_s = 0.02,
                       .arms = {KK_SPEC_NONE, KK_SPEC_DFLASH},
                       .n_arms = 2,
                       .samples = 2,
                       .arm_predict = 41,
                       .draft_max = 3,
                       .draft_fixed = true,
                       .trace = {.p = 0.744, .seed = 1},
                       .ways = {[KK_BENCH_EXACT] = true, [KK_BENCH_RESTORED_FULL] = true},
                       .keep = {.window = 16, .chunk = 16}};
    kk_bench_result *r = calloc(1, sizeof *r);
    kk_writer *to;
    assert_ok(kk_bench_run(&o, r, why));
    assert_ok(kk_writer_open(&to, scratch_path(s, "rounds.json"), NULL, why));
    assert_ok(kk_bench_write(to, &o, r, "kakeya bench", why));
    kk_writer_close(to);
    kk_bench_release(r);
    free(r);
    kk_verdict v;
    assert_ok(kk_gate_file(scratch_path(s, "rounds.json"), &v, why));
    for (size_t i = 0; i < v.n; i++)
        if (strcmp(v.finding[i].code, "ROUND_TIMES") == 0) fail_msg("%s", v.finding[i].text);
    json_t *context = json_array_get(json_object_get(v.report, "contexts"), 1);
    assert_int_equal(json_array_size(json_object_get(context, "turns")), 2);
    kk_verdict_release(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test_setup_teardown(test_measured, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
