/* truth_test.c - the reference operations against the model's formulas, written plainly in
 * double arithmetic.
 *
 * backend_test.c shows that every device does what the reference does; this shows that the
 * reference does what the model asks for. */
#include "support/op_pages.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const float eps = 1e-6f;
static rig r;
static rig_records none;

static int setup(void **state) {
    (void)state;
    static const rig_device reference = {.backend = "cpu", .isa = "reference", .threads = 1};
    return rig_open(&r, &reference, 64, &none, 7) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    rig_close(&r);
    return 0;
}

/* ---- helpers ------------------------------------------------------------------------------ */

static double *doubles(size_t n) {
    double *x = rig_memory(&r, n * sizeof *x);
    memset(x, 0, n * sizeof *x);
    return x;
}

static void assert_near(const char *what, const float *got, const double *want, size_t n,
                        double tolerance) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * fmax(1, fabs(want[i]))))
            fail_msg("%s: value %zu is %.9g, want %.9g", what, i, (double)got[i], want[i]);
}

static void assert_buf_near(const char *what, const kk_buf *b, const double *want, size_t n,
                            double tolerance) {
    float *got = rig_memory(&r, n * sizeof *got);
    rig_read(&r, b, got, n);
    assert_near(what, got, want, n, tolerance);
}

/* x / rms(x) * w */
static void rms_norm(double *y, const double *x, const float *w, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    const double inv = 1 / sqrt(sum / (double)n + (double)eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * inv * (w ? (double)w[i] : 1);
}

static void widen(double *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = (double)x[i];
}

static double gelu_tanh(double u) {
    return 0.5 * u * (1 + tanh(sqrt(2 / acos(-1)) * (u + 0.044715 * u * u * u)));
}

/* Half-split pairs: element i with element i + d / 2. */
static void rotate(double *x, kk_rope rope, int64_t pos) {
    for (int32_t i = 0; i < rope.n_rot; i++) {
        const double freq = pow((double)rope.theta, -2.0 * i / rope.head_dim) / (double)rope.factor;
        const double c = cos((double)pos * freq), s = sin((double)pos * freq);
        const double a = x[i], b = x[i + rope.head_dim / 2];
        x[i] = a * c - b * s;
        x[i + rope.head_dim / 2] = b * c + a * s;
    }
}

/* ---- rows --------------------------------------------------------------------------------- */

enum { ROWS = 5, DIM = 100, ALL = ROWS * DIM };

static void norms(void **state) {
    (void)state;
    float *x = rig_floats(&r, ALL, 9), *a = rig_floats(&r, ALL, 4), *w = rig_floats(&r, DIM, 2);
    double weighted[ALL], bare[ALL], added[ALL], plain[ALL], wide[DIM];
    for (size_t i = 0; i < ALL; i += DIM) {
        widen(wide, x + i, DIM);
        rms_norm(weighted + i, wide, w, DIM);
        rms_norm(bare + i, wide, NULL, DIM);
        widen(wide, a + i, DIM);
        rms_norm(added + i, wide, w, DIM);
        for (size_t k = i; k < i + DIM; k++) {
            added[k] = ((double)x[k] + added[k]) * 0.75;
            plain[k] = (added[k] + (double)a[k]) * 0.5;
        }
    }
    kk_buf *xb = rig_buf(&r, x, ALL), *wb = rig_buf(&r, w, DIM), *out = rig_random_buf(&r, ALL, 1);
    RIG_RUN(&r, norm, &(kk_norm_args){out, xb, wb, ROWS, DIM, eps});
    assert_buf_near("norm", out, weighted, ALL, 1e-6);
    RIG_RUN(&r, norm, &(kk_norm_args){out, xb, NULL, ROWS, DIM, eps});
    assert_buf_near("bare norm", out, bare, ALL, 1e-6);
    kk_buf *ab = rig_buf(&r, a, ALL);
    RIG_RUN(&r, residual, &(kk_residual_args){xb, ab, wb, ROWS, DIM, eps, 0.75f});
    assert_buf_near("residual", xb, added, ALL, 1e-6);
    RIG_RUN(&r, residual, &(kk_residual_args){xb, ab, NULL, ROWS, DIM, eps, 0.5f});
    assert_buf_near("residual without norm", xb, plain, ALL, 1e-6);
}

/* The epsilon stands inside the root: a row of zeros stays one. */
static void norm_of_nothing(void **state) {
    (void)state;
    float x[2 * DIM] = {0};
    double want[2 * DIM] = {0};
    x[DIM] = 1e-3f;
    want[DIM] = 1e-3 / sqrt(1e-6 / DIM + 1e-6);
    kk_buf *b = rig_buf(&r, x, 2 * DIM);
    RIG_RUN(&r, norm, &(kk_norm_args){b, b, NULL, 2, DIM, eps});
    assert_buf_near("norm", b, want, 2 * DIM, 1e-6);
}

static void activations(void **state) {
    (void)state;
    enum { STRIDE = 3 * DIM };
    float *gate = rig_floats(&r, ALL, 8), *up = rig_floats(&r, (size_t)ROWS * STRIDE, 2);
    double gelu[ALL], silu[ALL], cap[ALL];
    gate[0] = 0, gate[1] = 150, gate[2] = -150;
    for (size_t i = 0; i < ALL; i++) {
        const double g = (double)gate[i], u = (double)up[i / DIM * STRIDE + DIM + i % DIM];
        gelu[i] = gelu_tanh(g) * u;
        silu[i] = g / (1 + exp(-g)) * u;
        cap[i] = 30 * tanh(g / 30);
    }
    kk_buf *gb = rig_buf(&r, gate, ALL), *out = rig_random_buf(&r, ALL, 1);
    kk_buf *ub = rig_buf(&r, up, (size_t)ROWS * STRIDE);
    kk_glu_args a = {out, gb, ub, ROWS, DIM, STRIDE, DIM, KK_GELU_TANH};
    RIG_RUN(&r, glu, &a);
    assert_buf_near("gelu", out, gelu, ALL, 1e-6);
    a.act = KK_SILU;
    RIG_RUN(&r, glu, &a);
    assert_buf_near("silu", out, silu, ALL, 1e-6);
    RIG_RUN(&r, softcap, &(kk_softcap_args){gb, ROWS, DIM, 30});
    assert_buf_near("softcap", gb, cap, ALL, 1e-5);
}

static void embeddings(void **state) {
    (void)state;
    enum { VOCAB = 6, WIDE = 256, LAYERS = 4, PIECE = WIDE / LAYERS };
    static const int32_t token[ROWS] = {5, 0, 3, 3, 1};
    const kk_matrix m = rig_matrix(&r, KK_Q5_K, 1, VOCAB, WIDE);
    float table[VOCAB * WIDE], *proj = rig_floats(&r, ROWS * WIDE, 40);
    float *w = rig_floats(&r, PIECE, 2);
    double embedded[ROWS * WIDE], inputs[ROWS * WIDE], c[PIECE];
    kk_dequantize(KK_Q5_K, m.data, table, VOCAB * WIDE);
    for (size_t i = 0; i < ROWS * WIDE; i += PIECE) {
        const float *row = table + (size_t)token[i / WIDE] * WIDE + i % WIDE;
        for (size_t k = 0; k < PIECE; k++) c[k] = (double)proj[i + k] * 0.0625;
        rms_norm(inputs + i, c, w, PIECE);
        for (size_t k = 0; k < PIECE; k++) {
            embedded[i + k] = (double)row[k] * 53;
            inputs[i + k] = (inputs[i + k] + (double)row[k] * 16) / sqrt(2);
        }
    }
    kk_buf *out = rig_random_buf(&r, ROWS * WIDE, 1);
    const kk_weight *weight = rig_load(&r, m, 1);
    RIG_RUN(&r, embed, &(kk_embed_args){out, weight, token, ROWS, 53, NULL});
    assert_buf_near("embed", out, embedded, ROWS * WIDE, 1e-6);
    const kk_ple_args a = {.out = out,
                           .proj = rig_buf(&r, proj, ROWS * WIDE),
                           .w = rig_buf(&r, w, PIECE),
                           .table = weight,
                           .token = token,
                           .n_rows = ROWS,
                           .n_layer = LAYERS,
                           .dim = PIECE,
                           .proj_scale = 0.0625f,
                           .scale = 16,
                           .eps = eps};
    RIG_RUN(&r, ple, &a);
    assert_buf_near("per-layer inputs", out, inputs, ROWS * WIDE, 1e-6);
}

static void gathered_rows(void **state) {
    (void)state;
    static const int32_t row[] = {4, 0, 4, 2};
    float *x = rig_floats(&r, ALL, 1);
    double want[COUNT(row) * DIM];
    for (size_t i = 0; i < COUNT(want); i++) want[i] = (double)x[row[i / DIM] * DIM + (int)i % DIM];
    kk_buf *out = rig_random_buf(&r, COUNT(want), 1);
    const kk_gather_args a = {
        .out = out, .x = rig_buf(&r, x, ALL), .row = row, .n = (int32_t)COUNT(row), .dim = DIM};
    RIG_RUN(&r, gather, &a);
    assert_buf_near("gather", out, want, COUNT(want), 0);
}

/* Rows 2 and 3 of x, written with a stride: what lies between stays. */
static void gathered_apart(void **state) {
    (void)state;
    enum { AT = 7, STRIDE = DIM + 13, N = AT + STRIDE + DIM + 5 };
    float *x = rig_floats(&r, ALL, 1), *before = rig_floats(&r, N, 1);
    double want[N];
    widen(want, before, N);
    widen(want + AT, x + 2 * DIM, DIM);
    widen(want + AT + STRIDE, x + 3 * DIM, DIM);
    kk_buf *out = rig_buf(&r, before, N);
    const kk_gather_args a = {.out = out,
                              .x = rig_buf(&r, x, ALL),
                              .n = 2,
                              .dim = DIM,
                              .first = 2,
                              .out_at = AT,
                              .out_stride = STRIDE};
    RIG_RUN(&r, gather, &a);
    assert_buf_near("gather", out, want, N, 0);
}

static void largest_values(void **state) {
    (void)state;
    enum { N = 6 };
    static const float x[][N] = {
        {1, 5, 2, 5, 5, 0},
        {-3, -2, -2, -1, -9, -1},
        {7, 1, 7, 2, 3, 4},
        {NAN, 1, 9, NAN, 9, 2},
        {NAN, NAN, NAN, NAN, NAN, NAN},
        {NAN, NAN, -INFINITY, NAN, NAN, NAN},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {0.0f, -0.0f, 0.0f, -0.0f, 0.0f, 0.0f},
    };
    static const struct {
        int32_t banned, want[COUNT(x)];
    } cases[] = {
        {-1, {1, 3, 0, 2, 0, 2, 0, 0}}, {0, {1, 3, 2, 2, 1, 2, 1, 1}},
        {1, {3, 3, 0, 2, 0, 2, 0, 0}},  {2, {1, 3, 0, 4, 0, 0, 0, 0}},
        {3, {1, 5, 0, 2, 0, 2, 0, 0}},  {5, {1, 3, 0, 2, 0, 2, 0, 0}},
    };
    const kk_buf *b = rig_buf(&r, x, COUNT(x) * N);
    for (size_t i = 0; i < COUNT(cases); i++) {
        int32_t got[COUNT(x)];
        RIG_RUN(&r, argmax,
                &(kk_argmax_args){
                    .out = got, .x = b, .n_rows = COUNT(x), .dim = N, .banned = cases[i].banned});
        for (size_t k = 0; k < COUNT(x); k++)
            if (got[k] != cases[i].want[k])
                fail_msg("row %zu, banned %d: %d, want %d", k, cases[i].banned, got[k],
                         cases[i].want[k]);
    }
}

/* ---- matrices ----------------------------------------------------------------------------- */

/* Quantised weights meet rows rounded to 127 steps of the largest value in each 32. */
static void round_row(double *y, const float *x, size_t n, bool round) {
    widen(y, x, n);
    for (size_t b = 0; round && b < n; b += 32) {
        float most = 0;
        for (size_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf(x[i]));
        const float steps = most > 0 ? 127 / most : 0;
        for (size_t i = b; i < b + 32; i++)
            y[i] = (double)rintf(x[i] * steps) * (double)(most / 127);
    }
}

/* y = M x for matrix `mat` of a stack, and how large the terms of each sum are. */
static void multiply(double *y, double *size, kk_matrix m, int64_t mat, const float *x) {
    float w[2048];
    double rounded[2048];
    assert_true(m.n_in <= 2048);
    round_row(rounded, x, (size_t)m.n_in, kk_dtype_is_quant(m.dtype));
    for (int64_t o = 0; o < m.n_out; o++) {
        rig_row_floats(&m, mat * m.n_out + o, w);
        y[o] = 0;
        if (size) size[o] = 0;
        for (int64_t i = 0; i < m.n_in; i++) {
            y[o] += (double)w[i] * rounded[i];
            if (size) size[o] += fabs((double)w[i] * rounded[i]);
        }
    }
}

static void matrices(void **state) {
    (void)state;
    enum { OUT = 19, IN = 512 };
    for (int t = KK_F32; t < KK_DTYPES; t++) {
        if (kk_dtype_is_integer((kk_dtype)t)) continue;
        const kk_matrix m = rig_matrix(&r, (kk_dtype)t, 1, OUT, IN);
        float *x = rig_floats(&r, ROWS * IN, 3), got[ROWS * OUT];
        kk_buf *out = rig_random_buf(&r, ROWS * OUT, 1);
        const kk_linear_args a = {{out}, {rig_load(&r, m, 1)}, 1, rig_buf(&r, x, ROWS * IN), ROWS};
        RIG_RUN(&r, linear, &a);
        rig_read(&r, out, got, ROWS * OUT);
        for (size_t row = 0; row < ROWS; row++) {
            double want[OUT], size[OUT];
            multiply(want, size, m, 0, x + row * IN);
            for (size_t o = 0; o < OUT; o++)
                if (!(fabs((double)got[row * OUT + o] - want[o]) <= 1e-6 * size[o]))
                    fail_msg("%s: row %zu output %zu is %.9g, want %.9g",
                             kk_dtype_get(m.dtype)->name, row, o, (double)got[row * OUT + o],
                             want[o]);
        }
    }
}

/* ---- experts ------------------------------------------------------------------------------ */

enum { HIDDEN = 64, EXPERTS = 9, USED = 3, FFN = 32 };

/* Softmax over all experts, the largest USED of it, renormalised, times each one's scale. */
static void route_row(const float *x, const float *scale, const float *per_expert, kk_matrix proj,
                      int32_t expert[USED], double weight[USED]) {
    double wide[HIDDEN], logit[EXPERTS], sum = 0;
    float in[HIDDEN];
    widen(wide, x, HIDDEN);
    rms_norm(wide, wide, scale, HIDDEN);
    for (int i = 0; i < HIDDEN; i++) in[i] = (float)(wide[i] / sqrt(HIDDEN));
    multiply(logit, NULL, proj, 0, in);
    for (int e = 0; e < EXPERTS; e++) sum += exp(logit[e]);
    double chosen = 0;
    for (int s = 0; s < USED; s++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++) {
            bool taken = false;
            for (int k = 0; k < s; k++) taken |= expert[k] == e;
            if (!taken && (best < 0 || logit[e] > logit[best])) best = e;
        }
        expert[s] = best;
        weight[s] = exp(logit[best]) / sum;
        chosen += weight[s];
    }
    for (int s = 0; s < USED; s++) weight[s] *= (double)per_expert[expert[s]] / chosen;
}

