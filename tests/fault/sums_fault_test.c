/* sums_fault_test.c - the closed form from sums on a device while the n-th allocation fails, for
 * every n: a status with a sentence, and everything given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/sums_cases.h"
#include "train/linalg.h"

typedef struct {
    kk_engine *engine;
    kk_capture_opts how;
    kk_theta theta;
} world;

static kk_status whole(const world *w, kk_err *err) {
    enum { ROWS = 24 };
    kk_theta theta = w->theta;
    kk_sums *s = NULL;
    int32_t ids[ROWS];
    for (int32_t i = 0; i < ROWS; i++) ids[i] = 7 * i;
    const kk_sums_opts o = {.from = &w->how,
                            .shape = &theta,
                            .ridge = {.lambda = 1, .eps = 1e-6f, .raw = false},
                            .rows = 16};
    kk_status st = kk_sums_new(&s, &o, err);
    if (st == KK_OK) st = kk_sums_run(s, ids, ROWS, err);
    if (st == KK_OK) st = kk_sums_solve(s, &theta, NULL, err);
    kk_sums_free(s);
    return st;
}

static void test_every_allocation(void **state) {
    const kk_engine_opts o = {
        .synthetic = "tiny:f32:1", .device = "cpu", .threads = 1, .no_pin = true, .max_rows = 16};
    world w = {.how = {.source = KK_SOURCE_TAPS, .n_taps = 1, .max_rows = 16}};
    kk_projection_config c;
    kk_err err = {0};
    int64_t n = 0;
    (void)state;
    sums_must(kk_engine_open(&w.engine, &o, &err), &err, "engine");
    w.how.engine = w.engine;
    sums_must(kk_theta_config(&c, &w.how, 4, KK_LAYERS_ALL, &err), &err, "shape");
    sums_must(kk_theta_new(&w.theta, &c, &err), &err, "parameters");
    sums_must(whole(&w, &err), &err, "without a fault"); /* pages that stay are taken */
    const int64_t blocks = kk_live_blocks();
    for (kk_status st = KK_ENOMEM; st != KK_OK; n++) {
        assert_true(n < 1000);
        err = (kk_err){0};
        kk_fault_after(n + 1, false);
        st = whole(&w, &err);
        kk_fault_after(0, false);
        if (st != KK_OK && st != KK_ENOMEM) fail_msg("point %d: %s", (int)n, err.msg);
        assert_true(st == KK_OK || err.msg[0]);
        assert_int_equal(kk_live_blocks(), blocks);
    }
    assert_true(n > 15); /* buffers, a session, scratch of the solution */
    print_message("%d points\n", (int)n);
    kk_theta_free(&w.theta);
    kk_engine_close(w.engine);
}

int main(void) {
    kk_linalg_threads(1, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
