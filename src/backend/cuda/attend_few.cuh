/* attend_few.cuh - attention inside the persistent kernel (mega.cuh): 1 to 16 rows of one session
 * or of several (MANY), in the head shapes of 26B-A4B: 16 query heads of 256 with 8 K/V heads, or
 * of 512 with 2 K/V heads where K = V.  K/V rows are stored in one of the formats of cuda_ops.h,
 * for each of which there is a kernel of its own; long contexts are in attend_long.cuh.
 *
 * The arithmetic is attend.cuh's, to the bit, in as little code and as few registers as possible:
 * the kernel runs through all its code in every layer, and instruction-cache misses cost more than
 * the computation.
 *
 *    team: 8 warps (heads of 256, two teams per block, bar 1 and 2) or 16 (heads of 512, bar 0)
 *    unit: one page of 64 keys, one K/V head, one tile of 8 or 16 queries of one session
 *      heads:    norm and rotate queries -> smem; the rows' new K, V -> the page       -- sync
 *      keys:     global -> registers, K rebuilt from V where K = V
 *      scores:   8 keys per warp, tile x 64, -> smem                                   -- sync
 *      values:   first pass of V, global -> registers; softmax, one query per warp     -- sync
 *      in other formats than bf16, V is unpacked with the keys, to bf16 in the weight rings' shared
 *      memory, which is free while attention runs
 *      sums:     o = p V in two passes of columns, m, l, o -> parts in global memory   -- sync
 *    after a grid barrier, kk_combine_few merges pages: one warp per 32 columns of a head
 *    (kk_combine_one: eight warps, one span of eight pages each, through 6 KB of smem)
 *    shared memory of a team: q [tile][D + 32] bf16 | scores [tile][68] f32
 *      8 x (576 + 272) B = 6,784 B a team of heads of 256;  16 x (1088 + 272) B = 21,760 B for
 * 512 */
#ifndef KK_CUDA_ATTEND_FEW_CUH
#define KK_CUDA_ATTEND_FEW_CUH

#include "attend.cuh"

/* The warps that compute one unit: eight for heads of 256, so that a block has two pages in flight,
 * sixteen for heads of 512. */
template <int D> struct kk_team {
    enum { WARPS = D == 256 ? 8 : 16, TILE = D == 256 ? 8 : 16 /* queries of a tile */ };
    enum { HEADS = KK_CU_26B_HEADS, KV = D == 256 ? 8 : 2, GROUP = HEADS / KV };
    /* Bytes of shared memory of a team: queries, then scores. */
    enum { SMEM = TILE * (kk_cut<D>::PITCH + KK_SCORE_PITCH * 4) };
    static __device__ __forceinline__ int team() { return kk_tid() / (WARPS * 32); }
    static __device__ __forceinline__ int warp() { return kk_tid() / 32 % WARPS; }
    static __device__ __forceinline__ void sync() {
        if (WARPS == 16)
            kk_sync();
        else
            asm volatile("bar.sync %0, 256;" ::"r"(1 + team()) : "memory");
    }
};

/* One session's rows in the forward. */
struct kk_few_group {
    int pos, rows; /* position of the first row, and how many consecutive ones there are */
    int row;       /* the first row's index in the forward */
    int table;     /* index of the session's page table in kk_cu_rows.pages */
};

/* A session's rows, and the range of pages that they see. */
struct kk_few {
    int pos, rows, row, table;
    int page, pages;
};

/* The first position that a row at position `at` sees. */
__device__ __forceinline__ int kk_few_from(const kk_cu_attend &t, int at) {
    return t.window && at >= t.window ? at - t.window + 1 : 0;
}

__device__ __forceinline__ kk_few kk_few_of(const kk_cu_attend &t, const kk_few_group &g) {
    kk_few f = {g.pos, g.rows, g.row, g.table, kk_few_from(t, g.pos) / KK_PAGE, 0};
    f.pages = (g.pos + g.rows - 1) / KK_PAGE + 1 - f.page;
    return f;
}

/* Where (m, l, o) of a row, a head and a page are stored; dim: values of a head. */
__device__ __forceinline__ float *kk_few_part(const kk_cu_attend &t, int dim, int row, int head,
                                              int page) {
    return t.parts +
           ((size_t)(row * KK_CU_26B_HEADS + head) * (size_t)t.rows.most_pages + (size_t)page) *
               (size_t)(dim + 4);
}

/* kk_head_norm in one instantiation for q and K (full: scaled and rotated) and for V (normed only).
 * All loads are issued first and without branches. */
template <int D>
__device__ __forceinline__ void kk_few_norm(kk_head<D> &h, const float *w, const float *cs,
                                            int n_rot, float eps, bool full) {
    const int lane = kk_tid() % 32;
    float weight[D / 32], c[D / 64], n[D / 64];
#pragma unroll
    for (int i = 0; i < D / 32; i++) weight[i] = w[lane + 32 * i];
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        const int at = min(lane + 32 * i, n_rot - 1);
        c[i] = cs[at];
        n[i] = cs[n_rot + at];
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) s = __fmaf_rn(h.v[i], h.v[i], s);
    s = kk_warp_sum(s);
    const float inv = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)D), eps)));
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        h.v[i] = __fmul_rn(h.v[i], inv);
        if (full) h.v[i] = __fmul_rn(h.v[i], weight[i]);
    }
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        const bool rotate = full && lane + 32 * i < n_rot;
        const float a = h.v[i], b = h.v[i + D / 64];
        h.v[i] = rotate ? __fmaf_rn(-b, n[i], __fmul_rn(a, c[i])) : a;
        h.v[i + D / 64] = rotate ? __fmaf_rn(a, n[i], __fmul_rn(b, c[i])) : b;
    }
}

