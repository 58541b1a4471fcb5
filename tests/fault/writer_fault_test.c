/* writer_fault_test.c - the n-th allocation or system call of writing a file fails, for every n: a
 * status, no leak, the file before or none, and nothing beside it. */
#define _GNU_SOURCE
#include "core/alloc.h"
#include "core/writer.h"
#include "support/ok.h"
#include "support/scratch.h"

enum { SIZE = 300 * 1000 }; /* more than the writer's buffer */
static char data[SIZE];

typedef struct {
    const char *name;   /* what is written */
    const char *before; /* what "out" holds before; NULL: it is not there */
    bool replace, links, inputs, through, silent;
} way;

static const way ways[] = {
    {.name = "out"},
    {.name = "out", .before = "old", .replace = true},
    {.name = "link", .before = "old", .replace = true, .links = true},
    {.name = "out", .before = "old", .replace = true, .inputs = true},
    {.name = "/dev/null", .through = true},
    {.name = "/dev/fd/2", .through = true, .silent = true},
};

static kk_status write_one(const char *file, const way *how, const char *input, kk_err *err) {
    const kk_writer_opts opts = {
        .replace = how->replace, .inputs = &input, .n_inputs = how->inputs ? 1 : 0};
    kk_writer *w = (kk_writer *)1;
    kk_status st = kk_writer_open(&w, file, &opts, err);
    assert_true((st == KK_OK) == (w != NULL));
    if (st == KK_OK && !how->silent) st = kk_writer_put(w, data, SIZE, err);
    if (st == KK_OK) st = kk_writer_commit(w, err);
    kk_writer_close(w);
    return st;
}

static void look(const way *how, const char *out, kk_status st) {
    size_t len;
    char *is = scratch_read(out, &len);
    if (how->through || (st != KK_OK && !how->before)) {
        assert_null(is);
    } else if (st != KK_OK) {
        assert_string_equal(is, how->before);
    } else {
        assert_int_equal(len, SIZE);
        assert_memory_equal(is, data, SIZE);
    }
    free(is);
}

static void one_way(scratch *s, const way *how) {
    char out[600], file[600], input[600], config[640];
    snprintf(out, sizeof out, "%s/out", s->dir);
    snprintf(input, sizeof input, "%s/input", s->dir);
    snprintf(file, sizeof file, how->through ? "%s%s" : "%s/%s", how->through ? "" : s->dir,
             how->name);
    mkdir(input, 0700);
    snprintf(config, sizeof config, "%s/config.json", input);
    scratch_write(config, "{}", 2);
    if (how->links) assert_int_equal(symlink("out", file), 0);
    for (int64_t n = 1;; n++) {
        kk_err err = {0};
        if (how->before) scratch_write(out, how->before, strlen(how->before));
        const int entries = scratch_entries(s->dir);
        const int64_t bytes = kk_live_bytes();
        kk_fault_after(n, false);
        kk_status st = write_one(file, how, input, &err);
        kk_fault_after(0, false);
        assert_int_equal(kk_live_bytes(), bytes);
        look(how, out, st);
        assert_int_equal(scratch_entries(s->dir),
                         entries + (st == KK_OK && !how->through && !how->before));
        if (st == KK_OK) {
            assert_true(n > (how->through ? 4 : 10)); /* memory, open, lock, writes, sync, rename */
            break;
        }
        assert_true(n < 100 && (st == KK_ENOMEM || st == KK_EIO));
        assert_int_equal(err.code, st);
        assert_true(strlen(err.msg) > 10);
    }
    unlink(out);
    if (how->links) unlink(file);
}

static void every_step_fails_cleanly(void **state) {
    for (size_t i = 0; i < SIZE; i++) data[i] = (char)('a' + i % 23);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) one_way(*state, &ways[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_step_fails_cleanly, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
