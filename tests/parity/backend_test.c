/* backend_test.c - every operation of backend.h on every device of this machine, against the
 * plain reference on one thread.
 *
 * Cases draw their inputs from a seeded generator and go over shapes at and off the edges of the
 * tiles: rows, outputs, inputs, head sizes, windows, pages, number formats.  A device that
 * promises the reference's bits is held to them; another one states how near it must come.
 *
 * ctest: threads */
#include "core/hash.h"
#include "support/op_pages.h"

static const rig_device reference = {.backend = "cpu", .isa = "reference", .threads = 1};

static const rig_device devices[] = {
    {.backend = "cpu", .isa = "reference", .threads = 2},
    {.backend = "cpu", .isa = "reference", .threads = 3},
    {.backend = "cpu", .isa = "avx2", .threads = 1},
    {.backend = "cpu", .isa = "avx2", .threads = 2},
    {.backend = "cpu", .isa = "avx2", .threads = 3},
    {.backend = "cpu", .isa = "avx512", .threads = 1},
    {.backend = "cpu", .isa = "avx512", .threads = 2},
    {.backend = "cpu", .isa = "avx512", .threads = 3},
    {.backend = "cpu", .isa = "neon", .threads = 1},
    {.backend = "cpu", .isa = "neon", .threads = 2},
    {.backend = "cpu", .isa = "neon", .threads = 3},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const int32_t row_counts[] = {1, 2, 3, 7, 8, 9, 16, 17, 33};
static const kk_dtype weight_types[] = {KK_F32,     KK_F16,     KK_BF16,    KK_Q8_0,   KK_Q4_0,
                                        KK_Q5_0,    KK_Q5_1,    KK_Q4_K,    KK_Q5_K,   KK_Q6_K,
                                        KK_MLX4_32, KK_MLX4_64, KK_MLX8_32, KK_MLX8_64};
static const float eps = 1e-6f;

/* Row lengths that a type can store: whole blocks, or any for the plain types. */
static int32_t row_length(kk_dtype t, int32_t i) {
    static const int32_t plain[] = {1, 15, 17, 32, 48, 100};
    const int32_t unit = kk_dtype_get(t)->values;
    return unit > 1 ? unit * (1 + i % 3) : plain[(size_t)i % COUNT(plain)];
}

/* ---- rows on their own -------------------------------------------------------------------- */

static const int32_t widths[] = {1, 15, 16, 17, 24, 48, 100, 256, 515};

static void case_embed(rig *r) {
    enum { VOCAB = 11 };
    for (size_t t = 0; t < COUNT(weight_types); t++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = row_length(weight_types[t], (int32_t)i);
            int32_t token[64];
            for (int32_t k = 0; k < n; k++) token[k] = k == n - 1 ? VOCAB - 1 : rig_below(r, VOCAB);
            const size_t all = (size_t)(n * dim);
            kk_buf *out = rig_random_buf(r, all, 1);
            const kk_embed_args a = {
                out, rig_weight(r, weight_types[t], VOCAB, dim), token, n, 53.0f, NULL};
            RIG_RUN(r, embed, &a);
            RIG_RECORD(r, RIG_FLOATS, out, all, "embed %s, %d rows of %d",
                       kk_dtype_get(weight_types[t])->name, n, dim);
        }
    }
}

static void case_norm(rig *r) {
    for (size_t d = 0; d < COUNT(widths); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = widths[d];
            const size_t all = (size_t)(n * dim);
            kk_buf *x = rig_random_buf(r, all, 9), *out = rig_random_buf(r, all, 1);
            kk_buf *w = rig_random_buf(r, (size_t)dim, 2);
            const kk_norm_args weighted = {out, x, w, n, dim, eps};
            RIG_RUN(r, norm, &weighted);
            RIG_RECORD(r, RIG_FLOATS, out, all, "norm of %d rows of %d", n, dim);
            const kk_norm_args in_place = {x, x, NULL, n, dim, eps};
            RIG_RUN(r, norm, &in_place);
            RIG_RECORD(r, RIG_FLOATS, x, all, "bare norm of %d rows of %d in place", n, dim);
        }
    }
}

static void case_residual(rig *r) {
    for (size_t d = 0; d < COUNT(widths); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = widths[d];
            const size_t all = (size_t)(n * dim);
            kk_buf *x = rig_random_buf(r, all, 5);
            kk_residual_args a = {.x = x,
                                  .a = rig_random_buf(r, all, 9),
                                  .w = rig_random_buf(r, (size_t)dim, 2),
                                  .n_rows = n,
                                  .dim = dim,
                                  .eps = eps,
                                  .scale = i % 2 ? 1.0f : 0.7f};
            RIG_RUN(r, residual, &a);
            RIG_RECORD(r, RIG_FLOATS, x, all, "residual, %d rows of %d", n, dim);
            a.w = NULL;
            RIG_RUN(r, residual, &a);
            RIG_RECORD(r, RIG_FLOATS, x, all, "bare residual, %d rows of %d", n, dim);
        }
    }
}

/* Gates of 300 reach both ends of exp.  The last arguments are those of a per-layer input. */
static void case_glu(rig *r) {
    for (size_t d = 0; d < COUNT(widths); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = widths[d], stride = 3 * dim + 1;
            const size_t all = (size_t)(n * dim);
            kk_buf *gate = rig_random_buf(r, all, i % 2 ? 300 : 5),
                   *out = rig_random_buf(r, all, 1);
            kk_buf *up = rig_random_buf(r, (size_t)(n * stride), 3);
            for (int act = KK_GELU_TANH; act <= KK_SILU; act++) {
                const kk_glu_args dense = {out, gate, up, n, dim, dim, 0, (kk_activation)act};
                RIG_RUN(r, glu, &dense);
                RIG_RECORD(r, RIG_FLOATS, out, all, "glu %d, %d rows of %d", act, n, dim);
            }
            const kk_glu_args apart = {gate, gate, up, n, dim, stride, 2 * dim, KK_GELU_TANH};
            RIG_RUN(r, glu, &apart);
            RIG_RECORD(r, RIG_FLOATS, gate, all, "glu in place, %d rows of %d, %d apart", n, dim,
                       stride);
        }
    }
}

static void case_softcap(rig *r) {
    static const int32_t dims[] = {1, 17, 100, 1024, 5003}; /* the last fills several pieces */
    for (size_t d = 0; d < COUNT(dims); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = dims[d];
            if (dim > 2000 && n > 9) continue;
            const size_t all = (size_t)(n * dim);
            kk_buf *x = rig_random_buf(r, all, i % 2 ? 5000 : 60);
            const kk_softcap_args a = {x, n, dim, 30.0f};
            RIG_RUN(r, softcap, &a);
            RIG_RECORD(r, RIG_FLOATS, x, all, "softcap, %d rows of %d", n, dim);
        }
    }
}

