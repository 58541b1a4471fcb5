/* prompt.h - the tokens a verb starts from: -p, -f, standard input, or ids. */
#ifndef KAKEYA_CLI_PROMPT_H
#define KAKEYA_CLI_PROMPT_H

#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

#include "cli/options.h"
#include "kakeya.h"

typedef struct {
    const char *text, *file, *tokens, *system, *tools;
    bool chat, think;
    bool goes_on; /* it follows a text that is there already: no <bos> */
} prompt_args;

typedef struct {
    int32_t *ids;
    size_t n;
} prompt_tokens;

/* Checks that one source of a prompt was given before anything slow happens; false after saying
 * what is wrong. */
bool prompt_check(const verb *v, const prompt_args *a, int *code);
/* Reads and encodes it for a session; a text that cannot fit its context is refused unencoded.
 * False after saying why not.  Release with prompt_free. */
bool prompt_read(const verb *v, const prompt_args *a, const kk_tokenizer *tok, const kk_session *s,
                 prompt_tokens *out, int *code);
void prompt_free(prompt_tokens *p);

enum { PROMPT_LONGEST = 1 << 30 }; /* bytes of a file; a stream may have no end */

/* All of a stream, NUL-terminated, released with free; NULL when it cannot be read: errno. */
char *prompt_slurp(const char *path, size_t *len); /* path "-": standard input */
/* The next line of a stream with its end, as getline(3) has it, but of PROMPT_LONGEST bytes at
 * most; -1: there is none, or, where errno is not 0, it cannot be read. */
ssize_t prompt_line(char **line, size_t *cap, FILE *f);

/* {"messages": [...], "enable_thinking": ..., "add_generation_prompt": true} of one user turn,
 * as text released with free; system and tools (a list of declarations) may be NULL; NULL without
 * memory. */
char *prompt_conversation(const char *user, size_t len, const char *system, json_t *tools,
                          bool think);
/* JSON of a file; NULL with the reason in err. */
json_t *prompt_json(const char *path, kk_err *err);
/* Tools from a file: a JSON list of declarations as the OpenAI API has them, or an object with
 * such a list as "tools".  NULL with the reason in err. */
json_t *prompt_tools(const char *path, kk_err *err);
extern const char prompt_tools_advice[]; /* what such a file looks like */

/* Rows of an option table, for verbs whose struct T has the named prompt_args. */
#define PROMPT_OPTIONS(T, m)                                                                       \
    OPTION_STRING("p", "prompt", "TEXT", offsetof(T, m.text), "the text to continue"),             \
        OPTION_STRING("f", "file", "FILE", offsetof(T, m.file),                                    \
                      "read it from a file; - is standard input"),                                 \
        OPTION_STRING(NULL, "tokens", "IDS", offsetof(T, m.tokens),                                \
                      "token ids as they are, as in 2,17,5; for models without a tokenizer"),      \
        OPTION_FLAG(NULL, "chat", offsetof(T, m.chat),                                             \
                    "the prompt is a user's turn, to be answered")

/* The same, for verbs that can begin a conversation. */
#define PROMPT_CHAT_OPTIONS(T, m)                                                                  \
    OPTION_STRING(NULL, "system", "TEXT", offsetof(T, m.system),                                   \
                  "with --chat: the system's instructions"),                                       \
        OPTION_STRING(NULL, "tools", "FILE", offsetof(T, m.tools),                                 \
                      "with --chat: tools the model may call, a JSON list as in the OpenAI API"),  \
        OPTION_FLAG(NULL, "think", offsetof(T, m.think),                                           \
                    "with --chat: let the model think before it answers")

#endif
