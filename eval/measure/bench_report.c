/* bench_report.c - a bench result as one JSON object in a file.
 *
 * "arms" holds every arm over all prompts, and of plain decoding also how it does on random tokens
 * at the given context; "sets" every arm on every set of prompts, row by row, with the costs of
 * rounds.  A speed-up that rests on too little is withheld, with the reason. */
#include <stdio.h>

#include "core/alloc.h"
#include "eval/measure/bench_parts.h"
#include "eval/reports/gate_rules.h"
#include "eval/reports/report.h"

json_t *kk_bench_spread_json(const kk_bench_spread *s) {
    return json_pack("{s:o, s:o, s:o, s:i}", "median", kk_report_real(s->median), "min",
                     kk_report_real(s->min), "max", kk_report_real(s->max), "n", s->n);
}

json_t *kk_bench_rates_json(const kk_bench_spread *s, const double *rate) {
    json_t *o = kk_bench_spread_json(s), *list = json_array();
    for (int32_t i = 0; i < s->n; i++) json_array_append_new(list, kk_report_real(rate[i]));
    json_object_set_new(o, "samples", list);
    return o;
}

static json_t *samples_ms(const double *seconds, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, kk_report_real(1e3 * seconds[i]));
    return list;
}

static json_t *pass_json(const kk_bench_pass *p) {
    json_t *o = json_pack("{s:i, s:o, s:o, s:o, s:o}", "rows", p->rows, "ms",
                          kk_report_real(1e3 * p->seconds.median), "ms_min",
                          kk_report_real(1e3 * p->seconds.min), "ms_max",
                          kk_report_real(1e3 * p->seconds.max), "ratio", kk_report_real(p->ratio));
    if (p->n_samples) json_object_set_new(o, "samples_ms", samples_ms(p->sample, p->n_samples));
    if (p->experts <= 0) return o;
    json_object_set_new(o, "experts", kk_report_real(p->experts));
    json_object_set_new(o, "gb", kk_report_real((double)p->bytes / 1e9));
    json_object_set_new(o, "gb_s", kk_report_real((double)p->bytes / p->seconds.median / 1e9));
    return o;
}

static json_t *passes_json(const kk_bench_pass *p, int32_t n) {
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, pass_json(&p[i]));
    return list;
}

/* Round times of each repeat. */
static json_t *turns_json(const kk_bench_decode *d) {
    json_t *list = json_array();
    for (int32_t i = 0; i < d->tok_s.n; i++)
        json_array_append_new(list, kk_bench_rounds_json(&d->turn[i]));
    return list;
}

/* Plain decoding at every context that was asked for. */
static json_t *contexts_json(const kk_bench_opts *o, const kk_bench_result *r) {
    json_t *list = json_array();
    for (int32_t i = -1; i < o->n_longer; i++) {
        const kk_bench_decode *d = i < 0 ? &r->decode : &r->longer[i];
        char hash[20];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)d->logits_hash);
        json_array_append_new(
            list,
            json_pack("{s:i, s:o, s:o, s:o, s:o, s:s, s:o, s:o}", "ctx", d->ctx, "decode_tok_s",
                      kk_bench_rates_json(&d->tok_s, d->rate), "round_ms",
                      kk_report_real(d->round_ms), "syncs_per_token", kk_report_real(d->syncs),
                      "ahead_per_token", kk_report_real(d->ahead), "logits_hash", hash,
                      "round_times", kk_bench_rounds_json(&d->rounds), "turns", turns_json(d)));
    }
    return list;
}

/* Where weights of experts lie that are larger than the device's memory, and how often plain
 * decoding at the first context found them there; NULL: they all lie on the device. */
static json_t *offload_json(const kk_bench_result *r) {
    const kk_offload *o = &r->decode.offload;
    const int64_t bytes = o->gpu_bytes + o->host_bytes;
    if (!o->limit && !o->on_host) return NULL;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I}", "limit",
                     (json_int_t)o->limit, "on_gpu", (json_int_t)o->on_gpu, "on_host",
                     (json_int_t)o->on_host, "hits", (json_int_t)o->hits, "misses",
                     (json_int_t)o->misses, "read_gpu", (json_int_t)o->gpu_bytes, "read_host",
                     (json_int_t)o->host_bytes, "hit_rate",
                     bytes ? kk_report_real((double)o->gpu_bytes / (double)bytes) : json_null(),
                     "tokens", (json_int_t)r->decode.tokens, "swaps", (json_int_t)o->swaps,
                     "evicted", (json_int_t)o->evicted);
}

