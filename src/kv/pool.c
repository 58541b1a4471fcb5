/* pool.c - K/V pages of one kind; see kv.h and pool.h.
 *
 * Pages lie in slabs of reserved address space, which cost memory only where they are written.
 * A freed page stays warm for the next taker while few are free; beyond that its memory goes
 * back to the system at once, so that what is resident stays close to what is counted.
 *
 * A device's memory is taken when it is asked for.  There slabs are made of what is booked, some
 * dozens of megabytes at a time, and go back when nobody uses them and enough others are free.
 *
 * Invariants:
 *   (1) promised >= pages taken; pages in all slabs >= promised, or, on a device, >= booked;
 *   (2) counted bytes == booked pages * stride + side bytes, and booked >= taken, equal between
 *       calls of a cache;
 *   (3) every page that is not taken is in exactly one free list. */
#define _GNU_SOURCE
#include "kv/pool.h"

#include <assert.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WARM_PAGES = 4, WARM_BYTES = 16 << 20, LEAST_SLAB = 8, DEVICE_SLAB = 64 << 20 };

struct kk_slab {
    kk_slab *older;
    uint8_t *base;
    size_t bytes;
    int64_t count, taken; /* pages */
    kk_page pages[];
};

struct kk_pool {
    kk_mem *mem;
    kk_mem_category category;
    const kk_backend *be; /* NULL: ordinary memory */
    kk_dev *dev;
    size_t stride;              /* page_bytes, rounded up to pages of the system */
    int64_t capacity, promised; /* pages */
    int64_t booked, taken;
    int64_t side;    /* bytes beside the pages */
    int64_t last_id; /* of pages */
    kk_slab *slabs;
    kk_page *warm, *cold; /* free pages: with memory behind them, without */
    int64_t n_warm, most_warm;
};

kk_status kk_pool_new(kk_pool **out, kk_mem *mem, kk_mem_category c, size_t page_bytes,
                      kk_err *err) {
    *out = NULL;
    const long system_page = sysconf(_SC_PAGESIZE);
    const size_t unit = system_page > 0 ? (size_t)system_page : 4096;
    if (page_bytes == 0 || page_bytes > SIZE_MAX / 2)
        return kk_fail(err, KK_EINVAL, "K/V pages of %zu bytes", page_bytes);
    kk_pool *p = kk_zalloc(sizeof *p);
    if (!p) return kk_fail(err, KK_ENOMEM, "no memory for the pool of K/V pages");
    p->mem = mem;
    p->category = c;
    p->stride = (page_bytes + unit - 1) / unit * unit;
    p->most_warm = (int64_t)(WARM_BYTES / p->stride);
    if (p->most_warm < WARM_PAGES) p->most_warm = WARM_PAGES;
    *out = p;
    return KK_OK;
}

static void free_slab(const kk_pool *p, kk_slab *s) {
    if (p->be)
        p->be->pages->give(p->dev, s->base, s->bytes);
    else
        kk_mem_unreserve(s->base, s->bytes);
    kk_free(s);
}

static void free_slabs(kk_pool *p) {
    for (kk_slab *s = p->slabs, *older; s; s = older) {
        older = s->older;
        free_slab(p, s);
    }
    p->slabs = NULL;
    p->warm = p->cold = NULL;
    p->n_warm = p->capacity = 0;
}

void kk_pool_free(kk_pool *p) {
    if (!p) return;
    assert(p->taken == 0 && p->booked == 0 && p->promised == 0 && p->side == 0);
    free_slabs(p);
    kk_free(p);
}

void kk_pool_place(kk_pool *p, const kk_backend *be, kk_dev *dev) {
    assert(p->capacity == 0);
    if (!be->pages) return;
    p->be = be;
    p->dev = dev;
}

bool kk_pool_is_remote(const kk_pool *p) { return p->be != NULL; }

kk_status kk_pool_read(const kk_pool *p, uint8_t *to, const uint8_t *page, size_t n, kk_err *err) {
    if (p->be) return p->be->pages->move(p->dev, to, page, n, err);
    memcpy(to, page, n);
    return KK_OK;
}

