/* sample.c - penalties, filters and the draw; see sample.h.
 *
 * The order is llama.cpp's default: penalties, top-k, top-p, min-p, temperature, draw.  Filters
 * thus look at the model's own distribution and temperature only reweighs what they left.
 *
 * Candidates are ranked by logit, ties by the lower id.  Each filter keeps a prefix of that
 * ranking, so that a filter needs its last candidate and not the order of those before: top-k is
 * a selection, top-p a selection by weight, min-p a threshold, and a vocabulary of 262,144 is
 * never sorted.  The draw walks the survivors as they lie, which the row's bits alone decide.
 *
 * The generator has no state: it is splitmix64's finaliser over (seed, position). */
#include "decode/sample.h"

#include <math.h>
#include <string.h>

typedef struct {
    float logit, weight;
    int32_t id;
} candidate;

struct kk_sampler {
    kk_mem *mem;
    int32_t vocab;
    size_t bytes;
    float *logits;    /* [vocab] after penalties */
    int32_t *count;   /* [vocab] of each id in the penalties' window; zero between calls */
    candidate *among; /* [vocab] */
};

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

kk_status kk_sampler_new(kk_sampler **out, kk_mem *mem, int32_t vocab, kk_err *err) {
    *out = NULL;
    const size_t n = (size_t)vocab;
    kk_sampler *s = kk_zalloc(sizeof *s);
    const size_t bytes = n * (sizeof *s->logits + sizeof *s->count + sizeof *s->among);
    uint8_t *block = s ? kk_mem_take(mem, KK_MEM_WORKSPACE, bytes) : NULL;
    if (!block) {
        kk_free(s);
        return kk_fail(err, KK_ENOMEM, "no memory to sample from %d tokens", vocab);
    }
    s->mem = mem;
    s->vocab = vocab;
    s->bytes = bytes;
    s->among = (candidate *)(void *)block;
    s->logits = (float *)(void *)(s->among + n);
    s->count = (int32_t *)(void *)(s->logits + n);
    *out = s;
    return KK_OK;
}

