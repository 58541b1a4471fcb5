/* saved_session.h - sessions saved, loaded and compared with the one that never stopped. */
#ifndef KK_TESTS_SAVED_SESSION_H
#define KK_TESTS_SAVED_SESSION_H

#include "support/same_cache.h"
#include "support/scratch.h"
#include "support/tiny.h"

enum { CTX = 320, LONGEST = 300 };

static int32_t prompt[LONGEST];

static inline int setup(void **state) {
    tiny_prompt(prompt, LONGEST, 5);
    return scratch_setup(state);
}

static inline kk_engine *drafting_engine(const char *spec) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .synthetic = spec, .drafter = "synthetic", .threads = 1, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static inline kk_session *session_with(kk_engine *e, kk_session_opts opts) {
    kk_session *s = NULL;
    opts.ctx = opts.ctx ? opts.ctx : CTX;
    assert_ok(kk_session_new(&s, e, &opts, why));
    return s;
}

static inline kk_session *load(kk_engine *e, const char *path) {
    kk_session *s = NULL;
    bool exact = false;
    assert_ok(kk_session_load(&s, e, path, NULL, &exact, why));
    assert_true(exact);
    return s;
}

static const kk_generate_opts some = {
    .max_tokens = 12, .ignore_eos = true, .sampling = {.temp = 1, .top_k = 40, .seed = 11}};

static inline uint64_t generate(kk_session *s) {
    kk_result r;
    assert_ok(kk_generate(s, &some, NULL, NULL, &r, why));
    return r.logits_hash;
}

static inline void assert_same(kk_session *a, kk_session *b) {
    char differs[200];
    assert_int_equal(a->len, b->len);
    assert_int_equal(a->ctx, b->ctx);
    assert_int_equal(a->spec, b->spec);
    assert_int_equal(a->format, b->format);
    assert_int_equal(a->draft_max, b->draft_max);
    assert_true(same_cache(a->cache, b->cache, false, differs, sizeof differs));
    assert_int_equal(kk_session_settled(a), kk_session_settled(b));
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens);
    assert_int_equal(kk_cache_len(a->cache), kk_cache_len(b->cache));
}

static inline void assert_same_file(scratch *w, kk_session *a, kk_session *b) {
    char first[600];
    size_t n, m;
    snprintf(first, sizeof first, "%s/first", w->dir);
    assert_ok(kk_session_save(a, first, why));
    assert_ok(kk_session_save(b, scratch_path(w, "second"), why));
    char *x = scratch_read(first, &n), *y = scratch_read(scratch_path(w, "second"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* Saves s, goes on with it and with what was saved, and compares all there is. */
static inline void check_round_trip(scratch *w, kk_session *s) {
    const char *path = scratch_path(w, "one.kks");
    char name[600];
    snprintf(name, sizeof name, "%s", path);
    assert_ok(kk_session_save(s, name, why));
    kk_session *again = load(s->engine, name);
    assert_same(s, again);
    assert_same_file(w, s, again);
    if (s->len > 0) {
        assert_true(generate(s) == generate(again));
        assert_same(s, again);
        assert_same_file(w, s, again);
    }
    tiny_append(s, prompt, 9);
    tiny_append(again, prompt, 9);
    assert_ok(kk_session_rewind(s, s->len - 4, NULL, why));
    assert_ok(kk_session_rewind(again, again->len - 4, NULL, why));
    assert_true(generate(s) == generate(again));
    assert_same_file(w, s, again);
    kk_session_free(again);
}

static const int32_t lengths[] = {0, 1, 2, 63, 64, 65, 128, 200, 263};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* At some lengths, settled and with the last token as the anchor. */
static inline void some_lengths(scratch *w, kk_engine *e, kk_session_opts how, size_t from,
                                size_t step) {
    for (size_t i = from; i < LENGTHS; i += step) {
        kk_session *s = session_with(e, how);
        tiny_append(s, prompt, lengths[i]);
        if (i % 2) assert_ok(kk_session_rewind(s, lengths[i] - lengths[i] / 3, NULL, why));
        check_round_trip(w, s);
        kk_session_free(s);
    }
}

#endif
