/* tiny.h - engines and sessions on the small synthetic model, for tests.  Any failure to make
 * one fails the test with the library's own sentence. */
#ifndef KK_TESTS_TINY_H
#define KK_TESTS_TINY_H

#include "engine/session.h"
#include "support/ok.h"

enum { TINY_VOCAB = 1024, TINY_WINDOW = 64 };

static inline kk_engine *tiny_engine(const char *spec, int32_t threads, int32_t max_rows) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .synthetic = spec, .threads = threads, .max_rows = max_rows, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static inline kk_session *tiny_session(kk_engine *e, int32_t ctx, kk_kv_format format) {
    kk_session *s = NULL;
    const kk_session_opts opts = {.ctx = ctx, .kv_format = format};
    assert_ok(kk_session_new(&s, e, &opts, why));
    return s;
}

/* The same prompt for the same seed. */
static inline void tiny_prompt(int32_t *tokens, int32_t n, uint32_t seed) {
    uint64_t state = seed * 2654435761u + 1;
    for (int32_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((state >> 33) % TINY_VOCAB);
    }
}

static inline void tiny_append(kk_session *s, const int32_t *tokens, int32_t n) {
    assert_ok(kk_session_append(s, tokens, (size_t)n, NULL, NULL, why));
}

/* The bits of the last token's logits. */
static inline void tiny_logits(kk_session *s, float out[TINY_VOCAB]) {
    const float *row = NULL;
    assert_ok(kk_session_logits(s, &row, why));
    memcpy(out, row, TINY_VOCAB * sizeof *out);
}

/* Every token, or all but the last, is in the cache: nothing is left to evaluate again. */
static inline void assert_whole(const kk_session *s) {
    const int64_t cached = kk_cache_len(s->cache);
    assert_true(cached == s->len || cached == s->len - 1);
}

/* Both sessions are in the same state: timeline, and bits of what comes next. */
static inline void assert_same_state(kk_session *a, kk_session *b) {
    float x[TINY_VOCAB], y[TINY_VOCAB];
    assert_whole(a);
    assert_whole(b);
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens);
    tiny_logits(a, x);
    tiny_logits(b, y);
    for (int k = 0; k < KK_KINDS; k++)
        assert_int_equal(kk_cache_bytes(a->cache, (kk_kind)k),
                         kk_cache_bytes(b->cache, (kk_kind)k));
    assert_memory_equal(x, y, sizeof x);
}

#endif
