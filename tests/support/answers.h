/* answers.h - the spans of a kk_answer put together, in one line that a test can compare:
 * text(Hello) thought(hm) call(get {"a":1}) broken(call:get{). */
#ifndef KK_TESTS_ANSWERS_H
#define KK_TESTS_ANSWERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "kakeya.h"

typedef struct {
    char *text;
    size_t len;
    int32_t part; /* the last that came; -1: none */
    kk_answer_kind kind;
    bool bad; /* a span that breaks the header's promises */
} gathered;

static inline void gather_bytes(gathered *g, const char *s, size_t n) {
    g->text = realloc(g->text, g->len + n + 1);
    if (!g->text) abort();
    memcpy(g->text + g->len, s, n);
    g->len += n;
    g->text[g->len] = '\0';
}

static inline void gather_string(gathered *g, const char *s) { gather_bytes(g, s, strlen(s)); }

static inline void gather_span(gathered *g, const kk_answer_span *s) {
    static const char *const names[] = {"text(", "thought(", "call("};
    const bool more = s->part == g->part;
    if (more ? s->kind != g->kind || s->kind == KK_ANSWER_CALL : s->part != g->part + 1)
        g->bad = true;
    if (s->kind != KK_ANSWER_CALL && (s->len == 0 || s->name || s->arguments)) g->bad = true;
    if (!s->name != !s->arguments) g->bad = true;
    if (more) g->len--; /* its bracket */
    if (!more && g->len) gather_string(g, " ");
    g->part = s->part;
    g->kind = s->kind;
    if (!more) gather_string(g, s->kind == KK_ANSWER_CALL && !s->name ? "broken(" : names[s->kind]);
    if (s->name) {
        gather_string(g, s->name);
        gather_string(g, " ");
        gather_string(g, s->arguments);
    } else {
        gather_bytes(g, s->text, s->len);
    }
    gather_string(g, ")");
}

static inline void gather(gathered *g, const kk_answer_span *spans, size_t n) {
    for (size_t i = 0; i < n; i++) gather_span(g, &spans[i]);
}

static inline void gather_begin(gathered *g) {
    *g = (gathered){.part = -1};
    gather_string(g, "");
}

/* Text in pieces of the given size (0: whole); NULL when a call failed.  Release with free. */
static inline char *parts_of_text(const kk_answer_opts *opts, const char *text, size_t len,
                                  size_t piece, bool *bad) {
    const kk_answer_span *spans;
    kk_answer *a;
    size_t n;
    gathered g;
    gather_begin(&g);
    kk_status st = kk_answer_new(&a, opts, NULL);
    for (size_t at = 0; st == KK_OK && at < len;) {
        const size_t some = piece == 0 || len - at < piece ? len - at : piece;
        st = kk_answer_push_text(a, text + at, some, &spans, &n, NULL);
        if (st == KK_OK) gather(&g, spans, n);
        at += some;
    }
    if (st == KK_OK) st = kk_answer_finish(a, &spans, &n, NULL);
    if (st == KK_OK) gather(&g, spans, n);
    kk_answer_free(a);
    *bad = g.bad || st != KK_OK;
    return g.text;
}

static inline char *parts_of_tokens(const kk_answer_opts *opts, const int32_t *ids, size_t n_ids,
                                    bool *bad) {
    const kk_answer_span *spans;
    kk_answer *a;
    size_t n;
    gathered g;
    gather_begin(&g);
    kk_status st = kk_answer_new(&a, opts, NULL);
    for (size_t i = 0; st == KK_OK && i < n_ids; i++) {
        st = kk_answer_push(a, ids[i], &spans, &n, NULL);
        if (st == KK_OK) gather(&g, spans, n);
    }
    if (st == KK_OK) st = kk_answer_finish(a, &spans, &n, NULL);
    if (st == KK_OK) gather(&g, spans, n);
    kk_answer_free(a);
    *bad = g.bad || st != KK_OK;
    return g.text;
}

#endif
