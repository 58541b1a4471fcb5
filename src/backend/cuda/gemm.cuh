/* gemm.cuh - products for many rows: tiles of 128 rows by 128 outputs over the strips that the
 * decode kernels stream, with their arithmetic, so that a row of a prompt has the bits it would
 * have alone.
 *
 * A block is one per multiprocessor and takes tile after tile.  Eight warps, two along the rows
 * and four along the outputs, hold 64 by 32 sums each: those of the present K slice and the total
 * of the slices before, which is all the registers there are.  Two K steps at a time come to
 * shared memory through cp.async, three such stages deep; the copies run on into the next tile
 * while the last one is being written.  Rows lie there as strips of 8 rows by 64 bytes, like the
 * weights, so that every operand is one 16-byte read of 32 neighbouring places: no bank is hit
 * twice and nothing has to be turned.
 *
 * A tile of fewer than 128 rows has that many 16-row pieces fewer; its pieces are shared out over
 * the two rows of warps. */
#ifndef KK_CUDA_GEMM_CUH
#define KK_CUDA_GEMM_CUH

#include "decode.cuh"

enum {
    KK_TILE_ROWS = 128,
    KK_TILE_PIECES = 8,  /* of 16 rows */
    KK_TILE_STRIPS = 16, /* of 8 outputs */
    KK_TILE_STAGES = 3,
    /* The second step's rows begin 64 bytes off, so that the 128 bytes of a row that 8 threads
     * bring go to different banks. */
    KK_TILE_STEP_X = KK_TILE_ROWS * 64 + 64,
    KK_TILE_X = 2 * KK_TILE_STEP_X,
    KK_TILE_STAGE = KK_TILE_X + KK_TILE_STRIPS * 2 * 512,
    KK_TILE_SHARED = KK_TILE_STAGES * KK_TILE_STAGE,
    KK_TILE_RING = 4,   /* lists of rows on their way */
    KK_WARP_PIECES = 4, /* a warp's part of a tile */
    KK_WARP_GROUPS = 8, /* of 8 rows */
    KK_WARP_PAIRS = 2,  /* of strips */
};

struct kk_gemm_part {
    const uint4 *w, *up;      /* up not NULL: out = act(w x) * (up x), as bf16 */
    size_t mat, up_mat;       /* from one expert to the next, in 16-byte pieces */
    void *out;                /* rows of floats, or of bf16 */
    int n_out, strips, units; /* units: tiles along the outputs */
    int steps, pitch;         /* pitch: of out's rows, in values */
    float cap;                /* not 0: soft-cap */
};

struct kk_gemm_args {
    kk_gemm_part part[KK_MAX_PARTS];
    int n_parts, units; /* of all parts */
    const uint4 *x;     /* rows of bf16 */
    int pitch, wrap;    /* of x's rows, in 16-byte pieces; steps after which they repeat */
    int n_rows, tiles;  /* tiles along the rows */
    int cuts;           /* not 1: a tile is one K slice, out[slice][n_rows][pitch] */
    int silu;
    /* Experts: rows are listed by tile (kk_group_kernel), -1 where there is none. */
    const int2 *tile;   /* expert, pieces */
    const int *slot;    /* [tiles][KK_TILE_ROWS]: pairs, rows of out */
    const int *n_tiles; /* on the device, NULL: plain rows */
    int per_row;        /* pairs of a row of x */
};

