/* cuda_offload.c - see cuda_offload.h. */
#include "backend/cuda/cuda_offload.h"

#include "backend/cuda/cuda_vmm.h"
#include "backend/cuda/offload_ops.h"
#include "backend/placement.h"

enum {
    EVERY = 32,           /* forwards between two looks at what was read */
    SLOTS = 64,           /* pieces that are copied at a time */
    MOVES = 2 * SLOTS,    /* most pieces that move at a look */
    WEIGHTS = 768,        /* most that are placed: three of each layer */
    ROW_BYTES = 384 << 10 /* of workspace for a row of a forward, nearly */
};
/* Of the memory that this device may have, part of which stays free for K/V rows: pieces that are
 * evicted for them are while a prompt waits. */
enum { SPARE_SHARE = 32, SPARE_LEAST = 32 << 20, SPARE_MOST = 1 << 30 };

typedef struct {
    CUdeviceptr at;
    int32_t pieces, made, mapped; /* made: memory[0, made) exists; mapped: so much of it */
    kk_cuda_memory *memory;       /* NULL: unused */
} placed;

/* Memory that no piece has at the moment. */
typedef struct {
    kk_cuda_memory of[SLOTS];
    int32_t n;
} spares;

typedef struct kk_cuda_offload {
    kk_cuda_vmm vmm;
    kk_placement placement;
    placed weight[WEIGHTS];
    int64_t budget, experts; /* bytes for experts when they were expected; of so many in the file */
    CUdeviceptr stage;       /* [SLOTS] pieces of addresses, to copy through */
    spares device, host;
    uint32_t *reads;      /* [WEIGHTS][KK_CU_EXPERTS], on the device */
    uint32_t *reads_host; /* pinned */
    int64_t forwards;
    int64_t swaps, evicted;
} offload;

static size_t reads_bytes(void) { return sizeof(uint32_t) * WEIGHTS * KK_CU_EXPERTS; }

/* ---- pieces of memory ----------------------------------------------------------------------- */

static kk_status take_memory(kk_dev *dev, bool on_device, kk_cuda_memory *out, kk_err *err) {
    offload *o = dev->offload;
    spares *s = on_device ? &o->device : &o->host;
    const int64_t bytes = (int64_t)o->vmm.piece;
    if (s->n) {
        *out = s->of[--s->n];
        return KK_OK;
    }
    if (on_device && dev->limit && dev->held + bytes > dev->limit)
        return kk_fail(err, KK_ENOMEM, "%lld bytes more on the GPU pass `gpu_memory`",
                       (long long)bytes);
    KK_TRY(kk_cuda_vmm_make(&o->vmm, on_device, out, err));
    if (on_device) dev->held += bytes;
    return KK_OK;
}

static void drop_memory(kk_dev *dev, bool on_device, kk_cuda_memory m) {
    kk_cuda_vmm_release(&dev->offload->vmm, m);
    if (on_device) dev->held -= (int64_t)dev->offload->vmm.piece;
}

static void give_memory(kk_dev *dev, bool on_device, kk_cuda_memory m) {
    spares *s = on_device ? &dev->offload->device : &dev->offload->host;
    if (s->n < SLOTS)
        s->of[s->n++] = m;
    else
        drop_memory(dev, on_device, m);
}

static void drop_spares(kk_dev *dev, bool on_device) {
    spares *s = on_device ? &dev->offload->device : &dev->offload->host;
    while (s->n) drop_memory(dev, on_device, s->of[--s->n]);
}

/* Host memory for pieces that will be swapped: making it takes the system longer than all else of a
 * swap. */
