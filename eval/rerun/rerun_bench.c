/* rerun_bench.c - reports of `kakeya bench`: decoding at its contexts, arms on prompts, policies
 * and sessions once more.
 *
 * Where not all is executed, prompts are drawn of those of the arms, or policies beside exact, and
 * everything is repeated no oftener than so many times; forwards of several rows and attention
 * alone, which are there for their times, are left out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "eval/measure/bench.h"
#include "eval/rerun/kinds.h"
#include "eval/texts/promptset.h"

/* What a controller that is free to choose decides. */
#define DRAFTING(path, how)                                                                        \
    {path "/rounds", how}, {path "/drafted", how}, {path "/accepted", how},                        \
        {path "/accept_len", how}, {path "/rows_per_round", how}, {path "/histogram", how},        \
        {path "/chosen", how}, {path "/drafts", how}, {path "/looking", how}, {path "/by", how},   \
        {path "/short_rounds", how}, {path "/short_missed", how}, {path "/reach", how},            \
        {path "/keys_per_query", how}, {path "/restored_rows", how}, {                             \
        path "/rows_per_token", how                                                                \
    }

/* Figures over all prompts. */
#define OF_ALL(path)                                                                               \
    {path "/tokens", KK_MEMBER_TOTAL}, {path "/rows_per_round", KK_MEMBER_TOTAL},                  \
        {path "/rounds", KK_MEMBER_TOTAL}, {path "/histogram", KK_MEMBER_TOTAL},                   \
        {path "/chosen", KK_MEMBER_TOTAL}, {                                                       \
        path "/drafts", KK_MEMBER_TOTAL                                                            \
    }

/* Times, and what is computed from them. */
#define TIMES                                                                                      \
    {"bandwidth", KK_MEMBER_LEFT}, {"resident_over_weights", KK_MEMBER_LEFT},                      \
        {"copy_s", KK_MEMBER_LEFT}, {"device_memory", KK_MEMBER_LEFT},                             \
        {"rows/*/ms*", KK_MEMBER_LEFT}, {"rows/*/ratio", KK_MEMBER_LEFT},                          \
        {"rows/*/gb_s", KK_MEMBER_LEFT}, {"attention/formats/ms*", KK_MEMBER_LEFT},                \
        {"attention/formats/ratio", KK_MEMBER_LEFT}, {"**/decode_tok_s", KK_MEMBER_TIMED},         \
        {"**/prefill_tok_s", KK_MEMBER_TIMED}, {"**/tok_s_spread", KK_MEMBER_TIMED},               \
        {"**/token_ms", KK_MEMBER_TIMED}, {"**/gap_s", KK_MEMBER_TIMED},                           \
        {"**/tok_s", KK_MEMBER_LEFT}, {"**/seconds*", KK_MEMBER_LEFT},                             \
        {"**/predicted*", KK_MEMBER_LEFT}, {"**/of_*", KK_MEMBER_LEFT},                            \
        {"**/prefill_s", KK_MEMBER_LEFT}, {"**/decode_gb_s", KK_MEMBER_LEFT},                      \
        {"**/*_share", KK_MEMBER_LEFT}, {"**/round_ms", KK_MEMBER_LEFT},                           \
        {"**/parts", KK_MEMBER_LEFT}, {"**/overhead", KK_MEMBER_LEFT},                             \
        {"**/costs", KK_MEMBER_LEFT}, {"**/speedup", KK_MEMBER_SHOWN},                             \
        {"**/withheld", KK_MEMBER_SHOWN}, {"**/best_*", KK_MEMBER_LEFT},                           \
        {"**/syncs_per_token", KK_MEMBER_LEFT}, {"**/ahead_per_token", KK_MEMBER_LEFT},            \
        {"policies/ratio", KK_MEMBER_LEFT}, {"sessions/ratio", KK_MEMBER_LEFT},                    \
        {"**/*_s", KK_MEMBER_LEFT}, {"sessions/rounds", KK_MEMBER_SHOWN}, {                        \
        "sessions/arrival/chunks", KK_MEMBER_SHOWN                                                 \
    }

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    TIMES,
    {"**/round_times", KK_MEMBER_LEFT},
    /* A session decodes for as long as the prompt beside it takes: the time decides how many tokens
     * its hash is of.  That both are the same is computed by the gate. */
    {"sessions/arrival/logits_hashes", KK_MEMBER_SHOWN},
    {"contexts/turns", KK_MEMBER_LEFT},
    {"settings/policies", KK_MEMBER_TOTAL},
    {"settings/repeat", KK_MEMBER_TOTAL},
    {"settings/read_s", KK_MEMBER_TOTAL},
    {"settings/rank", KK_MEMBER_TOTAL}, /* where a policy restores */
    {"settings/latents", KK_MEMBER_TOTAL},
    {"settings/sink", KK_MEMBER_TOTAL},
    {"settings/window", KK_MEMBER_TOTAL},
    {"settings/chunk", KK_MEMBER_TOTAL},
    {"rows", KK_MEMBER_TOTAL},
    {"fused", KK_MEMBER_TOTAL},
    {"**/runs", KK_MEMBER_TOTAL},
    {"policies/arms/plain/tokens", KK_MEMBER_TOTAL},
    {"policies/arms/plain/rounds", KK_MEMBER_TOTAL},
    {"policies/arms/plain/histogram", KK_MEMBER_TOTAL},
    {"policies/arms/plain/restored_rows", KK_MEMBER_TOTAL},
    {"policies/arms/plain/rows_per_token", KK_MEMBER_TOTAL},
    {"policies/arms/plain/keys_per_query", KK_MEMBER_TOTAL},
    {"policies/arms/plain/reach", KK_MEMBER_TOTAL},
    {"policies/arms/*/tokens", KK_MEMBER_TOTAL},
    {"sessions/*/tokens", KK_MEMBER_TOTAL},
    {"sessions/*/rows", KK_MEMBER_TOTAL},
    {"sessions/sessions_in_rounds", KK_MEMBER_TOTAL},
    {"attention", KK_MEMBER_TOTAL},
    {"sampling", KK_MEMBER_TOTAL},
    {"bytes", KK_MEMBER_MOST},
    {"sets/prompts", KK_MEMBER_TOTAL},
    {"sets/prompt_tokens", KK_MEMBER_TOTAL},
    OF_ALL("arms/plain"),
    OF_ALL("sets/arms/plain"),
    {"arms/plain/**", KK_MEMBER_EQUAL},
    {"sets/arms/plain/**", KK_MEMBER_EQUAL},
    {"policies/arms/plain/**", KK_MEMBER_EQUAL},
    DRAFTING("arms/*", KK_MEMBER_DRAFTED_TOTAL),
    DRAFTING("sets/arms/*", KK_MEMBER_DRAFTED_TOTAL),
    DRAFTING("sets/arms/*/rows", KK_MEMBER_DRAFTED),
    DRAFTING("policies/arms/*", KK_MEMBER_DRAFTED_TOTAL),
    DRAFTING("policies/arms/*/rows", KK_MEMBER_DRAFTED),
    {"arms/*/tokens", KK_MEMBER_TOTAL},
    {"sets/arms/*/tokens", KK_MEMBER_TOTAL},
    {NULL, KK_MEMBER_EQUAL},
};

