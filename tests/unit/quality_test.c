/* quality_test.c - distributions that are known by hand, caches that are exact after all, and texts
 * with nothing to compare. */
#define _GNU_SOURCE
#include <math.h>

#include "core/alloc.h"
#include "core/file.h"
#include "eval/tasks/quality.h"
#include "eval/texts/promptset.h"
#include "support/scratch.h"
#include "support/tiny.h"
#include "train/corpus.h"

/* ---- two rows ---------------------------------------------------------------------------- */

static bool is_finite(double x) { return isfinite(x) != 0; }
static bool near(double a, double b) { return fabs(a - b) < 1e-12; }

static void test_kl(void **state) {
    (void)state;
    /* exp: 1, 3 of 4 and 1, 1 of 2. */
    const float a[] = {0, logf(3)}, b[] = {0, 0}, shifted[] = {7, 7};
    const double three = exp((double)a[1]), p = three / (1 + three);
    const double want = 0.13081203594113697; /* log 2 - (1/4 log 4 + 3/4 log 4/3), by hand */
    assert_true(fabs(kk_quality_kl(a, b, 2) - want) < 1e-7); /* logf(3) is off by 1e-8 of itself */
    assert_true(near(kk_quality_kl(a, shifted, 2), kk_quality_kl(a, b, 2)));
    /* The other way round it is another number. */
    assert_true(near(kk_quality_kl(b, a, 2), 0.5 * log(0.5 / (1 - p)) + 0.5 * log(0.5 / p)));
    assert_true(kk_quality_kl(a, a, 2) == 0);
    assert_true(near(kk_quality_kl(b, shifted, 2), 0));
    assert_true(near(kk_quality_loss(b, 2, 1), log(2)));
    assert_true(near(kk_quality_loss(a, 2, 1), -log(p)));
}

static void test_kl_extremes(void **state) {
    (void)state;
    const float far[] = {3000, 0}, near_by[] = {0, 0}, bad[] = {NAN, 0}, huge[] = {INFINITY, 0};
    assert_true(near(kk_quality_kl(far, near_by, 2), log(2)));
    assert_true(is_finite(kk_quality_kl(near_by, far, 2)) && kk_quality_kl(near_by, far, 2) > 1000);
    assert_false(is_finite(kk_quality_kl(bad, near_by, 2)));
    assert_false(is_finite(kk_quality_kl(near_by, bad, 2)));
    assert_false(is_finite(kk_quality_kl(near_by, huge, 2)));
    float x[1000], y[1000];
    for (int i = 0; i < 1000; i++) {
        x[i] = (float)(i % 17) / 3;
        y[i] = x[i] * (1 + 1e-7f);
    }
    assert_true(kk_quality_kl(x, y, 1000) >= 0);
}

static void test_sum(void **state) {
    (void)state;
    const kk_quality_row rows[] = {{.rows = 300,
                                    .mean_kl = 0.1,
                                    .worst_kl = 0.5,
                                    .loss_exact = 2,
                                    .loss_arm = 2.2,
                                    .same_prefix = 10,
                                    .same_of = 64},
                                   {.rows = 100,
                                    .mean_kl = 0.5,
                                    .worst_kl = 0.9,
                                    .loss_exact = 1,
                                    .loss_arm = 0.8,
                                    .same_prefix = 38,
                                    .same_of = 64}};
    const kk_quality_sum s = kk_quality_sum_up(rows, 2);
    assert_int_equal(s.rows, 400);
    assert_true(near(s.mean_kl, 0.2) && near(s.worst_kl, 0.9) && near(s.loss_change, 0.1));
    assert_true(near(s.same, 0.375));
    assert_int_equal(kk_quality_sum_up(rows, 0).rows, 0);
}

/* ---- caches ------------------------------------------------------------------------------ */

enum { LONG = 150, FROM = 20, SAID = 12 };

