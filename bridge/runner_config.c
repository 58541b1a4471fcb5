/* runner_config.c - see runner_config.h. */
#include "bridge/runner_config.h"

#include <string.h>

#include "bridge/folder.h"
#include "bridge/manifest.h"
#include "core/error.h"
#include "core/file.h"

static const double most_minutes = 24 * 60;
enum { MIB = 1 << 20 };

void kk_runner_config_empty(kk_runner_config *c) {
    *c = (kk_runner_config){.name = "runner",
                            .remote = "",
                            .prefix = KK_BRIDGE_PREFIX,
                            .program = "",
                            .allowed_signers = "",
                            .paths = {.model = "", .drafter = "", .projection = "", .reports = ""},
                            .most_minutes = most_minutes,
                            .output_bytes = 4 * MIB,
                            .disk_bytes = 1024ll * MIB,
                            .result_bytes = 32 * MIB,
                            .unsent_minutes = 60};
}

void kk_runner_config_release(kk_runner_config *c) {
    json_decref(c->root);
    kk_runner_config_empty(c);
}

/* ---- members ------------------------------------------------------------------------------- */

static kk_status check_keys(json_t *o, const char *where, const char *const *known, kk_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(o, key, value) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i]) return kk_fail(err, KK_EINVAL, "%s has no member \"%.40s\"", where, key);
    }
    return KK_OK;
}

static kk_status read_string(const json_t *o, const char *key, const char **to, kk_err *err) {
    const json_t *value = json_object_get(o, key);
    if (!value) return KK_OK;
    if (!json_is_string(value) || !*json_string_value(value) ||
        strlen(json_string_value(value)) != json_string_length(value))
        return kk_fail(err, KK_EINVAL, "\"%s\" is not a string with something in it", key);
    *to = json_string_value(value);
    return KK_OK;
}

static kk_status read_path(const json_t *o, const char *key, const char **to, kk_err *err) {
    KK_TRY(read_string(o, key, to, err));
    if (!**to || **to == '/') return KK_OK;
    return kk_fail(err, KK_EINVAL, "\"%s\" is not an absolute path: %.100s", key, *to);
}

static kk_status read_list(const json_t *o, const char *key, const json_t **to, kk_err *err) {
    const json_t *list = json_object_get(o, key);
    if (list && !json_is_array(list)) return kk_fail(err, KK_EINVAL, "\"%s\" is not a list", key);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return kk_fail(err, KK_EINVAL, "\"%s\" has a member that is not a string", key);
    *to = list;
    return KK_OK;
}

static kk_status read_bytes(const json_t *o, const char *key, int64_t *to, kk_err *err) {
    const json_t *value = json_object_get(o, key);
    if (!value) return KK_OK;
    const json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < 1024 || x > (json_int_t)1 << 44)
        return kk_fail(err, KK_EINVAL, "\"%s\" is not a number of bytes from 1024", key);
    *to = x;
    return KK_OK;
}

static kk_status read_minutes(const json_t *o, const char *key, double *to, kk_err *err) {
    const json_t *value = json_object_get(o, key);
    const double x = json_number_value(value);
    if (!value) return KK_OK;
    if (!json_is_number(value) || !(x > 0 && x <= most_minutes))
        return kk_fail(err, KK_EINVAL, "\"%s\" is not a number up to %.0f", key, most_minutes);
    *to = x;
    return KK_OK;
}

static kk_status read_limits(kk_runner_config *c, kk_err *err) {
    static const char *const known[] = {"minutes",      "output_bytes",   "disk_bytes",
                                        "result_bytes", "unsent_minutes", NULL};
    json_t *o = json_object_get(c->root, "limits");
    if (o && !json_is_object(o)) return kk_fail(err, KK_EINVAL, "\"limits\" is not an object");
    KK_TRY(check_keys(o, "\"limits\"", known, err));
    KK_TRY(read_minutes(o, "minutes", &c->most_minutes, err));
    KK_TRY(read_minutes(o, "unsent_minutes", &c->unsent_minutes, err));
    KK_TRY(read_bytes(o, "output_bytes", &c->output_bytes, err));
    KK_TRY(read_bytes(o, "disk_bytes", &c->disk_bytes, err));
    return read_bytes(o, "result_bytes", &c->result_bytes, err);
}

static kk_status read_cases(kk_runner_config *c, const json_t *o, kk_err *err) {
    const json_t *list = NULL;
    KK_TRY(read_list(o, "cases", &list, err));
    if (json_array_size(list) > KK_RUNNER_CASES)
        return kk_fail(err, KK_EINVAL, "\"cases\" has more than %d paths", KK_RUNNER_CASES);
    for (size_t i = 0; i < json_array_size(list); i++) {
        c->cases[i] = json_string_value(json_array_get(list, i));
        if (c->cases[i][0] != '/')
            return kk_fail(err, KK_EINVAL, "\"cases\" has a path that is not absolute: %.100s",
                           c->cases[i]);
    }
    c->paths.n_cases = json_array_size(list);
    return KK_OK;
}

