/* tie.h - near ties: choices that a device which is not exact might make otherwise. */
#ifndef KK_CORE_TIE_H
#define KK_CORE_TIE_H

#include <stdbool.h>
#include <stdint.h>

/* How far a logit may be off where sums were added in another order, as a share of the root mean
 * square of its row.  Derived for float32: with sums of n = 2^12 products in each of 2^7 steps, of
 * which each adds an error of sqrt(n) * 2^-24 of its own size, sqrt(2^7) * sqrt(2^12) * 2^-24 is
 * 4e-5; measured between devices it is 2e-6 to 7e-5.  This is an order above both, and what
 * `kakeya parity` holds two devices to. */
#define KK_LOGIT_TOLERANCE 1e-3

/* Whether the two largest of n logits lie so near that both may be wrong by that share and then
 * change places: no farther apart than twice `share` of the row's root mean square. */
bool kk_near_tie(const float *x, int32_t n, double share);

#endif
