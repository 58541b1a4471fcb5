/* controller.c - see controller.h.
 *
 * Three parts: cost tables, acceptance, and the choice, which is the only one that knows both.
 *
 * Timings err upward: a round is interrupted, never helped.  So a table takes a much lower time at
 * its word, and never more than so much of a higher one.  What makes one row count slower (a longer
 * context, a busy machine) makes them all slower, so each measurement moves both tables a little,
 * and its own row most.
 *
 * Acceptance is estimated with a Beta prior per depth, whose mean is the estimate of the depth
 * before it, and at the first depth that of the class below.  All questions are answered by the
 * same estimate from three priors of the very first token: 1/2 for what is expected, 0 for what is
 * certain (nothing but what was seen), 1 for what is possible.  Old observations fade, so that what
 * is certain falls and what is possible rises again while a proposer is not asked: that alone
 * decides when it is worth exploring once more.
 *
 * For a given total of drafted tokens, the most are accepted in expectation if those with the best
 * chances are drafted; a token is never more likely than the one before it, so taking the best next
 * one each time is exact, and the totals can simply be walked through.  The best total is sought
 * over all of them, since the first drafted token carries the proposer's fixed cost and the fourth
 * may be the first that pays.
 *
 * docs/controller.md has a table of what each constant is worth. */
#include "propose/controller.h"

#include <assert.h>
#include <string.h>

/* The test of the constants includes this file to change them. */
#ifndef KK_TUNABLE
#define KK_TUNABLE const
#endif

/* ---- constants -------------------------------------------------------------------------- */

/* Costs.  A measurement keeps this share of its weight per later one: costs are a machine's, and
 * change by minutes; 500 rounds average out noise of 20 %. */
static KK_TUNABLE double COST_MEMORY = 0.998;
/* Share of a surprise that all row counts have in common (context, speed of the machine): a change
 * is followed within some thirty rounds. */
static KK_TUNABLE double COST_COMMON = 0.03;
/* A time so many times the known one is an interruption and counts as this; one so many times
 * smaller shows that what was known is out of date.  Machines were seen to change speed by half. */
static KK_TUNABLE double COST_CLIP = 2;
/* Share of a cost that is taken to grow with the rows where nothing is measured: all of it would
 * forbid every first draft, none would make it as long as it can be. */
static KK_TUNABLE double COST_GROWTH = 0.5;
/* A drafted row costs at least this share of a plain round: clocks cannot tell less, and drafts
 * that are never right must not seem to cost nothing. */
static KK_TUNABLE double COST_OF_ROW = 0.05;
/* By how much a cost may be lower than thought when it was not measured, which is the noise of one
 * measurement; after w measurements by 1 / (1 + w) of it. */
static KK_TUNABLE double COST_DOUBT = 0.15;

/* Acceptance.  Drafts that a prior is worth: of one depth for the next, of one class for the next,
 * of other sessions for this one. */
static KK_TUNABLE double PRIOR_WEIGHT = 3;
/* Share that an observation keeps per round: texts change within a hundred. */
static KK_TUNABLE double MEMORY = 0.99;

/* Budget, in tokens of plain decoding.  What exploratory drafts may lose at first, so that an
 * answer of a hundred tokens loses 3 % at most. */
static KK_TUNABLE double EXPLORATION = 2;
/* What drafts that are expected to pay may lose, beyond what they gained: a run of bad luck does
 * not stop them, a change of the text does.  And what a proposer can save up of its gains for
 * exploration. */
static KK_TUNABLE double CREDIT = 8;
/* What a round adds to both after losses: the share of all time that may be spent on learning. */
static KK_TUNABLE double REFILL = 0.01;
/* Times plain decoding, or what is chosen: what a draft must promise to be made.  Estimates are not
 * better than that. */
static KK_TUNABLE double MARGIN = 1.03;

static double at_most(double a, double b) { return a < b ? a : b; }
static double at_least(double a, double b) { return a > b ? a : b; }

