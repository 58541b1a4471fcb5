/* hash.c - see hash.h.
 *
 * A row is a megabyte, so a byte-wise hash would cost milliseconds per token.  Rows of logits are
 * digested in chunks that a device's threads share (core/digest.h); other bytes, of which there
 * may be gigabytes, in four lanes that each take every fourth word of 8 bytes. */
#include "core/hash.h"

#include <string.h>

#include "core/digest.h"

enum { LANES = 4 };

static uint64_t fold(uint64_t h, uint64_t word) { return kk_digest_fold(h, word); }
static uint64_t spread(uint64_t h) { return kk_digest_spread(h); }

/* n words of 4 bytes. */
static uint64_t hash_words(uint64_t chain, const uint8_t *data, size_t n) {
    uint64_t lane[LANES], word[LANES];
    for (uint64_t i = 0; i < LANES; i++) lane[i] = spread(chain + i);
    const size_t step = 2 * LANES; /* words of 4 bytes in `word` */
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

uint64_t kk_hash_digest_of(const float *row, size_t n, bool *finite) {
    uint32_t word[KK_DIGEST_WORDS];
    uint64_t sum = 0, carry = 0;
    for (size_t at = 0; at < n; at += KK_DIGEST_WORDS) {
        const size_t left = n - at < KK_DIGEST_WORDS ? n - at : KK_DIGEST_WORDS;
        memcpy(word, row + at, left * sizeof *word);
        sum += kk_digest_chunk(at / KK_DIGEST_WORDS, word, (int)left, &carry);
    }
    *finite = !kk_digest_broken(carry);
    return kk_digest_end(sum, n);
}

uint64_t kk_hash_digest(const float *row, size_t n) {
    bool finite;
    return kk_hash_digest_of(row, n, &finite);
}

bool kk_hash_finite(const float *row, size_t n) {
    uint64_t carry = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, row + i, sizeof word);
        carry |= kk_digest_carry(word);
    }
    return !kk_digest_broken(carry);
}

uint64_t kk_hash_add(uint64_t chain, uint64_t digest) {
    return spread(fold(spread(chain), digest));
}

uint64_t kk_hash_row(uint64_t chain, const float *row, size_t n) {
    return kk_hash_add(chain, kk_hash_digest(row, n));
}

uint64_t kk_hash_bytes(uint64_t chain, const void *data, size_t n) {
    const uint8_t *bytes = data;
    uint64_t rest = 0;
    const size_t whole = n / 4;
    if (n % 4) memcpy(&rest, bytes + whole * 4, n % 4);
    return spread(fold(hash_words(chain, bytes, whole), rest << 3 | n % 4));
}
