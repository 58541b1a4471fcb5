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
    double *w, *g;                   /* [n_in, n_in]: W, and C C^T */
    double *e;                       /* [rank, n_in]: eigenvectors, then the encoder */
    double *sums;                    /* [n_out] */
    double *energy[KK_THETA_BLOCKS]; /* [n_head] sums of squares of raw targets, in `sums` */
    kk_buf *white, *half, *encoder, *decoders; /* on the device: W, S W, E, [n_out, rank] */
    int32_t step;
    double begin;
} solution;

static kk_status done(solution *v, const char *what, kk_err *err) {
    const double now = kk_now(), seconds = now - v->begin;
    v->begin = now;
    return v->watch ? v->watch->done(v->watch->user, v->step++, what, seconds, err) : KK_OK;
}

static void drop(const kk_sums *s, kk_buf **b) {
    if (*b) s->be->buf_free(s->dev, *b);
    *b = NULL;
}

/* A new buffer of zeros, in place of what was there. */
static kk_status renew(const kk_sums *s, kk_buf **b, int32_t n, int32_t m, kk_err *err) {
    drop(s, b);
    return s->be->buf_new(s->dev, KK_MEM_WORKSPACE, (size_t)n * (size_t)m * sizeof(double), b, err);
}

static size_t square(const kk_sums *s) { return (size_t)s->n_in * (size_t)s->n_in; }

/* W of X^T X with the ridge. */
static kk_status whiten(solution *v, kk_err *err) {
    kk_sums *s = v->s;
    const size_t n = (size_t)s->n_in, bytes = square(s) * sizeof *v->w;
    double mean = 0;
    drop(s, &s->x);
    drop(s, &s->y);
    drop(s, &s->unit);
    KK_TRY(s->be->read(s->dev, s->xx, 0, v->w, bytes, err));
    for (size_t i = 0; i < n; i++) mean += v->w[i * n + i] / (double)n;
    for (size_t i = 0; i < n; i++) v->w[i * n + i] += s->ridge.lambda * mean;
    KK_TRY(kk_linalg_whitener(v->w, s->n_in, err));
    KK_TRY(renew(s, &v->white, s->n_in, s->n_in, err));
    KK_TRY(s->be->write(s->dev, v->white, 0, v->w, bytes, err));
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

static kk_status multiply(const kk_sums *s, kk_buf *to, const kk_buf *a, const kk_buf *b,
                          kk_err *err) {
    const kk_gram_args g = {.sum = to,
                            .a = a,
                            .b = b,
                            .n_rows = s->n_in,
                            .n_a = s->n_in,
                            .n_b = s->n_in,
                            .doubles = true};
    return s->be->sums->gram(s->dev, &g, err);
}

/* C C^T = W^T (S W).  S takes the place of X^T X on the device, and C C^T that of S. */
static kk_status explain(solution *v, kk_err *err) {
    kk_sums *s = v->s;
    const int32_t n = s->n_in;
    KK_TRY(weigh(v, err));
    KK_TRY(renew(s, &s->xx, n, n, err));
    const kk_gram_args all = {.sum = s->xx,
                              .a = s->yx,
                              .b = s->yx,
                              .weight = s->weights,
                              .n_rows = s->n_out,
                              .n_a = n,
                              .n_b = n,
                              .doubles = true};
    KK_TRY(s->be->sums->gram(s->dev, &all, err));
    KK_TRY(renew(s, &v->half, n, n, err));
    KK_TRY(multiply(s, v->half, s->xx, v->white, err)); /* S is symmetric */
    KK_TRY(renew(s, &s->xx, n, n, err));
    KK_TRY(multiply(s, s->xx, v->white, v->half, err));
    KK_TRY(s->be->read(s->dev, s->xx, 0, v->g, square(s) * sizeof *v->g, err));
    drop(s, &v->half);
    return done(v, "products of the targets", err);
}

/* E = sqrt(rows) P^T W^T. */
static kk_status encode(solution *v, kk_err *err) {
    kk_sums *s = v->s;
    const int32_t n = s->n_in, rank = v->theta->config.rank;
    const size_t values = (size_t)rank * (size_t)n;
    KK_TRY(kk_linalg_eigen_top(v->g, n, rank, v->e, err));
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasUpper, CblasTrans, CblasNonUnit, rank, n,
                sqrt((double)s->n), v->w, n, v->e, n);
    float *to = v->theta->params + v->theta->encoder_at[0];
    for (size_t i = 0; i < values; i++) to[i] = (float)v->e[i];
    KK_TRY(renew(s, &v->encoder, rank, n, err));
    KK_TRY(s->be->write(s->dev, v->encoder, 0, v->e, values * sizeof *v->e, err));
    return done(v, "eigenvectors", err);
}

