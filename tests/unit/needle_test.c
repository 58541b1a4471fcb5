/* needle_test.c - the documents of `kakeya eval needle` are those a seed means in Python, and an
 * answer counts only when it names the code. */
#define _GNU_SOURCE
#include <math.h>

#include "core/alloc.h"
#include "eval/tasks/needle.h"
#include "eval/texts/haystack.h"
#include "support/projection_folder.h"

/* ---- the generator ----------------------------------------------------------------------- */

/* What Random(seed).getrandbits(32) gives first, second and 1,000th. */
static void test_bits(void **state) {
    static const struct {
        uint64_t seed;
        uint32_t first, second, thousandth;
    } known[] = {
        {0u, 3626764237u, 1654615998u, 2971151651u},
        {1u, 577090037u, 2444712010u, 1877627338u},
        {42u, 2746317213u, 478163327u, 4212168831u},
        {4294967295u, 2728839433u, 2661025012u, 3614058829u},
        {4294967296u, 485306839u, 1508871100u, 6718883u},
        {18446744073709551615u, 93740670u, 1068495656u, 3545973770u},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        kk_twister t;
        kk_twister_seed(&t, known[i].seed);
        assert_int_equal(kk_twister_bits(&t, 32), known[i].first);
        assert_int_equal(kk_twister_bits(&t, 32), known[i].second);
        for (int n = 2; n < 999; n++) kk_twister_bits(&t, 32);
        assert_int_equal(kk_twister_bits(&t, 32), known[i].thousandth);
    }
}

static void test_between(void **state) {
    (void)state;
    kk_twister t;
    bool seen[4] = {false};
    kk_twister_seed(&t, 7);
    for (int i = 0; i < 200; i++) {
        const int32_t x = kk_twister_between(&t, -2, 1);
        assert_in_range(x + 2, 0, 3);
        seen[x + 2] = true;
    }
    for (int i = 0; i < 4; i++) assert_true(seen[i]);
    assert_int_equal(kk_twister_between(&t, 5, 5), 5);
    for (int i = 0; i < 100; i++) assert_true(kk_twister_between(&t, INT32_MIN, -2) <= -2);
}

/* ---- documents --------------------------------------------------------------------------- */

typedef struct {
    int32_t lines;
    const char *code;
    int32_t index;
} sample;

static void check_samples(uint64_t seed, int32_t low, int32_t high, const sample *want) {
    kk_twister t;
    kk_twister_seed(&t, seed);
    for (int i = 0; i < 5; i++) {
        const kk_haystack h = kk_haystack_draw(&t, low, high);
        assert_int_equal(h.lines, want[i].lines);
        assert_string_equal(h.code, want[i].code);
        assert_int_equal(h.index, want[i].index);
    }
}

static void test_samples(void **state) {
    (void)state;
    check_samples(42, 60, 80,
                  (const sample[]){{80, "BETA-1409", 39},
                                   {67, "DELTA-3286", 51},
                                   {63, "ORCHID-9935", 9},
                                   {78, "ETA-1520", 7},
                                   {62, "DELTA-4811", 36}});
    check_samples(42, 238, 322,
                  (const sample[]){{319, "BETA-1409", 144},
                                   {269, "DELTA-3286", 56},
                                   {307, "BETA-7912", 20},
                                   {241, "BETA-4582", 63},
                                   {302, "KAPPA-1434", 291}});
    check_samples(0, 60, 60,
                  (const sample[]){{60, "MAPLE-7890", 6},
                                   {60, "IOTA-8961", 29},
                                   {60, "THETA-6866", 41},
                                   {60, "IOTA-3281", 22},
                                   {60, "MAPLE-2553", 43}});
}

/* The code never lies in the first or last four lines, and anywhere between. */
static void test_margins(void **state) {
    (void)state;
    kk_twister t;
    int32_t least = INT32_MAX, most = 0;
    kk_twister_seed(&t, 1);
    for (int i = 0; i < 200; i++) {
        const kk_haystack h = kk_haystack_draw(&t, 12, 12);
        if (h.index < least) least = h.index;
        if (h.index > most) most = h.index;
    }
    assert_int_equal(least, 4);
    assert_int_equal(most, 8);
}

