/* attend.cuh - attention of up to 16 rows per session, split over K/V pages (flash decoding): one
 * unit of work is a page of 64 keys, a K/V head and tiles of 16 queries; a second pass merges the
 * pages.
 *
 * The arithmetic, which every attention kernel here reproduces to the bit:
 *   - q, normed and rotated in float32, is rounded to bf16.  A stored row is read as float32; K,
 *     rebuilt from it where K = V, is rounded to bf16, and so is V;
 *   - the score of a key is the sum of two chains of m16n8k16 products with float32 sums.  A
 *     step is 32 values in the lane order of the weights (lane t of four has 8 t .. 8 t + 7).  With
 *     quarters A B C D of the head, the first chain takes A and C, the second B and D, so that
 *     the two values of a RoPE pair, half a head apart, lie in one lane; heads of 64 have one
 *     chain.  Then times scale;
 *   - within a page m is the maximum over visible keys, p = exp(s - m), 0 for others, and l
 *     their sum as a tree: keys 32 apart first, then 16, 8, 4, 2, 1.  o is one chain over p in
 *     bf16 times V, 16 keys a step in ascending order;
 *   - (m, l, o) of pages are merged in ascending order, without those a row does not see:
 *     m' = max(m, n), x' = fma(y, exp(n - m'), x * exp(m - m')), from m = -inf, x = 0.  Pages of
 *     a span (eight, aligned) are merged first, then spans, so that spans can be computed
 *     independently.  The output is o * (1 / l) + 0.
 * Neither tiling nor neighbouring rows change a row's bits.  Stored values that a row does not see
 * may be anything: keys that no row of a tile sees are read as zeros, and where a value that only
 * some rows see is not finite, rows are computed one at a time (`careful`).
 *
 *    block: 512 threads = 16 warps; units block, block + blocks, ...
 *      K, 64 keys:    warp w loads keys 8 (w % 8) .. + 7 of chain w / 8, global -> registers
 *      V, D columns:  warp w loads columns of its share D / 16, all 64 keys, global -> registers
 *      q, 16 queries: warp w rounds query w to shared memory                        -- kk_sync
 *      scores:        8 keys x 16 queries x one chain per warp; chain 1 through smem -- kk_sync
 *      softmax:       warp w takes query w: p (bf16) in place, m and l to parts      -- kk_sync
 *      sums:          o = p V, a share of the columns per warp, to parts in global memory
 *    The loads of K and V of a page are all issued before anything is computed.
 *
 *    shared memory, 22,784 B: units 8 x 96 | pointers to parts 2 x 16 x 8 B
 *      | scores [16][68] f32, p in place | q [16][512 + 32] bf16
 *    parts, global memory: [tile][row][head][page][4 + D] f32: m, l, unused, unused, o */
#ifndef KK_CUDA_ATTEND_CUH
#define KK_CUDA_ATTEND_CUH

#include "kv_rows.cuh"
#include "stream.cuh"

enum {
    KK_SPAN = 8, /* pages that are merged first */
    KK_ATTEND_WARPS = 16,
    KK_SCORE_PITCH = 68, /* floats; 68 puts rows of scores in different banks */
    KK_UNITS = 8,        /* that a block looks up at a time */
    KK_UNITS_BYTES = KK_UNITS * 96,
    /* bytes: units, pointers to parts, scores, q */
    KK_PARTS_BYTES = 2 * 16 * 8,
    KK_ATTEND_SMEM =
        KK_UNITS_BYTES + KK_PARTS_BYTES + 16 * KK_SCORE_PITCH * 4 + 16 * (512 * 2 + 64),
};

/* How a head of D values is divided among warps and chains. */
template <int D> struct kk_cut {
    enum {
        CHAINS = D >= 128 ? 2 : 1,
        STEPS = D / 32 / CHAINS,                /* K steps of a chain */
        COLUMN_WARPS = D / 8 < 16 ? D / 8 : 16, /* warps that share the columns of o */
        NT = D / 8 / COLUMN_WARPS,              /* 8-column products of a warp */
        NW = NT > 1 ? NT / 2 : 1,               /* 32-bit words of a key's V in a lane */
        PITCH = D * 2 + 64,                     /* bytes of a query in shared memory */
    };
    /* Step i of a chain as a step of the whole head. */
    static __device__ __forceinline__ int step(int chain, int i) {
        return chain * (STEPS / 2) + (i < STEPS / 2 ? i : i - STEPS / 2 + D / 64);
    }
};

