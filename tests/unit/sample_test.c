/* sample_test.c - the sampler draws from the distribution it says, keeps exactly the candidates
 * a plain sort would keep, and depends on nothing but row, options, history and position. */
#include "backend/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/hash.h"
#include "decode/stop.h"

static kk_mem mem;

static kk_sampler *sampler_of(int32_t vocab) {
    kk_sampler *s;
    assert_int_equal(kk_sampler_new(&s, &mem, vocab, NULL), KK_OK);
    return s;
}

static int32_t sample(kk_sampler *s, const kk_sampling *how, const float *logits,
                      const int32_t *history, int64_t n) {
    const kk_sample_row row = {.logits = logits, .history = history, .n = n};
    return kk_sample(s, how, &row);
}

static uint64_t rng_state = 1;
static float uniform(void) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(rng_state >> 40) * 0x1p-24f;
}

/* ---- a plain model: sort everything, in double ------------------------------------------ */

typedef struct {
    double logit;
    int32_t id;
} ranked;

static int by_rank(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Fills p[vocab] with each token's probability and returns how many may be drawn. */
static int32_t expected(const kk_sampling *how, const float *logits, int32_t vocab, double *p) {
    ranked *r = calloc((size_t)vocab, sizeof *r);
    for (int32_t i = 0; i < vocab; i++) r[i] = (ranked){(double)logits[i], i};
    qsort(r, (size_t)vocab, sizeof *r, by_rank);
    int32_t n = how->top_k && how->top_k < vocab ? how->top_k : vocab;
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) total += exp(r[i].logit - r[0].logit);
    if (how->top_p > 0 && how->top_p < 1) {
        int32_t k = 0;
        while (k < n && sum < (double)how->top_p * total) sum += exp(r[k++].logit - r[0].logit);
        n = k;
    }
    if (how->min_p > 0)
        while (n > 1 && r[n - 1].logit < r[0].logit + log((double)how->min_p)) n--;
    total = 0;
    for (int32_t i = 0; i < n; i++) total += exp((r[i].logit - r[0].logit) / (double)how->temp);
    memset(p, 0, (size_t)vocab * sizeof *p);
    for (int32_t i = 0; i < n; i++)
        p[r[i].id] = exp((r[i].logit - r[0].logit) / (double)how->temp) / total;
    free(r);
    return n;
}

/* Draws many times: nothing outside the kept set may appear, and the counts must fit.  For k
 * cells chi-square has mean k - 1 and deviation sqrt(2(k - 1)); six deviations are never passed
 * by chance, and these seeds are fixed. */
static void check_distribution(const kk_sampling *options, const float *logits, int32_t vocab,
                               int draws) {
    kk_sampler *s = sampler_of(vocab);
    double *p = calloc((size_t)vocab, sizeof *p), chi = 0;
    int32_t *count = calloc((size_t)vocab, sizeof *count);
    kk_sampling how = *options;
    const int32_t kept = expected(&how, logits, vocab, p);
    for (int i = 0; i < draws; i++) {
        how.seed = (uint64_t)i / 50;
        const int32_t id = sample(s, &how, logits, NULL, i % 50);
        assert_in_range(id, 0, vocab - 1);
        assert_true(p[id] > 0);
        count[id]++;
    }
    for (int32_t i = 0; i < vocab; i++) {
        const double want = p[i] * draws;
        if (want > 0) chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < kept - 1 + 6 * sqrt(2.0 * kept) + 1);
    free(p);
    free(count);
    kk_sampler_free(s);
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    const float logits[12] = {1.0f, 0.5f, 2.0f,  0.5f, -1.0f, 1.5f,
                              0.0f, 0.5f, 1.99f, 0.2f, -0.5f, 0.7f};
    const kk_sampling hows[] = {
        {.temp = 1},
        {.temp = 0.5f},
        {.temp = 2},
        {.temp = 1, .top_k = 4},
        {.temp = 1, .top_k = 5}, /* the cut falls between equal logits */
        {.temp = 1.3f, .top_p = 0.8f},
        {.temp = 1, .min_p = 0.3f},
        {.temp = 0.8f, .top_k = 9, .top_p = 0.9f, .min_p = 0.2f},
        {.temp = 1, .top_k = 1},
        {.temp = 1, .top_p = 0.0001f},
        {.temp = 1, .min_p = 1},
        {.temp = 1, .top_k = 100, .top_p = 1},
    };
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++)
        check_distribution(&hows[i], logits, 12, 20000);
}

