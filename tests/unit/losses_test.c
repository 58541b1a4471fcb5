/* losses_test.c - every loss against differences, in double, and against what is known of it.
 *
 * The model is made up: a sliding layer, a full one with K = V, one that reads the first one's
 * rows, and another sliding one, so that every way a gradient can flow is there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>
#include <cmocka.h>

#include "train/losses.h"

#define REAL double
#define REAL_GEMM cblas_dgemm
#define REAL_EXP exp
#define STEP step_in_double
#include "train/losses_body.h"

enum { ROWS = 26, IN = 6, RANK = 5, HIDDEN = 10, HEADS = 4, SINK = 2, WINDOW = 3, CHUNK = 4 };

typedef struct {
    kk_config model;
    kk_theta theta;
    kk_captured rows;
    kk_loss_setup setup;
    float *weights[8];
    double *params, *grad;
    int32_t at[ROWS];
} world;

static uint64_t state = 88172645463325252u;
static double draw_real(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / (double)(1ull << 53) * 2 - 1;
}

static float *some(size_t n, double scale) {
    float *x = kk_calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * draw_real());
    return x;
}

static void make_model(kk_config *c) {
    *c = (kk_config){.hidden = HIDDEN,
                     .n_layer = 4,
                     .n_head = HEADS,
                     .window = 12,
                     .context = 64,
                     .eps = 1e-6f,
                     .rope = {{100, 4, 1}, {1000, 2, 1}}};
    const kk_layer_config sliding = {.kind = KK_SLIDING, .head_dim = 8, .n_kv_head = 2};
    for (int i = 0; i < 4; i++) {
        c->layer[i] = sliding;
        c->layer[i].kv_source = i == 2 ? 0 : i;
    }
    c->layer[1] = (kk_layer_config){
        .kind = KK_FULL, .head_dim = 12, .n_kv_head = 1, .kv_source = 1, .k_eq_v = true};
}

static kk_projection_config projection_of(const kk_config *m, bool joint) {
    kk_projection_config c = {.source = joint ? KK_SOURCE_TAPS : KK_SOURCE_DRAFTER_KV,
                              .n_in = IN,
                              .rank = RANK,
                              .joint = joint,
                              .n_layer = m->n_layer,
                              .hidden = m->hidden};
    for (int i = 0; i < m->n_layer; i++) {
        c.layer[i].restored = m->layer[i].kv_source == i;
        c.layer[i].k_eq_v = m->layer[i].k_eq_v;
        c.layer[i].n_kv_head = m->layer[i].n_kv_head;
        c.layer[i].head_dim = m->layer[i].head_dim;
    }
    return c;
}

static void make_world(world *w, bool joint) {
    memset(w, 0, sizeof *w);
    make_model(&w->model);
    const kk_projection_config config = projection_of(&w->model, joint);
    assert_int_equal(kk_theta_new(&w->theta, &config, NULL), KK_OK);
    w->rows.n_rows = ROWS;
    w->rows.n_in = IN;
    w->rows.x[0] = some(ROWS * IN, 1);
    if (!joint) w->rows.x[1] = some(ROWS * IN, 1);
    w->setup = (kk_loss_setup){.shape = &w->theta,
                               .model = &w->model,
                               .k_dir = 0.7,
                               .v_dir = 1.3,
                               .k_mag = 0.2,
                               .v_mag = 0.4,
                               .sink = SINK,
                               .window = WINDOW,
                               .chunk = CHUNK};
    for (int i = 0; i < w->model.n_layer; i++) {
        const kk_layer_config *l = &w->model.layer[i];
        const size_t kv = (size_t)l->n_kv_head * (size_t)l->head_dim;
        const size_t q = HEADS * (size_t)l->head_dim;
        if (l->kv_source == i) w->rows.k[i] = some(ROWS * kv, 2);
        if (l->kv_source == i && !l->k_eq_v) w->rows.v[i] = some(ROWS * kv, 2);
        w->rows.q[i] = some(ROWS * q, 1);
        w->rows.o[i] = some(ROWS * HIDDEN, 1);
        w->setup.k_norm[i] = w->weights[i] = some((size_t)l->head_dim, 1);
        w->setup.o_proj[i] = w->weights[4 + i] = some(HIDDEN * q, 1);
    }
    w->params = calloc(w->theta.n_params, sizeof *w->params);
    w->grad = calloc(w->theta.n_params, sizeof *w->grad);
    for (size_t i = 0; i < w->theta.n_params; i++) w->params[i] = draw_real();
}

static void free_world(world *w) {
    kk_theta_free(&w->theta);
    kk_captured_free(&w->rows);
    for (int i = 0; i < 8; i++) kk_free(w->weights[i]);
    free(w->params);
    free(w->grad);
}

/* Rows that a loss of rows looks at, or chunks with something rebuilt. */
static kk_loss_batch batch_of(world *w) {
    int32_t n = 0;
    if (kk_loss_attends(w->setup.kind)) {
        for (int32_t a = 0; a < ROWS; a += CHUNK)
            if (kk_loss_rebuilds(&w->setup, a, ROWS)) w->at[n++] = a;
    } else {
        for (int32_t i = 0; i < ROWS; i += 2) w->at[n++] = i;
    }
    return (kk_loss_batch){&w->rows, w->at, n};
}

