/* kv_body.h - rounding rows to the K/V formats and reading them as floats, for kernels_body.h.
 *
 * kv_kernels has an entry per format, so that the loops of each are compiled for it alone.  A
 * format without an entry runs the plain C of its descriptor, which gives the same bits. */

#include "core/kv_affine.h"
#include "core/kv_s8.h"

typedef struct {
    int32_t lo, hi;
} row_range;

typedef struct {
    void (*put)(const float *x, int32_t n, uint8_t *head, kk_kv_place to);
    /* Rows of a page's head as floats.  Meanwhile the same rows of the next page, which lie
     * anywhere, are fetched: no hardware would guess them. */
    void (*load)(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                 row_range at);
} kv_kernel;

/* ---- f32 and bf16 ------------------------------------------------------------------------ */

static void f32_put(const float *x, int32_t n, uint8_t *head, kk_kv_place to) {
    memcpy(head + to.at[0], x, (size_t)n * sizeof *x);
}

/* Nearest even, as kk_f32_bf16; a NaN stays one. */
static void bf16_put(const float *x, int32_t n, uint8_t *head, kk_kv_place to) {
    uint16_t *y = (uint16_t *)(void *)(head + to.at[0]);
    int32_t i = 0;
    for (; i + KK_LANES <= n; i += KK_LANES) {
        const vi u = vi_from_bits(vf_load(x + i));
        const vi one = vi_set1(1), odd = vi_and(vi_shr(u, 16), one);
        /* 1 above infinity, where rounding up could make a number of a NaN. */
        const vi nan = vi_shr(vi_sub(vi_set1(0x7f800000), vi_and(u, vi_set1(0x7fffffff))), 31);
        const vi up = vi_mul(vi_add(vi_set1(0x7fff), odd), vi_xor(nan, one));
        vi_store16(y + i, vi_or(vi_shr(vi_add(u, up), 16), vi_shl(nan, 6)));
    }
    for (; i < n; i++) y[i] = kk_f32_bf16(x[i]);
}

INLINE void load_plain(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                       row_range at, size_t size) {
    const size_t d = (size_t)head_dim;
    const size_t from = (size_t)at.lo * d, n = (size_t)(at.hi - at.lo) * d;
    src += size * from;
    next += size * from;
    size_t i = 0;
    for (; i + KK_LANES <= n; i += KK_LANES) {
        const uint8_t *p = src + size * i;
        __builtin_prefetch(next + size * i, 0, 2);
        vf_store(dst + i, size == 4 ? vf_load((const float *)(const void *)p) : vf_load_bf16(p));
    }
    for (; i < n; i++)
        dst[i] = size == 4 ? kk_bits_f32(kk_le32(src + 4 * i)) : kk_bf16_f32(kk_le16(src + 2 * i));
}

static void f32_load(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                     row_range at) {
    load_plain(dst, head_dim, src, next, at, 4);
}

static void bf16_load(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                      row_range at) {
    load_plain(dst, head_dim, src, next, at, 2);
}

/* ---- q8 and q4 --------------------------------------------------------------------------- */

/* Codes, scale and bias of one group as kv_affine.c has them; top: the largest code. */
INLINE kk_kv_affine group_codes(const float *x, float top, vi code[4]) {
    const vf x0 = vf_load(x), x1 = vf_load(x + 16), x2 = vf_load(x + 32), x3 = vf_load(x + 48);
    const vf most = vf_max(vf_max(x0, x1), vf_max(x2, x3));
    const vf least = vf_min(vf_min(x0, x1), vf_min(x2, x3));
    const vf unsound = vf_add(vf_add(vf_sub(x0, x0), vf_sub(x1, x1)),
                              vf_add(vf_sub(x2, x2), vf_sub(x3, x3))); /* 0, or NaN */
    const float sound = vf_sum(unsound);
    const float low = -vf_hmax(vf_mul(least, vf_set1(-1))) + sound, high = vf_hmax(most) + sound;
    const kk_kv_affine a = kk_kv_affine_of(low, high, top);
    const float scale = kk_f16_f32(a.scale);
    const vf inverse = vf_set1(scale > 0 ? 1.0f / scale : 0), bias = vf_set1(kk_f16_f32(a.bias));
    for (int i = 0; i < 4; i++) {
        const vf steps = vf_mul(vf_sub(vf_load(x + 16 * i), bias), inverse);
        code[i] = vi_from_f(vf_min(vf_max(steps, vf_set1(0)), vf_set1(top)));
        if (!(scale > 0)) code[i] = vi_set1(0);
    }
    return a;
}

INLINE void put_affine(kk_kv_affine a, uint8_t *head, kk_kv_place to, int32_t group) {
    kk_put_le16(head + to.at[1] + 2 * group, a.scale);
    kk_put_le16(head + to.at[2] + 2 * group, a.bias);
}

static void q8_put(const float *x, int32_t n, uint8_t *head, kk_kv_place to) {
    uint8_t *codes = head + to.at[0];
    for (int32_t g = 0; g < n / KK_KV_GROUP; g++, x += KK_KV_GROUP) {
        vi code[4];
        put_affine(group_codes(x, 255, code), head, to, g);
        for (int i = 0; i < 4; i++, codes += 16) vi_store_u8(codes, code[i]);
    }
}

