/* client.c - see client.h.
 *
 * A request is made in a repository of the client's own and pushed from there: the repository that
 * the user stands in is only asked which commit it is at. */
#define _GNU_SOURCE
#include "bridge/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "bridge/folder.h"
#include "bridge/sshsig.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"

enum { MOST_PATH = 4096, MOST_FILE = 64 << 20 };

struct kk_client {
    kk_client_opts opts;
    kk_bus bus;
    kk_words env;
    char folder[MOST_PATH], remote[MOST_PATH];
};

/* ---- opening ------------------------------------------------------------------------------- */

/* What git says here, in the user's own repository; the first line. */
static kk_status ask_here(const kk_client *c, const char *const *argv, char *out, size_t cap) {
    kk_process_result r = {.code = 0};
    const kk_process p = {.argv = argv,
                          .env = kk_words_argv(&c->env),
                          .timeout_s = 60,
                          .most_output = 1 << 20,
                          .stop = c->opts.stop};
    kk_status st = kk_process_run(&p, &r, NULL);
    if (st == KK_OK && (r.end != KK_ENDED_EXIT || r.code != 0)) st = KK_EIO;
    const size_t n = strcspn(kk_bytes_text(&r.out), "\n");
    if (st == KK_OK && n < cap) snprintf(out, cap, "%.*s", (int)n, kk_bytes_text(&r.out));
    if (st == KK_OK && n >= cap) st = KK_EIO;
    kk_process_release(&r);
    return st;
}

/* A remote by name is one of the repository here; anything else is what git takes. */
static kk_status find_remote(kk_client *c, kk_err *err) {
    const char *given = c->opts.remote;
    const char *const ask[] = {"git", "remote", "get-url", "--push", "--", given, NULL};
    char url[MOST_PATH];
    if (given[0] == '-' || strlen(given) >= sizeof url)
        return kk_fail(err, KK_EINVAL, "this is no remote: %.100s", given);
    const bool named = !strpbrk(given, "/:") && ask_here(c, ask, url, sizeof url) == KK_OK;
    if (!named) snprintf(url, sizeof url, "%s", given);
    char *whole = kk_dir_exists(url) ? realpath(url, NULL) : NULL;
    snprintf(c->remote, sizeof c->remote, "%s", whole ? whole : url);
    free(whole);
    return KK_OK;
}

static kk_status prepare(kk_client *c, kk_err *err) {
    KK_TRY(kk_git_environment(&c->env, c->opts.env, err));
    if (c->opts.remote) KK_TRY(find_remote(c, err));
    const int n = snprintf(c->folder, sizeof c->folder, "%s/client.git", c->opts.state);
    if (n < 0 || (size_t)n >= sizeof c->folder)
        return kk_fail(err, KK_EINVAL, "a path is too long");
    c->bus =
        (kk_bus){.git = {.folder = c->folder, .env = kk_words_argv(&c->env), .stop = c->opts.stop},
                 .remote = c->opts.remote ? c->remote : NULL,
                 .prefix = c->opts.prefix};
    return kk_git_init(&c->bus.git, err);
}

kk_status kk_client_open(kk_client **out, const kk_client_opts *opts, kk_err *err) {
    *out = NULL;
    kk_client *c = kk_zalloc(sizeof *c);
    if (!c) return kk_no_memory(err, "a client");
    c->opts = *opts;
    const kk_status st = prepare(c, err);
    if (st == KK_OK)
        *out = c;
    else
        kk_client_close(c);
    return st;
}

void kk_client_close(kk_client *c) {
    if (!c) return;
    kk_words_free(&c->env);
    kk_free(c);
}

/* ---- asking -------------------------------------------------------------------------------- */

/* A name that this checkout knows is stored as the commit that it is now.  One that it does not
 * know may be another's, unless it says where something is from here. */
