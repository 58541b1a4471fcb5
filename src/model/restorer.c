/* restorer.c - see restorer.h. */
#include "model/restorer.h"

#include <stdio.h>

#include "model/model.h"

struct kk_restorer {
    kk_projection_config cfg;
    const kk_backend *be;
    kk_dev *dev;
    kk_dflash *drafter;
    float eps;
    kk_weight *encoder, *k[256], *v[256];
    kk_buf *one;     /* [max_rows, hidden] a layer's outputs, normed */
    kk_buf *source;  /* [max_rows, n_taps * hidden] side by side */
    kk_buf *context; /* [max_rows, hidden] the drafter's, for that source */
    kk_buf *z;       /* [max_rows, rank] */
};

/* ---- life ------------------------------------------------------------------------------- */

static kk_status load(kk_restorer *r, const kk_projection *p, kk_err *err) {
    const kk_projection_config *c = &r->cfg;
    kk_loader l = {.be = r->be,
                   .dev = r->dev,
                   .category = KK_MEM_WEIGHTS_PROJECTION,
                   .ckpt = kk_projection_tensors(p)};
    const kk_load_shape encoder = {.n_out = c->rank, .n_in = c->n_in, .n_used = 1};
    KK_TRY(kk_load_matrix(&l, "encoder.weight", &encoder, &r->encoder, err));
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (!c->layer[i].restored) continue;
        const kk_load_shape d = {
            .n_out = c->layer[i].n_kv_head * c->layer[i].head_dim, .n_in = c->rank, .n_used = 1};
        snprintf(l.prefix, sizeof l.prefix, "layers.%d.", i);
        if (!c->layer[i].k_eq_v) KK_TRY(kk_load_matrix(&l, "k.weight", &d, &r->k[i], err));
        KK_TRY(kk_load_matrix(&l, "v.weight", &d, &r->v[i], err));
    }
    return KK_OK;
}

static kk_status take_scratch(kk_restorer *r, int32_t rows, kk_err *err) {
    const kk_projection_config *c = &r->cfg;
    const int32_t n_taps = c->source == KK_SOURCE_EMBED ? 1 : c->n_taps;
    KK_TRY(kk_take_rows(r->be, r->dev, rows, c->hidden, &r->one, err));
    KK_TRY(kk_take_rows(r->be, r->dev, rows, (int64_t)n_taps * c->hidden, &r->source, err));
    if (c->source == KK_SOURCE_CONTEXT)
        KK_TRY(kk_take_rows(r->be, r->dev, rows, c->n_in, &r->context, err));
    return kk_take_rows(r->be, r->dev, rows, c->rank, &r->z, err);
}

/* Reserves scratch to rebuild rows in, for the widest of their formats. */
static kk_status prepare_layers(kk_restorer *r, const kk_gemma4 *verifier, kk_err *err) {
    const kk_config *c = kk_gemma4_config(verifier);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_kv_slot slot = {.format = KK_KV_F32,
                                 .k_eq_v = c->layer[i].k_eq_v,
                                 .n_kv_head = c->layer[i].n_kv_head,
                                 .head_dim = c->layer[i].head_dim};
        const kk_rope_config *rope = &c->rope[c->layer[i].kind];
        const kk_prepare_args p = {
            .evicted = {.slot = &slot,
                        .n_head = c->n_head,
                        .rank = r->cfg.rank,
                        .k = r->k[i],
                        .v = r->v[i],
                        .rope = {rope->theta, rope->factor, rope->n_rot, slot.head_dim}}};
        if (r->cfg.layer[i].restored) KK_TRY(r->be->prepare(r->dev, &p, err));
    }
    return KK_OK;
}

