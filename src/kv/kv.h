/* kv.h - K/V rows in pages, shared and taken back cheaply.
 *
 * A page holds KK_PAGE_ROWS rows by absolute position, of all layers of one kind that store
 * K/V, or their latents.  Pages are refcounted and come from an engine-wide pool.  A cache is one
 * session's page table per kind and a length; a mark is a frozen copy of both that shares the
 * pages.
 *
 * A cache with a sink keeps its first rows apart as well, side by side in memory of just that
 * size, so that they cost what they hold once their page has gone.
 *
 * Invariants, true before and after every call:
 *   (1) rows [keep_from(len), len) of every kind, where keep_from is the policy's, and the other
 *       rows of the page that row len falls into, lie in resident pages; rows [0, sink) below len
 *       lie in the sink's memory;
 *   (2) a page that is not shared has refs == 1; only such a page is written, and only at rows
 *       >= len;  kk_cache_reserve makes the pages of [len, len + n) so (copy on write);
 *   (3) rows at or after len have no meaning, whatever a page holds there, so that taking back
 *       rows that were just written moves len and nothing else;
 *   (4) pages leave the table only in kk_cache_commit, by the committed length, or all at once
 *       (restore, truncate to where no row of the window is needed);
 *   (5) rows below len of a resident page are those of the timeline, also rows that the policy no
 *       longer asks for: so a truncation may go back as far as there are pages, and not only as
 *       far as rows were promised;
 *   (6) the pool counts exactly the pages that are taken, by their category; memory of sinks is
 *       counted there too, from the making of a cache or mark to its end. */
#ifndef KK_KV_H
#define KK_KV_H

#include "backend/backend.h"
#include "core/kind.h"
#include "core/section.h"
#include "core/visible.h"

/* What a model needs of its caches; filled by the model. */
typedef struct {
    int32_t n_layer;
    int32_t window; /* window of sliding layers, in rows */
    struct {
        kk_kind kind;
        bool stores; /* false: reads another layer's rows */
        bool k_eq_v;
        int32_t n_kv_head, head_dim;
    } layer[256];
} kk_kv_shape;

/* What is kept of each position so that its rows can be rebuilt. */
typedef struct {
    int32_t rank;        /* values of a latent; 0: none is kept */
    kk_kv_format format; /* format of the latents */
    int32_t n_scales;    /* factors kept beside it; may be 0 */
    /* NULL in production; else K and V of all layers are kept too, as projected and in float32.
     * The layout says there where they lie, and borrows it. */
    kk_diagnosis *diagnosis;
} kk_kv_latents;

/* Offsets of every layer in the pages, for one storage format. */
typedef struct {
    kk_kv_shape shape;
    kk_kv_format format;
    kk_kv_slot slot[256];        /* by layer; of layers that store */
    size_t page_bytes[KK_KINDS]; /* 0: no layer of that kind */
    kk_kv_latents latents;
    kk_kv_slot latent; /* one head of rank values, at v_off */
    kk_kv_slot scales; /* one head of n_scales values in bf16, at v_off */
} kk_kv_layout;

/* latents NULL: none. */
kk_status kk_kv_layout_init(kk_kv_layout *out, const kk_kv_shape *shape, kk_kv_format format,
                            const kk_kv_latents *latents, kk_err *err);

/* Where the scales of a layer's heads begin, where all layers of these kinds that store have one
 * for each head, in order; layer n_layer: how many there are. */
int32_t kk_kv_scale_at(const kk_kv_shape *shape, const bool kinds[KK_KINDS], int32_t layer);

/* Pages of one kind and format.  Grows by address space, so that taking a page touches no
 * allocator; freed pages are kept for reuse and stop being counted. */
typedef struct kk_pool kk_pool;
kk_status kk_pool_new(kk_pool **out, kk_mem *mem, kk_mem_category c, size_t page_bytes,
                      kk_err *err);
void kk_pool_free(kk_pool *p); /* all pages must be back */
/* Pages are to lie where the device has them; before the first is promised. */
void kk_pool_place(kk_pool *p, const kk_backend *be, kk_dev *dev);
/* Whether they lie where only the device may look. */
bool kk_pool_is_remote(const kk_pool *p);
/* Copies the first n bytes of a page to host memory and back, wherever pages lie; done when they
 * return. */
