/* schedule_test.c - sessions of several threads share forwards, and each gets what it gets alone:
 * tokens, hashes, logits, reasons to stop, errors.
 *
 * Lives of sessions are drawn: how they keep their rows, in which format, who drafts, how they
 * sample, where they stop or are stopped.  Each is lived alone first, then all at the same time on
 * 2 to 16 threads.  Assertions are made by the main thread only. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/clock.h"
#include "support/restored.h"

enum { MOST_USERS = 16, ROWS = 32, LONGEST = 120, TURNS = 3, TOKENS = 20, HEARD = 64 };

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL); }

/* ---- a life ------------------------------------------------------------------------------ */

typedef struct {
    kk_session_opts opts;
    kk_sampling sampling;
    uint32_t seed;
    int32_t prompt, more, back; /* tokens appended first and later, and taken back at the end */
    int32_t left[TURNS];        /* tokens until the callback says stop; 0: never */
    bool cancels;               /* a first attempt to append is stopped half way */
} life;

typedef struct {
    kk_status st, cancelled;
    int32_t heard[HEARD], n_heard, len;
    uint64_t hash[TURNS];
    kk_stop_reason stop[TURNS];
    float logits[TINY_VOCAB];
} outcome;

typedef struct {
    kk_engine *engine;
    const life *life;
    pthread_barrier_t *start; /* NULL: alone */
    outcome out;
    int32_t until; /* n_heard at which this turn is stopped; 0: none */
} user;

static bool hear(void *arg, int32_t id) {
    user *u = arg;
    if (u->out.n_heard < HEARD) u->out.heard[u->out.n_heard++] = id;
    return u->out.n_heard != u->until;
}

/* Whatever chunks the scheduler chose, one comes after this. */
static bool stop_half_way(void *arg, int64_t done, int64_t total) {
    (void)arg;
    return 2 * done < total;
}

static kk_status turn(user *u, kk_session *s, int i) {
    kk_result r = {0};
    const kk_generate_opts how = {
        .max_tokens = TOKENS, .ignore_eos = i % 2 == 0, .sampling = u->life->sampling};
    u->until = u->life->left[i] ? u->out.n_heard + u->life->left[i] : 0;
    KK_TRY(kk_generate(s, &how, hear, u, &r, NULL));
    u->out.hash[i] = r.logits_hash;
    u->out.stop[i] = r.stop;
    return KK_OK;
}

static kk_status live(user *u, kk_session *s) {
    const life *l = u->life;
    int32_t prompt[LONGEST];
    const float *logits;
    tiny_prompt(prompt, LONGEST, l->seed);
    if (l->cancels)
        u->out.cancelled = kk_session_append(s, prompt, LONGEST, stop_half_way, NULL, NULL);
    KK_TRY(kk_session_append(s, prompt, (size_t)l->prompt, NULL, NULL, NULL));
    if (u->start) pthread_barrier_wait(u->start);
    KK_TRY(turn(u, s, 0));
    KK_TRY(kk_session_append(s, prompt, (size_t)l->more, NULL, NULL, NULL));
    KK_TRY(turn(u, s, 1));
    KK_TRY(kk_session_rewind(s, kk_session_len(s) - l->back, NULL, NULL));
    KK_TRY(turn(u, s, 2));
    KK_TRY(kk_session_logits(s, &logits, NULL));
    memcpy(u->out.logits, logits, sizeof u->out.logits);
    u->out.len = kk_session_len(s);
    return KK_OK;
}

static void *run_user(void *arg) {
    user *u = arg;
    kk_session *s;
    u->out.st = kk_session_new(&s, u->engine, &u->life->opts, NULL);
    if (u->out.st == KK_OK) u->out.st = live(u, s);
    kk_session_free(s);
    return NULL;
}

static void run_together(user *users, int32_t n) {
    pthread_t id[MOST_USERS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int32_t i = 0; i < n; i++) users[i].start = &start;
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&id[i], NULL, run_user, &users[i]), 0);
    for (int32_t i = 0; i < n; i++) pthread_join(id[i], NULL);
    pthread_barrier_destroy(&start);
}

