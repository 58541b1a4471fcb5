/* op_rig.h - one device with random inputs for its operations, and a record of what came out.
 *
 * A case is a function of a rig.  It draws inputs from the rig's generator, runs operations and
 * records their results under a label; run on two devices with the same seed it makes two lists
 * of records to be compared.  Buffers start with random content and end in a guard, so that a
 * result that was not written, or one written too far, shows. */
#ifndef KK_TESTS_OP_RIG_H
#define KK_TESTS_OP_RIG_H

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

enum { RIG_HELD = 8192, RIG_GUARD = 16 };

/* What a record's bytes are. */
typedef enum { RIG_FLOATS, RIG_BF16, RIG_INTS, RIG_BYTES } rig_kind;

static inline size_t rig_width(rig_kind kind) {
    return kind == RIG_BYTES ? 1 : kind == RIG_BF16 ? 2 : 4;
}

/* What the sums of products behind a record should be, in float64, for devices that round what they
 * multiply: that moves a sum by a share of the root of its terms' squares, however near to zero it
 * comes out. */
typedef struct {
    double *sum, *size; /* [n_rows, width]; size is that root; NULL: nobody asked */
    size_t n_rows, width;
    float *by; /* of a router alone: the scale of each expert's weight, [width] */
} rig_sums;

typedef struct {
    char label[112];
    rig_kind kind;
    size_t n; /* values */
    void *data;
    rig_sums sums;
} rig_record;

typedef struct {
    rig_record *items;
    size_t n, cap;
} rig_records;

typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    kk_mem mem;
    uint64_t random;
    rig_records *out;
    bool with_sums; /* records of products carry them */
    struct {
        kk_buf *buf;
        size_t n;
    } bufs[RIG_HELD];
    kk_weight *weights[RIG_HELD];
    void *memory[RIG_HELD];
    size_t n_bufs, n_weights, n_memory;
} rig;

