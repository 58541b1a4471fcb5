/* transcript.c - see transcript.h.
 *
 * Marks are special tokens, so that a message that speaks of the format is not misread.  What the
 * model wrote goes through kk_answer, as it did when it was streamed; all else is decoded as it
 * stands between two marks. */
#include "server/transcript.h"

#include <string.h>

#include "server/text.h"

typedef enum { TURN, TURN_END, THINK, TOOL, TOOL_END, RESPONSE, RESPONSE_END, BOS, MARKS } mark;
static const char *const mark_texts[MARKS] = {"<|turn>",          "<turn|>", "<|think|>",
                                              "<|tool>",          "<tool|>", "<|tool_response>",
                                              "<tool_response|>", "<bos>"};

enum { LONGEST_ROLE = 12 };

typedef struct {
    const kk_tokenizer *tok;
    const int32_t *tokens;
    size_t n;
    int32_t ids[MARKS];
    json_t *message, *parts; /* the message that is read; borrowed */
    kk_err *err;
} reader;

static bool is_mark(const reader *r, size_t at, mark m) {
    return r->ids[m] >= 0 && r->tokens[at] == r->ids[m];
}

/* The next place in [from, to) with this mark; to: there is none. */
static size_t find(const reader *r, size_t from, size_t to, mark m) {
    while (from < to && !is_mark(r, from, m)) from++;
    return from;
}

/* ---- parts ------------------------------------------------------------------------------- */

static json_t *add_part(const reader *r, const char *kind, const char *text, size_t len) {
    json_t *part = json_pack("{s:s, s:o}", "kind", kind, "text", text_json(text, len));
    json_array_append(r->parts, part);
    json_decref(part); /* the list has it */
    return part;
}

/* Tokens as they stand, without the white space around them. */
static kk_status add_plain(const reader *r, const char *kind, size_t from, size_t to) {
    char *text;
    size_t len, skip = 0;
    if (from >= to) return KK_OK;
    const kk_status st = kk_decode(r->tok, r->tokens + from, to - from, true, &text, &len, r->err);
    if (st != KK_OK) return st;
    while (skip < len && strchr(" \n\r\t", text[skip])) skip++;
    while (len > skip && strchr(" \n\r\t", text[len - 1])) len--;
    if (len > skip) add_part(r, kind, text + skip, len - skip);
    kk_free(text);
    return KK_OK;
}

/* A part of an answer while its spans come. */
typedef struct {
    bool any, thought;
    int32_t number;
    textbuf text;
} open_part;

static void end_part(const reader *r, open_part *p) {
    if (p->text.len) add_part(r, p->thought ? "thought" : "text", p->text.bytes, p->text.len);
    text_free(&p->text);
    *p = (open_part){.any = false};
}

static void add_call(const reader *r, const kk_answer_span *s) {
    json_t *part = add_part(r, "call", s->text, s->len);
    if (!s->name) return;
    json_object_set_new(part, "name", text_json(s->name, strlen(s->name)));
    json_object_set_new(part, "arguments", text_json(s->arguments, strlen(s->arguments)));
}

static void add_spans(const reader *r, const kk_answer_span *spans, size_t n, open_part *p) {
    for (size_t i = 0; i < n; i++) {
        const kk_answer_span *s = &spans[i];
        if (p->any && s->part != p->number) end_part(r, p);
        if (s->kind == KK_ANSWER_CALL) {
            add_call(r, s);
            continue;
        }
        p->any = true;
        p->number = s->part;
        p->thought = s->kind == KK_ANSWER_THOUGHT;
        text_add(&p->text, s->text, s->len);
    }
}

/* What the model wrote between two answers of tools. */
static kk_status add_answer(const reader *r, size_t from, size_t to) {
    const kk_answer_opts opts = {.tok = r->tok};
    const kk_answer_span *spans;
    size_t n;
    open_part part = {.any = false};
    kk_answer *a;
    kk_status st = kk_answer_new(&a, &opts, r->err);
    for (; from < to && st == KK_OK; from++)
        if ((st = kk_answer_push(a, r->tokens[from], &spans, &n, r->err)) == KK_OK)
            add_spans(r, spans, n, &part);
    if (st == KK_OK && (st = kk_answer_finish(a, &spans, &n, r->err)) == KK_OK)
        add_spans(r, spans, n, &part);
    end_part(r, &part);
    kk_answer_free(a);
    return st;
}

