/* sink_test.c - caches that keep their first rows and their last ones: what they cost, how far back
 * they go, and what is refused. */
#include "support/cache_world.h"

static const kk_kv_latents some_latents = {.rank = 6, .format = KK_KV_BF16, .n_scales = 1};

static void open_restored(world *w, kk_kv_bounds bounds, const kk_kv_latents *latents) {
    world_open(w, 1000, KK_KV_BF16, latents);
    w->policy[KK_FULL] = &kk_kv_restored;
    w->bounds[KK_FULL] = bounds;
}

/* The first row a cache of len rows keeps: of the chunk that row len falls into, `window` back. */
static void rows_leave_by_chunks(void **state) {
    (void)state;
    static const struct {
        kk_kv_bounds bounds;
        int64_t len, from;
    } cases[] = {
        {{64, 4, 64}, 0, 0},      {{64, 4, 64}, 127, 0},       {{64, 4, 64}, 128, 64},
        {{64, 4, 64}, 191, 64},   {{64, 4, 64}, 192, 128},     {{0, 4, 64}, 63, 0},
        {{0, 4, 64}, 64, 64},     {{0, 4, 64}, 127, 64},       {{5, 0, 3}, 8, 1},
        {{5, 0, 3}, 9, 4},        {{10, 0, 0}, 9, 0},          {{10, 0, 1}, 11, 1},
        {{100, 0, 1000}, 999, 0}, {{100, 0, 1000}, 1000, 900},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(kk_kv_window.keep_from(&cases[i].bounds, cases[i].len), cases[i].from);
        assert_int_equal(kk_kv_restored.keep_from(&cases[i].bounds, cases[i].len), cases[i].from);
    }
}

/* The rows of the sink cost what they hold, from the start, and page 0 goes when it is done. */
static void a_sink_costs_its_rows(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 64, .sink = 4, .chunk = 64}, &some_latents);
    held_cache h = {.cache = cache_open(&w)};
    const int64_t sink = (int64_t)w.layout.page_bytes[KK_FULL] / 16;
    assert_int_equal(w.mem.bytes[KK_MEM_KV_FULL], sink);
    assert_int_equal(w.mem.bytes[KK_MEM_KV_SLIDING] + w.mem.bytes[KK_MEM_KV_LATENTS], 0);
    while (h.rows.len < 640) {
        append_rows(&w, &h, 16);
        check_rows(&w, h.cache, &h.rows, h.rows.len);
        assert_int_equal(kk_cache_bytes(h.cache, KK_FULL) + sink, w.mem.bytes[KK_MEM_KV_FULL]);
        assert_true(kk_cache_bytes(h.cache, KK_FULL) <= 2 * counted_page(&w, KK_FULL));
        assert_int_equal(w.mem.bytes[KK_MEM_KV_LATENTS],
                         (h.rows.len + 63) / 64 * counted_page(&w, KK_LATENT));
    }
    assert_null(kk_cache_pages(h.cache, KK_FULL)[0]);
    assert_null(kk_cache_sink(h.cache, KK_SLIDING));
    kk_cache_free(h.cache);
    world_close(&w);
}

/* A mark's sink is its own: the cache goes on from 0 with other rows, and comes back. */
static void a_mark_has_a_sink_of_its_own(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 8, .sink = 60, .chunk = 8}, &some_latents);
    held_cache h = {.cache = cache_open(&w)};
    kk_mark *early, *late;
    append_rows(&w, &h, 30);
    assert_int_equal(kk_mark_new(&early, h.cache, NULL), KK_OK);
    append_rows(&w, &h, 130);
    append_rows(&w, &h, 130);
    const timeline before = h.rows;
    assert_int_equal(kk_mark_new(&late, h.cache, NULL), KK_OK);
    assert_true(kk_cache_truncate(h.cache, 0));
    h.rows.len = 0;
    assert_int_equal(kk_cache_reserve(h.cache, 61, NULL), KK_OK);
    for (int64_t pos = 0; pos < 61; pos++) write_row(&w, h.cache, pos, 500);
    kk_cache_commit(h.cache, 61);
    kk_mark_restore(late, h.cache);
    check_rows(&w, h.cache, &before, before.len);
    kk_mark_restore(early, h.cache);
    h.rows.len = 30;
    append_rows(&w, &h, 50); /* the rest of the sink, on a page of its own */
    check_rows(&w, h.cache, &h.rows, h.rows.len);
    kk_cache *other = cache_open(&w);
    kk_mark_restore(early, other);
    h.rows.len = 30;
    check_rows(&w, other, &h.rows, 30);
    kk_cache_free(other);
    kk_mark_free(early);
    kk_mark_free(late);
    kk_cache_free(h.cache);
    world_close(&w);
}

