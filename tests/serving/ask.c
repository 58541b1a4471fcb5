/* ask.c - asks a server that runs already, ours or another that speaks the same protocol, for
 * completions from several clients at once, and prints one JSON object: requests a second, time to
 * the first token, tokens a second.  bench/peers/serve.py compares servers with it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "serving/scene.h"

enum { VOCAB = 1000 }; /* ids are drawn below this: every model has them */
static const double most_s = 600;

/* Every prompt is another one: nothing is served from what was kept. */
static bool send_next(client *c, const scene *s, uint64_t number) {
    const size_t n = (size_t)s->ctx[0];
    uint64_t state = s->seed * 0x9e3779b97f4a7c15u + number;
    growing body = {0};
    spoken p = {.of = {.ids = kk_calloc(n, sizeof *p.of.ids), .n = n}};
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        p.of.ids[i] = (int32_t)(state >> 33) % (VOCAB - 10) + 10;
    }
    spoken_request(&p, s->predict, true, "", &body);
    const bool sent = client_send(c, s->port, "/v1/completions", body.text, body.len);
    spoken_free(&p);
    growing_free(&body);
    return sent;
}

static json_t *row_of(const client *c) {
    return json_pack("{s:f, s:f, s:I}", "seconds", c->ended - c->sent, "first_s",
                     c->first > 0 ? c->first - c->sent : 0, "events", (json_int_t)c->events);
}

int measure_ask(const scene *s) {
    client clients[SCENE_MOST_CLIENTS] = {{.fd = -1}};
    const size_t n = (size_t)s->clients;
    const double from = kk_now();
    int sent = 0, failed = 0;
    json_t *rows = json_array();
    while ((int)json_array_size(rows) + failed < s->requests && kk_now() < from + most_s) {
        for (size_t i = 0; i < n; i++) {
            client *c = &clients[i];
            if (c->state == CLIENT_DONE) {
                const bool good = c->whole && c->status == 200;
                failed += !good;
                if (good) json_array_append_new(rows, row_of(c));
                client_close(c);
            }
            if (c->state == CLIENT_IDLE && sent < s->requests)
                failed += !send_next(c, s, (uint64_t)sent++);
        }
        /* Behind the last answer there is nothing to wait for. */
        if ((int)json_array_size(rows) + failed < s->requests) (void)clients_wait(clients, n, 1);
    }
    const double seconds = kk_now() - from;
    json_t *o = json_pack(
        "{s:i, s:i, s:f, s:f, s:o, s:o}", "requests", (int)json_array_size(rows), "failed", failed,
        "seconds", seconds, "requests_s", (double)json_array_size(rows) / seconds, "first_s",
        scene_spread(rows, "first_s"), "latency_s", scene_spread(rows, "seconds"));
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(o);
    json_decref(rows);
    for (size_t i = 0; i < n; i++) client_close(&clients[i]);
    return failed || sent < s->requests ? 1 : 0;
}
