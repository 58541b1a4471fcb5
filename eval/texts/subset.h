/* subset.h - a few of many, drawn by a seed: what a report is held to when not all of it is
 * executed again. */
#ifndef KK_EVAL_SUBSET_H
#define KK_EVAL_SUBSET_H

#include "kakeya.h"

typedef struct {
    int32_t n;     /* how many are drawn; 0: all are taken */
    uint64_t seed; /* with the number there are to choose from it fixes which */
} kk_subset;

/* out [total]: whether each is taken.  All are where n is 0 or at least total. */
kk_status kk_subset_draw(bool *out, size_t total, const kk_subset *subset, kk_err *err);

#endif
