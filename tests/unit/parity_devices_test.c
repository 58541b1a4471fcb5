/* parity_devices_test.c - when the logits of two devices agree: near in all values, and a choice
 * that differs is a near tie. */
#include "support/ok.h"

#include <math.h>

#include "eval/tasks/parity_devices.h"

enum { N = 64 };

/* Row a has values of about 1 and two largest ones at 3 and 5; b is a copy of it. */
static void draw(float *a, float *b, float second) {
    for (int32_t i = 0; i < N; i++) a[i] = (i % 2 ? 1.0f : -1.0f) * (0.5f + 0.01f * (float)i);
    a[3] = 4.0f;
    a[5] = second;
    for (int32_t i = 0; i < N; i++) b[i] = a[i];
}

static kk_parity_devices_report compared(const float *a, const float *b) {
    kk_parity_devices_report r = {.tol = 1e-3};
    kk_parity_devices_rows(&r, a, b, N);
    kk_parity_devices_judge(&r);
    return r;
}

static void test_equal(void **state) {
    (void)state;
    float a[N], b[N];
    draw(a, b, 2.0f);
    const kk_parity_devices_report r = compared(a, b);
    assert_true(r.ok && r.equal == 1 && r.near == 0 && r.most == 0);
}

static void test_far(void **state) {
    (void)state;
    float a[N], b[N];
    draw(a, b, 2.0f);
    b[40] += 0.01f; /* the choice is the same, and the logits are not near */
    assert_false(compared(a, b).ok);
    draw(a, b, 3.9f);
    b[3] = 3.9f; /* another choice, by more than a near tie */
    b[5] = 4.0f;
    const kk_parity_devices_report r = compared(a, b);
    assert_true(!r.ok && r.equal == 0 && r.near == 0);
    draw(a, b, 2.0f);
    b[7] = NAN;
    assert_false(compared(a, b).ok);
}

static void test_near_tie(void **state) {
    (void)state;
    float a[N], b[N];
    draw(a, b, 3.9999f);
    b[3] = 3.9999f;
    b[5] = 4.0f;
    const kk_parity_devices_report r = compared(a, b);
    assert_true(r.ok && r.equal == 0 && r.near == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_near_tie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
