/* visible.h - the one rule about which rows a query sees and which of them are evicted.
 *
 * It speaks of positions alone, so that a query finds the same rows stored however rows were
 * appended, drafted or grouped into forwards.  The model's mask shows a query at position p the
 * keys j with p - mask < j <= p.  A cache that evicts keeps the first `sink` rows for good, and the
 * rows from `window` before the start of p's aligned chunk on; the others that the mask shows are
 * gone: rebuilt or not seen, as the cache's policy has it.  All rows of a chunk miss the same rows,
 * which were committed before the chunk began. */
#ifndef KK_CORE_VISIBLE_H
#define KK_CORE_VISIBLE_H

#include <stdbool.h>
#include <stdint.h>

/* How far back a kind of layers keeps rows, besides the first `sink`. */
typedef struct {
    int32_t window, sink; /* as far as the policy has them */
    int32_t chunk;        /* rows leave so many at a time; 0 is 1 */
} kk_kv_bounds;

/* The first key that a mask of so many rows shows a query at p; mask 0: it shows all. */
static inline int64_t kk_mask_from(int32_t mask, int64_t p) {
    return mask && p >= mask ? p - mask + 1 : 0;
}

/* Where the chunk of p begins, and where the next one does. */
static inline int64_t kk_chunk_start(const kk_kv_bounds *b, int64_t p) {
    return b->chunk > 1 ? p - p % b->chunk : p;
}
static inline int64_t kk_chunk_end(const kk_kv_bounds *b, int64_t p) {
    return kk_chunk_start(b, p) + (b->chunk > 1 ? b->chunk : 1);
}

/* The first row that is kept for a query at p, the sink apart. */
static inline int64_t kk_kept_from(const kk_kv_bounds *b, int64_t p) {
    const int64_t from = kk_chunk_start(b, p) - b->window;
    return from > 0 ? from : 0;
}
/* The inverse: the first query for which row j, not a row of the sink, is evicted. */
static inline int64_t kk_gone_at(const kk_kv_bounds *b, int64_t j) {
    return kk_chunk_end(b, j + b->window);
}

/* What the queries of a kind of layers see. */
typedef struct {
    int32_t mask;        /* rows that the model's mask shows, the query's own among them; 0: all */
    bool evicts;         /* bounds say what is kept of these; false: all of it is, and the sink is
                          * seen beside what the mask shows */
    kk_kv_bounds bounds; /* does it not evict: the sink alone */
} kk_visible_rule;

/* What one query sees: ranges of positions, any of which may be empty. */
typedef struct {
    /* Of the sink.  Empty where it overlaps the rows below, which then begin with it; where the two
     * only touch they stay apart, since the sink's page may be evicted. */
    int64_t sink_from, sink_to;
    int64_t gone_from, gone_to; /* shown by the mask and not stored */
    int64_t from, to;           /* stored */
} kk_visible;

static inline kk_visible kk_sees(const kk_visible_rule *r, int64_t p) {
    const int64_t shown = kk_mask_from(r->mask, p), sink = r->bounds.sink;
    kk_visible v = {.sink_to = sink, .from = shown, .to = p + 1};
    if (r->evicts) {
        const int64_t kept = kk_kept_from(&r->bounds, p);
        v.gone_from = shown > sink ? shown : sink;
        v.gone_to = kept > v.gone_from ? kept : v.gone_from;
        v.sink_from = shown;
        if (kept > v.from) v.from = kept;
        if (v.sink_from >= v.sink_to) v.sink_from = v.sink_to = 0;
    }
    if (v.sink_to > v.from) {
        v.from = v.sink_from;
        v.sink_from = v.sink_to = 0;
    }
    return v;
}

/* The keys that a query finds stored, and those that are evicted. */
static inline int64_t kk_visible_stored(kk_visible v) {
    return v.sink_to - v.sink_from + v.to - v.from;
}
static inline int64_t kk_visible_gone(kk_visible v) { return v.gone_to - v.gone_from; }

#endif
