/* selftest.c - see selftest.h. */
#include "bridge/selftest.h"

#include <stdio.h>
#include <string.h>

#include "bridge/client.h"
#include "bridge/folder.h"
#include "bridge/runner.h"
#include "bridge/sshsig.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"

typedef struct {
    const char *program, *preset;
    const char *const *env;
    kk_stop stop;
    char folder[4096], bus[4400], key[4400], signers[4400], runner[4400], client[4400];
    kk_runner_config config;
} trial;

/* An empty bus, a key, and a runner that knows it. */
static kk_status prepare(trial *t, kk_err *err) {
    char *public_key = NULL, line[2048], text[8192], path[4500];
    size_t n;
    snprintf(t->bus, sizeof t->bus, "%s/bus.git", t->folder);
    snprintf(t->key, sizeof t->key, "%s/key", t->folder);
    snprintf(t->signers, sizeof t->signers, "%s/signers", t->folder);
    snprintf(t->runner, sizeof t->runner, "%s/runner", t->folder);
    snprintf(t->client, sizeof t->client, "%s/client", t->folder);
    const kk_git bus = {.folder = t->bus, .env = t->env};
    KK_TRY(kk_git_init(&bus, err));
    KK_TRY(kk_sshsig_generate(t->key, "self-test", t->env, err));
    snprintf(path, sizeof path, "%s.pub", t->key);
    KK_TRY(kk_file_read(path, 1024, &public_key, &n, err));
    snprintf(line, sizeof line, "selftest %s", public_key);
    kk_free(public_key);
    KK_TRY(kk_folder_put(t->signers, line, strlen(line), err));
    snprintf(text, sizeof text, "{\"name\": \"selftest\", \"allowed_signers\": \"%.4000s\"}",
             t->signers);
    return kk_runner_config_parse(&t->config, text, strlen(text), err);
}

static kk_status carry_out(const trial *t, kk_err *err) {
    const kk_runner_opts opts = {.config = &t->config,
                                 .remote = t->bus,
                                 .program = t->program,
                                 .state = t->runner,
                                 .env = t->env,
                                 .stop = t->stop};
    kk_runner *r;
    kk_runner_counts counts = {0};
    KK_TRY(kk_runner_open(&r, &opts, err));
    const kk_status st = kk_runner_pass(r, &counts, err);
    kk_runner_close(r);
    return st;
}

static kk_status judge(const json_t *summary, kk_fetch_outcome outcome, kk_selftest *out,
                       kk_err *err) {
    const char *reason = json_string_value(json_object_get(summary, "reason"));
    const json_t *command = json_array_get(json_object_get(summary, "commands"), 0);
    if (outcome != KK_FETCH_DONE)
        return kk_fail(err, KK_EIO, "the request did not go well: %.180s",
                       reason ? reason : "it has no result");
    out->running_s = json_number_value(json_object_get(command, "seconds"));
    out->overhead_s = json_number_value(json_object_get(summary, "overhead_s"));
    return KK_OK;
}

static kk_status try_it(trial *t, kk_selftest *out, kk_err *err) {
    KK_TRY(prepare(t, err));
    const kk_client_opts opts = {.state = t->client,
                                 .env = t->env,
                                 .remote = t->bus,
                                 .prefix = KK_BRIDGE_PREFIX,
                                 .stop = t->stop};
    const kk_client_request ask = {
        .preset = t->preset, .ref = "self-test", .requested_by = "selftest", .key = t->key};
    const double start = kk_now();
    kk_client *c;
    kk_client_sent sent;
    kk_fetch_outcome outcome = KK_FETCH_NONE;
    json_t *summary = NULL;
    char results[4400];
    snprintf(results, sizeof results, "%s/results", t->folder);
    KK_TRY(kk_client_open(&c, &opts, err));
    kk_status st = kk_client_send(c, &ask, &sent, err);
    if (st == KK_OK) st = carry_out(t, err);
    if (st == KK_OK) st = kk_client_fetch(c, sent.branch, 0, 1, results, &outcome, &summary, err);
    out->seconds = kk_now() - start;
    if (st == KK_OK) st = judge(summary, outcome, out, err);
    json_decref(summary);
    kk_client_sent_release(&sent);
    kk_client_close(c);
    return st;
}

kk_status kk_selftest_run(kk_selftest *out, const char *program, const char *base,
                          const char *preset, const char *const *env, kk_stop stop, kk_err *err) {
    trial t = {.program = program, .preset = preset, .env = env, .stop = stop};
    *out = (kk_selftest){.seconds = 0};
    kk_runner_config_empty(&t.config);
    KK_TRY(kk_folder_temporary(base, t.folder, sizeof t.folder, err));
    const kk_status st = try_it(&t, out, err);
    kk_runner_config_release(&t.config);
    kk_folder_remove(t.folder, NULL);
    return st;
}
