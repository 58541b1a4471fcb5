/* cache_world.h - a small world of K/V caches whose rows can be told apart: a row's bytes follow
 * from its tag, its layer, its head and its plane.  The model of a cache is an array of tags, one
 * per row, and the rules of kv.h said once more. */
#ifndef KK_TESTS_CACHE_WORLD_H
#define KK_TESTS_CACHE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"

enum { MAX_LEN = 700, MAX_BLOCK = 130 };

typedef struct {
    kk_mem mem;
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    const kk_kv_policy *policy[KK_KINDS];
    kk_kv_bounds bounds[KK_KINDS];
} world;

typedef struct {
    int64_t len;
    uint32_t tag[MAX_LEN];
} timeline;

typedef struct {
    kk_cache *cache;
    timeline rows;
} held_cache;

typedef struct {
    kk_mark *mark;
    timeline rows;
} held_mark;

/* Two sliding layers, a full one with K = V, and one that stores nothing. */
static inline kk_kv_shape tiny_shape(int32_t window, int32_t dim) {
    kk_kv_shape s = {.n_layer = 4, .window = window};
    s.layer[0].kind = KK_SLIDING;
    s.layer[0].stores = true;
    s.layer[0].n_kv_head = 2;
    s.layer[0].head_dim = dim;
    s.layer[1].kind = KK_FULL;
    s.layer[1].stores = true;
    s.layer[1].k_eq_v = true;
    s.layer[1].n_kv_head = 1;
    s.layer[1].head_dim = 2 * dim;
    s.layer[2] = s.layer[0];
    s.layer[3] = s.layer[0];
    s.layer[3].stores = false;
    return s;
}

static const kk_mem_category world_category[KK_KINDS] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL,
                                                         KK_MEM_KV_LATENTS};

/* latents NULL: none. */
static inline void world_open(world *w, int32_t window, kk_kv_format format,
                              const kk_kv_latents *latents) {
    const kk_kv_shape shape = tiny_shape(window, kk_kv_format_get(format)->group > 1 ? 64 : 4);
    memset(w, 0, sizeof *w);
    w->policy[KK_SLIDING] = &kk_kv_native;
    w->policy[KK_FULL] = w->policy[KK_LATENT] = &kk_kv_exact;
    w->bounds[KK_SLIDING].window = window;
    assert_int_equal(kk_kv_layout_init(&w->layout, &shape, format, latents, NULL), KK_OK);
    for (int k = 0; k < KK_KINDS; k++)
        if (w->layout.page_bytes[k])
            assert_int_equal(
                kk_pool_new(&w->pool[k], &w->mem, world_category[k], w->layout.page_bytes[k], NULL),
                KK_OK);
}

static inline void world_close(world *w) {
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) assert_int_equal(w->mem.bytes[c], 0);
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(w->pool[k]);
}

static inline kk_cache_opts cache_opts(world *w, int64_t max_len, int64_t max_block) {
    kk_cache_opts o = {.layout = &w->layout, .max_len = max_len, .max_block = max_block};
    memcpy(o.pool, w->pool, sizeof o.pool);
    memcpy(o.policy, w->policy, sizeof o.policy);
    memcpy(o.bounds, w->bounds, sizeof o.bounds);
    return o;
}

static inline kk_cache *cache_open(world *w) {
    const kk_cache_opts opts = cache_opts(w, MAX_LEN, MAX_BLOCK);
    kk_cache *c;
    assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
    return c;
}

/* ---- the rules -------------------------------------------------------------------------- */

static inline int64_t rule_keep_from(const world *w, int kind, int64_t len) {
    const int64_t window = w->bounds[kind].window;
    const int64_t chunk = w->bounds[kind].chunk ? w->bounds[kind].chunk : 1;
    if (!w->policy[kind]->windowed) return 0;
    if (w->policy[kind]->evicts) return len - len % chunk < window ? 0 : len - len % chunk - window;
    return len < window ? 0 : len - window + 1;
}

/* Whether a cache of len rows must have a page: for a row that is kept, or one not yet full. */
static inline bool rule_keeps_page(const world *w, int kind, int64_t len, int64_t page) {
    const int64_t from = page * KK_PAGE_ROWS, next = from + KK_PAGE_ROWS;
    if (!w->layout.page_bytes[kind] || from >= len) return false;
    return next > len || next > rule_keep_from(w, kind, len);
}

static inline int64_t rule_pages(const world *w, int kind, int64_t len) {
    int64_t n = 0;
    for (int64_t page = 0; page * KK_PAGE_ROWS < len; page++)
        n += rule_keeps_page(w, kind, len, page);
    return n;
}

static inline int64_t counted_page(const world *w, int kind) {
    return ((int64_t)w->layout.page_bytes[kind] + 4095) / 4096 * 4096;
}

static inline int64_t counted_sink(const world *w, int kind) {
    return (int64_t)w->layout.page_bytes[kind] * w->bounds[kind].sink / KK_PAGE_ROWS;
}

/* ---- rows ------------------------------------------------------------------------------- */

/* Calls on a row's parts: every plane of every head of every slot of the kind. */
typedef bool (*part_fn)(uint8_t *part, size_t bytes, uint8_t value);