static void check_rung(int32_t n, int32_t low, int32_t high) {
    int32_t got_low, got_high;
    kk_haystack_rung(n, &got_low, &got_high);
    assert_int_equal(got_low, low);
    assert_int_equal(got_high, high);
}

static void test_rungs(void **state) {
    (void)state;
    check_rung(70, 60, 81);
    check_rung(280, 238, 322);
    check_rung(1, 10, 11);
    check_rung(10, 10, 12);
    check_rung(KK_HAYSTACK_MOST_LINES, 850000, 1150000);
}

/* Every byte counts: a model was trained on them. */
static void test_text(void **state) {
    (void)state;
    const kk_haystack h = {.lines = 10, .index = 6, .code = "OAK-2718"};
    char *text;
    size_t len;
    assert_int_equal(kk_haystack_text(&h, &text, &len, NULL), KK_OK);
    char want[1200] = "";
    for (int i = 0; i < 10; i++) {
        char line[100];
        snprintf(line, sizeof line,
                 "Note 000%d: this line is unrelated padding and does not hold the answer.\n", i);
        if (i == 6) strcat(want, "\n**IMPORTANT: the secret access code is OAK-2718.**\n\n");
        strcat(want, line);
    }
    strcat(want, "\nQuestion: What is the secret access code? Answer:");
    assert_string_equal(text, want);
    assert_int_equal(len, strlen(want));
    kk_free(text);
}

/* The longest line number and code still fit the buffer that is taken for them. */
static void test_longest(void **state) {
    (void)state;
    const kk_haystack h = {.lines = 20000, .index = 19996, .code = "EPSILON-9999"};
    char *text;
    size_t len;
    assert_int_equal(kk_haystack_text(&h, &text, &len, NULL), KK_OK);
    assert_int_equal(len, strlen(text));
    assert_non_null(strstr(text, "Note 19999: this"));
    const char *end = " Answer:";
    assert_string_equal(text + len - strlen(end), end);
    kk_free(text);

    kk_fault_after(1, false);
    assert_int_equal(kk_haystack_text(&h, &text, &len, NULL), KK_ENOMEM);
    assert_null(text);
    kk_fault_after(0, false);
}

static void test_found(void **state) {
    (void)state;
    const kk_haystack eta = {.code = "ETA-1520"};
    assert_true(kk_haystack_found(&eta, "ETA-1520"));
    assert_true(kk_haystack_found(&eta, " The secret access code is ETA-1520.\n"));
    assert_true(kk_haystack_found(&eta, "**ETA-1520**"));
    assert_true(kk_haystack_found(&eta, "not BETA-1520 but ETA-1520"));
    assert_false(kk_haystack_found(&eta, ""));
    assert_false(kk_haystack_found(&eta, "The secret access code is BETA-1520."));
    assert_false(kk_haystack_found(&eta, "ETA-15203"));
    assert_false(kk_haystack_found(&eta, "eta-1520"));
    assert_false(kk_haystack_found(&eta, "ETA-152"));
}
/* ---- the run ----------------------------------------------------------------------------- */

static const kk_needle_opts small = {
    .engine = {.model = KK_TEST_DATA "/../../models/tiny/verifier", .threads = 1},
    .seed = 5,
    .samples = 1,
    .ladder = {10},
    .n_rungs = 1,
    .predict = 20};

static void refused(kk_needle_opts o, kk_status want, const char *why) {
    kk_needle_result r;
    kk_err err;
    assert_int_equal(kk_needle_run(&o, &r, &err), want);
    if (!strstr(err.msg, why)) fail_msg("'%s' is not in: %s", why, err.msg);
    assert_int_equal(r.n_arms, 0);
}

static void test_refused(void **state) {
    (void)state;
    const int64_t blocks = kk_live_blocks();
    kk_needle_opts o = small;
    o.n_rungs = 0;
    refused(o, KK_EINVAL, "0 rungs");
    o = small;
    o.ladder[0] = 0;
    refused(o, KK_EINVAL, "0 lines");
    o = small;
    o.samples = 0;
    refused(o, KK_EINVAL, "0 samples");
    o = small;
    o.predict = 0;
    refused(o, KK_EINVAL, "0 tokens");
    o = small;
    o.seed = UINT64_MAX;
    refused(o, KK_EINVAL, "18446744073709551615");
    o = small;
    o.engine.model = KK_TEST_DATA "/chat";
    refused(o, KK_EINVAL, "no tokenizer");
    o = small;
    o.session.ctx = 100;
    refused(o, KK_ECONTEXT, "take -c ");
    o = small;
    o.ladder[0] = 100000;
    refused(o, KK_ECONTEXT, "leave that rung out");
    assert_int_equal(kk_live_blocks(), blocks);
}

