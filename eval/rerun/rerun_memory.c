/* rerun_memory.c - reports of `kakeya eval memory`: sessions of every policy once more, at all
 * lengths or at some. */
#include <string.h>

#include "core/error.h"
#include "eval/rerun/kinds.h"
#include "eval/tasks/footprint.h"

static const kk_member_rule members[] = {
    KK_RERUN_ENVELOPE,
    KK_RERUN_ROW_TIMES,
    {"settings/tokens", KK_MEMBER_TOTAL},
    {"settings/text", KK_MEMBER_TOTAL},
    {"growth", KK_MEMBER_TOTAL},
    {"rows/bytes/workspace", KK_MEMBER_MOST}, /* an engine keeps what shorter sessions took */
    {NULL, KK_MEMBER_EQUAL},
};

static const kk_list_rule lists[] = {
    {"rows", "policy tokens"},
    {"rows/answers", "sample"},
    {"rows/quality", "text"},
    {"files", "name"},
    {"growth", "policy categories against"},
    {NULL, NULL},
};

static bool tell(void *user, int32_t done, int32_t total) {
    return kk_rerun_tell(user, "engines", done, total);
}

/* Which kinds of layers the restored policies restore. */
static kk_status read_restored(const kk_rerun *r, kk_session_opts *how, kk_err *err) {
    const json_t *rows = json_object_get(r->stored, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strncmp(kk_rerun_text(row, "policy", ""), "restored", 8) != 0) continue;
        KK_TRY(kk_rerun_keep(row, "kv_sliding", &how->kv_sliding, err));
        return kk_rerun_keep(row, "kv_full", &how->kv_full, err);
    }
    return KK_OK;
}

/* Some of the lengths; which rows an engine keeps does not depend on the shorter ones. */
static kk_status draw_lengths(const kk_rerun *r, kk_footprint_opts *o, kk_err *err) {
    bool taken[KK_FOOTPRINT_LENGTHS];
    int32_t n = 0;
    KK_TRY(kk_subset_draw(taken, (size_t)o->n_lengths, &r->subset, err));
    for (int32_t i = 0; i < o->n_lengths; i++)
        if (taken[i]) o->tokens[n++] = o->tokens[i];
    o->n_lengths = n;
    return KK_OK;
}

static kk_status read_projections(const kk_rerun *r, kk_footprint_opts *o, kk_err *err) {
    const size_t n = json_array_size(json_object_get(r->stored, "projections"));
    const bool one = n == 1 && r->n_projections == 0 && r->engine.projection;
    if (n > KK_FOOTPRINT_PROJECTIONS || (!one && n != r->n_projections))
        return kk_fail(
            err, KK_EINVAL,
            "the report is of %zu projections, and %zu are given: name them in its "
            "order with --projections",
            n, r->n_projections ? r->n_projections : (size_t)(r->engine.projection != NULL));
    o->n_projections = (int32_t)n;
    for (size_t i = 0; i < n; i++)
        o->projection[i] = one ? r->engine.projection : r->projections[i];
    o->engine.projection = NULL;
    return KK_OK;
}

static kk_status run(const kk_rerun *r, json_t **report, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    kk_footprint_opts o = {.engine = r->engine,
                           .fill = kk_rerun_flag(s, "filled"),
                           .quality = kk_rerun_flag(s, "quality"),
                           .seed = (uint64_t)kk_rerun_int(s, "seed", 0),
                           .draft_ctx = (int32_t)kk_rerun_int(s, "draft_ctx", 0),
                           .tell = tell,
                           .user = (void *)r};
    kk_footprint_result result;
    KK_TRY(
        kk_rerun_list(s, "tokens", INT32_MAX, o.tokens, KK_FOOTPRINT_LENGTHS, &o.n_lengths, err));
    KK_TRY(draw_lengths(r, &o, err));
    KK_TRY(read_projections(r, &o, err));
    KK_TRY(read_restored(r, &o.session, err));
    kk_rerun_rows(s, &o.session);
    KK_TRY(kk_rerun_source(r, &o.source, err));
    o.source.subset = (kk_subset){.n = 0};
    if (o.quality) {
        KK_TRY(kk_rerun_need(s, "samples", 1, KK_ASK_SAMPLES, &o.samples, err));
        KK_TRY(kk_rerun_need(s, "predict", 1, 1 << 20, &o.predict, err));
    }
    KK_TRY(kk_footprint_run(&o, &result, err));
    *report = json_incref(result.report);
    kk_footprint_release(&result);
    return KK_OK;
}

const kk_rerun_kind kk_rerun_memory = {.kind = "memory",
                                       .unit = "lengths of the context",
                                       .members = members,
                                       .lists = lists,
                                       .run = run};
