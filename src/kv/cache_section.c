/* cache_section.c - a cache's rows in a saved session; see kv.h.
 *
 * By kind, the pages that the length needs are a part and the sink's rows another.  Saving copies
 * nothing but the last page and the sink: pages go to the file from where they lie, which needs no
 * lock, because a page that others share is written by nobody.  Pages of a device come to the host
 * one by one. */
#include <stdio.h>

#include "kv/kv.h"

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

/* ---- save ------------------------------------------------------------------------------- */

/* Memory for one page: what is written, and what came from a device. */
typedef struct {
    uint8_t *clean, *near;
} scratch_pages;

/* Where a page can be read: where it lies, or its copy in near. */
static kk_status page_near(const kk_cache *c, kk_kind kind, const uint8_t *page, uint8_t *near,
                           const uint8_t **out, kk_section_out *to, kk_err *err) {
    const kk_pool *pool = kk_cache_how(c)->pool[kind];
    *out = page;
    if (!kk_pool_is_remote(pool)) return KK_OK;
    *out = near;
    to->hold_device(to, true);
    const kk_status st =
        kk_pool_read(pool, near, page, kk_cache_how(c)->layout->page_bytes[kind], err);
    to->hold_device(to, false);
    return st;
}

static kk_status put_pages(const kk_cache *c, kk_kind kind, scratch_pages scratch,
                           kk_section_out *to, kk_err *err) {
    const kk_kv_layout *layout = kk_cache_how(c)->layout;
    const int64_t n = kk_cache_page_count(c, kind);
    for (int64_t i = 0; i < n; i++) {
        const kk_cache_page page = kk_cache_page_at(c, kind, i);
        const uint8_t *data;
        KK_TRY(page_near(c, kind, page.data, scratch.near, &data, to, err));
        if (page.rows < KK_PAGE_ROWS) {
            kk_kv_page_copy(layout, kind, scratch.clean, data, page.rows);
            data = scratch.clean;
        }
        KK_TRY(to->put(to, data, layout->page_bytes[kind], err));
    }
    return to->end_part(to, err);
}

static kk_status put_sink(const kk_cache *c, kk_kind kind, uint8_t *scratch, kk_section_out *to,
                          kk_err *err) {
    const kk_cache_opts *how = kk_cache_how(c);
    const int64_t len = kk_cache_len(c);
    const int32_t sink = how->bounds[kind].sink;
    const uint8_t *rows = kk_cache_sink(c, kind);
    if (rows && len > 0) {
        kk_kv_sink_copy(how->layout, kind, sink, scratch, rows, len < sink ? (int32_t)len : sink);
        KK_TRY(to->put(to, scratch, kk_cache_sink_bytes(c, kind), err));
    }
    return to->end_part(to, err);
}

kk_status kk_cache_save(const kk_cache *c, kk_section_out *to, kk_err *err) {
    const size_t page = largest_page(c);
    uint8_t *memory = kk_malloc(2 * page);
    if (!memory) return kk_fail(err, KK_ENOMEM, "no memory to save a session");
    const scratch_pages scratch = {memory, memory + page};
    kk_status st = KK_OK;
    for (int k = 0; k < KK_KINDS && st == KK_OK; k++) {
        st = put_pages(c, (kk_kind)k, scratch, to, err);
        if (st == KK_OK) st = put_sink(c, (kk_kind)k, scratch.clean, to, err);
    }
    kk_free(memory);
    return st;
}

/* ---- load ------------------------------------------------------------------------------- */

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

static kk_status get_pages(kk_cache *c, kk_kind kind, kk_section_in *from, kk_err *err) {
    const int64_t n = kk_cache_page_count(c, kind);
    if (n == 0) return KK_OK;
    const bool remote = kk_pool_is_remote(kk_cache_how(c)->pool[kind]);
    uint8_t *near = remote ? kk_malloc(kk_cache_how(c)->layout->page_bytes[kind]) : NULL;
    if (remote && !near) return kk_fail(err, KK_ENOMEM, "no memory to load a session");
    kk_status st = KK_OK;
    for (int64_t i = 0; st == KK_OK && i < n; i++)
        st = get_page(from, c, kind, kk_cache_page_at(c, kind, i).data, near, err);
    kk_free(near);
    return st;
}

static kk_status get_sink(kk_cache *c, kk_kind kind, kk_section_in *from, kk_err *err) {
    uint8_t *rows = kk_cache_sink_fill(c, kind);
    if (!rows || kk_cache_len(c) == 0) return KK_OK;
    return from->get(from, rows, kk_cache_sink_bytes(c, kind), err);
}

kk_status kk_cache_load(kk_cache *c, int64_t rows, const char *whose, kk_section_in *from,
                        kk_err *err) {
    char what[64];
    from->hold_device(from, true);
    const kk_status st = kk_cache_fill(c, rows, NULL, err);
    from->hold_device(from, false);
    if (st != KK_OK) return st;
    for (int k = 0; k < KK_KINDS; k++) {
        KK_TRY(get_pages(c, (kk_kind)k, from, err));
        name_part(what, whose, (kk_kind)k, false);
        KK_TRY(from->end_part(from, what, err));
        KK_TRY(get_sink(c, (kk_kind)k, from, err));
        name_part(what, whose, (kk_kind)k, true);
        KK_TRY(from->end_part(from, what, err));
    }
    return KK_OK;
}
