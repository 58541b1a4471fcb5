/* answer.c - takes a model's answer apart while it comes: text, thoughts and tool calls.
 *
 * The answer is a run of bytes with marks in it.  Marks are special tokens, so that a model that
 * writes about the format is not misread; where only text is at hand, the text of a mark is taken
 * for the mark.  Both ways end in the same two functions, plain() and mark(), which see one byte or
 * one mark at a time: so where the answer was cut on its way here cannot matter.
 *
 * Invariants between calls:
 *   (1) what is held back is short: the start of a mark, of a stop text or of the channel's name,
 *       a line break at the end of a thought, the start of a character, or the call being written;
 *   (2) `begun` is set from the first byte of a part that was handed out, or is held as the start
 *       of a character, and `part` is then the number of that part;
 *   (3) everything a call may need is allocated before its first byte is looked at, so that a call
 *       that fails has changed nothing. */
#include <string.h>

#include "core/alloc.h"
#include "core/utf8.h"
#include "format/calls.h"
#include "format/chat.h"
#include "format/stops.h"
#include "format/tokenizer_parts.h"

typedef enum { IN_TEXT, IN_NAME, IN_THOUGHT, IN_CALL } place;

static const char channel_name[] = "thought\n";

/* After the marks of a conversation. */
enum { MARK_EOS = KK_MARKS, MARKS, LONGEST_MARK = 17, SHORTEST_MARK = 5 };

struct kk_answer {
    const kk_tokenizer *tok;
    kk_decoder *decoder; /* NULL: only text can be pushed */
    int32_t ids[MARKS];
    bool raw, stopped;

    place place;
    bool begun, shows; /* shows: text that is not white space has come */
    int32_t part;

    /* Held back. */
    char start[LONGEST_MARK]; /* the beginning of a mark */
    size_t n_start;
    size_t n_name; /* bytes of channel_name that have come */
    bool line_break;
    char tail[4]; /* the last bytes of the open part */
    size_t n_tail;
    kk_stops stops;
    char *body; /* the text of a call */
    size_t n_body, body_cap;
    size_t *quotes;
    size_t n_quotes, quotes_cap;

    /* Handed out. */
    char *out;
    size_t n_out, out_cap;
    kk_answer_span *spans;
    size_t n_spans, spans_cap;
    bool open; /* the last span can grow */
};

static const char *mark_text(int m) {
    return m == MARK_EOS ? "<eos>" : kk_chat_mark_text((kk_chat_mark)m);
}

/* ---- handing out ------------------------------------------------------------------------- */

static void put(kk_answer *a, char c) {
    if (!a->open) {
        a->spans[a->n_spans++] =
            (kk_answer_span){.kind = a->place == IN_TEXT ? KK_ANSWER_TEXT : KK_ANSWER_THOUGHT,
                             .part = a->part,
                             .text = a->out + a->n_out};
        a->open = a->begun = true;
    }
    a->out[a->n_out++] = c;
    a->spans[a->n_spans - 1].len++;
}

static const char *copy(kk_answer *a, const char *s, size_t n) {
    char *to = a->out + a->n_out;
    if (n) memcpy(to, s, n);
    to[n] = '\0';
    a->n_out += n + 1;
    return to;
}

/* A call is handed out whole: what was written, and what it says if it can be read. */
static void put_call(kk_answer *a) {
    const kk_call_text call = {a->body, a->n_body, a->quotes, a->n_quotes};
    kk_answer_span s = {.kind = KK_ANSWER_CALL, .part = a->part, .len = a->n_body};
    const char *name;
    size_t n_name, n_json;
    s.text = copy(a, a->body, a->n_body);
    char *json = a->out + a->n_out;
    if (kk_call_read(&call, &name, &n_name, json, &n_json)) {
        json[n_json] = '\0';
        a->n_out += n_json + 1;
        s.arguments = json;
        s.name = copy(a, name, n_name);
    }
    a->spans[a->n_spans++] = s;
    a->begun = true;
}

/* ---- bytes ------------------------------------------------------------------------------- */

