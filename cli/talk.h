/* talk.h - a conversation: its messages, and the session that holds them as tokens.
 *
 * The whole conversation is rendered again for every turn, as the model's format wants (earlier
 * answers lose their thinking), and the session is rewound to the longest prefix it already
 * holds, so that only what is new is evaluated.  So the messages alone say what the conversation
 * is: one can be taken back, or come from a file, and the session follows. */
#ifndef KAKEYA_CLI_TALK_H
#define KAKEYA_CLI_TALK_H

#include <jansson.h>

#include "cli/options.h"
#include "cli/reply.h"
#include "kakeya.h"

typedef struct {
    /* Set by the caller; borrowed. */
    kk_engine *engine;
    const kk_tokenizer *tok;
    const option_words *stops;
    bool quiet; /* no progress */

    kk_session *session; /* set by the caller; owned from then on */
    json_t *messages;    /* without the system's; all of them, also those that gave way */
    size_t first;        /* the first message that the model is still shown; 0: all are */
    json_t *tools;       /* declarations; NULL: none */
    char *system;        /* NULL: none */
    bool think;
    kk_sampling sampling;
    int32_t predict; /* most tokens of an answer; -1: until it ends */
    bool no_shift;   /* a full context is refused, and no turn is dropped for it */

    reply reply;     /* the last answer */
    int32_t read;    /* tokens evaluated to bring the session to this turn */
    int32_t dropped; /* oldest turns that gave way to it */
} talk;

/* False without memory. */
bool talk_open(talk *t);
void talk_close(talk *t);

/* Adds a message of the user and answers it.  A message after a tool call is the call's result; it
 * is answered when all calls have theirs (result->n_tokens is 0 until then).  When it fails the
 * conversation is as it was. */
kk_status talk_ask(talk *t, const char *text, size_t len, kk_result *result, kk_err *err);
/* Whether there is a message of the user. */
bool talk_asked(const talk *t);
/* Answers the last message again, by another draw; there must be one. */
kk_status talk_retry(talk *t, kk_result *result, kk_err *err);
/* Takes back the last message of the user and all after it; false: there is none. */
bool talk_undo(talk *t);
void talk_clear(talk *t); /* no messages */
/* The tool whose result the next message is; NULL: it is the user's own. */
const char *talk_awaits(const talk *t);
bool talk_set_system(talk *t, const char *text); /* "": none; false without memory */

/* The conversation as a file, and back: messages, system, tools, thinking.  A failed load leaves
 * the conversation as it was. */
kk_status talk_save(const talk *t, const char *path, kk_err *err);
kk_status talk_load(talk *t, const char *path, kk_err *err);

#endif