static void routing(void **state) {
    (void)state;
    float *x = rig_floats(&r, ROWS * HIDDEN, 7), *scale = rig_floats(&r, HIDDEN, 20);
    float *per_expert = rig_floats(&r, EXPERTS, 2);
    const kk_matrix proj = rig_matrix(&r, KK_F32, 1, EXPERTS, HIDDEN);
    kk_buf *expert = rig_random_buf(&r, ROWS * USED, 1),
           *weight = rig_random_buf(&r, ROWS * USED, 1);
    const kk_route_args a = {.expert = expert,
                             .weight = weight,
                             .x = rig_buf(&r, x, ROWS * HIDDEN),
                             .scale = rig_buf(&r, scale, HIDDEN),
                             .per_expert_scale = rig_buf(&r, per_expert, EXPERTS),
                             .proj = rig_load(&r, proj, 1),
                             .n_rows = ROWS,
                             .n_used = USED,
                             .eps = eps};
    RIG_PREPARE(&r, .experts = {EXPERTS, USED, FFN, HIDDEN});
    RIG_RUN(&r, route, &a);
    int32_t got[ROWS * USED], want[ROWS * USED];
    double weights[ROWS * USED];
    for (int i = 0; i < ROWS; i++)
        route_row(x + i * HIDDEN, scale, per_expert, proj, want + i * USED, weights + i * USED);
    rig_read(&r, expert, got, ROWS * USED);
    assert_memory_equal(got, want, sizeof want);
    assert_buf_near("weights", weight, weights, ROWS * USED, 1e-5);
}

