/* cuda_prompt.c - layers of mixed experts for more than 16 rows: the chunks of a prompt.
 *
 * The steps are those of mega.cuh with tiled products.  Rows between kernels are bf16 where a
 * matrix follows, and lie in the buffers that small operations would have written as f32, which are
 * large enough.  z holds two kinds of rows, one in each half.  So a prompt needs no scratch of its
 * own for them. */
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
    return n_rows > KK_CU_ROWS && apart(&a->scratch) && rows * dim * 4 <= a->scratch.z->bytes &&
           rows * dim * 2 <= dev->x.bytes &&
           rows * (size_t)a->w.router->w.n_out * 4 * 8 <= dev->logits.bytes;
}

/* ---- launches ------------------------------------------------------------------------------- */

static void add_part(kk_cu_linear *l, const kk_weight *w, void *out) {
    l->part[l->n_parts].w = w->w;
    l->part[l->n_parts].out = out;
    l->part[l->n_parts++].pitch = (int32_t)w->w.n_out;
}

/* The input norm of layer a, fused with the tail of the layer before where there is one.  a NULL:
 * the tail alone. */
static kk_status enter(kk_dev *dev, const kk_layer_args *a, const kk_layer_args *before,
                       kk_err *err) {
    const kk_layer_args *any = a ? a : before;
    assert(any);
    kk_cu_between b = {.x = kk_cuda_f(any->scratch.x),
                       .eps = any->eps,
                       .n_rows = any->rows->n_rows,
                       .dim = any->hidden,
                       .pitch = any->hidden,
                       .swizzled = true};
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

static kk_status attention(kk_dev *dev, const kk_layer_args *a, const kk_cuda_view *v,
                           kk_err *err) {
    const int32_t n_rows = a->rows->n_rows, width = (int32_t)a->w.o->w.n_in;
    const kk_store_args store = kk_layer_store(a);
    const kk_attend_args attend = kk_layer_attend(a);
    kk_cu_linear in = {
        .x = places_of(dev, a).z1, .n_rows = n_rows, .n_in = (int32_t)a->w.q->w.n_in};
    add_part(&in, a->w.q, kk_cuda_f(a->scratch.q));
    add_part(&in, a->w.k, kk_cuda_f(a->scratch.k));
    if (a->w.v) add_part(&in, a->w.v, kk_cuda_f(a->scratch.v));
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &in), "a product", err);
    KK_TRY(kk_cuda_store_now(dev, &store, v, err));
    float *att = kk_cuda_f(a->scratch.att);
    KK_TRY(kk_cuda_attend_now(dev, &attend, v, att, NULL, 0, err));
    KK_TRY(kk_cuda_round(dev, att, n_rows, width, width, true, err));
    kk_cu_linear out = {.x = dev->x.data, .n_rows = n_rows, .n_in = width};
    add_part(&out, a->w.o, kk_cuda_f(a->scratch.y));
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &out), "a product", err);
    return KK_OK;
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
                             .swizzled = true};
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "norms", err);
    return KK_OK;
}

static kk_status dense_layer(kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const int32_t n_rows = a->rows->n_rows;
    const places p = places_of(dev, a);
    kk_cu_linear in = {.x = p.z1, .n_rows = n_rows, .n_in = (int32_t)a->w.gate->w.n_in};
    add_part(&in, a->w.gate, p.act);
    in.part[0].up = a->w.up->w;
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &in), "a product", err);
    kk_cu_linear out = {.x = p.act, .n_rows = n_rows, .n_in = (int32_t)a->w.down->w.n_in};
    add_part(&out, a->w.down, p.dense);
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &out), "a product", err);
    return KK_OK;
}

static kk_status run_layer(kk_dev *dev, const kk_layer_args *a, const kk_layer_args *before,
                           const kk_cuda_view *v, kk_err *err) {
    const kk_route_args route = kk_layer_route(a);
    const kk_experts_args experts = kk_layer_experts(a);
    const places p = places_of(dev, a);
    KK_TRY(enter(dev, a, before, err));
    KK_TRY(attention(dev, a, v, err));
    KK_TRY(norms(dev, a, err));
    KK_TRY(kk_cuda_choose_now(dev, &route, p.z3, err));
    KK_TRY(dense_layer(dev, a, err));
    return kk_cuda_experts_now(dev, &experts, p.z2, err);
}

kk_status kk_cuda_run_prompt(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_rows rows = {.n_rows = views[ops->view].n_rows};
    kk_layer_args a, before;
    for (*used = 0; *used < n && ops[*used].kind == KK_CUDA_LAYER; ++*used) {
        const kk_cuda_view *v = &views[ops[*used].view];
        a = ops[*used].a.layer;
        a.rows = &rows;
        if (v->n_rows != rows.n_rows || a.scratch.x != ops->a.layer.scratch.x) break;
        KK_TRY(run_layer(dev, &a, *used ? &before : NULL, v, err));
        before = a;
    }
    return enter(dev, NULL, &before, err);
}
