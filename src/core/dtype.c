/* dtype.c - the stored number formats: their sizes, and the exact value of every stored bit.
 *
 * The block layouts are those of GGUF, the affine ones those of MLX.  All arithmetic is in float,
 * one rounding per operation in the order the format defines (scale times integer, then minus or
 * plus the offset), so that another reader of the same file gets the same floats.  Kernels are
 * checked against these loops, so they stay plain. */
#include "core/dtype.h"

#include <assert.h>
#include <strings.h>

#include "core/alloc.h"
#include "core/span.h"

enum { QK = 32 };

const kk_dtype_info *kk_dtype_get(kk_dtype t) {
    static const kk_dtype_info table[KK_DTYPES] = {
        [KK_F32] = {"f32", 1, 4},           [KK_F16] = {"f16", 1, 2},
        [KK_BF16] = {"bf16", 1, 2},         [KK_Q8_0] = {"q8_0", 32, 34},
        [KK_Q4_0] = {"q4_0", 32, 18},       [KK_Q5_0] = {"q5_0", 32, 22},
        [KK_Q5_1] = {"q5_1", 32, 24},       [KK_Q4_K] = {"q4_k", 256, 144},
        [KK_Q5_K] = {"q5_k", 256, 176},     [KK_Q6_K] = {"q6_k", 256, 210},
        [KK_I32] = {"i32", 1, 4},           [KK_I64] = {"i64", 1, 8},
        [KK_U32] = {"u32", 1, 4},           [KK_MLX4_32] = {"mlx4_32", 32, 16},
        [KK_MLX4_64] = {"mlx4_64", 64, 32}, [KK_MLX8_32] = {"mlx8_32", 32, 32},
        [KK_MLX8_64] = {"mlx8_64", 64, 64},
    };
    return &table[t];
}

bool kk_dtype_named(const char *name, kk_dtype *out) {
    for (int t = 0; t < KK_DTYPES; t++) {
        if (strcasecmp(kk_dtype_get((kk_dtype)t)->name, name) == 0) {
            *out = (kk_dtype)t;
            return true;
        }
    }
    return false;
}

bool kk_dtype_bytes(kk_dtype t, uint64_t n, size_t *out) {
    const kk_dtype_info *info = kk_dtype_get(t);
    const uint64_t per = (uint64_t)info->values;
    return n % per == 0 && kk_mul((size_t)(n / per), (size_t)info->bytes, out);
}

bool kk_affine_type(int64_t bits, int64_t group, kk_dtype *out) {
    for (int t = KK_MLX4_32; t <= KK_MLX8_64; t++) {
        *out = (kk_dtype)t;
        if (kk_affine_bits(*out) == bits && kk_dtype_get(*out)->values == group) return true;
    }
    return false;
}

/* ---- 16-bit floats ---------------------------------------------------------------------- */

float kk_f16_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exp = (h >> 10) & 0x1fu, frac = h & 0x3ffu;
    if (exp == 0x1f) { /* infinity, or a NaN, made quiet as hardware does */
        const uint32_t quiet = frac ? 0x400000u : 0;
        return kk_bits_f32(sign | 0x7f800000u | frac << 13 | quiet);
    }
    if (exp != 0) return kk_bits_f32(sign | (exp + 112) << 23 | frac << 13);
    const float tiny = (float)frac * 0x1p-24f; /* zero or subnormal: exact in float */
    return sign ? -tiny : tiny;
}

