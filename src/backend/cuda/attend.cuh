/* attend.cuh - attention of few rows: a page, a K/V head and a tile of rows at a time, and adding
 * up pages.
 *
 * The rule, which every way of attending follows to the bit:
 *   - q, normed and turned in float32, is rounded to bf16.  A stored row is read as float32; K,
 *     rebuilt from it where K = V, is rounded to bf16, and so is V;
 *   - the score of a key is the sum of two chains of m16n8k16 products with float32 sums.  A
 *     step is 32 values in the lanes' order of weights (lane t of four has 8 t .. 8 t + 7).  With
 *     quarters A B C D of the head, the first chain takes A and C, the second B and D, so that
 *     pairs half a head apart meet in one lane; heads of 64 have one chain.  Then times scale;
 *   - within a page m is the maximum of what is seen, p = exp(s - m), 0 where not seen, and l
 *     their sum as a tree: keys 32 apart first, then 16, 8, 4, 2, 1.  o is one chain over p in
 *     bf16 against V, 16 keys a step in their own order;
 *   - (m, l, o) of pages are folded in ascending order, those a row does not see left out:
 *     m' = max(m, n), x' = fma(y, exp(n - m'), x * exp(m - m')), from m = -inf, x = 0.  Pages of
 *     a span (eight, by their absolute number) are folded first, then spans, so that spans may
 *     be worked on apart.  The output is o * (1 / l) + 0.
 * Neither tiles nor the rows beside it change a row's bits.  What a row does not see may hold
 * anything: keys that nobody in a tile sees count as zeros, and where a value is not finite that
 * only some rows see, rows are done one after the other.
 *
 * Blocks of 512 threads.  All loads of a page are asked for before anything is computed: keys in
 * the lanes' order of scores (8 keys and a chain per warp), values in that of sums (a share of
 * the columns per warp), both straight from memory into registers. */
#ifndef KK_CUDA_ATTEND_CUH
#define KK_CUDA_ATTEND_CUH

#include "kv_rows.cuh"
#include "stream.cuh"

enum {
    KK_SPAN = 8, /* pages */
    KK_ATTEND_WARPS = 16,
    KK_SCORE_PITCH = 68, /* floats: rows of scores in different banks */
    /* q [16][512 + 32] bf16, scores [16][68] */
    KK_ATTEND_ROOM = 16 * (512 * 2 + 64) + 16 * KK_SCORE_PITCH * 4,
};

/* How a head of D values is cut. */
template <int D> struct kk_cut {
    enum {
        CHAINS = D >= 128 ? 2 : 1,
        STEPS = D / 32 / CHAINS,                /* of a chain */
        COLUMN_WARPS = D / 8 < 16 ? D / 8 : 16, /* that share the sums' columns */
        NT = D / 8 / COLUMN_WARPS,              /* products of 8 columns of a warp */
        NW = NT > 1 ? NT / 2 : 1,               /* words of a key's values in a lane */
        PITCH = D * 2 + 64,                     /* of q in shared memory */
    };
    /* Step i of a chain, among all of the head. */
    static __device__ __forceinline__ int step(int chain, int i) {
        return chain * (STEPS / 2) + (i < STEPS / 2 ? i : i - STEPS / 2 + D / 64);
    }
};

/* ---- what a block works on ----------------------------------------------------------------- */

/* Units of the tiles in turn: page, share of the queries, K/V head.  Queries are shared out where
 * there are fewer pages than blocks. */
struct kk_attend_walk {
    int at, shares;
    int tile, before, units; /* of the tile at hand */

