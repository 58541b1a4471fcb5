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
 *               start the copies of page i + 1 (cp.async); K from shared memory, rebuilt
 *               scores, two chains -- sync: start the copies of page i + 1's angles     -- sync
 *               softmax, one query per warp; factors of the running (m, l, o)           -- sync
 *               o = p V by ldmatrix; the running o of 16 x 512 stays in registers
 *      (m, l, o) -> parts at the end of a span of eight pages, or of the run
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
    static __device__ __forceinline__ void copy(char *to, const uint8_t *from) {
        enum { PIECES = ROW / 16 };
        const int tid = kk_tid();
#pragma unroll
        for (int i = 0; i < CODES / 16 / 512; i++) {
            const int x = tid + i * 512;
            kk_long_copy16(piece(to, x / PIECES, x % PIECES), from + x * 16);
        }
        if (tid < PLANES / 16) kk_long_copy16(to + CODES + tid * 16, from + CODES + tid * 16);
    }
};

__device__ __forceinline__ char *kk_long_angle(char *angles, int key, int piece) {
    return angles + key * (KK_LONG_ROT * 8) + ((piece ^ (key & 1)) << 4);
}
__device__ __forceinline__ void kk_long_copy_angles(char *to, const kk_cu_attend &t, int page) {
    const char *from = (const char *)t.rope_pos + (size_t)page * KK_LONG_ANGLES;
#pragma unroll
    for (int i = 0; i < KK_LONG_ANGLES / 16 / 512; i++) {
        const int x = kk_tid() + i * 512;
        kk_long_copy16(kk_long_angle(to, x / (KK_LONG_ROT / 2), x % (KK_LONG_ROT / 2)),
                       from + x * 16);
    }
}

/* ---- one page ------------------------------------------------------------------------------ */

/* kk_rebuild with the angles in shared memory: values at .. at + 7 of key j, and those half a head
 * on. */
__device__ __forceinline__ void kk_long_rebuild(float (&lo)[8], float (&hi)[8], const float *k_norm,
                                                char *angles, int j, int at) {
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const float4 x = *(const float4 *)(k_norm + at + e);
        const float4 y = *(const float4 *)(k_norm + at + 256 + e);
        const float w[4] = {x.x, x.y, x.z, x.w}, v[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            lo[e + i] = __fmul_rn(lo[e + i], w[i]);
            hi[e + i] = __fmul_rn(hi[e + i], v[i]);
        }
    }
    if (at >= KK_LONG_ROT) return; /* the same for a whole warp */
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const float4 x = *(const float4 *)kk_long_angle(angles, j, (at + e) / 4);
        const float4 y = *(const float4 *)kk_long_angle(angles, j, (KK_LONG_ROT + at + e) / 4);
        const float c[4] = {x.x, x.y, x.z, x.w}, s[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = lo[e + i], b = hi[e + i];
            lo[e + i] = __fmaf_rn(-b, s[i], __fmul_rn(a, c[i]));
            hi[e + i] = __fmaf_rn(a, s[i], __fmul_rn(b, c[i]));
        }
    }
}

/* K of this lane's key and chain as bf16 from a page in shared memory; V of other formats than bf16
 * goes to `values`. */
