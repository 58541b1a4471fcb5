/* prototype.c - a plain forward of the drafter on the host, with BLAS for the products; see
 * prototype.h.  It serves comparison alone, so it takes the simplest shape: all weights as floats,
 * one whole text at a time. */
#include "train/prototype.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUERIES = 256 }; /* rows whose scores are held at once */

typedef struct {
    float *q, *k, *v, *o, *gate, *up, *down;
    float *input_norm, *post_norm, *q_norm, *k_norm;
} layer;

struct kk_prototype {
    kk_engine *engine;
    kk_drafter_config cfg;
    float scale; /* factor of embedding rows */
    int32_t max_rows;
    layer *layers;
    float *x, *z, *q, *att, *gate, *up, *scores;
    float *k, *v; /* normed and rotated keys; values */
};

int32_t kk_prototype_width(const kk_engine *e) {
    const kk_drafter_config *c = e->dflash ? kk_dflash_config(e->dflash) : NULL;
    return c ? c->n_layer * c->n_kv_head * c->head_dim : 0;
}

/* ---- weights ----------------------------------------------------------------------------- */

static kk_status load(const kk_drafter *d, int32_t i, const char *part, float **out, kk_err *err) {
    char name[96];
    snprintf(name, sizeof name, "layers.%d.%s.weight", i, part);
    const kk_tensor *t = kk_drafter_find(d, name);
    if (!t) return kk_fail(err, KK_EFORMAT, "the drafter has no tensor '%s'", name);
    const size_t n = (size_t)kk_tensor_values(t);
    *out = kk_calloc(n, sizeof **out);
    if (!*out) return kk_fail(err, KK_ENOMEM, "no memory for '%s'", name);
    kk_tensor_floats(t, 0, *out, n);
    return KK_OK;
}

static kk_status load_layer(kk_prototype *p, int32_t i, kk_err *err) {
    layer *l = &p->layers[i];
    const struct {
        const char *name;
        float **out;
    } parts[] = {
        {"self_attn.q_proj", &l->q},      {"self_attn.k_proj", &l->k},
        {"self_attn.v_proj", &l->v},      {"self_attn.o_proj", &l->o},
        {"mlp.gate_proj", &l->gate},      {"mlp.up_proj", &l->up},
        {"mlp.down_proj", &l->down},      {"input_layernorm", &l->input_norm},
        {"self_attn.q_norm", &l->q_norm}, {"post_attention_layernorm", &l->post_norm},
        {"self_attn.k_norm", &l->k_norm},
    };
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        KK_TRY(load(p->engine->drafter, i, parts[k].name, parts[k].out, err));
    return KK_OK;
}

static kk_status take_rows(kk_prototype *p, kk_err *err) {
    const kk_drafter_config *c = &p->cfg;
    const size_t n = (size_t)p->max_rows, h = (size_t)c->hidden;
    const size_t nq = (size_t)c->n_head * (size_t)c->head_dim;
    const size_t nkv = (size_t)c->n_kv_head * (size_t)c->head_dim;
    const struct {
        float **out;
        size_t n;
    } parts[] = {{&p->x, n * h},
                 {&p->z, n * h},
                 {&p->q, n * nq},
                 {&p->att, n * nq},
                 {&p->gate, n * (size_t)c->ffn},
                 {&p->up, n * (size_t)c->ffn},
                 {&p->k, n * nkv},
                 {&p->v, n * nkv},
                 {&p->scores, QUERIES * n}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].out = kk_calloc(parts[i].n, sizeof(float));
        if (!*parts[i].out) return kk_fail(err, KK_ENOMEM, "no memory for %zu rows", n);
    }
    return KK_OK;
}

