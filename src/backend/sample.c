/* sample.c - see sample.h, which has the arithmetic; here is how a CPU comes by it quickly.
 *
 * A filter keeps a prefix of the rank, so that it needs its last candidate, the cut, and not the
 * order of those before: top-k is a selection, top-p a selection by weight, and a vocabulary of
 * 262,144 is never sorted.  Where a cut is known, what it keeps is gathered in order of ids, and
 * the draw goes over that, or over the row as it lies where nothing was filtered.  Weights are
 * computed again where they are needed; that costs less than to keep them. */
#include "backend/sample.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/weigh.h"
#include "core/mathf.h"

enum { BLOCK = KK_WEIGH_BLOCK, MAX_VOCAB = KK_SAMPLE_VOCAB };

typedef struct {
    float value;
    int32_t id;
    uint64_t weight;
} candidate;

struct kk_sampler {
    kk_mem *mem;
    const kk_weigher *weigher;
    int32_t vocab;
    size_t bytes;
    candidate *among; /* [vocab], until a cut is known; then: */
    float *value;     /* [vocab] of what is kept, in the same memory */
    int32_t *id;
    uint64_t *sums; /* [ceil(vocab / BLOCK)] weights of blocks */
    float *logits;  /* [vocab] after bias, penalties and mask */
    int32_t *count; /* [vocab] of each id in the penalties' window; zero between calls */
};

/* What is kept: a prefix of the rank, up to and including this candidate. */
typedef struct {
    float value;
    int32_t id;
} cut;

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* The product in 128 bits. */
static uint64_t multiply(uint64_t a, uint64_t b, uint64_t *low) {
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t mid = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)mid;
    *low = a * b;
    return a1 * b1 + (mid >> 32) + (other >> 32);
}

/* ---- scratch ---------------------------------------------------------------------------- */

kk_status kk_sampler_new(kk_sampler **out, kk_mem *mem, int32_t vocab, kk_err *err) {
    *out = NULL;
    if (vocab < 1 || vocab > MAX_VOCAB)
        return kk_fail(err, KK_EINVAL, "a vocabulary of %d: between 1 and %d", vocab, MAX_VOCAB);
    const size_t n = (size_t)vocab, blocks = (n + BLOCK - 1) / BLOCK;
    kk_sampler *s = kk_zalloc(sizeof *s);
    const size_t bytes =
        n * (sizeof *s->among + sizeof *s->logits + sizeof *s->count) + blocks * sizeof *s->sums;
    uint8_t *block = s ? kk_mem_take(mem, KK_MEM_WORKSPACE, bytes) : NULL;
    if (!block) {
        kk_free(s);
        return kk_fail(err, KK_ENOMEM, "no memory to sample from %d tokens", vocab);
    }
    s->mem = mem;
    s->weigher = kk_weigher_named(NULL);
    s->vocab = vocab;
    s->bytes = bytes;
    s->among = (candidate *)(void *)block;
    s->value = (float *)(void *)block;
    s->id = (int32_t *)(void *)(s->value + n);
    s->sums = (uint64_t *)(void *)(s->among + n);
    s->logits = (float *)(void *)(s->sums + blocks);
    s->count = (int32_t *)(void *)(s->logits + n);
    *out = s;
    return KK_OK;
}

void kk_sampler_free(kk_sampler *s) {
    if (!s) return;
    kk_mem_give(s->mem, KK_MEM_WORKSPACE, s->among, s->bytes);
    kk_free(s);
}

/* ---- values ----------------------------------------------------------------------------- */

/* A repeated token's logit moves towards the unlikely side, whatever its sign. */
static float penalised(const kk_sampling *how, float v, int32_t count) {
    const float r = how->repeat_penalty > 0 ? how->repeat_penalty : 1;
    v = v > 0 ? v / r : v * r;
    v = v - (float)count * how->frequency_penalty;
    return v - how->presence_penalty;
}

static int32_t token_at(const kk_sample_row *row, int64_t i) {
    const int64_t known = row->n - row->n_pending;
    return i < known ? row->history[i] : row->pending[i - known];
}

