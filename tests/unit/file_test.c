/* file_test.c - files are mapped and read as they are, and replaced whole or not at all. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/file.h"
#include "support/scratch.h"

static void maps_what_is_there(void **state) {
    scratch *s = *state;
    kk_map m;
    kk_err err;
    const char *path = scratch_path(s, "data");
    scratch_write(path, "hello", 5);
    assert_int_equal(kk_map_open(&m, path, &err), KK_OK);
    assert_int_equal(m.span.size, 5);
    assert_memory_equal(m.span.base, "hello", 5);
    kk_map_huge(&m);
    kk_map_close(&m);
    assert_null(m.span.base);
    kk_map_close(&m); /* again is fine */
    scratch_write(path, "", 0);
    assert_int_equal(kk_map_open(&m, path, &err), KK_OK);
    assert_int_equal(m.span.size, 0);
    assert_int_equal(kk_map_lock(&m, path, &err), KK_OK);
    kk_map_close(&m);
}

static void refuses_what_is_no_file(void **state) {
    scratch *s = *state;
    kk_map m;
    kk_err err;
    char *text;
    size_t len;
    assert_int_equal(kk_map_open(&m, scratch_path(s, "absent"), &err), KK_EIO);
    assert_non_null(strstr(err.msg, "absent"));
    assert_int_equal(kk_map_open(&m, s->dir, &err), KK_EIO);
    assert_non_null(strstr(err.msg, "regular file"));
    mkfifo(scratch_path(s, "fifo"), 0600); /* must not wait for a writer */
    assert_int_equal(kk_file_read(s->path, 10, &text, &len, &err), KK_EIO);
    assert_null(text);
}

static void reads_small_files_whole(void **state) {
    scratch *s = *state;
    char *text;
    size_t len;
    kk_err err;
    const char *path = scratch_path(s, "text");
    scratch_write(path, "twelve bytes", 12);
    assert_int_equal(kk_file_read(path, 12, &text, &len, &err), KK_OK);
    assert_int_equal(len, 12);
    assert_string_equal(text, "twelve bytes"); /* so there is a NUL */
    kk_free(text);
    assert_int_equal(kk_file_read(path, 11, &text, &len, &err), KK_EFORMAT);
    assert_non_null(strstr(err.msg, "12"));
    assert_null(text);
}

static void tells_files_from_folders(void **state) {
    scratch *s = *state;
    scratch_write(scratch_path(s, "f"), "x", 1);
    assert_true(kk_file_exists(s->path));
    assert_false(kk_dir_exists(s->path));
    assert_true(kk_dir_exists(s->dir));
    assert_false(kk_file_exists(s->dir));
    assert_false(kk_file_exists(scratch_path(s, "g")));
    char *joined = kk_path_join("a//", "b");
    assert_string_equal(joined, "a/b");
    kk_free(joined);
    joined = kk_path_join("/", "b");
    assert_string_equal(joined, "//b");
    kk_free(joined);
}

/* More than the writer's buffer, in pieces of many sizes. */
static void writes_every_byte_in_order(void **state) {
    scratch *s = *state;
    enum { N = 900 * 1000 };
    uint8_t *data = malloc(N);
    for (size_t i = 0; i < N; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    kk_writer *w;
    kk_err err;
    const char *path = scratch_path(s, "out");
    assert_int_equal(kk_writer_open(&w, path, &err), KK_OK);
    for (size_t at = 0, step = 1; at < N; at += step, step = step * 3 % 300007 + 1) {
        const size_t n = at + step > N ? N - at : step;
        assert_int_equal(kk_writer_offset(w), at);
        assert_int_equal(kk_writer_put(w, data + at, n, &err), KK_OK);
    }
    assert_false(kk_file_exists(path)); /* not before it is whole */
    assert_int_equal(kk_writer_commit(w, &err), KK_OK);
    size_t len;
    char *back = scratch_read(path, &len);
    assert_int_equal(len, N);
    assert_memory_equal(back, data, N);
    assert_int_equal(scratch_entries(s->dir), 1);
    free(back);
    free(data);
}

static void keeps_the_old_file_until_commit(void **state) {
    scratch *s = *state;
    kk_writer *w;
    size_t len;
    const char *path = scratch_path(s, "out");
    scratch_write(path, "old", 3);
    assert_int_equal(kk_writer_open(&w, path, NULL), KK_OK);
    assert_int_equal(kk_writer_put(w, "new", 3, NULL), KK_OK);
    kk_writer_abort(w);
    char *back = scratch_read(path, &len);
    assert_string_equal(back, "old");
    free(back);
    assert_int_equal(scratch_entries(s->dir), 1);
    assert_int_equal(kk_writer_open(&w, path, NULL), KK_OK);
    assert_int_equal(kk_writer_put(w, "new", 3, NULL), KK_OK);
    assert_int_equal(kk_writer_commit(w, NULL), KK_OK);
    back = scratch_read(path, &len);
    assert_string_equal(back, "new");
    free(back);
    kk_writer_abort(NULL);
}

static void says_where_it_cannot_write(void **state) {
    scratch *s = *state;
    kk_writer *w = NULL;
    kk_err err;
    assert_int_equal(kk_writer_open(&w, scratch_path(s, "no/such/folder"), &err), KK_EIO);
    assert_null(w);
    assert_non_null(strstr(err.msg, "no/such/folder"));
    assert_int_equal(kk_writer_open(&w, "/proc/kakeya", &err), KK_EIO); /* even for root */
    assert_null(w);
    if (geteuid() != 0) {
        assert_int_equal(chmod(s->dir, 0500), 0);
        assert_int_equal(kk_writer_open(&w, scratch_path(s, "out"), &err), KK_EIO);
        assert_non_null(strstr(err.msg, "Permission denied"));
        chmod(s->dir, 0700);
    }
    /* A folder stands where the file should go: found at the rename. */
    mkdir(scratch_path(s, "folder"), 0700);
    assert_int_equal(kk_writer_open(&w, s->path, &err), KK_OK);
    assert_int_equal(kk_writer_put(w, "x", 1, &err), KK_OK);
    assert_int_equal(kk_writer_commit(w, &err), KK_EIO);
    assert_int_equal(scratch_entries(s->dir), 1);
}

/* A file size limit stands for a full disk: write fails half-way. */
static void leaves_nothing_on_a_full_disk(void **state) {
    scratch *s = *state;
    struct rlimit old, small = {100000, RLIM_INFINITY};
    static uint8_t data[400000];
    kk_writer *w;
    kk_err err;
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(kk_writer_open(&w, scratch_path(s, "out"), &err), KK_OK);
    assert_int_equal(kk_writer_put(w, data, sizeof data, &err), KK_EIO);
    assert_non_null(strstr(err.msg, "File too large"));
    kk_writer_abort(w);
    assert_int_equal(scratch_entries(s->dir), 0);
    /* Inside the buffer, so that only commit finds out. */
    assert_int_equal(kk_writer_open(&w, scratch_path(s, "out"), &err), KK_OK);
    assert_int_equal(kk_writer_put(w, data, 150000, &err), KK_OK);
    assert_int_equal(kk_writer_commit(w, &err), KK_EIO);
    assert_int_equal(scratch_entries(s->dir), 0);
    setrlimit(RLIMIT_FSIZE, &old);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(maps_what_is_there, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(refuses_what_is_no_file, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(reads_small_files_whole, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(tells_files_from_folders, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(writes_every_byte_in_order, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(keeps_the_old_file_until_commit, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(says_where_it_cannot_write, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(leaves_nothing_on_a_full_disk, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