/* Rows drafted into a sink and taken back are not in it. */
static void rejected_rows_do_not_stay_in_a_sink(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 16, .sink = 16, .chunk = 16}, NULL);
    held_cache h = {.cache = cache_open(&w)};
    for (int64_t pos = 0; pos < 40; pos++) {
        assert_int_equal(kk_cache_reserve(h.cache, 17, NULL), KK_OK);
        for (int64_t i = 1; i < 17; i++) write_row(&w, h.cache, pos + i, 9999);
        h.rows.tag[pos] = (uint32_t)pos;
        write_row(&w, h.cache, pos, (uint32_t)pos);
        h.rows.len = pos + 1;
        kk_cache_commit(h.cache, pos + 1);
        check_rows(&w, h.cache, &h.rows, pos + 1);
    }
    kk_cache_free(h.cache);
    world_close(&w);
}

/* Going back: as far as pages reach, or to nothing; the sink alone makes no page to write into. */
static void a_sink_is_not_gone_back_into(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 70, .sink = 50}, NULL);
    w.policy[KK_FULL] = &kk_kv_bounded;
    held_cache h = {.cache = cache_open(&w)};
    while (h.rows.len < 600) append_rows(&w, &h, 100);
    /* window: rows from 531 on, pages 8 and 9 */
    assert_int_equal(kk_cache_page_count(h.cache, KK_FULL), 2);
    assert_false(kk_cache_truncate(h.cache, 1));
    assert_false(kk_cache_truncate(h.cache, 50));
    assert_false(kk_cache_truncate(h.cache, 500));
    assert_int_equal(kk_cache_len(h.cache), 600);
    assert_true(kk_cache_truncate(h.cache, 581)); /* needs row 512, the first of page 8 */
    h.rows.len = 581;
    check_rows(&w, h.cache, &h.rows, 581);
    assert_false(kk_cache_can_truncate(h.cache, 580));
    assert_true(kk_cache_truncate(h.cache, 0));
    h.rows.len = 0;
    append_rows(&w, &h, 70);
    append_rows(&w, &h, 1);
    assert_true(kk_cache_truncate(h.cache, 20)); /* page 0 is still there */
    h.rows.len = 20;
    append_rows(&w, &h, 60);
    check_rows(&w, h.cache, &h.rows, h.rows.len);
    kk_cache_free(h.cache);
    world_close(&w);
}

/* The rows that a smaller length needs begin at its own chunk, which may have lost its page. */
static void a_chunk_that_has_gone_is_not_gone_back_into(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 64, .sink = 4, .chunk = 64}, NULL);
    held_cache h = {.cache = cache_open(&w)};
    while (h.rows.len < 260) append_rows(&w, &h, 20); /* rows from 192 on: pages 3 and 4 */
    assert_true(kk_cache_can_truncate(h.cache, 256));
    assert_false(kk_cache_can_truncate(h.cache, 255)); /* would need row 128 */
    assert_true(kk_cache_truncate(h.cache, 256));
    assert_false(kk_cache_truncate(h.cache, 255));
    kk_cache_free(h.cache);
    /* With no window, the start of any chunk needs no row. */
    w.bounds[KK_FULL] = (kk_kv_bounds){.window = 0, .sink = 4, .chunk = 64};
    h = (held_cache){.cache = cache_open(&w)};
    while (h.rows.len < 260) append_rows(&w, &h, 20);
    assert_false(kk_cache_truncate(h.cache, 129));
    assert_true(kk_cache_truncate(h.cache, 128));
    h.rows.len = 128;
    append_rows(&w, &h, 70);
    check_rows(&w, h.cache, &h.rows, h.rows.len);
    kk_cache_free(h.cache);
    /* Chunks and pages at odds: no row is needed at 99, and the begun page stays all the same. */
    w.bounds[KK_FULL] = (kk_kv_bounds){.window = 0, .sink = 4, .chunk = 3};
    h = (held_cache){.cache = cache_open(&w)};
    append_rows(&w, &h, 99);
    append_rows(&w, &h, 1);
    assert_true(kk_cache_truncate(h.cache, 98)); /* needs rows 96 and 97 */
    h.rows.len = 98;
    check_rows(&w, h.cache, &h.rows, 98);
    assert_false(kk_cache_can_truncate(h.cache, 63));
    assert_false(kk_cache_can_truncate(h.cache, 3)); /* no row is needed, but the page is */
    assert_true(kk_cache_can_truncate(h.cache, 0));
    kk_cache_free(h.cache);
    world_close(&w);
}

