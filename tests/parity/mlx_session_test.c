/* mlx_session_test.c - the engine on the MLX device: goldens of transformers, drafted against plain
 * decoding in drawn cases, one wait a round, drafts within what was measured, and sessions that are
 * saved here and go on elsewhere.
 *
 * Says so and is skipped where the module was not built.  An argument is the number of drawn cases,
 * of which ctest runs few: the BLAS behind MLX's CPU device is slow. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <pthread.h>

#include "eval/measure/devices.h"
#include "eval/tasks/parity.h"
#include "support/draws.h"
#include "support/lossless_axes.h"
#include "support/projection_folder.h"
#include "support/scratch.h"
#include "support/skips.h"

#define TINY KK_MODELS "/tiny"

enum { CASES_OF_A_PROMPT = 8, TOKENS = 6, LONGEST = 70, EXACT = 16 };

static int wanted_cases = 24;

/* ---- goldens ------------------------------------------------------------------------------- */

static void goldens_hold(void **state) {
    (void)state;
    static const char *const names[] = {"dense", "layout", "moe", "perlayer", "scale", "shared"};
    need_mlx(kk_backend_named("mlx") != NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char folder[512];
        kk_parity_report r;
        const kk_parity_opts how = {.tol_logits = 5e-4, .device = "mlx"};
        snprintf(folder, sizeof folder, KK_TEST_DATA "/parity/%s", names[i]);
        assert_ok(kk_parity_run(folder, &how, &r, why));
        print_message("%s: logits within %.2e, hidden states within %.2e\n", names[i],
                      r.way[0].logits.max, r.way[0].hidden.max);
        if (!r.ok) fail_msg("%s does not agree on mlx", names[i]);
    }
}

/* ---- drafting ------------------------------------------------------------------------------ */

static lossless_counts counts;

static int try_prompt(lossless_world *w, const lossless_prompt *p, uint32_t index,
                      uint64_t *random) {
    char why[SAY], name[SAY];
    lossless_stage stage;
    const kk_kv_format format = (kk_kv_format)(index % KK_KV_FORMATS);
    const lossless_policy policy = (lossless_policy)(index / 2 % POLICIES);
    if (!lossless_stage_open(&stage, w, p, index, format, policy, TOKENS, why))
        fail_msg("prompt %u: %s", index, why);
    for (int i = 0; i < CASES_OF_A_PROMPT; i++) {
        const lossless_point point = lossless_draw(&counts, &stage, 1, random);
        const lossless_setting how = lossless_setting_of(&point);
        lossless_name(&point, index, name, sizeof name);
        if (!lossless_case(&stage, &how, why)) fail_msg("%s: %s", name, why);
        lossless_count(&counts, &point);
    }
    lossless_stage_close(&stage);
    if (!lossless_world_empty(w, why)) fail_msg("prompt %u: %s", index, why);
    return CASES_OF_A_PROMPT;
}

/* Only short prompts, for the same reason. */
static void drafting_changes_nothing(void **state) {
    static lossless_prompt prompts[PROMPTS];
    uint64_t random = 4;
    int cases = 0;
    lossless_world w;
    char why[SAY];
    need_mlx(kk_backend_named("mlx") != NULL);
    const kk_engine_opts pair = {.model = TINY "/verifier",
                                 .drafter = TINY "/drafter",
                                 .projection = scratch_path(*state, "projection"),
                                 .device = "mlx",
                                 .exact_rows = EXACT,
                                 .exact_packed_rows = EXACT};
    {
        kk_err err = {0};
        if (projection_unlearned(pair.projection, pair.model, &err) != KK_OK)
            fail_msg("%s", err.msg);
    }
    if (!lossless_world_open(&w, &pair, why)) fail_msg("%s", why);
    lossless_prompts_make(prompts, TINY "/verifier", w.plain->rounds.vocab);
    for (uint32_t i = 0; i < PROMPTS && cases < wanted_cases; i++)
        if (prompts[i].n <= LONGEST) cases += try_prompt(&w, &prompts[i], i, &random);
    print_message("%d cases\n", cases);
    assert_true(cases >= wanted_cases);
    lossless_prompts_free(prompts);
    lossless_world_close(&w);
}