static void take_spares(kk_dev *dev) {
    offload *o = dev->offload;
    kk_cuda_memory m;
    if (o->placement.here == o->placement.pieces) return;
    while (o->host.n < SLOTS && kk_cuda_vmm_make(&o->vmm, false, &m, NULL) == KK_OK)
        give_memory(dev, false, m);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static kk_status fill_offload(kk_dev *dev, kk_err *err) {
    offload *o = dev->offload;
    void *p = NULL;
    KK_TRY(kk_cuda_vmm_open(&o->vmm, err));
    kk_placement_open(&o->placement, o->vmm.piece);
    KK_TRY(kk_cuda_vmm_reserve(&o->vmm, SLOTS * o->vmm.piece, &o->stage, err));
    KK_TRY(kk_cuda_take(dev, reads_bytes(), &p, err));
    o->reads = p;
    KK_CUDA_TRY(cudaMemsetAsync(p, 0, reads_bytes(), dev->stream), "clearing counts", err);
    p = NULL;
    KK_CUDA_TRY(kk_fault_point() ? cudaErrorMemoryAllocation : cudaMallocHost(&p, reads_bytes()),
                "taking pinned memory", err);
    o->reads_host = p;
    KK_CUDA_TRY(kk_cu_setup_count(), "loading kernels", err);
    return KK_OK;
}

static kk_status open_offload(kk_dev *dev, kk_err *err) {
    if (dev->offload) return KK_OK;
    dev->offload = kk_zalloc(sizeof *dev->offload);
    if (!dev->offload) return kk_fail(err, KK_ENOMEM, "no memory to place weights");
    const kk_status st = fill_offload(dev, err);
    if (st != KK_OK) kk_cuda_close_offload(dev);
    return st;
}

void kk_cuda_close_offload(kk_dev *dev) {
    offload *o = dev->offload;
    if (!o) return;
    drop_spares(dev, true);
    drop_spares(dev, false);
    if (o->stage) kk_cuda_vmm_unreserve(&o->vmm, o->stage, SLOTS * o->vmm.piece);
    kk_cuda_give(dev, o->reads, reads_bytes());
    if (o->reads_host) cudaFreeHost(o->reads_host);
    kk_placement_free(&o->placement);
    kk_free(o);
    dev->offload = NULL;
}

bool kk_cuda_offloads(const kk_dev *dev) { return dev->offload != NULL; }

/* Bytes that can still be had on the device, and how many of these stay free. */
static int64_t bytes_left(const kk_dev *dev, int64_t *spare) {
    size_t left = 0, all = 0;
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) (void)cudaGetLastError();
    const int64_t allowed = dev->limit ? dev->limit - dev->held : (int64_t)left;
    const int64_t more = allowed < (int64_t)left ? allowed : (int64_t)left;
    const int64_t part = (more + dev->held) / SPARE_SHARE;
    *spare = part < SPARE_LEAST ? SPARE_LEAST : part > SPARE_MOST ? SPARE_MOST : part;
    return more;
}

kk_status kk_cuda_expect(kk_dev *dev, const kk_expected *w, kk_err *err) {
    kk_err why = {0};
    int64_t spare;
    const int64_t left = bytes_left(dev, &spare);
    const int64_t scratch = (int64_t)dev->max_rows * ROW_BYTES + spare;
    if (!dev->limit && w->experts + w->others + scratch <= left) return KK_OK;
    if (w->others > left)
        return kk_fail(err, KK_ENOMEM,
                       "the weights beside the experts' have %lld bytes, and %lld are left of the "
                       "GPU's memory, as far as `gpu_memory` allows",
                       (long long)w->others, (long long)(left > 0 ? left : 0));
    if (!w->experts) return KK_OK;
    const kk_status st = open_offload(dev, &why);
    if (st != KK_OK && w->experts + w->others > left)
        return kk_fail(err, st, "the weights have %lld bytes, and %lld are left on the GPU: %s",
                       (long long)(w->experts + w->others), (long long)left, why.msg);
    if (st != KK_OK) return KK_OK; /* it may just fit */
    const int64_t budget = left - w->others - scratch;
    dev->offload->budget = budget > 0 ? budget : 0;
    dev->offload->experts = w->experts;
    return KK_OK;
}

/* ---- weights -------------------------------------------------------------------------------- */

/* Pieces of a weight that begin on the device: its part of the budget, so that every
 * layer has as many. */
static int32_t pieces_here(const offload *o, int32_t pieces, size_t share) {
    if (o->experts <= 0) return 0;
    const double bytes = (double)o->budget * (double)share / (double)o->experts;
    const double n = bytes / (double)o->vmm.piece;
    return n < pieces ? (int32_t)n : pieces;
}

static void free_placed(kk_dev *dev, int32_t index) {
    offload *o = dev->offload;
    placed *p = &o->weight[index];
    for (int32_t i = 0; i < p->mapped; i++)
        kk_cuda_vmm_unmap(&o->vmm, p->at + (size_t)i * o->vmm.piece);
    for (int32_t i = 0; i < p->made; i++)
        drop_memory(dev, o->placement.weight[index].here[i], p->memory[i]);
    if (p->at) kk_cuda_vmm_unreserve(&o->vmm, p->at, (size_t)p->pieces * o->vmm.piece);
    kk_free(p->memory);
    *p = (placed){0};
    kk_placement_remove(&o->placement, index);
}

