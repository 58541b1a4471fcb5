/* sums_cases.h - sums over rows on a device against the same chains in plain C, and the closed form
 * from such sums against that of ridge.h from the same rows; for the CPU and for a GPU.
 *
 * Functions return how far two results are apart, or the number of sums whose bits differ; what
 * cannot be run ends the program with the library's own sentence. */
#ifndef KK_TESTS_SUMS_CASES_H
#define KK_TESTS_SUMS_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "train/fit.h"
#include "train/linalg.h"
#include "train/sums.h"

static inline void sums_must(kk_status st, const kk_err *err, const char *what) {
    if (st == KK_OK) return;
    printf("%s: %s\n", what, err->msg);
    exit(1);
}

/* splitmix64; in [-1, 1). */
static inline double sums_draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / (double)(1ull << 52) - 1;
}

/* ---- products ---------------------------------------------------------------------------- */

typedef struct {
    int32_t n_rows, n_a, n_b;
    bool doubles, weighted, same, across; /* same: b is a */
} sums_shape;

/* Off and on the edges of tiles of 128 and slabs of 8. */
static const sums_shape sums_shapes[] = {
    {1, 1, 1, false, false, false, false},      {5, 3, 7, false, false, false, false},
    {8, 128, 128, false, false, false, false},  {17, 129, 130, false, false, false, false},
    {64, 256, 384, false, false, false, false}, {40, 200, 200, false, false, true, false},
    {33, 131, 131, true, true, true, false},    {24, 128, 260, true, true, false, false},
    {9, 132, 68, true, false, false, false},    {50, 300, 4, false, true, false, false},
    {60, 140, 260, true, false, false, true},   {37, 5, 129, true, false, false, true},
    {44, 130, 130, false, false, true, true},
};
enum { SUMS_SHAPES = sizeof sums_shapes / sizeof *sums_shapes };

/* n values of a matrix as a device reads them; what they are in double goes to *values. */
static inline kk_buf *sums_values(const kk_backend *be, kk_dev *dev, size_t n, bool doubles,
                                  uint64_t *random, double **values) {
    const size_t width = doubles ? sizeof(double) : sizeof(float);
    float *floats = calloc(n, sizeof *floats);
    kk_buf *b = NULL;
    kk_err err = {0};
    *values = calloc(n, sizeof **values);
    for (size_t i = 0; i < n; i++) {
        (*values)[i] = sums_draw(random);
        if (!doubles) (*values)[i] = (double)(floats[i] = (float)(*values)[i]);
    }
    sums_must(be->buf_new(dev, KK_MEM_WORKSPACE, n * width, &b, &err), &err, "a buffer");
    sums_must(be->write(dev, b, 0, doubles ? (void *)*values : (void *)floats, n * width, &err),
              &err, "writing");
    free(floats);
    return b;
}

/* The rows of a shape's matrices, added to sum. */
static inline void sums_chain(const sums_shape *s, const double *a, const double *b,
                              const double *weight, double *sum) {
    const size_t rows = (size_t)s->n_rows, n_a = (size_t)s->n_a, n_b = (size_t)s->n_b;
    for (size_t p = 0; p < n_a; p++)
        for (size_t q = s->same ? p : 0; q < n_b; q++) {
            double *to = sum + p * n_b + q;
            for (size_t r = 0; r < rows; r++) {
                const double x = s->across ? a[p * rows + r] : a[r * n_a + p];
                const double y = s->across ? b[q * rows + r] : b[r * n_b + q];
                *to = fma(weight ? weight[r] * x : x, y, *to);
            }
            if (s->same) sum[q * n_b + p] = *to;
        }
}

/* Two calls, one behind the other, against one chain over the rows of both; sums that differ in a
 * bit. */
