/* haystack.h - a long document that hides one code, and the question for it.
 *
 * Numbered padding lines that all say the same, one emphasised line with a code such as
 * ORCHID-4821 between blank lines, and at the end a question with an answer cue.  The draws are
 * those of Python's random.Random in a fixed order, so that a seed names the same documents
 * everywhere; tools/tiny/needle.py is the same thing in Python. */
#ifndef KK_EVAL_HAYSTACK_H
#define KK_EVAL_HAYSTACK_H

#include "eval/texts/twister.h"
#include "kakeya.h"

typedef struct {
    int32_t lines; /* of padding */
    int32_t index; /* padding lines before the code */
    char code[24];
} kk_haystack;

enum { KK_HAYSTACK_LEAST_LINES = 10, KK_HAYSTACK_MOST_LINES = 1000000 };

/* The least and the most padding lines of a rung of about n: 15 % on either side. */
void kk_haystack_rung(int32_t n, int32_t *low, int32_t *high);
/* The next document with low to high lines: lines, code and index are drawn, in this order. */
kk_haystack kk_haystack_draw(kk_twister *t, int32_t low, int32_t high);
/* Its text, NUL-terminated, released with kk_free. */
kk_status kk_haystack_text(const kk_haystack *h, char **text, size_t *len, kk_err *err);
/* How far into the document the code lies, from 0 to 1. */
double kk_haystack_depth(const kk_haystack *h);
/* Whether an answer names the code: as a word of its own, because ETA-1520 is no part of the
 * answer BETA-1520 and PINE-1234 none of PINE-12345. */
bool kk_haystack_found(const kk_haystack *h, const char *answer);

#endif
