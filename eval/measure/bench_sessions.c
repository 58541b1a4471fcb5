/* bench_sessions.c - several sessions of one engine, each decoding in a thread of its own, against
 * the same sessions one after the other; and what a session that decodes notices of a long prompt
 * that arrives beside it.
 *
 * Every session has a prompt of its own and must give the same logits together as alone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/wake.h"
#include "eval/measure/bench_parts.h"
#include "eval/reports/report.h"

enum { MOST = KK_BENCH_MOST_SESSIONS, ARRIVING = 4096, BESIDE = 1024, BEFORE = 8 };

typedef struct {
    const kk_bench_opts *opts;
    kk_engine *engine;
    kk_bench_sessions *out;
    kk_session *of[MOST];
    int32_t ctx;
} sessions;

/* ---- one session --------------------------------------------------------------------------- */

static kk_status append_random(kk_engine *e, kk_session *s, int32_t n, uint64_t seed, kk_err *err) {
    kk_model_info model;
    kk_engine_info(e, &model);
    int32_t *ids = kk_calloc((size_t)n, sizeof *ids);
    if (!ids) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", n);
    uint64_t state = 0x9e3779b97f4a7c15u * (seed + 77);
    for (int32_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)model.vocab);
    }
    const kk_status st = kk_session_append(s, ids, (size_t)n, NULL, NULL, err);
    kk_free(ids);
    return st;
}

/* With a checkpoint at its end, so that going back to it is free. */
static kk_status open_session(sessions *b, int32_t i, int32_t more, kk_err *err) {
    const kk_session_opts how = kk_bench_session(b->opts, KK_SPEC_NONE, b->ctx + more);
    KK_TRY(kk_session_new(&b->of[i], b->engine, &how, err));
    KK_TRY(append_random(b->engine, b->of[i], b->ctx, (uint64_t)i, err));
    return kk_session_checkpoint(b->of[i], err);
}

/* One session's generation, in a thread or not.  The first token takes no round. */
typedef struct {
    kk_session *s;
    int32_t predict;
    kk_wake *start; /* NULL: at once */
    kk_result r;
    double ended;
    kk_status st;
    kk_err err;
} generation;

static void *generate(void *arg) {
    generation *g = arg;
    const kk_generate_opts how = {.max_tokens = g->predict + 1, .ignore_eos = true};
    if (g->start) (void)kk_wake_wait(g->start, 0);
    g->st = kk_generate(g->s, &how, NULL, NULL, &g->r, &g->err);
    g->ended = kk_now();
    return NULL;
}

static kk_status finish(const sessions *b, const generation *g, int32_t i, kk_bench_turns_of *turn,
                        uint64_t hash[MOST], kk_err *err) {
    if (g->st != KK_OK) {
        if (err) *err = g->err;
        return g->st;
    }
    turn->tokens += g->r.n_tokens - 1;
    turn->different += hash[i] && hash[i] != g->r.logits_hash;
    hash[i] = g->r.logits_hash;
    return kk_session_rewind(b->of[i], b->ctx, NULL, err);
}

static kk_status run_alone(sessions *b, kk_bench_turns_of *turn, kk_err *err) {
    for (int32_t i = 0; i < b->out->n; i++) {
        generation g = {.s = b->of[i], .predict = b->opts->predict};
        const double from = kk_now();
        generate(&g);
        turn->seconds += g.ended - from;
        KK_TRY(finish(b, &g, i, turn, b->out->alone_hash, err));
    }
    return KK_OK;
}

