/* bridge_verbs.h - the kinds of `kakeya bridge`, and what they share. */
#ifndef KAKEYA_CLI_BRIDGE_VERBS_H
#define KAKEYA_CLI_BRIDGE_VERBS_H

#include "bridge/process.h"
#include "cli/options.h"

extern const verb bridge_request, bridge_fetch, bridge_status, bridge_run, bridge_doctor,
    bridge_setup;

/* Where things are for this user. */
typedef struct {
    char state[4096], config[4096], program[4096];
    const char *const *env;
    kk_stop stop; /* when a signal arrives */
} bridge_place;

/* state and config: NULL: the usual ones.  False after saying why not. */
bool bridge_find(bridge_place *out, const char *state, const char *config, int *code);
/* The exit code of a failure, after saying it: 2 for a request that is wrong. */
int bridge_failed(const kk_err *err);

#endif
