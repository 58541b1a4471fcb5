/* mega.cuh - a whole forward over 1 to 16 rows as one persistent cooperative kernel: one block per
 * multiprocessor walks through all layers, with a grid barrier between dependent stages.  What a
 * graph of kernels loses at every stage (launch, the tail of the last tiles, the latency of the
 * first bytes) is hidden here, because producer warps keep streaming weights across stages
 * (mega_feed.cuh).
 *
 *    block: 640 threads = 20 warps
 *      warps  0..7    group 0, consumers: products, norms, attention; one K slice per warp
 *      warps  8..15   group 1, consumers: the same for other units of 16 outputs
 *      warp  16       poller: arrives at the grid barrier for the block and polls its counter
 *      warps 17, 18   producers of the weight rings of groups 0 and 1
 *      warp  19       router: its product, its own grid barrier; with one row also the top-k
 *
 *    producers ---- FULL[slot][half] / EMPTY[slot] (mbarriers) ----> consumers
 *    consumers -- bar 3 --> poller -- counter in global memory, all blocks -- bar 4 --> consumers
 *    consumers -- bar 5 rows normed --> router -- bar 6 experts chosen --> consumers
 *    bar 0: the 512 consumers    1, 2: one team of attention    7: the choosing warps
 *    bar 8 staged, 9 listed, 11 passed: group 0 with group 1    10: group 1 alone
 *
 *    shared memory, 227 KB in all (16 rows of 26B-A4B in brackets; less where a chip has less):
 *      weight rings 2 x SLOTS x 32 KB [128 KB] | mbarriers 2 x 128 B
 *      partial sums [2 groups][2 buffers][8 slices][16 outputs][rows] f32 [32 KB]
 *      staged activations, or attention's queries and scores [the rest] | the router's piece
 *      kk_mega_shared: active experts, two layers' pointers, partial sums of norms
 *
 *    phases of a layer (| is a grid barrier):
 *      QKV | store K/V, attention by page | merge pages | OUT | residual, three norms |
 *      GATE (gate and up of the dense part; the router runs beside it) |
 *      DENSE (its down projection) and EXPERTS (gate and up) | DOWN (experts' down projections,
 *      summed over a row's experts) | residual, next norm |     after the last layer: HEAD
 *    A single row has no grid barrier after its norms, since every block computes them.
 *
 * Everything that is needed from stage to stage lies in registers and shared memory.  Anything else
 * (local memory, the kernel parameter's pointers of a layer not used yet) has been evicted from the
 * caches by the streaming weights when it is needed: a layer's pointers are copied to shared memory
 * one layer ahead, norm weights are prefetched one stage ahead.
 *
 * Even without its weights a forward would take most of its time: a stage is a chain of dependent
 * instructions, L2 round trips and a barrier.  So weights are the M = 16 side of m16n8k16 and rows
 * the N = 8 side: a product of few rows takes one instruction per 512 bytes of weights, and all
 * loads of a slot are issued before its products.  (With rows as the M side, as in gemm.cuh, the
 * sums have the same bits.) A single row has stages of its own where that saves a round trip: every
 * block computes its norms redundantly.
 *
 * The eight warps of a group take one K slice each and their partial sums are added in order, so
 * that sums have the bits of every other kernel here (arith.cuh). */
#ifndef KK_CUDA_MEGA_CUH
#define KK_CUDA_MEGA_CUH

#include "attend_long.cuh"
#include "mega_feed.cuh"
#include "rows.cuh"

/* Index of the router's arrival counter in the barrier's words: a cache line of its own. */
enum { KK_MEGA_ROUTED = 32 };

/* Pitch of the rows of a unit's partial sums in shared memory: even, for float2 stores. */
__host__ __device__ __forceinline__ int kk_mega_pitch(int n_rows) { return (n_rows + 1) / 2 * 2; }

/* Bytes of partial sums, double-buffered for each group: [slice][16 outputs][rows] f32; in DOWN
 * [row and expert][16 outputs]. */
__host__ __device__ __forceinline__ int kk_mega_part_bytes(int n_rows, int n_used) {
    const int strips = KK_SLICES * 16 * kk_mega_pitch(n_rows), down = n_rows * n_used * 16;
    return KK_MEGA_GROUPS * 2 * 4 * (strips > down ? strips : down);
}

/* Byte offsets in the staging area of a single row: the row normed for q, k, v or the dense part
 * (and other rows that are staged); the row normed for the experts; this block's piece of the
 * router's weights, which is copied during OUT; and the slice of the row which that piece takes. */
enum {
    KK_ONE_ROW = 0,
    KK_ONE_EXPERTS = KK_CU_26B_HIDDEN * 2,
    KK_ONE_ROUTER = 16 * 1024,
    KK_ONE_SLICE = KK_CU_26B_HIDDEN / KK_SLICES,
    KK_ONE_PIECE = KK_ONE_ROUTER + KK_ONE_SLICE / 32 * 512,
    KK_ONE_BYTES = KK_ONE_PIECE + KK_ONE_SLICE * 2,
};

/* ---- barriers ----------------------------------------------------------------------------- */

/* A time stamp, for measurements (bench/gpu) only: the loop over layers has to fit the instruction
 * cache. */
__device__ __forceinline__ void kk_grid_mark(const kk_cu_mega &a, kk_mega_shared &s) {
#ifdef KK_MEGA_TRACE
    if (a.trace && kk_tid() == 0)
        a.trace[(size_t)s.marks++ * gridDim.x + (size_t)kk_bid()] = (uint64_t)clock64();
#else
    (void)a, (void)s;
#endif
}

/* For tests: delays some warps by KK_MEGA_SKEW nanoseconds, so that a missing wait shows. */
__device__ __forceinline__ void kk_grid_skew() {
#ifdef KK_MEGA_SKEW
    if ((((uint32_t)clock64() >> 5) + (uint32_t)kk_bid()) % 256 == 0) __nanosleep(KK_MEGA_SKEW);
#endif
}

