/* executor.c - see executor.h. */
#include "bridge/executor.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bridge/folder.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"

static const double gate_timeout_s = 120;

typedef struct {
    const kk_executor *x;
    const kk_manifest *m;
    kk_plan plan;
    kk_words env;
    double start, deadline;
    double running_s; /* in commands and the gate */
    json_t *commands, *reports;
    char reason[240];
    int exit_code, gate_code;
    bool gated, stopped;
} work;

/* ---- preparing ----------------------------------------------------------------------------- */

/* A command needs to find programs and its home, and sees nothing else: no tokens, no agents. */
static kk_status choose_environment(const kk_executor *x, kk_words *out, kk_err *err) {
    static const char *const kept[] = {"PATH", "HOME",           "TMPDIR",         "USER",
                                       "LANG", "XDG_STATE_HOME", "LD_LIBRARY_PATH"};
    const json_t *more = x->config->environment;
    for (const char *const *e = x->env; e && *e; e++) {
        const size_t n = strcspn(*e, "=");
        bool keep = false;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            keep |= strlen(kept[i]) == n && memcmp(*e, kept[i], n) == 0;
        for (size_t i = 0; i < json_array_size(more); i++) {
            const char *name = json_string_value(json_array_get(more, i));
            keep |= strlen(name) == n && memcmp(*e, name, n) == 0;
        }
        if (keep) kk_words_add(out, "%s", *e);
    }
    kk_words_add(out, "NO_COLOR=1");
    return out->failed ? kk_no_memory(err, "an environment") : KK_OK;
}

static kk_status make_plan(const kk_executor *x, const kk_manifest *m, kk_plan *plan, kk_err *err) {
    kk_preset_paths paths = x->config->paths;
    paths.cases = x->config->cases;
    return kk_plan_make(plan, m->preset, m->value, x->program, &paths, m->nonce, err);
}

static json_t *argv_json(const kk_words *argv) {
    json_t *list = json_array();
    for (size_t i = 0; i < argv->n; i++) json_array_append_new(list, json_string(argv->word[i]));
    return list;
}

kk_status kk_executor_plan(const kk_executor *x, const kk_manifest *m, json_t **out, kk_err *err) {
    kk_plan plan;
    *out = NULL;
    kk_status st = make_plan(x, m, &plan, err);
    if (st == KK_OK) {
        json_t *list = json_array();
        for (size_t i = 0; i < plan.n; i++)
            json_array_append_new(list, argv_json(&plan.command[i]));
        *out = json_pack("{s:s, s:o, s:s, s:o}", "preset", m->preset->name, "params",
                         kk_manifest_params(m), "nonce", m->nonce, "commands", list);
        if (!*out) st = kk_no_memory(err, "a plan");
    }
    kk_plan_free(&plan);
    return st;
}

/* ---- commands ------------------------------------------------------------------------------ */

static kk_status put_log(const work *w, const char *name, const kk_bytes *text, kk_err *err) {
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/logs/%s", w->x->folder, name);
    if (n < 0 || (size_t)n >= sizeof path) return kk_fail(err, KK_EINVAL, "a path is too long");
    const size_t most = (size_t)w->x->config->output_bytes;
    return kk_folder_put(path, kk_bytes_text(text), text->n < most ? text->n : most, err);
}

/* The first failure is what the summary gives as the reason. */
static void note_failure(work *w, const char *what, const kk_process_result *r) {
    char line[160];
    w->exit_code = 1;
    w->stopped |= r->end == KK_ENDED_STOPPED;
    if (w->reason[0]) return;
    kk_process_complaint(&r->out, "kakeya", line, sizeof line);
    snprintf(w->reason, sizeof w->reason, "%s: %s%s%s", what, kk_process_describe(r).text,
             line[0] ? ": " : "", line);
}

static kk_status run_one(work *w, const kk_words *argv, const char *log, double timeout_s,
                         kk_process_result *r, kk_err *err) {
    const kk_runner_config *c = w->x->config;
    const kk_process p = {.argv = kk_words_argv(argv),
                          .env = kk_words_argv(&w->env),
                          .folder = w->x->folder,
                          .joined = true,
                          .guarded = true,
                          .timeout_s = timeout_s,
                          .most_output = (size_t)c->output_bytes,
                          .disk = w->x->folder,
                          .most_disk = c->disk_bytes,
                          .stop = w->x->stop};
    KK_TRY(kk_process_run(&p, r, err));
    w->running_s += r->seconds;
    return put_log(w, log, &r->out, err);
}

static bool went_well(const kk_process_result *r) { return r->end == KK_ENDED_EXIT && !r->code; }

static kk_status run_command(work *w, size_t i, kk_err *err) {
    char log[160];
    kk_process_result r = {.code = 0};
    const kk_words *argv = &w->plan.command[i];
    snprintf(log, sizeof log, "%s-%zu.log", w->m->preset->name, i);
    double left = w->deadline - kk_now();
    const kk_status st = run_one(w, argv, log, left > 0.01 ? left : 0.01, &r, err);
    if (st == KK_OK) {
        json_array_append_new(w->commands,
                              json_pack("{s:o, s:i, s:s, s:f, s:s}", "argv", argv_json(argv),
                                        "exit_code", r.code, "end", kk_process_describe(&r).text,
                                        "seconds", r.seconds, "log", log));
        if (!went_well(&r)) note_failure(w, w->m->preset->name, &r);
    }
    kk_process_release(&r);
    return st;
}

/* ---- the gate ------------------------------------------------------------------------------ */

