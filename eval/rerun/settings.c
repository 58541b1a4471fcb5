/* settings.c - from what a report says of its settings back to options. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "eval/rerun/kinds.h"

const json_t *kk_rerun_settings(const kk_rerun *r) {
    return json_object_get(r->stored, "settings");
}

int64_t kk_rerun_int(const json_t *o, const char *key, int64_t otherwise) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

double kk_rerun_real(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

const char *kk_rerun_text(const json_t *o, const char *key, const char *otherwise) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : otherwise;
}

bool kk_rerun_flag(const json_t *o, const char *key) {
    return json_is_true(json_object_get(o, key));
}

kk_status kk_rerun_need(const json_t *o, const char *key, int64_t low, int64_t high, int32_t *out,
                        kk_err *err) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v))
        return kk_fail(err, KK_EFORMAT, "the report's settings have no number `%s`", key);
    if (json_integer_value(v) < low || json_integer_value(v) > high)
        return kk_fail(err, KK_EFORMAT,
                       "the report's setting `%s` is %lld, and %lld to %lld can be run", key,
                       (long long)json_integer_value(v), (long long)low, (long long)high);
    *out = (int32_t)json_integer_value(v);
    return KK_OK;
}

kk_status kk_rerun_list(const json_t *o, const char *key, int32_t high, int32_t *out, int32_t cap,
                        int32_t *n, kk_err *err) {
    const json_t *list = json_object_get(o, key);
    const size_t count = json_array_size(list);
    if (count < 1 || count > (size_t)cap)
        return kk_fail(err, KK_EFORMAT, "the report's setting `%s` is no list of 1 to %d numbers",
                       key, cap);
    for (size_t i = 0; i < count; i++) {
        const json_int_t x = json_integer_value(json_array_get(list, i));
        if (x < 1 || x > high)
            return kk_fail(err, KK_EFORMAT,
                           "the report's setting `%s` has %lld; 1 to %d can be run", key,
                           (long long)x, high);
        out[i] = (int32_t)x;
    }
    *n = (int32_t)count;
    return KK_OK;
}

kk_status kk_rerun_format(const json_t *o, const char *key, kk_kv_format *out, kk_err *err) {
    const char *name = kk_rerun_text(o, key, "bf16");
    if (kk_kv_format_named(name, out)) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "the report's setting `%s` is '%.20s', which is no K/V format",
                   key, name);
}

kk_status kk_rerun_keep(const json_t *o, const char *key, kk_keep *out, kk_err *err) {
    const char *name = kk_rerun_text(o, key, "exact");
    if (strcmp(name, "exact") == 0 || strcmp(name, "native") == 0)
        *out = KK_KEEP_ALL;
    else if (strcmp(name, "window") == 0)
        *out = KK_KEEP_WINDOW;
    else if (strcmp(name, "restored") == 0)
        *out = KK_KEEP_RESTORED;
    else
        return kk_fail(err, KK_EFORMAT,
                       "the report's setting `%s` is '%.20s', which is no way to keep rows", key,
                       name);
    return KK_OK;
}

kk_status kk_rerun_spec(const char *name, kk_spec *out, kk_err *err) {
    if (strcmp(name, "plain") == 0) name = kk_spec_name(KK_SPEC_NONE);
    for (*out = KK_SPEC_AUTO; strcmp(kk_spec_name(*out), name) != 0; ++*out)
        if (*out == KK_SPEC_NGRAM)
            return kk_fail(err, KK_EFORMAT, "the report drafts with '%.20s', which there is not",
                           name);
    return KK_OK;
}

/* To a session 0 is the default, and -1 is none. */
static int32_t or_none(int64_t rows) {
    return rows == 0 ? -1 : rows < 0 || rows > INT32_MAX ? 0 : (int32_t)rows;
}

void kk_rerun_rows(const json_t *o, kk_session_opts *to) {
    to->sink = or_none(kk_rerun_int(o, "sink", -1));
    to->window = or_none(kk_rerun_int(o, "window", -1));
    const int64_t chunk = kk_rerun_int(o, "chunk", 0);
    to->chunk = chunk > 0 && chunk <= INT32_MAX ? (int32_t)chunk : 0;
}

/* ---- texts -------------------------------------------------------------------------------- */

kk_status kk_rerun_draw(const kk_rerun *r, kk_ask_draw *out, kk_err *err) {
    const json_t *s = kk_rerun_settings(r);
    *out = (kk_ask_draw){.seed = (uint64_t)kk_rerun_int(s, "seed", 0), .subset = r->subset};
    KK_TRY(kk_rerun_need(s, "samples", 1, KK_ASK_SAMPLES, &out->samples, err));
    return kk_rerun_list(s, "ladder", KK_HAYSTACK_MOST_LINES, out->ladder, KK_ASK_RUNGS,
                         &out->n_rungs, err);
}

/* Files of the report, where it did not read the shipped prompts. */
kk_status kk_rerun_source(const kk_rerun *r, kk_quality_source *out, kk_err *err) {
    const json_t *texts = json_object_get(kk_rerun_settings(r), "texts");
    const bool shipped = strcmp(kk_rerun_text(texts, "source", "held"), "files") != 0;
    *out = (kk_quality_source){.prompts = r->prompts, .most = 1024, .subset = r->subset};
    if (json_object_get(texts, "most_tokens"))
        KK_TRY(kk_rerun_need(texts, "most_tokens", 1, INT32_MAX, &out->most, err));
    if (shipped) return KK_OK;
    if (!r->n_files)
        return kk_fail(err, KK_EINVAL, "the report read texts of its own: name them with `file`");
    out->paths = r->files;
    out->n_paths = r->n_files;
    return KK_OK;
}

const char *kk_rerun_file(const kk_rerun *r) { return r->n_files ? r->files[0] : NULL; }

bool kk_rerun_tell(const kk_rerun *r, const char *name, int64_t done, int64_t total) {
    char what[120];
    if (!r->tell) return true;
    snprintf(what, sizeof what, "%.80s: %lld of %lld", name, (long long)done, (long long)total);
    return r->tell(r->user, what);
}
