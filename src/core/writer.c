/* writer.c - see writer.h, and "files that are written" in kakeya.h.
 *
 * A regular file is written beside its final name, as NAME.kakeya-tmp, and renamed: rename is
 * atomic only within one file system, and the folder is synced too, or the new name could be lost
 * with the power.  Everything that is not a regular file (a device, a FIFO, an open descriptor) is
 * written through, because replacing it would destroy it.
 *
 *  (1) The temporary name is the lock: whoever holds flock(2) on the file of that name, and no one
 *      else, may write NAME.  The kernel drops the lock when its holder dies, however it dies.
 *  (2) A temporary file that can be locked is therefore what a dead process left.  It is removed,
 *      never written into: a rename that was interrupted may have given it a second name.
 *  (3) After locking, the name must still lead to the locked file; the holder before may have
 *      renamed or removed it in between.
 *  (4) What is there under the final name is looked at while the lock is held, so that the answer
 *      still holds for other runs of this program when the rename comes.
 *
 * Every system call that can fail passes a fault point first. */
#define _GNU_SOURCE
#include "core/writer.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/file.h"

/* A long path must not push the reason out of the message. */
#define PATH_FMT "'%.120s'"

static const char temp_suffix[] = ".kakeya-tmp";
enum { BUFFER = 256 * 1024, MOST_LINKS = 40, LONGEST_LINK = 4096, ATTEMPTS = 1000 };

struct kk_writer {
    char *path;   /* as it was given, for messages */
    char *target; /* the file to be made, links followed; NULL: written through */
    char *temp;   /* beside target */
    int fd;
    bool temp_made; /* there is a temporary file of ours to remove */
    bool replace;
    bool there;      /* target was there at open; then its mode is kept */
    mode_t mode;     /* permissions of that file */
    uint64_t offset; /* bytes put so far */
    size_t used;     /* bytes of buffer in use */
    unsigned char *buffer;
};

static kk_status fail_errno(kk_err *err, const char *verb, const char *path) {
    return kk_fail(err, KK_EIO, "cannot %s " PATH_FMT ": %s", verb, path, strerror(errno));
}

static kk_status no_memory(kk_err *err, const char *path) {
    return kk_fail(err, KK_ENOMEM, "no memory to write " PATH_FMT, path);
}

/* A fault point of a system call, which fails there with this error. */
static bool faulty(int code) {
    errno = code;
    return kk_fault_point();
}

static int open_fd(const char *path, int flags, mode_t mode) {
    return faulty(EIO) ? -1 : open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* ---- inputs ------------------------------------------------------------------------------ */

/* The names that folders of models, drafters, projections and prompts are read by. */
static bool read_in_folders(const char *name) {
    static const char *const ends[] = {".safetensors",   ".index.json",     "config.json",
                                       "tokenizer.json", "projection.json", ".jsonl"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t m = strlen(ends[i]);
        if (n >= m && strcmp(name + n - m, ends[i]) == 0) return true;
    }
    return false;
}

/* Whether a file of the folder is the given one. */
static kk_status look_in_folder(const char *folder, const struct stat *file, bool *found,
                                kk_err *err) {
    DIR *d = opendir(folder);
    kk_status st = KK_OK;
    if (!d) return KK_OK; /* whoever reads it says so */
    for (struct dirent *e; st == KK_OK && !*found && (e = readdir(d));) {
        struct stat one;
        if (!read_in_folders(e->d_name)) continue;
        char *path = kk_path_join(folder, e->d_name);
        if (!path) st = no_memory(err, folder);
        *found = path && stat(path, &one) == 0 && same_file(&one, file);
        kk_free(path);
    }
    closedir(d);
    return st;
}

static kk_status refuse_inputs(const kk_writer *w, const struct stat *file,
                               const kk_writer_opts *opts, kk_err *err) {
    for (size_t i = 0; i < opts->n_inputs; i++) {
        const char *input = opts->inputs[i];
        struct stat one;
        if (!input || stat(input, &one) != 0) continue;
        bool found = same_file(&one, file);
        if (S_ISDIR(one.st_mode)) KK_TRY(look_in_folder(input, file, &found, err));
        if (found)
            return kk_fail(err, KK_EINVAL,
                           PATH_FMT " is read here, as " PATH_FMT ", and cannot be written as well",
                           w->path, input);
    }
    return KK_OK;
}

/* ---- the temporary file ------------------------------------------------------------------ */

typedef enum {
    HELD,   /* locked, and of that name */
    BUSY,   /* locked by another */
    GONE,   /* the name leads elsewhere, or nowhere */
    FAILED, /* errno says why */
} lock_state;

/* made: the file is our own, so that a file system without locks will do. */
static lock_state lock_temp(int fd, const char *temp, bool made) {
    struct stat held, named;
    int got;
    do got = faulty(EIO) ? -1 : flock(fd, LOCK_EX | LOCK_NB);
    while (got != 0 && errno == EINTR);
    if (got != 0 && errno == EWOULDBLOCK) return BUSY;
    if (got != 0 && !(made && (errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP)))
        return FAILED;
    if (fstat(fd, &held) != 0) return FAILED;
    if (lstat(temp, &named) != 0 || !same_file(&held, &named)) return GONE;
    errno = EEXIST;
    return S_ISREG(held.st_mode) ? HELD : FAILED;
}

/* Makes the temporary file, or opens the one that is there; *made says which.  EAGAIN: it was there
 * and went away. */
static int open_temp(const char *temp, mode_t mode, bool *made) {
    int fd = open_fd(temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
    *made = fd >= 0;
    if (fd >= 0 || errno != EEXIST) return fd;
    fd = open_fd(temp, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0 && errno == ENOENT) errno = EAGAIN;
    return fd;
}

static kk_status take_temp(kk_writer *w, mode_t mode, kk_err *err) {
    for (int i = 0; i < ATTEMPTS; i++) {
        bool made;
        const int fd = open_temp(w->temp, mode, &made);
        if (fd < 0 && errno == EAGAIN) continue;
        if (fd < 0) return fail_errno(err, "create", w->path);
        const lock_state state = lock_temp(fd, w->temp, made);
        if (state == HELD && made) {
            w->fd = fd;
            w->temp_made = true;
            return KK_OK;
        }
        const int why = errno;
        if (state == HELD || (state == FAILED && made)) unlink(w->temp);
        close(fd);
        errno = why;
        if (state == FAILED) return fail_errno(err, "lock", w->temp);
        if (state == BUSY) break;
    }
    return kk_fail(err, KK_EBUSY, PATH_FMT " is being written by another run", w->path);
}

/* ---- opening ----------------------------------------------------------------------------- */

/* The descriptor that /dev/stdout, /dev/fd/3 and the like name; -1: none.  A path through them may
 * lead to a regular file, which has to be written where the descriptor stands, not replaced. */
static int descriptor_named(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "/dev/stdout") == 0) return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0) return STDERR_FILENO;
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(folders[i]);
        char *end;
        if (strncmp(path, folders[i], n) != 0 || path[n] < '0' || path[n] > '9') continue;
        const long fd = strtol(path + n, &end, 10);
        if (*end == '\0' && fd <= 1 << 20) return (int)fd;
    }
    return -1;
}

