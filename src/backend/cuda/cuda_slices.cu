/* cuda_slices.cu - products of up to 16 rows whose inputs exceed a block's shared memory: weights
 * are read once, and a block stages the activations of some K slices alone.
 *
 *    kk_slices_kernel  256 threads, one block per multiprocessor, stream.cuh's warp rings (96 KB)
 *      cuts: 2, 4 or 8 groups of blocks, each of which has 8 / cuts of the slices
 *      1  fetch the first weights                            (before griddepcontrol.wait)
 *      2  kk_wait; bulk copies of [rows][a cut's inputs] bf16 into shared memory
 *      3  each warp on its own: a slice of two strips, or of one -> slices[slice][row][output]
 *    join_kernel       256 threads, a value each: adds its slices in order
 *
 * Slices lie in global memory until the kernel that reads the product adds them: a sum in this one
 * would need a fence per unit, which waits for all copies in flight. */
#include "dense_ops.h"
#include "launch.cuh"
#include "stage.cuh"

static_assert((int)KK_CU_SLICES == (int)KK_SLICES, "cuda_prompt.c and the kernels add the same");

namespace {

struct slices_args {
    const uint4 *w;
    const uint16_t *x; /* [n_rows][n_in] */
    float *out;        /* [slice][n_rows][n_out] */
    int units, steps, n_rows, n_in, n_out;
    int cuts;
};

/* HIGH: more than 8 rows; NS: strips of a unit. */
template <bool HIGH, int NS>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 1)
    kk_slices_kernel(const __grid_constant__ slices_args a) {
    extern __shared__ __align__(128) char smem[];
    constexpr int STEPS = kk_acts<NS, false>::STEPS, SLOTS = kk_ring_cut<false>::SLOTS;
    const int lane = threadIdx.x % KK_WARP, warp = threadIdx.x / KK_WARP, g = lane / 4;
    char *bar = smem + kk_ring_cut<false>::ALL, *stage = bar + KK_STAGE_BAR;
    kk_ring<false> ring;
    ring.open(smem);
    kk_stage_open(bar);
    const int per = KK_SLICES / a.cuts, cut = (int)blockIdx.x % a.cuts;
    const int slice = cut * per + warp % per, begin = kk_slice(a.steps, cut * per);
    const int from = kk_slice(a.steps, slice), n = kk_slice(a.steps, slice + 1) - from;
    const int first = (int)blockIdx.x / a.cuts * a.cuts + warp / per;
    const int stride_units = (int)gridDim.x; /* a multiple of cuts */
    const size_t strip = (size_t)a.steps * KK_WARP;
    int unit_in = first, left = first < a.units ? n : 0; /* of the next copy */
    const uint4 *one = a.w + (size_t)first * NS * strip + (size_t)from * KK_WARP;
    auto refill = [&]() {
        if (left == 0) {
            unit_in += stride_units;
            if (unit_in >= a.units) return ring.skip();
            left = n;
            one = a.w + (size_t)unit_in * NS * strip + (size_t)from * KK_WARP;
        }
        const int some = min(STEPS, left);
        ring.fetch(one, NS > 1 ? one + strip : 0, some, KK_WARP);
        one += some * KK_WARP;
        left -= some;
    };
    for (int i = 0; i < SLOTS; i++) refill();
    __syncthreads();
    kk_next();
    kk_wait();
    const int staged = kk_slice(a.steps, (cut + 1) * per) - begin;
    const int stride = kk_stage_stride(staged * KK_STEP);
    kk_stage_bulk(stage, bar, a.x, a.n_rows, a.n_in, begin, staged, stride);
    const char *lo = stage + (from - begin) * 64 + (lane & 3) * 16, *hi = lo;
    lo += (g < a.n_rows ? g : 0) * stride;
    if (HIGH) hi += (g + 8 < a.n_rows ? g + 8 : 0) * stride;
    float *out = a.out + (size_t)slice * (size_t)a.n_rows * (size_t)a.n_out + 2 * (lane % 4);
    for (int unit = first; unit < a.units; unit += stride_units) {
        float c[NS][4] = {};
        for (int k = 0; k < n; k += STEPS) {
            kk_acts<NS, false> x;
#pragma unroll
            for (int i = 0; i < STEPS; i++) { /* past the last step: its weights become zeros */
                const int at = min(k + i, n - 1);
                x.a[i] = *(const uint4 *)(lo + at * 64);
                if (HIGH) x.b[i] = *(const uint4 *)(hi + at * 64);
            }
            kk_chunk<HIGH, NS, false>(c, ring.wait(), n - k, x);
            ring.release();
            refill();
        }
#pragma unroll
        for (int s = 0; s < NS; s++) {
            const int o = (unit * NS + s) * KK_STRIP_OUT;
            if (o >= a.n_out) break;
            if (g < a.n_rows)
                *(float2 *)(out + (size_t)g * a.n_out + o) = make_float2(c[s][0], c[s][1]);
            if (HIGH && g + 8 < a.n_rows)
                *(float2 *)(out + (size_t)(g + 8) * a.n_out + o) = make_float2(c[s][2], c[s][3]);
        }
    }
}

