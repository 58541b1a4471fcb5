/* needle_report.c - arms on a ladder of documents and on ordinary text as one JSON object in a
 * file, down to every answer and text, so that a reader can judge them again. */
#include "core/alloc.h"
#include "eval/reports/report.h"
#include "eval/tasks/needle.h"

static json_t *counts_json(const kk_key_counts *r) {
    return json_pack("{s:I, s:I, s:I}", "queries", (json_int_t)r->queries, "keys_stored",
                     (json_int_t)r->keys_stored, "keys_rebuilt", (json_int_t)r->keys_rebuilt);
}

static json_t *sample_json(const kk_needle_opts *o, const kk_needle_sample *s) {
    return json_pack(
        "{s:i, s:I, s:i, s:i, s:o, s:i, s:s, s:o, s:b, s:i, s:o, s:o, s:I, s:o, s:o}", "sample",
        s->number, "seed", (json_int_t)o->seed, "lines", s->doc.lines, "index", s->doc.index,
        "depth", kk_report_real(kk_haystack_depth(&s->doc)), "tokens", s->tokens, "expected",
        s->doc.code, "answer", kk_report_text(s->answer, s->answer_len), "hit", s->hit, "generated",
        s->generated, "prefill_s", kk_report_real(s->prefill_s), "decode_s",
        kk_report_real(s->decode_s), "restored_rows", (json_int_t)s->counts.rows_rebuilt, "reach",
        counts_json(&s->counts), "logits_hash", kk_report_hash(s->logits_hash));
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

static json_t *rung_json(const kk_needle_opts *o, const char *arm, const kk_needle_rung *r) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < r->n_samples; i++)
        json_array_append_new(rows, sample_json(o, &r->samples[i]));
    return json_pack("{s:s, s:i, s:[i, i], s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "arm", arm, "lines", r->lines, "lines_range", r->low, r->high, "tokens",
                     kk_report_real(r->tokens), "samples", r->n_samples, "hits", r->hits, "recall",
                     kk_report_real(r->recall), "prefill_tok_s", rate_json(r->prefill_tok_s),
                     "prefill_tok_s_spread", spread_json(r, false), "decode_tok_s",
                     rate_json(r->decode_tok_s), "decode_tok_s_spread", spread_json(r, true),
                     "bytes", kk_report_bytes(r->bytes), "rows", rows);
}

/* ---- what was chosen --------------------------------------------------------------------- */

static const char *keep_name(kk_keep k, const char *all) {
    return k == KK_KEEP_RESTORED ? "restored" : k == KK_KEEP_WINDOW ? "window" : all;
}

static int32_t or_none(int32_t rows) { return rows > 0 ? rows : 0; }

static json_t *arm_json(const kk_needle_arm *arm, const kk_projection_info *projection) {
    const kk_session_opts *how = &arm->how;
    json_t *o =
        json_pack("{s:s, s:s, s:s}", "kv_sliding", keep_name(how->kv_sliding, "native"), "kv_full",
                  keep_name(how->kv_full, "exact"), "kv_format", kk_kv_format_name(how->kv_format));
    if (arm->way != KK_NEEDLE_EXACT)
        o = kk_report_join(o, json_pack("{s:i, s:i, s:i}", "sink", or_none(how->sink), "window",
                                        or_none(how->window), "chunk", how->chunk));
    if (arm->way == KK_NEEDLE_DRAFTED)
        o = kk_report_join(o, json_pack("{s:s}", "spec", kk_spec_name(how->spec)));
    if (arm->way == KK_NEEDLE_RESTORED || arm->way == KK_NEEDLE_DRAFTED)
        o = kk_report_join(o, json_pack("{s:i, s:s}", "rank", projection->rank, "latents",
                                        kk_kv_format_name(how->latents)));
    return o;
}

static json_t *arms_json(const kk_needle_result *r) {
    json_t *arms = json_object();
    for (int32_t a = 0; a < r->n_arms; a++)
        json_object_set_new(arms, kk_needle_way_name(r->arm[a].way),
                            arm_json(&r->arm[a], &r->projection));
    return arms;
}

static json_t *limit_json(float limit) {
    return limit < 0 ? json_null() : kk_report_real((double)limit);
}

