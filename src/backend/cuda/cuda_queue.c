/* cuda_queue.c - records operations, and runs what was recorded.
 *
 * A recorded queue is compared with earlier ones: when it is queued for the second time it is
 * captured as a graph, and replayed from then on.  Only the control block differs. */
#include "backend/cuda/cuda_offload.h"

enum { ALIGN = 16, LEAST_PAGES = 32 };

/* ---- control blocks ------------------------------------------------------------------------ */

static uint8_t *control(kk_dev *dev) { return dev->control_host[dev->control_at]; }

void *kk_cuda_reserve(kk_dev *dev, size_t bytes, size_t *off) {
    const size_t at = (dev->q.control + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes > KK_CUDA_CONTROL || at > KK_CUDA_CONTROL - bytes) return NULL;
    dev->q.control = at + bytes;
    *off = at;
    return control(dev) + at;
}

static kk_status put(kk_dev *dev, const void *src, size_t bytes, size_t *off, kk_err *err) {
    void *to = kk_cuda_reserve(dev, bytes, off);
    if (!to)
        return kk_fail(err, KK_EINVAL, "a forward's ids and page tables pass %d bytes",
                       KK_CUDA_CONTROL);
    memcpy(to, src, bytes);
    return KK_OK;
}

/* ---- running -------------------------------------------------------------------------------- */

static bool same(const kk_cuda_graph *g, const kk_cuda_queue *q, bool counts) {
    return g->n_ops == q->n_ops && g->counts == counts && g->n_views == q->n_views &&
           g->n_ops > 0 && memcmp(g->ops, q->ops, (size_t)q->n_ops * sizeof *q->ops) == 0 &&
           memcmp(g->views, q->views, (size_t)q->n_views * sizeof *q->views) == 0;
}

static kk_cuda_graph *find_graph(kk_dev *dev) {
    for (int i = 0; i < KK_CUDA_GRAPHS; i++)
        if (same(&dev->graphs[i], &dev->q, kk_cuda_counts(dev))) return &dev->graphs[i];
    return NULL;
}

/* Whether the queue may repeat, and fits a graph's arrays. */
static bool worth_keeping(const kk_cuda_queue *q) {
    return q->n_ops > 4 && q->n_ops <= KK_CUDA_GRAPH_OPS &&
           (q->n_views == 0 || q->views[0].n_rows <= KK_CUDA_GRAPH_ROWS);
}

/* Stores the queue in the place of the graph that was least recently used.  Allocates nothing. */
static void remember(kk_dev *dev) {
    kk_cuda_graph *g = &dev->graphs[0];
    for (int i = 1; i < KK_CUDA_GRAPHS; i++)
        if (dev->graphs[i].used < g->used) g = &dev->graphs[i];
    if (g->exec) cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
    g->n_ops = dev->q.n_ops;
    g->n_views = dev->q.n_views;
    g->used = dev->clock;
    g->counts = kk_cuda_counts(dev);
    memcpy(g->ops, dev->q.ops, (size_t)g->n_ops * sizeof *g->ops);
    memcpy(g->views, dev->q.views, (size_t)g->n_views * sizeof *g->views);
}

static kk_status capture(kk_dev *dev, kk_cuda_graph *g, kk_err *err) {
    cudaGraph_t graph = NULL;
    KK_CUDA_TRY(cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal),
                "capturing a graph", err);
    const kk_status st =
        kk_cuda_plan(dev, dev->q.ops, dev->q.n_ops, dev->q.views, dev->q.n_views, err);
    const cudaError_t e = cudaStreamEndCapture(dev->stream, &graph);
    if (st != KK_OK) {
        if (graph) cudaGraphDestroy(graph);
        return st;
    }
    if (e != cudaSuccess) return kk_cuda_fail(err, e, "capturing a graph");
    const cudaError_t i = cudaGraphInstantiate(&g->exec, graph, 0);
    cudaGraphDestroy(graph);
    if (i == cudaSuccess) return KK_OK;
    g->exec = NULL;
    return kk_cuda_fail(err, i, "building a graph");
}

/* A kernel reads a few kilobytes from pinned memory sooner than the copy engine starts. */
static kk_status send_control(kk_dev *dev, kk_err *err) {
    const kk_cu_bring b = {dev->control, control(dev), dev->q.control};
    if (b.bytes == 0) return KK_OK;
    KK_CUDA_TRY(b.bytes <= KK_CUDA_BRING
                    ? kk_cu_run_bring(kk_cuda_at(dev), &b)
                    : cudaMemcpyAsync(b.to, b.from, b.bytes, cudaMemcpyHostToDevice, dev->stream),
                "copying a control block", err);
    return KK_OK;
}