/* All begin at once; the time is over when the last one ends. */
static kk_status run_together(sessions *b, kk_bench_turns_of *turn, kk_err *err) {
    generation g[MOST];
    kk_wake start[MOST];
    pthread_t id[MOST];
    const int32_t n = b->out->n;
    int32_t started = 0;
    double ended = 0;
    for (int32_t i = 0; i < n; i++) {
        kk_wake_init(&start[i]);
        g[i] = (generation){.s = b->of[i], .predict = b->opts->predict, .start = &start[i]};
    }
    while (started < n && pthread_create(&id[started], NULL, generate, &g[started]) == 0) started++;
    const double from = kk_now();
    for (int32_t i = 0; i < started; i++) kk_wake_set(&start[i], 1);
    for (int32_t i = 0; i < started; i++) pthread_join(id[i], NULL);
    for (int32_t i = 0; i < n; i++) kk_wake_free(&start[i]);
    if (started < n)
        return kk_fail(err, KK_ENOMEM, "the system started only %d of %d threads", started, n);
    for (int32_t i = 0; i < n; i++) {
        memcpy(&b->out->together_hash[i], &b->out->alone_hash[i], sizeof(uint64_t));
        KK_TRY(finish(b, &g[i], i, turn, b->out->together_hash, err));
        if (g[i].ended > ended) ended = g[i].ended;
    }
    turn->seconds = ended - from;
    return KK_OK;
}

static kk_status compare(sessions *b, kk_err *err) {
    kk_bench_sessions *out = b->out;
    kk_bench_turns_of warm = {0};
    for (int32_t i = 0; i < out->n; i++) KK_TRY(open_session(b, i, b->opts->predict + 2, err));
    KK_TRY(run_alone(b, &warm, err));
    KK_TRY(run_together(b, &warm, err));
    for (int32_t i = 0; i < b->opts->repeat; i++) {
        kk_sharing before, after;
        KK_TRY(kk_bench_step(b->opts, "timing sessions alone and together", err));
        KK_TRY(run_alone(b, &out->alone[i], err));
        kk_engine_sharing(b->engine, &before);
        KK_TRY(run_together(b, &out->together[i], err));
        kk_engine_sharing(b->engine, &after);
        out->rounds += after.rounds - before.rounds;
        out->in_rounds += after.sessions - before.sessions;
        out->turns++;
    }
    return KK_OK;
}

/* ---- a prompt beside a session that decodes ------------------------------------------------ */

typedef struct {
    kk_session *s;
    _Atomic bool arrives, read; /* the prompt is on its way; it is read */
    kk_wake ready;              /* set after a few tokens, or when it ended before */
    int32_t tokens;
    double last, gap[BESIDE + BEFORE];
    int32_t n;
    kk_result r;
    kk_status st;
    kk_err err;
} listener;

static bool on_token(void *arg, int32_t id) {
    listener *l = arg;
    (void)id;
    const double now = kk_now();
    if (atomic_load(&l->arrives) && l->last > 0) l->gap[l->n++] = now - l->last;
    l->last = now;
    if (++l->tokens == BEFORE) kk_wake_set(&l->ready, 1);
    return !atomic_load(&l->read) && l->n < BESIDE;
}

static void *listen(void *arg) {
    listener *l = arg;
    const kk_generate_opts how = {.ignore_eos = true};
    l->st = kk_generate(l->s, &how, on_token, l, &l->r, &l->err);
    atomic_store(&l->read, true);
    if (l->tokens < BEFORE) kk_wake_set(&l->ready, 1);
    return NULL;
}

static kk_status read_prompt(sessions *b, kk_session *s, double *seconds, kk_err *err) {
    const double from = kk_now();
    KK_TRY(append_random(b->engine, s, b->out->arriving, 1000, err));
    *seconds = kk_now() - from;
    return KK_OK;
}

/* Whether the listener's logits, and those after the prompt, are what they are alone. */
static kk_status hear_alone(sessions *b, const listener *l, kk_session *prompt, kk_session *again,
                            kk_err *err) {
    kk_model_info model;
    const float *x, *y;
    kk_result r;
    kk_engine_info(b->engine, &model);
    const kk_generate_opts how = {.max_tokens = l->r.n_tokens, .ignore_eos = true};
    KK_TRY(kk_session_rewind(l->s, b->ctx, NULL, err));
    KK_TRY(kk_generate(l->s, &how, NULL, NULL, &r, err));
    KK_TRY(read_prompt(b, again, &b->out->prefill_alone_s, err));
    KK_TRY(kk_session_logits(prompt, &x, err));
    KK_TRY(kk_session_logits(again, &y, err));
    const size_t bytes = (size_t)model.vocab * sizeof *x;
    b->out->arrival_alone[0] = r.logits_hash;
    b->out->arrival_beside[0] = l->r.logits_hash;
    b->out->arrival_alone[1] = kk_hash_bytes(KK_HASH_START, y, bytes);
    b->out->arrival_beside[1] = kk_hash_bytes(KK_HASH_START, x, bytes);
    return KK_OK;
}

