/* kv_rows.cuh - K/V rows in pages: a head's norm and rotation (RoPE), writing a row in the slot's
 * format, reading it back, and the range of keys that a row sees.
 *
 * The store kernel and the attention kernels that store share these functions, so a stored row has
 * the same bits whichever stores it. */
#ifndef KK_CUDA_KV_ROWS_CUH
#define KK_CUDA_KV_ROWS_CUH

#include "arith.cuh"
#include "cuda_ops.h"

enum { KK_PAGE = 64 };

/* ---- one head of one row, in a warp's registers ------------------------------------------- */

/* One head of one row in a warp's registers: lane l has the values l, l + 32, ... */
template <int D> struct kk_head { float v[D / 32]; };

template <int D> __device__ __forceinline__ kk_head<D> kk_head_load(const float *x) {
    kk_head<D> h;
#pragma unroll
    for (int i = 0; i < D / 32; i++) h.v[i] = x[threadIdx.x % 32 + 32 * i];
    return h;
}

/* x / rms(x); FULL: times w (not NULL), then pairs rotated by cs.  Loads come first and without
 * branches: behind a branch the compiler serialises them. */
template <int D, bool FULL>
__device__ __forceinline__ void kk_head_norm(kk_head<D> &h, const float *w, const float *cs,
                                             int n_rot, float eps) {
    const int lane = threadIdx.x % 32;
    const float *angles = n_rot ? cs : w; /* any address that can be read */
    float weight[D / 32], c[D / 64], n[D / 64];
#pragma unroll
    for (int i = 0; FULL && i < D / 32; i++) weight[i] = w[lane + 32 * i];
#pragma unroll
    for (int i = 0; FULL && i < D / 64; i++) {
        const int at = max(0, min(lane + 32 * i, n_rot - 1));
        c[i] = angles[at];
        n[i] = angles[n_rot + at];
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) s = __fmaf_rn(h.v[i], h.v[i], s);
    s = kk_warp_sum(s);
    const float inv = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)D), eps)));
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        h.v[i] = __fmul_rn(h.v[i], inv);
        if (FULL) h.v[i] = __fmul_rn(h.v[i], weight[i]);
    }
#pragma unroll
    for (int i = 0; FULL && i < D / 64; i++) {
        const bool rotate = lane + 32 * i < n_rot;
        const float a = h.v[i], b = h.v[i + D / 64];
        h.v[i] = rotate ? __fmaf_rn(-b, n[i], __fmul_rn(a, c[i])) : a;
        h.v[i + D / 64] = rotate ? __fmaf_rn(a, n[i], __fmul_rn(b, c[i])) : b;
    }
}

/* The same for any head size; y in shared memory. */
__device__ __forceinline__ void kk_head_norm_any(float *y, const float *x, const float *w,
                                                 const float *cs, int d, int n_rot, float eps) {
    const int lane = threadIdx.x % 32;
    float s = 0;
    for (int i = lane; i < d; i += 32) s = __fmaf_rn(x[i], x[i], s);
    s = kk_warp_sum(s);
    const float inv = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)d), eps)));
    for (int i = lane; i < d; i += 32) {
        y[i] = __fmul_rn(x[i], inv);
        if (w) y[i] = __fmul_rn(y[i], w[i]);
    }
    __syncwarp();
    for (int i = lane; cs && i < n_rot; i += 32) {
        const float a = y[i], b = y[i + d / 2], c = cs[i], n = cs[n_rot + i];
        y[i] = __fmaf_rn(-b, n, __fmul_rn(a, c));
        y[i + d / 2] = __fmaf_rn(a, n, __fmul_rn(b, c));
    }
    __syncwarp();
}

/* ---- writing ------------------------------------------------------------------------------ */

