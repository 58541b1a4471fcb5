/* mega.cuh - a forward over 1 to 16 rows as one kernel that stays on the chip.
 *
 * One block per multiprocessor walks through all layers together with the others, a grid barrier
 * between dependent stages.  What a graph of kernels loses at every stage (its start, its last
 * strips, the first bytes from memory) is hidden here: each warp has a ring of weights in shared
 * memory, and asks for weights across stages, as far ahead as the ring holds, while norms,
 * attention and barriers go on.  Only experts must wait for their router.
 *
 * All that is needed from stage to stage lies in registers and shared memory.  What lies elsewhere
 * (local memory, parameters of a layer not met before) has left the caches by the time it is
 * needed, because weights stream through them: a layer's pointers are copied to shared memory a
 * layer ahead, norms' weights are fetched a stage ahead.
 *
 * Sixteen warps work, in two groups of eight, on strips of eight outputs; the warps of a group
 * have a slice of K each, so that sums are those of every other kernel here (arith.cuh).
 *
 *   QKV     q, k, v of the normed rows
 *   ...     rows stored, attention by page, pages merged           (attend.cuh)
 *   OUT     the output projection
 *   ...     residual, three norms                                  (a block per row)
 *   GATE    the router; gate and up of the dense part
 *   EXPERTS the dense second matrix while experts are chosen; their gate and up
 *   DOWN    their second matrices, summed by slot
 *   ...     tail and the next layer's norm                         (a block per row)
 *   HEAD    after the last layer, where logits are wanted */
#ifndef KK_CUDA_MEGA_CUH
#define KK_CUDA_MEGA_CUH

#include "attend.cuh"
#include "choose.cuh"
#include "rows.cuh"
#include "stream.cuh"

enum {
    KK_MEGA_THREADS = 512,
    KK_MEGA_WARPS = 16,
    KK_MEGA_GROUPS = 2, /* of eight warps */
    KK_MEGA_CHUNK = 4,  /* steps of a slot */
    KK_MEGA_SLOT = KK_MEGA_CHUNK * 512,
};

typedef enum { MEGA_QKV, MEGA_OUT, MEGA_GATE, MEGA_EXPERTS, MEGA_DOWN, MEGA_HEAD } kk_mega_phase;

__host__ __device__ constexpr int kk_mega_part_bytes(bool high) {
    return KK_MEGA_GROUPS * 2 * 2 * KK_SLICES * (high ? 128 : 64) * 4;
}

/* What a block has in shared memory, in this order: rings, their barriers, sums, then room for
 * staged rows and for attention. */
__host__ __device__ constexpr int kk_mega_fixed_bytes(int slots, bool high) {
    return KK_MEGA_WARPS * slots * (KK_MEGA_SLOT + 8) + kk_mega_part_bytes(high);
}

/* ---- where weights lie -------------------------------------------------------------------- */

__device__ __forceinline__ int kk_mega_group() { return threadIdx.x / 256; }
__device__ __forceinline__ int kk_mega_slice() { return threadIdx.x / KK_WARP % KK_SLICES; }

/* The first unit of this group: phases begin at different groups, so that what is left over of
 * one evens out with the next. */
__device__ __forceinline__ int kk_mega_first(const kk_cu_mega &a, int phase, int group) {
    const int groups = KK_MEGA_GROUPS * (int)gridDim.x;
    const int u = (int)blockIdx.x + group * (int)gridDim.x - a.turn[phase];
    return u < 0 ? u + groups : u;
}

__device__ __forceinline__ int kk_mega_units(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                             const kk_choice *c, int phase) {
    switch (phase) {
    case MEGA_QKV: return l.q_strips + l.kv_strips * (l.v ? 2 : 1);
    case MEGA_OUT: return a.hidden / 8;
    case MEGA_GATE: return a.ffn / 8;
    case MEGA_EXPERTS: return a.hidden / 8 + c->n_active * (a.expert_ffn / 8);
    case MEGA_DOWN: return a.hidden / 8;
    default: return a.vocab / 8;
    }
}