/* The lower id wins, also far down the list, and equal logits share evenly. */
static void routing_ties(void **state) {
    (void)state;
    float *x = rig_floats(&r, HIDDEN, 1), ones[HIDDEN], proj[EXPERTS * HIDDEN] = {0};
    for (int i = 0; i < HIDDEN; i++) ones[i] = 1;
    for (int i = 0; i < HIDDEN; i++) /* 4 and 7 lead together, the others follow together */
        proj[4 * HIDDEN + i] = proj[7 * HIDDEN + i] = x[i] > 0 ? 1 : -1;
    const kk_matrix m = rig_stored(KK_F32, 1, EXPERTS, HIDDEN, proj);
    kk_buf *expert = rig_random_buf(&r, 4, 1), *weight = rig_random_buf(&r, 4, 1);
    const kk_route_args a = {.expert = expert,
                             .weight = weight,
                             .x = rig_buf(&r, x, HIDDEN),
                             .scale = rig_buf(&r, ones, HIDDEN),
                             .per_expert_scale = rig_buf(&r, ones, EXPERTS),
                             .proj = rig_load(&r, m, 1),
                             .n_rows = 1,
                             .n_used = 4,
                             .eps = eps};
    static const int32_t want[4] = {4, 7, 0, 1};
    int32_t got[4];
    float w[4];
    RIG_PREPARE(&r, .experts = {EXPERTS, 4, FFN, HIDDEN});
    RIG_RUN(&r, route, &a);
    rig_read(&r, expert, got, 4);
    rig_read(&r, weight, w, 4);
    assert_memory_equal(got, want, sizeof want);
    assert_true(w[0] >= w[1] && w[1] >= w[0] && w[2] >= w[3] && w[3] >= w[2] && w[1] > w[2]);
}

