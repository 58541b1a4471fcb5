/* selftest.h - a whole request on this machine: asked, signed, carried out, gated and fetched
 * through a repository in a temporary folder.  It shows that the parts work together, and times
 * them. */
#ifndef KK_BRIDGE_SELFTEST_H
#define KK_BRIDGE_SELFTEST_H

#include "bridge/process.h"

typedef struct {
    double seconds;    /* from the request to its fetched results */
    double running_s;  /* of which the command itself */
    double overhead_s; /* of which the executor around it */
} kk_selftest;

/* base: a folder to make the temporary one in; preset: one without parameters. */
kk_status kk_selftest_run(kk_selftest *out, const char *program, const char *base,
                          const char *preset, const char *const *env, kk_stop stop, kk_err *err);

#endif