static kk_status run_queue(kk_dev *dev, kk_err *err) {
    kk_cuda_queue *q = &dev->q;
    KK_TRY(send_control(dev, err));
    KK_CUDA_TRY(cudaEventRecord(dev->control_free[dev->control_at], dev->stream),
                "recording an event", err);
    kk_cuda_graph *g = worth_keeping(q) ? find_graph(dev) : NULL;
    dev->clock++;
    if (!g) {
        if (worth_keeping(q)) remember(dev);
        dev->runs++;
        return kk_cuda_plan(dev, q->ops, q->n_ops, q->views, q->n_views, err);
    }
    g->used = dev->clock;
    if (!g->exec) KK_TRY(capture(dev, g, err));
    dev->replays++;
    KK_CUDA_TRY(cudaGraphLaunch(g->exec, dev->stream), "launching a graph", err);
    return KK_OK;
}

kk_status kk_cuda_flush(kk_dev *dev, kk_err *err) {
    kk_cuda_queue *q = &dev->q;
    if (q->n_ops == 0 && dev->lost == KK_OK) return KK_OK;
    kk_cuda_drop_stage(dev);
    const kk_status st = dev->lost == KK_OK
                             ? run_queue(dev, err)
                             : kk_fail(err, dev->lost, "work queued on the GPU before was lost");
    dev->lost = KK_OK;
    dev->control_at = (dev->control_at + 1) % KK_CUDA_CONTROLS;
    q->n_ops = q->n_views = 0;
    q->control = 0;
    const cudaError_t e = cudaEventSynchronize(dev->control_free[dev->control_at]);
    KK_TRY(st);
    KK_CUDA_TRY(e, "waiting for a copy", err);
    return KK_OK;
}

kk_status kk_cuda_sync(kk_dev *dev, kk_err *err) {
    KK_TRY(kk_cuda_flush(dev, err));
    dev->counts.syncs++;
    KK_CUDA_TRY(cudaStreamSynchronize(dev->stream), "an operation", err);
    return KK_OK;
}

void kk_cuda_settle(kk_dev *dev) {
    const kk_status st = kk_cuda_sync(dev, NULL);
    if (st != KK_OK) dev->lost = st;
}

/* ---- recording ------------------------------------------------------------------------------ */

