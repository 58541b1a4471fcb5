/* cache_test.c - what a cache shows is what was written to it, whatever was drafted, taken back,
 * marked, restored and forked in between.
 *
 * Random histories run against the model of cache_world.h, with lengths drawn near page borders,
 * chunks and window wraps, and after every step each row that each cache and each mark has is
 * compared, and the bytes counted are compared with the pages that can be reached.  A page that
 * has the number it had must have the rows it had. */
#include "support/cache_world.h"

#include <stdlib.h>

enum { CACHES = 3, MARKS = 4 };

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng_state >> 33) % n);
}

/* ---- steps ------------------------------------------------------------------------------ */

static uint32_t next_tag;

/* A block is written, seen whole, and all but a prefix of it taken back. */
static void step_block(const world *w, held_cache *h) {
    const int64_t left = MAX_LEN - h->rows.len;
    int64_t n = 1 + below(below(2) ? 17 : MAX_BLOCK);
    if (below(4) == 0) n = KK_PAGE_ROWS - h->rows.len % KK_PAGE_ROWS + below(2); /* to a border */
    if (n > left) n = left;
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
                         rule_pages(w, k, h->rows.len) * counted_page(w, k));
}

/* Exactly to where every page that would have to be there is there. */
static bool pages_reach(const world *w, const kk_cache *c, int64_t len) {
    for (int k = 0; k < KK_KINDS; k++)
        for (int64_t page = 0; page * KK_PAGE_ROWS < len; page++)
            if (rule_keeps_page(w, k, len, page) && !kk_cache_pages(c, (kk_kind)k)[page])
                return false;
    return true;
}

