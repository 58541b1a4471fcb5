/* prefixes_test.c - the longest kept prefix serves a request: continued where it is the same
 * conversation, forked where it is another, and never with other tokens than were asked for.
 * ctest: threads */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "server/prefixes.h"
#include "support/tiny.h"

enum { LEN = 600 };

typedef struct {
    kk_engine *e;
    prefixes *p;
    int64_t dropped;
    int32_t a[LEN], b[LEN]; /* equal up to 200 */
} world;

static void on_drop(void *user, int64_t n) { ((world *)user)->dropped += n; }

static int setup(void **state) {
    world *w = *state = calloc(1, sizeof *w);
    w->e = tiny_engine("tiny:f32", 1, 64);
    const prefixes_opts opts = {
        .session = {.ctx = 1024}, .window = TINY_WINDOW, .most = 3, .on_drop = on_drop, .user = w};
    assert_ok(prefixes_open(&w->p, w->e, &opts, why));
    tiny_prompt(w->a, LEN, 1);
    tiny_prompt(w->b, LEN, 2);
    memcpy(w->b, w->a, 200 * sizeof *w->a);
    return 0;
}

static int teardown(void **state) {
    world *w = *state;
    prefixes_close(w->p);
    kk_engine_close(w->e);
    free(w);
    return 0;
}

/* Takes one for tokens[0, n), checks that it holds what it says, and brings it to n. */
static prefixes_found bring(world *w, const int32_t *tokens, int32_t n) {
    prefixes_found f;
    assert_ok(prefixes_take(w->p, tokens, (size_t)n, &f, why));
    assert_true(f.len < n && f.parts >= f.len);
    assert_int_equal(kk_session_len(f.session), f.len);
    assert_memory_equal(kk_session_tokens(f.session), tokens, (size_t)f.len * sizeof *tokens);
    tiny_append(f.session, tokens + f.len, n - f.len);
    return f;
}

static void test_same_conversation(void **state) {
    world *w = *state;
    prefixes_found f = bring(w, w->a, 300);
    assert_int_equal(f.len, 0);
    assert_ok(kk_session_checkpoint(f.session, why));
    tiny_append(f.session, w->b + 300, 200); /* an answer, which the next turn does not have */
    kk_session *first = f.session;
    prefixes_keep(w->p, &f, 300, 0);
    f = bring(w, w->a, 400);
    assert_ptr_equal(f.session, first); /* it is continued */
    assert_int_equal(f.len, 300);
    assert_int_equal(f.evaluated, 0);
    assert_int_equal(prefixes_count(w->p), 0);

    /* What came of it is what a session of its own has. */
    kk_session *own = tiny_session(w->e, 1024, KK_KV_BF16);
    tiny_append(own, w->a, 400);
    assert_memory_equal(kk_session_tokens(f.session), kk_session_tokens(own), 400 * sizeof *w->a);
    float x[TINY_VOCAB], y[TINY_VOCAB];
    tiny_logits(f.session, x);
    tiny_logits(own, y);
    assert_memory_equal(x, y, sizeof x);
    kk_session_free(own);
    kk_session_free(f.session);
}

static void test_other_conversation(void **state) {
    world *w = *state;
    prefixes_found f = bring(w, w->a, 100);
    assert_ok(kk_session_checkpoint(f.session, why));
    tiny_append(f.session, w->a + 100, 300);
    prefixes_keep(w->p, &f, 400, 0);
    prefixes_found g = bring(w, w->b, 500);
    assert_int_equal(g.len, 100); /* the last checkpoint: 200 is beyond the window */
    assert_int_equal(g.parts, 200);
    assert_int_equal(prefixes_count(w->p), 1); /* the first stays */
    prefixes_keep(w->p, &g, 500, 0);
    /* Of the two that share 160 tokens of this, neither is taken away. */
    f = bring(w, w->a, 160);
    assert_true(f.len >= 100);
    assert_int_equal(prefixes_count(w->p), 2);
    kk_session_free(f.session);
}

static void test_nothing_in_common(void **state) {
    world *w = *state;
    prefixes_found f = bring(w, w->a, 100);
    prefixes_keep(w->p, &f, 100, 0);
    f = bring(w, w->a + 50, 100);
    assert_true(f.len == 0 && f.evaluated == 0);
    kk_session_free(f.session);
    /* A few tokens in common are not worth it. */
    int32_t few[100];
    memcpy(few, w->b + 300, sizeof few);
    memcpy(few, w->a, 10 * sizeof *few);
    f = bring(w, few, 100);
    assert_int_equal(f.len, 0);
    kk_session_free(f.session);
}

