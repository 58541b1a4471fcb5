/* context.c - a session's drafter context, and the proposer that drafts from it; see context.h. */
#include "propose/context.h"

#include <assert.h>

#include "propose/propose.h"

enum {
    QUEUE_ROWS = KK_TAP_QUEUE + KK_MAX_DRAFT + 1, /* those that wait, and the round at hand */
    MAX_BLOCKS = 256,
    SINK = 4, /* rows a bounded context keeps of its start, where attention likes to rest */
};

struct kk_context {
    kk_context_opts opts;
    kk_cache *cache;
    kk_buf *queue;   /* [QUEUE_ROWS][n_taps][hidden] */
    int32_t waiting; /* rows in it */
    kk_buf *taps;    /* where the rows at hand go: the queue, or the shared chunk */
};

/* ---- life ------------------------------------------------------------------------------- */

/* Room for attention to read a sink that lies apart. */
static kk_status prepare_sink(const kk_context_opts *o, kk_err *err) {
    const int32_t n_head = kk_dflash_config(o->model)->n_head;
    for (int32_t i = 0; i < o->layout->shape.n_layer; i++)
        if (o->layout->shape.layer[i].kind == KK_FULL)
            KK_TRY(o->backend->prepare_evicted(o->dev, &o->layout->slot[i], n_head, 0, err));
    return KK_OK;
}

static kk_status open_cache(kk_context *c, kk_err *err) {
    const kk_context_opts *o = &c->opts;
    kk_cache_opts how = {.layout = o->layout,
                         .pool = {o->pool[0], o->pool[1]},
                         .policy = {[KK_SLIDING] = &kk_kv_native, [KK_FULL] = &kk_kv_exact},
                         .bounds = {[KK_SLIDING] = {.window = o->layout->shape.window}},
                         .max_len = o->max_len,
                         .max_block = o->max_chunk > QUEUE_ROWS ? o->max_chunk : QUEUE_ROWS};
    if (o->draft_ctx) {
        KK_TRY(prepare_sink(o, err));
        how.policy[KK_FULL] = &kk_kv_bounded;
        how.bounds[KK_FULL] = (kk_kv_bounds){.window = o->draft_ctx, .sink = SINK};
    }
    return kk_cache_new(&c->cache, &how, err);
}

static size_t row_bytes(const kk_context *c) {
    const kk_drafter_config *d = kk_dflash_config(c->opts.model);
    return (size_t)d->n_taps * (size_t)d->hidden * sizeof(float);
}

kk_status kk_context_new(kk_context **out, const kk_context_opts *opts, kk_err *err) {
    *out = NULL;
    kk_context *c = kk_zalloc(sizeof *c);
    if (!c) return kk_fail(err, KK_ENOMEM, "no memory for a drafter's context");
    c->opts = *opts;
    kk_status st = open_cache(c, err);
    if (st == KK_OK)
        st = opts->backend->buf_new(opts->dev, KK_MEM_WORKSPACE, QUEUE_ROWS * row_bytes(c),
                                    &c->queue, err);
    if (st != KK_OK) {
        kk_context_free(c);
        return st;
    }
    *out = c;
    return KK_OK;
}

void kk_context_free(kk_context *c) {
    if (!c) return;
    c->opts.backend->buf_free(c->opts.dev, c->queue);
    kk_cache_free(c->cache);
    kk_free(c);
}

int64_t kk_context_rows(const kk_context *c) { return kk_cache_len(c->cache) + c->waiting; }
kk_cache *kk_context_cache(const kk_context *c) { return c->cache; }

/* ---- rows come in ----------------------------------------------------------------------- */

static kk_dflash_context view(const kk_context *c) {
    return (kk_dflash_context){.cache = c->cache,
                               .layout = c->opts.layout,
                               .sink = c->opts.draft_ctx ? SINK : 0,
                               .full_window = c->opts.draft_ctx};
}

static kk_status extend(kk_context *c, const kk_buf *taps, int32_t n, kk_err *err) {
    const kk_dflash_rows rows = {.context = view(c), .taps = taps, .n_rows = n};
    const int64_t at = kk_cache_len(c->cache);
    KK_TRY(kk_cache_reserve(c->cache, n, err));
    const kk_status st = kk_dflash_extend(c->opts.model, &rows, 1, err);
    kk_cache_commit(c->cache, st == KK_OK ? at + n : at);
    return st;
}