/* The grid barrier in two halves, for consumers.  The poller warp signals the other blocks and
 * waits for them; consumers exchange named barriers 3 and 4 with it. */
__device__ __forceinline__ void kk_grid_arrive(const kk_cu_mega &a, kk_mega_shared &s) {
    kk_grid_mark(a, s);
    kk_grid_skew();
    asm volatile("bar.arrive 3, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
}
__device__ __forceinline__ void kk_grid_wait(const kk_cu_mega &a, kk_mega_shared &s) {
    asm volatile("bar.sync 4, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
    kk_grid_mark(a, s);
}

/* For warps that need not wait.  They may arrive at the next grid barrier only after those that did
 * wait have passed this one (kk_barrier_passed): named barrier 4 would otherwise count the arrival
 * twice. */
__device__ __forceinline__ void kk_grid_pass() {
    asm volatile("bar.arrive 4, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
}

/* Waits until all blocks have arrived; what they wrote before can be read after. */
__device__ __forceinline__ void kk_grid_sync(const kk_cu_mega &a, kk_mega_shared &s) {
    kk_grid_arrive(a, s);
    kk_grid_wait(a, s);
}

/* Named barriers with the router warp: rows are normed (5); one row's experts are chosen, or the
 * logits of more rows are complete (6). WAIT false: arrives without waiting. */
template <bool WAIT> __device__ __forceinline__ void kk_barrier_normed() {
    if (WAIT)
        asm volatile("bar.sync 5, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
    else
        asm volatile("bar.arrive 5, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
}
template <bool WAIT> __device__ __forceinline__ void kk_barrier_chosen(int threads) {
    if (WAIT)
        asm volatile("bar.sync 6, %0;" ::"r"(threads) : "memory");
    else
        asm volatile("bar.arrive 6, %0;" ::"r"(threads) : "memory");
}

/* Named barriers between the two groups: the experts' input rows are staged (8), the active experts
 * are listed (9). */
template <bool WAIT> __device__ __forceinline__ void kk_barrier_staged() {
    if (WAIT)
        asm volatile("bar.sync 8, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
    else
        asm volatile("bar.arrive 8, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
}
template <bool WAIT> __device__ __forceinline__ void kk_barrier_listed() {
    if (WAIT)
        asm volatile("bar.sync 9, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
    else
        asm volatile("bar.arrive 9, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
}
/* Group 1 has passed a grid barrier that group 0 did not wait for. */
template <bool WAIT> __device__ __forceinline__ void kk_barrier_passed() {
    if (WAIT)
        asm volatile("bar.sync 11, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
    else
        asm volatile("bar.arrive 11, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
}
/* Group 1 alone: input rows of the dense down projection are staged. */
__device__ __forceinline__ void kk_barrier_dense() {
    asm volatile("bar.sync 10, 256;" ::: "memory");
}

/* Copies a layer's pointers from the kernel parameter to shared memory, word by word, by one
 * warp. */
__device__ __forceinline__ void kk_mega_copy_layer(const kk_cu_mega &a, kk_mega_shared &s,
                                                   int layer) {
#pragma unroll 1
    for (int i = kk_tid() % KK_WARP; i < (int)(sizeof(kk_cu_mega_layer) / 4); i += KK_WARP)
        ((uint32_t *)&s.layer[layer & 1])[i] = ((const uint32_t *)&a.layer[layer])[i];
}

/* The poller warp's loop over n grid barriers, `per` of them in a layer and `before` before the
 * first layer.  At a layer's first barrier it also copies the next layer's pointers; at the second,
 * attention has read its pages and producers may go on.  It signals first: the release waits for
 * all copies in flight. */
template <class S>
__device__ __forceinline__ void kk_grid_poll(const kk_cu_mega &a, kk_mega_shared &s, int n, int per,
                                             int before) {
    const bool first = kk_tid() % KK_WARP == 0;
#pragma unroll 1
    for (int i = 0, at = -before, layer = 0; i < n; i++) {
        asm volatile("bar.sync 3, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
        if (first)
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.barrier) : "memory");
        if (at == 0 && layer + 1 < a.n_layer) kk_mega_copy_layer(a, s, layer + 1);
        if (at == 1 && first) kk_producer_until(s, layer, MEGA_EXPERTS);
        if (++at == per) {
            at = 0;
            layer++;
        }
        if (first) {
            const uint32_t target = (uint32_t)(i + 1) * gridDim.x;
            uint32_t seen;
            /* Acquire ordering: a single row's data is read with ld.cg, past L1, so a relaxed load
             * is enough; several rows are read through L1, which the acquire invalidates. */
            do
                if (S::ONE)
                    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                                 : "=r"(seen)
                                 : "l"(a.barrier)
                                 : "memory");
                else
                    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                                 : "=r"(seen)
                                 : "l"(a.barrier)
                                 : "memory");
            while (seen < target);
        }
        __syncwarp();
        asm volatile("bar.arrive 4, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
    }
}

/* The last block to leave resets the counters to 0 for the next launch.  n: grid barriers so
 * far. */
__device__ __forceinline__ void kk_grid_leave(const kk_cu_mega &a, kk_mega_shared &s, int n) {
    kk_sync();
    if (kk_tid() == 0) {
        kk_grid_mark(a, s);
        if (atomicAdd(a.barrier, 1u) + 1 == (uint32_t)(n + 1) * gridDim.x)
            a.barrier[0] = a.barrier[KK_MEGA_ROUTED] = 0;
    }
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Rows of bf16 activations, in shared memory where they fit and in global memory otherwise. */
struct kk_acts_at {
    const char *base;
    int stride;   /* bytes */
    bool in_smem; /* in shared memory */
};

/* Where rows are read from: at smem, if they fit before `end`. One row always fits, and needs no
 * padding against bank conflicts. */
template <class S>
__device__ __forceinline__ kk_acts_at kk_stage_at(char *smem, const char *end, const uint16_t *x,
                                                  int n_rows, int n_in) {
    const int stride = S::ONE ? n_in * 2 : kk_stage_stride(n_in);
    if (S::ONE || end - smem >= (long)n_rows * stride) return kk_acts_at{smem, stride, true};
    return kk_acts_at{(const char *)x, n_in * 2, false};
}

/* Asynchronous copy of 16 bytes to shared memory, past L1; and the wait for all of them. */
__device__ __forceinline__ void kk_cp_async16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void kk_cp_async_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Copies the rows to shared memory.  The first `skip` warps do other work and do not call this. */
template <class S>
__device__ __forceinline__ void kk_stage_rows(const kk_acts_at &at, const uint16_t *x, int n_rows,
                                              int n_in, int skip = 0) {
    if (!S::ONE && !at.in_smem) return;
    const int per = n_in / 8, threads = KK_MEGA_THREADS - skip * KK_WARP;
    const uint32_t to = kk_shared(at.base);
#pragma unroll 1
    for (int i = kk_tid() - skip * KK_WARP; i < n_rows * per; i += threads) {
        const int r = S::ONE ? 0 : i / per;
        kk_cp_async16(to + r * at.stride + (i - r * per) * 16, (const uint4 *)x + i);
    }
    kk_cp_async_wait();
}

/* ---- products ----------------------------------------------------------------------------- */

/* c (rows 0 to 7) and, if both, d (rows 8 to 15) += n steps from the ring times activations from lo
 * and hi on.  Slots that are not full are loaded whole; steps past n are not multiplied. */
template <class S>
__device__ __forceinline__ void kk_mega_product(float c[4], float d[4], kk_consumer &f,
                                                const char *lo, const char *hi, int n, bool in_smem,
                                                bool both) {
    constexpr int CHUNK = S::CHUNK;
    const uint32_t lane = ((uint32_t)kk_tid() % KK_WARP) * 16;
#pragma unroll 1
    for (; n > 0; n -= CHUNK) {
        uint4 one[CHUNK], two[CHUNK], x[CHUNK], y[CHUNK];
        if (S::ONE || in_smem) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                x[i] = kk_lds(kk_shared(lo) +
                              i * 64); /* reads past a row's end stay inside shared memory */
                y[i] = S::HIGH && both ? kk_lds(kk_shared(hi) + i * 64) : x[i];
            }
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const int at = min(i, n - 1) * 64;
                x[i] = *(const uint4 *)(lo + at);
                y[i] = S::HIGH && both ? *(const uint4 *)(hi + at) : x[i];
            }
        }
        const uint32_t slot = kk_consumer_wait<S>(f) + lane;
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            one[i] = kk_lds(slot + i * 512);
            two[i] = kk_lds(slot + (CHUNK + i) * 512);
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            if (i >= n) break;
            kk_step_rows(c, one[i], two[i], x[i]);
            if (S::HIGH && both) kk_step_rows(d, one[i], two[i], y[i]);
        }
        kk_consumer_release<S>(f);
        lo += CHUNK * 64;
        hi += CHUNK * 64;
    }
}

/* Loads the activations of N steps: rows lo and, if both, hi.  n: steps before the rows' end, past
 * which shared memory may be read and global memory may not. */
template <class S, int N>
__device__ __forceinline__ void kk_mega_load_rows(uint4 (&x)[N], uint4 (&y)[N], const char *lo,
                                                  const char *hi, int n, bool in_smem, bool both) {
    if (S::ONE || in_smem) {
        const uint32_t a = kk_shared(lo), b = kk_shared(hi);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = kk_lds(a + i * 64);
            y[i] = S::HIGH && both ? kk_lds(b + i * 64) : x[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at = min(i, n - 1) * 64;
            x[i] = *(const uint4 *)(lo + at);
            y[i] = S::HIGH && both ? *(const uint4 *)(hi + at) : x[i];
        }
    }
}

/* The same of packed weights: n steps of one slot, a few at a time.  slot: the shared address of
 * this warp's part.  Loads of the last may go on past the n-th step, into other shared memory. */
template <class S, int W>
__device__ __forceinline__ void kk_mega_packed_slot(float c[4], float d[4], uint32_t slot,
                                                    const char *lo, const char *hi, int n,
                                                    bool in_smem, bool both) {
    enum { BATCH = S::HIGH ? 2 : 4, STEP = kk_packing<W>::BYTES };
    const uint32_t lane = (uint32_t)kk_tid() % KK_WARP;
#pragma unroll 1
    for (; n > 0; n -= BATCH) {
        kk_codes<W> one[BATCH], two[BATCH];
        uint32_t p[BATCH], q[BATCH];
        uint4 x[BATCH], y[BATCH];
        kk_mega_load_rows<S>(x, y, lo, hi, n, in_smem, both);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            one[i] = kk_codes_load<W>(slot + i * STEP, lane);
            two[i] = kk_codes_load<W>(slot + i * STEP + S::PART / 2, lane);
            p[i] = kk_scales_load<W>(slot + i * STEP, lane / 4);
            q[i] = kk_scales_load<W>(slot + i * STEP + S::PART / 2, lane / 4);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (i >= n) break;
            const uint4 a = kk_codes_bf16<W>(one[i]), b = kk_codes_bf16<W>(two[i]);
            const kk_scales s = kk_scales_of<W>(p[i]), t = kk_scales_of<W>(q[i]);
            kk_packed_rows<W, S::ONE>(c, a, b, s, t, x[i]);
            if (S::HIGH && both) kk_packed_rows<W, S::ONE>(d, a, b, s, t, y[i]);
        }
        slot += BATCH * STEP;
        lo += BATCH * 64;
        hi += BATCH * 64;
    }
}

/* kk_mega_product of packed weights. */
template <class S>
__device__ __forceinline__ void kk_mega_packed_product(float c[4], float d[4], kk_consumer &f,
                                                       const char *lo, const char *hi, int n,
                                                       bool in_smem, bool both, int encoding) {
    const int chunk = S::chunk(kk_words_of(encoding));
#pragma unroll 1
    for (; n > 0; n -= chunk) {
        const uint32_t slot = kk_consumer_wait<S>(f);
        const int steps = min(n, chunk);
        kk_with_packing(encoding, [&](auto p) {
            kk_mega_packed_slot<S, decltype(p)::ENCODING>(c, d, slot, lo, hi, steps, in_smem, both);
        });
        kk_consumer_release<S>(f);
        lo += chunk * 64;
        hi += chunk * 64;
    }
}

/* ---- norms -------------------------------------------------------------------------------- */

/* Norms and residuals with the operation order of kk_between_row (rows.cuh). A row of up to 4096
 * values lies in the registers of 512 threads, four per 2048 and thread. */
typedef kk_row<2> kk_mega_row;

__device__ __forceinline__ kk_mega_row kk_mega_load(const float *p, int dim) {
    kk_mega_row r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = i * KK_ROW_SPAN + 4 * kk_tid();
        const float4 f = at < dim ? __ldcg((const float4 *)(p + at)) : make_float4(0, 0, 0, 0);
        r.v[4 * i] = f.x;
        r.v[4 * i + 1] = f.y;
        r.v[4 * i + 2] = f.z;
        r.v[4 * i + 3] = f.w;
    }
    return r;
}

/* Stores values [from, end) of a normed row as bf16: x * inv * w * times. */
__device__ __forceinline__ void kk_mega_put(uint16_t *p, const kk_mega_row &x, float inv,
                                            const kk_mega_row &w, float times, int end,
                                            int from = 0) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = i * KK_ROW_SPAN + 4 * kk_tid();
        float y[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            y[k] = __fmul_rn(__fmul_rn(x.v[4 * i + k], inv), w.v[4 * i + k]);
            if (times != 1.0f) y[k] = __fmul_rn(y[k], times);
        }
        if (at >= from && at < end)
            *(uint2 *)(p + at - from) = make_uint2(kk_dbf16x2(y[0], y[1]), kk_dbf16x2(y[2], y[3]));
    }
}

/* x += norm(y; w): the residual after attention. */
__device__ __forceinline__ void kk_add_attention(kk_mega_row &x, kk_mega_row &y,
                                                 const kk_mega_row &w, int dim, float eps,
                                                 float *sums) {
    kk_scale(y, y, kk_inv_rms(y, dim, eps, sums), w);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = __fadd_rn(x.v[i], y.v[i]);
}

/* 1 / sqrt(hidden), a constant factor of the router's input. */
__device__ __forceinline__ float kk_router_root() {
    return __fdiv_rn(1.0f, __fsqrt_rn((float)KK_CU_26B_HIDDEN));
}

/* Row kk_bid() after attention: its residual, and its norms for the dense part (z1), the experts
 * (z2) and the router (z3). */
__device__ __forceinline__ void kk_mega_middle(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                               float (*sums)[16]) {
    const int dim = KK_CU_26B_HIDDEN;
    const size_t at = (size_t)kk_bid() * (size_t)dim;
    kk_mega_row y = kk_mega_load(a.y + at, dim), x = kk_mega_load(a.x + at, dim);
    const kk_mega_row w = kk_mega_load(l.norm_att, dim);
    const kk_mega_row w1 = kk_mega_load(l.norm_ffn, dim), w2 = kk_mega_load(l.norm_experts, dim);
    const kk_mega_row w3 = kk_mega_load(l.router_scale, dim);
    kk_add_attention(x, y, w, dim, a.eps, sums[0]);
    kk_row_store(a.x + at, x, dim);
    const float inv = kk_inv_rms(x, dim, a.eps, sums[1]);
    kk_mega_put(a.z1 + at, x, inv, w1, 1.0f, dim);
    kk_mega_put(a.z2 + at, x, inv, w2, 1.0f, dim);
    kk_mega_put(a.z3 + at, x, inv, w3, kk_router_root(), dim);
}

/* The end of a layer: x = (x + norm(norm(y; wa) + norm(b; wb); w)) * scale, y the dense branch and
 * b the experts'. */
__device__ __forceinline__ void kk_tail_row(kk_mega_row &y, kk_mega_row &b, kk_mega_row &x,
                                            const kk_mega_row &wa, const kk_mega_row &wb,
                                            const kk_mega_row &w, float scale, int dim, float eps,
                                            float (*sums)[16]) {
    kk_row_sum_begin(y, sums[0]);
    kk_row_sum_begin(b, sums[1]);
    kk_sync();
    kk_scale(y, y, kk_row_sum_end(dim, eps, sums[0]), wa);
    kk_scale(b, b, kk_row_sum_end(dim, eps, sums[1]), wb);
#pragma unroll
    for (int i = 0; i < 8; i++) y.v[i] = __fadd_rn(y.v[i], b.v[i]);
    kk_scale(y, y, kk_inv_rms(y, dim, eps, sums[2]), w);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), scale);
}

