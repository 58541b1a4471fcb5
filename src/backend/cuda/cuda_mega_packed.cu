/* cuda_mega_packed.cu - the persistent kernel for packed weights and bf16 K/V.  163 KB of
 * shared memory take the rings of 99 KB: packed steps are short. */
#include "mega_kernel.cuh"

static const kk_mega_variant variants[][KK_MEGA_VARIANTS] = {
    KK_MEGA_VARIANTS_OF(KK_SMEM_227, KK_CU_BF16, false, true),
    KK_MEGA_VARIANTS_OF(KK_SMEM_99, KK_CU_BF16, false, true)};
KK_MEGA_LIST(kk_mega_packed);
