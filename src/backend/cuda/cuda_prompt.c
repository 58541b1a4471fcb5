/* cuda_prompt.c - layers as a sequence of kernels: dense ones of any number of rows; those of
 * mixed experts of more than 16 rows, the chunks of a prompt, and of any number where some are
 * evicted.
 *
 *    norm -> q, k, v -> store -> attention -> o -> norms -> gate and up -> down [experts]
 *    [per-layer input]; the residual after the last product comes with the next layer's first norm
 *
 * Products are tiled, and those of decode.cuh for up to 16 rows, which are then not swizzled.  Rows
 * between kernels are bf16 where a matrix follows, and lie in the buffers that small operations
 * would have written as f32, which are large enough.  z holds two kinds of rows, one in each half.
 * So a layer needs no scratch of its own for them. */
#include <assert.h>

#include "backend/cuda/cuda_device.h"

/* Where rows lie during a layer: [n_rows][hidden] swizzled bf16, except dense (f32). */
typedef struct {
    uint16_t *z1, *z2,
        *z3; /* inputs of attention or the dense part; of the experts; of the router */
    uint16_t *act;
    float *dense;
} places;

static places places_of(const kk_dev *dev, const kk_layer_args *a) {
    const size_t half = (size_t)a->rows->n_rows * (size_t)a->hidden;
    return (places){.z1 = a->scratch.z->data,
                    .z2 = (uint16_t *)a->scratch.z->data + half,
                    .z3 = dev->x.data,
                    .act = a->scratch.gate->data,
                    .dense = kk_cuda_f(a->scratch.y2)};
}

/* Whether buffers that are live at the same time are different ones. */
static bool apart(const kk_layer_scratch *b) {
    const kk_buf *all[] = {b->x, b->y, b->gate, b->y2, b->att, b->z};
    enum { N = sizeof all / sizeof *all };
    for (int i = 1; i < N; i++)
        for (int k = 0; k < i; k++)
            if (all[i] == all[k]) return false;
    return b->q != b->att;
}

bool kk_cuda_takes_prompt(const kk_dev *dev, const kk_layer_args *a, int32_t n_rows) {
    const size_t rows = (size_t)n_rows, dim = (size_t)a->hidden;
    const size_t width = (size_t)a->w.o->w.n_in;
    if (!apart(&a->scratch) || rows * dim * 4 > a->scratch.z->bytes ||
        rows * (dim > width ? dim : width) * 2 > dev->x.bytes)
        return false;
    return !a->n_used || ((n_rows > KK_CU_ROWS || a->evicted) &&
                          rows * (size_t)a->w.router->w.n_out * 4 * 8 <= dev->logits.bytes);
}

/* ---- launches ------------------------------------------------------------------------------- */

static void add_part(kk_cu_linear *l, const kk_weight *w, void *out) {
    l->part[l->n_parts].w = w->w;
    l->part[l->n_parts].out = out;
    l->part[l->n_parts++].pitch = (int32_t)w->w.n_out;
}

static bool is_tiled(const kk_layer_args *a) { return a->rows->n_rows > KK_CU_ROWS; }

/* A layer that is computed but for its last residual. */
typedef struct {
    kk_layer_args a;
    bool sliced; /* its last product lies in K slices (kk_cuda_multiply) */
} unfinished;

/* x = (x + norm(y; w)) * scale, y the last product; then z1 = norm(x; next), or x itself where next
 * is NULL. */
static kk_status tail(kk_dev *dev, const kk_layer_args *a, bool sliced, const kk_buf *w,
                      const kk_buf *next, kk_err *err) {
    const kk_cu_tail t = {.x = kk_cuda_f(a->scratch.x),
                          .y = sliced ? dev->parts.data : kk_cuda_f(a->scratch.y),
                          .w = kk_cuda_f(w),
                          .w1 = kk_cuda_f(next),
                          .z = places_of(dev, a).z1,
                          .scale = 1.0f,
                          .eps = a->eps,
                          .n_rows = a->rows->n_rows,
                          .dim = a->hidden,
                          .sliced = sliced,
                          .swizzled = is_tiled(a)};
    KK_CUDA_TRY(kk_cu_run_tail(kk_cuda_at(dev), &t), "a norm", err);
    return KK_OK;
}

