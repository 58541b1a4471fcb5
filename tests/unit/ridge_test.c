/* ridge_test.c - the closed form is what it says: exact where it can be, the best of its rank where
 * not, and fair to its blocks.  No model: rows are made up. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/fit.h"
#include "train/linalg.h"
#include "train/ridge.h"

enum { ROWS = 300, IN = 10, HEADS = 2, DIM = 4, WIDTH = HEADS * DIM };

static uint64_t state = 88172645463325252u;
static float draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)((double)(state >> 11) / (double)(1ull << 53) * 2 - 1);
}

/* Two layers, the second with K = V. */
static kk_projection_config config_of(int32_t rank, bool joint) {
    kk_projection_config c = {.source = joint ? KK_SOURCE_TAPS : KK_SOURCE_DRAFTER_KV,
                              .n_in = IN,
                              .rank = rank,
                              .joint = joint,
                              .n_layer = 2,
                              .hidden = 16};
    for (int i = 0; i < 2; i++) {
        c.layer[i].restored = true;
        c.layer[i].k_eq_v = i == 1;
        c.layer[i].n_kv_head = HEADS;
        c.layer[i].head_dim = DIM;
    }
    return c;
}

static float *some(size_t n) {
    float *x = kk_calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = draw();
    return x;
}

/* y = map x, of the given rank, and noise. */
static float *targets(const float *x, int rank, float noise) {
    float *e = some((size_t)rank * IN), *d = some((size_t)rank * WIDTH), *y = some(ROWS * WIDTH);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < WIDTH; o++) {
            float sum = 0;
            for (int k = 0; k < rank; k++)
                for (int i = 0; i < IN; i++) sum += d[o * rank + k] * e[k * IN + i] * x[r * IN + i];
            y[r * WIDTH + o] = sum + noise * y[r * WIDTH + o];
        }
    kk_free(e);
    kk_free(d);
    return y;
}

static kk_captured make_rows(int rank, float noise) {
    kk_captured c = {.n_rows = ROWS, .n_in = IN};
    c.x[0] = some(ROWS * IN);
    c.x[1] = some(ROWS * IN);
    c.k[0] = targets(c.x[0], rank, noise);
    c.v[0] = targets(c.x[0], rank, noise);
    c.k[1] = targets(c.x[0], rank, noise);
    return c;
}

static kk_theta solve(const kk_captured *rows, int32_t rank, bool joint, const kk_ridge_opts *how) {
    const kk_projection_config c = config_of(rank, joint);
    kk_theta t;
    kk_ridge *r;
    kk_err err;
    assert_int_equal(kk_theta_new(&t, &c, &err), KK_OK);
    assert_int_equal(kk_ridge_new(&r, &t, how, &err), KK_OK);
    kk_ridge_add(r, rows);
    assert_int_equal(kk_ridge_solve(r, &t, &err), KK_OK);
    kk_ridge_free(r);
    return t;
}

static double worst(const kk_theta *t, const kk_captured *rows, bool normed_rows) {
    kk_fit f = {0};
    double most = 0;
    assert_int_equal(kk_fit_add(&f, t, rows, 1e-6f, NULL), KK_OK);
    for (int32_t i = 0; i < t->n_blocks; i++) {
        const double e = normed_rows ? kk_fit_normed(&f.block[i]) : kk_fit_raw(&f.block[i]);
        most = e > most ? e : most;
    }
    return most;
}

static const kk_ridge_opts raw = {.lambda = 1e-12, .eps = 1e-6f, .raw = true};

/* Targets of rank 2 each lie in a joint latent of 6, and in none of 5. */
static void test_exact(void **unused) {
    kk_captured rows = make_rows(2, 0);
    (void)unused;
    kk_theta six = solve(&rows, 6, true, &raw), five = solve(&rows, 5, true, &raw);
    assert_true(worst(&six, &rows, false) < 1e-9 && worst(&six, &rows, true) < 1e-9);
    assert_true(worst(&five, &rows, false) > 1e-4);
    kk_theta_free(&six);
    kk_theta_free(&five);
    kk_captured_free(&rows);
}

/* z of a row. */
static void latent(const kk_theta *t, const float *x, double *z) {
    for (int k = 0; k < t->config.rank; k++) {
        z[k] = 0;
        for (int i = 0; i < IN; i++)
            z[k] += (double)t->params[t->encoder_at[0] + (size_t)(k * IN + i)] * (double)x[i];
    }
}

/* Latents have unit mean square, no products among them, and do not depend on the rank asked for:
 * a smaller one has the first of them. */