static inline int32_t sums_products_differ(const kk_backend *be, kk_dev *dev, const sums_shape *s,
                                           uint64_t seed) {
    const size_t n = (size_t)s->n_a * (size_t)s->n_b, rows = (size_t)s->n_rows;
    double *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    kk_buf *sum = NULL;
    kk_err err = {0};
    int32_t differ = 0;
    sums_must(be->buf_new(dev, KK_MEM_WORKSPACE, n * sizeof *got, &sum, &err), &err, "sums");
    for (int call = 0; call < 2; call++) {
        double *a, *b = NULL, *w = NULL;
        kk_buf *on_a = sums_values(be, dev, rows * (size_t)s->n_a, s->doubles, &seed, &a);
        kk_buf *on_b =
            s->same ? on_a : sums_values(be, dev, rows * (size_t)s->n_b, s->doubles, &seed, &b);
        kk_buf *on_w = s->weighted ? sums_values(be, dev, rows, true, &seed, &w) : NULL;
        const kk_gram_args g = {.sum = sum,
                                .a = on_a,
                                .b = on_b,
                                .weight = on_w,
                                .n_rows = s->n_rows,
                                .n_a = s->n_a,
                                .n_b = s->n_b,
                                .doubles = s->doubles,
                                .across = s->across};
        sums_must(be->sums->gram(dev, &g, &err), &err, "gram");
        sums_chain(s, a, s->same ? a : b, w, want);
        be->buf_free(dev, on_a);
        if (!s->same) be->buf_free(dev, on_b);
        if (on_w) be->buf_free(dev, on_w);
        free(a);
        free(b);
        free(w);
    }
    sums_must(be->read(dev, sum, 0, got, n * sizeof *got, &err), &err, "reading");
    for (size_t i = 0; i < n; i++) differ += memcmp(&want[i], &got[i], sizeof *got) != 0;
    be->buf_free(dev, sum);
    free(want);
    free(got);
    return differ;
}

/* Squares of 21 rows of 700 values, added behind 5 others; sums that differ in a bit. */
static inline int32_t sums_squares_differ(const kk_backend *be, kk_dev *dev) {
    enum { ROWS = 21, DIM = 700, AT = 5 };
    double *x, got[AT + DIM], want[AT + DIM] = {0};
    uint64_t seed = 11;
    kk_buf *sum = NULL;
    kk_err err = {0};
    int32_t differ = 0;
    kk_buf *on = sums_values(be, dev, ROWS * DIM, false, &seed, &x);
    sums_must(be->buf_new(dev, KK_MEM_WORKSPACE, sizeof got, &sum, &err), &err, "sums");
    const kk_squares_args a = {.sum = sum, .x = on, .at = AT, .n_rows = ROWS, .dim = DIM};
    sums_must(be->sums->squares(dev, &a, &err), &err, "squares");
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < DIM; i++) want[AT + i] += x[r * DIM + i] * x[r * DIM + i];
    sums_must(be->read(dev, sum, 0, got, sizeof got, &err), &err, "reading");
    for (int i = 0; i < AT + DIM; i++) differ += memcmp(&want[i], &got[i], sizeof *got) != 0;
    be->buf_free(dev, on);
    be->buf_free(dev, sum);
    free(x);
    return differ;
}

/* ---- closed forms ------------------------------------------------------------------------ */

typedef struct {
    kk_engine *engine;
    int32_t n_taps, taps[KK_MAX_TAPS];
    int32_t rank, texts, length, chunk;
    bool normed;
} sums_pair;

/* How far two maps are apart, the worst of their blocks: D E - D' E' over D E; and errors of the
 * rows they were made from and of others, the second's over the first's, less 1. */
typedef struct {
    double map, trained, held;
} sums_apart;

static inline void sums_tokens(const sums_pair *p, int32_t text, int32_t *ids) {
    uint64_t state = 77 + (uint64_t)text;
    kk_model_info model;
    kk_engine_info(p->engine, &model);
    for (int32_t i = 0; i < p->length; i++)
        ids[i] = (int32_t)((sums_draw(&state) + 1) / 2 * model.vocab);
}

