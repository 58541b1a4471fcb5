/* mega_kernel.cuh - the persistent kernel of mega.cuh: the sequence of stages of a layer, for a
 * single row and for 2 to 16 rows of one session or of several.  mega.cuh has the sketch of warps,
 * barriers and shared memory.  cuda_mega.cu launches it; the cuda_mega_*.cu compile it, since all
 * variants in one file would take minutes on one core.
 *
 *    one row, 7 grid barriers (|) a layer:
 *      QKV | attention | merge | OUT | norms (every block), GATE | DENSE, EXPERTS | DOWN | tail
 *    2 to 16 rows, 9 grid barriers a layer; norms by one block per row:
 *      QKV | attention | merge | OUT | norms | GATE | DENSE, EXPERTS | DOWN | tail |
 *    between GATE and EXPERTS of several rows:
 *      group 0: arrives, does not wait; chooses experts, lists rows by expert -- bar 9 --> EXPERTS
 *      group 1: stages the experts' rows -- bar 8 -->; waits; DENSE; bar 9 --> EXPERTS */
#ifndef KK_CUDA_MEGA_KERNEL_CUH
#define KK_CUDA_MEGA_KERNEL_CUH

#define KK_WORKING_THREADS 512 /* the other four warps poll, produce and route */
#include "launch.cuh"
#include "mega.cuh"

static_assert(KK_WORKING_THREADS == KK_MEGA_THREADS, "what kk_sync counts");

/* Dynamic shared memory is weight rings, then partial sums, then staged rows or attention's
 * buffers.  The addresses are computed from the parameter at each use, because a value kept through
 * a forward takes a register from all of it. */
__device__ __forceinline__ float *parts_of(const kk_cu_mega &a) {
    return (float *)(kk_mega_memory + a.parts_at);
}
__device__ __forceinline__ char *stage_of(const kk_cu_mega &a) {
    return kk_mega_memory + a.stage_at;
}
/* With several rows, the router's piece lies at the end. */
__device__ __forceinline__ kk_router_smem &router_of(const kk_cu_mega &a) {
    return *(kk_router_smem *)(kk_mega_memory + a.shared - sizeof(kk_router_smem));
}
/* Loads of a slot's steps may read past the end of the last staged row; those of packed steps up to
 * three steps on, in other shared memory. */
template <class S> __device__ __forceinline__ char *stage_end(const kk_cu_mega &a) {
    return (char *)&router_of(a) - S::CHUNK * 64;
}

/* Attention uses the weight rings, which are empty while it runs, as scratch: orders its accesses
 * before the bulk copies of the producers that the next barrier lets go on. */
__device__ __forceinline__ void release_rings() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Heads of 512 over long contexts.  Not inlined: it needs the registers of other stages. */
template <class S>
__device__ __noinline__ void attend_far(const kk_cu_mega_layer &l, const kk_few_group *groups,
                                        int stage_at) {
    constexpr int RINGS = KK_MEGA_GROUPS * S::SLOTS * S::SLOT;
    constexpr int PAGES_BYTES = S::ONE ? RINGS - (int)KK_LONG_ANGLES : RINGS;
    char *stage = kk_mega_memory + stage_at; /* so that it is known to be shared memory */
    const kk_long_smem smem = {
        kk_mega_memory, S::ONE ? kk_mega_memory + PAGES_BYTES : stage + KK_ATTEND_SMEM, stage};
    kk_attend_long<S::MANY, !S::ONE, S::KV, PAGES_BYTES>(
        l.store, l.attend, groups, kk_long_plan_of<S::MANY>(l.attend, groups), l.spans, smem);
    release_rings();
}

/* Merges pages, in the order in which each of the ways to attend stored its parts. */
template <class S>
__device__ __forceinline__ void combine(const kk_cu_mega &a, kk_mega_shared &s,
                                        const kk_cu_mega_layer &l, const kk_few_group *groups) {
    if (S::FAR && l.attend.slot.head_dim == 512)
        kk_combine_long<S::MANY>(l.attend, groups, kk_long_plan_of<S::MANY>(l.attend, groups),
                                 S::rows(a), l.spans, (float *)stage_of(a));
    else if (S::ONE)
        kk_combine_one(l.attend, groups[0], (float *)stage_of(a));
    else
        kk_combine_few<S::MANY>(l.attend, groups, s.group_of, S::rows(a));
}

