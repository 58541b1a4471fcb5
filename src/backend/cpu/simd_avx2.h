/* simd_avx2.h - sixteen lanes as two AVX2 registers; see kernels_body.h for what the names mean.
 * Needs AVX2, FMA and F16C. */
#ifndef KK_CPU_SIMD_AVX2_H
#define KK_CPU_SIMD_AVX2_H

#include <immintrin.h>

#include "core/dtype.h"
#include "core/span.h"

#define KK_ROW_TILE 4
#define KK_UNPACKED_ROWS 4 /* rows that meet unpacked strips at a time */
#define KK_FLOAT_ROWS 4    /* rows a tile of floats takes at most */
#define KK_HEAD_TILE 1
#define KK_CHAINS 4      /* sums a tile of floats carries side by side */
#define KK_Q8_ZERO_LOG 0 /* signed weights: see dot4_q8 */

typedef struct {
    __m256 a, b; /* lanes 0-7, 8-15 */
} vf;
typedef struct {
    __m256i a, b;
} vi;

#define F2(name, intrin)                                                                           \
    static inline vf name(vf x, vf y) { return (vf){intrin(x.a, y.a), intrin(x.b, y.b)}; }
#define I2(name, intrin)                                                                           \
    static inline vi name(vi x, vi y) { return (vi){intrin(x.a, y.a), intrin(x.b, y.b)}; }
F2(vf_add, _mm256_add_ps)
F2(vf_sub, _mm256_sub_ps)
F2(vf_mul, _mm256_mul_ps)
F2(vf_div, _mm256_div_ps)
F2(vf_max, _mm256_max_ps)
F2(vf_min, _mm256_min_ps)
I2(vi_add, _mm256_add_epi32)
I2(vi_sub, _mm256_sub_epi32)
I2(vi_mul, _mm256_mullo_epi32)
I2(vi_and, _mm256_and_si256)
I2(vi_or, _mm256_or_si256)
I2(vi_xor, _mm256_xor_si256)
#undef F2
#undef I2

