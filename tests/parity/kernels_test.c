/* kernels_test.c - every kernel set this processor runs, against reference.c, bit for bit, over
 * shapes on and off the tiles.
 *
 * A plain program, without cmocka: it is also cross-compiled and run under an emulator. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/kernels.h"
#include "check.h"

static const kk_kernels *const ref = &kk_kernels_reference;
static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
static int32_t below(int32_t n) { return (int32_t)(next() % (uint64_t)n); }
static float uniform(void) { return (float)(next() >> 40) / (float)(1 << 23) - 1.0f; }

static void *buffer(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) exit(2);
    return p;
}
static float *floats(size_t n, float scale) {
    float *x = buffer(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = uniform() * scale;
    return x;
}
static bool same(const float *a, const float *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* ---- matrices --------------------------------------------------------------------------- */

static void put_f16(uint8_t *p, float f) {
    const uint16_t h = kk_f32_f16(f);
    memcpy(p, &h, 2);
}

/* Random bytes are valid weights once the 16-bit scales are finite numbers. */
static uint8_t *weights(kk_dtype t, int32_t n_out, int32_t n_in, size_t *stride) {
    const kk_dtype_info *info = kk_dtype_get(t);
    const size_t blocks = (size_t)(n_in / info->values), bytes = (size_t)info->bytes;
    *stride = blocks * bytes;
    uint8_t *w = buffer(*stride * (size_t)n_out);
    for (size_t i = 0; i < *stride * (size_t)n_out; i++) w[i] = (uint8_t)next();
    for (size_t b = 0; b < blocks * (size_t)n_out; b++) {
        uint8_t *p = w + b * bytes;
        const float f = uniform() * 0.1f;
        if (t == KK_F32)
            memcpy(p, &f, 4);
        else if (kk_dtype_is_affine(t))
            continue; /* any byte is a code */
        else if (t == KK_BF16)
            p[0] = (uint8_t)kk_f32_bf16(f), p[1] = (uint8_t)(kk_f32_bf16(f) >> 8);
        else
            put_f16(t == KK_Q6_K ? p + 208 : p, f);
        if (t == KK_Q5_1 || t == KK_Q4_K || t == KK_Q5_K) put_f16(p + 2, uniform() * 0.1f);
    }
    return w;
}

/* Scales or biases of so many groups. */
static uint8_t *plane(kk_dtype t, size_t groups) {
    const size_t width = (size_t)kk_dtype_get(t)->bytes;
    uint8_t *p = buffer(groups * width);
    for (size_t i = 0; i < groups; i++) {
        const float f = uniform() * 0.1f;
        kk_quantize_row(t, &f, p + i * width, 1);
    }
    return p;
}

/* Gives a strip scales and biases, where its type has them apart. */
static void add_planes(kk_strip *s) {
    static const kk_dtype types[] = {KK_BF16, KK_F16, KK_F32};
    if (!kk_dtype_is_affine(s->dtype)) return;
    const size_t groups = (size_t)(s->n_in / kk_dtype_get(s->dtype)->values);
    const kk_dtype t = types[below(3)];
    s->planes =
        (kk_planes){plane(t, groups * (size_t)s->n_out), plane(t, groups * (size_t)s->n_out), t};
    s->plane_stride = groups * (size_t)kk_dtype_get(t)->bytes;
}
static void drop_planes(const kk_strip *s) {
    free((void *)(uintptr_t)s->planes.scales);
    free((void *)(uintptr_t)s->planes.biases);
}

typedef struct {
    float *f;
    kk_act_block *b;
} acts;

static acts activations(int32_t rows, int32_t n) {
    const size_t all = (size_t)rows * (size_t)n;
    acts a = {floats(all, 3.0f), buffer((all / KK_BLOCK + 1) * sizeof *a.b)};
    if (n % KK_BLOCK == 0) ref->quantize(a.f, all, a.b);
    return a;
}
static void release(acts a) { free(a.f), free(a.b); }

static void check_strip(const kk_kernels *k, kk_dtype t, int32_t n_out, int32_t n_in,
                        int32_t n_rows, int scattered) {
    size_t stride;
    const int32_t pool = n_rows + 3;
    uint8_t *w = weights(t, n_out, n_in, &stride);
    acts a = activations(pool, n_in);
    enum { STRIDE = KK_WIDE + 4 };
    const size_t n_results = (size_t)pool * STRIDE;
    float *want = floats(n_results, 1), *got = buffer(n_results * sizeof(float));
    memcpy(got, want, n_results * sizeof(float));
    int32_t *in = buffer(sizeof *in * (size_t)n_rows), *out = buffer(sizeof *out * (size_t)n_rows);
    for (int32_t r = 0; r < n_rows; r++) in[r] = below(pool), out[r] = n_rows - 1 - r;
    kk_strip s = {.dtype = t,
                  .n_out = n_out,
                  .n_in = n_in,
                  .n_rows = n_rows,
                  .w = w,
                  .w_stride = stride,
                  .x = {a.f, a.b},
                  .in_row = scattered ? in : NULL,
                  .out_row = scattered ? out : NULL,
                  .out = want,
                  .out_stride = STRIDE,
                  .panel = buffer((size_t)(n_in / 32 + 1) * KK_PANEL_BYTES)};
    add_planes(&s);
    ref->strip(&s);
    s.out = got;
    k->strip(&s);
    drop_planes(&s);
    CHECK_SAY(same(want, got, n_results), "%s strip %s out %d in %d rows %d", k->name,
              kk_dtype_get(t)->name, n_out, n_in, n_rows);
    free(w), free(want), free(got), free(in), free(out), free(s.panel);
    release(a);
}