/* q8 (WIDE) and q4: quantises a group of 64 values; lane l has values l and l + 32. */
template <bool WIDE>
__device__ __forceinline__ void kk_pack_group(uint8_t *codes, uint16_t *scale, uint16_t *bias,
                                              float a, float b) {
    const int lane = threadIdx.x % 32;
    const float top = WIDE ? 255.0f : 15.0f;
    float least = fminf(a, b), most = fmaxf(a, b), sound = (a - a) + (b - b);
    for (int d = 16; d > 0; d >>= 1) {
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, d));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        sound += __shfl_xor_sync(0xffffffffu, sound, d);
    }
    least = __fadd_rn(least, sound);
    most = __fadd_rn(most, sound);
    const __half hs = __float2half_rn(__fdiv_rn(__fsub_rn(most, least), top)),
                 hb = __float2half_rn(least);
    uint16_t us = __half_as_ushort(hs), ub = __half_as_ushort(hb);
    if ((us & 0x7c00) == 0x7c00 || (ub & 0x7c00) == 0x7c00) {
        us = 0;
        ub = 0x7e00;
    }
    const float s = __half2float(__ushort_as_half(us)), z = __half2float(__ushort_as_half(ub));
    const float inverse = s > 0 ? __fdiv_rn(1.0f, s) : 0.0f;
    auto code = [&](float x) -> uint32_t {
        const float steps = __fmul_rn(__fsub_rn(x, z), inverse);
        return s > 0 ? (uint32_t)rintf(steps > 0 ? (steps < top ? steps : top) : 0.0f) : 0u;
    };
    if (WIDE) {
        codes[lane] = (uint8_t)code(a);
        codes[lane + 32] = (uint8_t)code(b);
    } else {
        codes[lane] = (uint8_t)(code(a) | code(b) << 4);
    }
    if (lane == 0) {
        *scale = us;
        *bias = ub;
    }
}

template <bool WIDE, class F>
__device__ __forceinline__ void kk_put_groups(const kk_cu_slot &slot, uint8_t *base, uint8_t *at,
                                              int row, int d, F value) {
    const int groups = d / 64, bytes = WIDE ? 64 : 32;
    uint16_t *scale = (uint16_t *)(base + slot.code_bytes) + (size_t)row * groups;
#pragma unroll
    for (int g = 0; g < groups; g++)
        kk_pack_group<WIDE>(at + g * bytes, scale + g, scale + KK_PAGE * groups + g, value(2 * g),
                            value(2 * g + 1));
}

/* s8: quantises a group of 64 values; lane l has values l and l + 32. */
__device__ __forceinline__ void kk_pack_signed(uint8_t *codes, uint16_t *scale, float a, float b) {
    const int lane = threadIdx.x % 32;
    const float top = 127.0f;
    float most = fmaxf(fabsf(a), fabsf(b)), sound = (a - a) + (b - b);
    for (int d = 16; d > 0; d >>= 1) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        sound += __shfl_xor_sync(0xffffffffu, sound, d);
    }
    uint16_t us =
        __half_as_ushort(__float2half_rn(__fdiv_rn(__fadd_rn(fmaxf(most, 0), sound), top)));
    if ((us & 0x7c00) == 0x7c00) us = 0x7e00;
    const float s = __half2float(__ushort_as_half(us));
    const float inverse = s > 0 ? __fdiv_rn(1.0f, s) : 0.0f;
    auto code = [&](float x) -> uint8_t {
        const float steps = __fmul_rn(x, inverse);
        const float kept = steps > -top ? (steps < top ? steps : top) : -top;
        return s > 0 ? (uint8_t)(int)rintf(kept) : (uint8_t)0;
    };
    codes[lane] = code(a);
    codes[lane + 32] = code(b);
    if (lane == 0) *scale = us;
}

template <class F>
__device__ __forceinline__ void kk_put_signed(const kk_cu_slot &slot, uint8_t *base, uint8_t *at,
                                              int row, int d, F value) {
    const int groups = d / 64;
    uint16_t *scale = (uint16_t *)(base + slot.code_bytes) + (size_t)row * groups;
#pragma unroll
    for (int g = 0; g < groups; g++)
        kk_pack_signed(at + g * 64, scale + g, value(2 * g), value(2 * g + 1));
}

/* One warp stores one head of a row; value(i) is its lane's i-th value, number lane + 32 i.  The
 * host accepts no other format (kk_cuda_stores in cuda_plan.c). */
