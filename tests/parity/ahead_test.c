/* ahead_test.c - rounds that are enqueued before their token is known leave what rounds one by one
 * leave: tokens, hash, reason of the end, statistics, what attention read, cache rows, counted
 * bytes and the saved file, and all of that again after the next turn.
 *
 * Two engines of the same weights, one of each way.  Generations end at every place: a stop id at
 * the first, second, any and last token, the limit, the callback, the full context.  Prompts are
 * as long as makes the rows in flight cross page borders and leave the window. */
#define _GNU_SOURCE
#include <time.h>

#include "backend/cpu/device.h"
#include "core/hash.h"
#include "model/model.h"
#include "support/rounds.h"
#include "support/saved_session.h"

enum { TOKENS = 24 };

static kk_engine *engine(const char *spec, int32_t ahead, uint64_t limit) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .synthetic = spec, .threads = 1, .no_pin = true, .ahead = ahead, .memory_limit = limit};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

typedef struct {
    int32_t left; /* tokens until it says stop; -1: never */
    int32_t seen[TOKENS];
    int32_t n;
} listener;

static bool hear(void *user, int32_t id) {
    listener *l = user;
    if (l->n < TOKENS) l->seen[l->n] = id;
    l->n++;
    return l->left < 0 || l->n < l->left;
}

static void assert_same_result(const kk_result *a, const kk_result *b) {
    assert_int_equal(a->stop, b->stop);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->rounds, b->rounds);
    assert_true(a->logits_hash == b->logits_hash);
    assert_int_equal(a->spec.rounds, b->spec.rounds);
    assert_int_equal(a->spec.rows, b->spec.rows);
    assert_int_equal(a->spec.drafted, b->spec.drafted);
    assert_memory_equal(a->spec.histogram, b->spec.histogram, sizeof a->spec.histogram);
    assert_memory_equal(a->spec.chosen, b->spec.chosen, sizeof a->spec.chosen);
}

static void assert_same_counts(kk_session *a, kk_session *b) {
    int64_t x[KK_MEM_CATEGORIES], y[KK_MEM_CATEGORIES];
    kk_key_counts p, q;
    kk_session_key_counts(a, &p);
    kk_session_key_counts(b, &q);
    assert_memory_equal(&p, &q, sizeof p);
    kk_engine_memory(a->engine, x);
    kk_engine_memory(b->engine, y);
    for (int c = KK_MEM_KV_SLIDING; c <= KK_MEM_KV_LATENTS; c++) assert_int_equal(x[c], y[c]);
}

/* Both go on alike from here. */
static void compare(scratch *w, kk_session *a, kk_session *b, const kk_generate_opts *how,
                    int32_t left) {
    kk_result x, y;
    listener p = {.left = left}, q = p;
    assert_ok(kk_generate(a, how, hear, &p, &x, why));
    assert_ok(kk_generate(b, how, hear, &q, &y, why));
    assert_int_equal(p.n, q.n);
    assert_memory_equal(p.seen, q.seen, sizeof p.seen);
    assert_same_result(&x, &y);
    assert_null(a->engine->rounds.in_flight);
    assert_same(a, b);
    assert_same_counts(a, b);
    assert_same_file(w, a, b);
}

/* A generation that ends so, a fork of it, the next turn, and one after a rewind. */
static void check_ending(scratch *w, kk_engine *one, kk_engine *two, int32_t len, int32_t ctx,
                         const kk_generate_opts *how, int32_t left) {
    kk_session *a = tiny_session(one, ctx, KK_KV_BF16), *b = tiny_session(two, ctx, KK_KV_BF16);
    kk_session *c, *d;
    tiny_append(a, prompt, len);
    tiny_append(b, prompt, len);
    compare(w, a, b, how, left);
    if (a->len + 40 < ctx) {
        const kk_generate_opts more = {.max_tokens = 7, .ignore_eos = true};
        assert_ok(kk_session_fork(&c, a, why));
        assert_ok(kk_session_fork(&d, b, why));
        compare(w, c, d, &more, -1);
        kk_session_free(c);
        kk_session_free(d);
        tiny_append(a, prompt + len, 9);
        tiny_append(b, prompt + len, 9);
        compare(w, a, b, &more, -1);
        assert_ok(kk_session_rewind(a, a->len - 3, NULL, why));
        assert_ok(kk_session_rewind(b, b->len - 3, NULL, why));
        compare(w, a, b, &more, -1);
    }
    kk_session_free(a);
    kk_session_free(b);
}

