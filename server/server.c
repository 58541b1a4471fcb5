/* server.c - a server's life: it listens, loads the model, serves, and drains.
 *
 * It listens first, so that a port that is taken is said before a minute of loading, and clients
 * that come early hear 503 instead of a refused connection. */
#define _GNU_SOURCE
#include "server/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/http.h"
#include "server/route.h"

enum { READERS = 2 };

kk_status server_fail(kk_err *err, kk_status code, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return err->code = code;
}

static void on_drop(void *user, int64_t n) { metrics_dropped(user, n); }

static void run_exchange(exchange *x) { x->route->run(x, x->rest); }

/* A session that is not used says what the options come to. */
static kk_status probe_session(server *s, kk_err *err) {
    kk_session *probe;
    const kk_status st = kk_session_new(&probe, s->engine, &s->opts->session, err);
    if (st != KK_OK) return st;
    kk_session_options(probe, &s->session);
    s->session.spec = kk_session_spec(probe);
    kk_session_free(probe);
    return KK_OK;
}

static bool make_place(void *user) { return residence_make_place(user); }

static void say_line(void *user, const char *line) { server_warn(user, "%s", line); }

static void on_violation(void *user, const char *id, int inv, const char *why) {
    server_warn(user, "session %s: INV-%d does not hold: %s", id, inv, why);
}

static kk_status open_sessions(server *s, kk_err *err) {
    const sessions_opts opts = {.session = s->opts->session,
                                .sampling = s->opts->sampling,
                                .info = s->info,
                                .store = s->store,
                                .most = s->opts->sessions,
                                .make_place = make_place,
                                .violated = on_violation,
                                .user = s};
    return sessions_open(&s->sessions, s->engine, &opts, err);
}

static kk_status open_store(server *s, kk_err *err) {
    const store_opts opts = {
        .engine = s->engine, .limit = s->opts->state_bytes, .say = say_line, .user = s};
    store_counts counts;
    if (!s->store) return KK_OK;
    const kk_status st = store_open(s->store, &opts, err);
    if (st != KK_OK) return st;
    store_count(s->store, &counts);
    server_say(s, "state: %lld sessions and %lld conversations in %s", (long long)counts.sessions,
               (long long)counts.conversations, s->opts->state);
    return KK_OK;
}

static kk_status load(server *s, kk_err *err) {
    kk_fingerprints prints;
    kk_status st = s->opts->state ? store_claim(&s->store, s->opts->state, err) : KK_OK;
    if (st == KK_OK) st = kk_engine_open(&s->engine, &s->opts->engine, err);
    if (st == KK_OK) st = probe_session(s, err);
    if (st != KK_OK) return st;
    kk_engine_info(s->engine, &s->info);
    kk_engine_fingerprints(s->engine, &prints);
    snprintf(s->fingerprint, sizeof s->fingerprint, "kakeya-%s-%016llx", KK_VERSION,
             (unsigned long long)prints.model);
    s->tok = kk_engine_tokenizer(s->engine);
    if ((st = open_store(s, err)) != KK_OK) return st;
    const prefixes_opts opts = {.session = s->opts->session,
                                .window = s->info.window,
                                .most = s->opts->kept,
                                .kv_bytes = s->opts->kv_bytes,
                                .store = s->store,
                                .on_drop = on_drop,
                                .user = &s->metrics};
    st = prefixes_open(&s->prefixes, s->engine, &opts, err);
    return st == KK_OK ? open_sessions(s, err) : st;
}

static bool asked_to_stop(const server *s) { return s->opts->stop && s->opts->stop(s->opts->user); }

static void enter(const server *s, kk_serve_phase phase) {
    if (s->opts->phase) s->opts->phase(s->opts->user, phase);
}

/* Reads the key file and the certificate again.  What cannot be read is said, and what was there
 * stays: a slip in a file must neither open a server nor end it. */
