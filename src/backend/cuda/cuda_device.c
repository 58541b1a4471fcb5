/* cuda_device.c - opens and closes the CUDA device, its buffers and weights, and lists its
 * operations for the program that loads this module.
 *
 * All work goes to one stream. */
#include "backend/cuda/cuda_offload.h"

#include <stdio.h>

/* ---- graphs -------------------------------------------------------------------------------- */

static void graph_drop(kk_cuda_graph *g) {
    if (g->exec) cudaGraphExecDestroy(g->exec);
    *g = (kk_cuda_graph){.ops = g->ops, .views = g->views}; /* the arrays stay */
}

static void drop_all_graphs(kk_dev *dev) {
    for (int i = 0; i < KK_CUDA_GRAPHS; i++) graph_drop(&dev->graphs[i]);
}

/* Whether an operation of the graph has this pointer among its arguments. */
static bool graph_uses(const kk_cuda_graph *g, const void *p) {
    const uint8_t *at = (const uint8_t *)g->ops;
    const size_t bytes = (size_t)g->n_ops * sizeof *g->ops;
    for (size_t i = 0; i + sizeof p <= bytes; i += sizeof p)
        if (memcmp(at + i, &p, sizeof p) == 0) return true;
    return false;
}

void kk_cuda_forget(kk_dev *dev, const void *p) {
    kk_cuda_drop_decoders(dev, p);
    for (int i = 0; i < KK_CUDA_GRAPHS; i++)
        if (graph_uses(&dev->graphs[i], p)) graph_drop(&dev->graphs[i]);
}

/* ---- errors and memory --------------------------------------------------------------------- */

kk_status kk_cuda_fail(kk_err *err, cudaError_t e, const char *what) {
    (void)cudaGetLastError();
    return kk_fail(err, e == cudaErrorMemoryAllocation ? KK_ENOMEM : KK_EDEVICE,
                   "the GPU failed at %s: %s", what, cudaGetErrorString(e));
}

static bool within_limit(const kk_dev *dev, size_t bytes) {
    return !dev->limit || (bytes <= INT64_MAX / 2 && dev->held + (int64_t)bytes <= dev->limit);
}

/* Once more where pieces of weights have given way. */
static cudaError_t try_to_hold(kk_dev *dev, size_t bytes, void **out) {
    if (!within_limit(dev, bytes) &&
        (!kk_cuda_evict_experts(dev, bytes) || !within_limit(dev, bytes)))
        return cudaErrorMemoryAllocation;
    const cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    if (e != cudaErrorMemoryAllocation) return e;
    (void)cudaGetLastError();
    return kk_cuda_evict_experts(dev, bytes) ? cudaMalloc(out, bytes ? bytes : 1) : e;
}

kk_status kk_cuda_hold(kk_dev *dev, size_t bytes, const char *what, void **out, kk_err *err) {
    size_t free = 0, total = 0;
    *out = NULL;
    const cudaError_t e =
        kk_fault_point() ? cudaErrorMemoryAllocation : try_to_hold(dev, bytes, out);
    if (e == cudaSuccess) {
        dev->held += (int64_t)bytes;
        return KK_OK;
    }
    (void)cudaGetLastError();
    *out = NULL;
    if (!within_limit(dev, bytes))
        return kk_fail(err, KK_ENOMEM,
                       "the GPU is to hold %zu bytes%s more: %lld of the %lld that `gpu_memory` "
                       "allows are taken",
                       bytes, what, (long long)dev->held, (long long)dev->limit);
    cudaMemGetInfo(&free, &total);
    return kk_fail(err, KK_ENOMEM,
                   "the GPU cannot hold %zu bytes%s more: %zu of its %zu bytes are free", bytes,
                   what, free, total);
}

void kk_cuda_let_go(kk_dev *dev, void *p, size_t bytes) {
    if (!p) return;
    cudaFree(p);
    dev->held -= (int64_t)bytes;
}

