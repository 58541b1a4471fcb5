/* sums.c - texts through the model, and their rows into sums on its device; see sums.h. */
#include "train/sums.h"

#include <string.h>

#include "core/clock.h"
#include "engine/session.h"
#include "train/sums_state.h"

const char *kk_sums_refuse(const kk_capture_opts *from) {
    if (!from->engine->backend->sums) return "the device adds up no rows";
    if (from->source != KK_SOURCE_TAPS) return "features other than taps are put together here";
    return NULL;
}

/* ---- sizes ------------------------------------------------------------------------------- */

typedef struct {
    size_t in, out, widest, rank;
} sizes;

static sizes sizes_of(const kk_theta *shape) {
    sizes s = {.in = (size_t)shape->config.n_in, .rank = (size_t)shape->config.rank};
    for (int32_t i = 0; i < shape->n_blocks; i++) {
        const size_t width = (size_t)shape->block[i].width;
        s.out += width;
        s.widest = width > s.widest ? width : s.widest;
    }
    return s;
}

/* *sum += n m width; false when that is beyond a size_t. */
static bool add_bytes(size_t *sum, size_t n, size_t m, size_t width) {
    size_t values, bytes;
    return kk_mul(n, m, &values) && kk_mul(values, width, &bytes) && kk_add(*sum, bytes, sum);
}

kk_status kk_sums_need(kk_sums_bytes *out, const kk_sums_opts *o, kk_err *err) {
    const sizes s = sizes_of(o->shape);
    const size_t rows = (size_t)o->rows, f = sizeof(float), d = sizeof(double);
    size_t chunk = 0, solving = 0, sums = 0, host = 0;
    /* A chunk has gone when two more squares, the encoder and the decoders are there.  The host
     * has two squares, the encoder and a block of decoders. */
    if (add_bytes(&chunk, rows, s.in, f) && add_bytes(&chunk, rows, s.out, f) &&
        add_bytes(&chunk, o->ridge.raw ? 0 : rows, s.widest, f) &&
        add_bytes(&solving, 2 * s.in, s.in, d) && add_bytes(&solving, s.rank, s.in, d) &&
        add_bytes(&solving, s.rank, s.out, d) && add_bytes(&sums, s.in, s.in, d) &&
        add_bytes(&sums, s.out, s.in, d) && add_bytes(&sums, 2, s.out, d) &&
        add_bytes(&host, 2 * s.in, s.in, d) && add_bytes(&host, s.rank, s.in, d) &&
        add_bytes(&host, s.widest, s.rank, d) && s.out <= INT32_MAX &&
        kk_add(sums, chunk > solving ? chunk : solving, &out->device)) {
        out->host = host;
        return KK_OK;
    }
    *out = (kk_sums_bytes){0, 0};
    return kk_fail(err, KK_EINVAL, "sums of %zu features and %zu targets are too large", s.in,
                   s.out);
}

/* Before anything is taken: what is missing is said with what there is. */
static kk_status check_memory(const kk_sums_opts *o, kk_err *err) {
    const kk_engine *e = o->from->engine;
    const sizes s = sizes_of(o->shape);
    kk_sums_bytes need;
    kk_dev_facts facts;
    KK_TRY(kk_sums_need(&need, o, err));
    e->backend->describe(e->dev, &facts);
    if (!facts.memory.total || need.device <= (size_t)facts.memory.free) return KK_OK;
    return kk_fail(err, KK_ENOMEM,
                   "sums of %zu features and %zu targets take %.1f GB of the device's memory, and "
                   "%.1f GB are free: take fewer layers or taps, or have them made by the host",
                   s.in, s.out, 1e-9 * (double)need.device, 1e-9 * (double)facts.memory.free);
}

/* ---- life -------------------------------------------------------------------------------- */

static kk_status take(kk_sums *s, kk_buf **out, size_t n, size_t m, size_t width, kk_err *err) {
    return s->be->buf_new(s->dev, KK_MEM_WORKSPACE, n * m * width, out, err);
}