/* ---- tables ----------------------------------------------------------------------------- */

typedef struct {
    int32_t rows[KK_COST_ROWS], n;
    double seconds[KK_COST_ROWS], weight[KK_COST_ROWS];
} points;

/* A whole table, gaps filled; at [0] is 0. */
typedef struct {
    double expected[KK_COST_ROWS + 1];
    double hoped[KK_COST_ROWS + 1];  /* if rows that were measured once were interrupted */
    double feared[KK_COST_ROWS + 1]; /* differs beyond the last row that was measured */
    int32_t measured;                /* row counts that were, and those more than once */
    int32_t measured_well;
} curve;

/* A row measured once may have been interrupted: of its first two times the lower one counts. */
static bool measured_once(double weight) { return weight < 1.5; }

/* The rows that were measured; well: more than once. */
static void collect(points *p, const kk_cost_table *t, bool well) {
    p->n = 0;
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) {
        if (t->weight[r] <= 0 || (well && measured_once(t->weight[r]))) continue;
        p->rows[p->n] = r;
        p->seconds[p->n] = t->seconds[r];
        p->weight[p->n++] = t->weight[r];
    }
}

static double between(const points *p, int32_t a, int32_t b, int32_t r) {
    const double share = (double)(r - p->rows[a]) / (double)(p->rows[b] - p->rows[a]);
    return p->seconds[a] + share * (p->seconds[b] - p->seconds[a]);
}

/* Where points a and b say that point i lies counts as one measurement of it, if they are well
 * known themselves. */
static void draw_near(points *p, const points *raw, int32_t i, int32_t a, int32_t b) {
    const double known = at_most(raw->weight[a], raw->weight[b]), pull = known / (known + 1);
    const double said = between(raw, a, b, raw->rows[i]);
    p->seconds[i] = (raw->weight[i] * raw->seconds[i] + pull * said) / (raw->weight[i] + pull);
}

static void smooth(points *p) {
    const points raw = *p;
    for (int32_t i = 1; i + 1 < raw.n; i++) draw_near(p, &raw, i, i - 1, i + 1);
    if (raw.n > 2) draw_near(p, &raw, raw.n - 1, 0, raw.n - 2);
}

/* More rows never cost less: neighbours that say so are averaged. */
static void make_monotone(points *p) {
    int32_t first[KK_COST_ROWS], n = 0; /* first point of each run of equal seconds */
    double value[KK_COST_ROWS], weight[KK_COST_ROWS];
    for (int32_t i = 0; i < p->n; i++) {
        first[n] = i, value[n] = p->seconds[i], weight[n++] = p->weight[i];
        for (; n > 1 && value[n - 2] > value[n - 1]; n--) {
            const double sum = weight[n - 2] + weight[n - 1];
            value[n - 2] = (weight[n - 2] * value[n - 2] + weight[n - 1] * value[n - 1]) / sum;
            weight[n - 2] = sum;
        }
    }
    for (int32_t run = 0; run < n; run++)
        for (int32_t i = first[run]; i < (run + 1 < n ? first[run + 1] : p->n); i++)
            p->seconds[i] = value[run];
}

/* Rows in one forward never cost more than in several. */
static void make_proportional(points *p) {
    for (int32_t i = 1; i < p->n; i++) {
        const double most = p->seconds[i - 1] * p->rows[i] / p->rows[i - 1];
        p->seconds[i] = at_most(p->seconds[i], most);
    }
}

static double fitted_slope(const points *p) {
    double sum = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int32_t i = 0; i < p->n; i++) {
        sum += p->weight[i];
        x += p->weight[i] * p->rows[i];
        y += p->weight[i] * p->seconds[i];
    }
    for (int32_t i = 0; i < p->n; i++) {
        const double dx = p->rows[i] - x / sum;
        xx += p->weight[i] * dx * dx;
        xy += p->weight[i] * dx * (p->seconds[i] - y / sum);
    }
    return xy / xx;
}