/* kk_put for one head in registers, group by group, in a loop that is not unrolled. */
template <int D, int KV_FORMAT>
__device__ __forceinline__ void kk_few_put_head(kk_head<D> &h, uint8_t *base, size_t code_bytes,
                                                int row) {
    enum { GROUP = KV_FORMAT == KK_CU_F32 ? 256 : KV_FORMAT == KK_CU_Q4 ? 32 : 64 /* bytes */ };
    uint8_t *to = base + row * (D / 64) * GROUP;
    uint16_t *scale = (uint16_t *)(base + code_bytes) + row * (D / 64);
#pragma unroll 1
    for (int g = 0; g < D / 64; g++, to += GROUP, scale++) {
        if (KV_FORMAT == KK_CU_F32) {
            ((float *)to)[kk_tid() % 32] = h.v[0];
            ((float *)to)[kk_tid() % 32 + 32] = h.v[1];
        } else if (KV_FORMAT == KK_CU_S8) {
            kk_pack_signed(to, scale, h.v[0], h.v[1]);
        } else {
            kk_pack_group<KV_FORMAT == KK_CU_Q8>(to, scale, scale + KK_PAGE * (D / 64), h.v[0],
                                                 h.v[1]);
        }
#pragma unroll
        for (int i = 0; i + 2 < D / 32; i++) h.v[i] = h.v[i + 2]; /* the next group to the front */
    }
}

/* Stores queries q0 .. q0 + n - 1 of a K/V head as bf16 in smem, and `fresh` new K/V rows into the
 * page from key `key` on; one head of one row per warp. */
template <int D, bool EQ, int KV_FORMAT>
__device__ __forceinline__ void kk_few_heads(const kk_cu_store &s, const kk_few &f, int kv, int q0,
                                             int n, char *smem, uint8_t *head, int key, int base,
                                             int fresh) {
    enum { GROUP = kk_team<D>::GROUP, KV = kk_team<D>::KV };
    const int lane = kk_tid() % 32;
#pragma unroll 1
    for (int i = kk_team<D>::warp(); i < n + fresh * (EQ ? 1 : 2); i += kk_team<D>::WARPS) {
        const int k = EQ ? i - n : (i - n) / 2;
        const bool query = i < n, value = !query && (EQ || (i - n) % 2);
        const int row = f.row + (query ? (q0 + i) / GROUP : base + key + k - f.pos);
        const float *x =
            query ? s.q + (size_t)(row * kk_team<D>::HEADS + kv * GROUP + (q0 + i) % GROUP) * D
                  : (value && s.v ? s.v : s.k) + (size_t)(row * KV + kv) * D;
        uint16_t *to = (uint16_t *)(query ? smem + i * kk_cut<D>::PITCH
                                          : (char *)head + (value ? s.slot.v_off : s.slot.k_off) +
                                                (size_t)(key + k) * D * 2);
        kk_head<D> h;
#pragma unroll
        for (int e = 0; e < D / 32; e++)
            h.v[e] = __ldcg(x + lane + 32 * e); /* written by other blocks */
        kk_few_norm<D>(h, query ? s.q_norm : s.k_norm,
                       s.rope_rows + (size_t)row * 2 * (size_t)s.n_rot, s.n_rot, s.eps, !value);
        if (KV_FORMAT == KK_CU_BF16 || query) {
#pragma unroll
            for (int e = 0; e < D / 32; e++) to[lane + 32 * e] = kk_dbf16(h.v[e]);
        } else {
            kk_few_put_head<D, KV_FORMAT>(h, head + (value ? s.slot.v_off : s.slot.k_off),
                                          s.slot.code_bytes, key + k);
        }
    }
}

/* One chain of the scores of 8 keys and a tile of queries. */
template <int D, bool WIDE = (kk_team<D>::TILE > 8)>
__device__ __forceinline__ void kk_few_chain(float c[4], const uint4 *k, const char *q, int chain) {
    using cut = kk_cut<D>;
    const char *lo = q + chain * (cut::STEPS / 2) * 64;
#pragma unroll
    for (int i = 0; i < cut::STEPS; i++) {
        const int at = (i < cut::STEPS / 2 ? i : i - cut::STEPS / 2 + D / 64) * 64;
        const uint4 x = *(const uint4 *)(lo + at);
        const uint4 y = WIDE ? *(const uint4 *)(lo + at + 8 * cut::PITCH) : x;
        kk_step<WIDE>(c, k[i], x, y);
        if (i % 2)
            asm volatile("" ::: "memory"); /* keeps at most two steps' queries in registers */
    }
}

/* Scaled scores of a tile of queries to smem; rows beyond the last query hold garbage.  Ends with a
 * barrier. */
