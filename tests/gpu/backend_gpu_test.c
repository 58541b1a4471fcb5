/* backend_gpu_test.c - the cases of tests/parity/backend_test.c on the GPU, and what only a GPU
 * could get wrong: that a row's bits do not depend on the rows beside it.
 *
 * The GPU rounds activations to bf16 before a product, and the CPU rounds them to 8 bits
 * beside quantised weights.  So products are held against sums in float64, with a tolerance for
 * the GPU's rounding of their terms, and so is a router's choice, which may differ where logits are
 * nearer than that.  Experts and attention are compared with the CPU by the relative size of the
 * whole error; what is float32 on both sides must agree to rounding.  All memory of the rig is
 * pinned, which the GPU reaches at the same address: pages need no copy.
 *
 * Prints a line per case.  An argument runs only the cases that contain it. */
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    char *base;
    size_t used, size;
} arena;

static void *arena_take(size_t n) {
    const size_t at = (arena.used + 255) / 256 * 256;
    if (at + n > arena.size) {
        fprintf(stderr, "the arena is too small\n");
        exit(2);
    }
    arena.used = at + n;
    return arena.base + at;
}
static void arena_give(void *p) {
    const char *c = p;
    if (c < arena.base || c >= arena.base + arena.size) free(p);
}

#define malloc arena_take
#define free arena_give
#define main cpu_main
#include "../parity/backend_test.c"
#undef main
#undef free
#undef malloc

static rig_device gpu = {.backend = "cuda"};
static int failures;

static void complain(const char *what, const char *label, double a, double b) {
    if (failures++ < 40) printf("  FAIL %s: %s (%g, limit %g)\n", what, label, a, b);
}

/* ---- against the CPU ----------------------------------------------------------------------- */

/* Heads of these sizes meet tensor cores, which round q and K to bf16: scores move by up to a
 * hundredth of their size, and what a softmax makes of scores of hundreds says nothing. */
static double attend_limit(const char *label) {
    int d = 64;
    const char *heads = strstr(label, "heads of ");
    if (heads) sscanf(heads, "heads of %d", &d);
    if (strstr(label, "heads on one")) d = 32;
    if (d != 64 && d != 128 && d != 256 && d != 512) return 2e-5;
    return strstr(label, ", large") ? 2 : 5e-2;
}

/* Values of types whose scales the GPU rounds to f16. */
static bool rounds_scales(const char *label) {
    static const char *const types[] = {" q4_k", " q5_k", " q6_k", " mlx"};
    if (strncmp(label, "embed", 5) && strncmp(label, "ple", 3)) return false;
    for (size_t i = 0; i < COUNT(types); i++)
        if (strstr(label, types[i])) return true;
    return false;
}

static double limit_of(const char *label) {
    static const char *const quantised[] = {" q8_0", " q4_0", " q5_0", " q5_1",
                                            " q4_k", " q5_k", " q6_k", " mlx"};
    if (rounds_scales(label)) return 1e-3;
    const bool experts = !strncmp(label, "experts", 7);
    /* Beside these the CPU rounds activations to 8 bits. */
    for (size_t i = 0; experts && i < COUNT(quantised); i++)
        if (strstr(label, quantised[i])) return 1e-1;
    if (experts) return 1e-2;
    if (!strncmp(label, "attend", 6) || !strncmp(label, "block of", 8)) return attend_limit(label);
    return 2e-5;
}

/* What came of a case so far. */
typedef struct {
    const char *name;
    double worst;       /* relative error; of products, share of the root of their terms' squares */
    size_t rows, clear; /* of routers; those with one right choice */
} verdict;

static void judge_equal(const verdict *v, const rig_record *w, const rig_record *g) {
    const size_t width = rig_width(w->kind);
    /* Packed rows round what may differ in its last bit. */
    const double limit = w->kind == RIG_BYTES ? 0.002 : 0;
    size_t differ = 0;
    for (size_t i = 0; i < w->n; i++)
        differ += memcmp((const char *)w->data + i * width, (const char *)g->data + i * width,
                         width) != 0;
    const double share = (double)differ / (double)w->n;
    if (share > limit) complain(v->name, w->label, share, limit);
}

static void judge_near(verdict *v, const rig_record *w, const rig_record *g) {
    const double limit = w->kind == RIG_BF16 ? 1e-3 : limit_of(w->label);
    double d2 = 0, w2 = 0;
    bool nans = true;
    if (strstr(w->label, "hard")) return; /* the case itself looks at these */
    for (size_t i = 0; i < w->n; i++) {
        const double a = rig_value(w, i), b = rig_value(g, i);
        if (isfinite(a) != isfinite(b)) nans = false;
        if (!isfinite(a) || !isfinite(b)) continue;
        d2 += (a - b) * (a - b);
        w2 += a * a;
    }
    const double e = w2 > 0 ? sqrt(d2 / w2) : sqrt(d2);
    if (!nans) complain(v->name, w->label, NAN, limit);
    if (!(e <= limit)) complain(v->name, w->label, e, limit);
    if (e > v->worst) v->worst = e;
}

/* ---- sums in float64 ------------------------------------------------------------------------ */

/* How far rounding its inputs to bf16 may move a sum, as a share of the root of its terms' squares.
 * An input moves by 2^-8 of itself at most and by 1.6e-3 in the root mean square, and so does that
 * share: the worst of five million sums was 8.7e-3.  A step of 32 inputs left out of 2816 moves it
 * by 1e-1. */
static const double rounding = 1.2e-2;

