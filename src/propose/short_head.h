/* short_head.h - whether a session drafts by the drafter's short head, which knows part of the
 * vocabulary, or by its full one.
 *
 * A token outside the short head cannot be drafted by it, and ends what is right of a draft.  How
 * many of the tokens that the verifier chooses lie outside is counted whichever head is used, so
 * that nothing has to be tried: a session leaves the short head when that share is more than the
 * head saves, and comes back when it is clearly less.  A zeroed one drafts by the short head. */
#ifndef KK_PROPOSE_SHORT_HEAD_H
#define KK_PROPOSE_SHORT_HEAD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double outside; /* share of the tokens outside, the recent ones counting most */
    bool left;      /* the full head drafts */
} kk_short_head;

/* The verifier chose n tokens, of which so many lie outside. */
void kk_short_head_saw(kk_short_head *h, int32_t n, int32_t outside);

#endif
