/* device.c - opens and closes the CPU device, its buffers and weights, and lists its operations.
 *
 * Buffers are plain memory and operations are done when they return, so read and write are
 * copies and sync has nothing to wait for. */
#include "backend/cpu/device.h"

#include <stdio.h>

#include "backend/sample.h"

enum { SLOT_OUT_MOST = 3 << 19 }; /* floats, 6 MB */

/* ---- device ----------------------------------------------------------------------------- */

static void scratch_free(kk_dev *dev, kk_scratch *s) {
    kk_mem_give(dev->mem, KK_MEM_WORKSPACE, s->data, s->bytes);
    *s = (kk_scratch){0};
}

/* Contents are not kept: scratch holds nothing between operations. */
kk_status kk_cpu_scratch_fit(kk_dev *dev, kk_scratch *s, size_t bytes, kk_err *err) {
    if (bytes <= s->bytes) return KK_OK;
    void *p = kk_mem_take(dev->mem, KK_MEM_WORKSPACE, bytes);
    if (!p) return kk_fail(err, KK_ENOMEM, "no memory for %zu bytes of scratch", bytes);
    scratch_free(dev, s);
    *s = (kk_scratch){p, bytes};
    return KK_OK;
}

static void cpu_close(kk_dev *dev) {
    if (!dev) return;
    scratch_free(dev, &dev->acts);
    scratch_free(dev, &dev->thread);
    scratch_free(dev, &dev->slot_mid);
    scratch_free(dev, &dev->slot_act);
    scratch_free(dev, &dev->slot_out);
    scratch_free(dev, &dev->slot_list);
    scratch_free(dev, &dev->attend_state);
    scratch_free(dev, &dev->batch);
    scratch_free(dev, &dev->pairs);
    scratch_free(dev, &dev->angles);
    kk_sampler_free(dev->sampler);
    scratch_free(dev, &dev->rounded);
    kk_key_cache_clear(&dev->keys);
    kk_threads_free(dev->threads);
    kk_free(dev);
}

kk_status kk_cpu_fit_threads(kk_dev *dev, size_t bytes, kk_err *err) {
    const size_t stride = (bytes + 4095) / 4096 * 4096;
    if (stride <= dev->thread_stride) return KK_OK;
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->thread, stride * (size_t)kk_threads_count(dev->threads),
                              err));
    dev->thread_stride = stride;
    return KK_OK;
}

static kk_status cpu_open(kk_dev **out, const kk_dev_opts *opts, kk_err *err) {
    *out = NULL;
    kk_dev *dev = kk_zalloc(sizeof *dev);
    if (!dev) return kk_fail(err, KK_ENOMEM, "no memory for the device");
    dev->mem = opts->mem;
    dev->max_rows = opts->max_rows;
    kk_key_cache_open(&dev->keys, opts->mem, opts->key_cache);
    kk_status st = KK_EDEVICE;
    dev->k = kk_kernels_named(opts->isa);
    if (!dev->k) {
        kk_fail(err, st, "this processor has no '%s' kernels; leave `isa` out to use the best",
                opts->isa);
        goto fail;
    }
    if ((st = kk_threads_new(&dev->threads, opts->threads, opts->pin, err))) goto fail;
    const size_t tile = KK_ATTEND_SCRATCH + KK_ATTEND_PAIRS * KK_ATTEND_STATE;
    if ((st = kk_cpu_fit_threads(dev, tile * sizeof(float), err))) goto fail;
    *out = dev;
    return KK_OK;
fail:
    cpu_close(dev);
    return st;
}

static void cpu_describe(const kk_dev *dev, kk_dev_facts *out) {
    *out = (kk_dev_facts){.threads = kk_threads_count(dev->threads)};
    snprintf(out->isa, sizeof out->isa, "%s", dev->k->name);
}

/* ---- buffers and weights ---------------------------------------------------------------- */

static kk_status buf_make(kk_dev *dev, bool reserve, kk_mem_category c, size_t bytes, kk_buf **out,
                          kk_err *err) {
    *out = NULL;
    kk_buf *b = kk_zalloc(sizeof *b);
    if (!b) return kk_fail(err, KK_ENOMEM, "no memory for a buffer");
    b->data = reserve ? kk_mem_reserve(bytes) : kk_mem_take(dev->mem, c, bytes);
    if (!b->data) {
        kk_free(b);
        return kk_fail(err, KK_ENOMEM, "no memory for a buffer of %zu bytes", bytes);
    }
    b->bytes = bytes;
    b->category = c;
    b->reserved = reserve;
    *out = b;
    return KK_OK;
}

