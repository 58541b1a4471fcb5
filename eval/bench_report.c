/* bench_report.c - a bench result as one JSON object in a file.
 *
 * "arms" holds every arm over all prompts, and of plain decoding also how it does on random tokens
 * at the given context; "sets" every arm on every set of prompts, with the costs of rounds. */
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

/* ---- settings ---------------------------------------------------------------------------- */

static const char *arm_name(kk_spec arm) {
    return arm == KK_SPEC_NONE ? "plain" : kk_spec_name(arm);
}

static json_t *arm_names(const kk_bench_opts *o) {
    json_t *list = json_array();
    for (int32_t i = 0; i < o->n_arms; i++)
        json_array_append_new(list, json_string(arm_name(o->arms[i])));
    if (o->n_arms == 0) json_array_append_new(list, json_string("plain"));
    return list;
}

/* A trace is said to be one wherever its figures stand. */
static json_t *trace_json(const kk_bench_opts *o) {
    if (o->trace.p <= 0) return json_null();
    return json_pack("{s:s, s:o, s:I}", "kind", "geom", "p", kk_report_real(o->trace.p), "seed",
                     (json_int_t)o->trace.seed);
}

static json_t *settings_json(const kk_bench_opts *o) {
    json_t *s = json_pack("{s:o, s:i, s:i, s:i, s:i, s:s, s:b, s:b}", "arms", arm_names(o), "ctx",
                          o->ctx, "predict", o->predict, "prefill", o->prefill, "repeat", o->repeat,
                          "kv_format", kk_report_kv_format(o->kv_format), "mlock", o->engine.mlock,
                          "huge_pages", o->engine.huge_pages);
    json_t *more = o->n_arms
                       ? json_pack("{s:s, s:i, s:i, s:i, s:i, s:b, s:o}", "prompts",
                                   o->sets      ? o->sets
                                   : o->prompts ? "file"
                                                : "random ids",
                                   "samples", o->samples, "arm_predict", o->arm_predict,
                                   "draft_max", o->draft_max, "draft_ctx", o->draft_ctx,
                                   "draft_fixed", o->draft_fixed, "accept_trace", trace_json(o))
                       : NULL;
    if (s && more) json_object_update(s, more);
    json_decref(more);
    return s;
}

/* ---- arms -------------------------------------------------------------------------------- */

static json_t *drafting_json(const kk_bench_arm *m) {
    const kk_spec_stats *t = &m->spec;
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "rounds",
                     (json_int_t)t->rounds, "drafted", (json_int_t)t->drafted, "accepted",
                     (json_int_t)t->accepted, "accept_len", kk_report_real(m->accept_len),
                     "rows_per_round", kk_report_real(m->rows), "histogram",
                     kk_report_counts(t->histogram), "chosen", kk_report_counts(t->chosen),
                     "drafts", kk_report_counts(t->drafts), "looking", (json_int_t)t->looking);
}

static json_t *parts_json(const kk_bench_arm *m) {
    const kk_spec_stats *t = &m->spec;
    const double rest = m->seconds - t->draft_s - t->verify_s - t->choose_s - t->commit_s;
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "draft_s", kk_report_real(t->draft_s), "verify_s",
                     kk_report_real(t->verify_s), "choose_s", kk_report_real(t->choose_s),
                     "commit_s", kk_report_real(t->commit_s), "other_s", kk_report_real(rest));
}

static json_t *arm_json(const kk_bench_opts *o, const kk_bench_arm *m, kk_spec arm) {
    const double predicted = m->predicted_s > 0 ? (double)m->tokens / m->predicted_s : 0;
    json_t *a =
        json_pack("{s:I, s:o, s:o, s:o, s:b, s:i, s:i, s:o, s:o, s:o, s:o}", "tokens",
                  (json_int_t)m->tokens, "seconds", kk_report_real(m->seconds), "tok_s",
                  kk_report_real(m->tok_s), "speedup", kk_report_real(m->speedup), "lossless",
                  m->different == 0, "runs", m->runs, "different", m->different, "parts",
                  parts_json(m), "overhead", kk_report_real(m->overhead), "predicted_tok_s",
                  kk_report_real(predicted), "of_predicted", kk_report_real(m->of_predicted));
    json_t *drafting = drafting_json(m);
    if (a && drafting) json_object_update(a, drafting);
    json_decref(drafting);
    if (arm == KK_SPEC_NONE) json_object_set_new(a, "floor_share", kk_report_real(m->floor_share));
    if (arm == KK_SPEC_DFLASH) json_object_set_new(a, "accept_trace", trace_json(o));
    if (m->best_tok_s > 0) {
        json_object_set_new(a, "best_draft", json_integer(m->best_draft));
        json_object_set_new(a, "best_tok_s", kk_report_real(m->best_tok_s));
        json_object_set_new(a, "of_best", kk_report_real(m->tok_s / m->best_tok_s));
    }
    return a;
}