static void step_truncate(const world *w, held_cache *h) {
    const int64_t back = below(3) ? below(20) : below(MAX_LEN);
    const int64_t len = back > h->rows.len || below(10) == 0 ? 0 : h->rows.len - back;
    const bool reaches = kk_cache_can_truncate(h->cache, len);
    assert_int_equal(reaches, pages_reach(w, h->cache, len));
    assert_int_equal(kk_cache_truncate(h->cache, len), reaches);
    if (len == 0 || len == h->rows.len) assert_true(reaches);
    if (reaches) h->rows.len = len;
    if (reaches && below(2)) kk_cache_commit(h->cache, len);
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

static void copy_pages(const world *w, int k, const held_cache *from, kk_cache *to) {
    const int64_t n = kk_cache_page_count(from->cache, (kk_kind)k);
    assert_int_equal(n, rule_pages(w, k, from->rows.len));
    assert_int_equal(n, kk_cache_page_count(to, (kk_kind)k));
    for (int64_t i = 0; i < n; i++) {
        const kk_cache_page theirs = kk_cache_page_at(from->cache, (kk_kind)k, i);
        const kk_cache_page ours = kk_cache_page_at(to, (kk_kind)k, i);
        const int64_t rows = from->rows.len - theirs.index * KK_PAGE_ROWS;
        assert_int_equal(theirs.rows, rows < KK_PAGE_ROWS ? rows : KK_PAGE_ROWS);
        assert_int_equal(theirs.index, ours.index);
        assert_ptr_equal(theirs.data, kk_cache_pages(from->cache, (kk_kind)k)[theirs.index]);
        kk_kv_page_copy(&w->layout, (kk_kind)k, ours.data, theirs.data, theirs.rows);
    }
}

/* Nothing of what was taken back comes along. */
static void check_no_more_rows(const world *w, int k, const kk_cache *c, int64_t len) {
    for (int64_t pos = len; pos % KK_PAGE_ROWS != 0; pos++)
        assert_true(page_row(w, c, k, pos, 0, part_is_zero));
    const block sink = {kk_cache_sink_fill((kk_cache *)c, (kk_kind)k), w->bounds[k].sink};
    for (int64_t pos = len; pos < sink.rows; pos++)
        assert_true(each_part(w, k, sink, pos, 0, part_is_zero));
}

/* Written down page by page, without what lies after len, and read back. */
static void step_save_load(world *w, const held_cache *from, held_cache *to) {
    kk_cache *c = cache_open(w);
    const int64_t len = from->rows.len;
    assert_int_equal(kk_cache_fill(c, len, NULL, NULL), KK_OK);
    for (int k = 0; k < KK_KINDS; k++) {
        const int32_t sink = w->bounds[k].sink;
        copy_pages(w, k, from, c);
        if (sink)
            kk_kv_sink_copy(&w->layout, (kk_kind)k, sink, kk_cache_sink_fill(c, (kk_kind)k),
                            kk_cache_sink(from->cache, (kk_kind)k),
                            len < sink ? (int32_t)len : sink);
        if (w->layout.page_bytes[k]) check_no_more_rows(w, k, c, len);
    }
    kk_cache_free(to->cache);
    to->cache = c;
    to->rows = from->rows;
}

static int64_t add_pages(const kk_cache *c, int kind, const uint8_t **seen, int64_t n) {
    uint8_t *const *pages = kk_cache_pages(c, (kk_kind)kind);
    for (int64_t i = 0; pages && i < (MAX_LEN + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS; i++) {
        const uint8_t *page = pages[i];
        int64_t j = 0;
        while (page && j < n && seen[j] != page) j++;
        if (page && j == n) seen[n++] = page;
    }
    return n;
}

/* What was in pages of latents by address and number, as far as rows were committed. */
typedef struct {
    const uint8_t *page;
    int64_t id;
    int32_t rows;
    uint32_t tag[KK_PAGE_ROWS];
} seen_page;
enum { SEEN_PAGES = 1 << 15 };
static seen_page seen_pages[SEEN_PAGES];
static size_t same_again; /* pages seen with their number before, which had rows */

static seen_page *seen_at(const uint8_t *page, int64_t id) {
    size_t i = ((uintptr_t)page / 4096 * 31 + (size_t)id * 2654435761u) % SEEN_PAGES;
    while (seen_pages[i].page && (seen_pages[i].page != page || seen_pages[i].id != id))
        i = (i + 1) % SEEN_PAGES;
    return &seen_pages[i];
}

static void check_numbers(const kk_cache *c, const timeline *t) {
    for (int64_t i = 0; i * KK_PAGE_ROWS < t->len; i++) {
        const uint8_t *page = kk_cache_pages(c, KK_LATENT)[i];
        if (!page) continue;
        const int64_t id = kk_cache_page_ids(c, KK_LATENT)[i], left = t->len - i * KK_PAGE_ROWS;
        const int32_t rows = left < KK_PAGE_ROWS ? (int32_t)left : KK_PAGE_ROWS;
        const uint32_t *tag = t->tag + i * KK_PAGE_ROWS;
        seen_page *seen = seen_at(page, id);
        const size_t both = (size_t)(rows < seen->rows ? rows : seen->rows);
        assert_memory_equal(seen->tag, tag, both * sizeof *tag);
        same_again += both > 0;
        if (rows <= seen->rows) continue;
        *seen = (seen_page){.page = page, .id = id, .rows = rows};
        memcpy(seen->tag, tag, (size_t)rows * sizeof *tag);
    }
}

static void check_all(world *w, held_cache *caches, held_mark *marks) {
    kk_cache *view[MARKS] = {NULL};
    for (int i = 0; i < CACHES; i++) {
        assert_int_equal(kk_cache_len(caches[i].cache), caches[i].rows.len);
        check_rows(w, caches[i].cache, &caches[i].rows, caches[i].rows.len);
        if (w->layout.page_bytes[KK_LATENT]) check_numbers(caches[i].cache, &caches[i].rows);
    }
    for (int i = 0; i < MARKS; i++) {
        if (!marks[i].mark) continue;
        view[i] = cache_open(w);
        kk_mark_restore(marks[i].mark, view[i]);
        check_rows(w, view[i], &marks[i].rows, marks[i].rows.len);
    }
    for (int k = 0; k < KK_KINDS; k++) { /* counted == reachable */
        const uint8_t *seen[(CACHES + MARKS) * (MAX_LEN / KK_PAGE_ROWS + 1)];
        int64_t n = 0, sinks = CACHES;
        for (int i = 0; i < CACHES; i++) n = add_pages(caches[i].cache, k, seen, n);
        for (int i = 0; i < MARKS; i++) {
            if (!view[i]) continue;
            n = add_pages(view[i], k, seen, n);
            sinks += 2; /* the mark's and the view's */
        }
        assert_int_equal(w->mem.bytes[world_category[k]],
                         n * counted_page(w, k) + sinks * counted_sink(w, k));
    }
    for (int i = 0; i < MARKS; i++) kk_cache_free(view[i]);
}

static void run_history(world *w, int steps) {
    held_cache caches[CACHES];
    held_mark marks[MARKS];
    memset(marks, 0, sizeof marks);
    memset(seen_pages, 0, sizeof seen_pages);
    for (int i = 0; i < CACHES; i++) {
        caches[i].cache = cache_open(w);
        caches[i].rows.len = 0;
    }
    for (int step = 0; step < steps; step++) {
        held_cache *h = &caches[below(CACHES)];
        held_mark *m = &marks[below(MARKS)];
        const uint32_t dice = below(21);
        if (dice < 12)
            step_block(w, h);
        else if (dice < 15)
            step_truncate(w, h);
        else if (dice < 17)
            step_mark(h, m);
        else if (dice < 18 && m->mark)
            step_restore(h, m);
        else if (dice < 19 && &caches[0] != h)
            step_fork(w, &caches[0], h);
        else if (dice == 20 && &caches[1] != h)
            step_save_load(w, &caches[1], h);
        check_all(w, caches, marks);
    }
    for (int i = 0; i < CACHES; i++) kk_cache_free(caches[i].cache);
    for (int i = 0; i < MARKS; i++) kk_mark_free(marks[i].mark);
    world_close(w);
}

/* ---- a history rebuilt ------------------------------------------------------------------ */

/* A cache like the mark, on from the one before it: pages that both hold are not taken again. */
static void rebuild(world *w, kk_cache *c, const kk_mark *m, const kk_mark *older) {
    uint8_t bits[KK_KINDS][MAX_LEN / KK_PAGE_ROWS / 8 + 1];
    const uint8_t *shared[KK_KINDS];
    memset(bits, 0, sizeof bits);
    for (int k = 0; k < KK_KINDS; k++) {
        shared[k] = bits[k];
        assert_int_equal(kk_mark_page_count(m, (kk_kind)k),
                         kk_cache_pages_of(c, (kk_kind)k, kk_mark_len(m)));
        for (int64_t i = 0; i < kk_mark_page_count(m, (kk_kind)k); i++)
            if (kk_mark_shares(m, older, (kk_kind)k, i)) bits[k][i / 8] |= (uint8_t)(1 << i % 8);
    }
    assert_int_equal(kk_cache_fill(c, kk_mark_len(m), shared, NULL), KK_OK);
    for (int k = 0; k < KK_KINDS; k++) {
        for (int64_t i = 0; i < kk_mark_page_count(m, (kk_kind)k); i++) {
            const kk_cache_page page = kk_mark_page_at(m, (kk_kind)k, i);
            if (!kk_mark_shares(m, older, (kk_kind)k, i))
                kk_kv_page_copy(&w->layout, (kk_kind)k, kk_cache_page_at(c, (kk_kind)k, i).data,
                                page.data, page.rows);
        }
        if (kk_mark_sink(m, (kk_kind)k))
            memcpy(kk_cache_sink_fill(c, (kk_kind)k), kk_mark_sink(m, (kk_kind)k),
                   kk_cache_sink_bytes(c, (kk_kind)k));
    }
}

static void histories_are_rebuilt_with_their_shared_pages(void **state) {
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        enum { POINTS = 5 };
        world w, v;
        held_cache h = {0};
        held_mark points[POINTS];
        kk_mark *again[POINTS];
        rng_state = seed;
        world_open(&w, 70, KK_KV_BF16, NULL);
        world_open(&v, 70, KK_KV_BF16, NULL);
        h.cache = cache_open(&w);
        kk_cache *c = cache_open(&v);
        memset(points, 0, sizeof points);
        for (int i = 0; i < POINTS; i++) {
            for (uint32_t n = below(6); n > 0; n--) append_rows(&w, &h, 1 + below(20));
            step_mark(&h, &points[i]);
        }
        for (int i = 0; i < POINTS; i++) {
            rebuild(&v, c, points[i].mark, i ? points[i - 1].mark : NULL);
            assert_int_equal(kk_mark_new(&again[i], c, NULL), KK_OK);
        }
        for (int k = 0; k < KK_KINDS; k++) /* as many pages in all */
            assert_int_equal(v.mem.bytes[world_category[k]], w.mem.bytes[world_category[k]]);
        for (int i = POINTS - 1; i >= 0; i--) {
            kk_mark_restore(again[i], c);
            check_rows(&v, c, &points[i].rows, points[i].rows.len);
            kk_mark_free(again[i]);
            kk_mark_free(points[i].mark);
        }
        kk_cache_free(c);
        kk_cache_free(h.cache);
        world_close(&w);
        world_close(&v);
    }
}

static void random_histories(void **state) {
    (void)state;
    static const int32_t windows[] = {1, 2, 7, 63, 64, 65, 100, 128, 1000};
    const int64_t live = kk_live_bytes();
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        world w;
        rng_state = 77 + i;
        world_open(&w, windows[i], i % 2 ? KK_KV_F32 : KK_KV_BF16, NULL);
        run_history(&w, 400);
    }
    assert_int_equal(kk_live_bytes(), live);
}

