/* sessions_test.c - sessions by id: what they are made of does not depend on how it was appended,
 * and each invariant is tripped by a fault in the state that it is about.  ctest: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "server/sessions_table.h"
#include "support/tiny.h"

enum { LEN = 300, NEW = 24, MOST = 12 };

typedef struct {
    kk_engine *e;
    sessions *t;
    int32_t a[LEN];
    int violated;
} world;

static void on_violation(void *user, const char *id, int inv, const char *why) {
    (void)id;
    (void)why;
    ((world *)user)->violated = inv;
}

static int setup(void **state) {
    world *w = *state = calloc(1, sizeof *w);
    w->e = tiny_engine("tiny:f32", 1, 64);
    sessions_opts opts = {
        .session = {.ctx = 1024}, .most = MOST, .violated = on_violation, .user = w};
    kk_engine_info(w->e, &opts.info);
    assert_ok(sessions_open(&w->t, w->e, &opts, why));
    tiny_prompt(w->a, LEN, 1);
    return 0;
}

static int teardown(void **state) {
    world *w = *state;
    sessions_close(w->t);
    kk_engine_close(w->e);
    free(w);
    return 0;
}

#define good(call)                                                                                 \
    do {                                                                                           \
        fault f_ = {0};                                                                            \
        fault *f = &f_;                                                                            \
        if (!(call)) fail_msg("%d %s", f_.status, f_.message);                                     \
    } while (0)

#define refused(status_, grpc_, call)                                                              \
    do {                                                                                           \
        fault f_ = {0};                                                                            \
        fault *f = &f_;                                                                            \
        assert_false(call);                                                                        \
        assert_int_equal(f_.status, status_);                                                      \
        assert_int_equal(fault_grpc(&f_), grpc_);                                                  \
        assert_true(f_.message[0] != '\0');                                                        \
    } while (0)

static void create(world *w, const kk_session_opts *o, char id[SESSIONS_ID]) {
    sessions_how how;
    sessions_standard(w->t, &how);
    if (o) how.session = *o;
    good(sessions_create(w->t, &how, id, f));
}

/* Appends a[0, n) so many at a time. */
static void append(world *w, const char *id, int32_t n, int32_t step) {
    sessions_appended got;
    for (int32_t i = 0; i < n; i += step) {
        const int32_t now = n - i < step ? n - i : step;
        good(sessions_append(w->t, id, w->a + i, (size_t)now, NULL, &got, f));
        assert_int_equal(got.history, i + now);
        assert_int_equal(got.evaluated, now);
        assert_int_equal(got.cached, i);
    }
}

typedef struct {
    int32_t ids[NEW];
    int n, stop_after;
} heard;

static bool hear(void *user, const sessions_piece *p) {
    heard *h = user;
    if (p->id >= 0 && h->n < NEW) h->ids[h->n++] = p->id;
    return h->stop_after == 0 || h->n < h->stop_after;
}

static sessions_generated generate(world *w, const char *id, heard *h) {
    sessions_generated out;
    const kk_sampling greedy = {0};
    const sessions_generation how = {
        .max_tokens = NEW, .sampling = &greedy, .ignore_eos = true, .on_piece = hear, .user = h};
    good(sessions_generate(w->t, id, &how, &out, f));
    return out;
}

/* ---- the history is all that matters ------------------------------------------------------ */

static void test_however_appended(void **state) {
    world *w = *state;
    static const int32_t steps[] = {LEN, 1, 7, 65};
    const kk_session_opts policies[] = {
        {.ctx = 1024},
        {.ctx = 1024, .kv_full = KK_KEEP_WINDOW, .window = 32, .chunk = 16},
        {.ctx = 1024, .kv_format = KK_KV_Q8, .spec = KK_SPEC_NGRAM}};
    for (size_t k = 0; k < 3; k++) {
        heard first = {0};
        uint64_t hash = 0;
        for (size_t i = 0; i < 4; i++) {
            char id[SESSIONS_ID];
            heard h = {0};
            create(w, &policies[k], id);
            append(w, id, LEN, steps[i]); /* more than four windows of the model */
            const sessions_generated g = generate(w, id, &h);
            assert_int_equal(g.generated, NEW);
            assert_int_equal(g.history, LEN + NEW);
            assert_int_equal(g.stop, SESSIONS_MAX_TOKENS);
            if (i == 0) {
                first = h;
                hash = g.logits_hash;
            }
            assert_memory_equal(&first, &h, sizeof h);
            assert_true(hash == g.logits_hash);
            int64_t len;
            good(sessions_delete(w->t, id, &len, f));
            assert_int_equal(len, LEN + NEW);
        }
    }
}

