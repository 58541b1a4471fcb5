/* rank.h - the search for a place in the rank of a row's values, for kernels and for tests on the
 * host; sample.h says what rank, weights and filters are.
 *
 * A candidate is a 64-bit number, its value's key above and the complement of its id below, so that
 * the larger of two comes first in rank.  A cut is the last candidate that stays, and is found by
 * counting, or weighing, candidates by bins of an interval of keys, and going on within the bin in
 * which the sum passes what is needed: first by bins of equal width of m - v, where both like a
 * model's and flat distributions spread out, then by bins of equal numbers of keys.  It ends when
 * the bin's candidates are few enough to be compared with one another, or all have one key: then
 * ids decide.  Four steps suffice for 32-bit keys. */
#ifndef KK_CUDA_RANK_H
#define KK_CUDA_RANK_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KK_RANK_FN static __device__ __forceinline__
#define KK_RANK_EXP kk_dexp /* of arith.cuh, the same sequence */
#else
#include "core/mathf.h"
#define KK_RANK_FN static inline
#define KK_RANK_EXP kk_exp
#endif

enum {
    KK_RANK_BINS = 2048,
    KK_RANK_LIST = 256, /* candidates that are compared with one another */
    KK_RANK_STEPS = 4,
};

/* Keys: 0 of what is no candidate, 1 of NaN, then numbers in their order. */
#define KK_RANK_NAN 1u
#define KK_RANK_MINUS_INF 0x007fffffu
#define KK_RANK_INF 0xff800000u

KK_RANK_FN uint32_t kk_rank_bits(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

KK_RANK_FN uint32_t kk_rank_key(float v) {
    if (v != v) return KK_RANK_NAN;
    const uint32_t u = kk_rank_bits(v + 0.0f); /* -0 is 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

KK_RANK_FN float kk_rank_value(uint32_t key) {
    const uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

KK_RANK_FN int kk_rank_finite(uint32_t key) { return key > KK_RANK_MINUS_INF && key < KK_RANK_INF; }

KK_RANK_FN uint64_t kk_rank_candidate(uint32_t key, int32_t id) {
    return (uint64_t)key << 32 | (uint32_t)~id;
}
KK_RANK_FN int32_t kk_rank_id(uint64_t candidate) { return (int32_t) ~(uint32_t)candidate; }

/* floor(kk_exp((v - m) / temp) * 2^40), by halves as in weigh_body.h. */
typedef struct {
    uint32_t high, low;
} kk_rank_halves;

KK_RANK_FN kk_rank_halves kk_rank_weigh(float v, float m, float temp) {
    const float e = KK_RANK_EXP((v - m) / temp) * 1048576.0f;
    const int32_t high = (int32_t)e;
    kk_rank_halves w;
    w.high = (uint32_t)high;
    w.low = (uint32_t)(int32_t)((e - (float)high) * 1048576.0f);
    return w;
}

KK_RANK_FN uint64_t kk_rank_weight(float v, float m, float temp) {
    const kk_rank_halves w = kk_rank_weigh(v, m, temp);
    return ((uint64_t)w.high << 20) + w.low;
}

/* ---- intervals ------------------------------------------------------------------------------ */

typedef struct {
    uint32_t low, high; /* keys, both included */
    int32_t shift;      /* bins of 2^shift keys, the highest first; -1: of equal width of m - v */
    float m;
} kk_rank_interval;

/* The last bin takes all that is further off than weights reach. */
KK_RANK_FN int32_t kk_rank_width_bin(float v, float m) {
    const float x = (m - v) * 73.0f;
    return x < (float)(KK_RANK_BINS - 1) ? (int32_t)x : KK_RANK_BINS - 1;
}

/* All finite keys up to that of m. */
KK_RANK_FN kk_rank_interval kk_rank_all(float m) {
    kk_rank_interval in;
    in.low = KK_RANK_MINUS_INF + 1;
    in.high = kk_rank_key(m);
    in.shift = -1;
    in.m = m;
    return in;
}

KK_RANK_FN int32_t kk_rank_bin(const kk_rank_interval *in, uint32_t key) {
    if (in->shift < 0) return kk_rank_width_bin(kk_rank_value(key), in->m);
    return (int32_t)((in->high - key) >> in->shift);
}

/* The lowest key of the interval whose bin is at most `bin`; bins rise as keys fall. */
KK_RANK_FN uint32_t kk_rank_lowest(const kk_rank_interval *in, int32_t bin) {
    uint32_t low = in->low, high = in->high; /* high is such a key */
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (kk_rank_bin(in, mid) <= bin)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* The keys of one bin, which is not empty. */
KK_RANK_FN kk_rank_interval kk_rank_within(const kk_rank_interval *in, int32_t bin) {
    kk_rank_interval to = *in;
    if (in->shift < 0) {
        to.low = kk_rank_lowest(in, bin);
        if (bin > 0) to.high = kk_rank_lowest(in, bin - 1) - 1;
    } else {
        to.high = in->high - ((uint32_t)bin << in->shift);
        const uint32_t wide = (1u << in->shift) - 1;
        to.low = to.high - in->low > wide ? to.high - wide : in->low;
    }
    to.shift = 0;
    while ((to.high - to.low) >> to.shift >= KK_RANK_BINS) to.shift++;
    return to;
}

/* How many of equal candidates, which weigh w each, a prefix takes to come to `need`. */
KK_RANK_FN uint64_t kk_rank_ties(uint64_t need, uint64_t w) { return (need + w - 1) / w; }

#endif