/* The content of a long cache stops growing, whatever the length. */
static void a_windowed_cache_is_bounded(void **state) {
    (void)state;
    static const struct {
        const kk_kv_policy *policy;
        kk_kv_bounds bounds;
        int64_t pages;
    } cases[] = {
        {&kk_kv_bounded, {.window = 128, .sink = 64}, 3}, /* 127 rows in three pages at most */
        {&kk_kv_window, {.window = 64, .sink = 4, .chunk = 64}, 2},
        {&kk_kv_restored, {.window = 64, .sink = 4, .chunk = 64}, 2},
        {&kk_kv_restored, {.window = 0, .sink = 4, .chunk = 64}, 1},
        {&kk_kv_restored, {.window = 64, .sink = 4, .chunk = 256}, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        open_restored(&w, cases[i].bounds, NULL);
        w.policy[KK_FULL] = cases[i].policy;
        const kk_cache_opts opts = cache_opts(&w, (int64_t)1 << 20, 16);
        kk_cache *c;
        int64_t most = 0;
        assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
        for (int64_t len = 0; len < 6400; len += 16) {
            assert_int_equal(kk_cache_reserve(c, 16, NULL), KK_OK);
            kk_cache_commit(c, len + 16);
            if (w.mem.bytes[KK_MEM_KV_FULL] > most) most = w.mem.bytes[KK_MEM_KV_FULL];
        }
        assert_int_equal(most, cases[i].pages * 4096 + counted_sink(&w, KK_FULL));
        kk_cache_free(c);
        world_close(&w);
    }
}

/* Going on after a mark and back to it takes nothing from the system, sinks or no sinks. */
static void steady_state_takes_no_memory(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 64, .sink = 64, .chunk = 64}, &some_latents);
    held_cache h = {.cache = cache_open(&w)};
    kk_mark *m;
    append_rows(&w, &h, 10);
    assert_int_equal(kk_mark_new(&m, h.cache, NULL), KK_OK);
    kk_fault_after(1, true);
    while (h.rows.len < MAX_LEN - 10) append_rows(&w, &h, 5);
    kk_mark_restore(m, h.cache);
    kk_fault_after(0, false);
    h.rows.len = 10;
    check_rows(&w, h.cache, &h.rows, 10);
    kk_mark_free(m);
    kk_cache_free(h.cache);
    world_close(&w);
}

