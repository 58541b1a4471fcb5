/* outbox_test.c - bytes come out in the order they went in, never more wait than the limit, and
 * what is refused leaves no trace; text that is not UTF-8 becomes JSON; keys are compared whole. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/keys.h"
#include "server/outbox.h"
#include "server/text.h"
#include "support/scratch.h"

static uint32_t below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

static void test_order_and_limit(void **state) {
    enum { LIMIT = 5000 };
    outbox o = {.limit = LIMIT};
    uint64_t draw = 7;
    size_t put = 0, taken = 0, refused = 0;
    char bytes[4000];
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const size_t n = below(&draw, sizeof bytes);
        if (below(&draw, 2)) {
            for (size_t k = 0; k < n; k++) bytes[k] = (char)((put + k) * 7 % 251);
            const bool fits = put - taken + n <= LIMIT;
            assert_int_equal(outbox_put(&o, bytes, n), fits);
            put += fits ? n : 0;
            refused += !fits;
        } else {
            const size_t got = outbox_take(&o, bytes, n);
            assert_true(got == n || got == put - taken);
            for (size_t k = 0; k < got; k++)
                assert_int_equal(bytes[k], (char)((taken + k) * 7 % 251));
            taken += got;
        }
        assert_int_equal(o.len, put - taken);
        assert_true(o.cap <= 2 * LIMIT);
    }
    assert_true(refused > 100 && taken > 100000);
    outbox_free(&o);
}

static void check_text(const char *bytes, size_t n, const char *want) {
    json_t *s = text_json(bytes, n);
    assert_string_equal(json_string_value(s), want);
    json_decref(s);
}

/* What text_add_escaped writes is what jansson writes. */
static void check_escaped(const char *bytes, size_t n) {
    textbuf t = {0};
    json_t *s = text_json(bytes, n);
    char *want = json_dumps(s, JSON_ENCODE_ANY | JSON_COMPACT);
    text_add(&t, "\"", 1);
    text_add_escaped(&t, bytes, n);
    text_add(&t, "\"", 1);
    assert_string_equal(t.bytes, want);
    free(want);
    json_decref(s);
    text_free(&t);
}

static void test_escaped(void **state) {
    (void)state;
    char bytes[64];
    unsigned x = 7;
    for (int i = 0; i < 20000; i++) {
        const size_t n = (x >> 9) % sizeof bytes;
        for (size_t k = 0; k < n; k++) {
            x = x * 1103515245u + 12345u;
            /* mostly ASCII and its control characters, now and then anything */
            bytes[k] = (char)((x >> 16) % ((x >> 28) ? 128u : 256u));
        }
        x = x * 1103515245u + 12345u;
        check_escaped(bytes, n);
    }
    check_escaped("", 0);
    check_escaped("a\xc3\xbc\xf0\x9f\x98\x80\"\\/", 10);
}

#define FFFD "\xef\xbf\xbd"

static void test_not_utf8(void **state) {
    (void)state;
    check_text("", 0, "");
    check_text("a\xc3\xbc\xf0\x9f\x98\x80", 7, "a\xc3\xbc\xf0\x9f\x98\x80");
    check_text("a\xc3", 2, "a" FFFD);
    check_text("\xc0\xaf", 2, FFFD FFFD);
    check_text("\xed\xa0\x80z", 4, FFFD FFFD FFFD "z");
    check_text("\xf4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD);
    check_text("\xf0\x9f\x98", 3, FFFD FFFD FFFD);
}

static void test_buffer(void **state) {
    textbuf t = {0};
    (void)state;
    for (int i = 0; i < 1000; i++) text_printf(&t, "%d,", i);
    assert_int_equal(t.len, strlen(t.bytes));
    assert_int_equal(t.len, 3890);
    text_add_json(&t, NULL); /* as json_pack gives without memory: it sticks */
    text_add(&t, "x", 1);
    assert_true(t.failed && t.len == 3890);
    text_free(&t);
}

static void test_keys(void **state) {
    static const char file[] = "# comment\r\n\n sk-one\t\nsk-two\r\n";
    const char *path = scratch_path(*state, "keys");
    keys k;
    kk_err err;
    scratch_write(path, file, sizeof file - 1);
    keys_init(&k);
    assert_true(keys_accept(&k, NULL)); /* no keys: anyone */
    assert_int_equal(keys_read(&k, path, &err), KK_OK);
    assert_int_equal(k.list.n, 2);
    assert_true(keys_accept(&k, "Bearer sk-one") && keys_accept(&k, "bearer sk-two"));
    static const char *const wrong[] = {"",
                                        "Bearer",
                                        "Bearer ",
                                        "sk-one",
                                        "Bearer sk-on",
                                        "Bearer sk-one ",
                                        "Basic x",
                                        "Bearer sk-tw0",
                                        "Bearer # comment",
                                        "Bearer  sk-one"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (keys_accept(&k, wrong[i])) fail_msg("'%s' is accepted", wrong[i]);
    assert_false(keys_accept(&k, NULL));
    char longest[400];
    memset(longest, 'x', sizeof longest);
    scratch_write(path, longest, sizeof longest);
    assert_int_equal(keys_read(&k, path, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "line 1"));
    /* Those that were there stay, until others can be read. */
    assert_true(keys_accept(&k, "Bearer sk-one") && !keys_accept(&k, NULL));
    scratch_write(path, "sk-three\n", 9);
    assert_int_equal(keys_read(&k, path, &err), KK_OK);
    assert_true(keys_accept(&k, "Bearer sk-three") && !keys_accept(&k, "Bearer sk-one"));
    keys_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_limit),
        cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_escaped),
        cmocka_unit_test(test_buffer),
        cmocka_unit_test_setup_teardown(test_keys, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
