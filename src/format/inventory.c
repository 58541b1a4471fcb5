/* inventory.c - the list of tensors that a configuration calls for, with their shapes.
 *
 * One list serves everyone who must agree on it: the check when a checkpoint is opened, random
 * weights, the GGUF writer, and the totals a user is told.  K/V projections of layers that read
 * an earlier layer's K/V are not in it; files may hold them, nobody uses them. */
#include <stdio.h>

#include "format/format.h"

typedef struct {
    kk_inventory *to;
    int32_t layer; /* -1: top level */
    bool full_up;  /* out of memory */
} list;

/* Adds a tensor of up to three dims; zero ends them. */
static void add(list *l, kk_role role, const char *name, int64_t d0, int64_t d1, int64_t d2) {
    kk_inventory *to = l->to;
    if (l->full_up || !kk_grow((void **)&to->items, &to->cap, to->n + 1, sizeof *to->items)) {
        l->full_up = true;
        return;
    }
    kk_inventory_item *item = &to->items[to->n++];
    *item = (kk_inventory_item){.role = role, .dims = {d0, d1, d2}};
    item->n_dims = d2 ? 3 : d1 ? 2 : 1;
    if (l->layer < 0)
        snprintf(item->name, sizeof item->name, "%s", name);
    else
        snprintf(item->name, sizeof item->name, "layers.%d.%s", l->layer, name);
}

static void vector(list *l, const char *name, int64_t n) { add(l, KK_ROLE_VECTOR, name, n, 0, 0); }
static void matrix(list *l, const char *name, int64_t out, int64_t in) {
    add(l, KK_ROLE_MATRIX, name, out, in, 0);
}

static void add_attention(list *l, const kk_config *c, const kk_layer_config *k) {
    const int64_t q = (int64_t)c->n_head * k->head_dim, kv = (int64_t)k->n_kv_head * k->head_dim;
    const bool own = k->kv_source == l->layer;
    vector(l, "input_layernorm.weight", c->hidden);
    matrix(l, "self_attn.q_proj.weight", q, c->hidden);
    vector(l, "self_attn.q_norm.weight", k->head_dim);
    if (own) {
        matrix(l, "self_attn.k_proj.weight", kv, c->hidden);
        vector(l, "self_attn.k_norm.weight", k->head_dim);
        if (!k->k_eq_v) matrix(l, "self_attn.v_proj.weight", kv, c->hidden);
    }
    matrix(l, "self_attn.o_proj.weight", c->hidden, q);
    vector(l, "post_attention_layernorm.weight", c->hidden);
}

static void add_feed_forward(list *l, const kk_config *c, const kk_layer_config *k) {
    vector(l, "pre_feedforward_layernorm.weight", c->hidden);
    matrix(l, "mlp.gate_proj.weight", k->ffn, c->hidden);
    matrix(l, "mlp.up_proj.weight", k->ffn, c->hidden);
    matrix(l, "mlp.down_proj.weight", c->hidden, k->ffn);
    vector(l, "post_feedforward_layernorm.weight", c->hidden);
    if (!c->n_expert) return;
    vector(l, "pre_feedforward_layernorm_2.weight", c->hidden);
    vector(l, "post_feedforward_layernorm_1.weight", c->hidden);
    vector(l, "post_feedforward_layernorm_2.weight", c->hidden);
    add(l, KK_ROLE_ROUTER, "router.proj.weight", c->n_expert, c->hidden, 0);
    vector(l, "router.scale", c->hidden);
    vector(l, "router.per_expert_scale", c->n_expert);
    add(l, KK_ROLE_EXPERTS, "experts.gate_up_proj", c->n_expert, 2 * (int64_t)c->expert_ffn,
        c->hidden);
    add(l, KK_ROLE_EXPERTS, "experts.down_proj", c->n_expert, c->hidden, c->expert_ffn);
}

static void add_layer(list *l, const kk_config *c) {
    const kk_layer_config *k = &c->layer[l->layer];
    add_attention(l, c, k);
    add_feed_forward(l, c, k);
    if (c->ple_dim) {
        matrix(l, "per_layer_input_gate.weight", c->ple_dim, c->hidden);
        matrix(l, "per_layer_projection.weight", c->hidden, c->ple_dim);
        vector(l, "post_per_layer_input_norm.weight", c->hidden);
    }
    vector(l, "layer_scalar", 1);
}

