/* losses_body.h - the losses of losses.h over one type of numbers.
 *
 * The file that includes it defines REAL, REAL_GEMM (a cblas product over it), REAL_EXP and STEP,
 * the name of the function it wants.  Sums over many values are taken in double. */
#include <math.h>
#include <string.h>

/* ---- products ---------------------------------------------------------------------------- */

/* y [n, m] = x [n, k] w^T, w [m, k]; added when `add`.  Row strides are given. */
typedef struct {
    REAL *y;
    const REAL *x, *w;
    int32_t n, m, k, y_stride, x_stride, w_stride;
    bool add;
} product;

static void times_transposed(product p) {
    REAL_GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, p.n, p.m, p.k, 1, p.x, p.x_stride, p.w,
              p.w_stride, p.add ? 1 : 0, p.y, p.y_stride);
}

/* y [n, m] = x [n, k] w, w [k, m] */
static void times(product p) {
    REAL_GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, p.n, p.m, p.k, 1, p.x, p.x_stride, p.w,
              p.w_stride, p.add ? 1 : 0, p.y, p.y_stride);
}

/* y [n, m] = x^T w, x [k, n], w [k, m] */
static void transposed_times(product p) {
    REAL_GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, p.n, p.m, p.k, 1, p.x, p.x_stride, p.w,
              p.w_stride, p.add ? 1 : 0, p.y, p.y_stride);
}

/* ---- vectors ----------------------------------------------------------------------------- */

static double squares(const REAL *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* y = x / rms(x) * w, w NULL: 1 */
static void norm_head(REAL *y, const REAL *x, const float *w, int32_t n, double eps) {
    const double inv = 1 / sqrt(squares(x, n) / n + eps);
    for (int32_t i = 0; i < n; i++) y[i] = (REAL)((double)x[i] * inv * (w ? (double)w[i] : 1.0));
}

/* dx += dy * d(rms_norm)/dx */
static void norm_head_back(REAL *dx, const REAL *dy, const REAL *x, const float *w, int32_t n,
                           double eps) {
    const double inv = 1 / sqrt(squares(x, n) / n + eps);
    double along = 0;
    for (int32_t i = 0; i < n; i++)
        along += (double)x[i] * (double)dy[i] * (w ? (double)w[i] : 1.0);
    along *= inv * inv / n;
    for (int32_t i = 0; i < n; i++)
        dx[i] += (REAL)(inv * ((double)dy[i] * (w ? (double)w[i] : 1.0) - (double)x[i] * along));
}

/* Rotates pairs (i, i + n/2) by the angles of a row; `back` rotates the other way. */
static void rotate_head(REAL *x, const double *cs, int32_t n, int32_t n_rot, bool back) {
    for (int32_t i = 0; i < n_rot; i++) {
        const double a = (double)x[i], b = (double)x[i + n / 2];
        const double c = cs[i], s = back ? -cs[n_rot + i] : cs[n_rot + i];
        x[i] = (REAL)(a * c - b * s);
        x[i + n / 2] = (REAL)(a * s + b * c);
    }
}

/* 1 - cos of w p and w t (w NULL: 1), its gradient times `g` added to dp. */
static double direction(const REAL *p, const float *t, const float *w, int32_t n, double g,
                        REAL *dp) {
    double pp = 0, tt = 0, pt = 0;
    for (int32_t i = 0; i < n; i++) {
        const double u = w ? (double)w[i] * (double)w[i] : 1.0;
        pp += u * (double)p[i] * (double)p[i];
        tt += u * (double)t[i] * (double)t[i];
        pt += u * (double)p[i] * (double)t[i];
    }
    const double size = sqrt(pp) * sqrt(tt);
    if (size < 1e-8) return 1; /* a zero vector has neither direction nor gradient */
    const double c = pt / size;
    for (int32_t i = 0; i < n; i++) {
        const double u = w ? (double)w[i] * (double)w[i] : 1.0;
        dp[i] -= (REAL)(g * u * ((double)t[i] / size - c * (double)p[i] / pp));
    }
    return 1 - c;
}

/* (|p| - |t|)^2, its gradient times `g` added to dp. */
static double magnitude(const REAL *p, const float *t, int32_t n, double g, REAL *dp) {
    double tt = 0;
    for (int32_t i = 0; i < n; i++) tt += (double)t[i] * (double)t[i];
    const double size = sqrt(squares(p, n)), d = size - sqrt(tt);
    if (size > 0)
        for (int32_t i = 0; i < n; i++) dp[i] += (REAL)(2 * g * d * (double)p[i] / size);
    return d * d;
}

/* ---- terms of one block ------------------------------------------------------------------ */

/* Rebuilt rows of a block beside the true ones: [n][width]. */
typedef struct {
    const kk_theta_block *block;
    const REAL *p;
    const float *t;
    REAL *dp;
    int32_t n;
} pair;

static double target_mean_square(const pair *r, double *mean) {
    const int64_t n = (int64_t)r->n * r->block->width;
    double sum = 0, squared = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)r->t[i];
        squared += (double)r->t[i] * (double)r->t[i];
    }
    if (mean) *mean = sum / (double)n;
    return squared / (double)n;
}

