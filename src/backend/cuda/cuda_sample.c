/* cuda_sample.c - what rows ask of a sampled choice, laid out in the control block.
 *
 * The options come first, at a place that depends on the forward alone, so that rounds that differ
 * in their history, their bias or their draw are one graph.  Rows of one session share what they
 * have in common. */
#include <string.h>

#include "backend/cuda/cuda_device.h"
#include "backend/sample.h"

/* Merges two runs next to one another; of equal ids those of the first come first. */
static void merge(kk_cu_bias *to, const kk_cu_bias *from, size_t n_first, size_t n) {
    size_t a = 0, b = n_first;
    for (size_t i = 0; i < n; i++)
        to[i] = b == n || (a < n_first && from[a].id <= from[b].id) ? from[a++] : from[b++];
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* By id; equal ids stay in their order, which the sum of their biases has.  space: [n].  Returns
 * where the sorted list is, of the two. */
static kk_cu_bias *sort_by_id(kk_cu_bias *list, kk_cu_bias *space, size_t n) {
    size_t sorted = 1;
    while (sorted < n && list[sorted - 1].id <= list[sorted].id) sorted++;
    for (size_t run = sorted < n ? 1 : n; run < n; run *= 2) {
        for (size_t at = 0; at < n; at += 2 * run)
            merge(space + at, list + at, least(run, n - at), least(2 * run, n - at));
        kk_cu_bias *was = list;
        list = space;
        space = was;
    }
    return list;
}

static kk_status too_much(const kk_choose_args *a, kk_err *err) {
    return kk_fail(err, KK_EINVAL, "histories, biases and masks of %d rows pass %d bytes",
                   a->n_rows, KK_CUDA_CONTROL);
}

/* The index of an earlier row that has the same history, bias or mask; r: none has. */
static int32_t same_history(const kk_choose_args *a, int32_t r, const int64_t *from) {
    for (int32_t i = 0; i < r; i++)
        if (a->row[i].history == a->row[r].history && a->row[i].n_history == a->row[r].n_history &&
            from[i] <= from[r])
            return i;
    return r;
}
static int32_t same_bias(const kk_choose_args *a, int32_t r) {
    int32_t i = 0;
    while (i < r && (a->row[i].bias != a->row[r].bias || a->row[i].n_bias != a->row[r].n_bias)) i++;
    return i;
}
static int32_t same_mask(const kk_choose_args *a, int32_t r) {
    int32_t i = 0;
    while (i < r && a->row[i].mask != a->row[r].mask) i++;
    return i;
}

/* The part of the penalties' window that the host knows; from[r]: where it starts in the
 * history. */
static kk_status put_window(kk_dev *dev, const kk_choose_args *a, int32_t r, kk_cu_sample_row *all,
                            int64_t *from, kk_err *err) {
    const kk_choose_row *w = &a->row[r];
    kk_cu_sample_row *to = &all[r];
    const int64_t n = kk_sampling_window(&w->how, w->n_history + w->n_pending);
    const int64_t pending = n < w->n_pending ? n : w->n_pending, known = n - pending;
    if (pending > 0 && !a->pending)
        return kk_fail(err, KK_EINVAL, "row %d has pending tokens, and the choice has none", r);
    to->penalises = 1;
    to->n_pending = (int32_t)pending;
    to->pending = w->pending + w->n_pending - (int32_t)pending;
    to->n_known = (int32_t)known;
    from[r] = w->n_history - known;
    if (known == 0) return KK_OK;
    const int32_t with = same_history(a, r, from);
    if (with < r && all[with].known) {
        to->known = all[with].known + (uint32_t)(from[r] - from[with]) * 4;
        return KK_OK;
    }
    size_t off;
    void *at = kk_cuda_reserve(dev, (size_t)known * 4, &off);
    if (!at) return too_much(a, err);
    memcpy(at, w->history + from[r], (size_t)known * 4);
    to->known = (uint32_t)off;
    return KK_OK;
}

static kk_status put_bias(kk_dev *dev, const kk_choose_args *a, int32_t r, kk_cu_sample_row *all,
                          kk_err *err) {
    const kk_choose_row *w = &a->row[r];
    const int32_t with = same_bias(a, r);
    size_t off;
    all[r].n_bias = (int32_t)w->n_bias;
    if (with < r) {
        all[r].bias = all[with].bias;
        return KK_OK;
    }
    const size_t n = w->n_bias;
    kk_cu_bias *at = n > KK_CUDA_CONTROL / sizeof *at / 2
                         ? NULL
                         : kk_cuda_reserve(dev, 2 * n * sizeof *at, &off);
    if (!at) return too_much(a, err);
    for (size_t i = 0; i < n; i++) at[i] = (kk_cu_bias){w->bias[i].id, w->bias[i].bias};
    const kk_cu_bias *list = sort_by_id(at, at + n, n);
    all[r].bias = (uint32_t)(off + (size_t)(list - at) * sizeof *at);
    return KK_OK;
}

static kk_status put_mask(kk_dev *dev, const kk_choose_args *a, int32_t r, kk_cu_sample_row *all,
                          kk_err *err) {
    const size_t bytes = ((size_t)a->dim + 31) / 32 * 4;
    const int32_t with = same_mask(a, r);
    size_t off;
    if (with < r) {
        all[r].mask = all[with].mask;
        return KK_OK;
    }
    void *at = kk_cuda_reserve(dev, bytes, &off);
    if (!at) return too_much(a, err);
    memcpy(at, a->row[r].mask, bytes);
    all[r].mask = (uint32_t)off;
    return KK_OK;
}

static kk_cu_sample_row options_of(const kk_choose_row *w) {
    const kk_sampling *how = &w->how;
    const uint64_t position = (uint64_t)(w->n_history + w->n_pending);
    return (kk_cu_sample_row){.cuts_p = how->top_p > 0 && how->top_p < 1,
                              .top_p = how->top_p < 1 ? (uint64_t)(how->top_p * 0x1p64f) : 0,
                              .min_weight = (uint64_t)(how->min_p * 0x1p40f),
                              .bits = kk_sample_bits(how->seed, position),
                              .temp = how->temp,
                              .repeat = how->repeat_penalty > 0 ? how->repeat_penalty : 1,
                              .frequency = how->frequency_penalty,
                              .presence = how->presence_penalty,
                              .top_k = how->top_k,
                              .logprobs = w->logprobs,
                              .n_best = w->n_best};
}

kk_status kk_cuda_put_rows(kk_dev *dev, const kk_choose_args *a, int32_t slot, size_t *off,
                           kk_err *err) {
    int64_t from[KK_PICK_ROWS] = {0};
    uint8_t *at =
        kk_cuda_reserve(dev, KK_CUDA_ROWS_AT + (size_t)a->n_rows * sizeof(kk_cu_sample_row), off);
    if (!at) return too_much(a, err);
    memcpy(at, &slot, sizeof slot);
    kk_cu_sample_row *all = (kk_cu_sample_row *)(void *)(at + KK_CUDA_ROWS_AT);
    for (int32_t r = 0; r < a->n_rows; r++) {
        const kk_choose_row *w = &a->row[r];
        all[r] = options_of(w);
        if (kk_sampling_has_penalties(&w->how)) KK_TRY(put_window(dev, a, r, all, from, err));
        if (w->n_bias) KK_TRY(put_bias(dev, a, r, all, err));
        if (w->mask) KK_TRY(put_mask(dev, a, r, all, err));
    }
    return KK_OK;
}

bool kk_cuda_is_sampled(const kk_choose_args *a) {
    for (int32_t r = 0; a->row && r < a->n_rows; r++)
        if (!kk_choose_is_greedy(&a->row[r])) return true;
    return false;
}