static kk_status take(kk_dev *dev, kk_mem_category c, size_t bytes, void **out, kk_err *err) {
    *out = NULL;
    if (!kk_mem_try_count(dev->mem, c, (int64_t)bytes))
        return kk_fail(err, KK_ENOMEM, "%zu bytes more on the GPU pass the memory limit", bytes);
    const kk_status st = kk_cuda_hold(dev, bytes, "", out, err);
    if (st != KK_OK) kk_mem_count(dev->mem, c, -(int64_t)bytes);
    return st;
}

static void give(kk_dev *dev, kk_mem_category c, void *p, size_t bytes) {
    if (!p) return;
    kk_cuda_let_go(dev, p, bytes);
    kk_mem_count(dev->mem, c, -(int64_t)bytes);
}

kk_status kk_cuda_take(kk_dev *dev, size_t bytes, void **out, kk_err *err) {
    return take(dev, KK_MEM_WORKSPACE, bytes, out, err);
}
kk_status kk_cuda_take_for(kk_dev *dev, kk_mem_category c, size_t bytes, void **out, kk_err *err) {
    return take(dev, c, bytes, out, err);
}
void kk_cuda_give_for(kk_dev *dev, kk_mem_category c, void *p, size_t bytes) {
    give(dev, c, p, bytes);
}

void kk_cuda_give(kk_dev *dev, void *p, size_t bytes) { give(dev, KK_MEM_WORKSPACE, p, bytes); }

static kk_status fit(kk_dev *dev, void **data, size_t *have, size_t bytes, kk_err *err) {
    void *p;
    if (bytes <= *have) return KK_OK;
    KK_TRY(kk_cuda_sync(dev, err)); /* queued work may use the old one */
    KK_TRY(take(dev, KK_MEM_WORKSPACE, bytes, &p, err));
    drop_all_graphs(dev); /* graphs contain the old address */
    give(dev, KK_MEM_WORKSPACE, *data, *have);
    *data = p;
    *have = bytes;
    return KK_OK;
}

kk_status kk_cuda_fit(kk_dev *dev, void **data, size_t *have, size_t bytes, kk_err *err) {
    return fit(dev, data, have, bytes, err);
}

/* ---- device -------------------------------------------------------------------------------- */

static void give_evicted(kk_dev *dev) {
    if (dev->decoders) kk_cuda_drop_decoders(dev, NULL);
    kk_free(dev->decoders);
    give(dev, KK_MEM_WORKSPACE, dev->sinks.data, dev->sinks.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->sums.data, dev->sums.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->lifted.data, dev->lifted.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->latent_sums.data, dev->latent_sums.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->stored_weight.data, dev->stored_weight.bytes);
}

static void cuda_close(kk_dev *dev) {
    if (!dev) return;
    if (dev->stream) cudaStreamSynchronize(dev->stream);
    drop_all_graphs(dev);
    kk_free(dev->graph_ops);
    kk_free(dev->graph_views);
    give_evicted(dev);
    give(dev, KK_MEM_WORKSPACE, dev->x.data, dev->x.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->z.data, dev->z.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->act.data, dev->act.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->logits.data, dev->logits.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->parts.data, dev->parts.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->each.data, dev->each.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->lists.data, dev->lists.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->barrier.data, dev->barrier.bytes);
    give(dev, KK_MEM_WORKSPACE, dev->control, KK_CUDA_CONTROL);
    give(dev, KK_MEM_WORKSPACE, dev->choose_scratch, sizeof *dev->choose_scratch);
    give(dev, KK_MEM_WORKSPACE, dev->top_scratch, sizeof *dev->top_scratch);
    give(dev, KK_MEM_WORKSPACE, dev->sample_scratch, sizeof *dev->sample_scratch);
    kk_cuda_drop_stage(dev);
    kk_cuda_drop_places(dev);
    kk_cuda_close_offload(dev);
    if (dev->picks) cudaFreeHost(dev->picks);
    if (dev->pick_logprobs) cudaFreeHost(dev->pick_logprobs);
    for (int i = 0; i < KK_PICKS; i++) {
        if (dev->pick_from[i]) cudaEventDestroy(dev->pick_from[i]);
        if (dev->pick_done[i]) cudaEventDestroy(dev->pick_done[i]);
        for (int end = 0; end < 2; end++)
            if (dev->lap[i][end]) cudaEventDestroy(dev->lap[i][end]);
    }
    for (int i = 0; i < KK_CUDA_CONTROLS; i++) {
        if (dev->control_host[i]) cudaFreeHost(dev->control_host[i]);
        if (dev->control_free[i]) cudaEventDestroy(dev->control_free[i]);
    }
    if (dev->stream) cudaStreamDestroy(dev->stream);
    kk_free(dev->q.ops);
    kk_free(dev->q.views);
    kk_free(dev->mega);
    kk_free(dev);
}