static void case_gather(rig *r) {
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        const int32_t n = row_counts[i], dim = widths[i % COUNT(widths)];
        const size_t all = (size_t)(n * dim);
        int32_t row[64];
        for (int32_t k = 0; k < n; k++) row[k] = k == 0 ? 39 : rig_below(r, 40);
        kk_buf *x = rig_random_buf(r, (size_t)(40 * dim), 1), *out = rig_random_buf(r, all, 1);
        kk_gather_args a = {.out = out, .x = x, .row = row, .n = n, .dim = dim};
        RIG_RUN(r, gather, &a);
        RIG_RECORD(r, RIG_FLOATS, out, all, "gather %d rows of %d", n, dim);
        a.row = NULL;
        RIG_RUN(r, gather, &a);
        RIG_RECORD(r, RIG_FLOATS, out, all, "gather the first %d rows of %d", n, dim);
        const size_t at = i % 3 * 5, stride = (size_t)dim + i % 4, wide = at + (size_t)n * stride;
        a = (kk_gather_args){
            rig_random_buf(r, wide, 1), x, i % 2 ? row : NULL, n, dim, 3, at, stride};
        RIG_RUN(r, gather, &a);
        RIG_RECORD(r, RIG_FLOATS, a.out, wide, "gather %d rows of %d, %zu apart", n, dim, stride);
    }
}

/* Few different values, so that most rows have ties; some are no numbers. */
static void case_argmax(rig *r) {
    static const int32_t dims[] = {1, 2, 15, 16, 17, 100, 5003};
    for (size_t d = 0; d < COUNT(dims); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = dims[d];
            const size_t all = (size_t)(n * dim);
            float *x = rig_floats(r, all, 4);
            for (size_t k = 0; k < all; k++)
                x[k] = i % 3 == 2 && rig_below(r, 5) == 0 ? NAN : rintf(x[k]);
            int32_t out[64];
            const kk_argmax_args a = {.out = out,
                                      .x = rig_buf(r, x, all),
                                      .n_rows = n,
                                      .dim = dim,
                                      .banned = i % 2 ? rig_below(r, dim) : -1};
            RIG_RUN(r, argmax, &a);
            rig_record_values(r, RIG_INTS, out, (size_t)n, "largest of %d, %d rows, banned %d", dim,
                              n, a.banned);
        }
    }
}

/* The same by another head's ids: what the host waits for, and ids that stay on the device, whose
 * map changes between two of them. */
static void case_argmax_mapped(rig *r) {
    static const int32_t dims[] = {1, 17, 100, 5003};
    enum { AT = 2 };
    for (size_t d = 0; d < COUNT(dims); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i], dim = dims[d], zero[AT + 64] = {0};
            const size_t all = (size_t)(n * dim);
            float *x = rig_floats(r, all, 4);
            for (size_t k = 0; k < all; k++) x[k] = rintf(x[k]);
            int32_t out[64], *ids = rig_memory(r, (size_t)dim * sizeof *ids);
            for (int32_t k = 0; k < dim; k++) ids[k] = 7 * (dim - k);
            kk_buf *map = rig_buf(r, ids, (size_t)dim), *to = rig_buf(r, zero, AT + 64);
            kk_argmax_args a = {.out = out,
                                .x = rig_buf(r, x, all),
                                .n_rows = n,
                                .dim = dim,
                                .banned = i % 2 ? rig_below(r, dim) : -1,
                                .map = map};
            RIG_RUN(r, argmax, &a);
            rig_record_values(r, RIG_INTS, out, (size_t)n, "mapped of %d, %d rows", dim, n);
            assert_true(out[0] >= 7 && out[0] % 7 == 0);
            a.ids = to;
            a.ids_at = AT;
            RIG_RUN(r, argmax, &a);
            RIG_RECORD(r, RIG_INTS, to, AT + 64, "ids mapped of %d, %d rows", dim, n);
            for (int32_t k = 0; k < dim; k++) ids[k] = 11 * (dim - k);
            const kk_ids_args other = {map, ids, dim};
            RIG_RUN(r, argmax, &a);
            RIG_RUN(r, ids, &other); /* behind the choice: it has the ids from before */
            RIG_RECORD(r, RIG_INTS, to, AT + 64, "ids mapped before, of %d, %d rows", dim, n);
            RIG_RUN(r, argmax, &a);
            RIG_RECORD(r, RIG_INTS, to, AT + 64, "ids mapped anew, of %d, %d rows", dim, n);
        }
    }
}

/* Choices that stay on the device, read by the next embedding; several in a row, so that places
 * are used again. */
static void case_choose(rig *r) {
    static const int32_t dims[] = {1, 2, 15, 16, 17, 100, 5004, 40000};
    enum { WIDE = 32 };
    for (size_t d = 0; d < COUNT(dims); d++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t n = row_counts[i] < KK_PICK_ROWS ? row_counts[i] : KK_PICK_ROWS;
            const int32_t dim = dims[d], zero[KK_PICK_ROWS] = {0};
            const size_t all = (size_t)(n * dim);
            float *x = rig_floats(r, all, 4);
            for (size_t k = 0; k < all; k++)
                x[k] = i % 3 == 2 && rig_below(r, 5) == 0 ? NAN : rintf(x[k]);
            kk_buf *token = rig_buf(r, zero, KK_PICK_ROWS);
            kk_buf *out = rig_random_buf(r, (size_t)n * WIDE, 1);
            const kk_choose_args a = {
                .token = token, .x = rig_buf(r, x, all), .n_rows = n, .dim = dim};
            const kk_embed_args e = {out, rig_weight(r, KK_F32, dim, WIDE), NULL, n, 2, token};
            int64_t first, second;
            double seconds;
            kk_pick pick[KK_PICK_ROWS];
            int32_t chosen[KK_PICK_ROWS], said[KK_PICK_ROWS];
            RIG_RUN(r, choose, &a, &first);
            RIG_RUN(r, embed, &e);
            RIG_RUN(r, choose, &a, &second);
            assert_true(second == first + 1);
            RIG_RUN(r, picked, second, pick, n, &seconds);
            RIG_RUN(r, picked, first, pick, n, &seconds);
            for (int32_t k = 0; k < n; k++) {
                assert_true(pick[k].digest ==
                            kk_hash_digest(x + (size_t)k * (size_t)dim, (size_t)dim));
                chosen[k] = pick[k].token;
            }
            rig_read(r, token, said, (size_t)n);
            assert_memory_equal(said, chosen, (size_t)n * sizeof *said);
            rig_record_values(r, RIG_INTS, chosen, (size_t)n, "choice of %d, %d rows", dim, n);
            RIG_RECORD(r, RIG_FLOATS, out, (size_t)n * WIDE, "embed the choice of %d, %d rows", dim,
                       n);
        }
    }
}

static void case_ple(rig *r) {
    static const int32_t dims[] = {16, 24, 256};
    enum { VOCAB = 5 };
    for (size_t t = 0; t < COUNT(weight_types); t++) {
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            const int32_t unit = kk_dtype_get(weight_types[t])->values, n = row_counts[i];
            const int32_t dim = dims[i % COUNT(dims)];
            int32_t layers = 3;
            while (layers * dim % unit) layers++;
            int32_t token[64];
            for (int32_t k = 0; k < n; k++) token[k] = rig_below(r, VOCAB);
            const size_t all = (size_t)(n * layers * dim);
            kk_buf *out = rig_random_buf(r, all, 1);
            const kk_ple_args a = {.out = out,
                                   .proj = rig_random_buf(r, all, 4),
                                   .w = rig_random_buf(r, (size_t)dim, 2),
                                   .table = rig_weight(r, weight_types[t], VOCAB, layers * dim),
                                   .token = token,
                                   .n_rows = n,
                                   .n_layer = layers,
                                   .dim = dim,
                                   .proj_scale = 0.06f,
                                   .scale = 16,
                                   .eps = eps};
            RIG_RUN(r, ple, &a);
            RIG_RECORD(r, RIG_FLOATS, out, all, "ple %s, %d rows of %d x %d",
                       kk_dtype_get(weight_types[t])->name, n, layers, dim);
        }
    }
}

