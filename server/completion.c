/* completion.c - see completion.h.
 *
 * A prompt is brought into a session in pieces, with a checkpoint at each border: where it parts
 * from what was kept before, behind the system's turn, and before the generation prompt.  Gemma's
 * format writes earlier answers without their thoughts, so the next turn of a conversation parts
 * from this one at the last of these, and is evaluated from there. */
#define _GNU_SOURCE
#include "server/completion.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/generation.h"
#include "server/residence.h"
#include "server/route.h"
#include "server/server.h"

enum { BORDERS = 3 };

typedef struct {
    server *server;
    exchange *x;
    request request;
    wire wire;
    wire_usage usage;
    json_t *choices; /* of a response that is not streamed */
    fault failed;
    int32_t index;         /* of the next choice */
    prefixes_found *found; /* the session of the prompt, while it is there */
    int32_t shared;        /* tokens of the prompt that the next turn will have too */
    int64_t cached;        /* tokens of the prompt that were there */
} completion;

/* One prompt as tokens. */
typedef struct {
    const int32_t *ids;
    int32_t *encoded, *listed; /* what they lie in: the library's, or our own */
    size_t n;
    size_t border[BORDERS]; /* tokens before a border; 0: there is none */
    size_t shared;          /* tokens that the next turn will have too */
} prompt;

/* ---- from the request to tokens ---------------------------------------------------------- */

static bool too_long(completion *c, size_t n) {
    const int32_t ctx = c->server->session.ctx;
    fault_set(&c->failed, 400, c->request.chat ? "messages" : "prompt",
              "the prompt has %zu tokens%s, and the context %d: an answer needs at least one more",
              n, c->failed.n_prompt ? " or more" : "", ctx);
    c->failed.code = "context_length_exceeded";
    c->failed.n_prompt = (int64_t)n;
    c->failed.n_ctx = ctx;
    return false;
}

static bool fits(completion *c, size_t n) {
    return n < (size_t)c->server->session.ctx || too_long(c, n);
}

static bool encode_chat(completion *c, bool system_only, bool generation_prompt, int32_t **ids,
                        size_t *n) {
    size_t len;
    kk_err err;
    *ids = NULL;
    char *text = request_conversation(&c->request, system_only, generation_prompt, &len);
    if (!text) return fault_set(&c->failed, 503, NULL, "out of memory");
    const kk_status st = kk_chat_encode(c->server->tok, text, len, ids, n, &err);
    free(text);
    return st == KK_OK || fault_from(&c->failed, &err);
}

/* How many tokens another rendering has in common with the prompt. */
static bool common_with(completion *c, const prompt *p, bool system_only, size_t *out) {
    int32_t *ids;
    size_t n, i = 0;
    if (!encode_chat(c, system_only, false, &ids, &n)) return false;
    while (i < n && i < p->n && ids[i] == p->ids[i]) i++;
    kk_free(ids);
    *out = i;
    return true;
}

