/* digest.h - 64 bits that stand for the bits of a row of logits, in a form that any number of
 * threads can share out.
 *
 * A row is cut into chunks of 16 words.  A chunk is folded word by word, from a start that its
 * number gives; what chunks come to is spread over all bits and added up.  A fold is a bijection
 * of its word, so no change of one word is lost; a sum does not care who adds first, so a CPU, a
 * GPU and any number of their threads give the same value for the same bits.  It keeps out
 * accidents, not attackers.  CUDA's kernels read this file too. */
#ifndef KK_CORE_DIGEST_H
#define KK_CORE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KK_DIGEST_FN static inline __host__ __device__
#else
#define KK_DIGEST_FN static inline
#endif

enum { KK_DIGEST_WORDS = 16 }; /* words of 4 bytes in a chunk */

/* A product carries changes only upwards: without the rotation two flipped sign bits would
 * cancel. */
KK_DIGEST_FN uint64_t kk_digest_fold(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9fb21c651e98df25u;
    return h << 29 | h >> 35;
}

/* Every input bit reaches every output bit. */
KK_DIGEST_FN uint64_t kk_digest_spread(uint64_t h) {
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    return h ^ (h >> 32);
}

/* A float that is not finite has all bits of its exponent set, so that one more carries into the
 * sign's place: *carry gathers that of two words at a time. */
KK_DIGEST_FN uint64_t kk_digest_carry(uint64_t words) {
    return (words & 0x7f8000007f800000u) + 0x0080000000800000u;
}
KK_DIGEST_FN int kk_digest_broken(uint64_t carry) { return (carry & 0x8000000080000000u) != 0; }

/* What chunk `index`, of n words, adds to the sum; *carry says whether all of them are finite. */
KK_DIGEST_FN uint64_t kk_digest_chunk(uint64_t index, const uint32_t *word, int n,
                                      uint64_t *carry) {
    uint64_t h = (index + 1) * 0x9e3779b97f4a7c15u, seen = *carry;
    int i = 0;
    for (; i + 1 < n; i += 2) {
        const uint64_t two = word[i] | (uint64_t)word[i + 1] << 32;
        h = kk_digest_fold(h, two);
        seen |= kk_digest_carry(two);
    }
    if (i < n) {
        h = kk_digest_fold(h, word[i]);
        seen |= kk_digest_carry(word[i]);
    }
    *carry = seen;
    return kk_digest_spread(h);
}

/* The digest of a row of n words whose chunks come to this sum. */
KK_DIGEST_FN uint64_t kk_digest_end(uint64_t sum, uint64_t n) {
    return kk_digest_spread(kk_digest_fold(sum, n));
}

#endif
