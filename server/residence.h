/* residence.h - which sessions stay in memory: those that were used last, as far as there is place.
 * Sessions that clients hold and conversations share it. */
#ifndef KK_SERVER_RESIDENCE_H
#define KK_SERVER_RESIDENCE_H

#include <stdbool.h>

struct server;

/* Takes the one of both that was not used for longest out of memory; false: there is none. */
bool residence_make_place(struct server *s);
/* To be called about once a second: what is idle for too long, and what is over the limit. */
void residence_sweep(struct server *s);
/* At the end: what is in memory goes to the state folder, where there is one. */
void residence_end(struct server *s);

#endif
