/* session.h - the inside of a session, for the files of this folder and for tests.
 *
 * Invariants, true between calls:
 *   (1) tokens[0..len) are the timeline; all of them are within the vocabulary;
 *   (2) the cache holds rows [0, len) or [0, len - 1): either the last token is evaluated and
 *       `logits` are those of its row, or it is the anchor of the next forward; what it keeps at
 *       its proposers stands for the same rows;
 *   (3) checkpoints (points) are in order of len, one for each at most, and agree with the timeline
 *       up to theirs. */
#ifndef KK_ENGINE_SESSION_H
#define KK_ENGINE_SESSION_H

#include "engine/engine.h"

/* The cache and what is kept at proposers, frozen. */
typedef struct {
    kk_mark *cache;
    kk_drafting_marks drafting;
} kk_session_marks;

/* A checkpoint: a frozen state, shared by the session that took it and those forked from it. */
typedef struct {
    int32_t refs; /* sessions that list it; changed under the engine's lock */
    int32_t len;
    kk_session_marks marks;
    float *logits; /* [vocab]; NULL: the last token was the anchor */
} kk_point;

/* What a session keeps of its rows, with the defaults filled in. */
typedef struct {
    kk_keep kind[KK_LAYER_KINDS];
    int32_t sink, window, chunk; /* 0 where every kind keeps all */
    kk_kv_format latents;
} kk_session_keeps;

/* Wall time of each round, for measurements alone: memory is the caller's, taken before, so that
 * recording costs a round one store.  Rounds beyond cap are not recorded. */
typedef struct {
    double *seconds; /* [cap] */
    int32_t cap, n;
} kk_round_times;

struct kk_session {
    kk_engine *engine;
    kk_kv_format format;
    kk_session_keeps keeps;
    const kk_kv_layout *layout; /* the engine's, or its own when it keeps latents */
    kk_kv_layout *own_layout;
    kk_diagnosis *diagnosis; /* NULL in production */
    kk_key_counts counts;    /* what attention read for it */
    kk_task task;
    kk_cache *cache;
    int32_t *tokens; /* [ctx] */
    int32_t len, ctx;
    float *logits; /* [vocab] */
    kk_spec spec;  /* KK_SPEC_AUTO: dflash and ngram */
    kk_drafting drafting;
    int32_t draft_max, draft_ctx;
    bool draft_fixed;
    kk_sampling sampling; /* settings of the last generation */
    bool other_weights;   /* rows came with a file that other weights of the model had made */
    bool sampled;         /* there was one */
    kk_point **points;    /* [cap_points] its checkpoints */
    int32_t n_points, cap_points;
    int64_t checkpoint_bytes; /* the most that they may come to hold alone */
    kk_round_times *times;    /* NULL in production */
};

/* In proposers.c: what a session is to draft by, checked against the engine; and opened. */
kk_status kk_session_check_spec(kk_engine *e, const kk_session_opts *o, kk_err *err);
kk_status kk_session_open_proposers(kk_session *s, kk_err *err);
/* The proposer whose state is saved: of AUTO the drafter's. */
kk_spec kk_session_first_spec(kk_spec spec);

/* A session under diagnosis, for evaluations and tests alone: it restores rows, keeps the true ones
 * too, and what it rebuilds is mix * true + (1 - mix) * rebuilt, 0 to 1.  With 1 it gives exactly
 * what KK_KEEP_ALL gives.  Forks of it are under the same diagnosis; it cannot be saved. */
kk_status kk_session_new_diagnosed(kk_session **out, kk_engine *e, const kk_session_opts *opts,
                                   float mix, kk_err *err);

/* Whether the last token is evaluated and its logits are known. */
bool kk_session_settled(const kk_session *s);
/* Evaluates tokens[cached .. end) in chunks; the last one's logits are kept when with_logits.
 * On failure the cache may have moved: the caller has a mark to go back to, or a single chunk,
 * of which a failure leaves nothing. */
kk_status kk_session_evaluate(kk_session *s, int32_t end, bool with_logits, kk_progress progress,
                              void *user, kk_err *err);

/* In keeping.c: what a session is to keep, checked against the engine; its layout and policies.
 * keeps->window must hold what is drafted in a round.  diagnosis: NULL in production. */
kk_status kk_session_keeping(kk_session_keeps *out, const kk_engine *e, const kk_session_opts *o,
                             kk_diagnosis *diagnosis, kk_err *err);
kk_status kk_session_open_cache(kk_session *s, kk_err *err);
kk_status kk_session_check_drafts(const kk_session *s, kk_err *err);
/* How many of the next rows may share a pass: every row that one of them rebuilds must have its
 * latent already. */
int32_t kk_session_pass(const kk_session *s, int64_t from, int32_t most);

/* Takes and gives memory for one row of logits. */
float *kk_session_row_take(kk_session *s);
void kk_session_row_give(kk_session *s, float *row);

/* Marks under the engine's lock. */
kk_status kk_session_mark(kk_session *s, kk_session_marks *out, kk_err *err);
void kk_session_unmark(kk_session *s, kk_session_marks *m); /* all zero is fine */
/* As kk_mark_bytes, of both. */
int64_t kk_session_marks_bytes(const kk_session_marks *m, const kk_session_marks *older);
/* Back to the marks, or to nothing when they are all zero. */
void kk_session_go_back(kk_session *s, const kk_session_marks *m);
/* Forgets the checkpoints after len; -1: all, and the list itself. */
void kk_session_drop_checkpoints(kk_session *s, int32_t after_len);
/* Lists another session's checkpoints as its own too; it has none yet. */
kk_status kk_session_share_checkpoints(kk_session *s, const kk_session *from, kk_err *err);

#endif
