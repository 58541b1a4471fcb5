/* bench_policies_report.c - the `policies` of a bench report: docs/reports.md.
 *
 * A policy has the shape of a set of prompts, with turns for rows, so that the rules about
 * speed-ups are the same for both. */
#include <string.h>

#include "eval/measure/bench_parts.h"
#include "eval/reports/gate_rules.h"
#include "eval/reports/report.h"

/* ---- settings ---------------------------------------------------------------------------- */

static const char *keep_name(kk_keep k, const char *all) {
    return k == KK_KEEP_WINDOW ? "window" : k == KK_KEEP_RESTORED ? "restored" : all;
}

static bool keeps_all(const kk_session_opts *how) {
    return how->kv_sliding == KK_KEEP_ALL && how->kv_full == KK_KEEP_ALL;
}

/* The library says -1 for none. */
static json_int_t rows_of(int32_t n) { return n > 0 ? n : 0; }

static void add_counts(json_t *to, const kk_session_opts *how) {
    json_object_set_new(to, "sink", json_integer(rows_of(how->sink)));
    json_object_set_new(to, "window", json_integer(rows_of(how->window)));
    json_object_set_new(to, "chunk", json_integer(rows_of(how->chunk)));
}

static void add_latents(json_t *to, const kk_session_opts *how, const kk_bench_result *r) {
    json_object_set_new(to, "rank", json_integer(r->restores.rank));
    json_object_set_new(to, "latents", json_string(kk_kv_format_name(how->latents)));
}

static bool restores(const kk_session_opts *how) {
    return how->kv_sliding == KK_KEEP_RESTORED || how->kv_full == KK_KEEP_RESTORED;
}

json_t *kk_bench_policies_settings(const kk_bench_opts *o, const kk_bench_result *r) {
    if (r->n_policies == 0) return NULL;
    json_t *names = json_array();
    for (int32_t i = 0; i < r->n_policies; i++)
        json_array_append_new(names, json_string(kk_bench_way_name(r->policy[i].way)));
    json_t *s = json_pack("{s:o, s:s, s:i, s:i, s:i, s:b, s:o}", "policies", names, "policy_text",
                          r->policy_text, "policy_piece", r->policy_piece, "draft_max",
                          o->draft_max, "draft_ctx", o->draft_ctx, "draft_fixed", o->draft_fixed,
                          "accept_trace", kk_bench_trace_json(o));
    for (int32_t i = 0; s && i < r->n_policies; i++) {
        const kk_session_opts *how = &r->policy[i].how;
        if (!keeps_all(how)) add_counts(s, how); /* of all that do not, the same */
        if (restores(how)) add_latents(s, how, r);
    }
    return s;
}

/* ---- turns ------------------------------------------------------------------------------- */

static json_t *counts_json(const kk_key_counts *r) {
    return json_pack("{s:I, s:I, s:I}", "queries", (json_int_t)r->queries, "keys_stored",
                     (json_int_t)r->keys_stored, "keys_rebuilt", (json_int_t)r->keys_rebuilt);
}

static json_t *turn_json(const kk_bench_turn *t, int32_t piece) {
    return json_pack(
        "{s:o, s:i, s:i, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "prompt",
        kk_report_hash(t->prompt), "prompt_tokens", piece, "tokens", t->tokens, "seconds",
        kk_report_real(t->seconds), "prefill_s", kk_report_real(t->prefill_s), "rounds",
        (json_int_t)t->rounds, "drafted", (json_int_t)t->drafted, "accepted",
        (json_int_t)t->accepted, "restored_rows", (json_int_t)t->counts.rows_rebuilt, "reach",
        counts_json(&t->counts), "tokens_hash", kk_report_hash(t->tokens_hash), "logits_hash",
        kk_report_hash(t->logits_hash), "round_times", kk_bench_rounds_json(&t->times));
}

static kk_bench_spread rates_of(const kk_bench_turns *t) {
    double rate[KK_BENCH_MAX_REPEAT];
    for (int32_t i = 0; i < t->n; i++) rate[i] = t->turn[i].tokens / t->turn[i].seconds;
    return kk_bench_spread_of(rate, t->n);
}

static bool steady(const kk_bench_turns *t) {
    double s[KK_BENCH_MAX_REPEAT];
    for (int32_t i = 0; i < t->n; i++) s[i] = t->turn[i].prefill_s;
    const kk_bench_spread p = kk_bench_spread_of(s, t->n);
    return p.max <= KK_GATE_PREFILL_SPREAD * p.min;
}