    __device__ __forceinline__ void open(const kk_cu_attend &a, int block, int blocks) {
        int total = 0;
        for (int i = 0; i < a.n_tiles; i++)
            total += kk_pages_of(a, a.rows.tile[a.first_tile + i]).n * a.slot.n_kv_head;
        const int group = a.n_head / a.slot.n_kv_head;
        const int most = (a.rows.tile_most * group + 15) / 16;
        shares = total * 2 > blocks ? 1 : blocks / total;
        if (shares > most) shares = most;
        at = block;
        tile = -1;
        before = units = 0;
    }
    __device__ __forceinline__ bool find(const kk_cu_attend &a) {
        while (at >= before + units) {
            before += units;
            if (++tile >= a.n_tiles) return false;
            units = kk_pages_of(a, a.rows.tile[a.first_tile + tile]).n * shares * a.slot.n_kv_head;
        }
        return true;
    }
};

/* ---- keys and values in registers ---------------------------------------------------------- */

/* This lane's key, j of the page, of one chain. */
template <int D, bool EQ, bool BF16>
__device__ __forceinline__ void kk_fetch_key(uint4 (&k)[kk_cut<D>::STEPS], const kk_cu_attend &a,
                                             const uint8_t *head, int64_t base, int chain, int j) {
    using cut = kk_cut<D>;
    const int t = threadIdx.x % 4;
    if (BF16) {
#pragma unroll
        for (int i = 0; i < cut::STEPS; i++)
            k[i] = *(const uint4 *)(head + ((size_t)j * D + (4 * cut::step(chain, i) + t) * 8) * 2);
        return;
    }
    const float *cs = EQ ? a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot : NULL;
#pragma unroll
    for (int i = 0; i < cut::STEPS / 2; i++) {
        float lo[8], hi[8];
        const int at = (4 * cut::step(chain, i) + t) * 8;
        kk_stored<8>(lo, a.slot, head, j, at, D);
        kk_stored<8>(hi, a.slot, head, j, at + D / 2, D);
        if (EQ) kk_rebuild(lo, hi, a.k_norm, cs, a.n_rot, at, D);
        k[i] = kk_narrow(lo);
        k[i + cut::STEPS / 2] = kk_narrow(hi);
    }
}

/* K from V where bf16 rows lie in registers as they were stored. */
template <int D>
__device__ __forceinline__ void kk_rebuild_key(uint4 (&k)[kk_cut<D>::STEPS], const kk_cu_attend &a,
                                               int64_t base, int chain, int j) {
    using cut = kk_cut<D>;
    const float *cs = a.rope_pos + (size_t)(base + j) * 2 * (size_t)a.n_rot;
#pragma unroll
    for (int i = 0; i < cut::STEPS / 2; i++) {
        float lo[8], hi[8];
        kk_widen(lo, k[i]);
        kk_widen(hi, k[i + cut::STEPS / 2]);
        kk_rebuild(lo, hi, a.k_norm, cs, a.n_rot, (4 * cut::step(chain, i) + threadIdx.x % 4) * 8,
                   D);
        k[i] = kk_narrow(lo);
        k[i + cut::STEPS / 2] = kk_narrow(hi);
    }
}

/* Key i of a lane's sixteen, less the lane's own 2 t. */
__device__ __forceinline__ constexpr int kk_value_key(int i) {
    return i / 4 * 16 + i % 4 / 2 * 8 + i % 2;
}
/* Whether it is among `keys`, already moved down by 2 t. */
__device__ __forceinline__ bool kk_has(uint64_t keys, int i) {
    const int at = kk_value_key(i);
    return (at < 32 ? (uint32_t)keys >> at : (uint32_t)(keys >> 32) >> (at - 32)) & 1;
}

/* This lane's columns of one key. */
template <int D, bool BF16>
__device__ __forceinline__ void kk_fetch_value(uint32_t (&v)[kk_cut<D>::NW], const kk_cu_slot &s,
                                               const uint8_t *head, int j) {
    constexpr int NT = kk_cut<D>::NT;
    const int at = (int)(threadIdx.x / 32) * 8 * NT + NT * (int)(threadIdx.x % 32 / 4);
    if (BF16) {
        const uint16_t *p = (const uint16_t *)head + (size_t)j * D + at;
        if (NT == 4) {
            const uint2 both = *(const uint2 *)p;
            v[0] = both.x;
            v[kk_cut<D>::NW - 1] = both.y;
        } else {
            v[0] = NT == 2 ? *(const uint32_t *)p : *p;
        }
        return;
    }
    float f[NT < 2 ? 2 : NT];
    f[1] = 0;
    kk_stored<NT>(f, s, head, j, at, D);
#pragma unroll
    for (int i = 0; i < kk_cut<D>::NW; i++) v[i] = kk_dbf16x2(f[2 * i], f[2 * i + 1]);
}

