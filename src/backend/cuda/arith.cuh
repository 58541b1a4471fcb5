/* arith.cuh - the arithmetic that every CUDA kernel shares, so that a row has the same bits
 * whichever kernel computes it.
 *
 * The rules, most important first:
 *   - a dot product with a weight is a chain of m16n8k16 bf16 products with float32 sums, rows
 *     as M and outputs as N.  A step is 32 inputs, two products.  K steps are cut into eight
 *     slices at floor(steps * i / 8) where there are 48 or more; a slice starts from zero,
 *     and slices are added in order.  Whether slices run side by side in eight warps or one
 *     after the other in one warp changes nothing;
 *   - a sum over a row (norms) has 512 lanes of four neighbours each, every 2048 values, then a
 *     tree within 32 lanes, then a tree over the sixteen warps;
 *   - a sum over a head has 32 lanes and the tree;
 *   - attention rounds q, K, V and a page's softmax weights to bf16, and merges pages of 64
 *     keys in order, by spans of eight; attend.cuh has the exact sequence;
 *   - exp, gelu and the soft-cap are the sequences of core/mathf.h. */
#ifndef KK_CUDA_ARITH_CUH
#define KK_CUDA_ARITH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

enum {
    KK_WARP = 32,
    KK_BLOCK_WARPS = 8,
    KK_BLOCK_THREADS = 256,
    KK_SLICES = 8,    /* slices of the K steps of a weight */
    KK_STEP = 32,     /* inputs of a K step */
    KK_STRIP_OUT = 8, /* outputs of a strip */
    KK_ROWS_MAX = 16, /* most rows of a decode kernel */
};

/* Fewer steps than this are one slice: a warp computes a strip alone. */
enum { KK_SHORT_STEPS = 48 };
__host__ __device__ __forceinline__ int kk_slices(int steps) {
    return steps < KK_SHORT_STEPS ? 1 : KK_SLICES;
}
__host__ __device__ __forceinline__ int kk_slice(int steps, int i) {
    if (steps < KK_SHORT_STEPS) return i == 0 ? 0 : steps;
    return steps * i / KK_SLICES;
}

/* Thread and block index, read from the special register at each use (volatile). In the persistent
 * kernel, which runs through much code in a loop, values that the compiler derives from them and
 * keeps cost more registers than reading them again. */
__device__ __forceinline__ int kk_tid() {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}
__device__ __forceinline__ int kk_bid() {
    int b;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(b));
    return b;
}

/* ---- scalars ---------------------------------------------------------------------------- */

__device__ __forceinline__ float kk_dexp(float x) {
    x = fminf(fmaxf(x, -86.0f), 88.0f); /* NaN becomes -86 */
    /* Adding 1.5 * 2^23 rounds to the nearest integer, and leaves it in the low bits. */
    const float whole = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), 12582912.0f);
    const float n = __fsub_rn(whole, 12582912.0f);
    float r = __fmaf_rn(n, -0.693359375f, x);
    r = __fmaf_rn(n, 2.12194440054690583e-4f, r);
    float p = 1.0f / 5040;
    p = __fmaf_rn(p, r, 1.0f / 720);
    p = __fmaf_rn(p, r, 1.0f / 120);
    p = __fmaf_rn(p, r, 1.0f / 24);
    p = __fmaf_rn(p, r, 1.0f / 6);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(whole) << 23));
}

__device__ __forceinline__ float kk_dgelu(float x) {
    const float t = __fmaf_rn(__fmul_rn(x, x), 0.044715f, 1.0f);
    const float u = __fmul_rn(__fmul_rn(x, t), -1.59576912160573071f);
    return __fdiv_rn(x, __fadd_rn(1.0f, kk_dexp(u)));
}
__device__ __forceinline__ float kk_dsilu(float x) {
    return __fdiv_rn(x, __fadd_rn(1.0f, kk_dexp(-x)));
}
__device__ __forceinline__ float kk_dsoftcap(float x, float cap) {
    const float z = __fdiv_rn(x, cap);
    const float e = kk_dexp(__fmul_rn(z, 2.0f));
    return __fmaf_rn(x, 0.0f, __fmul_rn(cap, __fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(e, 1.0f)))));
}

__device__ __forceinline__ float kk_glu_of(float gate, float up, int silu) {
    return __fmul_rn(silu ? kk_dsilu(gate) : kk_dgelu(gate), up);
}

__device__ __forceinline__ uint16_t kk_dbf16(float f) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
__device__ __forceinline__ float kk_dfloat(uint16_t h) {
    return __uint_as_float((uint32_t)h << 16);
}
__device__ __forceinline__ uint32_t kk_dbf16x2(float lo, float hi) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(lo, hi); /* one instruction */
    return *(const uint32_t *)&two;
}