/* Strips that lie apart in their matrix, unpacked in any order. */
static void check_unpacked(const kk_kernels *k, int32_t strips, int32_t n_in, int32_t n_rows) {
    if (!k->unpack) return;
    size_t stride;
    uint8_t *w = weights(KK_Q8_0, 2 * strips * KK_STRIP, n_in, &stride);
    acts a = activations(n_rows, n_in);
    const size_t wide = (size_t)strips * KK_STRIP, n_results = (size_t)n_rows * wide;
    float *want = floats(n_results, 1), *got = floats(n_results, 1);
    kk_strip s = {.dtype = KK_Q8_0,
                  .n_out = KK_STRIP,
                  .n_in = n_in,
                  .n_rows = n_rows,
                  .w_stride = stride,
                  .x = {a.f, a.b},
                  .out_stride = wide,
                  .panel = buffer(kk_unpacked_bytes(strips, n_in))};
    for (int32_t i = strips - 1; i >= 0; i--) {
        s.w = w + (size_t)(2 * i * KK_STRIP) * stride;
        s.out = want + i * KK_STRIP;
        ref->strip(&s);
        k->unpack(&s, i);
    }
    s.w = NULL;
    s.n_out = strips * KK_STRIP;
    s.out = got;
    k->unpacked(&s);
    CHECK_SAY(same(want, got, n_results), "%s %d unpacked strips, in %d rows %d", k->name, strips,
              n_in, n_rows);
    free(w), free(want), free(got), free(s.panel);
    release(a);
}

static void check_strips(const kk_kernels *k) {
    static const kk_dtype types[] = {KK_F32,     KK_F16,     KK_BF16,    KK_Q8_0,   KK_Q4_0,
                                     KK_Q5_0,    KK_Q5_1,    KK_Q4_K,    KK_Q5_K,   KK_Q6_K,
                                     KK_MLX4_32, KK_MLX4_64, KK_MLX8_32, KK_MLX8_64};
    for (int32_t rows = 1; rows <= KK_PAGE_ROWS; rows += rows < 16 ? 1 : 7)
        for (int32_t strips = 1; strips <= 5; strips++)
            check_unpacked(k, strips, KK_BLOCK * (1 + below(9)), rows);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const kk_dtype t = types[i];
        const int32_t unit = kk_dtype_get(t)->values;
        for (int32_t rows = 1; rows <= 20; rows++) {
            const int32_t n_in = unit > 1 ? unit * (1 + below(4)) : 1 + below(150);
            check_strip(k, t, KK_STRIP, n_in, rows, rows % 2);
            check_strip(k, t, KK_WIDE, n_in, rows, rows % 2 == 0);
        }
        for (int32_t n_out = 1; n_out < KK_WIDE; n_out += 5)
            check_strip(k, t, n_out, unit > 1 ? unit : 40, 3, 0);
        for (int32_t wide = KK_STRIP; wide <= KK_WIDE; wide += KK_STRIP) {
            check_strip(k, t, wide, 2816, 1, 0);
            check_strip(k, t, wide, 2816, 8, 0);
            check_strip(k, t, wide, 2816, 33, 1);
        }
    }
}

/* The largest sums that nibbles and rounded activations can give, of either sign: what adds them up
 * in 16 bits must not overflow.  What is fetched meanwhile is not read. */
static void check_largest_sums(const kk_kernels *k) {
    enum { N = 64, BYTES = 18 };
    static const uint8_t codes[] = {0x00, 0xff, 0x0f, 0xf0, 0x88};
    for (int32_t rows = 1; rows <= 3; rows++)
        for (size_t c = 0; c < sizeof codes; c++)
            for (int sign = -1; sign <= 1; sign += 2) {
                uint8_t w[KK_STRIP * N / KK_BLOCK * BYTES], elsewhere = 0;
                kk_act_block x[3 * N / KK_BLOCK];
                float f[3 * N], want[3 * KK_STRIP], got[3 * KK_STRIP];
                memset(w, codes[c], sizeof w);
                for (size_t b = 0; b < sizeof w; b += BYTES) put_f16(w + b, 0.5f);
                for (int i = 0; i < 3 * N; i++) f[i] = (float)sign * 127.0f;
                ref->quantize(f, (size_t)(3 * N), x);
                kk_strip s = {.dtype = KK_Q4_0,
                              .n_out = KK_STRIP,
                              .n_in = N,
                              .n_rows = rows,
                              .w = w,
                              .w_stride = N / KK_BLOCK * BYTES,
                              .ahead = &elsewhere,
                              .x = {f, x},
                              .out = want,
                              .out_stride = KK_STRIP};
                ref->strip(&s);
                s.out = got;
                k->strip(&s);
                CHECK_SAY(same(want, got, (size_t)(rows * KK_STRIP)), "%s sums of %02x, rows %d",
                          k->name, codes[c], rows);
            }
}

