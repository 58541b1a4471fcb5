/* prefixes.h - sessions that wait for their conversation to go on, found by their tokens: in
 * memory, and in the store (store.h), where there is one.
 *
 * A request asks for a session that holds a prefix of its tokens.  Of the kept sessions the one
 * with the longest common prefix serves it: it is taken out and continued when the request holds
 * all of the prompt that the session was kept with, for then it is the same conversation; else it
 * is forked where the two part, and both share the pages before that.
 *
 * With a store, what a session holds at the end of a turn is in its journal, and a session that has
 * to leave memory leaves its K/V there.
 *
 * While a request runs, its own session is not here, and another request may need the same prefix;
 * so a fork of it stands in, from the end of its prompt, until the session comes back.
 *
 * All calls may come from any thread; a session that was handed out is the caller's alone. */
#ifndef KK_SERVER_PREFIXES_H
#define KK_SERVER_PREFIXES_H

#include "kakeya.h"
#include "server/store.h"

typedef struct prefixes prefixes;

typedef struct {
    kk_session_opts session; /* of new ones */
    int32_t window;          /* of the model's sliding layers */
    int32_t most;            /* sessions kept */
    int64_t kv_bytes;        /* K/V of the engine in all; above it kept ones leave; 0: any */
    store *store;            /* where they go; NULL: they are dropped */
    void (*on_drop)(void *user, int64_t sessions); /* NULL: nobody wants to know */
    void *user;
} prefixes_opts;

kk_status prefixes_open(prefixes **out, kk_engine *e, const prefixes_opts *opts, kk_err *err);
void prefixes_close(prefixes *p); /* NULL is fine; releases those that are kept */

typedef struct {
    kk_session *session; /* new, forked or continued */
    int32_t len;         /* it holds the first so many tokens, less than all */
    int32_t evaluated;   /* of them had to be evaluated again */
    char id[JOURNAL_ID]; /* of the stored conversation that it is; "": of none yet */
    int64_t journaled;   /* tokens that its journal has as the session has them */
    int32_t parts; /* where the tokens part from what was kept, len or more: a checkpoint there
                          * serves the next that starts like these */
} prefixes_found;
kk_status prefixes_take(prefixes *p, const int32_t *tokens, size_t n, prefixes_found *out,
                        kk_err *err);
/* Keeps a fork of the session, as it is now, until the session itself comes back.  Returns its
 * number; 0: there is none, for want of memory or place. */
uint64_t prefixes_stand_in(prefixes *p, kk_session *s);
/* Puts what the session holds into its journal, synced: to be called before the client sees the end
 * of a turn.  prompt: tokens of it that a request must hold to be the same conversation.  What
 * fails is said by the store; the conversation goes on in memory. */
void prefixes_journal(prefixes *p, prefixes_found *f, int32_t prompt);
/* Keeps a session (f->session NULL: none) and drops what stood in for it. */
void prefixes_keep(prefixes *p, prefixes_found *f, int32_t prompt, uint64_t stand_in);
/* Takes the one that was not used for longest out of memory: into the store, or it is dropped.
 * False: none is kept. */
bool prefixes_evict_oldest(prefixes *p);
/* The same of all stored ones that were not used for so many seconds; returns how many. */
int prefixes_evict_idle(prefixes *p, double seconds);
/* text_now() of the last use of the first of them; INFINITY: there is none. */
double prefixes_oldest(prefixes *p);
int32_t prefixes_count(prefixes *p);

#endif
