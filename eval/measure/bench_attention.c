/* bench_attention.c - what attention costs over K/V stored in each format.
 *
 * The caches are real ones, of all the model's layers, filled with random rows by the operation
 * that stores rows; one row then attends to them, layer after layer, as a decode step does
 * without the work between.  Formats take turns, so that no one finds its rows in a cache. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "eval/measure/bench_parts.h"
#include "format/checkpoint.h"
#include "kv/kv.h"

enum { CHUNK = 64, MAX_HEAD = 1024 };

/* One format's cache. */
typedef struct {
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    kk_cache *cache;
} store;

typedef struct {
    const kk_config *config;
    const kk_backend *be;
    kk_dev *dev;
    kk_mem mem;
    kk_kv_shape shape;
    store store[KK_KV_FORMATS];
    bool fits[KK_KV_FORMATS];
    kk_buf *q, *k, *v, *out, *ones;
    kk_buf *rope_rows[KK_LAYER_KINDS], *rope_pos;
    double seconds[KK_KV_FORMATS][KK_BENCH_MAX_REPEAT];
} attention;

static kk_kind kind_of(const kk_layer_config *l) {
    return l->kind == KK_SLIDING ? KK_SLIDING : KK_FULL;
}

static void fill_shape(attention *a) {
    const kk_config *c = a->config;
    a->shape = (kk_kv_shape){.n_layer = c->n_layer, .window = c->window};
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        a->shape.layer[i].kind = kind_of(l);
        a->shape.layer[i].stores = l->kv_source == i;
        a->shape.layer[i].k_eq_v = l->k_eq_v;
        a->shape.layer[i].n_kv_head = l->n_kv_head;
        a->shape.layer[i].head_dim = l->head_dim;
    }
}

/* ---- opening ----------------------------------------------------------------------------- */

static kk_status buffer(attention *a, size_t floats, kk_buf **out, kk_err *err) {
    return a->be->buf_new(a->dev, KK_MEM_WORKSPACE, floats * sizeof(float), out, err);
}

static kk_status fill_random(attention *a, kk_buf *b, size_t floats, kk_err *err) {
    float some[1024];
    uint64_t state = 88172645463325252u;
    for (size_t at = 0; at < floats; at += 1024) {
        const size_t n = floats - at < 1024 ? floats - at : 1024;
        for (size_t i = 0; i < n; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            some[i] = (float)(state & 0xffff) / 32768.0f - 1.0f;
        }
        KK_TRY(a->be->write(a->dev, b, at * sizeof(float), some, n * sizeof(float), err));
    }
    return KK_OK;
}

static kk_status open_buffers(attention *a, int32_t ctx, kk_err *err) {
    const kk_config *c = a->config;
    size_t q = 0, kv = 0;
    float ones[MAX_HEAD];
    for (int i = 0; i < MAX_HEAD; i++) ones[i] = 1;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        const size_t width = (size_t)l->n_kv_head * (size_t)l->head_dim;
        const size_t heads = (size_t)c->n_head * (size_t)l->head_dim;
        if (l->head_dim > MAX_HEAD)
            return kk_fail(err, KK_EINVAL, "layer %d has heads of %d values", i, l->head_dim);
        if (width > kv) kv = width;
        if (heads > q) q = heads;
    }
    KK_TRY(buffer(a, q, &a->q, err));
    KK_TRY(buffer(a, q, &a->out, err));
    KK_TRY(buffer(a, CHUNK * kv, &a->k, err));
    KK_TRY(buffer(a, CHUNK * kv, &a->v, err));
    KK_TRY(buffer(a, MAX_HEAD, &a->ones, err));
    KK_TRY(a->be->write(a->dev, a->ones, 0, ones, sizeof ones, err));
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        KK_TRY(buffer(a, CHUNK * 2 * (size_t)c->rope[k].n_rot + 1, &a->rope_rows[k], err));
    KK_TRY(buffer(a, (size_t)ctx * 2 * (size_t)c->rope[KK_FULL].n_rot + 1, &a->rope_pos, err));
    KK_TRY(fill_random(a, a->q, q, err));
    KK_TRY(fill_random(a, a->k, CHUNK * kv, err));
    return fill_random(a, a->v, CHUNK * kv, err);
}

