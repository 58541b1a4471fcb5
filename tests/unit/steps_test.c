/* steps_test.c - steps are judged by what their turns and documents show, and a report of them
 * that was just made holds.  Reports that say otherwise: gate_steps_test.c. */
#define _GNU_SOURCE
#include "support/ok.h"

#include <math.h>

#include "core/alloc.h"
#include "eval/measure/steps.h"
#include "eval/reports/gate.h"
#include "support/scratch.h"

#define FAMILY KK_TEST_DATA "/../../models/tiny/"
static const char *const texts[] = {KK_TEST_DATA "/../../LICENSE"};

static kk_steps_opts options(void) {
    return (kk_steps_opts){.engine = {.model = FAMILY "verifier",
                                      .drafter = FAMILY "drafter",
                                      .projection = FAMILY "projection",
                                      .threads = 1},
                           .way = KK_BENCH_RESTORED,
                           .keep = {.sink = 4, .window = 32, .chunk = 32},
                           .lines = 10,
                           .samples = 1,
                           .seed = 42,
                           .predict = 32,
                           .turns = 5,
                           .sets = "code",
                           .prompts = FAMILY "prompts",
                           .texts = texts,
                           .n_texts = 1,
                           .text_tokens = 360,
                           .draft_max = 3,
                           .draft_fixed = true,
                           .least_speed = {1e-6, 1e6},
                           .max_kl = 1,
                           .command = "kakeya eval steps"};
}

static const kk_needle_check *check_of(const kk_steps_result *r, const char *figure, int32_t step) {
    for (int32_t i = 0; i < r->n_checks; i++)
        if (strcmp(r->check[i].figure, figure) == 0 &&
            strcmp(r->check[i].arm, kk_steps_arm(step)) == 0)
            return &r->check[i];
    fail_msg("no check of %s of step %d", figure, step + 1);
    return NULL;
}

static void check_figures(const kk_steps_result *r) {
    const kk_bench_policy *exact = &r->bench->policy[0], *own = &r->bench->policy[1];
    assert_int_equal(r->needle.n_arms, 3);
    assert_int_equal(r->bench->n_policies, 2);
    assert_true(fabs(r->speed[0] - own->plain.tok_s / exact->plain.tok_s) < 1e-9);
    assert_true(fabs(r->speed[1] - own->dflash.tok_s / exact->plain.tok_s) < 1e-9);
    assert_int_equal(own->plain.n, 5);
    assert_int_equal(own->dflash.different, 0);
    /* Drafted answers are those of restored decoding, and the drafter keeps rows of its own. */
    const kk_needle_rung *restored = &r->needle.arm[1].rung[0],
                         *drafted = &r->needle.arm[2].rung[0];
    assert_string_equal(restored->samples[0].answer, drafted->samples[0].answer);
    assert_int_equal(restored->bytes[KK_MEM_KV_DRAFTER], 0);
    assert_true(drafted->bytes[KK_MEM_KV_DRAFTER] > 0);
    assert_true(drafted->samples[0].counts.rows_rebuilt > 0);
    assert_int_equal(r->n_checks, 2 * 3 + 2 + 1);
    assert_true(check_of(r, "mean_kl", 0)->holds && check_of(r, "restored_rows", 1)->holds);
    assert_true(check_of(r, "different", 1)->holds && check_of(r, "recall_drop", 1)->holds);
}

static void test_run(void **state) {
    scratch *s = *state;
    const int64_t blocks = kk_live_blocks();
    const kk_steps_opts o = options();
    kk_steps_result r;
    kk_writer *to;
    kk_verdict v;
    assert_ok(kk_steps_run(&o, &r, why));
    check_figures(&r);
    /* One limit is met by any speed, the other by none. */
    assert_true(r.holds[0] && check_of(&r, "speed_ratio", 0)->holds);
    assert_false(r.holds[1] || check_of(&r, "speed_ratio", 1)->holds);
    const char *path = scratch_path(s, "steps.json");
    assert_ok(kk_writer_open(&to, path, NULL, why));
    assert_ok(kk_steps_write(to, &o, &r, why));
    kk_writer_close(to);
    assert_ok(kk_gate_file(path, &v, why));
    for (size_t i = 0; i < v.n; i++)
        if (strcmp(v.finding[i].code, "MISSING_COMMIT") != 0)
            fail_msg("%s: %s", v.finding[i].code, v.finding[i].text);
    assert_non_null(kk_verdict_failure(&v));
    kk_verdict_release(&v);
    kk_steps_release(&r);
    assert_int_equal(kk_live_blocks(), blocks);
}

static void refused(const kk_steps_opts *o, const char *says) {
    kk_steps_result r;
    kk_err err;
    assert_int_equal(kk_steps_run(o, &r, &err), KK_EINVAL);
    if (!strstr(err.msg, says)) fail_msg("'%s' is not in '%s'", says, err.msg);
}

static void test_refused(void **state) {
    (void)state;
    kk_steps_opts o = options();
    o.turns = 4;
    refused(&o, "4 turns");
    o = options();
    o.predict = 31;
    refused(&o, "31 tokens");
    o = options();
    o.way = KK_BENCH_WINDOW;
    refused(&o, "not of window");
    o = options();
    o.engine.drafter = NULL;
    refused(&o, "drafter");
    o = options();
    o.engine.projection = NULL;
    refused(&o, "projection");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_run, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
