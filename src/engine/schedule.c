/* schedule.c - see schedule.h.
 *
 * Everything is decided in dispatch(), with the lock held: whether a forward can start now, for
 * whom, and who leads it.  It is called whenever the answer may have changed: a task was queued, a
 * forward ended, a generation ended, the time to wait for others is up. */
#include "engine/schedule.h"

#include <assert.h>
#include <string.h>

#include "core/clock.h"
#include "engine/session.h"

enum { LEAD = 1, DONE = 2, LOOK = 4 }; /* what a task is woken for; LOOK: to dispatch */

enum {
    CHUNK_ROUNDS = 4, /* a chunk takes as long as so many rounds while others decode, which then
                       * go on at a fifth of their speed while the prompt has the rest */
    LEAST_ROWS = 16,  /* least rows of a chunk: fewer cost nearly as much */
};

/* How long others wait for a session that is between two rounds: a share of what a round takes, and
 * at least as long as a thread may need to wake up and come back. */
static const double wait_share = 0.25, wait_least = 200e-6;
static const double newest = 0.25; /* weight of the last round in the average */

void kk_schedule_init(kk_schedule *q) {
    *q = (kk_schedule){0};
    pthread_mutex_init(&q->lock, NULL);
    q->end = &q->first;
}

void kk_schedule_free(kk_schedule *q) {
    assert(!q->first && !q->decoding && !q->busy);
    pthread_mutex_destroy(&q->lock);
}

void kk_task_init(kk_task *t, kk_session *s) {
    *t = (kk_task){.session = s};
    kk_wake_init(&t->wake);
}

void kk_outcome_of(const kk_round *r, kk_outcome *out) {
    *out = (kk_outcome){.at = r->len,
                        .n = r->n_out,
                        .stopped = r->stopped,
                        .refused = r->refused,
                        .broken = r->broken,
                        .n_draft = r->n_draft,
                        .n_right = r->n_right};
    memcpy(out->draft, r->draft, (size_t)r->n_draft * sizeof *out->draft);
    memcpy(out->hash_after, r->hash_after, (size_t)r->n_out * sizeof *out->hash_after);
    out->greedy = r->greedy;
    memcpy(out->near_tie, r->near_tie, (size_t)r->n_out * sizeof *out->near_tie);
}

void kk_task_free(kk_task *t) {
    assert(t->state == KK_TASK_IDLE);
    kk_wake_free(&t->wake);
}

/* ---- the queue -------------------------------------------------------------------------- */

static double due_back(const kk_task *t) {
    const double share = wait_share * t->round_s;
    return t->done_at + (share > wait_least ? share : wait_least);
}

static void count_overtaken(kk_schedule *q, kk_task *t) {
    t->overtaken++;
    if (t->overtaken > q->most_overtaken) q->most_overtaken = t->overtaken;
}

/* A session is slow that comes back for a round later than others wait. */
static void push(kk_schedule *q, kk_task *t, bool chunk) {
    t->slow = !chunk && t->round_s > 0 && kk_now() > due_back(t);
    t->state = KK_TASK_QUEUED;
    t->chunk = chunk;
    t->overtaken = 0;
    if (!chunk && q->chunking) count_overtaken(q, t);
    t->next = NULL;
    *q->end = t;
    q->end = &t->next;
}

static kk_task *oldest(const kk_schedule *q, bool chunk) {
    kk_task *t = q->first;
    while (t && t->chunk != chunk) t = t->next;
    return t;
}

static bool any_overtaken(const kk_schedule *q) {
    const kk_task *t = q->first;
    while (t && !t->overtaken) t = t->next;
    return t != NULL;
}

/* The task that decides what runs next. */
static kk_task *next_task(const kk_schedule *q) {
    kk_task *round = oldest(q, false);
    return round && any_overtaken(q) ? round : q->first;
}

