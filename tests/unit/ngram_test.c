/* ngram_test.c - the n-gram proposer drafts what a search of the whole timeline would.
 *
 * The oracle compares every earlier place with the end of the timeline.  Random timelines grow,
 * are taken back and go on differently behind the index's back, over alphabets small enough that
 * every suffix has rivals. */
#include "propose/ngram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_LEN = 400, MAX_DRAFT = 31 };

static uint64_t rng_state;
static uint32_t below(uint32_t n) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng_state >> 33) % n);
}

typedef struct {
    kk_mem mem;
    kk_ngram *g;
    int32_t tokens[MAX_LEN + MAX_DRAFT];
    int32_t len;
} world;

static void world_open(world *w) {
    memset(w, 0, sizeof *w);
    assert_int_equal(kk_ngram_new(&w->g, &w->mem, MAX_LEN, NULL), KK_OK);
}

static void world_close(world *w) {
    kk_ngram_free(w->g);
    assert_int_equal(w->mem.bytes[KK_MEM_WORKSPACE], 0);
}

/* Drafts behind the timeline, as a round does. */
static int32_t draft(world *w, int32_t max) {
    kk_draft d = {.self = w->g, .tokens = w->tokens, .len = w->len, .max = max, .n = -1};
    d.out = w->tokens + w->len;
    assert_int_equal(kk_propose_ngram.draft(&kk_propose_ngram, &d, 1, NULL), KK_OK);
    return d.n;
}

static void put(world *w, const int32_t *tokens, int32_t n) {
    memcpy(w->tokens + w->len, tokens, (size_t)n * sizeof *tokens);
    w->len += n;
}

/* ---- the oracle ------------------------------------------------------------------------- */

static int32_t matches(const int32_t *t, int32_t len, int32_t end) {
    int32_t k = 0;
    while (k < KK_NGRAM_MOST && k < end && t[end - 1 - k] == t[len - 1 - k]) k++;
    return k;
}

typedef struct {
    int32_t end, matched;
    int32_t rivals; /* places that match in KK_NGRAM_LEAST tokens at least */
} found;

static found search(const int32_t *t, int32_t len) {
    found f = {0};
    for (int32_t end = KK_NGRAM_LEAST; end < len; end++) {
        const int32_t k = matches(t, len, end);
        if (k < KK_NGRAM_LEAST) continue;
        f.rivals++;
        if (k >= f.matched) f.matched = k, f.end = end;
    }
    return f;
}

/* Whether all of the draft follows from end. */
static void check_copy(const world *w, int32_t end, int32_t n) {
    for (int32_t i = 0; i < n; i++) assert_int_equal(w->tokens[w->len + i], w->tokens[end + i]);
}

static void check(world *w) {
    const found f = search(w->tokens, w->len);
    const int32_t max = 1 + (int32_t)below(MAX_DRAFT);
    const int32_t n = draft(w, max);
    if (f.rivals > KK_NGRAM_LOOK && f.matched < KK_NGRAM_LONG) {
        /* Too many to look at all of them: some match is used, perhaps a shorter one. */
        assert_int_equal(n, max);
        assert_in_range(kk_ngram_matched(w->g), KK_NGRAM_LEAST, f.matched);
        return;
    }
    assert_int_equal(kk_ngram_matched(w->g), f.matched);
    assert_int_equal(n, f.end ? max : 0);
    check_copy(w, f.end, n);
}

/* ---- tests ------------------------------------------------------------------------------ */

static void grow(world *w, uint32_t letters) {
    int32_t n = 1 + (int32_t)below(below(4) ? 6 : 40);
    const int32_t from = w->len > 1 ? (int32_t)below((uint32_t)w->len) : 0;
    const bool repeat = w->len > 1 && below(3) == 0; /* something said before */
    for (int32_t i = 0; i < n && w->len < MAX_LEN; i++) {
        const int32_t next = repeat ? w->tokens[from + i] : (int32_t)below(letters);
        w->tokens[w->len++] = next;
    }
}

static void draws_what_a_full_search_finds(void **state) {
    (void)state;
    static const uint32_t alphabets[] = {1, 2, 3, 5, 9, 30, 200};
    rng_state = 1;
    for (int run = 0; run < 210; run++) {
        const uint32_t letters = alphabets[run % 7];
        world w;
        world_open(&w);
        for (int step = 0; step < 80; step++) {
            if (w.len > 1 && below(5) == 0) w.len -= (int32_t)below((uint32_t)w.len);
            if (w.len == MAX_LEN) w.len = 1 + (int32_t)below(MAX_LEN - 1);
            grow(&w, letters);
            if (below(4)) check(&w); /* now and then it changes twice before the index sees it */
        }
        world_close(&w);
    }
}