/* The same of affine codes, and sums of bytes, whose products are the largest. */
static void check_largest_affine_sums(const kk_kernels *k) {
    enum { N = 64, ROWS = 3 };
    static const uint8_t codes[] = {0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f};
    for (int t = KK_MLX4_32; t <= KK_MLX8_64; t++)
        for (size_t c = 0; c < sizeof codes; c++)
            for (int sign = -1; sign <= 1; sign += 2) {
                uint8_t w[KK_STRIP * N];
                kk_act_block x[ROWS * N / KK_BLOCK];
                float f[ROWS * N], want[ROWS * KK_STRIP], got[ROWS * KK_STRIP];
                memset(w, codes[c], sizeof w);
                for (int i = 0; i < ROWS * N; i++) f[i] = (float)sign * 127.0f;
                ref->quantize(f, (size_t)(ROWS * N), x);
                kk_strip s = {.dtype = (kk_dtype)t,
                              .n_out = KK_STRIP,
                              .n_in = N,
                              .n_rows = 1 + (int32_t)c % ROWS,
                              .w = w,
                              .w_stride = (size_t)(N * kk_affine_bits((kk_dtype)t) / 8),
                              .x = {f, x},
                              .out = want,
                              .out_stride = KK_STRIP};
                add_planes(&s);
                ref->strip(&s);
                s.out = got;
                k->strip(&s);
                drop_planes(&s);
                CHECK_SAY(same(want, got, (size_t)(s.n_rows * KK_STRIP)), "%s %s sums of %02x",
                          k->name, kk_dtype_get(s.dtype)->name, codes[c]);
            }
}

/* The reference itself, against plain dequantised arithmetic in double. */
static void check_reference_meaning(void) {
    static const kk_dtype types[] = {KK_F16,     KK_BF16,    KK_Q8_0,   KK_Q4_0, KK_Q5_0,
                                     KK_Q5_1,    KK_Q4_K,    KK_Q5_K,   KK_Q6_K, KK_MLX4_32,
                                     KK_MLX4_64, KK_MLX8_32, KK_MLX8_64};
    enum { N = 512 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t stride;
        float w[N], out = 0;
        uint8_t *stored = weights(types[i], 1, N, &stride);
        acts a = activations(1, N);
        kk_strip s = {.dtype = types[i],
                      .n_out = 1,
                      .n_in = N,
                      .n_rows = 1,
                      .w = stored,
                      .w_stride = stride,
                      .x = {a.f, a.b},
                      .out = &out,
                      .out_stride = 1};
        add_planes(&s);
        ref->strip(&s);
        if (kk_dtype_is_affine(types[i]))
            kk_dequantize_affine(types[i], stored, s.planes, w, N);
        else
            kk_dequantize(types[i], stored, w, N);
        drop_planes(&s);
        double want = 0, size = 0;
        for (int j = 0; j < N; j++) {
            const double x = kk_dtype_is_quant(types[i])
                                 ? (double)a.b[j / 32].q[j % 32] * (double)a.b[j / 32].d
                                 : (double)a.f[j];
            want += x * (double)w[j];
            size += fabs(x * (double)w[j]);
        }
        CHECK_SAY(fabs(want - (double)out) <= 1e-5 * size, "reference %s: %g, want %g",
                  kk_dtype_get(types[i])->name, (double)out, want);
        free(stored);
        release(a);
    }
}

/* ---- rows ------------------------------------------------------------------------------- */

static void check_rows(const kk_kernels *k) {
    for (int32_t n = 1; n < 200; n += 1 + n / 7) {
        float *x = floats((size_t)n, 9), *w = floats((size_t)n, 2), *y = floats((size_t)n, 20);
        float *a = buffer((size_t)n * 4), *b = buffer((size_t)n * 4);
        ref->norm(a, x, w, n, 1e-6f), k->norm(b, x, w, n, 1e-6f);
        CHECK_SAY(same(a, b, (size_t)n), "%s norm %d", k->name, n);
        ref->norm(a, x, NULL, n, 1e-6f), k->norm(b, x, NULL, n, 1e-6f);
        CHECK_SAY(same(a, b, (size_t)n), "%s bare norm %d", k->name, n);
        for (int act = KK_GELU_TANH; act <= KK_SILU; act++) {
            ref->glu(a, y, w, n, (kk_activation)act), k->glu(b, y, w, n, (kk_activation)act);
            CHECK_SAY(same(a, b, (size_t)n), "%s glu %d of %d", k->name, act, n);
        }
        memcpy(a, y, (size_t)n * 4), memcpy(b, y, (size_t)n * 4);
        ref->add_scale(a, x, n, 1.25f), k->add_scale(b, x, n, 1.25f);
        ref->axpy(a, 0.3f, w, n), k->axpy(b, 0.3f, w, n);
        ref->softcap(a, n, 30.0f), k->softcap(b, n, 30.0f);
        CHECK_SAY(same(a, b, (size_t)n), "%s add, axpy, softcap %d", k->name, n);
        if (n % 2 == 0) ref->rotate(a, w, n, n / 4), k->rotate(b, w, n, n / 4);
        CHECK_SAY(same(a, b, (size_t)n), "%s rotate %d", k->name, n);
        free(x), free(w), free(y), free(a), free(b);
    }
}

