/* cuda_plan.c - launches recorded operations one by one; whole layers go to cuda_layer.c.
 *
 * Up to 16 rows take the decode kernels, more take tiled ones with the same arithmetic: a row has
 * the same bits in a chunk of a prompt as on its own. */
#include <assert.h>

#include "backend/cuda/cuda_offload.h"
#include "backend/cuda/draft_ops.h"

kk_cu_at kk_cuda_at(const kk_dev *dev) {
    return (kk_cu_at){dev->stream, dev->sms, dev->early, dev->shared};
}

/* The kernels' name of a K/V format; -1: this device has none. */
static int32_t kernels_of(kk_kv_format f) {
    switch (f) {
    case KK_KV_F32: return KK_CU_F32;
    case KK_KV_BF16: return KK_CU_BF16;
    case KK_KV_Q8: return KK_CU_Q8;
    case KK_KV_Q4: return KK_CU_Q4;
    case KK_KV_S8: return KK_CU_S8;
    default: return -1;
    }
}

bool kk_cuda_stores(kk_kv_format f) { return kernels_of(f) >= 0; }

kk_cu_slot kk_cuda_slot(const kk_kv_slot *s) {
    assert(kk_cuda_stores(s->format)); /* checked when the operation was recorded */
    return (kk_cu_slot){.format = kernels_of(s->format),
                        .k_eq_v = s->k_eq_v,
                        .n_kv_head = s->n_kv_head,
                        .head_dim = s->head_dim,
                        .k_off = s->k_off,
                        .v_off = s->v_off,
                        .head_bytes = kk_kv_head_bytes(s->format, s->head_dim),
                        .code_bytes = KK_PAGE_ROWS * kk_kv_plane_bytes(s->format, 0, s->head_dim)};
}

kk_cu_rows kk_cuda_rows(const kk_dev *dev, const kk_cuda_view *v) {
    uint8_t *c = dev->control;
    return (kk_cu_rows){.pos = (const int64_t *)(const void *)(c + v->pos),
                        .table = (const int32_t *)(const void *)(c + v->table),
                        .pages = (uint8_t *const *)(const void *)(c + v->pages),
                        .tile = (const kk_cu_tile *)(const void *)(c + v->tile),
                        .n_rows = v->n_rows,
                        .tiles = v->tiles,
                        .tile_most = v->tile_most,
                        .most_pages = v->page_cap};
}

/* ---- products ------------------------------------------------------------------------------- */

kk_status kk_cuda_round(kk_dev *dev, const float *x, int32_t n_rows, int32_t dim, int32_t pitch,
                        bool swizzled, kk_err *err) {
    const kk_cu_round r = {dev->x.data, x, n_rows, dim, pitch, swizzled};
    if ((size_t)n_rows * (size_t)pitch * 2 > dev->x.bytes)
        return kk_fail(err, KK_EINVAL, "%d rows of %d values were not prepared for", n_rows, dim);
    KK_CUDA_TRY(kk_cu_run_round(kk_cuda_at(dev), &r), "rounding rows", err);
    return KK_OK;
}

/* Up to 16 rows in as many launches as shared memory asks for, each of which reads all weights. */
static cudaError_t run_in_turns(kk_dev *dev, const kk_cu_linear *l) {
    const int32_t most = kk_cu_linear_rows(dev->shared, l->n_in);
    cudaError_t e = cudaSuccess;
    dev->counts.repeats += l->n_rows > most;
    for (int32_t r = 0; r < l->n_rows && e == cudaSuccess; r += most) {
        kk_cu_linear some = *l;
        some.n_rows = l->n_rows - r < most ? l->n_rows - r : most;
        some.x += (size_t)r * (size_t)l->n_in;
        for (int32_t i = 0; i < l->n_parts; i++) {
            const size_t width = l->part[i].up.data ? sizeof(uint16_t) : sizeof(float);
            some.part[i].out =
                (uint8_t *)l->part[i].out + (size_t)r * (size_t)l->part[i].pitch * width;
        }
        e = kk_cu_run_linear(kk_cuda_at(dev), &some);
    }
    return e;
}

