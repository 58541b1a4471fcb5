/* sweep_test.c - what `kakeya eval sweep` sums up: errors of rebuilt rows, computed again from what
 * the model shows of itself, their ratios by kinds of layers, the knee; and what it refuses. */
#include "support/tiny.h"

#include <math.h>

#include "eval/reports/report.h"
#include "eval/tasks/sweep.h"
#include "eval/tasks/sweep_rows.h"
#include "train/capture.h"

enum { RANK = 64, PROMPT = 300, SINK = 4, WINDOW = 32, CHUNK = 32 };

/* ---- sums -------------------------------------------------------------------------------- */

static void test_squares(void **state) {
    (void)state;
    const float truth[] = {1, -2, 3}, x[] = {1.5f, -2, 1};
    kk_squares s = {0};
    kk_squares_add(&s, x, truth, 3);
    assert_true(s.error == 0.25 + 4 && s.power == 1 + 4 + 9);
    kk_squares_add(&s, truth, truth, 2);
    assert_true(s.error == 4.25 && s.power == 19);
    assert_true(kk_squares_ratio(&s) == 4.25 / 19);
    assert_true(kk_squares_ratio(&(kk_squares){0}) == 0);
}

static kk_row_errors three_layers(void) {
    kk_row_errors e = {.n_layer = 4, .rows = 7};
    for (int i = 0; i < 3; i++) e.layer[i].counted = true;
    e.layer[1].full = e.layer[3].full = true;
    e.layer[0].sum = (kk_squares){1, 10};
    e.layer[1].sum = (kk_squares){6, 20};
    e.layer[2].sum = (kk_squares){2, 30};
    e.layer[3].sum = (kk_squares){1e9, 1}; /* not counted */
    return e;
}

/* A ratio is of sums: never a mean of the layers' ratios. */
static void test_ratios(void **state) {
    (void)state;
    kk_row_errors e = three_layers();
    assert_true(kk_row_errors_ratio(&e, KK_ERRORS_ALL) == 9.0 / 60);
    assert_true(kk_row_errors_ratio(&e, KK_ERRORS_SLIDING) == 3.0 / 40);
    assert_true(kk_row_errors_ratio(&e, KK_ERRORS_FULL) == 6.0 / 20);
    const kk_row_errors more = three_layers();
    kk_row_errors_add(&e, &more);
    assert_int_equal(e.rows, 14);
    assert_true(e.layer[1].sum.error == 12 && e.layer[1].sum.power == 40);
    assert_true(kk_row_errors_ratio(&e, KK_ERRORS_ALL) == 18.0 / 120);
}

static void test_ratios_in_reports(void **state) {
    (void)state;
    const kk_row_errors e = three_layers();
    json_t *layers = kk_row_errors_layers(&e), *half = kk_row_errors_ratios(&e, 0.25);
    assert_int_equal(json_array_size(layers), 3);
    json_t *one = json_array_get(layers, 1);
    assert_string_equal(json_string_value(json_object_get(one, "kind")), "full");
    assert_true(json_number_value(json_object_get(one, "rel_mse")) == 6.0 / 20);
    assert_true(json_number_value(json_object_get(half, "sliding")) == 0.25 * 3.0 / 40);
    json_decref(layers);
    json_decref(half);
    kk_row_errors sliding = three_layers();
    sliding.layer[1].counted = false;
    json_t *o = kk_row_errors_ratios(&sliding, 1);
    assert_null(json_object_get(o, "full"));
    json_decref(o);
}

/* ---- rebuilt rows ------------------------------------------------------------------------ */

static kk_engine *restoring(void) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:f32",
                                 .projection = "synthetic:64",
                                 .projection_type = "file",
                                 .threads = 1,
                                 .max_rows = 64,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_session_opts keeping(void) {
    return (kk_session_opts){.ctx = PROMPT + 8,
                             .kv_format = KK_KV_F32,
                             .kv_sliding = KK_KEEP_RESTORED,
                             .kv_full = KK_KEEP_RESTORED,
                             .sink = SINK,
                             .window = WINDOW,
                             .chunk = CHUNK,
                             .latents = KK_KV_F32};
}

/* A matrix of the projection as floats. */
static float *matrix(const kk_engine *e, const char *name, size_t n) {
    const kk_tensor *t = kk_checkpoint_find(kk_projection_tensors(e->projection), name);
    float *out = malloc(n * sizeof *out);
    assert_non_null(t);
    assert_non_null(out);
    kk_dequantize(t->dtype, t->data.base, out, n);
    return out;
}

