/* prompt.h - the tokens a verb starts from: -p, -f, standard input, or ids. */
#ifndef KAKEYA_CLI_PROMPT_H
#define KAKEYA_CLI_PROMPT_H

#include "cli/options.h"
#include "kakeya.h"

typedef struct {
    const char *text, *file, *tokens, *system;
    bool chat;
} prompt_args;

typedef struct {
    int32_t *ids;
    size_t n;
} prompt_tokens;

/* Checks that one source of a prompt was given before anything slow happens; false after saying
 * what is wrong. */
bool prompt_check(const verb *v, const prompt_args *a, int *code);
/* Reads and encodes it.  False after saying why not.  Release with prompt_free. */
bool prompt_read(const verb *v, const prompt_args *a, const kk_tokenizer *tok, prompt_tokens *out,
                 int *code);
void prompt_free(prompt_tokens *p);

/* All of a stream, NUL-terminated, released with free; NULL when it cannot be read. */
char *prompt_slurp(const char *path, size_t *len); /* path "-": standard input */

/* {"messages": [...], "enable_thinking": ..., "add_generation_prompt": true} of one user turn,
 * as text released with free; system may be NULL; NULL without memory. */
char *prompt_conversation(const char *user, size_t len, const char *system);

#endif