/* K slices in dev->parts, which are added where the caller does not do that. */
static cudaError_t run_slices(const kk_dev *dev, const kk_cu_linear *l, bool *sliced) {
    const kk_cu_at at = kk_cuda_at(dev);
    const kk_cu_join j = {l->part[0].out, dev->parts.data, l->n_rows, (int32_t)l->part[0].w.n_out};
    const cudaError_t e = kk_cu_run_slices(at, l, dev->parts.data);
    if (sliced) *sliced = true;
    return e != cudaSuccess || sliced ? e : kk_cu_run_join(at, &j);
}

static bool slices_fit(const kk_dev *dev, const kk_cu_linear *l) {
    const size_t slice = (size_t)l->n_rows * (size_t)l->part[0].w.n_out * sizeof(float);
    return l->part[0].pitch == l->part[0].w.n_out && slice <= dev->parts.bytes / KK_CU_SLICES;
}

/* A plain device keeps to one way, which tests hold the others against. */
static cudaError_t run_product(kk_dev *dev, const kk_cu_linear *l, bool *sliced) {
    const kk_cu_at at = kk_cuda_at(dev);
    if (l->n_rows > KK_CU_ROWS) return kk_cu_run_gemm(at, l);
    if (!dev->fuse) return run_in_turns(dev, l);
    if (kk_cu_linear_fits(at, l)) return kk_cu_run_linear(at, l);
    if (kk_cu_slices_takes(at, l) && slices_fit(dev, l)) return run_slices(dev, l, sliced);
    if (kk_cu_wide_takes(at, l)) return kk_cu_run_wide(at, l);
    return run_in_turns(dev, l);
}

kk_status kk_cuda_multiply(kk_dev *dev, const kk_cu_linear *l, bool *sliced, kk_err *err) {
    if (sliced) *sliced = false;
    KK_CUDA_TRY(run_product(dev, l, sliced), "a product", err);
    return KK_OK;
}

kk_status kk_cuda_linear_rounded(kk_dev *dev, const kk_linear_args *a, kk_err *err) {
    const int32_t pitch = a->w[0]->w.wrap * 32;
    kk_cu_linear l = {.n_parts = a->n, .x = dev->x.data, .n_rows = a->n_rows, .n_in = pitch};
    for (int32_t i = 0; i < a->n; i++) {
        l.part[i].w = a->w[i]->w;
        l.part[i].out = kk_cuda_f(a->out[i]);
        l.part[i].pitch = (int32_t)a->w[i]->w.n_out;
    }
    return kk_cuda_multiply(dev, &l, NULL, err);
}

kk_status kk_cuda_linear_now(kk_dev *dev, const kk_linear_args *a, kk_err *err) {
    const kk_cu_weight *w = &a->w[0]->w;
    KK_TRY(kk_cuda_round(dev, kk_cuda_f(a->x), a->n_rows, (int32_t)w->n_in, w->wrap * 32,
                         a->n_rows > KK_CU_ROWS, err));
    return kk_cuda_linear_rounded(dev, a, err);
}

bool kk_cuda_chooses_later(const kk_route_args *a) {
    enum { ROWS = 3 }; /* every block chooses for all rows: one kernel is faster for more */
    return a->n_rows <= ROWS && a->proj->w.n_out <= KK_CU_FEW_EXPERTS;
}

kk_status kk_cuda_choose_now(kk_dev *dev, const kk_route_args *a, const uint16_t *x, bool later,
                             kk_err *err) {
    const kk_cu_weight *w = &a->proj->w;
    const int32_t pitch = w->wrap * 32, n_expert = (int32_t)w->n_out;
    const int32_t most = kk_cu_linear_rows(dev->shared, pitch);
    kk_cu_linear l = {.n_parts = 1, .x = x, .n_rows = a->n_rows, .n_in = pitch};
    l.part[0].w = *w;
    l.part[0].out = dev->logits.data;
    l.part[0].pitch = n_expert;
    int32_t slices = 1;
    if (a->n_rows > KK_CU_ROWS) {
        KK_CUDA_TRY(kk_cu_run_cut_gemm(kk_cuda_at(dev), &l, &slices), "the router", err);
    } else {
        for (int32_t r = 0; r < a->n_rows; r += most) {
            l.n_rows = a->n_rows - r < most ? a->n_rows - r : most;
            l.x = x + (size_t)r * (size_t)pitch;
            l.part[0].out = (float *)dev->logits.data + (size_t)r * (size_t)n_expert;
            KK_CUDA_TRY(kk_cu_run_linear(kk_cuda_at(dev), &l), "the router", err);
        }
    }
    if (later) return KK_OK;
    const kk_cu_choice c = {.logits = dev->logits.data,
                            .slices = slices,
                            .scale = kk_cuda_f(a->per_expert_scale),
                            .expert = a->expert->data,
                            .weight = kk_cuda_f(a->weight),
                            .n_rows = a->n_rows,
                            .n_used = a->n_used,
                            .n_expert = n_expert};
    KK_CUDA_TRY(kk_cu_run_choose(kk_cuda_at(dev), &c), "choosing experts", err);
    return KK_OK;
}

