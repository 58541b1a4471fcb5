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
 * Instructions count as much as bytes: weights are the 16 of m16n8k16 and rows the 8, so that a
 * product of few rows takes one instruction per 512 bytes.  (With rows as the 16, as prompts have
 * them, the sums have the same bits.)
 *
 * Two groups of eight warps work on sixteen outputs at a time; the warps of a group have a slice
 * of K each, so that sums are those of every other kernel here (arith.cuh).
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

#include "attend_few.cuh"
#include "choose.cuh"
#include "rows.cuh"
#include "stream.cuh"

enum {
    KK_MEGA_THREADS = 512,
    KK_MEGA_WARPS = 16,
    KK_MEGA_GROUPS = 2, /* of eight warps */
};

typedef enum { MEGA_QKV, MEGA_OUT, MEGA_GATE, MEGA_EXPERTS, MEGA_DOWN, MEGA_HEAD } kk_mega_phase;

/* Steps of a slot, of two strips each, and its bytes. */
enum { KK_MEGA_CHUNK = 4, KK_MEGA_SLOT = 2 * 512 * KK_MEGA_CHUNK };

/* Rows of a unit's sums in shared memory. */
__host__ __device__ __forceinline__ int kk_mega_pitch(int n_rows) { return (n_rows + 1) / 2 * 2; }

/* Bytes of sums: of each group twice, [slice][16 outputs][rows]; or, in DOWN, [pair][16]. */
__host__ __device__ __forceinline__ int kk_mega_part_bytes(int n_rows, int n_used) {
    const int strips = KK_SLICES * 16 * kk_mega_pitch(n_rows), down = n_rows * n_used * 16;
    return KK_MEGA_GROUPS * 2 * 4 * (strips > down ? strips : down);
}

__host__ __device__ __forceinline__ int kk_mega_ring_bytes(int slots) {
    return KK_MEGA_WARPS * slots * (KK_MEGA_SLOT + 8);
}

/* ---- where weights lie -------------------------------------------------------------------- */

__device__ __forceinline__ int kk_mega_group() { return threadIdx.x / 256; }
__device__ __forceinline__ int kk_mega_slice() { return threadIdx.x / KK_WARP % KK_SLICES; }

/* What all warps of a block share. */
struct kk_mega_shared {
    kk_choice choice;
    kk_cu_mega_layer layer[2]; /* this layer's, and the next one's, by parity */
    struct {
        const uint4 *one, *two;
        int held, put, get, parity, layer, phase, unit, expert, left, routed;
    } feed[KK_MEGA_WARPS]; /* while attention needs the registers */
    int pos;               /* of the first row, where all are one session's */
    float sums[4][16];     /* of norms */
    uint32_t barrier;      /* what the grid's barrier counts to */
    int marks;
};

/* The first unit of this group: phases begin at different groups, so that what is left over of
 * one evens out with the next. */
__device__ __forceinline__ int kk_mega_first(const kk_cu_mega &a, int phase) {
    const int u = (int)blockIdx.x + kk_mega_group() * (int)gridDim.x - a.turn[phase];
    return u < 0 ? u + KK_MEGA_GROUPS * (int)gridDim.x : u;
}

/* Units of sixteen outputs; in GATE and of experts, eight of gate and eight of up. */
__device__ __forceinline__ int kk_mega_units(const kk_cu_mega &a, const kk_mega_shared &s,
                                             int layer, int phase) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    if (phase == MEGA_QKV) return (l.q_strips + l.kv_strips * (l.v ? 2 : 1)) / 2;
    if (phase == MEGA_GATE) return a.gate_units;
    if (phase == MEGA_EXPERTS) return a.dense_units + s.choice.n_active * (a.expert_units);
    return phase == MEGA_HEAD ? a.head_units : a.dense_units;
}

/* A unit's two strips, and their K steps. */
struct kk_mega_strips_at {
    const uint4 *one, *two;
    int steps;
};

