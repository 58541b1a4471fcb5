/* sums.h - the closed form of ridge.h for models on a device with memory of its own.
 *
 * Nothing is copied to the host while texts are run: a forward's features and targets stay in
 * buffers of the device, a chunk of rows of all layers, and are added to X^T X and Y^T X there, in
 * float64 (gram of kk_sum_ops).  So memory is these sums and one chunk, whatever the number of
 * rows, and the time goes into forwards.
 *
 * The solution is that of ridge.h, with W = L^-T: C C^T = W^T S W, S = X^T Y V^2 Y^T X with V the
 * weights of targets, then only the eigenvectors P that are kept, E = sqrt(n) P^T W^T and
 * D = Y^T X E^T / n.  The device multiplies, sums over all targets among that; W, of n_in features,
 * and the eigenvectors are the host's. */
#ifndef KK_TRAIN_SUMS_H
#define KK_TRAIN_SUMS_H

#include "train/ridge.h"

typedef struct kk_sums kk_sums;

typedef struct {
    const kk_capture_opts *from; /* features: taps alone */
    const kk_theta *shape;       /* what is to be rebuilt; borrowed */
    kk_ridge_opts ridge;
    int32_t rows; /* of a chunk; at most the rows of a forward */
} kk_sums_opts;

/* Bytes beside the model, to the most that are taken at once. */
typedef struct {
    size_t device, host;
} kk_sums_bytes;

typedef struct {
    double forward_s, add_s; /* running texts; adding their rows up */
    double flop;             /* operations of the latter, a product and its sum being two */
} kk_sums_times;

/* Why these sums cannot be made on a device; NULL: they can. */
const char *kk_sums_refuse(const kk_capture_opts *from);
kk_status kk_sums_need(kk_sums_bytes *out, const kk_sums_opts *opts, kk_err *err);
kk_status kk_sums_new(kk_sums **out, const kk_sums_opts *opts, kk_err *err);
void kk_sums_free(kk_sums *s); /* NULL is fine */
/* Runs a text of n tokens with exact caches in float32 and adds its rows up. */
kk_status kk_sums_run(kk_sums *s, const int32_t *tokens, int32_t n, kk_err *err);
int64_t kk_sums_rows(const kk_sums *s);
kk_sums_times kk_sums_spent(const kk_sums *s);

/* Steps of a solution, in order: told when they are done; what it returns ends it unless it is
 * KK_OK. */
enum { KK_SUMS_STEPS = 4 };
typedef struct {
    kk_status (*done)(void *user, int32_t step, const char *what, double seconds, kk_err *err);
    void *user;
} kk_sums_watch;
/* Fills theta's parameters.  The sums are used up. */
kk_status kk_sums_solve(kk_sums *s, kk_theta *theta, const kk_sums_watch *watch, kk_err *err);

#endif
