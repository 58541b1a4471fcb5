/* dtype.h - how numbers of tensors are stored: element types, the quantised block types of GGUF,
 * the affine types of MLX, and the conversions between 16-bit floats and float.  K/V rows have
 * formats of their own: kvformat.h.
 *
 * A block of GGUF carries its scales.  MLX keeps an affine matrix in three tensors: codes of 4 or 8
 * bits, and beside them a scale and a bias for every 32 or 64 consecutive codes of a row, value =
 * scale * code + bias.  They are read where they lie, so that whoever holds such codes also holds
 * kk_planes. */
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
    KK_U32,
    KK_MLX4_32, /* MLX: bits of a code, codes that share a scale */
    KK_MLX4_64,
    KK_MLX8_32,
    KK_MLX8_64,
    KK_DTYPES,
} kk_dtype;

/* A block is `values` numbers in `bytes` bytes (1 value for the plain types).  Of affine types a
 * block is a group, and the bytes are those of its codes alone. */
typedef struct {
    const char *name; /* lower case, as in "q4_0" */
    int32_t values, bytes;
} kk_dtype_info;

const kk_dtype_info *kk_dtype_get(kk_dtype t);
bool kk_dtype_named(const char *name, kk_dtype *out);
/* Bytes of n values; false when n is no multiple of the block or the product overflows. */
bool kk_dtype_bytes(kk_dtype t, uint64_t n, size_t *out);
static inline bool kk_dtype_is_affine(kk_dtype t) { return t >= KK_MLX4_32 && t <= KK_MLX8_64; }
static inline bool kk_dtype_is_quant(kk_dtype t) {
    return (t >= KK_Q8_0 && t <= KK_Q6_K) || kk_dtype_is_affine(t);
}
static inline bool kk_dtype_is_integer(kk_dtype t) {
    return t == KK_I32 || t == KK_I64 || t == KK_U32;
}
static inline int32_t kk_affine_bits(kk_dtype t) {
    return t == KK_MLX4_32 || t == KK_MLX4_64 ? 4 : 8;
}
/* The affine type of so many bits and codes to a group; false: there is none. */
bool kk_affine_type(int64_t bits, int64_t group, kk_dtype *out);

/* Scales and biases of affine codes, one of each per group, in order. */
typedef struct {
    const uint8_t *scales, *biases;
    kk_dtype type; /* of both: F32, F16 or BF16 */
} kk_planes;

/* The planes from `groups` groups on. */
kk_planes kk_planes_at(kk_planes p, size_t groups);

/* Writes n values (a multiple of the block) as float.  The reference for every kernel. */
void kk_dequantize(kk_dtype t, const void *src, float *dst, size_t n);
/* The same of affine codes, whose first group is the first of the planes. */
void kk_dequantize_affine(kk_dtype t, const void *codes, kk_planes planes, float *dst, size_t n);
/* Rounds n floats to type F32, F16, BF16, Q8_0 or Q4_0, the way llama.cpp's converter does. */
void kk_quantize_row(kk_dtype t, const float *src, void *dst, size_t n);

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

#endif