/* This lane's columns of its keys, those among `keys`; others become zeros, or stay. */
template <int D, bool BF16, bool ZERO>
__device__ __forceinline__ void kk_fetch_values(uint32_t (&v)[16][kk_cut<D>::NW],
                                                const kk_cu_slot &s, const uint8_t *head,
                                                uint64_t keys) {
    const int t2 = threadIdx.x % 4 * 2;
    keys >>= t2;
#pragma unroll
    for (int i = 0; i < 16; i++) {
#pragma unroll
        for (int w = 0; ZERO && w < kk_cut<D>::NW; w++) v[i][w] = 0;
        if (kk_has(keys, i)) kk_fetch_value<D, BF16>(v[i], s, head, t2 + kk_value_key(i));
    }
}

__device__ __forceinline__ bool kk_not_finite(uint32_t two) {
    return (two & 0x7f80) == 0x7f80 || (two & 0x7f800000) == 0x7f800000;
}

/* o = p V over the page's 64 keys, for rows g and g + 8 of the tile's p.  MASK: only V of
 * `keys` counts. */
template <int D, bool MASK>
__device__ __forceinline__ void kk_page_sums(float (&o)[kk_cut<D>::NT][4],
                                             const uint32_t (&v)[16][kk_cut<D>::NW], const char *p,
                                             int n, uint64_t keys) {
    constexpr int NT = kk_cut<D>::NT, NW = kk_cut<D>::NW;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    keys >>= 2 * t;
    const char *lo = p + g * KK_SCORE_PITCH * 4 + t * 4, *hi = lo + 8 * KK_SCORE_PITCH * 4;
#pragma unroll
    for (int e = 0; e < NT; e++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[e][i] = 0;
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
            kk_mma(o[e], a0, a1, a2, a3, __byte_perm(w[0][e / 2], w[1][e / 2], pick),
                   __byte_perm(w[2][e / 2], w[3][e / 2], pick));
        }
    }
}

/* ---- a unit -------------------------------------------------------------------------------- */

/* Stores the session's new rows [from, to) of a page, K and V of one head; row0 is the row of
 * position base.  A warp per row of K or V. */
template <int D, bool EQ>
__device__ __forceinline__ void kk_store_fresh(const kk_cu_store &s, uint8_t *mem, int kv, int from,
                                               int to, int64_t row0) {
    const int kinds = EQ ? 1 : 2, warp = threadIdx.x / 32;
    for (int i = warp; i < (to - from) * kinds; i += KK_ATTEND_WARPS) {
        const bool value = EQ || i % 2;
        const int j = from + i / kinds;
        const size_t row = (size_t)(row0 + j);
        const size_t at = (row * (size_t)s.slot.n_kv_head + (size_t)kv) * D;
        kk_head<D> h = kk_head_load<D>((value && s.v ? s.v : s.k) + at);
        if (!value)
            kk_head_norm<D>(h, s.k_norm, s.rope_rows + row * 2 * (size_t)s.n_rot, s.n_rot, s.eps);
        else if (!s.v_raw)
            kk_head_norm<D>(h, NULL, NULL, 0, s.eps);
        uint8_t *base =
            mem + (value ? s.slot.v_off : s.slot.k_off) + (size_t)kv * s.slot.head_bytes;
        kk_put(s.slot, base, j, D, [&](int k) { return h.v[k]; });
    }
}

/* A unit's place.  What is seldom needed is read again: registers are dearer. */
struct kk_unit {
    const kk_cu_attend *a;
    const kk_cu_tile *info;
    int tile, index, kv, group, page;

