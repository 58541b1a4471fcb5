/* eval_steps.h - the kind of `kakeya eval` that holds ways to decode against exact decoding. */
#ifndef KAKEYA_CLI_EVAL_STEPS_H
#define KAKEYA_CLI_EVAL_STEPS_H

#include "cli/options.h"

extern const verb eval_steps;

#endif
