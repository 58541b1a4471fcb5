/* cuda_rounds.cu - what keeps drafted rounds on the device: the draft's ids, how many of them are
 * right, and the positions of the round behind it.
 *
 *    top:     16 blocks x 512 threads per row; atomicMax of a key that orders values, then lower
 *             ids; the last block of a row (atomic counter) writes the id
 *    others:  one block; they compute a few dozen integers */
#include "draft_ops.h"
#include "launch.cuh"
#include "rows.cuh"

enum { TOP_THREADS = 512, TOP_BLOCKS = 16 };

/* Larger for a larger value, then for a lower id; NaN is below all numbers. */
__device__ __forceinline__ unsigned long long top_key(float x, int id) {
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 is 0 */
    const uint32_t order = x != x ? 0u : u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)order << 32 | (uint32_t)~id;
}

__global__ void __launch_bounds__(TOP_THREADS)
    top_kernel(const __grid_constant__ kk_cu_mapped_top m) {
    const kk_cu_top &a = m.top;
    __shared__ unsigned long long warps[TOP_THREADS / 32];
    const int row = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    kk_next();
    kk_wait();
    const float *x = a.x + (size_t)row * (size_t)a.dim;
    unsigned long long best = 0;
    for (int i = (int)(blockIdx.x * TOP_THREADS + threadIdx.x); i < a.dim;
         i += TOP_BLOCKS * TOP_THREADS)
        if (i != a.banned || a.dim == 1) best = max(best, top_key(x[i], i));
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    if (lane == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    best = lane < TOP_THREADS / 32 ? warps[lane] : 0;
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    if (lane) return;
    atomicMax(&a.scratch->best[row], best);
    __threadfence();
    if (atomicAdd(&a.scratch->done[row], 1u) != gridDim.x - 1) return;
    __threadfence();
    const int32_t index = (int32_t) ~(uint32_t)atomicExch(&a.scratch->best[row], 0ull);
    a.out[row] = m.map ? m.map[index] : index;
    a.scratch->done[row] = 0;
}
cudaError_t kk_cu_run_mapped_top(kk_cu_at at, const kk_cu_mapped_top *a) {
    const int32_t rows = a->top.n_rows;
    if (rows < 1 || rows > KK_CU_CHOOSE_ROWS) return cudaErrorInvalidValue;
    return kk_launch(at, top_kernel, *a, dim3(TOP_BLOCKS, (unsigned)rows), TOP_THREADS, 0);
}
cudaError_t kk_cu_run_top(kk_cu_at at, const kk_cu_top *a) {
    const kk_cu_mapped_top m = {*a, NULL};
    return kk_cu_run_mapped_top(at, &m);
}

__global__ void map_kernel(const __grid_constant__ kk_cu_map a) {
    kk_next();
    kk_wait();
    for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x) a.id[i] = a.map[a.id[i]];
}
cudaError_t kk_cu_run_map(kk_cu_at at, const kk_cu_map *a) {
    return kk_launch(at, map_kernel, *a, 1, 32, 0);
}

__global__ void ids_kernel(const __grid_constant__ kk_cu_ids a) {
    kk_next();
    kk_wait();
    for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x) a.out[i] = a.id[i];
}
cudaError_t kk_cu_run_ids(kk_cu_at at, const kk_cu_ids *a) {
    return kk_launch(at, ids_kernel, *a, 1, 32, 0);
}

/* One warp, a row per lane. */
__global__ void match_kernel(const __grid_constant__ kk_cu_match a) {
    const int lane = (int)threadIdx.x, n = a.n_rows - 1;
    kk_next();
    kk_wait();
    const int token = lane <= n ? a.token[lane] : -1, drafted = lane < n ? a.draft[lane + 1] : -1;
    const unsigned wrong = __ballot_sync(0xffffffffu, lane >= n || token != drafted);
    const int right = __ffs((int)wrong) - 1; /* lane n is always wrong */
    kk_cu_pick *to = a.ring + (size_t)*a.slot * KK_CU_CHOOSE_ROWS;
    if (lane <= n) to[lane].drafted = drafted;
    const int next = __shfl_sync(0xffffffffu, token, right);
    if (lane == 0) {
        *a.right = right;
        for (int i = 0; i < 2; i++)
            if (a.next[i]) *a.next[i] = next;
        __threadfence_system();
    }
}
cudaError_t kk_cu_run_match(kk_cu_at at, const kk_cu_match *a) {
    if (a->n_rows < 1 || a->n_rows > KK_CU_CHOOSE_ROWS) return cudaErrorInvalidValue;
    return kk_launch(at, match_kernel, *a, 1, 32, 0);
}

/* Later kernels may read the control block before their own griddepcontrol.wait, so none may start
 * before this one has ended: it never calls kk_next. */
__global__ void shift_kernel(const __grid_constant__ kk_cu_shift a) {
    kk_wait();
    const int64_t by = *a.by;
    for (int k = 0; k < a.n; k++)
        for (int i = (int)threadIdx.x; i < a.of[k].rows * a.of[k].each; i += (int)blockDim.x)
            a.of[k].at[(size_t)(i / a.of[k].each) * (size_t)a.of[k].stride + i % a.of[k].each] +=
                by;
    __threadfence();
}
cudaError_t kk_cu_run_shift(kk_cu_at at, const kk_cu_shift *a) {
    return kk_launch(at, shift_kernel, *a, 1, 64, 0);
}

__global__ void replay_kernel(const __grid_constant__ kk_cu_replay a) {
    const int i = (int)threadIdx.x;
    kk_next();
    kk_wait();
    const int right = a.how[1], at = a.how[0] + (a.shift ? *a.shift : 0) + i;
    if (i >= a.n || i > right || at < 0 || at >= a.n_record) return;
    a.ids[i] = i < right ? a.record[at] : (a.record[at] + 1) % a.vocab;
}
cudaError_t kk_cu_run_replay(kk_cu_at at, const kk_cu_replay *a) {
    return kk_launch(at, replay_kernel, *a, 1, 32, 0);
}

/* These run between forwards of the persistent kernel: see kk_cu_setup_rows. */
cudaError_t kk_cu_setup_rounds(void) {
    const void *around[] = {(const void *)match_kernel, (const void *)shift_kernel,
                            (const void *)ids_kernel, (const void *)replay_kernel};
    for (const void *k : around) {
        const cudaError_t e = cudaFuncSetAttribute(
            k, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