static kk_status record(kk_dev *dev, kk_cuda_kind kind, kk_cuda_op **out, kk_err *err) {
    if (dev->q.n_ops == KK_CUDA_OPS || dev->q.n_views == KK_CUDA_VIEWS)
        KK_TRY(kk_cuda_flush(dev, err));
    kk_cuda_op *op = &dev->q.ops[dev->q.n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    *out = op;
    return KK_OK;
}

/* Removes the last operation if its arguments could not be recorded. */
static kk_status unrecord(kk_dev *dev, kk_status st) {
    if (st != KK_OK) dev->q.n_ops--;
    return st;
}

static int32_t page_capacity(int32_t pages) {
    int32_t cap = LEAST_PAGES;
    while (cap < pages) cap *= 2;
    return cap;
}

/* Pages that hold the group's positions up to the last that its last row can have. */
static int32_t group_pages(const kk_group *g) {
    return (int32_t)((g->pos + g->most_shift + g->n_rows - 1) / KK_PAGE_ROWS + 1);
}

typedef struct {
    int64_t *pos;
    int32_t *table;
    kk_group *groups; /* as given, to compare later */
    kk_cu_tile *tile;
    uint8_t **pages, **latents; /* latents NULL: none are read */
    kk_cu_sink *sinks;          /* NULL: none lie apart */
} view_data;

static void fill_view(const kk_rows *rows, const kk_cuda_view *v, const view_data *d) {
    kk_cu_tile *tile = d->tile;
    memcpy(d->groups, rows->group, (size_t)rows->n_groups * sizeof *d->groups);
    for (int32_t i = 0; i < rows->n_groups; i++) {
        const kk_group *g = &rows->group[i];
        const size_t at = (size_t)i * (size_t)v->page_cap;
        if (g->pages) memcpy(d->pages + at, g->pages, (size_t)group_pages(g) * sizeof *g->pages);
        if (d->latents)
            memcpy(d->latents + at, g->latents, (size_t)group_pages(g) * sizeof *g->latents);
        if (d->sinks) d->sinks[i] = (kk_cu_sink){g->sink, g->pos};
        for (int32_t r = 0; r < g->n_rows; r++) {
            d->pos[g->row + r] = g->pos + r;
            d->table[g->row + r] = i * v->page_cap;
            if (r % v->tile_most) continue;
            const int32_t left = g->n_rows - r;
            *tile++ = (kk_cu_tile){.pos = g->pos + r,
                                   .group_pos = g->pos,
                                   .group_end = g->pos + g->n_rows,
                                   .row = g->row + r,
                                   .rows = left < v->tile_most ? left : v->tile_most,
                                   .pages = i * v->page_cap};
        }
    }
}

/* Most rows of a tile: up to 16 as the kernels for few rows take, else 64 of a prompt. */
static int32_t tile_rows_of(const kk_rows *rows) {
    int32_t most = 1;
    for (int32_t i = 0; i < rows->n_groups; i++)
        most = rows->group[i].n_rows > most ? rows->group[i].n_rows : most;
    return most <= KK_CU_ROWS ? most : KK_CU_TILE_ROWS;
}

static kk_status add_view(kk_dev *dev, const kk_rows *rows, int32_t *index, kk_err *err) {
    kk_cuda_view v;
    memset(&v, 0, sizeof v);
    int32_t pages = 1;
    v.n_rows = rows->n_rows;
    v.n_groups = rows->n_groups;
    v.shift = rows->group[0].shift;
    for (int32_t i = 0; i < rows->n_groups; i++)
        if (group_pages(&rows->group[i]) > pages) pages = group_pages(&rows->group[i]);
    v.page_cap = page_capacity(pages);
    v.tile_most = tile_rows_of(rows);
    for (int32_t i = 0; i < rows->n_groups; i++)
        v.tiles += (rows->group[i].n_rows + v.tile_most - 1) / v.tile_most;
    const size_t n = (size_t)v.n_rows, g = (size_t)v.n_groups, t = (size_t)v.tiles;
    view_data d;
    d.pos = kk_cuda_reserve(dev, n * 8, &v.pos);
    d.table = kk_cuda_reserve(dev, n * 4, &v.table);
    d.groups = kk_cuda_reserve(dev, g * sizeof *d.groups, &v.groups);
    d.tile = kk_cuda_reserve(dev, t * sizeof *d.tile, &v.tile);
    const size_t table = g * (size_t)v.page_cap * sizeof *d.pages;
    const bool sinks = rows->group[0].sink, latents = rows->group[0].latents;
    d.sinks = sinks ? kk_cuda_reserve(dev, g * sizeof *d.sinks, &v.sinks) : NULL;
    d.latents = latents ? kk_cuda_reserve(dev, table, &v.latents) : NULL;
    d.pages = kk_cuda_reserve(dev, table, &v.pages);
    if (!d.pages || (latents && !d.latents))
        return kk_fail(err, KK_EINVAL, "page tables of %d sessions pass %d bytes", v.n_groups,
                       KK_CUDA_CONTROL);
    fill_view(rows, &v, &d);
    *index = dev->q.n_views;
    dev->q.views[dev->q.n_views++] = v;
    return KK_OK;
}

/* Whether a recorded view has these very rows and pages. */
static bool shows(kk_dev *dev, const kk_cuda_view *v, const kk_rows *rows) {
    if (v->n_rows != rows->n_rows || v->n_groups != rows->n_groups ||
        v->shift != rows->group[0].shift)
        return false;
    const uint8_t *base = control(dev);
    for (int32_t i = 0; i < rows->n_groups; i++) {
        const kk_group *g = &rows->group[i];
        kk_group was;
        memcpy(&was, base + v->groups + (size_t)i * sizeof was, sizeof was);
        const size_t at = (size_t)i * (size_t)v->page_cap * sizeof g->pages;
        const uint8_t *pages = base + v->pages + at;
        const size_t held = (size_t)group_pages(g) * sizeof *g->pages;
        if (was.pos != g->pos || was.most_shift != g->most_shift || was.row != g->row ||
            was.n_rows != g->n_rows || was.sink != g->sink || !was.latents != !g->latents ||
            !was.pages != !g->pages || (g->pages && memcmp(pages, g->pages, held) != 0))
            return false;
        if (g->latents && memcmp(base + v->latents + at, g->latents, held) != 0) return false;
    }
    return true;
}

static kk_status view_of(kk_dev *dev, const kk_rows *rows, int32_t *index, kk_err *err) {
    for (int32_t i = 1; i < rows->n_groups; i++)
        if (!rows->group[i].sink != !rows->group[0].sink ||
            !rows->group[i].latents != !rows->group[0].latents)
            return kk_fail(err, KK_EINVAL, "sessions that keep their rows in different ways");
    for (int32_t i = dev->q.n_views - 1; i >= 0; i--)
        if (shows(dev, &dev->q.views[i], rows)) {
            *index = i;
            return KK_OK;
        }
    return add_view(dev, rows, index, err);
}

/* Arguments are copied field by field into zeroed memory: padding bytes would make equal operations
 * differ.  Host pointers are left out. */
static void copy_slot(kk_kv_slot *to, const kk_kv_slot *a) {
    to->format = a->format;
    to->k_eq_v = a->k_eq_v;
    to->n_kv_head = a->n_kv_head;
    to->head_dim = a->head_dim;
    to->k_off = a->k_off;
    to->v_off = a->v_off;
}

static void copy_embed(kk_embed_args *to, const kk_embed_args *a) {
    to->out = a->out;
    to->table = a->table;
    to->n_rows = a->n_rows;
    to->scale = a->scale;
    to->chosen = a->chosen;
}

static void copy_norm(kk_norm_args *to, const kk_norm_args *a) {
    to->out = a->out;
    to->x = a->x;
    to->w = a->w;
    to->n_rows = a->n_rows;
    to->dim = a->dim;
    to->eps = a->eps;
}

static void copy_linear(kk_linear_args *to, const kk_linear_args *a) {
    for (int32_t i = 0; i < a->n; i++) {
        to->out[i] = a->out[i];
        to->w[i] = a->w[i];
    }
    to->n = a->n;
    to->x = a->x;
    to->n_rows = a->n_rows;
}

static void copy_rope(kk_rope_args *to, const kk_rope_args *a) {
    to->table = a->table;
    to->n = a->n;
    to->rope.theta = a->rope.theta;
    to->rope.factor = a->rope.factor;
    to->rope.n_rot = a->rope.n_rot;
    to->rope.head_dim = a->rope.head_dim;
    to->shift = a->shift;
}

static void copy_store(kk_store_args *to, const kk_store_args *a) {
    to->q = a->q;
    to->k = a->k;
    to->v = a->v;
    to->q_norm = a->q_norm;
    to->k_norm = a->k_norm;
    to->rope_rows = a->rope_rows;
    to->n_rot = a->n_rot;
    to->n_head = a->n_head;
    to->eps = a->eps;
    to->v_raw = a->v_raw;
    copy_slot(&to->slot, &a->slot);
}

static void copy_attend(kk_attend_args *to, const kk_attend_args *a) {
    to->out = a->out;
    to->q = a->q;
    to->k_norm = a->k_norm;
    to->rope_pos = a->rope_pos;
    to->n_rot = a->n_rot;
    to->n_head = a->n_head;
    to->window = a->window;
    to->sink = a->sink;
    to->block = a->block;
    to->scale = a->scale;
    copy_slot(&to->slot, &a->slot);
}

static void copy_keep(kk_keep_args *to, const kk_keep_args *a) {
    to->x = a->x;
    to->keys = a->keys;
    copy_slot(&to->slot, &a->slot);
}

static void copy_scales(kk_scales_args *to, const kk_scales_args *a) {
    to->v = a->v;
    to->n_kv_head = a->n_kv_head;
    to->at = a->at;
    to->eps = a->eps;
    copy_slot(&to->latent, &a->latent);
    copy_slot(&to->scales, &a->scales);
}

/* Without the number of the forward, which would make every one another graph. */
static void copy_evicted(kk_evicted *to, const kk_evicted *a) {
    to->window = a->window;
    to->chunk = a->chunk;
    to->rebuilds = a->rebuilds;
    to->k = a->k;
    to->v = a->v;
    copy_slot(&to->latent, &a->latent);
    copy_slot(&to->scales, &a->scales);
    to->scale_at = a->scale_at;
    to->rope.theta = a->rope.theta;
    to->rope.factor = a->rope.factor;
    to->rope.n_rot = a->rope.n_rot;
    to->rope.head_dim = a->rope.head_dim;
    to->eps = a->eps;
}

static void copy_residual(kk_residual_args *to, const kk_residual_args *a) {
    to->x = a->x;
    to->a = a->a;
    to->w = a->w;
    to->n_rows = a->n_rows;
    to->dim = a->dim;
    to->eps = a->eps;
    to->scale = a->scale;
}

static void copy_glu(kk_glu_args *to, const kk_glu_args *a) {
    to->out = a->out;
    to->gate = a->gate;
    to->up = a->up;
    to->n_rows = a->n_rows;
    to->dim = a->dim;
    to->up_stride = a->up_stride;
    to->up_offset = a->up_offset;
    to->act = a->act;
}

static void copy_route(kk_route_args *to, const kk_route_args *a) {
    to->expert = a->expert;
    to->weight = a->weight;
    to->x = a->x;
    to->scale = a->scale;
    to->per_expert_scale = a->per_expert_scale;
    to->proj = a->proj;
    to->n_rows = a->n_rows;
    to->n_used = a->n_used;
    to->eps = a->eps;
}

static void copy_experts(kk_experts_args *to, const kk_experts_args *a) {
    to->out = a->out;
    to->x = a->x;
    to->expert = a->expert;
    to->weight = a->weight;
    to->gate = a->gate;
    to->up = a->up;
    to->down = a->down;
    to->n_rows = a->n_rows;
    to->n_used = a->n_used;
    to->ffn = a->ffn;
}

static void copy_ple(kk_ple_args *to, const kk_ple_args *a) {
    to->out = a->out;
    to->proj = a->proj;
    to->w = a->w;
    to->table = a->table;
    to->n_rows = a->n_rows;
    to->n_layer = a->n_layer;
    to->dim = a->dim;
    to->proj_scale = a->proj_scale;
    to->scale = a->scale;
    to->eps = a->eps;
    to->chosen = a->chosen;
}

static void copy_gather(kk_gather_args *to, const kk_gather_args *a) {
    to->out = a->out;
    to->x = a->x;
    to->n = a->n;
    to->dim = a->dim;
    to->first = a->first;
    to->out_stride = a->out_stride;
}

static void copy_softcap(kk_softcap_args *to, const kk_softcap_args *a) {
    to->x = a->x;
    to->n_rows = a->n_rows;
    to->dim = a->dim;
    to->cap = a->cap;
}

static void copy_choose(kk_choose_args *to, const kk_choose_args *a) {
    to->token = a->token;
    to->x = a->x;
    to->n_rows = a->n_rows;
    to->dim = a->dim;
    to->pending = a->pending;
    to->draft = a->draft;
    to->right = a->right;
    to->next[0] = a->next[0];
    to->next[1] = a->next[1];
}

static void copy_ids(kk_ids_args *to, const kk_ids_args *a) {
    to->out = a->out;
    to->n = a->n;
}

static void copy_replay(kk_replay_args *to, const kk_replay_args *a) {
    to->ids = a->ids;
    to->record = a->record;
    to->ids_at = a->ids_at;
    to->n = a->n;
    to->n_record = a->n_record;
    to->vocab = a->vocab;
    to->shift = a->shift;
}

static void copy_argmax(kk_argmax_args *to, const kk_argmax_args *a) {
    to->x = a->x;
    to->n_rows = a->n_rows;
    to->dim = a->dim;
    to->banned = a->banned;
    to->ids = a->ids;
    to->ids_at = a->ids_at;
    to->map = a->map;
}

/* Weights and scratch of a layer are structs of pointers alone, without padding. */
static void copy_layer(kk_layer_args *to, const kk_layer_args *a) {
    to->w = a->w;
    to->scratch = a->scratch;
    to->k_norm = a->k_norm;
    to->rope_rows = a->rope_rows;
    to->rope_pos = a->rope_pos;
    copy_slot(&to->slot, &a->slot);
    to->stores = a->stores;
    to->hidden = a->hidden;
    to->ffn = a->ffn;
    to->n_head = a->n_head;
    to->n_rot = a->n_rot;
    to->window = a->window;
    to->sink = a->sink;
    to->n_used = a->n_used;
    to->expert_ffn = a->expert_ffn;
    to->ple_dim = a->ple_dim;
    to->ple_stride = a->ple_stride;
    to->ple_offset = a->ple_offset;
    to->eps = a->eps;
    to->scale = a->scale;
}

static void copy_head(kk_head_args *to, const kk_head_args *a) {
    to->logits = a->logits;
    to->in = a->in;
    to->x = a->x;
    to->norm = a->norm;
    to->table = a->table;
    to->n = a->n;
    to->hidden = a->hidden;
    to->vocab = a->vocab;
    to->eps = a->eps;
    to->cap = a->cap;
}

#define RECORD(dev, KIND, field, args, op, err)                                                    \
    kk_cuda_op *op;                                                                                \
    KK_TRY(record(dev, KIND, &op, err));                                                           \
    copy_##field(&op->a.field, args)

/* The first operation of a forward.  Flushes if less than half of the control block is left for its
 * page tables. */
kk_status kk_cuda_embed(kk_dev *dev, const kk_embed_args *a, kk_err *err) {
    KK_TRY(kk_cuda_tend(dev, err));
    if (dev->q.control > KK_CUDA_CONTROL / 2) KK_TRY(kk_cuda_flush(dev, err));
    RECORD(dev, KK_CUDA_EMBED, embed, a, op, err);
    if (a->chosen) return KK_OK;
    return unrecord(dev, put(dev, a->token, (size_t)a->n_rows * 4, &op->control, err));
}

kk_status kk_cuda_norm(kk_dev *dev, const kk_norm_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_NORM, norm, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_linear(kk_dev *dev, const kk_linear_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_LINEAR, linear, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err) {
    const size_t row = 2 * (size_t)a->rope.n_rot * sizeof(float);
    if (a->table->most) KK_TRY(kk_cuda_grow(dev, a->table, (size_t)(a->first + a->n) * row, err));
    RECORD(dev, KK_CUDA_ROPE, rope, a, op, err);
    /* The table's first row goes to the control block with the positions: as an argument it would
     * make every step another operation. */
    int64_t *to = kk_cuda_reserve(dev, ((size_t)a->n + 1) * 8, &op->control);
    if (!to) {
        dev->q.n_ops--;
        return kk_fail(err, KK_EINVAL, "angles of %lld positions at once", (long long)a->n);
    }
    to[0] = a->first;
    for (int64_t i = 0; i < a->n; i++) to[1 + i] = a->pos ? a->pos[i] : a->pos0 + i;
    return KK_OK;
}

kk_status kk_cuda_store(kk_dev *dev, const kk_store_args *a, kk_err *err) {
    if (!kk_cuda_stores(a->slot.format)) return kk_no_kv_format("cuda", a->slot.format, err);
    RECORD(dev, KK_CUDA_STORE, store, a, op, err);
    return unrecord(dev, view_of(dev, a->rows, &op->view, err));
}

/* What the rows see; a group's first row sees the most of page 0. */
static kk_cuda_visible visible_of(const kk_attend_args *a) {
    const kk_evicted *e = a->evicted;
    kk_cuda_visible s = {0, 0};
    const kk_visible_rule rule = {
        .mask = a->window, .evicts = true, .bounds = {e->window, a->sink, e->chunk}};
    for (int32_t i = 0; i < a->rows->n_groups; i++) {
        const kk_group *g = &a->rows->group[i];
        const kk_visible first = kk_sees(&rule, g->pos);
        if (first.sink_from < first.sink_to || first.from < KK_PAGE_ROWS) s.first = 1;
        const int64_t end = g->pos + g->most_shift + g->n_rows;
        for (int64_t p = g->pos; e->rebuilds && !s.gone && p < end; p++)
            s.gone = kk_visible_gone(kk_sees(&rule, p)) > 0;
    }
    return s;
}

/* What attention needs beside what it is given, before it is recorded: making it may flush. */
static kk_status ready_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    if (!kk_cuda_stores(a->slot.format)) return kk_no_kv_format("cuda", a->slot.format, err);
    if (a->rows->group[0].sink) KK_TRY(kk_cuda_ready_sinks(dev, &a->slot, a->rows->n_groups, err));
    return a->evicted ? kk_cuda_ready_evicted(dev, a, err) : KK_OK;
}

static kk_status record_evicted(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    kk_cuda_op *op;
    KK_TRY(record(dev, KK_CUDA_EVICTED, &op, err));
    copy_attend(&op->a.evicted.attend, a);
    copy_evicted(&op->a.evicted.how, a->evicted);
    op->a.evicted.sees = visible_of(a);
    return unrecord(dev, view_of(dev, a->rows, &op->view, err));
}

kk_status kk_cuda_keep(kk_dev *dev, const kk_keep_args *a, kk_err *err) {
    if (!kk_cuda_stores(a->slot.format)) return kk_no_kv_format("cuda", a->slot.format, err);
    RECORD(dev, KK_CUDA_KEEP, keep, a, op, err);
    return unrecord(dev, view_of(dev, a->rows, &op->view, err));
}

kk_status kk_cuda_keep_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err) {
    KK_TRY(kk_cuda_ready_scales(dev, a, err));
    RECORD(dev, KK_CUDA_SCALE, scales, a, op, err);
    return unrecord(dev, view_of(dev, a->rows, &op->view, err));
}

