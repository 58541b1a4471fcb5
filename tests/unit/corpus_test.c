/* corpus_test.c - texts to train on: the same for a seed, apart from what is held out, and never a
 * document of an evaluation. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "train/corpus.h"

static kk_engine *engine;

static int open_engine(void **state) {
    const kk_engine_opts opts = {.model = KK_MODELS "/tiny/verifier", .threads = 1};
    (void)state;
    return kk_engine_open(&engine, &opts, NULL) == KK_OK ? 0 : -1;
}

static int close_engine(void **state) {
    (void)state;
    kk_engine_close(engine);
    return 0;
}

static kk_corpus_opts standard(void) {
    return (kk_corpus_opts){.engine = engine,
                            .prompts = KK_MODELS "/tiny/prompts",
                            .length = 64,
                            .predict = 4,
                            .needles = 2,
                            .most_lines = 22,
                            .tokens = 600,
                            .seed = 3};
}

/* ---- needles ----------------------------------------------------------------------------- */

static bool same(const kk_haystack *a, const kk_haystack *b) {
    return a->lines == b->lines && a->index == b->index && strcmp(a->code, b->code) == 0;
}

/* Every document of evaluations with seeds 0 to 1200, which include the very seeds that draws for
 * training are made with, against those of trainings with seeds 0 to 200. */
static void test_needles_apart(void **state) {
    enum { DOCS = 8, SEEDS = 1200, TRAINED = 200 };
    kk_haystack *eval = calloc(SEEDS * DOCS, sizeof *eval);
    kk_twister t;
    (void)state;
    for (int s = 0; s < SEEDS; s++) {
        kk_twister_seed(&t, (uint64_t)s);
        for (int i = 0; i < DOCS; i++) eval[s * DOCS + i] = kk_haystack_draw(&t, 20, 40);
    }
    for (int s = 0; s < TRAINED; s++) {
        assert_int_equal(kk_corpus_seed((uint64_t)s), (uint64_t)s + 1000);
        kk_twister_seed(&t, kk_corpus_seed((uint64_t)s));
        for (int i = 0; i < DOCS; i++) {
            const kk_haystack doc = kk_corpus_needle(&t, 40);
            assert_in_range(doc.lines, 20, 40);
            assert_in_range(doc.index, 1, doc.lines - 1);
            for (int e = 0; e < SEEDS * DOCS; e++) {
                assert_false(same(&doc, &eval[e]));
                assert_string_not_equal(doc.code, eval[e].code); /* by its word alone */
            }
        }
    }
    free(eval);
}

static void test_needle_text(void **state) {
    kk_twister a, b;
    char *text, *again;
    size_t len, len_again;
    (void)state;
    kk_twister_seed(&a, kk_corpus_seed(7));
    kk_twister_seed(&b, kk_corpus_seed(7));
    for (int i = 0; i < 20; i++) {
        const kk_haystack x = kk_corpus_needle(&a, 30), y = kk_corpus_needle(&b, 30);
        assert_int_equal(kk_haystack_text(&x, &text, &len, NULL), KK_OK);
        assert_int_equal(kk_haystack_text(&y, &again, &len_again, NULL), KK_OK);
        assert_int_equal(len, len_again);
        assert_memory_equal(text, again, len);
        assert_non_null(strstr(text, x.code));
        kk_free(text);
        kk_free(again);
    }
}

/* ---- prompts ----------------------------------------------------------------------------- */

static void test_prompts(void **state) {
    kk_corpus_opts o = standard();
    kk_corpus a, b;
    kk_err err;
    int needles = 0;
    (void)state;
    assert_int_equal(kk_corpus_new(&a, &o, &err), KK_OK);
    assert_int_equal(kk_corpus_new(&b, &o, &err), KK_OK);
    assert_int_equal(a.n, b.n);
    for (size_t i = 0; i < a.n; i++) {
        assert_int_equal(a.texts[i].n, b.texts[i].n);
        assert_memory_equal(a.texts[i].ids, b.texts[i].ids, (size_t)a.texts[i].n * sizeof(int32_t));
        needles += a.texts[i].kind == KK_TEXT_NEEDLE;
        if (a.texts[i].kind == KK_TEXT_PROMPT) assert_true(a.texts[i].n <= 64 + 4);
    }
    assert_int_equal(needles, 2);
    assert_true(a.tokens[0] >= 600);
    kk_corpus_free(&b);
    o.seed = 4; /* other words of the model, other needles */
    assert_int_equal(kk_corpus_new(&b, &o, &err), KK_OK);
    bool differs = a.n != b.n;
    for (size_t i = 0; !differs && i < a.n; i++)
        differs = a.texts[i].n != b.texts[i].n ||
                  memcmp(a.texts[i].ids, b.texts[i].ids, (size_t)a.texts[i].n * sizeof(int32_t));
    assert_true(differs);
    kk_corpus_free(&a);
    kk_corpus_free(&b);
}

/* ---- files ------------------------------------------------------------------------------- */

static char folder[64];

static void write_file(const char *name, const char *text) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_folder(void **state) {
    char text[256], name[32], path[96];
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kakeya-corpus-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/inner", folder);
    if (mkdir(path, 0777) != 0) return -1;
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "%sfile%d.py", i % 2 ? "inner/" : "", i);
        snprintf(text, sizeof text, "def number_%d():\n    return %d\n\nprint(number_%d())\n", i, i,
                 i);
        write_file(name, text);
    }
    write_file("picture.png", "this is no text to train on, by its name");
    return 0;
}

