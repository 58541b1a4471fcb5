/* cuda_layer.c - recognises 26B-A4B's layers of mixed experts among recorded operations, and the
 * head after them, and hands them as a whole to the kernel of mega.cuh.  The same bits as one by
 * one.
 *
 * Rows on their way between its stages lie in scratch of the device, as bf16 where a matrix
 * follows.  The model's own buffers for them (z, gate, up and so on) are not written: within a
 * recorded sequence that overwrites them before anyone reads, nobody can tell.  Whoever wants to
 * look at them reads them right after the operation, which ends the queue there. */
#include "backend/cuda/cuda_device.h"

enum { LAYER_OPS = KK_CUDA_LAYER_OPS, HEAD_OPS = 4 };

/* Rows between kernels: regions of dev->z. */
typedef enum { FLOW_Z1, FLOW_Z2, FLOW_Z3, FLOW_ATT, FLOW_ACT, FLOW_DENSE = 6 } flow;

static void *flow_at(const kk_dev *dev, flow f) {
    return (uint8_t *)dev->z.data + dev->z.bytes / KK_CUDA_FLOWS * (size_t)f;
}

static bool flows(const kk_dev *dev, int32_t rows, int64_t dim) {
    return (size_t)rows * (size_t)dim * 2 <= dev->z.bytes / KK_CUDA_FLOWS;
}

/* A matrix whose rows need no padding. */
static bool whole(const kk_weight *w) { return w && w->w.wrap * 32 == w->w.n_in; }

static bool kinds_match(const kk_cuda_op *op, int32_t n) {
    static const kk_cuda_kind kinds[LAYER_OPS] = {
        KK_CUDA_NORM,   KK_CUDA_LINEAR,   KK_CUDA_STORE,    KK_CUDA_ATTEND,
        KK_CUDA_LINEAR, KK_CUDA_RESIDUAL, KK_CUDA_NORM,     KK_CUDA_LINEAR,
        KK_CUDA_GLU,    KK_CUDA_LINEAR,   KK_CUDA_NORM,     KK_CUDA_ROUTE,
        KK_CUDA_NORM,   KK_CUDA_EXPERTS,  KK_CUDA_RESIDUAL, KK_CUDA_RESIDUAL};
    if (n < LAYER_OPS) return false;
    for (int i = 0; i < LAYER_OPS; i++)
        if (op[i].kind != kinds[i]) return false;
    return true;
}

static bool attention_matches(const kk_cuda_op *op) {
    const kk_linear_args *qkv = &op[1].a.linear, *o = &op[4].a.linear;
    const kk_store_args *s = &op[2].a.store;
    const kk_attend_args *t = &op[3].a.attend;
    return qkv->x == op[0].a.norm.out && qkv->n >= 2 && qkv->n <= 3 && s->q == qkv->out[0] &&
           s->k == qkv->out[1] && s->v == (qkv->n == 3 ? qkv->out[2] : NULL) && !s->v_raw &&
           t->q == s->q && o->n == 1 && o->x == t->out && whole(qkv->w[0]) && whole(o->w[0]) &&
           op[2].view == op[3].view && o->out[0] != op[0].a.norm.x;
}

static bool ffn_matches(const kk_cuda_op *op, const kk_buf *x) {
    const kk_linear_args *gu = &op[7].a.linear, *down = &op[9].a.linear;
    const kk_glu_args *glu = &op[8].a.glu;
    const kk_experts_args *e = &op[13].a.experts;
    const kk_route_args *r = &op[11].a.route;
    const kk_residual_args *mid = &op[5].a.residual, *add = &op[14].a.residual,
                           *tail = &op[15].a.residual;
    const bool dense = mid->x == x && mid->a == op[4].a.linear.out[0] && mid->w &&
                       op[6].a.norm.x == x && gu->n == 2 && gu->x == op[6].a.norm.out &&
                       glu->gate == gu->out[0] && glu->up == gu->out[1] && glu->up_offset == 0 &&
                       glu->up_stride == glu->dim && glu->act == KK_GELU_TANH && down->n == 1 &&
                       down->x == glu->out && whole(gu->w[0]) && whole(down->w[0]) &&
                       gu->w[0]->w.planes == gu->w[1]->w.planes &&
                       gu->w[0]->w.n_out == gu->w[1]->w.n_out && gu->w[0]->w.n_out == glu->dim;
    const bool routed = r->x == x && whole(r->proj) && op[12].a.norm.x == x &&
                        e->x == op[12].a.norm.out && e->expert == r->expert &&
                        e->weight == r->weight && !e->up && e->ffn % 8 == 0 && whole(e->gate) &&
                        whole(e->down);
    return dense && routed && op[10].a.norm.x == down->out[0] && op[10].a.norm.w && add->w &&
           add->x == op[10].a.norm.out && add->a == e->out && add->scale == 1.0f && tail->x == x &&
           tail->a == add->x && tail->w;
}

