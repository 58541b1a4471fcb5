/* checkpoints_test.c - as many checkpoints as a byte budget allows, and forks at any of them.
 *
 * What a rewind or a fork leaves is compared with a session that evaluated the same tokens in one
 * piece; what checkpoints hold is read from the allocator, beside a session that has none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/same_cache.h"
#include "support/tiny.h"

enum { CTX = 512, STEP = 30, STEPS = 16 };

static int32_t prompt[CTX];

static kk_session *open_session(kk_engine *e, int64_t checkpoint_bytes) {
    const kk_session_opts how = {
        .ctx = CTX, .kv_format = KK_KV_BF16, .checkpoint_bytes = checkpoint_bytes};
    kk_session *s;
    assert_ok(kk_session_new(&s, e, &how, why));
    return s;
}

static int64_t kv_bytes(kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_engine_memory(e, bytes);
    return bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_SLIDING] + bytes[KK_MEM_KV_DRAFTER];
}

static void assert_at(kk_engine *e, kk_session *s, int32_t n) {
    float want[TINY_VOCAB], got[TINY_VOCAB];
    kk_session *fresh = open_session(e, 0);
    tiny_append(fresh, prompt, n);
    tiny_logits(fresh, want);
    kk_session_free(fresh);
    assert_int_equal(kk_session_len(s), n);
    assert_memory_equal(kk_session_tokens(s), prompt, (size_t)n * sizeof *prompt);
    tiny_logits(s, got);
    assert_memory_equal(got, want, sizeof got);
}

/* Appends in steps, with a checkpoint after each; calls see after each. */
static void walk(kk_session *s, void (*see)(kk_session *s, void *user), void *user) {
    for (int32_t i = 0; i < STEPS; i++) {
        tiny_append(s, prompt + s->len, STEP);
        assert_ok(kk_session_checkpoint(s, why));
        if (see) see(s, user);
    }
}

/* ---- the budget ------------------------------------------------------------------------- */

typedef struct {
    kk_session *plain; /* the same without checkpoints, on an engine of its own */
    int64_t budget, most;
} beside;

/* Bytes of pages and rows of logits that only checkpoints hold. */
static void stays_within(kk_session *s, void *user) {
    beside *b = user;
    int32_t lens[STEPS];
    tiny_append(b->plain, prompt + b->plain->len, STEP);
    const int32_t n = kk_session_checkpoints(s, lens, STEPS);
    const int64_t extra = kv_bytes(s->engine) - kv_bytes(b->plain->engine) +
                          n * (int64_t)(TINY_VOCAB * sizeof(float));
    assert_true(n >= 1 && lens[n - 1] == s->len);
    if (n > 1) assert_true(extra <= b->budget);
    if (extra > b->most) b->most = extra;
}

static void bytes_stay_within_the_budget(void **state) {
    (void)state;
    static const int64_t budgets[] = {1, 100000, 200000, 400000, 1 << 24};
    int32_t last = 0;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        kk_engine *e = tiny_engine("tiny:f32:3", 1, 0), *other = tiny_engine("tiny:f32:3", 1, 0);
        kk_session *s = open_session(e, budgets[i]);
        beside b = {.plain = open_session(other, -1), .budget = budgets[i]};
        walk(s, stays_within, &b);
        const int32_t n = kk_session_checkpoints(s, NULL, 0);
        assert_true(n >= last); /* more bytes, more checkpoints */
        last = n;
        if (i == 0) assert_int_equal(n, 1);
        if (budgets[i] == 1 << 24) assert_int_equal(n, STEPS);
        if (i == 3) assert_true(n > 1 && n < STEPS && b.most > budgets[i] / 4);
        kk_session_free(s);
        kk_session_free(b.plain);
        assert_int_equal(kv_bytes(e), 0);
        kk_engine_close(e);
        kk_engine_close(other);
    }
    assert_int_equal(last, STEPS);
}