/* Each output on its own, so that a single wrong one is not lost among the others. */
static void judge_products(verdict *v, const rig_record *w, const rig_record *g) {
    double most = 0;
    if (w->n != w->sums.n_rows * w->sums.width) complain(v->name, w->label, (double)w->n, 0);
    for (size_t i = 0; i < w->n; i++) {
        const double off = fabs(rig_value(g, i) - w->sums.sum[i]);
        const double e = off > 0 ? off / w->sums.size[i] : 0;
        if (!isfinite(off)) complain(v->name, w->label, off, rounding);
        if (e > most) most = e;
    }
    if (most > rounding) complain(v->name, w->label, most, rounding);
    if (most > v->worst) v->worst = most;
}

/* A row of a router: its logits, what each expert's weight is scaled by, and what was chosen. */
typedef struct {
    const double *logit, *size;
    const float *by, *weight;
    const int32_t *expert;
    int32_t n_expert, n_used;
} routed;

static double margin(const routed *r, int32_t a, int32_t b) {
    return rounding * hypot(r->size[a], r->size[b]);
}

/* Whether a may be taken where b is left.  Logits that are equal here come of equal weights and are
 * equal on every device: there the lower id is taken. */
static bool may_take(const routed *r, int32_t a, int32_t b) {
    const double gap = r->logit[a] - r->logit[b];
    return fabs(gap) > 0 ? gap > -margin(r, a, b) : a < b;
}

/* Every expert that was taken might be taken before all that were left then. */
static bool choice_is_right(const routed *r) {
    bool taken[256] = {false};
    for (int32_t s = 0; s < r->n_used; s++) {
        const int32_t a = r->expert[s];
        if (a < 0 || a >= r->n_expert || taken[a]) return false;
        taken[a] = true;
        for (int32_t b = 0; b < r->n_expert; b++)
            if (!taken[b] && !may_take(r, a, b)) return false;
    }
    return true;
}

/* No other set of experts would be right. */
static bool choice_is_clear(const routed *r) {
    bool taken[256] = {false};
    for (int32_t s = 0; s < r->n_used; s++) taken[r->expert[s]] = true;
    for (int32_t s = 0; s < r->n_used; s++)
        for (int32_t b = 0; b < r->n_expert; b++)
            if (!taken[b] && may_take(r, b, r->expert[s])) return false;
    return true;
}

/* A weight lies where logits that are off by their rounding put it, and all of them, without their
 * scales, make one. */
static bool weights_are_right(const routed *r) {
    const double tiny = 1e-5; /* what float32 adds to it */
    double all = 0;
    for (int32_t s = 0; s < r->n_used; s++) {
        const int32_t a = r->expert[s];
        double least = 1, most = 1; /* this softmax's sum, relative to its own term */
        for (int32_t k = 0; k < r->n_used; k++) {
            const int32_t b = r->expert[k];
            if (a == b) continue;
            least += exp(r->logit[b] - r->logit[a] - margin(r, a, b));
            most += exp(r->logit[b] - r->logit[a] + margin(r, a, b));
        }
        const double share = (double)r->weight[s] / (double)r->by[a];
        if (!(share >= (1 - tiny) / most - tiny && share <= (1 + tiny) / least + tiny))
            return false;
        all += share;
    }
    return fabs(all - 1) <= tiny;
}

/* Two records, of experts and of their weights.  What the CPU chose does not matter: beside q8_0 it
 * rounds more than the GPU does. */
static void judge_router(verdict *v, const rig_record *w, const rig_record *g) {
    const rig_sums *sums = &w->sums;
    size_t bad_choice = 0, bad_weight = 0;
    routed r = {
        .by = sums->by, .n_expert = (int32_t)sums->width, .n_used = (int32_t)(w->n / sums->n_rows)};
    for (size_t k = 0; k < sums->n_rows; k++) {
        r.logit = sums->sum + k * sums->width;
        r.size = sums->size + k * sums->width;
        r.expert = (const int32_t *)g[0].data + k * (size_t)r.n_used;
        r.weight = (const float *)g[1].data + k * (size_t)r.n_used;
        v->rows++;
        if (!choice_is_right(&r)) {
            bad_choice++;
            continue;
        }
        v->clear += choice_is_clear(&r);
        bad_weight += !weights_are_right(&r);
    }
    if (bad_choice) complain(v->name, w[0].label, (double)bad_choice, 0);
    if (bad_weight) complain(v->name, w[1].label, (double)bad_weight, 0);
}

static void judge_clear(const verdict *v) {
    const double share = (double)v->clear / (double)v->rows;
    printf("%-28s %5zu of %zu rows have one right choice\n", v->name, v->clear, v->rows);
    if (share < 0.5) complain(v->name, "too few of its choices are clear", share, 0.5);
}

static void compare(const char *name, const rig_records *want, const rig_records *got) {
    verdict v = {.name = name};
    if (want->n != got->n) complain("records", name, (double)got->n, (double)want->n);
    for (size_t k = 0; k < want->n && k < got->n; k++) {
        const rig_record *w = &want->items[k], *g = &got->items[k];
        if (w->n != g->n) complain(name, w->label, (double)g->n, (double)w->n);
        if (w->n == 0 || w->n != g->n) continue;
        if (w->sums.by && k + 1 < got->n)
            judge_router(&v, w, g), k++;
        else if (w->sums.sum)
            judge_products(&v, w, g);
        else if (w->kind == RIG_INTS || w->kind == RIG_BYTES)
            judge_equal(&v, w, g);
        else
            judge_near(&v, w, g);
    }
    if (v.rows) judge_clear(&v);
    printf("%-28s %5zu records, worst relative error %.2e\n", name, want->n, v.worst);
    fflush(stdout);
}

