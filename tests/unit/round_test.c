/* round_test.c - drafting changes speed and nothing else.
 *
 * Every test compares a drafted generation with the plain one: tokens, the hash of all chosen
 * logits, the reason it ended, the state it left and what the session says next.  Generations
 * cross page borders and leave the window several times. */
#include "support/rounds.h"
#include "support/tiny.h"

enum { CTX = 400, PROMPT = 50, MOST_DRAFTS = 16 };

/* ---- proposers that know the plain run ---------------------------------------------------- */

typedef enum {
    RIGHT,
    WRONG,
    RIGHT_THEN_WRONG, /* at every depth in turn */
    OUTSIDE,          /* the wrong ones are no ids at all */
    STOPS,            /* the wrong ones are the stop id, where nobody says it */
    SHORT,            /* any number of tokens, none included */
    HABITS
} habit;

typedef struct {
    kk_proposer as;
    int32_t plain[CTX]; /* the timeline of the plain run */
    int32_t len;
    habit habit;
    int32_t stop_id; /* some id when there is none */
    int32_t calls, drafted;
    int32_t sound; /* of them ids of the vocabulary, up to the first that is none */
} oracle;

/* How many tokens of this draft are right. */
static int32_t right_ones(const oracle *o, int32_t max) {
    switch (o->habit) {
    case RIGHT: return max;
    case WRONG: return 0;
    default: return (o->calls * 7) % (max + 1);
    }
}

static int32_t wrong_one(const oracle *o, int32_t next, int32_t i) {
    switch (o->habit) {
    case OUTSIDE: return o->calls % 2 ? -1 : TINY_VOCAB + i;
    case STOPS: return o->stop_id;
    default: return (next + 1) % TINY_VOCAB;
    }
}

static void draft_one(oracle *o, kk_draft *d) {
    assert_memory_equal(d->tokens, o->plain, (size_t)d->len * sizeof *d->tokens);
    o->calls++;
    d->n = o->habit == SHORT ? (o->calls * 11) % (d->max + 1) : d->max;
    const int32_t right = right_ones(o, d->n);
    for (int32_t i = 0; i < d->n; i++) {
        const int32_t next = d->len + i < o->len ? o->plain[d->len + i] : 3;
        d->out[i] = i < right ? next : wrong_one(o, next, i);
    }
    o->drafted += d->n;
    o->sound += o->habit == OUTSIDE ? right : d->n;
}

static kk_status draft_from_plain(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err) {
    (void)err;
    for (int32_t i = 0; i < n; i++) draft_one((oracle *)me, &drafts[i]);
    return KK_OK;
}

static void draft_by(kk_session *s, oracle *o) {
    o->as = (kk_proposer){.name = "oracle", .free = true, .draft = draft_from_plain};
    draft_instead(s, &o->as);
    s->draft_max = MOST_DRAFTS;
    s->draft_fixed = true;
}

/* ---- one comparison ----------------------------------------------------------------------- */

typedef struct {
    int32_t stop_after; /* the callback says stop at this token; 0: never */
    int32_t seen[CTX];
    int32_t n;
} listener;

static bool listen(void *user, int32_t id) {
    listener *l = user;
    l->seen[l->n++] = id;
    return l->n != l->stop_after;
}

typedef struct {
    const char *spec;
    kk_kv_format format;
    kk_generate_opts how;
    int32_t stop_after, prompt;
} scenario;

static void generate(kk_session *s, const scenario *c, listener *l, kk_result *r) {
    *l = (listener){.stop_after = c->stop_after};
    assert_ok(kk_generate(s, &c->how, listen, l, r, why));
    assert_int_equal(r->n_tokens, l->n);
}

static kk_session *prompted(kk_engine *e, const scenario *c) {
    int32_t prompt[CTX];
    kk_session *s = tiny_session(e, CTX, c->format);
    tiny_prompt(prompt, c->prompt, 11);
    tiny_append(s, prompt, c->prompt);
    return s;
}

