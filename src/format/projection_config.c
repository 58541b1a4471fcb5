/* projection_config.c - projection.json both ways, and whether a projection fits a verifier and a
 * drafter.
 *
 * A projection that does not fit would rebuild rows that look like any others, so every number
 * that could differ is in the file and compared before anything is computed.  A newer version of
 * the file is refused by its number instead of being read half. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "format/fields.h"
#include "format/format.h"
#include "format/jsontree.h"
#include "format/lineage.h"

static const char label[] = "projection.json";
static const char format_name[] = "kakeya-projection";
enum { VERSION = 1, MAX_INPUTS = 1 << 20, MAX_HIDDEN = 1 << 16, MAX_KV_HEADS = 1 << 10 };

static const char *const source_names[KK_SOURCES] = {
    [KK_SOURCE_TAPS] = "taps",
    [KK_SOURCE_CONTEXT] = "context",
    [KK_SOURCE_EMBED] = "embed",
    [KK_SOURCE_DRAFTER_KV] = "drafter-kv",
};

const char *kk_source_name(kk_source s) { return source_names[s]; }

bool kk_source_named(const char *name, kk_source *out) {
    for (int i = 0; i < KK_SOURCES; i++) {
        if (strcmp(source_names[i], name) != 0) continue;
        *out = (kk_source)i;
        return true;
    }
    return false;
}

static int64_t width_of(const kk_projection_config *c, int32_t layer) {
    return (int64_t)c->layer[layer].n_kv_head * c->layer[layer].head_dim;
}

int64_t kk_projection_params(const kk_projection_config *c) {
    int64_t rows = 0;
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->layer[i].restored) rows += width_of(c, i) * (c->joint && c->layer[i].k_eq_v ? 1 : 2);
    return c->rank * ((c->joint ? 1 : 2) * (int64_t)c->n_in + rows);
}

/* ---- agreement with itself -------------------------------------------------------------- */

static kk_status in_range(const char *field, int64_t v, int64_t low, int64_t high, kk_err *err) {
    return kk_in_range(label, field, v, low, high, err);
}

static kk_status valid_taps(const kk_projection_config *c, kk_err *err) {
    const bool wanted = c->source == KK_SOURCE_TAPS || c->source == KK_SOURCE_CONTEXT;
    if (!wanted && c->n_taps)
        return kk_fail(err, KK_EFORMAT, "%s: source %s has no taps, %d are named", label,
                       kk_source_name(c->source), c->n_taps);
    if (wanted && c->n_taps == 0)
        return kk_fail(err, KK_EFORMAT, "%s: source %s needs taps, none are named", label,
                       kk_source_name(c->source));
    KK_TRY(in_range("the number of taps", c->n_taps, 0, KK_MAX_TAPS, err));
    for (int32_t i = 0; i < c->n_taps; i++) {
        if (c->taps[i] < 0 || c->taps[i] >= c->n_layer)
            return kk_fail(err, KK_EFORMAT, "%s: taps[%d] is %d, the verifier has %d layers", label,
                           i, c->taps[i], c->n_layer);
        for (int32_t k = 0; k < i; k++)
            if (c->taps[k] == c->taps[i])
                return kk_fail(err, KK_EFORMAT, "%s: taps names layer %d twice", label, c->taps[i]);
    }
    return KK_OK;
}

static kk_status valid_draft(const kk_projection_config *c, kk_err *err) {
    if (c->source != KK_SOURCE_DRAFTER_KV) {
        if (!c->draft.n_layer && !c->draft.n_kv_head && !c->draft.head_dim) return KK_OK;
        return kk_fail(err, KK_EFORMAT, "%s: source %s reads no K/V of a drafter's %d layers",
                       label, kk_source_name(c->source), c->draft.n_layer);
    }
    if (c->joint)
        return kk_fail(err, KK_EFORMAT,
                       "%s: source drafter-kv has separate encoders, for K and for V, not a joint "
                       "one",
                       label);
    KK_TRY(in_range("drafter_layers", c->draft.n_layer, 1, KK_MAX_DRAFT_LAYERS, err));
    KK_TRY(in_range("drafter_kv_heads", c->draft.n_kv_head, 1, MAX_KV_HEADS, err));
    return in_range("drafter_head_dim", c->draft.head_dim, 2, 512, err);
}

