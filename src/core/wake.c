/* wake.c - see wake.h. */
#define _GNU_SOURCE
#include "core/wake.h"

#include <errno.h>
#include <time.h>

#include "core/clock.h"

/* ---- a thread's own wake-up ------------------------------------------------------------- */

void kk_wake_init(kk_wake *w) {
    *w = (kk_wake){0};
    pthread_mutex_init(&w->lock, NULL);
#ifdef __APPLE__
    pthread_cond_init(&w->set, NULL);
#else
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* the clock that kk_now reads */
    pthread_cond_init(&w->set, &attr);
    pthread_condattr_destroy(&attr);
#endif
}

void kk_wake_free(kk_wake *w) {
    pthread_cond_destroy(&w->set);
    pthread_mutex_destroy(&w->lock);
}

/* Signals with the mutex held: as soon as it is released the owner may free all of this. */
void kk_wake_set(kk_wake *w, unsigned flags) {
    pthread_mutex_lock(&w->lock);
    w->flags |= flags;
    pthread_cond_signal(&w->set);
    pthread_mutex_unlock(&w->lock);
}

static struct timespec time_of(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    return t;
}

/* Returns false when the time has come. */
static int wait_until(kk_wake *w, double until) {
#ifdef __APPLE__
    const double left = until - kk_now();
    const struct timespec t = time_of(left > 0 ? left : 0);
    return pthread_cond_timedwait_relative_np(&w->set, &w->lock, &t) != ETIMEDOUT;
#else
    const struct timespec t = time_of(until);
    return pthread_cond_timedwait(&w->set, &w->lock, &t) != ETIMEDOUT;
#endif
}

unsigned kk_wake_wait(kk_wake *w, double until) {
    pthread_mutex_lock(&w->lock);
    while (!w->flags) {
        if (until == 0)
            pthread_cond_wait(&w->set, &w->lock);
        else if (!wait_until(w, until))
            break;
    }
    const unsigned flags = w->flags;
    w->flags = 0;
    pthread_mutex_unlock(&w->lock);
    return flags;
}

/* ---- a lock in order -------------------------------------------------------------------- */

void kk_fair_lock_init(kk_fair_lock *l) {
    *l = (kk_fair_lock){0};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->turn, NULL);
}

void kk_fair_lock_free(kk_fair_lock *l) {
    pthread_cond_destroy(&l->turn);
    pthread_mutex_destroy(&l->lock);
}

void kk_fair_lock_take(kk_fair_lock *l) {
    pthread_mutex_lock(&l->lock);
    const uint64_t mine = l->next++;
    while (l->serving != mine) pthread_cond_wait(&l->turn, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

void kk_fair_lock_give(kk_fair_lock *l) {
    pthread_mutex_lock(&l->lock);
    if (++l->serving != l->next) pthread_cond_broadcast(&l->turn);
    pthread_mutex_unlock(&l->lock);
}

uint64_t kk_fair_lock_tickets(kk_fair_lock *l) {
    pthread_mutex_lock(&l->lock);
    const uint64_t taken = l->next;
    pthread_mutex_unlock(&l->lock);
    return taken;
}
