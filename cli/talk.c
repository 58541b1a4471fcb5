/* talk.c - see talk.h. */
#define _GNU_SOURCE
#include "cli/talk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/term.h"
#include "cli/turns.h"
#include "eval/reports/report.h"

static kk_status fail(kk_err *err, kk_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static kk_status fail(kk_err *err, kk_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return err->code = code;
}

bool talk_open(talk *t) { return (t->messages = json_array()) != NULL; }

void talk_close(talk *t) {
    reply_close(&t->reply);
    kk_session_free(t->session);
    json_decref(t->messages);
    json_decref(t->tools);
    free(t->system);
}

bool talk_set_system(talk *t, const char *text) {
    char *mine = *text ? strdup(text) : NULL;
    if (*text && !mine) return false;
    free(t->system);
    t->system = mine;
    return true;
}

/* ---- the conversation as tokens ---------------------------------------------------------- */

static char *dump(const talk *t, bool generation_prompt) {
    json_t *all = json_array();
    const size_t n = json_array_size(t->messages);
    if (t->system)
        json_array_append_new(all, json_pack("{s:s, s:o}", "role", "system", "content",
                                             output_text(t->system, strlen(t->system))));
    for (size_t i = t->first; i < n; i++) json_array_append(all, json_array_get(t->messages, i));
    json_t *o = json_pack("{s:o, s:b, s:b}", "messages", all, "enable_thinking", t->think,
                          "add_generation_prompt", generation_prompt);
    if (t->tools) json_object_set(o, "tools", t->tools);
    char *text = o ? json_dumps(o, 0) : NULL;
    json_decref(o);
    return text;
}

static kk_status encode(const talk *t, bool generation_prompt, int32_t **ids, size_t *n,
                        kk_err *err) {
    char *text = dump(t, generation_prompt);
    *ids = NULL;
    if (!text) return fail(err, KK_ENOMEM, "out of memory");
    kk_status st = kk_chat_encode(t->tok, text, strlen(text), ids, n, err);
    free(text);
    return st;
}

static size_t common(const int32_t *a, size_t na, const int32_t *b, size_t nb) {
    size_t n = 0;
    while (n < na && n < nb && a[n] == b[n]) n++;
    return n;
}

static kk_status append(talk *t, const int32_t *ids, size_t from, size_t to, kk_err *err) {
    term_progress bar;
    if (from >= to) return KK_OK;
    t->read += (int32_t)(to - from);
    term_progress_begin(&bar, "reading", "tok", t->quiet);
    kk_status st =
        kk_session_append(t->session, ids + from, to - from, term_progress_step, &bar, err);
    term_progress_end(&bar);
    return st;
}

/* Brings the session to these tokens.  `shared` of them come before the generation prompt, where
 * the next turn will part from this one: that point is marked. */
static kk_status bring_to(talk *t, const int32_t *ids, size_t n, size_t shared, kk_err *err) {
    size_t held = (size_t)kk_session_len(t->session);
    size_t keep = common(kk_session_tokens(t->session), held, ids, n);
    if (keep == n) keep--; /* the last token must be evaluated to choose the next */
    kk_status st = kk_session_rewind(t->session, (int32_t)keep, &t->read, err);
    if (st == KK_OK && keep < shared) {
        st = append(t, ids, keep, shared, err);
        if (st == KK_OK) st = kk_session_checkpoint(t->session, err);
        keep = shared;
    }
    return st == KK_OK ? append(t, ids, keep, n, err) : st;
}

/* The oldest turns give way until the conversation and an answer to it fit the context.  They stay
 * away from then on, so that the session's prefix stays; they are messages still, for /save. */
static kk_status encode_what_fits(talk *t, int32_t **ids, size_t *n, kk_err *err) {
    const int32_t ctx = kk_session_ctx(t->session), most = ctx - turns_reserve(ctx, t->predict);
    for (;;) {
        const kk_status st = encode(t, true, ids, n, err);
        if (st != KK_OK || t->no_shift || *n <= (size_t)most) return st;
        if (!turns_drop_oldest(t->messages, &t->first)) return KK_OK;
        t->dropped++;
        kk_free(*ids);
    }
}

static kk_status prepare(talk *t, kk_err *err) {
    int32_t *ids = NULL, *base = NULL;
    size_t n = 0, n_base = 0;
    kk_status st = encode_what_fits(t, &ids, &n, err);
    if (st == KK_OK) st = encode(t, false, &base, &n_base, err);
    if (st == KK_OK) st = bring_to(t, ids, n, common(ids, n, base, n_base), err);
    kk_free(ids);
    kk_free(base);
    return st;
}

/* ---- the answer -------------------------------------------------------------------------- */

static bool on_token(void *user, int32_t id) {
    talk *t = user;
    return reply_token(&t->reply, id);
}

static kk_status generate(talk *t, kk_result *result, kk_err *err) {
    int32_t turn_end = kk_tokenizer_special(t->tok, "<turn|>");
    const kk_generate_opts opts = {.max_tokens = t->predict < 0 ? 0 : t->predict,
                                   .sampling = t->sampling,
                                   .stop_ids = &turn_end,
                                   .n_stop_ids = turn_end >= 0};
    const kk_answer_opts apart = {
        .tok = t->tok, .stops = t->stops->word, .n_stops = (size_t)t->stops->n};
    reply_close(&t->reply);
    if (!reply_open(&t->reply, &apart, err)) return err->code;
    kk_status st = KK_OK;
    if (t->predict != 0) st = kk_generate(t->session, &opts, on_token, t, result, err);
    reply_finish(&t->reply);
    if (st == KK_OK && t->reply.fault.code != KK_OK) {
        *err = t->reply.fault;
        st = err->code;
    }
    return st;
}

static json_t *call_object(const json_t *call, size_t i) {
    char id[32];
    snprintf(id, sizeof id, "call_%zu", i);
    return json_pack("{s:s, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name",
                     json_object_get(call, "name"), "arguments",
                     json_object_get(call, "arguments"));
}

/* The answer as a message: text, calls that can be read, and what led to them. */
static bool add_answer(talk *t) {
    const reply *r = &t->reply;
    json_t *calls = json_array(), *call;
    size_t i;
    json_array_foreach(r->calls, i, call) {
        if (json_object_get(call, "name")) json_array_append_new(calls, call_object(call, i));
    }
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                output_text(r->text.bytes ? r->text.bytes : "", r->text.len));
    if (json_array_size(calls)) {
        json_object_set(message, "tool_calls", calls);
        if (r->thought.len)
            json_object_set_new(message, "reasoning",
                                output_text(r->thought.bytes, r->thought.len));
    }
    json_decref(calls);
    return json_array_append_new(t->messages, message) == 0;
}

