/* stops.h - texts that end an answer, looked for byte by byte.
 *
 * Bytes that may still turn out to be the start of a stop text are held back, so that what was
 * let go never has to be taken back, wherever the stream was cut. */
#ifndef KK_FORMAT_STOPS_H
#define KK_FORMAT_STOPS_H

#include "core/error.h"

typedef struct {
    char **texts;
    size_t *lens;
    size_t n;
    char *held; /* always the start of one of the texts */
    size_t n_held;
    bool found;
} kk_stops;

/* Copies the texts; an empty one is refused. */
kk_status kk_stops_init(kk_stops *s, const char *const *texts, size_t n, kk_err *err);
void kk_stops_release(kk_stops *s);
/* Takes one byte.  Returns how many bytes at s->held are not part of a stop text and may go on;
 * the caller copies them and then calls kk_stops_drop.  When a stop text is complete, s->found is
 * set and what is held beyond those bytes is the stop text. */
size_t kk_stops_push(kk_stops *s, char c);
void kk_stops_drop(kk_stops *s, size_t n);

#endif
