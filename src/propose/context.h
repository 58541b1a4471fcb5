/* context.h - what a session keeps for its DFlash drafter: context K/V of committed rows, and a
 * queue of taps of rows that are not in it yet.
 *
 * The queue spares a session that does not draft nearly all of the drafter's work: rows enter the
 * context together, before the next draft or when 64 wait.  They enter in order and depend on
 * nothing but their own taps, so it makes no difference when.
 *
 * Invariant, between calls: cache rows + queued rows = rows of the verifier's cache. */
#ifndef KK_PROPOSE_CONTEXT_H
#define KK_PROPOSE_CONTEXT_H

#include "model/dflash.h"

enum { KK_TAP_QUEUE = 64 }; /* rows that may wait */

typedef struct kk_context kk_context;

typedef struct {
    kk_dflash *model; /* borrowed */
    const kk_backend *backend;
    kk_dev *dev;
    const kk_kv_layout *layout; /* of the drafter's cache; borrowed */
    kk_pool *pool[KK_KINDS];    /* borrowed */
    kk_buf *chunk;              /* taps of one prefill chunk; borrowed, shared by all sessions */
    int64_t max_len;
    int32_t max_chunk; /* rows of it */
    int32_t draft_ctx; /* rows that full layers look back over; 0: all */
} kk_context_opts;

kk_status kk_context_new(kk_context **out, const kk_context_opts *opts, kk_err *err);
void kk_context_free(kk_context *c);          /* NULL is fine */
int64_t kk_context_rows(const kk_context *c); /* in the cache and queued */
kk_cache *kk_context_cache(const kk_context *c);

/* Where the taps of the next n rows go, up to the chunk.  Room may be made by extending. */
kk_status kk_context_room(kk_context *c, int32_t n, kk_buf **taps, int32_t *tap_row, kk_err *err);
/* The first n of the rows that room was made for are on the timeline; the others are forgotten.
 * For at most KK_MAX_DRAFT + 1 rows; more must be absorbed. */
void kk_context_commit(kk_context *c, int32_t n);
/* The same for all n rows, of any number; a failure leaves the context without them. */
kk_status kk_context_absorb(kk_context *c, int32_t n, kk_err *err);
/* Brings all queued rows into the cache. */
kk_status kk_context_flush(kk_context *c, kk_err *err);

/* Whether it can go back to so many rows; and going there. */
bool kk_context_reaches(const kk_context *c, int64_t rows);
void kk_context_truncate(kk_context *c, int64_t rows);

/* The state frozen (a mark on the cache, after a flush), and going back to it, also in another
 * session's context; m NULL: to no rows. */
kk_status kk_context_mark(kk_context *c, kk_mark **out, kk_err *err);
void kk_context_restore(kk_context *c, const kk_mark *m);

#endif
