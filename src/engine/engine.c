/* engine.c - opens a model on a device and owns what its sessions share; see engine.h.
 *
 * Opening goes upwards through the layers (weights, device, model, pages, sampler, tokenizer)
 * and closing goes down again, from wherever opening had come to. */
#define _GNU_SOURCE
#include "engine/engine.h"

#include <assert.h>
#include <stdio.h>

#include "core/file.h"
#include "format/tokenizer.h"

enum { DEFAULT_ROWS = 128, DEFAULT_LOGITS = 17, MOST_ROWS = 1 << 16 };

void kk_engine_lock(kk_engine *e) { pthread_mutex_lock(&e->lock); }
void kk_engine_unlock(kk_engine *e) { pthread_mutex_unlock(&e->lock); }
const kk_config *kk_engine_config(const kk_engine *e) { return kk_gemma4_config(e->model); }

/* ---- open ------------------------------------------------------------------------------- */

static kk_status check_opts(const kk_engine_opts *o, kk_err *err) {
    if (!o->model == !o->synthetic)
        return kk_fail(err, KK_EINVAL,
                       o->model ? "give a model or a synthetic one, not both" : "no model given");
    const struct {
        const char *name;
        int32_t value;
    } sizes[] = {{"threads", o->threads}, {"max_rows", o->max_rows}, {"max_logits", o->max_logits}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 0 || sizes[i].value > MOST_ROWS)
            return kk_fail(err, KK_EINVAL, "%s is %d: between 0 (the default) and %d",
                           sizes[i].name, sizes[i].value, MOST_ROWS);
    if (o->memory_limit > INT64_MAX)
        return kk_fail(err, KK_EINVAL, "a memory limit of %llu bytes is beyond any machine",
                       (unsigned long long)o->memory_limit);
    return KK_OK;
}

static kk_status open_weights(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    if (o->synthetic) return kk_checkpoint_synthetic(&e->checkpoint, o->synthetic, &e->mem, err);
    const kk_checkpoint_opts how = {.mlock = o->mlock, .huge_pages = o->huge_pages};
    KK_TRY(kk_checkpoint_open(&e->checkpoint, o->model, &how, err));
    for (size_t i = 0; i < kk_checkpoint_count(e->checkpoint); i++)
        e->mapped += (int64_t)kk_checkpoint_at(e->checkpoint, i)->data.size;
    kk_mem_count(&e->mem, KK_MEM_WEIGHTS_VERIFIER, e->mapped);
    return KK_OK;
}

static kk_status open_device(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    e->backend = kk_backend_named(o->device);
    if (!e->backend)
        return kk_fail(err, KK_EDEVICE, "no device named '%.40s' in this build; 'cpu' always is",
                       o->device ? o->device : "");
    const kk_dev_opts how = {.threads = o->threads,
                             .pin = !o->no_pin,
                             .isa = o->isa,
                             .mem = &e->mem,
                             .max_rows = e->rounds.max_rows};
    return e->backend->open(&e->dev, &how, err);
}

static kk_status open_model(kk_engine *e, kk_err *err) {
    const kk_gemma4_opts how = {.backend = e->backend,
                                .dev = e->dev,
                                .mem = &e->mem,
                                .max_rows = e->rounds.max_rows,
                                .max_logits = e->rounds.max_logits};
    KK_TRY(kk_gemma4_new(&e->model, e->checkpoint, &how, err));
    e->rounds.model = e->model;
    e->rounds.vocab = kk_engine_config(e)->vocab;
    return KK_OK;
}

static kk_status open_pools(kk_engine *e, kk_err *err) {
    static const kk_dtype stored[KK_KV_FORMATS] = {[KK_KV_BF16] = KK_BF16, [KK_KV_F32] = KK_F32};
    static const kk_mem_category category[KK_KINDS] = {
        [KK_KIND_SLIDING] = KK_MEM_KV_SLIDING, [KK_KIND_FULL] = KK_MEM_KV_FULL};
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        KK_TRY(kk_kv_layout_init(&e->layout[f], kk_gemma4_kv_shape(e->model), stored[f], err));
        for (int k = 0; k < KK_KINDS; k++)
            if (e->layout[f].page_bytes[k])
                KK_TRY(kk_pool_new(&e->pool[f][k], &e->mem, category[k], e->layout[f].page_bytes[k],
                                   err));
    }
    return KK_OK;
}

static size_t row_bytes(const kk_engine *e) { return (size_t)e->rounds.vocab * sizeof(float); }