/* sum over slots of weight * down(gelu(gate x) * up x) */
static void expert_row(double *y, const float *x, const int32_t *expert, const float *weight,
                       kk_matrix gate, kk_matrix up, kk_matrix down) {
    for (int i = 0; i < HIDDEN; i++) y[i] = 0;
    for (int s = 0; s < USED; s++) {
        double g[2 * FFN], u[FFN], o[HIDDEN];
        float act[FFN];
        multiply(g, NULL, gate, expert[s], x);
        if (up.data) multiply(u, NULL, up, expert[s], x);
        for (int i = 0; i < FFN; i++)
            act[i] = (float)(gelu_tanh(g[i]) * (up.data ? u[i] : g[FFN + i]));
        multiply(o, NULL, down, expert[s], act);
        for (int i = 0; i < HIDDEN; i++) y[i] += (double)weight[s] * o[i];
    }
}

static void experts(void **state) {
    (void)state;
    /* Not the quantised types: a value on the border between two steps of the second rounding
     * may fall to either side. */
    static const kk_dtype types[] = {KK_F32, KK_F16, KK_BF16};
    for (size_t t = 0; t < 2 * COUNT(types); t++) {
        const bool fused = t % 2 == 0;
        const kk_dtype type = types[t / 2];
        int32_t expert[ROWS * USED];
        for (int i = 0; i < ROWS * USED; i++) expert[i] = (i / USED * 2 + i % USED * 4) % EXPERTS;
        float *x = rig_floats(&r, ROWS * HIDDEN, 2), *weight = rig_floats(&r, ROWS * USED, 1);
        const kk_matrix gate = rig_matrix(&r, type, EXPERTS, fused ? 2 * FFN : FFN, HIDDEN);
        const kk_matrix down = rig_matrix(&r, type, EXPERTS, HIDDEN, FFN);
        kk_matrix up = {0};
        if (!fused) up = rig_matrix(&r, type, EXPERTS, FFN, HIDDEN);
        kk_buf *out = rig_random_buf(&r, ROWS * HIDDEN, 1);
        const kk_experts_args a = {.out = out,
                                   .x = rig_buf(&r, x, ROWS * HIDDEN),
                                   .expert = rig_buf(&r, expert, ROWS * USED),
                                   .weight = rig_buf(&r, weight, ROWS * USED),
                                   .gate = rig_load(&r, gate, 1),
                                   .up = fused ? NULL : rig_load(&r, up, 1),
                                   .down = rig_load(&r, down, USED),
                                   .n_rows = ROWS,
                                   .n_used = USED,
                                   .ffn = FFN};
        RIG_PREPARE(&r, .experts = {EXPERTS, USED, FFN, HIDDEN});
        RIG_RUN(&r, experts, &a);
        double want[ROWS * HIDDEN];
        for (int i = 0; i < ROWS; i++)
            expert_row(want + i * HIDDEN, x + i * HIDDEN, expert + i * USED, weight + i * USED,
                       gate, up, down);
        assert_buf_near(kk_dtype_get(type)->name, out, want, ROWS * HIDDEN, 1e-6);
    }
}

