/* fuzz_mlx_folder.c - any config.json and any header of a file of MLX's: refused with a sentence,
 * or tensors whose codes, scales and biases can all be read.
 *
 * The input is the configuration up to the first NUL, the header up to the next, then the data. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The part before the next NUL, and steps over it. */
static kk_span part(const uint8_t **at, size_t *left) {
    const uint8_t *end = *left ? memchr(*at, 0, *left) : NULL;
    const kk_span p = {*at, end ? (size_t)(end - *at) : *left};
    *left -= p.size + (end ? 1 : 0);
    *at += p.size + (end ? 1 : 0);
    return p;
}

static bool inside(kk_span file, kk_span s) {
    return s.base >= file.base && s.base + s.size <= file.base + file.size;
}

static void check(const kk_tensor *t, kk_span file) {
    const kk_dtype_info *info = kk_dtype_get(t->dtype);
    float values[64];
    size_t bytes;
    if (strstr(t->name, "switch_glu") || !inside(file, t->data)) abort();
    if (!kk_dtype_bytes(t->dtype, (uint64_t)kk_tensor_values(t), &bytes)) abort();
    if (bytes != t->data.size) abort();
    if (kk_dtype_is_affine(t->dtype)) {
        const size_t groups = (size_t)(kk_tensor_values(t) / info->values);
        const size_t width = (size_t)kk_dtype_get(t->plane)->bytes;
        if (t->scales.size != groups * width || t->biases.size != groups * width) abort();
        if (!inside(file, t->scales) || !inside(file, t->biases)) abort();
    }
    kk_tensor_floats(t, kk_tensor_values(t) - info->values, values, (size_t)info->values);
}

static void arrange(kk_checkpoint *c, kk_span config, kk_span file) {
    kk_err err = {0};
    if (kk_hf_list(c, "", NULL) != KK_OK) abort();
    if (!kk_mlx_written(c)) return;
    if (kk_mlx_arrange(c, "", (const char *)config.base, config.size, &err) != KK_OK) {
        if (err.msg[0] == '\0') abort();
        return;
    }
    for (size_t i = 0; i < c->n_tensors; i++) check(&c->tensors[i], file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const kk_span config = part(&data, &size), header = part(&data, &size);
    kk_checkpoint *c = kk_zalloc(sizeof *c);
    uint8_t *file = malloc(8 + header.size + size);
    const uint64_t len = header.size;
    if (!c || !file) abort();
    memcpy(file, &len, 8);
    if (header.size) memcpy(file + 8, header.base, header.size);
    if (size) memcpy(file + 8 + header.size, data, size);
    const kk_span all = {file, 8 + header.size + size};
    c->path = kk_strndup("input", 5);
    c->files = kk_calloc(1, sizeof *c->files);
    c->n_files = 1;
    c->format = "safetensors";
    if (!c->path || !c->files) abort();
    if (kk_safetensors_parse(&c->files[0].list, all, "input", NULL) == KK_OK)
        arrange(c, config, all);
    kk_checkpoint_close(c);
    free(file);
    if (kk_live_blocks() != 0) abort();
    return 0;
}
