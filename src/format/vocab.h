/* vocab.h - the texts of a tokenizer's tokens, by id and by text. */
#ifndef KK_FORMAT_VOCAB_H
#define KK_FORMAT_VOCAB_H

#include "core/error.h"

/* Ids past this are taken for damage: no vocabulary we serve has a tenth of it. */
enum { KK_MAX_VOCAB = 1 << 22 };

typedef struct {
    uint32_t offset, len; /* in the arena; len 0: no token has this id */
} kk_piece;

typedef struct {
    uint32_t hash;
    int32_t id; /* -1: free */
} kk_vocab_slot;

typedef struct {
    char *arena; /* all texts, one after another */
    size_t arena_len, arena_cap;
    kk_piece *pieces; /* by id */
    size_t pieces_cap;
    int32_t size; /* the largest id + 1 */
    kk_vocab_slot *slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_texts;
} kk_vocab;

void kk_vocab_free(kk_vocab *v); /* zero value is fine */
/* Adds a token.  Fails when the id is out of range or taken, or the text is empty or taken. */
kk_status kk_vocab_add(kk_vocab *v, int64_t id, const char *text, size_t len, const char *label,
                       kk_err *err);
int32_t kk_vocab_find(const kk_vocab *v, const char *text, size_t len); /* -1: none */
/* The same for the texts of two tokens, one after the other. */
int32_t kk_vocab_find_joined(const kk_vocab *v, int32_t left, int32_t right);

static inline const char *kk_vocab_text(const kk_vocab *v, int32_t id, size_t *len) {
    *len = v->pieces[id].len;
    return v->arena + v->pieces[id].offset;
}

#endif