/* Slots are added in order: two large ones that cancel leave the third whole, which they would
 * have swallowed the other way round. */
static void slots_in_order(void **state) {
    (void)state;
    static const int32_t expert[USED] = {2, 0, 1};
    static const float cancelling[USED] = {0x1p27f, -0x1p27f, 1}, third[USED] = {0, 0, 1};
    float *one_gate = rig_floats(&r, 2 * FFN * HIDDEN, 1), *gate;
    float *one_down = rig_floats(&r, HIDDEN * FFN, 1), *down;
    gate = rig_memory(&r, sizeof(float) * USED * 2 * FFN * HIDDEN);
    down = rig_memory(&r, sizeof(float) * USED * HIDDEN * FFN);
    for (size_t e = 0; e < USED; e++) { /* all experts alike */
        memcpy(gate + e * 2 * FFN * HIDDEN, one_gate, sizeof(float) * 2 * FFN * HIDDEN);
        memcpy(down + e * HIDDEN * FFN, one_down, sizeof(float) * HIDDEN * FFN);
    }
    kk_buf *out = rig_random_buf(&r, HIDDEN, 1);
    kk_experts_args a = {.out = out,
                         .x = rig_random_buf(&r, HIDDEN, 1),
                         .expert = rig_buf(&r, expert, USED),
                         .gate = rig_load(&r, rig_stored(KK_F32, USED, 2 * FFN, HIDDEN, gate), 1),
                         .down = rig_load(&r, rig_stored(KK_F32, USED, HIDDEN, FFN, down), USED),
                         .n_rows = 1,
                         .n_used = USED,
                         .ffn = FFN};
    float want[HIDDEN], got[HIDDEN];
    RIG_PREPARE(&r, .experts = {USED, USED, FFN, HIDDEN});
    a.weight = rig_buf(&r, third, USED);
    RIG_RUN(&r, experts, &a);
    rig_read(&r, out, want, HIDDEN);
    a.weight = rig_buf(&r, cancelling, USED);
    RIG_RUN(&r, experts, &a);
    rig_read(&r, out, got, HIDDEN);
    assert_memory_equal(got, want, sizeof want);
}

/* ---- attention ---------------------------------------------------------------------------- */

static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8, KK_KV_Q4, KK_KV_S8};
static const int32_t group_rows[] = {3, 9, 1};
static const int64_t group_pos[] = {62, 0, 130};

static void angles(void **state) {
    (void)state;
    const kk_rope rope = {1e6f, 2, 16, 128};
    enum { N = 70, FIRST = 3 };
    double want[N * 32];
    float got[(FIRST + N) * 32];
    for (int p = 0; p < N; p++) {
        for (int i = 0; i < 16; i++) {
            const double angle = (p + 5) * pow(1e6, -2.0 * i / 128) / 2;
            want[p * 32 + i] = cos(angle);
            want[p * 32 + 16 + i] = sin(angle);
        }
    }
    kk_buf *table = rig_random_buf(&r, COUNT(got), 1);
    RIG_RUN(&r, rope,
            &(kk_rope_args){.table = table, .first = FIRST, .pos0 = 5, .n = N, .rope = rope});
    rig_read(&r, table, got, COUNT(got));
    assert_near("angles", got + FIRST * 32, want, COUNT(want), 1e-5);
}