kk_status kk_restorer_new(kk_restorer **out, const kk_projection *p, const kk_restorer_opts *opts,
                          kk_err *err) {
    *out = NULL;
    kk_restorer *r = kk_zalloc(sizeof *r);
    if (!r) return kk_fail(err, KK_ENOMEM, "no memory for the projection");
    r->cfg = *kk_projection_config_of(p);
    r->be = opts->backend;
    r->dev = opts->dev;
    r->drafter = opts->drafter;
    r->eps = kk_gemma4_config(opts->verifier)->eps;
    kk_status st = load(r, p, err);
    if (st == KK_OK) st = take_scratch(r, opts->max_rows, err);
    if (st == KK_OK) st = prepare_layers(r, opts->verifier, err);
    if (st != KK_OK) {
        kk_restorer_free(r);
        return st;
    }
    *out = r;
    return KK_OK;
}

void kk_restorer_free(kk_restorer *r) {
    if (!r) return;
    kk_buf *b[] = {r->one, r->source, r->context, r->z};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) r->be->buf_free(r->dev, b[i]);
    for (int32_t i = 0; i < 256; i++) {
        r->be->weight_free(r->dev, r->k[i]);
        r->be->weight_free(r->dev, r->v[i]);
    }
    r->be->weight_free(r->dev, r->encoder);
    kk_free(r);
}

const kk_projection_config *kk_restorer_config(const kk_restorer *r) { return &r->cfg; }
const kk_weight *kk_restorer_k(const kk_restorer *r, int32_t layer) { return r->k[layer]; }
const kk_weight *kk_restorer_v(const kk_restorer *r, int32_t layer) { return r->v[layer]; }

/* ---- latents ---------------------------------------------------------------------------- */

static kk_status norm(kk_restorer *r, kk_buf *out, const kk_buf *x, int32_t n_rows, kk_err *err) {
    const kk_norm_args a = {
        .out = out, .x = x, .n_rows = n_rows, .dim = r->cfg.hidden, .eps = r->eps};
    return r->be->norm(r->dev, &a, err);
}

/* Rows of a tap go beside those of the others; the drafter wants them as they are. */
static kk_status put_tap(kk_restorer *r, int32_t tap, int32_t n_taps, const kk_buf *x,
                         int32_t n_rows, kk_err *err) {
    const size_t dim = (size_t)r->cfg.hidden;
    const bool raw = r->cfg.source == KK_SOURCE_CONTEXT;
    if (!raw) KK_TRY(norm(r, r->one, x, n_rows, err));
    const kk_gather_args copy = {.out = r->source,
                                 .x = raw ? x : r->one,
                                 .n = n_rows,
                                 .dim = r->cfg.hidden,
                                 .out_at = (size_t)tap * dim,
                                 .out_stride = (size_t)n_taps * dim};
    return r->be->gather(r->dev, &copy, err);
}

kk_status kk_restorer_see(kk_restorer *r, int32_t layer, const kk_buf *x, int32_t n_rows,
                          kk_err *err) {
    const kk_projection_config *c = &r->cfg;
    if (c->source == KK_SOURCE_EMBED) return layer == -1 ? put_tap(r, 0, 1, x, n_rows, err) : KK_OK;
    for (int32_t t = 0; t < c->n_taps; t++)
        if (c->taps[t] == layer) KK_TRY(put_tap(r, t, c->n_taps, x, n_rows, err));
    return KK_OK;
}

kk_status kk_restorer_keep(kk_restorer *r, const kk_kv_layout *layout, const kk_rows *rows,
                           kk_err *err) {
    const kk_buf *x = r->source;
    if (r->cfg.source == KK_SOURCE_CONTEXT) {
        KK_TRY(kk_dflash_features(r->drafter, r->source, 0, rows->n_rows, r->context, err));
        x = r->context;
    }
    const kk_linear_args encode = {{r->z}, {r->encoder}, 1, x, rows->n_rows};
    KK_TRY(r->be->linear(r->dev, &encode, err));
    const kk_keep_args keep = {.x = r->z, .slot = layout->latent, .rows = rows};
    return r->be->latents->keep(r->dev, &keep, err);
}
