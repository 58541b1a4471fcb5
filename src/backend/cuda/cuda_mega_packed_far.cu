/* cuda_mega_packed_far.cu - the persistent kernel for packed weights and long contexts
 * (attend_long.cuh). */
#include "mega_kernel.cuh"

static const kk_mega_variant variants[][KK_MEGA_VARIANTS] = {
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_BF16, true, true),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_Q8, true, true),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_Q4, true, true),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_S8, true, true)};
KK_MEGA_LIST(kk_mega_packed_far);
