/* report.c - the parts of a JSON report that do not depend on what was measured. */
#define _GNU_SOURCE
#include "eval/reports/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/digest.h"
#include "core/file.h"
#include "core/tie.h"
#include "core/utf8.h"
#include "core/writer.h"
#include "engine/engine.h"

enum {
    REPORT_DIGITS = 6,    /* of a number */
    FILE_MOST = 256 << 20 /* bytes of a file whose digest is taken */
};

json_t *kk_report_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *kk_report_text(const char *text, size_t len) {
    char *clean = kk_malloc(3 * len + 1); /* each bad byte becomes the three of U+FFFD */
    size_t n = 0;
    uint32_t cp;
    if (!clean) return NULL;
    for (size_t i = 0; i < len;) {
        const size_t whole = kk_utf8_next(text + i, len - i, &cp);
        n += kk_utf8_put(clean + n, whole ? cp : 0xfffd);
        i += whole ? whole : 1;
    }
    json_t *s = json_stringn(clean, n);
    kk_free(clean);
    return s;
}

static json_t *ties_json(const kk_device_info *d) {
    return json_pack("{s:I, s:I, s:o}", "choices", (json_int_t)d->choices, "near",
                     (json_int_t)d->near_ties, "share", kk_report_real(2 * KK_LOGIT_TOLERANCE));
}

json_t *kk_report_machine(const kk_machine *m, const kk_device_info *d) {
    json_t *all = json_pack("{s:s, s:s, s:i, s:I, s:s, s:s, s:i}", "cpu", m->name, "features",
                            m->features, "cores", m->cores, "memory", (json_int_t)m->memory,
                            "device", d->device, "isa", d->isa, "threads", d->threads);
    if (all && d->exact_rows < 0)
        json_object_set_new(all, "exact", json_string("not proven bit-exact on this device"));
    if (all && d->exact_rows > 0)
        json_object_set_new(all, "exact_rows", json_integer(d->exact_rows));
    if (!all) return NULL;
    json_object_set_new(all, "exact_by", json_string(d->exact_by));
    if (d->exact_rows == 0) return all;
    json_object_set_new(all, "page_kernel", json_boolean(d->page_kernel));
    json_object_set_new(all, "near_ties", ties_json(d));
    return all;
}

void kk_report_count_ties(json_t *run, const kk_engine *e) {
    json_t *machine = json_object_get(run, "machine");
    const json_t *before = json_object_get(machine, "near_ties");
    kk_device_info d;
    if (!before) return;
    kk_engine_device(e, &d);
    d.choices += json_integer_value(json_object_get(before, "choices"));
    d.near_ties += json_integer_value(json_object_get(before, "near"));
    json_object_set_new(machine, "near_ties", ties_json(&d));
}

json_t *kk_report_model(const kk_engine_opts *o, const kk_model_info *m) {
    const char *source = o->synthetic ? o->synthetic : o->model;
    /* Reports are shared: where a model lies on this machine is nobody's business. */
    const char *slash = source ? strrchr(source, '/') : NULL;
    if (slash && slash[1]) source = slash + 1;
    return json_pack("{s:s?, s:b, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I}", "source", source,
                     "synthetic", o->synthetic != NULL, "name", m->name, "weight_type",
                     m->weight_type, "format", m->format, "layers", m->layers, "params",
                     (json_int_t)m->params, "params_active", (json_int_t)m->params_active,
                     "weight_bytes", (json_int_t)m->weight_bytes, "token_bytes",
                     (json_int_t)m->token_bytes);
}

json_t *kk_report_drafter(const kk_drafter_info *d) {
    if (d->layers == 0) return json_null();
    json_t *taps = json_array();
    for (int32_t i = 0; i < d->n_taps; i++) json_array_append_new(taps, json_integer(d->taps[i]));
    json_t *all =
        json_pack("{s:i, s:i, s:i, s:o, s:s, s:I, s:I}", "layers", d->layers, "hidden", d->hidden,
                  "block", d->block, "taps", taps, "embed_scale", d->embed_scale, "params",
                  (json_int_t)d->params, "weight_bytes", (json_int_t)d->weight_bytes);
    if (d->short_rows) json_object_set_new(all, "short_rows", json_integer(d->short_rows));
    return all;
}

