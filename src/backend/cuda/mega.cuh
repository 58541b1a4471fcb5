/* mega.cuh - a forward over 1 to 16 rows as one kernel that stays on the chip.
 *
 * One block per multiprocessor walks through all layers together with the others, a grid barrier
 * between dependent stages.  What a graph of kernels loses at every stage (its start, its last
 * strips, the first bytes from memory) is hidden here: rings of weights run on across stages
 * (mega_feed.cuh).
 *
 * All that is needed from stage to stage lies in registers and shared memory.  What lies elsewhere
 * (local memory, parameters of a layer not met before) has left the caches by the time it is
 * needed, because weights stream through them: a layer's pointers are copied to shared memory a
 * layer ahead, norms' weights are fetched a stage ahead.
 *
 * Without its bytes a forward would still take most of its time: a stage is a chain of dependent
 * instructions, trips to the cache and a barrier.  So weights are the 16 of m16n8k16 and rows the
 * 8, a product of few rows takes one instruction per 512 bytes, and all loads of a slot go before
 * its products.  (With rows as the 16, as prompts have them, the sums have the same bits.)  One row
 * has stages of its own where that saves a trip: every block norms it for itself.
 *
 * Two groups of eight warps work on sixteen outputs at a time; the warps of a group have a slice
 * of K each, so that sums are those of every other kernel here (arith.cuh).
 *
 *   QKV     q, k, v of the normed rows
 *   ...     rows stored, attention by page, pages merged           (attend_few.cuh)
 *   OUT     the output projection
 *   ...     residual, three norms                       (a block per row, or all for one)
 *   GATE    gate and up of the dense part, beside the router, which has a warp of its own
 *   DENSE   the dense second matrix; of a few rows by one group, while the other chooses experts
 *   EXPERTS their gate and up
 *   DOWN    their second matrices, summed by slot
 *   ...     tail and the next norm                      (a block per row, or all for one)
 *   HEAD    after the last layer, where logits are wanted */
#ifndef KK_CUDA_MEGA_CUH
#define KK_CUDA_MEGA_CUH

#include "attend_few.cuh"
#include "mega_feed.cuh"
#include "rows.cuh"

/* Where the router's count lies among the words of a barrier: in a line of its own. */
enum { KK_MEGA_ROUTED = 32 };

/* Rows of a unit's sums in shared memory. */
__host__ __device__ __forceinline__ int kk_mega_pitch(int n_rows) { return (n_rows + 1) / 2 * 2; }

/* Bytes of sums: of each group twice, [slice][16 outputs][rows]; or, in DOWN, [pair][16]. */
__host__ __device__ __forceinline__ int kk_mega_part_bytes(int n_rows, int n_used) {
    const int strips = KK_SLICES * 16 * kk_mega_pitch(n_rows), down = n_rows * n_used * 16;
    return KK_MEGA_GROUPS * 2 * 4 * (strips > down ? strips : down);
}

/* Where one row's parts lie in the room for rows: normed for q, k, v or the dense part (and other
 * rows that are staged); normed for the experts; this block's piece of the router, which is on its
 * way while OUT is worked on; and the slice of the row that it takes. */
enum {
    KK_ONE_ROW = 0,
    KK_ONE_EXPERTS = KK_CU_26B_HIDDEN * 2,
    KK_ONE_ROUTER = 16 * 1024,
    KK_ONE_SLICE = KK_CU_26B_HIDDEN / KK_SLICES,
    KK_ONE_PIECE = KK_ONE_ROUTER + KK_ONE_SLICE / 32 * 512,
    KK_ONE_BYTES = KK_ONE_PIECE + KK_ONE_SLICE * 2,
};

/* ---- barriers ----------------------------------------------------------------------------- */

/* For measurements (bench/gpu), and not there otherwise: what a layer does has to fit the cache of
 * instructions. */
__device__ __forceinline__ void kk_grid_mark(const kk_cu_mega &a, kk_mega_shared &s) {
#ifdef KK_MEGA_TRACE
    if (a.trace && kk_tid() == 0)
        a.trace[(size_t)s.marks++ * gridDim.x + (size_t)kk_bid()] = (uint64_t)clock64();
#else
    (void)a, (void)s;
#endif
}

/* For tests: some warps come late, by so many nanoseconds, so that whoever does not wait for them
 * is found out. */