/* Runs a backend's operation, which must succeed. */
#define RIG_RUN(r, op, ...)                                                                        \
    do {                                                                                           \
        kk_err err_ = {0};                                                                         \
        if ((r)->be->op((r)->dev, __VA_ARGS__, &err_) != KK_OK) fail_msg(#op ": %s", err_.msg);    \
    } while (0)

#define RIG_PREPARE(r, ...)                                                                        \
    do {                                                                                           \
        const kk_prepare_args scratch_ = {__VA_ARGS__};                                            \
        RIG_RUN(r, prepare, &scratch_);                                                            \
    } while (0)

/* ---- numbers ---------------------------------------------------------------------------- */

/* splitmix64 */
static inline uint64_t rig_bits(rig *r) {
    uint64_t z = r->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline int32_t rig_below(rig *r, int32_t n) { return (int32_t)(rig_bits(r) % (uint64_t)n); }
/* Uniform in [-scale, scale). */
static inline float rig_float(rig *r, float scale) {
    return ((float)(rig_bits(r) >> 40) / (float)(1 << 23) - 1.0f) * scale;
}

/* ---- memory ----------------------------------------------------------------------------- */

/* Exactly this many bytes, so that a sanitizer sees a read past them; freed with the rig. */
static inline void *rig_memory(rig *r, size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    assert_true(r->n_memory < RIG_HELD);
    return r->memory[r->n_memory++] = p;
}

static inline float *rig_floats(rig *r, size_t n, float scale) {
    float *x = rig_memory(r, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = rig_float(r, scale);
    return x;
}

static inline float rig_guard(size_t i) { return 1234.5f + (float)i; }

/* A buffer of these n words, 4 bytes each. */
static inline kk_buf *rig_buf(rig *r, const void *words, size_t n) {
    kk_buf *b = NULL;
    float guard[RIG_GUARD];
    for (size_t i = 0; i < RIG_GUARD; i++) guard[i] = rig_guard(i);
    RIG_RUN(r, buf_new, KK_MEM_WORKSPACE, (n + RIG_GUARD) * 4, &b);
    RIG_RUN(r, write, b, 0, words, n * 4);
    RIG_RUN(r, write, b, n * 4, guard, sizeof guard);
    assert_true(r->n_bufs < RIG_HELD);
    r->bufs[r->n_bufs].buf = b;
    r->bufs[r->n_bufs++].n = n;
    return b;
}

static inline kk_buf *rig_random_buf(rig *r, size_t n, float scale) {
    return rig_buf(r, rig_floats(r, n, scale), n);
}

/* Operations may be queued until now. */
static inline void rig_sync(rig *r) {
    kk_err err = {0};
    if (r->be->instruments->sync(r->dev, &err) != KK_OK) fail_msg("sync: %s", err.msg);
}

static inline void rig_read(rig *r, const kk_buf *b, void *words, size_t n) {
    rig_sync(r);
    RIG_RUN(r, read, b, 0, words, n * 4);
}

/* ---- weights ---------------------------------------------------------------------------- */

static inline void rig_put_f16(uint8_t *at, float f) {
    const uint16_t h = kk_f32_f16(f);
    memcpy(at, &h, sizeof h);
}

/* A block's random bytes are valid weights once its floats are finite and of ordinary size. */
static inline void rig_settle_block(rig *r, kk_dtype t, uint8_t *at) {
    const float f = rig_float(r, 0.1f);
    const uint16_t h = kk_f32_bf16(f);
    if (t == KK_F32)
        memcpy(at, &f, sizeof f);
    else if (t == KK_BF16)
        memcpy(at, &h, sizeof h);
    else
        rig_put_f16(t == KK_Q6_K ? at + 208 : at, f);
    if (t == KK_Q5_1 || t == KK_Q4_K || t == KK_Q5_K) rig_put_f16(at + 2, rig_float(r, 0.1f));
}

/* A matrix whose values, or codes, lie at data. */
static inline kk_matrix rig_stored(kk_dtype t, int64_t n_mat, int64_t n_out, int64_t n_in,
                                   const void *data) {
    return (kk_matrix){.dtype = t, .n_mat = n_mat, .n_out = n_out, .n_in = n_in, .data = data};
}

/* n random scales or biases, beginning at any byte. */
static inline const uint8_t *rig_plane(rig *r, kk_dtype t, size_t n) {
    const size_t width = (size_t)kk_dtype_get(t)->bytes, shift = (size_t)rig_below(r, 4);
    uint8_t *p = (uint8_t *)rig_memory(r, shift + n * width) + shift;
    for (size_t i = 0; i < n; i++) {
        const float f = rig_float(r, 0.1f);
        kk_quantize_row(t, &f, p + i * width, 1);
    }
    return p;
}

/* Random matrices that begin at any byte, as they may in a file.  Scales and biases of affine types
 * are drawn of every type that they may have. */
static inline kk_matrix rig_matrix(rig *r, kk_dtype t, int64_t n_mat, int64_t n_out, int64_t n_in) {
    const kk_dtype_info *info = kk_dtype_get(t);
    size_t bytes;
    assert_true(kk_dtype_bytes(t, (uint64_t)(n_mat * n_out * n_in), &bytes));
    const size_t shift = (size_t)rig_below(r, 4);
    uint8_t *w = (uint8_t *)rig_memory(r, shift + bytes) + shift;
    for (size_t i = 0; i < bytes; i++) w[i] = (uint8_t)rig_bits(r);
    kk_matrix m = rig_stored(t, n_mat, n_out, n_in, w);
    if (kk_dtype_is_affine(t)) {
        static const kk_dtype planes[] = {KK_BF16, KK_F16, KK_F32};
        const size_t groups = (size_t)(n_mat * n_out * n_in / info->values);
        m.planes.type = planes[rig_below(r, 3)];
        m.planes.scales = rig_plane(r, m.planes.type, groups);
        m.planes.biases = rig_plane(r, m.planes.type, groups);
        return m;
    }
    for (size_t i = 0; i < bytes; i += (size_t)info->bytes) rig_settle_block(r, t, w + i);
    return m;
}

/* n_used: slots of a row that read it (1 but for experts' second matrix). */
static inline kk_weight *rig_load(rig *r, kk_matrix m, int32_t n_used) {
    kk_weight *w = NULL;
    RIG_RUN(r, weight_new, &m, &w);
    assert_true(r->n_weights < RIG_HELD);
    r->weights[r->n_weights++] = w;
    RIG_PREPARE(r, .w = w, .n_used = n_used);
    return w;
}

static inline kk_weight *rig_weight(rig *r, kk_dtype t, int64_t n_out, int64_t n_in) {
    return rig_load(r, rig_matrix(r, t, 1, n_out, n_in), 1);
}

/* ---- records ---------------------------------------------------------------------------- */

/* Keeps a copy of n values under a label. */
__attribute__((format(printf, 5, 6))) static inline void
rig_record_values(rig *r, rig_kind kind, const void *data, size_t n, const char *fmt, ...) {
    rig_records *l = r->out;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 256;
        l->items = realloc(l->items, l->cap * sizeof *l->items);
        assert_non_null(l->items);
    }
    rig_record *rec = &l->items[l->n++];
    const size_t bytes = n * rig_width(kind);
    *rec = (rig_record){.kind = kind, .n = n, .data = malloc(bytes ? bytes : 1)};
    assert_non_null(rec->data);
    memcpy(rec->data, data, bytes);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(rec->label, sizeof rec->label, fmt, ap);
    va_end(ap);
}

/* The first n words of a buffer. */
#define RIG_RECORD(r, kind, buf, n, ...)                                                           \
    do {                                                                                           \
        void *words_ = malloc((n)*4 + 1);                                                          \
        assert_non_null(words_);                                                                   \
        rig_read(r, buf, words_, n);                                                               \
        rig_record_values(r, kind, words_, n, __VA_ARGS__);                                        \
        free(words_);                                                                              \
    } while (0)

/* A row of a stack of matrices as floats. */
static inline void rig_row_floats(const kk_matrix *m, int64_t row, float *w) {
    const size_t n = (size_t)m->n_in;
    const size_t blocks = (size_t)row * (n / (size_t)kk_dtype_get(m->dtype)->values);
    const uint8_t *at = (const uint8_t *)m->data + blocks * (size_t)kk_dtype_get(m->dtype)->bytes;
    if (kk_dtype_is_affine(m->dtype))
        kk_dequantize_affine(m->dtype, at, kk_planes_at(m->planes, blocks), w, n);
    else
        kk_dequantize(m->dtype, at, w, n);
}

/* Gives the last record the sums of rows [n_rows, n_in] with a matrix. */
static inline void rig_record_sums(rig *r, const kk_matrix *m, const float *x, size_t n_rows) {
    if (!r->with_sums) return;
    const size_t n_out = (size_t)m->n_out, n_in = (size_t)m->n_in;
    float *w = rig_memory(r, n_in * sizeof *w);
    rig_sums *to = &r->out->items[r->out->n - 1].sums;
    to->n_rows = n_rows;
    to->width = n_out;
    to->sum = malloc(n_rows * n_out * sizeof *to->sum);
    to->size = malloc(n_rows * n_out * sizeof *to->size);
    assert_true(to->sum && to->size);
    for (size_t o = 0; o < n_out; o++) {
        rig_row_floats(m, (int64_t)o, w);
        for (size_t k = 0; k < n_rows; k++) {
            double sum = 0, squares = 0;
            for (size_t i = 0; i < n_in; i++) {
                const double term = (double)w[i] * (double)x[k * n_in + i];
                sum += term;
                squares += term * term;
            }
            to->sum[k * n_out + o] = sum;
            to->size[k * n_out + o] = sqrt(squares);
        }
    }
}

static inline void rig_records_free(rig_records *l) {
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i].data);
        free(l->items[i].sums.sum);
        free(l->items[i].sums.size);
        free(l->items[i].sums.by);
    }
    free(l->items);
    *l = (rig_records){0};
}

