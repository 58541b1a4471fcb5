/* trace_test.c - a draft that was taken back leaves no trace.
 *
 * A drafting session and a plain one go through the same text side by side.  After every round
 * both caches hold the same rows, byte for byte, in as many pages, and the allocator counts
 * those pages and no others: also where a rejected draft had reached over a page border, or had
 * gone on while the window dropped a page.  Then one long run, of far more tokens than any window
 * or queue holds. */
#define _GNU_SOURCE
#include "support/drafter_folder.h"
#include "support/draws.h"
#include "support/lossless.h"
#include "support/rounds.h"
#include "support/tiny.h"

enum { PROMPT = 40, TOKENS = 200, CTX = PROMPT + TOKENS + 40 };

static kk_session *prompted(kk_engine *e, kk_kv_format format, kk_spec spec) {
    kk_session *s = NULL;
    int32_t prompt[PROMPT];
    const kk_session_opts opts = {.ctx = CTX, .kv_format = format, .spec = spec};
    assert_ok(kk_session_new(&s, e, &opts, why));
    tiny_prompt(prompt, PROMPT, 3);
    tiny_append(s, prompt, PROMPT);
    return s;
}

static void assert_counted(kk_engine *e, const kk_session *a, const kk_session *b) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(e, bytes);
    assert_int_equal(bytes[KK_MEM_KV_SLIDING],
                     kk_cache_bytes(a->cache, KK_SLIDING) + kk_cache_bytes(b->cache, KK_SLIDING));
    assert_int_equal(bytes[KK_MEM_KV_FULL],
                     kk_cache_bytes(a->cache, KK_FULL) + kk_cache_bytes(b->cache, KK_FULL));
}

/* Rounds of s until it has len tokens. */
static void follow(kk_session *s, kk_round *r, int32_t len) {
    while (s->len < len) assert_ok(round_step(s, r, why));
    assert_int_equal(s->len, len);
}

static void compare_every_round(kk_engine *e, kk_kv_format format, lossless_oracle *o) {
    const kk_sampling how = {.temp = 0.8f, .seed = 12, .repeat_penalty = 1.1f};
    kk_spec_stats ignored = {0}, stats = {0};
    char what[SAY];
    int32_t rounds = 0;
    kk_session *d = prompted(e, format, KK_SPEC_DFLASH), *p = prompted(e, format, KK_SPEC_NONE);
    if (!lossless_draft_by(d, o, MOST_BLOCK, what)) fail_msg("%s", what);
    kk_round drafted = round_of(d, &how, TOKENS, &stats),
             plain = round_of(p, &how, TOKENS, &ignored);
    for (; drafted.tokens_left > 0; rounds++) {
        assert_ok(round_step(d, &drafted, why));
        follow(p, &plain, d->len);
        if (!lossless_same_session(d, p, what)) fail_msg("at %d tokens: %s", d->len, what);
        assert_true(drafted.hash == plain.hash);
        assert_counted(e, d, p);
    }
    /* Every round but the first token's drafted; wrong drafts brought one token each. */
    assert_true(stats.drafted > 0);
    if (o->who == BY_WRONG) assert_int_equal(rounds, TOKENS);
    kk_session_free(d);
    kk_session_free(p);
}

/* What plain decoding says, for the proposers that must know. */
static void foresee(kk_engine *e, kk_kv_format format, int32_t out[CTX]) {
    const kk_generate_opts how = {.max_tokens = TOKENS + 20,
                                  .ignore_eos = true,
                                  .sampling = {.temp = 0.8f, .seed = 12, .repeat_penalty = 1.1f}};
    kk_session *s = prompted(e, format, KK_SPEC_NONE);
    assert_ok(kk_generate(s, &how, NULL, NULL, NULL, why));
    memcpy(out, s->tokens, (size_t)s->len * sizeof *out);
    kk_session_free(s);
}

static void rejected_drafts_leave_no_trace(void **state) {
    (void)state;
    static const lossless_proposer habits[] = {BY_WRONG, BY_DEPTH, BY_CHANCE, BY_DFLASH};
    static const char *const specs[] = {"tiny:q4_0:2", "tiny-ple:f32:3"};
    int32_t plain[CTX];
    for (int i = 0; i < 2; i++) {
        kk_engine *e = NULL;
        const kk_engine_opts opts = {
            .synthetic = specs[i], .drafter = "synthetic", .threads = 1 + i, .no_pin = true};
        assert_ok(kk_engine_open(&e, &opts, why));
        for (int f = 0; f < KK_KV_FORMATS; f++) {
            foresee(e, (kk_kv_format)f, plain);
            for (int h = 0; h < 4; h++) {
                lossless_oracle o = {.who = habits[h],
                                     .plain = plain,
                                     .len = PROMPT + TOKENS + 20,
                                     .vocab = TINY_VOCAB,
                                     .random = (uint64_t)h};
                compare_every_round(e, (kk_kv_format)f, &o);
            }
        }
        kk_engine_close(e);
    }
}

