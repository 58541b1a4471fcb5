/* runner.c - see runner.h.
 *
 * Whatever moment a runner is killed at, the next one knows what to do:
 *   before the claim    the request is pending, and is taken again; the nonce file names the same
 *                       commit, so it counts as the same use, until the claim is made
 *   after the claim     the claim names this runner, which does not carry it out: it is reported as
 *                       interrupted.  It is not run again, because it may be what ended the runner
 *   before the push     the result is at refs/unsent, and is pushed first
 * A claim of another runner is given up when it has not moved for longer than it may take, counted
 * from when this runner first saw it, by this machine's clock alone. */
#define _GNU_SOURCE
#include "bridge/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bridge/folder.h"
#include "bridge/sshsig.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"

enum { MOST_PATH = 4096, MOST_KNOWN = 4096, PUSH_TRIES = 3, ID_BYTES = 8 };

typedef struct {
    char tip[KK_GIT_ID + 1];
} known_tip;

struct kk_runner {
    kk_runner_opts opts;
    kk_bus bus;
    kk_words env; /* of git */
    char folder[MOST_PATH], id[2 * ID_BYTES + 1];
    int lock;
    known_tip *finished; /* tips that need not be looked at again */
    size_t n_finished, finished_cap;
};

static void say(const kk_runner *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const kk_runner *r, const char *fmt, ...) {
    char line[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    kk_plain(line, line, sizeof line);
    if (r->opts.say) r->opts.say(r->opts.user, line);
}

static bool asked_to_stop(const kk_runner *r) {
    return r->opts.stop.asked && r->opts.stop.asked(r->opts.stop.user);
}

static void recall_finished(kk_runner *r);

/* ---- opening ------------------------------------------------------------------------------- */

/* A path in the state folder. */
typedef struct {
    char text[MOST_PATH + 512];
} state_path;
static state_path path_in(const kk_runner *r, const char *name) {
    state_path p;
    snprintf(p.text, sizeof p.text, "%s/%.400s", r->opts.state, name);
    return p;
}

static kk_status take_lock(kk_runner *r, kk_err *err) {
    const state_path path = path_in(r, "lock");
    r->lock = open(path.text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r->lock < 0)
        return kk_fail(err, KK_EIO, "cannot write %.150s: %s", path.text, strerror(errno));
    if (flock(r->lock, LOCK_EX | LOCK_NB) == 0) return KK_OK;
    return kk_fail(err, KK_EBUSY, "another runner works in %.150s", r->opts.state);
}

/* Random digits that tell runners of the same name apart. */
static kk_status find_id(kk_runner *r, kk_err *err) {
    const state_path path = path_in(r, "id");
    unsigned char bytes[ID_BYTES];
    char *text;
    size_t n;
    if (kk_file_read(path.text, 64, &text, &n, NULL) == KK_OK) {
        const bool whole = n == 2 * ID_BYTES && strspn(text, "0123456789abcdef") == n;
        if (whole) memcpy(r->id, text, n + 1);
        kk_free(text);
        if (whole) return KK_OK;
    }
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    const bool read_all = fd >= 0 && read(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes;
    if (fd >= 0) close(fd);
    if (!read_all) return kk_fail(err, KK_EIO, "cannot read /dev/urandom");
    for (size_t i = 0; i < ID_BYTES; i++) snprintf(r->id + 2 * i, 3, "%02x", bytes[i]);
    return kk_folder_put(path.text, r->id, strlen(r->id), err);
}

/* The repository is a cache: one that has grown is made anew, unless it holds results to be sent.
 * */
static kk_status trim_repository(const kk_runner *r, kk_err *err) {
    const char *const list[] = {"for-each-ref", "refs/unsent", NULL};
    const char *const drop[] = {"update-ref", "-d", "refs/fetched", NULL};
    const char *const pack[] = {"gc", "-q", "--prune=now", NULL};
    kk_bytes kept = {0};
    if (kk_folder_bytes(r->folder) < r->opts.config->disk_bytes / 2) return KK_OK;
    const bool keeps = kk_git_run(&r->bus.git, list, &kept, NULL) == KK_OK && kept.n > 0;
    kk_bytes_free(&kept);
    if (keeps) {
        kk_git_run(&r->bus.git, drop, NULL, NULL);
        return kk_git_run(&r->bus.git, pack, NULL, err);
    }
    KK_TRY(kk_folder_remove(r->folder, err));
    return kk_git_init(&r->bus.git, err);
}

static kk_status prepare(kk_runner *r, kk_err *err) {
    static const char *const folders[] = {"nonces", "seen", "work"};
    KK_TRY(kk_folder_make(r->opts.state, err));
    KK_TRY(take_lock(r, err));
    KK_TRY(kk_folder_remove(path_in(r, "work").text, err)); /* of one that was killed */
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        KK_TRY(kk_folder_make(path_in(r, folders[i]).text, err));
    KK_TRY(find_id(r, err));
    KK_TRY(kk_git_environment(&r->env, r->opts.env, err));
    snprintf(r->folder, sizeof r->folder, "%.4000s/bus.git", r->opts.state);
    r->bus = (kk_bus){.git = {.folder = r->folder,
                              .env = kk_words_argv(&r->env),
                              .stop = {.asked = NULL}, /* a push is not cut short */
                              .most_disk = r->opts.config->disk_bytes},
                      .remote = r->opts.remote,
                      .prefix = r->opts.config->prefix};
    KK_TRY(kk_git_init(&r->bus.git, err));
    return trim_repository(r, err);
}

kk_status kk_runner_open(kk_runner **out, const kk_runner_opts *opts, kk_err *err) {
    *out = NULL;
    kk_runner *r = kk_zalloc(sizeof *r);
    if (!r) return kk_no_memory(err, "a runner");
    r->opts = *opts;
    r->lock = -1;
    if (opts->config->program[0]) r->opts.program = opts->config->program;
    const kk_status st = prepare(r, err);
    if (st == KK_OK) recall_finished(r);
    if (st == KK_OK)
        *out = r;
    else
        kk_runner_close(r);
    return st;
}

void kk_runner_close(kk_runner *r) {
    if (!r) return;
    if (r->lock >= 0) close(r->lock);
    kk_words_free(&r->env);
    kk_free(r->finished);
    kk_free(r);
}

/* ---- what is known ------------------------------------------------------------------------- */

static bool is_finished(const kk_runner *r, const char *tip) {
    for (size_t i = 0; i < r->n_finished; i++)
        if (strcmp(r->finished[i].tip, tip) == 0) return true;
    return false;
}

static void learn_finished(kk_runner *r, const char *tip) {
    if (r->n_finished == MOST_KNOWN) return; /* those are looked at in every pass */
    if (!kk_grow((void **)&r->finished, &r->finished_cap, r->n_finished + 1, sizeof *r->finished))
        return;
    snprintf(r->finished[r->n_finished++].tip, sizeof r->finished->tip, "%s", tip);
}

static void remember_finished(kk_runner *r, const char *tip) {
    FILE *f = is_finished(r, tip) ? NULL : fopen(path_in(r, "finished").text, "a");
    if (f) fprintf(f, "%s\tfinished\n", tip);
    if (f) fclose(f);
    learn_finished(r, tip);
}

/* What was known when the runner last ended; without it branches are looked at again. */
static void recall_finished(kk_runner *r) {
    char *text;
    size_t n;
    kk_git_refs tips = {.n = 0};
    if (kk_file_read(path_in(r, "finished").text, MOST_KNOWN * 80, &text, &n, NULL) != KK_OK) {
        unlink(path_in(r, "finished").text); /* it has grown over its limit, or there is none */
        return;
    }
    kk_git_parse_refs(&tips, text, n, NULL);
    for (size_t i = 0; i < tips.n; i++) learn_finished(r, tips.ref[i].id);
    kk_git_refs_free(&tips);
    kk_free(text);
}

/* Whether this runner has seen the nonce in another request; else it has now seen it in this. */
static kk_status use_nonce(const kk_runner *r, const char *nonce, const char *tip, kk_err *err) {
    char name[KK_MANIFEST_NAME + 16], *text;
    size_t n;
    snprintf(name, sizeof name, "nonces/%s", nonce);
    const state_path path = path_in(r, name);
    if (!kk_file_exists(path.text)) return kk_folder_put(path.text, tip, strlen(tip), err);
    KK_TRY(kk_file_read(path.text, KK_GIT_ID + 1, &text, &n, err));
    const bool same = strcmp(text, tip) == 0;
    kk_free(text);
    return same ? KK_OK : kk_fail(err, KK_EINVAL, "the nonce %s was used before", nonce);
}

/* The request of this nonce is claimed: from now on it is nobody's, not even of the same commit
 * pushed again under another name. */
static kk_status spend_nonce(const kk_runner *r, const char *nonce, kk_err *err) {
    static const char spent[] = "spent";
    char name[KK_MANIFEST_NAME + 16];
    snprintf(name, sizeof name, "nonces/%s", nonce);
    return kk_folder_put(path_in(r, name).text, spent, sizeof spent - 1, err);
}

/* Seconds since this runner first saw a claim. */
static double seen_since(const kk_runner *r, const char *tip) {
    char name[KK_GIT_ID + 16];
    struct stat st;
    snprintf(name, sizeof name, "seen/%s", tip);
    const state_path path = path_in(r, name);
    if (!kk_file_exists(path.text)) kk_folder_put(path.text, "", 0, NULL);
    return stat(path.text, &st) == 0 ? difftime(time(NULL), st.st_mtime) : 0;
}

/* ---- judging ------------------------------------------------------------------------------- */

static kk_status check_signature(const kk_runner *r, const kk_bus_entry *e, const kk_manifest *m,
                                 kk_err *err) {
    const kk_runner_config *c = r->opts.config;
    if (!e->signature.n) {
        if (kk_runner_config_unsigned(c, m->requested_by)) return KK_OK;
        return kk_fail(err, KK_EINVAL, "the request is not signed, and %s may not ask unsigned",
                       m->requested_by);
    }
    if (!c->allowed_signers[0])
        return kk_fail(err, KK_EINVAL, "the request is signed, and this runner knows no signers");
    return kk_sshsig_verify(c->allowed_signers, m->requested_by, kk_words_argv(&r->env),
                            r->opts.state, &e->manifest, &e->signature, err);
}

static kk_executor executor_for(const kk_runner *r, const char *folder) {
    return (kk_executor){.config = r->opts.config,
                         .program = r->opts.program,
                         .folder = folder,
                         .env = r->opts.env,
                         .stop = r->opts.stop};
}

static kk_status check_plan(const kk_runner *r, const kk_manifest *m, kk_err *err) {
    const kk_executor x = executor_for(r, "");
    json_t *plan;
    KK_TRY(kk_executor_plan(&x, m, &plan, err));
    json_decref(plan);
    return kk_runner_config_check_paths(r->opts.config, err);
}

kk_status kk_runner_judge(kk_runner *r, const kk_bus_entry *e, const kk_git_refs *nonces,
                          kk_manifest *m, bool *for_another, kk_err *err) {
    char used[KK_GIT_NAME];
    *for_another = false;
    if (e->fault[0]) return kk_fail(err, KK_EINVAL, "%s", e->fault);
    KK_TRY(kk_manifest_parse(m, kk_bytes_text(&e->manifest), e->manifest.n, err));
    *for_another = m->runner[0] && strcmp(m->runner, r->opts.config->name) != 0;
    if (*for_another) return KK_OK;
    if (!kk_manifest_on_branch(m, r->bus.prefix, e->branch))
        return kk_fail(err, KK_EINVAL, "the branch is not that of preset %s with nonce %s",
                       m->preset->name, m->nonce);
    if (!kk_runner_config_preset(r->opts.config, m->preset->name))
        return kk_fail(err, KK_EINVAL, "this runner does not offer %s", m->preset->name);
    KK_TRY(check_signature(r, e, m, err));
    snprintf(used, sizeof used, KK_BUS_NONCES "%.64s", m->nonce);
    if (nonces && kk_git_refs_find(nonces, used))
        return kk_fail(err, KK_EINVAL, "the nonce %s was used before", m->nonce);
    KK_TRY(check_plan(r, m, err));
    return use_nonce(r, m->nonce, e->tip, err);
}

/* ---- reporting ----------------------------------------------------------------------------- */

/* Who carried it out; members of the summary. */
static void sign_summary(const kk_runner *r, json_t *summary) {
    struct utsname u;
    if (uname(&u) != 0) memset(&u, 0, sizeof u);
    json_object_set_new(summary, "runner",
                        json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", r->opts.config->name, "id",
                                  r->id, "version", kk_version(), "system", u.sysname, "machine",
                                  u.machine));
    json_object_set_new(summary, "finished", json_integer((json_int_t)time(NULL)));
}

static kk_status keep(const kk_runner *r, const char *branch, const char *id, kk_err *err) {
    char name[KK_GIT_NAME + 32];
    snprintf(name, sizeof name, "refs/unsent/%s", branch);
    const char *const args[] = {"update-ref", name, id, NULL};
    return kk_git_run(&r->bus.git, args, NULL, err);
}

static kk_status forget(const kk_runner *r, const char *branch, kk_err *err) {
    char name[KK_GIT_NAME + 32];
    snprintf(name, sizeof name, "refs/unsent/%s", branch);
    const char *const args[] = {"update-ref", "-d", name, NULL};
    return kk_git_run(&r->bus.git, args, NULL, err);
}

static bool is_kept(const kk_runner *r, const char *branch) {
    char name[KK_GIT_NAME + 32];
    snprintf(name, sizeof name, "refs/unsent/%s", branch);
    const char *const args[] = {"rev-parse", "--verify", "-q", name, NULL};
    return kk_git_run(&r->bus.git, args, NULL, NULL) == KK_OK;
}

/* Pushes, again where the remote was not reached.  What cannot be pushed now is kept. */
static kk_status publish(kk_runner *r, const char *branch, const char *parent, const char *id,
                         kk_runner_counts *counts, kk_err *why) {
    kk_status st = KK_EIO;
    for (int i = 0; i < PUSH_TRIES && st == KK_EIO; i++) {
        if (i) usleep(200000u << i);
        st = kk_bus_publish(&r->bus, branch, parent, id, why);
    }
    if (st == KK_OK) {
        remember_finished(r, id);
    } else if (st == KK_EEXIST) {
        counts->lost++;
        say(r, "%s: the branch is gone or was moved; its result stays here", branch);
    } else {
        say(r, "%s: the result is kept until the bus is reached: %s", branch, why->msg);
    }
    return st;
}

static kk_status report(kk_runner *r, const char *branch, const char *parent, json_t *summary,
                        kk_git_file *more, size_t n, kk_runner_counts *counts, kk_err *err) {
    char id[KK_GIT_ID + 1];
    sign_summary(r, summary);
    KK_TRY(kk_bus_result(&r->bus, parent, summary, more, n, id, err));
    KK_TRY(keep(r, branch, id, err)); /* a runner that is killed in the push sends it again */
    kk_err why;
    return publish(r, branch, parent, id, counts, &why) == KK_EIO ? KK_OK : forget(r, branch, err);
}

static kk_status report_without(kk_runner *r, const kk_bus_entry *e, const char *state,
                                const char *reason, int exit_code, kk_runner_counts *counts,
                                kk_err *err) {
    json_t *summary = kk_summary_without(state, reason, exit_code);
    say(r, "%s: %s: %s", e->branch, state, reason);
    const kk_status st = summary ? report(r, e->branch, e->tip, summary, NULL, 0, counts, err)
                                 : kk_no_memory(err, "a summary");
    json_decref(summary);
    return st;
}

/* What git says to a question about a commit, without the newline at its end; NULL: nothing. */
static const char *ask_git(const kk_runner *r, const char *const *args, kk_bytes *to) {
    if (kk_git_run(&r->bus.git, args, to, NULL) != KK_OK || to->n == 0) return NULL;
    if (to->data[to->n - 1] == '\n') to->data[to->n - 1] = 0;
    return kk_bytes_text(to);
}

static bool is_overdue(const kk_runner *r, const char *id) {
    const char *const args[] = {"log", "-1", "--format=%ct", id, NULL};
    kk_bytes made = {0};
    const char *text = ask_git(r, args, &made);
    const double since = text ? (double)time(NULL) - strtod(text, NULL) : 0;
    kk_bytes_free(&made);
    return since > 60 * r->opts.config->unsent_minutes;
}

/* A remote that answers, and does not take a result for so long, will not take it: it is too
 * large for it, perhaps.  That is reported in its place, with nothing but the summary. */
static kk_status give_up(kk_runner *r, const char *branch, const char *parent, const char *id,
                         kk_runner_counts *counts, const kk_err *said, kk_err *err) {
    char name[KK_GIT_ID + sizeof KK_BUS_SUMMARY + 2], text[400], fresh[KK_GIT_ID + 1];
    const char *const args[] = {"cat-file", "blob", name, NULL};
    kk_bytes before = {0};
    kk_err why;
    snprintf(name, sizeof name, "%.64s:" KK_BUS_SUMMARY, id);
    const char *summary_text = ask_git(r, args, &before);
    json_t *summary = summary_text ? json_loads(summary_text, 0, NULL) : NULL;
    kk_bytes_free(&before);
    snprintf(text, sizeof text, "the remote did not take the result: %.200s", said->msg);
    json_t *failed = kk_summary_without("failed", text, 1);
    if (summary) json_object_update(summary, failed);
    if (!summary) summary = json_incref(failed);
    json_object_set(summary, "left_out", json_object_get(failed, "reason"));
    kk_status st = kk_bus_result(&r->bus, parent, summary, NULL, 0, fresh, err);
    json_decref(failed);
    json_decref(summary);
    if (st != KK_OK || publish(r, branch, parent, fresh, counts, &why) == KK_EIO) return st;
    say(r, "%s: %s", branch, text);
    counts->failed++;
    return forget(r, branch, err);
}

static kk_status send_again(kk_runner *r, const char *branch, const char *parent, const char *id,
                            kk_runner_counts *counts, kk_err *err) {
    kk_err why;
    kk_git_refs refs;
    if (publish(r, branch, parent, id, counts, &why) != KK_EIO) return forget(r, branch, err);
    if (!is_overdue(r, id) || kk_bus_list(&r->bus, &refs, NULL) != KK_OK) return KK_OK;
    kk_git_refs_free(&refs);
    return give_up(r, branch, parent, id, counts, &why, err);
}

/* Results of a run before this one that could not be pushed. */
static kk_status send_kept(kk_runner *r, kk_runner_counts *counts, kk_err *err) {
    kk_bytes text = {0};
    kk_git_refs kept = {.n = 0};
    const char *const list[] = {"for-each-ref", "--format=%(objectname)%09%(refname)",
                                "refs/unsent", NULL};
    KK_TRY(kk_git_run(&r->bus.git, list, &text, err));
    kk_status st = kk_git_parse_refs(&kept, kk_bytes_text(&text), text.n, err);
    for (size_t i = 0; i < kept.n && st == KK_OK; i++) {
        const char *branch = kept.ref[i].name + strlen("refs/unsent/");
        char before[KK_GIT_ID + 2];
        kk_bytes parent = {0};
        snprintf(before, sizeof before, "%.64s^", kept.ref[i].id);
        const char *const ask[] = {"rev-parse", before, NULL};
        if (kk_git_run(&r->bus.git, ask, &parent, NULL) == KK_OK && parent.n) {
            parent.data[parent.n - 1] = 0; /* the newline */
            st = send_again(r, branch, parent.data, kept.ref[i].id, counts, err);
        }
        kk_bytes_free(&parent);
    }
    kk_git_refs_free(&kept);
    kk_bytes_free(&text);
    return st;
}

/* ---- carrying out -------------------------------------------------------------------------- */

/* Files of a folder, as files of a commit below `under`; stops at the limit of bytes. */
static kk_status gather(const char *folder, const char *under, kk_git_file **file, size_t *n,
                        size_t *cap, int64_t *left, kk_err *err) {
    kk_words names = {0};
    kk_status st = kk_folder_files(folder, "", &names, err);
    for (size_t i = 0; i < names.n && st == KK_OK; i++) {
        char *path = kk_path_join(folder, names.word[i]), *text = NULL;
        size_t len = 0;
        st = !path ? kk_no_memory(err, "a path")
                   : kk_file_read(path, (size_t)*left, &text, &len, err);
        if (st == KK_OK && !kk_grow((void **)file, cap, *n + 1, sizeof **file))
            st = kk_no_memory(err, "the files of a result");
        if (st == KK_OK) {
            kk_git_file *f = &(*file)[(*n)++];
            *f = (kk_git_file){.path = ""};
            snprintf(f->path, sizeof f->path, "%s%.200s", under, names.word[i]);
            kk_bytes_add(&f->data, text, len);
            *left -= (int64_t)len;
        }
        kk_free(text);
        kk_free(path);
    }
    kk_words_free(&names);
    return st;
}

/* What is too large is left out; that it was is said, unless worse has happened. */
static void tell_left_out(kk_execution *run, int64_t left, const kk_err *why) {
    char text[400];
    snprintf(text, sizeof text, "results are left out, with %lld bytes left for them: %s",
             (long long)left, why->msg);
    if (!run->exit_code) {
        json_object_set_new(run->summary, "state", json_string("failed"));
        json_object_set_new(run->summary, "exit_code", json_integer(1));
        json_object_set_new(run->summary, "reason", json_string(text));
    }
    json_object_set_new(run->summary, "left_out", json_string(text));
    run->exit_code = 1;
}

static kk_status report_run(kk_runner *r, const kk_bus_entry *e, const char *claim,
                            const char *folder, kk_execution *run, kk_runner_counts *counts,
                            kk_err *err) {
    kk_git_file *file = NULL;
    size_t n = 0, cap = 0;
    int64_t left = r->opts.config->result_bytes;
    char *logs = kk_path_join(folder, "logs"), *results = kk_path_join(folder, "results");
    kk_err why = {.msg = "out of memory"};
    kk_status st = KK_ENOMEM;
    if (logs && results) st = gather(logs, KK_BUS_LOGS, &file, &n, &cap, &left, &why);
    if (st == KK_OK) st = gather(results, KK_BUS_RESULTS, &file, &n, &cap, &left, &why);
    if (st != KK_OK) tell_left_out(run, left, &why);
    st = report(r, e->branch, claim, run->summary, file, n, counts, err);
    for (size_t i = 0; i < n; i++) kk_bytes_free(&file[i].data);
    kk_free(file);
    kk_free(logs);
    kk_free(results);
    return st;
}

static void count_run(const kk_runner *r, const kk_bus_entry *e, const kk_execution *run,
                      kk_runner_counts *counts) {
    const char *reason = json_string_value(json_object_get(run->summary, "reason"));
    const char *state = json_string_value(json_object_get(run->summary, "state"));
    int *to = run->stopped     ? &counts->interrupted
              : run->exit_code ? &counts->failed
                               : &counts->done;
    ++*to;
    say(r, "%s: %s%s%s", e->branch, state ? state : "", reason && *reason ? ": " : "",
        reason ? reason : "");
}

static kk_status carry_out(kk_runner *r, const kk_bus_entry *e, const kk_manifest *m,
                           const char *claim, kk_runner_counts *counts, kk_err *err) {
    char folder[MOST_PATH];
    kk_execution run = {.exit_code = 1};
    KK_TRY(kk_folder_temporary(path_in(r, "work").text, folder, sizeof folder, err));
    const kk_executor x = executor_for(r, folder);
    kk_err why = {.msg = ""};
    kk_status st = kk_executor_run(&x, m, &run, &why);
    if (st != KK_OK) {
        run.summary = kk_summary_without("failed", why.msg, 1);
        st = run.summary ? KK_OK : kk_no_memory(err, "a summary");
    }
    if (st == KK_OK) {
        st = report_run(r, e, claim, folder, &run, counts, err);
        count_run(r, e, &run, counts);
    }
    kk_execution_release(&run);
    const kk_status removed = kk_folder_remove(folder, err);
    return st == KK_OK ? removed : st;
}

/* How long after its claim a request is surely over. */
static double most_seconds(const kk_runner *r, const kk_manifest *m) {
    const double minutes = m->preset->minutes < r->opts.config->most_minutes
                               ? m->preset->minutes
                               : r->opts.config->most_minutes;
    return 60 * minutes;
}

static kk_status take_request(kk_runner *r, const kk_bus_entry *e, const kk_manifest *m,
                              kk_runner_counts *counts, kk_err *err) {
    char claim[KK_GIT_ID + 1];
    json_t *o = json_pack("{s:s, s:s, s:s, s:f, s:I}", "runner", r->opts.config->name, "id", r->id,
                          "version", kk_version(), "most_s", most_seconds(r, m), "claimed",
                          (json_int_t)time(NULL));
    if (!o) return kk_no_memory(err, "a claim");
    const kk_status st = kk_bus_claim(&r->bus, e, m->nonce, o, claim, err);
    json_decref(o);
    if (st == KK_EEXIST) {
        counts->lost++;
        say(r, "%s: another runner was first, or the branch is gone", e->branch);
        return KK_OK;
    }
    KK_TRY(st);
    KK_TRY(spend_nonce(r, m->nonce, err));
    say(r, "%s: %s for %s", e->branch, m->preset->name, m->requested_by);
    return carry_out(r, e, m, claim, counts, err);
}

/* ---- a pass -------------------------------------------------------------------------------- */

static kk_status look_at_claim(kk_runner *r, const kk_bus_entry *e, kk_runner_counts *counts,
                               kk_err *err) {
    const char *id = json_string_value(json_object_get(e->claim, "id"));
    const double most = json_number_value(json_object_get(e->claim, "most_s"));
    const bool ours = id && strcmp(id, r->id) == 0;
    const double wait = (most > 0 && most < 86400 ? most : 86400) + r->opts.lost_s;
    if (is_kept(r, e->branch)) return KK_OK; /* its result is on its way */
    if (!ours && seen_since(r, e->tip) <= wait) return KK_OK;
    counts->interrupted++;
    return report_without(r, e, "interrupted",
                          ours ? "the runner ended while it carried this out"
                               : "the runner that claimed this was not heard of again",
                          1, counts, err);
}

static kk_status look_at_request(kk_runner *r, const kk_bus_entry *e, const kk_git_refs *refs,
                                 kk_runner_counts *counts, kk_err *err) {
    kk_manifest m;
    bool for_another;
    kk_err why = {.msg = ""};
    const kk_status st = kk_runner_judge(r, e, refs, &m, &for_another, &why);
    if (st == KK_OK) return for_another ? KK_OK : take_request(r, e, &m, counts, err);
    if (st != KK_EINVAL) return kk_fail(err, st, "%s", why.msg);
    counts->refused++;
    return report_without(r, e, "refused", why.msg, 2, counts, err);
}

/* A branch may vanish between the listing and the fetch: then there is nothing to do. */
static kk_status look_at(kk_runner *r, const char *branch, const kk_git_refs *refs,
                         kk_runner_counts *counts, kk_err *err) {
    kk_bus_entry e;
    kk_err why = {.msg = ""};
    kk_status st = kk_bus_read(&r->bus, branch, &e, &why);
    if (st == KK_EIO) {
        say(r, "%s: cannot be read: %s", branch, why.msg);
        st = trim_repository(r, err); /* what it left must not keep the others from being read */
    } else if (st != KK_OK) {
        st = kk_fail(err, st, "%s", why.msg);
    } else if (e.stage == KK_BUS_FINISHED) {
        remember_finished(r, e.tip);
    } else if (e.stage == KK_BUS_CLAIMED) {
        st = look_at_claim(r, &e, counts, err);
    } else {
        st = look_at_request(r, &e, refs, counts, err);
    }
    kk_bus_entry_release(&e);
    return st;
}

kk_status kk_runner_pass(kk_runner *r, kk_runner_counts *counts, kk_err *err) {
    kk_git_refs refs;
    KK_TRY(trim_repository(r, err));
    KK_TRY(send_kept(r, counts, err));
    kk_status st = kk_bus_list(&r->bus, &refs, err);
    for (size_t i = 0; i < refs.n && st == KK_OK; i++) {
        const char *branch = kk_bus_branch(&r->bus, refs.ref[i].name);
        if (!*branch || is_finished(r, refs.ref[i].id)) continue;
        st = asked_to_stop(r) ? kk_fail(err, KK_ESTOPPED, "stopped")
                              : look_at(r, branch, &refs, counts, err);
    }
    kk_git_refs_free(&refs);
    return st;
}

kk_status kk_runner_watch(kk_runner *r, double interval_s, kk_runner_counts *counts, kk_err *err) {
    for (;;) {
        const kk_status st = kk_runner_pass(r, counts, err);
        if (st == KK_EIO)
            say(r, "the bus is not reached: %s", err->msg);
        else if (st != KK_OK)
            return st;
        for (const double start = kk_now(); kk_now() - start < interval_s;) {
            if (asked_to_stop(r)) return kk_fail(err, KK_ESTOPPED, "stopped");
            usleep(50000);
        }
        if (asked_to_stop(r)) return kk_fail(err, KK_ESTOPPED, "stopped");
    }
}
