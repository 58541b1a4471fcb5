/* restored.h - engines that can rebuild rows, and sessions that keep few of theirs, for tests. */
#ifndef KK_TESTS_RESTORED_H
#define KK_TESTS_RESTORED_H

#include "support/same_cache.h"
#include "support/tiny.h"

enum { TINY_CONTEXT = 8192, RESTORED_RANK = 64, BOUNDS = 6 };

/* A synthetic model with a drafter and a projection that has learned nothing: what it rebuilds is
 * far from true, so that a row taken for another shows. */
static inline kk_engine *restoring_engine_keys(const char *spec, int32_t threads, int32_t max_rows,
                                               int64_t key_cache) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = spec,
                                 .drafter = "synthetic",
                                 .projection = "synthetic:64",
                                 .threads = threads,
                                 .max_rows = max_rows,
                                 .key_cache = key_cache,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}
static inline kk_engine *restoring_engine(const char *spec, int32_t threads, int32_t max_rows) {
    return restoring_engine_keys(spec, threads, max_rows, 0);
}

/* Sinks, windows and chunks on and off each other's borders. */
static inline kk_session_opts bounds_at(int i) {
    static const kk_session_opts bounds[BOUNDS] = {
        {.sink = 4, .window = 32, .chunk = 32},  {.sink = -1, .window = 16, .chunk = 1},
        {.sink = 64, .window = -1, .chunk = 64}, {.sink = 1, .window = 5, .chunk = 7},
        {.sink = 4, .window = 64, .chunk = 64},  {.sink = 30, .window = 20, .chunk = 9},
    };
    return bounds[i % BOUNDS];
}

/* Every one with either policy on sliding layers, on full ones, on both, and the other on full
 * ones: 2 * 4 * BOUNDS of them. */
static inline kk_session_opts keeping_at(int i) {
    kk_session_opts how = bounds_at(i / 8);
    const kk_keep keep = i % 2 ? KK_KEEP_WINDOW : KK_KEEP_RESTORED;
    const kk_keep other = i % 2 ? KK_KEEP_RESTORED : KK_KEEP_WINDOW;
    const int kinds = i / 2 % 4;
    how.kv_sliding = kinds != 1 ? keep : KK_KEEP_ALL;
    how.kv_full = kinds == 0 ? KK_KEEP_ALL : kinds == 3 ? other : keep;
    return how;
}

/* Whether a round of such drafts is refused for the window. */
static inline bool draft_too_long(const kk_session_opts *how) {
    const bool restored = how->kv_sliding == KK_KEEP_RESTORED || how->kv_full == KK_KEEP_RESTORED;
    return restored && how->draft_max + 1 > (how->window == -1 ? 0 : how->window);
}

/* Under diagnosis: true rows are mixed in by so much. */
static inline kk_session *session_diagnosed(kk_engine *e, kk_session_opts how, float mix) {
    kk_session *s = NULL;
    how.ctx = how.ctx ? how.ctx : 400;
    if (how.spec == KK_SPEC_AUTO) how.spec = KK_SPEC_NONE;
    assert_ok(kk_session_new_diagnosed(&s, e, &how, mix, why));
    return s;
}

static inline kk_session *session_of(kk_engine *e, kk_session_opts how) {
    kk_session *s = NULL;
    how.ctx = how.ctx ? how.ctx : 400;
    if (how.spec == KK_SPEC_AUTO) how.spec = KK_SPEC_NONE;
    assert_ok(kk_session_new(&s, e, &how, why));
    return s;
}

#endif