template <class F>
__device__ __forceinline__ void kk_put(const kk_cu_slot &slot, uint8_t *base, int row, int d,
                                       F value) {
    const int lane = threadIdx.x % 32;
    uint8_t *at = base + (size_t)row * (slot.code_bytes / KK_PAGE);
    switch (slot.format) {
    case KK_CU_F32:
#pragma unroll
        for (int i = 0; i * 32 < d; i++)
            if (i * 32 + lane < d) ((float *)at)[i * 32 + lane] = value(i);
        break;
    case KK_CU_BF16:
#pragma unroll
        for (int i = 0; i * 32 < d; i++)
            if (i * 32 + lane < d) ((uint16_t *)at)[i * 32 + lane] = kk_dbf16(value(i));
        break;
    case KK_CU_Q8: kk_put_groups<true>(slot, base, at, row, d, value); break;
    case KK_CU_Q4: kk_put_groups<false>(slot, base, at, row, d, value); break;
    case KK_CU_S8: kk_put_signed(slot, base, at, row, d, value); break;
    }
}

/* ---- reading ------------------------------------------------------------------------------ */

__device__ __forceinline__ void kk_widen(float *to, const uint4 &v) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __uint_as_float(w[i] << 16);
        to[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ uint4 kk_narrow(const float *v) {
    return make_uint4(kk_dbf16x2(v[0], v[1]), kk_dbf16x2(v[2], v[3]), kk_dbf16x2(v[4], v[5]),
                      kk_dbf16x2(v[6], v[7]));
}

/* Eight values from codes of one byte each (q8, s8), or of half a byte (q4; high: the upper
 * halves).  A byte becomes a float by its place in the mantissa of 2^23, which is exact and takes
 * two instructions of the full rate; a conversion runs at a quarter of it or less. */
template <int FORMAT>
__device__ __forceinline__ void kk_unpack8(float (&y)[8], uint2 codes, bool high, float scale,
                                           float bias) {
    uint32_t w[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (FORMAT == KK_CU_Q4) w[i] = (high ? w[i] >> 4 : w[i]) & 0x0f0f0f0fu;
        if (FORMAT == KK_CU_S8) w[i] ^= 0x80808080u; /* code + 128 */
    }
    const float zero = FORMAT == KK_CU_S8 ? 8388608.0f + 128.0f : 8388608.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float code = __fsub_rn(
            __uint_as_float(__byte_perm(w[i / 4], 0x4b000000u, 0x7440u + (uint32_t)(i % 4))), zero);
        y[i] = FORMAT == KK_CU_S8 ? __fmul_rn(code, scale) : __fmaf_rn(code, scale, bias);
    }
}

/* N (1, 2, 4 or 8) bytes of codes, aligned to N. */
template <int N>
__device__ __forceinline__ void kk_load_codes(uint32_t (&v)[2], const uint8_t *codes) {
    if (N == 8) {
        const uint2 both = *(const uint2 *)codes;
        v[0] = both.x;
        v[1] = both.y;
    } else if (N == 4) {
        v[0] = *(const uint32_t *)codes;
    } else if (N == 2) {
        v[0] = *(const uint16_t *)codes;
    } else {
        v[0] = *codes;
    }
}

/* kk_stored for s8. */
template <int N>
__device__ __forceinline__ void kk_stored_signed(float *to, const kk_cu_slot &s,
                                                 const uint8_t *head, int j, int at, int d) {
    const uint16_t *scales = (const uint16_t *)(head + s.code_bytes) + j * (d / 64) + at / 64;
    const float scale = __half2float(__ushort_as_half(*scales));
    uint32_t v[2] = {0, 0};
    kk_load_codes<N>(v, head + (size_t)j * d + at);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = __fmul_rn((float)(int8_t)(v[i / 4] >> (i % 4 * 8) & 0xff), scale);
}

/* kk_stored for q8 (WIDE) and q4. */
template <int N, bool WIDE>
__device__ __forceinline__ void kk_stored_codes(float *to, const kk_cu_slot &s, const uint8_t *head,
                                                int j, int at, int d) {
    const int groups = d / 64, g = at / 64;
    const uint16_t *scales = (const uint16_t *)(head + s.code_bytes) + j * groups + g;
    const float scale = __half2float(__ushort_as_half(scales[0]));
    const float bias = __half2float(__ushort_as_half(scales[KK_PAGE * groups]));
    const uint8_t *codes =
        WIDE ? head + (size_t)j * d + at : head + (size_t)j * (d / 2) + g * 32 + at % 32;
    uint32_t v[2] = {0, 0};
    kk_load_codes<N>(v, codes);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t code = v[i / 4] >> (i % 4 * 8) & 0xff;
        if (!WIDE) code = at % 64 < 32 ? code & 15 : code >> 4;
        to[i] = __fmaf_rn((float)code, scale, bias);
    }
}

