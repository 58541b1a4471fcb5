/* controller_test.c - the controller against simulated machines, proposers and texts.
 *
 * A machine is what rounds cost by their rows; a proposer what drafts cost and how often each
 * depth is right.  Times are reported with noise of 20 % and, one in a hundred, ten times too
 * long.  What is judged is free of both: expected tokens of the chosen lengths over their true
 * times, against plain decoding and against the best fixed length, found by trying all. */
#include "propose/controller.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 6, MOST_ROWS = 64 };

static uint64_t rng_state;
static double drawn(void) { /* in [0, 1) */
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng_state >> 11) / 9007199254740992.0;
}

/* ---- machines --------------------------------------------------------------------------- */

static double dense(int32_t rows) { return 1 + 0.1 * (rows - 1); } /* bound by memory */
static double experts(int32_t rows) {                              /* more rows read more weights */
    static const double at[] = {1,   1.5,  2,    2.4,  2.75, 3.05, 3.3,  3.55,
                                3.8, 4.05, 4.25, 4.45, 4.6,  4.75, 4.85, 4.95};
    return rows <= 16 ? at[rows - 1] : 4.95 + 0.15 * (rows - 16);
}
static double compute(int32_t rows) { return rows; } /* a row is a row */
static double tiles(int32_t rows) {                  /* rows come in eights */
    return 1 + 0.02 * (rows - 1) + 0.5 * ((rows - 1) / 8);
}

typedef struct {
    const char *name;
    double (*verify)(int32_t rows);
    double draft, draft_row; /* cost of a draft, and of each token in it; none: free */
    double slower;           /* grows by this every round */
    /* by how much longer the first of several alike takes, when caches hold other things: of
     * drafting rounds the draft and the forward, of plain rounds the forward */
    double cold_draft, cold_verify, cold_plain;
} machine;

static bool is_free(const machine *m) { return m->draft + m->draft_row <= 0; }
static double draft_time(const machine *m, int32_t n) {
    return n ? m->draft + m->draft_row * n : 0;
}

typedef struct {
    double first, later; /* chance that the first token is right, and by what it falls per depth */
} text;

static double tokens_of(const text *t, int32_t n) {
    double rate = t->first, alive = 1, sum = 1;
    for (int32_t i = 0; i < n; i++, rate *= t->later) sum += alive *= rate;
    return sum;
}

/* ---- running ---------------------------------------------------------------------------- */

typedef struct {
    machine m;
    kk_costs costs;
    double scale;  /* of all times, by now */
    bool drafting; /* in the last round */
    /* what was played since the last reset */
    double tokens, time;
    int64_t rounds, drafted, explored;
} world;

static world new_world(machine m, uint64_t seed) {
    rng_state = seed * 7919 + 12345;
    for (int i = 0; i < 8; i++) drawn();
    return (world){.m = m, .scale = 1};
}

static void reset(world *w) {
    w->tokens = w->time = 0;
    w->rounds = w->drafted = w->explored = 0;
}

/* As a clock would show it. */
static double shown(const world *w, double t) {
    const double noise = 1 + 0.34 * (2 * drawn() - 1); /* standard deviation 0.2 */
    return 0.01 * w->scale * t * noise * (drawn() < 0.01 ? 10 : 1);
}

typedef struct {
    kk_acceptance seen;
    text t;
    int32_t max;
    int64_t drafted;
} session;

/* A session with one proposer. */
static kk_choice choice_of(kk_acceptance *seen, int32_t max, bool is_free) {
    return (kk_choice){.from = {{.seen = seen, .max = max, .free = is_free}}, .n_from = 1};
}

static int32_t accepted(const text *t, int32_t n) {
    int32_t right = 0;
    for (double rate = t->first; right < n && drawn() < rate; rate *= t->later) right++;
    return right;
}

