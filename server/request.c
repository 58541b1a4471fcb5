/* request.c - see request.h.
 *
 * Members that are not known are ignored, as clients expect; a known one with a value that cannot
 * be honoured is refused, never passed over. */
#include "server/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* While one is read: the first fault stays. */
typedef struct {
    request *r;
    const request_defaults *d;
    fault *f;
} reading;

/* A member, or NULL when it is missing or null. */
static const json_t *member(const reading *in, const char *name) {
    const json_t *v = json_object_get(in->r->root, name);
    return json_is_null(v) ? NULL : v;
}

static const char *type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

static bool wrong(const reading *in, const char *name, const char *wants, const json_t *v) {
    return fault_set(in->f, 400, name, "'%s' must be %s, not %s", name, wants, type_name(v));
}

static bool read_bool(const reading *in, const char *name, bool *out) {
    const json_t *v = member(in, name);
    if (v && !json_is_boolean(v)) return wrong(in, name, "true or false", v);
    if (v) *out = json_is_true(v);
    return true;
}

static bool read_int(const reading *in, const char *name, int64_t min, int64_t max, int32_t *out) {
    const json_t *v = member(in, name);
    if (!v) return true;
    if (!json_is_integer(v)) return wrong(in, name, "an integer", v);
    const json_int_t x = json_integer_value(v);
    if (x < min || x > max)
        return fault_set(in->f, 400, name, "'%s' is %lld: it must be from %lld to %lld", name,
                         (long long)x, (long long)min, (long long)max);
    *out = (int32_t)x;
    return true;
}

static bool read_real(const reading *in, const char *name, double min, double max, float *out) {
    const json_t *v = member(in, name);
    if (!v) return true;
    if (!json_is_number(v)) return wrong(in, name, "a number", v);
    const double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return fault_set(in->f, 400, name, "'%s' is %g: it must be from %g to %g", name, x, min,
                         max);
    *out = (float)x;
    return true;
}

/* ---- sampling ---------------------------------------------------------------------------- */

static bool read_seed(const reading *in) {
    const json_t *v = member(in, "seed");
    if (!v) return true;
    if (!json_is_integer(v)) return wrong(in, "seed", "an integer", v);
    in->r->seeded = json_integer_value(v) != -1; /* -1 is a random one, as elsewhere */
    in->r->sampling.seed = (uint64_t)json_integer_value(v);
    return true;
}

static bool read_sampling(const reading *in) {
    kk_sampling *s = &in->r->sampling;
    /* To the library a top_p of 0 is off; to clients it is the likeliest token alone. */
    const json_t *top_p = member(in, "top_p");
    const bool read =
        read_real(in, "temperature", 0, 100, &s->temp) && read_real(in, "top_p", 0, 1, &s->top_p) &&
        read_int(in, "top_k", -1, INT32_MAX, &s->top_k) &&
        read_real(in, "min_p", 0, 1, &s->min_p) &&
        read_real(in, "repeat_penalty", 0, 100, &s->repeat_penalty) &&
        read_real(in, "presence_penalty", -100, 100, &s->presence_penalty) &&
        read_real(in, "frequency_penalty", -100, 100, &s->frequency_penalty) &&
        read_int(in, "repeat_last_n", -1, INT32_MAX, &s->penalty_last_n) && read_seed(in);
    if (s->top_k < 0) s->top_k = 0;
    if (top_p && s->top_p == 0) s->top_p = 1e-6f;
    return read;
}

/* {"15043": -100}: ids as strings. */
static bool read_bias(const reading *in) {
    const json_t *map = member(in, "logit_bias");
    if (!map) return true;
    if (!json_is_object(map)) return wrong(in, "logit_bias", "an object", map);
    const size_t n = json_object_size(map);
    if (n > REQUEST_BIASES)
        return fault_set(in->f, 400, "logit_bias", "'logit_bias' has %zu tokens: %d at most", n,
                         REQUEST_BIASES);
    in->r->bias = n ? calloc(n, sizeof *in->r->bias) : NULL;
    if (n && !in->r->bias) return fault_set(in->f, 503, NULL, "out of memory");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value) {
        char *end;
        const long id = strtol(key, &end, 10);
        if (end == key || *end || id < 0 || id >= in->d->vocab)
            return fault_set(in->f, 400, "logit_bias",
                             "'logit_bias' has the key '%.40s': it must be a token id from 0 to %d",
                             key, in->d->vocab - 1);
        const double bias = json_number_value(value);
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return fault_set(in->f, 400, "logit_bias",
                             "'logit_bias' of token %ld must be a number from -100 to 100", id);
        /* -100 means never, as OpenAI has it. */
        const float added = bias <= -100 ? -INFINITY : (float)bias;
        in->r->bias[in->r->n_bias++] = (kk_logit_bias){(int32_t)id, added};
    }
    return true;
}