static kk_status write_through(kk_writer *w, int fd, kk_err *err) {
    if (fd < 0) return fail_errno(err, "open", w->path);
    w->fd = fd;
    return KK_OK;
}

/* Where a link lies and where it leads, as one path. */
static char *step(const char *link, const char *to) {
    const char *slash = strrchr(link, '/');
    if (to[0] == '/' || !slash) return kk_strndup(to, strlen(to));
    char *folder = kk_strndup(link, (size_t)(slash - link) + 1);
    char *path = folder ? kk_path_join(folder, to) : NULL;
    kk_free(folder);
    return path;
}

/* Finds what the path means behind its symbolic links, whether it is there or not. */
static kk_status follow(kk_writer *w, kk_err *err) {
    char to[LONGEST_LINK + 1];
    w->target = kk_strndup(w->path, strlen(w->path));
    for (int i = 0; w->target; i++) {
        const ssize_t n = readlink(w->target, to, LONGEST_LINK);
        if (n < 0) break; /* no link; whatever else is wrong shows when it is opened */
        to[n] = '\0';
        errno = ELOOP;
        if (i == MOST_LINKS) return fail_errno(err, "open", w->path);
        char *next = step(w->target, to);
        kk_free(w->target);
        w->target = next;
    }
    const size_t n = w->target ? strlen(w->target) : 0;
    w->temp = w->target ? kk_malloc(n + sizeof temp_suffix) : NULL;
    if (!w->temp) return no_memory(err, w->path);
    memcpy(w->temp, w->target, n);
    memcpy(w->temp + n, temp_suffix, sizeof temp_suffix);
    return KK_OK;
}

/* The temporary file takes the owner of the file it will replace; its mode comes at the end, so
 * that until then its own process, and one that finds it dead, can open it. */
static kk_status keep_owner(kk_writer *w, const struct stat *old, kk_err *err) {
    struct stat own;
    w->there = true;
    w->mode = old->st_mode & 07777;
    if (fstat(w->fd, &own) != 0) return fail_errno(err, "stat", w->temp);
    if (own.st_uid == old->st_uid && own.st_gid == old->st_gid) return KK_OK;
    if (faulty(EPERM) || fchown(w->fd, old->st_uid, old->st_gid) != 0)
        return fail_errno(err, "keep the owner of", w->path);
    return KK_OK;
}

/* Looks at what is to be replaced. */
static kk_status check_old(kk_writer *w, const kk_writer_opts *opts, kk_err *err) {
    struct stat old;
    if (lstat(w->target, &old) != 0)
        return errno == ENOENT ? KK_OK : fail_errno(err, "open", w->path);
    if (!S_ISREG(old.st_mode))
        return kk_fail(err, KK_EIO, PATH_FMT " is %s", w->path,
                       S_ISDIR(old.st_mode) ? "a folder" : "no longer a regular file");
    KK_TRY(refuse_inputs(w, &old, opts, err));
    if (!opts->replace) return kk_fail(err, KK_EEXIST, PATH_FMT " exists", w->path);
    if (faccessat(AT_FDCWD, w->target, W_OK, AT_EACCESS) != 0)
        return fail_errno(err, "replace", w->path);
    return keep_owner(w, &old, err);
}