/* ---- what a block works on ----------------------------------------------------------------- */

/* A unit of work: a page, a K/V head and some tiles of 16 queries.  Lies in shared memory.
 * Positions are relative to the session's first. */
struct kk_unit {
    const uint8_t *mem;  /* the page; NULL: there are no more units */
    uint64_t any;        /* bit per key: some row of the tile sees it */
    int base;            /* the page's first position */
    int tile, index, kv; /* index: of the page among the tile's pages */
    int row, rows;       /* first row in the forward; rows of the tile in this launch */
    int pos, end;        /* position of the first row; or of the group and its end (a.block) */
    int m_from, m_to;    /* range of query tiles */
    bool mixed;          /* some keys are visible to some rows only */

    __device__ __forceinline__ uint64_t seen(const kk_cu_attend &a, int r) const {
        return kk_seen(kk_visible_at(a, a.block ? pos : pos + r, end), base);
    }
};

static_assert(sizeof(kk_unit) <= 96, "units fit their smem");

/* One warp looks up the block's next units: lane i the unit `from` + i * blocks.  Units are ordered
 * by tile, then page, share of the queries, K/V head.  A page's queries are divided among several
 * blocks where there are fewer pages than blocks. */
inline __device__ __noinline__ void kk_find_units(const kk_cu_attend &a, kk_unit *to, int from,
                                                  int blocks) {
    const int lane = threadIdx.x % 32, n_kv = a.slot.n_kv_head, group = a.n_head / n_kv;
    int total = 0;
    for (int i = 0; i < a.n_tiles; i++)
        total += kk_pages_of(a, a.rows.tile[a.first_tile + i]).n * n_kv;
    int shares = total * 2 > blocks ? 1 : blocks / total;
    shares = min(shares, (a.rows.tile_most * group + 15) / 16);
    int at = from + lane * blocks;
    kk_unit u = {};
    for (int i = 0; i < a.n_tiles; i++) {
        const kk_cu_tile info = a.rows.tile[a.first_tile + i];
        const kk_tile_pages pages = kk_pages_of(a, info);
        const int units = pages.n * shares * n_kv;
        if (at >= units) {
            at -= units;
            continue;
        }
        u.kv = at % n_kv;
        const int share = at / n_kv % shares, page = pages.at(at / n_kv / shares);
        u.index = at / n_kv / shares;
        u.mem = kk_page_at(a, info, page);
        u.base = page * KK_PAGE;
        u.tile = i;
        u.row = info.row + a.first_row;
        u.rows = kk_rows_now(a, info);
        u.pos = a.block ? (int)info.group_pos : (int)info.pos + a.first_row;
        u.end = (int)info.group_end;
        const int tiles = (u.rows * group + 15) / 16;
        u.m_from = tiles * share / shares;
        u.m_to = tiles * (share + 1) / shares;
        const kk_visible first = kk_visible_of(a, info, a.first_row);
        const kk_visible last = kk_visible_of(a, info, a.first_row + u.rows - 1);
        u.any = kk_seen(kk_visible_any(first, last), u.base);
        u.mixed = (u.any & ~(kk_seen(first, u.base) & kk_seen(last, u.base))) != 0;
        break;
    }
    if (lane < KK_UNITS) to[lane] = u;
}

/* ---- keys and values in registers ---------------------------------------------------------- */

