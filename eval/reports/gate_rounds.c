/* gate_rounds.c - rules about the times of single rounds in a bench: docs/reports.md, round_times.
 *
 * Those of one generation are held against its rounds and its seconds, and among themselves: what
 * the first rounds leave of the sum is that of the steady ones, and neither the longest nor the
 * deviation can be what no such rounds have.  Those of several are computed again from each. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

typedef struct {
    double n, sum, longest, first_sum, first_most;
    double steady_n, steady_mean, squares;
} times;

static bool whole(double x) { return x >= 0 && x == floor(x); }

static bool numbers(const json_t *o, const char *const *keys, double *const *to, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!kk_gate_number(o, keys[i], to[i])) return false;
    return true;
}

static bool read_first(const json_t *o, times *t) {
    const json_t *list = json_object_get(o, "first_ms");
    if (!json_is_array(list)) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const double ms = json_number_value(one);
        if (!json_is_number(one) || !(ms > 0)) return false;
        t->first_sum += ms;
        if (ms > t->first_most) t->first_most = ms;
    }
    return true;
}

/* What is there, in the shape it must have; false after saying what is wrong. */
static bool read_times(kk_gate *g, const char *where, const json_t *o, times *t) {
    static const char *const keys[] = {"n", "sum_ms", "mean_ms", "longest_ms", "warm_up"};
    const json_t *steady = json_object_get(o, "steady");
    double mean = 0, warm_up = 0, deviation = 0;
    double *const to[] = {&t->n, &t->sum, &mean, &t->longest, &warm_up};
    *t = (times){0};
    bool ok = numbers(o, keys, to, 5) && read_first(o, t) &&
              kk_gate_number(steady, "n", &t->steady_n) && whole(t->n) && t->n >= 1 &&
              whole(t->steady_n) && t->sum > 0 && t->longest > 0;
    if (ok && t->steady_n > 0)
        ok = kk_gate_number(steady, "mean_ms", &t->steady_mean) && t->steady_mean > 0 &&
             kk_gate_number(steady, "deviation_ms", &deviation) && deviation >= 0;
    t->squares = t->steady_n * deviation * deviation;
    if (!ok)
        kk_gate_say(g, "%s: round times are not counts and times of rounds", where);
    else if (warm_up != KK_GATE_WARM_ROUNDS)
        kk_gate_say(g, "%s: %.6g rounds are called warm-up, and %d are", where, warm_up,
                    KK_GATE_WARM_ROUNDS);
    else if (!kk_gate_same(mean, t->sum / t->n))
        kk_gate_say(g, "%s: a mean of %.6g ms, and %.6g ms in %.0f rounds are %.6g", where, mean,
                    t->sum, t->n, t->sum / t->n);
    return ok;
}

/* The coefficient, of the deviation and the mean beside it. */
static void check_cv(kk_gate *g, const char *where, const json_t *o, const times *t) {
    const json_t *said = json_object_get(json_object_get(o, "steady"), "cv");
    const bool known = t->steady_n >= 2;
    const double is = known ? sqrt(t->squares / t->steady_n) / t->steady_mean : 0;
    if (!known && !json_is_null(said))
        kk_gate_say(g, "%s: a coefficient of variation of %.0f rounds", where, t->steady_n);
    if (known && (!json_is_number(said) || !kk_gate_same(json_number_value(said), is)))
        kk_gate_say(g, "%s: a coefficient of variation of %.6g, and its rounds give %.6g", where,
                    json_number_value(said), is);
}

/* ---- one generation ------------------------------------------------------------------------ */

/* Times in (0, longest] with this mean deviate by so much at most; and where the longest is a
 * steady one, it alone brings a deviation. */
static void check_longest(kk_gate *g, const char *where, const times *t) {
    const double slack = 1 + KK_GATE_ROUND_DIGITS, mean = t->steady_mean;
    const double apart = t->longest - mean;
    if (t->first_most > t->longest * slack || mean > t->longest * slack ||
        t->longest > t->sum * slack)
        kk_gate_say(g, "%s: the longest round takes %.6g ms, and another or their mean more", where,
                    t->longest);
    else if (t->squares >
             t->steady_n * (fmax(apart, 0) * mean * slack + KK_GATE_ROUND_DIGITS * mean * mean))
        kk_gate_say(g, "%s: rounds of up to %.6g ms deviate by %.6g from a mean of %.6g", where,
                    t->longest, sqrt(t->squares / t->steady_n), mean);
    else if (t->longest > t->first_most * slack &&
             apart * apart > t->squares * slack + KK_GATE_ROUND_DIGITS * mean * mean)
        kk_gate_say(g, "%s: no round took the longest time, %.6g ms", where, t->longest);
}

