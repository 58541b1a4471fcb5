/* theta.h - a projection in memory while it is made: its shape and one array of parameters.
 *
 * The array holds the encoders, then one decoder [width, rank] for each block of targets: K or V of
 * a restored layer, or the raw key of one with K = V.  A single array is what an optimiser, a
 * checkpoint and a gradient check all want. */
#ifndef KK_TRAIN_THETA_H
#define KK_TRAIN_THETA_H

#include "format/projection.h"
#include "train/capture.h"

enum { KK_THETA_BLOCKS = 2 * KK_MAX_LAYERS };

typedef struct {
    int32_t layer, encoder;
    bool value; /* V, or the raw key of a layer with K = V */
    bool both;  /* the latter: it stands for K and for V */
    int32_t n_head, head_dim, width;
    size_t at; /* index of its decoder in the parameters */
} kk_theta_block;

typedef struct {
    kk_projection_config config;
    int32_t n_encoders, n_blocks;
    size_t encoder_at[2];
    kk_theta_block block[KK_THETA_BLOCKS];
    int32_t k_block[KK_MAX_LAYERS], v_block[KK_MAX_LAYERS]; /* by layer; -1: not restored */
    size_t n_params;
    float *params;
} kk_theta;

typedef enum { KK_LAYERS_ALL, KK_LAYERS_SLIDING, KK_LAYERS_FULL } kk_layer_choice;
/* The configuration of a projection to be trained: what is restored follows from the choice, what
 * is read from the source. */
kk_status kk_theta_config(kk_projection_config *out, const kk_capture_opts *source, int32_t rank,
                          kk_layer_choice layers, kk_err *err);
/* All parameters are zero. */
kk_status kk_theta_new(kk_theta *out, const kk_projection_config *c, kk_err *err);
/* The values of another projection of the same shape; what differs is named. */
kk_status kk_theta_read(kk_theta *t, const char *path, kk_err *err);
kk_status kk_theta_put(const kk_theta *t, const kk_projection_files *to, kk_err *err);
void kk_theta_free(kk_theta *t); /* zero value is fine; leaves it zero */
/* The rows a block is to rebuild. */
const float *kk_theta_target(const kk_theta_block *b, const kk_captured *rows);

#endif
