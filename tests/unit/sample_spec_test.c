/* sample_spec_test.c - the sampler against a second one that follows sample.h word by word and
 * goes about it differently: it sorts, walks ids backwards or in a drawn order, and sums in 128
 * bits.  Tokens are equal, not near.  Weights of all instruction sets are the same integers, and
 * log-probabilities are those of double arithmetic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/sample.h"
#include "backend/weigh.h"
#include "core/mathf.h"

__extension__ typedef unsigned __int128 wide;

static kk_mem mem;

static uint64_t rng_state = 11;
static uint32_t below(uint32_t n) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng_state >> 32) * n >> 32);
}
static float uniform(void) { return (float)below(1 << 24) * 0x1p-24f; }

static kk_sampler *sampler_of(int32_t vocab) {
    kk_sampler *s;
    assert_int_equal(kk_sampler_new(&s, &mem, vocab, NULL), KK_OK);
    return s;
}

/* ---- the second sampler ------------------------------------------------------------------ */

typedef struct {
    float v;
    int32_t id;
    uint64_t w;
} item;

static int by_rank(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (isnan(x->v) != isnan(y->v)) return isnan(x->v) ? 1 : -1;
    if (x->v > y->v || x->v < y->v) return x->v > y->v ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id_backwards(const void *a, const void *b) {
    const item *x = a, *y = b;
    return x->id > y->id ? -1 : 1;
}

static uint64_t weight_at(float v, float m, float temp) {
    return isnan(v) ? 0 : (uint64_t)floor((double)kk_exp((v - m) / temp) * 0x1p40);
}

/* Sums in an order that is drawn anew each time. */
static wide shuffled_sum(const item *c, int32_t n) {
    uint64_t *w = malloc((size_t)(n + 1) * sizeof *w);
    wide sum = 0;
    for (int32_t i = 0; i < n; i++) w[i] = c[i].w;
    for (int32_t i = n; i > 0; i--) {
        const uint32_t j = below((uint32_t)i);
        sum += w[j];
        w[j] = w[i - 1];
    }
    free(w);
    return sum;
}

static float penalised(const kk_sampling *how, const kk_sample_row *row, int32_t id, float v) {
    const int64_t last = how->penalty_last_n ? how->penalty_last_n : 64;
    int32_t count = 0;
    for (int64_t i = row->n - 1; i >= 0 && (last < 0 || i >= row->n - last); i--)
        count += row->history[i] == id;
    if (count == 0) return v;
    const float repeat = how->repeat_penalty > 0 ? how->repeat_penalty : 1;
    const float moved = v > 0 ? v / repeat : v * repeat;
    const float product = (float)count * how->frequency_penalty;
    const float less = moved - product;
    return less - how->presence_penalty;
}

static int32_t candidates_of(const kk_sampling *how, const kk_sample_row *row, int32_t vocab,
                             item *c) {
    int32_t n = 0;
    for (int32_t id = vocab - 1; id >= 0; id--) {
        float v = row->logits[id];
        for (size_t i = 0; i < row->n_bias; i++)
            if (row->bias[i].id == id) v = v + row->bias[i].bias;
        v = penalised(how, row, id, v);
        if (!row->mask || (row->mask[id / 32] & (1u << (id % 32))))
            c[n++] = (item){.v = v, .id = id};
    }
    qsort(c, (size_t)n, sizeof *c, by_rank);
    return n;
}

/* Of n candidates in rank those that the filters leave. */
static int32_t filter(const kk_sampling *how, item *c, int32_t n) {
    if (how->top_k && how->top_k < n) n = how->top_k;
    const float m = c[0].v;
    for (int32_t i = 0; i < n; i++) c[i].w = weight_at(c[i].v, m, 1);
    if (how->top_p > 0 && how->top_p < 1) {
        const wide product = shuffled_sum(c, n) * (wide)((double)how->top_p * 0x1p64);
        wide need = (product + (((wide)1 << 64) - 1)) >> 64, ahead = 0;
        int32_t kept = 0;
        if (need == 0) need = 1;
        while (kept < n && ahead < need) ahead += c[kept++].w;
        n = kept;
    }
    if (how->min_p > 0) {
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++)
            if (c[i].w >= (uint64_t)floor((double)how->min_p * 0x1p40)) c[kept++] = c[i];
        n = kept;
    }
    return n;
}