/* ---- drawn lives ------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

static kk_session_opts draw_keeping(uint64_t *rng) {
    static const kk_kv_format formats[] = {KK_KV_BF16, KK_KV_Q8, KK_KV_Q4, KK_KV_F32};
    const bool all = draw(rng, 2);
    kk_session_opts o = all ? (kk_session_opts){0} : keeping_at((int)draw(rng, 8 * BOUNDS));
    o.kv_format = formats[draw(rng, 4)];
    o.ctx = 400;
    return o;
}

static life draw_life(uint64_t *rng, const kk_session_opts *keeping) {
    static const kk_spec specs[] = {KK_SPEC_NONE, KK_SPEC_NONE, KK_SPEC_NGRAM, KK_SPEC_DFLASH};
    life l = {.opts = *keeping, .seed = draw(rng, 100000)};
    l.opts.spec = specs[draw(rng, 4)];
    l.opts.draft_max = 3;
    l.opts.draft_fixed = draw(rng, 2);
    if (draft_too_long(&l.opts)) l.opts.spec = KK_SPEC_NONE;
    if (l.opts.spec == KK_SPEC_NONE) l.opts.draft_max = 0, l.opts.draft_fixed = false;
    if (draw(rng, 2)) l.sampling = (kk_sampling){.temp = 1, .top_k = 40, .seed = l.seed};
    l.prompt = 1 + (int32_t)draw(rng, LONGEST - 1);
    l.more = 1 + (int32_t)draw(rng, 50);
    l.back = (int32_t)draw(rng, 30) % (l.prompt + 1);
    for (int i = 0; i < TURNS; i++) l.left[i] = draw(rng, 3) ? 0 : 1 + (int32_t)draw(rng, TOKENS);
    l.cancels = draw(rng, 4) == 0;
    return l;
}

static void assert_same_outcome(const outcome *a, const outcome *b) {
    assert_int_equal(a->st, KK_OK);
    assert_int_equal(b->st, KK_OK);
    assert_int_equal(a->cancelled, b->cancelled);
    assert_int_equal(a->n_heard, b->n_heard);
    assert_memory_equal(a->heard, b->heard, sizeof a->heard);
    assert_memory_equal(a->hash, b->hash, sizeof a->hash);
    assert_memory_equal(a->stop, b->stop, sizeof a->stop);
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
}

static void assert_nothing_left(kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(e, bytes);
    for (int c = KK_MEM_KV_SLIDING; c <= KK_MEM_KV_LATENTS; c++) assert_int_equal(bytes[c], 0);
    assert_null(e->rounds.in_flight);
    assert_true(e->schedule.most_overtaken <= 1);
}

/* n sessions, of one to three ways to keep rows. */
static void compare_drawn(kk_engine *e, uint64_t *rng, int32_t n) {
    static life lives[MOST_USERS];
    static user alone[MOST_USERS], together[MOST_USERS];
    kk_session_opts keeping[3];
    const uint32_t kinds = 1 + draw(rng, 3);
    for (int i = 0; i < 3; i++) keeping[i] = draw_keeping(rng);
    for (int32_t i = 0; i < n; i++) {
        lives[i] = draw_life(rng, &keeping[draw(rng, kinds)]);
        alone[i] = together[i] = (user){.engine = e, .life = &lives[i]};
        run_user(&alone[i]);
    }
    run_together(together, n);
    for (int32_t i = 0; i < n; i++) assert_same_outcome(&alone[i].out, &together[i].out);
    assert_nothing_left(e);
}

static kk_engine *shared_engine(int32_t max_logits, int32_t ahead) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:q4_0:2",
                                 .drafter = "synthetic",
                                 .projection = "synthetic:64",
                                 .threads = 2,
                                 .max_rows = ROWS,
                                 .max_logits = max_logits,
                                 .ahead = ahead,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static void everybody_gets_what_they_get_alone(void **state) {
    static const int32_t users[] = {2, 16, 5, 9, 3, 12};
    (void)state;
    uint64_t rng = 20261116;
    int64_t shared = 0, ahead = 0;
    for (size_t i = 0; i < sizeof users / sizeof *users; i++) {
        kk_engine *e = shared_engine(i % 2 ? 5 : 0, i % 3 == 1 ? 1 : 0);
        kk_sharing c;
        for (int k = 0; k < 2; k++) compare_drawn(e, &rng, users[i]);
        kk_engine_sharing(e, &c);
        assert_true(c.most <= (i % 2 ? 5 : 17));
        shared += c.shared;
        ahead += c.ahead;
        kk_engine_close(e);
    }
    assert_true(shared > 20);
    assert_true(ahead > 20);
}

