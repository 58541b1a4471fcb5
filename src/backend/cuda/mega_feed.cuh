/* mega_feed.cuh - the weight pipeline of mega.cuh: where each phase's weights lie in global memory,
 * and the ring buffers through which producer warps bring them to shared memory.
 *
 * Each of the two groups of eight consumer warps has one ring buffer and one producer warp:
 *
 *    producer warp (a lane per part; four before sm_90)        consumer warps 0..7 of the group
 *      wait EMPTY[slot]                                          wait FULL[slot][half]
 *      arrive.expect_tx FULL[slot][half], 2 bulk copies          16-byte loads of part i, then mma
 *      next slot                                                 arrive EMPTY[slot]
 *
 *    slot, 32 KB:   part 0 | part 1 | ... | part 7     one part (4 KB) per K slice = per warp
 *    part, 4 KB:    strip one, 4 steps of 512 B | strip two, 4 steps of 512 B
 *                   (packed weights: as many steps of 144 to 288 B as fit each half)
 *    half:          parts 0..3 and parts 4..7 have a FULL mbarrier each
 *    slots:         3 for one row, 2 for more rows (whose activations need the shared memory)
 *    Chips with less shared memory have slots of fewer steps (kk_mega_of).  Before sm_90 there is
 *    no bulk copy: lanes copy 16 bytes at a time (cp.async), and those copies arrive at FULL.
 *    SUMMED:        one more mbarrier of the eight consumer warps, after each unit's products
 *
 * A strip is 8 outputs of a weight matrix and a step is 32 of its inputs, 512 bytes of bf16
 * (stream.cuh).
 *
 * Producers are warps of their own because issuing a bulk copy can take as long as memory does: the
 * copy engine accepts a bounded number of copies, and the thread that issues one more stalls.
 *
 * Producers run ahead of the consumers across phases, while norms, attention and grid barriers go
 * on.  Copies issued too early delay the loads that are needed now, so there are two limits.
 * `until` is the phase before which producers stop: the experts' weights wait for the router, and
 * the output projection's for attention to have read its pages.  And since the release that tells
 * other blocks about an arrival waits for all copies in flight, only half a slot at a time is in
 * flight for weights that lie beyond a grid barrier; the head's weights (once per forward) and the
 * experts' (which are waited for at once) are exempt. */
#ifndef KK_CUDA_MEGA_FEED_CUH
#define KK_CUDA_MEGA_FEED_CUH

#include "attend_few.cuh"
#include "choose.cuh"
#include "cuda_ops.h"
#include "stream.cuh"

enum {
    KK_MEGA_THREADS = 512, /* consumers, in 16 warps */
    KK_MEGA_WARPS = 16,
    KK_MEGA_GROUPS = 2,                    /* of eight consumer warps each */
    KK_MEGA_POLLER = KK_MEGA_WARPS,        /* the warp that polls the grid barrier */
    KK_MEGA_PRODUCER = KK_MEGA_WARPS + 1,  /* two producer warps, one per group */
    KK_MEGA_ROUTER = KK_MEGA_WARPS + 3,    /* the warp that computes the router */
    KK_MEGA_BLOCK = KK_MEGA_THREADS + 128, /* setmaxnreg acts on groups of four warps */
    KK_MEGA_BARRIER =
        KK_MEGA_THREADS +
        32, /* threads of a named barrier between all consumers and one of these warps */
};

/* Products of a layer, in the order in which they run. */
typedef enum {
    MEGA_QKV,
    MEGA_OUT,
    MEGA_GATE,
    MEGA_DENSE, /* down projection of the dense feed-forward */
    MEGA_EXPERTS,
    MEGA_DOWN,
    MEGA_HEAD, /* after the last layer */
    KK_MEGA_PHASES = 8,
} kk_mega_phase;

/* Halves of a slot with a FULL mbarrier each, and how many halves may be in flight: for weights
 * that are needed only after a grid barrier, and for others. */
