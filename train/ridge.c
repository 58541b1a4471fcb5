/* ridge.c - see ridge.h. */
#include "train/ridge.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "train/linalg.h"

enum { PIECE = 512 }; /* rows converted to double at a time */

const double kk_ridge_lambda = 1e-5;

/* One encoder with the blocks it serves. */
typedef struct {
    double *xx; /* [n_in, n_in], its upper half */
    double *xy; /* [n_in, n_out] */
    int32_t n_out;
} path;

struct kk_ridge {
    kk_ridge_opts opts;
    double weight[KK_MAX_LAYERS];    /* by layer */
    kk_theta shape;                  /* without parameters */
    int32_t column[KK_THETA_BLOCKS]; /* where a block begins in its path's xy */
    path path[2];
    double *energy[KK_THETA_BLOCKS]; /* [n_head] sums of squares of the raw targets */
    double *x, *y;                   /* pieces: [PIECE, n_in], [PIECE, n_out] */
    int64_t rows;
};

static kk_status take_scratch(kk_ridge *r, kk_err *err) {
    const size_t in = (size_t)r->shape.config.n_in;
    size_t most = 0;
    bool all = true;
    for (int32_t e = 0; e < r->shape.n_encoders && all; e++) {
        path *p = &r->path[e];
        p->xx = kk_calloc(in * in, sizeof *p->xx);
        p->xy = kk_calloc(in * (size_t)p->n_out, sizeof *p->xy);
        most = (size_t)p->n_out > most ? (size_t)p->n_out : most;
        all = p->xx && p->xy;
    }
    for (int32_t i = 0; i < r->shape.n_blocks && all; i++) {
        r->energy[i] = kk_calloc((size_t)r->shape.block[i].n_head, sizeof *r->energy[i]);
        all = r->energy[i] != NULL;
    }
    r->x = kk_calloc(PIECE * in, sizeof *r->x);
    r->y = kk_calloc(PIECE * most, sizeof *r->y);
    if (all && r->x && r->y) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory to add up %zu features", in);
}

kk_status kk_ridge_new(kk_ridge **out, const kk_theta *shape, const kk_ridge_opts *opts,
                       kk_err *err) {
    *out = NULL;
    kk_ridge *r = kk_zalloc(sizeof *r);
    if (!r) return kk_fail(err, KK_ENOMEM, "no memory for a regression");
    r->opts = *opts;
    if (r->opts.lambda <= 0) r->opts.lambda = kk_ridge_lambda;
    for (int32_t i = 0; i < shape->config.n_layer; i++)
        r->weight[i] = opts->layer_weight ? opts->layer_weight[i] : 1;
    r->opts.layer_weight = NULL; /* the caller's */
    r->shape = *shape;
    r->shape.params = NULL;
    for (int32_t i = 0; i < shape->n_blocks; i++) {
        path *p = &r->path[shape->block[i].encoder];
        r->column[i] = p->n_out;
        p->n_out += shape->block[i].width;
    }
    const kk_status st = take_scratch(r, err);
    if (st != KK_OK) {
        kk_ridge_free(r);
        return st;
    }
    *out = r;
    return KK_OK;
}

void kk_ridge_free(kk_ridge *r) {
    if (!r) return;
    for (int e = 0; e < 2; e++) {
        kk_free(r->path[e].xx);
        kk_free(r->path[e].xy);
    }
    for (int32_t i = 0; i < KK_THETA_BLOCKS; i++) kk_free(r->energy[i]);
    kk_free(r->x);
    kk_free(r->y);
    kk_free(r);
}

int64_t kk_ridge_rows(const kk_ridge *r) { return r->rows; }

/* ---- adding up --------------------------------------------------------------------------- */

