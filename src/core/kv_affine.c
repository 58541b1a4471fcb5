/* kv_affine.c - q8 and q4 in plain C, which kernels are compared with; see kv_affine.h. */
#include "core/kv_affine.h"

#include "core/span.h"

enum { HALF = KK_KV_GROUP / 2 };

static float code_of(float x, float bias, float inverse, float top) {
    const float steps = (x - bias) * inverse;
    return rintf(steps > 0 ? (steps < top ? steps : top) : 0);
}

/* One group; code: one per byte, whatever the format. */
static kk_kv_affine group_codes(const float *x, float top, uint8_t code[KK_KV_GROUP]) {
    float least = x[0], most = x[0], sound = 0; /* sound stays 0 while all values are finite */
    for (int i = 0; i < KK_KV_GROUP; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        sound += x[i] - x[i];
    }
    const kk_kv_affine a = kk_kv_affine_of(least + sound, most + sound, top);
    const float scale = kk_f16_f32(a.scale), bias = kk_f16_f32(a.bias);
    const float inverse = scale > 0 ? 1.0f / scale : 0;
    for (int i = 0; i < KK_KV_GROUP; i++)
        code[i] = scale > 0 ? (uint8_t)code_of(x[i], bias, inverse, top) : 0;
    return a;
}

static void put_affine(kk_kv_affine a, uint8_t *block, kk_kv_place to, int32_t group) {
    kk_put_le16(block + to.at[1] + 2 * group, a.scale);
    kk_put_le16(block + to.at[2] + 2 * group, a.bias);
}

static void group_values(float *y, const uint8_t code[KK_KV_GROUP], const uint8_t *block,
                         kk_kv_place from, int32_t group) {
    const float scale = kk_f16_f32(kk_le16(block + from.at[1] + 2 * group));
    const float bias = kk_f16_f32(kk_le16(block + from.at[2] + 2 * group));
    for (int i = 0; i < KK_KV_GROUP; i++) y[i] = fmaf((float)code[i], scale, bias);
}

static void q8_pack(const float *x, int32_t n, uint8_t *block, kk_kv_place to) {
    for (int32_t g = 0; g < n / KK_KV_GROUP; g++)
        put_affine(group_codes(x + g * KK_KV_GROUP, 255, block + to.at[0] + g * KK_KV_GROUP), block,
                   to, g);
}

static void q8_unpack(float *y, int32_t n, const uint8_t *block, kk_kv_place from) {
    for (int32_t g = 0; g < n / KK_KV_GROUP; g++)
        group_values(y + g * KK_KV_GROUP, block + from.at[0] + g * KK_KV_GROUP, block, from, g);
}

static void q4_pack(const float *x, int32_t n, uint8_t *block, kk_kv_place to) {
    uint8_t code[KK_KV_GROUP], *nibbles = block + to.at[0];
    for (int32_t g = 0; g < n / KK_KV_GROUP; g++, nibbles += HALF) {
        put_affine(group_codes(x + g * KK_KV_GROUP, 15, code), block, to, g);
        for (int i = 0; i < HALF; i++) nibbles[i] = (uint8_t)(code[i] | code[i + HALF] << 4);
    }
}

static void q4_unpack(float *y, int32_t n, const uint8_t *block, kk_kv_place from) {
    uint8_t code[KK_KV_GROUP];
    const uint8_t *nibbles = block + from.at[0];
    for (int32_t g = 0; g < n / KK_KV_GROUP; g++, nibbles += HALF) {
        for (int i = 0; i < HALF; i++) {
            code[i] = nibbles[i] & 15;
            code[i + HALF] = nibbles[i] >> 4;
        }
        group_values(y + g * KK_KV_GROUP, code, block, from, g);
    }
}

const kk_kv_format_info kk_kv_q8 = {.name = "q8",
                                    .group = KK_KV_GROUP,
                                    .plane = {KK_KV_GROUP, 2, 2},
                                    .pack = q8_pack,
                                    .unpack = q8_unpack};
const kk_kv_format_info kk_kv_q4 = {.name = "q4",
                                    .group = KK_KV_GROUP,
                                    .plane = {HALF, 2, 2},
                                    .pack = q4_pack,
                                    .unpack = q4_unpack};
