/* bounded.c - the policy of full layers that are made to look back over a window only, and over
 * the first rows of all, which attention leans on and misses most. */
#include "kv/kv.h"

static int64_t keep_recent(const kk_kv_bounds *bounds, int64_t len) {
    return kk_mask_from(bounds->window, len);
}

const kk_kv_policy kk_kv_bounded = {
    .name = "bounded", .windowed = true, .sinks = true, .keep_from = keep_recent};
