/* cuda_gemm_hopper.cu - the tiled products of gemm_hopper.cuh: which chips have them, and their
 * launches. */
#include <atomic>

#include "gemm_hopper.cuh"
#include "gemm_ops.h"
#include "launch.cuh"

typedef void (*hop_fn)(kk_gemm_args);
static const hop_fn kernels[2][2] = {/* by experts and gated products */
                                     {kk_hop_kernel<false, false>, kk_hop_kernel<false, true>},
                                     {kk_hop_kernel<true, false>, kk_hop_kernel<true, true>}};

/* A kernel that was compiled for another chip is empty, and has no barriers in shared memory. */
bool kk_hop_takes(const kk_cu_at &at) {
    cudaFuncAttributes f;
    return at.shared >= (int)(KK_HOP_SHARED + sizeof(kk_hop_barriers)) &&
           cudaFuncGetAttributes(&f, (const void *)kernels[0][0]) == cudaSuccess &&
           f.binaryVersion == 90 && f.sharedSizeBytes >= sizeof(kk_hop_barriers);
}

static std::atomic<int64_t> launches;

int64_t kk_cu_wgmma_launches(void) { return launches; }
void kk_cu_wgmma_launched(void) { launches++; }

cudaError_t kk_run_hop_gemm(const kk_cu_at &at, const kk_gemm_args &a, bool experts,
                            unsigned blocks) {
    launches++;
    return kk_launch(at, kernels[experts][a.part[0].up != NULL], a, blocks, KK_HOP_THREADS,
                     KK_HOP_SHARED);
}

/* Chips with less shared memory refuse, and do not use it. */
cudaError_t kk_setup_hop_gemm() {
    for (const auto &experts : kernels)
        for (const hop_fn fn : experts)
            if (cudaFuncSetAttribute((const void *)fn, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     KK_HOP_SHARED) != cudaSuccess)
                (void)cudaGetLastError();
    return cudaSuccess;
}