/* A block of Y^T X E^T becomes its decoder, divided by the rows, with the heads' scales. */
static kk_status fill_decoder(solution *v, int32_t i, double *d, kk_err *err) {
    const kk_sums *s = v->s;
    const kk_theta_block *b = &s->shape.block[i];
    const size_t rank = (size_t)v->theta->config.rank, row = rank * sizeof *d;
    float *to = v->theta->params + b->at;
    KK_TRY(s->be->read(s->dev, v->decoders, (size_t)s->column[i] * row, d, (size_t)b->width * row,
                       err));
    for (int32_t j = 0; j < b->width; j++) {
        const double energy = v->energy[i][j / b->head_dim];
        const double scale = kk_ridge_head_scale(b, energy, s->n, s->ridge.raw) / (double)s->n;
        for (size_t k = 0; k < rank; k++) {
            const size_t at = (size_t)j * rank + k;
            to[at] = (float)(scale * d[at]);
        }
    }
    return KK_OK;
}

static kk_status decode(solution *v, kk_err *err) {
    kk_sums *s = v->s;
    const int32_t rank = v->theta->config.rank;
    KK_TRY(renew(s, &v->decoders, s->n_out, rank, err));
    const kk_gram_args g = {.sum = v->decoders,
                            .a = s->yx,
                            .b = v->encoder,
                            .n_rows = s->n_in,
                            .n_a = s->n_out,
                            .n_b = rank,
                            .doubles = true,
                            .across = true};
    KK_TRY(s->be->sums->gram(s->dev, &g, err));
    double *d = kk_calloc((size_t)s->widest * (size_t)rank, sizeof *d);
    if (!d) return kk_fail(err, KK_ENOMEM, "no memory for decoders");
    kk_status st = KK_OK;
    for (int32_t i = 0; i < s->shape.n_blocks && st == KK_OK; i++) st = fill_decoder(v, i, d, err);
    kk_free(d);
    return st == KK_OK ? done(v, "decoders", err) : st;
}

static kk_status solve(solution *v, kk_err *err) {
    const size_t n = (size_t)v->s->n_in, rank = (size_t)v->theta->config.rank;
    v->w = kk_calloc(n * n, sizeof *v->w);
    v->g = kk_calloc(n * n, sizeof *v->g);
    v->e = kk_calloc(rank * n, sizeof *v->e);
    v->sums = kk_calloc((size_t)v->s->n_out, sizeof *v->sums);
    if (!v->w || !v->g || !v->e || !v->sums)
        return kk_fail(err, KK_ENOMEM, "no memory to solve for %zu features", n);
    KK_TRY(whiten(v, err));
    KK_TRY(explain(v, err));
    KK_TRY(encode(v, err));
    return decode(v, err);
}

kk_status kk_sums_solve(kk_sums *s, kk_theta *theta, const kk_sums_watch *watch, kk_err *err) {
    KK_TRY(kk_sums_add(s, err));
    if (!s->n) return kk_fail(err, KK_EINVAL, "there are no rows to train on");
    solution v = {.s = s, .theta = theta, .watch = watch, .begin = kk_now()};
    const kk_status st = solve(&v, err);
    drop(s, &v.white);
    drop(s, &v.half);
    drop(s, &v.encoder);
    drop(s, &v.decoders);
    kk_free(v.w);
    kk_free(v.g);
    kk_free(v.e);
    kk_free(v.sums);
    return st;
}