template <int D>
__device__ __forceinline__ void kk_few_scores(float *score, const uint4 *k, const char *q,
                                              float scale) {
    using cut = kk_cut<D>;
    using team = kk_team<D>;
    const int lane = kk_tid() % 32, warp = team::warp(), g = lane / 4, t = lane % 4;
    float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
    float *to = score + g * KK_SCORE_PITCH + warp % 8 * 8 + 2 * t;
    q += g * cut::PITCH + t * 16;
    kk_few_chain<D>(c, k, q, warp / 8);
    if (team::WARPS == 8) {
        kk_few_chain<D>(d, k + cut::STEPS, q, 1);
    } else { /* chains 0 and 1 are in different warps */
        if (warp / 8) {
            *(float2 *)to = make_float2(c[0], c[1]);
            *(float2 *)(to + 8 * KK_SCORE_PITCH) = make_float2(c[2], c[3]);
        }
        team::sync();
        *(float2 *)d = *(const float2 *)to;
        *(float2 *)(d + 2) = *(const float2 *)(to + 8 * KK_SCORE_PITCH);
    }
    if (warp < 8) {
#pragma unroll
        for (int i = 0; i < team::TILE / 8; i++)
            *(float2 *)(to + i * 8 * KK_SCORE_PITCH) =
                make_float2(__fmul_rn(__fadd_rn(c[2 * i], d[2 * i]), scale),
                            __fmul_rn(__fadd_rn(c[2 * i + 1], d[2 * i + 1]), scale));
    }
    team::sync();
}

/* kk_page_softmax where keys [lo, hi) of the page are visible. */
__device__ __forceinline__ void kk_few_softmax(float *score, int lo, int hi, float *part) {
    const int lane = kk_tid() % 32;
    kk_softmax_keys(score, lane, lane >= lo && lane < hi, lane + 32 >= lo && lane + 32 < hi, part);
}

/* o = p V for two columns per lane; only keys [lo, hi) of V count. */
template <bool WIDE>
__device__ __forceinline__ void kk_few_sums(float (&o)[2][4], const uint32_t (&v)[16],
                                            const char *p, int lo, int hi) {
    const int tid = kk_tid(), g = tid % 32 / 4, t = tid % 4;
    const char *row = p + g * KK_SCORE_PITCH * 4 + t * 4, *low = row + 8 * KK_SCORE_PITCH * 4;
    const unsigned wide = (unsigned)(hi - lo), first = (unsigned)(2 * t - lo);
#pragma unroll
    for (int i = 0; i < 4; i++) o[0][i] = o[1][i] = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t a0 = *(const uint32_t *)(row + s * 32);
        const uint32_t a1 = WIDE ? *(const uint32_t *)(low + s * 32) : 0;
        const uint32_t a2 = *(const uint32_t *)(row + s * 32 + 16);
        const uint32_t a3 = WIDE ? *(const uint32_t *)(low + s * 32 + 16) : 0;
        uint32_t w[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            w[k] = first + (unsigned)kk_value_key(4 * s + k) < wide ? v[4 * s + k] : 0;
        kk_mma(o[0], a0, a1, a2, a3, __byte_perm(w[0], w[1], 0x5410),
               __byte_perm(w[2], w[3], 0x5410));
        kk_mma(o[1], a0, a1, a2, a3, __byte_perm(w[0], w[1], 0x7632),
               __byte_perm(w[2], w[3], 0x7632));
    }
}

/* Stores those sums to the parts of queries q0 + g and q0 + g + 8; of the session's row `only`
 * alone where it is not negative.  column: the first column of lane 0. */
template <int D>
__device__ __forceinline__ void kk_few_keep(const float (&o)[2][4], const kk_cu_attend &t,
                                            const kk_few &f, int kv, int page, int q0, int n,
                                            int only, int column) {
    const int lane = kk_tid() % 32;
#pragma unroll
    for (int half = 0; half < kk_team<D>::TILE / 8; half++) {
        const int i = lane / 4 + 8 * half, row = (q0 + i) / kk_team<D>::GROUP;
        if (i >= n || (only >= 0 && row != only)) continue;
        float *to = kk_few_part(t, D, f.row + row,
                                kv * kk_team<D>::GROUP + (q0 + i) % kk_team<D>::GROUP, page) +
                    4 + column + 2 * kk_cut<D>::NT * (lane % 4);
        *(float2 *)to = make_float2(o[0][2 * half], o[1][2 * half]);
        *(float2 *)(to + kk_cut<D>::NT) = make_float2(o[0][2 * half + 1], o[1][2 * half + 1]);
    }
}

/* Loads this lane's part of a key, or of the V it is rebuilt from, for one chain of a score. */
template <int D>
__device__ __forceinline__ void kk_few_key(uint4 *k, const uint8_t *keys, int chain) {
    using cut = kk_cut<D>;
    const int tid = kk_tid(), j = tid / 32 % 8 * 8 + tid % 32 / 4;
    keys += (size_t)j * D * 2 + (4 * chain * (cut::STEPS / 2) + tid % 4) * 16;
#pragma unroll
    for (int e = 0; e < cut::STEPS; e++)
        k[e] = *(const uint4 *)(keys + (e < cut::STEPS / 2 ? e : e - cut::STEPS / 2 + D / 64) * 64);
}

/* Loads the keys of all chains that this warp computes. */
template <int D> __device__ __forceinline__ void kk_few_keys(uint4 *k, const uint8_t *keys) {
    kk_few_key<D>(k, keys, kk_team<D>::warp() / 8);
    if (kk_team<D>::WARPS == 8) kk_few_key<D>(k + kk_cut<D>::STEPS, keys, 1);
}

/* One bf16 of a packed pair, as float. */
__device__ __forceinline__ float kk_half(uint32_t two, int high) {
    return __uint_as_float(high ? two & 0xffff0000u : two << 16);
}