static int32_t head_dim_of(const kk_config *c, int kind) {
    for (int32_t i = 0; i < c->n_layer; i++)
        if ((int)c->layer[i].kind == kind) return c->layer[i].head_dim;
    return 0;
}

static kk_status fill_rope(attention *a, kk_buf *table, int kind, int64_t pos, int64_t n,
                           kk_err *err) {
    const kk_rope_config *r = &a->config->rope[kind];
    const int32_t dim = head_dim_of(a->config, kind);
    if (dim == 0) return KK_OK;
    const kk_rope_args args = {
        .table = table, .pos0 = pos, .n = n, .rope = {r->theta, r->factor, r->n_rot, dim}};
    return a->be->rope(a->dev, &args, err);
}

static kk_status open_store(attention *a, store *s, kk_kv_format format, int32_t ctx, kk_err *err) {
    static const kk_mem_category category[KK_KINDS] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL};
    KK_TRY(kk_kv_layout_init(&s->layout, &a->shape, format, NULL, err));
    for (int k = 0; k < KK_KINDS; k++)
        if (s->layout.page_bytes[k])
            KK_TRY(kk_pool_new(&s->pool[k], &a->mem, category[k], s->layout.page_bytes[k], err));
    const kk_cache_opts how = {.layout = &s->layout,
                               .pool = {s->pool[0], s->pool[1]},
                               .policy = {&kk_kv_native, &kk_kv_exact},
                               .bounds = {[KK_SLIDING] = {.window = a->shape.window}},
                               .max_len = ctx,
                               .max_block = CHUNK};
    return kk_cache_new(&s->cache, &how, err);
}

static void close_all(attention *a) {
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        kk_cache_free(a->store[f].cache);
        for (int k = 0; k < KK_KINDS; k++) kk_pool_free(a->store[f].pool[k]);
    }
    if (!a->dev) return;
    kk_buf *all[] = {a->q,           a->k, a->v, a->out, a->ones, a->rope_pos, a->rope_rows[0],
                     a->rope_rows[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) a->be->buf_free(a->dev, all[i]);
    a->be->close(a->dev);
}

/* ---- filling and timing ------------------------------------------------------------------ */

static kk_status store_chunk(attention *a, store *s, int32_t n, kk_err *err) {
    const int64_t pos = kk_cache_len(s->cache);
    KK_TRY(kk_cache_reserve(s->cache, n, err));
    for (int k = 0; k < KK_LAYER_KINDS; k++) KK_TRY(fill_rope(a, a->rope_rows[k], k, pos, n, err));
    for (int32_t i = 0; i < a->config->n_layer; i++) {
        const kk_layer_config *l = &a->config->layer[i];
        if (l->kv_source != i) continue;
        const kk_group group = {
            .n_rows = n, .pos = pos, .pages = kk_cache_pages(s->cache, kind_of(l))};
        const kk_rows rows = {&group, 1, n};
        const kk_store_args args = {.k = a->k,
                                    .v = l->k_eq_v ? NULL : a->v,
                                    .q_norm = a->ones,
                                    .k_norm = a->ones,
                                    .rope_rows = a->rope_rows[l->kind],
                                    .n_rot = a->config->rope[l->kind].n_rot,
                                    .n_head = a->config->n_head,
                                    .slot = s->layout.slot[i],
                                    .rows = &rows,
                                    .eps = a->config->eps};
        KK_TRY(a->be->store(a->dev, &args, err));
    }
    kk_cache_commit(s->cache, pos + n);
    return KK_OK;
}

/* One row at the end of the context, over all layers. */
static kk_status attend_once(attention *a, const store *s, double *seconds, kk_err *err) {
    const double from = kk_now();
    for (int32_t i = 0; i < a->config->n_layer; i++) {
        const kk_layer_config *l = &a->config->layer[i];
        const kk_group group = {.n_rows = 1,
                                .pos = kk_cache_len(s->cache) - 1,
                                .pages = kk_cache_pages(s->cache, kind_of(l))};
        const kk_rows rows = {&group, 1, 1};
        const kk_attend_args args = {.out = a->out,
                                     .q = a->q,
                                     .k_norm = a->ones,
                                     .rope_pos = a->rope_pos,
                                     .n_rot = a->config->rope[l->kind].n_rot,
                                     .n_head = a->config->n_head,
                                     .window = l->kind == KK_SLIDING ? a->config->window : 0,
                                     .slot = s->layout.slot[l->kv_source],
                                     .rows = &rows,
                                     .scale = 1.0f};
        KK_TRY(a->be->attend(a->dev, &args, err));
    }
    KK_TRY(a->be->instruments->sync(a->dev, err));
    *seconds = kk_now() - from;
    return KK_OK;
}