static void apply_penalties(kk_sampler *s, const kk_sampling *how, const kk_sample_row *row) {
    const int64_t from = row->n - kk_sampling_window(how, row->n);
    for (int64_t i = from; i < row->n; i++) s->count[token_at(row, i)]++;
    for (int64_t i = from; i < row->n; i++) {
        const int32_t id = token_at(row, i);
        if (s->count[id] > 0) s->logits[id] = penalised(how, s->logits[id], s->count[id]);
        s->count[id] = 0; /* done with this id, and clean for the next call */
    }
}

static void apply_mask(kk_sampler *s, const uint32_t *mask) {
    for (int32_t at = 0; at < s->vocab; at += 32) {
        const uint32_t word = mask[at / 32];
        if (word == UINT32_MAX) continue;
        const int32_t n = least(32, s->vocab - at);
        for (int32_t i = 0; i < n; i++)
            if (!(word >> i & 1)) s->logits[at + i] = -INFINITY;
    }
}

static const float *values_of(kk_sampler *s, const kk_sampling *how, const kk_sample_row *row) {
    const bool penalties = kk_sampling_has_penalties(how);
    if (!penalties && !row->n_bias && !row->mask) return row->logits;
    memcpy(s->logits, row->logits, (size_t)s->vocab * sizeof *s->logits);
    for (size_t i = 0; i < row->n_bias; i++) s->logits[row->bias[i].id] += row->bias[i].bias;
    if (penalties) apply_penalties(s, how, row);
    if (row->mask) apply_mask(s, row->mask);
    return s->logits;
}

/* ---- rank ------------------------------------------------------------------------------- */

/* Where no candidate is over -inf: the first that is a number, or the first of all. */
static int32_t first_of_none(const float *v, int32_t n, const uint32_t *mask) {
    int32_t first = -1;
    for (int32_t id = 0; id < n; id++) {
        if (!kk_mask_allows(mask, id)) continue;
        if (!isnan(v[id])) return id;
        if (first < 0) first = id;
    }
    return first;
}

/* The first in rank of v, in which ids that the mask does not allow are -inf; -1: none is
 * allowed. */
static int32_t first_in_rank(const kk_sampler *s, const float *v, const uint32_t *mask) {
    float best = -INFINITY;
    int32_t at = -1;
    for (int32_t from = 0; from < s->vocab; from += BLOCK) {
        const float top = s->weigher->top(v + from, least(BLOCK, s->vocab - from));
        if (top > best) {
            best = top;
            at = from;
        }
    }
    if (at < 0) return first_of_none(v, s->vocab, mask);
    while (v[at] != best) at++;
    return at;
}

static bool before(const candidate *a, const candidate *b) {
    return a->value > b->value || (a->value == b->value && a->id < b->id);
}

static void swap(candidate *a, candidate *b) {
    const candidate t = *a;
    *a = *b;
    *b = t;
}

