/* gemm.cuh - products for more than 16 rows: tiles of 128 rows by 128 outputs over the weight
 * strips of stream.cuh, with the arithmetic of arith.cuh, so that a row of a prompt has the bits it
 * would have alone.
 *
 *    persistent block: 256 threads = 8 warps, one block per multiprocessor, tile after tile
 *      warps 0..3 upper rows, 4..7 lower rows; warp % 4: a quarter of the outputs
 *      a warp holds 64 rows x 32 outputs twice: sums of the current K slice, total of the slices
 *    shared memory, 3 stages x 32 KB; a stage is two K steps (64 inputs):
 *      x [128 rows][64] bf16, swizzled, 16 KB | w [16 strips][2 steps][512 B] 16 KB
 *    pipeline (cp.async, all threads copy and multiply):
 *      step 0 of stage s: mma, load step 1's operands into registers
 *      step 1: first mma; cp.async.wait_group 1; bar.sync 1; rest of the mma, while the first
 *              operands of stage s + 1 are loaded and the freed stage is filled with s + 3
 *    copies run on into the next tile while this one is stored
 *
 * Rows come swizzled: of every 32 inputs, the words (pairs of values) lie in the order in which
 * ldmatrix hands them to the lanes that hold the same inputs of a strip (kk_swizzled in arith.cuh).
 * In shared memory the eight 16-byte chunks of a row are XORed with the row's number, which avoids
 * bank conflicts.
 *
 * A tile of fewer steps than the ring holds is its block's only one: copies go on to the next tile
 * three stages before the end.
 *
 * A tile of fewer than 128 rows has fewer 16-row fragments ("pieces"), divided between the upper
 * and the lower warps.  The loop is instantiated for every number of pieces of a warp, because
 * masked products would cost as much as real ones. */
#ifndef KK_CUDA_GEMM_CUH
#define KK_CUDA_GEMM_CUH

#include "decode.cuh"

enum {
    KK_TILE_ROWS = 128,
    KK_TILE_PIECES = 8,  /* fragments of 16 rows */
    KK_TILE_STRIPS = 16, /* strips of 8 outputs */
    KK_TILE_STAGES = 3,
    KK_TILE_X = KK_TILE_ROWS * 128,
    KK_TILE_STAGE = KK_TILE_X + KK_TILE_STRIPS * 2 * 512,
    KK_TILE_SHARED = KK_TILE_STAGES * KK_TILE_STAGE,
    KK_TILE_RING = 4,   /* lists of rows being copied */
    KK_WARP_PIECES = 4, /* 16-row fragments and strips of one warp */
    KK_WARP_STRIPS = 4,
};

struct kk_gemm_part {
    const uint4 *w, *up;      /* up not NULL: out = act(w x) * (up x), as swizzled bf16 */
    size_t mat, up_mat;       /* 16-byte words from one expert's matrix to the next */
    void *out;                /* rows of f32, or of bf16 */
    int n_out, strips, units; /* units: tiles along the outputs */
    int steps, pitch;         /* pitch: values from one row of out to the next */
};

struct kk_gemm_args {
    kk_gemm_part part[KK_MAX_PARTS];
    int n_parts, units; /* units of all parts */
    const uint4 *x;     /* rows of bf16 */
    int pitch, wrap;    /* of x's rows in 16-byte words; K steps after which x repeats */
    int n_rows, tiles;  /* tiles along the rows */
    int cuts;           /* not 1: a tile is one K slice, out[slice][n_rows][pitch] */
    int silu;
    int stages; /* of the ring, with packed weights */
    /* Experts: the rows of each tile are listed (group_kernel of cuda_gemm.cu), -1 where there is
     * none. */
    const int2 *tile;   /* expert, 16-row fragments */
    const int *slot;    /* [tiles][list]: (row, expert) pairs = rows of out */
    int list;           /* KK_TILE_ROWS, or KK_HOP_ROWS (gemm_hopper.cuh) */
    const int *n_tiles; /* on the device, NULL: plain rows */
    int per_row;        /* pairs that share a row of x */
};