/* Seconds per row beyond the last point: as over its second half or over all, whichever is less,
 * since growth slows down, and never more than in proportion. */
static double slope_of(const points *p) {
    const int32_t last = p->n - 1;
    const double most = p->seconds[last] / p->rows[last];
    if (last == 0) return COST_GROWTH * most;
    int32_t half = last - 1;
    while (half > 0 && 2 * p->rows[half] > p->rows[last]) half--;
    const double late = (p->seconds[last] - p->seconds[half]) / (p->rows[last] - p->rows[half]);
    return at_least(0, at_most(at_most(late, fitted_slope(p)), most));
}

/* The curve through points, of which there are some; returns the last of their rows. */
static int32_t draw_through(points *p, double at[KK_COST_ROWS + 1]) {
    smooth(p);
    make_monotone(p);
    make_proportional(p);
    const double slope = slope_of(p), top = p->seconds[p->n - 1];
    const int32_t first = p->rows[0], last = p->rows[p->n - 1];
    for (int32_t r = 1, i = 0; r <= KK_COST_ROWS; r++) {
        while (i + 1 < p->n && p->rows[i + 1] <= r) i++;
        if (r < first)
            at[r] = at_least(p->seconds[0] - slope * (first - r), p->seconds[0] * r / first);
        else if (r >= last)
            at[r] = top + slope * (r - last);
        else
            at[r] = between(p, i, i + 1, r);
    }
    return last;
}

static void draw(curve *c, const kk_cost_table *t) {
    memset(c, 0, sizeof *c);
    points all, well;
    collect(&all, t, false);
    collect(&well, t, true);
    c->measured = all.n;
    c->measured_well = well.n;
    if (all.n == 0) return;
    const int32_t last = draw_through(&all, c->expected);
    if (well.n > 0) draw_through(&well, c->hoped);
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) {
        if (well.n == 0 || c->hoped[r] > c->expected[r]) c->hoped[r] = c->expected[r];
        const double beyond = c->expected[last] * (1 + COST_GROWTH * (r - last) / last);
        c->feared[r] = r <= last ? c->expected[r] : beyond;
    }
}

static double cost(const double *at, int32_t rows) {
    if (rows <= KK_COST_ROWS) return at[rows];
    return at[KK_COST_ROWS] + (at[KK_COST_ROWS] - at[KK_COST_ROWS - 1]) * (rows - KK_COST_ROWS);
}

double kk_cost_at(const kk_cost_table *t, int32_t rows) {
    curve c;
    draw(&c, t);
    return cost(c.expected, rows);
}

static void fade(kk_costs *costs) {
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) {
        costs->verify.weight[r] *= COST_MEMORY;
        costs->draft.weight[r] *= COST_MEMORY;
        costs->draft_short.weight[r] *= COST_MEMORY;
    }
}

static void scale(kk_costs *costs, double by) {
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) {
        costs->verify.seconds[r] *= by;
        costs->draft.seconds[r] *= by;
        costs->draft_short.seconds[r] *= by;
    }
}

/* t: one of the tables of costs. */
static void measured(kk_costs *costs, kk_cost_table *t, int32_t rows, double seconds) {
    if (rows < 1 || !(seconds > 0)) return;
    const double inferred = kk_cost_at(t, rows);
    if (rows > KK_COST_ROWS) { /* counts as a measurement of the table's last row */
        seconds *= inferred > 0 ? kk_cost_at(t, KK_COST_ROWS) / inferred : 1;
        rows = KK_COST_ROWS;
    }
    double *known = &t->seconds[rows], *weight = &t->weight[rows];
    if (*weight <= 0) {
        *known = inferred > 0 ? at_most(seconds, COST_CLIP * inferred) : seconds;
        *weight = 1;
        return;
    }
    const bool once = measured_once(*weight), out_of_date = seconds * COST_CLIP < *known;
    const double surprise = at_most(seconds / *known, COST_CLIP) - 1;
    const double common = out_of_date ? surprise : COST_COMMON * surprise * *weight / (*weight + 1);
    if (!once) scale(costs, 1 + common);
    if (once || out_of_date)
        *known = at_most(*known, seconds);
    else
        *known *= 1 + surprise / (*weight + 1);
    *weight += 1;
}