static int32_t second(const kk_sampling *how, const kk_sample_row *row, int32_t vocab) {
    item *c = calloc((size_t)vocab, sizeof *c);
    int32_t n = candidates_of(how, row, vocab, c), token = n ? c[0].id : -1;
    if (n && how->temp > 0 && isfinite(c[0].v)) {
        const float m = c[0].v;
        n = filter(how, c, n);
        for (int32_t i = 0; i < n; i++) c[i].w = weight_at(c[i].v, m, how->temp);
        const wide total = shuffled_sum(c, n);
        const wide r = (wide)kk_sample_bits(how->seed, (uint64_t)row->n) * total >> 64;
        qsort(c, (size_t)n, sizeof *c, by_id_backwards);
        wide up_to = total; /* ids up to and including c[i] */
        for (int32_t i = 0; i < n && up_to > r; up_to -= c[i++].w)
            if (c[i].w) token = c[i].id;
    }
    free(c);
    return token;
}

/* ---- tokens are equal -------------------------------------------------------------------- */

enum { VOCAB = 3000, HISTORY = 100 };

typedef struct {
    float logits[VOCAB];
    uint32_t mask[(VOCAB + 31) / 32];
    kk_logit_bias bias[5];
    int32_t history[HISTORY];
    kk_sample_row row;
} drawn;

/* Rows of many kinds: flat, peaked, full of ties, with values that are no numbers. */
static void draw_logits(drawn *d, int32_t vocab) {
    const uint32_t kind = below(6);
    const float spread = kind == 0 ? 0.01f : kind == 1 ? 6 : kind == 2 ? 80 : 20;
    for (int32_t i = 0; i < vocab; i++) {
        d->logits[i] = (uniform() - 0.5f) * spread;
        if (kind == 3) d->logits[i] = floorf(d->logits[i] * 0.5f); /* ties, and -0 */
        if (kind == 4 && below(40) == 0) d->logits[i] = below(2) ? NAN : -INFINITY;
    }
    if (kind == 5) d->logits[below((uint32_t)vocab)] = 30;
    if (kind == 4 && below(10) == 0) d->logits[below((uint32_t)vocab)] = INFINITY;
}

static void draw_row(drawn *d, int32_t vocab) {
    draw_logits(d, vocab);
    for (size_t i = 0; i < sizeof d->mask / sizeof *d->mask; i++) {
        d->mask[i] = below(3) ? UINT32_MAX : (uint32_t)(rng_state >> 20);
        if (below(9) == 0) d->mask[i] = 0;
    }
    for (int i = 0; i < 5; i++) {
        const float bias = below(8) ? 10 * uniform() - 5 : -INFINITY;
        d->bias[i] = (kk_logit_bias){(int32_t)below((uint32_t)vocab), bias};
    }
    d->bias[4].id = d->bias[0].id; /* two of one id */
    for (int i = 0; i < HISTORY; i++)
        d->history[i] = (int32_t)below(below(2) ? 20 : (uint32_t)vocab);
    for (int i = 0; i < HISTORY; i++)
        if (d->history[i] >= vocab) d->history[i] = 0;
    d->row = (kk_sample_row){.logits = d->logits, .history = d->history, .n = below(HISTORY + 1)};
    if (below(2)) d->row.bias = d->bias, d->row.n_bias = 1 + below(5);
    if (below(2)) d->row.mask = d->mask;
}

static kk_sampling draw_options(void) {
    kk_sampling how = {.seed = rng_state ^ (rng_state >> 31)};
    how.temp = below(8) ? 0.05f + 2 * uniform() * uniform() : below(2) ? 0 : 50;
    if (below(3) == 0) how.temp = 1;
    if (below(2)) how.top_k = 1 + (int32_t)below(below(2) ? 50 : 4000);
    if (below(2)) how.top_p = below(8) ? uniform() : 1e-9f;
    if (below(3) == 0) how.min_p = below(2) ? uniform() : uniform() * 1e-4f;
    if (below(2)) how.repeat_penalty = 0.8f + 0.6f * uniform();
    if (below(3) == 0) how.frequency_penalty = uniform() - 0.3f;
    if (below(3) == 0) how.presence_penalty = uniform() - 0.3f;
    how.penalty_last_n = below(2) ? (int32_t)below(80) - 1 : 0;
    return how;
}

static void a_second_sampler_chooses_the_same(void **state) {
    (void)state;
    static const int32_t vocabs[] = {1, 2, 31, 33, 97, 1024, 1025, VOCAB};
    drawn *d = malloc(sizeof *d);
    int none = 0;
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        kk_sampler *s = sampler_of(vocabs[v]);
        for (int i = 0; i < 400; i++) {
            draw_row(d, vocabs[v]);
            const kk_sampling how = draw_options();
            const int32_t want = second(&how, &d->row, vocabs[v]);
            assert_int_equal(kk_sample(s, &how, &d->row), want);
            none += want < 0;
        }
        kk_sampler_free(s);
    }
    assert_true(none > 0); /* masks that allow nothing were among them */
    free(d);
}

