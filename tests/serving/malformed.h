/* malformed.h - requests that no server should stumble over. */
#ifndef KK_SERVING_MALFORMED_H
#define KK_SERVING_MALFORMED_H

#include <jansson.h>

#include "serving/target.h"

/* Sends n of them, several at a time, so that memory is warm, then n that count, and says how all
 * were answered: {warm_up, requests, unfinished, statuses {status: count}, crashes, hangs,
 * resident_before, resident_after (the second n)}. */
json_t *malformed_run(target *t, size_t n, uint64_t seed);
/* The same over gRPC, on raw sockets: {warm_up, requests, connections, ways {way: requests}, trailers, resets,
 * refused (calls by how they ended), crashes, hangs, resident_before, resident_after}. */
json_t *malformed_grpc_run(target *t, size_t n, uint64_t seed);

#endif
