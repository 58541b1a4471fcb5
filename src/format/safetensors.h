/* safetensors.h - reads the safetensors format: an 8-byte length, a JSON header, then data.
 *
 * Nothing is copied: tensors are views into the span, which must outlive the list. */
#ifndef KK_FORMAT_SAFETENSORS_H
#define KK_FORMAT_SAFETENSORS_H

#include "core/writer.h"
#include "format/tensor.h"

typedef struct {
    kk_tensor *tensors; /* in the order of their data offsets */
    size_t n;
    char *names; /* storage of the names */
} kk_safetensors;

/* label: what to call the file in messages.  Tensors of types we have no use for (booleans,
 * 8-bit floats, ...) are skipped and reported as absent later if someone wants them. */
kk_status kk_safetensors_parse(kk_safetensors *out, kk_span file, const char *label, kk_err *err);
void kk_safetensors_free(kk_safetensors *s); /* zero value is fine */

/* Puts host tensors, as all that the file holds. */
kk_status kk_safetensors_put(kk_writer *to, const kk_tensor *tensors, size_t n, kk_err *err);
/* The same as a file of its own, which replaces one of that name. */
kk_status kk_safetensors_write(const char *path, const kk_tensor *tensors, size_t n, kk_err *err);

#endif