/* K from the V in k, as kk_rebuild_key does; four pairs at a time, to limit the registers of their
 * factors. */
template <int D>
__device__ __forceinline__ void kk_few_rebuild(uint4 *k, const kk_cu_attend &t, int base) {
    using cut = kk_cut<D>;
    const int tid = kk_tid(), chain = tid / 256;
    const float *cs =
        t.rope_pos + (size_t)(base + tid / 32 % 8 * 8 + tid % 32 / 4) * 2 * (size_t)t.n_rot;
#pragma unroll
    for (int i = 0; i < cut::STEPS; i++) {
        const int step = i / 2, at = (4 * cut::step(chain, step) + tid % 4) * 8 + i % 2 * 4;
        uint4 &low = k[step], &high = k[step + cut::STEPS / 2];
        const uint32_t lo[2] = {i % 2 ? low.z : low.x, i % 2 ? low.w : low.y};
        const uint32_t hi[2] = {i % 2 ? high.z : high.x, i % 2 ? high.w : high.y};
        const float4 wl = *(const float4 *)(t.k_norm + at);
        const float4 wh = *(const float4 *)(t.k_norm + at + D / 2);
        const bool rotate = at < t.n_rot;
        const float4 c = rotate ? *(const float4 *)(cs + at) : make_float4(0, 0, 0, 0);
        const float4 s = rotate ? *(const float4 *)(cs + t.n_rot + at) : make_float4(0, 0, 0, 0);
        const float wls[4] = {wl.x, wl.y, wl.z, wl.w}, whs[4] = {wh.x, wh.y, wh.z, wh.w};
        const float cc[4] = {c.x, c.y, c.z, c.w}, ss[4] = {s.x, s.y, s.z, s.w};
        float x[4], y[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float a = __fmul_rn(kk_half(lo[e / 2], e % 2), wls[e]);
            const float b = __fmul_rn(kk_half(hi[e / 2], e % 2), whs[e]);
            x[e] = rotate ? __fmaf_rn(-b, ss[e], __fmul_rn(a, cc[e])) : a;
            y[e] = rotate ? __fmaf_rn(a, ss[e], __fmul_rn(b, cc[e])) : b;
        }
        (i % 2 ? low.z : low.x) = kk_dbf16x2(x[0], x[1]);
        (i % 2 ? low.w : low.y) = kk_dbf16x2(x[2], x[3]);
        (i % 2 ? high.z : high.x) = kk_dbf16x2(y[0], y[1]);
        (i % 2 ? high.w : high.y) = kk_dbf16x2(y[2], y[3]);
        asm volatile("" ::: "memory"); /* keeps the loads of the next four behind these */
    }
}

/* Loads two columns of sixteen keys into this lane, from column `column` of the head on. */
template <int D>
__device__ __forceinline__ void kk_few_values(uint32_t (&v)[16], const uint8_t *values,
                                              int column) {
    const int tid = kk_tid();
    values += (tid % 4 * 2) * D * 2 + (tid % 32 / 4 * kk_cut<D>::NT + column) * 2;
#pragma unroll
    for (int e = 0; e < 16; e++) v[e] = *(const uint32_t *)(values + kk_value_key(e) * D * 2);
}

/* ---- other formats than bf16 --------------------------------------------------------------- */

/* V of a page as bf16 in shared memory, where its rows are stored in another format: [64][D], in
 * pieces of 16 bytes whose index is xored with this.  Eight lanes that take a piece of two
 * neighbouring keys, or one column of the keys 0, 2, 4 and 6, meet in different banks. */
__device__ __forceinline__ int kk_few_swizzle(int key) {
    return ((key ^ key >> 1) & 1) << 2 | (key >> 1 & 3);
}
template <int D> __device__ __forceinline__ uint4 *kk_few_piece(char *values, int key, int piece) {
    return (uint4 *)(values + key * D * 2 + ((piece ^ kk_few_swizzle(key)) << 4));
}

/* Bytes of the codes of n values. */
template <int KV_FORMAT> __device__ __forceinline__ constexpr int kk_code_bytes(int n) {
    return KV_FORMAT == KK_CU_F32 ? n * 4 : KV_FORMAT == KK_CU_Q4 ? n / 2 : n;
}

/* A group's scale and bias as float; s8 has no bias.  plane: scales of all groups of 64 rows, then
 * biases; i: index of the group. */
template <int KV_FORMAT, int D>
__device__ __forceinline__ float2 kk_few_scale(const uint16_t *plane, int i) {
    const float scale = __half2float(__ushort_as_half(plane[i]));
    if (KV_FORMAT == KK_CU_S8) return make_float2(scale, 0);
    return make_float2(scale, __half2float(__ushort_as_half(plane[KK_PAGE * (D / 64) + i])));
}

/* kk_few_values from V in shared memory. */
template <int D>
__device__ __forceinline__ void kk_few_staged(uint32_t (&v)[16], char *values, int column) {
    const int tid = kk_tid(), t = tid % 4, at = (tid % 32 / 4 * kk_cut<D>::NT + column) * 2;
#pragma unroll
    for (int e = 0; e < 16; e++)
        v[e] =
            *(const uint32_t *)((char *)kk_few_piece<D>(values, kk_value_key(e) + 2 * t, at / 16) +
                                at % 16);
}

