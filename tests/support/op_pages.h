/* op_pages.h - random K/V pages of a few sessions, for the operations that store and attend.
 *
 * Pages hold one layer at offsets of its own.  What a forward's rows may not see can be made
 * NaN, or its pages be taken away, so that a result that depends on it shows. */
#ifndef KK_TESTS_OP_PAGES_H
#define KK_TESTS_OP_PAGES_H

#include "support/op_rig.h"

enum { RIG_SESSIONS = 4, RIG_PAGES = 6 };

typedef struct {
    kk_kv_slot slot;
    kk_rows rows;
    kk_group group[RIG_SESSIONS];
    uint8_t *page[RIG_SESSIONS][RIG_PAGES];
    size_t page_values; /* of the slot's format */
} rig_cache;

static inline size_t rig_cache_width(const rig_cache *c) {
    return c->slot.format == KK_F32 ? 4 : 2;
}

static inline void rig_cache_put(const rig_cache *c, uint8_t *page, size_t i, float f) {
    const uint16_t h = kk_f32_bf16(f);
    if (c->slot.format == KK_F32)
        memcpy(page + 4 * i, &f, 4);
    else
        memcpy(page + 2 * i, &h, 2);
}

/* Value i of head h of the row at pos; off is the slot's k_off or v_off. */
static inline size_t rig_cache_at(const rig_cache *c, size_t off, int32_t h, int64_t pos,
                                  int32_t i) {
    const size_t row = (size_t)h * KK_PAGE_ROWS + (size_t)(pos % KK_PAGE_ROWS);
    return off / rig_cache_width(c) + row * (size_t)c->slot.head_dim + (size_t)i;
}

static inline float rig_cache_get(const rig_cache *c, int32_t session, size_t off, int32_t h,
                                  int64_t pos, int32_t i) {
    const uint8_t *page = c->page[session][pos / KK_PAGE_ROWS];
    const size_t at = rig_cache_at(c, off, h, pos, i);
    float f;
    uint16_t b;
    if (c->slot.format == KK_F32) {
        memcpy(&f, page + 4 * at, sizeof f);
        return f;
    }
    memcpy(&b, page + 2 * at, sizeof b);
    return kk_bf16_f32(b);
}

/* Session s has n_rows[s] rows at pos[s]; all its pages are there and full of random values. */
static inline rig_cache *rig_cache_new(rig *r, kk_dtype format, bool k_eq_v, int32_t n_kv_head,
                                       int32_t head_dim, int32_t sessions, const int32_t *n_rows,
                                       const int64_t *pos) {
    rig_cache *c = rig_memory(r, sizeof *c);
    const size_t pad = 48, part = (size_t)n_kv_head * KK_PAGE_ROWS * (size_t)head_dim;
    const size_t width = format == KK_F32 ? 4 : 2, k = pad * width, v = k + part * width;
    *c = (rig_cache){.slot = {format, k_eq_v, n_kv_head, head_dim, k, k_eq_v ? k : v},
                     .page_values = pad + (k_eq_v ? 1 : 2) * part};
    int32_t row = 0;
    for (int32_t s = 0; s < sessions; s++) {
        assert_true(pos[s] + n_rows[s] <= RIG_PAGES * KK_PAGE_ROWS);
        for (int p = 0; p < RIG_PAGES; p++) {
            c->page[s][p] = rig_memory(r, c->page_values * width);
            for (size_t i = 0; i < c->page_values; i++)
                rig_cache_put(c, c->page[s][p], i, rig_float(r, 1));
        }
        c->group[s] = (kk_group){row, n_rows[s], pos[s], c->page[s]};
        row += n_rows[s];
    }
    c->rows = (kk_rows){c->group, sessions, row};
    return c;
}

static inline void rig_cache_blot(rig_cache *c, int32_t session, int64_t pos) {
    uint8_t *page = c->page[session][pos / KK_PAGE_ROWS];
    if (!page) return;
    for (int32_t h = 0; h < c->slot.n_kv_head; h++) {
        for (int32_t i = 0; i < c->slot.head_dim; i++) {
            rig_cache_put(c, page, rig_cache_at(c, c->slot.k_off, h, pos, i), NAN);
            rig_cache_put(c, page, rig_cache_at(c, c->slot.v_off, h, pos, i), NAN);
        }
    }
}

/* Leaves only what some row of each session sees. */
static inline void rig_cache_hide(rig_cache *c, int32_t window, int32_t sink) {
    for (int32_t s = 0; s < c->rows.n_groups; s++) {
        const kk_group *g = &c->group[s];
        const int64_t end = g->pos + g->n_rows;
        const int64_t from = window && g->pos >= window ? g->pos - window + 1 : 0;
        for (int p = 0; p < RIG_PAGES; p++) {
            const bool behind = (p + 1) * KK_PAGE_ROWS <= from && p * KK_PAGE_ROWS >= sink;
            if (behind || p * KK_PAGE_ROWS >= end) c->page[s][p] = NULL;
        }
        for (int64_t j = sink; j < from; j++) rig_cache_blot(c, s, j);
        for (int64_t j = end; j < RIG_PAGES * KK_PAGE_ROWS; j++) rig_cache_blot(c, s, j);
    }
}

/* Angles of the rows (for store), or of all positions up to the last (for attend). */
static inline kk_buf *rig_row_angles(rig *r, const rig_cache *c, kk_rope rope) {
    const size_t n = (size_t)c->rows.n_rows;
    int64_t *pos = rig_memory(r, n * sizeof *pos);
    for (int32_t s = 0; s < c->rows.n_groups; s++)
        for (int32_t i = 0; i < c->group[s].n_rows; i++)
            pos[c->group[s].row + i] = c->group[s].pos + i;
    kk_buf *table = rig_random_buf(r, n * 2 * (size_t)rope.n_rot, 1);
    const kk_rope_args a = {.table = table, .n = c->rows.n_rows, .pos = pos, .rope = rope};
    RIG_RUN(r, rope, &a);
    return table;
}

static inline kk_buf *rig_all_angles(rig *r, kk_rope rope) {
    const int64_t n = RIG_PAGES * KK_PAGE_ROWS;
    kk_buf *table = rig_random_buf(r, (size_t)(n * 2 * rope.n_rot), 1);
    const kk_rope_args a = {.table = table, .n = n, .rope = rope};
    RIG_RUN(r, rope, &a);
    return table;
}

#endif