/* Strip `sub` of a unit, and its K steps.  In DOWN it is the unit's strip of the slice's expert
 * number `sub`. */
__device__ __forceinline__ const uint4 *kk_mega_strip(const kk_cu_mega &a,
                                                      const kk_cu_mega_layer &l,
                                                      const kk_choice *c, int phase, int unit,
                                                      int sub, int slice, int &steps) {
    const void *w;
    size_t strip = (size_t)unit;
    steps = a.hidden / KK_STEP;
    switch (phase) {
    case MEGA_QKV:
        w = l.q;
        if (unit >= l.q_strips) {
            strip -= l.q_strips;
            w = l.k;
            if (strip >= (size_t)l.kv_strips) {
                strip -= l.kv_strips;
                w = l.v;
            }
        }
        break;
    case MEGA_OUT:
        w = l.o;
        steps = l.att_width / KK_STEP;
        break;
    case MEGA_GATE: w = sub ? l.up : l.gate; break;
    case MEGA_EXPERTS:
        if (unit < a.hidden / 8) {
            w = l.down;
            steps = a.ffn / KK_STEP;
        } else {
            const int per = a.expert_ffn / 8, e = (unit - a.hidden / 8) / per;
            strip = (size_t)c->active[e] * (size_t)a.expert_strips + (size_t)(sub * per) +
                    (size_t)(unit - a.hidden / 8 - e * per);
            w = l.experts;
        }
        break;
    case MEGA_DOWN:
        w = l.experts_down;
        steps = a.expert_ffn / KK_STEP;
        strip += (size_t)c->active[slice + sub * KK_SLICES] * (size_t)a.down_strips;
        break;
    default: w = a.head; break;
    }
    return (const uint4 *)w + strip * (size_t)steps * KK_WARP;
}

__device__ __forceinline__ int kk_mega_subs(const kk_cu_mega &a, const kk_choice *c, int phase,
                                            int unit, int slice) {
    if (phase == MEGA_GATE) return 2;
    if (phase == MEGA_EXPERTS) return unit < a.hidden / 8 ? 1 : 2;
    if (phase == MEGA_DOWN) return (c->n_active - slice + KK_SLICES - 1) / KK_SLICES;
    return 1;
}

/* ---- asking ------------------------------------------------------------------------------- */

/* What all warps of a block share. */
struct kk_mega_shared {
    kk_choice choice;
    kk_cu_mega_layer layer[2]; /* this layer's, and the next one's, by parity */
};

/* One warp's ring, and the place in the forward up to which weights were asked for. */
struct kk_feed {
    char *data;
    uint32_t bars;
    int slots, held, put, get;
    uint32_t parity;
    int layer, phase, unit, sub; /* the strip being asked for */
    int left;                    /* steps of it still to ask for */
    const uint4 *at;
    int routed; /* layers whose experts are known */
};

__device__ __forceinline__ void kk_feed_open(kk_feed &f, const kk_cu_mega &a, char *rings) {
    const int warp = threadIdx.x / KK_WARP, slots = a.slots;
    f.data = rings + warp * slots * KK_MEGA_SLOT;
    f.bars = kk_shared(rings) + KK_MEGA_WARPS * slots * KK_MEGA_SLOT + warp * slots * 8;
    f.slots = slots;
    f.held = f.put = f.get = 0;
    f.parity = 0;
    f.layer = f.phase = f.sub = f.left = f.routed = 0;
    f.unit = kk_mega_first(a, MEGA_QKV, kk_mega_group());
    f.at = NULL;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % KK_WARP == 0) {
        for (int i = 0; i < slots; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(f.bars + i * 8));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("fence.proxy.async.shared::cta;");
    }
#endif
    __syncwarp();
}