typedef struct {
    int32_t begun, judged, stop_after; /* texts; 0: never */
    int32_t texts;
    char text[200];
} seen;

static bool on_event(void *user, const kk_needle_event *e) {
    seen *s = user;
    s->begun += e->moment == KK_NEEDLE_READING && e->done == 0;
    s->judged += e->moment == KK_NEEDLE_JUDGED;
    if (e->moment != KK_NEEDLE_TEXT) return true;
    assert_true(strlen(s->text) + e->len < sizeof s->text);
    strncat(s->text, e->text, e->len);
    return ++s->texts != s->stop_after;
}

/* What is streamed is the answer, and the sums are those of the samples. */
static void test_run(void **state) {
    (void)state;
    const int64_t blocks = kk_live_blocks();
    seen s = {0};
    kk_needle_opts o = small;
    o.on_event = on_event;
    o.user = &s;
    kk_needle_result r;
    assert_int_equal(kk_needle_run(&o, &r, NULL), KK_OK);
    assert_int_equal(r.n_arms, 1);
    const kk_needle_rung *rung = &r.arm[0].rung[0];
    const kk_needle_sample *one = &rung->samples[0];
    assert_int_equal(s.begun, 1);
    assert_int_equal(s.judged, 1);
    assert_string_equal(s.text, one->answer);
    assert_int_equal(one->hit, strstr(one->answer, one->doc.code) != NULL);
    assert_int_equal(r.arm[0].n_rungs, 1);
    assert_int_equal(rung->n_samples, 1);
    assert_int_equal(rung->hits, one->hit);
    assert_true(rung->tokens == one->tokens);
    assert_int_equal(r.ctx, one->tokens + o.predict);
    assert_true(rung->prefill_tok_s > 0 && rung->decode_tok_s > 0);
    assert_true(rung->bytes[KK_MEM_KV_SLIDING] > 0 && rung->bytes[KK_MEM_KV_FULL] > 0);
    kk_needle_release(&r);
    assert_int_equal(kk_live_blocks(), blocks);
}

static void test_stopped(void **state) {
    (void)state;
    const int64_t blocks = kk_live_blocks();
    seen s = {.stop_after = 2};
    kk_needle_opts o = small;
    o.on_event = on_event;
    o.user = &s;
    refused(o, KK_ESTOPPED, "stopped");
    assert_int_equal(s.texts, 2);
    assert_int_equal(kk_live_blocks(), blocks);
}

/* Takings fail at ever later points until none is left: a status each time, and no leak.  The
 * small steps at the end are the run's own; before them lie thousands of the tokenizer's. */
static void test_faults(void **state) {
    (void)state;
    const int64_t blocks = kk_live_blocks();
    kk_needle_opts o = small;
    o.predict = 2;
    bool done = false;
    for (int64_t n = 1; !done; n += 1 + n / 3) {
        kk_needle_result r;
        kk_err err;
        kk_fault_after(n, false);
        const kk_status st = kk_needle_run(&o, &r, &err);
        kk_fault_after(0, false);
        done = st == KK_OK;
        if (done) kk_needle_release(&r);
        assert_int_equal(kk_live_blocks(), blocks);
    }
}

/* ---- arms -------------------------------------------------------------------------------- */

static const char *const texts[] = {KK_TEST_DATA "/../../models/tiny/prompts/code.jsonl"};

/* Needles in 10 lines, some 300 tokens, of which 4 + 32 and a chunk are kept. */
static kk_needle_opts with_arms(const char *projection) {
    kk_needle_opts o = small;
    o.engine.projection = projection;
    o.session = (kk_session_opts){.sink = 4, .window = 32, .chunk = 32};
    o.arms[0] = KK_NEEDLE_EXACT;
    o.arms[1] = KK_NEEDLE_WINDOW;
    o.arms[2] = KK_NEEDLE_RESTORED;
    o.n_arms = projection ? 3 : 2;
    o.texts = texts;
    o.n_texts = 1;
    o.text_tokens = 80;
    return o;
}