static void add_device(json_t *body, const kk_bench_opts *o, const kk_bench_result *r) {
    if (!body) return;
    json_object_set_new(body, "contexts", contexts_json(o, r));
    json_object_set_new(body, "fused",
                        json_pack("{s:I, s:I, s:I, s:I}", "layers",
                                  (json_int_t)r->fused.layers_fused, "layers_by_ops",
                                  (json_int_t)r->fused.layers_by_ops, "heads",
                                  (json_int_t)r->fused.heads_fused, "heads_by_ops",
                                  (json_int_t)r->fused.heads_by_ops));
    if (r->device_total == 0) return;
    json_t *memory = json_pack("{s:I, s:I}", "total", (json_int_t)r->device_total, "over_weights",
                               (json_int_t)r->device_over_weights);
    json_t *experts = offload_json(r);
    if (experts) json_object_set_new(memory, "experts", experts);
    json_object_set_new(body, "device_memory", memory);
    json_object_set_new(body, "copy_s", kk_report_real(r->copy_s));
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

json_t *kk_bench_trace_json(const kk_bench_opts *o) {
    if (o->trace.p <= 0) return json_null();
    return json_pack("{s:s, s:o, s:I}", "kind", "geom", "p", kk_report_real(o->trace.p), "seed",
                     (json_int_t)o->trace.seed);
}

static json_t *settings_json(const kk_bench_opts *o, const kk_bench_result *r) {
    json_t *s =
        json_pack("{s:o, s:i, s:i, s:i, s:i, s:f, s:s, s:b, s:b}", "arms", arm_names(o), "ctx",
                  o->ctx, "predict", o->predict, "prefill", o->prefill, "repeat", o->repeat,
                  "read_s", kk_bench_read_s(o), "kv_format", kk_kv_format_name(o->kv_format),
                  "mlock", o->engine.mlock, "huge_pages", o->engine.huge_pages);
    json_t *more =
        o->n_arms ? json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:b, s:o}", "prompts",
                              o->sets      ? o->sets
                              : o->prompts ? "file"
                                           : "random ids",
                              "samples", o->samples, "vocab", r->model.vocab, "arm_predict",
                              o->arm_predict, "draft_max", o->draft_max, "draft_ctx", o->draft_ctx,
                              "draft_fixed", o->draft_fixed, "accept_trace", kk_bench_trace_json(o))
                  : NULL;
    if (s && more) json_object_update(s, more);
    json_decref(more);
    json_t *keeps = kk_bench_policies_settings(o, r);
    if (s && keeps) json_object_update(s, keeps);
    json_decref(keeps);
    return s;
}

/* ---- arms -------------------------------------------------------------------------------- */

static json_t *by_proposer(const kk_spec_stats *t) {
    json_t *by = json_object();
    for (kk_spec p = KK_SPEC_DFLASH; p <= KK_SPEC_NGRAM; p++)
        if (t->by[p].rounds > 0)
            json_object_set_new(
                by, kk_spec_name(p),
                json_pack("{s:I, s:I, s:I, s:o}", "rounds", (json_int_t)t->by[p].rounds, "drafted",
                          (json_int_t)t->by[p].drafted, "accepted", (json_int_t)t->by[p].accepted,
                          "drafts", kk_report_counts(t->by[p].drafts)));
    return by;
}