static void test_own_caches(void **state) {
    world *w = *state;
    char x[SESSIONS_ID], y[SESSIONS_ID];
    heard alone = {0}, between = {0};
    create(w, NULL, x);
    append(w, x, 100, 100);
    generate(w, x, &alone);
    create(w, NULL, y);
    append(w, y, 100, 50);
    char other[SESSIONS_ID];
    create(w, NULL, other);
    append(w, other, 40, 9); /* another's prompt in between changes nothing */
    generate(w, y, &between);
    assert_memory_equal(&alone, &between, sizeof alone);
}

static void test_sleep(void **state) {
    world *w = *state;
    char x[SESSIONS_ID], y[SESSIONS_ID];
    heard awake = {0}, slept = {0};
    fault held;
    kk_err err;
    sessions_info info;
    create(w, NULL, x);
    create(w, NULL, y);
    append(w, x, 200, 200);
    append(w, y, 200, 200);
    sessions_entry *e = sessions_acquire(w->t, y, &held);
    assert_true(sessions_sleep(w->t, e, &err));
    sessions_release(w->t, e);
    good(sessions_describe(w->t, y, &info, f));
    assert_false(info.resident);
    assert_int_equal(info.kv_bytes, 0);
    assert_int_equal(info.history, 200);
    int32_t *tokens;
    size_t n;
    good(sessions_tokens(w->t, y, &tokens, &n, f));
    assert_int_equal(n, 200);
    assert_memory_equal(tokens, w->a, 200 * sizeof *tokens);
    free(tokens);
    generate(w, x, &awake);
    const sessions_generated g = generate(w, y, &slept);
    assert_int_equal(g.cached, 0);
    assert_int_equal(g.evaluated, 200); /* and it is said */
    assert_memory_equal(&awake, &slept, sizeof awake);
}

static void test_fork(void **state) {
    world *w = *state;
    char id[SESSIONS_ID], by_turn[SESSIONS_ID], by_place[SESSIONS_ID];
    sessions_appended got;
    heard first = {0}, again = {0};
    create(w, NULL, id);
    append(w, id, 150, 150);
    generate(w, id, &first);
    append(w, id, 0, 1);
    good(sessions_append(w->t, id, w->a + 150, 50, NULL, &got, f));
    good(sessions_fork(w->t, id, (sessions_place){-1, 1}, NULL, by_turn, &got, f));
    assert_int_equal(got.history, 150 + NEW);
    good(sessions_fork(w->t, id, (sessions_place){150, -1}, NULL, by_place, &got, f));
    assert_int_equal(got.history, 150);
    generate(w, by_place, &again);
    assert_memory_equal(&first, &again, sizeof first);
    sessions_info info;
    good(sessions_describe(w->t, by_turn, &info, f));
    assert_int_equal(info.turns, 1);
    refused(400, 3, sessions_fork(w->t, id, (sessions_place){-1, 2}, NULL, by_turn, &got, f));
    refused(400, 3, sessions_fork(w->t, id, (sessions_place){900, -1}, NULL, by_turn, &got, f));
}

static void test_cancel(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    heard h = {.stop_after = 5};
    create(w, NULL, id);
    append(w, id, 30, 30);
    const sessions_generated g = generate(w, id, &h);
    assert_int_equal(g.stop, SESSIONS_CANCELLED);
    assert_int_equal(g.generated, 5); /* at once: not the rest of a round */
    assert_int_equal(g.history, 35);
}

static bool never(void *user) {
    (void)user;
    return false;
}

