/* bridge_test.c - the parts of the bridge below a request: programs that are run and ended,
 * folders, what git prints, configurations. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bridge/bus.h"
#include "bridge/folder.h"
#include "bridge/process.h"
#include "bridge/runner_config.h"
#include "core/alloc.h"
#include "support/scratch.h"

/* ---- programs ------------------------------------------------------------------------------ */

static kk_process_result run(const kk_process *p) {
    kk_process_result r;
    assert_int_equal(kk_process_run(p, &r, NULL), KK_OK);
    return r;
}

/* A script of bash, which tests have anyway. */
static kk_process script(const char **argv, const char *text) {
    argv[0] = "bash", argv[1] = "-c", argv[2] = text, argv[3] = NULL;
    return (kk_process){.argv = argv};
}

static void output_and_input(void **state) {
    (void)state;
    const char *argv[4];
    kk_process p = script(argv, "cat; echo wrong >&2; exit 3");
    p.input = "given", p.input_len = 5;
    kk_process_result r = run(&p);
    assert_string_equal(kk_bytes_text(&r.out), "given");
    assert_string_equal(kk_bytes_text(&r.err), "wrong\n");
    assert_string_equal(kk_process_describe(&r).text, "exit 3");
    kk_process_release(&r);
    p.joined = true;
    r = run(&p);
    assert_string_equal(kk_bytes_text(&r.out), "givenwrong\n");
    kk_process_release(&r);
    static const char *const env[] = {"ONE=1", NULL};
    p = script(argv, "echo $ONE$HOME; kill -9 $$");
    p.env = env, p.folder = "/", p.guarded = true;
    r = run(&p);
    assert_string_equal(kk_bytes_text(&r.out), "1\n");
    assert_string_equal(kk_process_describe(&r).text, "signal 9");
    kk_process_release(&r);
}

/* Whether a process goes on; one that has ended may wait a while for its parent to notice. */
static bool goes_on(pid_t pid) {
    for (int i = 0; i < 100; i++) {
        char path[64], name[64], stage = 'R';
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        FILE *f = fopen(path, "r");
        const int n = f ? fscanf(f, "%*d %63s %c", name, &stage) : 0;
        if (f) fclose(f);
        if (kill(pid, 0) != 0 || (n == 2 && stage == 'Z')) return false;
        usleep(50000);
    }
    return true;
}

static void limits(void **state) {
    (void)state;
    const char *argv[4];
    kk_process p = script(argv, "sleep 60 & echo $!; wait");
    p.timeout_s = 0.3, p.guarded = true;
    kk_process_result r = run(&p);
    assert_int_equal(r.end, KK_ENDED_TIMEOUT);
    assert_true(r.seconds < 5);
    assert_false(goes_on((pid_t)atoi(kk_bytes_text(&r.out)))); /* its child neither */
    kk_process_release(&r);
    p = script(argv, "while :; do echo more; done");
    p.most_output = 1000;
    r = run(&p);
    assert_int_equal(r.end, KK_ENDED_OUTPUT);
    assert_int_equal(r.out.n, 1001);
    kk_process_release(&r);
    p = script(argv, "printf 1234567890");
    p.most_output = 10; /* all that is allowed is not too much */
    r = run(&p);
    assert_int_equal(r.end, KK_ENDED_EXIT);
    kk_process_release(&r);
    p.most_output = 9;
    r = run(&p);
    assert_int_equal(r.end, KK_ENDED_OUTPUT);
    kk_process_release(&r);
}

static bool now(void *user) {
    (void)user;
    return true;
}