static void clear(rig_records *r) {
    for (size_t i = 0; i < r->n; i++) arena_give(r->items[i].data);
    *r = (rig_records){0};
}

static bool run_on(const rig_device *d, size_t i, rig_records *out) {
    static rig r;
    if (!rig_open(&r, d, cases[i].max_rows, out, 1000 + i)) return false;
    r.with_sums = d == &reference;
    cases[i].fn(&r);
    rig_sync(&r);
    rig_close(&r);
    return true;
}

/* ---- row invariance ------------------------------------------------------------------------ */

enum { MOST = 37 };

/* Rows [first, first + n) of x through a weight. */
static void some_rows(rig *r, const float *x, int32_t first, int32_t n, int32_t in, kk_weight *w,
                      int32_t out, float *to) {
    kk_buf *b = rig_buf(r, x + (size_t)first * (size_t)in, (size_t)(n * in));
    kk_buf *y = rig_random_buf(r, (size_t)(n * out), 1);
    const kk_linear_args a = {.out = {y}, .w = {w}, .n = 1, .x = b, .n_rows = n};
    RIG_RUN(r, linear, &a);
    rig_read(r, y, to, (size_t)(n * out));
}

static void linear_rows_are_alone(kk_dtype type) {
    static const int32_t shapes[][2] = {{2816, 200}, {704, 2816}, {2112, 264}, {4096, 88},
                                        {40, 24},    {8192, 48},  {1536, 1072}};
    static const int32_t cuts[] = {1, 2, 7, 8, 9, 16, 17, MOST};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        static rig r;
        rig_records none = {0};
        arena.used = 0;
        if (!rig_open(&r, &gpu, MOST, &none, 7 + s)) return;
        const int32_t in = shapes[s][0], out = shapes[s][1];
        if (in % kk_dtype_get(type)->values) {
            rig_close(&r);
            continue;
        }
        kk_weight *w = rig_weight(&r, type, out, in);
        const float *x = rig_floats(&r, (size_t)(MOST * in), 1);
        float *all = rig_memory(&r, (size_t)(MOST * out) * 4),
              *part = rig_memory(&r, (size_t)(MOST * out) * 4);
        some_rows(&r, x, 0, MOST, in, w, out, all);
        for (size_t c = 0; c < COUNT(cuts); c++) {
            for (int32_t f = 0; f < MOST; f += cuts[c]) {
                const int32_t n = MOST - f < cuts[c] ? MOST - f : cuts[c];
                some_rows(&r, x, f, n, in, w, out, part + (size_t)f * (size_t)out);
            }
            if (memcmp(all, part, (size_t)(MOST * out) * 4) != 0)
                complain("rows alone", "linear", (double)cuts[c], (double)in);
        }
        rig_close(&r);
        printf("linear %s [%d, %d]: rows alone and together, %d failures so far\n",
               kk_dtype_get(type)->name, out, in, failures);
    }
}

/* Products so wide that few rows take kernels of their own (cuda_slices.cu, cuda_wide.cu): 2 to 16
 * rows together against each alone, and where a block has 227 KB weights are read once. */
static void wide_rows_are_alone(void) {
    static const int32_t shapes[][2] = {{21504, 264}, {8192, 4240}, {5376, 1072},
                                        {16384, 40},  {26880, 16},  {5440, 4240}};
    enum { ROWS = 16 };
    for (size_t s = 0; s < COUNT(shapes); s++) {
        static rig r;
        rig_records none = {0};
        kk_dev_counts counts;
        const int before = failures;
        arena.used = 0;
        if (!rig_open(&r, &gpu, ROWS, &none, 17 + s)) return;
        const int32_t in = shapes[s][0], out = shapes[s][1];
        kk_weight *w = rig_weight(&r, KK_BF16, out, in);
        const float *x = rig_floats(&r, (size_t)(ROWS * in), 1);
        float *alone = rig_memory(&r, (size_t)(ROWS * out) * 4),
              *some = rig_memory(&r, (size_t)(ROWS * out) * 4);
        for (int32_t i = 0; i < ROWS; i++)
            some_rows(&r, x, i, 1, in, w, out, alone + (size_t)i * (size_t)out);
        for (int32_t n = 2; n <= ROWS; n++) {
            some_rows(&r, x, 0, n, in, w, out, some);
            if (memcmp(alone, some, (size_t)(n * out) * 4) != 0)
                complain("wide rows alone", "linear", (double)n, (double)in);
        }
        r.be->instruments->counts(r.dev, &counts);
        if (counts.repeats && !gpu.isa)
            complain("weights read more than once", "linear", (double)counts.repeats, (double)in);
        rig_close(&r);
        printf("linear bf16 [%d, %d]: 2 to 16 rows against each alone, %d failures\n", out, in,
               failures - before);
    }
}