static kk_status cpu_buf_new(kk_dev *dev, kk_mem_category c, size_t bytes, kk_buf **out,
                             kk_err *err) {
    return buf_make(dev, false, c, bytes, out, err);
}

static kk_status cpu_buf_reserve(kk_dev *dev, size_t bytes, kk_buf **out, kk_err *err) {
    return buf_make(dev, true, KK_MEM_WORKSPACE, bytes, out, err);
}

/* Address space has memory behind it where it is touched. */
static kk_status cpu_buf_grow(kk_dev *dev, kk_buf *b, size_t bytes, kk_err *err) {
    (void)dev;
    if (bytes <= b->bytes) return KK_OK;
    return kk_fail(err, KK_EINVAL, "%zu bytes of a buffer of %zu", bytes, b->bytes);
}

static void cpu_buf_free(kk_dev *dev, kk_buf *b) {
    if (!b) return;
    if (b->reserved)
        kk_mem_unreserve(b->data, b->bytes);
    else
        kk_mem_give(dev->mem, b->category, b->data, b->bytes);
    kk_free(b);
}

static kk_status check_range(const kk_buf *b, size_t off, size_t n, kk_err *err) {
    if (off <= b->bytes && n <= b->bytes - off) return KK_OK;
    return kk_fail(err, KK_EINVAL, "bytes %zu..%zu are outside a buffer of %zu", off, off + n,
                   b->bytes);
}

static kk_status cpu_write(kk_dev *dev, kk_buf *b, size_t off, const void *src, size_t n,
                           kk_err *err) {
    (void)dev;
    KK_TRY(check_range(b, off, n, err));
    memcpy((uint8_t *)b->data + off, src, n);
    return KK_OK;
}

static kk_status cpu_read(kk_dev *dev, const kk_buf *b, size_t off, void *dst, size_t n,
                          kk_err *err) {
    (void)dev;
    KK_TRY(check_range(b, off, n, err));
    memcpy(dst, (const uint8_t *)b->data + off, n);
    return KK_OK;
}

static kk_status cpu_weight_new(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err) {
    (void)dev;
    *out = NULL;
    kk_weight *w = kk_zalloc(sizeof *w);
    if (!w) return kk_fail(err, KK_ENOMEM, "no memory for a weight");
    w->m = *m;
    if (!kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &w->row_bytes)) {
        kk_free(w);
        return kk_fail(err, KK_EINVAL, "rows of %lld values cannot be stored as %s",
                       (long long)m->n_in, kk_dtype_get(m->dtype)->name);
    }
    if (kk_dtype_is_affine(m->dtype))
        w->row_groups = (size_t)(m->n_in / kk_dtype_get(m->dtype)->values);
    *out = w;
    return KK_OK;
}

void kk_weight_floats(const kk_weight *w, int64_t row, float *y) {
    const size_t n = (size_t)w->m.n_in;
    const uint8_t *from = kk_weight_row(w, 0, row);
    if (w->row_groups)
        kk_dequantize_affine(w->m.dtype, from, kk_weight_planes(w, 0, row), y, n);
    else
        kk_dequantize(w->m.dtype, from, y, n);
}

/* Only of memory that whoever made the weight may write. */
static kk_status cpu_weight_row(kk_dev *dev, kk_weight *w, int64_t row, const kk_matrix *m,
                                kk_err *err) {
    (void)dev;
    if (m->dtype != w->m.dtype || m->n_in != w->m.n_in || w->row_groups || w->m.n_mat != 1 ||
        row < 0 || row >= w->m.n_out)
        return kk_fail(err, KK_EINVAL, "row %lld of %s [%lld, %lld] cannot become one of %s [%lld]",
                       (long long)row, kk_dtype_get(w->m.dtype)->name, (long long)w->m.n_out,
                       (long long)w->m.n_in, kk_dtype_get(m->dtype)->name, (long long)m->n_in);
    memcpy((uint8_t *)(uintptr_t)kk_weight_row(w, 0, row), m->data, w->row_bytes);
    return KK_OK;
}

static void cpu_weight_free(kk_dev *dev, kk_weight *w) {
    (void)dev;
    kk_free(w);
}

