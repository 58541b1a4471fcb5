/* parity_parts.c - see parity_parts.h. */
#include "eval/tasks/parity_parts.h"

#include <math.h>
#include <string.h>

kk_status kk_parity_file_open(kk_parity_file *out, const char *folder, kk_err *err) {
    char *path = kk_path_join(folder, "expect.safetensors");
    *out = (kk_parity_file){0};
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    kk_status st = kk_map_open(&out->map, path, err);
    if (st == KK_OK)
        st = kk_safetensors_parse(&out->list, out->map.span, "expect.safetensors", err);
    kk_free(path);
    return st;
}

void kk_parity_file_close(kk_parity_file *f) {
    kk_safetensors_free(&f->list);
    kk_map_close(&f->map);
}

const kk_tensor *kk_parity_find(const kk_parity_file *f, const char *name) {
    for (size_t i = 0; i < f->list.n; i++)
        if (strcmp(f->list.tensors[i].name, name) == 0) return &f->list.tensors[i];
    return NULL;
}

kk_status kk_parity_need(const kk_parity_file *f, const char *name, kk_dtype type, int64_t d0,
                         int64_t d1, const kk_tensor **out, kk_err *err) {
    const kk_tensor *t = kk_parity_find(f, name);
    *out = t;
    if (!t) return kk_fail(err, KK_EFORMAT, "expect.safetensors has no tensor '%s'", name);
    if (t->dtype == type && t->n_dims == (d1 ? 2 : 1) && (d0 < 0 || t->dims[0] == d0) &&
        (!d1 || t->dims[1] == d1))
        return KK_OK;
    return kk_fail(err, KK_EFORMAT, "expect.safetensors: '%s' has the wrong type or shape", name);
}

kk_status kk_parity_tokens(const kk_parity_file *f, int32_t vocab, int32_t **out, int32_t *n,
                           kk_err *err) {
    const kk_tensor *t;
    *out = NULL;
    KK_TRY(kk_parity_need(f, "tokens", KK_I32, -1, 0, &t, err));
    if (t->dims[0] < 1 || t->dims[0] > 4096)
        return kk_fail(err, KK_EFORMAT,
                       "expect.safetensors: %lld tokens; 1 to 4096 can be compared",
                       (long long)t->dims[0]);
    *n = (int32_t)t->dims[0];
    int32_t *tokens = kk_calloc((size_t)*n, sizeof *tokens);
    if (!tokens) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", *n);
    memcpy(tokens, t->data.base, (size_t)*n * sizeof *tokens);
    for (int32_t i = 0; i < *n; i++) {
        if (tokens[i] >= 0 && tokens[i] < vocab) continue;
        kk_fail(err, KK_EFORMAT, "expect.safetensors: token %d is %d, of a vocabulary of %d", i,
                tokens[i], vocab);
        kk_free(tokens);
        return KK_EFORMAT;
    }
    *out = tokens;
    return KK_OK;
}

void kk_parity_widen(kk_parity_gap *gap, const float *got, const kk_tensor *want, int32_t layer) {
    const int64_t n = kk_tensor_values(want), width = want->dims[1];
    double error = 0, power = 0;
    for (int64_t i = 0; i < n && !isnan(gap->max); i++) {
        float w;
        memcpy(&w, want->data.base + (size_t)i * sizeof w, sizeof w);
        const double d = fabs((double)got[i] - (double)w);
        error += d * d;
        power += (double)w * (double)w;
        if (d <= gap->max) continue;
        *gap = (kk_parity_gap){d, gap->rms, i / width, i % width, layer};
    }
    const double rms = error > 0 ? sqrt(error / power) : 0;
    if (!(rms <= gap->rms)) gap->rms = rms;
}

kk_status kk_parity_pages_open(kk_parity_pages *out, const kk_kv_shape *shape, kk_mem *mem,
                               const kk_backend *be, kk_dev *dev, kk_err *err) {
    static const kk_mem_category category[KK_KINDS] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL};
    KK_TRY(kk_kv_layout_init(&out->layout, shape, KK_KV_F32, NULL, err));
    for (int k = 0; k < KK_KINDS; k++) {
        if (!out->layout.page_bytes[k]) continue;
        KK_TRY(kk_pool_new(&out->pool[k], mem, category[k], out->layout.page_bytes[k], err));
        if (be) kk_pool_place(out->pool[k], be, dev);
    }
    return KK_OK;
}

void kk_parity_pages_close(kk_parity_pages *p) {
    kk_cache_free(p->cache);
    for (int k = 0; k < KK_KINDS; k++)
        if (p->pool[k]) kk_pool_free(p->pool[k]);
}

kk_status kk_parity_pages_clear(kk_parity_pages *p, int64_t max_len, kk_err *err) {
    kk_cache_free(p->cache);
    p->cache = NULL;
    const kk_cache_opts opts = {.layout = &p->layout,
                                .pool = {p->pool[0], p->pool[1]},
                                .policy = {[KK_SLIDING] = &kk_kv_native, [KK_FULL] = &kk_kv_exact},
                                .bounds = {[KK_SLIDING] = {.window = p->layout.shape.window}},
                                .max_len = max_len};
    return kk_cache_new(&p->cache, &opts, err);
}
