/* load.c - how fast the server is: one stream against `kakeya run`, several together, a short
 * request beside a long prompt, and requests of mixed lengths.
 *
 * The arms take turns, so that each has its share of what the machine does meanwhile.  Prompts of
 * timed streams were read in a warm-up before: only decoding is timed, from a stream's first token
 * to its last. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "eval/reports/report.h"
#include "serving/scene.h"

#define COMPLETIONS "/v1/completions"
enum { SPECS = 2, MOST_CTX = KK_SERVED_LENGTHS, MOST_ARRIVALS = 20, LEAST_PARALLEL = 8 };
static const char *const spec_names[SPECS] = {"none", "auto"};
static const double most_s = 300; /* of one turn */

typedef struct {
    const scene *s;
    size_t n_specs; /* 1: the model has no drafter */
    target server[SPECS];
    char parallel[16]; /* requests at the same time, as the servers are told */
    spoken said[MOST_CTX][SCENE_MOST_CLIENTS];
    spoken longs[2 * MOST_ARRIVALS], shorts[MOST_ARRIVALS];
    client clients[SCENE_MOST_CLIENTS];
    json_t *run[MOST_CTX][SPECS], *single[MOST_CTX][SPECS], *together[MOST_CTX][SPECS]; /* rows */
    json_t *identity;                                                                   /* rows */
    json_t *arrival;                                                                    /* rows */
    json_t *mixed;                                                                      /* rows */
    double mixed_s; /* wall time of them */
    size_t failed;  /* requests that did not come to their end */
    json_t *envelope;
} load;

/* ---- servers and prompts ------------------------------------------------------------------- */

static bool start_server(load *l, size_t spec) {
    const scene *s = l->s;
    target *t = &l->server[spec];
    size_t n = 0;
    t->kakeya = s->kakeya;
    snprintf(l->parallel, sizeof l->parallel, "%d",
             s->clients > LEAST_PARALLEL ? s->clients : LEAST_PARALLEL);
    snprintf(t->log, sizeof t->log, "%s/%s.log", s->work, spec_names[spec]);
    for (size_t i = 0; i < s->n_model_args; i++) t->args[n++] = s->model_args[i];
    t->args[n++] = "-c";
    t->args[n++] = "8192";
    t->args[n++] = "--sessions";
    t->args[n++] = "256";
    t->args[n++] = "--parallel";
    t->args[n++] = l->parallel;
    t->args[n++] = "--spec";
    t->args[n++] = spec_names[spec];
    if (target_start(t, 120)) return true;
    fprintf(stderr, "serving: the server does not start: see %s\n", t->log);
    return false;
}

static bool prepare(load *l) {
    const scene *s = l->s;
    kk_engine *e;
    bool good = scene_open_engine(s, &e);
    if (!good) return false;
    l->envelope = scene_envelope(s, e);
    for (size_t k = 0; good && k < s->n_ctx; k++)
        for (size_t i = 0; good && i < (size_t)s->clients; i++)
            good = spoken_prompt(&l->said[k][i], s, e, i, (size_t)s->ctx[k]) &&
                   spoken_answer(&l->said[k][i], e, s->predict);
    for (size_t i = 0; good && i < 2 * (size_t)s->arrivals; i++)
        good = spoken_prompt(&l->longs[i], s, e, 100 + i, KK_SERVED_LONG);
    for (size_t i = 0; good && i < (size_t)s->arrivals; i++)
        good = spoken_prompt(&l->shorts[i], s, e, 200 + i, KK_SERVED_SHORT);
    kk_engine_close(e);
    return good;
}

/* ---- streams ------------------------------------------------------------------------------- */

static bool send_spoken(load *l, size_t who, const target *t, const spoken *p, int32_t predict,
                        const char *more) {
    growing body = {0};
    spoken_request(p, predict, true, more, &body);
    const bool sent = client_send(&l->clients[who], t->port, COMPLETIONS, body.text, body.len);
    growing_free(&body);
    return sent;
}

/* n streams at once, each with its prompt; false after saying what went wrong. */
static bool stream(load *l, const target *t, const spoken *p, size_t n, const char *more) {
    for (size_t i = 0; i < n; i++) {
        l->clients[i].logprobs = strstr(more, "logprobs") != NULL;
        if (!send_spoken(l, i, t, &p[i], l->s->predict, more)) return false;
    }
    const bool all = clients_finish(l->clients, n, most_s);
    for (size_t i = 0; i < n; i++)
        if (!l->clients[i].whole || l->clients[i].status != 200) {
            fprintf(stderr, "serving: a stream failed with status %d\n", l->clients[i].status);
            l->failed++;
            return false;
        }
    return all;
}

