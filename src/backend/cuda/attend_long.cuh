/* attend_long.cuh - attention of the fused forward (attend_few.cuh) over long contexts: heads of
 * 512 with K = V that see all positions before them, in formats that fit the weight rings' memory.
 *
 * What is far: pages of which every row of the session sees every key.  A *lane* is such pages of
 * one session, K/V head and tile of 16 queries, in ascending order.  All lanes lie one after the
 * other, and every block takes an equal run of that line.  Pages at the end of a session, which get
 * new rows and masks, are computed by kk_few_unit in blocks that take no run.
 *
 *    a block's run:  queries of the lane normed and rotated -> smem, once
 *      page i:  wait for its copies                                                     -- sync
 *               start the copies of page i + 1 (cp.async)
 *               eight keys and one chain per warp: K from shared memory, rebuilt and multiplied
 *               step by step
 *               scores -> smem, by chain (several rows: added and scaled, one more sync)  -- sync
 *               V of 32 columns -> registers, by ldmatrix
 *               warps 0 to 7: start the copies of page i + 1's angles; prefetch page i + 2 to L2
 *               softmax, one query per warp, warps 8 to 15 where there are eight; factors of the
 *               running (m, l, o)                                                       -- sync
 *               o = p V; the running o of 16 x 512 stays in registers
 *      (m, l, o) -> parts at the end of a span of eight pages, or of the run
 *    The loop over pages is bound by the instructions that are issued (16 warps, four schedulers)
 *    and by shared memory's bandwidth, so places in shared memory are computed once per run
 *    (kk_long_at).  Registers that do not fit would go to local memory, which the little L1 beside
 *    this much shared memory does not hold.
 *
 *    shared memory while attention runs: the weight rings, which are empty
 *      bf16:    page i 64 KB | page i + 1 64 KB | angles 32 KB
 *      codes:   V as bf16 64 KB | one or two pages as stored | angles 32 KB
 *    (with several rows the angles lie behind attention's own shared memory)
 *
 * The arithmetic is that of attend.cuh: the pages of a span are merged in ascending order, so a run
 * that begins within a span stores each of that span's pages as a part of its own, and merging
 * goes on from the part of the run before, which holds the span's first pages merged.
 *
 *    parts, f32: [row][head][rows.most_pages][4 + 512]: spans, then from `spans` on the last pages
 *                [block][7][16 queries][4 + 512]: pages of a span that a run did not begin */
#ifndef KK_CUDA_ATTEND_LONG_CUH
#define KK_CUDA_ATTEND_LONG_CUH

#include "attend_few.cuh"

enum {
    KK_LONG_ROT = KK_CU_LONG_ROT,
    KK_LONG_FROM = 64,                              /* pages of a session, from which on it pays */
    KK_LONG_HEADS = 8,                              /* query heads of a K/V head */
    KK_LONG_PART = 512 + 4,                         /* floats of a part */
    KK_LONG_PAGE = KK_PAGE * 512 * 2,               /* bytes of V of a page as bf16 */
    KK_LONG_ANGLES = KK_PAGE * 2 * KK_LONG_ROT * 4, /* bytes of a page's angles */
};

/* How the far pages of a launch are divided.  A unit is one page of one lane. */
struct kk_long_plan {
    int units, edges, blocks; /* far units; units at sessions' ends; blocks that take far units */

    __host__ __device__ __forceinline__ kk_long_plan() : units(0), edges(0), blocks(0) {}
    static __host__ __device__ __forceinline__ int far(const kk_few_group &g) {
        return g.pos / KK_PAGE;
    }
    static __host__ __device__ __forceinline__ int tiles(const kk_few_group &g) {
        return (g.rows * KK_LONG_HEADS + 15) / 16;
    }
    static __host__ __device__ __forceinline__ int ends(const kk_few_group &g) {
        return (g.pos + g.rows - 1) / KK_PAGE + 1 - far(g);
    }
    /* Far units of a session, and those at its end. */
    static __host__ __device__ __forceinline__ int far_units(const kk_few_group &g) {
        return 2 * tiles(g) * far(g);
    }
    static __host__ __device__ __forceinline__ int end_units(const kk_few_group &g) {
        return 2 * tiles(g) * ends(g);
    }
    __host__ __device__ __forceinline__ void add(const kk_few_group &g) {
        units += far_units(g);
        edges += end_units(g);
    }
    __host__ __device__ __forceinline__ void divide(int all) {
        blocks = all - (edges < all / 4 ? edges : all / 4);
    }
    /* The first unit of a block's run, and the block of a unit. */
    __host__ __device__ __forceinline__ int start(int block) const {
        return (int)((uint32_t)units * (uint32_t)block / (uint32_t)blocks);
    }
    __host__ __device__ __forceinline__ int owner(int unit) const {
        return (int)((((uint32_t)unit + 1) * (uint32_t)blocks - 1) / (uint32_t)units);
    }
};

/* Where a page's part lies: merged with those before it in its span (absorbed: no part of its own),
 * the span's, or its own. */
struct kk_long_place {
    bool absorbed, own;
    int block, nth; /* own: the block whose run it is in, and its place in that run */
};