/* V of a page in float32 to shared memory as bf16, eight neighbours at a time; by a team. */
template <int D> __device__ __forceinline__ void kk_few_round(char *to, const uint8_t *from) {
    enum { THREADS = kk_team<D>::WARPS * 32, PARTS = D / 8 };
#pragma unroll 2
    for (int p = kk_tid() % THREADS; p < KK_PAGE * PARTS; p += THREADS) {
        const float4 a = ((const float4 *)from)[2 * p], b = ((const float4 *)from)[2 * p + 1];
        *kk_few_piece<D>(to, p / PARTS, p % PARTS) = make_uint4(
            kk_dbf16x2(a.x, a.y), kk_dbf16x2(a.z, a.w), kk_dbf16x2(b.x, b.y), kk_dbf16x2(b.z, b.w));
    }
}

/* The same for codes, sixteen neighbours at a time.  Loops that are not unrolled keep the code
 * small: all of it has to fit the instruction cache. */
template <int D, int KV_FORMAT>
__device__ __forceinline__ void kk_few_unpack(char *to, const uint8_t *from, size_t code_bytes) {
    enum { THREADS = kk_team<D>::WARPS * 32, PARTS = D / 16, EACH = KK_PAGE * PARTS / THREADS };
    const int first = kk_tid() % THREADS;
    const uint16_t *plane = (const uint16_t *)(from + code_bytes);
    uint4 raw[EACH];
    float2 by[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int p = first + i * THREADS, key = p / PARTS, part = p % PARTS;
        const int at = KV_FORMAT == KK_CU_Q4 ? part / 4 * 32 + part % 2 * 16 : part * 16;
        raw[i] = *(const uint4 *)(from + key * kk_code_bytes<KV_FORMAT>(D) + at);
        by[i] = kk_few_scale<KV_FORMAT, D>(plane, key * (D / 64) + part / 4);
    }
#pragma unroll 1
    for (int p = first; p < KK_PAGE * PARTS; p += THREADS) {
        const int key = p / PARTS, part = p % PARTS;
        float lo[8], hi[8];
        kk_unpack8<KV_FORMAT>(lo, make_uint2(raw[0].x, raw[0].y), part % 4 / 2, by[0].x, by[0].y);
        kk_unpack8<KV_FORMAT>(hi, make_uint2(raw[0].z, raw[0].w), part % 4 / 2, by[0].x, by[0].y);
        *kk_few_piece<D>(to, key, 2 * part) = kk_narrow(lo);
        *kk_few_piece<D>(to, key, 2 * part + 1) = kk_narrow(hi);
#pragma unroll
        for (int i = 0; i + 1 < EACH; i++) { /* the next one to the front */
            raw[i] = raw[i + 1];
            by[i] = by[i + 1];
        }
    }
}

/* What this lane holds of a key in another format than bf16: the codes of eight steps, and scale
 * and bias of the four groups that they lie in. */
template <int D, int KV_FORMAT> struct kk_few_raw {
    enum { STEPS = kk_cut<D>::STEPS };
    uint2 codes[8];
    float2 by[4];

    static __device__ __forceinline__ int step(int e) {
        return kk_cut<D>::step(STEPS == 4 ? e / 4 : kk_team<D>::warp() / 8, e % STEPS);
    }
    /* keys: the page's rows, in global memory. */
    __device__ __forceinline__ kk_few_raw(const uint8_t *keys, size_t code_bytes, int j) {
        const int t = kk_tid() % 4;
        const uint8_t *at = keys + (size_t)j * kk_code_bytes<KV_FORMAT>(D);
        const uint16_t *plane = (const uint16_t *)(keys + code_bytes);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            if (KV_FORMAT == KK_CU_Q4 && e % 2)
                codes[e] = codes[e - 1]; /* a byte has a value of each step */
            else if (KV_FORMAT == KK_CU_Q4)
                codes[e] = *(const uint2 *)(at + step(e) / 2 * 32 + t * 8);
            else
                codes[e] = *(const uint2 *)(at + (4 * step(e) + t) * 8);
        }
#pragma unroll
        for (int g = 0; g < 4; g++)
            by[g] = kk_few_scale<KV_FORMAT, D>(plane, j * (D / 64) + step(2 * g) / 2);
    }
    __device__ __forceinline__ void get(float (&y)[8], int e) const {
        kk_unpack8<KV_FORMAT>(y, codes[e], e % 2, by[e / 2].x, by[e / 2].y);
    }
};
/* float32 takes too many registers to be loaded at once. */
template <int D> struct kk_few_raw<D, KK_CU_F32> {
    const float4 *at;
    __device__ __forceinline__ kk_few_raw(const uint8_t *keys, size_t, int j)
        : at((const float4 *)(keys + (size_t)j * D * 4) + kk_tid() % 4 * 2) {}
    __device__ __forceinline__ void get(float (&y)[8], int e) const {
        const float4 *x = at + kk_few_raw<D, KK_CU_Q8>::step(e) * 8;
        *(float4 *)y = x[0];
        *(float4 *)(y + 4) = x[1];
    }
};

/* kk_few_keys for other formats: K of all chains that this warp computes as bf16, rebuilt from V
 * where K = V; then V goes to shared memory, which needs the same values.  last: the last position
 * that has angles. */
