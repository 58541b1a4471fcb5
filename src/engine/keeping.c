/* keeping.c - what a session keeps of its K/V rows: the choice checked, and the cache made for it;
 * see session.h. */
#include <stdlib.h>

#include "engine/session.h"

enum { DEFAULT_SINK = 4, DEFAULT_WINDOW = 64, DEFAULT_CHUNK = 64, MOST_CHUNK = 4096 };

/* ---- the choice ------------------------------------------------------------------------- */

static int32_t chosen(int32_t value, int32_t standard) {
    return value == 0 ? standard : value == -1 ? 0 : value;
}

static kk_status check_bounds(const kk_session_keeps *k, const kk_config *c, kk_err *err) {
    if (k->sink < 0 || k->sink > KK_PAGE_ROWS)
        return kk_fail(err, KK_EINVAL, "a sink of %d rows: 0 to %d", k->sink, KK_PAGE_ROWS);
    if (k->chunk < 1 || k->chunk > MOST_CHUNK)
        return kk_fail(err, KK_EINVAL, "chunks of %d rows: 1 to %d", k->chunk, MOST_CHUNK);
    if (k->window < 0 || k->window > c->context)
        return kk_fail(err, KK_EINVAL, "a window of %d rows: 0 to %d, the model's context",
                       k->window, c->context);
    if (k->sink + k->window == 0)
        return kk_fail(err, KK_EINVAL, "sink and window are both 0: nothing would be kept");
    if (k->kind[KK_SLIDING] != KK_KEEP_ALL && k->window > c->window)
        return kk_fail(err, KK_EINVAL,
                       "a window of %d rows: sliding layers of this model see %d at most",
                       k->window, c->window);
    return KK_OK;
}

/* Every layer of the kind must have its decoders, or that of the layer whose rows it reads. */
static kk_status check_restored(const kk_engine *e, kk_kind kind, kk_err *err) {
    const kk_config *c = kk_engine_config(e);
    const char *name = kind == KK_SLIDING ? "sliding" : "full";
    if (!e->restorer)
        return kk_fail(
            err, KK_EINVAL,
            "restoring %s layers needs a projection, and none is loaded: set `projection`", name);
    const kk_projection_config *p = kk_restorer_config(e->restorer);
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->layer[i].kind == kind && !p->layer[c->layer[i].kv_source].restored)
            return kk_fail(err, KK_EINVAL,
                           "restoring %s layers: the projection has no decoders for layer %d", name,
                           c->layer[i].kv_source);
    return KK_OK;
}

/* What is kept of a position.  Under diagnosis true rows are mixed in before their norms, where
 * nothing can be done with scales. */
static kk_kv_latents latents_of(const kk_engine *e, const kk_session_keeps *k,
                                kk_diagnosis *diagnosis) {
    const kk_kv_shape *shape = kk_gemma4_kv_shape(e->model);
    bool kinds[KK_KINDS] = {0};
    for (int i = 0; i < KK_LAYER_KINDS; i++) kinds[i] = k->kind[i] == KK_KEEP_RESTORED;
    return (kk_kv_latents){.rank = kk_restorer_config(e->restorer)->rank,
                           .format = k->latents,
                           .n_scales = diagnosis ? 0 : kk_kv_scale_at(shape, kinds, shape->n_layer),
                           .diagnosis = diagnosis};
}

static kk_status check_latents(const kk_engine *e, const kk_session_keeps *k,
                               kk_diagnosis *diagnosis, kk_err *err) {
    const kk_kv_shape *shape = kk_gemma4_kv_shape(e->model);
    const kk_kv_latents latents = latents_of(e, k, diagnosis);
    kk_kv_layout *tried = kk_malloc(sizeof *tried);
    if (!tried) return kk_fail(err, KK_ENOMEM, "no memory for the places of K/V rows");
    const kk_status st = kk_kv_layout_init(tried, shape, KK_KV_BF16, &latents, err);
    kk_free(tried);
    return st;
}

kk_status kk_session_keeping(kk_session_keeps *out, const kk_engine *e, const kk_session_opts *o,
                             kk_diagnosis *diagnosis, kk_err *err) {
    *out = (kk_session_keeps){.kind = {[KK_SLIDING] = o->kv_sliding, [KK_FULL] = o->kv_full}};
    bool some = false, restored = false;
    for (int k = 0; k < KK_LAYER_KINDS; k++) {
        if ((int)out->kind[k] < 0 || out->kind[k] > KK_KEEP_RESTORED)
            return kk_fail(err, KK_EINVAL, "no way to keep K/V rows has the number %d",
                           (int)out->kind[k]);
        some |= out->kind[k] != KK_KEEP_ALL;
        restored |= out->kind[k] == KK_KEEP_RESTORED;
    }
    if ((int)o->latents < 0 || (int)o->latents >= KK_KV_FORMATS)
        return kk_fail(err, KK_EINVAL, "no format of latents has the number %d", (int)o->latents);
    if (diagnosis && (!restored || !(diagnosis->mix >= 0 && diagnosis->mix <= 1)))
        return kk_fail(err, KK_EINVAL, "true rows are mixed into restored ones only, by 0 to 1");
    if (!some) return KK_OK;
    out->sink = chosen(o->sink, DEFAULT_SINK);
    out->window = chosen(o->window, DEFAULT_WINDOW);
    out->chunk = o->chunk ? o->chunk : DEFAULT_CHUNK;
    KK_TRY(check_bounds(out, kk_engine_config(e), err));
    if (!restored) return KK_OK;
    KK_TRY(kk_backend_stores(e->backend, o->latents, err));
    out->latents = o->latents;
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        if (out->kind[k] == KK_KEEP_RESTORED) KK_TRY(check_restored(e, (kk_kind)k, err));
    return check_latents(e, out, diagnosis, err);
}