/* page: of the lane whose first unit is `lane`. */
__host__ __device__ __forceinline__ kk_long_place kk_long_place_of(const kk_long_plan &p, int lane,
                                                                   int page) {
    kk_long_place at = {false, false, p.owner(lane + page), 0};
    const int from = p.start(at.block) - lane, first = from > 0 ? from : 0;
    at.nth = page - first;
    if (page % KK_SPAN == 0) return at;
    at.own = first > page / KK_SPAN * KK_SPAN;
    at.absorbed = !at.own;
    return at;
}

template <bool MANY>
__device__ __forceinline__ kk_long_plan kk_long_plan_of(const kk_cu_attend &t,
                                                        const kk_few_group *groups) {
    kk_long_plan p;
#pragma unroll 1
    for (int g = 0; g < (MANY ? t.rows.tiles : 1); g++) p.add(groups[g]);
    p.divide((int)gridDim.x);
    return p;
}

/* The part of page nth of a block's run, for query 0 of the tile; others follow. */
__device__ __forceinline__ float *kk_long_own(const kk_cu_attend &t, int block, int nth) {
    return kk_few_part(t, 512, t.rows.n_rows, 0, 0) +
           (size_t)((block * (KK_SPAN - 1) + nth) * 16) * KK_LONG_PART;
}

/* ---- copies to shared memory --------------------------------------------------------------- */

__device__ __forceinline__ void kk_long_copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(kk_shared(to)), "l"(from)
                 : "memory");
}

/* A page as it is stored: bytes of a row's codes, of all rows', and of the scales behind them. */
template <int KV_FORMAT> struct kk_long_stored {
    enum {
        ROW = KV_FORMAT == KK_CU_BF16 ? 1024
              : KV_FORMAT == KK_CU_Q4 ? 256
                                      : 512,
        CODES = KK_PAGE * ROW,
        PLANES = KV_FORMAT == KK_CU_BF16 ? 0 : KK_PAGE * 8 * (KV_FORMAT == KK_CU_S8 ? 2 : 4),
        BYTES = CODES + PLANES,
    };
    /* Where piece `piece` of 16 bytes of a key's codes lies: such that eight lanes that read two
     * keys of bf16, or sixteen that read four keys of codes, meet in different banks. */
    static __device__ __forceinline__ char *piece(char *page, int key, int piece) {
        if (KV_FORMAT == KK_CU_BF16) return (char *)kk_few_piece<512>(page, key, piece);
        return page + key * ROW + ((piece ^ (key & 3) << 1) << 4);
    }
    /* A thread copies the same piece of every eighth key, or 16th or 32nd: their places differ by
     * a constant. */
    static __device__ __forceinline__ void copy(char *to, const uint8_t *from) {
        enum { PIECES = ROW / 16, EACH = CODES / 16 / 512 };
        const int tid = kk_tid();
        char *mine = piece(to, tid / PIECES, tid % PIECES);
        from += tid * 16;
#pragma unroll
        for (int i = 0; i < EACH; i++) kk_long_copy16(mine + i * 512 * 16, from + i * 512 * 16);
        if (tid < PLANES / 16) kk_long_copy16(to + CODES + tid * 16, from + CODES);
    }
};

/* Angles of a page: [key][64 cosines, 64 sines], pieces of 16 bytes whose index is xored with the
 * key's lowest bit.  Each of the warps 0 to 7 alone reads those of its eight keys, and copies
 * them; not to be called by other warps. */
__device__ __forceinline__ void kk_long_copy_angles(char *to, const float *angles, int page) {
    const int warp = kk_tid() / 32, lane = kk_tid() % 32;
    const char *from = (const char *)angles + (size_t)page * KK_LONG_ANGLES + warp * 4096;
#pragma unroll
    for (int i = 0; i < 8; i++)
        kk_long_copy16(to + warp * 4096 + i * 512 + ((lane ^ (i & 1)) << 4),
                       from + i * 512 + lane * 16);
}

/* Prefetches a page and its angles to L2, by one thread. */
__device__ __forceinline__ void kk_long_prefetch(const uint8_t *rows, uint32_t bytes,
                                                 const float *angles, int page) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(rows), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)angles +
                                                                    (size_t)page * KK_LONG_ANGLES),
                 "r"((uint32_t)KK_LONG_ANGLES)
                 : "memory");
#else
    (void)rows, (void)bytes, (void)angles, (void)page;
#endif
}

/* ---- one page ------------------------------------------------------------------------------ */

/* Where a thread reads and writes, the same in all pages: byte offsets, so that a step of the loop
 * over a page takes a load or store with a constant offset and next to no arithmetic. */
