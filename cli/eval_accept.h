/* eval_accept.h - the second kind of `kakeya eval`, and what the kinds share. */
#ifndef KAKEYA_CLI_EVAL_ACCEPT_H
#define KAKEYA_CLI_EVAL_ACCEPT_H

#include "cli/options.h"

extern const verb eval_accept;

/* What was typed after `kakeya eval`, for a report; released with free; NULL without memory. */
char *eval_command(int argc, char **argv);

/* Checks a list of names of prompt sets with commas between; false after saying what is wrong. */
bool eval_check_sets(const verb *v, const char *names, int *code);

#endif
