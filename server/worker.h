/* worker.h - threads that run requests, and the queue before them.
 *
 * A worker runs one request at a time from start to end; requests that run at the same time share
 * forward passes inside the library. */
#ifndef KK_SERVER_WORKER_H
#define KK_SERVER_WORKER_H

#include <pthread.h>

#include "server/exchange.h"
#include "server/slots.h"

typedef void (*worker_run)(exchange *x);

typedef struct workers {
    pthread_t *thread;
    int n_threads;
    worker_run run;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    exchange *first, *last; /* waiting, oldest first */
    int n_waiting, n_running, most_waiting;
    worker_slot *slots; /* [n_threads], of those that run */
    long long tasks;    /* that began so far */
    bool ending;
} workers;

/* run answers an exchange and does not release it. */
kk_status workers_start(workers *w, int threads, int queue, worker_run run, kk_err *err);
/* Queues it, with a reference of its own; false: the queue is full, or the workers are ending. */
bool workers_submit(workers *w, exchange *x);
/* From the request that runs, before its client hears the end of the answer: whoever asks again at
 * once must find the worker free that answered. */
void workers_answered(exchange *x);
void workers_count(workers *w, int *waiting, int *running);
/* Waits until nothing waits or runs; false: not within so many seconds. */
bool workers_drain(workers *w, double seconds);
/* Runs what still waits, and joins the threads; they may still be counted. */
void workers_stop(workers *w);
void workers_close(workers *w);

#endif
