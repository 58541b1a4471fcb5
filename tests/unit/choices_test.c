/* choices_test.c - biases, masks and log-probabilities through the public API: plain and drafted
 * generations give the same, and what cannot be is refused by name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/tiny.h"

enum { TOKENS = 24, PROMPT = 40, CTX = 256 };

typedef struct {
    kk_session *s;
    int32_t token[TOKENS], n;
    kk_logprobs logprobs[TOKENS];
    int32_t n_logprobs;
    uint32_t mask[TINY_VOCAB / 32];
    int32_t dead_at; /* the position at which the mask allows nothing */
    kk_result result;
} run;

static bool on_token(void *user, int32_t id) {
    run *r = user;
    r->token[r->n++] = id;
    return true;
}

static void on_logprobs(void *user, const kk_logprobs *of) {
    run *r = user;
    assert_int_equal(r->n_logprobs, r->n); /* before its token */
    r->logprobs[r->n_logprobs++] = *of;
}

/* Ids of the parity of the position. */
static const uint32_t *by_parity(void *user, const int32_t *tokens, int32_t n) {
    run *r = user;
    assert_true(n > 0 && tokens[0] >= 0);
    const uint32_t word = n == r->dead_at ? 0 : n % 2 ? 0xaaaaaaaau : 0x55555555u;
    for (int i = 0; i < TINY_VOCAB / 32; i++) r->mask[i] = word;
    return r->mask;
}

/* The n-gram proposer copies from a prompt that repeats itself. */
static kk_session *session_of(kk_engine *e, kk_spec spec) {
    int32_t prompt[PROMPT];
    kk_session *s;
    const kk_session_opts opts = {.ctx = CTX,
                                  .spec = spec,
                                  .draft_max = spec == KK_SPEC_NGRAM ? 5 : 0,
                                  .draft_fixed = spec == KK_SPEC_NGRAM};
    assert_ok(kk_session_new(&s, e, &opts, why));
    tiny_prompt(prompt, PROMPT / 4, 3);
    for (int i = PROMPT / 4; i < PROMPT; i++) prompt[i] = prompt[i - PROMPT / 4];
    tiny_append(s, prompt, PROMPT);
    return s;
}

static kk_status go(run *r, kk_engine *e, kk_spec spec, const kk_generate_opts *how, kk_err *err) {
    r->n = r->n_logprobs = 0;
    r->s = session_of(e, spec);
    return kk_generate(r->s, how, on_token, r, &r->result, err);
}

static void assert_same_logprobs(const kk_logprobs *a, const kk_logprobs *b) {
    assert_memory_equal(&a->chosen, &b->chosen, sizeof a->chosen);
    assert_int_equal(a->n_best, b->n_best);
    assert_memory_equal(a->best, b->best, (size_t)a->n_best * sizeof *a->best);
}

static void assert_same_run(const run *a, const run *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->token, b->token, (size_t)a->n * sizeof *a->token);
    assert_int_equal(a->n_logprobs, b->n_logprobs);
    for (int32_t i = 0; i < a->n_logprobs; i++)
        assert_same_logprobs(&a->logprobs[i], &b->logprobs[i]);
    assert_true(a->result.logits_hash == b->result.logits_hash);
    assert_same_state(a->s, b->s);
}

/* Plain and drafted, which come to the same; returns the tokens that were drafted. */
static int64_t both_ways(kk_engine *e, const kk_generate_opts *how, run *plain) {
    run *drafted = calloc(1, sizeof *drafted);
    drafted->dead_at = plain->dead_at;
    assert_ok(go(plain, e, KK_SPEC_NONE, how, why));
    assert_ok(go(drafted, e, KK_SPEC_NGRAM, how, why));
    assert_same_run(plain, drafted);
    const int64_t n = drafted->result.spec.drafted;
    kk_session_free(drafted->s);
    free(drafted);
    return n;
}

/* ---- log-probabilities ------------------------------------------------------------------- */

