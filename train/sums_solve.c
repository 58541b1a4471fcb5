/* sums_solve.c - the closed form from sums on a device; see sums.h. */
#include <cblas.h>
#include <math.h>

#include "core/clock.h"
#include "train/linalg.h"
#include "train/sums_state.h"

typedef struct {
    kk_sums *s;
    kk_theta *theta;
    const kk_sums_watch *watch;
    double *l, *g;                   /* [n_in, n_in]: the factor of X^T X, and C C^T */
    double *e;                       /* [rank, n_in]: eigenvectors, then the encoder */
    double *energy[KK_THETA_BLOCKS]; /* [n_head] sums of squares of the raw targets, in `sums` */
    double *sums;                    /* [n_out] */
    int32_t step;
    double begin;
} solution;

static kk_status done(solution *v, const char *what, kk_err *err) {
    const double now = kk_now(), seconds = now - v->begin;
    v->begin = now;
    return v->watch ? v->watch->done(v->watch->user, v->step++, what, seconds, err) : KK_OK;
}

static kk_status read_square(solution *v, double *to, kk_err *err) {
    const size_t n = (size_t)v->s->n_in;
    KK_TRY(v->s->be->read(v->s->dev, v->s->xx, 0, to, n * n * sizeof *to, err));
    kk_linalg_mirror(to, v->s->n_in);
    return KK_OK;
}

/* L of X^T X with the ridge. */
static kk_status factor(solution *v, kk_err *err) {
    const size_t n = (size_t)v->s->n_in;
    double mean = 0;
    KK_TRY(read_square(v, v->l, err));
    for (size_t i = 0; i < n; i++) mean += v->l[i * n + i] / (double)n;
    for (size_t i = 0; i < n; i++) v->l[i * n + i] += v->s->ridge.lambda * mean;
    KK_TRY(kk_linalg_cholesky(v->l, v->s->n_in, err));
    return done(v, "factor of the features", err);
}

/* Sums of squares of columns become those of heads, which lie in front of them; the weights of
 * columns go to the device, squared. */
static kk_status weigh(solution *v, kk_err *err) {
    const kk_sums *s = v->s;
    const size_t n = (size_t)s->n_out;
    double *weights = kk_calloc(n, sizeof *weights);
    if (!weights) return kk_fail(err, KK_ENOMEM, "no memory for %zu weights", n);
    kk_status st = s->be->read(s->dev, s->squares, 0, v->sums, n * sizeof *v->sums, err);
    for (int32_t i = 0; i < s->shape.n_blocks && st == KK_OK; i++) {
        const kk_theta_block *b = &s->shape.block[i];
        double *from = v->sums + s->column[i];
        v->energy[i] = from;
        for (int32_t h = 0; h < b->n_head; h++) {
            double sum = 0;
            for (int32_t d = 0; d < b->head_dim; d++) sum += from[h * b->head_dim + d];
            from[h] = sum;
        }
        const double w = kk_ridge_block_weight(b, from, s->n, s->weight[b->layer], s->ridge.raw);
        for (int32_t j = 0; j < b->width; j++) weights[s->column[i] + j] = w * w;
    }
    if (st == KK_OK) st = s->be->write(s->dev, s->weights, 0, weights, n * sizeof *weights, err);
    kk_free(weights);
    return st;
}

/* C C^T = L^-1 S L^-T.  S takes the place of X^T X on the device. */
static kk_status explain(solution *v, kk_err *err) {
    kk_sums *s = v->s;
    const int32_t n = s->n_in;
    const size_t bytes = (size_t)n * (size_t)n * sizeof(double);
    KK_TRY(weigh(v, err));
    s->be->buf_free(s->dev, s->xx);
    s->xx = NULL;
    KK_TRY(s->be->buf_new(s->dev, KK_MEM_WORKSPACE, bytes, &s->xx, err));
    const kk_gram_args a = {.sum = s->xx,
                            .a = s->yx,
                            .b = s->yx,
                            .weight = s->weights,
                            .n_rows = s->n_out,
                            .n_a = n,
                            .n_b = n,
                            .doubles = true};
    KK_TRY(s->be->sums->gram(s->dev, &a, err));
    KK_TRY(read_square(v, v->g, err));
    KK_TRY(done(v, "products of the targets", err));
    kk_linalg_solve_lower(v->l, n, false, v->g, n);
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, n, n, 1.0, v->l, n,
                v->g, n);
    KK_TRY(kk_linalg_eigen_top(v->g, n, v->theta->config.rank, v->e, err));
    return done(v, "eigenvectors", err);
}