/* The set that may be drawn, found by drawing at every quantile of a steep temperature. */
static void filters_keep_what_a_sort_would_keep(void **state) {
    (void)state;
    enum { VOCAB = 97 };
    float logits[VOCAB];
    double p[VOCAB];
    kk_sampler *s = sampler_of(VOCAB);
    for (int trial = 0; trial < 300; trial++) {
        for (int i = 0; i < VOCAB; i++)
            logits[i] = floorf(uniform() * (trial % 3 ? 1000.0f : 6.0f)) / 100.0f; /* many ties */
        kk_sampling how = {.temp = 100, /* nearly flat, so that all that is kept turns up */
                           .top_k = trial % 2 ? 1 + (int32_t)(uniform() * 20) : 0,
                           .top_p = trial % 5 ? 0.05f + 0.9f * uniform() : 0,
                           .min_p = trial % 7 ? 0 : uniform()};
        const int32_t kept = expected(&how, logits, VOCAB, p);
        bool seen[VOCAB] = {false};
        int32_t n = 0;
        for (int i = 0; i < 3000; i++) {
            how.seed = (uint64_t)i;
            const int32_t id = sample(s, &how, logits, NULL, trial);
            assert_true(p[id] > 0);
            n += !seen[id];
            seen[id] = true;
        }
        assert_int_equal(n, kept);
    }
    kk_sampler_free(s);
}

static void greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    const float logits[6] = {1, 3, -2, 3, 3, 0};
    kk_sampler *s = sampler_of(6);
    const kk_sampling greedy = {.top_k = 3, .top_p = 0.5f, .seed = 9};
    assert_int_equal(sample(s, &greedy, logits, NULL, 5), 1);
    kk_sampler_free(s);
}

/* ---- penalties -------------------------------------------------------------------------- */

static int32_t greedy_after(const kk_sampling *how, const float *logits, int32_t vocab,
                            const int32_t *history, int64_t n) {
    kk_sampler *s = sampler_of(vocab);
    const int32_t first = sample(s, how, logits, history, n);
    assert_int_equal(sample(s, how, logits, history, n), first); /* scratch was left clean */
    kk_sampler_free(s);
    return first;
}

static void penalties_move_logits_as_documented(void **state) {
    (void)state;
    const float logits[4] = {2.0f, 1.9f, -1.0f, -1.1f};
    const int32_t once[] = {0}, twice[] = {0, 1, 0}, low[] = {0, 1, 2};
    /* 2.0 / 1.1 < 1.9 */
    const kk_sampling repeat = {.repeat_penalty = 1.1f};
    assert_int_equal(greedy_after(&repeat, logits, 4, once, 1), 1);
    assert_int_equal(greedy_after(&repeat, logits, 4, NULL, 0), 0);
    /* Negative logits are multiplied: token 2 falls below token 3 when 0 and 1 are out of play. */
    const float negative[4] = {-9, -9, -1.0f, -1.05f};
    assert_int_equal(greedy_after(&repeat, negative, 4, low, 3), 3);
    /* Presence counts once, frequency each time. */
    const float close[4] = {2.0f, 1.85f, 1.7f, 0};
    const kk_sampling presence = {.presence_penalty = 0.2f},
                      frequency = {.frequency_penalty = 0.2f};
    assert_int_equal(greedy_after(&presence, close, 4, twice, 3), 0);
    assert_int_equal(greedy_after(&frequency, close, 4, twice, 3), 2);
    assert_int_equal(greedy_after(&frequency, close, 4, once, 1), 1);
}

