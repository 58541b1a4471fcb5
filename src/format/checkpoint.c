/* checkpoint.c - a model's tensors behind one interface, whatever file they lie in.
 *
 * Readers of a format fill the list; this file sorts it, refuses doubles, checks it once against
 * the inventory the configuration calls for, and finds tensors by name.  Opening touches headers
 * only, so the time does not depend on the size of the weights. */
#include "format/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "format/format.h"

static int by_name(const void *a, const void *b) {
    return strcmp(((const kk_tensor *)a)->name, ((const kk_tensor *)b)->name);
}

const kk_tensor *kk_checkpoint_find(const kk_checkpoint *c, const char *name) {
    const kk_tensor key = {.name = name};
    if (c->n_tensors == 0) return NULL;
    return bsearch(&key, c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
}

/* "[4096, 2816]", for messages. */
static void shape_text(char *out, size_t cap, int32_t n, const int64_t *dims) {
    size_t used = (size_t)snprintf(out, cap, "[");
    for (int32_t i = 0; i < n && used < cap; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%" PRId64, i ? ", " : "", dims[i]);
    if (used < cap) snprintf(out + used, cap - used, "]");
}

static bool same_shape(const kk_tensor *t, int32_t n, const int64_t *dims) {
    if (t->n_dims == 0) return n == 0 || (n == 1 && dims[0] == 1);
    if (n == 0) return t->n_dims == 1 && t->dims[0] == 1;
    return t->n_dims == n && memcmp(t->dims, dims, (size_t)n * sizeof *dims) == 0;
}

kk_status kk_checkpoint_need(const kk_checkpoint *c, const char *name, int32_t n_dims,
                             const int64_t *dims, const kk_tensor **out, kk_err *err) {
    const kk_tensor *t = kk_checkpoint_find(c, name);
    *out = NULL;
    if (!t)
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' is missing from '%.80s'", name, c->path);
    if (kk_dtype_is_integer(t->dtype))
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' holds integers (%s)", name,
                       kk_dtype_get(t->dtype)->name);
    if (!same_shape(t, n_dims, dims)) {
        char have[64], want[64];
        shape_text(have, sizeof have, t->n_dims, t->dims);
        shape_text(want, sizeof want, n_dims, dims);
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' has shape %s, the configuration needs %s",
                       name, have, want);
    }
    *out = t;
    return KK_OK;
}

static kk_status need_split_experts(const kk_checkpoint *c, const kk_inventory_item *item,
                                    kk_err *err) {
    const int64_t dims[3] = {item->dims[0], item->dims[1] / 2, item->dims[2]};
    const kk_tensor *t;
    char name[KK_MAX_NAME];
    kk_inventory_split(item, "gate_proj", name);
    KK_TRY(kk_checkpoint_need(c, name, 3, dims, &t, err));
    kk_inventory_split(item, "up_proj", name);
    return kk_checkpoint_need(c, name, 3, dims, &t, err);
}

static kk_status need_item(const kk_checkpoint *c, const kk_inventory_item *item, kk_err *err) {
    const kk_tensor *t;
    char gate[KK_MAX_NAME];
    /* GGUF's converter split them once, and MLX's do. */
    const bool may_split = strcmp(c->format, "safetensors") != 0;
    if (may_split && !kk_checkpoint_find(c, item->name) &&
        kk_inventory_split(item, "gate_proj", gate) && kk_checkpoint_find(c, gate))
        return need_split_experts(c, item, err);
    KK_TRY(kk_checkpoint_need(c, item->name, item->n_dims, item->dims, &t, err));
    if (item->role == KK_ROLE_VECTOR && kk_dtype_is_quant(t->dtype))
        return kk_fail(err, KK_EFORMAT, "tensor '%.100s' is quantised (%s), which norms never are",
                       item->name, kk_dtype_get(t->dtype)->name);
    return KK_OK;
}

