/* sample.h - the choice of a token from a row of logits.
 *
 * A choice is a function of the row's bits, the options, the tokens before it and its position,
 * and of nothing else: no state is carried from one token to the next, so that rows may be
 * chosen in any grouping. */
#ifndef KK_DECODE_SAMPLE_H
#define KK_DECODE_SAMPLE_H

#include "core/alloc.h"

kk_status kk_sampling_check(const kk_sampling *how, kk_err *err);
/* Whether the choice is the largest logit as it is, and nothing else. */
bool kk_sampling_is_greedy(const kk_sampling *how);

/* Scratch for rows of one vocabulary; carries nothing between calls. */
typedef struct kk_sampler kk_sampler;
kk_status kk_sampler_new(kk_sampler **out, kk_mem *mem, int32_t vocab, kk_err *err);
void kk_sampler_free(kk_sampler *s); /* NULL is fine */

/* The token that follows history[0..n), where logits [vocab] are those of its last token; its
 * position is n.  how has passed kk_sampling_check; history ids are within the vocabulary. */
int32_t kk_sample(kk_sampler *s, const kk_sampling *how, const float *logits,
                  const int32_t *history, int64_t n);

/* The draw for a position: uniform in [0, 1). */
double kk_sample_draw(uint64_t seed, uint64_t position);

#endif