static kk_status take_buffers(kk_sums *s, kk_err *err) {
    const size_t rows = (size_t)s->rows, in = (size_t)s->n_in, out = (size_t)s->n_out;
    KK_TRY(take(s, &s->x, rows, in, sizeof(float), err));
    KK_TRY(take(s, &s->y, rows, out, sizeof(float), err));
    if (!s->ridge.raw) KK_TRY(take(s, &s->unit, rows, (size_t)s->widest, sizeof(float), err));
    KK_TRY(take(s, &s->xx, in, in, sizeof(double), err));
    KK_TRY(take(s, &s->yx, out, in, sizeof(double), err));
    KK_TRY(take(s, &s->squares, out, 1, sizeof(double), err));
    return take(s, &s->weights, out, 1, sizeof(double), err);
}

static void fill(kk_sums *s, const kk_sums_opts *o) {
    s->engine = o->from->engine;
    s->be = s->engine->backend;
    s->dev = s->engine->dev;
    s->n_taps = o->from->n_taps;
    memcpy(s->taps, o->from->taps, sizeof s->taps);
    s->ridge = o->ridge;
    s->ridge.layer_weight = NULL; /* the caller's */
    if (s->ridge.lambda <= 0) s->ridge.lambda = kk_ridge_lambda;
    s->shape = *o->shape;
    s->shape.params = NULL;
    for (int32_t i = 0; i < s->shape.config.n_layer; i++)
        s->weight[i] = o->ridge.layer_weight ? o->ridge.layer_weight[i] : 1;
    s->n_in = s->shape.config.n_in;
    for (int32_t i = 0; i < s->shape.n_blocks; i++) {
        s->column[i] = s->n_out;
        s->n_out += s->shape.block[i].width;
        if (s->shape.block[i].width > s->widest) s->widest = s->shape.block[i].width;
    }
    s->rows = o->rows;
}

kk_status kk_sums_new(kk_sums **out, const kk_sums_opts *opts, kk_err *err) {
    *out = NULL;
    const char *why = kk_sums_refuse(opts->from);
    if (why) return kk_fail(err, KK_EINVAL, "no sums on the device: %s", why);
    KK_TRY(check_memory(opts, err));
    kk_sums *s = kk_zalloc(sizeof *s);
    if (!s) return kk_fail(err, KK_ENOMEM, "no memory for sums");
    fill(s, opts);
    const kk_status st = take_buffers(s, err);
    if (st != KK_OK) {
        kk_sums_free(s);
        return st;
    }
    *out = s;
    return KK_OK;
}

void kk_sums_free(kk_sums *s) {
    if (!s) return;
    kk_session_free(s->session);
    kk_buf *b[] = {s->x, s->y, s->unit, s->xx, s->yx, s->squares, s->weights};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++)
        if (b[i]) s->be->buf_free(s->dev, b[i]);
    kk_free(s);
}

int64_t kk_sums_rows(const kk_sums *s) { return s->n; }
kk_sums_times kk_sums_spent(const kk_sums *s) { return s->spent; }

/* ---- adding up --------------------------------------------------------------------------- */

kk_status kk_sums_add(kk_sums *s, kk_err *err) {
    const double in = s->n_in, all = in / 2 + s->n_out, begin = kk_now();
    if (!s->held) return KK_OK;
    /* Features are normalised tap by tap. */
    const kk_norm_args norm = {.out = s->x,
                               .x = s->x,
                               .n_rows = s->held * s->n_taps,
                               .dim = s->n_in / s->n_taps,
                               .eps = s->ridge.eps};
    KK_TRY(s->be->norm(s->dev, &norm, err));
    const kk_gram_args xx = {
        .sum = s->xx, .a = s->x, .b = s->x, .n_rows = s->held, .n_a = s->n_in, .n_b = s->n_in};
    const kk_gram_args yx = {
        .sum = s->yx, .a = s->y, .b = s->x, .n_rows = s->held, .n_a = s->n_out, .n_b = s->n_in};
    KK_TRY(s->be->sums->gram(s->dev, &xx, err));
    KK_TRY(s->be->sums->gram(s->dev, &yx, err));
    KK_TRY(s->be->instruments->sync(s->dev, err));
    s->spent.add_s += kk_now() - begin;
    s->spent.flop += 2 * (double)s->held * in * all;
    s->n += s->held;
    s->held = 0;
    return KK_OK;
}

