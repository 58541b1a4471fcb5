/* draft_fault_test.c - a drafting session while the n-th taking, the n-th attention of either
 * model or the next page is refused: a status with a sentence, the timeline as far as it was
 * handed out, the drafter's context beside it, and plain decoding's tokens afterwards.
 * ctest: threads */
#define _GNU_SOURCE
#include "engine/session.h"
#include "support/tiny.h"

#define MOE KK_TEST_DATA "/parity/moe"

enum { CTX = 300, CHUNK = 16, PROMPT = 50 };

static int32_t prompt[2 * PROMPT];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < 2 * PROMPT; i++) prompt[i] = (i * 29 + 3) % 320;
    return 0;
}

static kk_status open_pair(kk_engine **e, kk_err *err) {
    const kk_engine_opts opts = {
        .model = MOE, .drafter = MOE "/dflash", .threads = 2, .no_pin = true, .max_rows = CHUNK};
    return kk_engine_open(e, &opts, err);
}

static kk_status open_session(kk_session **s, kk_engine *e, kk_spec spec, kk_err *err) {
    const kk_session_opts opts = {.ctx = CTX, .spec = spec, .draft_fixed = true};
    return kk_session_new(s, e, &opts, err);
}

static kk_session *drafting(kk_engine *e) {
    kk_session *s = NULL;
    assert_ok(open_session(&s, e, KK_SPEC_DFLASH, why));
    return s;
}

static void check_failure(kk_status st, const kk_err *err) {
    assert_true(st == KK_ENOMEM || st == KK_EIO);
    assert_int_equal(err->code, st);
    assert_true(strlen(err->msg) > 10);
}

/* ---- takings that fail --------------------------------------------------------------------- */

static void opening_a_pair_fails_cleanly(void **state) {
    (void)state;
    const int64_t bytes = kk_live_bytes(), blocks = kk_live_blocks();
    int64_t failures = 0;
    for (int64_t n = 1;; n++) {
        kk_engine *e = NULL;
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = open_pair(&e, &err);
        kk_fault_after(0, false);
        kk_engine_close(e);
        assert_int_equal(kk_live_bytes(), bytes);
        assert_int_equal(kk_live_blocks(), blocks);
        if (st == KK_OK) break;
        failures++;
        assert_null(e);
        check_failure(st, &err);
    }
    assert_true(failures > 100);
}

static void proposers_fail_cleanly(void **state) {
    (void)state;
    kk_engine *e = NULL;
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    assert_ok(open_pair(&e, why));
    kk_engine_memory(e, before);
    for (int spec = KK_SPEC_NONE; spec <= KK_SPEC_NGRAM; spec++)
        for (int64_t n = 1;; n++) {
            kk_session *s = NULL;
            kk_err err = {0};
            kk_fault_after(n, false);
            const kk_status st = open_session(&s, e, (kk_spec)spec, &err);
            kk_fault_after(0, false);
            kk_session_free(s);
            kk_engine_memory(e, after);
            assert_memory_equal(before, after, sizeof before);
            if (st == KK_OK) {
                assert_true(n > 3);
                break;
            }
            assert_null(s);
            check_failure(st, &err);
        }
    kk_engine_close(e);
}

typedef kk_status (*step_fn)(kk_session *s, kk_err *err);

static kk_status step_append(kk_session *s, kk_err *err) {
    return kk_session_append(s, prompt, PROMPT, NULL, NULL, err);
}
static kk_status step_checkpoint(kk_session *s, kk_err *err) {
    return kk_session_checkpoint(s, err);
}
static kk_status step_rewind(kk_session *s, kk_err *err) {
    return kk_session_rewind(s, 20, NULL, err);
}
static kk_status step_generate(kk_session *s, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = 40, .ignore_eos = true, .sampling = {.temp = 1}};
    return kk_generate(s, &how, NULL, NULL, NULL, err);
}
static kk_status step_fork(kk_session *s, kk_err *err) {
    kk_session *fork;
    const kk_status st = kk_session_fork(&fork, s, err);
    kk_session_free(fork);
    return st;
}