/* ---- rounds -------------------------------------------------------------------------------- */

static kk_engine *open_on(const char *device, int32_t exact_rows) {
    kk_engine *e = NULL;
    const kk_engine_opts o = {.model = TINY "/verifier",
                              .drafter = TINY "/drafter",
                              .device = device,
                              .exact_rows = exact_rows,
                              .exact_packed_rows = exact_rows};
    assert_ok(kk_engine_open(&e, &o, why));
    return e;
}

static kk_session *session_on(kk_engine *e, kk_spec spec, kk_kv_format f) {
    static const int32_t prompt[] = {2, 300, 7, 12, 300, 7, 12, 300, 7, 99, 41, 300, 7, 12};
    kk_session *s = NULL;
    const kk_session_opts o = {.ctx = 256, .spec = spec, .kv_format = f};
    assert_ok(kk_session_new(&s, e, &o, why));
    assert_ok(kk_session_append(s, prompt, sizeof prompt / sizeof *prompt, NULL, NULL, why));
    return s;
}

static kk_result say(kk_session *s, int32_t n, kk_sampling how) {
    kk_result r;
    const kk_generate_opts o = {.max_tokens = n, .ignore_eos = true, .sampling = how};
    assert_ok(kk_generate(s, &o, NULL, NULL, &r, why));
    return r;
}

/* A plain round computes everything in one graph and waits for it once, greedy or sampled. */
static void a_round_waits_once(void **state) {
    (void)state;
    need_mlx(kk_backend_named("mlx") != NULL);
    kk_engine *e = open_on("mlx", 0);
    const kk_sampling ways[] = {{0}, {.temp = 0.8f, .seed = 3}};
    for (size_t i = 0; i < 2; i++) {
        kk_session *s = session_on(e, KK_SPEC_NONE, KK_KV_BF16);
        say(s, 1, ways[i]);
        const kk_result r = say(s, 30, ways[i]);
        print_message("%d rounds, %lld waits\n", r.rounds, (long long)r.syncs);
        assert_true(r.rounds >= 29 && r.syncs == r.rounds);
        kk_session_free(s);
    }
    kk_engine_close(e);
}

/* Until it was measured that rows are alike nothing is drafted; after that, as many as were. */
static void drafts_keep_to_what_was_measured(void **state) {
    (void)state;
    kk_device_exactness measured;
    need_mlx(kk_backend_named("mlx") != NULL);
    assert_ok(kk_device_measure("mlx", &measured, why));
    assert_true(measured.measured && measured.exact_rows >= 1 && measured.exact_rows <= 32);
    assert_true(measured.exact_packed_rows >= 1 && measured.exact_packed_rows <= 32);
    print_message("%s: %d rows are alike\n", measured.isa, measured.exact_rows);
    for (int32_t exact = 0; exact <= 3; exact += 3) {
        kk_engine *e = open_on("mlx", exact);
        kk_device_info d;
        kk_engine_device(e, &d);
        assert_int_equal(d.exact_rows, exact ? exact : 1);
        kk_session *s = session_on(e, KK_SPEC_NGRAM, KK_KV_BF16);
        const kk_result r = say(s, 40, (kk_sampling){0});
        assert_true(exact ? r.spec.drafted > 0 : r.spec.drafted == 0);
        assert_true(r.spec.rows <= (exact ? exact : 1) * r.spec.rounds);
        kk_session_free(s);
        kk_engine_close(e);
    }
    kk_engine *e = open_on("mlx", -1);
    kk_device_info d;
    kk_engine_device(e, &d);
    assert_int_equal(d.exact_rows, -1);
    kk_engine_close(e);
}

/* ---- near ties ----------------------------------------------------------------------------- */

