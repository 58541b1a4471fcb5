/* rows.cuh - the kernel between the products: a block per row, norms and residuals fused. */
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

template <int V>
__global__ void __launch_bounds__(KK_ROW_THREADS, 1)
    kk_between_kernel(const __grid_constant__ kk_cu_between a) {
    __shared__ float room[4][16];
    const size_t row = blockIdx.x;
    const float *weight[] = {a.wa, a.wb, a.w, a.w1, a.w2, a.w3};
    kk_next();
    kk_row<V> w[6];
#pragma unroll
    for (int i = 0; i < 6; i++)
        if (weight[i]) w[i] = kk_row_load<V>(weight[i], a.dim);
    kk_wait();
    kk_row<V> x = kk_row_load<V>(a.x + row * a.dim, a.dim), y, b, z;
    if (a.a) y = kk_row_load<V>(a.a + row * a.dim, a.dim);
    if (a.b) {
        b = kk_row_load<V>(a.b + row * a.dim, a.dim);
        kk_scale(y, y, kk_inv_rms(y, a.dim, a.eps, room[0]), w[0]);
        kk_scale(b, b, kk_inv_rms(b, a.dim, a.eps, room[1]), w[1]);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) y.v[i] = __fadd_rn(y.v[i], b.v[i]);
    }
    if (a.a) {
        kk_scale(y, y, kk_inv_rms(y, a.dim, a.eps, room[2]), w[2]);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), a.scale);
        kk_row_store(a.x + row * a.dim, x, a.dim);
    }
    const float inv = kk_inv_rms(x, a.dim, a.eps, room[3]);
    if (a.z1 || a.zf) {
        kk_scale(z, x, inv, w[3]);
        if (a.z1) kk_row_store_bf16(a.z1 + row * a.pitch, z, a.dim, a.turned);
        if (a.zf) kk_row_store(a.zf + row * a.dim, z, a.dim);
    }
    if (a.z2) {
        kk_scale(z, x, inv, w[4]);
        kk_row_store_bf16(a.z2 + row * a.pitch, z, a.dim, a.turned);
    }
    if (a.z3) {
        kk_scale(z, x, inv, w[5]);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) z.v[i] = __fmul_rn(z.v[i], a.root);
        kk_row_store_bf16(a.z3 + row * a.pitch, z, a.dim, a.turned);
    }
}

#endif
