/* cuda_evicted.c - rows that are no longer stored: memory for them, what is made of decoders, and
 * launches of attention that rebuilds them.
 *
 * Attention over stored rows comes first, in the ordinary kernels, which leave the largest score
 * and the sum of each softmax; attention over latents (cuda_evicted.cu) adds the others.
 * Decoders are read in an order of their own, made once from the weights as floats, so that it does
 * not matter how the device stores weights. */
#include <assert.h>

#include "backend/cuda/cuda_device.h"

enum {
    LEAST_SINKS = 4,
    SPAN = 8,            /* pages of a full layer that a block takes in order */
    NEXT_MOST = 24 << 20 /* bytes of weights that are brought to L2 ahead */
};

/* ---- shapes --------------------------------------------------------------------------------- */

/* How many values of each half of a key are rebuilt: where K = V those that are rotated, in whole
 * sixteens, and all of them elsewhere. */
static int32_t rebuilt_half(bool k_eq_v, int32_t head_dim, int32_t n_rot) {
    const int32_t half = head_dim / 2, rotated = (n_rot + 15) / 16 * 16;
    return k_eq_v && rotated < half ? rotated : half;
}
static int32_t padded_half(int32_t half) { return half <= 32 ? 32 : (half + 15) / 16 * 16; }

static size_t slot_bytes(const kk_kv_slot *s) {
    const size_t part = (size_t)s->n_kv_head * kk_kv_head_bytes(s->format, s->head_dim);
    return s->k_eq_v ? part : 2 * part;
}

static kk_status check_shape(const kk_dev *dev, int32_t head_dim, int32_t rank, kk_err *err) {
    const kk_cu_evicted a = {.rank = rank, .wide = padded_half(head_dim / 2)};
    if (rank > KK_CU_LATENT_RANK || kk_cu_evicted_shared(&a, 8) > dev->shared)
        return kk_fail(err, KK_EDEVICE,
                       "latents of %d values and heads of %d do not fit the GPU's kernels", rank,
                       head_dim);
    return KK_OK;
}

/* ---- decoders ------------------------------------------------------------------------------- */

static bool is_for(const kk_cuda_decoder *d, const kk_cuda_decoder *want) {
    return d->w == want->w && d->order == want->order && d->head_dim == want->head_dim &&
           d->half == want->half && d->wide == want->wide;
}

static const kk_cuda_decoder *find_decoder(const kk_dev *dev, const kk_cuda_decoder *want) {
    for (int32_t i = 0; i < KK_CUDA_DECODERS && dev->decoders[i].w; i++)
        if (is_for(&dev->decoders[i], want)) return &dev->decoders[i];
    return NULL;
}

static void drop_decoder(kk_dev *dev, kk_cuda_decoder *d) {
    kk_cuda_give_for(dev, KK_MEM_WEIGHTS_PROJECTION, d->data, d->bytes);
    *d = (kk_cuda_decoder){0};
}

/* Those that are left stay together at the front. */
void kk_cuda_drop_decoders(kk_dev *dev, const void *w) {
    int32_t left = 0;
    for (int32_t i = 0; i < KK_CUDA_DECODERS && dev->decoders[i].w; i++) {
        kk_cuda_decoder *d = &dev->decoders[i];
        if (!w || d->w == w) {
            drop_decoder(dev, d);
            continue;
        }
        const kk_cuda_decoder kept = *d;
        *d = (kk_cuda_decoder){0};
        dev->decoders[left++] = kept;
    }
    for (int32_t i = 0; i < KK_CUDA_ANGLES && !w; i++) {
        kk_cuda_give(dev, dev->angles[i].data, dev->angles[i].bytes);
        dev->angles[i] = (kk_cuda_angles){0};
    }
}

/* Scratch while decoders are laid out: row numbers of a head, and its rows as floats. */
typedef struct {
    int32_t *id;
    float *rows;
    size_t id_bytes, rows_bytes;
} laying;

static kk_status open_laying(kk_dev *dev, laying *l, int32_t head_dim, int64_t rank, kk_err *err) {
    void *p;
    l->id_bytes = (size_t)head_dim * sizeof *l->id;
    l->rows_bytes = (size_t)head_dim * (size_t)rank * sizeof *l->rows;
    KK_TRY(kk_cuda_take(dev, l->id_bytes, &p, err));
    l->id = p;
    KK_TRY(kk_cuda_take(dev, l->rows_bytes, &p, err));
    l->rows = p;
    return KK_OK;
}