static kk_status resolve(const kk_client *c, const char *given, char *out, size_t cap,
                         kk_err *err) {
    char name[240];
    const char *const ask[] = {"git", "rev-parse", "--verify", "-q", "--end-of-options",
                               name,  NULL};
    if (!kk_manifest_ref_ok(given))
        return kk_fail(err, KK_EINVAL, "this is no name of a commit: %.100s", given);
    snprintf(name, sizeof name, "%s^{commit}", given);
    if (ask_here(c, ask, out, cap) == KK_OK) return KK_OK;
    if (strcmp(given, "HEAD") == 0 || strpbrk(given, "@~^:"))
        return kk_fail(err, KK_EINVAL, "there is no commit here that is called %.100s", given);
    snprintf(out, cap, "%s", given);
    return KK_OK;
}

/* The commit here.  Results are about a commit, so there may be nothing that is not in one. */
static kk_status find_ref(const kk_client *c, const char *given, char *out, size_t cap,
                          kk_err *err) {
    char line[400];
    const char *const head[] = {"git", "rev-parse", "--verify", "-q", "HEAD^{commit}", NULL};
    const char *const dirty[] = {"git", "status", "--porcelain", "--untracked-files=no", NULL};
    if (given) return resolve(c, given, out, cap, err);
    if (ask_here(c, head, out, cap) != KK_OK)
        return kk_fail(err, KK_EINVAL,
                       "there is no commit here that the request could be about: name one");
    if (ask_here(c, dirty, line, sizeof line) == KK_OK && line[0])
        return kk_fail(err, KK_EINVAL,
                       "files here are not committed (%.80s), and results are about "
                       "a commit",
                       line);
    return KK_OK;
}

/* Seconds since 1970 and six random digits, as the original has it. */
static kk_status make_nonce(char *out, size_t cap, kk_err *err) {
    unsigned char b[3];
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    const bool whole = fd >= 0 && read(fd, b, sizeof b) == (ssize_t)sizeof b;
    if (fd >= 0) close(fd);
    if (!whole) return kk_fail(err, KK_EIO, "cannot read /dev/urandom");
    snprintf(out, cap, "%lld-%02x%02x%02x", (long long)time(NULL), b[0], b[1], b[2]);
    return KK_OK;
}

static kk_status fill(const kk_client *c, const kk_client_request *q, kk_manifest *m, kk_err *err) {
    const kk_preset *p;
    *m = (kk_manifest){.version = KK_MANIFEST_VERSION, .created = (int64_t)time(NULL)};
    KK_TRY(kk_manifest_preset(q->preset, &p, err));
    kk_manifest_defaults(m, p);
    for (size_t i = 0; i < q->n_params; i++) KK_TRY(kk_manifest_set(m, q->params[i], err));
    if (!kk_manifest_name_ok(q->requested_by))
        return kk_fail(err, KK_EINVAL, "this is no name of who asks: %.80s", q->requested_by);
    if (q->runner && !kk_manifest_name_ok(q->runner))
        return kk_fail(err, KK_EINVAL, "this is no name of a runner: %.80s", q->runner);
    if (!kk_manifest_suffix_ok(q->suffix ? q->suffix : ""))
        return kk_fail(err, KK_EINVAL, "a branch cannot end in %.80s", q->suffix);
    snprintf(m->requested_by, sizeof m->requested_by, "%s", q->requested_by);
    snprintf(m->runner, sizeof m->runner, "%s", q->runner ? q->runner : "");
    KK_TRY(find_ref(c, q->ref, m->ref, sizeof m->ref, err));
    return make_nonce(m->nonce, sizeof m->nonce, err);
}

kk_status kk_client_send(kk_client *c, const kk_client_request *q, kk_client_sent *out,
                         kk_err *err) {
    kk_manifest m;
    kk_bytes signature = {0};
    *out = (kk_client_sent){.branch = ""};
    KK_TRY(fill(c, q, &m, err));
    KK_TRY(kk_manifest_write(&m, &out->manifest, err));
    if (!kk_manifest_branch(&m, c->bus.prefix, q->suffix ? q->suffix : "", out->branch,
                            sizeof out->branch))
        return kk_fail(err, KK_EINVAL, "the name of the branch is too long");
    if (q->key)
        KK_TRY(kk_sshsig_sign(q->key, kk_words_argv(&c->env), &out->manifest, &signature, err));
    kk_bus to = c->bus;
    if (q->dry_run) to.remote = NULL;
    const kk_status st = kk_bus_request(&to, out->branch, &out->manifest, &signature, out->id, err);
    kk_bytes_free(&signature);
    return st;
}

