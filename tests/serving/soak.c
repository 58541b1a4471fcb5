/* soak.c - whether a server stays as it is over a long time: conversations of several turns from
 * all clients at once, and in buckets of time memory, K/V, latency of turns and time to their first
 * token.  Now and then a prompt whose answer is known is sent between them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "serving/scene.h"

enum { TURNS = 4, KNOWN = 4, KNOWN_EVERY = 16, MOST_TURNS = 1 << 16, PREDICT = 24 };
static const double most_s = 120; /* of one turn */

/* A conversation of one client. */
typedef struct {
    growing messages; /* JSON, with commas between */
    int turn;
    size_t known; /* 1 + number of the known prompt that was sent; 0: a turn */
} talk;

/* What happened since the bucket began. */
typedef struct {
    double latency[MOST_TURNS], first[MOST_TURNS];
    double kv, resident; /* most of one, sum of the other */
    size_t turns, firsts, samples;
    int64_t tokens, evaluated, failed, checked, different;
} bucket;

typedef struct {
    const scene *s;
    target server;
    spoken known[KNOWN];
    client clients[SCENE_MOST_CLIENTS];
    talk talks[SCENE_MOST_CLIENTS];
    bucket now;
    json_t *buckets, *envelope;
    uint64_t state;
    size_t sent;
} soak;

static uint64_t draw(soak *k) {
    k->state = k->state * 6364136223846793005u + 1442695040888963407u;
    return k->state >> 33;
}

/* ---- turns --------------------------------------------------------------------------------- */

/* A user's turn of words that are drawn. */
static void ask(soak *k, talk *t) {
    static const char *const words[] = {"river", "stone",  "count", "list", "why",   "return",
                                        "tree",  "number", "open",  "file", "green", "seven"};
    if (t->turn == 0)
        growing_printf(&t->messages, "{\"role\":\"system\",\"content\":\"Answer in short.\"}");
    growing_printf(&t->messages, ",{\"role\":\"user\",\"content\":\"");
    const size_t n = 8 + draw(k) % 24;
    for (size_t i = 0; i < n; i++)
        growing_printf(&t->messages, "%s ", words[draw(k) % (sizeof words / sizeof *words)]);
    growing_printf(&t->messages, "\"}");
}

static bool send_turn(soak *k, size_t i) {
    talk *t = &k->talks[i];
    growing body = {0};
    bool sent;
    if (++k->sent % KNOWN_EVERY == 0) {
        t->known = 1 + draw(k) % KNOWN;
        spoken_request(&k->known[t->known - 1], PREDICT, true, "", &body);
        sent = client_send(&k->clients[i], k->server.port, "/v1/completions", body.text, body.len);
    } else {
        t->known = 0;
        ask(k, t);
        growing_printf(&body,
                       "{\"max_tokens\":%d,\"temperature\":0,\"stream\":true,"
                       "\"ignore_eos\":true,"
                       "\"stream_options\":{\"include_usage\":true},\"messages\":[",
                       (int)PREDICT);
        growing_add(&body, t->messages.text, t->messages.len);
        growing_printf(&body, "]}");
        sent = client_send(&k->clients[i], k->server.port, "/v1/chat/completions", body.text,
                           body.len);
    }
    growing_free(&body);
    return sent;
}

static void count_turn(bucket *b, const client *c) {
    if (b->turns < MOST_TURNS) b->latency[b->turns] = c->ended - c->sent;
    b->turns++;
    if (c->first > 0 && b->firsts < MOST_TURNS) b->first[b->firsts++] = c->first - c->sent;
    if (c->completion > 0) b->tokens += c->completion;
    if (c->prompt > 0) b->evaluated += c->prompt - (c->cached > 0 ? c->cached : 0);
}

static void end_turn(soak *k, size_t i) {
    client *c = &k->clients[i];
    talk *t = &k->talks[i];
    bucket *b = &k->now;
    const bool good = c->whole && c->status == 200;
    b->failed += !good;
    if (t->known) {
        b->checked++;
        b->different += good && !spoken_same(&k->known[t->known - 1], c);
    } else {
        if (good) count_turn(b, c);
        growing_printf(&t->messages, ",{\"role\":\"assistant\",\"content\":\"");
        growing_add(&t->messages, c->said.text ? c->said.text : "", c->said.len);
        growing_printf(&t->messages, "\"}");
        if (++t->turn == TURNS || !good) {
            growing_free(&t->messages);
            t->turn = 0;
        }
    }
    client_close(c);
}

/* ---- buckets ------------------------------------------------------------------------------- */

static void sample(soak *k) {
    static const char *const parts[] = {"kv.sliding", "kv.full", "kv.drafter"};
    growing text = {0};
    double kv = 0;
    if (!client_ask(k->server.port, "/metrics", NULL, &text, 10)) return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[80];
        snprintf(name, sizeof name, "kakeya_memory_bytes{category=\"%s\"}", parts[i]);
        const double bytes = metric_of(&text, name);
        if (bytes > 0) kv += bytes;
    }
    growing_free(&text);
    if (kv > k->now.kv) k->now.kv = kv;
    k->now.resident += (double)target_resident(&k->server);
    k->now.samples++;
}

