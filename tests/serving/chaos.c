/* chaos.c - what is left after the worst: the server is killed at random moments, cannot write, has
 * clients that do not read or vanish, and finds its state damaged.
 *
 * Clients hold sessions by their ids.  A session's history is a prompt and what the model says
 * after it, greedily, some tokens a turn; both are known beforehand, so any history can be held
 * against them.  A call that was answered is finished: what it added must be there after a
 * restart. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "serving/drawn.h"
#include "serving/malformed.h"
#include "serving/scene.h"

enum { PROMPTS = 8, PROMPT = 40, A_TURN = 8, TURNS = 24, ANSWER = A_TURN * TURNS };
static const double most_s = 30; /* of one call, and of a start */
/* Bytes a request.  The smallest block of malloc has 32 bytes: one that every second request loses
 * shows.  What is below comes from heaps of many threads, which fill up more and more slowly. */
static const double max_leak = 16;

typedef enum { NONE, MAKE, APPEND, GENERATE } call;

/* A session as its client knows it. */
typedef struct {
    char id[80]; /* "": there is none */
    size_t prompt;
    size_t finished; /* tokens of its history that were answered for */
    call asked;
} held;

typedef struct {
    const scene *s;
    target server;
    char folder[120]; /* of the state */
    spoken said[PROMPTS];
    held sessions[SCENE_MOST_CLIENTS];
    client clients[SCENE_MOST_CLIENTS];
    uint64_t state;
    size_t turns, lost, different, refused; /* since they were set to 0 */
    json_t *kills, *faults, *malformed, *malformed_grpc, *envelope;
} chaos;

static uint64_t draw(chaos *k) { return drawn(&k->state); }

/* ---- calls --------------------------------------------------------------------------------- */

static bool send_call(chaos *k, size_t i) {
    held *h = &k->sessions[i];
    const spoken *p;
    char path[160];
    growing body = {0};
    if (!*h->id) {
        *h = (held){.prompt = draw(k) % PROMPTS, .asked = MAKE};
        growing_printf(&body, "{\"temperature\":0}");
        snprintf(path, sizeof path, "/v1/sessions");
    } else if (h->finished == 0) {
        h->asked = APPEND;
        p = &k->said[h->prompt];
        growing_printf(&body, "{\"tokens\":[");
        for (size_t t = 0; t < p->of.n; t++)
            growing_printf(&body, t ? ",%d" : "%d", (int)p->of.ids[t]);
        growing_printf(&body, "]}");
        snprintf(path, sizeof path, "/v1/sessions/%s/append", h->id);
    } else {
        h->asked = GENERATE;
        growing_printf(&body, "{\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true}", A_TURN);
        snprintf(path, sizeof path, "/v1/sessions/%s/generate", h->id);
    }
    const bool sent = client_send(&k->clients[i], k->server.port, path, body.text, body.len);
    growing_free(&body);
    return sent;
}

/* Token t of what the history must be. */
static int32_t expected(const chaos *k, const held *h, size_t t) {
    const spoken *p = &k->said[h->prompt];
    return t < p->of.n ? p->of.ids[t] : p->of.answer[t - p->of.n];
}

/* Whether the listed tokens are those of the history from `at` on. */
static bool are_expected(const chaos *k, const held *h, const json_t *tokens, size_t at) {
    const size_t n = json_array_size(tokens);
    if (at + n > PROMPT + ANSWER) return false;
    for (size_t t = 0; t < n; t++)
        if (json_integer_value(json_array_get(tokens, t)) != expected(k, h, at + t)) return false;
    return true;
}

/* What an answer says is remembered, and held against what it should be. */
static void end_call(chaos *k, size_t i) {
    held *h = &k->sessions[i];
    client *c = &k->clients[i];
    json_t *o = c->whole && c->body.text ? json_loads(c->body.text, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(o, "id"));
    const json_t *tokens = json_object_get(o, "tokens");
    if (c->status != 200 || !o) {
        k->refused += c->status != 0 && c->status != 429; /* which asks to come again */
    } else if (h->asked == MAKE) {
        if (id) snprintf(h->id, sizeof h->id, "%s", id);
    } else if (h->asked == APPEND) {
        h->finished = PROMPT;
        k->turns++;
    } else {
        k->different +=
            json_array_size(tokens) != A_TURN || !are_expected(k, h, tokens, h->finished);
        h->finished += A_TURN;
        k->turns++;
    }
    h->asked = NONE;
    /* A history that is as long as what is known of it makes place for another. */
    if (h->finished >= PROMPT + ANSWER) *h = (held){.finished = 0};
    json_decref(o);
    client_close(c);
}