/* A piece that finds no memory on the device goes to the host's. */
static kk_status fill_placed(kk_dev *dev, int32_t index, int32_t here, kk_err *err) {
    offload *o = dev->offload;
    placed *p = &o->weight[index];
    const size_t piece = o->vmm.piece;
    p->memory = kk_calloc((size_t)p->pieces, sizeof *p->memory);
    if (!p->memory) return kk_fail(err, KK_ENOMEM, "no memory for a list of pieces");
    KK_TRY(kk_cuda_vmm_reserve(&o->vmm, (size_t)p->pieces * piece, &p->at, err));
    for (int32_t i = 0; i < p->pieces; i++) {
        const bool on_device = i < here && take_memory(dev, true, &p->memory[i], NULL) == KK_OK;
        if (!on_device) KK_TRY(take_memory(dev, false, &p->memory[i], err));
        kk_placement_put(&o->placement, (kk_piece){index, i}, on_device);
        p->made++;
        KK_TRY(kk_cuda_vmm_map(&o->vmm, p->at + (size_t)i * piece, p->memory[i], err));
        p->mapped++;
    }
    return kk_cuda_vmm_allow(&o->vmm, p->at, (size_t)p->pieces * piece, err);
}

kk_status kk_cuda_offload_new(kk_dev *dev, kk_weight *w, size_t share, kk_err *err) {
    int32_t index;
    KK_CUDA_TRY(cudaSetDevice(0), "choosing a device", err);
    KK_TRY(open_offload(dev, err));
    offload *o = dev->offload;
    KK_TRY(kk_placement_add(&o->placement, (int32_t)w->w.n_mat, w->bytes / (size_t)w->w.n_mat,
                            &index, err));
    if (index >= WEIGHTS) {
        kk_placement_remove(&o->placement, index);
        return kk_fail(err, KK_ENOMEM, "more than %d weights of experts are not placed", WEIGHTS);
    }
    placed *p = &o->weight[index];
    p->pieces = o->placement.weight[index].pieces;
    const kk_status st = fill_placed(dev, index, pieces_here(o, p->pieces, share), err);
    if (st != KK_OK) {
        free_placed(dev, index);
        return st;
    }
    w->w.data = (const void *)(uintptr_t)p->at;
    w->placed = index + 1;
    return KK_OK;
}

void kk_cuda_offload_free(kk_dev *dev, kk_weight *w) {
    if (w->placed) free_placed(dev, w->placed - 1);
    w->placed = 0;
}

/* A copy for each run of pieces that lie together. */
kk_status kk_cuda_offload_fill(kk_dev *dev, const kk_weight *w, size_t at, const void *from,
                               size_t n, kk_err *err) {
    const offload *o = dev->offload;
    const bool *here = o->placement.weight[w->placed - 1].here;
    const size_t piece = o->vmm.piece, end = at + n;
    uint8_t *to = (uint8_t *)(uintptr_t)w->w.data;
    for (size_t i = at; i < end;) {
        size_t next = i;
        while (next < end && here[next / piece] == here[i / piece]) next += piece - next % piece;
        if (next > end) next = end;
        KK_CUDA_TRY(cudaMemcpyAsync(to + i, (const uint8_t *)from + (i - at), next - i,
                                    cudaMemcpyDefault, dev->stream),
                    "placing weights", err);
        i = next;
    }
    return KK_OK;
}

/* ---- moving --------------------------------------------------------------------------------- */

static CUdeviceptr address_of(const offload *o, kk_piece p) {
    return o->weight[p.weight].at + (size_t)p.piece * o->vmm.piece;
}

/* Copies pieces to other memory, which is mapped meanwhile where they can be copied through. */
static kk_status copy_pieces(kk_dev *dev, const kk_piece *list, const kk_cuda_memory *to, int32_t n,
                             kk_err *err) {
    const offload *o = dev->offload;
    const size_t piece = o->vmm.piece;
    cudaError_t e = cudaSuccess;
    kk_status st = KK_OK;
    int32_t mapped = 0;
    for (; st == KK_OK && mapped < n; mapped++) {
        st = kk_cuda_vmm_map(&o->vmm, o->stage + (size_t)mapped * piece, to[mapped], err);
        if (st != KK_OK) break;
    }
    if (st == KK_OK) st = kk_cuda_vmm_allow(&o->vmm, o->stage, (size_t)n * piece, err);
    for (int32_t i = 0; st == KK_OK && e == cudaSuccess && i < n; i++)
        e = cudaMemcpyAsync((void *)(uintptr_t)(o->stage + (size_t)i * piece),
                            (const void *)(uintptr_t)address_of(o, list[i]), piece,
                            cudaMemcpyDefault, dev->stream);
    const cudaError_t idle = cudaStreamSynchronize(dev->stream);
    for (int32_t i = 0; i < mapped; i++) kk_cuda_vmm_unmap(&o->vmm, o->stage + (size_t)i * piece);
    if (st == KK_OK && e == cudaSuccess) e = idle;
    return e == cudaSuccess ? st : kk_cuda_fail(err, e, "moving weights");
}

