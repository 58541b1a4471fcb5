/* bench_costs.c - what the parts of a round cost by themselves: a forward of so many rows with
 * their logits, and a draft of so many tokens.
 *
 * Steps are made as a round makes them, with rows put on the timeline in between, so that a draft
 * finds rows that its context does not have yet; but nothing is chosen and nothing is compared.
 * Where steps are short they are made several times and the last counts: rounds come one after the
 * other, while the first step of its kind finds caches full of something else, and threads asleep.
 * The rows are tokens of the prompt: of its own kind of text, or random ones. */
#include <string.h>

#include "core/clock.h"
#include "engine/session.h"
#include "eval/measure/bench_parts.h"

enum { MAX_ROWS = KK_MAX_DRAFT + 1, WARM_TOKENS = 8, MOST_PASSES = 512 };
static const double short_s = 5e-3; /* a step that other work beside it can spoil */
enum { SETTLING = 2 };              /* such steps before the one that counts */

struct kk_bench_costs {
    const kk_bench_opts *opts;
    kk_engine *engine;
    kk_spec arm;
    kk_session *s; /* NULL: behind no prompt yet */
    const kk_prompt *prompt;
    int32_t at;                             /* in the prompt: where the next rows are taken from */
    int32_t rows[KK_BENCH_ROWS], n, passes; /* the counts, and how often they were timed */
    double verify[KK_BENCH_ROWS][MOST_PASSES], draft[KK_BENCH_ROWS][MOST_PASSES];
};
typedef kk_bench_costs costs;

double kk_bench_cost(const kk_bench_pass *p, int32_t n, int32_t rows) {
    if (n == 0) return 0;
    int32_t i = 0;
    while (i + 1 < n && p[i + 1].rows < rows) i++;
    const double at = p[i].seconds.median;
    if (p[i].rows >= rows || n == 1) return at;
    if (i + 1 == n) i--; /* beyond the last: as between the last two */
    const double slope =
        (p[i + 1].seconds.median - p[i].seconds.median) / (p[i + 1].rows - p[i].rows);
    return p[i].seconds.median + slope * (rows - p[i].rows);
}

/* Tokens of the prompt behind the anchor that is on the timeline: the other rows of a forward of
 * n, and an anchor for the next when all of them stay. */
static void lay_out(costs *c, int32_t n) {
    kk_session *s = c->s;
    for (int32_t i = 0; i < n; i++)
        s->tokens[s->len + i] = c->prompt->ids[(size_t)c->at++ % c->prompt->n];
}

/* Where the device has a clock, a step is what the device worked for it. */
static kk_status by_device(kk_engine *e, double *verify, double *draft, kk_err *err) {
    kk_pick pick[KK_PICK_ROWS];
    int64_t ticket;
    double seconds;
    if (!e->backend->queues) return KK_OK;
    KK_TRY(kk_gemma4_choose(e->model, NULL, &ticket, err));
    KK_TRY(kk_gemma4_picked(e->model, ticket, pick, 1, &seconds, err));
    if (seconds > 0) *verify = seconds;
    seconds = kk_gemma4_lap_s(e->model, ticket);
    if (seconds > 0 && *draft > 0) *draft = seconds;
    return KK_OK;
}

static kk_status time_draft(costs *c, int32_t n, double *seconds, kk_err *err) {
    kk_session *s = c->s;
    int32_t out[KK_MAX_DRAFT];
    const kk_drafting_member *m = &s->drafting.member[0];
    kk_draft d = {.self = m->self, .tokens = s->tokens, .len = s->len, .out = out, .max = n};
    KK_TRY(kk_gemma4_lap(s->engine->model, false, err));
    const double from = kk_now();
    KK_TRY(m->proposer->draft(m->proposer, &d, 1, err));
    *seconds = kk_now() - from;
    return kk_gemma4_lap(s->engine->model, true, err);
}

static kk_status time_forward(costs *c, int32_t n, double *seconds, kk_err *err) {
    kk_session *s = c->s;
    kk_rounds *all = &s->engine->rounds;
    kk_gemma4_group g = {.cache = s->cache,
                         .layout = s->layout,
                         .tokens = s->tokens + s->len - 1,
                         .n_rows = n,
                         .n_logits = n};
    const kk_gemma4_forward_args args = {
        .groups = &g, .n_groups = 1, .tapped = all->tapped, .n_tapped = all->n_tapped};
    lay_out(c, n);
    const double from = kk_now();
    kk_taps taps;
    KK_TRY(kk_drafting_reserve(&s->drafting, g.tokens, n, &taps, err));
    g.taps = taps.buf;
    g.tap_row = taps.row;
    KK_TRY(kk_cache_reserve(s->cache, n, err));
    KK_TRY(kk_gemma4_forward(all->model, &args, err));
    *seconds = kk_now() - from;
    return KK_OK;
}