/* All clients call for so long; false: the server is gone. */
static bool work(chaos *k, double seconds) {
    const double until = kk_now() + seconds;
    const size_t n = (size_t)k->s->clients;
    while (kk_now() < until) {
        for (size_t i = 0; i < n; i++) {
            if (k->clients[i].state == CLIENT_DONE) end_call(k, i);
            if (k->clients[i].state == CLIENT_IDLE && !send_call(k, i)) return false;
        }
        const double left = until - kk_now();
        if (left > 0) (void)clients_wait(k->clients, n, left < 0.05 ? left : 0.05);
    }
    return true;
}

/* Answers that have come already were seen by their clients; calls that run may still end when
 * `wait` is set. */
static void let_go(chaos *k, bool wait) {
    const size_t n = (size_t)k->s->clients;
    size_t busy = 0;
    for (size_t i = 0; i < n; i++) busy += k->clients[i].state == CLIENT_BUSY;
    if (wait) {
        const double until = kk_now() + most_s;
        while (busy > 0 && kk_now() < until) {
            (void)clients_wait(k->clients, n, 0.1);
            for (size_t i = busy = 0; i < n; i++) busy += k->clients[i].state == CLIENT_BUSY;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (k->clients[i].state == CLIENT_DONE) end_call(k, i);
        client_close(&k->clients[i]);
        k->sessions[i].asked = NONE;
    }
}

/* Asks for every history.  One that is shorter than what was finished is lost, one that is not what
 * was said is different; a longer one holds a call whose answer did not arrive. */
static void verify(chaos *k, bool may_miss) {
    for (size_t i = 0; i < (size_t)k->s->clients; i++) {
        held *h = &k->sessions[i];
        char path[160];
        growing text = {0};
        if (!*h->id) continue;
        snprintf(path, sizeof path, "/v1/sessions/%s/tokens", h->id);
        const bool there = client_ask(k->server.port, path, NULL, &text, most_s);
        json_t *o = there ? json_loads(text.text, 0, NULL) : NULL;
        const json_t *tokens = json_object_get(o, "tokens");
        const size_t len = json_array_size(tokens);
        if (!there || !tokens) {
            k->lost += !may_miss && h->finished > 0;
            *h = (held){.finished = 0};
        } else {
            const bool same = are_expected(k, h, tokens, 0);
            k->lost += !may_miss && len < h->finished;
            k->different += !same;
            h->finished = len;
            if (!same || len % A_TURN != 0 || len >= PROMPT + ANSWER) *h = (held){.finished = 0};
        }
        json_decref(o);
        growing_free(&text);
    }
}

/* ---- kills --------------------------------------------------------------------------------- */

static void clear(chaos *k) { k->turns = k->lost = k->different = k->refused = 0; }

static bool restart(chaos *k) {
    if (target_start(&k->server, most_s)) return true;
    fprintf(stderr, "serving: the server does not start again: see %s\n", k->server.log);
    return false;
}

static bool one_kill(chaos *k) {
    const double after = 0.2 * (double)(draw(k) % 1000) / 1000;
    clear(k);
    /* One in four dies at any moment after its start, the others once some calls were answered. */
    const size_t enough = draw(k) % 4 == 0 ? 0 : 1 + draw(k) % 6;
    const double from = kk_now();
    bool runs = true;
    while (runs && k->turns < enough && kk_now() < from + 5) runs = work(k, 0.01);
    if (!(runs && work(k, after)) && !target_runs(&k->server)) {
        fprintf(stderr, "serving: the server ended by itself: see %s\n", k->server.log);
        return false;
    }
    target_kill(&k->server);
    let_go(k, false);
    if (!restart(k)) return false;
    const double ready = k->server.ready_s;
    verify(k, false);
    json_array_append_new(k->kills,
                          json_pack("{s:f, s:f, s:I, s:I, s:I}", "after_s", after, "ready_s", ready,
                                    "turns", (json_int_t)k->turns, "lost", (json_int_t)k->lost,
                                    "different", (json_int_t)k->different));
    return true;
}

/* ---- faults -------------------------------------------------------------------------------- */

static void add_fault(chaos *k, const char *name, size_t injected, size_t wrong) {
    json_array_append_new(k->faults, json_pack("{s:s, s:I, s:I}", "fault", name, "injected",
                                               (json_int_t)injected, "wrong", (json_int_t)wrong));
    printf("%s: %zu injected, %zu wrong\n", name, injected, wrong);
}

/* No file may grow past so many bytes; the program is told EFBIG where a disk would say ENOSPC. */
static void limit_files(const target *t, rlim_t bytes) {
    struct rlimit old, now = {bytes, RLIM_INFINITY};
    if (prlimit(t->pid, RLIMIT_FSIZE, NULL, &old) == 0) now.rlim_max = old.rlim_max;
    (void)prlimit(t->pid, RLIMIT_FSIZE, &now, NULL);
}

/* While nothing can be written calls are refused; none that was answered may be lost. */
static bool full_disk(chaos *k) {
    clear(k);
    bool good = work(k, 0.5);
    limit_files(&k->server, 1);
    for (int i = 0; good && i < 10 && (i < 1 || k->refused == 0); i++) good = work(k, 1);
    let_go(k, true);
    const size_t refused = k->refused;
    const bool ran = target_runs(&k->server);
    target_kill(&k->server);
    if (!restart(k)) return false;
    verify(k, false);
    good = good && work(k, 0.3);
    let_go(k, true);
    add_fault(k, "full disk", refused, k->lost + k->different + !ran);
    return good;
}

/* Four clients ask for long streams and read nothing; the others go on. */
static bool slow_clients(chaos *k) {
    client slow[4];
    growing body = {0};
    size_t sent = 0;
    spoken_request(&k->said[0], 3000, true, "", &body);
    clear(k);
    for (size_t i = 0; i < 4; i++) {
        slow[i] = (client){.fd = -1, .stalled = true, .receive = 2048};
        sent += client_send(&slow[i], k->server.port, "/v1/completions", body.text, body.len);
    }
    bool good = true;
    for (int i = 0; good && i < 10 && (i < 2 || k->turns == 0); i++) good = work(k, 1);
    let_go(k, true);
    for (size_t i = 0; i < 4; i++) client_close(&slow[i]);
    growing_free(&body);
    add_fault(k, "slow clients", sent, k->different + k->refused + (k->turns == 0));
    return good;
}

/* Clients that close their connection at any moment of a request. */
static bool vanishing_clients(chaos *k) {
    growing body = {0};
    size_t sent = 0;
    spoken_request(&k->said[1], 500, true, "", &body);
    clear(k);
    for (size_t i = 0; i < 60; i++) {
        const struct timespec nap = {.tv_nsec = (long)(draw(k) % 30) * 1000 * 1000};
        client c = {.fd = -1};
        sent += client_send(&c, k->server.port, "/v1/completions", body.text, body.len);
        nanosleep(&nap, NULL);
        client_close(&c);
    }
    growing_free(&body);
    const bool good = work(k, 1);
    let_go(k, true);
    double running = 1;
    for (int i = 0; i < 50 && running > 0; i++) {
        const struct timespec nap = {.tv_nsec = 100 * 1000 * 1000};
        nanosleep(&nap, NULL);
        running = target_metric(&k->server, "kakeya_num_requests_running");
    }
    add_fault(k, "vanishing clients", sent,
              k->different + k->refused + (k->turns == 0) + (running != 0));
    return good;
}

/* The number-th file of the state, counted through its folders; false: there are not so many. */
static bool find_file(const char *folder, size_t *number, char *out, size_t cap) {
    DIR *d = opendir(folder);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char path[512];
        struct stat st;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (stat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) found = find_file(path, number, out, cap);
        if (!S_ISREG(st.st_mode) || st.st_size == 0 || (*number)-- > 0) continue;
        snprintf(out, cap, "%s", path);
        found = true;
    }
    if (d) closedir(d);
    return found;
}

