/* propose.h - who drafts the tokens of a round.
 *
 * A proposer writes what it expects to follow; the round checks every token of it, so that a
 * proposer can make decoding faster or slower and never different. */
#ifndef KK_PROPOSE_H
#define KK_PROPOSE_H

#include <stdint.h>

typedef struct {
    const char *name;
    /* Writes up to max tokens that may follow tokens[0..len) and returns how many. */
    int32_t (*draft)(void *self, const int32_t *tokens, int32_t len, int32_t *out, int32_t max);
    void *self;
} kk_proposer;

/* Drafts nothing: plain decoding. */
extern const kk_proposer kk_propose_none;

#endif
