/* twister.h - the Mersenne Twister MT19937, seeded and drawn from as Python's random.Random.
 *
 * Documents of an evaluation are named by a seed.  With this generator the same seed means the
 * same document here and in the Python programs that train and check models on them. */
#ifndef KK_EVAL_TWISTER_H
#define KK_EVAL_TWISTER_H

#include <stdint.h>

enum { KK_TWISTER_WORDS = 624 };

typedef struct {
    uint32_t word[KK_TWISTER_WORDS];
    int32_t next; /* the word to hand out next; KK_TWISTER_WORDS: all are used up */
} kk_twister;

void kk_twister_seed(kk_twister *t, uint64_t seed); /* Random(seed) */
uint32_t kk_twister_bits(kk_twister *t, int n);     /* getrandbits(n), 1 <= n <= 32 */
/* randint(low, high): both ends included, low <= high, fewer than 2^31 values. */
int32_t kk_twister_between(kk_twister *t, int32_t low, int32_t high);

#endif
