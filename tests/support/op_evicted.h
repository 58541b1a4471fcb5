/* op_evicted.h - a layer whose rows are not all in their pages, for attention over them: latents,
 * decoders, sinks that lie apart, and what should come out, in plain double arithmetic.
 *
 * What is expected is worked out while everything is still there.  Then all that no row may read is
 * made NaN or taken away: rows that are gone, latents of rows that are not, what lies behind the
 * model's own window, and what comes after the rows at hand. */
#ifndef KK_TESTS_OP_EVICTED_H
#define KK_TESTS_OP_EVICTED_H

#include "support/op_pages.h"

enum { EVICTED_KEYS = RIG_PAGES * KK_PAGE_ROWS, EVICTED_RANK = 4352 };

typedef struct {
    kk_kv_format format, latents;
    kk_dtype decoders;
    bool k_eq_v, hides, mixes;
    float mix, scale;
    int32_t n_kv, n_head, head_dim, n_rot, rank;
    int32_t sink, window, chunk;
    int32_t sight; /* the model's own window; 0: none */
    int32_t sessions, n_rows[RIG_SESSIONS];
    int64_t pos[RIG_SESSIONS];
} evicted_shape;

/* One session's rows as they should be read: [EVICTED_KEYS][n_kv][head_dim]. */
typedef struct {
    double *k, *v;
} evicted_rows;

typedef struct {
    evicted_shape s;
    rig *r;
    rig_cache *rows, *latents, *truth, *scales;
    kk_matrix k, v;
    float *k_norm, *q;
    kk_evicted evicted;
    kk_diagnosis diagnosis;
    evicted_rows stored[RIG_SESSIONS], rebuilt[RIG_SESSIONS];
    kk_buf *out;
    size_t n_out;
    kk_attend_args args;
} evicted_world;

static const float evicted_eps = 1e-6f;

/* How far a scale that was kept may be off: half a step of bf16, and what the device rounds. */
#ifndef KK_EVICTED_SCALES
#define KK_EVICTED_SCALES 0.0041
#endif

/* Rows from here on are stored, to a row at pos. */
static inline int64_t evicted_stored(const evicted_shape *s, int64_t pos) {
    return pos / s->chunk * s->chunk - s->window;
}

/* ---- what should come out --------------------------------------------------------------- */

static inline void evicted_round(kk_kv_format format, double *x, int32_t n) {
    enum { MOST = 8192 };
    float y[MOST];
    uint8_t block[4 * MOST];
    const kk_kv_format_info *info = kk_kv_format_get(format);
    const kk_kv_place place = kk_kv_row_place(format, n, 1, 0);
    assert_true(n <= MOST);
    for (int32_t i = 0; i < n; i++) y[i] = (float)x[i];
    info->pack(y, n, block, place);
    info->unpack(y, n, block, place);
    for (int32_t i = 0; i < n; i++) x[i] = (double)y[i];
}

static inline void evicted_norm(double *y, const double *x, const float *w, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += x[i] * x[i];
    const double inv = 1 / sqrt(sum / n + (double)evicted_eps);
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * inv * (w ? (double)w[i] : 1);
}

