/* sessions_json.c - see sessions_json.h. */
#include "server/sessions_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/text.h"

/* ---- members ----------------------------------------------------------------------------- */

static const json_t *member(const json_t *body, const char *name) {
    const json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

static bool read_int(const json_t *body, const char *name, int64_t min, int64_t max, int32_t *out,
                     fault *f) {
    const json_t *v = member(body, name);
    if (!v) return true;
    const json_int_t x = json_integer_value(v);
    if (!json_is_integer(v) || x < min || x > max)
        return fault_set(f, 400, name, "'%s' must be an integer from %lld to %lld", name,
                         (long long)min, (long long)max);
    *out = (int32_t)x;
    return true;
}

/* One of some words; *out is its place. */
static bool read_word(const json_t *body, const char *name, const char *const *words, int n,
                      int *out, fault *f) {
    const json_t *v = member(body, name);
    const char *word = json_string_value(v);
    textbuf all = {0};
    if (!v) return true;
    for (int i = 0; word && i < n; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = i;
            return true;
        }
    for (int i = 0; i < n; i++) text_printf(&all, "%s%s", i ? ", " : "", words[i]);
    fault_set(f, 400, name, "'%s' must be one of: %s", name, all.bytes ? all.bytes : "");
    text_free(&all);
    return false;
}

bool sessions_json_ids(const json_t *body, const char *name, int32_t vocab, size_t most,
                       int32_t **out, size_t *n, fault *f) {
    const json_t *list = member(body, name);
    *out = NULL;
    *n = json_array_size(list);
    if (!list) return true;
    if (!json_is_array(list))
        return fault_set(f, 400, name, "'%s' must be a list of token ids", name);
    if (*n > most) return fault_set(f, 400, name, "'%s' has %zu ids: %zu at most", name, *n, most);
    *out = calloc(*n + 1, sizeof **out);
    if (!*out) return fault_set(f, 503, NULL, "out of memory");
    for (size_t i = 0; i < *n; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t x = json_integer_value(id);
        if (!json_is_integer(id) || x < 0 || x >= vocab)
            return fault_set(f, 400, name, "%s[%zu] must be a token id from 0 to %d", name, i,
                             vocab - 1);
        (*out)[i] = (int32_t)x;
    }
    return true;
}

/* ---- a new session ----------------------------------------------------------------------- */

static bool read_label(const json_t *body, sessions_how *how, fault *f) {
    const json_t *v = member(body, "label");
    if (!v) return true;
    if (!json_is_string(v) || json_string_length(v) >= SESSIONS_LABEL ||
        strlen(json_string_value(v)) != json_string_length(v))
        return fault_set(f, 400, "label", "'label' must be a string of at most %d bytes",
                         SESSIONS_LABEL - 1);
    snprintf(how->label, sizeof how->label, "%s", json_string_value(v));
    return true;
}

static bool read_cache(const json_t *body, kk_session_opts *o, fault *f) {
    static const char *const sliding[] = {"native", "window", "restored"};
    static const char *const full[] = {"exact", "window", "restored"};
    const char *formats[KK_KV_FORMATS], *specs[KK_SPEC_NGRAM + 1];
    for (int i = 0; i < KK_KV_FORMATS; i++) formats[i] = kk_kv_format_name((kk_kv_format)i);
    for (int i = 0; i <= KK_SPEC_NGRAM; i++) specs[i] = kk_spec_name((kk_spec)i);
    int keep_sliding = (int)o->kv_sliding, keep_full = (int)o->kv_full;
    int format = (int)o->kv_format, spec = (int)o->spec;
    if (!read_word(body, "kv_sliding", sliding, 3, &keep_sliding, f) ||
        !read_word(body, "kv_full", full, 3, &keep_full, f) ||
        !read_word(body, "kv_format", formats, KK_KV_FORMATS, &format, f) ||
        !read_word(body, "spec", specs, KK_SPEC_NGRAM + 1, &spec, f))
        return false;
    o->kv_sliding = (kk_keep)keep_sliding;
    o->kv_full = (kk_keep)keep_full;
    o->kv_format = (kk_kv_format)format;
    o->spec = (kk_spec)spec;
    return read_int(body, "context", 1, INT32_MAX, &o->ctx, f) &&
           read_int(body, "sink", -1, 1 << 20, &o->sink, f) &&
           read_int(body, "window", -1, 1 << 20, &o->window, f) &&
           read_int(body, "chunk", 0, 1 << 20, &o->chunk, f) &&
           read_int(body, "draft_max", 0, KK_MAX_DRAFT, &o->draft_max, f);
}

bool sessions_json_how(const json_t *body, int32_t vocab, sessions_how *how, fault *f) {
    int32_t *stops;
    size_t n;
    bool good = read_label(body, how, f) && read_cache(body, &how->session, f);
    if (!good) return false;
    good = sessions_json_ids(body, "stop_token_ids", vocab, SESSIONS_STOP_IDS, &stops, &n, f);
    if (good && n) memcpy(how->stop_ids, stops, n * sizeof *stops);
    if (good) how->n_stop_ids = (int32_t)n;
    free(stops);
    return good;
}

static const char *keep_name(kk_keep k, const char *all) {
    return k == KK_KEEP_WINDOW ? "window" : k == KK_KEEP_RESTORED ? "restored" : all;
}

static json_t *sampling_json(const kk_sampling *s) {
    return json_pack("{s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:I}", "temperature",
                     (double)s->temp, "top_k", (int)s->top_k, "top_p", (double)s->top_p, "min_p",
                     (double)s->min_p, "repeat_penalty", (double)s->repeat_penalty,
                     "presence_penalty", (double)s->presence_penalty, "frequency_penalty",
                     (double)s->frequency_penalty, "repeat_last_n", (int)s->penalty_last_n, "seed",
                     (json_int_t)s->seed);
}

char *sessions_how_text(const sessions_how *how) {
    const kk_session_opts *s = &how->session;
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s}", "label", how->label,
                  "context", (int)s->ctx, "sink", (int)s->sink, "window", (int)s->window, "chunk",
                  (int)s->chunk, "draft_max", (int)s->draft_max, "kv_sliding",
                  keep_name(s->kv_sliding, "native"), "kv_full", keep_name(s->kv_full, "exact"),
                  "kv_format", kk_kv_format_name(s->kv_format), "spec", kk_spec_name(s->spec));
    json_t *stops = json_array();
    for (int32_t i = 0; i < how->n_stop_ids; i++)
        json_array_append_new(stops, json_integer(how->stop_ids[i]));
    json_object_set_new(o, "stop_token_ids", stops);
    json_t *sampling = sampling_json(&how->sampling);
    json_object_update(o, sampling);
    json_decref(sampling);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

