/* safetensors.c - reads and writes safetensors files.
 *
 * The header is JSON written by a stranger: jansson parses it (and refuses a name that appears
 * twice), then every entry is checked against the file before anyone sees it.  Sorting by offset
 * makes the overlap check one comparison per neighbour and gives readers the order of the file.
 * Tensors may begin at any byte: MLX's writer aligns neither them nor the end of the header. */
#include "format/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "core/file.h"

/* The reference implementation's own limit. */
enum { MAX_HEADER = 100 * 1000 * 1000 };

typedef struct {
    const char *name; /* in the JSON until the copy is made */
    bool listed;      /* its type is one that we read */
    uint64_t begin, end;
    kk_tensor tensor;
} entry;

typedef struct {
    const char *label;
    kk_span data; /* what follows the header */
    size_t start; /* byte offset in the file */
    entry *entries;
    size_t n;
} reader;

static bool dtype_of(const char *word, kk_dtype *out) {
    static const struct {
        const char *word;
        kk_dtype type;
    } known[] = {{"F32", KK_F32}, {"F16", KK_F16}, {"BF16", KK_BF16},
                 {"I32", KK_I32}, {"I64", KK_I64}, {"U32", KK_U32}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].word, word) == 0) {
            *out = known[i].type;
            return true;
        }
    }
    return false;
}

#define BAD(why, ...)                                                                              \
    kk_fail(err, KK_EFORMAT, "%.60s: tensor '%.100s' " why, r->label, e->name, __VA_ARGS__)

/* Fills dims and the product of them; a product past 2^62 is no tensor. */
static kk_status read_shape(const reader *r, entry *e, const json_t *shape, uint64_t *values,
                            kk_err *err) {
    const size_t n = json_array_size(shape);
    if (!json_is_array(shape)) return BAD("has no shape%s", "");
    if (n > KK_MAX_DIMS) return BAD("has %zu dimensions, more than %d", n, KK_MAX_DIMS);
    e->tensor.n_dims = (int32_t)n;
    size_t product = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        const json_int_t v = json_integer_value(dim);
        if (!json_is_integer(dim) || v < 0) return BAD("has a bad dimension %zu", i);
        if (v == 0) return BAD("is empty: dimension %zu is 0", i);
        if (!kk_mul(product, (size_t)v, &product) || product > (size_t)1 << 62)
            return BAD("has a shape whose product overflows%s", "");
        e->tensor.dims[i] = (int64_t)v;
    }
    *values = product;
    return KK_OK;
}

static kk_status read_offsets(const reader *r, entry *e, const json_t *pair, kk_err *err) {
    const json_t *b = json_array_get(pair, 0), *t = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(b) || !json_is_integer(t))
        return BAD("has no pair of data_offsets%s", "");
    const json_int_t begin = json_integer_value(b), end = json_integer_value(t);
    if (begin < 0 || end < begin)
        return BAD("has data_offsets [%" PRId64 ", %" PRId64 "]", (int64_t)begin, (int64_t)end);
    e->begin = (uint64_t)begin;
    e->end = (uint64_t)end;
    if (!kk_span_sub(r->data, e->begin, e->end - e->begin, &e->tensor.data))
        return BAD("ends at byte %" PRIu64 " of %zu: the file is truncated", e->end, r->data.size);
    return KK_OK;
}