/* One file of the state, drawn, has a few bytes changed, or loses its end. */
static bool damage(chaos *k) {
    char path[512];
    struct stat st;
    size_t number = draw(k) % 40;
    for (size_t n = number; !find_file(k->folder, &n, path, sizeof path); n = number)
        if (number-- == 0) return false;
    if (stat(path, &st) != 0) return false;
    if (draw(k) % 3 == 0) return truncate(path, (off_t)(draw(k) % (uint64_t)st.st_size)) == 0;
    FILE *f = fopen(path, "r+e");
    for (int i = 0; f && i < 3; i++) {
        fseek(f, (long)(draw(k) % (uint64_t)st.st_size), SEEK_SET);
        fputc((int)(draw(k) % 256), f);
    }
    return f && fclose(f) == 0;
}

/* A damaged session may be refused, and nobody is served anything that was not said. */
static bool corrupt_state(chaos *k) {
    size_t injected = 0;
    clear(k);
    bool good = true;
    for (size_t i = 0; good && i < 20; i++) {
        good = work(k, 0.3);
        if (draw(k) % 2) {
            let_go(k, true);
            good = target_stop(&k->server, 40) && good; /* so that K/V is written too */
        } else {
            target_kill(&k->server);
            let_go(k, false);
        }
        injected += damage(k);
        if (!restart(k)) {
            k->different++; /* a server that does not start serves nobody */
            good = false;
            break;
        }
        verify(k, true);
    }
    good = good && work(k, 0.5);
    let_go(k, true);
    add_fault(k, "corrupt state", injected, k->different);
    return good;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static bool prepare(chaos *k) {
    kk_engine *e;
    target *t = &k->server;
    size_t n = 0;
    bool good = scene_open_engine(k->s, &e);
    if (!good) return false;
    k->envelope = scene_envelope(k->s, e);
    for (size_t i = 0; good && i < PROMPTS; i++)
        good =
            spoken_prompt(&k->said[i], k->s, e, i, PROMPT) && spoken_answer(&k->said[i], e, ANSWER);
    kk_engine_close(e);
    t->kakeya = k->s->kakeya;
    snprintf(t->log, sizeof t->log, "%s/chaos.log", k->s->work);
    snprintf(k->folder, sizeof k->folder, "%s/state", k->s->work);
    for (size_t i = 0; i < k->s->n_model_args; i++) t->args[n++] = k->s->model_args[i];
    t->args[n++] = "--state";
    t->args[n++] = k->folder;
    t->args[n++] = "--idle-time";
    t->args[n++] = "1";
    t->args[n++] = "--max-sessions";
    t->args[n++] = "4096";
    return good && restart(k);
}

/* On servers of their own: a request of which only the limit of its tokens was destroyed runs until
 * the context is full, which is to be soon. */
static bool small_server(chaos *k, const char *const *more) {
    target *t = &k->server;
    size_t n = k->s->n_model_args;
    const char *const args[] = {"-c", "128", "--sessions", "8", NULL};
    if (!target_stop(t, 40)) return false;
    memcpy(t->args + n, args, sizeof args);
    for (n += 4; *more; n++, more++) t->args[n] = *more;
    t->args[n] = NULL;
    return restart(k);
}

static bool malformed_requests(chaos *k) {
    static const char *const http[] = {NULL};
    static const char *const grpc[] = {"--grpc-port", "0", "--max-sessions", "64", NULL};
    const size_t n = (size_t)k->s->requests;
    if (!small_server(k, http)) return false;
    k->malformed = malformed_run(&k->server, n, k->s->seed);
    if (!k->malformed || !small_server(k, grpc)) return false;
    k->malformed_grpc = malformed_grpc_run(&k->server, n, k->s->seed);
    return k->malformed_grpc != NULL;
}

static bool measure(chaos *k) {
    bool good = prepare(k);
    for (int i = 0; good && i < k->s->kills; i++) {
        good = one_kill(k);
        if (i % 20 == 19) printf("%d kills\n", i + 1);
    }
    good = good && full_disk(k) && slow_clients(k) && vanishing_clients(k) && corrupt_state(k);
    good = good && malformed_requests(k) && target_stop(&k->server, 40);
    target_kill(&k->server);
    return good;
}

static json_t *settings_of(const scene *s) {
    return json_pack("{s:i, s:i, s:i, s:I, s:f, s:f}", "clients", s->clients, "kills", s->kills,
                     "requests", s->requests, "seed", (json_int_t)s->seed, "max_ready_s", 2.0,
                     "max_leak", max_leak);
}

int measure_chaos(const scene *s) {
    chaos *k = calloc(1, sizeof *k);
    if (!k) return 1;
    *k = (chaos){.s = s, .state = s->seed, .kills = json_array(), .faults = json_array()};
    const bool good = measure(k);
    json_t *body =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "settings", settings_of(s), "kills", k->kills,
                  "faults", k->faults, "malformed", k->malformed ? k->malformed : json_object(),
                  "malformed_grpc", k->malformed_grpc ? k->malformed_grpc : json_object());
    const int code = scene_write(s, "chaos", k->envelope, body);
    for (size_t i = 0; i < PROMPTS; i++) spoken_free(&k->said[i]);
    free(k);
    return good ? code : 1;
}