static void play_round(world *w, session *s, int32_t n) {
    kk_choice c[8];
    assert_true(n <= 8);
    for (int32_t i = 0; i < n; i++) c[i] = choice_of(&s[i].seen, s[i].max, is_free(&w->m));
    kk_controller_choose(&w->costs, c, n, MOST_ROWS);
    int32_t drafted = 0;
    bool exploring = false;
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(c[i].n, 0, s[i].max);
        assert_true(c[i].n > 0 || !c[i].exploring);
        drafted += c[i].n;
        s[i].drafted += c[i].n;
        exploring |= c[i].exploring;
        w->tokens += tokens_of(&s[i].t, c[i].n);
    }
    assert_true(n + drafted <= MOST_ROWS);
    double verify = w->m.verify(n + drafted), draft = draft_time(&w->m, drafted);
    if (w->drafting != (drafted > 0)) {
        verify *= 1 + (drafted > 0 ? w->m.cold_verify : w->m.cold_plain);
        draft *= 1 + w->m.cold_draft;
        w->drafting = drafted > 0;
    }
    const kk_spent spent = {.sessions = n,
                            .rows = n + drafted,
                            .drafted = is_free(&w->m) ? 0 : drafted,
                            .verify_s = shown(w, verify),
                            .draft_s = shown(w, draft),
                            .exploring = exploring};
    kk_controller_spent(&w->costs, &spent);
    for (int32_t i = 0; i < n; i++) {
        kk_controller_saw(&w->costs, &c[i], c[i].n, accepted(&s[i].t, c[i].n));
        /* Drafts that cost nothing are at hand, and a plain round judges their first token. */
        if (is_free(&w->m) && c[i].n == 0 && s[i].max > 0)
            kk_controller_watched(&c[i], 0, 1, accepted(&s[i].t, 1));
    }
    w->time += verify + draft;
    w->rounds++;
    w->drafted += drafted;
    w->explored += exploring;
    w->scale += w->m.slower;
}

static void play(world *w, session *s, int32_t n, int rounds) {
    for (int i = 0; i < rounds; i++) play_round(w, s, n);
}

static double best_rate(const machine *m, const text *t, int32_t max) {
    double best = 0;
    for (int32_t n = 0; n <= max; n++) {
        const double rate = tokens_of(t, n) / (m->verify(1 + n) + draft_time(m, n));
        if (rate > best) best = rate;
    }
    return best;
}

/* Mean over seeds of the rate reached, over the best fixed one. */
static double reached(machine m, text t, int32_t max, int rounds) {
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        world w = new_world(m, seed);
        session s = {.t = t, .max = max};
        play(&w, &s, 1, rounds);
        sum += w.tokens / w.time;
    }
    return sum / SEEDS / best_rate(&m, &t, max);
}

static void expect(double got, double least, const machine *m, const text *t, int32_t max) {
    if (got >= least) return;
    print_message("%s, draft %.2f + %.2f a token, right %.3f falling by %.2f, at most %d: %.4f\n",
                  m->name, m->draft, m->draft_row, t->first, t->later, max, got);
    fail();
}

static const machine machines[] = {{.name = "dense", .verify = dense},
                                   {.name = "experts", .verify = experts},
                                   {.name = "tiles", .verify = tiles},
                                   {.name = "compute", .verify = compute}};
static const double drafters[][2] = {{0, 0}, {0.1, 0}, {0.3, 0}, {0.2, 0.05}, {1, 0}};
static const int32_t lengths[] = {1, 4, 7, 15};
enum { MACHINES = 4, CHEAP_DRAFTERS = 4, DRAFTERS = 5, LENGTHS = 4 };

static machine with_drafter(int i, int j) {
    machine m = machines[i];
    m.draft = drafters[j][0], m.draft_row = drafters[j][1];
    return m;
}

/* ---- what it must reach ----------------------------------------------------------------- */

static void a_useless_proposer_costs_little(void **state) {
    (void)state;
    static const text useless[] = {{0, 1}, {0.1, 1}};
    for (int i = 0; i < MACHINES; i++)
        for (int j = 0; j < DRAFTERS; j++)
            for (int k = 0; k < LENGTHS; k++)
                for (int t = 0; t < 2; t++) {
                    const machine m = with_drafter(i, j);
                    const double plain = 1 / best_rate(&m, &useless[t], lengths[k]);
                    const double got = reached(m, useless[t], lengths[k], 300) / plain;
                    expect(got, 0.97, &m, &useless[t], lengths[k]);
                }
    const machine m = with_drafter(1, 2);
    expect(reached(m, useless[0], 15, 5000), 0.985, &m, &useless[0], 15);
}