/* Loads this lane's part of key j for one chain. */
template <int D, bool EQ, bool BF16>
__device__ __forceinline__ void kk_fetch_key(uint4 (&k)[kk_cut<D>::STEPS], const kk_cu_attend &a,
                                             const uint8_t *head, int base, int end, int chain,
                                             int j) {
    using cut = kk_cut<D>;
    const int t = threadIdx.x % 4;
    if (BF16) {
        const uint8_t *at = head + ((j * D + t * 8) * 2 + chain * (cut::STEPS / 2) * 64);
#pragma unroll
        for (int i = 0; i < cut::STEPS; i++) k[i] = *(const uint4 *)(at + cut::step(0, i) * 64);
        return;
    }
    /* Keys past the last are masked later, but have no angles in the table. */
    const float *cs = EQ ? a.rope_pos + (size_t)min(base + j, end - 1) * 2 * (size_t)a.n_rot : NULL;
#pragma unroll
    for (int i = 0; i < cut::STEPS / 2; i++) {
        float lo[8], hi[8];
        const int at = (4 * cut::step(chain, i) + t) * 8;
        kk_stored<8>(lo, a.slot, head, j, at, D);
        kk_stored<8>(hi, a.slot, head, j, at + D / 2, D);
        if (EQ) kk_rebuild<true>(lo, hi, a.k_norm, cs, a.n_rot, at, D);
        k[i] = kk_narrow(lo);
        k[i + cut::STEPS / 2] = kk_narrow(hi);
    }
}

/* Rebuilds K from V in registers, where bf16 rows were loaded as stored. */
template <int D>
__device__ __forceinline__ void kk_rebuild_key(uint4 (&k)[kk_cut<D>::STEPS], const kk_cu_attend &a,
                                               int base, int end, int chain, int j) {
    using cut = kk_cut<D>;
    const float *cs = a.rope_pos + (size_t)min(base + j, end - 1) * 2 * (size_t)a.n_rot;
#pragma unroll
    for (int i = 0; i < cut::STEPS / 2; i++) {
        float lo[8], hi[8];
        kk_widen(lo, k[i]);
        kk_widen(hi, k[i + cut::STEPS / 2]);
        kk_rebuild<false>(lo, hi, a.k_norm, cs, a.n_rot,
                          (4 * cut::step(chain, i) + threadIdx.x % 4) * 8, D);
        k[i] = kk_narrow(lo);
        k[i + cut::STEPS / 2] = kk_narrow(hi);
    }
}

/* The key, relative to 2 t, of value i of the sixteen that lane t holds. */
__device__ __forceinline__ constexpr int kk_value_key(int i) {
    return i / 4 * 16 + i % 4 / 2 * 8 + i % 2;
}
/* Whether that key is in the mask, which was shifted right by 2 t. */
__device__ __forceinline__ bool kk_has(uint64_t keys, int i) {
    const int at = kk_value_key(i);
    return (at < 32 ? (uint32_t)keys >> at : (uint32_t)(keys >> 32) >> (at - 32)) & 1;
}

/* Loads this lane's columns of its sixteen keys, visible or not: behind branches the compiler would
 * serialise the loads. */
template <int D, bool BF16>
__device__ __forceinline__ void kk_fetch_values(uint32_t (&v)[16][kk_cut<D>::NW],
                                                const kk_cu_slot &s, const uint8_t *head) {
    constexpr int NT = kk_cut<D>::NT, NW = kk_cut<D>::NW;
    const int t2 = threadIdx.x % 4 * 2;
    const int column = (int)(threadIdx.x / 32) * 8 * NT + NT * (int)(threadIdx.x % 32 / 4);
    const uint8_t *mine = head + (t2 * D + column) * 2;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = mine + kk_value_key(i) * D * 2;
        if (BF16 && NT == 4) {
            const uint2 both = *(const uint2 *)p;
            v[i][0] = both.x;
            v[i][NW - 1] = both.y;
        } else if (BF16) {
            v[i][0] = NT == 2 ? *(const uint32_t *)p : *(const uint16_t *)p;
        } else {
            float f[NT < 2 ? 2 : NT];
            f[1] = 0;
            kk_stored<NT>(f, s, head, t2 + kk_value_key(i), column, D);
#pragma unroll
            for (int w = 0; w < NW; w++) v[i][w] = kk_dbf16x2(f[2 * w], f[2 * w + 1]);
        }
    }
}

/* Replaces V by zeros for keys that no row sees. */
template <int D>
__device__ __forceinline__ void kk_hide_values(uint32_t (&v)[16][kk_cut<D>::NW], uint64_t keys) {
    keys >>= threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int w = 0; w < kk_cut<D>::NW; w++) v[i][w] = kk_has(keys, i) ? v[i][w] : 0;
}

__device__ __forceinline__ bool kk_not_finite(uint32_t two) {
    return (two & 0x7f80) == 0x7f80 || (two & 0x7f800000) == 0x7f800000;
}

