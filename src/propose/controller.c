/* controller.c - see controller.h.
 *
 * Three parts: cost tables, acceptance, and the choice, which is the only one that knows both.
 *
 * Timings err upward: a round is interrupted, never helped.  So a table takes a much lower time
 * at its word while it knows little, and never more than so much of a higher one.  What makes
 * one row count slower (a longer context, a busy machine) makes them all slower, so each
 * measurement moves the whole table a little, and its own row most.
 *
 * For a given total of drafted tokens, the most are accepted in expectation if those with the
 * best chances are drafted; a token is never more likely than the one before it, so taking the
 * best next one each time is exact, and the totals can simply be walked through.  The best total
 * is sought over all of them, since the first drafted token carries the proposer's fixed cost
 * and the fourth may be the first that pays.  A session alone whose drafts never failed takes the
 * longest of those that are nearly as good. */
#include "propose/controller.h"

#include <assert.h>
#include <string.h>

static double at_most(double a, double b) { return a < b ? a : b; }
static double at_least(double a, double b) { return a > b ? a : b; }

/* ---- tables ----------------------------------------------------------------------------- */

static const double FADING = 0.998;    /* of a measurement's weight, per round */
static const double MOST_WEIGHT = 100; /* so that a row never stops learning */
static const double FEW = 4;           /* measurements that do not make a row well known yet */
static const double CLIP = 2;          /* times the known cost: what is above is an interruption */
static const double COMMON = 0.03;     /* share of a surprise that all rows have in common */
static const double SLACK = 1.25;      /* times what is possible: what a measurement may say */
static const double FORGOTTEN = 0.01;  /* weight at which a row counts as not measured */
static const int64_t ALONE = 8;        /* rounds without a draft until its cost is inferred */

typedef struct {
    int32_t rows[KK_COST_ROWS], n;
    double seconds[KK_COST_ROWS], weight[KK_COST_ROWS];
} points;

/* A whole table, gaps filled. */
typedef struct {
    double at[KK_COST_ROWS + 1]; /* at[0] is 0 */
} curve;

