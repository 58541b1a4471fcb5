/* adamw_test.c - rates, clipping and steps against values worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/adamw.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

static void test_rate(void **state) {
    const kk_adamw_opts o = {.lr = 1e-3, .steps = 20000, .warmup = 500};
    (void)state;
    assert_true(near(kk_adamw_rate(&o, 1), 2e-6));
    assert_true(near(kk_adamw_rate(&o, 250), 5e-4));
    assert_true(near(kk_adamw_rate(&o, 500), 1e-3));
    assert_true(near(kk_adamw_rate(&o, 10250), 5.05e-4));
    assert_true(near(kk_adamw_rate(&o, 20000), 1e-5));
    assert_true(near(kk_adamw_rate(&o, 30000), 1e-5)); /* past the end */
    const kk_adamw_opts constant = {.lr = 1e-3, .steps = 10, .warmup = 5, .constant = true};
    assert_true(near(kk_adamw_rate(&constant, 1), 1e-3));
    const kk_adamw_opts cold = {.lr = 1e-3, .steps = 1};
    assert_true(near(kk_adamw_rate(&cold, 1), 1e-5)); /* no warm-up: the last step is the least */
}

static void test_clip(void **state) {
    float g[2] = {3, 4};
    (void)state;
    assert_true(near(kk_adamw_clip(g, 2, 10), 5));
    assert_true(near((double)g[0], 3)); /* short enough */
    assert_true(near(kk_adamw_clip(g, 2, 1), 5));
    assert_true(near((double)g[0], 0.6) && near((double)g[1], 0.8));
    assert_true(near(kk_adamw_clip(g, 2, 0), 1)); /* any norm */
    g[0] = NAN;
    assert_true(isnan(kk_adamw_clip(g, 2, 1))); /* for the caller to see */
}

/* torch.optim.AdamW([1., -2.], lr=0.1, weight_decay=0.01), gradients (0.5, -1), (0.25, 3). */
static void test_step(void **state) {
    const kk_adamw_opts o = {.lr = 0.1, .weight_decay = 0.01, .steps = 2, .constant = true};
    float p[2] = {1, -2}, m[2] = {0, 0}, v[2] = {0, 0};
    const float first[2] = {0.5f, -1}, second[2] = {0.25f, 3};
    (void)state;
    kk_adamw_step(&o, 1, p, first, m, v, 2);
    assert_true(near((double)p[0], 0.899) && near((double)p[1], -1.898));
    kk_adamw_step(&o, 2, p, second, m, v, 2);
    /* m = (.045 + .025, -.09 + .3) / .19; v = (.00024975 + .0000625, .000999 + .009) / .001999 */
    const double a = 0.07 / 0.19 / sqrt(0.00031225 / 0.001999);
    const double b = 0.21 / 0.19 / sqrt(0.009999 / 0.001999);
    assert_true(near((double)p[0], 0.899 * 0.999 - 0.1 * a));
    assert_true(near((double)p[1], -1.898 * 0.999 - 0.1 * b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