static void ends_early(void **state) {
    scratch *s = *state;
    const char *argv[4];
    kk_err err;
    kk_process p = script(argv, "sleep 60");
    p.stop.asked = now;
    kk_process_result r = run(&p);
    assert_int_equal(r.end, KK_ENDED_STOPPED);
    kk_process_release(&r);
    p = script(argv, "for i in 1 2 3 4 5 6; do head -c 50000 /dev/zero >f$i; done; sleep 60");
    p.disk = p.folder = s->dir, p.most_disk = 200000;
    r = run(&p);
    assert_int_equal(r.end, KK_ENDED_DISK);
    kk_process_release(&r);
    p = script(argv, "exec head -c 900000 /dev/zero >large");
    p.folder = s->dir, p.most_disk = 200000; /* one file cannot be larger, also between looks */
    r = run(&p);
    assert_int_equal(kk_process_describe(&r).text[0], r.end == KK_ENDED_DISK ? 't' : 'e');
    assert_true(r.end == KK_ENDED_DISK || r.code != 0);
    kk_process_release(&r);
    static const char *const none[] = {"no-such-program-here", NULL};
    p = (kk_process){.argv = none};
    assert_int_equal(kk_process_run(&p, &r, &err), KK_EIO);
    assert_non_null(strstr(err.msg, "no-such-program-here"));
    kk_process_release(&r);
    p = script(argv, "true");
    p.folder = "/no/such/folder";
    assert_int_equal(kk_process_run(&p, &r, &err), KK_EIO);
    kk_process_release(&r);
}

static void lines(void **state) {
    (void)state;
    char line[12];
    kk_bytes b = {0};
    kk_process_last_line(&b, line, sizeof line);
    assert_string_equal(line, "");
    kk_bytes_print(&b, "kakeya: no\n  advice\033[1m that is long\n\n");
    kk_process_last_line(&b, line, sizeof line);
    assert_string_equal(line, "  advice?[1");
    kk_process_complaint(&b, "kakeya", line, sizeof line);
    assert_string_equal(line, "kakeya: no");
    kk_process_complaint(&b, "other", line, sizeof line);
    assert_string_equal(line, "  advice?[1");
    kk_bytes_free(&b);
}

/* ---- folders ------------------------------------------------------------------------------- */

static void folders(void **state) {
    scratch *s = *state;
    char deep[600], found[600];
    kk_words names = {0};
    snprintf(deep, sizeof deep, "%s/a/b/c", s->dir);
    assert_int_equal(kk_folder_make(deep, NULL), KK_OK);
    assert_int_equal(kk_folder_make(deep, NULL), KK_OK); /* one that is there is fine */
    scratch_write(scratch_path(s, "a/one"), "12345", 5);
    scratch_write(scratch_path(s, "a/b/c/two.json"), "123", 3);
    assert_int_equal(symlink("/etc/passwd", scratch_path(s, "a/b/link.json")), 0);
    snprintf(deep, sizeof deep, "%s/a", s->dir);
    assert_int_equal(kk_folder_bytes(deep), 8);
    snprintf(deep, sizeof deep, "%s/a/b", s->dir);
    assert_int_equal(kk_folder_files(deep, ".json", &names, NULL), KK_OK);
    assert_int_equal(names.n, 0); /* neither a link nor what lies deeper */
    snprintf(deep, sizeof deep, "%s/a/b/c", s->dir);
    assert_int_equal(kk_folder_files(deep, ".json", &names, NULL), KK_OK);
    assert_int_equal(names.n, 1);
    kk_words_free(&names);
    assert_int_equal(kk_folder_files("/no/such", "", &names, NULL), KK_EIO);
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n";
    assert_false(kk_lfs_pointer_in(deep, found, sizeof found));
    scratch_write(scratch_path(s, "a/b/c/model"), pointer, sizeof pointer - 1);
    assert_true(kk_lfs_pointer_in(deep, found, sizeof found));
    assert_non_null(strstr(found, "/model"));
    assert_true(kk_lfs_pointer_in(scratch_path(s, "a/b/c/model"), found, sizeof found));
    assert_false(kk_lfs_pointer_in("/no/such", found, sizeof found));
    snprintf(deep, sizeof deep, "%s/a", s->dir);
    assert_int_equal(kk_folder_remove(deep, NULL), KK_OK);
    assert_int_equal(kk_folder_remove(deep, NULL), KK_OK);
    assert_int_equal(access("/etc/passwd", R_OK), 0); /* links are not followed */
    assert_int_equal(kk_folder_bytes(deep), 0);
    assert_int_equal(kk_folder_make("/proc/no", NULL), KK_EIO);
    assert_int_equal(kk_folder_put("/proc/no", "", 0, NULL), KK_EIO);
    assert_int_equal(kk_folder_temporary("/no/such", found, sizeof found, NULL), KK_EIO);
    assert_int_equal(kk_folder_temporary("/no/such", found, 5, NULL), KK_EINVAL);
}

