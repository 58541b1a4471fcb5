/* calls.h - a tool call as the model writes it, read back: call:NAME{key:value,...}. */
#ifndef KK_FORMAT_CALLS_H
#define KK_FORMAT_CALLS_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes between the marks of a call.  A quote mark is part of them as its text, and quotes
 * says where each one starts, so that the same characters in a string are not taken for one. */
typedef struct {
    const char *text;
    size_t len;
    const size_t *quotes; /* in rising order */
    size_t n_quotes;
} kk_call_text;

/* More bytes than kk_call_read writes for a call of n bytes. */
size_t kk_call_capacity(size_t n);
/* Reads a whole call.  *name is a part of its text; the arguments are written to json as one JSON
 * object of *json_len bytes.  False: it is not a whole call. */
bool kk_call_read(const kk_call_text *call, const char **name, size_t *name_len, char *json,
                  size_t *json_len);

#endif