static void experts_rows_are_alone(kk_dtype gates, kk_dtype downs) {
    enum { H = 2816, F = 704, E = 16, U = 8, R = 20 };
    static rig r;
    rig_records none = {0};
    arena.used = 0;
    if (!rig_open(&r, &gpu, R, &none, 99)) return;
    kk_weight *gate = rig_load(&r, rig_matrix(&r, gates, E, 2 * F, H), 1);
    kk_weight *down = rig_load(&r, rig_matrix(&r, downs, E, H, F), U);
    RIG_PREPARE(&r, .experts = {E, U, F, H});
    const float *x = rig_floats(&r, (size_t)R * H, 1), *weight = rig_floats(&r, (size_t)R * U, 1);
    int32_t expert[R * U];
    for (int i = 0; i < R; i++) {
        const int first = rig_below(&r, E);
        for (int k = 0; k < U; k++) expert[i * U + k] = (first + 3 * k) % E;
    }
    float *got[2] = {rig_memory(&r, (size_t)R * H * 4), rig_memory(&r, (size_t)R * H * 4)};
    static const int32_t cuts[] = {R, 1, 3, 8, 9, 16};
    for (size_t c = 0; c < COUNT(cuts); c++) {
        for (int32_t f = 0; f < R; f += cuts[c]) {
            const int32_t n = R - f < cuts[c] ? R - f : cuts[c];
            kk_buf *out = rig_random_buf(&r, (size_t)n * H, 1);
            const kk_experts_args a = {.out = out,
                                       .x = rig_buf(&r, x + (size_t)f * H, (size_t)n * H),
                                       .expert = rig_buf(&r, expert + f * U, (size_t)n * U),
                                       .weight = rig_buf(&r, weight + f * U, (size_t)n * U),
                                       .gate = gate,
                                       .down = down,
                                       .n_rows = n,
                                       .n_used = U,
                                       .ffn = F};
            RIG_RUN(&r, experts, &a);
            rig_read(&r, out, got[c > 0] + (size_t)f * H, (size_t)n * H);
        }
        if (c && memcmp(got[0], got[1], (size_t)R * H * 4) != 0)
            complain("rows alone", "experts", (double)cuts[c], 0);
    }
    rig_close(&r);
    printf("experts: rows alone and together, %d failures so far\n", failures);
}

/* ---- many rows: tiles against the decode kernels -------------------------------------------- */

enum { MANY = 360 }; /* more than two tiles of 176 rows */
static const int32_t many_counts[] = {17, 64, 129, 176, 200, 300, MANY};

static int64_t wgmma_launches(const rig *r) {
    kk_dev_counts counts = {0};
    r->be->instruments->counts(r->dev, &counts);
    return counts.wgmma;
}

static bool is_bf16(kk_dtype t) { return t == KK_BF16 || t == KK_F16 || t == KK_F32; }

/* sm_90a's kernels take products of weights in bf16 (planes) there, and attention of heads of 256
 * and, where K = V, 512 in bf16, unless the limits of another chip or code for another one are
 * tested. */
static void check_wgmma(const rig *r, int64_t before, const char *what) {
    kk_dev_facts facts = {0};
    r->be->describe(r->dev, &facts);
    const bool here = strstr(facts.isa, "sm_90") && !gpu.isa && !getenv("KK_GPU_ARCH");
    if ((wgmma_launches(r) > before) != here)
        complain("kernels of sm_90a", what, (double)(wgmma_launches(r) - before), here);
}

/* The first rows of x through all of these weights at once, then through each in turn 16 rows at
 * a time. */
static void compare_many(rig *r, kk_weight *const *w, const int32_t *out, int32_t n, int32_t in,
                         const char *what) {
    const float *x = rig_floats(r, (size_t)(MANY * in), 1);
    float *few[KK_LINEAR_MAX], *many = rig_memory(r, (size_t)MANY * 4096 * 4);
    for (int32_t i = 0; i < n; i++) {
        few[i] = rig_memory(r, (size_t)(MANY * out[i]) * 4);
        for (int32_t f = 0; f < MANY; f += 16)
            some_rows(r, x, f, MANY - f < 16 ? MANY - f : 16, in, w[i], out[i],
                      few[i] + (size_t)f * (size_t)out[i]);
    }
    kk_linear_args a = {.n = n, .x = rig_buf(r, x, (size_t)(MANY * in))};
    for (size_t c = 0; c < COUNT(many_counts); c++) {
        a.n_rows = many_counts[c];
        for (int32_t i = 0; i < n; i++) {
            a.w[i] = w[i];
            a.out[i] = rig_random_buf(r, (size_t)(a.n_rows * out[i]), 1);
        }
        RIG_RUN(r, linear, &a);
        for (int32_t i = 0; i < n; i++) {
            const size_t all = (size_t)(a.n_rows * out[i]);
            rig_read(r, a.out[i], many, all);
            if (memcmp(many, few[i], all * 4) != 0)
                complain("many rows", what, (double)a.n_rows, (double)in);
        }
    }
}

static void linear_in_tiles(void) {
    static const struct {
        kk_dtype type[3];
        int32_t in, out[3], n;
    } shapes[] = {{{KK_BF16}, 2816, {200}, 1},
                  {{KK_BF16}, 704, {2816}, 1},
                  {{KK_BF16}, 2112, {264}, 1},
                  {{KK_BF16}, 40, {24}, 1},
                  {{KK_BF16}, 8192, {48}, 1},
                  {{KK_BF16}, 1536, {1072}, 1},
                  {{KK_BF16}, 1000, {129}, 1},
                  {{KK_BF16, KK_BF16, KK_BF16}, 2816, {256, 128, 40}, 3},
                  {{KK_Q4_0, KK_F32, KK_BF16}, 768, {72, 136, 15}, 3},
                  {{KK_Q4_0, KK_Q4_0, KK_Q4_0}, 2816, {256, 128, 40}, 3},
                  {{KK_Q4_K, KK_Q4_K, KK_Q6_K}, 2816, {256, 128, 40}, 3},
                  {{KK_Q5_0, KK_Q8_0, KK_Q5_1}, 2112, {264, 128, 40}, 3},
                  {{KK_MLX4_64, KK_MLX8_32, KK_MLX4_32}, 4096, {88, 128, 40}, 3},
                  {{KK_Q6_K, KK_F16, KK_Q8_0}, 2048, {72, 136, 300}, 3}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        static rig r;
        rig_records none = {0};
        kk_weight *w[3];
        arena.used = 0;
        if (!rig_open(&r, &gpu, MANY, &none, 300 + s)) return;
        for (int32_t i = 0; i < shapes[s].n; i++)
            w[i] = rig_weight(&r, shapes[s].type[i], shapes[s].out[i], shapes[s].in);
        const int64_t before = wgmma_launches(&r);
        bool bf16 = false;
        for (int32_t i = 0; i < shapes[s].n; i++) bf16 = bf16 || is_bf16(shapes[s].type[i]);
        compare_many(&r, w, shapes[s].out, shapes[s].n, shapes[s].in, "linear");
        if (bf16) check_wgmma(&r, before, "linear");
        rig_close(&r);
        printf("linear of %d from %d inputs in tiles, %d failures so far\n", shapes[s].n,
               shapes[s].in, failures);
    }
    for (size_t t = 0; t < COUNT(weight_types); t++) {
        static rig r;
        rig_records none = {0};
        arena.used = 0;
        if (!rig_open(&r, &gpu, MANY, &none, 400 + t)) return;
        const int32_t out = 200;
        kk_weight *w = rig_weight(&r, weight_types[t], out, 512);
        compare_many(&r, &w, &out, 1, 512, kk_dtype_get(weight_types[t])->name);
        rig_close(&r);
    }
    printf("linear of all types in tiles, %d failures so far\n", failures);
}

