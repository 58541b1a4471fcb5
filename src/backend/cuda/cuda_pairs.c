/* cuda_pairs.c - operations that were recorded one after the other and go as one kernel: what a
 * drafter, the head and layers that are not fused are made of.
 *
 *    [residual] norm [linear]    one kernel, which also rounds the rows that the product reads
 *    glu linear, attend linear   the same
 *
 * Every operation still writes what it says, with the same bits; products find their rows rounded
 * in dev->x. */
#include "backend/cuda/cuda_device.h"

/* Whether op is a product of these rows of f32, which need no padding. */
static bool multiplies(const kk_cuda_op *op, const kk_buf *x, int32_t n_rows, int32_t dim) {
    const kk_linear_args *l = &op->a.linear;
    return op->kind == KK_CUDA_LINEAR && l->x == x && l->n_rows == n_rows &&
           l->w[0]->w.n_in == dim && l->w[0]->w.wrap * 32 == dim;
}

static bool fits(const kk_dev *dev, int32_t n_rows, int32_t dim) {
    return dim % 32 == 0 && (size_t)n_rows * (size_t)dim * 2 <= dev->x.bytes;
}

/* [residual] norm [linear]; *used 0: there is no such sequence. */
static kk_status norm_rows(kk_dev *dev, const kk_cuda_op *ops, int32_t n, int32_t *used,
                           kk_err *err) {
    const kk_residual_args *r = ops->kind == KK_CUDA_RESIDUAL ? &ops->a.residual : NULL;
    const int32_t at = r ? 1 : 0;
    if (n <= at || ops[at].kind != KK_CUDA_NORM) return KK_OK;
    const kk_norm_args *a = &ops[at].a.norm;
    const bool linear = n > at + 1 && multiplies(&ops[at + 1], a->out, a->n_rows, a->dim);
    if (!a->w || !fits(dev, a->n_rows, a->dim) || (!r && !linear) ||
        (r && (r->x != a->x || a->out == a->x || r->a == a->out || r->n_rows != a->n_rows ||
               r->dim != a->dim || r->eps != a->eps)))
        return KK_OK;
    kk_cu_tail t = {.x = kk_cuda_f(a->x),
                    .w1 = kk_cuda_f(a->w),
                    .zf = kk_cuda_f(a->out),
                    .z = linear ? dev->x.data : NULL,
                    .eps = a->eps,
                    .n_rows = a->n_rows,
                    .dim = a->dim,
                    .swizzled = a->n_rows > KK_CU_ROWS};
    if (r) {
        t.y = kk_cuda_f(r->a);
        t.w = kk_cuda_f(r->w);
        t.scale = r->scale;
    }
    KK_CUDA_TRY(kk_cu_run_tail(kk_cuda_at(dev), &t), "a norm", err);
    *used = at + 1;
    if (!linear) return KK_OK;
    *used = at + 2;
    return kk_cuda_linear_rounded(dev, &ops[at + 1].a.linear, err);
}

static kk_status glu_linear(kk_dev *dev, const kk_cuda_op *ops, int32_t n, int32_t *used,
                            kk_err *err) {
    const kk_glu_args *a = &ops->a.glu;
    if (n < 2 || !multiplies(&ops[1], a->out, a->n_rows, a->dim) || !fits(dev, a->n_rows, a->dim))
        return KK_OK;
    const kk_cu_gated g = {.outf = kk_cuda_f(a->out),
                           .out = dev->x.data,
                           .gate = kk_cuda_f(a->gate),
                           .up = kk_cuda_f(a->up),
                           .n_rows = a->n_rows,
                           .dim = a->dim,
                           .stride = a->up_stride,
                           .offset = a->up_offset,
                           .silu = a->act == KK_SILU,
                           .swizzled = a->n_rows > KK_CU_ROWS};
    KK_CUDA_TRY(kk_cu_run_gated(kk_cuda_at(dev), &g), "a gate", err);
    *used = 2;
    return kk_cuda_linear_rounded(dev, &ops[1].a.linear, err);
}

static kk_status attend_linear(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                               const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_attend_args *a = &ops->a.attend;
    const kk_cuda_view *v = &views[ops->view];
    const int32_t width = a->n_head * a->slot.head_dim;
    if (n < 2 || v->n_rows > KK_CU_ROWS || !multiplies(&ops[1], a->out, v->n_rows, width) ||
        !fits(dev, v->n_rows, width))
        return KK_OK;
    KK_TRY(kk_cuda_attend_now(dev, a, v, kk_cuda_f(a->out), dev->x.data, width, err));
    *used = 2;
    return kk_cuda_linear_rounded(dev, &ops[1].a.linear, err);
}

kk_status kk_cuda_run_pairs(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                            const kk_cuda_view *views, int32_t *used, kk_err *err) {
    *used = 0;
    if (!dev->fuse) return KK_OK;
    switch (ops->kind) {
    case KK_CUDA_RESIDUAL:
    case KK_CUDA_NORM: return norm_rows(dev, ops, n, used, err);
    case KK_CUDA_GLU: return glu_linear(dev, ops, n, used, err);
    case KK_CUDA_ATTEND: return attend_linear(dev, ops, n, views, used, err);
    default: return KK_OK;
    }
}
