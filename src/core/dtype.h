/* dtype.h - how numbers are stored: element types, the quantised block types of GGUF, the packed
 * formats of K/V rows, and the conversions between 16-bit floats and float. */
#ifndef KK_CORE_DTYPE_H
#define KK_CORE_DTYPE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    KK_F32,
    KK_F16,
    KK_BF16,
    KK_Q8_0,
    KK_Q4_0,
    KK_Q5_0,
    KK_Q5_1,
    KK_Q4_K,
    KK_Q5_K,
    KK_Q6_K,
    KK_I32,
    KK_I64,
    KK_KV8, /* K/V rows alone: 64 values as 8 or 4 bits, a scale and a bias in f16 */
    KK_KV4,
    KK_DTYPES,
} kk_dtype;

/* A block is `values` numbers in `bytes` bytes (1 value for the plain types). */
typedef struct {
    const char *name; /* lower case, as in "q4_0" */
    int32_t values, bytes;
} kk_dtype_info;

const kk_dtype_info *kk_dtype_get(kk_dtype t);
/* Types that tensors of a file may have; not those of K/V rows. */
bool kk_dtype_named(const char *name, kk_dtype *out);
/* Bytes of n values; false when n is no multiple of the block or the product overflows. */
bool kk_dtype_bytes(kk_dtype t, uint64_t n, size_t *out);
static inline bool kk_dtype_is_quant(kk_dtype t) { return t >= KK_Q8_0 && t <= KK_Q6_K; }

/* Writes n values (a multiple of the block) as float; not of K/V rows.  The reference for every
 * kernel. */
void kk_dequantize(kk_dtype t, const void *src, float *dst, size_t n);
/* Rounds n floats to type F32, F16, BF16, Q8_0 or Q4_0, the way llama.cpp's converter does. */
void kk_quantize_row(kk_dtype t, const float *src, void *dst, size_t n);

/* K/V rows: 64 values as codes of 8 or 4 bits, value = code * scale + bias with one rounding.
 * With 4 bits, byte i holds value i in its low nibble and value i + 32 in its high one.  Values
 * that f16 cannot hold, or that are no numbers, make the whole group NaN. */
enum { KK_KV_GROUP = 64 };
typedef struct {
    uint16_t scale, bias; /* f16 */
} kk_kv_affine;
static inline bool kk_dtype_is_packed(kk_dtype t) { return t == KK_KV8 || t == KK_KV4; }
kk_kv_affine kk_kv_pack(kk_dtype t, const float *x, uint8_t *codes);
void kk_kv_unpack(kk_dtype t, kk_kv_affine a, const uint8_t *codes, float *x);

static inline float kk_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t kk_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float kk_bf16_f32(uint16_t h) { return kk_bits_f32((uint32_t)h << 16); }
/* Round to nearest even; a NaN stays a NaN. */
static inline uint16_t kk_f32_bf16(float f) {
    uint32_t u = kk_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float kk_f16_f32(uint16_t h);
uint16_t kk_f32_f16(float f);

/* Scale and bias of a group whose values lie between least and most; codes go up to `top`.
 * Zeros have lost their signs, which hardware orders in ways of its own. */
static inline kk_kv_affine kk_kv_affine_of(float least, float most, float top) {
    const kk_kv_affine a = {kk_f32_f16((most - least) / top), kk_f32_f16(least)};
    const bool finite = (a.scale & 0x7c00u) != 0x7c00u && (a.bias & 0x7c00u) != 0x7c00u;
    return finite ? a : (kk_kv_affine){0, 0x7e00u};
}

#endif
