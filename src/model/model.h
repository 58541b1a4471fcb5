/* model.h - what the files of this folder share: how weights are loaded, and the parts of the
 * verifier and of the drafter. */
#ifndef KK_MODEL_MODEL_H
#define KK_MODEL_MODEL_H

#include "backend/layer.h"
#include "model/dflash_model.h"

/* ---- loading ---------------------------------------------------------------------------- */

typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    kk_mem_category category; /* memory category of the float buffers it makes */
    const kk_checkpoint *ckpt;
    char prefix[32]; /* before every name: "layers.3.", or "" */
} kk_loader;

typedef struct {
    int64_t n_mat; /* 0: a plain matrix [n_out, n_in]; otherwise stacked [n_mat, n_out, n_in] */
    int64_t n_out, n_in;
    int32_t n_used; /* slots of a row that read it; 1 but for experts' second matrix */
} kk_load_shape;

bool kk_load_has(const kk_loader *l, const char *name);
/* A vector of n values as a float buffer. */
kk_status kk_load_vector(const kk_loader *l, const char *name, int64_t n, kk_buf **out,
                         kk_err *err);
/* A matrix where it lies in the file, with the scratch it needs prepared. */
kk_status kk_load_matrix(const kk_loader *l, const char *name, const kk_load_shape *shape,
                         kk_weight **out, kk_err *err);
/* A workspace buffer of rows of floats. */
kk_status kk_take_rows(const kk_backend *be, kk_dev *dev, int64_t rows, int64_t width, kk_buf **out,
                       kk_err *err);

/* What is to be added to a position that the device knows: on a device whose operations are done
 * when they return it is read here, and *shift becomes NULL; on one that queues *by is 0. */
kk_status kk_resolve_shift(const kk_backend *be, kk_dev *dev, const kk_buf **shift, int32_t *by,
                           kk_err *err);

/* ---- the verifier ----------------------------------------------------------------------- */

typedef struct {
    kk_layer_weights w;
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
    kk_layer_scratch scratch;
    kk_buf *ple_tmp;                   /* [rows, n_layer * ple_dim] */
    kk_buf *rope_rows[KK_LAYER_KINDS]; /* [rows][2][n_rot] */
    kk_buf *rope_pos;                  /* [position][2][n_rot] of full layers with K = V */
    int64_t rope_len;                  /* positions filled in it */
    kk_buf *logits_in, *logits;        /* [max_logits, hidden], [max_logits, vocab] */
    kk_buf *chosen;                    /* [max_logits] ids, by kk_gemma4_choose */
    kk_buf *ids;                       /* [max_logits] ids of rows that verify a draft */
    kk_buf *right;                     /* [1] drafted ids of the last choice that were right */

    /* the current forward */
    int32_t *tokens, *logit_rows;
    int64_t *positions;
    kk_group *groups[KK_LAYER_KINDS];
    int32_t n_rows, n_logits;
    int64_t forwards;        /* counts them, this one too */
    const kk_buf *takes_ids; /* where the forward takes its ids from; NULL: tokens */
    const kk_buf *shift;     /* what the device adds to all its positions; NULL: nothing */
    int32_t most_shift;

    kk_fused fused; /* fused operations of all forwards */
};

/* Views of every tensor the configuration calls for, checked for shape. */
kk_status kk_gemma4_load(kk_gemma4 *m, const kk_checkpoint *ckpt, kk_err *err);
void kk_gemma4_unload(kk_gemma4 *m);

/* ---- the drafter ------------------------------------------------------------------------ */

typedef struct {
    kk_weight *q, *k, *v, *o, *gate, *up, *down;
    kk_buf *input_norm, *post_attention_norm, *q_norm, *k_norm;
} kk_dflash_layer;

/* dflash_head.c has a sketch of it. */
typedef struct {
    int32_t n, n_spare; /* rows; n 0: there is none, and all of this empty */
    kk_tensor table;
    kk_dtype type;
    kk_mem *mem;
    kk_weight *w;
    kk_buf *map;   /* [n] int32: the id of each row */
    int32_t *id;   /* [n] the same here */
    int32_t *row;  /* [vocab] the row of each id; -1: none */
    int64_t *used; /* [n_spare] when an id was last seen */
    bool *fresh;   /* [n_spare] its row is still to be sent */
    int64_t clock;
    float *values; /* [hidden], scratch */
    uint8_t *one;  /* a row as the weight has it, scratch */
    uint8_t *data; /* the weight's rows; NULL where the device has copied them: */
    bool on_device;
    size_t bytes, row_bytes;
} kk_dflash_short;

struct kk_dflash {
    kk_drafter_config cfg;
    kk_kv_shape kv;
    const kk_backend *be;
    kk_dev *dev;
    int32_t max_rows, max_block_rows;
    float embed_scale;
    const kk_weight *table; /* the verifier's: token rows, and the head where none is packed */

    kk_weight *fc, *head; /* head: a packed one of its own; NULL: the table */
    kk_dflash_short short_head;
    kk_buf *hidden_norm, *norm;
    kk_dflash_layer *layers;

    /* workspace, sized once: context rows, block rows, or whichever are more */
    kk_buf *taps;                          /* [max_rows, n_taps * hidden] */
    kk_buf *context;                       /* [max_rows, hidden] */
    kk_buf *x, *z, *y;                     /* [max_block_rows, hidden] */
    kk_buf *q, *att;                       /* [max_block_rows, n_head * head_dim] */
    kk_buf *gate, *up;                     /* [max_block_rows, ffn] */
    kk_buf *drafts_in, *logits;            /* [max_block_rows, hidden], [max_block_rows, vocab] */
    kk_buf *k, *v;                         /* [most, n_kv_head * head_dim] */
    kk_buf *rope_rows;                     /* [most][2][head_dim / 2] */
    kk_group *groups[KK_LAYER_KINDS];      /* [most] */
    int64_t *positions;                    /* [most] */
    int32_t *tokens, *draft_rows, *drafts; /* [max_block_rows] */
    kk_buf *anchor; /* [block] ids: the anchor that the device knows, then masks */

    /* the current pass */
    int32_t n_groups, n_rows, n_drafts;
    int32_t first_block; /* rows of block 0 in the last draft */
    const kk_buf *shift; /* what the device adds to all positions of the pass; NULL: nothing */
    bool by_short;       /* the short head made the last draft */
};

kk_status kk_dflash_load(kk_dflash *m, const kk_drafter *files, kk_err *err);
void kk_dflash_unload(kk_dflash *m);
/* In dflash_head.c; unload also takes what a failed load left. */
kk_status kk_dflash_load_short(kk_dflash *m, const kk_short_rows *rows, kk_err *err);
void kk_dflash_unload_short(kk_dflash *m);

#endif
