/* propose.h - proposers: what drafts the tokens of a round, and the state it keeps per session.
 *
 * A proposer writes what it expects to follow; the round checks every token of it, so that a
 * proposer can make decoding faster or slower and never different.
 *
 * It may have state in each session, which only it knows.  The state stands for the rows of the
 * verifier's cache: rows come in as a forward of the verifier evaluates them (reserve before it,
 * commit or absorb after it), and they are taken back (truncate), frozen and restored (mark),
 * written to a file and read (save, load) together with that cache.  A proposer that can follow
 * the tokens by itself when it drafts needs none of this: every entry but draft may be NULL, with
 * the default said beside it.
 *
 * All calls but save and load are made under the engine's lock. */
#ifndef KK_PROPOSE_H
#define KK_PROPOSE_H

#include "core/section.h"
#include "kv/kv.h"

/* What the state of one session is opened with. */
typedef struct {
    void *shared; /* what the engine has of the proposer, for all sessions; borrowed */
    const kk_backend *backend;
    kk_dev *dev;
    kk_mem *mem;
    const kk_kv_layout
        *layout;             /* K/V rows of the proposer's own, and their pools; borrowed; NULL: */
    kk_pool *pool[KK_KINDS]; /* the engine has none for it */
    int32_t max_len;         /* tokens of the timeline */
    int32_t max_rows;        /* rows of one chunk of a prompt */
    int32_t draft_ctx;       /* rows that it is to look back over; 0: all */
} kk_proposer_opts;

/* Where the verifier's hidden states at the tapped layers go: [row][n_tapped][hidden]. */
typedef struct {
    kk_buf *buf;
    int32_t row; /* index of the first row */
} kk_taps;

/* One session's part of a draft. */
typedef struct {
    void *self;            /* the session's state at this proposer */
    const int32_t *tokens; /* the session's tokens [0, len); the last of them is the anchor */
    int32_t len;
    int32_t *out;  /* [max] */
    int32_t max;   /* >= 1 */
    int32_t n;     /* out: how many were written */
    int32_t match; /* out: tokens of the timeline's end that the draft was found by; 0: not said */
} kk_draft;

/* One session's draft, and the place of the taps, of a round that is enqueued before the outcome of
 * the round before it is known.  Nothing is waited for. */
typedef struct {
    int32_t n;             /* tokens to draft, 0: none; they become the ids [1, n] of `ids` */
    kk_buf *ids;           /* int32; the first id of `anchor` was set to the anchor */
    int32_t start;         /* position of the anchor, or the least it can be */
    int32_t flying;        /* rows of the round before that is not committed; 0: there is none */
    const int32_t *tokens; /* the session's tokens [0, len): those that are known by now */
    int32_t len;
    const kk_buf *shift; /* how many of its drafted tokens were right; NULL: start is known */
    kk_taps taps;        /* out: where the taps of the round's rows go */
} kk_ahead;

typedef struct kk_proposer kk_proposer;
struct kk_proposer {
    const char *name;
    bool free;       /* costs no pass over any weights */
    bool wants_taps; /* reserve says where they go; at most one proposer of a session does */

    /* open NULL: no state, self is NULL.  close NULL: nothing to free. */
    kk_status (*open)(void **self, const kk_proposer_opts *opts, kk_err *err);
    void (*close)(void *self);

    /* ---- rows come in.  NULL: it does not mind them. ---- */

    /* The next n rows of the timeline are about to be evaluated, with these tokens, which stay
     * where they are until the commit; n is at most max_rows.  taps: out, for one that wants them.
     * May do work that is due, so that it may fail; that leaves the state standing for its rows.  A
     * reservation takes the place of one before it. */
    kk_status (*reserve)(void *self, const int32_t *tokens, int32_t n, kk_taps *taps, kk_err *err);
    /* The first n of the rows reserved are on the timeline, the others are forgotten.  At most
     * KK_MAX_DRAFT + 1 rows; 0 also without a reservation. */
    void (*commit)(void *self, int32_t n);
    /* The same of all n rows reserved, a chunk of a prompt, of any number; a failure leaves the
     * state without them.  NULL: commit serves, at any number.  Only one that wants taps has it. */
    kk_status (*absorb)(void *self, int32_t n, kk_err *err);
    /* Does the work that was put off, such as rows that wait in a queue.  NULL: there is none. */
    kk_status (*flush)(void *self, kk_err *err);

    /* ---- rounds that are enqueued ahead (decode/round.h).  NULL, all: there are none. ---- */

    /* Whether the session's state can take part in them. */
    bool (*can_go_ahead)(const void *self);
    /* In the place of reserve and draft; commit follows, in the order of rounds.  A failure leaves
     * the state standing for its rows. */
    kk_status (*enqueue)(const kk_proposer *me, void *self, kk_ahead *a, kk_err *err);
    kk_buf *(*anchor)(const void *self);

    /* ---- and are taken back.  NULL: nothing needs to be done. ---- */

    /* Whether it can go back to so many rows; and going there, where it can.  can_truncate NULL: to
     * any number. */
    bool (*can_truncate)(const void *self, int64_t rows);
    void (*truncate)(void *self, int64_t rows);
    /* The state frozen, and going back to it, also in another session that was opened alike.  A
     * mark may outlive the session.  restore: mark NULL, to no rows. */
    kk_status (*mark)(void *self, void **mark, kk_err *err);
    void (*unmark)(void *mark);
    void (*restore)(void *self, const void *mark);
    /* Bytes that a mark may come to hold alone, as kk_mark_bytes has it; older NULL: there is no
     * mark before it.  NULL: they do not count. */
    int64_t (*mark_bytes)(const void *mark, const void *older);

    /* ---- saved sessions.  NULL, both: there is nothing to save. ---- */

    /* A frozen state; it may be written as what it adds to an older one of the same timeline that
     * was saved before it (NULL: none was).  load: so many rows, into a state that was just opened,
     * or that holds the older one; after a failure it is only closed.  Neither is called for no
     * rows. */
    kk_status (*save)(const void *self, const void *mark, const void *older, kk_section_out *to,
                      kk_err *err);
    kk_status (*load)(void *self, int64_t rows, kk_section_in *from, kk_err *err);

    /* ---- what it says of itself ---- */

    int64_t (*rows)(const void *self);    /* rows that the state covers; NULL: it has none */
    kk_cache *(*cache)(const void *self); /* K/V rows of its own, for figures; NULL: none */

    /* Whether its next draft is by a short head, whose cost is counted apart; NULL: no. */
    bool (*is_short)(const void *self);
    /* What the verifier chose where the tokens of a draft stood, or in a round without one would
     * have: n tokens, after every round.  Returns how many of them it could not have drafted as
     * things are.  NULL: it does not mind. */
    int32_t (*chose)(void *self, const int32_t *tokens, int32_t n);

    /* Drafts for n sessions at once.  me: this proposer.  A failure leaves them as they were. */
    kk_status (*draft)(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err);
};

#endif
