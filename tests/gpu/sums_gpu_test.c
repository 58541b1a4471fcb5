/* sums_gpu_test.c - sums over rows on the GPU: their bits against chains in plain C; the closed
 * form from them against that of BLAS from the same rows; whole trainings on the GPU against the
 * CPU's; and how fast they are at the width of 26B-A4B.
 *
 * sums_gpu_test [FILE OR FOLDER | bits]: texts to train on (default: the shipped prompts); bits:
 * the first of these alone, as for compute-sanitizer.  Prints a line per check; the exit status is
 * 1 when one failed. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "core/clock.h"
#include "support/sums_cases.h"
#include "train/trainer.h"

static int failed;

static void check(bool holds, const char *what, double value, double limit) {
    if (!holds) failed++;
    printf("%s  %s: %.3g, limit %.3g\n", holds ? "ok  " : "FAIL", what, value, limit);
    fflush(stdout);
}

static kk_engine *open_on(const char *device, int32_t max_rows) {
    const kk_engine_opts o = {.model = KK_MODELS "/tiny/verifier",
                              .device = device,
                              .isa = strcmp(device, "cuda") == 0 ? getenv("KK_TEST_ISA") : NULL,
                              .max_rows = max_rows};
    kk_engine *e = NULL;
    kk_err err = {0};
    sums_must(kk_engine_open(&e, &o, &err), &err, "engine");
    return e;
}

/* ---- bits -------------------------------------------------------------------------------- */

static void bits(void) {
    kk_engine *e = open_on("cuda", 0);
    char what[120];
    for (int i = 0; i < SUMS_SHAPES; i++) {
        const sums_shape *s = &sums_shapes[i];
        snprintf(what, sizeof what, "sums of %d rows, %d and %d values%s%s%s%s: bits that differ",
                 s->n_rows, s->n_a, s->n_b, s->doubles ? ", float64" : "",
                 s->weighted ? ", weighted" : "", s->same ? ", of one matrix" : "",
                 s->across ? ", across" : "");
        const int32_t n = sums_products_differ(e->backend, e->dev, s, (uint64_t)i);
        check(n == 0, what, n, 0);
    }
    const int32_t n = sums_squares_differ(e->backend, e->dev);
    check(n == 0, "squares: bits that differ", n, 0);
    kk_engine_close(e);
}

/* ---- the closed form --------------------------------------------------------------------- */

/* From the same rows.  Features are normalised in float32 on one side: they are off by 2^-23 of
 * themselves, which a ridge of 1e-4 makes 100 times as much at most. */
static void closed_forms(void) {
    for (int normed = 0; normed < 2; normed++) {
        const sums_pair p = {.engine = open_on("cuda", 200),
                             .n_taps = 2,
                             .taps = {2, 7},
                             .rank = 48,
                             .texts = 8,
                             .length = 160,
                             .chunk = 200,
                             .normed = normed};
        const sums_apart a = sums_compare(&p);
        const char *kind = normed ? "normed targets" : "raw targets";
        char what[80];
        snprintf(what, sizeof what, "closed form of %s, maps apart", kind);
        check(a.map < 1.2e-5, what, a.map, 1.2e-5);
        snprintf(what, sizeof what, "closed form of %s, errors of rows held out", kind);
        check(a.held < 1.2e-5, what, a.held, 1.2e-5);
        kk_engine_close(p.engine);
    }
}

/* What the device cannot hold is refused before it is taken, and by how much. */
static void refusals(void) {
    kk_engine *e = open_on("cuda", 0);
    const kk_capture_opts how = {
        .engine = e, .source = KK_SOURCE_TAPS, .n_taps = 1, .taps = {4}, .max_rows = 8};
    kk_projection_config c;
    kk_theta t;
    kk_sums *s = NULL;
    kk_err err = {0};
    sums_must(kk_theta_config(&c, &how, 8, KK_LAYERS_ALL, &err), &err, "shape");
    sums_must(kk_theta_new(&t, &c, &err), &err, "parameters");
    const kk_sums_opts o = {.from = &how, .shape = &t, .ridge = {.raw = true}, .rows = 100000000};
    const kk_status st = kk_sums_new(&s, &o, &err);
    printf("      %s\n", err.msg);
    check(st == KK_ENOMEM && !s && strstr(err.msg, "GB are free"), "a chunk too large", st,
          KK_ENOMEM);
    kk_theta_free(&t);
    kk_engine_close(e);
}

