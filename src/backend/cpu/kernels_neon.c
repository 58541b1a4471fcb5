/* kernels_neon.c - the vector kernels for ARM; see kernels_body.h. */
#include "backend/cpu/simd_neon.h"

#define KK_KERNELS kk_kernels_neon
#define KK_KERNELS_NAME "neon"
#include "backend/cpu/kernels_body.h"
