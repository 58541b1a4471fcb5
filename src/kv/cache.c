/* cache.c - a session's page tables, and marks on them; see kv.h for the invariants.
 *
 * The pages of a kind lie side by side in its table, at [first, end) by absolute page index, so
 * residence is a comparison.  A table has three columns: the page, and its memory and number as
 * attention wants them.  A sink is copied from page 0 as its rows are committed; that page then
 * goes like any other. */
#include <assert.h>
#include <string.h>

#include "kv/pool.h"
#include "kv/rows.h"

typedef struct {
    int64_t first, end; /* pages */
} extent;

typedef struct {
    kk_page **page; /* [cap] */
    uint8_t **data; /* [cap] */
    int64_t *id;    /* [cap] */
    extent held;
    int64_t cap, promised;
    uint8_t *sink; /* NULL: none */
} table;

struct kk_cache {
    kk_cache_opts opts;
    int32_t n_layers[KK_KINDS]; /* layers of the model, including those that store nothing */
    int64_t len, reserved;
    table table[KK_KINDS];
};

typedef struct {
    kk_pool *pool;
    kk_page **page; /* [end - first] of the extent */
    extent held;
    bool lets_go; /* its policy releases pages as the session grows */
    uint8_t *sink;
    size_t sink_bytes;
} frozen;

struct kk_mark {
    int64_t len;
    frozen frozen[KK_KINDS];
    kk_page *pages[];
};

static int64_t page_of(int64_t row) { return row / KK_PAGE_ROWS; }
static int64_t pages_for(int64_t rows) { return page_of(rows + KK_PAGE_ROWS - 1); }
static int64_t extent_pages(extent e) { return e.end - e.first; }

static int64_t keep_from(const kk_cache *c, kk_kind kind, int64_t len) {
    return c->opts.policy[kind]->keep_from(&c->opts.bounds[kind], len);
}

/* The pages that hold what `len` needs, and the one that its last row lies in, when more rows fit
 * there: else that page's earlier rows, which a truncation may ask for, would be lost. */
static extent needed(const kk_cache *c, kk_kind kind, int64_t len) {
    return (extent){page_of(keep_from(c, kind, len)), pages_for(len)};
}

static bool has_kind(const kk_cache *c, int kind) { return c->opts.layout->page_bytes[kind] > 0; }

/* The most pages a kind ever holds: what a full cache keeps, as much as a chunk may add to it, a
 * block more, and a page at either end that is only partly needed. */
static int64_t most_pages(const kk_cache *c, kk_kind kind) {
    const int64_t len = c->opts.max_len, chunk = c->opts.bounds[kind].chunk;
    const int64_t kept = len - keep_from(c, kind, len) + (chunk > 1 ? chunk - 1 : 0);
    const int64_t most = pages_for(kept + c->opts.max_block) + 1;
    return most < pages_for(len) ? most : pages_for(len);
}

static kk_status open_table(kk_cache *c, kk_kind kind, kk_err *err) {
    table *t = &c->table[kind];
    t->cap = pages_for(c->opts.max_len);
    t->page = kk_calloc((size_t)t->cap, sizeof *t->page);
    t->data = kk_calloc((size_t)t->cap, sizeof *t->data);
    t->id = kk_calloc((size_t)t->cap, sizeof *t->id);
    if (!t->page || !t->data || !t->id)
        return kk_fail(err, KK_ENOMEM, "no memory for a table of %lld K/V pages",
                       (long long)t->cap);
    const int64_t most = most_pages(c, kind);
    KK_TRY(kk_pool_promise(c->opts.pool[kind], most, err));
    t->promised = most;
    const size_t sink = kk_cache_sink_bytes(c, kind);
    return sink ? kk_pool_side_take(c->opts.pool[kind], sink, &t->sink, err) : KK_OK;
}

static kk_status check_bounds(const kk_kv_policy *policy, const kk_kv_bounds *bounds, kk_err *err) {
    const int32_t least = policy->evicts && bounds->sink > 0 ? 0 : 1;
    if (policy->windowed && bounds->window < least)
        return kk_fail(err, KK_EINVAL,
                       "a %s K/V cache that keeps a window of %d rows and a sink of "
                       "%d",
                       policy->name, bounds->window, bounds->sink);
    if (bounds->sink < 0 || (bounds->sink > 0 && !policy->sinks))
        return kk_fail(err, KK_EINVAL, "a %s K/V cache that keeps the first %d rows", policy->name,
                       bounds->sink);
    if (bounds->sink > KK_PAGE_ROWS)
        return kk_fail(err, KK_EINVAL, "a sink of %d rows: at most %d", bounds->sink, KK_PAGE_ROWS);
    if (bounds->chunk < 0)
        return kk_fail(err, KK_EINVAL, "a %s K/V cache with chunks of %d rows", policy->name,
                       bounds->chunk);
    return KK_OK;
}

