/* malformed.h - requests that no server should stumble over. */
#ifndef KK_SERVING_MALFORMED_H
#define KK_SERVING_MALFORMED_H

#include <jansson.h>

#include "serving/target.h"

/* The heaps of a server's threads fill up over the first hundred thousand requests and stay as they
 * are then, so memory is compared only after so many times the requests that count. */
enum { MALFORMED_WARM_UPS = 2 };

/* Sends requests, several at a time, until memory is warm, then n that count, and says how all
 * were answered: {warm_up, requests, unfinished, statuses {status: count}, crashes, hangs,
 * resident_before, resident_after (of the n)}. */
json_t *malformed_run(target *t, size_t n, uint64_t seed);
/* The same over gRPC, on raw sockets: {warm_up, requests, connections, ways {way: requests},
 * trailers, resets, refused (calls by how they ended), crashes, hangs, resident_before,
 * resident_after}. */
json_t *malformed_grpc_run(target *t, size_t n, uint64_t seed);

#endif
