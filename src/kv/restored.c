/* restored.c - the policy of layers that keep the sink and the recent rows, and rebuild what lies
 * between from its latents; see core/visible.h for which rows those are. */
#include "kv/kv.h"

const kk_kv_policy kk_kv_restored = {.name = "restored",
                                     .windowed = true,
                                     .sinks = true,
                                     .evicts = true,
                                     .rebuilds = true,
                                     .keep_from = kk_kept_from};