/* Reads N (1, 2, 4 or 8) values, from a multiple of N on, of row j of a head of d values, as
 * float. */
template <int N>
__device__ __forceinline__ void kk_stored(float *to, const kk_cu_slot &s, const uint8_t *head,
                                          int j, int at, int d) {
    switch (s.format) {
    case KK_CU_F32: {
        const float *p = (const float *)head + (size_t)j * d + at;
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = p[i];
        break;
    }
    case KK_CU_BF16: {
        const uint16_t *p = (const uint16_t *)head + (size_t)j * d + at;
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = kk_dfloat(p[i]);
        break;
    }
    case KK_CU_Q8: kk_stored_codes<N, true>(to, s, head, j, at, d); break;
    case KK_CU_Q4: kk_stored_codes<N, false>(to, s, head, j, at, d); break;
    case KK_CU_S8: kk_stored_signed<N>(to, s, head, j, at, d); break;
    }
}

/* K from V: the values at .. at + 7 of a key and those half a head on (lo, hi), times k_norm, pairs
 * below n_rot rotated.  cs: the key's angles.  BRANCHES: skips pairs that are not rotated. */
template <bool BRANCHES>
__device__ __forceinline__ void kk_rebuild(float (&lo)[8], float (&hi)[8], const float *k_norm,
                                           const float *cs, int n_rot, int at, int d) {
    float c[8], s[8];
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const float4 x = *(const float4 *)(k_norm + at + e);
        const float4 y = *(const float4 *)(k_norm + at + d / 2 + e);
        lo[e] = __fmul_rn(lo[e], x.x);
        lo[e + 1] = __fmul_rn(lo[e + 1], x.y);
        lo[e + 2] = __fmul_rn(lo[e + 2], x.z);
        lo[e + 3] = __fmul_rn(lo[e + 3], x.w);
        hi[e] = __fmul_rn(hi[e], y.x);
        hi[e + 1] = __fmul_rn(hi[e + 1], y.y);
        hi[e + 2] = __fmul_rn(hi[e + 2], y.z);
        hi[e + 3] = __fmul_rn(hi[e + 3], y.w);
    }
    if ((BRANCHES || n_rot == 0) && at >= n_rot) return;
    if (n_rot % 8 == 0) {
        const float *from = cs + min(at, n_rot - 8);
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            *(float4 *)(c + i) = *(const float4 *)(from + i);
            *(float4 *)(s + i) = *(const float4 *)(from + n_rot + i);
        }
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            c[e] = at + e < n_rot ? cs[at + e] : 1.0f;
            s[e] = at + e < n_rot ? cs[n_rot + at + e] : 0.0f;
        }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float x = lo[e], y = hi[e];
        const bool rotate = at + e < n_rot;
        lo[e] = rotate ? __fmaf_rn(-y, s[e], __fmul_rn(x, c[e])) : x;
        hi[e] = rotate ? __fmaf_rn(x, s[e], __fmul_rn(y, c[e])) : y;
    }
}

/* ---- visible keys ------------------------------------------------------------------------- */

/* The keys that a row sees (attends to): [sink_from, sink) and [from, to), of which the first may
 * be empty.  Positions are below 2^31. */
struct kk_visible {
    int sink, from, to, sink_from;
    __device__ __forceinline__ bool page(int p) const {
        return p * KK_PAGE < sink || ((p + 1) * KK_PAGE > from && p * KK_PAGE < to);
    }
};

/* The stored keys that a row at position `at` sees (core/visible.h); block: that every row of the
 * group [at, end) sees.  Ranges that touch become one. */