/* Why a speed-up may not be claimed; NULL: it may. */
static const char *withheld(const kk_bench_policy *p) {
    const kk_bench_turns *t = &p->dflash;
    if (t->spec.drafted == 0) return "nothing was drafted";
    if (t->different) return "drafting changed what was generated";
    if (t->n < KK_GATE_SAMPLES) return "fewer than 5 turns";
    if (t->turn[0].tokens < KK_GATE_TOKENS) return "fewer than 32 tokens in a turn";
    if (!steady(t) || !steady(&p->plain)) return "prefill varied more than 3x";
    if (t->spec.accepted * KK_GATE_ACCEPTED < t->tokens)
        return "fewer than 1 in 20 tokens came from a draft";
    return NULL;
}

static json_t *turns_json(const kk_bench_turns *t) {
    const kk_bench_spread rates = rates_of(t);
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:s, s:I, s:I, s:I, s:o, s:o, s:I, s:o, s:{s:o, s:o}, s:o, s:o}",
        "tokens", (json_int_t)t->tokens, "seconds", kk_report_real(t->seconds), "tok_s",
        kk_report_real(t->tok_s), "tok_s_spread", kk_bench_spread_json(&rates), "token_ms",
        kk_bench_spread_json(&t->ms), "timing", "decode", "rounds", (json_int_t)t->spec.rounds,
        "drafted", (json_int_t)t->spec.drafted, "accepted", (json_int_t)t->spec.accepted,
        "accept_len", kk_report_real(t->accept_len), "histogram",
        kk_report_counts(t->spec.histogram), "restored_rows", (json_int_t)t->counts.rows_rebuilt,
        "rows_per_token", kk_report_real(t->rows_per_token), "keys_per_query", "stored",
        kk_report_real(t->stored_keys), "rebuilt", kk_report_real(t->rebuilt_keys), "reach",
        counts_json(&t->counts), "round_times", kk_bench_rounds_json(&t->times));
}

static void add_rows(json_t *to, const kk_bench_turns *t, int32_t piece) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < t->n; i++) json_array_append_new(rows, turn_json(&t->turn[i], piece));
    json_object_set_new(to, "rows", rows);
}

static json_t *plain_json(const kk_bench_policy *p, int32_t piece) {
    json_t *arm = turns_json(&p->plain);
    json_object_set_new(arm, "speedup", json_null());
    json_object_set_new(arm, "withheld", json_string("it is the baseline"));
    add_rows(arm, &p->plain, piece);
    return arm;
}

static json_t *dflash_json(const kk_bench_opts *o, const kk_bench_policy *p, int32_t piece) {
    const kk_bench_turns *t = &p->dflash;
    const char *why = withheld(p);
    json_t *arm = turns_json(t);
    json_object_set_new(arm, "baseline", json_string("plain"));
    json_object_set_new(arm, "speedup", why ? json_null() : kk_report_real(t->speedup));
    json_object_set_new(arm, "withheld", why ? json_string(why) : json_null());
    json_object_set_new(arm, "lossless", json_boolean(t->different == 0));
    json_object_set_new(arm, "different", json_integer(t->different));
    json_object_set_new(arm, "accept_trace", kk_bench_trace_json(o));
    add_rows(arm, t, piece);
    return arm;
}

/* ---- policies ---------------------------------------------------------------------------- */

static json_t *policy_json(const kk_bench_opts *o, const kk_bench_result *r,
                           const kk_bench_policy *p) {
    const kk_session_opts *how = &p->how;
    json_t *one =
        json_pack("{s:s, s:s, s:s, s:s}", "policy", kk_bench_way_name(p->way), "kv_sliding",
                  keep_name(how->kv_sliding, "native"), "kv_full", keep_name(how->kv_full, "exact"),
                  "kv_format", kk_kv_format_name(how->kv_format));
    if (!keeps_all(how)) add_counts(one, how);
    if (restores(how)) add_latents(one, how, r);
    json_object_set_new(one, "ratio", kk_report_real(p->ratio));
    json_object_set_new(one, "prefill_tok_s",
                        kk_bench_rates_json(&p->prefill_tok_s, p->prefill_rate));
    json_object_set_new(one, "bytes", kk_report_bytes(p->bytes));
    json_object_set_new(one, "warm_up", json_pack("[o]", kk_report_hash(r->policy_warm_up)));
    json_t *arms = json_pack("{s:o}", "plain", plain_json(p, r->policy_piece));
    if (p->dflash.n) json_object_set_new(arms, "dflash", dflash_json(o, p, r->policy_piece));
    json_object_set_new(one, "arms", arms);
    return one;
}

json_t *kk_bench_policies_json(const kk_bench_opts *o, const kk_bench_result *r) {
    if (r->n_policies == 0) return NULL;
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n_policies; i++)
        json_array_append_new(list, policy_json(o, r, &r->policy[i]));
    return list;
}
