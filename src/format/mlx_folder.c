/* mlx_folder.c - what is special about folders that MLX's converters write: one set of names and
 * tensors for the rest of the engine.
 *
 * A quantised matrix lies there as three tensors, X.weight (codes of 4 or 8 bits in words of 32),
 * X.scales and X.biases, and config.json says how each module was quantised: `quantization` has
 * bits, group_size and mode for all of them, and under a module's own path what differs.  The three
 * become one tensor whose planes stay where they lie: to interleave them into blocks would need a
 * copy as large as the model beside the mapped file.  Experts lie under `switch_glu` (older
 * converters: `switch_mlp`), gate and up apart.  Whether a module is quantised is told by its
 * scales, not by the configuration, as MLX does it. */
#include <inttypes.h>
#include <stdio.h>

#include "format/fields.h"
#include "format/format.h"

static const char *const switches[] = {".experts.switch_glu.", ".experts.switch_mlp."};

/* Where the name goes on after the experts' folder; NULL: it is none of theirs. */
static const char *in_switch(const char *name, size_t *before) {
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        const char *at = strstr(name, switches[i]);
        if (!at) continue;
        *before = (size_t)(at - name) + strlen(".experts.");
        return at + strlen(switches[i]);
    }
    return NULL;
}

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), tail = strlen(end);
    return n > tail && strcmp(name + n - tail, end) == 0;
}

static bool is_packed(const kk_tensor *t) {
    return t->dtype == KK_U32 && ends_with(t->name, ".weight");
}

bool kk_mlx_written(const kk_checkpoint *c) {
    size_t before;
    for (size_t i = 0; i < c->n_tensors; i++)
        if (is_packed(&c->tensors[i]) || in_switch(c->tensors[i].name, &before)) return true;
    return false;
}

/* ---- config.json ------------------------------------------------------------------------ */

/* How a module was quantised, by the path that MLX knows it by. */
static kk_status module_type(kk_fields all, const char *path, kk_dtype *out, kk_err *err) {
    const json_t *own = kk_field(all, path);
    kk_fields f = all;
    int32_t bits, group;
    if (!all.object)
        return kk_fail(err, KK_EFORMAT, "config.json has no quantization, and '%.100s' is packed",
                       path);
    if (json_is_false(own))
        return kk_fail(err, KK_EFORMAT,
                       "config.json: quantization says that '%.100s' is not quantised, and it is",
                       path);
    if (own && !json_is_true(own)) KK_TRY(kk_field_object(all, path, &f, err));
    const json_t *mode = kk_field(f, "mode");
    const char *word = mode ? json_string_value(mode) : "affine";
    if (!word || strcmp(word, "affine") != 0)
        return kk_fail(err, KK_EFORMAT,
                       "config.json: '%.100s' is quantised in mode '%.20s', only affine is "
                       "supported",
                       path, word ? word : "not a string");
    /* What a module of its own leaves out has MLX's defaults, not the other modules' values. */
    KK_TRY(kk_field_int(f, "bits", own ? 4 : KK_FIELD_REQUIRED, &bits, err));
    KK_TRY(kk_field_int(f, "group_size", own ? 64 : KK_FIELD_REQUIRED, &group, err));
    if (kk_affine_type(bits, group, out)) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "config.json: '%.100s' is quantised to %d bits in groups of %d; 4 or 8 bits in "
                   "groups of 32 or 64 are supported",
                   path, bits, group);
}

/* ---- three tensors become one ------------------------------------------------------------ */

/* The scales, or biases, of a packed tensor. */
static kk_status find_plane(const kk_checkpoint *c, const kk_tensor *t, const char *part,
                            const kk_tensor **out, kk_err *err) {
    char name[KK_MAX_NAME + 8];
    const int module = (int)(strlen(t->name) - strlen(".weight"));
    snprintf(name, sizeof name, "%.*s.%s", module, t->name, part);
    *out = kk_checkpoint_find(c, name);
    if (!*out)
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' is packed, and '%.100s' is missing",
                       t->name, name);
    const kk_dtype type = (*out)->dtype;
    if (type != KK_F32 && type != KK_F16 && type != KK_BF16)
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' holds no floats (%s)", name,
                       kk_dtype_get(type)->name);
    return KK_OK;
}

/* As the tensor's own shape, but for rows of so many groups. */
static kk_status check_plane(const kk_tensor *t, const kk_tensor *plane, int64_t groups,
                             kk_err *err) {
    bool same = plane->n_dims == t->n_dims;
    for (int32_t i = 0; same && i + 1 < t->n_dims; i++) same = plane->dims[i] == t->dims[i];
    const int64_t have = plane->n_dims ? plane->dims[plane->n_dims - 1] : 1;
    if (same && have == groups) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "tensor '%.100s' has %" PRId64 " values in a row; the %" PRId64
                   " codes of a row of '%.60s' make %" PRId64 " groups",
                   plane->name, have, t->dims[t->n_dims - 1], t->name, groups);
}