static kk_status map_piece(const offload *o, kk_piece at, kk_cuda_memory m, kk_err *err) {
    const CUdeviceptr to = address_of(o, at);
    KK_TRY(kk_cuda_vmm_map(&o->vmm, to, m, err));
    const kk_status st = kk_cuda_vmm_allow(&o->vmm, to, o->vmm.piece, err);
    if (st != KK_OK) kk_cuda_vmm_unmap(&o->vmm, to);
    return st;
}

/* Puts a piece's new memory where its old one was.  Where that fails and the old one cannot be put
 * back either, work that is queued from now on is lost. */
static kk_status remap(kk_dev *dev, kk_piece at, kk_cuda_memory to, bool enters, kk_err *err) {
    offload *o = dev->offload;
    kk_cuda_memory *memory = &o->weight[at.weight].memory[at.piece];
    kk_cuda_vmm_unmap(&o->vmm, address_of(o, at));
    const kk_status st = map_piece(o, at, to, err);
    if (st != KK_OK) {
        give_memory(dev, enters, to);
        if (map_piece(o, at, *memory, NULL) != KK_OK) dev->lost = KK_EDEVICE;
        return st;
    }
    give_memory(dev, !enters, *memory);
    *memory = to;
    kk_placement_put(&o->placement, at, enters);
    return KK_OK;
}

/* Moves up to SLOTS pieces of an idle device.  *moved: those that found memory. */
static kk_status move_some(kk_dev *dev, const kk_piece *list, int32_t n, bool enters,
                           int32_t *moved, kk_err *err) {
    kk_cuda_memory to[SLOTS];
    int32_t made = 0;
    *moved = 0;
    while (made < n && take_memory(dev, enters, &to[made], NULL) == KK_OK) made++;
    kk_status st = made ? copy_pieces(dev, list, to, made, err) : KK_OK;
    for (int32_t i = 0; i < made; i++) {
        if (st != KK_OK) {
            give_memory(dev, enters, to[i]);
            continue;
        }
        st = remap(dev, list[i], to[i], enters, err);
        *moved += st == KK_OK;
    }
    return st;
}

/* Carries out the moves of one direction; stops where memory ends. */
static kk_status move_all(kk_dev *dev, const kk_piece_move *plan, int32_t n, bool enters,
                          int32_t *moved, kk_err *err) {
    kk_piece list[SLOTS];
    *moved = 0;
    for (int32_t i = 0; i < n;) {
        int32_t some = 0, done;
        for (; i < n && some < SLOTS; i++)
            if (plan[i].enters == enters) list[some++] = plan[i].at;
        if (!some) break;
        KK_TRY(move_some(dev, list, some, enters, &done, err));
        *moved += done;
        if (done < some) break;
    }
    return KK_OK;
}

/* ---- when they move ------------------------------------------------------------------------- */

kk_status kk_cuda_count_reads(kk_dev *dev, const kk_weight *gate, const kk_weight *up,
                              const kk_weight *down, const int32_t *expert, int32_t pairs,
                              kk_err *err) {
    const kk_weight *w[KK_CU_COUNTED] = {gate, up, down};
    kk_cu_count c = {.expert = expert, .pairs = pairs};
    bool any = false;
    for (int i = 0; i < KK_CU_COUNTED; i++) {
        if (!w[i] || !w[i]->placed) continue;
        c.reads[i] = dev->offload->reads + (size_t)(w[i]->placed - 1) * KK_CU_EXPERTS;
        any = true;
    }
    if (any && kk_cuda_counts(dev))
        KK_CUDA_TRY(kk_cu_run_count(kk_cuda_at(dev), &c), "counting experts", err);
    return KK_OK;
}

bool kk_cuda_counts(const kk_dev *dev) {
    return dev->offload && dev->offload->placement.here < dev->offload->placement.pieces;
}