static void collect(points *p, const kk_cost_table *t) {
    p->n = 0;
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) {
        if (t->weight[r] < FORGOTTEN) continue;
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
    int32_t first[KK_COST_ROWS], n = 0; /* of each run of equal seconds */
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

/* Rows in one forward never cost more than in several, or hardly: measurements are not exact. */
static void make_proportional(points *p) {
    for (int32_t i = 1; i < p->n; i++) {
        const double most = p->seconds[i - 1] * p->rows[i] / p->rows[i - 1];
        p->seconds[i] = at_most(p->seconds[i], SLACK * most);
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

/* Seconds per row beyond the last point: as over its second half or over all, whichever hopes
 * for more, since growth slows down, and never more than in proportion.  With one point, half its
 * cost is taken to grow with the rows. */
static double slope_of(const points *p) {
    const int32_t last = p->n - 1;
    const double most = p->seconds[last] / p->rows[last];
    if (last == 0) return most / 2;
    int32_t half = last - 1;
    while (half > 0 && 2 * p->rows[half] > p->rows[last]) half--;
    const double late = (p->seconds[last] - p->seconds[half]) / (p->rows[last] - p->rows[half]);
    const double slope = at_most(late, fitted_slope(p));
    return at_least(0, at_most(slope, most));
}

static void draw(curve *c, const kk_cost_table *t) {
    memset(c, 0, sizeof *c);
    points p;
    collect(&p, t);
    if (p.n == 0) return;
    smooth(&p);
    make_monotone(&p);
    make_proportional(&p);
    const double slope = slope_of(&p);
    const int32_t first = p.rows[0], last = p.rows[p.n - 1];
    for (int32_t r = 1, i = 0; r <= KK_COST_ROWS; r++) {
        while (i + 1 < p.n && p.rows[i + 1] <= r) i++;
        if (r < first)
            c->at[r] = at_least(p.seconds[0] - slope * (first - r), p.seconds[0] * r / first);
        else if (r >= last)
            c->at[r] = p.seconds[p.n - 1] + slope * (r - last);
        else
            c->at[r] = between(&p, i, i + 1, r);
    }
}

static double cost(const curve *c, int32_t rows) {
    if (rows <= KK_COST_ROWS) return c->at[rows];
    return c->at[KK_COST_ROWS] +
           (c->at[KK_COST_ROWS] - c->at[KK_COST_ROWS - 1]) * (rows - KK_COST_ROWS);
}

double kk_cost_at(const kk_cost_table *t, int32_t rows) {
    curve c;
    draw(&c, t);
    return cost(&c, rows);
}

/* Returns what it took to be common to all rows: the factor that they were moved by. */
static double measured(kk_cost_table *t, int32_t rows, double seconds) {
    if (rows < 1 || !(seconds > 0)) return 1;
    const double inferred = kk_cost_at(t, rows);
    if (rows > KK_COST_ROWS) { /* is taken as news of the last row that has a place */
        seconds *= inferred > 0 ? kk_cost_at(t, KK_COST_ROWS) / inferred : 1;
        rows = KK_COST_ROWS;
    }
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) t->weight[r] *= FADING;
    double *known = &t->seconds[rows], *weight = &t->weight[rows];
    if (*weight < FORGOTTEN || (*weight < FEW && seconds * CLIP < *known)) {
        *known = inferred > 0 ? at_most(seconds, CLIP * inferred) : seconds;
        *weight = 1;
        return 1;
    }
    const double surprise = at_least(at_most(seconds / *known, CLIP), 1 / CLIP);
    const double common = 1 + COMMON * (surprise - 1) * *weight / (*weight + FEW);
    *known *= 1 + (surprise - 1) / (*weight + 1);
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) t->seconds[r] *= common;
    *weight = at_most(*weight + 1, MOST_WEIGHT);
    return common;
}

/* While drafts are made they say themselves what they cost.  When none was for a while, what all
 * forwards have in common is theirs too: after a session with a long context they would seem dear
 * to one with a short context, which would then make none and never learn better. */
static void follow(kk_costs *costs, double common) {
    if (costs->undrafted++ < ALONE) return;
    for (int32_t r = 1; r <= KK_COST_ROWS; r++) costs->draft.seconds[r] *= common;
}

void kk_controller_spent(kk_costs *costs, const kk_spent *s) {
    const double common = measured(&costs->verify, s->rows, s->verify_s);
    if (s->drafted > 0) {
        measured(&costs->draft, s->drafted, s->draft_s);
        costs->undrafted = 0;
    } else {
        follow(costs, common);
    }
    costs->total_s += s->verify_s + s->draft_s;
    const double extra = s->verify_s + s->draft_s - kk_cost_at(&costs->verify, s->sessions);
    if (s->looking && extra > 0) costs->looking_s += extra;
}

/* ---- acceptance ------------------------------------------------------------------------- */

static const double PRIOR = 0.65, PRIOR_WEIGHT = 1.5; /* of the first token of a draft */
static const double BORROWED = 2;                     /* weight of one depth's rate at the next */
static const double MEMORY = 0.98;    /* of an observation, per later one at its depth */
static const double UNVISITED = 0.99; /* and of one at a depth that drafts no longer reach */
static const double CHANCE = 0.0001;  /* below which a streak is none */
static const double SURPRISED = 2;    /* observations that such a streak leaves at other depths */
/* Rounds between looks, doubled each time: at first and at last.  Looks that succeed go on, for
 * so many. */
enum { FIRST_PATIENCE = 4, MOST_PATIENCE = 1024, HOPEFUL = 10 };

static double rate_at(const kk_acceptance *a, int32_t depth, double shallower) {
    const double weight = depth ? BORROWED : PRIOR_WEIGHT;
    return (a->right[depth] + weight * shallower) / (a->tried[depth] + weight);
}

double kk_acceptance_tokens(const kk_acceptance *seen, int32_t n) {
    double rate = PRIOR, alive = 1, tokens = 1;
    for (int32_t i = 0; i < n; i++) {
        rate = rate_at(seen, i, rate);
        alive *= rate;
        tokens += alive;
    }
    return tokens;
}

/* Drafts that began right, or wrong, so often in a row that the rate seen so far cannot stand:
 * the text has changed.  The streak is then all that is known of the first token. */
static void notice_change(kk_acceptance *a) {
    const double rate = rate_at(a, 0, PRIOR), once = a->streak > 0 ? rate : 1 - rate;
    const int32_t times = a->streak > 0 ? a->streak : -a->streak;
    double chance = 1;
    for (int32_t i = 0; i < times; i++) chance *= once;
    if (chance >= CHANCE || a->tried[0] <= times) return;
    for (int32_t i = 0; i < KK_MAX_DRAFT; i++) {
        if (a->tried[i] <= SURPRISED) continue;
        a->right[i] *= SURPRISED / a->tried[i];
        a->tried[i] = SURPRISED;
    }
    a->tried[0] = times;
    a->right[0] = a->streak > 0 ? times : 0;
}

void kk_controller_saw(kk_acceptance *a, int32_t drafted, int32_t right) {
    assert(right >= 0 && right <= drafted && drafted <= KK_MAX_DRAFT);
    if (drafted == 0) return;
    for (int32_t i = 0; i < drafted && i <= right; i++) {
        a->tried[i] = a->tried[i] * MEMORY + 1;
        a->right[i] = a->right[i] * MEMORY + (i < right);
    }
    if (drafted > a->reached) a->reached = drafted;
    if (right < drafted) a->broken = true;
    for (int32_t i = drafted; i < KK_MAX_DRAFT; i++) {
        a->tried[i] *= UNVISITED;
        a->right[i] *= UNVISITED;
    }
    if (right > 0)
        a->streak = a->streak > 0 ? a->streak + 1 : 1;
    else
        a->streak = a->streak < 0 ? a->streak - 1 : -1;
    notice_change(a);
    if (right > 0 && (!a->last_looking || a->streak <= HOPEFUL))
        a->patience = 0;
    else if (!a->last_looking || a->patience < FIRST_PATIENCE)
        a->patience = FIRST_PATIENCE;
    else if (a->patience < MOST_PATIENCE)
        a->patience *= 2;
    a->idle = 0;
    a->last_n = drafted;
    a->last_right = right;
}

static const double BEGINNING = 2.5; /* drafts that what others saw is worth */

static void copy_rates(kk_acceptance *to, const kk_acceptance *from, int32_t depths, double share,
                       double most) {
    for (int32_t i = 0; i < depths; i++) {
        const double worth = share * (from->tried[i] > most ? most / from->tried[i] : 1);
        to->tried[i] += worth * from->tried[i];
        to->right[i] += worth * from->right[i];
    }
}

void kk_acceptance_begin(kk_acceptance *seen, const kk_acceptance *known) {
    *seen = (kk_acceptance){.credit = at_most(known->credit, 0),
                            .purse = known->purse,
                            .idle = known->idle,
                            .patience = known->patience};
    copy_rates(seen, known, KK_MAX_DRAFT, 1, BEGINNING);
}

void kk_acceptance_pool(kk_acceptance *known, const kk_acceptance *seen) {
    for (int32_t i = 0; i < KK_MAX_DRAFT; i++) known->tried[i] /= 2, known->right[i] /= 2;
    /* What a session began with and did not try itself is no news; that it tried nothing is none
     * either. */
    copy_rates(known, seen, seen->reached ? seen->reached : KK_MAX_DRAFT, 0.5, 2 * BEGINNING);
    known->credit = seen->credit;
    known->purse = seen->purse;
    known->idle = seen->idle;
    known->patience = seen->patience;
}

/* ---- the choice ------------------------------------------------------------------------- */

static const double MARGIN = 1.02; /* times plain decoding: what drafting must promise */
static const double NEARLY = 0.98; /* of the best: lengths that promise so much count as equal */
/* In tokens of plain decoding, for drafts expected to pay and for those made to learn: what they
 * may lose before they gained any, what they may save up, and what a round adds to each. */
static const double ALLOWANCE = 8, MOST_CREDIT = 8;
static const double LOOK_ALLOWANCE = 2, MOST_PURSE = 1;
static const double REFILL = 0.01;
static const double EARNED = 1.5; /* what a look may lose more after a draft right to its end */
/* The longest wait between looks, in rounds: at least, and per token that one costs. */
static const double WAIT = 16, WAIT_PER_TOKEN = 128;
static const double UNSURE = 3;      /* drafts after which half of what they promise is sure */
static const double HOPELESS = 0.06; /* rate of acceptance below which no row is cheap enough */
static const double CHEAPEST = 0.03; /* price of a row that seems to cost less */
/* How much cheaper a cost may be than thought: if few measured it, if it is only a guess. */
static const double CURIOSITY = 0.2, CURIOSITY_BEYOND = 0.25;
static const double NOISE = 0.28;     /* of one measurement */
static const double MOST_WANTED = 50; /* measurements that are enough for anything */
static const double SUSPICIOUS = 1;   /* price of the first draft that wants to be seen again */
/* Tokens drafted while costs are not known, and the most where longer drafts are news. */
enum { FIRST_LOOK = 2, MOST_GROWN = 7 };

typedef struct {
    const kk_costs *costs;
    curve verify, draft;
    kk_choice *choices;
    int32_t sessions, room; /* sessions, and rows for drafts */
    int32_t measured_to;    /* the largest forward measured */
} plan;

static double seconds(const plan *p, int32_t drafted, int32_t paid) {
    return cost(&p->verify, p->sessions + drafted) + cost(&p->draft, paid);
}

/* What a draft of n costs one session, in tokens of plain decoding, if all sessions did so. */
static double price(const plan *p, int32_t n, bool is_free) {
    const int32_t all = n * p->sessions;
    const double plain = cost(&p->verify, p->sessions);
    const double extra = plain > 0 ? seconds(p, all, is_free ? 0 : all) / plain - 1 : 0;
    return at_least(extra, CHEAPEST * n);
}

static void settle(const plan *p, kk_acceptance *a) {
    const double gain = a->last_n ? a->last_right - price(p, a->last_n, a->last_free) : 0;
    const bool unproven = a->tried[0] < UNSURE && gain < 0;
    if (a->last_looking || unproven) a->purse += gain;
    if (!a->last_looking) a->credit += gain;
    a->credit = at_most(a->credit + REFILL, MOST_CREDIT);
    a->purse = at_most(a->purse + REFILL, MOST_PURSE);
    a->last_n = 0;
    a->idle++;
}

/* What a draft may lose: its price, less what it will surely gain.  The first drafts of a session
 * may be worth nothing; after many it is known what they are. */
static double risk(const plan *p, const kk_choice *c, int32_t n) {
    const double tried = c->seen->tried[0], sure = tried / (tried + UNSURE);
    return price(p, n, c->free) - sure * (kk_acceptance_tokens(c->seen, n) - 1);
}

static int32_t bearable(const plan *p, const kk_choice *c, double loss) {
    int32_t n = c->max < KK_MAX_DRAFT ? c->max : KK_MAX_DRAFT;
    if (n > p->room) n = p->room;
    while (n > 0 && risk(p, c, n) > loss) n--;
    return n;
}

static void look_ahead(kk_choice *c) {
    if (c->n < KK_MAX_DRAFT) c->rate = rate_at(c->seen, c->n, c->rate);
    c->next = c->alive * c->rate;
}

static void restart(plan *p) {
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        c->n = 0, c->alive = 1, c->rate = PRIOR;
        look_ahead(c);
    }
}

