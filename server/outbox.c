/* outbox.c - see outbox.h. */
#include "server/outbox.h"

#include <stdlib.h>
#include <string.h>

/* Makes place for n more behind what waits. */
static bool reserve(outbox *o, size_t n) {
    if (o->cap - o->start - o->len >= n) return true;
    if (o->start > 0) { /* what was taken makes place first */
        memmove(o->bytes, o->bytes + o->start, o->len);
        o->start = 0;
        if (o->cap - o->len >= n) return true;
    }
    size_t cap = o->cap ? o->cap : 4096;
    while (cap < o->len + n) cap *= 2; /* below twice the limit, which is checked before */
    char *bytes = realloc(o->bytes, cap);
    if (!bytes) return false;
    o->bytes = bytes;
    o->cap = cap;
    return true;
}

bool outbox_put(outbox *o, const char *bytes, size_t n) {
    if (n > o->limit || o->len > o->limit - n || !reserve(o, n)) return false;
    memcpy(o->bytes + o->start + o->len, bytes, n);
    o->len += n;
    return true;
}

size_t outbox_take(outbox *o, char *to, size_t max) {
    const size_t n = o->len < max ? o->len : max;
    if (n) memcpy(to, o->bytes + o->start, n);
    o->start = o->len > n ? o->start + n : 0;
    o->len -= n;
    return n;
}

void outbox_free(outbox *o) {
    free(o->bytes);
    *o = (outbox){.limit = o->limit};
}
