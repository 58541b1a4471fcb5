/* chatting.h - one run of `kakeya chat`, for the verb and its commands. */
#ifndef KAKEYA_CLI_CHATTING_H
#define KAKEYA_CLI_CHATTING_H

#include "cli/lines.h"
#include "cli/loader.h"
#include "cli/talk.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    kk_sampling sampling;
    option_words stops;
    const char *system, *tools, *prompt, *file, *resume;
    int32_t predict;
    bool think, no_shift, quiet, verbose;
} chat_args;

typedef struct {
    const chat_args *args;
    talk talk;
    lines *lines;
    char *attached;     /* what /file has read, for the next message; NULL: nothing */
    char saved_as[256]; /* the name this conversation has; "": none */
} chat;

/* Answers, and shows the answer.  False: the program should end with *code. */
bool chat_turn(chat *c, const char *text, int *code); /* a message of the user */
bool chat_retry(chat *c, int *code);                  /* the last one again */

/* Whether a message is a command: a slash, a word and nothing else before the first space. */
bool chat_is_command(const char *text);
/* Does it.  False: the program should end with *code. */
bool chat_command(chat *c, const char *text, int *code);
/* A lines_complete: user is the chat. */
char *chat_complete(void *user, const char *line, size_t n, int i);

/* Takes up a conversation that /save wrote.  False after saying why not. */
bool chat_load(chat *c, const char *name, int *code);

#endif
