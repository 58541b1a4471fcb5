/* layout.c - where each layer's K and V lie inside a page; see kv.h.
 *
 * Layers that store follow one another in their kind's page, K before V, or V alone where the
 * two are one tensor.  A part is n_kv_head * KK_PAGE_ROWS * head_dim values, in packed formats
 * whole groups of them, hence always a multiple of a cache line, so that no two layers share
 * one. */
#include "kv/kv.h"

static kk_status place_layer(kk_kv_layout *out, int32_t layer, kk_err *err) {
    const int32_t heads = out->shape.layer[layer].n_kv_head;
    const int32_t dim = out->shape.layer[layer].head_dim;
    const kk_kind kind = out->shape.layer[layer].kind;
    const bool k_eq_v = out->shape.layer[layer].k_eq_v;
    if (heads < 1 || dim < 1 || kind < 0 || kind >= KK_KINDS)
        return kk_fail(err, KK_EINVAL, "layer %d has %d K/V heads of %d values", layer, heads, dim);
    const kk_dtype_info *info = kk_dtype_get(out->format);
    if (dim % info->values)
        return kk_fail(err, KK_EINVAL,
                       "layer %d: K/V heads of %d values cannot be stored as %s, which packs %d "
                       "values at a time",
                       layer, dim, info->name, info->values);
    size_t part, end;
    if (!kk_mul((size_t)heads, (size_t)(dim / info->values), &part) ||
        !kk_mul(part, KK_PAGE_ROWS * (size_t)info->bytes, &part) ||
        !kk_mul(part, k_eq_v ? 1 : 2, &end) || !kk_add(end, out->page_bytes[kind], &end) ||
        end > INT64_MAX)
        return kk_fail(err, KK_EINVAL, "layer %d: %d K/V heads of %d values overflow a page", layer,
                       heads, dim);
    out->slot[layer] = (kk_kv_slot){
        .format = out->format,
        .k_eq_v = k_eq_v,
        .n_kv_head = heads,
        .head_dim = dim,
        .k_off = out->page_bytes[kind],
        .v_off = out->page_bytes[kind] + (k_eq_v ? 0 : part),
    };
    out->page_bytes[kind] = end;
    return KK_OK;
}

kk_status kk_kv_layout_init(kk_kv_layout *out, const kk_kv_shape *shape, kk_dtype format,
                            kk_err *err) {
    *out = (kk_kv_layout){.shape = *shape, .format = format};
    if (format != KK_F32 && format != KK_BF16 && !kk_dtype_is_packed(format))
        return kk_fail(err, KK_EINVAL, "K/V rows are stored as f32, bf16, q8 or q4, not type %d",
                       format);
    if (shape->n_layer < 1 || shape->n_layer > 256)
        return kk_fail(err, KK_EINVAL, "K/V for %d layers: between 1 and 256", shape->n_layer);
    for (int32_t i = 0; i < shape->n_layer; i++)
        if (shape->layer[i].stores) KK_TRY(place_layer(out, i, err));
    if (out->page_bytes[KK_KIND_SLIDING] && shape->window < 1)
        return kk_fail(err, KK_EINVAL, "a sliding window of %d rows", shape->window);
    return KK_OK;
}
