/* target.h - `kakeya serve` as a child of the measuring program, and `kakeya run` beside it. */
#ifndef KK_SERVING_TARGET_H
#define KK_SERVING_TARGET_H

#include <sys/types.h>

#include "serving/client.h"

enum { TARGET_MOST_ARGS = 64 };

typedef struct {
    const char *kakeya;
    const char *args[TARGET_MOST_ARGS]; /* of `serve`, NULL behind the last */
    char log[300];                      /* what it says goes here */
    pid_t pid;                          /* 0: it does not run */
    int port;
    int grpc_port;  /* 0: it has none */
    double ready_s; /* from its start until it was ready */
} target;

/* Starts it and waits until it says that it is ready; false: it did not, and the log says why. */
bool target_start(target *t, double seconds);
/* Starts it and waits only until it listens. */
bool target_listen(target *t, double seconds);
bool target_ready(target *t, double seconds);
/* Ends it at once, as a power cut would. */
void target_kill(target *t);
/* SIGTERM; false: it did not end by itself within the seconds, or with another status than 0. */
bool target_stop(target *t, double seconds);
bool target_runs(target *t);
/* Resident bytes, from /proc; 0: not known. */
int64_t target_resident(const target *t);
/* A counter or gauge of /metrics by its whole name with labels; -1: it is not there. */
double target_metric(const target *t, const char *name);
double metric_of(const growing *text, const char *name);

/* Runs a program to its end and takes its standard output; false: its status was not 0. */
bool target_run(const char *const *argv, growing *out);

#endif
