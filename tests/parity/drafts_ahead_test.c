/* drafts_ahead_test.c - drafted rounds that are enqueued before the outcome of the round before is
 * known leave what plain decoding leaves, and what drafted rounds one by one leave: tokens, hash,
 * cache rows, counted bytes and the saved file with the drafter's rows, and all of that again after
 * a fork, the next turn and a rewind.
 *
 * Drafts are made right by a trace of the plain run, for other lengths in every round.  A second
 * device answers as one that queues: operations get positions that only the device knows. */
#define _GNU_SOURCE
#include "backend/cpu/device.h"
#include "core/hash.h"
#include "eval/measure/trace.h"
#include "support/rounds.h"
#include "support/saved_session.h"

enum { TOKENS = 48 };

/* ---- a device that queues ----------------------------------------------------------------- */

static int64_t shifted; /* operations that came with such positions */

/* The rows as they are once the device knows. */
static kk_rows resolved(const kk_rows *rows, kk_group *to) {
    for (int32_t i = 0; i < rows->n_groups; i++) {
        to[i] = rows->group[i];
        if (!to[i].shift) continue;
        const int32_t by = *(const int32_t *)to[i].shift->data;
        assert_true(by >= 0 && by <= to[i].most_shift);
        to[i].pos += by;
        shifted++;
    }
    return (kk_rows){to, rows->n_groups, rows->n_rows};
}

static kk_status late_store(kk_dev *dev, const kk_store_args *a, kk_err *err) {
    kk_group groups[8];
    kk_store_args now = *a;
    const kk_rows rows = resolved(a->rows, groups);
    now.rows = &rows;
    return kk_cpu_backend.store(dev, &now, err);
}

static kk_status late_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    kk_group groups[8];
    kk_attend_args now = *a;
    const kk_rows rows = resolved(a->rows, groups);
    now.rows = &rows;
    return kk_cpu_backend.attend(dev, &now, err);
}

static kk_status late_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err) {
    int64_t pos[64];
    kk_rope_args now = *a;
    for (int64_t i = 0; a->shift && i < a->n; i++)
        pos[i] = a->pos[i] + *(const int32_t *)a->shift->data;
    if (a->shift) now.pos = pos;
    return kk_cpu_backend.rope(dev, &now, err);
}

static const kk_backend *queueing(void) {
    static kk_backend late;
    late = kk_cpu_backend;
    late.name = "late";
    late.queues = true;
    late.store = late_store;
    late.attend = late_attend;
    late.rope = late_rope;
    late.layer = NULL;
    return &late;
}

/* ---- sessions ----------------------------------------------------------------------------- */

static const char *draft_vocab;     /* of the engines; NULL: they have no short head */
static int64_t by_short, by_dflash; /* drafts of rounds that were compared */

static kk_engine *engine(const char *spec, const char *device, int32_t ahead) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = spec,
                                 .drafter = "synthetic",
                                 .draft_vocab = draft_vocab,
                                 .device = device,
                                 .threads = 1,
                                 .no_pin = true,
                                 .ahead = ahead};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static kk_session *drafting(kk_engine *e, kk_spec how, int32_t most, int32_t ctx) {
    kk_session *s = NULL;
    const kk_session_opts opts = {
        .ctx = ctx, .spec = how, .draft_max = most, .draft_fixed = most > 0};
    assert_ok(kk_session_new(&s, e, &opts, why));
    return s;
}

typedef struct {
    int32_t left; /* tokens until it says stop; -1: never */
    int32_t n, seen[2 * TOKENS];
} listener;

static bool hear(void *user, int32_t id) {
    listener *l = user;
    if (l->n < 2 * TOKENS) l->seen[l->n] = id;
    l->n++;
    return l->left < 0 || l->n < l->left;
}