/* Asynchronous 16-byte copy.  Offsets are template parameters, so that they become immediates. */
template <int TO, int FROM>
__device__ __forceinline__ void kk_copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from),
                 "n"(TO), "n"(FROM)
                 : "memory");
}
/* The same; bytes 0 stores zeros and reads nothing. */
template <int TO, int FROM>
__device__ __forceinline__ void kk_copy16_or_zero(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to), "l"(from),
                 "n"(TO), "n"(FROM), "r"(bytes)
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

/* Row lists of the experts' kernel: of the tile being multiplied, the one being copied, the
 * next. */
struct kk_tile_lists {
    int slot[KK_TILE_RING][KK_TILE_ROWS];
    int2 tile[KK_TILE_RING]; /* expert, 16-row fragments */
};

/* What a tile covers. */
struct kk_place {
    int part, unit, slice; /* unit: within its part; slice: where tiles are one K slice */
    int row, pieces;       /* first row, without experts; 16-row fragments */
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

/* The copying half of the pipeline: what this thread copies of the next stage. */
template <bool EXPERTS, bool GLU, int W> struct kk_filler {
    const kk_gemm_args &a;
    kk_tile_lists *lists;
    int tiles, total, at, order;
    int left, k;   /* stages of the tile still to be issued; this thread's K step of x */
    int rows, odd; /* rows of the tile, 0: no more tiles; whether its step count is odd */
    uint32_t row[KK_TILE_ROWS / 32], w_at; /* offsets in 16-byte words */
    uint32_t x_to, w_to;                   /* byte offsets in a stage */
    const uint4 *w[2], *x;
    enum { WORDS = kk_words_of(W) }; /* 16-byte words of a K step of a strip */

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
          at((int)blockIdx.x - (int)gridDim.x), order(-1), left(0), k(0), rows(0), odd(0), w_at(0),
          x(args.x) {
        const int tid = (int)threadIdx.x, r = tid / 8;
        x_to = (uint32_t)(r * 128 + ((tid ^ r) & 7) * 16);
        w_to = (uint32_t)(KK_TILE_X + tid / KK_WARP * 2048 + tid % KK_WARP * 16);
        if (!EXPERTS) return;
        list((int)blockIdx.x, 0);
        list((int)blockIdx.x + (int)gridDim.x, 1);
        kk_copies_end();
        kk_copies_wait<0>();
        __syncthreads();
    }
    /* Advances to this block's next tile. */
    __device__ __forceinline__ void seek() {
        at += (int)gridDim.x;
        order++;
        rows = 0;
        if (at >= total) return;
        kk_place p;
        p.seek(a, EXPERTS ? lists : NULL, tiles, at, order);
        const int tid = (int)threadIdx.x, steps = p.steps(a), from = p.first_step(a);
        rows = 16 * p.pieces;
        left = (steps + 1) / 2;
        odd = steps & 1;
        k = (from + (tid / 4 & 1)) % a.wrap;
        x = a.x + 4 * k;
        w_at = (uint32_t)(from * WORDS);
#pragma unroll
        for (int i = 0; i < KK_TILE_ROWS / 32; i++) {
            const int r = tid / 8 + 32 * i;
            int from_row = min(p.row + r, a.n_rows - 1);
            if (EXPERTS) {
                const int s = r < 16 * p.pieces ? lists->slot[order % KK_TILE_RING][r] : 0;
                from_row = max(s, 0) / a.per_row;
            }
            row[i] = (uint32_t)from_row * (uint32_t)a.pitch + (tid & 3);
        }
        const kk_gemm_part &m = a.part[p.part];
        const int warp = tid / KK_WARP, lane = tid % KK_WARP;
        /* Strips 2 warp and 2 warp + 1 of the tile: neighbours, or a gate and an up strip. */
        const uint4 *base = m.w + p.expert * m.mat;
        const int pair = p.unit * KK_TILE_STRIPS / 2 + warp;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (GLU && j) base = m.up + p.expert * m.up_mat;
            const int strip = min(GLU ? pair : 2 * pair + j, m.strips - 1);
            w[j] = base + (size_t)strip * m.steps * WORDS + lane;
        }
        if (EXPERTS && order > 0) list(at + (int)gridDim.x, order + 1);
    }
    __device__ __forceinline__ const void *row_at(int i) const {
        return (const char *)x + (uint64_t)row[i] * 16;
    }
    /* Issues the copies of the next stage; none after the last. */
    __device__ __forceinline__ void fill(uint32_t stage) {
        uint32_t x_place = stage + x_to, w_place = stage + w_to;
        const int bytes = left > 1 || !odd ? 16 : 0; /* 0: there is no second step, store zeros */
        asm volatile(""
                     : "+r"(x_place), "+r"(w_place)); /* keeps the compiler from recomputing them */
        if (0 < rows) kk_copy16<0, 0>(x_place, row_at(0));
        if (32 < rows) kk_copy16<4096, 0>(x_place, row_at(1));
        if (64 < rows) kk_copy16<8192, 0>(x_place, row_at(2));
        if (96 < rows) kk_copy16<12288, 0>(x_place, row_at(3));
        if (0 < rows) {
            kk_copy16<0, 0>(w_place, w[0] + w_at);
            kk_copy16_or_zero<512, 512>(w_place, w[0] + w_at, bytes);
            kk_copy16<1024, 0>(w_place, w[1] + w_at);
            kk_copy16_or_zero<1536, 512>(w_place, w[1] + w_at, bytes);
        }
        advance();
    }
    /* The same of packed weights, whose steps fill a part of their places: the first words lanes
     * copy.  Goes on to the next tile by itself. */
    __device__ __forceinline__ void fill_packed(uint32_t stage) {
        if (left == 0) seek();
        if (rows > 0) {
            const uint32_t x_place = stage + x_to, w_place = stage + w_to;
            const int bytes = left > 1 || !odd ? 16 : 0;
            kk_copy16<0, 0>(x_place, row_at(0));
            if (32 < rows) kk_copy16<4096, 0>(x_place, row_at(1));
            if (64 < rows) kk_copy16<8192, 0>(x_place, row_at(2));
            if (96 < rows) kk_copy16<12288, 0>(x_place, row_at(3));
            if ((int)threadIdx.x % KK_WARP < WORDS) {
                enum { NEXT = WORDS * 16 };
                kk_copy16<0, 0>(w_place, w[0] + w_at);
                kk_copy16_or_zero<512, NEXT>(w_place, w[0] + w_at, bytes);
                kk_copy16<1024, 0>(w_place, w[1] + w_at);
                kk_copy16_or_zero<1536, NEXT>(w_place, w[1] + w_at, bytes);
            }
            advance();
        } else {
            kk_copies_end();
        }
    }
    /* Commits the stage's copies and moves on. */
    __device__ __forceinline__ void advance() {
        kk_copies_end();
        w_at += 2 * WORDS;
        k += 2;
        x += 8;
        if (k >= a.wrap) {
            k -= a.wrap;
            x -= 4 * a.wrap;
        }
        if (--left == 0) rows = 0; /* nothing more until the next tile */
    }
};