static void multiply(float *y, const float *w, const float *x, size_t n_out, size_t n_in) {
    for (size_t i = 0; i < n_out; i++) {
        double sum = 0;
        for (size_t j = 0; j < n_in; j++) sum += (double)w[i * n_in + j] * (double)x[j];
        y[i] = (float)sum;
    }
}

/* Sums of one decoder over evicted rows, from the rows that the exact model shows. */
static kk_squares expected(const kk_engine *e, const kk_captured *rows, const char *name,
                           const float *truth, size_t width) {
    const size_t n_in = (size_t)rows->n_in;
    float *encoder = matrix(e, "encoder.weight", (size_t)RANK * n_in);
    float *decoder = matrix(e, name, width * RANK), *y = malloc(width * sizeof *y);
    kk_squares s = {0};
    float z[RANK];
    const int32_t end = (PROMPT - 1) / CHUNK * CHUNK - WINDOW;
    for (int32_t r = SINK; r < end; r++) {
        multiply(z, encoder, rows->x[0] + (size_t)r * n_in, RANK, n_in);
        multiply(y, decoder, z, width, RANK);
        kk_squares_add(&s, y, truth + (size_t)r * width, width);
    }
    free(encoder);
    free(decoder);
    free(y);
    return s;
}

static void assert_near(double a, double b) {
    if (fabs(a - b) > 1e-4 * fabs(b)) fail_msg("%.9g is not %.9g", a, b);
}

static void check_layer(const kk_engine *e, const kk_captured *rows, const kk_row_errors *raw,
                        int32_t layer) {
    const kk_layer_config *c = &kk_engine_config(e)->layer[layer];
    const size_t width = (size_t)c->n_kv_head * (size_t)c->head_dim;
    char name[64];
    snprintf(name, sizeof name, "layers.%d.v.weight", layer);
    kk_squares s = expected(e, rows, name, c->k_eq_v ? rows->k[layer] : rows->v[layer], width);
    if (!c->k_eq_v) {
        snprintf(name, sizeof name, "layers.%d.k.weight", layer);
        const kk_squares k = expected(e, rows, name, rows->k[layer], width);
        s.error += k.error;
        s.power += k.power;
    }
    assert_true(raw->layer[layer].counted && s.power > 0);
    assert_near(raw->layer[layer].sum.power, s.power);
    assert_near(raw->layer[layer].sum.error, s.error);
}

/* With all rows true the session's rows are those of the exact model, so that both ways of looking
 * at them must agree: through pages and decoders here, from the model's own projections there. */
static void test_session_errors(void **state) {
    (void)state;
    kk_engine *e = restoring();
    const kk_projection_config *p = kk_projection_config_of(e->projection);
    const kk_session_opts how = keeping();
    int32_t prompt[PROMPT];
    kk_session *s = NULL;
    kk_capture *capture = NULL;
    const kk_captured *rows = NULL;
    kk_capture_opts watch = {
        .engine = e, .source = KK_SOURCE_TAPS, .n_taps = p->n_taps, .max_rows = PROMPT};
    memcpy(watch.taps, p->taps, sizeof watch.taps);
    tiny_prompt(prompt, PROMPT, 5);
    assert_ok(kk_session_new_diagnosed(&s, e, &how, 1, why));
    tiny_append(s, prompt, PROMPT);
    kk_row_errors raw = {0}, normed = {0};
    assert_ok(kk_session_errors(s, &raw, &normed, why));
    kk_session_free(s);
    assert_ok(kk_capture_new(&capture, &watch, why));
    assert_ok(kk_capture_run(capture, prompt, PROMPT, &rows, why));
    int64_t layers = 0;
    for (int32_t i = 0; i < kk_engine_config(e)->n_layer; i++) {
        if (kk_engine_config(e)->layer[i].kv_source != i) continue;
        check_layer(e, rows, &raw, i);
        layers++;
        /* Heads of one root mean square have as much power as values. */
        assert_true(normed.layer[i].counted && normed.layer[i].sum.power > 0);
    }
    assert_int_equal(raw.rows, layers * ((PROMPT - 1) / CHUNK * CHUNK - WINDOW - SINK));
    kk_capture_free(capture);
    kk_engine_close(e);
}

/* Every format of latents is read as it is stored: the coarser, the larger the error of what is
 * rebuilt from it, and not by much. */