/* Tokens after the first of each, from the first of all to the last of all. */
static json_t *stream_row(const client *c, size_t n) {
    double first = c[0].first, last = c[0].last;
    int64_t tokens = 0;
    for (size_t i = 0; i < n; i++) {
        if (c[i].first < first) first = c[i].first;
        if (c[i].last > last) last = c[i].last;
        tokens += c[i].completion - 1;
    }
    return json_pack("{s:I, s:f}", "tokens", (json_int_t)tokens, "seconds", last - first);
}

/* Streams together are what each is alone, to the bits of log-probabilities, and shared passes. */
static bool verify(load *l, size_t k, size_t spec) {
    const target *t = &l->server[spec];
    const size_t n = (size_t)l->s->clients;
    size_t different = 0;
    if (!stream(l, t, l->said[k], n, "")) return false; /* reads the prompts */
    const double passes = target_metric(t, "kakeya_decode_passes_total");
    const double sessions = target_metric(t, "kakeya_decode_pass_sessions_total");
    if (!stream(l, t, l->said[k], n, ",\"logprobs\":1")) return false;
    json_t *hashes = json_array();
    for (size_t i = 0; i < n; i++) {
        different += !spoken_same(&l->said[k][i], &l->clients[i]);
        json_array_append_new(
            hashes, json_pack("{s:o, s:o}", "alone", kk_report_hash(l->said[k][i].of.logprob_hash),
                              "together", kk_report_hash(l->clients[i].logprob_hash)));
        l->clients[i].logprobs = false;
    }
    json_array_append_new(
        l->identity,
        json_pack("{s:s, s:i, s:i, s:I, s:I, s:i, s:o}", "spec", spec_names[spec], "ctx",
                  (int)l->s->ctx[k], "streams", (int)n, "passes",
                  (json_int_t)(target_metric(t, "kakeya_decode_passes_total") - passes),
                  "sessions_in_passes",
                  (json_int_t)(target_metric(t, "kakeya_decode_pass_sessions_total") - sessions),
                  "different", (int)different, "logprob_hashes", hashes));
    return true;
}

/* ---- `kakeya run` -------------------------------------------------------------------------- */

static json_t *run_row(const load *l, const spoken *p, const char *spec) {
    const scene *s = l->s;
    const char *argv[TARGET_MOST_ARGS] = {s->kakeya, "run"};
    size_t n = 2;
    char predict[16];
    growing ids = {0}, out = {0};
    json_t *row = NULL;
    for (size_t i = 0; i < s->n_model_args; i++) argv[n++] = s->model_args[i];
    for (size_t i = 0; i < p->of.n; i++) growing_printf(&ids, i ? ",%d" : "%d", (int)p->of.ids[i]);
    snprintf(predict, sizeof predict, "%d", s->predict);
    const char *const rest[] = {"--spec", spec,    "--tokens",     ids.text, "-c", "8192",
                                "-n",     predict, "--ignore-eos", "--json", "-q"};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) argv[n++] = rest[i];
    if (target_run(argv, &out)) {
        json_t *o = json_loads(out.text, 0, NULL);
        const double seconds =
            json_number_value(json_object_get(json_object_get(o, "timings"), "decode_s"));
        if (seconds > 0)
            row = json_pack("{s:i, s:f}", "tokens", s->predict - 1, "seconds", seconds);
        json_decref(o);
    }
    growing_free(&ids);
    growing_free(&out);
    return row;
}

/* ---- turns --------------------------------------------------------------------------------- */

static bool one_turn(load *l, size_t k, size_t spec, size_t turn) {
    const target *t = &l->server[spec];
    const spoken *p = &l->said[k][turn % (size_t)l->s->clients];
    json_t *row = run_row(l, p, spec_names[spec]);
    if (!row || json_array_append_new(l->run[k][spec], row) != 0) return false;
    if (!stream(l, t, p, 1, "")) return false;
    json_array_append_new(l->single[k][spec], stream_row(l->clients, 1));
    if (!stream(l, t, l->said[k], (size_t)l->s->clients, "")) return false;
    json_array_append_new(l->together[k][spec], stream_row(l->clients, (size_t)l->s->clients));
    return true;
}

static bool decode_arms(load *l) {
    const scene *s = l->s;
    bool good = true;
    for (size_t k = 0; good && k < s->n_ctx; k++) {
        for (size_t spec = 0; good && spec < l->n_specs; spec++) good = verify(l, k, spec);
        for (size_t turn = 0; good && turn < (size_t)s->turns; turn++)
            for (size_t spec = 0; good && spec < l->n_specs; spec++)
                good = one_turn(l, k, spec, turn);
    }
    return good;
}

/* ---- a short request beside a long prompt -------------------------------------------------- */

