/* kvformat_test.c - the table of K/V formats, where a row's bytes lie, and what they mean. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/kv_affine.h"
#include "core/kv_s8.h"
#include "core/span.h"

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float drawn(uint64_t *seed) { return (float)(draw(seed) >> 40) / (float)(1 << 23) - 1; }

/* ---- the table -------------------------------------------------------------------------- */

/* Saved sessions hold the numbers, reports and command lines the names. */
static void numbers_and_names_stay(void **state) {
    (void)state;
    static const char *const names[KK_KV_FORMATS] = {"bf16", "f32", "q8", "q4", "s8"};
    for (int f = 0; f < KK_KV_FORMATS; f++)
        assert_string_equal(kk_kv_format_name((kk_kv_format)f), names[f]);
    assert_int_equal(KK_KV_BF16, 0);
    assert_int_equal(KK_KV_F32, 1);
    assert_int_equal(KK_KV_Q8, 2);
    assert_int_equal(KK_KV_Q4, 3);
    assert_int_equal(KK_KV_S8, 4);
}

static void every_format_is_whole(void **state) {
    (void)state;
    for (int i = 0; i < KK_KV_FORMATS; i++) {
        const kk_kv_format_info *info = kk_kv_format_get((kk_kv_format)i);
        kk_kv_format f = KK_KV_FORMATS;
        assert_non_null(info);
        assert_true(kk_kv_format_named(info->name, &f));
        assert_int_equal(f, i); /* no two have one name */
        assert_true(info->group > 0 && info->plane[0] > 0 && info->pack && info->unpack);
        /* A row never takes more than its floats, which some reserve for it. */
        assert_true(kk_kv_row_bytes(f, info->group) <= 4 * (size_t)info->group);
    }
}

static void others_do_not_exist(void **state) {
    (void)state;
    kk_kv_format f = KK_KV_Q4;
    const int none[] = {-1, KK_KV_FORMATS, KK_KV_FORMATS + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_null(kk_kv_format_get((kk_kv_format)none[i]));
        assert_null(kk_kv_format_name((kk_kv_format)none[i]));
    }
    assert_false(kk_kv_format_named("q5", &f));
    assert_false(kk_kv_format_named("", &f));
    assert_int_equal(f, KK_KV_Q4);             /* untouched */
    assert_true(kk_kv_format_named("Q8", &f)); /* in any case */
    assert_int_equal(f, KK_KV_Q8);
}

/* ---- places ----------------------------------------------------------------------------- */

static void planes_follow_each_other(void **state) {
    (void)state;
    const kk_kv_place q8 = kk_kv_row_place(KK_KV_Q8, 128, 64, 3);
    assert_int_equal(q8.at[0], 3 * 128);
    assert_int_equal(q8.at[1], 64 * 128 + 3 * 4);
    assert_int_equal(q8.at[2], 64 * 128 + 64 * 4 + 3 * 4);
    const kk_kv_place q4 = kk_kv_row_place(KK_KV_Q4, 64, 5, 4);
    assert_int_equal(q4.at[0], 4 * 32);
    assert_int_equal(q4.at[1], 5 * 32 + 4 * 2);
    assert_int_equal(q4.at[2], 5 * 32 + 5 * 2 + 4 * 2);
    assert_int_equal(kk_kv_row_place(KK_KV_BF16, 100, 64, 7).at[0], 7 * 200);
    assert_int_equal(kk_kv_row_bytes(KK_KV_F32, 100), 400);
    assert_int_equal(kk_kv_row_bytes(KK_KV_BF16, 100), 200);
    assert_int_equal(kk_kv_row_bytes(KK_KV_Q8, 256), 272);
    assert_int_equal(kk_kv_row_bytes(KK_KV_Q4, 256), 144);
    assert_int_equal(kk_kv_row_bytes(KK_KV_S8, 256), 264);
}

