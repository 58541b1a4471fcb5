/* answer_test.c - a model's answer comes apart the same way wherever it is cut, by tokens and by
 * bytes, and calls read back as what the chat format wrote. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/answers.h"
#include "support/shared_tokenizer.h"

static void expect_text(const kk_answer_opts *opts, const char *text, size_t piece,
                        const char *want) {
    bool bad;
    char *got = parts_of_text(opts, text, strlen(text), piece, &bad);
    if (bad || strcmp(got, want) != 0)
        fail_msg("pieces of %zu: '%s' is not '%s'%s", piece, got, want, bad ? " (and bad)" : "");
    free(got);
}

/* As text in pieces of every size, and as tokens. */
static void expect_with(const kk_answer_opts *opts, const char *text, const char *want) {
    int32_t *ids;
    size_t n;
    bool bad;
    for (size_t piece = 0; piece <= strlen(text); piece++) expect_text(opts, text, piece, want);
    assert_int_equal(kk_encode(tok, text, strlen(text), KK_ENCODE_SPECIAL, &ids, &n, NULL), KK_OK);
    char *got = parts_of_tokens(opts, ids, n, &bad);
    assert_false(bad);
    assert_string_equal(got, want);
    free(got);
    kk_free(ids);
}

static void expect(const char *text, const char *want) {
    const kk_answer_opts opts = {.tok = tok};
    expect_with(&opts, text, want);
}

static void test_text(void **state) {
    (void)state;
    expect("", "");
    expect("Hello", "text(Hello)");
    expect(" \n Hello \n", "text(Hello \n)"); /* nothing before the answer */
    expect("a<b |> <| <|x> c", "text(a<b |> <| <|x> c)");
    expect("h\xc3\xa9 \xf0\x9f\xa6\x99!", "text(h\xc3\xa9 \xf0\x9f\xa6\x99!)");
    expect("Hello<turn|>", "text(Hello)");
    expect("Hello<eos>", "text(Hello)");
    expect("Hello<channel|> you", "text(Hello you)"); /* a mark too many */
    expect("Hi <|\"|>you<|\"|>", "text(Hi you)");
}

static void test_thought(void **state) {
    (void)state;
    expect("<|channel>thought\nHm.\n<channel|>Yes.", "thought(Hm.) text(Yes.)");
    expect("<|channel>thought\na\n\nb\n\n<channel|>\nYes.", "thought(a\n\nb\n) text(Yes.)");
    expect("<|channel>thought\n<channel|>Yes.", "text(Yes.)");
    expect("<|channel><channel|>Yes.", "text(Yes.)");
    expect("<|channel>thought<channel|>Yes.", "text(Yes.)");
    expect("<|channel>thought\nHm", "thought(Hm)"); /* cut */
    expect("<|channel>thou", "");
    expect("<|channel>thinking<channel|>Yes.", "thought(thinking) text(Yes.)");
    expect("<|channel>I see\nthat\n<channel|>Yes.", "thought(I see\nthat) text(Yes.)");
    expect("<|channel>thought\na<|channel>thought\nb<channel|>c", "thought(a) thought(b) text(c)");
    expect("One <|channel>thought\na<channel|> two", "text(One ) thought(a) text(two)");
    expect("<|channel>thought\na<turn|>b", "thought(a) text(b)");
}

static void test_calls(void **state) {
    (void)state;
    expect("<|tool_call>call:now{}<tool_call|><|tool_response>", "call(now {})");
    expect("<|tool_call>call:get{city:<|\"|>S\xc3\xa3o \"P\"{a,b}\n<|\"|>,n:3}<tool_call|>",
           "call(get {\"city\":\"S\xc3\xa3o \\\"P\\\"{a,b}\\n\",\"n\":3})");
    expect("<|tool_call>call:f{a:{b:[1,-2.5,1e-05,true,false,None],c:{}},d:[]}<tool_call|>",
           "call(f {\"a\":{\"b\":[1,-2.5,1e-05,true,false,null],\"c\":{}},\"d\":[]})");
    expect("<|channel>thought\nlook it up\n<channel|><|tool_call>call:a{}<tool_call|>"
           "<|tool_call>call:b{x:1}<tool_call|>",
           "thought(look it up) call(a {}) call(b {\"x\":1})");
    expect("Wait.\n<|tool_call>call:a{}<tool_call|>\nDone.",
           "text(Wait.\n) call(a {}) text(Done.)");
    /* Straight from thinking to a call, and a call that the end of the answer closes. */
    expect("<|channel>thought\nhm<|tool_call>call:a{}<|tool_response>", "thought(hm) call(a {})");
}