/* A block's targets of n rows, normalised head by head unless raw, into columns of y. */
static void fill_targets(kk_ridge *r, int32_t i, const float *from, int32_t n, double *y,
                         int32_t stride) {
    const kk_theta_block *b = &r->shape.block[i];
    for (int32_t row = 0; row < n; row++)
        for (int32_t h = 0; h < b->n_head; h++) {
            const size_t at = (size_t)row * (size_t)b->width + (size_t)h * (size_t)b->head_dim;
            double *to = y + (size_t)row * (size_t)stride + (size_t)h * (size_t)b->head_dim;
            double sum = 0, scale = 1;
            for (int32_t d = 0; d < b->head_dim; d++)
                sum += (double)from[at + (size_t)d] * (double)from[at + (size_t)d];
            r->energy[i][h] += sum;
            if (!r->opts.raw) scale = 1 / sqrt(sum / b->head_dim + (double)r->opts.eps);
            for (int32_t d = 0; d < b->head_dim; d++) to[d] = scale * (double)from[at + (size_t)d];
        }
}

static void add_piece(kk_ridge *r, const kk_captured *rows, int32_t first, int32_t n, int32_t e) {
    const path *p = &r->path[e];
    const int32_t in = r->shape.config.n_in;
    const float *x = rows->x[e] + (size_t)first * (size_t)in;
    for (size_t i = 0; i < (size_t)n * (size_t)in; i++) r->x[i] = (double)x[i];
    for (int32_t i = 0; i < r->shape.n_blocks; i++) {
        const kk_theta_block *b = &r->shape.block[i];
        if (b->encoder != e) continue;
        fill_targets(r, i, kk_theta_target(b, rows) + (size_t)first * (size_t)b->width, n,
                     r->y + r->column[i], p->n_out);
    }
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, in, n, 1.0, r->x, in, 1.0, p->xx, in);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, in, p->n_out, n, 1.0, r->x, in, r->y,
                p->n_out, 1.0, p->xy, p->n_out);
}

void kk_ridge_add(kk_ridge *r, const kk_captured *rows) {
    for (int32_t first = 0; first < rows->n_rows; first += PIECE) {
        const int32_t left = rows->n_rows - first, n = left < PIECE ? left : PIECE;
        for (int32_t e = 0; e < r->shape.n_encoders; e++) add_piece(r, rows, first, n, e);
    }
    r->rows += rows->n_rows;
}

/* ---- solving ----------------------------------------------------------------------------- */

double kk_ridge_block_weight(const kk_theta_block *b, const double *energy, int64_t rows,
                             double layer_weight, bool raw) {
    double sum = 0;
    for (int32_t h = 0; h < b->n_head; h++) sum += energy[h];
    if (!raw) sum = (double)rows * b->width;
    return sum > 0 ? sqrt((b->both ? 2.0 : 1.0) * layer_weight * (double)rows / sum) : 0;
}

double kk_ridge_head_scale(const kk_theta_block *b, double energy, int64_t rows, bool raw) {
    return raw ? 1 : sqrt(energy / ((double)rows * b->head_dim));
}

static double block_weight(const kk_ridge *r, int32_t i) {
    const kk_theta_block *b = &r->shape.block[i];
    return kk_ridge_block_weight(b, r->energy[i], r->rows, r->weight[b->layer], r->opts.raw);
}

static double head_scale(const kk_ridge *r, int32_t i, int32_t head) {
    return kk_ridge_head_scale(&r->shape.block[i], r->energy[i][head], r->rows, r->opts.raw);
}

/* X^T X with its lower half and the ridge. */
static double *regularised(const kk_ridge *r, const path *p) {
    const size_t n = (size_t)r->shape.config.n_in;
    double *a = kk_malloc(n * n * sizeof *a), mean = 0;
    if (!a) return NULL;
    for (size_t i = 0; i < n; i++) mean += p->xx[i * n + i] / (double)n;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) a[j * n + i] = a[i * n + j] = p->xx[i * n + j];
    for (size_t i = 0; i < n; i++) a[i * n + i] += r->opts.lambda * mean;
    return a;
}

