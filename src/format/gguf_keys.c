/* gguf_keys.c - the key/values of a gemma4 GGUF file: the model's shapes, and its tokenizer.
 *
 * Keys and their types are the ones other readers of this architecture expect; a value is an
 * array per layer where layers differ and one number where they do not. */
#include <jansson.h>
#include <stdio.h>

#include "format/format.h"
#include "format/tokenizer.h"

#define ARCH "gemma4."

enum { MAX_TEMPLATE = 4 << 20 };

static void put_text(kk_gguf_writer *w, const char *key, const char *text) {
    kk_gguf_put_str(w, key, text, strlen(text));
}

static void put_count(kk_gguf_writer *w, const char *key, int32_t v) {
    kk_gguf_put_u32(w, key, (uint32_t)v);
}

/* ---- model ------------------------------------------------------------------------------ */

/* The folder's own name, without slashes around it. */
static void put_name(kk_gguf_writer *w, const char *dir) {
    size_t end = strlen(dir);
    while (end > 0 && dir[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && dir[begin - 1] != '/') begin--;
    kk_gguf_put_str(w, "general.name", dir + begin, end - begin);
}

static uint32_t file_type(kk_dtype t) {
    switch (t) {
    case KK_F16: return 1;
    case KK_Q4_0: return 2;
    case KK_Q8_0: return 7;
    case KK_BF16: return 32;
    default: return 0;
    }
}

void kk_gguf_put_general(kk_gguf_writer *w, const char *arch, kk_dtype type, const char *dir) {
    put_text(w, "general.architecture", arch);
    put_text(w, "general.type", "model");
    put_name(w, dir);
    kk_gguf_put_u32(w, "general.alignment", 32);
    kk_gguf_put_u32(w, "general.file_type", file_type(type));
    kk_gguf_put_u32(w, "general.quantization_version", 2);
}

typedef int32_t (*layer_field)(const kk_layer_config *l);
static int32_t ffn_of(const kk_layer_config *l) { return l->ffn; }
static int32_t kv_heads_of(const kk_layer_config *l) { return l->n_kv_head; }

static void put_per_layer(kk_gguf_writer *w, const char *key, const kk_config *c,
                          layer_field field) {
    bool same = true;
    for (int32_t i = 1; i < c->n_layer; i++)
        same = same && field(&c->layer[i]) == field(&c->layer[0]);
    if (same) {
        put_count(w, key, field(&c->layer[0]));
        return;
    }
    kk_gguf_put_array(w, key, KK_GGUF_I32, (uint64_t)c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const int32_t v = field(&c->layer[i]);
        kk_gguf_put_bytes(w, &v, sizeof v);
    }
}

static void put_layers(kk_gguf_writer *w, const kk_config *c) {
    int32_t shared = 0;
    put_per_layer(w, ARCH "feed_forward_length", c, ffn_of);
    put_per_layer(w, ARCH "attention.head_count_kv", c, kv_heads_of);
    kk_gguf_put_array(w, ARCH "attention.sliding_window_pattern", KK_GGUF_BOOL,
                      (uint64_t)c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const uint8_t sliding = c->layer[i].kind == KK_SLIDING;
        kk_gguf_put_bytes(w, &sliding, 1);
        shared += c->layer[i].kv_source != i;
    }
    put_count(w, ARCH "attention.shared_kv_layers", shared);
}

static void put_heads(kk_gguf_writer *w, const kk_config *c) {
    int32_t dims[KK_LAYER_KINDS] = {0, 0};
    for (int32_t i = 0; i < c->n_layer; i++) dims[c->layer[i].kind] = c->layer[i].head_dim;
    if (!dims[KK_SLIDING]) dims[KK_SLIDING] = dims[KK_FULL]; /* readers want the key */
    put_count(w, ARCH "attention.head_count", c->n_head);
    put_count(w, ARCH "attention.key_length", dims[KK_FULL]);
    put_count(w, ARCH "attention.value_length", dims[KK_FULL]);
    put_count(w, ARCH "attention.key_length_swa", dims[KK_SLIDING]);
    put_count(w, ARCH "attention.value_length_swa", dims[KK_SLIDING]);
    put_count(w, ARCH "rope.dimension_count", dims[KK_FULL]);
    put_count(w, ARCH "rope.dimension_count_swa", dims[KK_SLIDING]);
    kk_gguf_put_f32(w, ARCH "rope.freq_base", c->rope[KK_FULL].theta);
    kk_gguf_put_f32(w, ARCH "rope.freq_base_swa", c->rope[KK_SLIDING].theta);
}

/* GGUF has divisors for full layers only; no released model needs them on sliding ones. */
static kk_status check_sliding_rope(const kk_config *c, kk_err *err) {
    const kk_rope_config *r = &c->rope[KK_SLIDING];
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        if (l->kind != KK_SLIDING) continue;
        if (r->n_rot != l->head_dim / 2 || r->factor < 1 || r->factor > 1)
            return kk_fail(err, KK_EINVAL,
                           "GGUF cannot say that sliding layers turn %d pairs with factor %g",
                           r->n_rot, (double)r->factor);
    }
    return KK_OK;
}