/* Runs plain and with every habit of the oracle. */
static kk_result compare(kk_engine *e, const scenario *c) {
    static listener plain, drafted;
    static oracle o;
    kk_result want, got;
    kk_session *p = prompted(e, c);
    generate(p, c, &plain, &want);
    assert_int_equal(want.rounds, want.n_tokens - 1); /* the first token costs none */
    memcpy(o.plain, p->tokens, (size_t)p->len * sizeof *o.plain);
    o.len = p->len;
    o.stop_id = c->how.n_stop_ids ? c->how.stop_ids[0] : 1;
    for (o.habit = RIGHT; o.habit < HABITS; o.habit++) {
        o.calls = o.drafted = o.sound = 0;
        kk_session *d = prompted(e, c);
        draft_by(d, &o);
        generate(d, c, &drafted, &got);
        assert_int_equal(got.n_tokens, want.n_tokens);
        assert_memory_equal(drafted.seen, plain.seen, (size_t)plain.n * sizeof *plain.seen);
        assert_true(got.logits_hash == want.logits_hash);
        assert_int_equal(got.stop, want.stop);
        assert_int_equal(got.spec.drafted, o.sound);
        if (want.n_tokens > 40) { /* drafting was real, and right drafts saved forwards */
            assert_true(o.drafted > 0);
            if (o.habit == RIGHT) assert_true(got.rounds * 8 < want.rounds);
            if (o.habit == WRONG) assert_int_equal(got.rounds, want.rounds);
        }
        d->drafting.n = 0;
        kk_session *base = NULL;
        assert_ok(kk_session_fork(&base, p, why)); /* p itself must stay as it ended */
        assert_int_equal(kk_cache_len(d->cache), kk_cache_len(p->cache));
        assert_same_state(d, base);
        kk_session_free(base);
        kk_session_free(d);
    }
    kk_session_free(p);
    return want;
}

static void drafts_change_nothing(void **state) {
    (void)state;
    static const char *const specs[] = {"tiny:f32:2", "tiny:q4_0:3", "tiny-ple:q8_0:4"};
    const kk_sampling hows[] = {
        {.temp = 0},
        {.temp = 0.8f, .top_k = 40, .top_p = 0.9f, .seed = 5},
        {.temp = 1.5f, .repeat_penalty = 1.3f, .frequency_penalty = 0.2f, .seed = 6},
        {.temp = 0, .presence_penalty = 1, .repeat_penalty = 1.1f},
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        kk_engine *e = tiny_engine(specs[i], 1 + (int32_t)(i % 2), 0);
        for (size_t h = i == 1 ? 0 : 2; h < (i == 2 ? 3 : sizeof hows / sizeof *hows); h++) {
            const scenario c = {.spec = specs[i],
                                .format = h % 2 ? KK_KV_F32 : KK_KV_BF16,
                                .how = {.max_tokens = 150, .sampling = hows[h], .ignore_eos = true},
                                .prompt = PROMPT};
            assert_int_equal(compare(e, &c).n_tokens, 150);
        }
        kk_engine_close(e);
    }
}

/* A stop id, a token limit or a refusal at every place of a round. */
static void ends_inside_a_draft(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:2", 1, 0);
    static listener plain;
    kk_result r;
    scenario c = {.how = {.max_tokens = 120, .ignore_eos = true, .sampling = {.temp = 1.2f}},
                  .prompt = PROMPT};
    kk_session *p = prompted(e, &c);
    generate(p, &c, &plain, &r);
    kk_session_free(p);
    static const int32_t places[] = {1, 2, 9, 17, 18, 19, 34};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const int32_t at = places[i];
        c.how.max_tokens = at;
        assert_int_equal(compare(e, &c).stop, KK_STOP_LENGTH);
        c.how.max_tokens = 0;
        c.stop_after = at;
        assert_int_equal(compare(e, &c).stop, KK_STOP_CALLBACK);
        c.stop_after = 0;
        c.how.ignore_eos = false;
        c.how.stop_ids = &plain.seen[at];
        c.how.n_stop_ids = 1;
        r = compare(e, &c);
        assert_int_equal(r.stop, KK_STOP_EOS);
        int32_t first = 0; /* the id may have come up before */
        while (plain.seen[first] != plain.seen[at]) first++;
        assert_int_equal(r.n_tokens, first + 1);
        c.how.ignore_eos = true;
    }
    kk_engine_close(e);
}

static void drafts_stop_at_the_context(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    const scenario c = {.how = {.ignore_eos = true}, .prompt = CTX - 70};
    const kk_result r = compare(e, &c);
    assert_int_equal(r.n_tokens, 70);
    assert_int_equal(r.stop, KK_STOP_CONTEXT);
    kk_engine_close(e);
}

