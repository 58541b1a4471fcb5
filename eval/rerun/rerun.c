/* rerun.c - reads a report, makes sure that what it is executed with is what it was made with, runs
 * it and compares; see rerun.h. */
#include "eval/rerun/rerun.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/file.h"
#include "eval/reports/report.h"
#include "eval/rerun/kinds.h"

enum { MOST_BYTES = 64 << 20 };

/* ---- kinds -------------------------------------------------------------------------------- */

static const kk_rerun_kind compare_kind = {
    .kind = "compare",
    .refused = "it compares with another program, whose build and weights are not here"};
static const kk_rerun_kind lossless_kind = {
    .kind = "lossless",
    .refused = "it counts the cases of `make lossless-all`, which executes them all itself"};

/* How many turns and kills there are, and which answers they get, depends on when clients come; and
 * what was answered is counted there, not kept. */
static const kk_rerun_kind soak_kind = {
    .kind = "soak",
    .refused = "it holds memory and times of a server over minutes, and counts of answers that no "
               "seed gives again; `make soak` takes it anew, `report check` computes its limits"};
static const kk_rerun_kind chaos_kind = {
    .kind = "chaos",
    .refused = "its server was killed at moments that no seed gives again; `make chaos` takes it "
               "anew, `report check` computes its limits"};

static const kk_rerun_kind *const kinds[] = {
    &kk_rerun_needle, &kk_rerun_sweep,      &kk_rerun_kv,    &kk_rerun_memory, &kk_rerun_accept,
    &kk_rerun_bench,  &kk_rerun_projection, &kk_rerun_steps, &kk_rerun_load,   &compare_kind,
    &lossless_kind,   &soak_kind,           &chaos_kind,
};

static const kk_rerun_kind *kind_named(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i]->kind, name) == 0) return kinds[i];
    return NULL;
}

const char *kk_rerun_unit(const kk_rerun *r) { return r->kind->unit; }
const char *kk_rerun_whole(const kk_rerun *r) { return r->kind->whole; }

/* ---- reading ------------------------------------------------------------------------------ */

static kk_status choose_kind(kk_rerun *r, const char *path, kk_err *err) {
    const char *kind = kk_rerun_text(r->stored, "kind", NULL);
    if (!kind || !json_is_object(kk_rerun_settings(r)))
        return kk_fail(err, KK_EFORMAT, "'%.150s' is no report: it says no kind or no settings",
                       path);
    r->kind = kind_named(kind);
    if (!r->kind)
        return kk_fail(err, KK_EFORMAT,
                       "a report of the kind '%.40s' cannot be executed again: no rules say how",
                       kind);
    if (r->kind->refused)
        return kk_fail(err, KK_EFORMAT, "a report of the kind '%s' cannot be executed again: %s",
                       kind, r->kind->refused);
    return KK_OK;
}

kk_status kk_rerun_read(kk_rerun *out, const char *path, kk_err *err) {
    char *text;
    size_t len;
    json_error_t why;
    *out = (kk_rerun){.stored = NULL};
    KK_TRY(kk_file_read(path, MOST_BYTES, &text, &len, err));
    out->stored = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    kk_free(text);
    if (!out->stored)
        return kk_fail(err, KK_EFORMAT, "'%.120s' is not JSON at line %d, column %d: %.60s", path,
                       why.line, why.column, why.text);
    const kk_status st = choose_kind(out, path, err);
    if (st != KK_OK) kk_rerun_release(out);
    return st;
}

void kk_rerun_release(kk_rerun *r) {
    json_decref(r->stored);
    *r = (kk_rerun){.stored = NULL};
}

/* ---- what it is executed with ------------------------------------------------------------- */

static kk_status same_print(const kk_rerun *r, const char *part, const json_t *of,
                            uint64_t fingerprint, const char *option, kk_err *err) {
    const char *stored = kk_rerun_text(of, "fingerprint", "");
    char here[17];
    snprintf(here, sizeof here, "%016llx", (unsigned long long)fingerprint);
    if (!*stored && !fingerprint) return KK_OK;
    if (strcmp(stored, here) == 0) return KK_OK;
    (void)r;
    if (!*stored)
        return kk_fail(err, KK_EINVAL,
                       "the report says no fingerprint of its %s, so that nothing can be held "
                       "against it",
                       part);
    if (!fingerprint)
        return kk_fail(err, KK_EINVAL,
                       "the report is of the %s %.16s, and none is loaded: name it "
                       "with `%s`",
                       part, stored, option);
    return kk_fail(err, KK_EINVAL,
                   "the report is of the %s %.16s, and this one is %s: name the other with `%s`",
                   part, stored, here, option);
}

/* A report of training has a projection that no engine had loaded. */
static kk_status check_prints(const kk_rerun *r, kk_engine *e, kk_err *err) {
    kk_fingerprints prints;
    kk_engine_fingerprints(e, &prints);
    KK_TRY(same_print(r, "model", json_object_get(r->stored, "model"), prints.model, "model", err));
    KK_TRY(same_print(r, "drafter", json_object_get(r->stored, "drafter"), prints.drafter,
                      "drafter", err));
    const json_t *list = json_object_get(r->stored, "projections");
    const json_t *projection = json_object_get(r->stored, "projection");
    if (r->kind == &kk_rerun_projection || r->n_projections) return KK_OK;
    if (json_array_size(list) == 1) projection = json_array_get(list, 0);
    return same_print(r, "projection", projection, prints.projection, "projection", err);
}

