/* chat.c - renders a conversation in Gemma 4's format, and encodes one.
 *
 * The format is a run of turns between marks.  Two things make it more than that: an assistant's
 * calls and the tools' answers to them are written inside one model turn, which stays open while
 * answers come; and old reasoning is dropped, except the reasoning that led to calls the last
 * user message has not yet seen answered. */
#define _GNU_SOURCE
#include "format/chat.h"

#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "format/jsontree.h"
#include "format/tokenizer_parts.h"

/* What the last message ended with, which decides how the generation prompt starts. */
typedef enum { ENDED_TURN, ENDED_CALL, ENDED_RESPONSE } ending;

typedef struct {
    kk_chat_text out;
    const json_t *messages;
    size_t first; /* the first message that is a turn: 1 after a system message */
    size_t n;
    bool think;
    ending last;
} chat;

/* ---- reading messages ------------------------------------------------------------------- */

static const json_t *message(const chat *c, size_t i) { return json_array_get(c->messages, i); }

static const char *role_of(const chat *c, size_t i) {
    return json_string_value(json_object_get(message(c, i), "role"));
}

static bool has_role(const chat *c, size_t i, const char *role) {
    return strcmp(role_of(c, i), role) == 0;
}

static bool is_system(const chat *c, size_t i) {
    return has_role(c, i, "system") || has_role(c, i, "developer");
}

/* A member, or NULL when it is missing or null. */
static const json_t *member(const json_t *map, const char *name) {
    const json_t *v = json_object_get(map, name);
    return json_is_null(v) ? NULL : v;
}

static void check_roles(chat *c) {
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < c->n; i++) {
        if (!json_is_string(json_object_get(message(c, i), "role"))) {
            kk_chat_fail(&c->out, KK_EINVAL, "messages[%zu] has no role", i);
            return;
        }
        size_t k = 0;
        while (k < 5 && strcmp(role_of(c, i), known[k]) != 0) k++;
        if (k == 5) {
            kk_chat_fail(&c->out, KK_EINVAL,
                         "messages[%zu] has the role '%.40s': it must be system, developer, user, "
                         "assistant or tool",
                         i, role_of(c, i));
            return;
        }
    }
}

/* A list that may be missing; NULL when it is missing or empty. */
static const json_t *list_of(chat *c, size_t i, const char *name) {
    const json_t *list = member(message(c, i), name);
    if (list && !json_is_array(list))
        kk_chat_fail(&c->out, KK_EINVAL, "messages[%zu].%s is not a list", i, name);
    return json_array_size(list) ? list : NULL;
}

/* ---- content ---------------------------------------------------------------------------- */

static void put_trimmed(chat *c, const char *s, size_t n) {
    const size_t before = kk_utf8_space_before(s, n, true);
    s += before;
    n -= before;
    kk_chat_bytes(&c->out, s, n - kk_utf8_space_after(s, n, true));
}

/* An answer without its <|channel>...<channel|> spans: of each part that ends with a closing
 * mark (or with the text), what comes before its first opening mark. */
static void put_answer(chat *c, const char *s, size_t n) {
    const char *open = kk_chat_mark_text(KK_MARK_CHANNEL);
    const char *shut = kk_chat_mark_text(KK_MARK_CHANNEL_END);
    char *kept = kk_malloc(n + 1);
    if (!kept) {
        kk_chat_fail(&c->out, KK_ENOMEM, "no memory for an answer of %zu bytes", n);
        return;
    }
    size_t len = 0;
    for (const char *end = s + n;;) {
        const char *stop = memmem(s, (size_t)(end - s), shut, strlen(shut));
        const char *part_end = stop ? stop : end;
        const char *cut = memmem(s, (size_t)(part_end - s), open, strlen(open));
        const size_t keep = (size_t)((cut ? cut : part_end) - s);
        memcpy(kept + len, s, keep);
        len += keep;
        if (!stop) break;
        s = stop + strlen(shut);
    }
    put_trimmed(c, kept, len);
    kk_free(kept);
}

static void put_text(chat *c, const json_t *text, bool answer) {
    if (answer)
        put_answer(c, json_string_value(text), json_string_length(text));
    else
        put_trimmed(c, json_string_value(text), json_string_length(text));
}

