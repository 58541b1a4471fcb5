/* cuda_layer.c - recognises layers of mixed experts among recorded operations, and the head, and
 * launches them fused: eleven kernels a layer instead of some thirty, the same bits.
 *
 *   between   tail of the layer before, norm                      (a block per row)
 *   linear    q, k, v
 *   store, attend, combine
 *   linear    the output projection
 *   between   residual, three norms of the sum
 *   router
 *   linear    gate and up with their activation
 *   gate      experts chosen, their gate and up; the dense second matrix beside them
 *   down      experts' second matrices, summed by slot
 *
 * Rows on their way between these kernels lie in scratch of the device, as bf16 where a matrix
 * follows.  The model's own buffers for them (z, y, gate, up and so on) are not written: within a
 * recorded sequence that overwrites them before anyone reads, nobody can tell.  Whoever wants to
 * look at them reads them right after the operation, which ends the queue there. */
#include <assert.h>

#include "backend/cuda/cuda_device.h"

enum {
    LAYER_OPS = KK_CUDA_LAYER_OPS,
    HEAD_OPS = 4,
    CHOOSE_ROWS = 4 /* from here on a kernel of its own pays */
};

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

/* ---- launches ------------------------------------------------------------------------------- */

/* Products of all rows, as many at a time as fit. */
static kk_status linear(kk_dev *dev, kk_cu_linear l, int32_t n_rows, kk_err *err) {
    int32_t most = kk_cu_linear_rows(l.n_in * (l.x2 ? 2 : 1));
    if (most > n_rows) most = n_rows;
    for (int32_t r = 0; r < n_rows; r += most) {
        kk_cu_linear now = l;
        now.n_rows = n_rows - r < most ? n_rows - r : most;
        now.x += (size_t)r * (size_t)l.n_in;
        if (l.x2) now.x2 += (size_t)r * (size_t)l.n_in;
        for (int32_t i = 0; i < l.n_parts; i++) {
            const size_t width = l.part[i].up.data ? 2 : 4;
            now.part[i].out =
                (uint8_t *)l.part[i].out + (size_t)r * (size_t)l.part[i].pitch * width;
        }
        KK_CUDA_TRY(kk_cu_run_linear(kk_cuda_at(dev), &now), "a product", err);
    }
    return KK_OK;
}

static void set_part(kk_cu_linear *l, const kk_weight *w, void *out) {
    l->part[l->n_parts].w = w->w;
    l->part[l->n_parts].out = out;
    l->part[l->n_parts++].pitch = (int32_t)w->w.n_out;
}

/* The norm that begins a layer, after the tail of the one before it where there is one. */
static kk_status enter(kk_dev *dev, const kk_cuda_op *op, const kk_cuda_op *before, kk_err *err) {
    const kk_norm_args *n = op ? &op[0].a.norm : NULL;
    const kk_residual_args *tail = before ? &before[15].a.residual : NULL;
    assert(n || tail);
    /* cppcheck-suppress nullPointerRedundantCheck */
    const int32_t dim = n ? n->dim : tail->dim;
    /* cppcheck-suppress nullPointerRedundantCheck */
    kk_cu_between b = {.x = kk_cuda_f(n ? n->x : tail->x),
                       .eps = n ? n->eps : tail->eps,
                       .n_rows = n ? n->n_rows : tail->n_rows,
                       .dim = dim,
                       .pitch = dim};
    if (before) {
        b.a = flow_at(dev, FLOW_DENSE);
        b.b = kk_cuda_f(before[13].a.experts.out);
        b.wa = kk_cuda_f(before[10].a.norm.w);
        b.wb = kk_cuda_f(before[14].a.residual.w);
        b.w = kk_cuda_f(tail->w);
        b.scale = tail->scale;
    }
    if (n) {
        b.z1 = flow_at(dev, FLOW_Z1);
        b.w1 = kk_cuda_f(n->w);
    }
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "a norm", err);
    return KK_OK;
}

