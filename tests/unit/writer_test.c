/* writer_test.c - files appear whole or not at all, and nothing is written over that was not meant:
 * not a device, a link, an input, a file of another run, or one that may not be replaced. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/writer.h"
#include "support/ok.h"
#include "support/scratch.h"

static const kk_writer_opts replace = {.replace = true};

typedef struct {
    char text[600];
} path;

static path in(const scratch *s, const char *name) {
    path p;
    snprintf(p.text, sizeof p.text, "%s/%s", s->dir, name);
    return p;
}

static void says(const char *file, const char *text) {
    size_t len;
    char *is = scratch_read(file, &len);
    assert_non_null(is);
    assert_string_equal(is, text);
    free(is);
}

static kk_status write_text(const char *file, const char *text, const kk_writer_opts *opts,
                            kk_err *err) {
    kk_writer *w;
    KK_TRY(kk_writer_open(&w, file, opts, err));
    kk_status st = kk_writer_put(w, text, strlen(text), err);
    if (st == KK_OK) st = kk_writer_commit(w, err);
    kk_writer_close(w);
    return st;
}

/* The status, after looking for a part of the message. */
static kk_status refused(const char *file, const kk_writer_opts *opts, const char *part) {
    kk_writer *w = (kk_writer *)1;
    kk_err err = {0};
    const int64_t blocks = kk_live_blocks();
    const kk_status st = kk_writer_open(&w, file, opts, &err);
    assert_int_not_equal(st, KK_OK);
    assert_null(w);
    assert_int_equal(err.code, st);
    if (!strstr(err.msg, part)) fail_msg("'%s' does not say '%s'", err.msg, part);
    assert_int_equal(kk_live_blocks(), blocks);
    return st;
}

static mode_t mode_of(const char *file) {
    struct stat st;
    assert_int_equal(lstat(file, &st), 0);
    return st.st_mode & 07777;
}

/* ---- whole or not at all ------------------------------------------------------------------ */

