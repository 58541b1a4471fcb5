/* bpe.c - see bpe.h.
 *
 * A word is a linked list of symbols and a heap of the pairs that could merge, strongest first,
 * leftmost among equals: each merge costs one pop and at most two pushes, so that a word of n
 * characters takes n log n steps and not n squared.
 *
 * Invariants of the loop:
 *   (1) a live symbol's `made` is what it and its next one would merge into, -1 for nothing;
 *   (2) every pair that could merge has an entry in the heap;
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

/* ---- the heap --------------------------------------------------------------------------- */

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

/* ---- the loop --------------------------------------------------------------------------- */

/* Looks up the pair that starts at a symbol, and files it when it could merge. */
static bool consider(const kk_bpe *b, kk_bpe_scratch *s, int32_t at) {
    kk_symbol *left = &s->symbols[at];
    left->made = -1;
    if (left->next < 0) return true;
    const uint32_t rank = b->slots[slot_of(b, left->id, s->symbols[left->next].id)];
    if (!rank) return true;
    left->made = b->merges[rank - 1].result;
    return push(s, (uint64_t)(rank - 1) << 32 | (uint32_t)at);
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
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (!consider(b, s, (int32_t)i)) return false;
    while (s->n_heap) {
        const uint64_t entry = pop(s);
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
    bool ok = kk_grow((void **)&s->symbols, &s->symbols_cap, *n, sizeof *s->symbols);
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