typedef struct {
    experts_shape shape;
    int32_t among; /* experts that rows choose from */
} tiles_case;

static void experts_some(rig *r, const experts_shape *s, const kk_experts_args *with,
                         const float *x, const float *weight, const int32_t *expert, int32_t first,
                         int32_t n, float *to) {
    const size_t h = (size_t)s->hidden, u = (size_t)s->n_used, f = (size_t)first;
    kk_experts_args a = *with;
    a.out = rig_random_buf(r, (size_t)n * h, 1);
    a.x = rig_buf(r, x + f * h, (size_t)n * h);
    a.expert = rig_buf(r, expert + f * u, (size_t)n * u);
    a.weight = rig_buf(r, weight + f * u, (size_t)n * u);
    a.n_rows = n;
    RIG_RUN(r, experts, &a);
    rig_read(r, a.out, to, (size_t)n * h);
}

static void experts_in_tiles(void) {
    static const tiles_case all[] = {
        {{KK_BF16, KK_BF16, KK_BF16, true, 16, 8, 2816, 704, MANY}, 16},
        {{KK_BF16, KK_BF16, KK_BF16, true, 64, 2, 256, 128, MANY}, 4}, /* most without a row */
        {{KK_BF16, KK_BF16, KK_BF16, true, 8, 1, 320, 40, MANY}, 1},   /* all rows to one */
        {{KK_BF16, KK_BF16, KK_BF16, true, 4, 4, 1600, 1568, MANY}, 4},
        {{KK_BF16, KK_BF16, KK_BF16, true, 5, 2, 96, 20, MANY}, 5}, /* no whole strips */
        /* several tiles a block, of fewer steps than copies run ahead */
        {{KK_BF16, KK_BF16, KK_BF16, true, 128, 4, 256, 96, MANY}, 128},
        {{KK_BF16, KK_BF16, KK_BF16, false, 5, 3, 100, 50, MANY}, 5},
        {{KK_F32, KK_F32, KK_F16, false, 6, 2, 64, 32, MANY}, 6},
        {{KK_Q4_0, KK_F32, KK_Q8_0, false, 4, 2, 96, 32, MANY}, 4},
        {{KK_Q4_K, KK_Q4_K, KK_Q6_K, true, 4, 2, 256, 256, MANY}, 4},
        {{KK_Q4_0, KK_Q4_0, KK_Q4_0, true, 16, 8, 2816, 704, MANY}, 16},
        {{KK_Q4_K, KK_Q4_K, KK_Q5_0, true, 8, 4, 2816, 704, MANY}, 8},
        {{KK_Q8_0, KK_Q8_0, KK_MLX8_32, false, 8, 1, 320, 64, MANY}, 1}};
    for (size_t k = 0; k < COUNT(all); k++) {
        static rig r;
        rig_records none = {0};
        const experts_shape *s = &all[k].shape;
        const size_t h = (size_t)s->hidden;
        arena.used = 0;
        if (!rig_open(&r, &gpu, MANY, &none, 500 + k)) return;
        kk_experts_args a = {.n_used = s->n_used, .ffn = s->ffn};
        a.gate = rig_load(
            &r, rig_matrix(&r, s->gate, s->n_expert, s->fused ? 2 * s->ffn : s->ffn, s->hidden), 1);
        if (!s->fused)
            a.up = rig_load(&r, rig_matrix(&r, s->up, s->n_expert, s->ffn, s->hidden), 1);
        a.down = rig_load(&r, rig_matrix(&r, s->down, s->n_expert, s->hidden, s->ffn), s->n_used);
        RIG_PREPARE(&r, .experts = {s->n_expert, s->n_used, s->ffn, s->hidden});
        const float *x = rig_floats(&r, MANY * h, 1);
        const float *weight = rig_floats(&r, (size_t)(MANY * s->n_used), 1);
        const int32_t *expert = draw_experts(&r, s, all[k].among);
        float *few = rig_memory(&r, MANY * h * 4), *many = rig_memory(&r, MANY * h * 4);
        for (int32_t f = 0; f < MANY; f += 16)
            experts_some(&r, s, &a, x, weight, expert, f, MANY - f < 16 ? MANY - f : 16,
                         few + (size_t)f * h);
        const int64_t before = wgmma_launches(&r);
        for (size_t c = 0; c < COUNT(many_counts); c++) {
            experts_some(&r, s, &a, x, weight, expert, 0, many_counts[c], many);
            if (memcmp(many, few, (size_t)many_counts[c] * h * 4) != 0)
                complain("many rows", "experts", (double)many_counts[c], (double)k);
        }
        if (is_bf16(s->gate) && (!s->fused || s->ffn % 8 == 0)) check_wgmma(&r, before, "experts");
        rig_close(&r);
        printf("experts %d of %d, %d x %d, in tiles, %d failures so far\n", s->n_used, s->n_expert,
               s->hidden, s->ffn, failures);
    }
}