/* A new session on an engine that knows its costs. */
static void also_in_a_short_answer(void **state) {
    (void)state;
    const text middling = {0.6, 1}, useless = {0, 1};
    for (int i = 0; i < MACHINES; i++)
        for (int j = 0; j < DRAFTERS; j++)
            for (int k = 0; k < LENGTHS; k++) {
                const machine m = with_drafter(i, j);
                double sum = 0;
                for (uint64_t seed = 1; seed <= SEEDS; seed++) {
                    world w = new_world(m, seed);
                    session before = {.t = middling, .max = lengths[k]};
                    session s = {.t = useless, .max = lengths[k]};
                    play(&w, &before, 1, 200);
                    reset(&w);
                    play(&w, &s, 1, 128);
                    sum += w.tokens / w.time;
                }
                expect(sum / SEEDS, 0.965, &m, &useless, lengths[k]);
            }
}

/* What sessions saw, the next one begins with: it may be mistaken, and must not cost much. */
static void others_may_be_wrong(void **state) {
    (void)state;
    const text good = {0.95, 1}, useless = {0, 1};
    for (int i = 0; i < MACHINES; i++)
        for (int j = 0; j < DRAFTERS; j++) {
            const machine m = with_drafter(i, j);
            double sum = 0;
            for (uint64_t seed = 1; seed <= SEEDS; seed++) {
                world w = new_world(m, seed);
                kk_acceptance known = {0};
                session before = {.t = good, .max = 7};
                play(&w, &before, 1, 200);
                kk_acceptance_pool(&known, &before.seen);
                reset(&w);
                for (int k = 0; k < 4; k++) { /* four short answers */
                    session s = {.t = useless, .max = 7};
                    kk_acceptance_begin(&s.seen, &known);
                    play(&w, &s, 1, 100);
                    kk_acceptance_pool(&known, &s.seen);
                }
                sum += w.tokens / w.time;
            }
            expect(sum / SEEDS, 0.95, &m, &useless, 7);
        }
}

/* And where they were right, even a very short answer gains. */
static void others_help_a_short_answer(void **state) {
    (void)state;
    const text good = {0.95, 1};
    const machine m = with_drafter(0, 1);
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        world w = new_world(m, seed);
        kk_acceptance known = {0};
        session before = {.t = good, .max = 7};
        play(&w, &before, 1, 100);
        kk_acceptance_pool(&known, &before.seen);
        reset(&w);
        for (int k = 0; k < 20; k++) {
            session s = {.t = good, .max = 7};
            kk_acceptance_begin(&s.seen, &known);
            play(&w, &s, 1, 3);
            kk_acceptance_pool(&known, &s.seen);
        }
        sum += w.tokens / w.time;
    }
    expect(sum / SEEDS / best_rate(&m, &good, 7), 0.9, &m, &good, 7);
}

static void a_good_proposer_comes_near_the_best_fixed_length(void **state) {
    (void)state;
    static const text texts[] = {{0.3, 1}, {0.6, 1},   {0.744, 1}, {0.9, 1},
                                 {1, 1},   {0.6, 0.8}, {0.9, 0.8}, {1, 0.9}};
    for (int i = 0; i < MACHINES; i++)
        for (int j = 0; j < CHEAP_DRAFTERS; j++)
            for (int k = 1; k < LENGTHS; k += 2)
                for (int t = 0; t < 8; t++) {
                    const machine m = with_drafter(i, j);
                    const double got = reached(m, texts[t], lengths[k], 1000);
                    expect(got, 0.935, &m, &texts[t], lengths[k]);
                }
    const machine slow = with_drafter(0, 4);
    expect(reached(slow, texts[2], 15, 5000), 0.95, &slow, &texts[2], 15);
    expect(reached(slow, texts[3], 15, 5000), 0.95, &slow, &texts[3], 15);
}

static void it_is_found_soon(void **state) {
    (void)state;
    static const text texts[] = {{0.744, 1}, {0.9, 1}, {1, 1}};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < CHEAP_DRAFTERS; j++)
            for (int t = 0; t < 3; t++) {
                const machine m = with_drafter(i, j);
                expect(reached(m, texts[t], 15, 300), 0.92, &m, &texts[t], 15);
            }
}

/* ---- changes ---------------------------------------------------------------------------- */

