/* http.c - see http.h.
 *
 * libmicrohttpd parses HTTP and TLS, and watches the sockets.  It calls on_request several times
 * for one request: with its head, with pieces of its body, at the body's end, and once more when a
 * suspended connection was resumed. */
#define _GNU_SOURCE
#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server/exchange.h"
#include "server/head.h"
#include "server/listen.h"
#include "server/log.h"
#include "server/route.h"
#include "server/server.h"

enum {
    POOL_BYTES = 4 * HEAD_BYTES, /* libmicrohttpd's of a connection: for heads longer than those
                                  * that are taken, so that they are refused here, and for a piece
                                  * of a body */
    STREAM_BLOCK = 16 << 10,     /* bytes of a stream that are sent at a time */
    BODIES = 16,                 /* so many of the longest that is taken may be held */
    LEFT_S = 1,                  /* seconds after which a connection that was shut down is closed */
};

/* A connection, for the sweep. */
typedef struct peer {
    struct peer *next, **link;
    int fd;
    bool busy;    /* the head of a request has come, and its answer was not sent */
    head_uri uri; /* of its last request */
    double since; /* text_now() of the last change */
} peer;

/* Connections with one certificate. */
typedef struct serving {
    struct MHD_Daemon *daemon;
    char *cert, *key;
    struct serving *before; /* with the certificate before, while it has connections; or NULL */
} serving;

struct http {
    server *server;
    serving now;
    int listening;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    peer *peers;
    int n_busy;
};

static peer *peer_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void set_busy(http *h, struct MHD_Connection *c, bool busy) {
    peer *p = peer_of(c);
    pthread_mutex_lock(&h->lock);
    if (p && p->busy != busy) {
        h->n_busy += busy ? 1 : -1;
        p->busy = busy;
        p->since = text_now();
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
}

/* ---- the head of a request --------------------------------------------------------------- */

static const char *header(struct MHD_Connection *c, const char *name) {
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* Names that no site of the web has: without a dot, or of a domain that the web never has. */
static bool is_local(const char *name) {
    static const char *const ends[] = {".localhost", ".local", ".internal", ".home.arpa"};
    const size_t n = strlen(name);
    if (!strchr(name, '.')) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t m = strlen(ends[i]);
        if (n > m && strcasecmp(name + n - m, ends[i]) == 0) return true;
    }
    return false;
}

/* Whether a Host header names this machine in a way that no other site's name can resolve to it: a
 * page of evil.example whose name is made to point here would send its own name. */
static bool names_itself(const server *s, const char *host) {
    const size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    char name[256];
    struct in_addr v4;
    if (s->opts->key_file || host[0] == '[') return true; /* a key is not the browser's to send */
    if (n >= sizeof name) return false;
    memcpy(name, host, n);
    name[n] = 0;
    return is_local(name) || strcasecmp(name, s->opts->host) == 0 ||
           inet_pton(AF_INET, name, &v4) == 1;
}

/* The server's own page: its origin is the host that was asked. */
static bool is_own_origin(const server *s, const char *origin, const char *host) {
    const char *name = strstr(origin, "://");
    return host && name && strcmp(name + 3, host) == 0 && names_itself(s, host);
}

/* Pages of other sites may call only where they were allowed to: browsers send the origin. */
static bool origin_allowed(const server *s, const char *origin, const char *host) {
    const char *allowed = s->opts->cors_origin;
    if (!origin || is_own_origin(s, origin, host)) return true;
    return allowed && (strcmp(allowed, "*") == 0 || strcmp(allowed, origin) == 0);
}

/* The client's id where it is one that a log can take as it is, or one that nobody has. */
static void identify(exchange *x, const char *given) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-_.:/+=";
    const size_t n = given ? strlen(given) : 0;
    if (n > 0 && n < sizeof x->id && strspn(given, letters) == n)
        memcpy(x->id, given, n + 1);
    else
        text_random_name(x->id, sizeof x->id, "req-");
}

