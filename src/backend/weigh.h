/* weigh.h - integer weights of logits, which sample.h defines, and their sums.
 *
 *   weight(l) = floor(kk_exp((l - top) / temp) * 2^40), an integer in [0, 2^40]
 *
 * Sums of integers do not depend on their order, so that vector lanes, threads and GPUs all come
 * to the same.  There is one table of loops per instruction set; all give the same numbers. */
#ifndef KK_BACKEND_WEIGH_H
#define KK_BACKEND_WEIGH_H

#include <stdint.h>

enum {
    KK_WEIGHT_BITS = 40,
    KK_WEIGH_BLOCK =
        1024, /* logits of one call, at most: halves of weights are summed in 32 bits */
};

typedef struct {
    const char *name;
    /* The largest of n logits that are numbers; -inf when none is. */
    float (*top)(const float *logits, int32_t n);
    /* The sum of the weights of n <= KK_WEIGH_BLOCK logits, none over top. */
    uint64_t (*sum)(const float *logits, int32_t n, float top, float temp);
    /* Each of these weights. */
    void (*each)(const float *logits, int32_t n, float top, float temp, uint64_t *weights);
} kk_weigher;

/* By name ("avx512", "avx2", "plain"), or the best for NULL.  NULL: this processor has none so
 * named. */
const kk_weigher *kk_weigher_named(const char *name);

#endif
