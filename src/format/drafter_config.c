/* drafter_config.c - reads a DFlash drafter's config.json and checks it, so that nobody after it
 * needs to; and says whether a drafter fits a verifier.
 *
 * The fields are those of a Qwen3 model with a few of DFlash's own, some at the top level and
 * some in dflash_config.  Exports differ in where they put a thing; where two places speak and
 * disagree the file is refused, because every guess would cost drafts and show nowhere else. */
#include <inttypes.h>
#include <math.h>

#include "core/alloc.h"
#include "format/fields.h"
#include "format/format.h"
#include "format/jsontree.h"

static const char label[] = "the drafter's config.json";
static const char class[] = "DFlashDraftModel";

typedef struct {
    kk_fields top, own; /* the whole object; its dflash_config */
} source;

static kk_status in_range(const char *field, int64_t v, int64_t low, int64_t high, kk_err *err) {
    return kk_in_range(label, field, v, low, high, err);
}

/* ---- one thing in two places ------------------------------------------------------------ */

/* An integer named differently in two objects; where both have it they must agree. */
static kk_status either_int(kk_fields a, const char *key_a, kk_fields b, const char *key_b,
                            int32_t fallback, int32_t *out, kk_err *err) {
    int32_t second;
    if (!kk_field(b, key_b)) return kk_field_int(a, key_a, fallback, out, err);
    KK_TRY(kk_field_int(b, key_b, 0, &second, err));
    KK_TRY(kk_field_int(a, key_a, second, out, err));
    if (*out == second) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: %s is %d and %s is %d", label, key_a, *out, key_b, second);
}

/* rope_theta at the top or in rope_parameters, and nothing that would change the angles. */
static kk_status read_rope(kk_drafter_config *c, const source *s, kk_err *err) {
    kk_fields r;
    float top, inner;
    KK_TRY(kk_field_object(s->top, "rope_parameters", &r, err));
    KK_TRY(kk_field_only_word(r, "rope_type", "default", err));
    if (kk_field(s->top, "rope_scaling"))
        return kk_fail(err, KK_EFORMAT, "%s: rope_scaling is not supported", label);
    KK_TRY(kk_field_float(s->top, "rope_theta", 0, &top, err));
    KK_TRY(kk_field_float(r, "rope_theta", (double)top, &inner, err));
    if (kk_field(s->top, "rope_theta") && (top < inner || top > inner))
        return kk_fail(err, KK_EFORMAT, "%s: rope_theta is %g and %g in rope_parameters", label,
                       (double)top, (double)inner);
    c->theta = inner;
    return kk_in_range_f(label, "rope_theta", (double)c->theta, 1, 1e12, err);
}

/* Without a word about it sliding layers are causal in the block and full ones are not. */
static kk_status read_causal(kk_drafter_config *c, const source *s, kk_err *err) {
    bool top, own;
    const bool said_top = kk_field(s->top, "is_causal"), said_own = kk_field(s->own, "causal");
    KK_TRY(kk_field_bool(s->top, "is_causal", false, &top, err));
    KK_TRY(kk_field_bool(s->own, "causal", top, &own, err));
    if (said_top && said_own && top != own)
        return kk_fail(err, KK_EFORMAT, "%s: is_causal and dflash_config.causal disagree", label);
    c->sliding_causal = said_top || said_own ? own : true;
    c->full_causal = said_top || said_own ? own : false;
    return KK_OK;
}

static kk_status read_embed_scale(kk_drafter_config *c, const source *s, kk_err *err) {
    const json_t *v = kk_field(s->own, "embed_scale"), *top = kk_field(s->top, "embed_scale");
    if (v && top && !json_equal(v, top))
        return kk_fail(err, KK_EFORMAT, "%s: embed_scale has two values", label);
    if (!v) v = top;
    const char *word = json_string_value(v);
    c->embed_scaling = KK_EMBED_ONCE;
    c->embed_said = v != NULL;
    if (!v || (word && strcmp(word, "once") == 0)) return KK_OK;
    if (word && strcmp(word, "twice") == 0)
        c->embed_scaling = KK_EMBED_TWICE;
    else if ((word && strcmp(word, "1") == 0) || (json_is_integer(v) && json_integer_value(v) == 1))
        c->embed_scaling = KK_EMBED_UNSCALED;
    else
        return kk_fail(err, KK_EFORMAT, "%s: embed_scale is '%.20s', not 1, once or twice", label,
                       word ? word : "no word");
    return KK_OK;
}

