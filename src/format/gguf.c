/* gguf.c - reads GGUF v3 out of a span.
 *
 * A cursor walks the header once; every length in it is checked against what is left before it
 * is believed, so counts cannot make us allocate or walk past the file.  Key/values are kept
 * sorted, because they are looked up by name and their order means nothing. */
#include "format/gguf.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/alloc.h"

enum { VERSION = 3, DEFAULT_ALIGNMENT = 32, MAX_ALIGNMENT = 1 << 20 };

typedef struct {
    kk_span left; /* not yet read */
    const char *label;
} cursor;

#define BAD(...) kk_fail(err, KK_EFORMAT, __VA_ARGS__)

/* ---- cursor ----------------------------------------------------------------------------- */

static bool take(cursor *c, uint64_t n, kk_span *out) {
    if (!kk_span_sub(c->left, 0, n, out)) return false;
    c->left.base += n;
    c->left.size -= (size_t)n;
    return true;
}

static bool take32(cursor *c, uint32_t *out) {
    kk_span s;
    if (!take(c, 4, &s)) return false;
    *out = kk_le32(s.base);
    return true;
}

static bool take64(cursor *c, uint64_t *out) {
    kk_span s;
    if (!take(c, 8, &s)) return false;
    *out = kk_le64(s.base);
    return true;
}

static bool take_str(cursor *c, kk_span *out) {
    uint64_t n;
    return take64(c, &n) && take(c, n, out);
}

static kk_status truncated(const cursor *c, const char *where, kk_err *err) {
    return BAD("%.80s: the file ends inside %s", c->label, where);
}

/* ---- key/values ------------------------------------------------------------------------- */

/* Bytes of one value; 0: not of fixed size. */
static size_t value_size(kk_gguf_type t) {
    switch (t) {
    case KK_GGUF_U8:
    case KK_GGUF_I8:
    case KK_GGUF_BOOL: return 1;
    case KK_GGUF_U16:
    case KK_GGUF_I16: return 2;
    case KK_GGUF_U32:
    case KK_GGUF_I32:
    case KK_GGUF_F32: return 4;
    case KK_GGUF_U64:
    case KK_GGUF_I64:
    case KK_GGUF_F64: return 8;
    default: return 0;
    }
}

/* n values of type t, not an array. */
static bool take_values(cursor *c, kk_gguf_type t, uint64_t n, kk_span *out) {
    const size_t size = value_size(t);
    if (size) return n <= c->left.size / size && take(c, n * size, out);
    const kk_span start = c->left;
    kk_span s;
    for (uint64_t i = 0; i < n; i++)
        if (!take_str(c, &s)) return false;
    *out = (kk_span){start.base, start.size - c->left.size};
    return true;
}

static kk_status read_kv(cursor *c, kk_gguf_kv *kv, kk_err *err) {
    uint32_t type, elem = 0;
    *kv = (kk_gguf_kv){.n = 1};
    if (!take_str(c, &kv->key) || !take32(c, &type)) return truncated(c, "a key", err);
    const int shown = kv->key.size < 80 ? (int)kv->key.size : 80;
    const char *key = (const char *)kv->key.base;
    if (type == KK_GGUF_ARRAY && (!take32(c, &elem) || !take64(c, &kv->n)))
        return truncated(c, "an array", err);
    const uint32_t of = type == KK_GGUF_ARRAY ? elem : type;
    if (type >= KK_GGUF_TYPES || of >= KK_GGUF_TYPES || of == KK_GGUF_ARRAY)
        return BAD("%.80s: key '%.*s' has unknown type %" PRIu32, c->label, shown, key, of);
    kv->type = (kk_gguf_type)type;
    kv->elem = (kk_gguf_type)elem;
    if (!take_values(c, (kk_gguf_type)of, kv->n, &kv->data))
        return BAD("%.80s: the file ends inside the value of '%.*s'", c->label, shown, key);
    return KK_OK;
}

static int compare_spans(kk_span a, kk_span b) {
    const size_t n = a.size < b.size ? a.size : b.size;
    const int order = n ? memcmp(a.base, b.base, n) : 0;
    if (order || a.size == b.size) return order;
    return a.size < b.size ? -1 : 1;
}

static int by_key(const void *a, const void *b) {
    return compare_spans(((const kk_gguf_kv *)a)->key, ((const kk_gguf_kv *)b)->key);
}

/* The count is checked against the bytes left: none of its items takes fewer than least. */
static kk_status check_count(const cursor *c, uint64_t n, size_t least, const char *what,
                             kk_err *err) {
    if (n <= c->left.size / least) return KK_OK;
    return BAD("%.80s: %" PRIu64 " %s do not fit a file of this size", c->label, n, what);
}