static kk_status open_picks(kk_dev *dev, kk_err *err) {
    void *p;
    KK_CUDA_TRY(cudaMallocHost(&p, sizeof(kk_cu_pick) * KK_PICKS * KK_CU_CHOOSE_ROWS),
                "taking pinned memory", err);
    dev->picks = p;
    KK_CUDA_TRY(cudaMallocHost(&p, sizeof(kk_cu_logprobs) * KK_PICKS * KK_CU_CHOOSE_ROWS),
                "taking pinned memory", err);
    memset(p, 0, sizeof(kk_cu_logprobs) * KK_PICKS * KK_CU_CHOOSE_ROWS);
    dev->pick_logprobs = p;
    for (int i = 0; i < KK_PICKS; i++)
        for (int end = 0; end < 2; end++) {
            KK_CUDA_TRY(cudaEventCreate(end ? &dev->pick_done[i] : &dev->pick_from[i]),
                        "making an event", err);
            KK_CUDA_TRY(cudaEventCreate(&dev->lap[i][end]), "making an event", err);
        }
    KK_TRY(take(dev, KK_MEM_WORKSPACE, sizeof *dev->top_scratch, &p, err));
    dev->top_scratch = p;
    KK_CUDA_TRY(cudaMemsetAsync(p, 0, sizeof *dev->top_scratch, dev->stream), "clearing", err);
    KK_TRY(take(dev, KK_MEM_WORKSPACE, sizeof *dev->choose_scratch, &p, err));
    dev->choose_scratch = p;
    KK_CUDA_TRY(cudaMemsetAsync(p, 0, sizeof *dev->choose_scratch, dev->stream), "clearing", err);
    KK_TRY(take(dev, KK_MEM_WORKSPACE, sizeof *dev->sample_scratch, &p, err));
    dev->sample_scratch = p;
    KK_CUDA_TRY(cudaMemsetAsync(p, 0, sizeof *dev->sample_scratch, dev->stream), "clearing", err);
    KK_CUDA_TRY(kk_cu_setup_sample(dev->sms, dev->sample_blocks), "preparing to sample", err);
    return KK_OK;
}

/* Checked here, because the driver reports no more than an invalid argument. */
static kk_status cuda_fits(kk_err *err) {
    int major = 0, minor = 0, shared = 0;
    KK_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
                "querying its compute capability", err);
    KK_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0),
                "querying its compute capability", err);
    KK_CUDA_TRY(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                "querying its shared memory", err);
    if (major < 8)
        return kk_fail(err, KK_EDEVICE,
                       "this GPU is sm_%d%d, and the kernels are for sm_80 and later: use `device` "
                       "cpu",
                       major, minor);
    if (shared >= KK_CU_SHARED_LEAST) return KK_OK;
    return kk_fail(err, KK_EDEVICE,
                   "this GPU (sm_%d%d) has %d bytes of shared memory for a block, and the kernels "
                   "take %d: use `device` cpu",
                   major, minor, shared, KK_CU_SHARED_LEAST);
}

static kk_status cuda_usable(kk_err *err) {
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) return cuda_fits(err);
    (void)cudaGetLastError();
    return kk_fail(err, KK_EDEVICE, "no NVIDIA GPU that CUDA can use: %s",
                   e != cudaSuccess ? cudaGetErrorString(e) : "none was found");
}

/* The persistent kernel needs a cooperative launch, and a block for every row. */
static kk_status check_mega(kk_dev *dev, kk_err *err) {
    int together = 0;
    KK_CUDA_TRY(cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, 0),
                "querying its properties", err);
    if (together && dev->sms >= KK_CU_ROWS) return KK_OK;
    kk_free(dev->mega);
    dev->mega = NULL;
    return KK_OK;
}

