/* client.c - see client.h. */
#define _GNU_SOURCE
#include "serving/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/hash.h"

enum { MOST_CLIENTS = 512, BLOCK = 64 << 10 };
static const double look_s = 1e-3; /* between two looks at the sockets */

/* ---- bytes that grow ---------------------------------------------------------------------- */

/* A measuring program without memory has nothing left to measure. */
static void *resize(void *p, size_t n) {
    void *q = realloc(p, n);
    if (!q) {
        fprintf(stderr, "serving: no memory for %zu bytes\n", n);
        exit(1);
    }
    return q;
}

void growing_add(growing *g, const void *bytes, size_t n) {
    if (g->cap - g->len <= n) {
        g->cap = 2 * (g->len + n) + 64;
        g->text = resize(g->text, g->cap);
    }
    if (n) memcpy(g->text + g->len, bytes, n);
    g->len += n;
    g->text[g->len] = 0;
}

void growing_printf(growing *g, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0) growing_add(g, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

void growing_free(growing *g) {
    free(g->text);
    *g = (growing){0};
}

/* ---- sending ------------------------------------------------------------------------------- */

void client_close(client *c) {
    if (c->state != CLIENT_IDLE && c->fd >= 0) close(c->fd);
    growing_free(&c->raw);
    growing_free(&c->said);
    growing_free(&c->body);
    *c = (client){.fd = -1, .stalled = c->stalled, .logprobs = c->logprobs, .receive = c->receive};
}

static int connect_to(int port, int receive) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) return -1;
    if (receive) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* A server that refuses a request need not read it to its end. */
