/* model_folder.h - writes a small Hugging Face folder of a configuration with random weights,
 * in the styles real ones come in. */
#ifndef KK_TESTS_MODEL_FOLDER_H
#define KK_TESTS_MODEL_FOLDER_H

#include <inttypes.h>

#include "format/format.h"
#include "support/scratch.h"

/* splitmix64 */
static inline uint64_t random_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static inline float random_float(uint64_t *state) {
    return (float)((int64_t)(random_bits(state) >> 40) - (1 << 23)) / (float)(1 << 23);
}

/* A model of 26B-A4B's kind, small enough to write often: experts, K = V, window 8. */
static inline kk_config small_moe(void) {
    kk_config c = {.vocab = 96,
                   .hidden = 64,
                   .n_layer = 6,
                   .n_head = 4,
                   .window = 8,
                   .context = 512,
                   .eps = 1e-6f,
                   .softcap = 30,
                   .n_expert = 4,
                   .n_expert_used = 2,
                   .expert_ffn = 40,
                   .bos = 2,
                   .rope = {[KK_SLIDING] = {1e4f, 8, 1}, [KK_FULL] = {1e6f, 4, 1}}};
    for (int32_t i = 0; i < c.n_layer; i++) {
        const bool full = i % 6 == 5;
        c.layer[i] = (kk_layer_config){.kind = full ? KK_FULL : KK_SLIDING,
                                       .head_dim = full ? 32 : 16,
                                       .n_kv_head = full ? 1 : 2,
                                       .ffn = 96,
                                       .k_eq_v = full};
    }
    if (kk_config_finish(&c, 0, false, NULL) != KK_OK) abort();
    return c;
}

/* One of E2B's kind: per-layer embeddings, the last three layers share K/V and are twice as
 * wide. */
static inline kk_config small_ple(void) {
    kk_config c = {.vocab = 96,
                   .hidden = 64,
                   .n_layer = 6,
                   .n_head = 4,
                   .window = 8,
                   .context = 512,
                   .eps = 1e-6f,
                   .softcap = 30,
                   .ple_dim = 32,
                   .ple_vocab = 96,
                   .bos = 2,
                   .rope = {[KK_SLIDING] = {1e4f, 8, 1}, [KK_FULL] = {1e6f, 4, 1}}};
    for (int32_t i = 0; i < c.n_layer; i++) {
        const bool full = i % 3 == 2;
        c.layer[i] = (kk_layer_config){.kind = full ? KK_FULL : KK_SLIDING,
                                       .head_dim = full ? 32 : 16,
                                       .n_kv_head = 1,
                                       .ffn = 96};
    }
    if (kk_config_finish(&c, 3, true, NULL) != KK_OK) abort();
    return c;
}

/* The fields of a configuration as config.json has them, without braces. */
static inline int config_fields(char *out, size_t cap, const kk_config *c) {
    int32_t shared = 0, n = 0, full = c->n_layer - 1, sliding = 0;
    for (int32_t i = 0; i < c->n_layer; i++) shared += c->layer[i].kv_source != i;
    n += snprintf(out, cap,
                  "\"model_type\": \"gemma4_text\", \"vocab_size\": %d, \"hidden_size\": %d, "
                  "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
                  "\"num_key_value_heads\": %d, \"head_dim\": %d, \"global_head_dim\": %d, "
                  "\"intermediate_size\": %d, \"sliding_window\": %d, "
                  "\"max_position_embeddings\": %d, \"final_logit_softcapping\": %g, "
                  "\"hidden_size_per_layer_input\": %d, \"vocab_size_per_layer_input\": %d, "
                  "\"num_kv_shared_layers\": %d, \"use_double_wide_mlp\": %s, "
                  "\"attention_k_eq_v\": %s, \"eos_token_id\": 1, \"rope_parameters\": {"
                  "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}, "
                  "\"full_attention\": {\"rope_type\": \"proportional\", "
                  "\"partial_rotary_factor\": 0.25, \"rope_theta\": 1000000.0}}",
                  c->vocab, c->hidden, c->n_layer, c->n_head, c->layer[sliding].n_kv_head,
                  c->layer[sliding].head_dim, c->layer[full].head_dim, c->layer[sliding].ffn,
                  c->window, c->context, (double)c->softcap, c->ple_dim, c->ple_vocab, shared,
                  c->layer[full].ffn > c->layer[sliding].ffn ? "true" : "false",
                  c->layer[full].k_eq_v ? "true" : "false");
    if (c->layer[full].k_eq_v)
        n += snprintf(out + n, cap - (size_t)n, ", \"num_global_key_value_heads\": %d",
                      c->layer[full].n_kv_head);
    if (c->n_expert)
        n += snprintf(out + n, cap - (size_t)n,
                      ", \"enable_moe_block\": true, \"num_experts\": %d, \"top_k_experts\": %d, "
                      "\"moe_intermediate_size\": %d",
                      c->n_expert, c->n_expert_used, c->expert_ffn);
    n += snprintf(out + n, cap - (size_t)n, ", \"layer_types\": [");
    for (int32_t i = 0; i < c->n_layer; i++)
        n += snprintf(out + n, cap - (size_t)n, "%s\"%s_attention\"", i ? ", " : "",
                      c->layer[i].kind == KK_FULL ? "full" : "sliding");
    return n + snprintf(out + n, cap - (size_t)n, "]");
}

