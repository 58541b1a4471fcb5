/* sums_test.c - sums over rows on the CPU device, and the closed form from them: the same as by
 * BLAS.  tests/gpu/sums_gpu_test.c asks the same of a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/sums_cases.h"
#include "train/linalg.h"

static kk_engine *open_engine(int32_t max_rows) {
    const kk_engine_opts o = {.model = KK_MODELS "/tiny/verifier",
                              .device = "cpu",
                              .threads = 2,
                              .no_pin = true,
                              .max_rows = max_rows};
    kk_engine *e = NULL;
    kk_err err = {0};
    sums_must(kk_engine_open(&e, &o, &err), &err, "engine");
    return e;
}

static void test_products(void **state) {
    kk_engine *e = open_engine(0);
    (void)state;
    for (int i = 0; i < SUMS_SHAPES; i++)
        assert_int_equal(sums_products_differ(e->backend, e->dev, &sums_shapes[i], (uint64_t)i), 0);
    assert_int_equal(sums_squares_differ(e->backend, e->dev), 0);
    kk_engine_close(e);
}

static void test_ends_of_buffers(void **state) {
    kk_engine *e = open_engine(0);
    kk_buf *b = NULL, *sum = NULL;
    kk_err err = {0};
    (void)state;
    sums_must(e->backend->buf_new(e->dev, KK_MEM_WORKSPACE, 12 * sizeof(float), &b, &err), &err,
              "");
    sums_must(e->backend->buf_new(e->dev, KK_MEM_WORKSPACE, 16 * sizeof(double), &sum, &err), &err,
              "");
    kk_gram_args a = {.sum = sum, .a = b, .b = b, .n_rows = 3, .n_a = 4, .n_b = 4};
    assert_int_equal(e->backend->sums->gram(e->dev, &a, &err), KK_OK);
    a.n_rows = 4;
    assert_int_equal(e->backend->sums->gram(e->dev, &a, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "4 rows"));
    a.n_rows = 3, a.across = true;
    assert_int_equal(e->backend->sums->gram(e->dev, &a, &err), KK_OK);
    a.weight = sum;
    assert_int_equal(e->backend->sums->gram(e->dev, &a, &err), KK_EINVAL);
    a.n_rows = 2, a.doubles = true, a.weight = NULL, a.across = false;
    assert_int_equal(e->backend->sums->gram(e->dev, &a, &err), KK_EINVAL);
    kk_squares_args q = {.sum = sum, .x = b, .at = 12, .n_rows = 3, .dim = 4};
    assert_int_equal(e->backend->sums->squares(e->dev, &q, &err), KK_OK);
    q.at = 13;
    assert_int_equal(e->backend->sums->squares(e->dev, &q, &err), KK_EINVAL);
    e->backend->buf_free(e->dev, b);
    e->backend->buf_free(e->dev, sum);
    kk_engine_close(e);
}

/* From the same rows.  Features are normalised in float32 on one side: they are off by 2^-23 of
 * themselves, which a ridge of 1e-4 makes 100 times as much at most.  Chunks end within texts, and
 * texts within forwards. */
static void test_closed_form(void **state) {
    (void)state;
    for (int normed = 0; normed < 2; normed++) {
        const sums_pair p = {.engine = open_engine(48),
                             .n_taps = 1,
                             .taps = {4},
                             .rank = 24,
                             .texts = 5,
                             .length = 100,
                             .chunk = 64,
                             .normed = normed};
        const sums_apart a = sums_compare(&p);
        print_message("maps %.2e apart, errors %.2e and %.2e\n", a.map, a.trained, a.held);
        assert_true(a.map < 1.2e-5 && a.trained < 1.2e-5 && a.held < 1.2e-5);
        kk_engine_close(p.engine);
    }
}

