/* verbs.h - the verbs of this build, one per cmd_*.c. */
#ifndef KAKEYA_CLI_VERBS_H
#define KAKEYA_CLI_VERBS_H

#include "cli/options.h"

extern const verb verb_run, verb_chat, verb_info, verb_bench, verb_eval, verb_train, verb_report,
    verb_parity, verb_tokenize, verb_quantize, verb_session, verb_doctor, verb_version, verb_serve,
    verb_bridge, verb_completion;

/* All of them, in the order in which they are listed; NULL after the last. */
const verb *verbs_at(size_t i);
const verb *verbs_find(const char *name); /* NULL: there is none */
/* What has options of its own: verbs without kinds, and kinds.  NULL after the last. */
const verb *verbs_leaf(size_t i);

#endif