enum { KK_MEGA_CUTS = 2, KK_IN_FLIGHT_EARLY = 1, KK_IN_FLIGHT = 2 * KK_MEGA_CUTS };

/* Lanes of a producer warp that fill one part of a slot. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
enum { KK_PART_LANES = 1 };
#else
enum { KK_PART_LANES = 4 };
#endif

/* ---- sizes -------------------------------------------------------------------------------- */

/* How much shared memory a block has: 227 KB (sm_90, sm_100), 163 KB (sm_80), 99 KB (sm_86, sm_89,
 * sm_120). */
typedef enum { KK_SMEM_227, KK_SMEM_163, KK_SMEM_99, KK_SMEM_SIZES } kk_smem_size;

/* The compile-time sizes of a forward of up to ROWS rows (1, 8 or 16) of one session, or of several
 * (SESSIONS), in a block with so much shared memory: those of 26B-A4B. */
template <int ROWS, bool SESSIONS = false, int SIZE = KK_SMEM_227, int KV_FORMAT = KK_CU_BF16,
          bool LONG = false, bool WEIGHTS_PACKED = false>
struct kk_mega_of {
    static constexpr int KV = KV_FORMAT; /* how K/V rows are stored */
    static constexpr bool FAR = LONG;    /* heads of 512 go through attend_long.cuh */
    static constexpr bool ONE = ROWS == 1, HIGH = ROWS > 8, MANY = SESSIONS;
    /* Matrices may be packed, each in an encoding of its own (packed.cuh), or bf16. */
    static constexpr bool PACKED = WEIGHTS_PACKED;
    /* K steps of a slot, each for two strips.  The activations and sums of several rows need the
     * shared memory, so their rings are smaller. */
    static constexpr int CHUNK = SIZE == KK_SMEM_227   ? 4
                                 : SIZE == KK_SMEM_163 ? (ONE ? 4 : 2)
                                                       : (ONE ? 2 : 1);
    static constexpr int SLOTS = SIZE == KK_SMEM_227 ? (ONE ? 3 : 2) : ONE || HIGH ? 2 : 3;
    static constexpr int PART = 2 * 512 * CHUNK;  /* bytes of one warp's part of a slot */
    static constexpr int SLOT = KK_SLICES * PART; /* bytes of a slot */
    /* K steps of `words` 16-byte words that a slot holds. */
    static __device__ __forceinline__ int chunk(int words) {
        return PACKED ? PART / 32 / words : CHUNK;
    }
    static constexpr int HIDDEN = KK_CU_26B_HIDDEN, FFN = KK_CU_26B_FFN;
    static constexpr int EXPERT_FFN = KK_CU_26B_EXPERT_FFN;
    static constexpr int EXPERTS = KK_CU_26B_EXPERTS, USED = KK_CU_26B_USED;
    static __device__ __forceinline__ int rows(const kk_cu_mega &a) { return ONE ? 1 : a.n_rows; }
    static __device__ __forceinline__ int logits(const kk_cu_mega &a) {
        return ONE ? 1 : a.n_logits;
    }
    /* Partial sums of a unit are [8 slices][16 outputs][pitch rows] floats: the pitch, and all of
     * them. */
    static __device__ __forceinline__ int pitch(const kk_cu_mega &a) {
        return ONE ? 2 : a.part_pitch;
    }
    static __device__ __forceinline__ int sums(const kk_cu_mega &a) {
        return ONE ? KK_SLICES * 16 * 2 : a.part_floats;
    }
};

/* State that all warps of a block share, beside the dynamic shared memory. */
struct kk_mega_shared {
    kk_choice choice;
    kk_cu_mega_layer layer[2];      /* this layer's and the next one's pointers, at layer % 2 */
    kk_few_group group[KK_CU_ROWS]; /* the sessions: [0] alone where there is one */
    uint8_t group_of[KK_CU_ROWS];   /* the session of each row */
    float sums[4][16];              /* partial sums of squares of up to four norms, one per warp */
    int until; /* KK_MEGA_PHASES * layer + phase: producers stop before this phase */
    int marks;
};

