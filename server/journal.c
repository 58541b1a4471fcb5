/* journal.c - see journal.h. */
#define _GNU_SOURCE
#include "server/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/server.h"
#include "server/text.h"

static const char magic[8] = "KKJRNL1\n";
enum {
    RECORD_MAGIC = 0x6e727574, /* "turn" */
    HEAD_BYTES = 8 + 4 + 4 + 8 + 8 + JOURNAL_ID,
    RECORD_BYTES = 4 + 4 + 8 + 4 + 4,
    SEAL = 8,
    MOST_TOKENS = 1 << 28,
};

/* ---- bytes ------------------------------------------------------------------------------- */

static void put(textbuf *t, uint64_t value, int bytes) {
    char out[8];
    for (int i = 0; i < bytes; i++) out[i] = (char)(value >> (8 * i));
    text_add(t, out, (size_t)bytes);
}

static uint64_t get(const uint8_t *p, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

/* FNV-1a over bytes, mixed: it finds accidents, not forgers. */
static uint64_t seal_of(uint64_t seal, const void *data, size_t n) {
    const uint8_t *p = data;
    seal ^= 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) seal = (seal ^ p[i]) * 0x100000001b3u;
    seal ^= seal >> 32;
    return seal * 0xff51afd7ed558ccdu;
}

/* ---- reading ----------------------------------------------------------------------------- */

static kk_status parse_head(journal *j, const uint8_t *p, size_t n, kk_err *err) {
    if (n < HEAD_BYTES + SEAL || memcmp(p, magic, sizeof magic) != 0)
        return server_fail(err, KK_EFORMAT, "it does not begin as a journal does");
    const uint64_t meta = get(p + 8, 4);
    if (meta > JOURNAL_META || meta > n - HEAD_BYTES - SEAL)
        return server_fail(err, KK_EFORMAT, "its head is cut off");
    const size_t bytes = HEAD_BYTES + (size_t)meta;
    if (get(p + bytes, 8) != seal_of(0, p, bytes))
        return server_fail(err, KK_EFORMAT, "its head does not match its checksum");
    journal_head *h = &j->head;
    h->kind = (uint32_t)get(p + 12, 4);
    h->identity = get(p + 16, 8);
    h->created = (int64_t)get(p + 24, 8);
    memcpy(h->id, p + 32, JOURNAL_ID);
    h->id[JOURNAL_ID - 1] = '\0';
    j->meta = malloc((size_t)meta + 1);
    if (!j->meta) return server_fail(err, KK_ENOMEM, "no memory for a journal");
    memcpy(j->meta, p + HEAD_BYTES, (size_t)meta);
    j->meta[meta] = '\0';
    h->meta = j->meta;
    h->meta_len = (size_t)meta;
    j->good = bytes + SEAL;
    return KK_OK;
}

static bool grow(void **list, size_t item, size_t need, size_t *cap) {
    size_t more = *cap ? *cap : 256;
    while (more < need) more *= 2;
    if (more == *cap) return true;
    void *grown = realloc(*list, more * item);
    if (!grown) return false;
    *list = grown;
    *cap = more;
    return true;
}

static bool add_turn(journal *j) {
    size_t cap = (size_t)j->cap_turns;
    if (!grow((void **)&j->turns, sizeof *j->turns, (size_t)j->n_turns + 1, &cap)) return false;
    j->cap_turns = (int32_t)cap;
    j->turns[j->n_turns++] = (int32_t)j->len;
    return true;
}

/* The record's tokens into the timeline; false: they are none, or there is no memory. */
static bool take_record(journal *j, const uint8_t *p, size_t n, int64_t at) {
    if (at < 0 || (uint64_t)at > j->len || j->len > MOST_TOKENS) return false;
    const size_t end = (size_t)at + n;
    if (!grow((void **)&j->tokens, sizeof *j->tokens, end + 1, &j->cap)) return false;
    for (size_t i = 0; i < n; i++) {
        const uint32_t id = (uint32_t)get(p + RECORD_BYTES + 4 * i, 4);
        if (id > INT32_MAX) return false;
        j->tokens[(size_t)at + i] = (int32_t)id;
    }
    while (j->n_turns > 0 && j->turns[j->n_turns - 1] > at) j->n_turns--;
    j->len = end;
    j->prompt = (int32_t)get(p + 20, 4);
    return !(get(p + 16, 4) & JOURNAL_ENDS_TURN) || add_turn(j);
}

static bool parse_record(journal *j, const uint8_t *bytes, size_t n) {
    const uint8_t *p = bytes + j->good;
    const size_t left = n - j->good;
    if (left < RECORD_BYTES + SEAL || get(p, 4) != RECORD_MAGIC) return false;
    const size_t tokens = (size_t)get(p + 4, 4);
    if (tokens > (left - RECORD_BYTES - SEAL) / 4) return false;
    const size_t size = RECORD_BYTES + 4 * tokens;
    const uint64_t before = get(bytes + j->good - SEAL, 8);
    if (get(p + size, 8) != seal_of(before, p, size)) return false;
    if (!take_record(j, p, tokens, (int64_t)get(p + 8, 8))) return false;
    j->good += size + SEAL;
    return true;
}

kk_status journal_parse(journal *out, const uint8_t *bytes, size_t n, kk_err *err) {
    *out = (journal){.good = 0};
    const kk_status st = parse_head(out, bytes, n, err);
    if (st != KK_OK) return st;
    while (out->good < n && parse_record(out, bytes, n)) {
    }
    return KK_OK;
}

void journal_free(journal *j) {
    free(j->meta);
    free(j->tokens);
    free(j->turns);
    *j = (journal){.good = 0};
}

static kk_status fail_errno(kk_err *err, const char *what, const char *path) {
    return server_fail(err, KK_EIO, "cannot %s '%.150s': %s", what, path, strerror(errno));
}