static void test_eigenvectors(void **state) {
    enum { N = 40, RANK = 7 };
    double a[N * N], b[N * N], values[N], top[RANK * N];
    uint64_t seed = 5;
    (void)state;
    for (int i = 0; i < N; i++)
        for (int j = i; j < N; j++)
            a[i * N + j] = a[j * N + i] = b[i * N + j] = b[j * N + i] = sums_draw(&seed);
    assert_int_equal(kk_linalg_eigen(a, N, values, NULL), KK_OK);
    assert_int_equal(kk_linalg_eigen_top(b, N, RANK, top, NULL), KK_OK);
    for (int k = 0; k < RANK; k++) {
        double along = 0;
        for (int i = 0; i < N; i++) along += a[k * N + i] * top[k * N + i];
        assert_true(fabs(fabs(along) - 1) < 1e-12);
    }
    assert_int_equal(kk_linalg_eigen_top(b, N, N + 1, top, NULL), KK_EINVAL);
}

static void test_whitener(void **state) {
    enum { N = 23 };
    double x[N * N], a[N * N] = {0}, w[N * N];
    uint64_t seed = 6;
    (void)state;
    for (int i = 0; i < N * N; i++) x[i] = sums_draw(&seed);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < N; k++) a[i * N + j] += x[k * N + i] * x[k * N + j];
    for (int i = 0; i < N; i++) a[i * N + i] += 1;
    memcpy(w, a, sizeof w);
    assert_int_equal(kk_linalg_whitener(w, N, NULL), KK_OK);
    for (int i = 0; i < N; i++) /* W^T a W = 1 */
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int p = 0; p < N; p++)
                for (int q = 0; q < N; q++) sum += w[p * N + i] * a[p * N + q] * w[q * N + j];
            assert_true(fabs(sum - (i == j)) < 1e-12);
            assert_true(i <= j || fabs(w[i * N + j]) <= 0);
        }
    a[0] = -1;
    kk_err err = {0};
    assert_int_equal(kk_linalg_whitener(a, N, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "not independent"));
}

/* Sizes are looked at before anything is taken. */
static void test_sizes(void **state) {
    const sums_pair p = {.engine = open_engine(0)};
    const kk_capture_opts how = {
        .engine = p.engine, .source = KK_SOURCE_TAPS, .n_taps = 1, .taps = {4}, .max_rows = 8};
    kk_projection_config c;
    kk_theta t;
    kk_sums_bytes need;
    kk_err err = {0};
    (void)state;
    sums_must(kk_theta_config(&c, &how, 8, KK_LAYERS_ALL, &err), &err, "shape");
    sums_must(kk_theta_new(&t, &c, &err), &err, "parameters");
    kk_sums_opts o = {.from = &how, .shape = &t, .ridge = {.raw = true}, .rows = 8};
    assert_int_equal(kk_sums_need(&need, &o, &err), KK_OK);
    size_t out = 0;
    for (int32_t i = 0; i < t.n_blocks; i++) out += (size_t)t.block[i].width;
    const size_t in = (size_t)c.n_in, sums = 8 * (in * in + in * out + 2 * out);
    assert_int_equal(need.device, sums + 8 * (2 * in * in + 8 * in + 8 * out));
    assert_true(need.host >= 2 * 8 * in * in);
    o.rows = 2048; /* a chunk takes more than the solution */
    assert_int_equal(kk_sums_need(&need, &o, &err), KK_OK);
    assert_int_equal(need.device, sums + 2048 * 4 * (in + out));
    t.config.n_in = INT32_MAX;
    for (int32_t i = 0; i < t.n_blocks; i++) t.block[i].width = INT32_MAX;
    assert_int_equal(kk_sums_need(&need, &o, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "too large"));
    kk_theta_free(&t);
    kk_engine_close(p.engine);
}

int main(void) {
    kk_linalg_threads(2, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),    cmocka_unit_test(test_ends_of_buffers),
        cmocka_unit_test(test_closed_form), cmocka_unit_test(test_eigenvectors),
        cmocka_unit_test(test_whitener),    cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