/* |got - want| <= abs + rel * |want|; both 0: the same bits. */
typedef struct {
    double abs, rel;
} rig_rule;

static inline double rig_value(const rig_record *rec, size_t i) {
    if (rec->kind == RIG_BYTES) return ((const uint8_t *)rec->data)[i];
    if (rec->kind == RIG_INTS) return ((const int32_t *)rec->data)[i];
    if (rec->kind == RIG_BF16) return (double)kk_bf16_f32(((const uint16_t *)rec->data)[i]);
    return (double)((const float *)rec->data)[i];
}

/* Whether value i agrees; integers and bytes must be equal under any rule. */
static inline bool rig_agrees(const rig_record *want, const rig_record *got, size_t i,
                              rig_rule rule) {
    const size_t width = rig_width(want->kind);
    const bool same = memcmp((const uint8_t *)want->data + i * width,
                             (const uint8_t *)got->data + i * width, width) == 0;
    const bool exact = want->kind == RIG_INTS || want->kind == RIG_BYTES;
    if (same || exact || (rule.abs <= 0 && rule.rel <= 0)) return same;
    const double w = rig_value(want, i), g = rig_value(got, i);
    if (isnan(w) || isnan(g)) return isnan(w) && isnan(g);
    return fabs(w - g) <= rule.abs + rule.rel * fabs(w);
}

