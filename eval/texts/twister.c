/* twister.c - MT19937: 624 words, each new one mixed from three old ones, tempered on the way
 * out.
 *
 * The constants are those of Matsumoto and Nishimura's paper (1998) and of their later seeding
 * by a list of words, which Python uses for integers of any size. */
#include "eval/texts/twister.h"

#include <assert.h>

enum { WORDS = KK_TWISTER_WORDS, AHEAD = 397 };

static void seed_word(kk_twister *t, uint32_t seed) {
    t->word[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++)
        t->word[i] = 1812433253u * (t->word[i - 1] ^ (t->word[i - 1] >> 30)) + i;
}

/* What the word before i brings to word i. */
static uint32_t carried(const kk_twister *t, int i, uint32_t factor) {
    const uint32_t before = t->word[i - 1];
    return (before ^ (before >> 30)) * factor;
}

/* The next index to stir; the first word takes over from the last. */
static int step(kk_twister *t, int i) {
    if (i + 1 < WORDS) return i + 1;
    t->word[0] = t->word[WORDS - 1];
    return 1;
}

void kk_twister_seed(kk_twister *t, uint64_t seed) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t n_key = key[1] ? 2 : 1;
    int i = 1;
    seed_word(t, 19650218u);
    for (uint32_t k = 0; k < WORDS; k++) {
        const uint32_t j = k % n_key;
        t->word[i] = (t->word[i] ^ carried(t, i, 1664525u)) + key[j] + j;
        i = step(t, i);
    }
    for (int k = 1; k < WORDS; k++) {
        t->word[i] = (t->word[i] ^ carried(t, i, 1566083941u)) - (uint32_t)i;
        i = step(t, i);
    }
    t->word[0] = 0x80000000u; /* so that the state is never all zero */
    t->next = WORDS;
}

static void refill(kk_twister *t) {
    for (int i = 0; i < WORDS; i++) {
        const uint32_t top = t->word[i] & 0x80000000u;
        const uint32_t y = top | (t->word[(i + 1) % WORDS] & 0x7fffffffu);
        t->word[i] = t->word[(i + AHEAD) % WORDS] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    t->next = 0;
}

uint32_t kk_twister_bits(kk_twister *t, int n) {
    assert(n >= 1 && n <= 32);
    if (t->next == WORDS) refill(t);
    uint32_t y = t->word[t->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    y ^= y >> 18;
    return y >> (32 - n);
}

/* Draws as many bits as the count of values has, until what comes is a value. */
int32_t kk_twister_between(kk_twister *t, int32_t low, int32_t high) {
    const int64_t values = (int64_t)high - low + 1;
    assert(values >= 1 && values <= INT32_MAX);
    int bits = 0;
    while (values >> bits) bits++;
    int64_t drawn;
    do drawn = kk_twister_bits(t, bits);
    while (drawn >= values);
    return (int32_t)(low + drawn);
}
