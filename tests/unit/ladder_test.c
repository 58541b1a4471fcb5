/* ladder_test.c - rungs are run one after the other up to the first that fails, and documents that
 * do not fit are known before any is asked about. */
#include "support/ok.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/tasks/ladder.h"

#define FAMILY KK_TEST_DATA "/../../models/tiny/"
static const char *const texts[] = {KK_TEST_DATA "/../../LICENSE"};

static kk_ladder_opts two_rungs(void) {
    return (kk_ladder_opts){.needle = {.engine = {.model = FAMILY "verifier",
                                                  .projection = FAMILY "projection",
                                                  .threads = 1},
                                       .session = {.sink = 4, .window = 32, .chunk = 32},
                                       .seed = 42,
                                       .samples = 1,
                                       .ladder = {10, 14},
                                       .n_rungs = 2,
                                       .predict = 16,
                                       .texts = texts,
                                       .n_texts = 1,
                                       .text_tokens = 360},
                            .limits = {-1, 1, -1}};
}

typedef struct {
    int32_t n, lines[4];
    bool held[4];
    kk_status answer;
} seen;

static kk_status on_rung(void *user, const kk_ladder_rung *rung, const kk_needle_opts *opts,
                         const kk_needle_result *result, kk_err *err) {
    seen *s = user;
    assert_int_equal(opts->n_rungs, 1);
    assert_int_equal(opts->ladder[0], rung->lines);
    assert_int_equal(result->n_arms, 2);
    assert_int_equal(result->arm[1].way, KK_NEEDLE_RESTORED);
    assert_int_equal(result->arm[1].rung[0].lines, rung->lines);
    assert_true(rung->recall == result->arm[1].rung[0].recall);
    s->lines[s->n] = rung->lines;
    s->held[s->n++] = rung->holds;
    if (s->answer != KK_OK) snprintf(err->msg, sizeof err->msg, "no paper");
    return s->answer;
}

static void test_climb(void **state) {
    (void)state;
    const int64_t blocks = kk_live_blocks();
    kk_ladder_opts o = two_rungs();
    kk_ladder_rung rung[KK_NEEDLE_RUNGS];
    seen s = {0};
    bool holds;
    o.on_rung = on_rung;
    o.user = &s;
    assert_ok(kk_ladder_climb(&o, rung, &holds, why));
    assert_int_equal(s.n, 2);
    assert_int_equal(s.lines[1], 14);
    assert_true(holds && rung[0].holds && rung[1].holds);
    assert_true(rung[1].tokens > rung[0].tokens && rung[0].kv_ratio > 1);
    assert_true(rung[0].mean_kl > 0 && rung[0].recall == 1 && rung[0].recall_exact == 1);
    assert_int_equal(rung[0].n_checks, 3); /* recall, rebuilt rows, KL */

    /* The first rung fails: the second is not run. */
    o.limits.max_kl = (float)(0.5 * rung[0].mean_kl);
    s.n = 0;
    assert_ok(kk_ladder_climb(&o, rung, &holds, why));
    assert_int_equal(s.n, 1);
    assert_false(holds || rung[0].holds || rung[1].run || rung[1].holds);
    assert_true(rung[0].run && !s.held[0]);
    assert_int_equal(rung[1].lines, 14);

    /* Who takes the rung fails. */
    s = (seen){.answer = KK_EIO};
    o.limits.max_kl = 1;
    kk_err err;
    assert_int_equal(kk_ladder_climb(&o, rung, &holds, &err), KK_EIO);
    assert_int_equal(s.n, 1);
    assert_false(holds);
    o.needle.n_rungs = 0;
    assert_int_equal(kk_ladder_climb(&o, rung, &holds, &err), KK_EINVAL);
    assert_int_equal(kk_live_blocks(), blocks);
}

static void test_fits(void **state) {
    (void)state;
    const int64_t blocks = kk_live_blocks();
    kk_needle_opts o = two_rungs().needle;
    int32_t one, two;
    kk_err err;
    o.engine.projection = NULL; /* there is none yet */
    o.session.kv_full = KK_KEEP_RESTORED;
    assert_ok(kk_needle_fits(&o, &two, why));
    o.n_rungs = 1;
    assert_ok(kk_needle_fits(&o, &one, why));
    assert_true(two > one && one > 200);
    o.ladder[0] = 20000;
    assert_int_equal(kk_needle_fits(&o, &one, &err), KK_ECONTEXT);
    assert_non_null(strstr(err.msg, "20000 lines"));
    assert_int_equal(kk_live_blocks(), blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_climb), cmocka_unit_test(test_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