/* Each term gives its value, and adds its gradient times g. */
static double mse_term(const pair *r, double g) {
    const int64_t n = (int64_t)r->n * r->block->width;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)r->p[i] - (double)r->t[i];
        sum += d * d;
        r->dp[i] += (REAL)(2 * g * d / (double)n);
    }
    return sum / (double)n;
}

static double cos_term(const pair *r, const float *w, double g) {
    const int64_t n = (int64_t)r->n * r->block->n_head;
    const int32_t dim = r->block->head_dim;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += direction(r->p + i * dim, r->t + i * dim, w, dim, g / (double)n, r->dp + i * dim);
    return sum / (double)n;
}

static double mag_term(const pair *r, double g) {
    const int64_t n = (int64_t)r->n * r->block->n_head;
    const int32_t dim = r->block->head_dim;
    const double energy = target_mean_square(r, NULL) * dim, floor = energy > 1e-6 ? energy : 1e-6;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += magnitude(r->p + i * dim, r->t + i * dim, dim, g / (floor * (double)n),
                         r->dp + i * dim);
    return sum / ((double)n * floor);
}

static double var_term(const pair *r, double g) {
    double mean;
    const double square = target_mean_square(r, &mean), var = square - mean * mean;
    const double floor = var > 1e-6 ? var : 1e-6;
    return mse_term(r, g / floor) / floor;
}

/* ---- the step at hand -------------------------------------------------------------------- */

typedef struct {
    const kk_loss_setup *s;
    const kk_loss_batch *b;
    const REAL *params;
    REAL *grad;
    kk_loss_result *out;
    double weight[KK_LOSS_PARTS];
    int32_t n_used;     /* layers the loss is the mean of */
    int32_t n;          /* rows that are rebuilt */
    int32_t first;      /* attention: the first of them */
    REAL *x[2];         /* [n, n_in] */
    REAL *z[2], *dz[2]; /* [n, rank] */
    REAL *p, *dp;       /* [n, widest block]: one block at a time */
} step;

static bool used(const kk_loss_setup *s, int32_t layer) {
    return s->shape->v_block[s->model->layer[layer].kv_source] >= 0 && !s->skip[layer];
}

static REAL *take(size_t rows, size_t width) { return kk_calloc(rows * width + 1, sizeof(REAL)); }

static bool take_latents(step *t) {
    const kk_theta *th = t->s->shape;
    const size_t n = (size_t)t->n, rank = (size_t)th->config.rank;
    size_t widest = 0;
    bool all = true;
    for (int32_t i = 0; i < th->n_blocks; i++)
        widest = (size_t)th->block[i].width > widest ? (size_t)th->block[i].width : widest;
    for (int32_t e = 0; e < th->n_encoders; e++) {
        t->x[e] = take(n, (size_t)th->config.n_in);
        t->z[e] = take(n, rank);
        t->dz[e] = take(n, rank);
        all = all && t->x[e] && t->z[e] && t->dz[e];
    }
    t->p = take(n, widest);
    t->dp = take(n, widest);
    return all && t->p && t->dp;
}

static void give_latents(step *t) {
    for (int e = 0; e < 2; e++) {
        kk_free(t->x[e]);
        kk_free(t->z[e]);
        kk_free(t->dz[e]);
    }
    kk_free(t->p);
    kk_free(t->dp);
}

/* z = E x of rows first, first + 1, ..., or of the rows listed. */
static void encode(step *t, const int32_t *rows) {
    const kk_projection_config *c = &t->s->shape->config;
    const size_t in = (size_t)c->n_in;
    for (int32_t e = 0; e < t->s->shape->n_encoders; e++) {
        for (int32_t r = 0; r < t->n; r++) {
            const float *from = t->b->rows->x[e] + (size_t)(rows ? rows[r] : t->first + r) * in;
            for (size_t i = 0; i < in; i++) t->x[e][(size_t)r * in + i] = (REAL)from[i];
        }
        times_transposed((product){.y = t->z[e],
                                   .x = t->x[e],
                                   .w = t->params + t->s->shape->encoder_at[e],
                                   .n = t->n,
                                   .m = c->rank,
                                   .k = c->n_in,
                                   .y_stride = c->rank,
                                   .x_stride = c->n_in,
                                   .w_stride = c->n_in});
    }
}

/* dE = dz^T x */
static void encode_back(step *t) {
    const kk_projection_config *c = &t->s->shape->config;
    for (int32_t e = 0; e < t->s->shape->n_encoders; e++)
        transposed_times((product){.y = t->grad + t->s->shape->encoder_at[e],
                                   .x = t->dz[e],
                                   .w = t->x[e],
                                   .n = c->rank,
                                   .m = c->n_in,
                                   .k = t->n,
                                   .y_stride = c->n_in,
                                   .x_stride = c->rank,
                                   .w_stride = c->n_in,
                                   .add = true});
}