/* What a smaller chip has, for tests on a larger one. */
static const struct {
    const char *isa;
    int32_t shared_kb, sms;
} chips[] = {{"sm_80", 163, 108}, {"sm_86", 99, 82}, {"sm_89", 99, 128}, {"sm_120", 99, 170}};

/* isa: NULL, or the chip whose limits are kept. */
static kk_status set_limits(kk_dev *dev, const struct cudaDeviceProp *prop, const char *isa,
                            kk_err *err) {
    dev->sms = prop->multiProcessorCount;
    dev->shared = (int32_t)prop->sharedMemPerBlockOptin;
    if (!isa) return KK_OK;
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        if (strcmp(chips[i].isa, isa) != 0) continue;
        if (chips[i].shared_kb * 1024 < dev->shared) dev->shared = chips[i].shared_kb * 1024;
        if (chips[i].sms < dev->sms) dev->sms = chips[i].sms;
        return KK_OK;
    }
    return kk_fail(err, KK_EDEVICE,
                   "`isa` is '%.20s': of `device` cuda it is sm_80, sm_86, sm_89 or sm_120, whose "
                   "limits a larger GPU then keeps",
                   isa);
}

static kk_status open_gpu(kk_dev *dev, const char *isa, kk_err *err) {
    struct cudaDeviceProp prop;
    KK_TRY(cuda_usable(err));
    KK_CUDA_TRY(cudaSetDevice(0), "choosing a device", err);
    KK_CUDA_TRY(cudaGetDeviceProperties(&prop, 0), "querying its properties", err);
    snprintf(dev->name, sizeof dev->name, "%.50s sm_%d%d", prop.name, prop.major, prop.minor);
    KK_TRY(set_limits(dev, &prop, isa, err));
    KK_TRY(check_mega(dev, err));
    KK_CUDA_TRY(kk_cu_setup(dev->shared), "loading kernels", err);
    KK_CUDA_TRY(kk_cu_setup_gemm(), "loading kernels", err);
    KK_CUDA_TRY(kk_cu_setup_dense(dev->shared), "loading kernels", err);
    int32_t built_for = 0;
    KK_CUDA_TRY(kk_cu_built_for(&built_for), "loading kernels", err);
    dev->early = dev->early && built_for >= 90; /* older code does not wait for the kernel before */
    size_t left = 0, all = 0;
    KK_CUDA_TRY(cudaMemGetInfo(&left, &all), "querying its memory", err);
    dev->free_at_open = (int64_t)left;
    KK_CUDA_TRY(cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking), "making a stream",
                err);
    for (int i = 0; i < KK_CUDA_CONTROLS; i++) {
        void *p;
        KK_CUDA_TRY(cudaMallocHost(&p, KK_CUDA_CONTROL), "taking pinned memory", err);
        dev->control_host[i] = p;
        KK_CUDA_TRY(cudaEventCreateWithFlags(&dev->control_free[i], cudaEventDisableTiming),
                    "making an event", err);
    }
    void *p;
    KK_TRY(take(dev, KK_MEM_WORKSPACE, KK_CUDA_CONTROL, &p, err));
    dev->control = p;
    KK_TRY(fit(dev, &dev->barrier.data, &dev->barrier.bytes, 256, err));
    KK_CUDA_TRY(cudaMemsetAsync(dev->barrier.data, 0, dev->barrier.bytes, dev->stream),
                "clearing a barrier", err);
    KK_TRY(open_picks(dev, err));
    return fit(dev, &dev->parts.data, &dev->parts.bytes, KK_CUDA_PARTS_BYTES, err);
}

