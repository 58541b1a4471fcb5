/* cache_test.c - what a cache shows is what was written to it, whatever was drafted, taken back,
 * marked, restored and forked in between.
 *
 * The model of a cache is an array of tags, one per row; a row's bytes follow from its tag, its
 * layer and its head.  Random histories run against it, with lengths drawn near page borders and
 * window wraps, and after every step each row in sight of each cache and each mark is compared,
 * and the bytes counted are compared with the pages that can be reached. */
#include "kv/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_LEN = 700, MAX_BLOCK = 130, CACHES = 3, MARKS = 4 };

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng_state >> 33) % n);
}

static kk_kv_shape tiny_shape(int32_t window) {
    kk_kv_shape s = {.n_layer = 4, .window = window};
    s.layer[0].kind = KK_KIND_SLIDING;
    s.layer[0].stores = true;
    s.layer[0].n_kv_head = 2;
    s.layer[0].head_dim = 4;
    s.layer[1].kind = KK_KIND_FULL;
    s.layer[1].stores = true;
    s.layer[1].k_eq_v = true;
    s.layer[1].n_kv_head = 1;
    s.layer[1].head_dim = 8;
    s.layer[2] = s.layer[0];
    s.layer[3] = s.layer[0];
    s.layer[3].stores = false;
    return s;
}

/* ---- the model -------------------------------------------------------------------------- */

typedef struct {
    kk_mem mem;
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    const kk_kv_policy *full; /* the policy of full layers */
    kk_kv_reach reach[KK_KINDS];
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

static void world_open(world *w, int32_t window, kk_dtype format) {
    const kk_kv_shape shape = tiny_shape(window);
    memset(w, 0, sizeof *w);
    w->full = &kk_kv_exact;
    w->reach[KK_KIND_SLIDING].window = window;
    assert_int_equal(kk_kv_layout_init(&w->layout, &shape, format, NULL), KK_OK);
    for (int k = 0; k < KK_KINDS; k++)
        assert_int_equal(kk_pool_new(&w->pool[k], &w->mem,
                                     k == KK_KIND_FULL ? KK_MEM_KV_FULL : KK_MEM_KV_SLIDING,
                                     w->layout.page_bytes[k], NULL),
                         KK_OK);
}

static void world_close(world *w) {
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) assert_int_equal(w->mem.bytes[c], 0);
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(w->pool[k]);
}

static kk_cache_opts cache_opts(world *w, int64_t max_len, int64_t max_block) {
    return (kk_cache_opts){.layout = &w->layout,
                           .pool = {w->pool[0], w->pool[1]},
                           .policy = {&kk_kv_native, w->full},
                           .reach = {w->reach[0], w->reach[1]},
                           .max_len = max_len,
                           .max_block = max_block};
}

static kk_cache *cache_open(world *w) {
    const kk_cache_opts opts = cache_opts(w, MAX_LEN, MAX_BLOCK);
    kk_cache *c;
    assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
    return c;
}

static bool is_exact(const world *w, int kind) {
    return kind == KK_KIND_FULL && w->full == &kk_kv_exact;
}

static int64_t keep_from(const world *w, int kind, int64_t len) {
    const int64_t window = w->reach[kind].window;
    return is_exact(w, kind) || len < window ? 0 : len - window + 1;
}

/* Whether a cache of len rows must have this one. */
static bool keeps(const world *w, int kind, int64_t len, int64_t pos) {
    return pos < len && (pos < w->reach[kind].sink || pos >= keep_from(w, kind, len));
}

static int64_t kept_pages(const world *w, int kind, int64_t len) {
    int64_t n = 0, last = -1;
    for (int64_t pos = 0; pos < len; pos++) {
        if (!keeps(w, kind, len, pos) || pos / KK_PAGE_ROWS == last) continue;
        last = pos / KK_PAGE_ROWS;
        n++;
    }
    return n;
}

static int64_t counted_page(const world *w, int kind) {
    return ((int64_t)w->layout.page_bytes[kind] + 4095) / 4096 * 4096;
}

/* ---- rows ------------------------------------------------------------------------------- */