/* Answers what the messages have come to; on failure puts back those that were before. */
static kk_status answer(talk *t, json_t *before, kk_result *result, kk_err *err) {
    const size_t first = t->first;
    kk_status st = before ? prepare(t, err) : fail(err, KK_ENOMEM, "out of memory");
    if (st == KK_OK) st = generate(t, result, err);
    if (st == KK_OK && !add_answer(t)) st = fail(err, KK_ENOMEM, "out of memory");
    if (st != KK_OK && before) {
        json_decref(t->messages);
        t->messages = json_incref(before);
        t->first = first;
    }
    json_decref(before);
    return st;
}

/* ---- messages ---------------------------------------------------------------------------- */

static const char *role_of(const json_t *message) {
    return json_string_value(json_object_get(message, "role"));
}

static bool has_role(const json_t *message, const char *role) {
    const char *name = role_of(message);
    return name && strcmp(name, role) == 0;
}

/* The first call of the last answer that has no result; NULL: there is none. */
static const json_t *open_call(const talk *t) {
    size_t n = json_array_size(t->messages), results = 0;
    while (n > 0 && has_role(json_array_get(t->messages, n - 1), "tool")) n--, results++;
    if (n == 0) return NULL;
    return json_array_get(json_object_get(json_array_get(t->messages, n - 1), "tool_calls"),
                          results);
}

const char *talk_awaits(const talk *t) {
    const json_t *function = json_object_get(open_call(t), "function");
    return json_string_value(json_object_get(function, "name"));
}

/* A result that is a JSON object is passed on as one. */
static json_t *result_message(const json_t *call, const char *text, size_t len) {
    json_t *content = json_loadb(text, len, 0, NULL);
    if (!json_is_object(content)) {
        json_decref(content);
        content = output_text(text, len);
    }
    return json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", json_object_get(call, "id"),
                     "content", content);
}