/* The text of a content part; NULL, and a failure, for any other part. */
static const json_t *part_text(chat *c, size_t i, const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (type && strcmp(type, "text") == 0 && json_is_string(text)) return text;
    kk_chat_fail(&c->out, KK_EINVAL,
                 "messages[%zu].content has a part of type '%.40s': only text parts are supported",
                 i, type ? type : "?");
    return NULL;
}

static void put_content(chat *c, size_t i) {
    const json_t *content = member(message(c, i), "content");
    const bool answer = has_role(c, i, "assistant");
    if (json_is_string(content)) {
        put_text(c, content, answer);
    } else if (json_is_array(content)) {
        for (size_t k = 0; k < json_array_size(content); k++) {
            const json_t *text = part_text(c, i, json_array_get(content, k));
            if (!text) return;
            put_text(c, text, answer);
        }
    } else if (content) {
        kk_chat_fail(&c->out, KK_EINVAL,
                     "messages[%zu].content is neither a string nor a list of parts", i);
    }
}

/* ---- tools ------------------------------------------------------------------------------ */

/* Arguments are a map, or a map in a string as the OpenAI API has it.  A string that is no map
 * is written as it stands. */
static void put_arguments(chat *c, const json_t *arguments) {
    if (json_is_object(arguments)) {
        kk_chat_members(&c->out, arguments, false);
        return;
    }
    if (!json_is_string(arguments)) return;
    json_t *map;
    const kk_status st =
        kk_json_tree(&map, json_string_value(arguments), json_string_length(arguments),
                     "the arguments of a tool call", KK_EINVAL, NULL);
    if (st == KK_ENOMEM)
        kk_chat_fail(&c->out, st, "no memory for the arguments of a tool call");
    else if (json_is_object(map))
        kk_chat_members(&c->out, map, false);
    else
        kk_chat_string(&c->out, arguments);
    json_decref(map);
}

static void put_call(chat *c, size_t i, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name)) {
        kk_chat_fail(&c->out, KK_EINVAL, "messages[%zu] has a tool call without a function name",
                     i);
        return;
    }
    kk_chat_put_mark(&c->out, KK_MARK_CALL);
    kk_chat_put(&c->out, "call:");
    kk_chat_string(&c->out, name);
    kk_chat_put(&c->out, "{");
    put_arguments(c, json_object_get(function, "arguments"));
    kk_chat_put(&c->out, "}");
    kk_chat_put_mark(&c->out, KK_MARK_CALL_END);
}

static void begin_response(chat *c, const json_t *name) {
    kk_chat_put_mark(&c->out, KK_MARK_RESPONSE);
    kk_chat_put(&c->out, "response:");
    if (json_is_string(name))
        kk_chat_string(&c->out, name);
    else
        kk_chat_put(&c->out, "unknown");
    kk_chat_put(&c->out, "{");
}

static void end_response(chat *c) {
    kk_chat_put(&c->out, "}");
    kk_chat_put_mark(&c->out, KK_MARK_RESPONSE_END);
}

/* A result: a map by its members, anything else as one value. */
static void put_response(chat *c, const json_t *name, const json_t *result) {
    begin_response(c, name);
    if (json_is_object(result)) {
        kk_chat_members(&c->out, result, false);
    } else {
        kk_chat_put(&c->out, "value:");
        if (result)
            kk_chat_value(&c->out, result, false);
        else
            kk_chat_put(&c->out, "None");
    }
    end_response(c);
}

/* A result in parts: their texts as one string. */
static void put_response_parts(chat *c, size_t i, const json_t *name, const json_t *parts) {
    begin_response(c, name);
    kk_chat_put(&c->out, "value:");
    kk_chat_put_mark(&c->out, KK_MARK_QUOTE);
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *text = part_text(c, i, json_array_get(parts, k));
        if (!text) return;
        kk_chat_string(&c->out, text);
    }
    kk_chat_put_mark(&c->out, KK_MARK_QUOTE);
    end_response(c);
}

/* Finds the call that a tool message answers: by the id of the call, else by its own name. */
static const json_t *answered_name(const json_t *calls, const json_t *answer) {
    const json_t *name = member(answer, "name"), *id = member(answer, "tool_call_id");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k), *call_id = member(call, "id");
        if (id == call_id || (id && call_id && json_equal(id, call_id)))
            name = json_object_get(json_object_get(call, "function"), "name");
    }
    return name;
}

