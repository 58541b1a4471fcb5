/* inspect.c - what a model is and whether its numbers are sound, told from its files.
 *
 * Totals come from the inventory and the stored sizes, never from a formula of their own, so
 * that they are right for every variant and every mix of types. */
#include <inttypes.h>
#include <stdio.h>

#include "format/format.h"

/* ---- totals ----------------------------------------------------------------------------- */

/* How much of n a decoded token reads. */
static int64_t share(const kk_config *c, const kk_inventory_item *item, int64_t n) {
    if (item->role == KK_ROLE_EXPERTS) return n / c->n_expert * c->n_expert_used;
    if (item->role == KK_ROLE_PLE_TABLE) return n / item->dims[0];
    return n;
}

typedef struct {
    kk_model_info *info;
    int64_t by_type[KK_DTYPES];
} tally;

static void add_tensor(tally *t, const kk_config *c, const kk_inventory_item *item,
                       const kk_tensor *tensor) {
    if (!tensor) return;
    const int64_t bytes = (int64_t)kk_tensor_bytes(tensor);
    t->by_type[tensor->dtype] += bytes;
    t->info->weight_bytes += bytes;
    t->info->token_bytes += share(c, item, bytes);
}

static void add_item(tally *t, const kk_checkpoint *k, const kk_inventory_item *item) {
    const int64_t values = kk_inventory_values(item);
    char half[KK_MAX_NAME];
    t->info->params += values;
    t->info->params_active += share(&k->config, item, values);
    const kk_tensor *whole = kk_checkpoint_find(k, item->name);
    add_tensor(t, &k->config, item, whole);
    if (whole) return;
    if (kk_inventory_split(item, "gate_proj", half))
        add_tensor(t, &k->config, item, kk_checkpoint_find(k, half));
    if (kk_inventory_split(item, "up_proj", half))
        add_tensor(t, &k->config, item, kk_checkpoint_find(k, half));
}

static int64_t token_bytes_of(const kk_checkpoint *k, const kk_inventory_item *item,
                              const kk_tensor *t, int64_t (*stored)(kk_dtype, int64_t)) {
    if (!t) return 0;
    const bool matrix = t->n_dims > 1 && stored;
    return share(&k->config, item,
                 matrix ? stored(t->dtype, kk_tensor_values(t)) : (int64_t)kk_tensor_bytes(t));
}

int64_t kk_checkpoint_token_bytes(const kk_checkpoint *k,
                                  int64_t (*stored)(kk_dtype type, int64_t values)) {
    int64_t bytes = 0;
    char half[KK_MAX_NAME];
    for (size_t i = 0; i < k->inventory.n; i++) {
        const kk_inventory_item *item = &k->inventory.items[i];
        const kk_tensor *whole = kk_checkpoint_find(k, item->name);
        bytes += token_bytes_of(k, item, whole, stored);
        if (!whole && kk_inventory_split(item, "gate_proj", half))
            bytes += token_bytes_of(k, item, kk_checkpoint_find(k, half), stored);
        if (!whole && kk_inventory_split(item, "up_proj", half))
            bytes += token_bytes_of(k, item, kk_checkpoint_find(k, half), stored);
    }
    return bytes;
}

/* K/V of layers that keep their own; one tensor where K = V. */
static void add_kv(kk_model_info *info, const kk_config *c) {
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        const bool full = l->kind == KK_FULL;
        info->full_layers += full;
        info->sliding_layers += !full;
        info->k_eq_v = info->k_eq_v || l->k_eq_v;
        if (l->kv_source != i) continue;
        const int64_t row = (int64_t)l->n_kv_head * l->head_dim * 2 * (l->k_eq_v ? 1 : 2);
        if (full)
            info->kv_full_per_token += row;
        else
            info->kv_sliding_max += row * c->window;
    }
}

void kk_checkpoint_info(const kk_checkpoint *k, kk_model_info *info) {
    const kk_config *c = &k->config;
    *info = (kk_model_info){
        .layers = c->n_layer,
        .vocab = c->vocab,
        .hidden = c->hidden,
        .heads = c->n_head,
        .window = c->window,
        .context = c->context,
        .experts = c->n_expert,
        .experts_used = c->n_expert_used,
    };
    snprintf(info->name, sizeof info->name, "%s", kk_config_name(c));
    snprintf(info->format, sizeof info->format, "%s", k->format);
    add_kv(info, c);
    tally t = {.info = info};
    for (size_t i = 0; i < k->inventory.n; i++) add_item(&t, k, &k->inventory.items[i]);
    int most = 0;
    for (int i = 1; i < KK_DTYPES; i++)
        if (t.by_type[i] > t.by_type[most]) most = i;
    snprintf(info->weight_type, sizeof info->weight_type, "%s", kk_dtype_get((kk_dtype)most)->name);
}

kk_status kk_model_inspect(const char *model, kk_model_info *out, kk_err *err) {
    kk_checkpoint *c;
    *out = (kk_model_info){0};
    KK_TRY(kk_checkpoint_open(&c, model, NULL, err));
    kk_checkpoint_info(c, out);
    kk_checkpoint_close(c);
    return KK_OK;
}

/* ---- soundness -------------------------------------------------------------------------- */

static bool bad16(const uint8_t *p, uint16_t exponent) {
    return (kk_le16(p) & exponent) == exponent;
}

static int64_t count_stride(kk_span d, size_t offset, size_t stride, uint16_t exponent) {
    int64_t n = 0;
    for (size_t at = offset; at + 2 <= d.size; at += stride) n += bad16(d.base + at, exponent);
    return n;
}

enum { F16_EXPONENT = 0x7c00, BF16_EXPONENT = 0x7f80 };

static int64_t count_plain(kk_dtype t, kk_span d) {
    switch (t) {
    case KK_F32: return count_stride(d, 2, 4, BF16_EXPONENT); /* the upper half is a bf16 */
    case KK_BF16: return count_stride(d, 0, 2, BF16_EXPONENT);
    case KK_F16: return count_stride(d, 0, 2, F16_EXPONENT);
    default: return 0;
    }
}

/* Values of the plain types, scales of the quantised ones: integers are always finite. */
static int64_t count_bad(const kk_tensor *t) {
    const kk_span d = t->data;
    const size_t block = (size_t)kk_dtype_get(t->dtype)->bytes;
    if (kk_dtype_is_affine(t->dtype))
        return count_plain(t->plane, t->scales) + count_plain(t->plane, t->biases);
    switch (t->dtype) {
    case KK_Q8_0:
    case KK_Q4_0:
    case KK_Q5_0: return count_stride(d, 0, block, F16_EXPONENT);
    case KK_Q5_1:
    case KK_Q4_K:
    case KK_Q5_K:
        return count_stride(d, 0, block, F16_EXPONENT) + count_stride(d, 2, block, F16_EXPONENT);
    case KK_Q6_K: return count_stride(d, 208, block, F16_EXPONENT);
    default: return count_plain(t->dtype, d);
    }
}

kk_status kk_model_check(const char *model,
                         void (*on_bad)(void *user, const char *tensor, int64_t count), void *user,
                         int64_t *n_bad, kk_err *err) {
    kk_checkpoint *c;
    *n_bad = 0;
    KK_TRY(kk_checkpoint_open(&c, model, NULL, err));
    for (size_t i = 0; i < c->n_tensors; i++) {
        const int64_t n = count_bad(&c->tensors[i]);
        *n_bad += n;
        if (n && on_bad) on_bad(user, c->tensors[i].name, n);
    }
    kk_checkpoint_close(c);
    return KK_OK;
}