/* ---- matrices ----------------------------------------------------------------------------- */

static void linear_one(rig *r, kk_dtype t, int32_t n_rows, int32_t n_out, int32_t n_in) {
    const size_t all = (size_t)(n_rows * n_out);
    kk_buf *out = rig_random_buf(r, all, 1);
    const kk_matrix m = rig_matrix(r, t, 1, n_out, n_in);
    const float *x = rig_floats(r, (size_t)(n_rows * n_in), 3);
    const kk_linear_args a = {.out = {out},
                              .w = {rig_load(r, m, 1)},
                              .n = 1,
                              .x = rig_buf(r, x, (size_t)(n_rows * n_in)),
                              .n_rows = n_rows};
    RIG_RUN(r, linear, &a);
    RIG_RECORD(r, RIG_FLOATS, out, all, "linear %s [%d, %d], %d rows", kk_dtype_get(t)->name, n_out,
               n_in, n_rows);
    rig_record_sums(r, &m, x, (size_t)n_rows);
}

static void case_linear(rig *r) {
    static const int32_t outs[] = {1, 15, 16, 17, 48, 100};
    for (size_t t = 0; t < COUNT(weight_types); t++)
        for (size_t o = 0; o < COUNT(outs); o++)
            for (size_t i = 0; i < COUNT(row_counts); i++)
                linear_one(r, weight_types[t], row_counts[i], outs[o],
                           row_length(weight_types[t], (int32_t)(i + o)));
}

/* Rows as long as a real model's, and enough outputs that a thread takes several strips. */
static void case_linear_large(rig *r) {
    for (size_t t = 0; t < COUNT(weight_types); t++) {
        linear_one(r, weight_types[t], 1, 33, 2816);
        linear_one(r, weight_types[t], 5, 17, 2816);
        for (int32_t rows = 2; rows <= 8; rows += 3)
            linear_one(r, weight_types[t], rows, 1603,
                       kk_dtype_get(weight_types[t])->values > 32 ? 256 : 64);
    }
}

/* Up to four matrices of any types on the same rows; a block of zeros among them. */
static void case_linear_together(rig *r) {
    static const kk_dtype together[][KK_LINEAR_MAX] = {
        {KK_Q4_0, KK_Q6_K, KK_F32, KK_BF16},
        {KK_BF16, KK_Q8_0, KK_F16, KK_Q5_1},
        {KK_F32, KK_F32, KK_F32, KK_F32},
        {KK_Q5_K, KK_Q4_K, KK_Q5_0, KK_Q4_K},
        {KK_MLX4_64, KK_MLX8_32, KK_BF16, KK_MLX4_32},
        {KK_F32, KK_MLX8_64, KK_MLX4_64, KK_Q4_0}};
    static const int32_t outs[KK_LINEAR_MAX] = {48, 17, 1, 31};
    enum { IN = 256 };
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        for (size_t k = 0; k < COUNT(together); k++) {
            const int32_t n = row_counts[i];
            float *x = rig_floats(r, (size_t)(n * IN), 3);
            memset(x + 32, 0, 32 * sizeof *x);
            kk_linear_args a = {.n = 2 + (int32_t)((i + k) % 3), .n_rows = n};
            a.x = rig_buf(r, x, (size_t)(n * IN));
            kk_matrix matrix[KK_LINEAR_MAX];
            for (int32_t m = 0; m < a.n; m++) {
                matrix[m] = rig_matrix(r, together[k][m], 1, outs[m], IN);
                a.w[m] = rig_load(r, matrix[m], 1);
                a.out[m] = rig_random_buf(r, (size_t)(n * outs[m]), 1);
            }
            RIG_RUN(r, linear, &a);
            for (int32_t m = 0; m < a.n; m++) {
                RIG_RECORD(r, RIG_FLOATS, a.out[m], (size_t)(n * outs[m]),
                           "linear, matrix %d of %d of set %zu, %d rows", m, a.n, k, n);
                rig_record_sums(r, &matrix[m], x, (size_t)n);
            }
        }
    }
}

/* Rows that are hard to round: values too small for the reciprocal of their largest, too large
 * for a sum, not numbers; each in one block, so that the others show what becomes of it. */
static void case_linear_hard(rig *r) {
    enum { IN = 512, HARD = 7, OUT = 32 };
    static const float hard[HARD] = {1e-44f, 1e-39f, 1e-37f, 3.3e38f, INFINITY, -INFINITY, NAN};
    for (size_t t = 0; t < COUNT(weight_types); t++) {
        float *x = rig_floats(r, (size_t)HARD * IN, 1);
        for (size_t k = 0; k < HARD; k++) {
            float *block = x + k * IN + 32 * (size_t)(1 + rig_below(r, IN / 32 - 1));
            for (int32_t i = 0; i < 32; i++) block[i] *= k < 3 ? hard[k] : 1;
            if (k >= 3) block[rig_below(r, 32)] = hard[k];
        }
        kk_buf *out = rig_random_buf(r, (size_t)HARD * OUT, 1);
        const kk_linear_args a = {.out = {out},
                                  .w = {rig_weight(r, weight_types[t], OUT, IN)},
                                  .n = 1,
                                  .x = rig_buf(r, x, HARD * IN),
                                  .n_rows = HARD};
        RIG_RUN(r, linear, &a);
        float got[HARD * OUT];
        rig_read(r, out, got, HARD * OUT);
        for (int32_t i = 0; i < HARD * OUT; i++) { /* NaNs are alike */
            if (i / OUT != 3) assert_int_equal(isfinite(got[i]) != 0, i / OUT < 3);
            if (isnan(got[i])) got[i] = NAN;
        }
        rig_record_values(r, RIG_FLOATS, got, HARD * OUT, "linear %s of hard rows",
                          kk_dtype_get(weight_types[t])->name);
    }
}

/* ---- rows of weights that change ---------------------------------------------------------- */

/* A copy that nobody writes. */
static kk_matrix copy_matrix(rig *r, const kk_matrix *m) {
    size_t bytes;
    assert_true(kk_dtype_bytes(m->dtype, (uint64_t)(m->n_out * m->n_in), &bytes));
    kk_matrix copy = *m;
    void *data = rig_memory(r, bytes);
    memcpy(data, m->data, bytes);
    copy.data = data;
    return copy;
}

/* Some rows of a weight become others, one of them twice: products asked for before have the old
 * rows, those after have the bits of a weight that was made with the new ones. */
