/* rows.c - copying rows between pages and sinks; see rows.h.
 *
 * All offsets in a page are those of whole rows of all positions, so those in a block of fewer
 * rows are the same times rows / KK_PAGE_ROWS, without remainder. */
#include "kv/rows.h"

#include <string.h>

#include "kv/pool.h"

/* Where something at `off` in a page lies in a block of so many rows. */
static size_t scaled(size_t off, int32_t rows) { return off / KK_PAGE_ROWS * (size_t)rows; }

/* A plane is an array of rows of equal size. */
static void copy_plane(const kk_kv_passage *p, size_t off, size_t row) {
    const size_t first = row * (size_t)p->first;
    uint8_t *to = p->to + scaled(off, p->to_rows) + first;
    const uint8_t *from = p->from + scaled(off, p->from_rows) + first;
    if (p->pool && row > 0)
        kk_pool_copy(p->pool, to, from, row * (size_t)p->n);
    else
        memcpy(to, from, row * (size_t)p->n);
}

/* A head's rows lie plane after plane; see kvformat.h. */
static void copy_head(const kk_kv_passage *p, const kk_kv_slot *slot, size_t off) {
    for (int plane = 0; plane < KK_KV_PLANES; plane++) {
        const size_t row = kk_kv_plane_bytes(slot->format, plane, slot->head_dim);
        copy_plane(p, off, row);
        off += KK_PAGE_ROWS * row;
    }
}

static void copy_slot(const kk_kv_passage *p, const kk_kv_slot *slot) {
    const size_t head = kk_kv_head_bytes(slot->format, slot->head_dim);
    for (int32_t h = 0; h < slot->n_kv_head; h++) {
        copy_head(p, slot, slot->v_off + (size_t)h * head);
        if (!slot->k_eq_v) copy_head(p, slot, slot->k_off + (size_t)h * head);
    }
}

void kk_kv_rows_copy(const kk_kv_layout *l, kk_kind kind, const kk_kv_passage *p) {
    const bool latents = kind == KK_LATENT;
    if (latents) {
        copy_slot(p, &l->latent);
        copy_slot(p, &l->scales);
    }
    for (int32_t i = 0; i < l->shape.n_layer; i++) {
        if (!l->shape.layer[i].stores) continue;
        if (latents && l->latents.diagnosis) copy_slot(p, &l->latents.diagnosis->truth[i]);
        if (l->shape.layer[i].kind == kind) copy_slot(p, &l->slot[i]);
    }
}

size_t kk_kv_block_bytes(const kk_kv_layout *l, kk_kind kind, int32_t rows) {
    return scaled(l->page_bytes[kind], rows);
}

void kk_kv_sink_copy(const kk_kv_layout *l, kk_kind kind, int32_t sink, uint8_t *to,
                     const uint8_t *from, int32_t rows) {
    memset(to, 0, kk_kv_block_bytes(l, kind, sink));
    const kk_kv_passage p = {.to = to, .from = from, .to_rows = sink, .from_rows = sink, .n = rows};
    kk_kv_rows_copy(l, kind, &p);
}

void kk_kv_page_copy(const kk_kv_layout *l, kk_kind kind, uint8_t *to, const uint8_t *from,
                     int32_t rows) {
    kk_kv_sink_copy(l, kind, KK_PAGE_ROWS, to, from, rows);
}