static kk_status cuda_open(kk_dev **out, const kk_dev_opts *opts, kk_err *err) {
    *out = NULL;
    kk_dev *dev = kk_zalloc(sizeof *dev);
    if (!dev) return kk_fail(err, KK_ENOMEM, "no memory for the device");
    dev->mem = opts->mem;
    dev->max_rows = opts->max_rows;
    dev->limit = opts->gpu_memory;
    dev->fuse = !opts->plain;
    dev->early = !opts->plain && !opts->late;
    dev->q.ops = kk_calloc(KK_CUDA_OPS, sizeof *dev->q.ops);
    dev->q.views = kk_calloc(KK_CUDA_VIEWS, sizeof *dev->q.views);
    dev->mega = kk_zalloc(sizeof *dev->mega);
    dev->decoders = kk_calloc(KK_CUDA_DECODERS, sizeof *dev->decoders);
    dev->graph_ops = kk_calloc((size_t)KK_CUDA_GRAPHS * KK_CUDA_GRAPH_OPS, sizeof *dev->graph_ops);
    dev->graph_views = kk_calloc((size_t)KK_CUDA_GRAPHS * KK_CUDA_VIEWS, sizeof *dev->graph_views);
    for (int i = 0; i < KK_CUDA_GRAPHS && dev->graph_ops && dev->graph_views; i++) {
        dev->graphs[i].ops = dev->graph_ops + (size_t)i * KK_CUDA_GRAPH_OPS;
        dev->graphs[i].views = dev->graph_views + (size_t)i * KK_CUDA_VIEWS;
    }
    kk_status st = KK_OK;
    if (!dev->q.ops || !dev->q.views || !dev->graph_ops || !dev->graph_views || !dev->mega ||
        !dev->decoders)
        st = kk_fail(err, KK_ENOMEM, "no memory for the device's queue");
    if (st == KK_OK) st = open_gpu(dev, opts->isa, err);
    if (st != KK_OK) {
        cuda_close(dev);
        return st;
    }
    *out = dev;
    return KK_OK;
}

/* ---- buffers ------------------------------------------------------------------------------- */

static kk_status buf_make(kk_dev *dev, kk_mem_category c, size_t bytes, kk_buf **out, kk_err *err) {
    *out = NULL;
    kk_buf *b = kk_zalloc(sizeof *b);
    if (!b) return kk_fail(err, KK_ENOMEM, "no memory for a buffer");
    b->bytes = bytes;
    b->category = c;
    kk_status st = take(dev, c, bytes, &b->data, err);
    if (st == KK_OK) {
        const cudaError_t e = cudaMemsetAsync(b->data, 0, bytes, dev->stream);
        if (e != cudaSuccess) st = kk_cuda_fail(err, e, "clearing a buffer");
    }
    if (st != KK_OK) {
        give(dev, c, b->data, bytes);
        kk_free(b);
        return st;
    }
    *out = b;
    return KK_OK;
}

static kk_status cuda_buf_new(kk_dev *dev, kk_mem_category c, size_t bytes, kk_buf **out,
                              kk_err *err) {
    return buf_make(dev, c, bytes, out, err);
}

/* Begins small.  A growing buffer moves and drops all graphs, so it grows seldom. */
static kk_status cuda_buf_reserve(kk_dev *dev, size_t bytes, kk_buf **out, kk_err *err) {
    const size_t first = bytes < KK_CUDA_GROW ? bytes : KK_CUDA_GROW;
    const size_t taken = first + KK_CUDA_SLACK;
    KK_TRY(buf_make(dev, KK_MEM_WORKSPACE, taken, out, err));
    kk_mem_count(dev->mem, KK_MEM_WORKSPACE, -(int64_t)taken); /* the user counts what it uses */
    (*out)->bytes = first;
    (*out)->most = bytes ? bytes : 1;
    return KK_OK;
}

