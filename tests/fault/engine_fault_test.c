/* engine_fault_test.c - an engine, its sessions and a generation while the n-th taking or system
 * call fails, for every n: a status with a sentence, nothing half made, everything given back.
 * ctest: threads */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/session.h"
#include "support/model_folder.h"

enum { VOCAB = 96, LONG = 100, CTX = 200, CHUNK = 16 };

static int32_t prompt[LONG];

static int setup(void **state) {
    if (scratch_setup(state) != 0) return -1;
    const kk_config moe = small_moe();
    model_tensors *m = model_make(&moe, "model.", KK_BF16);
    model_write(((scratch *)*state)->dir, m);
    model_free(m);
    for (int i = 0; i < LONG; i++) prompt[i] = (i * 29 + 3) % VOCAB;
    return 0;
}

static kk_status open_engine(void **state, kk_engine **e, kk_err *err) {
    const kk_engine_opts opts = {
        .model = ((scratch *)*state)->dir, .threads = 2, .no_pin = true, .max_rows = CHUNK};
    return kk_engine_open(e, &opts, err);
}

static kk_session *open_session(kk_engine *e) {
    kk_session *s;
    const kk_session_opts opts = {.ctx = CTX};
    assert_int_equal(kk_session_new(&s, e, &opts, NULL), KK_OK);
    return s;
}

static void check_failure(kk_status st, const kk_err *err) {
    assert_true(st == KK_ENOMEM || st == KK_EIO);
    assert_int_equal(err->code, st);
    assert_true(strlen(err->msg) > 10);
}

static void opening_fails_cleanly(void **state) {
    const int64_t bytes = kk_live_bytes(), blocks = kk_live_blocks();
    int64_t failures = 0;
    for (int64_t n = 1;; n++) {
        kk_engine *e = NULL;
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = open_engine(state, &e, &err);
        kk_fault_after(0, false);
        if (st == KK_OK) {
            kk_engine_close(e);
            break;
        }
        failures++;
        assert_null(e);
        check_failure(st, &err);
        assert_int_equal(kk_live_bytes(), bytes);
        assert_int_equal(kk_live_blocks(), blocks);
    }
    assert_true(failures > 100);
    assert_int_equal(kk_live_bytes(), bytes);
}

/* ---- steps of a session's life ------------------------------------------------------------ */

typedef kk_status (*step_fn)(kk_session *s, kk_err *err);

static kk_status step_append(kk_session *s, kk_err *err) {
    return kk_session_append(s, prompt, LONG / 2, NULL, NULL, err);
}
static kk_status step_checkpoint(kk_session *s, kk_err *err) {
    return kk_session_checkpoint(s, err);
}
static kk_status step_rewind(kk_session *s, kk_err *err) {
    return kk_session_rewind(s, 20, NULL, err);
}
static kk_status step_logits(kk_session *s, kk_err *err) {
    const float *row;
    return kk_session_logits(s, &row, err);
}
static kk_status step_generate(kk_session *s, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = 10,
                                  .sampling = {.temp = 1, .repeat_penalty = 1.1f}};
    return kk_generate(s, &how, NULL, NULL, NULL, err);
}

static void logits_of(kk_session *s, float out[VOCAB]) {
    const float *row;
    assert_int_equal(kk_session_logits(s, &row, NULL), KK_OK);
    memcpy(out, row, VOCAB * sizeof *out);
}

/* Runs a step on a session until it succeeds, failing each of its takings in turn; returns how
 * many failed.  After each failure the session says what it said before. */
static int64_t walk(kk_session *s, step_fn step) {
    float before[VOCAB], after[VOCAB];
    const int32_t len = s->len, checkpoints = s->n_points;
    const int64_t cached = kk_cache_len(s->cache);
    if (kk_session_settled(s)) logits_of(s, before);
    for (int64_t n = 1;; n++) {
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = step(s, &err);
        kk_fault_after(0, false);
        if (st == KK_OK) return n - 1;
        check_failure(st, &err);
        assert_int_equal(s->len, len);
        assert_int_equal(s->n_points, checkpoints);
        assert_int_equal(kk_cache_len(s->cache), cached);
        if (!kk_session_settled(s)) continue;
        logits_of(s, after);
        assert_memory_equal(before, after, sizeof before);
    }
}