static void send_all(int fd, const char *bytes, size_t n) {
    const struct timeval most = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    while (n > 0) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

bool client_send_raw(client *c, int port, const void *bytes, size_t len) {
    client_close(c);
    c->prompt = c->completion = c->cached = -1;
    c->left = -1;
    c->logprob_hash = KK_HASH_START;
    c->fd = connect_to(port, c->receive);
    if (c->fd < 0) return false;
    c->state = CLIENT_BUSY;
    c->sent = kk_now();
    send_all(c->fd, bytes, len);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    return true;
}

bool client_send(client *c, int port, const char *path, const char *body, size_t len) {
    growing head = {0};
    growing_printf(&head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                   body ? "POST" : "GET", path);
    if (body) growing_printf(&head, "Content-Length: %zu\r\n", len);
    growing_add(&head, "\r\n", 2);
    if (body) growing_add(&head, body, len);
    const bool sent = client_send_raw(c, port, head.text, head.len);
    growing_free(&head);
    return sent;
}

/* ---- events -------------------------------------------------------------------------------- */

static int64_t number_behind(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoll(at + strlen(key), NULL, 10) : -1;
}

/* The string behind the key, without its quotes; NULL: it is not there. */
static const char *string_behind(const char *text, const char *key, size_t *len) {
    const char *at = strstr(text, key), *end;
    if (!at) return NULL;
    at += strlen(key);
    for (end = at; *end && *end != '"'; end++)
        if (*end == '\\' && end[1]) end++;
    *len = (size_t)(end - at);
    return at;
}

static void read_usage(client *c, const char *text) {
    const char *usage = strstr(text, "\"usage\":{");
    if (!usage) return;
    c->prompt = number_behind(usage, "\"prompt_tokens\":");
    c->completion = number_behind(usage, "\"completion_tokens\":");
    c->cached = number_behind(usage, "\"cached_tokens\":");
}

/* The nine digits of a response are all that a float has. */
static void hash_logprobs(client *c, const char *event) {
    const char *at = strstr(event, "\"token_logprobs\":[");
    if (!at) return;
    at += strlen("\"token_logprobs\":[");
    while (*at && *at != ']') {
        char *end;
        const float value = strtof(at, &end);
        if (end == at) return;
        c->logprob_hash = kk_hash_bytes(c->logprob_hash, &value, sizeof value);
        at = *end == ',' ? end + 1 : end;
    }
}

static void read_event(client *c, char *event) {
    size_t len = 0;
    if (strcmp(event, "[DONE]") == 0) {
        c->done_event = true;
        return;
    }
    const char *said = string_behind(event, "\"text\":\"", &len);
    if (!said) said = string_behind(event, "\"content\":\"", &len);
    if (said && len > 0) {
        growing_add(&c->said, said, len);
        c->last = kk_now();
        if (c->events++ == 0) c->first = c->last;
    }
    if (c->logprobs) hash_logprobs(c, event);
    read_usage(c, event);
}

/* Events end with an empty line; what waits behind the last stays. */
static void read_events(client *c) {
    char *at = c->body.text, *end;
    while (at && (end = strstr(at, "\n\n"))) {
        *end = 0;
        if (strncmp(at, "data: ", 6) == 0) read_event(c, at + 6);
        at = end + 2;
    }
    if (!at) return;
    c->body.len -= (size_t)(at - c->body.text);
    memmove(c->body.text, at, c->body.len + 1);
}

/* ---- a response ---------------------------------------------------------------------------- */

static void finish(client *c, bool whole) {
    if (c->stream) read_events(c);
    if (!c->stream && c->body.text) read_usage(c, c->body.text);
    c->whole = whole && (!c->stream || c->done_event);
    c->ended = kk_now();
    close(c->fd);
    c->fd = -1;
    c->state = CLIENT_DONE;
}

static bool has_header(const char *head, const char *line) { return strcasestr(head, line); }

/* False: the head is not there yet. */
static bool read_head(client *c) {
    char *end = c->raw.text ? strstr(c->raw.text, "\r\n\r\n") : NULL;
    if (!end) return false;
    *end = 0;
    if (strncmp(c->raw.text, "HTTP/1.", 7) == 0) c->status = atoi(c->raw.text + 9);
    c->chunked = has_header(c->raw.text, "\r\nTransfer-Encoding: chunked");
    c->stream = has_header(c->raw.text, "\r\nContent-Type: text/event-stream");
    c->left = c->chunked ? 0 : number_behind(c->raw.text, "\r\nContent-Length: ");
    c->parsed = (size_t)(end - c->raw.text) + 4;
    c->headed = true;
    return true;
}

/* The next chunk's length, after the end of the one before; false: it is not there yet. */
static bool next_chunk(client *c, bool *last) {
    const char *at = c->raw.text + c->parsed, *line = strncmp(at, "\r\n", 2) == 0 ? at + 2 : at;
    const char *end = strstr(line, "\r\n");
    if (!end) return false;
    c->left = strtoll(line, NULL, 16);
    c->parsed = (size_t)(end - c->raw.text) + 2;
    *last = c->left == 0;
    return true;
}

static void take_body(client *c) {
    const size_t there = c->raw.len - c->parsed;
    const size_t n = c->left >= 0 && (size_t)c->left < there ? (size_t)c->left : there;
    growing_add(&c->body, c->raw.text + c->parsed, n);
    c->parsed += n;
    if (c->left >= 0) c->left -= (int64_t)n;
}

/* What has come is read as far as it goes; true: the response is complete. */
static bool read_response(client *c) {
    bool last = false;
    if (!c->headed && !read_head(c)) return false;
    while (c->chunked && !last && c->parsed < c->raw.len) {
        if (c->left == 0 && !next_chunk(c, &last)) break;
        if (c->left > 0) take_body(c);
    }
    if (!c->chunked) take_body(c);
    if (c->stream) read_events(c);
    c->raw.len -= c->parsed;
    memmove(c->raw.text, c->raw.text + c->parsed, c->raw.len + 1);
    c->parsed = 0;
    return last || (!c->chunked && c->left == 0);
}

static void read_some(client *c) {
    char block[BLOCK];
    const ssize_t n = recv(c->fd, block, sizeof block, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        finish(c, c->headed && !c->chunked && c->left <= 0);
        return;
    }
    growing_add(&c->raw, block, (size_t)n);
    if (read_response(c)) finish(c, true);
}

/* ---- many at once -------------------------------------------------------------------------- */

static size_t count_done(const client *c, size_t n) {
    size_t done = 0;
    for (size_t i = 0; i < n; i++) done += c[i].state == CLIENT_DONE;
    return done;
}

static void nap(double seconds) {
    const struct timespec t = {.tv_nsec = (long)(1e9 * seconds)};
    nanosleep(&t, NULL);
}

size_t clients_wait(client *c, size_t n, double seconds) {
    struct pollfd fds[MOST_CLIENTS];
    const double until = kk_now() + seconds;
    const size_t before = count_done(c, n);
    for (;;) {
        nfds_t at = 0;
        size_t who[MOST_CLIENTS];
        for (size_t i = 0; i < n && at < MOST_CLIENTS; i++) {
            if (c[i].state != CLIENT_BUSY || c[i].stalled) continue;
            who[at] = i;
            fds[at++] = (struct pollfd){.fd = c[i].fd, .events = POLLIN};
        }
        const double left = until - kk_now();
        if (left <= 0 || (at == 0 && count_done(c, n) == n)) return count_done(c, n);
        if (poll(fds, at, left < 0.1 ? 1 + (int)(1e3 * left) : 100) > 0)
            for (nfds_t i = 0; i < at; i++)
                if (fds[i].revents) read_some(&c[who[i]]);
        if (count_done(c, n) > before) return count_done(c, n);
        nap(look_s);
    }
}

bool clients_finish(client *c, size_t n, double seconds) {
    const double until = kk_now() + seconds;
    while (count_done(c, n) < n)
        if (clients_wait(c, n, until - kk_now()) < n && kk_now() >= until) return false;
    return true;
}

bool client_ask(int port, const char *path, const char *body, growing *out, double seconds) {
    client c = {.fd = -1};
    const bool sent = client_send(&c, port, path, body, body ? strlen(body) : 0);
    const bool good = sent && clients_finish(&c, 1, seconds) && c.whole && c.status == 200;
    if (good && out) growing_add(out, c.body.text ? c.body.text : "", c.body.len);
    client_close(&c);
    return good;
}