/* ln softmax of row[id], in double. */
static double log_softmax(const float *row, int32_t id) {
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < TINY_VOCAB; i++) most = fmax(most, (double)row[i]);
    for (int i = 0; i < TINY_VOCAB; i++) sum += exp((double)row[i] - most);
    return (double)row[id] - most - log(sum);
}

static void log_probabilities_are_of_the_logits_as_they_are(void **state) {
    kk_engine *e = *state;
    run *r = calloc(1, sizeof *r), *bare = calloc(1, sizeof *bare);
    kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    int64_t drafted = 0;
    for (int sampled = 0; sampled < 2; sampled++) {
        how.sampling = (kk_sampling){.temp = sampled ? 0.7f : 0, .top_k = 40, .seed = 3};
        if (sampled) how.sampling.repeat_penalty = 1.3f;
        how.on_logprobs = NULL;
        how.n_logprobs = 0;
        assert_ok(go(bare, e, KK_SPEC_NONE, &how, why));
        how.on_logprobs = on_logprobs;
        how.n_logprobs = 5;
        drafted += both_ways(e, &how, r);
        assert_memory_equal(r->token, bare->token, sizeof r->token); /* to ask changes nothing */
        assert_true(r->result.logits_hash == bare->result.logits_hash);
        assert_int_equal(r->n_logprobs, TOKENS);
        kk_session *again = session_of(e, KK_SPEC_NONE);
        for (int i = 0; i < TOKENS; i++) {
            const kk_logprobs *l = &r->logprobs[i];
            float row[TINY_VOCAB];
            tiny_logits(again, row);
            assert_int_equal(l->chosen.id, r->token[i]);
            assert_int_equal(l->n_best, 5);
            assert_true(fabs((double)l->chosen.logprob - log_softmax(row, r->token[i])) < 1e-5);
            for (int k = 0; k < 5; k++)
                assert_true(fabs((double)l->best[k].logprob - log_softmax(row, l->best[k].id)) <
                            1e-5);
            if (!sampled) assert_int_equal(l->best[0].id, r->token[i]);
            for (int k = 1; k < 5; k++) assert_true(l->best[k].logprob <= l->best[k - 1].logprob);
            tiny_append(again, &r->token[i], 1);
        }
        kk_session_free(again);
        kk_session_free(r->s);
        kk_session_free(bare->s);
    }
    assert_true(drafted > 0);
    free(r);
    free(bare);
}

/* The chosen token's alone. */
static void no_best_ones_need_be_asked_for(void **state) {
    kk_engine *e = *state;
    run *r = calloc(1, sizeof *r);
    const kk_generate_opts how = {
        .max_tokens = TOKENS, .ignore_eos = true, .on_logprobs = on_logprobs};
    assert_true(both_ways(e, &how, r) > 0);
    assert_int_equal(r->n_logprobs, TOKENS);
    for (int i = 0; i < TOKENS; i++)
        assert_true(r->logprobs[i].n_best == 0 && r->logprobs[i].chosen.logprob < 0);
    kk_session_free(r->s);
    free(r);
}

/* ---- biases and masks -------------------------------------------------------------------- */

static void biases_and_masks_are_heeded(void **state) {
    kk_engine *e = *state;
    run *r = calloc(1, sizeof *r);
    const kk_logit_bias forced[] = {{77, 1000}};
    uint32_t mask[TINY_VOCAB / 32] = {0};
    mask[3] = 0xf0; /* ids 100 to 103 */
    int64_t drafted = 0;
    for (int sampled = 0; sampled < 2; sampled++) {
        const kk_sampling sampling = {.temp = sampled ? 1.2f : 0, .seed = 8};
        kk_generate_opts how = {.max_tokens = TOKENS,
                                .sampling = sampling,
                                .ignore_eos = true,
                                .bias = forced,
                                .n_bias = 1};
        drafted += both_ways(e, &how, r);
        for (int i = 0; i < TOKENS; i++) assert_int_equal(r->token[i], 77);
        kk_session_free(r->s);
        how.mask = mask; /* which outweighs any bias */
        drafted += both_ways(e, &how, r);
        for (int i = 0; i < TOKENS; i++) assert_in_range(r->token[i], 100, 103);
        kk_session_free(r->s);
        how.mask_at = by_parity; /* and is outweighed by that of a position */
        how.n_bias = 0;
        drafted += both_ways(e, &how, r);
        for (int i = 0; i < TOKENS; i++) assert_int_equal(r->token[i] % 2, (PROMPT + i) % 2);
        kk_session_free(r->s);
    }
    assert_true(drafted > 0);
    free(r);
}