static kk_status prepare_weight(kk_dev *dev, const kk_weight *w, int32_t n_used, kk_err *err) {
    const size_t rows = (size_t)dev->max_rows, slots = rows * (size_t)(n_used > 1 ? n_used : 1);
    const size_t in = (size_t)w->m.n_in;
    if (kk_dtype_is_quant(w->m.dtype)) {
        KK_TRY(kk_cpu_fit_threads(dev, in / KK_BLOCK * KK_PANEL_BYTES, err));
        KK_TRY(kk_cpu_scratch_fit(dev, &dev->acts, slots * (in / KK_BLOCK) * sizeof(kk_act_block),
                                  err));
    }
    return KK_OK;
}

static kk_status prepare_experts(kk_dev *dev, int32_t n_expert, int32_t n_used, int32_t ffn,
                                 int64_t hidden, kk_err *err) {
    const size_t slots = (size_t)dev->max_rows * (size_t)n_used;
    const size_t mid = slots * 2 * (size_t)ffn, router = (size_t)dev->max_rows * (size_t)n_expert;
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->slot_mid, (mid > router ? mid : router) * sizeof(float),
                              err));
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->slot_act, slots * (size_t)ffn * sizeof(float), err));
    /* Results of the experts are added up as many outputs at a time as fit here. */
    const size_t least = slots * KK_STRIP, all = slots * (size_t)hidden;
    size_t out = all < SLOT_OUT_MOST ? all : least > SLOT_OUT_MOST ? least : SLOT_OUT_MOST;
    const size_t rows = (size_t)dev->max_rows * (size_t)hidden; /* the router's use of it */
    out = out > rows ? out : rows;
    KK_TRY(kk_cpu_scratch_fit(dev, &dev->slot_out, out * sizeof(float), err));
    const size_t lists = 2 * slots + 2 * (size_t)n_expert + 2;
    return kk_cpu_scratch_fit(dev, &dev->slot_list, lists * sizeof(int32_t), err);
}

static kk_status cpu_prepare(kk_dev *dev, const kk_prepare_args *a, kk_err *err) {
    if (a->w) KK_TRY(prepare_weight(dev, a->w, a->n_used, err));
    if (a->experts.n_expert)
        KK_TRY(prepare_experts(dev, a->experts.n_expert, a->experts.n_used, a->experts.ffn,
                               a->experts.hidden, err));
    if (!a->evicted.slot) return KK_OK;
    return kk_cpu_prepare_evicted(dev, a->evicted.slot, a->evicted.n_head, a->evicted.rank, err);
}

static kk_status cpu_sync(kk_dev *dev, kk_err *err) {
    (void)dev;
    (void)err;
    return KK_OK;
}

/* All is done when an operation returns: there is nothing to wait for. */
static void cpu_counts(const kk_dev *dev, kk_dev_counts *out) {
    (void)dev;
    *out = (kk_dev_counts){0};
}

static const kk_latent_ops cpu_latents = {kk_cpu_keep, kk_cpu_keep_scales};
static const kk_sum_ops cpu_sums = {kk_cpu_gram, kk_cpu_squares};
static const kk_instruments cpu_instruments = {
    .sync = cpu_sync, .counts = cpu_counts, .replay = kk_cpu_replay};

const kk_backend kk_cpu_backend = {
    .name = "cpu",
    .rows = 128,
    .sample_vocab = KK_SAMPLE_VOCAB,
    .latents = &cpu_latents,
    .sums = &cpu_sums,
    .instruments = &cpu_instruments,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .buf_new = cpu_buf_new,
    .buf_reserve = cpu_buf_reserve,
    .buf_grow = cpu_buf_grow,
    .buf_free = cpu_buf_free,
    .write = cpu_write,
    .read = cpu_read,
    .weight_new = cpu_weight_new,
    .weight_free = cpu_weight_free,
    .weight_row = cpu_weight_row,
    .prepare = cpu_prepare,
    .embed = kk_cpu_embed,
    .norm = kk_cpu_norm,
    .linear = kk_cpu_linear,
    .rope = kk_cpu_rope,
    .store = kk_cpu_store,
    .attend = kk_cpu_attend,
    .residual = kk_cpu_residual,
    .glu = kk_cpu_glu,
    .route = kk_cpu_route,
    .experts = kk_cpu_experts,
    .ple = kk_cpu_ple,
    .gather = kk_cpu_gather,
    .softcap = kk_cpu_softcap,
    .argmax = kk_cpu_argmax,
    .ids = kk_cpu_ids,
    .choose = kk_cpu_choose,
    .picked = kk_cpu_picked,
};