    __device__ __forceinline__ int row(int q) const { return q / group; }
    __device__ __forceinline__ int head(int q) const { return kv * group + q % group; }
    __device__ __forceinline__ float *part(int q) const {
        return kk_part(*a, tile, row(q), head(q), index);
    }
    __device__ __forceinline__ int rows() const { return kk_rows_now(*a, *info); }
    __device__ __forceinline__ kk_sight sight(int r) const {
        return kk_sight_of(*a, *info, a->first_row + r);
    }
    __device__ __forceinline__ uint64_t seen(int r) const {
        return kk_seen(sight(r), (int64_t)page * KK_PAGE);
    }
    __device__ __forceinline__ uint64_t seen_by_any() const {
        const kk_sight first = sight(0), last = sight(rows() - 1);
        return kk_seen({last.sink, first.from, last.to}, (int64_t)page * KK_PAGE);
    }
};

template <int D, bool FUSED>
__device__ __forceinline__ kk_head<D> kk_query_load(const kk_unit &u, const kk_cu_store &s, int q) {
    const size_t row = (size_t)(u.info->row + u.a->first_row + u.row(q));
    const float *from = FUSED ? s.q : u.a->q;
    return kk_head_load<D>(from + (row * (size_t)u.a->n_head + (size_t)u.head(q)) * D);
}

template <int D, bool FUSED>
__device__ __forceinline__ void kk_query_stage(char *to, kk_head<D> &h, const kk_unit &u,
                                               const kk_cu_store &s, int q) {
    if (FUSED) {
        const size_t row = (size_t)(u.info->row + u.a->first_row + u.row(q));
        kk_head_norm<D>(h, s.q_norm, s.rope_rows + row * 2 * (size_t)s.n_rot, s.n_rot, s.eps);
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        *(uint16_t *)(to + (threadIdx.x % 32 + 32 * i) * 2) = kk_dbf16(h.v[i]);
}

/* Scores of a tile of queries, 8 keys and one chain a warp, summed and scaled in shared memory.
 * Ends with a barrier. */
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

/* A warp turns one query's scores into p, in place; m and l to its part. */
__device__ __forceinline__ void kk_page_softmax(float *score, uint64_t seen, float *part) {
    const int lane = threadIdx.x % 32;
    const bool s0 = (uint32_t)seen >> lane & 1, s1 = (uint32_t)(seen >> 32) >> lane & 1;
    const float x = s0 ? score[lane] : -INFINITY, y = s1 ? score[lane + 32] : -INFINITY;
    float m = fmaxf(x, y);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
    const float p0 = s0 ? kk_dexp(__fsub_rn(x, m)) : 0.0f;
    const float p1 = s1 ? kk_dexp(__fsub_rn(y, m)) : 0.0f;
    const float l = kk_warp_sum(__fadd_rn(p0, p1));
    ((uint16_t *)score)[lane] = kk_dbf16(p0);
    ((uint16_t *)score)[lane + 32] = kk_dbf16(p1);
    if (lane == 0) *(float2 *)part = make_float2(m, l);
}

/* Sums of this warp's columns to the parts of queries q0 + g and q0 + g + 8; only those of row
 * `only`, where it is not negative. */
template <int D>
__device__ __forceinline__ void kk_page_keep(const float (&o)[kk_cut<D>::NT][4], const kk_unit &u,
                                             int q0, int n, int only) {
    constexpr int NT = kk_cut<D>::NT;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = g + 8 * half;
        if (i >= n || (only >= 0 && u.row(q0 + i) != only)) continue;
        float *to = u.part(q0 + i) + 4 + (int)(threadIdx.x / 32) * 8 * NT + 2 * NT * t;
        float f[2 * NT];
#pragma unroll
        for (int e = 0; e < NT; e++) {
            f[e] = o[e][2 * half];
            f[NT + e] = o[e][2 * half + 1];
        }
        if (NT == 1) {
            *(float2 *)to = make_float2(f[0], f[1]);
        } else {
#pragma unroll
            for (int e = 0; e < 2 * NT; e += 4)
                *(float4 *)(to + e) = make_float4(f[e], f[e + 1], f[e + 2], f[e + 3]);
        }
    }
}

