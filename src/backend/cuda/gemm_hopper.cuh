/* gemm_hopper.cuh - products for more than 16 rows on sm_90a: tiles of 128 outputs by up to 176
 * rows, with the bits of gemm.cuh's.
 *
 *    persistent block: 384 threads = 3 warpgroups, one block per multiprocessor, tile after tile
 *      warpgroups 0 and 1 multiply: warp w of warpgroup g has the strips 8 g + 2 w and + 1 (of
 *        gated products a gate strip and its up strip) and all rows of the tile; 232 registers:
 *        sums of the current K slice, total of the slices, operands of two steps
 *      warpgroup 2 copies, 40 registers
 *    shared memory: 5 stages x 38 KB; a stage is two K steps (64 inputs):
 *      x [176 rows][64] bf16, swizzled, 22 KB | w [16 strips][2 steps][512 B] 16 KB
 *    barriers of a stage:
 *      full   128 threads by cp.async of rows, 16 lanes by bulk copies of a strip each
 *      free   8 warps
 *
 *      copies:      wait free s, rows and strips of stage s -> full s, stage s + 1; on into the
 *                   next tile
 *      multiplies:  first step: wgmma of step 0, commit; the products before have ended: arrive at
 *                   their stage's free; operands of step 1 from shared memory
 *                   second step: wgmma of step 1, commit; step 0 has ended; wait full s + 1:
 *                   operands of the next stage's step 0
 *                   after the last step of a K slice: wait for the products, add to the total
 *
 * The strips' lane order is that of wgmma's operand in registers, and the swizzled rows' that of
 * its operand in shared memory (wgmma.cuh), so neither is rearranged.  The loop is instantiated for
 * 4, 6, 8 and 11 fragments of 16 rows ("pieces"); a tile of another number multiplies rows that it
 * does not store.  With more sizes ptxas spills sums to memory, though their registers are never
 * live together. */
#ifndef KK_CUDA_GEMM_HOPPER_CUH
#define KK_CUDA_GEMM_HOPPER_CUH

#include "gemm.cuh"
#include "wgmma.cuh"

enum {
    KK_HOP_PIECES = 11,
    KK_HOP_ROWS = 16 * KK_HOP_PIECES,
    KK_HOP_GROUP = 128, /* threads of a warpgroup */
    KK_HOP_THREADS = 3 * KK_HOP_GROUP,
    KK_HOP_STAGES = 5,
    KK_HOP_X = KK_HOP_ROWS * 128,
    KK_HOP_STAGE = KK_HOP_X + KK_TILE_STRIPS * 2 * 512,
    KK_HOP_ALIGN = 1024,
    KK_HOP_SHARED = KK_HOP_STAGES * KK_HOP_STAGE + KK_HOP_ALIGN,
    KK_HOP_FULL = KK_HOP_GROUP + KK_TILE_STRIPS, /* arrivals at the barriers of a stage */
    KK_HOP_FREE = 8,
};

/* The fragments that a tile of so many multiplies. */
__host__ __device__ __forceinline__ int kk_hop_size(int pieces) {
    return pieces <= 4 ? 4 : pieces <= 6 ? 6 : pieces <= 8 ? 8 : (int)KK_HOP_PIECES;
}

/* ---- barriers ------------------------------------------------------------------------------- */

struct kk_hop_barriers {
    uint64_t full[KK_HOP_STAGES], free[KK_HOP_STAGES];
};

