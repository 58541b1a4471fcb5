/* grpc_client.h - a client of RuntimeService in C, for tests: the C++ of gRPC stays in
 * grpc_client.cc.  Every call returns gRPC's status code and has a deadline of a minute. */
#ifndef KK_TESTS_GRPC_CLIENT_H
#define KK_TESTS_GRPC_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct grpc_client grpc_client;

grpc_client *grpc_client_open(int port);
void grpc_client_close(grpc_client *c);

int grpc_client_create(grpc_client *c, char *id, size_t cap);
int grpc_client_append(grpc_client *c, const char *id, const int32_t *tokens, size_t n);
typedef struct {
    int32_t max_tokens;
    int32_t cancel_after; /* tokens; 0: never */
    int32_t tokens[512];
    int32_t n;
    int done; /* frames */
    uint64_t logits_hash;
    char message[256];
} grpc_client_stream;
int grpc_client_generate(grpc_client *c, const char *id, grpc_client_stream *s);
int grpc_client_info(grpc_client *c, const char *id, uint64_t *history, uint64_t violations[3]);
int grpc_client_fork(grpc_client *c, const char *id, char *fork_id, size_t cap);
int grpc_client_list(grpc_client *c, size_t *n);
int grpc_client_remove(grpc_client *c, const char *id);
/* Whether grpc.health.v1 says SERVING of the service; -1: no answer. */
int grpc_client_serving(grpc_client *c);

#ifdef __cplusplus
}
#endif
#endif