/* A projection of the shipped model that has learned nothing. */
static void write_projection(const char *folder, uint64_t model) {
    kk_checkpoint *ckpt;
    assert_ok(kk_checkpoint_open(&ckpt, small.engine.model, NULL, why));
    kk_projection_config c = projection_for(kk_checkpoint_config(ckpt), true);
    c.verifier = model;
    projection_values p = projection_values_of(&c);
    assert_ok(kk_projection_write(folder, &c, &p.values, KK_BF16, why));
    free(p.all);
    kk_checkpoint_close(ckpt);
}

static void check_arm(const kk_needle_result *r, int32_t a, kk_keep keep) {
    const kk_needle_arm *arm = &r->arm[a];
    const kk_needle_sample *s = &arm->rung[0].samples[0], *first = &r->arm[0].rung[0].samples[0];
    assert_int_equal(arm->how.kv_sliding, keep);
    assert_int_equal(arm->how.kv_full, keep);
    assert_string_equal(s->doc.code, first->doc.code);
    assert_int_equal(s->tokens, first->tokens);
    assert_true(s->counts.queries > 0 && s->counts.keys_stored > 0);
    const bool rebuilds = keep == KK_KEEP_RESTORED;
    assert_int_equal(s->counts.rows_rebuilt > 0, rebuilds);
    assert_int_equal(s->counts.keys_rebuilt > 0, rebuilds);
    assert_int_equal(arm->rung[0].bytes[KK_MEM_KV_LATENTS] > 0, rebuilds);
    if (a == 0) return;
    assert_true(s->counts.keys_stored < first->counts.keys_stored);
    assert_true(kk_needle_kv_bytes(&arm->rung[0]) < kk_needle_kv_bytes(&r->arm[0].rung[0]));
    assert_true(arm->sum.rows == r->texts.rows && arm->sum.rows >= KK_QUALITY_LEAST_ROWS);
    assert_true(arm->sum.mean_kl > 0 && arm->sum.worst_kl >= arm->sum.mean_kl);
}

static void test_arms(void **state) {
    const int64_t blocks = kk_live_blocks();
    scratch *dir = *state;
    kk_engine *e;
    kk_fingerprints prints;
    assert_ok(kk_engine_open(&e, &small.engine, why));
    kk_engine_fingerprints(e, &prints);
    kk_engine_close(e);
    const char *folder = scratch_path(dir, "projection");
    write_projection(folder, prints.model);
    kk_needle_opts o = with_arms(folder);
    kk_needle_result r;
    assert_ok(kk_needle_run(&o, &r, why));
    assert_int_equal(r.n_arms, 3);
    assert_int_equal(r.projection.rank, 32);
    check_arm(&r, 0, KK_KEEP_ALL);
    check_arm(&r, 1, KK_KEEP_WINDOW);
    check_arm(&r, 2, KK_KEEP_RESTORED);
    kk_needle_release(&r);
    /* Of sliding layers alone: the others stay as they are. */
    o.session.kv_sliding = KK_KEEP_RESTORED;
    assert_ok(kk_needle_run(&o, &r, why));
    assert_int_equal(r.arm[1].how.kv_sliding, KK_KEEP_WINDOW);
    assert_int_equal(r.arm[1].how.kv_full, KK_KEEP_ALL);
    assert_int_equal(r.arm[2].how.kv_sliding, KK_KEEP_RESTORED);
    assert_int_equal(r.arm[2].how.kv_full, KK_KEEP_ALL);
    kk_needle_release(&r);
    assert_int_equal(kk_live_blocks(), blocks);
}