static json_t *set_json(const kk_bench_opts *o, const kk_bench_set *s) {
    json_t *arms = json_object();
    for (int32_t i = 0; i < o->n_arms; i++)
        json_object_set_new(arms, arm_name(o->arms[i]), arm_json(o, &s->arm[i], o->arms[i]));
    return json_pack("{s:s, s:i, s:o, s:o, s:{s:o, s:o}}", "set", s->name, "prompts", s->prompts,
                     "prompt_tokens", kk_report_real(s->prompt_tokens), "arms", arms, "costs",
                     "verify", passes_json(s->verify, s->n_verify), "draft",
                     passes_json(s->draft, s->n_draft));
}

static void add_sets(json_t *body, const kk_bench_opts *o, const kk_bench_result *r) {
    if (!body || r->n_sets == 0) return;
    json_t *sets = json_array();
    for (int32_t i = 0; i < r->n_sets; i++) json_array_append_new(sets, set_json(o, &r->set[i]));
    json_object_set_new(body, "sets", sets);
}

static json_t *attention_json(const kk_bench_opts *o, const kk_bench_result *r) {
    if (r->n_attention == 0) return json_null();
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n_attention; i++) {
        const kk_bench_attention *a = &r->attention[i];
        json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:I, s:o}", "kv_format",
                                              kk_report_kv_format(a->format), "ms",
                                              kk_report_real(1e3 * a->seconds.median), "ratio",
                                              kk_report_real(a->ratio), "kv_bytes",
                                              (json_int_t)a->kv_bytes, "kv_ratio",
                                              kk_report_real(a->kv_ratio)));
    }
    return json_pack("{s:i, s:i, s:o}", "ctx", o->ctx, "rows", 1, "formats", list);
}

/* ---- all of it --------------------------------------------------------------------------- */

static json_t *plain_json(const kk_bench_result *r) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->logits_hash);
    json_t *prefill = r->prefill_tok_s.n ? spread_json(&r->prefill_tok_s) : json_null();
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "decode_tok_s", spread_json(&r->decode_tok_s),
        "decode_gb_s", kk_report_real(r->decode_bytes_s / 1e9), "bandwidth_share",
        kk_report_real(r->decode_share), "floor_share", kk_report_real(r->floor_share), "round_ms",
        kk_report_real(r->round_ms), "prefill_tok_s", prefill, "logits_hash", hash);
}

/* Every arm over all sets; plain decoding also of random tokens at the given context. */
static json_t *arms_json(const kk_bench_opts *o, const kk_bench_result *r) {
    json_t *arms = json_pack("{s:o}", "plain", plain_json(r));
    for (int32_t i = 0; arms && r->n_sets && i < o->n_arms; i++) {
        json_t *one = arm_json(o, &r->all.arm[i], o->arms[i]);
        if (i == 0) json_object_update(json_object_get(arms, "plain"), one);
        if (i > 0) json_object_set(arms, arm_name(o->arms[i]), one);
        json_decref(one);
    }
    return arms;
}

static json_t *bandwidth_json(const kk_bench_result *r) {
    return json_pack("{s:o, s:o, s:o}", "before_gb_s", kk_report_real(r->bandwidth_before / 1e9),
                     "after_gb_s", kk_report_real(r->bandwidth_after / 1e9), "floor_gb_s",
                     kk_report_real(r->floor_bytes_s / 1e9));
}

static json_t *result_json(const kk_bench_opts *o, const kk_bench_result *r) {
    json_t *rows =
        json_pack("{s:o, s:o, s:I}", "whole_model", passes_json(r->whole, r->n_whole), "dense_q4_0",
                  passes_json(r->dense, r->n_dense), "dense_bytes", (json_int_t)r->dense_bytes);
    json_t *body = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "machine",
        kk_report_machine(&r->machine, &r->device), "model", kk_report_model(&o->engine, &r->model),
        "drafter", kk_report_drafter(&r->drafter), "settings", settings_json(o), "bandwidth",
        bandwidth_json(r), "load_s", kk_report_real(r->load_s), "arms", arms_json(o, r), "rows",
        rows, "attention", attention_json(o, r), "bytes", kk_report_bytes(r->bytes),
        "resident_over_weights", (json_int_t)r->resident_over_weights);
    add_sets(body, o, r);
    return kk_report_new("bench", body);
}

kk_status kk_bench_write(const char *path, const kk_bench_opts *opts, const kk_bench_result *r,
                         kk_err *err) {
    return kk_report_write(path, result_json(opts, r), err);
}
