/* mlx_pages_test.c - attention by the kernels over K/V pages, whose Metal text is compiled as C++
 * and run lane by lane (support/mlx_interpreter.cc), against the plain reference: inputs, grids and
 * names are those that MLX is given on a Mac.  What MLX and Metal make of the text is not tested
 * here. */
#define main cpu_main
#include "parity/backend_test.c"
#undef main

#include "engine/session.h"
#include "support/draws.h"
#include "support/mlx_interpreter.h"
#include "support/mlx_judge.h"
#include "support/ok.h"

static const rig_device by_pages = {.backend = "mlx-pages"};

static void attends_as_the_reference(void **state) {
    const op_case *c = *state;
    static rig r;
    rig_records want = {0}, got = {0};
    const int64_t before = mlx_interpreter_calls();
    assert_true(rig_open(&r, &by_pages, c->max_rows, &got, seed_of(c)));
    c->fn(&r);
    rig_close(&r);
    print_message("%d calls of kernels\n", (int)(mlx_interpreter_calls() - before));
    assert_true(mlx_interpreter_calls() - before > 5);
    assert_true(rig_open(&r, &reference, c->max_rows, &want, seed_of(c)));
    c->fn(&r);
    rig_close(&r);
    assert_int_equal(want.n, got.n);
    for (size_t k = 0; k < want.n; k++) judge(&want.items[k], &got.items[k]);
    rig_records_free(&want);
    rig_records_free(&got);
}

/* The self-test finds what it is made to find: kernels whose rows are alike, kernels that are wrong
 * where rows have others beside them, and kernels that are wrong. */
static void the_self_test_judges(void **state) {
    (void)state;
    int32_t rows = -1;
    kk_err err = {0};
    assert_int_equal(mlx_interpreter_alike(INT32_MAX, &rows, &err), KK_OK);
    assert_int_equal(rows, 32);
    assert_int_equal(mlx_interpreter_alike(12, &rows, &err), KK_OK);
    print_message("%d rows while calls for more than 12 parts are wrong\n", rows);
    assert_true(rows >= 1 && rows <= 12);
    assert_int_equal(mlx_interpreter_alike(1, &rows, &err), KK_OK);
    assert_int_equal(rows, 0);
}

/* What Metal's compiler refuses is not used, is told, and costs no other measurement. */
static void kernels_may_not_compile(void **state) {
    (void)state;
    kk_exact_rows rows;
    kk_err pages = {0}, err = {0};
    assert_int_equal(mlx_interpreter_measure_broken(&rows, &pages, &err), KK_OK);
    assert_true(rows.floats >= 1 && rows.packed >= 1 && rows.pages == 0);
    assert_non_null(strstr(pages.msg, "no such type"));
}

/* ---- sessions ------------------------------------------------------------------------------ */

enum { PROMPT = 330, TOKENS = 24 };

static kk_engine *open_on(const char *device) {
    kk_engine *e = NULL;
    const kk_engine_opts o = {
        .model = KK_MODELS "/tiny/verifier", .device = device, .exact_rows = 8};
    assert_ok(kk_engine_open(&e, &o, why));
    return e;
}

static kk_session *session_on(kk_engine *e, kk_spec spec, kk_kv_format f, kk_keep keep) {
    kk_session *s = NULL;
    int32_t prompt[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) prompt[i] = 5 + (i % 40 * 37 + i / 100) % 900;
    const kk_session_opts o = {.ctx = 512,
                               .spec = spec,
                               .kv_format = f,
                               .kv_sliding = keep,
                               .kv_full = keep,
                               .window = keep == KK_KEEP_ALL ? 0 : 40,
                               .chunk = keep == KK_KEEP_ALL ? 0 : 32};
    assert_ok(kk_session_new(&s, e, &o, why));
    assert_ok(kk_session_append(s, prompt, PROMPT, NULL, NULL, why));
    return s;
}

static kk_result say(kk_session *s) {
    kk_result r;
    const kk_generate_opts o = {.max_tokens = TOKENS, .ignore_eos = true};
    assert_ok(kk_generate(s, &o, NULL, NULL, &r, why));
    return r;
}

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

/* Drafted text is plain text to the bit, and both are what the plain way gives but for rounding:
 * pages in the device's own memory, in all formats, whole and with rows that are gone behind a
 * sink that is kept apart. */
static void sessions_go_on(void **state) {
    (void)state;
    kk_engine *pages = open_on("mlx-pages"), *cpu = open_on("cpu");
    for (int f = 0; f < KK_KV_FORMATS; f++) {
        if (few_draws() && f != KK_KV_BF16 && f != KK_KV_Q4) continue; /* one of each way to keep */
        const kk_keep keep = f % 2 ? KK_KEEP_WINDOW : KK_KEEP_ALL;
        const int64_t before = mlx_interpreter_calls();
        kk_session *a = session_on(pages, KK_SPEC_NONE, (kk_kv_format)f, keep),
                   *b = session_on(pages, KK_SPEC_NGRAM, (kk_kv_format)f, keep),
                   *c = session_on(cpu, KK_SPEC_NONE, (kk_kv_format)f, keep);
        const kk_result plain = say(a), drafted = say(b);
        say(c);
        assert_true(mlx_interpreter_calls() - before > TOKENS);
        assert_true(drafted.spec.drafted > 0 && drafted.logits_hash == plain.logits_hash);
        assert_memory_equal(kk_session_tokens(a), kk_session_tokens(c),
                            (PROMPT + TOKENS) * sizeof(int32_t));
        const double off = difference(a, c, pages->rounds.vocab);
        print_message("%s: %.2g off the CPU's logits\n", kk_kv_format_name((kk_kv_format)f), off);
        assert_true(off < 0.02);
        kk_session_free(a);
        kk_session_free(b);
        kk_session_free(c);
    }
    kk_engine_close(pages);
    kk_engine_close(cpu);
}

int main(void) {
    (void)cpu_main;
    (void)refusing;
    struct CMUnitTest tests[COUNT(cases) + 3];
    size_t n = 0;
    mlx_interpreter_add();
    for (size_t i = 0; i < COUNT(cases); i++)
        if (strncmp(cases[i].name, "attend", 6) == 0)
            tests[n++] = (struct CMUnitTest){cases[i].name, attends_as_the_reference, NULL, NULL,
                                             (void *)(uintptr_t)&cases[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(the_self_test_judges);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(kernels_may_not_compile);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(sessions_go_on);
    return _cmocka_run_group_tests("kernels over pages", tests, n, NULL, NULL);
}