kk_status kk_cache_new(kk_cache **out, const kk_cache_opts *opts, kk_err *err) {
    *out = NULL;
    if (opts->max_len < 1 || opts->max_len > INT64_MAX / 2 || opts->max_block < 0)
        return kk_fail(err, KK_EINVAL, "a K/V cache of %lld rows", (long long)opts->max_len);
    kk_cache *c = kk_zalloc(sizeof *c);
    if (!c) return kk_fail(err, KK_ENOMEM, "no memory for a K/V cache");
    c->opts = *opts;
    if (c->opts.max_block == 0 || c->opts.max_block > opts->max_len)
        c->opts.max_block = opts->max_len;
    for (int32_t i = 0; i < opts->layout->shape.n_layer; i++)
        c->n_layers[opts->layout->shape.layer[i].kind]++;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        kk_status st = check_bounds(opts->policy[kind], &opts->bounds[kind], err);
        if (st == KK_OK) st = open_table(c, (kk_kind)kind, err);
        if (st != KK_OK) {
            kk_cache_free(c);
            return st;
        }
    }
    *out = c;
    return KK_OK;
}

static void put_page(table *t, int64_t i, kk_page *page) {
    t->page[i] = page;
    t->data[i] = page ? page->data : NULL;
    t->id[i] = page ? page->id : 0;
}

/* Drops the pages outside `keep`, of which all that the table is to have are in it. */
static void narrow(table *t, kk_pool *pool, extent keep) {
    for (int64_t i = t->held.first; i < t->held.end; i++) {
        if (i >= keep.first && i < keep.end) continue;
        kk_pool_drop(pool, t->page[i]);
        put_page(t, i, NULL);
    }
    t->held = keep;
}

void kk_cache_free(kk_cache *c) {
    if (!c) return;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        table *t = &c->table[kind];
        narrow(t, c->opts.pool[kind], (extent){0, 0});
        if (t->promised) kk_pool_unpromise(c->opts.pool[kind], t->promised);
        kk_pool_side_give(c->opts.pool[kind], t->sink, kk_cache_sink_bytes(c, (kk_kind)kind));
        kk_free(t->page);
        kk_free(t->data);
        kk_free(t->id);
    }
    kk_free(c);
}

int64_t kk_cache_len(const kk_cache *c) { return c->len; }
const kk_cache_opts *kk_cache_how(const kk_cache *c) { return &c->opts; }
uint8_t *const *kk_cache_pages(const kk_cache *c, kk_kind kind) { return c->table[kind].data; }
const int64_t *kk_cache_page_ids(const kk_cache *c, kk_kind kind) { return c->table[kind].id; }

kk_visible_rule kk_cache_rule(const kk_cache *c, kk_kind kind) {
    const kk_kv_policy *policy = c->opts.policy[kind];
    const kk_kv_bounds *bounds = &c->opts.bounds[kind];
    if (policy->evicts)
        return (kk_visible_rule){.mask = kind == KK_SLIDING ? c->opts.layout->shape.window : 0,
                                 .evicts = true,
                                 .bounds = *bounds};
    return (kk_visible_rule){.mask = policy->windowed ? bounds->window : 0,
                             .bounds = {.sink = bounds->sink}};
}

/* Rows are rebuilt once for all queries of a chunk, of which the first sees furthest back. */
static kk_key_counts count_layer(const kk_cache *c, kk_kind kind, int64_t pos, int32_t n) {
    const kk_visible_rule rule = kk_cache_rule(c, kind);
    const bool rebuilds = c->opts.policy[kind]->rebuilds;
    kk_key_counts one = {.queries = n};
    for (int64_t p = pos; p < pos + n; p++) {
        const kk_visible see = kk_sees(&rule, p);
        const int64_t gone = rebuilds ? kk_visible_gone(see) : 0;
        one.keys_stored += kk_visible_stored(see);
        one.keys_rebuilt += gone;
        if (p == pos || p == kk_chunk_start(&rule.bounds, p)) one.rows_rebuilt += gone;
    }
    return one;
}

