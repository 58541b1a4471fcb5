/* config_gguf.c - the configuration out of GGUF keys, and the file as a checkpoint.
 *
 * Some facts are not in the keys: the vocabulary is as large as the embedding, K = V shows in a
 * full layer without a value projection, and which pairs rotate on full layers is told by
 * rope_freqs.weight, a list of divisors, where 1e30 means that a pair is not rotated. */
#include <inttypes.h>
#include <stdio.h>

#include "format/format.h"
#include "format/gguf_names.h"

#define ARCH "gemma4."

static const kk_tensor *find_tensor(const kk_gguf *g, const char *name) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    return NULL;
}

static kk_status missing(const char *key, kk_err *err) {
    return kk_fail(err, KK_EFORMAT, "GGUF key '" ARCH "%s' is missing or of the wrong type", key);
}

/* Integers of a configuration; what does not fit is caught by the range checks. */
static int32_t clamp32(int64_t v) {
    return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
}

static kk_status need_int(const kk_gguf *g, const char *key, int32_t *out, kk_err *err) {
    char full[96];
    int64_t v;
    snprintf(full, sizeof full, ARCH "%s", key);
    if (!kk_gguf_int(g, full, &v)) return missing(key, err);
    *out = clamp32(v);
    return KK_OK;
}

static void want_int(const kk_gguf *g, const char *key, int32_t *out) {
    need_int(g, key, out, NULL);
}

static void want_float(const kk_gguf *g, const char *key, float *out) {
    char full[96];
    double v;
    snprintf(full, sizeof full, ARCH "%s", key);
    if (kk_gguf_float(g, full, &v)) *out = (float)v;
}

/* A value for layer i: one number for all layers, or an array of one per layer. */
static kk_status layer_int(const kk_gguf *g, const char *key, int32_t i, int32_t *out,
                           kk_err *err) {
    char full[96];
    int64_t v;
    snprintf(full, sizeof full, ARCH "%s", key);
    const kk_gguf_kv *kv = kk_gguf_find(g, full);
    if (!kv || kv->type != KK_GGUF_ARRAY) return need_int(g, key, out, err);
    if (!kk_gguf_array_int(kv, (uint64_t)i, &v))
        return kk_fail(err, KK_EFORMAT, "GGUF key '%s' has no value for layer %d", full, i);
    *out = clamp32(v);
    return KK_OK;
}

/* ---- layers ----------------------------------------------------------------------------- */

static kk_status read_kind(const kk_gguf *g, int32_t i, kk_kind *kind, kk_err *err) {
    const kk_gguf_kv *kv = kk_gguf_find(g, ARCH "attention.sliding_window_pattern");
    int64_t v;
    if (!kv) return missing("attention.sliding_window_pattern", err);
    if (kv->type == KK_GGUF_ARRAY) {
        if (!kk_gguf_array_int(kv, (uint64_t)i, &v))
            return kk_fail(err, KK_EFORMAT,
                           "GGUF key '" ARCH "attention.sliding_window_pattern' has no value for "
                           "layer %d",
                           i);
        *kind = v ? KK_SLIDING : KK_FULL;
        return KK_OK;
    }
    if (!kk_gguf_int(g, ARCH "attention.sliding_window_pattern", &v) || v < 1)
        return missing("attention.sliding_window_pattern", err);
    *kind = (i + 1) % v == 0 ? KK_FULL : KK_SLIDING; /* a period */
    return KK_OK;
}

static kk_status read_layer(kk_config *c, const kk_gguf *g, int32_t i, kk_err *err) {
    kk_layer_config *l = &c->layer[i];
    char name[KK_MAX_NAME];
    int32_t heads, value_dim;
    KK_TRY(read_kind(g, i, &l->kind, err));
    const bool full = l->kind == KK_FULL;
    const char *key = full ? "attention.key_length" : "attention.key_length_swa";
    const char *value = full ? "attention.value_length" : "attention.value_length_swa";
    KK_TRY(layer_int(g, key, i, &l->head_dim, err));
    KK_TRY(layer_int(g, value, i, &value_dim, err));
    KK_TRY(layer_int(g, "attention.head_count_kv", i, &l->n_kv_head, err));
    KK_TRY(layer_int(g, "feed_forward_length", i, &l->ffn, err));
    KK_TRY(layer_int(g, "attention.head_count", i, &heads, err));
    if (value_dim != l->head_dim || heads != c->n_head)
        return kk_fail(err, KK_EFORMAT,
                       "layer %d has %d heads, keys of %d and values of %d, which is not supported",
                       i, heads, l->head_dim, value_dim);
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
    l->k_eq_v = full && !find_tensor(g, name);
    return KK_OK;
}

