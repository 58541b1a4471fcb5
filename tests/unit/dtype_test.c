/* dtype_test.c - stored numbers mean exactly what other readers of the same bytes make of them.
 *
 * The hashes are of what the public reference implementation of these block formats computes
 * from the same pseudo-random bytes and floats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/dtype.h"

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t fnv(const void *data, size_t n) {
    const uint8_t *b = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* ---- 16-bit floats ---------------------------------------------------------------------- */

static void f16_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = kk_f16_f32((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(kk_f16_f32(kk_f32_f16(f))));
            continue;
        }
        assert_int_equal(kk_f32_f16(f), h);
    }
}

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__FLT16_MAX__)
#define HAVE_FLOAT16 1
__extension__ typedef _Float16 half;

static uint16_t half_bits(half h) {
    uint16_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}

/* The compiler's own type, over the bits of floats and around every boundary of f16. */
static void f16_rounds_as_the_compiler_does(void **state) {
    (void)state;
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += 4099) {
        const float f = kk_bits_f32((uint32_t)u);
        if (!isnan(f)) assert_int_equal(kk_f32_f16(f), half_bits((half)f));
    }
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float low = kk_f16_f32((uint16_t)h), high = kk_f16_f32((uint16_t)(h + 1));
        const uint32_t middle = kk_f32_bits(isinf(high) ? 65520.0f : low + (high - low) / 2);
        for (uint32_t u = middle - 1; u <= middle + 1; u++) {
            const float f = kk_bits_f32(u);
            assert_int_equal(kk_f32_f16(f), half_bits((half)f));
            assert_int_equal(kk_f32_f16(-f), half_bits((half)-f));
        }
    }
}
#endif

static void f16_knows_its_edges(void **state) {
    (void)state;
    assert_int_equal(kk_f32_f16(65519.996f), 0x7bff); /* the largest, not infinity */
    assert_int_equal(kk_f32_f16(65520.0f), 0x7c00);
    assert_int_equal(kk_f32_f16(-INFINITY), 0xfc00);
    assert_int_equal(kk_f32_f16(0x1p-25f), 0); /* a tie goes to even */
    assert_int_equal(kk_f32_f16(0x1.8p-24f), 2);
    assert_int_equal(kk_f32_f16(-0.0f), 0x8000);
    assert_int_equal(kk_f32_f16(0x1.ffcp-15f), 0x03ff + 1); /* rounds up into the normal ones */
    assert_true(isnan(kk_f16_f32(kk_f32_f16(NAN))));
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    assert_int_equal(kk_f32_bf16(1.0f), 0x3f80);
    assert_int_equal(kk_f32_bf16(kk_bits_f32(0x3f808000)), 0x3f80);
    assert_int_equal(kk_f32_bf16(kk_bits_f32(0x3f818000)), 0x3f82);
    assert_int_equal(kk_f32_bf16(kk_bits_f32(0x3f808001)), 0x3f81);
    assert_int_equal(kk_f32_bf16(kk_bits_f32(0x7f7fffff)), 0x7f80);
    assert_true(isnan(kk_bf16_f32(kk_f32_bf16(kk_bits_f32(0x7f800001)))));
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = kk_bf16_f32((uint16_t)h);
        if (!isnan(f)) assert_int_equal(kk_f32_bf16(f), h);
    }
}

/* ---- blocks ----------------------------------------------------------------------------- */

typedef struct {
    kk_dtype type;
    uint64_t hash;
    int scales[2]; /* where the block's f16 scales lie; -1: none */
} block_case;

static const block_case blocks[] = {
    {KK_Q8_0, 0x9d1998ad4fb4650a, {0, -1}},   {KK_Q4_0, 0x738d8b6a3d53e934, {0, -1}},
    {KK_Q5_0, 0xc6f190500d2da560, {0, -1}},   {KK_Q5_1, 0xd716ea670dcf9c12, {0, 2}},
    {KK_Q4_K, 0x9a9753612e10b593, {0, 2}},    {KK_Q5_K, 0x90de28192688147b, {0, 2}},
    {KK_Q6_K, 0xe1ebd20a5bb97d43, {208, -1}},
};

static void blocks_mean_what_they_mean_elsewhere(void **state) {
    (void)state;
    enum { N = 512 };
    for (size_t c = 0; c < sizeof blocks / sizeof *blocks; c++) {
        const block_case *b = &blocks[c];
        const kk_dtype_info *info = kk_dtype_get(b->type);
        const size_t block = (size_t)info->bytes, values = N * (size_t)info->values;
        uint8_t *bytes = malloc(N * block);
        float *out = malloc(values * sizeof *out);
        uint64_t seed = (uint64_t)b->type;
        for (size_t i = 0; i < N * block; i++) bytes[i] = (uint8_t)(draw(&seed) >> 56);
        for (size_t i = 0; i < N; i++)
            for (int s = 0; s < 2 && b->scales[s] >= 0; s++)
                bytes[i * block + (size_t)b->scales[s] + 1] &= 0xbf; /* finite scales */
        kk_dequantize(b->type, bytes, out, values);
        assert_int_equal(fnv(out, values * sizeof *out), b->hash);
        free(bytes);
        free(out);
    }
}

