/* engine.c - opens a model on a device and owns what its sessions share; see engine.h.
 *
 * Opening goes upwards through the layers (weights, device, model, pages, tokenizer, drafter,
 * projection, sampler) and closing goes down again, from wherever opening had come to. */
#define _GNU_SOURCE
#include "engine/engine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "engine/draft_vocab.h"
#include "engine/fingerprint.h"
#include "format/tokenizer.h"

enum { LEAST_ROWS = 128, DEFAULT_LOGITS = 17, MOST_ROWS = 1 << 16 };

void kk_engine_lock(kk_engine *e) { kk_fair_lock_take(&e->lock); }
void kk_engine_unlock(kk_engine *e) { kk_fair_lock_give(&e->lock); }
const kk_config *kk_engine_config(const kk_engine *e) { return kk_gemma4_config(e->model); }

/* ---- open ------------------------------------------------------------------------------- */

static kk_status check_opts(const kk_engine_opts *o, kk_err *err) {
    if (!o->model == !o->synthetic)
        return kk_fail(err, KK_EINVAL,
                       o->model ? "give a model or a synthetic one, not both" : "no model given");
    const struct {
        const char *name;
        int32_t value;
    } sizes[] = {{"threads", o->threads}, {"max_rows", o->max_rows}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 0 || sizes[i].value > MOST_ROWS)
            return kk_fail(err, KK_EINVAL, "%s is %d: between 0 (the default) and %d",
                           sizes[i].name, sizes[i].value, MOST_ROWS);
    if (o->max_logits < -MOST_ROWS || o->max_logits > MOST_ROWS)
        return kk_fail(err, KK_EINVAL, "max_logits is %d: between -%d and %d", o->max_logits,
                       MOST_ROWS, MOST_ROWS);
    if (o->ahead < -1 || o->ahead > 1)
        return kk_fail(err, KK_EINVAL, "ahead is %d: 1, 0 or -1", o->ahead);
    if (o->exact_packed_rows < -1 || o->exact_packed_rows > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "exact_packed_rows is %d: up to %d, 0 or -1",
                       o->exact_packed_rows, KK_PICK_ROWS);
    if (o->exact_rows < -1 || o->exact_rows > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "exact_rows is %d: up to %d, 0 or -1", o->exact_rows,
                       KK_PICK_ROWS);
    if (o->exact_page_rows < 0 || o->exact_page_rows > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "exact_page_rows is %d: up to %d, or 0", o->exact_page_rows,
                       KK_PICK_ROWS);
    if (o->memory_limit > INT64_MAX)
        return kk_fail(err, KK_EINVAL, "a memory limit of %llu bytes is beyond any machine",
                       (unsigned long long)o->memory_limit);
    if (o->gpu_memory > INT64_MAX)
        return kk_fail(err, KK_EINVAL, "`gpu_memory` is %llu bytes: beyond any device",
                       (unsigned long long)o->gpu_memory);
    return KK_OK;
}

static kk_status open_weights(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    if (o->synthetic) return kk_checkpoint_synthetic(&e->checkpoint, o->synthetic, &e->mem, err);
    const kk_checkpoint_opts how = {.mlock = o->mlock, .huge_pages = o->huge_pages};
    KK_TRY(kk_checkpoint_open(&e->checkpoint, o->model, &how, err));
    for (size_t i = 0; i < kk_checkpoint_count(e->checkpoint); i++)
        e->mapped += (int64_t)kk_tensor_bytes(kk_checkpoint_at(e->checkpoint, i));
    kk_mem_count(&e->mem, KK_MEM_WEIGHTS_VERIFIER, e->mapped);
    return KK_OK;
}

/* What a row of a forward takes of the workspace, nearly: the model's own buffers, and half as
 * much again of the device's. */
static int64_t bytes_of_row(const kk_config *c) {
    int64_t widest = 0;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        const int64_t heads = 2 * ((int64_t)c->n_head + l->n_kv_head) * l->head_dim;
        if (heads + 2 * l->ffn > widest) widest = heads + 2 * l->ffn;
    }
    const int64_t experts = (int64_t)c->n_expert_used * c->expert_ffn;
    return 6 * (4 * (int64_t)c->hidden + widest + experts + 2 * (int64_t)c->n_layer * c->ple_dim);
}

