/* arrival_test.c - a request that arrives while a long prompt is being read is let in between two
 * chunks of it, although it takes the engine's lock many times before its first token. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kakeya.h"
#include "support/ok.h"

enum { LONG = 2048 };

typedef struct {
    kk_engine *engine;
    atomic_llong read; /* tokens of the long prompt that were evaluated */
    kk_status st;
} reader;

static void ids_of(int32_t *ids, int n, unsigned seed) {
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((seed = seed * 1103515245u + 12345u) >> 20) % 1000;
}

static bool on_progress(void *user, int64_t done, int64_t total) {
    (void)total;
    atomic_store(&((reader *)user)->read, done);
    return true;
}

static void *read_long(void *arg) {
    reader *r = arg;
    const kk_session_opts how = {.ctx = LONG + 8};
    int32_t ids[LONG];
    kk_session *s = NULL;
    ids_of(ids, LONG, 1);
    r->st = kk_session_new(&s, r->engine, &how, NULL);
    if (r->st == KK_OK) r->st = kk_session_append(s, ids, LONG, on_progress, r, NULL);
    kk_session_free(s);
    return NULL;
}

/* Each takes the lock several times, as a request does before its first token. */
static void open_and_close(kk_engine *e) {
    const kk_session_opts how = {.ctx = 64};
    kk_session *s;
    assert_ok(kk_session_new(&s, e, &how, why));
    kk_session_free(s);
}

/* Were every take of the lock to wait for a chunk, the prompt would be read long before all of
 * them had their turn: it has 30 chunks left, and they take the lock 120 times or more. */
static void test_arriving_requests_are_let_in(void **state) {
    const kk_engine_opts opts = {.model = KK_MODELS "/tiny/verifier", .threads = 1, .max_rows = 64};
    reader r = {.engine = NULL};
    pthread_t thread;
    (void)state;
    assert_ok(kk_engine_open(&r.engine, &opts, why));
    assert_int_equal(pthread_create(&thread, NULL, read_long, &r), 0);
    while (atomic_load(&r.read) < 128) sched_yield();
    for (int i = 0; i < 60; i++) open_and_close(r.engine);
    const long long read = atomic_load(&r.read);
    pthread_join(thread, NULL);
    assert_int_equal(r.st, KK_OK);
    kk_engine_close(r.engine);
    assert_in_range(read, 128, LONG - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arriving_requests_are_let_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
