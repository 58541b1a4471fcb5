/* serve_threads_test.c - a server in this process, with clients that stream, wait, leave and ask
 * for metrics at the same time.  ctest: threads */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/serve_entry.h"
#include "server/server.h"

enum { CLIENTS = 4, TURNS = 3 };

typedef struct {
    kk_serve_opts opts;
    pthread_t thread;
    atomic_bool stop, ready;
    atomic_int port;
    kk_status status;
    kk_err err;
} world;

static void say(void *user, const char *line) {
    world *w = user;
    const char *colon = strrchr(line, ':');
    if (strncmp(line, "listening", 9) == 0) atomic_store(&w->port, atoi(colon + 1));
    if (strncmp(line, "ready", 5) == 0) atomic_store(&w->ready, true);
}

static bool stop(void *user) { return atomic_load(&((world *)user)->stop); }

static void *run(void *arg) {
    world *w = arg;
    w->status = server_run(&w->opts, &w->err);
    return NULL;
}

static void nap(void) {
    const struct timespec t = {.tv_nsec = 2000000};
    nanosleep(&t, NULL);
}

static int setup(void **state) {
    world *w = *state = calloc(1, sizeof *w);
    w->opts = (kk_serve_opts){.engine = {.model = KK_MODELS "/tiny/verifier",
                                         .drafter = KK_MODELS "/tiny/drafter",
                                         .threads = 1,
                                         .no_pin = true},
                              .session = {.ctx = 1024},
                              .name = "tiny",
                              .host = "127.0.0.1",
                              .parallel = 3,
                              .queue = 2,
                              .connections = 16,
                              .kept = 2,
                              .max_body = 4096,
                              .stream_buffer = 1 << 20,
                              .max_messages = 16,
                              .max_choices = 3,
                              .request_s = 100,
                              .idle_s = 20,
                              .ping_s = 1,
                              .drain_s = 60,
                              .stop = stop,
                              .say = say,
                              .user = w};
    return pthread_create(&w->thread, NULL, run, w);
}

static int teardown(void **state) {
    world *w = *state;
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    if (w->status != KK_OK) print_error("%s\n", w->err.msg);
    const int failed = w->status != KK_OK;
    free(w);
    return failed;
}

static int dial(const world *w) {
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atomic_load(&w->port)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (const struct sockaddr *)&a, sizeof a) != 0) abort();
    return fd;
}

static int request_of(const world *w, const char *method, const char *path, const char *body) {
    char bytes[1024];
    const int fd = dial(w);
    const int n = snprintf(bytes, sizeof bytes,
                           "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           "Content-Length: %zu\r\n\r\n%s",
                           method, path, strlen(body), body);
    if (send(fd, bytes, (size_t)n, MSG_NOSIGNAL) != n) abort();
    return fd;
}

/* All that comes until the other side closes; returns the status. */
static int read_all(int fd, char *out, size_t cap) {
    size_t len = 0;
    for (ssize_t n; len + 1 < cap && (n = recv(fd, out + len, cap - 1 - len, 0)) > 0;)
        len += (size_t)n;
    out[len] = '\0';
    close(fd);
    return len > 12 ? atoi(out + 9) : 0;
}

static int ask(const world *w, const char *method, const char *path, const char *body, char *out,
               size_t cap) {
    return read_all(request_of(w, method, path, body), out, cap);
}

static void wait_until_ready(world *w) {
    while (!atomic_load(&w->ready)) nap();
}

typedef struct {
    world *w;
    int number;
    int good, busy; /* answers, and refusals for want of place */
} client;

/* Streams, whole answers and departures, by turns. */
static void *talk(void *arg) {
    static const char *const how[] = {"true", "false"};
    client *c = arg;
    char *out = malloc(1 << 20), body[256];
    for (int i = 0; i < TURNS; i++) {
        snprintf(body, sizeof body,
                 "{\"prompt\": \"def f%d(\", \"max_tokens\": 12, \"stream\": %s, \"seed\": 1,"
                 " \"ignore_eos\": true, \"n\": %d}",
                 c->number, how[i % 2], 1 + i % 3);
        const int fd = request_of(c->w, "POST", "/v1/completions", body);
        if (i == 2 && c->number % 2) {
            close(fd); /* it leaves */
            continue;
        }
        const int status = read_all(fd, out, 1 << 20);
        if (status == 200 && (i % 2 == 0 ? strstr(out, "[DONE]") : strstr(out, "\"usage\"")))
            c->good++;
        else if (status == 429)
            c->busy++;
        else
            print_error("%s\n", out);
    }
    free(out);
    return NULL;
}

static void test_clients(void **state) {
    world *w = *state;
    pthread_t thread[CLIENTS];
    client clients[CLIENTS];
    char *out = malloc(1 << 20);
    wait_until_ready(w);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.w = w, .number = i};
        assert_int_equal(pthread_create(&thread[i], NULL, talk, &clients[i]), 0);
    }
    for (int i = 0; i < 5; i++) assert_int_equal(ask(w, "GET", "/metrics", "", out, 1 << 20), 200);
    int good = 0, busy = 0;
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(thread[i], NULL);
        good += clients[i].good;
        busy += clients[i].busy;
    }
    assert_int_equal(good + busy, CLIENTS * TURNS - CLIENTS / 2);
    assert_true(good >= CLIENTS);
    assert_int_equal(ask(w, "GET", "/health", "", out, 1 << 20), 200);
    free(out);
}

/* A server that is asked to end finishes what runs. */
static void test_drain(void **state) {
    world *w = *state;
    char *out = malloc(1 << 20);
    wait_until_ready(w);
    const int fd = request_of(w, "POST", "/v1/completions",
                              "{\"prompt\": \"def f(\", \"max_tokens\": 100, \"stream\": true,"
                              " \"ignore_eos\": true}");
    char first[16];
    assert_true(recv(fd, first, sizeof first, 0) > 0);
    atomic_store(&w->stop, true);
    read_all(fd, out, 1 << 20);
    assert_non_null(strstr(out, "[DONE]"));
    free(out);
}

/* Without a model it ends at once, though it listens already. */
static void test_no_model(void **state) {
    (void)state;
    kk_err err;
    world w = {.opts = {.engine = {.model = "/nowhere"},
                        .host = "127.0.0.1",
                        .parallel = 1,
                        .connections = 2,
                        .kept = 1,
                        .max_body = 100,
                        .idle_s = 5,
                        .say = say,
                        .user = &w}};
    assert_int_equal(server_run(&w.opts, &err), KK_EIO);
    assert_true(atomic_load(&w.port) > 0);
}

static void test_other_builds(void **state) {
    (void)state;
    const kk_serve_build own = KK_SERVE_BUILD;
    assert_non_null(kk_serve_module(&own));
    for (int i = 0; i < 4; i++) {
        kk_serve_build other = KK_SERVE_BUILD;
        size_t *const bytes[] = {&other.api, &other.opts, &other.err};
        if (i < 3)
            *bytes[i] += 8;
        else
            other.version = "0.0.0";
        assert_null(kk_serve_module(&other));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_clients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drain, setup, teardown),
        cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_other_builds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
