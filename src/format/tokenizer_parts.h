/* tokenizer_parts.h - the inside of a tokenizer, for the files that read one, encode, decode and
 * render conversations. */
#ifndef KK_FORMAT_TOKENIZER_PARTS_H
#define KK_FORMAT_TOKENIZER_PARTS_H

#include "format/added.h"
#include "format/bpe.h"
#include "format/tokenizer.h"
#include "format/vocab.h"

/* Which characters can ever end up in one token: joins has a bit for (class of the left, class
 * of the right).  ASCII has a class per character, the rest shares the others. */
enum { KK_CHAR_CLASSES = 512 };

typedef enum { KK_TOKEN_PLAIN, KK_TOKEN_BYTE, KK_TOKEN_SPECIAL, KK_TOKEN_ADDED } kk_token_kind;

struct kk_tokenizer {
    kk_vocab vocab;
    kk_bpe bpe;
    kk_added raw;        /* looked for in the text as it came */
    kk_added normalised; /* looked for after spaces became U+2581 */
    uint8_t *kinds;      /* kk_token_kind by id */
    int32_t byte_ids[256];
    int32_t ascii_ids[128]; /* of one-character tokens (for the space: U+2581's); -1: none */
    int32_t bos;            /* -1: none */
    size_t longest;         /* bytes of the longest token */
    uint64_t joins[KK_CHAR_CLASSES][KK_CHAR_CLASSES / 64];
};

/* Building: make one, fill vocab (kk_vocab_add) and added tokens, then merges, then finish. */
kk_tokenizer *kk_tokenizer_new(void);
/* An added token; it enters the vocabulary when it is not there yet. */
kk_status kk_tokenizer_add(kk_tokenizer *t, const char *text, size_t len, int64_t id,
                           unsigned flags, bool normalised, const char *label, kk_err *err);
/* A merge by its sides' ids, either of which may be -1.  One that could never apply, because a
 * side or the result is no token, is left out. */
kk_status kk_tokenizer_add_merge(kk_tokenizer *t, int32_t left, int32_t right, kk_err *err);
/* The same from "left right", as older files write it. */
kk_status kk_tokenizer_add_merge_text(kk_tokenizer *t, const char *text, size_t len,
                                      const char *label, kk_err *err);
kk_status kk_tokenizer_finish(kk_tokenizer *t, const char *label, kk_err *err);

/* A growing list of ids. */
typedef struct {
    int32_t *ids;
    size_t n, cap;
} kk_ids;

kk_status kk_ids_put(kk_ids *out, int32_t id, kk_err *err);
/* Encodes text after what is in *out; with special, special strings in it become their tokens. */
kk_status kk_tokenizer_encode(const kk_tokenizer *t, const char *text, size_t len, bool special,
                              kk_ids *out, kk_err *err);
/* An added special token by its text; NULL: there is none. */
const kk_added_token *kk_tokenizer_special_token(const kk_tokenizer *t, const char *text);

/* The byte a token such as <0x0A> stands for, -1 when it is no such token. */
int kk_byte_of_text(const char *text, size_t len);

#endif