__device__ __forceinline__ void kk_copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* Zeros where there is nothing to copy. */
__device__ __forceinline__ void kk_copy16_or_zero(uint32_t to, const void *from, bool some) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(some ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void kk_copy4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void kk_copies_end() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void kk_copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Lists of an experts' kernel: of the tile being summed, the one being copied, the one after. */
struct kk_tile_lists {
    int slot[KK_TILE_RING][KK_TILE_ROWS];
    int2 tile[KK_TILE_RING]; /* expert, pieces */
};

/* Where a tile lies. */
struct kk_place {
    int part, unit, slice; /* of its part; slice: where tiles are cut */
    int row, pieces;       /* first row, of plain rows; 16-row pieces */
    int expert;

    __device__ __forceinline__ void seek(const kk_gemm_args &a, const kk_tile_lists *lists,
                                         int tiles, int at, int order) {
        const int m = at % tiles;
        unit = at / tiles;
        slice = unit % a.cuts;
        unit /= a.cuts;
        for (part = 0; unit >= a.part[part].units; part++) unit -= a.part[part].units;
        expert = row = 0;
        if (lists) {
            const int2 t = lists->tile[order % KK_TILE_RING];
            expert = t.x;
            pieces = t.y;
        } else {
            const int all = (a.n_rows + 15) / 16, from = all * m / tiles;
            pieces = all * (m + 1) / tiles - from;
            row = from * 16;
        }
    }
    __device__ __forceinline__ int first_step(const kk_gemm_args &a) const {
        return a.cuts > 1 ? kk_slice(a.part[part].steps, slice) : 0;
    }
    __device__ __forceinline__ int steps(const kk_gemm_args &a) const {
        const int all = a.part[part].steps;
        return a.cuts > 1 ? kk_slice(all, slice + 1) - kk_slice(all, slice) : all;
    }
};

/* The copying side: what this thread brings of the next stage. */
template <bool EXPERTS> struct kk_filler {
    const kk_gemm_args &a;
    kk_tile_lists *lists;
    int tiles, total, at, order;
    int left, k; /* stages of the tile; this thread's step of x */
    bool odd, wide[KK_TILE_ROWS / 32];
    uint32_t row[KK_TILE_ROWS / 32]; /* in 16-byte pieces */
    const uint4 *w[2];

    __device__ __forceinline__ void list(int from, int to_order) {
        if (from >= total) return;
        const int m = from % tiles, i = (int)threadIdx.x;
        if (i < KK_TILE_ROWS)
            kk_copy4(kk_shared(&lists->slot[to_order % KK_TILE_RING][i]),
                     a.slot + (size_t)m * KK_TILE_ROWS + i);
        else if (i < KK_TILE_ROWS + 2)
            kk_copy4(kk_shared((int *)&lists->tile[to_order % KK_TILE_RING] + (i & 1)),
                     (const int *)(a.tile + m) + (i & 1));
    }
    __device__ __forceinline__ kk_filler(const kk_gemm_args &args, kk_tile_lists *l, int n_tiles)
        : a(args), lists(l), tiles(n_tiles), total(n_tiles * args.units * args.cuts),
          at((int)blockIdx.x - (int)gridDim.x), order(-1), left(0), k(0), odd(false) {
        if (!EXPERTS) return;
        list((int)blockIdx.x, 0);
        list((int)blockIdx.x + (int)gridDim.x, 1);
        kk_copies_end();
        kk_copies_wait<0>();
        __syncthreads();
    }
    __device__ __forceinline__ void seek() {
        if (at >= total) return;
        at += (int)gridDim.x;
        order++;
        if (at >= total) return;
        kk_place p;
        p.seek(a, EXPERTS ? lists : NULL, tiles, at, order);
        const int tid = (int)threadIdx.x, steps = p.steps(a), from = p.first_step(a);
        left = (steps + 1) / 2;
        odd = steps & 1;
        k = (from + (tid / 4 & 1)) % a.wrap;
#pragma unroll
        for (int i = 0; i < KK_TILE_ROWS / 32; i++) {
            const int r = tid / 8 + 32 * i;
            wide[i] = 32 * i < 16 * p.pieces;
            int from_row = min(p.row + r, a.n_rows - 1);
            if (EXPERTS) {
                const int s = r < 16 * p.pieces ? lists->slot[order % KK_TILE_RING][r] : 0;
                from_row = max(s, 0) / a.per_row;
            }
            row[i] = (uint32_t)from_row * (uint32_t)a.pitch + (tid & 3);
        }
        const kk_gemm_part &m = a.part[p.part];
        const int warp = tid / KK_WARP, lane = tid % KK_WARP;
        /* Strips 2 warp and 2 warp + 1 of the tile: neighbours, or a gate's and an up's. */
        const uint4 *base = m.w + p.expert * m.mat;
        const int pair = p.unit * KK_TILE_STRIPS / 2 + warp;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (m.up && j) base = m.up + p.expert * m.up_mat;
            const int strip = min(m.up ? pair : 2 * pair + j, m.strips - 1);
            w[j] = base + ((size_t)strip * m.steps + from) * KK_WARP + lane;
        }
        if (EXPERTS && order > 0) list(at + (int)gridDim.x, order + 1);
    }
    /* Asks for the next stage; an empty one after the last. */
    __device__ __forceinline__ void fill(uint32_t stage) {
        const int tid = (int)threadIdx.x;
        if (left == 0) seek();
        if (left > 0) {
            const uint32_t x_to =
                stage + (tid / 4 & 1) * KK_TILE_STEP_X + tid / 8 * 64 + (tid & 3) * 16;
            const uint32_t w_to =
                stage + KK_TILE_X + tid / KK_WARP * 2048 + (uint32_t)(tid % KK_WARP) * 16;
#pragma unroll
            for (int i = 0; i < KK_TILE_ROWS / 32; i++)
                if (wide[i]) kk_copy16(x_to + i * 2048, a.x + (row[i] + (uint32_t)k * 4));
            const bool second = left > 1 || !odd;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                kk_copy16(w_to + j * 1024, w[j]);
                kk_copy16_or_zero(w_to + j * 1024 + 512, second ? w[j] + KK_WARP : w[j], second);
                w[j] += 2 * KK_WARP;
            }
            k += 2;
            if (k >= a.wrap) k -= a.wrap;
            left--;
        }
        kk_copies_end();
    }
};