static void test_stand_in(void **state) {
    world *w = *state;
    prefixes_found f = bring(w, w->a, 300);
    const uint64_t number = prefixes_stand_in(w->p, f.session);
    assert_true(number != 0 && prefixes_count(w->p) == 1);
    /* While the session is away, others fork what stands in, and it stays. */
    for (int i = 0; i < 3; i++) {
        prefixes_found g = bring(w, w->a, 350);
        assert_true(g.len == 300 && g.session != f.session);
        kk_session_free(g.session);
        assert_int_equal(prefixes_count(w->p), 1);
    }
    tiny_append(f.session, w->b + 300, 50);
    prefixes_keep(w->p, &f, 300, number);
    assert_int_equal(prefixes_count(w->p), 1);
    prefixes_keep(w->p, &(prefixes_found){.session = NULL}, 0, 0);
}

static void test_oldest_goes(void **state) {
    world *w = *state;
    for (int i = 0; i < 4; i++) {
        prefixes_found f = bring(w, w->b + 220 + 60 * i, 60);
        prefixes_keep(w->p, &f, 60, 0);
        if (i < 2) continue;
        f = bring(w, w->b + 220, 30); /* used again: not the oldest any more */
        assert_int_equal(f.len, 29);
        kk_session_free(f.session);
    }
    assert_int_equal(w->dropped, 1);
    assert_int_equal(prefixes_count(w->p), 3);
    prefixes_found f = bring(w, w->b + 280, 60);
    assert_int_equal(f.len, 0); /* the second was dropped */
    kk_session_free(f.session);
}

/* Without memory a request fails, or finds place by dropping what is kept; nothing is lost. */
static void test_no_memory(void **state) {
    world *w = *state;
    prefixes_found f = bring(w, w->a, 300);
    prefixes_keep(w->p, &f, 300, 0);
    for (int64_t n = 1; n < 40; n++) {
        kk_err err;
        kk_fault_after(n, false);
        const kk_status st = prefixes_take(w->p, w->b, 260, &f, &err);
        kk_fault_after(0, false);
        assert_true(st == KK_OK || st == KK_ENOMEM);
        assert_true((st == KK_OK) == (f.session != NULL));
        kk_session_free(f.session);
    }
    f = bring(w, w->b, 260);
    kk_session_free(f.session);
}

/* A fork waits for whoever has the engine, and who counts conversations does not wait with it. */
typedef struct {
    world *w;
    kk_session *session;
    atomic_int counted; /* -1: not yet */
    atomic_bool forks;
} observer;

static void *fork_one(void *arg) {
    observer *o = arg;
    prefixes_found f;
    atomic_store(&o->forks, true);
    assert_ok(prefixes_take(o->w->p, o->w->a, LEN - 10, &f, why));
    o->session = f.session;
    return NULL;
}

static void *count_all(void *arg) {
    observer *o = arg;
    atomic_store(&o->counted, prefixes_count(o->w->p));
    return NULL;
}

static void test_count_beside_a_fork(void **state) {
    world *w = *state;
    observer o = {.w = w, .counted = -1};
    pthread_t forks, counts;
    prefixes_found f = bring(w, w->a, LEN);
    prefixes_keep(w->p, &f, LEN, 0);
    kk_engine_lock(w->e);
    assert_int_equal(pthread_create(&forks, NULL, fork_one, &o), 0);
    while (!atomic_load(&o.forks)) usleep(1000);
    usleep(200000); /* it waits for the engine now */
    assert_int_equal(pthread_create(&counts, NULL, count_all, &o), 0);
    for (int i = 0; atomic_load(&o.counted) < 0 && i < 10000; i++) usleep(1000);
    const int counted = atomic_load(&o.counted);
    kk_engine_unlock(w->e);
    pthread_join(forks, NULL);
    pthread_join(counts, NULL);
    kk_session_free(o.session);
    assert_int_equal(counted, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_conversation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_conversation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_in_common, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stand_in, setup, teardown),
        cmocka_unit_test_setup_teardown(test_oldest_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_count_beside_a_fork, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