typedef void (*slices_fn)(slices_args);
const slices_fn kernels[2][2] = {{kk_slices_kernel<false, 1>, kk_slices_kernel<false, 2>},
                                 {kk_slices_kernel<true, 1>, kk_slices_kernel<true, 2>}};

/* Shared memory of a block that has one of so many cuts. */
size_t shared_of(int steps, int rows, int cuts) {
    int most = 0;
    for (int i = 0, per = KK_SLICES / cuts; i < cuts; i++) {
        const int n = kk_slice(steps, (i + 1) * per) - kk_slice(steps, i * per);
        most = n > most ? n : most;
    }
    return (size_t)kk_ring_cut<false>::ALL + (size_t)KK_STAGE_BAR +
           (size_t)rows * (size_t)kk_stage_stride(most * KK_STEP);
}

/* The fewest cuts with which activations fit; 0: none. */
int cuts_of(kk_cu_at at, const kk_cu_linear *a) {
    for (int cuts = 2; cuts <= KK_SLICES; cuts *= 2)
        if (cuts <= at.sms && shared_of(a->part[0].w.wrap, a->n_rows, cuts) <= (size_t)at.shared)
            return cuts;
    return 0;
}

__global__ void __launch_bounds__(KK_BLOCK_THREADS)
    join_kernel(const __grid_constant__ kk_cu_join a) {
    const size_t all = (size_t)a.n_rows * (size_t)a.n_out;
    const size_t i = (size_t)blockIdx.x * KK_BLOCK_THREADS + threadIdx.x;
    kk_next();
    kk_wait();
    if (i >= all) return;
    float v[KK_SLICES];
#pragma unroll
    for (int k = 0; k < KK_SLICES; k++) v[k] = a.slices[k * all + i];
#pragma unroll
    for (int k = 1; k < KK_SLICES; k++) v[0] = __fadd_rn(v[0], v[k]);
    a.out[i] = v[0];
}

} // namespace

bool kk_cu_slices_takes(kk_cu_at at, const kk_cu_linear *a) {
    const kk_cu_weight &w = a->part[0].w;
    return a->n_parts == 1 && !a->part[0].up.data && w.encoding == KK_W_BF16 && w.planes == 1 &&
           w.wrap >= KK_SHORT_STEPS && w.n_out % KK_STRIP_OUT == 0 && w.strips % 2 == 0 &&
           w.n_out <= KK_CU_SLICED_MOST && a->n_rows <= KK_CU_ROWS && cuts_of(at, a) > 0;
}

cudaError_t kk_cu_run_slices(kk_cu_at at, const kk_cu_linear *a, float *slices) {
    if (!kk_cu_slices_takes(at, a)) return cudaErrorInvalidValue;
    const kk_cu_weight &w = a->part[0].w;
    const bool two = (w.strips + at.sms - 1) / at.sms >= 4;
    slices_args s = {};
    s.w = (const uint4 *)w.data;
    s.x = a->x;
    s.out = slices;
    s.units = two ? w.strips / 2 : w.strips;
    s.steps = w.wrap;
    s.n_rows = a->n_rows;
    s.n_in = a->n_in;
    s.n_out = (int)w.n_out;
    s.cuts = cuts_of(at, a);
    const int groups = (s.units + s.cuts - 1) / s.cuts, most = at.sms / s.cuts;
    return kk_launch(at, kernels[a->n_rows > 8][two], s,
                     (unsigned)((groups < most ? groups : most) * s.cuts), KK_BLOCK_THREADS,
                     shared_of(s.steps, a->n_rows, s.cuts));
}

cudaError_t kk_cu_run_join(kk_cu_at at, const kk_cu_join *a) {
    const size_t all = (size_t)a->n_rows * (size_t)a->n_out;
    const unsigned blocks = (unsigned)((all + KK_BLOCK_THREADS - 1) / KK_BLOCK_THREADS);
    return kk_launch(at, join_kernel, *a, blocks, KK_BLOCK_THREADS, 0);
}

cudaError_t kk_setup_slices(int32_t shared) {
    for (const auto &of_rows : kernels)
        for (const slices_fn fn : of_rows) {
            const cudaError_t e = cudaFuncSetAttribute(
                (const void *)fn, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
            if (e != cudaSuccess) return e;
        }
    return cudaSuccess;
}