template <int KV_FORMAT>
__device__ __forceinline__ void kk_long_keys(uint4 (&k)[8], const kk_cu_attend &t, char *page,
                                             char *angles, char *values) {
    using stored = kk_long_stored<KV_FORMAT>;
    const int tid = kk_tid(), j = tid / 32 % 8 * 8 + tid % 32 / 4, lane = tid % 4,
              chain = tid / 256;
    const uint16_t *plane = (const uint16_t *)(page + stored::CODES);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int step = 4 * chain + i, at = (4 * step + lane) * 8;
        float lo[8], hi[8];
        if (KV_FORMAT == KK_CU_BF16) {
            kk_widen(lo, *(const uint4 *)stored::piece(page, j, at / 8));
            kk_widen(hi, *(const uint4 *)stored::piece(page, j, at / 8 + 32));
        } else {
            const int b = KV_FORMAT == KK_CU_Q4 ? step / 2 * 32 + lane * 8 : at;
            const int far = KV_FORMAT == KK_CU_Q4 ? 128 : 256;
            const float2 x = kk_few_scale<KV_FORMAT, 512>(plane, j * 8 + step / 2);
            const float2 y = kk_few_scale<KV_FORMAT, 512>(plane, j * 8 + step / 2 + 4);
            kk_unpack8<KV_FORMAT>(lo, *(const uint2 *)(stored::piece(page, j, b / 16) + b % 16),
                                  i % 2, x.x, x.y);
            kk_unpack8<KV_FORMAT>(hi,
                                  *(const uint2 *)(stored::piece(page, j, (b + far) / 16) + b % 16),
                                  i % 2, y.x, y.y);
            *kk_few_piece<512>(values, j, at / 8) = kk_narrow(lo);
            *kk_few_piece<512>(values, j, at / 8 + 32) = kk_narrow(hi);
        }
        kk_long_rebuild(lo, hi, t.k_norm, angles, j, at);
        k[i] = kk_narrow(lo);
        k[i + 4] = kk_narrow(hi);
        asm volatile("" ::: "memory"); /* keeps the loads of the next step behind these */
    }
}

/* o = p V for 32 columns of this warp and all 64 keys, in the order of kk_few_sums. */
template <bool WIDE>
__device__ __forceinline__ void kk_long_sums(float (&o)[4][4], const char *p, char *values) {
    const int tid = kk_tid(), lane = tid % 32, g = lane / 4, t = lane % 4, warp = tid / 32;
    const char *row = p + g * KK_SCORE_PITCH * 4 + t * 4, *low = row + 8 * KK_SCORE_PITCH * 4;
    /* Matrices 0, 1: keys 0 .. 7 and 8 .. 15 of eight columns; 2, 3: of the next eight. */
    const int key = lane % 16, column = warp * 4 + lane / 16;
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
            uint32_t v[4];
            const uint32_t at = kk_shared(kk_few_piece<512>(values, key, column + 2 * h));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "r"(at + s * 16 * 1024)
                         : "memory");
            kk_mma(o[2 * h], a0, a1, a2, a3, v[0], v[1]);
            kk_mma(o[2 * h + 1], a0, a1, a2, a3, v[2], v[3]);
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

