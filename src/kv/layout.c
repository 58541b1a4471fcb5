/* layout.c - where each layer's K and V lie inside a page; see kv.h.
 *
 * Layers that store follow one another in their kind's page, K before V, or V alone where the
 * two are one tensor.  A part is n_kv_head * KK_PAGE_ROWS rows of whole bytes, hence always a
 * multiple of a cache line, so that no two layers share one.  A page of latents has a part for
 * these, one for their scales, and, where the true rows are kept beside them, parts for all layers
 * as in their own pages. */
#include "kv/kv.h"

/* Puts a slot at the end of a kind's page; false: it overflows.  head_dim is whole groups. */
static bool place(kk_kv_layout *out, kk_kind kind, kk_kv_slot *slot) {
    const size_t row = kk_kv_row_bytes(slot->format, slot->head_dim);
    const size_t at = out->page_bytes[kind];
    size_t part, end;
    if (!kk_mul((size_t)slot->n_kv_head, row, &part) || !kk_mul(part, KK_PAGE_ROWS, &part) ||
        !kk_mul(part, slot->k_eq_v ? 1 : 2, &end) || !kk_add(end, at, &end) || end > INT64_MAX)
        return false;
    slot->k_off = at;
    slot->v_off = at + (slot->k_eq_v ? 0 : part);
    out->page_bytes[kind] = end;
    return true;
}

static kk_status place_layer(kk_kv_layout *out, int32_t layer, kk_err *err) {
    const int32_t heads = out->shape.layer[layer].n_kv_head;
    const int32_t dim = out->shape.layer[layer].head_dim;
    const kk_kind kind = out->shape.layer[layer].kind;
    if (heads < 1 || dim < 1 || (kind != KK_SLIDING && kind != KK_FULL))
        return kk_fail(err, KK_EINVAL, "layer %d has %d K/V heads of %d values", layer, heads, dim);
    const kk_kv_format_info *info = kk_kv_format_get(out->format);
    if (dim % info->group)
        return kk_fail(err, KK_EINVAL,
                       "layer %d: K/V heads of %d values cannot be stored as %s, which packs %d "
                       "values at a time",
                       layer, dim, info->name, info->group);
    out->slot[layer] = (kk_kv_slot){.format = out->format,
                                    .k_eq_v = out->shape.layer[layer].k_eq_v,
                                    .n_kv_head = heads,
                                    .head_dim = dim};
    kk_kv_slot *truth = out->latents.diagnosis ? &out->latents.diagnosis->truth[layer] : NULL;
    if (truth) {
        *truth = out->slot[layer];
        truth->format = KK_KV_F32;
    }
    if (!place(out, kind, &out->slot[layer]) || (truth && !place(out, KK_LATENT, truth)))
        return kk_fail(err, KK_EINVAL, "layer %d: %d K/V heads of %d values overflow a page", layer,
                       heads, dim);
    return KK_OK;
}

/* Before the layers, so that latents lie at the same place with and without the true rows. */
static kk_status place_latents(kk_kv_layout *out, const kk_kv_latents *l, kk_err *err) {
    if (l->rank < 0 || l->n_scales < 0)
        return kk_fail(err, KK_EINVAL, "latents of %d values and %d scales", l->rank, l->n_scales);
    if (l->rank == 0) return KK_OK;
    const kk_kv_format_info *info = kk_kv_format_get(l->format);
    if (!info)
        return kk_fail(err, KK_EINVAL, "latents in K/V format %d, which does not exist", l->format);
    if (l->rank % info->group)
        return kk_fail(err, KK_EINVAL,
                       "latents of %d values cannot be stored as %s, which packs %d values at a "
                       "time",
                       l->rank, info->name, info->group);
    out->latents = *l;
    out->latent =
        (kk_kv_slot){.format = l->format, .k_eq_v = true, .n_kv_head = 1, .head_dim = l->rank};
    out->scales =
        (kk_kv_slot){.format = KK_KV_BF16, .k_eq_v = true, .n_kv_head = 1, .head_dim = l->n_scales};
    if (!place(out, KK_LATENT, &out->latent) || !place(out, KK_LATENT, &out->scales))
        return kk_fail(err, KK_EINVAL, "latents of %d values and %d scales overflow a page",
                       l->rank, l->n_scales);
    return KK_OK;
}

int32_t kk_kv_scale_at(const kk_kv_shape *shape, const bool kinds[KK_KINDS], int32_t layer) {
    int32_t n = 0;
    for (int32_t i = 0; i < layer; i++)
        if (shape->layer[i].stores && kinds[shape->layer[i].kind]) n += shape->layer[i].n_kv_head;
    return n;
}

kk_status kk_kv_layout_init(kk_kv_layout *out, const kk_kv_shape *shape, kk_kv_format format,
                            const kk_kv_latents *latents, kk_err *err) {
    *out = (kk_kv_layout){.shape = *shape, .format = format};
    if (!kk_kv_format_get(format))
        return kk_fail(err, KK_EINVAL, "no K/V format has the number %d", format);
    if (shape->n_layer < 1 || shape->n_layer > 256)
        return kk_fail(err, KK_EINVAL, "K/V for %d layers: between 1 and 256", shape->n_layer);
    if (latents) KK_TRY(place_latents(out, latents, err));
    for (int32_t i = 0; i < shape->n_layer; i++)
        if (shape->layer[i].stores) KK_TRY(place_layer(out, i, err));
    if (out->page_bytes[KK_SLIDING] && shape->window < 1)
        return kk_fail(err, KK_EINVAL, "a sliding window of %d rows", shape->window);
    return KK_OK;
}
