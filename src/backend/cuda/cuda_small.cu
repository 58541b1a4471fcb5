/* cuda_small.cu - products of few rows with matrices so small that a launch takes longer than their
 * bytes: the two of a per-layer input, 1.3 MB each in E4B.
 *
 *    small_kernel  256 threads, no ring buffer: a warp has all of its weights in registers before
 *                  griddepcontrol.wait, up to 12 K steps of a strip, and asks for all activations
 *                  at once after it
 *      one slice:    a warp per strip, eight strips a block
 *      eight slices: a strip per block, a slice per warp; partial sums [8 slices][16 rows][8] f32
 *                    in smem -- __syncthreads -- 128 threads add them in order
 *      out = the product as f32, or bf16 of gelu(product) * ple */
#include "dense_ops.h"
#include "launch.cuh"
#include "packed.cuh"

namespace {

enum { STEPS = 12 }; /* most K steps of a warp */

struct small_args {
    kk_cu_small s;
    int steps;
};

/* Puts value o of row r where it belongs. */
__device__ __forceinline__ void put(const kk_cu_small &s, int r, int o, float v) {
    const size_t at = (size_t)r * (size_t)s.w.n_out + (size_t)o;
    if (r >= s.n_rows || o >= (int)s.w.n_out) return;
    if (!s.ple) {
        s.out[at] = v;
        return;
    }
    const float up = s.ple[(size_t)r * (size_t)s.stride + (size_t)(s.offset + o)];
    s.act[at] = kk_dbf16(kk_glu_of(v, up, 0));
}

/* HIGH: more than 8 rows; CUT: eight slices. */
template <bool HIGH, bool CUT>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 1)
    small_kernel(const __grid_constant__ small_args a) {
    __shared__ float part[KK_SLICES][128];
    const kk_cu_small &s = a.s;
    const int lane = threadIdx.x % KK_WARP, warp = threadIdx.x / KK_WARP, g = lane / 4;
    const int strip = CUT ? (int)blockIdx.x : (int)blockIdx.x * KK_BLOCK_WARPS + warp;
    const int from = CUT ? kk_slice(a.steps, warp) : 0;
    const int n = strip >= s.w.strips ? 0 : CUT ? kk_slice(a.steps, warp + 1) - from : a.steps;
    const uint4 *weights = (const uint4 *)s.w.data + ((size_t)strip * a.steps + from) * KK_WARP;
    uint4 w[STEPS], lo[STEPS], hi[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        w[i] = i < n ? __ldg(weights + i * KK_WARP + lane) : make_uint4(0, 0, 0, 0);
    kk_next();
    kk_wait();
    const uint16_t *x = s.x + from * KK_STEP + (lane & 3) * 8;
    const uint16_t *one = x + (size_t)(g < s.n_rows ? g : 0) * s.n_in;
    const uint16_t *two = x + (size_t)(g + 8 < s.n_rows ? g + 8 : 0) * s.n_in;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const bool there = i < n;
        lo[i] = there ? *(const uint4 *)(one + i * KK_STEP) : make_uint4(0, 0, 0, 0);
        hi[i] = there && HIGH ? *(const uint4 *)(two + i * KK_STEP) : make_uint4(0, 0, 0, 0);
    }
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        if (i < n) kk_step<HIGH>(c, w[i], lo[i], hi[i]);
    const int o = lane % 4 * 2;
    if (!CUT) {
        if (n == 0) return;
#pragma unroll
        for (int i = 0; i < (HIGH ? 4 : 2); i++)
            put(s, g + i / 2 * 8, strip * KK_STRIP_OUT + o + i % 2, c[i]);
        return;
    }
    *(float2 *)&part[warp][g * 8 + o] = make_float2(c[0], c[1]);
    if (HIGH) *(float2 *)&part[warp][64 + g * 8 + o] = make_float2(c[2], c[3]);
    __syncthreads();
    const int i = (int)threadIdx.x;
    if (i >= (HIGH ? 128 : 64)) return;
    float v = part[0][i];
#pragma unroll
    for (int k = 1; k < KK_SLICES; k++) v = __fadd_rn(v, part[k][i]);
    put(s, i / 8, strip * KK_STRIP_OUT + i % 8, v);
}

typedef void (*small_fn)(small_args);
const small_fn kernels[2][2] = {{small_kernel<false, false>, small_kernel<false, true>},
                                {small_kernel<true, false>, small_kernel<true, true>}};

} // namespace

bool kk_cu_small_takes(const kk_cu_weight *w, int32_t n_rows) {
    enum { STRIPS = 512 }; /* beyond, ring buffers keep more bytes in flight */
    const int most = kk_slices(w->wrap) > 1 ? (w->wrap + KK_SLICES - 1) / KK_SLICES : w->wrap;
    return w->encoding == KK_W_BF16 && w->planes == 1 && n_rows <= KK_CU_ROWS && most <= STEPS &&
           w->strips <= STRIPS;
}

cudaError_t kk_cu_run_small(kk_cu_at at, const kk_cu_small *a) {
    if (!kk_cu_small_takes(&a->w, a->n_rows) || a->n_in != a->w.wrap * KK_STEP)
        return cudaErrorInvalidValue;
    small_args s = {};
    s.s = *a;
    s.steps = a->w.wrap;
    const bool cut = kk_slices(s.steps) > 1;
    const int blocks = cut ? a->w.strips : (a->w.strips + KK_BLOCK_WARPS - 1) / KK_BLOCK_WARPS;
    return kk_launch(at, kernels[a->n_rows > 8][cut], s, (unsigned)blocks, KK_BLOCK_THREADS, 0);
}
