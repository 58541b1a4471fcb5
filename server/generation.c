/* generation.c - see generation.h. */
#include "server/generation.h"

#include <stdio.h>
#include <string.h>

#include "server/residence.h"
#include "server/server.h"
#include "server/thought.h"

static const char *const finish_words[FINISH_KINDS] = {
    [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_CALLS] = "tool_calls"};

/* ---- opening ----------------------------------------------------------------------------- */

kk_status generation_open(generation *g, const int32_t *prompt, size_t n, kk_err *err) {
    const kk_tokenizer *tok = g->server->tok;
    const kk_answer_opts opts = {.tok = tok,
                                 .raw = !g->wire->chat,
                                 .stops = g->request->stops,
                                 .n_stops = g->request->n_stops};
    kk_status st = kk_answer_new(&g->answer, &opts, err);
    if (g->request->logprobs >= 0) g->pending = json_array();
    if (g->request->logprobs >= 0 && !g->wire->stream) g->logprobs = json_array();
    g->calls = json_array();
    if (!g->wire->chat || !tok || st != KK_OK) return st;
    bool inside;
    st = thought_resume(g->answer, tok, prompt, n, &inside, err);
    if (inside) g->inside = KK_ANSWER_THOUGHT;
    return st;
}

void generation_close(generation *g) {
    kk_answer_free(g->answer);
    text_free(&g->said);
    text_free(&g->thought);
    for (size_t i = 0; i < 2; i++) text_free(&g->frames[i].event);
    text_free(&g->event);
    json_decref(g->calls);
    json_decref(g->pending);
    json_decref(g->logprobs);
}

/* ---- whether to go on -------------------------------------------------------------------- */

static bool give_up(generation *g, metrics_finish why) {
    g->finish = why;
    return false;
}

/* The client takes nothing any more: it reads too slowly, or has left. */
static bool give_up_client(generation *g) {
    return give_up(g, g->x->slow ? FINISH_SLOW : FINISH_CANCELLED);
}

bool generation_goes_on(generation *g) {
    const kk_serve_opts *o = g->server->opts;
    if (exchange_left(g->x) || !exchange_ping(g->x, o->ping_s)) return give_up_client(g);
    if (text_now() - g->x->started > o->request_s) {
        fault_set(&g->failed, 504, NULL, "the request took longer than %g seconds", o->request_s);
        return give_up(g, FINISH_TIMEOUT);
    }
    if (atomic_load(&g->server->cancelled)) {
        fault_set(&g->failed, 503, NULL, "the server is shutting down");
        return give_up(g, FINISH_CANCELLED);
    }
    return true;
}

/* ---- what comes out ---------------------------------------------------------------------- */

static bool send_chunk(generation *g, json_t *said, json_t *logprobs, const char *finish) {
    json_t *choices = json_array();
    json_array_append_new(choices, wire_choice(g->wire, g->index, said, logprobs, finish));
    textbuf event = {0};
    wire_event(&event, wire_response(g->wire, choices, NULL));
    if (event.failed) fault_set(&g->failed, 503, NULL, "out of memory");
    const bool sent = !event.failed && exchange_add(g->x, event.bytes, event.len);
    text_free(&event);
    if (sent) return true;
    return g->failed.status ? give_up(g, FINISH_ERROR) : give_up_client(g);
}

/* The frame is the event that says "\1", which JSON writes as six characters, without them. */
static bool make_frame(generation *g, generation_frame *f, const char *name) {
    static const char mark[] = "\\u0001";
    json_t *said = json_string("\1"), *choices = json_array();
    if (g->wire->chat) said = json_pack("{s:o}", name, said);
    json_array_append_new(choices, wire_choice(g->wire, g->index, said, NULL, NULL));
    wire_event(&f->event, wire_response(g->wire, choices, NULL));
    const char *at = f->event.failed ? NULL : strstr(f->event.bytes, "\"choices\":");
    if (at) at = strstr(at, mark); /* not in a model's name */
    if (!at) return false;
    f->gap = (size_t)(at - f->event.bytes);
    f->event.len -= sizeof mark - 1;
    memmove(f->event.bytes + f->gap, at + sizeof mark - 1, f->event.len - f->gap + 1);
    return true;
}

/* A chunk with nothing but text, which nearly all are: no JSON is built for it. */
static bool send_text(generation *g, bool thought, const char *bytes, size_t n) {
    generation_frame *f = &g->frames[thought];
    textbuf *event = &g->event;
    const bool framed = f->gap > 0 || make_frame(g, f, thought ? "reasoning_content" : "content");
    event->len = 0;
    if (framed) {
        text_add(event, f->event.bytes, f->gap);
        text_add_escaped(event, bytes, n);
        text_add(event, f->event.bytes + f->gap, f->event.len - f->gap);
    }
    if (!framed || event->failed) fault_set(&g->failed, 503, NULL, "out of memory");
    const bool sent = framed && !event->failed && exchange_add(g->x, event->bytes, event->len);
    if (sent) return true;
    return g->failed.status ? give_up(g, FINISH_ERROR) : give_up_client(g);
}

