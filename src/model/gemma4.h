/* gemma4.h - the verifier: Gemma 4's text model, written once in terms of backend.h.
 *
 * One forward serves prefill, decode and verification: it takes groups of rows, each group the
 * next rows of one session's cache, appends their K/V and gives logits for chosen rows.  It
 * writes K/V at [len, len + n) of each cache and commits nothing: the caller reserves before
 * and commits after, so that a draft can be taken back. */
#ifndef KK_MODEL_GEMMA4_H
#define KK_MODEL_GEMMA4_H

#include "backend/layer.h"
#include "format/checkpoint.h"
#include "kv/kv.h"

typedef struct kk_gemma4 kk_gemma4;
typedef struct kk_restorer kk_restorer;

typedef struct {
    const kk_backend *backend;
    kk_dev *dev;
    kk_mem *mem;
    int32_t max_rows;   /* most rows of one forward */
    int32_t max_logits; /* rows that may ask for logits in one forward */
} kk_gemma4_opts;

/* Borrows the checkpoint, which must outlive the model. */
kk_status kk_gemma4_new(kk_gemma4 **out, const kk_checkpoint *ckpt, const kk_gemma4_opts *opts,
                        kk_err *err);
void kk_gemma4_free(kk_gemma4 *m); /* NULL is fine */
const kk_config *kk_gemma4_config(const kk_gemma4 *m);
const kk_kv_shape *kk_gemma4_kv_shape(const kk_gemma4 *m);
/* The token table, which is also the head, and the factor its rows enter the model with: a
 * drafter borrows both. */
const kk_weight *kk_gemma4_table(const kk_gemma4 *m);
float kk_gemma4_embed_scale(const kk_gemma4 *m);

/* The next n_rows tokens of one session. */
typedef struct {
    kk_cache *cache; /* reserved for ahead + n_rows; len + ahead is the position of tokens[0] */
    const kk_kv_layout *layout;
    const int32_t *tokens; /* NULL: `ids` */
    int32_t n_rows;
    int32_t n_logits; /* logits wanted for the last n_logits rows of the group */
    kk_buf *taps;     /* where its rows' taps go, from row tap_row on; NULL: not wanted */
    int32_t tap_row;
    kk_key_counts *counts; /* key counts of its rows are added here; NULL: not wanted */
    int32_t ahead;         /* rows before it that an earlier forward writes: not committed yet */
    const kk_buf *ids;     /* ids of its rows that the device knows; NULL: there is one row, of the
                        * token that kk_gemma4_choose chose last */
    /* As in kk_group; of a forward's only group, whose rows it does not count then. */
    const kk_buf *shift;
    int32_t most_shift;
} kk_gemma4_group;

typedef struct {
    /* Called for each part of each layer that has it, in order; read rows through the backend.
     * What it returns ends the forward unless it is KK_OK. */
    kk_status (*part)(void *user, int32_t layer, kk_layer_part part, const kk_buf *rows,
                      int32_t n_rows, int32_t width, kk_err *err);
    void *user;
} kk_gemma4_watch;

typedef struct {
    const kk_gemma4_group *groups;
    int32_t n_groups;
    /* Layers whose outputs (after the layer scalar) a drafter reads: [row][n_tapped][hidden] in
     * each group's taps. */
    const int32_t *tapped;
    int32_t n_tapped;
    /* For diagnosis: outputs of these layers for all rows, [n_taps][n_rows][hidden], copied to
     * host memory.  Layer -1 is the scaled embedding; layer n_layer is the last hidden state
     * after the final norm. */
    const int32_t *tap_layers;
    int32_t n_taps;
    float *tap_out; /* host memory */
    /* For diagnosis: fails with KK_ENUMERIC at the first output that is not finite, of the token
     * embedding, a layer or the head, and names it. */
    bool finite;
    const kk_gemma4_watch *watch; /* NULL: no observer */
    /* Writes latents, and rebuilds rows, of caches that have them. */
    kk_restorer *restorer;
} kk_gemma4_forward_args;

/* Rows of logits come in the order of groups and rows. */
kk_status kk_gemma4_forward(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err);
/* Says why this forward gave logits that are not finite: runs it once more and looks at each
 * layer's output.  Returns KK_ENUMERIC, or why it could not be run. */
kk_status kk_gemma4_diagnose(kk_gemma4 *m, const kk_gemma4_forward_args *a, kk_err *err);
/* Copies logits row i of the last forward to out [vocab]. */
kk_status kk_gemma4_logits(kk_gemma4 *m, int32_t i, float *out, kk_err *err);
/* Chooses after each of these rows instead, on the device, and waits for nothing: the choice is
 * there for the next forward, and for kk_gemma4_picked, which waits.  rows: how, one for each row
 * of logits; NULL: the largest of each.  A single row may have the token chosen before it, which
 * the last forward took, as its pending one. */
kk_status kk_gemma4_choose(kk_gemma4 *m, const kk_choose_row *rows, int64_t *ticket, kk_err *err);
kk_status kk_gemma4_picked(kk_gemma4 *m, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                           kk_err *err);
/* The same of rows whose ids are kk_gemma4_ids(): a draft and the token before it.  How many of the
 * draft are right, kk_gemma4_right(), stays on the device too, and the token after them becomes the
 * first id there and in `anchor` (NULL: nowhere else).  The ids are what rows have as pending. */
kk_status kk_gemma4_choose_drafted(kk_gemma4 *m, const kk_choose_row *rows, kk_buf *anchor,
                                   int64_t *ticket, kk_err *err);
kk_buf *kk_gemma4_ids(const kk_gemma4 *m);
const kk_buf *kk_gemma4_right(const kk_gemma4 *m);
/* The first id of `to`, in the order of operations. */
kk_status kk_gemma4_set_id(kk_gemma4 *m, kk_buf *to, int32_t id, kk_err *err);
/* Seconds of a part of the work before the next choice, by the device's clock (lap, backend.h); 0:
 * it has none. */
kk_status kk_gemma4_lap(kk_gemma4 *m, bool ends, kk_err *err);
double kk_gemma4_lap_s(kk_gemma4 *m, int64_t ticket);
/* The experts that the last layer to run chose for its rows: [n_rows][n_used]. */
kk_status kk_gemma4_experts(kk_gemma4 *m, int32_t *out, kk_err *err);
/* Layers and heads of all forwards that the device took whole, and others. */
const kk_fused *kk_gemma4_fused(const kk_gemma4 *m);
/* Reserves what is kept per position, so that forwards up to len rows allocate nothing. */
kk_status kk_gemma4_expect(kk_gemma4 *m, int64_t len, kk_err *err);

#endif
