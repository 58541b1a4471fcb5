/* cuda_wide.cu - kk_cu_run_linear for rows whose activations take so much shared memory that ring
 * buffers are half as large, such as 16 rows of 5376: their weights are read once all the same.
 *
 *    kk_wide_kernel  256 threads, one block per multiprocessor
 *      shared memory: rings 8 warps x 6 KB | mbarriers | partial sums [2 strips][8 slices][16 rows]
 *      [8 outputs] f32, 8 KB, not double-buffered | staged activations [rows][n_in] bf16
 *      the steps are those of decode.cuh: a unit of two strips at a time, a K slice per warp; one
 *      warp, in rotation, adds the slices of a unit, and the others wait for it only when they have
 *      multiplied the next */
#define KK_RING_CHUNK 2 /* K steps of a slot, two strips: 2 KB; see stream.cuh */
#define KK_RING_SLOTS 3
#include "decode.cuh"
#include "dense_ops.h"
#include "launch.cuh"
#include "stage.cuh"

namespace {

enum { PART = 2 * KK_SLICES * 128 }; /* floats of a unit's partial sums */

__global__ void __launch_bounds__(KK_BLOCK_THREADS, 1)
    kk_wide_kernel(const __grid_constant__ kk_linear_job_args a) {
    extern __shared__ __align__(128) char smem[];
    using acts = kk_acts<2, false>;
    const int lane = threadIdx.x % KK_WARP, warp = threadIdx.x / KK_WARP, g = lane / 4;
    char *bar = smem + kk_ring_cut<false>::ALL;
    float *part = (float *)(bar + KK_STAGE_BAR);
    kk_ring<false> ring;
    ring.open(smem);
    kk_stage_open(bar);
    kk_linear_job<true, 2> job(a, (char *)(part + PART));
    auto in = job.first(); /* position of the next copy */
    const uint4 *one = 0, *two = 0;
    int left = 0;
    auto refill = [&]() {
        for (; left == 0 && !job.done(in);) { /* the next unit in which this warp has a step */
            const int steps = job.steps(in), from = kk_slice(steps, warp);
            left = kk_slice(steps, warp + 1) - from;
            one = job.strip(in, 0) + from * KK_WARP;
            two = job.strip(in, 1) + from * KK_WARP;
            job.next(in);
        }
        if (left == 0) return ring.skip();
        const int n = min((int)acts::STEPS, left);
        ring.fetch(one, two, n, KK_WARP);
        one += n * KK_WARP;
        two += n * KK_WARP;
        left -= n;
    };
    for (int i = 0; i < kk_ring_cut<false>::SLOTS; i++) refill();
    __syncthreads();
    kk_next();
    kk_wait();
    const int stride = kk_stage_stride(a.n_in);
    kk_stage_bulk(job.stage, bar, a.x, a.n_rows, a.n_in, 0, a.n_in / KK_STEP, stride);
    const char *lo = job.stage + (g < a.n_rows ? g : 0) * stride + (lane & 3) * 16;
    const char *hi = job.stage + (g + 8 < a.n_rows ? g + 8 : 0) * stride + (lane & 3) * 16;
    int nth = 0;
    for (auto at = job.first(); !job.done(at); job.next(at), nth++) {
        float c[2][4] = {};
        const int end = kk_slice(job.steps(at), warp + 1);
        for (int k = kk_slice(job.steps(at), warp); k < end; k += acts::STEPS) {
            acts x;
#pragma unroll
            for (int i = 0; i < acts::STEPS; i++) {
                const int step = min(k + i, end - 1);
                x.a[i] = *(const uint4 *)(lo + step * 64);
                x.b[i] = *(const uint4 *)(hi + step * 64);
            }
            kk_chunk<true, 2, false>(c, ring.wait(), end - k, x);
            ring.release();
            refill();
        }
        __syncthreads(); /* the sums of the unit before have been read */
#pragma unroll
        for (int s = 0; s < 2; s++) {
            float *to = part + (s * KK_SLICES + warp) * 128 + g * 8 + 2 * (lane % 4);
            *(float2 *)to = make_float2(c[s][0], c[s][1]);
            *(float2 *)(to + 64) = make_float2(c[s][2], c[s][3]);
        }
        __syncthreads();
        if (nth % KK_BLOCK_WARPS == warp) job.sums(at, part, lane);
    }
}

size_t shared_of(const kk_cu_linear *a) {
    return (size_t)kk_ring_cut<false>::ALL + (size_t)KK_STAGE_BAR + PART * sizeof(float) +
           (size_t)a->n_rows * (size_t)kk_stage_stride(a->n_in);
}

bool is_plain(const kk_cu_weight &w) {
    return w.encoding == KK_W_BF16 && w.planes == 1 && w.strips % 2 == 0;
}

} // namespace

bool kk_cu_wide_takes(kk_cu_at at, const kk_cu_linear *a) {
    for (int i = 0; i < a->n_parts; i++)
        if (!is_plain(a->part[i].w) || (a->part[i].up.data && !is_plain(a->part[i].up)))
            return false;
    return a->n_rows <= KK_CU_ROWS && shared_of(a) <= (size_t)at.shared;
}

cudaError_t kk_cu_run_wide(kk_cu_at at, const kk_cu_linear *a) {
    if (!kk_cu_wide_takes(at, a)) return cudaErrorInvalidValue;
    kk_linear_job_args j = {};
    for (int i = 0; i < a->n_parts; i++) {
        kk_part &p = j.part[i];
        p.w = (const uint4 *)a->part[i].w.data;
        p.up = (const uint4 *)a->part[i].up.data;
        p.out = a->part[i].out;
        p.n_out = (int)a->part[i].w.n_out;
        p.steps = a->part[i].w.wrap;
        p.units = p.up ? a->part[i].w.strips : a->part[i].w.strips / 2;
        p.pitch = a->part[i].pitch;
        p.encoding = KK_W_BF16;
        p.words = KK_WARP;
        j.units += p.units;
    }
    j.n_parts = a->n_parts;
    j.x = a->x;
    j.n_rows = a->n_rows;
    j.n_in = a->n_in;
    j.silu = a->silu;
    return kk_launch(at, kk_wide_kernel, j, (unsigned)(j.units < at.sms ? j.units : at.sms),
                     KK_BLOCK_THREADS, shared_of(a));
}

cudaError_t kk_setup_wide(int32_t shared) {
    return cudaFuncSetAttribute((const void *)kk_wide_kernel,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
}