/* o = p V over the page's 64 keys, for rows g and g + 8 of the tile.  MASK: only keys in `keys`
 * count. */
template <int D, bool MASK>
__device__ __forceinline__ void kk_page_sums(float (&o)[kk_cut<D>::NT][4],
                                             const uint32_t (&v)[16][kk_cut<D>::NW], const char *p,
                                             int n, uint64_t keys) {
    constexpr int NT = kk_cut<D>::NT, NW = kk_cut<D>::NW;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    keys >>= 2 * t;
    const char *lo = p + g * KK_SCORE_PITCH * 4 + t * 4, *hi = lo + 8 * KK_SCORE_PITCH * 4;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t a0 = g < n ? *(const uint32_t *)(lo + s * 32) : 0;
        const uint32_t a1 = g + 8 < n ? *(const uint32_t *)(hi + s * 32) : 0;
        const uint32_t a2 = g < n ? *(const uint32_t *)(lo + s * 32 + 16) : 0;
        const uint32_t a3 = g + 8 < n ? *(const uint32_t *)(hi + s * 32 + 16) : 0;
        uint32_t w[4][NW];
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < NW; i++)
                w[k][i] = !MASK || kk_has(keys, 4 * s + k) ? v[4 * s + k][i] : 0;
#pragma unroll
        for (int e = 0; e < NT; e++) {
            const uint32_t pick = e % 2 ? 0x7632 : 0x5410;
            const uint32_t b0 = __byte_perm(w[0][e / 2], w[1][e / 2], pick);
            const uint32_t b1 = __byte_perm(w[2][e / 2], w[3][e / 2], pick);
            if (s == 0)
                kk_mma_first(o[e], a0, a1, a2, a3, b0, b1);
            else
                kk_mma(o[e], a0, a1, a2, a3, b0, b1);
        }
    }
}

/* ---- a unit -------------------------------------------------------------------------------- */

/* Stores one query as bf16 in shared memory. */
template <int D> __device__ __forceinline__ void kk_query_stage(char *to, const kk_head<D> &h) {
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        *(uint16_t *)(to + (threadIdx.x % 32 + 32 * i) * 2) = kk_dbf16(h.v[i]);
}

/* Scaled scores of a tile of 16 queries to shared memory: 8 keys and one chain per warp.  Ends with
 * a barrier. */
template <int D>
__device__ __forceinline__ void kk_page_scores(float *score, const uint4 (&k)[kk_cut<D>::STEPS],
                                               const char *q, int n, float scale) {
    using cut = kk_cut<D>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int chain = warp / 8;
    float c[4] = {0, 0, 0, 0};
    float *to = score + g * KK_SCORE_PITCH + warp % 8 * 8 + 2 * t;
    if (chain < cut::CHAINS) {
        const char *lo = q + g * cut::PITCH + t * 16, *hi = lo + 8 * cut::PITCH;
        const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < cut::STEPS; i++) {
            const int step = cut::step(chain, i);
            const uint4 x = g < n ? *(const uint4 *)(lo + step * 64) : none;
            const uint4 y = g + 8 < n ? *(const uint4 *)(hi + step * 64) : none;
            kk_step<true>(c, k[i], x, y);
        }
    }
    if (cut::CHAINS > 1) {
        if (chain == 1) {
            *(float2 *)to = make_float2(c[0], c[1]);
            *(float2 *)(to + 8 * KK_SCORE_PITCH) = make_float2(c[2], c[3]);
        }
        kk_sync();
    }
    if (chain == 0) {
        if (cut::CHAINS > 1) {
            const float2 x = *(const float2 *)to, y = *(const float2 *)(to + 8 * KK_SCORE_PITCH);
            c[0] = __fadd_rn(c[0], x.x);
            c[1] = __fadd_rn(c[1], x.y);
            c[2] = __fadd_rn(c[2], y.x);
            c[3] = __fadd_rn(c[3], y.y);
        }
        *(float2 *)to = make_float2(__fmul_rn(c[0], scale), __fmul_rn(c[1], scale));
        *(float2 *)(to + 8 * KK_SCORE_PITCH) =
            make_float2(__fmul_rn(c[2], scale), __fmul_rn(c[3], scale));
    }
    kk_sync();
}