static const kk_list_rule lists[] = {
    {"sets", "set"},
    {"sets/arms/*/rows", "prompt"},
    {"policies", "policy"},
    {"policies/arms/*/rows", "prompt"},
    {"contexts", "ctx"},
    {"rows/*", "rows"},
    {"attention/formats", "kv_format"},
    {"sampling/ways", "way"},
    {"files", "name"},
    {NULL, NULL},
};

static bool free_drafts(const json_t *stored) {
    return !kk_rerun_flag(json_object_get(stored, "settings"), "draft_fixed");
}

/* ---- options ------------------------------------------------------------------------------ */

static bool on_step(void *user, const char *what) {
    const kk_rerun *r = user;
    return !r->tell || r->tell(r->user, what);
}

/* The contexts behind the first. */
static kk_status read_contexts(const kk_rerun *r, kk_bench_opts *o, kk_err *err) {
    const json_t *list = json_object_get(r->stored, "contexts");
    KK_TRY(kk_rerun_need(kk_rerun_settings(r), "ctx", 1, INT32_MAX, &o->ctx, err));
    for (size_t i = 1; i < json_array_size(list) && o->n_longer < KK_BENCH_CONTEXTS; i++)
        KK_TRY(kk_rerun_need(json_array_get(list, i), "ctx", 1, INT32_MAX,
                             &o->longer[o->n_longer++], err));
    return KK_OK;
}

static kk_status read_rows(const kk_rerun *r, kk_bench_opts *o, kk_err *err) {
    const json_t *list = json_object_get(json_object_get(r->stored, "rows"), "whole_model");
    for (size_t i = 0; i < json_array_size(list) && o->n_rows < KK_BENCH_ROWS; i++)
        KK_TRY(kk_rerun_need(json_array_get(list, i), "rows", 1, 128, &o->rows[o->n_rows++], err));
    return KK_OK;
}

static kk_status read_arms(const kk_rerun *r, kk_bench_opts *o, kk_err *err) {
    const json_t *s = kk_rerun_settings(r), *list = json_object_get(s, "arms");
    if (!json_object_get(s, "prompts")) return KK_OK; /* plain decoding of random tokens alone */
    for (size_t i = 0; i < json_array_size(list) && o->n_arms < KK_BENCH_ARMS; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        KK_TRY(kk_rerun_spec(name ? name : "", &o->arms[o->n_arms++], err));
    }
    KK_TRY(kk_rerun_need(s, "samples", 1, KK_PROMPTSET_MOST - 1, &o->samples, err));
    return kk_rerun_need(s, "arm_predict", 0, 1 << 20, &o->arm_predict, err);
}