/* ---- turns ------------------------------------------------------------------------------- */

/* The role that a turn begins with, up to its line break; returns the place behind it. */
static size_t read_role(const reader *r, size_t from, size_t to, char role[LONGEST_ROLE]) {
    size_t used = 0;
    role[0] = 0;
    for (; from < to; from++) {
        char *text;
        size_t len;
        if (kk_decode(r->tok, r->tokens + from, 1, true, &text, &len, NULL) != KK_OK) break;
        const char *end = memchr(text, '\n', len);
        const size_t n = end ? (size_t)(end - text) : len;
        if (used + n < LONGEST_ROLE) {
            memcpy(role + used, text, n);
            role[used += n] = 0;
        }
        kk_free(text);
        if (end) return from + 1;
    }
    return from;
}

static void begin_message(reader *r, json_t *list, const char *role, size_t start, size_t end) {
    json_t *m = json_pack("{s:s, s:I, s:I, s:[]}", "role", role, "start", (json_int_t)start, "end",
                          (json_int_t)end, "parts");
    r->message = m;
    r->parts = json_object_get(m, "parts");
    json_array_append_new(list, m);
}

/* Declared tools, and what stands between them. */
static kk_status read_said(const reader *r, size_t from, size_t to) {
    kk_status st = KK_OK;
    if (from < to && is_mark(r, from, THINK)) {
        json_object_set_new(r->message, "thinking", json_true());
        from++;
    }
    while (from < to && st == KK_OK) {
        const size_t tool = find(r, from, to, TOOL), shut = find(r, tool, to, TOOL_END);
        st = add_plain(r, "text", from, tool);
        if (st == KK_OK && tool < to) st = add_plain(r, "tool", tool + 1, shut);
        from = shut < to ? shut + 1 : to;
    }
    return st;
}

/* An answer, with what tools said in the middle of it. */
static kk_status read_answer(const reader *r, size_t from, size_t to) {
    kk_status st = KK_OK;
    while (from < to && st == KK_OK) {
        const size_t tool = find(r, from, to, RESPONSE), shut = find(r, tool, to, RESPONSE_END);
        if (tool > from) st = add_answer(r, from, tool);
        if (st == KK_OK && tool < to) st = add_plain(r, "response", tool + 1, shut);
        if (tool + 1 == to) json_object_set_new(r->message, "awaits_tool", json_true());
        from = shut < to ? shut + 1 : to;
    }
    return st;
}

/* The turn whose mark is at `at`; *next: the place behind it. */
static kk_status read_turn(reader *r, json_t *list, size_t at, size_t *next) {
    char role[LONGEST_ROLE];
    const size_t other = find(r, at + 1, r->n, TURN), end = find(r, at + 1, other, TURN_END);
    const size_t body = read_role(r, at + 1, end, role);
    const bool model = strcmp(role, "model") == 0;
    *next = end < other ? end + 1 : other;
    begin_message(r, list, model ? "assistant" : role, at, *next);
    if (end == r->n) json_object_set_new(r->message, "open", json_true());
    return model ? read_answer(r, body, end) : read_said(r, body, end);
}

/* What stands in no turn is text, unless it is the line break between two. */
static kk_status read_loose(reader *r, json_t *list, size_t from, size_t to) {
    const size_t first = from < to && is_mark(r, from, BOS) ? from + 1 : from;
    begin_message(r, list, "text", from, to);
    const kk_status st = add_plain(r, "text", first, to);
    if (json_array_size(r->parts) == 0) json_array_remove(list, json_array_size(list) - 1);
    return st;
}

json_t *transcript_json(const kk_tokenizer *tok, const int32_t *tokens, size_t n, kk_err *err) {
    reader r = {.tok = tok, .tokens = tokens, .n = n, .err = err};
    json_t *list = json_array();
    kk_status st = KK_OK;
    for (int m = 0; m < MARKS; m++) r.ids[m] = kk_tokenizer_special(tok, mark_texts[m]);
    for (size_t at = 0; at < n && st == KK_OK;) {
        const size_t turn = find(&r, at, n, TURN);
        st = turn > at ? read_loose(&r, list, at, turn) : KK_OK;
        at = turn;
        if (st == KK_OK && turn < n) st = read_turn(&r, list, turn, &at);
    }
    if (st == KK_OK) return list;
    json_decref(list);
    return NULL;
}
