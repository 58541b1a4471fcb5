/* report_rerun_train.c - a report of `kakeya train projection` executed again: from its settings to
 * the options of the trainer. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/report_rerun.h"
#include "train/entry.h"

enum { PATHS = 64 };

static kk_status fail(kk_err *err, kk_status code, const char *what) {
    err->code = code;
    snprintf(err->msg, sizeof err->msg, "%s", what);
    return code;
}

static const char *text(const json_t *o, const char *key, const char *otherwise) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : otherwise;
}

static int32_t number(const json_t *o, const char *key, int32_t otherwise) {
    const json_t *v = json_object_get(o, key);
    const json_int_t x = json_integer_value(v);
    return json_is_integer(v) && x >= 0 && x <= INT32_MAX ? (int32_t)x : otherwise;
}

static double real(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* ---- options ------------------------------------------------------------------------------ */

static kk_train_opts options_of(const kk_rerun *r, const json_t *s) {
    const json_t *a = json_object_get(s, "optimiser"), *l = json_object_get(s, "lambdas");
    return (kk_train_opts){
        .engine = r->engine,
        .source = text(s, "source", "taps"),
        .rank = number(s, "rank", 0),
        .layers = text(s, "layers", "all"),
        .prompts = r->prompts,
        .tokens = number(s, "tokens", 0),
        .predict = number(s, "predict", 0),
        .length = number(s, "length", 0),
        .needles = number(s, "needles", 0),
        .needle_lines = number(s, "needle_lines", 0),
        .normed_targets = strcmp(text(s, "ridge_targets", "raw"), "normed") == 0,
        .lambda = real(s, "ridge", 0),
        .full_weight = real(s, "ridge_full", 1),
        .loss = text(s, "loss", "ridge"),
        .adamw = {.lr = real(a, "lr", 1e-4),
                  .weight_decay = real(a, "weight_decay", 0.01),
                  .clip = real(a, "clip", 1),
                  .steps = number(a, "steps", 500),
                  .warmup = number(a, "warmup", 0),
                  .constant = strcmp(text(a, "schedule", "cosine"), "const") == 0},
        .k_dir = real(l, "k_dir", 1),
        .v_dir = real(l, "v_dir", 1),
        .k_mag = real(l, "k_mag", (double)0.1f), /* as the option's default is read */
        .v_mag = real(l, "v_mag", (double)0.1f),
        .sink = number(s, "sink", 0),
        .window = number(s, "window", 0),
        .chunk = number(s, "chunk", 1),
        .log_every = number(a, "log_every", 50),
        .checkpoint_every = number(a, "checkpoint_every", 100),
        .seed = (uint64_t)number(s, "seed", 0),
        .sums = text(s, "sums", "host"),
    };
}

static kk_status read_lists(const kk_rerun *r, const json_t *s, kk_train_opts *o,
                            const char *paths[PATHS], kk_err *err) {
    const json_t *taps = json_object_get(s, "taps"), *data = json_object_get(s, "data");
    if (json_array_size(taps) > KK_TRAIN_TAPS || json_array_size(data) > PATHS)
        return fail(err, KK_EFORMAT,
                    "the report names more layers or texts than can be trained on");
    for (size_t i = 0; i < json_array_size(taps); i++)
        o->taps[o->n_taps++] = (int32_t)json_integer_value(json_array_get(taps, i));
    if (r->n_files != json_array_size(data) && r->n_files)
        return fail(err, KK_EINVAL, "name as many texts with --file as the report trained on");
    for (size_t i = 0; i < json_array_size(data); i++) {
        const char *path = json_string_value(json_array_get(data, i));
        paths[o->n_paths++] = r->n_files ? r->files[i] : path ? path : "";
    }
    o->paths = paths;
    if (!json_is_string(json_object_get(s, "init_from"))) return KK_OK;
    return fail(err, KK_EINVAL,
                "the report started from another projection, which it does not "
                "name by a fingerprint: it cannot be executed again");
}

static bool on_event(void *user, const kk_train_event *e) {
    static const char *const phases[KK_TRAIN_PHASES] = {
        "reading texts", "capturing rows", "training", "judging", "sizing", "solving"};
    const kk_rerun *r = user;
    char what[80];
    if (!r->tell) return true;
    snprintf(what, sizeof what, "%s: %lld of %lld", phases[e->phase], (long long)e->done,
             (long long)e->total);
    return r->tell(r->user, what);
}

/* ---- a folder for what is made ------------------------------------------------------------- */

typedef struct {
    char folder[256], report[300];
} place;

static bool make_place(place *p) {
    const char *tmp = getenv("TMPDIR");
    snprintf(p->folder, sizeof p->folder, "%.200s/kakeya-rerun-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(p->folder)) return false;
    snprintf(p->report, sizeof p->report, "%s/report.json", p->folder);
    return true;
}

static void remove_place(const place *p) {
    static const char *const files[] = {"projection.json", "projection.safetensors",
                                        "training.state", "report.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[320];
        snprintf(path, sizeof path, "%s/%s", p->folder, files[i]);
        unlink(path);
    }
    rmdir(p->folder);
}

/* ---- the run ------------------------------------------------------------------------------ */

static kk_status train(const kk_rerun *r, const place *p, json_t **report, kk_err *err) {
    const json_t *s = json_object_get(r->stored, "settings");
    const char *paths[PATHS];
    const kk_train_api *training;
    kk_train_opts o = options_of(r, s);
    kk_status st = read_lists(r, s, &o, paths, err);
    kk_train_result *result = malloc(sizeof *result);
    if (!result) st = fail(err, KK_ENOMEM, "no memory for a result");
    o.out = p->folder;
    o.report = p->report;
    o.replace = true;
    o.on_event = on_event;
    o.user = (void *)r;
    if (st == KK_OK) st = kk_train_load(&training, err);
    if (st == KK_OK) st = training->run(&o, result, err);
    free(result);
    if (st != KK_OK) return st;
    *report = json_load_file(p->report, 0, NULL);
    return *report ? KK_OK : fail(err, KK_EIO, "the report of the training cannot be read");
}

kk_status report_rerun_train(const kk_rerun *r, json_t **report, kk_err *err) {
    place p = {0};
    if (!make_place(&p)) return fail(err, KK_EIO, "no folder can be made to train in");
    const kk_status st = train(r, &p, report, err);
    remove_place(&p);
    return st;
}