/* What the model says, to choose stop ids from. */
static void spoken(kk_engine *e, int32_t len, int32_t out[TOKENS]) {
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    listener l = {.left = -1};
    tiny_append(s, prompt, len);
    assert_ok(kk_generate(s, &how, hear, &l, NULL, why));
    memcpy(out, l.seen, sizeof l.seen);
    kk_session_free(s);
}

static const char *const specs[] = {"tiny:f32:2", "tiny-ple:q8_0:6"};
static const int32_t borders[] = {1, 61, 62, 63, 64, 126, 190};

static void every_ending_leaves_the_same(void **state) {
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        kk_engine *one = engine(specs[i], 1, 0), *two = engine(specs[i], -1, 0);
        for (size_t k = i; k < sizeof borders / sizeof *borders; k += 1 + i) {
            int32_t said[TOKENS];
            spoken(two, borders[k], said);
            for (int32_t at = 0; at < TOKENS; at += at < 3 ? 1 : 7) {
                const kk_generate_opts stop = {
                    .max_tokens = TOKENS, .stop_ids = &said[at], .n_stop_ids = 1};
                check_ending(*state, one, two, borders[k], CTX, &stop, -1);
                const kk_generate_opts limit = {.max_tokens = at + 1, .ignore_eos = true};
                check_ending(*state, one, two, borders[k], CTX, &limit, -1);
                const kk_generate_opts free = {.max_tokens = TOKENS, .ignore_eos = true};
                check_ending(*state, one, two, borders[k], CTX, &free, at + 1);
            }
            const kk_generate_opts last = {
                .max_tokens = TOKENS, .stop_ids = &said[TOKENS - 1], .n_stop_ids = 1};
            check_ending(*state, one, two, borders[k], CTX, &last, -1);
            const kk_generate_opts all = {.ignore_eos = true};
            check_ending(*state, one, two, borders[k], borders[k] + 20, &all, -1);
        }
        kk_engine_close(one);
        kk_engine_close(two);
    }
}

static const uint32_t *any_at_all(void *user, const int32_t *tokens, int32_t n) {
    (void)user, (void)tokens, (void)n;
    return NULL;
}

/* All rounds but the first of a generation go ahead, and none where the host chooses. */
static void it_does_go_ahead(void **state) {
    (void)state;
    kk_engine *e = engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    kk_generate_opts how = {.max_tokens = 10, .ignore_eos = true};
    kk_result r;
    tiny_append(s, prompt, 30);
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_int_equal(r.rounds, 9); /* the first token needs none */
    assert_int_equal(r.spec.ahead, 8);
    how.sampling.temp = 1;
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_true(r.spec.ahead >= 8);
    how.sampling = (kk_sampling){.repeat_penalty = 1.2f};
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_true(r.spec.ahead >= 8);
    how.mask_at = any_at_all; /* which may ask what was chosen before */
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_int_equal(r.spec.ahead, 0);
    how.mask_at = NULL;
    e->rounds.samples = false; /* a device that does not sample */
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_int_equal(r.spec.ahead, 0);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- sampling ----------------------------------------------------------------------------- */

static uint64_t heard; /* log-probabilities of a generation */
static void hear_logprobs(void *user, const kk_logprobs *of) {
    uint32_t bits;
    (void)user;
    memcpy(&bits, &of->chosen.logprob, sizeof bits);
    heard = kk_hash_add(heard, bits + ((uint64_t)of->chosen.id << 32));
    for (int32_t i = 0; i < of->n_best; i++) {
        memcpy(&bits, &of->best[i].logprob, sizeof bits);
        heard = kk_hash_add(heard, bits + ((uint64_t)of->best[i].id << 32));
    }
}

/* What is drawn does not depend on when the round was enqueued; penalties see the token in
 * flight. */
static void sampled_rounds_go_ahead_too(void **state) {
    static const kk_logit_bias bias[] = {{7, 2}, {3, -1}, {7, 0.5f}};
    static uint32_t mask[64];
    kk_engine *one = engine("tiny:f32:2", 1, 0), *two = engine("tiny:f32:2", -1, 0);
    assert_true(one->rounds.vocab <= 64 * 32);
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++) mask[i] = 0x5a5a5a5au;
    const kk_generate_opts ways[] = {
        {.sampling = {.temp = 0.8f, .seed = 3}},
        {.sampling = {.temp = 1, .top_k = 40, .top_p = 0.95f, .seed = 4}},
        {.sampling = {.repeat_penalty = 1.5f, .penalty_last_n = 3}},
        {.sampling = {.temp = 2, .min_p = 0.01f, .frequency_penalty = 1, .penalty_last_n = -1}},
        {.sampling = {.temp = 5, .presence_penalty = 2, .seed = 9}, .bias = bias, .n_bias = 3},
        {.sampling = {.temp = 1, .seed = 1}, .mask = mask},
        {.sampling = {.temp = 1, .seed = 2}, .n_logprobs = 5, .on_logprobs = hear_logprobs},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        kk_session *a = tiny_session(one, CTX, KK_KV_BF16), *b = tiny_session(two, CTX, KK_KV_BF16);
        kk_generate_opts how = ways[i];
        kk_result r;
        how.max_tokens = TOKENS;
        how.ignore_eos = true;
        tiny_append(a, prompt, 40);
        tiny_append(b, prompt, 40);
        compare(*state, a, b, &how, -1);
        compare(*state, a, b, &how, 5);
        heard = 0;
        assert_ok(kk_generate(a, &how, NULL, NULL, &r, why));
        const uint64_t first = heard;
        assert_true(r.spec.ahead >= TOKENS - 2);
        heard = 0;
        assert_ok(kk_generate(b, &how, NULL, NULL, &r, why));
        assert_true(r.spec.ahead == 0 && heard == first && (!how.on_logprobs || heard != 0));
        kk_session_free(a);
        kk_session_free(b);
    }
    kk_engine_close(one);
    kk_engine_close(two);
}

