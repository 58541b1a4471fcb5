/* capture.c - runs a sequence chunk by chunk and copies what the model shows; see capture.h. */
#include "train/capture.h"

#include <math.h>
#include <string.h>

#include "engine/session.h"
#include "train/prototype.h"

struct kk_capture {
    kk_capture_opts opts;
    kk_config config;
    kk_captured seen; /* buffers for max_rows rows */
    kk_session *session;
    float *taps;       /* [n_taps][rows of a forward][hidden] of the current forward */
    kk_buf *features;  /* context: the drafter's, of a forward */
    kk_prototype *all; /* drafter-kv */
    int32_t done;      /* rows of the sequence before this forward */
};

/* ---- scratch ---------------------------------------------------------------------------- */

static bool stores(const kk_config *c, int32_t layer) { return c->layer[layer].kv_source == layer; }

static size_t kv_width(const kk_config *c, int32_t layer) {
    return (size_t)c->layer[layer].n_kv_head * (size_t)c->layer[layer].head_dim;
}

static size_t q_width(const kk_config *c, int32_t layer) {
    return (size_t)c->n_head * (size_t)c->layer[layer].head_dim;
}

static bool take(float **out, size_t rows, size_t width) {
    *out = kk_calloc(rows * width, sizeof **out);
    return *out != NULL;
}

/* Which parts there are is said by `attention`, how wide they are by the model. */
static kk_status take_rows(kk_captured *s, const kk_config *c, int32_t rows, bool two,
                           bool attention, kk_err *err) {
    const size_t n = (size_t)rows;
    bool all = take(&s->x[0], n, (size_t)s->n_in);
    if (two) all = all && take(&s->x[1], n, (size_t)s->n_in);
    for (int32_t i = 0; i < c->n_layer && all; i++) {
        if (stores(c, i)) all = take(&s->k[i], n, kv_width(c, i));
        if (stores(c, i) && !c->layer[i].k_eq_v) all = all && take(&s->v[i], n, kv_width(c, i));
        if (attention)
            all = all && take(&s->q[i], n, q_width(c, i)) && take(&s->o[i], n, (size_t)c->hidden);
    }
    return all ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for %d rows of training data", rows);
}

void kk_captured_free(kk_captured *c) {
    kk_free(c->x[0]);
    kk_free(c->x[1]);
    for (int32_t i = 0; i < KK_MAX_LAYERS; i++) {
        kk_free(c->k[i]);
        kk_free(c->v[i]);
        kk_free(c->q[i]);
        kk_free(c->o[i]);
    }
    memset(c, 0, sizeof *c);
}

kk_status kk_captured_copy(kk_captured *to, const kk_captured *from, const kk_config *config,
                           kk_err *err) {
    const size_t n = (size_t)from->n_rows;
    memset(to, 0, sizeof *to);
    to->n_in = from->n_in;
    to->n_rows = from->n_rows;
    const kk_status st =
        take_rows(to, config, from->n_rows, from->x[1] != NULL, from->q[0] != NULL, err);
    if (st != KK_OK) {
        kk_captured_free(to);
        return st;
    }
    for (int i = 0; i < 2; i++)
        if (from->x[i]) memcpy(to->x[i], from->x[i], n * (size_t)from->n_in * sizeof(float));
    for (int32_t i = 0; i < config->n_layer; i++) {
        if (from->k[i]) memcpy(to->k[i], from->k[i], n * kv_width(config, i) * sizeof(float));
        if (from->v[i]) memcpy(to->v[i], from->v[i], n * kv_width(config, i) * sizeof(float));
        if (from->q[i]) memcpy(to->q[i], from->q[i], n * q_width(config, i) * sizeof(float));
        if (from->o[i]) memcpy(to->o[i], from->o[i], n * (size_t)config->hidden * sizeof(float));
    }
    return KK_OK;
}

/* ---- opening ----------------------------------------------------------------------------- */

int32_t kk_capture_width(const kk_capture_opts *o) {
    const int32_t hidden = kk_engine_config(o->engine)->hidden;
    switch (o->source) {
    case KK_SOURCE_TAPS: return o->n_taps * hidden;
    case KK_SOURCE_DRAFTER_KV: return kk_prototype_width(o->engine);
    default: return hidden;
    }
}

