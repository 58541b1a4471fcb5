/* utf8_test.c - every code point goes there and back; nothing that is not UTF-8 passes; what is
 * held back as unfinished is exactly what could still become a character. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "core/utf8.h"

static void test_every_code_point(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        char bytes[4];
        uint32_t back = 0;
        const size_t len = kk_utf8_put(bytes, cp);
        if (kk_utf8_next(bytes, len, &back) != len || back != cp) fail_msg("U+%04X", cp);
        /* every proper prefix is unfinished, and none is a character */
        for (size_t n = 1; n < len; n++)
            if (kk_utf8_next(bytes, n, &back) != 0 || kk_utf8_unfinished(bytes, n) != n)
                fail_msg("prefix of %zu bytes of U+%04X", n, cp);
        if (kk_utf8_unfinished(bytes, len) != 0) fail_msg("U+%04X is finished", cp);
    }
}

/* All sequences of two bytes, and of three that start with a lead byte: valid exactly when some
 * code point is written so. */
static void test_nothing_else_is_valid(void **state) {
    (void)state;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            const char two[] = {(char)a, (char)b};
            const bool ascii = a < 0x80 && b < 0x80;
            const bool pair = a >= 0xc2 && a <= 0xdf && b >= 0x80 && b <= 0xbf;
            assert_int_equal(kk_utf8_valid(two, 2), ascii || pair);
            for (int c = 0; c < 256; c += 5) {
                const char three[] = {(char)a, (char)b, (char)c};
                const bool tail = c >= 0x80 && c <= 0xbf;
                const bool wide = a >= 0xe0 && a <= 0xef && tail &&
                                  b >= (a == 0xe0 ? 0xa0 : 0x80) && b <= (a == 0xed ? 0x9f : 0xbf);
                const bool parts =
                    (a < 0x80 && b >= 0xc2 && b <= 0xdf && tail) || ((ascii || pair) && c < 0x80);
                assert_int_equal(kk_utf8_valid(three, 3), wide || parts);
            }
        }
    assert_false(kk_utf8_valid("\xf5\x80\x80\x80", 4));
    assert_false(kk_utf8_valid("\xf4\x90\x80\x80", 4));
    assert_false(kk_utf8_valid("\xf0\x8f\xbf\xbf", 4));
    assert_true(kk_utf8_valid("", 0));
}

static void test_unfinished(void **state) {
    (void)state;
    assert_int_equal(kk_utf8_unfinished("", 0), 0);
    assert_int_equal(kk_utf8_unfinished("a\xe2\x96", 3), 2);
    assert_int_equal(kk_utf8_unfinished("\xf0\x9f\xa6", 3), 3);
    assert_int_equal(kk_utf8_unfinished("\x96\x81", 2), 0); /* no start */
    assert_int_equal(kk_utf8_unfinished("\xe0\x80", 2), 0); /* overlong: can never be one */
    assert_int_equal(kk_utf8_unfinished("\xed\xa0", 2), 0); /* a surrogate */
    assert_int_equal(kk_utf8_unfinished("\xe2\xe2", 2), 1); /* the first will not come */
    assert_int_equal(kk_utf8_unfinished("\xff", 1), 0);
}

static void test_white_space(void **state) {
    (void)state;
    const char text[] = " \t\n\xc2\xa0\xe3\x80\x80x \xe2\x80\xa8\r\n";
    const size_t n = sizeof text - 1;
    assert_int_equal(kk_utf8_space_before(text, n, false), 8);
    assert_int_equal(kk_utf8_space_after(text, n, false), 6);
    assert_int_equal(kk_utf8_space_before("\x1c x", 3, false), 0);
    assert_int_equal(kk_utf8_space_before("\x1c x", 3, true), 2);
    assert_int_equal(kk_utf8_space_after("x\x1f", 2, true), 1);
    assert_int_equal(kk_utf8_space_after(" \xa0 ", 3, true), 1); /* stops at what is no UTF-8 */
    assert_int_equal(kk_utf8_space_before("   ", 3, true), 3);
    assert_int_equal(kk_utf8_space_after("   ", 3, true), 3);
}

static void test_case(void **state) {
    (void)state;
    static const struct {
        uint32_t upper, lower;
    } pairs[] = {{'A', 'a'},     {'Z', 'z'},       {0xc9, 0xe9},    {0x100, 0x101},
                 {0x160, 0x161}, {0x17d, 0x17e},   {0x3a9, 0x3c9},  {0x42f, 0x44f},
                 {0x401, 0x451}, {0x1e94, 0x1e95}, {0xff21, 0xff41}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_int_equal(kk_utf8_lower(pairs[i].upper), pairs[i].lower);
        assert_int_equal(kk_utf8_lower(pairs[i].lower), pairs[i].lower);
        assert_int_equal(kk_utf8_upper(pairs[i].lower), pairs[i].upper);
        assert_int_equal(kk_utf8_upper(pairs[i].upper), pairs[i].upper);
    }
    static const uint32_t alone[] = {'0', '_', '@', '[', 0xd7, 0xf7, 0x130, 0x138, 0x3a2, 0x4e00};
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++) {
        assert_int_equal(kk_utf8_lower(alone[i]), alone[i]);
        assert_int_equal(kk_utf8_upper(alone[i]), alone[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_nothing_else_is_valid),
        cmocka_unit_test(test_unfinished),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