/* Attention: from q, k, v to the output projection's input rows in a.att.  What is known of a
 * single row when the kernel is compiled takes no register.  */
template <class S>
__device__ __forceinline__ void attention(const kk_cu_mega &a, kk_mega_shared &s, int layer) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const kk_few_group only = {s.group[0].pos, 1, 0, 0};
    const kk_few_group *groups = S::ONE ? &only : s.group;
    kk_grid_arrive(a, s);
    if (S::FAR && l.attend.slot.head_dim == 512)
        kk_prefetch_long<S::MANY>(l.attend, groups);
    else
        kk_prefetch_few<S::MANY>(l.attend, groups);
    kk_grid_wait(a, s);
    if (l.attend.slot.head_dim == 256)
        kk_attend_few<256, false, S::MANY, S::KV>(l.store, l.attend, groups, stage_of(a),
                                                  kk_mega_memory);
    else if constexpr (S::FAR)
        attend_far<S>(l, s.group, a.stage_at);
    else
        kk_attend_few<512, true, S::MANY, S::KV>(l.store, l.attend, groups, stage_of(a),
                                                 kk_mega_memory);
    if (S::KV != KK_CU_BF16) release_rings();
    kk_grid_sync(a, s);
    combine<S>(a, s, l, groups);
    kk_grid_sync(a, s);
}

/* The active experts are known: producers may go on up to the next layer's attention.  By one
 * thread. */
__device__ __forceinline__ void routed(const kk_cu_mega &a, kk_mega_shared &s, int layer) {
    kk_producer_until(s, layer + 1, layer + 1 == a.n_layer ? MEGA_HEAD + 1 : MEGA_OUT);
}

/* Prefetches a row of norm weights to L2. */
__device__ __forceinline__ void prefetch_row(const float *w, int dim) {
    const int at = kk_tid() * 32;
    if (at < dim) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + at));
}

template <class S>
__device__ __forceinline__ void prefetch_middle(const kk_cu_mega &a, const kk_cu_mega_layer &l) {
    const int dim = S::HIDDEN;
    if (kk_bid() < S::rows(a)) {
        prefetch_row(l.norm_att, dim);
        prefetch_row(l.norm_ffn, dim);
        prefetch_row(l.norm_experts, dim);
        prefetch_row(l.router_scale, dim);
    }
    if (kk_bid() == gridDim.x - 1) prefetch_row(l.expert_scale, S::EXPERTS);
}

template <class S>
__device__ __forceinline__ void prefetch_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                              const float *next) {
    const int dim = S::HIDDEN;
    if (kk_bid() >= S::rows(a)) return;
    prefetch_row(l.norm_dense, dim);
    prefetch_row(l.norm_moe, dim);
    prefetch_row(l.norm_out, dim);
    if (next) prefetch_row(next, dim);
}

/* ---- the choice --------------------------------------------------------------------------- */

/* Threads that choose experts for several rows: one warp per row, or for two. */
__device__ __forceinline__ int choosers(const kk_cu_mega &a) {
    return min(a.n_rows, (int)KK_SLICES) * KK_WARP;
}

/* Writes the choice to global memory, for readers outside the kernel. */
__device__ __forceinline__ void tell_choice(const kk_cu_mega &a, const kk_mega_shared &s, int i) {
    if (kk_bid() != 0) return;
    a.expert[i] = s.choice.chosen[i];
    a.weight[i] = s.choice.weight[i];
}

template <class S>
__device__ __forceinline__ void choose_row(const kk_cu_mega &a, kk_mega_shared &s, int layer,
                                           int row) {
    kk_choose_row<S::EXPERTS>(&s.choice, a.logits, KK_SLICES, S::rows(a) * S::EXPERTS,
                              s.layer[layer & 1].expert_scale, row, S::USED, S::EXPERTS);
}

/* The router warp's loop over layers, beside the consumers' work on the dense part.  For a single
 * row it also chooses the experts; for more rows it only signals that the logits are complete. */
