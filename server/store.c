/* store.c - see store.h. */
#define _GNU_SOURCE
#include "server/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "server/history.h"
#include "server/server.h"

enum { PATH = 4096 };

struct store {
    store_opts opts;
    char folder[PATH - 256];
    uint64_t identity;
    int lock_fd;
    pthread_mutex_t lock; /* of all below */
    catalog *catalog;
    char (*held)[JOURNAL_ID];
    size_t n_held, cap_held;
    store_counts counts;
};

static void say(const store *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say(const store *s, const char *fmt, ...) {
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (s->opts.say) s->opts.say(s->opts.user, line);
}

static void path_of(const store *s, const char *name, const char *end, char out[PATH]) {
    snprintf(out, PATH, "%s/%s%s", s->folder, name, end);
}

static int64_t size_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

static void bump(store *s, int64_t *counter) {
    pthread_mutex_lock(&s->lock);
    ++*counter;
    pthread_mutex_unlock(&s->lock);
}

bool store_draw_id(char id[JOURNAL_ID], const char *prefix) {
    unsigned char drawn[16];
    if (getentropy(drawn, sizeof drawn) != 0) return false;
    int at = snprintf(id, JOURNAL_ID, "%.6s", prefix);
    for (size_t i = 0; i < sizeof drawn; i++)
        at += snprintf(id + at, JOURNAL_ID - (size_t)at, "%02x", drawn[i]);
    return true;
}

/* ---- what is damaged --------------------------------------------------------------------- */

/* A name beside it that is free. */
static void aside_of(const char *path, char out[PATH]) {
    snprintf(out, PATH, "%.4000s.damaged", path);
    for (int i = 1; access(out, F_OK) == 0 && i < 1000; i++)
        snprintf(out, PATH, "%.4000s.%d.damaged", path, i);
}

static void set_aside(store *s, const char *path, const char *why) {
    char aside[PATH];
    aside_of(path, aside);
    const bool moved = rename(path, aside) == 0;
    say(s, "state: %.200s: %.160s; %s", path, why,
        moved ? "set aside as *.damaged" : "it cannot be set aside");
    bump(s, &s->counts.damaged);
}

/* Reads a journal; a tail that is damaged is cut off and set aside, a head that is takes the whole
 * file with it. */
static kk_status read_journal(store *s, const char *id, journal *out, kk_err *err) {
    char path[PATH], aside[PATH];
    size_t size;
    path_of(s, id, ".journal", path);
    kk_status st = journal_read(out, path, &size, err);
    if (st == KK_OK && strcmp(out->head.id, id) != 0) {
        journal_free(out);
        st = server_fail(err, KK_EFORMAT, "it is of another session");
    }
    if (st == KK_EFORMAT) set_aside(s, path, err ? err->msg : "damaged");
    if (st != KK_OK || out->good == size) return st;
    aside_of(path, aside);
    say(s, "state: %.200s: %zu bytes after the last whole turn are damaged; set aside", path,
        size - out->good);
    bump(s, &s->counts.damaged);
    st = journal_cut(path, out->good, aside, err);
    if (st != KK_OK) journal_free(out);
    return st;
}

/* ---- the index --------------------------------------------------------------------------- */

/* Hashes of the prefixes of more than `after` of these tokens, released with free(). */
static uint64_t *prefix_hashes(const int32_t *tokens, size_t n, int64_t after, size_t *count) {
    const size_t skip = (size_t)(after / CATALOG_BLOCK), blocks = n / CATALOG_BLOCK;
    uint64_t *hash = calloc(blocks + 1, sizeof *hash), chain = HISTORY_START;
    *count = 0;
    for (size_t i = 0; hash && i < blocks; i++) {
        chain = history_chain(chain, tokens + i * CATALOG_BLOCK, CATALOG_BLOCK);
        if (i >= skip) hash[(*count)++] = chain;
    }
    return hash;
}

/* The caller holds the lock. */
static kk_status put_prefixes(store *s, const catalog_row *row, const int32_t *tokens,
                              int64_t after, kk_err *err) {
    size_t n;
    if (row->kind != STORE_CONVERSATION) return KK_OK;
    uint64_t *hash = prefix_hashes(tokens, (size_t)row->tokens, after, &n);
    if (!hash) return server_fail(err, KK_ENOMEM, "no memory for the index");
    const kk_status st = catalog_prefixes(s->catalog, row->id, after, hash, n, err);
    free(hash);
    return st;
}

/* A row made of a journal and what lies beside it. */
static catalog_row row_of(store *s, const journal *j, int64_t used) {
    char kv[PATH];
    kk_saved_info saved;
    catalog_row r = {.kind = j->head.kind,
                     .created = j->head.created,
                     .used = used,
                     .tokens = (int64_t)j->len,
                     .chain = history_chain(HISTORY_START, j->tokens, j->len),
                     .turns = j->n_turns,
                     .prompt = j->prompt,
                     .journal_bytes = (int64_t)j->good,
                     .identity = j->head.identity,
                     .meta = j->meta};
    memcpy(r.id, j->head.id, sizeof r.id);
    path_of(s, r.id, ".kv", kv);
    if (kk_saved_inspect(kv, &saved, NULL) == KK_OK) {
        r.kv_tokens = saved.tokens < r.tokens ? saved.tokens : r.tokens;
        r.kv_bytes = saved.bytes;
    }
    return r;
}

static kk_status index_again(store *s, const char *id, kk_err *err) {
    journal j;
    char path[PATH];
    struct stat st;
    path_of(s, id, ".journal", path);
    const int64_t used = stat(path, &st) == 0 ? (int64_t)st.st_mtime : 0;
    kk_status status = read_journal(s, id, &j, err);
    if (status != KK_OK) {
        if (status != KK_EFORMAT) say(s, "state: %s", err->msg); /* else it was set aside */
        return status;
    }
    catalog_row row = row_of(s, &j, used);
    pthread_mutex_lock(&s->lock);
    status = catalog_put(s->catalog, &row, err);
    if (status == KK_OK) status = put_prefixes(s, &row, j.tokens, 0, err);
    pthread_mutex_unlock(&s->lock);
    if (status != KK_OK) say(s, "state: %s", err->msg);
    journal_free(&j);
    return status;
}

/* A journal that the index does not know as it is was written before a crash. */
static void check_file(store *s, const char *name) {
    char id[JOURNAL_ID], path[PATH];
    catalog_row row;
    kk_err err; /* was said */
    const char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".journal") != 0 || (size_t)(dot - name) >= sizeof id) return;
    snprintf(id, sizeof id, "%.*s", (int)(dot - name), name);
    path_of(s, name, "", path);
    const bool known = catalog_get(s->catalog, id, &row);
    if (!known || row.journal_bytes != size_of(path)) index_again(s, id, &err);
    catalog_row_free(&row);
}

