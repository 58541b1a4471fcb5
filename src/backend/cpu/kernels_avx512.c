/* kernels_avx512.c - the vector kernels for avx512; see kernels_body.h. */
#include "backend/cpu/simd_avx512.h"

#define KK_KERNELS kk_kernels_avx512
#define KK_KERNELS_NAME "avx512"
#include "backend/cpu/kernels_body.h"
