/* history.c - see history.h. */
#include "server/history.h"

#include <stdlib.h>

uint64_t history_chain(uint64_t chain, const int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) {
        chain ^= (uint64_t)(uint32_t)tokens[i] + 0x9e3779b97f4a7c15u;
        chain *= 0xff51afd7ed558ccdu; /* the finaliser of MurmurHash3 */
        chain ^= chain >> 33;
        chain *= 0xc4ceb9fe1a85ec53u;
        chain ^= chain >> 29;
    }
    return chain;
}

void history_open(history *h) { *h = (history){.chain = HISTORY_START}; }

void history_close(history *h) {
    free(h->turns);
    history_open(h);
}

void history_add(history *h, const int32_t *tokens, size_t n) {
    h->chain = history_chain(h->chain, tokens, n);
    h->len += (int64_t)n;
}

bool history_turn(history *h) {
    if (h->n_turns > 0 && h->turns[h->n_turns - 1] == h->len) return true;
    if (!h->turns || h->n_turns == h->cap_turns) {
        const int32_t cap = h->cap_turns > 0 ? 2 * h->cap_turns : 8;
        int32_t *more = realloc(h->turns, (size_t)cap * sizeof *more);
        if (!more) return false;
        h->turns = more;
        h->cap_turns = cap;
    }
    h->turns[h->n_turns++] = (int32_t)h->len;
    return true;
}

bool history_fork(history *to, const history *from, const int32_t *tokens, int64_t len) {
    history_open(to);
    for (int32_t i = 0; i < from->n_turns && from->turns[i] <= len; i++) {
        to->len = from->turns[i];
        if (!history_turn(to)) return false;
    }
    to->len = 0;
    history_add(to, tokens, (size_t)len);
    return true;
}