/* Half a step of the range, and what f16 takes from scale and bias.  even: the range goes as far
 * below 0 as above. */
static void check_group(const char *what, const float *got, const double *want, double steps,
                        bool even) {
    double least = want[0], most = want[0];
    for (int i = 0; i < 64; i++) {
        least = fmin(least, want[i]);
        most = fmax(most, want[i]);
    }
    if (even) least = fmin(least, -most);
    if (even) most = -least;
    const double range = most - least;
    const double allowed = range / steps / 2 + (range + fabs(least)) / 2048 + 1e-5;
    for (int i = 0; i < 64; i++)
        if (!(fabs((double)got[i] - want[i]) <= allowed))
            fail_msg("%s, %g steps: value %d is %.9g, want %.9g within %g", what, steps, i,
                     (double)got[i], want[i], allowed);
}

/* K or V of one stored row against what was given: raw values, normed, K also rotated. */
static void check_stored(const rig_cache *c, int32_t s, int64_t pos, int32_t h, size_t off,
                         const float *raw, const float *w, const kk_rope *rope, bool normed) {
    const int32_t d = c->slot.head_dim;
    double want[128];
    float got[128];
    widen(want, raw, (size_t)d);
    if (normed) rms_norm(want, want, w, (size_t)d);
    if (rope) rotate(want, *rope, pos);
    for (int32_t i = 0; i < d; i++) got[i] = rig_cache_get(c, s, off, h, pos, i);
    const char *what = rope ? "stored K" : "stored V";
    if (kk_kv_format_get(c->slot.format)->group == 1)
        assert_near(what, got, want, (size_t)d, c->slot.format == KK_KV_F32 ? 3e-5 : 1.0 / 256);
    else
        for (int32_t i = 0; i < d; i += 64)
            check_group(what, got + i, want + i, c->slot.format == KK_KV_Q4 ? 15 : 254,
                        c->slot.format == KK_KV_S8);
}

typedef enum { STORE_BOTH, STORE_ONE, STORE_V_FROM_K, STORE_RAW_V, STORE_NO_Q } store_way;

static void store_one(kk_kv_format format, store_way way) {
    const bool k_eq_v = way == STORE_ONE, v_from_k = way == STORE_V_FROM_K;
    enum { D = 128, KV = 2, HEADS = 4 };
    const kk_rope rope = {1e4f, 1, D / 2, D};
    rig_cache *c = rig_cache_new(&r, format, k_eq_v, KV, D, 3, group_rows, group_pos);
    rig_cache before = *c;
    const size_t n = (size_t)c->rows.n_rows, bytes = c->page_bytes;
    for (int s = 0; s < 3; s++)
        for (int p = 0; p < RIG_PAGES; p++)
            before.page[s][p] = memcpy(rig_memory(&r, bytes), c->page[s][p], bytes);
    float *q = rig_floats(&r, n * HEADS * D, 3), *k = rig_floats(&r, n * KV * D, 3);
    float *v = k_eq_v || v_from_k ? k : rig_floats(&r, n * KV * D, 3);
    float *qw = rig_floats(&r, D, 2), *kw = rig_floats(&r, D, 2);
    kk_buf *qb = rig_buf(&r, q, n * HEADS * D);
    const kk_store_args a = {.q = way == STORE_NO_Q ? NULL : qb,
                             .k = rig_buf(&r, k, n * KV * D),
                             .v = v == k ? NULL : rig_buf(&r, v, n * KV * D),
                             .q_norm = rig_buf(&r, qw, D),
                             .k_norm = rig_buf(&r, kw, D),
                             .rope_rows = rig_row_angles(&r, c, rope),
                             .n_rot = rope.n_rot,
                             .n_head = HEADS,
                             .slot = c->slot,
                             .rows = &c->rows,
                             .eps = eps,
                             .v_raw = way == STORE_RAW_V};
    RIG_RUN(&r, store, &a);
    double *want = doubles(n * HEADS * D);
    widen(want, q, n * HEADS * D);
    for (int32_t s = 0; s < 3; s++) {
        for (int32_t i = 0; i < c->group[s].n_rows; i++) {
            const int64_t pos = c->group[s].pos + i;
            const size_t row = (size_t)(c->group[s].row + i);
            for (size_t h = 0; a.q && h < HEADS; h++) {
                rms_norm(want + (row * HEADS + h) * D, want + (row * HEADS + h) * D, qw, D);
                rotate(want + (row * HEADS + h) * D, rope, pos);
            }
            for (int32_t h = 0; h < KV; h++) {
                const size_t at = (row * KV + (size_t)h) * D;
                if (!k_eq_v) check_stored(c, s, pos, h, c->slot.k_off, k + at, kw, &rope, true);
                check_stored(c, s, pos, h, c->slot.v_off, v + at, NULL, NULL, !a.v_raw);
            }
            rig_cache_blot(c, s, pos);
            rig_cache_blot(&before, s, pos);
        }
    }
    assert_buf_near("q", qb, want, n * HEADS * D, 3e-5);
    for (int s = 0; s < 3; s++) /* nothing else was written */
        for (int p = 0; p < RIG_PAGES; p++)
            assert_memory_equal(c->page[s][p], before.page[s][p], bytes);
}

