/* round.h - one step of decoding, drafted or plain, for one or several sessions.
 *
 * The state of a session between rounds: tokens[0..len) are its timeline, all but the last are
 * in the cache, and the last, the anchor, is not.  A round
 *   drafts   n >= 0 tokens, as many as the controller expects to pay, behind the anchor;
 *   forwards the anchor and the draft in one pass, with logits for each row, and taps for the
 *            sessions whose drafter wants them;
 *   chooses  y[i] after row i, by position, as plain decoding would;
 *   matches  the longest prefix with draft[i] == y[i], cut at a stop id or the token limit.
 * The caller then emits the outcome, perhaps less of it, and commits what it emitted.  Rows of
 * the draft that did not match are never read again.  A plain round is one with n = 0.
 *
 * On a device that queues its work, a round is enqueued before the outcome of the one
 * before it is known: draft, forward, choice, match and the hashes of the rows stay on the device,
 * which finds there what its next round begins with and at which position, and the host reads it
 * later.  How many tokens a round drafts is chosen when it is enqueued.  While a round is *in
 * flight* its rows are reserved in the cache and not committed, so that a round that came after a
 * stop leaves nothing: kk_round_end forgets it.  Not where the host must know the tokens: for
 * n-grams, and for masks that depend on them.  A sampled round with a draft is enqueued whole, and
 * waits for the outcome of the one before it: what it samples with depends on its position.
 *
 * On any device a plain session may go on before its caller has seen its last tokens: these are
 * kept at once, and their rows stay reserved and not committed, so that kk_round_forget can take
 * back what the caller did not want. */
#ifndef KK_DECODE_ROUND_H
#define KK_DECODE_ROUND_H

#include "backend/sample.h"
#include "decode/stop.h"
#include "model/gemma4.h"
#include "propose/drafting.h"

enum { KK_MAX_GROUPS = 256 };

/* What rounds of all sessions share. */
typedef struct {
    kk_gemma4 *model;
    kk_sampler *sampler;
    int32_t vocab, max_rows, max_logits;
    int32_t exact_rows;    /* drafts keep a round within so many rows; 0: they need not */
    const int32_t *tapped; /* layers whose outputs proposers want */
    int32_t n_tapped;
    kk_restorer *restorer;      /* NULL: no session keeps latents */
    bool ahead;                 /* rounds are enqueued before their tokens are known */
    bool samples;               /* the device draws tokens by itself */
    bool ties;                  /* near ties are counted: what the device computes is measured, or
                                 * not proven, to be exact */
    bool company;               /* other sessions wait: not now */
    struct kk_round *in_flight; /* the session whose choice the device holds; NULL: none */
    /* What rounds took so far: of sessions whose rows are all stored, and of those that rebuild
     * some, whose rounds take several times as long. */
    kk_costs costs, costs_rebuilding;
} kk_rounds;

/* A round that was enqueued and has no outcome yet. */
typedef struct {
    bool queued, ahead; /* ahead: before its own token was known */
    bool read;          /* picks are at hand */
    int64_t ticket;
    kk_choice choice;               /* how much was drafted */
    int32_t n_draft;                /* tokens of the draft, which the device knows */
    kk_pick pick[KK_MAX_DRAFT + 1]; /* [n_draft + 1], once it is read */
    double took_s, draft_s;         /* by the device's clock, once it is read; 0: it has none */
} kk_flight;

/* What a generation asks of its choices beside its sampling. */
typedef struct {
    const kk_logit_bias *bias; /* [n_bias] */
    size_t n_bias;
    const uint32_t *mask; /* NULL: all ids */
    kk_mask_at mask_at;   /* NULL: the mask is the same everywhere */
    void *user;           /* argument of mask_at */
    int32_t n_logprobs;
    kk_logprobs *logprobs; /* [KK_MAX_DRAFT + 1] of the outcome; NULL: not wanted */
} kk_choose_opts;

/* One session's part.  The first block is set once per generation, the last is the outcome. */
typedef struct kk_round {
    kk_cache *cache;
    const kk_kv_layout *layout;
    kk_key_counts *counts;
    int32_t *tokens; /* [cap] */
    int32_t cap;
    float *logits; /* [vocab], scratch */
    const kk_sampling *sampling;
    kk_choose_opts choose;
    kk_stop stop;
    kk_drafting *drafting; /* the session's proposers; none of them: plain decoding */
    int32_t draft_max;     /* most tokens to draft */
    bool draft_fixed;      /* always so many, whether they pay or not */
    kk_spec_stats *stats;  /* added to */

    int32_t len;         /* tokens on the timeline */
    int32_t tokens_left; /* tokens that may still be generated, >= 1 */
    uint64_t hash;       /* hash of the logits of the rows chosen so far */
    kk_flight flight[2]; /* this round's and the next one's */
    int32_t unsettled;   /* tokens on the timeline that caches do not follow yet */

    int32_t n_draft, n_right;    /* drafted, and of them right */
    int32_t draft[KK_MAX_DRAFT]; /* [n_draft] */
    int32_t n_out;               /* tokens[len .. len + n_out) are chosen */
    bool stopped;                /* the last of them is a stop id */
    bool refused;                /* there is none: the mask allows no id */
    bool broken;                 /* there is none: the logits are not finite */
    uint64_t hash_after[KK_MAX_DRAFT + 1];
    bool near_tie[KK_MAX_DRAFT + 1]; /* of each token of the outcome */
    bool greedy;                     /* they are the largest logits; else ties are not counted */
    int32_t at_hand[KK_MAX_DRAFT];   /* scratch: a draft that was made before the choice */
} kk_round;

/* The rows that rounds of several sessions are filled up to: as many as have logits, and on a
 * device that works beside the host as many as it chooses tokens for by itself. */
int32_t kk_round_rows(const kk_rounds *all);
/* Runs a round of all n sessions in one forward.  On failure every session is as it was. */
kk_status kk_round_run(kk_rounds *all, kk_round *const *rounds, int32_t n, kk_err *err);
/* The outcome without a forward, for a session whose last token's logits are known (in
 * r->logits): the first token after a prompt. */
void kk_round_first(const kk_rounds *all, kk_round *r);
/* After a round that found logits which are not finite, and was committed: KK_ENUMERIC with the
 * first layer that has such values, found by running the row again; or why it could not be run. */
kk_status kk_round_diagnose(kk_rounds *all, kk_round *r, kk_err *err);
/* Puts the first n_keep of the outcome on the timeline; the rest is forgotten.  Two steps: keep
 * touches nothing but the session's own tokens; settle brings caches up to them, pages of which go
 * back to pools that all sessions share, and must come before the next round.  The last n_open
 * tokens stay uncommitted: they may still be forgotten. */
void kk_round_commit(kk_round *r, int32_t n_keep);
void kk_round_keep(kk_round *r, int32_t n_keep);
void kk_round_settle(kk_round *r, int32_t n_open);
/* Whether the next round may run while the last n_open tokens, the outcome included, are open. */
bool kk_round_may_go_on(const kk_rounds *all, const kk_round *r, int32_t n_open);
/* Takes the last n tokens off the timeline, which kk_round_settle left open, each the outcome of a
 * round of its own. */
void kk_round_forget(kk_round *r, int32_t n);
/* Forgets a plain round whose outcome nobody takes, as if it had not run. */
void kk_round_drop(kk_round *r);
/* Whether the next round was enqueued already. */
bool kk_round_in_flight(const kk_round *r);
/* Forgets what is in flight; after the last round of a generation, whatever ended it. */
void kk_round_end(kk_rounds *all, kk_round *r);

#endif
