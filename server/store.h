/* store.h - the state folder of a server: what sessions and conversations were, so that they go on
 * after they left memory, and after the server ended.
 *
 *   index.sqlite   what is there (catalog.h); made again from the journals when it is damaged
 *   ID.journal     the tokens (journal.h): synced when a turn ends, before its client hears so
 *   ID.kv          the K/V of some moment (kk_session_save): written when the session leaves memory
 *   *.damaged      what could not be read, set aside
 *   lock           one server at a time
 * What the journal has beyond the K/V is evaluated again.  Journals say whose they are, so the
 * folder can be understood without its index.
 *
 * Every call may come from any thread; calls on one id one at a time. */
#ifndef KK_SERVER_STORE_H
#define KK_SERVER_STORE_H

#include "server/catalog.h"

typedef enum { STORE_SESSION, STORE_CONVERSATION } store_kind;
enum { SWEEP_S = 5 }; /* seconds after which a sweep of idle ones makes a pause */
typedef struct store store;

typedef struct {
    kk_engine *engine;
    int64_t limit; /* bytes of the folder, above which old conversations are deleted; 0: none */
    void (*say)(void *user, const char *line);
    void *user;
} store_opts;
/* Takes the folder, before a model is loaded for nothing, and makes it where it is not.  KK_EBUSY:
 * another server uses it. */
kk_status store_claim(store **out, const char *folder, kk_err *err);
/* Reads what is in it; comes once, before all that is below. */
kk_status store_open(store *s, const store_opts *opts, kk_err *err);
void store_close(store *s); /* NULL is fine */

/* Every stored one of this engine's model, the oldest first. */
kk_status store_each(store *s, store_kind kind, catalog_each_fn each, void *user, kk_err *err);

/* Draws an id that nobody can guess: prefix and 32 hexadecimal digits. */
bool store_draw_id(char id[JOURNAL_ID], const char *prefix);
kk_status store_add(store *s, store_kind kind, const char *id, const char *meta, kk_err *err);
/* Tokens of an id; `all` is its whole timeline with them, `turn` what changed. */
kk_status store_turn(store *s, const char *id, const journal_turn *turn, const int32_t *all,
                     kk_err *err);
kk_status store_save(store *s, const char *id, kk_session *session, kk_err *err);
void store_remove(store *s, const char *id);

/* A stored session: its tokens, and a session with as many of them as there is K/V for. */
typedef struct {
    kk_session *session; /* new where there is no K/V; the caller evaluates what is missing */
    journal journal;
    int32_t evaluated; /* tokens evaluated again inside the call */
} store_loaded;
kk_status store_load(store *s, const char *id, const kk_session_opts *opts, store_loaded *out,
                     kk_err *err);
/* The tokens alone. */
kk_status store_read(store *s, const char *id, journal *out, kk_err *err);

/* The stored conversation that begins most like these tokens, in multiples of CATALOG_BLOCK, other
 * than those that are held.  *kv: tokens of these whose K/V is stored; returns how many it has in
 * common, 0: none.  It is held for the caller. */
int64_t store_longest(store *s, const int32_t *tokens, size_t n, char id[JOURNAL_ID], int64_t *kv);
/* A held conversation is in memory: it is neither found nor deleted. */
void store_hold(store *s, const char *id, bool held);

typedef struct {
    int64_t sessions, conversations, bytes;
    int64_t turns, saved, loaded, damaged, deleted, failed; /* since the server began */
} store_counts;
void store_count(store *s, store_counts *out);

#endif