kk_status kk_cuda_grow(kk_dev *dev, kk_buf *b, size_t bytes, kk_err *err) {
    void *p;
    if (bytes <= b->bytes) return KK_OK;
    if (bytes > b->most)
        return kk_fail(err, KK_EINVAL, "%zu bytes of a buffer of %zu", bytes, b->most);
    size_t grown = 2 * b->bytes > bytes ? 2 * b->bytes : bytes;
    if (grown > b->most) grown = b->most;
    KK_TRY(kk_cuda_sync(dev, err));
    KK_TRY(take(dev, KK_MEM_WORKSPACE, grown + KK_CUDA_SLACK, &p, err));
    kk_mem_count(dev->mem, KK_MEM_WORKSPACE, -(int64_t)(grown + KK_CUDA_SLACK));
    cudaError_t e = cudaMemcpyAsync(p, b->data, b->bytes, cudaMemcpyDeviceToDevice, dev->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(dev->stream);
    if (e != cudaSuccess) {
        kk_cuda_let_go(dev, p, grown + KK_CUDA_SLACK);
        return kk_cuda_fail(err, e, "growing a buffer");
    }
    drop_all_graphs(dev);
    kk_cuda_let_go(dev, b->data, b->bytes + KK_CUDA_SLACK);
    b->data = p;
    b->bytes = grown;
    return KK_OK;
}

static void cuda_buf_free(kk_dev *dev, kk_buf *b) {
    if (!b) return;
    kk_cuda_settle(dev);
    kk_cuda_forget(dev, b);
    if (b->most)
        kk_cuda_let_go(dev, b->data, b->bytes + KK_CUDA_SLACK);
    else
        give(dev, b->category, b->data, b->bytes);
    kk_free(b);
}

static kk_status check_range(const kk_buf *b, size_t off, size_t n, kk_err *err) {
    if (off <= b->bytes && n <= b->bytes - off) return KK_OK;
    return kk_fail(err, KK_EINVAL, "bytes %zu..%zu are outside a buffer of %zu", off, off + n,
                   b->bytes);
}

static kk_status cuda_write(kk_dev *dev, kk_buf *b, size_t off, const void *src, size_t n,
                            kk_err *err) {
    KK_TRY(check_range(b, off, n, err));
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(
        cudaMemcpyAsync((uint8_t *)b->data + off, src, n, cudaMemcpyHostToDevice, dev->stream),
        "writing a buffer", err);
    return kk_cuda_sync(dev, err);
}

static kk_status cuda_read(kk_dev *dev, const kk_buf *b, size_t off, void *dst, size_t n,
                           kk_err *err) {
    KK_TRY(check_range(b, off, n, err));
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(cudaMemcpyAsync(dst, (const uint8_t *)b->data + off, n, cudaMemcpyDeviceToHost,
                                dev->stream),
                "reading a buffer", err);
    return kk_cuda_sync(dev, err);
}

/* ---- scratch ------------------------------------------------------------------------------- */

static kk_status prepare_weight(kk_dev *dev, const kk_weight *w, int32_t n_used, kk_err *err) {
    const size_t rows = (size_t)dev->max_rows, slots = rows * (size_t)(n_used > 1 ? n_used : 1);
    const size_t in = (size_t)w->w.wrap * 32;
    KK_TRY(fit(dev, &dev->x.data, &dev->x.bytes, rows * in * 2, err));
    if (n_used > 1) KK_TRY(fit(dev, &dev->act.data, &dev->act.bytes, slots * in * 2, err));
    /* Rows between the stages of a fused layer. */
    return fit(dev, &dev->z.data, &dev->z.bytes, (size_t)KK_CU_ROWS * in * 2 * KK_CUDA_FLOWS, err);
}

static kk_status prepare_experts(kk_dev *dev, int32_t n_expert, int32_t n_used, int32_t ffn,
                                 int64_t hidden, kk_err *err) {
    if (n_expert > KK_CU_EXPERTS || n_used > KK_CU_USED)
        return kk_fail(err, KK_EDEVICE,
                       "%d of %d experts: the GPU's kernels choose up to %d of up to %d", n_used,
                       n_expert, KK_CU_USED, KK_CU_EXPERTS);
    const size_t rows = (size_t)dev->max_rows, slots = rows * (size_t)n_used;
    size_t wide = ((size_t)ffn + 31) / 32 * 32, in = ((size_t)hidden + 31) / 32 * 32;
    wide = wide < 256 ? 256 : wide;
    in = in < 256 ? 256 : in;
    KK_TRY(fit(dev, &dev->x.data, &dev->x.bytes, rows * in * 2, err));
    KK_TRY(fit(dev, &dev->act.data, &dev->act.bytes, slots * wide * 2, err));
    /* A router's logits are up to eight K slices. */
    const size_t parts = 8 * (rows > KK_CU_ROWS ? rows : KK_CU_ROWS);
    KK_TRY(fit(dev, &dev->logits.data, &dev->logits.bytes, parts * (size_t)n_expert * 4, err));
    if (rows <= KK_CU_ROWS) return KK_OK;
    /* More than 16 rows: each expert's result of a row, before they are added. */
    const size_t at_once = rows < KK_CUDA_EXPERT_ROWS ? rows : KK_CUDA_EXPERT_ROWS;
    const size_t pairs = at_once * (size_t)n_used;
    KK_TRY(fit(dev, &dev->lists.data, &dev->lists.bytes,
               kk_cu_experts_scratch((int32_t)pairs, n_expert), err));
    return fit(dev, &dev->each.data, &dev->each.bytes, pairs * (size_t)hidden * 4, err);
}

static kk_status cuda_prepare(kk_dev *dev, const kk_prepare_args *a, kk_err *err) {
    if (a->w) KK_TRY(prepare_weight(dev, a->w, a->n_used, err));
    if (a->experts.n_expert)
        KK_TRY(prepare_experts(dev, a->experts.n_expert, a->experts.n_used, a->experts.ffn,
                               a->experts.hidden, err));
    return a->evicted.slot ? kk_cuda_prepare_evicted(dev, a, err) : KK_OK;
}

/* ---- pages --------------------------------------------------------------------------------- */

/* The pool counts its pages as they are used. */
static kk_status cuda_pages_take(kk_dev *dev, size_t bytes, uint8_t **out, kk_err *err) {
    void *p = NULL;
    *out = NULL;
    KK_TRY(take(dev, KK_MEM_WORKSPACE, bytes, &p, err));
    kk_mem_count(dev->mem, KK_MEM_WORKSPACE, -(int64_t)bytes);
    /* Attention reads pages whole and masks rows past the last; zeroing keeps memory checkers
     * quiet. */
    const cudaError_t e = cudaMemsetAsync(p, 0, bytes, dev->stream);
    if (e != cudaSuccess) {
        kk_cuda_let_go(dev, p, bytes);
        return kk_cuda_fail(err, e, "clearing pages");
    }
    *out = p;
    return KK_OK;
}

static void cuda_pages_give(kk_dev *dev, uint8_t *base, size_t bytes) {
    kk_cuda_settle(dev);
    kk_cuda_let_go(dev, base, bytes);
}

/* An error is reported by the next flush. */
static void cuda_page_copy(kk_dev *dev, uint8_t *to, const uint8_t *from, size_t n) {
    kk_status st = kk_cuda_flush(dev, NULL);
    if (st == KK_OK) {
        const cudaError_t e = cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, dev->stream);
        if (e != cudaSuccess) st = kk_cuda_fail(NULL, e, "copying a page");
    }
    if (st != KK_OK) dev->lost = st;
}

