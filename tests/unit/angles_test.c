/* angles_test.c - our cosines and sines against the C library's in double arithmetic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/angles.h"
#include "core/dtype.h"

/* Half a unit in the last place of x, and what a result that lies between two floats may add. */
static double half_unit(double x) {
    const float f = (float)fabs(x);
    return ((double)nextafterf(f, 4) - (double)f) / 2 + 2e-15;
}

/* The same in whichever lane. */
static void turn(float angle, float *c, float *s) {
    float in[KK_TURN_LANES], cosines[KK_TURN_LANES], sines[KK_TURN_LANES];
    for (int i = 0; i < KK_TURN_LANES; i++) in[i] = angle;
    kk_angles_lanes(cosines, sines, in);
    for (int i = 1; i < KK_TURN_LANES; i++)
        assert_true(kk_f32_bits(cosines[i]) == kk_f32_bits(cosines[0]) &&
                    kk_f32_bits(sines[i]) == kk_f32_bits(sines[0]));
    *c = cosines[0];
    *s = sines[0];
}

static void check(float angle) {
    float c, s;
    turn(angle, &c, &s);
    const double want_c = cos((double)angle), want_s = sin((double)angle);
    if (!(fabs((double)c - want_c) <= half_unit(want_c)))
        fail_msg("cos(%.9g) is %.9g, want %.17g", (double)angle, (double)c, want_c);
    if (!(fabs((double)s - want_s) <= half_unit(want_s)))
        fail_msg("sin(%.9g) is %.9g, want %.17g", (double)angle, (double)s, want_s);
}

static void both_signs(float angle) {
    check(angle);
    check(-angle);
}

/* Positions, whole and times the low frequencies of a head, up to 2^20, and beyond. */
static void positions(void **state) {
    (void)state;
    for (int32_t pos = 0; pos < 1 << 20; pos += pos < 4096 ? 1 : 61) {
        both_signs((float)pos);
        for (int32_t i = 1; i < 64; i += 9) check((float)pos * (float)pow(1e4, -2.0 * i / 128));
    }
    for (uint32_t bits = 0x49800000u; bits <= 0x4a000000u; bits += 257) /* 2^20 to 2^21 */
        both_signs(kk_bits_f32(bits));
}

/* Every exponent down to the smallest number, whose sine is itself and whose cosine is 1. */
static void small_angles(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x40490fdbu; bits += bits < 1000 ? 1 : 65537)
        both_signs(kk_bits_f32(bits));
    float c, s;
    turn(1e-40f, &c, &s);
    assert_true(kk_f32_bits(s) == kk_f32_bits(1e-40f) && kk_f32_bits(c) == kk_f32_bits(1));
    turn(0, &c, &s);
    assert_true(kk_f32_bits(s) == 0 && kk_f32_bits(c) == kk_f32_bits(1));
}

/* The floats around multiples of a quarter turn and of an eighth: where one of the two passes
 * zero, and where one polynomial gives way to the other. */
static void around_quarters(void **state) {
    (void)state;
    for (int32_t n = 1; n < 700000; n += n < 2000 ? 1 : 173) {
        const float middle = (float)(n * acos(-1) / 4);
        float above = middle, below = middle;
        check(middle);
        for (int i = 0; i < 3; i++) {
            check(above = nextafterf(above, INFINITY));
            check(below = nextafterf(below, 0));
        }
    }
}

/* A row of any number of frequencies, none of which depends on the others. */
static void rows_of_turns(void **state) {
    (void)state;
    enum { MOST = 20 };
    float freq[MOST], row[2 * MOST + 1];
    for (int i = 0; i < MOST; i++) freq[i] = (float)pow(1e4, -i / 16.0);
    for (int32_t n = 0; n <= MOST; n++) {
        for (int64_t pos = 0; pos < 20000; pos += 997) {
            row[2 * n] = 1234;
            kk_angles_row(row, freq, n, pos);
            for (int32_t i = 0; i < n; i++) {
                float c, s;
                turn((float)pos * freq[i], &c, &s);
                assert_true(kk_f32_bits(row[i]) == kk_f32_bits(c));
                assert_true(kk_f32_bits(row[n + i]) == kk_f32_bits(s));
            }
            assert_true(kk_f32_bits(row[2 * n]) == kk_f32_bits(1234));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions),
        cmocka_unit_test(small_angles),
        cmocka_unit_test(around_quarters),
        cmocka_unit_test(rows_of_turns),
    };
    return cmocka_run_group_tests_name("angles", tests, NULL, NULL);
}