/* Calls on a row's parts: every head of K and V of every layer of the kind that stores. */
typedef bool (*part_fn)(uint8_t *part, size_t bytes, uint8_t value);

static bool fill_part(uint8_t *part, size_t bytes, uint8_t value) {
    memset(part, value, bytes);
    return true;
}

static bool part_holds(uint8_t *part, size_t bytes, uint8_t value) {
    for (size_t i = 0; i < bytes; i++)
        if (part[i] != value) return false;
    return true;
}

static bool part_is_zero(uint8_t *part, size_t bytes, uint8_t value) {
    (void)value;
    return part_holds(part, bytes, 0);
}

static bool each_part(const world *w, const kk_cache *c, int kind, int64_t pos, uint32_t tag,
                      part_fn fn) {
    uint8_t *page = kk_cache_pages(c, (kk_kind)kind)[pos / KK_PAGE_ROWS];
    bool good = page != NULL;
    for (int32_t l = 0; good && l < w->layout.shape.n_layer; l++) {
        if (!w->layout.shape.layer[l].stores || (int)w->layout.shape.layer[l].kind != kind)
            continue;
        const kk_kv_slot *s = &w->layout.slot[l];
        const size_t row_bytes = (size_t)s->head_dim * (s->format == KK_F32 ? 4 : 2);
        for (int32_t h = 0; h < s->n_kv_head; h++) {
            const size_t row = (size_t)h * KK_PAGE_ROWS + (size_t)(pos % KK_PAGE_ROWS);
            const uint8_t value = (uint8_t)(tag * 31 + (uint32_t)l * 7 + (uint32_t)h * 3);
            good = good && fn(page + s->v_off + row * row_bytes, row_bytes, value);
            if (!s->k_eq_v)
                good = good && fn(page + s->k_off + row * row_bytes, row_bytes, (uint8_t)~value);
        }
    }
    return good;
}

static void write_row(const world *w, kk_cache *c, int64_t pos, uint32_t tag) {
    for (int k = 0; k < KK_KINDS; k++) assert_true(each_part(w, c, k, pos, tag, fill_part));
}

/* Rows that a query at `len` sees, and rows up to `end` of a block being written. */
static void check_rows(const world *w, const kk_cache *c, const timeline *t, int64_t end) {
    for (int k = 0; k < KK_KINDS; k++)
        for (int64_t pos = 0; pos < end; pos++)
            if (pos >= t->len || keeps(w, k, t->len, pos))
                assert_true(each_part(w, c, k, pos, t->tag[pos], part_holds));
}

/* ---- steps ------------------------------------------------------------------------------ */

static uint32_t next_tag;

/* A block is written, seen whole, and all but a prefix of it taken back. */
static void step_block(const world *w, held_cache *h) {
    const int64_t room = MAX_LEN - h->rows.len;
    int64_t n = 1 + below(below(2) ? 17 : MAX_BLOCK);
    if (below(4) == 0) n = KK_PAGE_ROWS - h->rows.len % KK_PAGE_ROWS + below(2); /* to a border */
    if (n > room) n = room;
    assert_int_equal(kk_cache_reserve(h->cache, n, NULL), KK_OK);
    for (int64_t i = 0; i < n; i++) {
        h->rows.tag[h->rows.len + i] = next_tag++;
        write_row(w, h->cache, h->rows.len + i, h->rows.tag[h->rows.len + i]);
    }
    check_rows(w, h->cache, &h->rows, h->rows.len + n);
    h->rows.len += below(3) ? n : below((uint32_t)n + 1);
    kk_cache_commit(h->cache, h->rows.len);
    for (int k = 0; k < KK_KINDS; k++) /* memory follows from the length alone */
        assert_int_equal(kk_cache_bytes(h->cache, (kk_kind)k),
                         kept_pages(w, k, h->rows.len) * counted_page(w, k));
}

