/* gguf.h - reads and writes GGUF v3: typed key/values, then tensors.
 *
 * Reading is a view into a span, which must outlive it.  Dims are reversed, outermost first. */
#ifndef KK_FORMAT_GGUF_H
#define KK_FORMAT_GGUF_H

#include "core/file.h"
#include "format/tensor.h"

typedef enum {
    KK_GGUF_U8,
    KK_GGUF_I8,
    KK_GGUF_U16,
    KK_GGUF_I16,
    KK_GGUF_U32,
    KK_GGUF_I32,
    KK_GGUF_F32,
    KK_GGUF_BOOL,
    KK_GGUF_STRING,
    KK_GGUF_ARRAY,
    KK_GGUF_U64,
    KK_GGUF_I64,
    KK_GGUF_F64,
    KK_GGUF_TYPES,
} kk_gguf_type;

/* The fingerprint of the weights that a file was quantised from; see lineage.h. */
#define KK_GGUF_SOURCE "kakeya.source"

typedef struct {
    kk_span key;
    kk_gguf_type type; /* KK_GGUF_ARRAY: elem is the type of its elements */
    kk_gguf_type elem;
    uint64_t n;   /* elements of an array, 1 otherwise */
    kk_span data; /* raw bytes of the value or of all elements */
} kk_gguf_kv;

typedef struct {
    kk_gguf_kv *kv;
    size_t n_kv;
    kk_tensor *tensors;
    size_t n_tensors;
    char *names;
} kk_gguf;

kk_status kk_gguf_parse(kk_gguf *out, kk_span file, const char *label, kk_err *err);
void kk_gguf_free(kk_gguf *g); /* zero value is fine */

const kk_gguf_kv *kk_gguf_find(const kk_gguf *g, const char *key); /* NULL: absent */
/* Typed reads; false when absent or of another kind.  Integers of any width convert. */
bool kk_gguf_int(const kk_gguf *g, const char *key, int64_t *out);
bool kk_gguf_float(const kk_gguf *g, const char *key, double *out);
bool kk_gguf_bool(const kk_gguf *g, const char *key, bool *out);
bool kk_gguf_str(const kk_gguf *g, const char *key, kk_span *out);
/* Element i of a numeric or boolean array as an integer; false when out of range. */
bool kk_gguf_array_int(const kk_gguf_kv *kv, uint64_t i, int64_t *out);
bool kk_gguf_array_float(const kk_gguf_kv *kv, uint64_t i, double *out);
/* Walks a string array: *cursor starts at 0; false at the end. */
bool kk_gguf_array_next_str(const kk_gguf_kv *kv, size_t *cursor, kk_span *out);

#endif