static kk_engine *engine(int32_t max_logits) {
    kk_engine *e = NULL;
    const kk_engine_opts opts = {.synthetic = "tiny:f32:6",
                                 .projection = "synthetic:64",
                                 .threads = 1,
                                 .max_logits = max_logits,
                                 .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    return e;
}

static const kk_session_opts exact = {.kv_format = KK_KV_BF16};
static const kk_session_opts restored = {.kv_sliding = KK_KEEP_RESTORED,
                                         .kv_full = KK_KEEP_RESTORED,
                                         .sink = 4,
                                         .window = 16,
                                         .chunk = 16};

static void measure(kk_engine *e, const kk_session_opts *arms, const float *mix, int32_t n,
                    kk_quality_row *rows) {
    int32_t ids[LONG];
    tiny_prompt(ids, LONG, 3);
    const kk_quality_text text = {.name = "random", .ids = ids, .n = LONG};
    const kk_quality_opts how = {.engine = e,
                                 .exact = &exact,
                                 .arms = arms,
                                 .n_arms = n,
                                 .mix = mix,
                                 .from = FROM,
                                 .predict = SAID};
    assert_ok(kk_quality_measure(&how, &text, rows, why));
}

/* True rows mixed in whole are exact to the bit; dropped and rebuilt ones are not. */
static void test_identity(void **state) {
    (void)state;
    kk_engine *e = engine(0);
    kk_session_opts arms[4] = {restored, restored, exact, restored};
    const float mix[4] = {1, -1, -1, -1};
    arms[1].kv_sliding = arms[1].kv_full = KK_KEEP_WINDOW;
    kk_quality_row rows[4];
    measure(e, arms, mix, 4, rows);
    for (int i = 0; i < 4; i++) {
        const kk_quality_row *r = &rows[i];
        const bool same = i == 0 || i == 2;
        assert_string_equal(r->text, "random");
        assert_int_equal(r->rows, LONG - 1 - FROM);
        assert_int_equal(r->same_of, SAID);
        assert_int_equal(r->worst_kl == 0 && r->mean_kl == 0, same);
        assert_int_equal(r->loss_arm == r->loss_exact, same);
        if (same) assert_int_equal(r->same_prefix, SAID);
        assert_true(r->mean_kl <= r->worst_kl);
    }
    kk_engine_close(e);
}

/* How many rows share a pass changes nothing, and the figures are those of logits one by one. */
static void test_grouping(void **state) {
    (void)state;
    kk_quality_row by_one, by_many;
    kk_engine *e = engine(1);
    measure(e, &restored, NULL, 1, &by_one);
    kk_engine_close(e);
    e = engine(40);
    measure(e, &restored, NULL, 1, &by_many);
    assert_memory_equal(&by_one, &by_many, sizeof by_one);

    int32_t ids[LONG];
    float a[TINY_VOCAB], b[TINY_VOCAB];
    double kl = 0, worst = 0, loss = 0;
    kk_session *s[2];
    assert_ok(kk_session_new(&s[0], e, &exact, why));
    assert_ok(kk_session_new(&s[1], e, &restored, why));
    tiny_prompt(ids, LONG, 3);
    for (int32_t i = 0; i < LONG - 1; i++) {
        tiny_append(s[0], ids + i, 1);
        tiny_append(s[1], ids + i, 1);
        if (i < FROM) continue;
        tiny_logits(s[0], a);
        tiny_logits(s[1], b);
        const double one = kk_quality_kl(a, b, TINY_VOCAB);
        kl += one;
        worst = one > worst ? one : worst;
        loss += kk_quality_loss(b, TINY_VOCAB, ids[i + 1]);
    }
    assert_true(near(by_many.mean_kl, kl / by_many.rows) && by_many.worst_kl == worst);
    assert_true(near(by_many.loss_arm, loss / by_many.rows));
    kk_session_free(s[0]);
    kk_session_free(s[1]);
    kk_engine_close(e);
}

static void refuse(const kk_quality_opts *how, const kk_quality_text *text, kk_status want,
                   const char *part) {
    kk_quality_row rows[KK_QUALITY_ARMS];
    kk_err err;
    assert_int_equal(kk_quality_measure(how, text, rows, &err), want);
    if (!strstr(err.msg, part)) fail_msg("'%s' is not in: %s", part, err.msg);
}

static bool stop_at_once(void *user, const kk_quality_text *text, int32_t done) {
    (void)user;
    (void)text;
    assert_true(done > FROM);
    return false;
}

static void test_refused(void **state) {
    (void)state;
    kk_engine *e = engine(0);
    int32_t ids[LONG];
    tiny_prompt(ids, LONG, 3);
    kk_quality_text text = {.name = "random", .ids = ids, .n = FROM + 1};
    kk_quality_opts how = {.engine = e,
                           .exact = &exact,
                           .arms = &restored,
                           .n_arms = 1,
                           .from = FROM,
                           .predict = SAID};
    refuse(&how, &text, KK_EINVAL, "21 tokens: nothing to compare from token 20");
    text.n = LONG;
    how.predict = 0;
    refuse(&how, &text, KK_EINVAL, "continuations of 0");
    how.predict = SAID;
    how.n_arms = 0;
    refuse(&how, &text, KK_EINVAL, "0 arms");
    how.n_arms = 1;
    how.on_rows = stop_at_once;
    refuse(&how, &text, KK_ESTOPPED, "stopped after");
    how.on_rows = NULL;
    kk_session_opts wide = restored;
    wide.window = TINY_WINDOW + 1;
    how.arms = &wide;
    refuse(&how, &text, KK_EINVAL, "window of 65");
    kk_engine_close(e);
}

/* No memory at ever later points: a status each time, and no leak. */
static void test_faults(void **state) {
    (void)state;
    kk_engine *e = engine(0);
    kk_quality_row row;
    int32_t ids[60];
    tiny_prompt(ids, 60, 3);
    const kk_quality_text text = {.name = "random", .ids = ids, .n = 60};
    const kk_quality_opts how = {
        .engine = e, .exact = &exact, .arms = &restored, .n_arms = 1, .from = FROM, .predict = 2};
    assert_ok(kk_quality_measure(&how, &text, &row, why)); /* what an engine takes only once */
    const int64_t blocks = kk_live_blocks();
    bool done = false;
    int failures = 0;
    for (int64_t n = 1; !done; n++) {
        kk_fault_after(n, false);
        done = kk_quality_measure(&how, &text, &row, NULL) == KK_OK;
        kk_fault_after(0, false);
        failures += !done;
        assert_int_equal(kk_live_blocks(), blocks);
    }
    assert_true(failures > 5);
    kk_engine_close(e);
}

/* ---- texts ------------------------------------------------------------------------------- */

#define SHIPPED KK_TEST_DATA "/../../models/tiny"

typedef struct {
    scratch *dir;
    kk_tokenizer *tok;
} world;

static int setup(void **state) {
    world *w = calloc(1, sizeof *w);
    void *dir;
    if (scratch_setup(&dir) != 0) return -1;
    w->dir = dir;
    *state = w;
    return kk_tokenizer_open(&w->tok, SHIPPED "/verifier", NULL) == KK_OK ? 0 : -1;
}

static int teardown(void **state) {
    world *w = *state;
    void *dir = w->dir;
    kk_tokenizer_close(w->tok);
    scratch_teardown(&dir);
    free(w);
    return 0;
}

static void write_text(const char *path, const char *line, int times) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < times; i++) fputs(line, f);
    assert_int_equal(fclose(f), 0);
}

