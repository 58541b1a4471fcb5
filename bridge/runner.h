/* runner.h - looks for requests on a bus, decides about each, carries out and reports.
 *
 * One request at a time, and one runner per state folder.  A runner keeps in its folder: a
 * repository, the nonces it has seen, since when it has seen claims of others, and results that
 * could not be pushed yet. */
#ifndef KK_BRIDGE_RUNNER_H
#define KK_BRIDGE_RUNNER_H

#include "bridge/bus.h"
#include "bridge/executor.h"

typedef struct {
    const kk_runner_config *config;
    const char *remote;     /* a path, a URL */
    const char *program;    /* kakeya: where the configuration does not say */
    const char *state;      /* a folder of its own */
    const char *const *env; /* of this process */
    double lost_s; /* a claim of another runner is given up so long after the time it may take */
    kk_stop stop;
    void (*say)(void *user, const char *line); /* NULL: nothing is said */
    void *user;
} kk_runner_opts;

/* What a pass over the bus came to. */
typedef struct {
    int done, failed, refused, interrupted,
        lost; /* lost: to another runner, or the branch is gone */
} kk_runner_counts;

typedef struct kk_runner kk_runner;
/* KK_EBUSY when another runner works in the folder. */
kk_status kk_runner_open(kk_runner **out, const kk_runner_opts *opts, kk_err *err);
void kk_runner_close(kk_runner *r); /* NULL is fine */
/* Everything that is pending now.  Fails when the bus cannot be read, KK_ESTOPPED when asked to. */
kk_status kk_runner_pass(kk_runner *r, kk_runner_counts *counts, kk_err *err);
/* Passes with a pause between until asked to stop; a bus that is not reached is tried again. */
kk_status kk_runner_watch(kk_runner *r, double interval_s, kk_runner_counts *counts, kk_err *err);

/* Whether a request may be carried out: KK_EINVAL with the reason for who sent it.  nonces: the
 * references of the bus; NULL: not known. */
kk_status kk_runner_judge(kk_runner *r, const kk_bus_entry *e, const kk_git_refs *nonces,
                          kk_manifest *m, bool *for_another, kk_err *err);

#endif
