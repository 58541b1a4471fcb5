/* residence.h - which sessions have their K/V in memory: those held by an id and kept conversations
 * give way together, the one that was not used for longest first.
 *
 * Idle ones leave on a thread of their own: a save of gigabytes to a slow disk takes its time, and
 * the thread that answers signals and the service manager has none. */
#ifndef KK_SERVER_RESIDENCE_H
#define KK_SERVER_RESIDENCE_H

#include <pthread.h>
#include <stdbool.h>

#include "kakeya.h"

struct server;

enum { RESIDENCE_STUCK_S = 600 }; /* a sweep that takes longer is taken for a deadlock */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, ending, sweeping;
    double since; /* text_now() when the sweep that runs began */
    struct server *server;
} residence;

/* Sweeps about once a second: idle sessions leave, and as many as are over the limit of K/V. */
kk_status residence_start(residence *r, struct server *s, kk_err *err);
/* Returns at once, unless a sweep takes longer than RESIDENCE_STUCK_S: then when that has ended. */
void residence_wait(residence *r);
void residence_stop(residence *r);

/* Something gives its K/V back, for a call that found no memory; false: there is nothing. */
bool residence_make_place(struct server *s);
/* At the end: everything that is in memory goes to the state folder, where there is one. */
void residence_end(struct server *s);

#endif
