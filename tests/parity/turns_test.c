/* turns_test.c - five turns of a chat, with a drafter at work, past two windows.
 *
 * The template writes earlier answers again without their thoughts, so that every turn parts from
 * the timeline inside the last answer, where sliding layers may have dropped what is needed to go
 * back.  Checkpoints are what makes it cheap: a turn may evaluate the last answer, the new message
 * and 64 rows, and no more.  A plain session goes through the same chat and must say the same. */
#define _GNU_SOURCE
#include "support/lossless.h"
#include "support/tiny.h"

#define TINY KK_MODELS "/tiny"

enum { TURNS = 5, CTX = 4096, SPARE = 64, WINDOW = 512 };

typedef enum { PLAIN_TALK, THINKING, TOOLS, MODES } mode;

static const char tool[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"Looks up the "
    "weather of a town.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"town\":{\"type\":"
    "\"string\",\"description\":\"Its name.\"}},\"required\":[\"town\"]}}}]";

typedef struct {
    kk_session *s;
    const kk_tokenizer *tok;
    mode mode;
    json_t *messages;
    int32_t last_answer, message; /* tokens of the last answer and of the new message */
    int32_t read;                 /* rows evaluated to bring the session to this turn */
} chat;

static int32_t count(const kk_tokenizer *tok, const char *text) {
    int32_t *ids;
    size_t n;
    assert_ok(kk_encode(tok, text, strlen(text), 0, &ids, &n, why));
    kk_free(ids);
    return (int32_t)n;
}

static int32_t *render(const chat *c, bool generation_prompt, size_t *n) {
    int32_t *ids;
    json_t *o = json_pack("{s:O, s:b, s:b}", "messages", c->messages, "enable_thinking",
                          c->mode == THINKING, "add_generation_prompt", generation_prompt);
    if (c->mode == TOOLS) json_object_set_new(o, "tools", json_loads(tool, 0, NULL));
    char *text = json_dumps(o, 0);
    assert_ok(kk_chat_encode(c->tok, text, strlen(text), &ids, n, why));
    free(text);
    json_decref(o);
    return ids;
}

static size_t common(const int32_t *a, size_t na, const int32_t *b, size_t nb) {
    size_t n = 0;
    while (n < na && n < nb && a[n] == b[n]) n++;
    return n;
}

/* As `kakeya chat` does it: back to where the texts part, up to the generation prompt, a mark
 * there, and the generation prompt. */
static void bring(chat *c) {
    size_t n, n_base;
    int32_t *ids = render(c, true, &n), *base = render(c, false, &n_base);
    const size_t shared = common(ids, n, base, n_base);
    const size_t keep = common(c->s->tokens, (size_t)c->s->len, ids, n);
    assert_true(keep < shared && shared < n);
    assert_ok(kk_session_rewind(c->s, (int32_t)keep, &c->read, why));
    tiny_append(c->s, ids + keep, (int32_t)(shared - keep));
    assert_ok(kk_session_checkpoint(c->s, why));
    tiny_append(c->s, ids + shared, (int32_t)(n - shared));
    c->read += (int32_t)(n - keep);
    kk_free(ids);
    kk_free(base);
}

/* The visible part of an answer, as the next rendering will have it. */
static char *visible(const chat *c, const int32_t *ids, int32_t n) {
    char *text;
    size_t len;
    const int32_t close = kk_tokenizer_special(c->tok, "<channel|>");
    int32_t from = 0;
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == close) from = i + 1;
    assert_ok(kk_decode(c->tok, ids + from, (size_t)(n - from), false, &text, &len, why));
    return text;
}

static void say(chat *c, const char *role, const char *text) {
    json_array_append_new(c->messages, json_pack("{s:s, s:s}", "role", role, "content", text));
    c->message += count(c->tok, text);
}

/* The answer calls a tool, which replies at once. */
static void call_tool(chat *c) {
    json_array_append_new(c->messages, json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{s:s}}}]}",
                                                 "role", "assistant", "content", "", "tool_calls",
                                                 "id", "c1", "type", "function", "function", "name",
                                                 "weather", "arguments", "town", "Lisbon"));
    json_array_append_new(c->messages,
                          json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "tool_call_id", "c1",
                                    "name", "weather", "content", "sunny, 24 degrees"));
    c->message += count(c->tok, "call:weather{town:Lisbon} response:weather{sunny, 24 degrees}");
}