void kk_cache_count(const kk_cache *c, int64_t pos, int32_t n, kk_key_counts *to) {
    for (int kind = 0; kind < KK_LAYER_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        const kk_key_counts one = count_layer(c, (kk_kind)kind, pos, n);
        to->queries += c->n_layers[kind] * one.queries;
        to->keys_stored += c->n_layers[kind] * one.keys_stored;
        to->keys_rebuilt += c->n_layers[kind] * one.keys_rebuilt;
        to->rows_rebuilt += c->n_layers[kind] * one.rows_rebuilt;
    }
}

static bool same_rule(const kk_visible_rule *a, const kk_visible_rule *b) {
    return a->mask == b->mask && a->evicts == b->evicts && a->bounds.window == b->bounds.window &&
           a->bounds.sink == b->bounds.sink && a->bounds.chunk == b->bounds.chunk;
}

static bool same_diagnosis(const kk_diagnosis *a, const kk_diagnosis *b) {
    return a && b ? a->mix == b->mix : a == b;
}

bool kk_cache_alike(const kk_cache *a, const kk_cache *b) {
    const kk_kv_layout *x = a->opts.layout, *y = b->opts.layout;
    const kk_kv_latents *p = &x->latents, *q = &y->latents;
    for (int k = 0; k < KK_LAYER_KINDS; k++) {
        if (!has_kind(a, k) && !has_kind(b, k)) continue;
        const kk_visible_rule r = kk_cache_rule(a, (kk_kind)k), s = kk_cache_rule(b, (kk_kind)k);
        if (!same_rule(&r, &s) || a->opts.policy[k]->rebuilds != b->opts.policy[k]->rebuilds)
            return false;
    }
    return x->format == y->format && p->rank == q->rank && p->format == q->format &&
           same_diagnosis(p->diagnosis, q->diagnosis);
}

const uint8_t *kk_cache_sink(const kk_cache *c, kk_kind kind) { return c->table[kind].sink; }
uint8_t *kk_cache_sink_fill(kk_cache *c, kk_kind kind) { return c->table[kind].sink; }
size_t kk_cache_sink_bytes(const kk_cache *c, kk_kind kind) {
    return kk_kv_block_bytes(c->opts.layout, kind, c->opts.bounds[kind].sink);
}

int64_t kk_cache_bytes(const kk_cache *c, kk_kind kind) {
    const int64_t n = extent_pages(c->table[kind].held);
    return n ? n * kk_pool_page_bytes(c->opts.pool[kind]) : 0;
}

/* ---- reserve, commit, truncate ---------------------------------------------------------- */

/* Of pages from that of len on, which lie among those held or after them. */
static bool writable(const table *t, int64_t i) { return i < t->held.end && t->page[i]->refs == 1; }

static int64_t pages_lacking(const table *t, int64_t from, int64_t to) {
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) n += !writable(t, i);
    return n;
}

/* Puts a page of our own at index i.  Rows before len that a shared page holds come along; a
 * page that starts at or after len has nothing to bring. */
static void own_page(table *t, kk_pool *pool, int64_t i, int64_t len) {
    kk_page *mine = kk_pool_take(pool);
    if (i < t->held.end) {
        if (i * KK_PAGE_ROWS < len)
            kk_pool_copy(pool, mine->data, t->page[i]->data, (size_t)kk_pool_page_bytes(pool));
        kk_pool_drop(pool, t->page[i]);
    } else {
        t->held.end = i + 1;
    }
    put_page(t, i, mine);
}

/* Rows of page i are going to be written, which may have been others' before (truncate, marks that
 * are gone): what was made of those must not be taken for what is made of these. */
static void renumber(table *t, kk_pool *pool, int64_t i) {
    kk_pool_renumber(pool, t->page[i]);
    put_page(t, i, t->page[i]);
}

