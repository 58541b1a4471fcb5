/* pool.h - how caches and marks take pages and hand them back.
 *
 * Three steps keep the last one free of failure.  A holder promises, when it is made, the most
 * pages it will ever hold, and the pool reserves address space for the sum.  Before a change it
 * books what it will take, which only a memory limit can refuse, or a device that has no memory
 * left.  Taking then cannot fail. */
#ifndef KK_KV_POOL_H
#define KK_KV_POOL_H

#include "kv/kv.h"

typedef struct kk_page kk_page;
typedef struct kk_slab kk_slab;
struct kk_page {
    uint8_t *data;
    kk_slab *slab; /* the slab that the page lies in */
    int32_t refs;  /* 0: free */
    int64_t id;    /* another one whenever its rows may be written */
    kk_page *next; /* in a free list */
};

kk_status kk_pool_promise(kk_pool *p, int64_t pages, kk_err *err);
void kk_pool_unpromise(kk_pool *p, int64_t pages);
kk_status kk_pool_book(kk_pool *p, int64_t pages, kk_err *err);
void kk_pool_unbook(kk_pool *p, int64_t pages);

kk_page *kk_pool_take(kk_pool *p);            /* booked; one reference, any content */
void kk_pool_renumber(kk_pool *p, kk_page *); /* gives it an id that no page of the pool had */
void kk_pool_drop(kk_pool *p, kk_page *);     /* one reference less; the last frees and unbooks */

/* Memory beside the pages, where they lie, counted with them; taking it needs no promise and may
 * fail.  Zeroed, or, on a device, of any content. */
kk_status kk_pool_side_take(kk_pool *p, size_t bytes, uint8_t **out, kk_err *err);
void kk_pool_side_give(kk_pool *p, uint8_t *side, size_t bytes); /* side NULL is fine */

/* Copies between places in pages and beside them, wherever they lie. */
void kk_pool_copy(const kk_pool *p, uint8_t *to, const uint8_t *from, size_t n);
int64_t kk_pool_page_bytes(const kk_pool *p); /* as counted: whole pages of the system */

#endif