static kk_status route_now(kk_dev *dev, const kk_route_args *a, kk_err *err) {
    const kk_cu_weight *w = &a->proj->w;
    const int32_t dim = (int32_t)w->n_in, pitch = w->wrap * 32;
    if ((size_t)a->n_rows * (size_t)pitch * 2 > dev->x.bytes ||
        (size_t)a->n_rows * (size_t)w->n_out * 4 * 8 > dev->logits.bytes)
        return kk_fail(err, KK_EINVAL, "a router of %d rows was not prepared for", a->n_rows);
    if (pitch != dim)
        KK_CUDA_TRY(
            cudaMemsetAsync(dev->x.data, 0, (size_t)a->n_rows * (size_t)pitch * 2, dev->stream),
            "clearing rows", err);
    const kk_cu_between b = {.x = kk_cuda_f(a->x),
                             .eps = a->eps,
                             .root = 1.0f / sqrtf((float)dim),
                             .z3 = dev->x.data,
                             .w3 = kk_cuda_f(a->scale),
                             .n_rows = a->n_rows,
                             .dim = dim,
                             .pitch = pitch,
                             .swizzled = a->n_rows > KK_CU_ROWS};
    kk_cu_at at = kk_cuda_at(dev);
    if (pitch != dim) at.early = false;
    KK_CUDA_TRY(kk_cu_run_between(at, &b), "the router's norm", err);
    return kk_cuda_choose_now(dev, a, dev->x.data, false, err);
}

/* Up to 16 rows. */
static cudaError_t run_few_experts(kk_cu_at at, const kk_dev *dev, const kk_cu_experts *e) {
    const kk_cu_gate g = {.choice = e->choice,
                          .gate = e->gate,
                          .up = e->up,
                          .x = e->x,
                          .act = e->act,
                          .ffn = e->ffn,
                          .act_pitch = e->act_pitch};
    const cudaError_t st = kk_cu_run_gate(at, &g);
    if (st != cudaSuccess) return st;
    const kk_cu_down d = {e->choice, e->down, e->act, e->act_pitch, e->out};
    return kk_cu_run_down(kk_cuda_at(dev), &d);
}

static bool experts_tiled(const kk_experts_args *a) {
    const kk_cu_weight none = {0};
    return a->n_rows > KK_CU_ROWS &&
           kk_cu_experts_tiled(&a->gate->w, a->up ? &a->up->w : &none, a->ffn);
}

static bool experts_fit(const kk_dev *dev, const kk_experts_args *a, size_t at_once) {
    const size_t pairs = at_once * (size_t)a->n_used;
    if (pairs * (size_t)a->down->w.wrap * 64 > dev->act.bytes) return false;
    return at_once <= KK_CU_ROWS ||
           (pairs * (size_t)a->down->w.n_out * 4 <= dev->each.bytes &&
            kk_cu_experts_scratch((int32_t)pairs, (int32_t)a->gate->w.n_mat) <= dev->lists.bytes);
}