/* The answers to the calls of message i: the tool messages that follow it. */
static bool put_answers(chat *c, size_t i, const json_t *calls) {
    bool any = false;
    for (size_t k = i + 1; k < c->n && has_role(c, k, "tool"); k++, any = true) {
        const json_t *name = answered_name(calls, message(c, k));
        const json_t *content = member(message(c, k), "content");
        if (json_is_array(content))
            put_response_parts(c, k, name, content);
        else
            put_response(c, name, content);
    }
    return any;
}

/* Answers written into the assistant's own message. */
static bool put_own_answers(chat *c, const json_t *answers) {
    for (size_t k = 0; k < json_array_size(answers); k++) {
        const json_t *answer = json_array_get(answers, k);
        put_response(c, json_object_get(answer, "name"), member(answer, "response"));
    }
    return json_array_size(answers) > 0;
}

/* ---- turns ------------------------------------------------------------------------------ */

/* Whether message i goes on the model turn of the assistant message before it. */
static bool continues_turn(const chat *c, size_t i) {
    if (!has_role(c, i, "assistant")) return false;
    while (i > c->first && has_role(c, i - 1, "tool")) i--;
    return i > c->first && has_role(c, i - 1, "assistant");
}

static void put_reasoning(chat *c, size_t i) {
    const json_t *text = member(message(c, i), "reasoning");
    if (!kk_chat_truth(text)) text = member(message(c, i), "reasoning_content");
    if (!kk_chat_truth(text)) return;
    if (!json_is_string(text)) {
        kk_chat_fail(&c->out, KK_EINVAL, "the reasoning of messages[%zu] is not a string", i);
        return;
    }
    kk_chat_put_mark(&c->out, KK_MARK_CHANNEL);
    kk_chat_put(&c->out, "thought\n");
    kk_chat_string(&c->out, text);
    kk_chat_put(&c->out, "\n");
    kk_chat_put_mark(&c->out, KK_MARK_CHANNEL_END);
}

static void end_turn(chat *c) {
    kk_chat_put_mark(&c->out, KK_MARK_TURN_END);
    kk_chat_put(&c->out, "\n");
}

static void begin_turn(chat *c, const char *role) {
    kk_chat_put_mark(&c->out, KK_MARK_TURN);
    kk_chat_put(&c->out, role);
    kk_chat_put(&c->out, "\n");
}

/* newest: no user message comes after this one. */
static void put_message(chat *c, size_t i, bool newest) {
    const json_t *calls = list_of(c, i, "tool_calls");
    const json_t *own_answers = list_of(c, i, "tool_responses");
    if (!continues_turn(c, i)) begin_turn(c, has_role(c, i, "assistant") ? "model" : role_of(c, i));
    if (calls && newest) put_reasoning(c, i);
    for (size_t k = 0; k < json_array_size(calls); k++) put_call(c, i, json_array_get(calls, k));
    const bool answered =
        own_answers ? put_own_answers(c, own_answers) : calls && put_answers(c, i, calls);
    put_content(c, i);

    c->last = answered ? ENDED_RESPONSE : calls ? ENDED_CALL : ENDED_TURN;
    if (c->last == ENDED_CALL)
        kk_chat_put_mark(&c->out, KK_MARK_RESPONSE);
    else if (!answered || kk_chat_truth(member(message(c, i), "content")))
        end_turn(c);
}

static void put_system(chat *c, const json_t *tools) {
    if (!c->think && !tools && !is_system(c, 0)) return;
    begin_turn(c, "system");
    if (c->think) {
        kk_chat_put_mark(&c->out, KK_MARK_THINK);
        kk_chat_put(&c->out, "\n");
    }
    if (is_system(c, 0)) {
        put_content(c, 0);
        c->first = 1;
    }
    for (size_t i = 0; i < json_array_size(tools); i++)
        kk_chat_tool(&c->out, json_array_get(tools, i), i);
    end_turn(c);
}

static void put_messages(chat *c) {
    size_t after_user = 0; /* the first message no user message comes after */
    for (size_t i = c->first; i < c->n; i++)
        if (has_role(c, i, "user")) after_user = i + 1;
    for (size_t i = c->first; i < c->n; i++)
        if (!has_role(c, i, "tool")) put_message(c, i, i >= after_user);
}

