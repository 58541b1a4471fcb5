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
    size_t page_bytes;
} rig_cache;

/* One head's part of a page: what holds value i of row `row`. */
typedef struct {
    uint8_t *code, *scale, *bias; /* the last two of packed formats */
} rig_place;

static inline rig_place rig_cache_at(const rig_cache *c, uint8_t *page, size_t off, int32_t h,
                                     int64_t pos, int32_t i) {
    const kk_dtype f = c->slot.format;
    const size_t d = (size_t)c->slot.head_dim, row = (size_t)(pos % KK_PAGE_ROWS), at = (size_t)i;
    const size_t block = d / 64 * (size_t)kk_dtype_get(f)->bytes; /* of a packed row */
    if (f == KK_F32) page += off + 4 * (((size_t)h * KK_PAGE_ROWS + row) * d + at);
    if (f == KK_BF16) page += off + 2 * (((size_t)h * KK_PAGE_ROWS + row) * d + at);
    if (f == KK_F32 || f == KK_BF16) return (rig_place){.code = page};
    const size_t row_codes = f == KK_KV8 ? d : d / 2;
    uint8_t *head = page + off + (size_t)h * KK_PAGE_ROWS * block;
    uint8_t *scale = head + KK_PAGE_ROWS * row_codes + 2 * (row * (d / 64) + at / 64);
    const size_t in_row = f == KK_KV8 ? at : at / 64 * 32 + at % 32;
    return (rig_place){head + row * row_codes + in_row, scale, scale + 2 * KK_PAGE_ROWS * (d / 64)};
}

static inline float rig_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return kk_f16_f32(h);
}

/* Value i of head h of the row at pos; off is the slot's k_off or v_off. */
static inline float rig_cache_get(const rig_cache *c, int32_t session, size_t off, int32_t h,
                                  int64_t pos, int32_t i) {
    const rig_place at = rig_cache_at(c, c->page[session][pos / KK_PAGE_ROWS], off, h, pos, i);
    float f;
    uint16_t b;
    if (c->slot.format == KK_F32) {
        memcpy(&f, at.code, sizeof f);
        return f;
    }
    if (c->slot.format == KK_BF16) {
        memcpy(&b, at.code, sizeof b);
        return kk_bf16_f32(b);
    }
    const int nibble = i % 64 < 32 ? *at.code & 15 : *at.code >> 4;
    const double code = c->slot.format == KK_KV8 ? *at.code : nibble;
    return (float)(code * (double)rig_f16(at.scale) + (double)rig_f16(at.bias));
}

/* Makes value i no number, and with a packed format all that share its bias. */
static inline void rig_cache_spoil(const rig_cache *c, uint8_t *page, size_t off, int32_t h,
                                   int64_t pos, int32_t i) {
    const rig_place at = rig_cache_at(c, page, off, h, pos, i);
    const float nan = NAN;
    const uint16_t bf16 = kk_f32_bf16(nan), f16 = kk_f32_f16(nan);
    if (c->slot.format == KK_F32) {
        memcpy(at.code, &nan, 4);
    } else if (c->slot.format == KK_BF16) {
        memcpy(at.code, &bf16, 2);
    } else {
        *at.code = 0;
        memset(at.scale, 0, 2);
        memcpy(at.bias, &f16, 2);
    }
}

/* A page of numbers between -1 and 1 that the format can hold. */
static inline void rig_cache_fill(rig *r, const rig_cache *c, uint8_t *page) {
    const kk_dtype f = c->slot.format;
    const int32_t d = c->slot.head_dim;
    const size_t width = f == KK_F32 ? 4 : 2;
    if (f == KK_F32 || f == KK_BF16) {
        for (size_t i = 0; i < c->page_bytes; i += width) {
            const float x = rig_float(r, 1);
            const uint16_t h = kk_f32_bf16(x);
            memcpy(page + i, f == KK_F32 ? (const void *)&x : (const void *)&h, width);
        }
        return;
    }
    for (size_t i = 0; i < c->page_bytes; i++) page[i] = (uint8_t)rig_bits(r);
    for (int part = 0; part < 2; part++) {
        for (int32_t i = 0; i < c->slot.n_kv_head * KK_PAGE_ROWS * d; i += 64) {
            const rig_place at = rig_cache_at(c, page, part ? c->slot.v_off : c->slot.k_off,
                                              i / (KK_PAGE_ROWS * d), i / d % KK_PAGE_ROWS, i % d);
            const float least = rig_float(r, 1), range = (1 - least) * fabsf(rig_float(r, 1));
            rig_put_f16(at.scale, range / (f == KK_KV8 ? 255 : 15));
            rig_put_f16(at.bias, least);
        }
    }
}

/* Session s has n_rows[s] rows at pos[s]; all its pages are there and full of random values. */
static inline rig_cache *rig_cache_new(rig *r, kk_dtype format, bool k_eq_v, int32_t n_kv_head,
                                       int32_t head_dim, int32_t sessions, const int32_t *n_rows,
                                       const int64_t *pos) {
    rig_cache *c = rig_memory(r, sizeof *c);
    const size_t pad = 192, rows = (size_t)n_kv_head * KK_PAGE_ROWS;
    size_t part;
    assert_true(kk_dtype_bytes(format, rows * (size_t)head_dim, &part));
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
    for (int32_t h = 0; h < c->slot.n_kv_head; h++) {
        for (int32_t i = 0; i < c->slot.head_dim; i++) {
            rig_cache_spoil(c, page, c->slot.k_off, h, pos, i);
            rig_cache_spoil(c, page, c->slot.v_off, h, pos, i);
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
