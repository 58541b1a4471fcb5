/* scratch.h - a folder of its own for a test that writes files, and small files in it. */
#ifndef KK_TESTS_SCRATCH_H
#define KK_TESTS_SCRATCH_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char dir[256];
    char path[512]; /* what scratch_path last made */
} scratch;

static inline int scratch_setup(void **state) {
    scratch *s = calloc(1, sizeof *s);
    const char *base = getenv("TMPDIR");
    snprintf(s->dir, sizeof s->dir, "%.200s/kakeya-test-XXXXXX", base ? base : "/tmp");
    *state = s;
    return mkdtemp(s->dir) ? 0 : -1;
}

static inline int scratch_remove(const char *path, const struct stat *st, int flag,
                                 struct FTW *at) {
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

static inline int scratch_teardown(void **state) {
    scratch *s = *state;
    nftw(s->dir, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    free(s);
    return 0;
}

static inline const char *scratch_path(scratch *s, const char *name) {
    snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    return s->path;
}

static inline void scratch_write(const char *path, const void *data, size_t len) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0) abort();
}

/* The whole file, NUL-terminated; free it. */
static inline char *scratch_read(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    *len = 0;
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(1, *len + 1);
    if (fread(data, 1, *len, f) != *len) abort();
    fclose(f);
    return data;
}

/* How many entries a folder has. */
static inline int scratch_entries(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

#endif