/* Moves to the next strip in which this warp has steps, if that is known yet. */
__device__ __forceinline__ void kk_feed_seek(kk_feed &f, const kk_cu_mega &a,
                                             const kk_mega_shared &s) {
    const int last = a.head ? a.n_layer : a.n_layer - 1, slice = kk_mega_slice();
    while (f.layer <= last) {
        const kk_cu_mega_layer &l = s.layer[f.layer & 1];
        const bool expert =
            f.phase == MEGA_DOWN || (f.phase == MEGA_EXPERTS && f.unit >= a.hidden / 8);
        if (expert && f.layer >= f.routed) return;
        if (f.unit >= kk_mega_units(a, l, &s.choice, f.phase)) {
            if (f.phase >= MEGA_DOWN) f.layer++;
            f.phase = f.phase < MEGA_DOWN       ? f.phase + 1
                      : f.layer == a.n_layer ? (int)MEGA_HEAD
                                             : (int)MEGA_QKV;
            f.unit = kk_mega_first(a, f.phase, kk_mega_group());
            f.sub = 0;
            continue;
        }
        if (f.sub >= kk_mega_subs(a, &s.choice, f.phase, f.unit, slice)) {
            f.unit += KK_MEGA_GROUPS * (int)gridDim.x;
            f.sub = 0;
            continue;
        }
        int steps, from = 0;
        f.at = kk_mega_strip(a, l, &s.choice, f.phase, f.unit, f.sub++, slice, steps);
        f.left = steps;
        if (f.phase != MEGA_DOWN) {
            from = kk_slice(steps, slice);
            f.left = kk_slice(steps, slice + 1) - from;
        }
        f.at += from * KK_WARP;
        if (f.left) return;
    }
}

/* Asks for the next steps, at most a slot of them. */
__device__ __forceinline__ void kk_feed_ask(kk_feed &f) {
    const int n = min((int)KK_MEGA_CHUNK, f.left);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % KK_WARP == 0) {
        const uint32_t bar = f.bars + f.put * 8;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                     "r"(n * 512)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(kk_shared(f.data) + f.put * KK_MEGA_SLOT),
                     "l"(f.at), "r"(n * 512), "r"(bar)
                     : "memory");
    }
#endif
    f.at += n * KK_WARP;
    f.left -= n;
    f.held++;
    f.put = f.put + 1 == f.slots ? 0 : f.put + 1;
}

/* Asks for all that the ring has room for. */
__device__ __forceinline__ void kk_feed_fill(kk_feed &f, const kk_cu_mega &a,
                                             const kk_mega_shared &s) {
    while (f.held < f.slots) {
        if (f.left == 0) kk_feed_seek(f, a, s);
        if (f.left == 0) return;
        kk_feed_ask(f);
    }
}

/* The oldest slot, once it is there: this lane's part of each step is 512 bytes apart. */
__device__ __forceinline__ const uint4 *kk_feed_wait(const kk_feed &f) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n .reg .pred p;\n"
                 "again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                 "@p bra done;\n bra again;\n done:\n}" ::"r"(f.bars + f.get * 8),
                 "r"(f.parity)
                 : "memory");
#endif
    return (const uint4 *)(f.data + f.get * KK_MEGA_SLOT) + threadIdx.x % KK_WARP;
}

__device__ __forceinline__ void kk_feed_release(kk_feed &f) {
    __syncwarp();
    f.held--;
    if (++f.get == f.slots) {
        f.get = 0;
        f.parity ^= 1;
    }
}

/* ---- barriers ----------------------------------------------------------------------------- */

__device__ __forceinline__ void kk_group_sync() {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + kk_mega_group()) : "memory");
}

/* The blocks' barrier.  trace not NULL: clocks of the first block, before and after each. */
struct kk_grid {
    uint32_t *count;
    uint32_t target;
    uint64_t *trace;
};

__device__ __forceinline__ void kk_grid_mark(kk_grid &g) {
    if (g.trace && blockIdx.x == 0 && threadIdx.x == 0) *g.trace++ = (uint64_t)clock64();
}

/* All blocks have come this far, and what they wrote can be read. */
__device__ __forceinline__ void kk_grid_sync(kk_grid &g) {
    g.target += gridDim.x;
    kk_sync();
    if (threadIdx.x == 0) {
        uint32_t seen;
        kk_grid_mark(g);
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(g.count) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(g.count)
                         : "memory");
        while (seen < g.target);
        kk_grid_mark(g);
    }
    kk_sync();
}

