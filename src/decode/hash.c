/* hash.c - see hash.h.
 *
 * A row is a megabyte, so a byte-wise hash would cost milliseconds per token.  Four lanes each
 * take every fourth word of 8 bytes, multiply by an odd number (a bijection, so that no change
 * of one word is lost) and rotate, because a product carries changes only upwards: without the
 * rotation the flips of two sign bits would cancel. */
#include "decode/hash.h"

#include <string.h>

enum { LANES = 4 };

static uint64_t fold(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9fb21c651e98df25u;
    return h << 29 | h >> 35;
}

/* Every input bit reaches every output bit. */
static uint64_t spread(uint64_t h) {
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    return h ^ (h >> 32);
}

/* n words of 4 bytes. */
static uint64_t hash_words(uint64_t chain, const uint8_t *data, size_t n) {
    uint64_t lane[LANES], word[LANES];
    for (uint64_t i = 0; i < LANES; i++) lane[i] = spread(chain + i);
    const size_t step = 2 * LANES; /* of them in the four words */
    size_t at = 0;
    for (; at + step <= n; at += step) {
        memcpy(word, data + at * 4, sizeof word);
        for (int i = 0; i < LANES; i++) lane[i] = fold(lane[i], word[i]);
    }
    for (; at < n; at++) {
        uint32_t bits;
        memcpy(&bits, data + at * 4, sizeof bits);
        lane[at % LANES] = fold(lane[at % LANES], bits);
    }
    uint64_t h = fold(spread(chain), n);
    for (int i = 0; i < LANES; i++) h = fold(h, spread(lane[i]));
    return spread(h);
}

uint64_t kk_hash_row(uint64_t chain, const float *row, size_t n) {
    return hash_words(chain, (const uint8_t *)row, n);
}

uint64_t kk_hash_bytes(uint64_t chain, const void *data, size_t n) {
    const uint8_t *bytes = data;
    uint64_t rest = 0;
    const size_t whole = n / 4;
    if (n % 4) memcpy(&rest, bytes + whole * 4, n % 4);
    return spread(fold(hash_words(chain, bytes, whole), rest << 3 | n % 4));
}