void kk_controller_spent(kk_costs *costs, const kk_spent *s) {
    fade(costs);
    measured(costs, &costs->verify, s->rows, s->verify_s);
    kk_cost_table *draft = s->short_head ? &costs->draft_short : &costs->draft;
    if (s->drafted > 0) measured(costs, draft, s->drafted, s->draft_s);
    costs->since_plain = s->rows > s->sessions ? costs->since_plain + 1 : 0;
    costs->total_s += s->verify_s + s->draft_s;
    if (!s->exploring) return;
    const double extra = s->verify_s + s->draft_s - kk_cost_at(&costs->verify, s->sessions);
    costs->exploring_s += at_least(extra, 0);
}

/* ---- acceptance ------------------------------------------------------------------------- */

static const double EXPECTED = 0.5, CERTAIN = 0, POSSIBLE = 1; /* priors of the first token */

/* The chance that the token at a depth is right if those before it are.  before: the chance at the
 * depth before, or the prior of the first token. */
static double rate_at(const kk_acceptance *a, int32_t class, int32_t depth, double before) {
    double rate = before;
    for (int32_t k = depth ? class : 0; k <= class; k++)
        rate = (a->right[k][depth] + PRIOR_WEIGHT * rate) / (a->tried[k][depth] + PRIOR_WEIGHT);
    return rate;
}

/* Expected tokens of rounds that draft 0 to n, the verifier's own among them. */
static void tokens_upto(const kk_acceptance *a, int32_t class, int32_t n, double prior,
                        double tokens[KK_MAX_DRAFT + 1]) {
    double rate = prior, alive = 1;
    tokens[0] = 1;
    for (int32_t i = 0; i < n; i++) {
        rate = rate_at(a, class, i, rate);
        alive *= rate;
        tokens[i + 1] = tokens[i] + alive;
    }
}

double kk_acceptance_tokens(const kk_acceptance *seen, int32_t draft_class, int32_t n) {
    double tokens[KK_MAX_DRAFT + 1];
    tokens_upto(seen, draft_class, n, EXPECTED, tokens);
    return tokens[n];
}

static void forget(kk_acceptance *a) {
    for (int32_t k = 0; k < KK_DRAFT_CLASSES; k++)
        for (int32_t i = 0; i < KK_MAX_DRAFT; i++) {
            a->tried[k][i] *= MEMORY;
            a->right[k][i] *= MEMORY;
        }
}

static void observe(const kk_alternative *from, int32_t drafted, int32_t right) {
    kk_acceptance *a = from->seen;
    const int32_t class = from->draft_class;
    for (int32_t i = 0; i < drafted && i <= right; i++) {
        a->tried[class][i] += 1;
        a->right[class][i] += i < right;
    }
    if (drafted > a->tried_depth[class]) a->tried_depth[class] = drafted;
}

/* Seconds of a draft of n tokens.  By a head that was never measured it costs what it does by the
 * other one. */
static double draft_at(const kk_costs *costs, const kk_alternative *from, int32_t n) {
    const kk_cost_table *heads[] = {&costs->draft, &costs->draft_short};
    const double known = kk_cost_at(heads[from->short_head], n);
    if (from->free) return 0;
    return known > 0 ? known : kk_cost_at(heads[!from->short_head], n);
}

/* Time of a round in which every session drafts n, over that of a plain one. */
static double time_of(const kk_costs *costs, const kk_choice *c, int32_t n) {
    const int32_t all = c->sessions * n;
    const double plain = kk_cost_at(&costs->verify, c->sessions);
    const double verify = kk_cost_at(&costs->verify, c->sessions + all);
    const double draft = draft_at(costs, &c->from[c->who], all);
    return at_least(plain > 0 ? (verify + draft) / plain : 1, 1 + COST_OF_ROW * n);
}

