/* cuda_mega_plain.cu - the persistent kernel for bf16 weights and bf16 K/V. */
#include "mega_kernel.cuh"

static const kk_mega_variant variants[][KK_MEGA_VARIANTS] = {
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_BF16, false, false),
    KK_MEGA_VARIANTS_OF(KK_SMEM_163, KK_CU_BF16, false, false),
    KK_MEGA_VARIANTS_OF(KK_SMEM_99, KK_CU_BF16, false, false)};
KK_MEGA_LIST(kk_mega_plain);
