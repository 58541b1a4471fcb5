/* sums_ops.h - sums over rows in float64 (cuda_sums.cu), between C and CUDA as cuda_ops.h is. */
#ifndef KK_CUDA_SUMS_OPS_H
#define KK_CUDA_SUMS_OPS_H

#include "cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double *sum;          /* [n_a][n_b] */
    const void *a, *b;    /* [n_rows][n_a], [n_rows][n_b]; a == b: sum is symmetric */
    const double *weight; /* [n_rows]; NULL: 1 */
    int32_t n_rows, n_a, n_b;
    int32_t doubles; /* a and b are float64; else float32 */
    int32_t across;  /* a and b are [n_a][n_rows], [n_b][n_rows] */
} kk_cu_gram;
cudaError_t kk_cu_run_gram(kk_cu_at at, const kk_cu_gram *a);

typedef struct {
    double *sum;    /* [dim] */
    const float *x; /* [n_rows][dim] */
    int32_t n_rows, dim;
} kk_cu_squares;
cudaError_t kk_cu_run_squares(kk_cu_at at, const kk_cu_squares *a);

#ifdef __cplusplus
}
#endif

#endif
