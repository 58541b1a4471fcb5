/* gguf_names.c - translates tensor names by one table for each kind of model, so that reader and
 * writer agree. */
#include "format/gguf_names.h"

#include <stdio.h>

typedef struct {
    const char *gguf, *hf;
} pair;

static const pair model_top[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output_norm.weight", "norm.weight"},
    {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
};

/* After "blk.N." and "layers.N.". */
static const pair model_block[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"ffn_gate_exps.weight", "experts.gate_proj"},
    {"ffn_up_exps.weight", "experts.up_proj"},
    {"ffn_down_exps.weight", "experts.down_proj"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"inp_gate.weight", "per_layer_input_gate.weight"},
    {"proj.weight", "per_layer_projection.weight"},
    {"post_norm.weight", "post_per_layer_input_norm.weight"},
};

static const pair drafter_top[] = {
    {"fc.weight", "fc.weight"},
    {"enc.output_norm.weight", "hidden_norm.weight"},
    {"output_norm.weight", "norm.weight"},
};

static const pair drafter_block[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};

typedef struct {
    const pair *top, *block;
    size_t n_top, n_block;
} names;

static const names model = {model_top, model_block, sizeof model_top / sizeof *model_top,
                            sizeof model_block / sizeof *model_block};
static const names drafter = {drafter_top, drafter_block, sizeof drafter_top / sizeof *drafter_top,
                              sizeof drafter_block / sizeof *drafter_block};

static const char *lookup(const pair *table, size_t n, const char *name, bool to_hf) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(to_hf ? table[i].gguf : table[i].hf, name) == 0)
            return to_hf ? table[i].hf : table[i].gguf;
    }
    return NULL;
}

/* Splits "blk.12.rest" into its number, as text, and its rest. */
static const char *after_number(const char *name, const char *prefix, int *digits) {
    const size_t len = strlen(prefix);
    if (strncmp(name, prefix, len) != 0) return NULL;
    *digits = (int)strspn(name + len, "0123456789");
    const char *rest = name + len + *digits;
    return *digits > 0 && *digits < 6 && *rest == '.' ? rest + 1 : NULL;
}

static bool translate(const names *of, const char *name, bool to_hf, char out[KK_MAX_NAME]) {
    const char *from = to_hf ? "blk." : "layers.", *to = to_hf ? "layers." : "blk.";
    const char *other = lookup(of->top, of->n_top, name, to_hf);
    int digits;
    if (other) {
        snprintf(out, KK_MAX_NAME, "%s", other);
        return true;
    }
    const char *rest = after_number(name, from, &digits);
    if (!rest || !(other = lookup(of->block, of->n_block, rest, to_hf))) return false;
    snprintf(out, KK_MAX_NAME, "%s%.*s.%s", to, digits, name + strlen(from), other);
    return true;
}

bool kk_gguf_name_to_hf(const char *gguf, char out[KK_MAX_NAME]) {
    return translate(&model, gguf, true, out);
}

bool kk_gguf_name_from_hf(const char *hf, char out[KK_MAX_NAME]) {
    return translate(&model, hf, false, out);
}

bool kk_gguf_drafter_name_to_hf(const char *gguf, char out[KK_MAX_NAME]) {
    return translate(&drafter, gguf, true, out);
}

bool kk_gguf_drafter_name_from_hf(const char *hf, char out[KK_MAX_NAME]) {
    return translate(&drafter, hf, false, out);
}
