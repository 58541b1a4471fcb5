/* sessions_check.h - the invariants of a session, checked against what the engine really holds. */
#ifndef KK_SERVER_SESSIONS_CHECK_H
#define KK_SERVER_SESSIONS_CHECK_H

#include "kakeya.h"
#include "server/history.h"
#include "server/service.h"

/* Which cache belongs to which id, written down when the two were brought together. */
typedef struct {
    char id[SESSIONS_ID];
    const kk_session *session;
    int64_t position; /* the most tokens it ever had */
} sessions_binding;

void sessions_bind(sessions_binding *b, const char *id, const kk_session *s);
/* After tokens were added. */
void sessions_bind_position(sessions_binding *b, const kk_session *s);

typedef struct {
    const char *id;
    const kk_session *session;
    const history *history;
    const sessions_binding *binding;
    const kk_session_opts *session_opts; /* what it was made with */
    const kk_model_info *info;
} sessions_state;

/* 0: all hold; else the number of the first that does not, and why. */
int sessions_check(const sessions_state *s, char *why, size_t cap);
/* INV-3's bound: bytes of K/V of so many tokens, by kk_session_opts. */
int64_t sessions_kv_bound(const kk_model_info *info, const kk_session_opts *o, int64_t tokens);

#endif