kk_status kk_cuda_experts_now(kk_dev *dev, const kk_experts_args *a, const kk_route_args *route,
                              const uint16_t *x, kk_err *err) {
    const int32_t pitch = a->gate->w.wrap * 32, act_pitch = a->down->w.wrap * 32;
    const bool tiled = experts_tiled(a);
    int32_t most = tiled ? a->n_rows : kk_cu_linear_rows(dev->shared, pitch);
    /* A block has a thread for each (row, expert) pair, and one more that counts them. */
    while (!tiled && most > 1 && most * a->n_used >= KK_CU_BLOCK) most /= 2;
    if (most > KK_CUDA_EXPERT_ROWS) most = KK_CUDA_EXPERT_ROWS;
    if (!experts_fit(dev, a, (size_t)(most < a->n_rows ? most : a->n_rows)))
        return kk_fail(err, KK_EINVAL, "experts of %d rows were not prepared for", a->n_rows);
    for (int32_t r = 0; r < a->n_rows; r += most) {
        const int32_t n = a->n_rows - r < most ? a->n_rows - r : most;
        const size_t slot = (size_t)r * (size_t)a->n_used;
        kk_cu_experts e = {.choice = {.expert = (int32_t *)a->expert->data + slot,
                                      .weight = kk_cuda_f(a->weight) + slot,
                                      .n_rows = n,
                                      .n_used = a->n_used,
                                      .n_expert = (int32_t)a->gate->w.n_mat},
                           .gate = a->gate->w,
                           .down = a->down->w,
                           .x = x + (size_t)r * (size_t)pitch,
                           .act = dev->act.data,
                           .ffn = a->ffn,
                           .act_pitch = act_pitch,
                           .each = dev->each.data,
                           .scratch = dev->lists.data,
                           .out = kk_cuda_f(a->out) + (size_t)r * (size_t)a->down->w.n_out};
        if (a->up) e.up = a->up->w;
        if (route) {
            e.choice.logits =
                (const float *)dev->logits.data + (size_t)r * (size_t)a->gate->w.n_mat;
            e.choice.scale = kk_cuda_f(route->per_expert_scale);
        }
        kk_cu_at at = kk_cuda_at(dev);
        if (act_pitch !=
            a->ffn) { /* the padding of a row is multiplied by weights of 0, and must be finite */
            const size_t bytes = (size_t)n * (size_t)a->n_used * (size_t)act_pitch * 2;
            KK_CUDA_TRY(cudaMemsetAsync(dev->act.data, 0, bytes, dev->stream), "clearing rows",
                        err);
            at.early = false;
        }
        KK_CUDA_TRY(tiled ? kk_cu_run_experts(at, &e) : run_few_experts(at, dev, &e), "experts",
                    err);
        KK_TRY(
            kk_cuda_count_reads(dev, a->gate, a->up, a->down, e.choice.expert, n * a->n_used, err));
    }
    return KK_OK;
}

static kk_status experts_now(kk_dev *dev, const kk_experts_args *a, kk_err *err) {
    const int32_t pitch = a->gate->w.wrap * 32;
    KK_TRY(kk_cuda_round(dev, kk_cuda_f(a->x), a->n_rows, (int32_t)a->gate->w.n_in, pitch,
                         experts_tiled(a), err));
    return kk_cuda_experts_now(dev, a, NULL, dev->x.data, err);
}

/* ---- attention ------------------------------------------------------------------------------ */

kk_cu_store kk_cuda_store_args(const kk_dev *dev, const kk_store_args *a, const kk_cuda_view *v) {
    return (kk_cu_store){.q = kk_cuda_f(a->q),
                         .k = kk_cuda_f(a->k),
                         .v = kk_cuda_f(a->v),
                         .q_norm = kk_cuda_f(a->q_norm),
                         .k_norm = kk_cuda_f(a->k_norm),
                         .rope_rows = kk_cuda_f(a->rope_rows),
                         .n_rot = a->n_rot,
                         .n_head = a->n_head,
                         .slot = kk_cuda_slot(&a->slot),
                         .rows = kk_cuda_rows(dev, v),
                         .eps = a->eps,
                         .v_raw = a->v_raw};
}

kk_status kk_cuda_store_now(kk_dev *dev, const kk_store_args *a, const kk_cuda_view *v,
                            kk_err *err) {
    const kk_cu_store s = kk_cuda_store_args(dev, a, v);
    KK_CUDA_TRY(kk_cu_run_store(kk_cuda_at(dev), &s), "storing K/V rows", err);
    return KK_OK;
}

/* Rows that a query sees in its window; 0: all. */
static int32_t rows_seen(const kk_attend_args *a, const kk_evicted *how) {
    if (!how) return a->window;
    const int64_t kept = (int64_t)how->window + (how->chunk > 1 ? how->chunk : 1);
    return a->window && a->window < kept ? a->window : kept < INT32_MAX / 2 ? (int32_t)kept : 0;
}