/* As many as suit the device; where memory is limited, so few that they take an eighth of it. */
static int32_t rows_for(const kk_engine *e, const kk_engine_opts *o) {
    int32_t rows = e->backend->rows;
    if (o->max_rows) return o->max_rows;
    const int64_t row = bytes_of_row(kk_checkpoint_config(e->checkpoint));
    while (e->mem.limit && rows > LEAST_ROWS && rows * row > e->mem.limit / 8) rows /= 2;
    return rows;
}

/* 17 rows are one session and its draft of 16, which would leave 8 sessions one drafted token each.
 * A device that queues its work has its fastest kernels for so few rows. */
static int32_t logits_for(const kk_engine *e, const kk_engine_opts *o) {
    enum { EACH = 8, MOST = 64 };
    if (o->max_logits > 0) return o->max_logits;
    const int32_t n = -o->max_logits;
    const int32_t suits = e->backend->queues ? 0 : n < MOST / EACH ? n * EACH : MOST;
    const int32_t rows = suits > DEFAULT_LOGITS ? suits : DEFAULT_LOGITS;
    return rows > n ? rows : n;
}

static kk_status open_device(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    e->rounds.max_rows = rows_for(e, o);
    e->rounds.max_logits = logits_for(e, o);
    if (e->rounds.max_logits > e->rounds.max_rows) e->rounds.max_logits = e->rounds.max_rows;
    e->rounds.ahead = o->ahead > 0 || (o->ahead == 0 && e->backend->queues);
    const kk_dev_opts how = {.threads = o->threads,
                             .pin = !o->no_pin,
                             .isa = o->isa,
                             .mem = &e->mem,
                             .max_rows = e->rounds.max_rows,
                             .key_cache = o->key_cache,
                             .gpu_memory = (int64_t)o->gpu_memory,
                             .exact = {o->exact_rows, o->exact_packed_rows, o->exact_page_rows}};
    const bool said = o->exact_rows || o->exact_packed_rows;
    e->exact_by = !said ? "neither" : o->exact_measured ? "measured" : "asked";
    return e->backend->open(&e->dev, &how, err);
}

static kk_status open_model(kk_engine *e, kk_err *err) {
    const kk_gemma4_opts how = {.backend = e->backend,
                                .dev = e->dev,
                                .mem = &e->mem,
                                .max_rows = e->rounds.max_rows,
                                .max_logits = e->rounds.max_logits};
    const double from = kk_now();
    KK_TRY(kk_gemma4_new(&e->model, e->checkpoint, &how, err));
    e->copy_s = kk_now() - from;
    kk_dev_facts facts;
    e->backend->describe(e->dev, &facts); /* exact_rows depends on the weights */
    e->rounds.exact_rows = facts.exact_rows > 0 ? facts.exact_rows : 0;
    e->rounds.ties = facts.exact_rows != 0;
    if (!e->rounds.ties) e->exact_by = "kernels";
    e->rounds.model = e->model;
    e->rounds.vocab = kk_engine_config(e)->vocab;
    e->rounds.samples = e->rounds.vocab <= e->backend->sample_vocab;
    return KK_OK;
}

/* Packed formats take heads of whole groups; a model with others does without those formats.  So
 * does every model with formats that the device lacks. */
static kk_status open_pages(kk_engine *e, kk_pages *p, const kk_kv_shape *shape,
                            const kk_mem_category category[KK_KINDS], kk_err *err) {
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        if (kk_backend_stores(e->backend, (kk_kv_format)f, NULL) != KK_OK) continue;
        const bool packed = kk_kv_format_get((kk_kv_format)f)->group > 1;
        const kk_status st =
            kk_kv_layout_init(&p->layout[f], shape, (kk_kv_format)f, NULL, packed ? NULL : err);
        p->fits[f] = st == KK_OK;
        if (st != KK_OK && !packed) return st;
        for (int k = 0; p->fits[f] && k < KK_KINDS; k++)
            if (p->layout[f].page_bytes[k]) {
                KK_TRY(kk_pool_new(&p->pool[f][k], &e->mem, category[k], p->layout[f].page_bytes[k],
                                   err));
                kk_pool_place(p->pool[f][k], e->backend, e->dev);
            }
    }
    return KK_OK;
}