/* ---- many at once ------------------------------------------------------------------------ */

typedef struct {
    kk_session *s;
    int32_t tokens;
    kk_result r;
    kk_status st;
    kk_err err;
    _Atomic int32_t heard;
    bool (*hears)(void *user, int32_t id);
    void *other;
} decoder;

static bool count_tokens(void *arg, int32_t id) {
    decoder *d = arg;
    (void)id;
    atomic_fetch_add(&d->heard, 1);
    return true;
}

static void *run_decoder(void *arg) {
    decoder *d = arg;
    const kk_generate_opts how = {.max_tokens = d->tokens, .ignore_eos = true};
    d->st = kk_generate(d->s, &how, d->hears ? d->hears : count_tokens, d, &d->r, &d->err);
    return NULL;
}

static void make_decoder(decoder *d, kk_engine *e, int32_t prompt, int32_t tokens, uint32_t seed) {
    int32_t ids[LONGEST];
    *d = (decoder){.s = tiny_session(e, 1000, KK_KV_BF16), .tokens = tokens};
    tiny_prompt(ids, LONGEST, seed);
    tiny_append(d->s, ids, prompt);
}

/* Decoders wait behind a gate after so many tokens. */
typedef struct {
    int32_t at;
    _Atomic bool open;
} gate;

static bool wait_at_gate(void *arg, int32_t id) {
    decoder *d = arg;
    gate *g = d->other;
    (void)id;
    if (atomic_fetch_add(&d->heard, 1) + 1 == g->at)
        while (!atomic_load(&g->open)) nap();
    return true;
}

/* Until a forward was begun and so many rounds wait behind it. */
static void await_queue(kk_engine *e, int32_t n) {
    for (bool there = false; !there; nap()) {
        pthread_mutex_lock(&e->schedule.lock);
        int32_t queued = 0;
        for (const kk_task *t = e->schedule.first; t; t = t->next) queued++;
        there = e->schedule.busy && queued == n;
        pthread_mutex_unlock(&e->schedule.lock);
    }
}

/* 64 sessions, of which 17 fit a round: nobody is left behind, and nothing is allocated. */
static void sixty_four_take_turns(void **state) {
    (void)state;
    enum { N = 64, EACH = 12 };
    static decoder d[N];
    pthread_t id[N];
    static gate gates[N];
    uint64_t alone[N];
    kk_sharing c;
    kk_engine *e = tiny_engine("tiny:f32:2", 2, ROWS);
    for (uint32_t i = 0; i < N; i++) {
        make_decoder(&d[i], e, 3, EACH, i + 1);
        run_decoder(&d[i]);
        assert_int_equal(d[i].st, KK_OK);
        alone[i] = d[i].r.logits_hash;
        kk_session_free(d[i].s);
        make_decoder(&d[i], e, 3, EACH, i + 1);
        gates[i] = (gate){.at = 1};
        d[i].hears = wait_at_gate;
        d[i].other = &gates[i];
    }
    kk_engine_sharing(e, &c);
    assert_int_equal(c.shared, 0);
    const int64_t rounds = c.rounds;
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&id[i], NULL, run_decoder, &d[i]), 0);
    for (int i = 0; i < N; i++)
        while (atomic_load(&d[i].heard) < 1) nap();
    kk_fault_after(1, true);
    kk_engine_lock(e);
    for (int i = 0; i < N; i++) atomic_store(&gates[i].open, true);
    await_queue(e, N - 1);
    kk_engine_unlock(e);
    for (int i = 0; i < N; i++) pthread_join(id[i], NULL);
    kk_fault_after(0, false);
    for (int i = 0; i < N; i++) {
        assert_int_equal(d[i].st, KK_OK);
        assert_true(d[i].r.logits_hash == alone[i]);
        assert_int_equal(d[i].heard, EACH);
        kk_session_free(d[i].s);
    }
    kk_engine_sharing(e, &c);
    assert_int_equal(c.most, 17);
    assert_int_equal(c.retried, 0);
    assert_true(c.rounds - rounds < N * (EACH - 1));
    kk_engine_close(e);
}