/* One warp computes one query's softmax within the page from the scores x and y of this lane's two
 * keys: p goes to `to` as bf16; returns m and l.  s0, s1: whether the keys are visible. */
__device__ __forceinline__ float2 kk_softmax_two(uint16_t *to, int lane, float x, float y, bool s0,
                                                 bool s1) {
    float m = fmaxf(x, y);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
    const float p0 = s0 ? kk_dexp(__fsub_rn(x, m)) : 0.0f;
    const float p1 = s1 ? kk_dexp(__fsub_rn(y, m)) : 0.0f;
    const float l = kk_warp_sum(__fadd_rn(p0, p1));
    to[lane] = kk_dbf16(p0);
    to[lane + 32] = kk_dbf16(p1);
    return make_float2(m, l);
}

/* The same, in place of the scores. */
__device__ __forceinline__ float2 kk_softmax_of(float *score, int lane, bool s0, bool s1) {
    const float x = s0 ? score[lane] : -INFINITY, y = s1 ? score[lane + 32] : -INFINITY;
    return kk_softmax_two((uint16_t *)score, lane, x, y, s0, s1);
}

/* m and l go to the query's part. */
__device__ __forceinline__ void kk_softmax_keys(float *score, int lane, bool s0, bool s1,
                                                float *part) {
    const float2 ml = kk_softmax_of(score, lane, s0, s1);
    if (lane == 0) *(float2 *)part = ml;
}

__device__ __forceinline__ void kk_page_softmax(float *score, uint64_t seen, float *part) {
    const int lane = threadIdx.x % 32;
    kk_softmax_keys(score, lane, (uint32_t)seen >> lane & 1, (uint32_t)(seen >> 32) >> lane & 1,
                    part);
}

/* Stores this warp's columns of o to the parts of queries g and g + 8 of the tile. */
template <int D>
__device__ __forceinline__ void kk_page_keep(const float (&o)[kk_cut<D>::NT][4],
                                             float *const *parts, int from, int to) {
    constexpr int NT = kk_cut<D>::NT;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = g + 8 * half;
        if (i < from || i >= to) continue;
        float *at = parts[i] + 4 + (int)(threadIdx.x / 32) * 8 * NT + 2 * NT * t;
        float f[2 * NT];
#pragma unroll
        for (int e = 0; e < NT; e++) {
            f[e] = o[e][2 * half];
            f[NT + e] = o[e][2 * half + 1];
        }
        if (NT == 1) {
            *(float2 *)at = make_float2(f[0], f[1]);
        } else {
#pragma unroll
            for (int e = 0; e < 2 * NT; e += 4)
                *(float4 *)(at + e) = make_float4(f[e], f[e + 1], f[e + 2], f[e + 3]);
        }
    }
}

/* Whether a value of this warp is not finite and its key visible to some rows only. */
template <int D>
__device__ __forceinline__ bool kk_odd_values(const uint32_t (&v)[16][kk_cut<D>::NW],
                                              uint64_t some) {
    some >>= threadIdx.x % 4 * 2;
    bool odd = false;
#pragma unroll
    for (int e = 0; e < 16; e++)
#pragma unroll
        for (int w = 0; w < kk_cut<D>::NW; w++)
            odd = odd || (kk_has(some, e) && kk_not_finite(v[e][w]));
    return __any_sync(0xffffffffu, odd);
}

/* The layout of KK_ATTEND_SMEM bytes of shared memory. */
struct kk_attend_smem {
    kk_unit *units;
    float **parts; /* double-buffered: of the current 16 queries, and of the next */
    float *score;
    char *q;
    __device__ __forceinline__ kk_attend_smem(char *smem) {
        units = (kk_unit *)smem;
        parts = (float **)(smem + KK_UNITS_BYTES);
        score = (float *)(smem + KK_UNITS_BYTES + KK_PARTS_BYTES);
        q = smem + KK_UNITS_BYTES + KK_PARTS_BYTES + 16 * KK_SCORE_PITCH * 4;
    }
};

