/* cuda_weights.c - copies weights to the device and converts them to the strips that the kernels
 * read (stream.cuh); bf16 weights take the same number of bytes.
 *
 *    threads:  mapped file -> pinned half i (rows as stored, or unpacked to f32)
 *    stream:   copy half i -> device half i, lay_kernel -> strips, event `free` of half i
 *
 * Two halves alternate, so that all cores read the file while the bus copies.  The staging buffers
 * are freed when the first work is queued. */
#include "backend/cuda/cuda_device.h"
#include "core/threads.h"

enum { HALVES = 2, MOST_THREADS = 16, PIECE = 256 << 10 /* bytes of a thread's share at a time */ };

typedef struct kk_cuda_stage {
    kk_threads *threads;
    struct {
        void *host, *device;
        cudaEvent_t free; /* the half has been converted and may be overwritten */
    } half[HALVES];
    int32_t at;
} stage;

/* ---- the stage ----------------------------------------------------------------------------- */

static void stage_close(kk_dev *dev, stage *s) {
    for (int i = 0; i < HALVES; i++) {
        if (s->half[i].free) cudaEventDestroy(s->half[i].free);
        if (s->half[i].host) cudaFreeHost(s->half[i].host);
        kk_cuda_give(dev, s->half[i].device, KK_CUDA_STAGE);
    }
    kk_threads_free(s->threads);
    kk_free(s);
}

static kk_status stage_fill(kk_dev *dev, stage *s, kk_err *err) {
    const int32_t cores = kk_cores_available();
    KK_TRY(kk_threads_new(&s->threads, cores < MOST_THREADS ? cores : MOST_THREADS, false, err));
    for (int i = 0; i < HALVES; i++) {
        KK_CUDA_TRY(cudaMallocHost(&s->half[i].host, KK_CUDA_STAGE), "taking pinned memory", err);
        KK_TRY(kk_cuda_take(dev, KK_CUDA_STAGE, &s->half[i].device, err));
        KK_CUDA_TRY(cudaEventCreateWithFlags(&s->half[i].free, cudaEventDisableTiming),
                    "making an event", err);
    }
    return KK_OK;
}

static kk_status stage_open(kk_dev *dev, kk_err *err) {
    if (dev->stage) return KK_OK;
    stage *s = kk_zalloc(sizeof *s);
    if (!s) return kk_fail(err, KK_ENOMEM, "no memory to load weights");
    const kk_status st = stage_fill(dev, s, err);
    if (st != KK_OK) {
        stage_close(dev, s);
        return st;
    }
    dev->stage = s;
    return KK_OK;
}

void kk_cuda_drop_stage(kk_dev *dev) {
    if (!dev->stage) return;
    cudaStreamSynchronize(dev->stream);
    stage_close(dev, dev->stage);
    dev->stage = NULL;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Whether all values of an f32 matrix are representable in bf16: converted routers often are. */
static bool is_bf16(const kk_matrix *m) {
    const int64_t n = m->n_mat * m->n_out * m->n_in;
    for (int64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, (const uint8_t *)m->data + 4 * i, sizeof v);
        if (v & 0xffff) return false;
    }
    return true;
}

/* bf16 planes whose sum holds a matrix's values exactly. */
static int32_t planes_of(const kk_matrix *m) {
    if (m->dtype == KK_BF16 || (m->dtype == KK_F32 && is_bf16(m))) return 1;
    return m->dtype == KK_F16 || m->dtype == KK_Q4_0 ? 2 : 3;
}

typedef struct {
    const kk_matrix *m;
    const uint8_t *from; /* first row in the file */
    size_t row_bytes;
    void *to; /* rows as stored, or as f32 */
} rows_job;

static void copy_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const size_t first = (size_t)begin, n_in = (size_t)j->m->n_in;
    const uint8_t *from = j->from + first * j->row_bytes;
    if (j->m->dtype == KK_BF16) {
        memcpy((uint8_t *)j->to + first * j->row_bytes, from, (size_t)(end - begin) * j->row_bytes);
        return;
    }
    float *to = (float *)j->to + first * n_in;
    for (int64_t r = begin; r < end; r++, from += j->row_bytes, to += n_in)
        kk_dequantize(j->m->dtype, from, to, n_in);
}

