/* fault.h - why a request is refused or failed, in the envelope that OpenAI's clients read:
 *     {"error": {"message": ..., "type": ..., "code": ..., "param": ...}} */
#ifndef KK_SERVER_FAULT_H
#define KK_SERVER_FAULT_H

#include <jansson.h>

#include "kakeya.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int status;       /* HTTP's; 0: nothing is wrong */
    const char *code; /* a word for programs; NULL: null */
    char param[96];   /* the member of the request that is wrong, as in "messages[2].role" */
    char message[480];
    int64_t n_prompt, n_ctx; /* of a prompt that does not fit the context; else 0 */
    int retry_s;             /* seconds for Retry-After; 0: no such header */
} fault;

/* Writes it down and returns false.  param may be NULL. */
bool fault_set(fault *f, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What a failed call of the library is to a client. */
bool fault_from(fault *f, const kk_err *err);
/* The envelope; NULL without memory. */
json_t *fault_json(const fault *f);
/* The code of gRPC that says the same (grpc/status.h's numbers). */
int fault_grpc(const fault *f);

#ifdef __cplusplus
}
#endif

#endif
