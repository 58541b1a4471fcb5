/* same_cache.h - whether two caches hold the same rows, byte for byte, in as many pages and in
 * sinks. */
#ifndef KK_TESTS_SAME_CACHE_H
#define KK_TESTS_SAME_CACHE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/kv.h"

static inline bool same_page(const kk_cache *a, const kk_cache *b, kk_kind kind, int64_t i) {
    const kk_kv_layout *la = kk_cache_how(a)->layout, *lb = kk_cache_how(b)->layout;
    const size_t size = la->page_bytes[kind];
    const kk_cache_page x = kk_cache_page_at(a, kind, i), y = kk_cache_page_at(b, kind, i);
    if (x.index != y.index || x.rows != y.rows) return false;
    uint8_t *copy = calloc(2, size); /* rows that have no meaning become zero in both */
    if (!copy) abort();
    kk_kv_page_copy(la, kind, copy, x.data, x.rows);
    kk_kv_page_copy(lb, kind, copy + size, y.data, y.rows);
    const bool same = memcmp(copy, copy + size, size) == 0;
    free(copy);
    return same;
}

static inline bool same_sink(const kk_cache *a, const kk_cache *b, kk_kind kind) {
    const kk_kv_layout *la = kk_cache_how(a)->layout, *lb = kk_cache_how(b)->layout;
    const size_t size = kk_cache_sink_bytes(a, kind);
    const int32_t sink = kk_cache_how(a)->bounds[kind].sink;
    const int32_t rows = kk_cache_len(a) < sink ? (int32_t)kk_cache_len(a) : sink;
    if (kk_cache_sink_bytes(b, kind) != size) return false;
    if (!size) return true;
    uint8_t *copy = calloc(2, size);
    if (!copy) abort();
    kk_kv_sink_copy(la, kind, sink, copy, kk_cache_sink(a, kind), rows);
    kk_kv_sink_copy(lb, kind, sink, copy + size, kk_cache_sink(b, kind), rows);
    const bool same = memcmp(copy, copy + size, size) == 0;
    free(copy);
    return same;
}

static inline bool same_cache_says(char *why, size_t cap, const char *what, int kind, int64_t got,
                                   int64_t want) {
    static const char *const of[KK_KINDS] = {"sliding layers", "full layers", "latents"};
    snprintf(why, cap, "%s of %s: %lld, expected %lld", what, of[kind], (long long)got,
             (long long)want);
    return false;
}

/* false: why says what differed.  bytes: pages counted must be as many, too. */
static inline bool same_cache(const kk_cache *got, const kk_cache *want, bool bytes, char *why,
                              size_t cap) {
    if (kk_cache_len(got) != kk_cache_len(want))
        return same_cache_says(why, cap, "rows", 0, kk_cache_len(got), kk_cache_len(want));
    for (int k = 0; k < KK_KINDS; k++) {
        const int64_t n = kk_cache_page_count(got, (kk_kind)k),
                      wanted = kk_cache_page_count(want, (kk_kind)k),
                      held = kk_cache_bytes(got, (kk_kind)k),
                      held_wanted = kk_cache_bytes(want, (kk_kind)k);
        if (n != wanted) return same_cache_says(why, cap, "pages needed", k, n, wanted);
        if (bytes && held != held_wanted)
            return same_cache_says(why, cap, "bytes held", k, held, held_wanted);
        for (int64_t i = 0; i < n; i++)
            if (!same_page(got, want, (kk_kind)k, i))
                return same_cache_says(why, cap, "a page that differs", k, i, n);
        if (!same_sink(got, want, (kk_kind)k))
            return same_cache_says(why, cap, "rows of a sink that differs", k,
                                   kk_cache_how(got)->bounds[k].sink,
                                   kk_cache_how(want)->bounds[k].sink);
    }
    return true;
}

#endif
