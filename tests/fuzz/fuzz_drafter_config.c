/* fuzz_drafter_config.c - any bytes as a drafter's config.json: refused with a sentence, or a
 * configuration everything after it can trust. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_layers(const kk_drafter_config *c) {
    bool slides = false;
    if (c->n_layer < 1 || c->n_layer > KK_MAX_DRAFT_LAYERS) abort();
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (c->kind[i] != KK_SLIDING && c->kind[i] != KK_FULL) abort();
        slides |= c->kind[i] == KK_SLIDING;
    }
    if (slides ? c->window < 1 : c->window != 0) abort();
}

static void check_taps(kk_drafter_config *c) {
    const int32_t layers = c->n_target_layers ? c->n_target_layers : KK_MAX_LAYERS;
    if (c->n_taps < 0 || c->n_taps > KK_MAX_TAPS) abort();
    if (c->n_taps == 0) {
        if (!c->n_target_layers) abort();
        kk_drafter_spread_taps(c, KK_MAX_TAPS, c->n_target_layers);
    }
    for (int32_t i = 0; i < c->n_taps; i++)
        if (c->taps[i] < 0 || c->taps[i] >= layers) abort();
}

static void check(kk_drafter_config *c) {
    kk_inventory list;
    check_layers(c);
    check_taps(c);
    if (c->vocab < 2 || c->mask_id < 0 || c->mask_id >= c->vocab) abort();
    if (c->block < 2 || c->block > KK_MAX_DRAFT_BLOCK) abort();
    if (c->n_kv_head < 1 || c->n_head % c->n_kv_head || c->n_head / c->n_kv_head > 128) abort();
    if (c->head_dim < 2 || c->head_dim % 2 || c->head_dim > 512) abort();
    if (!(c->theta >= 1) || !(c->eps > 0) || !(c->softcap >= 0)) abort();
    if (kk_inventory_make_drafter(&list, c, NULL) != KK_OK) abort();
    for (size_t i = 0; i < list.n; i++)
        if (kk_inventory_values(&list.items[i]) < 1) abort();
    kk_inventory_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_drafter_config c;
    kk_config tiny;
    kk_err err = {0};
    if (kk_drafter_config_from_json(&c, (const char *)data, size, &err) == KK_OK) {
        check(&c);
        if (kk_config_preset(&tiny, "tiny", 0, NULL) != KK_OK) abort();
        kk_drafter_check(&c, &tiny, NULL);
    } else if (err.msg[0] == '\0') {
        abort();
    }
    if (kk_live_blocks() != 0) abort();
    return 0;
}