static kk_loss_result loss_at(world *w) {
    const kk_loss_batch b = batch_of(w);
    kk_loss_result r;
    kk_err err;
    memset(w->grad, 0, w->theta.n_params * sizeof *w->grad);
    assert_int_equal(step_in_double(&w->setup, &b, w->params, w->grad, &r, &err), KK_OK);
    return r;
}

/* ---- gradients --------------------------------------------------------------------------- */

static void check_gradient(world *w, kk_loss_kind kind) {
    w->setup.kind = kind;
    loss_at(w);
    double *grad = calloc(w->theta.n_params, sizeof *grad);
    memcpy(grad, w->grad, w->theta.n_params * sizeof *grad);
    double scale = 0;
    for (size_t i = 0; i < w->theta.n_params; i++)
        scale = fabs(grad[i]) > scale ? fabs(grad[i]) : scale;
    assert_true(scale > 0);
    for (size_t i = 0; i < w->theta.n_params; i += 3) {
        const double x = w->params[i], h = 1e-5;
        w->params[i] = x + h;
        const double up = loss_at(w).loss;
        w->params[i] = x - h;
        const double down = loss_at(w).loss;
        w->params[i] = x;
        if (fabs((up - down) / (2 * h) - grad[i]) > 1e-7 * (scale + 1))
            fail_msg("%s: parameter %zu: %.10g by differences, %.10g by the gradient",
                     kk_loss_name(kind), i, (up - down) / (2 * h), grad[i]);
    }
    free(grad);
}

static void test_gradients(void **unused) {
    (void)unused;
    for (int joint = 0; joint < 2; joint++)
        for (kk_loss_kind k = KK_LOSS_MSE; k < KK_LOSSES; k++) {
            world w;
            make_world(&w, joint);
            check_gradient(&w, k);
            free_world(&w);
        }
}

/* Float does what double does. */
static void test_float(void **unused) {
    (void)unused;
    for (kk_loss_kind k = KK_LOSS_MSE; k < KK_LOSSES; k++) {
        world w;
        kk_loss_result r;
        make_world(&w, true);
        w.setup.kind = k;
        const double loss = loss_at(&w).loss;
        const size_t n = w.theta.n_params;
        float *params = calloc(n, sizeof *params), *grad = calloc(n, sizeof *grad);
        for (size_t i = 0; i < n; i++) params[i] = (float)w.params[i];
        const kk_loss_batch b = batch_of(&w);
        assert_int_equal(kk_loss_step(&w.setup, &b, params, grad, &r, NULL), KK_OK);
        assert_true(fabs(r.loss - loss) < 1e-5 * (1 + loss));
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)grad[i] - w.grad[i]) < 1e-4 * (1 + fabs(w.grad[i])));
        free(params);
        free(grad);
        free_world(&w);
    }
}

/* ---- losses of rows ---------------------------------------------------------------------- */

/* Targets become `scale` times what the parameters rebuild. */
static void aim(world *w, double scale) {
    for (int32_t i = 0; i < w->theta.n_blocks; i++) {
        const kk_theta_block *b = &w->theta.block[i];
        const double *e = w->params + w->theta.encoder_at[b->encoder], *d = w->params + b->at;
        const bool own = b->value && w->rows.v[b->layer];
        float *t = own ? w->rows.v[b->layer] : w->rows.k[b->layer];
        for (int r = 0; r < ROWS; r++)
            for (int o = 0; o < b->width; o++) {
                double sum = 0;
                for (int k = 0; k < RANK; k++)
                    for (int j = 0; j < IN; j++)
                        sum += d[o * RANK + k] * e[k * IN + j] *
                               (double)w->rows.x[b->encoder][r * IN + j];
                t[r * b->width + o] = (float)(scale * sum);
            }
    }
}