__device__ __forceinline__ uint4 kk_matrices(uint32_t from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}

/* The multiplying half: a warp's sums and the operands of the next step. */
struct kk_summer {
    float sum[KK_WARP_PIECES][KK_WARP_STRIPS][4], c[KK_WARP_PIECES][KK_WARP_STRIPS][4];
    uint4 one[KK_WARP_PIECES],
        two[KK_WARP_PIECES];    /* A operands of a step's first and second product */
    uint4 w[2][KK_WARP_STRIPS]; /* B operands of a stage's two steps */

    __device__ __forceinline__ void multiply(int m, int half) {
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++)
            kk_mma(c[m][i], one[m].x, one[m].y, one[m].z, one[m].w, w[half][i].x, w[half][i].y);
#pragma unroll
        for (int i = 0; i < KK_WARP_STRIPS; i++)
            kk_mma(c[m][i], two[m].x, two[m].y, two[m].z, two[m].w, w[half][i].z, w[half][i].w);
    }
    /* Loads fragment m or strip m of a step; from: this lane's address in its rows or strips. */
    __device__ __forceinline__ void load_rows(int m, uint32_t from) {
        one[m] = kk_matrices(from + m * 2048);
        two[m] = kk_matrices((from ^ 32) + m * 2048);
    }
    __device__ __forceinline__ void load_strip(int m, int half, const char *from) {
        w[half][m] = *(const uint4 *)(from + m * 1024);
    }
    __device__ __forceinline__ void begin_tile() {
#pragma unroll
        for (int g = 0; g < KK_WARP_PIECES; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_STRIPS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[g][p][i] = c[g][p][i] = 0;
    }
    __device__ __forceinline__ void end_slice() {
#pragma unroll
        for (int g = 0; g < KK_WARP_PIECES; g++)
#pragma unroll
            for (int p = 0; p < KK_WARP_STRIPS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[g][p][i] = __fadd_rn(sum[g][p][i], c[g][p][i]);
                    c[g][p][i] = 0;
                }
    }
};

