/* simd_avx512.h - sixteen lanes as one AVX-512 register; see kernels_body.h for what the names
 * mean.  Needs F, BW, VL, DQ and VNNI. */
#ifndef KK_CPU_SIMD_AVX512_H
#define KK_CPU_SIMD_AVX512_H

#include <immintrin.h>

#include "core/dtype.h"
#include "core/span.h"

#define KK_ROW_TILE 8
#define KK_UNPACKED_ROWS 6 /* rows that meet unpacked strips at a time */
#define KK_FLOAT_ROWS 5    /* rows a tile of floats takes at most */
#define KK_HEAD_TILE 4
#define KK_CHAINS 16     /* sums a tile of floats carries side by side */
#define KK_Q8_ZERO_LOG 7 /* vpdpbusd wants unsigned weights: q + 128 */

typedef __m512 vf;
typedef __m512i vi;

static inline __mmask16 first_lanes(int32_t n) { return (__mmask16)((1u << n) - 1u); }

static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf vf_load_n(const float *p, int32_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
/* In a register from here on: a compiler would otherwise read memory again at every use. */
static inline vf vf_held(vf a) {
    __asm__("" : "+v"(a));
    return a;
}
static inline vi vi_held(vi a) {
    __asm__("" : "+v"(a));
    return a;
}
static inline void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline void vf_store_n(float *p, vf a, int32_t n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), a);
}
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }
static inline vf vf_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vi vi_from_f(vf a) { return _mm512_cvtps_epi32(a); }
static inline vf vf_from_i(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vf vf_scale2(vf p, vi n) { /* p * 2^n by the exponent field */
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(n, 23)));
}
/* Lanes from n on become x. */
static inline vf vf_fill_from(vf a, int32_t n, float x) {
    return _mm512_mask_blend_ps(first_lanes(n), _mm512_set1_ps(x), a);
}
static inline float vf_sum(vf a) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
/* Lane j = vf_sum(a[j]).  Each step adds halves of two registers that lie side by side, so that
 * sixteen sums cost as many additions as two alone.  Half of what a step adds lies in its place
 * already and is chosen by a mask: there are fewer ports for shuffles than for anything else. */
static inline vf fold_8(vf x, vf y) { /* lanes 0-7 of x, 8-15 of y */
    return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, x, y), _mm512_shuffle_f32x4(x, y, 0x4e));
}
static inline vf fold_4(vf x, vf y) { /* by fours: x, y, x, y */
    const vf other = _mm512_mask_blend_ps(0x0f0f, x, y);
    return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, x, y),
                         _mm512_shuffle_f32x4(other, other, 0xb1));
}
static inline vf fold_2(vf x, vf y) { /* by twos: x, y, x, ... */
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, x, y), _mm512_shuffle_ps(x, y, 0x4e));
}
static inline vf vf_sums(const vf a[16]) {
    vf u[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) u[j] = fold_4(fold_8(a[j], a[j + 8]), fold_8(a[j + 4], a[j + 12]));
    const vf v = fold_2(u[0], u[1]), w = fold_2(u[2], u[3]);
    return _mm512_add_ps(_mm512_shuffle_ps(v, w, 0x88), _mm512_shuffle_ps(v, w, 0xdd));
}
static inline bool vf_finite(vf a, vf b) { /* all of them; 0x99: NaNs and infinities */
    return (_mm512_fpclass_ps_mask(a, 0x99) | _mm512_fpclass_ps_mask(b, 0x99)) == 0;
}
static inline float vf_hmax(vf a) { return _mm512_reduce_max_ps(a); }

/* One permutation, which leaves the low halves zero, instead of a conversion and a shift. */
static inline vf vf_load_bf16(const uint8_t *p) {
    const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8,
                                           8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(
        _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, twice, _mm512_castsi256_si512(h)));
}
#define KK_BF16_SPLIT 1
/* 32 values, read once. */
static inline void vf_load_bf16_pair(const uint8_t *p, vf v[2]) {
    const __m512i lo = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8,
                                        7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    const __m512i x = vi_held(_mm512_loadu_si512(p));
    v[0] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, lo, x));
    v[1] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, hi, x));
}
/* 32 values, the even ones and the odd ones: cheaper than in order, where no lane is added to
 * another.  vf_load_any and vf_store_any are floats that take the same way. */
