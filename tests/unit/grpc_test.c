/* grpc_test.c - RuntimeService in this process, on sessions whose state the test can reach: what is
 * broken there comes out as the code that clients know, and clients that stream, cancel, close and
 * list at the same time disturb nobody.  ctest: threads */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/grpc/grpc_front.h"
#include "server/listen.h"
#include "server/metrics.h"
#include "server/sessions_table.h"
#include "support/grpc_client.h"
#include "support/tiny.h"

enum { LEN = 100, NEW = 24, CLIENTS = 4, TURNS = 2, MOST = 6 };
enum {
    OK = 0,
    CANCELLED = 1,
    INVALID = 3,
    NOT_FOUND = 5,
    EXHAUSTED = 8,
    PRECONDITION = 9,
    UNAVAILABLE = 14
};

typedef struct {
    kk_engine *e;
    sessions *t;
    const kk_grpc_api *api;
    kk_grpc *grpc;
    grpc_client *c;
    int port;
    int32_t a[LEN];
    atomic_bool closed; /* sessions cannot be used */
    metrics counted;
    atomic_int generated; /* tokens of calls that ended well */
} world;

static sessions *ready(void *user, fault *f) {
    world *w = user;
    if (!atomic_load(&w->closed)) return w->t;
    fault_set(f, 503, NULL, "Loading model");
    return NULL;
}

static bool accepts(void *user, const char *authorization) {
    (void)user;
    return !authorization;
}

static void ended(void *user, const kk_grpc_ended *call) {
    world *w = user;
    metrics_grpc(&w->counted, call->call, call->code);
    if (call->generates && call->code == OK)
        atomic_fetch_add(&w->generated, (int)call->generated.generated);
    if (call->first_s > call->whole_s) atomic_fetch_add(&w->generated, 1000000);
}

static kk_grpc_opts options(world *w) {
    kk_grpc_service service = grpc_front_table();
    service.server = w;
    service.ready = ready;
    service.accepts = accepts;
    service.ended = ended;
    return (kk_grpc_opts){.service = service,
                          .connections = MOST,
                          .parallel = CLIENTS,
                          .queue = 8,
                          .max_message = 1 << 20,
                          .stream_buffer = 1 << 20,
                          .request_s = 60,
                          .idle_s = 60};
}

static int listening(int *port) {
    int fd;
    assert_ok(listen_on("127.0.0.1", 0, &fd, why));
    *port = listen_port(fd);
    return fd;
}

static int setup(void **state) {
    world *w = *state = calloc(1, sizeof *w);
    const kk_grpc_build build = KK_GRPC_BUILD;
    w->e = tiny_engine("tiny:f32", 1, 64);
    sessions_opts opts = {.session = {.ctx = 1024}, .most = 64};
    kk_engine_info(w->e, &opts.info);
    assert_ok(sessions_open(&w->t, w->e, &opts, why));
    tiny_prompt(w->a, LEN, 1);
    metrics_open(&w->counted);
    w->api = kk_grpc_module(&build);
    assert_non_null(w->api);
    kk_grpc_opts grpc = options(w);
    grpc.listening = listening(&w->port);
    assert_ok(w->api->start(&w->grpc, &grpc, why));
    w->c = grpc_client_open(w->port);
    return 0;
}

static int teardown(void **state) {
    world *w = *state;
    grpc_client_close(w->c);
    w->api->stop(w->grpc);
    sessions_close(w->t);
    kk_engine_close(w->e);
    metrics_close(&w->counted);
    free(w);
    return 0;
}

static void start_session(world *w, grpc_client *c, char id[SESSIONS_ID]) {
    assert_int_equal(grpc_client_create(c, id, SESSIONS_ID), OK);
    assert_int_equal(grpc_client_append(c, id, w->a, LEN), OK);
}

/* The entry of an id, until it is released: what the test does to it is seen by the next call. */
static sessions_entry *acquire(world *w, const char *id) {
    fault f;
    sessions_entry *e = sessions_acquire(w->t, id, &f);
    assert_non_null(e);
    return e;
}

/* ---- invariants --------------------------------------------------------------------------- */

static void expect_violation(world *w, const char *id, int inv) {
    grpc_client_stream s = {.max_tokens = NEW};
    uint64_t length, violations[3];
    assert_int_equal(grpc_client_generate(w->c, id, &s), PRECONDITION);
    assert_int_equal(s.n + s.done, 0);
    assert_true(s.message[0] != '\0');
    assert_int_equal(grpc_client_append(w->c, id, w->a, 1), PRECONDITION); /* it stays so */
    assert_int_equal(grpc_client_info(w->c, id, &length, violations), OK);
    for (int i = 0; i < 3; i++) assert_int_equal(violations[i], i == inv - 1);
    assert_int_equal(grpc_client_remove(w->c, id), OK);
    assert_int_equal(grpc_client_remove(w->c, id), NOT_FOUND);
}