template <int D, bool EQ, bool BF16>
__device__ __forceinline__ void kk_attend_unit(const kk_cu_attend &a, const kk_attend_smem &smem,
                                               const kk_unit &u) {
    using cut = kk_cut<D>;
    /* Registers do not hold K and V of a 512-wide head beside a query in preparation: V is loaded
     * after it, once per tile of queries (from L1 or L2 where K = V). */
    constexpr bool LATE = D > 256;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = warp / 8;
    const int j = warp % 8 * 8 + lane / 4, n_head = a.n_head, group = n_head / a.slot.n_kv_head;
    const bool sums = warp < cut::COLUMN_WARPS;
    const uint64_t any = u.any;
    const uint8_t *head = u.mem + (size_t)u.kv * a.slot.head_bytes;
    const uint8_t *keys = head + (EQ ? a.slot.v_off : a.slot.k_off);
    const uint8_t *values = head + a.slot.v_off;
    const int queries = u.rows * group, base = u.base;
    /* This warp's query of this tile, then of the next; any valid query where it has none. */
    int q = min(u.m_from * 16 + warp, queries - 1);
    int row = q / group, q_head = u.kv * group + q % group;
    kk_head<D> raw = kk_head_load<D>(a.q + ((u.row + row) * n_head + q_head) * (size_t)D);
    uint4 k[cut::STEPS];
    uint32_t v[16][cut::NW];
    const bool scores = chain < cut::CHAINS;
    if (scores) kk_fetch_key<D, EQ, BF16>(k, a, keys, base, u.end, chain, j);
    if (!LATE && sums) kk_fetch_values<D, BF16>(v, a.slot, values);
    bool careful = false;
    for (int m = u.m_from; m < u.m_to; m++) {
        const int q0 = m * 16, n = min(16, queries - q0), now = row;
        if (LATE && m > u.m_from)
            raw = kk_head_load<D>(a.q + ((u.row + row) * n_head + q_head) * (size_t)D);
        float *part = NULL,
              **parts = smem.parts + m % 2 * 16; /* other warps may still read the previous half */
        if (warp < n) {
            part = kk_part(a, u.tile, row, q_head, u.index);
            if (lane == 0) parts[warp] = part;
            kk_query_stage<D>(smem.q + warp * cut::PITCH, raw);
        }
        if (EQ && BF16 && scores && m == u.m_from) kk_rebuild_key<D>(k, a, base, u.end, chain, j);
        if (LATE && sums) kk_fetch_values<D, BF16>(v, a.slot, values);
        if (m + 1 < u.m_to) {
            q = min(q0 + 16 + warp, queries - 1);
            row = q / group;
            q_head = u.kv * group + q % group;
            if (!LATE) raw = kk_head_load<D>(a.q + ((u.row + row) * n_head + q_head) * (size_t)D);
        }
        kk_sync();
        kk_page_scores<D>(smem.score, k, smem.q, n, a.scale);
        if (warp < n) kk_page_softmax(smem.score + warp * KK_SCORE_PITCH, u.seen(a, now), part);
        if (any != ~0ull && sums && (LATE || m == u.m_from)) kk_hide_values<D>(v, any);
        if (u.mixed && m == u.m_from && sums)
            careful = kk_odd_values<D>(v, ~(u.seen(a, 0) & u.seen(a, u.rows - 1)));
        kk_sync();
        if (!sums) continue;
        float o[cut::NT][4];
        if (!careful) {
            kk_page_sums<D, false>(o, v, (const char *)smem.score, n, 0);
            kk_page_keep<D>(o, parts, 0, n);
            continue;
        }
        for (int r = q0 / group; r <= (q0 + n - 1) / group; r++) {
            kk_page_sums<D, true>(o, v, (const char *)smem.score, n, u.seen(a, r));
            kk_page_keep<D>(o, parts, max(0, r * group - q0), min(n, (r + 1) * group - q0));
        }
    }
    kk_sync(); /* q, scores and parts may be overwritten by the next unit */
}

template <int D, bool EQ, bool BF16>
__device__ __noinline__ void kk_attend_units(const kk_cu_attend &a, char *shared, int block,
                                             int blocks) {
    const kk_attend_smem smem(shared);
    for (int from = block;;) {
        bool more = true;
        for (int i = 0; i < KK_UNITS && more; i++) {
            const kk_unit &u = smem.units[i];
            more = u.mem != NULL;
            if (more && u.m_from < u.m_to) kk_attend_unit<D, EQ, BF16>(a, smem, u);
        }
        kk_sync(); /* all warps have read the units */
        if (!more) return;
        from += KK_UNITS * blocks;
        if (threadIdx.x < 32) kk_find_units(a, smem.units, from, blocks);
        kk_sync();
    }
}

