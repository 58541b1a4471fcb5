/* evicted_ops.h - rows that are no longer stored in their pages (cuda_latents.cu, cuda_evicted.cu),
 * between C and CUDA as cuda_ops.h is. */
#ifndef KK_CUDA_EVICTED_OPS_H
#define KK_CUDA_EVICTED_OPS_H

#include "cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sinks ---------------------------------------------------------------------------------- */

/* A session's sink that lies apart. */
typedef struct {
    const uint8_t *rows; /* laid out as a page of the sink's rows */
    int64_t pos;         /* rows of the sink from here on lie in page 0 */
} kk_cu_sink;

/* Puts page 0 of one layer together for every session: rows of the sink from where they are kept,
 * the others from the page, where it is there. */
typedef struct {
    uint8_t *to; /* [groups][bytes]: K, then V, as in the slot */
    const kk_cu_sink *sink;
    uint8_t *const *pages; /* page tables, `table` entries each */
    int32_t groups, table, rows;
    kk_cu_slot slot;
    size_t bytes;
    int32_t plane[3]; /* bytes of a row in each plane of the format */
} kk_cu_sinks;
cudaError_t kk_cu_run_sinks(kk_cu_at at, const kk_cu_sinks *a);

/* ---- latents -------------------------------------------------------------------------------- */

/* Rows of x into the pages of latents, rounded to the slot's format. */
typedef struct {
    const float *x; /* [n_rows][n_kv_head * head_dim] */
    kk_cu_slot slot;
    kk_cu_rows rows; /* its pages are those of latents */
    size_t off;      /* where the slot's heads begin in a page */
} kk_cu_keep;
cudaError_t kk_cu_run_keep(kk_cu_at at, const kk_cu_keep *a);

/* Matrices in the lane order of m16n8k16 products, bf16: strips of 8 outputs, steps of 32 inputs of
 * 512 bytes, of which lane l has the inputs 8 i + 2 (l % 4) and the next one, i < 4, of output
 * l / 4.  Inputs are padded with zeros to whole steps.
 *
 *   values   every head's outputs in order: strip s of head h is number h * head_dim / 8 + s
 *   keys     the values of a key that are rebuilt: the first `half` of each half of a head, each
 *            padded to `wide`: outputs [0, wide) and [wide, 2 wide) of a head
 *   queries  transposed, where K = V: output r of head h is latent value r, inputs are the head's
 *            values, and those that `keys` rebuilds are 0 */
typedef enum { KK_CU_AS_VALUES, KK_CU_AS_KEYS, KK_CU_AS_QUERIES } kk_cu_order;
typedef struct {
    void *to;
    const float *from; /* rows of a head, [head_dim][rank] */
    kk_cu_order order;
    int32_t head, head_dim, rank, half, wide;
} kk_cu_decoder;
size_t kk_cu_decoder_bytes(const kk_cu_decoder *a); /* of one head */
cudaError_t kk_cu_run_decoder(kk_cu_at at, const kk_cu_decoder *a);
/* 1 / rms(D_v z) of heads of rows, as bf16 beside their latents, for up to KK_CU_SCALES layers. */
enum { KK_CU_SCALES = 64 };
typedef struct {
    kk_cu_slot latent, scales;
    kk_cu_rows rows; /* its pages are those of latents */
    float eps;
    int32_t n, heads; /* layers, and all of their heads */
    struct {
        const void *values;
        int32_t n_kv_head, head_dim, at;
    } of[KK_CU_SCALES];
} kk_cu_scales;
cudaError_t kk_cu_run_scales(kk_cu_at at, const kk_cu_scales *a);

/* ---- attention over latents ------------------------------------------------------------------ */

enum {
    KK_CU_LATENT_ROWS = 64,   /* angles of so many positions are in a table */
    KK_CU_LATENT_RANK = 1024, /* most latent values */
};

/* Cosines and sines of positions 0 .. 63, [64][wide][2]; 1 and 0 from n_rot on. */
typedef struct {
    float *to;
    float theta, factor;
    int32_t n_rot, head_dim, wide;
} kk_cu_angles;
cudaError_t kk_cu_run_angles(kk_cu_at at, const kk_cu_angles *a);

typedef struct {
    kk_cu_rows rows; /* its pages are those of latents */
    float *out;      /* [n_rows][n_head * head_dim], which has attention over stored rows */
    const float *q, *k_norm, *sums;      /* sums: as in kk_cu_attend */
    const void *keys, *values, *queries; /* decoders; queries NULL: keys are rebuilt whole */
    const float *angles;
    float theta, factor;
    int32_t n_rot, half, wide;
    int32_t n_head, n_kv_head, head_dim, rank;
    int32_t window, sink, keep, chunk; /* as in kk_cu_attend */
    bool k_eq_v;
    kk_cu_slot latent, scales;
    int32_t scale_at;
    float scale, eps;
    int32_t span;  /* pages that are added up one after the other */
    int32_t spans; /* most spans that a tile sees */
    /* Rows of this launch: [first_row, first_row + tile_rows) of each of n_tiles tiles. */
    int32_t first_tile, n_tiles, first_row, tile_rows;
    int32_t queries_at_once; /* 8 or 32 */
    bool ahead; /* set by the launcher: a page is copied while the one before is used */
    /* Scratch, by row of the launch: (tile - first_tile) * tile_rows + row - first_row. */
    float
        *parts; /* [row][n_head][spans][4 + rank, padded]: m, l, unused, unused, sums of latents */
    uint16_t *lifted; /* [row][n_head][rank, padded]: queries in latent space, swizzled */
    uint16_t *sum;    /* [row][n_head][2][rank, padded]: sums of latents in two parts, swizzled */
    float *weight;    /* [row][n_head] of what attention over stored rows came to */
    /* The rows once more as bf16, in the layout of tiled products where `swizzled`; NULL: no. */
    uint16_t *rounded;
    bool swizzled;
    /* What the kernel after these reads first, which is brought to L2 meanwhile; 0: nothing. */
    const void *next;
    size_t next_bytes;
} kk_cu_evicted;

/* Latent values of a row padded to whole steps. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int32_t
    kk_cu_latent_pitch(int32_t rank) {
    return (rank + 31) / 32 * 32;
}
/* Bytes of scratch of a row, in parts and in the others; and of shared memory, with so many
 * queries at once. */
size_t kk_cu_evicted_parts(const kk_cu_evicted *a);
int32_t kk_cu_evicted_shared(const kk_cu_evicted *a, int32_t queries);
cudaError_t kk_cu_run_evicted(kk_cu_at at, const kk_cu_evicted *a);

#ifdef __cplusplus
}
#endif
#endif