static int32_t rows_read;
static kk_status count_reads(kk_dev *dev, const kk_buf *b, size_t off, void *dst, size_t n,
                             kk_err *err) {
    rows_read++;
    return kk_cpu_backend.read(dev, b, off, dst, n, err);
}

/* Sessions in one forward, of which some sample: the device chooses for all of them, with one place
 * for each, but for one whose mask asks the host; every one gets what it gets alone. */
static void sampled_rounds_of_several_sessions(void **state) {
    (void)state;
    enum { SESSIONS = 4, ROUNDS = 12 };
    static const kk_sampling hows[SESSIONS] = {
        {.temp = 0},
        {.temp = 0.9f, .top_k = 30, .repeat_penalty = 1.3f, .penalty_last_n = -1, .seed = 5},
        {.temp = 1, .top_p = 0.9f, .seed = 6},
        {.temp = 1, .seed = 7}};
    kk_engine *one = engine("tiny:f32:2", 1, 0), *two = engine("tiny:f32:2", -1, 0);
    kk_backend counts = kk_cpu_backend;
    kk_session *a[SESSIONS], *b[SESSIONS];
    kk_round round[SESSIONS], *rounds[SESSIONS];
    kk_logprobs logprobs[KK_MAX_DRAFT + 1];
    kk_spec_stats stats = {0};
    uint64_t together = 0;
    counts.read = count_reads;
    heard = 0;
    for (int i = 0; i < SESSIONS; i++) {
        a[i] = tiny_session(one, CTX, KK_KV_BF16);
        b[i] = tiny_session(two, CTX, KK_KV_BF16);
        tiny_append(a[i], prompt + 7 * i, 20 + i);
        tiny_append(b[i], prompt + 7 * i, 20 + i);
        round[i] = round_of(a[i], &hows[i], ROUNDS + 1, &stats);
        rounds[i] = &round[i];
    }
    round[2].choose = (kk_choose_opts){.n_logprobs = 3, .logprobs = logprobs};
    round[3].choose.mask_at = any_at_all;
    for (int k = 0; k <= ROUNDS; k++) {
        one->model->be = &counts;
        rows_read = 0;
        for (int i = 0; k == 0 && i < SESSIONS; i++) kk_round_first(&one->rounds, rounds[i]);
        if (k > 0) assert_ok(kk_round_run(&one->rounds, rounds, SESSIONS, why));
        assert_int_equal(rows_read, k > 0); /* of the session whose mask asks */
        hear_logprobs(NULL, logprobs);
        for (int i = 0; i < SESSIONS; i++) kk_round_commit(rounds[i], rounds[i]->n_out);
    }
    together = heard;
    heard = 0;
    for (int i = 0; i < SESSIONS; i++) {
        const kk_generate_opts alone = {.max_tokens = ROUNDS + 1,
                                        .ignore_eos = true,
                                        .sampling = hows[i],
                                        .n_logprobs = i == 2 ? 3 : 0,
                                        .on_logprobs = i == 2 ? hear_logprobs : NULL};
        assert_ok(kk_generate(b[i], &alone, NULL, NULL, NULL, why));
        assert_int_equal(b[i]->len, rounds[i]->len);
        assert_memory_equal(b[i]->tokens, a[i]->tokens, (size_t)b[i]->len * sizeof *b[i]->tokens);
    }
    assert_true(together == heard && heard != 0);
    one->model->be = &kk_cpu_backend;
    for (int i = 0; i < SESSIONS; i++) {
        kk_session_free(a[i]);
        kk_session_free(b[i]);
    }
    kk_engine_close(one);
    kk_engine_close(two);
}

