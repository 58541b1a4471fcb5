/* propose.h - who drafts the tokens of a round.
 *
 * A proposer writes what it expects to follow; the round checks every token of it, so that a
 * proposer can make decoding faster or slower and never different. */
#ifndef KK_PROPOSE_H
#define KK_PROPOSE_H

#include "core/error.h"

/* One session's part of a draft. */
typedef struct {
    void *self;            /* the session's state at this proposer */
    const int32_t *tokens; /* its timeline [0, len); the last of them is the anchor */
    int32_t len;
    int32_t *out; /* [max] */
    int32_t max;  /* >= 1 */
    int32_t n;    /* out: how many were written */
} kk_draft;

typedef struct {
    const char *name;
    bool free; /* costs no pass over any weights */
    /* Drafts for n sessions at once.  A failure leaves them as they were. */
    kk_status (*draft)(kk_draft *drafts, int32_t n, kk_err *err);
} kk_proposer;

extern const kk_proposer kk_propose_none;   /* nothing: plain decoding; self is NULL */
extern const kk_proposer kk_propose_dflash; /* self: a kk_context */
extern const kk_proposer kk_propose_ngram;  /* self: a kk_ngram */

#endif