/* ---- where weights lie -------------------------------------------------------------------- */

__device__ __forceinline__ int kk_mega_group() { return kk_tid() / 256; }
__device__ __forceinline__ int kk_mega_slice() { return kk_tid() / KK_WARP % KK_SLICES; }

/* How far apart a group's units are.  With several rows, the dense down projection belongs to group
 * 1 alone, while group 0 chooses experts. */
template <class S> __device__ __forceinline__ int kk_mega_stride(int phase) {
    return (!S::ONE && phase == MEGA_DENSE ? 1 : KK_MEGA_GROUPS) * (int)gridDim.x;
}

/* The first unit of a group.  Phases start at different blocks (a.shift), so that the blocks with
 * one unit less in one phase are those with one more in the next. */
template <class S>
__device__ __forceinline__ int kk_mega_first(const kk_cu_mega &a, int phase, int group) {
    if (!S::ONE && phase == MEGA_DENSE) /* group 0 gets a unit beyond the last: none */
        return (int)gridDim.x - 1 - (int)blockIdx.x + (group ? 0 : S::HIDDEN);
    const int u = (int)blockIdx.x + group * (int)gridDim.x - a.shift[phase];
    return u < 0 ? u + kk_mega_stride<S>(phase) : u;
}

/* Units of a phase.  A unit is sixteen outputs; in GATE and EXPERTS, eight of gate and eight of
 * up. */
template <class S>
__device__ __forceinline__ int kk_mega_units(const kk_cu_mega &a, const kk_mega_shared &s,
                                             int layer, int phase) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    if (phase == MEGA_QKV) return l.qkv_units;
    if (phase == MEGA_GATE) return S::FFN / 8;
    if (phase == MEGA_EXPERTS) return s.choice.n_active * (S::EXPERT_FFN / 8);
    return (phase == MEGA_HEAD ? a.vocab : S::HIDDEN) / 16;
}

/* K steps (of 32 inputs) of a unit. */
template <class S>
__device__ __forceinline__ int kk_mega_steps(const kk_cu_mega &a, const kk_mega_shared &s,
                                             int layer, int phase) {
    if (phase == MEGA_OUT) return s.layer[layer & 1].att_width / KK_STEP;
    if (phase == MEGA_DENSE) return S::FFN / KK_STEP;
    return (phase == MEGA_DOWN ? S::EXPERT_FFN : S::HIDDEN) / KK_STEP;
}

/* The encoding of a unit's strips. */
template <class S>
__device__ __forceinline__ int kk_mega_encoding(const kk_cu_mega &a, const kk_mega_shared &s,
                                                int layer, int phase, int unit) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    if (!S::PACKED) return KK_W_BF16;
    if (phase == MEGA_QKV) {
        const int k = 2 * unit - l.q_strips;
        return k < 0 ? l.as.q : k < l.kv_strips ? l.as.k : l.as.v;
    }
    if (phase == MEGA_OUT) return l.as.o;
    if (phase == MEGA_GATE) return l.as.gate;
    if (phase == MEGA_DENSE) return l.as.down;
    if (phase == MEGA_EXPERTS) return l.as.experts;
    return phase == MEGA_DOWN ? l.as.experts_down : a.head_as;
}

/* The two strips of 8 outputs that make up a unit; 16-byte words of a K step. */
struct kk_mega_strips_at {
    const uint4 *one, *two;
    int words;
};

