/* cuda_prompt.c - layers of mixed experts for more than 16 rows: the chunks of a prompt; and for
 * any number of rows where some are evicted.
 *
 * The steps are those of mega.cuh with tiled products, and with those of decode.cuh for up to 16
 * rows, which are then not swizzled.  Rows between kernels are bf16 where a
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
    return (n_rows > KK_CU_ROWS || a->evicted) && apart(&a->scratch) &&
           rows * dim * 4 <= a->scratch.z->bytes && rows * dim * 2 <= dev->x.bytes &&
           rows * (size_t)a->w.router->w.n_out * 4 * 8 <= dev->logits.bytes;
}

/* ---- launches ------------------------------------------------------------------------------- */

static void add_part(kk_cu_linear *l, const kk_weight *w, void *out) {
    l->part[l->n_parts].w = w->w;
    l->part[l->n_parts].out = out;
    l->part[l->n_parts++].pitch = (int32_t)w->w.n_out;
}

static bool is_tiled(const kk_layer_args *a) { return a->rows->n_rows > KK_CU_ROWS; }

/* A product over all rows; few of them in as many launches as shared memory asks for. */
static kk_status multiply(kk_dev *dev, const kk_cu_linear *l, kk_err *err) {
    if (l->n_rows > KK_CU_ROWS) {
        KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), l), "a product", err);
        return KK_OK;
    }
    const int32_t most = kk_cu_linear_rows(dev->shared, l->n_in);
    for (int32_t r = 0; r < l->n_rows; r += most) {
        kk_cu_linear some = *l;
        some.n_rows = l->n_rows - r < most ? l->n_rows - r : most;
        some.x += (size_t)r * (size_t)l->n_in;
        for (int32_t i = 0; i < l->n_parts; i++) {
            const size_t width = l->part[i].up.data ? sizeof(uint16_t) : sizeof(float);
            some.part[i].out =
                (uint8_t *)l->part[i].out + (size_t)r * (size_t)l->part[i].pitch * width;
        }
        KK_CUDA_TRY(kk_cu_run_linear(kk_cuda_at(dev), &some), "a product", err);
    }
    return KK_OK;
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
                           const kk_cuda_view *v, kk_err *err) {
    const int32_t n_rows = a->rows->n_rows, width = (int32_t)a->w.o->w.n_in;
    const kk_store_args store = kk_layer_store(a);
    const kk_attend_args attend = kk_layer_attend(a);
    kk_cu_linear in = {
        .x = places_of(dev, a).z1, .n_rows = n_rows, .n_in = (int32_t)a->w.q->w.n_in};
    add_part(&in, a->w.q, kk_cuda_f(a->scratch.q));
    add_part(&in, a->w.k, kk_cuda_f(a->scratch.k));
    if (a->w.v) add_part(&in, a->w.v, kk_cuda_f(a->scratch.v));
    KK_TRY(multiply(dev, &in, err));
    KK_TRY(kk_cuda_store_now(dev, &store, v, err));
    float *att = kk_cuda_f(a->scratch.att);
    const kk_cuda_then then = {dev->x.data, is_tiled(a), is_tiled(a) ? NULL : a->w.o};
    if (sees.gone && (size_t)n_rows * (size_t)width * 2 > dev->x.bytes)
        return kk_fail(err, KK_EINVAL, "%d rows of %d values were not prepared for", n_rows, width);
    KK_TRY(a->evicted ? kk_cuda_evicted_now(dev, &attend, a->evicted, sees, &then, v, err)
                      : kk_cuda_attend_now(dev, &attend, v, att, NULL, 0, err));
    if (!sees.gone) KK_TRY(kk_cuda_round(dev, att, n_rows, width, width, is_tiled(a), err));
    kk_cu_linear out = {.x = dev->x.data, .n_rows = n_rows, .n_in = width};
    add_part(&out, a->w.o, kk_cuda_f(a->scratch.y));
    return multiply(dev, &out, err);
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

static kk_status dense_layer(kk_dev *dev, const kk_layer_args *a, kk_err *err) {
    const int32_t n_rows = a->rows->n_rows;
    const places p = places_of(dev, a);
    kk_cu_linear in = {.x = p.z1, .n_rows = n_rows, .n_in = (int32_t)a->w.gate->w.n_in};
    add_part(&in, a->w.gate, p.act);
    in.part[0].up = a->w.up->w;
    KK_TRY(multiply(dev, &in, err));
    kk_cu_linear out = {.x = p.act, .n_rows = n_rows, .n_in = (int32_t)a->w.down->w.n_in};
    add_part(&out, a->w.down, p.dense);
    return multiply(dev, &out, err);
}

static kk_status run_layer(kk_dev *dev, const kk_layer_args *a, kk_cuda_visible sees,
                           const kk_layer_args *before, const kk_cuda_view *v, kk_err *err) {
    const kk_route_args route = kk_layer_route(a);
    const kk_experts_args experts = kk_layer_experts(a);
    const places p = places_of(dev, a);
    const bool later = kk_cuda_chooses_later(&route);
    assert(route.proj->w.n_out == experts.gate->w.n_mat);
    KK_TRY(enter(dev, a, before, err));
    KK_TRY(attention(dev, a, sees, v, err));
    KK_TRY(norms(dev, a, err));
    KK_TRY(kk_cuda_choose_now(dev, &route, p.z3, later, err));
    KK_TRY(dense_layer(dev, a, err));
    return kk_cuda_experts_now(dev, &experts, later ? &route : NULL, p.z2, err);
}

kk_status kk_cuda_run_prompt(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_rows rows = {.n_rows = views[ops->view].n_rows};
    kk_layer_args a, before;
    const bool evicted = ops->kind == KK_CUDA_EVICTED_LAYER;
    for (*used = 0; *used < n && ops[*used].kind == ops->kind; ++*used) {
        const kk_cuda_op *op = &ops[*used];
        const kk_cuda_view *v = &views[op->view];
        a = op->a.layer;
        a.rows = &rows;
        a.evicted = evicted ? &op->a.evicted_layer.how : NULL;
        if (v->n_rows != rows.n_rows || a.scratch.x != ops->a.layer.scratch.x) break;
        const kk_cuda_visible sees = evicted ? op->a.evicted_layer.sees : (kk_cuda_visible){0, 1};
        KK_TRY(run_layer(dev, &a, sees, *used ? &before : NULL, v, err));
        before = a;
    }
    return enter(dev, NULL, &before, err);
}