bool sessions_how_parse(const char *text, int32_t vocab, sessions_how *how) {
    const request_defaults d = {
        .sampling = how->sampling, .max_messages = 1, .max_choices = 1, .vocab = vocab};
    request r;
    fault f = {0};
    /* Ids that end it were taken as they are when it was made: beyond the vocabulary, too. */
    const bool read = request_generation(&r, text, strlen(text), &d, &f) &&
                      sessions_json_how(r.root, INT32_MAX, how, &f);
    if (read) how->sampling = r.sampling;
    request_free(&r);
    return read;
}

/* ---- what is appended -------------------------------------------------------------------- */

static bool read_messages(const json_t *body, int32_t most, bool think, sessions_addition *out,
                          fault *f) {
    const json_t *list = member(body, "messages"), *tools = member(body, "tools");
    const json_t *thinks = member(body, "enable_thinking");
    const json_t *prompts = member(body, "add_generation_prompt");
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > (size_t)most)
        return fault_set(f, 400, "messages", "'messages' must be a list of 1 to %d", most);
    json_t *o = json_pack("{s:O, s:b, s:b}", "messages", (json_t *)list, "enable_thinking",
                          thinks ? json_is_true(thinks) : think, "add_generation_prompt",
                          prompts ? json_is_true(prompts) : true);
    if (tools) json_object_set(o, "tools", (json_t *)tools);
    out->messages = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return out->messages || fault_set(f, 503, NULL, "out of memory");
}

