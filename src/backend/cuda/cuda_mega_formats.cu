/* cuda_mega_formats.cu - the persistent kernel for bf16 weights and other K/V formats than bf16. */
#include "mega_kernel.cuh"

static const kk_mega_variant variants[][KK_MEGA_VARIANTS] = {
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_F32, false, false),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_Q8, false, false),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_Q4, false, false),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_S8, false, false)};
KK_MEGA_LIST(kk_mega_formats);