/* Copies and converts rows [row, row + n) of matrix mat, through the next half. */
static kk_status lay_rows(kk_dev *dev, const kk_matrix *m, const kk_weight *w, int64_t mat,
                          int64_t row, int64_t n, kk_err *err) {
    stage *s = dev->stage;
    const int32_t at = s->at;
    const bool bf16 = m->dtype == KK_BF16;
    rows_job j = {.m = m, .to = s->half[at].host};
    kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &j.row_bytes);
    j.from = (const uint8_t *)m->data + (size_t)(mat * m->n_out + row) * j.row_bytes;
    KK_CUDA_TRY(cudaEventSynchronize(s->half[at].free), "copying weights", err);
    kk_threads_loop(s->threads, n, (int64_t)(PIECE / j.row_bytes) + 1, copy_rows, &j);
    const size_t bytes = (size_t)n * (bf16 ? j.row_bytes : (size_t)m->n_in * sizeof(float));
    KK_CUDA_TRY(cudaMemcpyAsync(s->half[at].device, s->half[at].host, bytes, cudaMemcpyHostToDevice,
                                dev->stream),
                "copying weights", err);
    const kk_cu_lay lay = {
        (void *)(uintptr_t)w->w.data, w->w, s->half[at].device, bf16, mat, row, n};
    KK_CUDA_TRY(kk_cu_run_lay((kk_cu_at){.stream = dev->stream, .sms = dev->sms}, &lay),
                "laying out weights", err);
    KK_CUDA_TRY(cudaEventRecord(s->half[at].free, dev->stream), "recording an event", err);
    s->at = (at + 1) % HALVES;
    return KK_OK;
}

/* The caller's memory is not read after this returns; the device may still be working. */
static kk_status fill_weight(kk_dev *dev, const kk_matrix *m, const kk_weight *w, kk_err *err) {
    const size_t width = m->dtype == KK_BF16 ? 2 : 4;
    int64_t most = (int64_t)(KK_CUDA_STAGE / ((size_t)m->n_in * width));
    if (most < 1)
        return kk_fail(err, KK_EINVAL, "rows of %lld values are too wide", (long long)m->n_in);
    if (most > m->n_out) most = m->n_out;
    for (int64_t mat = 0; mat < m->n_mat; mat++)
        for (int64_t row = 0; row < m->n_out; row += most) {
            const int64_t left = m->n_out - row;
            KK_TRY(lay_rows(dev, m, w, mat, row, left < most ? left : most, err));
        }
    return KK_OK;
}

/* ---- weights ------------------------------------------------------------------------------- */

static kk_cu_weight shape_of(const kk_matrix *m) {
    const int64_t steps = (m->n_in + 31) / 32;
    return (kk_cu_weight){.n_mat = m->n_mat,
                          .n_out = m->n_out,
                          .n_in = m->n_in,
                          .strips = (int32_t)((m->n_out + 15) / 16 * 2),
                          .wrap = (int32_t)(steps < 8 ? 8 : steps),
                          .planes = planes_of(m)};
}

/* Allocates a weight; whoever opened the file counts its bytes. */
static kk_status allocate(kk_dev *dev, kk_weight *w, kk_err *err) {
    size_t free = 0, total = 0;
    void *data = NULL;
    const cudaError_t e =
        kk_fault_point() ? cudaErrorMemoryAllocation : cudaMalloc(&data, w->bytes);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        cudaMemGetInfo(&free, &total);
        return kk_fail(err, KK_ENOMEM,
                       "the GPU cannot hold %zu bytes of weights: %zu of its %zu bytes are free",
                       w->bytes, free, total);
    }
    w->w.data = data;
    dev->weights += (int64_t)w->bytes;
    KK_CUDA_TRY(cudaMemsetAsync(data, 0, w->bytes, dev->stream), "clearing", err);
    return KK_OK;
}

kk_status kk_cuda_weight_new(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err) {
    *out = NULL;
    size_t row_bytes;
    if (kk_dtype_is_affine(m->dtype))
        return kk_fail(err, KK_EINVAL,
                       "the CUDA device does not read MLX's quantised weights (%s); the CPU does",
                       kk_dtype_get(m->dtype)->name);
    if (!kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes))
        return kk_fail(err, KK_EINVAL, "rows of %lld values cannot be stored as %s",
                       (long long)m->n_in, kk_dtype_get(m->dtype)->name);
    kk_weight *w = kk_zalloc(sizeof *w);
    if (!w) return kk_fail(err, KK_ENOMEM, "no memory for a weight");
    w->w = shape_of(m);
    w->bytes = (size_t)m->n_mat * (size_t)w->w.strips * (size_t)(w->w.wrap * w->w.planes) * 512;
    kk_status st = stage_open(dev, err);
    if (st == KK_OK) st = allocate(dev, w, err);
    if (st == KK_OK) st = fill_weight(dev, m, w, err);
    if (st != KK_OK) {
        kk_cuda_weight_free(dev, w);
        return st;
    }
    *out = w;
    return KK_OK;
}

void kk_cuda_weight_free(kk_dev *dev, kk_weight *w) {
    if (!w) return;
    kk_cuda_settle(dev);
    kk_cuda_forget(dev, w);
    if (w->w.data) dev->weights -= (int64_t)w->bytes;
    cudaFree((void *)(uintptr_t)w->w.data);
    kk_free(w);
}