static void test_violations(void **state) {
    world *w = *state;
    char id[SESSIONS_ID], other[SESSIONS_ID];
    start_session(w, w->c, id);
    sessions_entry *a = acquire(w, id);
    a->session->tokens[70] ^= 1;
    sessions_release(w->t, a);
    expect_violation(w, id, 1);

    start_session(w, w->c, id);
    start_session(w, w->c, other);
    a = acquire(w, id);
    sessions_entry *b = acquire(w, other);
    kk_session *s = a->session;
    a->session = b->session;
    b->session = s;
    sessions_release(w->t, a);
    sessions_release(w->t, b);
    expect_violation(w, id, 2);
    expect_violation(w, other, 2);

    start_session(w, w->c, id);
    a = acquire(w, id);
    a->how.session.kv_format = KK_KV_Q4; /* its rows are four times as large */
    sessions_release(w->t, a);
    for (int i = 0; i < 3; i++) (void)grpc_client_append(w->c, id, w->a, LEN);
    expect_violation(w, id, 3);
}

/* ---- a server's states -------------------------------------------------------------------- */

static void test_states(void **state) {
    world *w = *state;
    char id[SESSIONS_ID];
    size_t n;
    kk_err err;
    kk_grpc *second = NULL;
    int port;
    assert_int_equal(grpc_client_serving(w->c), 0);
    w->api->serving(w->grpc, true);
    assert_int_equal(grpc_client_serving(w->c), 1);
    atomic_store(&w->closed, true);
    assert_int_equal(grpc_client_create(w->c, id, sizeof id), UNAVAILABLE);
    atomic_store(&w->closed, false);
    assert_int_equal(grpc_client_list(w->c, &n), OK);
    assert_int_equal(n, 0);
    /* What cannot start says so, and leaves nothing. */
    kk_grpc_opts opts = options(w);
    opts.listening = listening(&port);
    opts.tls_cert = opts.tls_key = "/nowhere";
    assert_int_equal(w->api->start(&second, &opts, &err), KK_EIO);
    assert_null(second);
    assert_int_equal(close(opts.listening), -1); /* it was, already */
    assert_non_null(strstr(err.msg, "/nowhere"));
    kk_grpc_build build = KK_GRPC_BUILD;
    build.info++;
    assert_null(kk_grpc_module(&build));
}

/* ---- connections -------------------------------------------------------------------------- */

static int dial(const world *w) {
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)w->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval most = {.tv_sec = 60};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* A server speaks first: whether it does so here. */
static bool is_served(int fd) {
    char first;
    return recv(fd, &first, 1, 0) == 1;
}

/* A connection that is served, once it was noticed that others ended. */
static int dial_served(const world *w) {
    for (int i = 0; i < 6000; i++) {
        const int fd = dial(w);
        if (is_served(fd)) return fd;
        close(fd);
        usleep(10000);
    }
    fail_msg("there is no place for a connection");
    return -1;
}

/* So many at a time, whatever they say; one that ends makes place. */
static void test_connections(void **state) {
    world *w = *state;
    int fd[MOST];
    size_t n;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < MOST; i++) fd[i] = dial_served(w);
        for (int i = 0; i < 3; i++) {
            const int more = dial(w);
            assert_false(is_served(more));
            close(more);
        }
        assert_int_equal(grpc_client_list(w->c, &n), UNAVAILABLE);
        close(fd[turn]);
        fd[turn] = dial_served(w);
        for (int i = 0; i < MOST; i++) close(fd[i]);
        int code = UNAVAILABLE;
        for (int i = 0; code == UNAVAILABLE && i < 6000; i++) {
            grpc_client *fresh = grpc_client_open(w->port);
            code = grpc_client_list(fresh, &n);
            grpc_client_close(fresh);
            if (code == UNAVAILABLE) usleep(10000);
        }
        assert_int_equal(code, OK);
    }
}

/* ---- threads ------------------------------------------------------------------------------ */

typedef struct {
    world *w;
    pthread_t thread;
    int index;
    uint64_t logits_hash[TURNS];
    int wrong;
} client;

