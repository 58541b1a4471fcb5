/* context_test.c - a session's drafter context: when rows enter it and how they got there makes
 * no difference to what is drafted.
 *
 * The reference is a fresh session that was given the same tokens in one piece.  Contexts that
 * waited, were flushed, taken back, forked, restored and appended to are held against it: the
 * same rows, byte for byte, and the same draft from them. */
#include "support/rounds.h"
#include "support/same_cache.h"
#include "support/tiny.h"

enum { CTX = 700 };

static kk_engine *pair(const char *spec, int32_t threads, int32_t max_rows) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = spec,
                                 .drafter = "synthetic",
                                 .threads = threads,
                                 .max_rows = max_rows,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_session *drafting(kk_engine *e, kk_kv_format format, int32_t draft_ctx) {
    kk_session *s = NULL;
    const kk_session_opts opts = {.ctx = CTX,
                                  .kv_format = format,
                                  .spec = KK_SPEC_DFLASH,
                                  .draft_fixed = true,
                                  .draft_ctx = draft_ctx};
    assert_ok(kk_session_new(&s, e, &opts, why));
    return s;
}

static kk_session *prompted(kk_engine *e, kk_kv_format format, int32_t draft_ctx, int32_t n) {
    int32_t prompt[CTX];
    kk_session *s = drafting(e, format, draft_ctx);
    tiny_prompt(prompt, n, 21);
    tiny_append(s, prompt, n);
    return s;
}

static void flush(kk_session *s) { assert_ok(kk_drafting_flush(&s->drafting, why)); }

static void assert_follows(const kk_session *s) {
    assert_true(kk_drafting_stands_for(&s->drafting, kk_cache_len(s->cache)));
}

/* The bits of all logits that a draft was chosen from.  Random drafters say the same token over
 * and over, whatever they read; their logits do not lie. */
static uint64_t draft_hash(kk_dflash *m, int32_t n) {
    float logits[TINY_VOCAB];
    uint64_t hash = KK_HASH_START;
    for (int32_t row = 1; row <= n; row++) {
        assert_ok(kk_dflash_logits(m, row, logits, why));
        hash = kk_hash_row(hash, logits, TINY_VOCAB);
    }
    return hash;
}

/* What it would draft now; the session is given an anchor first if it has none. */
static uint64_t draft_now(kk_session *s, int32_t out[KK_MAX_DRAFT]) {
    static const kk_sampling greedy = {0};
    kk_spec_stats stats = {0};
    if (kk_session_settled(s)) {
        kk_round r = round_of(s, &greedy, 1, &stats);
        assert_ok(round_step(s, &r, why));
    }
    kk_draft d = {.self = drafter_of(s)->self,
                  .tokens = s->tokens,
                  .len = s->len,
                  .out = out,
                  .max = s->draft_max};
    assert_ok(kk_propose_dflash.draft(&kk_propose_dflash, &d, 1, why));
    assert_int_equal(d.n, s->draft_max);
    return draft_hash(s->engine->dflash, d.n);
}

/* The context is that of a fresh session with the same rows, and so is its draft. */
static void assert_as_fresh(kk_session *s) {
    char what[200];
    int32_t ours[KK_MAX_DRAFT], theirs[KK_MAX_DRAFT];
    assert_follows(s);
    kk_session *fresh = drafting(s->engine, s->format, s->draft_ctx), *copy = NULL;
    const int32_t rows = (int32_t)kk_cache_len(s->cache);
    tiny_append(fresh, s->tokens, rows);
    flush(s);
    flush(fresh);
    if (!same_cache(drafter_cache(s), drafter_cache(fresh), false, what, sizeof what))
        fail_msg("after %d rows: %s", rows, what);
    assert_ok(kk_session_fork(&copy, s, why)); /* s itself must not move */
    if (rows < s->len) {
        fresh->tokens[rows] = s->tokens[rows];
        fresh->len = s->len;
    }
    assert_true(draft_now(copy, ours) == draft_now(fresh, theirs));
    assert_memory_equal(ours, theirs, (size_t)s->draft_max * sizeof *ours);
    kk_session_free(copy);
    kk_session_free(fresh);
}

/* ---- lazy and eager ------------------------------------------------------------------------ */

enum { MOST_DRAFTS = 400 };

typedef struct {
    kk_proposer as; /* the drafter in all but draft */
    kk_session *s;
    uint64_t drafts[MOST_DRAFTS]; /* hashes of their logits */
    int32_t n;
} record;

/* The drafter, written down. */
static kk_status spied(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err) {
    record *log = (record *)me;
    for (int32_t i = 0; i < n; i++) {
        KK_TRY(kk_propose_dflash.draft(&kk_propose_dflash, &drafts[i], 1, err));
        assert_true(log->n < MOST_DRAFTS);
        log->drafts[log->n++] = draft_hash(log->s->engine->dflash, drafts[i].n);
    }
    return KK_OK;
}