/* Its thread is busy with earlier outcomes, and needs not be asked. */
static bool can_come_along(const kk_task *t) {
    return t->state == KK_TASK_BETWEEN && t->goes_on && !t->leaves && t->n_ready < KK_MOST_AHEAD;
}

/* Sessions without which a round of this kind (-1: of any) should not start, because they will be
 * back for it soon, and when that time is up. */
static int32_t expected(const kk_schedule *q, int64_t kind, double now, double *until) {
    int32_t n = 0;
    for (const kk_task *t = q->decoding; t; t = t->decoding) {
        const double due = due_back(t);
        if (t->state != KK_TASK_BETWEEN || t->slow || due <= now || can_come_along(t)) continue;
        if (kind >= 0 && t->kind != kind) continue;
        if (n++ == 0 || due > *until) *until = due;
    }
    return n;
}

static int32_t queued(const kk_schedule *q, int64_t kind) {
    int32_t n = 0;
    for (const kk_task *t = q->first; t; t = t->next) n += !t->chunk && t->kind == kind;
    return n;
}

/* ---- who runs next ---------------------------------------------------------------------- */

static int32_t most_sessions(const kk_task *t) {
    const int32_t rows = kk_round_rows(&t->session->engine->rounds);
    return rows < KK_MAX_GROUPS ? rows : KK_MAX_GROUPS;
}

static void take(kk_schedule *q, kk_task *t) {
    q->batch[q->n_batch++] = t;
    t->state = KK_TASK_RUNNING;
    t->open_before = t->n_open;
    q->counts.ahead += !t->awaited;
    if (q->timer == t) q->timer = NULL;
}

/* Takes the batch out of the queue: the chunk, or all rounds of its kind that fit, and after them
 * sessions that come along. */
static void take_batch(kk_schedule *q, const kk_task *like) {
    const int32_t most = like->chunk ? 1 : most_sessions(like);
    const bool round = !like->chunk;
    q->n_batch = 0;
    q->end = &q->first;
    for (kk_task *t = q->first, *next; t; t = next) {
        next = t->next;
        const bool fits = like->chunk ? t == like : !t->chunk && t->kind == like->kind;
        if (fits && q->n_batch < most) {
            take(q, t);
        } else {
            *q->end = t;
            q->end = &t->next;
        }
    }
    *q->end = NULL;
    for (kk_task *t = q->decoding; round && t && q->n_batch < most; t = t->decoding)
        if (t->kind == like->kind && can_come_along(t)) take(q, t);
}

/* Starts the batch of `like`.  Its leader is self, when that is part of it: it is awake. */
static kk_task *start(kk_schedule *q, const kk_task *like, kk_task *self, double now) {
    double until;
    take_batch(q, like);
    q->busy = true;
    q->chunking = like->chunk;
    q->company = q->n_batch > 1 || q->first || expected(q, -1, now, &until) > 0;
    for (kk_task *t = q->first; q->chunking && t; t = t->next)
        if (!t->chunk) count_overtaken(q, t);
    const bool awake = self && self->state == KK_TASK_RUNNING;
    kk_task *leader = awake ? self : q->batch[0];
    if (leader != self) kk_wake_set(&leader->wake, LEAD);
    return leader;
}

/* A queued task must call dispatch again at this time. */
static void set_timer(kk_schedule *q, kk_task *self, double until) {
    if (q->timer && q->timer_at <= until) return;
    const bool awake = self && self->state == KK_TASK_QUEUED;
    q->timer = awake ? self : q->first;
    q->timer_at = until;
    if (q->timer != self) kk_wake_set(&q->timer->wake, LOOK);
}

/* Starts a forward if one can start now.  self: the calling thread's task, NULL when it is not
 * waiting for anything.  True: self leads it. */
static bool dispatch(kk_schedule *q, kk_task *self) {
    if (q->busy || !q->first) return false;
    const kk_task *t = next_task(q);
    const double now = kk_now();
    double until;
    if (!t->chunk && queued(q, t->kind) < most_sessions(t) &&
        expected(q, t->kind, now, &until) > 0) {
        set_timer(q, self, until);
        return false;
    }
    return start(q, t, self, now) == self;
}