static kk_status valid_inputs(const kk_projection_config *c, kk_err *err) {
    int64_t wanted = c->hidden; /* a drafter's hidden size is its verifier's */
    if (c->source == KK_SOURCE_TAPS) wanted = (int64_t)c->n_taps * c->hidden;
    if (c->source == KK_SOURCE_DRAFTER_KV)
        wanted = (int64_t)c->draft.n_layer * c->draft.n_kv_head * c->draft.head_dim;
    KK_TRY(in_range("inputs", c->n_in, 1, MAX_INPUTS, err));
    if (c->n_in == wanted) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: inputs is %d, source %s has %" PRId64, label, c->n_in,
                   kk_source_name(c->source), wanted);
}

static kk_status valid_layers(const kk_projection_config *c, kk_err *err) {
    int32_t restored = 0;
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (!c->layer[i].restored) continue;
        restored++;
        KK_TRY(in_range("kv_heads of a layer", c->layer[i].n_kv_head, 1, MAX_KV_HEADS, err));
        KK_TRY(in_range("head_dim of a layer", c->layer[i].head_dim, 2, 512, err));
        if (c->layer[i].head_dim % 2 != 0)
            return kk_fail(err, KK_EFORMAT, "%s: head_dim %d of layer %d is odd", label,
                           c->layer[i].head_dim, i);
    }
    if (restored) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: layers names none of %d layers", label, c->n_layer);
}

static kk_status valid(const kk_projection_config *c, kk_err *err) {
    KK_TRY(in_range("rank", c->rank, 1, KK_MAX_RANK, err));
    KK_TRY(in_range("hidden", c->hidden, 1, MAX_HIDDEN, err));
    KK_TRY(in_range("verifier_layers", c->n_layer, 1, KK_MAX_LAYERS, err));
    KK_TRY(valid_taps(c, err));
    KK_TRY(valid_draft(c, err));
    KK_TRY(valid_inputs(c, err));
    return valid_layers(c, err);
}

kk_status kk_projection_config_valid(const kk_projection_config *c, kk_status bad, kk_err *err) {
    const kk_status st = valid(c, err);
    if (st != KK_EFORMAT) return st;
    if (err) err->code = bad;
    return bad;
}

/* ---- to JSON ---------------------------------------------------------------------------- */

/* Bytes of every line at its longest: 32 lines of the whole file, one per layer. */
enum { LINE = 160, CAPACITY = (32 + KK_MAX_LAYERS) * LINE };

typedef struct {
    char *text;
    size_t len;
} document;

__attribute__((format(printf, 2, 3))) static void put(document *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    t->len += (size_t)vsnprintf(t->text + t->len, CAPACITY - t->len, fmt, args);
    va_end(args);
}

static void put_source(document *t, const kk_projection_config *c) {
    put(t, "  \"source\": \"%s\",\n", kk_source_name(c->source));
    if (c->n_taps) {
        put(t, "  \"taps\": [");
        for (int32_t i = 0; i < c->n_taps; i++) put(t, "%s%d", i ? ", " : "", c->taps[i]);
        put(t, "],\n");
    }
    if (c->source != KK_SOURCE_DRAFTER_KV) return;
    put(t, "  \"drafter_layers\": %d,\n", c->draft.n_layer);
    put(t, "  \"drafter_kv_heads\": %d,\n", c->draft.n_kv_head);
    put(t, "  \"drafter_head_dim\": %d,\n", c->draft.head_dim);
}

static void put_layers(document *t, const kk_projection_config *c) {
    const char *before = "\n";
    put(t, "  \"layers\": [");
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (!c->layer[i].restored) continue;
        put(t, "%s    {\"layer\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"k_eq_v\": %s}", before,
            i, c->layer[i].n_kv_head, c->layer[i].head_dim, c->layer[i].k_eq_v ? "true" : "false");
        before = ",\n";
    }
    put(t, "\n  ]");
}

static void put_print(document *t, const char *key, uint64_t h) {
    if (h) put(t, "  \"%s\": \"%016" PRIx64 "\",\n", key, h);
}

/* checksum 0: without it. */
static char *written(const kk_projection_config *c, uint64_t checksum) {
    document t = {.text = kk_malloc(CAPACITY)};
    if (!t.text) return NULL;
    put(&t, "{\n  \"format\": \"%s\",\n  \"version\": %d,\n", format_name, VERSION);
    put_source(&t, c);
    put(&t, "  \"inputs\": %d,\n  \"rank\": %d,\n", c->n_in, c->rank);
    put(&t, "  \"encoders\": \"%s\",\n", c->joint ? "joint" : "separate");
    put(&t, "  \"hidden\": %d,\n  \"verifier_layers\": %d,\n", c->hidden, c->n_layer);
    put_print(&t, "verifier", c->verifier);
    put_print(&t, "verifier_source", c->verifier_source);
    put_print(&t, "verifier_identity", c->verifier_identity);
    put_print(&t, "drafter", c->drafter);
    put_print(&t, "drafter_identity", c->drafter_identity);
    put_print(&t, "data_checksum", c->data);
    put_print(&t, "config_checksum", checksum);
    put_layers(&t, c);
    put(&t, "\n}\n");
    return t.text;
}