/* ---- what comes out ---------------------------------------------------------------------- */

static bool add_stop(const reading *in, const json_t *text) {
    if (!json_is_string(text)) return wrong(in, "stop", "a string or a list of strings", text);
    if (json_string_length(text) == 0)
        return fault_set(in->f, 400, "stop", "'stop' has an empty string in it");
    if (strlen(json_string_value(text)) != json_string_length(text))
        return fault_set(in->f, 400, "stop", "'stop' has a NUL character in it");
    if (in->r->n_stops == REQUEST_STOPS)
        return fault_set(in->f, 400, "stop", "'stop' has more than %d texts", REQUEST_STOPS);
    in->r->stops[in->r->n_stops++] = json_string_value(text);
    return true;
}

static bool read_stops(const reading *in) {
    const json_t *v = member(in, "stop");
    if (!v) return true;
    if (!json_is_array(v)) return add_stop(in, v);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_stop(in, json_array_get(v, i))) return false;
    return true;
}

/* Chat has a flag and a count; completions have a count. */
static bool read_logprobs(const reading *in) {
    bool wanted = false;
    int32_t best = 0;
    in->r->logprobs = -1;
    if (!in->d->chat) return read_int(in, "logprobs", 0, KK_MAX_LOGPROBS, &in->r->logprobs);
    if (!read_bool(in, "logprobs", &wanted) ||
        !read_int(in, "top_logprobs", 0, KK_MAX_LOGPROBS, &best))
        return false;
    if (member(in, "top_logprobs") && !wanted)
        return fault_set(in->f, 400, "top_logprobs", "'top_logprobs' goes with 'logprobs': true");
    if (wanted) in->r->logprobs = best;
    return true;
}

static bool read_length(const reading *in) {
    /* max_completion_tokens is the later name, and wins. */
    return read_int(in, "max_tokens", 1, INT32_MAX, &in->r->max_tokens) &&
           read_int(in, "max_completion_tokens", 1, INT32_MAX, &in->r->max_tokens);
}

static bool read_stream(const reading *in) {
    const json_t *o = member(in, "stream_options");
    if (!read_bool(in, "stream", &in->r->stream)) return false;
    if (!o) return true;
    if (!json_is_object(o)) return wrong(in, "stream_options", "an object", o);
    if (!in->r->stream)
        return fault_set(in->f, 400, "stream_options", "'stream_options' goes with 'stream': true");
    const json_t *usage = json_object_get(o, "include_usage");
    if (usage && !json_is_boolean(usage) && !json_is_null(usage))
        return wrong(in, "stream_options.include_usage", "true or false", usage);
    in->r->include_usage = json_is_true(usage);
    return true;
}

static bool read_format(const reading *in) {
    const json_t *v = member(in, "response_format");
    if (!v) return true;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!json_is_object(v) || !type)
        return fault_set(in->f, 400, "response_format",
                         "'response_format' must be an object with a 'type'");
    if (strcmp(type, "text") == 0) return true;
    return fault_set(in->f, 501, "response_format",
                     "'response_format' of type '%.40s' is not supported yet: only 'text' is",
                     type);
}

/* ---- a chat ------------------------------------------------------------------------------ */

static bool check_message(const reading *in, size_t i, const json_t *m) {
    char at[48];
    snprintf(at, sizeof at, "messages[%zu]", i);
    if (!json_is_object(m)) return wrong(in, at, "an object", m);
    const json_t *content = json_object_get(m, "content");
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!role) return fault_set(in->f, 400, at, "%s has no 'role'", at);
    const bool absent = !content || json_is_null(content);
    if (absent && strcmp(role, "assistant") != 0)
        return fault_set(in->f, 400, at, "%s has no 'content'", at);
    return true;
}

