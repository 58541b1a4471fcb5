/* stream.cuh - weights streamed once from global memory into tensor-core products, for 1 to 16
 * rows.
 *
 * A weight matrix lies in memory as strips of 8 outputs.  A K step of a strip is 32 inputs, 512
 * bytes: lane l holds the inputs 8 (l % 4) .. 8 (l % 4) + 7 of output l / 4, which are the operands
 * of two m16n8k16 products.  A warp's K slice of a strip is therefore one contiguous range.
 *
 *    block: 256 threads = 8 warps; each warp is its own producer and consumer, one K slice each
 *      lane 0:  mbarrier.arrive.expect_tx, cp.async.bulk -> slot `put`   (up to 3 slots ahead)
 *      warp:    wait slot `get` (phase bit), 16-byte loads, mma; __syncwarp; refill the slot
 *    ring of a warp:  3 slots x 4 KB; a slot is 4 steps of two strips, or 8 steps of one
 *                     (SMALL, where a block has 99 KB or weights are packed: 2 slots x 2 KB;
 *                     of packed steps as many as fit)
 *    shared memory: rings 8 warps x 12 KB (SMALL: 4 KB) | mbarriers 8 x 3 x 8 B
 *      | partial sums [2][strips][8 slices][8 or 16 rows][8 outputs] f32 (8 or 16 KB)
 *      | staged activations [rows][n_in] bf16, padded against bank conflicts
 *    before sm_90 the ring is filled by cp.async of all lanes, with commit groups for mbarriers
 *
 * Warps share no barrier for weights, and copies run on across strips and across the wait for the
 * kernel before (programmatic dependent launch), so that memory is never idle while sums are being
 * added.  A ring of registers reached only 1.4 TB/s: branches between loads serialise them. */
#ifndef KK_CUDA_STREAM_CUH
#define KK_CUDA_STREAM_CUH

#include "packed.cuh"

#ifndef KK_RING_CHUNK /* set by benchmarks only */
#define KK_RING_CHUNK 4
#define KK_RING_SLOTS 3
#endif

/* The sizes of a warp's ring.  They change no bit of a sum, whose steps stay in one order. */
template <bool SMALL> struct kk_ring_cut {
    enum {
        CHUNK = SMALL ? 2 : KK_RING_CHUNK, /* K steps of a slot with two strips; twice with one */
        SLOTS = SMALL ? 2 : KK_RING_SLOTS,
        SLOT_BYTES = 2 * CHUNK * 512,
        BYTES = SLOTS * SLOT_BYTES,
        ALL = KK_BLOCK_WARPS * (BYTES + SLOTS * 8), /* bytes of all warps' rings */
    };
};

__device__ __forceinline__ uint32_t kk_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* One warp's ring buffer.  Slots are filled and used in the same order. */
template <bool SMALL> struct kk_ring {
    using cut = kk_ring_cut<SMALL>;
    char *data;
    uint32_t bars; /* shared address of the slots' mbarriers */
    int put, get;
    uint32_t phase;

    /* smem: cut::ALL bytes of shared memory, 128-byte aligned, for all warps of the block */
    __device__ __forceinline__ void open(char *smem) {
        const int warp = threadIdx.x / KK_WARP;
        data = smem + warp * cut::BYTES;
        bars = kk_shared(smem + KK_BLOCK_WARPS * cut::BYTES) + warp * cut::SLOTS * 8;
        put = get = 0;
        phase = 0;
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % KK_WARP == 0) {
            for (int i = 0; i < cut::SLOTS; i++)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bars + i * 8));
            asm volatile("fence.mbarrier_init.release.cluster;");
            asm volatile("fence.proxy.async.shared::cta;");
        }
        __syncwarp();
#endif
    }
    /* Starts the copy of n steps of `words` 16-byte words of one strip, or of two, into the next
     * slot. */
    __device__ __forceinline__ void fetch(const uint4 *one, const uint4 *two, int n, int words) {
        char *to = data + put * cut::SLOT_BYTES;
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % KK_WARP == 0) {
            const uint32_t bar = bars + put * 8;
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                         "r"(n * words * (two ? 32 : 16))
                         : "memory");
            copy(to, one, n * words, bar);
            if (two) copy(to + cut::SLOT_BYTES / 2, two, n * words, bar);
        }
