/* window.c - the policy of layers that keep the sink and the recent rows, and never see again what
 * lies between.
 *
 * What a row sees must follow from its position alone, however rows were grouped when they were
 * evaluated.  So the window counts from the start of the row's aligned chunk, and all rows of a
 * chunk miss the same ones, which were committed before it began. */
#include "kv/kv.h"

static int64_t keep_recent(const kk_kv_bounds *bounds, int64_t len) {
    const int64_t chunk = bounds->chunk > 1 ? bounds->chunk : 1;
    const int64_t from = len / chunk * chunk - bounds->window;
    return from > 0 ? from : 0;
}

const kk_kv_policy kk_kv_window = {
    .name = "window", .windowed = true, .sinks = true, .chunked = true, .keep_from = keep_recent};