static void storing(void **state) {
    (void)state;
    for (int way = STORE_BOTH; way <= STORE_NO_Q; way++)
        for (size_t i = 0; i < COUNT(formats); i++) store_one(formats[i], (store_way)way);
}

/* A NaN is stored as one, whatever bits it has: nothing broken turns into a number. */
static void storing_nan(void **state) {
    (void)state;
    enum { D = 64 };
    static const uint32_t nans[] = {0x7fc00000u, 0xffc00000u, 0x7fffffffu, 0x7fffff80u};
    static const char *const isas[] = {"reference", NULL};
    for (size_t k = 0; k < COUNT(isas); k++) {
        static rig other;
        const rig_device device = {.backend = "cpu", .isa = isas[k], .threads = 1};
        assert_true(rig_open(&other, &device, 1, &none, 3));
        for (size_t i = 0; i < COUNT(nans) * COUNT(formats); i++) {
            const int32_t one = 1;
            const int64_t pos = 3;
            rig_cache *c =
                rig_cache_new(&other, formats[i / COUNT(nans)], false, 1, D, 1, &one, &pos);
            float *v = rig_floats(&other, D, 1);
            v[D - 1] = kk_bits_f32(nans[i % COUNT(nans)]);
            const kk_store_args a = {.q = rig_random_buf(&other, D, 1),
                                     .k = rig_random_buf(&other, D, 1),
                                     .v = rig_buf(&other, v, D),
                                     .q_norm = rig_random_buf(&other, D, 1),
                                     .k_norm = rig_random_buf(&other, D, 1),
                                     .rope_rows = rig_random_buf(&other, 1, 1),
                                     .n_head = 1,
                                     .slot = c->slot,
                                     .rows = &c->rows,
                                     .eps = eps};
            RIG_RUN(&other, store, &a);
            for (int32_t d = 0; d < D; d++)
                assert_true(isnan(rig_cache_get(c, 0, c->slot.v_off, 0, pos, d)));
        }
        rig_close(&other);
    }
}

/* How far a value between -3 and 3 may lie from what is kept of it. */
static double kept_within(kk_kv_format format, double x) {
    if (format == KK_KV_F32) return 0;
    return format == KK_KV_BF16 ? fabs(x) / 256 : format == KK_KV_Q4 ? 0.21 : 0.02;
}

static void check_kept(const rig_cache *c, const rig_cache *before, bool keys, const float *x,
                       int32_t s, int64_t pos) {
    const kk_group *g = &c->group[s];
    const int32_t heads = c->slot.n_kv_head, d = c->slot.head_dim;
    const bool written = pos >= g->pos && pos < g->pos + g->n_rows;
    for (int32_t i = 0; i < 2 * heads * d; i++) {
        const bool k = i < heads * d;
        const int32_t at = i % (heads * d);
        const size_t off = k ? c->slot.k_off : c->slot.v_off;
        const double got = (double)rig_cache_get(c, s, off, at / d, pos, at % d);
        const bool here = written && k == keys;
        const double want = here ? (double)x[(g->row + pos - g->pos) * heads * d + at]
                                 : (double)rig_cache_get(before, s, off, at / d, pos, at % d);
        if (!(fabs(got - want) <= (here ? kept_within(c->slot.format, want) : 0)))
            fail_msg("%s: session %d, row %d, value %d is %.9g, want %.9g",
                     kk_kv_format_name(c->slot.format), s, (int)pos, i, got, want);
    }
}

/* Rows are kept as they are, rounded, where their positions say, and nothing else is touched. */
static void keeping(void **state) {
    (void)state;
    enum { D = 64, HEADS = 2 };
    for (size_t i = 0; i < 2 * COUNT(formats); i++) {
        const kk_kv_format f = formats[i / 2];
        const bool keys = i % 2 == 1;
        rig_cache *c = rig_cache_new(&r, f, false, HEADS, D, 3, group_rows, group_pos);
        rig_cache before = *c;
        const size_t n = (size_t)c->rows.n_rows * HEADS * D;
        float *x = rig_floats(&r, n, 3);
        for (int32_t s = 0; s < 3; s++) {
            c->group[s].latents = c->group[s].pages;
            c->group[s].pages = NULL;
            for (int p = 0; p < RIG_PAGES; p++)
                before.page[s][p] =
                    memcpy(rig_memory(&r, c->page_bytes), c->page[s][p], c->page_bytes);
        }
        RIG_RUN(&r, latents->keep, &(kk_keep_args){rig_buf(&r, x, n), c->slot, keys, &c->rows});
        for (int32_t s = 0; s < 3; s++)
            for (int64_t pos = 0; pos < RIG_PAGES * KK_PAGE_ROWS; pos++)
                check_kept(c, &before, keys, x, s, pos);
    }
}