static uint64_t checksum_of(const char *text) {
    const uint64_t h = kk_hash_bytes(KK_HASH_START, text, strlen(text));
    return h ? h : 1;
}

char *kk_projection_config_to_json(const kk_projection_config *c) {
    char *text = written(c, 0);
    if (!text || !c->data) return text;
    const uint64_t checksum = checksum_of(text);
    kk_free(text);
    return written(c, checksum);
}

/* ---- from JSON -------------------------------------------------------------------------- */

/* A word that must be there. */
static kk_status read_word(kk_fields f, const char *key, const char **out, kk_err *err) {
    *out = json_string_value(kk_field(f, key));
    if (*out) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is %s", label, key,
                   kk_field(f, key) ? "not a string" : "missing");
}

static kk_status read_version(kk_fields f, kk_err *err) {
    const char *name;
    int32_t version;
    KK_TRY(read_word(f, "format", &name, err));
    if (strcmp(name, format_name) != 0)
        return kk_fail(err, KK_EFORMAT, "%s: format is '%.40s', not '%s'", label, name,
                       format_name);
    KK_TRY(kk_field_int(f, "version", KK_FIELD_REQUIRED, &version, err));
    if (version == VERSION) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s is of version %d, this program reads version %d", label,
                   version, VERSION);
}

static kk_status read_kind(kk_projection_config *c, kk_fields f, kk_err *err) {
    const char *source, *encoders;
    KK_TRY(read_word(f, "source", &source, err));
    if (!kk_source_named(source, &c->source))
        return kk_fail(err, KK_EFORMAT,
                       "%s: source is '%.40s', not taps, context, embed or drafter-kv", label,
                       source);
    KK_TRY(read_word(f, "encoders", &encoders, err));
    c->joint = strcmp(encoders, "joint") == 0;
    if (c->joint || strcmp(encoders, "separate") == 0) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: encoders is '%.40s', not joint or separate", label,
                   encoders);
}

static kk_status read_taps(kk_projection_config *c, kk_fields f, kk_err *err) {
    const json_t *taps = kk_field(f, "taps");
    const size_t n = json_array_size(taps);
    if (!taps) return KK_OK;
    if (!json_is_array(taps) || n > KK_MAX_TAPS)
        return kk_fail(err, KK_EFORMAT, "%s: taps is no list of up to %d layers", label,
                       KK_MAX_TAPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *tap = json_array_get(taps, i);
        const json_int_t v = json_integer_value(tap);
        if (!json_is_integer(tap) || v < 0 || v >= KK_MAX_LAYERS)
            return kk_fail(err, KK_EFORMAT, "%s: taps[%zu] is no layer", label, i);
        c->taps[i] = (int32_t)v;
    }
    c->n_taps = (int32_t)n;
    return KK_OK;
}

static kk_status read_layer(kk_projection_config *c, kk_fields f, kk_err *err) {
    int32_t i, heads, dim;
    bool k_eq_v;
    KK_TRY(kk_field_int(f, "layer", KK_FIELD_REQUIRED, &i, err));
    if (i < 0 || i >= c->n_layer)
        return kk_fail(err, KK_EFORMAT, "%s: layers names layer %d, the verifier has %d layers",
                       label, i, c->n_layer);
    if (c->layer[i].restored)
        return kk_fail(err, KK_EFORMAT, "%s: layers names layer %d twice", label, i);
    KK_TRY(kk_field_int(f, "kv_heads", KK_FIELD_REQUIRED, &heads, err));
    KK_TRY(kk_field_int(f, "head_dim", KK_FIELD_REQUIRED, &dim, err));
    KK_TRY(kk_field_bool(f, "k_eq_v", false, &k_eq_v, err));
    c->layer[i].restored = true;
    c->layer[i].k_eq_v = k_eq_v;
    c->layer[i].n_kv_head = heads;
    c->layer[i].head_dim = dim;
    return KK_OK;
}