static int remove_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void test_files(void **state) {
    const char *paths[] = {folder};
    kk_corpus_opts o = standard();
    kk_corpus a, b;
    kk_err err;
    (void)state;
    o.paths = paths;
    o.n_paths = 1;
    o.needles = 0;
    o.tokens = 0;
    assert_int_equal(kk_corpus_new(&a, &o, &err), KK_OK);
    assert_int_equal(a.n, 40);
    assert_true(a.tokens[0] > 0 && a.tokens[1] > 0 && a.tokens[1] < a.tokens[0] / 2);
    o.seed = 9; /* another order, and the same files held out */
    assert_int_equal(kk_corpus_new(&b, &o, &err), KK_OK);
    assert_int_equal(a.tokens[1], b.tokens[1]);
    for (size_t i = 0; i < a.n; i++)
        for (size_t k = 0; k < b.n; k++)
            if (a.texts[i].n == b.texts[k].n &&
                memcmp(a.texts[i].ids, b.texts[k].ids, (size_t)a.texts[i].n * 4) == 0)
                assert_int_equal(a.texts[i].held, b.texts[k].held);
    kk_corpus_free(&a);
    kk_corpus_free(&b);
}

/* Lines are texts of their own, each held out or not by what it says. */
static void test_records(void **state) {
    const char *paths[] = {folder};
    kk_corpus_opts o = standard();
    kk_corpus c;
    kk_err err = {0};
    char text[8192] = "", said[240];
    (void)state;
    for (int i = 0; i < 30; i++) {
        const size_t n = strlen(text);
        snprintf(
            text + n, sizeof text - n,
            i % 2 ? "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the number %d?\"},"
                    " {\"role\": \"assistant\", \"content\": \"It is the number %d.\"}]}\n"
                  : "{\"text\": \"def number_%d():\\n    return %d\\n\"}\n",
            i, i);
    }
    strcat(text, "\n{\"id\": 5}\n{\"text\": \"the last line has no end, and is read\"}");
    write_file("rows.jsonl", text);
    o.paths = paths;
    o.n_paths = 1;
    o.needles = 0;
    o.tokens = 0;
    assert_int_equal(kk_corpus_new(&c, &o, &err), KK_OK);
    assert_int_equal(c.n, 40 + 31);
    assert_int_equal(c.skipped.other, 1);
    assert_int_equal(c.skipped.lines, 1);
    kk_corpus_skipped_text(&c.skipped, said, sizeof said);
    assert_string_equal(said, "1 file of other kinds (.png 1), 1 line without \"text\" or "
                              "\"messages\"");
    kk_corpus_free(&c);
    write_file("rows.jsonl", "{\"text\": \"fine, and long enough to be read\"}\n{\"text\": 5}\n");
    assert_int_equal(kk_corpus_new(&c, &o, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "line 2 of"));
    assert_non_null(strstr(err.msg, "\"text\" is no string"));
    assert_int_equal(c.n, 0);
}

/* Needles would be left, which nobody asked to train on alone. */
static void test_nothing_is_left(void **state) {
    char other[] = "/tmp/kakeya-other-XXXXXX", path[96];
    const char *paths[] = {mkdtemp(other)};
    kk_corpus_opts o = standard();
    kk_corpus c;
    kk_err err = {0};
    (void)state;
    snprintf(path, sizeof path, "%s/data.bin", other);
    FILE *f = fopen(path, "w");
    fputs("of another kind", f);
    fclose(f);
    char pipe[96], hidden[96];
    snprintf(pipe, sizeof pipe, "%s/pipe.py", other);
    snprintf(hidden, sizeof hidden, "%s/.git", other);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(mkdir(hidden, 0700), 0);
    o.paths = paths;
    o.n_paths = 1;
    assert_true(o.needles > 0);
    assert_int_equal(kk_corpus_new(&c, &o, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "passed over: 1 file of other kinds (.bin 1), 1 hidden file or "
                                    "folder, 1 entry that is no file"));
    remove(path);
    remove(pipe);
    rmdir(hidden);
    rmdir(other);
}

static void test_bad_paths(void **state) {
    char empty[] = "/tmp/kakeya-empty-XXXXXX";
    const char *none[] = {"/no/such/folder"}, *nothing[] = {mkdtemp(empty)};
    kk_corpus_opts o = standard();
    kk_corpus c;
    kk_err err;
    (void)state;
    o.needles = 0;
    o.n_paths = 1;
    o.paths = none;
    assert_int_equal(kk_corpus_new(&c, &o, &err), KK_EIO);
    assert_non_null(strstr(err.msg, "/no/such/folder"));
    o.paths = nothing;
    assert_int_equal(kk_corpus_new(&c, &o, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "no text to train on"));
    assert_int_equal(c.n, 0);
    rmdir(empty);
}

static bool refuse(void *user, int64_t tokens) {
    (void)user;
    return tokens < 100;
}

static void test_stopped(void **state) {
    kk_corpus_opts o = standard();
    kk_corpus c;
    (void)state;
    o.on_text = refuse;
    assert_int_equal(kk_corpus_new(&c, &o, NULL), KK_ESTOPPED);
    assert_int_equal(c.n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needles_apart),
        cmocka_unit_test(test_needle_text),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test_setup_teardown(test_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_records, make_folder, remove_folder),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_bad_paths),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
