/* rerun_steps.c - reports of `kakeya eval steps`: documents, texts and turns once more.
 *
 * Speeds, and what is judged by them, stand beside each other.  Turns are few and are compared with
 * one another, so a draw executes all of it. */
#include <string.h>

#include "core/error.h"
#include "eval/measure/steps.h"
#include "eval/rerun/kinds.h"

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    KK_RERUN_ROW_TIMES,
    /* What is judged by speed may be judged otherwise this time. */
    {"steps", KK_MEMBER_SHOWN},
    {"gate", KK_MEMBER_SHOWN},
    {"**/round_times", KK_MEMBER_LEFT},
    {"**/seconds", KK_MEMBER_LEFT},
    {"**/*tok_s", KK_MEMBER_LEFT},
    {"**/*_spread", KK_MEMBER_TIMED},
    {"**/token_ms", KK_MEMBER_TIMED},
    {"policies/ratio", KK_MEMBER_LEFT},
    {"**/speedup", KK_MEMBER_SHOWN},
    {"**/withheld", KK_MEMBER_SHOWN},
    {"policies/arms/plain/**", KK_MEMBER_EQUAL},
    {"policies/arms/*/tokens", KK_MEMBER_EQUAL},
    {"policies/arms/*/rows/prompt", KK_MEMBER_EQUAL},
    {"policies/arms/*/rows/tokens", KK_MEMBER_EQUAL},
    {"policies/arms/*/rows/*_hash", KK_MEMBER_EQUAL},
    {"policies/arms/*/lossless", KK_MEMBER_EQUAL},
    {"policies/arms/*/different", KK_MEMBER_EQUAL},
    /* The rest of a drafted arm follows from what the controller chose. */
    {"policies/arms/dflash/**", KK_MEMBER_DRAFTED},
    {"rungs/rows/reach", KK_MEMBER_DRAFTED},
    {"rungs/rows/restored_rows", KK_MEMBER_DRAFTED},
    {NULL, KK_MEMBER_EQUAL},
};

static const kk_list_rule lists[] = {
    {"rungs", "arm lines"},  {"rungs/rows", "sample"},
    {"quality", "arm text"}, {"sums", "arm"},
    {"policies", "policy"},  {"policies/arms/*/rows", "prompt"},
    {"files", "name"},       {NULL, NULL},
};

static bool free_drafts(const json_t *stored) {
    return !kk_rerun_flag(json_object_get(stored, "settings"), "draft_fixed");
}

static bool on_step(void *user, const char *what) {
    const kk_rerun *r = user;
    return !r->tell || r->tell(r->user, what);
}

/* The second of the policies; exact is the first. */
static kk_status read_way(const json_t *s, kk_bench_way *out, kk_err *err) {
    const json_t *list = json_object_get(s, "policies");
    const char *name = json_string_value(json_array_get(list, 1));
    for (*out = 0; *out < KK_BENCH_WAYS; ++*out)
        if (name && strcmp(name, kk_bench_way_name(*out)) == 0) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "the report's steps are of the policy '%.30s', which there is not",
                   name ? name : "");
}

static kk_status read_all(const kk_rerun *r, kk_steps_opts *o, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    kk_quality_source source;
    int32_t rungs;
    KK_TRY(read_way(s, &o->way, err));
    KK_TRY(kk_rerun_format(s, "kv_format", &o->kv_format, err));
    KK_TRY(kk_rerun_format(s, "latents", &o->keep.latents, err));
    kk_rerun_rows(s, &o->keep);
    KK_TRY(kk_rerun_list(s, "ladder", KK_HAYSTACK_MOST_LINES, &o->lines, 1, &rungs, err));
    KK_TRY(kk_rerun_need(s, "samples", 1, KK_NEEDLE_SAMPLES, &o->samples, err));
    KK_TRY(kk_rerun_need(s, "predict", 1, 1 << 20, &o->predict, err));
    KK_TRY(kk_rerun_need(s, "repeat", 1, KK_BENCH_MAX_REPEAT, &o->turns, err));
    KK_TRY(kk_rerun_need(s, "draft_max", 0, KK_MAX_DRAFT, &o->draft_max, err));
    KK_TRY(kk_rerun_source(r, &source, err));
    o->texts = source.paths;
    o->n_texts = source.n_paths;
    o->text_tokens = source.most;
    o->draft_ctx = (int32_t)kk_rerun_int(s, "draft_ctx", 0);
    o->draft_fixed = kk_rerun_flag(s, "draft_fixed");
    o->least_speed[0] = kk_rerun_real(s, "min_restored_speed", 0);
    o->least_speed[1] = kk_rerun_real(s, "min_drafted_speed", 0);
    o->max_kl = (float)kk_rerun_real(s, "max_kl", -1);
    return KK_OK;
}

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    kk_steps_opts o = {.engine = r->engine,
                       .seed = (uint64_t)kk_rerun_int(s, "seed", 0),
                       .sets = kk_rerun_text(s, "policy_text", ""),
                       .prompts = r->prompts,
                       .on_step = on_step,
                       .user = (void *)r};
    kk_steps_result result;
    KK_TRY(read_all(r, &o, err));
    KK_TRY(kk_steps_run(&o, &result, err));
    *report = kk_steps_report(&o, &result);
    kk_steps_release(&result);
    return KK_OK;
}

const kk_rerun_kind kk_rerun_steps = {.kind = "steps",
                                      .whole = "steps are executed as a whole",
                                      .members = members,
                                      .lists = lists,
                                      .free_drafts = free_drafts,
                                      .run = run};
