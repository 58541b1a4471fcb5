/* cpu_sums.c - sums over rows in float64, in plain C: what the kernels of other devices are held
 * against, to the bit.  Trainings on the CPU take BLAS instead (train/ridge.c). */
#include <math.h>

#include "backend/cpu/device.h"

/* Whether a buffer holds [n, m] values of so many bytes, from value `at` on. */
static bool holds(const kk_buf *b, size_t at, int32_t n, int32_t m, size_t width) {
    size_t values;
    return n >= 0 && m >= 0 && kk_mul((size_t)n, (size_t)m, &values) &&
           kk_add(values, at, &values) && values <= b->bytes / width;
}

static kk_status check(const kk_gram_args *a, kk_err *err) {
    const size_t width = a->doubles ? sizeof(double) : sizeof(float);
    if (holds(a->sum, 0, a->n_a, a->n_b, sizeof(double)) &&
        holds(a->a, 0, a->n_rows, a->n_a, width) && holds(a->b, 0, a->n_rows, a->n_b, width) &&
        (!a->weight || !a->across) &&
        (!a->weight || holds(a->weight, 0, a->n_rows, 1, sizeof(double))))
        return KK_OK;
    return kk_fail(err, KK_EINVAL, "sums of %d rows of %d and %d values do not fit their buffers",
                   a->n_rows, a->n_a, a->n_b);
}

/* The product of two floats is exact in double, so that fma has nothing to add but for weights. */
static void add_floats(const kk_gram_args *a, size_t p, size_t first, double *sum) {
    const float *x = a->a->data, *y = a->b->data;
    const size_t n_a = (size_t)a->n_a, n_b = (size_t)a->n_b;
    for (size_t r = 0; r < (size_t)a->n_rows; r++) {
        const double v = (double)x[r * n_a + p];
        for (size_t q = first; q < n_b; q++) sum[q] += v * (double)y[r * n_b + q];
    }
}

/* Value (r, p) of a matrix of `width` columns. */
static double value_at(const kk_buf *b, const kk_gram_args *a, size_t width, size_t r, size_t p) {
    const size_t i = a->across ? p * (size_t)a->n_rows + r : r * width + p;
    return a->doubles ? ((const double *)b->data)[i] : (double)((const float *)b->data)[i];
}

static void add_any(const kk_gram_args *a, size_t p, size_t first, double *sum) {
    const double *weight = a->weight ? a->weight->data : NULL;
    const size_t n_a = (size_t)a->n_a, n_b = (size_t)a->n_b;
    for (size_t r = 0; r < (size_t)a->n_rows; r++) {
        const double x = value_at(a->a, a, n_a, r, p);
        const double v = weight ? weight[r] * x : x;
        for (size_t q = first; q < n_b; q++) sum[q] = fma(v, value_at(a->b, a, n_b, r, q), sum[q]);
    }
}

static void gram_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const kk_gram_args *a = arg;
    const size_t n_b = (size_t)a->n_b;
    double *all = a->sum->data;
    (void)thread;
    for (size_t p = (size_t)begin; p < (size_t)end; p++) {
        const size_t first = a->a == a->b ? p : 0;
        if (a->doubles || a->weight || a->across)
            add_any(a, p, first, all + p * n_b);
        else
            add_floats(a, p, first, all + p * n_b);
        for (size_t q = first + 1; a->a == a->b && q < n_b; q++)
            all[q * n_b + p] = all[p * n_b + q];
    }
}

kk_status kk_cpu_gram(kk_dev *dev, const kk_gram_args *a, kk_err *err) {
    kk_gram_args copy = *a;
    KK_TRY(check(a, err));
    kk_threads_loop(dev->threads, a->n_a, 1, gram_rows, &copy);
    return KK_OK;
}

kk_status kk_cpu_squares(kk_dev *dev, const kk_squares_args *a, kk_err *err) {
    (void)dev;
    if (!holds(a->sum, a->at, a->dim, 1, sizeof(double)) ||
        !holds(a->x, 0, a->n_rows, a->dim, sizeof(float)))
        return kk_fail(err, KK_EINVAL, "squares of %d rows of %d values do not fit their buffers",
                       a->n_rows, a->dim);
    double *sum = (double *)a->sum->data + a->at;
    const float *x = kk_buf_f(a->x);
    for (int32_t r = 0; r < a->n_rows; r++, x += a->dim)
        for (int32_t p = 0; p < a->dim; p++) sum[p] += (double)x[p] * (double)x[p];
    return KK_OK;
}