/* The log-probabilities of the tokens that a text came from. */
static json_t *take_logprobs(generation *g) {
    if (!g->pending || json_array_size(g->pending) == 0) return NULL;
    json_t *list = g->pending;
    g->pending = json_array();
    if (!g->logprobs) return wire_logprobs(g->wire, list, &g->offset);
    json_array_extend(g->logprobs, list);
    json_decref(list);
    return NULL;
}

static bool on_text(generation *g, const char *bytes, size_t n) {
    json_t *logprobs = take_logprobs(g);
    if (!g->wire->stream) {
        text_add(&g->said, bytes, n);
        return true;
    }
    if (!logprobs) return send_text(g, false, bytes, n);
    json_t *s = text_json(bytes, n);
    return send_chunk(g, g->wire->chat ? json_pack("{s:o}", "content", s) : s, logprobs, NULL);
}

static bool on_thought(generation *g, const char *bytes, size_t n) {
    if (g->pending) json_array_clear(g->pending);
    if (!g->wire->stream) {
        text_add(&g->thought, bytes, n);
        return true;
    }
    return send_text(g, true, bytes, n);
}

static json_t *call_json(const char *id, const kk_answer_span *span) {
    return json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", id, "type", "function", "function", "name",
                     text_json(span->name, strlen(span->name)), "arguments",
                     text_json(span->arguments, strlen(span->arguments)));
}

static bool send_calls(generation *g, json_t *call) {
    return send_chunk(g, json_pack("{s:[o]}", "tool_calls", call), NULL, NULL);
}

/* A call streams as its head, then its arguments. */
static bool on_call(generation *g, const kk_answer_span *span) {
    char id[40];
    if (!span->name) return on_text(g, span->text, span->len);
    if (g->pending) json_array_clear(g->pending);
    text_random_name(id, sizeof id, "call_");
    const int index = g->n_calls++;
    if (!g->wire->stream) return json_array_append_new(g->calls, call_json(id, span)) == 0;
    kk_answer_span head = *span;
    head.arguments = "";
    json_t *call = call_json(id, &head);
    json_object_set_new(call, "index", json_integer(index));
    return send_calls(g, call) &&
           send_calls(g, json_pack("{s:i, s:{s:o}}", "index", index, "function", "arguments",
                                   text_json(span->arguments, strlen(span->arguments))));
}

static bool on_spans(generation *g, const kk_answer_span *spans, size_t n) {
    bool on = true;
    for (size_t i = 0; i < n && on; i++) {
        if (g->n_calls > 0 && g->request->one_call) return false;
        g->inside = spans[i].kind;
        switch (spans[i].kind) {
        case KK_ANSWER_TEXT: on = on_text(g, spans[i].text, spans[i].len); break;
        case KK_ANSWER_THOUGHT: on = on_thought(g, spans[i].text, spans[i].len); break;
        case KK_ANSWER_CALL: on = on_call(g, &spans[i]); break;
        }
    }
    return on && !(g->n_calls > 0 && g->request->one_call);
}

bool generation_echo(generation *g, const char *bytes, size_t len) {
    return len == 0 || on_text(g, bytes, len);
}

/* ---- while the model writes -------------------------------------------------------------- */

static void on_logprobs(void *user, const kk_logprobs *of) {
    generation *g = user;
    json_array_append_new(g->pending, wire_logprob(g->server->tok, of));
}

static bool goes_on_now_and_then(generation *g) {
    const double now = text_now();
    if (now - g->looked < GENERATION_LOOK_S) return true;
    g->looked = now;
    return generation_goes_on(g);
}

/* A model without a tokenizer writes ids. */
static bool on_bare_id(generation *g, int32_t id) {
    char word[16];
    const int n = snprintf(word, sizeof word, "%d ", (int)id);
    return on_text(g, word, (size_t)n);
}

bool generation_token(void *user, int32_t id) {
    generation *g = user;
    const kk_answer_span *spans;
    size_t n;
    kk_err err;
    if (g->n_tokens++ == 0) g->first = text_now();
    slot_wrote(g->x->slot);
    if (!g->server->tok) return on_bare_id(g, id) && goes_on_now_and_then(g);
    if (kk_answer_push(g->answer, id, &spans, &n, &err) != KK_OK) {
        fault_from(&g->failed, &err);
        return give_up(g, FINISH_ERROR);
    }
    g->reasoning += g->inside == KK_ANSWER_THOUGHT;
    return on_spans(g, spans, n) && !kk_answer_stopped(g->answer) && goes_on_now_and_then(g);
}

