/* sweep_rows.c - reads rows where a session keeps them, and rebuilds them as attention does: from
 * the latents as stored, by the decoders as they are in memory. */
#include "eval/tasks/sweep_rows.h"

#include <math.h>
#include <string.h>

#include "eval/reports/report.h"

/* ---- sums -------------------------------------------------------------------------------- */

void kk_squares_add(kk_squares *to, const float *x, const float *truth, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double t = (double)truth[i], d = (double)x[i] - t;
        to->error += d * d;
        to->power += t * t;
    }
}

double kk_squares_ratio(const kk_squares *s) { return s->power > 0 ? s->error / s->power : 0; }

static bool is_of(const kk_row_errors *e, int32_t layer, kk_errors_of of) {
    if (!e->layer[layer].counted) return false;
    return of == KK_ERRORS_ALL || e->layer[layer].full == (of == KK_ERRORS_FULL);
}

double kk_row_errors_ratio(const kk_row_errors *e, kk_errors_of of) {
    kk_squares sum = {0};
    for (int32_t i = 0; i < e->n_layer; i++) {
        if (!is_of(e, i, of)) continue;
        sum.error += e->layer[i].sum.error;
        sum.power += e->layer[i].sum.power;
    }
    return kk_squares_ratio(&sum);
}

void kk_row_errors_add(kk_row_errors *to, const kk_row_errors *more) {
    to->n_layer = more->n_layer;
    to->rows += more->rows;
    for (int32_t i = 0; i < more->n_layer; i++) {
        to->layer[i].full = more->layer[i].full;
        to->layer[i].counted |= more->layer[i].counted;
        to->layer[i].sum.error += more->layer[i].sum.error;
        to->layer[i].sum.power += more->layer[i].sum.power;
    }
}

static bool has_any(const kk_row_errors *e, kk_errors_of of) {
    for (int32_t i = 0; i < e->n_layer; i++)
        if (is_of(e, i, of)) return true;
    return false;
}

json_t *kk_row_errors_ratios(const kk_row_errors *e, double factor) {
    static const char *const names[KK_ERRORS_OF] = {"all", "sliding", "full"};
    json_t *o = json_object();
    for (int of = 0; of < KK_ERRORS_OF; of++)
        if (o && has_any(e, (kk_errors_of)of))
            json_object_set_new(o, names[of],
                                kk_report_real(factor * kk_row_errors_ratio(e, (kk_errors_of)of)));
    return o;
}

json_t *kk_row_errors_layers(const kk_row_errors *e) {
    json_t *list = json_array();
    for (int32_t i = 0; list && i < e->n_layer; i++) {
        const kk_squares *s = &e->layer[i].sum;
        if (!e->layer[i].counted) continue;
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:o, s:o, s:o}", "layer", i, "kind",
                                        e->layer[i].full ? "full" : "sliding", "error",
                                        kk_report_real(s->error), "power", kk_report_real(s->power),
                                        "rel_mse", kk_report_real(kk_squares_ratio(s))));
    }
    return list;
}

/* ---- rows of a page ---------------------------------------------------------------------- */

void kk_page_row_floats(const kk_kv_slot *slot, const uint8_t *page, size_t off, int32_t head,
                        int32_t row, float *out) {
    const kk_kv_format f = slot->format;
    const uint8_t *block = page + off + (size_t)head * kk_kv_head_bytes(f, slot->head_dim);
    kk_kv_format_get(f)->unpack(out, slot->head_dim, block,
                                kk_kv_row_place(f, slot->head_dim, KK_PAGE_ROWS, row));
}

/* ---- rebuilt rows ------------------------------------------------------------------------ */

/* Buffers for the rows of one forward: latents, what is rebuilt of them, and the truth. */
typedef struct {
    kk_session *session;
    kk_row_errors *raw, *normed;
    kk_buf *z, *out;
    float *latents, *rebuilt, *truth; /* [rows][width] */
    int64_t from;                     /* position of the first */
    int32_t rows;
} errand;

static size_t widest(const kk_kv_layout *l) {
    size_t most = 0;
    for (int32_t i = 0; i < l->shape.n_layer; i++) {
        const size_t w = (size_t)l->shape.layer[i].n_kv_head * (size_t)l->shape.layer[i].head_dim;
        if (l->shape.layer[i].stores && w > most) most = w;
    }
    return most;
}

static kk_status take_buffers(errand *r, kk_err *err) {
    const kk_engine *e = r->session->engine;
    const size_t rows = (size_t)e->rounds.max_rows, width = widest(r->session->layout);
    const size_t rank = (size_t)r->session->layout->latents.rank;
    r->latents = kk_calloc(rows * rank, sizeof(float));
    r->rebuilt = kk_calloc(rows * width, sizeof(float));
    r->truth = kk_calloc(rows * width, sizeof(float));
    if (!r->latents || !r->rebuilt || !r->truth)
        return kk_fail(err, KK_ENOMEM, "no memory to compare %zu rows", rows);
    KK_TRY(e->backend->buf_new(e->dev, KK_MEM_WORKSPACE, rows * rank * sizeof(float), &r->z, err));
    return e->backend->buf_new(e->dev, KK_MEM_WORKSPACE, rows * width * sizeof(float), &r->out,
                               err);
}

static void give_buffers(errand *r) {
    const kk_engine *e = r->session->engine;
    e->backend->buf_free(e->dev, r->z);
    e->backend->buf_free(e->dev, r->out);
    kk_free(r->latents);
    kk_free(r->rebuilt);
    kk_free(r->truth);
}