static void test_slips(void **state) {
    (void)state;
    expect("<|tool_call>call:f{ \"k\" : \"v\\\"w\\n\" , u:celsius, n: null }<tool_call|>",
           "call(f {\"k\":\"v\\\"w\\n\",\"u\":\"celsius\",\"n\":null})");
    expect("<|tool_call>call:f{<|\"|>k<|\"|>:<|\"|>\\u00e9<|\"|>}<tool_call|>",
           "call(f {\"k\":\"\\\\u00e9\"})");
    expect("<|tool_call>call:f{a:1e999,b:12345678901234567890,c:01,d:1.}<tool_call|>",
           "call(f {\"a\":\"1e999\",\"b\":\"12345678901234567890\",\"c\":\"01\",\"d\":\"1.\"})");
}

static void test_broken_calls(void **state) {
    static const char *const bodies[] = {"",
                                         "call:",
                                         "call:f",
                                         "call:f{",
                                         "call:f{a}",
                                         "call:f{a:}",
                                         "call:f{a:1,}",
                                         "call:f{a:[1}",
                                         "call:f{a:1}}",
                                         "call:f{a:1}b",
                                         "f{}",
                                         "call:{}",
                                         "call:a b{}",
                                         "call:f{a:1 b:2{}}",
                                         "call:f{:1}",
                                         "call:f{a:<|\"|>x}",
                                         "call:f{a:\"x}",
                                         "call:f{a:1:2{}"};
    char text[200], want[200];
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        snprintf(text, sizeof text, "<|tool_call>%s<tool_call|>", bodies[i]);
        snprintf(want, sizeof want, "broken(%s)", bodies[i]);
        expect(text, want);
        snprintf(text, sizeof text, "<|tool_call>%s", bodies[i]); /* cut */
        expect(text, want);
    }
}

static void test_nesting(void **state) {
    char text[400] = "<|tool_call>call:f{a:";
    (void)state;
    for (int deep = 60; deep <= 70; deep += 10) {
        size_t at = strlen("<|tool_call>call:f{a:");
        for (int i = 0; i < deep; i++) text[at++] = '[';
        for (int i = 0; i < deep; i++) text[at++] = ']';
        snprintf(text + at, sizeof text - at, "}<tool_call|>");
        bool bad;
        char *got = parts_of_text(NULL, text, strlen(text), 0, &bad);
        assert_false(bad);
        assert_int_equal(strncmp(got, "call(", 5) == 0, deep == 60);
        free(got);
    }
}

/* Plain tokens that spell a mark are text; they pass for one where there is only text. */
static void test_marks_are_tokens(void **state) {
    static const char text[] = "Write <|channel>thought\nx<channel|> so.";
    const kk_answer_opts opts = {.tok = tok};
    int32_t *ids;
    size_t n;
    bool bad;
    (void)state;
    assert_int_equal(kk_encode(tok, text, strlen(text), 0, &ids, &n, NULL), KK_OK);
    char *got = parts_of_tokens(&opts, ids, n, &bad);
    assert_string_equal(got, "text(Write <|channel>thought\nx<channel|> so.)");
    free(got);
    kk_free(ids);
    expect_text(&opts, text, 0, "text(Write ) thought(x) text(so.)");
}

static void test_raw(void **state) {
    const kk_answer_opts opts = {.tok = tok, .raw = true};
    int32_t *ids;
    size_t n;
    bool bad;
    static const char text[] = "  <|channel>thought\nx<channel|>\n";
    (void)state;
    expect_text(&opts, text, 0, "text(  <|channel>thought\nx<channel|>\n)");
    assert_int_equal(kk_encode(tok, text, strlen(text), KK_ENCODE_SPECIAL, &ids, &n, NULL), KK_OK);
    char *got = parts_of_tokens(&opts, ids, n, &bad);
    assert_string_equal(got, "text(  thought\nx\n)");
    free(got);
    kk_free(ids);
}

static void test_stops(void **state) {
    static const char *const stops[] = {"aab", "END", "\n\n"};
    const kk_answer_opts opts = {.tok = tok, .stops = stops, .n_stops = 3};
    (void)state;
    expect_with(&opts, "one EN two ENDED", "text(one EN two )");
    expect_with(&opts, "aaab aab", "text(a)"); /* the start of the stop begins again inside it */
    expect_with(&opts, "aa", "text(aa)");      /* never came */
    expect_with(&opts, "END", "");
    expect_with(&opts, "\n\nHello", "text(Hello)"); /* before the answer there is nothing to end */
    expect_with(&opts, "Hello\n\nyou", "text(Hello)");
    expect_with(&opts, "<|channel>thought\nEND\n\nhm<channel|>One\n\nTwo",
                "thought(END\n\nhm) text(One)");
    expect_with(&opts, "EN<|tool_call>call:f{a:<|\"|>END<|\"|>}<tool_call|>DxEND",
                "text(EN) call(f {\"a\":\"END\"}) text(Dx)");
}

