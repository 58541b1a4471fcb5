/* client.h - the other end of a bus: asks, waits, fetches, lists. */
#ifndef KK_BRIDGE_CLIENT_H
#define KK_BRIDGE_CLIENT_H

#include "bridge/bus.h"

/* What the original's client ended with, and scripts may rely on. */
typedef enum {
    KK_FETCH_DONE = 0,    /* the run went well */
    KK_FETCH_FAILED = 1,  /* it failed, was refused or interrupted */
    KK_FETCH_RUNNING = 2, /* not finished within the time */
    KK_FETCH_NONE = 3,    /* there is no such branch */
} kk_fetch_outcome;

typedef struct {
    const char *state;      /* a folder for a repository of the client's own */
    const char *const *env; /* of this process */
    const char *remote;     /* a path, a URL, or the name of a remote of the repository here */
    const char *prefix;
    kk_stop stop;
} kk_client_opts;

typedef struct kk_client kk_client;
kk_status kk_client_open(kk_client **out, const kk_client_opts *opts, kk_err *err);
void kk_client_close(kk_client *c); /* NULL is fine */

typedef struct {
    const char *preset;
    const char *const *params; /* NAME=VALUE */
    size_t n_params;
    const char *ref; /* NULL: HEAD of the repository here, whose files must be committed */
    const char *requested_by;
    const char *key;    /* NULL: unsigned */
    const char *runner; /* NULL: any */
    const char *suffix; /* of the branch; NULL: none */
    bool dry_run;       /* nothing is pushed */
} kk_client_request;

/* What was asked, and where. */
typedef struct {
    char branch[KK_GIT_NAME + 1], id[KK_GIT_ID + 1];
    kk_bytes manifest;
} kk_client_sent;
/* KK_EINVAL: the request is wrong, or files here are not committed. */
kk_status kk_client_send(kk_client *c, const kk_client_request *q, kk_client_sent *out,
                         kk_err *err);
void kk_client_sent_release(kk_client_sent *s);

/* Looks every interval_s, for wait_s at most, and writes what a finished branch holds into folder
 * (NULL: nowhere).  *summary: NULL, or to be released. */
kk_status kk_client_fetch(kk_client *c, const char *branch, double wait_s, double interval_s,
                          const char *folder, kk_fetch_outcome *outcome, json_t **summary,
                          kk_err *err);

/* A list of {branch, stage, ...} of all branches of the bus. */
kk_status kk_client_status(kk_client *c, json_t **out, kk_err *err);
/* Whether the remote answers, and would take a push. */
kk_status kk_client_probe(kk_client *c, kk_err *err);

#endif
