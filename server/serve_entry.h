/* serve_entry.h - the server as the program sees it: a module, libkakeya_serve, that is loaded by
 * `kakeya serve`.
 *
 * The module carries the server and a copy of the library, and is linked with libmicrohttpd; the
 * program has neither, so that `kakeya run` starts without them.  What crosses between them are the
 * structures below and those of kakeya.h, so both must come from one version of these headers. */
#ifndef KK_SERVE_ENTRY_H
#define KK_SERVE_ENTRY_H

#include "kakeya.h"

typedef enum {
    KK_SERVE_LOADED,    /* the model is; until then nothing is lost by whoever ends the server */
    KK_SERVE_READY,     /* requests are served */
    KK_SERVE_RELOADING, /* files are read again; READY follows */
    KK_SERVE_STOPPING,  /* no more requests are taken */
} kk_serve_phase;

/* All of it is set by the caller and borrowed while the server runs. */
typedef struct {
    kk_engine_opts engine;
    kk_session_opts session; /* of every session */
    kk_sampling sampling;    /* what a request that does not say gets; its seed is drawn */
    const char *name;        /* of the model, as clients see it */
    bool think;              /* whether the model thinks where a request does not say */

    const char *host;
    int32_t port;          /* 0: one that is free */
    int32_t grpc_port;     /* 0: no gRPC; -1: one that is free */
    const char *grpc_host; /* NULL: host */
    const char *key_file;  /* API keys, one a line; NULL: any key, or none, is accepted */
    const char *tls_cert;  /* PEM files; NULL: plain HTTP */
    const char *tls_key;
    const char *cors_origin; /* the origin whose pages may call; "*": any; NULL: none */

    int32_t parallel;      /* requests that run at a time */
    int32_t queue;         /* that wait for it; more are refused with 429 */
    int32_t connections;   /* open at a time */
    int32_t kept;          /* sessions that wait for their conversation to go on */
    int32_t sessions;      /* held by clients; more are refused with 429 */
    int64_t kv_bytes;      /* K/V in all, above which kept sessions are dropped; 0: no limit */
    const char *state;     /* folder where sessions go that leave memory; NULL: none */
    int64_t state_bytes;   /* of it, above which old conversations are deleted; 0: no limit */
    double idle_session_s; /* without use, before a session leaves memory for the folder */
    int64_t max_body;      /* bytes of a request */
    int64_t stream_buffer; /* bytes a client may lag behind before its stream is given up */
    int32_t max_messages, max_choices;
    double request_s; /* longest time of a request, waiting included */
    double idle_s;    /* of a connection that neither sends nor takes anything */
    double ping_s;    /* of silence in a stream, before a comment is sent */
    double drain_s;   /* for requests that run when the server is asked to end */
    bool verbose;     /* a line for each request: never what was said in it */
    bool log_json;    /* lines are JSON objects */
    bool log_content; /* with what was said in requests and answers; JSON only */

    bool (*stop)(void *user); /* whether to end; asked a few times a second */
    /* Whether to read the key file and the certificate again; asked as often.  NULL: never. */
    bool (*reload)(void *user);
    /* It has come to this; called from the thread that serves.  NULL: nobody wants to know. */
    void (*phase)(void *user, kk_serve_phase phase);
    void (*say)(void *user, const char *line);
    void *user;
} kk_serve_opts;

typedef struct {
    /* Serves until `stop` and the requests that were running then have ended. */
    kk_status (*run)(const kk_serve_opts *opts, kk_err *err);
} kk_serve_api;

/* What the caller was compiled with. */
typedef struct {
    const char *version;   /* KK_VERSION */
    size_t api, opts, err; /* bytes of the structures */
} kk_serve_build;

#define KK_SERVE_BUILD                                                                             \
    ((kk_serve_build){.version = KK_VERSION,                                                       \
                      .api = sizeof(kk_serve_api),                                                 \
                      .opts = sizeof(kk_serve_opts),                                               \
                      .err = sizeof(kk_err)})

/* In the program: loads the module, which stays loaded. */
kk_status kk_serve_load(const kk_serve_api **out, kk_err *err);

/* In the module: NULL when it was compiled otherwise than the caller. */
KK_API const kk_serve_api *kk_serve_module(const kk_serve_build *caller);

#endif