template <class S>
__device__ __forceinline__ void route_all(const kk_cu_mega &a, kk_mega_shared &s) {
    const int lane = kk_tid() % KK_WARP;
    if (!S::ONE) kk_copy_router(router_of(a), s.layer[0]);
#pragma unroll 1
    for (int layer = 0; layer < a.n_layer; layer++) {
        kk_cp_async_wait();
        kk_barrier_normed<true>();
        if (S::ONE)
            kk_one_router(a, stage_of(a));
        else
            kk_few_router<S>(a, s.layer[layer & 1], router_of(a));
        kk_grid_routed(a, layer);
        if (S::ONE) {
            choose_row<S>(a, s, layer, 0);
            kk_list_one(&s.choice, S::USED);
            __syncwarp();
            if (lane == 0) routed(a, s, layer);
            if (lane < S::USED) tell_choice(a, s, lane);
        }
        kk_barrier_chosen<false>(S::ONE ? (int)KK_MEGA_BARRIER : choosers(a) + KK_WARP);
        if (!S::ONE && layer + 1 < a.n_layer)
            kk_copy_router(router_of(a), s.layer[(layer + 1) & 1]);
    }
}

/* Chooses the experts of several rows and lists rows by expert; by warps of group 0. */
template <class S>
__device__ __forceinline__ void choose_rows(const kk_cu_mega &a, kk_mega_shared &s, int layer) {
    kk_barrier_chosen<true>(choosers(a) + KK_WARP);
#pragma unroll 1
    for (int r = kk_tid() / KK_WARP; r < a.n_rows; r += KK_SLICES) choose_row<S>(a, s, layer, r);
    asm volatile("bar.sync 7, %0;" ::"r"(choosers(a)) : "memory");
    if (kk_tid() < KK_WARP) {
        const int pairs = a.n_rows * S::USED;
        if (!S::HIGH && pairs <= KK_WARP)
            kk_list_pairs<1, S::EXPERTS>(&s.choice, pairs, S::USED);
        else
            kk_list_pairs<S::HIGH ? 4 : 2, S::EXPERTS>(&s.choice, pairs, S::USED);
        __syncwarp();
        if (kk_tid() == 0) routed(a, s, layer);
    }
    for (int i = kk_tid(); i < a.n_rows * S::USED; i += choosers(a)) tell_choice(a, s, i);
}

/* ---- one row ------------------------------------------------------------------------------ */

/* One layer of a single row.  Data of other blocks is read past L1 (ld.cg): the grid barrier of one
 * row does not invalidate it. */
template <class S>
__device__ __forceinline__ void one_layer(const kk_cu_mega &a, kk_mega_shared &s, kk_consumer &f,
                                          int layer) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const kk_acts_at row = {stage_of(a) + KK_ONE_ROW, 0, true};
    const kk_acts_at experts = {stage_of(a) + KK_ONE_EXPERTS, 0, true};
    float *parts = parts_of(a);
    kk_acts_at x = row;
    kk_grid_mark(a, s);
#pragma unroll 1
    for (int phase = MEGA_QKV;; phase = MEGA_OUT) {
        kk_mega_phase_units<S, KK_KIND_PLAIN>(a, s, f, parts, layer, phase, x);
        if (phase == MEGA_OUT) break;
        attention<S>(a, s, layer);
        x = kk_stage_at<S>(stage_of(a), NULL, a.att, 1, l.att_width);
        kk_stage_rows<S>(x, a.att, 1, l.att_width);
        kk_one_copy_router(l, stage_of(a));
        prefetch_middle<S>(a, l);
        kk_sync();
        kk_grid_mark(a, s);
    }
    kk_one_middle<S>(a, s, layer, stage_of(a));
    kk_cp_async_wait();
    kk_barrier_normed<false>();
    kk_sync();
    kk_grid_mark(a, s);
    const bool last = layer + 1 == a.n_layer;
    const float *next = last ? a.head ? a.norm_head : NULL : s.layer[(layer + 1) & 1].norm_in;
    x = row;
    int nth = 0;