template <int KV_FORMAT> struct kk_long_at {
    int key;    /* in V as bf16: this lane's key, first piece of its chain */
    int stored; /* the same in a page as stored */
    int angle, norm, query, score, value, plane;

    __device__ __forceinline__ kk_long_at() {
        const int tid = kk_tid(), lane = tid % 32, warp = tid / 32, t = tid % 4, chain = tid / 256;
        const int j = warp % 8 * 8 + lane / 4;
        key = (int)((char *)kk_few_piece<512>((char *)NULL, j, 16 * chain + t) - (char *)NULL);
        stored = key;
        if (KV_FORMAT != KK_CU_BF16) {
            const int first = (KV_FORMAT == KK_CU_Q4 ? 4 : 8) * chain + t / 2;
            stored =
                j * (KV_FORMAT == KK_CU_Q4 ? 256 : 512) + ((first ^ (j & 3) << 1) << 4) + t % 2 * 8;
        }
        plane = (j * 8 + 2 * chain) * 2;
        angle = j * 512 + ((2 * t ^ (j & 1)) << 4);
        norm = chain * 512 + t * 32;
        query = lane / 4 * kk_cut<512>::PITCH + chain * 256 + t * 16;
        score = (lane / 4 * KK_SCORE_PITCH + warp % 8 * 8 + 2 * t) * 4;
        /* Matrices 0, 1: keys 0 .. 7 and 8 .. 15 of eight columns; 2, 3: of the next eight. */
        value = (int)((char *)kk_few_piece<512>((char *)NULL, lane % 16, warp * 4 + lane / 16) -
                      (char *)NULL);
    }
};

/* Step i of this lane's key in another format than bf16: eight values of V and those half a head
 * on, which also go to `values` as bf16.  by: scales and biases of the two groups, read at even
 * steps. */
template <int KV_FORMAT>
__device__ __forceinline__ void kk_long_value(float (&lo)[8], float (&hi)[8], float2 (&by)[2],
                                              const kk_long_at<KV_FORMAT> &at, int i,
                                              const char *page, char *values) {
    using stored = kk_long_stored<KV_FORMAT>;
    const int piece = (at.key ^ (i & 1) << 6) + i / 2 * 128;
    if (i % 2 == 0) {
        const uint16_t *plane = (const uint16_t *)(page + stored::CODES + at.plane);
        by[0] = kk_few_scale<KV_FORMAT, 512>(plane, i / 2);
        by[1] = kk_few_scale<KV_FORMAT, 512>(plane, i / 2 + 4);
    }
    const char *codes = page + (at.stored ^ (KV_FORMAT == KK_CU_Q4 ? i / 2 : i) << 5);
    kk_unpack8<KV_FORMAT>(lo, *(const uint2 *)codes, i % 2, by[0].x, by[0].y);
    kk_unpack8<KV_FORMAT>(hi, *(const uint2 *)(codes + stored::ROW / 2), i % 2, by[1].x, by[1].y);
    *(uint4 *)(values + piece) = kk_narrow(lo);
    *(uint4 *)(values + piece + 512) = kk_narrow(hi);
}

/* kk_rebuild with the angles in shared memory, as bf16.  norm: weights of these values; angles:
 * their cosines, from piece `angle` on. */
__device__ __forceinline__ void kk_long_rebuild(uint4 &near, uint4 &far, float (&lo)[8],
                                                float (&hi)[8], const char *norm, bool rotates,
                                                const char *angles, int angle) {
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const float4 x = *(const float4 *)(norm + e * 4);
        const float4 y = *(const float4 *)(norm + 1024 + e * 4);
        const float w[4] = {x.x, x.y, x.z, x.w}, v[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            lo[e + i] = __fmul_rn(lo[e + i], w[i]);
            hi[e + i] = __fmul_rn(hi[e + i], v[i]);
        }
    }
    if (rotates) { /* the same for a whole warp */
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            const char *from = angles + (angle ^ e << 2);
            const float4 x = *(const float4 *)from;
            const float4 y = *(const float4 *)(from + KK_LONG_ROT * 4);
            const float c[4] = {x.x, x.y, x.z, x.w}, s[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float a = lo[e + i], b = hi[e + i];
                lo[e + i] = __fmaf_rn(-b, s[i], __fmul_rn(a, c[i]));
                hi[e + i] = __fmaf_rn(a, s[i], __fmul_rn(b, c[i]));
            }
        }
    }
    near = kk_narrow(lo);
    far = kk_narrow(hi);
}

/* bf16 times bf16, rounded to bf16: the bits of a product in float32, which is exact, rounded. */
__device__ __forceinline__ uint32_t kk_long_times(uint32_t a, uint32_t b) {
    const __nv_bfloat162 y = __hmul2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&y;
}
__device__ __forceinline__ uint4 kk_long_times(const uint4 &a, const uint4 &b) {
    return make_uint4(kk_long_times(a.x, b.x), kk_long_times(a.y, b.y), kk_long_times(a.z, b.z),
                      kk_long_times(a.w, b.w));
}

template <bool WIDE>
__device__ __forceinline__ void kk_long_step(float (&c)[4], const uint4 &k, const char *q) {
    const uint4 x = *(const uint4 *)q;
    const uint4 y = WIDE ? *(const uint4 *)(q + 8 * kk_cut<512>::PITCH) : x;
    kk_step<WIDE>(c, k, x, y);
}

/* One chain of the scores of this lane's key: a key's values are multiplied as soon as they are
 * rebuilt, and those half a head on are kept for the chain's second half.  exact: the norm weights
 * are bf16, and lie as such behind those in float32. */