/* What plain decoding says after the first `len` tokens of the prompt. */
static void spoken(kk_engine *e, int32_t len, int32_t out[2 * TOKENS]) {
    kk_session *s = drafting(e, KK_SPEC_NONE, 0, CTX);
    const kk_generate_opts how = {.max_tokens = 2 * TOKENS, .ignore_eos = true};
    listener l = {.left = -1};
    tiny_append(s, prompt, len);
    assert_ok(kk_generate(s, &how, hear, &l, NULL, why));
    memcpy(out, l.seen, sizeof l.seen);
    kk_session_free(s);
}

/* ---- one generation, three ways ----------------------------------------------------------- */

typedef struct {
    kk_session *ahead, *one, *plain; /* one: drafted rounds one by one */
} trio;

/* A saved file names the drafter, of which a trace is no part. */
static void assert_same_saved(scratch *w, kk_session *a, kk_session *b) {
    kk_session *of[] = {a, b};
    const kk_proposer *by[2];
    for (int i = 0; i < 2; i++) {
        by[i] = of[i]->drafting.member[0].proposer;
        draft_instead(of[i], &kk_propose_dflash);
    }
    assert_same_file(w, a, b);
    for (int i = 0; i < 2; i++) draft_instead(of[i], by[i]);
}

static void compare(scratch *w, const trio *t, const kk_generate_opts *how, int32_t left) {
    kk_result a, b, c;
    listener p = {.left = left}, q = p, r = p;
    assert_ok(kk_generate(t->ahead, how, hear, &p, &a, why));
    assert_ok(kk_generate(t->one, how, hear, &q, &b, why));
    assert_ok(kk_generate(t->plain, how, hear, &r, &c, why));
    by_short += a.spec.short_rounds + b.spec.short_rounds;
    by_dflash += a.spec.by[KK_SPEC_DFLASH].rounds + b.spec.by[KK_SPEC_DFLASH].rounds;
    assert_int_equal(p.n, r.n);
    assert_memory_equal(p.seen, r.seen, sizeof p.seen);
    assert_true(a.logits_hash == c.logits_hash && b.logits_hash == c.logits_hash);
    assert_true(a.stop == c.stop && b.stop == c.stop);
    assert_null(t->ahead->engine->rounds.in_flight);
    assert_same(t->ahead, t->one);
    assert_same_saved(w, t->ahead, t->one);
    int64_t x[KK_MEM_CATEGORIES], y[KK_MEM_CATEGORIES];
    kk_engine_memory(t->ahead->engine, x);
    kk_engine_memory(t->one->engine, y);
    for (int i = KK_MEM_KV_SLIDING; i <= KK_MEM_KV_DRAFTER; i++) assert_int_equal(x[i], y[i]);
}

typedef struct {
    kk_engine *ahead, *one, *plain;
    int32_t len, most;
    const int32_t *said;
    double p;
} setting;

static void check_ending(scratch *w, const setting *at, const kk_generate_opts *how, int32_t left) {
    const kk_generate_opts more = {.max_tokens = 7, .ignore_eos = true};
    const kk_trace_opts right = {.p = at->p, .seed = 3};
    trio t = {drafting(at->ahead, KK_SPEC_DFLASH, at->most, CTX),
              drafting(at->one, KK_SPEC_DFLASH, at->most, CTX),
              drafting(at->plain, KK_SPEC_NONE, 0, CTX)};
    kk_session *of[] = {t.ahead, t.one, t.plain};
    kk_trace *trace[2];
    for (int i = 0; i < 3; i++) tiny_append(of[i], prompt, at->len);
    for (int i = 0; i < 2; i++) {
        assert_ok(kk_trace_new(&trace[i], of[i], &right, why));
        assert_ok(kk_trace_follow(trace[i], at->len, at->said, 2 * TOKENS, 1, why));
    }
    compare(w, &t, how, left);
    trio fork;
    assert_ok(kk_session_fork(&fork.ahead, t.ahead, why));
    assert_ok(kk_session_fork(&fork.one, t.one, why));
    assert_ok(kk_session_fork(&fork.plain, t.plain, why));
    compare(w, &fork, &more, -1);
    kk_session_free(fork.ahead);
    kk_session_free(fork.one);
    kk_session_free(fork.plain);
    for (int i = 0; i < 3; i++) tiny_append(of[i], prompt + at->len, 9);
    compare(w, &t, &more, -1);
    for (int i = 0; i < 3; i++) assert_ok(kk_session_rewind(of[i], of[i]->len - 3, NULL, why));
    compare(w, &t, &more, 4);
    for (int i = 0; i < 3; i++) kk_session_free(of[i]);
    for (int i = 0; i < 2; i++) kk_trace_free(trace[i]);
}

