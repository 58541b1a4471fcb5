/* turns.h - which turns of a conversation give way when the context is full. */
#ifndef KAKEYA_CLI_TURNS_H
#define KAKEYA_CLI_TURNS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Moves *first past the oldest turn from there on: a message of the user and all up to the next.
 * False: there is one turn only, which is the one to be answered.  The system's message is none of
 * them. */
bool turns_drop_oldest(const json_t *messages, size_t *first);
/* Tokens to be left free for an answer of at most `predict` (0 or less: until it ends). */
int32_t turns_reserve(int32_t ctx, int32_t predict);

#endif