static void check_parts(kk_gate *g, const char *where, const json_t *o, const times *t) {
    const double first = fmin(t->n, KK_GATE_WARM_ROUNDS),
                 is = t->first_sum + t->steady_n * t->steady_mean;
    if ((double)kk_gate_size(o, "first_ms") != first || t->steady_n != t->n - first)
        kk_gate_say(g, "%s: %zu first rounds and %.0f after them, of %.0f", where,
                    kk_gate_size(o, "first_ms"), t->steady_n, t->n);
    else if (!kk_gate_same(t->sum, is))
        kk_gate_say(g, "%s: %.6g ms in all, and the first rounds and those after them take %.6g",
                    where, t->sum, is);
    else
        check_longest(g, where, t);
}

/* Of a generation of so many rounds that took so many seconds; false: its times cannot be read. */
static bool check_one(kk_gate *g, const char *where, const json_t *o, double rounds, double seconds,
                      times *t) {
    if (!read_times(g, where, o, t)) return false;
    check_parts(g, where, o, t);
    check_cv(g, where, o, t);
    if (t->n != rounds)
        kk_gate_say(g, "%s: times of %.0f rounds, and there were %.0f", where, t->n, rounds);
    if (t->sum > 1e3 * seconds * (1 + KK_GATE_SAME))
        kk_gate_say(g, "%s: rounds took %.6g ms of a generation of %.6g", where, t->sum,
                    1e3 * seconds);
    if (t->n >= KK_GATE_LONG_ROUNDS && t->sum < 1e3 * seconds * KK_GATE_ROUND_SHARE)
        kk_gate_say(g, "%s: rounds took only %.6g ms of a generation of %.6g", where, t->sum,
                    1e3 * seconds);
    return true;
}

/* ---- several ------------------------------------------------------------------------------- */

static void pool(times *to, const times *more) {
    const double a = to->steady_n, b = more->steady_n, apart = more->steady_mean - to->steady_mean;
    to->n += more->n;
    to->sum += more->sum;
    to->longest = fmax(to->longest, more->longest);
    if (b <= 0) return;
    to->squares += more->squares + apart * apart * a * b / (a + b);
    to->steady_mean += apart * b / (a + b);
    to->steady_n += b;
}

/* first: those of the first generation. */
static void check_pooled(kk_gate *g, const char *where, const json_t *o, const times *is,
                         const json_t *first) {
    times t;
    if (!read_times(g, where, o, &t)) return;
    check_cv(g, where, o, &t);
    if (t.n != is->n || t.steady_n != is->steady_n)
        kk_gate_say(g, "%s: times of %.0f rounds, and its generations have %.0f", where, t.n,
                    is->n);
    else if (!kk_gate_same(t.sum, is->sum) || !kk_gate_same(t.longest, is->longest))
        kk_gate_say(g, "%s: %.6g ms, the longest %.6g, and its generations give %.6g and %.6g",
                    where, t.sum, t.longest, is->sum, is->longest);
    else if (t.steady_n > 0 &&
             (!kk_gate_same(t.steady_mean, is->steady_mean) ||
              fabs(sqrt(t.squares / t.steady_n) - sqrt(is->squares / is->steady_n)) >
                  KK_GATE_ROUND_DIGITS * is->steady_mean))
        kk_gate_say(g,
                    "%s: %.6g +- %.6g ms after the first rounds, and its generations give %.6g "
                    "+- %.6g",
                    where, t.steady_mean, sqrt(t.squares / t.steady_n), is->steady_mean,
                    sqrt(is->squares / is->steady_n));
    if (!json_equal(json_object_get(o, "first_ms"), first))
        kk_gate_say(g, "%s: the first rounds are not those of its first generation", where);
}

/* Whether some parts of a report have times and others none. */
typedef struct {
    size_t with, without;
    char which[120];
} presence;

static const json_t *times_of(const json_t *o, const char *where, presence *p) {
    const json_t *t = kk_gate_get(o, "round_times");
    p->with += t != NULL;
    if (t) return t;
    if (p->without++ == 0) snprintf(p->which, sizeof p->which, "%s", where);
    return NULL;
}