#pragma unroll 1
    for (int phase = MEGA_GATE;; phase = MEGA_EXPERTS) {
        kk_mega_phase_units<S, KK_KIND_GLU>(a, s, f, parts, layer, phase, x, nth);
        kk_grid_sync(a, s);
        if (phase == MEGA_EXPERTS) break;
        x = kk_stage_at<S>(stage_of(a), NULL, a.act, 1, S::FFN);
        kk_stage_rows<S>(x, a.act, 1, S::FFN);
        prefetch_tail<S>(a, l, next);
        kk_barrier_chosen<true>(KK_MEGA_BARRIER);
        kk_grid_mark(a, s);
        nth = kk_mega_phase_units<S, KK_KIND_PLAIN>(a, s, f, parts, layer, MEGA_DENSE, x);
        x = experts;
    }
    x = kk_stage_at<S>(stage_of(a), NULL, a.expert_act, 1, S::USED * S::EXPERT_FFN);
    kk_stage_rows<S>(x, a.expert_act, 1, S::USED * S::EXPERT_FFN);
    x.stride = S::EXPERT_FFN * 2;
    kk_sync();
    kk_grid_mark(a, s);
    kk_mega_phase_units<S, KK_KIND_DOWN>(a, s, f, parts, layer, MEGA_DOWN, x);
    kk_one_tail<S>(a, s, layer, next, stage_of(a));
    kk_sync();
}

template <class S>
__device__ __forceinline__ void one_row(const kk_cu_mega &a, kk_mega_shared &s, kk_consumer &f) {
    kk_one_norm<S>(a, s, stage_of(a));
    kk_sync();
#pragma unroll 1
    for (int layer = 0; layer < a.n_layer; layer++) one_layer<S>(a, s, f, layer);
    const kk_acts_at row = {stage_of(a) + KK_ONE_ROW, 0, true};
    kk_grid_mark(a, s);
    if (a.head)
        kk_mega_phase_units<S, KK_KIND_HEAD>(a, s, f, parts_of(a), a.n_layer, MEGA_HEAD, row);
}

/* ---- a few rows --------------------------------------------------------------------------- */

/* Norms the rows whose logits are wanted. */
__device__ __forceinline__ void head_norm(const kk_cu_mega &a, kk_mega_shared &s) {
    const int i = kk_bid();
    if (i < a.n_logits) {
        const int row = a.head_row ? a.head_row[i] : a.head_first + i;
        kk_mega_norm(a, a.x + (size_t)row * (size_t)KK_CU_26B_HIDDEN, a.norm_head, s.sums);
    }
    kk_grid_sync(a, s);
}

/* Stages the input rows of a matrix in shared memory, where they fit. */
template <class S>
__device__ __forceinline__ kk_acts_at few_stage(const kk_cu_mega &a, kk_mega_shared &s,
                                                const uint16_t *from, int rows, int width) {
    const kk_acts_at x = kk_stage_at<S>(stage_of(a), stage_end<S>(a), from, rows, width);
    kk_stage_rows<S>(x, from, rows, width);
    kk_sync();
    kk_grid_mark(a, s);
    return x;
}

/* Between GATE and EXPERTS, with several rows.  Group 0 chooses experts.  Group 1 stages the
 * experts' input rows beside those of GATE, which group 0 may still be reading, passes the grid
 * barrier and computes DENSE. Each group goes on to EXPERTS when it is done. */
template <class S>
__device__ __forceinline__ kk_acts_at few_choice(const kk_cu_mega &a, kk_mega_shared &s,
                                                 kk_consumer &f, int layer) {
    char *beside = stage_of(a) + (a.n_rows * kk_stage_stride(S::HIDDEN) + 127) / 128 * 128;
    const kk_acts_at x = kk_stage_at<S>(beside, stage_end<S>(a), a.z2, a.n_rows, S::HIDDEN);
    kk_grid_arrive(a, s);
    if (kk_mega_group() == 0) {
        kk_grid_pass();
        if (kk_tid() < choosers(a)) choose_rows<S>(a, s, layer);
        kk_grid_mark(a, s);
        kk_barrier_listed<false>();
        kk_barrier_staged<true>();
        prefetch_tail<S>(a, s.layer[layer & 1],
                         layer + 1 < a.n_layer ? s.layer[(layer + 1) & 1].norm_in : NULL);
    } else {
        const kk_acts_at act =
            kk_stage_at<S>(stage_of(a), stage_end<S>(a), a.act, a.n_rows, S::FFN);
        kk_stage_rows<S>(x, a.z2, a.n_rows, S::HIDDEN, KK_SLICES);
        kk_barrier_staged<false>();
        kk_grid_wait(a, s);
        kk_barrier_passed<false>();
        kk_stage_rows<S>(act, a.act, a.n_rows, S::FFN, KK_SLICES);
        kk_barrier_dense();
        kk_mega_phase_units<S, KK_KIND_PLAIN>(a, s, f, parts_of(a), layer, MEGA_DENSE, act);
        kk_barrier_listed<true>();
    }
    kk_grid_mark(a, s);
    return x;
}