/* Index of value k in a swizzled row, the layout that the tiled products read with ldmatrix
 * (gemm.cuh): of every 32 values, word w (a pair) goes to place 4 (w % 4) + w / 4. */
__device__ __forceinline__ int kk_swizzled(int k) {
    return (k & ~31) | (k >> 1 & 3) << 3 | (k >> 3 & 3) << 1 | (k & 1);
}

/* The barrier of a block's consumer threads: all threads, or KK_WORKING_THREADS where a file
 * defines that before it includes this one. */
__device__ __forceinline__ void kk_sync() {
#ifdef KK_WORKING_THREADS
    asm volatile("bar.sync 0, %0;" ::"n"(KK_WORKING_THREADS) : "memory");
#else
    __syncthreads();
#endif
}

/* ---- sums ------------------------------------------------------------------------------- */

__device__ __forceinline__ float kk_warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

/* A row in the registers of a block of 512 threads: thread t has the values 4 t .. 4 t + 3 of every
 * 2048. */
enum { KK_ROW_THREADS = 512, KK_ROW_SPAN = 4 * KK_ROW_THREADS, KK_ROW_MOST = 4 * KK_ROW_SPAN };

template <int V> struct kk_row { float v[4 * V]; };

template <int V> __device__ __forceinline__ kk_row<V> kk_row_load(const float *p, int dim) {
    kk_row<V> r;
#pragma unroll
    for (int i = 0; i < V; i++) {
        const int at = i * KK_ROW_SPAN + 4 * kk_tid();
        if (dim % 4 == 0) {
            const float4 f = at < dim ? *(const float4 *)(p + at) : make_float4(0, 0, 0, 0);
            r.v[4 * i] = f.x;
            r.v[4 * i + 1] = f.y;
            r.v[4 * i + 2] = f.z;
            r.v[4 * i + 3] = f.w;
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) r.v[4 * i + k] = at + k < dim ? p[at + k] : 0;
        }
    }
    return r;
}

template <int V>
__device__ __forceinline__ void kk_row_store(float *p, const kk_row<V> &r, int dim) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        const int at = i * KK_ROW_SPAN + 4 * kk_tid();
        if (dim % 4 == 0) {
            if (at < dim)
                *(float4 *)(p + at) =
                    make_float4(r.v[4 * i], r.v[4 * i + 1], r.v[4 * i + 2], r.v[4 * i + 3]);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (at + k < dim) p[at + k] = r.v[4 * i + k];
        }
    }
}

/* Stores a row as bf16, 8-byte aligned; swizzled for the tiled products. */
template <int V>
__device__ __forceinline__ void kk_row_store_bf16(uint16_t *p, const kk_row<V> &r, int dim,
                                                  bool swizzled = false) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        const int at = i * KK_ROW_SPAN + 4 * kk_tid();
        if (dim % 4 == 0) {
            if (at < dim && swizzled) {
                *(uint32_t *)(p + kk_swizzled(at)) = kk_dbf16x2(r.v[4 * i], r.v[4 * i + 1]);
                *(uint32_t *)(p + kk_swizzled(at + 2)) = kk_dbf16x2(r.v[4 * i + 2], r.v[4 * i + 3]);
            } else if (at < dim)
                *(uint2 *)(p + at) = make_uint2(kk_dbf16x2(r.v[4 * i], r.v[4 * i + 1]),
                                                kk_dbf16x2(r.v[4 * i + 2], r.v[4 * i + 3]));
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (at + k < dim)
                    p[swizzled ? kk_swizzled(at + k) : at + k] = kk_dbf16(r.v[4 * i + k]);
        }
    }
}

/* 1 / rms in two halves with a barrier between them.  sums: 16 floats of shared memory, one per
 * warp, not reused before the next barrier. */
template <int V> __device__ __forceinline__ void kk_row_sum_begin(const kk_row<V> &r, float *sums) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < 4 * V; i++) s = __fmaf_rn(r.v[i], r.v[i], s);
    s = kk_warp_sum(s);
    if (kk_tid() % KK_WARP == 0) sums[kk_tid() / KK_WARP] = s;
}
__device__ __forceinline__ float kk_row_sum_end(int dim, float eps, const float *sums) {
    float s = sums[kk_tid() % 16];
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) s = __fadd_rn(s, __shfl_xor_sync(0xffffffffu, s, d));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)dim), eps)));
}
template <int V>
__device__ __forceinline__ float kk_inv_rms(const kk_row<V> &r, int dim, float eps, float *sums) {
    kk_row_sum_begin(r, sums);
    kk_sync();
    return kk_row_sum_end(dim, eps, sums);
}

/* ---- order between kernels of a graph ----------------------------------------------------- */

/* Programmatic dependent launch.  Before kk_wait a kernel may only read weights, and what was
 * written by kernels before its predecessor if that one called kk_next after its own kk_wait. */
__device__ __forceinline__ void kk_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void kk_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