static bool sees(const kk_attend_args *a, const kk_group *g, int64_t pos, int64_t j) {
    const int64_t window_from = a->block ? g->pos : pos;
    if (j > (a->block ? g->pos + g->n_rows - 1 : pos)) return false;
    return a->window == 0 || j > window_from - a->window || j < a->sink;
}

/* One (row, head): softmax over the keys in sight, summed directly. */
static void attend_row(double *y, const rig_cache *c, int32_t s, int32_t h, int64_t pos,
                       const float *q, const kk_attend_args *a, const float *k_norm, kk_rope rope) {
    enum { MOST = RIG_PAGES * KK_PAGE_ROWS };
    const int32_t d = c->slot.head_dim;
    double p[MOST], key[64], sum = 0;
    for (int64_t j = 0; j < MOST; j++) {
        if (!sees(a, &c->group[s], pos, j)) continue;
        for (int32_t i = 0; i < d; i++)
            key[i] = c->slot.k_eq_v
                         ? (double)rig_cache_get(c, s, c->slot.v_off, h, j, i) * (double)k_norm[i]
                         : (double)rig_cache_get(c, s, c->slot.k_off, h, j, i);
        if (c->slot.k_eq_v) rotate(key, rope, j);
        p[j] = 0;
        for (int32_t i = 0; i < d; i++) p[j] += (double)q[i] * key[i];
        sum += p[j] = exp(p[j] * (double)a->scale);
    }
    for (int32_t i = 0; i < d; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < MOST; j++)
            if (sees(a, &c->group[s], pos, j))
                y[i] += p[j] / sum * (double)rig_cache_get(c, s, c->slot.v_off, h, j, i);
    }
}

static void attend_one(kk_kv_format format, bool k_eq_v, int32_t window, int32_t sink, bool block) {
    enum { KV = 2, HEADS = 6 };
    const int32_t d = kk_kv_format_get(format)->group > 1 ? 64 : 40;
    const kk_rope rope = {1e4f, 1, 5, d};
    rig_cache *c = rig_cache_new(&r, format, k_eq_v, KV, d, 3, group_rows, group_pos);
    rig_cache_hide(c, window, sink);
    const size_t n = (size_t)c->rows.n_rows, all = n * HEADS * (size_t)d;
    float *q = rig_floats(&r, all, 1), *k_norm = rig_floats(&r, (size_t)d, 1);
    kk_buf *out = rig_random_buf(&r, all, 1);
    const kk_attend_args a = {.out = out,
                              .q = rig_buf(&r, q, all),
                              .k_norm = rig_buf(&r, k_norm, (size_t)d),
                              .rope_pos = rig_all_angles(&r, rope),
                              .n_rot = rope.n_rot,
                              .n_head = HEADS,
                              .window = window,
                              .sink = sink,
                              .block = block,
                              .slot = c->slot,
                              .rows = &c->rows,
                              .scale = 0.5f};
    RIG_RUN(&r, attend, &a);
    double *want = doubles(all);
    for (int32_t s = 0; s < 3; s++)
        for (int32_t i = 0; i < c->group[s].n_rows; i++)
            for (int32_t h = 0; h < HEADS; h++) {
                const size_t at = ((size_t)(c->group[s].row + i) * HEADS + (size_t)h) * (size_t)d;
                attend_row(want + at, c, s, h / (HEADS / KV), c->group[s].pos + i, q + at, &a,
                           k_norm, rope);
            }
    assert_buf_near("attend", out, want, all, 1e-5);
}

static void attending(void **state) {
    (void)state;
    static const int32_t windows[] = {0, 1, 5, 64, 70};
    for (size_t i = 0; i < COUNT(windows); i++)
        for (size_t k = 0; k < 2 * COUNT(formats); k++)
            attend_one(formats[k / 2], k % 2 == 1, windows[i], 0, false);
}

/* A window that starts in a sink's page, on its border or far behind it, or within the sink. */
static void attending_with_sink_or_block(void **state) {
    (void)state;
    static const int32_t windows[] = {0, 1, 5, 40, 64, 70}, sinks[] = {0, 1, 4, 64, 70};
    for (size_t i = 0; i < COUNT(windows); i++)
        for (size_t k = 0; k < COUNT(sinks); k++)
            for (int block = 0; block < 2; block++)
                attend_one(formats[(i + k) % COUNT(formats)], k % 3 == 0, windows[i], sinks[k],
                           block == 1);
}

#define TRUTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TRUTH(norms),          TRUTH(norm_of_nothing), TRUTH(activations),
        TRUTH(embeddings),     TRUTH(gathered_rows),   TRUTH(matrices),
        TRUTH(routing),        TRUTH(routing_ties),    TRUTH(experts),
        TRUTH(slots_in_order), TRUTH(angles),          TRUTH(storing),
        TRUTH(storing_nan),    TRUTH(attending),       TRUTH(attending_with_sink_or_block),
        TRUTH(gathered_apart), TRUTH(largest_values),  TRUTH(keeping),
    };
    return cmocka_run_group_tests_name("truth", tests, NULL, NULL);
}
