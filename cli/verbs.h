/* verbs.h - the verbs of this build, one per cmd_*.c. */
#ifndef KAKEYA_CLI_VERBS_H
#define KAKEYA_CLI_VERBS_H

#include "cli/options.h"

extern const verb verb_run, verb_chat, verb_info, verb_bench, verb_eval, verb_train, verb_report,
    verb_parity, verb_tokenize, verb_quantize, verb_session, verb_doctor, verb_version, verb_serve;

#endif