/* The summing side: a warp's sums and the operands of the next step.
 *
 * Outputs are the 16 of a product here and rows the 8, the other way round than where rows are
 * few: the sum of an output is the same chain of the same products.  A row's 16 bytes are then
 * operands as they come, and only the strips' have to change places. */
struct kk_summer {
    float sum[KK_WARP_GROUPS][KK_WARP_PAIRS][4], c[KK_WARP_GROUPS][KK_WARP_PAIRS][4];
    uint4 x[KK_WARP_GROUPS], w[2 * KK_WARP_PAIRS];
    uint4 first[KK_WARP_PAIRS], second[KK_WARP_PAIRS]; /* a pair of strips, turned */

    __device__ __forceinline__ void turn() {
#pragma unroll
        for (int p = 0; p < KK_WARP_PAIRS; p++) {
            const uint4 one = w[2 * p], two = w[2 * p + 1];
            first[p] = make_uint4(one.x, two.x, one.y, two.y);
            second[p] = make_uint4(one.z, two.z, one.w, two.w);
        }
    }
    template <bool FULL> __device__ __forceinline__ void multiply(int m, int pieces) {
        if (!FULL && m >= pieces) return;
#pragma unroll
        for (int g = 2 * m; g < 2 * m + 2; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_PAIRS; p++)
                kk_mma(c[g][p], first[p].x, first[p].y, first[p].z, first[p].w, x[g].x, x[g].y);
#pragma unroll
        for (int g = 2 * m; g < 2 * m + 2; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_PAIRS; p++)
                kk_mma(c[g][p], second[p].x, second[p].y, second[p].z, second[p].w, x[g].z, x[g].w);
    }
    /* Piece m and strip m of a step; from_x, from_w: this lane's place in its rows and strips. */
    template <bool FULL>
    __device__ __forceinline__ void load(int m, int pieces, const char *from_x,
                                         const char *from_w) {
        w[m] = *(const uint4 *)(from_w + m * 1024);
        if (!FULL && m >= pieces) return;
        x[2 * m] = *(const uint4 *)(from_x + m * 1024);
        x[2 * m + 1] = *(const uint4 *)(from_x + m * 1024 + 512);
    }
    __device__ __forceinline__ void begin_tile() {
#pragma unroll
        for (int g = 0; g < KK_WARP_GROUPS; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_PAIRS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[g][p][i] = c[g][p][i] = 0;
    }
    __device__ __forceinline__ void end_slice() {
#pragma unroll
        for (int g = 0; g < KK_WARP_GROUPS; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_PAIRS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[g][p][i] = __fadd_rn(sum[g][p][i], c[g][p][i]);
                    c[g][p][i] = 0;
                }
    }
};

template <bool EXPERTS> struct kk_gemm {
    const kk_gemm_args &a;
    kk_filler<EXPERTS> filler;
    kk_summer s;
    char *room;
    int slot;                 /* the stage being summed */
    int pieces, x_off, w_off; /* of this warp; its lane's place in a stage */

    __device__ __forceinline__ kk_gemm(const kk_gemm_args &args, kk_tile_lists *lists, char *r,
                                       int tiles)
        : a(args), filler(args, lists, tiles), room(r), slot(0) {
        const int warp = threadIdx.x / KK_WARP, lane = threadIdx.x % KK_WARP;
        w_off = KK_TILE_X + warp % 4 * KK_WARP_PAIRS * 2048 + lane * 16;
    }
    static __device__ __forceinline__ int pieces_of(const kk_place &p) {
        return threadIdx.x / KK_WARP < 4 ? (p.pieces + 1) / 2 : p.pieces / 2;
    }
    static __device__ __forceinline__ int first_piece(const kk_place &p) {
        return threadIdx.x / KK_WARP < 4 ? 0 : (p.pieces + 1) / 2;
    }
    __device__ __forceinline__ void turn_to(const kk_place &p) {
        pieces = pieces_of(p);
        x_off = first_piece(p) * 1024 + (int)(threadIdx.x % KK_WARP) * 16;
    }
    __device__ __forceinline__ void begin(const kk_place &first) {
#pragma unroll
        for (int i = 0; i < KK_TILE_STAGES; i++) filler.fill(kk_shared(room) + i * KK_TILE_STAGE);
        kk_copies_wait<KK_TILE_STAGES - 1>();
        __syncthreads();
        turn_to(first);
#pragma unroll
        for (int m = 0; m < KK_WARP_PIECES; m++)
            s.load<false>(m, pieces, room + x_off, room + w_off);
    }
    /* Two steps; operands of the step that follows are read while one is multiplied.  Once the
     * second step's operands are in registers, the stage is free for the filler. */
    template <bool FULL>
    __device__ __forceinline__ void two_steps(int &step, int &bound, int &slice, int steps,
                                              bool last, const kk_place &next) {
        const int now = pieces;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            s.turn();
            s.multiply<FULL>(0, now);
            if (half == 1) {
                kk_copies_wait<KK_TILE_STAGES - 2>();
                __syncthreads();
                filler.fill(kk_shared(room) + slot * KK_TILE_STAGE);
                slot = slot + 1 == KK_TILE_STAGES ? 0 : slot + 1;
                if (last) turn_to(next);
            }
            const char *stage = room + slot * KK_TILE_STAGE;
            const char *x = stage + x_off + (half ? 0 : KK_TILE_STEP_X);
            const char *w = stage + w_off + (half ? 0 : 512);
            s.load<FULL>(0, pieces, x, w);
#pragma unroll
            for (int m = 1; m < KK_WARP_PIECES; m++) {
                s.multiply<FULL>(m, now);
                s.load<FULL>(m, pieces, x, w);
            }
            if (++step == bound) {
                s.end_slice();
                slice++;
                bound = a.cuts > 1 || slice + 1 >= kk_slices(steps) ? (steps + 1) & ~1
                                                                    : kk_slice(steps, slice + 1);
            }
        }
    }
    template <bool FULL>
    __device__ __forceinline__ void sum(const kk_place &p, const kk_place &next) {
        const int steps = p.steps(a), end = (steps + 1) & ~1;
        int step = 0, slice = 0;
        int bound = a.cuts > 1 || kk_slices(steps) == 1 ? end : kk_slice(steps, 1);
        s.begin_tile();
        while (step < end) two_steps<FULL>(step, bound, slice, steps, step + 2 == end, next);
    }