/* Half of the rows stay, as if their draft had been half right. */
static void keep_some(costs *c, int32_t rows) {
    kk_session *s = c->s;
    const int32_t keep = (rows + 1) / 2;
    kk_cache_commit(s->cache, kk_cache_len(s->cache) + keep);
    kk_drafting_commit(&s->drafting, keep);
    s->len += keep;
}

/* Whether a round of so many rows has a draft of the drafter's. */
static bool drafts(const kk_session *s, int32_t rows) {
    return s->spec == KK_SPEC_DFLASH && rows > 1 && rows - 1 <= s->draft_max;
}

static kk_status make_step(costs *c, int32_t rows, double *verify, double *draft, kk_err *err) {
    kk_engine_lock(c->s->engine);
    kk_status st = KK_OK;
    *draft = 0;
    if (drafts(c->s, rows)) st = time_draft(c, rows - 1, draft, err);
    if (st == KK_OK) st = time_forward(c, rows, verify, err);
    if (st == KK_OK) st = by_device(c->s->engine, verify, draft, err);
    if (st == KK_OK) keep_some(c, rows);
    kk_engine_unlock(c->s->engine);
    return st;
}

static kk_status one_step(costs *c, int32_t rows, double *verify, double *draft, kk_err *err) {
    for (int i = 0; i <= SETTLING; i++) {
        KK_TRY(make_step(c, rows, verify, draft, err));
        if (*verify + *draft > short_s) break;
    }
    return KK_OK;
}

/* The row counts that rounds of these arms can have. */
static int32_t list_rows(const kk_session *s, const kk_bench_opts *o, int32_t *rows) {
    static const int32_t all[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32};
    const kk_rounds *r = &s->engine->rounds;
    int32_t most = s->spec == KK_SPEC_DFLASH ? s->draft_max + 1 : 1, n = 0;
    for (int32_t i = 0; i < o->n_arms; i++)
        if (o->arms[i] == KK_SPEC_NGRAM || o->arms[i] == KK_SPEC_AUTO)
            most = o->draft_max ? o->draft_max + 1 : 16;
    if (most > r->max_logits) most = r->max_logits;
    for (size_t i = 0; i < sizeof all / sizeof *all && all[i] <= most; i++) rows[n++] = all[i];
    if (rows[n - 1] < most) rows[n++] = most;
    return n;
}

/* Of the passes from the first-th on. */
static kk_bench_pass pass_of(const costs *c, int32_t rows, const double *seconds, int32_t first) {
    double sorted[MOST_PASSES];
    const int32_t n = c->passes - first;
    memcpy(sorted, seconds + first, (size_t)n * sizeof *sorted);
    return (kk_bench_pass){.rows = rows, .seconds = kk_bench_spread_of(sorted, n)};
}

typedef struct {
    kk_bench_pass verify[KK_BENCH_ROWS], draft[KK_BENCH_ROWS];
    int32_t n_verify, n_draft;
} table;

static void tabulate(const costs *c, int32_t first, table *t) {
    t->n_verify = t->n_draft = 0;
    for (int32_t i = 0; i < c->n && c->passes > first; i++) {
        t->verify[t->n_verify++] = pass_of(c, c->rows[i], c->verify[i], first);
        if (drafts(c->s, c->rows[i]))
            t->draft[t->n_draft++] = pass_of(c, c->rows[i] - 1, c->draft[i], first);
    }
    for (int32_t i = 0; i < t->n_verify; i++)
        t->verify[i].ratio = t->verify[i].seconds.median / t->verify[0].seconds.median;
    for (int32_t i = 0; i < t->n_draft; i++)
        t->draft[i].ratio = t->draft[i].seconds.median / t->verify[0].seconds.median;
}

void kk_bench_costs_fill(const costs *c, kk_bench_set *set) {
    table t;
    tabulate(c, 0, &t);
    set->n_verify = t.n_verify;
    set->n_draft = t.n_draft;
    memcpy(set->verify, t.verify, (size_t)t.n_verify * sizeof *t.verify);
    memcpy(set->draft, t.draft, (size_t)t.n_draft * sizeof *t.draft);
}