template <bool WIDE, int KV_FORMAT>
__device__ __forceinline__ void kk_long_chain(float (&c)[4], const kk_long_at<KV_FORMAT> &at,
                                              const char *page, const char *norm, bool exact,
                                              const char *angles, const char *q, char *values) {
    const bool first = kk_tid() < 256;
    uint4 far[4];
    float2 by[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 near;
        if (KV_FORMAT == KK_CU_BF16) {
            const char *from = page + (at.key ^ (i & 1) << 6) + i / 2 * 128;
            const uint4 x = *(const uint4 *)from, y = *(const uint4 *)(from + 512);
            if (!WIDE && exact && (i >= 2 || !first)) {
                const char *by_bf16 = norm + 2048 + at.norm / 2 + i * 64;
                const uint4 w = *(const uint4 *)by_bf16, v = *(const uint4 *)(by_bf16 + 512);
                near = kk_long_times(x, w);
                far[i] = kk_long_times(y, v);
            } else {
                float lo[8], hi[8];
                kk_widen(lo, x);
                kk_widen(hi, y);
                kk_long_rebuild(near, far[i], lo, hi, norm + at.norm + i * 128, i < 2 && first,
                                angles + i * 128, at.angle);
            }
        } else {
            float lo[8], hi[8];
            kk_long_value<KV_FORMAT>(lo, hi, by, at, i, page, values);
            kk_long_rebuild(near, far[i], lo, hi, norm + at.norm + i * 128, i < 2 && first,
                            angles + i * 128, at.angle);
        }
        kk_long_step<WIDE>(c, near, q + at.query + i * 64);
        asm volatile("" ::: "memory"); /* keeps the loads of the next step behind these */
    }
#pragma unroll
    for (int i = 0; i < 4; i++) kk_long_step<WIDE>(c, far[i], q + at.query + 512 + i * 64);
}

/* V of this warp's 32 columns and all 64 keys: [16 keys][16 columns]. */
__device__ __forceinline__ void kk_long_values(uint32_t (&values)[4][2][4], const char *from,
                                               int at_lane) {
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t(&v)[4] = values[s][h];
            const uint32_t at = kk_shared(from + (at_lane ^ h << 5));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "r"(at + s * 16 * 1024)
                         : "memory");
        }
}

/* o = p V for those columns, in the order of kk_few_sums. */
template <bool WIDE>
__device__ __forceinline__ void kk_long_sums(float (&o)[4][4], const char *p,
                                             const uint32_t (&v)[4][2][4]) {
    const int lane = kk_tid() % 32;
    const char *row = p + lane / 4 * KK_SCORE_PITCH * 4 + lane % 4 * 4;
    const char *low = row + 8 * KK_SCORE_PITCH * 4;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t a0 = *(const uint32_t *)(row + s * 32);
        const uint32_t a1 = WIDE ? *(const uint32_t *)(low + s * 32) : 0;
        const uint32_t a2 = *(const uint32_t *)(row + s * 32 + 16);
        const uint32_t a3 = WIDE ? *(const uint32_t *)(low + s * 32 + 16) : 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            kk_mma(o[2 * h], a0, a1, a2, a3, v[s][h][0], v[s][h][1]);
            kk_mma(o[2 * h + 1], a0, a1, a2, a3, v[s][h][2], v[s][h][3]);
        }
    }
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* A block's run within one lane: pages [from, to). */
struct kk_long_run {
    int kv, q0, n; /* K/V head; first query of the tile, and how many it has */
    int from, to;
    /* Whether merging begins anew with a page, and whether the page has a part of its own. */
    __device__ __forceinline__ bool own(int page) const {
        return from % KK_SPAN && page / KK_SPAN == from / KK_SPAN;
    }
    __device__ __forceinline__ bool begins(int page) const {
        return page == from || page % KK_SPAN == 0 || own(page);
    }
    __device__ __forceinline__ bool stores(int page) const {
        return page + 1 == to || page % KK_SPAN == KK_SPAN - 1 || own(page);
    }
    /* Where page's part of query i of the tile is stored. */
    __device__ __forceinline__ float *part(const kk_cu_attend &t, const kk_few &f, int page,
                                           int i) const {
        if (own(page)) return kk_long_own(t, kk_bid(), page - from) + i * KK_LONG_PART;
        return kk_few_part(t, 512, f.row + (q0 + i) / KK_LONG_HEADS,
                           kv * KK_LONG_HEADS + (q0 + i) % KK_LONG_HEADS, page / KK_SPAN);
    }
};

/* Scores of the page to smem.  The two chains of a score are in different warps: with a tile of
 * eight queries each has a buffer, and the softmax adds them up; otherwise they share one, and the
 * first chain's warps add and scale.  Ends with a barrier. */
