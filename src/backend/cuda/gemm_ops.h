/* gemm_ops.h - what C code asks of the products for many rows, between C and CUDA as cuda_ops.h
 * is. */
#ifndef KK_CUDA_GEMM_OPS_H
#define KK_CUDA_GEMM_OPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Launches of the kernels of gemm_hopper.cuh since the module was loaded. */
int64_t kk_cu_wgmma_launches(void);

#ifdef __cplusplus
}
#endif
#endif