static void step_truncate(const world *w, held_cache *h) {
    const int64_t back = below(3) ? below(20) : below(MAX_LEN);
    const int64_t len = back > h->rows.len ? 0 : h->rows.len - back;
    bool must = true;
    for (int k = 0; k < KK_KINDS; k++) {
        const bool same_page =
            keep_from(w, k, len) / KK_PAGE_ROWS == keep_from(w, k, h->rows.len) / KK_PAGE_ROWS;
        must = must && (same_page || len == 0 || len <= w->reach[k].sink);
    }
    const bool reaches = kk_cache_reaches(h->cache, len);
    const bool done = kk_cache_truncate(h->cache, len);
    assert_int_equal(done, reaches);
    if (must) assert_true(done);
    if (done) h->rows.len = len;
    if (done && below(2)) kk_cache_commit(h->cache, len);
}

static void step_mark(held_cache *h, held_mark *m) {
    kk_mark_free(m->mark);
    assert_int_equal(kk_mark_new(&m->mark, h->cache, NULL), KK_OK);
    m->rows = h->rows;
    assert_int_equal(kk_mark_len(m->mark), m->rows.len);
}

static void step_restore(held_cache *h, const held_mark *m) {
    kk_mark_restore(m->mark, h->cache);
    h->rows = m->rows;
}

static void step_fork(world *w, const held_cache *from, held_cache *to) {
    kk_mark *m;
    assert_int_equal(kk_mark_new(&m, from->cache, NULL), KK_OK);
    kk_cache_free(to->cache);
    to->cache = cache_open(w);
    kk_mark_restore(m, to->cache);
    kk_mark_free(m);
    to->rows = from->rows;
}

/* Written down page by page, without what lies after len, and read back. */
static void step_save_load(world *w, const held_cache *from, held_cache *to) {
    kk_cache *c = cache_open(w);
    assert_int_equal(kk_cache_fill(c, from->rows.len, NULL), KK_OK);
    for (int k = 0; k < KK_KINDS; k++) {
        const int64_t n = kk_cache_page_count(from->cache, (kk_kind)k);
        assert_int_equal(n, kept_pages(w, k, from->rows.len));
        assert_int_equal(n, kk_cache_page_count(c, (kk_kind)k));
        for (int64_t i = 0; i < n; i++) {
            const kk_cache_page theirs = kk_cache_page_at(from->cache, (kk_kind)k, i);
            const kk_cache_page ours = kk_cache_page_at(c, (kk_kind)k, i);
            const int64_t rows = from->rows.len - theirs.index * KK_PAGE_ROWS;
            assert_int_equal(theirs.rows, rows < KK_PAGE_ROWS ? rows : KK_PAGE_ROWS);
            assert_int_equal(theirs.index, ours.index);
            assert_ptr_equal(theirs.data, kk_cache_pages(from->cache, (kk_kind)k)[theirs.index]);
            kk_kv_page_copy(&w->layout, (kk_kind)k, ours.data, theirs.data, theirs.rows);
        }
    }
    for (int k = 0; k < KK_KINDS; k++) /* nothing of what was taken back comes along */
        for (int64_t pos = from->rows.len; pos % KK_PAGE_ROWS != 0; pos++)
            if (kk_cache_pages(c, (kk_kind)k)[pos / KK_PAGE_ROWS])
                assert_true(each_part(w, c, k, pos, 0, part_is_zero));
    kk_cache_free(to->cache);
    to->cache = c;
    to->rows = from->rows;
}

