/* key_cache_test.c - which keys stay, which give way, and that no entry is another name's. */
#include "backend/cpu/key_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 4096, FITS = 16 };

static kk_mem mem;
static kk_key_cache cache;
static uint8_t pages[8192];
static kk_weight *const decoder = (kk_weight *)(void *)pages;

static int setup(void **state) {
    (void)state;
    mem = (kk_mem){.limit = 0};
    kk_key_cache_open(&cache, &mem, FITS * BYTES);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    kk_key_cache_clear(&cache);
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 0);
    return 0;
}

static kk_key_name name_of(int32_t i) {
    return (kk_key_name){.latents = pages + i, .id = i, .decoder = decoder, .layer = i % 5};
}

static kk_key_entry *place(int32_t i, int64_t forward) {
    const kk_key_name name = name_of(i);
    return kk_key_cache_place(&cache, &name, BYTES, forward);
}

/* Fills the entry of name i as its keys would. */
static void fill(int32_t i, int64_t forward) {
    kk_key_entry *e = place(i, forward);
    assert_non_null(e);
    assert_false(e->ready);
    memset(kk_key_cache_data(&cache, e, BYTES), i, BYTES);
    e->ready = true;
}

/* The same where each call looks at a few entries only for one that gives way. */
static void fill_at_last(int32_t i, int64_t forward) {
    for (int tries = 0; tries < FITS; tries++)
        if (place(i, forward)) break;
    fill(i, forward);
}

static bool holds(int32_t i, int64_t forward) {
    const kk_key_entry *e = place(i, forward);
    uint8_t want[BYTES];
    if (!e || !e->ready) return false;
    memset(want, i, BYTES);
    assert_memory_equal(kk_key_cache_data(&cache, e, BYTES), want, BYTES);
    return true;
}

static void what_is_read_stays(void **state) {
    (void)state;
    for (int32_t i = 0; i < FITS; i++) fill(i, 1);
    for (int64_t forward = 2; forward < 300; forward++) {
        for (int32_t i = 0; i < FITS; i++) assert_true(holds(i, forward));
        assert_null(place(100 + (int32_t)forward, forward)); /* no place, and nobody gives way */
    }
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], FITS * BYTES);
}

static void what_is_not_read_gives_way(void **state) {
    (void)state;
    for (int32_t i = 0; i < FITS; i++) fill(i, 1);
    int64_t forward = 2;
    for (; forward < 200; forward++)
        for (int32_t i = 0; i < FITS / 2; i++) assert_true(holds(i, forward));
    for (int32_t i = 0; i < FITS / 2; i++) fill_at_last(50 + i, forward);
    for (int32_t i = 0; i < FITS / 2; i++) assert_true(holds(i, forward));
    for (int32_t i = 0; i < FITS / 2; i++) assert_true(holds(50 + i, forward));
    for (int32_t i = FITS / 2; i < FITS; i++) assert_false(holds(i, forward));
}

/* Memory is taken as entries are, and old ones are used before more is taken. */
static void old_entries_come_before_new_memory(void **state) {
    (void)state;
    for (int32_t i = 0; i < 4; i++) fill(i, 1);
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 4 * BYTES);
    for (int32_t i = 4; i < 8; i++) fill(i, 1000);
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 4 * BYTES);
    fill(8, 1001);
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 5 * BYTES);
}

static void each_part_of_a_name_counts(void **state) {
    (void)state;
    fill(7, 1);
    assert_true(holds(7, 2));
    /* More numbers and layers than there are lists, so that some are in the list of this name. */
    for (int32_t i = 8; i < 8 + 8 * KK_KEY_LISTS; i++) {
        kk_key_name name = name_of(7);
        if (i % 2)
            name.id = i;
        else
            name.layer = i;
        const kk_key_entry *e = kk_key_cache_place(&cache, &name, BYTES, 2);
        assert_true(!e || !e->ready);
    }
    kk_key_name other[2] = {name_of(7), name_of(7)};
    other[0].latents++;
    other[1].decoder = (kk_weight *)(void *)(pages + 64);
    for (int i = 0; i < 2; i++) {
        const kk_key_entry *e = kk_key_cache_place(&cache, &other[i], BYTES, 100);
        assert_non_null(e);
        assert_false(e->ready);
    }
}

/* Many names through few entries, lists of several, against what must be there. */
static void entries_are_found_by_their_names(void **state) {
    (void)state;
    uint64_t random = 5;
    int64_t held = 0;
    for (int64_t forward = 1; forward < 20000; forward++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const int32_t i = (int32_t)(random >> 33) % 40;
        kk_key_entry *e = place(i, forward);
        if (!e) continue;
        if (e->ready) {
            assert_true(holds(i, forward));
            held++;
            continue;
        }
        memset(kk_key_cache_data(&cache, e, BYTES), i, BYTES);
        e->ready = true;
    }
    assert_true(held > 1000);
}

static void sizes_share_the_budget(void **state) {
    (void)state;
    for (int32_t i = 0; i < FITS / 2; i++) fill(i, 1);
    for (int32_t i = 0; i < FITS / 4; i++) {
        const kk_key_name name = name_of(200 + i);
        assert_non_null(kk_key_cache_place(&cache, &name, 2 * BYTES, 1));
    }
    assert_null(place(60, 1));
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], FITS * BYTES);
    for (int32_t i = 0; i < FITS / 2; i++) assert_true(holds(i, 1));
}

static void nothing_is_kept_where_none_is_wanted(void **state) {
    (void)state;
    kk_key_cache_clear(&cache);
    kk_key_cache_open(&cache, &mem, -1);
    assert_null(place(1, 1));
}

/* K/V rows come first: keys take a small part of a memory limit, and never more than is left. */
static void a_memory_limit_is_kept(void **state) {
    (void)state;
    kk_key_cache_clear(&cache);
    mem.limit = 8 * 2 * BYTES;
    kk_key_cache_open(&cache, &mem, 0);
    fill(1, 1);
    fill(2, 1);
    assert_null(place(3, 1));
    kk_key_cache_clear(&cache);
    kk_mem_count(&mem, KK_MEM_KV_FULL, mem.limit - BYTES);
    fill(1, 1);
    assert_null(place(2, 1));
    kk_mem_count(&mem, KK_MEM_KV_FULL, -(mem.limit - BYTES));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_read_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_read_gives_way, setup, teardown),
        cmocka_unit_test_setup_teardown(old_entries_come_before_new_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(each_part_of_a_name_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(entries_are_found_by_their_names, setup, teardown),
        cmocka_unit_test_setup_teardown(sizes_share_the_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_kept_where_none_is_wanted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_memory_limit_is_kept, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
