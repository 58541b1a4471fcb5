/* route.h - which path is answered how. */
#ifndef KK_SERVER_ROUTE_H
#define KK_SERVER_ROUTE_H

#include "server/exchange.h"

typedef struct route {
    const char *method, *path; /* a path that ends in / has a name behind it, */
    bool whole;                /* but not this one */
    bool open;                 /* needs no key */
    bool early;                /* answers while the model loads */
    bool works;                /* in a worker; */
    bool reads;                /* in a reader, also while all workers are busy; with neither: in the
                                * connection's thread, at once */
    bool chat;
    void (*run)(exchange *x, const char *rest); /* rest: of the path */
} route;

/* The route of a path; NULL: there is none, with the status in *f: 404, or 405 where another method
 * has one.  *rest: the path behind the route's own. */
const route *route_find(const char *method, const char *path, const char **rest, fault *f);

#endif
