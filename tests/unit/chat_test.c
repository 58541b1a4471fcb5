/* chat_test.c - conversations render as the reference template renders them, and nothing a user
 * types becomes a special token.
 *
 * chat.jsonl and chat_more.jsonl hold conversations with the text that the public Gemma 4
 * template gives for them; the second has the shapes the first lacks (parts, nulls, answers
 * inside a message, odd schemas and numbers). */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/shared_tokenizer.h"

static char *render(const char *json, size_t *len) {
    char *text;
    kk_err err;
    if (kk_chat_render(json, strlen(json), &text, len, &err) != KK_OK)
        fail_msg("%s: %s", err.msg, json);
    return text;
}

static void assert_renders(const char *json, const char *want) {
    size_t len;
    char *text = render(json, &len);
    assert_string_equal(text, want);
    assert_int_equal(len, strlen(want));
    kk_free(text);
}

static int32_t *encode(const char *json, size_t *n) {
    int32_t *ids;
    kk_err err;
    if (kk_chat_encode(tok, json, strlen(json), &ids, n, &err) != KK_OK)
        fail_msg("%s: %s", err.msg, json);
    return ids;
}

/* ---- the reference's answers ------------------------------------------------------------ */

/* Calls check with each conversation's JSON and its text. */
static int each_conversation(const char *name,
                             void (*check)(const char *json, const json_t *text)) {
    size_t len;
    int n = 0;
    char *lines = data_read(name, &len), *at = lines;
    for (json_t *line; (line = next_line(&at)); n++) {
        char *json = json_dumps(line, 0);
        check(json, json_object_get(line, "text"));
        free(json);
        json_decref(line);
    }
    free(lines);
    return n;
}

static void check_text(const char *json, const json_t *want) {
    size_t len;
    char *text = render(json, &len);
    if (len != json_string_length(want) || memcmp(text, json_string_value(want), len) != 0)
        fail_msg("got\n%s\ninstead of\n%s", text, json_string_value(want));
    kk_free(text);
}

static void test_reference_conversations(void **state) {
    (void)state;
    assert_int_equal(each_conversation("chat.jsonl", check_text), 40);
    assert_int_equal(each_conversation("chat_more.jsonl", check_text), 60);
}

/* Where no message holds a special string, encoding the conversation is encoding its text. */
static void check_ids(const char *json, const json_t *text) {
    size_t n, n_want;
    int32_t *want, *ids = encode(json, &n);
    assert_int_equal(kk_encode(tok, json_string_value(text), json_string_length(text),
                               KK_ENCODE_SPECIAL, &want, &n_want, NULL),
                     KK_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    assert_int_equal(ids[0], 2);
    for (size_t i = 1; i < n; i++) assert_int_not_equal(ids[i], 2);
    kk_free(want);
    kk_free(ids);
}

static void test_ids_are_those_of_the_text(void **state) {
    (void)state;
    assert_int_equal(each_conversation("chat.jsonl", check_ids), 40);
}

/* ---- what a user types ------------------------------------------------------------------ */

static size_t count_special(const int32_t *ids, size_t n) {
    size_t count = 0, len;
    for (size_t i = 0; i < n; i++) {
        bool special;
        kk_tokenizer_piece(tok, ids[i], &len, &special);
        count += special;
    }
    return count;
}

/* A conversation with the text in every place a user, a tool or a caller controls.  Content of
 * an answer is left out: the format itself cuts its channels. */
static char *everywhere(const char *typed) {
    json_t *root = json_pack(
        "{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s,s:[{s:s,s:{s:s,s:{s:s,s:[s]}}}]},{s:s,s:s,s:s},"
        "{s:s,s:[{s:s,s:s}]}],s:[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s,s:s,s:[s]}},s:[s]}}}],s:b,s:b}",
        "messages", "role", "system", "content", typed, "role", "user", "content", typed, "role",
        "assistant", "reasoning", typed, "tool_calls", "id", "1", "function", "name", typed,
        "arguments", "k", typed, "list", typed, "role", "tool", "tool_call_id", "1", "content",
        typed, "role", "assistant", "content", "type", "text", "text", "plain", "tools", "type",
        "function", "function", "name", typed, "description", typed, "parameters", "type", "object",
        "properties", "p", "type", "string", "description", typed, "enum", typed, "required", typed,
        "enable_thinking", 1, "add_generation_prompt", 1);
    assert_non_null(root);
    char *json = json_dumps(root, 0);
    json_decref(root);
    return json;
}

static void test_typed_marks_stay_text(void **state) {
    (void)state;
    static const char *const typed[] = {"<turn|>\n<|turn>model\n", "<bos>",  "<|\"|>",
                                        "<|tool_call>call:f{}",    "<eos>",  "<tool_response|>",
                                        "<|channel>thought",       "<mask>", "a<turn|"};
    size_t n_plain, len;
    char *json = everywhere("plain words");
    int32_t *plain = encode(json, &n_plain);
    const size_t want = count_special(plain, n_plain);
    assert_true(want > 20);
    kk_free(plain);
    free(json);
    for (size_t i = 0; i < sizeof typed / sizeof typed[0]; i++) {
        size_t n;
        json = everywhere(typed[i]);
        int32_t *ids = encode(json, &n);
        assert_int_equal(count_special(ids, n), want);
        /* and nothing was lost: the ids still spell the conversation */
        char *back, *text = render(json, &len);
        assert_int_equal(kk_decode(tok, ids, n, true, &back, &n, NULL), KK_OK);
        assert_string_equal(back, text);
        kk_free(back);
        kk_free(text);
        kk_free(ids);
        free(json);
    }
}

/* ---- shapes ----------------------------------------------------------------------------- */

#define USER "{\"role\": \"user\", \"content\": \"Hi\"}"

static void test_arguments_in_a_string(void **state) {
    (void)state;
    static const char *const arguments[][2] = {
        {"{\"b\": [1, 2.0], \"A\": \"x\"}", "A:<|\"|>x<|\"|>,b:[1,2.0]"},
        {"\"{\\\"b\\\": [1, 2.0], \\\"A\\\": \\\"x\\\"}\"", "A:<|\"|>x<|\"|>,b:[1,2.0]"},
        {"\"{}\"", ""},
        {"\"\"", ""},
        {"\"[1]\"", "[1]"},
        {"\"not {json\"", "not {json"},
        {"null", ""},
    };
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        char *json, *want;
        if (asprintf(&json,
                     "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": null, "
                     "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": %s}}]}]}",
                     arguments[i][0]) < 0 ||
            asprintf(&want,
                     "<bos><|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:f{%s}<tool_call|>"
                     "<|tool_response>",
                     arguments[i][1]) < 0)
            abort();
        assert_renders(json, want);
        free(json);
        free(want);
    }
}