static void a_change_of_text_is_noticed(void **state) {
    (void)state;
    const text good = {0.9, 1}, useless = {0, 1};
    for (int i = 0; i < 3; i++) {
        const machine m = with_drafter(i, 1);
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            world w = new_world(m, seed);
            session s = {.t = good, .max = 15};
            play(&w, &s, 1, 400);
            s.t = useless;
            reset(&w);
            play(&w, &s, 1, 200);
            expect(w.tokens / w.time, 0.85, &m, &useless, 15);
            play(&w, &s, 1, 1000);
            s.t = good;
            play(&w, &s, 1, 250); /* to notice: exploratory drafts are rare by now */
            reset(&w);
            play(&w, &s, 1, 200);
            expect(w.tokens / w.time / best_rate(&m, &good, 15), 0.9, &m, &good, 15);
        }
    }
}

/* Contexts grow, and so do costs. */
static void costs_are_followed(void **state) {
    (void)state;
    const text good = {0.744, 1};
    machine m = with_drafter(0, 2);
    m.slower = 0.001;
    world w = new_world(m, 3);
    session s = {.t = good, .max = 15};
    play(&w, &s, 1, 2000); /* three times as slow now */
    expect(w.tokens / w.time / best_rate(&m, &good, 15), 0.95, &m, &good, 15);
    const int32_t n = (int32_t)(w.drafted / w.rounds);
    const double rows[2] = {1, n + 1};
    for (int i = 0; i < 2; i++) {
        const double truth = 0.01 * w.scale * dense((int32_t)rows[i]);
        const double known = kk_cost_at(&w.costs.verify, (int32_t)rows[i]);
        assert_true(known > 0.85 * truth && known < 1.15 * truth);
    }
}

/* Rounds behind a long context, drafted and plain, and then only plain ones behind a short one. */
static void drafts_grow_cheaper_with_plain_rounds(void **state) {
    (void)state;
    const double draft_s = 0.4;
    kk_costs costs = {0};
    for (int k = 0; k < 120; k++) {
        const bool drafts = k % 2;
        const int32_t rows = drafts ? 8 : 1;
        kk_controller_spent(&costs, &(kk_spent){.sessions = 1,
                                                .rows = rows,
                                                .drafted = drafts ? 7 : 0,
                                                .verify_s = 3 * dense(rows),
                                                .draft_s = drafts ? 3 * draft_s : 0});
    }
    for (int k = 0; k < 300; k++)
        kk_controller_spent(&costs, &(kk_spent){.sessions = 1, .rows = 1, .verify_s = dense(1)});
    /* Most of the way: part of what plain rounds gain is their own. */
    assert_true(kk_cost_at(&costs.draft, 7) > 0.9 * draft_s);
    assert_true(kk_cost_at(&costs.draft, 7) < 1.7 * draft_s);
}

/* Drafts by a short head are counted apart: neither head's cost moves the other's, a head that was
 * never measured costs what the other does, and the choice is by the cost of the head that would
 * draft. */
static void heads_have_costs_of_their_own(void **state) {
    (void)state;
    const double full_s = 0.6, short_s = 0.15;
    kk_costs costs = {0};
    for (int k = 0; k < 200; k++) {
        const bool drafts = k % 2, brief = k % 4 == 1;
        kk_controller_spent(&costs, &(kk_spent){.sessions = 1,
                                                .rows = drafts ? 4 : 1,
                                                .drafted = drafts ? 3 : 0,
                                                .verify_s = dense(drafts ? 4 : 1),
                                                .draft_s = brief    ? short_s
                                                           : drafts ? full_s
                                                                    : 0,
                                                .short_head = brief});
    }
    assert_true(fabs(kk_cost_at(&costs.draft, 3) - full_s) < 0.01);
    assert_true(fabs(kk_cost_at(&costs.draft_short, 3) - short_s) < 0.01);
    assert_true(fabs(kk_cost_at(&costs.verify, 1) - 1) < 0.01);
    /* 1.74 tokens for a forward of 1.3 plain rounds and a draft of 0.6 or of 0.15; nothing may be
     * explored. */
    kk_acceptance seen = {
        .tried = {{60, 60, 60}}, .right = {{27, 27, 27}}, .budget = {.exploration = -10}};
    kk_choice full = choice_of(&seen, 3, false), brief = full;
    brief.from[0].short_head = true;
    kk_controller_choose(&costs, &full, 1, MOST_ROWS);
    kk_controller_choose(&costs, &brief, 1, MOST_ROWS);
    assert_int_equal(full.n, 0);
    assert_true(brief.n > 0);
    costs.draft_short = (kk_cost_table){0};
    kk_controller_choose(&costs, &brief, 1, MOST_ROWS);
    assert_int_equal(brief.n, 0);
    costs.draft = (kk_cost_table){0};
    kk_controller_spent(&costs, &(kk_spent){.sessions = 1,
                                            .rows = 4,
                                            .drafted = 3,
                                            .verify_s = dense(4),
                                            .draft_s = short_s,
                                            .short_head = true});
    kk_controller_choose(&costs, &full, 1, MOST_ROWS);
    assert_true(full.n > 0);
}