static json_t *settings_json(const kk_needle_opts *o, const kk_needle_result *r,
                             const kk_needle_limits *l) {
    json_t *ladder = json_array(), *arms = json_array();
    for (int32_t i = 0; i < o->n_rungs; i++)
        json_array_append_new(ladder, json_integer(o->ladder[i]));
    for (int32_t a = 0; a < r->n_arms; a++)
        json_array_append_new(arms, json_string(kk_needle_way_name(r->arm[a].way)));
    return json_pack("{s:o, s:I, s:i, s:o, s:i, s:i, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o}",
                     "arms", arms, "seed", (json_int_t)o->seed, "samples", o->samples, "ladder",
                     ladder, "predict", o->predict, "ctx", r->ctx, "prompt",
                     o->raw ? "raw" : "chat", "kv_format", kk_kv_format_name(o->session.kv_format),
                     "spec", kk_spec_name(o->session.spec), "draft_ctx", o->session.draft_ctx,
                     "texts",
                     r->texts.n ? kk_quality_texts_json(&r->texts, &r->source) : json_null(),
                     "min_recall", limit_json(l->min_recall), "max_kl", limit_json(l->max_kl),
                     "min_kv_ratio", limit_json(l->min_kv_ratio));
}

/* ---- what came of it --------------------------------------------------------------------- */

static bool has_window(const kk_needle_result *r) {
    for (int32_t a = 0; a < r->n_arms; a++)
        if (r->arm[a].way == KK_NEEDLE_WINDOW) return true;
    return false;
}

/* min_recall in a gate is about every arm: it does not stand there when it is not. */
static json_t *gate_json(const kk_needle_result *r, const kk_needle_limits *l) {
    kk_needle_check check[KK_NEEDLE_CHECKS];
    const int32_t n = kk_needle_judge(r, l, check);
    json_t *list = json_array(), *gate = json_object();
    bool all = true;
    for (int32_t i = 0; i < n; i++) {
        const kk_needle_check *c = &check[i];
        all &= c->holds;
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:o, s:b}", "figure", c->figure, "arm",
                                        c->arm, "limit", kk_report_real(c->limit), "value",
                                        kk_report_real(c->value), "holds", c->holds));
    }
    if (l->min_recall >= 0 && !has_window(r))
        json_object_set_new(gate, "min_recall", limit_json(l->min_recall));
    json_object_set_new(gate, "holds", json_boolean(all));
    json_object_set_new(gate, "checks", list);
    if (n > 0) return gate;
    json_decref(gate);
    return json_null();
}

/* The parts that arms are held against exact with. */
static json_t *quality_json(const kk_needle_result *r) {
    json_t *quality = json_array(), *sums = json_array();
    for (int32_t a = 1; a < r->n_arms; a++) {
        const char *arm = kk_needle_way_name(r->arm[a].way);
        for (size_t t = 0; t < r->texts.n; t++)
            json_array_append_new(quality, kk_quality_json(arm, &r->arm[a].quality[t]));
        json_array_append_new(sums, kk_quality_sum_json(arm, &r->arm[a].sum));
    }
    return json_pack("{s:o, s:o}", "quality", quality, "sums", sums);
}

json_t *kk_needle_report(const kk_needle_opts *opts, const kk_needle_result *r,
                         const kk_needle_limits *limits) {
    json_t *rungs = json_array();
    for (int32_t a = 0; a < r->n_arms; a++)
        for (int32_t i = 0; i < r->arm[a].n_rungs; i++)
            json_array_append_new(
                rungs, rung_json(opts, kk_needle_way_name(r->arm[a].way), &r->arm[a].rung[i]));
    json_t *body =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "settings", settings_json(opts, r, limits), "arms",
                  arms_json(r), "load_s", kk_report_real(r->load_s), "gate", gate_json(r, limits),
                  "rungs", rungs);
    if (r->n_arms > 1) body = kk_report_join(body, quality_json(r));
    if (body && r->n_arms > 1)
        json_object_set_new(body, "files", kk_quality_files_json(&r->source));
    return kk_report_new("needle", kk_report_join(json_incref(r->run), body));
}

kk_status kk_needle_write(kk_writer *to, const kk_needle_opts *opts, const kk_needle_result *r,
                          const kk_needle_limits *limits, kk_err *err) {
    return kk_report_write(to, kk_needle_report(opts, r, limits), err);
}
