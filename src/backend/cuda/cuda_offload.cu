/* cuda_offload.cu - counts which experts a launch has read.
 *
 *    count_kernel: one block, a thread per expert; flags[KK_CU_EXPERTS] in shared memory */
#include "arith.cuh"
#include "launch.cuh"
#include "offload_ops.h"

__global__ void __launch_bounds__(KK_CU_EXPERTS)
    count_kernel(const __grid_constant__ kk_cu_count a) {
    __shared__ int chosen[KK_CU_EXPERTS];
    const int e = (int)threadIdx.x;
    chosen[e] = 0;
    __syncthreads();
    kk_next();
    kk_wait();
    for (int i = e; i < a.pairs; i += KK_CU_EXPERTS) chosen[a.expert[i]] = 1;
    __syncthreads();
    if (!chosen[e]) return;
    for (int w = 0; w < KK_CU_COUNTED; w++)
        if (a.reads[w]) a.reads[w][e]++;
}

cudaError_t kk_cu_run_count(kk_cu_at at, const kk_cu_count *a) {
    return kk_launch(at, count_kernel, *a, 1, KK_CU_EXPERTS, 0);
}

/* It runs between forwards of the persistent kernel: see kk_cu_setup_rows. */
cudaError_t kk_cu_setup_count(void) {
    return cudaFuncSetAttribute((const void *)count_kernel,
                                cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}