/* The same by the words of core/tie.h: the gap between the two largest against the row's size. */
static bool is_near(const float *x, int32_t n) {
    int32_t first = 0, second = -1;
    double squares = 0;
    for (int32_t i = 0; i < n; i++) squares += pow((double)x[i], 2);
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[first]) first = i;
    for (int32_t i = 0; i < n; i++)
        if (i != first && (second < 0 || x[i] > x[second])) second = i;
    return (double)x[first] - (double)x[second] <= 2e-3 * sqrt(squares / n);
}

typedef struct {
    kk_session *follows;
    int32_t near, vocab;
} tie_count;

/* Logits before each token, of a session that takes the same tokens. */
static bool count_tie(void *user, int32_t id) {
    tie_count *t = user;
    const float *row;
    assert_ok(kk_session_logits(t->follows, &row, why));
    t->near += is_near(row, t->vocab);
    assert_ok(kk_session_append(t->follows, &id, 1, NULL, NULL, why));
    return true;
}

/* Of greedy choices alone, plain and drafted, on a device that is not exact by itself. */
static void near_ties_are_counted(void **state) {
    (void)state;
    enum { N = 40, TRIES = 6 };
    int32_t all = 0, choices = 0;
    need_mlx(kk_backend_named("mlx") != NULL);
    kk_engine *e = NULL;
    const kk_engine_opts o = {.synthetic = "tiny:bf16", .device = "mlx", .exact_rows = EXACT};
    assert_ok(kk_engine_open(&e, &o, why));
    for (int32_t i = 0; i < (few_draws() ? 2 : TRIES); i++) {
        const kk_spec spec = i % 2 ? KK_SPEC_NGRAM : KK_SPEC_NONE;
        kk_session *s = NULL;
        tie_count t = {.vocab = e->rounds.vocab};
        const kk_session_opts how = {.ctx = 256, .spec = spec, .kv_format = KK_KV_F32};
        const int32_t prompt[] = {2, 300 + 7 * i, 7, 12, 300 + 7 * i, 7, 12};
        kk_result r;
        for (int k = 0; k < 2; k++) {
            assert_ok(kk_session_new(k ? &t.follows : &s, e, &how, why));
            assert_ok(kk_session_append(k ? t.follows : s, prompt, 7, NULL, NULL, why));
        }
        const kk_generate_opts gen = {.max_tokens = N, .ignore_eos = true};
        assert_ok(kk_generate(s, &gen, count_tie, &t, &r, why));
        assert_int_equal(r.near_ties, t.near);
        all += r.near_ties;
        choices += r.n_tokens;
        assert_int_equal(say(s, 20, (kk_sampling){.temp = 0.8f}).near_ties, 0);
        kk_session_free(s);
        kk_session_free(t.follows);
    }
    kk_device_info d;
    kk_engine_device(e, &d);
    print_message("%d of %d choices are near ties\n", all, choices); /* rarely one */
    assert_true(d.choices == choices && d.near_ties == all);
    assert_string_equal(d.exact_by, "asked");
    kk_engine_close(e);
}

/* ---- failures and threads ------------------------------------------------------------------ */

static kk_status read_prompt(kk_session *s, int32_t n) {
    int32_t prompt[240];
    kk_err err;
    for (int32_t i = 0; i < n; i++) prompt[i] = 5 + (i * 37 + i / 7) % 900;
    return kk_session_append(s, prompt, (size_t)n, NULL, NULL, &err);
}

static uint64_t goes_on(kk_engine *e, const char *path) {
    kk_session *s;
    bool same;
    assert_ok(kk_session_load(&s, e, path, NULL, &same, why));
    const uint64_t hash = say(s, 12, (kk_sampling){0}).logits_hash;
    kk_session_free(s);
    return hash;
}

/* A prompt that fails while it is computed leaves nothing that is computed later, when its pages
 * are another session's: one that is loaded goes on as it does without the failure. */
