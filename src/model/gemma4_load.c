/* gemma4_load.c - finds the verifier's tensors in a checkpoint and hands them to the device. */
#include <stdio.h>

#include "model/model.h"

/* The verifier, and where its tensors come from. */
typedef struct {
    kk_loader from;
    kk_gemma4 *m;
} loader;

static kk_status vector(const loader *l, const char *name, int64_t n, kk_buf **out, kk_err *err) {
    return kk_load_vector(&l->from, name, n, out, err);
}

static kk_status matrix(const loader *l, const char *name, int64_t n_mat, int64_t n_out,
                        int64_t n_in, int32_t n_used, kk_weight **out, kk_err *err) {
    const kk_load_shape shape = {n_mat, n_out, n_in, n_used};
    return kk_load_matrix(&l->from, name, &shape, out, err);
}

static kk_status load_attention(const loader *l, int32_t i, kk_err *err) {
    const kk_config *c = &l->m->cfg;
    const kk_layer_config *lc = &c->layer[i];
    kk_layer_weights *p = &l->m->layers[i].w;
    const int64_t h = c->hidden, d = lc->head_dim;
    const int64_t nq = (int64_t)c->n_head * d, nkv = (int64_t)lc->n_kv_head * d;
    KK_TRY(vector(l, "input_layernorm.weight", h, &p->input_norm, err));
    KK_TRY(vector(l, "post_attention_layernorm.weight", h, &p->post_attention_norm, err));
    KK_TRY(matrix(l, "self_attn.q_proj.weight", 0, nq, h, 1, &p->q, err));
    KK_TRY(matrix(l, "self_attn.o_proj.weight", 0, h, nq, 1, &p->o, err));
    KK_TRY(vector(l, "self_attn.q_norm.weight", d, &p->q_norm, err));
    if (lc->kv_source != i) return KK_OK; /* reads another layer's K/V; its own are never used */
    KK_TRY(matrix(l, "self_attn.k_proj.weight", 0, nkv, h, 1, &p->k, err));
    KK_TRY(vector(l, "self_attn.k_norm.weight", d, &p->k_norm, err));
    if (lc->k_eq_v) return KK_OK;
    return matrix(l, "self_attn.v_proj.weight", 0, nkv, h, 1, &p->v, err);
}

static kk_status load_experts(const loader *l, int32_t i, kk_err *err) {
    const kk_config *c = &l->m->cfg;
    kk_layer_weights *p = &l->m->layers[i].w;
    const int64_t h = c->hidden, n = c->n_expert, f = c->expert_ffn;
    KK_TRY(vector(l, "post_feedforward_layernorm_1.weight", h, &p->post_ffn_norm_1, err));
    KK_TRY(vector(l, "pre_feedforward_layernorm_2.weight", h, &p->pre_ffn_norm_2, err));
    KK_TRY(vector(l, "post_feedforward_layernorm_2.weight", h, &p->post_ffn_norm_2, err));
    KK_TRY(matrix(l, "router.proj.weight", 0, n, h, 1, &p->router, err));
    KK_TRY(vector(l, "router.scale", h, &p->router_scale, err));
    KK_TRY(vector(l, "router.per_expert_scale", n, &p->expert_scale, err));
    if (kk_load_has(&l->from, "experts.gate_proj")) {
        KK_TRY(matrix(l, "experts.gate_proj", n, f, h, 1, &p->expert_gate, err));
        KK_TRY(matrix(l, "experts.up_proj", n, f, h, 1, &p->expert_up, err));
    } else {
        KK_TRY(matrix(l, "experts.gate_up_proj", n, 2 * f, h, 1, &p->expert_gate, err));
    }
    KK_TRY(matrix(l, "experts.down_proj", n, h, f, c->n_expert_used, &p->expert_down, err));
    const kk_prepare_args scratch = {
        .experts = {c->n_expert, c->n_expert_used, c->expert_ffn, c->hidden}};
    return l->m->be->prepare(l->m->dev, &scratch, err);
}