/* Scores of the page to smem: kk_few_scores, with copies for the next page started between. */
template <bool WIDE, class F>
__device__ __forceinline__ void kk_long_scores(float *score, const uint4 (&k)[8], const char *q,
                                               float scale, F between) {
    const int lane = kk_tid() % 32, warp = kk_tid() / 32, g = lane / 4, t = lane % 4;
    float c[4] = {0, 0, 0, 0};
    float *to = score + g * KK_SCORE_PITCH + warp % 8 * 8 + 2 * t;
    float *low = to + 8 * KK_SCORE_PITCH;
    kk_few_chain<512, WIDE>(c, k, q + g * kk_cut<512>::PITCH + t * 16, warp / 8);
    if (warp / 8) {
        *(float2 *)to = make_float2(c[0], c[1]);
        if (WIDE) *(float2 *)low = make_float2(c[2], c[3]);
    }
    kk_sync();
    between();
    if (warp < 8) {
        const float2 x = *(const float2 *)to;
        *(float2 *)to = make_float2(__fmul_rn(__fadd_rn(c[0], x.x), scale),
                                    __fmul_rn(__fadd_rn(c[1], x.y), scale));
        if (WIDE) {
            const float2 y = *(const float2 *)low;
            *(float2 *)low = make_float2(__fmul_rn(__fadd_rn(c[2], y.x), scale),
                                         __fmul_rn(__fadd_rn(c[3], y.y), scale));
        }
    }
    kk_sync();
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
 * has. */
struct kk_long_smem {
    char *pages, *angles, *team;
};

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
    float *score = (float *)(smem.team + 16 * kk_cut<512>::PITCH);
    float2 *factors = (float2 *)(score + 16 * KK_SCORE_PITCH);
    const int warp = kk_tid() / 32;
    uint8_t *const *table = t.rows.pages + f.table;
    const size_t head = t.slot.v_off + (size_t)r.kv * t.slot.head_bytes;
    const auto buffer = [&](int page) {
        return smem.pages + FIRST + (TWO ? (page - r.from) % 2 * (int)stored::BYTES : 0);
    };
    stored::copy(buffer(r.from), table[r.from] + head);
    kk_long_copy_angles(smem.angles, t, r.from);
    kk_few_heads<512, true, KV_FORMAT>(s, f, r.kv, r.q0, r.n, smem.team, NULL, 0, 0, 0);
    const uint8_t *next = table[min(r.from + 1, r.to - 1)]; /* looked up a page ahead */
    kk_long_top top = {-INFINITY, 0};
    kk_long_sum<WIDE> sum = {};
#pragma unroll 1
    for (int page = r.from; page < r.to; page++) {
        const bool more = page + 1 < r.to, begins = r.begins(page);
        char *now = buffer(page), *values = PLAIN ? now : smem.pages;
        asm volatile("cp.async.wait_all;" ::: "memory");
        kk_sync();
        if (TWO && more) {
            stored::copy(buffer(page + 1), next + head);
            next = table[min(page + 2, r.to - 1)];
        }
        uint4 k[8];
        kk_long_keys<KV_FORMAT>(k, t, now, smem.angles, values);
        kk_long_scores<WIDE>(score, k, smem.team, t.scale, [&]() {
            if (more) kk_long_copy_angles(smem.angles, t, page + 1);
            if (!TWO && more) {
                stored::copy(buffer(page + 1), next + head);
                next = table[min(page + 2, r.to - 1)];
            }
        });
        if (warp < r.n) {
            const int lane = kk_tid() % 32;
            const float2 by =
                top.add(kk_softmax_of(score + warp * KK_SCORE_PITCH, lane, true, true), begins,
                        r.own(page));
            if (lane == 0) factors[warp] = by;
            if (lane == 0 && r.stores(page))
                *(float2 *)r.part(t, f, page, warp) = make_float2(top.m, top.l);
        }
        kk_sync();
        float o[4][4];
        kk_long_sums<WIDE>(o, (const char *)score, values);
        sum.add(o, factors, begins);
        if (r.stores(page)) sum.store(t, f, r, page);
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
        kk_few f = {of.pos, of.rows, of.row, of.table, 0, 0};
        kk_long_run r = {lane / p.tiles(of), lane % p.tiles(of) * 16, 0, page, 0};
        r.n = min(16, of.rows * KK_LONG_HEADS - r.q0);
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

/* Prefetches the first page of this block's run to L2, and its angles. */
template <bool MANY>
__device__ __forceinline__ void kk_prefetch_long(const kk_cu_attend &t,
                                                 const kk_few_group *groups) {
#if __CUDA_ARCH__ >= 900
    if (kk_tid()) return;
    const kk_long_plan p = kk_long_plan_of<MANY>(t, groups);
    if (kk_bid() >= p.blocks || !p.units) return;
    int g = 0, i = p.start(kk_bid());
    while (MANY && i >= p.far_units(groups[g])) i -= p.far_units(groups[g++]);
    const int pages = p.far(groups[g]), lane = i / pages, page = i - lane * pages;
    const uint8_t *head = t.rows.pages[groups[g].table + page] + t.slot.v_off +
                          (size_t)(lane / p.tiles(groups[g])) * t.slot.head_bytes;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(head),
                 "r"((uint32_t)t.slot.head_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)t.rope_pos +
                                                                    (size_t)page * KK_LONG_ANGLES),
                 "r"((uint32_t)KK_LONG_ANGLES)
                 : "memory");
#else
    (void)t, (void)groups;
#endif
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

/* Merges the pages of four spans, 32 pages from `first` on, for the 32 columns from `column` on;
 * each span's (m, l) and o go to smem [4] and [4][32].  By one warp: lane i looks at page i. */
__device__ __forceinline__ void kk_long_spans(const kk_cu_attend &t, const kk_long_plan &p,
                                              const kk_long_lane &l, int first, int column,
                                              int spans, float2 *ml_to, float *o_to) {
    const int lane = kk_tid() % 32;
    const float *part = kk_long_part(t, p, l, first + lane, spans);
    float2 ml = make_float2(-INFINITY, 0);
    if (part) ml = __ldcg((const float2 *)part);
    const uint32_t off = part ? (uint32_t)(part - t.parts) : 0;
    const kk_span_scan scan = kk_scan_span(ml.x, lane);
    kk_fold one = {0, 0, 0};
#pragma unroll 1
    for (unsigned left = __ballot_sync(0xffffffffu, part != NULL); left;) {
        float o[8];
        unsigned load = left;
#pragma unroll
        for (int i = 0; i < 8; i++) { /* fewer parts: the last one again, to avoid a branch */
            const uint32_t at = __shfl_sync(0xffffffffu, off, __ffs((int)load) - 1);
            o[i] = __ldcg(t.parts + at + 4 + column + lane);
            load = load & (load - 1) ? load & (load - 1) : load;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (!left) break;
            const int k = __ffs((int)left) - 1, at = k / KK_SPAN;
            const float a = __shfl_sync(0xffffffffu, scan.keep, k);
            const float b = __shfl_sync(0xffffffffu, scan.by, k);
            const float ln = __shfl_sync(0xffffffffu, ml.y, k);
            if (k % KK_SPAN == 0) /* every span's first page has a part */
                one = {__shfl_sync(0xffffffffu, scan.top, k + KK_SPAN - 1), 0, 0};
            const bool merged = k % KK_SPAN == 0 && first + k < l.far;
            one.l = merged ? ln : __fmaf_rn(ln, b, __fmul_rn(one.l, a));
            one.o = merged ? o[i] : __fmaf_rn(o[i], b, __fmul_rn(one.o, a));
            o_to[at * 32 + lane] = one.o;
            if (lane == 0) ml_to[at] = make_float2(one.m, one.l);
            left &= left - 1;
        }
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
 * smem: 8,704 B. */
template <bool MANY>
__device__ __forceinline__ void kk_combine_long(const kk_cu_attend &t, const kk_few_group *groups,
                                                const kk_long_plan &p, int rows, int spans,
                                                float *smem) {
    enum { CHUNKS = 512 / 32, EACH = 8 * 4 /* spans of eight warps */ };
    const int lane = kk_tid() % 32, warp = kk_tid() / 32 % 8, team = kk_tid() / 256;
    float *o = smem + team * EACH * (32 + 2);
    float2 *ml = (float2 *)(o + EACH * 32);
#pragma unroll 1
    for (int i = kk_bid() + team * (int)gridDim.x; i < rows * KK_CU_26B_HEADS * CHUNKS;
         i += 2 * (int)gridDim.x) {
        const int column = i % CHUNKS * 32, row = i / (CHUNKS * KK_CU_26B_HEADS);
        const int head = i / CHUNKS % KK_CU_26B_HEADS;
        const kk_long_lane l = kk_long_lane::of<MANY>(t, groups, row, head);
        kk_fold all = {-INFINITY, 0, 0};
#pragma unroll 1
        for (int from = 0; from < l.end; from += EACH * KK_SPAN) {
            const int first = from + warp * 32;
            if (first < l.end)
                kk_long_spans(t, p, l, first, column, spans, ml + warp * 4, o + warp * 4 * 32);
            asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
            if (warp == 0)
                kk_long_fold(all, ml, o, min((int)EACH, (l.end - from + KK_SPAN - 1) / KK_SPAN));
            asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
        }
        if (warp == 0) kk_few_put(t, row, head * 512 + column + lane, all);
    }
}

#endif