static kk_status read_kvs(cursor *c, kk_gguf *g, uint64_t n, kk_err *err) {
    KK_TRY(check_count(c, n, 8 + 4 + 1, "keys", err));
    g->kv = kk_calloc((size_t)n, sizeof *g->kv);
    if (!g->kv) return kk_fail(err, KK_ENOMEM, "no memory for the keys of %.80s", c->label);
    for (uint64_t i = 0; i < n; i++) KK_TRY(read_kv(c, &g->kv[g->n_kv++], err));
    qsort(g->kv, g->n_kv, sizeof *g->kv, by_key);
    for (size_t i = 1; i < g->n_kv; i++) {
        const kk_span key = g->kv[i].key;
        if (by_key(&g->kv[i - 1], &g->kv[i]) == 0)
            return BAD("%.80s: key '%.*s' appears twice", c->label,
                       key.size < 80 ? (int)key.size : 80, (const char *)key.base);
    }
    return KK_OK;
}

/* ---- tensors ---------------------------------------------------------------------------- */

static bool dtype_of(uint32_t type, kk_dtype *out) {
    switch (type) {
    case 0: *out = KK_F32; return true;
    case 1: *out = KK_F16; return true;
    case 2: *out = KK_Q4_0; return true;
    case 6: *out = KK_Q5_0; return true;
    case 7: *out = KK_Q5_1; return true;
    case 8: *out = KK_Q8_0; return true;
    case 12: *out = KK_Q4_K; return true;
    case 13: *out = KK_Q5_K; return true;
    case 14: *out = KK_Q6_K; return true;
    case 26: *out = KK_I32; return true;
    case 27: *out = KK_I64; return true;
    case 30: *out = KK_BF16; return true;
    default: return false;
    }
}

/* Names of the types we do not read, so that a message says more than a number. */
static const char *foreign_type(uint32_t type) {
    static const char *const names[] = {
        [3] = "q4_1",     [9] = "q8_1",    [10] = "q2_k",    [11] = "q3_k",  [15] = "q8_k",
        [16] = "iq2_xxs", [17] = "iq2_xs", [18] = "iq3_xxs", [19] = "iq1_s", [20] = "iq4_nl",
        [21] = "iq3_s",   [22] = "iq2_s",  [23] = "iq4_xs",  [24] = "i8",    [25] = "i16",
        [28] = "f64",     [29] = "iq1_m",  [34] = "tq1_0",   [35] = "tq2_0", [39] = "mxfp4",
        [40] = "nvfp4",
    };
    const char *name = type < sizeof names / sizeof *names ? names[type] : NULL;
    return name ? name : "unknown";
}

/* Dims stand innermost first in the file. */
static kk_status read_dims(cursor *c, kk_tensor *t, uint64_t *values, kk_err *err) {
    uint32_t n;
    size_t product = 1;
    if (!take32(c, &n)) return truncated(c, "a tensor's shape", err);
    if (n > KK_MAX_DIMS)
        return BAD("%.60s: tensor '%.100s' has %" PRIu32 " dimensions, more than %d", c->label,
                   t->name, n, KK_MAX_DIMS);
    t->n_dims = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t d;
        if (!take64(c, &d)) return truncated(c, "a tensor's shape", err);
        if (d == 0) return BAD("%.60s: tensor '%.100s' is empty", c->label, t->name);
        if (!kk_mul(product, (size_t)d, &product) || product > (size_t)1 << 62)
            return BAD("%.60s: tensor '%.100s' has a shape whose product overflows", c->label,
                       t->name);
        t->dims[n - 1 - i] = (int64_t)d;
    }
    *values = product;
    return KK_OK;
}

/* Reads one description.  Its data is left as an offset, since where data begins is known only
 * after the last description. */
static kk_status read_tensor(cursor *c, kk_tensor *t, uint64_t *offset, kk_err *err) {
    uint64_t values = 0;
    uint32_t type;
    size_t bytes;
    KK_TRY(read_dims(c, t, &values, err));
    if (!take32(c, &type) || !take64(c, offset)) return truncated(c, "a tensor's place", err);
    if (!dtype_of(type, &t->dtype))
        return BAD("%.60s: tensor '%.100s' has type %" PRIu32 " (%s), which is not supported",
                   c->label, t->name, type, foreign_type(type));
    const kk_dtype_info *info = kk_dtype_get(t->dtype);
    const int64_t row = t->n_dims ? t->dims[t->n_dims - 1] : 1;
    if (row % info->values != 0 || !kk_dtype_bytes(t->dtype, values, &bytes))
        return BAD("%.60s: rows of %" PRId64 " in tensor '%.100s' do not fill blocks of %s",
                   c->label, row, t->name, info->name);
    t->data.size = bytes;
    return KK_OK;
}