static void *visit(void *arg) {
    client *me = arg;
    world *w = me->w;
    grpc_client *c = grpc_client_open(w->port);
    grpc_client_stream s = {.max_tokens = NEW};
    for (int turn = 0; turn < TURNS; turn++) {
        char id[SESSIONS_ID], forked[SESSIONS_ID];
        size_t n;
        me->wrong += grpc_client_create(c, id, sizeof id) != OK;
        me->wrong += grpc_client_append(c, id, w->a, LEN) != OK;
        me->wrong += grpc_client_fork(c, id, forked, sizeof forked) != OK;
        s.max_tokens = 800;
        s.cancel_after = 3;
        me->wrong += grpc_client_generate(c, id, &s) != CANCELLED;
        s.max_tokens = NEW;
        s.cancel_after = 0;
        me->wrong += grpc_client_generate(c, forked, &s) != OK || s.n != NEW || s.done != 1;
        me->logits_hash[turn] = s.logits_hash;
        me->wrong += grpc_client_list(c, &n) != OK || n < 1;
        me->wrong += grpc_client_remove(c, id) != OK; /* it may still be stopping */
        me->wrong += grpc_client_remove(c, forked) != OK;
    }
    grpc_client_close(c);
    return NULL;
}

static void test_clients(void **state) {
    world *w = *state;
    client all[CLIENTS];
    size_t left;
    for (int i = 0; i < CLIENTS; i++) {
        all[i] = (client){.w = w, .index = i};
        assert_int_equal(pthread_create(&all[i].thread, NULL, visit, &all[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(all[i].thread, NULL);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(all[i].wrong, 0);
        for (int turn = 0; turn < TURNS; turn++)
            assert_true(all[i].logits_hash[turn] == all[0].logits_hash[0]);
    }
    assert_int_equal(grpc_client_list(w->c, &left), OK);
    assert_int_equal(left, 0);
}

static void expect_counted(world *w, const char *call, const char *code, int n) {
    const metrics_now now = {0};
    char line[120];
    textbuf text = {0};
    metrics_text(&w->counted, &now, &text);
    snprintf(line, sizeof line, "kakeya_grpc_calls_total{call=\"%s\",code=\"%s\"} %d\n", call, code,
             n);
    if (!strstr(text.bytes, line)) fail_msg("not in the metrics: %s", line);
    text_free(&text);
}

/* Every call is counted once, by what its client was told. */
static void test_counted(void **state) {
    world *w = *state;
    client one = {.w = w};
    visit(&one);
    assert_int_equal(one.wrong, 0);
    /* A call is counted before its end is sent, so all are by now. */
    expect_counted(w, "CreateSession", "OK", TURNS);
    expect_counted(w, "AppendTokens", "OK", TURNS);
    expect_counted(w, "ForkSession", "OK", TURNS);
    expect_counted(w, "CloseSession", "OK", 2 * TURNS);
    expect_counted(w, "Generate", "OK", TURNS);
    expect_counted(w, "GetHistory", "OK", 0);
    assert_int_equal(atomic_load(&w->generated), TURNS * NEW);
    assert_int_equal(grpc_client_remove(w->c, "sess-none"), NOT_FOUND);
    expect_counted(w, "CloseSession", "NOT_FOUND", 1);
}

/* A stream that runs when the server drains has its time; then it is cancelled. */
static void *stream_on(void *arg) {
    client *me = arg;
    grpc_client *c = grpc_client_open(me->w->port);
    grpc_client_stream s = {.max_tokens = me->index};
    char id[SESSIONS_ID];
    start_session(me->w, c, id);
    me->wrong = grpc_client_generate(c, id, &s);
    grpc_client_close(c);
    return NULL;
}

static void test_drain(void **state) {
    world *w = *state;
    client one = {.w = w, .index = 200};
    sessions_totals count = {0};
    assert_int_equal(pthread_create(&one.thread, NULL, stream_on, &one), 0);
    for (bool busy = false; !busy;) {
        sessions_info *list = NULL;
        size_t n = 0;
        fault f;
        assert_true(sessions_list(w->t, &list, &n, &f));
        busy = n > 0 && list[0].busy && list[0].history > LEN - 1;
        free(list);
    }
    w->api->drain(w->grpc, 30);
    pthread_join(one.thread, NULL);
    assert_int_equal(one.wrong, OK);
    sessions_count(w->t, &count);
    assert_int_equal(count.count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_violations, setup, teardown),
        cmocka_unit_test_setup_teardown(test_states, setup, teardown),
        cmocka_unit_test_setup_teardown(test_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(test_clients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drain, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