static kk_result answer(chat *c, int32_t turn) {
    /* One answer is long enough to push its own beginning out of the window. */
    const bool endless = turn == 2;
    const kk_generate_opts how = {.max_tokens = endless ? WINDOW + 80 : 60,
                                  .ignore_eos = endless,
                                  .sampling = {.temp = 0.7f, .seed = 3, .repeat_penalty = 1.1f}};
    kk_result r;
    const int32_t from = c->s->len;
    assert_ok(kk_generate(c->s, &how, NULL, NULL, &r, why));
    char *text = visible(c, c->s->tokens + from, r.n_tokens);
    json_array_append_new(c->messages,
                          json_pack("{s:s, s:s}", "role", "assistant", "content", text));
    kk_free(text);
    c->last_answer = r.n_tokens;
    return r;
}

static void next_turn(chat *c, int32_t turn) {
    const int32_t n = sizeof lossless_sentences / sizeof *lossless_sentences;
    char text[2000] = "";
    for (int32_t i = 0; i < 8; i++)
        strcat(text, lossless_sentences[(turn * 7 + i * 5 + (int32_t)c->mode) % n]);
    c->message = 0;
    if (c->mode == TOOLS && turn > 0 && turn % 2 == 0) call_tool(c);
    say(c, "user", text);
    bring(c);
}

static chat chat_new(kk_engine *e, mode m, kk_kv_format format, kk_spec spec) {
    chat c = {.mode = m, .tok = kk_engine_tokenizer(e), .messages = json_array()};
    /* In the last mode the controller chooses, by what rounds take, and may choose 0. */
    const kk_session_opts opts = {
        .ctx = CTX, .kv_format = format, .spec = spec, .draft_fixed = m < MODES - 1};
    assert_ok(kk_session_new(&c.s, e, &opts, why));
    return c;
}

static void chat_free(chat *c) {
    json_decref(c->messages);
    kk_session_free(c->s);
}

static void assert_cheap(const chat *c, int32_t turn) {
    const int32_t most = c->last_answer + c->message + SPARE;
    if (turn > 0 && c->read > most)
        fail_msg("mode %d, turn %d evaluated %d rows: the answer had %d, the message %d", c->mode,
                 turn, c->read, c->last_answer, c->message);
}

static void turns_are_cheap_and_the_same(void **state) {
    (void)state;
    static const kk_kv_format formats[MODES] = {KK_KV_BF16, KK_KV_Q8, KK_KV_F32};
    kk_engine *e = NULL;
    char what[SAY];
    const kk_engine_opts opts = {
        .model = TINY "/verifier", .drafter = TINY "/drafter", .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    int64_t by_dflash = 0, by_ngram = 0; /* accepted of sessions with both */
    for (int m = 0; m < MODES; m++) {
        const kk_spec spec = m == PLAIN_TALK ? KK_SPEC_DFLASH : KK_SPEC_AUTO;
        chat d = chat_new(e, (mode)m, formats[m], spec),
             p = chat_new(e, (mode)m, formats[m], KK_SPEC_NONE);
        int64_t accepted = 0;
        for (int32_t turn = 0; turn < TURNS; turn++) {
            next_turn(&d, turn);
            next_turn(&p, turn);
            assert_cheap(&d, turn);
            assert_cheap(&p, turn);
            const kk_result x = answer(&d, turn), y = answer(&p, turn);
            assert_true(x.logits_hash == y.logits_hash);
            if (!lossless_same_session(d.s, p.s, what))
                fail_msg("mode %d, turn %d: %s", m, turn, what);
            accepted += x.spec.accepted;
            if (spec == KK_SPEC_AUTO) by_dflash += x.spec.by[KK_SPEC_DFLASH].accepted;
            by_ngram += x.spec.by[KK_SPEC_NGRAM].accepted;
        }
        assert_true(d.s->len > 3 * WINDOW); /* the window has wrapped more than twice */
        if (m < MODES - 1) assert_true(accepted > 0);
        chat_free(&d);
        chat_free(&p);
    }
    assert_true(by_dflash > 0 && by_ngram > 0);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns_are_cheap_and_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