/* ---- what git prints ----------------------------------------------------------------------- */

#define ID "0123456789abcdef0123456789abcdef01234567"

static void listings(void **state) {
    (void)state;
    static const char refs_text[] = ID "\trefs/heads/p/one\n" ID "\t-x\n" ID "\ta..b\nshort\tx\n" ID
                                       "\trefs/heads/p/a b\n" ID "\n" ID "\trefs/heads/p/x/y\n";
    static const char tree_text[] = "100644 blob " ID "     12\t.kakeya-bridge/request.json\0"
                                    "120000 blob " ID "      9\tresults/link\0"
                                    "160000 commit " ID "       -\tsub\0"
                                    "100644 blob nothing 1\tx\0no tab\0";
    const kk_bus bus = {.prefix = "p/"};
    kk_git_refs refs = {.n = 0};
    kk_git_tree tree = {.n = 0};
    assert_int_equal(kk_git_parse_refs(&refs, refs_text, sizeof refs_text - 1, NULL), KK_OK);
    assert_int_equal(refs.n, 2);
    assert_string_equal(kk_bus_branch(&bus, refs.ref[0].name), "p/one");
    assert_string_equal(kk_bus_branch(&bus, refs.ref[1].name), ""); /* not one of ours */
    assert_string_equal(kk_bus_branch(&bus, "refs/heads/p/"), "");
    assert_non_null(kk_git_refs_find(&refs, "refs/heads/p/one"));
    assert_null(kk_git_refs_find(&refs, "refs/heads/p/on"));
    assert_int_equal(kk_git_parse_tree(&tree, tree_text, sizeof tree_text - 1, NULL), KK_OK);
    assert_int_equal(tree.n, 3);
    assert_true(tree.entry[0].regular && tree.entry[0].size == 12);
    assert_false(tree.entry[1].regular || tree.entry[2].regular);
    assert_null(kk_git_tree_find(&tree, "x"));
    kk_git_tree_free(&tree);
    kk_git_refs_free(&refs);
    /* More files than a bus may hold. */
    kk_bytes many = {0};
    for (int i = 0; i < 2001; i++) {
        kk_bytes_print(&many, "100644 blob " ID " 1\tf%d", i);
        kk_bytes_add(&many, "", 1);
    }
    assert_int_equal(kk_git_parse_tree(&tree, many.data, many.n, NULL), KK_EFORMAT);
    kk_git_tree_free(&tree);
    kk_bytes_free(&many);
}

/* ---- configurations ------------------------------------------------------------------------ */