static kk_status read_entry(const reader *r, entry *e, const json_t *value, kk_err *err) {
    const char *word = json_string_value(json_object_get(value, "dtype"));
    uint64_t values = 0;
    size_t bytes;
    if (strlen(e->name) >= KK_MAX_NAME) return BAD("has a name of %zu bytes", strlen(e->name));
    if (!word) return BAD("has no dtype%s", "");
    KK_TRY(read_offsets(r, e, json_object_get(value, "data_offsets"), err));
    e->listed = dtype_of(word, &e->tensor.dtype);
    if (!e->listed) return KK_OK;
    KK_TRY(read_shape(r, e, json_object_get(value, "shape"), &values, err));
    if (!kk_dtype_bytes(e->tensor.dtype, values, &bytes) || bytes != e->tensor.data.size)
        return BAD("has %zu bytes, not those of its shape and type", e->tensor.data.size);
    return KK_OK;
}

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static kk_status check_overlap(const reader *r, kk_err *err) {
    for (size_t i = 1; i < r->n; i++) {
        const entry *e = &r->entries[i], *before = e - 1;
        if (e->begin < before->end) return BAD("overlaps '%.60s'", before->name);
    }
    return KK_OK;
}

static kk_status read_entries(reader *r, json_t *root, kk_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0) continue;
        entry *e = &r->entries[r->n++];
        *e = (entry){.name = key};
        KK_TRY(read_entry(r, e, value, err));
    }
    qsort(r->entries, r->n, sizeof *r->entries, by_offset);
    return check_overlap(r, err);
}

/* Hands over the listed entries with names of their own. */
static kk_status copy_out(const reader *r, kk_safetensors *out, kk_err *err) {
    size_t bytes = 0, n = 0;
    for (size_t i = 0; i < r->n; i++) {
        n += r->entries[i].listed;
        bytes += strlen(r->entries[i].name) + 1;
    }
    out->tensors = kk_calloc(n, sizeof *out->tensors);
    out->names = kk_malloc(bytes);
    if (!out->tensors || !out->names)
        return kk_fail(err, KK_ENOMEM, "no memory for the %zu tensors of %.60s", n, r->label);
    char *to = out->names;
    for (size_t i = 0; i < r->n; i++) {
        const entry *e = &r->entries[i];
        if (!e->listed) continue;
        kk_tensor *t = &out->tensors[out->n++];
        *t = e->tensor;
        t->name = to;
        const size_t len = strlen(e->name) + 1;
        memcpy(to, e->name, len);
        to += len;
    }
    return KK_OK;
}

static kk_status read_header(reader *r, kk_safetensors *out, kk_span header, kk_err *err) {
    json_error_t why;
    json_t *root = NULL;
    if (!kk_fault_point())
        root = json_loadb((const char *)header.base, header.size, JSON_REJECT_DUPLICATES, &why);
    else
        return kk_fail(err, KK_ENOMEM, "no memory for the header of %.60s", r->label);
    if (!root)
        return kk_fail(err, KK_EFORMAT, "%.60s: the header is no valid JSON: %.120s", r->label,
                       why.text);
    kk_status st;
    if (!json_is_object(root)) {
        st = kk_fail(err, KK_EFORMAT, "%.60s: the header is not a JSON object", r->label);
    } else if (!(r->entries = kk_calloc(json_object_size(root), sizeof *r->entries))) {
        st = kk_fail(err, KK_ENOMEM, "no memory for the header of %.60s", r->label);
    } else {
        st = read_entries(r, root, err);
        if (st == KK_OK) st = copy_out(r, out, err);
        kk_free(r->entries);
    }
    json_decref(root);
    return st;
}

kk_status kk_safetensors_parse(kk_safetensors *out, kk_span file, const char *label, kk_err *err) {
    *out = (kk_safetensors){0};
    kk_span header;
    if (file.size < 8)
        return kk_fail(err, KK_EFORMAT, "%.60s has %zu bytes: no safetensors file", label,
                       file.size);
    const uint64_t len = kk_le64(file.base);
    if (len > MAX_HEADER || !kk_span_sub(file, 8, len, &header))
        return kk_fail(err, KK_EFORMAT,
                       "%.60s: a header of %" PRIu64 " bytes does not fit a file of %zu", label,
                       len, file.size);
    reader r = {.label = label, .start = 8 + header.size};
    r.data = (kk_span){file.base + r.start, file.size - r.start};
    kk_status st = read_header(&r, out, header, err);
    if (st != KK_OK) kk_safetensors_free(out);
    return st;
}