static void close_pages(kk_pages *p) {
    for (int f = 0; f < KK_KV_FORMATS; f++)
        for (int k = 0; k < KK_KINDS; k++) kk_pool_free(p->pool[f][k]);
}

static kk_status open_verifier_pages(kk_engine *e, kk_err *err) {
    static const kk_mem_category category[KK_KINDS] = {
        [KK_SLIDING] = KK_MEM_KV_SLIDING, [KK_FULL] = KK_MEM_KV_FULL};
    return open_pages(e, &e->pages, kk_gemma4_kv_shape(e->model), category, err);
}

/* ---- drafter ---------------------------------------------------------------------------- */

static bool is_random(const kk_engine_opts *o) {
    return o->synthetic && strcmp(o->drafter, "synthetic") == 0;
}

/* *packs: whether its matrices are rounded to how->type. */
static kk_status read_draft_type(const kk_engine *e, const kk_engine_opts *o, bool random,
                                 kk_drafter_packing *how, bool *packs, kk_err *err) {
    /* A device with memory of its own has the head there already, in the verifier's type, and
     * packed weights take longer there, with a short head too.  Random ones are made in the type
     * they are to have. */
    const char *standard = e->backend->own_memory || random ? "file" : "q8_0";
    const char *type = o->draft_type ? o->draft_type : standard;
    *how = (kk_drafter_packing){.mlock = o->mlock, .threads = o->threads};
    *packs = strcmp(type, "file") != 0;
    if (!*packs ||
        (kk_dtype_named(type, &how->type) && (how->type == KK_Q8_0 || how->type == KK_Q4_0)))
        return KK_OK;
    return kk_fail(err, KK_EINVAL, "a drafter is kept as q8_0, q4_0 or file, not '%.20s'", type);
}

static kk_status make_drafter(kk_engine *e, kk_err *err) {
    kk_model_info info;
    kk_checkpoint_info(e->checkpoint, &info);
    return kk_drafter_synthetic(&e->drafter, kk_engine_config(e), info.weight_type, &e->mem, err);
}

static kk_status open_drafter_files(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    const bool random = is_random(o);
    kk_drafter_packing packing;
    bool packs;
    KK_TRY(read_draft_type(e, o, random, &packing, &packs, err));
    const kk_checkpoint_opts how = {.mlock = o->mlock && !packs, .huge_pages = o->huge_pages};
    KK_TRY(random ? make_drafter(e, err) : kk_drafter_open(&e->drafter, o->drafter, &how, err));
    if (packs) KK_TRY(kk_drafter_pack(e->drafter, &packing, &e->mem, err));
    const kk_tensor *table = kk_checkpoint_find(e->checkpoint, "embed_tokens.weight");
    if (packs && table && !e->backend->own_memory)
        KK_TRY(kk_drafter_pack_head(e->drafter, table, &packing, &e->mem, err));
    if (random) return KK_OK; /* counted where they were made */
    e->mapped_drafter = -kk_drafter_packed_bytes(e->drafter);
    for (size_t i = 0; i < kk_drafter_count(e->drafter); i++)
        e->mapped_drafter += (int64_t)kk_tensor_bytes(kk_drafter_at(e->drafter, i));
    kk_mem_count(&e->mem, KK_MEM_WEIGHTS_DRAFTER, e->mapped_drafter);
    return KK_OK;
}

/* Rows of the short head in the drafter's type: the head's own where it is packed already. */
static kk_dtype short_type(const kk_engine *e, const kk_tensor *table) {
    const kk_tensor *fc = kk_drafter_find(e->drafter, "fc.weight");
    if (kk_dtype_is_quant(table->dtype) && !kk_dtype_is_affine(table->dtype)) return table->dtype;
    const bool as_file = fc->dtype == KK_BF16 && table->dtype == KK_BF16;
    return as_file ? KK_BF16 : fc->dtype == KK_Q4_0 ? KK_Q4_0 : KK_Q8_0;
}