/* A fork that has to evaluate much can be stopped, and leaves nothing. */
static void test_fork_is_watched(void **state) {
    world *w = *state;
    const sessions_watch watch = {.goes_on = never};
    char id[SESSIONS_ID], fork[SESSIONS_ID];
    sessions_appended got;
    sessions_totals all;
    heard first = {0}, again = {0};
    create(w, NULL, id);
    append(w, id, LEN, LEN);
    refused(499, 1, sessions_fork(w->t, id, (sessions_place){100, -1}, &watch, fork, &got, f));
    assert_true(sessions_evict_oldest(w->t)); /* the original has to be evaluated itself, now */
    refused(499, 1, sessions_fork(w->t, id, (sessions_place){-1, -1}, &watch, fork, &got, f));
    sessions_count(w->t, &all);
    assert_int_equal(all.count, 1);
    good(sessions_fork(w->t, id, (sessions_place){100, -1}, NULL, fork, &got, f));
    assert_int_equal(got.history, 100);
    assert_int_equal(got.evaluated, LEN + 100);
    generate(w, fork, &first);
    create(w, NULL, id);
    append(w, id, 100, 7);
    generate(w, id, &again);
    assert_memory_equal(&first, &again, sizeof first);
}

static void test_refusals(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    sessions_appended got;
    sessions_generated made;
    sessions_info info;
    const sessions_generation how = {.max_tokens = 1};
    const int32_t bad = TINY_VOCAB;
    create(w, NULL, id);
    assert_int_equal(strlen(id), 37);
    refused(404, 5, sessions_append(w->t, "sess-0", w->a, 1, NULL, &got, f));
    refused(404, 5, sessions_describe(w->t, "", &info, f));
    refused(400, 3, sessions_append(w->t, id, &bad, 1, NULL, &got, f));
    refused(400, 3, sessions_generate(w->t, id, &how, &made, f));
    append(w, id, LEN, LEN);
    append(w, id, 0, 1);
    int32_t *many = calloc(1024, sizeof *many);
    refused(400, 3, sessions_append(w->t, id, many, 1024 - LEN + 1, NULL, &got, f));
    const sessions_watch watch = {.goes_on = never};
    refused(499, 1, sessions_append(w->t, id, many, 100, &watch, &got, f));
    good(sessions_describe(w->t, id, &info, f));
    assert_int_equal(info.history, LEN); /* a failed append leaves nothing */
    free(many);
    fault held;
    sessions_entry *e = sessions_acquire(w->t, id, &held);
    refused(409, 10, sessions_append(w->t, id, w->a, 1, NULL, &got, f));
    sessions_release(w->t, e);
    good(sessions_delete(w->t, id, NULL, f));
    refused(404, 5, sessions_delete(w->t, id, NULL, f));
    for (int i = 0; i < MOST; i++) create(w, NULL, id);
    sessions_how standard;
    sessions_standard(w->t, &standard);
    refused(429, 8, sessions_create(w->t, &standard, id, f));
    sessions_info *list;
    size_t n;
    good(sessions_list(w->t, &list, &n, f));
    assert_int_equal(n, MOST);
    for (size_t i = 1; i < n; i++) assert_string_not_equal(list[i].id, list[i - 1].id);
    free(list);
}

/* ---- faults that trip the invariants ------------------------------------------------------ */

/* The entry of an id, from behind. */
static sessions_entry *entry_of(world *w, const char *id) {
    fault f;
    sessions_entry *e = sessions_acquire(w->t, id, &f);
    assert_non_null(e);
    sessions_release(w->t, e);
    return e;
}

static void expect_violation(world *w, const char *id, int inv) {
    sessions_appended got;
    sessions_info info;
    sessions_totals sum;
    refused(500, 9, sessions_append(w->t, id, w->a, 1, NULL, &got, f));
    assert_int_equal(w->violated, inv);
    good(sessions_describe(w->t, id, &info, f));
    for (int i = 0; i < SESSIONS_INVARIANTS; i++)
        assert_int_equal(info.violations[i], i == inv - 1);
    sessions_count(w->t, &sum);
    assert_int_equal(sum.violations[inv - 1], 1);
    refused(500, 9, sessions_append(w->t, id, w->a, 1, NULL, &got, f)); /* it stays so */
    good(sessions_delete(w->t, id, NULL, f));
}

