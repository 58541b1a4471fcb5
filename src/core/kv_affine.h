/* kv_affine.h - K/V formats q8 and q4: 64 values as codes of 8 or 4 bits with a scale and a bias,
 * value = code * scale + bias with one rounding.
 *
 * Planes: codes, scales in f16, biases in f16.  With 4 bits, byte i of a group's codes holds value
 * i in its low nibble and value i + 32 in its high one.  Values that f16 cannot hold, or that are
 * no numbers, make the whole group NaN. */
#ifndef KK_CORE_KV_AFFINE_H
#define KK_CORE_KV_AFFINE_H

#include "core/dtype.h"
#include "core/kvformat.h"

extern const kk_kv_format_info kk_kv_q8, kk_kv_q4;

enum { KK_KV_GROUP = 64 };

typedef struct {
    uint16_t scale, bias; /* f16 */
} kk_kv_affine;

/* Scale and bias of a group whose values lie between least and most; codes go up to `top`.
 * Zeros have lost their signs, which hardware orders in ways of its own. */
static inline kk_kv_affine kk_kv_affine_of(float least, float most, float top) {
    const kk_kv_affine a = {kk_f32_f16((most - least) / top), kk_f32_f16(least)};
    const bool finite = (a.scale & 0x7c00u) != 0x7c00u && (a.bias & 0x7c00u) != 0x7c00u;
    return finite ? a : (kk_kv_affine){0, 0x7e00u};
}

#endif
