/* config.c - reads config.json and checks it, so that nobody after it needs to.
 *
 * Fields a released file may leave out take the defaults of the public configuration class;
 * those without a usable default are asked for by name.  Two styles of per-layer shapes are
 * read: global_head_dim and num_global_key_value_heads beside the common ones, or a
 * per_layer_config map.  kk_config_finish is the common last step of all readers. */
#include "format/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "format/fields.h"
#include "format/format.h"

/* ---- checks common to every source ------------------------------------------------------ */

static kk_status in_range(const char *field, int64_t v, int64_t low, int64_t high, kk_err *err) {
    return kk_in_range("configuration", field, v, low, high, err);
}

static kk_status in_range_f(const char *field, double v, double low, double high, kk_err *err) {
    return kk_in_range_f("configuration", field, v, low, high, err);
}

static kk_status check_whole(const kk_config *c, kk_err *err) {
    KK_TRY(in_range("vocab_size", c->vocab, 1, 1 << 24, err));
    KK_TRY(in_range("hidden_size", c->hidden, 1, 1 << 16, err));
    KK_TRY(in_range("num_hidden_layers", c->n_layer, 1, KK_MAX_LAYERS, err));
    KK_TRY(in_range("num_attention_heads", c->n_head, 1, 1 << 10, err));
    KK_TRY(in_range("sliding_window", c->window, 1, 1 << 24, err));
    KK_TRY(in_range("max_position_embeddings", c->context, 1, 1 << 30, err));
    KK_TRY(in_range("hidden_size_per_layer_input", c->ple_dim, 0, 1024, err));
    if (c->ple_dim)
        KK_TRY(in_range("vocab_size_per_layer_input", c->ple_vocab, c->vocab, 1 << 24, err));
    KK_TRY(in_range("num_experts", c->n_expert, 0, 1 << 12, err));
    if (c->n_expert) {
        KK_TRY(in_range("top_k_experts", c->n_expert_used, 1, c->n_expert, err));
        KK_TRY(in_range("moe_intermediate_size", c->expert_ffn, 1, 1 << 20, err));
    }
    KK_TRY(in_range_f("rms_norm_eps", (double)c->eps, 1e-12, 0.1, err));
    KK_TRY(in_range_f("final_logit_softcapping", (double)c->softcap, 0, 1e6, err));
    KK_TRY(in_range("bos_token_id", c->bos, 0, c->vocab - 1, err));
    return in_range("pad_token_id", c->pad, 0, c->vocab - 1, err);
}

static kk_status check_layer(const kk_config *c, int32_t i, kk_err *err) {
    const kk_layer_config *l = &c->layer[i];
    KK_TRY(in_range("intermediate_size", l->ffn, 1, 1 << 20, err));
    KK_TRY(in_range("head_dim", l->head_dim, 2, 512, err));
    KK_TRY(in_range("num_key_value_heads", l->n_kv_head, 1, c->n_head, err));
    if (l->head_dim % 2 != 0)
        return kk_fail(err, KK_EFORMAT, "configuration: head_dim %d of layer %d is odd",
                       l->head_dim, i);
    if (c->n_head % l->n_kv_head != 0)
        return kk_fail(err, KK_EFORMAT,
                       "configuration: %d attention heads do not divide into %d key heads "
                       "(layer %d)",
                       c->n_head, l->n_kv_head, i);
    if (c->n_head / l->n_kv_head > 128)
        return kk_fail(err, KK_EFORMAT,
                       "configuration: %d attention heads share a key head (layer %d), at most 128 "
                       "can",
                       c->n_head / l->n_kv_head, i);
    return KK_OK;
}

