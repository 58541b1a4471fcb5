/* same_cache.h - whether two caches hold the same rows, byte for byte, in as many pages. */
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

static inline bool same_cache_says(char *why, size_t cap, const char *what, int kind, int64_t got,
                                   int64_t want) {
    snprintf(why, cap, "%s of %s layers: %lld, expected %lld", what,
             kind == KK_KIND_FULL ? "full" : "sliding", (long long)got, (long long)want);
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
    }
    return true;
}

#endif