typedef struct {
    store *store;
    char (*gone)[JOURNAL_ID]; /* rows without a journal */
    size_t n, cap;
} lost;

static bool find_lost(void *user, const catalog_row *row) {
    lost *l = user;
    char path[PATH];
    path_of(l->store, row->id, ".journal", path);
    if (access(path, F_OK) == 0) return true;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        void *more = realloc(l->gone, l->cap * sizeof *l->gone);
        if (!more) return false;
        l->gone = more;
    }
    memcpy(l->gone[l->n++], row->id, JOURNAL_ID);
    return true;
}

/* We hold the folder: what is called so was left by a server that was killed while it wrote, or
 * while it deleted. */
static void drop_leftover(store *s, const char *name) {
    static const char temp[] = ".kakeya-tmp", kv[] = ".kv";
    char path[PATH], own[JOURNAL_ID], whole[PATH], aside[PATH];
    const size_t n = strlen(name);
    path_of(s, name, "", path);
    if (n > sizeof temp - 1 && strcmp(name + n - (sizeof temp - 1), temp) == 0) unlink(path);
    if (n <= sizeof kv - 1 || n - (sizeof kv - 1) >= sizeof own) return;
    if (strcmp(name + n - (sizeof kv - 1), kv) != 0) return;
    snprintf(own, sizeof own, "%.*s", (int)(n - (sizeof kv - 1)), name);
    path_of(s, own, ".journal", whole);
    path_of(s, own, ".journal.damaged", aside); /* what belongs to one is left to be looked at */
    if (access(whole, F_OK) != 0 && access(aside, F_OK) != 0) unlink(path);
}

static kk_status compare_folder(store *s, kk_err *err) {
    lost l = {.store = s};
    DIR *d = opendir(s->folder);
    if (!d)
        return server_fail(err, KK_EIO, "cannot read the folder '%.150s': %s", s->folder,
                           strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) check_file(s, e->d_name);
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) drop_leftover(s, e->d_name);
    closedir(d);
    const kk_status st = catalog_each(s->catalog, find_lost, &l, err);
    for (size_t i = 0; i < l.n; i++) {
        say(s, "state: %s has no journal any more: it is forgotten", l.gone[i]);
        bump(s, &s->counts.damaged);
        catalog_remove(s->catalog, l.gone[i], NULL);
    }
    free(l.gone);
    return st;
}

