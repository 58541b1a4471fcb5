/* kv_rows.h - K/V rows that sessions evicted and rebuilt, for the metrics: what a session has by
 * now, so that a piece of work is the difference of after and before. */
#ifndef KK_SERVER_KV_ROWS_H
#define KK_SERVER_KV_ROWS_H

#include "kakeya.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t evicted; /* tokens whose rows the policy `window` or `restored` no longer keeps */
    int64_t rebuilt; /* rows by (layer, position), each time they were rebuilt */
} kv_rows;

kv_rows rows_of(const kk_session *s);
/* Of a session that is not in memory: so many tokens, under these options. */
kv_rows rows_evicted(const kk_session_opts *opts, int64_t len);
/* sum += after - before, where that is more than nothing: a timeline may also go back. */
void rows_add(kv_rows *sum, kv_rows before, kv_rows after);

#ifdef __cplusplus
}
#endif
#endif