static void penalties_look_back_over_their_window(void **state) {
    (void)state;
    const float logits[3] = {2.0f, 1.5f, 0};
    int32_t history[200];
    for (int i = 0; i < 200; i++) history[i] = 2;
    history[100] = 0; /* 100 tokens back */
    kk_sampling how = {.presence_penalty = 1};
    assert_int_equal(greedy_after(&how, logits, 3, history, 200), 0);
    how.penalty_last_n = 99;
    assert_int_equal(greedy_after(&how, logits, 3, history, 200), 0);
    how.penalty_last_n = 100;
    assert_int_equal(greedy_after(&how, logits, 3, history, 200), 1);
    how.penalty_last_n = -1;
    assert_int_equal(greedy_after(&how, logits, 3, history, 200), 1);
    how.penalty_last_n = 0; /* 64 */
    assert_int_equal(greedy_after(&how, logits, 3, history, 164), 1);
    assert_int_equal(greedy_after(&how, logits, 3, history, 165), 0);
}

/* ---- the rest --------------------------------------------------------------------------- */

/* Rows chosen alone, in any order, by any sampler, give the tokens of a run from left to right. */
static void a_choice_has_no_memory(void **state) {
    (void)state;
    enum { VOCAB = 500, N = 64 };
    float rows[N][VOCAB];
    int32_t token[N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < VOCAB; j++) rows[i][j] = 8 * uniform();
    const kk_sampling how = {.temp = 0.9f,
                             .top_p = 0.95f,
                             .repeat_penalty = 1.2f,
                             .frequency_penalty = 0.1f,
                             .seed = 42};
    kk_sampler *s = sampler_of(VOCAB);
    for (int i = 0; i < N; i++) token[i] = sample(s, &how, rows[i], token, i);
    for (int i = N - 1; i >= 0; i--) assert_int_equal(sample(s, &how, rows[i], token, i), token[i]);
    kk_sampler *other = sampler_of(VOCAB);
    for (int i = 0; i < N; i += 7)
        assert_int_equal(sample(other, &how, rows[i], token, i), token[i]);
    kk_sampler_free(other);
    kk_sampler_free(s);
}

/* In [0, 1). */
static double share(uint64_t seed, uint64_t position) {
    return (double)(kk_sample_bits(seed, position) >> 11) * 0x1p-53;
}

static void draws_are_uniform_in_seed_and_position(void **state) {
    (void)state;
    int by_position[64] = {0}, by_seed[64] = {0}, pairs[64] = {0};
    const int n = 64000;
    for (int i = 0; i < n; i++) {
        const double u = share(7, (uint64_t)i), v = share((uint64_t)i, 7);
        const double w = share(7, (uint64_t)i + 1);
        assert_true(u >= 0 && u < 1 && v >= 0 && v < 1);
        by_position[(int)(u * 64)]++;
        by_seed[(int)(v * 64)]++;
        pairs[(int)(u * 8) * 8 + (int)(w * 8)]++;
    }
    double chi[3] = {0};
    for (int i = 0; i < 64; i++) {
        chi[0] += pow(by_position[i] - 1000, 2) / 1000;
        chi[1] += pow(by_seed[i] - 1000, 2) / 1000;
        chi[2] += pow(pairs[i] - 1000, 2) / 1000;
    }
    for (int i = 0; i < 3; i++) assert_true(chi[i] < 63 + 6 * sqrt(126));
}

static void broken_logits_do_not_break_the_sampler(void **state) {
    (void)state;
    float logits[40];
    const kk_sampling how = {.temp = 1, .top_k = 5, .top_p = 0.9f, .min_p = 0.05f};
    const kk_sampling all = {.temp = 1, .top_p = 0.9f};
    kk_sampler *s = sampler_of(40);
    for (int i = 0; i < 40; i++) logits[i] = NAN;
    assert_int_equal(sample(s, &how, logits, NULL, 0), 0);
    logits[17] = 1;
    assert_int_equal(sample(s, &how, logits, NULL, 0), 17);
    assert_int_equal(sample(s, &all, logits, NULL, 0), 17);
    logits[23] = INFINITY;
    assert_int_equal(sample(s, &how, logits, NULL, 0), 23);
    for (int i = 0; i < 40; i++) logits[i] = -INFINITY;
    assert_int_equal(sample(s, &how, logits, NULL, 0), 0);
    kk_sampler_free(s);
}