/* Waits for the device and takes the counts of what forwards have read. */
static kk_status look(kk_dev *dev, kk_err *err) {
    offload *o = dev->offload;
    const size_t bytes = sizeof(uint32_t) * KK_CU_EXPERTS * (size_t)o->placement.n_weights;
    KK_CUDA_TRY(cudaSetDevice(0), "choosing a device", err);
    KK_CUDA_TRY(
        cudaMemcpyAsync(o->reads_host, o->reads, bytes, cudaMemcpyDeviceToHost, dev->stream),
        "reading counts", err);
    KK_CUDA_TRY(cudaMemsetAsync(o->reads, 0, bytes, dev->stream), "clearing counts", err);
    dev->counts.syncs++;
    KK_CUDA_TRY(cudaStreamSynchronize(dev->stream), "an operation", err);
    for (int32_t i = 0; i < o->placement.n_weights; i++)
        if (o->weight[i].memory)
            kk_placement_read(&o->placement, i, o->reads_host + (size_t)i * KK_CU_EXPERTS);
    return KK_OK;
}

/* One round of moves; *all: as many as there may be. */
static kk_status move_planned(kk_dev *dev, bool *all, kk_err *err) {
    offload *o = dev->offload;
    kk_piece_move plan[MOVES];
    int32_t swaps, left, entered;
    int64_t spare;
    const int64_t free = (bytes_left(dev, &spare) - spare) / (int64_t)o->vmm.piece;
    o->placement.most = o->placement.here + (free > 0 ? free : 0);
    const int32_t n = kk_placement_plan(&o->placement, plan, MOVES, &swaps);
    *all = n == MOVES;
    KK_TRY(move_all(dev, plan, n, false, &left, err));
    KK_TRY(move_all(dev, plan, n, true, &entered, err));
    *all = *all && entered > 0;
    o->swaps += left < entered ? left : entered;
    drop_spares(dev, true);
    return KK_OK;
}

kk_status kk_cuda_tend(kk_dev *dev, kk_err *err) {
    offload *o = dev->offload;
    if (!o || !o->placement.pieces || o->forwards++ % EVERY) return KK_OK;
    const bool first = o->forwards == 1;
    bool all;
    kk_placement_age(&o->placement);
    KK_TRY(look(dev, err));
    do KK_TRY(move_planned(dev, &all, err));
    while (first && all); /* all that was left when the weights had come */
    if (first) take_spares(dev);
    return KK_OK;
}

bool kk_cuda_evict_experts(kk_dev *dev, size_t bytes) {
    offload *o = dev->offload;
    kk_piece_move plan[SLOTS];
    int64_t spare;
    if (!o || !o->placement.here || bytes > INT64_MAX / 2) return false;
    const int64_t over = (int64_t)bytes - bytes_left(dev, &spare) + spare / 2;
    int64_t n = over > 0 ? over / (int64_t)o->vmm.piece + 1 : 1;
    if (look(dev, NULL) != KK_OK) return false;
    while (n > 0 && o->placement.here) {
        int32_t swaps, moved;
        const int64_t some = n < SLOTS ? n : SLOTS;
        o->placement.most = o->placement.here > some ? o->placement.here - some : 0;
        const int32_t planned = kk_placement_plan(&o->placement, plan, (int32_t)some, &swaps);
        const kk_status st = move_all(dev, plan, planned, false, &moved, NULL);
        drop_spares(dev, true);
        o->evicted += moved;
        n -= moved;
        if (st != KK_OK || moved == 0) return false;
    }
    return n <= 0;
}

/* ---- what it says --------------------------------------------------------------------------- */

void kk_cuda_offloaded(kk_dev *dev, kk_offload *out) {
    const offload *o = dev->offload;
    *out = (kk_offload){.limit = dev->limit};
    if (!o || !o->placement.pieces) return;
    kk_status st = kk_cuda_flush(dev, NULL);
    if (st == KK_OK) st = look(dev, NULL);
    if (st != KK_OK) dev->lost = st;
    const kk_placement *p = &o->placement;
    out->on_gpu = p->here * (int64_t)p->piece;
    out->on_host = (p->pieces - p->here) * (int64_t)p->piece;
    out->hits = p->reads.hits;
    out->misses = p->reads.misses;
    out->gpu_bytes = (int64_t)(p->reads.bytes - p->reads.host_bytes);
    out->host_bytes = (int64_t)p->reads.host_bytes;
    out->swaps = o->swaps;
    out->evicted = o->evicted;
}

int64_t kk_cuda_offload_bytes(const kk_dev *dev) {
    return dev->offload ? dev->offload->placement.here * (int64_t)dev->offload->vmm.piece : 0;
}
