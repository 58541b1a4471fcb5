/* key_cache.h - keys of evicted rows that stay rebuilt from token to token.
 *
 * Rebuilding keys is most of what restored decoding costs, and from one token to the next nearly
 * all of them are the same.  So a device keeps some of them, in memory of a fixed size that all
 * sessions share: what a session holds stays its latents.  Pages of latents are named by address
 * and number (latent_ids of kk_group), so a page that is written again, or is another session's by
 * now, is another name; pages that sessions share are kept once.
 *
 * Entries that no forward has read for a while give way.  Others do not: attention reads all pages
 * in turn, and to replace one that the next token wants would keep nothing at all.  What finds no
 * place is rebuilt each time, to the same bits.
 *
 * Invariants: (1) an entry is in the list of its name's hash from `place` on until it gives way;
 * (2) it is ready only once all its keys are written; (3) counted bytes == entries * bytes. */
#ifndef KK_CPU_KEY_CACHE_H
#define KK_CPU_KEY_CACHE_H

#include "backend/backend.h"

/* A page's keys of one layer. */
typedef struct {
    const uint8_t *latents;
    int64_t id;
    const kk_weight *decoder;
    int32_t layer;
} kk_key_name;

typedef struct {
    kk_key_name name;
    int64_t used; /* the last forward that asked for it */
    int32_t next; /* in its list; -1: the last */
    bool ready;
} kk_key_entry;

enum { KK_KEY_SIZES = 4, KK_KEY_LISTS = 1024 };

/* Entries of one size; layers of a kind have the same. */
typedef struct {
    size_t bytes; /* of an entry; 0: not in use */
    uint8_t *data;
    kk_key_entry *entry;
    int32_t n, most;
    int32_t hand; /* where the search for one that gives way goes on */
    int32_t list[KK_KEY_LISTS];
} kk_key_size;

typedef struct {
    kk_mem *mem;
    int64_t budget, taken; /* bytes */
    int64_t found, made;   /* pages that were ready; that were rebuilt into an entry */
    kk_key_size size[KK_KEY_SIZES];
} kk_key_cache;

/* budget 0: the usual; below 0: nothing is kept. */
void kk_key_cache_open(kk_key_cache *c, kk_mem *mem, int64_t budget);
/* Forgets all keys and gives their memory back. */
void kk_key_cache_clear(kk_key_cache *c);

/* The entry of that name, or one that is to be filled (ready is false); NULL: it has no place. */
kk_key_entry *kk_key_cache_place(kk_key_cache *c, const kk_key_name *name, size_t bytes,
                                 int64_t forward);
/* Memory of an entry of that many bytes. */
float *kk_key_cache_data(const kk_key_cache *c, const kk_key_entry *e, size_t bytes);

#endif
