/* pace_test.c - the first parts of a stream are sent at once, later ones together and within their
 * time; nothing that waits is left behind.  ctest: threads */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "server/server.h"
#include "support/ok.h"

enum { STREAMS = 5, PARTS = 200 };

typedef struct {
    kk_serve_opts opts;
    server server;
    exchange *x[STREAMS];
} world;

static int setup(void **state) {
    static world w;
    *state = &w;
    w = (world){.opts = {.stream_buffer = 1 << 20}};
    w.server.opts = &w.opts;
    assert_ok(pace_start(&w.server.pace, why));
    for (int i = 0; i < STREAMS; i++) {
        w.x[i] = exchange_new(&w.server, NULL, -1);
        assert_non_null(w.x[i]);
        exchange_stream(w.x[i]);
    }
    return 0;
}

static int teardown(void **state) {
    world *w = *state;
    pace_stop(&w->server.pace);
    for (int i = 0; i < STREAMS; i++) {
        assert_false(w->x[i]->paced);
        assert_int_equal(atomic_load(&w->x[i]->refs), 1);
        exchange_release(w->x[i]);
    }
    return 0;
}

static void nap(double seconds) {
    const struct timespec t = {.tv_nsec = (long)(1e9 * seconds)};
    nanosleep(&t, NULL);
}

static bool waits(exchange *x) {
    pthread_mutex_lock(&x->lock);
    const bool waits = x->paced;
    pthread_mutex_unlock(&x->lock);
    return waits;
}

static void until_told(exchange *x) {
    const double start = text_now();
    while (waits(x)) {
        assert_true(text_now() - start < 60);
        nap(1e-4);
    }
}

/* Whether what is written now waits, when something else was just sent. */
static bool add(exchange *x) {
    assert_true(exchange_add(x, "part", 4));
    return waits(x);
}

static void test_first_parts(void **state) {
    world *w = *state;
    for (int i = 0; i < STREAMS; i++)
        for (int part = 0; part < EXCHANGE_EAGER; part++) assert_false(add(w->x[i]));
}

/* The connection is told at once after a pause, and together with others soon after. */
static void test_together(void **state) {
    world *w = *state;
    test_first_parts(state);
    int together = 0;
    for (int turn = 0; turn < 50; turn++) {
        for (int i = 0; i < STREAMS; i++) until_told(w->x[i]);
        nap(3e-3 * PACE_MS);
        const double start = text_now();
        const bool first = add(w->x[0]);
        bool all = true;
        for (int i = 1; i < STREAMS; i++) all = add(w->x[i]) && all;
        if (text_now() - start > 0.5e-3 * PACE_MS) continue; /* the machine was elsewhere */
        assert_false(first);
        assert_true(all);
        together++;
    }
    assert_true(together > 0);
}

/* Who writes after the time is up tells all, itself too, before the thread would. */
static void test_writers_tell(void **state) {
    world *w = *state;
    test_first_parts(state);
    int told = 0;
    for (int turn = 0; turn < 50; turn++) {
        for (int i = 0; i < STREAMS; i++) until_told(w->x[i]);
        nap(3e-3 * PACE_MS);
        const double start = text_now();
        add(w->x[0]);
        add(w->x[1]);
        const bool waited = add(w->x[2]) && waits(w->x[1]);
        if (text_now() - start > 0.5e-3 * PACE_MS) continue; /* the machine was elsewhere */
        assert_true(waited);
        while (text_now() - start < 1.2e-3 * PACE_MS) nap(1e-4);
        const bool before = waits(w->x[1]);
        const bool own = add(w->x[2]);
        const bool others = waits(w->x[1]);
        if (text_now() - start > 1.9e-3 * PACE_MS) continue; /* it may have been the thread */
        assert_true(before);
        assert_false(own || others);
        told++;
    }
    assert_true(told > 0);
}

/* Whatever is written and whenever, it is told of. */
static void test_all_is_told(void **state) {
    world *w = *state;
    test_first_parts(state);
    for (int part = 0; part < PARTS; part++) {
        exchange *x = w->x[part % STREAMS];
        add(x);
        if (part % 3 == 0) nap(1e-4 * (part % 60));
        if (part % 50 == 49) until_told(x);
    }
    for (int i = 0; i < STREAMS; i++) until_told(w->x[i]);
    add(w->x[0]); /* and what waits when it ends, see teardown */
    add(w->x[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_first_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writers_tell, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_is_told, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
