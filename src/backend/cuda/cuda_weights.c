/* cuda_weights.c - copies weights to the device and converts them to the strips that the kernels
 * read (stream.cuh, packed.cuh); bf16 and quantised weights take about the bytes of the file.
 *
 *    threads:  mapped file -> pinned half i (rows as stored, or unpacked to f32)
 *    stream:   copy half i -> device half i, lay_kernel or pack_kernel -> strips, event `free` of
 *              half i
 *
 * Two halves alternate, so that all cores read the file while the bus copies.  The staging buffers
 * are freed when the first work is queued.
 *
 * Strips of a weight that is placed in pieces (cuda_offload.h) are made in a buffer of the device
 * and copied from there: a kernel's small writes over the bus would be slow. */
#include "backend/cuda/cuda_offload.h"
#include "core/threads.h"

enum { HALVES = 2, MOST_THREADS = 16, PIECE = 256 << 10 /* bytes of a thread's share at a time */ };

typedef struct kk_cuda_stage {
    kk_threads *threads;
    struct {
        void *host, *device;
        cudaEvent_t free; /* the half has been converted and may be overwritten */
    } half[HALVES];
    int32_t at;
    void *strips; /* [KK_CUDA_STAGE] on the device; NULL: no weight has been placed in pieces */
} stage;

/* ---- the stage ----------------------------------------------------------------------------- */

