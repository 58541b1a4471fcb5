/* notices.c - see notices.h. */
#include "cli/notices.h"

#include <stdio.h>

#include "cli/term.h"

bool notices_other_weights(const kk_engine *e, const kk_session *s) {
    kk_projection_info p;
    return (s && kk_session_other_weights(s)) || (kk_engine_projection(e, &p) && p.other_weights);
}

void notices_projection(const kk_engine *e, bool verbose) {
    kk_projection_info p;
    if (!kk_engine_projection(e, &p)) return;
    if (p.other_weights)
        fprintf(stderr,
                "%sprojection: these are not the weights it was made with, but others of the same "
                "model%s\n",
                term_dim(stderr), term_reset(stderr));
    if (!p.checked && verbose)
        fprintf(stderr,
                "%sprojection: it carries no checksums, so nobody knows whether its two files "
                "belong together%s\n",
                term_dim(stderr), term_reset(stderr));
}

void notices_saved(const char *name, const kk_saved_info *saved, const kk_session *s, bool exact) {
    if (kk_session_other_weights(s))
        fprintf(
            stderr,
            "%s: these are not the weights it was made with (%s), but others of the same model; "
            "equal tokens are not promised\n",
            name, saved->model);
    else if (!exact)
        fprintf(stderr,
                "%s: saved by %s on %s; from here on tokens may differ from those it would have "
                "given there\n",
                name, saved->build, saved->device);
}

void notices_full(const kk_session *s, kk_stop_reason stop) {
    if (stop == KK_STOP_CONTEXT)
        fprintf(stderr, "%sthe context of %d tokens is full: give more with -c%s\n",
                term_dim(stderr), kk_session_ctx(s), term_reset(stderr));
}
