/* gemm_ops.h - what C code asks of the products for many rows, between C and CUDA as cuda_ops.h
 * is. */
#ifndef KK_CUDA_GEMM_OPS_H
#define KK_CUDA_GEMM_OPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Launches of kernels that multiply with wgmma since the module was loaded; and one more. */
int64_t kk_cu_wgmma_launches(void);
void kk_cu_wgmma_launched(void);

#ifdef __cplusplus
}
#endif
#endif