static bool admit_head(exchange *x, struct MHD_Connection *c, const char *url, const char *method) {
    server *s = x->server;
    const int state = atomic_load(&s->state);
    fault *f = &x->refused;
    const char *host = header(c, "Host");
    if (!origin_allowed(s, header(c, "Origin"), host))
        return fault_set(f, 403, NULL, "pages of other origins may not call this server");
    /* With a GET of a page's own origin a browser sends no Origin, also where its name was made to
     * point here. */
    if (host && !names_itself(s, host))
        return fault_set(f, 403, NULL,
                         "'%.80s' may be the name of another site: call this server by an address, "
                         "a local name or its --host, or give it keys",
                         host);
    const char *rest;
    x->route = route_find(method, url, &rest, f);
    snprintf(x->rest, sizeof x->rest, "%s", rest); /* the path does not outlive its connection */
    if (x->route && x->route->open) return true;
    if (!keys_accept(&s->keys, header(c, "Authorization"))) {
        x->route = NULL;
        return fault_set(f, 401, NULL, "the API key is missing or wrong");
    }
    if (!x->route) return false;
    if (state == SERVER_READY || x->route->early) return true;
    fault_set(f, 503, NULL,
              state == SERVER_LOADING ? "Loading model" : "the server is shutting down");
    f->retry_s = 1;
    return false;
}

static int64_t declared_length(struct MHD_Connection *c) {
    const char *length = header(c, "Content-Length");
    return length ? strtoll(length, NULL, 10) : 0;
}

/* What it returns is the request's context until on_request sets it. */
static void *on_uri(void *user, const char *uri, struct MHD_Connection *c) {
    peer *p = peer_of(c);
    (void)user;
    if (p) p->uri = head_uri_of(uri);
    return NULL;
}

static bool admit(exchange *x, struct MHD_Connection *c, const char *url, const char *method,
                  const char *version) {
    const peer *p = peer_of(c);
    if (!head_is_good(c, version, p ? &p->uri : NULL, &x->refused)) {
        x->last = true;
        return false;
    }
    if (!admit_head(x, c, url, method)) return false;
    if (declared_length(c) <= x->server->opts->max_body) return true;
    return fault_set(&x->refused, 413, NULL, "the body has %lld bytes: %lld at most",
                     (long long)declared_length(c), (long long)x->server->opts->max_body);
}

/* ---- the answer -------------------------------------------------------------------------- */

static ssize_t read_stream(void *user, uint64_t pos, char *to, size_t max) {
    (void)pos;
    const long n = exchange_read(user, to, max);
    if (n == -2) return MHD_CONTENT_READER_END_WITH_ERROR; /* no end that looks like one */
    return n < 0 ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)n;
}

static void release_stream(void *user) { exchange_release(user); }

static void add_headers(struct MHD_Response *r, const exchange *x) {
    const server *s = x->server;
    char seconds[16];
    const char *type = x->answer == EXCHANGE_STREAM ? "text/event-stream"
                       : x->type                    ? x->type
                                                    : "application/json";
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Request-Id", x->id);
    MHD_add_response_header(r, "Content-Security-Policy",
                            x->policy ? x->policy : "default-src 'none'; frame-ancestors 'none'");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    if (x->answer == EXCHANGE_STREAM) MHD_add_response_header(r, "X-Accel-Buffering", "no");
    if (x->status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (s->opts->cors_origin) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", s->opts->cors_origin);
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "X-Request-Id");
    }
    if (x->retry_s > 0) {
        snprintf(seconds, sizeof seconds, "%d", x->retry_s);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    if (x->last || atomic_load(&s->state) == SERVER_DRAINING)
        MHD_add_response_header(r, "Connection", "close");
}

static struct MHD_Response *new_response(exchange *x) {
    if (x->answer == EXCHANGE_STREAM) {
        struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK,
                                                                   read_stream, x, release_stream);
        if (r) exchange_hold(x);
        return r;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(x->reply.len, x->reply.bytes, MHD_RESPMEM_MUST_FREE);
    if (r) x->reply = (textbuf){0};
    return r;
}