static void failures_are_forgotten(void **state) {
    need_mlx(kk_backend_named("mlx") != NULL);
    const char *path = scratch_path(*state, "before");
    kk_engine *e = open_on("mlx", 0);
    kk_session *s = session_on(e, KK_SPEC_NONE, KK_KV_BF16), *pages;
    assert_int_equal(read_prompt(s, 100), KK_OK);
    assert_ok(kk_session_save(s, path, why));
    kk_session_free(s);
    const uint64_t want = goes_on(e, path);
    pages = session_on(e, KK_SPEC_NONE, KK_KV_BF16);
    int failed = 0;
    for (int k = 1; k < 400; k = 2 * k + 1) {
        assert_ok(kk_session_new(&s, e, &(kk_session_opts){.ctx = 256}, why));
        e->backend->instruments->fault_after(k, false);
        const kk_status st = read_prompt(s, 200);
        e->backend->instruments->fault_after(0, false);
        failed += st != KK_OK;
        assert_true(st == KK_OK || st == KK_ENOMEM);
        kk_session_free(s);
        assert_true(goes_on(e, path) == want);
    }
    assert_true(failed > 4);
    kk_session_free(pages);
    kk_engine_close(e);
}

static void *converse(void *engine) {
    kk_session *s = session_on(engine, KK_SPEC_NONE, KK_KV_BF16);
    uint64_t *hash = malloc(sizeof *hash);
    assert_non_null(hash);
    *hash = say(s, 8, (kk_sampling){0}).logits_hash;
    kk_session_free(s);
    return hash;
}

/* What one thread asked for may be computed by another. */
static void threads_take_turns(void **state) {
    (void)state;
    need_mlx(kk_backend_named("mlx") != NULL);
    kk_engine *e = open_on("mlx", 0);
    pthread_t t[4];
    uint64_t *hash[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, converse, e), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], (void **)&hash[i]);
        assert_true(*hash[i] == *hash[0]);
    }
    for (int i = 0; i < 4; i++) free(hash[i]);
    kk_engine_close(e);
}

/* Of this process; -1: the system does not say. */
static int threads_now(void) {
    char line[128];
    int n = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) (void)sscanf(line, "Threads: %d", &n);
    if (f) fclose(f);
    return n;
}

static void *open_and_close(void *unused) {
    (void)unused;
    for (int i = 0; i < 4; i++) kk_engine_close(open_on("mlx", 0));
    return NULL;
}

/* Engines are opened and closed while another computes, which goes on as it did; and none leaves a
 * thread behind that the next one does not use. */
static void engines_come_and_go(void **state) {
    (void)state;
    enum { OTHERS = 3 };
    need_mlx(kk_backend_named("mlx") != NULL);
    kk_engine *e = open_on("mlx", 0);
    pthread_t t[OTHERS];
    uint64_t *want = converse(e);
    for (int i = 0; i < OTHERS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, open_and_close, NULL), 0);
    for (int i = 0; i < 6; i++) {
        uint64_t *got = converse(e);
        assert_true(*got == *want);
        free(got);
    }
    for (int i = 0; i < OTHERS; i++) pthread_join(t[i], NULL);
    const int threads = threads_now();
    for (int i = 0; i < 6; i++) kk_engine_close(open_on("mlx", 0));
    assert_int_equal(threads_now(), threads);
    free(want);
    kk_engine_close(e);
}

/* ---- packed weights ------------------------------------------------------------------------ */

/* The root of the mean square by which logits differ, as a share of theirs. */
static double difference(kk_session *a, kk_session *b, int32_t vocab) {
    const float *x, *y;
    double off = 0, all = 0;
    assert_ok(kk_session_logits(a, &x, why));
    assert_ok(kk_session_logits(b, &y, why));
    for (int32_t i = 0; i < vocab; i++) {
        off += pow((double)x[i] - (double)y[i], 2);
        all += pow((double)y[i], 2);
    }
    return sqrt(off / all);
}

