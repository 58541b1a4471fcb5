/* folder.c - see folder.h. */
#define _GNU_SOURCE
#include "bridge/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"

enum { MOST_FDS = 16, POINTER_BYTES = 1024 }; /* a pointer is some 130 bytes long */

/* ---- whole trees --------------------------------------------------------------------------- */

/* nftw takes no argument of its own, so the walk is written out. */
static int64_t bytes_at(int folder, const char *name, int depth) {
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return 0;
    if (S_ISREG(st.st_mode)) return (int64_t)st.st_size;
    if (!S_ISDIR(st.st_mode) || depth > 64) return 0;
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    int64_t sum = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            sum += bytes_at(dirfd(dir), e->d_name, depth + 1);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    return sum;
}

int64_t kk_folder_bytes(const char *path) { return bytes_at(AT_FDCWD, path, 0); }

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at) {
    (void)st, (void)flag, (void)at;
    return remove(path);
}

kk_status kk_folder_remove(const char *path, kk_err *err) {
    if (nftw(path, remove_one, MOST_FDS, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return KK_OK;
    return kk_fail(err, KK_EIO, "cannot remove %.150s: %s", path, strerror(errno));
}

kk_status kk_folder_make(const char *path, kk_err *err) {
    char part[4096];
    const size_t n = strlen(path);
    if (n >= sizeof part) return kk_fail(err, KK_EINVAL, "a path of %zu bytes is too long", n);
    memcpy(part, path, n + 1);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0700);
        *slash = '/';
    }
    if ((mkdir(path, 0700) == 0 || errno == EEXIST) && kk_dir_exists(path)) return KK_OK;
    return kk_fail(err, KK_EIO, "cannot make the folder %.150s: %s", path, strerror(errno));
}

kk_status kk_folder_temporary(const char *base, char *out, size_t cap, kk_err *err) {
    const int n = snprintf(out, cap, "%s/kakeya-bridge-XXXXXX", base);
    if (n < 0 || (size_t)n >= cap)
        return kk_fail(err, KK_EINVAL, "the path of %.150s is too long", base);
    if (mkdtemp(out)) return KK_OK;
    return kk_fail(err, KK_EIO, "cannot make a folder in %.150s: %s", base, strerror(errno));
}

/* ---- files --------------------------------------------------------------------------------- */

kk_status kk_folder_put(const char *path, const void *data, size_t len, kk_err *err) {
    const int fd =
        kk_fault_point() ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool whole = fd >= 0;
    for (size_t at = 0; whole && at < len;) {
        const ssize_t n = write(fd, (const char *)data + at, len - at);
        whole = n > 0;
        at += whole ? (size_t)n : 0;
    }
    if (fd >= 0 && close(fd) != 0) whole = false;
    if (whole) return KK_OK;
    return kk_fail(err, KK_EIO, "cannot write %.150s: %s", path, strerror(errno));
}

static bool ends_in(const char *name, const char *suffix) {
    const size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

kk_status kk_folder_files(const char *path, const char *suffix, kk_words *names, kk_err *err) {
    DIR *dir = opendir(path);
    if (!dir) return kk_fail(err, KK_EIO, "cannot read %.150s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (ends_in(e->d_name, suffix) &&
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            kk_words_add(names, "%s", e->d_name);
    }
    closedir(dir);
    if (names->failed) return kk_no_memory(err, "the names of files");
    if (names->n) qsort(names->word, names->n, sizeof *names->word, by_name);
    return KK_OK;
}

/* ---- git LFS ------------------------------------------------------------------------------- */

bool kk_lfs_pointer(const void *data, size_t len) {
    static const char start[] = "version https://git-lfs.github.com/spec/";
    return len <= POINTER_BYTES && len >= sizeof start - 1 &&
           memcmp(data, start, sizeof start - 1) == 0;
}

static bool pointer_file(const char *path) {
    char text[POINTER_BYTES + 1];
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    return kk_lfs_pointer(text, n);
}

bool kk_lfs_pointer_in(const char *path, char *found, size_t cap) {
    kk_words names = {0};
    bool is = false;
    if (!kk_dir_exists(path)) {
        snprintf(found, cap, "%s", path);
        return pointer_file(path);
    }
    if (kk_folder_files(path, "", &names, NULL) == KK_OK)
        for (size_t i = 0; i < names.n && !is; i++) {
            snprintf(found, cap, "%s/%s", path, names.word[i]);
            is = pointer_file(found);
        }
    kk_words_free(&names);
    return is;
}