/* The heap's root ranks last of its n candidates. */
static void sift_down(candidate *heap, int32_t n, int32_t at) {
    const candidate c = heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1])) child++;
        if (!before(&c, &heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

/* NaN ranks last: a broken weight may spoil a text but not the program. */
static candidate candidate_at(const float *v, int32_t id) {
    return (candidate){.value = isnan(v[id]) ? -INFINITY : v[id], .id = id};
}

/* The k < vocab first in rank, as a heap whose root ranks last of them. */
static void gather_first(const kk_sampler *s, const float *v, candidate *heap, int32_t k) {
    for (int32_t id = 0; id < k; id++) heap[id] = candidate_at(v, id);
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift_down(heap, k, i);
    for (int32_t from = k, to; from < s->vocab; from = to) {
        to = least(from + BLOCK, s->vocab);
        if (!(s->weigher->top(v + from, to - from) > heap[0].value)) continue;
        for (int32_t id = from; id < to; id++) {
            if (!(v[id] > heap[0].value)) continue; /* a tie loses to the lower id inside */
            heap[0] = candidate_at(v, id);
            sift_down(heap, k, 0);
        }
    }
}

/* ---- top-p ------------------------------------------------------------------------------ */

static candidate *median(candidate *a, candidate *b, candidate *c) {
    candidate *first = before(a, b) ? a : b, *second = first == a ? b : a;
    if (before(second, c)) return second;
    return before(first, c) ? c : first;
}

/* Moves what ranks before a pivot in [lo, hi) to the front; returns where the pivot lands. */
static int32_t partition(candidate *c, int32_t lo, int32_t hi) {
    candidate *z = &c[hi - 1];
    swap(median(&c[lo], &c[lo + (hi - lo) / 2], z), z);
    int32_t at = lo;
    for (int32_t i = lo; i < hi - 1; i++)
        if (before(&c[i], z)) swap(&c[i], &c[at++]);
    swap(&c[at], z);
    return at;
}

static uint64_t weight_of(const candidate *c, int32_t n) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

/* The last in rank of the shortest prefix of the n candidates that weighs at least need, which is
 * no more than they all weigh. */
static cut cut_by_weight(candidate *c, int32_t n, uint64_t need) {
    int32_t lo = 0, hi = n; /* the cut lies within; need: what [0, lo) leaves to be found */
    while (hi - lo > 1) {
        const int32_t at = partition(c, lo, hi);
        const uint64_t front = weight_of(c + lo, at - lo);
        if (front >= need) {
            hi = at;
        } else if (front + c[at].weight >= need) {
            lo = at;
            hi = at + 1;
        } else {
            need -= front + c[at].weight;
            lo = at + 1;
        }
    }
    assert(lo < n);
    return (cut){c[lo].value, c[lo].id};
}

/* What a prefix must weigh, of candidates that weigh `total`. */
static uint64_t needed(uint64_t total, float top_p) {
    uint64_t low;
    const uint64_t high = multiply(total, (uint64_t)(top_p * 0x1p64f), &low);
    const uint64_t need = high + (low != 0);
    return need ? need : 1;
}

static void weigh_candidates(const kk_sampler *s, candidate *c, int32_t n, float top) {
    float v[BLOCK];
    uint64_t w[BLOCK];
    for (int32_t from = 0; from < n; from += BLOCK) {
        const int32_t m = least(BLOCK, n - from);
        for (int32_t i = 0; i < m; i++) v[i] = c[from + i].value;
        s->weigher->each(v, m, top, 1, w);
        for (int32_t i = 0; i < m; i++) c[from + i].weight = w[i];
    }
}

/* The sum of the weights of n values; those of blocks are left in s->sums. */
static uint64_t weigh_all(kk_sampler *s, const float *v, int32_t n, float top, float temp) {
    uint64_t total = 0;
    for (int32_t from = 0; from < n; from += BLOCK) {
        const uint64_t sum = s->weigher->sum(v + from, least(BLOCK, n - from), top, temp);
        s->sums[from / BLOCK] = sum;
        total += sum;
    }
    return total;
}

/* Candidates that weigh at least so much. */
static int32_t gather_heavy(kk_sampler *s, const float *v, float top, uint64_t weight) {
    uint64_t w[BLOCK];
    int32_t n = 0;
    for (int32_t from = 0; from < s->vocab; from += BLOCK) {
        if (s->sums[from / BLOCK] < weight) continue;
        const int32_t m = least(BLOCK, s->vocab - from);
        s->weigher->each(v + from, m, top, 1, w);
        for (int32_t i = 0; i < m; i++) {
            s->among[n] = (candidate){v[from + i], from + i, w[i]};
            n += w[i] >= weight;
        }
    }
    return n;
}

/* Of the whole vocabulary most ids can be left out beforehand.  With spare = W - need, those that
 * weigh less than spare / vocab cannot be kept: what ranks at or after one of them weighs at most
 * as much each, and all together no more than spare.  "At most as much" may fail by kk_exp's
 * last bit, hence the thousandth less. */
static cut cut_top_p(kk_sampler *s, const float *v, float top, float top_p) {
    const uint64_t total = weigh_all(s, v, s->vocab, top, 1), need = needed(total, top_p);
    uint64_t light = (total - need) / (uint64_t)s->vocab;
    light -= light >> 10;
    const int32_t n = gather_heavy(s, v, top, light ? light : 1);
    return cut_by_weight(s->among, n, need);
}

/* ---- filters ---------------------------------------------------------------------------- */

/* True: some are cut off, those after *out. */
static bool find_cut(kk_sampler *s, const kk_sampling *how, const float *v, float top, cut *out) {
    const bool by_p = how->top_p > 0 && how->top_p < 1;
    const int32_t k = how->top_k;
    if (k == 0 || k >= s->vocab) {
        if (by_p) *out = cut_top_p(s, v, top, how->top_p);
        return by_p;
    }
    gather_first(s, v, s->among, k);
    *out = (cut){s->among[0].value, s->among[0].id};
    if (!by_p) return true;
    weigh_candidates(s, s->among, k, top);
    *out = cut_by_weight(s->among, k, needed(weight_of(s->among, k), how->top_p));
    return true;
}

/* What lies up to the cut, in order of ids. */
static int32_t gather_cut(kk_sampler *s, const float *v, cut last) {
    int32_t n = 0;
    for (int32_t from = 0, to; from < s->vocab; from = to) {
        to = least(from + BLOCK, s->vocab);
        if (s->weigher->top(v + from, to - from) < last.value) continue;
        for (int32_t id = from; id < to; id++) {
            const bool tie = id <= last.id && v[id] == last.value;
            s->value[n] = v[id];
            s->id[n] = id;
            n += tie || v[id] > last.value;
        }
    }
    return n;
}

/* Gathers those of n values (of the row, or gathered before) that weigh enough. */
static int32_t gather_min_p(kk_sampler *s, const float *v, int32_t n, float top, float min_p) {
    const uint64_t weight = (uint64_t)(min_p * 0x1p40f);
    const bool again = v == s->value;
    uint64_t w[BLOCK];
    int32_t kept = 0;
    for (int32_t from = 0; from < n; from += BLOCK) {
        const int32_t m = least(BLOCK, n - from);
        s->weigher->each(v + from, m, top, 1, w);
        for (int32_t i = 0; i < m; i++) {
            const float value = v[from + i];
            s->id[kept] = again ? s->id[from + i] : from + i;
            s->value[kept] = value;
            kept += w[i] >= weight;
        }
    }
    return kept;
}

/* ---- the choice ------------------------------------------------------------------------- */

/* Index of the value, of n, at which the running sum of weights exceeds the drawn share. */
static int32_t draw(kk_sampler *s, const float *v, int32_t n, float top, float temp,
                    uint64_t bits) {
    uint64_t w[BLOCK], low;
    uint64_t left = multiply(bits, weigh_all(s, v, n, top, temp), &low);
    int32_t block = 0, i = 0;
    while (s->sums[block] <= left) left -= s->sums[block++];
    const int32_t from = block * BLOCK;
    s->weigher->each(v + from, least(BLOCK, n - from), top, temp, w);
    while (w[i] <= left) left -= w[i++];
    return from + i;
}

int32_t kk_sample(kk_sampler *s, const kk_sampling *how, const kk_sample_row *row) {
    const float *v = values_of(s, how, row);
    const int32_t first = first_in_rank(s, v, row->mask);
    if (first < 0 || how->temp <= 0 || !isfinite(v[first])) return first;
    const float top = v[first];
    int32_t n = s->vocab;
    cut last;
    if (find_cut(s, how, v, top, &last)) {
        n = gather_cut(s, v, last);
        v = s->value;
    }
    if (how->min_p > 0) {
        n = gather_min_p(s, v, n, top, how->min_p);
        v = s->value;
    }
    const uint64_t bits = kk_sample_bits(how->seed, (uint64_t)row->n);
    const int32_t at = draw(s, v, n, top, how->temp, bits);
    return v == s->value ? s->id[at] : at;
}

/* ---- log-probabilities ------------------------------------------------------------------ */

void kk_sample_logprobs(kk_sampler *s, const float *logits, int32_t id, int32_t n,
                        kk_logprobs *out) {
    const float top = logits[first_in_rank(s, logits, NULL)];
    const bool sound = isfinite(top);
    const uint64_t total = sound ? weigh_all(s, logits, s->vocab, top, 1) : 0;
    const float whole = sound ? kk_log((float)total * 0x1p-40f) : NAN;
    candidate best[KK_MAX_LOGPROBS + 1];
    n = least(n, s->vocab);
    out->chosen = (kk_logprob){id, (logits[id] - top) - whole};
    out->n_best = n;
    if (n == 0) return;
    if (n < s->vocab)
        gather_first(s, logits, best, n);
    else
        for (int32_t i = 0; i < n; i++) best[i] = candidate_at(logits, i);
    for (int32_t left = n; left > 0; left--) { /* the last in rank goes to the end */
        for (int32_t i = left / 2 - 1; i >= 0; i--) sift_down(best, left, i);
        out->best[left - 1] = (kk_logprob){best[0].id, (best[0].value - top) - whole};
        best[0] = best[left - 1];
    }
}