static void stage_close(kk_dev *dev, stage *s) {
    for (int i = 0; i < HALVES; i++) {
        if (s->half[i].free) cudaEventDestroy(s->half[i].free);
        if (s->half[i].host) cudaFreeHost(s->half[i].host);
        kk_cuda_give(dev, s->half[i].device, KK_CUDA_STAGE);
    }
    kk_cuda_give(dev, s->strips, KK_CUDA_STAGE);
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

/* ---- where strips go ------------------------------------------------------------------------ */

static size_t strip_bytes(const kk_cu_weight *w) {
    return (size_t)w->wrap * (size_t)w->planes * (size_t)w->words * 16;
}

/* Rows of a chunk, beginning with `row` of all matrices' rows: at most `most`.  Those of a weight
 * in pieces are whole strips: some of one matrix, or whole matrices. */
static int64_t rows_of_chunk(const kk_weight *w, int64_t row, int64_t most) {
    const int64_t all = w->w.n_mat * w->w.n_out, n = w->w.n_out;
    if (w->placed) {
        const int64_t strips = (int64_t)(KK_CUDA_STAGE / strip_bytes(&w->w));
        if (strips * 8 < most) most = strips * 8;
        const int64_t mats = strips / w->w.strips < most / n ? strips / w->w.strips : most / n;
        if (mats > 0 && row % n == 0)
            most = mats * n;
        else if (n - row % n <= most)
            most = n - row % n;
        else
            most = most / 16 * 16;
    }
    return all - row < most ? all - row : most;
}

/* Strips [at, at + bytes) of a weight, which rows [row, row + n) of all matrices' rows make. */
typedef struct {
    size_t at, bytes;
    void *to; /* where the weight would begin for a kernel that makes these alone */
} strips_at;

static kk_status begin_strips(kk_dev *dev, const kk_weight *w, int64_t row, int64_t n,
                              strips_at *out, kk_err *err) {
    const int64_t last = row + n - 1, wide = w->w.n_out;
    const int64_t from = row / wide * w->w.strips + row % wide / 8;
    const int64_t to = last % wide == wide - 1 ? (last / wide + 1) * w->w.strips
                                               : last / wide * w->w.strips + last % wide / 8 + 1;
    stage *s = dev->stage;
    *out = (strips_at){.to = (void *)(uintptr_t)w->w.data};
    if (!w->placed) return KK_OK;
    out->at = (size_t)from * strip_bytes(&w->w);
    out->bytes = (size_t)(to - from) * strip_bytes(&w->w);
    if (out->bytes > KK_CUDA_STAGE)
        return kk_fail(err, KK_EINVAL, "rows of %lld values are too wide", (long long)w->w.n_in);
    if (!s->strips) KK_TRY(kk_cuda_take(dev, KK_CUDA_STAGE, &s->strips, err));
    KK_CUDA_TRY(cudaMemsetAsync(s->strips, 0, out->bytes, dev->stream), "clearing", err);
    out->to = (void *)((uintptr_t)s->strips - out->at);
    return KK_OK;
}

static kk_status end_strips(kk_dev *dev, const kk_weight *w, const strips_at *s, kk_err *err) {
    if (!w->placed) return KK_OK;
    return kk_cuda_offload_fill(dev, w, s->at, dev->stage->strips, s->bytes, err);
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
    return m->dtype == KK_F16 ? 2 : 3;
}

/* The packed encoding of a type; KK_W_BF16: there is none. */
static int32_t encoding_of(kk_dtype t) {
    switch (t) {
    case KK_Q4_0: return KK_W_I4;
    case KK_Q5_0: return KK_W_I5;
    case KK_Q6_K: return KK_W_I6;
    case KK_Q8_0: return KK_W_I8;
    case KK_Q4_K:
    case KK_MLX4_32:
    case KK_MLX4_64: return KK_W_A4;
    case KK_Q5_1:
    case KK_Q5_K: return KK_W_A5;
    case KK_MLX8_32:
    case KK_MLX8_64: return KK_W_A8;
    default: return KK_W_BF16;
    }
}

static float off_in_f16(float v) { return fabsf(kk_f16_f32(kk_f32_f16(v)) - v); }

/* Value i of a plane of scales or biases. */
static float plane_at(kk_dtype type, const uint8_t *plane, size_t i) {
    float v;
    if (type == KK_BF16) {
        uint16_t h;
        memcpy(&h, plane + 2 * i, sizeof h);
        return kk_bf16_f32(h);
    }
    kk_dequantize(type, plane + i * (size_t)kk_dtype_get(type)->bytes, &v, 1);
    return v;
}

/* A bf16 in f16's normal range, which holds it exactly; or 0. */
static bool is_exact(float v) {
    const float size = fabsf(v);
    return size == 0 || (size >= 0x1p-14f && size < 65536.0f);
}

typedef struct {
    const kk_matrix *m;
    float most[MOST_THREADS]; /* of scales, by thread */
    bool unfit[MOST_THREADS];
    float largest;
} planes_job;

static void find_largest(void *arg, int64_t begin, int64_t end, int32_t thread) {
    planes_job *j = arg;
    const kk_planes *p = &j->m->planes;
    float most = j->most[thread]; /* kept apart: threads share the array's cache line */
    for (int64_t i = begin; i < end; i++) {
        const float size = fabsf(plane_at(p->type, p->scales, (size_t)i));
        if (size > most) most = size;
    }
    j->most[thread] = most;
}

/* f16 holds scales as well as those that are f16 in other types, or within a small part of the
 * matrix's largest; and biases within a small part of a step. */
static void check_planes(void *arg, int64_t begin, int64_t end, int32_t thread) {
    planes_job *j = arg;
    const kk_planes *p = &j->m->planes;
    for (int64_t i = begin; i < end; i++) {
        const float scale = plane_at(p->type, p->scales, (size_t)i);
        const float bias = plane_at(p->type, p->biases, (size_t)i), size = fabsf(scale);
        if (p->type == KK_BF16 && is_exact(scale) && is_exact(bias)) continue;
        if (!(off_in_f16(scale) <= fmaxf(size * 0x1p-11f, j->largest * 0x1p-16f)) ||
            !(off_in_f16(bias) <=
              fmaxf(fmaxf(fabsf(bias), size) * 0x1p-11f, j->largest * 0x1p-14f)))
            j->unfit[thread] = true;
    }
}

/* Whether f16 holds the scales and biases of an affine matrix. */
static bool planes_fit(kk_threads *threads, const kk_matrix *m) {
    const int64_t n = m->n_mat * m->n_out * m->n_in / kk_dtype_get(m->dtype)->values;
    planes_job j = {.m = m};
    bool fit = true;
    kk_threads_loop(threads, n, PIECE, find_largest, &j);
    for (int32_t i = 0; i < MOST_THREADS; i++) j.largest = fmaxf(j.largest, j.most[i]);
    kk_threads_loop(threads, n, PIECE, check_planes, &j);
    for (int32_t i = 0; i < MOST_THREADS; i++) fit &= !j.unfit[i];
    return fit;
}

/* ---- rows of packed weights ------------------------------------------------------------------ */

/* One of up to three spans of the file that a packed matrix consists of: codes, scales, biases. */
typedef struct {
    const uint8_t *from;
    size_t bytes, at; /* at: offset in the staging buffer */
} span;

typedef struct {
    span of[3];
    int32_t n;
    uint8_t *to;
} spans_job;

/* Copies bytes [begin, end) of the spans, one after the other. */
static void copy_spans(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const spans_job *j = arg;
    size_t from = (size_t)begin, left = (size_t)(end - begin);
    for (int32_t i = 0; i < j->n && left; i++) {
        const span *s = &j->of[i];
        if (from >= s->bytes) {
            from -= s->bytes;
            continue;
        }
        const size_t n = s->bytes - from < left ? s->bytes - from : left;
        memcpy(j->to + s->at + from, s->from + from, n);
        left -= n;
        from = 0;
    }
}

/* Bytes of a row of scales, or of biases; 0: the type has none. */
static size_t plane_row(const kk_matrix *m) {
    if (!kk_dtype_is_affine(m->dtype)) return 0;
    return (size_t)(m->n_in / kk_dtype_get(m->dtype)->values) *
           (size_t)kk_dtype_get(m->planes.type)->bytes;
}

/* Copies rows [row, row + n) of all matrices' rows through the next half, and packs them. */
static kk_status pack_rows(kk_dev *dev, const kk_matrix *m, const kk_weight *w, int64_t row,
                           int64_t n, kk_err *err) {
    stage *s = dev->stage;
    const int32_t at = s->at;
    const kk_dtype_info *info = kk_dtype_get(m->dtype);
    const bool affine = kk_dtype_is_affine(m->dtype);
    const size_t plane = plane_row(m), rows = (size_t)n, first = (size_t)row;
    size_t row_bytes, total = 0;
    kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes);
    spans_job j = {.of = {{(const uint8_t *)m->data + first * row_bytes, rows * row_bytes, 0}},
                   .n = affine ? 3 : 1,
                   .to = s->half[at].host};
    if (affine) {
        j.of[1] = (span){m->planes.scales + first * plane, rows * plane, 0};
        j.of[2] = (span){m->planes.biases + first * plane, rows * plane, 0};
    }
    for (int32_t i = 0; i < j.n; i++) {
        j.of[i].at = total;
        total += j.of[i].bytes;
    }
    KK_CUDA_TRY(cudaEventSynchronize(s->half[at].free), "copying weights", err);
    kk_threads_loop(s->threads, (int64_t)total, PIECE, copy_spans, &j);
    uint8_t *device = s->half[at].device;
    KK_CUDA_TRY(
        cudaMemcpyAsync(device, s->half[at].host, total, cudaMemcpyHostToDevice, dev->stream),
        "copying weights", err);
    strips_at strips;
    KK_TRY(begin_strips(dev, w, row, n, &strips, err));
    const kk_cu_pack pack = {.to = strips.to,
                             .w = w->w,
                             .from = device,
                             .scales = affine ? device + j.of[1].at : NULL,
                             .biases = affine ? device + j.of[2].at : NULL,
                             .dtype = (int32_t)m->dtype,
                             .plane_dtype = (int32_t)m->planes.type,
                             .row_bytes = row_bytes,
                             .block_bytes = (size_t)info->bytes,
                             .group = info->values,
                             .row = row,
                             .n_rows = n};
    KK_CUDA_TRY(kk_cu_run_pack((kk_cu_at){.stream = dev->stream, .sms = dev->sms}, &pack),
                "packing weights", err);
    KK_TRY(end_strips(dev, w, &strips, err));
    KK_CUDA_TRY(cudaEventRecord(s->half[at].free, dev->stream), "recording an event", err);
    s->at = (at + 1) % HALVES;
    return KK_OK;
}