/* Row kk_bid() at the end of a layer, and the norm of the next layer where there is one. */
__device__ __forceinline__ void kk_mega_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                             const float *next, float (*sums)[16]) {
    const int dim = KK_CU_26B_HIDDEN;
    const size_t at = (size_t)kk_bid() * (size_t)dim;
    kk_mega_row y = kk_mega_load(a.dense + at, dim), b = kk_mega_load(a.moe + at, dim);
    kk_mega_row x = kk_mega_load(a.x + at, dim);
    const kk_mega_row wa = kk_mega_load(l.norm_dense, dim), wb = kk_mega_load(l.norm_moe, dim);
    const kk_mega_row w = kk_mega_load(l.norm_out, dim);
    const kk_mega_row w1 =
        kk_mega_load(next ? next : l.norm_out, dim); /* loads behind a branch would be serialised */
    kk_tail_row(y, b, x, wa, wb, w, l.scale, dim, a.eps, sums);
    kk_row_store(a.x + at, x, dim);
    if (l.tap_at) kk_row_store(a.tap + *l.tap_at + (size_t)kk_bid() * a.tap_stride, x, dim);
    if (next) kk_mega_put(a.z1 + at, x, kk_inv_rms(x, dim, a.eps, sums[3]), w1, 1.0f, dim);
}