/* expert: in DOWN, which of the chosen. */
__device__ __forceinline__ kk_mega_strips_at kk_mega_find(const kk_cu_mega &a,
                                                          const kk_mega_shared &s, int layer,
                                                          int phase, int unit, int expert) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    kk_mega_strips_at at;
    const void *w = a.head, *up = NULL;
    size_t strip = 2 * (size_t)unit;
    at.steps = a.hidden_steps;
    if (phase == MEGA_QKV) {
        w = l.q;
        if (2 * unit >= l.q_strips) {
            strip -= l.q_strips;
            w = l.k;
            if (strip >= (size_t)l.kv_strips) {
                strip -= l.kv_strips;
                w = l.v;
            }
        }
    } else if (phase == MEGA_OUT) {
        w = l.o;
        at.steps = l.att_width / KK_STEP;
    } else if (phase == MEGA_GATE) {
        strip = (size_t)unit;
        w = l.gate;
        up = l.up;
    } else if (phase == MEGA_DOWN) {
        w = l.experts_down;
        at.steps = a.expert_steps;
        strip += (size_t)s.choice.active[expert] * (size_t)a.down_strips;
    } else if (phase == MEGA_EXPERTS && unit < a.dense_units) {
        w = l.down;
        at.steps = a.ffn_steps;
    } else if (phase == MEGA_EXPERTS) {
        const int per = a.expert_units, e = (unit - a.dense_units) / per;
        w = l.experts;
        up = (const uint4 *)w + (size_t)per * (size_t)at.steps * KK_WARP;
        strip = (size_t)s.choice.active[e] * (size_t)a.expert_strips +
                (size_t)(unit - a.dense_units - e * per);
    }
    at.one = (const uint4 *)w + strip * (size_t)at.steps * KK_WARP;
    at.two =
        up ? (const uint4 *)up + strip * (size_t)at.steps * KK_WARP : at.one + at.steps * KK_WARP;
    return at;
}

__device__ __forceinline__ int kk_mega_steps(const kk_cu_mega &a, const kk_mega_shared &s,
                                             int layer, int phase, int unit) {
    if (phase == MEGA_OUT) return s.layer[layer & 1].att_width / KK_STEP;
    if (phase == MEGA_DOWN) return a.expert_steps;
    if (phase == MEGA_EXPERTS && unit < a.dense_units) return a.ffn_steps;
    return a.hidden_steps;
}

/* ---- asking ------------------------------------------------------------------------------- */

/* One warp's ring, and the place in the forward up to which weights were asked for. */
struct kk_feed {
    uint32_t ring, bars; /* shared addresses */
    int slots, held, put, get;
    uint32_t parity;
    int layer, phase, unit, expert; /* asked for next */
    int left;                       /* steps of the unit asked for now */
    const uint4 *one, *two;
    int routed; /* layers whose experts are known */
};

/* Where this warp's ring lies. */
__device__ __forceinline__ void kk_feed_place(kk_feed &f, const kk_cu_mega &a, char *rings) {
    const int warp = kk_tid() / KK_WARP, slots = a.slots;
    f.ring = kk_shared(rings) + warp * slots * KK_MEGA_SLOT;
    f.bars = kk_shared(rings) + KK_MEGA_WARPS * slots * KK_MEGA_SLOT + warp * slots * 8;
    f.slots = slots;
}

__device__ __forceinline__ void kk_feed_open(kk_feed &f, const kk_cu_mega &a, char *rings) {
    const int slots = a.slots;
    kk_feed_place(f, a, rings);
    f.held = f.put = f.get = 0;
    f.parity = 0;
    f.layer = f.phase = f.left = f.routed = 0;
    f.unit = kk_mega_first(a, MEGA_QKV);
    f.expert = kk_mega_slice();
    f.one = f.two = NULL;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % KK_WARP == 0) {
#pragma unroll 1
        for (int i = 0; i < slots; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(f.bars + i * 8));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("fence.proxy.async.shared::cta;");
    }
#endif
    __syncwarp();
}