/* Fragments of a tile that this warp multiplies, and the first of them. */
__device__ __forceinline__ int kk_pieces_of(const kk_place &p) {
    return threadIdx.x / KK_WARP < 4 ? (p.pieces + 1) / 2 : p.pieces / 2;
}
__device__ __forceinline__ int kk_first_piece(const kk_place &p) {
    return threadIdx.x / KK_WARP < 4 ? 0 : (p.pieces + 1) / 2;
}

/* The steps of a tile, in whole stages of two, and where its K slices end. */
struct kk_step_count {
    int step, bound, slice, steps;
    bool whole; /* the tile is one slice */

    __device__ __forceinline__ kk_step_count(int n, bool one)
        : step(0), slice(0), steps(n), whole(one || kk_slices(n) == 1) {
        bound = whole ? end() : kk_slice(n, 1);
    }
    __device__ __forceinline__ int end() const { return (steps + 1) & ~1; }
    /* Counts a step; true after the last of a slice. */
    __device__ __forceinline__ bool slice_ends() {
        if (++step != bound) return false;
        slice++;
        bound = whole || slice + 1 >= kk_slices(steps) ? end() : kk_slice(steps, slice + 1);
        return true;
    }
};

typedef float kk_tile_sums[KK_WARP_PIECES][KK_WARP_STRIPS][4];

/* Stores what a lane has in one row: two neighbours of each strip, or of each gate and up. */
template <bool GLU>
__device__ __forceinline__ void kk_tile_put_row(const kk_gemm_part &m, int silu,
                                                const kk_tile_sums &sum, size_t row, int strip,
                                                int g, int i) {
    const int lane = threadIdx.x % KK_WARP, o = strip * 8 + lane % 4 * 2;
    if (GLU) {
        uint16_t *to = (uint16_t *)m.out + row * m.pitch;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float *gate = &sum[g][2 * k][2 * i], *up = &sum[g][2 * k + 1][2 * i];
            const uint32_t both =
                kk_dbf16x2(kk_glu_of(gate[0], up[0], silu), kk_glu_of(gate[1], up[1], silu));
            if (o + 8 * k + 1 < m.n_out)
                *(uint32_t *)(to + kk_swizzled(o + 8 * k)) = both;
            else if (o + 8 * k < m.n_out)
                to[kk_swizzled(o + 8 * k)] = (uint16_t)both;
        }
        return;
    }
    float *to = (float *)m.out + row * m.pitch + o;
