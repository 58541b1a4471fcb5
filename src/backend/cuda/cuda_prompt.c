/* cuda_prompt.c - layers of mixed experts for more rows than a decode kernel takes: the chunks of
 * a prompt.
 *
 * The steps are those of cuda_layer.c with tiled products.  Rows on their way between kernels are
 * bf16 where a matrix follows, and lie in the buffers that the recorded operations would have
 * written as floats: they are large enough, and nobody reads them in between.  A norm's buffer
 * holds two kinds of rows, one in each half.  So a prompt needs no scratch of its own for them. */
#include "backend/cuda/cuda_device.h"

/* Where rows lie during a layer, as turned bf16. */
typedef struct {
    uint16_t *z1, *z2, *z3; /* for attention or the dense layer; for experts; for the router */
    uint16_t *act;
    float *dense;
} places;

static places places_of(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_norm_args *n = &op[0].a.norm;
    return (places){.z1 = op[6].a.norm.out->data,
                    .z2 = (uint16_t *)op[12].a.norm.out->data + (size_t)n->n_rows * (size_t)n->dim,
                    .z3 = dev->x.data,
                    .act = op[8].a.glu.out->data,
                    .dense = kk_cuda_f(op[10].a.norm.out)};
}

static bool among(const kk_buf *b, const kk_buf *const *others, int n) {
    for (int i = 0; i < n; i++)
        if (b == others[i]) return true;
    return false;
}

/* Whether buffers that hold something at the same time are different ones. */
static bool apart(const kk_cuda_op *op) {
    const kk_buf *all[] = {op[0].a.norm.x,    op[4].a.linear.out[0], op[8].a.glu.out,
                           op[10].a.norm.out, op[3].a.attend.out,    op[6].a.norm.out};
    enum { N = sizeof all / sizeof *all };
    const kk_buf *last[] = {op[0].a.norm.x, op[6].a.norm.out, op[10].a.norm.out, op[12].a.norm.out};
    for (int i = 1; i < N; i++)
        if (among(all[i], all, i)) return false;
    return !among(op[12].a.norm.out, all, N - 1) && !among(op[13].a.experts.out, last, 4) &&
           op[3].a.attend.q != op[3].a.attend.out && op[0].a.norm.out == op[6].a.norm.out;
}

static bool is_prompt_layer(const kk_dev *dev, const kk_cuda_op *op, int32_t n) {
    if (!kk_cuda_is_layer(op, n) || op[0].a.norm.n_rows <= KK_CU_ROWS || !apart(op)) return false;
    const size_t rows = (size_t)op[0].a.norm.n_rows, dim = (size_t)op[0].a.norm.dim;
    return rows * dim * 4 <= op[6].a.norm.out->bytes &&
           rows * dim * 4 <= op[12].a.norm.out->bytes && rows * dim * 2 <= dev->x.bytes &&
           rows * (size_t)op[11].a.route.proj->w.n_out * 4 * 8 <= dev->logits.bytes;
}

/* ---- launches ------------------------------------------------------------------------------- */

static void add_part(kk_cu_linear *l, const kk_weight *w, void *out) {
    l->part[l->n_parts].w = w->w;
    l->part[l->n_parts].out = out;
    l->part[l->n_parts++].pitch = (int32_t)w->w.n_out;
}

/* The norm n that begins a layer, after the tail of the one before it where there is one.  op NULL:
 * the tail alone, of rows like n's. */
static kk_status enter(kk_dev *dev, const kk_norm_args *n, const kk_cuda_op *op,
                       const kk_cuda_op *before, kk_err *err) {
    kk_cu_between b = {.x = kk_cuda_f(n->x),
                       .eps = n->eps,
                       .n_rows = n->n_rows,
                       .dim = n->dim,
                       .pitch = n->dim,
                       .turned = true};
    if (before) {
        const kk_residual_args *tail = &before[15].a.residual;
        b.a = places_of(dev, before).dense;
        b.b = kk_cuda_f(before[13].a.experts.out);
        b.wa = kk_cuda_f(before[10].a.norm.w);
        b.wb = kk_cuda_f(before[14].a.residual.w);
        b.w = kk_cuda_f(tail->w);
        b.scale = tail->scale;
    }
    if (op) {
        b.z1 = places_of(dev, op).z1;
        b.w1 = kk_cuda_f(n->w);
    }
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "a norm", err);
    return KK_OK;
}