/* C = L^-1 X^T Y W */
static double *whitened(const kk_ridge *r, int32_t e, const double *l) {
    const path *p = &r->path[e];
    const size_t n = (size_t)r->shape.config.n_in, m = (size_t)p->n_out;
    double *c = kk_malloc(n * m * sizeof *c);
    if (!c) return NULL;
    memcpy(c, p->xy, n * m * sizeof *c);
    kk_linalg_solve_lower(l, r->shape.config.n_in, false, c, p->n_out);
    for (int32_t i = 0; i < r->shape.n_blocks; i++) {
        const kk_theta_block *b = &r->shape.block[i];
        if (b->encoder != e) continue;
        for (size_t row = 0; row < n; row++)
            cblas_dscal(b->width, block_weight(r, i), c + row * m + (size_t)r->column[i], 1);
    }
    return c;
}

/* D_i^T = P^T C_i W^-1 / sqrt(n), with the heads' scales. */
static void fill_decoder(const kk_ridge *r, int32_t i, const double *pc, kk_theta *t) {
    const kk_theta_block *b = &t->block[i];
    const size_t rank = (size_t)t->config.rank, m = (size_t)r->path[b->encoder].n_out;
    const double weight = block_weight(r, i), n = sqrt((double)r->rows);
    float *d = t->params + b->at;
    for (int32_t j = 0; j < b->width; j++) {
        const double scale = weight > 0 ? head_scale(r, i, j / b->head_dim) / (weight * n) : 0;
        for (size_t k = 0; k < rank; k++)
            d[(size_t)j * rank + k] = (float)(scale * pc[k * m + (size_t)(r->column[i] + j)]);
    }
}

/* p: the leading eigenvectors as rows [rank, n_in], which become the encoder. */
static kk_status fill(const kk_ridge *r, int32_t e, const double *l, const double *c, double *p,
                      kk_theta *t, kk_err *err) {
    const int32_t n = t->config.n_in, rank = t->config.rank, m = r->path[e].n_out;
    double *pc = kk_malloc((size_t)rank * (size_t)m * sizeof *pc);
    if (!pc) return kk_fail(err, KK_ENOMEM, "no memory for decoders of rank %d", rank);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rank, m, n, 1.0, p, n, c, m, 0.0, pc, m);
    for (int32_t i = 0; i < t->n_blocks; i++)
        if (t->block[i].encoder == e) fill_decoder(r, i, pc, t);
    kk_free(pc);
    /* P^T L^-1, row by row of P^T: from the right, so L itself is what is solved with. */
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, rank, n,
                sqrt((double)r->rows), l, n, p, n);
    float *encoder = t->params + t->encoder_at[e];
    for (size_t i = 0; i < (size_t)rank * (size_t)n; i++) encoder[i] = (float)p[i];
    return KK_OK;
}

static kk_status solve_path(const kk_ridge *r, int32_t e, kk_theta *t, kk_err *err) {
    const int32_t n = t->config.n_in, m = r->path[e].n_out;
    double *l = regularised(r, &r->path[e]), *c = NULL;
    double *g = kk_calloc((size_t)n * (size_t)n, sizeof *g);
    double *values = kk_calloc((size_t)n, sizeof *values);
    kk_status st = l && g && values ? kk_linalg_cholesky(l, n, err) : KK_ENOMEM;
    if (st == KK_OK) {
        c = whitened(r, e, l);
        st = c ? KK_OK : KK_ENOMEM;
    }
    if (st == KK_OK) {
        cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, m, 1.0, c, m, 0.0, g, n);
        st = kk_linalg_eigen(g, n, values, err);
    }
    if (st == KK_OK) st = fill(r, e, l, c, g, t, err);
    if (st == KK_ENOMEM) kk_fail(err, KK_ENOMEM, "no memory to solve for %d features", n);
    kk_free(l);
    kk_free(c);
    kk_free(g);
    kk_free(values);
    return st;
}

kk_status kk_ridge_solve(const kk_ridge *r, kk_theta *theta, kk_err *err) {
    if (!r->rows) return kk_fail(err, KK_EINVAL, "there are no rows to train on");
    for (int32_t e = 0; e < theta->n_encoders; e++) KK_TRY(solve_path(r, e, theta, err));
    return KK_OK;
}