static kk_status load_layer(loader *l, int32_t i, kk_err *err) {
    const kk_config *c = &l->m->cfg;
    kk_layer_weights *p = &l->m->layers[i].w;
    const int64_t h = c->hidden, f = c->layer[i].ffn;
    kk_buf *scalar = NULL;
    snprintf(l->from.prefix, sizeof l->from.prefix, "layers.%d.", i);
    KK_TRY(load_attention(l, i, err));
    KK_TRY(vector(l, "pre_feedforward_layernorm.weight", h, &p->pre_ffn_norm, err));
    KK_TRY(vector(l, "post_feedforward_layernorm.weight", h, &p->post_ffn_norm, err));
    KK_TRY(matrix(l, "mlp.gate_proj.weight", 0, f, h, 1, &p->gate, err));
    KK_TRY(matrix(l, "mlp.up_proj.weight", 0, f, h, 1, &p->up, err));
    KK_TRY(matrix(l, "mlp.down_proj.weight", 0, h, f, 1, &p->down, err));
    if (c->n_expert) KK_TRY(load_experts(l, i, err));
    if (c->ple_dim) {
        KK_TRY(matrix(l, "per_layer_input_gate.weight", 0, c->ple_dim, h, 1, &p->ple_gate, err));
        KK_TRY(matrix(l, "per_layer_projection.weight", 0, h, c->ple_dim, 1, &p->ple_proj, err));
        KK_TRY(vector(l, "post_per_layer_input_norm.weight", h, &p->post_ple_norm, err));
    }
    KK_TRY(vector(l, "layer_scalar", 1, &scalar, err));
    float *to = &l->m->layers[i].scalar;
    kk_status st = l->m->be->read(l->m->dev, scalar, 0, to, sizeof *to, err);
    l->m->be->buf_free(l->m->dev, scalar);
    return st;
}

/* Stacked matrices are experts'. */
static kk_status expect(const kk_gemma4 *m, const kk_checkpoint *ckpt, kk_err *err) {
    kk_expected w = {0};
    if (!m->be->expect) return KK_OK;
    for (size_t i = 0; i < kk_checkpoint_count(ckpt); i++) {
        const kk_tensor *t = kk_checkpoint_at(ckpt, i);
        *(t->n_dims > 2 ? &w.experts : &w.others) += (int64_t)kk_tensor_bytes(t);
    }
    return m->be->expect(m->dev, &w, err);
}

kk_status kk_gemma4_load(kk_gemma4 *m, const kk_checkpoint *ckpt, kk_err *err) {
    const kk_config *c = &m->cfg;
    loader l = {.m = m, .from = {m->be, m->dev, KK_MEM_WEIGHTS_VERIFIER, ckpt, ""}};
    KK_TRY(expect(m, ckpt, err));
    KK_TRY(matrix(&l, "embed_tokens.weight", 0, c->vocab, c->hidden, 1, &m->embed, err));
    KK_TRY(vector(&l, "norm.weight", c->hidden, &m->norm, err));
    if (c->ple_dim) {
        const int64_t n = (int64_t)c->n_layer * c->ple_dim;
        KK_TRY(
            matrix(&l, "embed_tokens_per_layer.weight", 0, c->ple_vocab, n, 1, &m->ple_table, err));
        KK_TRY(
            matrix(&l, "per_layer_model_projection.weight", 0, n, c->hidden, 1, &m->ple_proj, err));
        KK_TRY(vector(&l, "per_layer_projection_norm.weight", c->ple_dim, &m->ple_norm, err));
    }
    m->layers = kk_calloc((size_t)c->n_layer, sizeof *m->layers);
    if (!m->layers) return kk_fail(err, KK_ENOMEM, "no memory for %d layers", c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) KK_TRY(load_layer(&l, i, err));
    return KK_OK;
}

void kk_gemma4_unload(kk_gemma4 *m) {
    for (int32_t i = 0; m->layers && i < m->cfg.n_layer; i++) {
        kk_layer_weights *p = &m->layers[i].w;
        kk_weight *w[] = {p->q,           p->k,        p->v,       p->o,           p->gate,
                          p->up,          p->down,     p->router,  p->expert_gate, p->expert_up,
                          p->expert_down, p->ple_gate, p->ple_proj};
        kk_buf *b[] = {p->input_norm,      p->post_attention_norm,
                       p->pre_ffn_norm,    p->post_ffn_norm,
                       p->q_norm,          p->k_norm,
                       p->post_ffn_norm_1, p->pre_ffn_norm_2,
                       p->post_ffn_norm_2, p->router_scale,
                       p->expert_scale,    p->post_ple_norm};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) m->be->weight_free(m->dev, w[k]);
        for (size_t k = 0; k < sizeof b / sizeof *b; k++) m->be->buf_free(m->dev, b[k]);
    }
    kk_free(m->layers);
    m->be->weight_free(m->dev, m->embed);
    m->be->weight_free(m->dev, m->ple_table);
    m->be->weight_free(m->dev, m->ple_proj);
    m->be->buf_free(m->dev, m->norm);
    m->be->buf_free(m->dev, m->ple_norm);
}