json_t *kk_report_counts(const int64_t n[KK_MAX_DRAFT + 1]) {
    int last = KK_MAX_DRAFT;
    while (last > 0 && n[last] == 0) last--;
    json_t *list = json_array();
    for (int i = 0; i <= last; i++) json_array_append_new(list, json_integer(n[i]));
    return list;
}

json_t *kk_report_bytes(const int64_t bytes[KK_MEM_CATEGORIES]) {
    json_t *o = json_object();
    for (int c = 0; o && c < KK_MEM_CATEGORIES; c++)
        json_object_set_new(o, kk_mem_category_name((kk_mem_category)c), json_integer(bytes[c]));
    return o;
}

json_t *kk_report_hash(uint64_t hash) {
    char text[17];
    if (!hash) return json_null();
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

json_t *kk_report_printed(json_t *object, uint64_t fingerprint) {
    if (fingerprint) json_object_set_new(object, "fingerprint", kk_report_hash(fingerprint));
    return object;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

json_t *kk_report_spread(double *values, size_t n) {
    if (n == 0) return json_null();
    qsort(values, n, sizeof *values, by_value);
    const double median = (values[(n - 1) / 2] + values[n / 2]) / 2;
    return json_pack("{s:o, s:o, s:o, s:I}", "median", kk_report_real(median), "min",
                     kk_report_real(values[0]), "max", kk_report_real(values[n - 1]), "n",
                     (json_int_t)n);
}

/* The layers it can rebuild, and whose rows those are. */
static json_t *projection_json(const kk_projection_info *i, const kk_projection_config *c,
                               uint64_t model) {
    json_t *taps = json_array();
    for (int32_t t = 0; t < i->n_taps; t++) json_array_append_new(taps, json_integer(i->taps[t]));
    json_t *o =
        json_pack("{s:s, s:o, s:i, s:{s:i, s:i}, s:I, s:I, s:o}", "source", i->source, "taps", taps,
                  "rank", i->rank, "layers", "sliding", i->sliding_layers, "full", i->full_layers,
                  "params", (json_int_t)i->params, "weight_bytes", (json_int_t)i->weight_bytes,
                  "model", kk_report_hash(c->verifier ? c->verifier : model));
    if (o && c->drafter) json_object_set_new(o, "drafter", kk_report_hash(c->drafter));
    if (o && i->other_weights) {
        json_object_set_new(o, "other_weights", json_true());
        json_object_set_new(o, "identity", kk_report_hash(c->verifier_identity));
    }
    return o;
}

json_t *kk_report_projection(kk_engine *e) {
    kk_projection_info info;
    kk_fingerprints prints;
    if (!kk_engine_projection(e, &info)) return json_null();
    kk_engine_fingerprints(e, &prints);
    return kk_report_printed(
        projection_json(&info, kk_projection_config_of(e->projection), prints.model),
        prints.projection);
}

/* The model with what other precisions of it have too. */
static json_t *model_json(const kk_engine_opts *o, const kk_model_info *info,
                          const kk_fingerprints *prints) {
    json_t *model = kk_report_printed(kk_report_model(o, info), prints->model);
    if (!model) return NULL;
    json_object_set_new(model, "identity", kk_report_hash(prints->identity));
    if (prints->source != prints->model)
        json_object_set_new(model, "quantised_from", kk_report_hash(prints->source));
    return model;
}

json_t *kk_report_run(kk_engine *e, const kk_engine_opts *o, const char *command) {
    kk_machine machine;
    kk_device_info device;
    kk_model_info model;
    kk_drafter_info drafter = {0};
    kk_fingerprints prints;
    kk_machine_info(&machine);
    kk_engine_device(e, &device);
    kk_engine_info(e, &model);
    (void)kk_engine_drafter(e, &drafter);
    kk_engine_fingerprints(e, &prints);
    return json_pack("{s:s?, s:o, s:o, s:o, s:o}", "command", command, "machine",
                     kk_report_machine(&machine, &device), "model", model_json(o, &model, &prints),
                     "drafter", kk_report_printed(kk_report_drafter(&drafter), prints.drafter),
                     "projection", kk_report_projection(e));
}

json_t *kk_report_join(json_t *run, json_t *body) {
    if (!run || !body || json_object_update(run, body) != 0) {
        json_decref(run);
        run = NULL;
    }
    json_decref(body);
    return run;
}

/* ---- what it was made with --------------------------------------------------------------- */

#define TEXT(x) #x
#define DIGITS(x) TEXT(x)
#if defined(__clang__)
#define COMPILER                                                                                   \
    "clang " DIGITS(__clang_major__) "." DIGITS(__clang_minor__) "." DIGITS(__clang_patchlevel__)
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

const char *kk_report_compiler(void) { return COMPILER; }

static json_t *build_json(void) {
#ifdef __OPTIMIZE__
    const bool optimised = true;
#else
    const bool optimised = false;
#endif
    return json_pack("{s:s, s:b}", "compiler", kk_report_compiler(), "optimised", optimised);
}

/* Whole words; the last one is filled with zeros, and the length tells it from one that is not. */
static uint64_t digest_of(const char *data, size_t len) {
    uint64_t sum = 0, carry = 0;
    for (size_t at = 0, chunk = 0; at < len; at += sizeof(uint32_t[KK_DIGEST_WORDS]), chunk++) {
        uint32_t word[KK_DIGEST_WORDS] = {0};
        const size_t left = len - at, n = left < sizeof word ? left : sizeof word;
        memcpy(word, data + at, n);
        sum += kk_digest_chunk(chunk, word, (int)((n + 3) / 4), &carry);
    }
    return kk_digest_end(sum, len);
}

json_t *kk_report_file(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *data;
    size_t len;
    if (kk_file_read(path, FILE_MOST, &data, &len, NULL) != KK_OK) return NULL;
    json_t *o = json_pack("{s:o, s:I, s:o}", "name", kk_report_text(name, strlen(name)), "size",
                          (json_int_t)len, "digest", kk_report_hash(digest_of(data, len)));
    kk_free(data);
    return o;
}

static void add_file(json_t *list, const char *path) {
    json_t *file = kk_report_file(path);
    if (file) json_array_append_new(list, file);
}

json_t *kk_report_set_files(const char *folder, const char *names, const char *path) {
    json_t *list = json_array();
    if (path) add_file(list, path);
    for (const char *at = folder && names ? names : ""; *at;) {
        const size_t len = strcspn(at, ",");
        char name[80];
        snprintf(name, sizeof name, "%.*s.jsonl", (int)(len < 64 ? len : 64), at);
        char *file = kk_path_join(folder, name);
        if (file) add_file(list, file);
        kk_free(file);
        at += len + (at[len] == ',');
    }
    return list;
}

json_t *kk_report_new(const char *kind, json_t *body) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *o = json_pack("{s:i, s:s, s:s, s:o, s:s}", "schema", KK_REPORT_SCHEMA, "kind", kind,
                          "version", kk_version(), "build", build_json(), "date", date);
    return kk_report_join(o, body);
}

json_t *kk_report_as_written(const json_t *report) {
    char *text = json_dumps(report, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(REPORT_DIGITS));
    json_t *read = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return read;
}

static kk_status put(kk_writer *to, const json_t *o, size_t digits, kk_err *err) {
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER | digits) : NULL;
    kk_status st = text ? kk_writer_put(to, text, strlen(text), err)
                        : kk_fail(err, KK_ENOMEM, "no memory for the report");
    if (st == KK_OK) st = kk_writer_put(to, "\n", 1, err);
    free(text);
    return st;
}

kk_status kk_report_put(kk_writer *to, json_t *report, kk_err *err) {
    const kk_status st = put(to, report, JSON_REAL_PRECISION(REPORT_DIGITS), err);
    json_decref(report);
    return st;
}

kk_status kk_report_write_exact(kk_writer *to, const json_t *o, kk_err *err) {
    KK_TRY(put(to, o, JSON_REAL_PRECISION(17), err));
    return kk_writer_commit(to, err);
}

kk_status kk_report_write(kk_writer *to, json_t *report, kk_err *err) {
    KK_TRY(kk_report_put(to, report, err));
    return kk_writer_commit(to, err);
}