static kk_status check(const kk_capture_opts *o, kk_err *err) {
    const kk_config *c = kk_engine_config(o->engine);
    const bool drafter = o->source == KK_SOURCE_CONTEXT || o->source == KK_SOURCE_DRAFTER_KV;
    if (drafter && !o->engine->dflash)
        return kk_fail(err, KK_EINVAL, "the source '%s' reads a drafter, and none is loaded",
                       kk_source_name(o->source));
    if (o->source == KK_SOURCE_TAPS && (o->n_taps < 1 || o->n_taps > KK_MAX_TAPS))
        return kk_fail(err, KK_EINVAL, "%d taps: 1 to %d layers can be read", o->n_taps,
                       KK_MAX_TAPS);
    for (int32_t i = 0; o->source == KK_SOURCE_TAPS && i < o->n_taps; i++)
        if (o->taps[i] < 0 || o->taps[i] >= c->n_layer)
            return kk_fail(err, KK_EINVAL, "there is no layer %d to tap: the model has %d",
                           o->taps[i], c->n_layer);
    if (o->max_rows < 1 || o->max_rows > c->context)
        return kk_fail(err, KK_EINVAL, "sequences of %d tokens: this model takes 1 to %d",
                       o->max_rows, c->context);
    return KK_OK;
}

static kk_status open_source(kk_capture *c, kk_err *err) {
    kk_engine *e = c->opts.engine;
    const size_t rows = (size_t)e->rounds.max_rows, dim = (size_t)c->config.hidden;
    const size_t taps = c->opts.source == KK_SOURCE_TAPS ? (size_t)c->opts.n_taps : 1;
    if (!take(&c->taps, rows * taps, dim))
        return kk_fail(err, KK_ENOMEM, "no memory for the taps of %zu rows", rows);
    if (c->opts.source == KK_SOURCE_CONTEXT)
        KK_TRY(e->backend->buf_new(e->dev, KK_MEM_WORKSPACE, rows * dim * sizeof(float),
                                   &c->features, err));
    if (c->opts.source == KK_SOURCE_DRAFTER_KV)
        KK_TRY(kk_prototype_new(&c->all, e, c->opts.max_rows, err));
    return KK_OK;
}

kk_status kk_capture_new(kk_capture **out, const kk_capture_opts *opts, kk_err *err) {
    *out = NULL;
    KK_TRY(check(opts, err));
    kk_capture *c = kk_zalloc(sizeof *c);
    if (!c) return kk_fail(err, KK_ENOMEM, "no memory to capture rows");
    c->opts = *opts;
    c->config = *kk_engine_config(opts->engine);
    c->seen.n_in = kk_capture_width(opts);
    const bool two = opts->source == KK_SOURCE_DRAFTER_KV;
    kk_status st = take_rows(&c->seen, &c->config, opts->max_rows, two, opts->attention, err);
    if (st == KK_OK) st = open_source(c, err);
    if (st != KK_OK) {
        kk_capture_free(c);
        return st;
    }
    *out = c;
    return KK_OK;
}

void kk_capture_free(kk_capture *c) {
    if (!c) return;
    kk_captured_free(&c->seen);
    kk_free(c->taps);
    if (c->features) c->opts.engine->backend->buf_free(c->opts.engine->dev, c->features);
    kk_prototype_free(c->all);
    kk_session_free(c->session);
    kk_free(c);
}

/* ---- running ----------------------------------------------------------------------------- */

static kk_status on_part(void *user, int32_t layer, kk_layer_part part, const kk_buf *rows,
                         int32_t n_rows, int32_t width, kk_err *err) {
    kk_capture *c = user;
    kk_captured *s = &c->seen;
    float *to = part == KK_PART_Q   ? s->q[layer]
                : part == KK_PART_K ? s->k[layer]
                : part == KK_PART_V ? s->v[layer]
                                    : s->o[layer];
    const size_t w = (size_t)width, n = (size_t)n_rows * w * sizeof *to;
    kk_engine *e = c->opts.engine;
    return to ? e->backend->read(e->dev, rows, 0, to + (size_t)c->done * w, n, err) : KK_OK;
}