/* ---- attention of rows alone and together -------------------------------------------------- */

enum { LONG_ROWS = 200, LONG_PAGES = 80 };

typedef struct {
    int32_t d, n_kv, n_head, n_rot, window, sink;
    bool k_eq_v;
    kk_kv_format format;
} long_shape;

static const long_shape long_shapes[] = {
    {256, 2, 4, 128, 1024, 0, false, KK_KV_BF16}, {512, 1, 8, 64, 0, 0, true, KK_KV_BF16},
    {256, 2, 2, 32, 0, 0, true, KK_KV_BF16},      {512, 1, 3, 256, 300, 70, false, KK_KV_BF16},
    {128, 2, 4, 12, 0, 0, true, KK_KV_Q4},        {64, 3, 3, 32, 100, 4, false, KK_KV_F32},
    {256, 2, 6, 32, 100, 64, false, KK_KV_Q8},    {512, 1, 4, 64, 700, 0, true, KK_KV_Q8},
    {64, 1, 4, 20, 0, 0, true, KK_KV_BF16},       {128, 1, 16, 16, 64, 1, false, KK_KV_BF16},
    {256, 2, 4, 32, 1024, 0, false, KK_KV_S8},    {512, 1, 8, 64, 0, 0, true, KK_KV_S8}};

/* A session with all its pages, and queries of rows at any of its positions. */
typedef struct {
    rig r;
    long_shape s;
    rig_cache *cache; /* for its slot; the pages lie here */
    uint8_t *page[LONG_PAGES];
    float *angle, *norm, *q; /* q: [LONG_ROWS] */
    kk_buf *angles, *k_norm, *q_buf, *out_buf;
    size_t width;
} session;

static session *open_session(const long_shape *shape, uint64_t seed) {
    static session s;
    rig_records none = {0};
    const int32_t one = 1;
    const int64_t zero = 0;
    arena.used = 0;
    if (!rig_open(&s.r, &gpu, LONG_ROWS, &none, seed)) return NULL;
    s.s = *shape;
    s.cache =
        rig_cache_new(&s.r, shape->format, shape->k_eq_v, shape->n_kv, shape->d, 1, &one, &zero);
    for (int i = 0; i < LONG_PAGES; i++) {
        s.page[i] = arena_take(s.cache->page_bytes);
        rig_cache_fill(&s.r, s.cache, s.page[i]);
    }
    s.width = (size_t)(shape->n_head * shape->d);
    s.q = rig_floats(&s.r, LONG_ROWS * s.width, shape->d > 128 ? 0.5f : 1.0f);
    const int64_t n = LONG_PAGES * KK_PAGE_ROWS;
    const size_t angles = (size_t)(n * 2 * shape->n_rot);
    s.angles = rig_random_buf(&s.r, angles, 1);
    const kk_rope_args rope = {
        .table = s.angles, .n = n, .rope = {1e4f, 1, shape->n_rot, shape->d}};
    RIG_RUN(&s.r, rope, &rope);
    s.angle = rig_memory(&s.r, angles * 4);
    rig_read(&s.r, s.angles, s.angle, angles);
    s.norm = rig_floats(&s.r, (size_t)shape->d, 1);
    s.k_norm = rig_buf(&s.r, s.norm, (size_t)shape->d);
    s.q_buf = rig_random_buf(&s.r, LONG_ROWS * s.width, 1);
    s.out_buf = rig_random_buf(&s.r, LONG_ROWS * s.width, 1);
    return &s;
}

/* Rows of several groups, whose queries lie one after the other from row `first` on. */
static void attend_groups(session *s, const kk_group *groups, int32_t n_groups, int32_t first,
                          float *to) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_groups; i++) n += groups[i].n_rows;
    const kk_rows all = {groups, n_groups, n};
    const size_t words = (size_t)n * s->width;
    RIG_RUN(&s->r, write, s->q_buf, 0, s->q + (size_t)first * s->width, words * 4);
    const kk_attend_args a = {.out = s->out_buf,
                              .q = s->q_buf,
                              .k_norm = s->k_norm,
                              .rope_pos = s->angles,
                              .n_rot = s->s.n_rot,
                              .n_head = s->s.n_head,
                              .window = s->s.window,
                              .sink = s->s.sink,
                              .slot = s->cache->slot,
                              .rows = &all,
                              .scale = s->s.format == KK_KV_Q8 ? 0.25f : 1.0f};
    RIG_RUN(&s->r, attend, &a);
    rig_read(&s->r, s->out_buf, to, words);
}

static void attend_some(session *s, int64_t pos, int32_t first, int32_t n, float *to) {
    const kk_group g = {.row = 0, .n_rows = n, .pos = pos + first, .pages = s->page};
    attend_groups(s, &g, 1, first, to);
}

static double as_bf16(double x) { return kk_bf16_f32(kk_f32_bf16((float)x)); }

