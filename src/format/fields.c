/* fields.c - see fields.h. */
#include "format/fields.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const json_t *kk_field(kk_fields f, const char *key) {
    const json_t *v = json_object_get(f.object, key);
    return json_is_null(v) ? NULL : v;
}

kk_status kk_field_object(kk_fields f, const char *key, kk_fields *out, kk_err *err) {
    const json_t *v = kk_field(f, key);
    *out = (kk_fields){f.label, v};
    if (!v || json_is_object(v)) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is no object", f.label, key);
}

kk_status kk_field_int(kk_fields f, const char *key, int32_t fallback, int32_t *out, kk_err *err) {
    const json_t *v = kk_field(f, key);
    *out = fallback;
    if (!v) {
        if (fallback != KK_FIELD_REQUIRED) return KK_OK;
        return kk_fail(err, KK_EFORMAT, "%s: %s is missing", f.label, key);
    }
    if (!json_is_integer(v)) return kk_fail(err, KK_EFORMAT, "%s: %s is no integer", f.label, key);
    const json_int_t n = json_integer_value(v);
    if (n <= INT32_MIN || n > INT32_MAX)
        return kk_fail(err, KK_EFORMAT, "%s: %s is %" PRId64, f.label, key, (int64_t)n);
    *out = (int32_t)n;
    return KK_OK;
}

kk_status kk_field_float(kk_fields f, const char *key, double fallback, float *out, kk_err *err) {
    const json_t *v = kk_field(f, key);
    *out = (float)fallback;
    if (!v) return KK_OK;
    if (!json_is_number(v)) return kk_fail(err, KK_EFORMAT, "%s: %s is no number", f.label, key);
    const double d = json_number_value(v);
    if (!(fabs(d) <= 1e30)) return kk_fail(err, KK_EFORMAT, "%s: %s is %g", f.label, key, d);
    *out = (float)d;
    return KK_OK;
}

kk_status kk_field_bool(kk_fields f, const char *key, bool fallback, bool *out, kk_err *err) {
    const json_t *v = kk_field(f, key);
    *out = fallback;
    if (!v) return KK_OK;
    if (!json_is_boolean(v))
        return kk_fail(err, KK_EFORMAT, "%s: %s is neither true nor false", f.label, key);
    *out = json_is_true(v);
    return KK_OK;
}

kk_status kk_field_only_word(kk_fields f, const char *key, const char *word, kk_err *err) {
    const json_t *v = kk_field(f, key);
    if (!v) return KK_OK;
    const char *s = json_string_value(v);
    if (s && strcmp(s, word) == 0) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is '%.40s', only '%s' is supported", f.label, key,
                   s ? s : "not a string", word);
}

kk_status kk_field_only_bool(kk_fields f, const char *key, bool wanted, kk_err *err) {
    bool v;
    KK_TRY(kk_field_bool(f, key, wanted, &v, err));
    if (v == wanted) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is %s, which is not supported", f.label, key,
                   v ? "true" : "false");
}

kk_status kk_in_range(const char *label, const char *field, int64_t v, int64_t low, int64_t high,
                      kk_err *err) {
    if (v >= low && v <= high) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is %" PRId64 ", outside %" PRId64 "..%" PRId64, label,
                   field, v, low, high);
}

kk_status kk_in_range_f(const char *label, const char *field, double v, double low, double high,
                        kk_err *err) {
    if (v >= low && v <= high) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is %g, outside %g..%g", label, field, v, low, high);
}