template <int D, bool EQ, int KV_FORMAT>
__device__ __forceinline__ void kk_few_unpack_keys(uint4 *k, const kk_cu_attend &t,
                                                   const uint8_t *keys, int base, int last,
                                                   char *values) {
    enum { STEPS = kk_cut<D>::STEPS, HALF = STEPS / 2 };
    const int tid = kk_tid(), j = tid / 32 % 8 * 8 + tid % 32 / 4;
    const kk_few_raw<D, KV_FORMAT> raw(keys, t.slot.code_bytes, j);
    const float *cs = EQ ? t.rope_pos + (size_t)min(base + j, last) * 2 * (size_t)t.n_rot : NULL;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int e = i / HALF * STEPS + i % HALF;
        const int piece = 4 * kk_few_raw<D, KK_CU_Q8>::step(e) + tid % 4;
        float lo[8], hi[8];
        raw.get(lo, e);
        raw.get(hi, e + HALF);
        if (EQ) {
            *kk_few_piece<D>(values, j, piece) = kk_narrow(lo);
            *kk_few_piece<D>(values, j, piece + D / 16) = kk_narrow(hi);
            kk_rebuild<true>(lo, hi, t.k_norm, cs, t.n_rot, piece * 8, D);
        }
        k[e] = kk_narrow(lo);
        k[e + HALF] = kk_narrow(hi);
    }
}

/* ---- units --------------------------------------------------------------------------------- */

/* The first column of a warp in a pass: V is read in two passes, to limit registers. */
template <int D> __device__ __forceinline__ int kk_few_column(int pass) {
    const int warp = kk_team<D>::warp();
    return D == 256 ? (warp + 8 * pass) * 8 * kk_cut<D>::NT : warp * 8 * kk_cut<D>::NT + 2 * pass;
}

/* Whether a value of this warp is not finite. */
__device__ __forceinline__ bool kk_few_odd(const uint32_t (&v)[16]) {
    uint32_t odd = 0;
#pragma unroll
    for (int e = 0; e < 16; e++) odd |= (v[e] & 0x7f807f80u) + 0x00800080u;
    return __any_sync(0xffffffffu, (odd & 0x80008000u) != 0);
}

/* Tiles of queries of a K/V head. */
template <int D> __device__ __forceinline__ int kk_few_tiles(int rows) {
    return (rows * kk_team<D>::GROUP + kk_team<D>::TILE - 1) / kk_team<D>::TILE;
}

/* A walk over the units of all sessions, in ascending order. */
template <int D, bool MANY> struct kk_few_walk {
    kk_few f;           /* the session of the current unit */
    int g, first, last; /* its index; its units are [first, last) */

    static __device__ __forceinline__ int units(const kk_few &f) {
        return f.pages * kk_team<D>::KV * kk_few_tiles<D>(f.rows);
    }
    __device__ __forceinline__ kk_few_walk(const kk_cu_attend &t, const kk_few_group *groups) {
        f = kk_few_of(t, groups[0]);
        g = first = 0;
        last = units(f);
    }
    /* Goes on to the session of unit i; false: there is none. */
    __device__ __forceinline__ bool seek(const kk_cu_attend &t, const kk_few_group *groups, int i) {
#pragma unroll 1
        while (MANY && i >= last && ++g < t.rows.tiles) {
            f = kk_few_of(t, groups[g]);
            first = last;
            last += units(f);
        }
        return i < last;
    }
};

/* Prefetches V (which: 0) or K (which: 1, not where K = V) of unit i of the walk to L2, by one
 * thread; once per page, where several tiles of queries read it. */
template <int D, bool MANY>
__device__ __forceinline__ void kk_prefetch_unit(const kk_cu_attend &t,
                                                 const kk_few_walk<D, MANY> &w, int i, int which) {
    const int tiles = kk_few_tiles<D>(w.f.rows), at = (i - w.first) / tiles;
    if ((i - w.first) % tiles || (which && D == 512)) return;
    const uint8_t *head = t.rows.pages[w.f.table + w.f.page + at / kk_team<D>::KV] +
                          (size_t)(at % kk_team<D>::KV) * t.slot.head_bytes +
                          (which ? t.slot.k_off : t.slot.v_off);
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(head),
                 "r"((uint32_t)t.slot.head_bytes)
                 : "memory");
#else
    (void)head;
#endif
}

template <int D, bool MANY>
__device__ __forceinline__ void kk_prefetch_first(const kk_cu_attend &t,
                                                  const kk_few_group *groups) {
    const int i = kk_bid() + kk_tid() / 2 * (int)gridDim.x;
    kk_few_walk<D, MANY> w(t, groups);
    if (w.seek(t, groups, i)) kk_prefetch_unit(t, w, i, kk_tid() % 2);
}

/* Prefetches this block's first two units to L2, before q, k and v are complete. */
template <bool MANY>
__device__ __forceinline__ void kk_prefetch_few(const kk_cu_attend &t, const kk_few_group *groups) {
    if (kk_tid() >= 4) return;
    if (t.slot.head_dim == 512)
        kk_prefetch_first<512, MANY>(t, groups);
    else
        kk_prefetch_first<256, MANY>(t, groups);
}

/* The first key of the page that a row at position `at` sees. */
__device__ __forceinline__ int kk_few_sees(const kk_cu_attend &t, int at, int base) {
    return max(kk_few_from(t, at) - base, 0);
}

/* One unit: a page, a K/V head and the tile of queries from q0 on.  index: of the page among those
 * that the session sees; staged: D * 128 bytes of shared memory for V in other formats than
 * bf16. */