template <bool WIDE>
__device__ __forceinline__ void kk_long_scores(char *score, char *second, const float (&c)[4],
                                               int at, float scale) {
    const bool first = kk_tid() < 256;
    float *to = (float *)((WIDE || first ? score : second) + at), *low = to + 8 * KK_SCORE_PITCH;
    if (!WIDE || !first) *(float2 *)to = make_float2(c[0], c[1]);
    if (WIDE && !first) *(float2 *)low = make_float2(c[2], c[3]);
    if (WIDE) kk_sync();
    if (WIDE && first) {
        const float2 x = *(const float2 *)to, y = *(const float2 *)low;
        *(float2 *)to = make_float2(__fmul_rn(__fadd_rn(c[0], x.x), scale),
                                    __fmul_rn(__fadd_rn(c[1], x.y), scale));
        *(float2 *)low = make_float2(__fmul_rn(__fadd_rn(c[2], y.x), scale),
                                     __fmul_rn(__fadd_rn(c[3], y.y), scale));
    }
    kk_sync();
}

/* Softmax of a warp's query: p in place of `score`; returns m and l. */
template <bool WIDE>
__device__ __forceinline__ float2 kk_long_softmax(float *score, const float *second, int lane,
                                                  float scale) {
    float x = score[lane], y = score[lane + 32];
    if (!WIDE) {
        x = __fmul_rn(__fadd_rn(x, second[lane]), scale);
        y = __fmul_rn(__fadd_rn(y, second[lane + 32]), scale);
    }
    return kk_softmax_two((uint16_t *)score, lane, x, y, true, true);
}

/* The running (m, l) of a warp's query: takes a page's in, and returns the factors of the running o
 * and of the page's.  own: the page is not merged. */
struct kk_long_top {
    float m, l;
    __device__ __forceinline__ float2 add(float2 page, bool begins, bool own) {
        if (own) {
            m = page.x;
            l = page.y;
            return make_float2(0, 1);
        }
        if (begins) {
            m = -INFINITY;
            l = 0;
        }
        const float top = fmaxf(m, page.x);
        const float keep = kk_dexp(__fsub_rn(m, top)), by = kk_dexp(__fsub_rn(page.x, top));
        l = __fmaf_rn(page.y, by, __fmul_rn(l, keep));
        m = top;
        return make_float2(keep, by);
    }
};

/* The running o of this warp's 32 columns: queries g and, WIDE, g + 8. */
template <bool WIDE> struct kk_long_sum {
    float o[4][WIDE ? 4 : 2];
    __device__ __forceinline__ void add(const float (&page)[4][4], const float2 *factors,
                                        bool begins) {
#pragma unroll
        for (int half = 0; half < (WIDE ? 2 : 1); half++) {
            const float2 by = factors[kk_tid() % 32 / 4 + 8 * half];
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    o[n][i] = __fmaf_rn(page[n][i], by.y, __fmul_rn(begins ? 0.0f : o[n][i], by.x));
        }
    }
    __device__ __forceinline__ void store(const kk_cu_attend &t, const kk_few &f,
                                          const kk_long_run &r, int page) const {
        const int tid = kk_tid(), g = tid % 32 / 4, column = tid / 32 * 32 + tid % 4 * 2;
#pragma unroll
        for (int half = 0; half < (WIDE ? 2 : 1); half++) {
            if (g + 8 * half >= r.n) continue;
            float *to = r.part(t, f, page, g + 8 * half) + 4 + column;
#pragma unroll
            for (int n = 0; n < 4; n++)
                *(float2 *)(to + 8 * n) = make_float2(o[n][2 * half], o[n][2 * half + 1]);
        }
    }
};

/* The shared memory of a run: buffers for pages and angles, and what a team of attend_few.cuh
 * has.  With a tile of eight queries, the second chain's scores and K's norm weights lie where
 * queries 8 to 15 would. */
struct kk_long_smem {
    char *pages, *angles, *team;
    __device__ __forceinline__ char *score() const { return team + 16 * kk_cut<512>::PITCH; }
    __device__ __forceinline__ float2 *factors() const {
        return (float2 *)(score() + 16 * KK_SCORE_PITCH * 4);
    }
    __device__ __forceinline__ char *second() const { return team + 8 * kk_cut<512>::PITCH; }
    __device__ __forceinline__ char *norm() const { return second() + 8 * KK_SCORE_PITCH * 4; }
};

/* K's norm weights to smem: 512 in float32, then their upper halves. */
__device__ __forceinline__ void kk_long_copy_norm(char *to, const float *norm) {
    const int tid = kk_tid();
    const float w = norm[tid];
    ((float *)to)[tid] = w;
    ((uint16_t *)(to + 2048))[tid] = (uint16_t)(__float_as_uint(w) >> 16);
}
/* Whether those upper halves are all there is: the weights are bf16.  The same for all warps. */
__device__ __forceinline__ bool kk_long_exact(const float *norm) {
    uint32_t low = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 w = ((const uint4 *)norm)[kk_tid() % 32 + 32 * i];
        low |= w.x | w.y | w.z | w.w;
    }
    return !__any_sync(0xffffffffu, (low & 0xffff) != 0);
}

