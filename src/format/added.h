/* added.h - tokens that are cut out of a text before it is encoded: the special ones (turn
 * marks, <bos>) and the plain ones a vocabulary may also list so. */
#ifndef KK_FORMAT_ADDED_H
#define KK_FORMAT_ADDED_H

#include "core/error.h"

enum {
    KK_ADDED_SPECIAL = 1,
    KK_ADDED_LSTRIP = 2, /* white space before it belongs to it */
    KK_ADDED_RSTRIP = 4, /* spaces after it belong to the token */
};

typedef struct {
    char *text;
    size_t len;
    int32_t id;
    unsigned flags;
} kk_added_token;

/* One set is searched for at a time.  fold: a space and U+2581 are the same character, in the
 * tokens and in the text (tokens to be looked for after the text was normalised). */
typedef struct {
    kk_added_token *tokens; /* sorted by text once finished */
    size_t n, cap;
    bool fold;
    bool starts[256]; /* some token starts with this byte */
    bool starts_special[256];
} kk_added;

typedef struct {
    const kk_added_token *token;
    size_t start, end; /* in the text, stripped white space included */
} kk_added_match;

void kk_added_free(kk_added *a); /* zero value is fine */
kk_status kk_added_add(kk_added *a, const char *text, size_t len, int32_t id, unsigned flags,
                       kk_err *err);
void kk_added_finish(kk_added *a);
/* The first match at or after from, and of those that start there the longest.  Special tokens
 * are passed over unless asked for.  False: there is none. */
bool kk_added_find(const kk_added *a, const char *text, size_t len, size_t from, bool special,
                   kk_added_match *out);
const kk_added_token *kk_added_by_text(const kk_added *a, const char *text, size_t len);

#endif