/* Ties, zeros of both signs, infinities and what is no number, at every place. */
static void check_largest(const kk_kernels *k) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 7.0f};
    for (int32_t n = 1; n < 300; n += 1 + n / 9) {
        float *x = floats((size_t)n, 7);
        for (int turn = 0; turn < 40; turn++) {
            x[below(n)] = odd[below(6)];
            x[below(n)] = x[below(n)];
            CHECK_SAY(k->largest(x, n) == ref->largest(x, n), "%s largest of %d", k->name, n);
        }
        for (int32_t i = 0; i < n; i++) x[i] = NAN;
        CHECK_SAY(k->largest(x, n) == 0, "%s largest of %d, none a number", k->name, n);
        x[n - 1] = -INFINITY;
        CHECK_SAY(k->largest(x, n) == n - 1, "%s largest of %d, the last a number", k->name, n);
        free(x);
    }
}

static void check_quantize(const kk_kernels *k) {
    for (int32_t n = 32; n <= 320; n += 32) {
        acts a = activations(1, n), b = activations(1, n);
        if (n == 64) memset(a.f, 0, 128); /* a block of zeros */
        if (n == 96) a.f[40] = 1e-30f, a.f[7] = 3e30f;
        ref->quantize(a.f, (size_t)n, a.b);
        k->quantize(a.f, (size_t)n, b.b);
        CHECK_SAY(memcmp(a.b, b.b, (size_t)(n / KK_BLOCK) * sizeof *a.b) == 0, "%s quantize %d",
                  k->name, n);
        uint16_t *half = buffer((size_t)n * sizeof *half);
        if (n == 128) a.f[70] = INFINITY, a.f[100] = -3e38f;
        if (n == 160) a.f[1] = NAN;
        for (int32_t i = 0; i < n; i++)
            half[i] = kk_f32_bf16(a.f[i]), a.f[i] = kk_bf16_f32(half[i]);
        ref->quantize(a.f, (size_t)n, a.b);
        if (k->quantize_bf16) k->quantize_bf16((const uint8_t *)half, (size_t)n, b.b);
        for (int32_t i = 0; k->quantize_bf16 && i < n / KK_BLOCK; i++) {
            const bool finite = isfinite(a.b[i].d);
            CHECK_SAY(finite ? memcmp(&a.b[i], &b.b[i], sizeof *a.b) == 0 : isnan(b.b[i].d),
                      "%s quantize_bf16 %d, block %d", k->name, n, i);
        }
        free(half);
        release(a);
        release(b);
    }
}

/* Rows rounded to a format: ordinary ones, and groups that are constant, far from zero, zeros of
 * both signs, too wide for f16 or not numbers.  What lies around the row stays as it was. */
static void check_put_one(const kk_kernels *k, kk_kv_format f, int32_t n, int hard) {
    float *x = floats((size_t)n, hard == 1 ? 1e-6f : 4);
    for (int32_t i = 0; i < n; i++) {
        if (hard == 2) x[i] = x[i] > 0 ? 0.0f : -0.0f;
        if (hard == 3) x[i] = 700;
        if (hard == 4) x[i] = x[i] * 1e-3f - 900;
        if (hard == 5) x[i] *= 3e4f;
    }
    if (hard == 6) x[below(n)] = NAN;
    if (hard == 7) x[below(n)] = -INFINITY;
    const size_t bytes = kk_kv_head_bytes(f, n);
    uint8_t *want = buffer(bytes), *got = buffer(bytes);
    const int32_t row = below(KK_PAGE_ROWS);
    memset(want, 9, bytes), memset(got, 9, bytes);
    ref->put(f, x, n, want, row);
    k->put(f, x, n, got, row);
    CHECK_SAY(memcmp(want, got, bytes) == 0, "%s %s, row %d of %d values, way %d", k->name,
              kk_kv_format_name(f), row, n, hard);
    free(x), free(want), free(got);
}

static void check_put(const kk_kernels *k) {
    for (int32_t n = 1; n <= 512; n += n < 70 ? 1 : 58)
        for (int hard = 0; hard < 8; hard++)
            for (int f = 0; f < KK_KV_FORMATS; f++)
                if (n % kk_kv_format_get((kk_kv_format)f)->group == 0)
                    check_put_one(k, (kk_kv_format)f, n, hard);
    for (int32_t n = 128; n <= 512; n += 64)
        for (int times = 0; times < 4 * 8 * KK_KV_FORMATS; times++)
            check_put_one(k, (kk_kv_format)(times % KK_KV_FORMATS), n, times / KK_KV_FORMATS % 8);
}

/* ---- attention -------------------------------------------------------------------------- */

enum { PAGES = 6 };

/* Rows of random numbers. */
static void fill_head(uint8_t *head, kk_kv_format format, int32_t d) {
    float *x = buffer((size_t)d * sizeof *x);
    for (int32_t row = 0; row < KK_PAGE_ROWS; row++) {
        const float scale = row % 2 ? 0.1f : 1;
        for (int32_t i = 0; i < d; i++) x[i] = uniform() * scale;
        ref->put(format, x, d, head, row);
    }
    free(x);
}