/* ---- prompts beside decoding ------------------------------------------------------------- */

enum { READERS = 3, READ = 600 };

typedef struct {
    kk_session *s;
    kk_status st;
} reader;

static void *run_reader(void *arg) {
    reader *r = arg;
    int32_t ids[READ];
    tiny_prompt(ids, READ, 77);
    r->st = kk_session_append(r->s, ids, READ, NULL, NULL, NULL);
    return NULL;
}

/* Decodes until it is told that all is read. */
static bool until_told(void *arg, int32_t id) {
    decoder *d = arg;
    (void)id;
    atomic_fetch_add(&d->heard, 1);
    return !atomic_load((_Atomic bool *)d->other);
}

static void a_long_prompt_holds_nobody_up(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:2", 2, 128);
    kk_sharing before, after;
    static decoder d;
    pthread_t decodes, reads[READERS];
    reader r[READERS];
    _Atomic bool told = false;
    float x[TINY_VOCAB], y[TINY_VOCAB];
    /* Alone, chunks are as long as they can be. */
    reader alone = {.s = tiny_session(e, 700, KK_KV_BF16)};
    run_reader(&alone);
    kk_engine_sharing(e, &before);
    assert_int_equal(before.cut, 0);
    assert_int_equal(before.chunks, 5);
    assert_int_equal(before.chunk_rows, READ);
    make_decoder(&d, e, 20, 900, 5);
    d.hears = until_told;
    d.other = &told;
    kk_engine_sharing(e, &before);
    assert_int_equal(pthread_create(&decodes, NULL, run_decoder, &d), 0);
    while (atomic_load(&d.heard) < 3) nap();
    for (int i = 0; i < READERS; i++) {
        r[i] = (reader){.s = tiny_session(e, 700, KK_KV_BF16)};
        assert_int_equal(pthread_create(&reads[i], NULL, run_reader, &r[i]), 0);
    }
    for (int i = 0; i < READERS; i++) pthread_join(reads[i], NULL);
    atomic_store(&told, true);
    pthread_join(decodes, NULL);
    kk_engine_sharing(e, &after);
    assert_int_equal(d.st, KK_OK);
    /* Three prompts wait for each other; the session that decodes for one chunk at a time. */
    assert_int_equal(e->schedule.most_overtaken, 1);
    assert_true(after.cut > 0);
    assert_true(after.chunks - before.chunks > READERS * 5);
    assert_int_equal(after.chunk_rows - before.chunk_rows, READERS * READ);
    tiny_logits(alone.s, x);
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(r[i].st, KK_OK);
        tiny_logits(r[i].s, y);
        assert_memory_equal(x, y, sizeof x);
        kk_session_free(r[i].s);
    }
    kk_session_free(alone.s);
    kk_session_free(d.s);
    kk_engine_close(e);
}

static bool stop_at_once(void *arg, int64_t done, int64_t total) {
    (void)arg, (void)done, (void)total;
    return false;
}

static bool stop_after(void *arg, int64_t done, int64_t total) {
    int32_t *calls = arg;
    (void)done, (void)total;
    return --*calls > 0;
}

/* An append that alone is one chunk, and is cut here: stopped between its parts, or out of memory
 * for the mark, it leaves what it must. */