/* ---- one long run -------------------------------------------------------------------------- */

enum { LONG_CONTEXT = 32768 };

/* A random pair with a window of 8, few heads and a context of its own. */
static void write_pair(const char *verifier, const char *drafter) {
    kk_config c = small_moe();
    c.n_head = 2;
    c.context = LONG_CONTEXT;
    model_tensors *v = model_make(&c, "model.", KK_BF16), *d = drafter_make(KK_BF16);
    mkdir(verifier, 0755);
    mkdir(drafter, 0755);
    model_write(verifier, v);
    drafter_write(drafter, d);
    model_free(v);
    model_free(d);
}

typedef struct {
    kk_engine *engine;
    kk_generate_opts how;
    kk_result r;
} long_run;

static kk_session *start_long(const long_run *l, kk_spec spec) {
    static const int32_t prompt[] = {2, 17, 5, 90, 8};
    kk_session *s = NULL;
    const kk_session_opts opts = {.ctx = LONG_CONTEXT, .spec = spec, .draft_ctx = 200};
    assert_ok(kk_session_new(&s, l->engine, &opts, why));
    tiny_append(s, prompt, 5);
    return s;
}

/* Mostly right, as a long run is slow enough; now and then wrong at a depth that changes, now and
 * then the drafter's own. */
static kk_status mixed_draft(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err) {
    lossless_oracle *o = (lossless_oracle *)me;
    for (int32_t i = 0; i < n; i++) {
        o->who = o->calls % 4 == 1 ? BY_DEPTH : BY_RIGHT;
        if (o->calls % 8 == 0) {
            kk_draft d = drafts[i];
            if (d.max > 5) d.max = 5;
            KK_TRY(kk_propose_dflash.draft(&kk_propose_dflash, &d, 1, err));
            drafts[i].n = d.n;
            o->calls++;
        } else {
            KK_TRY(lossless_draft(me, &drafts[i], 1, err));
        }
    }
    return KK_OK;
}

static void one_long_run(void **state) {
    scratch *dir = *state;
    char verifier[300], drafter[300], what[SAY];
    long_run l = {.how = {.max_tokens = slow()        ? 3000
                                        : few_draws() ? 5000
                                                      : 20480,
                          .ignore_eos = true,
                          .sampling = {.temp = 1.2f, .seed = 99}}};
    snprintf(verifier, sizeof verifier, "%s/verifier", dir->dir);
    snprintf(drafter, sizeof drafter, "%s/drafter", dir->dir);
    write_pair(verifier, drafter);
    const kk_engine_opts opts = {
        .model = verifier, .drafter = drafter, .threads = 2, .no_pin = true};
    assert_ok(kk_engine_open(&l.engine, &opts, why));
    kk_session *p = start_long(&l, KK_SPEC_NONE), *d = start_long(&l, KK_SPEC_DFLASH);
    kk_result plain, drafted;
    assert_ok(kk_generate(p, &l.how, NULL, NULL, &plain, why));
    lossless_oracle o = {.as = kk_propose_dflash,
                         .plain = p->tokens,
                         .len = p->len,
                         .vocab = l.engine->rounds.vocab};
    o.as.draft = mixed_draft;
    draft_instead(d, &o.as);
    d->draft_max = MOST_BLOCK - 1;
    d->draft_fixed = true;
    assert_ok(kk_generate(d, &l.how, NULL, NULL, &drafted, why));
    print_message("%d tokens in %d rounds, %d drafted, %d right\n", drafted.n_tokens,
                  drafted.rounds, (int)drafted.spec.drafted, (int)drafted.spec.accepted);
    assert_int_equal(drafted.n_tokens, l.how.max_tokens);
    assert_true(drafted.logits_hash == plain.logits_hash);
    if (!lossless_same_session(d, p, what)) fail_msg("%s", what);
    assert_true(drafted.rounds * 3 < plain.rounds);
    kk_session_free(p);
    kk_session_free(d);
    kk_engine_close(l.engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rejected_drafts_leave_no_trace),
        cmocka_unit_test_setup_teardown(one_long_run, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
