/* mega_feed.cuh - where the weights of a forward of few rows lie, and the rings that bring them.
 *
 * Each group of eight warps has a ring of slots in shared memory, a part of each slot for each
 * warp.  A warp beside the group asks for weights, a lane for each part, across stages, as far
 * ahead as the ring holds, while norms, attention and barriers go on.  It is none of those that
 * work because asking takes as long as memory does: the unit that copies takes only so much at a
 * time, and whoever asks for more stands still.
 *
 * What is asked for early delays what others need now.  So there is a mark up to which weights may
 * be asked for (until): experts wait for their router, and the output projection until attention
 * has read its pages.  And a block that tells the others how far it is (a release) waits for every
 * copy it has under way: of weights that lie beyond a barrier, half a slot is asked for at a
 * time.  (Not of the head's, which come once, nor of the experts', for which memory is waited
 * for.) */
#ifndef KK_CUDA_MEGA_FEED_CUH
#define KK_CUDA_MEGA_FEED_CUH

#include "choose.cuh"
#include "cuda_ops.h"
#include "stream.cuh"

enum {
    KK_MEGA_THREADS = 512, /* that work */
    KK_MEGA_WARPS = 16,
    KK_MEGA_GROUPS = 2,                     /* of eight warps */
    KK_MEGA_POLLER = KK_MEGA_WARPS,         /* the warp that waits for other blocks */
    KK_MEGA_PRODUCER = KK_MEGA_WARPS + 1,   /* those that ask for weights, one a group */
    KK_MEGA_ROUTER = KK_MEGA_WARPS + 3,     /* and the one that has the router */
    KK_MEGA_BLOCK = KK_MEGA_THREADS + 128,  /* registers go by four warps */
    KK_MEGA_BARRIER = KK_MEGA_THREADS + 32, /* threads of a barrier with one of those */
};

/* In the order of a layer. */
typedef enum {
    MEGA_QKV,
    MEGA_OUT,
    MEGA_GATE,
    MEGA_DENSE, /* the dense second matrix */
    MEGA_EXPERTS,
    MEGA_DOWN,
    MEGA_HEAD, /* after the last layer */
    KK_MEGA_PHASES = 8,
} kk_mega_phase;

/* Pieces of a slot that come one after the other, and how many of them may be under way: of weights
 * beyond a barrier, and of others. */
enum { KK_MEGA_CUTS = 2, KK_IN_FLIGHT_EARLY = 1, KK_IN_FLIGHT = 2 * KK_MEGA_CUTS };

/* Steps of a slot, of two strips each; bytes of a warp's part, and of a slot. */
enum {
    KK_MEGA_CHUNK = 4,
    KK_MEGA_PART = 2 * 512 * KK_MEGA_CHUNK,
    KK_MEGA_SLOT = KK_SLICES * KK_MEGA_PART,
};

/* ---- sizes -------------------------------------------------------------------------------- */

/* The sizes of a forward of up to ROWS rows, which are 1, 8 or 16: those of 26B-A4B. */
template <int ROWS> struct kk_mega_of {
    static constexpr bool ONE = ROWS == 1, HIGH = ROWS > 8;
    static constexpr int SLOTS = ONE ? 3 : 2; /* more rows need the room themselves */
    static constexpr int HIDDEN = KK_CU_26B_HIDDEN, FFN = KK_CU_26B_FFN;
    static constexpr int EXPERT_FFN = KK_CU_26B_EXPERT_FFN;
    static constexpr int EXPERTS = KK_CU_26B_EXPERTS, USED = KK_CU_26B_USED;
    static __device__ __forceinline__ int rows(const kk_cu_mega &a) { return ONE ? 1 : a.n_rows; }
    static __device__ __forceinline__ int logits(const kk_cu_mega &a) {
        return ONE ? 1 : a.n_logits;
    }
    /* Floats of a row of a unit's sums, and of all its sums. */
    static __device__ __forceinline__ int pitch(const kk_cu_mega &a) {
        return ONE ? 2 : a.part_pitch;
    }
    static __device__ __forceinline__ int sums(const kk_cu_mega &a) {
        return ONE ? KK_SLICES * 16 * 2 : a.part_floats;
    }
};

