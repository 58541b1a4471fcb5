/* schedule.h - joins the rounds and prompt chunks of all sessions that threads are waiting for into
 * forwards.
 *
 * The library has no thread for this.  A thread that wants a round queues it and, when no forward
 * runs, becomes the leader: it runs one forward for itself and for all that are queued and keep
 * their K/V rows alike, wakes them and leaves.  Otherwise it sleeps until its round is done, or
 * until it is told to lead.  A chunk of a prompt is queued too, and run by its own thread when its
 * turn comes.
 *
 * A plain session goes on while its thread still hands out the tokens of the rounds before: whoever
 * leads takes it along, and its outcomes wait for it, at most KK_MOST_AHEAD.  When its callback
 * then stops the generation, the rounds after that are forgotten.  So threads wake up and run their
 * callbacks beside the next forward, and one that gets no core for a while finds several outcomes.
 *
 * Sessions that draft, or whose choices ask their caller, come back for each round, after their
 * callbacks, at nearly the same time.  Whoever comes first waits for the others, at most a quarter
 * of what a round takes; the last one leads.  A session that took longer is not waited for until it
 * has been quick once more.
 *
 * Order: the oldest first.  A round that had to wait for a chunk comes before the next chunk, so
 * that a session that decodes waits for one chunk at most, however many prompts there are.  While
 * any session decodes, chunks have as many rows as take CHUNK_ROUNDS times a round.
 *
 * What a session gets does not depend on who shares its forwards: a row's bits depend on its own
 * session alone.  A shared round that fails leaves every session as it was and is run again one by
 * one, so that only those fail that fail alone. */
#ifndef KK_ENGINE_SCHEDULE_H
#define KK_ENGINE_SCHEDULE_H

#include "core/wake.h"
#include "decode/round.h"

typedef struct kk_task kk_task;

enum { KK_MOST_AHEAD = 4 }; /* outcomes that wait for a session's thread */

typedef enum {
    KK_TASK_IDLE,
    KK_TASK_QUEUED,
    KK_TASK_RUNNING,
    KK_TASK_BETWEEN, /* its round is done, and its thread is expected to queue the next */
} kk_task_state;

/* What a round came to, for the thread that hands it out. */
typedef struct {
    int32_t at, n;            /* the tokens are [at, at + n) of the session's */
    bool stopped;             /* the last of them is a stop id */
    bool refused;             /* there are none: the mask allows no id */
    bool broken;              /* there are none: the logits are not finite */
    bool kept;                /* the session went on with all of them already */
    int32_t n_draft, n_right; /* drafted for it, and of them right */
    int32_t draft[KK_MAX_DRAFT];
    uint64_t hash_after[KK_MAX_DRAFT + 1];
    bool greedy, near_tie[KK_MAX_DRAFT + 1]; /* as in kk_round */
    kk_status st;
    kk_err err;
    double seconds; /* duration of the forward it was part of */
    int64_t syncs;  /* meanwhile, of the device */
} kk_outcome;

/* A session as the scheduler sees it.  Its own thread uses it; what others touch is guarded by the
 * schedule's lock, or handed over with a wake-up. */
struct kk_task {
    kk_wake wake;
    kk_session *session;
    kk_task_state state;
    bool awaited;      /* its thread sleeps until an outcome is there */
    kk_task *next;     /* in the queue */
    kk_task *decoding; /* the next session that is inside kk_generate */
    bool chunk;        /* a chunk of a prompt; false: a round */
    int32_t overtaken; /* chunks that ran while it was queued */
    int64_t kind;      /* rounds of one kind can share a forward */
    double done_at;    /* when its last round was done */
    double round_s;    /* how long that took; 0: there was none */
    bool slow;         /* it came back late the last time */
    double row_s;      /* seconds per row of its last chunk; 0: there was none */

    kk_round *round; /* while it runs, or may be taken along, the leader's */
    kk_status st;    /* status of the running round, with err; written by the leader */
    kk_err err;
    bool goes_on;                      /* whoever leads may take it along */
    bool leaves;                       /* its generation ends */
    int32_t n_open;                    /* tokens kept that its thread has not handed out yet */
    int32_t open_before;               /* the same when the forward began: the leader's */
    kk_outcome outcome[KK_MOST_AHEAD]; /* a ring: n_ready from `ready` on */
    int32_t ready, n_ready;
};

typedef struct {
    pthread_mutex_t lock;  /* guards all members; never held during a forward or a callback */
    kk_task *first, **end; /* the queue, oldest first */
    kk_task *decoding;     /* sessions inside kk_generate */
    bool busy, chunking;   /* a forward runs; it is a chunk's */
    kk_task *batch[KK_MAX_GROUPS]; /* of the running forward; the leader's once busy is set */
    int32_t n_batch;
    bool company;   /* other sessions wait or are expected: no round is enqueued ahead */
    bool again;     /* the leader's: it failed, and was run one by one */
    kk_task *timer; /* queued, and wakes at timer_at to see who is there */
    double timer_at;
    double round_s; /* how long rounds took of late; 0: there was none */
    int64_t kinds;  /* numbers given out */
    kk_sharing counts;
    int32_t most_overtaken; /* chunks that ran while one and the same round was queued */
} kk_schedule;

void kk_schedule_init(kk_schedule *q);
void kk_schedule_free(kk_schedule *q);
void kk_task_init(kk_task *t, kk_session *s);
void kk_task_free(kk_task *t);

/* A generation begins and ends: rounds happen in between, and r is the scheduler's. */
void kk_schedule_enter(kk_session *s, kk_round *r);
/* The first n_keep tokens of the last outcome were handed out; what r had beyond is forgotten. */
void kk_schedule_leave(kk_session *s, kk_round *r, const kk_outcome *last, int32_t n_keep);
/* All of `last` was handed out (NULL: there was none).  Gives the next outcome, of a round that
 * runs together with others where there are some, and brings caches up to what was handed out. */
void kk_schedule_round(kk_session *s, kk_round *r, const kk_outcome *last, kk_outcome *out);
/* The outcome that r holds. */
void kk_outcome_of(const kk_round *r, kk_outcome *out);

/* Waits until the session may evaluate the next rows of a prompt and returns how many, at most
 * `most`.  No other forward of the scheduler runs until kk_schedule_chunk_done, which takes how
 * many were evaluated in how many seconds; 0 rows: it failed. */
int32_t kk_schedule_chunk(kk_session *s, int32_t most);
void kk_schedule_chunk_done(kk_session *s, int32_t rows, double seconds);

#endif