/* Whatever a proposer gains pays for its exploration too, now and in sessions to come: one that was
 * worth it in other texts is tried again in the next.  An exploratory draft is charged for being
 * wrong, not for being short: one that was right to its end may have been too short to pay, and has
 * earned a longer one. */
static void settle(const kk_costs *costs, kk_choice *c, int32_t drafted, int32_t right) {
    const double time = time_of(costs, c, drafted), tokens = right + 1;
    const double gain = tokens - time * c->otherwise;
    kk_draft_budget *b = &c->from[c->who].seen->budget;
    b->credit = at_most(b->credit + tokens - time, 0);
    if (gain > 0)
        b->exploration = at_most(b->exploration + gain, CREDIT);
    else if (c->unproven && right < drafted)
        b->exploration += gain;
}

static void refill(kk_draft_budget *b) {
    b->credit = at_most(b->credit + REFILL, 0);
    if (b->exploration < 0) b->exploration = at_most(b->exploration + REFILL, 0);
}

void kk_controller_saw(const kk_costs *costs, kk_choice *c, int32_t drafted, int32_t right) {
    assert(right >= 0 && right <= drafted && drafted <= KK_MAX_DRAFT);
    for (int32_t k = 0; k < c->n_from; k++) {
        forget(c->from[k].seen);
        refill(&c->from[k].seen->budget);
    }
    if (drafted == 0) return;
    observe(&c->from[c->who], drafted, right);
    if (c->sessions > 0) settle(costs, c, drafted, right);
}

void kk_controller_watched(kk_choice *c, int32_t k, int32_t drafted, int32_t right) {
    assert(right >= 0 && right <= drafted && drafted <= KK_MAX_DRAFT);
    assert(k < c->n_from); /* perhaps the chosen one, whose draft was dropped for want of memory */
    observe(&c->from[k], drafted, right);
}

void kk_acceptance_begin(kk_acceptance *seen, const kk_acceptance *known) {
    *seen = *known;
    for (int32_t k = 0; k < KK_DRAFT_CLASSES; k++) {
        seen->tried_depth[k] = 0;
        for (int32_t i = 0; i < KK_MAX_DRAFT; i++) {
            if (seen->tried[k][i] <= PRIOR_WEIGHT) continue;
            seen->right[k][i] *= PRIOR_WEIGHT / seen->tried[k][i];
            seen->tried[k][i] = PRIOR_WEIGHT;
        }
    }
}

/* Adds only what the session observed itself: the prior it began with is already in `known`. */
void kk_acceptance_pool(kk_acceptance *known, const kk_acceptance *seen) {
    known->budget = seen->budget;
    for (int32_t k = 0; k < KK_DRAFT_CLASSES; k++) {
        if (seen->tried_depth[k] == 0) continue;
        for (int32_t i = 0; i < KK_MAX_DRAFT; i++) {
            const double news = i < seen->tried_depth[k];
            known->tried[k][i] = (known->tried[k][i] + news * seen->tried[k][i]) / 2;
            known->right[k][i] = (known->right[k][i] + news * seen->right[k][i]) / 2;
        }
    }
}

/* ---- the choice ------------------------------------------------------------------------- */

typedef struct {
    const kk_costs *costs;
    curve verify, draft[2]; /* drafts: by the full head, and by a short one */
    kk_choice *choices;
    int32_t sessions, draft_rows; /* sessions, and rows for drafts */
    double plain;                 /* seconds of a round without drafts */
} plan;

/* Drafted tokens that are not free, by the full head and by a short one. */
typedef struct {
    int32_t head[2];
} draft_tokens;

static draft_tokens tokens_by(const kk_alternative *from, int32_t n) {
    draft_tokens p = {{0}};
    p.head[from->short_head] = from->free ? 0 : n;
    return p;
}

