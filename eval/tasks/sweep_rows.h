/* sweep_rows.h - K/V rows of a session as floats, and how far other rows are from them.
 *
 * Errors and powers are sums of squares, kept by layer, so that a ratio of any set of layers can be
 * made of them.  A layer whose K and V are one tensor counts it once. */
#ifndef KK_EVAL_SWEEP_ROWS_H
#define KK_EVAL_SWEEP_ROWS_H

#include <jansson.h>

#include "engine/session.h"

typedef struct {
    double error, power;
} kk_squares;

typedef struct {
    int32_t n_layer;
    struct {
        bool full, counted; /* counted: it was compared */
        kk_squares sum;
    } layer[256];
    int64_t rows; /* pairs of layer and position */
} kk_row_errors;

/* Adds |x - truth|^2 and |truth|^2 over n values. */
void kk_squares_add(kk_squares *to, const float *x, const float *truth, size_t n);
double kk_squares_ratio(const kk_squares *s); /* error / power; 0 where there is no power */

typedef enum { KK_ERRORS_ALL, KK_ERRORS_SLIDING, KK_ERRORS_FULL, KK_ERRORS_OF } kk_errors_of;
double kk_row_errors_ratio(const kk_row_errors *e, kk_errors_of of);
void kk_row_errors_add(kk_row_errors *to, const kk_row_errors *more);
/* {all, sliding, full}, each times a factor; those of no layer are null. */
json_t *kk_row_errors_ratios(const kk_row_errors *e, double factor);
/* [{layer, kind, error, power, rel_mse}] of layers that were compared. */
json_t *kk_row_errors_layers(const kk_row_errors *e);

/* One head's row of a block of KK_PAGE_ROWS rows, at off bytes of a page, as floats. */
void kk_page_row_floats(const kk_kv_slot *slot, const uint8_t *page, size_t off, int32_t head,
                        int32_t row, float *out);

/* Adds what the projection misses of the rows that are gone from a session under diagnosis: rebuilt
 * against true ones, as projected (raw) and with every head divided by its root mean square
 * (normed).  Rows [sink, start of the last row's chunk - window), as far as latents are kept. */
kk_status kk_session_errors(kk_session *s, kk_row_errors *raw, kk_row_errors *normed, kk_err *err);

#endif