kk_status kk_pool_read(const kk_pool *p, uint8_t *to, const uint8_t *page, size_t n, kk_err *err);
kk_status kk_pool_write(const kk_pool *p, uint8_t *page, const uint8_t *from, size_t n,
                        kk_err *err);

/* How a layer kind decides which rows stay resident, and the questions that callers ask of it:
 * none of them needs to know which policy it is. */
typedef struct {
    const char *name;
    bool windowed; /* has a window, of at least 1 */
    bool sinks;    /* may have a sink, of at most KK_PAGE_ROWS */
    /* Rows that the model's mask shows may be evicted: its window is the one of core/visible.h, and
     * may be 0 where there is a sink. */
    bool evicts;
    bool rebuilds; /* and these are rebuilt from latents; false: no row sees them */
    /* The first row the next one needs, the sink apart. */
    int64_t (*keep_from)(const kk_kv_bounds *bounds, int64_t len);
} kk_kv_policy;
extern const kk_kv_policy kk_kv_native;  /* sliding, and latents of sliding layers: the window */
extern const kk_kv_policy kk_kv_exact;   /* full, and their latents: everything */
extern const kk_kv_policy kk_kv_bounded; /* full, cut short: the sink and the window */
/* The sink and the rows from kk_kept_from() on.  window: the others are not seen; restored: they
 * are rebuilt. */
extern const kk_kv_policy kk_kv_window, kk_kv_restored;

typedef struct kk_cache kk_cache;
typedef struct kk_mark kk_mark;

typedef struct {
    const kk_kv_layout *layout; /* borrowed */
    kk_pool *pool[KK_KINDS];    /* borrowed */
    const kk_kv_policy *policy[KK_KINDS];
    kk_kv_bounds bounds[KK_KINDS];
    int64_t max_len;
    int64_t max_block; /* most rows reserved at once; 0: max_len */
} kk_cache_opts;

kk_status kk_cache_new(kk_cache **out, const kk_cache_opts *opts, kk_err *err);
void kk_cache_free(kk_cache *c); /* NULL is fine */
int64_t kk_cache_len(const kk_cache *c);
const kk_cache_opts *kk_cache_how(const kk_cache *c); /* what it was made with */
/* What queries of layers of this kind see: kk_sees() by this. */
kk_visible_rule kk_cache_rule(const kk_cache *c, kk_kind kind);
/* Adds what attention of all layers reads for the queries [pos, pos + n) of one forward.  It
 * follows from positions and the rule alone, so that no device has to count. */
void kk_cache_count(const kk_cache *c, int64_t pos, int32_t n, kk_key_counts *to);
/* Whether rows of both are stored, evicted and rebuilt in the same way, so that they may share a
 * forward. */
bool kk_cache_alike(const kk_cache *a, const kk_cache *b);

/* Makes rows [len, len + n) writable.  Takes no memory from the system: only the context, a memory
 * limit and a device without memory can refuse.  On failure the cache is as it was. */
kk_status kk_cache_reserve(kk_cache *c, int64_t n, kk_err *err);
/* The rows up to len are now part of the timeline (len may be at most what was reserved, and
 * may be less than what was written: the rest is taken back). Pages outside the window are
 * released. */
void kk_cache_commit(kk_cache *c, int64_t len);
/* The same, but what was reserved beyond len stays so: rows there are being written. */
void kk_cache_advance(kk_cache *c, int64_t len);
/* Goes back to len; false when rows that len needs are no longer resident (use a mark). */
bool kk_cache_truncate(kk_cache *c, int64_t len);
bool kk_cache_can_truncate(const kk_cache *c, int64_t len); /* whether it would be true */
/* Page table of a kind, by absolute page index; borrowed until the next call. */
uint8_t *const *kk_cache_pages(const kk_cache *c, kk_kind kind);
/* Its numbers: as long as a page at an address has the same one, rows of it that were below the
 * length are what they were.  A page's numbers never come again in its pool. */
const int64_t *kk_cache_page_ids(const kk_cache *c, kk_kind kind);
/* The first rows of a kind, laid out as a page of bounds.sink rows would be: at a slot's offset
 * times sink / KK_PAGE_ROWS; NULL: it has no sink.  Borrowed as long as the cache.  Rows at or
 * after len have no meaning; those being written get here when they are committed.  Where the pool
 * is remote, an address for the device alone. */
