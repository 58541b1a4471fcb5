/* checkup.c - see checkup.h. */
#include "bridge/checkup.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "bridge/client.h"
#include "bridge/folder.h"
#include "core/error.h"
#include "core/file.h"

static void add(kk_checkup *to, const char *what, kk_check_verdict v, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void add(kk_checkup *to, const char *what, kk_check_verdict v, const char *fmt, ...) {
    if (to->n == KK_CHECKS) return;
    kk_check *c = &to->check[to->n++];
    *c = (kk_check){.what = what, .verdict = v};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->text, sizeof c->text, fmt, ap);
    va_end(ap);
    to->missing += v == KK_CHECK_MISSING;
}

/* ---- programs ------------------------------------------------------------------------------ */

/* The last line that a program prints; false when it cannot be started. */
static bool ask(const char *const *argv, const char *const *env, char *line, size_t cap) {
    kk_process_result r = {.code = 0};
    const kk_process p = {
        .argv = argv, .env = env, .joined = true, .timeout_s = 30, .most_output = 1 << 16};
    const bool started = kk_process_run(&p, &r, NULL) == KK_OK;
    kk_process_last_line(&r.out, line, cap);
    kk_process_release(&r);
    return started;
}

static void check_git(kk_checkup *out, const char *const *env) {
    const char *const argv[] = {"git", "--version", NULL};
    char line[160];
    int major = 0, minor = 0;
    if (!ask(argv, env, line, sizeof line)) {
        add(out, "git", KK_CHECK_MISSING, "not found: install git 2.31 or later");
    } else if (sscanf(line, "git version %d.%d", &major, &minor) != 2 ||
               major * 100 + minor < 231) {
        add(out, "git", KK_CHECK_MISSING, "%s: 2.31 or later is needed", line);
    } else {
        add(out, "git", KK_CHECK_OK, "%s", line);
    }
}

static void check_keygen(kk_checkup *out, const char *const *env) {
    /* It has no option for its version: one that can sign complains about what is missing. */
    const char *const argv[] = {"ssh-keygen", "-Y", "sign", NULL};
    char line[160];
    if (!ask(argv, env, line, sizeof line))
        add(out, "ssh-keygen", KK_CHECK_MISSING, "not found: install OpenSSH 8.2 or later");
    else if (strstr(line, "unknown option") || strstr(line, "illegal option"))
        add(out, "ssh-keygen", KK_CHECK_MISSING, "cannot sign: OpenSSH 8.2 or later is needed");
    else
        add(out, "ssh-keygen", KK_CHECK_OK, "signs and verifies");
}

void kk_checkup_tools(kk_checkup *out, const char *const *env) {
    check_git(out, env);
    check_keygen(out, env);
}

/* ---- a runner's own ------------------------------------------------------------------------ */

static void check_signers(kk_checkup *out, const kk_runner_config *c) {
    const size_t names = json_array_size(c->unsigned_names);
    if (c->allowed_signers[0] && !kk_file_exists(c->allowed_signers))
        add(out, "signers", KK_CHECK_MISSING, "%.150s is not there", c->allowed_signers);
    else if (!c->allowed_signers[0] && !names)
        add(out, "signers", KK_CHECK_MISSING,
            "nobody may ask: 'kakeya bridge setup --signer NAME=KEY.pub' adds one");
    else if (names)
        add(out, "signers", KK_CHECK_NOTE, "%zu may ask without a signature", names);
    else
        add(out, "signers", KK_CHECK_OK, "%.150s", c->allowed_signers);
}

static void check_paths(kk_checkup *out, const kk_runner_config *c) {
    kk_err err;
    if (kk_runner_config_check_paths(c, &err) != KK_OK)
        add(out, "models", KK_CHECK_MISSING, "%s", err.msg);
    else if (!c->paths.model[0])
        add(out, "models", KK_CHECK_NOTE, "the shipped family: the configuration names no model");
    else
        add(out, "models", KK_CHECK_OK, "%.150s", c->paths.model);
    add(out, "cases", c->paths.n_cases ? KK_CHECK_OK : KK_CHECK_NOTE,
        c->paths.n_cases ? "%zu reference cases" : "%zu: presets that compare are refused",
        c->paths.n_cases);
}

static void check_disk(kk_checkup *out, const char *state, const kk_runner_config *c) {
    struct statvfs fs;
    kk_err err;
    if (kk_folder_make(state, &err) != KK_OK || statvfs(state, &fs) != 0) {
        add(out, "disk", KK_CHECK_MISSING, "%.200s cannot be written", state);
        return;
    }
    const double left = (double)fs.f_bavail * (double)fs.f_frsize;
    add(out, "disk", left > (double)c->disk_bytes ? KK_CHECK_OK : KK_CHECK_NOTE,
        "%.1f GB free, %.1f GB for a request", left / 1e9, (double)c->disk_bytes / 1e9);
}

static void check_remote(kk_checkup *out, const kk_checkup_opts *o, const kk_runner_config *c) {
    const char *remote = o->remote ? o->remote : c->remote;
    kk_client *client = NULL;
    kk_err err;
    if (!*remote) {
        add(out, "remote", KK_CHECK_MISSING, "none is named");
        return;
    }
    const kk_client_opts opts = {
        .state = o->state, .env = o->env, .remote = remote, .prefix = c->prefix};
    kk_status st = kk_client_open(&client, &opts, &err);
    if (st == KK_OK) st = kk_client_probe(client, &err);
    add(out, "remote", st == KK_OK ? KK_CHECK_OK : KK_CHECK_MISSING, "%.100s: %s", remote,
        st == KK_OK ? "reads, and would take a push" : err.msg);
    kk_client_close(client);
}

void kk_checkup_run(kk_checkup *out, const kk_checkup_opts *o) {
    kk_runner_config c;
    kk_err err;
    *out = (kk_checkup){.n = 0};
    kk_checkup_tools(out, o->env);
    const char *program = o->program;
    if (!kk_file_exists(o->config)) {
        kk_runner_config_empty(&c);
        add(out, "config", KK_CHECK_NOTE, "%.150s is not there: this machine can ask, not answer",
            o->config);
    } else if (kk_runner_config_read(&c, o->config, &err) != KK_OK) {
        kk_runner_config_empty(&c);
        add(out, "config", KK_CHECK_MISSING, "%s", err.msg);
    } else {
        add(out, "config", KK_CHECK_OK, "%.150s, as %s", o->config, c.name);
        check_signers(out, &c);
        check_paths(out, &c);
        if (c.program[0]) program = c.program;
    }
    add(out, "program", access(program, X_OK) == 0 ? KK_CHECK_OK : KK_CHECK_MISSING, "%.200s",
        program);
    check_disk(out, o->state, &c);
    check_remote(out, o, &c);
    kk_runner_config_release(&c);
}