template <int D, bool EQ, int KV_FORMAT>
__device__ __forceinline__ void kk_few_unit(const kk_cu_store &s, const kk_cu_attend &t,
                                            const kk_few &f, int index, int kv, int q0, char *smem,
                                            char *staged) {
    using cut = kk_cut<D>;
    using team = kk_team<D>;
    enum { GROUP = team::GROUP };
    float *score = (float *)(smem + team::TILE * cut::PITCH);
    const int base = (f.page + index) * KK_PAGE;
    uint8_t *head = t.rows.pages[f.table + f.page + index] + (size_t)kv * t.slot.head_bytes;
    const int end =
        min(f.pos + f.rows - base, (int)KK_PAGE); /* end of the keys that some row sees */
    const int n = min((int)team::TILE, f.rows * GROUP - q0);
    const int key = max(f.pos - base, 0), fresh = max(end - key, 0);
    constexpr bool PLAIN = KV_FORMAT == KK_CU_BF16;
    kk_few_heads<D, EQ, KV_FORMAT>(s, f, kv, q0, n, smem, head, key, base, fresh);
    team::sync();
    uint4 k[8];
    if (PLAIN) {
        kk_few_keys<D>(k, head + (EQ ? t.slot.v_off : t.slot.k_off));
        if (EQ) kk_few_rebuild<D>(k, t, base);
    } else {
        if (!EQ && KV_FORMAT == KK_CU_F32)
            kk_few_round<D>(staged, head + t.slot.v_off);
        else if (!EQ)
            kk_few_unpack<D, KV_FORMAT>(staged, head + t.slot.v_off, t.slot.code_bytes);
        kk_few_unpack_keys<D, EQ, KV_FORMAT>(k, t, head + (EQ ? t.slot.v_off : t.slot.k_off), base,
                                             f.pos + f.rows - 1, staged);
    }
    kk_few_scores<D>(score, k, smem, t.scale);
    uint32_t v[16];
    if (PLAIN) /* issued before the softmax */
        kk_few_values<D>(v, head + t.slot.v_off, kk_few_column<D>(0));
    const int warp = team::warp(), row = (q0 + warp) / GROUP;
    if (warp < n)
        kk_few_softmax(score + warp * KK_SCORE_PITCH, kk_few_sees(t, f.pos + row, base),
                       min(f.pos + row + 1 - base, (int)KK_PAGE),
                       kk_few_part(t, D, f.row + row, kv * GROUP + (q0 + warp) % GROUP, index));
    team::sync();
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        const int column = kk_few_column<D>(pass);
        if (!PLAIN)
            kk_few_staged<D>(v, staged, column);
        else if (pass)
            kk_few_values<D>(v, head + t.slot.v_off, column);
        /* Where a value is not finite, rows are computed one at a time. */
        const bool careful = f.rows > 1 && kk_few_odd(v);
        const int last = careful ? (q0 + n - 1) / GROUP : 0;
#pragma unroll 1
        for (int r = careful ? q0 / GROUP : 0; r <= last; r++) {
            float o[2][4];
            const int lo = kk_few_sees(t, f.pos + r, base);
            kk_few_sums<(team::TILE > 8)>(o, v, (const char *)score, lo,
                                          careful ? max(lo, min(f.pos + r + 1 - base, (int)KK_PAGE))
                                                  : end);
            kk_few_keep<D>(o, t, f, kv, index, q0, n, careful ? r : -1, column);
        }
    }
    team::sync(); /* q and scores may be overwritten */
}

/* Computes this block's units; results go to the parts.  A page is read again for every tile of
 * queries, because registers are scarcer than bandwidth, and every tile stores the new rows
 * redundantly, so that none waits for another.  Several sessions have more units than a block
 * prefetched: each prefetches the one after the next. */
template <int D, bool EQ, bool MANY, int KV_FORMAT>
__device__ __forceinline__ void kk_attend_few(const kk_cu_store &s, const kk_cu_attend &t,
                                              const kk_few_group *groups, char *smem,
                                              char *staged) {
    using team = kk_team<D>;
    const int stride = 16 / team::WARPS * (int)gridDim.x;
    kk_few_walk<D, MANY> w(t, groups);
    smem += team::team() * team::SMEM;
    if (KV_FORMAT != KK_CU_BF16) staged += team::team() * KK_PAGE * D * 2;
#pragma unroll 1
    for (int i = kk_bid() + team::team() * (int)gridDim.x; w.seek(t, groups, i); i += stride) {
        if (MANY && kk_tid() % (team::WARPS * 32) < 2) {
            const int later = i + 2 / (16 / team::WARPS) * stride;
            kk_few_walk<D, MANY> next = w;
            if (next.seek(t, groups, later)) kk_prefetch_unit(t, next, later, kk_tid() % 2);
        }
        const int tiles = kk_few_tiles<D>(w.f.rows), at = (i - w.first) / tiles;
        kk_few_unit<D, EQ, KV_FORMAT>(s, t, w.f, at / team::KV, at % team::KV,
                                      ((i - w.first) - at * tiles) * team::TILE, smem, staged);
    }
}

/* Merges the pages of one span among those that a row sees, [first, end). Lane k of eight reads
 * page k's m and l, all lanes their column of every page.  page0: the page of the first part. */
