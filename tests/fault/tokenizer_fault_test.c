/* tokenizer_fault_test.c - for n = 1, 2, ...: the n-th allocation (or system call) of an
 * operation on text fails.  Expect a status that says so, nothing in the results, and every byte
 * given back.  jansson allocates through the library here, so that its failures are walked too. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/answers.h"
#include "support/tokens.h"

typedef struct {
    char *json, *added; /* tokenizer files */
    size_t json_len, added_len;
    kk_tokenizer *tok;
    char path[512];
    scratch *s;
} bench;

static const char text[] = "The quick <bos> fox\n\n\n\xf0\x9f\xa6\x99 jumps   over \xff lazy dogs "
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"weather \\u00e9?\"}]}, {\"role\": "
    "\"assistant\", \"reasoning\": \"hm\", \"content\": \"<|channel>x<channel|>y\", "
    "\"tool_calls\": "
    "[{\"id\": \"1\", \"function\": {\"name\": \"get\", \"arguments\": \"{\\\"city\\\": [1.5, "
    "{\\\"a\\\": null}]}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": "
    "{\"c\": 3, \"B\": \"x\"}}], \"tools\": [{\"function\": {\"name\": \"get\", \"description\": "
    "\"d\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
    "\"array\", \"items\": {\"type\": \"string\"}}}, \"required\": [\"city\"]}}}], "
    "\"enable_thinking\": true, \"add_generation_prompt\": true}";

static int setup(void **state) {
    bench *b = calloc(1, sizeof *b);
    if (scratch_setup((void **)&b->s) != 0) return -1;
    b->json = data_read("tokenizer/tokenizer.json", &b->json_len);
    b->added = data_read("tokenizer/added.json", &b->added_len);
    b->tok = data_tokenizer("tokenizer/tokenizer.json");
    snprintf(b->path, sizeof b->path, "%s", scratch_path(b->s, "tokenizer.json"));
    scratch_write(b->path, b->added, b->added_len);
    *state = b;
    return 0;
}

static int teardown(void **state) {
    bench *b = *state;
    kk_tokenizer_close(b->tok);
    free(b->json);
    free(b->added);
    scratch_teardown((void **)&b->s);
    free(b);
    return 0;
}

/* Whether the armed fault has happened: if not, counting on runs into it. */
static bool happened(int n) {
    for (int i = 0; i < n; i++)
        if (kk_fault_point()) return false;
    return true;
}

/* Runs op with every point failing in turn until none is left; returns how many there were. */
static int walk(const bench *b, kk_status (*op)(const bench *b, kk_err *err)) {
    for (int n = 1;; n++) {
        kk_err err = {0};
        const int64_t live = kk_live_bytes(), blocks = kk_live_blocks();
        kk_fault_after(n, false);
        const kk_status st = op(b, &err);
        const bool failed = happened(n);
        kk_fault_after(0, false);
        if (kk_live_bytes() != live || kk_live_blocks() != blocks)
            fail_msg("%lld bytes stay behind after fault %d", (long long)(kk_live_bytes() - live),
                     n);
        if (!failed) {
            assert_int_equal(st, KK_OK);
            return n - 1;
        }
        if (st == KK_OK) fail_msg("fault %d went unnoticed", n);
        if (st != KK_ENOMEM && st != KK_EIO) fail_msg("fault %d: %s", n, err.msg);
        assert_int_equal(err.code, st);
        assert_true(err.msg[0]);
        assert_true(n < 100000);
    }
}

static kk_status load(const char *json, size_t len, kk_err *err) {
    kk_tokenizer *tok = (kk_tokenizer *)(uintptr_t)json;
    const kk_status st = kk_tokenizer_from_json(&tok, json, len, "json", err);
    assert_int_equal(st == KK_OK, tok != NULL);
    assert_int_not_equal(st, KK_EIO);
    kk_tokenizer_close(tok);
    return st;
}

static kk_status load_golden(const bench *b, kk_err *err) {
    return load(b->json, b->json_len, err);
}
static kk_status load_added(const bench *b, kk_err *err) {
    return load(b->added, b->added_len, err);
}

static kk_status open_path(const bench *b, kk_err *err) {
    kk_tokenizer *tok;
    const kk_status st = kk_tokenizer_open(&tok, b->path, err);
    assert_int_equal(st == KK_OK, tok != NULL);
    kk_tokenizer_close(tok);
    return st;
}

static kk_status encode(const bench *b, kk_err *err) {
    int32_t *ids = (int32_t *)(uintptr_t)b;
    size_t n = 9;
    const kk_status st =
        kk_encode(b->tok, text, sizeof text - 1, KK_ENCODE_BOS | KK_ENCODE_SPECIAL, &ids, &n, err);
    assert_int_equal(st == KK_OK, ids != NULL);
    assert_int_equal(st == KK_OK, n > 0);
    kk_free(ids);
    return st;
}

