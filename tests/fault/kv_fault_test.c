/* kv_fault_test.c - pools, caches and marks while the n-th taking fails, for every n: a status,
 * nothing leaked, and a cache that still shows its rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"

static kk_kv_layout layout;
static kk_mem mem;

static int make_layout(void **state) {
    (void)state;
    kk_kv_shape shape = {.n_layer = 2, .window = 70};
    for (int i = 0; i < 2; i++) {
        shape.layer[i].kind = i ? KK_FULL : KK_SLIDING;
        shape.layer[i].stores = true;
        shape.layer[i].n_kv_head = 1;
        shape.layer[i].head_dim = 32;
    }
    const kk_kv_latents latents = {.rank = 64, .format = KK_KV_Q8, .n_scales = 1};
    return kk_kv_layout_init(&layout, &shape, KK_KV_BF16, &latents, NULL) == KK_OK ? 0 : -1;
}

static kk_status open_pools(kk_pool *pool[KK_KINDS], kk_err *err) {
    static const kk_mem_category category[KK_KINDS] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL,
                                                       KK_MEM_KV_LATENTS};
    for (int k = 0; k < KK_KINDS; k++)
        KK_TRY(kk_pool_new(&pool[k], &mem, category[k], layout.page_bytes[k], err));
    return KK_OK;
}

static kk_cache_opts opts_of(kk_pool *const pool[KK_KINDS]) {
    return (kk_cache_opts){.layout = &layout,
                           .pool = {pool[0], pool[1], pool[2]},
                           .policy = {&kk_kv_window, &kk_kv_restored, &kk_kv_exact},
                           .bounds = {{.window = 70, .sink = 4, .chunk = 16},
                                      {.window = 200, .sink = 60, .chunk = 64}},
                           .max_len = 1000,
                           .max_block = 100};
}

static int64_t counted(void) {
    int64_t sum = 0;
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) sum += mem.bytes[c];
    return sum;
}

/* Everything a session does with its cache. */
static kk_status whole_life(kk_err *err) {
    kk_pool *pool[KK_KINDS] = {NULL};
    kk_cache *c = NULL, *fork = NULL, *filled = NULL;
    kk_mark *m = NULL;
    kk_status st = open_pools(pool, err);
    const kk_cache_opts opts = opts_of(pool);
    if (st == KK_OK) st = kk_cache_new(&c, &opts, err);
    for (int64_t len = 0; st == KK_OK && len < 500; len += 100) {
        st = kk_cache_reserve(c, 100, err);
        if (st == KK_OK) kk_cache_commit(c, len + 100);
    }
    if (st == KK_OK) st = kk_mark_new(&m, c, err);
    if (st == KK_OK) st = kk_cache_new(&fork, &opts, err);
    if (st == KK_OK) kk_mark_restore(m, fork);
    if (st == KK_OK) st = kk_cache_reserve(fork, 100, err);
    if (st == KK_OK) st = kk_cache_new(&filled, &opts, err);
    if (st == KK_OK) st = kk_cache_fill(filled, 500, NULL, err);
    kk_cache_free(filled);
    kk_cache_free(fork);
    kk_mark_free(m);
    kk_cache_free(c);
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(pool[k]);
    return st;
}

static void every_taking_may_fail(void **state) {
    (void)state;
    const int64_t bytes = kk_live_bytes(), blocks = kk_live_blocks();
    int64_t n = 1;
    for (;; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = whole_life(&err);
        kk_fault_after(0, false);
        assert_int_equal(kk_live_bytes(), bytes);
        assert_int_equal(kk_live_blocks(), blocks);
        for (int c = 0; c < KK_MEM_CATEGORIES; c++) assert_int_equal(mem.bytes[c], 0);
        if (st == KK_OK) break;
        assert_int_equal(st, KK_ENOMEM);
        assert_true(strlen(err.msg) > 10);
    }
    assert_true(n >
                38); /* three pools, three caches of three tables and two sinks, slabs, a mark */
}

/* A memory limit that a cache of this length just misses leaves it empty and nothing counted. */
static void a_failed_fill_takes_nothing(void **state) {
    (void)state;
    kk_pool *pool[KK_KINDS];
    kk_cache *c;
    kk_err err;
    assert_int_equal(open_pools(pool, NULL), KK_OK);
    const kk_cache_opts opts = opts_of(pool);
    assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
    const int64_t sinks = counted();
    assert_int_equal(sinks, kk_cache_sink_bytes(c, KK_SLIDING) + kk_cache_sink_bytes(c, KK_FULL));
    for (mem.limit = 1; kk_cache_fill(c, 500, NULL, &err) != KK_OK; mem.limit += 4096) {
        assert_int_equal(err.code, KK_ENOMEM);
        assert_int_equal(kk_cache_len(c), 0);
        assert_int_equal(counted(), sinks);
    }
    assert_true(mem.limit > 4 * 4096);
    mem.limit = 0;
    kk_cache_free(c);
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(pool[k]);
}

/* A mark that cannot be had leaves the cache's pages owned by the cache alone. */
static void a_failed_mark_shares_nothing(void **state) {
    (void)state;
    kk_pool *pool[KK_KINDS];
    kk_cache *c;
    kk_mark *m;
    assert_int_equal(open_pools(pool, NULL), KK_OK);
    const kk_cache_opts opts = opts_of(pool);
    assert_int_equal(kk_cache_new(&c, &opts, NULL), KK_OK);
    assert_int_equal(kk_cache_reserve(c, 100, NULL), KK_OK);
    kk_cache_commit(c, 100);
    uint8_t *const full = kk_cache_pages(c, KK_FULL)[1];
    const int64_t before = counted();
    for (int64_t n = 1;; n++) {
        kk_fault_after(n, false);
        const kk_status st = kk_mark_new(&m, c, NULL);
        kk_fault_after(0, false);
        if (st != KK_OK) assert_int_equal(counted(), before);
        assert_int_equal(kk_cache_reserve(c, 1, NULL), KK_OK);
        /* Copied exactly when the mark exists. */
        assert_int_equal(kk_cache_pages(c, KK_FULL)[1] != full, st == KK_OK);
        kk_mark_free(m);
        if (st == KK_OK) break;
        assert_null(m);
    }
    kk_cache_free(c);
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(pool[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_taking_may_fail),
        cmocka_unit_test(a_failed_fill_takes_nothing),
        cmocka_unit_test(a_failed_mark_shares_nothing),
    };
    return cmocka_run_group_tests(tests, make_layout, NULL);
}
