/* draft_pair.h - a verifier and its drafter on one device, driven below the engine: taps, contexts
 * and blocks as a test wants them. */
#ifndef KK_TESTS_DRAFT_PAIR_H
#define KK_TESTS_DRAFT_PAIR_H

#include <stdlib.h>

#include "model/dflash_model.h"
#include "support/ok.h"

enum { PAIR_CHUNK = 128, PAIR_BLOCKS = 4 };

/* One model's cache layout and pages. */
typedef struct {
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
} pair_pages;

typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    kk_mem mem;
    kk_checkpoint *ckpt;
    kk_gemma4 *verifier;
    kk_drafter *files;
    kk_dflash *drafter;
    pair_pages main, draft;
} draft_pair;

static inline void pair_pages_open(draft_pair *p, pair_pages *out, const kk_kv_shape *shape,
                                   kk_kv_format format) {
    assert_ok(kk_kv_layout_init(&out->layout, shape, format, NULL, why));
    for (int k = 0; k < KK_KINDS; k++)
        if (out->layout.page_bytes[k])
            assert_ok(kk_pool_new(&out->pool[k], &p->mem, KK_MEM_KV_FULL, out->layout.page_bytes[k],
                                  why));
}

typedef struct {
    kk_kv_format format;
    int32_t threads;
    int32_t extend_rows; /* of one pass; 0: PAIR_CHUNK */
} pair_how;

/* Goes on from p's checkpoint and drafter files.  config NULL: the files' own. */
static inline void pair_start(draft_pair *p, const kk_drafter_config *config, const pair_how *how) {
    p->be = kk_backend_named("cpu");
    const kk_dev_opts dev = {.threads = how->threads, .mem = &p->mem, .max_rows = PAIR_CHUNK};
    assert_ok(p->be->open(&p->dev, &dev, why));
    const kk_gemma4_opts v = {p->be, p->dev, &p->mem, PAIR_CHUNK, 32};
    assert_ok(kk_gemma4_new(&p->verifier, p->ckpt, &v, why));
    if (!config) config = kk_drafter_config_of(p->files);
    const kk_dflash_opts d = {.backend = p->be,
                              .dev = p->dev,
                              .verifier = p->verifier,
                              .max_rows = how->extend_rows ? how->extend_rows : PAIR_CHUNK,
                              .max_block_rows = PAIR_BLOCKS * config->block};
    assert_ok(kk_dflash_new(&p->drafter, p->files, config, &d, why));
    pair_pages_open(p, &p->main, kk_gemma4_kv_shape(p->verifier), how->format);
    pair_pages_open(p, &p->draft, kk_dflash_kv_shape(p->drafter), how->format);
}

static inline void pair_close(draft_pair *p) {
    kk_dflash_free(p->drafter);
    kk_gemma4_free(p->verifier);
    for (int k = 0; k < KK_KINDS; k++) {
        if (p->main.pool[k]) kk_pool_free(p->main.pool[k]);
        if (p->draft.pool[k]) kk_pool_free(p->draft.pool[k]);
    }
    p->be->close(p->dev);
    kk_drafter_close(p->files);
    kk_checkpoint_close(p->ckpt);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) assert_int_equal(p->mem.bytes[c], 0);
}

static inline kk_cache *pair_cache(const pair_pages *pages, int64_t max_len) {
    kk_cache *c = NULL;
    const kk_cache_opts opts = {.layout = &pages->layout,
                                .pool = {pages->pool[0], pages->pool[1]},
                                .policy = {[KK_SLIDING] = &kk_kv_native, [KK_FULL] = &kk_kv_exact},
                                .bounds = {[KK_SLIDING] = {.window = pages->layout.shape.window}},
                                .max_len = max_len};
    assert_ok(kk_cache_new(&c, &opts, why));
    return c;
}

/* A buffer for the taps of n rows; free it with the backend's buf_free. */
static inline kk_buf *pair_taps(draft_pair *p, int32_t n) {
    const kk_drafter_config *c = kk_dflash_config(p->drafter);
    kk_buf *b = NULL;
    const size_t row = (size_t)c->n_taps * (size_t)c->hidden * sizeof(float);
    assert_ok(p->be->buf_new(p->dev, KK_MEM_WORKSPACE, (size_t)n * row, &b, why));
    return b;
}

/* The next n tokens through the verifier, committed up to keep of them, taps from tap_row on. */
static inline void pair_forward(draft_pair *p, kk_cache *cache, const int32_t *tokens, int32_t n,
                                int32_t n_logits, kk_buf *taps, int32_t tap_row) {
    const kk_drafter_config *c = kk_dflash_config(p->drafter);
    const kk_gemma4_group group = {.cache = cache,
                                   .layout = &p->main.layout,
                                   .tokens = tokens,
                                   .n_rows = n,
                                   .n_logits = n_logits,
                                   .taps = taps,
                                   .tap_row = tap_row};
    const kk_gemma4_forward_args args = {
        .groups = &group, .n_groups = 1, .tapped = c->taps, .n_tapped = c->n_taps};
    assert_ok(kk_cache_reserve(cache, n, why));
    assert_ok(kk_gemma4_forward(p->verifier, &args, why));
}

/* A whole prompt in chunks; logits of its last row stay in the model. */
static inline void pair_prefill(draft_pair *p, kk_cache *cache, const int32_t *tokens, int32_t n,
                                kk_buf *taps) {
    for (int32_t at = 0; at < n; at += PAIR_CHUNK) {
        const int32_t rows = n - at < PAIR_CHUNK ? n - at : PAIR_CHUNK;
        pair_forward(p, cache, tokens + at, rows, at + rows == n, taps, at);
        kk_cache_commit(cache, at + rows);
    }
}

static inline kk_dflash_context pair_context(const draft_pair *p, kk_cache *cache) {
    return (kk_dflash_context){.cache = cache, .layout = &p->draft.layout};
}

/* The next n rows of a context, from taps of row tap_row on, at once. */
static inline void pair_extend(draft_pair *p, kk_cache *cache, const kk_buf *taps, int32_t tap_row,
                               int32_t n) {
    const kk_dflash_rows rows = {pair_context(p, cache), taps, tap_row, n};
    assert_ok(kk_cache_reserve(cache, n, why));
    assert_ok(kk_dflash_extend(p->drafter, &rows, 1, why));
    kk_cache_commit(cache, kk_cache_len(cache) + n);
}

static inline void pair_draft(draft_pair *p, kk_cache *cache, int32_t anchor, int32_t n,
                              int32_t *out) {
    const kk_dflash_block block = {
        .context = pair_context(p, cache), .anchor = anchor, .n = n, .out = out};
    assert_ok(kk_cache_reserve(cache, n + 1, why));
    assert_ok(kk_dflash_draft(p->drafter, &block, 1, why));
}

#endif