kk_status kk_cuda_attend(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    if (a->slot.head_dim > 512 || a->slot.head_dim % 8)
        return kk_fail(err, KK_EINVAL, "attention heads of %d values do not fit the GPU's kernels",
                       a->slot.head_dim);
    KK_TRY(ready_attend(dev, a, err));
    if (a->evicted) return record_evicted(dev, a, err);
    RECORD(dev, KK_CUDA_ATTEND, attend, a, op, err);
    return unrecord(dev, view_of(dev, a->rows, &op->view, err));
}

kk_status kk_cuda_residual(kk_dev *dev, const kk_residual_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_RESIDUAL, residual, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_glu(kk_dev *dev, const kk_glu_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_GLU, glu, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_route(kk_dev *dev, const kk_route_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_ROUTE, route, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_experts(kk_dev *dev, const kk_experts_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_EXPERTS, experts, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_ple(kk_dev *dev, const kk_ple_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_PLE, ple, a, op, err);
    if (a->chosen) return KK_OK;
    return unrecord(dev, put(dev, a->token, (size_t)a->n_rows * 4, &op->control, err));
}

/* The control block has out_at, which changes with a queue of taps, and the row numbers behind it,
 * where first is -1. */
kk_status kk_cuda_gather(kk_dev *dev, const kk_gather_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_GATHER, gather, a, op, err);
    const size_t rows = a->row ? (size_t)a->n * 4 : 0;
    uint8_t *to = kk_cuda_reserve(dev, sizeof a->out_at + rows, &op->control);
    if (!to) {
        dev->q.n_ops--;
        return kk_fail(err, KK_EINVAL, "%d rows gathered at once", a->n);
    }
    memcpy(to, &a->out_at, sizeof a->out_at);
    if (!a->row) return KK_OK;
    memcpy(to + sizeof a->out_at, a->row, rows);
    op->a.gather.first = -1;
    return KK_OK;
}

kk_status kk_cuda_softcap(kk_dev *dev, const kk_softcap_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_SOFTCAP, softcap, a, op, err);
    return KK_OK;
}

kk_status kk_cuda_layer(kk_dev *dev, const kk_layer_args *a, bool *taken, kk_err *err) {
    const kk_attend_args attend = kk_layer_attend(a);
    if (a->evicted) KK_TRY(ready_attend(dev, &attend, err));
    RECORD(dev, KK_CUDA_LAYER, layer, a, op, err);
    KK_TRY(unrecord(dev, view_of(dev, a->rows, &op->view, err)));
    *taken = kk_cuda_takes_layer(dev, a, &dev->q.views[op->view]);
    if (!*taken) dev->q.n_ops--;
    if (!*taken || !a->evicted) return KK_OK;
    op->kind = KK_CUDA_EVICTED_LAYER;
    copy_evicted(&op->a.evicted_layer.how, a->evicted);
    op->a.evicted_layer.sees = visible_of(&attend);
    return KK_OK;
}

/* Recorded only directly after a queued layer, since it runs in the layer's launch. */
kk_status kk_cuda_head(kk_dev *dev, const kk_head_args *a, bool *taken, kk_err *err) {
    const kk_cuda_queue *q = &dev->q;
    const kk_cuda_op *before = q->n_ops > 0 && q->n_ops < KK_CUDA_OPS && q->n_views < KK_CUDA_VIEWS
                                   ? &q->ops[q->n_ops - 1]
                                   : NULL;
    if (!before || before->kind != KK_CUDA_LAYER ||
        !kk_cuda_takes_head(dev, a, before, &q->views[before->view]))
        return KK_OK;
    RECORD(dev, KK_CUDA_HEAD, head, a, op, err);
    KK_TRY(unrecord(dev, put(dev, a->row, (size_t)a->n * 4, &op->control, err)));
    *taken = true;
    return KK_OK;
}

/* Results are copied back from the device's control block. */
kk_status kk_cuda_argmax(kk_dev *dev, const kk_argmax_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_ARGMAX, argmax, a, op, err);
    if (a->ids) return KK_OK;
    const size_t bytes = (size_t)a->n_rows * 4;
    size_t off;
    if (!kk_cuda_reserve(dev, bytes, &off)) {
        dev->q.n_ops--;
        return kk_fail(err, KK_EINVAL, "choices of %d rows at once", a->n_rows);
    }
    op->control = off;
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(
        cudaMemcpyAsync(a->out, dev->control + off, bytes, cudaMemcpyDeviceToHost, dev->stream),
        "reading choices", err);
    return kk_cuda_sync(dev, err);
}