/* Rows of one slot, side by side, heads and all. */
static void gather(const errand *r, const kk_kv_slot *slot, size_t off, float *out) {
    uint8_t *const *pages = kk_cache_pages(r->session->cache, KK_LATENT);
    const size_t width = (size_t)slot->n_kv_head * (size_t)slot->head_dim;
    for (int32_t i = 0; i < r->rows; i++)
        for (int32_t h = 0; h < slot->n_kv_head; h++)
            kk_page_row_floats(slot, pages[(r->from + i) / KK_PAGE_ROWS], off, h,
                               (int32_t)((r->from + i) % KK_PAGE_ROWS),
                               out + (size_t)i * width + (size_t)h * (size_t)slot->head_dim);
}

static void norm_heads(float *x, size_t n, size_t dim, double eps) {
    for (size_t i = 0; i < n; i += dim) {
        double sum = 0;
        for (size_t d = 0; d < dim; d++) sum += (double)x[i + d] * (double)x[i + d];
        const double inv = 1 / sqrt(sum / (double)dim + eps);
        for (size_t d = 0; d < dim; d++) x[i + d] = (float)((double)x[i + d] * inv);
    }
}

static void compare(errand *r, int32_t layer, size_t width) {
    const size_t n = (size_t)r->rows * width;
    const size_t dim = (size_t)r->session->layout->shape.layer[layer].head_dim;
    const double eps = (double)kk_engine_config(r->session->engine)->eps;
    kk_squares_add(&r->raw->layer[layer].sum, r->rebuilt, r->truth, n);
    norm_heads(r->rebuilt, n, dim, eps);
    norm_heads(r->truth, n, dim, eps);
    kk_squares_add(&r->normed->layer[layer].sum, r->rebuilt, r->truth, n);
    r->raw->layer[layer].counted = r->normed->layer[layer].counted = true;
}

static kk_status decode(errand *r, int32_t layer, const kk_weight *w, bool keys, kk_err *err) {
    const kk_engine *e = r->session->engine;
    const kk_kv_slot *truth = &r->session->diagnosis->truth[layer];
    const size_t width = (size_t)truth->n_kv_head * (size_t)truth->head_dim;
    const kk_linear_args a = {.out = {r->out}, .w = {w}, .n = 1, .x = r->z, .n_rows = r->rows};
    KK_TRY(e->backend->prepare(e->dev, &(kk_prepare_args){.w = w}, err));
    KK_TRY(e->backend->linear(e->dev, &a, err));
    KK_TRY(e->backend->read(e->dev, r->out, 0, r->rebuilt, (size_t)r->rows * width * sizeof(float),
                            err));
    gather(r, truth, keys ? truth->k_off : truth->v_off, r->truth);
    compare(r, layer, width);
    return KK_OK;
}

static bool is_restored(const kk_session *s, int32_t layer) {
    const kk_layer_config *c = &kk_engine_config(s->engine)->layer[layer];
    return c->kv_source == layer && s->keeps.kind[c->kind] == KK_KEEP_RESTORED;
}

static kk_status compare_rows(errand *r, kk_err *err) {
    const kk_engine *e = r->session->engine;
    const kk_kv_layout *l = r->session->layout;
    gather(r, &l->latent, l->latent.v_off, r->latents);
    KK_TRY(e->backend->write(e->dev, r->z, 0, r->latents,
                             (size_t)r->rows * (size_t)l->latents.rank * sizeof(float), err));
    for (int32_t i = 0; i < l->shape.n_layer; i++) {
        if (!is_restored(r->session, i)) continue;
        const kk_weight *k = kk_restorer_k(e->restorer, i);
        if (k && !l->shape.layer[i].k_eq_v) KK_TRY(decode(r, i, k, true, err));
        KK_TRY(decode(r, i, kk_restorer_v(e->restorer, i), false, err));
        r->raw->rows += r->rows;
        r->normed->rows += r->rows;
    }
    return KK_OK;
}

static void begin(kk_row_errors *e, const kk_kv_shape *shape) {
    e->n_layer = shape->n_layer;
    for (int32_t i = 0; i < shape->n_layer; i++) e->layer[i].full = shape->layer[i].kind == KK_FULL;
}

static kk_status compare_all(errand *r, int64_t from, int64_t to, kk_err *err) {
    const int32_t most = r->session->engine->rounds.max_rows;
    KK_TRY(take_buffers(r, err));
    for (; from < to; from += r->rows) {
        r->from = from;
        r->rows = to - from < most ? (int32_t)(to - from) : most;
        KK_TRY(compare_rows(r, err));
    }
    return KK_OK;
}

kk_status kk_session_errors(kk_session *s, kk_row_errors *raw, kk_row_errors *normed, kk_err *err) {
    const kk_session_keeps *k = &s->keeps;
    if (!s->diagnosis)
        return kk_fail(err, KK_EINVAL,
                       "this session keeps no true rows to hold rebuilt ones against");
    const int64_t len = kk_cache_len(s->cache);
    const kk_cache_opts *how = kk_cache_how(s->cache);
    const int64_t kept = how->policy[KK_LATENT]->keep_from(&how->bounds[KK_LATENT], len);
    const int64_t from = kept > k->sink ? kept : k->sink;
    const kk_kv_bounds bounds = {.window = k->window, .sink = k->sink, .chunk = k->chunk};
    const int64_t to = len > 0 ? kk_kept_from(&bounds, len - 1) : 0;
    errand r = {.session = s, .raw = raw, .normed = normed};
    begin(raw, &s->layout->shape);
    begin(normed, &s->layout->shape);
    kk_engine_lock(s->engine);
    const kk_status st = compare_all(&r, from, to, err);
    give_buffers(&r);
    kk_engine_unlock(s->engine);
    return st;
}