/* The long prompt alone says how long a chunk takes; beside another long one, which is being read
 * since half of that, the short one is sent. */
static bool one_arrival(load *l, size_t turn) {
    const target *t = &l->server[l->n_specs - 1];
    client *c = l->clients;
    const double passes = target_metric(t, "kakeya_prefill_passes_total");
    if (!send_spoken(l, 0, t, &l->longs[2 * turn], 2, "") || !clients_finish(c, 1, most_s))
        return false;
    const double alone = c[0].first - c[0].sent;
    const double chunks = target_metric(t, "kakeya_prefill_passes_total") - passes;
    if (!send_spoken(l, 0, t, &l->longs[2 * turn + 1], 2, "")) return false;
    (void)clients_wait(c, 1, alone / 2);
    if (!send_spoken(l, 1, t, &l->shorts[turn], 4, "") || !clients_finish(c, 2, most_s))
        return false;
    if (!c[0].whole || !c[1].whole || chunks <= 0) return false;
    json_array_append_new(l->arrival,
                          json_pack("{s:f, s:f, s:f, s:f, s:f}", "alone_s", alone, "chunks", chunks,
                                    "first_s", c[1].first - c[1].sent, "in_chunks",
                                    (c[1].first - c[1].sent) / (alone / chunks),
                                    "long_first_after_s", c[0].first - c[1].first));
    return true;
}

/* ---- requests of mixed lengths ------------------------------------------------------------- */

/* A request of a length of its own: part of a prompt, streamed or not, greedy or drawn. */
static bool send_mixed(load *l, size_t who, uint64_t *state, int *prompt, int *predict) {
    size_t lengths[MOST_CTX * SCENE_MOST_CLIENTS];
    const size_t streams = (size_t)l->s->clients;
    for (size_t k = 0; k < l->s->n_ctx; k++)
        for (size_t i = 0; i < streams; i++) lengths[k * streams + i] = l->said[k][i].of.n;
    const kk_served_request r = kk_served_draw(state, lengths, l->s->n_ctx, streams);
    const spoken part = {.of = {.ids = l->said[r.ctx][r.stream].of.ids + r.from, .n = r.n}};
    growing body = {0};
    *prompt = (int)r.n;
    *predict = r.predict;
    spoken_request(&part, r.predict, r.streamed, r.sampled ? ",\"top_k\":40,\"seed\":5" : "",
                   &body);
    const bool sent = client_send(&l->clients[who], l->server[l->n_specs - 1].port, COMPLETIONS,
                                  body.text, body.len);
    growing_free(&body);
    return sent;
}

static json_t *mixed_row(const client *c, int prompt, int predict) {
    json_t *row = json_pack("{s:i, s:i, s:f, s:i}", "prompt", prompt, "predict", predict, "seconds",
                            c->ended - c->sent, "status", c->whole ? c->status : 0);
    if (c->first > 0) json_object_set_new(row, "first_s", json_real(c->first - c->sent));
    return row;
}

/* Every client sends its next request when the one before is answered. */
static bool mixed_arm(load *l) {
    const scene *s = l->s;
    int prompt[SCENE_MOST_CLIENTS], predict[SCENE_MOST_CLIENTS], sent = 0;
    const size_t n = (size_t)s->clients;
    uint64_t state = s->seed;
    const double from = kk_now();
    for (size_t i = 0; i < n; i++) client_close(&l->clients[i]);
    while ((int)json_array_size(l->mixed) < s->requests && kk_now() < from + most_s) {
        for (size_t i = 0; i < n; i++) {
            client *c = &l->clients[i];
            if (c->state == CLIENT_DONE) {
                json_array_append_new(l->mixed, mixed_row(c, prompt[i], predict[i]));
                l->failed += !c->whole || c->status != 200;
                client_close(c);
            }
            if (c->state == CLIENT_IDLE && sent < s->requests) {
                if (!send_mixed(l, i, &state, &prompt[i], &predict[i])) return false;
                sent++;
            }
        }
        /* Behind the last answer there is nothing to wait for. */
        if ((int)json_array_size(l->mixed) < s->requests) (void)clients_wait(l->clients, n, 1);
    }
    l->mixed_s = kk_now() - from;
    return true;
}

/* ---- the report ---------------------------------------------------------------------------- */

static void arm(json_t *arms, const char *who, const load *l, size_t k, size_t spec, int streams,
                json_t *rows) {
    json_t *o = scene_rate(json_incref(rows));
    json_t *named = json_pack("{s:s, s:s, s:i, s:i}", "arm", who, "spec", spec_names[spec], "ctx",
                              (int)l->s->ctx[k], "streams", streams);
    json_object_update_missing(named, o);
    json_decref(o);
    json_array_append_new(arms, named);
    printf("%-6s %-4s ctx %5d x%-2d %8.1f tok/s\n", who, spec_names[spec], (int)l->s->ctx[k],
           streams, json_number_value(json_object_get(named, "tok_s")));
}