static void random_histories_with_a_sink(void **state) {
    (void)state;
    static const kk_kv_bounds reaches[] = {
        {.window = 1},
        {.window = 1, .sink = 64},
        {.window = 1, .sink = 30},
        {.window = 2, .sink = 1},
        {.window = 7, .sink = 64},
        {.window = 65, .sink = 63},
        {.window = 128, .sink = 4},
        {.window = 1, .sink = 1},
        {.window = 300, .sink = 5},
        {.window = 1000, .sink = 64},
    };
    const int64_t live = kk_live_bytes();
    for (size_t i = 0; i < sizeof reaches / sizeof *reaches; i++) {
        world w;
        rng_state = 177 + i;
        world_open(&w, 100, KK_KV_BF16, NULL);
        w.policy[KK_FULL] = &kk_kv_bounded;
        w.bounds[KK_FULL] = reaches[i];
        run_history(&w, 300);
    }
    assert_int_equal(kk_live_bytes(), live);
}

/* Both kinds of layers keep little, and latents of as many rows as these would have had. */
static void random_histories_with_latents(void **state) {
    (void)state;
    static const struct {
        kk_kv_bounds sliding, full;
        kk_kv_format format, latents;
        bool truth;
    } cases[] = {
        {{64, 4, 64}, {64, 4, 64}, KK_KV_BF16, KK_KV_BF16, false},
        {{0, 4, 64}, {0, 64, 64}, KK_KV_BF16, KK_KV_F32, true},
        {{0, 1, 1}, {1, 0, 1}, KK_KV_BF16, KK_KV_BF16, false},
        {{0, 9, 3}, {5, 64, 7}, KK_KV_F32, KK_KV_BF16, false},
        {{0, 64, 0}, {128, 0, 128}, KK_KV_BF16, KK_KV_F32, false},
        {{100, 33, 256}, {64, 8, 100}, KK_KV_F32, KK_KV_BF16, true},
        {{63, 5, 65}, {500, 64, 512}, KK_KV_BF16, KK_KV_BF16, false},
        {{64, 4, 64}, {16, 7, 16}, KK_KV_Q8, KK_KV_Q4, false},
        {{64, 63, 32}, {0, 1, 64}, KK_KV_Q4, KK_KV_Q8, true},
    };
    const int64_t live = kk_live_bytes();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        static kk_diagnosis diagnosis;
        const bool packed = kk_kv_format_get(cases[i].format)->group > 1;
        const kk_kv_latents latents = {.rank = packed ? 128 : 6,
                                       .format = cases[i].latents,
                                       .n_scales = (int32_t)i % 3,
                                       .diagnosis = cases[i].truth ? &diagnosis : NULL};
        rng_state = 277 + i;
        world_open(&w, 100, cases[i].format, &latents);
        w.policy[KK_SLIDING] = i % 2 ? &kk_kv_window : &kk_kv_restored;
        w.policy[KK_FULL] = &kk_kv_restored;
        w.bounds[KK_SLIDING] = cases[i].sliding;
        w.bounds[KK_FULL] = cases[i].full;
        if (i % 3 == 2) {
            w.policy[KK_LATENT] = &kk_kv_native;
            w.bounds[KK_LATENT].window = 150;
        }
        run_history(&w, packed ? 150 : 300);
    }
    assert_true(same_again > 1000);
    assert_int_equal(kk_live_bytes(), live);
}

