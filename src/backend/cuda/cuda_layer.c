/* cuda_layer.c - which layers are fused; and 26B-A4B's layers of mixed experts, up to 16 rows of
 * one session or of several, and the head after them: consecutive layers of the queue go as one
 * launch to the persistent kernel of mega.cuh, with the same bits as the small operations.
 *
 * Rows between its stages lie in scratch of the device, as bf16 where a matrix follows.  The
 * model's own buffers for them (z, gate, up and so on) are not written, which the contract of a
 * layer allows.  More rows, and dense layers, go to cuda_prompt.c.
 *
 * Each layer overwrites what the one before chose.  Where reads of experts are counted, because
 * some lie in host memory, every layer is a launch of its own. */
#include "backend/cuda/cuda_offload.h"

/* Rows between stages: regions of dev->z. */
typedef enum { FLOW_Z1, FLOW_Z2, FLOW_Z3, FLOW_ATT, FLOW_ACT, FLOW_DENSE = 6 } flow;

static void *flow_at(const kk_dev *dev, flow f) {
    return (uint8_t *)dev->z.data + dev->z.bytes / KK_CUDA_FLOWS * (size_t)f;
}

static bool flows(const kk_dev *dev, int32_t rows, int64_t dim) {
    return (size_t)rows * (size_t)dim * 2 <= dev->z.bytes / KK_CUDA_FLOWS;
}

/* ---- which layers ------------------------------------------------------------------------- */

/* A matrix whose rows need no padding. */
static bool whole(const kk_weight *w) { return w && w->w.wrap * 32 == w->w.n_in; }

static bool dense_fits(const kk_layer_args *a) {
    const kk_layer_weights *w = &a->w;
    return whole(w->gate) && whole(w->down) && w->up && w->gate->w.planes == w->up->w.planes &&
           w->gate->w.encoding == w->up->w.encoding && w->gate->w.n_out == w->up->w.n_out &&
           w->gate->w.n_out == a->ffn;
}

static bool attends(const kk_layer_args *a) {
    const kk_layer_weights *w = &a->w;
    return (w->k || !a->stores) && whole(w->q) && whole(w->o) && a->slot.head_dim <= 512 &&
           a->slot.head_dim % 8 == 0 && w->input_norm && w->post_attention_norm &&
           w->post_ffn_norm && a->scratch.y != a->scratch.x;
}

/* A layer of mixed experts with K/V rows of its own, whatever its sizes and number of rows. */
static bool is_mixed(const kk_layer_args *a) {
    const kk_layer_weights *w = &a->w;
    const bool routed = a->n_used > 0 && whole(w->router) && !w->expert_up &&
                        a->expert_ffn % 8 == 0 && whole(w->expert_gate) && whole(w->expert_down);
    return a->stores && attends(a) && routed && w->post_ffn_norm_1 && w->post_ffn_norm_2 &&
           dense_fits(a) && !a->ple_dim;
}

/* A layer without experts, with K/V rows of its own or another's, with a per-layer input or without
 * one. */
static bool is_dense(const kk_layer_args *a) {
    const kk_layer_weights *w = &a->w;
    const bool ple = !a->ple_dim || (whole(w->ple_gate) && whole(w->ple_proj) && w->post_ple_norm &&
                                     a->scratch.ple && w->ple_gate->w.n_out == a->ple_dim);
    return !a->n_used && attends(a) && w->pre_ffn_norm && dense_fits(a) && ple;
}

/* A matrix of one plane, bf16 or packed. */
static bool one_plane(const kk_weight *w) { return w->w.planes == 1 && w->w.n_out % 8 == 0; }

static bool all_one_plane(const kk_layer_weights *w) {
    if (w->v && (!one_plane(w->v) || w->v->w.n_out != w->k->w.n_out)) return false;
    return one_plane(w->q) && one_plane(w->k) && one_plane(w->o) && one_plane(w->gate) &&
           one_plane(w->up) && one_plane(w->down) && one_plane(w->expert_gate) &&
           one_plane(w->expert_down) && w->router->w.encoding == KK_W_BF16;
}

static uint8_t encoding(const kk_weight *w) { return w ? (uint8_t)w->w.encoding : KK_W_BF16; }

/* ---- the kernel's parameter ----------------------------------------------------------------- */

static int32_t strips(const kk_weight *w) { return (int32_t)(w->w.n_out / 8); }