typedef enum { AS_EXPECTED, AS_HOPED, AS_FEARED } outlook;

/* A drafter that was never measured is taken to cost a plain round; one head of it, what the other
 * does. */
static double draft_seconds(const plan *p, draft_tokens tokens, outlook how) {
    double sum = 0;
    for (int h = 0; h < 2; h++) {
        const curve *c = &p->draft[p->draft[h].measured ? h : !h];
        const double *at = how == AS_HOPED ? c->hoped : how == AS_FEARED ? c->feared : c->expected;
        double one = c->measured ? cost(at, tokens.head[h]) : p->plain;
        if (how == AS_HOPED && !c->measured_well) one = at_most(one, p->plain);
        sum += tokens.head[h] ? one : 0;
    }
    return sum;
}

static double seconds(const plan *p, int32_t drafted, draft_tokens tokens) {
    return cost(p->verify.expected, p->sessions + drafted) + draft_seconds(p, tokens, AS_EXPECTED);
}

static double feared_seconds(const plan *p, int32_t drafted, draft_tokens tokens) {
    return cost(p->verify.feared, p->sessions + drafted) + draft_seconds(p, tokens, AS_FEARED);
}

/* By what factor a round may be cheaper than thought, having been measured so little. */
static double doubt(const plan *p, int32_t drafted) {
    const int32_t rows = p->sessions + drafted;
    if (rows > KK_COST_ROWS) return 1;
    return 1 - COST_DOUBT / (1 + p->costs->verify.weight[rows]);
}

static double hoped_seconds(const plan *p, int32_t drafted, draft_tokens tokens) {
    return doubt(p, drafted) *
           (cost(p->verify.hoped, p->sessions + drafted) + draft_seconds(p, tokens, AS_HOPED));
}

/* Times of a round in which every session drafts n, over that of a plain one. */
static double hoped_time(const plan *p, int32_t n, const kk_alternative *from) {
    const int32_t all = n * p->sessions;
    return at_least(hoped_seconds(p, all, tokens_by(from, all)) / p->plain, 1 + COST_OF_ROW * n);
}

static double feared_time(const plan *p, int32_t n, const kk_alternative *from) {
    const int32_t all = n * p->sessions;
    return at_least(feared_seconds(p, all, tokens_by(from, all)) / p->plain, 1 + COST_OF_ROW * n);
}

/* The longest draft that loses at most `loss` tokens against `otherwise` (times plain decoding), if
 * only what is certain of it comes true. */
static int32_t longest(const plan *p, const kk_alternative *from, double otherwise, double loss) {
    double tokens[KK_MAX_DRAFT + 1];
    int32_t n = from->max < KK_MAX_DRAFT ? from->max : KK_MAX_DRAFT;
    if (n > p->draft_rows) n = p->draft_rows;
    tokens_upto(from->seen, from->draft_class, n, CERTAIN, tokens);
    while (n > 0 && feared_time(p, n, from) * otherwise - tokens[n] > loss) n--;
    return n;
}

static void look_ahead(kk_choice *c) {
    if (c->at < 0) return;
    const kk_alternative *from = &c->from[c->at];
    if (c->n < KK_MAX_DRAFT) c->rate = rate_at(from->seen, from->draft_class, c->n, c->rate);
    c->next = c->alive * c->rate;
}

static void restart(plan *p) {
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        c->n = 0, c->alive = 1, c->rate = EXPECTED;
        look_ahead(c);
    }
}

/* The session whose next token is the likeliest; NULL when no more can be drafted. */
static kk_choice *likeliest(const plan *p) {
    kk_choice *best = NULL;
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        if (c->at >= 0 && c->n < c->cap[c->at] && (!best || c->next > best->next)) best = c;
    }
    return best;
}

static void take(kk_choice *c) {
    c->n++;
    c->alive = c->next;
    look_ahead(c);
}

typedef struct {
    double plain, value; /* tokens per second */
    int32_t total;       /* drafted tokens */
} best_total;