static kk_status read_layers(kk_projection_config *c, kk_fields f, kk_err *err) {
    const json_t *list = kk_field(f, "layers");
    KK_TRY(kk_field_int(f, "verifier_layers", KK_FIELD_REQUIRED, &c->n_layer, err));
    KK_TRY(in_range("verifier_layers", c->n_layer, 1, KK_MAX_LAYERS, err));
    if (!json_is_array(list)) return kk_fail(err, KK_EFORMAT, "%s: layers is no list", label);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_object(item))
            return kk_fail(err, KK_EFORMAT, "%s: layers[%zu] is no object", label, i);
        KK_TRY(read_layer(c, (kk_fields){label, item}, err));
    }
    return KK_OK;
}

/* Sixteen hexadecimal digits; absent: 0. */
static kk_status read_fingerprint(kk_fields f, const char *key, uint64_t *out, kk_err *err) {
    const char *text = json_string_value(kk_field(f, key));
    *out = 0;
    if (!kk_field(f, key)) return KK_OK;
    if (!text || !kk_lineage_parse(text, strlen(text), out))
        return kk_fail(err, KK_EFORMAT, "%s: %s is no fingerprint of 16 hexadecimal digits", label,
                       key);
    return KK_OK;
}

/* Hash of the configuration as written without its checksum: reading and writing it again gives the
 * same. */
static kk_status check_itself(const kk_projection_config *c, kk_fields f, kk_err *err) {
    uint64_t said;
    KK_TRY(read_fingerprint(f, "config_checksum", &said, err));
    if (!said && !c->data) return KK_OK; /* a file of an earlier build has none */
    if (!said || !c->data)
        return kk_fail(err, KK_EFORMAT, "%s has %s checksum and not the other", label,
                       said ? "its own" : "its data's");
    char *text = written(c, 0);
    if (!text) return kk_fail(err, KK_ENOMEM, "no memory to check %s", label);
    const uint64_t is = checksum_of(text);
    kk_free(text);
    if (is == said) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "%s was changed after it was written: its checksum is %016" PRIx64
                   ", and it says %016" PRIx64,
                   label, is, said);
}

static kk_status read_all(kk_projection_config *c, kk_fields f, kk_err *err) {
    KK_TRY(read_version(f, err));
    KK_TRY(read_kind(c, f, err));
    KK_TRY(kk_field_int(f, "inputs", KK_FIELD_REQUIRED, &c->n_in, err));
    KK_TRY(kk_field_int(f, "rank", KK_FIELD_REQUIRED, &c->rank, err));
    KK_TRY(kk_field_int(f, "hidden", KK_FIELD_REQUIRED, &c->hidden, err));
    KK_TRY(kk_field_int(f, "drafter_layers", 0, &c->draft.n_layer, err));
    KK_TRY(kk_field_int(f, "drafter_kv_heads", 0, &c->draft.n_kv_head, err));
    KK_TRY(kk_field_int(f, "drafter_head_dim", 0, &c->draft.head_dim, err));
    KK_TRY(read_taps(c, f, err));
    KK_TRY(read_layers(c, f, err));
    KK_TRY(read_fingerprint(f, "verifier", &c->verifier, err));
    KK_TRY(read_fingerprint(f, "verifier_source", &c->verifier_source, err));
    KK_TRY(read_fingerprint(f, "verifier_identity", &c->verifier_identity, err));
    KK_TRY(read_fingerprint(f, "drafter", &c->drafter, err));
    KK_TRY(read_fingerprint(f, "drafter_identity", &c->drafter_identity, err));
    KK_TRY(read_fingerprint(f, "data_checksum", &c->data, err));
    KK_TRY(valid(c, err));
    return check_itself(c, f, err);
}

kk_status kk_projection_config_from_json(kk_projection_config *out, const char *json, size_t len,
                                         kk_err *err) {
    json_t *root;
    *out = (kk_projection_config){0};
    KK_TRY(kk_json_tree(&root, json, len, label, KK_EFORMAT, err));
    kk_status st = KK_OK;
    if (!json_is_object(root)) st = kk_fail(err, KK_EFORMAT, "%s is no JSON object", label);
    if (st == KK_OK) st = read_all(out, (kk_fields){label, root}, err);
    json_decref(root);
    return st;
}

/* ---- beside a verifier and a drafter ---------------------------------------------------- */

#define OTHER(what, ours, theirs)                                                                  \
    kk_fail(err, KK_EINVAL, "the projection is of another model: " what, ours, theirs)