static json_t *drafting_json(const kk_bench_arm *m) {
    const kk_spec_stats *t = &m->spec;
    json_t *all = json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "rounds", (json_int_t)t->rounds,
        "drafted", (json_int_t)t->drafted, "accepted", (json_int_t)t->accepted, "accept_len",
        kk_report_real(m->accept_len), "rows_per_round", kk_report_real(m->rows), "histogram",
        kk_report_counts(t->histogram), "chosen", kk_report_counts(t->chosen), "drafts",
        kk_report_counts(t->drafts), "looking", (json_int_t)t->looking, "by", by_proposer(t));
    if (t->short_rounds)
        kk_report_join(all, json_pack("{s:I, s:I}", "short_rounds", (json_int_t)t->short_rounds,
                                      "short_missed", (json_int_t)t->short_missed));
    return all;
}

static json_t *parts_json(const kk_bench_arm *m) {
    const kk_spec_stats *t = &m->spec;
    const double rest = m->seconds - t->draft_s - t->verify_s - t->choose_s - t->commit_s;
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "draft_s", kk_report_real(t->draft_s), "verify_s",
                     kk_report_real(t->verify_s), "choose_s", kk_report_real(t->choose_s),
                     "commit_s", kk_report_real(t->commit_s), "other_s", kk_report_real(rest));
}

/* ---- rows -------------------------------------------------------------------------------- */

/* The rows of one arm: of one set, or of all. */
typedef struct {
    const kk_bench_set *set;
    int32_t n_sets, n_arms, arm;
} rows_of;

static int32_t count_rows(const rows_of *r) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_sets; i++) n += r->set[i].prompts;
    return n;
}

typedef double (*row_figure)(const kk_bench_row *row);
static double row_rate(const kk_bench_row *w) {
    return w->seconds > 0 ? w->tokens / w->seconds : 0;
}
static double row_tokens(const kk_bench_row *w) { return w->tokens; }
static double row_prefill(const kk_bench_row *w) { return w->prefill_s / w->prompt_tokens; }

/* The spread of a figure of these rows; no rows or no memory: n 0. */
static kk_bench_spread spread_rows(const rows_of *r, row_figure figure) {
    const int32_t n = count_rows(r);
    double *x = n ? kk_calloc((size_t)n, sizeof *x) : NULL;
    int32_t at = 0;
    if (!x) return (kk_bench_spread){.n = 0};
    for (int32_t i = 0; i < r->n_sets; i++)
        for (int32_t j = 0; j < r->set[i].prompts; j++)
            x[at++] = figure(&r->set[i].row[j * r->n_arms + r->arm]);
    const kk_bench_spread s = kk_bench_spread_of(x, n);
    kk_free(x);
    return s;
}

static json_t *runs_json(const kk_bench_row *w) {
    json_t *list = json_array();
    for (int32_t i = 0; i < w->runs; i++)
        json_array_append_new(list, json_pack("{s:o, s:o, s:o}", "seconds",
                                              kk_report_real(w->run[i].seconds), "tokens_hash",
                                              kk_report_hash(w->run[i].tokens), "logits_hash",
                                              kk_report_hash(w->run[i].logits)));
    return list;
}

static json_t *row_json(const kk_bench_row *w) {
    return json_pack("{s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:i, s:o, s:o}",
                     "prompt", kk_report_hash(w->prompt), "text", kk_report_hash(w->text),
                     "prompt_tokens", w->prompt_tokens, "tokens", w->tokens, "seconds",
                     kk_report_real(w->seconds), "seconds_min", kk_report_real(w->seconds_min),
                     "seconds_max", kk_report_real(w->seconds_max), "predicted_s",
                     kk_report_real(w->predicted_s), "prefill_s", kk_report_real(w->prefill_s),
                     "rounds", (json_int_t)w->spec.rounds, "drafted", (json_int_t)w->spec.drafted,
                     "accepted", (json_int_t)w->spec.accepted, "restored_rows", 0, "runs",
                     runs_json(w), "round_times", kk_bench_rounds_json(&w->rounds));
}

static json_t *rows_json(const rows_of *r) {
    json_t *list = json_array();
    for (int32_t j = 0; j < r->set->prompts; j++)
        json_array_append_new(list, row_json(&r->set->row[j * r->n_arms + r->arm]));
    return list;
}