__device__ __forceinline__ kk_visible kk_visible_at(const kk_cu_attend &a, int at, int end) {
    const int shown = a.window ? max(at - a.window + 1, 0) : 0;
    kk_visible s = {a.sink, shown, a.block ? end : at + 1, 0};
    if (a.chunk) {
        s.from = max(shown, at - at % a.chunk - a.keep);
        s.sink_from = shown;
        if (s.sink <= shown) s.sink = s.sink_from = 0;
    }
    if (s.sink >= s.from) {
        s.from = s.sink_from;
        s.sink = s.sink_from = 0;
    }
    return s;
}
__device__ __forceinline__ kk_visible kk_visible_of(const kk_cu_attend &a, const kk_cu_tile &t,
                                                    int row) {
    return kk_visible_at(a, a.block ? (int)t.group_pos : (int)t.pos + row, (int)t.group_end);
}
/* The keys that some row from `first` to `last` sees. */
__device__ __forceinline__ kk_visible kk_visible_any(const kk_visible &first,
                                                     const kk_visible &last) {
    return {max(first.sink, last.sink), first.from, last.to,
            first.sink ? first.sink_from : last.sink_from};
}

/* The visible keys within the page that starts at position base, as a bit mask. */
__device__ __forceinline__ int kk_clip(int pos, int base) {
    return min(max(pos - base, 0), (int)KK_PAGE);
}
__device__ __forceinline__ uint64_t kk_first_keys(int n) {
    return n == 0 ? 0 : ~0ull >> (KK_PAGE - n);
}
__device__ __forceinline__ uint64_t kk_keys(int from, int to, int base) {
    return kk_first_keys(kk_clip(to, base)) & ~kk_first_keys(kk_clip(from, base));
}
__device__ __forceinline__ uint64_t kk_seen(const kk_visible &s, int base) {
    return kk_keys(s.from, s.to, base) | kk_keys(s.sink_from, s.sink, base);
}

/* The pages that some row of a tile sees: [0, sinks), then from `window` on. */
struct kk_tile_pages {
    int sinks, window, n;
    __device__ __forceinline__ int at(int u) const { return u < sinks ? u : window + u - sinks; }
    __device__ __forceinline__ int unit(int page) const {
        return page < sinks ? page : page - window + sinks;
    }
    __device__ __forceinline__ int end() const { return window + n - sinks; }
};

/* The pages that rows from `first` to `last` see. */
__device__ __forceinline__ kk_tile_pages kk_pages_between(const kk_visible &first,
                                                          const kk_visible &last) {
    kk_tile_pages p;
    p.window = first.from / KK_PAGE;
    /* A later row may have a sink that is separate from its window, or one that its mask hides. */
    p.sinks = first.from == 0 ? 0 : (max(first.sink, last.sink) + KK_PAGE - 1) / KK_PAGE;
    if (p.sinks > p.window) p.sinks = p.window;
    p.n = p.sinks + (last.to + KK_PAGE - 1) / KK_PAGE - p.window;
    return p;
}
__device__ __forceinline__ kk_tile_pages kk_pages_of(const kk_cu_attend &a, const kk_cu_tile &t) {
    return kk_pages_between(kk_visible_of(a, t, 0), kk_visible_of(a, t, t.rows - 1));
}

/* A page of the tile's session.  Where sinks lie apart, page 0 is the copy that has its sink. */
__device__ __forceinline__ const uint8_t *kk_page_at(const kk_cu_attend &a, const kk_cu_tile &t,
                                                     int page) {
    if (a.sinks && page == 0) return a.sinks + t.pages / a.table * a.sink_bytes - a.slot.k_off;
    return a.rows.pages[t.pages + page];
}

/* Rows of a tile in this launch, from a.first_row on. */
__device__ __forceinline__ int kk_rows_now(const kk_cu_attend &a, const kk_cu_tile &t) {
    const int left = t.rows - a.first_row;
    return left < 0 ? 0 : left < a.rows.tile_most ? left : a.rows.tile_most;
}

/* Index of parts[tile][row][head][unit], each m, l, two unused, then o [head_dim] f32. */
__device__ __forceinline__ size_t kk_part_index(const kk_cu_attend &a, int tile, int row,
                                                int head) {
    return (size_t)((tile * a.rows.tile_most + row) * a.n_head + head) * a.rows.most_pages;
}
__device__ __forceinline__ float *kk_part(const kk_cu_attend &a, int tile, int row, int head,
                                          int unit) {
    return a.parts + (kk_part_index(a, tile, row, head) + unit) * ((size_t)a.slot.head_dim + 4);
}

#endif
