/* drawn.h - numbers drawn from a seed, and bytes damaged by them. */
#ifndef KK_SERVING_DRAWN_H
#define KK_SERVING_DRAWN_H

#include <stdint.h>

#include "serving/client.h"

/* The next 31 bits. */
uint64_t drawn(uint64_t *state);
/* Up to three bytes from `from` on are changed, taken away, or repeated at the end. */
void drawn_damage(uint64_t *state, growing *g, size_t from);
/* n bytes that are nothing. */
void drawn_noise(uint64_t *state, growing *g, size_t n);

#endif