/* ---- layers ----------------------------------------------------------------------------- */

static kk_status kind_named(const json_t *types, int32_t i, kk_kind *out, kk_err *err) {
    const char *word = json_string_value(json_array_get(types, (size_t)i));
    *out = KK_FULL;
    if (word && strcmp(word, "full_attention") == 0) return KK_OK;
    *out = KK_SLIDING;
    if (word && strcmp(word, "sliding_attention") == 0) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: layer_types[%d] is '%.40s'", label, i,
                   word ? word : "not a string");
}

/* The kinds as listed; without a list, layers from max_window_layers on slide if any do (all of
 * them where use_swa says so). */
static kk_status read_kinds(kk_drafter_config *c, const source *s, bool slides, bool swa,
                            kk_err *err) {
    const json_t *types = kk_field(s->top, "layer_types");
    const size_t n = json_array_size(types);
    int32_t first;
    if (types && !json_is_array(types))
        return kk_fail(err, KK_EFORMAT, "%s: layer_types is no list", label);
    const int32_t fallback = types && n <= KK_MAX_DRAFT_LAYERS ? (int32_t)n : KK_FIELD_REQUIRED;
    KK_TRY(kk_field_int(s->top, "num_hidden_layers", fallback, &c->n_layer, err));
    KK_TRY(in_range("num_hidden_layers", c->n_layer, 1, KK_MAX_DRAFT_LAYERS, err));
    if (types && n != (size_t)c->n_layer)
        return kk_fail(err, KK_EFORMAT, "%s: layer_types has %zu entries for %d layers", label, n,
                       c->n_layer);
    KK_TRY(kk_field_int(s->top, "max_window_layers", swa ? 0 : 28, &first, err));
    if (swa) first = 0;
    for (int32_t i = 0; i < c->n_layer; i++) {
        c->kind[i] = slides && i >= first ? KK_SLIDING : KK_FULL;
        if (types) KK_TRY(kind_named(types, i, &c->kind[i], err));
    }
    return KK_OK;
}

/* Whether anything slides and how far: use_sliding_window with sliding_window, or use_swa with
 * swa_window_size. */
static kk_status read_layers(kk_drafter_config *c, const source *s, kk_err *err) {
    bool use, swa;
    KK_TRY(either_int(s->top, "sliding_window", s->own, "swa_window_size", 0, &c->window, err));
    KK_TRY(kk_field_bool(s->top, "use_sliding_window", c->window > 0, &use, err));
    KK_TRY(kk_field_bool(s->own, "use_swa", use, &swa, err));
    const bool slides = use && swa;
    const bool listed = kk_field(s->top, "layer_types");
    KK_TRY(read_kinds(c, s, slides, kk_field(s->own, "use_swa") && swa, err));
    int32_t n_sliding = 0;
    for (int32_t i = 0; i < c->n_layer; i++) n_sliding += c->kind[i] == KK_SLIDING;
    if (n_sliding && !slides)
        return kk_fail(err, KK_EFORMAT, "%s: layer_types names sliding layers, %s", label,
                       use ? "use_swa is false"
                           : "use_sliding_window is false or there is no sliding_window");
    if (listed && !n_sliding && kk_field(s->own, "use_swa") && swa)
        return kk_fail(err, KK_EFORMAT, "%s: use_swa is true, layer_types names no sliding layer",
                       label);
    if (n_sliding) return in_range("sliding_window", c->window, 1, 1 << 24, err);
    c->window = 0;
    return KK_OK;
}