static void unreadable(const world *w, const char *path, int32_t from, const char *part) {
    const char *paths[] = {path};
    kk_quality_texts t;
    kk_err err;
    const kk_quality_source source = {
        .tok = w->tok, .paths = paths, .n_paths = 1, .from = from, .most = 2048};
    assert_int_not_equal(kk_quality_read(&t, &source, &err), KK_OK);
    assert_int_equal(t.n, 0);
    if (!strstr(err.msg, part)) fail_msg("'%s' is not in: %s", part, err.msg);
}

static void test_bad_texts(void **state) {
    world *w = *state;
    const int64_t blocks = kk_live_blocks();
    const char *path = scratch_path(w->dir, "short.txt");
    write_text(path, "", 1);
    unreadable(w, path, 68, "is empty");
    write_text(path, " \n\t\n", 3);
    unreadable(w, path, 68, "is empty");
    write_text(path, "x = 1\n", 1);
    unreadable(w, path, 68, "nothing would be compared");
    unreadable(w, path, 0, "256 are the least");
    unreadable(w, "/nowhere/text", 68, "/nowhere/text");
    path = scratch_path(w->dir, "bad.jsonl");
    write_text(path, "{\"text\": 1}\n", 1);
    unreadable(w, path, 68, "line 1");
    assert_int_equal(remove(path), 0);
    kk_quality_texts t;
    kk_err err;
    const kk_quality_source none = {.tok = w->tok, .from = 68, .most = 2048};
    assert_int_equal(kk_quality_read(&t, &none, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "--text"));
    assert_int_equal(kk_live_blocks(), blocks);
}

static void test_files(void **state) {
    world *w = *state;
    const char *paths[] = {scratch_path(w->dir, "long.py")};
    write_text(paths[0], "def f(x): return x + 1\n", 100);
    kk_quality_texts t;
    const kk_quality_source source = {
        .tok = w->tok, .paths = paths, .n_paths = 1, .from = 68, .most = 500};
    assert_ok(kk_quality_read(&t, &source, why));
    assert_int_equal(t.n, 1);
    assert_string_equal(t.texts[0].name, "long.py");
    assert_int_equal(t.texts[0].n, 500);
    assert_int_equal(t.rows, 500 - 1 - 68);
    kk_quality_free(&t);
    kk_quality_free(&t);
}

