/* wake_test.c - wake-ups are neither lost nor late, and the lock goes round in order. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/clock.h"
#include "core/wake.h"
#include "support/ok.h"

static void nap(long ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

static void flags_wait_for_their_reader(void **state) {
    (void)state;
    kk_wake w;
    kk_wake_init(&w);
    kk_wake_set(&w, 1);
    kk_wake_set(&w, 4);
    assert_int_equal(kk_wake_wait(&w, 0), 5);
    const double from = kk_now();
    assert_int_equal(kk_wake_wait(&w, from + 0.02), 0);
    assert_true(kk_now() - from >= 0.02);
    assert_int_equal(kk_wake_wait(&w, from), 0); /* a time gone by */
    kk_wake_free(&w);
}

static void *set_later(void *arg) {
    nap(20);
    kk_wake_set(arg, 2);
    return NULL;
}

static void a_sleeper_wakes(void **state) {
    (void)state;
    for (int timed = 0; timed < 2; timed++) {
        kk_wake w;
        pthread_t id;
        kk_wake_init(&w);
        assert_int_equal(pthread_create(&id, NULL, set_later, &w), 0);
        assert_int_equal(kk_wake_wait(&w, timed ? kk_now() + 60 : 0), 2);
        kk_wake_free(&w); /* while the setter may still be on its way out of its call */
        pthread_join(id, NULL);
    }
}

enum { THREADS = 6 };

typedef struct {
    kk_fair_lock lock;
    int order[THREADS], n;
} queue;

typedef struct {
    queue *q;
    int index;
} waiter;

static void *take_turn(void *arg) {
    const waiter *w = arg;
    kk_fair_lock_take(&w->q->lock);
    w->q->order[w->q->n++] = w->index;
    kk_fair_lock_give(&w->q->lock);
    return NULL;
}

static uint64_t tickets(queue *q) {
    pthread_mutex_lock(&q->lock.lock);
    const uint64_t n = q->lock.next;
    pthread_mutex_unlock(&q->lock.lock);
    return n;
}

static void the_lock_goes_round_in_order(void **state) {
    (void)state;
    queue q = {.n = 0};
    waiter w[THREADS];
    pthread_t id[THREADS];
    kk_fair_lock_init(&q.lock);
    kk_fair_lock_take(&q.lock);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (waiter){&q, i};
        assert_int_equal(pthread_create(&id[i], NULL, take_turn, &w[i]), 0);
        while (tickets(&q) < (uint64_t)i + 2) nap(1);
    }
    kk_fair_lock_give(&q.lock);
    kk_fair_lock_take(&q.lock); /* behind all that waited, though they sleep and this runs */
    assert_int_equal(q.n, THREADS);
    kk_fair_lock_give(&q.lock);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(q.order[i], i);
    }
    kk_fair_lock_free(&q.lock);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_wait_for_their_reader),
        cmocka_unit_test(a_sleeper_wakes),
        cmocka_unit_test(the_lock_goes_round_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
