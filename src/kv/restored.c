/* restored.c - the policy of layers that keep the sink and the recent rows, and rebuild what lies
 * between from its latents. */
#include "kv/kv.h"

static int64_t keep_recent(const kk_kv_bounds *bounds, int64_t len) {
    return kk_kv_window.keep_from(bounds, len);
}

const kk_kv_policy kk_kv_restored = {
    .name = "restored", .windowed = true, .sinks = true, .chunked = true, .keep_from = keep_recent};