static void let_go(kk_answer *a, size_t n) {
    for (size_t i = 0; i < n; i++) put(a, a->stops.held[i]);
    kk_stops_drop(&a->stops, n);
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static void text_byte(kk_answer *a, char c) {
    if (!a->raw && !a->shows && is_space(c)) return;
    a->shows = true;
    if (a->stops.n == 0) {
        put(a, c);
        return;
    }
    let_go(a, kk_stops_push(&a->stops, c));
    a->stopped = a->stops.found;
}

static void thought_byte(kk_answer *a, char c) {
    if (a->line_break) put(a, '\n');
    a->line_break = c == '\n';
    if (!a->line_break) put(a, c);
}

/* A channel without the name it should have is all thought. */
static void name_was_none(kk_answer *a) {
    const size_t n = a->n_name;
    a->n_name = 0;
    a->place = IN_THOUGHT;
    for (size_t i = 0; i < n; i++) thought_byte(a, channel_name[i]);
}

static void name_byte(kk_answer *a, char c) {
    if (c != channel_name[a->n_name]) {
        name_was_none(a);
        thought_byte(a, c);
    } else if (++a->n_name == strlen(channel_name)) {
        a->n_name = 0;
        a->place = IN_THOUGHT;
    }
}

static void plain(kk_answer *a, char c) {
    if (a->stopped) return;
    switch (a->place) {
    case IN_TEXT: text_byte(a, c); break;
    case IN_NAME: name_byte(a, c); break;
    case IN_THOUGHT: thought_byte(a, c); break;
    case IN_CALL: a->body[a->n_body++] = c; break;
    }
}

/* ---- marks ------------------------------------------------------------------------------- */

/* Ends the open part; another begins in the given place. */
static void begin(kk_answer *a, place next) {
    if (a->place == IN_TEXT && !a->stopped) let_go(a, a->stops.n_held);
    if (a->place == IN_CALL) put_call(a);
    if (a->begun) a->part++;
    a->place = next;
    a->open = a->begun = a->shows = a->line_break = false;
    a->n_body = a->n_quotes = a->n_name = 0;
}

static void quote(kk_answer *a) {
    const char *text = mark_text(KK_MARK_QUOTE);
    a->quotes[a->n_quotes++] = a->n_body;
    memcpy(a->body + a->n_body, text, strlen(text));
    a->n_body += strlen(text);
}

static void mark(kk_answer *a, int m) {
    if (a->raw || a->stopped) return;
    const bool in_channel = a->place == IN_NAME || a->place == IN_THOUGHT;
    switch (m) {
    case KK_MARK_CHANNEL: begin(a, IN_NAME); break;
    case KK_MARK_CALL: begin(a, IN_CALL); break;
    case KK_MARK_CHANNEL_END: /* models write one too many */
        if (in_channel) begin(a, IN_TEXT);
        break;
    case KK_MARK_CALL_END:
        if (a->place == IN_CALL) begin(a, IN_TEXT);
        break;
    case KK_MARK_TURN:
    case KK_MARK_TURN_END:
    case KK_MARK_RESPONSE:
    case MARK_EOS: begin(a, IN_TEXT); break;
    case KK_MARK_QUOTE:
        if (a->place == IN_CALL) quote(a);
        break;
    default: break; /* part of no answer */
    }
}

/* The mark that the held bytes are; -1: none.  *start: they are the start of one. */
static int held_mark(const kk_answer *a, bool *start) {
    *start = false;
    for (int m = 0; m < MARKS; m++) {
        const char *text = mark_text(m);
        if (strncmp(text, a->start, a->n_start) != 0) continue;
        if (!text[a->n_start]) return m;
        *start = true;
    }
    return -1;
}

static void shift_start(kk_answer *a) {
    const char first = a->start[0];
    memmove(a->start, a->start + 1, --a->n_start);
    plain(a, first);
}

static void byte_of_text(kk_answer *a, char c) {
    if (a->raw) {
        plain(a, c);
        return;
    }
    a->start[a->n_start++] = c;
    while (a->n_start > 0) {
        bool start;
        const int m = held_mark(a, &start);
        if (m >= 0) {
            a->n_start = 0;
            mark(a, m);
        } else if (start) {
            return;
        } else {
            shift_start(a);
        }
    }
}

/* ---- the answer -------------------------------------------------------------------------- */

kk_status kk_answer_new(kk_answer **out, const kk_answer_opts *opts, kk_err *err) {
    static const kk_answer_opts standard = {0};
    if (!opts) opts = &standard;
    *out = NULL;
    kk_answer *a = kk_zalloc(sizeof *a);
    if (!a) return kk_fail(err, KK_ENOMEM, "no memory to read an answer");
    a->tok = opts->tok;
    a->raw = opts->raw;
    kk_status st = kk_stops_init(&a->stops, opts->stops, opts->n_stops, err);
    if (st == KK_OK && opts->tok) st = kk_decoder_new(&a->decoder, opts->tok, false, err);
    if (st != KK_OK) {
        kk_answer_free(a);
        return st;
    }
    for (int m = 0; m < MARKS; m++)
        a->ids[m] = opts->tok ? kk_tokenizer_special(opts->tok, mark_text(m)) : -1;
    *out = a;
    return KK_OK;
}

void kk_answer_free(kk_answer *a) {
    if (!a) return;
    kk_decoder_free(a->decoder);
    kk_stops_release(&a->stops);
    kk_free(a->body);
    kk_free(a->quotes);
    kk_free(a->out);
    kk_free(a->spans);
    kk_free(a);
}

/* What n more bytes, or a mark and as many, can come to.  A part costs a mark in the text. */
static kk_status reserve(kk_answer *a, size_t n, kk_err *err) {
    const size_t held = a->n_start + a->n_name + a->n_tail + a->stops.n_held + LONGEST_MARK;
    const size_t marks = (n + held) / SHORTEST_MARK + 2;
    size_t body, out;
    if (kk_add(n, held, &n) && kk_add(n, a->n_body, &body) && body < SIZE_MAX / 32) {
        out = kk_call_capacity(body) +
              4 * body; /* JSON, the call itself, its name and the text around it */
        if (kk_grow((void **)&a->body, &a->body_cap, body, 1) &&
            kk_grow((void **)&a->quotes, &a->quotes_cap, a->n_quotes + marks, sizeof *a->quotes) &&
            kk_grow((void **)&a->out, &a->out_cap, out, 1) &&
            kk_grow((void **)&a->spans, &a->spans_cap, marks, sizeof *a->spans))
            return KK_OK;
    }
    return kk_fail(err, KK_ENOMEM, "no memory to read %zu bytes of an answer", n);
}

static void start_call(kk_answer *a) {
    a->n_out = a->n_spans = 0;
    a->open = false;
    const size_t n = a->n_tail;
    a->n_tail = 0;
    for (size_t i = 0; i < n; i++) put(a, a->tail[i]);
}

/* Takes the start of a character back from the end of the open part. */
static void hold_tail(kk_answer *a) {
    if (!a->open) return;
    kk_answer_span *s = &a->spans[a->n_spans - 1];
    a->n_tail = kk_utf8_unfinished(s->text, s->len);
    s->len -= a->n_tail;
    memcpy(a->tail, s->text + s->len, a->n_tail);
    if (s->len == 0) a->n_spans--;
}

static void hand_out(const kk_answer *a, const kk_answer_span **spans, size_t *n) {
    *spans = a->spans;
    *n = a->n_spans;
}

static int mark_of(const kk_answer *a, int32_t id) {
    for (int m = 0; m < MARKS; m++)
        if (a->ids[m] == id) return m;
    return -1;
}

kk_status kk_answer_push(kk_answer *a, int32_t id, const kk_answer_span **spans, size_t *n,
                         kk_err *err) {
    const char *text;
    size_t len;
    *spans = NULL;
    *n = 0;
    if (!a->tok) return kk_fail(err, KK_EINVAL, "an answer without a tokenizer takes text alone");
    KK_TRY(reserve(a, a->tok->longest + sizeof a->tail, err));
    KK_TRY(kk_decoder_push(a->decoder, id, &text, &len, err));
    start_call(a);
    while (a->n_start > 0) shift_start(a);
    for (size_t i = 0; i < len; i++) plain(a, text[i]);
    const int m = mark_of(a, id);
    if (m >= 0) { /* before it, what the decoder held of a character */
        KK_TRY(kk_decoder_finish(a->decoder, &text, &len, err));
        for (size_t i = 0; i < len; i++) plain(a, text[i]);
        mark(a, m);
    }
    hold_tail(a);
    hand_out(a, spans, n);
    return KK_OK;
}

kk_status kk_answer_push_text(kk_answer *a, const char *text, size_t len,
                              const kk_answer_span **spans, size_t *n, kk_err *err) {
    *spans = NULL;
    *n = 0;
    KK_TRY(reserve(a, len, err));
    start_call(a);
    for (size_t i = 0; i < len; i++) byte_of_text(a, text[i]);
    hold_tail(a);
    hand_out(a, spans, n);
    return KK_OK;
}

kk_status kk_answer_finish(kk_answer *a, const kk_answer_span **spans, size_t *n, kk_err *err) {
    const char *text = NULL;
    size_t len = 0;
    *spans = NULL;
    *n = 0;
    KK_TRY(reserve(a, sizeof a->tail, err));
    if (a->decoder) KK_TRY(kk_decoder_finish(a->decoder, &text, &len, err));
    start_call(a);
    while (a->n_start > 0) shift_start(a);
    for (size_t i = 0; i < len; i++) plain(a, text[i]);
    if (!a->stopped) begin(a, IN_TEXT);
    a->open = false;
    hand_out(a, spans, n);
    return KK_OK;
}

bool kk_answer_stopped(const kk_answer *a) { return a->stopped; }
