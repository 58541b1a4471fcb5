/* finite_test.c - NaN and infinity end a generation with an error that names the first layer that
 * has them, however tokens are chosen, and only for the session that they belong to.
 *
 * Weights of a model in memory are damaged while its sessions live.  ctest: threads */
#include <math.h>
#include <pthread.h>

#include "support/tiny.h"

enum { PROMPT = 40, TOKENS = 12 };

static uint16_t *weights(kk_engine *e, const char *name) {
    const kk_tensor *t = kk_checkpoint_find(e->checkpoint, name);
    if (!t) fail_msg("no tensor %s", name);
    assert_int_equal(t->dtype, KK_BF16);
    return (uint16_t *)(uintptr_t)t->data.base;
}

enum { NOT_A_NUMBER = 0x7fc0, INFINITE = 0x7f80 };

/* A whole row of a matrix, so that it counts whatever it is multiplied with. */
static void damage(kk_engine *e, const char *name, int32_t row, int32_t width, uint16_t with) {
    uint16_t *w = weights(e, name) + (size_t)row * (size_t)width;
    for (int32_t i = 0; i < width; i++) w[i] = with;
}

static kk_engine *engine(int32_t ahead) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {
        .synthetic = "tiny:bf16", .threads = 2, .no_pin = true, .ahead = ahead};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_session *session(kk_engine *e, kk_spec spec) {
    kk_session *s = NULL;
    const kk_session_opts opts = {
        .ctx = 256, .spec = spec, .draft_max = spec == KK_SPEC_NGRAM ? 4 : 0, .draft_fixed = true};
    assert_ok(kk_session_new(&s, e, &opts, why));
    return s;
}

static void append(kk_session *s, uint32_t seed) {
    int32_t prompt[PROMPT];
    tiny_prompt(prompt, PROMPT, seed);
    tiny_append(s, prompt, PROMPT);
}

static void assert_names(const kk_err *err, const char *what) {
    assert_int_equal(err->code, KK_ENUMERIC);
    if (!strstr(err->msg, what)) fail_msg("'%s' does not say '%s'", err->msg, what);
}

/* ---- prompts ----------------------------------------------------------------------------- */

static void a_prompt_fails_and_leaves_nothing(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        int32_t row;
        uint16_t with;
        const char *named;
    } cases[] = {
        {"layers.0.self_attn.o_proj.weight", 3, NOT_A_NUMBER, "layer 0 (from 0)"},
        {"layers.2.mlp.down_proj.weight", 0, NOT_A_NUMBER, "layer 2 (from 0)"},
        {"layers.2.mlp.down_proj.weight", 0, INFINITE, "layer 2 (from 0)"},
        {"embed_tokens.weight", 17, NOT_A_NUMBER, "the head"}, /* not in the prompt */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kk_engine *e = engine(0);
        const kk_config *c = kk_engine_config(e);
        kk_session *s = session(e, KK_SPEC_NONE);
        int32_t prompt[PROMPT];
        kk_err err;
        tiny_prompt(prompt, PROMPT, 1);
        for (int k = 0; k < PROMPT; k++)
            if (prompt[k] == 17) prompt[k] = 18;
        damage(e, cases[i].tensor, cases[i].row,
               strstr(cases[i].tensor, "down") ? c->layer[0].ffn : c->hidden, cases[i].with);
        kk_session_append(s, prompt, PROMPT, NULL, NULL, &err);
        assert_names(&err, cases[i].named);
        assert_int_equal(kk_session_len(s), 0);
        kk_session_free(s);
        kk_engine_close(e);
    }
}

static void a_token_is_named(void **state) {
    (void)state;
    kk_engine *e = engine(0);
    kk_session *s = session(e, KK_SPEC_NONE);
    const int32_t prompt[] = {5, 6, 17, 8};
    kk_err err;
    damage(e, "embed_tokens.weight", 17, kk_engine_config(e)->hidden, NOT_A_NUMBER);
    kk_session_append(s, prompt, 4, NULL, NULL, &err);
    assert_names(&err, "the embedding of the token at position 2");
    kk_session_free(s);
    kk_engine_close(e);
}

