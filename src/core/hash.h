/* hash.h - a 64-bit fingerprint of rows of logits, chained in the order they were chosen, and of
 * other bytes.
 *
 * Equal hashes stand for equal bits in tests and reports; it keeps out accidents, not attackers. */
#ifndef KK_CORE_HASH_H
#define KK_CORE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The chain before any row. */
#define KK_HASH_START 0x6b616b6579612e31u

/* The chain with one more row of n floats, taken bit by bit. */
uint64_t kk_hash_row(uint64_t chain, const float *row, size_t n);
/* The same in two steps, of which a device may take the first (kk_choose_args). */
uint64_t kk_hash_digest(const float *row, size_t n);
/* It sees every value anyway, so it can tell whether all are finite. */
uint64_t kk_hash_digest_of(const float *row, size_t n, bool *finite);
uint64_t kk_hash_add(uint64_t chain, uint64_t digest);
/* Whether all n values are finite. */
bool kk_hash_finite(const float *row, size_t n);
/* The chain with any n bytes more. */
uint64_t kk_hash_bytes(uint64_t chain, const void *data, size_t n);

#endif