static inline void vf_load_bf16_any(const uint8_t *p, vf v[2]) {
    const __m512i x = vi_held(_mm512_loadu_si512(p)); /* read once */
    v[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    v[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int32_t)0xffff0000u)));
}
static inline void vf_load_any(const float *p, vf v[2]) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const vf lo = _mm512_loadu_ps(p), hi = _mm512_loadu_ps(p + 16);
    v[0] = _mm512_permutex2var_ps(lo, even, hi);
    v[1] = _mm512_permutex2var_ps(lo, odd, hi);
}
static inline void vf_store_any(float *p, const vf v[2]) {
    const __m512i lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i hi = _mm512_add_epi32(lo, _mm512_set1_epi32(8));
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(v[0], lo, v[1]));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(v[0], hi, v[1]));
}
/* The largest magnitude of 32 values, as bits; what is not finite is larger than all that is.
 * Without their signs they are compared as integers, of which one instruction finds the least of
 * eight. */
#define KK_BF16_LARGEST 1
static inline uint16_t bf16_largest(const uint8_t *p) {
    const __m512i x = _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi16(0x7fff));
    const __m256i h = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i q = _mm_max_epu16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(q, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_cvtsi128_si32(least);
}
static inline vf vf_load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vi vi_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
static inline vi vi_shr_var(vi a, int32_t n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
static inline vi vi_shl_var(vi a, int32_t n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
static inline vi vi_sext8(vi a) { return _mm512_srai_epi32(_mm512_slli_epi32(a, 24), 24); }
/* The sum of 16 signed bytes; offset to unsigned, one instruction adds them. */
static inline int32_t bytes_sum(const int8_t *p) {
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i s = _mm_sad_epu8(_mm_xor_si128(b, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}
/* Low bytes of the 16 lanes. */
static inline void vi_store8(int8_t *p, vi a) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}
static inline void vi_store16(uint16_t *p, vi a) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
}
static inline void vi_store_u8(uint8_t *p, vi a) { vi_store8((int8_t *)p, a); }
static inline vi vi_from_bits(vf a) { return _mm512_castps_si512(a); }

/* Codes of 4 bits that share a scale and a bias: there are 16 values, and a permutation looks
 * them up by the low bits of each lane. */
typedef __m512 affine4;
static inline affine4 affine4_of(float scale, float bias) {
    const __m512 code = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_fmadd_ps(code, _mm512_set1_ps(scale), _mm512_set1_ps(bias));
}
static inline vf affine4_low(affine4 t, vi bytes) { return _mm512_permutexvar_ps(bytes, t); }
static inline vf affine4_high(affine4 t, vi bytes) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), t);
}

/* acc + sum of 4 byte products per lane: weights w (unsigned, or q8: offset by 128), x the same
 * four activations in every lane. */
static inline vi dot4(vi acc, vi w, int32_t x) {
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x));
}
/* The same with activations that are broadcast already. */
#define KK_WIDE_STRIPS 1
static inline vi vi_dot4(vi acc, vi w, vi x) { return _mm512_dpbusd_epi32(acc, w, x); }
static inline vi dot4_q8(vi acc, vi w, int32_t x) { return dot4(acc, w, x); }
static inline vi q8_weights(vi w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }

/* Makes the compiler forget how p was made: it would otherwise keep sixteen row addresses across
 * the loop, more than there are registers, instead of four and three strides. */
#define FORGET(p) __asm__("" : "+r"(p))
static inline void every_4th_row(const uint8_t *p, size_t stride, const uint8_t *at[4]) {
    at[0] = p;
#pragma GCC unroll 3
    for (int i = 1; i < 4; i++) {
        at[i] = at[i - 1] + 4 * stride;
        FORGET(at[i]);
    }
}

/* 16 bytes from each of 16 rows: r[i] has rows i, 4 + i, 8 + i and 12 + i.  What bounds this is how
 * often memory is read: a broadcast under a mask, which needs no insertion, reads as much as a
 * whole register and takes as long as two inserted halves. */
static inline __m128i load128(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
static inline __m256i load_2_rows(const uint8_t *p, const uint8_t *q) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(q), 1);
}
static inline __m512i load_4_rows(const uint8_t *const at[4], size_t o) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_2_rows(at[0] + o, at[1] + o)),
                              load_2_rows(at[2] + o, at[3] + o), 1);
}
static inline void load_16_rows(const uint8_t *p, size_t stride, __m512i r[4]) {
    const uint8_t *at[4];
    every_4th_row(p, stride, at);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) r[i] = load_4_rows(at, i * stride);
}
/* Transposed: lane o of out[g] is bytes 4g..4g+3 of row o. */
static inline void load_transposed(const uint8_t *p, size_t stride, vi out[4]) {
    __m512i r[4];
    load_16_rows(p, stride, r);
    const __m512i t0 = _mm512_unpacklo_epi32(r[0], r[1]), t1 = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i t2 = _mm512_unpacklo_epi32(r[2], r[3]), t3 = _mm512_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm512_unpacklo_epi64(t0, t2);
    out[1] = _mm512_unpackhi_epi64(t0, t2);
    out[2] = _mm512_unpacklo_epi64(t1, t3);
    out[3] = _mm512_unpackhi_epi64(t1, t3);
}

