/* checkup.h - what a machine has and lacks to ask or to answer requests. */
#ifndef KK_BRIDGE_CHECKUP_H
#define KK_BRIDGE_CHECKUP_H

#include "bridge/runner_config.h"

typedef enum { KK_CHECK_OK, KK_CHECK_NOTE, KK_CHECK_MISSING } kk_check_verdict;

typedef struct {
    const char *what;
    kk_check_verdict verdict;
    char text[240];
} kk_check;

enum { KK_CHECKS = 10 };
typedef struct {
    kk_check check[KK_CHECKS];
    size_t n, missing;
} kk_checkup;

typedef struct {
    const char *config; /* the path of a runner's configuration; it need not be there */
    const char *remote; /* NULL: that of the configuration */
    const char *state, *program;
    const char *const *env;
} kk_checkup_opts;

/* Looks at everything, whatever is missing. */
void kk_checkup_run(kk_checkup *out, const kk_checkup_opts *opts);
/* The two programs alone. */
void kk_checkup_tools(kk_checkup *out, const char *const *env);

#endif
