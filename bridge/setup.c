/* setup.c - see setup.h. */
#define _GNU_SOURCE
#include "bridge/setup.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/checkup.h"
#include "bridge/folder.h"
#include "bridge/manifest.h"
#include "bridge/selftest.h"
#include "bridge/sshsig.h"
#include "core/error.h"
#include "core/file.h"
#include "core/writer.h"

static void say(const kk_setup_opts *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const kk_setup_opts *o, const char *fmt, ...) {
    char line[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (o->say) o->say(o->user, line);
}

/* ---- files --------------------------------------------------------------------------------- */

static kk_status make_parent(const char *path, kk_err *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;
    if (n == 0 || n >= sizeof folder)
        return kk_fail(err, KK_EINVAL, "this is no absolute path of a file: %.100s", path);
    memcpy(folder, path, n);
    folder[n] = 0;
    return kk_folder_make(folder, err);
}

static kk_status replace(const char *path, const char *text, size_t len, kk_err *err) {
    const kk_writer_opts opts = {.replace = true};
    kk_writer *w;
    KK_TRY(kk_writer_open(&w, path, &opts, err));
    kk_status st = kk_writer_put(w, text, len, err);
    if (st == KK_OK) st = kk_writer_commit(w, err);
    kk_writer_close(w);
    return st;
}

/* ---- the configuration --------------------------------------------------------------------- */

static void set(json_t *o, const char *key, const char *value) {
    if (value) json_object_set_new(o, key, json_string(value));
}

/* Paths of a configuration are absolute, those of a command line need not be. */
static void set_path(json_t *o, const char *key, const char *path) {
    char *whole = path ? realpath(path, NULL) : NULL;
    set(o, key, whole ? whole : path);
    free(whole);
}

static kk_status signers_path(const kk_setup_opts *o, char *out, size_t cap, kk_err *err) {
    const int n = snprintf(out, cap, "%s.signers", o->config);
    if (n > 0 && (size_t)n < cap) return KK_OK;
    return kk_fail(err, KK_EINVAL, "a path is too long");
}

static kk_status change(const kk_setup_opts *o, json_t *root, kk_err *err) {
    char signers[4096];
    json_t *paths = json_object_get(root, "paths");
    if (!paths) {
        json_object_set_new(root, "paths", json_object());
        paths = json_object_get(root, "paths");
    }
    set(root, "name", o->name);
    set(root, "remote", o->remote);
    if (!json_object_get(root, "allowed_signers")) {
        KK_TRY(signers_path(o, signers, sizeof signers, err));
        set(root, "allowed_signers", signers);
    }
    set_path(paths, "model", o->model);
    set_path(paths, "drafter", o->drafter);
    set_path(paths, "projection", o->projection);
    if (!o->n_cases) return KK_OK;
    json_t *cases = json_array();
    for (size_t i = 0; i < o->n_cases; i++) {
        char *whole = realpath(o->cases[i], NULL);
        json_array_append_new(cases, json_string(whole ? whole : o->cases[i]));
        free(whole);
    }
    json_object_set_new(paths, "cases", cases);
    return KK_OK;
}

/* The configuration as it was and as it will be; checked before it is written. */
static kk_status write_config(const kk_setup_opts *o, kk_runner_config *c, kk_err *err) {
    kk_runner_config_empty(c);
    const bool there = kk_file_exists(o->config);
    if (there) KK_TRY(kk_runner_config_read(c, o->config, err));
    json_t *root = there ? json_deep_copy(c->root) : json_object();
    kk_status st = root ? change(o, root, err) : kk_no_memory(err, "a configuration");
    const bool same = st == KK_OK && there && json_equal(root, c->root);
    char *text = st == KK_OK ? json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    kk_runner_config_release(c);
    if (st == KK_OK && !text) st = kk_no_memory(err, "a configuration");
    if (st == KK_OK) st = kk_runner_config_parse(c, text, strlen(text), err);
    if (st == KK_OK && !same) st = make_parent(o->config, err);
    if (st == KK_OK && !same) st = replace(o->config, text, strlen(text), err);
    free(text);
    if (st == KK_OK) say(o, "config      %s %s", o->config, same ? "is as it was" : "is written");
    return st;
}

/* ---- signers ------------------------------------------------------------------------------- */

/* "NAME namespaces=... KEYTYPE KEY" of NAME=FILE. */
static kk_status signer_line(const char *pair, kk_bytes *line, kk_err *err) {
    const char *equals = strchr(pair, '=');
    char name[KK_MANIFEST_NAME + 1], type[64], key[4096], *text;
    size_t n;
    if (!equals || (size_t)(equals - pair) >= sizeof name)
        return kk_fail(err, KK_EINVAL, "a signer is NAME=FILE.pub, not '%.80s'", pair);
    memcpy(name, pair, (size_t)(equals - pair));
    name[equals - pair] = 0;
    if (!kk_manifest_name_ok(name))
        return kk_fail(err, KK_EINVAL, "this is no name of who asks: %.80s", name);
    KK_TRY(kk_file_read(equals + 1, 16384, &text, &n, err));
    const bool whole = sscanf(text, "%63s %4095s", type, key) == 2 &&
                       (strncmp(type, "ssh-", 4) == 0 || strncmp(type, "ecdsa-", 6) == 0 ||
                        strncmp(type, "sk-", 3) == 0);
    kk_free(text);
    if (!whole) return kk_fail(err, KK_EFORMAT, "%.150s is no public key of SSH", equals + 1);
    kk_bytes_print(line, "%s namespaces=\"" KK_SSHSIG_NAMESPACE "\" %s %s\n", name, type, key);
    return line->failed ? kk_no_memory(err, "a signer") : KK_OK;
}

/* Whether a line, with its end, is one of a text. */
static bool has_line(const char *text, const char *line) {
    for (const char *at = text; (at = strstr(at, line)) != NULL; at++)
        if (at == text || at[-1] == '\n') return true;
    return false;
}

static kk_status write_signers(const kk_setup_opts *o, const char *path, kk_err *err) {
    char *text = NULL;
    size_t n = 0, added = 0;
    kk_bytes all = {0};
    if (kk_file_exists(path)) KK_TRY(kk_file_read(path, 1 << 20, &text, &n, err));
    kk_bytes_add(&all, text, n);
    kk_free(text);
    if (n && all.data && all.data[n - 1] != '\n') kk_bytes_add(&all, "\n", 1);
    kk_status st = KK_OK;
    for (size_t i = 0; i < o->n_signers && st == KK_OK; i++) {
        kk_bytes line = {0};
        st = signer_line(o->signers[i], &line, err);
        if (st == KK_OK && !has_line(kk_bytes_text(&all), kk_bytes_text(&line))) {
            kk_bytes_add(&all, line.data, line.n);
            added++;
        }
        kk_bytes_free(&line);
    }
    if (st == KK_OK && all.failed) st = kk_no_memory(err, "the signers");
    if (st == KK_OK && (added || !kk_file_exists(path)))
        st = replace(path, kk_bytes_text(&all), all.n, err);
    if (st == KK_OK) say(o, "signers     %s: %zu added", path, added);
    kk_bytes_free(&all);
    return st;
}

/* ---- the steps ----------------------------------------------------------------------------- */

static kk_status check_tools(const kk_setup_opts *o, kk_err *err) {
    kk_checkup tools = {.n = 0};
    kk_checkup_tools(&tools, o->env);
    for (size_t i = 0; i < tools.n; i++) {
        const kk_check *c = &tools.check[i];
        if (c->verdict == KK_CHECK_MISSING)
            return kk_fail(err, KK_EIO, "%s: %.200s", c->what, c->text);
        say(o, "%-11s %s", c->what, c->text);
    }
    return KK_OK;
}

static kk_status try_it(const kk_setup_opts *o, kk_err *err) {
    kk_selftest t;
    if (o->no_selftest) return KK_OK;
    KK_TRY(kk_selftest_run(&t, o->program, o->state, "mlx-env-probe", o->env, o->stop, err));
    say(o,
        "self-test   a request came back in %.2f s: %.2f s in the command, %.4f s in "
        "the executor, %.2f s in git and ssh-keygen",
        t.seconds, t.running_s, t.overhead_s, t.seconds - t.running_s - t.overhead_s);
    return KK_OK;
}

kk_status kk_setup_run(const kk_setup_opts *o, kk_err *err) {
    kk_runner_config c;
    KK_TRY(check_tools(o, err));
    KK_TRY(kk_folder_make(o->state, err));
    say(o, "state       %s", o->state);
    KK_TRY(write_config(o, &c, err));
    kk_status st = c.allowed_signers[0] ? write_signers(o, c.allowed_signers, err) : KK_OK;
    if (st == KK_OK) st = kk_runner_config_check_paths(&c, err);
    kk_runner_config_release(&c);
    KK_TRY(st);
    return try_it(o, err);
}