static void test_stopped(void **state) {
    static const char *const stops[] = {"END"}, *const empty[] = {"a", ""};
    kk_answer_opts opts = {.stops = stops, .n_stops = 1};
    const kk_answer_span *spans;
    kk_answer *a;
    kk_err err;
    size_t n;
    (void)state;
    assert_int_equal(kk_answer_new(&a, &opts, &err), KK_OK);
    assert_int_equal(kk_answer_push(a, 5, &spans, &n, &err), KK_EINVAL); /* no tokenizer */
    assert_int_equal(kk_answer_push_text(a, "xEN", 3, &spans, &n, &err), KK_OK);
    assert_int_equal(n, 1);
    assert_int_equal(spans[0].len, 1);
    assert_false(kk_answer_stopped(a));
    assert_int_equal(kk_answer_push_text(a, "Dy", 2, &spans, &n, &err), KK_OK);
    assert_int_equal(n, 0);
    assert_true(kk_answer_stopped(a));
    assert_int_equal(kk_answer_push_text(a, "<|tool_call>", 12, &spans, &n, &err), KK_OK);
    assert_int_equal(kk_answer_finish(a, &spans, &n, &err), KK_OK);
    assert_int_equal(n, 0);
    kk_answer_free(a);
    opts = (kk_answer_opts){.stops = empty, .n_stops = 2};
    assert_int_equal(kk_answer_new(&a, &opts, &err), KK_EINVAL);
    assert_null(a);
    assert_non_null(strstr(err.msg, "empty"));
}

/* Half a character is not handed out. */
static void test_whole_characters(void **state) {
    const kk_answer_span *spans;
    kk_answer *a;
    size_t n;
    (void)state;
    assert_int_equal(kk_answer_new(&a, NULL, NULL), KK_OK);
    assert_int_equal(kk_answer_push_text(a, "a\xf0\x9f", 3, &spans, &n, NULL), KK_OK);
    assert_int_equal(spans[0].len, 1);
    assert_int_equal(kk_answer_push_text(a, "\xa6", 1, &spans, &n, NULL), KK_OK);
    assert_int_equal(n, 0);
    assert_int_equal(kk_answer_push_text(a, "\x99", 1, &spans, &n, NULL), KK_OK);
    assert_int_equal(spans[0].len, 4);
    assert_int_equal(spans[0].part, 0);
    kk_answer_free(a);
}

/* The one call of these tokens of a conversation. */
static void check_call(const int32_t *ids, size_t n_ids, const json_t *function) {
    const kk_answer_opts opts = {.tok = tok};
    const kk_answer_span *spans;
    size_t n, calls = 0;
    kk_answer *a;
    assert_int_equal(kk_answer_new(&a, &opts, NULL), KK_OK);
    for (size_t i = 0; i < n_ids; i++) {
        assert_int_equal(kk_answer_push(a, ids[i], &spans, &n, NULL), KK_OK);
        for (size_t k = 0; k < n; k++, calls++) {
            assert_int_equal(spans[k].kind, KK_ANSWER_CALL);
            assert_non_null(spans[k].name);
            assert_string_equal(spans[k].name,
                                json_string_value(json_object_get(function, "name")));
            json_t *back = json_loads(spans[k].arguments, 0, NULL);
            if (!json_equal(back, json_object_get(function, "arguments")))
                fail_msg("it came back as %s", spans[k].arguments);
            json_decref(back);
        }
    }
    assert_int_equal(calls, 1);
    kk_answer_free(a);
}

/* Every call of the reference's conversations reads back as the arguments it was written from. */
static void check_calls(const json_t *message, size_t *calls) {
    size_t k, n, at = 0;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
        json_t *function = json_object_get(call, "function");
        if (!json_is_object(json_object_get(function, "arguments"))) continue;
        json_t *one =
            json_pack("{s:[{s:s, s:s}, {s:s, s:[{s:O}]}]}", "messages", "role", "user", "content",
                      "x", "role", "assistant", "tool_calls", "function", function);
        char *json = json_dumps(one, 0);
        int32_t *ids;
        assert_int_equal(kk_chat_encode(tok, json, strlen(json), &ids, &n, NULL), KK_OK);
        for (at = 0; at < n && ids[at] != 48;) at++; /* <|tool_call> */
        check_call(ids + at, n - at, function);
        kk_free(ids);
        free(json);
        json_decref(one);
        ++*calls;
    }
}

static void test_reference_calls(void **state) {
    static const char *const files[] = {"chat.jsonl", "chat_more.jsonl"};
    size_t calls = 0, len, i;
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        char *all = data_read(files[f], &len), *at = all;
        json_t *line, *message;
        while ((line = next_line(&at))) {
            json_array_foreach(json_object_get(line, "messages"), i, message)
                check_calls(message, &calls);
            json_decref(line);
        }
        free(all);
    }
    assert_true(calls > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_thought),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_slips),
        cmocka_unit_test(test_broken_calls),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_marks_are_tokens),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_whole_characters),
        cmocka_unit_test(test_reference_calls),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
