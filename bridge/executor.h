/* executor.h - a checked request carried out: commands one after the other, then the gate.
 *
 * Every command is an argv of `kakeya`, in a process group of its own, with limits on time, output
 * and disk.  Each report that was written goes through `kakeya report check`; one that the gate
 * refuses stays on the machine. */
#ifndef KK_BRIDGE_EXECUTOR_H
#define KK_BRIDGE_EXECUTOR_H

#include "bridge/manifest.h"
#include "bridge/process.h"
#include "bridge/runner_config.h"

enum { KK_SUMMARY_VERSION = 2 };

typedef struct {
    const kk_runner_config *config;
    const char *program;    /* kakeya */
    const char *folder;     /* an empty folder: logs/ and results/ are made in it */
    const char *const *env; /* of this process; a command gets what it needs of it */
    kk_stop stop;
} kk_executor;

/* What came of it. */
typedef struct {
    json_t *summary; /* without what only a runner knows */
    int exit_code;   /* 0: all commands and the gate went well; 1: not */
    bool stopped;    /* by kk_stop */
} kk_execution;

/* The command lines, without running them: {preset, params, commands: [argv]}. */
kk_status kk_executor_plan(const kk_executor *x, const kk_manifest *m, json_t **out, kk_err *err);
/* Fails only where the folder cannot be written or a program cannot be started. */
kk_status kk_executor_run(const kk_executor *x, const kk_manifest *m, kk_execution *out,
                          kk_err *err);
void kk_execution_release(kk_execution *e);

/* A summary of a request that was not carried out: state is "refused" or "interrupted". */
json_t *kk_summary_without(const char *state, const char *reason, int exit_code);

#endif