static kk_status attention(kk_dev *dev, const kk_cuda_op *op, const kk_cuda_view *views,
                           kk_err *err) {
    const kk_linear_args *qkv = &op[1].a.linear, *o = &op[4].a.linear;
    const int32_t rows = qkv->n_rows, width = (int32_t)o->w[0]->w.n_in;
    kk_cu_linear l = {.x = flow_at(dev, FLOW_Z1), .n_in = (int32_t)qkv->w[0]->w.n_in};
    for (int32_t i = 0; i < qkv->n; i++) set_part(&l, qkv->w[i], kk_cuda_f(qkv->out[i]));
    KK_TRY(linear(dev, l, rows, err));
    const kk_store_args *a = &op[2].a.store;
    const kk_cu_store s = {.q = kk_cuda_f(a->q),
                           .k = kk_cuda_f(a->k),
                           .v = kk_cuda_f(a->v),
                           .q_norm = kk_cuda_f(a->q_norm),
                           .k_norm = kk_cuda_f(a->k_norm),
                           .rope_rows = kk_cuda_f(a->rope_rows),
                           .n_rot = a->n_rot,
                           .n_head = a->n_head,
                           .slot = kk_cuda_slot(&a->slot),
                           .rows = kk_cuda_rows(dev, &views[op[2].view]),
                           .eps = a->eps};
    KK_CUDA_TRY(kk_cu_run_store(kk_cuda_at(dev), &s), "storing K/V rows", err);
    KK_TRY(kk_cuda_attend_now(dev, &op[3].a.attend, &views[op[3].view], NULL,
                              flow_at(dev, FLOW_ATT), width, err));
    kk_cu_linear out = {.x = flow_at(dev, FLOW_ATT), .n_in = width};
    set_part(&out, o->w[0], kk_cuda_f(o->out[0]));
    return linear(dev, out, rows, err);
}

static kk_status middle(kk_dev *dev, const kk_cuda_op *op, kk_err *err) {
    const kk_residual_args *r = &op[5].a.residual;
    const kk_cu_between b = {.x = kk_cuda_f(r->x),
                             .a = kk_cuda_f(r->a),
                             .w = kk_cuda_f(r->w),
                             .scale = r->scale,
                             .eps = r->eps,
                             .root = 1.0f / sqrtf((float)r->dim),
                             .z1 = flow_at(dev, FLOW_Z1),
                             .z2 = flow_at(dev, FLOW_Z2),
                             .z3 = flow_at(dev, FLOW_Z3),
                             .w1 = kk_cuda_f(op[6].a.norm.w),
                             .w2 = kk_cuda_f(op[12].a.norm.w),
                             .w3 = kk_cuda_f(op[11].a.route.scale),
                             .n_rows = r->n_rows,
                             .dim = r->dim,
                             .pitch = r->dim};
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "norms", err);
    return KK_OK;
}

static kk_status gate_up(kk_dev *dev, const kk_cuda_op *op, kk_err *err) {
    const kk_linear_args *gu = &op[7].a.linear;
    kk_cu_linear l = {.x = flow_at(dev, FLOW_Z1), .n_in = (int32_t)gu->w[0]->w.n_in};
    set_part(&l, gu->w[0], flow_at(dev, FLOW_ACT));
    l.part[0].up = gu->w[1]->w;
    return linear(dev, l, gu->n_rows, err);
}

static kk_status experts(kk_dev *dev, const kk_cuda_op *op, int32_t slices, kk_err *err) {
    const kk_experts_args *e = &op[13].a.experts;
    const kk_route_args *r = &op[11].a.route;
    const kk_weight *dense = op[9].a.linear.w[0];
    const int32_t rows = e->n_rows;
    kk_cu_choice c = {.logits = dev->logits.data,
                      .slices = slices,
                      .scale = kk_cuda_f(r->per_expert_scale),
                      .expert = r->expert->data,
                      .weight = kk_cuda_f(r->weight),
                      .n_rows = rows,
                      .n_used = e->n_used,
                      .n_expert = (int32_t)r->proj->w.n_out};
    if (rows >= CHOOSE_ROWS) {
        KK_CUDA_TRY(kk_cu_run_choose(kk_cuda_at(dev), &c), "choosing experts", err);
        c.logits = NULL;
    }
    kk_cu_gate g = {.choice = c,
                    .gate = e->gate->w,
                    .x = flow_at(dev, FLOW_Z2),
                    .act = dev->act.data,
                    .ffn = e->ffn,
                    .act_pitch = e->ffn};
    if (kk_cu_linear_rows((int32_t)(e->gate->w.n_in + dense->w.n_in)) >= rows) {
        g.dense = dense->w;
        g.dense_x = flow_at(dev, FLOW_ACT);
        g.dense_out = flow_at(dev, FLOW_DENSE);
    } else {
        kk_cu_linear l = {.x = flow_at(dev, FLOW_ACT), .n_in = (int32_t)dense->w.n_in};
        set_part(&l, dense, flow_at(dev, FLOW_DENSE));
        KK_TRY(linear(dev, l, rows, err));
    }
    KK_CUDA_TRY(kk_cu_run_gate(kk_cuda_at(dev), &g), "experts", err);
    const kk_cu_down d = {c, e->down->w, dev->act.data, e->ffn, kk_cuda_f(e->out)};
    KK_CUDA_TRY(kk_cu_run_down(kk_cuda_at(dev), &d), "experts", err);
    return KK_OK;
}