static kk_status open_sampler(kk_engine *e, kk_err *err) {
    KK_TRY(kk_sampler_new(&e->rounds.sampler, &e->mem, e->rounds.vocab, err));
    e->row = kk_mem_take(&e->mem, KK_MEM_WORKSPACE, row_bytes(e));
    if (e->row) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory for a row of %d logits", e->rounds.vocab);
}

/* A GGUF file carries its tokenizer among its keys, or not at all. */
static kk_status tokenizer_of_gguf(kk_engine *e, const char *path, kk_err *err) {
    kk_map map;
    kk_gguf g = {0};
    KK_TRY(kk_map_open(&map, path, err));
    kk_status st = kk_gguf_parse(&g, map.span, path, err);
    if (st == KK_OK && kk_gguf_find(&g, "tokenizer.ggml.tokens"))
        st = kk_tokenizer_from_gguf(&e->tokenizer, &g, err);
    kk_gguf_free(&g);
    kk_map_close(&map);
    return st;
}

/* A model may come without a tokenizer; a broken one is an error. */
static kk_status open_tokenizer(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    if (!o->model) return KK_OK;
    if (!kk_dir_exists(o->model)) return tokenizer_of_gguf(e, o->model, err);
    char *file = kk_path_join(o->model, "tokenizer.json");
    if (!file) return kk_fail(err, KK_ENOMEM, "no memory for the path of a tokenizer");
    const kk_status st = kk_file_exists(file) ? kk_tokenizer_open(&e->tokenizer, file, err) : KK_OK;
    kk_free(file);
    return st;
}

static int32_t or_default(int32_t value, int32_t standard) { return value ? value : standard; }

kk_status kk_engine_open(kk_engine **out, const kk_engine_opts *opts, kk_err *err) {
    *out = NULL;
    KK_TRY(check_opts(opts, err));
    kk_engine *e = kk_zalloc(sizeof *e);
    if (!e) return kk_fail(err, KK_ENOMEM, "no memory for an engine");
    pthread_mutex_init(&e->lock, NULL);
    e->mem.limit = (int64_t)opts->memory_limit;
    e->rounds.max_rows = or_default(opts->max_rows, DEFAULT_ROWS);
    e->rounds.max_logits = or_default(opts->max_logits, DEFAULT_LOGITS);
    if (e->rounds.max_logits > e->rounds.max_rows) e->rounds.max_logits = e->rounds.max_rows;
    kk_status st;
    if ((st = open_weights(e, opts, err))) goto fail;
    if ((st = open_device(e, opts, err))) goto fail;
    if ((st = open_model(e, err))) goto fail;
    if ((st = open_pools(e, err))) goto fail;
    if ((st = open_sampler(e, err))) goto fail;
    if ((st = open_tokenizer(e, opts, err))) goto fail;
    *out = e;
    return KK_OK;
fail:
    kk_engine_close(e);
    return st;
}

void kk_engine_close(kk_engine *e) {
    if (!e) return;
    assert(e->n_sessions == 0);
    kk_tokenizer_close(e->tokenizer);
    kk_mem_give(&e->mem, KK_MEM_WORKSPACE, e->row, e->row ? row_bytes(e) : 0);
    kk_sampler_free(e->rounds.sampler);
    for (int f = 0; f < KK_KV_FORMATS; f++)
        for (int k = 0; k < KK_KINDS; k++) kk_pool_free(e->pool[f][k]);
    kk_gemma4_free(e->model);
    if (e->dev) e->backend->close(e->dev);
    kk_checkpoint_close(e->checkpoint);
    pthread_mutex_destroy(&e->lock);
    kk_free(e);
}

/* ---- what it says of itself ------------------------------------------------------------- */

const kk_tokenizer *kk_engine_tokenizer(const kk_engine *e) { return e->tokenizer; }

const int32_t *kk_engine_stop_ids(const kk_engine *e, size_t *n) {
    *n = (size_t)kk_engine_config(e)->n_stop_ids;
    return kk_engine_config(e)->stop_ids;
}

void kk_engine_info(const kk_engine *e, kk_model_info *out) {
    kk_checkpoint_info(e->checkpoint, out);
}

void kk_engine_device(const kk_engine *e, kk_device_info *out) {
    *out = (kk_device_info){.threads = e->backend->threads(e->dev)};
    snprintf(out->device, sizeof out->device, "%s", e->backend->name);
    snprintf(out->isa, sizeof out->isa, "%s", e->backend->isa(e->dev));
}

void kk_engine_memory(const kk_engine *e, int64_t bytes[KK_MEM_CATEGORIES]) {
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) bytes[c] = atomic_load(&e->mem.bytes[c]);
}