/* Those that are left are spread out: the first ones are not the first to go. */
static void those_left_are_spread_out(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:3", 1, 0);
    kk_session *s = open_session(e, 400000);
    int32_t lens[STEPS], widest = 0;
    walk(s, NULL, NULL);
    const int32_t n = kk_session_checkpoints(s, lens, STEPS);
    assert_in_range(n, 3, STEPS - 1);
    for (int32_t i = 0; i < n; i++) {
        const int32_t gap = lens[i] - (i ? lens[i - 1] : 0);
        widest = gap > widest ? gap : widest;
    }
    assert_true(widest <= 3 * STEP * STEPS / n);
    for (int32_t i = n - 1; i >= 0; i--) {
        int32_t cost = -1;
        assert_ok(kk_session_rewind(s, lens[i], &cost, why));
        assert_int_equal(cost, 0);
        assert_at(e, s, lens[i]);
    }
    kk_session_free(s);
    kk_engine_close(e);
}

static void none_may_be_kept(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:3", 1, 0);
    kk_session *s = open_session(e, -1), *refused;
    const kk_session_opts wrong = {.ctx = CTX, .checkpoint_bytes = -2};
    kk_err err;
    walk(s, NULL, NULL);
    assert_int_equal(kk_session_checkpoints(s, NULL, 0), 0);
    assert_int_equal(kk_session_new(&refused, e, &wrong, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "-2"));
    kk_session_free(s);
    kk_engine_close(e);
}

/* ---- forks ------------------------------------------------------------------------------ */

static void forks_begin_at_any_checkpoint(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 0);
    kk_session *s = open_session(e, 0);
    walk(s, NULL, NULL);
    for (int32_t i = 1; i <= STEPS; i++) {
        kk_session *fork;
        int32_t cost = -1;
        const int64_t before = kv_bytes(e);
        assert_ok(kk_session_fork_at(&fork, s, i * STEP, &cost, why));
        assert_int_equal(cost, 0);
        assert_int_equal(kv_bytes(e), before); /* pages are shared, none is copied */
        assert_int_equal(kk_session_checkpoints(fork, NULL, 0), i);
        assert_at(e, fork, i * STEP);
        kk_session_free(fork);
        assert_at(e, s, STEPS * STEP);
        assert_int_equal(kk_session_checkpoints(s, NULL, 0), STEPS);
    }
    kk_session_free(s);
    kk_engine_close(e);
}

/* Between checkpoints the nearest one and the rest; the checkpoints before it come along, and
 * outlive the session that took them. */
static void forks_keep_what_the_first_session_took(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 0);
    kk_session *s = open_session(e, 0), *fork;
    int32_t cost = -1;
    walk(s, NULL, NULL);
    assert_ok(kk_session_fork_at(&fork, s, 3 * STEP + 7, &cost, why));
    assert_int_equal(cost, 6);
    kk_session_free(s);
    assert_at(e, fork, 3 * STEP + 7);
    assert_int_equal(kk_session_checkpoints(fork, NULL, 0), 3);
    tiny_append(fork, prompt + fork->len, 400);
    assert_ok(kk_session_rewind(fork, 2 * STEP, &cost, why));
    assert_int_equal(cost, 0);
    assert_at(e, fork, 2 * STEP);
    kk_session_free(fork);
    assert_int_equal(kv_bytes(e), 0);
    kk_engine_close(e);
}

static void forks_off_the_timeline_are_refused(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = open_session(e, 0), *fork = s;
    kk_err err;
    tiny_append(s, prompt, 40);
    assert_int_equal(kk_session_fork_at(&fork, s, 41, NULL, &err), KK_EINVAL);
    assert_null(fork);
    assert_non_null(strstr(err.msg, "41"));
    assert_int_equal(kk_session_fork_at(&fork, s, -1, NULL, &err), KK_EINVAL);
    assert_ok(kk_session_fork_at(&fork, s, 0, NULL, why));
    assert_int_equal(kk_session_len(fork), 0);
    kk_session_free(fork);
    kk_session_free(s);
    kk_engine_close(e);
}

int main(void) {
    tiny_prompt(prompt, CTX, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_stay_within_the_budget),
        cmocka_unit_test(those_left_are_spread_out),
        cmocka_unit_test(none_may_be_kept),
        cmocka_unit_test(forks_begin_at_any_checkpoint),
        cmocka_unit_test(forks_keep_what_the_first_session_took),
        cmocka_unit_test(forks_off_the_timeline_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
