/* tensor.h - a named array in a mapped file: what every weight format is reduced to. */
#ifndef KK_FORMAT_TENSOR_H
#define KK_FORMAT_TENSOR_H

#include "core/dtype.h"
#include "core/span.h"

enum { KK_MAX_DIMS = 4, KK_MAX_NAME = 160 };

/* dims are outermost first, as in Hugging Face files: a Linear weight is [out, in]. */
typedef struct {
    const char *name; /* NUL-terminated, owned by whoever listed the tensor */
    kk_dtype dtype;
    int32_t n_dims; /* 0: a scalar, one value */
    int64_t dims[KK_MAX_DIMS];
    kk_span data; /* exactly the bytes of dtype and dims */
    /* Of an affine type the data is the codes, and these are its scales and biases, [..., in /
     * group], as they lie in the file; else empty. */
    kk_span scales, biases;
    kk_dtype plane; /* their type */
} kk_tensor;

static inline int64_t kk_tensor_values(const kk_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->n_dims; i++) n *= t->dims[i]; /* checked when it was listed */
    return n;
}

/* All that is stored of it. */
static inline size_t kk_tensor_bytes(const kk_tensor *t) {
    return t->data.size + t->scales.size + t->biases.size;
}

static inline kk_planes kk_tensor_planes(const kk_tensor *t) {
    return (kk_planes){t->scales.base, t->biases.base, t->plane};
}

/* n of its values from `first` on as floats, both multiples of the type's block. */
static inline void kk_tensor_floats(const kk_tensor *t, int64_t first, float *dst, size_t n) {
    const kk_dtype_info *info = kk_dtype_get(t->dtype);
    const size_t block = (size_t)(first / info->values);
    const uint8_t *from = t->data.base + block * (size_t)info->bytes;
    if (kk_dtype_is_affine(t->dtype))
        kk_dequantize_affine(t->dtype, from, kk_planes_at(kk_tensor_planes(t), block), dst, n);
    else
        kk_dequantize(t->dtype, from, dst, n);
}

#endif