static void configurations(void **state) {
    scratch *s = *state;
    kk_runner_config c;
    kk_err err;
    static const char good[] =
        "{\"name\": \"m4\", \"remote\": \"x\", \"prefix\": \"a/b/\", \"unsigned\": [\"bob\"], "
        "\"presets\": [\"parity\"], \"paths\": {\"model\": \"/m\", \"cases\": [\"/a\", \"/b\"]}, "
        "\"limits\": {\"minutes\": 1.5, \"disk_bytes\": 4096}}";
    assert_int_equal(kk_runner_config_parse(&c, good, sizeof good - 1, &err), KK_OK);
    assert_true(kk_runner_config_unsigned(&c, "bob") && !kk_runner_config_unsigned(&c, "ann"));
    assert_true(kk_runner_config_preset(&c, "parity") && !kk_runner_config_preset(&c, "bench"));
    assert_int_equal(c.paths.n_cases, 2);
    assert_true(c.disk_bytes == 4096 && c.most_minutes == 1.5);
    kk_runner_config_release(&c);
    static const char *const wrong[] = {"[]",
                                        "{",
                                        "{\"nmae\": 1}",
                                        "{\"name\": \"\"}",
                                        "{\"name\": 4}",
                                        "{\"name\": \"a b\"}",
                                        "{\"name\": \"a\", \"name\": \"b\"}",
                                        "{\"program\": \"kakeya\"}",
                                        "{\"allowed_signers\": \"~/signers\"}",
                                        "{\"unsigned\": \"bob\"}",
                                        "{\"unsigned\": [1]}",
                                        "{\"presets\": [\"rm\"]}",
                                        "{\"prefix\": \"bus\"}",
                                        "{\"prefix\": \"-a/\"}",
                                        "{\"prefix\": \"a b/\"}",
                                        "{\"paths\": []}",
                                        "{\"paths\": {\"modle\": \"/m\"}}",
                                        "{\"paths\": {\"model\": \"m\"}}",
                                        "{\"paths\": {\"cases\": [\"c\"]}}",
                                        "{\"limits\": 1}",
                                        "{\"limits\": {\"minutes\": 0}}",
                                        "{\"limits\": {\"minutes\": 2000}}",
                                        "{\"limits\": {\"minutes\": \"1\"}}",
                                        "{\"limits\": {\"output_bytes\": 1}}",
                                        "{\"limits\": {\"disk_bytes\": 1.5}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (kk_runner_config_parse(&c, wrong[i], strlen(wrong[i]), &err) != KK_EINVAL)
            fail_msg("took %s", wrong[i]);
        kk_runner_config_release(&c);
    }
    assert_int_equal(kk_runner_config_read(&c, scratch_path(s, "none"), &err), KK_EIO);
    scratch_write(scratch_path(s, "bad.json"), "{", 1);
    assert_int_equal(kk_runner_config_read(&c, s->path, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "bad.json"));
}

/* Every allocation and pipe may fail: a status, and nothing left behind. */
static void without_memory(void **state) {
    scratch *s = *state;
    const char *argv[4];
    const int64_t blocks = kk_live_blocks();
    kk_git git = {.folder = scratch_path(s, "git")};
    char folder[600], id[KK_GIT_ID + 1];
    kk_git_file file = {.path = "a"};
    snprintf(folder, sizeof folder, "%s", git.folder);
    git.folder = folder;
    assert_int_equal(kk_git_init(&git, NULL), KK_OK);
    int failures = 0;
    for (int64_t n = 1; n < 60; n++) {
        kk_process_result r;
        kk_process p = script(argv, "echo some output");
        kk_fault_after(n, false);
        kk_status st = kk_process_run(&p, &r, NULL);
        kk_process_release(&r);
        if (st == KK_OK) st = kk_git_commit(&git, "", "m", &file, 1, id, NULL);
        kk_fault_after(0, false);
        assert_true(st == KK_OK || st == KK_ENOMEM || st == KK_EIO);
        failures += st != KK_OK;
        assert_int_equal(kk_live_blocks(), blocks);
        if (st == KK_OK && n > 50) break;
    }
    assert_true(failures > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_and_input),
        cmocka_unit_test(limits),
        cmocka_unit_test_setup_teardown(ends_early, scratch_setup, scratch_teardown),
        cmocka_unit_test(lines),
        cmocka_unit_test_setup_teardown(folders, scratch_setup, scratch_teardown),
        cmocka_unit_test(listings),
        cmocka_unit_test_setup_teardown(configurations, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(without_memory, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