/* RoPE tables and cache pages are made per kind, so all layers of a kind must look alike. */
static kk_status check_kinds(const kk_config *c, kk_err *err) {
    for (int kind = 0; kind < KK_LAYER_KINDS; kind++) {
        const kk_layer_config *first = NULL;
        for (int32_t i = 0; i < c->n_layer; i++) {
            const kk_layer_config *l = &c->layer[i];
            if ((int)l->kind != kind) continue;
            if (!first) first = l;
            if (l->head_dim != first->head_dim || l->n_kv_head != first->n_kv_head)
                return kk_fail(err, KK_EFORMAT,
                               "configuration: layer %d has %d key heads of %d, other layers of "
                               "its kind %d of %d",
                               i, l->n_kv_head, l->head_dim, first->n_kv_head, first->head_dim);
        }
        if (!first) continue;
        const kk_rope_config *r = &c->rope[kind];
        KK_TRY(in_range_f("rope_theta", (double)r->theta, 1, 1e12, err));
        KK_TRY(in_range_f("rope factor", (double)r->factor, 1e-6, 1e6, err));
        KK_TRY(in_range("rotated pairs", r->n_rot, 0, first->head_dim / 2, err));
    }
    return KK_OK;
}

/* A shared layer reads the last layer of its kind that has K/V of its own. */
static kk_status share_kv(kk_config *c, int32_t n_shared, bool double_wide, kk_err *err) {
    KK_TRY(in_range("num_kv_shared_layers", n_shared, 0, c->n_layer - 1, err));
    const int32_t first_shared = c->n_layer - n_shared;
    int32_t last_own[KK_LAYER_KINDS] = {-1, -1};
    for (int32_t i = 0; i < c->n_layer; i++) {
        kk_layer_config *l = &c->layer[i];
        if (i < first_shared) last_own[l->kind] = i;
        l->kv_source = last_own[l->kind];
        if (l->kv_source < 0)
            return kk_fail(err, KK_EFORMAT,
                           "configuration: layer %d shares the K/V of an earlier %s layer, and "
                           "there is none",
                           i, l->kind == KK_FULL ? "full" : "sliding");
        if (i < first_shared) continue;
        l->k_eq_v = c->layer[l->kv_source].k_eq_v;
        if (double_wide) l->ffn *= 2;
    }
    return KK_OK;
}

kk_status kk_config_finish(kk_config *c, int32_t n_shared, bool double_wide, kk_err *err) {
    KK_TRY(check_whole(c, err));
    for (int32_t i = 0; i < c->n_layer; i++) KK_TRY(check_layer(c, i, err));
    KK_TRY(check_kinds(c, err));
    return share_kv(c, n_shared, double_wide, err);
}

kk_status kk_config_add_stop(kk_config *c, int64_t id, kk_err *err) {
    if (id < 0) return kk_fail(err, KK_EFORMAT, "configuration: eos_token_id is %" PRId64, id);
    if (id >= c->vocab) return KK_OK;
    for (int32_t i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == id) return KK_OK;
    if (c->n_stop_ids == KK_MAX_STOP_IDS)
        return kk_fail(err, KK_EFORMAT, "configuration: more than %d eos_token_id values",
                       KK_MAX_STOP_IDS);
    c->stop_ids[c->n_stop_ids++] = (int32_t)id;
    return KK_OK;
}

/* ---- JSON fields ------------------------------------------------------------------------ */

/* eos_token_id: an integer, a list of them, or nothing. */
static kk_status add_stops(kk_config *c, kk_fields f, kk_err *err) {
    const json_t *v = kk_field(f, "eos_token_id");
    if (!v) return KK_OK;
    if (json_is_integer(v)) return kk_config_add_stop(c, json_integer_value(v), err);
    if (!json_is_array(v))
        return kk_fail(err, KK_EFORMAT, "%s: eos_token_id is no integer or list", f.label);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id))
            return kk_fail(err, KK_EFORMAT, "%s: eos_token_id %zu is no integer", f.label, i);
        KK_TRY(kk_config_add_stop(c, json_integer_value(id), err));
    }
    return KK_OK;
}

/* ---- layers ----------------------------------------------------------------------------- */

/* Sets the kinds.  Five sliding layers and a full one unless the file lists them; the last layer
 * is full in any case, as in the reference implementation. */
