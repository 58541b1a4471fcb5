/* simd_neon.h - sixteen lanes as four NEON registers; see kernels_body.h for what the names mean.
 * Needs ARMv8.2 with the dot product. */
#ifndef KK_CPU_SIMD_NEON_H
#define KK_CPU_SIMD_NEON_H

#include <arm_neon.h>

#include "core/dtype.h"
#include "core/span.h"

#define KK_ROW_TILE 4
#define KK_UNPACKED_ROWS 4 /* rows that meet unpacked strips at a time */
#define KK_FLOAT_ROWS 4    /* rows a tile of floats takes at most */
#define KK_HEAD_TILE 1
#define KK_CHAINS 4      /* sums a tile of floats carries side by side */
#define KK_Q8_ZERO_LOG 0 /* sdot takes signed weights, and 0..63 are signed too */

typedef struct {
    float32x4_t v[4];
} vf;
typedef struct {
    int32x4_t v[4];
} vi;

#define F1(name, expr)                                                                             \
    static inline vf name(vf a) {                                                                  \
        for (int i = 0; i < 4; i++) a.v[i] = expr(a.v[i]);                                         \
        return a;                                                                                  \
    }
#define F2(name, expr)                                                                             \
    static inline vf name(vf a, vf b) {                                                            \
        for (int i = 0; i < 4; i++) a.v[i] = expr(a.v[i], b.v[i]);                                 \
        return a;                                                                                  \
    }
#define I2(name, expr)                                                                             \
    static inline vi name(vi a, vi b) {                                                            \
        for (int i = 0; i < 4; i++) a.v[i] = expr(a.v[i], b.v[i]);                                 \
        return a;                                                                                  \
    }
F1(vf_abs, vabsq_f32)
F1(vf_round, vrndnq_f32)
F2(vf_add, vaddq_f32)
F2(vf_sub, vsubq_f32)
F2(vf_mul, vmulq_f32)
F2(vf_div, vdivq_f32)
F2(vf_max, vmaxq_f32)
F2(vf_min, vminq_f32)
I2(vi_add, vaddq_s32)
I2(vi_sub, vsubq_s32)
I2(vi_mul, vmulq_s32)
I2(vi_and, vandq_s32)
I2(vi_or, vorrq_s32)
I2(vi_xor, veorq_s32)
#undef F1
#undef F2
#undef I2

static inline vf vf_set1(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return (vf){{v, v, v, v}};
}
static inline vf vf_load(const float *p) {
    return (vf){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
static inline vf vf_load_n(const float *p, int32_t n) {
    float t[16] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return vf_load(t);
}
static inline vf vf_held(vf a) { return a; } /* see simd_avx512.h */
static inline void vf_store(float *p, vf a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
static inline void vf_store_n(float *p, vf a, int32_t n) {
    float t[16];
    vf_store(t, a);
    memcpy(p, t, (size_t)n * sizeof *p);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    for (int i = 0; i < 4; i++) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}
static inline vf vf_fnma(vf a, vf b, vf c) {
    for (int i = 0; i < 4; i++) c.v[i] = vfmsq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}
static inline vi vi_from_f(vf a) {
    vi r;
    for (int i = 0; i < 4; i++) r.v[i] = vcvtnq_s32_f32(a.v[i]);
    return r;
}
static inline vf vf_from_i(vi a) {
    vf r;
    for (int i = 0; i < 4; i++) r.v[i] = vcvtq_f32_s32(a.v[i]);
    return r;
}
static inline vf vf_scale2(vf p, vi n) {
    for (int i = 0; i < 4; i++)
        p.v[i] = vreinterpretq_f32_s32(
            vaddq_s32(vreinterpretq_s32_f32(p.v[i]), vshlq_n_s32(n.v[i], 23)));
    return p;
}
static inline vf vf_fill_from(vf a, int32_t n, float x) {
    float t[16];
    vf_store(t, a);
    for (int32_t i = n; i < 16; i++) t[i] = x;
    return vf_load(t);
}
static inline float vf_sum(vf a) {
    const float32x4_t s4 =
        vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3])); /* 8 apart, then 4 */
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
static inline bool vf_finite(vf a, vf b) { /* all of them: no exponent is full */
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 4; i++) {
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(a.v[i])));
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(b.v[i])));
    }
    return vmaxvq_u32(most) < 0x7f800000u;
}
static inline float vf_hmax(vf a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
static inline vf vf_load_bf16(const uint8_t *p) {
    vf r;
    for (int i = 0; i < 4; i++)
        r.v[i] = vreinterpretq_f32_u32(
            vshll_n_u16(vld1_u16((const uint16_t *)(const void *)(p + 8 * i)), 16));
    return r;
}
static inline float32x4_t f16_quarter(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)p)));
}
static inline vf vf_load_f16(const uint8_t *p) {
    return (vf){{f16_quarter(p), f16_quarter(p + 8), f16_quarter(p + 16), f16_quarter(p + 24)}};
}
static inline vi vi_load_u8(const uint8_t *p) {
    const uint8x16_t b = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(b)), hi = vmovl_u8(vget_high_u8(b));
    return (vi){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi)))}};
}