uint16_t kk_f32_f16(float f) {
    const uint32_t u = kk_f32_bits(f);
    const uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and up round to infinity */
    if (mag < 0x38800000u) {
        /* Below 2^-14: adding 0.5 makes the float's last bit worth 2^-24, the step of f16
         * subnormals, so that the adder does the rounding to nearest even. */
        const float rounded = kk_bits_f32(mag) + 0.5f;
        return (uint16_t)(sign | (kk_f32_bits(rounded) - 0x3f000000u));
    }
    const uint32_t rebiased = mag - (112u << 23);
    return (uint16_t)(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
}

/* ---- from stored to float --------------------------------------------------------------- */

static float f16_at(const uint8_t *p) { return kk_f16_f32(kk_le16(p)); }

static void q8_0_block(const uint8_t *b, float *y) {
    const float d = f16_at(b);
    for (int i = 0; i < QK; i++) y[i] = d * (float)(int8_t)b[2 + i];
}

/* Byte i holds value i in its low nibble and value i + 16 in its high one. */
static void q4_0_block(const uint8_t *b, float *y) {
    const float d = f16_at(b);
    const uint8_t *q = b + 2;
    for (int i = 0; i < QK / 2; i++) {
        y[i] = (float)((q[i] & 15) - 8) * d;
        y[i + QK / 2] = (float)((q[i] >> 4) - 8) * d;
    }
}

/* The fifth bits of all 32 values stand in one word before the nibbles. */
static void q5_integers(const uint8_t *high, const uint8_t *q, int *x) {
    const uint32_t bits = kk_le32(high);
    for (int i = 0; i < QK / 2; i++) {
        x[i] = (q[i] & 15) | (int)(((bits >> i) & 1u) << 4);
        x[i + QK / 2] = (q[i] >> 4) | (int)(((bits >> (i + QK / 2)) & 1u) << 4);
    }
}

static void q5_0_block(const uint8_t *b, float *y) {
    int x[QK];
    const float d = f16_at(b);
    q5_integers(b + 2, b + 6, x);
    for (int i = 0; i < QK; i++) y[i] = (float)(x[i] - 16) * d;
}

static void q5_1_block(const uint8_t *b, float *y) {
    int x[QK];
    const float d = f16_at(b), m = f16_at(b + 2);
    q5_integers(b + 4, b + 8, x);
    for (int i = 0; i < QK; i++) {
        const float scaled = (float)x[i] * d;
        y[i] = scaled + m;
    }
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each lie in the low
 * bits of bytes 0-3 and 4-7; the rest have their low nibbles in bytes 8-11 and their top two
 * bits above the first ones. */
static void k_scale_min(const uint8_t *s, int j, float *scale, float *min) {
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *min = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (float)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* Q4_K and Q5_K: eight runs of 32 values; runs 2k and 2k + 1 share 32 bytes of nibbles, and the
 * fifth bit of run j is bit j of the byte in high (NULL: Q4_K). */
static void k_block(const uint8_t *b, const uint8_t *high, const uint8_t *nibbles, float *y) {
    const float d = f16_at(b), dmin = f16_at(b + 2);
    for (int run = 0; run < 8; run++) {
        float scale, min;
        k_scale_min(b + 4, run, &scale, &min);
        const float step = d * scale, low = dmin * min;
        const uint8_t *q = nibbles + (run / 2) * 32;
        for (int i = 0; i < 32; i++) {
            int x = run % 2 ? q[i] >> 4 : q[i] & 15;
            if (high) x += ((high[i] >> run) & 1) << 4;
            const float scaled = step * (float)x;
            y[run * 32 + i] = scaled - low;
        }
    }
}

static void q4_k_block(const uint8_t *b, float *y) { k_block(b, NULL, b + 16, y); }
static void q5_k_block(const uint8_t *b, float *y) { k_block(b, b + 16, b + 48, y); }

/* Two halves of 128 values; in each, run j of 32 takes nibbles from 32 bytes of low bits (runs
 * 0, 1 low; 2, 3 high) and two more bits at 2j from the byte in high; a signed scale per 16. */
static void q6_k_block(const uint8_t *b, float *y) {
    const float d = f16_at(b + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
        const uint8_t *scales = b + 192 + half * 8;
        for (int i = 0; i < 128; i++) {
            const int run = i / 32, at = i % 32;
            const uint8_t byte = low[at + 32 * (run % 2)];
            const int nibble = run < 2 ? byte & 15 : byte >> 4;
            const int x = (nibble | ((high[at] >> (2 * run)) & 3) << 4) - 32;
            const float step = d * (float)(int8_t)scales[i / 16];
            y[half * 128 + i] = step * (float)x;
        }
    }
}

static void dequantize_plain(kk_dtype t, const uint8_t *src, float *dst, size_t n) {
    if (t == KK_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    switch (t) {
    case KK_F16:
        for (size_t i = 0; i < n; i++) dst[i] = f16_at(src + 2 * i);
        break;
    case KK_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = kk_bf16_f32(kk_le16(src + 2 * i));
        break;
    case KK_I32:
        for (size_t i = 0; i < n; i++) dst[i] = (float)(int32_t)kk_le32(src + 4 * i);
        break;
    case KK_U32:
        for (size_t i = 0; i < n; i++) dst[i] = (float)kk_le32(src + 4 * i);
        break;
    default:
        for (size_t i = 0; i < n; i++) dst[i] = (float)(int64_t)kk_le64(src + 8 * i);
        break;
    }
}

void kk_dequantize(kk_dtype t, const void *src, float *dst, size_t n) {
    static void (*const block[KK_DTYPES])(const uint8_t *, float *) = {
        [KK_Q8_0] = q8_0_block, [KK_Q4_0] = q4_0_block, [KK_Q5_0] = q5_0_block,
        [KK_Q5_1] = q5_1_block, [KK_Q4_K] = q4_k_block, [KK_Q5_K] = q5_k_block,
        [KK_Q6_K] = q6_k_block,
    };
    const kk_dtype_info *info = kk_dtype_get(t);
    const size_t per = (size_t)info->values;
    assert(n % per == 0 && !kk_dtype_is_affine(t));
    if (!block[t]) {
        dequantize_plain(t, src, dst, n);
        return;
    }
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i += per, p += info->bytes) block[t](p, dst + i);
}

kk_planes kk_planes_at(kk_planes p, size_t groups) {
    const size_t bytes = groups * (size_t)kk_dtype_get(p.type)->bytes;
    return (kk_planes){p.scales + bytes, p.biases + bytes, p.type};
}

/* Words of 32 bits hold codes from their lowest bits up, and are little-endian: so bytes hold them
 * in the same order. */
void kk_dequantize_affine(kk_dtype t, const void *codes, kk_planes planes, float *dst, size_t n) {
    const uint8_t *q = codes;
    const size_t group = (size_t)kk_dtype_get(t)->values;
    const bool nibbles = kk_affine_bits(t) == 4;
    assert(n % group == 0 && kk_dtype_is_affine(t));
    for (size_t i = 0; i < n; i += group, planes = kk_planes_at(planes, 1)) {
        float scale, bias;
        dequantize_plain(planes.type, planes.scales, &scale, 1);
        dequantize_plain(planes.type, planes.biases, &bias, 1);
        for (size_t k = i; k < i + group; k++) {
            const int code = nibbles ? (q[k / 2] >> (k % 2 * 4)) & 15 : q[k];
            const float scaled = scale * (float)code;
            dst[k] = scaled + bias;
        }
    }
}

/* ---- from float to stored --------------------------------------------------------------- */

/* Truncates towards zero; what is no small number (a NaN came in) becomes 0, because the cast
 * alone would be undefined. */
static int small_int(float f) { return (int)(fabsf(f) < 1024.0f ? f : 0.0f); }

/* To the nearest integer, halves away from zero, without a call per value. */
static int small_round(float f) {
    const int whole = small_int(f);
    const float rest = f - (float)whole; /* exact */
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

static void put16(uint8_t *p, uint16_t v) { memcpy(p, &v, sizeof v); }

/* The bits of the largest magnitude.  Magnitudes order as their bits do, and a NaN above them
 * all: it ends up in the scale, where a check of the file finds it. */
static uint32_t largest_bits(const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < QK; i++) {
        const uint32_t bits = kk_f32_bits(x[i]) & 0x7fffffffu;
        if (bits > most) most = bits;
    }
    return most;
}

/* The largest magnitude becomes 127. */
static void q8_0_pack(const float *x, uint8_t *b) {
    const float d = kk_bits_f32(largest_bits(x)) / 127.0f;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    put16(b, kk_f32_f16(d));
    for (int i = 0; i < QK; i++) {
        const float scaled = x[i] * inverse;
        b[2 + i] = (uint8_t)small_round(scaled);
    }
}

/* The first value of largest magnitude, with its sign, becomes -8: of the 16 steps one more lies
 * on that side of zero. */
static void q4_0_pack(const float *x, uint8_t *b) {
    const uint32_t most = largest_bits(x);
    int at = 0;
    while ((kk_f32_bits(x[at]) & 0x7fffffffu) != most) at++;
    const float d = x[at] / -8.0f;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    put16(b, kk_f32_f16(d));
    int q[QK];
    for (int i = 0; i < QK; i++) {
        const float scaled = x[i] * inverse;
        const int steps = small_int(scaled + 8.5f);
        q[i] = steps > 15 ? 15 : steps < 0 ? 0 : steps;
    }
    for (int i = 0; i < QK / 2; i++) b[2 + i] = (uint8_t)(q[i] | q[i + QK / 2] << 4);
}

void kk_quantize_row(kk_dtype t, const float *src, void *dst, size_t n) {
    uint8_t *p = dst;
    switch (t) {
    case KK_F32: memcpy(p, src, n * sizeof *src); break;
    case KK_F16:
        for (size_t i = 0; i < n; i++) put16(p + 2 * i, kk_f32_f16(src[i]));
        break;
    case KK_BF16:
        for (size_t i = 0; i < n; i++) put16(p + 2 * i, kk_f32_bf16(src[i]));
        break;
    case KK_Q8_0:
        assert(n % QK == 0);
        for (size_t i = 0; i < n; i += QK, p += 34) q8_0_pack(src + i, p);
        break;
    case KK_Q4_0:
        assert(n % QK == 0);
        for (size_t i = 0; i < n; i += QK, p += 18) q4_0_pack(src + i, p);
        break;
    default: assert(false && "no such quantiser"); break;
    }
}
