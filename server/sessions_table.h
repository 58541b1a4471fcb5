/* sessions_table.h - the inside of the sessions service, for its own files and for tests: the
 * entries by id, and which of them a call is using.
 *
 * Invariants, under `lock`:
 *   (1) the caller that set `busy` has the entry to itself: others read `shown` alone;
 *   (2) an entry is freed only while it is not busy;
 *   (3) an entry with neither `session` nor `tokens` has no token, or its tokens are stored. */
#ifndef KK_SERVER_SESSIONS_TABLE_H
#define KK_SERVER_SESSIONS_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/history.h"
#include "server/kv_rows.h"
#include "server/service.h"
#include "server/sessions_check.h"
#include "server/store.h"

typedef struct sessions_entry {
    struct sessions_entry *next;
    char id[SESSIONS_ID];
    sessions_how how;
    int64_t created;
    history history;
    kk_session *session; /* NULL: its K/V is not in memory */
    int32_t *tokens;     /* where it is not and nothing is stored: the history itself */
    int64_t kv_stored;   /* tokens of its K/V file */
    sessions_binding binding;
    int broken;            /* the invariant that did not hold; 0: none */
    bool busy, leaving;    /* leaving: it is taken out of memory; a call waits for that */
    atomic_bool cancelled; /* it is being deleted */
    double used;           /* text_now() of the last call */
    sessions_info shown;
    kv_rows rows; /* that are in the table's sum already */
    bool counted; /* whether `rows` is set */
} sessions_entry;

struct sessions {
    kk_engine *engine;
    sessions_opts opts;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sessions_entry *first; /* the newest */
    int64_t count;
    int64_t violations[SESSIONS_INVARIANTS];
    kv_rows rows;
};

/* The entry of an id, which is the caller's until sessions_release; NULL: *f says why. */
sessions_entry *sessions_acquire(sessions *t, const char *id, fault *f);
void sessions_release(sessions *t, sessions_entry *e);
void sessions_release_at(sessions *t, sessions_entry *e, double used); /* text_now() of its use */
/* A new entry, busy, with an id of its own. */
sessions_entry *sessions_add(sessions *t, const sessions_how *how, fault *f);
/* Others may read how a busy entry's session, which is there now, was made. */
void sessions_show_made(sessions *t, sessions_entry *e);
/* Takes a busy entry out and frees it. */
void sessions_remove(sessions *t, sessions_entry *e);
/* Checks the invariants of a busy entry with a session; false: one does not hold. */
bool sessions_holds(sessions *t, sessions_entry *e, fault *f);
/* Brings the K/V of a busy entry into memory.  *cached: tokens of the history that were there;
 * *evaluated: those that had to be evaluated again. */
bool sessions_wake(sessions *t, sessions_entry *e, const sessions_watch *watch, int64_t *cached,
                   int64_t *evaluated, fault *f);
/* The same the other way: only the tokens stay. */
bool sessions_sleep(sessions *t, sessions_entry *e, kk_err *err);
/* Tokens that were added go to its journal, where there is one; `all` is the timeline with them. */
bool sessions_store_turn(sessions *t, sessions_entry *e, const int32_t *all, size_t n, bool ends,
                         fault *f);
/* A new entry goes to the store, with the history that it has. */
bool sessions_store_entry(sessions *t, sessions_entry *e, fault *f);
/* Entries of all that the store has. */
kk_status sessions_from_store(sessions *t, kk_err *err);
/* Evaluates tokens behind those that the entry's session holds. */
bool sessions_evaluate(sessions *t, sessions_entry *e, const int32_t *tokens, size_t n,
                       const sessions_watch *watch, fault *f);
bool sessions_make(sessions *t, sessions_entry *e, fault *f); /* a session without a token */
/* Whether a call that found no memory is worth another try: something gave its K/V back. */
bool sessions_try_again(sessions *t, kk_status st);
/* Whether the work of a call goes on. */
bool sessions_goes_on(sessions_entry *e, const sessions_watch *watch);

#endif
