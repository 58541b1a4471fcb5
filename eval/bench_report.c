/* bench_report.c - a bench result as one JSON object in a file. */
#include <stdio.h>

#include "eval/bench.h"
#include "eval/report.h"

static json_t *spread_json(const kk_bench_spread *s) {
    return json_pack("{s:o, s:o, s:o, s:i}", "median", kk_report_real(s->median), "min",
                     kk_report_real(s->min), "max", kk_report_real(s->max), "n", s->n);
}

static json_t *passes_json(const kk_bench_pass *p, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:i, s:o, s:o, s:o, s:o}", "rows", p[i].rows, "ms",
                                              kk_report_real(1e3 * p[i].seconds.median), "ms_min",
                                              kk_report_real(1e3 * p[i].seconds.min), "ms_max",
                                              kk_report_real(1e3 * p[i].seconds.max), "ratio",
                                              kk_report_real(p[i].ratio)));
    return list;
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
                     spread_json(&r->decode_tok_s), "decode_gb_s",
                     kk_report_real(r->decode_bytes_s / 1e9), "bandwidth_share",
                     kk_report_real(r->decode_share), "round_ms", kk_report_real(r->round_ms),
                     "prefill_tok_s", prefill, "logits_hash", hash);
}

static json_t *result_json(const kk_bench_opts *o, const kk_bench_result *r) {
    json_t *bandwidth =
        json_pack("{s:o, s:o}", "before_gb_s", kk_report_real(r->bandwidth_before / 1e9),
                  "after_gb_s", kk_report_real(r->bandwidth_after / 1e9));
    json_t *rows =
        json_pack("{s:o, s:o, s:I}", "whole_model", passes_json(r->whole, r->n_whole), "dense_q4_0",
                  passes_json(r->dense, r->n_dense), "dense_bytes", (json_int_t)r->dense_bytes);
    json_t *body = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:{s:o}, s:o, s:o, s:I}", "machine",
        kk_report_machine(&r->machine, &r->device), "model", kk_report_model(&o->engine, &r->model),
        "settings", settings_json(o), "bandwidth", bandwidth, "load_s", kk_report_real(r->load_s),
        "arms", "plain", plain_json(r), "rows", rows, "bytes", kk_report_bytes(r->bytes),
        "resident_over_weights", (json_int_t)r->resident_over_weights);
    return kk_report_new("bench", body);
}

kk_status kk_bench_write(const char *path, const kk_bench_opts *opts, const kk_bench_result *r,
                         kk_err *err) {
    return kk_report_write(path, result_json(opts, r), err);
}
