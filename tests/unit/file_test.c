/* file_test.c - files are mapped and read as they are. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(maps_what_is_there, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(refuses_what_is_no_file, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(reads_small_files_whole, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(tells_files_from_folders, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
