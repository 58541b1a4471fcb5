/* draft_ops.h - what a draft takes beside the operations of cuda_ops.h: choices of a head over part
 * of the vocabulary, whose indices stand for other ids. */
#ifndef KK_CUDA_DRAFT_OPS_H
#define KK_CUDA_DRAFT_OPS_H

#include "cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kk_cu_run_top, and out[r] = map[index]. */
typedef struct {
    kk_cu_top top;
    const int32_t *map; /* device memory; NULL: the index itself */
} kk_cu_mapped_top;
cudaError_t kk_cu_run_mapped_top(kk_cu_at at, const kk_cu_mapped_top *a);

/* id[i] = map[id[i]], i < n. */
typedef struct {
    int32_t *id;
    const int32_t *map;
    int32_t n;
} kk_cu_map;
cudaError_t kk_cu_run_map(kk_cu_at at, const kk_cu_map *a);

#ifdef __cplusplus
}
#endif
#endif
