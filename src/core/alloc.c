/* alloc.c - counted, faultable memory; see alloc.h.
 *
 * Small blocks carry a 16-byte header with their size, so that freeing needs no size and the
 * live count is exact.  Large ones are anonymous mappings: the system zeroes them lazily, so an
 * untouched reservation costs address space only. */
#define _GNU_SOURCE
#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HEADER = 16 };

static _Atomic int64_t live_bytes, live_blocks;
static _Atomic int64_t fault_countdown; /* 0: disarmed */
static _Atomic bool fault_forever;

void kk_fault_after(int64_t n, bool forever) {
    atomic_store(&fault_forever, forever);
    atomic_store(&fault_countdown, n);
}

bool kk_fault_point(void) {
    int64_t left = atomic_load_explicit(&fault_countdown, memory_order_relaxed);
    if (left == 0) return false;
    left = atomic_fetch_sub(&fault_countdown, 1);
    if (left > 1) return false;
    if (left == 1) {
        if (atomic_load(&fault_forever)) atomic_store(&fault_countdown, 1);
        return true;
    }
    atomic_store(&fault_countdown, 0);
    return false;
}

int64_t kk_live_bytes(void) { return atomic_load(&live_bytes); }
int64_t kk_live_blocks(void) { return atomic_load(&live_blocks); }

static void *adopt(unsigned char *raw, size_t size) {
    if (!raw) return NULL;
    memcpy(raw, &size, sizeof size);
    atomic_fetch_add(&live_bytes, (int64_t)size);
    atomic_fetch_add(&live_blocks, 1);
    return raw + HEADER;
}

void *kk_malloc(size_t size) {
    if (size > SIZE_MAX / 2 || kk_fault_point()) return NULL;
    return adopt(malloc(size + HEADER), size);
}

void *kk_zalloc(size_t size) {
    if (size > SIZE_MAX / 2 || kk_fault_point()) return NULL;
    return adopt(calloc(1, size + HEADER), size);
}

void *kk_calloc(size_t n, size_t size) {
    size_t total;
    return kk_mul(n, size, &total) ? kk_zalloc(total) : NULL;
}

void *kk_realloc(void *p, size_t size) {
    if (!p) return kk_malloc(size);
    if (size > SIZE_MAX / 2 || kk_fault_point()) return NULL;
    unsigned char *raw = (unsigned char *)p - HEADER;
    size_t old;
    memcpy(&old, raw, sizeof old);
    raw = realloc(raw, size + HEADER);
    if (!raw) return NULL;
    memcpy(raw, &size, sizeof size);
    atomic_fetch_add(&live_bytes, (int64_t)size - (int64_t)old);
    return raw + HEADER;
}

void kk_free(void *p) {
    if (!p) return;
    unsigned char *raw = (unsigned char *)p - HEADER;
    size_t size;
    memcpy(&size, raw, sizeof size);
    atomic_fetch_sub(&live_bytes, (int64_t)size);
    atomic_fetch_sub(&live_blocks, 1);
    free(raw);
}

char *kk_strndup(const char *s, size_t n) {
    char *copy = kk_malloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

bool kk_grow(void **array, size_t *cap, size_t need, size_t elem_size) {
    if (need <= *cap) return true;
    size_t want = *cap ? *cap : 16, bytes;
    while (want < need) {
        if (!kk_mul(want, 2, &want)) return false;
    }
    if (!kk_mul(want, elem_size, &bytes)) return false;
    void *grown = kk_realloc(*array, bytes);
    if (!grown) return false;
    *array = grown;
    *cap = want;
    return true;
}

bool kk_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
bool kk_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

static bool is_weights(kk_mem_category c) { return c <= KK_MEM_WEIGHTS_PROJECTION; }

static int64_t counted_against_limit(kk_mem *m) {
    int64_t sum = 0;
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (!is_weights((kk_mem_category)c)) sum += atomic_load(&m->bytes[c]);
    return sum;
}

void kk_mem_count(kk_mem *m, kk_mem_category c, int64_t bytes) {
    atomic_fetch_add(&m->bytes[c], bytes);
}

bool kk_mem_try_count(kk_mem *m, kk_mem_category c, int64_t bytes) {
    kk_mem_count(m, c, bytes); /* first, so that two that ask at once do not both get the last */
    if (!m->limit || is_weights(c) || counted_against_limit(m) <= m->limit) return true;
    kk_mem_count(m, c, -bytes);
    return false;
}

void *kk_mem_reserve(size_t size) {
    if (size == 0 || size > INT64_MAX || kk_fault_point()) return NULL;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return NULL;
    atomic_fetch_add(&live_bytes, (int64_t)size);
    atomic_fetch_add(&live_blocks, 1);
    return p;
}

void kk_mem_unreserve(void *p, size_t size) {
    if (!p) return;
    munmap(p, size);
    atomic_fetch_sub(&live_bytes, (int64_t)size);
    atomic_fetch_sub(&live_blocks, 1);
}

void *kk_mem_take(kk_mem *m, kk_mem_category c, size_t size) {
    if (size > INT64_MAX || !kk_mem_try_count(m, c, (int64_t)size)) return NULL;
    void *p = kk_mem_reserve(size);
    if (!p) kk_mem_count(m, c, -(int64_t)size);
    return p;
}

void kk_mem_give(kk_mem *m, kk_mem_category c, void *p, size_t size) {
    if (!p) return;
    kk_mem_unreserve(p, size);
    kk_mem_count(m, c, -(int64_t)size);
}

const char *kk_mem_category_name(kk_mem_category c) {
    static const char *const names[KK_MEM_CATEGORIES] = {
        "weights.verifier", "weights.drafter", "weights.projection", "kv.sliding",
        "kv.full",          "kv.drafter",      "kv.latents",         "workspace",
    };
    return c < KK_MEM_CATEGORIES ? names[c] : "?";
}