__device__ __forceinline__ void kk_barrier_open(uint64_t *bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(kk_shared(bar)), "r"(arrivals)
                 : "memory");
}
__device__ __forceinline__ void kk_barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrives when this thread's copies by cp.async have ended. */
__device__ __forceinline__ void kk_barrier_arrive_copies(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void kk_barrier_wait(uint32_t bar, uint32_t phase) {
    asm volatile("{\n .reg .pred p;\n"
                 "again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                 "@p bra done;\n bra again;\n done:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
/* Arrives and copies so many bytes, which the barrier waits for. */
__device__ __forceinline__ void kk_barrier_copy(uint32_t bar, uint32_t to, const void *from,
                                                uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* A place in the ring. */
struct kk_hop_at {
    uint32_t stage, full, free; /* shared addresses */
    uint32_t phase;
    int slot;

    __device__ __forceinline__ kk_hop_at(uint32_t ring, const kk_hop_barriers &b)
        : stage(ring), full(kk_shared(b.full)), free(kk_shared(b.free)), phase(0), slot(0) {}
    __device__ __forceinline__ void next() {
        const bool wraps = ++slot == KK_HOP_STAGES;
        stage += wraps ? (uint32_t) - (KK_HOP_STAGES - 1) * KK_HOP_STAGE : (uint32_t)KK_HOP_STAGE;
        full += wraps ? (uint32_t) - (KK_HOP_STAGES - 1) * 8 : 8u;
        free += wraps ? (uint32_t) - (KK_HOP_STAGES - 1) * 8 : 8u;
        if (wraps) slot = 0;
        phase ^= wraps;
    }
};

/* ---- tiles ---------------------------------------------------------------------------------- */

/* What a tile covers.  Plain tiles of the same outputs follow one another, and tiles of the same
 * expert: what they share is still in the L2 cache. */
struct kk_hop_tile {
    int part, unit, slice; /* unit: within its part; slice: where tiles are one K slice */
    int row, pieces;       /* first row, or index of its list of rows; 16-row fragments */
    int expert, steps, first_step;

    template <bool EXPERTS>
    __device__ __forceinline__ void seek(const kk_gemm_args &a, int tiles, int at) {
        const int m = EXPERTS ? at / a.units : at % tiles;
        unit = EXPERTS ? at % a.units : at / tiles;
        slice = unit % a.cuts;
        unit /= a.cuts;
        for (part = 0; unit >= a.part[part].units; part++) unit -= a.part[part].units;
        expert = 0;
        if (EXPERTS) {
            const int2 t = a.tile[m];
            expert = t.x;
            pieces = t.y;
            row = m * a.list;
        } else {
            const int all = (a.n_rows + 15) / 16, from = all * m / tiles;
            pieces = all * (m + 1) / tiles - from;
            row = from * 16;
        }
        const int all = a.part[part].steps;
        first_step = a.cuts > 1 ? kk_slice(all, slice) : 0;
        steps = a.cuts > 1 ? kk_slice(all, slice + 1) - first_step : all;
    }
};

/* ---- copies --------------------------------------------------------------------------------- */

/* Thread t copies chunk t % 8 of the rows t / 8 of every piece; lane l < 4 of warp w strip
 * 4 w + l. */
template <bool EXPERTS, bool GLU>
__device__ __forceinline__ void kk_hop_copy_tile(const kk_gemm_args &a, const kk_hop_tile &p,
                                                 kk_hop_at &at) {
    const int t = (int)threadIdx.x % KK_HOP_GROUP, lane = t % KK_WARP;
    const int strip_of_tile = t / KK_WARP * 4 + lane, r = t / 8;
    const kk_gemm_part &m = a.part[p.part];
    const uint4 *w = NULL;
    if (lane < 4) {
        const bool up = GLU && (strip_of_tile & 1);
        int strip = p.unit * KK_TILE_STRIPS + strip_of_tile;
        if (GLU) strip /= 2;
        strip = min(strip, m.strips - 1);
        w = up ? m.up + (size_t)p.expert * m.up_mat : m.w + (size_t)p.expert * m.mat;
        w += ((size_t)strip * (size_t)m.steps + (size_t)p.first_step) * KK_WARP;
    }
    uint32_t row[KK_HOP_PIECES]; /* offsets in 16-byte words */
#pragma unroll
    for (int i = 0; i < KK_HOP_PIECES; i++) {
        int from = min(p.row + r + 16 * i, a.n_rows - 1);
        if (EXPERTS) from = i < p.pieces ? max(a.slot[p.row + r + 16 * i], 0) / a.per_row : 0;
        row[i] = (uint32_t)from * (uint32_t)a.pitch + (uint32_t)(t & 3);
    }
    int k = (p.first_step + (t / 4 & 1)) % a.wrap; /* the K step of this thread's chunk */
    const uint32_t x_to = (uint32_t)(r * 128 + ((t ^ r) & 7) * 16);
    const uint32_t w_to = (uint32_t)(KK_HOP_X + strip_of_tile * 1024);
    for (int left = p.steps; left > 0; left -= 2, at.next()) {
        kk_barrier_wait(at.free, at.phase ^ 1);
        if (lane < 4) {
            kk_barrier_copy(at.full, at.stage + w_to, w, left > 1 ? 1024 : 512);
            w += 2 * KK_WARP;
        }
        const uint4 *x = a.x + 4 * k;
#pragma unroll
        for (int i = 0; i < KK_HOP_PIECES; i++)
            if (i < p.pieces) kk_copy16<0, 0>(at.stage + x_to + i * 2048, x + row[i]);
        kk_barrier_arrive_copies(at.full);
        for (k += 2; k >= a.wrap;) k -= a.wrap;
    }
}

/* ---- products ------------------------------------------------------------------------------- */

/* The last step of a tile's K slices, one after the other. */
struct kk_hop_slices {
    int bound, slice, steps;
    bool whole; /* the tile is one slice */

    __device__ __forceinline__ kk_hop_slices(int n, bool one)
        : slice(0), steps(n), whole(one || kk_slices(n) == 1) {
        bound = whole ? n : kk_slice(n, 1);
    }
    __device__ __forceinline__ bool ends(int step) {
        if (step != bound) return false;
        slice++;
        bound = whole ? steps : kk_slice(steps, slice + 1);
        return true;
    }
};

/* A warp's sums of a tile: P fragments of 16 rows, as wgmma leaves them. */
template <int P> struct kk_hop_sums {
    float total[P][8], c[P][8];
    int add; /* 0: the next product is the first of its slice */

    __device__ __forceinline__ void multiply(const uint4 &a, const uint4 &b, uint64_t rows) {
        const uint32_t one[4] = {a.x, b.x, a.y, b.y}, two[4] = {a.z, b.z, a.w, b.w};
        kk_wgmma_fence();
        kk_wgmma<P>::run(c, one, rows, add);
        kk_wgmma<P>::run(c, two, rows + 2, 1);
        kk_wgmma_commit();
        add = 1;
    }
    __device__ __forceinline__ void end_slice() {
        kk_wgmma_wait<0>();
        kk_wgmma_hold(c);
#pragma unroll
        for (int i = 0; i < P; i++)
#pragma unroll
            for (int k = 0; k < 8; k++) total[i][k] = __fadd_rn(total[i][k], c[i][k]);
        add = 0;
    }
};

__device__ __forceinline__ uint4 kk_hop_operand(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* Sums of a tile over its steps. */
template <int P>
__device__ __forceinline__ void kk_hop_sum(kk_hop_sums<P> &s, int steps, bool one, kk_hop_at &at) {
    const int warp = (int)threadIdx.x / KK_WARP, lane = (int)threadIdx.x % KK_WARP;
    const uint32_t w_at = (uint32_t)(KK_HOP_X + warp * 2048 + lane * 16);
    kk_hop_slices slices(steps, one);
    uint4 a0, b0, a1, b1;      /* operands of a stage's two steps: of the warp's two strips */
    const auto enter = [&]() { /* waits for a stage, loads operands of its first step */
                               kk_barrier_wait(at.full, at.phase);
                               asm volatile("fence.proxy.async.shared::cta;" ::
                                                : "memory"); /* rows came by cp.async */
                               a0 = kk_hop_operand(at.stage + w_at);
                               b0 = kk_hop_operand(at.stage + w_at + 1024);
    };
    const auto leave = [&](uint32_t free) {
        if (lane == 0) kk_barrier_arrive(free);
    };
#pragma unroll
    for (int i = 0; i < P; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) s.total[i][k] = s.c[i][k] = 0;
    s.add = 0;
    uint32_t before = 0; /* the stage before, which is not free yet; 0: none */
    enter();
    for (int step = 0;;) {
        const uint64_t rows = kk_wgmma_rows(at.stage);
        s.multiply(a0, b0, rows);
        kk_wgmma_wait<1>();
        if (before) leave(before);
        before = at.free;
        step++;
        a1 = kk_hop_operand(at.stage + w_at + 512); /* loaded even where there is no second step: */
        b1 = kk_hop_operand(at.stage + w_at + 1536); /* registers set on one path stay occupied */
        at.next();
        if (slices.ends(step)) s.end_slice();
        if (step == steps) break;
        s.multiply(a1, b1, rows + 4);
        kk_wgmma_wait<1>();
        if (++step < steps) enter();
        if (slices.ends(step)) s.end_slice();
        if (step == steps) break;
    }
    kk_wgmma_wait<0>(); /* they have ended with the last slice, which the compiler cannot know */
    leave(before);
}

/* ---- results -------------------------------------------------------------------------------- */

/* Stores a warp's sums: of strips 2 v and 2 v + 1, or of gate and up strip v, v = warp of all that
 * share the tile's outputs.  listed: this lane's part of the rows' list, row l + 32 i in [i]. */
template <bool EXPERTS, bool GLU, int P>
__device__ __forceinline__ void kk_hop_write(const kk_gemm_args &a, const kk_hop_tile &p,
                                             const float (&sum)[P][8],
                                             const int (&listed)[(P + 1) / 2]) {
    const kk_gemm_part &m = a.part[p.part];
    const int warp = (int)threadIdx.x / KK_WARP, lane = (int)threadIdx.x % KK_WARP;
    const int g = lane / 4, r = lane % 4 * 2, v = p.unit * KK_TILE_STRIPS / 2 + warp;
    const int odd = g & 1, o = GLU ? v * 8 + g - odd : v * 16 + g;
    const auto place = [&](int i) { /* of tile row i */
                                    return i < 16 * p.pieces && p.row + i < a.n_rows
                                               ? p.slice * a.n_rows + p.row + i
                                               : -1;
    };
#pragma unroll
    for (int j = 0; j < 2 * P; j++) {
        const float *d = &sum[j / 2][j % 2 * 4];
        int row[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            row[i] = EXPERTS ? __shfl_sync(0xffffffffu, listed[j / 4], j % 4 * 8 + r + i)
                             : place(8 * j + r + i);
        if (GLU) {
            const float one = kk_glu_of(d[0], d[2], a.silu), two = kk_glu_of(d[1], d[3], a.silu);
            const float got = __shfl_xor_sync(0xffffffffu, odd ? one : two, 4);
            const uint32_t both = odd ? kk_dbf16x2(got, two) : kk_dbf16x2(one, got);
            const int at = odd ? row[1] : row[0];
            uint16_t *to = (uint16_t *)m.out + (int64_t)at * m.pitch + kk_swizzled(o);
            if (at >= 0 && o + 1 < m.n_out)
                *(uint32_t *)to = both;
            else if (at >= 0 && o < m.n_out)
                *to = (uint16_t)both;
        }
#pragma unroll
        for (int i = 0; i < (GLU ? 0 : 2); i++) {
            if (row[i] < 0) continue;
            float *to = (float *)m.out + (int64_t)row[i] * m.pitch + o;
            if (o < m.n_out) to[0] = d[i];
            if (o + 8 < m.n_out) to[8] = d[2 + i];
        }
    }
}

template <bool EXPERTS, bool GLU, int P>
__device__ __forceinline__ void kk_hop_multiply_tile(const kk_gemm_args &a, const kk_hop_tile &p,
                                                     kk_hop_at &at) {
    int listed[(P + 1) / 2];
#pragma unroll
    for (int i = 0; i < (P + 1) / 2; i++)
        listed[i] =
            EXPERTS ? a.slot[p.row + min((int)threadIdx.x % KK_WARP + 32 * i, a.list - 1)] : 0;
    kk_hop_sums<P> s;
    kk_hop_sum<P>(s, p.steps, a.cuts > 1, at);
    kk_hop_write<EXPERTS, GLU, P>(a, p, s.total, listed);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <bool EXPERTS, bool GLU>
__device__ __forceinline__ void kk_hop_multiply(const kk_gemm_args &a, const kk_hop_tile &p,
                                                kk_hop_at &at) {
    switch (kk_hop_size(p.pieces)) {
    case 4: return kk_hop_multiply_tile<EXPERTS, GLU, 4>(a, p, at);
    case 6: return kk_hop_multiply_tile<EXPERTS, GLU, 6>(a, p, at);
    case 8: return kk_hop_multiply_tile<EXPERTS, GLU, 8>(a, p, at);
    default: return kk_hop_multiply_tile<EXPERTS, GLU, KK_HOP_PIECES>(a, p, at);
    }
}

/* Compiled for sm_90a alone; elsewhere the kernel is empty and is not launched. */
template <bool EXPERTS, bool GLU>
__global__ void __launch_bounds__(KK_HOP_THREADS, 1)
    kk_hop_kernel(const __grid_constant__ kk_gemm_args a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) char smem[];
    __shared__ kk_hop_barriers barriers;
    const uint32_t ring = (kk_shared(smem) + KK_HOP_ALIGN - 1) & ~(uint32_t)(KK_HOP_ALIGN - 1);
    if (threadIdx.x == 0) {
        for (int i = 0; i < KK_HOP_STAGES; i++) {
            kk_barrier_open(&barriers.full[i], KK_HOP_FULL);
            kk_barrier_open(&barriers.free[i], KK_HOP_FREE);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    kk_wait();
    kk_next();
    __syncthreads();
    const int tiles = EXPERTS ? *a.n_tiles : a.tiles, total = tiles * a.units * a.cuts;
    kk_hop_at at(ring, barriers);
    kk_hop_tile p;
    if (threadIdx.x >= 2 * KK_HOP_GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int i = (int)blockIdx.x; i < total; i += (int)gridDim.x) {
            p.seek<EXPERTS>(a, tiles, i);
            kk_hop_copy_tile<EXPERTS, GLU>(a, p, at);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    for (int i = (int)blockIdx.x; i < total; i += (int)gridDim.x) {
        p.seek<EXPERTS>(a, tiles, i);
        kk_hop_multiply<EXPERTS, GLU>(a, p, at);
    }
#endif
}

/* Launches it on chips that have it, where a block has the shared memory: kk_hop_takes. */
bool kk_hop_takes(const kk_cu_at &at);
cudaError_t kk_run_hop_gemm(const kk_cu_at &at, const kk_gemm_args &a, bool experts,
                            unsigned blocks);
cudaError_t kk_setup_hop_gemm();

#endif