#else
        for (int i = threadIdx.x % KK_WARP; i < n * words; i += KK_WARP) {
            copy(to + i * 16, one + i);
            if (two) copy(to + cut::SLOT_BYTES / 2 + i * 16, two + i);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
        put = put + 1 == cut::SLOTS ? 0 : put + 1;
    }
#if __CUDA_ARCH__ >= 900
    static __device__ __forceinline__ void copy(char *to, const uint4 *from, int words,
                                                uint32_t bar) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(kk_shared(to)),
                     "l"(from), "r"(words * 16), "r"(bar)
                     : "memory");
    }
#else
    static __device__ __forceinline__ void copy(char *to, const uint4 *from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(kk_shared(to)), "l"(from)
                     : "memory");
    }
#endif
    /* Commits an empty group where nothing is left to fetch, so that wait_group still counts
     * right. */
    __device__ __forceinline__ void skip() {
#if __CUDA_ARCH__ < 900
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }
    /* Waits for the oldest slot; returns this lane's 16 bytes of step 0, later steps are 512 bytes
     * apart. */
    __device__ __forceinline__ const uint4 *wait() {
#if __CUDA_ARCH__ >= 900
        const uint32_t bar = bars + get * 8;
        asm volatile("{\n .reg .pred p;\n"
                     "again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                     "@p bra done;\n bra again;\n done:\n}" ::"r"(bar),
                     "r"(phase)
                     : "memory");
#else
        asm volatile("cp.async.wait_group %0;" ::"n"((int)cut::SLOTS - 1) : "memory");
        __syncwarp();
#endif
        return (const uint4 *)(data + get * cut::SLOT_BYTES) + threadIdx.x % KK_WARP;
    }
    /* All lanes have loaded what they need from the oldest slot. */
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (++get == cut::SLOTS) {
            get = 0;
            phase ^= 1;
        }
    }
};

/* Rows of bf16 activations in shared memory.  A quarter warp reads 64 bytes of each of two rows;
 * the stride is an odd multiple of 64 bytes, so that they lie in different banks.  Rows are read
 * again after `wrap` steps, for weights that are the sum of several bf16 planes. */
struct kk_staged {
    const char *base;
    int stride, wrap; /* stride in bytes, wrap in K steps */
};

__host__ __device__ __forceinline__ int kk_stage_stride(int n_in) {
    return n_in * 2 % 128 ? n_in * 2 : n_in * 2 + 64;
}

/* Copies rows of n_in (a multiple of 32) bf16 values from x to shared memory. */
__device__ __forceinline__ void kk_stage(char *to, const uint16_t *x, int n_rows, int n_in) {
    const int per = n_in / 8, stride = kk_stage_stride(n_in);
    for (int i = (int)threadIdx.x; i < n_rows * per; i += KK_BLOCK_THREADS) {
        const int r = i / per, c = i - r * per;
        *(uint4 *)(to + r * stride + c * 16) = ((const uint4 *)x)[i];
    }
}

/* All steps of a slot, of which the first n are real and the rest multiply zeros.  Straight-line
 * code, so that all loads are issued before the first product.  a, b: activations of rows g and g +
 * 8. */
template <int NS, bool SMALL> struct kk_acts {
    enum { STEPS = (NS > 1 ? 1 : 2) * kk_ring_cut<SMALL>::CHUNK };
    uint4 a[STEPS], b[STEPS];
};