/* WIDE: the tile has more than eight queries.  PAGES_BYTES: bytes of `pages`. */
template <bool WIDE, int KV_FORMAT, int PAGES_BYTES>
__device__ __forceinline__ void kk_long_walk(const kk_cu_store &s, const kk_cu_attend &t,
                                             const kk_few &f, const kk_long_run &r,
                                             const kk_long_smem &smem) {
    using stored = kk_long_stored<KV_FORMAT>;
    constexpr bool PLAIN = KV_FORMAT == KK_CU_BF16;
    constexpr int FIRST = PLAIN ? 0 : KK_LONG_PAGE; /* V as bf16 lies before pages of codes */
    constexpr bool TWO = PAGES_BYTES - FIRST >= 2 * (int)stored::BYTES;
    static_assert(PAGES_BYTES - FIRST >= (PLAIN ? 2 : 1) * (int)stored::BYTES,
                  "pages fit the rings");
    uint8_t *const *table = t.rows.pages + f.table;
    const size_t head = t.slot.v_off + (size_t)r.kv * t.slot.head_bytes;
    const float *angles = t.rope_pos;
    const float scale = t.scale;
    char *now = smem.pages + FIRST;
    stored::copy(now, table[r.from] + head);
    if (kk_tid() < 256) kk_long_copy_angles(smem.angles, angles, r.from);
    kk_few_heads<512, true, KV_FORMAT>(s, f, r.kv, r.q0, r.n, smem.team, NULL, 0, 0, 0);
    const char *norm = WIDE ? (const char *)t.k_norm : smem.norm();
    if (!WIDE) kk_long_copy_norm(smem.norm(), t.k_norm);
    const bool exact = !WIDE && PLAIN && kk_long_exact(t.k_norm);
    /* Pages are looked up two ahead, to be prefetched to L2 one page before they are copied. */
    const uint8_t *next = table[min(r.from + 1, r.to - 1)];
    const uint8_t *after = table[min(r.from + 2, r.to - 1)];
    const kk_long_at<KV_FORMAT> at;
    kk_long_top top = {-INFINITY, 0};
    kk_long_sum<WIDE> sum = {};
#pragma unroll 1
    for (int page = r.from; page < r.to; page++) {
        const bool more = page + 1 < r.to, begins = r.begins(page);
        char *values = PLAIN ? now : smem.pages;
        char *other = TWO ? smem.pages + 2 * FIRST + stored::BYTES - (now - smem.pages) : now;
        asm volatile("cp.async.wait_all;" ::: "memory");
        kk_sync();
        if (TWO && more) stored::copy(other, next + head);
        float c[4] = {0, 0, 0, 0};
        kk_long_chain<WIDE, KV_FORMAT>(c, at, now, norm, exact, smem.angles, smem.team, values);
        kk_long_scores<WIDE>(smem.score(), smem.second(), c, at.score, scale);
        if (!TWO && more) stored::copy(other, next + head);
        uint32_t v[4][2][4];
        kk_long_values(v, values, at.value);
        const int query = kk_tid() / 32 - (WIDE ? 0 : 8), lane = kk_tid() % 32;
        if (more && kk_tid() < 256) {
            kk_long_copy_angles(smem.angles, angles, page + 1);
            if (kk_tid() == 0 && page + 2 < r.to)
                kk_long_prefetch(after + head, stored::BYTES, angles, page + 2);
        }
        next = after;
        after = table[min(page + 3, r.to - 1)];
        if (query >= 0 && query < r.n) {
            const int row = query * KK_SCORE_PITCH;
            const float2 ml = kk_long_softmax<WIDE>(
                (float *)smem.score() + row, (const float *)smem.second() + row, lane, scale);
            const float2 by = top.add(ml, begins, r.own(page));
            if (lane == 0) smem.factors()[query] = by;
            if (lane == 0 && r.stores(page))
                *(float2 *)r.part(t, f, page, query) = make_float2(top.m, top.l);
        }
        kk_sync();
        float o[4][4];
        kk_long_sums<WIDE>(o, smem.score(), v);
        sum.add(o, smem.factors(), begins);
        if (r.stores(page)) sum.store(t, f, r, page);
        now = other;
    }
    kk_sync(); /* queries and pages may be overwritten */
}

/* This block's run, lane by lane; or its share of the pages at sessions' ends. */
template <bool MANY, bool WIDE, int KV_FORMAT, int PAGES_BYTES>
__device__ __forceinline__ void kk_attend_long(const kk_cu_store &s, const kk_cu_attend &t,
                                               const kk_few_group *groups, const kk_long_plan &p,
                                               int spans, const kk_long_smem &smem) {
    const bool far = kk_bid() < p.blocks;
    const int stride = (int)gridDim.x - p.blocks;
    const int end = far ? p.start(kk_bid() + 1) : p.edges;
    int g = 0, first = 0;
#pragma unroll 1
    for (int i = far ? p.start(kk_bid()) : kk_bid() - p.blocks; i < end;) {
        const kk_few_group &of = groups[g];
        const int pages = far ? p.far(of) : p.ends(of), units = 2 * p.tiles(of) * pages;
        if (MANY && i - first >= units) { /* the next session */
            first += units;
            g++;
            continue;
        }
        const int lane = (i - first) / pages, page = (i - first) - lane * pages;
        kk_few f = {of.pos, WIDE ? of.rows : 1, WIDE ? of.row : 0, MANY ? of.table : 0, 0, 0};
        kk_long_run r = {WIDE ? lane / p.tiles(of) : lane, WIDE ? lane % p.tiles(of) * 16 : 0, 0,
                         page, 0};
        r.n = min(16, f.rows * KK_LONG_HEADS - r.q0);
        if (far) {
            r.to = min(pages, page + end - i);
            kk_long_walk<WIDE, KV_FORMAT, PAGES_BYTES>(s, t, f, r, smem);
            i += r.to - page;
        } else {
            f.page = p.far(of) - spans; /* so that its part is number spans + page */
            kk_few_unit<512, true, KV_FORMAT>(s, t, f, spans + page, r.kv, r.q0, smem.team,
                                              smem.pages);
            i += stride;
        }
    }
}

