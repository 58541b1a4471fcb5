/* reforward_test.c - drafted decoding against the two slowest ways to do the same.
 *
 * Un-fused: the same drafts, but every row verified by a forward of its own, and nothing written
 * that was not chosen.  Re-forward: nothing is kept at all, and each token is chosen after a fresh
 * session evaluated the whole text.  Neither shares a round, a rollback or a cache with what it
 * checks. */
#define _GNU_SOURCE
#include "support/lossless.h"
#include "support/rounds.h"
#include "support/tiny.h"

enum { PROMPT = 58, TOKENS = 44, CTX = 160, BLOCK = 7 };

static kk_session *prompted(kk_engine *e, kk_kv_format format, kk_spec spec) {
    kk_session *s = NULL;
    int32_t prompt[PROMPT];
    const kk_session_opts opts = {.ctx = CTX, .kv_format = format, .spec = spec};
    assert_ok(kk_session_new(&s, e, &opts, why));
    tiny_prompt(prompt, PROMPT, 9);
    tiny_append(s, prompt, PROMPT);
    return s;
}

/* What a way of decoding came to. */
typedef struct {
    int32_t tokens[CTX], len;
    uint64_t hash;
    int64_t rounds, drafted, accepted;
} outcome;

static int32_t choose(kk_engine *e, const kk_sampling *how, const float *logits, outcome *x) {
    x->hash = kk_hash_row(x->hash, logits, (size_t)e->rounds.vocab);
    const kk_sample_row row = {.logits = logits, .history = x->tokens, .n = x->len};
    const int32_t y = kk_sample(e->rounds.sampler, how, &row);
    x->tokens[x->len++] = y;
    return y;
}

/* ---- un-fused ------------------------------------------------------------------------------ */

static void forward_one(kk_session *s, const int32_t *token, float *logits) {
    const kk_gemma4_group g = {
        .cache = s->cache, .layout = s->layout, .tokens = token, .n_rows = 1, .n_logits = 1};
    const kk_gemma4_forward_args args = {.groups = &g, .n_groups = 1};
    assert_ok(kk_cache_reserve(s->cache, 1, why));
    assert_ok(kk_gemma4_forward(s->engine->model, &args, why));
    kk_cache_commit(s->cache, kk_cache_len(s->cache) + 1);
    assert_ok(kk_gemma4_logits(s->engine->model, 0, logits, why));
}

static void unfused_round(kk_session *s, const kk_sampling *how, lossless_oracle *o, outcome *x) {
    float logits[TINY_VOCAB];
    int32_t drafts[KK_MAX_DRAFT];
    const int32_t left = PROMPT + TOKENS - x->len,
                  end = left - 1 < BLOCK - 1 ? left - 1 : BLOCK - 1;
    kk_draft d = {.tokens = x->tokens, .len = x->len, .out = drafts, .max = end};
    if (end > 0) assert_ok(lossless_draft(&o->as, &d, 1, why));
    for (int32_t i = 0; i < d.n; i++)
        if (drafts[i] < 0 || drafts[i] >= TINY_VOCAB) d.n = i;
    x->rounds++;
    x->drafted += d.n;
    for (int32_t i = 0; i <= d.n; i++) {
        forward_one(s, &x->tokens[x->len - 1], logits);
        if (choose(s->engine, how, logits, x) != (i < d.n ? drafts[i] : -1)) break;
        x->accepted++;
    }
}

static void unfused(kk_engine *e, kk_kv_format format, const kk_sampling *how, lossless_oracle o,
                    outcome *x) {
    kk_session *s = prompted(e, format, KK_SPEC_NONE);
    *x = (outcome){.len = PROMPT, .hash = KK_HASH_START};
    memcpy(x->tokens, s->tokens, PROMPT * sizeof *x->tokens);
    choose(e, how, s->logits, x);
    while (x->len < PROMPT + TOKENS) unfused_round(s, how, &o, x);
    kk_session_free(s);
}

/* ---- re-forward ---------------------------------------------------------------------------- */

static void reforward(kk_engine *e, kk_kv_format format, const kk_sampling *how, outcome *x) {
    kk_session *s = prompted(e, format, KK_SPEC_NONE);
    *x = (outcome){.len = PROMPT, .hash = KK_HASH_START};
    memcpy(x->tokens, s->tokens, PROMPT * sizeof *x->tokens);
    kk_session_free(s);
    while (x->len < PROMPT + TOKENS) {
        const float *logits;
        s = tiny_session(e, CTX, format);
        tiny_append(s, x->tokens, x->len);
        assert_ok(kk_session_logits(s, &logits, why));
        choose(e, how, logits, x);
        kk_session_free(s);
    }
}

/* ---- what they are compared with ----------------------------------------------------------- */

static void drafted(kk_engine *e, kk_kv_format format, const kk_sampling *how, lossless_oracle o,
                    outcome *x) {
    char what[SAY];
    kk_result r;
    const kk_generate_opts opts = {.max_tokens = TOKENS, .ignore_eos = true, .sampling = *how};
    kk_session *s = prompted(e, format, KK_SPEC_NONE);
    if (!lossless_draft_by(s, &o, BLOCK, what)) fail_msg("%s", what);
    assert_ok(kk_generate(s, &opts, NULL, NULL, &r, why));
    *x = (outcome){.len = s->len,
                   .hash = r.logits_hash,
                   .rounds = r.rounds,
                   .drafted = r.spec.drafted,
                   .accepted = r.spec.accepted};
    memcpy(x->tokens, s->tokens, (size_t)s->len * sizeof *x->tokens);
    kk_session_free(s);
}

static void assert_same(const outcome *got, const outcome *want) {
    assert_int_equal(got->len, want->len);
    assert_memory_equal(got->tokens, want->tokens, (size_t)want->len * sizeof *want->tokens);
    assert_true(got->hash == want->hash);
}

static void compare(kk_engine *e, kk_kv_format format, const kk_sampling *how) {
    static const lossless_proposer habits[] = {BY_RIGHT, BY_WRONG, BY_DEPTH, BY_CHANCE};
    outcome again, apart, got;
    reforward(e, format, how, &again);
    for (int h = 0; h < 4; h++) {
        const lossless_oracle o = {.who = habits[h],
                                   .plain = again.tokens,
                                   .len = again.len,
                                   .vocab = TINY_VOCAB,
                                   .random = 5};
        unfused(e, format, how, o, &apart);
        drafted(e, format, how, o, &got);
        assert_same(&apart, &again);
        assert_same(&got, &again);
        assert_int_equal(got.rounds, apart.rounds);
        assert_int_equal(got.drafted, apart.drafted);
        assert_int_equal(got.accepted, apart.accepted);
        if (habits[h] == BY_WRONG) assert_int_equal(got.accepted, 0);
        if (habits[h] == BY_RIGHT) assert_int_equal(got.accepted, got.drafted);
    }
}

static void slow_ways_agree(void **state) {
    (void)state;
    static const char *const specs[] = {"tiny:q4_0:2", "tiny-ple:q8_0:3", "tiny:f32:3"};
    for (int i = 0; i < 3; i++) {
        kk_engine *e = tiny_engine(specs[i], 1 + i % 2, 0);
        for (int f = 0; f < KK_KV_FORMATS; f++)
            compare(e, (kk_kv_format)f, &lossless_sampling[(f + i) % SAMPLINGS]);
        kk_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(slow_ways_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