/* What fills a vocabulary of Gemma's size, whose blocks are many. */
static void a_large_vocabulary_is_no_exception(void **state) {
    (void)state;
    enum { LARGE = 262144 };
    float *logits = malloc(LARGE * sizeof *logits);
    kk_sampler *s = sampler_of(LARGE);
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i < LARGE; i++)
            logits[i] = shape == 0   ? 0.25f
                        : shape == 1 ? 20 * uniform()
                                     : 3 * (uniform() + uniform());
        const kk_sample_row row = {.logits = logits, .n = 0};
        for (int i = 0; i < 4; i++) {
            const kk_sampling how = {.temp = 0.8f,
                                     .top_p = i & 1 ? 0.9f : 0,
                                     .top_k = i & 2 ? 5000 : 0,
                                     .seed = (uint64_t)(10 * shape + i)};
            assert_int_equal(kk_sample(s, &how, &row), second(&how, &row, LARGE));
        }
    }
    kk_sampler_free(s);
    free(logits);
}

/* With p = 1 - 2^-24 and weights of 2^40 and 65,537, p W is 2^40 and a fraction: the first
 * candidate alone weighs less, and the second stays. */
static void a_share_is_rounded_up(void **state) {
    (void)state;
    float logits[2] = {0, -16.7f};
    while (weight_at(logits[1], 0, 1) < 65537) logits[1] = nextafterf(logits[1], 0);
    assert_true(weight_at(logits[1], 0, 1) == 65537);
    const kk_sample_row row = {.logits = logits};
    kk_sampler *s = sampler_of(2);
    int seen = 0;
    kk_sampling how = {.temp = 100, .top_p = 1 - 0x1p-24f};
    for (how.seed = 0; how.seed < 100; how.seed++) seen |= 1 << kk_sample(s, &how, &row);
    assert_int_equal(seen, 3);
    logits[1] = nextafterf(logits[1], -1);
    while (weight_at(logits[1], 0, 1) > 65536) logits[1] = nextafterf(logits[1], -17);
    seen = 0;
    for (how.seed = 0; how.seed < 100; how.seed++) seen |= 1 << kk_sample(s, &how, &row);
    assert_int_equal(seen, 1);
    kk_sampler_free(s);
}

/* ---- masks and biases -------------------------------------------------------------------- */

static void one_allowed_id_is_the_choice(void **state) {
    (void)state;
    enum { N = 70 };
    float logits[N];
    kk_sampler *s = sampler_of(N);
    for (int i = 0; i < N; i++) logits[i] = (float)i;
    const kk_sampling hows[] = {{.temp = 0},
                                {.temp = 1},
                                {.temp = 1, .top_k = 3},
                                {.temp = 2, .top_p = 0.5f, .min_p = 0.1f}};
    for (int32_t id = 0; id < N; id++) {
        uint32_t mask[3] = {0};
        mask[id / 32] = 1u << (id % 32);
        const kk_sample_row row = {.logits = logits, .mask = mask};
        for (int h = 0; h < 4; h++) assert_int_equal(kk_sample(s, &hows[h], &row), id);
        const float was = logits[id]; /* an allowed id is taken even where it is no number */
        logits[id] = NAN;
        for (int h = 0; h < 4; h++) assert_int_equal(kk_sample(s, &hows[h], &row), id);
        logits[id] = was;
    }
    uint32_t none[3] = {0, 0, ~63u}; /* bits beyond the vocabulary count for nothing */
    const kk_sample_row row = {.logits = logits, .mask = none};
    for (int h = 0; h < 4; h++) assert_int_equal(kk_sample(s, &hows[h], &row), -1);
    assert_false(kk_mask_allows_any(none, N));
    none[2] |= 32;
    assert_true(kk_mask_allows_any(none, N));
    assert_int_equal(kk_sample(s, &hows[0], &row), 69);
    kk_sampler_free(s);
}

