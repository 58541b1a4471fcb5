/* needle_report.c - recall on a ladder of documents as one JSON object in a file, down to every
 * answer, so that a reader can judge them again. */
#include "core/alloc.h"
#include "eval/needle.h"
#include "eval/report.h"

static json_t *sample_json(const kk_needle_opts *o, const kk_needle_sample *s, int32_t number) {
    return json_pack("{s:i, s:I, s:i, s:i, s:o, s:i, s:s, s:o, s:b, s:i, s:o, s:o, s:i}", "sample",
                     number, "seed", (json_int_t)o->seed, "lines", s->doc.lines, "index",
                     s->doc.index, "depth", kk_report_real(kk_haystack_depth(&s->doc)), "tokens",
                     s->tokens, "expected", s->doc.code, "answer",
                     kk_report_text(s->answer, s->answer_len), "hit", s->hit, "generated",
                     s->generated, "prefill_s", kk_report_real(s->prefill_s), "decode_s",
                     kk_report_real(s->decode_s), "restored_rows", 0);
}

/* How rates of single samples are spread; NULL without memory. */
static json_t *spread_json(const kk_needle_rung *r, bool decode) {
    double *rate = kk_calloc((size_t)r->n_samples + 1, sizeof *rate);
    size_t n = 0;
    for (int32_t i = 0; rate && i < r->n_samples; i++) {
        const kk_needle_sample *s = &r->samples[i];
        const double tokens = decode ? s->generated - 1 : s->tokens;
        const double seconds = decode ? s->decode_s : s->prefill_s;
        if (tokens > 0 && seconds > 0) rate[n++] = tokens / seconds;
    }
    json_t *o = rate ? kk_report_spread(rate, n) : NULL;
    kk_free(rate);
    return o;
}

/* Nothing was timed: no rate. */
static json_t *rate_json(double rate) { return rate > 0 ? kk_report_real(rate) : json_null(); }

static json_t *rung_json(const kk_needle_opts *o, const kk_needle_rung *r) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < r->n_samples; i++)
        json_array_append_new(rows, sample_json(o, &r->samples[i], i));
    return json_pack("{s:s, s:i, s:[i, i], s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "arm", "exact", "lines", r->lines, "lines_range", r->low, r->high, "tokens",
                     kk_report_real(r->tokens), "samples", r->n_samples, "hits", r->hits, "recall",
                     kk_report_real(r->recall), "prefill_tok_s", rate_json(r->prefill_tok_s),
                     "prefill_tok_s_spread", spread_json(r, false), "decode_tok_s",
                     rate_json(r->decode_tok_s), "decode_tok_s_spread", spread_json(r, true),
                     "bytes", kk_report_bytes(r->bytes), "rows", rows);
}

static json_t *settings_json(const kk_needle_opts *o, const kk_needle_result *r) {
    json_t *ladder = json_array();
    for (int32_t i = 0; i < o->n_rungs; i++)
        json_array_append_new(ladder, json_integer(o->ladder[i]));
    return json_pack("{s:[s], s:I, s:i, s:o, s:i, s:i, s:s, s:s, s:s, s:s}", "arms", "exact",
                     "seed", (json_int_t)o->seed, "samples", o->samples, "ladder", ladder,
                     "predict", o->predict, "ctx", r->ctx, "prompt", o->raw ? "raw" : "chat",
                     "kv_sliding", "native", "kv_full", "exact", "kv_format",
                     kk_report_kv_format(o->kv_format));
}

static json_t *gate_json(const kk_needle_result *r, float min_recall) {
    if (min_recall < 0) return json_null();
    const bool holds = kk_needle_holds(r, min_recall);
    double least = 1;
    for (int32_t i = 0; i < r->n_rungs; i++)
        if (r->rung[i].recall < least) least = r->rung[i].recall;
    return json_pack("{s:o, s:b, s:[{s:s, s:s, s:o, s:o, s:b}]}", "min_recall",
                     kk_report_real((double)min_recall), "holds", holds, "checks", "figure",
                     "recall", "arm", "exact", "limit", kk_report_real((double)min_recall), "value",
                     kk_report_real(least), "holds", holds);
}

kk_status kk_needle_write(const char *path, const kk_needle_opts *opts, const kk_needle_result *r,
                          float min_recall, const char *command, kk_err *err) {
    json_t *rungs = json_array();
    for (int32_t i = 0; i < r->n_rungs; i++)
        json_array_append_new(rungs, rung_json(opts, &r->rung[i]));
    json_t *body = json_pack(
        "{s:s?, s:o, s:o, s:o, s:n, s:o, s:{s:{s:s, s:s, s:s}}, s:o, s:o, s:o}", "command", command,
        "machine", kk_report_machine(&r->machine, &r->device), "model",
        kk_report_printed(kk_report_model(&opts->engine, &r->model), r->prints.model), "drafter",
        kk_report_printed(kk_report_drafter(&r->drafter), r->prints.drafter), "projection",
        "settings", settings_json(opts, r), "arms", "exact", "kv_sliding", "native", "kv_full",
        "exact", "kv_format", kk_report_kv_format(opts->kv_format), "load_s",
        kk_report_real(r->load_s), "gate", gate_json(r, min_recall), "rungs", rungs);
    return kk_report_write(path, kk_report_new("needle", body), err);
}