static kk_status read_kinds(kk_config *c, kk_fields t, kk_err *err) {
    const json_t *types = kk_field(t, "layer_types");
    const bool listed = types != NULL;
    const size_t n = json_array_size(types);
    if (listed && !json_is_array(types))
        return kk_fail(err, KK_EFORMAT, "config.json: layer_types is no list");
    const int32_t fallback = listed && n <= KK_MAX_LAYERS ? (int32_t)n : KK_FIELD_REQUIRED;
    KK_TRY(kk_field_int(t, "num_hidden_layers", fallback, &c->n_layer, err));
    KK_TRY(in_range("num_hidden_layers", c->n_layer, 1, KK_MAX_LAYERS, err));
    if (listed && n != (size_t)c->n_layer)
        return kk_fail(err, KK_EFORMAT, "config.json: layer_types has %zu entries for %d layers", n,
                       c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        kk_kind kind = (i + 1) % 6 == 0 ? KK_FULL : KK_SLIDING;
        if (listed) {
            const char *word = json_string_value(json_array_get(types, (size_t)i));
            if (word && strcmp(word, "full_attention") == 0)
                kind = KK_FULL;
            else if (word && strcmp(word, "sliding_attention") == 0)
                kind = KK_SLIDING;
            else
                return kk_fail(err, KK_EFORMAT, "config.json: layer_types[%d] is '%.40s'", i,
                               word ? word : "not a string");
        }
        c->layer[i].kind = i == c->n_layer - 1 ? KK_FULL : kind;
    }
    return KK_OK;
}

/* The entry of layer i in per_layer_config.  Keys are decimal and may be padded with zeros. */
static const json_t *layer_entry(const json_t *map, int32_t i) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) {
        char *end;
        const long n = strtol(key, &end, 10);
        if (end != key && *end == '\0' && n == i) return value;
    }
    return NULL;
}

/* Every key must name a layer, or a shape would silently go unused. */
static kk_status check_layer_keys(const json_t *map, int32_t n_layer, kk_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) {
        char *end;
        const long n = strtol(key, &end, 10);
        if (end == key || *end != '\0' || n < 0 || n >= n_layer || !json_is_object(value))
            return kk_fail(err, KK_EFORMAT, "config.json: per_layer_config has a bad entry '%.40s'",
                           key);
    }
    return KK_OK;
}

static kk_status read_layers(kk_config *c, kk_fields t, kk_err *err) {
    int32_t head_dim, kv_heads, global_dim, global_kv, ffn;
    bool k_eq_v;
    KK_TRY(kk_field_int(t, "intermediate_size", KK_FIELD_REQUIRED, &ffn, err));
    KK_TRY(in_range("intermediate_size", ffn, 1, 1 << 20, err));
    KK_TRY(kk_field_int(t, "head_dim", 256, &head_dim, err));
    KK_TRY(kk_field_int(t, "num_key_value_heads", 4, &kv_heads, err));
    KK_TRY(kk_field_bool(t, "attention_k_eq_v", false, &k_eq_v, err));
    kk_fields map;
    KK_TRY(kk_field_object(t, "per_layer_config", &map, err));
    const bool listed = map.object != NULL;
    KK_TRY(check_layer_keys(map.object, c->n_layer, err));
    /* With a map, a layer that is not in it has the common shape unless the old fields stand
     * beside the map; without one, the old fields and their defaults describe full layers. */
    KK_TRY(kk_field_int(t, "global_head_dim", listed ? head_dim : 512, &global_dim, err));
    KK_TRY(kk_field_int(t, "num_global_key_value_heads", kv_heads, &global_kv, err));
    for (int32_t i = 0; i < c->n_layer; i++) {
        kk_layer_config *l = &c->layer[i];
        const bool full = l->kind == KK_FULL;
        const kk_fields own = {t.label, layer_entry(map.object, i)};
        const bool common = !own.object;
        l->ffn = ffn;
        l->k_eq_v = full && k_eq_v;
        KK_TRY(kk_field_int(own, "head_dim", full && common ? global_dim : head_dim, &l->head_dim,
                            err));
        KK_TRY(kk_field_int(own, "num_key_value_heads", l->k_eq_v && common ? global_kv : kv_heads,
                            &l->n_kv_head, err));
    }
    return KK_OK;
}

