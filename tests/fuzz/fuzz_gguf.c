/* fuzz_gguf.c - any bytes as a GGUF file: refused, or every key and tensor readable, and the
 * configuration in it, of a model or of a drafter, refused or sound. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/format.h"
#include "format/gguf_names.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void inside(kk_span file, kk_span s) {
    if (s.size && (s.base < file.base || s.base + s.size > file.base + file.size)) abort();
}

static void walk_keys(const kk_gguf *g, kk_span file) {
    for (size_t i = 0; i < g->n_kv; i++) {
        const kk_gguf_kv *kv = &g->kv[i];
        kk_span s;
        size_t at = 0;
        int64_t n;
        double f;
        inside(file, kv->key);
        inside(file, kv->data);
        while (kk_gguf_array_next_str(kv, &at, &s)) inside(file, s);
        if (kv->n) kk_gguf_array_int(kv, kv->n - 1, &n);
        if (kv->n) kk_gguf_array_float(kv, kv->n - 1, &f);
    }
}

static void walk_tensors(const kk_gguf *g, kk_span file) {
    float values[256];
    char name[KK_MAX_NAME], back[KK_MAX_NAME];
    for (size_t i = 0; i < g->n_tensors; i++) {
        const kk_tensor *t = &g->tensors[i];
        inside(file, t->data);
        kk_dequantize(t->dtype, t->data.base, values, (size_t)kk_dtype_get(t->dtype)->values);
        if (kk_gguf_name_to_hf(t->name, name) &&
            (!kk_gguf_name_from_hf(name, back) || strcmp(back, t->name) != 0))
            abort();
        if (kk_gguf_drafter_name_to_hf(t->name, name) &&
            (!kk_gguf_drafter_name_from_hf(name, back) || strcmp(back, t->name) != 0))
            abort();
    }
}

/* The same of a drafter's. */
static void check_drafter(const kk_drafter_config *c) {
    kk_inventory list;
    if (c->n_layer < 1 || c->n_layer > KK_MAX_DRAFT_LAYERS || c->n_head % c->n_kv_head) abort();
    if (c->block < 2 || c->block > KK_MAX_DRAFT_BLOCK || c->mask_id >= c->vocab) abort();
    if (c->n_taps < 1 || c->n_taps > KK_MAX_TAPS || c->head_dim % 2) abort();
    for (int32_t i = 0; i < c->n_taps; i++)
        if (c->taps[i] < 0 || c->taps[i] >= KK_MAX_LAYERS) abort();
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->kind[i] == KK_SLIDING && c->window < 1) abort();
    if (kk_inventory_make_drafter(&list, c, NULL) != KK_OK) abort();
    for (size_t i = 0; i < list.n; i++)
        if (kk_inventory_values(&list.items[i]) < 1) abort();
    kk_inventory_free(&list);
}

/* A configuration that was accepted can be relied on. */
static void check_config(const kk_config *c) {
    kk_inventory list;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        if (l->kv_source < 0 || l->kv_source > i || c->n_head % l->n_kv_head) abort();
        if (c->layer[l->kv_source].kind != l->kind || l->ffn < 1) abort();
    }
    if (kk_inventory_make(&list, c, NULL) != KK_OK) abort();
    for (size_t i = 0; i < list.n; i++)
        if (kk_inventory_values(&list.items[i]) < 1) abort();
    kk_inventory_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_gguf g;
    kk_config c;
    kk_drafter_config d;
    kk_err err = {0};
    const kk_span file = {data, size};
    if (kk_gguf_parse(&g, file, "input", &err) != KK_OK) {
        if (err.msg[0] == '\0' || g.n_kv || g.n_tensors) abort();
    } else {
        walk_keys(&g, file);
        walk_tensors(&g, file);
        err.msg[0] = '\0';
        if (kk_config_from_gguf(&c, &g, &err) == KK_OK)
            check_config(&c);
        else if (err.msg[0] == '\0')
            abort();
        err.msg[0] = '\0';
        if (kk_drafter_config_from_gguf(&d, &g, &err) == KK_OK)
            check_drafter(&d);
        else if (err.msg[0] == '\0')
            abort();
    }
    kk_gguf_free(&g);
    if (kk_live_blocks() != 0) abort();
    return 0;
}