__device__ __forceinline__ kk_fold kk_few_span(const float *part, size_t stride, int column,
                                               int span, int first, int end, int page0) {
    const int lane = kk_tid() % 32;
    const int mine = span + lane % KK_SPAN;
    float2 ml = make_float2(-INFINITY, 0);
    if (mine >= first && mine < end)
        ml = __ldcg((const float2 *)(part + (size_t)(mine - page0) * stride));
    float o[KK_SPAN];
#pragma unroll
    for (int k = 0; k < KK_SPAN; k++) {
        const int page = min(max(span + k, first), end - 1) - page0;
        o[k] = __ldcg(part + (size_t)page * stride + 4 + column);
    }
    const kk_span_scan scan = kk_scan_span(ml.x, lane);
    kk_fold one = {__shfl_sync(0xffffffffu, scan.top, KK_SPAN - 1), 0, 0};
#pragma unroll
    for (int k = 0; k < KK_SPAN; k++) {
        const float a = __shfl_sync(0xffffffffu, scan.keep, k);
        const float b = __shfl_sync(0xffffffffu, scan.by, k);
        const float l = __shfl_sync(0xffffffffu, ml.y, k);
        if (span + k < first || span + k >= end) continue;
        one.l = __fmaf_rn(l, b, __fmul_rn(one.l, a));
        one.o = __fmaf_rn(o[k], b, __fmul_rn(one.o, a));
    }
    return one;
}

/* Stores a merged column as bf16 in the output projection's input row. */
__device__ __forceinline__ void kk_few_put(const kk_cu_attend &t, int row, int column,
                                           const kk_fold &all) {
    const float y = __fadd_rn(__fmul_rn(all.o, __fdiv_rn(1.0f, all.l)), 0.0f);
    t.out_bf16[(size_t)row * (size_t)t.bf16_pitch + (size_t)column] = kk_dbf16(y);
}

/* Merges the pages of all rows and heads, one warp per 32 columns.  One instantiation serves both
 * head sizes, to fit the instruction cache.  group_of: the session of a row, where there are
 * several. */
template <bool MANY>
__device__ __forceinline__ void kk_combine_few(const kk_cu_attend &t, const kk_few_group *groups,
                                               const uint8_t *group_of, int rows) {
    const int dim = t.slot.head_dim;
    const int lane = kk_tid() % 32, chunks = dim / 32, per = chunks * KK_CU_26B_HEADS;
#pragma unroll 1
    for (int i = (int)(kk_tid() / 32) * (int)gridDim.x + kk_bid(); i < rows * per;
         i += KK_ATTEND_WARPS * (int)gridDim.x) {
        const int row = i / per, chunk = i - row * per, head = chunk / chunks;
        const kk_few_group &g = groups[MANY ? group_of[row] : 0];
        const int at = g.pos + row - g.row;
        /* The window moves with the row. */
        const int first = kk_few_from(t, at) / KK_PAGE, end = at / KK_PAGE + 1;
        const int page0 = kk_few_from(t, g.pos) / KK_PAGE;
        const float *part = kk_few_part(t, dim, row, head, 0);
        const int column = (chunk - head * chunks) * 32 + lane;
        kk_fold all = {-INFINITY, 0, 0};
#pragma unroll 1
        for (int span = first / KK_SPAN * KK_SPAN; span < end; span += KK_SPAN) {
            const kk_fold one =
                kk_few_span(part, (size_t)(dim + 4), column, span, first, end, page0);
            all.add(one.m, one.l, one.o);
        }
        kk_few_put(t, row, chunk * 32 + lane, all);
    }
}

/* kk_combine_few for a single row, where latency counts: eight warps per 32 columns, one span each.
 * smem: 6 KB. */
__device__ __forceinline__ void kk_combine_one(const kk_cu_attend &t, const kk_few_group &g,
                                               float *smem) {
    const kk_few f = kk_few_of(t, g);
    const int pos = g.pos;
    const int dim = t.slot.head_dim;
    const int lane = kk_tid() % 32, warp = kk_tid() / 32 % 8, team = kk_tid() / 256;
    const int end = pos / KK_PAGE + 1, chunks = dim / 32;
    float *mine = smem + team * 8 * 3 * 32 + lane;
#pragma unroll 1
    for (int i = kk_bid() + team * (int)gridDim.x; i < KK_CU_26B_HEADS * chunks;
         i += 2 * (int)gridDim.x) {
        const int head = i / chunks, column = (i - head * chunks) * 32 + lane;
        const float *part = kk_few_part(t, dim, 0, head, 0);
        kk_fold all = {-INFINITY, 0, 0};
#pragma unroll 1
        for (int from = f.page / KK_SPAN * KK_SPAN; from < end; from += 8 * KK_SPAN) {
            const int span = from + warp * KK_SPAN;
            if (span < end) {
                const kk_fold one =
                    kk_few_span(part, (size_t)(dim + 4), column, span, f.page, end, f.page);
                mine[(warp * 3) * 32] = one.m;
                mine[(warp * 3 + 1) * 32] = one.l;
                mine[(warp * 3 + 2) * 32] = one.o;
            }
            asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
            if (warp == 0)
#pragma unroll 1
                for (int k = 0; k < 8 && from + k * KK_SPAN < end; k++)
                    all.add(mine[(k * 3) * 32], mine[(k * 3 + 1) * 32], mine[(k * 3 + 2) * 32]);
            asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
        }
        if (warp == 0) kk_few_put(t, 0, i * 32 + lane, all);
    }
}

#endif
