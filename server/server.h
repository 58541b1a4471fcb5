/* server.h - what the parts of a running server share.
 *
 * Threads: one of libmicrohttpd's runs every callback of http.c; `parallel` workers run requests,
 * and two readers those that only read sessions; one tells connections of what workers wrote
 * (pace.h), one saves idle sessions (residence.h); the caller's own loads the model, waits to be
 * asked to stop, and drains.  A request is an exchange (exchange.h), which its connection and its
 * worker both hold. */
#ifndef KK_SERVER_SERVER_H
#define KK_SERVER_SERVER_H

#include <stdatomic.h>

#include "server/grpc/grpc_front.h"
#include "server/keys.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/pace.h"
#include "server/prefixes.h"
#include "server/residence.h"
#include "server/serve_entry.h"
#include "server/service.h"
#include "server/store.h"
#include "server/worker.h"

typedef enum { SERVER_LOADING, SERVER_READY, SERVER_DRAINING } server_state;

typedef struct server {
    const kk_serve_opts *opts;
    atomic_int state;      /* server_state */
    atomic_bool cancelled; /* the time to drain is over: requests end at their next token */
    atomic_llong bodies;   /* bytes of the bodies that requests hold */
    int64_t created;       /* seconds since 1970 */
    keys keys;
    metrics metrics;
    workers workers;
    workers readers; /* of what needs no forward pass */
    pace pace;
    grpc_front grpc;
    /* From here on: unchanged, and to be read, once the state is SERVER_READY. */
    kk_engine *engine;
    const kk_tokenizer *tok;
    store *store; /* NULL: nothing is stored */
    prefixes *prefixes;
    sessions *sessions;
    residence residence;
    kk_model_info info;
    kk_session_opts session; /* opts->session with defaults filled */
    char fingerprint[48];    /* system_fingerprint */
} server;

kk_status server_run(const kk_serve_opts *opts, kk_err *err);
kk_status server_fail(kk_err *err, kk_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
