/* session_test.c - however tokens got into a session, what comes out is the same, bit for bit.
 *
 * The reference is one session, one thread, one forward.  Chunks, appends of any size, company
 * in the forward, threads, forks, rewinds and checkpoints are held against it: the logits of
 * the last token must have the same bits.  Lengths are chosen to cross page borders and to leave
 * the window several times. */
#include "support/tiny.h"

enum { LONG = 230, CTX = 400 };

static const char *const specs[] = {"tiny:f32:2", "tiny:q4_0:7", "tiny-ple:q8_0:6", "tiny:bf16:3"};
enum { SPECS = sizeof specs / sizeof *specs };

static int32_t prompt[CTX];

static int make_prompt(void **state) {
    (void)state;
    tiny_prompt(prompt, CTX, 1);
    return 0;
}

/* The logits after the first n tokens of the prompt, evaluated in one piece. */
static void reference(kk_engine *e, kk_kv_format format, int32_t n, float out[TINY_VOCAB]) {
    kk_session *s = tiny_session(e, CTX, format);
    tiny_append(s, prompt, n);
    tiny_logits(s, out);
    kk_session_free(s);
}

static void assert_logits(kk_session *s, const float want[TINY_VOCAB]) {
    float got[TINY_VOCAB];
    tiny_logits(s, got);
    assert_memory_equal(got, want, sizeof got);
}

static void assert_at(kk_engine *e, kk_session *s, int32_t n) {
    float want[TINY_VOCAB];
    assert_whole(s);
    assert_int_equal(kk_session_len(s), n);
    assert_memory_equal(kk_session_tokens(s), prompt, (size_t)n * sizeof *prompt);
    reference(e, s->format, n, want);
    assert_logits(s, want);
}

/* ---- how tokens come in ----------------------------------------------------------------- */

static void append_in_pieces(kk_engine *e, kk_kv_format format, int32_t piece, const float *want) {
    kk_session *s = tiny_session(e, CTX, format);
    for (int32_t at = 0; at < LONG; at += piece)
        tiny_append(s, prompt + at, LONG - at < piece ? LONG - at : piece);
    assert_logits(s, want);
    kk_session_free(s);
}

static void pieces_make_no_difference(void **state) {
    (void)state;
    static const int32_t pieces[] = {1, 7, 63, 64, 65, 128};
    for (int i = 0; i < SPECS; i++) {
        float want[TINY_VOCAB];
        const kk_kv_format format = i % 2 ? KK_KV_BF16 : KK_KV_F32;
        kk_engine *e = tiny_engine(specs[i], 1, 0);
        reference(e, format, LONG, want);
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++)
            append_in_pieces(e, format, pieces[p], want);
        kk_engine_close(e);
        e = tiny_engine(specs[i], 1, 37); /* chunks of 37 rows inside one append */
        append_in_pieces(e, format, LONG, want);
        kk_engine_close(e);
    }
}

static void threads_make_no_difference(void **state) {
    (void)state;
    for (int i = 0; i < SPECS; i++) {
        float want[TINY_VOCAB];
        for (int32_t threads = 1; threads <= 3; threads++) {
            kk_engine *e = tiny_engine(specs[i], threads, 100);
            kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
            kk_result r;
            const kk_generate_opts how = {.max_tokens = 8, .ignore_eos = true};
            static uint64_t hash;
            tiny_append(s, prompt, LONG);
            if (threads == 1) tiny_logits(s, want);
            assert_logits(s, want);
            assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
            if (threads == 1) hash = r.logits_hash;
            assert_true(r.logits_hash == hash);
            kk_session_free(s);
            kk_engine_close(e);
        }
    }
}

