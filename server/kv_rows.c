/* kv_rows.c - see kv_rows.h.
 *
 * Which rows are evicted depends on positions alone (kk_keep), so their number needs no counter. */
#include "server/kv_rows.h"

/* An option of kk_session_opts: 0 stands for the default, -1 for none. */
static int64_t filled(int32_t value, int32_t standard) {
    return value == 0 ? standard : value < 0 ? 0 : value;
}

kv_rows rows_evicted(const kk_session_opts *o, int64_t len) {
    if (o->kv_full == KK_KEEP_ALL && o->kv_sliding == KK_KEEP_ALL) return (kv_rows){0, 0};
    const int64_t chunk = filled(o->chunk, 64);
    const int64_t start = chunk > 1 ? len - len % chunk : len;
    const int64_t gone = start - filled(o->window, 64) - filled(o->sink, 4);
    return (kv_rows){.evicted = gone > 0 ? gone : 0};
}

kv_rows rows_of(const kk_session *s) {
    kk_session_opts opts;
    kk_key_counts counts;
    kk_session_options(s, &opts);
    kk_session_key_counts(s, &counts);
    kv_rows now = rows_evicted(&opts, kk_session_len(s));
    now.rebuilt = counts.rows_rebuilt;
    return now;
}

void rows_add(kv_rows *sum, kv_rows before, kv_rows after) {
    if (after.evicted > before.evicted) sum->evicted += after.evicted - before.evicted;
    if (after.rebuilt > before.rebuilt) sum->rebuilt += after.rebuilt - before.rebuilt;
}
