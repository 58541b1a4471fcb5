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
} kk_tensor;

static inline int64_t kk_tensor_values(const kk_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->n_dims; i++) n *= t->dims[i]; /* checked when it was listed */
    return n;
}

#endif
