/* fuzz_bus.c - any bytes as what git says of a remote and of a commit: entries that are kept have
 * ids of hexadecimal digits and names that can stand in an argv and in a path. */
#include <stdlib.h>
#include <string.h>

#include "bridge/bus.h"
#include "bridge/folder.h"
#include "core/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void check(const char *id, const char *name) {
    const size_t n = strlen(id);
    need((n == 40 || n == 64) && strspn(id, "0123456789abcdef") == n);
    need(name[0] && name[0] != '-' && name[0] != '/' && !strstr(name, ".."));
    need(strlen(name) <= KK_GIT_NAME && !strpbrk(name, " \t\n\"\\:*?[^~"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const kk_bus bus = {.prefix = "p/"};
    kk_git_refs refs = {.n = 0};
    kk_git_tree tree = {.n = 0};
    kk_bytes text = {0};
    char line[80];
    need(kk_git_parse_refs(&refs, (const char *)data, size, NULL) == KK_OK);
    for (size_t i = 0; i < refs.n; i++) {
        check(refs.ref[i].id, refs.ref[i].name);
        const char *branch = kk_bus_branch(&bus, refs.ref[i].name);
        need(!*branch || strncmp(branch, "p/", 2) == 0);
    }
    const kk_status st = kk_git_parse_tree(&tree, (const char *)data, size, NULL);
    need(st == KK_OK || st == KK_EFORMAT);
    for (size_t i = 0; i < tree.n; i++) check(tree.entry[i].id, tree.entry[i].path);
    kk_bytes_add(&text, data, size);
    kk_process_last_line(&text, line, sizeof line);
    kk_process_complaint(&text, "kakeya", line, sizeof line);
    need(strlen(line) < sizeof line && !strpbrk(line, "\n\033\t"));
    kk_lfs_pointer(data, size);
    kk_bytes_free(&text);
    kk_git_tree_free(&tree);
    kk_git_refs_free(&refs);
    return 0;
}
