/* schedule.h - joins the rounds and prompt chunks of all sessions that threads are waiting for into
 * forwards.
 *
 * The library has no thread for this.  A thread that wants a round queues it and, when no forward
 * runs, becomes the leader: it runs one forward for itself and for all that are queued and keep
 * their K/V rows alike, wakes them and leaves.  Otherwise it sleeps until its round is done, or
 * until it is told to lead.  A chunk of a prompt is queued too, and run by its own thread when its
 * turn comes.
 *
 * Sessions of a round come back for the next one at nearly the same time, after their callbacks.
 * Whoever comes first waits for the others, at most a quarter of what a round takes; the last one
 * leads.  A session that took longer is not waited for until it has been quick once more.
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

typedef enum {
    KK_TASK_IDLE,
    KK_TASK_QUEUED,
    KK_TASK_RUNNING,
    KK_TASK_BETWEEN, /* its round is done, and it is expected to come for the next */
} kk_task_state;

/* A session as the scheduler sees it.  Its own thread uses it; what others touch is guarded by the
 * schedule's lock, or handed over with a wake-up. */
struct kk_task {
    kk_wake wake;
    kk_session *session;
    kk_task_state state;
    kk_task *next;     /* in the queue */
    kk_task *decoding; /* the next session that is inside kk_generate */
    bool chunk;        /* a chunk of a prompt; false: a round */
    int32_t overtaken; /* chunks that ran while it was queued */
    int64_t kind;      /* rounds of one kind can share a forward */
    double done_at;    /* when its last round was done */
    double round_s;    /* how long that took; 0: there was none */
    bool slow;         /* it came back late the last time */
    double row_s;      /* of its last chunk, per row; 0: there was none */

    kk_round *round;
    kk_status st; /* of the round, with err */
    kk_err err;
    double seconds; /* of the forward it was part of */
    int64_t syncs;  /* meanwhile, of the device */
};

typedef struct {
    pthread_mutex_t lock;          /* of all of this; never held during a forward or a callback */
    kk_task *first, **end;         /* the queue, oldest first */
    kk_task *decoding;             /* sessions inside kk_generate */
    bool busy, chunking;           /* a forward runs; it is a chunk's */
    kk_task *batch[KK_MAX_GROUPS]; /* whose forward that is; the leader's once busy is set */
    int32_t n_batch;
    bool company;   /* others wait, or are expected: nothing is to be enqueued ahead */
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

/* A generation begins and ends: rounds happen in between. */
void kk_schedule_enter(kk_session *s);
void kk_schedule_leave(kk_session *s);
/* Brings the cache up to what the session kept of its last round, and runs the next, together with
 * others where there are some.  Adds seconds, syncs and the round to the result. */
kk_status kk_schedule_round(kk_session *s, kk_round *r, kk_result *result, kk_err *err);

/* Waits until the session may evaluate the next rows of a prompt and returns how many, at most
 * `most`.  No other forward of the scheduler runs until kk_schedule_chunk_done, which takes how
 * many were evaluated in how many seconds; 0 rows: it failed. */
int32_t kk_schedule_chunk(kk_session *s, int32_t most);
void kk_schedule_chunk_done(kk_session *s, int32_t rows, double seconds);

#endif