static void add_result(kk_result *sum, const kk_result *r) {
    sum->stop = r->stop;
    sum->n_tokens += r->n_tokens;
    sum->decode_s += r->decode_s;
    sum->rounds += r->rounds;
    sum->spec.rounds += r->spec.rounds;
    sum->spec.drafted += r->spec.drafted;
    sum->spec.accepted += r->spec.accepted;
    for (int i = 0; i <= KK_MAX_DRAFT; i++) sum->spec.histogram[i] += r->spec.histogram[i];
}

/* Where memory ends, kept sessions give way one by one, and the session goes on where it is. */
static kk_status generate(generation *g, kk_session *s, kk_generate_opts *opts, kk_result *sum,
                          kk_err *err) {
    for (;;) {
        kk_result r = {0};
        const int32_t before = g->n_tokens;
        const kk_status st = kk_generate(s, opts, generation_token, g, &r, err);
        add_result(sum, &r);
        if (st != KK_ENOMEM || !residence_make_place(g->server)) return st;
        if (opts->max_tokens > 0) opts->max_tokens -= g->n_tokens - before;
        if (opts->max_tokens < 0 || (g->request->max_tokens > 0 && opts->max_tokens == 0)) {
            sum->stop = KK_STOP_LENGTH;
            return KK_OK;
        }
    }
}

/* How it ended, unless it was given up. */
static void judge(generation *g, const kk_result *r) {
    if (g->finish != FINISH_KINDS) return;
    const bool full = r->stop == KK_STOP_LENGTH || r->stop == KK_STOP_CONTEXT;
    g->finish = g->n_calls > 0 ? FINISH_CALLS : full ? FINISH_LENGTH : FINISH_STOP;
}

bool generation_end(generation *g) {
    const kk_answer_span *spans;
    size_t n;
    kk_err err;
    if (g->finish > FINISH_CALLS) return false;
    if (kk_answer_finish(g->answer, &spans, &n, &err) != KK_OK) {
        give_up(g, FINISH_ERROR);
        return fault_from(&g->failed, &err);
    }
    const metrics_finish finish = g->finish;
    on_spans(g, spans, n);
    if (g->finish > FINISH_CALLS) return false;
    g->finish = g->n_calls > 0 ? FINISH_CALLS : finish;
    if (!g->wire->stream) return true;
    json_t *nothing = g->wire->chat ? json_object() : json_string("");
    return send_chunk(g, nothing, NULL, finish_words[g->finish]);
}

bool generation_run(generation *g, kk_session *s, kk_result *sum) {
    const kk_tokenizer *tok = g->server->tok;
    /* A turn ends with its mark, also where the model's files forget to say so; a call ends where
     * its response would begin. */
    int32_t stops[2] = {-1, -1};
    size_t n_stops = 0;
    if (g->wire->chat) stops[n_stops++] = kk_tokenizer_special(tok, "<turn|>");
    if (g->wire->chat && g->request->tools)
        stops[n_stops++] = kk_tokenizer_special(tok, "<|tool_response>");
    while (n_stops > 0 && stops[n_stops - 1] < 0) n_stops--; /* a tokenizer without the mark */
    kk_generate_opts opts = {.max_tokens = g->request->max_tokens,
                             .sampling = g->request->sampling,
                             .stop_ids = stops,
                             .n_stop_ids = n_stops,
                             .ignore_eos = g->request->ignore_eos,
                             .bias = g->request->bias,
                             .n_bias = g->request->n_bias};
    kk_err err;
    opts.sampling.seed += (uint64_t)g->index; /* choices of one request differ */
    if (g->pending) {
        opts.n_logprobs = g->request->logprobs;
        opts.on_logprobs = on_logprobs;
    }
    g->finish = FINISH_KINDS;
    const kk_status st = generate(g, s, &opts, sum, &err);
    if (st != KK_OK && g->finish == FINISH_KINDS) {
        fault_from(&g->failed, &err);
        return give_up(g, FINISH_ERROR);
    }
    judge(g, sum);
    if (g->before_end && g->finish <= FINISH_CALLS) g->before_end(g->user);
    return generation_end(g);
}

/* ---- the whole choice -------------------------------------------------------------------- */

static json_t *message(generation *g) {
    const bool calls = json_array_size(g->calls) > 0;
    json_t *content = g->said.len || !calls
                          ? text_json(g->said.bytes ? g->said.bytes : "", g->said.len)
                          : json_null();
    json_t *m = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
    if (g->thought.len)
        json_object_set_new(m, "reasoning_content", text_json(g->thought.bytes, g->thought.len));
    if (calls) json_object_set(m, "tool_calls", g->calls);
    return m;
}

json_t *generation_choice(generation *g) {
    json_t *logprobs = NULL;
    if (g->logprobs) {
        logprobs = wire_logprobs(g->wire, g->logprobs, &g->offset);
        g->logprobs = NULL;
    }
    json_t *said =
        g->wire->chat ? message(g) : text_json(g->said.bytes ? g->said.bytes : "", g->said.len);
    return wire_choice(g->wire, g->index, said, logprobs, finish_words[g->finish]);
}
