/* weigh_body.h - the loops of weigh.h, compiled once per instruction set.
 *
 * Plain C that compilers turn into vector code.  A weight is made as two halves of 20 bits, since
 * few instruction sets convert floats to 64-bit integers: e * 2^20 is split into its whole part
 * and the rest, both exact, so that the halves together are floor(e * 2^40). */
#include "backend/weigh.h"
#include "core/mathf.h"

enum { LANES = 16, HALF_BITS = KK_WEIGHT_BITS / 2 };

typedef struct {
    uint32_t high, low;
} halves;

static inline halves weight(float logit, float top, float temp) {
    const float e = kk_exp((logit - top) / temp) * 0x1p20f;
    const int32_t high = (int32_t)e;
    const int32_t low = (int32_t)((e - (float)high) * 0x1p20f);
    return (halves){(uint32_t)high, (uint32_t)low};
}

static float top(const float *logits, int32_t n) {
    float lane[LANES], best = -INFINITY;
    int32_t i = 0;
    for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) /* false of a NaN */
            lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
    for (int j = 0; j < LANES; j++) best = lane[j] > best ? lane[j] : best;
    for (; i < n; i++) best = logits[i] > best ? logits[i] : best;
    return best;
}

static uint64_t sum(const float *logits, int32_t n, float most, float temp) {
    uint32_t high = 0, low = 0;
    for (int32_t i = 0; i < n; i++) {
        const halves w = weight(logits[i], most, temp);
        high += w.high;
        low += w.low;
    }
    return ((uint64_t)high << HALF_BITS) + low;
}

static void each(const float *logits, int32_t n, float most, float temp, uint64_t *weights) {
    for (int32_t i = 0; i < n; i++) {
        const halves w = weight(logits[i], most, temp);
        weights[i] = ((uint64_t)w.high << HALF_BITS) + w.low;
    }
}

const kk_weigher KK_WEIGHER = {KK_WEIGHER_NAME, top, sum, each};
