/* training_outputs.c - what a run writes, from before its first text to its end; see training.h.
 *
 * The files are open for as long as the run lasts, so that what cannot be written, or may not be
 * replaced, is said before the work, and so that no second run trains into the same folder.  The
 * state of steps (training_state.c) is protected by the same files: it is written only by whoever
 * holds them. */
#include <dirent.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/writer.h"
#include "train/training.h"

enum { MOST_INPUTS = 80, LARGEST_REPORT = 64 << 20 };

static kk_status no_memory(kk_err *err) { return kk_fail(err, KK_ENOMEM, "no memory for a path"); }

/* ---- reports of the projection before ----------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return a && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Whether the file is a report of the kind that trainings write. */
static bool is_report(const char *path) {
    char *text;
    size_t len;
    if (kk_file_read(path, LARGEST_REPORT, &text, &len, NULL) != KK_OK) return false;
    json_t *o = json_loadb(text, len, 0, NULL);
    const char *kind = json_string_value(json_object_get(o, "kind"));
    const bool is = kind && strcmp(kind, "projection") == 0;
    json_decref(o);
    kk_free(text);
    return is;
}

static kk_status check_report(const kk_train_opts *o, const char *name, kk_err *err) {
    if (!ends_with(name, ".json") || strcmp(name, "projection.json") == 0) return KK_OK;
    char *path = kk_path_join(o->out, name);
    if (!path) return no_memory(err);
    kk_status st = KK_OK;
    if (!same_file(o->report, path) && is_report(path))
        st = kk_fail(err, KK_EEXIST,
                     "'%.120s' is the report of the projection that would be replaced: name it as "
                     "the report of the new one, or remove it",
                     path);
    kk_free(path);
    return st;
}

/* A report beside a projection that it does not speak of would mislead. */
static kk_status check_reports(const kk_train_opts *o, kk_err *err) {
    DIR *d = opendir(o->out);
    kk_status st = KK_OK;
    if (!d) return KK_OK;
    for (struct dirent *e; st == KK_OK && (e = readdir(d));) st = check_report(o, e->d_name, err);
    closedir(d);
    return st;
}

/* Steps that were taken before the run was stopped are worth as much as a projection.  Opening the
 * state's file removes what a run that was killed has left of it; this one may write none. */
static kk_status check_state(const kk_training *t, kk_err *err) {
    const kk_writer_opts opts = {.replace = true};
    kk_writer *state = NULL;
    char *path = kk_training_state_path(t);
    if (!path) return no_memory(err);
    kk_status st = kk_writer_open(&state, path, &opts, err);
    kk_writer_close(state);
    if (st == KK_OK && !t->opts->resume && !t->opts->replace && kk_file_exists(path))
        st = kk_fail(err, KK_EEXIST,
                     "'%.120s' exists, the state of a run that was stopped: --resume goes on with "
                     "it",
                     path);
    kk_free(path);
    return st;
}

/* ---- opening, writing, closing ------------------------------------------------------------ */

static kk_status open_files(kk_training *t, kk_err *err) {
    const kk_train_opts *o = t->opts;
    const char *inputs[MOST_INPUTS] = {o->engine.model, o->engine.drafter, o->engine.projection,
                                       o->init_from};
    kk_writer_opts opts = {.replace = o->replace, .inputs = inputs, .n_inputs = 4};
    for (size_t i = 0; i < o->n_paths && opts.n_inputs < MOST_INPUTS; i++)
        inputs[opts.n_inputs++] = o->paths[i];
    KK_TRY(kk_projection_files_open(&t->files, o->out, &opts, err));
    KK_TRY(check_state(t, err));
    KK_TRY(check_reports(o, err));
    return o->report ? kk_writer_open(&t->report, o->report, &opts, err) : KK_OK;
}

kk_status kk_training_open_outputs(kk_training *t, kk_err *err) {
    const bool there = kk_dir_exists(t->opts->out);
    KK_TRY(kk_dir_make(t->opts->out, err));
    t->made_folder = !there;
    return open_files(t, err);
}

static kk_status write_report(kk_training *t, kk_err *err) {
    KK_TRY(kk_training_report(t, err));
    return kk_writer_sync(t->report, err);
}

/* The configuration names the projection and comes last, after the report, so that a run that is
 * killed leaves no projection beside another one's report.  A report that cannot be written is an
 * error, and does not cost the projection. */
kk_status kk_training_write(kk_training *t, kk_err *err) {
    KK_TRY(kk_theta_put(&t->theta, &t->files, err));
    kk_status st = t->report ? write_report(t, err) : KK_OK;
    KK_TRY(kk_writer_commit(t->files.tensors, err));
    if (t->report && st == KK_OK) st = kk_writer_commit(t->report, err);
    kk_err config;
    const kk_status named = kk_writer_commit(t->files.config, &config);
    if (named == KK_OK || st != KK_OK) return st;
    if (err) *err = config;
    return named;
}

/* Removes the folder of a run that produced nothing, unless something else lies in it. */
void kk_training_close_outputs(kk_training *t) {
    kk_projection_files_close(&t->files);
    kk_writer_close(t->report);
    if (t->made_folder) rmdir(t->opts->out);
}