static bool read_messages(const reading *in) {
    const json_t *m = member(in, "messages");
    if (!m) return fault_set(in->f, 400, "messages", "'messages' is missing");
    if (!json_is_array(m)) return wrong(in, "messages", "a list", m);
    const size_t n = json_array_size(m);
    if (n == 0) return fault_set(in->f, 400, "messages", "'messages' is empty");
    if (n > (size_t)in->d->max_messages)
        return fault_set(in->f, 400, "messages", "'messages' has %zu messages: %d at most", n,
                         in->d->max_messages);
    for (size_t i = 0; i < n; i++)
        if (!check_message(in, i, json_array_get(m, i))) return false;
    in->r->messages = m;
    return true;
}

/* "none" hides the tools; that one must be called cannot be enforced yet. */
static bool read_tool_choice(const reading *in) {
    const json_t *v = member(in, "tool_choice");
    const char *word = json_string_value(v);
    if (!v || (word && strcmp(word, "auto") == 0)) return true;
    if (word && strcmp(word, "none") == 0) {
        in->r->tools = NULL;
        return true;
    }
    if (json_is_object(v) || (word && strcmp(word, "required") == 0))
        return fault_set(in->f, 501, "tool_choice",
                         "a 'tool_choice' that makes the model call is not supported yet: only "
                         "'auto' and 'none' are");
    return fault_set(in->f, 400, "tool_choice", "'tool_choice' must be 'auto' or 'none'");
}

static bool read_tools(const reading *in) {
    const json_t *v = member(in, "tools");
    bool several = true;
    if (v && !json_is_array(v)) return wrong(in, "tools", "a list", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *function = json_object_get(json_array_get(v, i), "function");
        if (!json_is_string(json_object_get(function, "name")))
            return fault_set(in->f, 400, "tools", "tools[%zu] has no function with a name", i);
    }
    in->r->tools = json_array_size(v) > 0 ? v : NULL;
    if (!read_tool_choice(in) || !read_bool(in, "parallel_tool_calls", &several)) return false;
    in->r->one_call = !several;
    return true;
}

/* reasoning_effort and chat_template_kwargs.enable_thinking both say whether to think. */
static bool read_thinking(const reading *in) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    const json_t *effort = member(in, "reasoning_effort");
    const json_t *kwargs = member(in, "chat_template_kwargs");
    in->r->think = in->d->think;
    if (effort) {
        const char *word = json_string_value(effort);
        size_t i = 0;
        while (i < 6 && (!word || strcmp(word, efforts[i]) != 0)) i++;
        if (i == 6)
            return fault_set(
                in->f, 400, "reasoning_effort",
                "'reasoning_effort' must be none, minimal, low, medium, high or xhigh");
        in->r->think = i > 0;
    }
    if (!kwargs) return true;
    if (!json_is_object(kwargs)) return wrong(in, "chat_template_kwargs", "an object", kwargs);
    const json_t *think = json_object_get(kwargs, "enable_thinking");
    if (think && !json_is_boolean(think))
        return wrong(in, "chat_template_kwargs.enable_thinking", "true or false", think);
    if (think) in->r->think = json_is_true(think);
    return true;
}

/* ---- a completion ------------------------------------------------------------------------ */

static bool is_id_list(const json_t *v) {
    return json_is_array(v) && json_array_size(v) > 0 && json_is_integer(json_array_get(v, 0));
}

static bool check_ids(const reading *in, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id)) return wrong(in, "prompt", "a list of token ids only", id);
        const json_int_t x = json_integer_value(id);
        if (x < 0 || x >= in->d->vocab)
            return fault_set(in->f, 400, "prompt",
                             "'prompt' has the token %lld: ids are from 0 to %d", (long long)x,
                             in->d->vocab - 1);
    }
    return true;
}

static bool read_prompt(const reading *in) {
    const json_t *v = member(in, "prompt");
    if (!v) return fault_set(in->f, 400, "prompt", "'prompt' is missing");
    in->r->prompt = v;
    if (json_is_string(v)) return true;
    if (is_id_list(v)) return check_ids(in, v);
    if (!json_is_array(v) || json_array_size(v) == 0)
        return wrong(in, "prompt", "a string, a list of token ids, or a list of these", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        if (json_is_string(one)) continue;
        if (!is_id_list(one)) return wrong(in, "prompt", "text or token ids", one);
        if (!check_ids(in, one)) return false;
    }
    return true;
}