kk_status kk_cuda_ids(kk_dev *dev, const kk_ids_args *a, kk_err *err) {
    RECORD(dev, KK_CUDA_IDS, ids, a, op, err);
    return unrecord(dev, put(dev, a->id, (size_t)a->n * 4, &op->control, err));
}

/* What differs from draft to draft goes through the control block. */
kk_status kk_cuda_replay(kk_dev *dev, const kk_replay_args *a, kk_err *err) {
    const int32_t how[2] = {a->at, a->right};
    RECORD(dev, KK_CUDA_REPLAY, replay, a, op, err);
    return unrecord(dev, put(dev, how, sizeof how, &op->control, err));
}

kk_status kk_cuda_lap(kk_dev *dev, bool ends, kk_err *err) {
    const int64_t slot = dev->tickets % KK_PICKS;
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(cudaEventRecord(dev->lap[slot][ends], dev->stream), "recording an event", err);
    dev->lapped[slot] = ends;
    return KK_OK;
}

double kk_cuda_lap_s(kk_dev *dev, int64_t ticket) {
    const int64_t slot = ticket % KK_PICKS;
    float ms = 0;
    if (!dev->lapped[slot] ||
        cudaEventElapsedTime(&ms, dev->lap[slot][0], dev->lap[slot][1]) != cudaSuccess)
        return 0;
    return 1e-3 * (double)ms;
}