/* Random tensors of the inventory, to be changed by a test before they are written. */
enum { MODEL_MOST = 320 };
typedef struct {
    kk_config config;
    kk_tensor tensors[MODEL_MOST];
    char names[MODEL_MOST][KK_MAX_NAME];
    size_t n;
} model_tensors;

/* Bytes whose type has the given values; scales of 0.05 around 0, vectors around 1. */
static inline void model_fill(kk_tensor *t, bool vector, uint64_t seed) {
    const int64_t n = kk_tensor_values(t);
    if (!kk_dtype_bytes(t->dtype, (uint64_t)n, &t->data.size)) abort();
    uint8_t *bytes = malloc(t->data.size);
    for (int64_t i = 0; i < n; i++) {
        const float v = (vector ? 1.0f : 0.0f) + 0.05f * random_float(&seed);
        kk_quantize_row(t->dtype, &v, bytes + (size_t)i * t->data.size / (size_t)n, 1);
    }
    t->data.base = bytes;
}

/* Every tensor of a list, of random numbers. */
static inline void model_add(model_tensors *m, const kk_inventory *list, const char *prefix,
                             kk_dtype type) {
    if (m->n + list->n > MODEL_MOST) abort();
    for (size_t i = 0; i < list->n; i++) {
        const kk_inventory_item *item = &list->items[i];
        kk_tensor *t = &m->tensors[m->n];
        snprintf(m->names[m->n], KK_MAX_NAME, "%s%.120s", prefix, item->name);
        *t = (kk_tensor){.name = m->names[m->n++], .dtype = type, .n_dims = item->n_dims};
        memcpy(t->dims, item->dims, sizeof item->dims);
        model_fill(t, item->role == KK_ROLE_VECTOR, i + 1);
    }
}

static inline model_tensors *model_make(const kk_config *c, const char *prefix, kk_dtype type) {
    model_tensors *m = calloc(1, sizeof *m);
    kk_inventory list;
    m->config = *c;
    if (kk_inventory_make(&list, c, NULL) != KK_OK) abort();
    model_add(m, &list, prefix, type);
    kk_inventory_free(&list);
    return m;
}

static inline kk_tensor *model_find(model_tensors *m, const char *end) {
    for (size_t i = 0; i < m->n; i++) {
        const size_t len = strlen(m->tensors[i].name), tail = strlen(end);
        if (len >= tail && strcmp(m->tensors[i].name + len - tail, end) == 0) return &m->tensors[i];
    }
    abort();
}

static inline void model_free(model_tensors *m) {
    for (size_t i = 0; i < m->n; i++) free((void *)(uintptr_t)m->tensors[i].data.base);
    free(m);
}

/* config.json with the fields at the top level. */
static inline void model_write_config(const char *dir, const kk_config *c) {
    char path[512], text[8192] = "{";
    int n = 1 + config_fields(text + 1, sizeof text - 2, c);
    text[n++] = '}';
    snprintf(path, sizeof path, "%s/config.json", dir);
    scratch_write(path, text, (size_t)n);
}

/* Everything in one file. */
static inline void model_write(const char *dir, const model_tensors *m) {
    char path[512];
    model_write_config(dir, &m->config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    kk_err err;
    if (kk_safetensors_write(path, m->tensors, m->n, &err) != KK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
}

/* The tensors in shards of even size with an index. */
static inline void tensors_write_shards(const char *dir, const model_tensors *m, size_t shards) {
    char path[512], *index = calloc(1, 65536);
    size_t n = (size_t)sprintf(index, "{\"metadata\": {}, \"weight_map\": {");
    for (size_t s = 0; s < shards; s++) {
        const size_t from = m->n * s / shards, to = m->n * (s + 1) / shards;
        char name[64];
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s + 1, shards);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        if (kk_safetensors_write(path, m->tensors + from, to - from, NULL) != KK_OK) abort();
        for (size_t i = from; i < to; i++)
            n += (size_t)snprintf(index + n, 65536 - n, "%s\"%s\": \"%s\"", i ? ", " : "",
                                  m->tensors[i].name, name);
    }
    n += (size_t)snprintf(index + n, 65536 - n, "}}");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    scratch_write(path, index, n);
    free(index);
}

static inline void model_write_shards(const char *dir, const model_tensors *m, size_t shards) {
    model_write_config(dir, &m->config);
    tensors_write_shards(dir, m, shards);
}

#endif