/* Rows of a block touch nothing of each other, and fill it. */
static void rows_share_no_byte(void **state) {
    (void)state;
    enum { ROWS = 7 };
    uint64_t seed = 3;
    for (int i = 0; i < KK_KV_FORMATS; i++) {
        const kk_kv_format f = (kk_kv_format)i;
        const kk_kv_format_info *info = kk_kv_format_get(f);
        const int32_t dim = 3 * info->group;
        /* Half a step of values within +-1, and what scales in half precision lose. */
        const float step = f == KK_KV_F32 ? 0 : f == KK_KV_Q4 ? 1.01f / 15 : 1.01f / 254;
        float x[ROWS][768], y[768];
        uint8_t block[ROWS * 768 * 4 + 1], after[sizeof block];
        memset(block, 0xee, sizeof block);
        for (int32_t r = ROWS - 1; r >= 0; r--) {
            for (int32_t k = 0; k < dim; k++) x[r][k] = drawn(&seed);
            info->pack(x[r], dim, block, kk_kv_row_place(f, dim, ROWS, r));
        }
        assert_int_equal(block[ROWS * kk_kv_row_bytes(f, dim)], 0xee);
        for (int32_t r = 0; r < ROWS; r++) { /* the rows before it did not change it */
            memcpy(after, block, sizeof block);
            info->pack(x[r], dim, after, kk_kv_row_place(f, dim, ROWS, r));
            assert_memory_equal(after, block, sizeof block);
            info->unpack(y, dim, block, kk_kv_row_place(f, dim, ROWS, r));
            for (int32_t k = 0; k < dim; k++) assert_true(fabsf(y[k] - x[r][k]) <= step);
        }
    }
}

/* ---- what every format promises ---------------------------------------------------------- */

/* One value that is no number, or infinite, leaves no value of its group sound, and no other group
 * is touched by it. */
static void broken_values_show(void **state) {
    (void)state;
    static const float broken[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < KK_KV_FORMATS; i++) {
        const kk_kv_format f = (kk_kv_format)i;
        const kk_kv_format_info *info = kk_kv_format_get(f);
        const int32_t dim = 2 * info->group;
        for (int32_t n = 0; n < 3 * info->group; n++) {
            float x[512], y[512];
            uint8_t block[512 * 4];
            for (int32_t k = 0; k < dim; k++) x[k] = (float)(k % 64) - 20;
            x[n / 3] = broken[n % 3];
            info->pack(x, dim, block, kk_kv_row_place(f, dim, 1, 0));
            info->unpack(y, dim, block, kk_kv_row_place(f, dim, 1, 0));
            for (int32_t k = 0; k < info->group; k++) assert_true(!isfinite(y[k]));
            for (int32_t k = info->group; k < dim; k++) assert_true(isfinite(y[k]) != 0);
        }
    }
}

static void zeros_stay_zeros(void **state) {
    (void)state;
    for (int i = 0; i < KK_KV_FORMATS; i++) {
        const kk_kv_format f = (kk_kv_format)i;
        const kk_kv_format_info *info = kk_kv_format_get(f);
        float x[256] = {0}, y[256];
        uint8_t block[256 * 4];
        info->pack(x, info->group, block, kk_kv_row_place(f, info->group, 1, 0));
        info->unpack(y, info->group, block, kk_kv_row_place(f, info->group, 1, 0));
        for (int32_t k = 0; k < info->group; k++) assert_true(y[k] == 0);
    }
}

/* ---- q8 and q4 -------------------------------------------------------------------------- */

/* A group on its own: codes, then scale, then bias. */
typedef struct {
    uint8_t codes[64 + 4];
} group;

static const kk_kv_format packed[] = {KK_KV_Q8, KK_KV_Q4};

static kk_kv_place group_place(kk_kv_format f) { return kk_kv_row_place(f, 64, 1, 0); }
static group pack(kk_kv_format f, const float *x) {
    group g = {{0}};
    kk_kv_format_get(f)->pack(x, 64, g.codes, group_place(f));
    return g;
}
static void unpack(kk_kv_format f, const group *g, float *x) {
    kk_kv_format_get(f)->unpack(x, 64, g->codes, group_place(f));
}
static kk_kv_affine affine_of(kk_kv_format f, const group *g) {
    const kk_kv_place at = group_place(f);
    return (kk_kv_affine){kk_le16(g->codes + at.at[1]), kk_le16(g->codes + at.at[2])};
}
static void set_affine(kk_kv_format f, group *g, kk_kv_affine a) {
    kk_put_le16(g->codes + group_place(f).at[1], a.scale);
    kk_put_le16(g->codes + group_place(f).at[2], a.bias);
}

