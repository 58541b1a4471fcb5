/* kvformat.c - the table of K/V formats, and the two that store plain numbers; see kvformat.h. */
#include "core/kvformat.h"

#include <string.h>
#include <strings.h>

#include "core/dtype.h"
#include "core/kv_affine.h"
#include "core/kv_s8.h"
#include "core/span.h"

/* ---- plain numbers ------------------------------------------------------------------------- */

static void f32_pack(const float *x, int32_t n, uint8_t *block, kk_kv_place to) {
    memcpy(block + to.at[0], x, (size_t)n * sizeof *x);
}

static void f32_unpack(float *y, int32_t n, const uint8_t *block, kk_kv_place from) {
    memcpy(y, block + from.at[0], (size_t)n * sizeof *y);
}

static void bf16_pack(const float *x, int32_t n, uint8_t *block, kk_kv_place to) {
    for (int32_t i = 0; i < n; i++) kk_put_le16(block + to.at[0] + 2 * i, kk_f32_bf16(x[i]));
}

static void bf16_unpack(float *y, int32_t n, const uint8_t *block, kk_kv_place from) {
    for (int32_t i = 0; i < n; i++) y[i] = kk_bf16_f32(kk_le16(block + from.at[0] + 2 * i));
}

static const kk_kv_format_info f32 = {
    .name = "f32", .group = 1, .plane = {4}, .pack = f32_pack, .unpack = f32_unpack};
static const kk_kv_format_info bf16 = {
    .name = "bf16", .group = 1, .plane = {2}, .pack = bf16_pack, .unpack = bf16_unpack};

/* ---- all formats --------------------------------------------------------------------------- */

/* By their public numbers, which saved sessions hold. */
static const kk_kv_format_info *const formats[KK_KV_FORMATS] = {
    [KK_KV_BF16] = &bf16,   [KK_KV_F32] = &f32,     [KK_KV_Q8] = &kk_kv_q8,
    [KK_KV_Q4] = &kk_kv_q4, [KK_KV_S8] = &kk_kv_s8,
};

const kk_kv_format_info *kk_kv_format_get(kk_kv_format f) {
    return (unsigned)f < KK_KV_FORMATS ? formats[f] : NULL;
}

const char *kk_kv_format_name(kk_kv_format f) {
    const kk_kv_format_info *info = kk_kv_format_get(f);
    return info ? info->name : NULL;
}

bool kk_kv_format_named(const char *name, kk_kv_format *out) {
    for (unsigned f = 0; f < KK_KV_FORMATS; f++) {
        if (strcasecmp(formats[f]->name, name) != 0) continue;
        *out = (kk_kv_format)f;
        return true;
    }
    return false;
}

/* ---- sizes --------------------------------------------------------------------------------- */

size_t kk_kv_plane_bytes(kk_kv_format f, int plane, int32_t head_dim) {
    return (size_t)(head_dim / formats[f]->group) * (size_t)formats[f]->plane[plane];
}

size_t kk_kv_row_bytes(kk_kv_format f, int32_t head_dim) {
    size_t bytes = 0;
    for (int p = 0; p < KK_KV_PLANES; p++) bytes += kk_kv_plane_bytes(f, p, head_dim);
    return bytes;
}

kk_kv_place kk_kv_row_place(kk_kv_format f, int32_t head_dim, int32_t block_rows, int32_t row) {
    kk_kv_place place;
    size_t plane_at = 0;
    for (int p = 0; p < KK_KV_PLANES; p++) {
        const size_t bytes = kk_kv_plane_bytes(f, p, head_dim);
        place.at[p] = plane_at + (size_t)row * bytes;
        plane_at += (size_t)block_rows * bytes;
    }
    return place;
}