/* Three sessions at different points take rows of different number in the same forwards. */
static void company_makes_no_difference(void **state) {
    (void)state;
    enum { N = 3 };
    for (int i = 0; i < SPECS; i++) {
        float want[N][TINY_VOCAB], got[TINY_VOCAB];
        kk_engine *e = tiny_engine(specs[i], 2, 0);
        kk_session *s[N];
        kk_gemma4_group groups[N];
        for (int32_t k = 0; k < N; k++) {
            const int32_t held = 50 * k, rows = 70 - 30 * k;
            reference(e, KK_KV_BF16, held + rows, want[k]);
            s[k] = tiny_session(e, CTX, KK_KV_BF16);
            tiny_append(s[k], prompt, held);
            assert_ok(kk_cache_reserve(s[k]->cache, rows, why));
            groups[k] = (kk_gemma4_group){s[k]->cache, s[k]->layout, prompt + held, rows,
                                          .n_logits = 1 + k};
        }
        const kk_gemma4_forward_args args = {.groups = groups, .n_groups = N};
        assert_ok(kk_gemma4_forward(e->model, &args, why));
        for (int32_t k = 0, row = 0; k < N; k++) {
            row += groups[k].n_logits;
            assert_ok(kk_gemma4_logits(e->model, row - 1, got, why));
            assert_memory_equal(got, want[k], sizeof got);
            kk_session_free(s[k]);
        }
        kk_engine_close(e);
    }
}

static void engines_do_not_interact(void **state) {
    (void)state;
    kk_engine *a = tiny_engine("tiny:f32:2", 2, 0), *b = tiny_engine("tiny:q4_0:3", 2, 0);
    kk_session *x = tiny_session(a, CTX, KK_KV_F32), *y = tiny_session(b, CTX, KK_KV_F32);
    for (int32_t at = 0; at < LONG; at += 46) { /* in turns */
        tiny_append(x, prompt + at, 46);
        tiny_append(y, prompt + at, 46);
    }
    assert_at(a, x, LONG);
    assert_at(b, y, LONG);
    kk_session_free(x);
    kk_session_free(y);
    kk_engine_close(a);
    a = tiny_engine("tiny:f32:2", 1, 0);
    kk_engine_close(b);
    kk_engine_close(a);
}

/* ---- going back -------------------------------------------------------------------------- */

static void rewinds_equal_a_fresh_start(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 40);
    static const int32_t targets[] = {LONG - 1, 224, 200, 193, 192, 130, 128, 64, 63, 2, 1};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        const int32_t to = targets[i];
        kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
        int32_t cost = -1;
        tiny_append(s, prompt, LONG);
        assert_ok(kk_session_rewind(s, to, &cost, why));
        /* Within the page the window starts in, rows are still there; behind it, none. */
        const int32_t oldest = (LONG - TINY_WINDOW + 1) / KK_PAGE_ROWS * KK_PAGE_ROWS;
        assert_int_equal(cost, to - 1 - TINY_WINDOW + 1 >= oldest || to == 1 ? 0 : to - 1);
        assert_at(e, s, to);
        tiny_append(s, prompt + to, LONG - to);
        assert_at(e, s, LONG);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* The branch not taken must leave nothing behind. */
static void a_rewind_forgets(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    int32_t other[100];
    tiny_prompt(other, 100, 99);
    tiny_append(s, prompt, 150);
    for (int32_t n = 1; n <= 30; n++) {
        tiny_append(s, other, n); /* wrong tokens, across a border for some n */
        assert_ok(kk_session_rewind(s, 150 + n - 1, NULL, why));
        assert_ok(kk_session_rewind(s, 150, NULL, why));
    }
    assert_at(e, s, 150);
    tiny_append(s, other, 100);
    assert_ok(kk_session_rewind(s, 0, NULL, why));
    assert_int_equal(kk_cache_bytes(s->cache, KK_FULL), 0);
    tiny_append(s, prompt, 80);
    assert_at(e, s, 80);
    kk_session_free(s);
    kk_engine_close(e);
}

