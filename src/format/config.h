/* config.h - what a Gemma 4 text model looks like, read from config.json or GGUF keys and
 * checked: after it is filled, the rest of the engine trusts it. */
#ifndef KK_FORMAT_CONFIG_H
#define KK_FORMAT_CONFIG_H

#include "core/error.h"
#include "core/kind.h"
#include "core/span.h"
#include "format/gguf.h"

enum { KK_MAX_LAYERS = 256, KK_MAX_STOP_IDS = 16 };

typedef struct {
    kk_kind kind;
    int32_t head_dim;
    int32_t n_kv_head;
    int32_t ffn;       /* width of the dense MLP */
    int32_t kv_source; /* the layer whose K/V this one reads: itself, or an earlier one */
    bool k_eq_v;       /* no v_proj: V starts from the raw key */
} kk_layer_config;

typedef struct {
    float theta;
    int32_t n_rot; /* pairs that rotate: head_dim / 2 on sliding layers, fewer on full ones */
    float factor;  /* divides the frequencies; 1 in released models */
} kk_rope_config;

typedef struct {
    int32_t vocab, hidden, n_layer, n_head, window, context;
    float eps, softcap;                          /* softcap 0: none */
    int32_t n_expert, n_expert_used, expert_ffn; /* 0: dense */
    int32_t ple_dim;                             /* width of per-layer embeddings; 0: none */
    int32_t ple_vocab;
    kk_rope_config rope[KK_LAYER_KINDS];
    int32_t bos, pad;
    int32_t stop_ids[KK_MAX_STOP_IDS];
    int32_t n_stop_ids;
    kk_layer_config layer[KK_MAX_LAYERS];
} kk_config;

/* json: the text of config.json (text_config inside, or the fields at top level). */
kk_status kk_config_from_json(kk_config *out, const char *json, size_t len, kk_err *err);
kk_status kk_config_from_gguf(kk_config *out, const kk_gguf *g, kk_err *err);
/* Adds the stop ids of generation_config.json (its eos_token_id). */
kk_status kk_config_add_generation(kk_config *c, const char *json, size_t len, kk_err *err);
/* The shapes of a released model by name: "26b-a4b", "31b", "e2b", "e4b"; layers 0: all. */
kk_status kk_config_preset(kk_config *out, const char *name, int32_t layers, kk_err *err);
/* "26B-A4B", ... when the shapes are those of a released model, else "custom". */
const char *kk_config_name(const kk_config *c);

#endif