static void test_latents(void **unused) {
    kk_captured rows = make_rows(4, 0.3f);
    (void)unused;
    kk_theta t = solve(&rows, 7, true, &raw), few = solve(&rows, 3, true, &raw);
    double sum[7][7] = {{0}}, z[7], size = 1e300;
    for (int r = 0; r < ROWS; r++) {
        latent(&t, rows.x[0] + r * IN, z);
        for (int a = 0; a < 7; a++)
            for (int b = 0; b < 7; b++) sum[a][b] += z[a] * z[b] / ROWS;
    }
    for (int a = 0; a < 7; a++)
        for (int b = 0; b < 7; b++) assert_true(fabs(sum[a][b] - (a == b)) < 1e-4);
    for (int i = 0; i < 3 * IN; i++)
        assert_true(fabsf(t.params[t.encoder_at[0] + (size_t)i] -
                          few.params[few.encoder_at[0] + (size_t)i]) < 1e-4f);
    for (int k = 0; k < 7; k++) { /* what a component carries falls; blocks here are much alike */
        double carried = 0;
        for (size_t p = t.block[0].at; p < t.n_params; p++)
            if ((p - t.block[0].at) % 7 == (size_t)k)
                carried += (double)t.params[p] * (double)t.params[p];
        assert_true(carried < 1.3 * size);
        size = carried;
    }
    kk_theta_free(&t);
    kk_theta_free(&few);
    kk_captured_free(&rows);
}

/* What the solution minimises: squared errors, each block by its own energy, a raw key twice. */
static double objective(const kk_theta *t, const kk_captured *rows) {
    kk_fit f = {0};
    double sum = 0;
    assert_int_equal(kk_fit_add(&f, t, rows, 1e-6f, NULL), KK_OK);
    for (int32_t i = 0; i < t->n_blocks; i++)
        sum += (t->block[i].both ? 2 : 1) * kk_fit_raw(&f.block[i]);
    return sum;
}

/* No step from it, small or large, in any direction, makes it better. */
static void test_best(void **unused) {
    kk_captured rows = make_rows(4, 0.3f);
    (void)unused;
    kk_theta t = solve(&rows, 3, true, &raw);
    const double best = objective(&t, &rows);
    float *keep = calloc(t.n_params, sizeof *keep);
    memcpy(keep, t.params, t.n_params * sizeof *keep);
    for (int trial = 0; trial < 200; trial++) {
        const float step = trial % 2 ? 0.1f : 0.003f;
        for (size_t i = 0; i < t.n_params; i++)
            t.params[i] = keep[i] * (1 + step * draw()) + 0.1f * step * draw();
        assert_true(objective(&t, &rows) > best - 1e-9);
    }
    free(keep);
    kk_theta_free(&t);
    kk_captured_free(&rows);
}

/* A block a thousand times larger, or a row order, changes nothing but that block's scale. */
static void test_fair(void **unused) {
    kk_captured rows = make_rows(4, 0.3f);
    (void)unused;
    kk_theta before = solve(&rows, 3, true, &raw);
    for (int i = 0; i < ROWS * WIDTH; i++) rows.v[0][i] *= 1000;
    kk_theta after = solve(&rows, 3, true, &raw);
    for (int i = 0; i < 3 * IN; i++) assert_true(fabsf(before.params[i] - after.params[i]) < 1e-4f);
    const kk_theta_block *v = &after.block[1];
    for (size_t i = v->at; i < v->at + (size_t)(3 * WIDTH); i++)
        assert_true(fabsf(before.params[i] * 1000 - after.params[i]) < 0.1f);
    kk_theta_free(&before);
    kk_theta_free(&after);
    kk_captured_free(&rows);
}

/* A layer that counts more is rebuilt better, at the others' cost. */
static void test_weights(void **unused) {
    kk_captured rows = make_rows(4, 0.3f);
    const double heavy[2] = {1, 20};
    const kk_ridge_opts how = {.lambda = 1e-12, .raw = true, .layer_weight = heavy};
    (void)unused;
    kk_theta alike = solve(&rows, 3, true, &raw), second = solve(&rows, 3, true, &how);
    kk_fit a = {0}, b = {0};
    assert_int_equal(kk_fit_add(&a, &alike, &rows, 1e-6f, NULL), KK_OK);
    assert_int_equal(kk_fit_add(&b, &second, &rows, 1e-6f, NULL), KK_OK);
    assert_true(kk_fit_raw(&b.block[2]) < kk_fit_raw(&a.block[2]));
    assert_true(kk_fit_raw(&b.block[0]) + kk_fit_raw(&b.block[1]) >
                kk_fit_raw(&a.block[0]) + kk_fit_raw(&a.block[1]));
    kk_theta_free(&alike);
    kk_theta_free(&second);
    kk_captured_free(&rows);
}