static void checkpoints_make_rewinds_free(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 0);
    static const int32_t points[] = {20, 64, 100, 127, 128, 150};
    enum { N = sizeof points / sizeof *points };
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
    for (int i = 0; i < N; i++) {
        tiny_append(s, prompt + s->len, points[i] - s->len);
        assert_ok(kk_session_checkpoint(s, why));
        assert_ok(kk_session_checkpoint(s, why)); /* a second one here is the same one */
    }
    assert_int_equal(s->n_points, N);
    tiny_append(s, prompt + 150, CTX - 150);
    for (int i = N - 1; i >= 0; i--) {
        int32_t cost = -1;
        assert_ok(kk_session_rewind(s, points[i], &cost, why));
        assert_int_equal(cost, 0);
        assert_int_equal(s->n_points, i + 1);
        assert_at(e, s, points[i]);
        tiny_append(s, prompt + s->len, 200);
        if (i == 2) { /* not at a checkpoint: the nearest one before it, and the rest again */
            assert_ok(kk_session_rewind(s, points[i] + 20, &cost, why));
            assert_int_equal(cost, 19);
            assert_at(e, s, points[i] + 20);
        }
    }
    kk_session_free(s);
    kk_engine_close(e);
}

/* A checkpoint taken after a generation, whose last token is not yet evaluated. */
static void checkpoints_hold_an_anchor(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16), *again = tiny_session(e, CTX, KK_KV_BF16);
    const kk_generate_opts how = {.max_tokens = 10, .ignore_eos = true};
    int32_t cost = -1;
    tiny_append(s, prompt, 120);
    assert_ok(kk_generate(s, &how, NULL, NULL, NULL, why));
    assert_ok(kk_session_checkpoint(s, why));
    tiny_append(s, prompt, 200);
    assert_ok(kk_session_rewind(s, 130, &cost, why));
    assert_int_equal(cost, 0);
    tiny_append(again, s->tokens, 130);
    assert_same_state(s, again);
    tiny_append(s, prompt, 1);
    tiny_append(again, prompt, 1);
    assert_same_state(s, again);
    kk_session_free(s);
    kk_session_free(again);
    kk_engine_close(e);
}

static void forks_part_without_a_trace(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16), *fork = NULL;
    int64_t before[KK_MEM_CATEGORIES], after[KK_MEM_CATEGORIES];
    int32_t other[100];
    tiny_prompt(other, 100, 5);
    tiny_append(s, prompt, 100);
    kk_engine_memory(e, before);
    assert_ok(kk_session_fork(&fork, s, why));
    kk_engine_memory(e, after);
    assert_int_equal(after[KK_MEM_KV_FULL], before[KK_MEM_KV_FULL]); /* shared, not copied */
    assert_int_equal(after[KK_MEM_KV_SLIDING], before[KK_MEM_KV_SLIDING]);
    assert_same_state(s, fork);
    tiny_append(fork, other, 100);
    tiny_append(s, prompt + 100, 100);
    assert_at(e, s, 200);
    kk_session *fresh = tiny_session(e, CTX, KK_KV_BF16);
    tiny_append(fresh, prompt, 100);
    tiny_append(fresh, other, 100);
    for (int i = 0; i < 2; i++) { /* again after both have read the rows they shared */
        tiny_append(fork, other, 10);
        tiny_append(fresh, other, 10);
        assert_same_state(fork, fresh);
    }
    kk_session_free(fresh);
    assert_ok(kk_session_rewind(fork, 100, NULL, why));
    tiny_append(fork, prompt + 100, 60);
    assert_at(e, fork, 160);
    kk_session_free(s); /* a fork outlives what it came from */
    tiny_append(fork, prompt + 160, 70);
    assert_at(e, fork, LONG);
    kk_session_free(fork);
    kk_engine_close(e);
}

/* ---- generation --------------------------------------------------------------------------- */

/* Appending after a generation evaluates the pending token with the new ones. */
static void generation_leaves_a_timeline(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16), *again = tiny_session(e, CTX, KK_KV_BF16);
    const kk_generate_opts how = {.max_tokens = 90, .ignore_eos = true, .sampling = {.temp = 1}};
    kk_result r;
    tiny_append(s, prompt, 33);
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_int_equal(kk_session_len(s), 123);
    tiny_append(s, prompt, 20);
    tiny_append(again, s->tokens, s->len);
    assert_same_state(s, again);
    /* A second generation continues where the first ended, by position. */
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    kk_result r2;
    assert_ok(kk_generate(again, &how, NULL, NULL, &r2, why));
    assert_true(r.logits_hash == r2.logits_hash);
    assert_same_state(s, again);
    kk_session_free(s);
    kk_session_free(again);
    kk_engine_close(e);
}