static kk_status pack_weight(kk_dev *dev, const kk_matrix *m, const kk_weight *w, kk_err *err) {
    size_t row_bytes;
    kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes);
    const int64_t most = (int64_t)(KK_CUDA_STAGE / (row_bytes + 2 * plane_row(m)));
    const int64_t rows = m->n_mat * m->n_out;
    if (most < 1)
        return kk_fail(err, KK_EINVAL, "rows of %lld values are too wide", (long long)m->n_in);
    for (int64_t row = 0; row < rows;) {
        const int64_t n = rows_of_chunk(w, row, most);
        if (n < 1)
            return kk_fail(err, KK_EINVAL, "rows of %lld values are too wide", (long long)m->n_in);
        KK_TRY(pack_rows(dev, m, w, row, n, err));
        row += n;
    }
    return KK_OK;
}

/* ---- rows of bf16 planes --------------------------------------------------------------------- */

typedef struct {
    const kk_matrix *m;
    const uint8_t *from; /* first row in the file */
    size_t row_bytes;
    kk_planes planes; /* affine types: of the first row */
    void *to;         /* rows as stored, or as f32 */
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
    const bool affine = kk_dtype_is_affine(j->m->dtype);
    const size_t groups = n_in / (size_t)kk_dtype_get(j->m->dtype)->values;
    for (int64_t r = begin; r < end; r++, from += j->row_bytes, to += n_in)
        if (affine)
            kk_dequantize_affine(j->m->dtype, from, kk_planes_at(j->planes, groups * (size_t)r), to,
                                 n_in);
        else
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
    if (kk_dtype_is_affine(m->dtype))
        j.planes = kk_planes_at(m->planes, (size_t)(mat * m->n_out + row) * (size_t)m->n_in /
                                               (size_t)kk_dtype_get(m->dtype)->values);
    KK_CUDA_TRY(cudaEventSynchronize(s->half[at].free), "copying weights", err);
    kk_threads_loop(s->threads, n, (int64_t)(PIECE / j.row_bytes) + 1, copy_rows, &j);
    const size_t bytes = (size_t)n * (bf16 ? j.row_bytes : (size_t)m->n_in * sizeof(float));
    KK_CUDA_TRY(cudaMemcpyAsync(s->half[at].device, s->half[at].host, bytes, cudaMemcpyHostToDevice,
                                dev->stream),
                "copying weights", err);
    strips_at strips;
    KK_TRY(begin_strips(dev, w, mat * m->n_out + row, n, &strips, err));
    const kk_cu_lay lay = {strips.to, w->w, s->half[at].device, bf16, mat, row, n};
    KK_CUDA_TRY(kk_cu_run_lay((kk_cu_at){.stream = dev->stream, .sms = dev->sms}, &lay),
                "laying out weights", err);
    KK_TRY(end_strips(dev, w, &strips, err));
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
        for (int64_t row = 0; row < m->n_out;) {
            const int64_t left = m->n_out - row;
            const int64_t n = rows_of_chunk(w, mat * m->n_out + row, left < most ? left : most);
            if (n < 1)
                return kk_fail(err, KK_EINVAL, "rows of %lld values are too wide",
                               (long long)m->n_in);
            KK_TRY(lay_rows(dev, m, w, mat, row, n, err));
            row += n;
        }
    return KK_OK;
}

