/* dflash.c - see dflash.h.
 *
 * Invariant, between calls: rows of the cache + rows that wait = rows of the verifier's cache. */
#include "propose/dflash.h"

#include <assert.h>

#include "propose/short_head.h"

enum {
    QUEUE_ROWS = KK_TAP_QUEUE + KK_MAX_DRAFT + 1, /* queued rows, and those of the current round */
    MAX_BLOCKS = 256,
    NOTED = 4096, /* of a long timeline, the last so many tokens are looked at for the short head */
    SINK = 4,     /* rows of the attention sink of a bounded context */
};

typedef struct {
    kk_proposer_opts opts;
    kk_dflash *model;
    kk_cache *cache;
    kk_buf *queue;   /* [QUEUE_ROWS][n_taps][hidden] */
    int32_t waiting; /* rows in it */
    kk_buf *chunk;   /* the engine's */
    kk_buf *taps;    /* where the taps of this forward go: the queue, or the chunk */
    /* The round that was reserved last has its rows in the cache already, not committed: a round
     * behind it was enqueued.  The queue is empty then. */
    bool extended;
    kk_short_head head; /* which head drafts, where there are two */
    int32_t noted;      /* tokens of the timeline that the short head was told of */
} context;

/* ---- life ------------------------------------------------------------------------------- */

/* Reserves the scratch that attention needs to read a sink outside the pages. */
static kk_status prepare_sink(const context *c, kk_err *err) {
    const kk_proposer_opts *o = &c->opts;
    const int32_t n_head = kk_dflash_config(c->model)->n_head;
    for (int32_t i = 0; i < o->layout->shape.n_layer; i++)
        if (o->layout->shape.layer[i].kind == KK_FULL)
            KK_TRY(o->backend->prepare(
                o->dev,
                &(kk_prepare_args){.evicted = {.slot = &o->layout->slot[i], .n_head = n_head}},
                err));
    return KK_OK;
}

static kk_status open_cache(context *c, kk_err *err) {
    const kk_proposer_opts *o = &c->opts;
    kk_cache_opts how = {.layout = o->layout,
                         .pool = {o->pool[0], o->pool[1]},
                         .policy = {[KK_SLIDING] = &kk_kv_native, [KK_FULL] = &kk_kv_exact},
                         .bounds = {[KK_SLIDING] = {.window = o->layout->shape.window}},
                         .max_len = o->max_len,
                         .max_block = o->max_rows > QUEUE_ROWS ? o->max_rows : QUEUE_ROWS};
    if (o->draft_ctx) {
        KK_TRY(prepare_sink(c, err));
        how.policy[KK_FULL] = &kk_kv_bounded;
        how.bounds[KK_FULL] = (kk_kv_bounds){.window = o->draft_ctx, .sink = SINK};
    }
    return kk_cache_new(&c->cache, &how, err);
}

static size_t row_bytes(const context *c) {
    const kk_drafter_config *d = kk_dflash_config(c->model);
    return (size_t)d->n_taps * (size_t)d->hidden * sizeof(float);
}

static void close_context(void *self) {
    context *c = self;
    c->opts.backend->buf_free(c->opts.dev, c->queue);
    kk_cache_free(c->cache);
    kk_free(c);
}

static kk_status open_context(void **self, const kk_proposer_opts *opts, kk_err *err) {
    const kk_dflash_shared *shared = opts->shared;
    *self = NULL;
    context *c = kk_zalloc(sizeof *c);
    if (!c) return kk_fail(err, KK_ENOMEM, "no memory for a drafter's context");
    c->opts = *opts;
    c->model = shared->model;
    c->chunk = shared->chunk;
    kk_status st = open_cache(c, err);
    if (st == KK_OK)
        st = opts->backend->buf_new(opts->dev, KK_MEM_WORKSPACE, QUEUE_ROWS * row_bytes(c),
                                    &c->queue, err);
    if (st != KK_OK) {
        close_context(c);
        return st;
    }
    *self = c;
    return KK_OK;
}

static int64_t rows_of(const void *self) {
    const context *c = self;
    return kk_cache_len(c->cache) + c->waiting;
}

static kk_cache *cache_of(const void *self) { return ((const context *)self)->cache; }

/* ---- rows come in ----------------------------------------------------------------------- */

static kk_dflash_context view(const context *c) {
    return (kk_dflash_context){.cache = c->cache,
                               .layout = c->opts.layout,
                               .sink = c->opts.draft_ctx ? SINK : 0,
                               .full_window = c->opts.draft_ctx};
}

static kk_status extend(context *c, const kk_buf *taps, int32_t n, kk_err *err) {
    const kk_dflash_rows rows = {.context = view(c), .taps = taps, .n_rows = n};
    const int64_t at = kk_cache_len(c->cache);
    KK_TRY(kk_cache_reserve(c->cache, n, err));
    const kk_status st = kk_dflash_extend(c->model, &rows, 1, err);
    kk_cache_commit(c->cache, st == KK_OK ? at + n : at);
    return st;
}