/* Key j of head h as the rule has it. */
static void rule_key(const session *s, int32_t h, int64_t j, float *k) {
    const int32_t d = s->s.d;
    rig_cache one = *s->cache;
    one.page[0][j / KK_PAGE_ROWS % RIG_PAGES] = s->page[j / KK_PAGE_ROWS];
    const int64_t at = j / KK_PAGE_ROWS % RIG_PAGES * KK_PAGE_ROWS + j % KK_PAGE_ROWS;
    const size_t off = s->s.k_eq_v ? one.slot.v_off : one.slot.k_off;
    for (int32_t i = 0; i < d; i++) k[i] = rig_cache_get(&one, 0, off, h, at, i);
    if (s->s.k_eq_v) {
        const float *cs = s->angle + (size_t)j * 2 * (size_t)s->s.n_rot;
        for (int32_t i = 0; i < d; i++) k[i] *= s->norm[i];
        for (int32_t i = 0; i < s->s.n_rot; i++) {
            const float x = k[i], y = k[i + d / 2], c = cs[i], n = cs[s->s.n_rot + i];
            k[i] = fmaf(-y, n, x * c);
            k[i + d / 2] = fmaf(x, n, y * c);
        }
    }
    for (int32_t i = 0; i < d; i++) k[i] = (float)as_bf16(k[i]);
}

static float rule_value(const session *s, int32_t h, int64_t j, int32_t i) {
    rig_cache one = *s->cache;
    one.page[0][0] = s->page[j / KK_PAGE_ROWS];
    return (float)as_bf16(rig_cache_get(&one, 0, one.slot.v_off, h, j % KK_PAGE_ROWS, i));
}

/* One head of one row by the rule of attend.cuh, sums and exponentials in float64. */
static void rule_row(const session *s, int64_t pos, const float *q, int32_t head, double *out) {
    const int32_t d = s->s.d, h = head / (s->s.n_head / s->s.n_kv);
    const double scale = s->s.format == KK_KV_Q8 ? 0.25 : 1.0;
    double top = -INFINITY, sum = 0;
    float k[512];
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t page = 0; page <= pos / KK_PAGE_ROWS; page++) {
        double score[KK_PAGE_ROWS], m = -INFINITY;
        for (int64_t j = 0; j < KK_PAGE_ROWS; j++) {
            const int64_t at = page * KK_PAGE_ROWS + j;
            const bool seen =
                at <= pos && (at < s->s.sink || !s->s.window || at > pos - s->s.window);
            score[j] = seen ? 0 : -INFINITY;
            if (!seen) continue;
            rule_key(s, h, at, k);
            for (int32_t i = 0; i < d; i++) score[j] += as_bf16(q[i]) * (double)k[i];
            score[j] *= scale;
            m = score[j] > m ? score[j] : m;
        }
        if (!(m > -INFINITY)) continue;
        const double now = m > top ? m : top, old = exp(top - now), new = exp(m - now);
        for (int32_t i = 0; i < d; i++) out[i] *= old;
        sum *= old;
        for (int64_t j = 0; j < KK_PAGE_ROWS; j++) {
            const double p = exp(score[j] - m);
            if (!(score[j] > -INFINITY)) continue;
            sum += p * new;
            for (int32_t i = 0; i < d; i++)
                out[i] += as_bf16(p) * new *(double)rule_value(s, h, page * KK_PAGE_ROWS + j, i);
        }
        top = now;
    }
    for (int32_t i = 0; i < d; i++) out[i] /= sum;
}

static void follow_rule(session *s, int64_t pos, const float *got) {
    static const int32_t rows[] = {0, 77, LONG_ROWS - 1};
    double out[512], d2 = 0, w2 = 0;
    for (size_t k = 0; k < COUNT(rows); k++) {
        const int32_t head = (int32_t)k % s->s.n_head;
        const size_t at = (size_t)rows[k] * s->width + (size_t)(head * s->s.d);
        rule_row(s, pos + rows[k], s->q + at, head, out);
        for (int32_t i = 0; i < s->s.d; i++) {
            d2 += (out[i] - (double)got[at + (size_t)i]) * (out[i] - (double)got[at + (size_t)i]);
            w2 += out[i] * out[i];
        }
    }
    const double e = sqrt(d2 / w2);
    printf("  heads of %d at %d: %.2e from the rule\n", s->s.d, (int)pos, e);
    if (!(e <= 2e-4)) complain("attend", "the rule", e, 2e-4);
}

/* Some rows hold no numbers: those before them have the bits they had. */
static void spoil_a_row(session *s, int64_t pos, const float *all, float *got) {
    const int32_t bad = 9;
    const size_t bytes = s->cache->page_bytes;
    uint8_t *page = s->page[(pos + bad) / KK_PAGE_ROWS], *copy = arena_take(bytes);
    memcpy(copy, page, bytes);
    for (int32_t h = 0; h < s->s.n_kv; h++)
        for (int32_t i = 0; i < s->s.d; i++) {
            rig_cache_spoil(s->cache, page, s->cache->slot.k_off, h, pos + bad, i);
            rig_cache_spoil(s->cache, page, s->cache->slot.v_off, h, pos + bad, i);
        }
    for (int32_t n = 16; n <= LONG_ROWS; n += LONG_ROWS - 16) {
        attend_some(s, pos, 0, n, got);
        if (memcmp(all, got, (size_t)bad * s->width * 4) != 0)
            complain("attend", "a row after it is no number", (double)n, (double)s->s.d);
        if (isfinite(got[(size_t)bad * s->width]))
            complain("attend", "what is no number was not seen", (double)n, (double)s->s.d);
    }
    memcpy(page, copy, bytes);
}

