/* placement_test.c - which pieces of experts' weights lie on the device: nothing moves without
 * reason, what is read most comes there, and there are never more than fit. */
#include "backend/placement.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"

enum { PIECE = 1000, MATS = 64, WEIGHTS = 6, MOVES = 32, CHOSEN = 8 };

static kk_placement p;
static int32_t moved; /* by `settle` */

static int setup(void **state) {
    (void)state;
    kk_placement_open(&p, PIECE);
    moved = 0;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    kk_placement_free(&p);
    return 0;
}

static int32_t add(int32_t n_mat, size_t bytes) {
    kk_err err = {0};
    int32_t index;
    assert_int_equal(kk_placement_add(&p, n_mat, bytes, &index, &err), KK_OK);
    return index;
}

/* Pieces on the device, counted one by one. */
static int64_t counted(void) {
    int64_t n = 0;
    for (int32_t w = 0; w < p.n_weights; w++)
        for (int32_t i = 0; i < p.weight[w].pieces; i++) n += p.weight[w].here[i];
    return n;
}

/* Carries out a plan in its order, and sees that no step breaks the limit. */
static int32_t carry_out(int32_t cap, int32_t *swaps) {
    kk_piece_move plan[512];
    const int64_t before = p.here;
    const int32_t n = kk_placement_plan(&p, plan, cap, swaps);
    assert_in_range(n, 0, cap);
    for (int32_t i = 0; i < n; i++) {
        const kk_piece_move *m = &plan[i];
        assert_true(p.weight[m->at.weight].here[m->at.piece] != m->enters);
        kk_placement_put(&p, m->at, m->enters);
        assert_true(p.here <= p.most || !m->enters);
    }
    assert_int_equal(p.here, counted());
    assert_true(p.here <= p.most || p.here == before - n);
    return n;
}

/* Until nothing more moves. */
static void fill(void) {
    int32_t swaps;
    while (carry_out(MOVES, &swaps)) continue;
}

static uint64_t seed = 1;
static double uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

/* CHOSEN matrices of each weight in so many forwards, by the chances' cumulative sums; distinct
 * ones, as a router's are. */
static void draw(int32_t forwards, const double *upto, const int32_t *names) {
    for (int32_t w = 0; w < p.n_weights; w++) {
        uint32_t reads[MATS] = {0};
        for (int32_t f = 0; f < forwards; f++) {
            bool taken[MATS] = {false};
            for (int32_t k = 0; k < CHOSEN;) {
                const double x = uniform() * upto[MATS - 1];
                int32_t e = 0;
                while (e < MATS - 1 && upto[e] < x) e++;
                if (taken[e]) continue;
                taken[e] = true;
                k++;
                reads[names[(e + w * 7) % MATS]]++; /* others in every weight */
            }
        }
        kk_placement_read(&p, w, reads);
    }
}

static void looks(int32_t n, const double *upto, const int32_t *names) {
    for (int32_t i = 0; i < n; i++) {
        int32_t swaps;
        kk_placement_age(&p);
        draw(32, upto, names);
        moved += carry_out(MOVES, &swaps);
    }
}

/* Chances of rank i are 1 / (i + 1)^power. */
static void zipf(double power, double *upto, int32_t *names) {
    double sum = 0;
    for (int32_t i = 0; i < MATS; i++) {
        sum += pow(i + 1, -power);
        upto[i] = sum;
        names[i] = (i * 37 + 11) % MATS; /* the popular ones lie anywhere */
    }
}

static double hit_rate(void) { return 1 - p.reads.host_bytes / p.reads.bytes; }

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The share of bytes that the best p.most pieces would have, if chances were known. */
static double best_rate(const double *chance) {
    static double worth[4096];
    double sum = 0, best = 0;
    int32_t n = 0;
    for (int32_t w = 0; w < p.n_weights; w++)
        for (int32_t i = 0; i < p.weight[w].pieces; i++) {
            double x = 0;
            for (int32_t m = 0; m < MATS; m++) {
                const double a = (double)m * (double)p.weight[w].mat_bytes, b = (double)i * PIECE;
                const double from = fmax(a, b);
                const double to = fmin(a + (double)p.weight[w].mat_bytes, b + PIECE);
                if (to > from) x += (to - from) * chance[w * MATS + m];
            }
            worth[n++] = x;
        }
    qsort(worth, (size_t)n, sizeof *worth, descending);
    for (int32_t i = 0; i < n; i++) {
        sum += worth[i];
        if (i < p.most) best += worth[i];
    }
    return best / sum;
}

/* ---- the tests ---------------------------------------------------------------------------- */

/* As many of every weight, from its start. */
static void test_even(void **state) {
    int32_t swaps;
    (void)state;
    for (int i = 0; i < WEIGHTS; i++) add(MATS, 2500); /* 160 pieces each */
    p.most = 333;
    assert_int_equal(carry_out(MOVES, &swaps), MOVES);
    fill();
    assert_int_equal(p.here, 333);
    for (int32_t w = 0; w < WEIGHTS; w++) {
        int32_t n = 0;
        while (n < 160 && p.weight[w].here[n]) n++;
        assert_in_range(n, 55, 56);
        for (int32_t i = n; i < 160; i++) assert_false(p.weight[w].here[i]);
    }
}