static void sessions_fail_cleanly(void **state) {
    const int64_t bytes = kk_live_bytes();
    kk_engine *e;
    float a[VOCAB], b[VOCAB];
    assert_int_equal(open_engine(state, &e, NULL), KK_OK);
    for (int64_t n = 1;; n++) {
        kk_session *s = NULL;
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = kk_session_new(&s, e, NULL, &err);
        kk_fault_after(0, false);
        kk_session_free(s);
        if (st == KK_OK) break;
        assert_null(s);
        check_failure(st, &err);
    }
    kk_session *s = open_session(e);
    assert_int_equal(walk(s, step_append), 0); /* from nothing there is nothing to mark */
    assert_true(walk(s, step_checkpoint) >= 2);
    assert_true(walk(s, step_append) >= 1); /* several chunks: a mark */
    assert_int_equal(walk(s, step_generate), 0);
    assert_int_equal(walk(s, step_logits), 0);
    assert_true(walk(s, step_rewind) >= 1);
    assert_int_equal(s->len, 20);
    kk_session *fresh = open_session(e);
    assert_int_equal(kk_session_append(fresh, prompt, 20, NULL, NULL, NULL), KK_OK);
    logits_of(s, a);
    logits_of(fresh, b);
    assert_memory_equal(a, b, sizeof a);
    for (int64_t n = 1;; n++) {
        kk_session *fork = NULL;
        kk_err err = {0};
        kk_fault_after(n, false);
        const kk_status st = kk_session_fork(&fork, s, &err);
        kk_fault_after(0, false);
        if (st == KK_OK) logits_of(fork, b);
        kk_session_free(fork);
        if (st == KK_OK) break;
        assert_null(fork);
        check_failure(st, &err);
    }
    assert_memory_equal(a, b, sizeof a);
    kk_session_free(fresh);
    kk_session_free(s);
    kk_engine_close(e);
    assert_int_equal(kk_live_bytes(), bytes);
}

/* ---- a device that fails ------------------------------------------------------------------ */

/* The CPU cannot fail, so that a copy of its operations does: the n-th attention refuses. */
static int64_t attends_left;
static kk_status (*true_attend)(kk_dev *dev, const kk_attend_args *a, kk_err *err);

static kk_status failing_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    if (attends_left-- == 0) return kk_fail(err, KK_EDEVICE, "the device was unplugged");
    return true_attend(dev, a, err);
}

static bool count_tokens(void *user, int32_t id) {
    (void)id;
    ++*(int32_t *)user;
    return true;
}

/* model.h is the model's own business; a backend that fails is given when it is made. */
static kk_gemma4 *swap_model(kk_engine *e, kk_backend *failing) {
    kk_gemma4 *old = e->model;
    *failing = *e->backend;
    true_attend = failing->attend;
    failing->attend = failing_attend;
    const kk_gemma4_opts how = {.backend = failing,
                                .dev = e->dev,
                                .mem = &e->mem,
                                .max_rows = e->rounds.max_rows,
                                .max_logits = e->rounds.max_logits};
    attends_left = INT64_MAX;
    assert_int_equal(kk_gemma4_new(&e->model, e->checkpoint, &how, NULL), KK_OK);
    e->rounds.model = e->model;
    return old;
}

static void a_device_may_fail_at_any_layer(void **state) {
    const int64_t bytes = kk_live_bytes();
    kk_engine *e;
    kk_backend failing;
    float want[VOCAB], got[VOCAB];
    assert_int_equal(open_engine(state, &e, NULL), KK_OK);
    kk_gemma4_free(swap_model(e, &failing));
    kk_session *s = open_session(e), *fresh = open_session(e);
    assert_int_equal(kk_session_append(s, prompt, 40, NULL, NULL, NULL), KK_OK);
    logits_of(s, want);
    kk_err err;
    const kk_generate_opts endless = {.ignore_eos = true};
    for (int64_t n = 0; n < 24; n++) { /* four chunks of six layers */
        attends_left = n;
        assert_int_equal(kk_session_append(s, prompt + 40, 60, NULL, NULL, &err), KK_EDEVICE);
        attends_left = INT64_MAX;
        assert_string_equal(err.msg, "the device was unplugged");
        assert_int_equal(s->len, 40);
        assert_int_equal(kk_cache_len(s->cache), 40);
        logits_of(s, got);
        assert_memory_equal(want, got, sizeof want);
    }
    for (int64_t n = 0; n < 18; n++) { /* a generation keeps what it handed out */
        int32_t emitted = 0;
        const int32_t len = s->len;
        attends_left = n;
        assert_int_equal(kk_generate(s, &endless, count_tokens, &emitted, NULL, &err), KK_EDEVICE);
        attends_left = INT64_MAX;
        assert_int_equal(s->len, len + emitted);
        assert_int_equal(kk_session_rewind(fresh, 0, NULL, NULL), KK_OK);
        assert_int_equal(kk_session_append(fresh, s->tokens, (size_t)s->len, NULL, NULL, NULL),
                         KK_OK);
        logits_of(fresh, want);
        logits_of(s, got);
        assert_memory_equal(want, got, sizeof want);
    }
    kk_session_free(fresh);
    kk_session_free(s);
    kk_engine_close(e);
    assert_int_equal(kk_live_bytes(), bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(sessions_fail_cleanly),
        cmocka_unit_test(a_device_may_fail_at_any_layer),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