static kk_status check_report(work *w, const char *name, kk_err *err) {
    kk_process_result r = {.code = 0};
    kk_words argv = {0};
    char log[300];
    const char *const words[] = {w->x->program, "report", "check", "--", NULL};
    kk_words_add_all(&argv, words);
    kk_words_add(&argv, "results/%s", name);
    snprintf(log, sizeof log, "gate-%.200s.log", name);
    kk_status st = argv.failed ? kk_no_memory(err, "a command line")
                               : run_one(w, &argv, log, gate_timeout_s, &r, err);
    if (st == KK_OK) {
        const bool holds = went_well(&r);
        w->gated = true;
        if (!holds) w->gate_code = r.end == KK_ENDED_EXIT ? r.code : 1;
        if (!holds) note_failure(w, "the gate of reports", &r);
        json_array_append_new(w->reports, json_pack("{s:s, s:b}", "file", name, "holds", holds));
        char path[4400];
        snprintf(path, sizeof path, "%.4000s/results/%.255s", w->x->folder, name);
        if (!holds) unlink(path);
    }
    kk_words_free(&argv);
    kk_process_release(&r);
    return st;
}

/* Every report that is there, also of commands that failed: they may be honest about it. */
static kk_status check_reports(work *w, kk_err *err) {
    char path[4096];
    kk_words names = {0};
    snprintf(path, sizeof path, "%.4000s/results", w->x->folder);
    kk_status st = kk_folder_files(path, ".json", &names, err);
    for (size_t i = 0; i < names.n && st == KK_OK; i++) st = check_report(w, names.word[i], err);
    kk_words_free(&names);
    return st;
}

/* ---- the whole ----------------------------------------------------------------------------- */

json_t *kk_summary_without(const char *state, const char *reason, int exit_code) {
    char plain[sizeof((kk_err *)0)->msg]; /* a cut inside of a character is no JSON */
    kk_plain(reason, plain, sizeof plain);
    return json_pack("{s:i, s:s, s:s, s:i}", "schema_version", KK_SUMMARY_VERSION, "state", state,
                     "reason", plain, "exit_code", exit_code);
}

static json_t *summary_of(work *w) {
    const double seconds = kk_now() - w->start;
    const char *state = w->stopped ? "interrupted" : w->exit_code ? "failed" : "done";
    json_t *o = kk_summary_without(state, w->reason, w->exit_code);
    json_t *rest = json_pack(
        "{s:s, s:o, s:s, s:s, s:s, s:O, s:O, s:o, s:f, s:f}", "preset", w->m->preset->name,
        "params", kk_manifest_params(w->m), "nonce", w->m->nonce, "ref", w->m->ref, "requested_by",
        w->m->requested_by, "commands", w->commands, "reports", w->reports,
        "evidence_gate_exit_code", w->gated ? json_integer(w->gate_code) : json_null(), "seconds",
        seconds, "overhead_s", seconds - w->running_s);
    json_object_update(o, rest);
    json_decref(rest);
    return o;
}

/* Reports that nobody held to the gate stay on the machine. */
static kk_status drop_reports(const work *w, kk_err *err) {
    char path[4400];
    kk_words names = {0};
    snprintf(path, sizeof path, "%.4000s/results", w->x->folder);
    const kk_status st = kk_folder_files(path, ".json", &names, err);
    for (size_t i = 0; i < names.n; i++) {
        snprintf(path, sizeof path, "%.4000s/results/%.255s", w->x->folder, names.word[i]);
        unlink(path);
    }
    kk_words_free(&names);
    return st;
}

/* Nothing that was there before may be taken for a result. */
static kk_status make_empty(const char *path, kk_err *err) {
    kk_words names = {0};
    kk_status st = kk_folder_make(path, err);
    if (st == KK_OK) st = kk_folder_files(path, "", &names, err);
    if (st == KK_OK && names.n)
        st = kk_fail(err, KK_EINVAL, "%.150s is not empty: it has %.60s", path, names.word[0]);
    kk_words_free(&names);
    return st;
}

static kk_status make_folders(const kk_executor *x, kk_err *err) {
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/logs", x->folder);
    KK_TRY(make_empty(path, err));
    snprintf(path, sizeof path, "%.4000s/results", x->folder);
    return make_empty(path, err);
}

static kk_status run_all(work *w, kk_err *err) {
    const double minutes = w->m->preset->minutes < w->x->config->most_minutes
                               ? w->m->preset->minutes
                               : w->x->config->most_minutes;
    KK_TRY(make_plan(w->x, w->m, &w->plan, err));
    KK_TRY(choose_environment(w->x, &w->env, err));
    KK_TRY(make_folders(w->x, err));
    w->deadline = kk_now() + 60 * minutes;
    kk_status st = KK_OK;
    for (size_t i = 0; i < w->plan.n && !w->exit_code && st == KK_OK; i++)
        st = run_command(w, i, err);
    if (st == KK_OK && !w->stopped) st = check_reports(w, err);
    if (st != KK_OK || w->stopped) drop_reports(w, NULL);
    return st;
}

kk_status kk_executor_run(const kk_executor *x, const kk_manifest *m, kk_execution *out,
                          kk_err *err) {
    work w = {.x = x, .m = m, .start = kk_now(), .commands = json_array(), .reports = json_array()};
    *out = (kk_execution){.exit_code = 1};
    kk_status st = run_all(&w, err);
    if (st == KK_OK) {
        out->summary = summary_of(&w);
        out->exit_code = w.exit_code;
        out->stopped = w.stopped;
        if (!out->summary) st = kk_no_memory(err, "a summary");
    }
    kk_plan_free(&w.plan);
    kk_words_free(&w.env);
    json_decref(w.commands);
    json_decref(w.reports);
    return st;
}

void kk_execution_release(kk_execution *e) {
    json_decref(e->summary);
    *e = (kk_execution){.exit_code = 1};
}