/* ids: of the short head; the rows point to them. */
static kk_status find_short_rows(kk_engine *e, const kk_engine_opts *o, kk_draft_vocab *ids,
                                 kk_short_rows *out, kk_err *err) {
    const kk_drafter_config *c = kk_drafter_config_of(e->drafter);
    const bool random = is_random(o);
    const char *folder = kk_dir_exists(o->drafter) ? o->drafter : NULL;
    const kk_tensor *own = kk_drafter_head(e->drafter);
    const kk_tensor *table = own ? own : kk_checkpoint_find(e->checkpoint, "embed_tokens.weight");
    *out = (kk_short_rows){0};
    KK_TRY(kk_draft_vocab_find(ids, o->draft_vocab, folder, random, c->vocab, c->mask_id, err));
    if (ids->n == 0 || !table) return KK_OK;
    *out = (kk_short_rows){
        .id = ids->id, .n = ids->n, .table = table, .type = short_type(e, table), .mem = &e->mem};
    return KK_OK;
}

static const char *const scalings[] = {
    [KK_EMBED_ONCE] = "once", [KK_EMBED_UNSCALED] = "1", [KK_EMBED_TWICE] = "twice"};

static kk_status vary_config(kk_drafter_config *c, const kk_engine_opts *o, kk_err *err) {
    if (o->draft_bidirectional) c->sliding_causal = false;
    if (!o->draft_embed_scale) return KK_OK;
    for (int i = 0; i < 3; i++) {
        if (strcmp(o->draft_embed_scale, scalings[i]) != 0) continue;
        c->embed_scaling = (kk_embed_scaling)i;
        return KK_OK;
    }
    return kk_fail(err, KK_EINVAL, "the drafter's embedding scale is 1, once or twice, not '%.20s'",
                   o->draft_embed_scale);
}

static kk_status open_drafter_model(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    kk_drafter_config config = *kk_drafter_config_of(e->drafter);
    kk_draft_vocab ids = {0};
    KK_TRY(vary_config(&config, o, err));
    KK_TRY(kk_drafter_check(&config, kk_engine_config(e), err));
    kk_dflash_opts how = {.backend = e->backend,
                          .dev = e->dev,
                          .verifier = e->model,
                          .max_rows = e->rounds.max_rows,
                          .max_block_rows = e->rounds.max_logits};
    kk_status st = find_short_rows(e, o, &ids, &how.short_head, err);
    if (st == KK_OK) st = kk_dflash_new(&e->dflash, e->drafter, &config, &how, err);
    kk_free(ids.id);
    return st;
}

static kk_status open_drafter(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    static const kk_mem_category category[KK_KINDS] = {KK_MEM_KV_DRAFTER, KK_MEM_KV_DRAFTER};
    if (!o->drafter) return KK_OK;
    KK_TRY(open_drafter_files(e, o, err));
    KK_TRY(open_drafter_model(e, o, err));
    KK_TRY(open_pages(e, &e->draft_pages, kk_dflash_kv_shape(e->dflash), category, err));
    const kk_drafter_config *c = kk_dflash_config(e->dflash);
    const size_t row = (size_t)c->n_taps * (size_t)c->hidden * sizeof(float);
    e->dflash_shared.model = e->dflash;
    return e->backend->buf_new(e->dev, KK_MEM_WORKSPACE, (size_t)e->rounds.max_rows * row,
                               &e->dflash_shared.chunk, err);
}

/* ---- projection ------------------------------------------------------------------------- */

static kk_status make_projection(kk_engine *e, int32_t rank, kk_err *err) {
    const kk_config *c = kk_engine_config(e);
    int32_t taps[KK_MAX_TAPS] = {0};
    const int32_t n = kk_projection_spread_taps(c, taps);
    return kk_projection_synthetic(&e->projection, c, rank, taps, n, &e->mem, err);
}

static kk_status open_projection_files(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    const char *type = o->projection_type ? o->projection_type : "q8_0";
    const bool packs = strcmp(type, "q8_0") == 0;
    int32_t rank;
    char after;
    if (!packs && strcmp(type, "file") != 0)
        return kk_fail(err, KK_EINVAL, "a projection is kept as q8_0 or file, not '%.20s'", type);
    const kk_checkpoint_opts how = {.mlock = o->mlock && !packs, .huge_pages = o->huge_pages};
    const kk_drafter_packing packing = {.type = KK_Q8_0, .mlock = o->mlock, .threads = o->threads};
    const bool made = o->synthetic && sscanf(o->projection, "synthetic:%d%c", &rank, &after) == 1;
    KK_TRY(made ? make_projection(e, rank, err)
                : kk_projection_open(&e->projection, o->projection, &how, err));
    /* Rows of whole blocks only; others stay as they are. */
    if (packs && kk_projection_config_of(e->projection)->rank % 32 == 0)
        KK_TRY(kk_projection_pack(e->projection, &packing, &e->mem, err));
    if (made) return KK_OK; /* counted where they were made */
    const kk_checkpoint *tensors = kk_projection_tensors(e->projection);
    e->mapped_projection = -kk_projection_packed_bytes(e->projection);
    for (size_t i = 0; i < kk_checkpoint_count(tensors); i++)
        e->mapped_projection += (int64_t)kk_checkpoint_at(tensors, i)->data.size;
    kk_mem_count(&e->mem, KK_MEM_WEIGHTS_PROJECTION, e->mapped_projection);
    return KK_OK;
}