/* Rounds that draft now and then, so that rows wait; eager: none ever does. */
static void decode(kk_session *s, int32_t tokens, int32_t every, bool eager, record *log) {
    const kk_sampling how = {.temp = 0.9f, .seed = 8};
    kk_spec_stats stats = {0};
    *log = (record){.as = kk_propose_dflash, .s = s};
    log->as.draft = spied;
    draft_instead(s, &log->as);
    kk_round r = round_of(s, &how, tokens, &stats);
    for (int32_t round = 0; r.tokens_left > 0; round++) {
        r.draft_max = round % every == every - 1 ? s->draft_max : 0;
        assert_ok(round_step(s, &r, why));
        assert_follows(s);
        if (eager) flush(s);
    }
}

static void lazy_drafts_as_eager(void **state) {
    (void)state;
    static const int32_t every[] = {1, 3, 40, 150}; /* the queue holds 64 rows and a round */
    static const kk_kv_format formats[] = {KK_KV_F32, KK_KV_BF16, KK_KV_Q8, KK_KV_Q4};
    kk_engine *e = pair("tiny:q4_0:3", 1, 0);
    for (int i = 0; i < 4; i++) {
        static record lazy, eager;
        char what[200];
        kk_session *a = prompted(e, formats[i], 0, 90), *b = prompted(e, formats[i], 0, 90);
        decode(a, 320, every[i], false, &lazy);
        decode(b, 320, every[i], true, &eager);
        assert_true(lazy.n > 0);
        assert_int_equal(lazy.n, eager.n);
        assert_memory_equal(lazy.drafts, eager.drafts, (size_t)lazy.n * sizeof *lazy.drafts);
        flush(a);
        if (!same_cache(drafter_cache(a), drafter_cache(b), true, what, sizeof what))
            fail_msg("%s", what);
        assert_as_fresh(a);
        kk_session_free(a);
        kk_session_free(b);
    }
    kk_engine_close(e);
}

/* ---- histories ----------------------------------------------------------------------------- */

typedef struct {
    kk_session *s;
    uint64_t random;
} walk;

static int32_t below(walk *w, int32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((w->random >> 33) % (uint64_t)n);
}

static void generate(kk_session *s, int32_t n) {
    const kk_generate_opts how = {
        .max_tokens = n, .ignore_eos = true, .sampling = {.temp = 1.1f, .seed = 4}};
    assert_ok(kk_generate(s, &how, NULL, NULL, NULL, why));
}

/* Anything a session may go through, with its drafter at work. */
static void take_a_step(walk *w) {
    kk_session *s = w->s, *other = NULL;
    int32_t more[64];
    const int32_t n = 1 + below(w, 60);
    switch (below(w, 6)) {
    case 0:
        tiny_prompt(more, n, (uint32_t)n);
        tiny_append(s, more, n);
        break;
    case 1: generate(s, n); break;
    case 2: /* a little way back: rows are still there, in the cache or in the queue */
        assert_ok(kk_session_rewind(s, s->len - (n < s->len ? n / 4 : 0), NULL, why));
        break;
    case 3: /* anywhere: perhaps evaluated again, perhaps from a checkpoint */
        assert_ok(kk_session_rewind(s, 1 + below(w, s->len), NULL, why));
        break;
    case 4: assert_ok(kk_session_checkpoint(s, why)); break;
    default: /* the fork goes on, and what it came from goes its own way and ends */
        assert_ok(kk_session_fork(&other, s, why));
        generate(s, 10);
        kk_session_free(s);
        w->s = other;
    }
    assert_follows(w->s);
    if (w->s->len > CTX - 130) assert_ok(kk_session_rewind(w->s, CTX / 3, NULL, why));
}

static void any_history_is_a_fresh_start(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int32_t threads, max_rows, draft_ctx;
        kk_kv_format format;
    } runs[] = {{"tiny:f32:2", 1, 0, 0, KK_KV_F32},
                {"tiny:q4_0:3", 2, 40, 0, KK_KV_BF16},
                {"tiny:q8_0:2", 1, 16, 80, KK_KV_Q8},
                {"tiny-ple:q4_0:3", 1, 0, 33, KK_KV_Q4},
                {"tiny:bf16:3", 1, 0, 200, KK_KV_BF16}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        kk_engine *e = pair(runs[i].spec, runs[i].threads, runs[i].max_rows);
        walk w = {.s = prompted(e, runs[i].format, runs[i].draft_ctx, 70), .random = i};
        for (int step = 0; step < 60; step++) {
            take_a_step(&w);
            if (step % 4 == 3) assert_as_fresh(w.s);
        }
        kk_session_free(w.s);
        int64_t bytes[KK_MEM_CATEGORIES];
        kk_engine_memory(e, bytes);
        assert_int_equal(bytes[KK_MEM_KV_DRAFTER], 0);
        kk_engine_close(e);
    }
}