/* ---- RoPE ------------------------------------------------------------------------------- */

/* Pairs before the first 1e30 are rotated. Their divisors are all 1 in released models, or one
 * factor; files of random weights have noise there, for which 1 is as good as any value. */
static kk_status read_divisors(kk_rope_config *r, const kk_tensor *t, kk_err *err) {
    const int64_t n = kk_tensor_values(t);
    if (t->dtype != KK_F32 || n > 1 << 16)
        return kk_fail(err, KK_EFORMAT, "tensor '%s' is no short list of f32", t->name);
    int64_t rotated = 0;
    bool equal = true;
    for (int64_t i = 0; i < n; i++) {
        const float f = kk_bits_f32(kk_le32(t->data.base + 4 * i));
        if (f > 1e29f) continue;
        if (i != rotated++ || !(f > 0))
            return kk_fail(err, KK_EFORMAT, "tensor '%s' has an unexpected divisor %g at %" PRId64,
                           t->name, (double)f, i);
        if (i == 0) r->factor = f;
        equal = equal && kk_f32_bits(f) == kk_f32_bits(r->factor);
    }
    if (!equal) r->factor = 1.0f;
    r->n_rot = (int32_t)rotated;
    return KK_OK;
}

static kk_status read_rope(kk_config *c, const kk_gguf *g, kk_err *err) {
    int32_t dims[KK_LAYER_KINDS] = {0, 0};
    for (int32_t i = 0; i < c->n_layer; i++) dims[c->layer[i].kind] = c->layer[i].head_dim;
    want_int(g, "rope.dimension_count_swa", &dims[KK_SLIDING]);
    want_int(g, "rope.dimension_count", &dims[KK_FULL]);
    c->rope[KK_SLIDING] = (kk_rope_config){1e4f, dims[KK_SLIDING] / 2, 1.0f};
    c->rope[KK_FULL] = (kk_rope_config){1e6f, dims[KK_FULL] / 2, 1.0f};
    want_float(g, "rope.freq_base_swa", &c->rope[KK_SLIDING].theta);
    want_float(g, "rope.freq_base", &c->rope[KK_FULL].theta);
    const kk_tensor *t = find_tensor(g, "rope_freqs.weight");
    return t ? read_divisors(&c->rope[KK_FULL], t, err) : KK_OK;
}

/* ---- vocabulary ------------------------------------------------------------------------- */

static kk_status table_rows(const kk_gguf *g, const char *name, int32_t *out, kk_err *err) {
    const kk_tensor *t = find_tensor(g, name);
    if (!t) return kk_fail(err, KK_EFORMAT, "tensor '%s' is missing", name);
    *out = t->n_dims == 2 ? clamp32(t->dims[0]) : 0;
    return KK_OK;
}

/* Tokens that end a turn are known by their text; the keys name one or two of them. */
static kk_status add_stops_by_text(kk_config *c, const kk_gguf *g, kk_err *err) {
    static const char *const texts[] = {"<eos>", "<turn|>", "<|tool_response>"};
    const kk_gguf_kv *kv = kk_gguf_find(g, "tokenizer.ggml.tokens");
    kk_span s;
    size_t at = 0;
    for (int64_t id = 0; kv && kk_gguf_array_next_str(kv, &at, &s); id++) {
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            if (s.size == strlen(texts[i]) && memcmp(s.base, texts[i], s.size) == 0)
                KK_TRY(kk_config_add_stop(c, id, err));
        }
    }
    return KK_OK;
}

static kk_status read_stops(kk_config *c, const kk_gguf *g, kk_err *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (kk_gguf_int(g, keys[i], &id)) KK_TRY(kk_config_add_stop(c, id, err));
    return add_stops_by_text(c, g, err);
}

/* ---- the whole file --------------------------------------------------------------------- */

static kk_status check_arch(const kk_gguf *g, kk_err *err) {
    kk_span arch;
    int64_t parts = 1;
    if (!kk_gguf_str(g, "general.architecture", &arch))
        return kk_fail(err, KK_EFORMAT, "GGUF key 'general.architecture' is missing");
    if (arch.size != 6 || memcmp(arch.base, "gemma4", 6) != 0)
        return kk_fail(err, KK_EFORMAT, "GGUF architecture is '%.*s', only 'gemma4' is supported",
                       arch.size < 40 ? (int)arch.size : 40, (const char *)arch.base);
    if (kk_gguf_int(g, "split.count", &parts) && parts > 1)
        return kk_fail(err, KK_EFORMAT,
                       "the model is split into %" PRId64 " GGUF files: merge them first", parts);
    return KK_OK;
}

