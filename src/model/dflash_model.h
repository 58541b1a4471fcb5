/* dflash_model.h - the block-diffusion drafter, written once in terms of backend.h.
 *
 * It reads the verifier's hidden states at a few layers (taps).  For each committed row they
 * become context K/V of every layer, kept in a cache of the drafter's own (extend).  A block is
 * the anchor token and n mask tokens, run once over that context; row i of it predicts the token
 * at its own position (draft).  The block's own K/V lie behind the context, at rows the cache
 * has reserved and not committed, and are forgotten.
 *
 * Sliding layers are causal in the block, with their window; full layers see the whole block.
 * What a draft is worth depends on all this, what is decoded never does. */
#ifndef KK_MODEL_DFLASH_H
#define KK_MODEL_DFLASH_H

#include "format/drafter.h"
#include "model/gemma4.h"

typedef struct kk_dflash kk_dflash;

/* A short head: rows of the verifier's head for part of the vocabulary, which are read for a draft
 * in the place of all of them.  An eighth of them, up to 1,024, are spare where the device can
 * change rows: they take the ids that sessions have (kk_dflash_note), those least recently seen
 * going first; at first they have the least likely of `id`. */
typedef struct {
    const int32_t *id;      /* [n], each once, the likeliest first, not the mask's */
    int32_t n;              /* 0: there is none */
    const kk_tensor *table; /* the head they are taken from; its bytes outlive the model */
    kk_dtype type;          /* theirs: the table's own, if that is no affine one, Q8_0 or Q4_0 */
    kk_mem *mem;            /* counts them */
} kk_short_rows;

typedef struct {
    const kk_backend *backend;
    kk_dev *dev;
    const kk_gemma4 *verifier; /* borrowed: its token table and embedding scale */
    int32_t max_rows;          /* rows of one extension */
    int32_t max_block_rows;    /* rows of all blocks of one draft */
    kk_short_rows short_head;
} kk_dflash_opts;

/* Borrows the drafter's files, which must outlive the model.  config: what to run it as, the
 * files' own or a variation of it (embedding scale, masks). */
kk_status kk_dflash_new(kk_dflash **out, const kk_drafter *files, const kk_drafter_config *config,
                        const kk_dflash_opts *opts, kk_err *err);
void kk_dflash_free(kk_dflash *m); /* NULL is fine */
const kk_drafter_config *kk_dflash_config(const kk_dflash *m);
const kk_kv_shape *kk_dflash_kv_shape(const kk_dflash *m);

/* A context of one session: rows [0, len) of the cache are committed rows of the verifier. */
typedef struct {
    kk_cache *cache;
    const kk_kv_layout *layout;
    int32_t sink, full_window; /* what full layers see of it; 0: everything */
} kk_dflash_context;

/* The next n_rows of a context, from taps [row][n_taps][hidden]. */
typedef struct {
    kk_dflash_context context; /* reserved for n_rows; the caller commits them */
    const kk_buf *taps;
    int32_t tap_row, n_rows;
} kk_dflash_rows;
kk_status kk_dflash_extend(kk_dflash *m, const kk_dflash_rows *rows, int32_t n, kk_err *err);

/* out[i] = fc of the taps of row tap_row + i, RMS-normalised without a weight: the drafter's
 * features of a row, which a projection may read.  n_rows is at most that of one
 * extension; rows of out are as wide as the drafter's hidden states. */
kk_status kk_dflash_features(kk_dflash *m, const kk_buf *taps, int32_t tap_row, int32_t n_rows,
                             kk_buf *out, kk_err *err);

/* One block: out[i] is the token expected i + 1 positions after the anchor's. */
typedef struct {
    kk_dflash_context context; /* reserved for n + 1 rows; nothing is committed */
    int32_t anchor;
    int32_t n; /* drafts wanted, 1 to config.block - 1 */
    int32_t *out;
    /* A draft whose anchor only the device knows: the first id of kk_dflash_anchor().  Its tokens
     * become the ids [1, n] there, and nothing is waited for.  NULL: anchor and out. */
    kk_buf *ids;
    int32_t ahead;       /* rows before it that are not committed */
    const kk_buf *shift; /* as in kk_group, behind those */
    int32_t most_shift;
    bool short_head; /* by the short head, where there is one; the same of all blocks of a draft */
} kk_dflash_block;
/* Where a draft with ids finds its anchor: the first int32. */
kk_buf *kk_dflash_anchor(const kk_dflash *m);
/* Blocks with ids come alone. */
kk_status kk_dflash_draft(kk_dflash *m, const kk_dflash_block *blocks, int32_t n, kk_err *err);

/* Rows of the short head; 0: there is none. */
int32_t kk_dflash_short_rows(const kk_dflash *m);
/* Whether it has an id. */
bool kk_dflash_has_short(const kk_dflash *m, int32_t id);
/* A session has these tokens: those that the short head lacks get spare rows, for drafts that are
 * asked for later. */
kk_status kk_dflash_note(kk_dflash *m, const int32_t *tokens, int32_t n, kk_err *err);

/* For diagnosis, of block 0 of the last draft: the hidden state of a row (0: the anchor's) after
 * the final norm, and the logits of a row >= 1 after the soft-cap, all of the vocabulary. */
kk_status kk_dflash_hidden(kk_dflash *m, int32_t row, float *out, kk_err *err);
kk_status kk_dflash_logits(kk_dflash *m, int32_t row, float *out, kk_err *err);

#endif