/* ---- trainings --------------------------------------------------------------------------- */

static kk_train_result train_on(const char *device, const char *texts, const char *out) {
    const char *paths[1] = {texts};
    const kk_train_opts o = {.engine = {.model = KK_MODELS "/tiny/verifier", .device = device},
                             .out = out,
                             .source = "taps",
                             .n_taps = 3,
                             .taps = {1, 5, 9},
                             .rank = 128,
                             .layers = "all",
                             .paths = paths,
                             .n_paths = 1,
                             .tokens = 12000,
                             .length = 512,
                             .needle_lines = 20,
                             .loss = "ridge",
                             .sink = 4,
                             .window = 32,
                             .chunk = 32,
                             .replace = true,
                             .seed = 3};
    kk_train_result r;
    kk_err err = {0};
    sums_must(kk_train_run(&o, &r, &err), &err, "training");
    printf("      %s: %lld rows, %lld held out, capturing %.2f s, of it sums %.2f s, solving %.2f "
           "s\n",
           device, (long long)r.rows, (long long)r.held_rows, r.collect_s, r.add_s, r.solve_s);
    return r;
}

/* How far rows of a layer are apart on two devices, over their size: the worst layer. */
static double rows_apart(void) {
    enum { N = 300 };
    kk_engine *e[2] = {open_on("cpu", 0), open_on("cuda", 0)};
    kk_capture *c[2];
    const kk_captured *rows[2];
    kk_err err = {0};
    double most = 0;
    int32_t ids[N];
    uint64_t state = 9;
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(1000 + 500 * sums_draw(&state));
    for (int k = 0; k < 2; k++) {
        const kk_capture_opts how = {
            .engine = e[k], .source = KK_SOURCE_TAPS, .n_taps = 1, .max_rows = N};
        sums_must(kk_capture_new(&c[k], &how, &err), &err, "capture");
        sums_must(kk_capture_run(c[k], ids, N, &rows[k], &err), &err, "capturing");
    }
    const kk_config *model = kk_engine_config(e[0]);
    for (int32_t i = 0; i < model->n_layer; i++) {
        const kk_layer_config *l = &model->layer[i];
        const size_t n = N * (size_t)l->n_kv_head * (size_t)l->head_dim;
        double off = 0, all = 0;
        for (size_t j = 0; rows[0]->k[i] && j < n; j++) {
            const double a = (double)rows[0]->k[i][j], b = (double)rows[1]->k[i][j];
            off += (a - b) * (a - b);
            all += a * a;
        }
        if (all > 0 && sqrt(off / all) > most) most = sqrt(off / all);
    }
    for (int k = 0; k < 2; k++) {
        kk_capture_free(c[k]);
        kk_engine_close(e[k]);
    }
    return most;
}

/* The GPU rounds what it multiplies to bf16, which moves rows by a share d of their size, and
 * rebuilt rows as much.  An error, sum |row - rebuilt|^2 over sum |row|^2, then moves by no more
 * than 2 sqrt(error) 2 d + 4 d^2. */
static void trainings(const char *texts) {
    char cpu_out[] = "/tmp/kakeya-sums-cpu-XXXXXX", gpu_out[] = "/tmp/kakeya-sums-gpu-XXXXXX";
    if (!mkdtemp(cpu_out) || !mkdtemp(gpu_out)) exit(1);
    const double d = rows_apart();
    const kk_train_result cpu = train_on("cpu", texts, cpu_out);
    const kk_train_result gpu = train_on("cuda", texts, gpu_out);
    double worst = 0, share = 0, mean = 0;
    int n = 0;
    printf("      rows of both devices are %.2e apart\n", d);
    check(cpu.add_flop <= 0 && gpu.add_flop > 0, "sums on the GPU, operations", gpu.add_flop, 0);
    check(cpu.rows == gpu.rows && cpu.held_rows > 0, "rows held out", (double)cpu.held_rows, 1);
    for (int32_t i = 0; i < cpu.n_layers; i++) {
        const kk_train_layer *a = &cpu.end[i], *b = &gpu.end[i];
        const double pairs[2][2] = {{a->k, b->k}, {a->v, b->v}};
        for (int k = 0; a->restored && k < 2; k++) {
            const double off = fabs(pairs[k][1] - pairs[k][0]);
            const double limit = 4 * d * sqrt(pairs[k][0]) + 4 * d * d;
            if (off / limit > share) share = off / limit;
            if (off / pairs[k][0] > worst) worst = off / pairs[k][0];
            mean += pairs[k][0];
            n++;
        }
    }
    printf("      mean error %.4f; the worst layer's is %.2e of itself apart\n", mean / n, worst);
    check(share < 1, "errors of rows held out, share of what rounding allows", share, 1);
}