/* What all warps of a block share. */
struct kk_mega_shared {
    kk_choice choice;
    kk_cu_mega_layer layer[2]; /* this layer's, and the next one's, by parity */
    int pos;                   /* of the first row, where all are one session's */
    float sums[4][16];         /* of norms */
    int until; /* KK_MEGA_PHASES * layer + phase: from here on nothing is asked for yet */
    int marks;
};

/* ---- where weights lie -------------------------------------------------------------------- */

__device__ __forceinline__ int kk_mega_group() { return kk_tid() / 256; }
__device__ __forceinline__ int kk_mega_slice() { return kk_tid() / KK_WARP % KK_SLICES; }

/* The dense second matrix of a few rows is one group's, while the other chooses experts. */
template <class S> __device__ __forceinline__ int kk_mega_stride(int phase) {
    return (!S::ONE && phase == MEGA_DENSE ? 1 : KK_MEGA_GROUPS) * (int)gridDim.x;
}

/* The first unit of a group: phases begin at different groups, so that what is left over of
 * one evens out with the next. */
template <class S>
__device__ __forceinline__ int kk_mega_first(const kk_cu_mega &a, int phase, int group) {
    if (!S::ONE && phase == MEGA_DENSE) /* none for the first group */
        return (int)gridDim.x - 1 - (int)blockIdx.x + (group ? 0 : S::HIDDEN);
    const int u = (int)blockIdx.x + group * (int)gridDim.x - a.shift[phase];
    return u < 0 ? u + kk_mega_stride<S>(phase) : u;
}

/* Units of sixteen outputs; in GATE and of experts, eight of gate and eight of up. */
template <class S>
__device__ __forceinline__ int kk_mega_units(const kk_cu_mega &a, const kk_mega_shared &s,
                                             int layer, int phase) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    if (phase == MEGA_QKV) return l.qkv_units;
    if (phase == MEGA_GATE) return S::FFN / 8;
    if (phase == MEGA_EXPERTS) return s.choice.n_active * (S::EXPERT_FFN / 8);
    return (phase == MEGA_HEAD ? a.vocab : S::HIDDEN) / 16;
}

/* K steps of a unit. */
template <class S>
__device__ __forceinline__ int kk_mega_steps(const kk_cu_mega &a, const kk_mega_shared &s,
                                             int layer, int phase) {
    if (phase == MEGA_OUT) return s.layer[layer & 1].att_width / KK_STEP;
    if (phase == MEGA_DENSE) return S::FFN / KK_STEP;
    return (phase == MEGA_DOWN ? S::EXPERT_FFN : S::HIDDEN) / KK_STEP;
}

/* A unit's two strips. */
struct kk_mega_strips_at {
    const uint4 *one, *two;
};

/* expert: in DOWN, which of the chosen. */
template <class S>
__device__ __forceinline__ kk_mega_strips_at kk_mega_find(const kk_cu_mega &a,
                                                          const kk_mega_shared &s, int layer,
                                                          int phase, int unit, int expert,
                                                          int steps) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const void *w = a.head, *up = NULL;
    uint32_t strip = 2 * (uint32_t)unit;
    if (phase == MEGA_QKV) {
        w = l.q;
        if (strip >= (uint32_t)l.q_strips) {
            strip -= (uint32_t)l.q_strips;
            w = l.k;
            if (strip >= (uint32_t)l.kv_strips) {
                strip -= (uint32_t)l.kv_strips;
                w = l.v;
            }
        }
    } else if (phase == MEGA_OUT) {
        w = l.o;
    } else if (phase == MEGA_GATE) {
        strip = (uint32_t)unit;
        w = l.gate;
        up = l.up;
    } else if (phase == MEGA_DENSE) {
        w = l.down;
    } else if (phase == MEGA_DOWN) {
        w = l.experts_down;
        strip += (uint32_t)s.choice.active[expert] * (uint32_t)(S::HIDDEN / 8);
    } else if (phase == MEGA_EXPERTS) {
        const uint32_t per = (uint32_t)S::EXPERT_FFN / 8, e = (uint32_t)unit / per;
        w = l.experts;
        strip = (uint32_t)s.choice.active[e] * (uint32_t)(2 * S::EXPERT_FFN / 8) + unit - e * per;
        up = (const uint4 *)w + (size_t)per * (size_t)steps * KK_WARP;
    }
    const size_t at = (size_t)strip * (uint32_t)steps * KK_WARP;
    kk_mega_strips_at where;
    where.one = (const uint4 *)w + at;
    where.two = up ? (const uint4 *)up + at : where.one + steps * KK_WARP;
    return where;
}