kk_status kk_cache_reserve(kk_cache *c, int64_t n, kk_err *err) {
    if (n < 0 || n > c->opts.max_block)
        return kk_fail(err, KK_EINVAL, "%lld rows at once: this cache takes up to %lld",
                       (long long)n, (long long)c->opts.max_block);
    if (n > c->opts.max_len - c->len)
        return kk_fail(err, KK_ECONTEXT, "%lld rows after %lld: the context holds %lld",
                       (long long)n, (long long)c->len, (long long)c->opts.max_len);
    const int64_t from = page_of(c->len), to = pages_for(c->len + n);
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        const kk_status st =
            kk_pool_book(c->opts.pool[kind], pages_lacking(&c->table[kind], from, to), err);
        if (st == KK_OK) continue;
        while (--kind >= 0)
            if (has_kind(c, kind))
                kk_pool_unbook(c->opts.pool[kind], pages_lacking(&c->table[kind], from, to));
        return st;
    }
    for (int kind = 0; kind < KK_KINDS; kind++) {
        table *t = &c->table[kind];
        for (int64_t i = from; has_kind(c, kind) && i < to; i++) {
            if (writable(t, i))
                renumber(t, c->opts.pool[kind], i);
            else
                own_page(t, c->opts.pool[kind], i, c->len);
        }
    }
    c->reserved = c->len + n;
    return KK_OK;
}

/* Rows up to len that enter the sink; they have just been written in page 0. */
static void keep_sink(kk_cache *c, kk_kind kind, int64_t len) {
    const table *t = &c->table[kind];
    const int32_t sink = c->opts.bounds[kind].sink;
    const int32_t from = c->len < sink ? (int32_t)c->len : sink;
    const kk_kv_passage p = {.to = t->sink,
                             .from = t->data[0],
                             .to_rows = sink,
                             .from_rows = KK_PAGE_ROWS,
                             .first = from,
                             .n = (len < sink ? (int32_t)len : sink) - from,
                             .pool = c->opts.pool[kind]};
    if (p.n > 0) kk_kv_rows_copy(c->opts.layout, kind, &p);
}

/* Rows up to len are the timeline's, and those up to `reserved` stay writable. */
static void settle(kk_cache *c, int64_t len, int64_t reserved) {
    assert(len >= c->len && len <= (c->reserved > c->len ? c->reserved : c->len));
    for (int kind = 0; kind < KK_KINDS; kind++)
        if (c->table[kind].sink) keep_sink(c, (kk_kind)kind, len);
    c->len = len;
    c->reserved = reserved;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        extent keep = needed(c, (kk_kind)kind, len);
        if (reserved > len) keep.end = pages_for(reserved);
        narrow(&c->table[kind], c->opts.pool[kind], keep);
    }
}

void kk_cache_commit(kk_cache *c, int64_t len) { settle(c, len, len); }
void kk_cache_advance(kk_cache *c, int64_t len) {
    settle(c, len, c->reserved > len ? c->reserved : len);
}

/* The extent of a kind's pages at a smaller len; false when rows that it needs are evicted. */
static bool truncated(const kk_cache *c, kk_kind kind, int64_t len, extent *left) {
    const extent need = needed(c, kind, len), held = c->table[kind].held;
    *left = held.first <= need.first ? held : need;
    return held.first <= need.first || extent_pages(need) == 0;
}

bool kk_cache_can_truncate(const kk_cache *c, int64_t len) {
    extent left;
    for (int kind = 0; kind < KK_KINDS; kind++)
        if (has_kind(c, kind) && !truncated(c, (kk_kind)kind, len, &left)) return false;
    return len <= c->len;
}

bool kk_cache_truncate(kk_cache *c, int64_t len) {
    assert(len >= 0 && len <= c->len);
    extent left[KK_KINDS];
    for (int kind = 0; kind < KK_KINDS; kind++)
        if (has_kind(c, kind) && !truncated(c, (kk_kind)kind, len, &left[kind])) return false;
    for (int kind = 0; kind < KK_KINDS; kind++)
        if (has_kind(c, kind)) narrow(&c->table[kind], c->opts.pool[kind], left[kind]);
    c->len = len;
    c->reserved = len;
    return true;
}

/* ---- writing down ----------------------------------------------------------------------- */

int64_t kk_cache_pages_needed(const kk_cache *c, kk_kind kind, int64_t len) {
    return has_kind(c, (int)kind) ? extent_pages(needed(c, kind, len)) : 0;
}

int64_t kk_cache_page_count(const kk_cache *c, kk_kind kind) {
    return kk_cache_pages_needed(c, kind, c->len);
}

