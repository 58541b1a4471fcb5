/* sessions_http.c - see sessions_http.h. */
#include "server/sessions_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/generation.h"
#include "server/server.h"
#include "server/sessions_json.h"
#include "server/transcript.h"
#include "server/wire.h"

/* A call while it runs. */
typedef struct {
    exchange *x;
    char id[SESSIONS_ID];
    request request;
    fault failed;
    metrics_finish given_up; /* FINISH_KINDS: it was not */
    json_t *tokens;          /* of a generation that is not streamed */
    textbuf text;
    double first;      /* text_now() of the first token */
    double looked;     /* at the client, and at the time */
    bool chat, drafts; /* what a stream says of each token beside its text */
} call;

static void reply(call *c, bool done, json_t *body) {
    if (done)
        exchange_reply_json(c->x, 200, body);
    else
        exchange_refuse(c->x, &c->failed);
}

/* ---- whether to go on -------------------------------------------------------------------- */

static bool give_up(call *c, metrics_finish why) {
    c->given_up = why;
    return false;
}

/* The client takes nothing any more: it reads too slowly, or has left. */
static bool give_up_client(call *c) {
    return give_up(c, c->x->slow ? FINISH_SLOW : FINISH_CANCELLED);
}

/* A stream begins once the session is the call's own: until then a refusal has a status. */
static void begin_stream(call *c) {
    if (c->request.stream && c->x->answer == EXCHANGE_OPEN) exchange_stream(c->x);
}

static bool goes_on(void *user) {
    call *c = user;
    const server *s = c->x->server;
    const double now = text_now();
    begin_stream(c);
    if (now - c->looked < GENERATION_LOOK_S) return true;
    c->looked = now;
    if (exchange_left(c->x) || !exchange_ping(c->x, s->opts->ping_s)) return give_up_client(c);
    if (now - c->x->started > s->opts->request_s) return give_up(c, FINISH_TIMEOUT);
    return !atomic_load(&s->cancelled) || give_up(c, FINISH_CANCELLED);
}

/* A call that was given up says why, where somebody is left to hear it. */
static void explain(call *c) {
    const server *s = c->x->server;
    if (c->given_up == FINISH_TIMEOUT)
        fault_set(&c->failed, 504, NULL, "the request took longer than %g seconds",
                  s->opts->request_s);
    else if (c->given_up == FINISH_CANCELLED && atomic_load(&s->cancelled))
        fault_set(&c->failed, 503, NULL, "the server is shutting down");
}

/* ---- create, list, describe, delete ------------------------------------------------------ */

static bool parse(call *c, const kk_sampling *sampling) {
    const server *s = c->x->server;
    const request_defaults d = {.sampling = *sampling,
                                .max_messages = s->opts->max_messages,
                                .max_choices = 1,
                                .vocab = s->info.vocab};
    return request_generation(&c->request, c->x->body.bytes, c->x->body.len, &d, &c->failed);
}

static json_t *described(call *c) {
    sessions_info info;
    if (!sessions_describe(c->x->server->sessions, c->id, &info, &c->failed)) return NULL;
    return sessions_info_json(&info);
}

void sessions_post(exchange *x, const char *rest) {
    call c = {.x = x};
    sessions_how how;
    (void)rest;
    sessions_standard(x->server->sessions, &how);
    bool done = parse(&c, &how.sampling) &&
                sessions_json_how(c.request.root, x->server->info.vocab, &how, &c.failed);
    how.sampling = c.request.sampling;
    if (done) done = sessions_create(x->server->sessions, &how, c.id, &c.failed);
    json_t *info = done ? described(&c) : NULL;
    reply(&c, info != NULL, info);
    request_free(&c.request);
}

void sessions_get(exchange *x, const char *rest) {
    sessions_info *list;
    size_t n;
    fault f;
    (void)rest;
    if (!sessions_list(x->server->sessions, &list, &n, &f)) {
        exchange_refuse(x, &f);
        return;
    }
    json_t *data = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(data, sessions_info_json(&list[i]));
    free(list);
    exchange_reply_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

static json_t *tokens_json(call *c) {
    int32_t *tokens;
    size_t n;
    if (!sessions_tokens(c->x->server->sessions, c->id, &tokens, &n, &c->failed)) return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(tokens[i]));
    free(tokens);
    return json_pack("{s:s, s:o}", "id", c->id, "tokens", list);
}

static json_t *messages_json(call *c) {
    const server *s = c->x->server;
    int32_t *tokens;
    size_t n;
    kk_err err;
    if (!sessions_tokens(s->sessions, c->id, &tokens, &n, &c->failed)) return NULL;
    json_t *messages = NULL;
    if (!s->tok)
        fault_set(&c->failed, 501, NULL, "the model has no tokenizer");
    else if (!(messages = transcript_json(s->tok, tokens, n, &err)))
        fault_from(&c->failed, &err);
    free(tokens);
    return messages ? json_pack("{s:s, s:I, s:o}", "id", c->id, "history_length", (json_int_t)n,
                                "messages", messages)
                    : NULL;
}