/* ---- single promises -------------------------------------------------------------------- */

/* A 16-row draft of which nothing is kept but the anchor, at every offset around a border and a
 * window wrap: the cache must be what one plain row would have left. */
static void a_rejected_draft_leaves_no_trace(void **state) {
    (void)state;
    for (int64_t start = 110; start < 200; start++) {
        world w;
        world_open(&w, 64, KK_KV_BF16, NULL);
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
    world_open(&w, 64, KK_KV_BF16, NULL);
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
    world_open(&w, 100, KK_KV_F32, NULL);
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

static void limits_refuse_and_change_nothing(void **state) {
    (void)state;
    world w;
    kk_err err;
    for (int64_t limit = 1; limit <= 8; limit++) {
        world_open(&w, 64, KK_KV_BF16, NULL);
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
        assert_int_equal(kk_cache_bytes(h.cache, KK_FULL), w.mem.bytes[KK_MEM_KV_FULL]);
        assert_int_equal(kk_cache_bytes(h.cache, KK_SLIDING), w.mem.bytes[KK_MEM_KV_SLIDING]);
        kk_cache_free(h.cache);
        world_close(&w);
    }
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    world w;
    world_open(&w, 64, KK_KV_BF16, NULL);
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
    wrong.bounds[KK_SLIDING].window = 0;
    assert_int_equal(kk_cache_new(&none, &wrong, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "window of 0"));
    c = cache_open(&w);
    static const uint8_t bits[] = {1 << 1};
    const uint8_t *const second[KK_KINDS] = {[KK_FULL] = bits};
    assert_int_equal(kk_cache_fill(c, MAX_LEN + 1, NULL, &err), KK_ECONTEXT);
    assert_int_equal(kk_cache_fill(c, 10, NULL, &err), KK_OK);
    assert_int_equal(kk_cache_fill(c, 100, second, &err), KK_EFORMAT); /* it has no second page */
    assert_int_equal(kk_cache_len(c), 10);
    kk_cache_free(c);
    world_close(&w);
}

static void bad_shapes_are_refused(void **state) {
    (void)state;
    kk_kv_layout layout;
    kk_err err;
    kk_kv_shape s = tiny_shape(64, 4);
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_KV_FORMATS, NULL, &err), KK_EINVAL);
    s.layer[2].head_dim = 0;
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_KV_F32, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "layer 2"));
    s.layer[2].head_dim = INT32_MAX;
    s.layer[2].n_kv_head = INT32_MAX;
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_KV_F32, NULL, &err), KK_EINVAL);
    s = tiny_shape(0, 4);
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_KV_F32, NULL, &err), KK_EINVAL);
    s = tiny_shape(64, 4);
    s.n_layer = 0;
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_KV_F32, NULL, &err), KK_EINVAL);
}

/* K = V layers store one tensor; layers that read another's rows store none. */
static void pages_hold_what_is_stored(void **state) {
    (void)state;
    kk_kv_layout layout;
    const kk_kv_shape s = tiny_shape(64, 4);
    assert_int_equal(kk_kv_layout_init(&layout, &s, KK_KV_BF16, NULL, NULL), KK_OK);
    assert_int_equal(layout.page_bytes[KK_SLIDING], 2 * 2 * (2 * 64 * 4 * 2));
    assert_int_equal(layout.page_bytes[KK_FULL], 64 * 8 * 2);
    assert_int_equal(layout.slot[1].k_off, layout.slot[1].v_off);
    assert_int_equal(layout.slot[2].k_off, layout.slot[0].v_off + 2 * 64 * 4 * 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histories_are_rebuilt_with_their_shared_pages),
        cmocka_unit_test(random_histories),
        cmocka_unit_test(random_histories_with_a_sink),
        cmocka_unit_test(random_histories_with_latents),
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
