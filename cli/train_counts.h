/* train_counts.h - `kakeya train counts`, a kind of `kakeya train`. */
#ifndef KAKEYA_CLI_TRAIN_COUNTS_H
#define KAKEYA_CLI_TRAIN_COUNTS_H

#include "cli/options.h"

extern const verb train_counts;

#endif
