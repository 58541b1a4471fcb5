/* fit.h - how well a projection rebuilds rows it was not made from: relative squared errors by
 * block, of the rows as projected and of the rows normalised head by head, which is what
 * attention sees. */
#ifndef KK_TRAIN_FIT_H
#define KK_TRAIN_FIT_H

#include "train/theta.h"

typedef struct {
    double raw_error, raw_energy, normed_error, normed_energy; /* sums of squares */
} kk_fit_block;

typedef struct {
    int64_t rows;
    kk_fit_block block[KK_THETA_BLOCKS];
} kk_fit;

/* Zero is where it starts. */
kk_status kk_fit_add(kk_fit *f, const kk_theta *t, const kk_captured *rows, float eps, kk_err *err);
double kk_fit_raw(const kk_fit_block *b);    /* relative error */
double kk_fit_normed(const kk_fit_block *b); /* the same of normalised rows */

#endif
