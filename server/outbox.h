/* outbox.h - bytes between a worker that writes a stream and the connection that sends it.
 *
 * It never holds more than its limit: what does not fit is refused as a whole, so that a client
 * that reads slowly costs so much memory and no more, and the worker never waits for it.  The
 * caller locks. */
#ifndef KK_SERVER_OUTBOX_H
#define KK_SERVER_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *bytes;
    size_t start, len, cap; /* bytes[start, start + len) wait */
    size_t limit;
} outbox;

/* False when it would pass the limit, or without memory: nothing of it is kept then. */
bool outbox_put(outbox *o, const char *bytes, size_t n);
/* Takes up to max bytes, in order; returns how many. */
size_t outbox_take(outbox *o, char *to, size_t max);
void outbox_free(outbox *o);

#endif