static int64_t add_pages(const kk_cache *c, int kind, const uint8_t **seen, int64_t n) {
    for (int64_t i = 0; i < (MAX_LEN + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS; i++) {
        const uint8_t *page = kk_cache_pages(c, (kk_kind)kind)[i];
        int64_t j = 0;
        while (page && j < n && seen[j] != page) j++;
        if (page && j == n) seen[n++] = page;
    }
    return n;
}

static void check_all(world *w, held_cache *caches, held_mark *marks) {
    kk_cache *view[MARKS] = {NULL};
    for (int i = 0; i < CACHES; i++) {
        assert_int_equal(kk_cache_len(caches[i].cache), caches[i].rows.len);
        check_rows(w, caches[i].cache, &caches[i].rows, caches[i].rows.len);
    }
    for (int i = 0; i < MARKS; i++) {
        if (!marks[i].mark) continue;
        view[i] = cache_open(w);
        kk_mark_restore(marks[i].mark, view[i]);
        check_rows(w, view[i], &marks[i].rows, marks[i].rows.len);
    }
    for (int k = 0; k < KK_KINDS; k++) { /* counted == reachable */
        const uint8_t *seen[(CACHES + MARKS) * (MAX_LEN / KK_PAGE_ROWS + 1)];
        int64_t n = 0;
        for (int i = 0; i < CACHES; i++) n = add_pages(caches[i].cache, k, seen, n);
        for (int i = 0; i < MARKS; i++)
            if (view[i]) n = add_pages(view[i], k, seen, n);
        assert_int_equal(w->mem.bytes[k == KK_KIND_FULL ? KK_MEM_KV_FULL : KK_MEM_KV_SLIDING],
                         n * counted_page(w, k));
    }
    for (int i = 0; i < MARKS; i++) kk_cache_free(view[i]);
}

static void run_history(int32_t window, kk_dtype format, const kk_kv_reach *bounded, int steps) {
    world w;
    held_cache caches[CACHES];
    held_mark marks[MARKS];
    memset(marks, 0, sizeof marks);
    world_open(&w, window, format);
    if (bounded) {
        w.full = &kk_kv_bounded;
        w.reach[KK_KIND_FULL] = *bounded;
    }
    for (int i = 0; i < CACHES; i++) {
        caches[i].cache = cache_open(&w);
        caches[i].rows.len = 0;
    }
    for (int step = 0; step < steps; step++) {
        held_cache *h = &caches[below(CACHES)];
        held_mark *m = &marks[below(MARKS)];
        const uint32_t dice = below(21);
        if (dice < 12)
            step_block(&w, h);
        else if (dice < 15)
            step_truncate(&w, h);
        else if (dice < 17)
            step_mark(h, m);
        else if (dice < 18 && m->mark)
            step_restore(h, m);
        else if (dice < 19 && &caches[0] != h)
            step_fork(&w, &caches[0], h);
        else if (dice == 20 && &caches[1] != h)
            step_save_load(&w, &caches[1], h);
        check_all(&w, caches, marks);
    }
    for (int i = 0; i < CACHES; i++) kk_cache_free(caches[i].cache);
    for (int i = 0; i < MARKS; i++) kk_mark_free(marks[i].mark);
    world_close(&w);
}

static void random_histories(void **state) {
    (void)state;
    static const int32_t windows[] = {1, 2, 7, 63, 64, 65, 100, 128, 1000};
    const int64_t live = kk_live_bytes();
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        rng_state = 77 + i;
        run_history(windows[i], i % 2 ? KK_F32 : KK_BF16, NULL, 400);
    }
    assert_int_equal(kk_live_bytes(), live);
}

static void random_histories_with_a_sink(void **state) {
    (void)state;
    static const kk_kv_reach reaches[] = {{1, 0},   {1, 64},  {1, 70},    {2, 1},     {7, 64},
                                          {64, 65}, {65, 63}, {30, 200},  {100, 128}, {128, 4},
                                          {1, 1},   {300, 5}, {50, 1000}, {1000, 64}};
    const int64_t live = kk_live_bytes();
    for (size_t i = 0; i < sizeof reaches / sizeof *reaches; i++) {
        rng_state = 177 + i;
        run_history(100, KK_BF16, &reaches[i], 400);
    }
    assert_int_equal(kk_live_bytes(), live);
}

/* ---- single promises -------------------------------------------------------------------- */

/* A 16-row draft of which nothing is kept but the anchor, at every offset around a border and a
 * window wrap: the cache must be what one plain row would have left. */