/* Why a speed-up may not be claimed; NULL: it may. */
static const char *withheld(const rows_of *r, const kk_bench_arm *m) {
    if (m->spec.drafted == 0) return "nothing was drafted";
    if (m->different) return "drafting changed what was generated";
    if (count_rows(r) < KK_GATE_SAMPLES) return "fewer than 5 samples";
    if (spread_rows(r, row_tokens).median < KK_GATE_TOKENS)
        return "fewer than 32 tokens in the median sample";
    for (int32_t i = 0; i < r->n_sets; i++)
        for (int32_t arm = 0; arm < r->n_arms; arm++) {
            const rows_of one = {&r->set[i], 1, r->n_arms, arm};
            const kk_bench_spread s = spread_rows(&one, row_prefill);
            if (s.max > KK_GATE_PREFILL_SPREAD * s.min) return "prefill varied more than 3x";
        }
    if (m->spec.accepted * KK_GATE_ACCEPTED < m->tokens)
        return "fewer than 1 in 20 tokens came from a draft";
    return NULL;
}

static void add_claim(json_t *a, const rows_of *r, const kk_bench_arm *m, kk_spec arm) {
    const kk_bench_spread rates = spread_rows(r, row_rate);
    const char *why = arm == KK_SPEC_NONE ? "it is the baseline" : withheld(r, m);
    json_object_set_new(a, "timing", json_string("decode"));
    json_object_set_new(a, "tok_s_spread", rates.n ? kk_bench_spread_json(&rates) : json_null());
    json_object_set_new(a, "baseline", json_string("plain"));
    json_object_set_new(a, "speedup", why ? json_null() : kk_report_real(m->speedup));
    json_object_set_new(a, "withheld", why ? json_string(why) : json_null());
}

static json_t *arm_json(const kk_bench_opts *o, const kk_bench_arm *m, kk_spec arm,
                        const rows_of *rows) {
    const double predicted = m->predicted_s > 0 ? (double)m->tokens / m->predicted_s : 0;
    json_t *a = json_pack("{s:I, s:o, s:o, s:b, s:i, s:i, s:o, s:o, s:o, s:o}", "tokens",
                          (json_int_t)m->tokens, "seconds", kk_report_real(m->seconds), "tok_s",
                          kk_report_real(m->tok_s), "lossless", m->different == 0, "runs", m->runs,
                          "different", m->different, "parts", parts_json(m), "overhead",
                          kk_report_real(m->overhead), "predicted_tok_s", kk_report_real(predicted),
                          "of_predicted", kk_report_real(m->of_predicted));
    json_object_set_new(a, "round_times", kk_bench_rounds_json(&m->rounds));
    add_claim(a, rows, m, arm);
    json_t *drafting = drafting_json(m);
    if (a && drafting) json_object_update(a, drafting);
    json_decref(drafting);
    if (arm == KK_SPEC_NONE) json_object_set_new(a, "floor_share", kk_report_real(m->floor_share));
    if (arm == KK_SPEC_DFLASH) json_object_set_new(a, "accept_trace", kk_bench_trace_json(o));
    if (m->best_tok_s > 0) {
        json_object_set_new(a, "best_draft", json_integer(m->best_draft));
        json_object_set_new(a, "best_tok_s", kk_report_real(m->best_tok_s));
        json_object_set_new(a, "of_best", kk_report_real(m->tok_s / m->best_tok_s));
    }
    return a;
}

static json_t *set_json(const kk_bench_opts *o, const kk_bench_set *s) {
    json_t *arms = json_object();
    for (int32_t i = 0; i < o->n_arms; i++) {
        const rows_of rows = {s, 1, o->n_arms, i};
        json_t *arm = arm_json(o, &s->arm[i], o->arms[i], &rows);
        json_object_set_new(arm, "rows", rows_json(&rows));
        json_object_set_new(arms, arm_name(o->arms[i]), arm);
    }
    return json_pack("{s:s, s:i, s:o, s:[o], s:o, s:{s:o, s:o}}", "set", s->name, "prompts",
                     s->prompts, "prompt_tokens", kk_report_real(s->prompt_tokens), "warm_up",
                     kk_report_hash(s->warm_up), "arms", arms, "costs", "verify",
                     passes_json(s->verify, s->n_verify), "draft",
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
        json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:I, s:o}",
                                              "kv_format", kk_kv_format_name(a->format), "ms",
                                              kk_report_real(1e3 * a->seconds.median), "ms_min",
                                              kk_report_real(1e3 * a->seconds.min), "ms_max",
                                              kk_report_real(1e3 * a->seconds.max), "samples_ms",
                                              samples_ms(a->sample, a->seconds.n), "ratio",
                                              kk_report_real(a->ratio), "kv_bytes",
                                              (json_int_t)a->kv_bytes, "kv_ratio",
                                              kk_report_real(a->kv_ratio)));
    }
    return json_pack("{s:i, s:i, s:o}", "ctx", o->ctx, "rows", 1, "formats", list);
}