/* value = code * scale + bias, and where each code lies. */
static void packed_codes_mean_what_they_say(void **state) {
    (void)state;
    group g;
    float y[64];
    const kk_kv_affine a = {kk_f32_f16(0.25f), kk_f32_f16(-3)};
    for (int i = 0; i < 64; i++) g.codes[i] = (uint8_t)(i * 37 + 11);
    set_affine(KK_KV_Q8, &g, a);
    unpack(KK_KV_Q8, &g, y);
    for (int i = 0; i < 64; i++) assert_true(y[i] == (float)g.codes[i] * 0.25f - 3);
    set_affine(KK_KV_Q4, &g, a);
    unpack(KK_KV_Q4, &g, y);
    for (int i = 0; i < 32; i++) {
        assert_true(y[i] == (float)(g.codes[i] & 15) * 0.25f - 3);
        assert_true(y[i + 32] == (float)(g.codes[i] >> 4) * 0.25f - 3);
    }
}

/* No value is further off than half a step and what f16 took from scale and bias, whatever the
 * size and place of the range. */
static void packing_stays_within_half_a_step(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int n = 0; n < 4000; n++) {
        const kk_kv_format f = packed[n % 2];
        const double steps = f == KK_KV_Q8 ? 255 : 15;
        const float size = ldexpf(1, (int)(draw(&seed) % 40) - 25);
        const float place = n % 3 ? 0 : ldexpf(1, (int)(draw(&seed) % 24) - 10);
        float x[64], y[64], least = INFINITY, most = -INFINITY;
        for (int i = 0; i < 64; i++) {
            x[i] = drawn(&seed) * size + place;
            least = fminf(least, x[i]);
            most = fmaxf(most, x[i]);
        }
        const group g = pack(f, x);
        unpack(f, &g, y);
        const kk_kv_affine a = affine_of(f, &g);
        const double scale = (double)kk_f16_f32(a.scale), bias = (double)kk_f16_f32(a.bias);
        const double exact = ((double)most - (double)least) / steps;
        const double allowed = scale / 2 + fabs(bias - (double)least) +
                               steps * fabs(scale - exact) + 1e-6 * fmax(fabs(bias), steps * scale);
        assert_true(fabs(scale - exact) <= fmax(exact / 2048, 0x1p-25) * 1.001);
        assert_true(fabs(bias - (double)least) <= fmax(fabs((double)least) / 2048, 0x1p-25));
        for (int i = 0; i < 64; i++) assert_true(fabs((double)(x[i] - y[i])) <= allowed);
    }
}

/* What was unpacked packs to itself: its ends are the codes 0 and the last, or all are one. */
static void packed_rows_pack_to_themselves(void **state) {
    (void)state;
    uint64_t seed = 9;
    for (int n = 0; n < 1000; n++) {
        const kk_kv_format f = packed[n % 2];
        const kk_kv_affine a = {kk_f32_f16(ldexpf(1, (int)(draw(&seed) % 12) - 8)),
                                kk_f32_f16((float)(draw(&seed) % 9) - 4)};
        group g = {{0}};
        float x[64];
        for (int i = 0; i < kk_kv_format_get(f)->plane[0]; i++) g.codes[i] = (uint8_t)draw(&seed);
        g.codes[draw(&seed) % 8] = 0;
        g.codes[8 + draw(&seed) % 8] = 255;
        set_affine(f, &g, a);
        unpack(f, &g, x);
        const group again = pack(f, x);
        assert_memory_equal(&g, &again, sizeof g);
    }
}

static void constant_groups_have_no_scale(void **state) {
    (void)state;
    static const float constant[] = {0, -0.0f, 1, -2.5f, 65504, -65504};
    for (size_t n = 0; n < 2 * sizeof constant / sizeof *constant; n++) {
        float x[64], y[64];
        for (int i = 0; i < 64; i++) x[i] = constant[n / 2];
        const group g = pack(packed[n % 2], x);
        assert_int_equal(affine_of(packed[n % 2], &g).scale, 0);
        unpack(packed[n % 2], &g, y);
        for (int i = 0; i < 64; i++) assert_true(y[i] == x[i]);
    }
}