/* ---- RoPE ------------------------------------------------------------------------------- */

static int32_t head_dim_of(const kk_config *c, kk_kind kind) {
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->layer[i].kind == kind) return c->layer[i].head_dim;
    return 0;
}

/* rope_parameters has an object per kind of layers.  One with values of its own is of another
 * form, and would be read as if it said nothing. */
static kk_status rope_fields(kk_fields t, const char *kind, kk_fields *out, kk_err *err) {
    kk_fields all;
    KK_TRY(kk_field_object(t, "rope_parameters", &all, err));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)all.object, key, value) {
        if (!json_is_object(value) && !json_is_null(value))
            return kk_fail(err, KK_EFORMAT, "%s: %.40s of rope_parameters is no object", t.label,
                           key);
    }
    return kk_field_object(all, kind, out, err);
}

/* "default" rotates every pair; "proportional" the first partial_rotary_factor of them. */
static kk_status read_rope(kk_config *c, kk_fields t, kk_kind kind, kk_err *err) {
    const bool full = kind == KK_FULL;
    kk_fields o;
    KK_TRY(rope_fields(t, full ? "full_attention" : "sliding_attention", &o, err));
    const bool unsaid = full && !o.object;
    kk_rope_config *r = &c->rope[kind];
    const json_t *type = kk_field(o, "rope_type");
    const char *word = json_string_value(type);
    if (!type) word = unsaid ? "proportional" : "default";
    const bool proportional = word && strcmp(word, "proportional") == 0;
    if (!proportional && !(word && strcmp(word, "default") == 0))
        return kk_fail(err, KK_EFORMAT, "config.json: rope_type '%.40s' is not supported",
                       word ? word : "not a string");
    float partial;
    KK_TRY(kk_field_float(o, "rope_theta", full ? 1e6 : 1e4, &r->theta, err));
    KK_TRY(kk_field_float(o, "factor", 1, &r->factor, err));
    KK_TRY(kk_field_float(o, "partial_rotary_factor", unsaid ? 0.25 : 1, &partial, err));
    KK_TRY(in_range_f("partial_rotary_factor", (double)partial, 0, 1, err));
    if (!proportional && (partial < 1 || r->factor < 1 || r->factor > 1))
        return kk_fail(err, KK_EFORMAT,
                       "config.json: partial_rotary_factor and factor need rope_type proportional");
    r->n_rot = (int32_t)floor((double)partial * head_dim_of(c, kind) / 2);
    return KK_OK;
}

/* ---- the whole file --------------------------------------------------------------------- */

static kk_status read_experts(kk_config *c, kk_fields t, kk_err *err) {
    bool moe;
    KK_TRY(kk_field_bool(t, "enable_moe_block", false, &moe, err));
    if (!moe) return KK_OK;
    KK_TRY(kk_field_int(t, "num_experts", KK_FIELD_REQUIRED, &c->n_expert, err));
    KK_TRY(in_range("num_experts", c->n_expert, 1, 1 << 12, err));
    KK_TRY(kk_field_int(t, "top_k_experts", KK_FIELD_REQUIRED, &c->n_expert_used, err));
    return kk_field_int(t, "moe_intermediate_size", KK_FIELD_REQUIRED, &c->expert_ffn, err);
}

/* What would change the arithmetic and no released model has. */
static kk_status refuse_unknown(kk_fields root, kk_fields t, kk_err *err) {
    const char *type = json_string_value(kk_field(t, "model_type"));
    if (!type) type = json_string_value(kk_field(root, "model_type"));
    if (!type) return kk_fail(err, KK_EFORMAT, "config.json: model_type is missing");
    if (strcmp(type, "gemma4_text") != 0 && strcmp(type, "gemma4") != 0)
        return kk_fail(err, KK_EFORMAT,
                       "config.json: model_type is '%.40s', only gemma4 is supported", type);
    KK_TRY(kk_field_only_word(t, "hidden_activation", "gelu_pytorch_tanh", err));
    KK_TRY(kk_field_only_bool(t, "attention_bias", false, err));
    KK_TRY(kk_field_only_bool(t, "tie_word_embeddings", true, err));
    return kk_field_only_bool(root, "tie_word_embeddings", true, err);
}