/* Formats that the device lacks, or that the heads do not fit, are left out. */
static kk_status fill_stores(attention *a, const kk_bench_opts *o, kk_err *err) {
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        kk_kv_layout probe;
        a->fits[f] = kk_backend_stores(a->be, (kk_kv_format)f, NULL) == KK_OK &&
                     kk_kv_layout_init(&probe, &a->shape, (kk_kv_format)f, NULL, NULL) == KK_OK;
        if (!a->fits[f]) continue;
        KK_TRY(open_store(a, &a->store[f], (kk_kv_format)f, o->ctx, err));
        for (int32_t at = 0; at < o->ctx; at += CHUNK) {
            const int32_t n = o->ctx - at < CHUNK ? o->ctx - at : CHUNK;
            KK_TRY(kk_bench_step(o, NULL, err));
            KK_TRY(store_chunk(a, &a->store[f], n, err));
        }
    }
    return KK_OK;
}

static void conclude(attention *a, kk_bench_result *out, int32_t repeats) {
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        if (!a->fits[f]) continue;
        kk_bench_attention *r = &out->attention[out->n_attention++];
        r->format = (kk_kv_format)f;
        memcpy(r->sample, a->seconds[f], (size_t)repeats * sizeof *r->sample);
        r->seconds = kk_bench_spread_of(a->seconds[f], repeats);
        for (int k = 0; k < KK_KINDS; k++)
            r->kv_bytes += kk_cache_bytes(a->store[f].cache, (kk_kind)k);
        r->ratio = r->seconds.median / out->attention[0].seconds.median;
        r->kv_ratio = (double)r->kv_bytes / (double)out->attention[0].kv_bytes;
    }
}

static kk_status measure(attention *a, const kk_bench_opts *o, kk_bench_result *out, kk_err *err) {
    static const double least_s = 2.0;
    int32_t repeats = 0;
    double warm;
    const kk_dev_opts dev = {.threads = o->engine.threads,
                             .pin = !o->engine.no_pin,
                             .isa = o->engine.isa,
                             .mem = &a->mem,
                             .max_rows = CHUNK};
    a->be = kk_backend_named(out->device.device);
    if (!a->be) return kk_fail(err, KK_EDEVICE, "no device to attend on");
    KK_TRY(a->be->open(&a->dev, &dev, err));
    fill_shape(a);
    KK_TRY(open_buffers(a, o->ctx, err));
    KK_TRY(fill_rope(a, a->rope_pos, KK_FULL, 0, o->ctx, err));
    KK_TRY(fill_stores(a, o, err));
    for (int f = 0; f < KK_KV_FORMATS; f++)
        if (a->fits[f]) KK_TRY(attend_once(a, &a->store[f], &warm, err));
    for (const double from = kk_now();
         repeats < o->repeat || (repeats < KK_BENCH_MAX_REPEAT && kk_now() - from < least_s);
         repeats++)
        for (int f = 0; f < KK_KV_FORMATS; f++)
            if (a->fits[f]) KK_TRY(attend_once(a, &a->store[f], &a->seconds[f][repeats], err));
    conclude(a, out, repeats);
    return KK_OK;
}

kk_status kk_bench_attend(const kk_bench_opts *o, kk_bench_result *out, kk_err *err) {
    kk_checkpoint *c;
    KK_TRY(kk_bench_step(o, "timing attention over the K/V formats", err));
    KK_TRY(o->engine.synthetic ? kk_checkpoint_synthetic(&c, o->engine.synthetic, NULL, err)
                               : kk_checkpoint_open(&c, o->engine.model, NULL, err));
    attention *a = kk_calloc(1, sizeof *a);
    kk_status st = KK_ENOMEM;
    if (a) {
        a->config = kk_checkpoint_config(c);
        st = measure(a, o, out, err);
        close_all(a);
    } else {
        kk_fail(err, st, "no memory for measurements");
    }
    kk_free(a);
    kk_checkpoint_close(c);
    return st;
}