/* Norms one row x into row kk_bid() of z1. */
__device__ __forceinline__ void kk_mega_norm(const kk_cu_mega &a, const float *x, const float *w,
                                             float (*sums)[16]) {
    const int dim = KK_CU_26B_HIDDEN;
    const kk_mega_row r = kk_mega_load(x, dim), by = kk_mega_load(w, dim);
    const float inv = kk_inv_rms(r, dim, a.eps, sums[0]);
    kk_mega_put(a.z1 + (size_t)kk_bid() * (size_t)dim, r, inv, by, 1.0f, dim);
}

/* kk_mega_middle for a single row, which every block computes redundantly: the dense part's and the
 * experts' inputs, and the slice of the router's input that this block's piece of the router takes,
 * go to its own shared memory.  x is read from a.x and written to a.z1 by block 0, because other
 * blocks may still be reading a.x.  Norm weights are loaded before the grid barrier. */
template <class S>
__device__ __forceinline__ void kk_one_middle(const kk_cu_mega &a, kk_mega_shared &s, int layer,
                                              char *smem) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const int dim = S::HIDDEN;
    kk_grid_arrive(a, s);
    const kk_mega_row w = kk_mega_load(l.norm_att, dim);
    const kk_mega_row w1 = kk_mega_load(l.norm_ffn, dim), w2 = kk_mega_load(l.norm_experts, dim);
    const kk_mega_row w3 = kk_mega_load(l.router_scale, dim);
    kk_grid_wait(a, s);
    kk_mega_row y = kk_mega_load(a.y, dim), x = kk_mega_load(a.x, dim);
    kk_add_attention(x, y, w, dim, a.eps, s.sums[0]);
    if (kk_bid() == 0) kk_row_store((float *)a.z1, x, dim);
    const float inv = kk_inv_rms(x, dim, a.eps, s.sums[1]);
    kk_mega_put((uint16_t *)(smem + KK_ONE_ROW), x, inv, w1, 1.0f, dim);
    kk_mega_put((uint16_t *)(smem + KK_ONE_EXPERTS), x, inv, w2, 1.0f, dim);
    const int from = kk_bid() % KK_SLICES * KK_ONE_SLICE;
    kk_mega_put((uint16_t *)(smem + KK_ONE_PIECE), x, inv, w3, kk_router_root(),
                from + KK_ONE_SLICE, from);
}

