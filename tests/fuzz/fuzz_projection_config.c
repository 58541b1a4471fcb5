/* fuzz_projection_config.c - any bytes as a projection.json: refused with a sentence, or a
 * configuration everything after it can trust, which returns from its own text. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_taps(const kk_projection_config *c) {
    const bool wanted = c->source == KK_SOURCE_TAPS || c->source == KK_SOURCE_CONTEXT;
    if (wanted ? c->n_taps < 1 || c->n_taps > KK_MAX_TAPS : c->n_taps != 0) abort();
    for (int32_t i = 0; i < c->n_taps; i++)
        if (c->taps[i] < 0 || c->taps[i] >= c->n_layer) abort();
    if (c->source == KK_SOURCE_TAPS && c->n_in != c->n_taps * c->hidden) abort();
    if (c->source == KK_SOURCE_DRAFTER_KV && c->joint) abort();
}

static void check_layers(const kk_projection_config *c) {
    int32_t restored = 0;
    if (c->n_layer < 1 || c->n_layer > KK_MAX_LAYERS) abort();
    for (int32_t i = 0; i < KK_MAX_LAYERS; i++) {
        if (!c->layer[i].restored) continue;
        if (i >= c->n_layer || c->layer[i].n_kv_head < 1 || c->layer[i].n_kv_head > 1024) abort();
        if (c->layer[i].head_dim < 2 || c->layer[i].head_dim > 512 || c->layer[i].head_dim % 2)
            abort();
        restored++;
    }
    if (!restored) abort();
}

static void check_size(const kk_projection_config *c) {
    kk_inventory list;
    int64_t values = 0;
    if (c->rank < 1 || c->rank > KK_MAX_RANK || c->n_in < 1) abort();
    if (kk_inventory_make_projection(&list, c, NULL) != KK_OK) abort();
    for (size_t i = 0; i < list.n; i++) {
        if (kk_inventory_values(&list.items[i]) < 1) abort();
        values += kk_inventory_values(&list.items[i]);
    }
    kk_inventory_free(&list);
    if (values != kk_projection_params(c)) abort();
}

/* The text of what its text says is the same text. */
static void check_text(const kk_projection_config *c) {
    kk_projection_config again;
    char *text = kk_projection_config_to_json(c);
    if (!text) abort();
    if (kk_projection_config_from_json(&again, text, strlen(text), NULL) != KK_OK) abort();
    char *second = kk_projection_config_to_json(&again);
    if (!second || strcmp(text, second) != 0) abort();
    kk_free(text);
    kk_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_projection_config c;
    kk_config tiny;
    kk_err err = {0};
    if (kk_projection_config_from_json(&c, (const char *)data, size, &err) == KK_OK) {
        check_layers(&c);
        check_taps(&c);
        check_size(&c);
        check_text(&c);
        if (kk_config_preset(&tiny, "tiny", 0, NULL) != KK_OK) abort();
        const kk_drafter_config drafter = {.hidden = 256, .n_layer = 3};
        kk_projection_check(&c, &tiny, NULL, true, NULL);
        kk_projection_check(&c, &tiny, &drafter, false, NULL);
    } else if (err.msg[0] == '\0') {
        abort();
    }
    if (kk_live_blocks() != 0) abort();
    return 0;
}