bool kk_cuda_is_layer(const kk_cuda_op *op, int32_t n) {
    return kinds_match(op, n) && attention_matches(op) && ffn_matches(op, op[0].a.norm.x) &&
           op[0].a.norm.w;
}

static bool is_layer(const kk_dev *dev, const kk_cuda_op *op, int32_t n) {
    if (!kk_cuda_is_layer(op, n)) return false;
    const int32_t rows = op[0].a.norm.n_rows;
    return rows <= KK_CU_ROWS && flows(dev, rows, op[4].a.linear.w[0]->w.n_in) &&
           (size_t)rows * (size_t)op[11].a.route.proj->w.n_out * 4 * 8 <= dev->logits.bytes &&
           (size_t)rows * (size_t)op[13].a.experts.n_used * (size_t)op[13].a.experts.ffn * 2 <=
               dev->act.bytes;
}

static bool is_head(const kk_dev *dev, const kk_cuda_op *op, int32_t n, const kk_buf *x) {
    if (n < HEAD_OPS || op[0].kind != KK_CUDA_GATHER || op[1].kind != KK_CUDA_NORM ||
        op[2].kind != KK_CUDA_LINEAR || op[3].kind != KK_CUDA_SOFTCAP)
        return false;
    const kk_gather_args *g = &op[0].a.gather;
    const kk_linear_args *l = &op[2].a.linear;
    const kk_norm_args *m = &op[1].a.norm;
    return g->x == x && g->out_at == 0 && g->out_stride == 0 && m->x == g->out && m->out == m->x &&
           m->w && l->x == m->out && l->n == 1 && l->n_rows <= KK_CU_ROWS && whole(l->w[0]) &&
           l->w[0]->w.planes == 1 && op[3].a.softcap.x == l->out[0] && op[3].a.softcap.cap > 0 &&
           op[3].a.softcap.n_rows == l->n_rows && flows(dev, l->n_rows, l->w[0]->w.n_in);
}

/* ---- the kernel's parameter ----------------------------------------------------------------- */

static int32_t strips(const kk_weight *w) { return (int32_t)(w->w.n_out / 8); }

static bool plain_bf16(const kk_weight *w) { return w->w.planes == 1 && w->w.n_out % 8 == 0; }

/* What all layers of a launch have in common. */
static void set_shape(const kk_dev *dev, kk_cu_mega *m, const kk_cuda_op *op) {
    const kk_norm_args *first = &op[0].a.norm;
    const kk_experts_args *e = &op[13].a.experts;
    const kk_route_args *r = &op[11].a.route;
    m->n_layer = 0;
    m->n_rows = first->n_rows;
    m->hidden = first->dim;
    m->ffn = (int32_t)op[9].a.linear.w[0]->w.n_in;
    m->expert_ffn = e->ffn;
    m->n_expert = (int32_t)r->proj->w.n_out;
    m->n_used = e->n_used;
    m->router_steps = r->proj->w.wrap * r->proj->w.planes;
    m->expert_strips = e->gate->w.strips;
    m->down_strips = e->down->w.strips;
    m->eps = first->eps;
    m->x = kk_cuda_f(first->x);
    m->y = kk_cuda_f(op[4].a.linear.out[0]);
    m->dense = flow_at(dev, FLOW_DENSE);
    m->moe = kk_cuda_f(e->out);
    m->logits = dev->logits.data;
    m->z1 = flow_at(dev, FLOW_Z1);
    m->z2 = flow_at(dev, FLOW_Z2);
    m->z3 = flow_at(dev, FLOW_Z3);
    m->att = flow_at(dev, FLOW_ATT);
    m->act = flow_at(dev, FLOW_ACT);
    m->expert_act = dev->act.data;
    m->expert = r->expert->data;
    m->weight = kk_cuda_f(r->weight);
    m->barrier = dev->barrier.data;
    m->head = NULL;
    m->vocab = 0;
    m->trace = NULL;
}

/* The rest is the kernel's to assume; a layer that differs ends the launch before it. */
static bool same_shape(const kk_cu_mega *m, const kk_cuda_op *op) {
    const kk_experts_args *e = &op[13].a.experts;
    return op[0].a.norm.n_rows == m->n_rows && op[0].a.norm.dim == m->hidden &&
           op[0].a.norm.eps == m->eps && kk_cuda_f(op[0].a.norm.x) == m->x &&
           op[9].a.linear.w[0]->w.n_in == m->ffn && e->ffn == m->expert_ffn &&
           e->n_used == m->n_used && op[11].a.route.proj->w.n_out == m->n_expert &&
           op[11].a.route.proj->w.wrap * op[11].a.route.proj->w.planes == m->router_steps &&
           kk_cuda_f(e->out) == m->moe && kk_cuda_f(op[4].a.linear.out[0]) == m->y &&
           m->n_layer < KK_CU_MEGA_LAYERS;
}