template <int D, bool EQ, bool BF16, bool FUSED>
__device__ __noinline__ void kk_attend_units(const kk_cu_store &s, const kk_cu_attend &a,
                                             char *room, int block, int blocks) {
    using cut = kk_cut<D>;
    /* Registers do not hold all of a wide head beside a query that is being made ready: its values
     * come after that, once for each tile of queries, and from near by where K = V. */
    constexpr bool LATE = D > 256;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = warp / 8;
    const int n_kv = a.slot.n_kv_head, j = warp % 8 * 8 + lane / 4;
    const bool fuses = FUSED && s.k, sums = warp < cut::COLUMN_WARPS;
    float *score = (float *)(room + 16 * cut::PITCH);
    kk_attend_walk walk;
    walk.open(a, block, blocks);
    kk_unit u;
    u.a = &a;
    u.group = a.n_head / n_kv;
    for (; walk.find(a); walk.at += blocks) {
        int i = walk.at - walk.before;
        u.kv = i % n_kv;
        i /= n_kv;
        const int share = i % walk.shares;
        u.index = i / walk.shares;
        u.tile = walk.tile;
        u.info = a.rows.tile + a.first_tile + u.tile;
        u.page = kk_pages_of(a, *u.info).at(u.index);
        const int queries = u.rows() * u.group, tiles = (queries + 15) / 16;
        const int m_from = tiles * share / walk.shares, m_to = tiles * (share + 1) / walk.shares;
        if (m_from == m_to) continue;
        const int64_t base = (int64_t)u.page * KK_PAGE;
        uint8_t *mem = a.rows.pages[u.info->pages + u.page];
        const size_t off = (size_t)u.kv * a.slot.head_bytes;
        const uint8_t *keys = mem + (EQ ? a.slot.v_off : a.slot.k_off) + off;
        const uint8_t *values = mem + a.slot.v_off + off;
        /* What somebody sees, and what this forward stores. */
        const uint64_t any = u.seen_by_any();
        const uint64_t fresh = fuses ? kk_keys(u.info->group_pos, u.info->group_end, base) : 0;
        kk_head<D> raw; /* q to come */
        if (m_from * 16 + warp < queries) raw = kk_query_load<D, FUSED>(u, s, m_from * 16 + warp);
        uint4 k[cut::STEPS];
        uint32_t v[16][cut::NW];
#pragma unroll
        for (int e = 0; e < cut::STEPS; e++) k[e] = make_uint4(0, 0, 0, 0);
        const bool key = chain < cut::CHAINS && (any >> j & 1);
        if (key && !(fresh >> j & 1)) kk_fetch_key<D, EQ, BF16>(k, a, keys, base, chain, j);
        if (!LATE && sums) kk_fetch_values<D, BF16, true>(v, a.slot, values, any & ~fresh);
        if (fresh) {
            kk_store_fresh<D, EQ>(s, mem, u.kv, kk_clip(u.info->group_pos, base),
                                  kk_clip(u.info->group_end, base),
                                  u.info->row + (base - u.info->pos));
            kk_sync();
            if (key && (fresh >> j & 1)) kk_fetch_key<D, EQ, BF16>(k, a, keys, base, chain, j);
            if (!LATE && sums) kk_fetch_values<D, BF16, false>(v, a.slot, values, any & fresh);
        }
        bool careful = false;
        for (int m = m_from; m < m_to; m++) {
            const int q0 = m * 16, n = min(16, queries - q0);
            if (LATE && m > m_from && warp < n) raw = kk_query_load<D, FUSED>(u, s, q0 + warp);
            if (warp < n) kk_query_stage<D, FUSED>(room + warp * cut::PITCH, raw, u, s, q0 + warp);
            if (!LATE && m + 1 < m_to && q0 + 16 + warp < queries)
                raw = kk_query_load<D, FUSED>(u, s, q0 + 16 + warp);
            if (EQ && BF16 && key && m == m_from) kk_rebuild_key<D>(k, a, base, chain, j);
            if (LATE && sums) kk_fetch_values<D, BF16, true>(v, a.slot, values, any);
            kk_sync();
            kk_page_scores<D>(score, k, room, n, a.scale);
            if (warp < n)
                kk_page_softmax(score + warp * KK_SCORE_PITCH, u.seen(u.row(q0 + warp)),
                                u.part(q0 + warp));
            if (m == m_from && u.rows() > 1 && sums) { /* what only some see, and is not finite */
                const uint64_t some = ~(u.seen(0) & u.seen(u.rows() - 1)) >> threadIdx.x % 4 * 2;
                bool odd = false;
#pragma unroll
                for (int e = 0; e < 16; e++)
#pragma unroll
                    for (int w = 0; w < cut::NW; w++)
                        odd = odd || (kk_has(some, e) && kk_not_finite(v[e][w]));
                careful = __any_sync(0xffffffffu, odd);
            }
            kk_sync();
            if (!sums) continue;
            float o[cut::NT][4];
            if (!careful) {
                kk_page_sums<D, false>(o, v, (const char *)score, n, 0);
                kk_page_keep<D>(o, u, q0, n, -1);
                continue;
            }
            for (int r = u.row(q0); r <= u.row(q0 + n - 1); r++) {
                kk_page_sums<D, true>(o, v, (const char *)score, n, u.seen(r));
                kk_page_keep<D>(o, u, q0, n, r);
            }
        }
        kk_sync(); /* q and scores are free for the next unit */
    }
}