static void a_rejected_draft_leaves_no_trace(void **state) {
    (void)state;
    for (int64_t start = 110; start < 200; start++) {
        world w;
        world_open(&w, 64, KK_BF16);
        held_cache drafted = {.cache = cache_open(&w)}, plain = {.cache = cache_open(&w)};
        for (int64_t pos = 0; pos < start + 40; pos++) {
            drafted.rows.tag[pos] = plain.rows.tag[pos] = (uint32_t)pos;
            const int64_t n = pos < start ? 1 : 17;
            assert_int_equal(kk_cache_reserve(drafted.cache, n, NULL), KK_OK);
            assert_int_equal(kk_cache_reserve(plain.cache, 1, NULL), KK_OK);
            write_row(&w, plain.cache, pos, (uint32_t)pos);
            write_row(&w, drafted.cache, pos, (uint32_t)pos);
            for (int64_t i = 1; i < n; i++) write_row(&w, drafted.cache, pos + i, 9999);
            kk_cache_commit(drafted.cache, pos + 1);
            kk_cache_commit(plain.cache, pos + 1);
            drafted.rows.len = plain.rows.len = pos + 1;
            check_rows(&w, drafted.cache, &drafted.rows, pos + 1);
            for (int k = 0; k < KK_KINDS; k++)
                assert_int_equal(kk_cache_bytes(drafted.cache, (kk_kind)k),
                                 kk_cache_bytes(plain.cache, (kk_kind)k));
        }
        kk_cache_free(drafted.cache);
        kk_cache_free(plain.cache);
        world_close(&w);
    }
}

