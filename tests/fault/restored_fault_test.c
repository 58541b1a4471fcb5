/* restored_fault_test.c - engines with a projection and sessions that rebuild rows, while the n-th
 * taking is refused, or the memory limit is met: a status with a sentence, everything as it was,
 * and afterwards the logits of a session that met no trouble.
 * ctest: threads */
#define _GNU_SOURCE
#include "support/projection_folder.h"
#include "support/restored.h"
#include "support/scratch.h"

#define MOE KK_TEST_DATA "/parity/moe"

enum { MOE_VOCAB = 320, PROMPT = 90, CHUNK = 16 };

static const kk_session_opts restored = {.ctx = 300,
                                         .spec = KK_SPEC_NGRAM,
                                         .draft_max = 3,
                                         .kv_sliding = KK_KEEP_RESTORED,
                                         .kv_full = KK_KEEP_RESTORED,
                                         .sink = 4,
                                         .window = 8,
                                         .chunk = 8};

static int32_t prompt[PROMPT];

static int setup(void **state) {
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 29 + 3) % MOE_VOCAB;
    if (scratch_setup(state) != 0) return -1;
    return projection_unlearned(scratch_path(*state, "p"), MOE, NULL) == KK_OK ? 0 : -1;
}

static kk_status open_engine_keys(kk_engine **e, void *state, int64_t key_cache, kk_err *err) {
    const kk_engine_opts opts = {.model = MOE,
                                 .projection = scratch_path(state, "p"),
                                 .threads = 2,
                                 .no_pin = true,
                                 .key_cache = key_cache,
                                 .max_rows = CHUNK};
    return kk_engine_open(e, &opts, err);
}
static kk_status open_engine(kk_engine **e, void *state, kk_err *err) {
    return open_engine_keys(e, state, 0, err);
}

static void check_failure(kk_status st, const kk_err *err) {
    assert_true(st == KK_ENOMEM || st == KK_EIO);
    assert_int_equal(err->code, st);
    assert_true(strlen(err->msg) > 10);
}

/* ---- takings that fail -------------------------------------------------------------------- */

static void opening_fails_cleanly(void **state) {
    const int64_t bytes = kk_live_bytes(), blocks = kk_live_blocks();
    int64_t failures = 0;
    for (int64_t n = 1;; n++) {
        kk_engine *e = NULL;
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = open_engine(&e, *state, &err);
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

/* On a fresh engine each time, which has no pages of latents yet. */
static void sessions_fail_cleanly(void **state) {
    for (int diagnosed = 0; diagnosed < 2; diagnosed++) {
        for (int64_t n = 1;; n++) {
            const int64_t blocks = kk_live_blocks();
            int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
            kk_engine *e = NULL;
            kk_session *s = NULL;
            kk_err err = {0};
            assert_ok(open_engine(&e, *state, why));
            kk_engine_memory(e, before);
            kk_fault_after(n, false);
            const kk_status st = diagnosed ? kk_session_new_diagnosed(&s, e, &restored, 0, &err)
                                           : kk_session_new(&s, e, &restored, &err);
            kk_fault_after(0, false);
            kk_session_free(s);
            kk_engine_memory(e, after);
            assert_memory_equal(before, after, sizeof before);
            assert_int_equal(e->n_sessions, 0);
            kk_engine_close(e);
            assert_int_equal(kk_live_blocks(), blocks);
            if (st == KK_OK) {
                assert_true(n > 8);
                break;
            }
            assert_null(s);
            check_failure(st, &err);
        }
    }
}

/* It is where a session is that was given the same tokens and met no trouble. */
static void assert_sound(kk_session *s) {
    kk_session *fresh = session_of(s->engine, restored);
    const float *x, *y;
    char differs[200];
    tiny_append(fresh, s->tokens, s->len);
    assert_ok(kk_session_logits(s, &x, why));
    assert_ok(kk_session_logits(fresh, &y, why));
    assert_memory_equal(x, y, MOE_VOCAB * sizeof *x);
    if (!same_cache(s->cache, fresh->cache, false, differs, sizeof differs))
        fail_msg("%s", differs);
    kk_session_free(fresh);
}

static kk_status step_append(kk_session *s, kk_err *err) {
    return kk_session_append(s, prompt, PROMPT, NULL, NULL, err);
}
static kk_status step_checkpoint(kk_session *s, kk_err *err) {
    return kk_session_checkpoint(s, err);
}
static kk_status step_generate(kk_session *s, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = 20, .ignore_eos = true};
    return kk_generate(s, &how, NULL, NULL, NULL, err);
}
static kk_status step_rewind(kk_session *s, kk_err *err) {
    return kk_session_rewind(s, 20, NULL, err);
}
static kk_status step_fork(kk_session *s, kk_err *err) {
    kk_session *fork;
    const kk_status st = kk_session_fork(&fork, s, err);
    kk_session_free(fork);
    return st;
}

/* Fails each taking of every step in turn. */
static void steps_fail_cleanly(void **state) {
    kk_status (*const steps[])(kk_session *, kk_err *) = {step_append, step_checkpoint, step_append,
                                                          step_fork,   step_generate,   step_rewind,
                                                          step_append};
    kk_engine *e = NULL;
    int64_t failures = 0;
    assert_ok(open_engine(&e, *state, why));
    kk_session *s = session_of(e, restored);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        for (int64_t n = 1;; n++) {
            const int32_t len = s->len, checkpoints = s->n_points;
            const int64_t cached = kk_cache_len(s->cache);
            kk_err err = {0};
            kk_fault_after(n, false);
            const kk_status st = steps[i](s, &err);
            kk_fault_after(0, false);
            if (st == KK_OK) break;
            failures++;
            check_failure(st, &err);
            assert_int_equal(s->len, len);
            assert_int_equal(s->n_points, checkpoints);
            assert_int_equal(kk_cache_len(s->cache), cached);
        }
        assert_sound(s);
    }
    assert_true(failures > 10);
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- the memory limit --------------------------------------------------------------------- */

static int64_t counted(const kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES], sum = 0;
    kk_engine_memory(e, bytes);
    for (int c = KK_MEM_KV_SLIDING; c < KK_MEM_CATEGORIES; c++) sum += bytes[c];
    return sum;
}