static void biases_move_choices_and_wrong_ones_are_named(void **state) {
    (void)state;
    const float logits[4] = {3, 2, 1, 0};
    const kk_logit_bias to_two[] = {{2, 1.5f}, {2, 1}}, never[] = {{0, -INFINITY}};
    const kk_sampling greedy = {0}, drawn_ones = {.temp = 1, .seed = 4};
    kk_sampler *s = sampler_of(4);
    kk_sample_row row = {.logits = logits, .bias = to_two, .n_bias = 1};
    assert_int_equal(kk_sample(s, &greedy, &row), 0);
    row.n_bias = 2;
    assert_int_equal(kk_sample(s, &greedy, &row), 2);
    row = (kk_sample_row){.logits = logits, .bias = never, .n_bias = 1};
    assert_int_equal(kk_sample(s, &greedy, &row), 1);
    for (row.n = 0; row.n < 200; row.n++) assert_true(kk_sample(s, &drawn_ones, &row) != 0);
    const kk_logit_bias bad[] = {{4, 1}, {-1, 1}, {0, NAN}, {0, INFINITY}};
    for (int i = 0; i < 4; i++) {
        kk_err err;
        assert_int_equal(kk_bias_check(&bad[i], 1, 4, &err), KK_EINVAL);
        assert_non_null(strstr(err.msg, "bias"));
    }
    assert_int_equal(kk_bias_check(never, 1, 4, NULL), KK_OK);
    kk_sampler_free(s);
}

/* ---- weights ----------------------------------------------------------------------------- */

static void weights_are_the_same_integers_everywhere(void **state) {
    (void)state;
    static const char *const names[] = {"plain", "avx2", "avx512"};
    float v[KK_WEIGH_BLOCK];
    uint64_t w[KK_WEIGH_BLOCK];
    for (int trial = 0; trial < 60; trial++) {
        const int32_t n = trial < 50 ? 1 + trial : KK_WEIGH_BLOCK;
        const float temp = trial % 3 ? 1 : 0.1f + uniform();
        for (int32_t i = 0; i < n; i++) v[i] = trial == 59 ? 5 : 5 - 40 * uniform() * uniform();
        v[below((uint32_t)n)] = trial % 2 ? NAN : -INFINITY;
        v[0] = 5;
        for (int k = 0; k < 3; k++) {
            const kk_weigher *by = kk_weigher_named(names[k]);
            if (!by) continue;
            uint64_t sum = 0;
            by->each(v, n, 5, temp, w);
            for (int32_t i = 0; i < n; i++) {
                assert_true(w[i] == weight_at(v[i], 5, temp));
                sum += w[i];
            }
            assert_true(by->sum(v, n, 5, temp) == sum);
            assert_true(by->top(v, n) == 5);
        }
    }
    assert_null(kk_weigher_named("abacus"));
    v[0] = NAN;
    assert_true(isinf(kk_weigher_named(NULL)->top(v, 1)));
}

/* Total variation between the weights and the softmax in double: what sample.h promises. */
static double variation(const float *v, int32_t n, float temp) {
    double *p = malloc((size_t)n * sizeof *p), total = 0, weights = 0, apart = 0, m = -INFINITY;
    for (int32_t i = 0; i < n; i++) m = fmax(m, (double)v[i]);
    for (int32_t i = 0; i < n; i++) total += p[i] = exp(((double)v[i] - m) / (double)temp);
    for (int32_t i = 0; i < n; i++) weights += (double)weight_at(v[i], (float)m, temp);
    for (int32_t i = 0; i < n; i++)
        apart += fabs(p[i] / total - (double)weight_at(v[i], (float)m, temp) / weights);
    free(p);
    return apart / 2;
}

static void weights_are_near_the_softmax(void **state) {
    (void)state;
    enum { LARGE = 262144 };
    float *v = malloc(LARGE * sizeof *v);
    double worst = 0;
    for (int shape = 0; shape < 6; shape++) {
        for (int i = 0; i < LARGE; i++)
            v[i] = shape < 4 ? (float)(10 * shape + 1) * uniform() : 3 * (uniform() + uniform());
        if (shape == 5) v[7] = 30; /* all the others together weigh a millionth */
        worst = fmax(worst, variation(v, LARGE, 1));
        worst = fmax(worst, variation(v, LARGE, 0.7f));
    }
    print_message("total variation at most %.1e\n", worst);
    assert_true(worst < 8e-7);
    free(v);
}

static void exp_and_log_are_near_their_names(void **state) {
    (void)state;
    double worst_exp = 0, worst_log = 0;
    for (int i = 0; i < 2000000; i++) {
        const float x = -28 * (float)i / 2000000;
        worst_exp = fmax(worst_exp, fabs((double)kk_exp(x) / exp((double)x) - 1));
        const float y = kk_exp(17 * uniform());
        worst_log = fmax(worst_log, fabs((double)kk_log(y) - log((double)y)));
    }
    assert_true(worst_exp < 2e-7 && worst_log < 2e-6);
    assert_true(kk_exp(0) == 1 && kk_log(1) == 0);
    assert_true(fabs((double)kk_log(0.001f) - log((double)0.001f)) < 1e-6);
}

