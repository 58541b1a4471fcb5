/* drafter_gguf.c - a DFlash drafter's configuration as GGUF keys, both ways.
 *
 * Architecture, keys and tensor names are those of llama.cpp's converter ("dflash"), so that its
 * files load here; docs/drafters.md lists them.  What it does not write and a drafter may say has a
 * key of ours beside them.  A tapped layer is counted there by the layer whose input it is, here by
 * the one whose output it is: one less.
 *
 * The checks are those of config.json: what is refused there is refused here. */
#include <stdio.h>

#include "format/fields.h"
#include "format/format.h"

#define ARCH "dflash"

static const char label[] = "the drafter's GGUF keys";
static const char *const scalings[] = {
    [KK_EMBED_ONCE] = "once", [KK_EMBED_UNSCALED] = "1", [KK_EMBED_TWICE] = "twice"};

/* ---- one key ---------------------------------------------------------------------------- */

typedef struct {
    const char *key;
    int64_t fallback; /* below low: there must be one */
    int64_t low, high;
} int_key;

static kk_status missing(const char *key, kk_err *err) {
    return kk_fail(err, KK_EFORMAT, "%s: %s is missing", label, key);
}

static kk_status read_int(const kk_gguf *g, int_key k, int32_t *out, kk_err *err) {
    int64_t v = k.fallback;
    if (!kk_gguf_find(g, k.key)) {
        if (v < k.low) return missing(k.key, err);
    } else if (!kk_gguf_int(g, k.key, &v)) {
        return kk_fail(err, KK_EFORMAT, "%s: %s is no integer", label, k.key);
    }
    KK_TRY(kk_in_range(label, k.key, v, k.low, k.high, err));
    *out = (int32_t)v;
    return KK_OK;
}

/* fallback below low: there must be one. */
static kk_status read_float(const kk_gguf *g, const char *key, double fallback, double low,
                            double high, float *out, kk_err *err) {
    double v = fallback;
    if (!kk_gguf_find(g, key)) {
        if (v < low) return missing(key, err);
    } else if (!kk_gguf_float(g, key, &v)) {
        return kk_fail(err, KK_EFORMAT, "%s: %s is no number", label, key);
    }
    KK_TRY(kk_in_range_f(label, key, v, low, high, err));
    *out = (float)v;
    return KK_OK;
}

static bool is_word(kk_span s, const char *word) {
    return s.size == strlen(word) && memcmp(s.base, word, s.size) == 0;
}

static kk_status refuse_text(const char *key, kk_span s, const char *wanted, kk_err *err) {
    return kk_fail(err, KK_EFORMAT, "%s: %s is '%.*s', not %s", label, key,
                   s.size < 40 ? (int)s.size : 40, s.size ? (const char *)s.base : "", wanted);
}

/* ---- parts of a drafter ----------------------------------------------------------------- */

static kk_status check_arch(const kk_gguf *g, kk_err *err) {
    kk_span arch;
    int64_t parts = 1;
    if (!kk_gguf_str(g, "general.architecture", &arch)) return missing("general.architecture", err);
    if (!is_word(arch, ARCH)) return refuse_text("general.architecture", arch, "'" ARCH "'", err);
    if (kk_gguf_int(g, "split.count", &parts) && parts > 1)
        return kk_fail(err, KK_EFORMAT,
                       "the drafter is split into %lld GGUF files: merge them first",
                       (long long)parts);
    return KK_OK;
}

/* What would change the arithmetic and no drafter that we know has. */
static kk_status refuse_unknown(const kk_gguf *g, kk_err *err) {
    static const char *const only_none[] = {ARCH ".expert_count", ARCH ".hyper_connection.count",
                                            ARCH ".norm_before_residual", ARCH ".norm_before_fc",
                                            ARCH ".sample_from_anchor"};
    kk_span scaling;
    for (size_t i = 0; i < sizeof only_none / sizeof *only_none; i++) {
        const kk_gguf_kv *kv = kk_gguf_find(g, only_none[i]);
        int64_t v = 1;
        if (kv && (!kk_gguf_array_int(kv, 0, &v) || v != 0))
            return kk_fail(err, KK_EFORMAT, "%s: %s is not supported", label, only_none[i]);
    }
    if (!kk_gguf_find(g, ARCH ".rope.scaling.type")) return KK_OK;
    if (kk_gguf_str(g, ARCH ".rope.scaling.type", &scaling) && is_word(scaling, "none"))
        return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: " ARCH ".rope.scaling.type is not supported", label);
}

/* As a key of its own, or as many as the tokenizer has, where both speak they must agree. */
static kk_status read_vocab(kk_drafter_config *c, const kk_gguf *g, kk_err *err) {
    const kk_gguf_kv *tokens = kk_gguf_find(g, "tokenizer.ggml.tokens");
    const int64_t n =
        tokens && tokens->type == KK_GGUF_ARRAY && tokens->n <= 1 << 24 ? (int64_t)tokens->n : 0;
    KK_TRY(read_int(g, (int_key){ARCH ".vocab_size", n, 2, 1 << 24}, &c->vocab, err));
    if (!tokens || n == c->vocab) return KK_OK;
    return kk_fail(err, KK_EFORMAT, "%s: " ARCH ".vocab_size is %d, the tokenizer has %lld tokens",
                   label, c->vocab, (long long)n);
}

