/* packing.c - rounds a checkpoint's matrices to a smaller type in memory: those of a drafter, and
 * the decoders of a projection, need not be exact and cost what is read.
 *
 * Everything that can fail is done before the first tensor changes. */
#include "core/threads.h"
#include "format/format.h"

/* Bytes of a tensor once packed; 0: it stays, being a vector, packed already or of odd width. */
static size_t packed_size(const kk_tensor *t, const char *prefix, kk_dtype type) {
    size_t bytes;
    if (strncmp(t->name, prefix, strlen(prefix)) != 0) return 0;
    if (t->n_dims != 2 || kk_dtype_is_quant(t->dtype)) return 0;
    if (t->dims[1] % kk_dtype_get(type)->values != 0) return 0;
    return kk_dtype_bytes(type, (uint64_t)(t->dims[0] * t->dims[1]), &bytes) ? bytes : 0;
}

typedef struct {
    const kk_tensor *from;
    uint8_t *to;
    size_t row_bytes;
    kk_dtype type;
    float *rows; /* one per thread */
} packing;

static void pack_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const packing *p = arg;
    const size_t n = (size_t)p->from->dims[1];
    const size_t width = p->from->data.size / (size_t)p->from->dims[0];
    float *row = p->rows + (size_t)thread * n;
    for (int64_t r = begin; r < end; r++) {
        kk_dequantize(p->from->dtype, p->from->data.base + (size_t)r * width, row, n);
        kk_quantize_row(p->type, row, p->to + (size_t)r * p->row_bytes, n);
    }
}

/* Random weights have pages of their own, which nobody needs any more. */
static void replace(kk_checkpoint *c, kk_tensor *t, kk_dtype type, kk_span by) {
    if (c->mem) kk_mem_give(c->mem, c->category, (void *)(uintptr_t)t->data.base, t->data.size);
    t->dtype = type;
    t->data = by;
}

static void pack_all(kk_checkpoint *c, const char *prefix, packing *p, kk_threads *threads) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        kk_tensor *t = &c->tensors[i];
        const size_t size = packed_size(t, prefix, p->type);
        if (!size) continue;
        p->from = t;
        p->row_bytes = size / (size_t)t->dims[0];
        kk_threads_loop(threads, t->dims[0], 64, pack_rows, p);
        replace(c, t, p->type, (kk_span){p->to, size});
        p->to += size;
    }
}

static kk_status pack_with(kk_checkpoint *c, const char *prefix, const kk_drafter_packing *how,
                           kk_threads *threads, size_t widest, kk_err *err) {
    packing p = {.type = how->type, .to = (uint8_t *)(uintptr_t)c->packed.base};
    const kk_map block = {.span = c->packed};
    if (how->mlock) KK_TRY(kk_map_lock(&block, c->path, err));
    p.rows = kk_calloc((size_t)kk_threads_count(threads), widest * sizeof *p.rows);
    if (!p.rows) return kk_fail(err, KK_ENOMEM, "no memory to pack '%.120s'", c->path);
    pack_all(c, prefix, &p, threads);
    kk_free(p.rows);
    return KK_OK;
}

static kk_status take_block(kk_checkpoint *c, size_t total, kk_mem *mem, kk_err *err) {
    uint8_t *bytes = kk_mem_take(mem, c->category, total);
    if (!bytes)
        return kk_fail(err, KK_ENOMEM, "no memory for %zu bytes packed from '%.120s'", total,
                       c->path);
    c->packed = (kk_span){bytes, total};
    c->packed_mem = mem;
    return KK_OK;
}

kk_status kk_checkpoint_pack(kk_checkpoint *c, const char *prefix, const kk_drafter_packing *how,
                             kk_mem *mem, kk_err *err) {
    size_t total = 0, widest = 0;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const size_t size = packed_size(&c->tensors[i], prefix, how->type);
        total += size;
        if (size && (size_t)c->tensors[i].dims[1] > widest) widest = (size_t)c->tensors[i].dims[1];
    }
    if (total == 0 || c->packed.size) return KK_OK;
    kk_threads *threads;
    KK_TRY(kk_threads_new(&threads, how->threads, false, err));
    kk_status st = take_block(c, total, mem, err);
    if (st == KK_OK) {
        st = pack_with(c, prefix, how, threads, widest, err);
        if (st != KK_OK) {
            kk_mem_give(mem, c->category, (void *)(uintptr_t)c->packed.base, total);
            c->packed = (kk_span){0};
        }
    }
    kk_threads_free(threads);
    return st;
}

/* ---- a copy of one ------------------------------------------------------------------------ */

static kk_status fill_copy(kk_tensor *out, const kk_tensor *t, const kk_drafter_packing *how,
                           kk_err *err) {
    kk_threads *threads;
    packing p = {.from = t,
                 .to = (uint8_t *)(uintptr_t)out->data.base,
                 .row_bytes = out->data.size / (size_t)t->dims[0],
                 .type = how->type};
    const kk_map block = {.span = out->data};
    if (how->mlock) KK_TRY(kk_map_lock(&block, t->name, err));
    KK_TRY(kk_threads_new(&threads, how->threads, false, err));
    p.rows = kk_calloc((size_t)kk_threads_count(threads), (size_t)t->dims[1] * sizeof *p.rows);
    if (p.rows) kk_threads_loop(threads, t->dims[0], 64, pack_rows, &p);
    kk_threads_free(threads);
    kk_free(p.rows);
    return p.rows ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory to pack '%.120s'", t->name);
}

kk_status kk_tensor_pack(kk_tensor *out, const kk_tensor *t, const kk_drafter_packing *how,
                         kk_mem_category category, kk_mem *mem, kk_err *err) {
    const size_t size = packed_size(t, "", how->type);
    *out = (kk_tensor){0};
    if (!size) return KK_OK;
    uint8_t *bytes = kk_mem_take(mem, category, size);
    if (!bytes)
        return kk_fail(err, KK_ENOMEM, "no memory for %zu bytes packed from '%.120s'", size,
                       t->name);
    *out = *t;
    out->dtype = how->type;
    out->data = (kk_span){bytes, size};
    const kk_status st = fill_copy(out, t, how, err);
    if (st == KK_OK) return KK_OK;
    kk_mem_give(mem, category, bytes, size);
    *out = (kk_tensor){0};
    return st;
}
