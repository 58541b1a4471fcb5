/* capture.h - what a verifier's layers work on, row by row, as training wants it.
 *
 * A sequence is run once through the engine with exact caches in float32.  What is seen: the
 * features x that a projection will read (see kk_source), each layer's keys and values as
 * projected (before their norms and RoPE), and, if wanted, its queries (normed and rotated) and
 * what its attention adds.  Targets are the exact run's: a run over rebuilt rows would differ a
 * little, and only there. */
#ifndef KK_TRAIN_CAPTURE_H
#define KK_TRAIN_CAPTURE_H

#include "engine/engine.h"
#include "format/projection.h"

typedef struct {
    kk_engine *engine; /* borrowed; with a drafter for the sources that read one */
    kk_source source;
    int32_t n_taps, taps[KK_MAX_TAPS];
    int32_t max_rows; /* most rows of a sequence */
    bool attention;   /* queries and outputs too */
} kk_capture_opts;

/* Rows of one sequence; [n_rows][width] each. */
typedef struct {
    int32_t n_rows, n_in;
    float *x[2]; /* drafter-kv: of keys and of values; the others have one */
    float *k[KK_MAX_LAYERS], *v[KK_MAX_LAYERS]; /* rows of layers that store K/V; v NULL: K = V */
    float *q[KK_MAX_LAYERS], *o[KK_MAX_LAYERS]; /* NULL: not wanted */
} kk_captured;

typedef struct kk_capture kk_capture;

/* How many features a row has; drafter-kv: for keys, and as many for values. */
int32_t kk_capture_width(const kk_capture_opts *opts);
kk_status kk_capture_new(kk_capture **out, const kk_capture_opts *opts, kk_err *err);
void kk_capture_free(kk_capture *c); /* NULL is fine */
/* *rows is borrowed until the next call. */
kk_status kk_capture_run(kk_capture *c, const int32_t *tokens, int32_t n, const kk_captured **rows,
                         kk_err *err);
/* A copy of its own, of exactly so many rows; released with kk_captured_free. */
kk_status kk_captured_copy(kk_captured *to, const kk_captured *from, const kk_config *config,
                           kk_err *err);
void kk_captured_free(kk_captured *c); /* zero value is fine; leaves it zero */

#endif