/* A small model on a processor, in whose caches either the verifier or the drafter fits: what a
 * draft costs round after round is less than a single one shows. */
static double cached(int32_t rows) { return rows == 1 ? 1 : 1.3 + 0.28 * (rows - 1); }
static machine small_model(void) {
    return (machine){.name = "small",
                     .verify = cached,
                     .draft = 0.7,
                     .draft_row = 0.1,
                     .cold_draft = 0.5,
                     .cold_verify = 0.15,
                     .cold_plain = 0.35};
}

/* Sessions that know nothing of each other, on an engine that knows its costs, with answers of 60
 * rounds; between them others decode plainly, which is not judged. */
static double strangers(machine m, text t) {
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        world w = new_world(m, seed);
        session before = {.t = t, .max = 7};
        play(&w, &before, 1, 1000);
        reset(&w);
        for (int k = 0; k < 10; k++) {
            session s = {.t = t, .max = 7}, plain = {.max = 0};
            play(&w, &s, 1, 60);
            const double tokens = w.tokens, time = w.time;
            play(&w, &plain, 1, 120);
            w.tokens = tokens, w.time = time;
        }
        sum += w.tokens / w.time;
    }
    return sum / SEEDS / best_rate(&m, &t, 7);
}

static void dear_drafts_and_cold_caches_do_not_hide_what_pays(void **state) {
    (void)state;
    static const text good[] = {{0.9, 1}, {0.95, 1}, {0.98, 1}, {0.99, 1}};
    static const text poor[] = {{0, 1}, {0.1, 1}, {0.5, 1}, {0.7, 1}};
    const machine m = small_model();
    for (int t = 0; t < 4; t++) {
        expect(reached(m, good[t], 7, 1000), 0.92, &m, &good[t], 7);
        expect(strangers(m, good[t]), 0.92, &m, &good[t], 7);
        expect(reached(m, poor[t], 7, 300), 0.97, &m, &poor[t], 7); /* plain is the best */
    }
}

/* ---- several sessions ------------------------------------------------------------------- */

static double best_pair(const machine *m, const text *a, const text *b, int32_t max) {
    double best = 0;
    for (int32_t i = 0; i <= max; i++)
        for (int32_t j = 0; j <= max; j++) {
            const double time = m->verify(2 + i + j) + draft_time(m, i + j);
            const double rate = (tokens_of(a, i) + tokens_of(b, j)) / time;
            if (rate > best) best = rate;
        }
    return best;
}

static void sessions_are_chosen_for_together(void **state) {
    (void)state;
    static const text pairs[][2] = {
        {{0.9, 1}, {0, 1}}, {{0.9, 1}, {0.6, 1}}, {{0.744, 1}, {0.744, 1}}, {{0.1, 1}, {0, 1}}};
    for (int i = 0; i < MACHINES; i++)
        for (int k = 0; k < 4; k++) {
            const machine m = with_drafter(i, 1);
            double sum = 0;
            for (uint64_t seed = 1; seed <= SEEDS; seed++) {
                world w = new_world(m, seed);
                session s[2] = {{.t = pairs[k][0], .max = 15}, {.t = pairs[k][1], .max = 15}};
                play(&w, s, 2, 1000);
                sum += w.tokens / w.time;
                if (k == 0 && i != 3) assert_true(s[1].drafted * 10 < s[0].drafted);
            }
            const double best = best_pair(&m, &pairs[k][0], &pairs[k][1], 15);
            expect(sum / SEEDS / best, i == 1 ? 0.92 : 0.93, &m, &pairs[k][0], 15);
        }
}

