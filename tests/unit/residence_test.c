/* residence_test.c - who asks whether a sweep is stuck waits for one that is, and for no other.
 * ctest: threads */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "server/residence.h"
#include "server/text.h"

static void *end_sweep(void *arg) {
    residence *r = arg;
    const struct timespec t = {.tv_nsec = 100 * 1000 * 1000};
    nanosleep(&t, NULL);
    pthread_mutex_lock(&r->lock);
    r->sweeping = false;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void test_stuck(void **state) {
    residence r = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    (void)state;
    residence_wait(&r);
    r.sweeping = true;
    r.since = text_now() - RESIDENCE_STUCK_S + 60;
    residence_wait(&r); /* it takes long */
    assert_true(r.sweeping);
    r.since = text_now() - RESIDENCE_STUCK_S - 1;
    assert_int_equal(pthread_create(&thread, NULL, end_sweep, &r), 0);
    residence_wait(&r);
    pthread_mutex_lock(&r.lock);
    assert_false(r.sweeping); /* it waited until somebody ended it */
    pthread_mutex_unlock(&r.lock);
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stuck)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