static void memory_follows_use_and_not_the_context(void **state) {
    (void)state;
    world w;
    world_open(&w, 64, KK_BF16);
    const kk_cache_opts opts = cache_opts(&w, (int64_t)1 << 20, 16);
    kk_cache *c;
    assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
    assert_int_equal(w.mem.bytes[KK_MEM_KV_FULL] + w.mem.bytes[KK_MEM_KV_SLIDING], 0);
    int64_t sliding = 0;
    for (int64_t len = 0; len < 6400; len += 16) {
        assert_int_equal(kk_cache_reserve(c, 16, NULL), KK_OK);
        kk_cache_commit(c, len + 16);
        assert_int_equal(w.mem.bytes[KK_MEM_KV_FULL],
                         (len + 16 + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS * 4096);
        if (w.mem.bytes[KK_MEM_KV_SLIDING] > sliding) sliding = w.mem.bytes[KK_MEM_KV_SLIDING];
    }
    assert_int_equal(sliding, 2 * 4096 * 1); /* 64 rows lie in two pages at most */
    kk_cache_free(c);
    world_close(&w);
}

/* Taking pages, copying shared ones and giving them back: none of it may allocate. */
static void steady_state_takes_no_memory(void **state) {
    (void)state;
    world w;
    world_open(&w, 100, KK_F32);
    kk_cache *c = cache_open(&w);
    kk_mark *m;
    assert_int_equal(kk_cache_reserve(c, 90, NULL), KK_OK);
    kk_cache_commit(c, 90);
    assert_int_equal(kk_mark_new(&m, c, NULL), KK_OK);
    kk_fault_after(1, true);
    for (int64_t len = 90; len < MAX_LEN - 17; len++) {
        assert_int_equal(kk_cache_reserve(c, 17, NULL), KK_OK);
        kk_cache_commit(c, len + 1);
    }
    kk_mark_restore(m, c);
    kk_fault_after(0, false);
    kk_mark_free(m);
    kk_cache_free(c);
    world_close(&w);
}

/* Going back: as far as the window's pages reach, or into the sink, and nowhere between. */
static void a_gap_cannot_be_gone_back_to(void **state) {
    (void)state;
    world w;
    world_open(&w, 1000, KK_BF16);
    w.full = &kk_kv_bounded;
    w.reach[KK_KIND_FULL] = (kk_kv_reach){.window = 70, .sink = 100};
    held_cache h = {.cache = cache_open(&w)};
    for (int64_t len = 0; len < 600; len += 100) {
        assert_int_equal(kk_cache_reserve(h.cache, 100, NULL), KK_OK);
        for (int64_t pos = len; pos < len + 100; pos++) {
            h.rows.tag[pos] = (uint32_t)pos;
            write_row(&w, h.cache, pos, (uint32_t)pos);
        }
        kk_cache_commit(h.cache, len + 100);
    }
    h.rows.len = 600; /* sink: pages 0 and 1; window: rows from 531 on, pages 8 and 9 */
    assert_int_equal(kk_cache_page_count(h.cache, KK_KIND_FULL), 4);
    assert_false(kk_cache_truncate(h.cache, 129));
    assert_false(kk_cache_truncate(h.cache, 500));
    assert_int_equal(kk_cache_len(h.cache), 600);
    assert_true(kk_cache_truncate(h.cache, 581)); /* needs row 512, the first of page 8 */
    h.rows.len = 581;
    check_rows(&w, h.cache, &h.rows, 581);
    assert_false(kk_cache_truncate(h.cache, 580));
    assert_true(kk_cache_truncate(h.cache, 120));
    h.rows.len = 120;
    check_rows(&w, h.cache, &h.rows, 120);
    assert_int_equal(kk_cache_bytes(h.cache, KK_KIND_FULL), 2 * counted_page(&w, KK_KIND_FULL));
    assert_int_equal(kk_cache_reserve(h.cache, 80, NULL), KK_OK);
    for (int64_t pos = 120; pos < 200; pos++) write_row(&w, h.cache, pos, (uint32_t)pos);
    kk_cache_commit(h.cache, 200); /* rows from 131 on: page 2, next to the sink, no gap */
    assert_true(kk_cache_truncate(h.cache, 190));
    h.rows.len = 190; /* needs row 121 */
    check_rows(&w, h.cache, &h.rows, 190);
    kk_cache_free(h.cache);
    world_close(&w);
}

/* The content of a long bounded cache stops growing. */
static void a_bounded_cache_is_bounded(void **state) {
    (void)state;
    world w;
    world_open(&w, 64, KK_BF16);
    w.full = &kk_kv_bounded;
    w.reach[KK_KIND_FULL] = (kk_kv_reach){.window = 128, .sink = 64};
    const kk_cache_opts opts = cache_opts(&w, (int64_t)1 << 20, 16);
    kk_cache *c;
    int64_t most = 0;
    assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
    for (int64_t len = 0; len < 6400; len += 16) {
        assert_int_equal(kk_cache_reserve(c, 16, NULL), KK_OK);
        kk_cache_commit(c, len + 16);
        if (w.mem.bytes[KK_MEM_KV_FULL] > most) most = w.mem.bytes[KK_MEM_KV_FULL];
    }
    assert_int_equal(most, 4 * 4096); /* a page of sink, 127 rows in three pages at most */
    kk_cache_free(c);
    world_close(&w);
}

static void limits_refuse_and_change_nothing(void **state) {
    (void)state;
    world w;
    kk_err err;
    for (int64_t limit = 1; limit <= 8; limit++) {
        world_open(&w, 64, KK_BF16);
        held_cache h = {.cache = cache_open(&w)};
        w.mem.limit = limit * 4096;
        while (kk_cache_reserve(h.cache, 16, &err) == KK_OK) {
            for (int64_t i = 0; i < 16; i++) {
                h.rows.tag[h.rows.len] = (uint32_t)h.rows.len;
                write_row(&w, h.cache, h.rows.len, (uint32_t)h.rows.len);
                h.rows.len++;
            }
            kk_cache_commit(h.cache, h.rows.len);
            assert_true(h.rows.len < 600);
        }
        assert_int_equal(err.code, KK_ENOMEM);
        assert_non_null(strstr(err.msg, "memory limit"));
        assert_int_equal(kk_cache_len(h.cache), h.rows.len);
        check_rows(&w, h.cache, &h.rows, h.rows.len);
        assert_true(w.mem.bytes[KK_MEM_KV_FULL] + w.mem.bytes[KK_MEM_KV_SLIDING] <= w.mem.limit);
        assert_int_equal(kk_cache_bytes(h.cache, KK_KIND_FULL), w.mem.bytes[KK_MEM_KV_FULL]);
        assert_int_equal(kk_cache_bytes(h.cache, KK_KIND_SLIDING), w.mem.bytes[KK_MEM_KV_SLIDING]);
        kk_cache_free(h.cache);
        world_close(&w);
    }
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    world w;
    world_open(&w, 64, KK_BF16);
    kk_err err;
    kk_cache *c = cache_open(&w), *none;
    assert_int_equal(kk_cache_reserve(c, MAX_BLOCK + 1, &err), KK_EINVAL);
    for (int64_t len = 0; len < MAX_LEN; len += 100) {
        assert_int_equal(kk_cache_reserve(c, 100, NULL), KK_OK);
        kk_cache_commit(c, len + 100);
    }
    assert_int_equal(kk_cache_reserve(c, 1, &err), KK_ECONTEXT);
    assert_non_null(strstr(err.msg, "700"));
    assert_false(kk_cache_truncate(c, 100)); /* the window has left it behind */
    assert_int_equal(kk_cache_len(c), MAX_LEN);
    assert_true(kk_cache_truncate(c, 0));
    kk_cache_free(c);
    const kk_cache_opts empty = cache_opts(&w, 0, 0);
    assert_int_equal(kk_cache_new(&none, &empty, &err), KK_EINVAL);
    assert_null(none);
    kk_cache_opts wrong = cache_opts(&w, 100, 0);
    wrong.reach[KK_KIND_SLIDING].window = 0;
    assert_int_equal(kk_cache_new(&none, &wrong, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "window of 0"));
    wrong = cache_opts(&w, 100, 0);
    wrong.reach[KK_KIND_SLIDING].sink = 4;
    assert_int_equal(kk_cache_new(&none, &wrong, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "native"));
    wrong.reach[KK_KIND_SLIDING].sink = 0;
    wrong.policy[KK_KIND_FULL] = &kk_kv_bounded;
    wrong.reach[KK_KIND_FULL] = (kk_kv_reach){.window = 10, .sink = -1};
    assert_int_equal(kk_cache_new(&none, &wrong, &err), KK_EINVAL);
    assert_null(none);
    c = cache_open(&w);
    assert_int_equal(kk_cache_fill(c, MAX_LEN + 1, &err), KK_ECONTEXT);
    assert_int_equal(kk_cache_fill(c, 10, &err), KK_OK);
    assert_int_equal(kk_cache_fill(c, 20, &err), KK_EINVAL);
    assert_int_equal(kk_cache_len(c), 10);
    kk_cache_free(c);
    world_close(&w);
}

static void bad_shapes_are_refused(void **state) {
    (void)state;
    kk_kv_layout layout;
    kk_err err;
    kk_kv_shape s = tiny_shape(64);
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_Q8_0, &err), KK_EINVAL);
    s.layer[2].head_dim = 0;
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_F32, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "layer 2"));
    s.layer[2].head_dim = INT32_MAX;
    s.layer[2].n_kv_head = INT32_MAX;
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_F32, &err), KK_EINVAL);
    s = tiny_shape(0);
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_F32, &err), KK_EINVAL);
    s = tiny_shape(64);
    s.n_layer = 0;
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_F32, &err), KK_EINVAL);
}

/* K = V layers store one tensor; layers that read another's rows store none. */
static void pages_hold_what_is_stored(void **state) {
    (void)state;
    kk_kv_layout layout;
    const kk_kv_shape s = tiny_shape(64);
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_BF16, NULL), KK_OK);
    assert_int_equal(layout.page_bytes[KK_KIND_SLIDING], 2 * 2 * (2 * 64 * 4 * 2));
    assert_int_equal(layout.page_bytes[KK_KIND_FULL], 64 * 8 * 2);
    assert_int_equal(layout.slot[1].k_off, layout.slot[1].v_off);
    assert_int_equal(layout.slot[2].k_off, layout.slot[0].v_off + 2 * 64 * 4 * 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories),
        cmocka_unit_test(random_histories_with_a_sink),
        cmocka_unit_test(a_gap_cannot_be_gone_back_to),
        cmocka_unit_test(a_bounded_cache_is_bounded),
        cmocka_unit_test(a_rejected_draft_leaves_no_trace),
        cmocka_unit_test(memory_follows_use_and_not_the_context),
        cmocka_unit_test(steady_state_takes_no_memory),
        cmocka_unit_test(limits_refuse_and_change_nothing),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(pages_hold_what_is_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