/* E = sqrt(rows) P^T L^-1, row by row of P^T: from the right, so L itself is what is solved
 * with. */
static void fill_encoder(solution *v) {
    const int32_t n = v->s->n_in, rank = v->theta->config.rank;
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, rank, n,
                sqrt((double)v->s->n), v->l, n, v->e, n);
    float *to = v->theta->params + v->theta->encoder_at[0];
    for (size_t i = 0; i < (size_t)rank * (size_t)n; i++) to[i] = (float)v->e[i];
}

/* D = Y^T X E^T / rows of one block, with the heads' scales; part: [width, n_in], d: [width,
 * rank]. */
static kk_status fill_decoder(solution *v, int32_t i, double *part, double *d, kk_err *err) {
    const kk_sums *s = v->s;
    const kk_theta_block *b = &s->shape.block[i];
    const int32_t n = s->n_in, rank = v->theta->config.rank;
    const size_t row = (size_t)n * sizeof *part;
    KK_TRY(
        s->be->read(s->dev, s->yx, (size_t)s->column[i] * row, part, (size_t)b->width * row, err));
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, b->width, rank, n, 1 / (double)s->n, part,
                n, v->e, n, 0.0, d, rank);
    float *to = v->theta->params + b->at;
    for (int32_t j = 0; j < b->width; j++) {
        const double scale =
            kk_ridge_head_scale(b, v->energy[i][j / b->head_dim], s->n, s->ridge.raw);
        for (int32_t k = 0; k < rank; k++) {
            const size_t at = (size_t)j * (size_t)rank + (size_t)k;
            to[at] = (float)(scale * d[at]);
        }
    }
    return KK_OK;
}

static kk_status fill_decoders(solution *v, kk_err *err) {
    const size_t widest = (size_t)v->s->widest, rank = (size_t)v->theta->config.rank;
    double *part = kk_calloc(widest * (size_t)v->s->n_in, sizeof *part);
    double *d = kk_calloc(widest * rank, sizeof *d);
    kk_status st = part && d ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for decoders");
    for (int32_t i = 0; i < v->s->shape.n_blocks && st == KK_OK; i++)
        st = fill_decoder(v, i, part, d, err);
    kk_free(part);
    kk_free(d);
    return st == KK_OK ? done(v, "decoders", err) : st;
}

kk_status kk_sums_solve(kk_sums *s, kk_theta *theta, const kk_sums_watch *watch, kk_err *err) {
    const size_t n = (size_t)s->n_in, rank = (size_t)theta->config.rank;
    KK_TRY(kk_sums_add(s, err));
    if (!s->n) return kk_fail(err, KK_EINVAL, "there are no rows to train on");
    solution v = {.s = s, .theta = theta, .watch = watch, .begin = kk_now()};
    v.l = kk_calloc(n * n, sizeof *v.l);
    v.g = kk_calloc(n * n, sizeof *v.g);
    v.e = kk_calloc(rank * n, sizeof *v.e);
    v.sums = kk_calloc((size_t)s->n_out, sizeof *v.sums);
    kk_status st = v.l && v.g && v.e && v.sums
                       ? factor(&v, err)
                       : kk_fail(err, KK_ENOMEM, "no memory to solve for %zu features", n);
    if (st == KK_OK) st = explain(&v, err);
    if (st == KK_OK) fill_encoder(&v);
    if (st == KK_OK) st = fill_decoders(&v, err);
    kk_free(v.l);
    kk_free(v.g);
    kk_free(v.e);
    kk_free(v.sums);
    return st;
}