/* What `enter` does between dense layers. */
static kk_status enter_dense(kk_dev *dev, const kk_layer_args *a, const unfinished *before,
                             kk_err *err) {
    const kk_layer_args *any = a ? a : &before->a;
    kk_cu_tail t = {.x = kk_cuda_f(any->scratch.x),
                    .eps = any->eps,
                    .n_rows = any->rows->n_rows,
                    .dim = any->hidden,
                    .swizzled = is_tiled(any)};
    if (before) {
        const kk_layer_weights *w = &before->a.w;
        t.y = before->sliced ? dev->parts.data : kk_cuda_f(before->a.scratch.y);
        t.w = kk_cuda_f(before->a.ple_dim ? w->post_ple_norm : w->post_ffn_norm);
        t.sliced = before->sliced;
        t.scale = before->a.scale;
    }
    if (a) {
        t.z = places_of(dev, a).z1;
        t.w1 = kk_cuda_f(a->w.input_norm);
    }
    KK_CUDA_TRY(kk_cu_run_tail(kk_cuda_at(dev), &t), "a norm", err);
    return KK_OK;
}

/* The input norm of layer a, fused with the tail of the layer before where there is one.  a NULL:
 * the tail alone. */
static kk_status enter(kk_dev *dev, const kk_layer_args *a, const unfinished *last, kk_err *err) {
    const kk_layer_args *before = last ? &last->a : NULL, *any = a ? a : before;
    assert(any);
    if (!any->n_used) return enter_dense(dev, a, last, err);
    kk_cu_between b = {.x = kk_cuda_f(any->scratch.x),
                       .eps = any->eps,
                       .n_rows = any->rows->n_rows,
                       .dim = any->hidden,
                       .pitch = any->hidden,
                       .swizzled = is_tiled(any)};
    if (before) {
        b.a = places_of(dev, before).dense;
        b.b = kk_cuda_f(before->scratch.y);
        b.wa = kk_cuda_f(before->w.post_ffn_norm_1);
        b.wb = kk_cuda_f(before->w.post_ffn_norm_2);
        b.w = kk_cuda_f(before->w.post_ffn_norm);
        b.scale = before->scale;
    }
    if (a) {
        b.z1 = places_of(dev, a).z1;
        b.w1 = kk_cuda_f(a->w.input_norm);
    }
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "a norm", err);
    return KK_OK;
}

static kk_status attention(kk_dev *dev, const kk_layer_args *a, kk_cuda_visible sees,
                           const kk_cuda_view *v, bool *sliced, kk_err *err) {
    const int32_t n_rows = a->rows->n_rows, width = (int32_t)a->w.o->w.n_in;
    const kk_store_args store = kk_layer_store(a);
    const kk_attend_args attend = kk_layer_attend(a);
    kk_cu_linear in = {
        .x = places_of(dev, a).z1, .n_rows = n_rows, .n_in = (int32_t)a->w.q->w.n_in};
    add_part(&in, a->w.q, kk_cuda_f(a->scratch.q));
    if (a->stores) add_part(&in, a->w.k, kk_cuda_f(a->scratch.k));
    if (a->stores && a->w.v) add_part(&in, a->w.v, kk_cuda_f(a->scratch.v));
    KK_TRY(kk_cuda_multiply(dev, &in, NULL, err));
    KK_TRY(kk_cuda_store_now(dev, &store, v, err));
    /* Few rows are written as bf16 where the next product reads them. */
    const bool rounded = !is_tiled(a) && !a->evicted;
    float *att = kk_cuda_f(a->scratch.att);
    const kk_cuda_then then = {dev->x.data, is_tiled(a), is_tiled(a) ? NULL : a->w.o};
    if (sees.gone && (size_t)n_rows * (size_t)width * 2 > dev->x.bytes)
        return kk_fail(err, KK_EINVAL, "%d rows of %d values were not prepared for", n_rows, width);
    KK_TRY(a->evicted ? kk_cuda_evicted_now(dev, &attend, a->evicted, sees, &then, v, err)
                      : kk_cuda_attend_now(dev, &attend, v, rounded ? NULL : att,
                                           rounded ? dev->x.data : NULL, width, err));
    if (!sees.gone && !rounded)
        KK_TRY(kk_cuda_round(dev, att, n_rows, width, width, is_tiled(a), err));
    kk_cu_linear out = {.x = dev->x.data, .n_rows = n_rows, .n_in = width};
    add_part(&out, a->w.o, kk_cuda_f(a->scratch.y));
    return kk_cuda_multiply(dev, &out, sliced, err);
}

