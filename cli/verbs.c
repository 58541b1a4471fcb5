/* verbs.c - the table of verbs. */
#include "cli/verbs.h"

#include <string.h>

static const verb *const verbs[] = {
    &verb_run,     &verb_chat,   &verb_info,     &verb_bench,     &verb_eval,    &verb_train,
    &verb_report,  &verb_parity, &verb_tokenize, &verb_quantize,  &verb_session, &verb_doctor,
    &verb_version, &verb_serve,  &verb_bridge,   &verb_completion};

const verb *verbs_at(size_t i) { return i < OPTION_COUNT(verbs) ? verbs[i] : NULL; }

const verb *verbs_find(const char *name) {
    for (size_t i = 0; i < OPTION_COUNT(verbs); i++)
        if (strcmp(verbs[i]->name, name) == 0) return verbs[i];
    return NULL;
}

const verb *verbs_leaf(size_t i) {
    for (size_t v = 0; v < OPTION_COUNT(verbs); v++) {
        const size_t here = verbs[v]->n_kinds ? verbs[v]->n_kinds : 1;
        if (i < here) return verbs[v]->n_kinds ? verbs[v]->kinds[i] : verbs[v];
        i -= here;
    }
    return NULL;
}