const uint8_t *kk_cache_sink(const kk_cache *c, kk_kind kind);
size_t kk_cache_sink_bytes(const kk_cache *c, kk_kind kind);
/* Bytes of the pages in this cache's table, shared ones included. */
int64_t kk_cache_bytes(const kk_cache *c, kk_kind kind);

/* The pages that len needs, by kind and in order of their index, to write a cache down. */
typedef struct {
    int64_t index; /* its rows are [index * KK_PAGE_ROWS, ...) */
    int32_t rows;  /* rows of the page below len; the others are undefined */
    uint8_t *data; /* [page_bytes of the layout]; shared with others unless it was just filled;
                    * where its pool is remote, only for kk_pool_read and kk_pool_write */
} kk_cache_page;
int64_t kk_cache_page_count(const kk_cache *c, kk_kind kind);
int64_t kk_cache_pages_needed(const kk_cache *c, kk_kind kind, int64_t len); /* if it had len */
kk_cache_page kk_cache_page_at(const kk_cache *c, kk_kind kind, int64_t i);
/* The first rows of a page of this kind; the others, which may be anything, become zero. */
void kk_kv_page_copy(const kk_kv_layout *l, kk_kind kind, uint8_t *to, const uint8_t *from,
                     int32_t rows);
/* The same of memory laid out as a page of `sink` rows. */
void kk_kv_sink_copy(const kk_kv_layout *l, kk_kind kind, int32_t sink, uint8_t *to,
                     const uint8_t *from, int32_t rows);
/* How many pages a kind keeps of len rows. */
int64_t kk_cache_pages_of(const kk_cache *c, kk_kind kind, int64_t len);
/* Makes a cache one of len rows, with pages of its own and nothing in them yet: the caller writes
 * what kk_cache_page_at and kk_cache_sink_fill show.  shared (by kind; NULL: none): bit i set, in
 * the order of kk_cache_page_at, keeps the page that the cache has there.  KK_EFORMAT where it has
 * none.  On failure the cache is as it was. */
kk_status kk_cache_fill(kk_cache *c, int64_t len, const uint8_t *const shared[KK_KINDS],
                        kk_err *err);
uint8_t *kk_cache_sink_fill(kk_cache *c, kk_kind kind); /* NULL: it has no sink */
/* Writes a mark's rows into a section, less the pages that `older` (NULL: none) holds as well; the
 * mark is on a cache made like c. */
kk_status kk_mark_save(const kk_cache *c, const kk_mark *m, const kk_mark *older,
                       kk_section_out *to, kk_err *err);
/* Makes the cache one of so many rows, as they were saved: pages that were left out are those that
 * it has, which must be the state that was saved before.  whose names them in messages: "", or
 * "drafter's".  After a failure the cache may only be freed. */
kk_status kk_cache_load(kk_cache *c, int64_t rows, const char *whose, kk_section_in *from,
                        kk_err *err);

/* A mark freezes the present state; restore replaces the cache's state by the mark's, also that
 * of another cache of the same pools and bounds and at least that max_len.  A mark ends a
 * reservation: rows are reserved again before they are written.  It has a sink of its own. */
kk_status kk_mark_new(kk_mark **out, const kk_cache *c, kk_err *err);
void kk_mark_free(kk_mark *m); /* NULL is fine */
int64_t kk_mark_len(const kk_mark *m);
/* Bytes that a mark may come to hold alone as its cache goes on: pages of kinds that let rows go,
 * and the last page of the others where it is not full, less those that `older`, a mark on the same
 * timeline, holds too (NULL: none); and its sinks.  Summed over the marks of a timeline, each
 * against the one before it, it bounds what they keep from being given back. */
int64_t kk_mark_bytes(const kk_mark *m, const kk_mark *older);
/* Its pages, as kk_cache_page_at has a cache's, and the rows of its sink. */
int64_t kk_mark_page_count(const kk_mark *m, kk_kind kind);
kk_cache_page kk_mark_page_at(const kk_mark *m, kk_kind kind, int64_t i);
const uint8_t *kk_mark_sink(const kk_mark *m, kk_kind kind); /* NULL: it has none */
/* Whether older (NULL: no) holds the very page i of m. */
bool kk_mark_shares(const kk_mark *m, const kk_mark *older, kk_kind kind, int64_t i);
void kk_mark_restore(const kk_mark *m, kk_cache *c);

#endif