kk_status kk_checkpoint_sort(kk_checkpoint *c, kk_err *err) {
    if (c->n_tensors) qsort(c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < c->n_tensors; i++) {
        if (strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0)
            return kk_fail(err, KK_EFORMAT, "tensor '%.100s' appears twice in '%.80s'",
                           c->tensors[i].name, c->path);
    }
    return KK_OK;
}

kk_status kk_checkpoint_settle(kk_checkpoint *c, kk_err *err) {
    KK_TRY(kk_checkpoint_sort(c, err));
    if (!c->inventory.n) KK_TRY(kk_inventory_make(&c->inventory, &c->config, err));
    for (size_t i = 0; i < c->inventory.n; i++) KK_TRY(need_item(c, &c->inventory.items[i], err));
    return KK_OK;
}

kk_status kk_checkpoint_only(const kk_checkpoint *c, const char *what, kk_err *err) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        bool known = false;
        for (size_t k = 0; k < c->inventory.n && !known; k++)
            known = strcmp(c->tensors[i].name, c->inventory.items[k].name) == 0;
        if (!known)
            return kk_fail(err, KK_EFORMAT, "%s has no tensor '%.100s' ('%.80s')", what,
                           c->tensors[i].name, c->path);
    }
    return KK_OK;
}

kk_status kk_checkpoint_apply(const kk_checkpoint *c, const kk_checkpoint_opts *opts, kk_err *err) {
    for (size_t i = 0; opts && i < c->n_files; i++) {
        if (opts->huge_pages) kk_map_huge(&c->files[i].map);
        if (opts->mlock) KK_TRY(kk_map_lock(&c->files[i].map, c->files[i].path, err));
    }
    return KK_OK;
}

kk_status kk_checkpoint_open(kk_checkpoint **out, const char *path, const kk_checkpoint_opts *opts,
                             kk_err *err) {
    *out = NULL;
    kk_checkpoint *c = kk_zalloc(sizeof *c);
    if (c) c->path = kk_strndup(path, strlen(path));
    kk_status st;
    if (!c || !c->path)
        st = kk_fail(err, KK_ENOMEM, "no memory to open '%.120s'", path);
    else
        st = kk_dir_exists(path) ? kk_hf_open(c, path, err) : kk_gguf_open(c, path, err);
    if (st == KK_OK) st = kk_checkpoint_settle(c, err);
    if (st == KK_OK) st = kk_checkpoint_apply(c, opts, err);
    if (st != KK_OK) {
        kk_checkpoint_close(c);
        return st;
    }
    *out = c;
    return KK_OK;
}

static bool lies_in(kk_span all, kk_span part) {
    const uintptr_t at = (uintptr_t)part.base, base = (uintptr_t)all.base;
    return at >= base && at - base < all.size;
}

void kk_checkpoint_close(kk_checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; c->mem && i < c->n_tensors; i++) {
        const kk_span d = c->tensors[i].data;
        if (!lies_in(c->packed, d)) /* scales and biases follow their codes */
            kk_mem_give(c->mem, c->category, (void *)(uintptr_t)d.base,
                        kk_tensor_bytes(&c->tensors[i]));
    }
    if (c->packed.size)
        kk_mem_give(c->packed_mem, c->category, (void *)(uintptr_t)c->packed.base, c->packed.size);
    for (size_t i = 0; i < c->n_files; i++) {
        kk_safetensors_free(&c->files[i].list);
        kk_map_close(&c->files[i].map);
        kk_free(c->files[i].path);
    }
    kk_free(c->files);
    kk_gguf_free(&c->gguf);
    kk_free(c->names);
    kk_free(c->tensors);
    kk_inventory_free(&c->inventory);
    kk_free(c->path);
    kk_free(c);
}

const kk_config *kk_checkpoint_config(const kk_checkpoint *c) { return &c->config; }
const char *kk_checkpoint_format(const kk_checkpoint *c) { return c->format; }
const char *kk_checkpoint_path(const kk_checkpoint *c) { return c->path; }
size_t kk_checkpoint_count(const kk_checkpoint *c) { return c->n_tensors; }
const kk_tensor *kk_checkpoint_at(const kk_checkpoint *c, size_t i) { return &c->tensors[i]; }
