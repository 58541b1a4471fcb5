/* cuda_sums.c - sums over rows.  They are large and few, so they are not recorded: what is queued
 * is launched, and they behind it. */
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/sums_ops.h"

/* Whether a buffer holds [n, m] values of so many bytes, from value `at` on. */
static bool holds(const kk_buf *b, size_t at, int32_t n, int32_t m, size_t width) {
    size_t values;
    return n >= 0 && m >= 0 && kk_mul((size_t)n, (size_t)m, &values) &&
           kk_add(values, at, &values) && values <= b->bytes / width;
}

kk_status kk_cuda_gram(kk_dev *dev, const kk_gram_args *a, kk_err *err) {
    const size_t width = a->doubles ? sizeof(double) : sizeof(float);
    if (!holds(a->sum, 0, a->n_a, a->n_b, sizeof(double)) ||
        !holds(a->a, 0, a->n_rows, a->n_a, width) || !holds(a->b, 0, a->n_rows, a->n_b, width) ||
        (a->weight && (a->across || !holds(a->weight, 0, a->n_rows, 1, sizeof(double)))))
        return kk_fail(err, KK_EINVAL,
                       "sums of %d rows of %d and %d values do not fit their buffers", a->n_rows,
                       a->n_a, a->n_b);
    const kk_cu_gram g = {.sum = a->sum->data,
                          .a = a->a->data,
                          .b = a->b->data,
                          .weight = a->weight ? a->weight->data : NULL,
                          .n_rows = a->n_rows,
                          .n_a = a->n_a,
                          .n_b = a->n_b,
                          .doubles = a->doubles,
                          .across = a->across};
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(kk_cu_run_gram(kk_cuda_at(dev), &g), "sums over rows", err);
    return KK_OK;
}

kk_status kk_cuda_squares(kk_dev *dev, const kk_squares_args *a, kk_err *err) {
    if (!holds(a->sum, a->at, a->dim, 1, sizeof(double)) ||
        !holds(a->x, 0, a->n_rows, a->dim, sizeof(float)))
        return kk_fail(err, KK_EINVAL, "squares of %d rows of %d values do not fit their buffers",
                       a->n_rows, a->dim);
    const kk_cu_squares s = {(double *)a->sum->data + a->at, kk_cuda_f(a->x), a->n_rows, a->dim};
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(kk_cu_run_squares(kk_cuda_at(dev), &s), "squares of rows", err);
    return KK_OK;
}