static void attend_rows_are_alone(void) {
    static const int64_t at[] = {0, 61, 250, 1000, 4793};
    static const int32_t cuts[] = {1, 2, 5, 16, 17, 64};
    for (size_t i = 0; i < COUNT(long_shapes); i++) {
        session *s = open_session(&long_shapes[i], 50 + i);
        if (!s) return;
        float *all = arena_take(LONG_ROWS * s->width * 4),
              *got = arena_take(LONG_ROWS * s->width * 4);
        for (size_t p = 0; p < COUNT(at); p++) {
            const int64_t before = wgmma_launches(&s->r);
            attend_some(s, at[p], 0, LONG_ROWS, all);
            if (s->s.d == (s->s.k_eq_v ? 512 : 256) && s->s.format == KK_KV_BF16)
                check_wgmma(&s->r, before, "attend");
            for (size_t c = 0; c < COUNT(cuts); c++) {
                for (int32_t f = 0; f < LONG_ROWS; f += cuts[c])
                    attend_some(s, at[p], f, LONG_ROWS - f < cuts[c] ? LONG_ROWS - f : cuts[c],
                                got + (size_t)f * s->width);
                size_t differ = 0;
                for (size_t k = 0; k < LONG_ROWS * s->width; k++)
                    differ += memcmp(all + k, got + k, 4) != 0;
                if (differ) {
                    printf("  heads of %d at %d, %d at a time: %zu of %zu differ\n", s->s.d,
                           (int)at[p], cuts[c], differ, LONG_ROWS * s->width);
                    complain("rows alone", "attend", (double)cuts[c], (double)s->s.d);
                }
            }
            if (p == 1 || p == 3) follow_rule(s, at[p], all);
            if (p == 1 || p == 2) spoil_a_row(s, at[p], all, got);
        }
        /* Three sessions at once; their pages are the same, their places are not. */
        const kk_group groups[] = {{.row = 0, .n_rows = 40, .pos = 300, .pages = s->page},
                                   {.row = 40, .n_rows = 1, .pos = 77, .pages = s->page},
                                   {.row = 41, .n_rows = 17, .pos = 2000, .pages = s->page}};
        attend_groups(s, groups, 3, 0, all);
        for (int g = 0; g < 3; g++)
            attend_some(s, groups[g].pos - groups[g].row, groups[g].row, groups[g].n_rows,
                        got + (size_t)groups[g].row * s->width);
        if (memcmp(all, got, 58 * s->width * 4) != 0)
            complain("sessions alone", "attend", 3, (double)s->s.d);
        rig_close(&s->r);
        printf("attend, heads of %d, %s%s: rows alone and together, %d failures so far\n", s->s.d,
               kk_kv_format_name(s->s.format), s->s.k_eq_v ? " k = v" : "", failures);
        fflush(stdout);
    }
}

static void run_gpu_case(void **state) {
    const size_t i = (size_t)((const op_case *)*state - cases);
    const int before = failures;
    rig_records want = {0}, got = {0};
    arena.used = 0;
    assert_true(run_on(&reference, i, &want));
    assert_true(run_on(&gpu, i, &got));
    compare(cases[i].name, &want, &got);
    clear(&want);
    clear(&got);
    assert_int_equal(failures, before);
}

static void all_linear_rows_are_alone(void) {
    static const kk_dtype types[] = {KK_BF16, KK_Q4_0, KK_Q5_0, KK_Q5_1,    KK_Q8_0,
                                     KK_Q4_K, KK_Q5_K, KK_Q6_K, KK_MLX4_64, KK_MLX8_32};
    for (size_t t = 0; t < COUNT(types); t++) linear_rows_are_alone(types[t]);
}

static void all_experts_rows_are_alone(void) {
    experts_rows_are_alone(KK_BF16, KK_BF16);
    experts_rows_are_alone(KK_Q4_0, KK_Q4_0);
    experts_rows_are_alone(KK_Q4_K, KK_Q5_0);
    experts_rows_are_alone(KK_Q6_K, KK_MLX8_32);
}

static void rows_are_alone(void **state) {
    static void (*const checks[])(void) = {all_linear_rows_are_alone, all_experts_rows_are_alone,
                                           attend_rows_are_alone,     linear_in_tiles,
                                           experts_in_tiles,          wide_rows_are_alone};
    const int before = failures;
    checks[(size_t)*state]();
    assert_int_equal(failures, before);
}

int main(int argc, char **argv) {
    void *base;
    gpu.isa = getenv("KK_TEST_ISA"); /* a chip whose limits the GPU keeps */
    arena.size = (size_t)1 << 30;
    if (cudaMallocHost(&base, arena.size) != cudaSuccess) {
        printf("no GPU here\n");
        return 77;
    }
    arena.base = base;
    compared = kk_backend_named("cuda");
    struct CMUnitTest tests[COUNT(cases) + 6];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(cases); i++)
        if (argc < 2 || strstr(cases[i].name, argv[1]))
            tests[n++] = (struct CMUnitTest){cases[i].name, run_gpu_case, NULL, NULL,
                                             (void *)(uintptr_t)&cases[i]};
    static const char *const alone[] = {"linear rows alone", "experts rows alone",
                                        "attend rows alone", "linear in tiles",
                                        "experts in tiles",  "wide linear rows alone"};
    for (size_t i = 0; i < COUNT(alone); i++)
        if (argc < 2 || strstr(alone[i], argv[1]))
            tests[n++] = (struct CMUnitTest){alone[i], rows_are_alone, NULL, NULL, (void *)i};
    (void)cpu_main;
    return _cmocka_run_group_tests("gpu", tests, n, NULL, NULL);
}
