/* sample.h - the choice of a token from a row of logits.
 *
 * A choice is a function of the row's bits, the options, the tokens before it and its position,
 * and of nothing else: no state is carried from one token to the next, so that rows may be
 * chosen in any grouping.
 *
 * What follows is the whole arithmetic, for a CPU, a GPU or a test alike: whoever performs it
 * chooses the same token and finds the same log-probabilities to the bit, with any number of
 * threads.  All floats are float32, rounded to nearest even, no operation fused with another;
 * kk_exp and kk_log are the sequences of core/mathf.h.  Everything that is summed is an integer,
 * so that no sum has an order.  vocab is at most 2^23, so that no sum leaves 64 bits.
 *
 * Rank.  Ids are ranked by value, larger first, equal values (-0 and 0 are equal) by id, smaller
 * first.  NaN comes after every number.
 *
 * 1. Value.  v[i] is logits[i], changed in this order:
 *    bias       for the entries of the list in their order: v[id] = v[id] + bias.
 *    penalties  for each id that occurs c > 0 times among the last penalty_last_n tokens of the
 *               history: v = v > 0 ? v / repeat : v * repeat; v = v - float(c) * frequency, the
 *               product rounded; v = v - presence.  repeat is 1 where the option is 0.
 *    mask       an id that the mask does not allow is no candidate: its v is -inf.
 * 2. Greedy.  The first candidate in rank is chosen when temp is 0, or when its value m is NaN or
 *    infinite.
 * 3. Top-k.  The top_k candidates that rank first stay; 0: all.
 * 4. Weights.  w[i] = floor(kk_exp(v[i] - m) * 2^40) as a 64-bit integer; 0 for NaN.  The first in
 *    rank has 2^40.  Candidates with v < m - 27.7 have 0.
 * 5. Top-p, when 0 < top_p < 1.  W is the sum of w over those that stayed, P = top_p * 2^64 rounded
 *    down to an integer, need = max(1, ceil(W * P / 2^64)), the product taken in 128 bits.  A
 *    candidate stays when the sum of w over the candidates that rank before it is under need.
 * 6. Min-p, when min_p > 0.  A candidate stays when w >= floor(min_p * 2^40).
 * 7. Temperature.  t[i] = floor(kk_exp((v[i] - m) / temp) * 2^40) of those that stayed, T their
 *    sum.  With temp = 1, t is w.
 * 8. Draw.  r = floor(u * T / 2^64), the product taken in 128 bits, u the 64 bits of
 *    kk_sample_bits(seed, n) at the position n of the token.  The token is the smallest id that
 *    stayed for which the sum of t over all that stayed with ids up to and including it exceeds r.
 *
 * Filters thus look at the model's own distribution, and temperature reweighs what they left: the
 * order of llama.cpp.
 *
 * Log-probabilities are those of the model: of the raw logits, before step 1, at temperature 1.
 * m is the largest logit that is a number, Z the sum of floor(kk_exp(logits[i] - m) * 2^40), and
 * logprob[i] = (logits[i] - m) - kk_log(float(Z) * 2^-40), with Z rounded to the nearest float.
 * They are NaN when m is infinite.  The best N are the first N in rank by raw logits.
 *
 * Error.  An integer weight is at most 2^-40 below its float and kk_exp within 2e-7 of the
 * exponential, relatively: the distribution that is drawn from is within 5e-7 + vocab * 2^-40 of
 * the softmax in total variation (262,144 ids: 8e-7), and a logprob within 3e-6. */
#ifndef KK_BACKEND_SAMPLE_H
#define KK_BACKEND_SAMPLE_H

#include "backend/backend.h"

enum { KK_SAMPLE_VOCAB = 1 << 23 };

kk_status kk_sampling_check(const kk_sampling *how, kk_err *err);
/* Whether the choice is the largest logit, where neither bias nor mask say otherwise. */
bool kk_sampling_is_greedy(const kk_sampling *how);
/* Whether nothing but the largest logit of a row is wanted. */
bool kk_choose_is_greedy(const kk_choose_row *row);
/* Ids within the vocabulary, biases that are numbers and not +inf; a mask that allows some id. */
kk_status kk_bias_check(const kk_logit_bias *bias, size_t n, int32_t vocab, kk_err *err);
static inline bool kk_mask_allows(const uint32_t *mask, int32_t id) {
    return !mask || (mask[id / 32] >> (id % 32) & 1);
}
bool kk_mask_allows_any(const uint32_t *mask, int32_t vocab);

/* Scratch for rows of one vocabulary; carries nothing between calls. */
typedef struct kk_sampler kk_sampler;
kk_status kk_sampler_new(kk_sampler **out, kk_mem *mem, int32_t vocab, kk_err *err);
void kk_sampler_free(kk_sampler *s); /* NULL is fine */

/* What a token is chosen from.  Ids of history and bias lie within the vocabulary. */
typedef struct {
    const float *logits;    /* [vocab], of the last token of history */
    const int32_t *history; /* [n - n_pending]; the token's position is n */
    int64_t n;
    const int32_t *pending; /* [n_pending]: the rest of the history, where it lies elsewhere */
    int64_t n_pending;
    const kk_logit_bias *bias; /* [n_bias] */
    size_t n_bias;
    const uint32_t *mask; /* [ceil(vocab / 32)]: bit id % 32 of word id / 32 allows id; NULL: all */
} kk_sample_row;

/* how has passed kk_sampling_check.  -1: the mask allows none. */
int32_t kk_sample(kk_sampler *s, const kk_sampling *how, const kk_sample_row *row);

/* The log-probability of id and the best n <= KK_MAX_LOGPROBS of a row of raw logits. */
void kk_sample_logprobs(kk_sampler *s, const float *logits, int32_t id, int32_t n,
                        kk_logprobs *out);

/* Whether the penalties look at the history at all; and over how many of n tokens. */
bool kk_sampling_has_penalties(const kk_sampling *how);
int64_t kk_sampling_window(const kk_sampling *how, int64_t n);

/* The draw for a position: 64 bits.  splitmix64's finaliser over (seed, position). */
uint64_t kk_sample_bits(uint64_t seed, uint64_t position);

#endif