/* A full context refuses to go on, and is as good as any other once it was taken back. */
static void a_full_session_can_go_back(void **state) {
    (void)state;
    static listener l;
    kk_engine *e = NULL;
    kk_result r;
    kk_err err;
    const kk_engine_opts pair = {
        .synthetic = "tiny:q4_0:2", .drafter = "synthetic", .threads = 1, .no_pin = true};
    const scenario c = {.how = {.ignore_eos = true}, .prompt = CTX - 37};
    assert_ok(kk_engine_open(&e, &pair, why));
    for (int spec = KK_SPEC_NONE; spec <= KK_SPEC_NGRAM; spec++) {
        kk_session *s = NULL, *plain = tiny_session(e, CTX, KK_KV_BF16);
        const kk_session_opts opts = {.ctx = CTX, .spec = (kk_spec)spec, .draft_fixed = true};
        int32_t prompt[CTX];
        tiny_prompt(prompt, c.prompt, 11);
        assert_ok(kk_session_new(&s, e, &opts, why));
        tiny_append(s, prompt, c.prompt);
        generate(s, &c, &l, &r);
        assert_int_equal(r.n_tokens, 37);
        assert_int_equal(r.stop, KK_STOP_CONTEXT);
        assert_int_equal(kk_generate(s, &c.how, NULL, NULL, &r, &err), KK_ECONTEXT);
        assert_int_equal(kk_session_append(s, prompt, 1, NULL, NULL, &err), KK_ECONTEXT);
        assert_ok(kk_session_rewind(s, CTX - 20, NULL, why));
        tiny_append(plain, s->tokens, CTX - 20);
        generate(s, &c, &l, &r);
        assert_int_equal(r.n_tokens, 20);
        kk_result want;
        assert_ok(kk_generate(plain, &c.how, NULL, NULL, &want, why));
        assert_same_state(s, plain);
        kk_session_free(s);
        kk_session_free(plain);
    }
    kk_engine_close(e);
}

/* ---- several sessions in one round -------------------------------------------------------- */

enum { SESSIONS = 3, STEPS = 100, MOST_TOGETHER = 8 };

/* Rounds of all that have tokens left, until none has. */
static void run_together(kk_engine *e, kk_round *rounds, int32_t n_rounds) {
    for (;;) {
        kk_round *live[MOST_TOGETHER];
        int32_t n = 0;
        for (int32_t i = 0; i < n_rounds; i++)
            if (rounds[i].tokens_left > 0) live[n++] = &rounds[i];
        if (n == 0) return;
        assert_ok(kk_round_run(&e->rounds, live, n, why));
        for (int32_t i = 0; i < n; i++) {
            kk_round_commit(live[i], live[i]->n_out);
        }
    }
}

/* Sessions of different lengths, options and drafts share forwards; each must do what it does
 * alone. */
static void sessions_share_a_round(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 2, 0);
    const kk_sampling hows[SESSIONS] = {{.temp = 0}, {.temp = 1, .seed = 3}, {.temp = 0.7f}};
    static oracle oracles[SESSIONS];
    kk_session *alone[SESSIONS], *shared[SESSIONS];
    kk_round rounds[SESSIONS];
    kk_spec_stats stats = {0};
    uint64_t hashes[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) {
        const scenario c = {.how = {.max_tokens = STEPS, .ignore_eos = true, .sampling = hows[i]},
                            .prompt = 20 + 37 * i};
        static listener l;
        kk_result r;
        alone[i] = prompted(e, &c);
        shared[i] = prompted(e, &c);
        generate(alone[i], &c, &l, &r);
        hashes[i] = r.logits_hash;
        memcpy(oracles[i].plain, alone[i]->tokens, (size_t)alone[i]->len * sizeof(int32_t));
        oracles[i].len = alone[i]->len;
        oracles[i].habit = i == 0 ? WRONG : RIGHT_THEN_WRONG;
        if (i != 2) draft_by(shared[i], &oracles[i]);
        rounds[i] = round_of(shared[i], &hows[i], STEPS, &stats);
        kk_round_first(&e->rounds, &rounds[i]);
        kk_round_commit(&rounds[i], 1);
    }
    run_together(e, rounds, SESSIONS);
    for (int i = 0; i < SESSIONS; i++) {
        shared[i]->len = rounds[i].len;
        assert_true(rounds[i].hash == hashes[i]);
        assert_same_state(shared[i], alone[i]);
        kk_session_free(shared[i]);
        kk_session_free(alone[i]);
    }
    kk_engine_close(e);
}