kk_status talk_ask(talk *t, const char *text, size_t len, kk_result *result, kk_err *err) {
    json_t *before = json_copy(t->messages);
    const json_t *call = open_call(t);
    json_t *message =
        call ? result_message(call, text, len)
             : json_pack("{s:s, s:o}", "role", "user", "content", output_text(text, len));
    *result = (kk_result){.stop = KK_STOP_EOS};
    t->dropped = 0;
    if (json_array_append_new(t->messages, message) != 0) {
        json_decref(before);
        return fail(err, KK_ENOMEM, "out of memory");
    }
    if (!open_call(t)) return answer(t, before, result, err);
    json_decref(before);
    return KK_OK;
}

static void truncate_messages(talk *t, size_t n) {
    while (json_array_size(t->messages) > n)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    if (t->first >= n) t->first = 0; /* nothing is left after those that gave way */
}

/* Messages up to and with the last of the user; 0: there is none. */
static size_t last_user(const talk *t) {
    size_t n = json_array_size(t->messages);
    while (n > 0 && !has_role(json_array_get(t->messages, n - 1), "user")) n--;
    return n;
}

bool talk_asked(const talk *t) { return last_user(t) > 0; }

kk_status talk_retry(talk *t, kk_result *result, kk_err *err) {
    json_t *before = json_copy(t->messages);
    *result = (kk_result){.stop = KK_STOP_EOS};
    t->dropped = 0;
    truncate_messages(t, last_user(t));
    t->sampling.seed++; /* the same seed would draw the same answer */
    return answer(t, before, result, err);
}

bool talk_undo(talk *t) {
    const size_t n = last_user(t);
    if (n == 0) return false;
    truncate_messages(t, n - 1);
    return true;
}

void talk_clear(talk *t) {
    json_array_clear(t->messages);
    t->first = 0;
}

/* ---- files ------------------------------------------------------------------------------- */

static kk_status write_json(const char *path, const json_t *o, kk_err *err) {
    const kk_writer_opts opts = {.replace = true, .owner_only = true};
    kk_writer *w;
    kk_status st = kk_writer_open(&w, path, &opts, err);
    if (st == KK_OK) st = kk_report_write_exact(w, o, err);
    kk_writer_close(w);
    return st;
}

kk_status talk_save(const talk *t, const char *path, kk_err *err) {
    json_t *o =
        json_pack("{s:i, s:b, s:O}", "kakeya_chat", 1, "think", t->think, "messages", t->messages);
    if (t->system) json_object_set_new(o, "system", output_text(t->system, strlen(t->system)));
    if (t->tools) json_object_set(o, "tools", t->tools);
    const kk_status st = o ? write_json(path, o, err) : fail(err, KK_ENOMEM, "out of memory");
    json_decref(o);
    return st;
}

/* Renders it once, so that what the format refuses is refused now. */
static kk_status check(const talk *t, kk_err *err) {
    int32_t *ids;
    size_t n;
    if (json_array_size(t->messages) == 0) return KK_OK;
    const kk_status st = encode(t, true, &ids, &n, err);
    kk_free(ids);
    return st;
}

static kk_status take_over(talk *t, json_t *o, kk_err *err) {
    const char *system = json_string_value(json_object_get(o, "system"));
    talk loaded = *t;
    loaded.messages = json_object_get(o, "messages");
    loaded.first = 0;
    loaded.tools = json_object_get(o, "tools");
    loaded.think = json_is_true(json_object_get(o, "think"));
    loaded.system = system ? strdup(system) : NULL;
    kk_status st = check(&loaded, err);
    if (st != KK_OK) {
        free(loaded.system);
        return st;
    }
    json_incref(loaded.messages);
    json_incref(loaded.tools);
    json_decref(t->messages);
    json_decref(t->tools);
    free(t->system);
    *t = loaded;
    return KK_OK;
}

kk_status talk_load(talk *t, const char *path, kk_err *err) {
    json_t *o = prompt_json(path, err);
    if (!o) return err->code;
    kk_status st;
    if (json_is_integer(json_object_get(o, "kakeya_chat")) &&
        json_is_array(json_object_get(o, "messages")))
        st = take_over(t, o, err);
    else
        st = fail(err, KK_EFORMAT, "'%.150s' is not a conversation that /save wrote", path);
    json_decref(o);
    return st;
}
