/* engine.h - the inside of an engine, for the files of this folder and for tests.
 *
 * Locking: what changes in an engine, but for counters, is touched only between kk_engine_lock
 * and _unlock, which go to threads in the order in which they ask.  The library's calls hold the
 * lock for one forward at a time and never while they call back.  Which forward is next, and whose
 * rounds it joins, is the schedule's, which has a lock of its own; nobody holds both. */
#ifndef KK_ENGINE_ENGINE_H
#define KK_ENGINE_ENGINE_H

#include "engine/schedule.h"
#include "format/checkpoint.h"
#include "model/restorer.h"
#include "propose/dflash.h"

/* What pages of latents hold beside them: scales of sliding layers, of full ones, of both, or, for
 * diagnosis, true rows. */
enum { KK_LATENTS_SLIDING, KK_LATENTS_FULL, KK_LATENTS_ALL, KK_LATENTS_TRUTH, KK_LATENTS };

/* One model's K/V pages in every format; one that its heads do not fit, or that the device lacks,
 * has no pools. */
typedef struct {
    kk_kv_layout layout[KK_KV_FORMATS];
    kk_pool *pool[KK_KV_FORMATS][KK_KINDS]; /* NULL: no layer of that kind */
    bool fits[KK_KV_FORMATS];
} kk_pages;

/* Proposers have the numbers of kk_spec; those after KK_SPEC_NGRAM are free, for a proposer that a
 * test brings along. */
enum { KK_MOST_SPECS = 8 };

/* A proposer that sessions of an engine may draft with, and what the engine has for it. */
typedef struct {
    const kk_proposer *proposer; /* NULL: the engine has none of that number */
    void *shared;                /* kk_proposer_opts.shared; borrowed */
    const kk_pages *pages;       /* for K/V rows of its own, by format; NULL: it has none */
    const int32_t *taps;         /* layers whose outputs it wants; borrowed */
    int32_t n_taps;
    int32_t most;     /* tokens it can draft at once; 0: as many as a round takes */
    int32_t standard; /* tokens it drafts at most when nothing is said */
    /* What its state depends on besides the rows, never 0; NULL: on its name alone. */
    uint64_t (*fingerprint)(kk_engine *e);
    /* What its states of any precision have in common, never 0; NULL: nothing but its fingerprint.
     * A state only drafts, so that other weights cost drafts and change no token. */
    uint64_t (*identity)(kk_engine *e);
    kk_acceptance known; /* what sessions saw of its drafts */
} kk_proposer_entry;

struct kk_engine {
    kk_mem mem;
    kk_fair_lock lock;
    kk_schedule schedule;
    const kk_backend *backend;
    char why_device[256]; /* why it is this one */
    const char *exact_by; /* as in kk_device_info */
    _Atomic int64_t choices, near_ties;
    kk_dev *dev;
    kk_checkpoint *checkpoint;
    kk_gemma4 *model;
    kk_tokenizer *tokenizer; /* NULL: the model came without one */
    double copy_s;           /* seconds in which the device took the weights */
    int64_t mapped;          /* bytes of weights counted in mem that lie in mapped files */
    kk_pages pages;          /* K/V pages of the verifier */

    kk_drafter *drafter; /* NULL: none, and all of this empty */
    kk_dflash *dflash;
    kk_dflash_shared dflash_shared; /* the drafter, and the taps of one chunk of a prompt */
    kk_pages draft_pages;
    int64_t mapped_drafter; /* as mapped */

    kk_projection *projection; /* NULL: none, and all of this empty */
    kk_restorer *restorer;
    kk_pool *latent_pools[KK_KV_FORMATS][KK_LATENTS]; /* by format */
    int64_t mapped_projection;                        /* as mapped */
    bool projection_made_elsewhere; /* with other weights of this model, or of the drafter */

    kk_rounds rounds;
    kk_proposer_entry proposers[KK_MOST_SPECS]; /* by kk_spec */
    float *row;                                 /* [vocab], scratch */
    int32_t n_sessions;
    /* 0: not taken yet; see fingerprint.h */
    _Atomic uint64_t fingerprint, identity, drafter_fingerprint, projection_fingerprint;
};

/* Sets backend and why_device. */
kk_status kk_engine_find_device(kk_engine *e, const kk_engine_opts *o, kk_err *err);
void kk_engine_lock(kk_engine *e);
void kk_engine_unlock(kk_engine *e);
const kk_config *kk_engine_config(const kk_engine *e);

/* In proposers.c: those that come with the engine are registered when it is opened. */
kk_status kk_engine_open_proposers(kk_engine *e, kk_err *err);
/* Registers one more under a number that is free.  All that want taps want the same layers. */
kk_status kk_engine_add_proposer(kk_engine *e, kk_spec as, const kk_proposer_entry *entry,
                                 kk_err *err);
/* NULL: none of that number, as of KK_SPEC_NONE. */
kk_proposer_entry *kk_engine_proposer(kk_engine *e, kk_spec spec);
/* What its saved states are told by; never 0. */
uint64_t kk_engine_proposer_fingerprint(kk_engine *e, const kk_proposer_entry *entry);
uint64_t kk_engine_proposer_identity(kk_engine *e, const kk_proposer_entry *entry); /* 0: none */

#endif