/* Fails each taking of a step in turn; returns how many there were. */
static int64_t walk(kk_session *s, step_fn step) {
    const int32_t len = s->len, checkpoints = s->n_points;
    const int64_t cached = kk_cache_len(s->cache);
    for (int64_t n = 1;; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = step(s, &err);
        kk_fault_after(0, false);
        assert_true(kk_drafting_stands_for(&s->drafting, kk_cache_len(s->cache)));
        if (st == KK_OK) return n - 1;
        check_failure(st, &err);
        assert_int_equal(s->len, len);
        assert_int_equal(s->n_points, checkpoints);
        assert_int_equal(kk_cache_len(s->cache), cached);
    }
}

/* It goes on as a plain session that was given the same tokens. */
static void assert_goes_on(kk_session *s) {
    const kk_generate_opts how = {.max_tokens = 12, .ignore_eos = true};
    kk_session *plain = NULL, *fork = NULL;
    kk_result want, got;
    assert_true(kk_drafting_stands_for(&s->drafting, kk_cache_len(s->cache)));
    assert_ok(open_session(&plain, s->engine, KK_SPEC_NONE, why));
    assert_ok(kk_session_append(plain, s->tokens, (size_t)s->len, NULL, NULL, why));
    assert_ok(kk_session_fork(&fork, s, why));
    assert_ok(kk_generate(plain, &how, NULL, NULL, &want, why));
    assert_ok(kk_generate(fork, &how, NULL, NULL, &got, why));
    assert_int_equal(fork->len, plain->len);
    assert_memory_equal(fork->tokens, plain->tokens, (size_t)plain->len * sizeof *plain->tokens);
    kk_session_free(fork);
    kk_session_free(plain);
}

static void drafting_sessions_fail_cleanly(void **state) {
    (void)state;
    const int64_t bytes = kk_live_bytes();
    kk_engine *e = NULL;
    assert_ok(open_pair(&e, why));
    kk_session *s = drafting(e);
    assert_int_equal(walk(s, step_append), 0);
    assert_true(walk(s, step_checkpoint) >= 2);
    assert_true(walk(s, step_append) >= 2); /* several chunks: a mark on either cache */
    assert_goes_on(s);
    assert_int_equal(walk(s, step_generate), 0); /* rounds and drafts take nothing */
    assert_goes_on(s);
    assert_true(walk(s, step_fork) > 5);
    assert_true(walk(s, step_rewind) >= 2);
    assert_int_equal(s->len, 20);
    assert_goes_on(s);
    kk_session_free(s);
    kk_engine_close(e);
    assert_int_equal(kk_live_bytes(), bytes);
}

/* ---- a device that fails ------------------------------------------------------------------- */

/* The CPU cannot fail, so that a copy of its operations does: the n-th attention refuses. */
static int64_t attends_left;
static kk_status (*true_attend)(kk_dev *dev, const kk_attend_args *a, kk_err *err);

static kk_status failing_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    if (attends_left-- == 0) return kk_fail(err, KK_EDEVICE, "the device was unplugged");
    return true_attend(dev, a, err);
}

/* Both models again, on the device that may fail. */
static void swap_models(kk_engine *e, kk_backend *failing) {
    *failing = *e->backend;
    true_attend = failing->attend;
    failing->attend = failing_attend;
    attends_left = INT64_MAX;
    const kk_gemma4_opts how = {.backend = failing,
                                .dev = e->dev,
                                .mem = &e->mem,
                                .max_rows = e->rounds.max_rows,
                                .max_logits = e->rounds.max_logits};
    const kk_drafter_config config = *kk_dflash_config(e->dflash);
    kk_dflash_free(e->dflash);
    kk_gemma4_free(e->model);
    assert_ok(kk_gemma4_new(&e->model, e->checkpoint, &how, why));
    const kk_dflash_opts draft_how = {.backend = failing,
                                      .dev = e->dev,
                                      .verifier = e->model,
                                      .max_rows = e->rounds.max_rows,
                                      .max_block_rows = e->rounds.max_logits};
    assert_ok(kk_dflash_new(&e->dflash, e->drafter, &config, &draft_how, why));
    e->dflash_shared.model = e->dflash;
    e->rounds.model = e->model;
    e->rounds.tapped = kk_dflash_config(e->dflash)->taps;
}

