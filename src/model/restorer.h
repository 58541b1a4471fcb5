/* restorer.h - the projection f_theta on a device: makes latents of a forward's rows, and lends its
 * decoders to attention.
 *
 * The verifier's forward shows it the outputs of every layer; it keeps those that its source
 * names, and at the end projects them to one latent per row, which goes into the cache. */
#ifndef KK_MODEL_RESTORER_H
#define KK_MODEL_RESTORER_H

#include "format/projection.h"
#include "model/dflash_model.h"

typedef struct {
    const kk_backend *backend;
    kk_dev *dev;
    const kk_gemma4 *verifier;
    kk_dflash *drafter; /* for the source `context`; may be NULL otherwise */
    int32_t max_rows;
} kk_restorer_opts;

/* Borrows the projection, which must have been checked against verifier and drafter. */
kk_status kk_restorer_new(kk_restorer **out, const kk_projection *p, const kk_restorer_opts *opts,
                          kk_err *err);
void kk_restorer_free(kk_restorer *r); /* NULL is fine */
const kk_projection_config *kk_restorer_config(const kk_restorer *r);

/* Decoders of a layer; NULL: it has none.  A layer with K = V has V's alone. */
const kk_weight *kk_restorer_k(const kk_restorer *r, int32_t layer);
const kk_weight *kk_restorer_v(const kk_restorer *r, int32_t layer);

/* x: what left this layer (-1: the embedding), [n_rows, hidden]. */
kk_status kk_restorer_see(kk_restorer *r, int32_t layer, const kk_buf *x, int32_t n_rows,
                          kk_err *err);
/* Latents of the rows seen, into the caches' pages. */
kk_status kk_restorer_keep(kk_restorer *r, const kk_kv_layout *layout, const kk_rows *rows,
                           kk_err *err);

#endif