    /* What a lane has of a pair of strips in one row: an output of each, or a gate and an up. */
    __device__ __forceinline__ void put(const kk_gemm_part &m, size_t row, int pair, float one,
                                        float two) const {
        const int lane = threadIdx.x % KK_WARP, o = (m.up ? pair : 2 * pair) * 8 + lane / 4;
        if (m.up) {
            if (o < m.n_out)
                ((uint16_t *)m.out)[row * m.pitch + o] = kk_dbf16(kk_glu_of(one, two, a.silu));
            return;
        }
        if (m.cap != 0) {
            one = kk_dsoftcap(one, m.cap);
            two = kk_dsoftcap(two, m.cap);
        }
        float *to = (float *)m.out + row * m.pitch + o;
        if (o < m.n_out) to[0] = one;
        if (o + 8 < m.n_out) to[8] = two;
    }
    __device__ __forceinline__ void write(const kk_place &p, const int *slots) const {
        const kk_gemm_part &part = a.part[p.part];
        const int warp = threadIdx.x / KK_WARP, lane = threadIdx.x % KK_WARP;
        const int groups = 2 * pieces_of(p), first = first_piece(p) * 16 + lane % 4 * 2;
        const int pair = (p.unit * 4 + warp % 4) * KK_WARP_PAIRS;
#pragma unroll
        for (int g = 0; g < KK_WARP_GROUPS; g++) {
            if (g >= groups) break;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int r = first + g * 8 + i, at = EXPERTS ? slots[r] : p.row + r;
                if (EXPERTS ? at < 0 : at >= a.n_rows) continue;
                const size_t row = (size_t)p.slice * (size_t)a.n_rows + (size_t)at;
#pragma unroll
                for (int k = 0; k < KK_WARP_PAIRS; k++)
                    put(part, row, pair + k, s.sum[g][k][i], s.sum[g][k][2 + i]);
            }
        }
    }
    __device__ __forceinline__ void run() {
        const int total = filler.total, grid = (int)gridDim.x;
        kk_tile_lists *lists = EXPERTS ? filler.lists : NULL;
        kk_place now, next;
        int at = (int)blockIdx.x, order = 0;
        if (at >= total) return;
        now.seek(a, lists, filler.tiles, at, 0);
        begin(now);
        for (; at < total; at += grid, order++) {
            next = now;
            if (at + grid < total) next.seek(a, lists, filler.tiles, at + grid, order + 1);
            if (now.pieces == KK_TILE_PIECES)
                sum<true>(now, next);
            else
                sum<false>(now, next);
            write(now, EXPERTS ? lists->slot[order % KK_TILE_RING] : NULL);
            now = next;
        }
    }
};

template <bool EXPERTS>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 1)
    kk_gemm_kernel(const __grid_constant__ kk_gemm_args a) {
    extern __shared__ __align__(128) char room[];
    __shared__ kk_tile_lists lists;
    kk_wait();
    kk_next();
    kk_gemm<EXPERTS> g(a, EXPERTS ? &lists : NULL, room, EXPERTS ? *a.n_tiles : a.tiles);
    g.run();
}

#endif