static bool arm_after_first(void *user, int32_t id) {
    (void)user, (void)id;
    kk_fault_after(1, true);
    return true;
}

/* From the second token on nothing may be taken from the system, over page borders, window wraps
 * and a copy of a page that a checkpoint shares. */
static void decoding_takes_no_memory(void **state) {
    (void)state;
    for (int i = 0; i < SPECS; i++) {
        kk_engine *e = tiny_engine(specs[i], 2, 0);
        kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
        const kk_generate_opts how = {
            .max_tokens = 250,
            .ignore_eos = true,
            .sampling = {.temp = 1, .top_p = 0.9f, .repeat_penalty = 1.1f}};
        kk_result r;
        kk_err err = {0};
        tiny_append(s, prompt, 30);
        assert_ok(kk_session_checkpoint(s, why));
        const kk_status st = kk_generate(s, &how, arm_after_first, NULL, &r, &err);
        kk_fault_after(0, false);
        if (st != KK_OK) fail_msg("%s after %d tokens", err.msg, r.n_tokens);
        assert_int_equal(r.n_tokens, 250);
        kk_session_free(s);
        kk_engine_close(e);
    }
}

/* The callback may use the engine's other sessions. */
typedef struct {
    kk_session *other;
    int32_t n;
} neighbour;

static bool use_neighbour(void *user, int32_t id) {
    neighbour *n = user;
    tiny_append(n->other, &id, 1);
    return ++n->n < 20;
}

static void callbacks_may_use_other_sessions(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 2, 0);
    kk_session *s = tiny_session(e, CTX, KK_KV_BF16), *plain = tiny_session(e, CTX, KK_KV_BF16);
    neighbour n = {.other = tiny_session(e, CTX, KK_KV_F32)};
    const kk_generate_opts how = {.max_tokens = 20, .ignore_eos = true};
    kk_result r, want;
    tiny_append(s, prompt, 60);
    tiny_append(plain, prompt, 60);
    assert_ok(kk_generate(plain, &how, NULL, NULL, &want, why));
    assert_ok(kk_generate(s, NULL, use_neighbour, &n, &r, why));
    assert_true(r.logits_hash == want.logits_hash);
    assert_int_equal(kk_session_len(n.other), 20);
    assert_same_state(s, plain);
    kk_session_free(s);
    kk_session_free(plain);
    kk_session_free(n.other);
    kk_engine_close(e);
}

/* ---- refusals ----------------------------------------------------------------------------- */