/* More than the writer's buffer, in pieces of many sizes. */
static void writes_every_byte_in_order(void **state) {
    scratch *s = *state;
    enum { N = 900 * 1000 };
    uint8_t *data = malloc(N);
    for (size_t i = 0; i < N; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    kk_writer *w;
    kk_err err;
    const char *file = scratch_path(s, "out");
    assert_int_equal(kk_writer_open(&w, file, NULL, &err), KK_OK);
    for (size_t at = 0, step = 1; at < N; at += step, step = step * 3 % 300007 + 1) {
        const size_t n = at + step > N ? N - at : step;
        assert_int_equal(kk_writer_offset(w), at);
        assert_int_equal(kk_writer_put(w, data + at, n, &err), KK_OK);
    }
    assert_false(kk_file_exists(file)); /* not before it is whole */
    assert_true(kk_file_exists(kk_writer_temp(w)));
    assert_int_equal(kk_writer_commit(w, &err), KK_OK);
    assert_null(kk_writer_temp(w));
    kk_writer_close(w);
    size_t len;
    char *back = scratch_read(file, &len);
    assert_int_equal(len, N);
    assert_memory_equal(back, data, N);
    assert_int_equal(scratch_entries(s->dir), 1);
    free(back);
    free(data);
}

static void keeps_the_old_file_until_commit(void **state) {
    scratch *s = *state;
    kk_writer *w;
    const path out = in(s, "out");
    scratch_write(out.text, "old", 3);
    assert_ok(kk_writer_open(&w, out.text, &replace, why));
    assert_ok(kk_writer_put(w, "new", 3, why));
    assert_ok(kk_writer_sync(w, why));
    says(out.text, "old");
    kk_writer_close(w);
    says(out.text, "old");
    assert_int_equal(scratch_entries(s->dir), 1);
    assert_ok(write_text(out.text, "new", &replace, why));
    says(out.text, "new");
    assert_int_equal(scratch_entries(s->dir), 1);
    kk_writer_close(NULL);
}

static void says_where_it_cannot_write(void **state) {
    scratch *s = *state;
    kk_writer *w = NULL;
    kk_err err;
    assert_int_equal(refused(in(s, "no/such/folder").text, NULL, "no/such/folder"), KK_EIO);
    assert_int_equal(refused("/proc/kakeya", NULL, "/proc/kakeya"), KK_EIO); /* even for root */
    assert_int_equal(refused("", NULL, "no name"), KK_EINVAL);
    if (geteuid() != 0) {
        assert_int_equal(chmod(s->dir, 0500), 0);
        assert_int_equal(refused(in(s, "out").text, NULL, "Permission denied"), KK_EIO);
        chmod(s->dir, 0700);
        scratch_write(in(s, "protected").text, "x", 1);
        chmod(s->path, 0400);
        assert_int_equal(refused(in(s, "protected").text, &replace, "Permission denied"), KK_EIO);
    }
    mkdir(in(s, "folder").text, 0700);
    assert_int_equal(refused(in(s, "folder").text, &replace, "is a folder"), KK_EIO);
    assert_int_equal(refused(in(s, "folder").text, NULL, "is a folder"), KK_EIO);
    assert_int_equal(refused(in(s, "folder/").text, NULL, "is a folder"), KK_EIO);
    /* A folder that comes meanwhile is found at the rename. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kk_writer_open(&w, in(s, "later").text, i ? &replace : NULL, &err), KK_OK);
        assert_int_equal(kk_writer_put(w, "x", 1, &err), KK_OK);
        assert_int_equal(mkdir(in(s, "later").text, 0700), 0);
        assert_int_equal(kk_writer_commit(w, &err), KK_EIO);
        kk_writer_close(w);
        assert_int_equal(rmdir(in(s, "later").text), 0);
    }
    assert_int_equal(scratch_entries(s->dir), geteuid() != 0 ? 2 : 1);
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
    assert_int_equal(kk_writer_open(&w, scratch_path(s, "out"), NULL, &err), KK_OK);
    assert_int_equal(kk_writer_put(w, data, sizeof data, &err), KK_EIO);
    assert_non_null(strstr(err.msg, "File too large"));
    kk_writer_close(w);
    assert_int_equal(scratch_entries(s->dir), 0);
    /* Inside the buffer, so that only commit finds out. */
    assert_int_equal(kk_writer_open(&w, scratch_path(s, "out"), NULL, &err), KK_OK);
    assert_int_equal(kk_writer_put(w, data, 150000, &err), KK_OK);
    assert_int_equal(kk_writer_commit(w, &err), KK_EIO);
    kk_writer_close(w);
    assert_int_equal(scratch_entries(s->dir), 0);
    setrlimit(RLIMIT_FSIZE, &old);
}

/* ---- what is there ------------------------------------------------------------------------ */

static void replaces_only_what_it_may(void **state) {
    scratch *s = *state;
    const path out = in(s, "out");
    kk_writer *w;
    kk_err err;
    scratch_write(out.text, "old", 3);
    assert_int_equal(refused(out.text, NULL, "exists"), KK_EEXIST);
    says(out.text, "old");
    /* One that another program makes meanwhile. */
    assert_ok(kk_writer_open(&w, in(s, "new").text, NULL, why));
    assert_ok(kk_writer_put(w, "ours", 4, why));
    scratch_write(in(s, "new").text, "theirs", 6);
    assert_int_equal(kk_writer_commit(w, &err), KK_EIO);
    assert_non_null(strstr(err.msg, strerror(EEXIST)));
    kk_writer_close(w);
    says(in(s, "new").text, "theirs");
    assert_int_equal(scratch_entries(s->dir), 2);
}

static void keeps_owner_and_mode(void **state) {
    scratch *s = *state;
    const path out = in(s, "out");
    struct stat st;
    static const mode_t modes[] = {0600, 0644, 0640, 0664, 0755};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        scratch_write(out.text, "old", 3);
        assert_int_equal(chmod(out.text, modes[i]), 0);
        assert_ok(write_text(out.text, "new", &replace, why));
        says(out.text, "new");
        assert_int_equal(mode_of(out.text), modes[i]);
    }
    if (geteuid() == 0) {
        assert_int_equal(chown(out.text, 65534, 65533), 0);
        assert_ok(write_text(out.text, "root's", &replace, why));
        assert_int_equal(stat(out.text, &st), 0);
        assert_int_equal(st.st_uid, 65534);
        assert_int_equal(st.st_gid, 65533);
    }
    /* Nobody else reads it while it is written either. */
    kk_writer *w;
    assert_int_equal(chmod(out.text, 0600), 0);
    assert_ok(kk_writer_open(&w, out.text, &replace, why));
    assert_int_equal(mode_of(kk_writer_temp(w)), 0600);
    kk_writer_close(w);
}