/* Packed weights have no NaN but in their scales, and rows are rounded to integers before them. */
static void packed_weights_show_it_too(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0", 2, 0);
    kk_session *s = tiny_session(e, 256, KK_KV_Q8);
    const kk_tensor *t = kk_checkpoint_find(e->checkpoint, "layers.3.mlp.down_proj.weight");
    int32_t prompt[PROMPT];
    kk_err err;
    assert_non_null(t);
    assert_int_equal(t->dtype, KK_Q4_0);
    uint8_t *scale = (uint8_t *)(uintptr_t)t->data.base;
    scale[0] = 0, scale[1] = 0x7e; /* NaN in float16 */
    tiny_prompt(prompt, PROMPT, 1);
    kk_session_append(s, prompt, PROMPT, NULL, NULL, &err);
    assert_names(&err, "layer 3 (from 0)");
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- generations ------------------------------------------------------------------------- */

typedef struct {
    kk_engine *engine;
    int32_t left; /* tokens until the damage is done */
    int32_t seen;
} saboteur;

static bool on_token(void *user, int32_t id) {
    saboteur *b = user;
    (void)id;
    b->seen++;
    if (b->left-- == 0)
        damage(b->engine, "layers.1.mlp.down_proj.weight", 1,
               kk_engine_config(b->engine)->layer[1].ffn, NOT_A_NUMBER);
    return true;
}

/* However tokens are chosen: greedily, drawn, biased, drafted, ahead of the host. */
static void a_generation_stops_at_it(void **state) {
    (void)state;
    static const struct {
        float temp;
        kk_spec spec;
        int32_t ahead;
        bool bias;
    } ways[] = {{0, KK_SPEC_NONE, -1, false},  {1, KK_SPEC_NONE, -1, false},
                {0, KK_SPEC_NONE, -1, true},   {0, KK_SPEC_NGRAM, -1, false},
                {1, KK_SPEC_NGRAM, -1, false}, {0, KK_SPEC_NONE, 1, false}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        kk_engine *e = engine(ways[i].ahead);
        kk_session *s = session(e, ways[i].spec);
        const kk_logit_bias bias = {3, 0.5f};
        const kk_generate_opts how = {.max_tokens = TOKENS,
                                      .ignore_eos = true,
                                      .sampling = {.temp = ways[i].temp, .seed = 3},
                                      .bias = &bias,
                                      .n_bias = ways[i].bias};
        saboteur b = {.engine = e, .left = 4};
        kk_result result;
        kk_err err = {0};
        append(s, 1);
        assert_int_equal(kk_generate(s, &how, on_token, &b, &result, &err), KK_ENUMERIC);
        assert_names(&err, "layer 1 (from 0)");
        assert_true(b.seen >= 5 && b.seen < TOKENS);
        assert_int_equal(result.n_tokens, b.seen);
        assert_int_equal(kk_session_len(s), PROMPT + b.seen); /* what was handed out */
        assert_whole(s);
        kk_session_free(s);
        kk_engine_close(e);
    }
}

/* Logits that came with the session: no row is left to run again. */
static void logits_at_hand_are_looked_at(void **state) {
    (void)state;
    kk_engine *e = engine(0);
    kk_session *s = session(e, KK_SPEC_NONE);
    kk_err err = {0};
    append(s, 1);
    s->logits[9] = -INFINITY;
    assert_int_equal(kk_generate(s, NULL, NULL, NULL, NULL, &err), KK_ENUMERIC);
    assert_names(&err, "after position 39");
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- several sessions -------------------------------------------------------------------- */

typedef struct {
    kk_session *session;
    kk_status st;
    kk_err err;
    int32_t got[TOKENS], n;
} speaker;

static bool hear(void *user, int32_t id) {
    speaker *w = user;
    w->got[w->n++] = id;
    return true;
}

static void *speak(void *arg) {
    speaker *w = arg;
    const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    w->st = kk_generate(w->session, &how, hear, w, NULL, &w->err);
    return NULL;
}

/* A page of one session's own is damaged, while it shares rounds with others. */
static void only_the_session_concerned_fails(void **state) {
    (void)state;
    enum { N = 3 };
    speaker w[N] = {0}, alone[N] = {0};
    pthread_t thread[N];
    kk_engine *e = engine(0);
    for (int i = 0; i < N; i++) {
        alone[i].session = session(e, KK_SPEC_NONE);
        w[i].session = session(e, KK_SPEC_NONE);
        append(alone[i].session, (uint32_t)i);
        append(w[i].session, (uint32_t)i);
        speak(&alone[i]);
        assert_int_equal(alone[i].st, KK_OK);
    }
    uint16_t *rows = (uint16_t *)(void *)kk_cache_pages(w[1].session->cache, KK_SLIDING)[0];
    for (size_t i = 0; i < w[1].session->layout->page_bytes[KK_SLIDING] / 2; i++)
        rows[i] = NOT_A_NUMBER;
    for (int i = 0; i < N; i++) pthread_create(&thread[i], NULL, speak, &w[i]);
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) {
        assert_int_equal(w[i].st, i == 1 ? KK_ENUMERIC : KK_OK);
        if (i == 1) assert_names(&w[i].err, "layer 0 (from 0)");
        if (i != 1) assert_memory_equal(w[i].got, alone[i].got, sizeof w[i].got);
        kk_session_free(w[i].session);
        kk_session_free(alone[i].session);
    }
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_fails_and_leaves_nothing),
        cmocka_unit_test(a_token_is_named),
        cmocka_unit_test(packed_weights_show_it_too),
        cmocka_unit_test(a_generation_stops_at_it),
        cmocka_unit_test(logits_at_hand_are_looked_at),
        cmocka_unit_test(only_the_session_concerned_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
