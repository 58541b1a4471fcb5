/* worker.c - see worker.h. */
#define _GNU_SOURCE
#include "server/worker.h"

#include <stdlib.h>
#include <time.h>

#include "server/server.h"

static exchange *take(workers *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->ending) pthread_cond_wait(&w->changed, &w->lock);
    exchange *x = w->first;
    if (x) {
        w->first = x->next;
        if (!w->first) w->last = NULL;
        w->n_waiting--;
        w->n_running++;
        x->runs_in = w;
        for (int i = 0; !x->slot && i < w->n_threads; i++)
            if (!atomic_load(&w->slots[i].runs)) x->slot = &w->slots[i];
        slot_begin(x->slot, ++w->tasks);
    }
    pthread_mutex_unlock(&w->lock);
    return x;
}

void workers_answered(exchange *x) {
    workers *w = x->runs_in; /* the worker that runs it calls this, nobody else */
    if (!w) return;
    x->runs_in = NULL;
    pthread_mutex_lock(&w->lock);
    slot_end(x->slot);
    x->slot = NULL;
    w->n_running--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void *work(void *arg) {
    workers *w = arg;
    for (exchange *x; (x = take(w));) {
        w->run(x);
        workers_answered(x); /* where it was not answered */
        exchange_release(x);
    }
    return NULL;
}

kk_status workers_start(workers *w, int threads, int queue, worker_run run, kk_err *err) {
    *w = (workers){.run = run, .most_waiting = queue};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    w->thread = calloc((size_t)threads, sizeof *w->thread);
    w->slots = calloc((size_t)threads, sizeof *w->slots);
    if (!w->thread || !w->slots)
        return server_fail(err, KK_ENOMEM, "no memory for %d workers", threads);
    for (; w->n_threads < threads; w->n_threads++)
        if (pthread_create(&w->thread[w->n_threads], NULL, work, w) != 0) {
            workers_stop(w);
            return server_fail(err, KK_ENOMEM, "the system gives no thread for %d workers",
                               threads);
        }
    return KK_OK;
}

/* Takes out of the queue whose clients have left, so that they keep nobody out. */
static exchange *forget_left(workers *w) {
    exchange *left = NULL, **at = &w->first;
    w->last = NULL;
    while (*at) {
        exchange *x = *at;
        if (exchange_left(x)) {
            *at = x->next;
            x->next = left;
            left = x;
            w->n_waiting--;
        } else {
            w->last = x;
            at = &x->next;
        }
    }
    return left;
}

/* A connection that left is only taken apart once it is answered. */
static void answer_left(exchange *x) {
    const fault f = {.status = 408};
    for (exchange *next; x; x = next) {
        next = x->next;
        exchange_refuse(x, &f);
        exchange_release(x);
    }
}

/* The caller holds the exchange's lock, and exchange_left takes it: only others are asked. */
bool workers_submit(workers *w, exchange *x) {
    exchange *left = NULL;
    pthread_mutex_lock(&w->lock);
    /* An idle worker takes one at once, whatever the queue may hold. */
    const int most = w->most_waiting + (w->n_threads - w->n_running);
    if (w->n_waiting >= most) left = forget_left(w);
    const bool taken = !w->ending && w->n_waiting < most;
    if (taken) {
        exchange_hold(x);
        x->next = NULL;
        if (w->last)
            w->last->next = x;
        else
            w->first = x;
        w->last = x;
        w->n_waiting++;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    answer_left(left);
    return taken;
}

void workers_count(workers *w, int *waiting, int *running) {
    pthread_mutex_lock(&w->lock);
    *waiting = w->n_waiting;
    *running = w->n_running;
    pthread_mutex_unlock(&w->lock);
}

bool workers_drain(workers *w, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double end = (double)until.tv_sec + 1e-9 * (double)until.tv_nsec + seconds;
    until.tv_sec = (time_t)end;
    until.tv_nsec = (long)(1e9 * (end - (double)until.tv_sec));
    pthread_mutex_lock(&w->lock);
    int timed_out = 0;
    while ((w->n_waiting || w->n_running) && !timed_out)
        timed_out = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    const bool empty = !w->n_waiting && !w->n_running;
    pthread_mutex_unlock(&w->lock);
    return empty;
}

void workers_stop(workers *w) {
    if (!w->thread) return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++) pthread_join(w->thread[i], NULL);
    free(w->thread);
    w->thread = NULL;
    w->n_threads = 0;
}

void workers_close(workers *w) {
    workers_stop(w);
    free(w->slots);
    w->slots = NULL;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}