/* Finds the best total of drafted tokens.  A total whose cost is little known may be chosen over a
 * better one, as long as it is expected to pay. */
static best_total walk(plan *p) {
    restart(p);
    double tokens = p->sessions;
    draft_tokens tokens_paid = {{0}};
    best_total best = {0};
    for (int32_t total = 0;; total++) {
        const double value = tokens / seconds(p, total, tokens_paid);
        const double hoped = tokens / hoped_seconds(p, total, tokens_paid);
        if (total == 0) best.plain = best.value = value;
        if (value > MARGIN * best.plain && hoped > best.value)
            best.value = hoped, best.total = total;
        kk_choice *c = total < p->draft_rows ? likeliest(p) : NULL;
        if (!c) return best;
        tokens += c->next;
        tokens_paid.head[c->from[c->at].short_head] += !c->from[c->at].free;
        take(c);
    }
}

static void walk_to(plan *p, int32_t total) {
    restart(p);
    for (int32_t i = 0; i < total; i++) take(likeliest(p));
}

/* Which alternatives are considered for each session.  The fixed cost of a drafter is paid once for
 * all sessions, so either no session uses it, or every session that can, or each session takes what
 * is best for itself. */
typedef enum { FREE_ONLY, PAID_FIRST, BEST_EACH, ASSIGNMENTS } assignment;

static double best_of(const plan *p, const kk_choice *c, int32_t k) {
    const kk_alternative *from = &c->from[k];
    double tokens[KK_MAX_DRAFT + 1], best = 0;
    tokens_upto(from->seen, from->draft_class, c->cap[k], EXPECTED, tokens);
    for (int32_t n = 1; n <= c->cap[k]; n++)
        best = at_least(best, tokens[n] / hoped_time(p, n, from));
    return best;
}

static int32_t pick(const plan *p, const kk_choice *c, assignment how) {
    int32_t at = -1;
    double best = 0;
    for (int32_t k = 0; k < c->n_from; k++) {
        if (c->cap[k] == 0 || (how == FREE_ONLY && !c->from[k].free)) continue;
        const double value = how == BEST_EACH ? best_of(p, c, k) : c->from[k].free ? 1 : 2;
        if (value > best) best = value, at = k;
    }
    return at;
}

static void assign(plan *p, assignment how) {
    for (int32_t i = 0; i < p->sessions; i++) p->choices[i].at = pick(p, &p->choices[i], how);
}

/* Whether a draft pays if only what is certain of it comes true. */
static bool is_certain(const plan *p, const kk_alternative *from, int32_t n) {
    double tokens[KK_MAX_DRAFT + 1];
    tokens_upto(from->seen, from->draft_class, n, CERTAIN, tokens);
    return tokens[n] >= feared_time(p, n, from);
}

/* The drafts that are expected to pay, of all sessions together.  Returns how many tokens. */
static int32_t choose_paying(plan *p) {
    best_total best = {0};
    assignment by = FREE_ONLY;
    for (assignment how = FREE_ONLY; how < (p->sessions > 1 ? ASSIGNMENTS : BEST_EACH); how++) {
        assign(p, how);
        const best_total one = walk(p);
        if (how == FREE_ONLY || one.value > best.value) best = one, by = how;
    }
    assign(p, by);
    walk_to(p, best.total);
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        if (c->n == 0) continue;
        c->who = c->at;
        c->unproven = !is_certain(p, &c->from[c->who], c->n);
    }
    /* A plain round's cost must stay known as well, and is not measured while every round drafts.
     * A plain round forgoes the gain, and is run as often as the refill of the budget pays for
     * it. */
    const double gain = best.value / best.plain - 1;
    return best.total > 0 && (double)p->costs->since_plain * REFILL >= gain ? -1 : best.total;
}

/* What the choice promises, times plain decoding. */
static double promise(const plan *p, const kk_choice *c) {
    if (c->n == 0) return 1;
    const kk_alternative *from = &c->from[c->who];
    const double tokens = kk_acceptance_tokens(from->seen, from->draft_class, c->n);
    return at_least(tokens / hoped_time(p, c->n, from), 1);
}

