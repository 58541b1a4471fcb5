/* key_cache.c - entries by size, found by hash; see key_cache.h. */
#include "backend/cpu/key_cache.h"

#include <string.h>

enum {
    USUAL_BUDGET = 32 << 20,
    LIMIT_SHARE = 8, /* at most one in so many bytes of the engine's memory limit */
    STALE = 64,      /* forwards that did not read an entry, after which it gives way */
    EXAMINED = 8,    /* entries that are looked at for one that does */
};

void kk_key_cache_open(kk_key_cache *c, kk_mem *mem, int64_t budget) {
    *c = (kk_key_cache){.mem = mem, .budget = budget ? budget : USUAL_BUDGET};
    if (mem->limit && c->budget > mem->limit / LIMIT_SHARE) c->budget = mem->limit / LIMIT_SHARE;
}

void kk_key_cache_clear(kk_key_cache *c) {
    for (int i = 0; i < KK_KEY_SIZES; i++) {
        kk_key_size *s = &c->size[i];
        if (!s->bytes) continue;
        kk_mem_count(c->mem, KK_MEM_WORKSPACE, -(int64_t)s->n * (int64_t)s->bytes);
        kk_mem_unreserve(s->data, (size_t)s->most * s->bytes);
        kk_free(s->entry);
        *s = (kk_key_size){0};
    }
    c->taken = 0;
}

/* False: there is no memory for even the list of entries. */
static bool open_size(const kk_key_cache *c, kk_key_size *s, size_t bytes) {
    const int64_t most = c->budget / (int64_t)bytes;
    if (most < 1 || most > INT32_MAX) return false;
    kk_key_entry *entry = kk_calloc((size_t)most, sizeof *entry);
    uint8_t *data = entry ? kk_mem_reserve((size_t)most * bytes) : NULL;
    if (!data) {
        kk_free(entry);
        return false;
    }
    *s = (kk_key_size){.bytes = bytes, .data = data, .entry = entry, .most = (int32_t)most};
    for (int i = 0; i < KK_KEY_LISTS; i++) s->list[i] = -1;
    return true;
}

static kk_key_size *size_for(kk_key_cache *c, size_t bytes) {
    for (int i = 0; i < KK_KEY_SIZES; i++) {
        kk_key_size *s = &c->size[i];
        if (s->bytes == bytes) return s;
        if (!s->bytes) return open_size(c, s, bytes) ? s : NULL;
    }
    return NULL;
}

static bool same_name(const kk_key_name *a, const kk_key_name *b) {
    return a->latents == b->latents && a->id == b->id && a->decoder == b->decoder &&
           a->layer == b->layer;
}

static int32_t *list_of(kk_key_size *s, const kk_key_name *name) {
    uint64_t h = (uint64_t)name->id * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t)name->layer;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return &s->list[(h >> 32) % KK_KEY_LISTS];
}

static void leave_list(kk_key_size *s, int32_t i) {
    int32_t *at = list_of(s, &s->entry[i].name);
    while (*at != i) at = &s->entry[*at].next;
    *at = s->entry[i].next;
}

/* An entry for a new name: one that nobody reads, or one more; -1: neither. */
static int32_t free_entry(kk_key_cache *c, kk_key_size *s, int64_t forward) {
    for (int32_t k = 0; k < EXAMINED && k < s->n; k++) {
        s->hand = (s->hand + 1) % s->n;
        if (forward - s->entry[s->hand].used < STALE) continue;
        leave_list(s, s->hand);
        return s->hand;
    }
    const int64_t bytes = (int64_t)s->bytes;
    if (s->n == s->most || c->taken + bytes > c->budget ||
        !kk_mem_try_count(c->mem, KK_MEM_WORKSPACE, bytes))
        return -1;
    c->taken += bytes;
    return s->n++;
}

kk_key_entry *kk_key_cache_place(kk_key_cache *c, const kk_key_name *name, size_t bytes,
                                 int64_t forward) {
    kk_key_size *s = c->budget > 0 ? size_for(c, bytes) : NULL;
    if (!s) return NULL;
    int32_t *list = list_of(s, name);
    for (int32_t i = *list; i >= 0; i = s->entry[i].next)
        if (same_name(&s->entry[i].name, name)) {
            s->entry[i].used = forward;
            return &s->entry[i];
        }
    const int32_t i = free_entry(c, s, forward);
    if (i < 0) return NULL;
    s->entry[i] = (kk_key_entry){.name = *name, .used = forward, .next = *list};
    *list = i;
    return &s->entry[i];
}

float *kk_key_cache_data(const kk_key_cache *c, const kk_key_entry *e, size_t bytes) {
    for (int i = 0; i < KK_KEY_SIZES; i++) {
        const kk_key_size *s = &c->size[i];
        if (s->bytes != bytes) continue;
        return (float *)(void *)(s->data + (size_t)(e - s->entry) * bytes);
    }
    return NULL;
}
