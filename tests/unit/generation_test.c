/* generation_test.c - an answer reaches the client in parts: thoughts, text and calls, streamed or
 * whole, with no character cut; a thought that the prompt opened goes on; a client that lags is
 * given up, and silence is broken by comments. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/generation.h"
#include "server/server.h"
#include "support/shared_tokenizer.h"

typedef struct {
    kk_serve_opts opts;
    server server;
    request request;
    wire wire;
    exchange *x;
    generation g;
} world;

static void open_world(world *w, bool chat, bool stream) {
    *w = (world){.opts = {.stream_buffer = 1 << 20, .request_s = 100, .ping_s = 100}};
    w->server.opts = &w->opts;
    w->server.tok = tok;
    w->request.logprobs = -1;
    wire_open(&w->wire, chat, stream, false);
    w->wire.model = w->wire.fingerprint = "x";
    w->x = exchange_new(&w->server, NULL, -1);
    assert_non_null(w->x);
    if (stream) exchange_stream(w->x);
    w->g = (generation){.server = &w->server,
                        .x = w->x,
                        .request = &w->request,
                        .wire = &w->wire,
                        .finish = FINISH_KINDS};
}

static void close_world(world *w) {
    generation_close(&w->g);
    exchange_release(w->x);
}

static int32_t *encode(const char *text, size_t *n) {
    int32_t *ids;
    assert_int_equal(kk_encode(tok, text, strlen(text), KK_ENCODE_SPECIAL, &ids, n, NULL), KK_OK);
    return ids;
}

/* Pushes the answer's tokens, as if the model wrote them; stops where it would. */
static bool write_answer(world *w, const char *prompt, const char *answer) {
    size_t n_prompt, n;
    int32_t *before = encode(prompt, &n_prompt), *ids = encode(answer, &n);
    kk_err err;
    assert_int_equal(generation_open(&w->g, before, n_prompt, &err), KK_OK);
    bool on = true;
    for (size_t i = 0; i < n && on; i++) on = generation_token(&w->g, ids[i]);
    if (w->g.finish == FINISH_KINDS) w->g.finish = w->g.n_calls ? FINISH_CALLS : FINISH_STOP;
    kk_free(before);
    kk_free(ids);
    return generation_end(&w->g);
}

/* What a stream has said so far: each kind of delta between marks of its own. */
static void read_stream(world *w, char *out, size_t cap) {
    static char bytes[1 << 18];
    const size_t n = outbox_take(&w->x->out, bytes, sizeof bytes - 1);
    bytes[n] = '\0';
    out[0] = '\0';
    for (char *at = bytes, *end; (end = strstr(at, "\n\n")); at = end + 2) {
        if (at[0] == ':') continue;
        json_t *chunk = json_loadb(at + 6, (size_t)(end - at - 6), 0, NULL);
        assert_non_null(chunk); /* JSON, and so UTF-8 */
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const json_t *delta = json_object_get(choice, "delta");
        const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
        const json_t *function = json_object_get(call, "function");
        const char *text = json_string_value(json_object_get(delta, "content"));
        const char *thought = json_string_value(json_object_get(delta, "reasoning_content"));
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *arguments = json_string_value(json_object_get(function, "arguments"));
        const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
        const size_t len = strlen(out);
        snprintf(out + len, cap - len, "%s%s%s%s%s%s%s%s%s", thought ? "~" : "",
                 thought ? thought : "", text ? text : "", name ? "@" : "", name ? name : "",
                 arguments ? arguments : "", finish ? " [" : "", finish ? finish : "",
                 finish ? "]" : "");
        json_decref(chunk);
    }
}

static void expect(const char *prompt, const char *answer, const char *want) {
    char got[4096];
    world w;
    open_world(&w, true, true);
    assert_true(write_answer(&w, prompt, answer));
    read_stream(&w, got, sizeof got);
    /* Thoughts come in many deltas: their marks are taken out but the first. */
    char *to = strchr(got, '~');
    if (to)
        for (char *from = ++to; (*to = *from); from++) to += *from != '~';
    assert_string_equal(got, want);
    close_world(&w);
}

