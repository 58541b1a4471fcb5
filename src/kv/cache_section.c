/* cache_section.c - a cache's rows in a saved session; see kv.h.
 *
 * A state is written as what it adds to the one before it.  The first part is the page table: a bit
 * for each page that the rows need, by kind, set where the page is that of the state before.  Then,
 * by kind, the pages that are not, and the rows of the sink.  Saving copies nothing but a page that
 * is not full and the sink: pages go to the file from where they lie, which needs no lock, because
 * a page that is shared with a mark is written by nobody.  Pages of a device come to the host one
 * by one.
 *
 * Files of format 2 have one state, all of its pages, and no page table. */
#include <stdio.h>

#include "kv/kv.h"

enum { WHOLE_FORMAT = 2 };

/* "drafter's sliding K/V", "first rows of the drafter's sliding K/V"; whose "": the verifier's. */
static void name_part(char out[64], const char *whose, kk_kind kind, bool sink) {
    static const char *const rows[KK_KINDS] = {
        [KK_SLIDING] = "sliding K/V", [KK_FULL] = "full K/V", [KK_LATENT] = "latents"};
    snprintf(out, 64, "%s%s%s%s%s", sink ? "first rows of " : "", sink && whose[0] ? "the " : "",
             whose, whose[0] ? " " : "", rows[kind]);
}

static size_t largest_page(const kk_cache *c) {
    size_t most = 1;
    for (int k = 0; k < KK_KINDS; k++) {
        const size_t bytes = kk_cache_how(c)->layout->page_bytes[k];
        if (bytes > most) most = bytes;
    }
    return most;
}

static size_t bitmap_bytes(int64_t pages) { return ((size_t)pages + 7) / 8; }

/* ---- save ------------------------------------------------------------------------------- */

/* A state that is being written to a section, and memory for one page: what is written, and what
 * came from a device. */
typedef struct {
    const kk_cache *like;
    const kk_mark *m, *older;
    kk_section_out *to;
    uint8_t *clean, *near;
} saving;

/* In one piece, as it is read: a checksum knows its pieces. */
static kk_status put_table(const saving *s, kk_err *err) {
    size_t bytes = 0, at = 0;
    for (int k = 0; k < KK_KINDS; k++) bytes += bitmap_bytes(kk_mark_page_count(s->m, (kk_kind)k));
    uint8_t *bits = kk_zalloc(bytes + 1);
    if (!bits) return kk_fail(err, KK_ENOMEM, "no memory to save a session");
    for (int k = 0; k < KK_KINDS; k++) {
        const int64_t n = kk_mark_page_count(s->m, (kk_kind)k);
        for (int64_t i = 0; i < n; i++)
            if (kk_mark_shares(s->m, s->older, (kk_kind)k, i))
                bits[at + (size_t)i / 8] |= (uint8_t)(1 << i % 8);
        at += bitmap_bytes(n);
    }
    kk_status st = s->to->put(s->to, bits, bytes, err);
    if (st == KK_OK) st = s->to->end_part(s->to, err);
    kk_free(bits);
    return st;
}

/* Where bytes of a page or sink can be read: where they lie, or their copy in near. */
static kk_status bytes_near(const saving *s, kk_kind kind, const uint8_t *from, size_t n,
                            const uint8_t **out, kk_err *err) {
    const kk_pool *pool = kk_cache_how(s->like)->pool[kind];
    *out = from;
    if (!kk_pool_is_remote(pool)) return KK_OK;
    *out = s->near;
    s->to->hold_device(s->to, true);
    const kk_status st = kk_pool_read(pool, s->near, from, n, err);
    s->to->hold_device(s->to, false);
    return st;
}

static kk_status put_page(const saving *s, kk_kind kind, kk_cache_page page, kk_err *err) {
    const kk_kv_layout *layout = kk_cache_how(s->like)->layout;
    const uint8_t *data = NULL;
    if (!s->to->measures)
        KK_TRY(bytes_near(s, kind, page.data, layout->page_bytes[kind], &data, err));
    if (data && page.rows < KK_PAGE_ROWS) {
        kk_kv_page_copy(layout, kind, s->clean, data, page.rows);
        data = s->clean;
    }
    return s->to->put(s->to, data, layout->page_bytes[kind], err);
}

static kk_status put_pages(const saving *s, kk_kind kind, kk_err *err) {
    const int64_t n = kk_mark_page_count(s->m, kind);
    for (int64_t i = 0; i < n; i++)
        if (!kk_mark_shares(s->m, s->older, kind, i))
            KK_TRY(put_page(s, kind, kk_mark_page_at(s->m, kind, i), err));
    return s->to->end_part(s->to, err);
}

static kk_status put_sink(const saving *s, kk_kind kind, kk_err *err) {
    const kk_cache_opts *how = kk_cache_how(s->like);
    const int64_t len = kk_mark_len(s->m);
    const int32_t sink = how->bounds[kind].sink;
    const uint8_t *rows = kk_mark_sink(s->m, kind);
    const size_t bytes = kk_cache_sink_bytes(s->like, kind);
    if (!rows || len == 0) return s->to->end_part(s->to, err);
    if (!s->to->measures) {
        KK_TRY(bytes_near(s, kind, rows, bytes, &rows, err));
        kk_kv_sink_copy(how->layout, kind, sink, s->clean, rows, len < sink ? (int32_t)len : sink);
    }
    KK_TRY(s->to->put(s->to, s->clean, bytes, err));
    return s->to->end_part(s->to, err);
}