/* The session whose next token is the likeliest; NULL when no more can be drafted. */
static kk_choice *likeliest(const plan *p, bool free_only) {
    kk_choice *best = NULL;
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        if (c->n < c->cap && (c->free || !free_only) && (!best || c->next > best->next)) best = c;
    }
    return best;
}

static void take(kk_choice *c) {
    c->n++;
    c->alive = c->next;
    look_ahead(c);
}

/* How much cheaper than thought a round might be, having been measured so little. */
static double doubt(const plan *p, int32_t rows) {
    if (rows > KK_COST_ROWS) return 0;
    if (rows > p->measured_to) return CURIOSITY_BEYOND;
    return CURIOSITY / (1 + p->costs->verify.weight[rows]);
}

typedef struct {
    double plain, value; /* tokens per second */
    int32_t total;       /* drafted tokens */
} best_total;

/* What drafting is measured against must be known too, the better the less it gains; but while
 * it is always drafted, nobody measures it. */
static bool plain_is_stale(const plan *p, double gain) {
    if (p->sessions > KK_COST_ROWS) return false;
    const double wanted = at_least(at_most(NOISE * NOISE / (gain * gain), MOST_WANTED), 1);
    const double *weight = p->costs->verify.weight + p->sessions;
    return weight[0] + (p->sessions > 1 ? weight[-1] : 0) < wanted;
}

