/* bpe.h - the merges of a byte-pair encoding and the loop that applies them. */
#ifndef KK_FORMAT_BPE_H
#define KK_FORMAT_BPE_H

#include "core/error.h"

typedef struct {
    int32_t left, right, result;
} kk_merge;

typedef struct {
    kk_merge *merges; /* by rank */
    size_t n, cap;
    uint32_t *slots; /* rank + 1 by (left, right); 0: free */
    size_t n_slots;  /* a power of two, at least twice n */
} kk_bpe;

void kk_bpe_free(kk_bpe *b); /* zero value is fine */
/* Appends a merge, weaker than all before it. */
kk_status kk_bpe_add(kk_bpe *b, kk_merge m, kk_err *err);
/* Builds the table; nothing may be added afterwards.  Of equal pairs the last one counts. */
kk_status kk_bpe_finish(kk_bpe *b, kk_err *err);

/* What one word needs while it is merged; kept between words. */
typedef struct kk_symbol kk_symbol;
typedef struct {
    kk_symbol *symbols;
    size_t symbols_cap;
    uint64_t *first, *spare; /* the pairs the word starts with, sorted; scratch to sort them */
    size_t n_first, first_at, first_cap, spare_cap;
    uint64_t *heap; /* pairs that merges made */
    size_t n_heap, heap_cap;
} kk_bpe_scratch;

void kk_bpe_scratch_free(kk_bpe_scratch *s);
/* Merges the n ids of one word in place, and returns in *n how many are left. */
kk_status kk_bpe_merge(const kk_bpe *b, kk_bpe_scratch *s, int32_t *ids, size_t *n, kk_err *err);

#endif
