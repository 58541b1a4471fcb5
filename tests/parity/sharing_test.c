/* sharing_test.c - several threads, one engine: sessions take turns inside it and each gets what
 * it would get alone. */
#include "support/tiny.h"

#include <pthread.h>

enum { USERS = 3, PROMPT = 90, TOKENS = 60 };

typedef struct {
    kk_engine *engine;
    kk_spec spec;
    uint32_t seed;
    uint64_t hash; /* out */
    kk_status st;  /* out: cmocka must not be called from here */
} user;

static kk_status live(user *u, kk_session *s) {
    int32_t prompt[PROMPT];
    kk_session *fork;
    kk_result r;
    const kk_generate_opts how = {
        .max_tokens = TOKENS, .ignore_eos = true, .sampling = {.temp = 1, .seed = u->seed}};
    tiny_prompt(prompt, PROMPT, u->seed);
    KK_TRY(kk_session_append(s, prompt, PROMPT, NULL, NULL, NULL));
    KK_TRY(kk_session_checkpoint(s, NULL));
    KK_TRY(kk_generate(s, &how, NULL, NULL, &r, NULL));
    u->hash = r.logits_hash;
    KK_TRY(kk_session_fork(&fork, s, NULL));
    kk_status st = kk_generate(fork, &how, NULL, NULL, &r, NULL);
    kk_session_free(fork);
    u->hash ^= r.logits_hash;
    KK_TRY(st);
    KK_TRY(kk_session_rewind(s, PROMPT, NULL, NULL));
    st = kk_generate(s, &how, NULL, NULL, &r, NULL);
    u->hash += r.logits_hash;
    return st;
}

static void *run_user(void *arg) {
    user *u = arg;
    kk_session *s;
    const kk_session_opts opts = {.ctx = 400,
                                  .kv_format = (kk_kv_format)(u->seed % KK_KV_FORMATS),
                                  .spec = u->spec,
                                  .draft_fixed = true};
    u->st = kk_session_new(&s, u->engine, &opts, NULL);
    if (u->st == KK_OK) u->st = live(u, s);
    kk_session_free(s);
    return NULL;
}

/* Everybody alone and plainly, then all at once, each with a proposer. */
static void compare(kk_engine *e, const kk_spec spec[USERS]) {
    user alone[USERS], together[USERS];
    pthread_t id[USERS];
    for (uint32_t i = 0; i < USERS; i++) {
        alone[i] = (user){.engine = e, .spec = KK_SPEC_NONE, .seed = i + 1};
        together[i] = (user){.engine = e, .spec = spec[i], .seed = i + 1};
        run_user(&alone[i]);
        assert_int_equal(alone[i].st, KK_OK);
    }
    for (int i = 0; i < USERS; i++)
        assert_int_equal(pthread_create(&id[i], NULL, run_user, &together[i]), 0);
    for (int i = 0; i < USERS; i++) pthread_join(id[i], NULL);
    for (int i = 0; i < USERS; i++) {
        assert_int_equal(together[i].st, KK_OK);
        assert_true(together[i].hash == alone[i].hash);
    }
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(e, bytes);
    assert_int_equal(bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_DRAFTER],
                     0);
}

static void threads_share_an_engine(void **state) {
    (void)state;
    static const kk_spec plain[USERS] = {KK_SPEC_NONE, KK_SPEC_NONE, KK_SPEC_NONE};
    kk_engine *e = tiny_engine("tiny:q4_0:2", 2, 32);
    compare(e, plain);
    kk_engine_close(e);
}

static void threads_share_a_drafter(void **state) {
    (void)state;
    static const kk_spec spec[USERS] = {KK_SPEC_DFLASH, KK_SPEC_NGRAM, KK_SPEC_DFLASH};
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:q4_0:2",
                                 .drafter = "synthetic",
                                 .threads = 2,
                                 .max_rows = 32,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    compare(e, spec);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_an_engine),
                                       cmocka_unit_test(threads_share_a_drafter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