/* The count is left at 0 for the next launch: the last block to come does it. */
__device__ __forceinline__ void kk_grid_leave(kk_grid &g) {
    kk_sync();
    if (threadIdx.x == 0) {
        kk_grid_mark(g);
        if (atomicAdd(g.count, 1u) + 1 == g.target + gridDim.x) *g.count = 0;
    }
}

/* ---- rows of activations ------------------------------------------------------------------ */

/* Rows of bf16 activations, staged in shared memory where they fit and read where they lie
 * otherwise. */
struct kk_acts_at {
    const char *base;
    int stride, wrap; /* bytes; steps */
};

/* Stages rows at *room and moves it on, if they fit before `end`. */
__device__ __forceinline__ kk_acts_at kk_mega_stage(char *&room, const char *end,
                                                    const uint16_t *x, int n_rows, int n_in) {
    const int per = n_in / 8, stride = kk_stage_stride(n_in);
    if (end - room < (long)n_rows * stride)
        return kk_acts_at{(const char *)x, n_in * 2, n_in / KK_STEP};
    for (int i = (int)threadIdx.x; i < n_rows * per; i += KK_MEGA_THREADS) {
        const int r = i / per, c = i - r * per;
        *(uint4 *)(room + r * stride + c * 16) = __ldcg((const uint4 *)x + i);
    }
    const kk_acts_at at = {room, stride, n_in / KK_STEP};
    room += (n_rows * stride + 127) / 128 * 128;
    return at;
}

/* c += n steps from the ring against the activations from step `step` on. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_product(float c[4], kk_feed &f, const kk_cu_mega &a,
                                                const kk_mega_shared &s, const char *lo,
                                                const char *hi, int step, int wrap, int n) {
    for (; n > 0; n -= KK_MEGA_CHUNK) {
        uint4 x[KK_MEGA_CHUNK], y[KK_MEGA_CHUNK], w[KK_MEGA_CHUNK];
#pragma unroll
        for (int i = 0; i < KK_MEGA_CHUNK; i++) {
            const int k = step + i < wrap ? step + i : step + i - wrap;
            x[i] = *(const uint4 *)(lo + k * 64);
            if (HIGH) y[i] = *(const uint4 *)(hi + k * 64);
        }
        const uint4 *slot = kk_feed_wait(f);
#pragma unroll
        for (int i = 0; i < KK_MEGA_CHUNK; i++) {
            w[i] = slot[i * KK_WARP];
            if (i > 0 && i >= n) w[i] = make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < KK_MEGA_CHUNK; i++) kk_step<HIGH>(c, w[i], x[i], y[i]);
        kk_feed_release(f);
        kk_feed_fill(f, a, s);
        step += KK_MEGA_CHUNK;
        if (step >= wrap) step -= wrap;
    }
}

/* ---- norms -------------------------------------------------------------------------------- */

/* The sequences of kk_between_row (rows.cuh), for a row of four values per 2048 and thread. */
typedef kk_row<2> kk_mega_row;

__device__ __forceinline__ kk_mega_row kk_mega_load(const float *p, int dim) {
    kk_mega_row r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = i * KK_ROW_SPAN + 4 * (int)threadIdx.x;
        const float4 f = at < dim ? __ldcg((const float4 *)(p + at)) : make_float4(0, 0, 0, 0);
        r.v[4 * i] = f.x;
        r.v[4 * i + 1] = f.y;
        r.v[4 * i + 2] = f.z;
        r.v[4 * i + 3] = f.w;
    }
    return r;
}

__device__ __forceinline__ void kk_mega_put(uint16_t *p, const kk_mega_row &x, float inv,
                                            const kk_mega_row &w, float times, int dim) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = i * KK_ROW_SPAN + 4 * (int)threadIdx.x;
        float y[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            y[k] = __fmul_rn(__fmul_rn(x.v[4 * i + k], inv), w.v[4 * i + k]);
            if (times != 1.0f) y[k] = __fmul_rn(y[k], times);
        }
        if (at < dim)
            *(uint2 *)(p + at) = make_uint2(kk_dbf16x2(y[0], y[1]), kk_dbf16x2(y[2], y[3]));
    }
}

