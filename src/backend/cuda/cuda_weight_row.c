/* cuda_weight_row.c - one row of a weight takes the place of another, in the order of operations.
 *
 *    host:    row -> pinned place i
 *    stream:  place i -> its copy on the device, lay_kernel or pack_kernel -> the strip's lanes,
 *             event `free` of place i
 *
 * Nothing is waited for but a place that was used KK_CUDA_ROW_PLACES rows ago.  These kernels start
 * when all before them has ended, and let none start before they have: products read weights ahead
 * of what is before them, and must find the whole row. */
#include "backend/cuda/cuda_device.h"

static kk_status take_places(kk_dev *dev, kk_err *err) {
    kk_cuda_rows_in *r = &dev->rows_in;
    const size_t bytes = (size_t)KK_CUDA_ROW_PLACES * KK_CUDA_ROW_BYTES;
    void *host = NULL, *device = NULL;
    if (r->host) return KK_OK;
    if (!r->device) {
        KK_TRY(kk_cuda_take(dev, bytes, &device, err));
        r->device = device;
    }
    for (int i = 0; i < KK_CUDA_ROW_PLACES; i++)
        if (!r->free[i])
            KK_CUDA_TRY(cudaEventCreateWithFlags(&r->free[i], cudaEventDisableTiming),
                        "making an event", err);
    KK_CUDA_TRY(cudaMallocHost(&host, bytes), "taking pinned memory", err);
    r->host = host;
    return KK_OK;
}

void kk_cuda_drop_places(kk_dev *dev) {
    kk_cuda_rows_in *r = &dev->rows_in;
    for (int i = 0; i < KK_CUDA_ROW_PLACES; i++)
        if (r->free[i]) cudaEventDestroy(r->free[i]);
    if (r->host) cudaFreeHost(r->host);
    kk_cuda_give(dev, r->device, (size_t)KK_CUDA_ROW_PLACES * KK_CUDA_ROW_BYTES);
    *r = (kk_cuda_rows_in){0};
}

static cudaError_t convert(const kk_dev *dev, const kk_weight *w, int64_t row, const kk_matrix *m,
                           size_t bytes, const uint8_t *from) {
    const kk_cu_at at = {.stream = dev->stream, .sms = dev->sms};
    if (w->w.encoding == KK_W_BF16) {
        const kk_cu_lay lay = {(void *)(uintptr_t)w->w.data, w->w, from, true, 0, row, 1};
        return kk_cu_run_lay(at, &lay);
    }
    const kk_cu_pack pack = {.to = (void *)(uintptr_t)w->w.data,
                             .w = w->w,
                             .from = from,
                             .dtype = (int32_t)m->dtype,
                             .row_bytes = bytes,
                             .block_bytes = (size_t)kk_dtype_get(m->dtype)->bytes,
                             .group = kk_dtype_get(m->dtype)->values,
                             .row = row,
                             .n_rows = 1};
    return kk_cu_run_pack(at, &pack);
}

kk_status kk_cuda_weight_row(kk_dev *dev, kk_weight *w, int64_t row, const kk_matrix *m,
                             kk_err *err) {
    kk_cuda_rows_in *r = &dev->rows_in;
    size_t bytes;
    const bool plain = w->w.encoding == KK_W_BF16 && w->w.planes == 1 && m->dtype == KK_BF16;
    const bool packed = w->w.encoding != KK_W_BF16 && !kk_dtype_is_affine(m->dtype);
    if (!kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &bytes) || bytes > KK_CUDA_ROW_BYTES ||
        m->n_in != w->w.n_in || w->w.n_mat != 1 || row < 0 || row >= w->w.n_out ||
        !(plain || packed))
        return kk_fail(err, KK_EINVAL,
                       "row %lld of a weight [%lld, %lld] cannot become one of %s [%lld]",
                       (long long)row, (long long)w->w.n_out, (long long)w->w.n_in,
                       kk_dtype_get(m->dtype)->name, (long long)m->n_in);
    KK_TRY(take_places(dev, err));
    KK_TRY(kk_cuda_flush(dev, err));
    const int32_t at = r->at;
    uint8_t *host = r->host + (size_t)at * KK_CUDA_ROW_BYTES;
    uint8_t *device = r->device + (size_t)at * KK_CUDA_ROW_BYTES;
    KK_CUDA_TRY(cudaEventSynchronize(r->free[at]), "copying a row of a weight", err);
    memcpy(host, m->data, bytes);
    KK_CUDA_TRY(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, dev->stream),
                "copying a row of a weight", err);
    KK_CUDA_TRY(convert(dev, w, row, m, bytes, device), "packing a row of a weight", err);
    KK_CUDA_TRY(cudaEventRecord(r->free[at], dev->stream), "recording an event", err);
    r->at = (at + 1) % KK_CUDA_ROW_PLACES;
    return KK_OK;
}
