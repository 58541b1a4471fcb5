/* fuzz_config.c - any bytes as config.json and generation_config.json: refused with a sentence,
 * or a configuration everything after it can trust. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stops(const kk_config *c) {
    if (c->n_stop_ids < 0 || c->n_stop_ids > KK_MAX_STOP_IDS) abort();
    for (int32_t i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] < 0 || c->stop_ids[i] >= c->vocab) abort();
}

static void check(const kk_config *c) {
    kk_inventory list;
    check_stops(c);
    if (c->n_layer < 1 || c->n_layer > KK_MAX_LAYERS) abort();
    if (c->layer[c->n_layer - 1].kind != KK_FULL) abort();
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i], *source = &c->layer[l->kv_source];
        if (l->kv_source < 0 || l->kv_source > i || source->kv_source != l->kv_source) abort();
        if (source->kind != l->kind || source->head_dim != l->head_dim) abort();
        if (source->n_kv_head != l->n_kv_head || c->n_head % l->n_kv_head) abort();
        if (l->head_dim < 2 || l->head_dim % 2 || c->rope[l->kind].n_rot > l->head_dim / 2) abort();
        if (!(c->rope[l->kind].theta >= 1) || !(c->rope[l->kind].factor > 0)) abort();
    }
    if (kk_inventory_make(&list, c, NULL) != KK_OK) abort();
    for (size_t i = 0; i < list.n; i++)
        if (kk_inventory_values(&list.items[i]) < 1) abort();
    kk_inventory_free(&list);
    kk_config_name(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_config c;
    kk_err err = {0};
    const char *json = (const char *)data;
    if (kk_config_from_json(&c, json, size, &err) == KK_OK)
        check(&c);
    else if (err.msg[0] == '\0')
        abort();
    if (kk_config_preset(&c, "tiny", 0, NULL) != KK_OK) abort();
    kk_config_add_generation(&c, json, size, NULL);
    check_stops(&c);
    if (kk_live_blocks() != 0) abort();
    return 0;
}