static kk_status read_paths(kk_runner_config *c, kk_err *err) {
    static const char *const known[] = {"model", "drafter", "projection", "reports", "cases", NULL};
    json_t *o = json_object_get(c->root, "paths");
    if (o && !json_is_object(o)) return kk_fail(err, KK_EINVAL, "\"paths\" is not an object");
    KK_TRY(check_keys(o, "\"paths\"", known, err));
    KK_TRY(read_path(o, "model", &c->paths.model, err));
    KK_TRY(read_path(o, "drafter", &c->paths.drafter, err));
    KK_TRY(read_path(o, "projection", &c->paths.projection, err));
    KK_TRY(read_path(o, "reports", &c->paths.reports, err));
    return read_cases(c, o, err);
}

static kk_status check_names(const kk_runner_config *c, kk_err *err) {
    if (!kk_manifest_name_ok(c->name))
        return kk_fail(err, KK_EINVAL, "\"name\" is not one that can be used: %.80s", c->name);
    for (size_t i = 0; i < json_array_size(c->presets); i++) {
        const kk_preset *p;
        KK_TRY(kk_manifest_preset(json_string_value(json_array_get(c->presets, i)), &p, err));
    }
    const size_t n = strlen(c->prefix);
    if (n < 2 || n > 60 || c->prefix[n - 1] != '/' || c->prefix[0] == '/' || c->prefix[0] == '-')
        return kk_fail(err, KK_EINVAL, "\"prefix\" is not a folder of branches: %.80s", c->prefix);
    for (size_t i = 0; i < n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/",
                    c->prefix[i]))
            return kk_fail(err, KK_EINVAL, "\"prefix\" has a '%c'", c->prefix[i]);
    return KK_OK;
}

static kk_status read_all(kk_runner_config *c, kk_err *err) {
    static const char *const known[] = {"name",        "remote",  "prefix", "allowed_signers",
                                        "unsigned",    "presets", "paths",  "limits",
                                        "environment", "program", NULL};
    KK_TRY(check_keys(c->root, "the configuration", known, err));
    KK_TRY(read_string(c->root, "name", &c->name, err));
    KK_TRY(read_string(c->root, "remote", &c->remote, err));
    KK_TRY(read_string(c->root, "prefix", &c->prefix, err));
    KK_TRY(read_path(c->root, "program", &c->program, err));
    KK_TRY(read_path(c->root, "allowed_signers", &c->allowed_signers, err));
    KK_TRY(read_list(c->root, "unsigned", &c->unsigned_names, err));
    KK_TRY(read_list(c->root, "presets", &c->presets, err));
    KK_TRY(read_list(c->root, "environment", &c->environment, err));
    KK_TRY(read_paths(c, err));
    KK_TRY(read_limits(c, err));
    return check_names(c, err);
}

kk_status kk_runner_config_parse(kk_runner_config *c, const char *text, size_t len, kk_err *err) {
    json_error_t why;
    kk_runner_config_empty(c);
    c->root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!c->root) return kk_fail(err, KK_EINVAL, "no JSON: %.100s (line %d)", why.text, why.line);
    const kk_status st =
        json_is_object(c->root) ? read_all(c, err) : kk_fail(err, KK_EINVAL, "no JSON object");
    if (st != KK_OK) kk_runner_config_release(c);
    return st;
}

kk_status kk_runner_config_read(kk_runner_config *c, const char *path, kk_err *err) {
    char *text;
    size_t len;
    kk_err why;
    kk_runner_config_empty(c);
    KK_TRY(kk_file_read(path, KK_RUNNER_CONFIG_BYTES, &text, &len, err));
    const kk_status st = kk_runner_config_parse(c, text, len, &why);
    kk_free(text);
    return st == KK_OK ? KK_OK : kk_fail(err, st, "%.80s: %.150s", path, why.msg);
}

/* ---- questions ----------------------------------------------------------------------------- */

static bool has(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0) return true;
    return false;
}

bool kk_runner_config_unsigned(const kk_runner_config *c, const char *name) {
    return has(c->unsigned_names, name);
}

bool kk_runner_config_preset(const kk_runner_config *c, const char *name) {
    return !c->presets || has(c->presets, name);
}

static kk_status check_path(const char *what, const char *path, kk_err *err) {
    char found[4096];
    if (!path || !*path) return KK_OK;
    if (!kk_file_exists(path) && !kk_dir_exists(path))
        return kk_fail(err, KK_EINVAL, "the %s of this runner is not there", what);
    if (!kk_lfs_pointer_in(path, found, sizeof found)) return KK_OK;
    const char *name = strrchr(found, '/');
    return kk_fail(err, KK_EINVAL,
                   "the %s of this runner is a pointer of git LFS, not the file "
                   "(%.80s): `git lfs pull` fetches it",
                   what, name ? name + 1 : found);
}

kk_status kk_runner_config_check_paths(const kk_runner_config *c, kk_err *err) {
    KK_TRY(check_path("model", c->paths.model, err));
    KK_TRY(check_path("drafter", c->paths.drafter, err));
    KK_TRY(check_path("projection", c->paths.projection, err));
    KK_TRY(check_path("folder of reports", c->paths.reports, err));
    for (size_t i = 0; i < c->paths.n_cases; i++) KK_TRY(check_path("case", c->cases[i], err));
    return KK_OK;
}