/* All of a file from an offset on. */
static kk_status read_bytes(const char *path, size_t from, uint8_t **out, size_t *n, kk_err *err) {
    struct stat st;
    *out = NULL;
    /* A FIFO of that name would not open until somebody writes to it. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        fail_errno(err, "open", path);
        if (fd >= 0) close(fd);
        return KK_EIO;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return server_fail(err, KK_EIO, "'%.150s' is not a regular file", path);
    }
    *n = (size_t)st.st_size > from ? (size_t)st.st_size - from : 0;
    *out = malloc(*n + 1);
    size_t done = 0;
    while (*out && done < *n) {
        const ssize_t got = pread(fd, *out + done, *n - done, (off_t)(from + done));
        if (got <= 0) break;
        done += (size_t)got;
    }
    const kk_status status = !*out ? server_fail(err, KK_ENOMEM, "no memory to read '%s'", path)
                             : done < *n ? fail_errno(err, "read", path)
                                         : KK_OK;
    close(fd);
    if (status != KK_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

kk_status journal_read(journal *out, const char *path, size_t *size, kk_err *err) {
    uint8_t *bytes;
    *out = (journal){.good = 0};
    kk_status st = read_bytes(path, 0, &bytes, size, err);
    if (st != KK_OK) return st;
    st = journal_parse(out, bytes, *size, err);
    if (st != KK_OK) journal_free(out);
    free(bytes);
    return st;
}

/* ---- writing ----------------------------------------------------------------------------- */

static bool write_all(int fd, const char *bytes, size_t n, off_t at) {
    while (n > 0) {
        const ssize_t done = pwrite(fd, bytes, n, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        bytes += done;
        at += done;
        n -= (size_t)done;
    }
    return true;
}

/* A new name is only there for certain when its folder was synced too. */
static bool sync_folder(const char *path) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash) return true;
    *slash = '\0';
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return synced;
}

static kk_status write_new(const char *path, const char *bytes, size_t n, kk_err *err) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return fail_errno(err, "create", path);
    const bool written = write_all(fd, bytes, n, 0) && fsync(fd) == 0 && sync_folder(path);
    const kk_status st = written ? KK_OK : fail_errno(err, "write", path);
    close(fd);
    if (!written) unlink(path);
    return st;
}

kk_status journal_create(const char *path, const journal_head *head, int64_t *size, kk_err *err) {
    textbuf t = {0};
    char id[JOURNAL_ID] = {0};
    snprintf(id, sizeof id, "%s", head->id);
    text_add(&t, magic, sizeof magic);
    put(&t, head->meta_len, 4);
    put(&t, head->kind, 4);
    put(&t, head->identity, 8);
    put(&t, (uint64_t)head->created, 8);
    text_add(&t, id, sizeof id);
    text_add(&t, head->meta, head->meta_len);
    if (!t.failed) put(&t, seal_of(0, t.bytes, t.len), 8);
    *size = (int64_t)t.len;
    const kk_status st = t.failed ? server_fail(err, KK_ENOMEM, "no memory for a journal")
                                  : write_new(path, t.bytes, t.len, err);
    text_free(&t);
    return st;
}

static void encode_turn(textbuf *t, const journal_turn *turn, uint64_t before) {
    put(t, RECORD_MAGIC, 4);
    put(t, turn->n, 4);
    put(t, (uint64_t)turn->at, 8);
    put(t, turn->flags, 4);
    put(t, (uint32_t)turn->prompt, 4);
    for (size_t i = 0; i < turn->n; i++) put(t, (uint32_t)turn->tokens[i], 4);
    if (!t->failed) put(t, seal_of(before, t->bytes, t->len), 8);
}

static kk_status append_to(int fd, const char *path, const journal_turn *turn, int64_t *size,
                           kk_err *err) {
    struct stat st;
    uint8_t last[SEAL];
    textbuf t = {0};
    if (fstat(fd, &st) != 0) return fail_errno(err, "read", path);
    if (st.st_size != *size)
        return server_fail(err, KK_EFORMAT, "'%.150s' has %lld bytes, not %lld: it was changed",
                           path, (long long)st.st_size, (long long)*size);
    if (pread(fd, last, SEAL, (off_t)(*size - SEAL)) != SEAL) return fail_errno(err, "read", path);
    encode_turn(&t, turn, get(last, 8));
    kk_status status = KK_OK;
    if (t.failed) {
        status = server_fail(err, KK_ENOMEM, "no memory for a journal");
    } else if (!write_all(fd, t.bytes, t.len, (off_t)*size) || fdatasync(fd) != 0) {
        status = fail_errno(err, "write", path);
        if (ftruncate(fd, (off_t)*size) != 0) status = fail_errno(err, "cut", path);
    } else {
        *size += (int64_t)t.len;
    }
    text_free(&t);
    return status;
}

kk_status journal_append(const char *path, const journal_turn *turn, int64_t *size, kk_err *err) {
    if (turn->n > MOST_TOKENS)
        return server_fail(err, KK_EINVAL, "%zu tokens of one turn", turn->n);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, "open", path);
    const kk_status st = append_to(fd, path, turn, size, err);
    close(fd);
    return st;
}

kk_status journal_cut(const char *path, size_t good, const char *tail_path, kk_err *err) {
    uint8_t *tail;
    size_t n;
    kk_status st = read_bytes(path, good, &tail, &n, err);
    if (st != KK_OK) return st;
    unlink(tail_path);
    st = write_new(tail_path, (const char *)tail, n, err);
    free(tail);
    if (st != KK_OK) return st;
    return truncate(path, (off_t)good) == 0 ? KK_OK : fail_errno(err, "cut", path);
}
