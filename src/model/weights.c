/* weights.c - hands tensors of a checkpoint to a device, and takes workspace there.
 *
 * Matrices stay where they lie: in the file, or where a drafter packed them.  Vectors (norms,
 * scales) are small and become float32 buffers. */
#include <stdio.h>

#include "model/model.h"

static void full_name(const kk_loader *l, const char *name, char out[KK_MAX_NAME]) {
    snprintf(out, KK_MAX_NAME, "%s%s", l->prefix, name);
}

bool kk_load_has(const kk_loader *l, const char *name) {
    char full[KK_MAX_NAME];
    full_name(l, name, full);
    return kk_checkpoint_find(l->ckpt, full);
}

kk_status kk_load_vector(const kk_loader *l, const char *name, int64_t n, kk_buf **out,
                         kk_err *err) {
    char full[KK_MAX_NAME];
    const kk_tensor *t;
    full_name(l, name, full);
    KK_TRY(kk_checkpoint_need(l->ckpt, full, 1, &n, &t, err));
    float *f = kk_calloc((size_t)n, sizeof *f);
    if (!f) return kk_fail(err, KK_ENOMEM, "no memory for tensor '%s'", full);
    kk_tensor_floats(t, 0, f, (size_t)n);
    const size_t bytes = (size_t)n * sizeof *f;
    kk_status st = l->be->buf_new(l->dev, l->category, bytes, out, err);
    if (st == KK_OK) st = l->be->write(l->dev, *out, 0, f, bytes, err);
    kk_free(f);
    return st;
}

kk_status kk_load_matrix(const kk_loader *l, const char *name, const kk_load_shape *shape,
                         kk_weight **out, kk_err *err) {
    char full[KK_MAX_NAME];
    const kk_tensor *t;
    const int64_t dims[3] = {shape->n_mat, shape->n_out, shape->n_in};
    const bool stacked = shape->n_mat > 0;
    full_name(l, name, full);
    KK_TRY(kk_checkpoint_need(l->ckpt, full, stacked ? 3 : 2, stacked ? dims : dims + 1, &t, err));
    const kk_matrix m = {.dtype = t->dtype,
                         .n_mat = stacked ? shape->n_mat : 1,
                         .n_out = shape->n_out,
                         .n_in = shape->n_in,
                         .data = t->data.base,
                         .planes = kk_tensor_planes(t)};
    KK_TRY(l->be->weight_new(l->dev, &m, out, err));
    return l->be->prepare(l->dev, &(kk_prepare_args){.w = *out, .n_used = shape->n_used}, err);
}

kk_status kk_resolve_shift(const kk_backend *be, kk_dev *dev, const kk_buf **shift, int32_t *by,
                           kk_err *err) {
    *by = 0;
    if (!*shift || be->queues) return KK_OK;
    KK_TRY(be->read(dev, *shift, 0, by, sizeof *by, err));
    *shift = NULL;
    return KK_OK;
}

kk_status kk_take_rows(const kk_backend *be, kk_dev *dev, int64_t rows, int64_t width, kk_buf **out,
                       kk_err *err) {
    size_t n;
    if (!kk_mul((size_t)rows, (size_t)width, &n) || !kk_mul(n, sizeof(float), &n))
        return kk_fail(err, KK_EINVAL, "%lld rows of %lld values are too many", (long long)rows,
                       (long long)width);
    return be->buf_new(dev, KK_MEM_WORKSPACE, n, out, err);
}
