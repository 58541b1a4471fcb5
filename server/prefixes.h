/* prefixes.h - sessions that wait for their conversation to go on, found by their tokens.
 *
 * A request asks for a session that holds a prefix of its tokens.  Of the kept sessions the one
 * with the longest common prefix serves it: it is taken out and continued when the request holds
 * all of the prompt that the session was kept with, for then it is the same conversation; else it
 * is forked where the two part, and both share the pages before that.
 *
 * While a request runs, its own session is not here, and another request may need the same prefix;
 * so a fork of it stands in, from the end of its prompt, until the session comes back.
 *
 * All calls may come from any thread; a session that was handed out is the caller's alone. */
#ifndef KK_SERVER_PREFIXES_H
#define KK_SERVER_PREFIXES_H

#include "kakeya.h"

typedef struct prefixes prefixes;

typedef struct {
    kk_session_opts session; /* of new ones */
    int32_t window;          /* of the model's sliding layers */
    int32_t most;            /* sessions kept */
    int64_t kv_bytes;        /* K/V of the engine in all; above it kept ones are dropped; 0: any */
    void (*on_drop)(void *user, int64_t sessions); /* NULL: nobody wants to know */
    void *user;
} prefixes_opts;

kk_status prefixes_open(prefixes **out, kk_engine *e, const prefixes_opts *opts, kk_err *err);
void prefixes_close(prefixes *p); /* NULL is fine; releases those that are kept */

typedef struct {
    kk_session *session; /* new, forked or continued */
    int32_t len;         /* it holds the first so many tokens, less than all */
    int32_t evaluated;   /* of them had to be evaluated again */
    int32_t parts; /* where the tokens part from what was kept, len or more: a checkpoint there
                          * serves the next that starts like these */
} prefixes_found;
kk_status prefixes_take(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                        kk_err *err);
/* Keeps a fork of the session, as it is now, until the session itself comes back.  Returns its
 * number; 0: there is none, for want of memory or place. */
uint64_t prefixes_stand_in(prefixes *p, kk_session *s);
/* Keeps a session (NULL: none) and drops what stood in for it.  prompt: tokens of it that a request
 * must hold to be the same conversation. */
void prefixes_keep(prefixes *p, kk_session *s, int32_t prompt, uint64_t stand_in);
/* Drops the one that was not used for longest; false: none is kept. */
bool prefixes_drop_oldest(prefixes *p);
int32_t prefixes_count(prefixes *p);

#endif