static kk_status attention(kk_dev *dev, const kk_cuda_op *op, const kk_cuda_view *views,
                           kk_err *err) {
    const kk_linear_args *qkv = &op[1].a.linear, *o = &op[4].a.linear;
    const int32_t width = (int32_t)o->w[0]->w.n_in;
    const places p = places_of(dev, op);
    kk_cu_linear in = {.x = p.z1, .n_rows = qkv->n_rows, .n_in = (int32_t)qkv->w[0]->w.n_in};
    for (int32_t i = 0; i < qkv->n; i++) add_part(&in, qkv->w[i], kk_cuda_f(qkv->out[i]));
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &in), "a product", err);
    KK_TRY(kk_cuda_store_now(dev, &op[2].a.store, &views[op[2].view], err));
    float *att = kk_cuda_f(op[3].a.attend.out);
    KK_TRY(kk_cuda_attend_now(dev, &op[3].a.attend, &views[op[3].view], att, NULL, 0, err));
    KK_TRY(kk_cuda_round(dev, att, o->n_rows, width, width, true, err));
    kk_cu_linear out = {.x = dev->x.data, .n_rows = o->n_rows, .n_in = width};
    add_part(&out, o->w[0], kk_cuda_f(o->out[0]));
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &out), "a product", err);
    return KK_OK;
}

static kk_status norms(kk_dev *dev, const kk_cuda_op *op, kk_err *err) {
    const kk_residual_args *r = &op[5].a.residual;
    const places p = places_of(dev, op);
    const kk_cu_between b = {.x = kk_cuda_f(r->x),
                             .a = kk_cuda_f(r->a),
                             .w = kk_cuda_f(r->w),
                             .scale = r->scale,
                             .eps = r->eps,
                             .root = 1.0f / sqrtf((float)r->dim),
                             .z1 = p.z1,
                             .z2 = p.z2,
                             .z3 = p.z3,
                             .w1 = kk_cuda_f(op[6].a.norm.w),
                             .w2 = kk_cuda_f(op[12].a.norm.w),
                             .w3 = kk_cuda_f(op[11].a.route.scale),
                             .n_rows = r->n_rows,
                             .dim = r->dim,
                             .pitch = r->dim,
                             .turned = true};
    KK_CUDA_TRY(kk_cu_run_between(kk_cuda_at(dev), &b), "norms", err);
    return KK_OK;
}

static kk_status dense_layer(kk_dev *dev, const kk_cuda_op *op, kk_err *err) {
    const kk_linear_args *gu = &op[7].a.linear, *down = &op[9].a.linear;
    const places p = places_of(dev, op);
    kk_cu_linear in = {.x = p.z1, .n_rows = gu->n_rows, .n_in = (int32_t)gu->w[0]->w.n_in};
    add_part(&in, gu->w[0], p.act);
    in.part[0].up = gu->w[1]->w;
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &in), "a product", err);
    kk_cu_linear out = {.x = p.act, .n_rows = gu->n_rows, .n_in = (int32_t)down->w[0]->w.n_in};
    add_part(&out, down->w[0], p.dense);
    KK_CUDA_TRY(kk_cu_run_gemm(kk_cuda_at(dev), &out), "a product", err);
    return KK_OK;
}

kk_status kk_cuda_plan_prompt(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                              const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_cuda_op *before = NULL;
    *used = 0;
    while (is_prompt_layer(dev, ops + *used, n - *used)) {
        const kk_cuda_op *op = ops + *used;
        KK_TRY(enter(dev, &op->a.norm, op, before, err));
        KK_TRY(attention(dev, op, views, err));
        KK_TRY(norms(dev, op, err));
        const places p = places_of(dev, op);
        KK_TRY(kk_cuda_choose_now(dev, &op[11].a.route, p.z3, err));
        KK_TRY(dense_layer(dev, op, err));
        KK_TRY(kk_cuda_experts_now(dev, &op[13].a.experts, p.z2, err));
        before = op;
        *used += KK_CUDA_LAYER_OPS;
    }
    return before ? enter(dev, &before->a.norm, NULL, before, err) : KK_OK;
}