/* ---- rings -------------------------------------------------------------------------------- */

/* All shared memory that is not one structure: rings come first. */
extern __shared__ __align__(128) char kk_mega_memory[];

/* A group's barriers: for each slot that its pieces are full, and that it is empty; and that the
 * slices of a unit are summed. */
template <class S> struct kk_bars {
    enum { FULL = 0, EMPTY = S::SLOTS * KK_MEGA_CUTS * 8, SUMMED = EMPTY + S::SLOTS * 8 };
    enum { BYTES = 128 };
};

/* Bytes of all rings: slots, then barriers. */
__host__ __device__ __forceinline__ int kk_mega_ring_bytes(int slots) {
    return KK_MEGA_GROUPS * (slots * KK_MEGA_SLOT + 128);
}

/* Shared addresses of a group's slots and of its barriers. */
struct kk_ring_at {
    uint32_t slots, bars;
};

template <class S> __device__ __forceinline__ kk_ring_at kk_ring_of(int group) {
    const uint32_t rings = kk_shared(kk_mega_memory);
    kk_ring_at r;
    r.slots = rings + group * S::SLOTS * KK_MEGA_SLOT;
    r.bars = rings + KK_MEGA_GROUPS * S::SLOTS * KK_MEGA_SLOT + group * kk_bars<S>::BYTES;
    return r;
}