static kk_status cuda_page_move(kk_dev *dev, void *to, const void *from, size_t n, kk_err *err) {
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, dev->stream), "moving a page", err);
    return kk_cuda_sync(dev, err);
}

/* ---- what it says of itself ---------------------------------------------------------------- */

static void cuda_counts(const kk_dev *dev, kk_dev_counts *out) {
    *out = dev->counts;
    out->wgmma = kk_cu_wgmma_launches();
}

static void cuda_describe(const kk_dev *dev, kk_dev_facts *out) {
    size_t left = 0, all = 0;
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) (void)cudaGetLastError();
    const int64_t allowed = dev->limit ? dev->limit - dev->held : (int64_t)left;
    *out = (kk_dev_facts){.threads = dev->sms,
                          .memory = {.total = (int64_t)all,
                                     .free = allowed < (int64_t)left ? allowed : (int64_t)left,
                                     .taken = dev->free_at_open - (int64_t)left,
                                     .weights = dev->weights + kk_cuda_offload_bytes(dev)}};
    snprintf(out->isa, sizeof out->isa, "%s", dev->name);
}

/* The read bandwidth: the best of five passes over `bytes`, which exceed any cache. */
static kk_status skim(kk_dev *dev, void *data, size_t bytes, cudaEvent_t from, cudaEvent_t to,
                      double *out, kk_err *err) {
    float ms = 0, best = 0;
    const kk_cu_skim a = {data, bytes, data};
    KK_CUDA_TRY(cudaMemsetAsync(data, 0, bytes, dev->stream), "clearing", err);
    for (int i = 0; i < 6; i++) {
        cudaEventRecord(from, dev->stream);
        KK_CUDA_TRY(kk_cu_run_skim((kk_cu_at){.stream = dev->stream, .sms = dev->sms}, &a),
                    "reading", err);
        cudaEventRecord(to, dev->stream);
        KK_TRY(kk_cuda_sync(dev, err));
        KK_CUDA_TRY(cudaEventElapsedTime(&ms, from, to), "timing", err);
        if (i > 0 && (best == 0 || ms < best)) best = ms;
    }
    *out = best > 0 ? (double)bytes / (1e-3 * (double)best) : 0;
    return KK_OK;
}

