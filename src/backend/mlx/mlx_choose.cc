/* mlx_choose.cc - choices of tokens: once a round is computed its logits lie in memory that the
 * host sees, and are looked at there. */
#include "backend/mlx/mlx_device.h"

extern "C" {
#include "core/hash.h"
#include "core/tie.h"
}

/* The largest of x[0..n), the lowest of equals, never `banned`; NaN comes after all numbers. */
static int32_t largest_of(const float *x, int32_t n, int32_t banned) {
    int32_t best = banned == 0 && n > 1 ? 1 : 0;
    for (int32_t i = best + 1; i < n; i++)
        if (i != banned && (x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i])))) best = i;
    return best;
}

/* Logits of a forward, once it is computed. */
static kk_status logits_of(kk_dev *dev, const kk_buf *b, size_t n, std::vector<float> &out,
                           kk_err *err) {
    KK_TRY(kk_mlx_flush(dev, err));
    if (n * 4 > b->bytes)
        return kk_fail(err, KK_EINVAL, "%zu logits of a buffer of %zu bytes", n, b->bytes);
    out.resize(n);
    kk_mlx_copy_out(b, 0, out.data(), n * 4);
    return KK_OK;
}

/* Ids that lie on the device. */
static std::vector<int32_t> ids_in(const kk_buf *b) {
    std::vector<int32_t> ids;
    if (!b) return ids;
    ids.resize(b->bytes / 4);
    kk_mlx_copy_out(b, 0, ids.data(), ids.size() * 4);
    return ids;
}

kk_status kk_mlx_argmax(kk_dev *dev, const kk_argmax_args *a, kk_err *err) {
    return kk_mlx_try(err, "a choice", [&]() -> kk_status {
        std::vector<float> x;
        std::vector<int32_t> best((size_t)a->n_rows);
        KK_TRY(logits_of(dev, a->x, (size_t)a->n_rows * (size_t)a->dim, x, err));
        for (size_t r = 0; r < best.size(); r++)
            best[r] = largest_of(x.data() + r * (size_t)a->dim, a->dim, a->banned);
        const std::vector<int32_t> map = ids_in(a->map);
        for (size_t r = 0; r < best.size() && a->map; r++) best[r] = map[(size_t)best[r]];
        if (a->ids)
            kk_mlx_put_at(dev, a->ids, (size_t)a->ids_at,
                          mx::array(best.data(), {a->n_rows}, mx::int32));
        else
            memcpy(a->out, best.data(), best.size() * sizeof best[0]);
        return KK_OK;
    });
}

/* Scratch is taken by the first choice that needs it. */
static kk_status sampler_for(kk_dev *dev, int32_t vocab, kk_err *err) {
    if (dev->sampler && dev->sampler_vocab == vocab) return KK_OK;
    kk_sampler_free(dev->sampler);
    dev->sampler = nullptr;
    dev->sampler_vocab = vocab;
    return kk_sampler_new(&dev->sampler, dev->mem, vocab, err);
}

static kk_status sample_row(kk_dev *dev, const kk_choose_args *a, int32_t r, const float *x,
                            const std::vector<int32_t> &pending, kk_pick *pick, kk_err *err) {
    const kk_choose_row *w = &a->row[r];
    if (kk_choose_is_greedy(w)) return KK_OK;
    KK_TRY(sampler_for(dev, a->dim, err));
    kk_sample_row row = {};
    row.logits = x;
    row.history = w->history;
    row.n = w->n_history + w->n_pending;
    row.pending = pending.empty() ? nullptr : pending.data() + w->pending;
    row.n_pending = w->n_pending;
    row.bias = w->bias;
    row.n_bias = w->n_bias;
    row.mask = w->mask;
    pick->token = kk_sample(dev->sampler, &w->how, &row);
    if (w->logprobs && !pick->broken)
        kk_sample_logprobs(dev->sampler, x, pick->token, w->n_best, &pick->logprobs);
    return KK_OK;
}

static void put_id(kk_dev *dev, kk_buf *b, int32_t id) {
    kk_mlx_put(dev, b, mx::array(&id, {1}, mx::int32));
}

/* How much of the draft is what was chosen, and what the next one begins with. */
static void match_draft(kk_dev *dev, const kk_choose_args *a, kk_pick *pick) {
    const std::vector<int32_t> draft = ids_in(a->draft);
    int32_t right = 0;
    for (int32_t r = 0; r < a->n_rows - 1; r++) pick[r].drafted = draft[(size_t)r + 1];
    while (right < a->n_rows - 1 && pick[right].drafted == pick[right].token) right++;
    put_id(dev, a->right, right);
    for (kk_buf *next : a->next)
        if (next) put_id(dev, next, pick[right].token);
}

kk_status kk_mlx_choose(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err) {
    if (a->n_rows < 1 || a->n_rows > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "choices of %d rows at once: 1 to %d", a->n_rows,
                       KK_PICK_ROWS);
    return kk_mlx_try(err, "a choice", [&]() -> kk_status {
        kk_pick *pick = dev->picks[dev->tickets % KK_PICKS];
        std::vector<float> x;
        std::vector<int32_t> token;
        const size_t dim = (size_t)a->dim;
        KK_TRY(logits_of(dev, a->x, (size_t)a->n_rows * dim, x, err));
        const std::vector<int32_t> pending = ids_in(a->pending);
        for (int32_t r = 0; r < a->n_rows; r++) {
            const float *row = x.data() + (size_t)r * dim;
            bool finite;
            pick[r] = {};
            pick[r].token = largest_of(row, a->dim, -1);
            pick[r].digest = kk_hash_digest_of(row, dim, &finite);
            pick[r].broken = !finite;
            pick[r].drafted = -1;
            if (!a->row || kk_choose_is_greedy(&a->row[r]))
                pick[r].near_tie = kk_near_tie(row, a->dim, KK_LOGIT_TOLERANCE);
            if (a->row) KK_TRY(sample_row(dev, a, r, row, pending, &pick[r], err));
            token.push_back(pick[r].token);
        }
        kk_mlx_put(dev, a->token, mx::array(token.data(), {a->n_rows}, mx::int32));
        if (a->draft) match_draft(dev, a, pick);
        *ticket = dev->tickets++;
        return KK_OK;
    });
}

kk_status kk_mlx_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                        kk_err *err) {
    *seconds = 0;
    if (ticket < 0 || ticket >= dev->tickets || ticket + KK_PICKS < dev->tickets || n < 1 ||
        n > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "choice %lld of %lld is not at hand", (long long)ticket,
                       (long long)dev->tickets);
    memcpy(out, dev->picks[ticket % KK_PICKS], (size_t)n * sizeof *out);
    return KK_OK;
}
