/* gate_files.c - which files a path means: itself, or every *.json below a folder. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "eval/reports/gate.h"

static kk_status add(kk_report_files *f, const char *path, bool found, kk_err *err) {
    if (!kk_grow((void **)&f->path, &f->cap, f->n + 1, sizeof *f->path) ||
        !kk_grow((void **)&f->found, &f->found_cap, f->n + 1, sizeof *f->found) ||
        !(f->path[f->n] = kk_strndup(path, strlen(path))))
        return kk_fail(err, KK_ENOMEM, "no memory for a list of files");
    f->found[f->n++] = found;
    return KK_OK;
}

static bool is_json(const char *name) {
    const size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static kk_status walk(kk_report_files *f, const char *folder, int depth, kk_err *err);

static kk_status look(kk_report_files *f, const char *folder, const struct dirent *e, int depth,
                      kk_err *err) {
    /* A link may lead back up. */
    if (e->d_type == DT_LNK) return KK_OK;
    char *path = kk_path_join(folder, e->d_name);
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    kk_status st = KK_OK;
    if (kk_dir_exists(path))
        st = walk(f, path, depth + 1, err);
    else if (is_json(e->d_name))
        st = add(f, path, true, err);
    kk_free(path);
    return st;
}

static kk_status walk(kk_report_files *f, const char *folder, int depth, kk_err *err) {
    struct dirent **list;
    kk_status st = KK_OK;
    if (depth > KK_GATE_MOST_DEPTH) return kk_fail(err, KK_EINVAL, "%s lies too deep", folder);
    const int n = scandir(folder, &list, visible, alphasort);
    if (n < 0) return kk_fail(err, KK_EIO, "cannot read the folder %s", folder);
    for (int i = 0; i < n; i++) {
        if (st == KK_OK) st = look(f, folder, list[i], depth, err);
        free(list[i]);
    }
    free(list);
    return st;
}

kk_status kk_report_files_add(kk_report_files *f, const char *path, kk_err *err) {
    return kk_dir_exists(path) ? walk(f, path, 0, err) : add(f, path, false, err);
}

void kk_report_files_free(kk_report_files *f) {
    for (size_t i = 0; i < f->n; i++) kk_free(f->path[i]);
    kk_free(f->path);
    kk_free(f->found);
    *f = (kk_report_files){0};
}
