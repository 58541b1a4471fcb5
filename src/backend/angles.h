/* angles.h - cosines and sines of rotary angles, always the same ones.
 *
 * Rebuilt keys are rotated by angles computed again at every use, and must equal those that were
 * stored: so the C library's functions, which differ between versions, are not used, and the
 * steps below are plain double arithmetic without fused operations, eight lanes at a time, which
 * every compiler and vector width carries out alike.  Errors stay under 1e-15, far below half a
 * unit of the floats the results are rounded to. */
#ifndef KK_BACKEND_ANGLES_H
#define KK_BACKEND_ANGLES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { KK_TURN_LANES = 8 };

/* c, s = cos, sin of angle, for |angle| up to 2^21, past any context. */
static inline void kk_angles_lanes(float *c, float *s, const float *angle) {
    typedef float vec_f __attribute__((vector_size(4 * KK_TURN_LANES)));
    typedef double vec_d __attribute__((vector_size(8 * KK_TURN_LANES)));
    typedef int64_t vec_i __attribute__((vector_size(8 * KK_TURN_LANES)));
    vec_f in;
    memcpy(&in, angle, sizeof in);
    const vec_d x = __builtin_convertvector(in, vec_d);
    /* The nearest multiple n of pi / 2; adding so large a number rounds away the fraction. */
    const double big = 0x1.8p52;
    const vec_d n = (x * 0x1.45f306dc9c883p-1 + big) - big;
    /* What is left, with pi / 2 in three parts, the first two short enough for exact products
     * with n up to 2^21. */
    const vec_d r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    const vec_d z = r * r;
    vec_d p = z * (-1.0 / 1307674368000.0) + 1.0 / 6227020800.0;
    p = z * p + -1.0 / 39916800;
    p = z * p + 1.0 / 362880;
    p = z * p + -1.0 / 5040;
    p = z * p + 1.0 / 120;
    p = z * p + -1.0 / 6;
    const vec_d sine = r + r * z * p;
    p = z * (1.0 / 20922789888000.0) + -1.0 / 87178291200.0;
    p = z * p + 1.0 / 479001600;
    p = z * p + -1.0 / 3628800;
    p = z * p + 1.0 / 40320;
    p = z * p + -1.0 / 720;
    p = z * p + 1.0 / 24;
    const vec_d cosine = 1.0 - 0.5 * z + z * z * p;
    /* n mod 4 in {0, 1, 2, 3}: cos is c, -s, -c, s; sin is s, c, -s, -c. */
    const vec_d half = n * 0.5, quarter = n * 0.25;
    const vec_d odd = n - 2.0 * ((half - 0.25 + big) - big);
    const vec_d quadrant = n - 4.0 * ((quarter - 0.375 + big) - big);
    const vec_i swap = (vec_i)(odd > 0.5), sign = {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN,
                                                   INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN};
    const vec_i cosine_minus = (vec_i)(quadrant > 0.5) & (vec_i)(quadrant < 2.5);
    const vec_i sine_minus = (vec_i)(quadrant > 1.5);
    const vec_d cosine_out =
        (vec_d)(((swap & (vec_i)sine) | (~swap & (vec_i)cosine)) ^ (cosine_minus & sign));
    const vec_d sine_out =
        (vec_d)(((swap & (vec_i)cosine) | (~swap & (vec_i)sine)) ^ (sine_minus & sign));
    const vec_f cosines = __builtin_convertvector(cosine_out, vec_f);
    const vec_f sines = __builtin_convertvector(sine_out, vec_f);
    memcpy(c, &cosines, sizeof cosines);
    memcpy(s, &sines, sizeof sines);
}

/* Cosines, then sines, of position * freq[i], i < n: [2][n].  Angles are products of floats, as in
 * the reference implementation: at long positions a more exact angle would be a different model. */
static inline void kk_angles_row(float *row, const float *freq, int32_t n, int64_t position) {
    const float at = (float)position;
    for (int32_t i = 0; i < n; i += KK_TURN_LANES) {
        const int32_t m = n - i < KK_TURN_LANES ? n - i : KK_TURN_LANES;
        float angle[KK_TURN_LANES] = {0}, c[KK_TURN_LANES], s[KK_TURN_LANES];
        for (int32_t k = 0; k < m; k++) angle[k] = at * freq[i + k];
        kk_angles_lanes(c, s, angle);
        memcpy(row + i, c, (size_t)m * sizeof *c);
        memcpy(row + n + i, s, (size_t)m * sizeof *s);
    }
}

/* Frequencies of kk_rope's fields, [n_rot]. */
static inline void kk_frequencies(float *freq, float theta, float factor, int32_t n_rot,
                                  int32_t head_dim) {
    for (int32_t i = 0; i < n_rot; i++)
        freq[i] = (float)pow((double)theta, -2.0 * i / head_dim) / factor;
}

#endif