static void change_rows(rig *r, kk_dtype type, int32_t n, int32_t out, int32_t in) {
    enum { CHANGES = 5 };
    const int32_t at[CHANGES] = {0, out - 1, out / 2, out / 3, out - 1};
    const size_t all = (size_t)(n * out);
    const kk_matrix m = rig_matrix(r, type, 1, out, in), new = rig_matrix(r, type, 1, CHANGES, in);
    const kk_matrix before = copy_matrix(r, &m), after = copy_matrix(r, &m);
    float *x = rig_floats(r, (size_t)(n * in), 3);
    size_t row;
    assert_true(kk_dtype_bytes(type, (uint64_t)in, &row));
    for (int32_t i = 0; i < CHANGES; i++)
        memcpy((uint8_t *)(uintptr_t)after.data + (size_t)at[i] * row,
               (const uint8_t *)new.data + (size_t)i *row, row);
    kk_weight *fresh = rig_load(r, after, 1), *w = r->be->weight_row ? rig_load(r, m, 1) : fresh;
    kk_buf *was = rig_random_buf(r, all, 1), *is = rig_random_buf(r, all, 1);
    kk_buf *same = rig_random_buf(r, all, 1);
    kk_linear_args a = {.out = {was}, .w = {w}, .n = 1, .n_rows = n};
    a.x = rig_buf(r, x, (size_t)(n * in));
    if (!r->be->weight_row) a.w[0] = rig_load(r, before, 1);
    RIG_RUN(r, linear, &a);
    for (int32_t i = 0; i < CHANGES && r->be->weight_row; i++) {
        const kk_matrix one =
            rig_stored(type, 1, 1, in, (const uint8_t *)new.data + (size_t)i *row);
        RIG_RUN(r, weight_row, w, at[i], &one);
    }
    a.out[0] = is, a.w[0] = w;
    RIG_RUN(r, linear, &a);
    a.out[0] = same, a.w[0] = fresh;
    RIG_RUN(r, linear, &a);
    float *x1 = rig_memory(r, all * 4), *x2 = rig_memory(r, all * 4);
    rig_read(r, is, x1, all);
    rig_read(r, same, x2, all);
    assert_memory_equal(x1, x2, all * 4);
    const char *name = kk_dtype_get(type)->name;
    RIG_RECORD(r, RIG_FLOATS, was, all, "linear %s [%d, %d] before rows change", name, out, in);
    rig_record_sums(r, &before, x, (size_t)n);
    RIG_RECORD(r, RIG_FLOATS, is, all, "linear %s [%d, %d] of changed rows", name, out, in);
    rig_record_sums(r, &after, x, (size_t)n);
}

static void case_weight_rows(rig *r) {
    static const kk_dtype types[] = {KK_BF16, KK_Q8_0, KK_Q4_0, KK_Q6_K};
    for (size_t t = 0; t < COUNT(types); t++) {
        change_rows(r, types[t], 1, 48, 256);
        change_rows(r, types[t], 3, 1000, 512);
        change_rows(r, types[t], 17, 100, 2816);
    }
}

/* ---- experts ------------------------------------------------------------------------------ */

typedef struct {
    kk_dtype gate, up, down;
    bool fused; /* gate holds both */
    int32_t n_expert, n_used, hidden, ffn, n_rows;
} experts_shape;

/* Every row takes n_used different experts out of [0, among). */
static int32_t *draw_experts(rig *r, const experts_shape *s, int32_t among) {
    const int32_t slots = s->n_rows * s->n_used;
    int32_t *expert = rig_memory(r, (size_t)slots * sizeof *expert);
    for (int32_t i = 0; i < slots; i += s->n_used) {
        const int32_t first = rig_below(r, among);
        for (int32_t k = 0; k < s->n_used; k++) expert[i + k] = (first + k * 3) % among;
    }
    return expert;
}

static void experts_one(rig *r, const experts_shape *s, int32_t among) {
    const size_t slots = (size_t)(s->n_rows * s->n_used), all = (size_t)(s->n_rows * s->hidden);
    kk_matrix gate = rig_matrix(r, s->gate, s->n_expert, s->fused ? 2 * s->ffn : s->ffn, s->hidden);
    kk_matrix down = rig_matrix(r, s->down, s->n_expert, s->hidden, s->ffn);
    kk_buf *out = rig_random_buf(r, all, 1);
    kk_experts_args a = {.out = out,
                         .x = rig_random_buf(r, all, 2),
                         .expert = rig_buf(r, draw_experts(r, s, among), slots),
                         .weight = rig_random_buf(r, slots, 1),
                         .gate = rig_load(r, gate, 1),
                         .down = rig_load(r, down, s->n_used),
                         .n_rows = s->n_rows,
                         .n_used = s->n_used,
                         .ffn = s->ffn};
    if (!s->fused) a.up = rig_load(r, rig_matrix(r, s->up, s->n_expert, s->ffn, s->hidden), 1);
    RIG_PREPARE(r, .experts = {s->n_expert, s->n_used, s->ffn, s->hidden});
    RIG_RUN(r, experts, &a);
    RIG_RECORD(r, RIG_FLOATS, out, all, "experts %s %s, %d of %d, %d rows, %d x %d%s",
               kk_dtype_get(s->gate)->name, kk_dtype_get(s->down)->name, s->n_used, among,
               s->n_rows, s->hidden, s->ffn, s->fused ? "" : ", separate up");
}

/* Rows choose among all the experts, or among few, which leaves the others without a row. */
static void case_experts(rig *r) {
    for (size_t t = 0; t < COUNT(weight_types); t++) {
        const kk_dtype type = weight_types[t];
        const int32_t unit = kk_dtype_get(type)->values;
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            experts_shape s = {.gate = type,
                               .up = type,
                               .down = type,
                               .fused = i % 2 == 0,
                               .n_expert = 7,
                               .n_used = 1 + (int32_t)i % 2,
                               .hidden = unit > 1 ? unit : 40,
                               .ffn = unit > 1 ? unit : 17,
                               .n_rows = row_counts[i]};
            if (unit > 32 && s.n_rows > 9) s.n_rows = 10; /* the reference takes its time */
            experts_one(r, &s, i % 3 ? s.n_expert : 2);
        }
    }
}

/* Types that differ, sizes off the strips, every expert used, and more results than the scratch
 * holds at a time. */
static void case_experts_mixed(rig *r) {
    static const experts_shape shapes[] = {
        {KK_Q4_0, KK_F32, KK_Q8_0, false, 4, 4, 96, 32, 9},
        {KK_F32, KK_Q5_1, KK_BF16, false, 5, 2, 64, 33, 17},
        {KK_MLX4_64, KK_MLX4_64, KK_MLX8_64, false, 5, 2, 128, 64, 9},
        {KK_MLX8_32, KK_MLX4_32, KK_MLX4_32, false, 6, 3, 64, 96, 17},
        {KK_BF16, KK_BF16, KK_Q5_0, true, 3, 1, 50, 64, 33},
        {KK_Q4_K, KK_Q4_K, KK_Q8_0, true, 9, 2, 256, 96, 16},
        {KK_F32, KK_F32, KK_F32, true, 64, 8, 790, 16, 256},
        {KK_Q4_0, KK_Q4_0, KK_Q8_0, true, 400, 8, 800, 32, 250}, /* parts of 784 and 16 outputs */
    };
    for (size_t i = 0; i < COUNT(shapes); i++) experts_one(r, &shapes[i], shapes[i].n_expert);
}