/* The ticket's slot in the ring of picks goes through the control block, so that every round is the
 * same graph. */
kk_status kk_cuda_choose(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err) {
    if (a->n_rows < 1 || a->n_rows > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "choices of %d rows at once: 1 to %d", a->n_rows,
                       KK_PICK_ROWS);
    const int32_t slot = (int32_t)(dev->tickets % KK_PICKS);
    const bool sampled = kk_cuda_is_sampled(a);
    if (sampled && a->dim > KK_CU_SAMPLE_VOCAB)
        return kk_fail(err, KK_EINVAL, "the GPU samples from up to %d logits, not %d",
                       KK_CU_SAMPLE_VOCAB, a->dim);
    RECORD(dev, sampled ? KK_CUDA_SAMPLE : KK_CUDA_CHOOSE, choose, a, op, err);
    KK_TRY(unrecord(dev, sampled ? kk_cuda_put_rows(dev, a, slot, &op->control, err)
                                 : put(dev, &slot, sizeof slot, &op->control, err)));
    /* This event fires when the device has finished what was queued before. */
    KK_CUDA_TRY(cudaEventRecord(dev->pick_from[slot], dev->stream), "recording an event", err);
    KK_TRY(kk_cuda_flush(dev, err));
    KK_CUDA_TRY(cudaEventRecord(dev->pick_done[slot], dev->stream), "recording an event", err);
    dev->pick_flush[slot] = dev->clock;
    dev->pick_drafts[slot] = a->draft;
    dev->lapped[(slot + 1) % KK_PICKS] = false;
    *ticket = dev->tickets++;
    return KK_OK;
}