static void test_other_tokens(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    create(w, NULL, id);
    append(w, id, 100, 100);
    entry_of(w, id)->session->tokens[70] ^= 1;
    expect_violation(w, id, 1);
}

static void test_rows_missing(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    create(w, NULL, id);
    append(w, id, 100, 100);
    assert_true(kk_cache_truncate(entry_of(w, id)->session->cache, 90));
    expect_violation(w, id, 1);
}

static void test_token_lost(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    create(w, NULL, id);
    append(w, id, 100, 100);
    assert_ok(kk_session_rewind(entry_of(w, id)->session, 99, NULL, why));
    expect_violation(w, id, 1);
}

/* Two sessions of one history whose caches were exchanged: the tokens agree, the ids do not. */
static void test_exchanged_caches(void **state) {
    world *w = *state;
    char x[SESSIONS_ID], y[SESSIONS_ID];
    create(w, NULL, x);
    create(w, NULL, y);
    append(w, x, 100, 100);
    append(w, y, 100, 100);
    sessions_entry *a = entry_of(w, x), *b = entry_of(w, y);
    kk_session *s = a->session;
    a->session = b->session;
    b->session = s;
    expect_violation(w, x, 2);
}

/* A cache that went back, and a history that was made to agree. */
static void test_gone_back(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    create(w, NULL, id);
    append(w, id, 100, 100);
    sessions_entry *e = entry_of(w, id);
    assert_ok(kk_session_rewind(e->session, 90, NULL, why));
    e->history.len = 90;
    e->history.chain = history_chain(HISTORY_START, w->a, 90);
    expect_violation(w, id, 2);
}

/* Rows of twice the size that the session was promised. */
static void test_too_many_bytes(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    create(w, &(kk_session_opts){.ctx = 1024, .kv_format = KK_KV_F32}, id);
    append(w, id, LEN, LEN);
    entry_of(w, id)->how.session.kv_format = KK_KV_Q8;
    expect_violation(w, id, 3);
}

/* A sliding window that was promised, and everything kept. */
static void test_unbounded(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    create(w, NULL, id);
    sessions_appended got;
    for (int i = 0; i < 3; i++) good(sessions_append(w->t, id, w->a, LEN, NULL, &got, f));
    sessions_entry *e = entry_of(w, id);
    e->how.session.kv_full = KK_KEEP_WINDOW;
    e->how.session.window = 16;
    e->how.session.chunk = 16;
    expect_violation(w, id, 3);
}

/* ---- threads ------------------------------------------------------------------------------ */

typedef struct {
    world *w;
    const char *id;
    sessions_stop stop;
} runner;

static void *run_long(void *arg) {
    runner *r = arg;
    sessions_generated out;
    fault f;
    const sessions_generation how = {.ignore_eos = true};
    if (sessions_generate(r->w->t, r->id, &how, &out, &f)) r->stop = out.stop;
    return NULL;
}

/* A session is deleted while it generates; others are read and used meanwhile. */
static void test_delete_while_running(void **state) {
    world *w = *state;
    char id[SESSIONS_ID], other[SESSIONS_ID];
    sessions_info info = {.busy = false};
    create(w, &(kk_session_opts){.ctx = 4096}, id);
    create(w, NULL, other);
    append(w, id, 10, 10);
    runner r = {.w = w, .id = id, .stop = SESSIONS_EOS};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_long, &r), 0);
    while (!info.busy) good(sessions_describe(w->t, id, &info, f));
    append(w, other, 50, 5);
    good(sessions_delete(w->t, id, NULL, f));
    pthread_join(thread, NULL);
    assert_true(r.stop == SESSIONS_CANCELLED || r.stop == SESSIONS_CONTEXT);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_however_appended),
        TEST(test_own_caches),
        TEST(test_sleep),
        TEST(test_fork),
        TEST(test_fork_is_watched),
        TEST(test_cancel),
        TEST(test_refusals),
        TEST(test_other_tokens),
        TEST(test_rows_missing),
        TEST(test_token_lost),
        TEST(test_exchanged_caches),
        TEST(test_gone_back),
        TEST(test_too_many_bytes),
        TEST(test_unbounded),
        TEST(test_delete_while_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