/* Sets by name, a file, or random ids; policies take their text from them too. */
static kk_status read_prompts(const kk_rerun *r, kk_bench_opts *o, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    const char *prompts = kk_rerun_text(s, "prompts", kk_rerun_text(s, "policy_text", NULL));
    if (!prompts || strcmp(prompts, "random ids") == 0) return KK_OK;
    o->folder = r->prompts;
    if (kk_rerun_file(r)) {
        o->prompts = kk_rerun_file(r);
        return KK_OK;
    }
    if (strcmp(prompts, "file") == 0)
        return kk_fail(err, KK_EINVAL, "the report read prompts of its own: name them with `file`");
    o->sets = prompts;
    return KK_OK;
}

static kk_status read_drafting(const json_t *s, kk_bench_opts *o, kk_err *err) {
    const json_t *trace = json_object_get(s, "accept_trace");
    o->draft_max = (int32_t)kk_rerun_int(s, "draft_max", 0);
    o->draft_ctx = (int32_t)kk_rerun_int(s, "draft_ctx", 0);
    o->draft_fixed = kk_rerun_flag(s, "draft_fixed");
    if (o->draft_max < 0 || o->draft_max > KK_MAX_DRAFT)
        return kk_fail(err, KK_EFORMAT, "the report's setting `draft_max` is %d", o->draft_max);
    if (json_is_object(trace))
        o->trace = (kk_trace_opts){.p = kk_rerun_real(trace, "p", 0),
                                   .seed = (uint64_t)kk_rerun_int(trace, "seed", 0)};
    return KK_OK;
}

static kk_status read_policies(const kk_rerun *r, kk_bench_opts *o, kk_err *err) {
    const json_t *s = kk_rerun_settings(r), *list = json_object_get(s, "policies");
    const size_t n = json_array_size(list);
    bool taken[KK_BENCH_WAYS];
    if (n > KK_BENCH_WAYS) return kk_fail(err, KK_EFORMAT, "the report has %zu policies", n);
    if (n) KK_TRY(kk_subset_draw(taken, n, &r->subset, err));
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        kk_bench_way w = 0;
        while (w < KK_BENCH_WAYS && (!name || strcmp(name, kk_bench_way_name(w)) != 0)) w++;
        if (w == KK_BENCH_WAYS)
            return kk_fail(err, KK_EFORMAT, "the report has a policy '%.30s', which there is not",
                           name ? name : "");
        o->ways[w] = taken[i] || w == KK_BENCH_EXACT; /* the others are held against it */
    }
    kk_rerun_rows(s, &o->keep);
    return kk_rerun_format(s, "latents", &o->keep.latents, err);
}

static kk_status read_all(const kk_rerun *r, kk_bench_opts *o, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    KK_TRY(read_contexts(r, o, err));
    KK_TRY(kk_rerun_need(s, "predict", 1, 1 << 20, &o->predict, err));
    KK_TRY(kk_rerun_need(s, "repeat", 1, KK_BENCH_MAX_REPEAT, &o->repeat, err));
    KK_TRY(kk_rerun_need(s, "prefill", 0, 1 << 30, &o->prefill, err));
    KK_TRY(kk_rerun_format(s, "kv_format", &o->kv_format, err));
    KK_TRY(read_arms(r, o, err));
    KK_TRY(read_prompts(r, o, err));
    KK_TRY(read_drafting(s, o, err));
    KK_TRY(read_policies(r, o, err));
    o->sessions = (int32_t)kk_rerun_int(json_object_get(r->stored, "sessions"), "n", 0);
    if (o->sessions < 0 || o->sessions > KK_BENCH_MOST_SESSIONS)
        return kk_fail(err, KK_EFORMAT, "the report has %d sessions", o->sessions);
    if (o->sessions > KK_BENCH_LOGITS) o->engine.max_logits = o->sessions;
    o->engine.mlock = kk_rerun_flag(s, "mlock");
    o->engine.huge_pages = kk_rerun_flag(s, "huge_pages");
    o->read_s = fmin(fmax(kk_rerun_real(s, "read_s", 1), 0.01), 60);
    if (r->subset.n && r->subset.n < o->repeat) o->repeat = r->subset.n;
    if (r->subset.n) { /* times are only shown */
        o->read_s = fmin(o->read_s, 0.05);
        return KK_OK;
    }
    o->attention = json_is_object(json_object_get(r->stored, "attention"));
    o->sampling = json_is_object(json_object_get(r->stored, "sampling"));
    return read_rows(r, o, err);
}

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    kk_bench_opts o = {
        .engine = r->engine, .subset = r->subset, .on_step = on_step, .user = (void *)r};
    KK_TRY(read_all(r, &o, err));
    kk_bench_result *result = kk_calloc(1, sizeof *result);
    if (!result) return kk_fail(err, KK_ENOMEM, "no memory for a result");
    const kk_status st = kk_bench_run(&o, result, err);
    if (st == KK_OK) {
        *report = kk_bench_report(&o, result, NULL);
        kk_bench_release(result);
    }
    kk_free(result);
    return st;
}

const kk_rerun_kind kk_rerun_bench = {
    .kind = "bench",
    .unit = "prompts of the arms, or policies beside exact; sessions and contexts as a whole",
    .members = members,
    .lists = lists,
    .free_drafts = free_drafts,
    .run = run};