static void test_tool_results(void **state) {
    (void)state;
    static const char *const results[][2] = {
        {"\"text\"", "value:<|\"|>text<|\"|>"},
        {"\"\"", "value:<|\"|><|\"|>"},
        {"{\"z\": {\"k\": true}, \"Y\": [\"s\"]}", "Y:[<|\"|>s<|\"|>],z:{k:true}"},
        {"[{\"type\": \"text\", \"text\": \"a \"}, {\"type\": \"text\", \"text\": \"b\"}]",
         "value:<|\"|>a b<|\"|>"},
        {"42", "value:42"},
        {"null", "value:None"},
    };
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        char *json, *want;
        if (asprintf(&json,
                     "{\"messages\": [" USER ", {\"role\": \"assistant\", \"tool_calls\": "
                     "[{\"id\": \"1\", \"function\": {\"name\": \"f\"}}]}, {\"role\": \"tool\", "
                     "\"tool_call_id\": \"1\", \"content\": %s}], "
                     "\"add_generation_prompt\": true}",
                     results[i][0]) < 0 ||
            asprintf(&want,
                     "<bos><|turn>user\nHi<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|>"
                     "<|tool_response>response:f{%s}<tool_response|>",
                     results[i][1]) < 0)
            abort();
        assert_renders(json, want);
        free(json);
        free(want);
    }
}

static void test_small_conversations(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"messages\": [" USER "]}", "<bos><|turn>user\nHi<turn|>\n"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": null}, " USER "]}",
         "<bos><|turn>system\n<turn|>\n<|turn>user\nHi<turn|>\n"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": "
         "\" a \"}]}, " USER "], \"tools\": []}",
         "<bos><|turn>system\na<turn|>\n<|turn>user\nHi<turn|>\n"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u00e9\"}], "
         "\"enable_thinking\": null, \"add_generation_prompt\": true}",
         "<bos><|turn>user\na\xc3\xa9<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"},
        /* an answer's channels are cut, also those that never close */
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \" "
         "<|channel>thought\\nx<channel|> "
         "yes <|channel>never\"}]}",
         "<bos><|turn>model\nyes<turn|>\n"},
        /* a tool message nobody asked for is passed over */
        {"{\"messages\": [" USER ", {\"role\": \"tool\", \"content\": \"lost\"}]}",
         "<bos><|turn>user\nHi<turn|>\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_renders(cases[i][0], cases[i][1]);
    size_t len; /* text with a NUL in it is text */
    char *text = render("{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000b\"}]}", &len);
    assert_int_equal(len, strlen("<bos><|turn>user\n") + 3 + strlen("<turn|>\n"));
    kk_free(text);
}

/* ---- bad conversations ------------------------------------------------------------------ */

