/* pace.h - when the connections of streams are told that there is more to send.
 *
 * Telling one wakes the thread of connections, which takes a core from the threads that evaluate
 * the next token.  A small model writes a token in a fraction of that, so connections are told at
 * most every PACE_MS, all of them together: what comes within so much of the last time waits until
 * any stream writes after the end of it.  Where none does, a thread tells them, after twice that,
 * or four times behind streams that told by themselves before: a thread that woke up each time
 * would take a core as well.  What a slower model writes is sent at once, and so are the first
 * parts and the end of a stream. */
#ifndef KK_SERVER_PACE_H
#define KK_SERVER_PACE_H

#include <pthread.h>
#include <stdbool.h>

#include "kakeya.h"

struct exchange;

enum { PACE_MS = 8 };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, ending;
    bool asleep;            /* the thread waits for a stream, and not for a time */
    double last;            /* text_now() when connections were told last */
    struct exchange *first; /* that wait to be told */
} pace;

kk_status pace_start(pace *p, kk_err *err);
/* Whether the caller is to tell the connection of x itself; else it is told within 4 PACE_MS.  The
 * caller holds the lock of x, which is not waiting already. */
bool pace_is_due(pace *p, struct exchange *x);
/* Tells those that wait, where it is time.  After each part that was written, without locks. */
void pace_look(pace *p);
/* Those that wait are told now; a pace that was not started is left alone. */
void pace_stop(pace *p);

#endif
