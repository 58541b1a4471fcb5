/* layer.c - a decoder layer and the head in terms of small operations; see layer.h.
 *
 * Every device gives these bits: one that fuses steps is held against this order. */
#include "backend/layer.h"

/* ---- arguments -------------------------------------------------------------------------- */

kk_store_args kk_layer_store(const kk_layer_args *a) {
    return (kk_store_args){.q = a->scratch.q,
                           .k = a->stores ? a->scratch.k : NULL,
                           .v = a->w.v ? a->scratch.v : NULL,
                           .q_norm = a->w.q_norm,
                           .k_norm = a->w.k_norm,
                           .rope_rows = a->rope_rows,
                           .n_rot = a->n_rot,
                           .n_head = a->n_head,
                           .slot = a->slot,
                           .rows = a->rows,
                           .eps = a->eps};
}

kk_attend_args kk_layer_attend(const kk_layer_args *a) {
    return (kk_attend_args){.out = a->scratch.att,
                            .q = a->scratch.q,
                            .k_norm = a->k_norm,
                            .rope_pos = a->rope_pos,
                            .n_rot = a->n_rot,
                            .n_head = a->n_head,
                            .window = a->window,
                            .sink = a->sink,
                            .slot = a->slot,
                            .rows = a->rows,
                            .scale = 1.0f,
                            .evicted = a->evicted};
}

/* The router reads x as it is. */
kk_route_args kk_layer_route(const kk_layer_args *a) {
    return (kk_route_args){.expert = a->scratch.expert,
                           .weight = a->scratch.expert_weight,
                           .x = a->scratch.x,
                           .scale = a->w.router_scale,
                           .per_expert_scale = a->w.expert_scale,
                           .proj = a->w.router,
                           .n_rows = a->rows->n_rows,
                           .n_used = a->n_used,
                           .eps = a->eps};
}

kk_experts_args kk_layer_experts(const kk_layer_args *a) {
    return (kk_experts_args){.out = a->scratch.y,
                             .x = a->scratch.z,
                             .expert = a->scratch.expert,
                             .weight = a->scratch.expert_weight,
                             .gate = a->w.expert_gate,
                             .up = a->w.expert_up,
                             .down = a->w.expert_down,
                             .n_rows = a->rows->n_rows,
                             .n_used = a->n_used,
                             .ffn = a->expert_ffn};
}

/* ---- steps ------------------------------------------------------------------------------ */

/* The arguments that every step of a layer needs. */
typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    const kk_layer_args *a;
    const kk_layer_scratch *scratch;
    int32_t n_rows;
} run;

static kk_status norm(const run *r, kk_buf *out, const kk_buf *x, const kk_buf *w, kk_err *err) {
    const kk_norm_args n = {out, x, w, r->n_rows, r->a->hidden, r->a->eps};
    return r->be->norm(r->dev, &n, err);
}

static kk_status linear(const run *r, kk_buf *out, const kk_weight *w, const kk_buf *x,
                        kk_err *err) {
    const kk_linear_args l = {{out}, {w}, 1, x, r->n_rows};
    return r->be->linear(r->dev, &l, err);
}

/* x = (x + norm(a; w)) * scale */
static kk_status add_normed(const run *r, kk_buf *x, const kk_buf *a, const kk_buf *w, float scale,
                            kk_err *err) {
    const kk_residual_args add = {x, a, w, r->n_rows, r->a->hidden, r->a->eps, scale};
    return r->be->residual(r->dev, &add, err);
}

static kk_status show(const run *r, kk_layer_part part, const kk_buf *rows, int32_t width,
                      kk_err *err) {
    const kk_layer_observer *o = r->a->observer;
    return o ? o->part(o->user, part, rows, width, err) : KK_OK;
}

/* y = attention(norm(x)) */
static kk_status attention(const run *r, kk_err *err) {
    const kk_layer_args *a = r->a;
    const kk_layer_scratch *b = r->scratch;
    const int32_t width = a->slot.n_kv_head * a->slot.head_dim;
    KK_TRY(norm(r, b->z, b->x, a->w.input_norm, err));
    kk_linear_args qkv = {{b->q, b->k, b->v}, {a->w.q, a->w.k, a->w.v}, 1, b->z, r->n_rows};
    if (a->stores) qkv.n = a->w.v ? 3 : 2;
    KK_TRY(r->be->linear(r->dev, &qkv, err));
    /* Projections are shown before the norms change them. */
    if (a->stores) KK_TRY(show(r, KK_PART_K, b->k, width, err));
    if (a->stores && a->w.v) KK_TRY(show(r, KK_PART_V, b->v, width, err));
    const kk_store_args store = kk_layer_store(a);
    KK_TRY(r->be->store(r->dev, &store, err));
    KK_TRY(show(r, KK_PART_Q, b->q, a->n_head * a->slot.head_dim, err));
    const kk_attend_args attend = kk_layer_attend(a);
    KK_TRY(r->be->attend(r->dev, &attend, err));
    KK_TRY(linear(r, b->y, a->w.o, b->att, err));
    return show(r, KK_PART_O, b->y, a->hidden, err);
}