static void test_streamed(void **state) {
    (void)state;
    expect("", "Hello you<turn|>", "Hello you [stop]");
    expect("", "na\xc3\xafve \xf0\x9f\xa6\x99 \xe4\xbd\xa0\xe5\xa5\xbd<turn|>",
           "na\xc3\xafve \xf0\x9f\xa6\x99 \xe4\xbd\xa0\xe5\xa5\xbd [stop]");
    expect("", "<|channel>thought\nHm, so.\n<channel|>Yes.<turn|>", "~Hm, so.Yes. [stop]");
    /* The prompt has opened the channel; one that it has shut again is no concern. */
    expect("<|turn>model\n<|channel>thought\n", "Hm, so.\n<channel|>Yes.", "~Hm, so.Yes. [stop]");
    expect("<|turn>model\n<|channel>thought\nI ", "see.<channel|>Yes.", "~see.Yes. [stop]");
    expect("<|turn>model\n<|channel>thought\n<channel|>", "Yes.", "Yes. [stop]");
    expect("<|channel>thought\nx<turn|>\n<|turn>model\n", "Yes.", "Yes. [stop]");
    expect("", "<|tool_call>call:add{a:1,b:<|\"|>x<|\"|>}<tool_call|><|tool_response>",
           "@add{\"a\":1,\"b\":\"x\"} [tool_calls]");
    expect("", "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>",
           "@f{}@g{} [tool_calls]");
}

static void test_whole(void **state) {
    world w;
    (void)state;
    open_world(&w, true, false);
    assert_true(write_answer(&w, "",
                             "<|channel>thought\nHm.\n<channel|>I call."
                             "<|tool_call>call:f{a:1}<tool_call|>"));
    json_t *choice = generation_choice(&w.g), *message = json_object_get(choice, "message");
    const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_string_equal(json_string_value(json_object_get(message, "reasoning_content")), "Hm.");
    assert_string_equal(json_string_value(json_object_get(message, "content")), "I call.");
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "tool_calls");
    assert_memory_equal(json_string_value(json_object_get(call, "id")), "call_", 5);
    assert_true(w.g.reasoning >= 2 && w.g.reasoning < w.g.n_tokens);
    json_decref(choice);
    close_world(&w);
}

static void test_one_call(void **state) {
    char got[1024];
    world w;
    (void)state;
    open_world(&w, true, true);
    w.request.one_call = true;
    assert_true(
        write_answer(&w, "", "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>"));
    read_stream(&w, got, sizeof got);
    assert_string_equal(got, "@f{} [tool_calls]");
    close_world(&w);
}

static void test_stop_text(void **state) {
    char got[1024];
    world w;
    (void)state;
    open_world(&w, true, true);
    w.request.stops[w.request.n_stops++] = "three";
    assert_true(write_answer(&w, "", "one two three four"));
    read_stream(&w, got, sizeof got);
    assert_string_equal(got, "one two  [stop]");
    close_world(&w);
}

static void test_lagging_client(void **state) {
    world w;
    (void)state;
    open_world(&w, true, true);
    w.x->out.limit = 1000;
    assert_false(write_answer(&w, "", "one two three four five six seven eight nine ten"));
    assert_int_equal(w.g.finish, FINISH_SLOW);
    assert_true(w.x->out.len <= 1000 && exchange_left(w.x));
    assert_true(exchange_read(w.x, (char[8]){0}, 8) < 0); /* nothing half is sent */
    close_world(&w);
}

static void test_time(void **state) {
    world w;
    (void)state;
    open_world(&w, true, true);
    w.x->started -= 200;
    assert_false(write_answer(&w, "", "one two"));
    assert_int_equal(w.g.finish, FINISH_TIMEOUT);
    assert_int_equal(w.g.failed.status, 504);
    close_world(&w);

    open_world(&w, true, true);
    atomic_store(&w.server.cancelled, true);
    assert_false(write_answer(&w, "", "one two"));
    assert_int_equal(w.g.failed.status, 503);
    close_world(&w);
}

static void test_comments(void **state) {
    char got[64];
    world w;
    (void)state;
    open_world(&w, true, true);
    assert_true(generation_goes_on(&w.g));
    assert_int_equal(w.x->out.len, 0);
    w.x->last_write -= 200;
    assert_true(generation_goes_on(&w.g));
    const long n = exchange_read(w.x, got, sizeof got);
    assert_true(n > 3 && got[0] == ':' && memcmp(got + n - 2, "\n\n", 2) == 0);
    assert_true(generation_goes_on(&w.g)); /* and not again at once */
    assert_int_equal(w.x->out.len, 0);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streamed),       cmocka_unit_test(test_whole),
        cmocka_unit_test(test_one_call),       cmocka_unit_test(test_stop_text),
        cmocka_unit_test(test_lagging_client), cmocka_unit_test(test_time),
        cmocka_unit_test(test_comments),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
