/* sums_state.h - what adding up (sums.c) and solving (sums_solve.c) share. */
#ifndef KK_TRAIN_SUMS_STATE_H
#define KK_TRAIN_SUMS_STATE_H

#include "train/sums.h"

struct kk_sums {
    kk_engine *engine;
    const kk_backend *be;
    kk_dev *dev;
    int32_t n_taps, taps[KK_MAX_TAPS];
    kk_ridge_opts ridge;
    double weight[KK_MAX_LAYERS];    /* by layer */
    kk_theta shape;                  /* without parameters */
    int32_t column[KK_THETA_BLOCKS]; /* where a block begins among the targets */
    int32_t n_in, n_out, widest;     /* features, targets, targets of a block */
    int32_t rows, held;              /* of a chunk; of them, those there are */
    kk_session *session;             /* of the text that is being run */
    kk_buf *x, *y;                   /* [rows, n_in], [rows, n_out]: a chunk */
    kk_buf *unit;    /* [rows, widest], a block's targets normalised; NULL: they are raw */
    kk_buf *xx, *yx; /* [n_in, n_in], [n_out, n_in]: the sums */
    kk_buf *squares; /* [n_out], of raw targets */
    kk_buf *weights; /* [n_out], squares of the columns' weights */
    int64_t n;       /* rows added up */
    kk_sums_times spent;
};

/* Adds the rows of the chunk up, and waits for it. */
kk_status kk_sums_add(kk_sums *s, kk_err *err);

#endif