/* Rows are for those who make most of them. */
static void rows_are_shared_out_by_chance_of_success(void **state) {
    (void)state;
    const text good = {0.95, 1}, poor = {0.5, 1};
    world w = new_world(with_drafter(0, 0), 1);
    session s[3] = {{.t = poor, .max = 15}, {.t = good, .max = 15}, {.t = poor, .max = 15}};
    play(&w, s, 3, 500);
    kk_choice c[3];
    w.costs.since_plain = 0;
    for (int i = 0; i < 3; i++) c[i] = choice_of(&s[i].seen, 15, true);
    kk_controller_choose(&w.costs, c, 3, 3 + 4);
    assert_int_equal(c[0].n + c[1].n + c[2].n, 4);
    assert_true(c[1].n >= 3);
    kk_controller_choose(&w.costs, c, 3, 3);
    assert_int_equal(c[0].n + c[1].n + c[2].n, 0);
    c[1].from[0].max = 0;
    kk_controller_choose(&w.costs, c, 3, MOST_ROWS);
    assert_int_equal(c[1].n, 0);
}

/* ---- what it is made of ----------------------------------------------------------------- */

static void plain_rounds_come_first_and_then_an_exploratory_draft(void **state) {
    (void)state;
    kk_costs costs = {0};
    kk_acceptance seen = {0};
    kk_choice c = choice_of(&seen, 15, false);
    for (int i = 0; i < 2; i++) {
        kk_controller_choose(&costs, &c, 1, MOST_ROWS);
        assert_int_equal(c.n, 0);
        kk_controller_spent(&costs, &(kk_spent){.sessions = 1, .rows = 1, .verify_s = 0.01});
        kk_controller_saw(&costs, &c, 0, 0);
    }
    kk_controller_choose(&costs, &c, 1, MOST_ROWS);
    assert_true(c.n > 0 && c.exploring);
}

static void exploration_keeps_to_its_budget(void **state) {
    (void)state;
    const text useless = {0.05, 1};
    for (int i = 0; i < MACHINES; i++) {
        world w = new_world(with_drafter(i, 2), 1);
        session s = {.t = useless, .max = 15};
        play(&w, &s, 1, 4000);
        assert_true(w.explored > 10);
        assert_true(w.costs.exploring_s > 0 && w.costs.exploring_s < 0.015 * w.costs.total_s);
    }
}

static void costs_between_measurements_rise_evenly(void **state) {
    (void)state;
    kk_costs costs = {0};
    assert_true(kk_cost_at(&costs.verify, 4) <= 0);
    static const int32_t rows[] = {1, 5, 9};
    for (int k = 0; k < 60; k++) {
        const int32_t r = rows[k % 3];
        kk_controller_spent(&costs, &(kk_spent){.sessions = 1, .rows = r, .verify_s = dense(r)});
    }
    for (int32_t r = 1; r < 100; r++) {
        const double t = kk_cost_at(&costs.verify, r);
        assert_true(t > 0.95 * dense(r) && t < 1.05 * dense(r));
        assert_true(t <= kk_cost_at(&costs.verify, r + 1));
    }
}

static void an_interruption_is_not_believed(void **state) {
    (void)state;
    kk_costs costs = {0};
    for (int k = 0; k < 20; k++)
        kk_controller_spent(&costs, &(kk_spent){.sessions = 1, .rows = 1, .verify_s = 1});
    kk_controller_spent(&costs, &(kk_spent){.sessions = 1, .rows = 1, .verify_s = 1000});
    assert_true(kk_cost_at(&costs.verify, 1) < 1.1);
    /* Also the first measurement of all, as soon as there is a second. */
    kk_costs other = {0};
    kk_controller_spent(&other, &(kk_spent){.sessions = 1, .rows = 1, .verify_s = 1000});
    kk_controller_spent(&other, &(kk_spent){.sessions = 1, .rows = 1, .verify_s = 1});
    assert_true(kk_cost_at(&other.verify, 1) < 1.1);
}