/* kk_mega_tail for a single row: the next product's input goes to each block's shared memory. */
template <class S>
__device__ __forceinline__ void kk_one_tail(const kk_cu_mega &a, kk_mega_shared &s, int layer,
                                            const float *next, char *smem) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const int dim = S::HIDDEN;
    kk_grid_arrive(a, s);
    const kk_mega_row wa = kk_mega_load(l.norm_dense, dim), wb = kk_mega_load(l.norm_moe, dim);
    const kk_mega_row w = kk_mega_load(l.norm_out, dim);
    const kk_mega_row w1 = kk_mega_load(next ? next : l.norm_out, dim);
    kk_grid_wait(a, s);
    kk_mega_row y = kk_mega_load(a.dense, dim), b = kk_mega_load(a.moe, dim);
    kk_mega_row x = kk_mega_load((const float *)a.z1, dim);
    kk_tail_row(y, b, x, wa, wb, w, l.scale, dim, a.eps, s.sums);
    if (kk_bid() == 0) kk_row_store(a.x, x, dim);
    if (kk_bid() == 0 && l.tap_at) kk_row_store(a.tap + *l.tap_at, x, dim);
    const float inv = kk_inv_rms(x, dim, a.eps, s.sums[3]);
    kk_mega_put((uint16_t *)(smem + KK_ONE_ROW), x, inv, w1, 1.0f, dim);
}

/* The first layer's input norm of a single row. */
template <class S>
__device__ __forceinline__ void kk_one_norm(const kk_cu_mega &a, kk_mega_shared &s, char *smem) {
    const int dim = S::HIDDEN;
    const kk_mega_row r = kk_mega_load(a.x, dim), by = kk_mega_load(s.layer[0].norm_in, dim);
    const float inv = kk_inv_rms(r, dim, a.eps, s.sums[0]);
    kk_mega_put((uint16_t *)(smem + KK_ONE_ROW), r, inv, by, 1.0f, dim);
}

/* ---- units -------------------------------------------------------------------------------- */

/* The sum of output o and row r over the eight slices, in order. */
__device__ __forceinline__ float kk_mega_sum(const float *part, int pitch, int o, int r) {
    part += o * pitch + r;
    float v = part[0];
#pragma unroll
    for (int k = 1; k < KK_SLICES; k++) v = __fadd_rn(v, part[k * 16 * pitch]);
    return v;
}

