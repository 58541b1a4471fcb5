/* stage.cuh - rows of activations into shared memory by bulk copies, for kernels that stage too
 * much of them for loads through registers: one copy a row, all in flight at once. */
#ifndef KK_CUDA_STAGE_CUH
#define KK_CUDA_STAGE_CUH

#include "stream.cuh"

enum { KK_STAGE_BAR = 16 }; /* bytes of shared memory for the copies' mbarrier */

/* Called by all threads of a block, once, before the barrier that comes before kk_stage_bulk. */
__device__ __forceinline__ void kk_stage_open(char *bar) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(kk_shared(bar)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("fence.proxy.async.shared::cta;");
    }
#endif
}

/* K steps [from, from + n) of every row of x, n_in values each, to rows `stride` bytes apart. All
 * threads may read them when it returns. */
__device__ __forceinline__ void kk_stage_bulk(char *to, char *bar, const uint16_t *x, int n_rows,
                                              int n_in, int from, int n, int stride) {
#if __CUDA_ARCH__ >= 900
    const uint32_t at = kk_shared(bar);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at),
                     "r"(n_rows * n * 64)
                     : "memory");
        for (int r = 0; r < n_rows; r++)
            kk_ring<false>::copy(to + r * stride,
                                 (const uint4 *)(x + (size_t)r * (size_t)n_in + from * KK_STEP),
                                 n * 4, at);
    }
    asm volatile("{\n .reg .pred p;\n"
                 "again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0, 0x989680;\n"
                 "@p bra done;\n bra again;\n done:\n}" ::"r"(at)
                 : "memory");
#else
    for (int r = 0; r < n_rows; r++)
        for (int i = (int)threadIdx.x; i < n * 4; i += KK_BLOCK_THREADS)
            *(uint4 *)(to + r * stride + i * 16) =
                ((const uint4 *)(x + (size_t)r * (size_t)n_in + from * KK_STEP))[i];
    __syncthreads();
#endif
}

#endif
