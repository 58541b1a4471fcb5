/* gate_members_test.c - every member of every kind of report is taken away once.
 *
 * Each path of a good report, with any entry of a list standing for all of them, is removed where
 * it first occurs; the report must then be refused.  What lies within a member that is not missed
 * is not tried by itself.  What may be absent without being missed is listed in
 * tests/data/reports/free.txt, one "kind path" a line; a path that is listed there and missed after
 * all is an error too, so that the list tells what the gate does not ask for. */
#define _GNU_SOURCE
#include "support/doctored.h"

#include "core/alloc.h"
#include "core/file.h"
#include "support/slow.h"

enum { MOST_PATHS = 2000, PATH = 160 };

static struct {
    char pattern[PATH], first[PATH];
    bool free; /* it is not missed */
} paths[MOST_PATHS];
static size_t n_paths;

static void note(const char *pattern, const char *first) {
    for (size_t i = 0; i < n_paths; i++)
        if (strcmp(paths[i].pattern, pattern) == 0) return;
    assert_true(n_paths < MOST_PATHS && strlen(pattern) < PATH && strlen(first) < PATH);
    snprintf(paths[n_paths].pattern, PATH, "%s", pattern);
    snprintf(paths[n_paths].first, PATH, "%s", first);
    paths[n_paths++].free = false;
}

/* Entries of lists are told apart by nothing, members of objects by their names; but names of arms,
 * of parts of a loss and the like are entries too, and one of each is enough. */
static void collect(const json_t *v, const char *pattern, const char *first) {
    char deeper[PATH + 40], at_first[PATH + 40];
    const char *key;
    json_t *member;
    for (size_t i = 0; i < json_array_size(v); i++) {
        snprintf(deeper, sizeof deeper, "%s/*", pattern);
        snprintf(at_first, sizeof at_first, "%s/%zu", first, i);
        collect(json_array_get(v, i), deeper, at_first);
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        snprintf(deeper, sizeof deeper, "%s%s%s", pattern, *pattern ? "/" : "", key);
        snprintf(at_first, sizeof at_first, "%s%s%s", first, *first ? "/" : "", key);
        note(deeper, at_first);
        collect(member, deeper, at_first);
    }
}

/* Whether the line "kind path" stands in the text. */
static bool is_free(const char *text, const char *kind, const char *pattern) {
    char line[PATH + 40];
    snprintf(line, sizeof line, "\n%.30s %.159s\n", kind, pattern);
    return strstr(text, line) != NULL;
}

static bool is_missed(const char *kind, const char *path) {
    json_t *report = doctored(kind, path);
    kk_verdict v = judge(report);
    const bool missed = v.n > 0;
    kk_verdict_release(&v);
    json_decref(report);
    return missed;
}

/* Whether it lies within a member that is not missed itself. */
static bool below_free(size_t i) {
    for (size_t k = 0; k < i; k++) {
        const size_t len = strlen(paths[k].pattern);
        if (paths[k].free && strncmp(paths[i].pattern, paths[k].pattern, len) == 0 &&
            paths[i].pattern[len] == '/')
            return true;
    }
    return false;
}

static size_t check_kind(const char *kind, const char *list) {
    size_t wrong = 0;
    json_t *report = good(kind);
    n_paths = 0;
    collect(report, "", "");
    json_decref(report);
    for (size_t i = 0; i < n_paths; i++) {
        if (below_free(i)) continue;
        if (slow() && i % 8) { /* not tried: what the list says of it holds for what lies within */
            paths[i].free = is_free(list, kind, paths[i].pattern);
            continue;
        }
        const bool missed = is_missed(kind, paths[i].first);
        paths[i].free = !missed;
        if (missed != is_free(list, kind, paths[i].pattern)) continue;
        print_message("%s %s\n", kind, paths[i].pattern);
        wrong++;
    }
    return wrong;
}

static void test_members(void **state) {
    static const char *const kinds[] = {"bench",  "needle",  "accept",   "sweep",      "kv",
                                        "memory", "compare", "lossless", "projection", "steps"};
    (void)state;
    char *list;
    size_t len, wrong = 0;
    assert_ok(kk_file_read(KK_TEST_DATA "/reports/free.txt", 1 << 20, &list, &len, why));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) wrong += check_kind(kinds[i], list);
    kk_free(list);
    if (wrong)
        fail_msg("%zu members are absent and not missed, or are missed and listed in free.txt",
                 wrong);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
