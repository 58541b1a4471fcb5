/* cache.c - a session's page tables, and marks on them; see kv.h for the invariants.
 *
 * The pages of a kind lie side by side in its table, at [first, end) by absolute page index; the
 * pages of a sink that the run has left behind lie at [0, sunk), with a gap before first.  So
 * residence is two comparisons.  A table has two columns: the page, and its memory as attention
 * wants it. */
#include <assert.h>
#include <string.h>

#include "kv/pool.h"

/* Which pages: [0, sunk) and [first, end), where sunk is 0 or less than first. */
typedef struct {
    int64_t sunk, first, end;
} extent;

typedef struct {
    kk_page **page; /* [cap] */
    uint8_t **data; /* [cap] */
    extent held;
    int64_t cap, promised;
} table;

struct kk_cache {
    kk_cache_opts opts;
    int64_t len, reserved;
    table table[KK_KINDS];
};

typedef struct {
    kk_pool *pool;
    kk_page **page; /* [n], in order of the extent */
    extent held;
    int64_t n;
} frozen;

struct kk_mark {
    int64_t len;
    frozen frozen[KK_KINDS];
    kk_page *pages[];
};

static int64_t page_of(int64_t row) { return row / KK_PAGE_ROWS; }
static int64_t pages_for(int64_t rows) { return page_of(rows + KK_PAGE_ROWS - 1); }

/* Two runs that touch are one, which starts at 0. */
static extent extent_of(int64_t sunk, int64_t first, int64_t end) {
    if (first > sunk) return (extent){sunk, first, end};
    return (extent){0, 0, end > sunk ? end : sunk};
}

static int64_t extent_pages(extent e) { return e.sunk + e.end - e.first; }
static int64_t extent_index(extent e, int64_t i) { return i < e.sunk ? i : e.first + i - e.sunk; }
static bool extent_has(extent e, int64_t page) {
    return page < e.sunk || (page >= e.first && page < e.end);
}

static int64_t keep_from(const kk_cache *c, kk_kind kind, int64_t len) {
    return c->opts.policy[kind]->keep_from(&c->opts.reach[kind], len);
}

/* Pages of the sink, as far as a timeline of len rows has one. */
static int64_t sink_pages(const kk_cache *c, kk_kind kind, int64_t len) {
    const int64_t sink = c->opts.reach[kind].sink;
    return pages_for(sink < len ? sink : len);
}

/* The pages that hold what `len` needs; none but the sink's when it needs no row. */
static extent needed(const kk_cache *c, kk_kind kind, int64_t len) {
    const int64_t from = keep_from(c, kind, len);
    return extent_of(sink_pages(c, kind, len), page_of(from),
                     from < len ? pages_for(len) : page_of(from));
}

static bool has_kind(const kk_cache *c, int kind) { return c->opts.layout->page_bytes[kind] > 0; }

/* The most pages a kind ever holds: what a full cache keeps, a block more, and a page at either
 * end that is only partly needed; and the sink. */
static int64_t most_pages(const kk_cache *c, kk_kind kind) {
    const int64_t len = c->opts.max_len;
    const int64_t kept = len - keep_from(c, kind, len);
    const int64_t most = pages_for(kept + c->opts.max_block) + 1 + sink_pages(c, kind, len);
    return most < pages_for(len) ? most : pages_for(len);
}

static kk_status open_table(kk_cache *c, kk_kind kind, kk_err *err) {
    table *t = &c->table[kind];
    t->cap = pages_for(c->opts.max_len);
    t->page = kk_calloc((size_t)t->cap, sizeof *t->page);
    t->data = kk_calloc((size_t)t->cap, sizeof *t->data);
    if (!t->page || !t->data)
        return kk_fail(err, KK_ENOMEM, "no memory for a table of %lld K/V pages",
                       (long long)t->cap);
    const int64_t most = most_pages(c, kind);
    KK_TRY(kk_pool_promise(c->opts.pool[kind], most, err));
    t->promised = most;
    return KK_OK;
}

static kk_status check_reach(const kk_kv_policy *policy, const kk_kv_reach *reach, kk_err *err) {
    if (policy->windowed && reach->window < 1)
        return kk_fail(err, KK_EINVAL, "a K/V cache that keeps a window of %d rows", reach->window);
    if (reach->sink < 0 || (reach->sink > 0 && !policy->sinks))
        return kk_fail(err, KK_EINVAL, "a %s K/V cache that keeps the first %d rows", policy->name,
                       reach->sink);
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
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        kk_status st = check_reach(opts->policy[kind], &opts->reach[kind], err);
        if (st == KK_OK) st = open_table(c, (kk_kind)kind, err);
        if (st != KK_OK) {
            kk_cache_free(c);
            return st;
        }
    }
    *out = c;
    return KK_OK;
}