static inline vi vi_set1(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return (vi){{v, v, v, v}};
}
static inline vi vi_load(const int32_t *p) {
    return (vi){{vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}};
}
static inline vi vi_shr_var(vi a, int32_t n) { /* logical */
    const int32x4_t by = vdupq_n_s32(-n);
    for (int i = 0; i < 4; i++)
        a.v[i] = vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.v[i]), by));
    return a;
}
static inline vi vi_shl_var(vi a, int32_t n) {
    const int32x4_t by = vdupq_n_s32(n);
    for (int i = 0; i < 4; i++) a.v[i] = vshlq_s32(a.v[i], by);
    return a;
}
#define vi_shr(a, n) vi_shr_var(a, n)
#define vi_shl(a, n) vi_shl_var(a, n)
static inline vi vi_sext8(vi a) {
    for (int i = 0; i < 4; i++) a.v[i] = vshrq_n_s32(vshlq_n_s32(a.v[i], 24), 24);
    return a;
}
static inline int32_t bytes_sum(const int8_t *p) {
    return vaddlvq_s8(vld1q_s8(p));
} /* the sum of 16 bytes */
static inline void vi_store8(int8_t *p, vi a) {
    int32_t t[16];
    for (int i = 0; i < 4; i++) vst1q_s32(t + 4 * i, a.v[i]);
    for (int i = 0; i < 16; i++) p[i] = (int8_t)t[i];
}
static inline void vi_store16(uint16_t *p, vi a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(a.v[i])));
}
static inline void vi_store_u8(uint8_t *p, vi a) { vi_store8((int8_t *)p, a); }
static inline vi vi_from_bits(vf a) {
    vi r;
    for (int i = 0; i < 4; i++) r.v[i] = vreinterpretq_s32_f32(a.v[i]);
    return r;
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

static inline vi dot4(vi acc, vi w, int32_t x) {
    const int8x16_t xs = vreinterpretq_s8_s32(vdupq_n_s32(x));
    for (int i = 0; i < 4; i++) acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_s32(w.v[i]), xs);
    return acc;
}
static inline vi dot4_q8(vi acc, vi w, int32_t x) { return dot4(acc, w, x); }
static inline vi q8_weights(vi w) { return w; }

static inline int32x4_t load128(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
static inline void transpose_4_rows(const uint8_t *p, size_t stride, int32x4_t out[4]) {
    const int32x4_t r0 = load128(p), r1 = load128(p + stride);
    const int32x4_t r2 = load128(p + 2 * stride), r3 = load128(p + 3 * stride);
    const int64x2_t t0 = vreinterpretq_s64_s32(vtrn1q_s32(r0, r1));
    const int64x2_t t1 = vreinterpretq_s64_s32(vtrn2q_s32(r0, r1));
    const int64x2_t t2 = vreinterpretq_s64_s32(vtrn1q_s32(r2, r3));
    const int64x2_t t3 = vreinterpretq_s64_s32(vtrn2q_s32(r2, r3));
    out[0] = vreinterpretq_s32_s64(vtrn1q_s64(t0, t2));
    out[1] = vreinterpretq_s32_s64(vtrn1q_s64(t1, t3));
    out[2] = vreinterpretq_s32_s64(vtrn2q_s64(t0, t2));
    out[3] = vreinterpretq_s32_s64(vtrn2q_s64(t1, t3));
}
static inline void load_transposed(const uint8_t *p, size_t stride, vi out[4]) {
    for (int i = 0; i < 4; i++) {
        int32x4_t t[4];
        transpose_4_rows(p + 4 * (size_t)i * stride, stride, t);
        for (int g = 0; g < 4; g++) out[g].v[i] = t[g];
    }
}
static inline vf vf_strided_f16(const uint8_t *p, size_t stride) {
    uint16_t h[16];
    for (size_t i = 0; i < 16; i++) h[i] = kk_le16(p + i * stride);
    return vf_load_f16((const uint8_t *)h);
}
static inline vf vf_strided_bf16(const uint8_t *p, size_t stride) {
    uint16_t h[16];
    for (size_t i = 0; i < 16; i++) h[i] = kk_le16(p + i * stride);
    return vf_load_bf16((const uint8_t *)h);
}
/* 32 bytes of q: those at even places, then those at odd ones. */
static inline void evens_odds(int8_t *to, const int8_t *q) {
    const int8x16x2_t v = vld2q_s8(q);
    vst1q_s8(to, v.val[0]);
    vst1q_s8(to + 16, v.val[1]);
}

#endif