/* Where a unit's weights lie.  expert: in DOWN, the index among the active experts. */
template <class S>
__device__ __forceinline__ kk_mega_strips_at kk_mega_find(const kk_cu_mega &a,
                                                          const kk_mega_shared &s, int layer,
                                                          int phase, int unit, int expert,
                                                          int steps) {
    const kk_cu_mega_layer &l = s.layer[layer & 1];
    const void *w = a.head, *up = NULL;
    uint32_t strip = 2 * (uint32_t)unit;
    const int words =
        S::PACKED ? kk_words_of(kk_mega_encoding<S>(a, s, layer, phase, unit)) : (int)KK_WARP;
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
        up = (const uint4 *)w + (size_t)per * (size_t)steps * words;
    }
    const size_t at = (size_t)strip * (uint32_t)steps * words;
    kk_mega_strips_at where;
    where.words = words;
    where.one = (const uint4 *)w + at;
    where.two = up ? (const uint4 *)up + at : where.one + steps * words;
    return where;
}

/* ---- rings -------------------------------------------------------------------------------- */

/* The dynamic shared memory: ring buffers first, then sums, then staged rows (cuda_mega.cu). */
extern __shared__ __align__(128) char kk_mega_memory[];

/* Byte offsets of a group's mbarriers: FULL for each half of each slot, EMPTY for each slot, and
 * SUMMED for the partial sums of a unit. */
template <class S> struct kk_bars {
    enum { FULL = 0, EMPTY = S::SLOTS * KK_MEGA_CUTS * 8, SUMMED = EMPTY + S::SLOTS * 8 };
    enum { BYTES = 128 };
};

/* Bytes of both groups' ring buffers: all slots, then all mbarriers. */
template <class S> constexpr int kk_mega_ring_bytes() {
    return KK_MEGA_GROUPS * (S::SLOTS * S::SLOT + 128);
}

/* Shared-memory addresses of a group's slots and of its mbarriers. */
struct kk_ring_at {
    uint32_t slots, bars;
};