/* Where a unit's outputs go in phases that store plain sums; pitch: floats of an output row. */
template <class S>
__device__ __forceinline__ float *kk_mega_out(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                              int phase, int unit, int &pitch) {
    int o = unit * 16;
    float *out = phase == MEGA_HEAD ? a.head_out : phase == MEGA_DENSE ? a.dense : a.y;
    pitch = phase == MEGA_HEAD ? a.vocab : S::HIDDEN;
    if (phase == MEGA_QKV) {
        out = l.store.q;
        pitch = l.q_strips * 8;
        if (o >= pitch) {
            o -= pitch;
            pitch = l.kv_strips * 8;
            out = (float *)l.store.k;
            if (o >= pitch) {
                o -= pitch;
                out = (float *)l.store.v;
            }
        }
    }
    return out + o;
}

/* What is done with a unit's sums.  Phases that do the same share one instantiation, to fit the
 * instruction cache. */
typedef enum {
    KK_KIND_PLAIN, /* QKV, OUT, DENSE: stored as they are */
    KK_KIND_GLU,   /* GATE, EXPERTS */
    KK_KIND_DOWN,
    KK_KIND_HEAD,
} kk_mega_kind;

/* Adds up a unit's slices and stores the result; by one warp, for all phases but DOWN. */
template <class S, int KIND>
__device__ __forceinline__ void kk_mega_finish(const kk_cu_mega &a, const kk_mega_shared &s,
                                               int layer, int phase, int unit, const float *part) {
    const int lane = kk_tid() % KK_WARP, part_pitch = S::pitch(a);
    if (KIND != KK_KIND_GLU) {
        int pitch;
        float *out = kk_mega_out<S>(a, s.layer[layer & 1], phase, unit, pitch);
        const int n = (KIND == KK_KIND_HEAD ? S::logits(a) : S::rows(a)) * 16;
#pragma unroll 1
        for (int i = lane; i < n; i += KK_WARP) {
            const float v = kk_mega_sum(part, part_pitch, i % 16, i / 16);
            out[(size_t)(i / 16) * pitch + i % 16] =
                KIND == KK_KIND_HEAD ? kk_dsoftcap(v, a.cap) : v;
        }
        return;
    }
    const bool expert = phase == MEGA_EXPERTS;
    const int per = S::EXPERT_FFN / 8, e = expert ? unit / per : 0;
    const int from = expert ? s.choice.first[e] : 0;
    const int n = S::ONE ? 1 : expert ? s.choice.first[e + 1] - from : a.n_rows;
    uint16_t *out = expert ? a.expert_act + (unit - e * per) * 8 : a.act + unit * 8;
#pragma unroll 1
    for (int i = lane; i < n * 8; i += KK_WARP) {
        const int r = i / 8, k = i % 8;
        const uint16_t y = kk_dbf16(kk_glu_of(kk_mega_sum(part, part_pitch, k, r),
                                              kk_mega_sum(part, part_pitch, 8 + k, r), 0));
        out[expert ? s.choice.pair[from + r] * S::EXPERT_FFN + k : r * S::FFN + k] = y;
    }
}

/* The activations that a warp multiplies: this lane's row pointers, and the number of rows. */
struct kk_mega_rows {
    const char *lo, *hi;
    int first, n; /* of the (row, expert) pairs of one expert, in DOWN */
    bool in_smem;
};

/* The rows of a unit.  expert: index among the active experts, -1 for a matrix that all rows
 * share. */
template <class S, int KIND>
__device__ __forceinline__ kk_mega_rows kk_mega_rows_of(const kk_cu_mega &a,
                                                        const kk_mega_shared &s, int expert,
                                                        kk_acts_at x) {
    const int tid = kk_tid(), g = tid % KK_WARP / 4, t = tid % 4;
    const kk_choice *c = &s.choice;
    kk_mega_rows r = {NULL, NULL, 0, KIND == KK_KIND_HEAD ? S::logits(a) : S::rows(a), x.in_smem};
    if (S::ONE) {
        r.first = KIND == KK_KIND_DOWN ? expert : 0;
        r.lo = r.hi = x.base + (KIND == KK_KIND_DOWN ? expert * x.stride : 0) + t * 16;
        return r;
    }
    int r0 = g < r.n ? g : 0, r1 = g + 8 < r.n ? g + 8 : 0;
    if (KIND == KK_KIND_DOWN || (KIND == KK_KIND_GLU && expert >= 0)) {
        const short *of = KIND == KK_KIND_DOWN ? c->pair : c->pair_row;
        r.first = c->first[expert];
        r.n = c->first[expert + 1] - r.first;
        r0 = of[r.first + (g < r.n ? g : 0)];
        r1 = of[r.first + (g + 8 < r.n ? g + 8 : 0)];
    }
    r.lo = x.base + (size_t)r0 * x.stride + t * 16;
    r.hi = S::HIGH ? x.base + (size_t)r1 * x.stride + t * 16 : r.lo;
    return r;
}

/* DOWN: stores an expert's sums by (row, expert) pair.  kk_mega_add_slots then adds up a row's
 * experts in the router's order. */
template <class S>
__device__ __forceinline__ void kk_mega_put_pairs(const kk_mega_shared &s, float *to,
                                                  const kk_mega_rows &r, const float c[4],
                                                  const float d[4]) {
    const int g = kk_tid() % KK_WARP / 4, t = kk_tid() % 4;
#pragma unroll
    for (int i = 0; i < (S::ONE ? 1 : S::HIGH ? 4 : 2); i++) {
        const int row = 2 * t + i % 2 + i / 2 * 8;
        if (row >= r.n) continue;
        float *pair = to + (S::ONE ? r.first : s.choice.pair[r.first + row]) * 16 + g;
        pair[0] = i < 2 ? c[i] : d[i - 2];
        pair[8] = i < 2 ? c[i + 2] : d[i];
    }
}