void kk_client_sent_release(kk_client_sent *s) { kk_bytes_free(&s->manifest); }

/* ---- fetching ------------------------------------------------------------------------------ */

/* Where a file of a branch goes below the folder; NULL: nowhere.  A branch is written by others, so
 * nothing of its names is used but what is known to be harmless. */
static const char *place_of(const char *path, char *out, size_t cap) {
    const char *name, *under;
    if (strncmp(path, KK_BUS_LOGS, strlen(KK_BUS_LOGS)) == 0)
        name = path + strlen(KK_BUS_LOGS), under = "logs/";
    else if (strncmp(path, KK_BUS_RESULTS, strlen(KK_BUS_RESULTS)) == 0)
        name = path + strlen(KK_BUS_RESULTS), under = "results/";
    else if (strcmp(path, KK_BUS_SUMMARY) == 0)
        name = "summary.json", under = "";
    else
        return NULL;
    if (name[0] == '.' || !name[0] || strchr(name, '/')) return NULL;
    const int n = snprintf(out, cap, "%s%s", under, name);
    return n > 0 && (size_t)n < cap ? out : NULL;
}

static kk_status write_file(const kk_client *c, const kk_git_entry *e, const char *folder,
                            kk_err *err) {
    char place[KK_GIT_NAME + 16];
    kk_bytes data = {0};
    if (!place_of(e->path, place, sizeof place)) return KK_OK;
    char *path = kk_path_join(folder, place);
    kk_status st =
        path ? kk_git_read(&c->bus.git, e, MOST_FILE, &data, err) : kk_no_memory(err, "a path");
    if (st == KK_OK) st = kk_folder_put(path, kk_bytes_text(&data), data.n, err);
    kk_bytes_free(&data);
    kk_free(path);
    return st;
}

static kk_status write_files(const kk_client *c, const kk_bus_entry *e, const char *folder,
                             kk_err *err) {
    static const char *const folders[] = {"logs", "results"};
    for (size_t i = 0; i < 2; i++) {
        char *path = kk_path_join(folder, folders[i]);
        const kk_status st = path ? kk_folder_make(path, err) : kk_no_memory(err, "a path");
        kk_free(path);
        KK_TRY(st);
    }
    for (size_t i = 0; i < e->tree.n; i++) KK_TRY(write_file(c, &e->tree.entry[i], folder, err));
    return KK_OK;
}

static kk_fetch_outcome outcome_of(const json_t *summary) {
    const char *state = json_string_value(json_object_get(summary, "state"));
    const json_t *code = json_object_get(summary, "exit_code");
    return state && strcmp(state, "done") == 0 && json_is_integer(code) && !json_integer_value(code)
               ? KK_FETCH_DONE
               : KK_FETCH_FAILED;
}

