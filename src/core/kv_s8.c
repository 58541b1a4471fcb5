/* kv_s8.c - s8 in plain C, which kernels are compared with; see kv_s8.h. */
#include "core/kv_s8.h"

#include "core/span.h"

static int8_t code_of(float x, float inverse) {
    const float steps = x * inverse;
    return (int8_t)rintf(steps > -KK_KV_S8_TOP ? (steps < KK_KV_S8_TOP ? steps : KK_KV_S8_TOP)
                                               : -KK_KV_S8_TOP);
}

static void s8_pack(const float *x, int32_t n, uint8_t *block, kk_kv_place to) {
    int8_t *code = (int8_t *)(block + to.at[0]);
    for (int32_t g = 0; g < n / KK_KV_S8_GROUP; g++) {
        float most = 0, sound = 0; /* sound stays 0 while all values are finite */
        for (int i = 0; i < KK_KV_S8_GROUP; i++) {
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
            sound += x[i] - x[i];
        }
        const uint16_t stored = kk_kv_s8_scale(most + sound);
        const float scale = kk_f16_f32(stored), inverse = scale > 0 ? 1.0f / scale : 0;
        kk_put_le16(block + to.at[1] + 2 * g, stored);
        for (int i = 0; i < KK_KV_S8_GROUP; i++) code[i] = scale > 0 ? code_of(x[i], inverse) : 0;
        x += KK_KV_S8_GROUP;
        code += KK_KV_S8_GROUP;
    }
}

static void s8_unpack(float *y, int32_t n, const uint8_t *block, kk_kv_place from) {
    const int8_t *code = (const int8_t *)(block + from.at[0]);
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *scale = block + from.at[1] + 2 * (i / KK_KV_S8_GROUP);
        y[i] = (float)code[i] * kk_f16_f32(kk_le16(scale));
    }
}

const kk_kv_format_info kk_kv_s8 = {.name = "s8",
                                    .group = KK_KV_S8_GROUP,
                                    .plane = {KK_KV_S8_GROUP, 2},
                                    .pack = s8_pack,
                                    .unpack = s8_unpack};