typedef struct {
    kk_kv_format format;
    int32_t d, window, sink;
    bool k_eq_v, block;
} attend_case;

static int tiles[2]; /* whose rows were converted; that were read in place */

/* A row on its own must come out as it did among others. */
static void check_rows_alone(const kk_kernels *k, kk_attend_tile t, const float *all,
                             const char *what) {
    const int32_t rows = t.n_rows;
    const size_t width = (size_t)(t.n_group * t.head_dim);
    float *alone = t.out;
    t.n_rows = 1;
    tiles[kk_attends_in_place(k, &t)]++;
    for (int32_t r = 0; r < rows; r++, t.pos++, t.q += t.q_stride, all += t.q_stride) {
        k->attend(&t);
        CHECK_SAY(same(alone, all, width), "%s attend, row %d alone: %s", k->name, r, what);
    }
}

/* Pages in several calls, each with a table of its own, must come out as in one. */
static void check_calls(const kk_kernels *k, kk_attend_tile t, const float *all, const char *what) {
    const kk_visible sees = kk_tile_sees_all(&t);
    const int64_t end = (sees.to + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS;
    const uint8_t *const *pages = t.pages;
    const float *rope = t.rope_pos;
    t.starts = true;
    for (int64_t page = kk_visible_first_page(sees), after; page < end; page = after) {
        t.page_base = t.page_from = page;
        after = kk_visible_next_page(sees, page);
        if (after < end && after == page + 1 && below(2)) after = kk_visible_next_page(sees, after);
        t.page_to = after < end ? after : end;
        t.ends = after >= end;
        t.pages = pages + page;
        t.rope_pos = rope + page * KK_PAGE_ROWS * 2 * t.n_rot;
        k->attend(&t);
        t.starts = false;
    }
    for (int32_t r = 0; r < t.n_rows; r++)
        CHECK_SAY(same(t.out + (size_t)r * t.q_stride, all + (size_t)r * t.q_stride,
                       (size_t)(t.n_group * t.head_dim)),
                  "%s attend in several calls: %s", k->name, what);
}

/* What the hidden rows of a window policy are is what the sight says. */
static void check_hidden_sight(void) {
    for (int n = 0; n < 20000; n++) {
        const int32_t mask = n % 3 ? 1 + below(200) : 0, sink = below(65);
        const kk_kv_bounds b = {.window = below(100), .sink = sink, .chunk = 1 + below(70)};
        kk_attend_tile t = {.rule = {.mask = mask, .evicts = true, .bounds = b}, .pos = below(400)};
        const kk_visible s = kk_tile_sees(&t, 0);
        const int64_t kept = t.pos / b.chunk * b.chunk - b.window;
        int64_t keys = 0;
        for (int64_t j = 0; j <= t.pos + 64; j++) {
            const bool shown = j <= t.pos && (!mask || j > t.pos - mask);
            const bool want = shown && (j < sink || j >= kept);
            const kk_page_visible p = kk_visible_in_page(s, j / KK_PAGE_ROWS);
            const int32_t row = (int32_t)(j % KK_PAGE_ROWS);
            const bool got = row >= p.lo && row < p.hi && !(row >= p.hole && row < p.hole_end);
            CHECK_SAY(want == got, "row %d of %d, window %d sink %d chunk %d less %d", (int)j,
                      (int)t.pos, mask, sink, b.chunk, b.window);
            keys += want;
        }
        CHECK_SAY(keys == kk_visible_stored(s), "%d keys counted of %d", (int)kk_visible_stored(s),
                  (int)keys);
    }
}

/* Rows of any format as floats, as they would be read one by one. */
static void check_widen(const kk_kernels *k) {
    for (int n = 0; n < 10 * KK_KV_FORMATS; n++) {
        const int32_t d = 64 * (1 + below(n % 2 ? 4 : 100));
        const int32_t lo = below(KK_PAGE_ROWS), rows = 1 + below(KK_PAGE_ROWS - lo);
        const kk_kv_format f = (kk_kv_format)(n % KK_KV_FORMATS);
        uint8_t *head = buffer(kk_kv_head_bytes(f, d));
        const size_t values = (size_t)rows * (size_t)d;
        float *want = buffer(values * 4), *got = buffer(values * 4);
        fill_head(head, f, d);
        ref->widen(want, f, d, head, lo, rows);
        k->widen(got, f, d, head, lo, rows);
        CHECK_SAY(same(want, got, values), "%s widens %d rows of %d as %s", k->name, rows, d,
                  kk_kv_format_name(f));
        free(head), free(want), free(got);
    }
}

/* Pages that no row sees are missing. */
static void drop_unseen(uint8_t **pages, const kk_attend_tile *t) {
    for (int p = 0; p < PAGES; p++) {
        bool any = false;
        for (int32_t r = 0; r < t->n_rows; r++) {
            const int64_t at = t->block_end ? t->block_first : t->pos + r;
            const int64_t to = t->block_end ? t->block_end : at + 1;
            for (int64_t j = p * KK_PAGE_ROWS; j < (p + 1) * KK_PAGE_ROWS && j < to; j++)
                any |= !t->rule.mask || j > at - t->rule.mask || j < t->rule.bounds.sink;
        }
        if (any) continue;
        free(pages[p]);
        pages[p] = NULL;
    }
}

static void check_attend_one(const kk_kernels *k, attend_case c) {
    const int32_t d = c.d, rows = 1 + below(KK_ATTEND_ROWS), group = 1 + below(4);
    const size_t head = kk_kv_head_bytes(c.format, d);
    const int64_t pos = 8 + below(PAGES * KK_PAGE_ROWS - rows - 16);
    const size_t n = (size_t)rows * (size_t)(group * d + 3);
    char what[128];
    uint8_t *pages[PAGES];
    for (int p = 0; p < PAGES; p++) {
        pages[p] = buffer(2 * head);
        fill_head(pages[p], c.format, d);
        fill_head(pages[p] + head, c.format, d);
    }
    float *q = floats(n, 1), *want = floats(n, 1), *got = buffer(n * 4);
    float *w = floats((size_t)d, 1), *rope = floats((size_t)(PAGES * KK_PAGE_ROWS * d), 1);
    memcpy(got, want, n * 4);
    kk_attend_tile t = {.q = q,
                        .out = want,
                        .q_stride = (size_t)(group * d + 3),
                        .n_rows = rows,
                        .n_group = group,
                        .head_dim = d,
                        .rule = {.mask = c.window, .bounds = {.sink = c.sink}},
                        .pos = pos,
                        .block_first = pos - below(8), /* of a group with other tiles */
                        .block_end = c.block ? pos + rows + below(8) : 0,
                        .scale = 0.7f,
                        .format = c.format,
                        .pages = (const uint8_t *const *)pages,
                        .k_off = head,
                        .v_off = 0,
                        .k_eq_v = c.k_eq_v,
                        .k_norm = w,
                        .rope_pos = rope,
                        .n_rot = d / 8,
                        .scratch = buffer(KK_ATTEND_SCRATCH * 4),
                        .state = buffer((size_t)(rows * group) * KK_ATTEND_STATE * 4),
                        .starts = true,
                        .ends = true};
    snprintf(what, sizeof what, "%s d %d pos %d rows %d group %d window %d sink %d%s%s",
             kk_kv_format_name(c.format), d, (int)pos, rows, group, c.window, c.sink,
             c.k_eq_v ? " k = v" : "", c.block ? " block" : "");
    drop_unseen(pages, &t);
    ref->attend(&t);
    t.out = got;
    k->attend(&t);
    CHECK_SAY(same(want, got, n), "%s attend %s", k->name, what);
    t.out = want;
    check_rows_alone(k, t, got, what);
    check_calls(k, t, got, what);
    for (int p = 0; p < PAGES; p++) free(pages[p]);
    free(q), free(want), free(got), free(w), free(rope), free(t.scratch), free(t.state);
}

/* Formats by turns, of those that take heads of d values. */
static kk_kv_format format_at(int n, int32_t d) {
    kk_kv_format f = (kk_kv_format)(n % KK_KV_FORMATS);
    while (d % kk_kv_format_get(f)->group) f = (kk_kv_format)((f + 1) % KK_KV_FORMATS);
    return f;
}

/* Rows alone went both ways, and the shapes of the models go the way they should. */
static void check_in_place(const kk_kernels *k) {
    const bool vectors = k != ref;
    CHECK_SAY(tiles[0] > 0 && (tiles[1] > 0) == vectors, "%s: %d tiles converted, %d in place",
              k->name, tiles[0], tiles[1]);
    tiles[0] = tiles[1] = 0;
    kk_attend_tile t = {.n_rows = 1, .n_group = 1, .head_dim = 64, .format = KK_KV_BF16};
    CHECK_SAY(kk_attends_in_place(k, &t) == vectors, "%s: a sliding head", k->name);
    t.head_dim = 80;
    CHECK_SAY(!kk_attends_in_place(k, &t), "%s: heads of 80", k->name);
    t.head_dim = 512, t.n_rot = 64, t.k_eq_v = true, t.format = KK_KV_Q8;
    CHECK_SAY(kk_attends_in_place(k, &t) == vectors, "%s: a full head", k->name);
    t.n_rot = 24;
    CHECK_SAY(!kk_attends_in_place(k, &t), "%s: 24 rotated", k->name);
    t.n_rot = 64, t.n_rows = KK_ATTEND_ROWS;
    CHECK_SAY(!kk_attends_in_place(k, &t), "%s: 8 rows", k->name);
}

static void check_attend(const kk_kernels *k) {
    static const int32_t dims[] = {16, 24, 64, 80, 128, 192, 256, 512}, sinks[] = {0, 1, 4, 64, 70};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int n = 0; n < 30; n++)
            check_attend_one(k, (attend_case){.format = format_at(n, dims[i]),
                                              .d = dims[i],
                                              .window = n % 4 == 0 ? 0 : 1 + below(200),
                                              .sink = sinks[n % 5],
                                              .k_eq_v = n % 3 == 0,
                                              .block = n / 5 % 2 == 1});
    check_in_place(k);
}