kk_cache_page kk_cache_page_at(const kk_cache *c, kk_kind kind, int64_t i) {
    const int64_t index = needed(c, kind, c->len).first + i;
    const int64_t rows = c->len - index * KK_PAGE_ROWS;
    return (kk_cache_page){.index = index,
                           .rows = rows < KK_PAGE_ROWS ? (int32_t)rows : KK_PAGE_ROWS,
                           .data = c->table[kind].data[index]};
}

int64_t kk_cache_pages_of(const kk_cache *c, kk_kind kind, int64_t len) {
    return has_kind(c, (int)kind) ? extent_pages(needed(c, kind, len)) : 0;
}

static bool bit(const uint8_t *const bits[KK_KINDS], int kind, int64_t i) {
    return bits && bits[kind] && (bits[kind][i / 8] >> (i % 8) & 1);
}

/* New pages that len rows of a kind take; -1: a page that must stay resident is missing. */
static int64_t pages_anew(const kk_cache *c, int kind, int64_t len,
                          const uint8_t *const shared[KK_KINDS]) {
    const extent need = needed(c, (kk_kind)kind, len), held = c->table[kind].held;
    int64_t n = 0;
    for (int64_t i = need.first; i < need.end; i++) {
        const bool stays = bit(shared, kind, i - need.first);
        if (stays && (i < held.first || i >= held.end)) return -1;
        n += !stays;
    }
    return n;
}

static kk_status book_anew(kk_cache *c, int kind, int64_t len,
                           const uint8_t *const shared[KK_KINDS], kk_err *err) {
    const int64_t n = pages_anew(c, kind, len, shared);
    if (n < 0)
        return kk_fail(err, KK_EFORMAT, "%lld K/V rows share a page with rows that have none",
                       (long long)len);
    return kk_pool_book(c->opts.pool[kind], n, err);
}

/* Puts the pages of len rows in the place of those held. */
static void replace(kk_cache *c, int kind, int64_t len, const uint8_t *const shared[KK_KINDS]) {
    table *t = &c->table[kind];
    kk_pool *pool = c->opts.pool[kind];
    const extent need = needed(c, (kk_kind)kind, len), held = t->held;
    for (int64_t i = held.first; i < held.end; i++) {
        const bool stays = i >= need.first && i < need.end && bit(shared, kind, i - need.first);
        if (stays) continue;
        kk_pool_drop(pool, t->page[i]);
        put_page(t, i, NULL);
    }
    for (int64_t i = need.first; i < need.end; i++)
        if (!bit(shared, kind, i - need.first)) put_page(t, i, kk_pool_take(pool));
    t->held = need;
}

kk_status kk_cache_fill(kk_cache *c, int64_t len, const uint8_t *const shared[KK_KINDS],
                        kk_err *err) {
    if (len < 0 || len > c->opts.max_len)
        return kk_fail(err, KK_ECONTEXT, "%lld rows: the context holds %lld", (long long)len,
                       (long long)c->opts.max_len);
    kk_cache_commit(c, c->len); /* what was reserved and not used */
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        const kk_status st = book_anew(c, kind, len, shared, err);
        if (st == KK_OK) continue;
        while (--kind >= 0)
            if (has_kind(c, kind))
                kk_pool_unbook(c->opts.pool[kind], pages_anew(c, kind, len, shared));
        return st;
    }
    for (int kind = 0; kind < KK_KINDS; kind++)
        if (has_kind(c, kind)) replace(c, kind, len, shared);
    c->len = len;
    c->reserved = len;
    return KK_OK;
}

/* ---- marks ------------------------------------------------------------------------------ */

static kk_status freeze(kk_mark *m, const kk_cache *c, kk_kind kind, kk_page **list, kk_err *err) {
    frozen *f = &m->frozen[kind];
    kk_pool *pool = c->opts.pool[kind];
    const extent need = needed(c, kind, c->len);
    const size_t sink = kk_cache_sink_bytes(c, kind);
    KK_TRY(kk_pool_promise(pool, extent_pages(need), err));
    *f = (frozen){.pool = pool,
                  .page = list,
                  .held = need,
                  .lets_go = c->opts.policy[kind]->windowed,
                  .sink_bytes = sink};
    for (int64_t i = need.first; i < need.end; i++) {
        *list++ = c->table[kind].page[i];
        c->table[kind].page[i]->refs++;
    }
    if (sink) KK_TRY(kk_pool_side_take(pool, sink, &f->sink, err));
    if (sink) kk_pool_copy(pool, f->sink, c->table[kind].sink, sink);
    return KK_OK;
}