/* ---- life -------------------------------------------------------------------------------- */

static kk_status lock_folder(store *s, kk_err *err) {
    char path[PATH];
    if (mkdir(s->folder, 0700) != 0 && errno != EEXIST)
        return server_fail(err, KK_EIO, "cannot make the folder '%.150s': %s", s->folder,
                           strerror(errno));
    path_of(s, "lock", "", path);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return server_fail(err, KK_EIO, "cannot open '%.150s': %s", path, strerror(errno));
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0) return KK_OK;
    return server_fail(err, KK_EBUSY, "another server uses the folder '%.150s'", s->folder);
}

static kk_status open_index(store *s, kk_err *err) {
    char path[PATH], side[PATH];
    path_of(s, "index.sqlite", "", path);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* SQLite's own would be 0644 */
    if (fd >= 0) (void)!fchmod(fd, 0600);
    if (fd >= 0) close(fd);
    kk_status st = catalog_open(&s->catalog, path, err);
    if (st != KK_EFORMAT) return st;
    set_aside(s, path, err ? err->msg : "damaged");
    path_of(s, "index.sqlite", "-wal", side);
    unlink(side);
    path_of(s, "index.sqlite", "-shm", side);
    unlink(side);
    return catalog_open(&s->catalog, path, err);
}

kk_status store_claim(store **out, const char *folder, kk_err *err) {
    store *s = *out = calloc(1, sizeof *s);
    if (!s) return server_fail(err, KK_ENOMEM, "no memory for the state folder");
    s->lock_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    const int n = snprintf(s->folder, sizeof s->folder, "%s", folder);
    const kk_status st = (size_t)n < sizeof s->folder
                             ? lock_folder(s, err)
                             : server_fail(err, KK_EINVAL,
                                           "the name of the state folder has %d "
                                           "bytes: %zu at most",
                                           n, sizeof s->folder - 1);
    if (st == KK_OK) return KK_OK;
    store_close(s);
    *out = NULL;
    return st;
}

kk_status store_open(store *s, const store_opts *opts, kk_err *err) {
    kk_fingerprints prints;
    s->opts = *opts;
    kk_engine_fingerprints(opts->engine, &prints);
    s->identity = prints.identity;
    kk_status st = open_index(s, err);
    if (st == KK_OK) st = compare_folder(s, err);
    return st;
}

void store_close(store *s) {
    if (!s) return;
    catalog_close(s->catalog);
    if (s->lock_fd >= 0) close(s->lock_fd);
    pthread_mutex_destroy(&s->lock);
    free(s->held);
    free(s);
}

typedef struct {
    store *store;
    store_kind kind;
    catalog_each_fn each;
    void *user;
    int64_t others;
} choice;

static bool choose(void *user, const catalog_row *row) {
    choice *c = user;
    if (row->kind != (uint32_t)c->kind) return true;
    if (row->identity == c->store->identity) return c->each(c->user, row);
    c->others++;
    return true;
}

