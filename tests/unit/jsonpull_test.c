/* jsonpull_test.c - the pull reader takes what JSON is and nothing else.  jansson is the judge:
 * thousands of damaged documents must be accepted and refused by both alike. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/jsonpull.h"
#include "support/tokens.h"

static kk_status skip_all(const char *text, size_t len, kk_err *err) {
    kk_jsonpull p;
    kk_jsonpull_open(&p, text, len, "text");
    kk_status st = kk_jsonpull_skip(&p, err);
    if (st == KK_OK) st = kk_jsonpull_end(&p, err);
    kk_jsonpull_close(&p);
    return st;
}

static void test_walks_a_document(void **state) {
    (void)state;
    const char text[] =
        " {\"a\" : [ 1 , -20, true,false , null],\n\"b\\u00e9\\n\": {\"\":\"x\"} } ";
    kk_jsonpull p;
    kk_json_str s;
    bool more, flag;
    int64_t v;
    kk_jsonpull_open(&p, text, sizeof text - 1, "text");
    assert_int_equal(kk_jsonpull_peek(&p), KK_JSON_OBJECT);
    assert_int_equal(kk_jsonpull_enter(&p, KK_JSON_OBJECT, NULL), KK_OK);
    assert_int_equal(kk_jsonpull_key(&p, &s, &more, NULL), KK_OK);
    assert_true(more && kk_json_is(s, "a"));
    assert_int_equal(kk_jsonpull_enter(&p, KK_JSON_ARRAY, NULL), KK_OK);
    const int64_t wanted[] = {1, -20};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kk_jsonpull_item(&p, &more, NULL), KK_OK);
        assert_int_equal(kk_jsonpull_int(&p, &v, NULL), KK_OK);
        assert_int_equal(v, wanted[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kk_jsonpull_item(&p, &more, NULL), KK_OK);
        assert_int_equal(kk_jsonpull_bool(&p, &flag, NULL), KK_OK);
        assert_int_equal(flag, i == 0);
    }
    assert_int_equal(kk_jsonpull_item(&p, &more, NULL), KK_OK);
    assert_int_equal(kk_jsonpull_null(&p, &flag, NULL), KK_OK);
    assert_true(flag);
    assert_int_equal(kk_jsonpull_item(&p, &more, NULL), KK_OK);
    assert_false(more);
    assert_int_equal(kk_jsonpull_key(&p, &s, &more, NULL), KK_OK);
    assert_true(more && kk_json_is(s, "b\xc3\xa9\n"));
    assert_int_equal(kk_jsonpull_enter(&p, KK_JSON_OBJECT, NULL), KK_OK);
    assert_int_equal(kk_jsonpull_key(&p, &s, &more, NULL), KK_OK);
    assert_true(more && s.len == 0);
    assert_int_equal(kk_jsonpull_null(&p, &flag, NULL), KK_OK);
    assert_false(flag);
    assert_int_equal(kk_jsonpull_string(&p, &s, NULL), KK_OK);
    assert_true(kk_json_is(s, "x"));
    assert_int_equal(kk_jsonpull_key(&p, &s, &more, NULL), KK_OK);
    assert_false(more);
    assert_int_equal(kk_jsonpull_key(&p, &s, &more, NULL), KK_OK);
    assert_false(more);
    assert_int_equal(kk_jsonpull_end(&p, NULL), KK_OK);
    kk_jsonpull_close(&p);
}

static void test_strings(void **state) {
    (void)state;
    static const struct {
        const char *json, *text; /* text NULL: refused */
    } cases[] = {
        {"\"\"", ""},
        {"\"plain\"", "plain"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u0041\\u00e9\\u2581\"", "A\xc3\xa9\xe2\x96\x81"},
        {"\"\\ud83e\\udd99!\"", "\xf0\x9f\xa6\x99!"},
        {"\"\xe2\x96\x81\"", "\xe2\x96\x81"},
        {"\"\\ud83e\"", NULL},
        {"\"\\ud83e\\u0041\"", NULL},
        {"\"\\udd99\"", NULL},
        {"\"\\u12\"", NULL},
        {"\"\\u12g4\"", NULL},
        {"\"\\x41\"", NULL},
        {"\"\\", NULL},
        {"\"open", NULL},
        {"\"a\nb\"", NULL},
        {"\"\x01\"", NULL},
        {"\"\xff\"", NULL},
        {"\"\\n\xc3\"", NULL},
        {"\"\xed\xa0\x80\"", NULL},
        {"'a'", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kk_jsonpull p;
        kk_json_str s = {0};
        kk_err err = {0};
        kk_jsonpull_open(&p, cases[i].json, strlen(cases[i].json), "label");
        const kk_status st = kk_jsonpull_string(&p, &s, &err);
        if (cases[i].text) {
            assert_int_equal(st, KK_OK);
            assert_true(kk_json_is(s, cases[i].text));
        } else {
            assert_int_equal(st, KK_EFORMAT);
            assert_non_null(strstr(err.msg, "label: "));
            assert_non_null(strstr(err.msg, " at byte "));
        }
        kk_jsonpull_close(&p);
    }
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *json;
        bool ok;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"1.5", false, 0},
        {"1e3", false, 0},
        {"-", false, 0},
        {"+1", false, 0},
        {"\"1\"", false, 0},
        {"", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kk_jsonpull p;
        int64_t v = 1;
        kk_jsonpull_open(&p, cases[i].json, strlen(cases[i].json), "n");
        assert_int_equal(kk_jsonpull_int(&p, &v, NULL) == KK_OK, cases[i].ok);
        if (cases[i].ok) assert_int_equal(v, cases[i].value);
        kk_jsonpull_close(&p);
    }
}

