/* bench_report.c - a bench result as one JSON object in a file. */
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/file.h"
#include "eval/bench.h"

static json_t *real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *spread_json(const kk_bench_spread *s) {
    return json_pack("{s:o, s:o, s:o, s:i}", "median", real(s->median), "min", real(s->min), "max",
                     real(s->max), "n", s->n);
}

static json_t *passes_json(const kk_bench_pass *p, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:i, s:o, s:o, s:o, s:o}", "rows", p[i].rows, "ms",
                            real(1e3 * p[i].seconds.median), "ms_min", real(1e3 * p[i].seconds.min),
                            "ms_max", real(1e3 * p[i].seconds.max), "ratio", real(p[i].ratio)));
    return list;
}

static json_t *machine_json(const kk_bench_result *r) {
    const kk_machine *m = &r->machine;
    return json_pack("{s:s, s:s, s:i, s:I, s:s, s:s, s:i}", "cpu", m->name, "features", m->features,
                     "cores", m->cores, "memory", (json_int_t)m->memory, "device", r->device.device,
                     "isa", r->device.isa, "threads", r->device.threads);
}

static json_t *model_json(const kk_bench_opts *o, const kk_bench_result *r) {
    const kk_model_info *m = &r->model;
    const char *source = o->engine.synthetic ? o->engine.synthetic : o->engine.model;
    return json_pack("{s:s?, s:b, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I}", "source", source,
                     "synthetic", o->engine.synthetic != NULL, "name", m->name, "weight_type",
                     m->weight_type, "format", m->format, "layers", m->layers, "params",
                     (json_int_t)m->params, "params_active", (json_int_t)m->params_active,
                     "weight_bytes", (json_int_t)m->weight_bytes, "token_bytes",
                     (json_int_t)m->token_bytes);
}

static json_t *settings_json(const kk_bench_opts *o) {
    return json_pack("{s:[s], s:i, s:i, s:i, s:i, s:s, s:b, s:b}", "arms", "plain", "ctx", o->ctx,
                     "predict", o->predict, "prefill", o->prefill, "repeat", o->repeat, "kv_format",
                     o->kv_format == KK_KV_F32 ? "f32" : "bf16", "mlock", o->engine.mlock,
                     "huge_pages", o->engine.huge_pages);
}

static json_t *plain_json(const kk_bench_result *r) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->logits_hash);
    json_t *prefill = r->prefill_tok_s.n ? spread_json(&r->prefill_tok_s) : json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:s}", "decode_tok_s",
                     spread_json(&r->decode_tok_s), "decode_gb_s", real(r->decode_bytes_s / 1e9),
                     "bandwidth_share", real(r->decode_share), "round_ms", real(r->round_ms),
                     "prefill_tok_s", prefill, "logits_hash", hash);
}

static json_t *memory_json(const kk_bench_result *r) {
    json_t *o = json_object();
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        json_object_set_new(o, kk_mem_category_name((kk_mem_category)c), json_integer(r->bytes[c]));
    return o;
}

static json_t *result_json(const kk_bench_opts *o, const kk_bench_result *r) {
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *bandwidth = json_pack("{s:o, s:o}", "before_gb_s", real(r->bandwidth_before / 1e9),
                                  "after_gb_s", real(r->bandwidth_after / 1e9));
    json_t *rows =
        json_pack("{s:o, s:o, s:I}", "whole_model", passes_json(r->whole, r->n_whole), "dense_q4_0",
                  passes_json(r->dense, r->n_dense), "dense_bytes", (json_int_t)r->dense_bytes);
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:{s:o}, s:o, s:o, s:I}", "kind",
                     "bench", "version", kk_version(), "date", date, "machine", machine_json(r),
                     "model", model_json(o, r), "settings", settings_json(o), "bandwidth",
                     bandwidth, "load_s", real(r->load_s), "arms", "plain", plain_json(r), "rows",
                     rows, "bytes", memory_json(r), "resident_over_weights",
                     (json_int_t)r->resident_over_weights);
}

kk_status kk_bench_write(const char *path, const kk_bench_opts *opts, const kk_bench_result *r,
                         kk_err *err) {
    json_t *o = result_json(opts, r);
    char *text =
        o ? json_dumps(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(o);
    kk_writer *w = NULL;
    kk_status st =
        text ? kk_writer_open(&w, path, err) : kk_fail(err, KK_ENOMEM, "no memory for the report");
    if (st == KK_OK) st = kk_writer_put(w, text, strlen(text), err);
    if (st == KK_OK) st = kk_writer_put(w, "\n", 1, err);
    if (st == KK_OK) {
        st = kk_writer_commit(w, err);
        w = NULL;
    }
    kk_writer_abort(w);
    free(text);
    return st;
}