static enum MHD_Result respond(exchange *x, struct MHD_Connection *c) {
    pthread_mutex_lock(&x->lock);
    struct MHD_Response *r = new_response(x);
    const int status = x->status;
    if (r) add_headers(r, x);
    pthread_mutex_unlock(&x->lock);
    if (!r) return MHD_NO;
    metrics_response(&x->server->metrics, status);
    const enum MHD_Result queued = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return queued;
}

/* What a browser asks before it lets a page of another origin call. */
static enum MHD_Result preflight(server *s, struct MHD_Connection *c) {
    static const char none[] = "";
    struct MHD_Response *r =
        MHD_create_response_from_buffer(0, (void *)none, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    const bool allowed =
        s->opts->cors_origin && origin_allowed(s, header(c, "Origin"), header(c, "Host"));
    if (allowed) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", s->opts->cors_origin);
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE");
        MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                "Authorization, Content-Type, X-Request-Id");
    }
    const enum MHD_Result queued = MHD_queue_response(c, allowed ? 204 : 403, r);
    metrics_response(&s->metrics, allowed ? 204 : 403);
    MHD_destroy_response(r);
    return queued;
}

/* ---- one request ------------------------------------------------------------------------- */

static enum MHD_Result refuse(exchange *x, struct MHD_Connection *c) {
    x->dispatched = true;
    exchange_refuse(x, &x->refused);
    return respond(x, c);
}

static enum MHD_Result begin(http *h, struct MHD_Connection *c, const char *url, const char *method,
                             const char *version, void **slot) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (strcmp(method, "OPTIONS") == 0) return preflight(h->server, c);
    exchange *x = info ? exchange_new(h->server, c, info->connect_fd) : NULL;
    if (!x) return MHD_NO;
    *slot = x;
    identify(x, header(c, "X-Request-Id"));
    set_busy(h, c, true);
    if (admit(x, c, url, method, version)) return MHD_YES;
    /* A body that is not much too long is read and thrown away, so that the client hears why; it
     * would see a broken connection otherwise. */
    const bool ends = head_has_end(c) && declared_length(c) <= 4 * h->server->opts->max_body;
    return ends ? MHD_YES : refuse(x, c);
}

/* All bodies together have a limit too: hundreds of connections may each hold one. */
static bool keep_body(exchange *x, const char *data, size_t n) {
    server *s = x->server;
    const long long most = BODIES * (long long)s->opts->max_body;
    if (n > (size_t)s->opts->max_body || x->body.len > (size_t)s->opts->max_body - n)
        return fault_set(&x->refused, 413, NULL, "the body has more than %lld bytes",
                         (long long)s->opts->max_body);
    if (atomic_fetch_add(&s->bodies, (long long)n) + (long long)n > most) {
        atomic_fetch_sub(&s->bodies, (long long)n);
        fault_set(&x->refused, 503, NULL, "the requests that wait have too many bytes");
        x->refused.retry_s = 1;
        return false;
    }
    text_add(&x->body, data, n);
    x->held += n;
    return true;
}

static enum MHD_Result take_body(exchange *x, const char *data, size_t *n) {
    const kk_serve_opts *o = x->server->opts;
    if (text_now() - x->started > o->idle_s) return MHD_NO; /* a trickle */
    if (x->refused.status || !keep_body(x, data, *n)) {
        exchange_forget_body(x);
        x->dropped += *n;
        if (x->dropped > 4 * (size_t)o->max_body) return MHD_NO;
    }
    *n = 0;
    return x->body.failed ? MHD_NO : MHD_YES;
}

