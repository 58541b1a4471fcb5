/* theta.c - see theta.h. */
#include "train/theta.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/fingerprint.h"

/* ---- shape ------------------------------------------------------------------------------- */

static bool chosen(kk_layer_choice choice, kk_kind kind) {
    return choice == KK_LAYERS_ALL || (choice == KK_LAYERS_SLIDING) == (kind == KK_SLIDING);
}

static void describe_layers(kk_projection_config *c, const kk_config *model,
                            kk_layer_choice choice) {
    for (int32_t i = 0; i < model->n_layer; i++) {
        const kk_layer_config *l = &model->layer[i];
        c->layer[i].restored = l->kv_source == i && chosen(choice, l->kind);
        c->layer[i].k_eq_v = l->k_eq_v;
        c->layer[i].n_kv_head = l->n_kv_head;
        c->layer[i].head_dim = l->head_dim;
    }
}

static void describe_source(kk_projection_config *c, const kk_capture_opts *s) {
    const kk_drafter_config *d = s->engine->dflash ? kk_dflash_config(s->engine->dflash) : NULL;
    c->source = s->source;
    c->n_in = kk_capture_width(s);
    c->joint = s->source != KK_SOURCE_DRAFTER_KV;
    if (s->source == KK_SOURCE_TAPS) {
        c->n_taps = s->n_taps;
        memcpy(c->taps, s->taps, sizeof c->taps);
    }
    if (s->source == KK_SOURCE_CONTEXT) {
        assert(d); /* kk_capture_new has refused to go without */
        c->n_taps = d->n_taps;
        memcpy(c->taps, d->taps, sizeof c->taps);
    }
    if (s->source == KK_SOURCE_DRAFTER_KV) {
        assert(d);
        c->draft.n_layer = d->n_layer;
        c->draft.n_kv_head = d->n_kv_head;
        c->draft.head_dim = d->head_dim;
    }
    const bool drafter = s->source == KK_SOURCE_CONTEXT || s->source == KK_SOURCE_DRAFTER_KV;
    const kk_lineage model = kk_engine_lineage(s->engine);
    c->verifier = model.weights;
    c->verifier_source = model.source != model.weights ? model.source : 0;
    c->verifier_identity = model.identity;
    c->drafter = drafter ? kk_engine_drafter_fingerprint(s->engine) : 0;
    c->drafter_identity = drafter ? kk_engine_drafter_identity(s->engine) : 0;
}

kk_status kk_theta_config(kk_projection_config *out, const kk_capture_opts *source, int32_t rank,
                          kk_layer_choice layers, kk_err *err) {
    const kk_config *model = kk_engine_config(source->engine);
    bool any = false;
    memset(out, 0, sizeof *out);
    describe_source(out, source);
    out->rank = rank;
    out->n_layer = model->n_layer;
    out->hidden = model->hidden;
    describe_layers(out, model, layers);
    for (int32_t i = 0; i < model->n_layer; i++) any = any || out->layer[i].restored;
    if (!any) return kk_fail(err, KK_EINVAL, "the model has no such layers to restore");
    if (rank < 1 || rank > out->n_in)
        return kk_fail(err, KK_EINVAL, "a projection of rank %d: it takes 1 to %d, its features",
                       rank, out->n_in);
    return KK_OK;
}

/* ---- parameters -------------------------------------------------------------------------- */

static void add_block(kk_theta *t, int32_t layer, bool value, bool both) {
    const kk_projection_config *c = &t->config;
    kk_theta_block *b = &t->block[t->n_blocks];
    *b = (kk_theta_block){.layer = layer,
                          .encoder = value && !c->joint,
                          .value = value,
                          .both = both,
                          .n_head = c->layer[layer].n_kv_head,
                          .head_dim = c->layer[layer].head_dim,
                          .at = t->n_params};
    b->width = b->n_head * b->head_dim;
    if (value) t->v_block[layer] = t->n_blocks;
    if (!value || both) t->k_block[layer] = t->n_blocks;
    t->n_params += (size_t)b->width * (size_t)c->rank;
    t->n_blocks++;
}