static kk_status read_heads(kk_drafter_config *c, const kk_gguf *g, kk_err *err) {
    int32_t values, rotated;
    KK_TRY(read_int(g, (int_key){ARCH ".attention.head_count", 0, 1, 1 << 10}, &c->n_head, err));
    KK_TRY(read_int(g, (int_key){ARCH ".attention.head_count_kv", c->n_head, 1, c->n_head},
                    &c->n_kv_head, err));
    KK_TRY(read_int(g, (int_key){ARCH ".attention.key_length", c->hidden / c->n_head, 2, 512},
                    &c->head_dim, err));
    KK_TRY(
        read_int(g, (int_key){ARCH ".attention.value_length", c->head_dim, 2, 512}, &values, err));
    KK_TRY(
        read_int(g, (int_key){ARCH ".rope.dimension_count", c->head_dim, 0, 512}, &rotated, err));
    if (c->head_dim % 2 != 0 || values != c->head_dim || rotated != c->head_dim)
        return kk_fail(err, KK_EFORMAT,
                       "%s: keys of %d values, %d of them rotated, and values of %d are not "
                       "supported",
                       label, c->head_dim, rotated, values);
    if (c->n_head % c->n_kv_head == 0 && c->n_head / c->n_kv_head <= 128) return KK_OK;
    return kk_fail(err, KK_EFORMAT,
                   "%s: %d attention heads do not divide into %d key heads, 128 to one at most",
                   label, c->n_head, c->n_kv_head);
}

static kk_status read_layers(kk_drafter_config *c, const kk_gguf *g, kk_err *err) {
    static const char key[] = ARCH ".attention.sliding_window_pattern";
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    bool any = false;
    KK_TRY(
        read_int(g, (int_key){ARCH ".block_count", 0, 1, KK_MAX_DRAFT_LAYERS}, &c->n_layer, err));
    KK_TRY(
        read_int(g, (int_key){ARCH ".attention.sliding_window", 0, 0, 1 << 24}, &c->window, err));
    if (c->window && !kv) return missing(key, err);
    if (kv && (kv->type != KK_GGUF_ARRAY || kv->n != (uint64_t)c->n_layer))
        return kk_fail(err, KK_EFORMAT, "%s: %s is no list of %d layers", label, key, c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        int64_t slides = 0;
        if (kv && !kk_gguf_array_int(kv, (uint64_t)i, &slides))
            return kk_fail(err, KK_EFORMAT, "%s: %s has no number for layer %d", label, key, i);
        c->kind[i] = slides ? KK_SLIDING : KK_FULL;
        any = any || slides;
    }
    if (any && !c->window) return missing(ARCH ".attention.sliding_window", err);
    if (!any) c->window = 0;
    return KK_OK;
}

static kk_status read_taps(kk_drafter_config *c, const kk_gguf *g, kk_err *err) {
    static const char key[] = ARCH ".target_layers";
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    KK_TRY(read_int(g, (int_key){ARCH ".target_block_count", 0, 0, KK_MAX_LAYERS},
                    &c->n_target_layers, err));
    if (!kv) return missing(key, err);
    if (kv->type != KK_GGUF_ARRAY || kv->n < 1 || kv->n > KK_MAX_TAPS)
        return kk_fail(err, KK_EFORMAT, "%s: %s is no list of 1 to %d layers", label, key,
                       KK_MAX_TAPS);
    const int32_t most = c->n_target_layers ? c->n_target_layers : KK_MAX_LAYERS;
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t v = 0;
        if (!kk_gguf_array_int(kv, i, &v) || v < 1 || v > most)
            return kk_fail(err, KK_EFORMAT, "%s: %s[%d] is %lld, outside 1..%d", label, key, (int)i,
                           (long long)v, most);
        c->taps[i] = (int32_t)v - 1;
    }
    c->n_taps = (int32_t)kv->n;
    return KK_OK;
}

/* Without a word about it sliding layers are causal in the block and full ones are not. */
static kk_status read_masks(kk_drafter_config *c, const kk_gguf *g, kk_err *err) {
    static const char key[] = ARCH ".attention.causal";
    bool causal;
    c->sliding_causal = true;
    if (!kk_gguf_find(g, key)) return KK_OK;
    if (!kk_gguf_bool(g, key, &causal))
        return kk_fail(err, KK_EFORMAT, "%s: %s is neither true nor false", label, key);
    c->sliding_causal = c->full_causal = causal;
    return KK_OK;
}

static kk_status read_embed_scale(kk_drafter_config *c, const kk_gguf *g, kk_err *err) {
    static const char key[] = ARCH ".embed_scale";
    kk_span word = {0};
    c->embed_said = kk_gguf_find(g, key);
    if (!c->embed_said) return KK_OK;
    for (int i = 0; kk_gguf_str(g, key, &word) && i < 3; i++) {
        if (!is_word(word, scalings[i])) continue;
        c->embed_scaling = (kk_embed_scaling)i;
        return KK_OK;
    }
    return refuse_text(key, word, "1, once or twice", err);
}

