/* setup.h - makes a machine a runner, in steps that may be taken again: what is there is kept. */
#ifndef KK_BRIDGE_SETUP_H
#define KK_BRIDGE_SETUP_H

#include "bridge/process.h"

typedef struct {
    const char *config;  /* where the configuration is or will be */
    const char *state;   /* the runner's folder */
    const char *program; /* kakeya */
    const char *const *env;
    const char *name, *remote;                /* NULL: as they are */
    const char *model, *drafter, *projection; /* NULL: as they are */
    const char *const *signers;               /* NAME=FILE.pub: who may ask */
    size_t n_signers;
    const char *const *cases; /* folders of reference cases */
    size_t n_cases;
    bool no_selftest;
    kk_stop stop;
    void (*say)(void *user, const char *line);
    void *user;
} kk_setup_opts;

/* Says what each step did.  Fails at the first step that cannot be taken. */
kk_status kk_setup_run(const kk_setup_opts *opts, kk_err *err);

#endif
