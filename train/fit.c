/* fit.c - see fit.h. */
#include "train/fit.h"

#include <cblas.h>
#include <math.h>

double kk_fit_raw(const kk_fit_block *b) {
    return b->raw_energy > 0 ? b->raw_error / b->raw_energy : 0;
}

double kk_fit_normed(const kk_fit_block *b) {
    return b->normed_energy > 0 ? b->normed_error / b->normed_energy : 0;
}

/* One head of one row. */
static void add_head(kk_fit_block *f, const float *p, const float *t, int32_t dim, double eps) {
    double pp = 0, tt = 0;
    for (int32_t i = 0; i < dim; i++) {
        const double d = (double)p[i] - (double)t[i];
        pp += (double)p[i] * (double)p[i];
        tt += (double)t[i] * (double)t[i];
        f->raw_error += d * d;
    }
    f->raw_energy += tt;
    const double a = 1 / sqrt(pp / dim + eps), b = 1 / sqrt(tt / dim + eps);
    for (int32_t i = 0; i < dim; i++) {
        const double d = a * (double)p[i] - b * (double)t[i];
        f->normed_error += d * d;
    }
    f->normed_energy += b * b * tt;
}

static void add_block(kk_fit_block *f, const kk_theta_block *b, const float *p, const float *t,
                      int32_t rows, double eps) {
    for (int64_t i = 0; i < (int64_t)rows * b->n_head; i++)
        add_head(f, p + i * b->head_dim, t + i * b->head_dim, b->head_dim, eps);
}

kk_status kk_fit_add(kk_fit *f, const kk_theta *t, const kk_captured *rows, float eps,
                     kk_err *err) {
    const int32_t n = rows->n_rows, in = t->config.n_in, rank = t->config.rank;
    int32_t most = 0;
    for (int32_t i = 0; i < t->n_blocks; i++)
        most = t->block[i].width > most ? t->block[i].width : most;
    if (n < 1 || most < 1) return KK_OK; /* nothing to judge */
    float *z = kk_malloc(2 * (size_t)n * (size_t)rank * sizeof *z);
    float *p = kk_malloc((size_t)n * (size_t)most * sizeof *p);
    const size_t latents = (size_t)n * (size_t)rank;
    kk_status st = z && p ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory to judge %d rows", n);
    for (int32_t e = 0; e < t->n_encoders && st == KK_OK; e++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, rank, in, 1.0f, rows->x[e], in,
                    t->params + t->encoder_at[e], in, 0.0f, z + (size_t)e * latents, rank);
    for (int32_t i = 0; i < t->n_blocks && st == KK_OK; i++) {
        const kk_theta_block *b = &t->block[i];
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, b->width, rank, 1.0f,
                    z + (size_t)b->encoder * latents, rank, t->params + b->at, rank, 0.0f, p,
                    b->width);
        add_block(&f->block[i], b, p, kk_theta_target(b, rows), n, (double)eps);
    }
    if (st == KK_OK) f->rows += n;
    kk_free(z);
    kk_free(p);
    return st;
}