static inline void evicted_turn(double *x, kk_rope rope, int64_t pos) {
    const int32_t half = rope.head_dim / 2;
    for (int32_t i = 0; i < rope.n_rot; i++) {
        const double freq = pow((double)rope.theta, -2.0 * i / rope.head_dim) / (double)rope.factor;
        const double c = cos((double)pos * freq), s = sin((double)pos * freq);
        const double a = x[i], b = x[i + half];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}

/* The latent at pos; `rounded` as quantised decoders meet it, in 127 steps of the largest of each
 * 32. */
static inline void evicted_latent(const evicted_world *w, int32_t session, int64_t pos, double *z,
                                  bool rounded) {
    const rig_cache *l = w->latents;
    rounded = rounded && kk_dtype_is_quant(w->s.decoders);
    for (int32_t i = 0; i < w->s.rank; i++)
        z[i] = (double)rig_cache_get(l, session, l->slot.v_off, 0, pos, i);
    for (int32_t b = 0; rounded && b < w->s.rank; b += 32) {
        float most = 0;
        for (int32_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf((float)z[i]));
        const float steps = most > 0 ? 127 / most : 0;
        for (int32_t i = b; i < b + 32; i++)
            z[i] = (double)rintf((float)z[i] * steps) * (double)(most / 127);
    }
}

/* raw = D z of one head, mixed with the true rows under diagnosis. */
static inline void evicted_raw(const evicted_world *w, int32_t session, int64_t pos, int32_t head,
                               bool keys, const double *z, double *raw) {
    const evicted_shape *s = &w->s;
    const kk_matrix *m = keys ? &w->k : &w->v;
    const rig_cache *t = w->truth;
    size_t row_bytes;
    float d[EVICTED_RANK];
    assert_true(kk_dtype_bytes(m->dtype, (uint64_t)m->n_in, &row_bytes) && m->n_in <= EVICTED_RANK);
    for (int32_t i = 0; i < s->head_dim; i++) {
        const size_t at = (size_t)(head * s->head_dim + i) * row_bytes;
        kk_dequantize(m->dtype, (const uint8_t *)m->data + at, d, (size_t)m->n_in);
        raw[i] = 0;
        for (int32_t j = 0; j < s->rank; j++) raw[i] += (double)d[j] * z[j];
        if (!s->mixes) continue;
        const float truth =
            rig_cache_get(t, session, keys ? t->slot.k_off : t->slot.v_off, head, pos, i);
        raw[i] = (double)s->mix * (double)truth + (1 - (double)s->mix) * raw[i];
    }
}

static inline double *evicted_at(const evicted_world *w, double *rows, int64_t pos, int32_t head) {
    return rows + ((size_t)pos * (size_t)w->s.n_kv + (size_t)head) * (size_t)w->s.head_dim;
}

/* K of a row that is stored as V alone. */
static inline void evicted_key_of(const evicted_world *w, double *k, const double *v, int64_t pos) {
    for (int32_t i = 0; i < w->s.head_dim; i++) k[i] = v[i] * (double)w->k_norm[i];
    evicted_turn(k, w->evicted.rope, pos);
}

/* Rows put together in the cache's own format, as they are where true ones are mixed in. */
static inline void evicted_expect_mixed(evicted_world *w, int32_t session, int64_t pos, int32_t h,
                                        double *k, double *v) {
    const evicted_shape *s = &w->s;
    double z[EVICTED_RANK], raw[512];
    evicted_latent(w, session, pos, z, true);
    evicted_raw(w, session, pos, h, false, z, raw);
    evicted_norm(v, raw, NULL, s->head_dim);
    evicted_round(s->format, v, s->head_dim);
    if (s->k_eq_v) {
        evicted_key_of(w, k, v, pos);
        return;
    }
    evicted_raw(w, session, pos, h, true, z, raw);
    evicted_norm(k, raw, w->k_norm, s->head_dim);
    evicted_turn(k, w->evicted.rope, pos);
    evicted_round(s->format, k, s->head_dim);
}

/* Rows read in latent space: V, and the values of K = V that are not rotated, from the latent as it
 * is, times the scale that was kept, which is that of D_v z; the rest of K from the latent as
 * decoders meet it. */
static inline void evicted_expect_latent(evicted_world *w, int32_t session, int64_t pos, int32_t h,
                                         double *k, double *v) {
    const evicted_shape *s = &w->s;
    const int32_t half = s->head_dim / 2, rotated = (s->n_rot + 15) / 16 * 16;
    double z[EVICTED_RANK], raw[512], other[512];
    evicted_latent(w, session, pos, z, true);
    evicted_raw(w, session, pos, h, false, z, raw);
    evicted_norm(v, raw, NULL, s->head_dim);
    const double kept = (double)rig_cache_get(w->scales, session, w->scales->slot.v_off, 0, pos,
                                              w->evicted.scale_at + h);
    for (int32_t i = 0; i < s->head_dim; i++)
        if (fabs(v[i] - raw[i] * kept) > fabs(v[i]) * KK_EVICTED_SCALES + 1e-6)
            fail_msg("scale %g of %d, head %d: %g becomes %g", kept, (int)pos, h, raw[i], v[i]);
    if (s->k_eq_v) memcpy(other, raw, sizeof other);
    evicted_latent(w, session, pos, z, false);
    evicted_raw(w, session, pos, h, false, z, raw);
    for (int32_t i = 0; i < s->head_dim; i++) {
        v[i] = raw[i] * kept;
        k[i] = (i % half < rotated ? other[i] : raw[i]) * kept * (double)w->k_norm[i];
    }
    if (!s->k_eq_v) {
        evicted_latent(w, session, pos, z, true);
        evicted_raw(w, session, pos, h, true, z, raw);
        evicted_norm(k, raw, w->k_norm, s->head_dim);
    }
    evicted_turn(k, w->evicted.rope, pos);
}

static inline void evicted_expect_row(evicted_world *w, int32_t session, int64_t pos) {
    const evicted_shape *s = &w->s;
    const rig_cache *c = w->rows;
    for (int32_t h = 0; h < s->n_kv; h++) {
        double *k = evicted_at(w, w->stored[session].k, pos, h);
        double *v = evicted_at(w, w->stored[session].v, pos, h);
        for (int32_t i = 0; i < s->head_dim; i++) {
            k[i] = (double)rig_cache_get(c, session, c->slot.k_off, h, pos, i);
            v[i] = (double)rig_cache_get(c, session, c->slot.v_off, h, pos, i);
        }
        if (s->k_eq_v) evicted_key_of(w, k, v, pos);
        if (s->hides) continue;
        k = evicted_at(w, w->rebuilt[session].k, pos, h);
        v = evicted_at(w, w->rebuilt[session].v, pos, h);
        if (s->mixes)
            evicted_expect_mixed(w, session, pos, h, k, v);
        else
            evicted_expect_latent(w, session, pos, h, k, v);
    }
}

typedef enum { EVICTED_UNSEEN, EVICTED_STORED, EVICTED_REBUILT } evicted_way;

/* How a row at pos reads the row at j. */
static inline evicted_way evicted_reads(const evicted_shape *s, int64_t pos, int64_t j) {
    if (j > pos || (s->sight && j <= pos - s->sight)) return EVICTED_UNSEEN;
    if (j < s->sink || j >= evicted_stored(s, pos)) return EVICTED_STORED;
    return s->hides ? EVICTED_UNSEEN : EVICTED_REBUILT;
}

/* One (row, head): softmax over the keys in sight, summed directly.  Returns the largest weight of
 * a rebuilt row. */
static inline double evicted_attend(evicted_world *w, int32_t session, int64_t pos, int32_t head,
                                    const float *q, double *y) {
    const int32_t d = w->s.head_dim;
    double p[EVICTED_KEYS], sum = 0, most = -INFINITY, heaviest = 0;
    for (int32_t i = 0; i < d; i++) y[i] = 0;
    for (int64_t j = 0; j <= pos; j++) {
        const evicted_way way = evicted_reads(&w->s, pos, j);
        if (way == EVICTED_UNSEEN) continue;
        evicted_rows *rows = way == EVICTED_STORED ? w->stored : w->rebuilt;
        const double *k = evicted_at(w, rows[session].k, j, head);
        p[j] = 0;
        for (int32_t i = 0; i < d; i++) p[j] += (double)q[i] * k[i] * (double)w->s.scale;
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j <= pos; j++) {
        const evicted_way way = evicted_reads(&w->s, pos, j);
        if (way == EVICTED_UNSEEN) continue;
        evicted_rows *rows = way == EVICTED_STORED ? w->stored : w->rebuilt;
        const double *v = evicted_at(w, rows[session].v, j, head), e = exp(p[j] - most);
        sum += e;
        if (way == EVICTED_REBUILT) heaviest = fmax(heaviest, e);
        for (int32_t i = 0; i < d; i++) y[i] += e * v[i];
    }
    for (int32_t i = 0; i < d; i++) y[i] /= sum;
    return heaviest / sum;
}

/* ---- setting up ------------------------------------------------------------------------- */

static inline rig_cache *evicted_cache(evicted_world *w, kk_kv_format format, bool k_eq_v,
                                       int32_t n_kv, int32_t d) {
    return rig_cache_new(w->r, format, k_eq_v, n_kv, d, w->s.sessions, w->s.n_rows, w->s.pos);
}

/* Puts what is kept beside latents behind them, in the same pages; returns where it begins. */
static inline size_t evicted_beside(evicted_world *w, rig_cache *other) {
    const size_t first = (w->latents->page_bytes + 63) / 64 * 64;
    for (int32_t i = 0; i < w->s.sessions; i++) {
        for (int p = 0; p < RIG_PAGES; p++) {
            uint8_t *both = rig_memory(w->r, first + other->page_bytes);
            memcpy(both, w->latents->page[i][p], w->latents->page_bytes);
            memcpy(both + first, other->page[i][p], other->page_bytes);
            w->latents->page[i][p] = both;
            other->page[i][p] = both + first;
        }
    }
    return first;
}

/* The scales of all rows, as they are kept when their latents are. */
static inline void evicted_keep_scales(evicted_world *w) {
    const evicted_shape *s = &w->s;
    kk_group all[RIG_SESSIONS];
    kk_rows rows = {all, s->sessions, 0};
    for (int32_t i = 0; i < s->sessions; i++) {
        const int32_t n = (int32_t)s->pos[i] + s->n_rows[i];
        all[i] = (kk_group){.row = rows.n_rows, .n_rows = n, .latents = w->latents->page[i]};
        rows.n_rows += n;
    }
    const kk_scales_args keep = {.v = w->evicted.v,
                                 .n_kv_head = s->n_kv,
                                 .latent = w->evicted.latent,
                                 .scales = w->evicted.scales,
                                 .at = w->evicted.scale_at,
                                 .rows = &rows,
                                 .eps = evicted_eps};
    RIG_RUN(w->r, latents->keep_scales, &keep);
    rig_sync(w->r);
}

/* Latents and, behind them, their scales, among those of other layers, or the true rows. */
static inline void evicted_open_latents(evicted_world *w) {
    const evicted_shape *s = &w->s;
    w->latents = evicted_cache(w, s->latents, true, 1, s->rank);
    w->evicted.latent = w->latents->slot;
    if (!s->mixes) {
        w->evicted.scale_at = s->chunk % 3;
        w->scales = evicted_cache(w, KK_KV_BF16, true, 1, w->evicted.scale_at + s->n_kv + 1);
        w->evicted.scales = w->scales->slot;
        w->evicted.scales.k_off += evicted_beside(w, w->scales);
        w->evicted.scales.v_off = w->evicted.scales.k_off;
        return;
    }
    w->truth = evicted_cache(w, KK_KV_F32, s->k_eq_v, s->n_kv, s->head_dim);
    const size_t first = evicted_beside(w, w->truth);
    kk_kv_slot *slot = &w->diagnosis.truth[w->evicted.layer];
    *slot = w->truth->slot;
    slot->k_off += first;
    slot->v_off += first;
}

static inline void evicted_expect(evicted_world *w) {
    const evicted_shape *s = &w->s;
    const size_t n = (size_t)EVICTED_KEYS * (size_t)(s->n_kv * s->head_dim) * sizeof(double);
    for (int32_t i = 0; i < s->sessions; i++) {
        evicted_rows *rows[] = {&w->stored[i], &w->rebuilt[i]};
        for (int k = 0; k < (s->hides ? 1 : 2); k++) {
            rows[k]->k = rig_memory(w->r, n);
            rows[k]->v = rig_memory(w->r, n);
        }
        for (int64_t pos = 0; pos < s->pos[i] + s->n_rows[i]; pos++) evicted_expect_row(w, i, pos);
    }
}

/* The first rows of a session in memory of just that size: those before `pos`, and NaN for the
 * rest, which get there later. */
static inline uint8_t *evicted_sink(evicted_world *w, int32_t session, int64_t pos) {
    const rig_cache *c = w->rows;
    const int32_t sink = w->s.sink, d = w->s.head_dim;
    const size_t bytes = c->page_bytes / KK_PAGE_ROWS * (size_t)sink;
    const size_t parts[] = {c->slot.k_off, c->slot.v_off};
    uint8_t *to = rig_memory(w->r, bytes);
    memset(to, 0xff, bytes); /* a NaN in every format */
    const int64_t first = w->s.sight ? w->s.pos[session] - w->s.sight + 1 : 0;
    for (int part = w->s.k_eq_v; part < 2; part++) {
        for (int32_t h = 0; h < w->s.n_kv; h++) {
            const size_t off = parts[part] + (size_t)h * kk_kv_head_bytes(c->slot.format, d);
            const uint8_t *from = c->page[session][0] + off;
            uint8_t *head = to + off / KK_PAGE_ROWS * (size_t)sink;
            for (int64_t j = first > 0 ? first : 0; j < sink && j < pos; j++) {
                const kk_kv_place a = kk_kv_row_place(c->slot.format, d, sink, (int32_t)j);
                const kk_kv_place b = kk_kv_row_place(c->slot.format, d, KK_PAGE_ROWS, (int32_t)j);
                for (int k = 0; k < KK_KV_PLANES; k++)
                    memcpy(head + a.at[k], from + b.at[k], kk_kv_plane_bytes(c->slot.format, k, d));
            }
        }
    }
    return to;
}

/* Takes away rows outside [lo, hi), but for those of [first, sink), and pages without any of
 * [lo, hi). */
static inline void evicted_blot(rig_cache *c, int32_t session, int64_t lo, int64_t hi,
                                int64_t first, int64_t sink) {
    for (int64_t j = 0; j < EVICTED_KEYS; j++)
        if ((j < first || j >= sink) && (j < lo || j >= hi)) rig_cache_blot(c, session, j);
    for (int p = 0; p < RIG_PAGES; p++)
        if ((p + 1) * KK_PAGE_ROWS <= lo || p * KK_PAGE_ROWS >= hi) c->page[session][p] = NULL;
}

static inline void evicted_hide(evicted_world *w) {
    const evicted_shape *s = &w->s;
    for (int32_t i = 0; i < s->sessions; i++) {
        const int64_t pos = s->pos[i], end = pos + s->n_rows[i];
        const int64_t behind = s->sight && pos >= s->sight ? pos - s->sight + 1 : 0;
        const int64_t from = evicted_stored(s, pos), to = evicted_stored(s, end - 1);
        if (s->sink) w->rows->group[i].sink = evicted_sink(w, i, pos);
        evicted_blot(w->rows, i, from > behind ? from : behind, end, behind, s->sink);
        if (s->hides) continue;
        const int64_t lo = behind > s->sink ? behind : s->sink, hi = to > lo ? to : lo;
        if (w->truth) evicted_blot(w->truth, i, lo, hi, 0, 0);
        if (w->scales) evicted_blot(w->scales, i, lo, hi, 0, 0);
        evicted_blot(w->latents, i, lo, hi, 0, 0);
        w->rows->group[i].latents = w->latents->page[i];
    }
}

static inline evicted_world *evicted_open(rig *r, const evicted_shape *s, bool expects) {
    evicted_world *w = rig_memory(r, sizeof *w);
    *w = (evicted_world){.s = *s, .r = r};
    w->rows = evicted_cache(w, s->format, s->k_eq_v, s->n_kv, s->head_dim);
    w->k_norm = rig_floats(r, (size_t)s->head_dim, 2);
    w->n_out = (size_t)w->rows->rows.n_rows * (size_t)(s->n_head * s->head_dim);
    w->q = rig_floats(r, w->n_out, 1);
    w->out = rig_random_buf(r, w->n_out, 1);
    w->evicted = (kk_evicted){.window = s->window,
                              .chunk = s->chunk,
                              .rebuilds = !s->hides,
                              .rope = {1e4f, 1, s->n_rot, s->head_dim},
                              .eps = evicted_eps,
                              .layer = s->chunk % 5};
    w->diagnosis.mix = s->mix;
    if (s->mixes) w->evicted.diagnosis = &w->diagnosis;
    if (!s->hides) {
        w->v = rig_matrix(r, s->decoders, 1, s->n_kv * s->head_dim, s->rank);
        w->evicted.v = rig_load(r, w->v, 1);
        if (!s->k_eq_v) {
            w->k = rig_matrix(r, s->decoders, 1, s->n_kv * s->head_dim, s->rank);
            w->evicted.k = rig_load(r, w->k, 1);
        }
        evicted_open_latents(w);
    }
    RIG_PREPARE(
        r,
        .evicted = {.slot = &w->rows->slot, .n_head = s->n_head, .rank = s->hides ? 0 : s->rank});
    if (w->scales) evicted_keep_scales(w);
    if (expects) evicted_expect(w);
    evicted_hide(w);
    w->args = (kk_attend_args){.out = w->out,
                               .q = rig_buf(r, w->q, w->n_out),
                               .k_norm = rig_buf(r, w->k_norm, (size_t)s->head_dim),
                               .n_rot = s->n_rot,
                               .n_head = s->n_head,
                               .window = s->sight,
                               .sink = s->sink,
                               .slot = w->rows->slot,
                               .rows = &w->rows->rows,
                               .scale = s->scale,
                               .evicted = &w->evicted};
    return w;
}

static inline void evicted_label(const evicted_shape *s, char *label, size_t size) {
    snprintf(label, size, "%s z %s D %s%s%s%s %dx%d/%d d%d r%d s%d w%d c%d of %d @%d+%d",
             kk_kv_format_name(s->format), kk_kv_format_name(s->latents),
             kk_dtype_get(s->decoders)->name, s->k_eq_v ? " k=v" : "", s->hides ? " hides" : "",
             s->mixes ? " mixes" : "", s->sessions, s->n_head, s->n_kv, s->head_dim, s->rank,
             s->sink, s->window, s->chunk, s->sight, (int)s->pos[0], s->n_rows[0]);
}

#endif