static kk_status read_whole(kk_config *c, const kk_gguf *g, int32_t *n_shared, kk_err *err) {
    int64_t id;
    KK_TRY(need_int(g, "block_count", &c->n_layer, err));
    KK_TRY(need_int(g, "embedding_length", &c->hidden, err));
    KK_TRY(layer_int(g, "attention.head_count", 0, &c->n_head, err));
    KK_TRY(need_int(g, "attention.sliding_window", &c->window, err));
    KK_TRY(need_int(g, "context_length", &c->context, err));
    want_int(g, "embedding_length_per_layer_input", &c->ple_dim);
    want_int(g, "attention.shared_kv_layers", n_shared);
    want_int(g, "expert_count", &c->n_expert);
    if (c->n_expert) {
        KK_TRY(need_int(g, "expert_used_count", &c->n_expert_used, err));
        KK_TRY(need_int(g, "expert_feed_forward_length", &c->expert_ffn, err));
    }
    c->eps = 1e-6f;
    want_float(g, "attention.layer_norm_rms_epsilon", &c->eps);
    want_float(g, "final_logit_softcapping", &c->softcap);
    c->bos = 2;
    if (kk_gguf_int(g, "tokenizer.ggml.bos_token_id", &id)) c->bos = clamp32(id);
    if (kk_gguf_int(g, "tokenizer.ggml.padding_token_id", &id)) c->pad = clamp32(id);
    KK_TRY(table_rows(g, "token_embd.weight", &c->vocab, err));
    if (c->ple_dim) KK_TRY(table_rows(g, "per_layer_token_embd.weight", &c->ple_vocab, err));
    return KK_OK;
}

kk_status kk_config_from_gguf(kk_config *out, const kk_gguf *g, kk_err *err) {
    int32_t n_shared = 0;
    *out = (kk_config){0};
    KK_TRY(check_arch(g, err));
    KK_TRY(read_whole(out, g, &n_shared, err));
    if (out->n_layer < 1 || out->n_layer > KK_MAX_LAYERS)
        return kk_fail(err, KK_EFORMAT, "GGUF key '" ARCH "block_count' is %d, outside 1..%d",
                       out->n_layer, KK_MAX_LAYERS);
    for (int32_t i = 0; i < out->n_layer; i++) KK_TRY(read_layer(out, g, i, err));
    KK_TRY(read_rope(out, g, err));
    KK_TRY(kk_config_finish(out, n_shared, false, err));
    return read_stops(out, g, err);
}

/* ---- checkpoint ------------------------------------------------------------------------- */

kk_status kk_gguf_list(kk_checkpoint *c, bool (*to_hf)(const char *gguf, char out[KK_MAX_NAME]),
                       bool others, kk_err *err) {
    const kk_gguf *g = &c->gguf;
    c->tensors = kk_calloc(g->n_tensors, sizeof *c->tensors);
    c->names = kk_calloc(g->n_tensors, KK_MAX_NAME);
    if (!c->tensors || !c->names)
        return kk_fail(err, KK_ENOMEM, "no memory for %zu tensors", g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++) {
        char *name = c->names + i * KK_MAX_NAME;
        const bool known = to_hf(g->tensors[i].name, name);
        if (!known && !others) continue;
        c->tensors[c->n_tensors] = g->tensors[i];
        if (known) c->tensors[c->n_tensors].name = name;
        c->n_tensors++;
    }
    return KK_OK;
}

/* What is left over is of no use to us, except for an output head of its own, which would be wrong
 * to ignore. */
static kk_status list_tensors(kk_checkpoint *c, kk_err *err) {
    if (find_tensor(&c->gguf, "output.weight"))
        return kk_fail(err, KK_EFORMAT,
                       "tensor 'output.weight': an output head apart from the embedding is not "
                       "supported");
    return kk_gguf_list(c, kk_gguf_name_to_hf, false, err);
}

kk_status kk_gguf_file(kk_checkpoint *c, const char *path, kk_err *err) {
    c->format = "gguf";
    c->files = kk_calloc(1, sizeof *c->files);
    if (!c->files) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", path);
    c->n_files = 1;
    c->files->path = kk_strndup(path, strlen(path));
    if (!c->files->path) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", path);
    KK_TRY(kk_map_open(&c->files->map, path, err));
    return kk_gguf_parse(&c->gguf, c->files->map.span, path, err);
}

kk_status kk_gguf_open(kk_checkpoint *c, const char *path, kk_err *err) {
    KK_TRY(kk_gguf_file(c, path, err));
    KK_TRY(kk_config_from_gguf(&c->config, &c->gguf, err));
    return list_tensors(c, err);
}