/* An arm with rows, which are generations. */
static void check_arm(kk_gate *g, const char *where, const json_t *arm, presence *p, times *all) {
    const size_t n = kk_gate_size(arm, "rows");
    bool whole_arm = n > 0;
    char at[120];
    *all = (times){0};
    for (size_t i = 0; i < n; i++) {
        const json_t *row = kk_gate_item(arm, "rows", i);
        snprintf(at, sizeof at, "%.90s, row %zu", where, i);
        const json_t *o = times_of(row, at, p);
        times t;
        if (o && check_one(g, at, o, kk_gate_number_or(row, "rounds", -1),
                           kk_gate_number_or(row, "seconds", 0), &t))
            pool(all, &t);
        else
            whole_arm = false;
    }
    const json_t *o = times_of(arm, where, p);
    const json_t *first = json_object_get(kk_gate_item(arm, "rows", 0), "round_times");
    if (o && whole_arm) check_pooled(g, where, o, all, json_object_get(first, "first_ms"));
}

static void check_sets(kk_gate *g, presence *p) {
    const json_t *timed;
    for (size_t i = 0; (timed = kk_gate_timed(g, i)); i++) {
        const char *name;
        json_t *arm;
        json_object_foreach(json_object_get(timed, "arms"), name, arm) {
            char where[100];
            times ignored;
            snprintf(where, sizeof where, "%.40s, %.40s", kk_gate_timed_name(timed), name);
            check_arm(g, where, arm, p, &ignored);
        }
    }
}

/* Without sets the one arm is plain decoding at the first context. */
static void check_plain(kk_gate *g, const char *name, const json_t *o) {
    const json_t *first = kk_gate_get(kk_gate_item(g->report, "contexts", 0), "round_times");
    if (!first || !json_equal(o, first))
        kk_gate_say(g, "%.40s: round times are not those of the first context", name);
}

/* The arms over all sets are pooled from those of each. */
static void check_over_sets(kk_gate *g, presence *p) {
    const size_t n = kk_gate_size(g->report, "sets");
    const char *name;
    json_t *arm;
    json_object_foreach(json_object_get(g->report, "arms"), name, arm) {
        times is = {0};
        const json_t *o = times_of(arm, name, p), *first = NULL;
        for (size_t i = 0; o && i < n; i++) {
            const json_t *set = kk_gate_item(g->report, "sets", i), *one;
            times t;
            one = kk_gate_get(json_object_get(json_object_get(set, "arms"), name), "round_times");
            if (!one || !read_times(g, name, one, &t)) return;
            pool(&is, &t);
            if (i == 0) first = json_object_get(one, "first_ms");
        }
        if (o && n) check_pooled(g, name, o, &is, first);
        if (o && n == 0) check_plain(g, name, o);
    }
}

/* Plain decoding of random ids: repeats of as many rounds as tokens were asked for. */
static void check_contexts(kk_gate *g, presence *p) {
    const double rounds = kk_gate_number_or(json_object_get(g->report, "settings"), "predict", 0);
    for (size_t i = 0; i < kk_gate_size(g->report, "contexts"); i++) {
        const json_t *c = kk_gate_item(g->report, "contexts", i);
        const json_t *rates = json_object_get(json_object_get(c, "decode_tok_s"), "samples");
        const size_t n = kk_gate_size(c, "turns");
        char where[60];
        times is = {0}, t;
        bool read = true;
        snprintf(where, sizeof where, "context %.0f", kk_gate_number_or(c, "ctx", 0));
        const json_t *o = times_of(c, where, p);
        if (!o) continue;
        if (n == 0 || n != json_array_size(rates))
            kk_gate_say(g, "%s: round times of %zu repeats, and rates of %zu", where, n,
                        json_array_size(rates));
        for (size_t j = 0; j < n && read; j++) {
            const double rate = json_number_value(json_array_get(rates, j));
            read = check_one(g, where, kk_gate_item(c, "turns", j), rounds,
                             rate > 0 ? rounds / rate : 0, &t);
            if (read) pool(&is, &t);
        }
        if (n && read)
            check_pooled(g, where, o, &is,
                         json_object_get(kk_gate_item(c, "turns", 0), "first_ms"));
    }
}

static void rule_round_times(kk_gate *g) {
    presence p = {0};
    check_sets(g, &p);
    if (kk_gate_is(g, "bench")) check_over_sets(g, &p);
    check_contexts(g, &p);
    if (p.with && p.without)
        kk_gate_say(g, "%s has no `round_times`, and other parts of the report do", p.which);
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry rounds_rules[] = {
    {"ROUND_TIMES", rule_round_times,
     "times of rounds fit each other, their counts and the seconds they are of"},
};
KK_GATE_GROUP(rounds, rounds_rules);