template <class S> __device__ __forceinline__ kk_ring_at kk_ring_of(int group) {
    const uint32_t rings = kk_shared(kk_mega_memory);
    kk_ring_at r;
    r.slots = rings + group * S::SLOTS * S::SLOT;
    r.bars = rings + KK_MEGA_GROUPS * S::SLOTS * S::SLOT + group * kk_bars<S>::BYTES;
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
#else
    uint32_t done;
    do
        asm volatile("{\n .reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    while (!done);
#endif
}

/* Initialises the mbarriers of both rings; called by one thread. */
template <class S> __device__ __forceinline__ void kk_rings_open() {
    using bars = kk_bars<S>;
#pragma unroll 1
    for (int g = 0; g < KK_MEGA_GROUPS; g++) {
        const uint32_t at = kk_ring_of<S>(g).bars;
        for (int i = 0; i < S::SLOTS; i++) {
            for (int c = 0; c < KK_MEGA_CUTS; c++)
                kk_bar_open(at + bars::FULL + (i * KK_MEGA_CUTS + c) * 8,
                            KK_SLICES / KK_MEGA_CUTS * KK_PART_LANES);
            kk_bar_open(at + bars::EMPTY + i * 8, KK_SLICES);
        }
        kk_bar_open(at + bars::SUMMED, KK_SLICES);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async.shared::cta;");
#endif
}

/* ---- consuming ---------------------------------------------------------------------------- */

/* A consumer warp's read position in its group's ring buffer. */
struct kk_consumer {
    kk_ring_at ring; /* slots: the address of this warp's part of slot 0 */
    int get;
    uint32_t parity; /* bit 0: phase of the slots' mbarriers; bit 1: phase of SUMMED */
};

/* Computes the addresses at the start of each phase: keeping them through all phases would take
 * registers from attention. */
template <class S> __device__ __forceinline__ void kk_consumer_open(kk_consumer &f) {
    f.ring = kk_ring_of<S>(kk_mega_group());
    f.ring.slots += kk_mega_slice() * S::PART;
}

/* Waits until the oldest slot's half is full, and returns the shared address of this warp's
 * part. */
template <class S> __device__ __forceinline__ uint32_t kk_consumer_wait(const kk_consumer &f) {
    const int cut = kk_mega_slice() / (KK_SLICES / KK_MEGA_CUTS);
    kk_bar_wait(f.ring.bars + kk_bars<S>::FULL + (f.get * KK_MEGA_CUTS + cut) * 8, f.parity & 1);
    return f.ring.slots + f.get * S::SLOT;
}

/* Hands the slot back to the producer.  The caller has used what it loaded from the slot in
 * products: loads that are merely in flight could be overtaken by the next bulk copy, which was
 * observed in the head of 16 rows. */
template <class S> __device__ __forceinline__ void kk_consumer_release(kk_consumer &f) {
    __syncwarp();
    if (kk_tid() % KK_WARP == 0) kk_bar_arrive(f.ring.bars + kk_bars<S>::EMPTY + f.get * 8);
    if (++f.get == S::SLOTS) {
        f.get = 0;
        f.parity ^= 1;
    }
}

/* Waits until all eight warps of the group have written their partial sums of a unit. */
template <class S> __device__ __forceinline__ void kk_group_barrier(kk_consumer &f) {
    const uint32_t bar = f.ring.bars + kk_bars<S>::SUMMED;
    __syncwarp();
    if (kk_tid() % KK_WARP == 0) kk_bar_arrive(bar);
    kk_bar_wait(bar, f.parity >> 1);
    f.parity ^= 2;
}

/* Allows the producers to go on up to a phase; called by one thread.  What they read to find those
 * weights (layer pointers, active experts) was written before, and a barrier has passed since. */
__device__ __forceinline__ void kk_producer_until(kk_mega_shared &s, int layer, int phase) {
    __threadfence_block();
    *(volatile int *)&s.until = layer * KK_MEGA_PHASES + phase;
}

/* Slots that a unit takes: as many for every warp of the group as the one with most steps needs. */
template <class S> __device__ __forceinline__ int kk_mega_slots(int steps, bool down, int words) {
    const int most = down || steps < KK_SHORT_STEPS ? steps : (steps + KK_SLICES - 1) / KK_SLICES;
    const int chunk = S::chunk(words);
    return (most + chunk - 1) / chunk;
}

/* Passes over slots in which this warp has no steps. */
template <class S> __device__ __forceinline__ void kk_consumer_skip(kk_consumer &f, int n) {
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        kk_consumer_wait<S>(f);
        kk_consumer_release<S>(f);
    }
}

/* ---- producing ---------------------------------------------------------------------------- */

/* The part of every slot that this producer lane fills, and its place among the lanes of it. */
__device__ __forceinline__ int kk_producer_part() {
    return (int)threadIdx.x % KK_WARP / KK_PART_LANES;
}
__device__ __forceinline__ void kk_producers_sync() {
    __syncwarp(0xffffffffu >> (KK_WARP - KK_SLICES * KK_PART_LANES));
}

/* Starts the copies of `words` 16-byte words (possibly none) of each of two strips into one warp's
 * part of a slot; the mbarrier completes a phase when all of them have arrived.  Weights are read
 * once per forward, so the L2 policy evicts them first and keeps what is used again. */
template <class S>
__device__ __forceinline__ void kk_copy_part(uint32_t to, uint32_t bar, const uint4 *one,
                                             const uint4 *two, int words, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    if (words <= 0) return kk_bar_arrive(bar);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                 "r"(words * 32)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(one), "r"(words * 16), "r"(bar), "l"(policy)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to + S::PART / 2),
                 "l"(two), "r"(words * 16), "r"(bar), "l"(policy)
                 : "memory");
#else
    const int lane = (int)threadIdx.x % KK_PART_LANES;
#pragma unroll 8
    for (int i = lane; i < words; i += KK_PART_LANES) {
        asm volatile(
            "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + i * 16),
            "l"(one + i), "l"(policy)
            : "memory");
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                         to + S::PART / 2 + i * 16),
                     "l"(two + i), "l"(policy)
                     : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
#endif
}

/* A producer lane's write position. */
struct kk_producer {
    kk_ring_at ring;
    int put;
    uint32_t parity;
    uint64_t policy;
    int issued; /* half slots issued so far */
    int ahead;  /* slots still to be issued under the smaller limit */
};