/* Rows of one head as floats, and from these the decoder's part. */
static kk_status lay_head(kk_dev *dev, const kk_cuda_decoder *d, int32_t head, const laying *l,
                          kk_err *err) {
    int32_t id[512];
    assert(d->head_dim <= 512);
    for (int32_t i = 0; i < d->head_dim; i++) id[i] = head * d->head_dim + i;
    const kk_cu_embed rows = {l->rows, d->w->w, l->id, d->head_dim, 1.0f};
    const kk_cu_decoder lay = {.to = d->data,
                               .from = l->rows,
                               .order = d->order,
                               .head = head,
                               .head_dim = d->head_dim,
                               .rank = (int32_t)d->w->w.n_in,
                               .half = d->half,
                               .wide = d->wide};
    kk_cu_at at = kk_cuda_at(dev);
    at.early = false;
    KK_CUDA_TRY(cudaMemcpyAsync(l->id, id, l->id_bytes, cudaMemcpyHostToDevice, dev->stream),
                "reading a decoder", err);
    KK_CUDA_TRY(kk_cu_run_embed(at, &rows), "reading a decoder", err);
    KK_CUDA_TRY(kk_cu_run_decoder(at, &lay), "laying out a decoder", err);
    return KK_OK;
}

static kk_status fill_decoder(kk_dev *dev, kk_cuda_decoder *d, kk_err *err) {
    const int64_t rank = d->w->w.n_in, heads = d->w->w.n_out / d->head_dim;
    const kk_cu_decoder one = {.order = d->order,
                               .head_dim = d->head_dim,
                               .rank = (int32_t)rank,
                               .half = d->half,
                               .wide = d->wide};
    laying l = {0};
    d->bytes = (size_t)heads * kk_cu_decoder_bytes(&one);
    KK_TRY(kk_cuda_take_for(dev, KK_MEM_WEIGHTS_PROJECTION, d->bytes, &d->data, err));
    kk_status st = open_laying(dev, &l, d->head_dim, rank, err);
    for (int32_t i = 0; st == KK_OK && i < (int32_t)heads; i++) st = lay_head(dev, d, i, &l, err);
    if (st == KK_OK) {
        const cudaError_t e = cudaStreamSynchronize(dev->stream);
        if (e != cudaSuccess) st = kk_cuda_fail(err, e, "laying out a decoder");
    }
    kk_cuda_give(dev, l.id, l.id_bytes);
    kk_cuda_give(dev, l.rows, l.rows_bytes);
    return st;
}

/* The decoder in an order, which is made if it is not there yet. */
static kk_status need_decoder(kk_dev *dev, const kk_cuda_decoder *want, kk_err *err) {
    if (find_decoder(dev, want)) return KK_OK;
    if (want->head_dim < 8 || want->head_dim > 512 || want->head_dim % 8 ||
        want->w->w.n_out % want->head_dim)
        return kk_fail(err, KK_EINVAL,
                       "decoders of heads of %d values do not fit the GPU's kernels",
                       want->head_dim);
    int32_t at = 0;
    while (at < KK_CUDA_DECODERS && dev->decoders[at].w) at++;
    if (at == KK_CUDA_DECODERS)
        return kk_fail(err, KK_EDEVICE, "the GPU keeps decoders of %d layers", at / 3);
    KK_TRY(kk_cuda_sync(dev, err)); /* queued work stays before what is launched here */
    kk_cuda_decoder made = *want;
    const kk_status st = fill_decoder(dev, &made, err);
    if (st != KK_OK)
        drop_decoder(dev, &made);
    else
        dev->decoders[at] = made;
    return st;
}

static kk_cuda_decoder as_values(const kk_weight *v, int32_t head_dim) {
    return (kk_cuda_decoder){.w = v, .order = KK_CU_AS_VALUES, .head_dim = head_dim};
}
static kk_cuda_decoder as_keys(const kk_weight *w, int32_t head_dim, int32_t half) {
    return (kk_cuda_decoder){.w = w,
                             .order = KK_CU_AS_KEYS,
                             .head_dim = head_dim,
                             .half = half,
                             .wide = padded_half(half)};
}
static kk_cuda_decoder as_queries(const kk_weight *v, int32_t head_dim, int32_t half) {
    return (kk_cuda_decoder){.w = v, .order = KK_CU_AS_QUERIES, .head_dim = head_dim, .half = half};
}