static void test_arms_refused(void **state) {
    const int64_t blocks = kk_live_blocks();
    scratch *dir = *state;
    kk_needle_opts o = with_arms(NULL);
    o.arms[1] = KK_NEEDLE_RESTORED;
    refused(o, KK_EINVAL, "needs a projection");
    o = with_arms(NULL);
    o.arms[0] = KK_NEEDLE_WINDOW;
    refused(o, KK_EINVAL, "exact comes first");
    o = with_arms(NULL);
    o.arms[2] = KK_NEEDLE_WINDOW;
    o.n_arms = 3;
    refused(o, KK_EINVAL, "twice");
    o = with_arms(NULL);
    o.session.sink = o.session.window = -1;
    refused(o, KK_EINVAL, "sink and window are both 0");
    o = with_arms(NULL);
    o.session.window = 513;
    refused(o, KK_EINVAL, "window of 513");
    const char *folder = scratch_path(dir, "other");
    write_projection(folder, 0x1234);
    refused(with_arms(folder), KK_EFORMAT, "another model");
    o = with_arms(NULL);
    o.text_tokens = 66; /* 1 position each */
    refused(o, KK_EINVAL, "256 are the least");
    assert_int_equal(kk_live_blocks(), blocks);
}

/* ---- the gate ---------------------------------------------------------------------------- */

static const kk_needle_limits nothing = {-1, -1, -1};

/* Two rungs of exact, window and restored with the given recalls. */
static kk_needle_result result_of(kk_needle_sample *one, double exact, double restored) {
    kk_needle_result r = {.n_arms = 3};
    for (int32_t a = 0; a < 3; a++) {
        kk_needle_arm *arm = &r.arm[a];
        arm->way = (kk_needle_way)a;
        arm->n_rungs = 2;
        for (int i = 0; i < 2; i++) {
            arm->rung[i].recall = a == 2 ? restored : a == 1 ? 0 : exact;
            arm->rung[i].bytes[KK_MEM_KV_FULL] = a == 2 ? 100 : 400 - 100 * i;
            arm->rung[i].samples = one;
            arm->rung[i].n_samples = 1;
        }
    }
    r.arm[0].rung[0].recall = 1;
    r.arm[2].rung[0].recall = 1;
    r.arm[2].sum.mean_kl = 0.04;
    return r;
}

static const kk_needle_check *named(const kk_needle_check *c, int32_t n, const char *figure) {
    for (int32_t i = n - 1; i >= 0; i--)
        if (strcmp(c[i].figure, figure) == 0) return &c[i];
    fail_msg("no check of %s", figure);
    return NULL;
}

static void test_gate(void **state) {
    (void)state;
    kk_needle_check c[KK_NEEDLE_CHECKS];
    kk_needle_sample one = {.counts = {.rows_rebuilt = 1}};
    kk_needle_result r = result_of(&one, 1, 0.95);
    assert_int_equal(kk_needle_judge(&r, &nothing, c), 2);
    assert_true(named(c, 2, "recall_drop")->holds && named(c, 2, "restored_rows")->holds);
    assert_true(fabs(named(c, 2, "recall_drop")->value - 0.05) < 1e-12);
    const kk_needle_limits all = {0.96f, 0.04f, 3};
    const int32_t n = kk_needle_judge(&r, &all, c);
    assert_int_equal(n, 6);
    assert_string_equal(c[0].arm, "exact");
    assert_true(c[0].holds);
    assert_false(named(c, n, "recall")->holds); /* of restored, the second rung */
    assert_true(named(c, n, "mean_kl")->holds && named(c, n, "kv_ratio")->holds);
    assert_true(named(c, n, "kv_ratio")->value == 3);
    const kk_needle_limits more = {-1, 0.0399f, 3.01f};
    assert_int_equal(kk_needle_judge(&r, &more, c), 4);
    assert_false(named(c, 4, "mean_kl")->holds);
    assert_false(named(c, 4, "kv_ratio")->holds);
    one.counts.rows_rebuilt = 0;
    r = result_of(&one, 1, 0.94);
    assert_int_equal(kk_needle_judge(&r, &nothing, c), 2);
    assert_false(named(c, 2, "recall_drop")->holds);
    assert_false(named(c, 2, "restored_rows")->holds);
    r.n_arms = 1;
    assert_int_equal(kk_needle_judge(&r, &nothing, c), 0);
    r.n_arms = 2; /* window is not asked to recall anything */
    assert_int_equal(kk_needle_judge(&r, &all, c), 1);
    assert_true(c[0].holds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_between),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_margins),
        cmocka_unit_test(test_rungs),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_gate),
        cmocka_unit_test_setup_teardown(test_arms, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_arms_refused, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests_name("needle", tests, NULL, NULL);
}