/* A projection belongs to a model, in whatever precision. */
static kk_status check_origin(kk_engine *e, kk_err *err) {
    const kk_projection_config *c = kk_projection_config_of(e->projection);
    const kk_lineage made = {c->verifier, c->verifier_source, c->verifier_identity};
    const kk_lineage here = kk_engine_lineage(e), drafter = kk_engine_drafter_lineage(e);
    const kk_lineage read = {.weights = c->drafter, .identity = c->drafter_identity};
    const bool reads = c->source == KK_SOURCE_CONTEXT && c->drafter;
    const kk_kin kin = c->verifier ? kk_lineage_compare(&made, &here) : KK_KIN_SAME;
    const kk_kin drafts = reads ? kk_lineage_compare(&read, &drafter) : KK_KIN_SAME;
    if (kin == KK_KIN_NONE)
        return kk_fail(err, KK_EFORMAT,
                       "the projection was trained for another model (%016llx): this one is "
                       "%016llx",
                       (unsigned long long)made.weights, (unsigned long long)here.weights);
    if (drafts == KK_KIN_NONE)
        return kk_fail(err, KK_EFORMAT,
                       "the projection reads the context of another drafter (%016llx): this one is "
                       "%016llx",
                       (unsigned long long)read.weights, (unsigned long long)drafter.weights);
    e->projection_made_elsewhere = kin != KK_KIN_SAME || drafts != KK_KIN_SAME;
    return KK_OK;
}

static kk_status open_projection(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    if (!o->projection) return KK_OK;
    KK_TRY(open_projection_files(e, o, err));
    const kk_drafter_config *drafter = e->dflash ? kk_dflash_config(e->dflash) : NULL;
    KK_TRY(kk_projection_check(kk_projection_config_of(e->projection), kk_engine_config(e), drafter,
                               true, err));
    KK_TRY(check_origin(e, err));
    const kk_restorer_opts how = {.backend = e->backend,
                                  .dev = e->dev,
                                  .verifier = e->model,
                                  .drafter = e->dflash,
                                  .max_rows = e->rounds.max_rows};
    KK_TRY(kk_restorer_new(&e->restorer, e->projection, &how, err));
    e->rounds.restorer = e->restorer;
    return KK_OK;
}

/* ---- sampler and tokenizer -------------------------------------------------------------- */

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

