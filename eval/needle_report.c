/* needle_report.c - recall on a ladder of documents as one JSON object in a file, down to every
 * answer, so that a reader can judge them again. */
#include "eval/needle.h"
#include "eval/report.h"

static json_t *sample_json(const kk_needle_opts *o, const kk_needle_sample *s, int32_t number) {
    return json_pack("{s:i, s:I, s:i, s:i, s:o, s:i, s:s, s:o, s:b, s:i, s:o, s:o}", "sample",
                     number, "seed", (json_int_t)o->seed, "lines", s->doc.lines, "index",
                     s->doc.index, "depth", kk_report_real(kk_haystack_depth(&s->doc)), "tokens",
                     s->tokens, "expected", s->doc.code, "answer",
                     kk_report_text(s->answer, s->answer_len), "hit", s->hit, "generated",
                     s->generated, "prefill_s", kk_report_real(s->prefill_s), "decode_s",
                     kk_report_real(s->decode_s));
}

static json_t *rung_json(const kk_needle_opts *o, const kk_needle_rung *r) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < r->n_samples; i++)
        json_array_append_new(rows, sample_json(o, &r->samples[i], i));
    return json_pack("{s:s, s:i, s:[i, i], s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "arm", "exact",
                     "lines", r->lines, "lines_range", r->low, r->high, "tokens",
                     kk_report_real(r->tokens), "samples", r->n_samples, "hits", r->hits, "recall",
                     kk_report_real(r->recall), "prefill_tok_s", kk_report_real(r->prefill_tok_s),
                     "decode_tok_s", kk_report_real(r->decode_tok_s), "bytes",
                     kk_report_bytes(r->bytes), "rows", rows);
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
    return json_pack("{s:o, s:b}", "min_recall", kk_report_real((double)min_recall), "holds",
                     kk_needle_holds(r, min_recall));
}

kk_status kk_needle_write(const char *path, const kk_needle_opts *opts, const kk_needle_result *r,
                          float min_recall, const char *command, kk_err *err) {
    json_t *rungs = json_array();
    for (int32_t i = 0; i < r->n_rungs; i++)
        json_array_append_new(rungs, rung_json(opts, &r->rung[i]));
    json_t *body = json_pack("{s:s?, s:o, s:o, s:o, s:o, s:o, s:o}", "command", command, "machine",
                             kk_report_machine(&r->machine, &r->device), "model",
                             kk_report_model(&opts->engine, &r->model), "settings",
                             settings_json(opts, r), "load_s", kk_report_real(r->load_s), "gate",
                             gate_json(r, min_recall), "rungs", rungs);
    return kk_report_write(path, kk_report_new("needle", body), err);
}