template <int D, bool FUSED>
__device__ __forceinline__ void kk_attend_head(const kk_cu_store &s, const kk_cu_attend &a,
                                               char *room, int block, int blocks) {
    const bool bf16 = a.slot.format == KK_CU_BF16;
    if (a.slot.k_eq_v) {
        if (bf16)
            kk_attend_units<D, true, true, FUSED>(s, a, room, block, blocks);
        else
            kk_attend_units<D, true, false, FUSED>(s, a, room, block, blocks);
    } else {
        if (bf16)
            kk_attend_units<D, false, true, FUSED>(s, a, room, block, blocks);
        else
            kk_attend_units<D, false, false, FUSED>(s, a, room, block, blocks);
    }
}

__host__ __device__ __forceinline__ bool kk_attend_knows(int head_dim) {
    return head_dim == 64 || head_dim == 128 || head_dim == 256 || head_dim == 512;
}

/* All units of this block: stores the rows of s that lie in its pages (s.k NULL: none), norms and
 * turns q of s (which stays as it is), and leaves the pages' results in a.parts.  Between grid
 * barriers; 512 threads; room: KK_ATTEND_ROOM bytes of shared memory, 16-byte aligned.  Tiles,
 * page tables and arguments may lie in any memory. */
__device__ __forceinline__ void kk_attend_stage(const kk_cu_store &s, const kk_cu_attend &a,
                                                char *room, int block, int blocks) {
    switch (a.slot.head_dim) {
    case 64: return kk_attend_head<64, true>(s, a, room, block, blocks);
    case 128: return kk_attend_head<128, true>(s, a, room, block, blocks);
    case 256: return kk_attend_head<256, true>(s, a, room, block, blocks);
    case 512: return kk_attend_head<512, true>(s, a, room, block, blocks);
    default: return;
    }
}

/* ---- adding up pages ----------------------------------------------------------------------- */

/* A maximum, a sum and one column. */
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

/* 32 columns of one query: a warp, lane by lane a page of up to four spans for the weights and a
 * column for the sums. */
