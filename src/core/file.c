/* file.c - files that are read.
 *
 * By map, so that opening a large model touches its headers and nothing else.  Every system call
 * that can fail passes a fault point first. */
#define _GNU_SOURCE
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"

/* A long path must not push the reason out of the message. */
#define PATH_FMT "'%.120s'"

static kk_status fail_errno(kk_err *err, const char *verb, const char *path) {
    return kk_fail(err, KK_EIO, "cannot %s " PATH_FMT ": %s", verb, path, strerror(errno));
}

/* open(2) that a test can fail. */
static int open_fd(const char *path, int flags) {
    if (kk_fault_point()) {
        errno = EIO;
        return -1;
    }
    return open(path, flags | O_CLOEXEC, 0666);
}

/* Opens a regular file and tells its size. */
static kk_status open_regular(const char *path, int *fd, size_t *size, kk_err *err) {
    struct stat st;
    *fd = open_fd(path, O_RDONLY | O_NONBLOCK); /* a FIFO must not hang us */
    if (*fd < 0) return fail_errno(err, "open", path);
    if (fstat(*fd, &st) != 0) {
        fail_errno(err, "stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        kk_fail(err, KK_EIO, PATH_FMT " is not a regular file", path);
    } else {
        *size = (size_t)st.st_size;
        return KK_OK;
    }
    close(*fd);
    return KK_EIO;
}

/* Maps a large file at an address that is a multiple of a huge page, so that the system can map
 * it by huge pages: a larger address range is reserved and cut to size. */
static void *map_aligned(int fd, size_t size) {
    const size_t huge = (size_t)2 << 20;
    if (size < huge || size > SIZE_MAX / 2) return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    uint8_t *reserved = mmap(NULL, size + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == MAP_FAILED) return MAP_FAILED;
    const size_t skip = (huge - (uintptr_t)reserved % huge) % huge;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (size + page - 1) / page * page;
    void *base = mmap(reserved + skip, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    if (base == MAP_FAILED) {
        munmap(reserved, size + huge);
        return MAP_FAILED;
    }
    if (skip) munmap(reserved, skip);
    if (skip + used < size + huge) munmap(reserved + skip + used, size + huge - skip - used);
    return base;
}

kk_status kk_map_open(kk_map *out, const char *path, kk_err *err) {
    int fd;
    size_t size;
    *out = (kk_map){0};
    KK_TRY(open_regular(path, &fd, &size, err));
    if (size == 0) {
        close(fd);
        return KK_OK;
    }
    void *base = MAP_FAILED;
    errno = ENOMEM;
    if (!kk_fault_point()) base = map_aligned(fd, size);
    int map_errno = errno;
    close(fd);
    errno = map_errno;
    if (base == MAP_FAILED) return fail_errno(err, "map", path);
    out->span = (kk_span){base, size};
    return KK_OK;
}

void kk_map_close(kk_map *m) {
    if (m->span.size) munmap((void *)(uintptr_t)m->span.base, m->span.size);
    *m = (kk_map){0};
}

kk_status kk_map_lock(const kk_map *m, const char *path, kk_err *err) {
    if (m->span.size == 0) return KK_OK;
    errno = ENOMEM;
    if (kk_fault_point() || mlock(m->span.base, m->span.size) != 0)
        return kk_fail(err, KK_ENOMEM,
                       "cannot lock %zu bytes of " PATH_FMT " in memory: %s (see `RLIMIT_MEMLOCK`)",
                       m->span.size, path, strerror(errno));
    return KK_OK;
}

void kk_map_huge(const kk_map *m) {
#ifdef MADV_HUGEPAGE
    if (m->span.size) madvise((void *)(uintptr_t)m->span.base, m->span.size, MADV_HUGEPAGE);
#else
    (void)m;
#endif
}

/* Reads until len bytes came or the file ended; *got says how many. */
static bool read_all(int fd, char *to, size_t len, size_t *got) {
    *got = 0;
    while (*got < len) {
        errno = EIO;
        ssize_t n = kk_fault_point() ? -1 : read(fd, to + *got, len - *got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        if (n == 0) break;
        *got += (size_t)n;
    }
    return true;
}

kk_status kk_file_read(const char *path, size_t max, char **text, size_t *len, kk_err *err) {
    int fd;
    size_t size;
    *text = NULL;
    *len = 0;
    KK_TRY(open_regular(path, &fd, &size, err));
    kk_status st = KK_OK;
    char *buf = NULL;
    if (size > max)
        st = kk_fail(err, KK_EFORMAT, PATH_FMT " has %zu bytes, more than the %zu allowed", path,
                     size, max);
    else if (!(buf = kk_malloc(size + 1)))
        st = kk_fail(err, KK_ENOMEM, "no memory to read " PATH_FMT, path);
    else if (!read_all(fd, buf, size, len))
        st = fail_errno(err, "read", path);
    close(fd);
    if (st != KK_OK) {
        kk_free(buf);
        *len = 0;
        return st;
    }
    buf[*len] = '\0';
    *text = buf;
    return KK_OK;
}

struct kk_reader {
    int fd;
    size_t size, offset;
    char *path;
};

kk_status kk_reader_open(kk_reader **out, const char *path, kk_err *err) {
    *out = NULL;
    kk_reader *r = kk_zalloc(sizeof *r);
    if (!r) return kk_fail(err, KK_ENOMEM, "no memory to read " PATH_FMT, path);
    r->fd = -1;
    r->path = kk_strndup(path, strlen(path));
    kk_status st = r->path ? open_regular(path, &r->fd, &r->size, err)
                           : kk_fail(err, KK_ENOMEM, "no memory to read " PATH_FMT, path);
    if (st != KK_OK) {
        r->fd = -1;
        kk_reader_close(r);
        return st;
    }
    *out = r;
    return KK_OK;
}

void kk_reader_close(kk_reader *r) {
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    kk_free(r->path);
    kk_free(r);
}

/* Only advice: nothing is wrong where it is not taken. */
void kk_reader_expect(const kk_reader *r) {
#ifdef POSIX_FADV_WILLNEED
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_WILLNEED);
#else
    (void)r;
#endif
}

uint64_t kk_reader_size(const kk_reader *r) { return r->size; }
const char *kk_reader_path(const kk_reader *r) { return r->path; }

kk_status kk_reader_get(kk_reader *r, void *to, size_t len, kk_err *err) {
    size_t got;
    if (!read_all(r->fd, to, len, &got)) return fail_errno(err, "read", r->path);
    r->offset += got;
    if (got == len) return KK_OK;
    return kk_fail(err, KK_EFORMAT, PATH_FMT " ends at byte %zu, %zu before its end", r->path,
                   r->offset, len - got);
}

bool kk_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

bool kk_dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

kk_status kk_dir_make(const char *path, kk_err *err) {
    errno = ENOSPC;
    if (!kk_fault_point() && (mkdir(path, 0777) == 0 || (errno == EEXIST && kk_dir_exists(path))))
        return KK_OK;
    return fail_errno(err, "make the folder", path);
}

char *kk_path_join(const char *dir, const char *name) {
    size_t d = strlen(dir), n = strlen(name);
    while (d > 1 && dir[d - 1] == '/') d--;
    char *path = kk_malloc(d + n + 2);
    if (!path) return NULL;
    memcpy(path, dir, d);
    path[d] = '/';
    memcpy(path + d + 1, name, n + 1);
    return path;
}
