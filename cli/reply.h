/* reply.h - a model's answer as it comes, shown on stdout and kept, for verbs that generate.
 *
 * The library takes the answer apart.  Its text goes to stdout; a thought is for people, and is
 * shown only where stdout is a terminal; a tool call is shown as one line. */
#ifndef KAKEYA_CLI_REPLY_H
#define KAKEYA_CLI_REPLY_H

#include <jansson.h>

#include "kakeya.h"

typedef struct {
    char *bytes;
    size_t len, cap;
} reply_text;

typedef struct {
    kk_answer *answer;
    bool quiet; /* nothing is printed: it is only kept */
    reply_text text, thought;
    json_t *calls; /* [{"name": ..., "arguments": {...}}]; one that cannot be read: {"text": ...} */
    kk_err fault;  /* why it ended before its time; its code is KK_OK when it did not */
    kk_answer_kind last;
    bool any, line; /* something was shown; it ended with a line break */
} reply;

/* Zero but for quiet.  False with the reason in err. */
bool reply_open(reply *r, const kk_answer_opts *opts, kk_err *err);
void reply_close(reply *r);
/* A kk_on_token's work: false when the answer should end, because a stop text or a signal came or
 * something failed (r->fault). */
bool reply_token(reply *r, int32_t id);
/* What was held back.  The text ends with a line break then. */
void reply_finish(reply *r);
bool reply_stopped(const reply *r); /* by a stop text */

#endif
