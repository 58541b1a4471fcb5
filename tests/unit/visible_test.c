/* visible_test.c - the rule about which rows a query sees, against its sentences taken key by key;
 * which caches follow the same one; and what attention reads by it, counted. */
#include "support/cache_world.h"

static const int32_t masks[] = {0, 1, 2, 17, 64, 100, 130}, windows[] = {0, 1, 5, 64, 100},
                     sinks[] = {0, 1, 4, 64}, chunks[] = {0, 1, 7, 64, 100};

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef void (*rule_fn)(const kk_visible_rule *r);

static void each_rule(rule_fn fn) {
    for (size_t m = 0; m < COUNT(masks); m++)
        for (size_t w = 0; w < COUNT(windows); w++)
            for (size_t s = 0; s < COUNT(sinks); s++)
                for (size_t c = 0; c < COUNT(chunks); c++)
                    for (int evicts = 0; evicts < 2; evicts++)
                        fn(&(kk_visible_rule){.mask = masks[m],
                                              .evicts = evicts,
                                              .bounds = {.window = windows[w],
                                                         .sink = sinks[s],
                                                         .chunk = chunks[c]}});
}

/* How a query at p reads the row at j. */
typedef enum { UNSEEN, STORED, GONE } way;

static way way_of(const kk_visible_rule *r, int64_t p, int64_t j) {
    const int64_t chunk = r->bounds.chunk ? r->bounds.chunk : 1;
    const bool shown = j >= 0 && j <= p && (r->mask == 0 || j > p - r->mask);
    if (!r->evicts) return shown || (j <= p && j < r->bounds.sink) ? STORED : UNSEEN;
    if (!shown) return UNSEEN;
    return j < r->bounds.sink || j >= p / chunk * chunk - r->bounds.window ? STORED : GONE;
}

static bool within(int64_t j, int64_t from, int64_t to) { return j >= from && j < to; }

static void check_keys(const kk_visible_rule *r) {
    for (int64_t p = 0; p < 330; p += p < 140 ? 1 : 13) {
        const kk_visible v = kk_sees(r, p);
        int64_t stored = 0, gone = 0;
        for (int64_t j = 0; j <= p + 64; j++) {
            const way want = way_of(r, p, j);
            const bool in_sink = within(j, v.sink_from, v.sink_to),
                       in_rest = within(j, v.from, v.to);
            assert_false(in_sink && in_rest);
            assert_int_equal(in_sink || in_rest, want == STORED);
            assert_int_equal(within(j, v.gone_from, v.gone_to), want == GONE);
            stored += want == STORED;
            gone += want == GONE;
        }
        assert_int_equal(kk_visible_stored(v), stored);
        assert_int_equal(kk_visible_gone(v), gone);
    }
}

static void every_key_is_stored_gone_or_not_seen(void **state) {
    (void)state;
    each_rule(check_keys);
}

/* Rows of a chunk miss the same rows, and none that comes after the chunk's start. */
static void check_chunks(const kk_visible_rule *r) {
    const kk_kv_bounds *b = &r->bounds;
    for (int64_t p = 0; p < 330; p++) {
        const int64_t start = kk_chunk_start(b, p), end = kk_chunk_end(b, p);
        assert_true(start <= p && p < end && start % (end - start) == 0);
        assert_int_equal(end - start, b->chunk ? b->chunk : 1);
        assert_int_equal(kk_kept_from(b, p), kk_kept_from(b, start));
        assert_true(kk_kept_from(b, p) <= start);
    }
}

/* The first query that misses a row is the first whose rows are kept from after it. */
static void check_inverse(const kk_visible_rule *r) {
    const kk_kv_bounds *b = &r->bounds;
    for (int64_t j = 0; j < 200; j++) {
        const int64_t p = kk_gone_at(b, j);
        assert_true(kk_kept_from(b, p) > j);
        assert_true(kk_kept_from(b, p - 1) <= j);
    }
}

static void chunks_miss_the_same_rows(void **state) {
    (void)state;
    each_rule(check_chunks);
    each_rule(check_inverse);
}

/* ---- caches ------------------------------------------------------------------------------- */