static void test_uniform_moves_nothing(void **state) {
    double upto[MATS];
    int32_t names[MATS];
    (void)state;
    for (int i = 0; i < WEIGHTS; i++) add(MATS, 2500);
    p.most = 320;
    fill();
    for (int look = 0; look < 20; look++) { /* the very same count of each */
        uint32_t reads[MATS];
        int32_t swaps;
        for (int i = 0; i < MATS; i++) reads[i] = 4;
        for (int32_t w = 0; w < WEIGHTS; w++) kk_placement_read(&p, w, reads);
        assert_int_equal(carry_out(MOVES, &swaps), 0);
        assert_int_equal(swaps, 0);
    }
    zipf(0, upto, names); /* drawn with equal chances, they differ by chance alone */
    looks(200, upto, names);
    assert_true(moved < 20);
    assert_true(fabs(hit_rate() - 1.0 / 3) < 0.01);
}

static void learns(double power, size_t bytes, double within) {
    double upto[MATS], chance[WEIGHTS * MATS] = {0};
    int32_t names[MATS];
    for (int i = 0; i < WEIGHTS; i++) add(MATS, bytes);
    p.most = p.pieces / 3;
    fill();
    zipf(power, upto, names);
    looks(150, upto, names);
    assert_true(moved > 40);
    /* From here on, against the best for what is read from here on. */
    p.reads = (kk_placement_reads){0};
    static float before[WEIGHTS][MATS];
    for (int32_t i = 0; i < 40; i++) {
        int32_t swaps;
        kk_placement_age(&p);
        for (int32_t w = 0; w < WEIGHTS; w++)
            memcpy(before[w], p.weight[w].reads, sizeof before[w]);
        draw(32, upto, names);
        for (int32_t w = 0; w < WEIGHTS; w++)
            for (int32_t m = 0; m < MATS; m++)
                chance[w * MATS + m] += (double)(p.weight[w].reads[m] - before[w][m]);
        carry_out(MOVES, &swaps);
    }
    const double best = best_rate(chance), rate = hit_rate();
    assert_true(rate > 0.4);                  /* a third lies there */
    assert_true(rate <= best + 1e-9 + 0.005); /* chances drift a little, and placement with them */
    assert_true(rate >= best - within);
}

/* Matrices of 2.5 pieces, of 0.55 and of 8; where they straddle pieces, these are placed one by
 * one. */
static void test_zipf(void **state) {
    (void)state;
    learns(1.0, 2500, 0.02);
}
static void test_zipf_small(void **state) {
    (void)state;
    learns(1.0, 550, 0.02);
}
static void test_zipf_whole(void **state) {
    (void)state;
    learns(1.3, 8000, 0.02);
}

/* A matrix that is read again and again comes whole, with the ends of pieces that it shares. */
static void test_straddling(void **state) {
    int32_t swaps;
    (void)state;
    const int32_t w = add(8, 1700); /* 13600 bytes: 14 pieces, the last not full */
    assert_int_equal(p.weight[w].pieces, 14);
    assert_int_equal(kk_placement_bytes(&p.weight[w]), 13600);
    p.most = 4;
    fill();
    for (int32_t i = 0; i < 14; i++) assert_int_equal(p.weight[w].here[i], i < 4);
    uint32_t reads[8] = {[5] = 100}; /* bytes 8500 to 10200 */
    kk_placement_read(&p, w, reads);
    assert_int_equal(p.reads.misses, 100);
    assert_int_equal(p.reads.hits, 0);
    assert_true(p.reads.host_bytes == 170000 && p.reads.bytes == 170000);
    assert_int_equal(carry_out(MOVES, &swaps), 6);
    assert_int_equal(swaps, 3);
    for (int32_t i = 0; i < 14; i++)
        assert_int_equal(p.weight[w].here[i], i == 0 || (i >= 8 && i <= 10));
    kk_placement_read(&p, w, reads);
    assert_int_equal(p.reads.hits, 100);
    /* Its neighbours lie there in part. */
    uint32_t next[8] = {[6] = 1}; /* bytes 10200 to 11900, of which 800 are in piece 10 */
    const double was = p.reads.host_bytes;
    kk_placement_read(&p, w, next);
    assert_int_equal(p.reads.misses, 101);
    assert_true(p.reads.host_bytes - was == 900);
    /* The last piece is half empty; its matrix is counted by what it has. */
    uint32_t last[8] = {[7] = 1};
    kk_placement_read(&p, w, last);
    assert_true(p.reads.host_bytes - was == 900 + 1700);
}

