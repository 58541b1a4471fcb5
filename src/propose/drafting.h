/* drafting.h - what one session has of proposers: none (plain decoding), one, or several, with the
 * state it keeps at each and how its drafts fared.
 *
 * Invariant, between calls: the state of every member stands for the rows of the verifier's cache.
 * The loops here keep it; who owns a session calls each of them where it changes that cache. */
#ifndef KK_PROPOSE_DRAFTING_H
#define KK_PROPOSE_DRAFTING_H

#include "propose/controller.h"
#include "propose/propose.h"

enum { KK_MAX_PROPOSERS = 2 };

typedef struct {
    const kk_proposer *proposer;
    void *self;
    kk_spec spec;         /* its kk_spec in the engine; 0: none */
    int32_t most;         /* tokens of a draft; 0: as many as a round takes */
    bool steady;          /* it drafted in the round before */
    kk_acceptance seen;   /* acceptance of its drafts in this session */
    kk_acceptance *known; /* acceptance over the engine's sessions; borrowed; NULL: not pooled */
} kk_drafting_member;

/* A zeroed one has no member. */
typedef struct {
    kk_drafting_member member[KK_MAX_PROPOSERS];
    int32_t n;
} kk_drafting;

/* Opens a session's state at a proposer.  known: what sessions before it saw, or NULL. */
kk_status kk_drafting_add(kk_drafting *d, const kk_proposer *p, const kk_proposer_opts *opts,
                          kk_acceptance *known, kk_err *err);
void kk_drafting_close(kk_drafting *d); /* leaves it without members */

/* Around a forward of the verifier, as propose.h has it.  taps->buf is NULL where no proposer reads
 * taps. After a failure of reserve, or of the forward, commit 0. */
kk_status kk_drafting_reserve(kk_drafting *d, const int32_t *tokens, int32_t n, kk_taps *taps,
                              kk_err *err);
void kk_drafting_commit(kk_drafting *d, int32_t n);
kk_status kk_drafting_absorb(kk_drafting *d, int32_t n, kk_err *err);
kk_status kk_drafting_flush(kk_drafting *d, kk_err *err);

bool kk_drafting_can_truncate(const kk_drafting *d, int64_t rows);
void kk_drafting_truncate(kk_drafting *d, int64_t rows);
/* Whether every state covers so many rows. */
bool kk_drafting_stands_for(const kk_drafting *d, int64_t rows);

/* All states frozen. A zeroed one covers no rows. */
typedef struct {
    struct {
        const kk_proposer *proposer;
        void *mark;
    } of[KK_MAX_PROPOSERS];
} kk_drafting_marks;
kk_status kk_drafting_mark(kk_drafting *d, kk_drafting_marks *out, kk_err *err);
void kk_drafting_unmark(kk_drafting_marks *m); /* leaves it zeroed */
int64_t kk_drafting_marks_bytes(const kk_drafting_marks *m, const kk_drafting_marks *older);
/* Also into another session's, whose members are the same in the same order. */
void kk_drafting_restore(kk_drafting *d, const kk_drafting_marks *m);

/* Which member's state is saved, or -1: saved files have a place for one. */
int kk_drafting_saved(const kk_drafting *d);

/* What its drafts were worth: told to the engine's other sessions, and handed to a fork. */
void kk_drafting_pool(const kk_drafting *d);
void kk_drafting_inherit(kk_drafting *d, const kk_drafting *from);

#endif