static inline void rig_compare(const char *device, const rig_records *want, const rig_records *got,
                               rig_rule rule) {
    assert_int_equal(want->n, got->n);
    for (size_t k = 0; k < want->n; k++) {
        const rig_record *w = &want->items[k], *g = &got->items[k];
        assert_string_equal(w->label, g->label);
        assert_int_equal(w->n, g->n);
        for (size_t i = 0; i < w->n; i++)
            if (!rig_agrees(w, g, i, rule))
                fail_msg("%s: %s: value %zu of %zu is %.9g, the reference says %.9g", device,
                         w->label, i, w->n, rig_value(g, i), rig_value(w, i));
    }
}

/* ---- opening and closing ---------------------------------------------------------------- */

typedef struct {
    const char *backend, *isa; /* isa NULL: the best */
    int32_t threads;
    rig_rule rule; /* how near its results must come to the reference's */
} rig_device;

/* False when this machine has no such device. */
static inline bool rig_open(rig *r, const rig_device *d, int32_t max_rows, rig_records *out,
                            uint64_t seed) {
    memset(r, 0, sizeof *r);
    r->be = kk_backend_named(d->backend);
    if (!r->be) return false;
    const kk_dev_opts opts = {
        .threads = d->threads, .isa = d->isa, .mem = &r->mem, .max_rows = max_rows};
    kk_err err = {0};
    const kk_status st = r->be->open(&r->dev, &opts, &err);
    if (st == KK_EDEVICE) return false;
    if (st != KK_OK) fail_msg("open: %s", err.msg);
    r->out = out;
    r->random = seed;
    return true;
}

/* No guard was touched, and everything taken was given back. */
static inline void rig_close(rig *r) {
    for (size_t i = 0; i < r->n_bufs; i++) {
        float guard[RIG_GUARD];
        RIG_RUN(r, read, r->bufs[i].buf, r->bufs[i].n * 4, guard, sizeof guard);
        for (size_t k = 0; k < RIG_GUARD; k++)
            if (kk_f32_bits(guard[k]) != kk_f32_bits(rig_guard(k)))
                fail_msg("buffer %zu was written %zu values past its %zu", i, k + 1, r->bufs[i].n);
        r->be->buf_free(r->dev, r->bufs[i].buf);
    }
    for (size_t i = 0; i < r->n_weights; i++) r->be->weight_free(r->dev, r->weights[i]);
    for (size_t i = 0; i < r->n_memory; i++) free(r->memory[i]);
    r->be->close(r->dev);
    for (int c = 0; c < KK_MEM_CATEGORIES; c++) assert_int_equal(r->mem.bytes[c], 0);
}

#endif