/* Of a text whose drafts were all right to their ends, or that had none yet, nobody knows how much
 * longer they could have been: of lengths that promise nearly the same the longest is taken, which
 * tells. */
static bool unbroken(const plan *p) {
    const kk_choice *c = &p->choices[0];
    return p->sessions == 1 && !c->free && !c->seen->broken;
}

/* Walks through the totals.  A total whose cost is little known may be chosen over a better one,
 * as long as it is expected to pay. */
static best_total walk(plan *p, bool free_only) {
    restart(p);
    double tokens = p->sessions;
    int32_t paid = 0;
    best_total sure = {0}, curious = {0}, longest = {0};
    for (int32_t total = 0;; total++) {
        const double s = seconds(p, total, paid), value = tokens / s;
        const double hoped = value / (1 - doubt(p, p->sessions + total));
        if (total == 0) sure.plain = curious.plain = longest.plain = value;
        const bool pays = total == 0 || value > MARGIN * sure.plain;
        if (pays && value > sure.value) sure.value = value, sure.total = total;
        if (pays && hoped > curious.value) curious.value = hoped, curious.total = total;
        if (pays && hoped > NEARLY * curious.value) longest.value = hoped, longest.total = total;
        kk_choice *c = total < p->room ? likeliest(p, free_only) : NULL;
        if (!c) break;
        tokens += c->next;
        paid += !c->free;
        take(c);
    }
    if (sure.total == 0) return sure;
    return unbroken(p) ? longest : curious;
}