/* Row blockIdx.x after attention: residual, and the norms that the dense part, the experts and
 * the router take. */
__device__ __forceinline__ void kk_mega_middle(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                               float (*room)[16]) {
    const int dim = a.hidden;
    const size_t at = (size_t)blockIdx.x * (size_t)dim;
    kk_mega_row y = kk_mega_load(a.y + at, dim), x = kk_mega_load(a.x + at, dim);
    const kk_mega_row w = kk_mega_load(l.norm_att, dim);
    const kk_mega_row w1 = kk_mega_load(l.norm_ffn, dim), w2 = kk_mega_load(l.norm_experts, dim);
    const kk_mega_row w3 = kk_mega_load(l.router_scale, dim);
    kk_scale(y, y, kk_inv_rms(y, dim, a.eps, room[0]), w);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = __fadd_rn(x.v[i], y.v[i]);
    kk_row_store(a.x + at, x, dim);
    const float inv = kk_inv_rms(x, dim, a.eps, room[1]);
    kk_mega_put(a.z1 + at, x, inv, w1, 1.0f, dim);
    kk_mega_put(a.z2 + at, x, inv, w2, 1.0f, dim);
    kk_mega_put(a.z3 + at, x, inv, w3, __fdiv_rn(1.0f, __fsqrt_rn((float)dim)), dim);
}

/* Row blockIdx.x at the end of a layer, and the norm that follows, if any. */
__device__ __forceinline__ void kk_mega_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                             const float *next, float (*room)[16]) {
    const int dim = a.hidden;
    const size_t at = (size_t)blockIdx.x * (size_t)dim;
    kk_mega_row y = kk_mega_load(a.dense + at, dim), b = kk_mega_load(a.moe + at, dim);
    kk_mega_row x = kk_mega_load(a.x + at, dim), w1;
    const kk_mega_row wa = kk_mega_load(l.norm_dense, dim), wb = kk_mega_load(l.norm_moe, dim);
    const kk_mega_row w = kk_mega_load(l.norm_out, dim);
    if (next) w1 = kk_mega_load(next, dim);
    kk_scale(y, y, kk_inv_rms(y, dim, a.eps, room[0]), wa);
    kk_scale(b, b, kk_inv_rms(b, dim, a.eps, room[1]), wb);
#pragma unroll
    for (int i = 0; i < 8; i++) y.v[i] = __fadd_rn(y.v[i], b.v[i]);
    kk_scale(y, y, kk_inv_rms(y, dim, a.eps, room[2]), w);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), l.scale);
    kk_row_store(a.x + at, x, dim);
    if (next) kk_mega_put(a.z1 + at, x, kk_inv_rms(x, dim, a.eps, room[3]), w1, 1.0f, dim);
}

/* A row that only has to be normed, into row blockIdx.x of z1. */
__device__ __forceinline__ void kk_mega_norm(const kk_cu_mega &a, const float *x, const float *w,
                                             float (*room)[16]) {
    const int dim = a.hidden;
    const kk_mega_row r = kk_mega_load(x, dim), by = kk_mega_load(w, dim);
    const float inv = kk_inv_rms(r, dim, a.eps, room[0]);
    kk_mega_put(a.z1 + (size_t)blockIdx.x * (size_t)dim, r, inv, by, 1.0f, dim);
}

/* ---- strips ------------------------------------------------------------------------------- */