/* A limit that the sink of a cache, or of a mark, just passes. */
static void limits_count_sinks(void **state) {
    (void)state;
    world w;
    open_restored(&w, (kk_kv_bounds){.window = 64, .sink = 32, .chunk = 64}, NULL);
    const int64_t sink = counted_sink(&w, KK_FULL);
    const kk_cache_opts opts = cache_opts(&w, MAX_LEN, MAX_BLOCK);
    held_cache h = {0};
    kk_mark *m;
    kk_err err;
    w.mem.limit = sink - 1;
    assert_int_equal(kk_cache_new(&h.cache, &opts, &err), KK_ENOMEM);
    assert_null(h.cache);
    assert_non_null(strstr(err.msg, "memory limit"));
    assert_int_equal(w.mem.bytes[KK_MEM_KV_FULL], 0);
    w.mem.limit = sink + 2 * 4096 + sink - 1;
    assert_int_equal(kk_cache_new(&h.cache, &opts, &err), KK_OK);
    append_rows(&w, &h, 40);
    assert_int_equal(kk_mark_new(&m, h.cache, &err), KK_ENOMEM);
    assert_null(m);
    assert_non_null(strstr(err.msg, "memory limit"));
    assert_int_equal(w.mem.bytes[KK_MEM_KV_FULL], sink + 4096);
    uint8_t *const page = kk_cache_pages(h.cache, KK_FULL)[0];
    append_rows(&w, &h, 1); /* nobody shares it */
    assert_ptr_equal(kk_cache_pages(h.cache, KK_FULL)[0], page);
    w.mem.limit++;
    assert_int_equal(kk_mark_new(&m, h.cache, &err), KK_OK);
    check_rows(&w, h.cache, &h.rows, h.rows.len);
    kk_mark_free(m);
    kk_cache_free(h.cache);
    world_close(&w);
}

static void windows_that_make_no_sense_are_refused(void **state) {
    (void)state;
    static const struct {
        const kk_kv_policy *policy;
        kk_kv_bounds bounds;
        const char *says; /* NULL: fine */
    } cases[] = {
        {&kk_kv_native, {.window = 0}, "native K/V cache that keeps a window of 0"},
        {&kk_kv_native, {.window = 10, .sink = 4}, "native K/V cache that keeps the first 4"},
        {&kk_kv_exact, {.sink = 1}, "exact K/V cache that keeps the first 1"},
        {&kk_kv_bounded, {.window = 0, .sink = 4}, "bounded K/V cache that keeps a window of 0"},
        {&kk_kv_bounded, {.window = 10, .sink = -1}, "first -1"},
        {&kk_kv_bounded, {.window = 10, .sink = 65}, "sink of 65 rows: at most 64"},
        {&kk_kv_window, {.window = 0}, "window K/V cache that keeps a window of 0"},
        {&kk_kv_restored,
         {.window = 0, .chunk = 64},
         "restored K/V cache that keeps a window of 0"},
        {&kk_kv_restored, {.window = -1, .sink = 4}, "window of -1"},
        {&kk_kv_restored, {.window = 0, .sink = -4}, "sink of -4"},
        {&kk_kv_restored, {.window = 64, .sink = 1000}, "sink of 1000 rows"},
        {&kk_kv_restored, {.window = 64, .chunk = -64}, "chunks of -64"},
        {&kk_kv_restored, {.window = 0, .sink = 1}, NULL},
        {&kk_kv_window, {.window = 1}, NULL},
        {&kk_kv_window, {.window = 0, .sink = 64, .chunk = 64}, NULL},
        {&kk_kv_bounded, {.window = 1, .sink = 64}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        open_restored(&w, cases[i].bounds, NULL);
        w.policy[KK_FULL] = cases[i].policy;
        const kk_cache_opts opts = cache_opts(&w, 100, 0);
        kk_cache *c;
        kk_err err = {0};
        assert_int_equal(kk_cache_new(&c, &opts, &err), cases[i].says ? KK_EINVAL : KK_OK);
        if (cases[i].says) {
            assert_null(c);
            assert_non_null(strstr(err.msg, cases[i].says));
        }
        kk_cache_free(c);
        world_close(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_leave_by_chunks),
        cmocka_unit_test(a_sink_costs_its_rows),
        cmocka_unit_test(a_mark_has_a_sink_of_its_own),
        cmocka_unit_test(rejected_rows_do_not_stay_in_a_sink),
        cmocka_unit_test(a_sink_is_not_gone_back_into),
        cmocka_unit_test(a_chunk_that_has_gone_is_not_gone_back_into),
        cmocka_unit_test(a_windowed_cache_is_bounded),
        cmocka_unit_test(steady_state_takes_no_memory),
        cmocka_unit_test(limits_count_sinks),
        cmocka_unit_test(windows_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