/* The 16-bit value at p of each of 8 rows. */
static inline __m128i load_8_halves(const uint8_t *p, size_t stride) {
    FORGET(p);
    const uint8_t *p4 = p + 4 * stride;
    FORGET(p4);
    __m128i v = _mm_setzero_si128();
    v = _mm_insert_epi16(v, kk_le16(p), 0);
    v = _mm_insert_epi16(v, kk_le16(p + stride), 1);
    v = _mm_insert_epi16(v, kk_le16(p + 2 * stride), 2);
    v = _mm_insert_epi16(v, kk_le16(p + 3 * stride), 3);
    v = _mm_insert_epi16(v, kk_le16(p4), 4);
    v = _mm_insert_epi16(v, kk_le16(p4 + stride), 5);
    v = _mm_insert_epi16(v, kk_le16(p4 + 2 * stride), 6);
    return _mm_insert_epi16(v, kk_le16(p4 + 3 * stride), 7);
}
static inline vf vf_strided_f16(const uint8_t *p, size_t stride) {
    const __m256i lo = _mm256_castsi128_si256(load_8_halves(p, stride));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(lo, load_8_halves(p + 8 * stride, stride), 1));
}

static inline vf vf_strided_bf16(const uint8_t *p, size_t stride) {
    const __m256i lo = _mm256_castsi128_si256(load_8_halves(p, stride));
    const __m256i h = _mm256_inserti128_si256(lo, load_8_halves(p + 8 * stride, stride), 1);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* 32 bytes of q: those at even places, then those at odd ones. */
static inline void evens_odds(int8_t *to, const int8_t *q) {
    const __m256i pick = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i v =
        _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(const void *)q), pick);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(v, 0xd8));
}

/* For one row of activations against nibbles it takes fewer operations to leave the weights as they
 * were loaded, and to add up sums of four that lie side by side, than to transpose them.
 *
 * dot_nibbles: lane o is the sum of 32 products, of the nibbles at p of row o and the bytes of x,
 * and `more`.  A sum of 8 products is at most 15240, one of 16 is 30480: numbers of 16 bits. */
#define KK_DOT_NIBBLES 1
static inline __m512i add_pairs(__m512i a, __m512i b, __m512i more) {
    return _mm512_dpwssd_epi32(more, _mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
}
static inline vi dot_nibbles(const uint8_t *p, size_t stride, const int8_t *x, vi more) {
    const __m512i low = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
    const __m512i xl = _mm512_broadcast_i32x4(load128((const uint8_t *)x));
    const __m512i xh = _mm512_broadcast_i32x4(load128((const uint8_t *)x + 16));
    __m512i r[4];
    load_16_rows(p, stride, r);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i half = _mm512_dpbusd_epi32(zero, _mm512_and_si512(r[i], low), xl);
        r[i] = _mm512_dpbusd_epi32(half, _mm512_and_si512(_mm512_srli_epi32(r[i], 4), low), xh);
    }
    return add_pairs(add_pairs(r[0], r[1], zero), add_pairs(r[2], r[3], zero), more);
}

/* vf_strided_f16, four put together in an integer register: beside so few other operations the
 * ports for shuffles are what there is too little of. */
static inline int64_t load_4_halves(const uint8_t *p, size_t stride) {
    return (int64_t)((uint64_t)kk_le16(p) | (uint64_t)kk_le16(p + stride) << 16 |
                     (uint64_t)kk_le16(p + 2 * stride) << 32 |
                     (uint64_t)kk_le16(p + 3 * stride) << 48);
}
static inline vf vf_strided_f16_alone(const uint8_t *p, size_t stride) {
    const uint8_t *at[4];
    every_4th_row(p, stride, at);
    const __m128i lo = _mm_insert_epi64(_mm_cvtsi64_si128(load_4_halves(at[0], stride)),
                                        load_4_halves(at[1], stride), 1);
    const __m128i hi = _mm_insert_epi64(_mm_cvtsi64_si128(load_4_halves(at[2], stride)),
                                        load_4_halves(at[3], stride), 1);
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1));
}

#endif