static kk_status encode_nothing(const bench *b, kk_err *err) {
    int32_t *ids;
    size_t n;
    const kk_status st = kk_encode(b->tok, "", 0, 0, &ids, &n, err);
    assert_int_equal(st == KK_OK, ids != NULL);
    kk_free(ids);
    return st;
}

static kk_status decode(const bench *b, kk_err *err) {
    const int32_t ids[] = {2, 500, 600, 700, 140, 300};
    char *out = (char *)(uintptr_t)b;
    size_t len;
    const kk_status st = kk_decode(b->tok, ids, 6, true, &out, &len, err);
    assert_int_equal(st == KK_OK, out != NULL);
    kk_free(out);
    return st;
}

static kk_status stream(const bench *b, kk_err *err) {
    kk_decoder *d;
    const char *piece;
    size_t len;
    const kk_status st = kk_decoder_new(&d, b->tok, true, err);
    assert_int_equal(st == KK_OK, d != NULL);
    if (d) assert_int_equal(kk_decoder_push(d, 500, &piece, &len, NULL), KK_OK);
    kk_decoder_free(d);
    return st;
}

static kk_status render(const bench *b, kk_err *err) {
    char *out = (char *)(uintptr_t)b;
    size_t len;
    const kk_status st = kk_chat_render(conversation, sizeof conversation - 1, &out, &len, err);
    assert_int_equal(st == KK_OK, out != NULL);
    kk_free(out);
    return st;
}

static kk_status chat_ids(const bench *b, kk_err *err) {
    int32_t *ids = (int32_t *)(uintptr_t)b;
    size_t n;
    const kk_status st =
        kk_chat_encode(b->tok, conversation, sizeof conversation - 1, &ids, &n, err);
    assert_int_equal(st == KK_OK, ids != NULL);
    kk_free(ids);
    return st;
}

/* A push that fails has taken nothing: pushed again, it goes on as if it had not failed. */
static kk_status push_until_taken(kk_answer *a, const char *piece, size_t len, gathered *g,
                                  kk_status *first, kk_err *err) {
    const kk_answer_span *spans;
    size_t n;
    kk_status st = KK_OK;
    for (int i = 0; i < 2; i++) {
        st = piece ? kk_answer_push_text(a, piece, len, &spans, &n, *first ? NULL : err)
                   : kk_answer_finish(a, &spans, &n, *first ? NULL : err);
        if (st == KK_OK) break;
        assert_null(spans);
        assert_int_equal(n, 0);
        *first = st;
    }
    gather(g, spans, n);
    return st;
}

static kk_status take_apart(const bench *b, kk_err *err) {
    static const char *const stops[] = {"END", "and"};
    static const char text_apart[] =
        "<|channel>thought\nlong enough for memory to be taken again and again\n<channel|>Yes."
        "<|tool_call>call:get{city:<|\"|>a name that is not short at all, nor simple<|\"|>,"
        "n:[1,2,3,4,5,6,7,8,9]}<tool_call|>text to the END, which is not shown";
    const kk_answer_opts opts = {.tok = b->tok, .stops = stops, .n_stops = 2};
    kk_answer *a = (kk_answer *)(uintptr_t)b;
    gathered g;
    kk_status first = kk_answer_new(&a, &opts, err);
    assert_int_equal(first == KK_OK, a != NULL);
    if (!a) return first;
    gather_begin(&g);
    for (size_t at = 0; at < sizeof text_apart - 1; at += 7) {
        const size_t left = sizeof text_apart - 1 - at;
        assert_int_equal(push_until_taken(a, text_apart + at, left < 7 ? left : 7, &g, &first, err),
                         KK_OK);
    }
    assert_int_equal(push_until_taken(a, NULL, 0, &g, &first, err), KK_OK);
    assert_false(g.bad);
    assert_string_equal(
        g.text, "thought(long enough for memory to be taken again and again) text(Yes.) call(get "
                "{\"city\":\"a name that is not short at all, nor simple\",\"n\":[1,2,3,4,5,6,7,8,"
                "9]}) text(text to the )");
    free(g.text);
    kk_answer_free(a);
    return first;
}

static void test_answers(void **state) { assert_true(walk(*state, take_apart) > 8); }

static void test_loading(void **state) {
    assert_true(walk(*state, load_golden) > 100);
    assert_true(walk(*state, load_added) > 20);
    assert_true(walk(*state, open_path) > 20);
}

static void test_encoding(void **state) {
    assert_true(walk(*state, encode) > 3);
    assert_true(walk(*state, encode_nothing) > 0);
}

static void test_decoding(void **state) {
    assert_true(walk(*state, decode) > 0);
    assert_true(walk(*state, stream) > 0);
}

static void test_conversations(void **state) {
    json_set_alloc_funcs(kk_malloc, kk_free);
    const int rendering = walk(*state, render), encoding = walk(*state, chat_ids);
    json_set_alloc_funcs(malloc, free);
    assert_true(rendering > 100);
    assert_true(encoding > rendering);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading),  cmocka_unit_test(test_encoding),
        cmocka_unit_test(test_decoding), cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