kk_status kk_engine_open(kk_engine **out, const kk_engine_opts *opts, kk_err *err) {
    *out = NULL;
    KK_TRY(check_opts(opts, err));
    kk_engine *e = kk_zalloc(sizeof *e);
    if (!e) return kk_fail(err, KK_ENOMEM, "no memory for an engine");
    kk_fair_lock_init(&e->lock);
    kk_schedule_init(&e->schedule);
    e->mem.limit = (int64_t)opts->memory_limit;
    kk_status st;
    if ((st = open_weights(e, opts, err))) goto fail;
    if ((st = kk_engine_find_device(e, opts, err))) goto fail; /* by what the weights are, too */
    if ((st = open_device(e, opts, err))) goto fail;
    if ((st = open_model(e, err))) goto fail;
    if ((st = open_verifier_pages(e, err))) goto fail;
    if ((st = open_tokenizer(e, opts, err))) goto fail; /* a model is known by it */
    if ((st = open_drafter(e, opts, err))) goto fail;
    if ((st = kk_engine_open_proposers(e, err))) goto fail;
    if ((st = open_projection(e, opts, err))) goto fail;
    if ((st = open_sampler(e, err))) goto fail;
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
        for (int what = 0; what < KK_LATENTS; what++) kk_pool_free(e->latent_pools[f][what]);
    close_pages(&e->draft_pages);
    close_pages(&e->pages);
    kk_restorer_free(e->restorer);
    if (e->dev) e->backend->buf_free(e->dev, e->dflash_shared.chunk);
    kk_dflash_free(e->dflash);
    kk_gemma4_free(e->model);
    if (e->dev) e->backend->close(e->dev);
    kk_projection_close(e->projection);
    kk_drafter_close(e->drafter);
    kk_checkpoint_close(e->checkpoint);
    kk_schedule_free(&e->schedule);
    kk_fair_lock_free(&e->lock);
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

bool kk_engine_drafter(const kk_engine *e, kk_drafter_info *out) {
    *out = (kk_drafter_info){0};
    if (!e->dflash) return false;
    const kk_drafter_config *c = kk_dflash_config(e->dflash);
    out->layers = c->n_layer;
    out->hidden = c->hidden;
    out->block = c->block;
    out->window = c->window;
    out->short_rows = kk_dflash_short_rows(e->dflash);
    out->n_taps = c->n_taps;
    for (int32_t i = 0; i < c->n_taps; i++) out->taps[i] = c->taps[i];
    snprintf(out->embed_scale, sizeof out->embed_scale, "%s", scalings[c->embed_scaling]);
    for (size_t i = 0; i < kk_drafter_count(e->drafter); i++) {
        const kk_tensor *t = kk_drafter_at(e->drafter, i);
        int64_t values = 1;
        for (int32_t d = 0; d < t->n_dims; d++) values *= t->dims[d];
        out->params += values;
        out->weight_bytes += (int64_t)kk_tensor_bytes(t);
    }
    return true;
}

bool kk_engine_projection(const kk_engine *e, kk_projection_info *out) {
    *out = (kk_projection_info){0};
    if (!e->projection) return false;
    const kk_projection_config *c = kk_projection_config_of(e->projection);
    const kk_checkpoint *tensors = kk_projection_tensors(e->projection);
    snprintf(out->source, sizeof out->source, "%s", kk_source_name(c->source));
    out->n_taps = c->n_taps;
    for (int32_t i = 0; i < c->n_taps; i++) out->taps[i] = c->taps[i];
    out->rank = c->rank;
    out->params = kk_projection_params(c);
    out->other_weights = e->projection_made_elsewhere;
    out->checked = c->data != 0;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const bool sliding = kk_engine_config(e)->layer[i].kind == KK_SLIDING;
        out->sliding_layers += c->layer[i].restored && sliding;
        out->full_layers += c->layer[i].restored && !sliding;
    }
    for (size_t i = 0; i < kk_checkpoint_count(tensors); i++)
        out->weight_bytes += (int64_t)kk_checkpoint_at(tensors, i)->data.size;
    return true;
}

void kk_engine_device(const kk_engine *e, kk_device_info *out) {
    kk_dev_facts facts;
    e->backend->describe(e->dev, &facts);
    *out = (kk_device_info){.threads = facts.threads,
                            .exact_rows = facts.exact_rows,
                            .exact_packed = facts.exact_packed,
                            .page_kernel = facts.page_kernel,
                            .choices = atomic_load(&e->choices),
                            .near_ties = atomic_load(&e->near_ties)};
    snprintf(out->exact_by, sizeof out->exact_by, "%s", e->exact_by);
    snprintf(out->device, sizeof out->device, "%s", e->backend->name);
    snprintf(out->isa, sizeof out->isa, "%s", facts.isa);
    snprintf(out->why, sizeof out->why, "%s", e->why_device);
}

void kk_engine_fused(kk_engine *e, kk_fused *out) {
    kk_engine_lock(e);
    *out = *kk_gemma4_fused(e->model);
    kk_engine_unlock(e);
}

void kk_engine_offload(kk_engine *e, kk_offload *out) {
    *out = (kk_offload){0};
    if (!e->backend->instruments->offloaded) return;
    kk_engine_lock(e);
    e->backend->instruments->offloaded(e->dev, out);
    kk_engine_unlock(e);
}

void kk_engine_memory(const kk_engine *e, int64_t bytes[KK_MEM_CATEGORIES]) {
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) bytes[c] = atomic_load(&e->mem.bytes[c]);
}