static bool refuse_unsupported(const reading *in) {
    const json_t *suffix = member(in, "suffix"), *best_of = member(in, "best_of");
    if (suffix && json_string_length(suffix) > 0)
        return fault_set(in->f, 501, "suffix",
                         "'suffix' is not supported: the model has no "
                         "tokens for filling in");
    if (best_of && json_integer_value(best_of) != in->r->n)
        return fault_set(in->f, 501, "best_of", "'best_of' other than 'n' is not supported");
    if (in->r->echo && in->r->logprobs >= 0)
        return fault_set(in->f, 501, "logprobs",
                         "'logprobs' with 'echo' is not supported: those of the prompt are not "
                         "computed");
    return true;
}

/* ---- all of it --------------------------------------------------------------------------- */

static bool check_choices(const reading *in) {
    const json_t *p = in->r->prompt;
    const size_t prompts = json_is_array(p) && !is_id_list(p) ? json_array_size(p) : 1;
    if (prompts * (size_t)in->r->n <= (size_t)in->d->max_choices) return true;
    return fault_set(in->f, 400, "n", "the request asks for %zu choices: %d at most",
                     prompts * (size_t)in->r->n, in->d->max_choices);
}

bool request_is_small(const char *body, size_t len, fault *f) {
    size_t values = 0, containers = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        const char c = body[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '[' || c == '{'))
            containers++;
        else if (!quoted && c == ',')
            values++;
    }
    if (values < REQUEST_VALUES && containers <= REQUEST_CONTAINERS) return true;
    return fault_set(f, 413, NULL, "the body has more than %d values, or %d lists and objects",
                     REQUEST_VALUES, REQUEST_CONTAINERS);
}

json_t *request_object(const char *body, size_t len, fault *f) {
    json_error_t at;
    if (!request_is_small(body, len, f)) return NULL;
    json_t *root = json_loadb(body ? body : "", len, 0, &at);
    if (!root) {
        fault_set(f, 400, NULL, "the body is not JSON: %s (line %d, column %d)", at.text, at.line,
                  at.column);
    } else if (!json_is_object(root)) {
        fault_set(f, 400, NULL, "the body must be an object, not %s", type_name(root));
        json_decref(root);
        root = NULL;
    }
    return root;
}

bool request_parse(request *out, const char *body, size_t len, const request_defaults *d,
                   fault *f) {
    *out = (request){.chat = d->chat, .n = 1, .sampling = d->sampling};
    const reading in = {out, d, f};
    if (!(out->root = request_object(body, len, f))) return false;
    if (!read_stream(&in) || !read_int(&in, "n", 1, d->max_choices, &out->n) || !read_length(&in) ||
        !read_sampling(&in) || !read_bias(&in) || !read_stops(&in) || !read_logprobs(&in) ||
        !read_format(&in) || !read_bool(&in, "ignore_eos", &out->ignore_eos))
        return false;
    if (d->chat) return read_messages(&in) && read_tools(&in) && read_thinking(&in);
    return read_prompt(&in) && read_bool(&in, "echo", &out->echo) && refuse_unsupported(&in) &&
           check_choices(&in);
}

bool request_generation(request *out, const char *body, size_t len, const request_defaults *d,
                        fault *f) {
    *out = (request){.n = 1, .logprobs = -1, .sampling = d->sampling};
    const reading in = {out, d, f};
    out->root = len > 0 ? request_object(body, len, f) : json_object();
    return out->root && read_stream(&in) && read_length(&in) && read_sampling(&in) &&
           read_bias(&in) && read_stops(&in) && read_bool(&in, "ignore_eos", &out->ignore_eos);
}

char *request_conversation(const request *r, bool system_only, bool generation_prompt,
                           size_t *len) {
    json_t *messages = json_incref((json_t *)r->messages);
    if (system_only) {
        json_decref(messages);
        messages = json_pack("[O]", json_array_get(r->messages, 0));
    }
    json_t *o = json_pack("{s:o, s:b, s:b}", "messages", messages, "enable_thinking", r->think,
                          "add_generation_prompt", generation_prompt);
    if (r->tools) json_object_set(o, "tools", (json_t *)r->tools);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    *len = text ? strlen(text) : 0;
    return text;
}

void request_free(request *r) {
    json_decref(r->root);
    free(r->bias);
}
