/* serve_request_test.c - the JSON of a request becomes options, or a fault that names the member
 * which is wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/request.h"

static const request_defaults chat = {.chat = true,
                                      .sampling = {.temp = 1, .top_k = 64, .top_p = 0.95f},
                                      .max_messages = 3,
                                      .max_choices = 4,
                                      .vocab = 100};

static request_defaults plain(void) {
    request_defaults d = chat;
    d.chat = false;
    return d;
}

#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"

static void test_refused(void **state) {
    static const struct {
        bool chat;
        const char *body;
        int status;
        const char *param;
    } cases[] = {
        {true, "", 400, ""},
        {true, "{\"messages\": ", 400, ""},
        {true, "\"x\"", 400, ""},
        {true, "{}", 400, "messages"},
        {true, "{\"messages\": [{}, {}, {}, {}]}", 400, "messages"},
        {true, "{\"messages\": [1]}", 400, "messages[0]"},
        {true, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"content\": \"x\"}]}",
         400, "messages[1]"},
        {true, "{" MESSAGES ", \"stream\": 1}", 400, "stream"},
        {true, "{" MESSAGES ", \"n\": 5}", 400, "n"},
        {true, "{" MESSAGES ", \"n\": 1.5}", 400, "n"},
        {true, "{" MESSAGES ", \"max_tokens\": -1}", 400, "max_tokens"},
        {true, "{" MESSAGES ", \"max_completion_tokens\": 99999999999}", 400,
         "max_completion_tokens"},
        {true, "{" MESSAGES ", \"top_p\": 1.01}", 400, "top_p"},
        {true, "{" MESSAGES ", \"top_k\": -2}", 400, "top_k"},
        {true, "{" MESSAGES ", \"min_p\": true}", 400, "min_p"},
        {true, "{" MESSAGES ", \"seed\": 1.5}", 400, "seed"},
        {true, "{" MESSAGES ", \"stop\": 3}", 400, "stop"},
        {true, "{" MESSAGES ", \"stop\": \"a\\u0000b\"}", 400, ""},
        {true, "{" MESSAGES ", \"logit_bias\": []}", 400, "logit_bias"},
        {true, "{" MESSAGES ", \"logit_bias\": {\"100\": 1}}", 400, "logit_bias"},
        {true, "{" MESSAGES ", \"logit_bias\": {\"1\": \"x\"}}", 400, "logit_bias"},
        {true, "{" MESSAGES ", \"logprobs\": 3}", 400, "logprobs"},
        {true, "{" MESSAGES ", \"stream\": true, \"stream_options\": {\"include_usage\": 1}}", 400,
         "stream_options.include_usage"},
        {true, "{" MESSAGES ", \"response_format\": {\"type\": \"json_schema\"}}", 501,
         "response_format"},
        {true, "{" MESSAGES ", \"response_format\": \"text\"}", 400, "response_format"},
        {true, "{" MESSAGES ", \"tool_choice\": {\"type\": \"function\"}}", 501, "tool_choice"},
        {true, "{" MESSAGES ", \"tool_choice\": \"maybe\"}", 400, "tool_choice"},
        {true, "{" MESSAGES ", \"tools\": [{\"function\": {}}]}", 400, "tools"},
        {true, "{" MESSAGES ", \"chat_template_kwargs\": {\"enable_thinking\": 1}}", 400,
         "chat_template_kwargs.enable_thinking"},
        {false, "{\"prompt\": 5}", 400, "prompt"},
        {false, "{\"prompt\": [1, \"a\"]}", 400, "prompt"},
        {false, "{\"prompt\": [1, 100]}", 400, "prompt"},
        {false, "{\"prompt\": [\"a\", []]}", 400, "prompt"},
        {false, "{\"prompt\": [\"a\", \"b\"], \"n\": 3}", 400, "n"},
        {false, "{\"prompt\": \"a\", \"logprobs\": 21}", 400, "logprobs"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const request_defaults d = cases[i].chat ? chat : plain();
        request r;
        fault f = {0};
        if (request_parse(&r, cases[i].body, strlen(cases[i].body), &d, &f))
            fail_msg("taken: %s", cases[i].body);
        if (f.status != cases[i].status || strcmp(f.param, cases[i].param) != 0 || !f.message[0])
            fail_msg("%s: %d '%s' %s", cases[i].body, f.status, f.param, f.message);
        json_t *envelope = fault_json(&f);
        assert_true(json_is_string(json_object_get(json_object_get(envelope, "error"), "message")));
        json_decref(envelope);
        request_free(&r);
    }
}

static void parse(request *r, const request_defaults *d, const char *body) {
    fault f = {0};
    if (!request_parse(r, body, strlen(body), d, &f)) fail_msg("%s: %s", body, f.message);
}

static void test_defaults(void **state) {
    request r;
    (void)state;
    parse(&r, &chat, "{" MESSAGES ", \"unknown\": {}, \"stop\": null, \"temperature\": null}");
    assert_true(r.chat && !r.stream && !r.think && !r.seeded && !r.one_call);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.max_tokens, 0);
    assert_int_equal(r.logprobs, -1);
    assert_true(r.sampling.temp == 1 && r.sampling.top_k == 64 && r.sampling.top_p == 0.95f);
    assert_null(r.tools);
    request_free(&r);
}

static void test_values(void **state) {
    request r;
    (void)state;
    parse(&r, &chat,
          "{" MESSAGES ", \"stream\": true, \"stream_options\": {\"include_usage\": true},"
          " \"max_tokens\": 5, \"max_completion_tokens\": 7, \"temperature\": 0, \"top_p\": 0,"
          " \"top_k\": -1, \"seed\": 42, \"stop\": [\"a\", \"bc\"], \"n\": 4,"
          " \"logprobs\": true, \"top_logprobs\": 2, \"logit_bias\": {\"7\": -100, \"8\": 1.5},"
          " \"tools\": [{\"function\": {\"name\": \"f\"}}], \"parallel_tool_calls\": false,"
          " \"reasoning_effort\": \"low\"}");
    assert_true(r.stream && r.include_usage && r.seeded && r.one_call && r.think);
    assert_int_equal(r.max_tokens, 7);
    assert_true(r.sampling.temp == 0 && r.sampling.top_k == 0 && r.sampling.seed == 42);
    assert_true(r.sampling.top_p > 0 && r.sampling.top_p < 1e-3f); /* 0 would be off */
    assert_int_equal(r.n_stops, 2);
    assert_string_equal(r.stops[1], "bc");
    assert_int_equal(r.logprobs, 2);
    assert_int_equal(r.n_bias, 2);
    assert_true(r.bias[0].id == 7 && isinf(r.bias[0].bias) && r.bias[1].bias == 1.5f);
    assert_int_equal(json_array_size(r.tools), 1);
    request_free(&r);

    parse(&r, &chat,
          "{" MESSAGES ", \"tools\": [{\"function\": {\"name\": \"f\"}}],"
          " \"tool_choice\": \"none\", \"reasoning_effort\": \"none\","
          " \"chat_template_kwargs\": {\"enable_thinking\": true}}");
    assert_true(!r.tools && r.think);
    request_free(&r);
}

static void test_prompts(void **state) {
    const request_defaults d = plain();
    request r;
    (void)state;
    parse(&r, &d, "{\"prompt\": [[1, 2], \"x\"], \"n\": 2, \"echo\": true}");
    assert_true(r.echo);
    request_free(&r);
    parse(&r, &d, "{\"prompt\": [0, 99], \"n\": 4, \"logprobs\": 0}");
    assert_int_equal(r.logprobs, 0);
    request_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