/* y = down(gelu(gate z) * up z) */
static kk_status mlp(const run *r, kk_err *err) {
    const kk_layer_args *a = r->a;
    const kk_layer_scratch *b = r->scratch;
    const kk_linear_args gu = {{b->gate, b->up}, {a->w.gate, a->w.up}, 2, b->z, r->n_rows};
    KK_TRY(r->be->linear(r->dev, &gu, err));
    const kk_glu_args g = {b->gate, b->gate, b->up, r->n_rows, a->ffn, a->ffn, 0, KK_GELU_TANH};
    KK_TRY(r->be->glu(r->dev, &g, err));
    return linear(r, b->y, a->w.down, b->gate, err);
}

/* y2 = norm(y; post_1) + norm(experts(norm(x; pre_2)); post_2) */
static kk_status experts(const run *r, kk_err *err) {
    const kk_layer_args *a = r->a;
    const kk_layer_scratch *b = r->scratch;
    KK_TRY(norm(r, b->y2, b->y, a->w.post_ffn_norm_1, err));
    const kk_route_args route = kk_layer_route(a);
    KK_TRY(r->be->route(r->dev, &route, err));
    KK_TRY(norm(r, b->z, b->x, a->w.pre_ffn_norm_2, err));
    const kk_experts_args e = kk_layer_experts(a);
    KK_TRY(r->be->experts(r->dev, &e, err));
    return add_normed(r, b->y2, b->y, a->w.post_ffn_norm_2, 1.0f, err);
}

/* x += norm(proj(gelu(gate x) * ple)), then the layer's factor */
static kk_status per_layer_input(const run *r, kk_err *err) {
    const kk_layer_args *a = r->a;
    const kk_layer_scratch *b = r->scratch;
    KK_TRY(linear(r, b->gate, a->w.ple_gate, b->x, err));
    const kk_glu_args g = {b->gate,    b->gate,       b->ple,        r->n_rows,
                           a->ple_dim, a->ple_stride, a->ple_offset, KK_GELU_TANH};
    KK_TRY(r->be->glu(r->dev, &g, err));
    KK_TRY(linear(r, b->y, a->w.ple_proj, b->gate, err));
    return add_normed(r, b->x, b->y, a->w.post_ple_norm, a->scale, err);
}

kk_status kk_layer_by_ops(const kk_backend *be, kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const run r = {be, dev, a, &a->scratch, a->rows->n_rows};
    const kk_layer_scratch *b = &a->scratch;
    KK_TRY(attention(&r, err));
    KK_TRY(add_normed(&r, b->x, b->y, a->w.post_attention_norm, 1.0f, err));
    KK_TRY(norm(&r, b->z, b->x, a->w.pre_ffn_norm, err));
    KK_TRY(mlp(&r, err));
    if (a->n_used) KK_TRY(experts(&r, err));
    /* The factor multiplies the whole stream, and comes after the per-layer input. */
    KK_TRY(add_normed(&r, b->x, a->n_used ? b->y2 : b->y, a->w.post_ffn_norm,
                      a->ple_dim ? 1.0f : a->scale, err));
    return a->ple_dim ? per_layer_input(&r, err) : KK_OK;
}

kk_status kk_head_by_ops(const kk_backend *be, kk_dev *dev, const kk_head_args *a, kk_err *err) {
    const kk_gather_args g = {.out = a->in, .x = a->x, .row = a->row, .n = a->n, .dim = a->hidden};
    KK_TRY(be->gather(dev, &g, err));
    const kk_norm_args n = {a->in, a->in, a->norm, a->n, a->hidden, a->eps};
    KK_TRY(be->norm(dev, &n, err));
    const kk_linear_args w = {{a->logits}, {a->table}, 1, a->in, a->n};
    KK_TRY(be->linear(dev, &w, err));
    if (a->cap <= 0) return KK_OK;
    const kk_softcap_args s = {a->logits, a->n, a->vocab, a->cap};
    return be->softcap(dev, &s, err);
}

/* ---- offering them to the device -------------------------------------------------------- */

kk_status kk_layer_run(const kk_backend *be, kk_dev *dev, const kk_layer_args *a, kk_fused *count,
                       kk_err *err) {
    bool taken = false;
    if (be->layer && !a->observer) KK_TRY(be->layer(dev, a, &taken, err));
    if (!taken) KK_TRY(kk_layer_by_ops(be, dev, a, err));
    *(taken ? &count->layers_fused : &count->layers_by_ops) += 1;
    return KK_OK;
}

kk_status kk_head_run(const kk_backend *be, kk_dev *dev, const kk_head_args *a, kk_fused *count,
                      kk_err *err) {
    bool taken = false;
    if (be->head) KK_TRY(be->head(dev, a, &taken, err));
    if (!taken) KK_TRY(kk_head_by_ops(be, dev, a, err));
    *(taken ? &count->heads_fused : &count->heads_by_ops) += 1;
    return KK_OK;
}
