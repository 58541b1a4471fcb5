/* residence.c - see residence.h. */
#define _GNU_SOURCE
#include "server/residence.h"

#include <time.h>

#include "server/server.h"

bool residence_make_place(server *s) {
    const bool sessions_first = sessions_oldest(s->sessions) < prefixes_oldest(s->prefixes);
    return (sessions_first && sessions_evict_oldest(s->sessions)) ||
           prefixes_evict_oldest(s->prefixes) ||
           (!sessions_first && sessions_evict_oldest(s->sessions));
}

static int64_t kv_bytes(const server *s) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(s->engine, bytes);
    return bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_DRAFTER] +
           bytes[KK_MEM_KV_LATENTS];
}

static void sweep(server *s) {
    const int64_t limit = s->opts->kv_bytes;
    if (s->store) {
        sessions_evict_idle(s->sessions, s->opts->idle_session_s);
        prefixes_evict_idle(s->prefixes, s->opts->idle_session_s);
    }
    const double until = text_now() + SWEEP_S;
    while (limit > 0 && text_now() < until && kv_bytes(s) > limit && residence_make_place(s)) {
    }
}

/* The caller holds the lock. */
static void nap(residence *r) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    while (!r->ending && pthread_cond_timedwait(&r->changed, &r->lock, &until) == 0) continue;
}

static void *run(void *arg) {
    residence *r = arg;
    pthread_mutex_lock(&r->lock);
    for (nap(r); !r->ending; nap(r)) {
        r->sweeping = true;
        r->since = text_now();
        pthread_mutex_unlock(&r->lock);
        sweep(r->server);
        pthread_mutex_lock(&r->lock);
        r->sweeping = false;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

kk_status residence_start(residence *r, server *s, kk_err *err) {
    pthread_condattr_t attr;
    *r = (residence){.server = s};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    r->started = pthread_create(&r->thread, NULL, run, r) == 0;
    if (r->started) return KK_OK;
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    return server_fail(err, KK_ENOMEM, "the system gives no thread for idle sessions");
}

void residence_wait(residence *r) {
    pthread_mutex_lock(&r->lock);
    const bool stuck = text_now() - r->since > RESIDENCE_STUCK_S;
    while (stuck && r->sweeping) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

void residence_stop(residence *r) {
    if (!r->started) return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    r->started = false;
}

void residence_end(server *s) {
    store_counts before, after;
    if (!s->store || !s->sessions) return;
    store_count(s->store, &before);
    const int n = sessions_evict_idle(s->sessions, -1) + prefixes_evict_idle(s->prefixes, -1);
    store_count(s->store, &after);
    const int64_t failed = after.failed - before.failed;
    if (failed > 0)
        server_warn(s,
                    "state: the K/V of %lld of %d sessions in memory was not saved to %s: they are "
                    "evaluated again when they are used",
                    (long long)failed, n, s->opts->state);
    else if (n > 0)
        server_say(s, "state: %d sessions in memory went to %s", n, s->opts->state);
}
