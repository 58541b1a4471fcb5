/* draft_vocab.h - which ids a drafter's short head has: what kk_engine_opts.draft_vocab asks for,
 * or what lies beside the drafter. */
#ifndef KK_ENGINE_DRAFT_VOCAB_H
#define KK_ENGINE_DRAFT_VOCAB_H

#include "core/error.h"

enum {
    /* Ids of a head that nothing else is said of: an eighth of the vocabulary that released models
     * have, of which such texts as people write use most. */
    KK_DRAFT_VOCAB = 32768,
    KK_DRAFT_VOCAB_LEAST = 64
};

typedef struct {
    int32_t *id; /* [n], the likeliest first, released with kk_free; NULL: no short head */
    int32_t n;
} kk_draft_vocab;

/* asked: kk_engine_opts.draft_vocab.  folder: the drafter's, whose token-counts.json is taken where
 * it is there and nothing is asked for; NULL: it has none.  random: the weights are, and a number
 * alone means the first so many ids.  never: an id that is left out. */
kk_status kk_draft_vocab_find(kk_draft_vocab *out, const char *asked, const char *folder,
                              bool random, int32_t vocab, int32_t never, kk_err *err);

#endif
