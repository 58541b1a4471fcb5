/* threads_test.c - every index once, by whichever thread, through sleep and wake; clean under
 * -fsanitize=thread. */
#define _GNU_SOURCE
#include "core/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/alloc.h"

enum { MOST = 1000 };

/* Plain counters on purpose: two threads given the same index are a race that TSan reports. */
typedef struct {
    int32_t hits[MOST];
    int32_t count;
    int64_t grain, n;
    _Atomic int32_t wrong;
} tally;

static void hit(void *arg, int64_t begin, int64_t end, int32_t thread) {
    tally *t = arg;
    if (thread < 0 || thread >= t->count || end > t->n || begin >= end) t->wrong++;
    if (end - begin > t->grain || begin % t->grain != 0) t->wrong++;
    for (int64_t i = begin; i < end; i++) t->hits[i]++;
}

static void check_loop(kk_threads *pool, int64_t n, int64_t grain) {
    static tally t;
    memset(&t, 0, sizeof t);
    t.count = kk_threads_count(pool);
    t.grain = grain;
    t.n = n;
    kk_threads_loop(pool, n, grain, hit, &t);
    assert_int_equal(t.wrong, 0);
    for (int64_t i = 0; i < MOST; i++) assert_int_equal(t.hits[i], i < n);
}

static void every_index_once(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 65, 999, MOST};
    static const int64_t grains[] = {1, 3, 64, 5000};
    for (int32_t count = 1; count <= 4; count++) {
        kk_threads *pool;
        assert_int_equal(kk_threads_new(&pool, count, count % 2 == 0, NULL), KK_OK);
        assert_int_equal(kk_threads_count(pool), count);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
                check_loop(pool, sizes[s], grains[g]);
        kk_threads_free(pool);
    }
}

/* Loops back to back, and loops after pauses long enough for workers to fall asleep. */
static void hot_and_cold(void **state) {
    (void)state;
    kk_threads *pool;
    assert_int_equal(kk_threads_new(&pool, 3, true, NULL), KK_OK);
    for (int i = 0; i < 3000; i++) check_loop(pool, 1 + i % 40, 1);
    for (int i = 0; i < 40; i++) {
        usleep(i % 2 ? 300 : 90); /* past, and just at, the end of the spin */
        check_loop(pool, 50, 1);
    }
    kk_threads_free(pool);
}

typedef struct {
    _Atomic int32_t arrived;
    _Atomic int32_t together;
} rendezvous;

/* Holds every thread until two are inside, or a second has passed. */
static void arrive(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)begin, (void)end, (void)thread;
    rendezvous *m = arg;
    m->arrived++;
    for (int i = 0; i < 1000 && m->arrived < 2; i++) usleep(1000);
    if (m->arrived >= 2) m->together++;
}

static void threads_work_at_the_same_time(void **state) {
    (void)state;
    kk_threads *pool;
    assert_int_equal(kk_threads_new(&pool, 2, false, NULL), KK_OK);
    for (int i = 0; i < 3; i++) {
        rendezvous m = {0};
        usleep(1000);
        kk_threads_loop(pool, 2, 1, arrive, &m);
        assert_int_equal(m.together, 2);
    }
    kk_threads_free(pool);
}

typedef struct {
    _Atomic int32_t started;
    int64_t at[2];    /* where each thread's last piece ended */
    int32_t jumps[2]; /* pieces of each that did not follow its last one */
} walk;

static void step(void *arg, int64_t begin, int64_t end, int32_t thread) {
    walk *w = arg;
    if (w->at[thread] != begin) w->jumps[thread]++;
    if (w->at[thread] < 0) w->started++;
    w->at[thread] = end;
    for (int i = 0; i < 1000 && w->started < 2; i++) usleep(1000);
    usleep(200);
}

/* A thread fetches what comes after its piece: that must be what it works on next. */
static void pieces_follow_each_other(void **state) {
    (void)state;
    kk_threads *pool;
    assert_int_equal(kk_threads_new(&pool, 2, false, NULL), KK_OK);
    walk w = {.at = {-1, -1}};
    kk_threads_loop(pool, 200, 2, step, &w);
    assert_int_equal(w.started, 2);
    /* The starts, and where the faster one helped the other in the end; dealt out in turn, nearly
     * all of the 100 pieces would be such jumps. */
    assert_true(w.jumps[0] + w.jumps[1] < 50);
    kk_threads_free(pool);
}

/* A worker that stays away is not waited for: the caller does its stretch as well. */
static void one_thread_can_do_it_all(void **state) {
    (void)state;
    kk_threads *pool;
    assert_int_equal(kk_threads_new(&pool, 4, false, NULL), KK_OK);
    for (int i = 0; i < 200; i++) {
        usleep(i % 8 ? 0 : 400);
        check_loop(pool, 5 + i % 7, 2); /* fewer pieces than threads, too */
    }
    kk_threads_free(pool);
}

static void a_loop_takes_no_memory(void **state) {
    (void)state;
    kk_threads *pool;
    assert_int_equal(kk_threads_new(&pool, 2, false, NULL), KK_OK);
    kk_fault_after(1, true);
    check_loop(pool, MOST, 8);
    kk_fault_after(0, false);
    kk_threads_free(pool);
}

static void idle_pools_close(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        kk_threads *pool;
        assert_int_equal(kk_threads_new(&pool, 4, false, NULL), KK_OK);
        if (i % 2) usleep(400);
        kk_threads_free(pool);
    }
    kk_threads_free(NULL);
}

static void wrong_counts_are_refused(void **state) {
    (void)state;
    kk_threads *pool = (kk_threads *)&pool;
    kk_err err;
    assert_int_equal(kk_threads_new(&pool, -1, false, &err), KK_EINVAL);
    assert_null(pool);
    assert_non_null(strstr(err.msg, "-1"));
    assert_int_equal(kk_threads_new(&pool, 100000, false, &err), KK_EINVAL);
    assert_int_equal(kk_threads_new(&pool, 0, false, &err), KK_OK);
    assert_int_equal(kk_threads_count(pool), kk_cores_available());
    kk_threads_free(pool);
}

/* Whatever cannot be had, the threads already started go away again. */
static void every_failure_undoes(void **state) {
    (void)state;
    const int64_t bytes = kk_live_bytes();
    int n = 1;
    for (;; n++) {
        kk_threads *pool;
        kk_fault_after(n, false);
        const kk_status st = kk_threads_new(&pool, 3, false, NULL);
        kk_fault_after(0, false);
        kk_threads_free(pool);
        assert_int_equal(kk_live_bytes(), bytes);
        if (st == KK_OK) break;
        assert_int_equal(st, KK_ENOMEM);
        assert_null(pool);
    }
    assert_int_equal(n, 6); /* the pool, its two lists, two threads */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_once),
        cmocka_unit_test(hot_and_cold),
        cmocka_unit_test(threads_work_at_the_same_time),
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(one_thread_can_do_it_all),
        cmocka_unit_test(a_loop_takes_no_memory),
        cmocka_unit_test(idle_pools_close),
        cmocka_unit_test(wrong_counts_are_refused),
        cmocka_unit_test(every_failure_undoes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
