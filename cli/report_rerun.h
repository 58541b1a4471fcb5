/* report_rerun.h - `kakeya report rerun`, and how it trains. */
#ifndef KAKEYA_CLI_REPORT_RERUN_H
#define KAKEYA_CLI_REPORT_RERUN_H

#include "cli/options.h"
#include "eval/rerun/rerun.h"

extern const verb report_rerun;

/* Trains the projection of a report of training in a folder of its own, which is removed again, and
 * reads the report of that. */
kk_status report_rerun_train(const kk_rerun *r, json_t **report, kk_err *err);

#endif
