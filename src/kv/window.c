/* window.c - the policy of layers that keep the sink and the recent rows, and never see again what
 * lies between; see core/visible.h for which rows those are. */
#include "kv/kv.h"

const kk_kv_policy kk_kv_window = {
    .name = "window", .windowed = true, .sinks = true, .evicts = true, .keep_from = kk_kept_from};