static bool all_plain(const kk_cuda_op *op) {
    const kk_linear_args *qkv = &op[1].a.linear, *gu = &op[7].a.linear;
    for (int32_t i = 0; i < qkv->n; i++)
        if (!plain_bf16(qkv->w[i])) return false;
    if (qkv->n == 3 && qkv->w[2]->w.n_out != qkv->w[1]->w.n_out) return false;
    return plain_bf16(op[4].a.linear.w[0]) && plain_bf16(gu->w[0]) && plain_bf16(gu->w[1]) &&
           plain_bf16(op[9].a.linear.w[0]) && plain_bf16(op[13].a.experts.gate) &&
           plain_bf16(op[13].a.experts.down) && op[5].a.residual.scale == 1.0f;
}

static bool add_layer(const kk_dev *dev, kk_cu_mega *m, const kk_cuda_op *op,
                      const kk_cuda_view *views) {
    const kk_linear_args *qkv = &op[1].a.linear, *o = &op[4].a.linear, *gu = &op[7].a.linear;
    const kk_experts_args *e = &op[13].a.experts;
    kk_cu_mega_layer *l = &m->layer[m->n_layer];
    *l = (kk_cu_mega_layer){.store = kk_cuda_store_args(dev, &op[2].a.store, &views[op[2].view]),
                            .q = qkv->w[0]->w.data,
                            .k = qkv->w[1]->w.data,
                            .v = qkv->n == 3 ? qkv->w[2]->w.data : NULL,
                            .o = o->w[0]->w.data,
                            .router = op[11].a.route.proj->w.data,
                            .gate = gu->w[0]->w.data,
                            .up = gu->w[1]->w.data,
                            .down = op[9].a.linear.w[0]->w.data,
                            .experts = e->gate->w.data,
                            .experts_down = e->down->w.data,
                            .norm_in = kk_cuda_f(op[0].a.norm.w),
                            .norm_att = kk_cuda_f(op[5].a.residual.w),
                            .norm_ffn = kk_cuda_f(op[6].a.norm.w),
                            .norm_experts = kk_cuda_f(op[12].a.norm.w),
                            .router_scale = kk_cuda_f(op[11].a.route.scale),
                            .norm_dense = kk_cuda_f(op[10].a.norm.w),
                            .norm_moe = kk_cuda_f(op[14].a.residual.w),
                            .norm_out = kk_cuda_f(op[15].a.residual.w),
                            .expert_scale = kk_cuda_f(op[11].a.route.per_expert_scale),
                            .scale = op[15].a.residual.scale,
                            .q_strips = strips(qkv->w[0]),
                            .kv_strips = strips(qkv->w[1]),
                            .att_width = (int32_t)o->w[0]->w.n_in};
    if (!kk_cuda_attend_fits(dev, &op[3].a.attend, &views[op[3].view], &l->attend)) return false;
    l->attend.out_bf16 = m->att;
    l->attend.bf16_pitch = l->att_width;
    if (!kk_cu_mega_takes(l)) return false;
    m->n_layer++;
    return true;
}

static void add_head(const kk_dev *dev, kk_cu_mega *m, const kk_cuda_op *op) {
    const kk_gather_args *g = &op[0].a.gather;
    const kk_linear_args *l = &op[2].a.linear;
    m->head = l->w[0]->w.data;
    m->norm_head = kk_cuda_f(op[1].a.norm.w);
    m->head_row = g->first < 0 ? (const void *)(dev->control + op[0].control) : NULL;
    m->head_first = g->first;
    m->n_logits = l->n_rows;
    m->vocab = (int32_t)l->w[0]->w.n_out;
    m->cap = op[3].a.softcap.cap;
    m->head_out = kk_cuda_f(l->out[0]);
}

kk_status kk_cuda_plan_layer(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    kk_cu_mega *m = dev->mega;
    *used = 0;
    KK_TRY(kk_cuda_plan_prompt(dev, ops, n, views, used, err));
    if (*used) return KK_OK;
    if (!is_layer(dev, ops, n) || !m) return KK_OK;
    set_shape(dev, m, ops);
    if (!kk_cu_mega_fits(m)) return KK_OK;
    while (is_layer(dev, ops + *used, n - *used) && same_shape(m, ops + *used) &&
           all_plain(ops + *used) && add_layer(dev, m, ops + *used, views))
        *used += LAYER_OPS;
    if (!m->n_layer) return KK_OK;
    const kk_cuda_op *rest = ops + *used;
    if (is_head(dev, rest, n - *used, ops[0].a.norm.x) && rest[2].a.linear.n_rows >= 1 &&
        rest[2].a.linear.n_rows <= m->n_rows && rest[2].a.linear.w[0]->w.n_out % 16 == 0) {
        add_head(dev, m, rest);
        *used += HEAD_OPS;
    }
    KK_CUDA_TRY(kk_cu_run_mega(kk_cuda_at(dev), m), "a forward", err);
    return KK_OK;
}
