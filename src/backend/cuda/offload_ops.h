/* offload_ops.h - which experts forwards read (cuda_offload.cu), between C and CUDA as cuda_ops.h
 * is. */
#ifndef KK_CUDA_OFFLOAD_OPS_H
#define KK_CUDA_OFFLOAD_OPS_H

#include "cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* reads[w][e] += 1 for each expert e that some pair chose: rows that choose the same read it
 * once. */
enum { KK_CU_COUNTED = 3 };
typedef struct {
    const int32_t *expert; /* [pairs], each below KK_CU_EXPERTS */
    int32_t pairs;
    uint32_t *reads[KK_CU_COUNTED]; /* [KK_CU_EXPERTS]; NULL: no such weight */
} kk_cu_count;
cudaError_t kk_cu_run_count(kk_cu_at at, const kk_cu_count *a);
cudaError_t kk_cu_setup_count(void);

#ifdef __cplusplus
}
#endif
#endif
