/* round.c - see round.h.
 *
 * Nothing here knows whether a draft was right before it is compared, and nothing is kept from
 * a row that was not chosen: hence tokens, hashes and caches are those of plain decoding. */
#include "decode/round.h"

#include <assert.h>

#include "decode/hash.h"

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Asks for a draft that neither the outcome's limit, the context nor a fair share of the
 * forward's rows would cut.  An id outside the vocabulary ends it: proposers are not trusted. */
static void draft(const kk_rounds *all, kk_round *r, int32_t share) {
    int32_t max = least(share, KK_MAX_DRAFT + 1) - 1;
    max = least(max, r->room - 1);
    max = least(max, r->cap - r->len - 1);
    int32_t n = 0;
    if (max > 0)
        n = r->proposer.draft(r->proposer.self, r->tokens, r->len, r->tokens + r->len, max);
    assert(n <= max);
    r->n_draft = 0;
    while (r->n_draft < n && r->tokens[r->len + r->n_draft] >= 0 &&
           r->tokens[r->len + r->n_draft] < all->vocab)
        r->n_draft++;
}

static kk_status reserve_all(kk_round *const *rounds, int32_t n, kk_err *err) {
    for (int32_t i = 0; i < n; i++)
        KK_TRY(kk_cache_reserve(rounds[i]->cache, rounds[i]->n_draft + 1, err));
    return KK_OK;
}

static kk_status forward_all(const kk_rounds *all, kk_round *const *rounds, int32_t n,
                             kk_err *err) {
    kk_gemma4_group groups[KK_MAX_GROUPS];
    for (int32_t i = 0; i < n; i++) {
        const kk_round *r = rounds[i];
        groups[i] = (kk_gemma4_group){.cache = r->cache,
                                      .layout = r->layout,
                                      .tokens = r->tokens + r->len - 1,
                                      .n_rows = r->n_draft + 1,
                                      .n_logits = r->n_draft + 1};
    }
    const kk_gemma4_forward_args args = {.groups = groups, .n_groups = n};
    return kk_gemma4_forward(all->model, &args, err);
}

/* Chooses the token after row i of the round and adds the row to the hash. */
static void choose(const kk_rounds *all, kk_round *r, int32_t i) {
    const uint64_t chain = i ? r->hash_after[i - 1] : r->hash;
    r->hash_after[i] = kk_hash_row(chain, r->logits, (size_t)all->vocab);
    const int32_t y =
        kk_sample(all->sampler, r->sampling, r->logits, r->tokens, (int64_t)r->len + i);
    r->tokens[r->len + i] = y;
    r->n_out = i + 1;
    r->stopped = kk_stop_at(&r->stop, y);
}

/* Rows are chosen one after the other as long as the draft holds; first is this session's first
 * row of logits. */
static kk_status match(const kk_rounds *all, kk_round *r, int32_t first, kk_err *err) {
    for (int32_t i = 0; i <= r->n_draft; i++) {
        const int32_t drafted = i < r->n_draft ? r->tokens[r->len + i] : -1;
        KK_TRY(kk_gemma4_logits(all->model, first + i, r->logits, err));
        choose(all, r, i);
        if (r->stopped || r->tokens[r->len + i] != drafted) break;
    }
    return KK_OK;
}

kk_status kk_round_run(const kk_rounds *all, kk_round *const *rounds, int32_t n, kk_err *err) {
    const int32_t rows = least(least(all->max_rows, all->max_logits), KK_MAX_GROUPS);
    if (n < 1 || n > rows)
        return kk_fail(err, KK_EINVAL, "a round of %d sessions: between 1 and %d", n, rows);
    for (int32_t i = 0; i < n; i++) {
        assert(rounds[i]->room > 0 && rounds[i]->len > 0 && rounds[i]->len < rounds[i]->cap);
        assert(kk_cache_len(rounds[i]->cache) == rounds[i]->len - 1);
        draft(all, rounds[i], rows / n);
    }
    kk_status st = reserve_all(rounds, n, err);
    if (st == KK_OK) st = forward_all(all, rounds, n, err);
    int32_t first = 0;
    for (int32_t i = 0; st == KK_OK && i < n; i++) {
        st = match(all, rounds[i], first, err);
        first += rounds[i]->n_draft + 1;
    }
    if (st == KK_OK) return KK_OK;
    for (int32_t i = 0; i < n; i++) kk_round_commit(rounds[i], 0);
    return st;
}

void kk_round_first(const kk_rounds *all, kk_round *r) {
    assert(r->room > 0 && r->len > 0 && r->len < r->cap);
    assert(kk_cache_len(r->cache) == r->len);
    r->n_draft = 0;
    choose(all, r, 0);
}

void kk_round_commit(kk_round *r, int32_t n_keep) {
    assert(n_keep >= 0 && n_keep <= r->n_out);
    if (n_keep > 0) r->hash = r->hash_after[n_keep - 1];
    r->len += n_keep;
    r->n_out = 0;
    /* Every token but the last is in the cache; also the last, while nothing follows a prompt. */
    const int64_t held = kk_cache_len(r->cache);
    kk_cache_commit(r->cache, held > r->len - 1 ? held : r->len - 1);
}
