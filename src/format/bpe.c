/* bpe.c - see bpe.h.
 *
 * A word is a linked list of symbols and a queue of the pairs that could merge, strongest first,
 * leftmost among equals: each merge takes one entry and adds at most two, so that a word of n
 * characters takes n log n steps and not n squared.  The queue has two parts.  The pairs a word
 * starts with are sorted once and then only read on; those that merges make go to a heap, which
 * so stays small enough for the cache even where a word is a megabyte.
 *
 * Invariants of the loop:
 *   (1) a live symbol's `made` is what it and its next one would merge into, -1 for nothing;
 *   (2) every pair that could merge has an entry in the queue;
 *   (3) an entry is (rank << 32 | position of the left symbol), and counts when its left symbol
 *       lives and still makes what the merge of that rank makes.  The text of a pair only ever
 *       grows, so the same result means that it is the same pair. */
#include "format/bpe.h"

#include <string.h>

#include "core/alloc.h"

struct kk_symbol {
    int32_t id;         /* -1: merged into the one before it */
    int32_t prev, next; /* -1: none */
    int32_t made;
};

void kk_bpe_free(kk_bpe *b) {
    kk_free(b->merges);
    kk_free(b->slots);
    *b = (kk_bpe){0};
}

void kk_bpe_scratch_free(kk_bpe_scratch *s) {
    kk_free(s->symbols);
    kk_free(s->first);
    kk_free(s->spare);
    kk_free(s->heap);
    *s = (kk_bpe_scratch){0};
}

/* ---- the table -------------------------------------------------------------------------- */

