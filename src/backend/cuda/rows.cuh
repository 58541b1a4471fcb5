/* rows.cuh - the kernel between the products: residual and norms fused, one block per row.
 *
 *    block: 512 threads, row r of [n_rows][dim] f32 in registers (4 V a thread, dim <= 2048 V)
 *      load x, branch outputs a and b, norm weights
 *      sum of squares: lane -> warp shuffle -> sums[i][16] in smem -- kk_sync -> 1 / rms, up to 4x
 *      x = (x + norm(...)) * scale -> global; up to three norms of x -> bf16 rows */
#ifndef KK_CUDA_ROWS_CUH
#define KK_CUDA_ROWS_CUH

#include "arith.cuh"
#include "cuda_ops.h"

template <int V>
__device__ __forceinline__ void kk_scale(kk_row<V> &to, const kk_row<V> &x, float inv,
                                         const kk_row<V> &w) {
#pragma unroll
    for (int i = 0; i < 4 * V; i++) to.v[i] = __fmul_rn(__fmul_rn(x.v[i], inv), w.v[i]);
}

/* One row, by a block of KK_ROW_THREADS threads; sums: [4][16] floats of shared memory, not reused
 * before a barrier.  Weights are loaded one norm ahead of their use, not all at once, to limit
 * registers. */
template <int V>
__device__ __forceinline__ void kk_between_row(const kk_cu_between &a, size_t row,
                                               float (*sums)[16]) {
    kk_row<V> w;
    if (a.a) w = kk_row_load<V>(a.w, a.dim);
    kk_row<V> x = kk_row_load<V>(a.x + row * a.dim, a.dim), y;
    if (a.a) y = kk_row_load<V>(a.a + row * a.dim, a.dim);
    if (a.b) {
        kk_row<V> b = kk_row_load<V>(a.b + row * a.dim, a.dim);
        const kk_row<V> wa = kk_row_load<V>(a.wa, a.dim), wb = kk_row_load<V>(a.wb, a.dim);
        kk_scale(y, y, kk_inv_rms(y, a.dim, a.eps, sums[0]), wa);
        kk_scale(b, b, kk_inv_rms(b, a.dim, a.eps, sums[1]), wb);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) y.v[i] = __fadd_rn(y.v[i], b.v[i]);
    }
    kk_row<V> w1, w2, w3;
    if (a.w1) w1 = kk_row_load<V>(a.w1, a.dim);
    if (a.w2) w2 = kk_row_load<V>(a.w2, a.dim);
    if (a.w3) w3 = kk_row_load<V>(a.w3, a.dim);
    if (a.a) {
        kk_scale(y, y, kk_inv_rms(y, a.dim, a.eps, sums[2]), w);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), a.scale);
        kk_row_store(a.x + row * a.dim, x, a.dim);
    }
    if (!a.w1 && !a.w2 && !a.w3) return;
    const float inv = kk_inv_rms(x, a.dim, a.eps, sums[3]);
    if (a.w1) {
        kk_scale(y, x, inv, w1);
        if (a.z1) kk_row_store_bf16(a.z1 + row * a.pitch, y, a.dim, a.swizzled);
        if (a.zf) kk_row_store(a.zf + row * a.dim, y, a.dim);
    }
    if (a.w2) {
        kk_scale(y, x, inv, w2);
        kk_row_store_bf16(a.z2 + row * a.pitch, y, a.dim, a.swizzled);
    }
    if (a.w3) {
        kk_scale(y, x, inv, w3);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) y.v[i] = __fmul_rn(y.v[i], a.root);
        kk_row_store_bf16(a.z3 + row * a.pitch, y, a.dim, a.swizzled);
    }
}

template <int V>
__global__ void __launch_bounds__(KK_ROW_THREADS, 1)
    kk_between_kernel(const __grid_constant__ kk_cu_between a) {
    __shared__ float sums[4][16];
    kk_next();
    kk_wait();
    kk_between_row<V>(a, blockIdx.x, sums);
}

#endif