template <class S>
__device__ __forceinline__ void kk_mega_add_slots(const kk_cu_mega &a, const kk_mega_shared &s,
                                                  int unit, const float *from) {
    const int threads = S::ONE ? KK_WARP : 256; /* that call this function */
#pragma unroll 1
    for (int i = kk_tid() % threads; i < S::rows(a) * 16; i += threads) {
        const int r = i / 16;
        float y = 0;
#pragma unroll 8
        for (int k = 0; k < S::USED; k++) {
            const int p = r * S::USED + k;
            y = __fmaf_rn(s.choice.weight[p], from[p * 16 + i % 16], y);
        }
        a.moe[(size_t)r * S::HIDDEN + unit * 16 + i % 16] = y;
    }
}

/* One unit of any phase but DOWN: this warp's K slice of its sums. */
template <class S, int KIND>
__device__ __forceinline__ void kk_mega_slice_of(const kk_cu_mega &a, const kk_mega_shared &s,
                                                 kk_consumer &f, float *to, int layer, int phase,
                                                 int unit, kk_acts_at x) {
    const int tid = kk_tid(), slice = tid / KK_WARP % KK_SLICES, t = tid % 4;
    const int steps = kk_mega_steps<S>(a, s, layer, phase), pitch = S::pitch(a);
    const int from = kk_slice(steps, slice), n = kk_slice(steps, slice + 1) - from;
    const int expert = phase == MEGA_EXPERTS ? unit / (S::EXPERT_FFN / 8) : -1;
    const kk_mega_rows r = kk_mega_rows_of<S, KIND>(a, s, expert, x);
    float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
    const int encoding = kk_mega_encoding<S>(a, s, layer, phase, unit);
    const int words = kk_words_of(encoding), chunk = S::chunk(words);
    if (S::PACKED)
        kk_mega_packed_product<S>(c, d, f, r.lo + from * 64, r.hi + from * 64, n, r.in_smem,
                                  r.n > 8, encoding);
    else
        kk_mega_product<S>(c, d, f, r.lo + from * 64, r.hi + from * 64, n, r.in_smem, r.n > 8);
    kk_consumer_skip<S>(f, kk_mega_slots<S>(steps, false, words) - (n + chunk - 1) / chunk);
    float *at = to + (slice * 16 + tid % KK_WARP / 4) * pitch + 2 * t;
    if (2 * t < pitch) {
        *(float2 *)at = make_float2(c[0], c[1]);
        *(float2 *)(at + 8 * pitch) = make_float2(c[2], c[3]);
    }
    if (S::HIGH && 2 * t + 8 < pitch) {
        *(float2 *)(at + 8) = make_float2(d[0], d[1]);
        *(float2 *)(at + 8 * pitch + 8) = make_float2(d[2], d[3]);
    }
}

/* A unit of DOWN: one expert at a time per warp, all of K. */
template <class S>
__device__ __forceinline__ void kk_mega_pairs_of(const kk_cu_mega &a, const kk_mega_shared &s,
                                                 kk_consumer &f, float *to, int layer,
                                                 kk_acts_at x) {
    const int steps = S::EXPERT_FFN / KK_STEP, slice = kk_mega_slice();
    const int encoding = kk_mega_encoding<S>(a, s, layer, MEGA_DOWN, 0);
#pragma unroll 1
    for (int e = slice; e < s.choice.n_active + slice; e += KK_SLICES) {
        if (e >= s.choice.n_active) {
            kk_consumer_skip<S>(f, kk_mega_slots<S>(steps, true, kk_words_of(encoding)));
            break;
        }
        const kk_mega_rows r = kk_mega_rows_of<S, KK_KIND_DOWN>(a, s, e, x);
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        if (S::PACKED)
            kk_mega_packed_product<S>(c, d, f, r.lo, r.hi, steps, r.in_smem, r.n > 8, encoding);
        else
            kk_mega_product<S>(c, d, f, r.lo, r.hi, steps, r.in_smem, r.n > 8);
        kk_mega_put_pairs<S>(s, to, r, c, d);
    }
}

/* All units of a phase.  Units alternate between two buffers of partial sums; nth counts units, and
 * goes on from phase to phase where no barrier comes between. */
template <class S, int KIND>
__device__ __forceinline__ int kk_mega_phase_units(const kk_cu_mega &a, kk_mega_shared &s,
                                                   kk_consumer &f, float *parts, int layer,
                                                   int phase, kk_acts_at x, int nth = 0) {
    const int units = kk_mega_units<S>(a, s, layer, phase), size = S::sums(a);
    kk_consumer_open<S>(f);
#pragma unroll 1
    for (int u = kk_mega_first<S>(a, phase, kk_mega_group()); u < units;
         u += kk_mega_stride<S>(phase), nth++) {
        float *to = parts + (kk_mega_group() * 2 + (nth & 1)) * size;
        if (KIND == KK_KIND_DOWN)
            kk_mega_pairs_of<S>(a, s, f, to, layer, x);
        else
            kk_mega_slice_of<S, KIND>(a, s, f, to, layer, phase, u, x);
        kk_group_barrier<S>(f);
        if (KIND == KK_KIND_DOWN && !S::ONE)
            kk_mega_add_slots<S>(a, s, u, to);
        else if (nth % KK_SLICES == kk_mega_slice()) {
            if (KIND == KK_KIND_DOWN)
                kk_mega_add_slots<S>(a, s, u, to);
            else
                kk_mega_finish<S, KIND>(a, s, layer, phase, u, to);
        }
    }
    return nth;
}

/* ---- the router --------------------------------------------------------------------------- */

/* The router's product is cut into (strip, K slice) pieces, at most one per block where there are
 * enough blocks: every block waits for all of them. */
enum {
    KK_ROUTER_PIECES = KK_CU_26B_EXPERTS / 8 * KK_SLICES,
    KK_ROUTER_STEPS = KK_CU_26B_HIDDEN / KK_STEP / KK_SLICES,
};
static_assert(KK_ROUTER_STEPS * KK_STEP * KK_SLICES == KK_CU_26B_HIDDEN, "slices of one length");