static kk_status need_decoders(kk_dev *dev, const kk_weight *k, const kk_weight *v, bool k_eq_v,
                               int32_t head_dim, int32_t n_rot, kk_err *err) {
    const int32_t half = rebuilt_half(k_eq_v, head_dim, n_rot);
    const kk_cuda_decoder values = as_values(v, head_dim);
    const kk_cuda_decoder keys = as_keys(k_eq_v ? v : k, head_dim, half);
    const kk_cuda_decoder queries = as_queries(v, head_dim, half);
    KK_TRY(need_decoder(dev, &values, err));
    KK_TRY(need_decoder(dev, &keys, err));
    return half < head_dim / 2 ? need_decoder(dev, &queries, err) : KK_OK;
}

/* ---- angles --------------------------------------------------------------------------------- */

static bool same_angles(const kk_cuda_angles *t, const kk_rope *r, int32_t wide) {
    return t->data && t->wide == wide && t->rope.theta == r->theta && t->rope.factor == r->factor &&
           t->rope.n_rot == r->n_rot && t->rope.head_dim == r->head_dim;
}

static const void *find_angles(const kk_dev *dev, const kk_rope *r, int32_t wide) {
    for (int32_t i = 0; i < KK_CUDA_ANGLES; i++)
        if (same_angles(&dev->angles[i], r, wide)) return dev->angles[i].data;
    return NULL;
}

