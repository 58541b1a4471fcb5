/* codes.c - see codes.h. */
#include "core/codes.h"

#include "core/span.h"

static void unpack_5th_bit(kk_codes *b, uint32_t bits, int32_t zero) {
    for (int i = 0; i < KK_CODES; i++) b->q[i] += (int32_t)((bits >> i) & 1u) * 16 - zero;
}

static void unpack_nibbles(kk_codes *b, const uint8_t *qs, int32_t zero) {
    for (int i = 0; i < 16; i++) {
        b->q[i] = (qs[i] & 15) - zero;
        b->q[i + 16] = (qs[i] >> 4) - zero;
    }
}

/* Sub-block i of a Q4_K or Q5_K super-block has a 6-bit scale and a 6-bit minimum. */
static void k_scale_min(const uint8_t *s, int i, int32_t *scale, int32_t *min) {
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | ((s[i - 4] >> 6) << 4);
        *min = (s[i + 4] >> 4) | ((s[i] >> 6) << 4);
    }
}

static void unpack_q45_k(kk_codes *b, const uint8_t *w, int i, bool five) {
    const uint8_t *scales = w + 4, *qh = w + 16, *qs = w + (five ? 48 : 16) + 32 * (i / 2);
    b->d = kk_f16_f32(kk_le16(w));
    b->m = -kk_f16_f32(kk_le16(w + 2));
    k_scale_min(scales, i, &b->scale[0], &b->min);
    b->scale[1] = b->scale[0];
    for (int k = 0; k < KK_CODES; k++) {
        b->q[k] = i % 2 ? qs[k] >> 4 : qs[k] & 15;
        if (five) b->q[k] += ((qh[k] >> i) & 1) * 16;
    }
}

static void unpack_q6_k(kk_codes *b, const uint8_t *w, int i) {
    const uint8_t *ql = w + 64 * (i / 4) + 32 * (i % 2), *qh = w + 128 + 32 * (i / 4);
    const int8_t *scales = (const int8_t *)w + 192 + 2 * i;
    b->d = kk_f16_f32(kk_le16(w + 208));
    for (int k = 0; k < KK_CODES; k++) {
        const int32_t low = (i % 4) / 2 ? ql[k] >> 4 : ql[k] & 15;
        b->q[k] = (low | (((qh[k] >> (2 * (i % 4))) & 3) << 4)) - 32;
    }
    b->scale[0] = scales[0];
    b->scale[1] = scales[1];
}

void kk_codes_read(kk_codes *b, kk_dtype t, const uint8_t *w, int32_t i) {
    const size_t bytes = (size_t)kk_dtype_get(t)->bytes;
    b->scale[0] = b->scale[1] = 1;
    b->min = 0;
    b->m = 0;
    if (t == KK_Q4_K || t == KK_Q5_K) {
        unpack_q45_k(b, w + (size_t)(i / 8) * bytes, i % 8, t == KK_Q5_K);
        return;
    }
    if (t == KK_Q6_K) {
        unpack_q6_k(b, w + (size_t)(i / 8) * bytes, i % 8);
        return;
    }
    w += (size_t)i * bytes;
    b->d = kk_f16_f32(kk_le16(w));
    if (t == KK_Q8_0)
        for (int k = 0; k < KK_CODES; k++) b->q[k] = (int8_t)w[2 + k];
    if (t == KK_Q4_0) unpack_nibbles(b, w + 2, 8);
    if (t == KK_Q5_0) {
        unpack_nibbles(b, w + 6, 0);
        unpack_5th_bit(b, kk_le32(w + 2), 16);
    }
    if (t == KK_Q5_1) {
        b->m = kk_f16_f32(kk_le16(w + 2));
        b->min = 1;
        unpack_nibbles(b, w + 8, 0);
        unpack_5th_bit(b, kk_le32(w + 4), 0);
    }
}