/* Blocks of many magnitudes, of zeros, and of values that lie between two steps. */
static void fill_awkward(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = draw(&seed);
        const float m = (float)((int64_t)(r >> 40) - (1 << 23)) / (float)(1 << 23);
        const size_t block = i / 32;
        const int spread = block % 7 == 0 ? 0 : (int)(r & 31) - 24;
        x[i] = ldexpf(m, block % 5 == 0 ? spread : -5);
        if (block % 97 == 0) x[i] = 0;
        if (block % 89 == 0) x[i] = (float)((int)(r % 17) - 8);
    }
}

static void quantisers_choose_the_same_bits(void **state) {
    (void)state;
    enum { N = 65536 };
    float *x = malloc(N * sizeof *x);
    uint8_t *out = malloc(N * 2);
    fill_awkward(x, N, 1000);
    kk_quantize_row(KK_Q8_0, x, out, N);
    assert_int_equal(fnv(out, N / 32 * 34), 0x478ba60eba02ad95);
    kk_quantize_row(KK_Q4_0, x, out, N);
    assert_int_equal(fnv(out, N / 32 * 18), 0x729ce88606af6889);
    free(x);
    free(out);
}

/* No value lies further off than half a step (and a scale's own rounding). */
static void quantisers_stay_within_half_a_step(void **state) {
    (void)state;
    enum { N = 8192 };
    const struct {
        kk_dtype type;
        float steps; /* between zero and the largest value */
    } cases[] = {{KK_Q8_0, 127}, {KK_Q4_0, 8}};
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint8_t *out = malloc(N * 2);
    fill_awkward(x, N, 7);
    for (int c = 0; c < 2; c++) {
        kk_quantize_row(cases[c].type, x, out, N);
        kk_dequantize(cases[c].type, out, y, N);
        for (size_t b = 0; b < N; b += 32) {
            float most = 0, end = 0; /* the largest value, and the same with its sign */
            for (size_t i = b; i < b + 32; i++) {
                if (fabsf(x[i]) > most) end = x[i];
                most = fmaxf(most, fabsf(x[i]));
            }
            const float step = most / cases[c].steps, scale_error = most * 0x1p-11f + 6e-8f * 8;
            for (size_t i = b; i < b + 32; i++) {
                /* Q4_0 has eight steps towards its largest value and seven the other way: what lies
                 * past the seventh is off by its distance from there. */
                const bool past =
                    cases[c].type == KK_Q4_0 && x[i] * end < 0 && fabsf(x[i]) > 7.5f * step;
                const float bound = past ? fabsf(x[i]) - 7 * step : step / 2;
                assert_true(fabsf(x[i] - y[i]) <= bound + scale_error);
            }
        }
    }
    free(x);
    free(y);
    free(out);
}

static void nan_and_infinity_do_no_harm(void **state) {
    (void)state;
    float x[64], y[64];
    uint8_t out[128];
    for (int i = 0; i < 64; i++) x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : 1.0f;
    for (int t = KK_F16; t <= KK_Q4_0; t++) {
        kk_quantize_row((kk_dtype)t, x, out, 64);
        kk_dequantize((kk_dtype)t, out, y, 64);
    }
    kk_quantize_row(KK_F16, x, out, 64);
    kk_dequantize(KK_F16, out, y, 64);
    assert_true(isnan(y[0]) && isinf(y[1]));
    /* One NaN shows in the scale of its block, and in no other. */
    for (int i = 0; i < 64; i++) x[i] = i == 40 ? NAN : 1.0f;
    for (int t = KK_Q8_0; t <= KK_Q4_0; t++) {
        kk_quantize_row((kk_dtype)t, x, out, 64);
        kk_dequantize((kk_dtype)t, out, y, 64);
        assert_true(y[0] > 0.9f && isnan(y[32]));
    }
}

/* ---- sizes ------------------------------------------------------------------------------ */

static void sizes_are_checked(void **state) {
    (void)state;
    size_t bytes;
    kk_dtype t;
    assert_true(kk_dtype_bytes(KK_Q4_0, 64, &bytes));
    assert_int_equal(bytes, 36);
    assert_false(kk_dtype_bytes(KK_Q4_0, 63, &bytes));
    assert_false(kk_dtype_bytes(KK_Q6_K, 128, &bytes));
    assert_false(kk_dtype_bytes(KK_F32, UINT64_MAX / 2, &bytes));
    assert_true(kk_dtype_named("q5_k", &t));
    assert_int_equal(t, KK_Q5_K);
    assert_false(kk_dtype_named("q3_k", &t));
    for (int i = 0; i < KK_DTYPES; i++) {
        assert_true(kk_dtype_named(kk_dtype_get((kk_dtype)i)->name, &t));
        assert_int_equal(t, i);
    }
}

static void integers_become_floats(void **state) {
    (void)state;
    const int32_t small[2] = {-7, 1 << 20};
    const int64_t large[2] = {-1, (int64_t)1 << 40};
    float y[2];
    kk_dequantize(KK_I32, small, y, 2);
    assert_true(y[0] == -7.0f && y[1] == 1048576.0f);
    kk_dequantize(KK_I64, large, y, 2);
    assert_true(y[0] == -1.0f && y[1] == 0x1p40f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_survives_the_round_trip),
#ifdef HAVE_FLOAT16
        cmocka_unit_test(f16_rounds_as_the_compiler_does),
#endif
        cmocka_unit_test(f16_knows_its_edges),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(blocks_mean_what_they_mean_elsewhere),
        cmocka_unit_test(quantisers_choose_the_same_bits),
        cmocka_unit_test(quantisers_stay_within_half_a_step),
        cmocka_unit_test(nan_and_infinity_do_no_harm),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(integers_become_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