static kk_status need_angles(kk_dev *dev, const kk_rope *r, int32_t wide, kk_err *err) {
    int32_t at = 0;
    void *p;
    if (find_angles(dev, r, wide)) return KK_OK;
    while (at < KK_CUDA_ANGLES && dev->angles[at].data) at++;
    if (at == KK_CUDA_ANGLES)
        return kk_fail(err, KK_EDEVICE, "the GPU rotates rebuilt rows in %d ways", at);
    const size_t bytes = (size_t)KK_CU_LATENT_ROWS * (size_t)wide * 2 * sizeof(float);
    KK_TRY(kk_cuda_sync(dev, err));
    KK_TRY(kk_cuda_take(dev, bytes, &p, err));
    const kk_cu_angles t = {p, r->theta, r->factor, r->n_rot, r->head_dim, wide};
    dev->angles[at] = (kk_cuda_angles){.rope = *r, .wide = wide, .data = p, .bytes = bytes};
    KK_CUDA_TRY(kk_cu_run_angles(kk_cuda_at(dev), &t), "angles", err);
    KK_CUDA_TRY(cudaStreamSynchronize(dev->stream), "angles", err);
    return KK_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

static kk_status fit_scratch(kk_dev *dev, int32_t n_head, int32_t rank, kk_err *err) {
    const size_t most = dev->max_rows > 0 ? (size_t)dev->max_rows : 1, heads = (size_t)n_head;
    const size_t rows = most < KK_CUDA_LATENT_ROWS ? most : KK_CUDA_LATENT_ROWS;
    const size_t row = heads * (size_t)kk_cu_latent_pitch(rank) * 2;
    KK_TRY(kk_cuda_fit(dev, &dev->sums.data, &dev->sums.bytes, most * heads * 8, err));
    KK_TRY(kk_cuda_fit(dev, &dev->lifted.data, &dev->lifted.bytes, rows * row, err));
    KK_TRY(kk_cuda_fit(dev, &dev->latent_sums.data, &dev->latent_sums.bytes, rows * row * 2, err));
    return kk_cuda_fit(dev, &dev->stored_weight.data, &dev->stored_weight.bytes, rows * heads * 4,
                       err);
}

kk_status kk_cuda_ready_sinks(kk_dev *dev, const kk_kv_slot *slot, int32_t groups, kk_err *err) {
    int32_t n = LEAST_SINKS;
    while (n < groups) n *= 2;
    return kk_cuda_fit(dev, &dev->sinks.data, &dev->sinks.bytes, (size_t)n * slot_bytes(slot), err);
}

kk_status kk_cuda_prepare_evicted(kk_dev *dev, const kk_prepare_args *a, kk_err *err) {
    const kk_kv_slot *s = a->evicted.slot;
    const int32_t rank = a->evicted.rank;
    KK_TRY(kk_cuda_ready_sinks(dev, s, LEAST_SINKS, err));
    if (!rank) return KK_OK;
    KK_TRY(check_shape(dev, s->head_dim, rank, err));
    KK_TRY(fit_scratch(dev, a->evicted.n_head, rank, err));
    if (!a->evicted.v) return KK_OK;
    const kk_rope *rope = &a->evicted.rope;
    const int32_t half = rebuilt_half(s->k_eq_v, s->head_dim, rope->n_rot);
    KK_TRY(need_angles(dev, rope, padded_half(half), err));
    return need_decoders(dev, a->evicted.k, a->evicted.v, s->k_eq_v, s->head_dim, rope->n_rot, err);
}

kk_status kk_cuda_ready_scales(kk_dev *dev, const kk_scales_args *a, kk_err *err) {
    const int32_t head_dim = (int32_t)(a->v->w.n_out / a->n_kv_head);
    const kk_cuda_decoder values = as_values(a->v, head_dim);
    if (!kk_cuda_stores(a->latent.format)) return kk_no_kv_format("cuda", a->latent.format, err);
    KK_TRY(check_shape(dev, head_dim, a->latent.head_dim, err));
    return need_decoder(dev, &values, err);
}

kk_status kk_cuda_ready_evicted(kk_dev *dev, const kk_attend_args *a, kk_err *err) {
    const kk_evicted *e = a->evicted;
    if (e->diagnosis)
        return kk_fail(err, KK_EDEVICE,
                       "the GPU does not mix true rows into rebuilt ones: use `device` cpu");
    if (a->block) return kk_fail(err, KK_EINVAL, "rows that see each other whole are not evicted");
    if (a->slot.k_eq_v && !a->rope_pos)
        return kk_fail(err, KK_EINVAL, "K of stored rows takes angles of their positions");
    if (!e->rebuilds) return KK_OK;
    if (!kk_cuda_stores(e->latent.format)) return kk_no_kv_format("cuda", e->latent.format, err);
    KK_TRY(check_shape(dev, a->slot.head_dim, e->latent.head_dim, err));
    KK_TRY(fit_scratch(dev, a->n_head, e->latent.head_dim, err));
    const int32_t half = rebuilt_half(a->slot.k_eq_v, a->slot.head_dim, a->n_rot);
    KK_TRY(need_angles(dev, &e->rope, padded_half(half), err));
    return need_decoders(dev, e->k, e->v, a->slot.k_eq_v, a->slot.head_dim, a->n_rot, err);
}

/* ---- launches ------------------------------------------------------------------------------- */

static void *control_at(const kk_dev *dev, size_t off) { return dev->control + off; }

kk_status kk_cuda_join_sinks(kk_dev *dev, const kk_attend_args *a, const kk_cuda_view *v,
                             kk_cu_attend *t, kk_err *err) {
    if (a->sink <= 0) return KK_OK;
    const size_t bytes = slot_bytes(&a->slot);
    kk_cu_sinks s = {.to = dev->sinks.data,
                     .sink = control_at(dev, v->sinks),
                     .pages = control_at(dev, v->pages),
                     .groups = v->n_groups,
                     .table = v->page_cap,
                     .rows = a->sink,
                     .slot = t->slot,
                     .bytes = bytes};
    if (bytes * (size_t)v->n_groups > dev->sinks.bytes)
        return kk_fail(err, KK_EINVAL, "sinks of %d sessions were not prepared for", v->n_groups);
    for (int p = 0; p < KK_KV_PLANES; p++)
        s.plane[p] = (int32_t)kk_kv_plane_bytes(a->slot.format, p, a->slot.head_dim);
    KK_CUDA_TRY(kk_cu_run_sinks(kk_cuda_at(dev), &s), "sinks", err);
    t->sinks = dev->sinks.data;
    t->sink_bytes = bytes;
    t->table = v->page_cap;
    return KK_OK;
}

/* A view whose pages are those of latents. */
static kk_cu_rows latent_rows(const kk_dev *dev, const kk_cuda_view *v) {
    kk_cu_rows r = kk_cuda_rows(dev, v);
    r.pages = control_at(dev, v->latents);
    return r;
}

kk_status kk_cuda_keep_now(kk_dev *dev, const kk_keep_args *a, const kk_cuda_view *v, kk_err *err) {
    const kk_cu_keep k = {.x = kk_cuda_f(a->x),
                          .slot = kk_cuda_slot(&a->slot),
                          .rows = latent_rows(dev, v),
                          .off = a->keys ? a->slot.k_off : a->slot.v_off};
    if (!v->latents) return kk_fail(err, KK_EINVAL, "latents of sessions that keep none");
    KK_CUDA_TRY(kk_cu_run_keep(kk_cuda_at(dev), &k), "keeping latents", err);
    return KK_OK;
}

static bool scales_alike(const kk_cuda_op *a, const kk_cuda_op *b) {
    const kk_scales_args *x = &a->a.scales, *y = &b->a.scales;
    return b->kind == KK_CUDA_SCALE && a->view == b->view && x->eps == y->eps &&
           memcmp(&x->latent, &y->latent, sizeof x->latent) == 0 &&
           memcmp(&x->scales, &y->scales, sizeof x->scales) == 0;
}

kk_status kk_cuda_scales_now(kk_dev *dev, const kk_cuda_op *ops, int32_t n,
                             const kk_cuda_view *views, int32_t *used, kk_err *err) {
    const kk_cuda_view *v = &views[ops->view];
    kk_cu_scales s = {.latent = kk_cuda_slot(&ops->a.scales.latent),
                      .scales = kk_cuda_slot(&ops->a.scales.scales),
                      .rows = latent_rows(dev, v),
                      .eps = ops->a.scales.eps};
    if (!v->latents) return kk_fail(err, KK_EINVAL, "scales of sessions that keep no latents");
    while (s.n < n && s.n < KK_CU_SCALES && scales_alike(ops, &ops[s.n])) {
        const kk_scales_args *a = &ops[s.n].a.scales;
        const int32_t head_dim = (int32_t)(a->v->w.n_out / a->n_kv_head);
        const kk_cuda_decoder want = as_values(a->v, head_dim), *d = find_decoder(dev, &want);
        if (!d) return kk_fail(err, KK_EINVAL, "a decoder was not prepared");
        s.of[s.n].values = d->data;
        s.of[s.n].n_kv_head = a->n_kv_head;
        s.of[s.n].head_dim = head_dim;
        s.of[s.n].at = a->at;
        s.heads += a->n_kv_head;
        s.n++;
    }
    *used = s.n;
    KK_CUDA_TRY(kk_cu_run_scales(kk_cuda_at(dev), &s), "scales of latents", err);
    return KK_OK;
}

static kk_status fill_evicted(const kk_dev *dev, const kk_attend_args *a, const kk_evicted *e,
                              const kk_cuda_view *v, kk_cu_evicted *to, kk_err *err) {
    const int32_t d = a->slot.head_dim, half = rebuilt_half(a->slot.k_eq_v, d, a->n_rot);
    const kk_cuda_decoder want[] = {as_values(e->v, d),
                                    as_keys(a->slot.k_eq_v ? e->v : e->k, d, half),
                                    as_queries(e->v, d, half)};
    const void *decoder[3] = {0};
    for (int i = 0; i < (half < d / 2 ? 3 : 2); i++) {
        const kk_cuda_decoder *found = find_decoder(dev, &want[i]);
        if (!found) return kk_fail(err, KK_EINVAL, "a decoder was not prepared");
        decoder[i] = found->data;
    }
    *to = (kk_cu_evicted){.rows = latent_rows(dev, v),
                          .out = kk_cuda_f(a->out),
                          .q = kk_cuda_f(a->q),
                          .k_norm = kk_cuda_f(a->k_norm),
                          .sums = dev->sums.data,
                          .values = decoder[0],
                          .keys = decoder[1],
                          .queries = decoder[2],
                          .angles = find_angles(dev, &e->rope, want[1].wide),
                          .theta = e->rope.theta,
                          .factor = e->rope.factor,
                          .n_rot = a->n_rot,
                          .half = half,
                          .wide = want[1].wide,
                          .n_head = a->n_head,
                          .n_kv_head = a->slot.n_kv_head,
                          .head_dim = d,
                          .rank = e->latent.head_dim,
                          .window = a->window,
                          .sink = a->sink,
                          .keep = e->window,
                          .chunk = e->chunk > 1 ? e->chunk : 1,
                          .k_eq_v = a->slot.k_eq_v,
                          .latent = kk_cuda_slot(&e->latent),
                          .scales = kk_cuda_slot(&e->scales),
                          .scale_at = e->scale_at,
                          .scale = a->scale,
                          .eps = e->eps,
                          .parts = dev->parts.data,
                          .lifted = dev->lifted.data,
                          .sum = dev->latent_sums.data,
                          .weight = dev->stored_weight.data};
    if (!to->angles || !v->latents)
        return kk_fail(err, KK_EINVAL, "rebuilding rows was not prepared for");
    return KK_OK;
}

/* How pages are cut into spans depends on the layer alone: a layer with a window sees few pages,
 * and a block takes each of them.  The first evicted row that a tile sees is at least
 * pos - window + 1, pos that of its first row, and the last one is before its last row's kept
 * ones.  No more spans than that, since blocks without any take the place of others. */
static void cut_spans(kk_cu_evicted *e, const kk_cuda_view *v) {
    e->span = e->window ? 1 : SPAN;
    e->spans = (v->page_cap + e->span - 1) / e->span;
    if (!e->window) return;
    const int64_t apart = (int64_t)v->tile_most + e->window - e->keep - 3; /* first and last */
    const int64_t pages = apart > 0 ? (apart + KK_PAGE_ROWS - 1) / KK_PAGE_ROWS + 1 : 1;
    if (pages < e->spans) e->spans = (int32_t)pages;
}

/* Rows of a launch, as many as scratch holds. */
static kk_status cut_rows(const kk_dev *dev, kk_cu_evicted *e, const kk_cuda_view *v, int32_t *most,
                          kk_err *err) {
    const size_t part = kk_cu_evicted_parts(e), heads = (size_t)e->n_head;
    const size_t row = heads * (size_t)kk_cu_latent_pitch(e->rank) * 2;
    size_t rows = dev->parts.bytes / part;
    if (dev->lifted.bytes / row < rows) rows = dev->lifted.bytes / row;
    if (dev->latent_sums.bytes / (2 * row) < rows) rows = dev->latent_sums.bytes / (2 * row);
    if (dev->stored_weight.bytes / (heads * 4) < rows)
        rows = dev->stored_weight.bytes / (heads * 4);
    if (rows < 1 || (size_t)v->n_rows * heads * 8 > dev->sums.bytes)
        return kk_fail(err, KK_EINVAL, "rebuilding the rows of %d pages exceeds its scratch",
                       v->page_cap);
    *most = rows < KK_CUDA_LATENT_ROWS ? (int32_t)rows : KK_CUDA_LATENT_ROWS;
    e->tile_rows = v->tile_most < *most ? v->tile_most : *most;
    const int32_t queries = e->tile_rows * (e->n_head / e->n_kv_head);
    e->queries_at_once =
        queries > 8 && e->rank <= 512 && kk_cu_evicted_shared(e, 32) <= dev->shared ? 32 : 8;
    return KK_OK;
}

static kk_status add_latents(kk_dev *dev, const kk_attend_args *a, const kk_evicted *how,
                             const kk_cuda_then *then, const kk_cuda_view *v, kk_err *err) {
    kk_cu_evicted e;
    int32_t most = 0;
    KK_TRY(fill_evicted(dev, a, how, v, &e, err));
    if (then) {
        e.rounded = then->rounded;
        e.swizzled = then->swizzled;
    }
    if (then && then->next) {
        e.next = then->next->w.data;
        e.next_bytes = then->next->bytes < NEXT_MOST ? then->next->bytes : NEXT_MOST;
    }
    cut_spans(&e, v);
    KK_TRY(cut_rows(dev, &e, v, &most, err));
    const int32_t tiles = most / e.tile_rows;
    for (e.first_row = 0; e.first_row < v->tile_most; e.first_row += e.tile_rows)
        for (e.first_tile = 0; e.first_tile < v->tiles; e.first_tile += tiles) {
            e.n_tiles = v->tiles - e.first_tile < tiles ? v->tiles - e.first_tile : tiles;
            KK_CUDA_TRY(kk_cu_run_evicted(kk_cuda_at(dev), &e), "attention over latents", err);
        }
    return KK_OK;
}

kk_status kk_cuda_evicted_now(kk_dev *dev, const kk_attend_args *a, const kk_evicted *how,
                              kk_cuda_visible sees, const kk_cuda_then *then, const kk_cuda_view *v,
                              kk_err *err) {
    float *sums = sees.gone ? dev->sums.data : NULL;
    KK_TRY(kk_cuda_attend_stored(dev, a, how, sees, v, sums, err));
    return sees.gone ? add_latents(dev, a, how, then, v, err) : KK_OK;
}
