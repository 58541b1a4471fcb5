/* alloc.h - every byte the library takes, counted, and every taking able to fail in a test.
 *
 * Two layers.  kk_malloc and its kin are for bookkeeping structures: they count live bytes for
 * the whole process.  A kk_mem is one engine's account of the large things, by the categories a
 * user sees; its memory is page-aligned, zero, and committed by the system when first touched.
 *
 * The fault countdown and the live count are the library's only mutable globals.  They exist so
 * that a test can fail the n-th taking, or refuse any taking at all during a decode step. */
#ifndef KK_CORE_ALLOC_H
#define KK_CORE_ALLOC_H

#ifdef __cplusplus
/* Modules in C++ count through the functions below, which are C. */
#define KK_ATOMIC_INT64 int64_t
#else
#include <stdatomic.h>
#define KK_ATOMIC_INT64 _Atomic int64_t
#endif

#include "core/error.h"

void *kk_malloc(size_t size);              /* NULL when it fails; size 0 gives a valid pointer */
void *kk_zalloc(size_t size);              /* zeroed */
void *kk_calloc(size_t n, size_t size);    /* zeroed; NULL when n * size overflows */
void *kk_realloc(void *p, size_t size);    /* p is kept when it fails */
char *kk_strndup(const char *s, size_t n); /* NUL-terminated copy */
/* kk_free is public: kakeya.h */

/* Reserves one more element of a growing array: doubles *cap as needed.  False (array
 * untouched) when there is no memory. */
bool kk_grow(void **array, size_t *cap, size_t need, size_t elem_size);

/* a * b and a + b that say when they overflow. */
bool kk_mul(size_t a, size_t b, size_t *out);
bool kk_add(size_t a, size_t b, size_t *out);

/* For tests.  The n-th taking from now fails, once (n = 1: the next); 0 disarms.  While armed
 * takings are also refused wholesale when `forever` is set. */
void kk_fault_after(int64_t n, bool forever);
int64_t kk_live_bytes(void);
int64_t kk_live_blocks(void);
/* True when an armed countdown ran out here.  Every fallible system call that is not an
 * allocation (open, map, read, write, start a thread) passes through this first. */
bool kk_fault_point(void);

/* An engine's account. */
typedef struct {
    KK_ATOMIC_INT64 bytes[KK_MEM_CATEGORIES];
    int64_t limit; /* on everything but weights; 0: none */
} kk_mem;

/* Zeroed, 64-byte aligned memory counted under c.  NULL when it fails or the limit is reached. */
void *kk_mem_take(kk_mem *m, kk_mem_category c, size_t size);
void kk_mem_give(kk_mem *m, kk_mem_category c, void *p, size_t size); /* p NULL is fine */
/* Address space only: zero when touched, and not counted until kk_mem_try_count says how much of
 * it is in use.  For things that grow, so that growing never moves or allocates. */
void *kk_mem_reserve(size_t size);
void kk_mem_unreserve(void *p, size_t size); /* p NULL is fine */
/* Counts bytes that lie elsewhere (a mapped file); negative to take back. */
void kk_mem_count(kk_mem *m, kk_mem_category c, int64_t bytes);
/* Counts only if the limit allows it. */
bool kk_mem_try_count(kk_mem *m, kk_mem_category c, int64_t bytes);

#endif