/* ---- all of it --------------------------------------------------------------------------- */

static json_t *plain_json(const kk_bench_result *r) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->decode.logits_hash);
    json_t *prefill =
        r->prefill_tok_s.n ? kk_bench_rates_json(&r->prefill_tok_s, r->prefill_rate) : json_null();
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:s, s:o}", "decode_tok_s",
                     kk_bench_rates_json(&r->decode.tok_s, r->decode.rate), "token_bytes",
                     (json_int_t)r->token_bytes, "decode_gb_s",
                     kk_report_real(r->decode_bytes_s / 1e9), "bandwidth_share",
                     kk_report_real(r->decode_share), "floor_share", kk_report_real(r->floor_share),
                     "round_ms", kk_report_real(r->decode.round_ms), "prefill_tok_s", prefill,
                     "logits_hash", hash, "round_times", kk_bench_rounds_json(&r->decode.rounds));
}

/* Every arm over all sets; plain decoding also of random tokens at the given context. */
static json_t *arms_json(const kk_bench_opts *o, const kk_bench_result *r) {
    json_t *arms = json_pack("{s:o}", "plain", plain_json(r));
    for (int32_t i = 0; arms && r->n_sets && i < o->n_arms; i++) {
        const rows_of rows = {r->set, r->n_sets, o->n_arms, i};
        json_t *one = arm_json(o, &r->all.arm[i], o->arms[i], &rows);
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

json_t *kk_bench_report(const kk_bench_opts *o, const kk_bench_result *r, const char *command) {
    json_t *rows =
        json_pack("{s:o, s:o, s:I}", "whole_model", passes_json(r->whole, r->n_whole), "dense_q4_0",
                  passes_json(r->dense, r->n_dense), "dense_bytes", (json_int_t)r->dense_bytes);
    json_t *body = json_pack(
        "{s:s?, s:o, s:o, s:o, s:O, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "command", command,
        "machine", kk_report_machine(&r->machine, &r->device), "model",
        kk_report_printed(kk_report_model(&o->engine, &r->model), r->prints.model), "drafter",
        kk_report_printed(kk_report_drafter(&r->drafter), r->prints.drafter), "projection",
        r->projection, "settings", settings_json(o, r), "bandwidth", bandwidth_json(r), "load_s",
        kk_report_real(r->load_s), "arms", arms_json(o, r), "rows", rows, "attention",
        attention_json(o, r), "bytes", kk_report_bytes(r->bytes), "resident_over_weights",
        (json_int_t)r->resident_over_weights);
    add_device(body, o, r);
    add_sets(body, o, r);
    if (body && (o->n_arms || r->n_policies))
        json_object_set_new(body, "files", kk_report_set_files(o->folder, o->sets, o->prompts));
    json_t *policies = body ? kk_bench_policies_json(o, r) : NULL;
    if (policies) json_object_set_new(body, "policies", policies);
    json_t *sessions = body ? kk_bench_sessions_json(o, r) : NULL;
    if (sessions) json_object_set_new(body, "sessions", sessions);
    json_t *sampling = body ? kk_bench_sampling_json(o, r) : NULL;
    if (sampling) json_object_set_new(body, "sampling", sampling);
    return kk_report_new("bench", body);
}

kk_status kk_bench_write(kk_writer *to, const kk_bench_opts *opts, const kk_bench_result *r,
                         const char *command, kk_err *err) {
    return kk_report_write(to, kk_bench_report(opts, r, command), err);
}
