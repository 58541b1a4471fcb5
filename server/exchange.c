/* exchange.c - see exchange.h. */
#define _GNU_SOURCE
#include "server/exchange.h"

#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "server/log.h"
#include "server/server.h"

exchange *exchange_new(server *s, struct MHD_Connection *c, int fd) {
    exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    if (pthread_mutex_init(&x->lock, NULL) != 0) {
        free(x);
        return NULL;
    }
    x->server = s;
    x->connection = c;
    x->fd = fd;
    x->refs = 1;
    x->started = text_now();
    x->out.limit = (size_t)s->opts->stream_buffer;
    return x;
}

void exchange_forget_body(exchange *x) {
    text_free(&x->body);
    atomic_fetch_sub(&x->server->bodies, (long long)x->held);
    x->held = 0;
}

void exchange_hold(exchange *x) { atomic_fetch_add(&x->refs, 1); }

void exchange_release(exchange *x) {
    if (atomic_fetch_sub(&x->refs, 1) != 1) return;
    exchange_forget_body(x);
    text_free(&x->reply);
    text_free(&x->said);
    outbox_free(&x->out);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

/* The caller holds the lock. */
static void wake(exchange *x) {
    if (!x->suspended || !x->connection) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

/* ---- the worker's side ------------------------------------------------------------------- */

/* A client that shuts down its side of a connection has left; bytes of a next request that wait
 * to be read do not hide that. */
bool exchange_hung_up(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

bool exchange_left(exchange *x) {
    pthread_mutex_lock(&x->lock);
    if (!x->gone && x->connection && exchange_hung_up(x->fd)) x->gone = true;
    const bool left = x->gone;
    pthread_mutex_unlock(&x->lock);
    return left;
}

/* The caller holds the lock. */
static void remember(exchange *x, const char *bytes, size_t n) {
    if (!x->server->opts->log_content || x->said.len >= LOG_CONTENT) return;
    text_add(&x->said, bytes, n);
}

void exchange_count(exchange *x, const exchange_usage *usage) {
    pthread_mutex_lock(&x->lock);
    x->usage = *usage;
    x->usage.known = true;
    pthread_mutex_unlock(&x->lock);
}

void exchange_reply(exchange *x, int status, textbuf *body) {
    workers_answered(x);
    pthread_mutex_lock(&x->lock);
    if (x->answer == EXCHANGE_OPEN) {
        x->answer = EXCHANGE_BODY;
        x->status = status;
        x->reply = *body;
        remember(x, body->bytes ? body->bytes : "", body->len);
        *body = (textbuf){0};
    }
    wake(x);
    pthread_mutex_unlock(&x->lock);
    text_free(body);
}

void exchange_reply_json(exchange *x, int status, json_t *body) {
    textbuf t = {0};
    text_add_json(&t, body);
    text_add(&t, "\n", 1);
    if (t.failed) {
        text_free(&t);
        status = 500;
    }
    exchange_reply(x, status, &t);
}

void exchange_refuse(exchange *x, const fault *f) {
    x->retry_s = f->retry_s;
    exchange_reply_json(x, f->status, fault_json(f));
}

void exchange_stream(exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->answer = EXCHANGE_STREAM;
    x->status = 200;
    x->last_write = text_now();
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

bool exchange_add(exchange *x, const char *bytes, size_t n) {
    pthread_mutex_lock(&x->lock);
    if (!x->gone && !outbox_put(&x->out, bytes, n)) x->gone = x->slow = true;
    remember(x, bytes, n);
    x->last_write = text_now();
    if (x->gone || x->eager < EXCHANGE_EAGER) {
        x->eager++;
        wake(x);
    } else if (!x->paced) {
        x->paced = !pace_is_due(&x->server->pace, x);
        if (!x->paced) wake(x);
    }
    const bool there = !x->gone;
    pthread_mutex_unlock(&x->lock);
    pace_look(&x->server->pace);
    return there;
}

bool exchange_ping(exchange *x, double after) {
    static const char comment[] = ": working\n\n";
    pthread_mutex_lock(&x->lock);
    const bool due = x->answer == EXCHANGE_STREAM && text_now() - x->last_write >= after;
    pthread_mutex_unlock(&x->lock);
    return !due || exchange_add(x, comment, sizeof comment - 1);
}

void exchange_tell(exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->paced = false;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_end(exchange *x) {
    workers_answered(x);
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* ---- the connection's side --------------------------------------------------------------- */

long exchange_read(exchange *x, char *to, size_t max) {
    pthread_mutex_lock(&x->lock);
    long n = x->slow ? 0 : (long)outbox_take(&x->out, to, max);
    if (n == 0 && (x->ended || x->gone)) {
        n = x->slow ? -2 : -1;
    } else if (n == 0 && x->connection) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

void exchange_closed(exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    x->gone = true;
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
}