double kk_bench_costs_predict(const costs *c, int32_t first, const kk_spec_stats *rounds) {
    table t;
    double seconds = 0;
    if (first >= c->passes) first = 0;
    tabulate(c, first, &t);
    for (int32_t n = 0; n <= KK_MAX_DRAFT; n++) {
        const double drafted = (double)rounds->by[KK_SPEC_DFLASH].drafts[n];
        seconds += (double)rounds->drafts[n] * kk_bench_cost(t.verify, t.n_verify, n + 1);
        if (n > 0) seconds += drafted * kk_bench_cost(t.draft, t.n_draft, n);
    }
    return seconds;
}

int32_t kk_bench_costs_passes(const costs *c) { return c->passes; }

/* Every count once, from the same place. */
static kk_status one_pass(costs *c, kk_err *err) {
    const kk_bench_opts *o = c->opts;
    const int32_t len = c->s->len, k = c->passes;
    for (int32_t i = 0; i < c->n; i++) {
        if (o->on_step && !o->on_step(o->user, NULL))
            return kk_fail(err, KK_ESTOPPED, "stopped while timing forwards");
        KK_TRY(one_step(c, c->rows[i], &c->verify[i][k], &c->draft[i][k], err));
    }
    return kk_session_rewind(c->s, len, NULL, err);
}

kk_status kk_bench_costs_pass(costs *c, kk_err *err) {
    if (c->passes == MOST_PASSES) return KK_OK;
    KK_TRY(one_pass(c, err));
    c->passes++;
    return KK_OK;
}

/* Half of the answer comes first: what a round costs there is about its mean over the answer. */
static kk_status get_ready(costs *c, int32_t answer, kk_err *err) {
    const bool random = !c->opts->sets && !c->opts->prompts;
    const kk_generate_opts whole = {.max_tokens = answer, .ignore_eos = random};
    kk_generate_opts half = {.ignore_eos = true};
    kk_result r;
    KK_TRY(kk_session_append(c->s, c->prompt->ids, c->prompt->n, NULL, NULL, err));
    KK_TRY(kk_session_checkpoint(c->s, err));
    KK_TRY(kk_generate(c->s, &whole, NULL, NULL, &r, err));
    KK_TRY(kk_session_rewind(c->s, (int32_t)c->prompt->n, NULL, err));
    half.max_tokens = r.n_tokens / 2 > WARM_TOKENS ? r.n_tokens / 2 : WARM_TOKENS;
    KK_TRY(kk_generate(c->s, &half, NULL, NULL, &r, err));
    KK_TRY(kk_session_checkpoint(c->s, err));
    c->n = list_rows(c->s, c->opts, c->rows);
    return one_pass(c, err); /* not counted */
}

kk_status kk_bench_costs_behind(costs *c, const kk_prompt *p, int32_t answer, kk_err *err) {
    /* All counts, half of their rows kept. */
    const int32_t more = answer + WARM_TOKENS + 3 * (1 + SETTLING) * MAX_ROWS + 64;
    const kk_session_opts how = kk_bench_session(c->opts, c->arm, (int32_t)p->n + more);
    kk_session_free(c->s);
    c->prompt = p;
    KK_TRY(kk_session_new(&c->s, c->engine, &how, err));
    /* Its drafts are not made right by a trace: no prior for sessions whose drafts are. */
    for (int32_t i = 0; i < c->s->drafting.n; i++) c->s->drafting.member[i].known = NULL;
    return get_ready(c, answer, err);
}

kk_status kk_bench_costs_new(costs **out, const kk_bench_opts *o, kk_engine *e, kk_err *err) {
    *out = kk_calloc(1, sizeof **out);
    if (!*out) return kk_fail(err, KK_ENOMEM, "no memory for measurements");
    (*out)->opts = o;
    (*out)->engine = e;
    (*out)->arm = KK_SPEC_NONE;
    for (int32_t i = 0; i < o->n_arms; i++)
        if (o->arms[i] == KK_SPEC_DFLASH || o->arms[i] == KK_SPEC_AUTO)
            (*out)->arm = KK_SPEC_DFLASH;
    return KK_OK;
}

void kk_bench_costs_free(costs *c) {
    if (!c) return;
    kk_session_free(c->s);
    kk_free(c);
}