/* ---- log-probabilities ------------------------------------------------------------------- */

static void check_logprobs(kk_sampler *s, const float *v, int32_t n, int32_t id, int32_t best) {
    item *c = calloc((size_t)n, sizeof *c);
    double total = 0;
    kk_logprobs got;
    for (int32_t i = 0; i < n; i++) c[i] = (item){.v = v[i], .id = i};
    qsort(c, (size_t)n, sizeof *c, by_rank);
    for (int32_t i = 0; i < n; i++)
        if (!isnan(v[i])) total += exp((double)v[i] - (double)c[0].v);
    kk_sample_logprobs(s, v, id, best, &got);
    assert_int_equal(got.chosen.id, id);
    const double want = (double)v[id] - (double)c[0].v - log(total);
    assert_true(isnan(v[id]) || fabs((double)got.chosen.logprob - want) < 1e-5);
    assert_int_equal(got.n_best, best < n ? best : n);
    for (int32_t i = 0; i < got.n_best; i++) {
        const double p = (double)c[i].v - (double)c[0].v - log(total);
        assert_int_equal(got.best[i].id, c[i].id);
        if (isfinite(c[i].v)) assert_true(fabs((double)got.best[i].logprob - p) < 1e-5);
    }
    free(c);
}

static void log_probabilities_are_those_of_double(void **state) {
    (void)state;
    static const int32_t vocabs[] = {1, 3, 20, 21, 1030, VOCAB};
    drawn *d = malloc(sizeof *d);
    for (size_t k = 0; k < sizeof vocabs / sizeof *vocabs; k++) {
        kk_sampler *s = sampler_of(vocabs[k]);
        for (int i = 0; i < 100; i++) {
            draw_logits(d, vocabs[k]);
            bool sound = false;
            for (int32_t j = 0; j < vocabs[k]; j++) {
                if (isinf(d->logits[j])) d->logits[j] = -30;
                sound = sound || !isnan(d->logits[j]);
            }
            if (!sound) d->logits[0] = 1;
            const int32_t id = (int32_t)below((uint32_t)vocabs[k]);
            check_logprobs(s, d->logits, vocabs[k], id, (int32_t)below(KK_MAX_LOGPROBS + 1));
        }
        kk_sampler_free(s);
    }
    free(d);
}

static void log_probabilities_of_broken_rows_are_not_numbers(void **state) {
    (void)state;
    const float broken[3] = {1, INFINITY, 2}, empty[3] = {NAN, NAN, NAN};
    kk_sampler *s = sampler_of(3);
    kk_logprobs got;
    kk_sample_logprobs(s, broken, 1, 2, &got);
    assert_true(isnan(got.chosen.logprob) && got.n_best == 2 && got.best[0].id == 1);
    kk_sample_logprobs(s, empty, 0, 0, &got);
    assert_true(isnan(got.chosen.logprob) && got.n_best == 0);
    kk_sampler_free(s);
}

/* ---- memory ------------------------------------------------------------------------------ */

static void memory_may_fail(void **state) {
    (void)state;
    const int64_t live = kk_live_bytes();
    kk_sampler *s;
    kk_err err;
    for (int n = 1; n <= 2; n++) {
        kk_fault_after(n, false);
        assert_int_equal(kk_sampler_new(&s, &mem, 100, &err), KK_ENOMEM);
        kk_fault_after(0, false);
        assert_null(s);
    }
    assert_int_equal(kk_sampler_new(&s, &mem, (1 << 23) + 1, &err), KK_EINVAL);
    assert_non_null(strstr(err.msg, "8388609"));
    assert_int_equal(kk_live_bytes(), live);
    assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_sampler_chooses_the_same),
        cmocka_unit_test(a_large_vocabulary_is_no_exception),
        cmocka_unit_test(a_share_is_rounded_up),
        cmocka_unit_test(one_allowed_id_is_the_choice),
        cmocka_unit_test(biases_move_choices_and_wrong_ones_are_named),
        cmocka_unit_test(weights_are_the_same_integers_everywhere),
        cmocka_unit_test(weights_are_near_the_softmax),
        cmocka_unit_test(exp_and_log_are_near_their_names),
        cmocka_unit_test(log_probabilities_are_those_of_double),
        cmocka_unit_test(log_probabilities_of_broken_rows_are_not_numbers),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
