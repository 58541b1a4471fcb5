/* log.c - see log.h. */
#define _GNU_SOURCE
#include "server/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/route.h"
#include "server/server.h"

/* UTC, as RFC 3339 has it, with milliseconds. */
static void stamp(char *out, size_t cap) {
    struct timespec now;
    struct tm t;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    const size_t n = strftime(out, cap, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(out + n, cap - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* The beginning of every object. */
static json_t *object(const char *level, const char *event) {
    char time[40];
    stamp(time, sizeof time);
    return json_pack("{s:s, s:s, s:s}", "time", time, "level", level, "event", event);
}

/* Hands the object on as a line, and releases it. */
static void write_object(const server *s, json_t *o) {
    textbuf line = {0};
    text_add_json(&line, o);
    if (!line.failed) s->opts->say(s->opts->user, line.bytes);
    text_free(&line);
}

static void say(const server *s, const char *level, const char *fmt, va_list ap) {
    char line[512];
    if (!s->opts->say) return;
    vsnprintf(line, sizeof line, fmt, ap);
    if (!s->opts->log_json) {
        s->opts->say(s->opts->user, line);
        return;
    }
    json_t *o = object(level, "message");
    json_object_set_new(o, "message", text_json(line, strlen(line)));
    write_object(s, o);
}

void server_say(const server *s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(s, "info", fmt, ap);
    va_end(ap);
}

void server_warn(const server *s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(s, "warning", fmt, ap);
    va_end(ap);
}

/* ---- requests ---------------------------------------------------------------------------- */

/* What is known of a generation; the caller holds the exchange's lock. */
static void add_usage(json_t *o, const exchange_usage *u) {
    if (!u->known) return;
    json_object_set_new(o, "prompt_tokens", json_integer(u->prompt));
    json_object_set_new(o, "cached_tokens", json_integer(u->cached));
    json_object_set_new(o, "completion_tokens", json_integer(u->completion));
    json_object_set_new(o, "accepted_tokens", json_integer(u->accepted));
}

static void add_content(json_t *o, const char *name, const textbuf *t) {
    const size_t n = t->len < LOG_CONTENT ? t->len : LOG_CONTENT;
    json_object_set_new(o, name, text_json(t->bytes ? t->bytes : "", n));
}

static json_t *request_object_of(exchange *x, const char *client, double seconds) {
    const server *s = x->server;
    pthread_mutex_lock(&x->lock);
    json_t *o = object(x->status >= 500 ? "warning" : "info", "request");
    json_t *more =
        json_pack("{s:s, s:s, s:s, s:i, s:f, s:s}", "request_id", x->id, "method",
                  x->route ? x->route->method : "-", "path", x->route ? x->route->path : "-",
                  "status", x->status, "seconds", seconds, "client", client);
    json_object_update(o, more);
    add_usage(o, &x->usage);
    if (s->opts->log_content) {
        add_content(o, "request", &x->body);
        add_content(o, "response", &x->said);
    }
    pthread_mutex_unlock(&x->lock);
    json_decref(more);
    return o;
}

void log_request(exchange *x, const char *client) {
    const server *s = x->server;
    const double seconds = text_now() - x->started;
    if (!s->opts->verbose || !s->opts->say) return;
    if (s->opts->log_json) {
        write_object(s, request_object_of(x, client, seconds));
        return;
    }
    pthread_mutex_lock(&x->lock);
    const int status = x->status;
    pthread_mutex_unlock(&x->lock);
    server_say(s, "%s %s: %d in %.0f ms, %s", x->route ? x->route->method : "-",
               x->route ? x->route->path : "-", status, 1e3 * seconds, x->id);
}
