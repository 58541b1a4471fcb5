/* codes.h - quantised weights of GGUF as integers: what products multiply before scales come in.
 *
 * dtype.h has the value of every stored bit; here are its parts, for the reference of the CPU's
 * kernels and for devices that keep codes in a form of their own. */
#ifndef KK_CORE_CODES_H
#define KK_CORE_CODES_H

#include "core/dtype.h"

enum { KK_CODES = 32 };

/* 32 weights of a row: weight = d * (scale[half] * q) + m * min, with half 1 from the 17th on. */
typedef struct {
    int32_t q[KK_CODES]; /* zero point already taken off */
    int32_t scale[2], min;
    float d, m;
} kk_codes;

/* The i-th 32 weights of a row of a quantised type, not an affine one. */
void kk_codes_read(kk_codes *b, kk_dtype t, const uint8_t *row, int32_t i);

#endif
