/* op_pages.h - random K/V pages of a few sessions, for the operations that store and attend.
 *
 * Pages hold one layer at offsets of its own.  What a forward's rows may not see can be made
 * NaN, or its pages be taken away, so that a result that depends on it shows. */
#ifndef KK_TESTS_OP_PAGES_H
#define KK_TESTS_OP_PAGES_H

#include "support/op_rig.h"

#ifndef KK_RIG_PAGES /* pages of a session */
#define KK_RIG_PAGES 6
#endif
enum { RIG_SESSIONS = 4, RIG_PAGES = KK_RIG_PAGES };

typedef struct {
    kk_kv_slot slot;
    kk_rows rows;
    kk_group group[RIG_SESSIONS];
    uint8_t *page[RIG_SESSIONS][RIG_PAGES];
    size_t page_bytes;
} rig_cache;

/* The group that holds value i of head h of the row at pos, in every plane. */
typedef struct {
    uint8_t *head;
    kk_kv_place at;
} rig_place;

static inline rig_place rig_cache_at(const rig_cache *c, uint8_t *page, size_t off, int32_t h,
                                     int64_t pos, int32_t i) {
    const kk_kv_format f = c->slot.format;
    const kk_kv_format_info *info = kk_kv_format_get(f);
    const int32_t d = c->slot.head_dim, row = (int32_t)(pos % KK_PAGE_ROWS);
    rig_place p = {page + off + (size_t)h * kk_kv_head_bytes(f, d),
                   kk_kv_row_place(f, d, KK_PAGE_ROWS, row)};
    for (int k = 0; k < KK_KV_PLANES; k++)
        p.at.at[k] += (size_t)(i / info->group) * (size_t)info->plane[k];
    return p;
}

static inline float rig_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return kk_f16_f32(h);
}

/* Value i of head h of the row at pos; off is the slot's k_off or v_off.  The formats that are read
 * most are decoded here once more, apart from the library's code. */
static inline float rig_cache_get(const rig_cache *c, int32_t session, size_t off, int32_t h,
                                  int64_t pos, int32_t i) {
    const rig_place p = rig_cache_at(c, c->page[session][pos / KK_PAGE_ROWS], off, h, pos, i);
    const uint8_t *codes = p.head + p.at.at[0];
    float f[256];
    uint16_t b;
    switch (c->slot.format) {
    case KK_KV_F32: memcpy(f, codes, sizeof *f); return f[0];
    case KK_KV_BF16: memcpy(&b, codes, sizeof b); return kk_bf16_f32(b);
    case KK_KV_Q8:
    case KK_KV_Q4: {
        const uint8_t byte = codes[c->slot.format == KK_KV_Q8 ? i % 64 : i % 32];
        const double code = c->slot.format == KK_KV_Q8 ? byte : i % 64 < 32 ? byte & 15 : byte >> 4;
        return (float)(code * (double)rig_f16(p.head + p.at.at[1]) +
                       (double)rig_f16(p.head + p.at.at[2]));
    }
    default: break;
    }
    const kk_kv_format_info *info = kk_kv_format_get(c->slot.format);
    info->unpack(f, info->group, p.head, p.at);
    return f[i % info->group];
}

/* Makes value i no number, and with it all of its group. */
static inline void rig_cache_spoil(const rig_cache *c, uint8_t *page, size_t off, int32_t h,
                                   int64_t pos, int32_t i) {
    const rig_place p = rig_cache_at(c, page, off, h, pos, i);
    const kk_kv_format_info *info = kk_kv_format_get(c->slot.format);
    float f[256];
    for (int32_t k = 0; k < info->group; k++) f[k] = NAN;
    info->pack(f, info->group, p.head, p.at);
}

enum { RIG_ROW = 8192 }; /* values of a row at most */

static inline void rig_cache_put(const rig_cache *c, uint8_t *page, size_t off, int32_t h,
                                 int64_t pos, const float *x) {
    const rig_place p = rig_cache_at(c, page, off, h, pos, 0);
    kk_kv_format_get(c->slot.format)->pack(x, c->slot.head_dim, p.head, p.at);
}

/* A page of numbers between -1 and 1, those of a group in a range of their own. */
static inline void rig_cache_fill(rig *r, const rig_cache *c, uint8_t *page) {
    const int32_t group = kk_kv_format_get(c->slot.format)->group;
    float x[RIG_ROW], least = -1, range = 2;
    assert_true(c->slot.head_dim <= RIG_ROW);
    for (size_t i = 0; i < c->page_bytes; i++) page[i] = (uint8_t)rig_bits(r);
    for (int32_t row = 0; row < 2 * c->slot.n_kv_head * KK_PAGE_ROWS; row++) {
        for (int32_t i = 0; i < c->slot.head_dim; i++) {
            if (group > 1 && i % group == 0) {
                least = rig_float(r, 1);
                range = (1 - least) * fabsf(rig_float(r, 1));
            }
            x[i] = least + range * fabsf(rig_float(r, 1));
        }
        rig_cache_put(c, page, row % 2 ? c->slot.v_off : c->slot.k_off, row / 2 / KK_PAGE_ROWS,
                      row / 2, x);
    }
}

/* Session s has n_rows[s] rows at pos[s]; all its pages are there and full of random values. */
static inline rig_cache *rig_cache_new(rig *r, kk_kv_format format, bool k_eq_v, int32_t n_kv_head,
                                       int32_t head_dim, int32_t sessions, const int32_t *n_rows,
                                       const int64_t *pos) {
    rig_cache *c = rig_memory(r, sizeof *c);
    const size_t pad = 192, part = (size_t)n_kv_head * kk_kv_head_bytes(format, head_dim);
    assert_int_equal(head_dim % kk_kv_format_get(format)->group, 0);
    *c = (rig_cache){.slot = {format, k_eq_v, n_kv_head, head_dim, pad, k_eq_v ? pad : pad + part},
                     .page_bytes = pad + (k_eq_v ? 1 : 2) * part};
    int32_t row = 0;
    for (int32_t s = 0; s < sessions; s++) {
        assert_true(pos[s] + n_rows[s] <= RIG_PAGES * KK_PAGE_ROWS);
        for (int p = 0; p < RIG_PAGES; p++) {
            c->page[s][p] = rig_memory(r, c->page_bytes);
            rig_cache_fill(r, c, c->page[s][p]);
        }
        c->group[s] =
            (kk_group){.row = row, .n_rows = n_rows[s], .pos = pos[s], .pages = c->page[s]};
        row += n_rows[s];
    }
    c->rows = (kk_rows){c->group, sessions, row};
    return c;
}

static inline void rig_cache_blot(rig_cache *c, int32_t session, int64_t pos) {
    uint8_t *page = c->page[session][pos / KK_PAGE_ROWS];
    if (!page) return;
    float nans[RIG_ROW];
    for (int32_t i = 0; i < c->slot.head_dim; i++) nans[i] = NAN;
    for (int32_t h = 0; h < c->slot.n_kv_head; h++) {
        rig_cache_put(c, page, c->slot.k_off, h, pos, nans);
        rig_cache_put(c, page, c->slot.v_off, h, pos, nans);
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