/* A unit's sums, finished: one warp, lane by lane over (row, output). */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_finish(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                               const kk_choice *c, int phase, int unit,
                                               const float *part) {
    const int lane = threadIdx.x % KK_WARP;
    int from = 0, n = a.n_rows, o = unit * 8, pitch = a.hidden;
    float *out = a.y;
    if (phase == MEGA_QKV) {
        out = l.store.q;
        pitch = l.q_strips * 8;
        if (unit >= l.q_strips) {
            const bool v = unit >= l.q_strips + l.kv_strips;
            out = (float *)(v ? l.store.v : l.store.k);
            pitch = l.kv_strips * 8;
            o -= (l.q_strips + (v ? l.kv_strips : 0)) * 8;
        }
    } else if (phase == MEGA_EXPERTS && unit < a.hidden / 8) {
        out = a.dense;
    } else if (phase == MEGA_EXPERTS) {
        const int per = a.expert_ffn / 8, e = (unit - a.hidden / 8) / per;
        o = (unit - a.hidden / 8 - e * per) * 8;
        from = c->first[e];
        n = c->first[e + 1] - from;
        out = NULL;
    } else if (phase == MEGA_GATE) {
        out = NULL;
    } else if (phase == MEGA_HEAD) {
        out = a.head_out;
        pitch = a.vocab;
        n = a.n_logits;
    }
    for (int i = lane; i < n * 8; i += KK_WARP) {
        const float v = kk_slices_sum<HIGH>(part, 0, i);
        const int r = i / 8, at = o + i % 8;
        if (out) {
            out[(size_t)r * pitch + at] = phase == MEGA_HEAD ? kk_dsoftcap(v, a.cap) : v;
            continue;
        }
        const uint16_t y = kk_dbf16(kk_glu_of(v, kk_slices_sum<HIGH>(part, 1, i), 0));
        if (phase == MEGA_GATE)
            a.act[(size_t)r * a.ffn + at] = y;
        else
            a.expert_act[(size_t)c->pair[from + r] * a.expert_ffn + at] = y;
    }
}