static kk_status place(kk_writer *w, const kk_writer_opts *opts, kk_err *err) {
    const int known = descriptor_named(w->path);
    struct stat st;
    if (w->path[0] == '\0') return kk_fail(err, KK_EINVAL, "the file to write has no name");
    if (known >= 0)
        return write_through(w, faulty(EIO) ? -1 : fcntl(known, F_DUPFD_CLOEXEC, 0), err);
    const bool there = stat(w->path, &st) == 0;
    if (there && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return write_through(w, open_fd(w->path, O_WRONLY, 0), err);
    KK_TRY(follow(w, err));
    KK_TRY(take_temp(w, there || opts->owner_only ? 0600 : 0666, err));
    return check_old(w, opts, err);
}

kk_status kk_writer_open(kk_writer **out, const char *path, const kk_writer_opts *opts,
                         kk_err *err) {
    static const kk_writer_opts standard = {.replace = false};
    if (!opts) opts = &standard;
    *out = NULL;
    kk_writer *w = kk_zalloc(sizeof *w);
    if (!w) return no_memory(err, path);
    w->fd = -1;
    w->replace = opts->replace;
    w->path = kk_strndup(path, strlen(path));
    w->buffer = kk_malloc(BUFFER);
    const kk_status st = w->path && w->buffer ? place(w, opts, err) : no_memory(err, path);
    if (st != KK_OK) {
        kk_writer_close(w);
        return st;
    }
    *out = w;
    return KK_OK;
}

void kk_writer_close(kk_writer *w) {
    if (!w) return;
    if (w->temp_made) unlink(w->temp); /* before the lock goes with the descriptor */
    if (w->fd >= 0) close(w->fd);
    kk_free(w->path);
    kk_free(w->target);
    kk_free(w->temp);
    kk_free(w->buffer);
    kk_free(w);
}

const char *kk_writer_temp(const kk_writer *w) { return w->temp_made ? w->temp : NULL; }

/* ---- writing ----------------------------------------------------------------------------- */

static kk_status write_all(kk_writer *w, const unsigned char *data, size_t len, kk_err *err) {
    while (len > 0) {
        const ssize_t n = faulty(ENOSPC) ? -1 : write(w->fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_errno(err, "write", w->path);
        data += n;
        len -= (size_t)n;
    }
    return KK_OK;
}

static kk_status flush(kk_writer *w, kk_err *err) {
    const size_t used = w->used;
    w->used = 0;
    return write_all(w, w->buffer, used, err);
}

kk_status kk_writer_put(kk_writer *w, const void *data, size_t len, kk_err *err) {
    w->offset += len;
    if (len > BUFFER - w->used) KK_TRY(flush(w, err));
    if (len >= BUFFER) return write_all(w, data, len, err);
    if (len > 0) memcpy(w->buffer + w->used, data, len);
    w->used += len;
    return KK_OK;
}

uint64_t kk_writer_offset(const kk_writer *w) { return w->offset; }

kk_status kk_writer_sync(kk_writer *w, kk_err *err) {
    KK_TRY(flush(w, err));
    if (!w->target) return KK_OK; /* devices and pipes need not know how */
    if (faulty(EIO) || fsync(w->fd) != 0) return fail_errno(err, "sync", w->path);
    return KK_OK;
}

/* Syncs the folder that holds path.  Some file systems cannot; the file itself is safe by then,
 * so that is no failure. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? kk_strndup(path, (size_t)(slash - path) + 1) : kk_strndup(".", 1);
    if (!dir) return;
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    kk_free(dir);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

/* Where nothing was, nothing may have come since: other programs know nothing of our lock. */
static bool rename_new(const kk_writer *w) {
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, w->temp, AT_FDCWD, w->target, RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false; /* else the file system lacks it */
#endif
    if (link(w->temp, w->target) == 0) {
        unlink(w->temp);
        return true;
    }
    if (errno == EEXIST || faccessat(AT_FDCWD, w->target, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return false;
    }
    return rename(w->temp, w->target) == 0;
}

static bool rename_over(const kk_writer *w) {
    struct stat now;
    errno = EEXIST;
    if (lstat(w->target, &now) == 0 && !S_ISREG(now.st_mode)) return false;
    return rename(w->temp, w->target) == 0;
}

kk_status kk_writer_commit(kk_writer *w, kk_err *err) {
    if (!w->target) return kk_writer_sync(w, err);
    assert(w->temp_made);
    if (w->there && (faulty(EPERM) || fchmod(w->fd, w->mode) != 0))
        return fail_errno(err, "keep the mode of", w->path);
    KK_TRY(kk_writer_sync(w, err));
    if (faulty(EIO) || !(w->replace ? rename_over(w) : rename_new(w)))
        return fail_errno(err, w->replace ? "replace" : "name", w->path);
    w->temp_made = false;
    sync_folder(w->target);
    return KK_OK;
}