/* A block's targets into its columns of the chunk. */
static kk_status take_block(kk_sums *s, int32_t i, const kk_buf *rows, int32_t n, kk_err *err) {
    const kk_theta_block *b = &s->shape.block[i];
    const kk_squares_args squares = {
        .sum = s->squares, .x = rows, .at = (size_t)s->column[i], .n_rows = n, .dim = b->width};
    KK_TRY(s->be->sums->squares(s->dev, &squares, err));
    const kk_norm_args norm = {.out = s->unit,
                               .x = rows,
                               .n_rows = n * b->n_head,
                               .dim = b->head_dim,
                               .eps = s->ridge.eps};
    if (s->unit) KK_TRY(s->be->norm(s->dev, &norm, err));
    const kk_gather_args copy = {.out = s->y,
                                 .x = s->unit ? s->unit : rows,
                                 .n = n,
                                 .dim = b->width,
                                 .out_at =
                                     (size_t)s->held * (size_t)s->n_out + (size_t)s->column[i],
                                 .out_stride = (size_t)s->n_out};
    return s->be->gather(s->dev, &copy, err);
}

/* A raw key that stands for K and V is shown as a key. */
static kk_status on_part(void *user, int32_t layer, kk_layer_part part, const kk_buf *rows,
                         int32_t n_rows, int32_t width, kk_err *err) {
    kk_sums *s = user;
    (void)width;
    const int32_t i = part == KK_PART_K   ? s->shape.k_block[layer]
                      : part == KK_PART_V ? s->shape.v_block[layer]
                                          : -1;
    return i < 0 ? KK_OK : take_block(s, i, rows, n_rows, err);
}

/* ---- running ----------------------------------------------------------------------------- */

static kk_status forward(kk_sums *s, const int32_t *tokens, int32_t rows, kk_err *err) {
    const kk_gemma4_group group = {.cache = s->session->cache,
                                   .layout = s->session->layout,
                                   .tokens = tokens,
                                   .n_rows = rows,
                                   .taps = s->x,
                                   .tap_row = s->held};
    const kk_gemma4_watch watch = {on_part, s};
    const kk_gemma4_forward_args a = {
        .groups = &group, .n_groups = 1, .tapped = s->taps, .n_tapped = s->n_taps, .watch = &watch};
    KK_TRY(kk_cache_reserve(s->session->cache, rows, err));
    KK_TRY(kk_gemma4_forward(s->engine->model, &a, err));
    KK_TRY(s->be->instruments->sync(s->dev, err));
    s->held += rows;
    return KK_OK;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static kk_status run(kk_sums *s, const int32_t *tokens, int32_t n, kk_err *err) {
    for (int32_t done = 0; done < n;) {
        if (s->held == s->rows) KK_TRY(kk_sums_add(s, err));
        const int32_t most = least(s->engine->rounds.max_rows, s->rows - s->held);
        const int32_t rows = least(n - done, most);
        const double begin = kk_now();
        kk_engine_lock(s->engine);
        const kk_status st = forward(s, tokens + done, rows, err);
        kk_engine_unlock(s->engine);
        KK_TRY(st);
        s->spent.forward_s += kk_now() - begin;
        done += rows;
        kk_cache_commit(s->session->cache, done);
    }
    return KK_OK;
}

kk_status kk_sums_run(kk_sums *s, const int32_t *tokens, int32_t n, kk_err *err) {
    const kk_session_opts how = {.ctx = n, .kv_format = KK_KV_F32, .spec = KK_SPEC_NONE};
    const int32_t context = kk_engine_config(s->engine)->context;
    if (n < 1 || n > context)
        return kk_fail(err, KK_EINVAL, "a sequence of %d tokens: this model takes 1 to %d", n,
                       context);
    KK_TRY(kk_session_new(&s->session, s->engine, &how, err));
    const kk_status st = run(s, tokens, n, err);
    kk_session_free(s->session);
    s->session = NULL;
    return st;
}
