/* subset.c - a draw without repetition. */
#include "eval/texts/subset.h"

#include "core/alloc.h"
#include "core/error.h"
#include "eval/texts/twister.h"

/* The first n of a shuffled list of numbers. */
static void shuffle(size_t *order, size_t total, size_t n, uint64_t seed) {
    kk_twister t;
    kk_twister_seed(&t, seed);
    for (size_t i = 0; i < total; i++) order[i] = i;
    for (size_t i = 0; i < n; i++) {
        const size_t j = (size_t)kk_twister_between(&t, (int32_t)i, (int32_t)total - 1);
        const size_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

kk_status kk_subset_draw(bool *out, size_t total, const kk_subset *subset, kk_err *err) {
    if (subset->n < 0 || total > INT32_MAX)
        return kk_fail(err, KK_EINVAL, "%d drawn of %zu", subset->n, total);
    const bool all = subset->n == 0 || (size_t)subset->n >= total;
    for (size_t i = 0; i < total; i++) out[i] = all;
    if (all) return KK_OK;
    size_t *order = kk_calloc(total, sizeof *order);
    if (!order) return kk_fail(err, KK_ENOMEM, "no memory for a draw of %zu", total);
    shuffle(order, total, (size_t)subset->n, subset->seed);
    for (size_t i = 0; i < (size_t)subset->n; i++) out[order[i]] = true;
    kk_free(order);
    return KK_OK;
}
