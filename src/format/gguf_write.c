/* gguf_write.c - see gguf_write.h. */
#include "format/gguf_write.h"

#include <assert.h>

#include "core/alloc.h"

enum { VERSION = 3, ALIGNMENT = 32 };

/* Bytes that grow. */
typedef struct {
    uint8_t *bytes;
    size_t n, cap;
} heap;

struct kk_gguf_writer {
    kk_writer *file, *own;   /* own: the same, if it is to be closed here */
    heap kv, tensors, sizes; /* sizes: the data of each tensor, as size_t */
    uint64_t n_kv, n_tensors, offset;
    bool no_memory;
    size_t current, left; /* the tensor being written and the bytes it lacks */
};

static void add(kk_gguf_writer *w, heap *h, const void *data, size_t len) {
    size_t need;
    if (w->no_memory || !kk_add(h->n, len, &need) ||
        !kk_grow((void **)&h->bytes, &h->cap, need, 1)) {
        w->no_memory = true;
        return;
    }
    if (len) memcpy(h->bytes + h->n, data, len);
    h->n += len;
}

static void add32(kk_gguf_writer *w, heap *h, uint32_t v) { add(w, h, &v, sizeof v); }
static void add64(kk_gguf_writer *w, heap *h, uint64_t v) { add(w, h, &v, sizeof v); }
static void add_str(kk_gguf_writer *w, heap *h, const char *text, size_t len) {
    add64(w, h, len);
    add(w, h, text, len);
}

static void add_key(kk_gguf_writer *w, const char *key, kk_gguf_type type) {
    add_str(w, &w->kv, key, strlen(key));
    add32(w, &w->kv, (uint32_t)type);
    w->n_kv++;
}

/* GGUF's number of a type. */
static uint32_t type_number(kk_dtype t) {
    switch (t) {
    case KK_F16: return 1;
    case KK_Q4_0: return 2;
    case KK_Q5_0: return 6;
    case KK_Q5_1: return 7;
    case KK_Q8_0: return 8;
    case KK_Q4_K: return 12;
    case KK_Q5_K: return 13;
    case KK_Q6_K: return 14;
    case KK_I32: return 26;
    case KK_I64: return 27;
    case KK_BF16: return 30;
    default: return 0;
    }
}

kk_status kk_gguf_writer_new(kk_gguf_writer **out, kk_writer *to, kk_err *err) {
    *out = kk_zalloc(sizeof **out);
    if (!*out) return kk_fail(err, KK_ENOMEM, "no memory to write a GGUF file");
    (*out)->file = to;
    return KK_OK;
}

kk_status kk_gguf_writer_open(kk_gguf_writer **out, const char *path, kk_err *err) {
    const kk_writer_opts opts = {.replace = true};
    kk_writer *file;
    *out = NULL;
    KK_TRY(kk_writer_open(&file, path, &opts, err));
    const kk_status st = kk_gguf_writer_new(out, file, err);
    if (st == KK_OK)
        (*out)->own = file;
    else
        kk_writer_close(file);
    return st;
}

void kk_gguf_writer_abort(kk_gguf_writer *w) {
    if (!w) return;
    kk_writer_close(w->own);
    kk_free(w->kv.bytes);
    kk_free(w->tensors.bytes);
    kk_free(w->sizes.bytes);
    kk_free(w);
}

void kk_gguf_put_u32(kk_gguf_writer *w, const char *key, uint32_t v) {
    add_key(w, key, KK_GGUF_U32);
    add32(w, &w->kv, v);
}

void kk_gguf_put_f32(kk_gguf_writer *w, const char *key, float v) {
    add_key(w, key, KK_GGUF_F32);
    add(w, &w->kv, &v, sizeof v);
}

void kk_gguf_put_bool(kk_gguf_writer *w, const char *key, bool v) {
    const uint8_t byte = v;
    add_key(w, key, KK_GGUF_BOOL);
    add(w, &w->kv, &byte, 1);
}

void kk_gguf_put_str(kk_gguf_writer *w, const char *key, const char *text, size_t len) {
    add_key(w, key, KK_GGUF_STRING);
    add_str(w, &w->kv, text, len);
}

void kk_gguf_put_array(kk_gguf_writer *w, const char *key, kk_gguf_type elem, uint64_t n) {
    add_key(w, key, KK_GGUF_ARRAY);
    add32(w, &w->kv, (uint32_t)elem);
    add64(w, &w->kv, n);
}

void kk_gguf_put_bytes(kk_gguf_writer *w, const void *data, size_t len) {
    add(w, &w->kv, data, len);
}

void kk_gguf_put_element(kk_gguf_writer *w, const char *text, size_t len) {
    add_str(w, &w->kv, text, len);
}

void kk_gguf_put_tensor(kk_gguf_writer *w, const char *name, kk_dtype type, int32_t n_dims,
                        const int64_t *dims) {
    uint64_t values = 1;
    size_t bytes = 0;
    add_str(w, &w->tensors, name, strlen(name));
    add32(w, &w->tensors, (uint32_t)n_dims);
    for (int32_t i = n_dims - 1; i >= 0; i--) {
        add64(w, &w->tensors, (uint64_t)dims[i]);
        values *= (uint64_t)dims[i];
    }
    kk_dtype_bytes(type, values, &bytes);
    add32(w, &w->tensors, type_number(type));
    add64(w, &w->tensors, w->offset);
    add(w, &w->sizes, &bytes, sizeof bytes);
    w->n_tensors++;
    w->offset += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static kk_status pad(kk_gguf_writer *w, kk_err *err) {
    static const uint8_t zeros[ALIGNMENT];
    const size_t over = (size_t)(kk_writer_offset(w->file) % ALIGNMENT);
    return kk_writer_put(w->file, zeros, over ? ALIGNMENT - over : 0, err);
}

static size_t size_of(const kk_gguf_writer *w, size_t i) {
    size_t bytes;
    memcpy(&bytes, w->sizes.bytes + i * sizeof bytes, sizeof bytes);
    return bytes;
}

kk_status kk_gguf_writer_begin(kk_gguf_writer *w, kk_err *err) {
    const uint32_t version = VERSION;
    if (w->no_memory) return kk_fail(err, KK_ENOMEM, "no memory for the header of a GGUF file");
    KK_TRY(kk_writer_put(w->file, "GGUF", 4, err));
    KK_TRY(kk_writer_put(w->file, &version, sizeof version, err));
    KK_TRY(kk_writer_put(w->file, &w->n_tensors, sizeof w->n_tensors, err));
    KK_TRY(kk_writer_put(w->file, &w->n_kv, sizeof w->n_kv, err));
    KK_TRY(kk_writer_put(w->file, w->kv.bytes, w->kv.n, err));
    KK_TRY(kk_writer_put(w->file, w->tensors.bytes, w->tensors.n, err));
    w->left = w->n_tensors ? size_of(w, 0) : 0;
    return pad(w, err);
}

kk_status kk_gguf_writer_data(kk_gguf_writer *w, const void *data, size_t len, kk_err *err) {
    assert(len <= w->left);
    KK_TRY(kk_writer_put(w->file, data, len, err));
    w->left -= len;
    if (w->left) return KK_OK;
    if (++w->current < w->n_tensors) w->left = size_of(w, w->current);
    return pad(w, err);
}

kk_status kk_gguf_writer_commit(kk_gguf_writer *w, kk_err *err) {
    assert(w->current == w->n_tensors);
    kk_status st = kk_writer_commit(w->file, err);
    kk_gguf_writer_abort(w);
    return st;
}
