/* manifest.c - see manifest.h. */
#include "bridge/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* ---- names --------------------------------------------------------------------------------- */

static bool letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool low_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool kk_manifest_name_ok(const char *name) {
    const size_t n = strlen(name);
    if (n < 1 || n > KK_MANIFEST_NAME || !letter_or_digit(name[0])) return false;
    for (size_t i = 1; i < n; i++)
        if (!letter_or_digit(name[i]) && !strchr("._@+-", name[i])) return false;
    return true;
}

bool kk_manifest_nonce_ok(const char *nonce) {
    const size_t n = strlen(nonce);
    if (n < 4 || n > 64 || !low_or_digit(nonce[0])) return false;
    for (size_t i = 1; i < n; i++)
        if (!low_or_digit(nonce[i]) && nonce[i] != '-') return false;
    return true;
}

bool kk_manifest_ref_ok(const char *ref) {
    const size_t n = strlen(ref);
    if (n < 1 || n > KK_MANIFEST_REF || ref[0] == '-') return false;
    for (size_t i = 0; i < n; i++)
        if (ref[i] <= ' ' || ref[i] > '~') return false;
    return true;
}

bool kk_manifest_suffix_ok(const char *suffix) {
    const size_t n = strlen(suffix);
    if (n > 40 || strstr(suffix, "..")) return false;
    for (size_t i = 0; i < n; i++)
        if (!letter_or_digit(suffix[i]) && !strchr("._-", suffix[i])) return false;
    /* What git refuses at the end of a branch. */
    return n == 0 || (suffix[n - 1] != '.' && !(n >= 5 && strcmp(suffix + n - 5, ".lock") == 0));
}

bool kk_manifest_branch(const kk_manifest *m, const char *prefix, const char *suffix, char *out,
                        size_t cap) {
    const int n = snprintf(out, cap, "%s%s-%s%s", prefix, m->preset->name, m->nonce, suffix);
    return n > 0 && (size_t)n < cap;
}

bool kk_manifest_on_branch(const kk_manifest *m, const char *prefix, const char *branch) {
    char start[512];
    if (!kk_manifest_branch(m, prefix, "", start, sizeof start)) return false;
    const size_t n = strlen(start);
    return strncmp(branch, start, n) == 0 && kk_manifest_suffix_ok(branch + n);
}

/* ---- parameters ---------------------------------------------------------------------------- */

kk_status kk_manifest_preset(const char *name, const kk_preset **out, kk_err *err) {
    *out = kk_presets_find(name);
    if (*out) return KK_OK;
    const char *why = kk_presets_without(name);
    if (why) return kk_fail(err, KK_EINVAL, "there is no preset %.60s here: %s", name, why);
    return kk_fail(err, KK_EINVAL, "there is no preset '%.60s'", name);
}

void kk_manifest_defaults(kk_manifest *m, const kk_preset *p) {
    m->preset = p;
    for (size_t i = 0; i < KK_PRESET_PARAMS; i++) m->value[i] = p->params[i].otherwise;
}

static kk_status set_number(kk_manifest *m, size_t i, int64_t x, kk_err *err) {
    const kk_param *p = &m->preset->params[i];
    if (x < p->min || x > p->max)
        return kk_fail(err, KK_EINVAL, "%s is %lld, and takes %lld to %lld", p->name, (long long)x,
                       (long long)p->min, (long long)p->max);
    m->value[i] = x;
    return KK_OK;
}

static kk_status set_word(kk_manifest *m, size_t i, const char *text, kk_err *err) {
    const kk_param *p = &m->preset->params[i];
    size_t n;
    const char *word;
    for (int64_t k = 0; (word = kk_param_word(p, k, &n)); k++) {
        if (strlen(text) != n || memcmp(word, text, n) != 0) continue;
        m->value[i] = k;
        return KK_OK;
    }
    return kk_fail(err, KK_EINVAL, "%s is '%.40s', and takes %s", p->name, text, p->words);
}

static kk_status find_param(const kk_manifest *m, const char *name, size_t *out, kk_err *err) {
    for (*out = 0; *out < kk_preset_params(m->preset); ++*out)
        if (strcmp(m->preset->params[*out].name, name) == 0) return KK_OK;
    return kk_fail(err, KK_EINVAL, "%s has no parameter '%.40s'", m->preset->name, name);
}

kk_status kk_manifest_set(kk_manifest *m, const char *pair, kk_err *err) {
    const char *equals = strchr(pair, '=');
    char name[KK_MANIFEST_NAME + 1];
    size_t i;
    if (!equals || (size_t)(equals - pair) >= sizeof name)
        return kk_fail(err, KK_EINVAL, "a parameter is NAME=VALUE, not '%.60s'", pair);
    memcpy(name, pair, (size_t)(equals - pair));
    name[equals - pair] = 0;
    KK_TRY(find_param(m, name, &i, err));
    if (m->preset->params[i].words) return set_word(m, i, equals + 1, err);
    char *end;
    const long long x = strtoll(equals + 1, &end, 10);
    if (end == equals + 1 || *end)
        return kk_fail(err, KK_EINVAL, "%s takes a whole number, not '%.40s'", name, equals + 1);
    return set_number(m, i, x, err);
}

static kk_status read_param(kk_manifest *m, const char *name, const json_t *value, kk_err *err) {
    size_t i;
    KK_TRY(find_param(m, name, &i, err));
    const kk_param *p = &m->preset->params[i];
    if (p->words && json_is_string(value)) return set_word(m, i, json_string_value(value), err);
    if (!p->words && json_is_integer(value))
        return set_number(m, i, json_integer_value(value), err);
    return kk_fail(err, KK_EINVAL, "%s is not a %s", name, p->words ? "string" : "whole number");
}