/* As broken values, those that are too large for a scale or bias in f16. */
static void groups_too_wide_show(void **state) {
    (void)state;
    static const float broken[] = {-65520, 3e38f, -3e38f};
    const size_t kinds = sizeof broken / sizeof *broken;
    for (size_t n = 0; n < 2 * kinds * 64; n++) {
        float x[64], y[64];
        for (int i = 0; i < 64; i++) x[i] = (float)i - 20;
        x[n / 2 / kinds] = broken[n / 2 % kinds];
        const group g = pack(packed[n % 2], x);
        unpack(packed[n % 2], &g, y);
        for (int i = 0; i < 64; i++) assert_true(isnan(y[i]));
    }
}

/* ---- s8 --------------------------------------------------------------------------------- */

static void signed_codes_mean_what_they_say(void **state) {
    (void)state;
    group g;
    float y[64];
    for (int i = 0; i < 64; i++) g.codes[i] = (uint8_t)(i * 37 + 11);
    kk_put_le16(g.codes + 64, kk_f32_f16(0.25f));
    unpack(KK_KV_S8, &g, y);
    for (int i = 0; i < 64; i++) assert_true(y[i] == (float)(int8_t)g.codes[i] * 0.25f);
    assert_true(y[0] == 2.75f && y[4] < 0); /* 11, and 159 - 256 */
}

/* Within half a step of the largest magnitude and what f16 took from the scale; what is read packs
 * to itself, and the negative of a row to the negatives of its codes. */
static void signed_codes_are_near_and_even(void **state) {
    (void)state;
    uint64_t seed = 15;
    for (int n = 0; n < 3000; n++) {
        const float size = ldexpf(1, (int)(draw(&seed) % 34) - 18);
        const float place = n % 3 ? 0 : size * 3;
        float x[64], minus[64], y[64], most = 0;
        for (int i = 0; i < 64; i++) {
            x[i] = drawn(&seed) * size + place;
            minus[i] = -x[i];
            most = fmaxf(most, fabsf(x[i]));
        }
        const group g = pack(KK_KV_S8, x), h = pack(KK_KV_S8, minus);
        unpack(KK_KV_S8, &g, y);
        const double scale = (double)kk_f16_f32(kk_le16(g.codes + 64));
        const double exact = (double)most / 127;
        assert_true(fabs(scale - exact) <= fmax(exact / 2048, 0x1p-25) * 1.001);
        for (int i = 0; i < 64; i++) {
            assert_true(fabs((double)(x[i] - y[i])) <= scale * 0.5001 + 127 * fabs(scale - exact));
            assert_int_equal((int8_t)g.codes[i], -(int8_t)h.codes[i]);
        }
        const group again = pack(KK_KV_S8, y);
        float z[64];
        unpack(KK_KV_S8, &again, z);
        if (scale >= 0x1p-14) assert_memory_equal(y, z, sizeof y);
    }
}

static void signed_groups_too_wide_show(void **state) {
    (void)state;
    static const float broken[] = {8.4e6f, -8.4e6f, 3e38f, -3e38f};
    for (size_t n = 0; n < 4 * 64; n++) {
        float x[64], y[64];
        for (int i = 0; i < 64; i++) x[i] = (float)i - 20;
        x[n / 4] = broken[n % 4];
        const group g = pack(KK_KV_S8, x);
        unpack(KK_KV_S8, &g, y);
        for (int i = 0; i < 64; i++) assert_true(isnan(y[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_names_stay),
        cmocka_unit_test(every_format_is_whole),
        cmocka_unit_test(others_do_not_exist),
        cmocka_unit_test(planes_follow_each_other),
        cmocka_unit_test(rows_share_no_byte),
        cmocka_unit_test(broken_values_show),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(packed_codes_mean_what_they_say),
        cmocka_unit_test(packing_stays_within_half_a_step),
        cmocka_unit_test(packed_rows_pack_to_themselves),
        cmocka_unit_test(constant_groups_have_no_scale),
        cmocka_unit_test(groups_too_wide_show),
        cmocka_unit_test(signed_codes_mean_what_they_say),
        cmocka_unit_test(signed_codes_are_near_and_even),
        cmocka_unit_test(signed_groups_too_wide_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