/* ---- weights ------------------------------------------------------------------------------- */

static kk_cu_weight shape_of(const kk_dev *dev, const kk_matrix *m) {
    const int64_t steps = (m->n_in + 31) / 32;
    int32_t encoding = encoding_of(m->dtype);
    if (kk_dtype_is_affine(m->dtype) && !planes_fit(dev->stage->threads, m)) encoding = KK_W_BF16;
    return (kk_cu_weight){.n_mat = m->n_mat,
                          .n_out = m->n_out,
                          .n_in = m->n_in,
                          .strips = (int32_t)((m->n_out + 15) / 16 * 2),
                          .wrap = (int32_t)(steps < 8 ? 8 : steps),
                          .planes = encoding == KK_W_BF16 ? planes_of(m) : 1,
                          .encoding = encoding,
                          .words = KK_CU_WORDS(encoding)};
}

/* Experts' weights are placed in pieces where there may be more than fit. */
static kk_status allocate(kk_dev *dev, const kk_matrix *m, kk_weight *w, kk_err *err) {
    void *data = NULL;
    size_t row_bytes;
    const bool divides = m->n_mat > 1 && m->n_mat <= KK_CU_EXPERTS;
    kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes);
    const size_t share = (size_t)(m->n_mat * m->n_out) * (row_bytes + 2 * plane_row(m));
    if (divides && kk_cuda_offloads(dev)) return kk_cuda_offload_new(dev, w, share, err);
    const kk_status st = kk_cuda_hold(dev, w->bytes, " of weights", &data, err);
    if (st != KK_OK)
        return divides && kk_cuda_offload_new(dev, w, share, NULL) == KK_OK ? KK_OK : st;
    w->w.data = data;
    dev->weights += (int64_t)w->bytes;
    KK_CUDA_TRY(cudaMemsetAsync(data, 0, w->bytes, dev->stream), "clearing", err);
    return KK_OK;
}

kk_status kk_cuda_weight_new(kk_dev *dev, const kk_matrix *m, kk_weight **out, kk_err *err) {
    *out = NULL;
    size_t row_bytes;
    if (!kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes))
        return kk_fail(err, KK_EINVAL, "rows of %lld values cannot be stored as %s",
                       (long long)m->n_in, kk_dtype_get(m->dtype)->name);
    kk_weight *w = kk_zalloc(sizeof *w);
    if (!w) return kk_fail(err, KK_ENOMEM, "no memory for a weight");
    kk_status st = stage_open(dev, err);
    if (st == KK_OK) {
        w->w = shape_of(dev, m);
        w->bytes = (size_t)m->n_mat * (size_t)w->w.strips * (size_t)(w->w.wrap * w->w.planes) *
                   (size_t)w->w.words * 16;
        st = allocate(dev, m, w, err);
    }
    if (st == KK_OK)
        st = w->w.encoding == KK_W_BF16 ? fill_weight(dev, m, w, err) : pack_weight(dev, m, w, err);
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
    if (w->placed) {
        kk_cuda_offload_free(dev, w);
    } else if (w->w.data) {
        dev->weights -= (int64_t)w->bytes;
        kk_cuda_let_go(dev, (void *)(uintptr_t)w->w.data, w->bytes);
    }
    kk_free(w);
}