/* Moves to the next unit in which this warp has steps, if that is known yet. */
__device__ __forceinline__ void kk_feed_seek(kk_feed &f, const kk_cu_mega &a,
                                             const kk_mega_shared &s) {
    const int last = a.head ? a.n_layer : a.n_layer - 1;
    while (f.layer <= last) {
        const bool routed = f.layer < f.routed || f.phase < MEGA_EXPERTS || f.phase == MEGA_HEAD;
        if (!routed && (f.phase == MEGA_DOWN || f.unit >= a.dense_units)) return;
        if (f.unit >= kk_mega_units(a, s, f.layer, f.phase)) {
            if (f.phase >= MEGA_DOWN) f.layer++;
            f.phase = f.phase < MEGA_DOWN    ? f.phase + 1
                      : f.layer == a.n_layer ? (int)MEGA_HEAD
                                             : (int)MEGA_QKV;
            f.unit = kk_mega_first(a, f.phase);
            f.expert = kk_mega_slice();
            continue;
        }
        const bool down = f.phase == MEGA_DOWN;
        const int unit = f.unit, expert = f.expert;
        f.expert += down ? KK_SLICES : 0;
        if (!down || f.expert >= s.choice.n_active) { /* that was its last */
            f.unit += KK_MEGA_GROUPS * (int)gridDim.x;
            f.expert = kk_mega_slice();
        }
        if (down && expert >= s.choice.n_active) continue;
        const kk_mega_strips_at at = kk_mega_find(a, s, f.layer, f.phase, unit, expert);
        const int from = down ? 0 : kk_slice(at.steps, kk_mega_slice());
        f.left = down ? at.steps : kk_slice(at.steps, kk_mega_slice() + 1) - from;
        f.one = at.one + from * KK_WARP;
        f.two = at.two + from * KK_WARP;
        if (f.left) return;
    }
}

/* Asks for the next steps, at most a slot of them. */
__device__ __forceinline__ void kk_feed_ask(kk_feed &f) {
    const int n = min((int)KK_MEGA_CHUNK, f.left);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % KK_WARP == 0) {
        const uint32_t bar = f.bars + f.put * 8, to = f.ring + f.put * KK_MEGA_SLOT;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                     "r"(n * 1024)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(to),
                     "l"(f.one), "r"(n * 512), "r"(bar)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(to + (int)KK_MEGA_CHUNK * 512),
                     "l"(f.two), "r"(n * 512), "r"(bar)
                     : "memory");
    }
#endif
    f.one += n * KK_WARP;
    f.two += n * KK_WARP;
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

/* The shared address of the oldest slot, once it is there. */
__device__ __forceinline__ uint32_t kk_feed_wait(const kk_feed &f) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n .reg .pred p;\n"
                 "again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                 "@p bra done;\n bra again;\n done:\n}" ::"r"(f.bars + f.get * 8),
                 "r"(f.parity)
                 : "memory");
#endif
    return f.ring + f.get * KK_MEGA_SLOT;
}

__device__ __forceinline__ void kk_feed_release(kk_feed &f) {
    __syncwarp();
    f.held--;
    if (++f.get == f.slots) {
        f.get = 0;
        f.parity ^= 1;
    }
}

/* Puts a feed by and takes it up again: what the compiler would put into local memory instead
 * costs a trip to memory. */
__device__ __forceinline__ void kk_feed_rest(const kk_feed &f, kk_mega_shared &s) {
    if (kk_tid() % KK_WARP) return;
    auto &to = s.feed[kk_tid() / KK_WARP];
    to.one = f.one;
    to.two = f.two;
    to.held = f.held;
    to.put = f.put;
    to.get = f.get;
    to.parity = (int)f.parity;
    to.layer = f.layer;
    to.phase = f.phase;
    to.unit = f.unit;
    to.expert = f.expert;
    to.left = f.left;
    to.routed = f.routed;
}
__device__ __forceinline__ void kk_feed_wake(kk_feed &f, const kk_cu_mega &a,
                                             const kk_mega_shared &s, char *rings) {
    kk_feed_place(f, a, rings);
    const volatile auto &from = s.feed[kk_tid() / KK_WARP];
    f.one = (const uint4 *)from.one;
    f.two = (const uint4 *)from.two;
    f.held = from.held;
    f.put = from.put;
    f.get = from.get;
    f.parity = (uint32_t)from.parity;
    f.layer = from.layer;
    f.phase = from.phase;
    f.unit = from.unit;
    f.expert = from.expert;
    f.left = from.left;
    f.routed = from.routed;
}

/* ---- barriers ----------------------------------------------------------------------------- */

__device__ __forceinline__ void kk_group_sync() {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + kk_mega_group()) : "memory");
}

/* For measurements: the first block's clock. */
__device__ __forceinline__ void kk_grid_mark(const kk_cu_mega &a, kk_mega_shared &s) {
    if (a.trace && kk_bid() == 0 && kk_tid() == 0) a.trace[s.marks++] = (uint64_t)clock64();
}