/* The queue gives way at every length of it, also to a chunk of a prompt. */
static void a_waiting_queue_is_kept_in_order(void **state) {
    (void)state;
    kk_engine *e = pair("tiny:f32:2", 1, 0);
    static record log;
    int32_t more[90];
    tiny_prompt(more, 90, 77);
    for (int32_t waiting = 1; waiting < 100; waiting += 14) {
        static const int32_t appended[] = {1, 32, 33, 90};
        for (int i = 0; i < 4; i++) {
            kk_session *s = prompted(e, KK_KV_BF16, 0, 40);
            decode(s, waiting, 1000, false, &log); /* nothing drafted: all of them wait */
            assert_int_equal(log.n, 0);
            tiny_append(s, more, appended[i]);
            assert_as_fresh(s);
            kk_session_free(s);
        }
    }
    kk_engine_close(e);
}

/* A bounded context holds no more than its bound, however long the timeline is. */
static void a_bounded_context_stays_small(void **state) {
    (void)state;
    kk_engine *e = pair("tiny:q4_0:3", 1, 32);
    kk_session *small = prompted(e, KK_KV_BF16, 64, 600), *all = prompted(e, KK_KV_BF16, 0, 600);
    flush(small);
    flush(all);
    const int64_t bounded = kk_cache_page_count(drafter_cache(small), KK_FULL),
                  whole = kk_cache_page_count(drafter_cache(all), KK_FULL);
    assert_int_equal(whole, (600 + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS);
    assert_in_range(bounded, 1, 3); /* the sink's page, and the window's */
    generate(small, 60);
    generate(all, 60); /* other drafts, the same tokens */
    assert_int_equal(small->len, all->len);
    assert_memory_equal(small->tokens, all->tokens, (size_t)all->len * sizeof *all->tokens);
    kk_session_free(small);
    kk_session_free(all);
    kk_engine_close(e);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void assert_refused(kk_engine *e, kk_session_opts opts, const char *names) {
    kk_session *s = NULL;
    kk_err err = {0};
    assert_int_equal(kk_session_new(&s, e, &opts, &err), KK_EINVAL);
    assert_null(s);
    if (!strstr(err.msg, names)) fail_msg("'%s' does not name %s", err.msg, names);
}

static void drafts_that_cannot_be_are_refused(void **state) {
    (void)state;
    kk_engine *with = pair("tiny:f32:2", 1, 0), *without = tiny_engine("tiny:f32:2", 1, 0);
    kk_drafter_info d;
    char beyond[12];
    assert_true(kk_engine_drafter(with, &d));
    snprintf(beyond, sizeof beyond, "%d", d.block);
    assert_refused(with, (kk_session_opts){.spec = KK_SPEC_DFLASH, .draft_max = d.block}, beyond);
    assert_refused(with, (kk_session_opts){.spec = KK_SPEC_DFLASH, .draft_max = d.block}, beyond);
    assert_refused(with, (kk_session_opts){.draft_max = -1}, "-1");
    assert_refused(with, (kk_session_opts){.spec = KK_SPEC_NGRAM, .draft_max = 32}, "32");
    assert_refused(with, (kk_session_opts){.spec = KK_SPEC_NGRAM, .draft_max = KK_MAX_DRAFT},
                   "17 rows"); /* of logits, an engine's default */
    assert_refused(with, (kk_session_opts){.spec = (kk_spec)9}, "9");
    assert_refused(with, (kk_session_opts){.draft_ctx = -5}, "-5");
    assert_refused(without, (kk_session_opts){.spec = KK_SPEC_DFLASH}, "drafter");
    /* The longest drafts there are, and none asked for: as many as the proposer is good for. */
    const kk_session_opts fine[] = {
        {.draft_max = d.block - 1}, {.draft_max = 0}, {.spec = KK_SPEC_NGRAM, .draft_max = 16}};
    for (int i = 0; i < 3; i++) {
        kk_session *s = NULL;
        assert_ok(kk_session_new(&s, with, &fine[i], why));
        const int32_t longest = i == 2 ? 16 : i == 1 ? 15 : d.block - 1; /* auto: n-gram's */
        assert_int_equal(s->draft_max, longest);
        assert_int_equal(kk_session_spec(s), i == 2 ? KK_SPEC_NGRAM : KK_SPEC_AUTO);
        assert_int_equal(s->drafting.n, i == 2 ? 1 : 2);
        if (i < 2) assert_int_equal(s->drafting.member[0].most, d.block - 1);
        kk_session_free(s);
    }
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(with, bytes);
    assert_int_equal(bytes[KK_MEM_KV_DRAFTER], 0);
    kk_engine_close(with);
    kk_engine_close(without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lazy_drafts_as_eager),
        cmocka_unit_test(any_history_is_a_fresh_start),
        cmocka_unit_test(a_waiting_queue_is_kept_in_order),
        cmocka_unit_test(a_bounded_context_stays_small),
        cmocka_unit_test(drafts_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