void kk_safetensors_free(kk_safetensors *s) {
    kk_free(s->tensors);
    kk_free(s->names);
    *s = (kk_safetensors){0};
}

/* ---- writing ---------------------------------------------------------------------------- */

static const char *word_of(kk_dtype t) {
    switch (t) {
    case KK_F32: return "F32";
    case KK_F16: return "F16";
    case KK_BF16: return "BF16";
    case KK_I32: return "I32";
    case KK_I64: return "I64";
    case KK_U32: return "U32";
    default: return NULL;
    }
}

/* One entry: {"dtype": ..., "shape": [...], "data_offsets": [...]}.  False: out of memory, or a
 * name used twice or not UTF-8. */
static bool add_entry(json_t *root, const kk_tensor *t, uint64_t at) {
    json_t *shape = json_array();
    for (int32_t d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
    json_t *e = json_pack("{s:s, s:o, s:[I, I]}", "dtype", word_of(t->dtype), "shape", shape,
                          "data_offsets", (json_int_t)at, (json_int_t)(at + t->data.size));
    const bool twice = json_object_get(root, t->name) != NULL;
    return json_object_set_new(root, t->name, e) == 0 && !twice;
}

/* Wide types come first, as in the files of other writers: so every tensor is aligned. */
static const int32_t widths[] = {8, 4, 2};
enum { WIDTHS = sizeof widths / sizeof *widths };

static bool of_width(const kk_tensor *t, int w) {
    return kk_dtype_get(t->dtype)->bytes == widths[w];
}

static char *header_text(const kk_tensor *tensors, size_t n) {
    json_t *root = json_object();
    uint64_t at = 0;
    bool ok = root != NULL;
    for (int w = 0; w < WIDTHS; w++) {
        for (size_t i = 0; i < n; i++) {
            if (!of_width(&tensors[i], w)) continue;
            ok = ok && add_entry(root, &tensors[i], at);
            at += tensors[i].data.size;
        }
    }
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* Data starts at a multiple of 8: the header is padded with spaces. */
static kk_status put_all(kk_writer *file, const char *header, const kk_tensor *tensors, size_t n,
                         kk_err *err) {
    const size_t len = strlen(header), padded = (len + 7) / 8 * 8;
    const uint64_t size = padded;
    KK_TRY(kk_writer_put(file, &size, sizeof size, err));
    KK_TRY(kk_writer_put(file, header, len, err));
    KK_TRY(kk_writer_put(file, "       ", padded - len, err));
    for (int w = 0; w < WIDTHS; w++) {
        for (size_t i = 0; i < n; i++) {
            if (!of_width(&tensors[i], w)) continue;
            KK_TRY(kk_writer_put(file, tensors[i].data.base, tensors[i].data.size, err));
        }
    }
    return KK_OK;
}

kk_status kk_safetensors_put(kk_writer *to, const kk_tensor *tensors, size_t n, kk_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (!word_of(tensors[i].dtype))
            return kk_fail(err, KK_EINVAL, "tensor '%.100s': safetensors has no type %s",
                           tensors[i].name, kk_dtype_get(tensors[i].dtype)->name);
    }
    char *header = header_text(tensors, n);
    if (!header) return kk_fail(err, KK_EINVAL, "cannot name %zu tensors", n);
    const kk_status st = put_all(to, header, tensors, n, err);
    free(header);
    return st;
}

kk_status kk_safetensors_write(const char *path, const kk_tensor *tensors, size_t n, kk_err *err) {
    const kk_writer_opts opts = {.replace = true};
    kk_writer *w;
    KK_TRY(kk_writer_open(&w, path, &opts, err));
    kk_status st = kk_safetensors_put(w, tensors, n, err);
    if (st == KK_OK) st = kk_writer_commit(w, err);
    kk_writer_close(w);
    return st;
}