kk_status kk_prototype_new(kk_prototype **out, kk_engine *e, int32_t max_rows, kk_err *err) {
    *out = NULL;
    if (!e->dflash) return kk_fail(err, KK_EINVAL, "there is no drafter to read keys from");
    kk_prototype *p = kk_zalloc(sizeof *p);
    if (!p) return kk_fail(err, KK_ENOMEM, "no memory for the drafter's features");
    const float once = kk_gemma4_embed_scale(e->model);
    p->engine = e;
    p->cfg = *kk_dflash_config(e->dflash);
    p->max_rows = max_rows;
    p->scale = p->cfg.embed_scaling == KK_EMBED_UNSCALED ? 1
               : p->cfg.embed_scaling == KK_EMBED_TWICE  ? once * once
                                                         : once;
    p->layers = kk_calloc((size_t)p->cfg.n_layer, sizeof *p->layers);
    kk_status st = p->layers ? take_rows(p, err) : kk_fail(err, KK_ENOMEM, "no memory for layers");
    for (int32_t i = 0; i < p->cfg.n_layer && st == KK_OK; i++) st = load_layer(p, i, err);
    if (st != KK_OK) {
        kk_prototype_free(p);
        return st;
    }
    *out = p;
    return KK_OK;
}

void kk_prototype_free(kk_prototype *p) {
    if (!p) return;
    for (int32_t i = 0; p->layers && i < p->cfg.n_layer; i++) {
        const layer *l = &p->layers[i];
        float *w[] = {l->q,    l->k,          l->v,         l->o,      l->gate,  l->up,
                      l->down, l->input_norm, l->post_norm, l->q_norm, l->k_norm};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) kk_free(w[k]);
    }
    float *rows[] = {p->x, p->z, p->q, p->att, p->gate, p->up, p->scores, p->k, p->v};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) kk_free(rows[k]);
    kk_free(p->layers);
    kk_free(p);
}

/* ---- one text ---------------------------------------------------------------------------- */

static kk_status embed(kk_prototype *p, const int32_t *tokens, int32_t n, kk_err *err) {
    const kk_tensor *t = kk_checkpoint_find(p->engine->checkpoint, "embed_tokens.weight");
    const size_t dim = (size_t)p->cfg.hidden;
    if (!t || t->n_dims != 2)
        return kk_fail(err, KK_EFORMAT, "the model has no token table to read");
    for (int32_t r = 0; r < n; r++) {
        if (tokens[r] < 0 || tokens[r] >= t->dims[0])
            return kk_fail(err, KK_EINVAL, "token id %d is outside the vocabulary of %lld",
                           tokens[r], (long long)t->dims[0]);
        float *x = p->x + (size_t)r * dim;
        kk_tensor_floats(t, (int64_t)tokens[r] * t->dims[1], x, dim);
        for (size_t i = 0; i < dim; i++) x[i] *= p->scale;
    }
    return KK_OK;
}

static void norm(float *y, const float *x, const float *w, int64_t rows, int32_t dim, float eps) {
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim) {
        double sum = 0;
        for (int32_t i = 0; i < dim; i++) sum += (double)x[i] * (double)x[i];
        const float inv = (float)(1 / sqrt(sum / dim + (double)eps));
        for (int32_t i = 0; i < dim; i++) y[i] = x[i] * inv * w[i];
    }
}

/* y [n, out] = x [n, in] w^T, added to y when `add`. */
static void linear(float *y, const float *x, const float *w, int32_t n, int32_t out, int32_t in,
                   bool add) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1.0f, x, in, w, in,
                add ? 1.0f : 0.0f, y, out);
}

static void rotate(const kk_prototype *p, float *x, int32_t n, int32_t heads) {
    const int32_t dim = p->cfg.head_dim, half = dim / 2;
    for (int32_t pos = 0; pos < n; pos++)
        for (int32_t i = 0; i < half; i++) {
            const double angle = pos * pow((double)p->cfg.theta, -2.0 * i / dim);
            const float c = (float)cos(angle), s = (float)sin(angle);
            for (int32_t h = 0; h < heads; h++) {
                float *v = x + ((size_t)pos * (size_t)heads + (size_t)h) * (size_t)dim;
                const float a = v[i], b = v[i + half];
                v[i] = a * c - b * s;
                v[i + half] = a * s + b * c;
            }
        }
}