static void rms_norm(float *y, const float *x, size_t n, double eps) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    const double inv = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = (float)((double)x[i] * inv);
}

/* Taps come layer by layer, features row by row. */
static void take_taps(kk_capture *c, int32_t rows, int32_t taps) {
    const size_t dim = (size_t)c->config.hidden, n = (size_t)rows, side = (size_t)taps;
    float *x = c->seen.x[0] + (size_t)c->done * side * dim;
    for (size_t r = 0; r < n; r++)
        for (size_t t = 0; t < side; t++)
            rms_norm(x + (r * side + t) * dim, c->taps + (t * n + r) * dim, dim,
                     (double)c->config.eps);
}

static kk_status take_context(kk_capture *c, int32_t rows, kk_err *err) {
    kk_engine *e = c->opts.engine;
    const size_t dim = (size_t)c->config.hidden;
    KK_TRY(kk_dflash_features(e->dflash, e->dflash_shared.chunk, 0, rows, c->features, err));
    return e->backend->read(e->dev, c->features, 0, c->seen.x[0] + (size_t)c->done * dim,
                            (size_t)rows * dim * sizeof(float), err);
}

static kk_status forward(kk_capture *c, const int32_t *tokens, int32_t rows, kk_err *err) {
    static const int32_t embedding = -1;
    kk_engine *e = c->opts.engine;
    const kk_source source = c->opts.source;
    const bool context = source == KK_SOURCE_CONTEXT;
    const int32_t n_taps = source == KK_SOURCE_TAPS ? c->opts.n_taps : source == KK_SOURCE_EMBED;
    const kk_gemma4_group group = {.cache = c->session->cache,
                                   .layout = c->session->layout,
                                   .tokens = tokens,
                                   .n_rows = rows,
                                   .taps = context ? e->dflash_shared.chunk : NULL};
    const kk_gemma4_watch watch = {on_part, c};
    const kk_drafter_config *d = context ? kk_dflash_config(e->dflash) : NULL;
    const kk_gemma4_forward_args a = {.groups = &group,
                                      .n_groups = 1,
                                      .tapped = d ? d->taps : NULL,
                                      .n_tapped = d ? d->n_taps : 0,
                                      .tap_layers =
                                          source == KK_SOURCE_TAPS ? c->opts.taps : &embedding,
                                      .n_taps = n_taps,
                                      .tap_out = c->taps,
                                      .watch = &watch};
    KK_TRY(kk_cache_reserve(c->session->cache, rows, err));
    KK_TRY(kk_gemma4_forward(e->model, &a, err));
    kk_cache_commit(c->session->cache, c->done + rows);
    if (n_taps) take_taps(c, rows, n_taps);
    return context ? take_context(c, rows, err) : KK_OK;
}

static kk_status run(kk_capture *c, const int32_t *tokens, int32_t n, kk_err *err) {
    const int32_t most = c->opts.engine->rounds.max_rows;
    for (c->done = 0; c->done < n;) {
        const int32_t rows = n - c->done < most ? n - c->done : most;
        kk_engine_lock(c->opts.engine);
        const kk_status st = forward(c, tokens + c->done, rows, err);
        kk_engine_unlock(c->opts.engine);
        KK_TRY(st);
        c->done += rows;
    }
    return c->all ? kk_prototype_run(c->all, tokens, n, c->seen.x[0], c->seen.x[1], err) : KK_OK;
}

kk_status kk_capture_run(kk_capture *c, const int32_t *tokens, int32_t n, const kk_captured **rows,
                         kk_err *err) {
    const kk_session_opts how = {.ctx = n, .kv_format = KK_KV_F32, .spec = KK_SPEC_NONE};
    *rows = NULL;
    if (n < 1 || n > c->opts.max_rows)
        return kk_fail(err, KK_EINVAL, "a sequence of %d tokens: 1 to %d fit", n, c->opts.max_rows);
    KK_TRY(kk_session_new(&c->session, c->opts.engine, &how, err));
    const kk_status st = run(c, tokens, n, err);
    kk_session_free(c->session);
    c->session = NULL;
    KK_TRY(st);
    c->seen.n_rows = n;
    *rows = &c->seen;
    return KK_OK;
}
