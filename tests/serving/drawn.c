/* drawn.c - see drawn.h. */
#include "serving/drawn.h"

#include <string.h>

uint64_t drawn(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

void drawn_damage(uint64_t *state, growing *g, size_t from) {
    for (uint64_t n = drawn(state) % 4; n > 0 && g->len > from + 1; n--) {
        const size_t at = from + drawn(state) % (g->len - from);
        const char byte = g->text[at];
        switch (drawn(state) % 3) {
        case 0: g->text[at] = (char)drawn(state); break;
        case 1:
            memmove(g->text + at, g->text + at + 1, g->len - at);
            g->len--;
            break;
        default: growing_add(g, &byte, 1);
        }
    }
}

void drawn_noise(uint64_t *state, growing *g, size_t n) {
    for (; n > 0; n--) {
        const char byte = (char)drawn(state);
        growing_add(g, &byte, 1);
    }
}