static void wrong_options_are_named(void **state) {
    (void)state;
    const struct {
        kk_sampling how;
        const char *word;
    } bad[] = {
        {{.temp = -1}, "temp"},
        {{.temp = NAN}, "temp"},
        {{.top_p = 1.5f}, "top_p"},
        {{.min_p = -0.1f}, "min_p"},
        {{.top_k = -3}, "top_k"},
        {{.repeat_penalty = -1}, "repeat_penalty"},
        {{.penalty_last_n = -2}, "penalty_last_n"},
        {{.presence_penalty = INFINITY}, "presence_penalty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kk_err err;
        assert_int_equal(kk_sampling_check(&bad[i].how, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, bad[i].word));
    }
    const kk_sampling zero = {0};
    assert_int_equal(kk_sampling_check(&zero, NULL), KK_OK);
}

/* A whole vocabulary takes milliseconds and no memory; a sort would take tens of them. */
static void a_large_vocabulary_is_quick(void **state) {
    (void)state;
    enum { VOCAB = 262144, TIMES = 10 };
    float *logits = malloc(VOCAB * sizeof *logits);
    for (int i = 0; i < VOCAB; i++) logits[i] = 20 * uniform();
    kk_sampler *s = sampler_of(VOCAB);
    const kk_sampling hows[] = {{.temp = 1},
                                {.temp = 1, .top_p = 0.95f},
                                {.temp = 1, .top_k = 64, .top_p = 0.95f},
                                {.temp = 1, .top_k = 5000}};
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++) {
        (void)sample(s, &hows[h], logits, NULL, 0);
        kk_fault_after(1, true);
        const double start = kk_now();
        for (int i = 0; i < TIMES; i++) (void)sample(s, &hows[h], logits, NULL, i);
        kk_fault_after(0, false);
        print_message("%zu: %.2f ms\n", h, (kk_now() - start) * 1e3 / TIMES);
        assert_true(kk_now() - start < 5); /* far above any machine, sanitizers included */
    }
    kk_sampler_free(s);
    free(logits);
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 0);
}

/* ---- hash and stop ids ------------------------------------------------------------------ */

static void the_hash_sees_every_bit_and_the_order(void **state) {
    (void)state;
    enum { N = 77 };
    float row[N], other[N];
    for (int i = 0; i < N; i++) row[i] = other[i] = uniform() - 0.5f;
    const uint64_t h = kk_hash_row(KK_HASH_START, row, N);
    assert_true(h == kk_hash_row(KK_HASH_START, other, N));
    for (int i = 0; i < N; i++) {
        for (int bit = 0; bit < 32; bit++) {
            uint32_t u;
            memcpy(&u, &row[i], sizeof u);
            u ^= 1u << bit;
            memcpy(&other[i], &u, sizeof u);
            assert_true(kk_hash_row(KK_HASH_START, other, N) != h);
            other[i] = row[i];
        }
    }
    other[1] = -row[1]; /* flips of sign bits in one lane must not cancel */
    other[9] = -row[9];
    assert_true(kk_hash_row(KK_HASH_START, other, N) != h);
    other[1] = row[1];
    other[9] = row[9] + 1;
    assert_true(kk_hash_row(kk_hash_row(1, row, N), other, N) !=
                kk_hash_row(kk_hash_row(1, other, N), row, N));
    assert_true(kk_hash_row(1, row, N) != kk_hash_row(1, row, N - 1));
}

static void stop_ids_come_from_both_lists(void **state) {
    (void)state;
    const int32_t model[] = {1, 106}, user[] = {7};
    const kk_stop both = {.model_ids = model, .n_model_ids = 2, .user_ids = user, .n_user_ids = 1};
    const kk_stop none = {0};
    assert_true(kk_stop_at(&both, 1) && kk_stop_at(&both, 106) && kk_stop_at(&both, 7));
    assert_false(kk_stop_at(&both, 0));
    assert_false(kk_stop_at(&none, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(filters_keep_what_a_sort_would_keep),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(penalties_move_logits_as_documented),
        cmocka_unit_test(penalties_look_back_over_their_window),
        cmocka_unit_test(a_choice_has_no_memory),
        cmocka_unit_test(draws_are_uniform_in_seed_and_position),
        cmocka_unit_test(broken_logits_do_not_break_the_sampler),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(a_large_vocabulary_is_quick),
        cmocka_unit_test(the_hash_sees_every_bit_and_the_order),
        cmocka_unit_test(stop_ids_come_from_both_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