/* Drops the pages outside `keep`, of which all that the table is to have are in it. */
static void narrow(table *t, kk_pool *pool, extent keep) {
    const int64_t n = extent_pages(t->held);
    for (int64_t i = 0; i < n; i++) {
        const int64_t page = extent_index(t->held, i);
        if (extent_has(keep, page)) continue;
        kk_pool_drop(pool, t->page[page]);
        t->page[page] = NULL;
        t->data[page] = NULL;
    }
    t->held = keep;
}

void kk_cache_free(kk_cache *c) {
    if (!c) return;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        table *t = &c->table[kind];
        narrow(t, c->opts.pool[kind], (extent){0, 0, 0});
        if (t->promised) kk_pool_unpromise(c->opts.pool[kind], t->promised);
        kk_free(t->page);
        kk_free(t->data);
    }
    kk_free(c);
}

int64_t kk_cache_len(const kk_cache *c) { return c->len; }
const kk_cache_opts *kk_cache_how(const kk_cache *c) { return &c->opts; }
uint8_t *const *kk_cache_pages(const kk_cache *c, kk_kind kind) { return c->table[kind].data; }

int64_t kk_cache_bytes(const kk_cache *c, kk_kind kind) {
    const int64_t n = extent_pages(c->table[kind].held);
    return n ? n * kk_pool_page_bytes(c->opts.pool[kind]) : 0;
}

/* ---- reserve, commit, truncate ---------------------------------------------------------- */

/* Of pages from that of len on, which lie in the run or after it and never in the gap. */
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
            memcpy(mine->data, t->page[i]->data, (size_t)kk_pool_page_bytes(pool));
        kk_pool_drop(pool, t->page[i]);
    } else {
        t->held.end = i + 1;
    }
    t->page[i] = mine;
    t->data[i] = mine->data;
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
        for (int64_t i = from; has_kind(c, kind) && i < to; i++)
            if (!writable(t, i)) own_page(t, c->opts.pool[kind], i, c->len);
    }
    c->reserved = c->len + n;
    return KK_OK;
}

void kk_cache_commit(kk_cache *c, int64_t len) {
    assert(len >= c->len && len <= (c->reserved > c->len ? c->reserved : c->len));
    c->len = len;
    c->reserved = len;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        narrow(&c->table[kind], c->opts.pool[kind], needed(c, (kk_kind)kind, len));
    }
}

/* What is left of a kind's pages at a smaller len; false when rows that it needs are gone. */
static bool truncated(const kk_cache *c, kk_kind kind, int64_t len, extent *left) {
    const extent held = c->table[kind].held;
    const int64_t from = keep_from(c, kind, len);
    *left = held;
    if (held.first <= page_of(from)) return true;
    if (from >= len)
        *left = extent_of(sink_pages(c, kind, len), page_of(len), page_of(len));
    else if (pages_for(len) <= held.sunk)
        *left = (extent){0, 0, held.sunk};
    else
        return false;
    return true;
}

bool kk_cache_reaches(const kk_cache *c, int64_t len) {
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

int64_t kk_cache_page_count(const kk_cache *c, kk_kind kind) {
    return has_kind(c, (int)kind) ? extent_pages(needed(c, kind, c->len)) : 0;
}

kk_cache_page kk_cache_page_at(const kk_cache *c, kk_kind kind, int64_t i) {
    const int64_t index = extent_index(needed(c, kind, c->len), i);
    const int64_t rows = c->len - index * KK_PAGE_ROWS;
    return (kk_cache_page){.index = index,
                           .rows = rows < KK_PAGE_ROWS ? (int32_t)rows : KK_PAGE_ROWS,
                           .data = c->table[kind].data[index]};
}

/* A head's rows lie in up to three planes: the codes, and of packed formats scales and biases. */
static void copy_head(uint8_t *to, const uint8_t *from, const kk_kv_slot *slot, int32_t rows) {
    const size_t codes = kk_kv_code_bytes(slot->format, slot->head_dim);
    const size_t affine = (kk_kv_head_bytes(slot->format, slot->head_dim) - codes) / 2;
    const size_t plane[] = {codes, affine, affine};
    size_t at = 0;
    for (int i = 0; i < 3; at += plane[i++])
        memcpy(to + at, from + at, plane[i] / KK_PAGE_ROWS * (size_t)rows);
}

/* A part is K or V of a layer. */
static void copy_part(uint8_t *to, const uint8_t *from, const kk_kv_slot *slot, int32_t rows) {
    const size_t head = kk_kv_head_bytes(slot->format, slot->head_dim);
    for (int32_t h = 0; h < slot->n_kv_head; h++)
        copy_head(to + (size_t)h * head, from + (size_t)h * head, slot, rows);
}

void kk_kv_page_copy(const kk_kv_layout *l, kk_kind kind, uint8_t *to, const uint8_t *from,
                     int32_t rows) {
    memset(to, 0, l->page_bytes[kind]);
    for (int32_t i = 0; i < l->shape.n_layer; i++) {
        const kk_kv_slot *slot = &l->slot[i];
        if (!l->shape.layer[i].stores || l->shape.layer[i].kind != kind) continue;
        copy_part(to + slot->v_off, from + slot->v_off, slot, rows);
        if (!slot->k_eq_v) copy_part(to + slot->k_off, from + slot->k_off, slot, rows);
    }
}

/* Books what len needs of every kind, or of none. */
static kk_status book_needed(kk_cache *c, int64_t len, kk_err *err) {
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        const kk_status st =
            kk_pool_book(c->opts.pool[kind], extent_pages(needed(c, (kk_kind)kind, len)), err);
        if (st == KK_OK) continue;
        while (--kind >= 0)
            if (has_kind(c, kind))
                kk_pool_unbook(c->opts.pool[kind], extent_pages(needed(c, (kk_kind)kind, len)));
        return st;
    }
    return KK_OK;
}