/* Queues the task, unless somebody runs it already.  True: it leads the forward that is to start
 * now; false: others ran it. */
static bool wait_turn(kk_schedule *q, kk_task *t, bool chunk) {
    pthread_mutex_lock(&q->lock);
    if (!chunk && t->n_ready > 0) { /* it came just now */
        pthread_mutex_unlock(&q->lock);
        return false;
    }
    t->awaited = true;
    if (t->state != KK_TASK_RUNNING) push(q, t, chunk);
    bool leads = t->state == KK_TASK_QUEUED && dispatch(q, t);
    double until = q->timer == t ? q->timer_at : 0;
    pthread_mutex_unlock(&q->lock);
    while (!leads) {
        const unsigned woken = kk_wake_wait(&t->wake, until);
        if (woken & DONE) return false;
        if (woken & LEAD) return true;
        pthread_mutex_lock(&q->lock);
        if (q->timer == t && q->timer_at <= kk_now()) q->timer = NULL;
        leads = t->state == KK_TASK_QUEUED && dispatch(q, t);
        until = q->timer == t ? q->timer_at : 0;
        pthread_mutex_unlock(&q->lock);
    }
    return true;
}

/* ---- rounds ----------------------------------------------------------------------------- */

static void run_alone(kk_engine *e, kk_task *t) {
    t->st = kk_round_run(&e->rounds, &t->round, 1, &t->err);
}

/* All together; where that fails, one by one: a round that failed left every session as it was. */
static void run_together(kk_engine *e, kk_task *const *tasks, int32_t n) {
    kk_round *rounds[KK_MAX_GROUPS];
    for (int32_t i = 0; i < n; i++) rounds[i] = tasks[i]->round;
    const kk_status st = kk_round_run(&e->rounds, rounds, n, NULL);
    for (int32_t i = 0; i < n; i++) tasks[i]->st = KK_OK;
    if (st == KK_OK) return;
    e->schedule.again = true;
    for (int32_t i = 0; i < n; i++) run_alone(e, tasks[i]);
}

/* A session that has a round in flight takes its outcome from there; it can share the next. */
static void run_batch(kk_engine *e) {
    const kk_schedule *q = &e->schedule;
    kk_task *together[KK_MAX_GROUPS];
    int32_t n = 0;
    e->rounds.company = q->company;
    e->schedule.again = false;
    for (int32_t i = 0; i < q->n_batch; i++) {
        const kk_task *t = q->batch[i];
        if (t->round->unsettled > t->open_before) kk_round_settle(t->round, t->open_before);
    }
    for (int32_t i = 0; i < q->n_batch; i++) {
        if (q->n_batch == 1 || kk_round_in_flight(q->batch[i]->round))
            run_alone(e, q->batch[i]);
        else
            together[n++] = q->batch[i];
    }
    if (n > 0) run_together(e, together, n);
}

static int64_t syncs_of(const kk_engine *e) {
    kk_dev_counts counts;
    e->backend->instruments->counts(e->dev, &counts);
    return counts.syncs;
}

static void count_rounds(kk_schedule *q, double seconds) {
    kk_sharing *c = &q->counts;
    c->rounds++;
    c->shared += q->n_batch > 1;
    c->sessions += q->n_batch;
    c->retried += q->again;
    if (q->n_batch > c->most) c->most = q->n_batch;
    q->round_s = q->round_s > 0 ? (1 - newest) * q->round_s + newest * seconds : seconds;
}

/* Whether the session's next round may run before its thread has come back.  Nobody else would run
 * it when it decodes alone. */
static bool may_go_on(const kk_schedule *q, const kk_engine *e, const kk_task *t) {
    const bool alone = !q->decoding->decoding;
    return !alone && !t->leaves && t->st == KK_OK &&
           kk_round_may_go_on(&e->rounds, t->round, t->n_open + t->round->n_out);
}

