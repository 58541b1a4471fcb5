/* kernels_avx2.c - the vector kernels for avx2; see kernels_body.h. */
#include "backend/cpu/simd_avx2.h"

#define KK_KERNELS kk_kernels_avx2
#define KK_KERNELS_NAME "avx2"
#include "backend/cpu/kernels_body.h"