/* Every kind of proposer at once: two drafters that look back differently far, ngram, one that
 * knows, and none. */
static void proposers_share_a_round(void **state) {
    (void)state;
    enum { N = 5 };
    static const kk_session_opts kinds[N] = {{.spec = KK_SPEC_DFLASH},
                                             {.spec = KK_SPEC_NGRAM},
                                             {.spec = KK_SPEC_NONE},
                                             {.spec = KK_SPEC_DFLASH, .draft_ctx = 40},
                                             {.spec = KK_SPEC_NONE}};
    static const kk_sampling greedy = {0};
    static oracle o;
    static listener l;
    kk_engine *e = NULL;
    kk_session *alone[N], *shared[N];
    kk_round rounds[N];
    kk_spec_stats stats[N] = {{0}};
    kk_result want[N];
    const kk_engine_opts pair = {.synthetic = "tiny:q4_0:3",
                                 .drafter = "synthetic",
                                 .threads = 2,
                                 .max_logits = 32,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &pair, why));
    for (int i = 0; i < N; i++) {
        const scenario c = {.how = {.max_tokens = STEPS, .ignore_eos = true},
                            .prompt = 30 + 25 * i};
        kk_session_opts opts = kinds[i];
        int32_t prompt[CTX];
        opts.ctx = CTX;
        opts.draft_fixed = true;
        tiny_prompt(prompt, c.prompt, 11);
        alone[i] = prompted(e, &c);
        generate(alone[i], &c, &l, &want[i]);
        assert_ok(kk_session_new(&shared[i], e, &opts, why));
        tiny_append(shared[i], prompt, c.prompt);
        if (i == N - 1) {
            memcpy(o.plain, alone[i]->tokens, (size_t)alone[i]->len * sizeof *o.plain);
            o.len = alone[i]->len;
            o.habit = RIGHT_THEN_WRONG;
            draft_by(shared[i], &o);
        }
        rounds[i] = round_of(shared[i], &greedy, STEPS, &stats[i]);
        kk_round_first(&e->rounds, &rounds[i]);
        kk_round_commit(&rounds[i], 1);
    }
    run_together(e, rounds, N);
    for (int i = 0; i < N; i++) {
        shared[i]->len = rounds[i].len;
        assert_true(rounds[i].hash == want[i].logits_hash);
        assert_true(i == 2 ? stats[i].drafted == 0 : stats[i].drafted > 0);
        assert_true(kk_drafting_stands_for(&shared[i]->drafting, kk_cache_len(shared[i]->cache)));
        assert_same_state(shared[i], alone[i]);
        kk_session_free(shared[i]);
        kk_session_free(alone[i]);
    }
    kk_engine_close(e);
}

/* A draft of a fixed length and one that the controller would make as long as it can: together
 * they fit a forward. */
static void fixed_and_chosen_drafts_share_a_round(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 0);
    const scenario c = {.how = {.max_tokens = STEPS, .ignore_eos = true}, .prompt = 30};
    const kk_sampling greedy = {0};
    static oracle o = {.habit = RIGHT};
    static listener l;
    kk_session *alone = prompted(e, &c), *shared[2];
    kk_round rounds[2];
    kk_spec_stats stats[2] = {{0}};
    kk_result want;
    generate(alone, &c, &l, &want);
    memcpy(o.plain, alone->tokens, (size_t)alone->len * sizeof *o.plain);
    o.len = alone->len;
    for (int i = 0; i < 2; i++) {
        shared[i] = prompted(e, &c);
        draft_by(shared[i], &o);
        shared[i]->draft_fixed = i == 0;
        for (int32_t k = 0; k < KK_MAX_DRAFT; k++) {
            shared[i]->drafting.member[0].seen.tried[0][k] = 40;
            shared[i]->drafting.member[0].seen.right[0][k] = i == 0 ? 0 : 40;
        }
        rounds[i] = round_of(shared[i], &greedy, STEPS, &stats[i]);
        kk_round_first(&e->rounds, &rounds[i]);
        kk_round_commit(&rounds[i], 1);
    }
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) /* a row more costs nothing */
        e->rounds.costs.verify.seconds[r] = 1, e->rounds.costs.verify.weight[r] = 100;
    run_together(e, rounds, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(rounds[i].hash == want.logits_hash && stats[i].drafted > 0);
        shared[i]->len = rounds[i].len;
        assert_same_state(shared[i], alone);
        kk_session_free(shared[i]);
    }
    kk_session_free(alone);
    kk_engine_close(e);
}