bool sessions_json_addition(const json_t *body, int32_t vocab, int32_t max_messages, bool think,
                            sessions_addition *out, fault *f) {
    const json_t *tokens = member(body, "tokens"), *text = member(body, "text");
    const json_t *messages = member(body, "messages");
    *out = (sessions_addition){0};
    if ((tokens != NULL) + (text != NULL) + (messages != NULL) != 1)
        return fault_set(f, 400, NULL, "give one of 'tokens', 'text' and 'messages'");
    if (messages) return read_messages(body, max_messages, think, out, f);
    if (tokens)
        return sessions_json_ids(body, "tokens", vocab, INT32_MAX, &out->tokens, &out->n, f);
    if (!json_is_string(text)) return fault_set(f, 400, "text", "'text' must be a string");
    out->text = json_string_value(text);
    out->len = json_string_length(text);
    return true;
}

void sessions_addition_free(sessions_addition *a) {
    free(a->tokens);
    free(a->messages);
    *a = (sessions_addition){0};
}

bool sessions_json_place(const json_t *body, sessions_place *out, fault *f) {
    int32_t at = -1, turn = -1;
    if (!read_int(body, "at", 0, INT32_MAX, &at, f) ||
        !read_int(body, "turn", 0, INT32_MAX, &turn, f))
        return false;
    if (at >= 0 && turn >= 0) return fault_set(f, 400, "at", "'at' and 'turn' exclude each other");
    *out = (sessions_place){.tokens = at, .turn = turn};
    return true;
}

/* ---- answers ----------------------------------------------------------------------------- */

json_t *sessions_info_json(const sessions_info *i) {
    const kk_session_opts *o = &i->session;
    json_t *kv = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:I}", "format", kk_kv_format_name(o->kv_format),
        "sliding", keep_name(o->kv_sliding, "native"), "full", keep_name(o->kv_full, "exact"),
        "sink", (int)o->sink, "window", (int)o->window, "chunk", (int)o->chunk, "bytes",
        (json_int_t)i->kv_bytes, "tokens", (json_int_t)i->kv_tokens);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:b, s:b, s:b, s:f, s:o, s:o, "
                     "s:[I,I,I]}",
                     "id", i->id, "object", "session", "label", i->label, "created",
                     (json_int_t)i->created, "history_length", (json_int_t)i->history, "turns",
                     (int)i->turns, "context", (int)i->context, "spec", kk_spec_name(o->spec),
                     "busy", i->busy, "resident", i->resident, "stored", i->stored, "idle_seconds",
                     i->idle_s, "kv", kv, "sampling", sampling_json(&i->sampling),
                     "invariant_violations", (json_int_t)i->violations[0],
                     (json_int_t)i->violations[1], (json_int_t)i->violations[2]);
}

json_t *sessions_appended_json(const char *id, const sessions_appended *a) {
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "id", id, "history_length",
                     (json_int_t)a->history, "added_tokens", (json_int_t)a->added, "cached_tokens",
                     (json_int_t)a->cached, "evaluated_tokens", (json_int_t)a->evaluated, "seconds",
                     a->seconds);
}

json_t *sessions_generated_json(const sessions_generated *g) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)g->logits_hash);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:s}", "stop_reason",
                     sessions_stop_name(g->stop), "history_length", (json_int_t)g->history,
                     "generated_tokens", (json_int_t)g->generated, "cached_tokens",
                     (json_int_t)g->cached, "evaluated_tokens", (json_int_t)g->evaluated,
                     "prefill_seconds", g->prefill_s, "decode_seconds", g->decode_s, "rounds",
                     (json_int_t)g->rounds, "drafted_tokens", (json_int_t)g->drafted,
                     "accepted_tokens", (json_int_t)g->accepted, "logits_hash", hash);
}