/* All strips of a phase but DOWN.  more: the rows of experts, where x is the dense part's. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_strips(const kk_cu_mega &a, const kk_mega_shared &s, kk_feed &f,
                                               float *parts, int layer, int phase, kk_acts_at x,
                                               kk_acts_at more) {
    constexpr int PART = HIGH ? 128 : 64;
    const int lane = threadIdx.x % KK_WARP, slice = kk_mega_slice(), g = lane / 4;
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const kk_choice *c = &s.choice;
    const int units = kk_mega_units(a, l, c, phase), rows = a.n_rows;
    float *mine = parts + kk_mega_group() * (2 * 2 * KK_SLICES * PART);
    int turn = 0;
    for (int u = kk_mega_first(a, phase, kk_mega_group()); u < units; u += KK_MEGA_GROUPS * (int)gridDim.x, turn++) {
        const bool expert = phase == MEGA_EXPERTS && u >= a.hidden / 8;
        int r0 = g < rows ? g : 0, r1 = g + 8 < rows ? g + 8 : 0;
        int steps = a.hidden / KK_STEP;
        if (phase == MEGA_OUT) steps = l.att_width / KK_STEP;
        if (phase == MEGA_EXPERTS && !expert) steps = a.ffn / KK_STEP;
        if (expert) {
            const int e = (u - a.hidden / 8) / (a.expert_ffn / 8), at = c->first[e];
            const int n = c->first[e + 1] - at;
            r0 = c->pair_row[at + (g < n ? g : 0)];
            r1 = c->pair_row[at + (g + 8 < n ? g + 8 : 0)];
        }
        kk_acts_at from = x;
        if (expert) from = more;
        const char *lo = from.base + (size_t)r0 * from.stride + (lane & 3) * 16;
        const char *hi = HIGH ? from.base + (size_t)r1 * from.stride + (lane & 3) * 16 : lo;
        const int step = kk_slice(steps, slice), n = kk_slice(steps, slice + 1) - step;
        const int subs = kk_mega_subs(a, c, phase, u, slice);
        float *to = mine + (turn & 1) * (2 * KK_SLICES * PART) + slice * PART + g * 8 +
                    2 * (lane % 4);
        for (int i = 0; i < subs; i++, to += KK_SLICES * PART) {
            float sum[4] = {0, 0, 0, 0};
            kk_mega_product<HIGH>(sum, f, a, s, lo, hi, step, from.wrap, n);
            *(float2 *)to = make_float2(sum[0], sum[1]);
            if (HIGH) *(float2 *)(to + 64) = make_float2(sum[2], sum[3]);
        }
        kk_group_sync();
        if (turn % KK_SLICES == slice)
            kk_mega_finish<HIGH>(a, l, c, phase, u,
                                 mine + (turn & 1) * (2 * KK_SLICES * PART));
    }
}

/* Experts' second matrices: a group takes a strip of outputs for all experts, a warp an expert
 * at a time, and slots are added up in order. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_down(const kk_cu_mega &a, const kk_mega_shared &s, kk_feed &f,
                                             float *parts, kk_acts_at x) {
    const kk_choice *c = &s.choice;
    const int lane = threadIdx.x % KK_WARP, slice = kk_mega_slice(), g = lane / 4, t = lane % 4;
    const int pairs = a.n_rows * a.n_used, steps = a.expert_ffn / KK_STEP;
    float *mine = parts + kk_mega_group() * 2 * pairs * 8;
    int turn = 0;
    for (int u = kk_mega_first(a, MEGA_DOWN, kk_mega_group()); u < a.hidden / 8;
         u += KK_MEGA_GROUPS * (int)gridDim.x, turn++) {
        float *to = mine + (turn & 1) * pairs * 8;
        for (int e = slice; e < c->n_active; e += KK_SLICES) {
            const int from = c->first[e], n = c->first[e + 1] - from;
            const int p0 = c->pair[from + (g < n ? g : 0)];
            const int p1 = c->pair[from + (g + 8 < n ? g + 8 : 0)];
            float sum[4] = {0, 0, 0, 0};
            kk_mega_product<HIGH>(sum, f, a, s, x.base + (size_t)p0 * x.stride + t * 16,
                                  x.base + (size_t)p1 * x.stride + t * 16, 0, x.wrap, steps);
            if (g < n) *(float2 *)(to + p0 * 8 + 2 * t) = make_float2(sum[0], sum[1]);
            if (HIGH && g + 8 < n) *(float2 *)(to + p1 * 8 + 2 * t) = make_float2(sum[2], sum[3]);
        }
        kk_group_sync();
        for (int i = (int)threadIdx.x % 256; i < a.n_rows * 8; i += 256) {
            const int r = i / 8;
            float y = 0;
            for (int k = 0; k < a.n_used; k++) {
                const int p = r * a.n_used + k;
                y = __fmaf_rn(c->weight[p], to[p * 8 + i % 8], y);
            }
            a.moe[(size_t)r * a.hidden + u * 8 + i % 8] = y;
        }
    }
}

/* The router's weights come straight from memory: a stage ahead they are asked into the cache. */
__device__ __forceinline__ void kk_mega_prefetch_router(const kk_cu_mega &a,
                                                        const kk_cu_mega_layer &l) {
    const int slices = kk_slices(a.router_steps), pieces = slices * (a.n_expert / 8);
    for (int p = (int)blockIdx.x; p < pieces; p += (int)gridDim.x) {
        const int from = kk_slice(a.router_steps, p % slices);
        const int n = (kk_slice(a.router_steps, p % slices + 1) - from) * 4; /* lines of 128 bytes */
        const char *w = (const char *)l.router +
                        ((size_t)(p / slices) * (size_t)a.router_steps + (size_t)from) * 512;
        if ((int)threadIdx.x < n)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(w + threadIdx.x * 128));
    }
}

/* A slice of a strip of the router by one warp of each of the first blocks, straight from
 * memory: spread over the chip, because everything waits for it.  out[slice][row][expert]. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_router(const kk_cu_mega &a, const kk_cu_mega_layer &l) {
    const int slices = kk_slices(a.router_steps);
    if (threadIdx.x / KK_WARP != KK_MEGA_WARPS - 1) return;
    for (int p = (int)blockIdx.x; p < slices * (a.n_expert / 8); p += (int)gridDim.x)
        kk_router_piece<HIGH>((const uint4 *)l.router, a.z3, a.logits, a.n_rows, a.hidden,
                              a.n_expert, a.router_steps, p / slices, p % slices);
}

#endif