static void a_loop_is_drafted_in_full(void **state) {
    (void)state;
    world w;
    world_open(&w);
    put(&w, (int32_t[]){9, 1, 2, 3, 1, 2}, 6);
    assert_int_equal(draft(&w, 10), 10);
    static const int32_t want[10] = {3, 1, 2, 3, 1, 2, 3, 1, 2, 3};
    assert_memory_equal(w.tokens + w.len, want, sizeof want);
    world_close(&w);
}

static void the_latest_of_equals_wins_and_the_longest_of_all(void **state) {
    (void)state;
    world w;
    world_open(&w);
    put(&w, (int32_t[]){1, 2, 50, 1, 2, 60, 7, 1, 2}, 9);
    assert_int_equal(draft(&w, 1), 1);
    assert_int_equal(w.tokens[w.len], 60);
    w.len = 0;
    put(&w, (int32_t[]){7, 1, 2, 50, 1, 2, 60, 7, 1, 2}, 10);
    assert_int_equal(draft(&w, 1), 1);
    assert_int_equal(w.tokens[w.len], 50);
    assert_int_equal(kk_ngram_matched(w.g), 3);
    world_close(&w);
}

static void one_token_in_common_is_no_match(void **state) {
    (void)state;
    world w;
    world_open(&w);
    put(&w, (int32_t[]){4, 1, 5, 1}, 4);
    assert_int_equal(draft(&w, 8), 0);
    w.len = 1;
    assert_int_equal(draft(&w, 8), 0);
    world_close(&w);
}

/* The pair at the end has thousands of occurrences, and the only long match is the oldest. */
static void a_long_match_is_found_behind_any_number_of_short_ones(void **state) {
    (void)state;
    enum { LEN = 20000 };
    kk_mem mem = {0};
    kk_ngram *g;
    assert_int_equal(kk_ngram_new(&g, &mem, LEN, NULL), KK_OK);
    int32_t *t = malloc(LEN * sizeof *t);
    assert_non_null(t);
    static const int32_t line[] = {100, 101, 102, 103, 1, 2, 777};
    memcpy(t, line, sizeof line);
    int32_t len = 7;
    for (int32_t i = 0; len < LEN - 10; i++) t[len++] = 1000 + i, t[len++] = 1, t[len++] = 2;
    memcpy(t + len, line, 6 * sizeof *line);
    len += 6;
    int32_t out[1];
    kk_draft d = {.self = g, .tokens = t, .len = len, .out = out, .max = 1};
    assert_int_equal(kk_propose_ngram.draft(&kk_propose_ngram, &d, 1, NULL), KK_OK);
    assert_int_equal(d.n, 1);
    assert_int_equal(out[0], 777);
    free(t);
    kk_ngram_free(g);
}

static void drafting_takes_no_memory(void **state) {
    (void)state;
    rng_state = 5;
    world w;
    world_open(&w);
    kk_fault_after(1, true);
    for (int step = 0; step < 50; step++) {
        if (w.len > MAX_LEN / 2) w.len /= 2;
        grow(&w, 4);
        check(&w);
    }
    kk_fault_after(0, false);
    world_close(&w);
}

static void no_memory_is_said_and_leaves_nothing(void **state) {
    (void)state;
    const int64_t before = kk_live_blocks();
    for (int64_t n = 1;; n++) {
        kk_mem mem = {0};
        kk_ngram *g = (kk_ngram *)&mem;
        kk_err err;
        kk_fault_after(n, false);
        const kk_status st = kk_ngram_new(&g, &mem, 1000, &err);
        kk_fault_after(0, false);
        if (st == KK_OK) {
            assert_true(n > 2);
            assert_true(mem.bytes[KK_MEM_WORKSPACE] >= 5 * 1000 * (int64_t)sizeof(int32_t));
            kk_ngram_free(g);
            break;
        }
        assert_int_equal(st, KK_ENOMEM);
        assert_null(g);
        assert_int_equal(mem.bytes[KK_MEM_WORKSPACE], 0);
    }
    assert_int_equal(kk_live_blocks(), before);
    kk_ngram *g;
    kk_mem mem = {0};
    assert_int_equal(kk_ngram_new(&g, &mem, 0, NULL), KK_EINVAL);
    kk_ngram_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_what_a_full_search_finds),
        cmocka_unit_test(a_loop_is_drafted_in_full),
        cmocka_unit_test(the_latest_of_equals_wins_and_the_longest_of_all),
        cmocka_unit_test(one_token_in_common_is_no_match),
        cmocka_unit_test(a_long_match_is_found_behind_any_number_of_short_ones),
        cmocka_unit_test(drafting_takes_no_memory),
        cmocka_unit_test(no_memory_is_said_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
