/* engine.h - the inside of an engine, for the files of this folder and for tests.
 *
 * Locking: what changes in an engine, but for counters, is touched only between kk_engine_lock
 * and _unlock.  The library's calls hold the lock for one forward at a time and never while they
 * call back, so that sessions of several threads take turns chunk by chunk and round by round. */
#ifndef KK_ENGINE_ENGINE_H
#define KK_ENGINE_ENGINE_H

#include <pthread.h>

#include "decode/round.h"
#include "format/checkpoint.h"
#include "model/restorer.h"

enum { KK_KV_FORMATS = 4 };

/* What pages of latents hold beside them: scales of sliding layers, of full ones, of both, or, for
 * diagnosis, true rows. */
enum { KK_LATENTS_SLIDING, KK_LATENTS_FULL, KK_LATENTS_ALL, KK_LATENTS_TRUTH, KK_LATENTS };

/* One model's K/V pages in every format; a format its heads do not fit has no pools. */
typedef struct {
    kk_kv_layout layout[KK_KV_FORMATS];
    kk_pool *pool[KK_KV_FORMATS][KK_KINDS]; /* NULL: no layer of that kind */
    bool fits[KK_KV_FORMATS];
} kk_pages;

struct kk_engine {
    kk_mem mem;
    pthread_mutex_t lock;
    const kk_backend *backend;
    kk_dev *dev;
    kk_checkpoint *checkpoint;
    kk_gemma4 *model;
    kk_tokenizer *tokenizer; /* NULL: the model came without one */
    double copy_s;           /* seconds in which the device took the weights */
    int64_t mapped;          /* bytes of weights counted in mem that lie in mapped files */
    kk_pages pages;          /* of the verifier */

    kk_drafter *drafter; /* NULL: none, and all of this empty */
    kk_dflash *dflash;
    kk_pages draft_pages;
    kk_buf *chunk_taps;     /* of one prefill chunk */
    int64_t mapped_drafter; /* as mapped */

    kk_projection *projection; /* NULL: none, and all of this empty */
    kk_restorer *restorer;
    kk_pool *latent_pools[KK_KV_FORMATS][KK_LATENTS]; /* by format */
    int64_t mapped_projection;                        /* as mapped */

    kk_rounds rounds;
    kk_acceptance known[KK_SPEC_NGRAM + 1]; /* by proposer: what sessions saw of their drafts */
    float *row;                             /* [vocab], scratch */
    int32_t n_sessions;
    /* 0: not taken yet; see fingerprint.h */
    _Atomic uint64_t fingerprint, drafter_fingerprint, projection_fingerprint;
};

/* How rows of a format are stored. */
kk_dtype kk_engine_stored_as(kk_kv_format f);
void kk_engine_lock(kk_engine *e);
void kk_engine_unlock(kk_engine *e);
const kk_config *kk_engine_config(const kk_engine *e);

#endif