static void note(kk_rerun_result *out, const char *what, const char *stored, const char *here) {
    if (out->n_notes == KK_RERUN_NOTES || strcmp(stored, here) == 0) return;
    snprintf(out->note[out->n_notes++], sizeof out->note[0], "%s: %.90s in the report, %.90s here",
             what, *stored ? stored : "not said", here);
}

/* Says where this machine and build are others, and what may differ for it. */
static void note_machine(const kk_rerun *r, kk_engine *e, kk_rerun_result *out,
                         kk_compare_opts *how) {
    const json_t *m = json_object_get(r->stored, "machine");
    kk_device_info device;
    kk_machine machine;
    char then[24], now[24];
    kk_engine_device(e, &device);
    kk_machine_info(&machine);
    snprintf(then, sizeof then, "%lld", (long long)kk_rerun_int(m, "threads", 0));
    snprintf(now, sizeof now, "%d", device.threads);
    note(out, "version", kk_rerun_text(r->stored, "version", ""), kk_version());
    note(out, "compiler",
         kk_rerun_text(json_object_get(r->stored, "build"), "compiler", kk_report_compiler()),
         kk_report_compiler());
    note(out, "machine", kk_rerun_text(m, "cpu", ""), machine.name);
    note(out, "threads", then, now);
    /* A library that a device is made of chooses its kernels by the processor. */
    const bool follows = strcmp(device.exact_by, "kernels") != 0;
    const bool same = strcmp(kk_rerun_text(m, "device", ""), device.device) == 0 &&
                      strcmp(kk_rerun_text(m, "isa", ""), device.isa) == 0 &&
                      (!follows || strcmp(kk_rerun_text(m, "cpu", ""), machine.name) == 0);
    note(out, "device", kk_rerun_text(m, "device", ""), device.device);
    note(out, "instructions", kk_rerun_text(m, "isa", ""), device.isa);
    if (!same && out->n_notes < KK_RERUN_NOTES)
        snprintf(out->note[out->n_notes++], sizeof out->note[0],
                 "on another kind of device bits differ: what is different is shown, not judged");
    how->other_device = !same;
    how->within = r->kind->within;
}

/* ---- files -------------------------------------------------------------------------------- */

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Where a file of the report is: among those given by the caller, or shipped. */
static char *find_file(const kk_rerun *r, const char *name) {
    for (size_t i = 0; i < r->n_files; i++)
        if (strcmp(last_part(r->files[i]), name) == 0)
            return kk_strndup(r->files[i], strlen(r->files[i]));
    return r->prompts ? kk_path_join(r->prompts, name) : NULL;
}

static kk_status check_file(const kk_rerun *r, const json_t *file, kk_err *err) {
    const char *name = kk_rerun_text(file, "name", "");
    char *path = find_file(r, name);
    json_t *here = path ? kk_report_file(path) : NULL;
    const char *stored = kk_rerun_text(file, "digest", ""),
               *now = kk_rerun_text(here, "digest", "");
    kk_status st = KK_OK;
    if (!*now)
        st = kk_fail(err, KK_EINVAL, "the report read '%.100s': name it with `file`", name);
    else if (strcmp(stored, now) != 0)
        st = kk_fail(err, KK_EINVAL,
                     "'%.100s' is not what the report read: its digest is %.16s, "
                     "and was %.16s",
                     name, now, stored);
    json_decref(here);
    kk_free(path);
    return st;
}

static kk_status check_files(const kk_rerun *r, kk_err *err) {
    const json_t *files = json_object_get(r->stored, "files");
    for (size_t i = 0; i < json_array_size(files); i++)
        KK_TRY(check_file(r, json_array_get(files, i), err));
    return KK_OK;
}

/* ---- the run ------------------------------------------------------------------------------ */

/* Opens the engine once before anything is computed. */
static kk_status check(const kk_rerun *r, kk_rerun_result *out, kk_compare_opts *how, kk_err *err) {
    kk_engine *e;
    if (r->tell && !r->tell(r->user, "opening the model"))
        return kk_fail(err, KK_ESTOPPED, "stopped before the model was opened");
    KK_TRY(check_files(r, err));
    KK_TRY(kk_engine_open(&e, &r->engine, err));
    const kk_status st = check_prints(r, e, err);
    if (st == KK_OK) note_machine(r, e, out, how);
    kk_engine_close(e);
    return st;
}

static kk_status execute(const kk_rerun *r, kk_rerun_result *out, kk_err *err) {
    json_t *report = NULL;
    KK_TRY(r->kind->run(r, &report, err));
    out->report = kk_report_as_written(report);
    json_decref(report);
    return out->report ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for the report");
}

static kk_status run(const kk_rerun *r, kk_rerun_result *out, kk_err *err) {
    kk_compare_opts how = {.members = r->kind->members,
                           .lists = r->kind->lists,
                           .drawn = r->subset.n > 0 && r->kind->unit,
                           .free_drafts = r->kind->free_drafts && r->kind->free_drafts(r->stored)};
    KK_TRY(check(r, out, &how, err));
    KK_TRY(execute(r, out, err));
    return kk_compare(r->stored, out->report, &how, &out->found, err);
}

kk_status kk_rerun_run(const kk_rerun *r, kk_rerun_result *out, kk_err *err) {
    *out = (kk_rerun_result){.report = NULL};
    const kk_status st = run(r, out, err);
    if (st != KK_OK) kk_rerun_result_release(out);
    return st;
}

void kk_rerun_result_release(kk_rerun_result *r) {
    json_decref(r->report);
    kk_comparison_release(&r->found);
    *r = (kk_rerun_result){.report = NULL};
}
