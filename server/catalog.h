/* catalog.h - the index of a state folder, in SQLite: what is stored, and which conversations begin
 * with which tokens.  It can be made again from the journals, so it is never the only place of
 * anything.  One thread at a time. */
#ifndef KK_SERVER_CATALOG_H
#define KK_SERVER_CATALOG_H

#include "server/journal.h"

enum { CATALOG_BLOCK = 64 }; /* prefixes are known at every so many tokens */

typedef struct {
    char id[JOURNAL_ID];
    uint32_t kind;
    int64_t created, used; /* seconds since 1970 */
    int64_t tokens;        /* of the journal */
    uint64_t chain;        /* history_chain of them */
    int32_t turns, prompt;
    int64_t journal_bytes;
    int64_t kv_tokens, kv_bytes; /* of its K/V file; 0: there is none */
    uint64_t identity;           /* of the model */
    char *meta;                  /* set by catalog_put's caller; else owned: catalog_row_free */
} catalog_row;
void catalog_row_free(catalog_row *r);

typedef struct catalog catalog;
/* KK_EFORMAT: the file is damaged. */
kk_status catalog_open(catalog **out, const char *path, kk_err *err);
void catalog_close(catalog *c); /* NULL is fine */

kk_status catalog_put(catalog *c, const catalog_row *r, kk_err *err); /* adds or replaces */
/* False: there is none, or it cannot be read. */
bool catalog_get(catalog *c, const char *id, catalog_row *out);
kk_status catalog_remove(catalog *c, const char *id, kk_err *err);
/* The hashes of an id's prefixes of more than `after` tokens become hash[0, n): of the first
 * CATALOG_BLOCK * (after / CATALOG_BLOCK + 1) tokens, and so on. */
kk_status catalog_prefixes(catalog *c, const char *id, int64_t after, const uint64_t *hash,
                           size_t n, kk_err *err);

typedef bool (*catalog_each_fn)(void *user, const catalog_row *row); /* false: enough */
kk_status catalog_each(catalog *c, catalog_each_fn each, void *user, kk_err *err);
/* Those that have a prefix of n tokens with this hash, the most K/V first. */
kk_status catalog_match(catalog *c, uint64_t hash, int64_t n, catalog_each_fn each, void *user,
                        kk_err *err);
/* Those of a kind, the least recently used first. */
kk_status catalog_oldest(catalog *c, uint32_t kind, catalog_each_fn each, void *user, kk_err *err);
typedef struct {
    int64_t count[2], bytes; /* by kind; of journals and K/V files */
} catalog_sums;
void catalog_sum(catalog *c, catalog_sums *out);

#endif