/* The arguments of attention, except its outputs.  how: which rows are evicted; NULL: none. */
static kk_cu_attend attend_args(const kk_dev *dev, const kk_attend_args *a, const kk_evicted *how,
                                const kk_cuda_view *v) {
    kk_cu_attend t = {.q = kk_cuda_f(a->q),
                      .k_norm = kk_cuda_f(a->k_norm),
                      .rope_pos = kk_cuda_f(a->rope_pos),
                      .n_rot = a->n_rot,
                      .n_head = a->n_head,
                      .window = a->window,
                      .sink = a->sink,
                      .block = a->block,
                      .slot = kk_cuda_slot(&a->slot),
                      .rows = kk_cuda_rows(dev, v),
                      .scale = a->scale,
                      .parts = dev->parts.data,
                      .n_tiles = v->tiles};
    if (how) {
        t.keep = how->window;
        t.chunk = how->chunk > 1 ? how->chunk : 1;
    }
    const int32_t window = rows_seen(a, how);
    if (window) { /* a tile sees at most this many pages, however long the session is */
        const int32_t most_group = a->block ? v->n_rows : v->tile_most;
        const int32_t sink = (a->sink + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS;
        const int32_t seen = (window + most_group) / KK_PAGE_ROWS + 2 + sink;
        if (seen < t.rows.most_pages) t.rows.most_pages = seen;
    }
    return t;
}

kk_cu_attend kk_cuda_attend_args(const kk_dev *dev, const kk_attend_args *a,
                                 const kk_cuda_view *v) {
    return attend_args(dev, a, NULL, v);
}

/* Launches as many tiles at a time as fit the scratch of parts; tile: bytes of one. */
static kk_status attend_tiles(kk_dev *dev, kk_cu_attend t, int32_t tiles, size_t tile,
                              cudaError_t (*run)(kk_cu_at, const kk_cu_attend *), kk_err *err) {
    if (tile > dev->parts.bytes)
        return kk_fail(err, KK_EINVAL, "attention over %d pages at once exceeds its scratch",
                       t.rows.most_pages);
    const int32_t most = (int32_t)(dev->parts.bytes / tile < 4096 ? dev->parts.bytes / tile : 4096);
    for (int32_t i = 0; i < tiles; i += most) {
        t.first_tile = i;
        t.n_tiles = tiles - i < most ? tiles - i : most;
        KK_CUDA_TRY(run(kk_cuda_at(dev), &t), "attention", err);
    }
    return KK_OK;
}

/* first: some row may see page 0. */
static kk_status run_attend(kk_dev *dev, const kk_attend_args *a, const kk_cuda_view *v,
                            kk_cu_attend t, bool first, kk_err *err) {
    if (v->sinks && first) KK_TRY(kk_cuda_join_sinks(dev, a, v, &t, err));
    const size_t row = kk_cu_attend_row_bytes(a->n_head, a->slot.head_dim, t.rows.most_pages);
    /* Up to 16 rows are split over pages, unless one row's pages exceed the scratch: many heads and
     * a long context. */
    if (kk_cu_attend_tiles(dev->shared, a->slot.head_dim) &&
        (v->tile_most > KK_CU_ROWS || row > dev->parts.bytes))
        return attend_tiles(dev, t, v->tiles, kk_cu_attend_tile_bytes(&t), kk_cu_run_attend_tiles,
                            err);
    if (t.rows.tile_most > KK_CU_ROWS) t.rows.tile_most = KK_CU_ROWS;
    while (t.rows.tile_most > 1 && (size_t)t.rows.tile_most * row > dev->parts.bytes)
        t.rows.tile_most /= 2;
    for (; t.first_row < v->tile_most; t.first_row += t.rows.tile_most)
        KK_TRY(
            attend_tiles(dev, t, v->tiles, (size_t)t.rows.tile_most * row, kk_cu_run_attend, err));
    return KK_OK;
}

kk_status kk_cuda_attend_now(kk_dev *dev, const kk_attend_args *a, const kk_cuda_view *v,
                             float *out, uint16_t *out_bf16, int32_t pitch, kk_err *err) {
    kk_cu_attend t = attend_args(dev, a, NULL, v);
    t.out = out;
    t.out_bf16 = out_bf16;
    t.bf16_pitch = pitch;
    return run_attend(dev, a, v, t, true, err);
}

kk_status kk_cuda_attend_stored(kk_dev *dev, const kk_attend_args *a, const kk_evicted *how,
                                kk_cuda_visible sees, const kk_cuda_view *v, float *sums,
                                kk_err *err) {
    kk_cu_attend t = attend_args(dev, a, how, v);
    t.out = kk_cuda_f(a->out);
    t.sums = sums;
    return run_attend(dev, a, v, t, sees.first, err);
}

/* ---- one by one ----------------------------------------------------------------------------- */

/* Where an operation's ids or row numbers lie on the device. */
static const void *control_of(const kk_dev *dev, const kk_cuda_op *op) {
    return dev->control + op->control;
}

static cudaError_t run_embed(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_embed_args *a = &op->a.embed;
    const int32_t *token = a->chosen ? a->chosen->data : control_of(dev, op);
    const kk_cu_embed e = {kk_cuda_f(a->out), a->table->w, token, a->n_rows, a->scale};
    return kk_cu_run_embed(kk_cuda_at(dev), &e);
}

static cudaError_t run_ple(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_ple_args *a = &op->a.ple;
    const int32_t *token = a->chosen ? a->chosen->data : control_of(dev, op);
    const kk_cu_ple e = {kk_cuda_f(a->out),
                         kk_cuda_f(a->proj),
                         kk_cuda_f(a->w),
                         a->table->w,
                         token,
                         a->n_rows,
                         a->n_layer,
                         a->dim,
                         a->proj_scale,
                         a->scale,
                         a->eps};
    return kk_cu_run_ple(kk_cuda_at(dev), &e);
}

static cudaError_t run_gather(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_gather_args *a = &op->a.gather;
    const kk_cu_gather e = {
        kk_cuda_f(a->out),
        kk_cuda_f(a->x),
        a->first < 0 ? (const void *)(dev->control + op->control + sizeof(size_t)) : NULL,
        a->n,
        a->dim,
        a->first,
        (const void *)(dev->control + op->control),
        a->out_stride};
    return kk_cu_run_gather(kk_cuda_at(dev), &e);
}

static cudaError_t run_norm(const kk_dev *dev, const kk_norm_args *a) {
    const kk_cu_norm e = {kk_cuda_f(a->out), kk_cuda_f(a->x), kk_cuda_f(a->w),
                          a->n_rows,         a->dim,          a->eps};
    return kk_cu_run_norm(kk_cuda_at(dev), &e);
}

static cudaError_t run_residual(const kk_dev *dev, const kk_residual_args *a) {
    const kk_cu_residual e = {kk_cuda_f(a->x), kk_cuda_f(a->a), kk_cuda_f(a->w), a->n_rows,
                              a->dim,          a->eps,          a->scale};
    return kk_cu_run_residual(kk_cuda_at(dev), &e);
}

static cudaError_t run_glu(const kk_dev *dev, const kk_glu_args *a) {
    const kk_cu_glu e = {kk_cuda_f(a->out), kk_cuda_f(a->gate), kk_cuda_f(a->up), a->n_rows, a->dim,
                         a->up_stride,      a->up_offset,       a->act == KK_SILU};
    return kk_cu_run_glu(kk_cuda_at(dev), &e);
}

static cudaError_t run_softcap(const kk_dev *dev, const kk_softcap_args *a) {
    const kk_cu_softcap e = {kk_cuda_f(a->x), (size_t)a->n_rows * (size_t)a->dim, a->cap};
    return kk_cu_run_softcap(kk_cuda_at(dev), &e);
}

static cudaError_t run_argmax(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_argmax_args *a = &op->a.argmax;
    const int32_t *map = a->map ? a->map->data : NULL;
    if (a->ids && a->n_rows <= KK_CU_CHOOSE_ROWS) {
        const kk_cu_mapped_top t = {{(int32_t *)a->ids->data + a->ids_at, kk_cuda_f(a->x),
                                     a->n_rows, a->dim, a->banned, dev->top_scratch},
                                    map};
        return kk_cu_run_mapped_top(kk_cuda_at(dev), &t);
    }
    int32_t *out = a->ids ? (int32_t *)a->ids->data + a->ids_at
                          : (int32_t *)(void *)(dev->control + op->control);
    const kk_cu_argmax e = {out, kk_cuda_f(a->x), a->n_rows, a->dim, a->banned};
    const cudaError_t st = kk_cu_run_argmax(kk_cuda_at(dev), &e);
    if (st != cudaSuccess || !map) return st;
    const kk_cu_map m = {out, map, a->n_rows};
    return kk_cu_run_map(kk_cuda_at(dev), &m);
}

/* Compares what was chosen with the draft, where there is one. */
static cudaError_t run_match(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_choose_args *a = &op->a.choose;
    if (!a->draft) return cudaSuccess;
    const kk_cu_match m = {
        .draft = a->draft->data,
        .token = a->token->data,
        .right = a->right->data,
        .next = {a->next[0] ? a->next[0]->data : NULL, a->next[1] ? a->next[1]->data : NULL},
        .ring = dev->picks,
        .slot = control_of(dev, op),
        .n_rows = a->n_rows};
    return kk_cu_run_match(kk_cuda_at(dev), &m);
}

static cudaError_t run_choose(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_choose_args *a = &op->a.choose;
    const kk_cu_choose e = {a->token->data, dev->picks, control_of(dev, op), kk_cuda_f(a->x),
                            a->n_rows,      a->dim,     dev->choose_scratch};
    const cudaError_t st = kk_cu_run_choose_rows(kk_cuda_at(dev), &e);
    return st == cudaSuccess ? run_match(dev, op) : st;
}

static cudaError_t run_sample(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_choose_args *a = &op->a.choose;
    const kk_cu_sample e = {.token = a->token->data,
                            .ring = dev->picks,
                            .logprobs = dev->pick_logprobs,
                            .slot = control_of(dev, op),
                            .x = kk_cuda_f(a->x),
                            .n_rows = a->n_rows,
                            .dim = a->dim,
                            .pending = a->pending ? a->pending->data : NULL,
                            .rows = (const void *)(dev->control + op->control + KK_CUDA_ROWS_AT),
                            .data = dev->control,
                            .scratch = dev->sample_scratch};
    const cudaError_t st = kk_cu_run_sample(kk_cuda_at(dev), &e, dev->sample_blocks);
    return st == cudaSuccess ? run_match(dev, op) : st;
}

static cudaError_t run_ids(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_cu_ids e = {op->a.ids.out->data, control_of(dev, op), op->a.ids.n};
    return kk_cu_run_ids(kk_cuda_at(dev), &e);
}

static cudaError_t run_replay(const kk_dev *dev, const kk_cuda_op *op) {
    const kk_replay_args *a = &op->a.replay;
    const kk_cu_replay e = {.ids = (int32_t *)a->ids->data + a->ids_at,
                            .record = a->record->data,
                            .shift = a->shift ? a->shift->data : NULL,
                            .how = control_of(dev, op),
                            .n = a->n,
                            .n_record = a->n_record,
                            .vocab = a->vocab};
    return kk_cu_run_replay(kk_cuda_at(dev), &e);
}

static cudaError_t run_rows_op(const kk_dev *dev, const kk_cuda_op *op) {
    switch (op->kind) {
    case KK_CUDA_EMBED: return run_embed(dev, op);
    case KK_CUDA_NORM: return run_norm(dev, &op->a.norm);
    case KK_CUDA_RESIDUAL: return run_residual(dev, &op->a.residual);
    case KK_CUDA_GLU: return run_glu(dev, &op->a.glu);
    case KK_CUDA_PLE: return run_ple(dev, op);
    case KK_CUDA_GATHER: return run_gather(dev, op);
    case KK_CUDA_SOFTCAP: return run_softcap(dev, &op->a.softcap);
    case KK_CUDA_ARGMAX: return run_argmax(dev, op);
    case KK_CUDA_CHOOSE: return run_choose(dev, op);
    case KK_CUDA_IDS: return run_ids(dev, op);
    case KK_CUDA_REPLAY: return run_replay(dev, op);
    case KK_CUDA_SAMPLE: return run_sample(dev, op);
    default: return cudaErrorInvalidValue;
    }
}

/* Consecutive RoPE tables go in one launch. */
static kk_status run_ropes(const kk_dev *dev, const kk_cuda_op *ops, int32_t n, int32_t *used,
                           kk_err *err) {
    kk_cu_rope ropes[KK_CU_ROPES];
    for (*used = 0; *used < n && *used < KK_CU_ROPES && ops[*used].kind == KK_CUDA_ROPE; ++*used) {
        const kk_rope_args *a = &ops[*used].a.rope;
        ropes[*used] = (kk_cu_rope){
            kk_cuda_f(a->table), a->n,           (const void *)(dev->control + ops[*used].control),
            a->rope.theta,       a->rope.factor, a->rope.n_rot,
            a->rope.head_dim};
    }
    KK_CUDA_TRY(kk_cu_run_ropes(kk_cuda_at(dev), ropes, *used), "angles", err);
    return KK_OK;
}

static kk_status run_op(kk_dev *dev, const kk_cuda_op *op, const kk_cuda_view *views, kk_err *err) {
    switch (op->kind) {
    case KK_CUDA_LINEAR: return kk_cuda_linear_now(dev, &op->a.linear, err);
    case KK_CUDA_ROUTE: return route_now(dev, &op->a.route, err);
    case KK_CUDA_EXPERTS: return experts_now(dev, &op->a.experts, err);
    case KK_CUDA_STORE: return kk_cuda_store_now(dev, &op->a.store, &views[op->view], err);
    case KK_CUDA_ATTEND:
        return kk_cuda_attend_now(dev, &op->a.attend, &views[op->view], kk_cuda_f(op->a.attend.out),
                                  NULL, 0, err);
    case KK_CUDA_KEEP: return kk_cuda_keep_now(dev, &op->a.keep, &views[op->view], err);
    case KK_CUDA_EVICTED:
        return kk_cuda_evicted_now(dev, &op->a.evicted.attend, &op->a.evicted.how,
                                   op->a.evicted.sees, NULL, &views[op->view], err);
    default: {
        const cudaError_t e = run_rows_op(dev, op);
        return e == cudaSuccess ? KK_OK : kk_cuda_fail(err, e, "an operation on rows");
    }
    }
}

/* One more range of positions in the control block. */
static bool add_shift(const kk_dev *dev, kk_cu_shift *s, const kk_buf *by, size_t off, int32_t rows,
                      int32_t each, int32_t stride) {
    if (!by) return true;
    if (s->n == KK_CU_SHIFTS || (s->by && s->by != by->data)) return false;
    s->by = by->data;
    s->of[s->n].at = (int64_t *)(void *)(dev->control + off);
    s->of[s->n].rows = rows;
    s->of[s->n].each = each;
    s->of[s->n++].stride = stride;
    return true;
}

/* Positions that only the device knows, before anything reads them. */
static kk_status shift_positions(const kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                                 const kk_cuda_view *views, int32_t n_views, kk_err *err) {
    kk_cu_shift s = {0};
    bool fits = true;
    for (int32_t i = 0; i < n_views; i++) {
        const kk_cuda_view *v = &views[i];
        fits = fits && add_shift(dev, &s, v->shift, v->pos, v->n_rows, 1, 1) &&
               add_shift(dev, &s, v->shift, v->tile, v->tiles, 3, sizeof(kk_cu_tile) / 8);
    }
    for (int32_t i = 0; i < n; i++)
        if (ops[i].kind == KK_CUDA_ROPE)
            fits = fits && add_shift(dev, &s, ops[i].a.rope.shift, ops[i].control + 8,
                                     (int32_t)ops[i].a.rope.n, 1, 1);
    if (!fits) return kk_fail(err, KK_EINVAL, "positions of too many kinds follow a draft");
    if (s.n) KK_CUDA_TRY(kk_cu_run_shift(kk_cuda_at(dev), &s), "positions", err);
    return KK_OK;
}

kk_status kk_cuda_plan(kk_dev *dev, const kk_cuda_op *ops, int32_t n, const kk_cuda_view *views,
                       int32_t n_views, kk_err *err) {
    KK_TRY(shift_positions(dev, ops, n, views, n_views, err));
    for (int32_t i = 0; i < n;) {
        int32_t used = 0;
        if (ops[i].kind == KK_CUDA_LAYER) {
            KK_TRY(kk_cuda_run_layers(dev, ops + i, n - i, views, &used, err));
        } else if (ops[i].kind == KK_CUDA_EVICTED_LAYER) {
            KK_TRY(kk_cuda_run_prompt(dev, ops + i, n - i, views, &used, err));
        } else if (ops[i].kind == KK_CUDA_ROPE) {
            KK_TRY(run_ropes(dev, ops + i, n - i, &used, err));
        } else if (ops[i].kind == KK_CUDA_SCALE) {
            KK_TRY(kk_cuda_scales_now(dev, ops + i, n - i, views, &used, err));
        } else {
            KK_TRY(kk_cuda_run_pairs(dev, ops + i, n - i, views, &used, err));
            if (!used) KK_TRY(run_op(dev, &ops[i], views, err));
            used = used ? used : 1;
        }
        i += used;
    }
    return KK_OK;
}