#pragma unroll
    for (int k = 0; k < KK_WARP_STRIPS; k++) {
        const float x = sum[g][k][2 * i], y = sum[g][k][2 * i + 1];
        if (o + 8 * k + 1 < m.n_out && m.pitch % 2 == 0) {
            *(float2 *)(to + 8 * k) = make_float2(x, y);
        } else {
            if (o + 8 * k < m.n_out) to[8 * k] = x;
            if (o + 8 * k + 1 < m.n_out) to[8 * k + 1] = y;
        }
    }
}

/* Stores a warp's sums of a tile.  slots: the pairs of its rows, with EXPERTS. */
template <bool EXPERTS, bool GLU>
__device__ __forceinline__ void kk_tile_write(const kk_gemm_args &a, const kk_tile_sums &sum,
                                              const kk_place &p, const int *slots) {
    const kk_gemm_part &part = a.part[p.part];
    const int warp = threadIdx.x / KK_WARP, lane = threadIdx.x % KK_WARP, n = kk_pieces_of(p);
    const int first = kk_first_piece(p) * 16 + lane / 4;
    const int strip = (p.unit * 4 + warp % 4) * (GLU ? 2 : 4);
#pragma unroll
    for (int g = 0; g < KK_WARP_PIECES; g++) {
        if (g >= n) break;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = first + g * 16 + i * 8, at = EXPERTS ? slots[r] : p.row + r;
            if (EXPERTS ? at < 0 : at >= a.n_rows) continue;
            kk_tile_put_row<GLU>(part, a.silu, sum, (size_t)p.slice * (size_t)a.n_rows + (size_t)at,
                                 strip, g, i);
        }
    }
}

/* A barrier at different program points: warps may be in different instantiations of sum(). */
__device__ __forceinline__ void kk_block_barrier() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)KK_BLOCK_THREADS) : "memory");
}