static void saw(kk_acceptance *seen, int32_t drafted, int32_t right) {
    const kk_costs costs = {0};
    kk_choice c = choice_of(seen, 15, false);
    kk_controller_saw(&costs, &c, drafted, right);
}

static void depths_not_tried_borrow_from_those_before(void **state) {
    (void)state;
    kk_acceptance seen = {0};
    for (int i = 0; i < 300; i++) saw(&seen, 2, 2);
    assert_true(kk_acceptance_tokens(&seen, 0, 2) > 2.9);
    assert_true(kk_acceptance_tokens(&seen, 0, 6) > 6.2);
    kk_acceptance other = {0};
    for (int i = 0; i < 300; i++) saw(&other, 3, 1);
    const double two = kk_acceptance_tokens(&other, 0, 2), six = kk_acceptance_tokens(&other, 0, 6);
    assert_true(two > 1.9 && two < 2.1 && six - two < 0.05);
}

/* Sessions whose drafts end before a depth say nothing of it, however much they began with; those
 * that draft nothing leave all as it was. */
static void depths_no_longer_tried_are_forgotten(void **state) {
    (void)state;
    kk_acceptance known = {0}, seen;
    for (int i = 0; i < 8; i++) { /* one text: the seventh token is wrong */
        kk_acceptance_begin(&seen, &known);
        for (int k = 0; k < 4; k++) saw(&seen, 7, 6);
        kk_acceptance_pool(&known, &seen);
    }
    const double at_first = known.tried[0][6];
    assert_true(at_first > 2 && known.right[0][6] < 0.01);
    for (int i = 0; i < 4; i++) { /* nothing is drafted */
        kk_acceptance_begin(&seen, &known);
        kk_acceptance_pool(&known, &seen);
    }
    assert_true(known.tried[0][6] > 1 && known.tried[0][0] > 1);
    for (int i = 0; i < 4; i++) { /* another text: six tokens are right, and no more are drafted */
        kk_acceptance_begin(&seen, &known);
        for (int k = 0; k < 2; k++) saw(&seen, 6, 6);
        kk_acceptance_pool(&known, &seen);
    }
    assert_true(known.tried[0][6] < at_first / 8 && known.tried[0][5] > 2);
    kk_acceptance_begin(&seen, &known);
    const double last = kk_acceptance_tokens(&seen, 0, 7) - kk_acceptance_tokens(&seen, 0, 6);
    assert_true(last > 0.5);
}

static void the_same_calls_give_the_same_choices(void **state) {
    (void)state;
    const text t = {0.7, 0.95};
    world a = new_world(with_drafter(1, 2), 9);
    session s = {.t = t, .max = 15};
    play(&a, &s, 1, 500);
    world b = new_world(with_drafter(1, 2), 9);
    session r = {.t = t, .max = 15};
    play(&b, &r, 1, 500);
    assert_int_equal(a.drafted, b.drafted);
    assert_memory_equal(&a.costs, &b.costs, sizeof a.costs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_useless_proposer_costs_little),
        cmocka_unit_test(also_in_a_short_answer),
        cmocka_unit_test(others_may_be_wrong),
        cmocka_unit_test(others_help_a_short_answer),
        cmocka_unit_test(a_good_proposer_comes_near_the_best_fixed_length),
        cmocka_unit_test(it_is_found_soon),
        cmocka_unit_test(a_change_of_text_is_noticed),
        cmocka_unit_test(costs_are_followed),
        cmocka_unit_test(drafts_grow_cheaper_with_plain_rounds),
        cmocka_unit_test(heads_have_costs_of_their_own),
        cmocka_unit_test(dear_drafts_and_cold_caches_do_not_hide_what_pays),
        cmocka_unit_test(sessions_are_chosen_for_together),
        cmocka_unit_test(rows_are_shared_out_by_chance_of_success),
        cmocka_unit_test(plain_rounds_come_first_and_then_an_exploratory_draft),
        cmocka_unit_test(exploration_keeps_to_its_budget),
        cmocka_unit_test(costs_between_measurements_rise_evenly),
        cmocka_unit_test(an_interruption_is_not_believed),
        cmocka_unit_test(depths_not_tried_borrow_from_those_before),
        cmocka_unit_test(depths_no_longer_tried_are_forgotten),
        cmocka_unit_test(the_same_calls_give_the_same_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