/* This block's piece of the router's weights, copied to shared memory one layer ahead. */
struct kk_router_smem {
    uint4 piece[KK_ROUTER_STEPS * KK_WARP];
};

__device__ __forceinline__ const uint4 *kk_router_at(const kk_cu_mega_layer &l, int piece) {
    return (const uint4 *)l.router + piece * KK_ROUTER_STEPS * KK_WARP;
}

__device__ __forceinline__ void kk_copy_router(kk_router_smem &smem, const kk_cu_mega_layer &l) {
    const int lane = kk_tid() % KK_WARP;
    if (kk_bid() >= KK_ROUTER_PIECES) return;
    const uint4 *from = kk_router_at(l, kk_bid()) + lane;
#pragma unroll
    for (int i = 0; i < KK_ROUTER_STEPS; i++)
        kk_cp_async16(kk_shared(smem.piece + i * KK_WARP + lane), from + i * KK_WARP);
}

/* The partial sums of a piece: out[slice][row][expert]. kk_choose_row adds up the slices. */
template <class S>
__device__ __forceinline__ void kk_router_piece(const kk_cu_mega &a, const uint4 *w, int piece) {
    enum { STEPS = KK_ROUTER_STEPS, AT_ONCE = S::HIGH ? 4 : STEPS };
    const int lane = kk_tid() % KK_WARP, g = lane / 4, t = lane % 4, slice = piece % KK_SLICES;
    const uint16_t *x = a.z3 + slice * STEPS * KK_STEP + t * 8;
    const uint16_t *lo = x + (g < a.n_rows ? g : 0) * S::HIDDEN;
    const uint16_t *hi = x + (g + 8 < a.n_rows ? g + 8 : 0) * S::HIDDEN;
    float c[4] = {0, 0, 0, 0};
#pragma unroll
    for (int from = 0; from < STEPS; from += AT_ONCE) {
        uint4 as[AT_ONCE], bs[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE && from + i < STEPS; i++) {
            as[i] = __ldcg((const uint4 *)(lo + (from + i) * KK_STEP));
            if (S::HIGH) bs[i] = __ldcg((const uint4 *)(hi + (from + i) * KK_STEP));
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE && from + i < STEPS; i++)
            kk_step<S::HIGH>(c, w[(from + i) * KK_WARP + lane], as[i], bs[i]);
    }
    float *out = a.logits + slice * a.n_rows * S::EXPERTS + piece / KK_SLICES * 8 + 2 * t;
    if (g < a.n_rows) *(float2 *)(out + g * S::EXPERTS) = make_float2(c[0], c[1]);
    if (S::HIGH && g + 8 < a.n_rows)
        *(float2 *)(out + (g + 8) * S::EXPERTS) = make_float2(c[2], c[3]);
}

template <class S>
__device__ __forceinline__ void kk_few_router(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                              const kk_router_smem &smem) {
#pragma unroll 1
    for (int p = kk_bid(); p < KK_ROUTER_PIECES; p += (int)gridDim.x)
        kk_router_piece<S>(a, p == kk_bid() ? smem.piece : kk_router_at(l, p), p);
}

/* One row: starts the copy of this block's piece to shared memory. */
__device__ __forceinline__ void kk_one_copy_router(const kk_cu_mega_layer &l, char *smem) {
    enum { WORDS = KK_ONE_SLICE / 32 * KK_WARP };
    const int tid = kk_tid();
    if (tid >= WORDS || kk_bid() >= KK_ROUTER_PIECES) return;
    kk_cp_async16(kk_shared(smem) + KK_ONE_ROUTER + tid * 16, kk_router_at(l, kk_bid()) + tid);
}

/* One row: the partial sums of this block's piece. */
__device__ __forceinline__ void kk_one_router(const kk_cu_mega &a, const char *smem) {
    const int p = kk_bid(), lane = kk_tid() % KK_WARP;
    if (p >= KK_ROUTER_PIECES) return;
    const uint32_t w = kk_shared(smem + KK_ONE_ROUTER) + lane * 16;
    const uint32_t x = kk_shared(smem + KK_ONE_PIECE) + lane % 4 * 16;
    float c[4] = {0, 0, 0, 0};
    enum { STEPS = KK_ONE_SLICE / 32, AT_ONCE = 4 };
#pragma unroll
    for (int from = 0; from < STEPS; from += AT_ONCE) {
        uint4 ws[AT_ONCE], xs[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE && from + i < STEPS; i++) {
            ws[i] = kk_lds(w + (from + i) * 512);
            xs[i] = kk_lds(x + (from + i) * 64);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE && from + i < STEPS; i++)
            kk_step<false>(c, ws[i], xs[i], make_uint4(0, 0, 0, 0));
    }
    if (lane < 4) {
        float *out = a.logits + p % KK_SLICES * KK_CU_26B_EXPERTS + p / KK_SLICES * 8 + 2 * lane;
        *(float2 *)out = make_float2(c[0], c[1]);
    }
}

/* Grid barrier of the router warps: all pieces are in global memory.  It has a counter of its own,
 * so that consumers do not wait for it.  n: how often it was passed before. */
__device__ __forceinline__ void kk_grid_routed(const kk_cu_mega &a, int n) {
    __syncwarp();
    if (kk_tid() % KK_WARP == 0) {
        uint32_t *count = a.barrier + KK_MEGA_ROUTED;
        const int blocks = min((int)KK_ROUTER_PIECES, (int)gridDim.x);
        if (kk_bid() < blocks)
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
        uint32_t seen;
        do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
        while (seen < (uint32_t)((n + 1) * blocks));
    }
    __syncwarp();
}

#endif