template <bool EXPERTS, bool GLU> struct kk_gemm {
    const kk_gemm_args &a;
    kk_filler<EXPERTS, GLU, KK_W_BF16> filler;
    kk_summer s;
    char *smem;
    int slot;         /* the stage being multiplied */
    int x_off, w_off; /* this lane's byte offsets in a stage */

    __device__ __forceinline__ kk_gemm(const kk_gemm_args &args, kk_tile_lists *lists, char *r,
                                       int tiles)
        : a(args), filler(args, lists, tiles), smem(r), slot(0), x_off(0) {
        const int warp = threadIdx.x / KK_WARP, lane = threadIdx.x % KK_WARP;
        w_off = KK_TILE_X + warp % 4 * KK_WARP_STRIPS * 1024 + lane * 16;
    }
    __device__ __forceinline__ const char *stage() const { return smem + slot * KK_TILE_STAGE; }
    __device__ __forceinline__ uint32_t rows() const { return kk_shared(stage()) + x_off; }

    __device__ __forceinline__ void begin() {
        filler.seek();
#pragma unroll
        for (int i = 0; i < KK_TILE_STAGES; i++) {
            filler.fill(kk_shared(smem) + i * KK_TILE_STAGE);
        }
        kk_copies_wait<KK_TILE_STAGES - 1>();
        kk_block_barrier();
    }
    /* A stage's first step, while the operands of its second are loaded. */
    template <int PIECES> __device__ __forceinline__ void first_step() {
        if (PIECES == 0) return;
        const uint32_t x = rows() ^ 64;
        const char *w = stage() + w_off + 512;
#pragma unroll
        for (int m = 0; m < KK_WARP_PIECES; m++) {
            s.load_strip(m, 1, w);
            if (m >= PIECES) continue;
            s.multiply(m, 0);
            s.load_rows(m, x);
        }
    }
    /* Begins the second step: its operands are all in registers, so that after the barrier the
     * stage is free.  The loop closes between here and the rest of the step; otherwise the compiler
     * would move all products before the barrier and leave nothing to hide the loads after it. */
    template <int PIECES> __device__ __forceinline__ void begin_second_step() {
        if (PIECES > 0) s.multiply(0, 1);
        kk_copies_wait<KK_TILE_STAGES - 2>();
        kk_block_barrier();
    }
    /* Ends the second step, while the first operands of the next stage are loaded and the freed
     * stage is filled. */
    template <int PIECES> __device__ __forceinline__ void end_second_step() {
        const uint32_t free_stage = kk_shared(stage());
        slot = slot + 1 == KK_TILE_STAGES ? 0 : slot + 1;
        const uint32_t x = rows();
        const char *w = stage() + w_off;
#pragma unroll
        for (int m = 0; m < KK_WARP_STRIPS; m++)
            if (PIECES > 0) s.load_strip(m, 0, w);
#pragma unroll
        for (int m = 0; m < PIECES; m++) {
            if (m > 0) s.multiply(m, 1);
            s.load_rows(m, x);
        }
        filler.fill(free_stage);
    }
    /* All steps of a tile; its last stages already issue copies of the next tile's first ones. */
    template <int PIECES> __device__ __forceinline__ void sum(const kk_place &p) {
        const int lane = threadIdx.x % KK_WARP;
        kk_step_count n(p.steps(a), a.cuts > 1);
        const int end = n.end();
        x_off = kk_first_piece(p) * 2048 + (lane & 15) * 128 + ((lane / 16 ^ lane) & 7) * 16;
        s.begin_tile();
        if (PIECES > 0) {
#pragma unroll
            for (int m = 0; m < KK_WARP_PIECES; m++) {
                s.load_strip(m, 0, stage() + w_off);
                if (m < PIECES) s.load_rows(m, rows());
            }
        }
        for (int left = end / 2;; left--) {
            if (n.step > 0) {
                if (left + 1 == KK_TILE_STAGES) filler.seek();
                end_second_step<PIECES>();
                if (n.slice_ends()) s.end_slice();
                if (left == 0) break;
            }
            first_step<PIECES>();
            if (n.slice_ends()) s.end_slice();
            begin_second_step<PIECES>();
        }
    }

    __device__ __forceinline__ void run() {
        const int total = filler.total, grid = (int)gridDim.x;
        kk_tile_lists *lists = EXPERTS ? filler.lists : NULL;
        kk_place now;
        int at = (int)blockIdx.x, order = 0;
        if (at >= total) return;
        begin();
        for (; at < total; at += grid, order++) {
            now.seek(a, lists, filler.tiles, at, order);
            switch (kk_pieces_of(now)) {
            case 0: sum<0>(now); break;
            case 1: sum<1>(now); break;
            case 2: sum<2>(now); break;
            case 3: sum<3>(now); break;
            default: sum<4>(now); break;
            }
            kk_tile_write<EXPERTS, GLU>(a, s.sum, now,
                                        EXPERTS ? lists->slot[order % KK_TILE_RING] : NULL);
        }
    }
};

template <bool EXPERTS, bool GLU>
__global__ void __launch_bounds__(KK_BLOCK_THREADS, 1)
    kk_gemm_kernel(const __grid_constant__ kk_gemm_args a) {
    extern __shared__ __align__(128) char smem[];
    __shared__ kk_tile_lists lists;
    kk_wait();
    kk_next();
    kk_gemm<EXPERTS, GLU> g(a, EXPERTS ? &lists : NULL, smem, EXPERTS ? *a.n_tiles : a.tiles);
    g.run();
}

/* Launches kk_packed_gemm_kernel (cuda_gemm_packed.cu); its parts are all in one encoding. */
cudaError_t kk_run_packed_gemm(const kk_cu_at &at, kk_gemm_args a, bool experts, int encoding,
                               unsigned blocks);
cudaError_t kk_setup_packed_gemm();

#endif
