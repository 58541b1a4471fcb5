/* short_head.c - see short_head.h. */
#include "propose/short_head.h"

/* Tokens that the share is over: texts change within a hundred, and of so many one token more or
 * less is not yet a reason. */
static const double TOKENS = 64;
/* A share m of tokens outside takes about 2 m of the tokens that a draft of three gains; a short
 * head saves a tenth of such a round where the vocabulary is large (262,144 ids). */
static const double LEAVE = 1.0 / 16;
/* Half of it: heads do not alternate over a text that lies between. */
static const double RETURN = 1.0 / 32;

/* The tokens of one call come in any order: their share moves the whole at once. */
void kk_short_head_saw(kk_short_head *h, int32_t n, int32_t outside) {
    const double weight = n < TOKENS ? n / TOKENS : 1;
    if (n < 1) return;
    h->outside += weight * ((double)outside / n - h->outside);
    h->left = h->outside > (h->left ? RETURN : LEAVE);
}