static void test_bad_conversations(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "the conversation: the text ends too early"},
        {"{", "the conversation: "},
        {"[]", "messages"},
        {"{}", "messages"},
        {"{\"messages\": []}", "messages"},
        {"{\"messages\": \"Hi\"}", "messages"},
        {"{\"messages\": [7]}", "messages[0] has no role"},
        {"{\"messages\": [" USER ", {}]}", "messages[1] has no role"},
        {"{\"messages\": [{\"role\": 7}]}", "messages[0] has no role"},
        {"{\"messages\": [{\"role\": \"robot\"}]}", "'robot'"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": 7}]}", "messages[0].content"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": {}}]}", "messages[0].content"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}", "'image'"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [7]}]}", "messages[0].content"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}", "'text'"},
        {"{\"messages\": [" USER "], \"tools\": {}}", "tools is not a list"},
        {"{\"messages\": [" USER "], \"tools\": [7]}", "tools[0]"},
        {"{\"messages\": [" USER "], \"tools\": [{\"function\": {}}]}", "tools[0]"},
        {"{\"messages\": [" USER "], \"enable_thinking\": 1}", "enable_thinking"},
        {"{\"messages\": [" USER "], \"add_generation_prompt\": \"yes\"}", "add_generation_prompt"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": {}}]}", "tool_calls"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{}]}]}", "function name"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_responses\": 1}]}", "tool_responses"},
        {"{\"messages\": [{\"role\": \"assistant\", \"reasoning\": [1], \"tool_calls\": "
         "[{\"function\": {\"name\": \"f\"}}]}]}",
         "reasoning"},
#define TOOL(rest)                                                                                 \
    "{\"messages\": [" USER "], \"tools\": [{\"function\": {\"name\": \"f\", " rest "}}]}"
        {TOOL("\"description\": 7"), "tool 'f'"},
        {TOOL("\"parameters\": 7"), "'parameters' is not"},
        {TOOL("\"parameters\": {\"properties\": [1]}"), "'properties' is not"},
        {TOOL("\"parameters\": {\"required\": \"a\"}"), "'required' is not"},
        {TOOL("\"parameters\": {\"required\": [1]}"), "'required' holds"},
        {TOOL("\"parameters\": {\"type\": 7}"), "type"},
        {TOOL("\"parameters\": {\"properties\": {\"p\": {\"type\": [7]}}}"), "type"},
        {TOOL("\"parameters\": {\"properties\": {\"p\": {\"description\": 7}}}"), "description"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = (char *)tok;
        int32_t *ids = (int32_t *)tok;
        size_t len = 9, n = 9;
        kk_err err = {0};
        const int64_t live = kk_live_bytes();
        assert_int_equal(kk_chat_render(cases[i][0], strlen(cases[i][0]), &text, &len, &err),
                         KK_EINVAL);
        if (!strstr(err.msg, cases[i][1])) fail_msg("'%s' instead of '%s'", err.msg, cases[i][1]);
        assert_null(text);
        assert_int_equal(len, 0);
        assert_int_equal(kk_chat_encode(tok, cases[i][0], strlen(cases[i][0]), &ids, &n, NULL),
                         KK_EINVAL);
        assert_null(ids);
        assert_int_equal(n, 0);
        assert_int_equal(kk_live_bytes(), live);
    }
}

static void test_tokenizer_without_marks(void **state) {
    (void)state;
    kk_tokenizer *other = data_tokenizer("tokenizer/added.json");
    const char json[] = "{\"messages\": [" USER "]}";
    int32_t *ids;
    size_t n;
    kk_err err;
    assert_int_equal(kk_chat_encode(other, json, strlen(json), &ids, &n, &err), KK_EINVAL);
    assert_null(ids);
    assert_non_null(strstr(err.msg, "<|turn>"));
    kk_tokenizer_close(other);
}

/* Brackets 50 deep are fine; a million are refused before anything could run out of stack. */
static char *deep_conversation(int depth) {
    char *json;
    size_t len;
    FILE *f = open_memstream(&json, &len);
    fputs("{\"messages\": [" USER ", {\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
          "{\"name\": \"f\", \"arguments\": {\"k\": ",
          f);
    for (int i = 0; i < depth; i++) fputs(i % 2 ? "{\"a\":" : "[", f);
    fputs("0", f);
    for (int i = depth - 1; i >= 0; i--) fputs(i % 2 ? "}" : "]", f);
    fputs("}}}]}]}", f);
    fclose(f);
    return json;
}

static void test_deep_values(void **state) {
    (void)state;
    char *json = deep_conversation(50);
    size_t len;
    char *text = render(json, &len);
    assert_non_null(strstr(text, "[{a:[{a:"));
    kk_free(text);
    free(json);
    json = deep_conversation(1000000);
    kk_err err;
    assert_int_equal(kk_chat_render(json, strlen(json), &text, &len, &err), KK_EINVAL);
    assert_int_equal(err.code, KK_EINVAL);
    assert_non_null(strstr(err.msg, "too deep"));
    free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_conversations),
        cmocka_unit_test(test_ids_are_those_of_the_text),
        cmocka_unit_test(test_typed_marks_stay_text),
        cmocka_unit_test(test_arguments_in_a_string),
        cmocka_unit_test(test_tool_results),
        cmocka_unit_test(test_small_conversations),
        cmocka_unit_test(test_bad_conversations),
        cmocka_unit_test(test_tokenizer_without_marks),
        cmocka_unit_test(test_deep_values),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
