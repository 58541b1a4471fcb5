/* grpc_front.h - gRPC in a running server: the module and what it was started with. */
#ifndef KK_SERVER_GRPC_FRONT_H
#define KK_SERVER_GRPC_FRONT_H

#include "server/grpc/grpc_entry.h"

struct server;

typedef struct {
    const kk_grpc_api *api; /* NULL: there is no gRPC */
    kk_grpc *grpc;
} grpc_front;

/* The table of service.h and fault.h; what else the module asks is left to the caller. */
kk_grpc_service grpc_front_table(void);

/* Loads the module and listens, where the options have a port for it.  Calls are refused until the
 * server is ready. */
kk_status grpc_front_start(grpc_front *g, struct server *s, kk_err *err);
void grpc_front_ready(grpc_front *g); /* as of now sessions may be used */
/* New connections get the certificate that is in its files now. */
kk_status grpc_front_renew(grpc_front *g, kk_err *err);
/* Takes no new calls; those that run have so many seconds. */
void grpc_front_drain(grpc_front *g, double seconds);
void grpc_front_stop(grpc_front *g);

#endif