static kk_status norms(kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const places p = places_of(dev, a);
    const kk_cu_between b = {.x = kk_cuda_f(a->scratch.x),
                             .a = kk_cuda_f(a->scratch.y),
                             .w = kk_cuda_f(a->w.post_attention_norm),
                             .scale = 1.0f,
                             .eps = a->eps,
                             .root = 1.0f / sqrtf((float)a->hidden),
                             .z1 = p.z1,
                             .z2 = p.z2,
                             .z3 = p.z3,
                             .w1 = kk_cuda_f(a->w.pre_ffn_norm),
                             .w2 = kk_cuda_f(a->w.pre_ffn_norm_2),
                             .w3 = kk_cuda_f(a->w.router_scale),
                             .n_rows = a->rows->n_rows,
                             .dim = a->hidden,
                             .pitch = a->hidden,
                             .swizzled = is_tiled(a)};
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "norms", err);
    return KK_OK;
}

/* to = down(gelu(gate z1) * up z1) */
static kk_status mlp(kk_dev *dev, const kk_layer_args *a, float *to, bool *sliced, kk_err *err) {
    const int32_t n_rows = a->rows->n_rows;
    const places p = places_of(dev, a);
    kk_cu_linear in = {.x = p.z1, .n_rows = n_rows, .n_in = (int32_t)a->w.gate->w.n_in};
    add_part(&in, a->w.gate, p.act);
    in.part[0].up = a->w.up->w;
    KK_TRY(kk_cuda_multiply(dev, &in, NULL, err));
    kk_cu_linear out = {.x = p.act, .n_rows = n_rows, .n_in = (int32_t)a->w.down->w.n_in};
    add_part(&out, a->w.down, to);
    return kk_cuda_multiply(dev, &out, sliced, err);
}

static kk_status mixed(kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const kk_route_args route = kk_layer_route(a);
    const kk_experts_args experts = kk_layer_experts(a);
    const places p = places_of(dev, a);
    const bool later = kk_cuda_chooses_later(&route);
    assert(route.proj->w.n_out == experts.gate->w.n_mat);
    KK_TRY(norms(dev, a, err));
    KK_TRY(kk_cuda_choose_now(dev, &route, p.z3, later, err));
    KK_TRY(mlp(dev, a, p.dense, NULL, err));
    return kk_cuda_experts_now(dev, &experts, later ? &route : NULL, p.z2, err);
}

/* y = proj(gelu(gate x) * ple) of few rows and small matrices; z1 is x. */
static kk_status small_input(kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const places p = places_of(dev, a);
    const kk_cu_small gate = {.w = a->w.ple_gate->w,
                              .x = p.z1,
                              .n_rows = a->rows->n_rows,
                              .n_in = a->hidden,
                              .act = p.act,
                              .ple = kk_cuda_f(a->scratch.ple),
                              .stride = a->ple_stride,
                              .offset = a->ple_offset};
    const kk_cu_small proj = {.w = a->w.ple_proj->w,
                              .x = p.act,
                              .n_rows = a->rows->n_rows,
                              .n_in = a->ple_dim,
                              .out = kk_cuda_f(a->scratch.y)};
    KK_CUDA_TRY(kk_cu_run_small(kk_cuda_at(dev), &gate), "a per-layer input", err);
    KK_CUDA_TRY(kk_cu_run_small(kk_cuda_at(dev), &proj), "a per-layer input", err);
    return KK_OK;
}