/* A layer's pointers, word by word: by warps that wait for others anyway. */
__device__ __forceinline__ void kk_mega_copy_layer(const kk_cu_mega &a, kk_mega_shared &s,
                                                   int layer) {
    const int i = kk_tid() - 64;
    if (layer >= a.n_layer || i < 0 || i >= (int)(sizeof(kk_cu_mega_layer) / 4)) return;
    ((uint32_t *)&s.layer[layer & 1])[i] = ((const uint32_t *)&a.layer[layer])[i];
}

/* All blocks have come this far, and what they wrote can be read.  Meanwhile the pointers of a
 * layer are copied, unless its number is that of none. */
__device__ __forceinline__ void kk_grid_sync(const kk_cu_mega &a, kk_mega_shared &s,
                                             int layer = KK_CU_MEGA_LAYERS) {
    kk_sync();
    kk_mega_copy_layer(a, s, layer);
    if (kk_tid() == 0) {
        const uint32_t target = s.barrier += gridDim.x;
        uint32_t seen;
        kk_grid_mark(a, s);
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.barrier) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(a.barrier)
                         : "memory");
        while (seen < target);
        kk_grid_mark(a, s);
    }
    kk_sync();
}

/* The count is left at 0 for the next launch: the last block to come does it. */
__device__ __forceinline__ void kk_grid_leave(const kk_cu_mega &a, kk_mega_shared &s) {
    kk_sync();
    if (kk_tid() == 0) {
        kk_grid_mark(a, s);
        if (atomicAdd(a.barrier, 1u) + 1 == s.barrier + gridDim.x) *a.barrier = 0;
    }
}

/* ---- products ----------------------------------------------------------------------------- */

/* Rows of bf16 activations, staged in shared memory where they fit and read where they lie
 * otherwise. */
struct kk_acts_at {
    const char *base;
    int stride; /* bytes */
};

/* Stages rows at room and moves it on, if they fit before `end`.  The first `skip` warps have
 * something else to do. */
__device__ __forceinline__ kk_acts_at kk_mega_stage(char *&room, const char *end, const uint16_t *x,
                                                    int n_rows, int n_in, int skip) {
    const int stride = kk_stage_stride(n_in), warp = kk_tid() / KK_WARP - skip;
    if (end - room < (long)n_rows * stride) return kk_acts_at{(const char *)x, n_in * 2};
    /* As many warps to a row as there are, all of its pieces asked for together. */
    const int share = max(1, (KK_MEGA_WARPS - skip) / n_rows), step = share * KK_WARP;
#pragma unroll 1
    for (int r = warp % n_rows; warp >= 0 && warp < share * n_rows; r += KK_MEGA_WARPS - skip) {
        if (r >= n_rows) break;
        const uint4 *from = (const uint4 *)(x + (size_t)r * n_in);
        uint4 *to = (uint4 *)(room + r * stride);
#pragma unroll 1
        for (int c = warp / n_rows % share * KK_WARP + kk_tid() % KK_WARP; c < n_in / 8;
             c += 6 * step) {
            uint4 v[6];
#pragma unroll
            for (int k = 0; k < 6; k++)
                if (c + k * step < n_in / 8) v[k] = __ldcg(from + c + k * step);
#pragma unroll
            for (int k = 0; k < 6; k++)
                if (c + k * step < n_in / 8) to[c + k * step] = v[k];
        }
    }
    const kk_acts_at at = {room, stride};
    room += (n_rows * stride + 127) / 128 * 128;
    return at;
}

