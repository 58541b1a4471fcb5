/* cuda_mega_packed_kv.cu - the persistent kernel for packed weights and K/V in q8, q4 and s8; f32
 * is left to small operations. */
#include "mega_kernel.cuh"

static const kk_mega_variant variants[][KK_MEGA_VARIANTS] = {
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_Q8, false, true),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_Q4, false, true),
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_S8, false, true)};
KK_MEGA_LIST(kk_mega_packed_formats);