/* Splits ID and what is behind it; an id that is too long is one that there is not. */
static const char *split(call *c, const char *rest) {
    const char *slash = strchr(rest, '/');
    const size_t n = slash ? (size_t)(slash - rest) : strlen(rest);
    snprintf(c->id, sizeof c->id, "%.*s", (int)n, rest);
    return slash ? slash + 1 : "";
}

static void nothing_here(call *c, const char *verb) {
    fault_set(&c->failed, 404, NULL, "a session has no '%.40s' for this method", verb);
    exchange_refuse(c->x, &c->failed);
}

void sessions_get_one(exchange *x, const char *rest) {
    call c = {.x = x};
    const char *verb = split(&c, rest);
    json_t *body = NULL;
    if (strcmp(verb, "") == 0) {
        body = described(&c);
    } else if (strcmp(verb, "tokens") == 0) {
        body = tokens_json(&c);
    } else if (strcmp(verb, "messages") == 0) {
        body = messages_json(&c);
    } else {
        nothing_here(&c, verb);
        return;
    }
    reply(&c, body != NULL, body);
}

void sessions_delete_one(exchange *x, const char *rest) {
    call c = {.x = x};
    int64_t len;
    const char *verb = split(&c, rest);
    if (*verb) {
        nothing_here(&c, verb);
        return;
    }
    const bool done = sessions_delete(x->server->sessions, c.id, &len, &c.failed);
    reply(&c, done,
          done ? json_pack("{s:s, s:b, s:I}", "id", c.id, "deleted", 1, "history_length",
                           (json_int_t)len)
               : NULL);
}

/* ---- append and fork --------------------------------------------------------------------- */

static void append(call *c) {
    server *s = c->x->server;
    const sessions_watch watch = {goes_on, c};
    sessions_addition add = {0};
    sessions_appended got;
    json_t *body = request_object(c->x->body.bytes, c->x->body.len, &c->failed);
    bool done = body && sessions_json_addition(body, s->info.vocab, s->opts->max_messages,
                                               s->opts->think, &add, &c->failed);
    if (done && add.messages)
        done = sessions_append_messages(s->sessions, c->id, add.messages, strlen(add.messages),
                                        &watch, &got, &c->failed);
    else if (done && add.text)
        done =
            sessions_append_text(s->sessions, c->id, add.text, add.len, &watch, &got, &c->failed);
    else if (done)
        done = sessions_append(s->sessions, c->id, add.tokens, add.n, &watch, &got, &c->failed);
    if (!done) explain(c);
    if (done) metrics_prompt(&s->metrics, got.history, got.history - got.evaluated);
    reply(c, done, done ? sessions_appended_json(c->id, &got) : NULL);
    sessions_addition_free(&add);
    json_decref(body);
}

static void fork_session(call *c) {
    sessions *t = c->x->server->sessions;
    const sessions_watch watch = {goes_on, c};
    char fork_id[SESSIONS_ID];
    sessions_place at;
    sessions_appended got;
    json_t *body = c->x->body.len ? request_object(c->x->body.bytes, c->x->body.len, &c->failed)
                                  : json_object();
    const bool done = body && sessions_json_place(body, &at, &c->failed) &&
                      sessions_fork(t, c->id, at, &watch, fork_id, &got, &c->failed);
    json_decref(body);
    if (!done) explain(c);
    json_t *answer = done ? sessions_appended_json(fork_id, &got) : NULL;
    if (answer) json_object_set_new(answer, "forked_from", json_string(c->id));
    reply(c, done, answer);
}

/* ---- generate ---------------------------------------------------------------------------- */

static bool send_event(call *c, json_t *event) {
    textbuf out = {0};
    wire_event(&out, event);
    const bool sent = !out.failed && exchange_add(c->x, out.bytes, out.len);
    text_free(&out);
    return sent;
}

/* A token of a draft that was not chosen. */
static json_t *rejected_json(const server *s, const sessions_piece *piece) {
    json_t *list = json_array();
    for (int32_t i = 0; i < piece->n_rejected; i++) {
        char *text = NULL;
        size_t len = 0;
        if (s->tok) kk_decode(s->tok, &piece->rejected[i], 1, true, &text, &len, NULL);
        json_array_append_new(list, json_pack("{s:i, s:o}", "token", (int)piece->rejected[i],
                                              "text", text_json(text ? text : "", len)));
        kk_free(text);
    }
    return list;
}

static void add_drafting(const call *c, json_t *event, const sessions_piece *piece) {
    if (!c->drafts || piece->id < 0) return;
    json_object_set_new(event, "round", json_integer(piece->round));
    if (piece->drafted) json_object_set_new(event, "drafted", json_true());
    if (piece->n_rejected > 0)
        json_object_set_new(event, "rejected", rejected_json(c->x->server, piece));
}