/* ---- attention over latents -------------------------------------------------------------- */

static void check_dots(const kk_kernels *k) {
    for (int n = 0; n < 60; n++) {
        const int32_t dim = 1 + below(n % 3 ? 100 : 300), n_q = 1 + below(11);
        const int32_t n_k = 1 + below(KK_PAGE_ROWS);
        const size_t all = (size_t)n_q * KK_PAGE_ROWS;
        float *q = floats((size_t)(n_q * dim), 1), *x = floats((size_t)(n_k * dim), 1);
        float *want = floats(all, 1), *got = buffer(all * 4);
        memcpy(got, want, all * 4);
        ref->dots(want, q, x, dim, n_q, n_k);
        k->dots(got, q, x, dim, n_q, n_k);
        CHECK_SAY(same(want, got, all), "%s dots %d by %d of %d", k->name, n_q, n_k, dim);
        free(q), free(x), free(want), free(got);
    }
}

/* Products and sums over rows of bf16 where they lie, against the same rows as floats. */
static void check_bf16_rows(const kk_kernels *k) {
    for (int n = 0; k->in_place && n < 40; n++) {
        const int32_t dim = 64 * (1 + below(6)), n_q = 1 + below(k->in_place);
        const int32_t n_k = 1 + below(KK_PAGE_ROWS);
        const size_t all = (size_t)n_q * KK_PAGE_ROWS, wide = (size_t)(n_q * dim);
        float *q = floats(wide, 1), *x = floats((size_t)(n_k * dim), 1),
              *c = floats((size_t)n_q, 1);
        float *want = floats(all, 1), *got = buffer(all * 4), *acc = floats(wide, 1);
        float *acc2 = buffer(wide * 4);
        uint16_t *rows = buffer((size_t)(n_k * dim) * 2);
        for (int32_t i = 0; i < n_k * dim; i++) {
            rows[i] = kk_f32_bf16(x[i]);
            x[i] = kk_bf16_f32(rows[i]);
        }
        memcpy(got, want, all * 4);
        memcpy(acc2, acc, wide * 4);
        ref->dots(want, q, x, dim, n_q, n_k);
        k->dots_bf16(got, q, (const uint8_t *)rows, dim, n_q, n_k);
        CHECK_SAY(same(want, got, all), "%s bf16 dots %d by %d of %d", k->name, n_q, n_k, dim);
        kk_sums s = {.acc = acc,
                     .acc_stride = (size_t)dim,
                     .c = c,
                     .w = want,
                     .x = x,
                     .x_stride = (size_t)dim,
                     .n = dim,
                     .n_acc = n_q,
                     .n_x = n_k};
        ref->sums(&s);
        s.acc = acc2, s.x = NULL, s.bf16 = (const uint8_t *)rows;
        k->sums(&s);
        CHECK_SAY(same(acc, acc2, wide), "%s %d bf16 sums of %d by %d", k->name, n_q, n_k, dim);
        free(q), free(x), free(c), free(want), free(got), free(acc), free(acc2), free(rows);
    }
}