__device__ __forceinline__ void kk_grid_skew() {
#ifdef KK_MEGA_SKEW
    if ((((uint32_t)clock64() >> 5) + (uint32_t)kk_bid()) % 256 == 0) __nanosleep(KK_MEGA_SKEW);
#endif
}

/* Barriers of all blocks, in two halves.  A warp that does nothing else (the porter) tells the
 * other blocks and waits for them. */
__device__ __forceinline__ void kk_grid_arrive(const kk_cu_mega &a, kk_mega_shared &s) {
    kk_grid_mark(a, s);
    kk_grid_skew();
    asm volatile("bar.arrive 3, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
}
__device__ __forceinline__ void kk_grid_wait(const kk_cu_mega &a, kk_mega_shared &s) {
    asm volatile("bar.sync 4, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
    kk_grid_mark(a, s);
}

/* For warps that need not wait; before they come to the next barrier, those that did have to say so
 * (kk_barrier_passed): else it would be taken for this one. */
__device__ __forceinline__ void kk_grid_pass() {
    asm volatile("bar.arrive 4, %0;" ::"n"((int)KK_MEGA_BARRIER) : "memory");
}

/* All blocks have come this far, and what they wrote can be read. */
__device__ __forceinline__ void kk_grid_sync(const kk_cu_mega &a, kk_mega_shared &s) {
    kk_grid_arrive(a, s);
    kk_grid_wait(a, s);
}

/* Meetings with the router's warp: rows are normed; one row's experts are chosen, or those of more
 * rows can be. */
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

/* Meetings of the two groups: rows for the experts are staged; experts are listed. */
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
/* The second group is past a barrier of all blocks that the first did not wait for. */
template <bool WAIT> __device__ __forceinline__ void kk_barrier_passed() {
    if (WAIT)
        asm volatile("bar.sync 11, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
    else
        asm volatile("bar.arrive 11, %0;" ::"n"((int)KK_MEGA_THREADS) : "memory");
}
/* And of the second group alone: rows of the dense second matrix are staged. */
__device__ __forceinline__ void kk_barrier_dense() {
    asm volatile("bar.sync 10, 256;" ::: "memory");
}

/* A layer's pointers, word by word. */
__device__ __forceinline__ void kk_mega_copy_layer(const kk_cu_mega &a, kk_mega_shared &s,
                                                   int layer) {
#pragma unroll 1
    for (int i = kk_tid() % KK_WARP; i < (int)(sizeof(kk_cu_mega_layer) / 4); i += KK_WARP)
        ((uint32_t *)&s.layer[layer & 1])[i] = ((const uint32_t *)&a.layer[layer])[i];
}

/* The porter's part: `n` barriers, `per` of them in a layer, `before` before the first.  At the
 * first of a layer it fetches the next one's pointers; at the second pages have been read, and
 * weights may be asked for again, but not before others were told: that waits for every copy under
 * way. */
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
            /* What others wrote is not read before this is seen.  One row is read past the near
             * cache only; more rows through it, so that it has to be emptied. */
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

/* The counts are left at 0 for the next launch: the last block to come does it.  n: barriers so
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

__device__ __forceinline__ uint4 kk_lds(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* Rows of bf16 activations, staged in shared memory where they fit and read where they lie
 * otherwise. */
struct kk_acts_at {
    const char *base;
    int stride;   /* bytes */
    bool in_smem; /* in shared memory */
};

/* Where rows are read: at room, if they fit before `end`.  One row always fits, and needs no
 * padding: nothing is read beside it. */
template <class S>
__device__ __forceinline__ kk_acts_at kk_stage_at(char *smem, const char *end, const uint16_t *x,
                                                  int n_rows, int n_in) {
    const int stride = S::ONE ? n_in * 2 : kk_stage_stride(n_in);
    if (S::ONE || end - smem >= (long)n_rows * stride) return kk_acts_at{smem, stride, true};
    return kk_acts_at{(const char *)x, n_in * 2, false};
}

/* Sixteen bytes on their way to shared memory, past the near cache; and all are there. */
__device__ __forceinline__ void kk_cp_async16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void kk_cp_async_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Brings them there.  The first `skip` warps have something else to do, and do not call this. */
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

/* One step of two strips: outputs are the 16, and eight rows the 8. */
__device__ __forceinline__ void kk_step_rows(float c[4], const uint4 &one, const uint4 &two,
                                             const uint4 &x) {
    kk_mma(c, one.x, two.x, one.y, two.y, x.x, x.y);
    kk_mma(c, one.z, two.z, one.w, two.w, x.z, x.w);
}

/* c (rows 0 to 7), d (8 to 15, if both) += n steps from the ring against activations from lo and
 * hi on.  Of a slot that is not full the rest is read, and left out. */
template <class S>
__device__ __forceinline__ void kk_mega_product(float c[4], float d[4], kk_consumer &f,
                                                const char *lo, const char *hi, int n, bool in_smem,
                                                bool both) {
    constexpr int CHUNK = KK_MEGA_CHUNK;
    const uint32_t lane = ((uint32_t)kk_tid() % KK_WARP) * 16;
#pragma unroll 1
    for (; n > 0; n -= CHUNK) {
        uint4 one[CHUNK], two[CHUNK], x[CHUNK], y[CHUNK];
        if (S::ONE || in_smem) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                x[i] = kk_lds(kk_shared(lo) + i * 64); /* staged rows have room behind them */
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

/* ---- norms -------------------------------------------------------------------------------- */

/* The sequences of kk_between_row (rows.cuh), for a row of four values per 2048 and thread. */
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

/* Values from `from` to `end` of a normed row, as bf16. */
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

/* A row after attention: residual. */
__device__ __forceinline__ void kk_add_attention(kk_mega_row &x, kk_mega_row &y,
                                                 const kk_mega_row &w, int dim, float eps,
                                                 float *sums) {
    kk_scale(y, y, kk_inv_rms(y, dim, eps, sums), w);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = __fadd_rn(x.v[i], y.v[i]);
}

/* What the router's input is multiplied with beside its scale. */
__device__ __forceinline__ float kk_router_root() {
    return __fdiv_rn(1.0f, __fsqrt_rn((float)KK_CU_26B_HIDDEN));
}

/* Row kk_bid() after attention, and the norms that the dense part, the experts and the router
 * take. */
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

/* x and both branches at the end of a layer: the new x. */
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

/* Row kk_bid() at the end of a layer, and the norm that follows, if any. */
__device__ __forceinline__ void kk_mega_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                             const float *next, float (*sums)[16]) {
    const int dim = KK_CU_26B_HIDDEN;
    const size_t at = (size_t)kk_bid() * (size_t)dim;
    kk_mega_row y = kk_mega_load(a.dense + at, dim), b = kk_mega_load(a.moe + at, dim);
    kk_mega_row x = kk_mega_load(a.x + at, dim);
    const kk_mega_row wa = kk_mega_load(l.norm_dense, dim), wb = kk_mega_load(l.norm_moe, dim);
    const kk_mega_row w = kk_mega_load(l.norm_out, dim);
    const kk_mega_row w1 = kk_mega_load(next ? next : l.norm_out, dim); /* no branch among loads */
    kk_tail_row(y, b, x, wa, wb, w, l.scale, dim, a.eps, sums);
    kk_row_store(a.x + at, x, dim);
    if (next) kk_mega_put(a.z1 + at, x, kk_inv_rms(x, dim, a.eps, sums[3]), w1, 1.0f, dim);
}

/* A row that only has to be normed, into row kk_bid() of z1. */
__device__ __forceinline__ void kk_mega_norm(const kk_cu_mega &a, const float *x, const float *w,
                                             float (*sums)[16]) {
    const int dim = KK_CU_26B_HIDDEN;
    const kk_mega_row r = kk_mega_load(x, dim), by = kk_mega_load(w, dim);
    const float inv = kk_inv_rms(r, dim, a.eps, sums[0]);
    kk_mega_put(a.z1 + (size_t)kk_bid() * (size_t)dim, r, inv, by, 1.0f, dim);
}

/* The same for one row, by every block for itself: what the dense part and the experts take, and
 * the slice that this block's piece of the router does, go to its shared memory.  The row itself is
 * read from one place and written to another, by one block, because others may still be reading.
 * Weights are asked for before the barrier. */
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

/* And the end of a layer: what the next product takes goes to shared memory. */
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
    const float inv = kk_inv_rms(x, dim, a.eps, s.sums[3]);
    kk_mega_put((uint16_t *)(smem + KK_ONE_ROW), x, inv, w1, 1.0f, dim);
}

/* The first layer's norm. */
template <class S>
__device__ __forceinline__ void kk_one_norm(const kk_cu_mega &a, kk_mega_shared &s, char *smem) {
    const int dim = S::HIDDEN;
    const kk_mega_row r = kk_mega_load(a.x, dim), by = kk_mega_load(s.layer[0].norm_in, dim);
    const float inv = kk_inv_rms(r, dim, a.eps, s.sums[0]);
    kk_mega_put((uint16_t *)(smem + KK_ONE_ROW), r, inv, by, 1.0f, dim);
}

/* ---- units -------------------------------------------------------------------------------- */

/* Sum of output o and row r, slices in order. */
__device__ __forceinline__ float kk_mega_sum(const float *part, int pitch, int o, int r) {
    part += o * pitch + r;
    float v = part[0];
#pragma unroll
    for (int k = 1; k < KK_SLICES; k++) v = __fadd_rn(v, part[k * 16 * pitch]);
    return v;
}

/* Where a unit's plain outputs go. */
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

/* What is done with a unit's sums: one piece of code for all phases that do the same, because
 * instructions have to come as well. */
typedef enum {
    KK_KIND_PLAIN, /* QKV, OUT, DENSE: left as they are */
    KK_KIND_GLU,   /* GATE, EXPERTS */
    KK_KIND_DOWN,
    KK_KIND_HEAD,
} kk_mega_kind;

/* A unit's sums, finished by one warp: all but DOWN's. */
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

/* What a warp multiplies with: this lane's rows, and how many there are. */
struct kk_mega_rows {
    const char *lo, *hi;
    int first, n; /* of the expert's pairs, in DOWN */
    bool in_smem;
};

/* expert: whose, of the chosen; or -1. */
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

/* DOWN: the sums of an expert's rows, by pair; then slots are added up in order. */
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
    const int threads = S::ONE ? KK_WARP : 256; /* that call this */
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

/* One unit but of DOWN: a slice of its sums. */
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
    kk_mega_product<S>(c, d, f, r.lo + from * 64, r.hi + from * 64, n, r.in_smem, r.n > 8);
    kk_consumer_skip<S>(f, kk_mega_slots(steps, false) - (n + KK_MEGA_CHUNK - 1) / KK_MEGA_CHUNK);
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

/* A unit of DOWN: an expert at a time, by a warp each. */
template <class S>
__device__ __forceinline__ void kk_mega_pairs_of(const kk_cu_mega &a, const kk_mega_shared &s,
                                                 kk_consumer &f, float *to, kk_acts_at x) {
    const int steps = S::EXPERT_FFN / KK_STEP, slice = kk_mega_slice();
#pragma unroll 1
    for (int e = slice; e < s.choice.n_active + slice; e += KK_SLICES) {
        if (e >= s.choice.n_active) {
            kk_consumer_skip<S>(f, kk_mega_slots(steps, true));
            break;
        }
        const kk_mega_rows r = kk_mega_rows_of<S, KK_KIND_DOWN>(a, s, e, x);
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        kk_mega_product<S>(c, d, f, r.lo, r.hi, steps, r.in_smem, r.n > 8);
        kk_mega_put_pairs<S>(s, to, r, c, d);
    }
}

/* All units of a phase.  They take turns with two rooms for sums; the count of turns goes on from
 * phase to phase where no barrier comes between. */
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
            kk_mega_pairs_of<S>(a, s, f, to, x);
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

/* Slices of its strips, spread over the chip because everything waits for them: a piece for each
 * block, where there are blocks enough. */
enum {
    KK_ROUTER_PIECES = KK_CU_26B_EXPERTS / 8 * KK_SLICES,
    KK_ROUTER_STEPS = KK_CU_26B_HIDDEN / KK_STEP / KK_SLICES,
};
static_assert(KK_ROUTER_STEPS * KK_STEP * KK_SLICES == KK_CU_26B_HIDDEN, "slices of one length");

/* This block's piece, which comes to shared memory a layer ahead. */
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

/* A piece's sums: out[slice][row][expert].  Who chooses adds the slices up. */
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

/* One row: this block's piece, on its way to shared memory. */
__device__ __forceinline__ void kk_one_copy_router(const kk_cu_mega_layer &l, char *smem) {
    enum { WORDS = KK_ONE_SLICE / 32 * KK_WARP };
    const int tid = kk_tid();
    if (tid >= WORDS || kk_bid() >= KK_ROUTER_PIECES) return;
    kk_cp_async16(kk_shared(smem) + KK_ONE_ROUTER + tid * 16, kk_router_at(l, kk_bid()) + tid);
}

/* And its sums. */
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

/* All blocks have their piece of the router's sums: the warp's own barrier, so that the others need
 * not wait for it.  n: how often it was met before. */
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