static kk_status read_name(cursor *c, kk_tensor *t, char **to, kk_err *err) {
    kk_span name;
    if (!take_str(c, &name)) return truncated(c, "a tensor's name", err);
    if (name.size == 0 || name.size >= KK_MAX_NAME || memchr(name.base, 0, name.size))
        return BAD("%.80s: a tensor has a name of %zu bytes", c->label, name.size);
    memcpy(*to, name.base, name.size);
    (*to)[name.size] = '\0';
    t->name = *to;
    *to += name.size + 1;
    return KK_OK;
}

/* Pads the header and cuts each tensor out of what follows. */
static kk_status place_tensors(cursor *c, kk_gguf *g, kk_span file, const uint64_t *offsets,
                               kk_err *err) {
    int64_t align = DEFAULT_ALIGNMENT;
    kk_gguf_int(g, "general.alignment", &align);
    if (align < 8 || align > MAX_ALIGNMENT || (align & (align - 1)) != 0)
        return BAD("%.80s: general.alignment is %" PRId64, c->label, align);
    const size_t step = (size_t)align, used = file.size - c->left.size;
    const size_t pad = (step - used % step) % step;
    kk_span data = {0};
    if (g->n_tensors && !kk_span_sub(file, used + pad, c->left.size - pad, &data))
        return truncated(c, "the header", err);
    for (size_t i = 0; i < g->n_tensors; i++) {
        kk_tensor *t = &g->tensors[i];
        if (offsets[i] % step != 0)
            return BAD("%.60s: tensor '%.100s' starts at %" PRIu64 ", not a multiple of %zu",
                       c->label, t->name, offsets[i], step);
        if (!kk_span_sub(data, offsets[i], t->data.size, &t->data))
            return BAD("%.60s: tensor '%.100s' reaches past the end: the file is truncated",
                       c->label, t->name);
    }
    return KK_OK;
}

static int by_place(const void *a, const void *b) {
    const kk_tensor *x = a, *y = b;
    if (x->data.base != y->data.base) return x->data.base < y->data.base ? -1 : 1;
    return x->data.size < y->data.size ? -1 : x->data.size > y->data.size;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kk_tensor *)a)->name, ((const kk_tensor *)b)->name);
}

/* Works on a copy, so that the list keeps the order of the file. */
static kk_status check_doubles(const cursor *c, const kk_gguf *g, kk_err *err) {
    const size_t n = g->n_tensors;
    kk_tensor *copy = kk_calloc(n, sizeof *copy);
    if (!copy) return kk_fail(err, KK_ENOMEM, "no memory for %zu tensors", n);
    if (n) memcpy(copy, g->tensors, n * sizeof *copy);
    kk_status st = KK_OK;
    qsort(copy, n, sizeof *copy, by_name);
    for (size_t i = 1; st == KK_OK && i < n; i++)
        if (by_name(&copy[i - 1], &copy[i]) == 0)
            st = BAD("%.60s: tensor '%.100s' appears twice", c->label, copy[i].name);
    qsort(copy, n, sizeof *copy, by_place);
    for (size_t i = 1; st == KK_OK && i < n; i++)
        if (copy[i].data.base < copy[i - 1].data.base + copy[i - 1].data.size)
            st = BAD("%.60s: tensor '%.80s' overlaps '%.80s'", c->label, copy[i].name,
                     copy[i - 1].name);
    kk_free(copy);
    return st;
}

static kk_status read_tensors(cursor *c, kk_gguf *g, kk_span file, uint64_t n, kk_err *err) {
    KK_TRY(check_count(c, n, 8 + 1 + 4 + 4 + 8, "tensors", err));
    g->tensors = kk_calloc((size_t)n, sizeof *g->tensors);
    g->names = kk_malloc(c->left.size < (size_t)n * KK_MAX_NAME ? c->left.size + 1
                                                                : (size_t)n * KK_MAX_NAME + 1);
    uint64_t *offsets = kk_calloc((size_t)n, sizeof *offsets);
    kk_status st = KK_OK;
    if (!g->tensors || !g->names || !offsets)
        st = kk_fail(err, KK_ENOMEM, "no memory for the tensors of %.80s", c->label);
    char *to = g->names;
    for (uint64_t i = 0; st == KK_OK && i < n; i++) {
        st = read_name(c, &g->tensors[i], &to, err);
        if (st == KK_OK) st = read_tensor(c, &g->tensors[i], &offsets[i], err);
        if (st == KK_OK) g->n_tensors++;
    }
    if (st == KK_OK) st = place_tensors(c, g, file, offsets, err);
    kk_free(offsets);
    return st == KK_OK ? check_doubles(c, g, err) : st;
}

