/* journal_test.c - what is written is read; what is cut off, changed or out of order is not. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/journal.h"
#include "support/ok.h"

/* These stand before those of the C library, so that a test sees what was synced when. */
static struct {
    int files, folders;
    off_t size; /* of the file at the last sync */
    bool fail;
} synced;

static int note_sync(int fd, long call) {
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    synced.files += S_ISREG(st.st_mode);
    synced.folders += S_ISDIR(st.st_mode);
    if (S_ISREG(st.st_mode)) synced.size = st.st_size;
    errno = EIO;
    return synced.fail ? -1 : (int)syscall(call, fd);
}

int fsync(int fd) { return note_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return note_sync(fd, SYS_fdatasync); }

static char folder[] = "/tmp/kakeya-journal-XXXXXX";
static char path[64], tail[64];
static const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12};

static const journal_head head = {.kind = 1,
                                  .identity = 0x1234567890abcdef,
                                  .created = 77,
                                  .id = "conv-1",
                                  .meta = "{}",
                                  .meta_len = 2};

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/a.journal", folder);
    snprintf(tail, sizeof tail, "%s/a.damaged", folder);
    return 0;
}

static int drop_folder(void **state) {
    (void)state;
    unlink(path);
    unlink(tail);
    return rmdir(folder);
}

/* Four tokens, four more that end a turn, then three that replace the last two. */
static int64_t write_three(void) {
    int64_t size;
    unlink(path);
    assert_ok(journal_create(path, &head, &size, why));
    assert_ok(journal_append(path, &(journal_turn){.at = 0, .tokens = ids, .n = 4}, &size, why));
    assert_ok(journal_append(
        path,
        &(journal_turn){
            .at = 4, .tokens = ids + 4, .n = 4, .flags = JOURNAL_ENDS_TURN, .prompt = 4},
        &size, why));
    assert_ok(journal_append(
        path,
        &(journal_turn){.at = 6, .tokens = ids, .n = 3, .flags = JOURNAL_ENDS_TURN, .prompt = 6},
        &size, why));
    return size;
}

static void test_round(void **state) {
    (void)state;
    static const int32_t timeline[] = {5, 6, 7, 8, 9, 10, 5, 6, 7};
    journal j;
    size_t size;
    const int64_t bytes = write_three();
    assert_ok(journal_read(&j, path, &size, why));
    assert_int_equal(size, bytes);
    assert_int_equal(j.good, size);
    assert_int_equal(j.len, 9);
    assert_memory_equal(j.tokens, timeline, sizeof timeline);
    assert_int_equal(j.n_turns, 1); /* the turn that was replaced is none any more */
    assert_int_equal(j.turns[0], 9);
    assert_int_equal(j.prompt, 6);
    assert_int_equal(j.head.kind, 1);
    assert_true(j.head.identity == head.identity && j.head.created == 77);
    assert_string_equal(j.head.id, "conv-1");
    assert_string_equal(j.meta, "{}");
    journal_free(&j);
}

/* Cut anywhere: whole records are left, in order. */
static void test_cut(void **state) {
    (void)state;
    const int64_t bytes = write_three();
    uint8_t *all = malloc((size_t)bytes);
    FILE *f = fopen(path, "rb");
    assert_int_equal(fread(all, 1, (size_t)bytes, f), bytes);
    fclose(f);
    size_t lens[4] = {0};
    for (size_t n = 0; n <= (size_t)bytes; n++) {
        journal j;
        kk_err err;
        uint8_t *part = malloc(n + 1); /* its own memory, so that reading past it is seen */
        memcpy(part, all, n);
        if (journal_parse(&j, part, n, &err) == KK_OK) {
            assert_true(j.good <= n && (j.len == 0 || j.len == 4 || j.len == 8 || j.len == 9));
            lens[j.len == 9 ? 3 : j.len / 4]++;
            journal_free(&j);
        }
        free(part);
    }
    assert_true(lens[0] && lens[1] && lens[2] && lens[3] == 1);
    free(all);
}

/* Any one bit: nothing that follows it is believed. */
static void test_flipped(void **state) {
    (void)state;
    const int64_t bytes = write_three();
    uint8_t *all = malloc((size_t)bytes);
    FILE *f = fopen(path, "rb");
    assert_int_equal(fread(all, 1, (size_t)bytes, f), bytes);
    fclose(f);
    for (size_t bit = 0; bit < 8 * (size_t)bytes; bit++) {
        journal j;
        kk_err err;
        all[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (journal_parse(&j, all, (size_t)bytes, &err) == KK_OK) {
            assert_true(j.good <= bit / 8);
            journal_free(&j);
        }
        all[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(all);
}

static void test_tail(void **state) {
    (void)state;
    journal j;
    size_t size;
    int64_t bytes = write_three();
    FILE *f = fopen(path, "ab");
    fputs("torn", f);
    fclose(f);
    kk_err err;
    /* Nothing is written behind what is not known. */
    const journal_turn more = {.at = 9, .tokens = ids, .n = 1};
    assert_int_equal(journal_append(path, &more, &bytes, &err), KK_EFORMAT);
    assert_ok(journal_read(&j, path, &size, why));
    assert_true(j.good == (size_t)bytes && size == j.good + 4 && j.len == 9);
    assert_ok(journal_cut(path, j.good, tail, why));
    journal_free(&j);
    assert_ok(journal_append(path, &more, &bytes, why));
    assert_ok(journal_read(&j, path, &size, why));
    assert_int_equal(j.len, 10);
    journal_free(&j);
    struct stat st;
    assert_true(stat(tail, &st) == 0 && st.st_size == 4);
}

/* A turn that was answered must survive a power cut: when a call returns, all that it wrote was
 * synced, and a new file's name too.  What could not be synced was not written. */
static void test_synced(void **state) {
    (void)state;
    const journal_turn turn = {.at = 0, .tokens = ids, .n = 4, .flags = JOURNAL_ENDS_TURN};
    int64_t size;
    struct stat st;
    kk_err err;
    memset(&synced, 0, sizeof synced);
    unlink(path);
    assert_ok(journal_create(path, &head, &size, why));
    assert_true(synced.files == 1 && synced.folders == 1);
    assert_int_equal(synced.size, size);
    const int64_t before = size;
    assert_ok(journal_append(path, &turn, &size, why));
    assert_int_equal(synced.files, 2);
    assert_true(size > before && synced.size == size);

    synced.fail = true;
    const int64_t good = size;
    assert_int_equal(journal_append(path, &turn, &size, &err), KK_EIO);
    assert_true(size == good && stat(path, &st) == 0 && st.st_size == good);
    unlink(path);
    assert_int_equal(journal_create(path, &head, &size, &err), KK_EIO);
    assert_int_not_equal(stat(path, &st), 0);
    synced.fail = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round), cmocka_unit_test(test_cut),    cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_tail),  cmocka_unit_test(test_synced),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
