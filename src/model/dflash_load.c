/* dflash_load.c - finds the drafter's tensors in its files and hands them to the device. */
#include <stdio.h>

#include "model/model.h"

static kk_status matrix(const kk_loader *l, const char *name, int64_t n_out, int64_t n_in,
                        kk_weight **out, kk_err *err) {
    const kk_load_shape shape = {0, n_out, n_in, 1};
    return kk_load_matrix(l, name, &shape, out, err);
}

static kk_status load_layer(const kk_loader *l, const kk_drafter_config *c, kk_dflash_layer *p,
                            kk_err *err) {
    const int64_t h = c->hidden, d = c->head_dim, f = c->ffn;
    const int64_t nq = c->n_head * d, nkv = c->n_kv_head * d;
    KK_TRY(kk_load_vector(l, "input_layernorm.weight", h, &p->input_norm, err));
    KK_TRY(kk_load_vector(l, "post_attention_layernorm.weight", h, &p->post_attention_norm, err));
    KK_TRY(kk_load_vector(l, "self_attn.q_norm.weight", d, &p->q_norm, err));
    KK_TRY(kk_load_vector(l, "self_attn.k_norm.weight", d, &p->k_norm, err));
    KK_TRY(matrix(l, "self_attn.q_proj.weight", nq, h, &p->q, err));
    KK_TRY(matrix(l, "self_attn.k_proj.weight", nkv, h, &p->k, err));
    KK_TRY(matrix(l, "self_attn.v_proj.weight", nkv, h, &p->v, err));
    KK_TRY(matrix(l, "self_attn.o_proj.weight", h, nq, &p->o, err));
    KK_TRY(matrix(l, "mlp.gate_proj.weight", f, h, &p->gate, err));
    KK_TRY(matrix(l, "mlp.up_proj.weight", f, h, &p->up, err));
    return matrix(l, "mlp.down_proj.weight", h, f, &p->down, err);
}

static kk_status load_head(kk_dflash *m, const kk_tensor *t, kk_err *err) {
    if (!t) return KK_OK;
    const kk_matrix head = {.dtype = t->dtype,
                            .n_mat = 1,
                            .n_out = t->dims[0],
                            .n_in = t->dims[1],
                            .data = t->data.base,
                            .planes = kk_tensor_planes(t)};
    KK_TRY(m->be->weight_new(m->dev, &head, &m->head, err));
    return m->be->prepare(m->dev, &(kk_prepare_args){.w = m->head, .n_used = 1}, err);
}

kk_status kk_dflash_load(kk_dflash *m, const kk_drafter *files, kk_err *err) {
    const kk_drafter_config *c = &m->cfg;
    kk_loader l = {m->be, m->dev, KK_MEM_WEIGHTS_DRAFTER, kk_drafter_tensors(files), ""};
    KK_TRY(matrix(&l, "fc.weight", c->hidden, (int64_t)c->n_taps * c->hidden, &m->fc, err));
    KK_TRY(kk_load_vector(&l, "hidden_norm.weight", c->hidden, &m->hidden_norm, err));
    KK_TRY(kk_load_vector(&l, "norm.weight", c->hidden, &m->norm, err));
    m->layers = kk_calloc((size_t)c->n_layer, sizeof *m->layers);
    if (!m->layers) return kk_fail(err, KK_ENOMEM, "no memory for %d drafter layers", c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        snprintf(l.prefix, sizeof l.prefix, "layers.%d.", i);
        KK_TRY(load_layer(&l, c, &m->layers[i], err));
    }
    return load_head(m, kk_drafter_head(files), err);
}

void kk_dflash_unload(kk_dflash *m) {
    for (int32_t i = 0; m->layers && i < m->cfg.n_layer; i++) {
        kk_dflash_layer *p = &m->layers[i];
        kk_weight *w[] = {p->q, p->k, p->v, p->o, p->gate, p->up, p->down};
        kk_buf *b[] = {p->input_norm, p->post_attention_norm, p->q_norm, p->k_norm};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) m->be->weight_free(m->dev, w[k]);
        for (size_t k = 0; k < sizeof b / sizeof *b; k++) m->be->buf_free(m->dev, b[k]);
    }
    kk_free(m->layers);
    m->be->weight_free(m->dev, m->fc);
    m->be->weight_free(m->dev, m->head);
    m->be->buf_free(m->dev, m->hidden_norm);
    m->be->buf_free(m->dev, m->norm);
}