static kk_status read_heads(kk_drafter_config *c, kk_fields t, kk_err *err) {
    KK_TRY(kk_field_int(t, "num_attention_heads", KK_FIELD_REQUIRED, &c->n_head, err));
    KK_TRY(in_range("num_attention_heads", c->n_head, 1, 1 << 10, err));
    KK_TRY(kk_field_int(t, "num_key_value_heads", c->n_head, &c->n_kv_head, err));
    KK_TRY(in_range("num_key_value_heads", c->n_kv_head, 1, c->n_head, err));
    KK_TRY(kk_field_int(t, "head_dim", c->hidden / c->n_head, &c->head_dim, err));
    KK_TRY(in_range("head_dim", c->head_dim, 2, 512, err));
    if (c->head_dim % 2 != 0)
        return kk_fail(err, KK_EFORMAT, "%s: head_dim %d is odd", label, c->head_dim);
    if (c->n_head % c->n_kv_head != 0 || c->n_head / c->n_kv_head > 128)
        return kk_fail(err, KK_EFORMAT,
                       "%s: %d attention heads do not divide into %d key heads, 128 to one at most",
                       label, c->n_head, c->n_kv_head);
    return KK_OK;
}

/* ---- DFlash ----------------------------------------------------------------------------- */

static kk_status read_taps(kk_drafter_config *c, const source *s, kk_err *err) {
    const json_t *ids = kk_field(s->own, "target_layer_ids");
    KK_TRY(kk_field_int(s->top, "num_target_layers", 0, &c->n_target_layers, err));
    KK_TRY(in_range("num_target_layers", c->n_target_layers, 0, KK_MAX_LAYERS, err));
    if (!ids && !c->n_target_layers)
        return kk_fail(err, KK_EFORMAT,
                       "%s: target_layer_ids and num_target_layers are both missing", label);
    if (!ids) return KK_OK;
    const size_t n = json_array_size(ids);
    if (n < 1 || n > KK_MAX_TAPS)
        return kk_fail(err, KK_EFORMAT, "%s: target_layer_ids is no list of 1 to %d layers", label,
                       KK_MAX_TAPS);
    const int32_t most = c->n_target_layers ? c->n_target_layers : KK_MAX_LAYERS;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        const json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= most)
            return kk_fail(err, KK_EFORMAT,
                           "%s: target_layer_ids[%zu] is %" PRId64 ", not one of %d layers", label,
                           i, json_is_integer(id) ? (int64_t)v : -1, most);
        c->taps[i] = (int32_t)v;
    }
    c->n_taps = (int32_t)n;
    return KK_OK;
}

void kk_drafter_spread_taps(kk_drafter_config *c, int32_t n, int32_t n_layer) {
    c->n_taps = n;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = n_layer / 2;
        if (n > 1) at = (int32_t)rint(1 + i * (double)(n_layer - 4) / (n - 1));
        c->taps[i] = at < 0 ? 0 : at > n_layer - 1 ? n_layer - 1 : at;
    }
}

static kk_status read_block(kk_drafter_config *c, const source *s, kk_err *err) {
    KK_TRY(
        either_int(s->top, "block_size", s->own, "block_size", KK_FIELD_REQUIRED, &c->block, err));
    KK_TRY(in_range("block_size", c->block, 2, KK_MAX_DRAFT_BLOCK, err));
    KK_TRY(either_int(s->top, "mask_token_id", s->own, "mask_token_id", KK_FIELD_REQUIRED,
                      &c->mask_id, err));
    return in_range("mask_token_id", c->mask_id, 0, c->vocab - 1, err);
}

/* What would change the arithmetic and no released drafter has. */
static kk_status refuse_unknown(const source *s, kk_err *err) {
    const json_t *classes = kk_field(s->top, "architectures");
    const char *first = json_string_value(json_array_get(classes, 0));
    if (classes && !(first && strcmp(first, class) == 0))
        return kk_fail(err, KK_EFORMAT, "%s: architectures names '%.40s', only %s is supported",
                       label, first ? first : "nothing", class);
    KK_TRY(kk_field_only_word(s->top, "model_type", "qwen3", err));
    KK_TRY(kk_field_only_word(s->top, "hidden_act", "silu", err));
    KK_TRY(kk_field_only_bool(s->top, "is_neox_style", true, err));
    return kk_field_only_bool(s->top, "attention_bias", false, err);
}