static enum MHD_Result dispatch(exchange *x, struct MHD_Connection *c) {
    server *s = x->server;
    if (x->refused.status) return refuse(x, c);
    x->dispatched = true;
    if (!x->route->works && !x->route->reads) {
        x->route->run(x, x->rest);
        return respond(x, c);
    }
    pthread_mutex_lock(&x->lock);
    x->suspended = true;
    MHD_suspend_connection(c);
    pthread_mutex_unlock(&x->lock);
    /* A body may have come after its head was admitted, and the server be ending since. */
    workers *to = x->route->reads ? &s->readers : &s->workers;
    if (atomic_load(&s->state) != SERVER_DRAINING && workers_submit(to, x)) return MHD_YES;
    fault f;
    if (atomic_load(&s->state) == SERVER_DRAINING)
        fault_set(&f, 503, NULL, "the server is shutting down");
    else
        fault_set(&f, 429, NULL, "%d requests are waiting already", to->most_waiting);
    f.retry_s = 1;
    exchange_refuse(x, &f);
    return MHD_YES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **slot) {
    exchange *x = *slot;
    if (!x) return begin(user, c, url, method, version, slot);
    if (*n > 0) return take_body(x, data, n);
    return x->dispatched ? respond(x, c) : dispatch(x, c);
}

/* The address of the other side, "" where there is none. */
static void address(struct MHD_Connection *c, char *out, size_t cap) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    const socklen_t n = a && a->sa_family == AF_INET6 ? (socklen_t)sizeof(struct sockaddr_in6)
                                                      : (socklen_t)sizeof(struct sockaddr_in);
    if (!a || getnameinfo(a, n, out, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0) *out = '\0';
}

static void tell(exchange *x, struct MHD_Connection *c) {
    char client[64];
    if (!x->server->opts->verbose) return;
    address(c, client, sizeof client);
    log_request(x, client);
}

static void on_completed(void *user, struct MHD_Connection *c, void **slot,
                         enum MHD_RequestTerminationCode code) {
    exchange *x = *slot;
    (void)code;
    if (!x) return;
    *slot = NULL;
    tell(x, c);
    exchange_closed(x);
    set_busy(user, c, false);
}

/* ---- connections ------------------------------------------------------------------------- */

static void on_connection(void *user, struct MHD_Connection *c, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    http *h = user;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        peer *p = info ? calloc(1, sizeof *p) : NULL;
        if (p) {
            *p = (peer){
                .next = h->peers, .link = &h->peers, .fd = info->connect_fd, .since = text_now()};
            if (h->peers) h->peers->link = &p->next;
            h->peers = p;
        }
        *slot = p;
    } else if (*slot) {
        peer *p = *slot;
        *p->link = p->next;
        if (p->next) p->next->link = p->link;
        free(p);
        *slot = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}

static void end_before(http *h, bool all);

/* libmicrohttpd's own limit starts anew with each byte, so that a head that trickles in would hold
 * its connection without an end; and it misses the end of one that had sent a part of a head and
 * left before it was accepted.  A socket is closed only after on_connection has heard of it. */
void http_sweep(http *h) {
    const double now = text_now(), most = h->server->opts->idle_s;
    pthread_mutex_lock(&h->lock);
    for (const peer *p = h->peers; p; p = p->next) {
        const double idle = now - p->since;
        if (!p->busy && (idle > most || (idle > LEFT_S && exchange_hung_up(p->fd))))
            shutdown(p->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&h->lock);
    end_before(h, false);
}

void http_flush(http *h, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&h->lock);
    int timed_out = 0;
    while (h->n_busy > 0 && !timed_out)
        timed_out = pthread_cond_timedwait(&h->changed, &h->lock, &until);
    pthread_mutex_unlock(&h->lock);
}

/* ---- start and stop ---------------------------------------------------------------------- */

static kk_status read_pem(const char *path, char **out, kk_err *err) {
    textbuf t = {0};
    char block[4096];
    FILE *f = fopen(path, "re");
    if (!f) return server_fail(err, KK_EIO, "cannot open '%s': %s", path, strerror(errno));
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0 && t.len < 1 << 20;)
        text_add(&t, block, n);
    const bool good = !ferror(f) && !t.failed && t.len > 0;
    fclose(f);
    explicit_bzero(block, sizeof block);
    *out = t.bytes;
    return good ? KK_OK : server_fail(err, KK_EIO, "cannot read '%s'", path);
}

static void no_log(void *user, const char *fmt, va_list ap) {
    (void)user;
    (void)fmt;
    (void)ap;
}