/* Gives the last record a router's logits: sums of its rows, normed, with its matrix. */
static void record_logits(rig *r, const kk_matrix *proj, const float *x, const float *scale,
                          const float *by, size_t n_rows) {
    if (!r->with_sums) return;
    const size_t n = (size_t)proj->n_in, bytes = (size_t)proj->n_out * sizeof *by;
    float *normed = rig_memory(r, n_rows * n * sizeof *normed);
    for (size_t k = 0; k < n_rows; k++) {
        double squares = 0;
        for (size_t i = 0; i < n; i++) squares += (double)x[k * n + i] * (double)x[k * n + i];
        const double root = sqrt(squares / (double)n + (double)eps) * sqrt((double)n);
        for (size_t i = 0; i < n; i++)
            normed[k * n + i] = (float)((double)x[k * n + i] * (double)scale[i] / root);
    }
    rig_record_sums(r, proj, normed, n_rows);
    rig_sums *to = &r->out->items[r->out->n - 1].sums;
    to->by = malloc(bytes);
    assert_non_null(to->by);
    memcpy(to->by, by, bytes);
}

static void route_one(rig *r, kk_matrix proj, int32_t n_rows, int32_t n_used, const char *what) {
    const size_t slots = (size_t)(n_rows * n_used), n_in = (size_t)proj.n_in;
    const size_t n_x = (size_t)n_rows * n_in, n_expert = (size_t)proj.n_out;
    kk_buf *expert = rig_random_buf(r, slots, 1), *weight = rig_random_buf(r, slots, 1);
    const float *x = rig_floats(r, n_x, 20), *scale = rig_floats(r, n_in, 30);
    const float *by = rig_floats(r, n_expert, 2);
    const kk_route_args a = {.expert = expert,
                             .weight = weight,
                             .x = rig_buf(r, x, n_x),
                             .scale = rig_buf(r, scale, n_in),
                             .per_expert_scale = rig_buf(r, by, n_expert),
                             .proj = rig_load(r, proj, 1),
                             .n_rows = n_rows,
                             .n_used = n_used,
                             .eps = eps};
    RIG_PREPARE(r, .experts = {(int32_t)proj.n_out, n_used, 32, proj.n_in});
    RIG_RUN(r, route, &a);
    RIG_RECORD(r, RIG_INTS, expert, slots, "experts%s: %d of %d, %d rows", what, n_used,
               (int)proj.n_out, n_rows);
    record_logits(r, &proj, x, scale, by, (size_t)n_rows);
    RIG_RECORD(r, RIG_FLOATS, weight, slots, "weights%s: %d of %d, %d rows", what, n_used,
               (int)proj.n_out, n_rows);
}

static void case_route(rig *r) {
    static const kk_dtype types[] = {KK_F32, KK_BF16, KK_Q8_0};
    static const int32_t sizes[][2] = {{1, 1}, {4, 2}, {8, 8}, {17, 3}, {128, 8}};
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        for (size_t k = 0; k < COUNT(sizes); k++) {
            const kk_dtype t = types[(i + k) % COUNT(types)];
            const int32_t n_in = t == KK_Q8_0 ? 96 : 100, n = sizes[k][0];
            route_one(r, rig_matrix(r, t, 1, n, n_in), row_counts[i], sizes[k][1], "");
        }
    }
}

/* Experts 1, 4 and 7, 2 and 9, and so on have equal logits: the lower id comes first. */
static void case_route_ties(rig *r) {
    enum { EXPERTS = 16, IN = 48 };
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        const kk_matrix m = rig_matrix(r, KK_F32, 1, EXPERTS, IN);
        uint8_t *rows = (uint8_t *)(uintptr_t)m.data;
        const size_t row = IN * sizeof(float);
        memcpy(rows + 4 * row, rows + row, row);
        memcpy(rows + 7 * row, rows + row, row);
        memcpy(rows + 9 * row, rows + 2 * row, row);
        if (i % 2) memset(rows, 0, EXPERTS * row); /* all equal */
        route_one(r, m, row_counts[i], 6, " with ties");
    }
}

/* ---- attention ---------------------------------------------------------------------------- */

static const int32_t head_dims[] = {16, 24, 64, 256, 512};

static void case_rope(rig *r) {
    static const struct {
        kk_rope rope;
        int64_t first, pos0, n;
        bool listed;
    } tables[] = {
        {{1e4f, 1, 8, 16}, 0, 0, 1, false},         {{1e4f, 1, 12, 24}, 3, 40, 33, false},
        {{1e6f, 1, 64, 512}, 0, 262000, 17, false}, {{1e6f, 8, 16, 128}, 70, 70, 200, false},
        {{1e4f, 1, 128, 256}, 2, 0, 40, true},      {{1e6f, 2, 3, 24}, 0, 0, 64, true},
        {{1e6f, 1, 0, 16}, 0, 5, 4, false},
    };
    for (size_t i = 0; i < COUNT(tables); i++) {
        int64_t pos[64];
        for (size_t k = 0; k < COUNT(pos); k++) pos[k] = rig_below(r, 300000);
        const size_t all = (size_t)((tables[i].first + tables[i].n) * 2 * tables[i].rope.n_rot);
        kk_buf *table = rig_random_buf(r, all, 1);
        const kk_rope_args a = {.table = table,
                                .first = tables[i].first,
                                .pos0 = tables[i].pos0,
                                .n = tables[i].n,
                                .pos = tables[i].listed ? pos : NULL,
                                .rope = tables[i].rope};
        RIG_RUN(r, rope, &a);
        RIG_RECORD(r, RIG_FLOATS, table, all, "angles %zu", i);
    }
}

/* Rows of one to three sessions at positions before, on and across page borders. */
static rig_cache *draw_cache(rig *r, kk_kv_format format, bool k_eq_v, int32_t n_kv, int32_t d,
                             size_t seed) {
    static const int64_t near[] = {0, 5, 60, 63, 64, 120, 127, 190, 250, 300};
    const int32_t sessions = 1 + (int32_t)(seed % 3);
    int32_t n_rows[RIG_SESSIONS];
    int64_t pos[RIG_SESSIONS];
    for (int32_t s = 0; s < sessions; s++) {
        const size_t pick = (size_t)rig_below(r, (int32_t)COUNT(row_counts));
        n_rows[s] = row_counts[s == 0 ? seed % COUNT(row_counts) : pick];
        if (d > 64 && n_rows[s] > 9) n_rows[s] = 10; /* the reference takes its time */
        pos[s] = near[rig_below(r, (int32_t)COUNT(near))];
    }
    return rig_cache_new(r, format, k_eq_v, n_kv, d, sessions, n_rows, pos);
}

static void record_pages(rig *r, const rig_cache *c, const char *label) {
    const kk_kv_format f = c->slot.format;
    const rig_kind kind = f == KK_KV_F32 ? RIG_FLOATS : f == KK_KV_BF16 ? RIG_BF16 : RIG_BYTES;
    rig_sync(r);
    for (int32_t s = 0; s < c->rows.n_groups; s++)
        for (int p = 0; p < RIG_PAGES; p++)
            rig_record_values(r, kind, c->page[s][p], c->page_bytes / rig_width(kind),
                              "%s, session %d page %d", label, s, p);
}