__device__ __forceinline__ kk_fold kk_combine_columns(const kk_sight &see,
                                                      const kk_tile_pages &pages, const float *part,
                                                      int d, int column) {
    const int lane = threadIdx.x % 32;
    const size_t stride = (size_t)d + 4;
    const int window = pages.window / KK_SPAN * KK_SPAN, end = pages.end();
    kk_fold all = {-INFINITY, 0, 0};
    for (int batch = pages.sinks ? 0 : window; batch < end;) {
        const int page = batch + lane;
        const bool seen =
            (page < pages.sinks || page >= pages.window) && page < end && see.page(page);
        const unsigned mask = __ballot_sync(0xffffffffu, seen);
        float2 ml = make_float2(-INFINITY, 0);
        if (seen) ml = *(const float2 *)(part + (size_t)pages.unit(page) * stride);
        float o[32];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            o[i] = 0;
            if ((mask >> i & 1) && column < d)
                o[i] = part[(size_t)pages.unit(batch + i) * stride + 4 + column];
        }
        float top = ml.x; /* so far, within the span */
#pragma unroll
        for (int k = 1; k < KK_SPAN; k *= 2) {
            const float up = __shfl_up_sync(0xffffffffu, top, k, KK_SPAN);
            if (lane % KK_SPAN >= k) top = fmaxf(top, up);
        }
        float before = __shfl_up_sync(0xffffffffu, top, 1, KK_SPAN);
        if (lane % KK_SPAN == 0) before = -INFINITY;
        const float a = kk_dexp(__fsub_rn(before, top)), b = kk_dexp(__fsub_rn(ml.x, top));
#pragma unroll
        for (int k = 0; k < 32; k += KK_SPAN) {
            if (!(mask >> k & 0xff)) continue;
            kk_fold span = {__shfl_sync(0xffffffffu, top, k + KK_SPAN - 1), 0, 0};
#pragma unroll
            for (int i = k; i < k + KK_SPAN; i++) {
                const float ai = __shfl_sync(0xffffffffu, a, i),
                            bi = __shfl_sync(0xffffffffu, b, i);
                const float li = __shfl_sync(0xffffffffu, ml.y, i);
                if (!(mask >> i & 1)) continue;
                span.l = __fmaf_rn(li, bi, __fmul_rn(span.l, ai));
                span.o = __fmaf_rn(o[i], bi, __fmul_rn(span.o, ai));
            }
            all.add(span.m, span.l, span.o);
        }
        batch += 32;
        if (batch >= pages.sinks && batch < window) batch = window;
    }
    return all;
}

/* Adds up the parts of all rows and heads of the tiles.  Any number of warps per block. */
__device__ __forceinline__ void kk_combine_stage(const kk_cu_attend &a, int block, int blocks) {
    const int d = a.slot.head_dim, chunks = (d + 31) / 32, lane = threadIdx.x % 32;
    int tile = -1, before = 0, items = 0;
    kk_cu_tile info;
    for (int at = (int)(threadIdx.x / 32) * blocks + block;;
         at += (int)(blockDim.x / 32) * blocks) {
        while (at >= before + items) {
            before += items;
            if (++tile >= a.n_tiles) return;
            info = a.rows.tile[a.first_tile + tile];
            items = kk_rows_now(a, info) * a.n_head * chunks;
        }
        const int i = at - before, column = i % chunks * 32 + lane;
        const int head = i / chunks % a.n_head, r = i / chunks / a.n_head;
        const kk_fold f =
            kk_combine_columns(kk_sight_of(a, info, a.first_row + r), kk_pages_of(a, info),
                               kk_part(a, tile, r, head, 0), d, column);
        const float y = __fadd_rn(__fmul_rn(f.o, __fdiv_rn(1.0f, f.l)), 0.0f);
        const size_t row = (size_t)(info.row + a.first_row + r), to = (size_t)head * d + column;
        if (column >= d) continue;
        if (a.out) a.out[row * (size_t)a.n_head * d + to] = y;
        if (a.out_bf16) a.out_bf16[row * (size_t)a.bf16_pitch + to] = kk_dbf16(y);
    }
}

#endif
