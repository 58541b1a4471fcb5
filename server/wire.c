/* wire.c - see wire.h. */
#include "server/wire.h"

#include <math.h>
#include <string.h>
#include <time.h>

void wire_open(wire *w, bool chat, bool stream, bool include_usage) {
    *w = (wire){.chat = chat,
                .stream = stream,
                .include_usage = include_usage,
                .created = (int64_t)time(NULL)};
    text_random_name(w->id, sizeof w->id, chat ? "chatcmpl-" : "cmpl-");
}

json_t *wire_response(const wire *w, json_t *choices, json_t *usage) {
    const char *object = !w->chat    ? "text_completion"
                         : w->stream ? "chat.completion.chunk"
                                     : "chat.completion";
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", w->id, "object", object,
                          "created", (json_int_t)w->created, "model", w->model,
                          "system_fingerprint", w->fingerprint, "choices", choices);
    if (usage || w->include_usage) json_object_set_new(o, "usage", usage ? usage : json_null());
    return o;
}

json_t *wire_usage_json(const wire_usage *u) {
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I, s:I, s:I}}", "prompt_tokens",
                     (json_int_t)u->prompt, "completion_tokens", (json_int_t)u->completion,
                     "total_tokens", (json_int_t)(u->prompt + u->completion),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)u->cached,
                     "completion_tokens_details", "reasoning_tokens", (json_int_t)u->reasoning,
                     "accepted_prediction_tokens", (json_int_t)u->accepted,
                     "rejected_prediction_tokens", (json_int_t)u->rejected);
}

static json_t *timings(const wire_usage *u) {
    const double rate = u->decode_s > 0 ? (double)u->completion / u->decode_s : 0;
    return json_pack("{s:I, s:I, s:f, s:I, s:f, s:f}", "cache_n", (json_int_t)u->cached, "prompt_n",
                     (json_int_t)(u->prompt - u->cached), "prompt_ms", 1e3 * u->prompt_s,
                     "predicted_n", (json_int_t)u->completion, "predicted_ms", 1e3 * u->decode_s,
                     "predicted_per_second", rate);
}

static json_t *speculation(const wire_usage *u) {
    const int64_t drafted = u->accepted + u->rejected;
    const double rounds = (double)u->rounds;
    json_t *histogram = json_array();
    int last = KK_MAX_DRAFT;
    while (last > 0 && u->histogram[last] == 0) last--;
    for (int i = 0; i <= last; i++)
        json_array_append_new(histogram, json_integer((json_int_t)u->histogram[i]));
    return json_pack(
        "{s:{s:f, s:f, s:o, s:I, s:I, s:I}}", "speculative_decoding", "mean_acceptance_length",
        rounds > 0 ? 1 + (double)u->accepted / rounds : 0, "draft_acceptance_rate",
        drafted > 0 ? (double)u->accepted / (double)drafted : 0, "acceptance_histogram", histogram,
        "num_spec_steps", (json_int_t)u->rounds, "num_draft_tokens", (json_int_t)drafted,
        "num_accepted_tokens", (json_int_t)u->accepted);
}

void wire_measured(json_t *response, const wire_usage *u) {
    json_object_set_new(response, "timings", timings(u));
    json_object_set_new(response, "metrics", speculation(u));
}

json_t *wire_choice(const wire *w, int32_t index, json_t *said, json_t *logprobs,
                    const char *finish) {
    const char *name = !w->chat ? "text" : w->stream ? "delta" : "message";
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)index, name, said, "logprobs",
                     logprobs ? logprobs : json_null(), "finish_reason", finish);
}

void wire_event(textbuf *out, json_t *object) {
    text_add(out, "data: ", 6);
    text_add_json(out, object);
    text_add(out, "\n\n", 2);
}

/* ---- log-probabilities ------------------------------------------------------------------- */

static json_t *token_json(const kk_tokenizer *tok, const kk_logprob *p) {
    char *bytes = NULL;
    size_t n = 0;
    if (tok && kk_decode(tok, &p->id, 1, true, &bytes, &n, NULL) != KK_OK) return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    /* JSON has no -inf: what is that unlikely is as unlikely as can be written. */
    const double logprob = isfinite(p->logprob) ? (double)p->logprob : -9999.0;
    json_t *o = json_pack("{s:o, s:f, s:o}", "token", text_json(bytes ? bytes : "", n), "logprob",
                          logprob, "bytes", list);
    kk_free(bytes);
    return o;
}

json_t *wire_logprob(const kk_tokenizer *tok, const kk_logprobs *of) {
    json_t *o = token_json(tok, &of->chosen), *best = json_array();
    for (int32_t i = 0; i < of->n_best; i++)
        json_array_append_new(best, token_json(tok, &of->best[i]));
    json_object_set_new(o, "top_logprobs", best);
    return o;
}

/* Characters, not bytes. */
static size_t characters(const json_t *s) {
    const char *p = json_string_value(s);
    size_t n = 0;
    for (; p && *p; p++) n += ((unsigned char)*p & 0xc0) != 0x80;
    return n;
}

static json_t *best_map(const json_t *of) {
    json_t *map = json_object(), *one;
    size_t i;
    json_array_foreach(json_object_get(of, "top_logprobs"), i, one) {
        const char *token = json_string_value(json_object_get(one, "token"));
        if (token) json_object_set(map, token, json_object_get(one, "logprob"));
    }
    return map;
}

static json_t *in_arrays(const json_t *list, size_t *offset) {
    json_t *tokens = json_array(), *values = json_array(), *best = json_array();
    json_t *offsets = json_array(), *one;
    size_t i;
    json_array_foreach(list, i, one) {
        json_t *token = json_object_get(one, "token");
        json_array_append(tokens, token);
        json_array_append(values, json_object_get(one, "logprob"));
        json_array_append_new(best, best_map(one));
        json_array_append_new(offsets, json_integer((json_int_t)*offset));
        *offset += characters(token);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
                     "top_logprobs", best, "text_offset", offsets);
}

json_t *wire_logprobs(const wire *w, json_t *list, size_t *offset) {
    if (w->chat) return json_pack("{s:o, s:n}", "content", list, "refusal");
    json_t *o = in_arrays(list, offset);
    json_decref(list);
    return o;
}
