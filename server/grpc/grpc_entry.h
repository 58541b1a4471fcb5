/* grpc_entry.h - gRPC as the server sees it: a module, libkakeya_grpc, that the server loads when
 * it was given a port for it.
 *
 * gRPC's library is C++, and so is this module; all that crosses between it and the server is C:
 * this header and service.h.  The module owns the network: connections, TLS, messages, deadlines,
 * and the queue of calls.  The server owns the sessions, and hands the module a table of functions,
 * since the symbols of both are hidden.  Both must come from one version of these headers.
 *
 * Threads: the functions of the table are called from any number of threads at the same time.  No
 * C++ exception leaves the module, nor passes through the functions of the table. */
#ifndef KK_GRPC_ENTRY_H
#define KK_GRPC_ENTRY_H

#include "kakeya.h"
#include "server/service.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A call that has ended, for those who count. */
typedef struct {
    const char *call;        /* as the protocol names it, "Generate" */
    int code;                /* gRPC's number of how it ended */
    double whole_s;          /* since it came */
    double first_s;          /* until its first token; < 0: none came */
    bool appends, generates; /* which of the next two is filled */
    sessions_appended appended;
    sessions_generated generated; /* as far as it came */
} kk_grpc_ended;

/* The functions of service.h and fault.h, and what else the server knows. */
typedef struct {
    void *server;
    /* The sessions; NULL: they cannot be used now, and *f says why. */
    sessions *(*ready)(void *server, fault *f);
    /* Whether the value of the metadata `authorization`, or NULL, may pass. */
    bool (*accepts)(void *server, const char *authorization);
    void (*ended)(void *server, const kk_grpc_ended *call); /* NULL: nobody counts */
    int (*code)(const fault *f);                            /* gRPC's number for a fault */

    void (*standard)(sessions *t, sessions_how *out);
    bool (*create)(sessions *t, const sessions_how *how, char id[SESSIONS_ID], fault *f);
    bool (*append)(sessions *t, const char *id, const int32_t *tokens, size_t n,
                   const sessions_watch *watch, sessions_appended *out, fault *f);
    bool (*append_text)(sessions *t, const char *id, const char *text, size_t len,
                        const sessions_watch *watch, sessions_appended *out, fault *f);
    bool (*append_messages)(sessions *t, const char *id, const char *json, size_t len,
                            const sessions_watch *watch, sessions_appended *out, fault *f);
    bool (*generate)(sessions *t, const char *id, const sessions_generation *how,
                     sessions_generated *out, fault *f);
    bool (*fork)(sessions *t, const char *id, sessions_place at, const sessions_watch *watch,
                 char fork_id[SESSIONS_ID], sessions_appended *out, fault *f);
    bool (*describe)(sessions *t, const char *id, sessions_info *out, fault *f);
    bool (*list)(sessions *t, sessions_info **out, size_t *n, fault *f);
    bool (*remove)(sessions *t, const char *id, int64_t *history, fault *f);
    bool (*tokens)(sessions *t, const char *id, int32_t **out, size_t *n, fault *f);
} kk_grpc_service;

typedef struct kk_grpc kk_grpc;

/* Copied; what it points to is borrowed while the module runs. */
typedef struct {
    kk_grpc_service service;
    int listening; /* a socket that listens, does not block, and is the module's from now on */
    int32_t connections;  /* at a time; more are closed as they come */
    const char *tls_cert; /* PEM files; NULL: plain */
    const char *tls_key;
    int32_t parallel;      /* calls that work at a time */
    int32_t queue;         /* that wait for it; more are refused */
    int64_t max_message;   /* bytes that a client may send at once */
    int64_t stream_buffer; /* bytes a client may lag behind before its stream is given up */
    double request_s;      /* longest time of a call, waiting included */
    double idle_s;         /* of a connection, before it is asked whether it is still there */
} kk_grpc_opts;

typedef struct {
    /* Takes connections from now on.  The socket is closed after a failure, too. */
    kk_status (*start)(kk_grpc **out, const kk_grpc_opts *opts, kk_err *err);
    /* What grpc.health.v1 answers: NOT_SERVING until it is told otherwise. */
    void (*serving)(kk_grpc *g, bool ready);
    /* Reads the certificate and its key again, for connections that come; where that fails all
     * stays as it was. */
    kk_status (*renew)(kk_grpc *g, kk_err *err);
    /* Takes no new calls, lets those that run end for so many seconds, and then cancels them. */
    void (*drain)(kk_grpc *g, double seconds);
    void (*stop)(kk_grpc *g); /* NULL is fine; cancels what still runs */
} kk_grpc_api;

/* What the caller was compiled with. */
typedef struct {
    const char *version; /* KK_VERSION */
    /* Bytes of the structures. */
    size_t api, opts, how, generation, generated, info, ended, fault, err;
} kk_grpc_build;

#define KK_GRPC_BUILD                                                                              \
    {                                                                                              \
        KK_VERSION, sizeof(kk_grpc_api), sizeof(kk_grpc_opts), sizeof(sessions_how),               \
            sizeof(sessions_generation), sizeof(sessions_generated), sizeof(sessions_info),        \
            sizeof(kk_grpc_ended), sizeof(fault), sizeof(kk_err)                                   \
    }

/* In the server: loads the module, which stays loaded. */
kk_status kk_grpc_load(const kk_grpc_api **out, kk_err *err);

/* In the module: NULL when it was compiled otherwise than the caller. */
KK_API const kk_grpc_api *kk_grpc_module(const kk_grpc_build *caller);

#ifdef __cplusplus
}
#endif
#endif