kk_status kk_gguf_put_model(kk_gguf_writer *w, const kk_config *c, kk_dtype type, const char *dir,
                            kk_err *err) {
    KK_TRY(check_sliding_rope(c, err));
    kk_gguf_put_general(w, "gemma4", type, dir);
    put_count(w, ARCH "block_count", c->n_layer);
    put_count(w, ARCH "context_length", c->context);
    put_count(w, ARCH "embedding_length", c->hidden);
    put_count(w, ARCH "vocab_size", c->vocab);
    put_count(w, ARCH "embedding_length_per_layer_input", c->ple_dim);
    put_heads(w, c);
    put_layers(w, c);
    put_count(w, ARCH "attention.sliding_window", c->window);
    kk_gguf_put_f32(w, ARCH "attention.layer_norm_rms_epsilon", c->eps);
    if (c->softcap > 0) kk_gguf_put_f32(w, ARCH "final_logit_softcapping", c->softcap);
    if (c->n_expert) {
        put_count(w, ARCH "expert_count", c->n_expert);
        put_count(w, ARCH "expert_used_count", c->n_expert_used);
        put_count(w, ARCH "expert_feed_forward_length", c->expert_ffn);
    }
    return KK_OK;
}

/* ---- tokenizer -------------------------------------------------------------------------- */

/* The text of token id.  Rows of the embedding past the last token, and ids without one, get
 * names of their own: readers want one distinct token per row. */
static const char *token_text(const kk_tokenizer *tok, int32_t id, char spare[24], size_t *len) {
    bool special;
    const char *text = NULL;
    *len = 0;
    if (id < kk_tokenizer_size(tok)) text = kk_tokenizer_piece(tok, id, len, &special);
    if (*len) return text;
    *len = (size_t)snprintf(spare, 24, "[PAD%d]", id);
    return spare;
}

/* Marks of the chat format that other programs must print to be able to parse an answer; the
 * converter calls them user-defined for that reason. */
