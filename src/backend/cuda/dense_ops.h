/* dense_ops.h - what a dense layer needs beside cuda_ops.h: products of up to 16 rows that are too
 * wide for kk_cu_run_linear to take at once, and the kernels between products.  Read by C and by
 * CUDA C++; a header of its own, so that the kernels of mega.cuh do not depend on it. */
#ifndef KK_CUDA_DENSE_OPS_H
#define KK_CUDA_DENSE_OPS_H

#include "cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether kk_cu_run_linear takes all of these rows in one launch: their activations fit beside the
 * ring buffers. */
bool kk_cu_linear_fits(kk_cu_at at, const kk_cu_linear *a);

/* kk_cu_run_linear of bf16 weights with ring buffers of half the size and thus more rows. */
bool kk_cu_wide_takes(kk_cu_at at, const kk_cu_linear *a);
cudaError_t kk_cu_run_wide(kk_cu_at at, const kk_cu_linear *a);

/* One bf16 matrix whose K slices are not added: slices[KK_CU_SLICES][n_rows][n_out].  A block
 * stages the activations of some slices alone, so that weights are read once however wide the rows
 * are. */
enum { KK_CU_SLICES = 8, KK_CU_SLICED_MOST = 1 << 16 /* most outputs */ };
bool kk_cu_slices_takes(kk_cu_at at, const kk_cu_linear *a);
cudaError_t kk_cu_run_slices(kk_cu_at at, const kk_cu_linear *a, float *slices);

/* out[i] = the slices of value i, added in order. */
typedef struct {
    float *out;
    const float *slices;
    int32_t n_rows, n_out;
} kk_cu_join;
cudaError_t kk_cu_run_join(kk_cu_at at, const kk_cu_join *a);

/* x = (x + norm(y; w)) * scale, where y is not NULL, y itself where w is NULL; then
 * zf = norm(x; w1), or x itself where w1 is NULL, and z, the same as bf16.  y: [n_rows][dim], or
 * sliced: [KK_CU_SLICES][n_rows][dim], still to be added. */
typedef struct {
    float *x;
    const float *y, *w, *w1;
    float *zf;   /* NULL: not wanted; it may be x where y is NULL */
    uint16_t *z; /* NULL: not wanted */
    float scale, eps;
    int32_t n_rows, dim;
    bool sliced;
    bool swizzled; /* z is in the layout that kk_cu_run_gemm reads */
} kk_cu_tail;
cudaError_t kk_cu_run_tail(kk_cu_at at, const kk_cu_tail *a);

/* out = act(gate) * up as bf16, outf the same as f32: they and gate are [n_rows][dim], rows of up
 * are stride apart. */
typedef struct {
    float *outf; /* NULL: not wanted; it may be gate */
    uint16_t *out;
    const float *gate, *up;
    int32_t n_rows, dim, stride, offset, silu;
    bool swizzled;
} kk_cu_gated;
cudaError_t kk_cu_run_gated(kk_cu_at at, const kk_cu_gated *a);

/* A product of up to 16 rows with a matrix of a megabyte or two, one launch of little latency; or
 * its gated per-layer input, as above. */
typedef struct {
    kk_cu_weight w;
    const uint16_t *x; /* [n_rows][n_in] */
    int32_t n_rows, n_in;
    float *out;       /* [n_rows][n_out], where ple is NULL */
    uint16_t *act;    /* else this */
    const float *ple; /* rows stride apart */
    int32_t stride, offset;
} kk_cu_small;
bool kk_cu_small_takes(const kk_cu_weight *w, int32_t n_rows);
cudaError_t kk_cu_run_small(kk_cu_at at, const kk_cu_small *a);

cudaError_t kk_cu_setup_dense(int32_t shared);

#ifdef __cplusplus
}
#endif
#endif