/* What all layers of a launch have in common. */
static void set_shape(const kk_dev *dev, kk_cu_mega *m, const kk_layer_args *a, int32_t n_rows) {
    const kk_cu_weight *router = &a->w.router->w;
    m->n_layer = 0;
    m->n_rows = n_rows;
    m->hidden = a->hidden;
    m->ffn = (int32_t)a->w.down->w.n_in;
    m->expert_ffn = a->expert_ffn;
    m->n_expert = (int32_t)router->n_out;
    m->n_used = a->n_used;
    m->router_steps = router->wrap * router->planes;
    m->expert_strips = a->w.expert_gate->w.strips;
    m->down_strips = a->w.expert_down->w.strips;
    m->eps = a->eps;
    m->x = kk_cuda_f(a->scratch.x);
    m->y = kk_cuda_f(a->scratch.y);
    m->dense = flow_at(dev, FLOW_DENSE);
    m->moe = kk_cuda_f(a->scratch.y);
    m->logits = dev->logits.data;
    m->z1 = flow_at(dev, FLOW_Z1);
    m->z2 = flow_at(dev, FLOW_Z2);
    m->z3 = flow_at(dev, FLOW_Z3);
    m->att = flow_at(dev, FLOW_ATT);
    m->act = flow_at(dev, FLOW_ACT);
    m->expert_act = dev->act.data;
    m->expert = a->scratch.expert->data;
    m->weight = kk_cuda_f(a->scratch.expert_weight);
    m->barrier = dev->barrier.data;
    m->tap = NULL;
    m->tap_stride = 0;
    m->head = NULL;
    m->head_as = KK_W_BF16;
    m->vocab = 0;
    m->trace = NULL;
}

/* Whether a layer can join the launch; one that differs begins another.  Sessions and their rows
 * are those of the first layer; page tables have memory of their own, with the same offsets. */
static bool same_shape(const kk_cu_mega *m, const kk_layer_args *a, const kk_cuda_view *v) {
    const kk_cu_weight *router = &a->w.router->w;
    const kk_cu_rows *first = m->n_layer ? &m->layer[0].store.rows : NULL;
    if (first && (v->tiles != first->tiles || v->page_cap != first->most_pages ||
                  kk_cuda_slot(&a->slot).format != m->layer[0].store.slot.format))
        return false;
    return v->n_rows == m->n_rows && a->hidden == m->hidden && a->eps == m->eps &&
           kk_cuda_f(a->scratch.x) == m->x && a->w.down->w.n_in == m->ffn &&
           a->expert_ffn == m->expert_ffn && a->n_used == m->n_used &&
           router->n_out == m->n_expert && router->wrap * router->planes == m->router_steps &&
           kk_cuda_f(a->scratch.y) == m->y && m->n_layer < KK_CU_MEGA_LAYERS;
}

/* Fills one layer of the parameter; false: the kernel does not support it. */
static bool fill_layer(const kk_dev *dev, kk_cu_mega_layer *l, const kk_layer_args *a,
                       const kk_cuda_view *v) {
    const kk_layer_weights *w = &a->w;
    const kk_store_args store = kk_layer_store(a);
    const kk_attend_args attend = kk_layer_attend(a);
    *l = (kk_cu_mega_layer){.store = kk_cuda_store_args(dev, &store, v),
                            .q = w->q->w.data,
                            .k = w->k->w.data,
                            .v = w->v ? w->v->w.data : NULL,
                            .o = w->o->w.data,
                            .router = w->router->w.data,
                            .gate = w->gate->w.data,
                            .up = w->up->w.data,
                            .down = w->down->w.data,
                            .experts = w->expert_gate->w.data,
                            .experts_down = w->expert_down->w.data,
                            .norm_in = kk_cuda_f(w->input_norm),
                            .norm_att = kk_cuda_f(w->post_attention_norm),
                            .norm_ffn = kk_cuda_f(w->pre_ffn_norm),
                            .norm_experts = kk_cuda_f(w->pre_ffn_norm_2),
                            .router_scale = kk_cuda_f(w->router_scale),
                            .norm_dense = kk_cuda_f(w->post_ffn_norm_1),
                            .norm_moe = kk_cuda_f(w->post_ffn_norm_2),
                            .norm_out = kk_cuda_f(w->post_ffn_norm),
                            .expert_scale = kk_cuda_f(w->expert_scale),
                            .scale = a->scale,
                            .q_strips = strips(w->q),
                            .kv_strips = strips(w->k),
                            .att_width = (int32_t)w->o->w.n_in,
                            .as = {.q = encoding(w->q),
                                   .k = encoding(w->k),
                                   .v = encoding(w->v),
                                   .o = encoding(w->o),
                                   .gate = encoding(w->gate),
                                   .down = encoding(w->down),
                                   .experts = encoding(w->expert_gate),
                                   .experts_down = encoding(w->expert_down)}};
    l->attend = kk_cuda_attend_args(dev, &attend, v);
    l->attend.out_bf16 = flow_at(dev, FLOW_ATT);
    l->attend.bf16_pitch = l->att_width;
    const kk_cu_at at = kk_cuda_at(dev);
    return kk_cu_mega_takes(at, l) && kk_cu_mega_parts(at, l, v->n_rows) <= dev->parts.bytes;
}

static void add_head(const kk_dev *dev, kk_cu_mega *m, const kk_cuda_op *op) {
    const kk_head_args *h = &op->a.head;
    m->head = h->table->w.data;
    m->head_as = h->table->w.encoding;
    m->norm_head = kk_cuda_f(h->norm);
    m->head_row = (const void *)(dev->control + op->control);
    m->head_first = -1;
    m->n_logits = h->n;
    m->vocab = (int32_t)h->table->w.n_out;
    m->cap = h->cap;
    m->head_out = kk_cuda_f(h->logits);
}