static bool is_printed_mark(const char *text, size_t len) {
    static const char *const marks[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                        "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                        "<|\"|>"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (len == strlen(marks[i]) && memcmp(text, marks[i], len) == 0) return true;
    return false;
}

static int32_t token_type(const kk_tokenizer *tok, int32_t id) {
    size_t len;
    bool special;
    if (id >= kk_tokenizer_size(tok)) return KK_GGUF_TOKEN_UNUSED;
    const char *text = kk_tokenizer_piece(tok, id, &len, &special);
    if (special && is_printed_mark(text, len)) return KK_GGUF_TOKEN_USER;
    return kk_tokenizer_gguf_type(tok, id);
}

static void put_tokens(kk_gguf_writer *w, const kk_tokenizer *tok, int32_t vocab) {
    const float score = -1000.0f; /* BPE has no scores; this is what the converter writes */
    char spare[24];
    size_t len;
    kk_gguf_put_array(w, "tokenizer.ggml.tokens", KK_GGUF_STRING, (uint64_t)vocab);
    for (int32_t id = 0; id < vocab; id++) {
        const char *text = token_text(tok, id, spare, &len);
        kk_gguf_put_element(w, text, len);
    }
    kk_gguf_put_array(w, "tokenizer.ggml.scores", KK_GGUF_F32, (uint64_t)vocab);
    for (int32_t id = 0; id < vocab; id++) kk_gguf_put_bytes(w, &score, sizeof score);
    kk_gguf_put_array(w, "tokenizer.ggml.token_type", KK_GGUF_I32, (uint64_t)vocab);
    for (int32_t id = 0; id < vocab; id++) {
        const int32_t type = token_type(tok, id);
        kk_gguf_put_bytes(w, &type, sizeof type);
    }
}

/* "left right" per merge. */
static kk_status put_merges(kk_gguf_writer *w, const kk_tokenizer *tok, kk_err *err) {
    const size_t n = kk_tokenizer_merges(tok);
    char *joined = NULL;
    size_t cap = 0;
    kk_gguf_put_array(w, "tokenizer.ggml.merges", KK_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        int32_t left, right;
        size_t a, b;
        bool special;
        kk_tokenizer_merge(tok, i, &left, &right);
        const char *first = kk_tokenizer_piece(tok, left, &a, &special);
        const char *second = kk_tokenizer_piece(tok, right, &b, &special);
        if (!kk_grow((void **)&joined, &cap, a + b + 1, 1)) {
            kk_free(joined);
            return kk_fail(err, KK_ENOMEM, "no memory for %zu merges", n);
        }
        memcpy(joined, first, a);
        joined[a] = ' ';
        memcpy(joined + a + 1, second, b);
        kk_gguf_put_element(w, joined, a + b + 1);
    }
    kk_free(joined);
    return KK_OK;
}

static void put_special(kk_gguf_writer *w, const kk_tokenizer *tok, const char *key,
                        const char *text) {
    const int32_t id = kk_tokenizer_special(tok, text);
    if (id >= 0) put_count(w, key, id);
}

/* tokenizer_config.json keeps the template as a string when it is in no file of its own. */
static void put_template_of_config(kk_gguf_writer *w, const char *json, size_t len) {
    json_t *root = json_loadb(json, len, 0, NULL);
    const json_t *text = json_object_get(root, "chat_template");
    if (json_is_string(text))
        kk_gguf_put_str(w, "tokenizer.chat_template", json_string_value(text),
                        json_string_length(text));
    json_decref(root);
}

/* Reads dir/name when it is there; *text stays NULL otherwise. */
static kk_status read_optional(const char *dir, const char *name, char **text, size_t *len,
                               kk_err *err) {
    *text = NULL;
    char *path = kk_path_join(dir, name);
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", name);
    kk_status st = KK_OK;
    if (kk_file_exists(path)) st = kk_file_read(path, MAX_TEMPLATE, text, len, err);
    kk_free(path);
    return st;
}

static kk_status put_template(kk_gguf_writer *w, const char *dir, kk_err *err) {
    char *text;
    size_t len;
    KK_TRY(read_optional(dir, "chat_template.jinja", &text, &len, err));
    if (text) {
        kk_gguf_put_str(w, "tokenizer.chat_template", text, len);
    } else {
        KK_TRY(read_optional(dir, "tokenizer_config.json", &text, &len, err));
        if (text) put_template_of_config(w, text, len);
    }
    kk_free(text);
    return KK_OK;
}

static kk_status put_vocabulary(kk_gguf_writer *w, const kk_config *c, const kk_tokenizer *tok,
                                kk_err *err) {
    if (kk_tokenizer_size(tok) > c->vocab)
        return kk_fail(err, KK_EFORMAT, "tokenizer.json has %d tokens, the embedding only %d rows",
                       kk_tokenizer_size(tok), c->vocab);
    put_text(w, "tokenizer.ggml.model", "gemma4");
    put_tokens(w, tok, c->vocab);
    KK_TRY(put_merges(w, tok, err));
    put_special(w, tok, "tokenizer.ggml.unknown_token_id", "<unk>");
    put_special(w, tok, "tokenizer.ggml.mask_token_id", "<mask>");
    kk_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", true);
    kk_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
    return KK_OK;
}

kk_status kk_gguf_put_tokenizer(kk_gguf_writer *w, const kk_config *c, const char *dir,
                                kk_err *err) {
    char *path = kk_path_join(dir, "tokenizer.json");
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", dir);
    kk_tokenizer *tok = NULL;
    kk_status st = KK_OK;
    const bool present = kk_file_exists(path);
    if (present) st = kk_tokenizer_open(&tok, path, err);
    if (st == KK_OK && present) st = put_vocabulary(w, c, tok, err);
    if (st == KK_OK && present) st = put_template(w, dir, err);
    kk_tokenizer_close(tok);
    kk_free(path);
    KK_TRY(st);
    if (!present) put_text(w, "tokenizer.ggml.model", "none");
    put_count(w, "tokenizer.ggml.bos_token_id", c->bos);
    put_count(w, "tokenizer.ggml.padding_token_id", c->pad);
    if (c->n_stop_ids > 0) put_count(w, "tokenizer.ggml.eos_token_id", c->stop_ids[0]);
    if (c->n_stop_ids > 1) put_count(w, "tokenizer.ggml.eot_token_id", c->stop_ids[1]);
    return KK_OK;
}