/* p = D z */
static void decode(const step *t, const kk_theta_block *b, REAL *p) {
    const int32_t rank = t->s->shape->config.rank;
    times_transposed((product){.y = p,
                               .x = t->z[b->encoder],
                               .w = t->params + b->at,
                               .n = t->n,
                               .m = b->width,
                               .k = rank,
                               .y_stride = b->width,
                               .x_stride = rank,
                               .w_stride = rank});
}

/* dD = dp^T z, dz += dp D */
static void decode_back(const step *t, const kk_theta_block *b, const REAL *dp) {
    const int32_t rank = t->s->shape->config.rank;
    transposed_times((product){.y = t->grad + b->at,
                               .x = dp,
                               .w = t->z[b->encoder],
                               .n = b->width,
                               .m = rank,
                               .k = t->n,
                               .y_stride = rank,
                               .x_stride = b->width,
                               .w_stride = rank,
                               .add = true});
    times((product){.y = t->dz[b->encoder],
                    .x = dp,
                    .w = t->params + b->at,
                    .n = t->n,
                    .m = rank,
                    .k = b->width,
                    .y_stride = rank,
                    .x_stride = b->width,
                    .w_stride = rank,
                    .add = true});
}

/* Adds a part's value of one layer. */
static void count(step *t, int32_t layer, kk_loss_part part, double value) {
    t->out->part[part] += value / t->n_used;
    t->out->layer[layer] += t->weight[part] * value / t->n_used;
}

/* ---- losses of rows ---------------------------------------------------------------------- */

/* The terms of K, or of V, of a layer. */
static void row_terms(step *t, const pair *r, bool value) {
    const double *w = t->weight, n = t->n_used;
    const int32_t layer = r->block->layer;
    const kk_loss_part mse = value ? KK_PART_MSE_V : KK_PART_MSE_K;
    const kk_loss_part cosine = value ? KK_PART_COS_V : KK_PART_COS_K;
    const kk_loss_part mag = value ? KK_PART_MAG_V : KK_PART_MAG_K;
    const kk_loss_part var = value ? KK_PART_VAR_V : KK_PART_VAR_K;
    if (w[mse] > 0) count(t, layer, mse, mse_term(r, w[mse] / n));
    if (w[cosine] > 0) count(t, layer, cosine, cos_term(r, NULL, w[cosine] / n));
    if (w[mag] > 0) count(t, layer, mag, mag_term(r, w[mag] / n));
    if (w[var] > 0) count(t, layer, var, var_term(r, w[var] / n));
}

static void row_block(step *t, const kk_theta_block *b, float *targets) {
    const float *from = kk_theta_target(b, t->b->rows);
    const size_t width = (size_t)b->width;
    for (int32_t r = 0; r < t->n; r++)
        memcpy(targets + (size_t)r * width, from + (size_t)t->b->at[r] * width,
               width * sizeof *targets);
    decode(t, b, t->p);
    memset(t->dp, 0, (size_t)t->n * width * sizeof *t->dp);
    const pair r = {b, t->p, targets, t->dp, t->n};
    if (!b->value || b->both) row_terms(t, &r, false);
    if (b->value) row_terms(t, &r, true);
    decode_back(t, b, t->dp);
}

static kk_status row_loss(step *t, kk_err *err) {
    const kk_theta *th = t->s->shape;
    size_t widest = 0;
    t->n = t->b->n;
    for (int32_t i = 0; i < th->n_blocks; i++)
        widest = (size_t)th->block[i].width > widest ? (size_t)th->block[i].width : widest;
    float *targets = kk_calloc((size_t)t->n * widest + 1, sizeof *targets);
    const bool ready = targets && take_latents(t);
    if (ready) {
        encode(t, t->b->at);
        for (int32_t i = 0; i < th->n_blocks; i++)
            if (used(t->s, th->block[i].layer)) row_block(t, &th->block[i], targets);
        encode_back(t);
    }
    give_latents(t);
    kk_free(targets);
    return ready ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for a loss over %d rows", t->b->n);
}

#include "train/attention_body.h"

/* ---- all of it --------------------------------------------------------------------------- */

kk_status STEP(const kk_loss_setup *s, const kk_loss_batch *b, const REAL *params, REAL *grad,
               kk_loss_result *out, kk_err *err) {
    step t = {.s = s, .b = b, .params = params, .grad = grad, .out = out};
    memset(out, 0, sizeof *out);
    kk_loss_weights(s, t.weight);
    for (int32_t i = 0; i < s->model->n_layer; i++)
        t.n_used += used(s, i) && (kk_loss_attends(s->kind) || s->shape->v_block[i] >= 0);
    if (b->n < 1 || !t.n_used)
        return kk_fail(err, KK_EINVAL, "a loss over %d places of %d layers", b->n, t.n_used);
    KK_TRY(kk_loss_attends(s->kind) ? attention_loss(&t, err) : row_loss(&t, err));
    for (int p = 0; p < KK_LOSS_PARTS; p++) out->loss += t.weight[p] * out->part[p];
    return KK_OK;
}