static void a_chunk_that_is_cut_can_be_taken_back(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:2", 2, 128);
    static decoder d;
    pthread_t decodes;
    int32_t ids[LONGEST];
    float x[TINY_VOCAB], y[TINY_VOCAB];
    _Atomic bool told = false;
    kk_session *s = tiny_session(e, 400, KK_KV_BF16);
    tiny_prompt(ids, LONGEST, 9);
    tiny_append(s, ids, 30);
    tiny_logits(s, x);
    s->task.row_s = 1; /* seconds: chunks are as short as they get */
    make_decoder(&d, e, 20, 900, 5);
    d.hears = until_told;
    d.other = &told;
    assert_int_equal(pthread_create(&decodes, NULL, run_decoder, &d), 0);
    while (atomic_load(&d.heard) < 3) nap();
    const kk_status stopped = kk_session_append(s, ids, LONGEST, stop_at_once, NULL, NULL);
    const int32_t len = kk_session_len(s);
    tiny_logits(s, y);
    kk_session *empty = tiny_session(e, 400, KK_KV_BF16);
    int32_t calls = 2;
    const kk_status halfway = kk_session_append(empty, ids, LONGEST, stop_after, &calls, NULL);
    const int64_t left = kk_cache_len(empty->cache);
    kk_session_free(empty);
    s->task.row_s = 1;
    kk_fault_after(1, true); /* no mark is to be had */
    const kk_status whole = kk_session_append(s, ids, LONGEST, stop_at_once, NULL, NULL);
    kk_fault_after(0, false);
    atomic_store(&told, true);
    pthread_join(decodes, NULL);
    assert_int_equal(d.st, KK_OK);
    assert_int_equal(stopped, KK_ESTOPPED);
    assert_int_equal(len, 30);
    assert_true(halfway == KK_ESTOPPED ? left == 0 : left == LONGEST);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(whole, KK_OK);
    assert_int_equal(kk_session_len(s), 30 + LONGEST);
    kk_session *same = tiny_session(e, 400, KK_KV_BF16);
    tiny_append(same, ids, 30);
    tiny_append(same, ids, LONGEST);
    assert_same_state(s, same);
    kk_session_free(same);
    kk_session_free(s);
    kk_session_free(d.s);
    kk_engine_close(e);
}

/* ---- failures ---------------------------------------------------------------------------- */

enum { OTHERS = 3, FAILS = OTHERS, SHORT = 2, LONG = 50, PAGE = 64 };

static void make_decoders(decoder *d, kk_engine *e) {
    for (uint32_t i = 0; i < OTHERS; i++) make_decoder(&d[i], e, SHORT, PAGE - SHORT, i + 1);
    make_decoder(&d[FAILS], e, LONG, 40, FAILS + 1);
}

/* What they take in all before they generate. */
static uint64_t bytes_of_all(kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES], all = 0;
    kk_engine_memory(e, bytes);
    for (int c = KK_MEM_KV_SLIDING; c < KK_MEM_CATEGORIES; c++) all += bytes[c];
    return (uint64_t)all;
}

/* One session needs another page soon, which the limit does not allow. */
static void a_failure_is_one_session_s_own(void **state) {
    (void)state;
    enum { SLACK = 8000 };
    static decoder d[OTHERS + 1], plain[OTHERS + 1];
    static gate gates[OTHERS + 1];
    pthread_t id[OTHERS + 1];
    kk_engine *e = NULL, *free_of_limits = tiny_engine("tiny:f32:2", 2, ROWS);
    make_decoders(plain, free_of_limits);
    const kk_engine_opts opts = {.synthetic = "tiny:f32:2",
                                 .threads = 2,
                                 .max_rows = ROWS,
                                 .no_pin = true,
                                 .memory_limit = bytes_of_all(free_of_limits) + SLACK};
    assert_ok(kk_engine_open(&e, &opts, why));
    make_decoders(d, e);
    for (int i = 0; i <= OTHERS; i++) {
        run_decoder(&plain[i]);
        gates[i] = (gate){.at = i == FAILS ? PAGE - LONG + 1 : 1};
        d[i].hears = wait_at_gate;
        d[i].other = &gates[i];
        assert_int_equal(pthread_create(&id[i], NULL, run_decoder, &d[i]), 0);
    }
    for (int i = 0; i <= OTHERS; i++)
        while (atomic_load(&d[i].heard) < gates[i].at) nap();
    /* One leads, and takes the one along that is to fail; the others share the next. */
    kk_engine_lock(e);
    atomic_store(&gates[0].open, true);
    await_queue(e, 0);
    for (int i = 1; i <= OTHERS; i++) atomic_store(&gates[i].open, true);
    await_queue(e, OTHERS - 1);
    kk_engine_unlock(e);
    for (int i = 0; i <= OTHERS; i++) pthread_join(id[i], NULL);
    for (int i = 0; i < OTHERS; i++) {
        assert_int_equal(d[i].st, KK_OK);
        assert_true(d[i].r.logits_hash == plain[i].r.logits_hash);
    }
    assert_int_equal(d[FAILS].st, KK_ENOMEM);
    assert_int_equal(d[FAILS].err.code, KK_ENOMEM);
    assert_int_equal(d[FAILS].heard, PAGE - LONG + 1);
    assert_int_equal(kk_session_len(d[FAILS].s), PAGE + 1);
    assert_memory_equal(kk_session_tokens(d[FAILS].s), kk_session_tokens(plain[FAILS].s),
                        (PAGE + 1) * sizeof(int32_t));
    kk_sharing c;
    kk_engine_sharing(e, &c);
    assert_true(c.retried >= 1); /* also when it asked for the round that had failed */
    for (int i = 0; i <= OTHERS; i++) {
        kk_session_free(d[i].s);
        kk_session_free(plain[i].s);
    }
    kk_engine_close(e);
    kk_engine_close(free_of_limits);
}

