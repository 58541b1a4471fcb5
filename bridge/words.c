/* words.c - see words.h. */
#include "bridge/words.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"

/* A copy of what fmt makes, of any length; NULL without memory. */
static char *printed(const char *fmt, va_list ap) {
    char small[512];
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(small, sizeof small, fmt, ap);
    char *text = n < 0 ? NULL : kk_malloc((size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

void kk_words_add(kk_words *w, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = printed(fmt, ap);
    va_end(ap);
    if (w->failed || !text || !kk_grow((void **)&w->word, &w->cap, w->n + 2, sizeof *w->word)) {
        w->failed = true;
        kk_free(text);
        return;
    }
    w->word[w->n++] = text;
    w->word[w->n] = NULL;
}

void kk_words_add_all(kk_words *w, const char *const *more) {
    for (; *more; more++) kk_words_add(w, "%s", *more);
}

void kk_words_free(kk_words *w) {
    for (size_t i = 0; i < w->n; i++) kk_free(w->word[i]);
    kk_free(w->word);
    *w = (kk_words){0};
}

const char *const *kk_words_argv(const kk_words *w) {
    static const char *const none[] = {NULL};
    return w->word ? (const char *const *)w->word : none;
}

void kk_bytes_add(kk_bytes *b, const void *data, size_t len) {
    size_t need;
    if (b->failed || !kk_add(b->n, len, &need) || !kk_add(need, 1, &need) ||
        !kk_grow((void **)&b->data, &b->cap, need, 1)) {
        b->failed = true;
        return;
    }
    if (len) memcpy(b->data + b->n, data, len);
    b->n += len;
    b->data[b->n] = 0;
}

void kk_bytes_print(kk_bytes *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = printed(fmt, ap);
    va_end(ap);
    if (text)
        kk_bytes_add(b, text, strlen(text));
    else
        b->failed = true;
    kk_free(text);
}

void kk_bytes_free(kk_bytes *b) {
    kk_free(b->data);
    *b = (kk_bytes){0};
}

const char *kk_bytes_text(const kk_bytes *b) { return b->data ? b->data : ""; }

void kk_plain(const char *text, char *out, size_t cap) {
    size_t n = 0;
    for (; text[n] && n + 1 < cap; n++) out[n] = text[n] >= ' ' && text[n] < 127 ? text[n] : '?';
    out[n] = 0;
}

kk_status kk_no_memory(kk_err *err, const char *what_for) {
    return kk_fail(err, KK_ENOMEM, "out of memory for %s", what_for);
}