/* Rows that are not seen hold no numbers, and nothing comes of it. */
static void check_weigh(const kk_kernels *k) {
    for (int n = 0; n < 300; n++) {
        const int32_t lo = below(KK_PAGE_ROWS), hi = lo + 1 + below(KK_PAGE_ROWS - lo);
        const size_t rows = KK_PAGE_ROWS;
        float *score = floats(rows, 3), *more = floats(rows, 3), *other = buffer(rows * 4);
        float *key = floats(rows, 2), *value = floats(rows, 2);
        float *lane = floats(KK_LANES, 1), lane2[KK_LANES];
        for (int32_t j = 0; j < KK_PAGE_ROWS; j++)
            if (j < lo || j >= hi) score[j] = key[j] = value[j] = NAN;
        memcpy(other, score, rows * 4);
        memcpy(lane2, lane, sizeof lane2);
        float m = n % 5 ? uniform() * 4 : -INFINITY, m2 = m, c = 0, c2 = 0;
        kk_weighing w = {.score = score,
                         .more = n % 2 ? more : NULL,
                         .key = key,
                         .value = value,
                         .scale = 0.7f,
                         .lo = lo,
                         .hi = hi,
                         .m = &m,
                         .c = &c,
                         .lane = lane};
        ref->weigh(&w);
        w.score = other, w.m = &m2, w.c = &c2, w.lane = lane2;
        k->weigh(&w);
        const bool sums = same(&m, &m2, 1) && same(&c, &c2, 1) && same(lane, lane2, KK_LANES);
        CHECK_SAY(sums && same(score + lo, other + lo, (size_t)(hi - lo)), "%s weigh [%d, %d)",
                  k->name, lo, hi);
        free(score), free(more), free(other), free(key), free(value), free(lane);
    }
}

static void check_sums(const kk_kernels *k) {
    for (int n = 0; n < 80; n++) {
        const int32_t dim = 1 + below(n % 2 ? 60 : 300), n_acc = 1 + below(11);
        const int32_t n_x = 1 + below(KK_PAGE_ROWS), gap = below(3);
        const size_t all = (size_t)(n_acc * (dim + gap));
        float *want = floats(all, 1), *got = buffer(all * 4), *c = floats((size_t)n_acc, 1);
        float *w = floats((size_t)n_acc * KK_PAGE_ROWS, 1);
        float *x = floats((size_t)(n_x * (dim + 1)), 1);
        memcpy(got, want, all * 4);
        kk_sums s = {.acc = want,
                     .acc_stride = (size_t)(dim + gap),
                     .c = c,
                     .w = w,
                     .x = x,
                     .x_stride = (size_t)(dim + 1),
                     .n = dim,
                     .n_acc = n_acc,
                     .n_x = n_x};
        ref->sums(&s);
        s.acc = got;
        k->sums(&s);
        CHECK_SAY(same(want, got, all), "%s %d sums of %d by %d", k->name, n_acc, n_x, dim);
        free(want), free(got), free(c), free(w), free(x);
    }
}