/* A round that cannot have its pages leaves every session of it alone. */
static void a_failed_round_changes_nothing(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    const scenario c = {.prompt = 64}; /* the next row needs new pages */
    const kk_sampling how = {0};
    kk_session *s[2] = {prompted(e, &c), prompted(e, &c)}, *plain = prompted(e, &c);
    kk_spec_stats stats = {0};
    kk_round rounds[2], *both[2] = {&rounds[0], &rounds[1]};
    int32_t token;
    for (int i = 0; i < 2; i++) {
        rounds[i] = round_of(s[i], &how, STEPS, &stats);
        kk_round_first(&e->rounds, &rounds[i]);
        kk_round_commit(&rounds[i], 1);
        s[i]->len = rounds[i].len;
    }
    token = s[0]->tokens[64];
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES], used = 0;
    kk_engine_memory(e, before);
    for (int k = KK_MEM_KV_SLIDING; k < KK_MEM_CATEGORIES; k++) used += before[k];
    const int64_t page =
        kk_cache_bytes(s[0]->cache, KK_SLIDING) + kk_cache_bytes(s[0]->cache, KK_FULL);
    e->mem.limit = used + page + page / 2; /* enough for the first session alone */
    kk_err err;
    assert_int_equal(kk_round_run(&e->rounds, both, 2, &err), KK_ENOMEM);
    e->mem.limit = 0;
    kk_engine_memory(e, after);
    assert_memory_equal(before, after, sizeof before);
    tiny_append(plain, &token, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kk_cache_len(s[i]->cache), 64);
        assert_same_state(s[i], plain);
        kk_session_free(s[i]);
    }
    kk_session_free(plain);
    assert_int_equal(kk_round_run(&e->rounds, both, 100, &err), KK_EINVAL);
    kk_engine_close(e);
}

/* Where a memory limit leaves no page for a draft, there is none, and decoding goes on. */
static void a_draft_is_no_reason_to_fail(void **state) {
    (void)state;
    static oracle o = {.habit = RIGHT};
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    const scenario c = {.prompt = PROMPT, .how = {.max_tokens = 64 - PROMPT, .ignore_eos = true}};
    kk_session *plain = prompted(e, &c), *drafted = prompted(e, &c);
    listener a, b;
    kk_result want, got;
    generate(plain, &c, &a, &want);
    memcpy(o.plain, plain->tokens, (size_t)plain->len * sizeof(int32_t));
    o.len = plain->len + 1; /* it would draft into the next page */
    draft_by(drafted, &o);
    const scenario longer = {.prompt = PROMPT, .how = {.max_tokens = 64, .ignore_eos = true}};
    int64_t bytes[KK_MEM_CATEGORIES], used = 0;
    kk_engine_memory(e, bytes);
    for (int k = KK_MEM_KV_SLIDING; k < KK_MEM_CATEGORIES; k++) used += bytes[k];
    e->mem.limit = used;
    kk_err err;
    b = (listener){0};
    assert_int_equal(kk_generate(drafted, &longer.how, listen, &b, &got, &err), KK_ENOMEM);
    e->mem.limit = 0;
    assert_in_range(b.n, a.n, a.n + 1); /* it came to the end of the page, not less far */
    assert_memory_equal(a.seen, b.seen, (size_t)a.n * sizeof *a.seen);
    kk_session_free(plain);
    kk_session_free(drafted);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_is_no_reason_to_fail),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(ends_inside_a_draft),
        cmocka_unit_test(drafts_stop_at_the_context),
        cmocka_unit_test(sessions_share_a_round),
        cmocka_unit_test(a_full_session_can_go_back),
        cmocka_unit_test(proposers_share_a_round),
        cmocka_unit_test(a_failed_round_changes_nothing),
        cmocka_unit_test(fixed_and_chosen_drafts_share_a_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