kk_status kk_cache_fill(kk_cache *c, int64_t len, kk_err *err) {
    if (c->len != 0)
        return kk_fail(err, KK_EINVAL, "a K/V cache of %lld rows is not empty", (long long)c->len);
    if (len < 0 || len > c->opts.max_len)
        return kk_fail(err, KK_ECONTEXT, "%lld rows: the context holds %lld", (long long)len,
                       (long long)c->opts.max_len);
    kk_cache_commit(c, 0); /* what was reserved and not used */
    KK_TRY(book_needed(c, len, err));
    for (int kind = 0; kind < KK_KINDS; kind++) {
        if (!has_kind(c, kind)) continue;
        table *t = &c->table[kind];
        t->held = needed(c, (kk_kind)kind, len);
        const int64_t n = extent_pages(t->held);
        for (int64_t i = 0; i < n; i++) {
            kk_page *mine = kk_pool_take(c->opts.pool[kind]);
            t->page[extent_index(t->held, i)] = mine;
            t->data[extent_index(t->held, i)] = mine->data;
        }
    }
    c->len = len;
    c->reserved = len;
    return KK_OK;
}

/* ---- marks ------------------------------------------------------------------------------ */

static kk_status freeze(kk_mark *m, const kk_cache *c, kk_kind kind, kk_page **room, kk_err *err) {
    frozen *f = &m->frozen[kind];
    const extent need = needed(c, kind, c->len);
    const int64_t n = extent_pages(need);
    KK_TRY(kk_pool_promise(c->opts.pool[kind], n, err));
    *f = (frozen){.pool = c->opts.pool[kind], .page = room, .held = need, .n = n};
    for (int64_t i = 0; i < n; i++) {
        f->page[i] = c->table[kind].page[extent_index(need, i)];
        f->page[i]->refs++;
    }
    return KK_OK;
}

kk_status kk_mark_new(kk_mark **out, const kk_cache *c, kk_err *err) {
    *out = NULL;
    int64_t total = 0;
    for (int kind = 0; kind < KK_KINDS; kind++) total += kk_cache_page_count(c, (kk_kind)kind);
    kk_mark *m = kk_zalloc(sizeof *m + (size_t)total * sizeof(kk_page *));
    if (!m) return kk_fail(err, KK_ENOMEM, "no memory for a mark of %lld pages", (long long)total);
    m->len = c->len;
    kk_page **room = m->pages;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        const kk_status st = has_kind(c, kind) ? freeze(m, c, (kk_kind)kind, room, err) : KK_OK;
        if (st != KK_OK) {
            kk_mark_free(m);
            return st;
        }
        room += m->frozen[kind].n;
    }
    *out = m;
    return KK_OK;
}

void kk_mark_free(kk_mark *m) {
    if (!m) return;
    for (int kind = 0; kind < KK_KINDS; kind++) {
        frozen *f = &m->frozen[kind];
        for (int64_t i = 0; i < f->n; i++) kk_pool_drop(f->pool, f->page[i]);
        if (f->pool) kk_pool_unpromise(f->pool, f->n);
    }
    kk_free(m);
}

int64_t kk_mark_len(const kk_mark *m) { return m->len; }

void kk_mark_restore(const kk_mark *m, kk_cache *c) {
    assert(m->len <= c->opts.max_len);
    for (int kind = 0; kind < KK_KINDS; kind++) {
        const frozen *f = &m->frozen[kind];
        table *t = &c->table[kind];
        assert(f->pool == (has_kind(c, kind) ? c->opts.pool[kind] : NULL));
        /* Shared first, so that pages both hold are never freed in between. */
        for (int64_t i = 0; i < f->n; i++) f->page[i]->refs++;
        narrow(t, c->opts.pool[kind], (extent){0, 0, 0});
        for (int64_t i = 0; i < f->n; i++) {
            t->page[extent_index(f->held, i)] = f->page[i];
            t->data[extent_index(f->held, i)] = f->page[i]->data;
        }
        t->held = f->held;
    }
    c->len = m->len;
    c->reserved = m->len;
}