/* Prefetches the first two pages of this block's run to L2, and their angles. */
template <bool MANY>
__device__ __forceinline__ void kk_prefetch_long(const kk_cu_attend &t,
                                                 const kk_few_group *groups) {
    if (kk_tid()) return;
    const kk_long_plan p = kk_long_plan_of<MANY>(t, groups);
    if (kk_bid() >= p.blocks || !p.units) return;
    int g = 0, i = p.start(kk_bid());
    while (MANY && i >= p.far_units(groups[g])) i -= p.far_units(groups[g++]);
    const int pages = p.far(groups[g]), lane = i / pages, page = i - lane * pages;
    const size_t head = t.slot.v_off + (size_t)(lane / p.tiles(groups[g])) * t.slot.head_bytes;
#pragma unroll 1
    for (int k = page; k < min(page + 2, pages); k++)
        kk_long_prefetch(t.rows.pages[groups[g].table + k] + head, (uint32_t)t.slot.head_bytes,
                         t.rope_pos, k);
}

/* ---- merging ------------------------------------------------------------------------------- */

/* The lane of a row and head, as merging needs it. */
struct kk_long_lane {
    int unit, query, far, end; /* first unit; query of the tile; far pages; pages the row sees */
    int row, head;

    template <bool MANY>
    static __device__ __forceinline__ kk_long_lane of(const kk_cu_attend &t,
                                                      const kk_few_group *groups, int row,
                                                      int head) {
        int g = 0, first = 0;
#pragma unroll 1
        while (MANY && row >= groups[g].row + groups[g].rows)
            first += kk_long_plan::far_units(groups[g++]);
        const kk_few_group &s = groups[g];
        const int q = (row - s.row) * KK_LONG_HEADS + head % KK_LONG_HEADS;
        const int lane = head / KK_LONG_HEADS * kk_long_plan::tiles(s) + q / 16;
        const int far = kk_long_plan::far(s);
        return {first + lane * far, q % 16, far, (s.pos + row - s.row) / KK_PAGE + 1, row, head};
    }
};

/* Where the part of a page lies, NULL: it has none, being merged into another. */
__device__ __forceinline__ const float *kk_long_part(const kk_cu_attend &t, const kk_long_plan &p,
                                                     const kk_long_lane &l, int page, int spans) {
    if (page >= l.end) return NULL;
    if (page >= l.far) return kk_few_part(t, 512, l.row, l.head, spans + page - l.far);
    const kk_long_place at = kk_long_place_of(p, l.unit, page);
    if (at.absorbed) return NULL;
    if (at.own) return kk_long_own(t, at.block, at.nth) + l.query * KK_LONG_PART;
    return kk_few_part(t, 512, l.row, l.head, page / KK_SPAN);
}

/* Where the part of a lane's page lies, in floats from the first part (NONE: it has none), and its
 * m and l. */
struct kk_long_look {
    static constexpr uint32_t NONE = 0xffffffffu;
    uint32_t off;
    float2 ml;
    __device__ __forceinline__ void at(const kk_cu_attend &t, const kk_long_plan &p,
                                       const kk_long_lane &l, int page, int spans) {
        const float *part = kk_long_part(t, p, l, page, spans);
        off = part ? (uint32_t)(part - t.parts) : NONE;
        ml = make_float2(-INFINITY, 0);
        if (part) ml = __ldcg((const float2 *)part);
    }
};

/* Loads a lane's column of the first eight pages in `load`; of fewer the last one again, to avoid a
 * branch. */
__device__ __forceinline__ void kk_long_columns(float (&o)[8], const float *parts, uint32_t off,
                                                unsigned load) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t at = __shfl_sync(0xffffffffu, off, __ffs((int)load) - 1);
        o[i] = __ldcg(parts + at);
        load = load & (load - 1) ? load & (load - 1) : load;
    }
}

/* Merges the pages of four spans, 32 pages from `first` on, for the 32 columns from `column` on;
 * each span's (m, l) and o go to smem [4] and [4][32].  By one warp: lane i has looked at page i.
 * The next eight pages are loaded while eight are merged. */
