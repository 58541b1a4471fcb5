/* rank_test.c - the search that the CUDA device's sampler makes (backend/cuda/rank.h), performed
 * here step by step in plain loops, against the sampler: the same tokens and log-probabilities to
 * the bit, for every kind of row and options.  And what it rests on: keys in the order of values,
 * bins that rise as keys fall, intervals that lose no key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/device.h"
#include "backend/cuda/rank.h"
#include "support/choose_cases.h"

/* ---- a row, as the kernel chooses it --------------------------------------------------------- */

typedef struct {
    const float *v;
    int32_t n, steps; /* steps: the most that a search took */
    float m;
} searched;

typedef struct {
    uint64_t weight[KK_RANK_BINS], count[KK_RANK_BINS];
} bins;

static uint64_t candidate_at(const searched *s, int32_t i) {
    return kk_rank_candidate(kk_rank_key(s->v[i]), i);
}

static bool stays(const searched *s, const kk_rank_interval *in, uint64_t cut, int32_t i) {
    const uint32_t key = kk_rank_key(s->v[i]);
    return key >= in->low && key <= in->high && candidate_at(s, i) >= cut;
}

static void fill_bins(const searched *s, const kk_rank_interval *in, uint64_t cut, bins *of) {
    memset(of, 0, sizeof *of);
    for (int32_t i = 0; i < s->n; i++) {
        if (!stays(s, in, cut, i)) continue;
        const int32_t bin = kk_rank_bin(in, kk_rank_key(s->v[i]));
        assert_true(bin >= 0 && bin < KK_RANK_BINS);
        of->count[bin]++;
        of->weight[bin] += kk_rank_weight(s->v[i], s->m, 1);
    }
}

static uint64_t top_p_needs(uint64_t all, float top_p) {
    __extension__ typedef unsigned __int128 wide;
    const wide product = (wide)all * (uint64_t)(top_p * 0x1p64f);
    const uint64_t need = (uint64_t)(product >> 64) + ((uint64_t)product != 0);
    return need ? need : 1;
}

/* Of the interval's candidates, few or equal, the one at which the sum comes to need. */
static uint64_t cut_within(const searched *s, const kk_rank_interval *in, uint64_t cut, bool weigh,
                           uint64_t need) {
    for (int32_t i = 0; i < s->n; i++) {
        if (!stays(s, in, cut, i)) continue;
        uint64_t before = 0;
        for (int32_t k = 0; k < s->n; k++)
            if (stays(s, in, cut, k) && candidate_at(s, k) > candidate_at(s, i))
                before += weigh ? kk_rank_weight(s->v[k], s->m, 1) : 1;
        const uint64_t own = weigh ? kk_rank_weight(s->v[i], s->m, 1) : 1;
        if (before < need && need <= before + own) return candidate_at(s, i);
    }
    fail_msg("no candidate of %d is the cut", s->n);
    return 0;
}

static uint64_t nth_of_equals(const searched *s, uint32_t key, uint64_t cut, uint64_t nth) {
    for (int32_t i = 0; i < s->n; i++)
        if (kk_rank_key(s->v[i]) == key && candidate_at(s, i) >= cut && --nth == 0)
            return candidate_at(s, i);
    fail_msg("too few of equal candidates");
    return 0;
}

/* need 0: by weight, as top_p has it. */
static uint64_t find_cut(searched *s, uint64_t cut, uint64_t need, float top_p) {
    const bool weigh = need == 0;
    kk_rank_interval in = kk_rank_all(s->m);
    static bins of;
    for (int32_t step = 0; step < KK_RANK_STEPS; step++) {
        s->steps = step + 1 > s->steps ? step + 1 : s->steps;
        fill_bins(s, &in, cut, &of);
        const uint64_t *sums = weigh ? of.weight : of.count;
        uint64_t all = 0;
        int32_t bin = 0;
        for (int32_t i = 0; i < KK_RANK_BINS; i++) all += sums[i];
        if (need == 0) need = top_p_needs(all, top_p);
        if (need > all) return cut;
        while (need > sums[bin]) need -= sums[bin++];
        in = kk_rank_within(&in, bin);
        if (of.count[bin] <= KK_RANK_LIST) return cut_within(s, &in, cut, weigh, need);
        if (in.low == in.high) break;
    }
    assert_true(in.low == in.high);
    const uint64_t w = kk_rank_weight(kk_rank_value(in.low), s->m, 1);
    return nth_of_equals(s, in.low, cut, weigh ? kk_rank_ties(need, w) : need);
}