/* ---- waiting ----------------------------------------------------------------------------- */

/* Says stop when the gate opens. */
static bool stop_at_gate(void *arg, int32_t id) {
    decoder *d = arg;
    (void)wait_at_gate(arg, id);
    return atomic_load(&d->heard) < ((gate *)d->other)->at;
}

/* What it stands at and goes on with is what it would be had it decoded alone. */
static void assert_as_if_alone(decoder *d, decoder *alone) {
    kk_key_counts x, y;
    assert_int_equal(d->st, KK_OK);
    assert_int_equal(d->r.stop, KK_STOP_CALLBACK);
    assert_int_equal(d->r.n_tokens, alone->r.n_tokens);
    assert_int_equal(d->r.spec.rounds, alone->r.spec.rounds);
    assert_int_equal(d->r.spec.histogram[0], alone->r.spec.histogram[0]);
    assert_true(d->r.logits_hash == alone->r.logits_hash);
    kk_session_key_counts(d->s, &x);
    kk_session_key_counts(alone->s, &y);
    assert_memory_equal(&x, &y, sizeof x);
    assert_same_state(d->s, alone->s);
    d->hears = NULL;
    d->tokens = alone->tokens = 20;
    run_decoder(d);
    run_decoder(alone);
    assert_true(d->r.logits_hash == alone->r.logits_hash);
}

/* A session whose callback takes its time goes on beside others, so far and no further; when the
 * callback then says stop, nothing is left of that. */
static void who_is_away_is_taken_along(void **state) {
    (void)state;
    enum { HEARD_BEFORE = 5 };
    static decoder away, other, alone;
    gate leaves = {.at = HEARD_BEFORE}, begins = {.at = 1};
    pthread_t id[2];
    kk_sharing c;
    kk_engine *e = tiny_engine("tiny:f32:2", 2, ROWS);
    make_decoder(&alone, e, 10, HEARD_BEFORE, 1);
    alone.hears = stop_at_gate;
    alone.other = &leaves;
    atomic_store(&leaves.open, true);
    run_decoder(&alone);
    alone.hears = NULL;
    atomic_store(&leaves.open, false);
    make_decoder(&away, e, 10, 100, 1);
    away.hears = stop_at_gate;
    away.other = &leaves;
    make_decoder(&other, e, 10, 40, 2);
    other.hears = wait_at_gate;
    other.other = &begins;
    assert_int_equal(pthread_create(&id[0], NULL, run_decoder, &other), 0);
    while (atomic_load(&other.heard) < 1) nap();
    assert_int_equal(pthread_create(&id[1], NULL, run_decoder, &away), 0);
    while (atomic_load(&away.heard) < HEARD_BEFORE) nap();
    atomic_store(&begins.open, true);
    pthread_join(id[0], NULL);
    kk_engine_sharing(e, &c);
    atomic_store(&leaves.open, true);
    pthread_join(id[1], NULL);
    assert_int_equal(other.heard, 40);
    assert_int_equal(away.heard, HEARD_BEFORE);
    assert_int_equal(c.ahead, KK_MOST_AHEAD);
    assert_int_equal(c.shared, KK_MOST_AHEAD);
    assert_as_if_alone(&away, &alone);
    kk_session_free(alone.s);
    kk_session_free(away.s);
    kk_session_free(other.s);
    kk_engine_close(e);
}