/* An empty thought channel tells the model that there is nothing to think about. */
static void put_generation_prompt(chat *c) {
    if (c->last != ENDED_TURN) return;
    begin_turn(c, "model");
    if (c->think) return;
    kk_chat_put_mark(&c->out, KK_MARK_CHANNEL);
    kk_chat_put(&c->out, "thought\n");
    kk_chat_put_mark(&c->out, KK_MARK_CHANNEL_END);
}

/* ---- a conversation --------------------------------------------------------------------- */

static bool read_flag(chat *c, const json_t *root, const char *name) {
    const json_t *v = member(root, name);
    if (v && !json_is_boolean(v)) kk_chat_fail(&c->out, KK_EINVAL, "%s is not true or false", name);
    return json_is_true(v);
}

static void put_conversation(chat *c, const json_t *root) {
    const json_t *tools = member(root, "tools");
    c->messages = json_object_get(root, "messages");
    c->n = json_array_size(c->messages);
    if (c->n == 0) {
        kk_chat_fail(&c->out, KK_EINVAL,
                     "the conversation has no list of messages, or an empty one");
        return;
    }
    check_roles(c);
    if (tools && !json_is_array(tools)) kk_chat_fail(&c->out, KK_EINVAL, "tools is not a list");
    c->think = read_flag(c, root, "enable_thinking");
    const bool prompt = read_flag(c, root, "add_generation_prompt");
    if (c->out.status != KK_OK) return;

    kk_chat_put_mark(&c->out, KK_MARK_BOS);
    put_system(c, json_array_size(tools) ? tools : NULL);
    put_messages(c);
    if (prompt) put_generation_prompt(c);
}

static kk_status render(kk_chat_text *out, const char *json, size_t len, kk_err *err) {
    chat c = {.out = {.err = err}};
    json_t *root;
    *out = (kk_chat_text){0};
    KK_TRY(kk_json_tree(&root, json, len, "the conversation", KK_EINVAL, err));
    put_conversation(&c, root);
    json_decref(root);
    if (c.out.status != KK_OK) {
        const kk_status st = c.out.status;
        kk_chat_text_free(&c.out);
        return st;
    }
    *out = c.out;
    return KK_OK;
}

kk_status kk_chat_render(const char *json, size_t json_len, char **text, size_t *len, kk_err *err) {
    kk_chat_text out;
    *text = NULL;
    *len = 0;
    KK_TRY(render(&out, json, json_len, err));
    *text = out.text;
    *len = out.len;
    out.text = NULL;
    kk_chat_text_free(&out);
    return KK_OK;
}

/* The text from at up to the next mark, then the mark.  What a mark strips belongs to it. */
static kk_status encode_piece(const kk_tokenizer *tok, const kk_chat_text *in, size_t i, size_t *at,
                              kk_ids *ids, kk_err *err) {
    const char *mark = kk_chat_mark_text(in->marks[i].mark);
    const kk_added_token *token = kk_tokenizer_special_token(tok, mark);
    if (!token)
        return kk_fail(err, KK_EINVAL,
                       "the tokenizer has no special token %s, which Gemma 4 "
                       "conversations need",
                       mark);
    size_t end = in->marks[i].at;
    if (token->flags & KK_ADDED_LSTRIP)
        end -= kk_utf8_space_after(in->text + *at, end - *at, false);
    KK_TRY(kk_tokenizer_encode(tok, in->text + *at, end - *at, false, ids, err));
    KK_TRY(kk_ids_put(ids, token->id, err));
    *at = in->marks[i].at + strlen(mark);
    if (token->flags & KK_ADDED_RSTRIP)
        *at += kk_utf8_space_before(in->text + *at, in->len - *at, false);
    return KK_OK;
}

kk_status kk_chat_encode(const kk_tokenizer *tok, const char *json, size_t json_len, int32_t **ids,
                         size_t *n, kk_err *err) {
    kk_chat_text in;
    kk_ids out = {0};
    size_t at = 0;
    *ids = NULL;
    *n = 0;
    kk_status st = render(&in, json, json_len, err);
    for (size_t i = 0; st == KK_OK && i < in.n_marks; i++)
        st = encode_piece(tok, &in, i, &at, &out, err);
    if (st == KK_OK) st = kk_tokenizer_encode(tok, in.text + at, in.len - at, false, &out, err);
    kk_chat_text_free(&in);
    if (st != KK_OK) {
        kk_free(out.ids);
        return st;
    }
    *ids = out.ids;
    *n = out.n;
    return KK_OK;
}
