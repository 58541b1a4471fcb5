/* short_head.c - see short_head.h. */
#include "propose/short_head.h"

/* Tokens that the share is over: texts change within a hundred, and of so many one token more or
 * less is not yet a reason. */
static const double TOKENS = 64;
/* Where three of four tokens are right, a share m outside takes 1.1 m of the tokens of a round that
 * drafts three; and reading an eighth of the head saves about a fourteenth of its time where the
 * vocabulary is large (262,144 ids). */
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