/* ---- sinks -------------------------------------------------------------------------------- */

/* Rows enter a sink when they are committed: while one of them is in flight, the next round would
 * look for it there in vain. */
static void sinks_fill_up_all_the_same(void **state) {
    static const int32_t lens[] = {1, 2, 3, 4, 9, 62, 130}, sinks[] = {4, 20, 64};
    kk_engine *one = engine("tiny:f32:3", 1, 0), *two = engine("tiny:f32:3", -1, 0);
    const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        for (size_t k = 0; k < sizeof sinks / sizeof *sinks; k++) {
            const kk_session_opts keeps = {.kv_sliding = k % 2 ? KK_KEEP_ALL : KK_KEEP_WINDOW,
                                           .kv_full = KK_KEEP_WINDOW,
                                           .sink = sinks[k],
                                           .window = i % 2 ? -1 : 6,
                                           .chunk = 4};
            kk_session *a = session_with(one, keeps), *b = session_with(two, keeps);
            tiny_append(a, prompt, lens[i]);
            tiny_append(b, prompt, lens[i]);
            compare(*state, a, b, &how, -1);
            compare(*state, a, b, &how, 11);
            kk_session_free(a);
            kk_session_free(b);
        }
    }
    kk_engine_close(one);
    kk_engine_close(two);
}

/* ---- company ------------------------------------------------------------------------------ */

typedef struct {
    kk_session *other;
    kk_generate_opts how;
    uint64_t hash;
} company;

/* Another session says a token, or is told some, whenever this one has said one. */
static bool others_speak(void *user, int32_t id) {
    company *c = user;
    kk_result r;
    if (id % 3 == 0) tiny_append(c->other, &id, 1);
    assert_ok(kk_generate(c->other, &c->how, NULL, NULL, &r, why));
    c->hash = kk_hash_add(c->hash, r.logits_hash);
    return true;
}

static void company_makes_no_difference(void **state) {
    (void)state;
    uint64_t hash[2][2];
    for (int i = 0; i < 2; i++) {
        kk_engine *e = engine("tiny:f32:3", i ? -1 : 1, 0);
        kk_session *a = tiny_session(e, CTX, KK_KV_BF16), *b = tiny_session(e, CTX, KK_KV_BF16);
        company with = {.other = b, .how = {.max_tokens = 3, .ignore_eos = true}};
        const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
        kk_result r;
        tiny_append(a, prompt, 50);
        tiny_append(b, prompt + 100, 20);
        assert_ok(kk_generate(a, &how, others_speak, &with, &r, why));
        hash[i][0] = r.logits_hash;
        hash[i][1] = with.hash;
        kk_session_free(a);
        kk_session_free(b);
        kk_engine_close(e);
    }
    assert_true(hash[0][0] == hash[1][0] && hash[0][1] == hash[1][1]);
}

/* What another session's round reads on this one's behalf may fail, and whoever reads for others
 * asks for no reason: the round is run again, and what was chosen since then is not taken for its
 * choice. */
static kk_status lost(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                      kk_err *err) {
    return err ? kk_cpu_picked(dev, ticket, out, n, seconds, err) : KK_EDEVICE;
}

static const double device_s = 0.25;

static kk_status timed(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                       kk_err *err) {
    const kk_status st = kk_cpu_picked(dev, ticket, out, n, seconds, err);
    *seconds = device_s;
    return st;
}

/* A round that was enqueued ahead is done when the host looks: what it took is what the device's
 * clock says, in the controller's table too. */
static void rounds_in_flight_cost_what_the_device_says(void **state) {
    (void)state;
    kk_backend clock = kk_cpu_backend;
    clock.picked = timed;
    kk_engine *e = engine("tiny:f32:2", 1, 0);
    e->model->be = &clock;
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    kk_result r;
    tiny_append(s, prompt, 50);
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_true(r.spec.ahead > 0 && r.rounds > 2);
    assert_true(fabs(r.spec.verify_s - device_s * r.rounds) < 1e-9);
    kk_session_free(s);
    kk_engine_close(e);
}