static kk_status read_all(cursor *c, kk_gguf *g, kk_span file, kk_err *err) {
    kk_span magic;
    uint32_t version;
    uint64_t n_tensors, n_kv;
    if (!take(c, 4, &magic) || memcmp(magic.base, "GGUF", 4) != 0)
        return BAD("%.80s is no GGUF file", c->label);
    if (!take32(c, &version)) return truncated(c, "the header", err);
    if (version != VERSION)
        return BAD("%.80s: GGUF version %" PRIu32 " is not supported, only %d", c->label, version,
                   VERSION);
    if (!take64(c, &n_tensors) || !take64(c, &n_kv)) return truncated(c, "the header", err);
    KK_TRY(read_kvs(c, g, n_kv, err));
    return read_tensors(c, g, file, n_tensors, err);
}

kk_status kk_gguf_parse(kk_gguf *out, kk_span file, const char *label, kk_err *err) {
    *out = (kk_gguf){0};
    cursor c = {.left = file, .label = label};
    kk_status st = read_all(&c, out, file, err);
    if (st != KK_OK) kk_gguf_free(out);
    return st;
}

void kk_gguf_free(kk_gguf *g) {
    kk_free(g->kv);
    kk_free(g->tensors);
    kk_free(g->names);
    *g = (kk_gguf){0};
}

/* ---- lookups ---------------------------------------------------------------------------- */

const kk_gguf_kv *kk_gguf_find(const kk_gguf *g, const char *key) {
    const kk_gguf_kv want = {.key = {(const uint8_t *)key, strlen(key)}};
    if (g->n_kv == 0) return NULL;
    return bsearch(&want, g->kv, g->n_kv, sizeof *g->kv, by_key);
}

static bool number_int(kk_gguf_type t, const uint8_t *p, int64_t *out) {
    switch (t) {
    case KK_GGUF_U8:
    case KK_GGUF_BOOL: *out = *p; return true;
    case KK_GGUF_I8: *out = (int8_t)*p; return true;
    case KK_GGUF_U16: *out = kk_le16(p); return true;
    case KK_GGUF_I16: *out = (int16_t)kk_le16(p); return true;
    case KK_GGUF_U32: *out = kk_le32(p); return true;
    case KK_GGUF_I32: *out = (int32_t)kk_le32(p); return true;
    case KK_GGUF_I64: *out = (int64_t)kk_le64(p); return true;
    case KK_GGUF_U64:
        if (kk_le64(p) > INT64_MAX) return false;
        *out = (int64_t)kk_le64(p);
        return true;
    default: return false;
    }
}

static bool number_float(kk_gguf_type t, const uint8_t *p, double *out) {
    int64_t i;
    if (t == KK_GGUF_F32) {
        *out = (double)kk_bits_f32(kk_le32(p));
        return true;
    }
    if (t == KK_GGUF_F64) {
        memcpy(out, p, sizeof *out);
        return true;
    }
    if (!number_int(t, p, &i)) return false;
    *out = (double)i;
    return true;
}

bool kk_gguf_int(const kk_gguf *g, const char *key, int64_t *out) {
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    return kv && kv->type != KK_GGUF_BOOL && number_int(kv->type, kv->data.base, out);
}

bool kk_gguf_float(const kk_gguf *g, const char *key, double *out) {
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    return kv && kv->type != KK_GGUF_BOOL && number_float(kv->type, kv->data.base, out);
}

bool kk_gguf_bool(const kk_gguf *g, const char *key, bool *out) {
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    if (!kv || kv->type != KK_GGUF_BOOL) return false;
    *out = *kv->data.base != 0;
    return true;
}

bool kk_gguf_str(const kk_gguf *g, const char *key, kk_span *out) {
    const kk_gguf_kv *kv = kk_gguf_find(g, key);
    if (!kv || kv->type != KK_GGUF_STRING) return false;
    *out = (kk_span){kv->data.base + 8, kv->data.size - 8};
    return true;
}

/* Where element i of a numeric array lies. */
static const uint8_t *element(const kk_gguf_kv *kv, uint64_t i) {
    if (kv->type != KK_GGUF_ARRAY || i >= kv->n) return NULL;
    return kv->data.base + i * value_size(kv->elem);
}

bool kk_gguf_array_int(const kk_gguf_kv *kv, uint64_t i, int64_t *out) {
    const uint8_t *p = element(kv, i);
    return p && number_int(kv->elem, p, out);
}

bool kk_gguf_array_float(const kk_gguf_kv *kv, uint64_t i, double *out) {
    const uint8_t *p = element(kv, i);
    return p && number_float(kv->elem, p, out);
}

bool kk_gguf_array_next_str(const kk_gguf_kv *kv, size_t *cursor_at, kk_span *out) {
    if (kv->type != KK_GGUF_ARRAY || kv->elem != KK_GGUF_STRING) return false;
    if (*cursor_at >= kv->data.size) return false;
    cursor c = {.left = {kv->data.base + *cursor_at, kv->data.size - *cursor_at}};
    if (!take_str(&c, out)) return false;
    *cursor_at = kv->data.size - c.left.size;
    return true;
}
