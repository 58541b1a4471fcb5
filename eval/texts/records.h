/* records.h - texts to train on from .jsonl: one JSON object per line, with "text", or with
 * "messages" (and perhaps "tools") as kk_chat_render takes them. */
#ifndef KK_EVAL_RECORDS_H
#define KK_EVAL_RECORDS_H

#include <stddef.h>

#include "kakeya.h"

typedef enum { KK_RECORD_OTHER, KK_RECORD_TEXT, KK_RECORD_CHAT } kk_record_kind;

typedef struct {
    kk_record_kind kind; /* KK_RECORD_OTHER: neither of the two; text is NULL */
    char *text;          /* the text itself, or the conversation as JSON; released with kk_free */
    size_t len;
} kk_record;

/* One line, without its end.  Refuses what is no JSON object, and a "text" or "messages" of the
 * wrong type.  A line of spaces is KK_RECORD_OTHER. */
kk_status kk_record_read(kk_record *out, const char *line, size_t len, kk_err *err);
void kk_record_release(kk_record *r);
/* Its tokens, released with kk_free. */
kk_status kk_record_encode(const kk_record *r, const kk_tokenizer *tok, int32_t **ids, size_t *n,
                           kk_err *err);

#endif