kk_status kk_mark_save(const kk_cache *c, const kk_mark *m, const kk_mark *older,
                       kk_section_out *to, kk_err *err) {
    const size_t page = largest_page(c);
    uint8_t *memory = kk_malloc(2 * page);
    if (!memory) return kk_fail(err, KK_ENOMEM, "no memory to save a session");
    const saving s = {c, m, older, to, memory, memory + page};
    kk_status st = put_table(&s, err);
    for (int k = 0; k < KK_KINDS && st == KK_OK; k++) {
        st = put_pages(&s, (kk_kind)k, err);
        if (st == KK_OK) st = put_sink(&s, (kk_kind)k, err);
    }
    kk_free(memory);
    return st;
}

/* ---- load ------------------------------------------------------------------------------- */

/* The page table: a bit for each page of each kind that is the cache's own already. */
typedef struct {
    uint8_t *bits; /* [all kinds], released with kk_free; NULL: no page is */
    const uint8_t *of[KK_KINDS];
} page_table;

static kk_status get_table(page_table *t, const kk_cache *c, int64_t rows, kk_section_in *from,
                           kk_err *err) {
    size_t bytes = 0, at = 0;
    *t = (page_table){0};
    if (from->format <= WHOLE_FORMAT) return KK_OK;
    for (int k = 0; k < KK_KINDS; k++)
        bytes += bitmap_bytes(kk_cache_pages_of(c, (kk_kind)k, rows));
    t->bits = kk_malloc(bytes + 1);
    if (!t->bits) return kk_fail(err, KK_ENOMEM, "no memory to load a session");
    for (int k = 0; k < KK_KINDS; k++) {
        t->of[k] = t->bits + at;
        at += bitmap_bytes(kk_cache_pages_of(c, (kk_kind)k, rows));
    }
    KK_TRY(from->get(from, t->bits, bytes, err));
    return from->end_part(from, "page tables", err);
}

static bool has_page(const page_table *t, kk_kind kind, int64_t i) {
    return t->bits && (t->of[kind][i / 8] >> (i % 8) & 1);
}

/* Pages of a device come through near; others are read where they are to lie. */
static kk_status get_page(kk_section_in *from, const kk_cache *c, kk_kind kind, uint8_t *page,
                          uint8_t *near, kk_err *err) {
    const size_t bytes = kk_cache_how(c)->layout->page_bytes[kind];
    const kk_pool *pool = kk_cache_how(c)->pool[kind];
    if (!kk_pool_is_remote(pool)) return from->get(from, page, bytes, err);
    KK_TRY(from->get(from, near, bytes, err));
    from->hold_device(from, true);
    const kk_status st = kk_pool_write(pool, page, near, bytes, err);
    from->hold_device(from, false);
    return st;
}

static kk_status get_pages(kk_cache *c, kk_kind kind, const page_table *t, kk_section_in *from,
                           kk_err *err) {
    const int64_t n = kk_cache_page_count(c, kind);
    if (n == 0) return KK_OK;
    const bool remote = kk_pool_is_remote(kk_cache_how(c)->pool[kind]);
    uint8_t *near = remote ? kk_malloc(kk_cache_how(c)->layout->page_bytes[kind]) : NULL;
    if (remote && !near) return kk_fail(err, KK_ENOMEM, "no memory to load a session");
    kk_status st = KK_OK;
    for (int64_t i = 0; st == KK_OK && i < n; i++)
        if (!has_page(t, kind, i))
            st = get_page(from, c, kind, kk_cache_page_at(c, kind, i).data, near, err);
    kk_free(near);
    return st;
}

static kk_status get_sink(kk_cache *c, kk_kind kind, kk_section_in *from, kk_err *err) {
    const size_t bytes = kk_cache_sink_bytes(c, kind);
    if (!kk_cache_sink(c, kind) || kk_cache_len(c) == 0) return KK_OK;
    uint8_t *near = kk_malloc(bytes);
    if (!near) return kk_fail(err, KK_ENOMEM, "no memory to load a session");
    kk_status st = from->get(from, near, bytes, err);
    if (st == KK_OK) {
        from->hold_device(from, true);
        st = kk_pool_write(kk_cache_how(c)->pool[kind], kk_cache_sink_fill(c, kind), near, bytes,
                           err);
        from->hold_device(from, false);
    }
    kk_free(near);
    return st;
}

static kk_status get_rows(kk_cache *c, const char *whose, const page_table *t, kk_section_in *from,
                          kk_err *err) {
    char what[64];
    for (int k = 0; k < KK_KINDS; k++) {
        KK_TRY(get_pages(c, (kk_kind)k, t, from, err));
        name_part(what, whose, (kk_kind)k, false);
        KK_TRY(from->end_part(from, what, err));
        KK_TRY(get_sink(c, (kk_kind)k, from, err));
        name_part(what, whose, (kk_kind)k, true);
        KK_TRY(from->end_part(from, what, err));
    }
    return KK_OK;
}

kk_status kk_cache_load(kk_cache *c, int64_t rows, const char *whose, kk_section_in *from,
                        kk_err *err) {
    page_table t;
    kk_status st = get_table(&t, c, rows, from, err);
    if (st == KK_OK) {
        from->hold_device(from, true);
        st = kk_cache_fill(c, rows, t.bits ? t.of : NULL, err);
        from->hold_device(from, false);
    }
    if (st == KK_OK) st = get_rows(c, whose, &t, from, err);
    kk_free(t.bits);
    return st;
}