static size_t first_slot(const kk_bpe *b, int32_t left, int32_t right) {
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    const uint64_t mixed = pair * 0x9e3779b97f4a7c15u;
    return (size_t)((mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15u >> 32) & (b->n_slots - 1);
}

/* The slot of a pair, or the free one where it would go. */
static size_t slot_of(const kk_bpe *b, int32_t left, int32_t right) {
    size_t at = first_slot(b, left, right);
    for (; b->slots[at]; at = (at + 1) & (b->n_slots - 1)) {
        const kk_merge *m = &b->merges[b->slots[at] - 1];
        if (m->left == left && m->right == right) break;
    }
    return at;
}

kk_status kk_bpe_add(kk_bpe *b, kk_merge m, kk_err *err) {
    if (b->n >= INT32_MAX) return kk_fail(err, KK_EFORMAT, "too many merges");
    if (!kk_grow((void **)&b->merges, &b->cap, b->n + 1, sizeof *b->merges))
        return kk_fail(err, KK_ENOMEM, "no memory for %zu merges", b->n + 1);
    b->merges[b->n++] = m;
    return KK_OK;
}

kk_status kk_bpe_finish(kk_bpe *b, kk_err *err) {
    size_t n = 16;
    while (n < b->n * 2) n *= 2;
    b->slots = kk_calloc(n, sizeof *b->slots);
    if (!b->slots) return kk_fail(err, KK_ENOMEM, "no memory for %zu merges", b->n);
    b->n_slots = n;
    for (size_t i = 0; i < b->n; i++)
        b->slots[slot_of(b, b->merges[i].left, b->merges[i].right)] = (uint32_t)i + 1;
    return KK_OK;
}

/* ---- the queue -------------------------------------------------------------------------- */

static bool push(kk_bpe_scratch *s, uint64_t entry) {
    if (!kk_grow((void **)&s->heap, &s->heap_cap, s->n_heap + 1, sizeof *s->heap)) return false;
    size_t at = s->n_heap++;
    for (; at > 0 && s->heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = entry;
    return true;
}

static uint64_t pop(kk_bpe_scratch *s) {
    const uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < s->n_heap; at = child) {
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = last;
    return top;
}

static void sort_few(uint64_t *entries, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const uint64_t entry = entries[i];
        size_t at = i;
        for (; at > 0 && entries[at - 1] > entry; at--) entries[at] = entries[at - 1];
        entries[at] = entry;
    }
}

/* By rank, eleven bits at a time; each pass keeps the order it finds, which is by position. */
static void sort_many(uint64_t *entries, uint64_t *spare, size_t n, size_t n_ranks) {
    enum { BITS = 11, BINS = 1 << BITS };
    uint64_t *from = entries, *to = spare;
    for (unsigned shift = 0; n_ranks >> shift; shift += BITS) {
        size_t start[BINS + 1] = {0};
        for (size_t i = 0; i < n; i++) start[(from[i] >> (32 + shift)) % BINS + 1]++;
        for (size_t bin = 0; bin < BINS; bin++) start[bin + 1] += start[bin];
        for (size_t i = 0; i < n; i++) to[start[(from[i] >> (32 + shift)) % BINS]++] = from[i];
        uint64_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != entries) memcpy(entries, from, n * sizeof *entries);
}

static bool sort_first(const kk_bpe *b, kk_bpe_scratch *s) {
    if (s->n_first < 100) {
        sort_few(s->first, s->n_first);
        return true;
    }
    if (!kk_grow((void **)&s->spare, &s->spare_cap, s->n_first, sizeof *s->spare)) return false;
    sort_many(s->first, s->spare, s->n_first, b->n);
    return true;
}

/* The strongest entry of both parts; false when they are empty. */
static bool next_entry(kk_bpe_scratch *s, uint64_t *entry) {
    const bool heap = s->n_heap > 0, first = s->first_at < s->n_first;
    if (!heap && !first) return false;
    *entry =
        heap && (!first || s->heap[0] < s->first[s->first_at]) ? pop(s) : s->first[s->first_at++];
    return true;
}

/* ---- the loop --------------------------------------------------------------------------- */

/* Looks up the pair that starts at a symbol; true when it could merge, with its entry. */
static bool look_up(const kk_bpe *b, kk_bpe_scratch *s, int32_t at, uint64_t *entry) {
    kk_symbol *left = &s->symbols[at];
    left->made = -1;
    if (left->next < 0) return false;
    const uint32_t rank = b->slots[slot_of(b, left->id, s->symbols[left->next].id)];
    if (!rank) return false;
    left->made = b->merges[rank - 1].result;
    *entry = (uint64_t)(rank - 1) << 32 | (uint32_t)at;
    return true;
}

static bool consider(const kk_bpe *b, kk_bpe_scratch *s, int32_t at) {
    uint64_t entry;
    return !look_up(b, s, at, &entry) || push(s, entry);
}

static bool merge_at(const kk_bpe *b, kk_bpe_scratch *s, int32_t at, int32_t result) {
    kk_symbol *left = &s->symbols[at], *right = &s->symbols[left->next];
    left->id = result;
    left->next = right->next;
    right->id = right->made = -1;
    if (left->next >= 0) s->symbols[left->next].prev = at;
    return (left->prev < 0 || consider(b, s, left->prev)) && consider(b, s, at);
}

static bool run(const kk_bpe *b, kk_bpe_scratch *s, size_t n) {
    uint64_t entry;
    s->n_heap = s->n_first = s->first_at = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (look_up(b, s, (int32_t)i, &entry)) s->first[s->n_first++] = entry;
    if (!sort_first(b, s)) return false;
    while (next_entry(s, &entry)) {
        const int32_t at = (int32_t)(entry & UINT32_MAX);
        const int32_t result = b->merges[entry >> 32].result;
        if (s->symbols[at].made != result) continue;
        if (!merge_at(b, s, at, result)) return false;
    }
    return true;
}

kk_status kk_bpe_merge(const kk_bpe *b, kk_bpe_scratch *s, int32_t *ids, size_t *n, kk_err *err) {
    if (*n < 2) return KK_OK;
    if (*n > INT32_MAX) return kk_fail(err, KK_EINVAL, "a text of %zu characters is too long", *n);
    bool ok = kk_grow((void **)&s->symbols, &s->symbols_cap, *n, sizeof *s->symbols) &&
              kk_grow((void **)&s->first, &s->first_cap, *n, sizeof *s->first);
    for (size_t i = 0; ok && i < *n; i++)
        s->symbols[i] = (kk_symbol){ids[i], (int32_t)i - 1, (int32_t)i + 1, -1};
    if (ok) s->symbols[*n - 1].next = -1;
    if (!ok || !run(b, s, *n))
        return kk_fail(err, KK_ENOMEM, "no memory to encode %zu characters", *n);
    size_t left = 0;
    for (int32_t at = 0; at >= 0; at = s->symbols[at].next) ids[left++] = s->symbols[at].id;
    *n = left;
    return KK_OK;
}