/* A mask that allows nothing ends the generation there, after the tokens before it. */
static void a_dead_end_fails_where_plain_decoding_does(void **state) {
    kk_engine *e = *state;
    run *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    int64_t accepted = 0;
    const kk_logit_bias likely[] = {{4, 30}, {5, 30}}; /* so that drafts are right */
    const kk_generate_opts how = {.max_tokens = TOKENS,
                                  .sampling = {.temp = 0},
                                  .bias = likely,
                                  .n_bias = 2,
                                  .ignore_eos = true,
                                  .mask_at = by_parity,
                                  .on_logprobs = on_logprobs};
    for (int32_t n = 0; n < 12; n++) {
        kk_err err;
        char position[16];
        snprintf(position, sizeof position, "position %d", PROMPT + n);
        a->dead_at = b->dead_at = PROMPT + n;
        assert_int_equal(go(a, e, KK_SPEC_NONE, &how, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, position));
        assert_int_equal(go(b, e, KK_SPEC_NGRAM, &how, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, position));
        assert_int_equal(a->n, n);
        assert_int_equal(kk_session_len(a->s), PROMPT + n);
        accepted += b->result.spec.accepted;
        assert_same_run(a, b);
        a->dead_at = b->dead_at = 0; /* and both go on */
        a->n = b->n = a->n_logprobs = b->n_logprobs = 0;
        kk_generate_opts more = how;
        more.max_tokens = 6;
        assert_ok(kk_generate(a->s, &more, on_token, a, &a->result, why));
        assert_ok(kk_generate(b->s, &more, on_token, b, &b->result, why));
        assert_same_run(a, b);
        kk_session_free(a->s);
        kk_session_free(b->s);
    }
    assert_true(accepted > 0);
    free(a);
    free(b);
}

static void what_cannot_be_is_refused_by_name(void **state) {
    kk_engine *e = *state;
    const uint32_t nothing[TINY_VOCAB / 32] = {0};
    const kk_logit_bias outside = {TINY_VOCAB, 1}, endless = {1, INFINITY};
    const struct {
        kk_generate_opts how;
        const char *word;
    } bad[] = {
        {{.mask = nothing}, "mask"},
        {{.bias = &outside, .n_bias = 1}, "1024"},
        {{.bias = &endless, .n_bias = 1}, "bias"},
        {{.on_logprobs = on_logprobs, .n_logprobs = 21}, "n_logprobs is 21"},
        {{.on_logprobs = on_logprobs, .n_logprobs = -1}, "n_logprobs is -1"},
        {{.n_logprobs = 2}, "on_logprobs"},
    };
    kk_session *s = session_of(e, KK_SPEC_NONE);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kk_err err;
        assert_int_equal(kk_generate(s, &bad[i].how, NULL, NULL, NULL, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, bad[i].word));
        assert_int_equal(kk_session_len(s), PROMPT);
    }
    kk_session_free(s);
}

static int open_engine(void **state) {
    *state = tiny_engine("tiny:f32", 1, 0);
    return 0;
}

static int close_engine(void **state) {
    kk_engine_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_are_of_the_logits_as_they_are),
        cmocka_unit_test(no_best_ones_need_be_asked_for),
        cmocka_unit_test(biases_and_masks_are_heeded),
        cmocka_unit_test(a_dead_end_fails_where_plain_decoding_does),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