json_t *kk_manifest_params(const kk_manifest *m) {
    json_t *o = json_object();
    for (size_t i = 0; o && i < kk_preset_params(m->preset); i++) {
        const kk_param *p = &m->preset->params[i];
        size_t n = 0;
        const char *word = kk_param_word(p, m->value[i], &n);
        json_object_set_new(o, p->name, word ? json_stringn(word, n) : json_integer(m->value[i]));
    }
    return o;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static kk_status read_text(const json_t *o, const char *key, bool (*ok)(const char *), char *to,
                           size_t cap, kk_err *err) {
    const json_t *value = json_object_get(o, key);
    const char *text = json_string_value(value);
    if (!text) return kk_fail(err, KK_EINVAL, "\"%s\" is missing or not a string", key);
    if (strlen(text) != json_string_length(value) || !ok(text) || strlen(text) >= cap)
        return kk_fail(err, KK_EINVAL, "\"%s\" is not one that can be used", key);
    memcpy(to, text, strlen(text) + 1);
    return KK_OK;
}

static kk_status read_params(kk_manifest *m, json_t *o, kk_err *err) {
    json_t *params = json_object_get(o, "params"), *value;
    const char *name;
    if (!json_is_object(params))
        return kk_fail(err, KK_EINVAL, "\"params\" is missing or not an object");
    json_object_foreach(params, name, value) KK_TRY(read_param(m, name, value, err));
    return KK_OK;
}

static kk_status read_version(kk_manifest *m, const json_t *o, kk_err *err) {
    const json_t *version = json_object_get(o, "schema_version");
    if (!json_is_integer(version))
        return kk_fail(err, KK_EINVAL, "\"schema_version\" is missing or not a whole number");
    const json_int_t x = json_integer_value(version);
    if (x < 1 || x > KK_MANIFEST_VERSION)
        return kk_fail(err, KK_EINVAL, "schema_version is %lld, and 1 and %d are known",
                       (long long)x, KK_MANIFEST_VERSION);
    m->version = (int)x;
    return KK_OK;
}

/* What version 2 added. */
static kk_status read_additions(kk_manifest *m, json_t *o, kk_err *err) {
    const json_t *created = json_object_get(o, "created");
    if (json_object_get(o, "runner"))
        KK_TRY(read_text(o, "runner", kk_manifest_name_ok, m->runner, sizeof m->runner, err));
    if (created && !json_is_integer(created))
        return kk_fail(err, KK_EINVAL, "\"created\" is not a whole number");
    m->created = json_integer_value(created);
    return KK_OK;
}

static kk_status check_keys(json_t *o, int version, kk_err *err) {
    static const char *const known[] = {"schema_version", "preset", "params", "ref",
                                        "requested_by",   "nonce",  "runner", "created"};
    const size_t n = version == 1 ? 6 : 8;
    const char *key;
    json_t *value;
    json_object_foreach(o, key, value) {
        size_t i = 0;
        while (i < n && strcmp(known[i], key) != 0) i++;
        if (i == n) return kk_fail(err, KK_EINVAL, "there is no member \"%.40s\"", key);
    }
    return KK_OK;
}

static kk_status read_all(kk_manifest *m, json_t *o, kk_err *err) {
    char name[KK_MANIFEST_NAME + 1];
    const kk_preset *preset;
    KK_TRY(read_version(m, o, err));
    KK_TRY(check_keys(o, m->version, err));
    KK_TRY(read_text(o, "preset", kk_manifest_name_ok, name, sizeof name, err));
    KK_TRY(kk_manifest_preset(name, &preset, err));
    kk_manifest_defaults(m, preset);
    KK_TRY(read_params(m, o, err));
    KK_TRY(read_text(o, "ref", kk_manifest_ref_ok, m->ref, sizeof m->ref, err));
    KK_TRY(read_text(o, "requested_by", kk_manifest_name_ok, m->requested_by,
                     sizeof m->requested_by, err));
    KK_TRY(read_text(o, "nonce", kk_manifest_nonce_ok, m->nonce, sizeof m->nonce, err));
    return read_additions(m, o, err);
}

kk_status kk_manifest_parse(kk_manifest *m, const char *text, size_t len, kk_err *err) {
    *m = (kk_manifest){.version = 0};
    if (len > KK_MANIFEST_BYTES)
        return kk_fail(err, KK_EINVAL, "a manifest of %zu bytes is over the limit of %d", len,
                       KK_MANIFEST_BYTES);
    json_error_t why;
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!o) return kk_fail(err, KK_EINVAL, "no JSON: %.100s (line %d)", why.text, why.line);
    const kk_status st =
        json_is_object(o) ? read_all(m, o, err) : kk_fail(err, KK_EINVAL, "no JSON object");
    json_decref(o);
    return st;
}

kk_status kk_manifest_write(const kk_manifest *m, kk_bytes *to, kk_err *err) {
    json_t *o = json_pack("{s:i, s:s, s:o, s:s, s:s, s:s, s:I}", "schema_version",
                          KK_MANIFEST_VERSION, "preset", m->preset->name, "params",
                          kk_manifest_params(m), "ref", m->ref, "requested_by", m->requested_by,
                          "nonce", m->nonce, "created", (json_int_t)m->created);
    if (o && m->runner[0]) json_object_set_new(o, "runner", json_string(m->runner));
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    if (text) kk_bytes_print(to, "%s\n", text);
    const bool whole = text && !to->failed;
    free(text);
    json_decref(o);
    return whole ? KK_OK : kk_no_memory(err, "a manifest");
}