static void test_known_rows(void **unused) {
    world w;
    (void)unused;
    make_world(&w, true);
    aim(&w, 1);
    for (kk_loss_kind k = KK_LOSS_MSE; k <= KK_LOSS_COMBINED; k++) {
        w.setup.kind = k;
        assert_true(loss_at(&w).loss < 1e-10); /* targets are floats */
    }
    aim(&w, -1); /* the other way: twice as far as a direction can be, and just as long */
    w.setup.kind = KK_LOSS_COS_MAG;
    kk_loss_result r = loss_at(&w);
    assert_true(fabs(r.part[KK_PART_COS_K] - 2) < 1e-6 && fabs(r.part[KK_PART_COS_V] - 2) < 1e-6);
    assert_true(r.part[KK_PART_MAG_K] < 1e-10 && r.part[KK_PART_MAG_V] < 1e-10);
    aim(&w, 0.25); /* four times too long: (4 - 1)^2 of its square, and no other way */
    r = loss_at(&w);
    assert_true(r.part[KK_PART_COS_K] < 1e-10 && r.part[KK_PART_COS_V] < 1e-10);
    assert_true(fabs(r.part[KK_PART_MAG_K] - 9) < 1e-5 && fabs(r.part[KK_PART_MAG_V] - 9) < 1e-5);
    free_world(&w);
}

/* The loss is the weighted sum of its parts, and of its layers' shares. */
static void test_parts(void **unused) {
    (void)unused;
    for (kk_loss_kind k = KK_LOSS_MSE; k < KK_LOSSES; k++) {
        double weight[KK_LOSS_PARTS], parts = 0, layers = 0;
        world w;
        make_world(&w, true);
        w.setup.kind = k;
        const kk_loss_result r = loss_at(&w);
        kk_loss_weights(&w.setup, weight);
        for (int p = 0; p < KK_LOSS_PARTS; p++) parts += weight[p] * r.part[p];
        for (int i = 0; i < w.model.n_layer; i++) layers += r.layer[i];
        assert_true(fabs(parts - r.loss) < 1e-12 && fabs(layers - r.loss) < 1e-12);
        free_world(&w);
    }
}

/* ---- losses of attention ----------------------------------------------------------------- */

static void normed(double *y, const float *x, const float *w, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < n; i++) y[i] = (double)x[i] / sqrt(sum / n + 1e-6) * (w ? (double)w[i] : 1);
}

static void rotated(double *x, const kk_rope_config *r, int n, int pos) {
    for (int i = 0; i < r->n_rot; i++) {
        const double f = pos * pow((double)r->theta, -2.0 * i / n), a = x[i], b = x[i + n / 2];
        x[i] = a * cos(f) - b * sin(f);
        x[i + n / 2] = a * sin(f) + b * cos(f);
    }
}

/* Attention of one layer over true rows, written down once more: row by row, head by head. */
static void exact_outputs(world *w, int layer) {
    const kk_layer_config *l = &w->model.layer[layer];
    const int src = l->kv_source, dim = l->head_dim, kv = l->n_kv_head * dim, nq = HEADS * dim;
    const float *k = w->rows.k[src], *v = w->rows.v[src] ? w->rows.v[src] : k;
    for (int p = 0; p < ROWS; p++) {
        double att[64] = {0};
        for (int h = 0; h < HEADS; h++) {
            const int at = h / (HEADS / l->n_kv_head) * dim;
            double score[ROWS], most = -1e300, sum = 0, key[16];
            const int first =
                l->kind == KK_SLIDING && p - w->model.window + 1 > 0 ? p - w->model.window + 1 : 0;
            for (int j = first; j <= p; j++) {
                normed(key, k + j * kv + at, w->setup.k_norm[src], dim);
                rotated(key, &w->model.rope[l->kind], dim, j);
                score[j] = 0;
                for (int i = 0; i < dim; i++)
                    score[j] += key[i] * (double)w->rows.q[layer][p * nq + h * dim + i];
                most = score[j] > most ? score[j] : most;
            }
            for (int j = first; j <= p; j++) sum += score[j] = exp(score[j] - most);
            for (int j = first; j <= p; j++) {
                normed(key, v + j * kv + at, NULL, dim);
                for (int i = 0; i < dim; i++) att[h * dim + i] += score[j] / sum * key[i];
            }
        }
        for (int o = 0; o < HIDDEN; o++) {
            double sum = 0;
            for (int i = 0; i < nq; i++) sum += att[i] * (double)w->setup.o_proj[layer][o * nq + i];
            w->rows.o[layer][p * HIDDEN + o] = (float)sum;
        }
    }
}

/* True rows in the place of rebuilt ones give what attention gave, under every layer's mask. */
static void test_exact_is_zero(void **unused) {
    (void)unused;
    for (int joint = 0; joint < 2; joint++) {
        world w;
        make_world(&w, joint);
        if (!joint) /* K = V with two decoders: both must give the one raw key */
            for (int i = 0; i < w.model.n_layer; i++) w.setup.skip[i] = i == 1;
        aim(&w, 1);
        for (int i = 0; i < w.model.n_layer; i++) exact_outputs(&w, i);
        w.setup.kind = KK_LOSS_ATTN_DISTILL;
        kk_loss_result r = loss_at(&w);
        assert_true(r.loss < 1e-10);
        assert_true(r.output_energy > 0 && r.output_error / r.output_energy < 1e-10);
        w.setup.kind = KK_LOSS_ATTN_DISTILL_HYBRID;
        assert_true(loss_at(&w).loss < 1e-9);
        w.setup.kind = KK_LOSS_ATTN_DISTILL;
        w.model.window = 9; /* another mask than the outputs were made with */
        assert_true(loss_at(&w).loss > 1e-4);
        free_world(&w);
    }
}