template <class S>
__device__ __forceinline__ void few_layer(const kk_cu_mega &a, kk_mega_shared &s, kk_consumer &f,
                                          int layer) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const bool mine = kk_bid() < a.n_rows;
    float *parts = parts_of(a);
    kk_acts_at x = few_stage<S>(a, s, a.z1, a.n_rows, S::HIDDEN);
#pragma unroll 1
    for (int phase = MEGA_QKV;; phase = MEGA_OUT) {
        kk_mega_phase_units<S, KK_KIND_PLAIN>(a, s, f, parts, layer, phase, x);
        if (phase == MEGA_OUT) break;
        attention<S>(a, s, layer);
        prefetch_middle<S>(a, l);
        x = few_stage<S>(a, s, a.att, a.n_rows, l.att_width);
    }
    kk_grid_sync(a, s);
    if (mine) kk_mega_middle(a, l, s.sums);
    kk_grid_sync(a, s);
    kk_barrier_normed<false>();
    x = few_stage<S>(a, s, a.z1, a.n_rows, S::HIDDEN);
#pragma unroll 1
    for (int phase = MEGA_GATE;; phase = MEGA_EXPERTS) {
        kk_mega_phase_units<S, KK_KIND_GLU>(a, s, f, parts, layer, phase, x);
        if (phase == MEGA_EXPERTS) break;
        x = few_choice<S>(a, s, f, layer);
    }
    if (kk_mega_group() == 0) kk_barrier_passed<true>();
    kk_grid_sync(a, s);
    x = few_stage<S>(a, s, a.expert_act, a.n_rows * S::USED, S::EXPERT_FFN);
    kk_mega_phase_units<S, KK_KIND_DOWN>(a, s, f, parts, layer, MEGA_DOWN, x);
    kk_grid_sync(a, s);
    const float *next = layer + 1 < a.n_layer ? s.layer[(layer + 1) & 1].norm_in : NULL;
    if (mine) kk_mega_tail(a, l, next, s.sums);
    kk_grid_sync(a, s);
}

template <class S>
__device__ __forceinline__ void few_rows(const kk_cu_mega &a, kk_mega_shared &s, kk_consumer &f) {
    if (kk_bid() < a.n_rows)
        kk_mega_norm(a, a.x + (size_t)kk_bid() * (size_t)KK_CU_26B_HIDDEN, s.layer[0].norm_in,
                     s.sums);
    kk_grid_sync(a, s);
#pragma unroll 1
    for (int layer = 0; layer < a.n_layer; layer++) few_layer<S>(a, s, f, layer);
    if (!a.head) return;
    head_norm(a, s);
    const kk_acts_at x = few_stage<S>(a, s, a.z1, a.n_logits, S::HIDDEN);
    kk_mega_phase_units<S, KK_KIND_HEAD>(a, s, f, parts_of(a), a.n_layer, MEGA_HEAD, x);
}

/* Grid barriers of a forward: per layer, before the first layer, and in all. */
template <class S> struct grid_barriers {
    static constexpr int PER = S::ONE ? 7 : 9, BEFORE = S::ONE ? 0 : 1;
    static __device__ int all(const kk_cu_mega &a) {
        return BEFORE + PER * a.n_layer + (!S::ONE && a.head ? 1 : 0);
    }
};

/* Initialises the block's shared state, by the poller warp. */
template <class S>
__device__ __forceinline__ void open_block(const kk_cu_mega &a, kk_mega_shared &s) {
    const kk_cu_rows &rows = a.layer[0].attend.rows;
    const int lane = (int)threadIdx.x % KK_WARP;
    kk_mega_copy_layer(a, s, 0);
    if (lane < (S::MANY ? rows.tiles : 1)) {
        const kk_cu_tile t = rows.tile[lane];
        s.group[lane] = {(int)t.pos, t.rows, t.row, t.pages};
        for (int i = 0; S::MANY && i < t.rows; i++) s.group_of[t.row + i] = (uint8_t)lane;
    }
    if (lane) return;
    s.choice.n_active = 0;
    s.marks = 0;
    s.until = MEGA_OUT;
    kk_rings_open<S>();
}