static kk_status arrive(sessions *b, listener *l, kk_session *prompt, kk_err *err) {
    kk_bench_sessions *out = b->out;
    kk_sharing before, after;
    pthread_t id;
    if (pthread_create(&id, NULL, listen, l) != 0)
        return kk_fail(err, KK_ENOMEM, "the system started no thread");
    (void)kk_wake_wait(&l->ready, 0);
    kk_engine_sharing(b->engine, &before);
    atomic_store(&l->arrives, true);
    const kk_status st = read_prompt(b, prompt, &out->prefill_beside_s, err);
    atomic_store(&l->read, true);
    pthread_join(id, NULL);
    kk_engine_sharing(b->engine, &after);
    out->chunks = after.chunks - before.chunks;
    if (st != KK_OK) return st;
    if (l->st != KK_OK && err) *err = l->err;
    return l->st;
}

static kk_status time_arrival(sessions *b, kk_err *err) {
    kk_model_info model;
    kk_bench_sessions *out = b->out;
    kk_engine_info(b->engine, &model);
    KK_TRY(kk_bench_step(b->opts, "timing a prompt beside a session that decodes", err));
    out->arriving = model.context - 1 < ARRIVING ? model.context - 1 : ARRIVING;
    const int32_t more = model.context - b->ctx < BESIDE ? model.context - b->ctx : BESIDE;
    const kk_session_opts how = kk_bench_session(b->opts, KK_SPEC_NONE, out->arriving + 1);
    kk_session *prompt = NULL, *again = NULL;
    listener *l = kk_zalloc(sizeof *l);
    if (!l) return kk_fail(err, KK_ENOMEM, "no memory for the times of tokens");
    kk_wake_init(&l->ready);
    kk_session_free(b->of[0]);
    b->of[0] = NULL;
    kk_status st = open_session(b, 0, more, err);
    if (st == KK_OK) st = kk_session_new(&prompt, b->engine, &how, err);
    if (st == KK_OK) st = kk_session_new(&again, b->engine, &how, err);
    l->s = b->of[0];
    if (st == KK_OK) st = arrive(b, l, prompt, err);
    if (st == KK_OK) st = hear_alone(b, l, prompt, again, err);
    out->gaps = l->n ? kk_calloc((size_t)l->n, sizeof *out->gaps) : NULL;
    if (out->gaps) memcpy(out->gaps, l->gap, (size_t)l->n * sizeof *out->gaps);
    if (st == KK_OK && l->n && !out->gaps)
        st = kk_fail(err, KK_ENOMEM, "no memory for the times of tokens");
    out->gap = kk_bench_spread_of(l->gap, l->n);
    kk_session_free(again);
    kk_session_free(prompt);
    kk_wake_free(&l->ready);
    kk_free(l);
    return st;
}

/* ---- all of it --------------------------------------------------------------------------- */

static void sum(kk_bench_turns_of *out, const kk_bench_turns_of *turn, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        out->tokens += turn[i].tokens;
        out->seconds += turn[i].seconds;
        out->different += turn[i].different;
    }
}

kk_status kk_bench_share(const kk_bench_opts *o, kk_engine *e, kk_bench_result *r, kk_err *err) {
    sessions b = {.opts = o, .engine = e, .out = &r->sessions, .ctx = o->ctx};
    kk_bench_sessions *out = b.out;
    out->n = o->sessions;
    kk_status st = compare(&b, err);
    for (int32_t i = 1; i < out->n; i++) kk_session_free(b.of[i]);
    if (st == KK_OK) st = time_arrival(&b, err);
    kk_session_free(b.of[0]);
    sum(&out->all_alone, out->alone, out->turns);
    sum(&out->all_together, out->together, out->turns);
    const double alone = (double)out->all_alone.tokens / out->all_alone.seconds;
    out->ratio = (double)out->all_together.tokens / out->all_together.seconds / alone;
    return st;
}