__device__ __forceinline__ uint4 kk_lds(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* One step of two strips: outputs are the 16, and eight rows the 8. */
__device__ __forceinline__ void kk_step_rows(float c[4], const uint4 &one, const uint4 &two,
                                             const uint4 &x) {
    kk_mma(c, one.x, two.x, one.y, two.y, x.x, x.y);
    kk_mma(c, one.z, two.z, one.w, two.w, x.z, x.w);
}

/* c (rows 0 to 7), d (8 to 15) += n steps from the ring against activations from lo and hi on. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_product(float c[4], float d[4], kk_feed &f,
                                                const kk_cu_mega &a, const kk_mega_shared &s,
                                                const char *lo, const char *hi, int n) {
    constexpr int CHUNK = KK_MEGA_CHUNK;
    const uint32_t lane = (threadIdx.x % KK_WARP) * 16;
    for (;; n -= CHUNK) {
        kk_feed_fill(f, a, s); /* also after the last: the ring is full while others work */
        if (n <= 0) break;
        if (n >= CHUNK) {
            uint4 x[CHUNK], y[CHUNK];
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                x[i] = *(const uint4 *)(lo + i * 64);
                if (HIGH) y[i] = *(const uint4 *)(hi + i * 64);
            }
            const uint32_t slot = kk_feed_wait(f) + lane;
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const uint4 one = kk_lds(slot + i * 512), two = kk_lds(slot + (CHUNK + i) * 512);
                kk_step_rows(c, one, two, x[i]);
                if (HIGH) kk_step_rows(d, one, two, y[i]);
            }
        } else {
            const uint32_t slot = kk_feed_wait(f) + lane;
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                const uint4 one = kk_lds(slot + i * 512), two = kk_lds(slot + (CHUNK + i) * 512);
                kk_step_rows(c, one, two, *(const uint4 *)(lo + i * 64));
                if (HIGH) kk_step_rows(d, one, two, *(const uint4 *)(hi + i * 64));
            }
        }
        kk_feed_release(f);
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

__device__ __forceinline__ void kk_mega_put(uint16_t *p, const kk_mega_row &x, float inv,
                                            const kk_mega_row &w, float times, int dim) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = i * KK_ROW_SPAN + 4 * kk_tid();
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

/* Row kk_bid() after attention: residual, and the norms that the dense part, the experts and
 * the router take. */