kk_status kk_context_flush(kk_context *c, kk_err *err) {
    if (c->waiting == 0) return KK_OK;
    KK_TRY(extend(c, c->queue, c->waiting, err));
    c->waiting = 0;
    return KK_OK;
}

kk_status kk_context_room(kk_context *c, int32_t n, kk_buf **taps, int32_t *tap_row, kk_err *err) {
    const bool small = n <= KK_MAX_DRAFT + 1;
    assert(small || n <= c->opts.max_chunk);
    if (!small || c->waiting > KK_TAP_QUEUE) KK_TRY(kk_context_flush(c, err));
    c->taps = small ? c->queue : c->opts.chunk;
    *taps = c->taps;
    *tap_row = small ? c->waiting : 0;
    return KK_OK;
}

void kk_context_commit(kk_context *c, int32_t n) {
    assert(c->waiting + n <= QUEUE_ROWS && (n == 0 || c->taps == c->queue));
    c->waiting += n;
}

kk_status kk_context_absorb(kk_context *c, int32_t n, kk_err *err) {
    if (c->taps != c->queue) return extend(c, c->taps, n, err);
    kk_context_commit(c, n);
    return KK_OK;
}

/* ---- and are taken back ----------------------------------------------------------------- */

bool kk_context_reaches(const kk_context *c, int64_t rows) {
    const int64_t held = kk_cache_len(c->cache);
    return rows >= held ? rows <= held + c->waiting : kk_cache_reaches(c->cache, rows);
}

void kk_context_truncate(kk_context *c, int64_t rows) {
    assert(kk_context_reaches(c, rows));
    const int64_t held = kk_cache_len(c->cache);
    c->waiting = rows > held ? (int32_t)(rows - held) : 0;
    if (rows >= held) return;
    (void)kk_cache_truncate(c->cache, rows);
    kk_cache_commit(c->cache, rows);
}

kk_status kk_context_mark(kk_context *c, kk_mark **out, kk_err *err) {
    *out = NULL;
    KK_TRY(kk_context_flush(c, err));
    return kk_mark_new(out, c->cache, err);
}

void kk_context_restore(kk_context *c, const kk_mark *m) {
    c->waiting = 0;
    if (m) {
        kk_mark_restore(m, c->cache);
        return;
    }
    (void)kk_cache_truncate(c->cache, 0);
    kk_cache_commit(c->cache, 0);
}

/* ---- drafting --------------------------------------------------------------------------- */

static bool alike(const kk_context *a, const kk_context *b) {
    return a->opts.layout == b->opts.layout && a->opts.draft_ctx == b->opts.draft_ctx;
}

static kk_status prepare_block(kk_draft *d, kk_dflash_block *block, kk_err *err) {
    kk_context *c = d->self;
    assert(kk_context_rows(c) == d->len - 1);
    KK_TRY(kk_context_flush(c, err));
    KK_TRY(kk_cache_reserve(c->cache, d->max + 1, err));
    *block = (kk_dflash_block){
        .context = view(c), .anchor = d->tokens[d->len - 1], .n = d->max, .out = d->out};
    d->n = d->max;
    return KK_OK;
}

/* One pass for all sessions whose contexts are like that of the i-th, unless an earlier one's
 * pass was theirs too. */
static kk_status draft_like(kk_draft *drafts, int32_t n, int32_t i, kk_err *err) {
    kk_dflash_block blocks[MAX_BLOCKS];
    const kk_context *c = drafts[i].self;
    int32_t n_blocks = 0;
    for (int32_t k = 0; k < i; k++)
        if (alike(drafts[k].self, c)) return KK_OK;
    for (int32_t k = i; k < n; k++)
        if (alike(drafts[k].self, c)) KK_TRY(prepare_block(&drafts[k], &blocks[n_blocks++], err));
    return kk_dflash_draft(c->opts.model, blocks, n_blocks, err);
}

/* The blocks' own rows are never committed: what they reserved is given back. */
static kk_status draft(kk_draft *drafts, int32_t n, kk_err *err) {
    kk_status st = KK_OK;
    assert(n <= MAX_BLOCKS);
    for (int32_t i = 0; i < n && st == KK_OK; i++) st = draft_like(drafts, n, i, err);
    for (int32_t i = 0; i < n; i++) {
        kk_cache *cache = ((kk_context *)drafts[i].self)->cache;
        kk_cache_commit(cache, kk_cache_len(cache));
    }
    return st;
}

const kk_proposer kk_propose_dflash = {.name = "dflash", .draft = draft};