static uint64_t share_of(const searched *s, const kk_sampling *how, uint64_t cut, int32_t i) {
    const uint64_t least = (uint64_t)(how->min_p * 0x1p40f);
    if (candidate_at(s, i) < cut || kk_rank_weight(s->v[i], s->m, 1) < least) return 0;
    return kk_rank_weight(s->v[i], s->m, how->temp);
}

static int32_t draw(const searched *s, const kk_sampling *how, uint64_t cut, uint64_t position) {
    __extension__ typedef unsigned __int128 wide;
    uint64_t all = 0;
    for (int32_t i = 0; i < s->n; i++) all += share_of(s, how, cut, i);
    uint64_t left = (uint64_t)((wide)kk_sample_bits(how->seed, position) * all >> 64);
    for (int32_t i = 0; i < s->n; i++) {
        const uint64_t share = share_of(s, how, cut, i);
        if (share > left) return i;
        left -= share;
    }
    fail_msg("nothing was drawn of %d", s->n);
    return -1;
}

static uint64_t first_in_rank(const float *v, int32_t n, const uint32_t *mask) {
    uint64_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        const uint64_t c = kk_rank_candidate(kk_rank_key(v[i]), i);
        if (kk_mask_allows(mask, i) && c > best) best = c;
    }
    return best;
}

static int32_t most_steps;

static int32_t choose(const float *v, int32_t n, const kk_choose_row *row) {
    const kk_sampling *how = &row->how;
    const uint64_t best = first_in_rank(v, n, row->mask);
    const uint32_t key = (uint32_t)(best >> 32);
    searched s = {.v = v, .n = n, .m = kk_rank_value(key)};
    uint64_t cut = 0;
    if (how->temp <= 0 || !kk_rank_finite(key)) return key ? kk_rank_id(best) : -1;
    if (how->top_k > 0 && how->top_k < n) cut = find_cut(&s, 0, (uint64_t)how->top_k, 0);
    if (how->top_p > 0 && how->top_p < 1) cut = find_cut(&s, cut, 0, how->top_p);
    most_steps = s.steps > most_steps ? s.steps : most_steps;
    return draw(&s, how, cut, (uint64_t)(row->n_history + row->n_pending));
}

/* Bias, penalties and mask, as sample.h has them. */
static void change(float *v, int32_t n, const kk_choose_row *row, const int32_t *pending) {
    const kk_sampling *how = &row->how;
    const int64_t all = row->n_history + row->n_pending, wide = kk_sampling_window(how, all);
    const float repeat = how->repeat_penalty > 0 ? how->repeat_penalty : 1;
    for (size_t i = 0; i < row->n_bias; i++) v[row->bias[i].id] += row->bias[i].bias;
    for (int32_t id = 0; kk_sampling_has_penalties(how) && id < n; id++) {
        int32_t times = 0;
        for (int64_t i = all - wide; i < all; i++)
            times += id == (i < row->n_history ? row->history[i]
                                               : pending[row->pending + i - row->n_history]);
        if (times == 0) continue;
        v[id] = v[id] > 0 ? v[id] / repeat : v[id] * repeat;
        v[id] = v[id] - (float)times * how->frequency_penalty;
        v[id] = v[id] - how->presence_penalty;
    }
    for (int32_t id = 0; id < n; id++)
        if (!kk_mask_allows(row->mask, id)) v[id] = -INFINITY;
}

