/* kv_s8_body.h - K/V format s8 (core/kv_s8.h), for kv_body.h. */

static void s8_put(const float *x, int32_t n, uint8_t *head, kk_kv_place to) {
    int8_t *codes = (int8_t *)(head + to.at[0]);
    for (int32_t g = 0; g < n / KK_KV_S8_GROUP; g++, x += KK_KV_S8_GROUP) {
        vf most = vf_set1(0), unsound = vf_set1(0); /* 0, or NaN */
        for (int i = 0; i < KK_KV_S8_GROUP; i += KK_LANES) {
            const vf v = vf_load(x + i);
            most = vf_max(most, vf_abs(v));
            unsound = vf_add(unsound, vf_sub(v, v));
        }
        const uint16_t stored = kk_kv_s8_scale(vf_hmax(most) + vf_sum(unsound));
        const float scale = kk_f16_f32(stored);
        const vf inverse = vf_set1(scale > 0 ? 1.0f / scale : 0), top = vf_set1(KK_KV_S8_TOP);
        kk_put_le16(head + to.at[1] + 2 * g, stored);
        for (int i = 0; i < KK_KV_S8_GROUP; i += KK_LANES, codes += KK_LANES) {
            const vf steps = vf_mul(vf_load(x + i), inverse);
            const vi code = vi_from_f(vf_min(vf_max(steps, vf_set1(-KK_KV_S8_TOP)), top));
            vi_store8(codes, scale > 0 ? code : vi_set1(0));
        }
    }
}

/* Sixteen signed codes. */
INLINE vf s8_codes(const uint8_t *p) {
    const vi sign = vi_set1(128);
    return vf_from_i(vi_sub(vi_xor(vi_load_u8(p), sign), sign));
}

static void s8_load(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                    row_range at) {
    enum { GROUPS = KK_ATTEND_CHUNK / KK_KV_S8_GROUP };
    const size_t groups = (size_t)(head_dim / KK_KV_S8_GROUP), first = (size_t)at.lo * groups;
    const size_t n = (size_t)(at.hi - at.lo) * groups;
    const size_t to_scale = KK_PAGE_ROWS * (size_t)head_dim + 2 * first;
    float scale[GROUPS];
    load_f16(scale, src + to_scale, n);
    for (size_t i = 0; i < 2 * n; i += 64) __builtin_prefetch(next + to_scale + i, 0, 2);
    src += first * KK_KV_S8_GROUP;
    next += first * KK_KV_S8_GROUP;
    for (size_t g = 0; g < n; g++, src += KK_KV_S8_GROUP, next += KK_KV_S8_GROUP) {
        __builtin_prefetch(next, 0, 2);
        for (int i = 0; i < KK_KV_S8_GROUP; i += KK_LANES, dst += KK_LANES)
            vf_store(dst, vf_mul(s8_codes(src + i), vf_set1(scale[g])));
    }
}