/* All units of this block, as kk_attend_prepare left them in smem; results go to a.parts. */
template <int D>
__device__ __forceinline__ void kk_attend_head(const kk_cu_attend &a, char *smem, int block,
                                               int blocks) {
    const bool bf16 = a.slot.format == KK_CU_BF16;
    if (a.slot.k_eq_v) {
        if (bf16)
            kk_attend_units<D, true, true>(a, smem, block, blocks);
        else
            kk_attend_units<D, true, false>(a, smem, block, blocks);
    } else {
        if (bf16)
            kk_attend_units<D, false, true>(a, smem, block, blocks);
        else
            kk_attend_units<D, false, false>(a, smem, block, blocks);
    }
}

__host__ __device__ __forceinline__ bool kk_attend_knows(int head_dim) {
    return head_dim == 64 || head_dim == 128 || head_dim == 256 || head_dim == 512;
}

/* Looks up this block's first units, leaves them in smem (KK_ATTEND_SMEM bytes, 16-byte aligned),
 * and prefetches the pages of the first two to L2. Called by 512 threads. */
__device__ __forceinline__ void kk_attend_prepare(const kk_cu_attend &a, char *shared, int block,
                                                  int blocks) {
    const kk_attend_smem smem(shared);
    if (threadIdx.x < 32) kk_find_units(a, smem.units, block, blocks);
    kk_sync();
    const int bytes = (int)a.slot.head_bytes, at = (int)threadIdx.x * 128;
    for (int i = 0; i < 2 && smem.units[i].mem; i++) {
        const uint8_t *head = smem.units[i].mem + (size_t)smem.units[i].kv * a.slot.head_bytes;
        for (int n = at; n < bytes; n += 512 * 128) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(head + a.slot.v_off + n));
            if (!a.slot.k_eq_v)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(head + a.slot.k_off + n));
        }
    }
}

/* ---- adding up pages ----------------------------------------------------------------------- */

/* Prefix maximum over a span.  Lane k of every eight holds page k's maximum m; top: the maximum of
 * pages 0..k, keep: the factor of the sums before page k, by: the factor of page k's own. */
struct kk_span_scan {
    float top, keep, by;
};

__device__ __forceinline__ kk_span_scan kk_scan_span(float m, int lane) {
    float top = m;
#pragma unroll
    for (int k = 1; k < KK_SPAN; k *= 2) {
        const float up = __shfl_up_sync(0xffffffffu, top, k, KK_SPAN);
        if (lane % KK_SPAN >= k) top = fmaxf(top, up);
    }
    float before = __shfl_up_sync(0xffffffffu, top, 1, KK_SPAN);
    if (lane % KK_SPAN == 0) before = -INFINITY;
    return {top, kk_dexp(__fsub_rn(before, top)), kk_dexp(__fsub_rn(m, top))};
}

/* A running softmax: maximum, sum of weights, and one column of o. */
struct kk_fold {
    float m, l, o;
    __device__ __forceinline__ void add(float n, float ln, float on) {
        const float top = fmaxf(m, n);
        const float a = kk_dexp(__fsub_rn(m, top)), b = kk_dexp(__fsub_rn(n, top));
        l = __fmaf_rn(ln, b, __fmul_rn(l, a));
        o = __fmaf_rn(on, b, __fmul_rn(o, a));
        m = top;
    }
};

/* Merges the pages of 32 columns of one query, by one warp: lane i reads m and l of page i of up to
 * four spans, and column i of every page.  part: of the first page, stride: floats from page to
 * page. */
