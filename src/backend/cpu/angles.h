/* angles.h - cosines and sines of rotary angles, always the same ones.
 *
 * Rebuilt keys are turned by angles computed anew at every use, and must come out as those that
 * were stored: so the C library's functions, which differ between versions, are not used, and the
 * steps below are plain double arithmetic without fused operations, which every compiler and
 * vector width carries out alike.  Loops over them vectorise.  Errors stay under 1e-15, far below
 * half a unit of the floats the results are rounded to. */
#ifndef KK_CPU_ANGLES_H
#define KK_CPU_ANGLES_H

#include <stdint.h>

/* For |angle| up to 2^30. */
static inline void kk_cos_sin(float angle, float *cos_out, float *sin_out) {
    /* pi / 2 in three parts, the first two short enough for exact products. */
    static const double part1 = 0x1.921fb544p+0, part2 = 0x1.0b4611a6p-34;
    static const double part3 = 0x1.3198a2e037073p-69;
    const double big = 0x1.8p52, x = (double)angle;
    const double n = (x * 0x1.45f306dc9c883p-1 + big) - big; /* the nearest multiple of pi / 2 */
    const double r = ((x - n * part1) - n * part2) - n * part3, z = r * r;
    const double s =
        r +
        r * z *
            (-1.0 / 6 +
             z * (1.0 / 120 + z * (-1.0 / 5040 +
                                   z * (1.0 / 362880 + z * (-1.0 / 39916800 +
                                                            z * (1.0 / 6227020800.0 +
                                                                 z * (-1.0 / 1307674368000.0)))))));
    const double c =
        1.0 - 0.5 * z +
        z * z *
            (1.0 / 24 +
             z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 +
                                                       z * (1.0 / 479001600 +
                                                            z * (-1.0 / 87178291200.0 +
                                                                 z * (1.0 / 20922789888000.0)))))));
    /* n mod 4 in {0, 1, 2, 3}: cos is c, -s, -c, s; sin is s, c, -s, -c. */
    const double half = n * 0.5, quarter = n * 0.25;
    const double odd = n - 2.0 * ((half - 0.25 + big) - big);      /* 0 or 1 */
    const double turn = n - 4.0 * ((quarter - 0.375 + big) - big); /* 0, 1, 2, 3 */
    const double cs = odd > 0.5 ? s : c, sn = odd > 0.5 ? c : s;
    *cos_out = (float)(turn > 0.5 && turn < 2.5 ? -cs : cs);
    *sin_out = (float)(turn > 1.5 ? -sn : sn);
}

#endif
