/* rerun_needle.c - reports of `kakeya eval needle`: documents are asked about again by every arm,
 * and texts compared again. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "eval/rerun/kinds.h"
#include "eval/tasks/needle.h"

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    KK_RERUN_ROW_TIMES,
    KK_RERUN_TEXTS,
    {"gate", KK_MEMBER_TOTAL},
    {"sums", KK_MEMBER_TOTAL},
    {"rungs/tokens", KK_MEMBER_TOTAL},
    {"rungs/samples", KK_MEMBER_TOTAL},
    {"rungs/hits", KK_MEMBER_TOTAL},
    {"rungs/recall", KK_MEMBER_TOTAL},
    {"rungs/bytes", KK_MEMBER_MOST},
    {"rungs/*_spread", KK_MEMBER_TIMED},
    {"rungs/*_tok_s", KK_MEMBER_LEFT},
    {"rungs/rows/reach", KK_MEMBER_DRAFTED}, /* rows of drafts are queries too */
    {"rungs/rows/restored_rows", KK_MEMBER_DRAFTED},
    {NULL, KK_MEMBER_EQUAL},
};

static const kk_list_rule lists[] = {
    {"rungs", "arm lines"}, {"rungs/rows", "sample"},      {"quality", "arm text"},
    {"sums", "arm"},        {"gate/checks", "figure arm"}, {"files", "name"},
    {NULL, NULL},
};

static bool free_drafts(const json_t *stored) {
    const json_t *s = json_object_get(stored, "settings");
    const char *spec = kk_rerun_text(s, "spec", "auto");
    const bool drafter = json_is_object(json_object_get(stored, "drafter"));
    return strcmp(spec, "none") != 0 && (drafter || strcmp(spec, "ngram") == 0) &&
           !kk_rerun_flag(s, "draft_fixed");
}

/* ---- options ------------------------------------------------------------------------------ */

static kk_status read_arms(const kk_rerun *r, kk_needle_opts *o, kk_err *err) {
    const json_t *list = json_object_get(kk_rerun_settings(r), "arms");
    if (json_array_size(list) < 1 || json_array_size(list) > KK_NEEDLE_ARMS)
        return kk_fail(err, KK_EFORMAT, "the report's setting `arms` is no list of 1 to %d names",
                       KK_NEEDLE_ARMS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        kk_needle_way way = 0;
        while (way < KK_NEEDLE_ARMS && (!name || strcmp(name, kk_needle_way_name(way)) != 0)) way++;
        if (way == KK_NEEDLE_ARMS)
            return kk_fail(err, KK_EFORMAT, "the report has an arm '%.20s', which there is not",
                           name ? name : "");
        o->arms[o->n_arms++] = way;
    }
    return KK_OK;
}

/* What the last arm keeps: restored, else window; all that are not exact agree in the rest. */
static kk_status read_session(const kk_rerun *r, kk_needle_opts *o, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    const char *last = kk_needle_way_name(o->arms[o->n_arms - 1]);
    const json_t *arm = json_object_get(json_object_get(r->stored, "arms"), last);
    kk_session_opts *how = &o->session;
    KK_TRY(kk_rerun_format(s, "kv_format", &how->kv_format, err));
    KK_TRY(kk_rerun_format(arm, "latents", &how->latents, err));
    KK_TRY(kk_rerun_keep(arm, "kv_sliding", &how->kv_sliding, err));
    KK_TRY(kk_rerun_keep(arm, "kv_full", &how->kv_full, err));
    kk_rerun_rows(arm, how);
    KK_TRY(kk_rerun_need(s, "ctx", 1, INT32_MAX, &how->ctx, err));
    how->draft_ctx = (int32_t)kk_rerun_int(s, "draft_ctx", 0);
    return kk_rerun_spec(kk_rerun_text(s, "spec", "auto"), &how->spec, err);
}

static float limit(const json_t *s, const char *key) { return (float)kk_rerun_real(s, key, -1); }

static bool on_event(void *user, const kk_needle_event *e) {
    const kk_rerun *r = user;
    char what[120];
    if (!r->tell) return true;
    if (e->moment == KK_NEEDLE_COMPARED)
        return kk_rerun_tell(r, "tokens of ordinary text", e->done, e->total);
    snprintf(what, sizeof what, "%s, %d lines: document %d of %d", kk_needle_way_name(e->arm->way),
             e->rung->lines, (int)(e->sample - e->rung->samples) + 1, e->rung->n_drawn);
    return r->tell(r->user, what);
}

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    kk_needle_opts o = {.engine = r->engine,
                        .seed = (uint64_t)kk_rerun_int(s, "seed", 0),
                        .raw = strcmp(kk_rerun_text(s, "prompt", "chat"), "raw") == 0,
                        .subset = r->subset,
                        .on_event = on_event,
                        .user = (void *)r};
    const kk_needle_limits limits = {limit(s, "min_recall"), limit(s, "max_kl"),
                                     limit(s, "min_kv_ratio")};
    kk_quality_source source;
    kk_needle_result result;
    KK_TRY(read_arms(r, &o, err));
    KK_TRY(read_session(r, &o, err));
    KK_TRY(kk_rerun_need(s, "samples", 1, KK_NEEDLE_SAMPLES, &o.samples, err));
    KK_TRY(kk_rerun_need(s, "predict", 1, 1 << 20, &o.predict, err));
    KK_TRY(kk_rerun_list(s, "ladder", KK_HAYSTACK_MOST_LINES, o.ladder, KK_NEEDLE_RUNGS, &o.n_rungs,
                         err));
    KK_TRY(kk_rerun_source(r, &source, err));
    o.texts = source.paths;
    o.n_texts = source.n_paths;
    o.prompts = source.prompts;
    o.text_tokens = source.most;
    KK_TRY(kk_needle_run(&o, &result, err));
    *report = kk_needle_report(&o, &result, &limits);
    kk_needle_release(&result);
    return KK_OK;
}

const kk_rerun_kind kk_rerun_needle = {.kind = "needle",
                                       .unit = "documents, and as many texts",
                                       .members = members,
                                       .lists = lists,
                                       .free_drafts = free_drafts,
                                       .run = run};
