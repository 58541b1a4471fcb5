/* dflash.h - drafts by the block-diffusion drafter of model/dflash_model.h.
 *
 * A session's state is context K/V of committed rows, in a cache of its own, and a queue of taps of
 * rows that are not in it yet.  The queue spares a session that does not draft nearly all of the
 * drafter's work: rows enter the cache together, before the next draft or when KK_TAP_QUEUE wait.
 * They enter in order and depend on nothing but their own taps, so that it makes no difference
 * when. */
#ifndef KK_PROPOSE_DFLASH_H
#define KK_PROPOSE_DFLASH_H

#include "model/dflash_model.h"
#include "propose/propose.h"

enum { KK_TAP_QUEUE = 64 }; /* rows that may wait */

/* What the engine registers with it (kk_proposer_opts.shared); borrowed, all of it. */
typedef struct {
    kk_dflash *model;
    kk_buf *chunk; /* taps of one chunk of a prompt, which all sessions use in turn */
} kk_dflash_shared;

extern const kk_proposer kk_propose_dflash;

#endif
