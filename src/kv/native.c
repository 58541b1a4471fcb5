/* native.c - the policy of sliding layers as the model defines them: nothing is kept that the mask
 * does not show the next row. */
#include "kv/kv.h"

static int64_t keep_window(const kk_kv_bounds *bounds, int64_t len) {
    return kk_mask_from(bounds->window, len);
}

const kk_kv_policy kk_kv_native = {.name = "native", .windowed = true, .keep_from = keep_window};