kk_status kk_mark_new(kk_mark **out, const kk_cache *c, kk_err *err) {
    *out = NULL;
    int64_t total = 0;
    for (int kind = 0; kind < KK_KINDS; kind++) total += kk_cache_page_count(c, (kk_kind)kind);
    kk_mark *m = kk_zalloc(sizeof *m + (size_t)total * sizeof(kk_page *));
    if (!m) return kk_fail(err, KK_ENOMEM, "no memory for a mark of %lld pages", (long long)total);
    m->len = c->len;
    kk_page **list = m->pages;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        const kk_status st = has_kind(c, kind) ? freeze(m, c, (kk_kind)kind, list, err) : KK_OK;
        if (st != KK_OK) {
            kk_mark_free(m);
            return st;
        }
        list += extent_pages(m->frozen[kind].held);
    }
    *out = m;
    return KK_OK;
}

void kk_mark_free(kk_mark *m) {
    if (!m) return;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        frozen *f = &m->frozen[kind];
        const int64_t n = extent_pages(f->held);
        for (int64_t i = 0; i < n; i++) kk_pool_drop(f->pool, f->page[i]);
        if (f->pool) kk_pool_unpromise(f->pool, n);
        kk_pool_side_give(f->pool, f->sink, f->sink_bytes);
    }
    kk_free(m);
}

int64_t kk_mark_len(const kk_mark *m) { return m->len; }

static bool holds_page(const frozen *f, int64_t index, const kk_page *page) {
    return index >= f->held.first && index < f->held.end && f->page[index - f->held.first] == page;
}

int64_t kk_mark_page_count(const kk_mark *m, kk_kind kind) {
    return extent_pages(m->frozen[kind].held);
}

kk_cache_page kk_mark_page_at(const kk_mark *m, kk_kind kind, int64_t i) {
    const frozen *f = &m->frozen[kind];
    const int64_t index = f->held.first + i, rows = m->len - index * KK_PAGE_ROWS;
    return (kk_cache_page){.index = index,
                           .rows = rows < KK_PAGE_ROWS ? (int32_t)rows : KK_PAGE_ROWS,
                           .data = f->page[i]->data};
}

const uint8_t *kk_mark_sink(const kk_mark *m, kk_kind kind) { return m->frozen[kind].sink; }

bool kk_mark_shares(const kk_mark *m, const kk_mark *older, kk_kind kind, int64_t i) {
    const frozen *f = &m->frozen[kind];
    return older && holds_page(&older->frozen[kind], f->held.first + i, f->page[i]);
}

int64_t kk_mark_bytes(const kk_mark *m, const kk_mark *older) {
    int64_t bytes = 0;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        const frozen *f = &m->frozen[kind];
        const int64_t whole = page_of(m->len), from = f->lets_go ? f->held.first : whole;
        for (int64_t i = from; i < f->held.end; i++)
            if (!older || !holds_page(&older->frozen[kind], i, f->page[i - f->held.first]))
                bytes += kk_pool_page_bytes(f->pool);
        bytes += (int64_t)f->sink_bytes;
    }
    return bytes;
}

void kk_mark_restore(const kk_mark *m, kk_cache *c) {
    assert(m->len <= c->opts.max_len);
    for (int kind = 0; kind < KK_KINDS; kind++) {
        const frozen *f = &m->frozen[kind];
        table *t = &c->table[kind];
        const int64_t n = extent_pages(f->held);
        assert(f->pool == (has_kind(c, kind) ? c->opts.pool[kind] : NULL));
        /* Shared first, so that pages both hold are never freed in between. */
        for (int64_t i = 0; i < n; i++) f->page[i]->refs++;
        narrow(t, c->opts.pool[kind], (extent){0, 0});
        for (int64_t i = 0; i < n; i++) put_page(t, f->held.first + i, f->page[i]);
        t->held = f->held;
        assert(f->sink_bytes == kk_cache_sink_bytes(c, (kk_kind)kind));
        if (f->sink) kk_pool_copy(f->pool, t->sink, f->sink, f->sink_bytes);
    }
    c->len = m->len;
    c->reserved = m->len;
}
