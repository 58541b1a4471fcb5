/* keys.h - the API keys that a server accepts. */
#ifndef KK_SERVER_KEYS_H
#define KK_SERVER_KEYS_H

#include <pthread.h>

#include "kakeya.h"

enum { KEYS_LONGEST = 256 };

typedef struct {
    char (*key)[KEYS_LONGEST]; /* padded with zeros */
    size_t n;
} key_list;

typedef struct {
    key_list list;
    pthread_mutex_t lock; /* the list is replaced while requests ask for it */
} keys;

void keys_init(keys *k); /* no keys: whoever asks may pass */

/* Reads a file with a key on each line; empty lines and those that start with # are left out.  A
 * file without a key is refused: a server that was meant to be closed must not be open.  They
 * replace those that were there; after a failure those that were there stay. */
kk_status keys_read(keys *k, const char *path, kk_err *err);
void keys_close(keys *k);
/* Whether the value of an Authorization header, as in "Bearer sk-...", or NULL, may pass.  The time
 * it takes depends on the length of the header and the number of keys alone. */
bool keys_accept(keys *k, const char *authorization);

#endif