static void reload(server *s, http *h) {
    const kk_serve_opts *o = s->opts;
    kk_err err;
    bool good = true;
    enter(s, KK_SERVE_RELOADING);
    if (o->key_file && keys_read(&s->keys, o->key_file, &err) != KK_OK) {
        server_warn(s, "the keys stay as they were: %s", err.msg);
        good = false;
    }
    if (o->tls_cert && http_renew(h, &err) != KK_OK) {
        server_warn(s, "the certificate stays as it was: %s", err.msg);
        good = false;
    } else if (o->tls_cert && grpc_front_renew(&s->grpc, &err) != KK_OK) {
        server_warn(s, "the certificate of gRPC stays as it was: %s", err.msg);
        good = false;
    }
    metrics_reloaded(&s->metrics, good);
    if (good)
        server_say(s, "read again:%s%s", o->key_file ? " keys" : " nothing",
                   o->tls_cert ? ", certificate" : "");
    enter(s, KK_SERVE_READY);
}

static bool asked_to_reload(const server *s) {
    return s->opts->reload && s->opts->reload(s->opts->user);
}

static void serve(server *s, http *h) {
    const struct timespec nap = {.tv_nsec = 50 * 1000 * 1000};
    for (int i = 1; !asked_to_stop(s); i++) {
        nanosleep(&nap, NULL);
        if (asked_to_reload(s)) reload(s, h);
        if (i % 20 == 0) http_sweep(h);
        residence_wait(&s->residence);
    }
}

/* Requests that run may end; what comes now is refused. */
static void drain(server *s, http *h) {
    int waiting, running;
    const double from = text_now();
    atomic_store(&s->state, SERVER_DRAINING);
    enter(s, KK_SERVE_STOPPING);
    http_stop_listening(h);
    workers_count(&s->workers, &waiting, &running);
    if (waiting + running > 0) server_say(s, "finishing %d requests", waiting + running);
    grpc_front_drain(&s->grpc, s->opts->drain_s);
    if (!workers_drain(&s->workers, s->opts->drain_s - (text_now() - from))) {
        server_warn(s, "giving up what still runs after %g seconds", s->opts->drain_s);
        atomic_store(&s->cancelled, true);
    }
    workers_stop(&s->workers);
    workers_stop(&s->readers);
    http_flush(h, 5);
}

static kk_status listen_load_serve(server *s, kk_err *err) {
    http *h = NULL;
    int port = 0;
    kk_status st = http_start(&h, s, &port, err);
    if (st != KK_OK) return st;
    const bool v6 = strchr(s->opts->host, ':') != NULL;
    server_say(s, "listening on %s://%s%s%s:%d", s->opts->tls_cert ? "https" : "http",
               v6 ? "[" : "", s->opts->host, v6 ? "]" : "", port);
    st = grpc_front_start(&s->grpc, s, err);
    if (st == KK_OK) st = load(s, err);
    if (st == KK_OK) st = residence_start(&s->residence, s, err);
    if (st == KK_OK) {
        kk_device_info device;
        kk_engine_device(s->engine, &device);
        enter(s, KK_SERVE_LOADED);
        atomic_store(&s->state, SERVER_READY);
        grpc_front_ready(&s->grpc);
        server_say(s, "ready: %s on %s, %d tokens of context, drafting: %s", s->opts->name,
                   device.device, s->session.ctx, kk_spec_name(s->session.spec));
        enter(s, KK_SERVE_READY);
        serve(s, h);
    }
    drain(s, h);
    residence_stop(&s->residence);
    grpc_front_stop(&s->grpc);
    http_stop(h);
    return st;
}

kk_status server_run(const kk_serve_opts *opts, kk_err *err) {
    server s = {.opts = opts, .created = (int64_t)time(NULL)};
    keys_init(&s.keys);
    kk_status st = opts->key_file ? keys_read(&s.keys, opts->key_file, err) : KK_OK;
    if (st != KK_OK) {
        keys_close(&s.keys);
        return st;
    }
    metrics_open(&s.metrics);
    st = pace_start(&s.pace, err);
    if (st == KK_OK) st = workers_start(&s.workers, opts->parallel, opts->queue, run_exchange, err);
    if (st == KK_OK) st = workers_start(&s.readers, READERS, opts->connections, run_exchange, err);
    if (st == KK_OK) st = listen_load_serve(&s, err);
    workers_close(&s.readers);
    workers_close(&s.workers);
    pace_stop(&s.pace);
    residence_end(&s);
    sessions_close(s.sessions);
    prefixes_close(s.prefixes);
    store_close(s.store);
    kk_engine_close(s.engine);
    metrics_close(&s.metrics);
    keys_close(&s.keys);
    return st;
}