/* What the round came to is put where the session's thread finds it.  A round that failed while
 * that thread was away is not reported: it asks for that round itself when it is back. */
static void post(kk_schedule *q, const kk_engine *e, kk_task *t, double seconds, int64_t syncs) {
    kk_round *r = t->round;
    const bool lost = !t->awaited && (t->st != KK_OK || r->n_out == 0);
    t->goes_on = may_go_on(q, e, t);
    if (lost && t->st == KK_OK) kk_round_drop(r);
    if (lost) return;
    kk_outcome *o = &t->outcome[(t->ready + t->n_ready++) % KK_MOST_AHEAD];
    kk_outcome_of(r, o);
    o->st = t->st;
    if (t->st != KK_OK) o->err = t->err;
    o->kept = t->goes_on;
    o->seconds = seconds;
    o->syncs = syncs;
    if (t->goes_on) {
        t->n_open += r->n_out;
        kk_round_keep(r, r->n_out);
    }
}

/* The forward is over: its sessions call back, and the next may start. */
static void end_batch(kk_engine *e, const kk_task *self, double seconds, int64_t syncs) {
    kk_schedule *q = &e->schedule;
    kk_task *done[KK_MAX_GROUPS];
    int32_t n = 0;
    pthread_mutex_lock(&q->lock);
    count_rounds(q, seconds);
    const double now = kk_now();
    for (int32_t i = 0; i < q->n_batch; i++) {
        kk_task *t = q->batch[i];
        post(q, e, t, seconds, syncs);
        t->round_s = seconds;
        t->done_at = now;
        t->state = KK_TASK_BETWEEN;
        if (t != self && t->awaited) done[n++] = t;
        t->awaited = false;
    }
    q->busy = false;
    dispatch(q, NULL);
    pthread_mutex_unlock(&q->lock);
    for (int32_t i = 0; i < n; i++) kk_wake_set(&done[i]->wake, DONE);
}

/* Runs the batch, of which self is a part. */
static void lead(kk_engine *e, const kk_task *self) {
    kk_engine_lock(e);
    const double from = kk_now();
    const int64_t before = syncs_of(e);
    run_batch(e);
    const int64_t syncs = syncs_of(e) - before;
    const double seconds = kk_now() - from;
    kk_engine_unlock(e);
    end_batch(e, self, seconds, syncs);
}

/* The thread has handed out the first n_keep tokens of an outcome. */
static void hand_in(kk_task *t, kk_round *r, const kk_outcome *last, int32_t n_keep) {
    if (last->kept)
        t->n_open -= n_keep;
    else
        kk_round_keep(r, n_keep);
}

/* False: there is none yet. */
static bool take_outcome(kk_task *t, kk_outcome *out) {
    if (t->n_ready == 0) return false;
    const bool full = t->n_ready == KK_MOST_AHEAD;
    t->slow = full && kk_now() > due_back(t);
    *out = t->outcome[t->ready];
    t->ready = (t->ready + 1) % KK_MOST_AHEAD;
    t->n_ready--;
    return true;
}

void kk_schedule_round(kk_session *s, kk_round *r, const kk_outcome *last, kk_outcome *out) {
    kk_schedule *q = &s->engine->schedule;
    kk_task *t = &s->task;
    pthread_mutex_lock(&q->lock);
    if (last) hand_in(t, r, last, last->n);
    const bool full = t->n_ready == KK_MOST_AHEAD;
    bool there = take_outcome(t, out);
    if (full) dispatch(q, NULL); /* waiting sessions can be joined with it again */
    pthread_mutex_unlock(&q->lock);
    while (!there) {
        if (wait_turn(q, t, false)) lead(s->engine, t);
        pthread_mutex_lock(&q->lock);
        there = take_outcome(t, out);
        pthread_mutex_unlock(&q->lock);
    }
}