/* Whether an operation copies a layer's output to the taps; the kernel does that itself. */
static bool add_tap(const kk_dev *dev, kk_cu_mega *m, const kk_layer_args *l,
                    const kk_cuda_op *op) {
    const kk_gather_args *g = &op->a.gather;
    const bool taps = op->kind == KK_CUDA_GATHER && g->x == l->scratch.x && g->first == 0 &&
                      g->n == m->n_rows && g->dim == m->hidden && g->out_stride > 0;
    if (!taps || (m->tap && (m->tap != kk_cuda_f(g->out) || m->tap_stride != g->out_stride)))
        return false;
    m->tap = kk_cuda_f(g->out);
    m->tap_stride = g->out_stride;
    m->layer[m->n_layer - 1].tap_at = (const void *)(dev->control + op->control);
    return true;
}

/* ---- recording and launching ---------------------------------------------------------------- */

/* The recorded arguments of a layer, with a kk_rows of which only the number of rows is known. */
static kk_layer_args args_of(const kk_cuda_op *op, const kk_cuda_view *v, kk_rows *rows) {
    kk_layer_args a = op->a.layer;
    *rows = (kk_rows){.n_rows = v->n_rows};
    a.rows = rows;
    return a;
}

static bool takes_few(const kk_dev *dev, const kk_layer_args *a, const kk_cuda_view *v) {
    const size_t rows = (size_t)v->n_rows;
    kk_cu_mega *m = dev->mega;
    if (!m || v->sinks || v->n_rows > KK_CU_ROWS || !flows(dev, v->n_rows, a->w.o->w.n_in) ||
        rows * (size_t)a->w.router->w.n_out * 4 * 8 > dev->logits.bytes ||
        rows * (size_t)a->n_used * (size_t)a->expert_ffn * 2 > dev->act.bytes)
        return false;
    set_shape(dev, m, a, v->n_rows);
    return kk_cu_mega_fits(m) && all_one_plane(&a->w) && fill_layer(dev, &m->layer[0], a, v);
}

bool kk_cuda_takes_layer(const kk_dev *dev, const kk_layer_args *a, const kk_cuda_view *v) {
    if (!dev->fuse) return false;
    if (is_mixed(a) && !a->evicted && takes_few(dev, a, v)) return true;
    return (is_mixed(a) || (is_dense(a) && !a->evicted)) && kk_cuda_takes_prompt(dev, a, v->n_rows);
}

bool kk_cuda_takes_head(const kk_dev *dev, const kk_head_args *h, const kk_cuda_op *before,
                        const kk_cuda_view *v) {
    const kk_layer_args *a = &before->a.layer;
    /* Kernels of packed weights are not compiled for K/V in f32, which layers in bf16 may have. */
    if (h->table->w.encoding != KK_W_BF16 && a->slot.format == KK_KV_F32) return false;
    return a->n_used && v->n_rows <= KK_CU_ROWS && h->x == a->scratch.x && h->hidden == a->hidden &&
           h->eps == a->eps && h->norm && h->n >= 1 && h->n <= v->n_rows && whole(h->table) &&
           h->table->w.planes == 1 && h->table->w.n_out % 16 == 0 && h->cap > 0 &&
           flows(dev, h->n, h->table->w.n_in);
}

static kk_status run_few(kk_dev *dev, const kk_cuda_op *ops, int32_t n, const kk_cuda_view *views,
                         int32_t *used, kk_err *err) {
    kk_cu_mega *m = dev->mega;
    kk_rows rows;
    kk_layer_args a = args_of(ops, &views[ops->view], &rows);
    const kk_layer_weights first = a.w;
    const bool counts = kk_cuda_counts(dev);
    set_shape(dev, m, &a, rows.n_rows);
    for (*used = 0; *used < n && ops[*used].kind == KK_CUDA_LAYER; ++*used) {
        if (counts && m->n_layer) break;
        const kk_cuda_view *v = &views[ops[*used].view];
        a = args_of(&ops[*used], v, &rows);
        if (!a.n_used || !same_shape(m, &a, v) || !fill_layer(dev, &m->layer[m->n_layer], &a, v))
            break;
        m->n_layer++;
        if (*used + 1 < n && add_tap(dev, m, &a, &ops[*used + 1])) ++*used;
    }
    if (!m->n_layer) return kk_fail(err, KK_EDEVICE, "a layer was queued that no kernel takes");
    if (*used < n && ops[*used].kind == KK_CUDA_HEAD) add_head(dev, m, &ops[(*used)++]);
    KK_CUDA_TRY(kk_cu_run_mega(kk_cuda_at(dev), m), "a forward", err);
    return kk_cuda_count_reads(dev, first.expert_gate, NULL, first.expert_down, m->expert,
                               m->n_rows * m->n_used, err);
}

kk_status kk_cuda_run_layers(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    return views[ops->view].n_rows <= KK_CU_ROWS && ops->a.layer.n_used
               ? run_few(dev, ops, n, views, used, err)
               : kk_cuda_run_prompt(dev, ops, n, views, used, err);
}
