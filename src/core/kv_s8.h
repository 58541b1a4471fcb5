/* kv_s8.h - K/V format s8: 64 values as signed codes of 8 bits with one scale, value = code *
 * scale, which is exact in float.
 *
 * Planes: codes, scales in f16.  Without a bias it takes 8.25 bits per value, reads one plane less
 * than q8, and spends half of its codes where a group's values all have one sign.  Values that f16
 * cannot hold, or that are no numbers, make the whole group NaN. */
#ifndef KK_CORE_KV_S8_H
#define KK_CORE_KV_S8_H

#include "core/dtype.h"
#include "core/kvformat.h"

extern const kk_kv_format_info kk_kv_s8;

enum { KK_KV_S8_GROUP = 64, KK_KV_S8_TOP = 127 };

/* The scale, in f16, of a group whose largest magnitude is most; NaN where it has none. */
static inline uint16_t kk_kv_s8_scale(float most) {
    const uint16_t scale = kk_f32_f16(most / KK_KV_S8_TOP);
    return (scale & 0x7c00u) != 0x7c00u ? scale : (uint16_t)0x7e00u;
}

#endif