/* Keys that are scored as they are made: what keys and then dots give, one after the other. */
static void check_scored(const kk_kernels *k, int32_t half, int32_t n_rot, bool norms) {
    const int32_t rows = 1 + below(KK_PAGE_ROWS), n_q = below(3) ? 1 : 1 + below(5);
    const size_t dim = 2 * (size_t)half, all = (size_t)rows * dim;
    float *x = floats(all, 3), *other = buffer(all * 4), *w = floats(dim, 2);
    float *cs = floats((size_t)(rows * 2 * n_rot), 1), *q = floats((size_t)n_q * dim, 1);
    float inv[2][KK_PAGE_ROWS] = {0}, score[2][5 * KK_PAGE_ROWS] = {0};
    memcpy(other, x, all * 4);
    kk_keys keys = {.x = x,
                    .inv = norms ? inv[0] : NULL,
                    .w = w,
                    .cs = cs,
                    .n = rows,
                    .dim = 2 * half,
                    .n_rot = n_rot,
                    .eps = 1e-6f};
    ref->keys(&keys);
    ref->dots(score[0], q, x, 2 * half, n_q, rows);
    keys.x = other, keys.inv = norms ? inv[1] : NULL;
    keys.q = q, keys.n_q = n_q, keys.score = score[1];
    k->keys(&keys);
    bool alike = same(inv[0], inv[1], KK_PAGE_ROWS);
    for (int32_t p = 0; p < n_q; p++)
        alike &= same(score[0] + p * KK_PAGE_ROWS, score[1] + p * KK_PAGE_ROWS, (size_t)rows);
    CHECK_SAY(alike, "%s scores of %d keys of %d, %d rotated, %d queries", k->name, rows, 2 * half,
              n_rot, n_q);
    free(x), free(other), free(w), free(cs), free(q);
}

static void check_keys(const kk_kernels *k) {
    for (int n = 0; n < 120; n++) {
        const int32_t half = n % 2 ? 1 + below(70) : 8 * (1 + below(8)), rows = 1 + below(20),
                      n_rot = 1 + below(half);
        const size_t dim = 2 * (size_t)half, all = (size_t)rows * dim;
        float *want = floats(all, 3), *got = buffer(all * 4), *w = floats(dim, 2);
        float *cs = floats((size_t)(rows * 2 * n_rot), 1), inv[2][20] = {0};
        memcpy(got, want, all * 4);
        kk_keys keys = {.x = want,
                        .inv = n % 3 ? inv[0] : NULL,
                        .w = w,
                        .cs = cs,
                        .n = rows,
                        .dim = 2 * half,
                        .n_rot = n_rot,
                        .eps = 1e-6f};
        const float alone = ref->inv_rms(want, 2 * half, 1e-6f);
        CHECK_SAY(k->inv_rms(want, 2 * half, 1e-6f) == alone, "%s inverse of %d", k->name, half);
        ref->keys(&keys);
        CHECK_SAY(!keys.inv || inv[0][0] == alone, "%s inverse of %d differs", k->name, half);
        keys.x = got;
        keys.inv = keys.inv ? inv[1] : NULL;
        k->keys(&keys);
        CHECK_SAY(same(want, got, all) && same(inv[0], inv[1], 20), "%s keys %d of %d", k->name,
                  rows, 2 * half);
        check_scored(k, half, n % 4 ? half : n_rot, n % 3);
        free(want), free(got), free(w), free(cs);
    }
}

static void check_floats(const kk_kernels *k) {
    static const kk_dtype types[] = {KK_F32, KK_F16, KK_BF16, KK_Q8_0, KK_Q4_0, KK_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        enum { N = 768 };
        size_t stride;
        float want[N], got[N];
        uint8_t *stored = weights(types[i], 1, N, &stride);
        kk_dequantize(types[i], stored, want, N);
        k->floats(types[i], stored, got, N);
        CHECK_SAY(same(want, got, N), "%s floats of %s", k->name, kk_dtype_get(types[i])->name);
        free(stored);
    }
}

static void check_latents(const kk_kernels *k) {
    check_dots(k);
    check_bf16_rows(k);
    check_weigh(k);
    check_sums(k);
    check_keys(k);
    check_floats(k);
}

int main(void) {
    static const char *const names[] = {"reference", "avx2", "avx512", "neon"};
    check_reference_meaning();
    check_hidden_sight();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const kk_kernels *k = kk_kernels_named(names[i]);
        if (!k) continue;
        check_strips(k);
        check_largest_sums(k);
        check_largest_affine_sums(k);
        check_rows(k);
        check_largest(k);
        check_quantize(k);
        check_put(k);
        check_attend(k);
        check_widen(k);
        check_latents(k);
        printf("%s: checked\n", k->name);
    }
    return check_summary("kernels");
}