static kk_engine *rows_engine(int32_t max_logits, int32_t ahead) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:f32:2",
                                 .threads = 1,
                                 .max_rows = 128,
                                 .max_logits = max_logits,
                                 .ahead = ahead,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

/* A device that works beside the host chooses so many tokens by itself, and no more. */
static void rounds_are_filled_up_to(void **state) {
    (void)state;
    static const int32_t ahead[] = {-1, 1}, rows[] = {64, KK_PICK_ROWS};
    for (int i = 0; i < 2; i++) {
        kk_engine *e = rows_engine(64, ahead[i]);
        assert_int_equal(kk_round_rows(&e->rounds), rows[i]);
        kk_engine_close(e);
    }
}

/* Rows for the drafts of so many sessions, on a device that does not queue its work. */
static void rows_suit_the_sessions(void **state) {
    (void)state;
    static const int32_t asked[] = {0, -1, -4, -8, -20, -100}, rows[] = {17, 17, 32, 64, 64, 100};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        kk_engine *e = rows_engine(asked[i], -1);
        assert_int_equal(e->rounds.max_logits, rows[i]);
        kk_engine_close(e);
    }
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With the engine held, whoever leads and whoever waits sleeps. */
static void nobody_spins(void **state) {
    (void)state;
    enum { N = 8 };
    static decoder d[N];
    pthread_t id[N];
    kk_engine *e = tiny_engine("tiny:f32:2", 1, ROWS);
    for (uint32_t i = 0; i < N; i++) make_decoder(&d[i], e, 10, 40, i + 1);
    kk_engine_lock(e);
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&id[i], NULL, run_decoder, &d[i]), 0);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* they have all come to wait */
    const double from = kk_now(), spent = cpu_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    const double waited = kk_now() - from, busy = cpu_seconds() - spent;
    kk_engine_unlock(e);
    for (int i = 0; i < N; i++) pthread_join(id[i], NULL);
    assert_true(busy < 0.1 * waited);
    for (int i = 0; i < N; i++) {
        assert_int_equal(d[i].st, KK_OK);
        kk_session_free(d[i].s);
    }
    kk_engine_close(e);
}

/* A callback may use other sessions, also to generate: nothing waits for who waits for it. */
static bool speak_with_another(void *arg, int32_t id) {
    decoder *d = arg, *other = d->other;
    (void)id;
    if (atomic_fetch_add(&d->heard, 1) % 5 == 0) run_decoder(other);
    return other->st == KK_OK;
}

static void callbacks_may_generate(void **state) {
    (void)state;
    static decoder a, b;
    kk_engine *e = tiny_engine("tiny:f32:2", 2, ROWS);
    make_decoder(&a, e, 10, 30, 1);
    make_decoder(&b, e, 10, 10, 2);
    a.hears = speak_with_another;
    a.other = &b;
    run_decoder(&a);
    assert_int_equal(a.st, KK_OK);
    assert_int_equal(a.heard, 30);
    assert_int_equal(b.heard, 60);
    kk_session_free(a.s);
    kk_session_free(b.s);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_gets_what_they_get_alone),
        cmocka_unit_test(sixty_four_take_turns),
        cmocka_unit_test(a_long_prompt_holds_nobody_up),
        cmocka_unit_test(a_chunk_that_is_cut_can_be_taken_back),
        cmocka_unit_test(a_failure_is_one_session_s_own),
        cmocka_unit_test(who_is_away_is_taken_along),
        cmocka_unit_test(rounds_are_filled_up_to),
        cmocka_unit_test(rows_suit_the_sessions),
        cmocka_unit_test(nobody_spins),
        cmocka_unit_test(callbacks_may_generate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
