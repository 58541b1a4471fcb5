/* controller_ablation_test.c - what each constant of the controller is worth.
 *
 * Every constant is halved and doubled in turn (of those near 1, their distance from 1), and the
 * controller decodes in worlds that are drawn: machines with rows and drafts of all prices, clocks
 * with noise and interruptions, two speeds that switch, contexts that grow, a drafter and n-grams
 * whose acceptance changes with the text, answers of 15 to 300 tokens.  The table it prints is that
 * of docs/controller.md.  Times are judged without the noise of the clock. */
#define KK_TUNABLE
#include "propose/controller.c" /* to change its constants */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { WORLDS = 64, ANSWERS = 16, NGRAM_DRAFTS = 15, BLOCK = 7 };

static uint64_t random_state;
static double drawn(void) { /* in [0, 1) */
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) / 9007199254740992.0;
}
static double between_of(double low, double high) { return low + (high - low) * drawn(); }

typedef struct {
    double row, draft, draft_row;   /* over the time of a plain round */
    double interruptions;           /* chance of one in a measurement */
    bool useless;                   /* nothing that is drafted is ever right */
    double drafter, falls, copies;  /* chance of its first token, per depth; text that repeats */
    double found[KK_DRAFT_CLASSES]; /* chance of an n-gram's token, by class */
    double speed, context;          /* factors of all times, by now */
    kk_costs costs;
    kk_acceptance known[KK_ALTERNATIVES];
    double time, plain_time;
} world;

static void draw_text(world *w) {
    w->drafter = w->useless ? 0 : between_of(0.3, 1);
    w->falls = between_of(0.9, 1);
    w->copies = w->useless ? 0 : drawn() < 0.5 ? between_of(0, 0.9) : 0;
    for (int k = 0; k < KK_DRAFT_CLASSES; k++)
        w->found[k] = w->useless ? 0 : 1 - (1 - between_of(0.2, 0.7)) / (1 << k);
}

static world draw_world(int seed) {
    random_state = (uint64_t)seed * 7919 + 17;
    for (int i = 0; i < 8; i++) drawn();
    world w = {.row = between_of(0.03, 0.4),
               .draft = between_of(0.05, 0.8),
               .draft_row = between_of(0, 0.08),
               .interruptions = seed % 4 == 0 ? 0.1 : 0.01,
               .useless = seed % 4 == 3,
               .speed = 1};
    draw_text(&w);
    return w;
}

static double shown(const world *w, double t) {
    const double noise = 1 + 0.34 * (2 * drawn() - 1);
    const double interrupted = drawn() < w->interruptions ? between_of(2, 10) : 1;
    return 0.01 * w->speed * w->context * t * noise * interrupted;
}

static int32_t right_of(double rate, double falls, int32_t n) {
    int32_t right = 0;
    for (; right < n && drawn() < rate; rate *= falls) right++;
    return right;
}

/* The class of the n-gram that is found; -1: none. */
static int32_t lookup(const world *w) {
    if (drawn() < w->copies) return KK_DRAFT_CLASSES - 1;
    return (int32_t)between_of(-3, KK_DRAFT_CLASSES - 1);
}

/* One round; returns its tokens. */
static int32_t decode(world *w, kk_acceptance seen[KK_ALTERNATIVES], int32_t left) {
    const int32_t class = lookup(w), ngram = class >= 0 ? NGRAM_DRAFTS : 0;
    kk_choice c = {.n_from = KK_ALTERNATIVES};
    c.from[0] = (kk_alternative){.seen = &seen[0], .max = left < BLOCK ? left : BLOCK};
    c.from[1] = (kk_alternative){.seen = &seen[1],
                                 .max = left < ngram ? left : ngram,
                                 .draft_class = class > 0 ? class : 0,
                                 .free = true};
    kk_controller_choose(&w->costs, &c, 1, KK_COST_ROWS);
    const bool paid = c.n > 0 && c.who == 0;
    const int32_t at_hand = class >= 0 ? right_of(w->found[class], 1, c.from[1].max) : 0;
    const int32_t right = paid            ? right_of(w->drafter, w->falls, c.n)
                          : at_hand < c.n ? at_hand
                                          : c.n;
    const double verify = 1 + w->row * c.n, draft = paid ? w->draft + w->draft_row * c.n : 0;
    const kk_spent spent = {.sessions = 1,
                            .rows = 1 + c.n,
                            .drafted = paid ? c.n : 0,
                            .verify_s = shown(w, verify),
                            .draft_s = paid ? shown(w, draft) : 0,
                            .exploring = c.exploring};
    kk_controller_spent(&w->costs, &spent);
    kk_controller_saw(&w->costs, &c, c.n, right);
    if ((paid || c.n == 0) && c.from[1].max > 0) {
        const int32_t judged = right + 1 < c.from[1].max ? right + 1 : c.from[1].max;
        kk_controller_watched(&c, 1, judged, at_hand < judged ? at_hand : judged);
    }
    w->time += w->context * (verify + draft);
    w->plain_time += w->context * (right + 1);
    return right + 1;
}