static kk_status read_all(kk_drafter_config *c, const source *s, kk_err *err) {
    KK_TRY(refuse_unknown(s, err));
    KK_TRY(kk_field_int(s->top, "vocab_size", KK_FIELD_REQUIRED, &c->vocab, err));
    KK_TRY(in_range("vocab_size", c->vocab, 2, 1 << 24, err));
    KK_TRY(kk_field_int(s->top, "hidden_size", KK_FIELD_REQUIRED, &c->hidden, err));
    KK_TRY(in_range("hidden_size", c->hidden, 1, 1 << 16, err));
    KK_TRY(kk_field_int(s->top, "intermediate_size", KK_FIELD_REQUIRED, &c->ffn, err));
    KK_TRY(in_range("intermediate_size", c->ffn, 1, 1 << 20, err));
    KK_TRY(kk_field_int(s->top, "max_position_embeddings", 32768, &c->context, err));
    KK_TRY(in_range("max_position_embeddings", c->context, 1, 1 << 30, err));
    KK_TRY(kk_field_float(s->top, "rms_norm_eps", 1e-6, &c->eps, err));
    KK_TRY(kk_in_range_f(label, "rms_norm_eps", (double)c->eps, 1e-12, 0.1, err));
    KK_TRY(kk_field_float(s->top, "final_logit_softcapping", 0, &c->softcap, err));
    KK_TRY(kk_in_range_f(label, "final_logit_softcapping", (double)c->softcap, 0, 1e6, err));
    KK_TRY(read_heads(c, s->top, err));
    KK_TRY(read_layers(c, s, err));
    KK_TRY(read_rope(c, s, err));
    KK_TRY(read_causal(c, s, err));
    KK_TRY(read_embed_scale(c, s, err));
    KK_TRY(read_taps(c, s, err));
    return read_block(c, s, err);
}

kk_status kk_drafter_is_config(const char *json, size_t len, bool *is, kk_err *err) {
    json_t *root;
    *is = false;
    const kk_status st = kk_json_tree(&root, json, len, label, KK_EFORMAT, err);
    if (st != KK_OK) return st == KK_EFORMAT ? KK_OK : st; /* whoever reads it says what is wrong */
    const json_t *classes = json_object_get(root, "architectures");
    const char *first = json_string_value(json_array_get(classes, 0));
    *is = json_object_get(root, "dflash_config") || (first && strcmp(first, class) == 0);
    json_decref(root);
    return KK_OK;
}

kk_status kk_drafter_config_from_json(kk_drafter_config *out, const char *json, size_t len,
                                      kk_err *err) {
    json_t *root;
    *out = (kk_drafter_config){0};
    KK_TRY(kk_json_tree(&root, json, len, label, KK_EFORMAT, err));
    source s = {.top = {label, root}};
    kk_status st = KK_OK;
    if (!json_is_object(root)) st = kk_fail(err, KK_EFORMAT, "%s is no JSON object", label);
    if (st == KK_OK) st = kk_field_object(s.top, "dflash_config", &s.own, err);
    if (st == KK_OK) st = read_all(out, &s, err);
    json_decref(root);
    return st;
}

/* ---- beside a verifier ------------------------------------------------------------------ */

kk_status kk_drafter_check(const kk_drafter_config *d, const kk_config *verifier, kk_err *err) {
    if (d->hidden != verifier->hidden)
        return kk_fail(err, KK_EINVAL,
                       "the drafter is of another model: its hidden size is %d, the verifier's %d",
                       d->hidden, verifier->hidden);
    if (d->vocab != verifier->vocab)
        return kk_fail(err, KK_EINVAL,
                       "the drafter is of another model: its vocabulary is %d, the verifier's %d",
                       d->vocab, verifier->vocab);
    for (int32_t i = 0; i < d->n_taps; i++)
        if (d->taps[i] >= verifier->n_layer)
            return kk_fail(err, KK_EINVAL, "the drafter reads layer %d, the verifier has %d layers",
                           d->taps[i], verifier->n_layer);
    if (d->n_target_layers && d->n_target_layers != verifier->n_layer)
        return kk_fail(err, KK_EINVAL,
                       "the drafter is of a verifier with %d layers, this one has %d",
                       d->n_target_layers, verifier->n_layer);
    return KK_OK;
}
