/* text.h - bytes of a model as JSON, a growing buffer for them, and random names. */
#ifndef KK_SERVER_TEXT_H
#define KK_SERVER_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A JSON string of any bytes: each byte that is not of UTF-8 becomes U+FFFD. */
json_t *text_json(const char *text, size_t len);

/* Bytes that are appended.  A failure sticks: what follows is dropped, and `failed` says so. */
typedef struct {
    char *bytes; /* NUL-terminated; NULL while empty */
    size_t len, cap;
    bool failed;
} textbuf;
void text_add(textbuf *t, const char *bytes, size_t n);
void text_printf(textbuf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends the object without line breaks, and releases it; NULL counts as a failure. */
void text_add_json(textbuf *t, json_t *object);
/* Appends the inside of the string that text_json makes, as jansson writes it, without quotes. */
void text_add_escaped(textbuf *t, const char *bytes, size_t len);
void text_free(textbuf *t);

/* prefix and 24 hexadecimal digits that nobody can guess; out: at least strlen(prefix) + 25. */
void text_random_name(char *out, size_t cap, const char *prefix);

double text_now(void); /* monotonic seconds */

#endif
