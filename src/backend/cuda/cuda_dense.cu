/* cuda_dense.cu - what lies between the products of a dense layer, and the shared-memory limits of
 * the kernels that dense_ops.h lists.
 *
 *    tail_kernel      512 threads, one row per block, in registers as in rows.cuh: the residual
 *                     with its norm, and the next product's rows as bf16
 *    gated_kernel     256 threads, a value each: a gated activation as bf16 */
#include "dense_ops.h"
#include "launch.cuh"
#include "rows.cuh"

enum { SLICES = 8, THREADS = 256 };

/* A row of which every value is the sum of its slices, in order. */
template <int V>
static __device__ __forceinline__ kk_row<V> load_row(const kk_cu_tail &a, size_t row) {
    const size_t slice = (size_t)a.n_rows * (size_t)a.dim;
    const float *from = a.y + row * (size_t)a.dim;
    kk_row<V> y = kk_row_load<V>(from, a.dim);
    if (!a.sliced) return y;
    static_assert((int)SLICES == (int)KK_CU_SLICES, "as many slices as products have");
#pragma unroll
    for (int k = 1; k < SLICES; k++) {
        const kk_row<V> more = kk_row_load<V>(from + k * slice, a.dim);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) y.v[i] = __fadd_rn(y.v[i], more.v[i]);
    }
    return y;
}

template <int V>
__global__ void __launch_bounds__(KK_ROW_THREADS, 1)
    tail_kernel(const __grid_constant__ kk_cu_tail a) {
    __shared__ float sums[2][16];
    const size_t at = (size_t)blockIdx.x * (size_t)a.dim;
    kk_row<V> w, w1;
    kk_next();
    if (a.y && a.w) w = kk_row_load<V>(a.w, a.dim); /* weights are read before the rows are there */
    if (a.w1) w1 = kk_row_load<V>(a.w1, a.dim);
    kk_wait();
    kk_row<V> x = kk_row_load<V>(a.x + at, a.dim);
    if (a.y) {
        kk_row<V> y = load_row<V>(a, blockIdx.x);
        if (a.w) kk_scale(y, y, kk_inv_rms(y, a.dim, a.eps, sums[0]), w);
#pragma unroll
        for (int i = 0; i < 4 * V; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), a.scale);
        kk_row_store(a.x + at, x, a.dim);
    }
    if (a.w1) kk_scale(x, x, kk_inv_rms(x, a.dim, a.eps, sums[1]), w1);
    if (a.zf) kk_row_store(a.zf + at, x, a.dim);
    if (a.z) kk_row_store_bf16(a.z + at, x, a.dim, a.swizzled);
}

cudaError_t kk_cu_run_tail(kk_cu_at at, const kk_cu_tail *a) {
    if (a->dim > KK_ROW_MOST || a->dim % KK_STEP) return cudaErrorInvalidValue;
    void (*k)(kk_cu_tail) = a->dim <= KK_ROW_SPAN       ? tail_kernel<1>
                            : a->dim <= 2 * KK_ROW_SPAN ? tail_kernel<2>
                                                        : tail_kernel<4>;
    return kk_launch(at, k, *a, (unsigned)a->n_rows, KK_ROW_THREADS, 0);
}

static __global__ void __launch_bounds__(THREADS)
    gated_kernel(const __grid_constant__ kk_cu_gated a) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t r = i / (size_t)a.dim, c = i % (size_t)a.dim;
    kk_next();
    kk_wait();
    if (r >= (size_t)a.n_rows) return;
    const float up = a.up[r * (size_t)a.stride + (size_t)a.offset + c];
    const float y = kk_glu_of(a.gate[i], up, a.silu);
    if (a.outf) a.outf[i] = y;
    a.out[r * (size_t)a.dim + (a.swizzled ? (size_t)kk_swizzled((int)c) : c)] = kk_dbf16(y);
}

cudaError_t kk_cu_run_gated(kk_cu_at at, const kk_cu_gated *a) {
    if (a->dim % KK_STEP) return cudaErrorInvalidValue;
    const size_t all = (size_t)a->n_rows * (size_t)a->dim;
    return kk_launch(at, gated_kernel, *a, (unsigned)((all + THREADS - 1) / THREADS), THREADS, 0);
}

cudaError_t kk_setup_slices(int32_t shared);
cudaError_t kk_setup_wide(int32_t shared);

cudaError_t kk_cu_setup_dense(int32_t shared) {
    const cudaError_t e = kk_setup_slices(shared);
    return e == cudaSuccess ? kk_setup_wide(shared) : e;
}
