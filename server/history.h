/* history.h - what a session's tokens were, kept apart from the session itself: their number, a
 * hash over them in order, and where turns ended.  It is made of what clients sent and what they
 * were given, never read back from the engine, so that the two can be compared. */
#ifndef KK_SERVER_HISTORY_H
#define KK_SERVER_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HISTORY_START 0x6b616b6579612e68u

/* The hash with n tokens more. */
uint64_t history_chain(uint64_t chain, const int32_t *tokens, size_t n);

typedef struct {
    int64_t len;
    uint64_t chain; /* HISTORY_START and the tokens */
    int32_t *turns; /* [n_turns] lengths at which generations ended, rising */
    int32_t n_turns, cap_turns;
} history;

void history_open(history *h);
void history_close(history *h);
void history_add(history *h, const int32_t *tokens, size_t n);
/* A generation ended here; false: there is no memory to remember it. */
bool history_turn(history *h);
/* Makes *to the first len tokens of a history whose tokens these are. */
bool history_fork(history *to, const history *from, const int32_t *tokens, int64_t len);

#endif