kk_status kk_cuda_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                         kk_err *err) {
    float ms = 0;
    *seconds = 0;
    if (ticket < 0 || ticket >= dev->tickets || ticket + KK_PICKS < dev->tickets || n < 1 ||
        n > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "choice %lld of %lld is not at hand", (long long)ticket,
                       (long long)dev->tickets);
    const int64_t slot = ticket % KK_PICKS;
    const bool more = dev->pick_flush[slot] < dev->clock;
    *(more ? &dev->counts.waits : &dev->counts.syncs) += 1;
    KK_CUDA_TRY(cudaEventSynchronize(dev->pick_done[slot]), "choosing a token", err);
    KK_CUDA_TRY(cudaEventElapsedTime(&ms, dev->pick_from[slot], dev->pick_done[slot]), "timing",
                err);
    *seconds = 1e-3 * (double)ms;
    for (int32_t i = 0; i < n; i++) {
        const kk_cu_pick *p = &dev->picks[slot * KK_CU_CHOOSE_ROWS + i];
        out[i] = (kk_pick){.token = p->token,
                           .broken = p->broken != 0,
                           .digest = p->digest,
                           .drafted = dev->pick_drafts[slot] ? p->drafted : -1};
        const kk_cu_logprobs *l = &dev->pick_logprobs[slot * KK_CU_CHOOSE_ROWS + i];
        out[i].logprobs.chosen = (kk_logprob){l->chosen.id, l->chosen.logprob};
        out[i].logprobs.n_best = l->n_best;
        for (int32_t k = 0; k < l->n_best; k++)
            out[i].logprobs.best[k] = (kk_logprob){l->best[k].id, l->best[k].logprob};
    }
    return KK_OK;
}
