/* rerun_accept.c - reports of `kakeya eval accept`: prompts are continued again, plainly and with
 * drafts of the same length. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "eval/rerun/kinds.h"
#include "eval/tasks/accept.h"

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    {"sets", KK_MEMBER_TOTAL},
    {"all", KK_MEMBER_TOTAL},
    {NULL, KK_MEMBER_EQUAL},
};

static const kk_list_rule lists[] = {
    {"rows", "set arm embed_scale prompt"},
    {"sets", "set arm embed_scale"},
    {"files", "name"},
    {NULL, NULL},
};

static bool on_prompt(void *user, const char *set, int32_t done, int32_t total) {
    return kk_rerun_tell(user, set, done, total);
}

/* The sets of the report, each once, with commas between. */
static kk_status read_sets(const kk_rerun *r, char *out, size_t cap, kk_err *err) {
    const json_t *sets = json_object_get(r->stored, "sets");
    const char *first = kk_rerun_text(json_array_get(sets, 0), "set", "");
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < json_array_size(sets); i++) {
        const char *name = kk_rerun_text(json_array_get(sets, i), "set", "");
        if (i && strcmp(name, first) == 0) break; /* of the second embedding scale */
        const int n = snprintf(out + at, cap - at, "%s%s", at ? "," : "", name);
        if (n < 0 || (size_t)n >= cap - at)
            return kk_fail(err, KK_EFORMAT, "the report's names of sets are too long");
        at += (size_t)n;
    }
    return *out ? KK_OK : kk_fail(err, KK_EFORMAT, "the report names no set of prompts");
}

static void read_sampling(const json_t *s, kk_sampling *out) {
    *out = (kk_sampling){.temp = (float)kk_rerun_real(s, "temp", 0),
                         .top_k = (int32_t)kk_rerun_int(s, "top_k", 0),
                         .top_p = (float)kk_rerun_real(s, "top_p", 0),
                         .min_p = (float)kk_rerun_real(s, "min_p", 0),
                         .repeat_penalty = (float)kk_rerun_real(s, "repeat_penalty", 0),
                         .presence_penalty = (float)kk_rerun_real(s, "presence_penalty", 0),
                         .frequency_penalty = (float)kk_rerun_real(s, "frequency_penalty", 0),
                         .penalty_last_n = (int32_t)kk_rerun_int(s, "penalty_last_n", 0),
                         .seed = (uint64_t)kk_rerun_int(s, "seed", 0)};
}

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    char sets[512];
    kk_accept_opts o = {.engine = r->engine,
                        .other_scale = kk_rerun_text(s, "other_scale", NULL),
                        .folder = r->prompts,
                        .subset = r->subset,
                        .on_prompt = on_prompt,
                        .user = (void *)r};
    kk_accept_result result;
    KK_TRY(read_sets(r, sets, sizeof sets, err));
    if (kk_rerun_file(r))
        o.file = kk_rerun_file(r);
    else
        o.names = sets;
    KK_TRY(kk_rerun_need(s, "samples", 1, KK_PROMPTSET_MOST, &o.samples, err));
    KK_TRY(kk_rerun_need(s, "predict", 0, 1 << 20, &o.predict, err));
    KK_TRY(kk_rerun_need(s, "draft_max", 0, KK_MAX_DRAFT, &o.session.draft_max, err));
    KK_TRY(kk_rerun_need(s, "draft_ctx", 0, INT32_MAX, &o.session.draft_ctx, err));
    KK_TRY(kk_rerun_format(s, "kv_format", &o.session.kv_format, err));
    KK_TRY(kk_rerun_spec(kk_rerun_text(s, "spec", "dflash"), &o.session.spec, err));
    read_sampling(s, &o.sampling);
    KK_TRY(kk_accept_run(&o, &result, err));
    *report = kk_accept_report(&o, &result, NULL);
    kk_accept_release(&result);
    return KK_OK;
}

const kk_rerun_kind kk_rerun_accept = {
    .kind = "accept", .unit = "prompts", .members = members, .lists = lists, .run = run};