static inline __m256i half_mask(int32_t n) { /* lanes i < n */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vf vf_load(const float *p) {
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline vf vf_load_n(const float *p, int32_t n) {
    return (vf){_mm256_maskload_ps(p, half_mask(n)), _mm256_maskload_ps(p + 8, half_mask(n - 8))};
}
static inline vf vf_held(vf a) { return a; } /* see simd_avx512.h */
static inline void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline void vf_store_n(float *p, vf x, int32_t n) {
    _mm256_maskstore_ps(p, half_mask(n), x.a);
    _mm256_maskstore_ps(p + 8, half_mask(n - 8), x.b);
}
static inline vf vf_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline vf vf_fnma(vf x, vf y, vf z) {
    return (vf){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
static inline vf vf_abs(vf x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
static inline vf vf_round(vf x) {
    return (vf){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline vi vi_from_f(vf x) { return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline vf vf_from_i(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline vf vf_scale2(vf p, vi n) {
    return (vf){
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.a), _mm256_slli_epi32(n.a, 23))),
        _mm256_castsi256_ps(
            _mm256_add_epi32(_mm256_castps_si256(p.b), _mm256_slli_epi32(n.b, 23)))};
}
static inline vf vf_fill_from(vf x, int32_t n, float f) {
    const __m256 fill = _mm256_set1_ps(f);
    return (vf){_mm256_blendv_ps(fill, x.a, _mm256_castsi256_ps(half_mask(n))),
                _mm256_blendv_ps(fill, x.b, _mm256_castsi256_ps(half_mask(n - 8)))};
}
static inline float vf_sum(vf x) {
    const __m256 s8 = _mm256_add_ps(x.a, x.b);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static inline bool vf_finite(vf x, vf y) { /* all of them: no infinity, no NaN */
    const __m256 a = _mm256_add_ps(_mm256_sub_ps(x.a, x.a), _mm256_sub_ps(y.a, y.a));
    const __m256 b = _mm256_add_ps(_mm256_sub_ps(x.b, x.b), _mm256_sub_ps(y.b, y.b));
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) == 0;
}
static inline float vf_hmax(vf x) {
    const __m256 s8 = _mm256_max_ps(x.a, x.b);
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline __m128i load128(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
static inline __m256 bf16_half(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}
static inline vf vf_load_bf16(const uint8_t *p) { return (vf){bf16_half(p), bf16_half(p + 16)}; }
static inline vf vf_load_f16(const uint8_t *p) {
    return (vf){_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}
static inline vi vi_load_u8(const uint8_t *p) {
    const __m128i b = load128(p);
    return (vi){_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}

static inline vi vi_set1(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline vi vi_load(const int32_t *p) {
    return (vi){_mm256_loadu_si256((const __m256i *)(const void *)p),
                _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))};
}
#define vi_shr(x, n) ((vi){_mm256_srli_epi32((x).a, n), _mm256_srli_epi32((x).b, n)})
#define vi_shl(x, n) ((vi){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
static inline vi vi_shr_var(vi x, int32_t n) {
    const __m128i c = _mm_cvtsi32_si128(n);
    return (vi){_mm256_srl_epi32(x.a, c), _mm256_srl_epi32(x.b, c)};
}
static inline vi vi_shl_var(vi x, int32_t n) {
    const __m128i c = _mm_cvtsi32_si128(n);
    return (vi){_mm256_sll_epi32(x.a, c), _mm256_sll_epi32(x.b, c)};
}
static inline vi vi_sext8(vi x) {
    return (vi){_mm256_srai_epi32(_mm256_slli_epi32(x.a, 24), 24),
                _mm256_srai_epi32(_mm256_slli_epi32(x.b, 24), 24)};
}
/* The sum of 16 signed bytes; offset to unsigned, one instruction adds them. */
static inline int32_t bytes_sum(const int8_t *p) {
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i s = _mm_sad_epu8(_mm_xor_si128(b, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}
/* The low 16 bits of 8 lanes, in order. */
static inline __m128i low16(__m256i x) {
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
                                          0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i w = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, pick), 0x08);
    return _mm256_castsi256_si128(w);
}
static inline void vi_store16(uint16_t *p, vi x) {
    _mm_storeu_si128((__m128i *)(void *)p, low16(x.a));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), low16(x.b));
}
static inline void vi_store8(int8_t *p, vi x) { /* values fit in a byte */
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packs_epi16(low16(x.a), low16(x.b)));
}
static inline void vi_store_u8(uint8_t *p, vi x) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi16(low16(x.a), low16(x.b)));
}
static inline vi vi_from_bits(vf x) {
    return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}

/* Codes of 4 bits that share a scale and a bias. */
typedef struct {
    vf scale, bias;
} affine4;
static inline affine4 affine4_of(float scale, float bias) {
    return (affine4){vf_set1(scale), vf_set1(bias)};
}
static inline vf affine4_low(affine4 t, vi bytes) {
    return vf_fma(vf_from_i(vi_and(bytes, vi_set1(15))), t.scale, t.bias);
}
static inline vf affine4_high(affine4 t, vi bytes) {
    return vf_fma(vf_from_i(vi_shr(bytes, 4)), t.scale, t.bias);
}

/* Unsigned weights up to 63: pairs of products fit in 16 bits. */
static inline vi dot4(vi acc, vi w, int32_t x) {
    const __m256i xs = _mm256_set1_epi32(x), one = _mm256_set1_epi16(1);
    acc.a = _mm256_add_epi32(acc.a, _mm256_madd_epi16(_mm256_maddubs_epi16(w.a, xs), one));
    acc.b = _mm256_add_epi32(acc.b, _mm256_madd_epi16(_mm256_maddubs_epi16(w.b, xs), one));
    return acc;
}
/* Signed weights: |w| * (x with w's sign); 128 * 127 * 2 still fits in 16 bits. */
static inline __m256i madd_signed(__m256i w, __m256i x) {
    const __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_madd_epi16(p, _mm256_set1_epi16(1));
}
static inline vi dot4_q8(vi acc, vi w, int32_t x) {
    const __m256i xs = _mm256_set1_epi32(x);
    acc.a = _mm256_add_epi32(acc.a, madd_signed(w.a, xs));
    acc.b = _mm256_add_epi32(acc.b, madd_signed(w.b, xs));
    return acc;
}
static inline vi q8_weights(vi w) { return w; }

static inline __m256i load_2_rows(const uint8_t *p, size_t stride) { /* rows 0 and 4 */
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(p + 4 * stride), 1);
}
static inline void transpose_8_rows(const uint8_t *p, size_t stride, __m256i out[4]) {
    const __m256i r0 = load_2_rows(p, stride), r1 = load_2_rows(p + stride, stride);
    const __m256i r2 = load_2_rows(p + 2 * stride, stride);
    const __m256i r3 = load_2_rows(p + 3 * stride, stride);
    const __m256i t0 = _mm256_unpacklo_epi32(r0, r1), t1 = _mm256_unpackhi_epi32(r0, r1);
    const __m256i t2 = _mm256_unpacklo_epi32(r2, r3), t3 = _mm256_unpackhi_epi32(r2, r3);
    out[0] = _mm256_unpacklo_epi64(t0, t2);
    out[1] = _mm256_unpackhi_epi64(t0, t2);
    out[2] = _mm256_unpacklo_epi64(t1, t3);
    out[3] = _mm256_unpackhi_epi64(t1, t3);
}
static inline void load_transposed(const uint8_t *p, size_t stride, vi out[4]) {
    __m256i a[4], b[4];
    transpose_8_rows(p, stride, a);
    transpose_8_rows(p + 8 * stride, stride, b);
    for (int g = 0; g < 4; g++) out[g] = (vi){a[g], b[g]};
}
static inline __m128i strided_8(const uint8_t *p, size_t stride) {
    uint16_t h[8];
    for (int i = 0; i < 8; i++) h[i] = kk_le16(p + (size_t)i * stride);
    return _mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3], (short)h[4],
                          (short)h[5], (short)h[6], (short)h[7]);
}
static inline vf vf_strided_f16(const uint8_t *p, size_t stride) {
    return (vf){_mm256_cvtph_ps(strided_8(p, stride)),
                _mm256_cvtph_ps(strided_8(p + 8 * stride, stride))};
}
static inline vf vf_strided_bf16(const uint8_t *p, size_t stride) {
    const __m128i h[2] = {strided_8(p, stride), strided_8(p + 8 * stride, stride)};
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h[0]), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h[1]), 16))};
}
/* 32 bytes of q: those at even places, then those at odd ones. */
static inline void evens_odds(int8_t *to, const int8_t *q) {
    const __m256i pick = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i v =
        _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(const void *)q), pick);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(v, 0xd8));
}

#endif