/* Moves registers from the four service warps to the consumers. */
template <bool WORKS> __device__ __forceinline__ void share_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (WORKS)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
#endif
}

template <int ROWS, bool SESSIONS, int SIZE, int KV, bool FAR, bool PACKED>
__global__ void __launch_bounds__(KK_MEGA_BLOCK, 1)
    mega_kernel(const __grid_constant__ kk_cu_mega a) {
    using S = kk_mega_of<ROWS, SESSIONS, SIZE, KV, FAR, PACKED>;
    using barriers = grid_barriers<S>;
    __shared__ kk_mega_shared s;
    const int warp = (int)threadIdx.x / KK_WARP;
    if (warp == KK_MEGA_POLLER) open_block<S>(a, s);
    __syncthreads();
    if (warp >= KK_MEGA_WARPS) {
        share_registers<false>();
        if (warp == KK_MEGA_POLLER)
            kk_grid_poll<S>(a, s, barriers::all(a), barriers::PER, barriers::BEFORE);
        else if (warp == KK_MEGA_ROUTER)
            route_all<S>(a, s);
        else if (threadIdx.x % KK_WARP < KK_SLICES * KK_PART_LANES)
            kk_produce<S>(a, s, warp - KK_MEGA_PRODUCER);
        return;
    }
    share_registers<true>();
    kk_consumer f = {};
    if (S::ONE)
        one_row<S>(a, s, f);
    else
        few_rows<S>(a, s, f);
    kk_grid_leave(a, s, barriers::all(a));
}

/* ---- variants ------------------------------------------------------------------------------ */

typedef void (*kk_mega_fn)(kk_cu_mega);

/* A kernel by what it is compiled for, and the shared memory that it needs beside its sums: for its
 * rings, and for rows or attention.  Other K/V formats than bf16, and long contexts
 * (attend_long.cuh), are compiled for the largest shared memory alone (KK_FORMATS_SHARED). */
struct kk_mega_variant {
    kk_mega_fn fn;
    bool many, far, packed;
    int rows, format, rings, smem;
};
enum {
    ONE_SMEM = (int)KK_ATTEND_SMEM > (int)KK_ONE_BYTES ? (int)KK_ATTEND_SMEM : (int)KK_ONE_BYTES,
    FEW_SMEM = (int)KK_ATTEND_SMEM + (int)sizeof(kk_router_smem),
    FAR_SMEM = FEW_SMEM + (int)KK_LONG_ANGLES, /* of several rows */
};
template <int ROWS, bool SESSIONS, int SIZE, int KV, bool FAR, bool PACKED>
constexpr kk_mega_variant kk_mega_variant_of() {
    using S = kk_mega_of<ROWS, SESSIONS, SIZE, KV, FAR, PACKED>;
    return {mega_kernel<ROWS, SESSIONS, SIZE, KV, FAR, PACKED>,
            SESSIONS,
            FAR,
            PACKED,
            ROWS,
            KV,
            kk_mega_ring_bytes<S>(),
            ROWS == 1 ? ONE_SMEM
            : FAR     ? FAR_SMEM
                      : FEW_SMEM};
}

/* The five variants by number of rows and sessions. */
enum { KK_MEGA_VARIANTS = 5 };
#define KK_MEGA_VARIANTS_OF(size, kv, far, packed)                                                 \
    {                                                                                              \
        kk_mega_variant_of<1, false, size, kv, far, packed>(),                                     \
            kk_mega_variant_of<8, false, size, kv, far, packed>(),                                 \
            kk_mega_variant_of<16, false, size, kv, far, packed>(),                                \
            kk_mega_variant_of<8, true, size, kv, far, packed>(),                                  \
            kk_mega_variant_of<16, true, size, kv, far, packed>()                                  \
    }

/* The variants that a file compiles. */
struct kk_mega_list {
    const kk_mega_variant (*of)[KK_MEGA_VARIANTS];
    int n;
};
extern const kk_mega_list kk_mega_plain, kk_mega_formats, kk_mega_far, kk_mega_packed,
    kk_mega_packed_formats, kk_mega_packed_far;
#define KK_MEGA_LIST(name)                                                                         \
    const kk_mega_list name = {variants, (int)(sizeof variants / sizeof *variants)}

#endif