/* ---- what is checked ---------------------------------------------------------------------- */

static const int32_t borders[] = {1, 61, 64, 126};

static void every_ending(scratch *w, const char *spec, const char *device) {
    static const int32_t most[] = {1, 3, 7};
    kk_engine *ahead = engine(spec, device, 1), *one = engine(spec, device, -1);
    kk_engine *plain = engine(spec, device, -1);
    for (size_t k = 0; k < sizeof borders / sizeof *borders; k++) {
        int32_t said[2 * TOKENS];
        spoken(one, borders[k], said);
        const setting at = {ahead, one, plain, borders[k], most[k % 3], said, k % 2 ? 0.9 : 0.6};
        for (int32_t n = 0; n < TOKENS; n += n < 2 ? 1 : 17) {
            const kk_generate_opts stop = {
                .max_tokens = TOKENS, .stop_ids = &said[n], .n_stop_ids = 1};
            check_ending(w, &at, &stop, -1);
            const kk_generate_opts limit = {.max_tokens = n + 1, .ignore_eos = true};
            check_ending(w, &at, &limit, -1);
            const kk_generate_opts all = {.max_tokens = TOKENS, .ignore_eos = true};
            check_ending(w, &at, &all, n + 1);
            const kk_generate_opts drawn = {
                .max_tokens = 20, .sampling = {.temp = 0.3f, .seed = 4, .repeat_penalty = 1.1f}};
            if (n == 1) check_ending(w, &at, &drawn, -1);
        }
    }
    kk_engine_close(ahead);
    kk_engine_close(plain);
    kk_engine_close(one);
}

static void every_ending_leaves_the_same(void **state) { every_ending(*state, "tiny:f32:2", NULL); }

static void positions_may_be_the_devices(void **state) {
    kk_backend_add(queueing());
    shifted = 0;
    every_ending(*state, "tiny-ple:q8_0:6", "late");
    assert_true(shifted > 0);
    kk_backend_add(NULL);
}

/* Tokens get spare rows when they are known, which is after rounds behind them were enqueued. */
static void short_heads_draft_ahead(void **state) {
    draft_vocab = "512";
    by_short = by_dflash = 0;
    every_ending(*state, "tiny:f32:2", NULL);
    assert_true(by_short > 1000 && by_short == by_dflash);
    draft_vocab = NULL;
}

/* The free controller drafts, stops and drafts again; the context ends the generation. */
static void the_controller_may_choose(void **state) {
    kk_engine *ahead = engine("tiny:q8_0:4", NULL, 1), *one = engine("tiny:q8_0:4", NULL, -1);
    kk_engine *plain = engine("tiny:q8_0:4", NULL, -1);
    for (int i = 0; i < 2; i++) {
        int32_t said[2 * TOKENS];
        spoken(one, 30, said);
        trio t = {drafting(ahead, KK_SPEC_DFLASH, 0, 30 + TOKENS),
                  drafting(one, KK_SPEC_DFLASH, 0, 30 + TOKENS),
                  drafting(plain, KK_SPEC_NONE, 0, 30 + TOKENS)};
        kk_session *of[] = {t.ahead, t.one, t.plain};
        const kk_trace_opts right = {.p = i ? 0.99 : 0.2, .seed = 3};
        kk_trace *trace;
        for (int k = 0; k < 3; k++) tiny_append(of[k], prompt, 30);
        assert_ok(kk_trace_new(&trace, t.ahead, &right, why));
        assert_ok(kk_trace_follow(trace, 30, said, 2 * TOKENS, 1, why));
        const kk_generate_opts how = {.ignore_eos = true};
        compare(*state, &t, &how, -1);
        for (int k = 0; k < 3; k++) kk_session_free(of[k]);
        kk_trace_free(trace);
    }
    kk_engine_close(ahead);
    kk_engine_close(plain);
    kk_engine_close(one);
}