/* A cache keeps what its rule says is stored of the next query. */
static void caches_keep_what_is_seen(void **state) {
    (void)state;
    static const struct {
        const kk_kv_policy *policy;
        kk_kv_bounds bounds;
        kk_visible_rule want; /* of full layers */
    } cases[] = {
        {&kk_kv_exact, {0}, {0}},
        {&kk_kv_bounded, {.window = 70, .sink = 4}, {.mask = 70, .bounds = {.sink = 4}}},
        {&kk_kv_window,
         {.window = 64, .sink = 4, .chunk = 32},
         {.evicts = true, .bounds = {.window = 64, .sink = 4, .chunk = 32}}},
        {&kk_kv_restored,
         {.window = 5, .sink = 1},
         {.evicts = true, .bounds = {.window = 5, .sink = 1}}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        world w;
        world_open(&w, 90, KK_KV_BF16, NULL);
        w.policy[KK_FULL] = cases[i].policy;
        w.bounds[KK_FULL] = cases[i].bounds;
        kk_cache *c = cache_open(&w);
        const kk_visible_rule full = kk_cache_rule(c, KK_FULL), want = cases[i].want;
        const kk_visible_rule sliding = kk_cache_rule(c, KK_SLIDING);
        assert_true(sliding.mask == 90 && !sliding.evicts && sliding.bounds.sink == 0);
        assert_int_equal(full.mask, want.mask);
        assert_int_equal(full.evicts, want.evicts);
        assert_memory_equal(&full.bounds, &want.bounds, sizeof want.bounds);
        for (int64_t p = 200; p < 330; p++)
            assert_int_equal(kk_sees(&full, p).from,
                             cases[i].policy->keep_from(&cases[i].bounds, p));
        kk_cache_free(c);
        world_close(&w);
    }
}

/* Sliding layers that evict still have the model's own mask. */
static void evicting_layers_keep_their_mask(void **state) {
    (void)state;
    world w;
    world_open(&w, 90, KK_KV_BF16, NULL);
    w.policy[KK_SLIDING] = &kk_kv_window;
    w.bounds[KK_SLIDING] = (kk_kv_bounds){.window = 30, .sink = 4, .chunk = 16};
    kk_cache *c = cache_open(&w);
    const kk_visible_rule r = kk_cache_rule(c, KK_SLIDING);
    assert_true(r.mask == 90 && r.evicts && r.bounds.window == 30 && r.bounds.chunk == 16);
    kk_cache_free(c);
    world_close(&w);
}

static void caches_are_alike_or_not(void **state) {
    (void)state;
    static kk_diagnosis none = {.mix = 0}, half = {.mix = 0.5f};
    const kk_kv_latents latents[] = {{0},
                                     {.rank = 64, .format = KK_KV_BF16},
                                     {.rank = 64, .format = KK_KV_F32},
                                     {.rank = 128, .format = KK_KV_BF16},
                                     {.rank = 64, .format = KK_KV_BF16, .diagnosis = &none},
                                     {.rank = 64, .format = KK_KV_BF16, .diagnosis = &half}};
    static const struct {
        kk_kv_format format;
        int latents;
        const kk_kv_policy *full;
        kk_kv_bounds bounds;
    } cases[] = {
        {KK_KV_BF16, 0, &kk_kv_exact, {0}},
        {KK_KV_F32, 0, &kk_kv_exact, {0}},
        {KK_KV_BF16, 0, &kk_kv_bounded, {.window = 64, .sink = 4}},
        {KK_KV_BF16, 0, &kk_kv_window, {.window = 64, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 0, &kk_kv_window, {.window = 63, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 0, &kk_kv_window, {.window = 64, .sink = 5, .chunk = 64}},
        {KK_KV_BF16, 0, &kk_kv_window, {.window = 64, .sink = 4, .chunk = 32}},
        {KK_KV_BF16, 1, &kk_kv_restored, {.window = 64, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 1, &kk_kv_window, {.window = 64, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 2, &kk_kv_restored, {.window = 64, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 3, &kk_kv_restored, {.window = 64, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 4, &kk_kv_restored, {.window = 64, .sink = 4, .chunk = 64}},
        {KK_KV_BF16, 5, &kk_kv_restored, {.window = 64, .sink = 4, .chunk = 64}},
    };
    static world w[2 * COUNT(cases)];
    kk_cache *c[2 * COUNT(cases)];
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const size_t k = i / 2;
        world_open(&w[i], 90, cases[k].format, &latents[cases[k].latents]);
        w[i].policy[KK_FULL] = cases[k].full;
        w[i].bounds[KK_FULL] = cases[k].bounds;
        c[i] = cache_open(&w[i]);
    }
    for (size_t i = 0; i < 2 * COUNT(cases); i++)
        for (size_t k = 0; k < 2 * COUNT(cases); k++)
            assert_int_equal(kk_cache_alike(c[i], c[k]), i / 2 == k / 2);
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        kk_cache_free(c[i]);
        world_close(&w[i]);
    }
}

/* ---- counts ------------------------------------------------------------------------------- */

/* Keys counted one by one for a layer that follows the rule; rows once for all queries of the
 * forward that share a chunk. */
static void count_keys(const kk_visible_rule *r, bool rebuilds, int64_t pos, int32_t n,
                       kk_key_counts *sum) {
    const int64_t chunk = r->bounds.chunk ? r->bounds.chunk : 1;
    for (int64_t p = pos; p < pos + n; p++) {
        sum->queries++;
        for (int64_t j = 0; j <= p; j++) {
            const way w = way_of(r, p, j);
            sum->keys_stored += w == STORED;
            if (w != GONE || !rebuilds) continue;
            bool before = false; /* an earlier query of the chunk has had it rebuilt */
            for (int64_t e = p / chunk * chunk; e < p; e++)
                before |= e >= pos && way_of(r, e, j) == GONE;
            sum->keys_rebuilt++;
            sum->rows_rebuilt += !before;
        }
    }
}

/* Forwards of any size at any place. */
static void check_counts(const kk_cache *c, const kk_visible_rule *sliding, bool sliding_rebuilds,
                         const kk_visible_rule *full, bool full_rebuilds) {
    static const int64_t places[] = {0, 3, 63, 64, 65, 128, 250};
    static const int32_t sizes[] = {1, 2, 17, 64, 90};
    for (size_t i = 0; i < COUNT(places); i++) {
        const int32_t n = sizes[i % COUNT(sizes)];
        kk_key_counts want = {0}, got = {1, 2, 3, 4};
        count_keys(sliding, sliding_rebuilds, places[i], n, &want);
        want = (kk_key_counts){3 * want.queries, 3 * want.keys_stored, 3 * want.keys_rebuilt,
                               3 * want.rows_rebuilt}; /* such layers has the tiny shape */
        count_keys(full, full_rebuilds, places[i], n, &want);
        kk_cache_count(c, places[i], n, &got);
        assert_int_equal(got.queries - 1, want.queries);
        assert_int_equal(got.keys_stored - 2, want.keys_stored);
        assert_int_equal(got.keys_rebuilt - 3, want.keys_rebuilt);
        assert_int_equal(got.rows_rebuilt - 4, want.rows_rebuilt);
    }
}

/* Every policy with every sink, window and chunk that it takes. */
static void count_all(int sliding, int full, int32_t mask) {
    static const kk_kv_policy *const policies[] = {&kk_kv_window, &kk_kv_restored};
    for (size_t i = 0; i < COUNT(windows) * COUNT(sinks) * COUNT(chunks); i++) {
        const kk_kv_bounds bounds = {.window = windows[i % COUNT(windows)],
                                     .sink = sinks[i / COUNT(windows) % COUNT(sinks)],
                                     .chunk = chunks[i / COUNT(windows) / COUNT(sinks)]};
        if (bounds.window + bounds.sink == 0) continue;
        world w;
        world_open(&w, mask, KK_KV_BF16, NULL);
        kk_visible_rule see[] = {{.mask = mask}, {0}};
        const int chosen[] = {sliding, full};
        for (int k = 0; k < KK_LAYER_KINDS; k++) {
            if (chosen[k] < 0) continue;
            w.policy[k] = policies[chosen[k]];
            w.bounds[k] = see[k].bounds = bounds;
            see[k].evicts = true;
        }
        kk_cache *c = cache_open(&w);
        check_counts(c, &see[KK_SLIDING], sliding == 1, &see[KK_FULL], full == 1);
        kk_cache_free(c);
        world_close(&w);
    }
}

static void keys_are_counted_by_the_rule(void **state) {
    (void)state;
    count_all(-1, 0, 70);
    count_all(-1, 1, 70);
    count_all(1, -1, 130);
    count_all(0, 1, 100);
    count_all(1, 0, 17);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_stored_gone_or_not_seen),
        cmocka_unit_test(chunks_miss_the_same_rows),
        cmocka_unit_test(caches_keep_what_is_seen),
        cmocka_unit_test(evicting_layers_keep_their_mask),
        cmocka_unit_test(caches_are_alike_or_not),
        cmocka_unit_test(keys_are_counted_by_the_rule),
    };
    return cmocka_run_group_tests_name("visible", tests, NULL, NULL);
}