static kk_status flush(void *self, kk_err *err) {
    context *c = self;
    if (c->waiting == 0) return KK_OK;
    KK_TRY(extend(c, c->queue, c->waiting, err));
    c->waiting = 0;
    return KK_OK;
}

static kk_status reserve(void *self, const int32_t *tokens, int32_t n, kk_taps *taps, kk_err *err) {
    context *c = self;
    const bool small = n <= KK_MAX_DRAFT + 1;
    (void)tokens;
    assert(small || n <= c->opts.max_rows);
    if (!small || c->waiting > KK_TAP_QUEUE) KK_TRY(flush(c, err));
    c->taps = small ? c->queue : c->chunk;
    *taps = (kk_taps){.buf = c->taps, .row = small ? c->waiting : 0};
    return KK_OK;
}

/* ---- the short head --------------------------------------------------------------------- */

static bool is_short(const void *self) {
    const context *c = self;
    return kk_dflash_short_rows(c->model) > 0 && !c->head.left;
}

static int32_t chose(void *self, const int32_t *tokens, int32_t n) {
    context *c = self;
    int32_t outside = 0;
    if (kk_dflash_short_rows(c->model) == 0) return 0;
    for (int32_t i = 0; i < n; i++) outside += !kk_dflash_has_short(c->model, tokens[i]);
    kk_short_head_saw(&c->head, n, outside);
    return outside;
}

/* Tokens [0, len) are known. */
static kk_status note(context *c, const int32_t *tokens, int32_t len, kk_err *err) {
    const int32_t first = c->noted > len - NOTED ? c->noted : len - NOTED;
    if (first >= len) return KK_OK;
    KK_TRY(kk_dflash_note(c->model, tokens + first, len - first, err));
    c->noted = len;
    return KK_OK;
}

/* ---- rounds ahead ----------------------------------------------------------------------- */

/* Rows enter a sink when they are committed, and these are not when they are read. */
static bool can_go_ahead(const void *self) { return ((const context *)self)->opts.draft_ctx == 0; }

static kk_buf *anchor_of(const void *self) {
    return kk_dflash_anchor(((const context *)self)->model);
}

/* Rows that wait, and those of the round before, of which the wrong ones will be written over. */
static kk_status extend_flying(context *c, int32_t flying, kk_err *err) {
    const kk_dflash_rows rows = {
        .context = view(c), .taps = c->queue, .n_rows = c->waiting + flying};
    const int64_t held = kk_cache_len(c->cache) + c->waiting;
    KK_TRY(kk_cache_reserve(c->cache, rows.n_rows, err));
    KK_TRY(kk_dflash_extend(c->model, &rows, 1, err));
    kk_cache_advance(c->cache, held);
    c->waiting = 0;
    c->extended = flying > 0;
    return KK_OK;
}

static kk_status draft_block(context *c, const kk_ahead *a, kk_err *err) {
    const int32_t ahead = (int32_t)(a->start - kk_cache_len(c->cache));
    const int32_t behind = a->flying > ahead ? a->flying : ahead;
    const kk_dflash_block block = {.context = view(c),
                                   .n = a->n,
                                   .ids = a->ids,
                                   .ahead = ahead,
                                   .shift = a->shift,
                                   .most_shift = behind - ahead,
                                   .short_head = is_short(c)};
    assert(ahead >= 0);
    KK_TRY(kk_cache_reserve(c->cache, behind + a->n + 1, err));
    return kk_dflash_draft(c->model, &block, 1, err);
}

/* A plain round behind a plain one leaves its taps in the queue.  Behind a drafted one nobody knows
 * yet how many of them count, so that its rows enter the cache first. */
static kk_status enqueue(const kk_proposer *me, void *self, kk_ahead *a, kk_err *err) {
    context *c = self;
    (void)me;
    assert(!c->extended);
    const int32_t queued = c->waiting + a->flying;
    if (a->n > 0) KK_TRY(note(c, a->tokens, a->len, err));
    if (a->n > 0 || a->flying > 1 || queued > KK_TAP_QUEUE)
        KK_TRY(extend_flying(c, a->flying, err));
    if (a->n > 0) KK_TRY(draft_block(c, a, err));
    c->taps = c->queue;
    a->taps = (kk_taps){.buf = c->queue, .row = c->extended ? 0 : c->waiting + a->flying};
    return KK_OK;
}

static void commit(void *self, int32_t n) {
    context *c = self;
    const int64_t held = kk_cache_len(c->cache);
    if (n == 0) { /* also what a draft has reserved is given back */
        c->extended = false;
        kk_cache_commit(c->cache, held);
        return;
    }
    if (c->extended) {
        kk_cache_advance(c->cache, held + n);
        c->extended = false;
        return;
    }
    assert(c->waiting + n <= QUEUE_ROWS && (n == 0 || c->taps == c->queue));
    c->waiting += n;
}

static kk_status absorb(void *self, int32_t n, kk_err *err) {
    context *c = self;
    if (c->taps != c->queue) return extend(c, c->taps, n, err);
    commit(c, n);
    return KK_OK;
}

