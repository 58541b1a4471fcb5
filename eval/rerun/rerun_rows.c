/* rerun_rows.c - reports of `kakeya eval sweep` and `kakeya eval kv`: every alpha or format once
 * more, over all of their documents and texts or over some. */
#include <string.h>

#include "core/error.h"
#include "eval/rerun/kinds.h"
#include "eval/tasks/kvformats.h"
#include "eval/tasks/sweep.h"

/* Sums over documents and texts. */
#define OF_ALL(path)                                                                               \
    {path "/samples", KK_MEMBER_TOTAL}, {path "/hits", KK_MEMBER_TOTAL},                           \
        {path "/recall", KK_MEMBER_TOTAL}, {path "/restored_rows", KK_MEMBER_TOTAL},               \
        {path "/mean_kl", KK_MEMBER_TOTAL}, {path "/worst_kl", KK_MEMBER_TOTAL}, {                 \
        path "/loss_change", KK_MEMBER_TOTAL                                                       \
    }

static const kk_list_rule lists[] = {
    {"rows", "alpha format"},    {"rows/answers", "sample"}, {"rows/quality", "text"},
    {"exact/answers", "sample"}, {"files", "name"},          {NULL, NULL},
};

/* ---- sweep -------------------------------------------------------------------------------- */

static const kk_member_rule sweep_members[] = {
    KK_RERUN_ENVELOPE,
    KK_RERUN_ROW_TIMES,
    KK_RERUN_TEXTS,
    OF_ALL("rows"),
    OF_ALL("exact"),
    {"knee", KK_MEMBER_TOTAL},
    {"identity/documents", KK_MEMBER_TOTAL},
    {"identity/texts", KK_MEMBER_TOTAL},
    {"rows/rel_mse", KK_MEMBER_TOTAL},
    {"rows/effective_rel_mse", KK_MEMBER_TOTAL},
    {"rows/layers", KK_MEMBER_TOTAL},
    {"rows/normed", KK_MEMBER_TOTAL},
    {"rows/rows_compared", KK_MEMBER_TOTAL},
    {NULL, KK_MEMBER_EQUAL},
};

static bool tell_sweep(void *user, int32_t done, int32_t total) {
    return kk_rerun_tell(user, "alphas", done, total);
}

static kk_status read_alphas(const json_t *s, kk_sweep_opts *o, kk_err *err) {
    const json_t *list = json_object_get(s, "alphas");
    const size_t n = json_array_size(list);
    if (n < 1 || n > KK_SWEEP_ALPHAS)
        return kk_fail(err, KK_EFORMAT, "the report's setting `alphas` is no list of 1 to %d",
                       KK_SWEEP_ALPHAS);
    /* 1 is always among them, and is not asked for. */
    for (size_t i = 0; i < n; i++) {
        const float alpha = (float)json_number_value(json_array_get(list, i));
        if (alpha < 1 || n == 1) o->alpha[o->n_alphas++] = alpha;
    }
    return KK_OK;
}

static kk_status run_sweep(const kk_rerun *r, json_t **report, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    kk_sweep_opts o = {.engine = r->engine, .tell = tell_sweep, .user = (void *)r};
    kk_sweep_result result;
    KK_TRY(read_alphas(s, &o, err));
    KK_TRY(kk_rerun_keep(s, "kv_sliding", &o.session.kv_sliding, err));
    KK_TRY(kk_rerun_keep(s, "kv_full", &o.session.kv_full, err));
    KK_TRY(kk_rerun_format(s, "kv_format", &o.session.kv_format, err));
    KK_TRY(kk_rerun_format(s, "latents", &o.session.latents, err));
    kk_rerun_rows(s, &o.session);
    KK_TRY(kk_rerun_need(s, "predict", 1, 1 << 20, &o.predict, err));
    KK_TRY(kk_rerun_draw(r, &o.draw, err));
    KK_TRY(kk_rerun_source(r, &o.source, err));
    KK_TRY(kk_sweep_run(&o, &result, err));
    *report = json_incref(result.report);
    kk_sweep_release(&result);
    return KK_OK;
}

const kk_rerun_kind kk_rerun_sweep = {.kind = "sweep",
                                      .unit = "documents, and as many texts",
                                      .members = sweep_members,
                                      .lists = lists,
                                      .run = run_sweep};

/* ---- kv ----------------------------------------------------------------------------------- */

static const kk_member_rule kv_members[] = {
    KK_RERUN_ENVELOPE,
    KK_RERUN_ROW_TIMES,
    KK_RERUN_TEXTS,
    OF_ALL("rows"),
    {"rows/values", KK_MEMBER_TOTAL},
    {"rows/stored_bytes", KK_MEMBER_TOTAL},
    {"rows/rel_mse", KK_MEMBER_TOTAL},
    {"rows/layers", KK_MEMBER_TOTAL},
    {"rows/bytes", KK_MEMBER_MOST},
    {NULL, KK_MEMBER_EQUAL},
};

static bool tell_kv(void *user, int32_t done, int32_t total) {
    return kk_rerun_tell(user, "formats", done, total);
}

static kk_status read_formats(const json_t *s, kk_kvformats_opts *o, kk_err *err) {
    const json_t *list = json_object_get(s, "formats");
    const size_t n = json_array_size(list);
    if (n < 1 || n > KK_KV_FORMATS)
        return kk_fail(err, KK_EFORMAT, "the report's setting `formats` is no list of 1 to %d",
                       KK_KV_FORMATS);
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name || !kk_kv_format_named(name, &o->format[i]))
            return kk_fail(err, KK_EFORMAT,
                           "the report has a K/V format '%.20s', which there is not",
                           name ? name : "");
    }
    o->n_formats = (int32_t)n;
    return KK_OK;
}

static kk_status run_kv(const kk_rerun *r, json_t **report, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    kk_kvformats_opts o = {.engine = r->engine, .tell = tell_kv, .user = (void *)r};
    kk_kvformats_result result;
    KK_TRY(read_formats(s, &o, err));
    KK_TRY(kk_rerun_need(s, "predict", 1, 1 << 20, &o.predict, err));
    KK_TRY(kk_rerun_draw(r, &o.draw, err));
    KK_TRY(kk_rerun_source(r, &o.source, err));
    KK_TRY(kk_kvformats_run(&o, &result, err));
    *report = json_incref(result.report);
    kk_kvformats_release(&result);
    return KK_OK;
}

const kk_rerun_kind kk_rerun_kv = {.kind = "kv",
                                   .unit = "documents, and as many texts",
                                   .members = kv_members,
                                   .lists = lists,
                                   .run = run_kv};