/* ---- the head ------------------------------------------------------------------------------- */

static bool is_head(const kk_dev *dev, const kk_cuda_op *op, int32_t n) {
    if (n < HEAD_OPS || op[0].kind != KK_CUDA_GATHER || op[1].kind != KK_CUDA_NORM ||
        op[2].kind != KK_CUDA_LINEAR || op[3].kind != KK_CUDA_SOFTCAP)
        return false;
    const kk_linear_args *l = &op[2].a.linear;
    const kk_norm_args *m = &op[1].a.norm;
    return m->x == op[0].a.gather.out && m->out == m->x && m->w && l->x == m->out && l->n == 1 &&
           l->n_rows <= KK_CU_ROWS && whole(l->w[0]) && op[3].a.softcap.x == l->out[0] &&
           op[3].a.softcap.cap > 0 && op[3].a.softcap.n_rows == l->n_rows &&
           flows(dev, l->n_rows, l->w[0]->w.n_in);
}

static kk_status head(kk_dev *dev, const kk_cuda_op *op, kk_err *err) {
    const kk_linear_args *l = &op[2].a.linear;
    const kk_norm_args *m = &op[1].a.norm;
    const kk_gather_args *a = &op[0].a.gather;
    const void *control = dev->control + op[0].control;
    const kk_cu_gather g = {
        kk_cuda_f(a->out), kk_cuda_f(a->x), a->first < 0 ? control : NULL, a->n, a->dim, a->first,
        a->out_at,         a->out_stride};
    KK_CUDA_TRY(kk_cu_run_gather(kk_cuda_at(dev), &g), "gathering rows", err);
    const kk_cu_between b = {.x = kk_cuda_f(m->x),
                             .eps = m->eps,
                             .z1 = flow_at(dev, FLOW_Z1),
                             .w1 = kk_cuda_f(m->w),
                             .n_rows = m->n_rows,
                             .dim = m->dim,
                             .pitch = m->dim};
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "the last norm", err);
    kk_cu_linear out = {.x = flow_at(dev, FLOW_Z1), .n_in = m->dim};
    set_part(&out, l->w[0], kk_cuda_f(l->out[0]));
    out.part[0].cap = op[3].a.softcap.cap;
    return linear(dev, out, l->n_rows, err);
}

kk_status kk_cuda_plan_layer(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_cuda_op *before = NULL;
    *used = 0;
    KK_TRY(kk_cuda_plan_prompt(dev, ops, n, views, used, err));
    if (*used) return KK_OK;
    while (is_layer(dev, ops + *used, n - *used)) {
        const kk_cuda_op *op = ops + *used;
        KK_TRY(enter(dev, op, before, err));
        KK_TRY(attention(dev, op, views, err));
        KK_TRY(middle(dev, op, err));
        const kk_route_args *route = &op[11].a.route;
        const kk_cu_router r = {route->proj->w, flow_at(dev, FLOW_Z3), dev->logits.data,
                                route->n_rows};
        int32_t slices;
        KK_CUDA_TRY(kk_cu_run_router(kk_cuda_at(dev), &r, &slices), "the router", err);
        KK_TRY(gate_up(dev, op, err));
        KK_TRY(experts(dev, op, slices, err));
        before = op;
        *used += LAYER_OPS;
    }
    if (before) return enter(dev, NULL, before, err);
    if (!is_head(dev, ops, n)) return KK_OK;
    *used = HEAD_OPS;
    return head(dev, ops, err);
}