static inline double sums_map_apart(const kk_theta *x, const kk_theta *y) {
    const int32_t rank = x->config.rank, in = x->config.n_in;
    double most = 0;
    for (int32_t i = 0; i < x->n_blocks; i++) {
        const kk_theta_block *b = &x->block[i];
        double off = 0, all = 0;
        for (int32_t j = 0; j < b->width; j += 7) /* some rows of the map tell */
            for (int32_t c = 0; c < in; c++) {
                double u = 0, v = 0;
                for (int32_t k = 0; k < rank; k++) {
                    const size_t d = b->at + (size_t)j * (size_t)rank + (size_t)k;
                    const size_t e = x->encoder_at[0] + (size_t)k * (size_t)in + (size_t)c;
                    u += (double)x->params[d] * (double)x->params[e];
                    v += (double)y->params[d] * (double)y->params[e];
                }
                off += (u - v) * (u - v);
                all += u * u;
            }
        if (all > 0 && sqrt(off / all) > most) most = sqrt(off / all);
    }
    return most;
}

static inline double sums_worst_ratio(const kk_theta *t, const kk_fit *a, const kk_fit *b) {
    double most = 0;
    for (int32_t i = 0; i < t->n_blocks; i++) {
        const double off = fabs(kk_fit_normed(&b->block[i]) / kk_fit_normed(&a->block[i]) - 1);
        if (!(off <= most)) most = off;
    }
    return most;
}

/* Both ways from the same texts on the same device; the texts' last is held out. */
static inline sums_apart sums_compare(const sums_pair *p) {
    kk_capture_opts how = {
        .engine = p->engine, .source = KK_SOURCE_TAPS, .n_taps = p->n_taps, .max_rows = p->length};
    const kk_ridge_opts ridge = {
        .lambda = 1e-4, .eps = kk_engine_config(p->engine)->eps, .raw = !p->normed};
    kk_err err = {0};
    kk_projection_config c;
    kk_theta host, device;
    kk_ridge *sum = NULL;
    kk_sums *sums = NULL;
    kk_capture *capture = NULL;
    kk_fit fit[2][2] = {{{0}}};
    int32_t *ids = calloc((size_t)p->length, sizeof *ids);
    memcpy(how.taps, p->taps, sizeof how.taps);
    sums_must(kk_theta_config(&c, &how, p->rank, KK_LAYERS_ALL, &err), &err, "shape");
    sums_must(kk_theta_new(&host, &c, &err), &err, "parameters");
    sums_must(kk_theta_new(&device, &c, &err), &err, "parameters");
    const kk_sums_opts o = {.from = &how, .shape = &device, .ridge = ridge, .rows = p->chunk};
    sums_must(kk_capture_new(&capture, &how, &err), &err, "capture");
    sums_must(kk_ridge_new(&sum, &host, &ridge, &err), &err, "ridge");
    sums_must(kk_sums_new(&sums, &o, &err), &err, "sums");
    for (int32_t i = 0; i < p->texts; i++) {
        const kk_captured *rows;
        sums_tokens(p, i, ids);
        sums_must(kk_capture_run(capture, ids, p->length, &rows, &err), &err, "capturing");
        kk_ridge_add(sum, rows);
        sums_must(kk_sums_run(sums, ids, p->length, &err), &err, "adding up");
    }
    sums_must(kk_ridge_solve(sum, &host, &err), &err, "solving");
    sums_must(kk_sums_solve(sums, &device, NULL, &err), &err, "solving from sums");
    for (int held = 0; held < 2; held++) {
        const kk_captured *rows;
        sums_tokens(p, held ? p->texts : 0, ids);
        sums_must(kk_capture_run(capture, ids, p->length, &rows, &err), &err, "capturing");
        sums_must(kk_fit_add(&fit[held][0], &host, rows, ridge.eps, &err), &err, "judging");
        sums_must(kk_fit_add(&fit[held][1], &device, rows, ridge.eps, &err), &err, "judging");
    }
    const sums_apart apart = {.map = sums_map_apart(&host, &device),
                              .trained = sums_worst_ratio(&host, &fit[0][0], &fit[0][1]),
                              .held = sums_worst_ratio(&host, &fit[1][0], &fit[1][1])};
    kk_capture_free(capture);
    kk_ridge_free(sum);
    kk_sums_free(sums);
    kk_theta_free(&host);
    kk_theta_free(&device);
    free(ids);
    return apart;
}

#endif