typedef enum {
    STORE_BOTH,
    STORE_V_FROM_K,
    STORE_ONE,
    STORE_NOTHING,
    STORE_RAW_V,
    STORE_NO_Q,
    STORE_WAYS
} store_way;

static void store_one(rig *r, store_way way, kk_kv_format format, int32_t d, size_t seed) {
    char label[96];
    const int32_t n_kv = 1 + (int32_t)(seed % 2), n_head = n_kv * 2;
    const int32_t n_rot = seed % 3 ? d / 2 : d / 8;
    rig_cache *c = draw_cache(r, format, way == STORE_ONE, n_kv, d, seed);
    const size_t n = (size_t)c->rows.n_rows, nq = n * (size_t)(n_head * d);
    const size_t nkv = n * (size_t)(n_kv * d);
    kk_buf *q = rig_random_buf(r, nq, 3);
    const bool has_v = way == STORE_BOTH || way >= STORE_RAW_V;
    const kk_store_args a = {.q = way == STORE_NO_Q ? NULL : q,
                             .k = way == STORE_NOTHING ? NULL : rig_random_buf(r, nkv, 3),
                             .v = has_v ? rig_random_buf(r, nkv, 3) : NULL,
                             .q_norm = rig_random_buf(r, (size_t)d, 2),
                             .k_norm = rig_random_buf(r, (size_t)d, 2),
                             .rope_rows = rig_row_angles(r, c, (kk_rope){1e4f, 1, n_rot, d}),
                             .n_rot = n_rot,
                             .n_head = n_head,
                             .slot = c->slot,
                             .rows = &c->rows,
                             .eps = eps,
                             .v_raw = way == STORE_RAW_V};
    RIG_RUN(r, store, &a);
    snprintf(label, sizeof label, "store, way %d, %s, %zu rows, %d heads of %d", (int)way,
             kk_kv_format_name(format), n, n_kv, d);
    RIG_RECORD(r, RIG_FLOATS, q, nq, "%s: q", label);
    record_pages(r, c, label);
}

/* A device that all others are compared with must have what they store; NULL: the CPU. */
static const kk_backend *compared;

/* Formats by turns, of those that it has and that take heads of d values. */
static kk_kv_format format_at(size_t i, int32_t d) {
    const kk_backend *with = compared ? compared : kk_backend_named("cpu");
    kk_kv_format fits[KK_KV_FORMATS];
    size_t n = 0;
    for (int f = 0; f < KK_KV_FORMATS; f++)
        if (d % kk_kv_format_get((kk_kv_format)f)->group == 0 &&
            kk_backend_stores(with, (kk_kv_format)f, NULL) == KK_OK)
            fits[n++] = (kk_kv_format)f;
    return fits[i % n];
}

static void case_store(rig *r) {
    for (size_t d = 0; d < COUNT(head_dims); d++)
        for (int way = 0; way < STORE_WAYS; way++)
            for (size_t i = 0; i < 8; i++)
                store_one(r, (store_way)way, format_at(i, head_dims[d]), head_dims[d],
                          i * 7 + d + (size_t)way);
}

/* Latents, one head of any width, and rows as they were projected. */
static void case_keep(rig *r) {
    static const int32_t ranks[] = {16, 24, 32, 64, 192, 768};
    for (size_t i = 0; i < COUNT(ranks) * 4; i++) {
        const int32_t rank = ranks[i / 4], heads = i % 3 == 2 ? 2 : 1;
        const bool keys = i % 2 == 1;
        char label[96];
        rig_cache *c = draw_cache(r, format_at(i, rank), !keys, heads, rank, i);
        for (int32_t s = 0; s < c->rows.n_groups; s++) {
            c->group[s].latents = c->group[s].pages;
            c->group[s].pages = NULL;
        }
        const kk_keep_args a = {.x = rig_random_buf(r, (size_t)(c->rows.n_rows * heads * rank), 3),
                                .slot = c->slot,
                                .keys = keys,
                                .rows = &c->rows};
        RIG_RUN(r, latents->keep, &a);
        snprintf(label, sizeof label, "keep, %s, %d rows, %d of %d%s",
                 kk_kv_format_name(c->slot.format), c->rows.n_rows, heads, rank,
                 keys ? ", keys" : "");
        record_pages(r, c, label);
    }
}

/* Groups that are hard to pack: constant, nearly so, far from zero, too large for f16, with zeros
 * of both signs, subnormal, or not numbers. */
static void case_store_hard(rig *r) {
    enum { D = 256, ROWS = 12 };
    static const float hard[ROWS] = {0,     1e-44f, 1e-7f, 1e-5f,    6e4f,  6.6e4f,
                                     1e38f, 3e38f,  NAN,   INFINITY, -0.0f, 3};
    const int32_t rows = ROWS;
    const int64_t pos = 60;
    for (size_t i = 0; i < 8; i++) {
        const kk_kv_format format = format_at(i, D);
        rig_cache *c = rig_cache_new(r, format, false, 1, D, 1, &rows, &pos);
        float *v = rig_floats(r, ROWS * D, 1), *ones = rig_floats(r, D, 1);
        for (size_t k = 0; k < ROWS; k++) {
            float *group = v + k * D + 64 * (size_t)rig_below(r, 4);
            for (size_t j = 0; j < 64; j++) {
                if (k == 10) group[j] = rig_below(r, 2) ? 0.0f : -0.0f;
                if (k < 8) group[j] *= hard[k];
                if (k == 11) group[j] = i < 4 ? 1000.3f : 1000 + group[j] * 1e-3f;
            }
            if (k == 8 || k == 9) group[rig_below(r, 64)] = hard[k];
        }
        const kk_store_args a = {.k = rig_random_buf(r, ROWS * D, 3),
                                 .v = rig_buf(r, v, ROWS * D),
                                 .k_norm = rig_buf(r, ones, D),
                                 .rope_rows = rig_random_buf(r, 1, 1),
                                 .n_head = 1,
                                 .slot = c->slot,
                                 .rows = &c->rows,
                                 .eps = eps,
                                 .v_raw = true};
        RIG_RUN(r, store, &a);
        record_pages(r, c, kk_kv_format_name(format));
    }
}

/* Everything no row may see is NaN or missing.  Large values make scores of hundreds, whose
 * exponentials vanish or come all from one page. */
typedef struct {
    int32_t window, sink;
    bool block;
} sight;