void kk_sampler_free(kk_sampler *s) {
    if (!s) return;
    kk_mem_give(s->mem, KK_MEM_WORKSPACE, s->among, s->bytes);
    kk_free(s);
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The seed is mixed first, so that neighbouring seeds do not give shifted streams. */
double kk_sample_draw(uint64_t seed, uint64_t position) {
    const uint64_t step = 0x9e3779b97f4a7c15u;
    return (double)(mix(mix(seed + step) + (position + 1) * step) >> 11) * 0x1p-53;
}

/* ---- penalties -------------------------------------------------------------------------- */

static bool has_penalties(const kk_sampling *how) {
    const bool repeat = how->repeat_penalty > 0 && how->repeat_penalty != 1;
    return repeat || how->presence_penalty != 0 || how->frequency_penalty != 0;
}

bool kk_sampling_is_greedy(const kk_sampling *how) { return how->temp <= 0 && !has_penalties(how); }

/* A repeated token's logit moves towards the unlikely side, whatever its sign. */
static float penalised(const kk_sampling *how, float logit, int32_t count) {
    const float r = how->repeat_penalty > 0 ? how->repeat_penalty : 1;
    logit = logit > 0 ? logit / r : logit * r;
    return logit - (float)count * how->frequency_penalty - how->presence_penalty;
}

static const float *apply_penalties(kk_sampler *s, const kk_sampling *how, const float *logits,
                                    const int32_t *history, int64_t n) {
    const int64_t wide = how->penalty_last_n ? how->penalty_last_n : 64;
    const int64_t from = wide < 0 || wide > n ? 0 : n - wide;
    memcpy(s->logits, logits, (size_t)s->vocab * sizeof *logits);
    for (int64_t i = from; i < n; i++) s->count[history[i]]++;
    for (int64_t i = from; i < n; i++) {
        const int32_t id = history[i];
        if (s->count[id] > 0) s->logits[id] = penalised(how, logits[id], s->count[id]);
        s->count[id] = 0; /* done with this id, and clean for the next call */
    }
    return s->logits;
}

/* ---- ranking ---------------------------------------------------------------------------- */

/* As the backend's argmax has it: what is no number comes after all numbers. */
static int32_t largest(const float *logits, int32_t n) {
    int32_t best = 0;
    while (best + 1 < n && isnan(logits[best])) best++;
    if (isnan(logits[best])) return 0;
    float top = logits[best];
    for (int32_t i = best + 1; i < n; i++) {
        if (logits[i] > top) { /* never true of a NaN */
            top = logits[i];
            best = i;
        }
    }
    return best;
}

static bool before(const candidate *a, const candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void swap(candidate *a, candidate *b) {
    const candidate t = *a;
    *a = *b;
    *b = t;
}

/* The heap's root ranks last of its n candidates. */
static void sift_down(candidate *heap, int32_t n, int32_t at) {
    for (;;) {
        int32_t last = at;
        for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (before(&heap[last], &heap[child])) last = child;
        if (last == at) return;
        swap(&heap[at], &heap[last]);
        at = last;
    }
}

/* NaN ranks last: a broken weight may spoil a text but not the program. */
static candidate candidate_at(const float *logits, int32_t id) {
    return (candidate){.logit = logits[id] == logits[id] ? logits[id] : -INFINITY, .id = id};
}

/* The k first of the whole vocabulary, in no order. */
static int32_t gather_top(kk_sampler *s, const float *logits, int32_t k) {
    candidate *heap = s->among;
    if (k == 0 || k > s->vocab) k = s->vocab;
    for (int32_t id = 0; id < k; id++) heap[id] = candidate_at(logits, id);
    if (k == s->vocab) return k;
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift_down(heap, k, i);
    for (int32_t id = k; id < s->vocab; id++) {
        if (!(logits[id] > heap[0].logit)) continue; /* a tie loses to the lower id inside */
        heap[0] = candidate_at(logits, id);
        sift_down(heap, k, 0);
    }
    return k;
}

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

/* Keeps the shortest prefix of the ranking that holds p of the weight; at least one. */
static int32_t keep_top_p(candidate *c, int32_t n, double p) {
    double total = 0, ahead = 0; /* ahead: weight of those known to be kept */
    for (int32_t i = 0; i < n; i++) total += (double)c[i].weight;
    int32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        const int32_t at = partition(c, lo, hi);
        double front = 0;
        for (int32_t i = lo; i < at; i++) front += (double)c[i].weight;
        if (ahead + front >= p * total && at > lo) {
            hi = at;
        } else if (ahead + front + (double)c[at].weight >= p * total || at + 1 == hi) {
            return at + 1;
        } else {
            ahead += front + (double)c[at].weight;
            lo = at + 1;
        }
    }
    return hi;
}

static int32_t keep_min_p(candidate *c, int32_t n, float top, float min_p) {
    const float least = top + logf(min_p);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].logit >= least) c[kept++] = c[i];
    return kept;
}

static void weigh(candidate *c, int32_t n, float top, float temp) {
    for (int32_t i = 0; i < n; i++) c[i].weight = expf((c[i].logit - top) / temp);
}

/* u in [0, 1) picks among the weights. */
static int32_t pick(const candidate *c, int32_t n, double u) {
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) total += (double)c[i].weight;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)c[i].weight;
        if (sum > u * total) return c[i].id;
    }
    return c[n - 1].id;
}

int32_t kk_sample(kk_sampler *s, const kk_sampling *how, const float *logits,
                  const int32_t *history, int64_t n) {
    if (has_penalties(how)) logits = apply_penalties(s, how, logits, history, n);
    const int32_t first = largest(logits, s->vocab);
    const float top = logits[first];
    if (how->temp <= 0 || !isfinite(top)) return first;
    int32_t kept = gather_top(s, logits, how->top_k);
    if (how->top_p > 0 && how->top_p < 1) {
        weigh(s->among, kept, top, 1);
        kept = keep_top_p(s->among, kept, (double)how->top_p);
    }
    if (how->min_p > 0) kept = keep_min_p(s->among, kept, top, how->min_p);
    weigh(s->among, kept, top, how->temp);
    return pick(s->among, kept, kk_sample_draw(how->seed, (uint64_t)n));
}