static bool arrival_same(const kk_bench_sessions *s) {
    return s->arrival_alone[0] == s->arrival_beside[0] &&
           s->arrival_alone[1] == s->arrival_beside[1];
}

/* ---- the report -------------------------------------------------------------------------- */

/* Of the session that decodes, and of the one that reads its prompt beside it. */
static json_t *arrival_hashes(const kk_bench_sessions *s) {
    return json_pack("[{s:o, s:o}, {s:o, s:o}]", "alone", kk_report_hash(s->arrival_alone[0]),
                     "beside", kk_report_hash(s->arrival_beside[0]), "alone",
                     kk_report_hash(s->arrival_alone[1]), "beside",
                     kk_report_hash(s->arrival_beside[1]));
}

static json_t *turns_json(const kk_bench_turns_of *all, const kk_bench_turns_of *turn, int32_t n) {
    double rate[KK_BENCH_MAX_REPEAT];
    json_t *rows = json_array();
    for (int32_t i = 0; i < n; i++) {
        rate[i] = (double)turn[i].tokens / turn[i].seconds;
        json_array_append_new(rows, json_pack("{s:I, s:f, s:i}", "tokens",
                                              (json_int_t)turn[i].tokens, "seconds",
                                              turn[i].seconds, "different", turn[i].different));
    }
    const kk_bench_spread spread = kk_bench_spread_of(rate, n);
    return json_pack("{s:I, s:f, s:f, s:o, s:o}", "tokens", (json_int_t)all->tokens, "seconds",
                     all->seconds, "tok_s", (double)all->tokens / all->seconds, "tok_s_spread",
                     kk_bench_spread_json(&spread), "rows", rows);
}

static json_t *hashes_json(const kk_bench_sessions *s) {
    json_t *list = json_array();
    for (int32_t i = 0; i < s->n; i++) {
        char alone[24], together[24];
        snprintf(alone, sizeof alone, "%016llx", (unsigned long long)s->alone_hash[i]);
        snprintf(together, sizeof together, "%016llx", (unsigned long long)s->together_hash[i]);
        json_array_append_new(list, json_pack("{s:s, s:s}", "alone", alone, "together", together));
    }
    return list;
}

json_t *kk_bench_sessions_json(const kk_bench_opts *o, const kk_bench_result *r) {
    const kk_bench_sessions *s = &r->sessions;
    if (!s->n) return NULL;
    json_t *arrival =
        json_pack("{s:i, s:f, s:f, s:I, s:o, s:b, s:o}", "prompt", s->arriving, "alone_s",
                  s->prefill_alone_s, "beside_s", s->prefill_beside_s, "chunks",
                  (json_int_t)s->chunks, "gap_s", kk_bench_rates_json(&s->gap, s->gaps),
                  "identical", arrival_same(s), "logits_hashes", arrival_hashes(s));
    return json_pack(
        "{s:i, s:i, s:i, s:o, s:o, s:f, s:I, s:I, s:b, s:o, s:o}", "n", s->n, "ctx", o->ctx,
        "predict", o->predict, "alone", turns_json(&s->all_alone, s->alone, s->turns), "together",
        turns_json(&s->all_together, s->together, s->turns), "ratio", s->ratio, "rounds",
        (json_int_t)s->rounds, "sessions_in_rounds", (json_int_t)s->in_rounds, "identical",
        kk_bench_sessions_same(s), "logits_hashes", hashes_json(s), "arrival", arrival);
}

bool kk_bench_sessions_same(const kk_bench_sessions *s) {
    bool same = s->all_alone.different == 0 && s->all_together.different == 0;
    for (int32_t i = 0; i < s->n; i++) same &= s->alone_hash[i] == s->together_hash[i];
    return same && arrival_same(s);
}