static kk_status cuda_read_rate(kk_dev *dev, size_t bytes, double *out, kk_err *err) {
    void *p = NULL;
    cudaEvent_t from = NULL, to = NULL;
    *out = 0;
    KK_TRY(kk_cuda_sync(dev, err));
    KK_TRY(take(dev, KK_MEM_WORKSPACE, bytes, &p, err));
    cudaError_t e = cudaEventCreate(&from);
    if (e == cudaSuccess) e = cudaEventCreate(&to);
    const kk_status st = e == cudaSuccess ? skim(dev, p, bytes, from, to, out, err)
                                          : kk_cuda_fail(err, e, "making an event");
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    give(dev, KK_MEM_WORKSPACE, p, bytes);
    return st;
}

/* ---- the table ----------------------------------------------------------------------------- */

static const kk_page_ops cuda_pages = {cuda_pages_take, cuda_pages_give, cuda_page_copy,
                                       cuda_page_move};
static const kk_latent_ops cuda_latents = {kk_cuda_keep, kk_cuda_keep_scales};
static const kk_sum_ops cuda_sums = {kk_cuda_gram, kk_cuda_squares};
static const kk_instruments cuda_instruments = {.sync = kk_cuda_sync,
                                                .counts = cuda_counts,
                                                .read_rate = cuda_read_rate,
                                                .fault_after = kk_fault_after,
                                                .offloaded = kk_cuda_offloaded,
                                                .replay = kk_cuda_replay};

static const kk_backend cuda_backend = {
    .name = "cuda",
    .rows = 2048,
    .queues = true,
    .sample_vocab = KK_CU_SAMPLE_VOCAB,
    .own_memory = true,
    .angles = true,
    .pages = &cuda_pages,
    .latents = &cuda_latents,
    .sums = &cuda_sums,
    .instruments = &cuda_instruments,
    .usable = cuda_usable,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .stores = kk_cuda_stores,
    .expect = kk_cuda_expect,
    .buf_new = cuda_buf_new,
    .buf_reserve = cuda_buf_reserve,
    .buf_grow = kk_cuda_grow,
    .buf_free = cuda_buf_free,
    .write = cuda_write,
    .read = cuda_read,
    .weight_new = kk_cuda_weight_new,
    .weight_free = kk_cuda_weight_free,
    .weight_row = kk_cuda_weight_row,
    .prepare = cuda_prepare,
    .embed = kk_cuda_embed,
    .norm = kk_cuda_norm,
    .linear = kk_cuda_linear,
    .rope = kk_cuda_rope,
    .store = kk_cuda_store,
    .attend = kk_cuda_attend,
    .residual = kk_cuda_residual,
    .glu = kk_cuda_glu,
    .route = kk_cuda_route,
    .experts = kk_cuda_experts,
    .ple = kk_cuda_ple,
    .gather = kk_cuda_gather,
    .softcap = kk_cuda_softcap,
    .argmax = kk_cuda_argmax,
    .ids = kk_cuda_ids,
    .layer = kk_cuda_layer,
    .head = kk_cuda_head,
    .choose = kk_cuda_choose,
    .picked = kk_cuda_picked,
    .lap = kk_cuda_lap,
    .lap_s = kk_cuda_lap_s,
};

/* The module's only symbol.  `bytes` is the caller's sizeof(kk_backend): another value is another
 * build. */
__attribute__((visibility("default"))) const kk_backend *kk_cuda_module(size_t bytes);
const kk_backend *kk_cuda_module(size_t bytes) {
    return bytes == sizeof cuda_backend ? &cuda_backend : NULL;
}