static void test_latents_as_stored(void **state) {
    (void)state;
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8};
    kk_engine *e = restoring();
    int32_t prompt[PROMPT];
    double power[3], error[3];
    tiny_prompt(prompt, PROMPT, 6);
    for (int i = 0; i < 3; i++) {
        kk_session_opts how = keeping();
        kk_row_errors raw = {0}, normed = {0};
        kk_session *s = NULL;
        how.latents = formats[i];
        assert_ok(kk_session_new_diagnosed(&s, e, &how, 1, why));
        tiny_append(s, prompt, PROMPT);
        assert_ok(kk_session_errors(s, &raw, &normed, why));
        power[i] = raw.layer[0].sum.power;
        error[i] = raw.layer[0].sum.error;
        kk_session_free(s);
    }
    for (int i = 1; i < 3; i++) {
        assert_true(power[i] == power[0]);
        assert_true(error[i] != error[0] && fabs(error[i] / error[0] - 1) < 0.02);
    }
    kk_engine_close(e);
}

static void test_no_truth(void **state) {
    (void)state;
    kk_engine *e = restoring();
    const kk_session_opts how = keeping();
    kk_row_errors raw = {0}, normed = {0};
    kk_session *s = NULL;
    kk_err err;
    assert_ok(kk_session_new(&s, e, &how, why));
    assert_int_equal(kk_session_errors(s, &raw, &normed, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "no true rows"));
    kk_session_free(s);
    kk_engine_close(e);
}

/* A short session has lost nothing. */
static void test_nothing_gone(void **state) {
    (void)state;
    kk_engine *e = restoring();
    const kk_session_opts how = keeping();
    kk_row_errors raw = {0}, normed = {0};
    kk_session *s = NULL;
    int32_t prompt[SINK + WINDOW];
    tiny_prompt(prompt, SINK + WINDOW, 5);
    assert_ok(kk_session_new_diagnosed(&s, e, &how, 0, why));
    assert_ok(kk_session_errors(s, &raw, &normed, why));
    tiny_append(s, prompt, SINK + WINDOW);
    assert_ok(kk_session_errors(s, &raw, &normed, why));
    assert_int_equal(raw.rows, 0);
    assert_true(kk_row_errors_ratio(&raw, KK_ERRORS_ALL) == 0);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- the knee ---------------------------------------------------------------------------- */

static void test_knee(void **state) {
    (void)state;
    const kk_sweep_row falling[] = {
        {.alpha = 0, .recall = 0.2}, {.alpha = 0.5, .recall = 0.95}, {.alpha = 1, .recall = 1}};
    const kk_sweep_row even[] = {{.alpha = 0, .recall = 0.5}, {.alpha = 1, .recall = 0.5}};
    const kk_sweep_row steep[] = {{.alpha = 0.9, .recall = 0.94}, {.alpha = 1, .recall = 1}};
    assert_true(kk_sweep_knee(falling, 3) == 0.5);
    assert_true(kk_sweep_knee(even, 2) == 0);
    assert_true(kk_sweep_knee(steep, 2) == 1);
}

/* ---- what is refused --------------------------------------------------------------------- */

static void refused(const kk_sweep_opts *o, kk_status code, const char *why_not) {
    kk_sweep_result r;
    kk_err err = {0};
    assert_int_equal(kk_sweep_run(o, &r, &err), code);
    if (!strstr(err.msg, why_not)) fail_msg("'%s' does not say '%s'", err.msg, why_not);
    assert_null(r.report);
    assert_int_equal(r.n_rows, 0);
}

static void test_refused(void **state) {
    (void)state;
    kk_sweep_opts o = {.engine = {.synthetic = "tiny:f32", .threads = 1, .no_pin = true},
                       .alpha = {0.5f},
                       .n_alphas = 1,
                       .draw = {.ladder = {70}, .n_rungs = 1, .samples = 1},
                       .predict = 4};
    refused(&o, KK_EINVAL, "needs a projection");
    o.engine.projection = "synthetic:64";
    refused(&o, KK_EINVAL, "no tokenizer");
    o.session.window = 1000;
    refused(&o, KK_EINVAL, "a window of 1000 rows");
    o.session.window = 0;
    o.alpha[0] = 1.5f;
    refused(&o, KK_EINVAL, "an alpha of 1.5");
    o.alpha[0] = -0.1f;
    refused(&o, KK_EINVAL, "an alpha of -0.1");
    o.alpha[0] = NAN;
    refused(&o, KK_EINVAL, "mixed in by 0 to 1");
    o.n_alphas = 0;
    refused(&o, KK_EINVAL, "0 alphas");
    o.n_alphas = KK_SWEEP_ALPHAS;
    refused(&o, KK_EINVAL, "alphas; 1 to");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_squares),           cmocka_unit_test(test_ratios),
        cmocka_unit_test(test_ratios_in_reports), cmocka_unit_test(test_session_errors),
        cmocka_unit_test(test_latents_as_stored), cmocka_unit_test(test_no_truth),
        cmocka_unit_test(test_nothing_gone),      cmocka_unit_test(test_knee),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
