/* checkpoints.c - see checkpoints.h. */
#include "server/checkpoints.h"

#include <stdlib.h>

enum { LITTLE = 64 }; /* tokens that are evaluated inside a call */

/* The last checkpoint at or before len; 0: the start. */
static int32_t last_before(const kk_session *s, int32_t len) {
    const int32_t n = kk_session_checkpoints(s, NULL, 0);
    int32_t *at = n > 0 ? calloc((size_t)n, sizeof *at) : NULL;
    int32_t best = 0;
    if (!at) return 0;
    kk_session_checkpoints(s, at, n);
    for (int32_t i = 0; i < n; i++)
        if (at[i] <= len && at[i] > best) best = at[i];
    free(at);
    return best;
}

int32_t checkpoints_before(const kk_session *s, int32_t len, int32_t window) {
    if (kk_session_len(s) - len < window / 2) return len;
    const int32_t at = last_before(s, len);
    return len - at <= LITTLE ? len : at;
}
