/* words.h - lists of words for the command line of another program, and bytes that grow.
 *
 * Both remember that memory ran out, and from then on do nothing, so that code that builds one asks
 * once, at the end.  A zero value is empty. */
#ifndef KK_BRIDGE_WORDS_H
#define KK_BRIDGE_WORDS_H

#include <stdarg.h>

#include "kakeya.h"

typedef struct {
    char **word; /* [n], then NULL; NULL while there is none */
    size_t n, cap;
    bool failed;
} kk_words;

void kk_words_add(kk_words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kk_words_add_all(kk_words *w, const char *const *more); /* ends with NULL */
void kk_words_free(kk_words *w);                             /* leaves it empty */
/* The list for exec: never NULL, also of an empty one. */
const char *const *kk_words_argv(const kk_words *w);

typedef struct {
    char *data; /* [n], then a NUL; NULL while there is none */
    size_t n, cap;
    bool failed;
} kk_bytes;

void kk_bytes_add(kk_bytes *b, const void *data, size_t len);
void kk_bytes_print(kk_bytes *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kk_bytes_free(kk_bytes *b);              /* leaves it empty */
const char *kk_bytes_text(const kk_bytes *b); /* "" of an empty one */

/* Text as it may be shown and put into JSON: printable ASCII, '?' for other bytes, cut to fit. */
void kk_plain(const char *text, char *out, size_t cap);
kk_status kk_no_memory(kk_err *err, const char *what_for);

#endif