/* Rounds of a generation but its first go ahead, and accept what the trace put there. */
static void they_do_go_ahead(void **state) {
    (void)state;
    kk_engine *e = engine("tiny:f32:2", NULL, 1);
    int32_t said[2 * TOKENS];
    spoken(e, 40, said);
    kk_session *s = drafting(e, KK_SPEC_DFLASH, 3, CTX);
    const kk_trace_opts right = {.p = 0.9, .seed = 5};
    const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
    kk_trace *trace;
    kk_result r;
    tiny_append(s, prompt, 40);
    assert_ok(kk_trace_new(&trace, s, &right, why));
    assert_ok(kk_trace_follow(trace, 40, said, 2 * TOKENS, 1, why));
    assert_ok(kk_generate(s, &how, NULL, NULL, &r, why));
    assert_true(r.spec.accepted > r.rounds && r.spec.ahead >= r.rounds - 3);
    assert_true(r.spec.drafted >= 3 * (r.rounds - 3));
    const kk_generate_opts warm = {
        .max_tokens = TOKENS, .ignore_eos = true, .sampling = {.temp = 1}};
    assert_ok(kk_generate(s, &warm, NULL, NULL, &r, why));
    assert_int_equal(r.spec.ahead, 0);
    kk_session_free(s);
    kk_trace_free(trace);
    kk_engine_close(e);
}

/* Another session says tokens whenever this one has said some: what is in flight is read for it,
 * and goes on from there. */
typedef struct {
    kk_session *other;
    uint64_t hash;
} company;

static bool others_speak(void *user, int32_t id) {
    company *c = user;
    kk_result r;
    const kk_generate_opts how = {.max_tokens = 3, .ignore_eos = true};
    if (id % 3 == 0) return true;
    assert_ok(kk_generate(c->other, &how, NULL, NULL, &r, why));
    c->hash = kk_hash_add(c->hash, r.logits_hash);
    return true;
}

static void company_makes_no_difference(void **state) {
    (void)state;
    uint64_t hash[2][2];
    for (int i = 0; i < 2; i++) {
        kk_engine *e = engine("tiny:f32:3", NULL, i ? -1 : 1);
        int32_t said[2 * TOKENS];
        spoken(e, 50, said);
        kk_session *a = drafting(e, KK_SPEC_DFLASH, 3, CTX),
                   *b = drafting(e, KK_SPEC_DFLASH, 2, CTX);
        const kk_trace_opts right = {.p = 0.8, .seed = 5};
        const kk_generate_opts how = {.max_tokens = TOKENS, .ignore_eos = true};
        company with = {.other = b};
        kk_trace *trace;
        kk_result r;
        tiny_append(a, prompt, 50);
        tiny_append(b, prompt + 100, 20);
        assert_ok(kk_trace_new(&trace, a, &right, why));
        assert_ok(kk_trace_follow(trace, 50, said, 2 * TOKENS, 1, why));
        assert_ok(kk_generate(a, &how, others_speak, &with, &r, why));
        assert_true(r.spec.accepted > 0);
        hash[i][0] = r.logits_hash;
        hash[i][1] = with.hash;
        kk_session_free(a);
        kk_session_free(b);
        kk_trace_free(trace);
        kk_engine_close(e);
    }
    assert_true(hash[0][0] == hash[1][0] && hash[0][1] == hash[1][1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(they_do_go_ahead, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(every_ending_leaves_the_same, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(positions_may_be_the_devices, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(short_heads_draft_ahead, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(the_controller_may_choose, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(company_makes_no_difference, setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