static void wrong_calls_change_nothing(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s = tiny_session(e, 100, KK_KV_BF16);
    const float *row;
    kk_err err;
    const kk_generate_opts negative = {.max_tokens = -1}, hot = {.sampling = {.temp = -1}};
    assert_int_equal(kk_session_logits(s, &row, &err), KK_EINVAL);
    assert_int_equal(kk_generate(s, NULL, NULL, NULL, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_session_append(s, prompt, 101, NULL, NULL, &err), KK_ECONTEXT);
    assert_string_equal(err.msg, "the prompt has 101 tokens, the context holds 100: raise `ctx`");
    tiny_append(s, prompt, 90);
    assert_int_equal(kk_session_append(s, prompt, 11, NULL, NULL, &err), KK_ECONTEXT);
    assert_non_null(strstr(err.msg, "11 tokens after 90"));
    const int32_t wild[] = {5, TINY_VOCAB}, below[] = {-1};
    assert_int_equal(kk_session_append(s, wild, 2, NULL, NULL, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "token 1 is 1024"));
    assert_int_equal(kk_session_append(s, below, 1, NULL, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_session_rewind(s, 91, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_session_rewind(s, -1, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_generate(s, &negative, NULL, NULL, NULL, &err), KK_EINVAL);
    assert_int_equal(kk_generate(s, &hot, NULL, NULL, NULL, &err), KK_EINVAL);
    assert_ok(kk_session_append(s, NULL, 0, NULL, NULL, why));
    assert_at(e, s, 90);
    tiny_append(s, prompt + 90, 10);
    assert_int_equal(kk_generate(s, NULL, NULL, NULL, NULL, &err), KK_ECONTEXT);
    assert_at(e, s, 100);
    kk_session_free(s);
    kk_engine_close(e);
}

static void sessions_check_their_options(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 0);
    kk_session *s;
    kk_err err;
    const kk_session_opts wide = {.ctx = 8193}, negative = {.ctx = -1}, odd = {.kv_format = 7};
    assert_int_equal(kk_session_new(&s, e, &wide, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "8193"));
    assert_int_equal(kk_session_new(&s, e, &negative, &err), KK_EINVAL);
    assert_int_equal(kk_session_new(&s, e, &odd, &err), KK_EINVAL);
    assert_null(s);
    assert_ok(kk_session_new(&s, e, NULL, why));
    assert_int_equal(kk_session_ctx(s), 4096);
    kk_session_free(s);
    kk_engine_close(e);
}

typedef struct {
    int32_t calls, stop_at;
    int64_t last, total;
} watcher;

static bool watch(void *user, int64_t done, int64_t total) {
    watcher *w = user;
    assert_true(done > w->last && done <= total);
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_at;
}

static void appends_stop_without_a_trace(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 32);
    for (int32_t held = 0; held <= 130; held += 65) {
        kk_session *s = tiny_session(e, CTX, KK_KV_BF16);
        kk_err err;
        tiny_append(s, prompt, held);
        for (int32_t stop_at = 1; stop_at <= 4; stop_at++) {
            watcher w = {.stop_at = stop_at};
            assert_int_equal(kk_session_append(s, prompt + held, 200, watch, &w, &err),
                             KK_ESTOPPED);
            assert_int_equal(w.calls, stop_at);
            assert_int_equal(w.total, 200);
            if (held)
                assert_at(e, s, held);
            else
                assert_int_equal(kk_session_len(s), 0);
        }
        watcher w = {0};
        assert_ok(kk_session_append(s, prompt + held, 200, watch, &w, why));
        assert_int_equal(w.calls, 7); /* chunks of 32 */
        assert_int_equal(w.last, 200);
        assert_at(e, s, held + 200);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* ---- memory ------------------------------------------------------------------------------- */

static int64_t limited_bytes(const kk_engine *e) {
    int64_t bytes[KK_MEM_CATEGORIES], sum = 0;
    kk_engine_memory(e, bytes);
    for (int c = KK_MEM_KV_SLIDING; c < KK_MEM_CATEGORIES; c++) sum += bytes[c];
    return sum;
}

/* Wherever the limit falls in a long append, the session is as it was and works on. */
static void a_memory_limit_is_kept(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 32);
    kk_session *s = tiny_session(e, CTX, KK_KV_F32);
    kk_err err;
    tiny_append(s, prompt, 70);
    const int64_t held = limited_bytes(e);
    int32_t refused = 0;
    for (int64_t more = 0;; more += 32768) {
        e->mem.limit = held + more;
        const kk_status st = kk_session_append(s, prompt + 70, 200, NULL, NULL, &err);
        assert_true(limited_bytes(e) <= e->mem.limit);
        if (st == KK_OK) break;
        refused++;
        assert_int_equal(st, KK_ENOMEM);
        assert_non_null(strstr(err.msg, "memory limit"));
        e->mem.limit = 0;
        assert_at(e, s, 70);
    }
    assert_true(refused > 3);
    e->mem.limit = limited_bytes(e);
    int32_t fed = 0; /* a generation keeps what it handed out */
    kk_result r;
    assert_int_equal(kk_generate(s, NULL, NULL, &fed, &r, &err), KK_ENOMEM);
    e->mem.limit = 0;
    assert_int_equal(kk_session_len(s), 270 + r.n_tokens);
    kk_session *again = tiny_session(e, CTX, KK_KV_F32);
    tiny_append(again, s->tokens, s->len);
    assert_same_state(s, again);
    kk_session_free(again);
    kk_session_free(s);
    kk_engine_close(e);
}

/* A rewind that must evaluate again and may not: the session stays where it was. */
static void a_refused_rewind_changes_nothing(void **state) {
    (void)state;
    kk_engine *e = tiny_engine("tiny:f32:2", 1, 32);
    kk_session *s = tiny_session(e, CTX, KK_KV_F32);
    kk_err err;
    int32_t refused = 0, cost = -1;
    tiny_append(s, prompt, 40);
    assert_ok(kk_session_checkpoint(s, why));
    tiny_append(s, prompt + 40, LONG - 40);
    const int64_t held = limited_bytes(e);
    for (int64_t more = 0;; more += 32768) {
        e->mem.limit = held + more;
        const kk_status st = kk_session_rewind(s, 140, &cost, &err);
        e->mem.limit = 0;
        if (st == KK_OK) break;
        refused++;
        assert_int_equal(st, KK_ENOMEM);
        assert_int_equal(cost, 0);
        assert_int_equal(s->n_points, 1);
        assert_at(e, s, LONG);
    }
    assert_true(refused > 3);
    assert_int_equal(cost, 99);
    assert_at(e, s, 140);
    kk_session_free(s);
    kk_engine_close(e);
}

static void bytes_follow_the_sessions(void **state) {
    (void)state;
    int64_t bytes[KK_MEM_CATEGORIES];
    kk_model_info info;
    kk_engine *e = tiny_engine("tiny:q4_0:3", 1, 0);
    kk_engine_info(e, &info);
    kk_engine_memory(e, bytes);
    assert_true(bytes[KK_MEM_WEIGHTS_VERIFIER] >= info.weight_bytes);
    assert_int_equal(bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_SLIDING], 0);
    kk_session *a = tiny_session(e, 8192, KK_KV_BF16), *b = tiny_session(e, CTX, KK_KV_F32);
    kk_engine_memory(e, bytes);
    assert_int_equal(bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_SLIDING], 0); /* not by context */
    tiny_append(a, prompt, 200);
    tiny_append(b, prompt, 100);
    kk_engine_memory(e, bytes);
    assert_int_equal(bytes[KK_MEM_KV_FULL],
                     kk_cache_bytes(a->cache, KK_FULL) + kk_cache_bytes(b->cache, KK_FULL));
    assert_int_equal(bytes[KK_MEM_KV_SLIDING],
                     kk_cache_bytes(a->cache, KK_SLIDING) + kk_cache_bytes(b->cache, KK_SLIDING));
    /* 200 rows in four pages; the window of 64 in two at most. */
    assert_int_equal(kk_cache_bytes(a->cache, KK_FULL), 4 * 64 * info.kv_full_per_token);
    assert_true(kk_cache_bytes(a->cache, KK_SLIDING) <= 2 * info.kv_sliding_max);
    kk_session_free(a);
    kk_session_free(b);
    kk_engine_memory(e, bytes);
    assert_int_equal(bytes[KK_MEM_KV_FULL] + bytes[KK_MEM_KV_SLIDING], 0);
    kk_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_make_no_difference),
        cmocka_unit_test(threads_make_no_difference),
        cmocka_unit_test(company_makes_no_difference),
        cmocka_unit_test(engines_do_not_interact),
        cmocka_unit_test(rewinds_equal_a_fresh_start),
        cmocka_unit_test(a_rewind_forgets),
        cmocka_unit_test(checkpoints_make_rewinds_free),
        cmocka_unit_test(checkpoints_hold_an_anchor),
        cmocka_unit_test(forks_part_without_a_trace),
        cmocka_unit_test(generation_leaves_a_timeline),
        cmocka_unit_test(decoding_takes_no_memory),
        cmocka_unit_test(callbacks_may_use_other_sessions),
        cmocka_unit_test(wrong_calls_change_nothing),
        cmocka_unit_test(sessions_check_their_options),
        cmocka_unit_test(appends_stop_without_a_trace),
        cmocka_unit_test(a_memory_limit_is_kept),
        cmocka_unit_test(a_refused_rewind_changes_nothing),
        cmocka_unit_test(bytes_follow_the_sessions),
    };
    return cmocka_run_group_tests(tests, make_prompt, NULL);
}