__device__ __forceinline__ void kk_bar_open(uint32_t bar, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
__device__ __forceinline__ void kk_bar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void kk_bar_wait(uint32_t bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n .reg .pred p;\n"
                 "again%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                 "@p bra done%=;\n bra again%=;\n done%=:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
#endif
}

/* By one thread, for all rings. */
template <class S> __device__ __forceinline__ void kk_rings_open() {
    using bars = kk_bars<S>;
#pragma unroll 1
    for (int g = 0; g < KK_MEGA_GROUPS; g++) {
        const uint32_t at = kk_ring_of<S>(g).bars;
        for (int i = 0; i < S::SLOTS; i++) {
            for (int c = 0; c < KK_MEGA_CUTS; c++)
                kk_bar_open(at + bars::FULL + (i * KK_MEGA_CUTS + c) * 8, KK_SLICES / KK_MEGA_CUTS);
            kk_bar_open(at + bars::EMPTY + i * 8, KK_SLICES);
        }
        kk_bar_open(at + bars::SUMMED, KK_SLICES);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async.shared::cta;");
#endif
}

/* ---- using -------------------------------------------------------------------------------- */

/* A working warp's place in its group's ring. */
struct kk_consumer {
    kk_ring_at ring; /* slots: of this warp's part of the first */
    int get;
    uint32_t parity; /* bit 0: of slots; bit 1: of units summed */
};

/* At the beginning of a phase: what is kept through all of them takes registers from attention. */
template <class S> __device__ __forceinline__ void kk_consumer_open(kk_consumer &f) {
    f.ring = kk_ring_of<S>(kk_mega_group());
    f.ring.slots += kk_mega_slice() * KK_MEGA_PART;
}

/* The shared address of the oldest slot, once it is there. */
template <class S> __device__ __forceinline__ uint32_t kk_consumer_wait(const kk_consumer &f) {
    const int cut = kk_mega_slice() / (KK_SLICES / KK_MEGA_CUTS);
    kk_bar_wait(f.ring.bars + kk_bars<S>::FULL + (f.get * KK_MEGA_CUTS + cut) * 8, f.parity & 1);
    return f.ring.slots + f.get * KK_MEGA_SLOT;
}

/* Lets the slot be filled again: after products that took what was loaded from it.  Loads that are
 * only under way may be overtaken by the next copy; that was seen, in the head of 16 rows. */
template <class S> __device__ __forceinline__ void kk_consumer_release(kk_consumer &f) {
    __syncwarp();
    if (kk_tid() % KK_WARP == 0) kk_bar_arrive(f.ring.bars + kk_bars<S>::EMPTY + f.get * 8);
    if (++f.get == S::SLOTS) {
        f.get = 0;
        f.parity ^= 1;
    }
}

/* This warp's slice of a unit is there; and all are. */
template <class S> __device__ __forceinline__ void kk_group_barrier(kk_consumer &f) {
    const uint32_t bar = f.ring.bars + kk_bars<S>::SUMMED;
    __syncwarp();
    if (kk_tid() % KK_WARP == 0) kk_bar_arrive(bar);
    kk_bar_wait(bar, f.parity >> 1);
    f.parity ^= 2;
}

/* Lets weights be asked for up to a phase; by one thread.  What has to be known for them was
 * written before, and its warp or its block has met since. */
__device__ __forceinline__ void kk_producer_until(kk_mega_shared &s, int layer, int phase) {
    __threadfence_block();
    *(volatile int *)&s.until = layer * KK_MEGA_PHASES + phase;
}

/* Slots of a unit: as many for all warps of a group as the one with most steps needs. */
__device__ __forceinline__ int kk_mega_slots(int steps, bool down) {
    const int most = down || steps < KK_SHORT_STEPS ? steps : (steps + KK_SLICES - 1) / KK_SLICES;
    return (most + KK_MEGA_CHUNK - 1) / KK_MEGA_CHUNK;
}

/* Slots in which this warp has no steps. */
template <class S> __device__ __forceinline__ void kk_consumer_skip(kk_consumer &f, int n) {
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        kk_consumer_wait<S>(f);
        kk_consumer_release<S>(f);
    }
}

/* ---- asking ------------------------------------------------------------------------------- */

/* n steps of two strips into a warp's part of a slot.  They are read once: what is used again
 * should stay in the cache instead. */
__device__ __forceinline__ void kk_bulk_copy(uint32_t to, uint32_t bar, const uint4 *one,
                                             const uint4 *two, int n, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n * 1024)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(one), "r"(n * 512), "r"(bar), "l"(policy)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to + (int)KK_MEGA_CHUNK * 512),
                 "l"(two), "r"(n * 512), "r"(bar), "l"(policy)
                 : "memory");
#endif
}

/* The asking lanes' place in the ring: a lane for each warp's part. */
struct kk_producer {
    kk_ring_at ring;
    int put;
    uint32_t parity;
    uint64_t policy;
    int issued; /* pieces */
    int ahead;  /* slots of which fewer may be under way */
};

/* A slot: n steps, from `at` on, of this lane's strips (n may be 0).  Waits until it is empty, and
 * until few enough copies are under way: every trip to the cache waits behind them, those of
 * barriers and norms too. */
template <class S>
__device__ __forceinline__ void kk_fill_slot(kk_producer &k, const kk_mega_strips_at &w, int at,
                                             int n) {
    const int part = (int)threadIdx.x % KK_WARP;
    const uint32_t to = k.ring.slots + k.put * KK_MEGA_SLOT + part * KK_MEGA_PART;
    kk_bar_wait(k.ring.bars + kk_bars<S>::EMPTY + k.put * 8, k.parity);
    const int pace = k.ahead > 0 ? KK_IN_FLIGHT_EARLY : KK_IN_FLIGHT;
#pragma unroll
    for (int cut = 0; cut < KK_MEGA_CUTS; cut++) {
        const int behind = k.issued - pace; /* this one has to be there */
        if (behind >= 0 && pace < KK_MEGA_CUTS * S::SLOTS) {
            const int i = k.put - (k.issued / KK_MEGA_CUTS - behind / KK_MEGA_CUTS);
            kk_bar_wait(k.ring.bars + kk_bars<S>::FULL +
                            ((i < 0 ? i + S::SLOTS : i) * KK_MEGA_CUTS + behind % KK_MEGA_CUTS) * 8,
                        i < 0 ? k.parity : k.parity ^ 1);
        }
        if (part / (KK_SLICES / KK_MEGA_CUTS) == cut) {
            const uint32_t bar = k.ring.bars + kk_bars<S>::FULL + (k.put * KK_MEGA_CUTS + cut) * 8;
            if (n > 0)
                kk_bulk_copy(to, bar, w.one + at * KK_WARP, w.two + at * KK_WARP, n, k.policy);
            else
                kk_bar_arrive(bar);
        }
        __syncwarp((1 << KK_SLICES) - 1);
        k.issued++;
    }
    k.ahead--;
    if (++k.put == S::SLOTS) {
        k.put = 0;
        k.parity ^= 1;
    }
}