__device__ __forceinline__ void kk_mega_middle(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                               float (*room)[16]) {
    const int dim = a.hidden;
    const size_t at = (size_t)kk_bid() * (size_t)dim;
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

/* Row kk_bid() at the end of a layer, and the norm that follows, if any. */
__device__ __forceinline__ void kk_mega_tail(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                             const float *next, float (*room)[16]) {
    const int dim = a.hidden;
    const size_t at = (size_t)kk_bid() * (size_t)dim;
    kk_mega_row y = kk_mega_load(a.dense + at, dim), b = kk_mega_load(a.moe + at, dim);
    kk_mega_row x = kk_mega_load(a.x + at, dim);
    const kk_mega_row wa = kk_mega_load(l.norm_dense, dim), wb = kk_mega_load(l.norm_moe, dim);
    const kk_mega_row w = kk_mega_load(l.norm_out, dim);
    const kk_mega_row w1 = kk_mega_load(next ? next : l.norm_out, dim); /* no branch among loads */
    kk_row_sum_begin(y, room[0]);
    kk_row_sum_begin(b, room[1]);
    kk_sync();
    kk_scale(y, y, kk_row_sum_end(dim, a.eps, room[0]), wa);
    kk_scale(b, b, kk_row_sum_end(dim, a.eps, room[1]), wb);
#pragma unroll
    for (int i = 0; i < 8; i++) y.v[i] = __fadd_rn(y.v[i], b.v[i]);
    kk_scale(y, y, kk_inv_rms(y, dim, a.eps, room[2]), w);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = __fmul_rn(__fadd_rn(x.v[i], y.v[i]), l.scale);
    kk_row_store(a.x + at, x, dim);
    if (next) kk_mega_put(a.z1 + at, x, kk_inv_rms(x, dim, a.eps, room[3]), w1, 1.0f, dim);
}

/* A row that only has to be normed, into row kk_bid() of z1. */
__device__ __forceinline__ void kk_mega_norm(const kk_cu_mega &a, const float *x, const float *w,
                                             float (*room)[16]) {
    const int dim = a.hidden;
    const kk_mega_row r = kk_mega_load(x, dim), by = kk_mega_load(w, dim);
    const float inv = kk_inv_rms(r, dim, a.eps, room[0]);
    kk_mega_put(a.z1 + (size_t)kk_bid() * (size_t)dim, r, inv, by, 1.0f, dim);
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
__device__ __forceinline__ float *kk_mega_out(const kk_cu_mega &a, const kk_cu_mega_layer &l,
                                              int phase, int unit, int &pitch) {
    int o = unit * 16;
    float *out = phase == MEGA_HEAD ? a.head_out : phase == MEGA_EXPERTS ? a.dense : a.y;
    pitch = phase == MEGA_HEAD ? a.vocab : a.hidden;
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

/* A unit's sums, finished by one warp. */
__device__ __forceinline__ void kk_mega_finish(const kk_cu_mega &a, const kk_mega_shared &s,
                                               int layer, int phase, int unit, const float *part,
                                               int part_pitch) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const int lane = kk_tid() % KK_WARP;
    const bool expert = phase == MEGA_EXPERTS && unit >= a.dense_units;
    if (phase != MEGA_GATE && !expert) {
        int pitch;
        float *out = kk_mega_out(a, l, phase, unit, pitch);
#pragma unroll 1
        for (int i = lane; i < (phase == MEGA_HEAD ? a.n_logits : a.n_rows) * 16; i += KK_WARP) {
            const float v = kk_mega_sum(part, part_pitch, i % 16, i / 16);
            out[(size_t)(i / 16) * pitch + i % 16] = phase == MEGA_HEAD ? kk_dsoftcap(v, a.cap) : v;
        }
        return;
    }
    const int per = a.expert_units, e = expert ? (unit - a.dense_units) / per : 0;
    const int from = expert ? s.choice.first[e] : 0;
    const int n = expert ? s.choice.first[e + 1] - from : a.n_rows;
#pragma unroll 1
    for (int i = lane; i < n * 8; i += KK_WARP) {
        const int r = i / 8, k = i % 8;
        const uint16_t y = kk_dbf16(kk_glu_of(kk_mega_sum(part, part_pitch, k, r),
                                              kk_mega_sum(part, part_pitch, 8 + k, r), 0));
        if (expert)
            a.expert_act[(size_t)s.choice.pair[from + r] * a.expert_ffn +
                         (unit - a.dense_units - e * per) * 8 + k] = y;
        else
            a.act[(size_t)r * a.ffn + unit * 8 + k] = y;
    }
}

/* What a warp multiplies with: this lane's rows, and how many there are. */
struct kk_mega_rows {
    const char *lo, *hi;
    int first, n; /* of the expert's pairs, in DOWN */
};

template <bool HIGH>
__device__ __forceinline__ kk_mega_rows kk_mega_rows_of(const kk_cu_mega &a,
                                                        const kk_mega_shared &s, int phase,
                                                        int unit, int expert, kk_acts_at x,
                                                        kk_acts_at more) {
    const int tid = kk_tid(), g = tid % KK_WARP / 4, t = tid % 4;
    const kk_choice *c = &s.choice;
    kk_mega_rows r = {NULL, NULL, 0, phase == MEGA_HEAD ? a.n_logits : a.n_rows};
    int r0 = g < r.n ? g : 0, r1 = g + 8 < r.n ? g + 8 : 0;
    const bool routed = phase == MEGA_EXPERTS && unit >= a.dense_units;
    if (routed || phase == MEGA_DOWN) {
        const int e = routed ? (unit - a.dense_units) / (a.expert_units) : expert;
        const short *of = routed ? c->pair_row : c->pair;
        r.first = c->first[e];
        r.n = c->first[e + 1] - r.first;
        r0 = of[r.first + (g < r.n ? g : 0)];
        r1 = of[r.first + (g + 8 < r.n ? g + 8 : 0)];
    }
    if (routed) x = more;
    r.lo = x.base + (size_t)r0 * x.stride + t * 16;
    r.hi = HIGH ? x.base + (size_t)r1 * x.stride + t * 16 : r.lo;
    return r;
}

/* DOWN: the sums of an expert's rows, by pair; then slots are added up in order. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_put_pairs(const kk_mega_shared &s, float *to,
                                                  const kk_mega_rows &r, const float c[4],
                                                  const float d[4]) {
    const int g = kk_tid() % KK_WARP / 4, t = kk_tid() % 4;
#pragma unroll
    for (int i = 0; i < (HIGH ? 4 : 2); i++) {
        const int row = 2 * t + i % 2 + i / 2 * 8;
        if (row >= r.n) continue;
        float *pair = to + s.choice.pair[r.first + row] * 16 + g;
        pair[0] = i < 2 ? c[i] : d[i - 2];
        pair[8] = i < 2 ? c[i + 2] : d[i];
    }
}

__device__ __forceinline__ void kk_mega_add_slots(const kk_cu_mega &a, const kk_mega_shared &s,
                                                  int unit, const float *from) {
#pragma unroll 1
    for (int i = kk_tid() % 256; i < a.n_rows * 16; i += 256) {
        const int r = i / 16;
        float y = 0;
#pragma unroll 4
        for (int k = 0; k < a.n_used; k++) {
            const int p = r * a.n_used + k;
            y = __fmaf_rn(s.choice.weight[p], from[p * 16 + i % 16], y);
        }
        a.moe[(size_t)r * a.hidden + unit * 16 + i % 16] = y;
    }
}

/* All units of a phase.  more: the rows of experts, where x is the dense part's. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_phase_units(const kk_cu_mega &a, const kk_mega_shared &s,
                                                    kk_feed &f, float *parts, int layer, int phase,
                                                    kk_acts_at x, kk_acts_at more) {
    const int tid = kk_tid(), slice = tid / KK_WARP % KK_SLICES;
    const bool down = phase == MEGA_DOWN;
    const int units = kk_mega_units(a, s, layer, phase), pitch = a.part_pitch;
    const int size = a.part_floats;
    float *mine = parts + tid / 256 * 2 * size;
    int turn = 0;
    for (int u = kk_mega_first(a, phase); u < units; u += KK_MEGA_GROUPS * (int)gridDim.x, turn++) {
        float *to = mine + (turn & 1) * size;
        for (int e = slice; e < (down ? s.choice.n_active : slice + 1); e += KK_SLICES) {
            float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
            const kk_mega_rows r = kk_mega_rows_of<HIGH>(a, s, phase, u, e, x, more);
            const int steps = kk_mega_steps(a, s, layer, phase, u);
            const int from = down ? 0 : kk_slice(steps, slice);
            const int n = down ? steps : kk_slice(steps, slice + 1) - from;
            kk_mega_product<HIGH>(c, d, f, a, s, r.lo + from * 64, r.hi + from * 64, n);
            if (down) {
                kk_mega_put_pairs<HIGH>(s, to, r, c, d);
                continue;
            }
            const int t = tid % 4;
            float *at = to + (slice * 16 + tid % KK_WARP / 4) * pitch + 2 * t;
            if (2 * t < pitch) {
                *(float2 *)at = make_float2(c[0], c[1]);
                *(float2 *)(at + 8 * pitch) = make_float2(c[2], c[3]);
            }
            if (HIGH && 2 * t + 8 < pitch) {
                *(float2 *)(at + 8) = make_float2(d[0], d[1]);
                *(float2 *)(at + 8 * pitch + 8) = make_float2(d[2], d[3]);
            }
        }
        kk_group_sync();
        if (down)
            kk_mega_add_slots(a, s, u, to);
        else if (turn % KK_SLICES == slice)
            kk_mega_finish(a, s, layer, phase, u, to, pitch);
    }
}

/* The router's weights come straight from memory: a stage ahead they are asked into the cache. */
__device__ __forceinline__ void kk_mega_prefetch_router(const kk_cu_mega &a,
                                                        const kk_cu_mega_layer &l) {
    const int slices = kk_slices(a.router_steps), pieces = slices * (a.n_expert / 8);
    for (int p = kk_bid(); p < pieces; p += (int)gridDim.x) {
        const int from = kk_slice(a.router_steps, p % slices);
        const int n =
            (kk_slice(a.router_steps, p % slices + 1) - from) * 4; /* lines of 128 bytes */
        const char *w = (const char *)l.router +
                        ((size_t)(p / slices) * (size_t)a.router_steps + (size_t)from) * 512;
        if (kk_tid() < n) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + kk_tid() * 128));
    }
}

/* A slice of a strip of the router by one warp of each of the first blocks, straight from
 * memory: spread over the chip, because everything waits for it.  out[slice][row][expert]. */
template <bool HIGH>
__device__ __forceinline__ void kk_mega_router(const kk_cu_mega &a, const kk_cu_mega_layer &l) {
    const int slices = kk_slices(a.router_steps);
    if (kk_tid() / KK_WARP != KK_MEGA_WARPS - 1) return;
#pragma unroll 1
    for (int p = kk_bid(); p < slices * (a.n_expert / 8); p += (int)gridDim.x)
        kk_router_piece<HIGH>((const uint4 *)l.router, a.z3, a.logits, a.n_rows, a.hidden,
                              a.n_expert, a.router_steps, p / slices, p % slices);
}

#endif