/* ---- and are taken back ----------------------------------------------------------------- */

static bool can_truncate(const void *self, int64_t rows) {
    const context *c = self;
    const int64_t held = kk_cache_len(c->cache);
    return rows >= held ? rows <= held + c->waiting : kk_cache_can_truncate(c->cache, rows);
}

static void truncate_to(void *self, int64_t rows) {
    context *c = self;
    assert(can_truncate(c, rows));
    const int64_t held = kk_cache_len(c->cache);
    if (rows < c->noted) c->noted = (int32_t)rows;
    c->waiting = rows > held ? (int32_t)(rows - held) : 0;
    if (rows >= held) return;
    (void)kk_cache_truncate(c->cache, rows);
    kk_cache_commit(c->cache, rows);
}

/* A mark is one of the cache; there is none of the queue. */
static kk_status mark(void *self, void **out, kk_err *err) {
    context *c = self;
    kk_mark *m;
    *out = NULL;
    KK_TRY(flush(c, err));
    KK_TRY(kk_mark_new(&m, c->cache, err));
    *out = m;
    return KK_OK;
}

static void unmark(void *m) { kk_mark_free(m); }

static int64_t mark_bytes(const void *m, const void *older) { return kk_mark_bytes(m, older); }

static void restore(void *self, const void *m) {
    context *c = self;
    c->waiting = c->noted = 0;
    if (m) {
        kk_mark_restore(m, c->cache);
        return;
    }
    (void)kk_cache_truncate(c->cache, 0);
    kk_cache_commit(c->cache, 0);
}

/* ---- files ------------------------------------------------------------------------------ */

static kk_status save(const void *self, const void *m, const void *older, kk_section_out *to,
                      kk_err *err) {
    return kk_mark_save(((const context *)self)->cache, m, older, to, err);
}

static kk_status load(void *self, int64_t rows, kk_section_in *from, kk_err *err) {
    context *c = self;
    assert(c->waiting == 0);
    return kk_cache_load(c->cache, rows, "drafter's", from, err);
}

/* ---- drafting --------------------------------------------------------------------------- */

static bool alike(const context *a, const context *b) {
    return a->opts.layout == b->opts.layout && a->opts.draft_ctx == b->opts.draft_ctx &&
           is_short(a) == is_short(b);
}

static kk_status prepare_block(kk_draft *d, kk_dflash_block *block, kk_err *err) {
    context *c = d->self;
    assert(rows_of(c) == d->len - 1);
    KK_TRY(flush(c, err));
    KK_TRY(note(c, d->tokens, d->len, err));
    KK_TRY(kk_cache_reserve(c->cache, d->max + 1, err));
    *block = (kk_dflash_block){.context = view(c),
                               .anchor = d->tokens[d->len - 1],
                               .n = d->max,
                               .out = d->out,
                               .short_head = is_short(c)};
    d->n = d->max;
    return KK_OK;
}

/* One pass for all sessions whose contexts are like that of the i-th, unless an earlier one's
 * pass was theirs too. */
static kk_status draft_like(kk_draft *drafts, int32_t n, int32_t i, kk_err *err) {
    kk_dflash_block blocks[MAX_BLOCKS];
    const context *c = drafts[i].self;
    int32_t n_blocks = 0;
    for (int32_t k = 0; k < i; k++)
        if (alike(drafts[k].self, c)) return KK_OK;
    for (int32_t k = i; k < n; k++)
        if (alike(drafts[k].self, c)) KK_TRY(prepare_block(&drafts[k], &blocks[n_blocks++], err));
    return kk_dflash_draft(c->model, blocks, n_blocks, err);
}

/* The blocks' own rows are never committed: what they reserved is given back. */
static kk_status draft(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err) {
    kk_status st = KK_OK;
    (void)me;
    assert(n <= MAX_BLOCKS);
    for (int32_t i = 0; i < n && st == KK_OK; i++) st = draft_like(drafts, n, i, err);
    for (int32_t i = 0; i < n; i++) {
        kk_cache *cache = ((context *)drafts[i].self)->cache;
        kk_cache_commit(cache, kk_cache_len(cache));
    }
    return st;
}

const kk_proposer kk_propose_dflash = {.name = "dflash",
                                       .wants_taps = true,
                                       .open = open_context,
                                       .close = close_context,
                                       .reserve = reserve,
                                       .commit = commit,
                                       .absorb = absorb,
                                       .flush = flush,
                                       .can_go_ahead = can_go_ahead,
                                       .enqueue = enqueue,
                                       .anchor = anchor_of,
                                       .can_truncate = can_truncate,
                                       .truncate = truncate_to,
                                       .mark = mark,
                                       .unmark = unmark,
                                       .restore = restore,
                                       .mark_bytes = mark_bytes,
                                       .save = save,
                                       .load = load,
                                       .rows = rows_of,
                                       .cache = cache_of,
                                       .is_short = is_short,
                                       .chose = chose,
                                       .draft = draft};
