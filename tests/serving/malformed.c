/* malformed.c - see malformed.h.
 *
 * A request is drawn: a body that is nearly right with some bytes changed, sent with a right head;
 * or a head that is wrong in one of several ways; or bytes that are nothing.  What has a right head
 * must be answered, whatever the answer is; the others may be cut off without one, so their
 * connections are closed soon. */
#define _GNU_SOURCE
#include "serving/malformed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "serving/drawn.h"

enum { AT_ONCE = 16 };
static const double most_s = 20;     /* until an answer that must come */
static const double patience = 0.02; /* with one that need not come */

typedef struct {
    target *server;
    uint64_t state;
    client clients[AT_ONCE];
    bool must[AT_ONCE]; /* it must be answered */
    size_t statuses[600], unfinished, hangs, crashes;
} storm;

static uint64_t draw(storm *s) { return drawn(&s->state); }

static const char *const paths[] = {"/v1/chat/completions",
                                    "/v1/completions",
                                    "/tokenize",
                                    "/detokenize",
                                    "/v1/sessions/sess-0/append",
                                    "/v1/sessions/sess-0/generate"};

static const char *const bodies[] = {
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":1}",
    "{\"prompt\":\"def add(\",\"max_tokens\":1,\"temperature\":0.5,\"logprobs\":2}",
    "{\"prompt\":[5,6,7],\"max_tokens\":1,\"logit_bias\":{\"5\":1},\"stop\":[\"x\"]}",
    "{\"content\":\"Gr\xc3\xbc\xc3\x9f"
    "e\"}",
    "{\"tokens\":[1,2,3]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"add\"}}],\"max_tokens\":1,\"stream\":true}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "{\"prompt\":1e999,\"max_tokens\":-1}",
    "{\"prompt\":\"a\",\"max_tokens\":1,\"n\":99999999999999999999}",
};

static void right_head(storm *s, growing *out, const growing *body) {
    growing_printf(out,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   paths[draw(s) % (sizeof paths / sizeof *paths)], body->len);
    growing_add(out, body->text, body->len);
}

static void wrong_head(storm *s, growing *out, const growing *body) {
    static const char *const heads[] = {
        "POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 400\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /%00%ff/../..//v1/models?x=%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "GET /health HTTP/1.1\r\n: none\r\nno colon\r\n\r\n",
        "\r\n\r\n\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /v1/sessions/../../etc HTTP/1.0\r\n\r\n",
    };
    const char *head = heads[draw(s) % (sizeof heads / sizeof *heads)];
    growing_add(out, head, strlen(head));
    growing_add(out, body->text, body->len);
    drawn_damage(&s->state, out, 0);
}

static bool send_one(storm *s, size_t i) {
    growing body = {0}, all = {0};
    const char *text = bodies[draw(s) % (sizeof bodies / sizeof *bodies)];
    const uint64_t way = draw(s) % 10;
    growing_add(&body, text, strlen(text));
    drawn_damage(&s->state, &body, 0);
    s->must[i] = way < 7;
    if (way < 7)
        right_head(s, &all, &body);
    else if (way < 9)
        wrong_head(s, &all, &body);
    else
        drawn_noise(&s->state, &all, 1 + draw(s) % 300);
    const bool sent = client_send_raw(&s->clients[i], s->server->port, all.text, all.len);
    growing_free(&body);
    growing_free(&all);
    return sent;
}

static void end_one(storm *s, size_t i) {
    const client *c = &s->clients[i];
    if (c->status > 0 && c->status < 600)
        s->statuses[c->status]++;
    else
        s->unfinished++;
    client_close(&s->clients[i]);
}

/* Ends those that are answered, and those that have had their time. */
static void look(storm *s) {
    (void)clients_wait(s->clients, AT_ONCE, patience);
    for (size_t i = 0; i < AT_ONCE; i++) {
        const client *c = &s->clients[i];
        const double age = kk_now() - c->sent;
        const bool late = c->state == CLIENT_BUSY && age > (s->must[i] ? most_s : patience);
        s->hangs += late && s->must[i];
        if (late || c->state == CLIENT_DONE) end_one(s, i);
    }
}

static json_t *result(const storm *s, size_t warm_up, size_t n, int64_t before) {
    json_t *statuses = json_object();
    for (size_t i = 0; i < 600; i++) {
        char name[8];
        if (s->statuses[i] == 0) continue;
        snprintf(name, sizeof name, "%zu", i);
        json_object_set_new(statuses, name, json_integer((json_int_t)s->statuses[i]));
    }
    return json_pack("{s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I}", "warm_up", (json_int_t)warm_up,
                     "requests", (json_int_t)n, "unfinished", (json_int_t)s->unfinished, "statuses",
                     statuses, "crashes", (json_int_t)s->crashes, "hangs", (json_int_t)s->hangs,
                     "resident_before", (json_int_t)before, "resident_after",
                     (json_int_t)target_resident(s->server));
}

static bool busy(const storm *s) {
    for (size_t i = 0; i < AT_ONCE; i++)
        if (s->clients[i].state == CLIENT_BUSY) return true;
    return false;
}

json_t *malformed_run(target *t, size_t n, uint64_t seed) {
    const size_t warm_up = MALFORMED_WARM_UPS * n;
    storm *s = calloc(1, sizeof *s);
    int64_t before = 0;
    size_t sent = 0;
    if (!s) return NULL;
    s->server = t;
    s->state = seed;
    while (sent < warm_up + n && s->crashes == 0 && s->hangs < AT_ONCE) {
        for (size_t i = 0; i < AT_ONCE && sent < warm_up + n; i++) {
            if (s->clients[i].state != CLIENT_IDLE) continue;
            if (send_one(s, i))
                sent++;
            else
                s->crashes += !target_runs(t);
            if (sent == warm_up && !before) before = target_resident(t);
            if (sent % 10000 == 9999) printf("%zu malformed requests\n", sent + 1);
        }
        look(s);
    }
    while (busy(s)) look(s);
    s->crashes += !target_runs(t) || !client_ask(t->port, "/health", NULL, NULL, most_s);
    json_t *o =
        result(s, sent < warm_up ? sent : warm_up, sent < warm_up ? 0 : sent - warm_up, before);
    free(s);
    return o;
}