static bool starts_with_system(const request *r) {
    const char *role = json_string_value(json_object_get(json_array_get(r->messages, 0), "role"));
    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

static bool read_chat(completion *c, prompt *p) {
    if (!c->server->tok)
        return fault_set(&c->failed, 501, NULL, "the model has no tokenizer, so it cannot chat");
    if (!encode_chat(c, false, true, &p->encoded, &p->n) || !fits(c, p->n)) return false;
    p->ids = p->encoded;
    if (!common_with(c, p, false, &p->shared)) return false;
    if (starts_with_system(&c->request) && !common_with(c, p, true, &p->border[1])) return false;
    p->border[2] = p->shared;
    return true;
}

static bool read_text(completion *c, const json_t *text, prompt *p) {
    const size_t len = json_string_length(text);
    kk_err err;
    if (!c->server->tok)
        return fault_set(&c->failed, 501, "prompt",
                         "the model has no tokenizer: give token ids instead of text");
    const size_t least = kk_encode_least(c->server->tok, len);
    if (least >= (size_t)c->server->session.ctx) {
        c->failed.n_prompt = 1; /* it may be more */
        return too_long(c, least);
    }
    if (kk_encode(c->server->tok, json_string_value(text), len, KK_ENCODE_BOS | KK_ENCODE_SPECIAL,
                  &p->encoded, &p->n, &err) != KK_OK)
        return fault_from(&c->failed, &err);
    p->ids = p->encoded;
    return true;
}

static bool read_ids(completion *c, const json_t *list, prompt *p) {
    p->n = json_array_size(list);
    if (!fits(c, p->n)) return false;
    p->listed = calloc(p->n, sizeof *p->listed);
    if (!p->listed) return fault_set(&c->failed, 503, NULL, "out of memory");
    for (size_t i = 0; i < p->n; i++)
        p->listed[i] = (int32_t)json_integer_value(json_array_get(list, i));
    p->ids = p->listed;
    return true;
}

static bool read_completion(completion *c, const json_t *given, prompt *p) {
    const bool read = json_is_string(given) ? read_text(c, given, p) : read_ids(c, given, p);
    if (!read) return false;
    if (p->n == 0) return fault_set(&c->failed, 400, "prompt", "the prompt has no token");
    p->shared = p->n - 1;
    if (p->shared >= 64)
        p->border[2] = p->shared; /* a prompt that is sent again is not read again */
    return fits(c, p->n);
}

static void prompt_free(prompt *p) {
    kk_free(p->encoded);
    free(p->listed);
}

/* ---- the prompt in a session ------------------------------------------------------------- */

/* A piece of the prompt while it is read. */
typedef struct {
    generation *g;
    int64_t before; /* tokens of the prompt that were evaluated before it */
} piece;

static bool on_progress(void *user, int64_t done, int64_t total) {
    const piece *p = user;
    (void)total;
    slot_read(p->g->x->slot, p->before + done);
    return generation_goes_on(p->g);
}

/* Where memory ends, kept sessions give way one by one. */
static bool append(completion *c, generation *g, kk_session *s, const int32_t *ids, size_t n) {
    kk_err err;
    kk_status st = KK_OK;
    if (n == 0) return true;
    do {
        if (!generation_goes_on(g)) return false;
        piece p = {g, kk_session_len(s) - c->cached};
        st = kk_session_append(s, ids, n, on_progress, &p, &err);
    } while (st == KK_ENOMEM && residence_make_place(c->server));
    if (st == KK_OK) return true;
    if (st != KK_ESTOPPED) fault_from(&g->failed, &err);
    if (st != KK_ESTOPPED) g->finish = FINISH_ERROR;
    return false;
}

/* A checkpoint that finds no memory is missed later, and by nobody now. */
static bool append_and_mark(completion *c, generation *g, kk_session *s, const prompt *p,
                            size_t to) {
    const size_t from = (size_t)kk_session_len(s);
    if (to <= from || to > p->n) return true;
    if (!append(c, g, s, p->ids + from, to - from)) return false;
    kk_session_checkpoint(s, NULL);
    return true;
}

/* Brings the session to the prompt's end.  *stand_in serves others until it comes back. */
static bool read_into(completion *c, generation *g, prefixes_found *found, prompt *p,
                      uint64_t *stand_in) {
    kk_session *s = found->session;
    const size_t parts = (size_t)found->parts;
    /* A border costs a pass of its own: one that is near another is left out. */
    if (parts > (size_t)found->len + 64 && parts + 64 < p->shared) p->border[0] = parts;
    if (p->border[1] + 64 > p->border[2] && p->border[1] < p->border[2]) p->border[1] = 0;
    if (p->border[0] > p->border[1] && p->border[1] > 0) { /* in rising order */
        const size_t later = p->border[0];
        p->border[0] = p->border[1];
        p->border[1] = later;
    }
    for (int i = 0; i < BORDERS; i++)
        if (!append_and_mark(c, g, s, p, p->border[i])) return false;
    *stand_in = prefixes_stand_in(c->server->prefixes, s);
    const size_t from = (size_t)kk_session_len(s);
    return append(c, g, s, p->ids + from, p->n - from);
}

/* ---- choices ----------------------------------------------------------------------------- */

static void count_generation(completion *c, const generation *g, const kk_result *r, double now) {
    const metrics_generation m = {.finish = g->finish,
                                  .tokens = g->n_tokens,
                                  .first_s = g->first > 0 ? g->first - c->x->started : -1,
                                  .decode_s = g->first > 0 ? now - g->first : 0,
                                  .whole_s = now - c->x->started,
                                  .rounds = r->spec.rounds,
                                  .drafted = r->spec.drafted,
                                  .accepted = r->spec.accepted,
                                  .histogram = r->spec.histogram};
    metrics_generated(&c->server->metrics, &m);
    c->usage.completion += g->n_tokens;
    c->usage.reasoning += g->reasoning;
    c->usage.accepted += r->spec.accepted;
    c->usage.rejected += r->spec.drafted - r->spec.accepted;
    c->usage.decode_s += r->decode_s;
    c->usage.rounds += r->spec.rounds;
    for (int i = 0; i <= KK_MAX_DRAFT; i++) c->usage.histogram[i] += r->spec.histogram[i];
    const exchange_usage told = {.prompt = c->usage.prompt,
                                 .cached = c->usage.cached,
                                 .completion = c->usage.completion,
                                 .accepted = c->usage.accepted};
    exchange_count(c->x, &told);
}

static bool echo(completion *c, generation *g, const prompt *p) {
    char *text;
    size_t len;
    kk_err err;
    if (!c->request.echo || !c->server->tok) return true;
    if (kk_decode(c->server->tok, p->ids, p->n, false, &text, &len, &err) != KK_OK)
        return fault_from(&g->failed, &err);
    const bool sent = generation_echo(g, text, len);
    kk_free(text);
    return sent;
}

/* The first chunk of a chat says who speaks. */
static bool greet(completion *c, const generation *g) {
    if (!c->wire.stream || !c->wire.chat) return true;
    json_t *delta = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    json_t *choices = json_array();
    json_array_append_new(choices, wire_choice(&c->wire, g->index, delta, NULL, NULL));
    textbuf event = {0};
    wire_event(&event, wire_response(&c->wire, choices, NULL));
    const bool sent = !event.failed && exchange_add(c->x, event.bytes, event.len);
    text_free(&event);
    return sent;
}

static generation new_generation(completion *c) {
    return (generation){.server = c->server,
                        .x = c->x,
                        .request = &c->request,
                        .wire = &c->wire,
                        .index = c->index++,
                        .finish = FINISH_KINDS};
}

/* A turn is in the journal before the client sees its end. */
static void journal_turn_of(void *user) {
    completion *c = user;
    prefixes_journal(c->server->prefixes, c->found, c->shared);
}

/* A choice of a prompt that is in the session. */
typedef struct {
    completion *c;
    const prompt *p;
    kk_session *session;
    generation g;
    kk_result result;
    kv_rows before;
    double ended; /* text_now() */
    bool written, threaded;
    pthread_t thread;
} choice;

/* The last one continues the session, others a fork. */
static bool open_choice(choice *o, completion *c, const prompt *p, kk_session *s, bool last) {
    kk_err err;
    o->c = c;
    o->p = p;
    o->g = new_generation(c);
    if (last) o->g.before_end = journal_turn_of;
    if (last) o->g.user = c;
    kk_status st = generation_open(&o->g, p->ids, p->n, &err);
    if (st == KK_OK && !last) st = kk_session_fork(&o->session, s, &err);
    if (st == KK_OK && last) o->session = s;
    return st == KK_OK || fault_from(&c->failed, &err);
}

static void *write_choice(void *user) {
    choice *o = user;
    generation *g = &o->g;
    o->before = rows_of(o->session);
    const bool greeted = greet(o->c, g);
    if (!greeted) g->finish = g->x->slow ? FINISH_SLOW : FINISH_CANCELLED;
    o->written = greeted && echo(o->c, g, o->p) && generation_run(g, o->session, &o->result);
    o->ended = text_now();
    return NULL;
}

static bool end_choice(choice *o) {
    completion *c = o->c;
    if (!o->written && o->g.finish == FINISH_KINDS) o->g.finish = FINISH_ERROR;
    count_generation(c, &o->g, &o->result, o->ended);
    metrics_rows(&c->server->metrics, o->before, rows_of(o->session));
    if (o->written && !c->wire.stream) json_array_append_new(c->choices, generation_choice(&o->g));
    if (!o->written && !c->failed.status) c->failed = o->g.failed;
    return o->written;
}

/* Each has a thread, so that they share passes over the weights; the last one has ours. */
static bool write_choices(choice *all, int32_t n) {
    bool done = true;
    for (int32_t i = 0; i + 1 < n; i++)
        all[i].threaded = pthread_create(&all[i].thread, NULL, write_choice, &all[i]) == 0;
    for (int32_t i = 0; i < n; i++)
        if (!all[i].threaded) write_choice(&all[i]);
    for (int32_t i = 0; i < n; i++) {
        if (all[i].threaded) pthread_join(all[i].thread, NULL);
        done = end_choice(&all[i]) && done;
    }
    return done;
}

static bool run_choices(completion *c, const prompt *p, kk_session *s) {
    const int32_t n = c->request.n;
    int32_t opened = 0;
    choice *all = calloc((size_t)n, sizeof *all);
    if (!all) return fault_set(&c->failed, 503, NULL, "out of memory");
    bool done = true;
    for (; done && opened < n; opened++) done = open_choice(&all[opened], c, p, s, opened == n - 1);
    if (done) done = write_choices(all, n);
    for (int32_t i = 0; i < opened; i++) {
        if (all[i].session != s) kk_session_free(all[i].session);
        generation_close(&all[i].g);
    }
    free(all);
    return done;
}

/* A generation that only reads: it knows when to stop. */
static bool read_prompt(completion *c, prompt *p, prefixes_found *found, uint64_t *stand_in) {
    generation g = new_generation(c);
    kk_err err;
    c->index--;
    if (prefixes_take(c->server->prefixes, p->ids, p->n, found, &err) != KK_OK)
        return fault_from(&c->failed, &err);
    const double start = text_now();
    const int64_t cached = found->len - found->evaluated;
    const kv_rows before = rows_of(found->session);
    c->cached = cached;
    slot_prompt(c->x->slot, (long long)p->n, cached,
                (long long)c->request.max_tokens * c->request.n);
    const bool read = read_into(c, &g, found, p, stand_in);
    c->usage.prompt_s += text_now() - start;
    c->usage.prompt += (int64_t)p->n;
    c->usage.cached += cached;
    metrics_prompt(&c->server->metrics, (int64_t)p->n, cached);
    metrics_rows(&c->server->metrics, before, rows_of(found->session));
    if (read) return true;
    const metrics_generation m = {
        .finish = g.finish, .first_s = -1, .whole_s = text_now() - c->x->started};
    if (g.finish != FINISH_KINDS) metrics_generated(&c->server->metrics, &m);
    c->failed = g.failed;
    return false;
}

static bool one_prompt(completion *c, prompt *p) {
    prefixes_found found = {.session = NULL};
    uint64_t stand_in = 0;
    bool done = read_prompt(c, p, &found, &stand_in);
    c->found = &found;
    c->shared = (int32_t)p->shared;
    if (done) done = run_choices(c, p, found.session);
    /* Also a session whose request failed holds what was read until then. */
    prefixes_keep(c->server->prefixes, &found, c->shared, stand_in);
    c->found = NULL;
    return done;
}

/* ---- the response ------------------------------------------------------------------------ */

static void end_stream(completion *c, bool done) {
    textbuf out = {0};
    if (done && c->request.include_usage) {
        json_t *o = wire_response(&c->wire, json_array(), wire_usage_json(&c->usage));
        wire_measured(o, &c->usage);
        wire_event(&out, o);
    }
    if (done)
        text_add(&out, "data: [DONE]\n\n", 14);
    else if (c->failed.status)
        wire_event(&out, fault_json(&c->failed));
    if (out.len && !out.failed) exchange_add(c->x, out.bytes, out.len);
    text_free(&out);
    exchange_end(c->x);
}

static void respond(completion *c, bool done) {
    if (c->x->answer == EXCHANGE_STREAM) {
        end_stream(c, done);
    } else if (done) {
        json_t *o = wire_response(&c->wire, json_incref(c->choices), wire_usage_json(&c->usage));
        wire_measured(o, &c->usage);
        exchange_reply_json(c->x, 200, o);
    } else {
        if (!c->failed.status) fault_set(&c->failed, 408, NULL, "the client has left");
        exchange_refuse(c->x, &c->failed);
    }
}

static bool parse(completion *c) {
    const kk_serve_opts *o = c->server->opts;
    const request_defaults d = {.chat = c->x->route->chat,
                                .sampling = o->sampling,
                                .think = o->think,
                                .max_messages = o->max_messages,
                                .max_choices = o->max_choices,
                                .vocab = c->server->info.vocab};
    if (!request_parse(&c->request, c->x->body.bytes, c->x->body.len, &d, &c->failed)) return false;
    if (!c->request.seeded &&
        getentropy(&c->request.sampling.seed, sizeof c->request.sampling.seed) != 0)
        c->request.sampling.seed = (uint64_t)(1e9 * text_now());
    wire_open(&c->wire, d.chat, c->request.stream, c->request.include_usage);
    c->wire.model = o->name;
    c->wire.fingerprint = c->server->fingerprint;
    return true;
}

static bool run_prompts(completion *c) {
    const json_t *given = c->request.prompt;
    const bool several =
        !c->request.chat && json_is_array(given) && !json_is_integer(json_array_get(given, 0));
    const size_t n = several ? json_array_size(given) : 1;
    bool done = true;
    for (size_t i = 0; done && i < n; i++) {
        prompt p = {.ids = NULL};
        done = c->request.chat ? read_chat(c, &p)
                               : read_completion(c, several ? json_array_get(given, i) : given, &p);
        /* A stream begins once nothing can be refused any more but by the engine. */
        if (done && c->request.stream && i == 0) exchange_stream(c->x);
        if (done) done = one_prompt(c, &p);
        prompt_free(&p);
    }
    return done;
}

void completion_run(exchange *x) {
    completion c = {.server = x->server, .x = x, .choices = json_array()};
    bool done = false;
    if (exchange_left(x))
        fault_set(&c.failed, 408, NULL, "the client has left");
    else
        done = parse(&c) && run_prompts(&c);
    respond(&c, done);
    request_free(&c.request);
    json_decref(c.choices);
}