static void a_lost_choice_is_made_again(void **state) {
    uint64_t hash[2];
    kk_backend loses = kk_cpu_backend;
    loses.picked = lost;
    for (int i = 0; i < 2; i++) {
        kk_engine *e = engine("tiny:f32:3", i ? -1 : 1, 0);
        e->model->be = &loses;
        kk_session *a = tiny_session(e, CTX, KK_KV_BF16), *b = tiny_session(e, CTX, KK_KV_BF16);
        company with = {.other = b, .how = {.max_tokens = 2, .ignore_eos = true}};
        const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
        kk_err err;
        kk_result r;
        tiny_append(a, prompt, 50);
        tiny_append(b, prompt + 100, 20);
        assert_int_equal(kk_generate(a, &how, others_speak, &with, &r, &err), KK_OK);
        hash[i] = kk_hash_add(r.logits_hash, with.hash);
        assert_int_equal(a->len, 50 + TOKENS);
        assert_same_file(*state, a, a);
        kk_session_free(a);
        kk_session_free(b);
        kk_engine_close(e);
    }
    assert_true(hash[0] == hash[1]);
}

static bool dawdle(void *user, int32_t id) {
    const struct timespec pause = {.tv_nsec = 3000000};
    (void)user, (void)id;
    nanosleep(&pause, NULL);
    return true;
}

/* What the caller does between rounds is no part of them. */
static void a_slow_caller_is_not_counted(void **state) {
    (void)state;
    kk_engine *e = engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    kk_result r;
    tiny_append(s, prompt, 30);
    assert_ok(kk_generate(s, &how, dawdle, NULL, &r, why));
    assert_true(r.spec.ahead > 0);
    assert_true(r.spec.verify_s <= r.decode_s);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- what may fail ------------------------------------------------------------------------ */

/* Takes memory for everything and then none: neither way allocates after the first token. */
static void nothing_is_allocated(void **state) {
    (void)state;
    kk_engine *e = engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    const kk_generate_opts one = {.max_tokens = 1, .ignore_eos = true};
    const kk_generate_opts how = {.max_tokens = 150, .ignore_eos = true};
    kk_result r;
    tiny_append(s, prompt, 50);
    assert_ok(kk_generate(s, &one, NULL, NULL, &r, why));
    kk_fault_after(1, true);
    const kk_status st = kk_generate(s, &how, NULL, NULL, &r, NULL);
    kk_fault_after(0, false);
    assert_int_equal(st, KK_OK);
    assert_int_equal(r.n_tokens, 150);
    kk_session_free(s);
    kk_engine_close(e);
}

/* At a memory limit the round that is one too many is not enqueued; the one that must be fails as
 * it would have, and nothing handed out is lost. */
static void a_limit_is_met_at_the_same_token(void **state) {
    int64_t bytes[KK_MEM_CATEGORIES], all = 0;
    kk_engine *probe = engine("tiny:f32:2", -1, 0);
    kk_session *s = tiny_session(probe, CTX, KK_KV_BF16);
    tiny_append(s, prompt, 100);
    kk_engine_memory(probe, bytes);
    for (int c = KK_MEM_KV_SLIDING; c < KK_MEM_CATEGORIES; c++) all += bytes[c];
    kk_session_free(s);
    kk_engine_close(probe);
    int32_t failed = 0;
    for (int64_t more = 0; more < 60000; more += 15000) {
        kk_engine *e[2];
        kk_session *of[2];
        kk_status st[2];
        const kk_generate_opts how = {.max_tokens = 100, .ignore_eos = true};
        for (int i = 0; i < 2; i++) {
            kk_result r;
            e[i] = engine("tiny:f32:2", i ? -1 : 1, (uint64_t)(all + more));
            of[i] = tiny_session(e[i], CTX, KK_KV_BF16);
            tiny_append(of[i], prompt, 100);
            st[i] = kk_generate(of[i], &how, NULL, NULL, &r, NULL);
        }
        assert_int_equal(st[0], st[1]);
        failed += st[0] == KK_ENOMEM;
        assert_same(of[0], of[1]);
        assert_same_counts(of[0], of[1]);
        assert_same_file(*state, of[0], of[1]);
        for (int i = 0; i < 2; i++) {
            kk_session_free(of[i]);
            kk_engine_close(e[i]);
        }
    }
    assert_true(failed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_ending_leaves_the_same, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(it_does_go_ahead, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(sampled_rounds_go_ahead_too, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(sampled_rounds_of_several_sessions, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(sinks_fill_up_all_the_same, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(company_makes_no_difference, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(rounds_in_flight_cost_what_the_device_says, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_lost_choice_is_made_again, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_slow_caller_is_not_counted, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(nothing_is_allocated, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_limit_is_met_at_the_same_token, setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