kk_status kk_session_check_drafts(const kk_session *s, kk_err *err) {
    const bool restored =
        s->keeps.kind[KK_SLIDING] == KK_KEEP_RESTORED || s->keeps.kind[KK_FULL] == KK_KEEP_RESTORED;
    if (!restored || s->drafting.n == 0 || s->draft_max + 1 <= s->keeps.window) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   "a window of %d rows is smaller than a round of %d: draft less, or nothing",
                   s->keeps.window, s->draft_max + 1);
}

static kk_kv_bounds bounds_of(const kk_session_keeps *k) {
    return (kk_kv_bounds){.window = k->window, .sink = k->sink, .chunk = k->chunk};
}

int32_t kk_session_pass(const kk_session *s, int64_t from, int32_t most) {
    const kk_session_keeps *k = &s->keeps;
    if (k->kind[KK_SLIDING] != KK_KEEP_RESTORED && k->kind[KK_FULL] != KK_KEEP_RESTORED)
        return most;
    /* The first query that would have the first of these rows rebuilt. */
    const kk_kv_bounds bounds = bounds_of(k);
    const int64_t end = kk_gone_at(&bounds, from);
    return end - from < most ? (int32_t)(end - from) : most;
}

/* ---- the cache -------------------------------------------------------------------------- */

/* Reserves the scratch that attention needs to read rows which are not all in their pages. */
static kk_status prepare_window(kk_session *s, kk_err *err) {
    const kk_engine *e = s->engine;
    const kk_config *c = kk_engine_config(e);
    for (int32_t i = 0; i < c->n_layer; i++)
        if (s->keeps.kind[c->layer[i].kind] == KK_KEEP_WINDOW && c->layer[i].kv_source == i)
            KK_TRY(e->backend->prepare(
                e->dev,
                &(kk_prepare_args){.evicted = {.slot = &s->layout->slot[i], .n_head = c->n_head}},
                err));
    return KK_OK;
}

/* Pages of latents of a format differ by what is kept beside these. */
static int pages_of_latents(const kk_session *s) {
    const kk_session_keeps *k = &s->keeps;
    if (s->diagnosis) return KK_LATENTS_TRUTH;
    if (k->kind[KK_FULL] != KK_KEEP_RESTORED) return KK_LATENTS_SLIDING;
    return k->kind[KK_SLIDING] == KK_KEEP_RESTORED ? KK_LATENTS_ALL : KK_LATENTS_FULL;
}

/* Latents take pages of their own, of which an engine has a pool for each format it was asked
 * for. */
static kk_status add_latents(kk_session *s, kk_cache_opts *how, kk_err *err) {
    kk_engine *e = s->engine;
    const kk_session_keeps *k = &s->keeps;
    const kk_kv_latents latents = latents_of(e, k, s->diagnosis);
    kk_pool **pool = &e->latent_pools[k->latents][pages_of_latents(s)];
    s->own_layout = kk_malloc(sizeof *s->own_layout);
    if (!s->own_layout) return kk_fail(err, KK_ENOMEM, "no memory for the places of K/V rows");
    KK_TRY(kk_kv_layout_init(s->own_layout, &s->layout->shape, s->layout->format, &latents, err));
    s->layout = s->own_layout;
    how->layout = s->layout;
    if (!*pool) {
        KK_TRY(
            kk_pool_new(pool, &e->mem, KK_MEM_KV_LATENTS, s->layout->page_bytes[KK_LATENT], err));
        kk_pool_place(*pool, e->backend, e->dev);
    }
    how->pool[KK_LATENT] = *pool;
    how->policy[KK_LATENT] = &kk_kv_exact;
    if (k->kind[KK_FULL] == KK_KEEP_RESTORED) return KK_OK;
    how->policy[KK_LATENT] = &kk_kv_native;
    how->bounds[KK_LATENT].window = s->layout->shape.window;
    return KK_OK;
}

static kk_status open_cache(kk_session *s, kk_err *err) {
    kk_engine *e = s->engine;
    const kk_session_keeps *k = &s->keeps;
    kk_cache_opts how = {.layout = s->layout,
                         .pool = {e->pages.pool[s->format][0], e->pages.pool[s->format][1]},
                         .policy = {[KK_SLIDING] = &kk_kv_native, [KK_FULL] = &kk_kv_exact},
                         .bounds = {[KK_SLIDING] = {.window = s->layout->shape.window}},
                         .max_len = s->ctx,
                         .max_block = e->rounds.max_rows};
    bool restored = false;
    for (int i = 0; i < KK_LAYER_KINDS; i++) {
        if (k->kind[i] == KK_KEEP_ALL) continue;
        how.policy[i] = k->kind[i] == KK_KEEP_WINDOW ? &kk_kv_window : &kk_kv_restored;
        how.bounds[i] = bounds_of(k);
        restored |= k->kind[i] == KK_KEEP_RESTORED;
    }
    KK_TRY(prepare_window(s, err));
    if (restored) KK_TRY(add_latents(s, &how, err));
    KK_TRY(kk_gemma4_expect(e->model, s->ctx, err));
    return kk_cache_new(&s->cache, &how, err);
}

kk_status kk_session_open_cache(kk_session *s, kk_err *err) {
    kk_engine_lock(s->engine);
    const kk_status st = open_cache(s, err);
    kk_engine_unlock(s->engine);
    return st;
}