static kk_status check_layer(const kk_projection_config *c, const kk_config *v, int32_t i,
                             kk_err *err) {
    const kk_layer_config *l = &v->layer[i];
    if (!c->layer[i].restored) return KK_OK;
    if (l->kv_source != i)
        return OTHER("it rebuilds layer %d, which reads the K/V of layer %d", i, l->kv_source);
    if (c->layer[i].n_kv_head != l->n_kv_head)
        return kk_fail(err, KK_EINVAL,
                       "the projection is of another model: layer %d has %d K/V heads, the "
                       "verifier's %d",
                       i, c->layer[i].n_kv_head, l->n_kv_head);
    if (c->layer[i].head_dim != l->head_dim)
        return kk_fail(err, KK_EINVAL,
                       "the projection is of another model: layer %d has heads of %d, the "
                       "verifier's %d",
                       i, c->layer[i].head_dim, l->head_dim);
    if (c->layer[i].k_eq_v != l->k_eq_v)
        return OTHER("layer %d has K = V %s", i,
                     l->k_eq_v ? "in the verifier and not in it" : "in it and not in the verifier");
    return KK_OK;
}

static kk_status check_verifier(const kk_projection_config *c, const kk_config *v, kk_err *err) {
    if (c->n_layer != v->n_layer)
        return OTHER("it was made for %d layers, the verifier has %d", c->n_layer, v->n_layer);
    if (c->hidden != v->hidden)
        return OTHER("it was made for a hidden size of %d, the verifier's is %d", c->hidden,
                     v->hidden);
    for (int32_t i = 0; i < c->n_layer; i++) KK_TRY(check_layer(c, v, i, err));
    return KK_OK;
}

/* Its fc reads the same taps in the same order, or what it says of a row is something else. */
static kk_status check_context(const kk_projection_config *c, const kk_drafter_config *d,
                               kk_err *err) {
    if (c->n_in != d->hidden)
        return kk_fail(err, KK_EINVAL,
                       "the projection is of another drafter: it reads %d values, the drafter's "
                       "hidden size is %d",
                       c->n_in, d->hidden);
    if (c->n_taps != d->n_taps)
        return kk_fail(err, KK_EINVAL,
                       "the projection is of another drafter: it was made with %d taps, the "
                       "drafter has %d",
                       c->n_taps, d->n_taps);
    for (int32_t i = 0; i < c->n_taps; i++)
        if (c->taps[i] != d->taps[i])
            return kk_fail(err, KK_EINVAL,
                           "the projection is of another drafter: its tap %d is layer %d, the "
                           "drafter's %d",
                           i, c->taps[i], d->taps[i]);
    return KK_OK;
}

static kk_status check_draft_kv(const kk_projection_config *c, const kk_drafter_config *d,
                                kk_err *err) {
    const struct {
        const char *what;
        int32_t ours, theirs;
    } pairs[] = {{"layers", c->draft.n_layer, d->n_layer},
                 {"K/V heads", c->draft.n_kv_head, d->n_kv_head},
                 {"values per head", c->draft.head_dim, d->head_dim}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].ours != pairs[i].theirs)
            return kk_fail(err, KK_EINVAL,
                           "the projection is of another drafter: it reads %d %s, the drafter has "
                           "%d",
                           pairs[i].ours, pairs[i].what, pairs[i].theirs);
    return KK_OK;
}

static kk_status check_causal(const kk_projection_config *c, kk_err *err) {
    if (c->source == KK_SOURCE_DRAFTER_KV)
        return kk_fail(err, KK_EINVAL,
                       "a projection from drafter-kv reads later tokens, so no cache can keep what "
                       "it says of a row: it can be evaluated only");
    if (!c->joint)
        return kk_fail(err, KK_EINVAL,
                       "a projection with two encoders has two latents per row, a cache keeps one: "
                       "it can be evaluated only");
    return KK_OK;
}

kk_status kk_projection_check(const kk_projection_config *c, const kk_config *verifier,
                              const kk_drafter_config *drafter, bool causal, kk_err *err) {
    const bool reads = c->source == KK_SOURCE_CONTEXT || c->source == KK_SOURCE_DRAFTER_KV;
    KK_TRY(kk_projection_config_valid(c, KK_EINVAL, err));
    KK_TRY(check_verifier(c, verifier, err));
    if (causal) KK_TRY(check_causal(c, err));
    if (!reads) return KK_OK;
    if (!drafter)
        return kk_fail(err, KK_EINVAL, "a projection from %s reads a drafter, and there is none",
                       kk_source_name(c->source));
    return c->source == KK_SOURCE_CONTEXT ? check_context(c, drafter, err)
                                          : check_draft_kv(c, drafter, err);
}
