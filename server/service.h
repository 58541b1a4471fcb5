/* service.h - sessions that clients hold by an id: what HTTP's JSON and gRPC both sit on.
 *
 * A session is an append-only history of tokens and the K/V made of it.  Its id is drawn by the
 * server and cannot be guessed.  Every call may come from any thread; of one session one call runs
 * at a time, and another that would change it is refused with 409 while it runs.
 *
 * What is checked before and after every call that touches the K/V (sessions_check.h):
 *   INV-1  the cache holds the rows of this history: as many, and of the same tokens;
 *   INV-2  the cache is the one that was bound to this id, and its length never went back;
 *   INV-3  its K/V bytes are within what its policy, its format and its length allow.
 * A session that breaks one answers every later call with that fault until it is deleted.
 *
 * Failures are faults (fault.h): a status of HTTP, and by fault_grpc() a code of gRPC. */
#ifndef KK_SERVER_SERVICE_H
#define KK_SERVER_SERVICE_H

#include "kakeya.h"
#include "server/fault.h"
#include "server/kv_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SESSIONS_ID = 40, /* bytes of an id with its end: "sess-" and 32 hexadecimal digits */
    SESSIONS_LABEL = 64,
    SESSIONS_STOP_IDS = 16,
    SESSIONS_INVARIANTS = 3,
};

typedef struct sessions sessions;

/* How a session is made.  Start from sessions_standard(). */
typedef struct {
    kk_session_opts session; /* cache policy and K/V format, context, drafting */
    kk_sampling sampling;    /* where a generation does not say */
    char label[SESSIONS_LABEL];
    int32_t stop_ids[SESSIONS_STOP_IDS]; /* end a generation, beside the model's own */
    int32_t n_stop_ids;
} sessions_how;

/* The server's own choices, and a seed that was drawn. */
void sessions_standard(sessions *t, sessions_how *out);
/* False here and below: *f says why. */
bool sessions_create(sessions *t, const sessions_how *how, char id[SESSIONS_ID], fault *f);

/* Of a call that takes long: asked between chunks of a prompt and after each token; false: stop.
 * NULL: nobody asks. */
typedef struct {
    bool (*goes_on)(void *user);
    void *user;
} sessions_watch;

typedef struct {
    int64_t history; /* tokens now */
    int64_t added;
    int64_t evaluated; /* passed through the model by this call; more than added where the K/V of
                        * the history was not, or not wholly, there any more */
    int64_t cached;    /* tokens of the history before the call whose K/V was there */
    double seconds;
} sessions_appended;

/* Appends tokens and evaluates them.  When it fails the session is as it was. */
bool sessions_append(sessions *t, const char *id, const int32_t *tokens, size_t n,
                     const sessions_watch *watch, sessions_appended *out, fault *f);
/* The same of text: with <bos> before the first of a history; special strings become tokens. */
bool sessions_append_text(sessions *t, const char *id, const char *text, size_t len,
                          const sessions_watch *watch, sessions_appended *out, fault *f);
/* The same of messages, as kk_chat_encode reads them, behind the turns that are there. */
bool sessions_append_messages(sessions *t, const char *id, const char *json, size_t len,
                              const sessions_watch *watch, sessions_appended *out, fault *f);

/* A token as it comes, with the text that is certain by it: whole characters, perhaps none.  The
 * last piece may have no token (id -1): what was held back for a stop text that did not come.  Of a
 * chat a token may come to several pieces, of which the first has its id. */
typedef struct {
    int32_t id;
    const char *text;
    size_t len;
    int32_t round;           /* 1, 2, ...; 0: chosen after the prompt, without a pass */
    bool drafted;            /* it was in the round's draft */
    const int32_t *rejected; /* [n_rejected] of the draft that it stands in place of */
    int32_t n_rejected;
    kk_answer_kind kind;          /* of a chat; else KK_ANSWER_TEXT */
    const char *name, *arguments; /* of a call, as kk_answer_span has them */
} sessions_piece;

typedef struct {
    int32_t max_tokens;          /* 0: until the model ends or the context is full */
    const kk_sampling *sampling; /* NULL: the session's */
    const int32_t *stop_ids;     /* beside the model's and the session's */
    size_t n_stop_ids;
    const char *const *stops; /* texts that end it */
    size_t n_stops;
    const kk_logit_bias *bias;
    size_t n_bias;
    bool ignore_eos;
    bool chat; /* take the answer apart: it ends with its turn, or where a tool is to answer */
    /* Called in the order of tokens; false: stop.  NULL: nobody wants them. */
    bool (*on_piece)(void *user, const sessions_piece *piece);
    sessions_watch watch;
    void *user; /* of on_piece */
} sessions_generation;

