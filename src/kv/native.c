/* native.c - the policy of sliding layers as the model defines them: a query at position p sees
 * the keys j with p - window < j <= p, so the next row, at len, needs nothing older than
 * len - window + 1. */
#include "kv/kv.h"

static int64_t keep_window(const kk_kv_bounds *bounds, int64_t len) {
    return len < bounds->window ? 0 : len - bounds->window + 1;
}

const kk_kv_policy kk_kv_native = {.name = "native", .windowed = true, .keep_from = keep_window};
