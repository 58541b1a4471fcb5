/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or every tensor readable. */
#include <stdlib.h>

#include "core/alloc.h"
#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(const uint8_t *data, size_t size) {
    kk_safetensors s;
    kk_err err = {0};
    const kk_status st = kk_safetensors_parse(&s, (kk_span){data, size}, "input", &err);
    if (st != KK_OK && (err.msg[0] == '\0' || s.n || s.tensors)) abort();
    const uint8_t *before = data;
    for (size_t i = 0; i < s.n; i++) {
        const kk_tensor *t = &s.tensors[i];
        size_t bytes;
        if (!kk_dtype_bytes(t->dtype, (uint64_t)kk_tensor_values(t), &bytes)) abort();
        if (bytes != t->data.size || bytes == 0) abort();
        if (t->data.base < before || t->data.base + bytes > data + size) abort();
        before = t->data.base + bytes; /* in order, and none overlaps the next */
        float first;
        kk_dequantize(t->dtype, t->data.base, &first, 1);
    }
    kk_safetensors_free(&s);
    if (kk_live_blocks() != 0) abort();
}

/* The input as it is; and as a header up to the first NUL with data after it, whose length is
 * then always right, so that changes to the header's text are not all lost on it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    parse(data, size);
    uint8_t *file = malloc(size + 8);
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    const uint64_t header = end ? (uint64_t)(end - data) : size;
    if (!file) return 0;
    memcpy(file, &header, 8);
    if (size) memcpy(file + 8, data, size);
    parse(file, size + 8);
    free(file);
    return 0;
}