static void add_kind(const call *c, json_t *event, const sessions_piece *piece) {
    static const char *const kinds[] = {
        [KK_ANSWER_TEXT] = "text", [KK_ANSWER_THOUGHT] = "thought", [KK_ANSWER_CALL] = "call"};
    if (!c->chat) return;
    json_object_set_new(event, "kind", json_string(kinds[piece->kind]));
    if (!piece->name) return;
    json_object_set_new(event, "name", text_json(piece->name, strlen(piece->name)));
    json_object_set_new(event, "arguments", text_json(piece->arguments, strlen(piece->arguments)));
}

static bool on_piece(void *user, const sessions_piece *piece) {
    call *c = user;
    if (c->first == 0) c->first = text_now();
    if (piece->id >= 0) slot_wrote(c->x->slot);
    if (!c->request.stream) {
        if (piece->id >= 0) json_array_append_new(c->tokens, json_integer(piece->id));
        text_add(&c->text, piece->text, piece->len);
        return true;
    }
    begin_stream(c);
    json_t *event = json_pack("{s:o}", "text", text_json(piece->text, piece->len));
    if (piece->id >= 0) json_object_set_new(event, "token", json_integer(piece->id));
    add_drafting(c, event, piece);
    add_kind(c, event, piece);
    return send_event(c, event) || give_up_client(c);
}

static void count(call *c, bool done, const sessions_generated *g) {
    const double now = text_now();
    metrics_generation m = metrics_of_session(g);
    if (c->given_up != FINISH_KINDS || !done)
        m.finish = c->given_up != FINISH_KINDS ? c->given_up : FINISH_ERROR;
    m.first_s = c->first > 0 ? c->first - c->x->started : -1;
    m.decode_s = c->first > 0 ? now - c->first : 0;
    m.whole_s = now - c->x->started;
    metrics_generated(&c->x->server->metrics, &m);
    const exchange_usage told = {.prompt = g->history - g->generated,
                                 .cached = g->cached,
                                 .completion = g->generated,
                                 .accepted = g->accepted};
    exchange_count(c->x, &told);
}

static void end_stream(call *c, bool done, json_t *result) {
    send_event(c, done ? json_pack("{s:o}", "done", result) : fault_json(&c->failed));
    if (done) exchange_add(c->x, "data: [DONE]\n\n", 14);
    exchange_end(c->x);
}

static json_t *whole(call *c, json_t *result) {
    json_object_set(result, "tokens", c->tokens);
    json_object_set_new(result, "text", text_json(c->text.bytes ? c->text.bytes : "", c->text.len));
    json_object_set_new(result, "id", json_string(c->id));
    return result;
}

static bool run_generation(call *c, int32_t *stop_ids, size_t n_stop_ids, sessions_generated *out) {
    const request *r = &c->request;
    const sessions_generation how = {.max_tokens = r->max_tokens,
                                     .sampling = &r->sampling,
                                     .stop_ids = stop_ids,
                                     .n_stop_ids = n_stop_ids,
                                     .stops = r->stops,
                                     .n_stops = r->n_stops,
                                     .bias = r->bias,
                                     .n_bias = r->n_bias,
                                     .ignore_eos = r->ignore_eos,
                                     .chat = c->chat,
                                     .on_piece = on_piece,
                                     .watch = {goes_on, c},
                                     .user = c};
    return sessions_generate(c->x->server->sessions, c->id, &how, out, &c->failed);
}

static void generate(call *c) {
    const server *s = c->x->server;
    sessions_info info;
    sessions_generated out = {0};
    int32_t *stop_ids = NULL;
    size_t n_stop_ids = 0;
    bool done = sessions_describe(s->sessions, c->id, &info, &c->failed) &&
                parse(c, &info.sampling) &&
                sessions_json_ids(c->request.root, "stop_token_ids", s->info.vocab, 64, &stop_ids,
                                  &n_stop_ids, &c->failed);
    if (done) {
        c->chat = json_is_true(json_object_get(c->request.root, "chat"));
        c->drafts = json_is_true(json_object_get(c->request.root, "drafts"));
        slot_prompt(c->x->slot, info.history, info.resident ? info.history : 0,
                    c->request.max_tokens);
        done = run_generation(c, stop_ids, n_stop_ids, &out);
        count(c, done, &out);
    }
    free(stop_ids);
    if (c->given_up != FINISH_KINDS) explain(c);
    if (c->failed.status) done = false;
    if (done) begin_stream(c); /* one without a token */
    json_t *result = done ? sessions_generated_json(&out) : NULL;
    if (result) json_object_set_new(result, "dropped_tokens", json_integer(info.dropped));
    if (c->x->answer == EXCHANGE_STREAM)
        end_stream(c, done, result);
    else
        reply(c, done, done ? whole(c, result) : NULL);
}

void sessions_post_one(exchange *x, const char *rest) {
    call c = {.x = x, .given_up = FINISH_KINDS, .tokens = json_array()};
    const char *verb = split(&c, rest);
    if (strcmp(verb, "append") == 0)
        append(&c);
    else if (strcmp(verb, "generate") == 0)
        generate(&c);
    else if (strcmp(verb, "fork") == 0)
        fork_session(&c);
    else
        nothing_here(&c, verb);
    request_free(&c.request);
    json_decref(c.tokens);
    text_free(&c.text);
}