static kk_status fold(const kk_checkpoint *c, kk_fields all, const char *prefix, kk_tensor *t,
                      kk_err *err) {
    char path[2 * KK_MAX_NAME];
    const kk_tensor *scales, *biases;
    kk_dtype type;
    snprintf(path, sizeof path, "%s%.*s", prefix, (int)(strlen(t->name) - strlen(".weight")),
             t->name);
    if (t->n_dims < 2)
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' is packed and no matrix", t->name);
    KK_TRY(module_type(all, path, &type, err));
    KK_TRY(find_plane(c, t, "scales", &scales, err));
    KK_TRY(find_plane(c, t, "biases", &biases, err));
    if (scales->dtype != biases->dtype)
        return kk_fail(err, KK_EFORMAT, "tensors '%.60s' (%s) and '%.60s' (%s) differ in type",
                       scales->name, kk_dtype_get(scales->dtype)->name, biases->name,
                       kk_dtype_get(biases->dtype)->name);
    int64_t *row = &t->dims[t->n_dims - 1];
    const int64_t group = kk_dtype_get(type)->values;
    *row *= 32 / kk_affine_bits(type); /* at most 2^62 bytes were listed */
    if (*row % group != 0)
        return kk_fail(err, KK_EFORMAT,
                       "rows of tensor '%.100s' have %" PRId64 " codes, which make no groups of "
                       "%" PRId64,
                       t->name, *row, group);
    KK_TRY(check_plane(t, scales, *row / group, err));
    KK_TRY(check_plane(t, biases, *row / group, err));
    t->dtype = type;
    t->scales = scales->data;
    t->biases = biases->data;
    t->plane = scales->dtype;
    return KK_OK;
}

/* Scales or biases of a packed tensor, which hold them itself once it is folded. */
static bool is_plane(const kk_checkpoint *c, const kk_tensor *t) {
    char name[KK_MAX_NAME + 8];
    if (!ends_with(t->name, ".scales") && !ends_with(t->name, ".biases")) return false;
    snprintf(name, sizeof name, "%.*s.weight", (int)(strlen(t->name) - strlen(".scales")), t->name);
    const kk_tensor *weight = kk_checkpoint_find(c, name);
    return weight && is_packed(weight);
}

/* Fills `to`, as long as c's list, with c's tensors as they are once folded. */
static kk_status fold_all(const kk_checkpoint *c, kk_fields all, const char *prefix, kk_tensor *to,
                          size_t *n, kk_err *err) {
    *n = 0;
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (is_plane(c, &c->tensors[i])) continue;
        to[*n] = c->tensors[i];
        if (is_packed(&to[*n])) KK_TRY(fold(c, all, prefix, &to[*n], err));
        ++*n;
    }
    return KK_OK;
}

/* ---- names ------------------------------------------------------------------------------ */

/* "layers.3.experts.switch_glu.up_proj.weight" becomes "layers.3.experts.up_proj". */
static kk_status rename_experts(kk_checkpoint *c, kk_err *err) {
    size_t n = 0, before;
    for (size_t i = 0; i < c->n_tensors; i++) n += in_switch(c->tensors[i].name, &before) != NULL;
    c->names = kk_calloc(n ? n : 1, KK_MAX_NAME);
    if (!c->names) return kk_fail(err, KK_ENOMEM, "no memory for %zu names", n);
    char *to = c->names;
    for (size_t i = 0; i < c->n_tensors; i++) {
        kk_tensor *t = &c->tensors[i];
        const char *rest = in_switch(t->name, &before);
        if (!rest) continue;
        const size_t len = strlen(rest) - (ends_with(rest, ".weight") ? strlen(".weight") : 0);
        snprintf(to, KK_MAX_NAME, "%.*s%.*s", (int)before, t->name, (int)len, rest);
        t->name = to;
        to += KK_MAX_NAME;
    }
    return KK_OK;
}

static kk_status arrange(kk_checkpoint *c, kk_fields all, const char *prefix, kk_err *err) {
    size_t n;
    KK_TRY(kk_checkpoint_sort(c, err));
    kk_tensor *to = kk_calloc(c->n_tensors, sizeof *to);
    if (!to) return kk_fail(err, KK_ENOMEM, "no memory for %zu tensors", c->n_tensors);
    const kk_status st = fold_all(c, all, prefix, to, &n, err);
    if (st != KK_OK) {
        kk_free(to);
        return st;
    }
    kk_free(c->tensors);
    c->tensors = to;
    c->n_tensors = n;
    c->format = "mlx";
    return rename_experts(c, err);
}

kk_status kk_mlx_arrange(kk_checkpoint *c, const char *prefix, const char *config, size_t len,
                         kk_err *err) {
    json_error_t why;
    if (kk_fault_point()) return kk_fail(err, KK_ENOMEM, "no memory to parse config.json");
    json_t *root = json_loadb(config, len, JSON_REJECT_DUPLICATES, &why);
    if (!root) return kk_fail(err, KK_EFORMAT, "config.json, line %d: %.120s", why.line, why.text);
    const kk_fields file = {"config.json", root};
    kk_fields all;
    kk_status st = kk_field_object(file, "quantization", &all, err);
    if (st == KK_OK && !all.object) st = kk_field_object(file, "quantization_config", &all, err);
    if (st == KK_OK) st = arrange(c, all, prefix, err);
    json_decref(root);
    return st;
}
