/* mathf.h - scalar functions with one defined sequence of float operations.
 *
 * The vector kernels perform the same sequence per lane, so results are equal to the bit; the C
 * library's own exp may differ between machines.  Compiled without contraction: an fma happens
 * where fmaf stands and nowhere else. */
#ifndef KK_CORE_MATHF_H
#define KK_CORE_MATHF_H

#include <math.h>

#include "core/dtype.h"

#define KK_EXP_MIN (-86.0f) /* below, exp stays at its value here: 4e-38 */
#define KK_EXP_MAX 88.0f
#define KK_LOG2E 1.44269504088896341f
#define KK_LN2_HI 0.693359375f /* few bits, so that n * LN2_HI is exact */
#define KK_LN2_LO (-2.12194440054690583e-4f)

/* e^x by 2^n * e^r, |r| <= ln2 / 2, with the Taylor series to r^7 (error 5e-9). */
static inline float kk_exp(float x) {
    x = x > KK_EXP_MIN ? x : KK_EXP_MIN;
    x = x < KK_EXP_MAX ? x : KK_EXP_MAX;
    const float n = rintf(x * KK_LOG2E);
    float r = fmaf(n, -KK_LN2_HI, x);
    r = fmaf(n, -KK_LN2_LO, r);
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return kk_bits_f32(kk_f32_bits(p) + ((uint32_t)(int32_t)n << 23));
}

/* ln x of a normal x > 0 by x = 2^n * f, f in [sqrt(1/2), sqrt(2)), and the series of
 * 2 atanh(s), s = (f - 1) / (f + 1), to s^9 (error 2e-9 of the part that is not n ln 2). */
#define KK_SQRT_HALF_BITS 0x3f3504f3u
static inline float kk_log(float x) {
    const uint32_t above = kk_f32_bits(x) - KK_SQRT_HALF_BITS;
    const float n = (float)((int32_t)above >> 23);
    const float f = kk_bits_f32((above & 0x7fffffu) + KK_SQRT_HALF_BITS);
    const float s = (f - 1.0f) / (f + 1.0f), z = s * s;
    float p = 1.0f / 9;
    p = fmaf(p, z, 1.0f / 7);
    p = fmaf(p, z, 1.0f / 5);
    p = fmaf(p, z, 1.0f / 3);
    const float rest = fmaf(n, KK_LN2_LO, (s * z) * (p * 2.0f));
    return fmaf(n, KK_LN2_HI, s * 2.0f + rest);
}

/* gelu with tanh: 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
#define KK_GELU_CUBE 0.044715f
#define KK_GELU_MINUS_2U (-1.59576912160573071f) /* -2 sqrt(2/pi) */
static inline float kk_gelu(float x) {
    const float t = fmaf(x * x, KK_GELU_CUBE, 1.0f);
    return x / (1.0f + kk_exp((x * t) * KK_GELU_MINUS_2U));
}

static inline float kk_silu(float x) { return x / (1.0f + kk_exp(-x)); }

/* cap * tanh(x / cap); NaN of what is not finite, which kk_exp would make -cap or cap. */
static inline float kk_softcap(float x, float cap) {
    const float z = x / cap;
    return fmaf(x, 0.0f, cap * (1.0f - 2.0f / (kk_exp(z * 2.0f) + 1.0f)));
}

#endif