static void q4_put(const float *x, int32_t n, uint8_t *head, kk_kv_place to) {
    uint8_t *codes = head + to.at[0];
    for (int32_t g = 0; g < n / KK_KV_GROUP; g++, x += KK_KV_GROUP) {
        vi code[4];
        put_affine(group_codes(x, 15, code), head, to, g);
        for (int i = 0; i < 2; i++, codes += 16)
            vi_store_u8(codes, vi_or(code[i], vi_shl(code[i + 2], 4)));
    }
}

/* n f16 values, n rarely a multiple of the lanes, as floats. */
INLINE void load_f16(float *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + KK_LANES <= n; i += KK_LANES) vf_store(dst + i, vf_load_f16(src + 2 * i));
    for (; i < n; i++) dst[i] = kk_f16_f32(kk_le16(src + 2 * i));
}

INLINE void q8_values(float *dst, const uint8_t *codes, float scale, float bias) {
    const vf s = vf_set1(scale), b = vf_set1(bias);
    for (int i = 0; i < KK_KV_GROUP; i += KK_LANES)
        vf_store(dst + i, vf_fma(vf_from_i(vi_load_u8(codes + i)), s, b));
}

INLINE void q4_values(float *dst, const uint8_t *codes, float scale, float bias) {
    const affine4 a = affine4_of(scale, bias);
    const vi b0 = vi_load_u8(codes), b1 = vi_load_u8(codes + 16);
    vf_store(dst, affine4_low(a, b0));
    vf_store(dst + 16, affine4_low(a, b1));
    vf_store(dst + 32, affine4_high(a, b0));
    vf_store(dst + 48, affine4_high(a, b1));
}

/* bytes: of a group's codes, a constant where this is inlined, as is values. */
INLINE void load_affine(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                        row_range at, size_t bytes,
                        void (*values)(float *dst, const uint8_t *codes, float scale, float bias)) {
    enum { GROUPS = KK_ATTEND_CHUNK / KK_KV_GROUP };
    const size_t groups = (size_t)(head_dim / KK_KV_GROUP), first = (size_t)at.lo * groups;
    const size_t n = (size_t)(at.hi - at.lo) * groups;
    const size_t to_scale = KK_PAGE_ROWS * groups * bytes + 2 * first;
    const size_t to_bias = to_scale + 2 * KK_PAGE_ROWS * groups;
    float scale[GROUPS], bias[GROUPS];
    load_f16(scale, src + to_scale, n);
    load_f16(bias, src + to_bias, n);
    for (size_t i = 0; i < 2 * n; i += 64) {
        __builtin_prefetch(next + to_scale + i, 0, 2);
        __builtin_prefetch(next + to_bias + i, 0, 2);
    }
    for (size_t g = 0; g < n; g++, dst += KK_KV_GROUP) {
        __builtin_prefetch(next + (first + g) * bytes, 0, 2);
        values(dst, src + (first + g) * bytes, scale[g], bias[g]);
    }
}

static void q8_load(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                    row_range at) {
    load_affine(dst, head_dim, src, next, at, KK_KV_GROUP, q8_values);
}

static void q4_load(float *dst, int32_t head_dim, const uint8_t *src, const uint8_t *next,
                    row_range at) {
    load_affine(dst, head_dim, src, next, at, KK_KV_GROUP / 2, q4_values);
}

#include "backend/cpu/kv_s8_body.h"

/* ---- all formats ------------------------------------------------------------------------- */

static const kv_kernel kv_kernels[KK_KV_FORMATS] = {
    [KK_KV_BF16] = {bf16_put, bf16_load}, [KK_KV_F32] = {f32_put, f32_load},
    [KK_KV_Q8] = {q8_put, q8_load},       [KK_KV_Q4] = {q4_put, q4_load},
    [KK_KV_S8] = {s8_put, s8_load},
};

static void put(kk_kv_format f, const float *x, int32_t head_dim, uint8_t *head, int32_t row) {
    if (kv_kernels[f].put)
        kv_kernels[f].put(x, head_dim, head, kk_kv_row_place(f, head_dim, KK_PAGE_ROWS, row));
    else
        kk_kernels_reference.put(f, x, head_dim, head, row);
}

static void load_rows(float *dst, kk_kv_format f, int32_t head_dim, const uint8_t *src,
                      const uint8_t *next, row_range at) {
    if (kv_kernels[f].load)
        kv_kernels[f].load(dst, head_dim, src, next, at);
    else
        kk_kernels_reference.widen(dst, f, head_dim, src, at.lo, at.hi - at.lo);
}

static void widen(float *y, kk_kv_format f, int32_t head_dim, const uint8_t *head, int32_t lo,
                  int32_t n) {
    if (head_dim > KK_ATTEND_CHUNK) { /* no attention head is so wide: a latent may be */
        kk_kernels_reference.widen(y, f, head_dim, head, lo, n);
        return;
    }
    const int32_t most = KK_ATTEND_CHUNK / head_dim;
    for (row_range at = {lo, lo}; at.lo < lo + n; at.lo = at.hi) {
        at.hi = at.lo + most < lo + n ? at.lo + most : lo + n;
        load_rows(y + (size_t)(at.lo - lo) * (size_t)head_dim, f, head_dim, head, head, at);
    }
}