typedef struct {
    int sessions, tokens;
} refusals;

/* A session that gets as far as the limit lets it; after a refusal it is as it was, and goes on
 * when there is memory again. */
static void live_within(kk_engine *e, int64_t limit, refusals *n) {
    kk_session *s = NULL;
    kk_err err = {0};
    e->mem.limit = limit;
    const kk_status made = kk_session_new(&s, e, &restored, &err);
    if (made != KK_OK) {
        check_failure(made, &err);
        n->sessions++;
        return;
    }
    while (s->len < 2 * PROMPT) {
        const int32_t len = s->len;
        const int64_t cached = kk_cache_len(s->cache);
        const kk_status st = kk_session_append(s, prompt + len % PROMPT, 10, NULL, NULL, &err);
        assert_true(counted(e) <= limit || e->mem.limit == 0);
        if (st == KK_OK) continue;
        check_failure(st, &err);
        assert_int_equal(s->len, len);
        assert_int_equal(kk_cache_len(s->cache), cached);
        n->tokens++;
        e->mem.limit = 0;
    }
    e->mem.limit = 0;
    assert_sound(s);
    kk_session_free(s);
}

/* Limits from what an engine takes up to what a session needs. */
static void limits_refuse_cleanly(void **state) {
    kk_engine *e = NULL;
    refusals n = {0};
    assert_ok(open_engine_keys(&e, *state, -1, why));
    const int64_t base = counted(e);
    kk_session *s = session_of(e, restored);
    tiny_append(s, prompt, PROMPT);
    tiny_append(s, prompt, PROMPT);
    const int64_t full = counted(e);
    kk_session_free(s);
    for (int64_t limit = base; limit < full + 8192; limit += (full - base) / 24) {
        live_within(e, limit, &n);
        assert_int_equal(counted(e), base);
    }
    assert_true(n.sessions > 0 && n.tokens > 2);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(sessions_fail_cleanly),
        cmocka_unit_test(steps_fail_cleanly),
        cmocka_unit_test(limits_refuse_cleanly),
    };
    return cmocka_run_group_tests_name("restored_fault", tests, setup, scratch_teardown);
}
