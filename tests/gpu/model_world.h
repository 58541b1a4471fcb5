/* model_world.h - a checkpoint on a device with a session's pages and cache, for tests that run
 * forwards themselves.  A failure ends the program with the library's own sentence.  KK_TEST_ISA
 * names a chip whose limits the GPU keeps. */
#ifndef KK_TESTS_MODEL_WORLD_H
#define KK_TESTS_MODEL_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "model/model.h"

typedef struct {
    kk_mem mem;
    const kk_backend *be;
    kk_dev *dev;
    kk_gemma4 *model;
    const kk_config *cfg; /* the model's */
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    kk_cache *cache;
} world;

static inline void must(kk_status st, const kk_err *err, const char *what) {
    if (st == KK_OK) return;
    printf("%s: %s\n", what, err->msg);
    exit(1);
}

static inline void world_pools(world *w) {
    kk_err err = {0};
    for (int k = 0; k < KK_KINDS; k++) {
        if (!w->layout.page_bytes[k]) continue;
        must(kk_pool_new(&w->pool[k], &w->mem, k ? KK_MEM_KV_FULL : KK_MEM_KV_SLIDING,
                         w->layout.page_bytes[k], &err),
             &err, "pool");
        kk_pool_place(w->pool[k], w->be, w->dev);
    }
}

/* No cache and pages for K/V rows in another format from now on. */
static inline void world_format(world *w, kk_kv_format f) {
    kk_err err = {0};
    kk_cache_free(w->cache);
    w->cache = NULL;
    for (int k = 0; k < KK_KINDS; k++) {
        kk_pool_free(w->pool[k]);
        w->pool[k] = NULL;
    }
    must(kk_kv_layout_init(&w->layout, kk_gemma4_kv_shape(w->model), f, NULL, &err), &err,
         "layout");
    world_pools(w);
}

/* A device and its model, which may take so many bytes of the device's memory; 0: all.  Nothing is
 * open where it fails. */
static inline kk_status world_try(world *w, const kk_checkpoint *ckpt, const char *device,
                                  bool plain, int32_t max_rows, int32_t max_logits,
                                  int64_t gpu_memory, kk_err *err) {
    memset(w, 0, sizeof *w);
    KK_TRY(kk_backend_find(&w->be, device, err));
    const kk_dev_opts dev = {.plain = plain,
                             .isa = strcmp(device, "cuda") == 0 ? getenv("KK_TEST_ISA") : NULL,
                             .mem = &w->mem,
                             .max_rows = max_rows,
                             .gpu_memory = gpu_memory};
    KK_TRY(w->be->open(&w->dev, &dev, err));
    const kk_gemma4_opts opts = {w->be, w->dev, &w->mem, max_rows, max_logits};
    const kk_status st = kk_gemma4_new(&w->model, ckpt, &opts, err);
    if (st != KK_OK) w->be->close(w->dev);
    return st;
}

/* Without a cache yet.  plain: nothing is fused. */
static inline void world_open_in(world *w, const kk_checkpoint *ckpt, const char *device,
                                 bool plain, int32_t max_rows, int32_t max_logits,
                                 int64_t gpu_memory) {
    kk_err err = {0};
    must(world_try(w, ckpt, device, plain, max_rows, max_logits, gpu_memory, &err), &err, "open");
    w->cfg = kk_gemma4_config(w->model);
    must(kk_kv_layout_init(&w->layout, kk_gemma4_kv_shape(w->model), KK_KV_BF16, NULL, &err), &err,
         "layout");
    world_pools(w);
}

static inline void world_open(world *w, const kk_checkpoint *ckpt, const char *device, bool plain,
                              int32_t max_rows, int32_t max_logits) {
    world_open_in(w, ckpt, device, plain, max_rows, max_logits, 0);
}

/* An empty cache of so many tokens, in place of the one there was. */
static inline void world_start(world *w, int64_t max_len) {
    kk_err err = {0};
    kk_cache_free(w->cache);
    const kk_cache_opts c = {.layout = &w->layout,
                             .pool = {w->pool[0], w->pool[1]},
                             .policy = {&kk_kv_native, &kk_kv_exact},
                             .bounds = {{.window = w->layout.shape.window}},
                             .max_len = max_len};
    must(kk_cache_new(&w->cache, &c, &err), &err, "cache");
}

/* Logits of the last forward's first n_logits rows, which were asked for: [n_logits, vocab]. */
static inline void world_logits(world *w, int32_t n_logits, float *to) {
    kk_err err = {0};
    for (int32_t i = 0; i < n_logits; i++)
        must(kk_gemma4_logits(w->model, i, to + (size_t)i * (size_t)w->cfg->vocab, &err), &err,
             "logits");
}

/* The next n tokens; logits of the last n_logits of them go to `to` unless it is NULL.
 * keep: the rows are committed. */
static inline void world_forward(world *w, const int32_t *tokens, int32_t n, int32_t n_logits,
                                 float *to, bool keep) {
    kk_err err = {0};
    must(kk_cache_reserve(w->cache, n, &err), &err, "reserve");
    const kk_gemma4_group g = {.cache = w->cache,
                               .layout = &w->layout,
                               .tokens = tokens,
                               .n_rows = n,
                               .n_logits = n_logits};
    const kk_gemma4_forward_args a = {.groups = &g, .n_groups = 1};
    must(kk_gemma4_forward(w->model, &a, &err), &err, "forward");
    if (to) world_logits(w, n_logits, to);
    if (keep) kk_cache_commit(w->cache, kk_cache_len(w->cache) + n);
}

static inline kk_dev_facts world_kind(const world *w) {
    kk_dev_facts facts;
    w->be->describe(w->dev, &facts);
    return facts;
}

static inline void world_close(world *w) {
    kk_cache_free(w->cache);
    for (int k = 0; k < KK_KINDS; k++) kk_pool_free(w->pool[k]);
    kk_gemma4_free(w->model);
    w->be->close(w->dev);
}

#endif