static void new_files_are_for_whom_they_should(void **state) {
    scratch *s = *state;
    const kk_writer_opts own = {.owner_only = true};
    const mode_t before = umask(027);
    assert_ok(write_text(in(s, "open").text, "x", NULL, why));
    assert_ok(write_text(in(s, "own").text, "x", &own, why));
    umask(before);
    assert_int_equal(mode_of(in(s, "open").text), 0640);
    assert_int_equal(mode_of(in(s, "own").text), 0600);
}

static void follows_links(void **state) {
    scratch *s = *state;
    const path target = in(s, "target"), link = in(s, "link"), second = in(s, "sub/second");
    struct stat st;
    mkdir(in(s, "sub").text, 0700);
    scratch_write(target.text, "old", 3);
    assert_int_equal(symlink("target", link.text), 0);
    assert_int_equal(symlink("../link", second.text), 0);
    assert_int_equal(refused(second.text, NULL, "exists"), KK_EEXIST);
    assert_ok(write_text(second.text, "new", &replace, why));
    says(target.text, "new");
    assert_true(lstat(link.text, &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(lstat(second.text, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(scratch_entries(in(s, "sub").text),
                     1); /* the file is made beside its target */
    /* One that leads nowhere yet, and by an absolute path. */
    assert_int_equal(symlink(in(s, "made").text, in(s, "dangling").text), 0);
    assert_ok(write_text(in(s, "dangling").text, "made", NULL, why));
    says(in(s, "made").text, "made");
    assert_true(lstat(in(s, "dangling").text, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(symlink("round", in(s, "round").text), 0);
    assert_int_equal(refused(in(s, "round").text, NULL, strerror(ELOOP)), KK_EIO);
    assert_int_equal(symlink("sub", in(s, "folder").text), 0);
    assert_int_equal(refused(in(s, "folder").text, &replace, "is a folder"), KK_EIO);
}

/* ---- what is no regular file -------------------------------------------------------------- */

static void writes_through_devices(void **state) {
    scratch *s = *state;
    struct stat before, after;
    assert_int_equal(stat("/dev/null", &before), 0);
    assert_ok(write_text("/dev/null", "x", NULL, why));
    assert_ok(write_text("/dev/null", "x", &replace, why));
    assert_int_equal(symlink("/dev/null", in(s, "link").text), 0);
    assert_ok(write_text(in(s, "link").text, "x", NULL, why));
    assert_int_equal(stat("/dev/null", &after), 0);
    assert_true(S_ISCHR(after.st_mode) && after.st_ino == before.st_ino);
    kk_writer *w;
    assert_ok(kk_writer_open(&w, "/dev/null", NULL, why));
    assert_null(kk_writer_temp(w));
    kk_writer_close(w);
    if (kk_file_exists("/dev/full")) {
        kk_err err;
        assert_int_equal(write_text("/dev/full", "x", NULL, &err), KK_EIO);
        assert_non_null(strstr(err.msg, strerror(ENOSPC)));
    }
    assert_int_equal(scratch_entries(s->dir), 1);
}

static void writes_through_fifos(void **state) {
    scratch *s = *state;
    const path fifo = in(s, "fifo");
    struct stat st;
    char got[8] = "";
    assert_int_equal(mkfifo(fifo.text, 0600), 0);
    const int reader = open(fifo.text, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_ok(write_text(fifo.text, "hello", NULL, why));
    assert_int_equal(read(reader, got, sizeof got), 5);
    assert_string_equal(got, "hello");
    close(reader);
    assert_true(lstat(fifo.text, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(scratch_entries(s->dir), 1);
}

/* A descriptor may stand in the middle of a regular file, which is not to be replaced. */
static void writes_where_a_descriptor_stands(void **state) {
    scratch *s = *state;
    const path out = in(s, "log");
    char name[64];
    const int fd = open(out.text, O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, "one ", 4), 4);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    assert_ok(write_text(name, "two ", NULL, why));
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    assert_ok(write_text(name, "three", NULL, why));
    close(fd);
    says(out.text, "one two three");
    assert_int_equal(refused(name, NULL, strerror(EBADF)), KK_EIO);
    assert_int_equal(scratch_entries(s->dir), 1);
}

/* ---- inputs ------------------------------------------------------------------------------- */

static void refuses_its_inputs(void **state) {
    scratch *s = *state;
    const path model = in(s, "model"), file = in(s, "model/model.safetensors");
    const path text = in(s, "text"), other = in(s, "other");
    const char *const inputs[] = {NULL, in(s, "nowhere").text, model.text, text.text};
    const kk_writer_opts opts = {.replace = true, .inputs = inputs, .n_inputs = 4};
    mkdir(model.text, 0700);
    scratch_write(file.text, "weights", 7);
    scratch_write(in(s, "model/notes.txt").text, "notes", 5);
    scratch_write(text.text, "text", 4);
    scratch_write(other.text, "other", 5);
    assert_int_equal(refused(text.text, &opts, "is read here"), KK_EINVAL);
    assert_int_equal(refused(file.text, &opts, "is read here"), KK_EINVAL);
    assert_int_equal(link(file.text, in(s, "hard").text), 0);
    assert_int_equal(refused(in(s, "hard").text, &opts, "is read here"), KK_EINVAL);
    assert_int_equal(symlink("text", in(s, "soft").text), 0);
    assert_int_equal(refused(in(s, "soft").text, &opts, "is read here"), KK_EINVAL);
    assert_int_equal(symlink("model", in(s, "again").text), 0);
    assert_int_equal(refused(in(s, "again/model.safetensors").text, &opts, "is read here"),
                     KK_EINVAL);
    says(file.text, "weights");
    says(text.text, "text");
    /* What lies beside them is not theirs. */
    assert_ok(write_text(other.text, "new", &opts, why));
    assert_ok(write_text(in(s, "model/notes.txt").text, "new", &opts, why));
    assert_ok(write_text(in(s, "model/new.gguf").text, "new", &opts, why));
    assert_int_equal(scratch_entries(model.text), 3);
}

/* ---- others ------------------------------------------------------------------------------- */

static void only_one_writes_a_file(void **state) {
    scratch *s = *state;
    const path out = in(s, "out"), link = in(s, "link");
    kk_writer *w, *other;
    assert_int_equal(symlink("out", link.text), 0);
    for (int i = 0; i < 2; i++) {
        const kk_writer_opts *opts = i ? &replace : NULL;
        assert_ok(kk_writer_open(&w, out.text, opts, why));
        assert_int_equal(refused(out.text, opts, "being written"), KK_EBUSY);
        assert_int_equal(refused(link.text, opts, "being written"), KK_EBUSY);
        assert_ok(
            kk_writer_open(&other, in(s, "other").text, NULL, why)); /* another file is free */
        kk_writer_close(other);
        assert_ok(kk_writer_put(w, "first", 5, why));
        assert_ok(kk_writer_commit(w, why));
        kk_writer_close(w);
        says(out.text, "first");
    }
    assert_int_equal(refused(out.text, NULL, "exists"), KK_EEXIST);
    assert_int_equal(scratch_entries(s->dir), 2);
}

/* What a killed process leaves is removed by the next one; what a living one has is not. */
static void tells_the_dead_from_the_living(void **state) {
    scratch *s = *state;
    const path out = in(s, "out"), temp = in(s, "out.kakeya-tmp");
    int ready[2], status;
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kk_writer *w;
        if (kk_writer_open(&w, out.text, NULL, NULL) != KK_OK) _exit(2);
        if (kk_writer_put(w, "half", 4, NULL) != KK_OK || kk_writer_sync(w, NULL) != KK_OK)
            _exit(3);
        if (write(ready[1], "x", 1) != 1) _exit(4);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(refused(out.text, NULL, "being written"), KK_EBUSY);
    says(temp.text, "half");
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    assert_false(kk_file_exists(out.text));
    says(temp.text, "half");
    assert_ok(write_text(out.text, "whole", NULL, why));
    says(out.text, "whole");
    assert_int_equal(scratch_entries(s->dir), 1);
    close(ready[0]);
    close(ready[1]);
}

/* A process that dies between the two steps of naming a file leaves it with two names. */
static void a_leftover_may_be_the_file_itself(void **state) {
    scratch *s = *state;
    const path out = in(s, "out"), temp = in(s, "out.kakeya-tmp");
    kk_writer *w;
    scratch_write(temp.text, "whole", 5);
    assert_int_equal(link(temp.text, out.text), 0);
    assert_ok(kk_writer_open(&w, out.text, &replace, why));
    assert_ok(kk_writer_put(w, "half", 4, why));
    assert_ok(kk_writer_sync(w, why));
    says(out.text, "whole");
    kk_writer_close(w);
    says(out.text, "whole");
    assert_int_equal(scratch_entries(s->dir), 1);
}

/* Something else under the temporary name is nothing to remove. */
static void what_is_no_leftover_stays(void **state) {
    scratch *s = *state;
    const path out = in(s, "out"), temp = in(s, "out.kakeya-tmp");
    scratch_write(in(s, "victim").text, "kept", 4);
    assert_int_equal(symlink("victim", temp.text), 0);
    assert_int_equal(refused(out.text, NULL, "out"), KK_EIO);
    says(in(s, "victim").text, "kept");
    unlink(temp.text);
    mkdir(temp.text, 0700);
    assert_int_equal(refused(out.text, NULL, "out"), KK_EIO);
    rmdir(temp.text);
    mkfifo(temp.text, 0600);
    assert_int_equal(refused(out.text, NULL, "out"), KK_EIO);
    assert_int_equal(scratch_entries(s->dir), 2);
}

/* Many processes that want one new file: one of them makes it, and the others are told. */
static void one_of_many_wins(void **state) {
    scratch *s = *state;
    enum { MANY = 8, ROUNDS = 40 };
    const path out = in(s, "out");
    for (int round = 0; round < ROUNDS; round++) {
        int wins = 0, go[2];
        char byte;
        if (round % 2) scratch_write(in(s, "out.kakeya-tmp").text, "dead", 4);
        assert_int_equal(pipe(go), 0);
        pid_t child[MANY];
        for (int i = 0; i < MANY; i++)
            if ((child[i] = fork()) == 0) {
                close(go[1]);
                if (read(go[0], &byte, 1) != 0) _exit(9); /* until all are there */
                const kk_status st = write_text(out.text, "whole", NULL, NULL);
                _exit(st == KK_OK ? 1 : st == KK_EBUSY || st == KK_EEXIST ? 0 : 8);
            }
        close(go[0]);
        close(go[1]);
        for (int i = 0; i < MANY; i++) {
            int status;
            assert_int_equal(waitpid(child[i], &status, 0), child[i]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
            wins += WEXITSTATUS(status);
        }
        assert_int_equal(wins, 1);
        says(out.text, "whole");
        assert_int_equal(scratch_entries(s->dir), 1);
        unlink(out.text);
    }
}

/* Whoever has opened the file is alone with it, however files come, go and get their names. */
static int hold_again_and_again(const scratch *s) {
    const path out = in(s, "out"), inside = in(s, "inside");
    for (int i = 0; i < 12000; i++) {
        kk_writer *w;
        const kk_status st = kk_writer_open(&w, out.text, &replace, NULL);
        if (st == KK_EBUSY) continue;
        if (st != KK_OK) return 2;
        const int fd = open(inside.text, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0) return 3;
        close(fd);
        unlink(inside.text);
        if (!kk_file_exists(kk_writer_temp(w))) return 4;
        if (i % 200 == 0 && kk_writer_commit(w, NULL) != KK_OK) return 5;
        kk_writer_close(w);
    }
    return 0;
}

static void nobody_comes_in_between(void **state) {
    scratch *s = *state;
    enum { MANY = 6 };
    pid_t child[MANY];
    for (int i = 0; i < MANY; i++)
        if ((child[i] = fork()) == 0) _exit(hold_again_and_again(s));
    for (int i = 0; i < MANY; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(scratch_entries(s->dir), 1);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(writes_every_byte_in_order),
        IN_SCRATCH(keeps_the_old_file_until_commit),
        IN_SCRATCH(says_where_it_cannot_write),
        IN_SCRATCH(leaves_nothing_on_a_full_disk),
        IN_SCRATCH(replaces_only_what_it_may),
        IN_SCRATCH(keeps_owner_and_mode),
        IN_SCRATCH(new_files_are_for_whom_they_should),
        IN_SCRATCH(follows_links),
        IN_SCRATCH(writes_through_devices),
        IN_SCRATCH(writes_through_fifos),
        IN_SCRATCH(writes_where_a_descriptor_stands),
        IN_SCRATCH(refuses_its_inputs),
        IN_SCRATCH(only_one_writes_a_file),
        IN_SCRATCH(tells_the_dead_from_the_living),
        IN_SCRATCH(a_leftover_may_be_the_file_itself),
        IN_SCRATCH(what_is_no_leftover_stays),
        IN_SCRATCH(one_of_many_wins),
        IN_SCRATCH(nobody_comes_in_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