/* listening: a socket that the daemon closes. */
static kk_status start_daemon(http *h, int listening, serving *v, kk_err *err) {
    const kk_serve_opts *o = h->server->opts;
    const struct MHD_OptionItem options[] = {
        {MHD_OPTION_LISTEN_SOCKET, listening, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, o->connections, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)o->idle_s, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, POOL_BYTES, NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 0, NULL}, /* head.c refuses what 1 would */
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)on_uri, h},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, h},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, h},
        /* TLS options end the list where there is no TLS. */
        {v->cert ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, v->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, v->key},
        {MHD_OPTION_END, 0, NULL},
    };
    unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (v->cert) flags |= MHD_USE_TLS;
    v->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER,
                                 no_log, NULL, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (v->daemon) return KK_OK;
    return server_fail(err, v->cert ? KK_EINVAL : KK_EIO, "the HTTP server does not start%s",
                       v->cert ? ": check the certificate and its key" : "");
}

static void forget_pem(char **pem) {
    if (*pem) explicit_bzero(*pem, strlen(*pem));
    free(*pem);
    *pem = NULL;
}

static kk_status read_pems(const kk_serve_opts *o, serving *v, kk_err *err) {
    kk_status st = KK_OK;
    if (o->tls_cert) st = read_pem(o->tls_cert, &v->cert, err);
    if (st == KK_OK && o->tls_key) st = read_pem(o->tls_key, &v->key, err);
    return st;
}

/* What is left of it, `before` aside; cuts what it still sends. */
static void end_serving(serving *v) {
    if (v->daemon) MHD_stop_daemon(v->daemon);
    v->daemon = NULL;
    forget_pem(&v->key);
    forget_pem(&v->cert);
}

kk_status http_start(http **out, server *s, int *port, kk_err *err) {
    http *h = *out = calloc(1, sizeof *h);
    if (!h) return server_fail(err, KK_ENOMEM, "no memory for a server");
    h->server = s;
    h->listening = -1;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    kk_status st = read_pems(s->opts, &h->now, err);
    if (st == KK_OK) st = listen_on(s->opts->host, s->opts->port, &h->listening, err);
    if (st == KK_OK) st = start_daemon(h, h->listening, &h->now, err);
    if (st == KK_OK) {
        listen_warn(s, h->listening);
        *port = listen_port(h->listening);
        return KK_OK;
    }
    if (h->listening >= 0) close(h->listening);
    http_stop(h);
    *out = NULL;
    return st;
}

void http_stop_listening(http *h) {
    const int fd = MHD_quiesce_daemon(h->now.daemon);
    if (fd >= 0) close(fd);
}

/* Ends those with earlier certificates that nobody is connected to any more. */
static void end_before(http *h, bool all) {
    for (serving **at = &h->now.before; *at;) {
        serving *v = *at;
        const union MHD_DaemonInfo *info =
            MHD_get_daemon_info(v->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        if (!all && info && info->num_connections > 0) {
            at = &v->before;
            continue;
        }
        *at = v->before;
        end_serving(v);
        free(v);
    }
}

/* libmicrohttpd has no call that exchanges a certificate: another daemon with the new one takes
 * over the listening socket, and those before go on with the connections they have. */
kk_status http_renew(http *h, kk_err *err) {
    serving fresh = {.daemon = NULL};
    serving *before = malloc(sizeof *before);
    if (!before) return server_fail(err, KK_ENOMEM, "no memory for a certificate");
    end_before(h, false);
    const int listening = dup(h->listening);
    kk_status st = listening >= 0 ? read_pems(h->server->opts, &fresh, err)
                                  : server_fail(err, KK_EIO, "no descriptor");
    if (st == KK_OK) st = start_daemon(h, listening, &fresh, err);
    if (st != KK_OK) {
        if (listening >= 0) close(listening);
        end_serving(&fresh);
        free(before);
        return st;
    }
    const int old = MHD_quiesce_daemon(h->now.daemon);
    if (old >= 0) close(old);
    *before = h->now;
    fresh.before = before;
    h->now = fresh;
    h->listening = listening;
    return KK_OK;
}

void http_stop(http *h) {
    if (!h) return;
    end_before(h, true);
    end_serving(&h->now);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