static bool is_among(const kk_promptset *set, const kk_quality_text *t, size_t *line) {
    for (*line = 0; *line < set->n; ++*line) {
        const kk_prompt *p = &set->prompts[*line];
        if ((int32_t)p->n == t->n && memcmp(p->ids, t->ids, p->n * sizeof *p->ids) == 0)
            return true;
    }
    return false;
}

/* One shipped prompt in ten, always the same; of a file that says so, all. */
static void test_held_out(void **state) {
    world *w = *state;
    kk_quality_texts t;
    kk_promptset code;
    size_t held = 0, from_code = 0, line;
    const kk_quality_source source = {
        .tok = w->tok, .prompts = SHIPPED "/prompts", .from = 68, .most = 2048};
    assert_ok(kk_quality_read(&t, &source, why));
    assert_ok(kk_promptset_read(&code, SHIPPED "/prompts/code.jsonl", w->tok, 100, why));
    for (size_t i = 0; i < code.n; i++)
        held += kk_quality_held_out(code.prompts[i].ids,
                                    code.prompts[i].n * sizeof *code.prompts[i].ids);
    for (size_t i = 0; i < t.n; i++) {
        if (strncmp(t.texts[i].name, "code ", 5) != 0) continue;
        assert_true(is_among(&code, &t.texts[i], &line));
        assert_int_equal(atoi(t.texts[i].name + 5), line);
        from_code++;
    }
    assert_true(held > 0 && held < code.n / 2);
    assert_int_equal(from_code, held);
    kk_promptset_free(&code);
    kk_quality_free(&t);

    /* A folder with a file held out as a whole, and prompts too short for anything. */
    write_text(scratch_path(w->dir, "code-heldout.txt"), "def f(x): return x + 1\n", 100);
    write_text(scratch_path(w->dir, "chat.jsonl"), "{\"text\": \"Hi\"}\n", 3);
    write_text(scratch_path(w->dir, "README.md"), "not a text\n", 1);
    kk_quality_source own = source;
    own.prompts = w->dir->dir;
    assert_ok(kk_quality_read(&t, &own, why));
    assert_int_equal(t.n, 1);
    assert_string_equal(t.texts[0].name, "code-heldout.txt");
    kk_quality_free(&t);
}

/* What training holds out is what is compared on: one rule, told in two places. */
static void test_held_out_of_training(void **state) {
    static const char *const sets[] = {"code", "chat", "edit", "json", "prose"};
    enum { SETS = 5, PROMPTS = 20 };
    world *w = *state;
    char *folder = kk_path_join(w->dir->dir, "sets"), name[64], line[64];
    assert_ok(kk_dir_make(folder, why));
    for (int i = 0; i < SETS; i++) {
        snprintf(name, sizeof name, "sets/%s.jsonl", sets[i]);
        FILE *f = fopen(scratch_path(w->dir, name), "w");
        for (int j = 0; j < PROMPTS; j++) fprintf(f, "{\"text\": \"%s %d is it\"}\n", sets[i], j);
        assert_int_equal(fclose(f), 0);
    }
    kk_engine *e;
    const kk_engine_opts opts = {.model = SHIPPED "/verifier", .threads = 1, .no_pin = true};
    assert_ok(kk_engine_open(&e, &opts, why));
    kk_corpus c;
    const kk_corpus_opts how = {.engine = e, .prompts = folder, .length = 100};
    assert_ok(kk_corpus_new(&c, &how, why));
    assert_int_equal(c.n, SETS * PROMPTS);
    int held = 0;
    for (size_t i = 0; i < c.n; i++) {
        const kk_text *t = &c.texts[i];
        snprintf(line, sizeof line, "%s %zu", sets[i / PROMPTS], i % PROMPTS);
        if (t->held != kk_quality_held_out(t->ids, (size_t)t->n * sizeof *t->ids))
            fail_msg("'%s' is %sheld out of training", line, t->held ? "" : "not ");
        held += t->held;
    }
    assert_in_range(held, 2, 25);
    kk_corpus_free(&c);
    kk_engine_close(e);
    kk_free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kl),
        cmocka_unit_test(test_kl_extremes),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_grouping),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_held_out_of_training),
    };
    return cmocka_run_group_tests_name("quality", tests, setup, teardown);
}
