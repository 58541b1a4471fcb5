/* losses.h - the losses that a projection is trained on, and their gradients.
 *
 * Losses of single rows compare rebuilt rows with true ones (p with t, both before their norms):
 *   mse       mean (p - t)^2
 *   cos_mag   1 - cos(p, t) by head vector, and mean (|p| - |t|)^2 over mean |t|^2
 *   combined  cos_mag + 0.1 mse / var(t)
 * each as the mean over K and V of all layers.
 *
 * Losses of attention run it as a restored cache does (core/visible.h): for the queries of an
 * aligned chunk, rows that such a cache keeps are the true ones, those that are gone are rebuilt,
 * and each layer's own mask stands over both.
 *   attn_distill         mean (O_rebuilt - O_true)^2 of what attention adds, mean over layers
 *   attn_distill_hybrid  that, and by layer  k_dir (1 - cos(k_norm p, k_norm t)) + v_dir (the same
 *                        of V) + k_mag mean (|p| - |t|)^2 / mean |t|^2 + v_mag (the same of V)
 *
 * The arithmetic is in losses_body.h, over a type: float here, double in the tests that compare
 * its gradients with differences. */
#ifndef KK_TRAIN_LOSSES_H
#define KK_TRAIN_LOSSES_H

#include "train/theta.h"

typedef enum {
    KK_LOSS_RIDGE, /* closed form: no steps */
    KK_LOSS_MSE,
    KK_LOSS_COS_MAG,
    KK_LOSS_COMBINED,
    KK_LOSS_ATTN_DISTILL,
    KK_LOSS_ATTN_DISTILL_HYBRID,
    KK_LOSSES,
} kk_loss_kind;
const char *kk_loss_name(kk_loss_kind k);
bool kk_loss_named(const char *name, kk_loss_kind *out);
bool kk_loss_attends(kk_loss_kind k);

/* What a loss is the weighted sum of, each a mean over layers. */
typedef enum {
    KK_PART_MSE_K,
    KK_PART_MSE_V,
    KK_PART_COS_K,
    KK_PART_COS_V,
    KK_PART_MAG_K,
    KK_PART_MAG_V,
    KK_PART_VAR_K, /* mse over the targets' variance */
    KK_PART_VAR_V,
    KK_PART_OUTPUT, /* the output of attention */
    KK_LOSS_PARTS,
} kk_loss_part;
const char *kk_loss_part_name(kk_loss_part p);

/* The verifier's side of the losses, and what is chosen. */
typedef struct {
    const kk_theta *shape; /* the shapes; parameters are not read from here */
    const kk_config *model;
    kk_loss_kind kind;
    double k_dir, v_dir, k_mag, v_mag; /* hybrid */
    int32_t sink, window, chunk;
    bool skip[KK_MAX_LAYERS];           /* layers left out, though they have decoders */
    const float *k_norm[KK_MAX_LAYERS]; /* [head_dim], of layers that store */
    const float *o_proj[KK_MAX_LAYERS]; /* [hidden, n_head * head_dim]; attention alone */
} kk_loss_setup;

void kk_loss_weights(const kk_loss_setup *s, double weight[KK_LOSS_PARTS]);
/* What queries of a layer see whose mask shows so many rows; 0: all. */
kk_visible_rule kk_loss_rule(const kk_loss_setup *s, int32_t mask);
/* Whether a chunk that begins at `start` has a query that sees a rebuilt row in some layer. */
bool kk_loss_rebuilds(const kk_loss_setup *s, int32_t start, int32_t n_rows);

/* Where in a sequence the loss is taken: rows, or the starts of chunks of queries. */
typedef struct {
    const kk_captured *rows;
    const int32_t *at;
    int32_t n;
} kk_loss_batch;

typedef struct {
    double loss, part[KK_LOSS_PARTS];
    double layer[KK_MAX_LAYERS];                    /* each layer's share of the loss */
    double output_error, output_energy, output_abs; /* attention's: sums of d^2, o^2, |o| */
    int64_t outputs;                                /* values in these sums */
} kk_loss_result;

/* The loss at params and its gradient, which is added to grad; both as theta's parameters lie. */
kk_status kk_loss_step(const kk_loss_setup *s, const kk_loss_batch *b, const float *params,
                       float *grad, kk_loss_result *out, kk_err *err);

#endif