/* Normalised targets do not care how long a row is, and the head's size comes back on average. */
static void test_normed(void **unused) {
    const kk_ridge_opts how = {.lambda = 1e-9, .eps = 1e-9f};
    kk_captured rows = make_rows(8, 0.1f);
    (void)unused;
    kk_theta before = solve(&rows, 4, true, &how);
    double size = 0;
    for (int r = 0; r < ROWS; r++) {
        const float s = r % 2 ? 7.0f : 0.5f;
        for (int i = 0; i < WIDTH; i++) rows.k[0][r * WIDTH + i] *= s;
    }
    kk_theta after = solve(&rows, 4, true, &how);
    for (int i = 0; i < 4 * IN; i++) assert_true(fabsf(before.params[i] - after.params[i]) < 1e-4f);
    for (int i = 0; i < 4 * DIM; i++)
        size += fabs((double)after.params[after.block[0].at + (size_t)i] /
                     (double)before.params[before.block[0].at + (size_t)i]) /
                (4 * DIM);
    assert_true(size > 3 && size < 7);
    kk_theta_free(&before);
    kk_theta_free(&after);
    kk_captured_free(&rows);
}

/* With two encoders, K comes from the first features alone and V from the second. */
static void test_two_encoders(void **unused) {
    kk_captured rows = make_rows(2, 0);
    (void)unused;
    kk_free(rows.v[0]);
    rows.v[0] = targets(rows.x[1], 2, 0);
    kk_theta t = solve(&rows, 4, false, &raw);
    assert_int_equal(t.n_encoders, 2);
    assert_int_equal(t.n_blocks, 4);
    kk_fit f = {0};
    assert_int_equal(kk_fit_add(&f, &t, &rows, 1e-6f, NULL), KK_OK);
    assert_true(kk_fit_raw(&f.block[0]) < 1e-9 && kk_fit_raw(&f.block[1]) < 1e-9);
    assert_true(kk_fit_raw(&f.block[2]) < 1e-9); /* the raw key, from the first features */
    assert_true(kk_fit_raw(&f.block[3]) > 0.5);  /* which the second know nothing of */
    kk_theta_free(&t);
    kk_captured_free(&rows);
}

static void test_no_rows(void **unused) {
    const kk_projection_config c = config_of(3, true);
    kk_theta t;
    kk_ridge *r;
    kk_err err;
    (void)unused;
    assert_int_equal(kk_theta_new(&t, &c, &err), KK_OK);
    assert_int_equal(kk_ridge_new(&r, &t, &raw, &err), KK_OK);
    assert_int_equal(kk_ridge_solve(r, &t, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "no rows"));
    kk_ridge_free(r);
    kk_theta_free(&t);
}

static void test_cholesky(void **unused) {
    double a[9] = {4, 2, -2, 2, 10, 2, -2, 2, 6}, bad[4] = {1, 2, 2, 1};
    const double l[9] = {2, 0, 0, 1, 3, 0, -1, 1, 2};
    kk_err err;
    (void)unused;
    assert_int_equal(kk_linalg_cholesky(a, 3, &err), KK_OK);
    for (int i = 0; i < 9; i++) assert_true(fabs(a[i] - l[i]) < 1e-12);
    assert_int_equal(kk_linalg_cholesky(bad, 2, &err), KK_EINVAL);
}

/* diag(1, 3) rotated by 30 degrees. */
static void test_eigen(void **unused) {
    const double c = sqrt(0.75), s = 0.5;
    double a[4] = {c * c + 3 * s * s, c * s - 3 * c * s, c * s - 3 * c * s, s * s + 3 * c * c};
    double values[2];
    (void)unused;
    assert_int_equal(kk_linalg_eigen(a, 2, values, NULL), KK_OK);
    assert_true(fabs(values[0] - 3) < 1e-12 && fabs(values[1] - 1) < 1e-12);
    assert_true(fabs(fabs(a[0] * -s + a[1] * c) - 1) < 1e-12);
    assert_true(fabs(fabs(a[2] * c + a[3] * s) - 1) < 1e-12);
}

int main(void) {
    kk_linalg_threads(1, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),        cmocka_unit_test(test_latents),
        cmocka_unit_test(test_best),         cmocka_unit_test(test_fair),
        cmocka_unit_test(test_weights),      cmocka_unit_test(test_normed),
        cmocka_unit_test(test_two_encoders), cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_cholesky),     cmocka_unit_test(test_eigen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