/* The length at which an alternative could give the most, times plain decoding, if all that is not
 * known of it went well.  Of a draft that costs nothing only the price of its rows is to be
 * explored: how much of it is right is watched whether it is used or not. */
static double possible(const plan *p, const kk_alternative *from, int32_t most, int32_t *length) {
    double tokens[KK_MAX_DRAFT + 1], best = 0;
    tokens_upto(from->seen, from->draft_class, most, from->free ? EXPECTED : POSSIBLE, tokens);
    for (int32_t n = 1; n <= most; n++) {
        const double value = tokens[n] / hoped_time(p, n, from);
        if (value > best) best = value, *length = n;
    }
    return best;
}

/* Explores another alternative than the chosen one, if it could be better: as many of its tokens as
 * the exploration budget allows.  rows: rows of the forward that the session may use. */
static void explore(const plan *p, kk_choice *c, int32_t rows) {
    const double otherwise = promise(p, c);
    const int32_t chosen = c->n > 0 ? c->who : -1;
    double best = MARGIN * otherwise;
    for (int32_t k = 0; k < c->n_from; k++) {
        const kk_alternative *from = &c->from[k];
        const int32_t most = from->max < rows ? from->max : rows;
        int32_t n = 0;
        if (k == chosen || most < 1) continue;
        const double value = possible(p, from, most < KK_MAX_DRAFT ? most : KK_MAX_DRAFT, &n);
        const double loss = EXPLORATION + from->seen->budget.exploration;
        const int32_t cap = value > best ? longest(p, from, otherwise, loss) : 0;
        if (cap == 0) continue;
        best = value;
        c->who = k, c->n = n < cap ? n : cap;
        c->exploring = c->unproven = true;
        c->otherwise = otherwise;
    }
}

/* Two plain rounds come first: one alone may have been interrupted, and all is measured against
 * it. */
static bool knows_plain(const kk_costs *costs) {
    double weight = 0;
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) weight += costs->verify.weight[r];
    return !measured_once(weight);
}

/* The longest draft that the budget allows.  Once the exploration budget is used up, a draft must
 * be certain to pay. */
static int32_t affordable(const plan *p, const kk_alternative *from) {
    const kk_draft_budget *b = &from->seen->budget;
    const double credit = CREDIT + b->credit;
    return longest(p, from, 1, EXPLORATION + b->exploration > 0 ? credit : at_most(credit, 0));
}

static void prepare(const plan *p, kk_choice *c, bool cold) {
    c->n = c->who = 0;
    c->exploring = c->unproven = false;
    c->otherwise = 1;
    c->sessions = p->sessions;
    for (int32_t k = 0; k < c->n_from; k++) c->cap[k] = cold ? 0 : affordable(p, &c->from[k]);
}

void kk_controller_choose(const kk_costs *costs, kk_choice *choices, int32_t n, int32_t most_rows) {
    assert(n >= 1 && most_rows >= n);
    plan p = {.costs = costs, .choices = choices, .sessions = n, .draft_rows = most_rows - n};
    draw(&p.verify, &costs->verify);
    draw(&p.draft[0], &costs->draft);
    draw(&p.draft[1], &costs->draft_short);
    p.plain = cost(p.verify.expected, n);
    const bool cold = !knows_plain(costs);
    for (int32_t i = 0; i < n; i++) prepare(&p, &choices[i], cold);
    if (cold) return;
    const int32_t total = choose_paying(&p);
    if (total < 0) {
        for (int32_t i = 0; i < n; i++) choices[i].n = 0;
        return;
    }
    int32_t rows = p.draft_rows - total;
    for (int32_t i = 0; i < n; i++) {
        const int32_t before = choices[i].n;
        explore(&p, &choices[i], rows + before);
        rows -= choices[i].n - before;
    }
}