static void walk_to(plan *p, bool free_only, int32_t total) {
    restart(p);
    for (int32_t i = 0; i < total; i++) take(likeliest(p, free_only));
}

/* The best of the lengths that do not pay, as soon as the purse bears it: a shorter one now would
 * only put it off.  At first any length teaches something, and what can be had is taken.  Where
 * drafts are dear, one that is right may still cost more than it gains, and the purse would have
 * to wait for longer than an answer lasts; so a draft right to its end earns the next look. */
static int32_t look_length(const plan *p, const kk_choice *c, int32_t room) {
    const bool earned = c->grown > 0 && !c->free && p->sessions == 1;
    const double now = LOOK_ALLOWANCE + c->seen->purse + (earned ? EARNED : 0);
    const double later = LOOK_ALLOWANCE + MOST_PURSE;
    const int32_t cap = bearable(p, c, c->seen->tried[0] < UNSURE ? now : later);
    int32_t best = 0;
    double best_value = 0;
    for (int32_t n = 1; n <= cap && n <= room; n++) {
        const double value = (p->sessions - 1 + kk_acceptance_tokens(c->seen, n)) /
                             (seconds(p, n, c->free ? 0 : n) * (1 - doubt(p, p->sessions + n)));
        if (value > best_value) best_value = value, best = n;
    }
    return best && risk(p, c, best) <= now ? best : 0;
}

static void look_where_due(plan *p, int32_t room) {
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        const double longest = WAIT + WAIT_PER_TOKEN * price(p, 1, c->free);
        if (c->n > 0 || c->seen->idle <= at_most(c->seen->patience, longest)) continue;
        c->n = look_length(p, c, room);
        c->looking = c->n > 0;
        room -= c->n;
    }
}