/* The same of any rows.  The gate's lie where attention's have been. */
static kk_status per_layer_input(kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const places p = places_of(dev, a);
    float *gate = kk_cuda_f(a->scratch.att);
    if (kk_cu_small_takes(&a->w.ple_gate->w, a->rows->n_rows) &&
        kk_cu_small_takes(&a->w.ple_proj->w, a->rows->n_rows))
        return small_input(dev, a, err);
    kk_cu_linear in = {.x = p.z1, .n_rows = a->rows->n_rows, .n_in = a->hidden};
    add_part(&in, a->w.ple_gate, gate);
    KK_TRY(kk_cuda_multiply(dev, &in, NULL, err));
    const kk_cu_gated g = {.out = p.act,
                           .gate = gate,
                           .up = kk_cuda_f(a->scratch.ple),
                           .n_rows = a->rows->n_rows,
                           .dim = a->ple_dim,
                           .stride = a->ple_stride,
                           .offset = a->ple_offset,
                           .swizzled = is_tiled(a)};
    KK_CUDA_TRY(kk_cu_run_gated(kk_cuda_at(dev), &g), "a per-layer input", err);
    kk_cu_linear out = {.x = p.act, .n_rows = a->rows->n_rows, .n_in = a->ple_dim};
    add_part(&out, a->w.ple_proj, kk_cuda_f(a->scratch.y));
    return kk_cuda_multiply(dev, &out, NULL, err);
}

static kk_status run_layer(kk_dev *dev, const kk_layer_args *a, kk_cuda_visible sees,
                           const unfinished *before, const kk_cuda_view *v, bool *sliced,
                           kk_err *err) {
    const kk_layer_weights *w = &a->w;
    KK_TRY(enter(dev, a, before, err));
    *sliced = false;
    if (a->n_used) {
        KK_TRY(attention(dev, a, sees, v, NULL, err));
        return mixed(dev, a, err);
    }
    KK_TRY(attention(dev, a, sees, v, sliced, err));
    KK_TRY(tail(dev, a, *sliced, w->post_attention_norm, w->pre_ffn_norm, err));
    KK_TRY(mlp(dev, a, kk_cuda_f(a->scratch.y), sliced, err));
    if (!a->ple_dim) return KK_OK;
    KK_TRY(tail(dev, a, *sliced, w->post_ffn_norm, NULL, err));
    *sliced = false;
    return per_layer_input(dev, a, err);
}

kk_status kk_cuda_run_prompt(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_rows rows = {.n_rows = views[ops->view].n_rows};
    kk_layer_args a;
    unfinished before;
    const bool evicted = ops->kind == KK_CUDA_EVICTED_LAYER;
    for (*used = 0; *used < n && ops[*used].kind == ops->kind; ++*used) {
        const kk_cuda_op *op = &ops[*used];
        const kk_cuda_view *v = &views[op->view];
        a = op->a.layer;
        a.rows = &rows;
        a.evicted = evicted ? &op->a.evicted_layer.how : NULL;
        if (v->n_rows != rows.n_rows || a.scratch.x != ops->a.layer.scratch.x ||
            !a.n_used != !ops->a.layer.n_used)
            break;
        const kk_cuda_visible sees = evicted ? op->a.evicted_layer.sees : (kk_cuda_visible){0, 1};
        bool sliced;
        KK_TRY(run_layer(dev, &a, sees, *used ? &before : NULL, v, &sliced, err));
        before = (unfinished){a, sliced};
    }
    return enter(dev, NULL, &before, err);
}