kk_status kk_pool_write(const kk_pool *p, uint8_t *page, const uint8_t *from, size_t n,
                        kk_err *err) {
    if (p->be) return p->be->pages->move(p->dev, page, from, n, err);
    memcpy(page, from, n);
    return KK_OK;
}

void kk_pool_copy(const kk_pool *p, uint8_t *to, const uint8_t *from, size_t n) {
    if (p->be)
        p->be->pages->copy(p->dev, to, from, n);
    else
        memcpy(to, from, n);
}

int64_t kk_pool_page_bytes(const kk_pool *p) { return (int64_t)p->stride; }

static void push(kk_page **list, kk_page *page) {
    page->next = *list;
    *list = page;
}

static kk_page *pop(kk_page **list) {
    kk_page *page = *list;
    *list = page->next;
    page->next = NULL;
    return page;
}

static kk_status add_slab(kk_pool *p, int64_t pages, kk_err *err) {
    size_t bytes, meta;
    if (!kk_mul((size_t)pages, p->stride, &bytes) ||
        !kk_mul((size_t)pages, sizeof(kk_page), &meta) || !kk_add(meta, sizeof(kk_slab), &meta))
        return kk_fail(err, KK_ENOMEM, "%lld K/V pages of %zu bytes overflow memory",
                       (long long)pages, p->stride);
    kk_slab *s = kk_zalloc(meta);
    uint8_t *base = NULL;
    if (s && p->be) {
        const kk_status st = p->be->pages->take(p->dev, bytes, &base, err);
        if (st != KK_OK) {
            kk_free(s);
            return st;
        }
    } else if (s) {
        base = kk_mem_reserve(bytes);
    }
    if (!base) {
        kk_free(s);
        return kk_fail(err, KK_ENOMEM,
                       "no address space for %lld K/V pages of %zu bytes: lower `ctx`",
                       (long long)pages, p->stride);
    }
    s->base = base;
    s->bytes = bytes;
    s->count = pages;
    s->older = p->slabs;
    p->slabs = s;
    /* Last page first, so that pages are taken in order of address. */
    for (int64_t i = pages - 1; i >= 0; i--) {
        s->pages[i].data = base + (size_t)i * p->stride;
        s->pages[i].slab = s;
        push(&p->cold, &s->pages[i]);
    }
    p->capacity += pages;
    return KK_OK;
}

kk_status kk_pool_promise(kk_pool *p, int64_t pages, kk_err *err) {
    const int64_t lacking = p->promised + pages - p->capacity;
    if (lacking > 0 && !p->be) {
        const int64_t least = p->capacity / 4 > LEAST_SLAB ? p->capacity / 4 : LEAST_SLAB;
        KK_TRY(add_slab(p, lacking > least ? lacking : least, err));
    }
    p->promised += pages;
    return KK_OK;
}

void kk_pool_unpromise(kk_pool *p, int64_t pages) {
    p->promised -= pages;
    assert(p->promised >= p->taken);
    if (p->be && p->promised == 0) free_slabs(p);
}

/* Memory of the device for so many pages more; where it has little, for no more than these. */
static kk_status grow(kk_pool *p, int64_t pages, kk_err *err) {
    const int64_t lacking = p->booked + pages - p->capacity;
    const int64_t usual = DEVICE_SLAB / (int64_t)p->stride;
    if (!p->be || lacking <= 0) return KK_OK;
    if (usual > lacking && add_slab(p, usual, NULL) == KK_OK) return KK_OK;
    return add_slab(p, lacking, err);
}

static kk_status count(kk_pool *p, int64_t bytes, kk_err *err) {
    if (bytes && !kk_mem_try_count(p->mem, p->category, bytes))
        return kk_fail(err, KK_ENOMEM, "%lld bytes more for %s pass the memory limit of %lld bytes",
                       (long long)bytes, kk_mem_category_name(p->category),
                       (long long)p->mem->limit);
    return KK_OK;
}