static void attend_one(rig *r, kk_kv_format format, bool k_eq_v, int32_t d, sight s, size_t seed) {
    const int32_t n_kv = 1 + (int32_t)(seed % 2), n_head = n_kv * (1 + (int32_t)(seed % 4));
    const int32_t n_rot = seed % 2 ? d / 8 : d / 2;
    rig_cache *c = draw_cache(r, format, k_eq_v, n_kv, d, seed);
    rig_cache_hide(c, s.window, s.sink);
    const size_t all = (size_t)c->rows.n_rows * (size_t)(n_head * d);
    kk_buf *out = rig_random_buf(r, all, 1);
    const kk_attend_args a = {.out = out,
                              .q = rig_random_buf(r, all, seed % 5 == 0 ? 60.0f : 1.0f),
                              .k_norm = k_eq_v ? rig_random_buf(r, (size_t)d, 2) : NULL,
                              .rope_pos =
                                  k_eq_v ? rig_all_angles(r, (kk_rope){1e6f, 1, n_rot, d}) : NULL,
                              .n_rot = n_rot,
                              .n_head = n_head,
                              .window = s.window,
                              .sink = s.sink,
                              .block = s.block,
                              .slot = c->slot,
                              .rows = &c->rows,
                              .scale = seed % 3 ? 1.0f : 0.25f};
    RIG_RUN(r, attend, &a);
    float *got = rig_memory(r, all * sizeof *got);
    rig_read(r, out, got, all);
    for (size_t i = 0; i < all; i++) assert_true(isfinite(got[i])); /* nothing hidden came in */
    rig_record_values(r, RIG_FLOATS, got, all,
                      "attend %s%s, %d rows of %d, %d heads of %d, window %d sink %d%s%s",
                      kk_kv_format_name(format), k_eq_v ? " k = v" : "", c->rows.n_rows,
                      c->rows.n_groups, n_head, d, s.window, s.sink, s.block ? " block" : "",
                      seed % 5 == 0 ? ", large" : "");
}

static void case_attend(rig *r) {
    static const int32_t windows[] = {0, 1, 7, 40, 64, 65, 100, 200};
    size_t seed = 0;
    for (size_t d = 0; d < COUNT(head_dims); d++)
        for (size_t w = 0; w < COUNT(windows); w++)
            for (int k_eq_v = 0; k_eq_v < 2; k_eq_v++, seed++)
                attend_one(r, format_at(seed / 2 + d, head_dims[d]), k_eq_v != 0, head_dims[d],
                           (sight){.window = windows[w]}, seed);
}

/* Sinks before windows that start in their page, on its border, far behind or within them; and
 * blocks of rows that see each other, across tiles and page borders. */
static void case_attend_sight(rig *r) {
    static const int32_t windows[] = {0, 1, 7, 40, 64, 65, 100, 200}, sinks[] = {0, 1, 4, 64, 70};
    size_t seed = 0;
    for (size_t w = 0; w < COUNT(windows); w++)
        for (size_t k = 0; k < COUNT(sinks); k++)
            for (int block = 0; block < 2; block++, seed++)
                for (int32_t d = 24; d <= 64; d += 40)
                    attend_one(r, format_at(seed / 2, d), seed % 5 == 4, d,
                               (sight){windows[w], sinks[k], block != 0}, seed);
}

/* Blocks of 1 to 17 rows around a page border, each with a window and a sink. */
static void case_attend_blocks(rig *r) {
    enum { D = 64 };
    for (int32_t n = 1; n <= 17; n++) {
        for (int64_t pos = 128 - n; pos <= 128; pos += n > 2 ? n / 2 : 1) {
            rig_cache *c = rig_cache_new(r, format_at((size_t)n, D), false, 1, D, 1, &n, &pos);
            rig_cache_hide(c, 30, 4);
            const size_t all = (size_t)(n * 2 * D);
            kk_buf *out = rig_random_buf(r, all, 1);
            const kk_attend_args a = {.out = out,
                                      .q = rig_random_buf(r, all, 1),
                                      .n_head = 2,
                                      .window = 30,
                                      .sink = 4,
                                      .block = true,
                                      .slot = c->slot,
                                      .rows = &c->rows,
                                      .scale = 1};
            RIG_RUN(r, attend, &a);
            RIG_RECORD(r, RIG_FLOATS, out, all, "block of %d rows at %d", n, (int)pos);
        }
    }
}

/* One K/V head with more query heads than tasks, so that its heads are shared out. */
static void case_attend_shared_out(rig *r) {
    for (int32_t heads = 1; heads <= 128; heads = heads * 3 / 2 + 1) {
        const int32_t n_rows = heads > 16 ? 1 : 2;
        const int64_t pos = 66;
        rig_cache *c = rig_cache_new(r, KK_KV_F32, false, 1, 32, 1, &n_rows, &pos);
        const size_t all = (size_t)(n_rows * heads * 32);
        kk_buf *out = rig_random_buf(r, all, 1);
        const kk_attend_args a = {.out = out,
                                  .q = rig_random_buf(r, all, 1),
                                  .n_head = heads,
                                  .slot = c->slot,
                                  .rows = &c->rows,
                                  .scale = 1};
        RIG_RUN(r, attend, &a);
        RIG_RECORD(r, RIG_FLOATS, out, all, "attend, %d heads on one, %d rows", heads, n_rows);
    }
}

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    void (*fn)(rig *r);
    int32_t max_rows;
} op_case;

static const op_case cases[] = {
    {"embed", case_embed, 33},
    {"norm", case_norm, 33},
    {"residual", case_residual, 33},
    {"glu", case_glu, 33},
    {"softcap", case_softcap, 33},
    {"gather", case_gather, 40},
    {"argmax", case_argmax, 33},
    {"ple", case_ple, 33},
    {"linear", case_linear, 33},
    {"linear, large", case_linear_large, 5},
    {"linear, together", case_linear_together, 33},
    {"linear, hard rows", case_linear_hard, 7},
    {"experts", case_experts, 33},
    {"experts, mixed", case_experts_mixed, 256},
    {"route", case_route, 33},
    {"route, ties", case_route_ties, 33},
    {"rope", case_rope, 33},
    {"store", case_store, 99},
    {"store, hard rows", case_store_hard, 12},
    {"keep", case_keep, 99},
    {"attend", case_attend, 99},
    {"attend, sinks and blocks", case_attend_sight, 99},
    {"attend, blocks on a border", case_attend_blocks, 17},
    {"attend, heads shared out", case_attend_shared_out, 2},
    {"choose", case_choose, 33},
    {"argmax, mapped", case_argmax_mapped, 33},
    {"weight rows", case_weight_rows, 17}, /* new ones go to the end: a case's place is its seed */
};

static uint64_t seed_of(const op_case *c) { return 20260901u + (uint64_t)(c - cases); }

static void run_case(void **state) {
    const op_case *c = *state;
    static rig r;
    rig_records want = {0};
    assert_true(rig_open(&r, &reference, c->max_rows, &want, seed_of(c)));
    c->fn(&r);
    rig_close(&r);
    assert_true(want.n > 0);
    for (size_t i = 0; i < COUNT(devices); i++) {
        rig_records got = {0};
        char name[64];
        if (!rig_open(&r, &devices[i], c->max_rows, &got, seed_of(c))) continue;
        kk_dev_facts facts;
        r.be->describe(r.dev, &facts);
        snprintf(name, sizeof name, "%s %.30s, %d threads", devices[i].backend, facts.isa,
                 facts.threads);
        c->fn(&r);
        rig_close(&r);
        rig_compare(name, &want, &got, devices[i].rule);
        rig_records_free(&got);
    }
    rig_records_free(&want);
}