static void add_arms(const load *l, size_t k, json_t *arms) {
    for (size_t spec = 0; spec < l->n_specs; spec++) {
        arm(arms, "run", l, k, spec, 1, l->run[k][spec]);
        arm(arms, "served", l, k, spec, 1, l->single[k][spec]);
        arm(arms, "served", l, k, spec, l->s->clients, l->together[k][spec]);
    }
}

static json_t *settings_of(const load *l) {
    const scene *s = l->s;
    json_t *ctx = json_array(), *together = json_array();
    for (size_t k = 0; k < s->n_ctx; k++) {
        json_array_append_new(ctx, json_integer(s->ctx[k]));
        json_array_append_new(together, json_real(s->min_together[k]));
    }
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:o, s:I, s:f, s:o, s:f, s:f, s:i}", "clients",
                     s->clients, "turns", s->turns, "predict", s->predict, "requests", s->requests,
                     "arrivals", s->arrivals, "ctx", ctx, "seed", (json_int_t)s->seed, "min_served",
                     s->min_served, "min_together", together, "min_drafted", s->min_drafted,
                     "max_chunks", s->max_chunks, "specs", (int)l->n_specs);
}

static int judge(load *l) {
    const scene *s = l->s;
    json_t *arms = json_array();
    for (size_t k = 0; k < s->n_ctx; k++) add_arms(l, k, arms);
    json_t *mixed = json_pack("{s:f, s:f, s:o, s:o, s:O}", "seconds", l->mixed_s, "requests_s",
                              (double)json_array_size(l->mixed) / l->mixed_s, "first_s",
                              scene_spread(l->mixed, "first_s"), "latency_s",
                              scene_spread(l->mixed, "seconds"), "rows", l->mixed);
    json_t *body = json_pack("{s:o, s:o, s:O, s:{s:i, s:i, s:O}, s:o, s:I}", "settings",
                             settings_of(l), "arms", arms, "identity", l->identity, "arrival",
                             "prompt", KK_SERVED_LONG, "short", KK_SERVED_SHORT, "rows", l->arrival,
                             "mixed", mixed, "failed", (json_int_t)l->failed);
    const int code = scene_write(s, "load", l->envelope, body);
    l->envelope = NULL;
    return code;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static bool measure(load *l) {
    bool good = prepare(l);
    for (size_t i = 0; good && i < l->n_specs; i++) good = start_server(l, i);
    good = good && decode_arms(l);
    for (size_t i = 0; good && i < (size_t)l->s->arrivals; i++) good = one_arrival(l, i);
    good = good && mixed_arm(l);
    for (size_t i = 0; i < l->n_specs; i++)
        if (l->server[i].pid > 0 && !target_stop(&l->server[i], 40)) {
            fprintf(stderr, "serving: a server did not end well: see %s\n", l->server[i].log);
            good = false;
        }
    return good;
}

static void release(load *l) {
    for (size_t k = 0; k < MOST_CTX; k++) {
        for (size_t i = 0; i < SCENE_MOST_CLIENTS; i++) spoken_free(&l->said[k][i]);
        for (size_t spec = 0; spec < SPECS; spec++) {
            json_decref(l->run[k][spec]);
            json_decref(l->single[k][spec]);
            json_decref(l->together[k][spec]);
        }
    }
    for (size_t i = 0; i < 2 * MOST_ARRIVALS; i++) spoken_free(&l->longs[i]);
    for (size_t i = 0; i < MOST_ARRIVALS; i++) spoken_free(&l->shorts[i]);
    for (size_t i = 0; i < SCENE_MOST_CLIENTS; i++) client_close(&l->clients[i]);
    json_decref(l->identity);
    json_decref(l->arrival);
    json_decref(l->mixed);
    json_decref(l->envelope);
    free(l);
}

int measure_load(const scene *s) {
    load *l = calloc(1, sizeof *l);
    if (!l) return 1;
    l->s = s;
    l->n_specs = s->drafts ? SPECS : 1;
    l->identity = json_array();
    l->arrival = json_array();
    l->mixed = json_array();
    for (size_t k = 0; k < MOST_CTX; k++)
        for (size_t spec = 0; spec < SPECS; spec++) {
            l->run[k][spec] = json_array();
            l->single[k][spec] = json_array();
            l->together[k][spec] = json_array();
        }
    const int code = measure(l) ? judge(l) : 1;
    release(l);
    return code;
}