template <bool HIGH, int NS, bool SMALL>
__device__ __forceinline__ void kk_chunk(float c[NS][4], const uint4 *slot, int n,
                                         const kk_acts<NS, SMALL> &x) {
    constexpr int STEPS = kk_acts<NS, SMALL>::STEPS, CHUNK = kk_ring_cut<SMALL>::CHUNK;
    uint4 w[NS][STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
#pragma unroll
        for (int s = 0; s < NS; s++) {
            w[s][i] = slot[(s * CHUNK + i) * KK_WARP];
            if (i > 0 && i >= n) w[s][i] = make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int s = 0; s < NS; s++) kk_step<HIGH>(c[s], w[s][i], x.a[i], x.b[i]);
}

/* The most K steps of `words` words that half a slot (NS 2) or a whole one (NS 1) holds. */
template <int NS, bool SMALL> __device__ __forceinline__ int kk_slot_steps(int words) {
    return kk_ring_cut<SMALL>::SLOT_BYTES / NS / 16 / words;
}

/* Packed weights: the first n steps of a slot.  Steps are loaded four at a time, as straight-line
 * code; loads past the n-th repeat it.  slot: shared address; lo, hi: activations of rows g and
 * g + 8. */
template <int W, bool HIGH, int NS>
__device__ __forceinline__ void kk_packed_slot(float c[NS][4], uint32_t slot, uint32_t half, int n,
                                               const char *lo, const char *hi) {
    enum { BATCH = 4 };
    const uint32_t lane = threadIdx.x % KK_WARP;
#pragma unroll 1
    for (int from = 0; from < n; from += BATCH) {
        kk_codes<W> q[NS][BATCH];
        uint2 scale[NS][BATCH];
        uint4 x[BATCH], y[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int k = min(from + i, n - 1);
            x[i] = *(const uint4 *)(lo + k * 64);
            y[i] = HIGH ? *(const uint4 *)(hi + k * 64) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int s = 0; s < NS; s++) {
                const uint32_t block = slot + s * half + k * kk_packing<W>::BYTES;
                q[s][i] = kk_codes_load<W>(block, lane);
                scale[s][i] = kk_scales_pair<W>(block, lane % 4 * 2);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (from + i >= n) break;
#pragma unroll
            for (int s = 0; s < NS; s++)
                kk_packed_strip<W, HIGH>(c[s], kk_codes_bf16<W>(q[s][i]),
                                         kk_scales_of<W>(scale[s][i].x),
                                         kk_scales_of<W>(scale[s][i].y), x[i], y[i]);
        }
    }
}

/* Floats of a unit's partial sums, double-buffered: [2][NS][slice][rows][8]. */
__host__ __device__ constexpr int kk_part_floats(bool high) {
    return 2 * 2 * KK_SLICES * (high ? 128 : 64);
}

/* The main loop: eight warps on one unit at a time, one K slice each.  A unit is one strip or two
 * (NS). A Job provides:
 *   struct at;  at first();  void next(at &);  bool done(const at &);
 *   bool known(const at &);                   whether its weights are known before ready()
 *   int steps(const at &);                    K steps of the unit's strips
 *   const uint4 *strip(const at &, int i);    where strip i starts
 *   int encoding(const at &);                 of its strips, where weights are packed
 *   kk_staged acts(const at &);               its staged activations
 *   int row(const at &, int i);               staged row of the unit's row i; any if there is none
 *   void ready();                             waits for the kernel before, stages activations
 *   void sums(const at &, const float *part, int lane);   [NS][slice][rows][8]; by one warp */
template <bool HIGH, int NS, bool SMALL, bool PACKED, class Job>
__device__ __forceinline__ void kk_stream(Job &job, float *part, kk_ring<SMALL> &ring) {
    constexpr int PART = HIGH ? 128 : 64, STEPS = kk_acts<NS, SMALL>::STEPS;
    constexpr int SLOTS = kk_ring_cut<SMALL>::SLOTS;
    const int lane = threadIdx.x % KK_WARP, warp = threadIdx.x / KK_WARP, g = lane / 4;
    auto in = job.first(); /* position of the next copy */
    const uint4 *one = 0, *two = 0;
    int left = 0, words = KK_WARP; /* of 16 bytes in a step */
    auto seek = [&]() {            /* advances to the next unit in which this warp has a step */
                        for (; !job.done(in); job.next(in)) {
                            const int steps = job.steps(in), from = kk_slice(steps, warp);
                            left = kk_slice(steps, warp + 1) - from;
                            if (left == 0) continue;
                            if (PACKED) words = kk_words_of(job.encoding(in));
                            one = job.strip(in, 0) + from * words;
                            if (NS > 1) two = job.strip(in, 1) + from * words;
                            return;
                        }
    };
    auto fetch = [&]() {
        const int n = min(PACKED ? kk_slot_steps<NS, SMALL>(words) : STEPS, left);
        ring.fetch(one, two, n, words);
        one += n * words;
        if (NS > 1) two += n * words;
        left -= n;
        if (left == 0) job.next(in);
    };
    int issued = 0;
    for (; issued < SLOTS; issued++) {
        if (left == 0) {
            if (!job.known(in)) break;
            seek();
            if (left == 0) break;
        }
        fetch();
    }
    job.ready();
    auto refill = [&]() {
        if (left == 0) seek();
        if (left == 0) return ring.skip();
        fetch();
    };
    for (; issued < SLOTS; issued++) refill();
    int nth = 0;
    for (auto at = job.first(); !job.done(at); job.next(at), nth++) {
        float c[NS][4] = {};
        const int steps = job.steps(at), from = kk_slice(steps, warp);
        const kk_staged acts = job.acts(at);
        const char *lo = acts.base + job.row(at, g) * acts.stride + (lane & 3) * 16, *hi = lo;
        if (HIGH) hi = acts.base + job.row(at, g + 8) * acts.stride + (lane & 3) * 16;
        if (PACKED) {
            const int code = job.encoding(at), most = kk_slot_steps<NS, SMALL>(kk_words_of(code));
            int left_of = kk_slice(steps, warp + 1) - from;
            lo += from * 64;
            hi += from * 64;
            for (; left_of > 0; left_of -= most, lo += most * 64, hi += most * 64) {
                const uint32_t slot = kk_shared(ring.wait() - lane);
                kk_with_packing(code, [&](auto p) {
                    kk_packed_slot<decltype(p)::ENCODING, HIGH, NS>(
                        c, slot, kk_ring_cut<SMALL>::SLOT_BYTES / 2, min(most, left_of), lo, hi);
                });
                ring.release();
                refill();
            }
        }
        int step = from;
        while (step >= acts.wrap) step -= acts.wrap;
        for (int n = PACKED ? 0 : kk_slice(steps, warp + 1) - from; n > 0; n -= STEPS) {
            kk_acts<NS, SMALL> x;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const int k = step + i < acts.wrap ? step + i : step + i - acts.wrap;
                x.a[i] = *(const uint4 *)(lo + k * 64);
                if (HIGH) x.b[i] = *(const uint4 *)(hi + k * 64);
            }
            kk_chunk<HIGH, NS, SMALL>(c, ring.wait(), n, x);
            ring.release();
            refill();
            step += STEPS;
            if (step >= acts.wrap) step -= acts.wrap;
        }
        float *mine = part + (nth & 1) * (NS * KK_SLICES * PART);
#pragma unroll
        for (int s = 0; s < NS; s++) {
            float *to = mine + (s * KK_SLICES + warp) * PART + g * 8 + 2 * (lane % 4);
            *(float2 *)to = make_float2(c[s][0], c[s][1]);
            if (HIGH) *(float2 *)(to + 64) = make_float2(c[s][2], c[s][3]);
        }
        __syncthreads();
        if (nth % KK_BLOCK_WARPS == warp) job.sums(at, mine, lane);
    }
}

/* Sum i (row i / 8, output i % 8) of strip s over the eight slices, in order. */
template <bool HIGH>
__device__ __forceinline__ float kk_slices_sum(const float *part, int s, int i) {
    constexpr int PART = HIGH ? 128 : 64;
    part += s * KK_SLICES * PART + i;
    float v = part[0];
#pragma unroll
    for (int k = 1; k < KK_SLICES; k++) v = __fadd_rn(v, part[k * PART]);
    return v;
}

#endif