/* ---- generations ------------------------------------------------------------------------ */

void kk_schedule_enter(kk_session *s, kk_round *r) {
    kk_schedule *q = &s->engine->schedule;
    kk_task *t = &s->task;
    pthread_mutex_lock(&q->lock);
    const kk_task *other = q->decoding;
    while (other && !kk_cache_alike(other->session->cache, s->cache)) other = other->decoding;
    t->kind = other ? other->kind : q->kinds++;
    t->round = r;
    t->round_s = 0;
    t->slow = t->goes_on = t->leaves = false;
    t->n_open = t->n_ready = 0;
    t->decoding = q->decoding;
    q->decoding = t;
    pthread_mutex_unlock(&q->lock);
}

/* Whether the last round that ran was not kept, and its outcome was not taken either. */
static bool newest_is_open(const kk_task *t) {
    if (t->n_ready == 0) return false;
    const kk_outcome *o = &t->outcome[(t->ready + t->n_ready - 1) % KK_MOST_AHEAD];
    return !o->kept && o->st == KK_OK;
}

/* A forward that runs with it is waited for: it is about to write into its cache. */
void kk_schedule_leave(kk_session *s, kk_round *r, const kk_outcome *last, int32_t n_keep) {
    kk_schedule *q = &s->engine->schedule;
    kk_task *t = &s->task, **at = &q->decoding;
    pthread_mutex_lock(&q->lock);
    t->leaves = true;
    if (t->state == KK_TASK_RUNNING) {
        t->awaited = true;
        pthread_mutex_unlock(&q->lock);
        while (!(kk_wake_wait(&t->wake, 0) & DONE)) continue;
        pthread_mutex_lock(&q->lock);
    }
    hand_in(t, r, last, n_keep);
    if (newest_is_open(t)) kk_round_drop(r);
    kk_round_forget(r, t->n_open);
    t->n_open = t->n_ready = 0;
    while (*at != t) at = &(*at)->decoding;
    *at = t->decoding;
    t->decoding = NULL;
    t->state = KK_TASK_IDLE;
    dispatch(q, NULL); /* nobody waits for it any more */
    pthread_mutex_unlock(&q->lock);
}

/* ---- chunks ----------------------------------------------------------------------------- */

static int32_t chunk_rows(const kk_schedule *q, const kk_task *t, int32_t most) {
    if (!q->decoding) return most;
    const bool known = t->row_s > 0 && q->round_s > 0;
    const double rows = known ? CHUNK_ROUNDS * q->round_s / t->row_s : LEAST_ROWS;
    if (rows >= most) return most;
    return rows > LEAST_ROWS ? (int32_t)rows : most < LEAST_ROWS ? most : LEAST_ROWS;
}

int32_t kk_schedule_chunk(kk_session *s, int32_t most) {
    kk_schedule *q = &s->engine->schedule;
    (void)wait_turn(q, &s->task, true); /* nobody else runs it */
    pthread_mutex_lock(&q->lock);
    const int32_t rows = chunk_rows(q, &s->task, most);
    q->counts.cut += rows < most;
    pthread_mutex_unlock(&q->lock);
    return rows;
}

void kk_schedule_chunk_done(kk_session *s, int32_t rows, double seconds) {
    kk_schedule *q = &s->engine->schedule;
    kk_task *t = &s->task;
    pthread_mutex_lock(&q->lock);
    q->counts.chunks++;
    q->counts.chunk_rows += rows;
    if (rows > 0) t->row_s = seconds / rows;
    t->awaited = false;
    t->state = KK_TASK_IDLE;
    q->busy = q->chunking = false;
    dispatch(q, NULL);
    pthread_mutex_unlock(&q->lock);
}

void kk_engine_sharing(kk_engine *e, kk_sharing *out) {
    pthread_mutex_lock(&e->schedule.lock);
    *out = e->schedule.counts;
    pthread_mutex_unlock(&e->schedule.lock);
}