__device__ __forceinline__ kk_fold kk_combine_columns(const kk_visible &see,
                                                      const kk_tile_pages &pages, const float *part,
                                                      int stride, int column) {
    const int lane = threadIdx.x % 32;
    const int window = pages.window / KK_SPAN * KK_SPAN, end = pages.end();
    kk_fold all = {-INFINITY, 0, 0};
    for (int batch = pages.sinks ? 0 : window; batch < end;) {
        const int page = batch + lane;
        const bool seen =
            (page < pages.sinks || page >= pages.window) && page < end && see.page(page);
        const unsigned mask = __ballot_sync(0xffffffffu, seen);
        float2 ml = make_float2(-INFINITY, 0);
        if (seen) ml = *(const float2 *)(part + (size_t)(pages.unit(page) * stride));
        /* Parts of attention-sink pages are stored first, those of the window right after them. */
        const float *near = part + 4 + column + (ptrdiff_t)batch * stride;
        const float *far = near - (ptrdiff_t)(pages.window - pages.sinks) * stride;
        const int left = pages.sinks - batch;
        const float *sure = part + 4 + column;
        const auto load = [&](float(&o)[KK_SPAN], int first) {
#pragma unroll
            for (int i = 0; i < KK_SPAN;
                 i++) { /* pages that are not visible: the first page, to avoid a branch */
                const float *at = (first + i < left ? near : far) + (first + i) * stride;
                o[i] = *(mask >> first >> i & 1 ? at : sure);
            }
        };
        float o[KK_SPAN], next[KK_SPAN];
        load(o, 0);
        const kk_span_scan scan = kk_scan_span(ml.x, lane);
        const float top = scan.top, a = scan.keep, b = scan.by;
#pragma unroll 1
        for (int k = 0; k < 32 && mask >> k; k += KK_SPAN) {
            if (k + KK_SPAN < 32) load(next, k + KK_SPAN);
            kk_fold span = {__shfl_sync(0xffffffffu, top, k + KK_SPAN - 1), 0, 0};
#pragma unroll
            for (int i = 0; i < KK_SPAN; i++) {
                const float ai = __shfl_sync(0xffffffffu, a, k + i);
                const float bi = __shfl_sync(0xffffffffu, b, k + i);
                const float li = __shfl_sync(0xffffffffu, ml.y, k + i);
                if (!(mask >> k >> i & 1)) continue;
                span.l = __fmaf_rn(li, bi, __fmul_rn(span.l, ai));
                span.o = __fmaf_rn(o[i], bi, __fmul_rn(span.o, ai));
            }
            if (mask >> k & 0xff) all.add(span.m, span.l, span.o);
#pragma unroll
            for (int i = 0; i < KK_SPAN; i++) o[i] = next[i];
        }
        batch += 32;
        if (batch >= pages.sinks && batch < window) batch = window;
    }
    return all;
}

/* Merges the parts of all rows and heads of the tiles, by KK_ATTEND_WARPS warps. */
inline __device__ __noinline__ void kk_combine_stage(const kk_cu_attend &a, int block, int blocks) {
    const int d = a.slot.head_dim, chunks = (d + 31) / 32, lane = threadIdx.x % 32;
    const int n_head = a.n_head, n_tiles = a.n_tiles;
    int tile = -1, before = 0, items = 0;
    kk_cu_tile info;
    kk_tile_pages pages;
    for (int at = (int)(threadIdx.x / 32) * blocks + block;; at += KK_ATTEND_WARPS * blocks) {
        while (at >= before + items) {
            before += items;
            if (++tile >= n_tiles) return;
            info = a.rows.tile[a.first_tile + tile];
            pages = kk_pages_of(a, info);
            items = kk_rows_now(a, info) * n_head * chunks;
        }
        const int i = at - before, column = i % chunks * 32 + lane;
        const int query = i / chunks, head = query % n_head, r = query / n_head;
        const kk_fold f =
            kk_combine_columns(kk_visible_of(a, info, a.first_row + r), pages,
                               kk_part(a, tile, r, head, 0), d + 4, min(column, d - 1));
        const float y = __fadd_rn(__fmul_rn(f.o, __fdiv_rn(1.0f, f.l)), 0.0f);
        const size_t row = (size_t)(info.row + a.first_row + r), to = (size_t)head * d + column;
        if (column >= d) continue;
        if (a.sums && column == 0)
            *(float2 *)(a.sums + 2 * (row * (size_t)n_head + head)) = make_float2(f.m, f.l);
        if (a.out) a.out[row * (size_t)n_head * d + to] = y;
        if (a.out_bf16) a.out_bf16[row * (size_t)a.bf16_pitch + to] = kk_dbf16(y);
    }
}

#endif