/* A swap that gains a few reads of a piece, or no more than chance does, is left. */
static void test_doubt(void **state) {
    int32_t swaps;
    (void)state;
    const int32_t w = add(4, PIECE);
    p.most = 2;
    fill();
    uint32_t reads[4] = {20, 20, 21, 30};
    kk_placement_read(&p, w, reads);
    assert_int_equal(carry_out(MOVES, &swaps), 0);
    uint32_t more[4] = {0, 0, 0, 20}; /* 50 against 20: 30 > 4 * sqrt(70) is not so */
    kk_placement_read(&p, w, more);
    assert_int_equal(carry_out(MOVES, &swaps), 0);
    uint32_t enough[4] = {0, 0, 0, 10}; /* 60 against 20: 40 > 4 * sqrt(80) */
    kk_placement_read(&p, w, enough);
    assert_int_equal(carry_out(MOVES, &swaps), 2);
    assert_int_equal(swaps, 1);
    assert_true(p.weight[w].here[3]);
    assert_int_equal(carry_out(MOVES, &swaps), 0);
}

/* A swap that is certain, and gains 8 reads of a piece or more than that. */
static void test_least(void **state) {
    int32_t swaps;
    (void)state;
    const int32_t w = add(1, PIECE), s = add(1, 1250); /* a quarter of the second piece is used */
    p.most = 2;
    fill();
    assert_true(p.weight[w].here[0] && p.weight[s].here[0] && !p.weight[s].here[1]);
    uint32_t reads[1] = {32};
    kk_placement_read(&p, s, reads);
    assert_int_equal(carry_out(MOVES, &swaps), 0);
    reads[0] = 1;
    kk_placement_read(&p, s, reads);
    assert_int_equal(carry_out(MOVES, &swaps), 2);
    assert_true(!p.weight[w].here[0] && p.weight[s].here[0] && p.weight[s].here[1]);
}

/* One piece more or less than fits. */
static void test_limits(void **state) {
    int32_t swaps;
    (void)state;
    const int32_t a = add(3, 3333), b = add(1, PIECE), c = add(1, 1); /* 10, 1 and 1 pieces */
    assert_int_equal(p.pieces, 12);
    p.most = 0;
    assert_int_equal(carry_out(MOVES, &swaps), 0);
    p.most = 12;
    assert_int_equal(carry_out(MOVES, &swaps), 12);
    assert_int_equal(carry_out(MOVES, &swaps), 0);
    p.most = INT64_MAX;
    assert_int_equal(carry_out(MOVES, &swaps), 0);
    p.most = 11; /* the deepest leaves first */
    assert_int_equal(carry_out(MOVES, &swaps), 1);
    assert_false(p.weight[a].here[9]);
    uint32_t reads[3] = {0, 0, 5};
    kk_placement_read(&p, a, reads);
    p.most = 10; /* what is not read, before what is */
    assert_int_equal(carry_out(MOVES, &swaps), 1);
    assert_false(p.weight[a].here[5]);
    assert_true(p.weight[a].here[6] && p.weight[b].here[0] && p.weight[c].here[0]);
    p.most = 5;
    assert_int_equal(carry_out(3, &swaps), 3);
    assert_int_equal(p.here, 7);
    assert_int_equal(carry_out(3, &swaps), 2);
    kk_placement_remove(&p, a);
    assert_int_equal(p.here, counted());
    assert_int_equal(p.pieces, 2);
    assert_int_equal(add(2, 500), a); /* its place is used again */
    assert_int_equal(p.pieces, 3);
}

static void test_refused(void **state) {
    kk_err err = {0};
    int32_t index;
    (void)state;
    assert_int_equal(kk_placement_add(&p, 0, 10, &index, &err), KK_EINVAL);
    assert_int_equal(kk_placement_add(&p, 1, 0, &index, &err), KK_EINVAL);
    assert_int_equal(kk_placement_add(&p, 1 << 20, SIZE_MAX / 4, &index, &err), KK_EINVAL);
    assert_int_equal(kk_placement_add(&p, 1, (size_t)1 << 50, &index, &err), KK_EINVAL);
    assert_int_equal(p.pieces, 0);
}

/* Every allocation fails once; nothing is half there. */
static void test_faults(void **state) {
    (void)state;
    for (int64_t n = 1; n < 6; n++) {
        kk_err err = {0};
        int32_t index;
        kk_placement_free(&p);
        const int64_t blocks = kk_live_blocks();
        kk_fault_after(n, false);
        const kk_status st = kk_placement_add(&p, 4, 700, &index, &err);
        kk_fault_after(0, false);
        assert_int_equal(st, n < 5 ? KK_ENOMEM : KK_OK);
        assert_int_equal(p.pieces, n < 5 ? 0 : 3);
        kk_placement_free(&p);
        assert_int_equal(kk_live_blocks(), blocks);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_even),       TEST(test_uniform_moves_nothing),
                                       TEST(test_zipf),       TEST(test_zipf_small),
                                       TEST(test_zipf_whole), TEST(test_straddling),
                                       TEST(test_doubt),      TEST(test_least),
                                       TEST(test_limits),     TEST(test_refused),
                                       TEST(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
