/* model.h - what the files of this folder share: the verifier's parts. */
#ifndef KK_MODEL_MODEL_H
#define KK_MODEL_MODEL_H

#include "model/gemma4.h"

typedef struct {
    /* matrices, [out, in]; NULL where the layer has none */
    kk_weight *q, *k, *v, *o, *gate, *up, *down;
    kk_weight *router, *expert_gate, *expert_up, *expert_down; /* expert_up NULL: fused */
    kk_weight *ple_gate, *ple_proj;
    /* vectors, float32 */
    kk_buf *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm, *q_norm, *k_norm;
    kk_buf *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2, *router_scale, *expert_scale;
    kk_buf *post_ple_norm;
    float scalar;
} kk_gemma4_layer;

struct kk_gemma4 {
    kk_config cfg;
    kk_kv_shape kv;
    const kk_backend *be;
    kk_dev *dev;
    kk_mem *mem;
    int32_t max_rows, max_logits;
    float embed_scale;

    kk_weight *embed, *ple_table, *ple_proj;
    kk_buf *norm, *ple_norm;
    kk_gemma4_layer *layers;

    /* workspace, sized once for max_rows */
    kk_buf *x;                         /* [rows, hidden] the residual stream */
    kk_buf *z, *y, *y2;                /* [rows, hidden] */
    kk_buf *q, *att;                   /* [rows, n_head * head_dim] */
    kk_buf *k, *v;                     /* [rows, n_kv_head * head_dim] */
    kk_buf *gate, *up;                 /* [rows, ffn] */
    kk_buf *expert, *expert_weight;    /* [rows, n_used] */
    kk_buf *ple, *ple_tmp;             /* [rows, n_layer * ple_dim] */
    kk_buf *rope_rows[KK_LAYER_KINDS]; /* [rows][2][n_rot] */
    kk_buf *rope_pos;                  /* [position][2][n_rot] of full layers with K = V */
    int64_t rope_len;                  /* positions filled in it */
    kk_buf *logits_in, *logits;        /* [max_logits, hidden], [max_logits, vocab] */

    /* the forward at hand */
    int32_t *tokens, *logit_rows;
    int64_t *positions;
    kk_group *groups[KK_LAYER_KINDS];
    int32_t n_rows, n_logits;
};

/* Views of every tensor the configuration calls for, checked for shape. */
kk_status kk_gemma4_load(kk_gemma4 *m, const kk_checkpoint *ckpt, kk_err *err);
void kk_gemma4_unload(kk_gemma4 *m);

#endif