typedef enum {
    SESSIONS_MAX_TOKENS,
    SESSIONS_EOS,       /* a stop id */
    SESSIONS_STOP_TEXT, /* one of `stops` */
    SESSIONS_CANCELLED, /* on_piece or the watch said so; what came until then stays */
    SESSIONS_CONTEXT,   /* the context is full */
} sessions_stop;
const char *sessions_stop_name(sessions_stop s); /* "max_tokens", "eos", ... */

typedef struct {
    sessions_stop stop;
    int64_t history, generated;
    int64_t cached, evaluated; /* as of an append: what had to be read again before */
    double prefill_s, decode_s;
    int64_t rounds, drafted, accepted;
    int64_t histogram[KK_MAX_DRAFT + 1]; /* rounds by tokens accepted */
    uint64_t logits_hash;
} sessions_generated;

/* Continues the history.  A history without a token is refused.  When this returns, what was
 * generated is in the journal, where there is one. */
bool sessions_generate(sessions *t, const char *id, const sessions_generation *how,
                       sessions_generated *out, fault *f);

/* Where to fork: after so many tokens, or after so many generations. */
typedef struct {
    int64_t tokens; /* -1: not by this */
    int32_t turn;   /* -1: not by this; both -1: all of it */
} sessions_place;
/* A second session with the first part of the history; pages are shared until they are written. */
bool sessions_fork(sessions *t, const char *id, sessions_place at, const sessions_watch *watch,
                   char fork_id[SESSIONS_ID], sessions_appended *out, fault *f);

typedef struct {
    char id[SESSIONS_ID], label[SESSIONS_LABEL];
    int64_t history;
    int32_t turns;
    int64_t kv_bytes;  /* in memory, shared pages included; 0: not in memory */
    int64_t kv_tokens; /* tokens whose K/V is in memory */
    int64_t dropped;   /* tokens that full layers under a window see no more; kk_keep */
    bool busy, resident, stored;
    int64_t violations[SESSIONS_INVARIANTS]; /* of INV-1, 2, 3 */
    double idle_s;
    int64_t created; /* seconds since 1970 */
    kk_session_opts session;
    kk_sampling sampling;
    int32_t context;
} sessions_info;
bool sessions_describe(sessions *t, const char *id, sessions_info *out, fault *f);
/* All of them, the newest first: *out is released with free(). */
bool sessions_list(sessions *t, sessions_info **out, size_t *n, fault *f);
/* Ends what runs in it, and forgets it, its files too.  *len (may be NULL): tokens it had. */
bool sessions_delete(sessions *t, const char *id, int64_t *len, fault *f);
/* The tokens of its history, released with free(). */
bool sessions_tokens(sessions *t, const char *id, int32_t **out, size_t *n, fault *f);

/* ---- the server's side ------------------------------------------------------------------- */

typedef struct {
    kk_session_opts session;
    kk_sampling sampling;
    kk_model_info info;
    struct store *store;            /* where they go when they leave memory; NULL: nowhere */
    int32_t most;                   /* sessions in all; more are refused with 429 */
    bool (*make_place)(void *user); /* gives K/V back when memory ends; false: there is none */
    void (*violated)(void *user, const char *id, int inv, const char *why);
    void *user;
} sessions_opts;
kk_status sessions_open(sessions **out, kk_engine *e, const sessions_opts *opts, kk_err *err);
void sessions_close(sessions *t); /* NULL is fine; nothing may run */

typedef struct {
    int64_t count, resident, kv_bytes;
    int64_t violations[SESSIONS_INVARIANTS];
    kv_rows rows;
} sessions_totals;
void sessions_count(sessions *t, sessions_totals *out);
/* Takes the K/V of the one that was not used for longest out of memory: to the store, or, without
 * one, to be evaluated again.  False: none is there that is not in use. */
bool sessions_evict_oldest(sessions *t);
/* The same of all that were not used for so many seconds; returns how many. */
int sessions_evict_idle(sessions *t, double seconds);
/* text_now() of the last use of the first of them; INFINITY: there is none. */
double sessions_oldest(sessions *t);

#ifdef __cplusplus
}
#endif
#endif