kk_status store_each(store *s, store_kind kind, catalog_each_fn each, void *user, kk_err *err) {
    choice c = {s, kind, each, user, 0};
    pthread_mutex_lock(&s->lock);
    const kk_status st = catalog_each(s->catalog, choose, &c, err);
    pthread_mutex_unlock(&s->lock);
    if (c.others) say(s, "state: %lld of another model are left alone", (long long)c.others);
    return st;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* Of a conversation nobody else hears: its client has the answer all the same. */
static kk_status unwritten(store *s, const char *id, kk_status st, const kk_err *err) {
    say(s, "state: %s is not stored: %s", id, err->msg);
    bump(s, &s->counts.failed);
    return st;
}

kk_status store_add(store *s, store_kind kind, const char *id, const char *meta, kk_err *err) {
    char path[PATH];
    const int64_t now = (int64_t)time(NULL);
    journal_head head = {.kind = (uint32_t)kind,
                         .identity = s->identity,
                         .created = now,
                         .meta = meta,
                         .meta_len = strlen(meta)};
    catalog_row row = {.kind = (uint32_t)kind,
                       .created = now,
                       .used = now,
                       .chain = HISTORY_START,
                       .identity = s->identity};
    snprintf(head.id, sizeof head.id, "%s", id);
    memcpy(row.id, head.id, sizeof row.id);
    path_of(s, id, ".journal", path);
    kk_status st = journal_create(path, &head, &row.journal_bytes, err);
    if (st != KK_OK) return unwritten(s, id, st, err);
    row.meta = (char *)meta;
    pthread_mutex_lock(&s->lock);
    st = catalog_put(s->catalog, &row, err);
    pthread_mutex_unlock(&s->lock);
    if (st == KK_OK) return KK_OK;
    unlink(path);
    return unwritten(s, id, st, err);
}

/* What the journal has now is true whether the index takes it or not: the next start looks. */
static void note_turn(store *s, const catalog_row *row, const journal_turn *turn,
                      const int32_t *all) {
    kk_err err;
    pthread_mutex_lock(&s->lock);
    kk_status st = catalog_put(s->catalog, row, &err);
    if (st == KK_OK) st = put_prefixes(s, row, all, turn->at, &err);
    s->counts.turns++;
    s->counts.failed += st != KK_OK;
    pthread_mutex_unlock(&s->lock);
    if (st != KK_OK) say(s, "state: %s: %s", row->id, err.msg);
}

/* Appends to the journal that the row is of, at the end that the row knows. */
static kk_status append_turn(store *s, const char *id, const journal_turn *turn, catalog_row *row,
                             kk_err *err) {
    char path[PATH];
    pthread_mutex_lock(&s->lock);
    const bool known = catalog_get(s->catalog, id, row);
    pthread_mutex_unlock(&s->lock);
    if (!known) return server_fail(err, KK_EIO, "the index has no '%.60s'", id);
    if (row->tokens < turn->at) /* what came behind them would be read as damaged */
        return server_fail(err, KK_EFORMAT, "'%.60s' has %lld tokens, not %lld", id,
                           (long long)row->tokens, (long long)turn->at);
    path_of(s, id, ".journal", path);
    return journal_append(path, turn, &row->journal_bytes, err);
}

kk_status store_turn(store *s, const char *id, const journal_turn *turn, const int32_t *all,
                     kk_err *err) {
    catalog_row row;
    kk_status st = append_turn(s, id, turn, &row, err);
    if (st == KK_EFORMAT) { /* the index missed a turn, or an end was cut off */
        catalog_row_free(&row);
        st = index_again(s, id, err);
        if (st == KK_OK) st = append_turn(s, id, turn, &row, err);
    }
    if (st == KK_OK) {
        row.tokens = turn->at + (int64_t)turn->n;
        row.chain = history_chain(HISTORY_START, all, (size_t)row.tokens);
        if (turn->flags & JOURNAL_ENDS_TURN) row.turns++;
        row.prompt = turn->prompt;
        row.used = (int64_t)time(NULL);
        if (row.kv_tokens > turn->at) row.kv_tokens = turn->at;
        note_turn(s, &row, turn, all);
    }
    catalog_row_free(&row);
    return st == KK_OK ? st : unwritten(s, id, st, err);
}

/* ---- the limit --------------------------------------------------------------------------- */

static void remove_files(const store *s, const char *id) {
    char path[PATH];
    path_of(s, id, ".journal", path);
    unlink(path);
    path_of(s, id, ".kv", path);
    unlink(path);
}

/* The caller holds the lock. */
static bool is_held(const store *s, const char *id) {
    for (size_t i = 0; i < s->n_held; i++)
        if (strcmp(s->held[i], id) == 0) return true;
    return false;
}

/* The caller holds the lock. */
static void hold(store *s, const char *id, bool held) {
    for (size_t i = 0; i < s->n_held; i++)
        if (strcmp(s->held[i], id) == 0) memcpy(s->held[i], s->held[--s->n_held], JOURNAL_ID);
    if (held && s->n_held == s->cap_held) {
        const size_t cap = s->cap_held ? 2 * s->cap_held : 64;
        void *more = realloc(s->held, cap * sizeof *s->held);
        if (more) {
            s->held = more;
            s->cap_held = cap;
        }
    }
    if (held && s->n_held < s->cap_held) snprintf(s->held[s->n_held++], JOURNAL_ID, "%s", id);
}

void store_hold(store *s, const char *id, bool held) {
    pthread_mutex_lock(&s->lock);
    hold(s, id, held);
    pthread_mutex_unlock(&s->lock);
}

typedef struct {
    store *store;
    char id[JOURNAL_ID];
} victim;

static bool pick(void *user, const catalog_row *row) {
    victim *v = user;
    if (is_held(v->store, row->id)) return true;
    memcpy(v->id, row->id, sizeof v->id);
    return false;
}

static void keep_within_limit(store *s) {
    for (;;) {
        catalog_sums sums;
        victim v = {.store = s};
        pthread_mutex_lock(&s->lock);
        catalog_sum(s->catalog, &sums);
        if (s->opts.limit > 0 && sums.bytes > s->opts.limit)
            catalog_oldest(s->catalog, STORE_CONVERSATION, pick, &v, NULL);
        /* Under the lock: nobody takes it in between.  What the index keeps is tried later. */
        if (v.id[0] && catalog_remove(s->catalog, v.id, NULL) != KK_OK) v.id[0] = '\0';
        s->counts.deleted += v.id[0] != '\0';
        pthread_mutex_unlock(&s->lock);
        if (!v.id[0]) return;
        say(s, "state: over %lld bytes: the conversation %s, not used for longest, is deleted",
            (long long)s->opts.limit, v.id);
        remove_files(s, v.id);
    }
}

/* Whether the file has all of it already: turns that part from it shorten kv_tokens. */
static bool is_saved(store *s, const char *id, int64_t tokens) {
    catalog_row row;
    pthread_mutex_lock(&s->lock);
    const bool saved = catalog_get(s->catalog, id, &row) && row.kv_tokens == tokens;
    pthread_mutex_unlock(&s->lock);
    catalog_row_free(&row);
    return saved;
}

kk_status store_save(store *s, const char *id, kk_session *session, kk_err *err) {
    char path[PATH];
    catalog_row row;
    if (is_saved(s, id, kk_session_len(session))) return KK_OK;
    path_of(s, id, ".kv", path);
    kk_status st = kk_session_save(session, path, err);
    pthread_mutex_lock(&s->lock);
    const bool known = catalog_get(s->catalog, id, &row);
    if (st == KK_OK && known) {
        row.kv_tokens = kk_session_len(session);
        row.kv_bytes = size_of(path);
        st = catalog_put(s->catalog, &row, err);
    }
    s->counts.saved += st == KK_OK;
    s->counts.failed += st != KK_OK;
    pthread_mutex_unlock(&s->lock);
    catalog_row_free(&row);
    if (st != KK_OK) say(s, "state: the K/V of %s was not saved: %s", id, err ? err->msg : "");
    keep_within_limit(s);
    return st;
}

void store_remove(store *s, const char *id) {
    pthread_mutex_lock(&s->lock);
    catalog_remove(s->catalog, id, NULL);
    pthread_mutex_unlock(&s->lock);
    remove_files(s, id);
}

/* ---- reading ----------------------------------------------------------------------------- */

kk_status store_read(store *s, const char *id, journal *out, kk_err *err) {
    return read_journal(s, id, out, err);
}

static size_t common(const kk_session *k, const journal *j) {
    const int32_t *held = kk_session_tokens(k);
    const size_t len = (size_t)kk_session_len(k), most = len < j->len ? len : j->len;
    size_t i = 0;
    while (i < most && held[i] == j->tokens[i]) i++;
    return i;
}

/* Whether the K/V is of this history; a session's only grows, so its K/V cannot part from it. */
static bool fits(store *s, const char *path, store_loaded *l) {
    const size_t same = common(l->session, &l->journal);
    const size_t len = (size_t)kk_session_len(l->session);
    if (same == len) return true;
    if (same < l->journal.len && l->journal.head.kind == STORE_SESSION) {
        set_aside(s, path, "it holds other tokens than the journal");
        return false;
    }
    return kk_session_rewind(l->session, (int32_t)same, &l->evaluated, NULL) == KK_OK;
}

/* The index does not say any more that the K/V is saved. */
static void forget_kv(store *s, const char *id) {
    char path[PATH];
    catalog_row row;
    path_of(s, id, ".kv", path);
    pthread_mutex_lock(&s->lock);
    if (catalog_get(s->catalog, id, &row) && row.kv_tokens > 0) {
        const int64_t bytes = size_of(path);
        row.kv_tokens = 0;
        row.kv_bytes = bytes > 0 ? bytes : 0;
        catalog_put(s->catalog, &row, NULL);
    }
    pthread_mutex_unlock(&s->lock);
    catalog_row_free(&row);
}

/* Whether a loaded session keeps its rows as one of these options does: what loads one keeps them
 * as they were saved. */
static bool keeps_alike(store *s, const kk_session *loaded, const kk_session_opts *opts) {
    kk_session *probe;
    kk_session_opts is, want;
    if (kk_session_new(&probe, s->opts.engine, opts, NULL) != KK_OK) return true;
    kk_session_options(probe, &want);
    kk_session_free(probe);
    kk_session_options(loaded, &is);
    if (is.kv_format != want.kv_format || is.kv_sliding != want.kv_sliding ||
        is.kv_full != want.kv_full)
        return false;
    const bool all = is.kv_sliding == KK_KEEP_ALL && is.kv_full == KK_KEEP_ALL;
    return all || (is.sink == want.sink && is.window == want.window && is.chunk == want.chunk &&
                   is.latents == want.latents);
}

static kk_status load_kv(store *s, const char *id, const kk_session_opts *opts, store_loaded *l,
                         kk_err *err) {
    char path[PATH];
    kk_err why;
    path_of(s, id, ".kv", path);
    if (access(path, F_OK) != 0) {
        forget_kv(s, id);
        return KK_OK;
    }
    const kk_status st = kk_session_load(&l->session, s->opts.engine, path, opts, NULL, &why);
    if (st == KK_ENOMEM) return server_fail(err, st, "%s", why.msg);
    if (st == KK_EFORMAT) set_aside(s, path, why.msg);
    if (st != KK_OK && st != KK_EFORMAT) say(s, "state: %s: %.200s; it is read again", id, why.msg);
    if (st == KK_OK && kk_session_other_weights(l->session)) {
        say(s, "state: the K/V of %s was made with other weights; it is read again", id);
    } else if (st == KK_OK && !keeps_alike(s, l->session, opts)) {
        say(s, "state: the K/V of %s was kept in another way; it is read again", id);
    } else if (st == KK_OK && fits(s, path, l)) {
        bump(s, &s->counts.loaded);
        return KK_OK;
    }
    kk_session_free(l->session);
    l->session = NULL;
    forget_kv(s, id);
    return KK_OK;
}

kk_status store_load(store *s, const char *id, const kk_session_opts *opts, store_loaded *out,
                     kk_err *err) {
    *out = (store_loaded){.session = NULL};
    kk_status st = read_journal(s, id, &out->journal, err);
    if (st != KK_OK) return st;
    st = load_kv(s, id, opts, out, err);
    if (st == KK_OK && !out->session) st = kk_session_new(&out->session, s->opts.engine, opts, err);
    if (st != KK_OK) journal_free(&out->journal);
    return st;
}

/* ---- finding ----------------------------------------------------------------------------- */

typedef struct {
    store *store;
    char id[JOURNAL_ID];
    int64_t n, kv; /* of the best */
    int64_t at;    /* the length that is asked about */
} search;

static bool consider(void *user, const catalog_row *row) {
    search *f = user;
    const int64_t kv = row->kv_tokens < f->at ? row->kv_tokens : f->at;
    if (row->identity != f->store->identity || is_held(f->store, row->id)) return true;
    if (f->n > 0 && kv <= f->kv) return false;
    f->n = f->at;
    f->kv = kv;
    memcpy(f->id, row->id, sizeof f->id);
    return false;
}

int64_t store_longest(store *s, const int32_t *tokens, size_t n, char id[JOURNAL_ID], int64_t *kv) {
    size_t count;
    search f = {.store = s};
    uint64_t *hash = prefix_hashes(tokens, n, 0, &count);
    pthread_mutex_lock(&s->lock);
    for (size_t i = count; hash && i > 0 && (int64_t)i * CATALOG_BLOCK > f.kv; i--) {
        f.at = (int64_t)i * CATALOG_BLOCK;
        if (catalog_match(s->catalog, hash[i - 1], f.at, consider, &f, NULL) != KK_OK) break;
    }
    if (f.n > 0) hold(s, f.id, true);
    pthread_mutex_unlock(&s->lock);
    free(hash);
    memcpy(id, f.id, JOURNAL_ID);
    *kv = f.kv;
    return f.n;
}

void store_count(store *s, store_counts *out) {
    catalog_sums sums;
    pthread_mutex_lock(&s->lock);
    catalog_sum(s->catalog, &sums);
    *out = s->counts;
    pthread_mutex_unlock(&s->lock);
    out->sessions = sums.count[STORE_SESSION];
    out->conversations = sums.count[STORE_CONVERSATION];
    out->bytes = sums.bytes;
}