static void answer(world *w, int32_t tokens) {
    kk_acceptance seen[KK_ALTERNATIVES];
    for (int k = 0; k < KK_ALTERNATIVES; k++) kk_acceptance_begin(&seen[k], &w->known[k]);
    w->context = between_of(1, 2);
    if (drawn() < 0.3) draw_text(w);
    for (int32_t left = tokens; left > 0; w->context *= 1.0005) {
        if (drawn() < 1.0 / 300) w->speed = w->speed > 1.2 ? 1 : 1.5;
        if (drawn() < 1.0 / 400) draw_text(w);
        left -= decode(w, seen, left - 1);
    }
    for (int k = 0; k < KK_ALTERNATIVES; k++) kk_acceptance_pool(&w->known[k], &seen[k]);
}

typedef struct {
    double speedup, worst; /* geometric mean over the worlds, and the least of them */
} outcome;

static outcome try_all(void) {
    static const int32_t lengths[] = {15, 60, 128, 300};
    outcome o = {0, 1e9};
    for (int seed = 0; seed < WORLDS; seed++) {
        world w = draw_world(seed);
        for (int i = 0; i < ANSWERS; i++) answer(&w, lengths[(i + seed) % 4]);
        const double speedup = w.plain_time / w.time;
        o.speedup += log(speedup) / WORLDS;
        if (speedup < o.worst) o.worst = speedup;
    }
    o.speedup = exp(o.speedup);
    return o;
}

static const struct {
    const char *name;
    double *value, from; /* what is halved and doubled is its distance from this */
} constants[] = {
    {"COST_MEMORY", &COST_MEMORY, 1},
    {"COST_COMMON", &COST_COMMON, 0},
    {"COST_CLIP", &COST_CLIP, 1},
    {"COST_GROWTH", &COST_GROWTH, 0},
    {"COST_OF_ROW", &COST_OF_ROW, 0},
    {"COST_DOUBT", &COST_DOUBT, 0},
    {"PRIOR_WEIGHT", &PRIOR_WEIGHT, 0},
    {"MEMORY", &MEMORY, 1},
    {"EXPLORATION", &EXPLORATION, 0},
    {"CREDIT", &CREDIT, 0},
    {"REFILL", &REFILL, 0},
    {"MARGIN", &MARGIN, 1},
};
enum { CONSTANTS = sizeof constants / sizeof *constants };

static outcome changed(int i, double by) {
    const double before = *constants[i].value;
    *constants[i].value = constants[i].from + by * (before - constants[i].from);
    const outcome o = try_all();
    *constants[i].value = before;
    return o;
}

static void every_constant_has_its_place(void **state) {
    (void)state;
    const outcome as_is = try_all();
    print_message("as they are: %.3fx, worst world %.3fx\n", as_is.speedup, as_is.worst);
    print_message("| constant | value | halved | worst | doubled | worst |\n");
    print_message("|---|---|---|---|---|---|\n");
    assert_true(CONSTANTS <= 12);
    assert_true(as_is.worst > 0.97); /* never much slower than plain decoding */
    for (int i = 0; i < CONSTANTS; i++) {
        const outcome less = changed(i, 0.5), more = changed(i, 2);
        print_message("| `%s` | %g | %.3fx | %.3fx | %.3fx | %.3fx |\n", constants[i].name,
                      *constants[i].value, less.speedup, less.worst, more.speedup, more.worst);
        /* Nothing much is to be gained by another value of any of them alone, at no risk. */
        if (less.worst >= as_is.worst) assert_true(less.speedup < 1.03 * as_is.speedup);
        if (more.worst >= as_is.worst) assert_true(more.speedup < 1.03 * as_is.speedup);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_constant_has_its_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
