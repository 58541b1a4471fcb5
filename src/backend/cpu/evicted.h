/* evicted.h - attention over rows that are not all stored in their pages. */
#ifndef KK_CPU_EVICTED_H
#define KK_CPU_EVICTED_H

#include "backend/cpu/device.h"

/* Rows [row, row + n_rows) of a group against one K/V head, for n_heads of its query heads.  What
 * depends on where K and V lie is left empty; k_off and v_off are the head's, from the slot's. */
kk_attend_tile kk_cpu_tile(const kk_attend_args *a, const kk_group *g, int32_t row, int32_t n_rows,
                           int32_t kv_head, int32_t first_head, int32_t n_heads);

void kk_cpu_attend_evicted(kk_dev *dev, const kk_attend_args *a);

#endif