/* Rows that stay exact are not looked at: neither the sink nor the last ones before a chunk. */
static void test_only_evicted(void **unused) {
    world w;
    (void)unused;
    make_world(&w, true);
    w.setup.kind = KK_LOSS_ATTN_DISTILL;
    const kk_loss_batch b = {&w.rows, (int32_t[]){20}, 1};
    kk_loss_result r, again;
    assert_int_equal(step_in_double(&w.setup, &b, w.params, w.grad, &r, NULL), KK_OK);
    for (int row = 0; row < ROWS; row++) {
        const bool rebuilt = row >= SINK && row < 20 - WINDOW;
        float *x = w.rows.x[0] + row * IN, old[IN];
        memcpy(old, x, sizeof old);
        for (int i = 0; i < IN; i++) x[i] = (float)draw_real();
        assert_int_equal(step_in_double(&w.setup, &b, w.params, w.grad, &again, NULL), KK_OK);
        assert_int_equal(again.loss != r.loss, rebuilt);
        memcpy(x, old, sizeof old);
    }
    free_world(&w);
}

static void test_lambdas(void **unused) {
    world w;
    (void)unused;
    make_world(&w, true);
    w.setup.kind = KK_LOSS_ATTN_DISTILL_HYBRID;
    const double all = loss_at(&w).loss;
    double *lambda[] = {&w.setup.k_dir, &w.setup.v_dir, &w.setup.k_mag, &w.setup.v_mag};
    for (int i = 0; i < 4; i++) {
        const double old = *lambda[i];
        *lambda[i] = 3;
        assert_true(fabs(loss_at(&w).loss - all) > 1e-3);
        *lambda[i] = old;
    }
    for (int i = 0; i < 4; i++) *lambda[i] = 0;
    const double none = loss_at(&w).loss;
    double *grad = calloc(w.theta.n_params, sizeof *grad);
    memcpy(grad, w.grad, w.theta.n_params * sizeof *grad);
    w.setup.kind = KK_LOSS_ATTN_DISTILL;
    assert_true(loss_at(&w).loss == none);
    assert_memory_equal(grad, w.grad, w.theta.n_params * sizeof *grad);
    free(grad);
    free_world(&w);
}

/* Layers left out have no share of the loss, and their decoders' gradients are exactly zero. */
static void test_skipped(void **unused) {
    (void)unused;
    for (kk_loss_kind k = KK_LOSS_MSE; k < KK_LOSSES; k++) {
        world w;
        make_world(&w, true);
        w.setup.kind = k;
        w.setup.skip[1] = true;
        const kk_loss_result r = loss_at(&w);
        assert_true(r.layer[1] == 0);
        for (int32_t i = 0; i < w.theta.n_blocks; i++) {
            const kk_theta_block *b = &w.theta.block[i];
            bool any = false;
            for (size_t p = 0; p < (size_t)b->width * RANK; p++)
                any = any || w.grad[b->at + p] != 0;
            assert_int_equal(any, b->layer != 1);
        }
        free_world(&w);
    }
}

static void test_nothing_to_rebuild(void **unused) {
    world w;
    kk_loss_result r;
    kk_err err;
    (void)unused;
    make_world(&w, true);
    w.setup.kind = KK_LOSS_ATTN_DISTILL;
    assert_false(kk_loss_rebuilds(&w.setup, 4, ROWS));
    assert_true(kk_loss_rebuilds(&w.setup, 8, ROWS));
    assert_false(kk_loss_rebuilds(&w.setup, 28, ROWS)); /* no such query */
    const kk_loss_batch b = {&w.rows, (int32_t[]){4}, 1};
    assert_int_equal(step_in_double(&w.setup, &b, w.params, w.grad, &r, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "rebuilt"));
    free_world(&w);
}

static void test_names(void **unused) {
    kk_loss_kind k;
    (void)unused;
    for (int i = 0; i < KK_LOSSES; i++) {
        assert_true(kk_loss_named(kk_loss_name((kk_loss_kind)i), &k));
        assert_int_equal(k, i);
    }
    assert_false(kk_loss_named("mae", &k));
}

int main(void) {
    openblas_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_known_rows),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_exact_is_zero),
        cmocka_unit_test(test_only_evicted),
        cmocka_unit_test(test_lambdas),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_nothing_to_rebuild),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