static kk_status read_text(kk_config *c, kk_fields root, kk_fields t, kk_err *err) {
    int32_t n_shared;
    bool double_wide;
    KK_TRY(refuse_unknown(root, t, err));
    KK_TRY(kk_field_int(t, "vocab_size", 262144, &c->vocab, err));
    KK_TRY(kk_field_int(t, "hidden_size", KK_FIELD_REQUIRED, &c->hidden, err));
    KK_TRY(kk_field_int(t, "num_attention_heads", 8, &c->n_head, err));
    KK_TRY(kk_field_int(t, "sliding_window", 512, &c->window, err));
    KK_TRY(kk_field_int(t, "max_position_embeddings", 131072, &c->context, err));
    KK_TRY(kk_field_int(t, "hidden_size_per_layer_input", 256, &c->ple_dim, err));
    if (json_is_null(json_object_get(t.object, "hidden_size_per_layer_input"))) c->ple_dim = 0;
    KK_TRY(kk_field_int(t, "vocab_size_per_layer_input", 262144, &c->ple_vocab, err));
    KK_TRY(kk_field_float(t, "rms_norm_eps", 1e-6, &c->eps, err));
    KK_TRY(kk_field_float(t, "final_logit_softcapping", 0, &c->softcap, err));
    KK_TRY(kk_field_int(t, "bos_token_id", 2, &c->bos, err));
    KK_TRY(kk_field_int(t, "pad_token_id", 0, &c->pad, err));
    KK_TRY(kk_field_int(t, "num_kv_shared_layers", 0, &n_shared, err));
    KK_TRY(kk_field_bool(t, "use_double_wide_mlp", false, &double_wide, err));
    KK_TRY(read_experts(c, t, err));
    KK_TRY(read_kinds(c, t, err));
    KK_TRY(read_layers(c, t, err));
    KK_TRY(read_rope(c, t, KK_SLIDING, err));
    KK_TRY(read_rope(c, t, KK_FULL, err));
    KK_TRY(kk_config_finish(c, n_shared, double_wide, err));
    KK_TRY(add_stops(c, t, err));
    return root.object == t.object ? KK_OK : add_stops(c, root, err);
}

static kk_status parse(const char *label, const char *json, size_t len, json_t **root,
                       kk_err *err) {
    json_error_t why;
    *root = NULL;
    if (kk_fault_point()) return kk_fail(err, KK_ENOMEM, "no memory to parse %s", label);
    *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &why);
    if (!*root) return kk_fail(err, KK_EFORMAT, "%s, line %d: %.120s", label, why.line, why.text);
    if (json_is_object(*root)) return KK_OK;
    json_decref(*root);
    *root = NULL;
    return kk_fail(err, KK_EFORMAT, "%s is no JSON object", label);
}

kk_status kk_config_from_json(kk_config *out, const char *json, size_t len, kk_err *err) {
    json_t *root;
    *out = (kk_config){0};
    KK_TRY(parse("config.json", json, len, &root, err));
    const kk_fields all = {"config.json", root};
    kk_fields text;
    kk_status st = kk_field_object(all, "text_config", &text, err);
    if (st == KK_OK) st = read_text(out, all, text.object ? text : all, err);
    json_decref(root);
    return st;
}

kk_status kk_config_add_generation(kk_config *c, const char *json, size_t len, kk_err *err) {
    json_t *root;
    KK_TRY(parse("generation_config.json", json, len, &root, err));
    const kk_status st = add_stops(c, (kk_fields){"generation_config.json", root}, err);
    json_decref(root);
    return st;
}
