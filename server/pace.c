/* pace.c - see pace.h. */
#define _GNU_SOURCE
#include "server/pace.h"

#include <time.h>

#include "server/exchange.h"
#include "server/server.h"

static const double pace_s = 1e-3 * PACE_MS;
/* After which the thread tells what no stream has told by writing more; and when it looks again
 * where one has, as they do while text comes fast. */
static const double rest_s = 2e-3 * PACE_MS, nap_s = 4e-3 * PACE_MS;

/* The caller holds the lock. */
static void wait_until(pace *p, double when) {
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)(1e9 * (when - (double)t.tv_sec));
    pthread_cond_timedwait(&p->changed, &p->lock, &t);
}

/* The caller holds the lock, which is not held while connections are told: theirs comes first. */
static void tell(pace *p) {
    exchange *x = p->first;
    p->first = NULL;
    p->last = text_now();
    pthread_mutex_unlock(&p->lock);
    for (exchange *next; x; x = next) {
        next = x->paced_next; /* may be another one's once it was told */
        exchange_tell(x);
        exchange_release(x);
    }
    pthread_mutex_lock(&p->lock);
}

static void *run(void *arg) {
    pace *p = arg;
    pthread_mutex_lock(&p->lock);
    double seen = 0; /* p->last when this was about to wait; 0: it did not wait for a time */
    while (!p->ending) {
        const double due = p->last + rest_s;
        if (text_now() < due) {
            const bool others = seen > 0 && p->last > seen;
            seen = p->last;
            wait_until(p, others ? p->last + nap_s : due);
        } else if (p->first) {
            tell(p);
            seen = 0;
        } else {
            p->asleep = true;
            pthread_cond_wait(&p->changed, &p->lock);
            p->asleep = false;
            seen = 0;
        }
    }
    tell(p);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

kk_status pace_start(pace *p, kk_err *err) {
    pthread_condattr_t attr;
    *p = (pace){.started = true};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&p->thread, NULL, run, p) == 0) return KK_OK;
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    p->started = false;
    return server_fail(err, KK_ENOMEM, "the system gives no thread for streams");
}

bool pace_is_due(pace *p, exchange *x) {
    if (!p->started) return true;
    pthread_mutex_lock(&p->lock);
    const double now = text_now();
    /* While others wait they go first: their time would not come otherwise. */
    const bool due = !p->first && now - p->last >= pace_s;
    if (due) {
        p->last = now;
    } else {
        exchange_hold(x);
        x->paced_next = p->first;
        p->first = x;
        if (p->asleep) pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return due;
}

void pace_look(pace *p) {
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    if (p->first && text_now() - p->last >= pace_s) tell(p);
    pthread_mutex_unlock(&p->lock);
}

void pace_stop(pace *p) {
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    p->started = false;
}