static bool count_tokens(void *user, int32_t id) {
    (void)id;
    ++*(int32_t *)user;
    return true;
}

static void a_device_may_fail_in_any_pass(void **state) {
    (void)state;
    const int64_t bytes = kk_live_bytes();
    kk_engine *e = NULL;
    kk_backend failing;
    kk_err err;
    const kk_generate_opts endless = {.max_tokens = 100, .ignore_eos = true};
    assert_ok(open_pair(&e, why));
    swap_models(e, &failing);
    for (int64_t n = 0; n < 40; n++) { /* a draft is 3 layers, a verification 6 */
        kk_session *s = drafting(e);
        int32_t emitted = 0;
        assert_ok(kk_session_append(s, prompt, PROMPT, NULL, NULL, why));
        attends_left = n;
        assert_int_equal(kk_generate(s, &endless, count_tokens, &emitted, NULL, &err), KK_EDEVICE);
        attends_left = INT64_MAX;
        assert_string_equal(err.msg, "the device was unplugged");
        assert_int_equal(s->len, PROMPT + emitted);
        assert_goes_on(s);
        kk_session_free(s);
    }
    kk_session *s = drafting(e);
    assert_ok(kk_session_append(s, prompt, 20, NULL, NULL, why));
    for (int64_t n = 0; n < 18; n++) { /* prefill: three chunks and more */
        attends_left = n;
        assert_int_equal(kk_session_append(s, prompt, PROMPT, NULL, NULL, &err), KK_EDEVICE);
        attends_left = INT64_MAX;
        assert_int_equal(s->len, 20);
        assert_goes_on(s);
    }
    kk_session_free(s);
    kk_engine_close(e);
    assert_int_equal(kk_live_bytes(), bytes);
}

/* ---- memory that runs out ------------------------------------------------------------------ */

/* At every limit from none to enough, a generation fails in a round or a draft, or ends. */
static void pages_may_run_out(void **state) {
    (void)state;
    kk_engine *e = NULL;
    int64_t bytes[KK_MEM_CATEGORIES];
    int ended = 0, refused = 0;
    const kk_generate_opts how = {.max_tokens = 90, .ignore_eos = true};
    assert_ok(open_pair(&e, why));
    for (int64_t spare = 0; ended == 0; spare += 4096) {
        kk_session *s = drafting(e);
        kk_err err = {0};
        int32_t emitted = 0;
        int64_t used = 0;
        assert_ok(kk_session_append(s, prompt, PROMPT, NULL, NULL, why));
        kk_engine_memory(e, bytes);
        for (int k = KK_MEM_KV_SLIDING; k < KK_MEM_CATEGORIES; k++) used += bytes[k];
        e->mem.limit = used + spare + 1;
        const kk_status st = kk_generate(s, &how, count_tokens, &emitted, NULL, &err);
        e->mem.limit = 0;
        if (st == KK_OK) {
            ended++;
        } else {
            assert_int_equal(st, KK_ENOMEM);
            refused++;
        }
        assert_int_equal(s->len, PROMPT + emitted);
        assert_goes_on(s);
        kk_session_free(s);
    }
    assert_true(refused >= 3);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_a_pair_fails_cleanly),
        cmocka_unit_test(proposers_fail_cleanly),
        cmocka_unit_test(drafting_sessions_fail_cleanly),
        cmocka_unit_test(a_device_may_fail_in_any_pass),
        cmocka_unit_test(pages_may_run_out),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