static inline bool fill_part(uint8_t *part, size_t bytes, uint8_t value) {
    memset(part, value, bytes);
    return true;
}

static inline bool part_holds(uint8_t *part, size_t bytes, uint8_t value) {
    for (size_t i = 0; i < bytes; i++)
        if (part[i] != value) return false;
    return true;
}

static inline bool part_is_zero(uint8_t *part, size_t bytes, uint8_t value) {
    (void)value;
    return part_holds(part, bytes, 0);
}

/* The slots of a kind, in order. */
static inline int world_slots(const world *w, int kind, kk_kv_slot *out) {
    int n = 0;
    if (kind == KK_LATENT) {
        out[n++] = w->layout.latent;
        if (w->layout.latents.n_scales) out[n++] = w->layout.scales;
    }
    for (int32_t l = 0; l < w->layout.shape.n_layer; l++) {
        if (!w->layout.shape.layer[l].stores) continue;
        const kk_diagnosis *diagnosis = w->layout.latents.diagnosis;
        if (kind == KK_LATENT && diagnosis) out[n++] = diagnosis->truth[l];
        if ((int)w->layout.shape.layer[l].kind == kind) out[n++] = w->layout.slot[l];
    }
    return n;
}

/* Memory laid out as a page of `rows` rows. */
typedef struct {
    uint8_t *data;
    int64_t rows;
} block;

static inline bool each_plane(const kk_kv_slot *s, block b, size_t head_off, int64_t row,
                              uint8_t value, part_fn fn) {
    size_t at = head_off;
    bool good = true;
    for (int i = 0; i < KK_KV_PLANES; i++) {
        const size_t bytes = kk_kv_plane_bytes(s->format, i, s->head_dim);
        uint8_t *part = b.data + at * (size_t)b.rows / KK_PAGE_ROWS + (size_t)row * bytes;
        good = good && fn(part, bytes, (uint8_t)(value + i));
        at += KK_PAGE_ROWS * bytes;
    }
    return good;
}

static inline bool each_part(const world *w, int kind, block b, int64_t row, uint32_t tag,
                             part_fn fn) {
    kk_kv_slot slot[16];
    const int n = world_slots(w, kind, slot);
    bool good = b.data != NULL;
    for (int i = 0; i < n; i++)
        for (int32_t h = 0; good && h < slot[i].n_kv_head; h++) {
            const size_t head = (size_t)h * kk_kv_head_bytes(slot[i].format, slot[i].head_dim);
            const uint8_t value = (uint8_t)(tag * 31 + (uint32_t)i * 7 + (uint32_t)h * 3);
            good = each_plane(&slot[i], b, slot[i].v_off + head, row, value, fn);
            if (!slot[i].k_eq_v)
                good = good && each_plane(&slot[i], b, slot[i].k_off + head, row,
                                          (uint8_t)(value ^ 0x55), fn);
        }
    return good;
}

static inline block page_block(const kk_cache *c, int kind, int64_t pos) {
    return (block){kk_cache_pages(c, (kk_kind)kind)[pos / KK_PAGE_ROWS], KK_PAGE_ROWS};
}

static inline bool page_row(const world *w, const kk_cache *c, int kind, int64_t pos, uint32_t tag,
                            part_fn fn) {
    return each_part(w, kind, page_block(c, kind, pos), pos % KK_PAGE_ROWS, tag, fn);
}

static inline void write_row(const world *w, kk_cache *c, int64_t pos, uint32_t tag) {
    for (int k = 0; k < KK_KINDS; k++)
        if (w->layout.page_bytes[k]) assert_true(page_row(w, c, k, pos, tag, fill_part));
}

/* Rows [len, len + n), with their positions as tags. */
static inline void append_rows(const world *w, held_cache *h, int64_t n) {
    assert_int_equal(kk_cache_reserve(h->cache, n, NULL), KK_OK);
    for (int64_t i = 0; i < n; i++, h->rows.len++) {
        h->rows.tag[h->rows.len] = (uint32_t)h->rows.len;
        write_row(w, h->cache, h->rows.len, (uint32_t)h->rows.len);
    }
    kk_cache_commit(h->cache, h->rows.len);
}

/* Rows of the timeline in pages, as many as there must be, and in sinks; and rows up to `end` of a
 * block being written. */
static inline void check_rows(const world *w, const kk_cache *c, const timeline *t, int64_t end) {
    for (int k = 0; k < KK_KINDS; k++) {
        if (!w->layout.page_bytes[k]) continue;
        for (int64_t pos = 0; pos < end; pos++) {
            const bool must = pos >= t->len || rule_keeps_page(w, k, t->len, pos / KK_PAGE_ROWS);
            if (must || page_block(c, k, pos).data)
                assert_true(page_row(w, c, k, pos, t->tag[pos], part_holds));
        }
        const block sink = {kk_cache_sink_fill((kk_cache *)c, (kk_kind)k), w->bounds[k].sink};
        assert_int_equal(kk_cache_sink_bytes(c, (kk_kind)k), counted_sink(w, k));
        for (int64_t pos = 0; pos < sink.rows && pos < t->len; pos++)
            assert_true(each_part(w, k, sink, pos, t->tag[pos], part_holds));
    }
}

#endif