static bool unmeasured(const plan *p, int32_t n) {
    return p->costs->verify.weight[p->sessions + n] < FORGOTTEN ||
           p->costs->draft.weight[n] < FORGOTTEN;
}

/* What longer drafts cost is only guessed until one is made, and a guess that is too high would
 * keep them from ever being made.  So a draft that was right to its end is followed by one twice
 * as long where that is news: it is likely to be right too, and then costs little. */
static void grow_where_right(plan *p) {
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        const int32_t twice = c->grown < MOST_GROWN ? c->grown : MOST_GROWN;
        const int32_t n = twice < c->cap ? twice : c->cap;
        const bool pays = c->n > 0 && !c->looking;
        if (p->sessions > 1 || c->free || pays || n <= c->n || !unmeasured(p, n)) continue;
        c->n = n;
        c->looking = true;
    }
}

/* How many tokens to draft while costs are not known: none in the first round, to know that of a
 * plain one; then a few; and again, should those have cost so much that it may have been an
 * interruption.  -1: they are known. */
static int32_t first_look(const plan *p, const kk_choice *c) {
    points verify, draft;
    collect(&verify, &p->costs->verify);
    collect(&draft, &p->costs->draft);
    if (verify.n == 0) return 0;
    if (verify.n == 1 || (!c->free && draft.n == 0)) return FIRST_LOOK;
    const bool once = verify.n == 2 && verify.weight[1] <= 1;
    return once && price(p, verify.rows[1] - p->sessions, c->free) > SUSPICIOUS ? FIRST_LOOK : -1;
}

static bool start_cold(plan *p) {
    restart(p);
    for (int32_t i = 0; i < p->sessions; i++) {
        kk_choice *c = &p->choices[i];
        const int32_t most = c->max < p->room ? c->max : p->room;
        const int32_t n = most > 0 ? first_look(p, c) : -1;
        if (n < 0) continue;
        c->n = n < most ? n : most;
        c->looking = n > 0;
        return true;
    }
    return p->measured_to == 0;
}

static void choose_warm(plan *p) {
    bool any_free = false, any_paid = false, free_only = false;
    for (int32_t i = 0; i < p->sessions; i++) {
        any_free |= p->choices[i].free;
        any_paid |= !p->choices[i].free;
    }
    best_total best = walk(p, false);
    if (any_free && any_paid) { /* without the fixed cost of those that are not free */
        const best_total frees = walk(p, true);
        if (frees.value > best.value) best = frees, free_only = true;
    }
    const bool stale = best.total > 0 && plain_is_stale(p, best.value / best.plain - 1);
    walk_to(p, free_only, stale ? 0 : best.total);
    if (stale) return;
    look_where_due(p, p->room - best.total);
    grow_where_right(p);
}

void kk_controller_choose(const kk_costs *costs, kk_choice *choices, int32_t n, int32_t most_rows) {
    assert(n >= 1 && most_rows >= n);
    plan p = {.costs = costs, .choices = choices, .sessions = n, .room = most_rows - n};
    draw(&p.verify, &costs->verify);
    draw(&p.draft, &costs->draft);
    for (int32_t r = 1; r <= KK_COST_ROWS; r++)
        if (costs->verify.weight[r] >= FORGOTTEN) p.measured_to = r;
    for (int32_t i = 0; i < n; i++) {
        kk_choice *c = &choices[i];
        const kk_acceptance *a = c->seen;
        c->grown = a->last_n > 0 && a->last_right == a->last_n ? 2 * a->last_n : 0;
        settle(&p, c->seen);
        c->looking = false;
        const bool hopeless = rate_at(c->seen, 0, PRIOR) < HOPELESS;
        c->cap = hopeless ? 0 : bearable(&p, c, ALLOWANCE + c->seen->credit);
    }
    if (!start_cold(&p)) choose_warm(&p);
    for (int32_t i = 0; i < n; i++) {
        choices[i].seen->last_free = choices[i].free;
        choices[i].seen->last_looking = choices[i].looking;
    }
}