kk_status kk_theta_new(kk_theta *out, const kk_projection_config *c, kk_err *err) {
    memset(out, 0, sizeof *out);
    out->config = *c;
    out->n_encoders = c->joint ? 1 : 2;
    for (int32_t e = 0; e < out->n_encoders; e++) {
        out->encoder_at[e] = out->n_params;
        out->n_params += (size_t)c->rank * (size_t)c->n_in;
    }
    for (int32_t i = 0; i < KK_MAX_LAYERS; i++) out->k_block[i] = out->v_block[i] = -1;
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (!c->layer[i].restored) continue;
        const bool both = c->joint && c->layer[i].k_eq_v;
        if (!both) add_block(out, i, false, false);
        add_block(out, i, true, both);
    }
    out->params = kk_calloc(out->n_params, sizeof *out->params);
    if (out->params) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory for a projection of %zu parameters", out->n_params);
}

void kk_theta_free(kk_theta *t) {
    kk_free(t->params);
    memset(t, 0, sizeof *t);
}

const float *kk_theta_target(const kk_theta_block *b, const kk_captured *rows) {
    return b->value && rows->v[b->layer] ? rows->v[b->layer] : rows->k[b->layer];
}

/* ---- files ------------------------------------------------------------------------------- */

static kk_status same_shape(const kk_projection_config *a, const kk_projection_config *b,
                            const char *path, kk_err *err) {
    if (a->source != b->source)
        return kk_fail(err, KK_EINVAL, "'%.120s' reads %s and this one is to read %s", path,
                       kk_source_name(b->source), kk_source_name(a->source));
    if (a->rank != b->rank || a->n_in != b->n_in)
        return kk_fail(err, KK_EINVAL,
                       "'%.120s' has rank %d of %d features and this one is to have %d of %d", path,
                       b->rank, b->n_in, a->rank, a->n_in);
    if (a->n_taps != b->n_taps ||
        memcmp(a->taps, b->taps, (size_t)a->n_taps * sizeof *a->taps) != 0)
        return kk_fail(err, KK_EINVAL, "'%.120s' reads other layers", path);
    if (a->n_layer != b->n_layer || a->joint != b->joint)
        return kk_fail(err, KK_EINVAL, "'%.120s' is of a model with %d layers, this one has %d",
                       path, b->n_layer, a->n_layer);
    for (int32_t i = 0; i < a->n_layer; i++)
        if (a->layer[i].restored && !b->layer[i].restored)
            return kk_fail(err, KK_EINVAL, "'%.120s' does not restore layer %d", path, i);
    return KK_OK;
}

static kk_status read_tensor(const kk_checkpoint *c, const char *name, int32_t rows, int32_t cols,
                             float *to, kk_err *err) {
    const int64_t dims[2] = {rows, cols};
    const kk_tensor *t;
    KK_TRY(kk_checkpoint_need(c, name, 2, dims, &t, err));
    kk_tensor_floats(t, 0, to, (size_t)kk_tensor_values(t));
    return KK_OK;
}

static kk_status read_all(kk_theta *t, const kk_projection *from, kk_err *err) {
    static const char *const two[2] = {"encoder_k.weight", "encoder_v.weight"};
    const kk_checkpoint *c = kk_projection_tensors(from);
    char name[64];
    for (int32_t e = 0; e < t->n_encoders; e++)
        KK_TRY(read_tensor(c, t->n_encoders == 1 ? "encoder.weight" : two[e], t->config.rank,
                           t->config.n_in, t->params + t->encoder_at[e], err));
    for (int32_t i = 0; i < t->n_blocks; i++) {
        const kk_theta_block *b = &t->block[i];
        snprintf(name, sizeof name, "layers.%d.%c.weight", b->layer, b->value ? 'v' : 'k');
        KK_TRY(read_tensor(c, name, b->width, t->config.rank, t->params + b->at, err));
    }
    return KK_OK;
}

kk_status kk_theta_read(kk_theta *t, const char *path, kk_err *err) {
    kk_projection *from;
    KK_TRY(kk_projection_open(&from, path, NULL, err));
    kk_status st = same_shape(&t->config, kk_projection_config_of(from), path, err);
    if (st == KK_OK) st = read_all(t, from, err);
    kk_projection_close(from);
    return st;
}

kk_status kk_theta_put(const kk_theta *t, const kk_projection_files *to, kk_err *err) {
    kk_projection_values v = {.encoder = {t->params + t->encoder_at[0]}};
    if (t->n_encoders == 2) v.encoder[1] = t->params + t->encoder_at[1];
    for (int32_t i = 0; i < t->n_blocks; i++) {
        const kk_theta_block *b = &t->block[i];
        (b->value ? v.v : v.k)[b->layer] = t->params + b->at;
    }
    return kk_projection_put(to, &t->config, &v, KK_BF16, err);
}