/* A unit's slices. */
template <class S>
__device__ __forceinline__ void kk_fill_slices(kk_producer &k, const kk_mega_strips_at &w,
                                               int steps) {
    const int part = (int)threadIdx.x % KK_WARP, slots = kk_mega_slots(steps, false);
    const int from = kk_slice(steps, part), end = kk_slice(steps, part + 1);
#pragma unroll 1
    for (int j = 0; j < slots; j++) {
        const int at = from + j * KK_MEGA_CHUNK;
        kk_fill_slot<S>(k, w, at, min((int)KK_MEGA_CHUNK, end - at));
    }
}

/* A unit of DOWN: eight experts at a time. */
template <class S>
__device__ __forceinline__ void kk_fill_experts(kk_producer &k, const kk_cu_mega &a,
                                                const kk_mega_shared &s, int layer, int unit) {
    const int steps = S::EXPERT_FFN / KK_STEP, slots = kk_mega_slots(steps, true);
#pragma unroll 1
    for (int e = (int)threadIdx.x % KK_WARP, i = 0; i < s.choice.n_active;
         e += KK_SLICES, i += KK_SLICES) {
        const bool some = e < s.choice.n_active;
        const kk_mega_strips_at w =
            kk_mega_find<S>(a, s, layer, MEGA_DOWN, unit, some ? e : 0, steps);
#pragma unroll 1
        for (int j = 0; j < slots; j++) {
            const int at = j * KK_MEGA_CHUNK;
            kk_fill_slot<S>(k, w, at, some ? min((int)KK_MEGA_CHUNK, steps - at) : 0);
        }
    }
}

/* Everything that a group will need, in the order in which it will; by eight lanes. */
template <class S>
__device__ __forceinline__ void kk_produce(const kk_cu_mega &a, kk_mega_shared &s, int group) {
    const int end = a.n_layer * KK_MEGA_PHASES + (a.head ? MEGA_HEAD + 1 : 0);
    kk_producer k = {kk_ring_of<S>(group), 0, 1, 0, 0, S::SLOTS};
    int at = 0, unit = kk_mega_first<S>(a, MEGA_QKV, group);
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(k.policy));
#pragma unroll 1
    while (at < end) {
        if (at >= *(volatile int *)&s.until) {
            __nanosleep(40);
            continue;
        }
        __threadfence_block();
        const int layer = at / KK_MEGA_PHASES, phase = at % KK_MEGA_PHASES;
        if (unit >= kk_mega_units<S>(a, s, layer, phase)) {
            at++;
            if (phase == MEGA_DOWN)
                at = (layer + 1) * KK_MEGA_PHASES + (layer + 1 == a.n_layer ? MEGA_HEAD : MEGA_QKV);
            unit = kk_mega_first<S>(a, at % KK_MEGA_PHASES, group);
            /* The first slots of most lie beyond a barrier, and have time. */
            const int begins = at % KK_MEGA_PHASES;
            k.ahead = begins == MEGA_EXPERTS || begins == MEGA_HEAD ? 0 : S::SLOTS;
            continue;
        }
        const int steps = kk_mega_steps<S>(a, s, layer, phase);
        if (phase == MEGA_DOWN)
            kk_fill_experts<S>(k, a, s, layer, unit);
        else
            kk_fill_slices<S>(k, kk_mega_find<S>(a, s, layer, phase, unit, 0, steps), steps);
        unit += kk_mega_stride<S>(phase);
    }
}

#endif
