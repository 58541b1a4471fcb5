/* short_head_rule_test.c - which head a session drafts by, over streams of tokens that are made
 * up: what lies in the short head stays, what leaves it goes within a few rounds, and comes back
 * when the text does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "propose/short_head.h"

/* Rounds of three tokens until the head changes, at most `most`; every k-th token lies outside, k
 * 0: none. */
static int32_t rounds_until(kk_short_head *h, bool left, int32_t k, int32_t most) {
    int32_t token = 0;
    for (int32_t r = 1; r <= most; r++) {
        int32_t outside = 0;
        for (int i = 0; i < 3; i++) outside += k > 0 && ++token % k == 0;
        kk_short_head_saw(h, 3, outside);
        if (h->left == left) return r;
    }
    return most + 1;
}

static void tokens_inside_stay(void **state) {
    (void)state;
    kk_short_head h = {0};
    assert_false(h.left);
    assert_int_equal(rounds_until(&h, true, 0, 1000), 1001);
    /* One in forty: less than the head saves. */
    assert_int_equal(rounds_until(&h, true, 40, 1000), 1001);
}

static void tokens_outside_leave_it_within_few_rounds(void **state) {
    (void)state;
    kk_short_head all = {0}, half = {0}, some = {0}, after = {0};
    assert_true(rounds_until(&all, true, 1, 100) <= 2);
    assert_true(rounds_until(&half, true, 2, 100) <= 4);
    assert_true(rounds_until(&some, true, 8, 100) <= 30);
    /* As soon after a long text inside. */
    assert_int_equal(rounds_until(&after, true, 0, 1000), 1001);
    assert_true(rounds_until(&after, true, 2, 100) <= 4);
}

static void it_is_found_again(void **state) {
    (void)state;
    kk_short_head h = {0};
    assert_true(rounds_until(&h, true, 1, 100) <= 2);
    for (int32_t i = 0; i < 100; i++) kk_short_head_saw(&h, 3, 3);
    assert_true(h.left);
    /* Seldom: not before a hundred tokens inside. */
    const int32_t back = rounds_until(&h, false, 0, 1000);
    assert_true(back > 33 && back < 120);
    /* Between the two shares it stays where it is. */
    assert_int_equal(rounds_until(&h, true, 21, 1000), 1001);
    kk_short_head left = {.outside = 0.07, .left = true};
    assert_int_equal(rounds_until(&left, false, 21, 1000), 1001);
}

static void rounds_without_tokens_say_nothing(void **state) {
    (void)state;
    kk_short_head h = {.outside = 0.05};
    kk_short_head_saw(&h, 0, 0);
    assert_true(h.outside > 0.0499 && h.outside < 0.0501 && !h.left);
    kk_short_head_saw(&h, 1000, 1000); /* more than the share is over */
    assert_true(h.outside > 0.99 && h.outside <= 1 && h.left);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_inside_stay),
        cmocka_unit_test(tokens_outside_leave_it_within_few_rounds),
        cmocka_unit_test(it_is_found_again),
        cmocka_unit_test(rounds_without_tokens_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