/* A file of quantised weights: the CPU's logits but for its rounding of activations to 8 bits, and
 * drafts that change nothing, within the rows of packed products. */
static void packed_weights(void **state) {
    static const char *const types[] = {"q8_0", "q4_0"};
    need_mlx(kk_backend_named("mlx") != NULL);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        kk_engine *mlx, *cpu;
        kk_device_info d;
        const char *path = scratch_path(*state, types[i]);
        assert_ok(kk_quantize(TINY "/verifier", path, types[i], NULL, NULL, why));
        const kk_engine_opts on_mlx = {
            .model = path, .device = "mlx", .exact_rows = 1, .exact_packed_rows = EXACT};
        assert_ok(kk_engine_open(&mlx, &on_mlx, why));
        assert_ok(kk_engine_open(&cpu, &(kk_engine_opts){.model = path, .device = "cpu"}, why));
        kk_engine_device(mlx, &d);
        assert_true(d.exact_packed && d.exact_rows == EXACT);
        kk_session *a = session_on(mlx, KK_SPEC_NONE, KK_KV_F32),
                   *b = session_on(cpu, KK_SPEC_NONE, KK_KV_F32);
        const double off = difference(a, b, mlx->rounds.vocab);
        print_message("%s: logits differ from the CPU's by %.2g\n", types[i], off);
        assert_true(off < 0.03);
        kk_session *drafted = session_on(mlx, KK_SPEC_NGRAM, KK_KV_F32);
        const kk_result plain = say(a, 40, (kk_sampling){0}),
                        r = say(drafted, 40, (kk_sampling){0});
        assert_true(r.spec.drafted > 0 && plain.logits_hash == r.logits_hash);
        kk_session_free(a);
        kk_session_free(b);
        kk_session_free(drafted);
        kk_engine_close(mlx);
        kk_engine_close(cpu);
    }
}

/* ---- saved sessions ------------------------------------------------------------------------ */

static void sessions_cross_devices(void **state) {
    need_mlx(kk_backend_named("mlx") != NULL);
    kk_engine *mlx = open_on("mlx", EXACT), *cpu = open_on("cpu", 0);
    const char *path = scratch_path(*state, "session");
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        kk_session *a = session_on(mlx, KK_SPEC_NONE, (kk_kv_format)f), *b, *c;
        bool here = false, there = true;
        say(a, 9, (kk_sampling){0});
        assert_ok(kk_session_save(a, path, why));
        assert_ok(kk_session_load(&b, mlx, path, NULL, &here, why));
        assert_ok(kk_session_load(&c, cpu, path, NULL, &there, why));
        assert_true(here && !there);
        const kk_result x = say(a, 12, (kk_sampling){0}), y = say(b, 12, (kk_sampling){0});
        assert_true(x.logits_hash == y.logits_hash);
        say(c, 12, (kk_sampling){0});
        kk_session_free(a);
        kk_session_free(b);
        assert_ok(kk_session_save(c, path, why));
        assert_ok(kk_session_load(&a, mlx, path, NULL, &here, why)); /* and back */
        assert_false(here);
        say(a, 5, (kk_sampling){0});
        kk_session_free(a);
        kk_session_free(c);
        remove(path);
    }
    kk_engine_close(cpu);
    kk_engine_close(mlx);
}

int main(int argc, char **argv) {
    if (argc > 1) wanted_cases = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_hold),
        cmocka_unit_test(a_round_waits_once),
        cmocka_unit_test(drafts_keep_to_what_was_measured),
        cmocka_unit_test(near_ties_are_counted),
        cmocka_unit_test_setup_teardown(failures_are_forgotten, scratch_setup, scratch_teardown),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(engines_come_and_go),
        cmocka_unit_test_setup_teardown(packed_weights, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(sessions_cross_devices, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(drafting_changes_nothing, scratch_setup, scratch_teardown),
    };
    return ended(cmocka_run_group_tests_name("mlx_session", tests, NULL, NULL));
}
