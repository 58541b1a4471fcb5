/* sampling_options.c - what is asked of a choice: checks and questions about options, and the draw
 * of a position.  Every device needs these, whoever then performs the arithmetic of sample.h. */
#include <math.h>

#include "backend/sample.h"

kk_status kk_sampling_check(const kk_sampling *how, kk_err *err) {
    const struct {
        const char *name;
        float value, least, most;
    } range[] = {
        {"temp", how->temp, 0, 1000},
        {"top_p", how->top_p, 0, 1},
        {"min_p", how->min_p, 0, 1},
        {"repeat_penalty", how->repeat_penalty, 0, 1000},
        {"presence_penalty", how->presence_penalty, -1000, 1000},
        {"frequency_penalty", how->frequency_penalty, -1000, 1000},
    };
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (!(range[i].value >= range[i].least && range[i].value <= range[i].most))
            return kk_fail(err, KK_EINVAL, "%s is %g: it lies between %g and %g", range[i].name,
                           (double)range[i].value, (double)range[i].least, (double)range[i].most);
    if (how->top_k < 0)
        return kk_fail(err, KK_EINVAL, "top_k is %d: 0 or more (0: all)", how->top_k);
    if (how->penalty_last_n < -1)
        return kk_fail(err, KK_EINVAL, "penalty_last_n is %d: -1 or more (-1: all)",
                       how->penalty_last_n);
    return KK_OK;
}

kk_status kk_bias_check(const kk_logit_bias *bias, size_t n, int32_t vocab, kk_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (bias[i].id < 0 || bias[i].id >= vocab)
            return kk_fail(err, KK_EINVAL, "bias for token %d: ids go from 0 to %d", bias[i].id,
                           vocab - 1);
        if (!(bias[i].bias < INFINITY))
            return kk_fail(err, KK_EINVAL, "bias of %g for token %d: a number, or -inf",
                           (double)bias[i].bias, bias[i].id);
    }
    return KK_OK;
}

bool kk_mask_allows_any(const uint32_t *mask, int32_t vocab) {
    for (int32_t id = 0; id < vocab; id++)
        if (kk_mask_allows(mask, id)) return true;
    return false;
}

bool kk_sampling_has_penalties(const kk_sampling *how) {
    const bool repeat = how->repeat_penalty > 0 && how->repeat_penalty != 1;
    return repeat || how->presence_penalty != 0 || how->frequency_penalty != 0;
}

int64_t kk_sampling_window(const kk_sampling *how, int64_t n) {
    const int64_t wide = how->penalty_last_n ? how->penalty_last_n : 64;
    return wide < 0 || wide > n ? n : wide;
}

bool kk_sampling_is_greedy(const kk_sampling *how) {
    return how->temp <= 0 && !kk_sampling_has_penalties(how);
}

bool kk_choose_is_greedy(const kk_choose_row *row) {
    return kk_sampling_is_greedy(&row->how) && !row->n_bias && !row->mask && !row->logprobs;
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The seed is mixed first, so that neighbouring seeds do not give shifted streams. */
uint64_t kk_sample_bits(uint64_t seed, uint64_t position) {
    const uint64_t step = 0x9e3779b97f4a7c15u;
    return mix(mix(seed + step) + (position + 1) * step);
}