static void softmax(float *x, int32_t rows, int32_t n) {
    for (int32_t r = 0; r < rows; r++, x += n) {
        float most = x[0];
        double sum = 0;
        for (int32_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
        for (int32_t i = 0; i < n; i++) sum += (double)(x[i] = expf(x[i] - most));
        for (int32_t i = 0; i < n; i++) x[i] = (float)((double)x[i] / sum);
    }
}

/* Every position sees every other. */
static void attend(kk_prototype *p, int32_t n) {
    assert(p->cfg.n_kv_head > 0); /* a checked configuration's */
    const int32_t dim = p->cfg.head_dim, heads = p->cfg.n_head, group = heads / p->cfg.n_kv_head;
    const int32_t nq = heads * dim, nkv = p->cfg.n_kv_head * dim;
    const float scale = 1.0f / sqrtf((float)dim);
    for (int32_t h = 0; h < heads; h++) {
        const size_t at = (size_t)h * (size_t)dim, kv = (size_t)(h / group) * (size_t)dim;
        for (int32_t first = 0; first < n; first += QUERIES) {
            const int32_t rows = n - first < QUERIES ? n - first : QUERIES;
            const size_t q = (size_t)first * (size_t)nq + at;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, dim, scale, p->q + q, nq,
                        p->k + kv, nkv, 0.0f, p->scores, n);
            softmax(p->scores, rows, n);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, n, 1.0f, p->scores, n,
                        p->v + kv, nkv, 0.0f, p->att + q, nq);
        }
    }
}

/* The raw keys and values of a layer into its columns of the features. */
static void keep(const kk_prototype *p, int32_t i, int32_t n, float *keys, float *values) {
    const size_t nkv = (size_t)p->cfg.n_kv_head * (size_t)p->cfg.head_dim;
    const size_t stride = nkv * (size_t)p->cfg.n_layer;
    for (size_t r = 0; r < (size_t)n; r++) {
        memcpy(keys + r * stride + (size_t)i * nkv, p->k + r * nkv, nkv * sizeof *keys);
        memcpy(values + r * stride + (size_t)i * nkv, p->v + r * nkv, nkv * sizeof *values);
    }
}

static void run_layer(kk_prototype *p, int32_t i, int32_t n, float *keys, float *values) {
    const kk_drafter_config *c = &p->cfg;
    const layer *l = &p->layers[i];
    const int32_t h = c->hidden, nq = c->n_head * c->head_dim, nkv = c->n_kv_head * c->head_dim;
    norm(p->z, p->x, l->input_norm, n, h, c->eps);
    linear(p->q, p->z, l->q, n, nq, h, false);
    linear(p->k, p->z, l->k, n, nkv, h, false);
    linear(p->v, p->z, l->v, n, nkv, h, false);
    keep(p, i, n, keys, values);
    norm(p->q, p->q, l->q_norm, (int64_t)n * c->n_head, c->head_dim, c->eps);
    norm(p->k, p->k, l->k_norm, (int64_t)n * c->n_kv_head, c->head_dim, c->eps);
    rotate(p, p->q, n, c->n_head);
    rotate(p, p->k, n, c->n_kv_head);
    attend(p, n);
    linear(p->x, p->att, l->o, n, h, nq, true);
    norm(p->z, p->x, l->post_norm, n, h, c->eps);
    linear(p->gate, p->z, l->gate, n, c->ffn, h, false);
    linear(p->up, p->z, l->up, n, c->ffn, h, false);
    for (size_t k = 0; k < (size_t)n * (size_t)c->ffn; k++)
        p->gate[k] = p->gate[k] / (1 + expf(-p->gate[k])) * p->up[k];
    linear(p->x, p->gate, l->down, n, h, c->ffn, true);
}

kk_status kk_prototype_run(kk_prototype *p, const int32_t *tokens, int32_t n, float *keys,
                           float *values, kk_err *err) {
    if (n < 1 || n > p->max_rows)
        return kk_fail(err, KK_EINVAL, "a text of %d tokens: 1 to %d fit", n, p->max_rows);
    KK_TRY(embed(p, tokens, n, err));
    for (int32_t i = 0; i < p->cfg.n_layer; i++) run_layer(p, i, n, keys, values);
    return KK_OK;
}