static void end_bucket(soak *k, double start) {
    bucket *b = &k->now;
    const size_t n = b->turns < MOST_TURNS ? b->turns : MOST_TURNS;
    sample(k);
    json_t *row = json_pack(
        "{s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "from_s",
        (double)json_array_size(k->buckets) * k->s->bucket_s, "turns", (json_int_t)b->turns,
        "tokens", (json_int_t)b->tokens, "evaluated", (json_int_t)b->evaluated, "failed",
        (json_int_t)b->failed, "checked", (json_int_t)b->checked, "different",
        (json_int_t)b->different, "resident",
        (json_int_t)(b->samples ? b->resident / (double)b->samples : 0), "kv", (json_int_t)b->kv,
        "latency_p05_s", scene_quantile(b->latency, n, 0.05), "latency_median_s",
        scene_quantile(b->latency, n, 0.5), "latency_p95_s", scene_quantile(b->latency, n, 0.95),
        "first_median_s", scene_quantile(b->first, b->firsts, 0.5));
    json_array_append_new(k->buckets, row);
    printf("%6.0f s: %5zu turns, latency %.0f ms, first token %.0f ms, K/V %.1f MB, resident "
           "%.1f MB\n",
           kk_now() - start, b->turns, 1e3 * scene_quantile(b->latency, n, 0.5),
           1e3 * scene_quantile(b->first, b->firsts, 0.5), b->kv / 1e6,
           b->samples ? b->resident / (double)b->samples / 1e6 : 0);
    *b = (bucket){0};
}

static bool run(soak *k) {
    const size_t n = (size_t)k->s->clients;
    const double start = kk_now();
    double sampled = start;
    while (kk_now() < start + k->s->seconds) {
        for (size_t i = 0; i < n; i++) {
            if (k->clients[i].state == CLIENT_BUSY && kk_now() - k->clients[i].sent > most_s)
                return false; /* it hangs */
            if (k->clients[i].state == CLIENT_DONE) end_turn(k, i);
            if (k->clients[i].state == CLIENT_IDLE && !send_turn(k, i)) return false;
        }
        (void)clients_wait(k->clients, n, 0.2);
        if (kk_now() - sampled >= 1) {
            sample(k);
            sampled = kk_now();
        }
        if (kk_now() - start >= (double)(json_array_size(k->buckets) + 1) * k->s->bucket_s)
            end_bucket(k, start);
    }
    (void)clients_finish(k->clients, n, most_s);
    return true;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static bool prepare(soak *k) {
    kk_engine *e;
    bool good = scene_open_engine(k->s, &e);
    if (!good) return false;
    k->envelope = scene_envelope(k->s, e);
    for (size_t i = 0; good && i < KNOWN; i++)
        good =
            spoken_prompt(&k->known[i], k->s, e, i, 96) && spoken_answer(&k->known[i], e, PREDICT);
    kk_engine_close(e);
    target *t = &k->server;
    size_t n = 0;
    t->kakeya = k->s->kakeya;
    snprintf(t->log, sizeof t->log, "%s/soak.log", k->s->work);
    for (size_t i = 0; i < k->s->n_model_args; i++) t->args[n++] = k->s->model_args[i];
    t->args[n++] = "--sessions"; /* so few that memory is full long before the end */
    t->args[n++] = "32";
    return good && target_start(t, 120);
}

static json_t *settings_of(const soak *k) {
    const scene *s = k->s;
    return json_pack("{s:i, s:f, s:f, s:I, s:i, s:i, s:f, s:f, s:f}", "clients", s->clients,
                     "seconds", s->seconds, "bucket_s", s->bucket_s, "seed", (json_int_t)s->seed,
                     "turns_of_a_conversation", TURNS, "predict", PREDICT, "max_memory_drift", 0.02,
                     "max_kv_range", 0.1, "max_prefill_growth_s", 0.05);
}

int measure_soak(const scene *s) {
    soak *k = calloc(1, sizeof *k);
    if (!k) return 1;
    *k = (soak){.s = s, .state = s->seed, .buckets = json_array()};
    bool good = prepare(k) && run(k);
    good = target_stop(&k->server, 40) && good;
    if (!good) fprintf(stderr, "serving: the server did not last: see %s\n", k->server.log);
    json_t *body = json_pack("{s:o, s:O}", "settings", settings_of(k), "buckets", k->buckets);
    const int code = scene_write(s, "soak", k->envelope, body);
    for (size_t i = 0; i < KNOWN; i++) spoken_free(&k->known[i]);
    for (size_t i = 0; i < SCENE_MOST_CLIENTS; i++) {
        client_close(&k->clients[i]);
        growing_free(&k->talks[i].messages);
    }
    json_decref(k->buckets);
    free(k);
    return good ? code : 1;
}
