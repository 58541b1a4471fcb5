/* ridge.h - the best linear map of a given rank in closed form.
 *
 * Rows are added up once as X^T X and X^T Y, in double, so that memory does not grow with them.
 * With A = X^T X + lambda I = L L^T and C = L^-1 X^T Y W, W weighting each block of targets to
 * count alike, the reduced-rank solution is P P^T C: P the leading eigenvectors of C C^T.  So
 *   E = sqrt(n) P^T L^-1      D^T = P^T C W^-1 / sqrt(n)
 * and the latents z = E x come out with unit mean square, uncorrelated, the most useful first:
 * rounding them to few bits costs each component alike.
 *
 * Attention sees keys and values normalised head by head, so a row's scale does not matter but
 * its direction does: targets are the normalised vectors, and a decoder's rows get the scale of
 * their head back afterwards, which the norm removes again and a mix with true rows does not. */
#ifndef KK_TRAIN_RIDGE_H
#define KK_TRAIN_RIDGE_H

#include "train/theta.h"

typedef struct kk_ridge kk_ridge;

typedef struct {
    double lambda; /* regularisation, relative to the mean of X^T X's diagonal; 0: 1e-5 */
    float eps;     /* epsilon of the model's norms */
    bool raw;      /* targets as they are, not normalised */
    /* How much each layer counts beside the others; NULL: alike. */
    const double *layer_weight;
} kk_ridge_opts;

/* theta says what is to be rebuilt and from what; its shape is borrowed. */
kk_status kk_ridge_new(kk_ridge **out, const kk_theta *shape, const kk_ridge_opts *opts,
                       kk_err *err);
void kk_ridge_free(kk_ridge *r); /* NULL is fine */
void kk_ridge_add(kk_ridge *r, const kk_captured *rows);
int64_t kk_ridge_rows(const kk_ridge *r);
/* Fills theta's parameters, of any rank up to the features'. */
kk_status kk_ridge_solve(const kk_ridge *r, kk_theta *theta, kk_err *err);

/* What other ways to the same sums share with this one (sums.h). */
extern const double kk_ridge_lambda; /* what a lambda of 0 is */
/* What a column of a block is multiplied with so that all blocks count alike, but for their
 * layers' weights; a raw key stands for K and for V.  energy: sums of squares of the raw targets by
 * head. */
double kk_ridge_block_weight(const kk_theta_block *b, const double *energy, int64_t rows,
                             double layer_weight, bool raw);
/* The scale that a head's normalised targets have lost. */
double kk_ridge_head_scale(const kk_theta_block *b, double energy, int64_t rows, bool raw);

#endif