/* refs/fetched and the list of shallow commits are one for all clients: one of them at a time. */
static int enter(const kk_client *c, kk_err *err) {
    char path[MOST_PATH + 16];
    snprintf(path, sizeof path, "%s/in-use", c->folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX) == 0) return fd;
    kk_fail(err, KK_EIO, "cannot lock %.150s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

/* One look at the branch. */
static kk_status look_alone(const kk_client *c, const char *branch, const char *folder,
                            kk_fetch_outcome *outcome, json_t **summary, kk_err *err) {
    kk_git_refs refs;
    kk_bus_entry e;
    kk_status st = kk_bus_find(&c->bus, branch, &refs, err);
    const bool there = st == KK_OK && refs.n > 0;
    kk_git_refs_free(&refs);
    *outcome = KK_FETCH_NONE;
    if (!there) return st;
    st = kk_bus_read(&c->bus, branch, &e, err);
    *outcome = KK_FETCH_RUNNING;
    if (st == KK_OK && e.stage == KK_BUS_FINISHED) {
        *outcome = outcome_of(e.summary);
        *summary = json_incref(e.summary);
        if (folder) st = write_files(c, &e, folder, err);
    }
    kk_bus_entry_release(&e);
    return st;
}

static kk_status look(const kk_client *c, const char *branch, const char *folder,
                      kk_fetch_outcome *outcome, json_t **summary, kk_err *err) {
    const int lock = enter(c, err);
    if (lock < 0) return KK_EIO;
    const kk_status st = look_alone(c, branch, folder, outcome, summary, err);
    close(lock);
    return st;
}

static bool stopped(const kk_client *c) {
    return c->opts.stop.asked && c->opts.stop.asked(c->opts.stop.user);
}

kk_status kk_client_fetch(kk_client *c, const char *branch, double wait_s, double interval_s,
                          const char *folder, kk_fetch_outcome *outcome, json_t **summary,
                          kk_err *err) {
    bool reached = false; /* once */
    *summary = NULL;
    for (const double start = kk_now();;) {
        const kk_status st = look(c, branch, folder, outcome, summary, err);
        const double left = wait_s - (kk_now() - start);
        /* A bus that is not reached while we wait is asked again. */
        if (st != KK_EIO || !reached || left <= 0 || *summary) KK_TRY(st);
        reached = true;
        if (st == KK_OK && (*outcome != KK_FETCH_RUNNING || left <= 0)) return KK_OK;
        const double pause = left < interval_s ? left : interval_s;
        for (const double from = kk_now(); kk_now() - from < pause;) {
            if (stopped(c)) return kk_fail(err, KK_ESTOPPED, "stopped");
            usleep(20000);
        }
    }
}

/* ---- listing ------------------------------------------------------------------------------- */

static json_t *describe(const kk_bus_entry *e) {
    kk_manifest m;
    json_t *o = json_pack("{s:s, s:s, s:s}", "branch", e->branch, "stage",
                          kk_bus_stage_name(e->stage), "commit", e->tip);
    if (e->claim) json_object_set(o, "claim", e->claim);
    if (e->summary) json_object_set(o, "summary", e->summary);
    if (e->stage == KK_BUS_PENDING &&
        kk_manifest_parse(&m, kk_bytes_text(&e->manifest), e->manifest.n, NULL) == KK_OK)
        json_object_set_new(o, "requested_by", json_string(m.requested_by));
    return o;
}

kk_status kk_client_status(kk_client *c, json_t **out, kk_err *err) {
    kk_git_refs refs;
    *out = json_array();
    const int lock = enter(c, err);
    if (lock < 0) return KK_EIO;
    kk_status st = kk_bus_list(&c->bus, &refs, err);
    for (size_t i = 0; i < refs.n && st == KK_OK; i++) {
        const char *branch = kk_bus_branch(&c->bus, refs.ref[i].name);
        kk_bus_entry e;
        if (!*branch) continue;
        const kk_status read = kk_bus_read(&c->bus, branch, &e, err);
        if (read == KK_OK) json_array_append_new(*out, describe(&e));
        kk_bus_entry_release(&e);
        if (read != KK_OK && read != KK_EIO) st = read; /* KK_EIO: it has gone meanwhile */
        if (stopped(c)) st = kk_fail(err, KK_ESTOPPED, "stopped");
    }
    kk_git_refs_free(&refs);
    close(lock);
    return st;
}

kk_status kk_client_probe(kk_client *c, kk_err *err) {
    kk_git_refs refs;
    char id[KK_GIT_ID + 1], to[KK_GIT_NAME + KK_GIT_ID];
    kk_status st = kk_bus_list(&c->bus, &refs, err);
    kk_git_refs_free(&refs);
    KK_TRY(st);
    KK_TRY(kk_git_commit(&c->bus.git, "", "Probe", NULL, 0, id, err));
    snprintf(to, sizeof to, "%s:refs/heads/%.100sprobe", id, c->bus.prefix);
    const char *const push[] = {"push", "-q",      "--dry-run", "--no-verify",
                                "--",   c->remote, to,          NULL};
    return kk_git_run(&c->bus.git, push, NULL, err);
}