static kk_status finish(list *l, kk_err *err) {
    if (!l->full_up) return KK_OK;
    kk_inventory_free(l->to);
    return kk_fail(err, KK_ENOMEM, "no memory for the list of tensors");
}

kk_status kk_inventory_make(kk_inventory *out, const kk_config *c, kk_err *err) {
    *out = (kk_inventory){0};
    list l = {.to = out, .layer = -1};
    add(&l, KK_ROLE_EMBED, "embed_tokens.weight", c->vocab, c->hidden, 0);
    vector(&l, "norm.weight", c->hidden);
    if (c->ple_dim) {
        const int64_t width = (int64_t)c->n_layer * c->ple_dim;
        add(&l, KK_ROLE_PLE_TABLE, "embed_tokens_per_layer.weight", c->ple_vocab, width, 0);
        matrix(&l, "per_layer_model_projection.weight", width, c->hidden);
        vector(&l, "per_layer_projection_norm.weight", c->ple_dim);
    }
    for (l.layer = 0; l.layer < c->n_layer; l.layer++) add_layer(&l, c);
    return finish(&l, err);
}

static void add_drafter_layer(list *l, const kk_drafter_config *c) {
    const int64_t q = (int64_t)c->n_head * c->head_dim, kv = (int64_t)c->n_kv_head * c->head_dim;
    vector(l, "input_layernorm.weight", c->hidden);
    matrix(l, "self_attn.q_proj.weight", q, c->hidden);
    matrix(l, "self_attn.k_proj.weight", kv, c->hidden);
    matrix(l, "self_attn.v_proj.weight", kv, c->hidden);
    matrix(l, "self_attn.o_proj.weight", c->hidden, q);
    vector(l, "self_attn.q_norm.weight", c->head_dim);
    vector(l, "self_attn.k_norm.weight", c->head_dim);
    vector(l, "post_attention_layernorm.weight", c->hidden);
    matrix(l, "mlp.gate_proj.weight", c->ffn, c->hidden);
    matrix(l, "mlp.up_proj.weight", c->ffn, c->hidden);
    matrix(l, "mlp.down_proj.weight", c->hidden, c->ffn);
}

kk_status kk_inventory_make_drafter(kk_inventory *out, const kk_drafter_config *c, kk_err *err) {
    *out = (kk_inventory){0};
    list l = {.to = out, .layer = -1};
    matrix(&l, "fc.weight", c->hidden, (int64_t)c->n_taps * c->hidden);
    vector(&l, "hidden_norm.weight", c->hidden);
    vector(&l, "norm.weight", c->hidden);
    for (l.layer = 0; l.layer < c->n_layer; l.layer++) add_drafter_layer(&l, c);
    return finish(&l, err);
}

kk_status kk_inventory_make_projection(kk_inventory *out, const kk_projection_config *c,
                                       kk_err *err) {
    *out = (kk_inventory){0};
    list l = {.to = out, .layer = -1};
    matrix(&l, c->joint ? "encoder.weight" : "encoder_k.weight", c->rank, c->n_in);
    if (!c->joint) matrix(&l, "encoder_v.weight", c->rank, c->n_in);
    for (l.layer = 0; l.layer < c->n_layer; l.layer++) {
        const int64_t width = (int64_t)c->layer[l.layer].n_kv_head * c->layer[l.layer].head_dim;
        if (!c->layer[l.layer].restored) continue;
        if (!c->joint || !c->layer[l.layer].k_eq_v) matrix(&l, "k.weight", width, c->rank);
        matrix(&l, "v.weight", width, c->rank);
    }
    return finish(&l, err);
}

void kk_inventory_free(kk_inventory *l) {
    kk_free(l->items);
    *l = (kk_inventory){0};
}

int64_t kk_inventory_values(const kk_inventory_item *item) {
    int64_t n = 1;
    for (int32_t i = 0; i < item->n_dims; i++) n *= item->dims[i]; /* bounded by the config */
    return n;
}

bool kk_inventory_split(const kk_inventory_item *item, const char *half, char out[KK_MAX_NAME]) {
    const char *at = strstr(item->name, "gate_up_proj");
    if (!at) return false;
    snprintf(out, KK_MAX_NAME, "%.*s%s", (int)(at - item->name), item->name, half);
    return true;
}