/* ---- speed ------------------------------------------------------------------------------- */

static kk_buf *filled(kk_engine *e, size_t n, bool doubles, uint64_t seed, double **keep) {
    double *values;
    kk_buf *b = sums_values(e->backend, e->dev, n, doubles, &seed, &values);
    if (keep)
        *keep = values;
    else
        free(values);
    return b;
}

/* Seconds of a second call, the sums of both being looked at in some places. */
static void speed(const char *what, int32_t rows, int32_t n_a, int32_t n_b, bool doubles, bool same,
                  bool across) {
    kk_engine *e = open_on("cuda", 0);
    const kk_backend *be = e->backend;
    kk_err err = {0};
    double *a, *b = NULL;
    kk_buf *sum = NULL;
    kk_buf *on_a = filled(e, (size_t)rows * (size_t)n_a, doubles, 1, &a);
    kk_buf *on_b = same ? on_a : filled(e, (size_t)rows * (size_t)n_b, doubles, 2, &b);
    const size_t bytes = (size_t)n_a * (size_t)n_b * sizeof(double);
    sums_must(be->buf_new(e->dev, KK_MEM_WORKSPACE, bytes, &sum, &err), &err, "sums");
    const kk_gram_args g = {.sum = sum,
                            .a = on_a,
                            .b = on_b,
                            .n_rows = rows,
                            .n_a = n_a,
                            .n_b = n_b,
                            .doubles = doubles,
                            .across = across};
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        const double begin = kk_now();
        sums_must(be->sums->gram(e->dev, &g, &err), &err, "gram");
        sums_must(be->instruments->sync(e->dev, &err), &err, "sync");
        seconds = kk_now() - begin;
    }
    uint64_t state = 3;
    int wrong = 0;
    for (int i = 0; i < 200; i++) {
        size_t p = (size_t)((sums_draw(&state) + 1) / 2 * n_a);
        size_t q = (size_t)((sums_draw(&state) + 1) / 2 * n_b);
        const double *y = same ? a : b;
        double want = 0, got;
        for (int call = 0; call < 2; call++)
            for (int32_t r = 0; r < rows; r++)
                want = across ? fma(a[p * (size_t)rows + (size_t)r],
                                    y[q * (size_t)rows + (size_t)r], want)
                              : fma(a[(size_t)r * (size_t)n_a + p], y[(size_t)r * (size_t)n_b + q],
                                    want);
        sums_must(be->read(e->dev, sum, (p * (size_t)n_b + q) * sizeof got, &got, sizeof got, &err),
                  &err, "reading");
        wrong += memcmp(&want, &got, sizeof got) != 0;
    }
    const double flop = (same ? 1.0 : 2.0) * rows * (double)n_a * n_b;
    printf("      %s: %.1f ms, %.1f TFLOP/s\n", what, 1e3 * seconds, 1e-12 * flop / seconds);
    check(wrong == 0, "200 of its sums, bits that differ", wrong, 0);
    be->buf_free(e->dev, sum);
    be->buf_free(e->dev, on_a);
    if (!same) be->buf_free(e->dev, on_b);
    free(a);
    free(b);
    kk_engine_close(e);
}

int main(int argc, char **argv) {
    kk_err err = {0};
    sums_must(kk_linalg_threads(0, &err), &err, "threads");
    bits();
    if (argc > 1 && strcmp(argv[1], "bits") == 0) return failed != 0;
    closed_forms();
    refusals();
    trainings(argc > 1 ? argv[1] : KK_MODELS "/tiny/prompts");
    speed("features by themselves, 2048 rows of 8448", 2048, 8448, 8448, false, true, false);
    speed("targets by features, 2048 rows of 8192 and 8448", 2048, 8192, 8448, false, false, false);
    speed("targets once more, 4096 of 8448 in float64", 4096, 8448, 8448, true, true, false);
    speed("decoders, 8448 across of 8192 and 512", 8448, 8192, 512, true, false, true);
    if (failed) printf("%d checks failed\n", failed);
    return failed != 0;
}