kk_status kk_pool_book(kk_pool *p, int64_t pages, kk_err *err) {
    KK_TRY(count(p, pages * (int64_t)p->stride, err));
    const kk_status st = grow(p, pages, err);
    if (st == KK_OK)
        p->booked += pages;
    else
        kk_mem_count(p->mem, p->category, -pages * (int64_t)p->stride);
    return st;
}

void kk_pool_unbook(kk_pool *p, int64_t pages) {
    p->booked -= pages;
    kk_mem_count(p->mem, p->category, -pages * (int64_t)p->stride);
}

void kk_pool_renumber(kk_pool *p, kk_page *page) { page->id = ++p->last_id; }

kk_page *kk_pool_take(kk_pool *p) {
    assert(p->taken < p->booked && p->taken < p->promised);
    kk_page *page = p->warm ? pop(&p->warm) : pop(&p->cold);
    if (p->n_warm > 0) p->n_warm--;
    page->refs = 1;
    kk_pool_renumber(p, page);
    page->slab->taken++;
    p->taken++;
    return page;
}

/* Best effort: where the system does not take it back, the memory is merely kept for reuse. */
static void return_memory(const kk_pool *p, kk_page *page) {
    if (p->be) return;
#ifdef __linux__
    madvise(page->data, p->stride, MADV_DONTNEED);
#else
    madvise(page->data, p->stride, MADV_FREE);
#endif
}

/* Takes a slab's pages out of a free list. */
static int64_t leave(kk_page **list, const kk_slab *s) {
    int64_t n = 0;
    while (*list) {
        if ((*list)->slab != s) {
            list = &(*list)->next;
            continue;
        }
        *list = (*list)->next;
        n++;
    }
    return n;
}

/* A device gets back a slab that nobody uses while as many pages are free elsewhere: a long prompt
 * takes many at once, and decoding after it needs few, one after the other. */
static void shrink(kk_pool *p, kk_slab *s) {
    const int64_t usual = DEVICE_SLAB / (int64_t)p->stride,
                  spare = usual > s->count ? usual : s->count;
    if (!p->be || s->taken || p->capacity - s->count - p->booked < spare) return;
    p->n_warm -= leave(&p->warm, s);
    leave(&p->cold, s);
    p->capacity -= s->count;
    kk_slab **at = &p->slabs;
    while (*at != s) at = &(*at)->older;
    *at = s->older;
    free_slab(p, s);
}

void kk_pool_drop(kk_pool *p, kk_page *page) {
    assert(page->refs > 0);
    if (--page->refs > 0) return;
    p->taken--;
    page->slab->taken--;
    kk_pool_unbook(p, 1);
    if (p->n_warm < p->most_warm) {
        push(&p->warm, page);
        p->n_warm++;
    } else {
        return_memory(p, page);
        push(&p->cold, page);
    }
    shrink(p, page->slab);
}

kk_status kk_pool_side_take(kk_pool *p, size_t bytes, uint8_t **out, kk_err *err) {
    *out = NULL;
    KK_TRY(count(p, (int64_t)bytes, err));
    kk_status st = KK_OK;
    if (p->be)
        st = p->be->pages->take(p->dev, bytes, out, err);
    else if (!(*out = kk_zalloc(bytes)))
        st = kk_fail(err, KK_ENOMEM, "no memory for %zu bytes of %s", bytes,
                     kk_mem_category_name(p->category));
    if (st != KK_OK) {
        kk_mem_count(p->mem, p->category, -(int64_t)bytes);
        return st;
    }
    p->side += (int64_t)bytes;
    return KK_OK;
}

void kk_pool_side_give(kk_pool *p, uint8_t *side, size_t bytes) {
    if (!side) return;
    if (p->be)
        p->be->pages->give(p->dev, side, bytes);
    else
        kk_free(side);
    p->side -= (int64_t)bytes;
    kk_mem_count(p->mem, p->category, -(int64_t)bytes);
}