/* The kernels this machine would choose are among those compared. */
static void best_device_is_compared(void **state) {
    (void)state;
    static rig r;
    rig_records none = {0};
    const rig_device best = {.backend = NULL};
    bool found = false;
    assert_true(rig_open(&r, &best, 1, &none, 0));
    kk_dev_facts facts;
    r.be->describe(r.dev, &facts);
    for (size_t i = 0; i < COUNT(devices); i++)
        found |=
            strcmp(devices[i].backend, r.be->name) == 0 && strcmp(devices[i].isa, facts.isa) == 0;
    if (!found) fail_msg("%s %s is not in the table", r.be->name, facts.isa);
    rig_close(&r);
}

/* ---- what a device refuses ------------------------------------------------------------------ */

static const rig_device *const refusing[] = {&reference, &(const rig_device){.backend = "cpu"}};

#define assert_refused(call, words)                                                                \
    do {                                                                                           \
        kk_err err_ = {0};                                                                         \
        kk_err *why = &err_;                                                                       \
        assert_int_equal(call, KK_EINVAL);                                                         \
        assert_int_equal(err_.code, KK_EINVAL);                                                    \
        if (!strstr(err_.msg, words)) fail_msg("'%s' does not say '%s'", err_.msg, words);         \
    } while (0)

static void buffers_have_ends(void **state) {
    (void)state;
    static rig r;
    rig_records none = {0};
    char bytes[100] = "kept";
    for (size_t i = 0; i < COUNT(refusing); i++) {
        assert_true(rig_open(&r, refusing[i], 1, &none, 0));
        kk_buf *b = NULL, *wide = NULL;
        RIG_RUN(&r, buf_new, KK_MEM_WORKSPACE, 100, &b);
        RIG_RUN(&r, read, b, 0, bytes, 100);
        for (size_t k = 0; k < 100; k++) assert_int_equal(bytes[k], 0);
        memcpy(bytes, "abcd", 4);
        RIG_RUN(&r, write, b, 96, bytes, 4);
        RIG_RUN(&r, write, b, 100, bytes, 0);
        assert_refused(r.be->write(r.dev, b, 97, bytes, 4, why), "97..101");
        assert_refused(r.be->write(r.dev, b, 0, bytes, 101, why), "101");
        assert_refused(r.be->write(r.dev, b, 8, bytes, SIZE_MAX - 4, why), "100");
        assert_refused(r.be->read(r.dev, b, 101, bytes, 0, why), "101");
        assert_refused(r.be->read(r.dev, b, SIZE_MAX, bytes, 2, why), "100");
        RIG_RUN(&r, read, b, 96, bytes + 8, 4);
        assert_memory_equal(bytes + 8, "abcd", 4);
        RIG_RUN(&r, buf_reserve, (size_t)1 << 32, &wide); /* address space only */
        assert_int_equal(r.mem.bytes[KK_MEM_WORKSPACE] < 1 << 30, true);
        RIG_RUN(&r, write, wide, ((size_t)1 << 32) - 4, bytes, 4);
        r.be->buf_free(r.dev, wide);
        r.be->buf_free(r.dev, b);
        r.be->buf_free(r.dev, NULL);
        rig_close(&r);
    }
}

static void weights_fill_blocks(void **state) {
    (void)state;
    static rig r;
    rig_records none = {0};
    static const uint8_t data[1024];
    for (size_t i = 0; i < COUNT(refusing); i++) {
        assert_true(rig_open(&r, refusing[i], 1, &none, 0));
        kk_weight *w = (kk_weight *)&r;
        for (size_t t = 0; t < COUNT(weight_types); t++) {
            const kk_dtype_info *info = kk_dtype_get(weight_types[t]);
            const kk_matrix m = rig_stored(weight_types[t], 1, 1, info->values + 1, data);
            if (info->values == 1) continue;
            assert_refused(r.be->weight_new(r.dev, &m, &w, why), info->name);
            assert_null(w);
        }
        w = (kk_weight *)&r;
        const kk_matrix endless = rig_stored(KK_F32, 1, 1, INT64_MAX, data);
        assert_refused(r.be->weight_new(r.dev, &endless, &w, why), "f32");
        assert_null(w);
        r.be->weight_free(r.dev, NULL);
        rig_close(&r);
    }
}

/* Sizes that fixed scratch could not hold. */
static void rows_have_limits(void **state) {
    (void)state;
    static rig r;
    rig_records none = {0};
    const int32_t one = 1, token = 0;
    const int64_t pos = 0;
    for (size_t i = 0; i < COUNT(refusing); i++) {
        assert_true(rig_open(&r, refusing[i], 1, &none, 0));
        kk_buf *b = rig_random_buf(&r, 1 << 20, 1);
        rig_cache *c = rig_cache_new(&r, KK_KV_F32, false, 1, 4096, 1, &one, &pos);
        const kk_attend_args attend = {
            .out = b, .q = b, .n_head = 1, .slot = c->slot, .rows = &c->rows, .scale = 1};
        assert_refused(r.be->attend(r.dev, &attend, why), "4096");
        const kk_store_args store = {.q = b,
                                     .k = b,
                                     .v = b,
                                     .q_norm = b,
                                     .k_norm = b,
                                     .rope_rows = b,
                                     .n_head = 1,
                                     .slot = c->slot,
                                     .rows = &c->rows,
                                     .eps = eps};
        assert_refused(r.be->store(r.dev, &store, why), "4096");
        const kk_ple_args ple = {.out = b,
                                 .proj = b,
                                 .w = b,
                                 .table = rig_weight(&r, KK_F32, 1, 2048),
                                 .token = &token,
                                 .n_rows = 1,
                                 .n_layer = 1,
                                 .dim = 2048};
        assert_refused(r.be->ple(r.dev, &ple, why), "2048");
        const kk_residual_args residual = {.x = b, .a = b, .w = b, .n_rows = 1, .dim = 1 << 20};
        assert_refused(r.be->residual(r.dev, &residual, why), "1048576");
        rig_close(&r);
    }
}

static void unknown_devices_are_refused(void **state) {
    (void)state;
    kk_mem mem = {0};
    kk_err err = {0};
    const kk_dev_opts opts = {.threads = 1, .isa = "z80", .mem = &mem, .max_rows = 1};
    const kk_backend *be = kk_backend_named("cpu");
    kk_dev *dev = (kk_dev *)&mem;
    assert_null(kk_backend_named("abacus"));
    assert_int_equal(be->open(&dev, &opts, &err), KK_EDEVICE);
    assert_null(dev);
    assert_non_null(strstr(err.msg, "z80"));
    be->close(NULL);
}

int main(void) {
    struct CMUnitTest tests[COUNT(cases) + 5];
    for (size_t i = 0; i < COUNT(cases); i++)
        tests[i] =
            (struct CMUnitTest){cases[i].name, run_case, NULL, NULL, (void *)(uintptr_t)&cases[i]};
    const struct CMUnitTest others[] = {
        cmocka_unit_test(best_device_is_compared),     cmocka_unit_test(buffers_have_ends),
        cmocka_unit_test(weights_fill_blocks),         cmocka_unit_test(rows_have_limits),
        cmocka_unit_test(unknown_devices_are_refused),
    };
    memcpy(tests + COUNT(cases), others, sizeof others);
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
