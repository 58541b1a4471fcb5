/* eval_needle.h - the first kind of `kakeya eval`. */
#ifndef KAKEYA_CLI_EVAL_NEEDLE_H
#define KAKEYA_CLI_EVAL_NEEDLE_H

#include "cli/options.h"

extern const verb eval_needle;

#endif