/* The device of the CPU, but for its choices, which are made as the kernel makes them. */
static kk_status choose_by_rank(kk_dev *dev, const kk_choose_args *a, int64_t *ticket,
                                kk_err *err) {
    const kk_choose_args plain = {.token = a->token, .x = a->x, .n_rows = a->n_rows, .dim = a->dim};
    const size_t bytes = (size_t)a->dim * sizeof(float);
    float *v = malloc(bytes);
    assert_non_null(v);
    assert_int_equal(kk_cpu_choose(dev, &plain, ticket, err), KK_OK);
    for (int32_t r = 0; r < a->n_rows; r++) {
        kk_pick *pick = &dev->picks[*ticket % KK_PICKS][r];
        const float *x = kk_buf_f(a->x) + (size_t)r * (size_t)a->dim;
        memcpy(v, x, bytes);
        change(v, a->dim, &a->row[r], a->pending->data);
        pick->token = choose(v, a->dim, &a->row[r]);
        ((int32_t *)a->token->data)[r] = pick->token;
        if (!a->row[r].logprobs || pick->broken) continue;
        kk_sampler *s;
        assert_int_equal(kk_sampler_new(&s, dev->mem, a->dim, err), KK_OK);
        kk_sample_logprobs(s, x, pick->token, a->row[r].n_best, &pick->logprobs);
        kk_sampler_free(s);
    }
    free(v);
    return KK_OK;
}

static void the_search_chooses_as_the_sampler(void **state) {
    (void)state;
    static const int32_t vocabs[] = {1, 31, 33, 1000, 3000};
    kk_backend by_rank = *kk_backend_named("cpu");
    kk_mem mem = {0};
    kk_err err;
    by_rank.choose = choose_by_rank;
    choose_world w = {.be = &by_rank, .mem = &mem, .random = 9};
    const kk_dev_opts how = {.threads = 1, .mem = &mem, .max_rows = CC_ROWS};
    assert_int_equal(w.be->open(&w.dev, &how, &err), KK_OK);
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++) {
        assert_true(cc_open(&w, vocabs[i], &err));
        for (uint32_t k = 0; k < 90; k++)
            if (!cc_round(&w, k % (CC_KINDS + 1))) fail_msg("round %u: %s", k, w.what);
        cc_close(&w);
    }
    assert_true(most_steps > 2); /* the searches within bins were tried */
    w.be->close(w.dev);
}

/* ---- what it rests on ------------------------------------------------------------------------ */

static void keys_are_in_the_order_of_values(void **state) {
    (void)state;
    static const float rising[] = {-INFINITY, -3e38f, -2,   -1e-42f, 0,
                                   1e-42f,    1e-30f, 1.5f, 3e38f,   INFINITY};
    uint32_t last = kk_rank_key(NAN);
    for (size_t i = 0; i < sizeof rising / sizeof *rising; i++) {
        assert_true(kk_rank_key(rising[i]) > last);
        last = kk_rank_key(rising[i]);
        assert_true(kk_rank_value(last) == rising[i]);
        assert_int_equal(kk_rank_finite(last), isfinite(rising[i]) != 0);
    }
    assert_int_equal(kk_rank_key(-0.0f), kk_rank_key(0.0f));
    assert_true(kk_rank_candidate(5, 3) > kk_rank_candidate(5, 4));
    assert_int_equal(kk_rank_id(kk_rank_candidate(7, 12345)), 12345);
}

/* Every key of an interval is in one bin, and narrowing to that bin keeps it, until it is alone. */
static void intervals_lose_no_key(void **state) {
    (void)state;
    choose_world w = {.random = 3};
    for (int k = 0; k < 20000; k++) {
        const float m = (cc_uniform(&w) - 0.5f) * expf(40 * cc_uniform(&w) - 20);
        kk_rank_interval in = kk_rank_all(m);
        const uint32_t range = in.high - in.low;
        const uint32_t near = cc_below(&w, 2) ? range : cc_below(&w, range);
        const uint32_t key = in.high - (cc_below(&w, 3) ? cc_below(&w, near) : near);
        int step = 0;
        for (; step < KK_RANK_STEPS && (step == 0 || in.low < in.high); step++) {
            const int32_t bin = kk_rank_bin(&in, key);
            assert_true(bin >= 0 && bin < KK_RANK_BINS);
            if (key > in.low) assert_true(kk_rank_bin(&in, key - 1) >= bin);
            in = kk_rank_within(&in, bin);
            assert_true(in.low <= key && key <= in.high);
        }
        assert_true(in.low == in.high);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_in_the_order_of_values),
        cmocka_unit_test(intervals_lose_no_key),
        cmocka_unit_test(the_search_chooses_as_the_sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