/* Fills one slot with n steps, from step `at` on, of this lane's strips (n may be 0). Waits until
 * the slot is empty and few enough copies are in flight: every access to L2, those of grid barriers
 * and norms too, queues behind them. */
template <class S>
__device__ __forceinline__ void kk_fill_slot(kk_producer &k, const kk_mega_strips_at &w, int at,
                                             int n) {
    const int part = kk_producer_part();
    const uint32_t to = k.ring.slots + k.put * S::SLOT + part * S::PART;
    kk_bar_wait(k.ring.bars + kk_bars<S>::EMPTY + k.put * 8, k.parity);
    const int pace = k.ahead > 0 ? KK_IN_FLIGHT_EARLY : KK_IN_FLIGHT;
#pragma unroll
    for (int cut = 0; cut < KK_MEGA_CUTS; cut++) {
        const int behind = k.issued - pace; /* this half must have arrived */
        if (behind >= 0 && pace < KK_MEGA_CUTS * S::SLOTS) {
            const int i = k.put - (k.issued / KK_MEGA_CUTS - behind / KK_MEGA_CUTS);
            kk_bar_wait(k.ring.bars + kk_bars<S>::FULL +
                            ((i < 0 ? i + S::SLOTS : i) * KK_MEGA_CUTS + behind % KK_MEGA_CUTS) * 8,
                        i < 0 ? k.parity : k.parity ^ 1);
        }
        if (part / (KK_SLICES / KK_MEGA_CUTS) == cut) {
            const uint32_t bar = k.ring.bars + kk_bars<S>::FULL + (k.put * KK_MEGA_CUTS + cut) * 8;
            const int words = S::PACKED ? w.words : (int)KK_WARP;
            kk_copy_part<S>(to, bar, w.one + at * words, w.two + at * words, n * words, k.policy);
        }
        kk_producers_sync();
        k.issued++;
    }
    k.ahead--;
    if (++k.put == S::SLOTS) {
        k.put = 0;
        k.parity ^= 1;
    }
}

/* Fills the slots of a unit whose K steps are cut into eight slices, one per warp. */
template <class S>
__device__ __forceinline__ void kk_fill_slices(kk_producer &k, const kk_mega_strips_at &w,
                                               int steps) {
    const int part = kk_producer_part(), slots = kk_mega_slots<S>(steps, false, w.words);
    const int from = kk_slice(steps, part), end = kk_slice(steps, part + 1);
    const int chunk = S::chunk(w.words);
#pragma unroll 1
    for (int j = 0; j < slots; j++) {
        const int at = from + j * chunk;
        kk_fill_slot<S>(k, w, at, min(chunk, end - at));
    }
}

/* Fills the slots of a unit of DOWN: eight experts at a time, one per warp. */
template <class S>
__device__ __forceinline__ void kk_fill_experts(kk_producer &k, const kk_cu_mega &a,
                                                const kk_mega_shared &s, int layer, int unit) {
    const int steps = S::EXPERT_FFN / KK_STEP;
    const int words = kk_words_of(kk_mega_encoding<S>(a, s, layer, MEGA_DOWN, unit));
    const int slots = kk_mega_slots<S>(steps, true, words), chunk = S::chunk(words);
#pragma unroll 1
    for (int e = kk_producer_part(), i = 0; i < s.choice.n_active; e += KK_SLICES, i += KK_SLICES) {
        const bool some = e < s.choice.n_active;
        const kk_mega_strips_at w =
            kk_mega_find<S>(a, s, layer, MEGA_DOWN, unit, some ? e : 0, steps);
#pragma unroll 1
        for (int j = 0; j < slots; j++) {
            const int at = j * chunk;
            kk_fill_slot<S>(k, w, at, some ? min(chunk, steps - at) : 0);
        }
    }
}

/* The producer warp's whole work: every weight that a group will use, in that order; by the
 * lanes that fill parts. */
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
            /* The first slots of most phases are needed only after a grid barrier. */
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