/* ---- read ------------------------------------------------------------------------------- */

kk_status kk_drafter_config_from_gguf(kk_drafter_config *out, const kk_gguf *g, kk_err *err) {
    kk_drafter_config *c = out;
    *c = (kk_drafter_config){0};
    KK_TRY(check_arch(g, err));
    KK_TRY(refuse_unknown(g, err));
    KK_TRY(read_vocab(c, g, err));
    KK_TRY(read_int(g, (int_key){ARCH ".embedding_length", 0, 1, 1 << 16}, &c->hidden, err));
    KK_TRY(read_int(g, (int_key){ARCH ".feed_forward_length", 0, 1, 1 << 20}, &c->ffn, err));
    KK_TRY(read_int(g, (int_key){ARCH ".context_length", 32768, 1, 1 << 30}, &c->context, err));
    KK_TRY(read_float(g, ARCH ".attention.layer_norm_rms_epsilon", 1e-6, 1e-12, 0.1, &c->eps, err));
    KK_TRY(read_float(g, ARCH ".final_logit_softcapping", 0, 0, 1e6, &c->softcap, err));
    KK_TRY(read_float(g, ARCH ".rope.freq_base", 0, 1, 1e12, &c->theta, err));
    KK_TRY(read_heads(c, g, err));
    KK_TRY(read_layers(c, g, err));
    KK_TRY(read_masks(c, g, err));
    KK_TRY(read_embed_scale(c, g, err));
    KK_TRY(read_taps(c, g, err));
    KK_TRY(read_int(g, (int_key){ARCH ".block_size", 0, 2, KK_MAX_DRAFT_BLOCK}, &c->block, err));
    return read_int(g, (int_key){"tokenizer.ggml.mask_token_id", -1, 0, c->vocab - 1}, &c->mask_id,
                    err);
}

/* ---- write ------------------------------------------------------------------------------ */

static void put_count(kk_gguf_writer *w, const char *key, int32_t v) {
    kk_gguf_put_u32(w, key, (uint32_t)v);
}

static void put_layers(kk_gguf_writer *w, const kk_drafter_config *c) {
    put_count(w, ARCH ".block_count", c->n_layer);
    if (!c->window) return;
    put_count(w, ARCH ".attention.sliding_window", c->window);
    kk_gguf_put_array(w, ARCH ".attention.sliding_window_pattern", KK_GGUF_BOOL,
                      (uint64_t)c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const uint8_t slides = c->kind[i] == KK_SLIDING;
        kk_gguf_put_bytes(w, &slides, 1);
    }
}

static void put_taps(kk_gguf_writer *w, const kk_drafter_config *c) {
    kk_gguf_put_array(w, ARCH ".target_layers", KK_GGUF_I32, (uint64_t)c->n_taps);
    for (int32_t i = 0; i < c->n_taps; i++) {
        const int32_t reads = c->taps[i] + 1;
        kk_gguf_put_bytes(w, &reads, sizeof reads);
    }
    if (c->n_target_layers) put_count(w, ARCH ".target_block_count", c->n_target_layers);
}

/* What is as it always is is not said. */
static void put_variations(kk_gguf_writer *w, const kk_drafter_config *c) {
    const char *scaling = scalings[c->embed_scaling];
    if (c->softcap > 0) kk_gguf_put_f32(w, ARCH ".final_logit_softcapping", c->softcap);
    if (!c->sliding_causal || c->full_causal)
        kk_gguf_put_bool(w, ARCH ".attention.causal", c->full_causal);
    if (c->embed_said) kk_gguf_put_str(w, ARCH ".embed_scale", scaling, strlen(scaling));
}

void kk_gguf_put_drafter(kk_gguf_writer *w, const kk_drafter_config *c, kk_dtype type,
                         const char *dir) {
    kk_gguf_put_general(w, ARCH, type, dir);
    put_count(w, ARCH ".context_length", c->context);
    put_count(w, ARCH ".embedding_length", c->hidden);
    put_count(w, ARCH ".feed_forward_length", c->ffn);
    put_count(w, ARCH ".vocab_size", c->vocab);
    put_count(w, ARCH ".attention.head_count", c->n_head);
    put_count(w, ARCH ".attention.head_count_kv", c->n_kv_head);
    put_count(w, ARCH ".attention.key_length", c->head_dim);
    put_count(w, ARCH ".attention.value_length", c->head_dim);
    put_count(w, ARCH ".rope.dimension_count", c->head_dim);
    kk_gguf_put_f32(w, ARCH ".rope.freq_base", c->theta);
    kk_gguf_put_f32(w, ARCH ".attention.layer_norm_rms_epsilon", c->eps);
    put_layers(w, c);
    put_variations(w, c);
    put_count(w, ARCH ".block_size", c->block);
    put_taps(w, c);
    kk_gguf_put_str(w, "tokenizer.ggml.model", "none", 4);
    put_count(w, "tokenizer.ggml.mask_token_id", c->mask_id);
}