static void test_depth(void **state) {
    (void)state;
    char text[300];
    kk_err err = {0};
    memset(text, '[', 150);
    memset(text + 150, ']', 150);
    assert_int_equal(skip_all(text + 150 - 64, 128, NULL), KK_OK);
    assert_int_equal(skip_all(text + 150 - 65, 130, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "too deep"));
}

/* Overwrites, removes or doubles a few bytes. */
static size_t damage(char *text, size_t len, uint64_t *seed) {
    static const char bytes[] = "{}[]\",:\\/ \n0123456789-+.eEutrfalsn\xc3\xa9\xff\x01";
    for (uint32_t n = random_below(seed, 4); n > 0; n--) {
        const size_t at = random_below(seed, (uint32_t)len);
        switch (random_below(seed, 3)) {
        case 0: text[at] = bytes[random_below(seed, sizeof bytes - 1)]; break;
        case 1: memmove(text + at, text + at + 1, --len - at); break;
        default: memmove(text + at + 1, text + at, len - at); len++;
        }
    }
    return len;
}

static void test_agrees_with_jansson(void **state) {
    (void)state;
    static const char *const documents[] = {
        "{\"a\":[1,2.5,-3e+2],\"b\":{\"c\":null,\"d\":[true,false]},\"e\":\"x\\u00e9\\n\\\"\"}",
        "[[],{},\"\",0,-1.0E-2,[[[]]],{\"k\":[{}]}]",
        "\"just \\ud83e\\udd99 text \\\\ \\/\"",
        " \t\r\n[ 10 , \"\xe2\x96\x81\" , { \"\" : null } ] ",
    };
    uint64_t seed = 7;
    int accepted = 0, refused = 0;
    for (int i = 0; i < 60000; i++) {
        char text[256];
        const char *document = documents[i % 4];
        memcpy(text, document, strlen(document));
        const size_t len = damage(text, strlen(document), &seed);
        json_error_t e;
        json_t *tree = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        const enum json_error_code code = tree ? json_error_unknown : json_error_code(&e);
        const bool range = code == json_error_numeric_overflow; /* grammar is all we check */
        const bool ours = skip_all(text, len, NULL) == KK_OK;
        if (!range && code != json_error_null_byte_in_key && ours != (tree != NULL))
            fail_msg("%.*s: %s", (int)len, text, tree ? "refused" : e.text);
        accepted += ours;
        refused += !ours;
        json_decref(tree);
    }
    assert_true(accepted > 5000 && refused > 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walks_a_document),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_agrees_with_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