__device__ __forceinline__ void kk_long_spans(const kk_cu_attend &t, const kk_long_look &look,
                                              int first, int far, int column, float2 *ml_to,
                                              float *o_to) {
    const int lane = kk_tid() % 32;
    const float *parts = t.parts + 4 + column + lane;
    unsigned left = __ballot_sync(0xffffffffu, look.off != kk_long_look::NONE);
    float o[8], next[8] = {};
    kk_long_columns(o, parts, look.off, left);
    const kk_span_scan scan = kk_scan_span(look.ml.x, lane);
    kk_fold one = {0, 0, 0};
#pragma unroll 1
    while (left) {
        unsigned rest = left;
#pragma unroll
        for (int i = 0; i < 8; i++) rest &= rest - 1;
        if (rest) kk_long_columns(next, parts, look.off, rest);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (!left) break;
            const int k = __ffs((int)left) - 1, at = k / KK_SPAN;
            const float a = __shfl_sync(0xffffffffu, scan.keep, k);
            const float b = __shfl_sync(0xffffffffu, scan.by, k);
            const float ln = __shfl_sync(0xffffffffu, look.ml.y, k);
            if (k % KK_SPAN == 0) /* every span's first page has a part */
                one = {__shfl_sync(0xffffffffu, scan.top, k + KK_SPAN - 1), 0, 0};
            const bool merged = k % KK_SPAN == 0 && first + k < far;
            one.l = merged ? ln : __fmaf_rn(ln, b, __fmul_rn(one.l, a));
            one.o = merged ? o[i] : __fmaf_rn(o[i], b, __fmul_rn(one.o, a));
            o_to[at * 32 + lane] = one.o;
            if (lane == 0) ml_to[at] = make_float2(one.m, one.l);
            left &= left - 1;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) o[i] = next[i];
    }
}

/* Merges n spans (up to 32) that lie in smem into `all`, in order; by one warp. */
__device__ __forceinline__ void kk_long_fold(kk_fold &all, const float2 *ml_of, const float *o_of,
                                             int n) {
    const int lane = kk_tid() % 32;
    const float2 ml = lane < n ? ml_of[lane] : make_float2(-INFINITY, 0);
    float top = fmaxf(all.m, ml.x);
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        const float up = __shfl_up_sync(0xffffffffu, top, k);
        if (lane >= k) top = fmaxf(top, up);
    }
    const float up = __shfl_up_sync(0xffffffffu, top, 1), before = lane ? up : all.m;
    const float keep = kk_dexp(__fsub_rn(before, top)), by = kk_dexp(__fsub_rn(ml.x, top));
#pragma unroll 4
    for (int k = 0; k < n; k++) {
        const float a = __shfl_sync(0xffffffffu, keep, k), b = __shfl_sync(0xffffffffu, by, k);
        const float ln = __shfl_sync(0xffffffffu, ml.y, k);
        all.l = __fmaf_rn(ln, b, __fmul_rn(all.l, a));
        all.o = __fmaf_rn(o_of[k * 32 + lane], b, __fmul_rn(all.o, a));
    }
    all.m = __shfl_sync(0xffffffffu, top, 31);
}

/* Merges all parts of all rows and heads: eight warps per 32 columns, four spans each at a time.
 * The first warp adds them up while the others merge the next ones into another buffer, whose m and
 * l were asked for before.  smem: 17,408 B. */
template <bool MANY>
__device__ __forceinline__ void kk_combine_long(const kk_cu_attend &t, const kk_few_group *groups,
                                                const kk_long_plan &p, int rows, int spans,
                                                float *smem) {
    enum { CHUNKS = 512 / 32, EACH = 8 * 4 /* spans of eight warps */, PAGES = EACH * KK_SPAN };
    const int lane = kk_tid() % 32, warp = kk_tid() / 32 % 8, team = kk_tid() / 256;
    int turn = 0;
#pragma unroll 1
    for (int i = kk_bid() + team * (int)gridDim.x; i < rows * KK_CU_26B_HEADS * CHUNKS;
         i += 2 * (int)gridDim.x) {
        const int column = i % CHUNKS * 32, row = i / (CHUNKS * KK_CU_26B_HEADS);
        const int head = i / CHUNKS % KK_CU_26B_HEADS;
        const kk_long_lane l = kk_long_lane::of<MANY>(t, groups, row, head);
        kk_fold all = {-INFINITY, 0, 0};
        kk_long_look look;
        look.at(t, p, l, warp * 32 + lane, spans);
#pragma unroll 1
        for (int from = 0; from < l.end; from += PAGES) {
            const int first = from + warp * 32;
            const kk_long_look now = look;
            float *o = smem + (2 * team + turn) * EACH * (32 + 2);
            float2 *ml = (float2 *)(o + EACH * 32);
            look.at(t, p, l, first + PAGES + lane, spans);
            if (first < l.end)
                kk_long_spans(t, now, first, l.far, column, ml + warp * 4, o + warp * 4 * 32);
            asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
            if (warp == 0)
                kk_long_fold(all, ml, o, min((int)EACH, (l.end - from + KK_SPAN - 1) / KK_SPAN));
            turn ^= 1;
        }
        if (warp == 0) kk_few_put(t, row, head * 512 + column + lane, all);
    }
}

#endif
