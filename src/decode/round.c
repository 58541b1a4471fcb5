/* round.c - see round.h.
 *
 * Nothing here knows whether a draft was right before it is compared, and nothing is kept from
 * a row that was not chosen: hence tokens, hashes and caches are those of plain decoding. */
#include "decode/round.h"

#include <assert.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/tie.h"

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* A round in the making. */
typedef struct {
    kk_rounds *all;
    kk_round *const *rounds;
    int32_t n, rows; /* sessions, and rows of the forward */
    kk_choice choice[KK_MAX_GROUPS];
    int32_t at_hand[KK_MAX_GROUPS], match[KK_MAX_GROUPS]; /* drafted before the choice, and right */
    double draft_s, verify_s;
    double pass_s; /* the part of draft_s that is spent again for every further draft */
    bool untimed;  /* it was read while another session waited: how long it took is not known */
} step;

int32_t kk_round_rows(const kk_rounds *all) {
    const int32_t rows = least(all->max_rows, all->max_logits);
    return all->ahead ? least(rows, KK_PICK_ROWS) : rows;
}

/* Sessions of a round keep their rows alike. */
static kk_costs *costs_of(const step *s) {
    const bool rebuilds = s->rounds[0]->layout->latents.rank > 0;
    return rebuilds ? &s->all->costs_rebuilding : &s->all->costs;
}

/* ---- drafts ----------------------------------------------------------------------------- */

/* A draft that costs no pass is made before it is chosen how much of it is used: of the first such
 * proposer of a session; -1: it has none. */
static int32_t free_member(const kk_round *r) {
    for (int32_t k = 0; k < r->drafting->n; k++)
        if (r->drafting->member[k].proposer->free) return k;
    return -1;
}

/* The most that neither the outcome's limit nor the context would cut, after so many tokens that
 * are to come before it. */
static int32_t most_drafts(const kk_round *r, int32_t member, int32_t before) {
    const int32_t fits = least(r->tokens_left - 1, r->cap - r->len - 1) - before;
    const int32_t own = r->drafting->member[member].most;
    const int32_t most = own ? least(r->draft_max, own) : r->draft_max;
    return least(least(most, KK_MAX_DRAFT), fits);
}

/* The member that drafts for session i in this pass, if there is one: drafts that cost nothing
 * before the choice, chosen ones after it. */
static const kk_drafting_member *drafter_in(const step *s, int32_t i, bool chosen) {
    const kk_round *r = s->rounds[i];
    const int32_t free = free_member(r), who = chosen ? s->choice[i].who : free;
    if (who < 0 || (chosen && (s->choice[i].n == 0 || who == free))) return NULL;
    return &r->drafting->member[who];
}

/* An id outside the vocabulary ends a draft: proposers are not trusted. */
static int32_t sound(const kk_rounds *all, const kk_draft *d) {
    int32_t n = 0;
    assert(d->n <= d->max);
    while (n < d->n && d->out[n] >= 0 && d->out[n] < all->vocab) n++;
    return n;
}

/* What a proposer put off is done before its pass, and timed apart: rows that wait for a drafter
 * are work that comes whether it drafts or not, unless it drafts round after round. */
static kk_status catch_up(step *s, const kk_drafting_member *m, kk_err *err) {
    const double from = kk_now();
    if (m->proposer->flush) KK_TRY(m->proposer->flush(m->self, err));
    if (m->steady) s->pass_s += kk_now() - from;
    return KK_OK;
}

/* What is chosen in its stead is written to the same place. */
static void keep_at_hand(step *s, int32_t i, int32_t n, const kk_draft *d) {
    s->at_hand[i] = n;
    s->match[i] = d->match;
    memcpy(s->rounds[i]->at_hand, d->out, (size_t)n * sizeof *d->out);
}

/* One pass for all sessions that this proposer drafts for. */
static kk_status draft_with(step *s, const kk_proposer *who, bool chosen, kk_err *err) {
    kk_draft drafts[KK_MAX_GROUPS];
    int32_t of[KK_MAX_GROUPS], n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        kk_round *r = s->rounds[i];
        const kk_drafting_member *m = drafter_in(s, i, chosen);
        if (!m || m->proposer != who) continue;
        const int32_t max = chosen ? s->choice[i].n : most_drafts(r, free_member(r), 0);
        if (max == 0) continue;
        if (chosen) KK_TRY(catch_up(s, m, err));
        of[n] = i;
        drafts[n++] = (kk_draft){.self = m->self,
                                 .tokens = r->tokens,
                                 .len = r->len,
                                 .out = r->tokens + r->len,
                                 .max = max};
    }
    if (n == 0) return KK_OK;
    const double from = kk_now();
    KK_TRY(who->draft(who, drafts, n, err));
    if (chosen) s->pass_s += kk_now() - from;
    for (int32_t k = 0; k < n; k++) {
        const int32_t i = of[k], got = sound(s->all, &drafts[k]);
        if (chosen) s->rounds[i]->n_draft = got;
        if (!chosen) keep_at_hand(s, i, got, &drafts[k]);
    }
    return KK_OK;
}

/* Every proposer that drafts in this pass, once. */
static kk_status draft_all(step *s, bool chosen, kk_err *err) {
    const double from = kk_now();
    for (int32_t i = 0; i < s->n; i++) {
        const kk_drafting_member *m = drafter_in(s, i, chosen);
        bool first = m;
        for (int32_t k = 0; first && k < i; k++) {
            const kk_drafting_member *other = drafter_in(s, k, chosen);
            first = !other || other->proposer != m->proposer;
        }
        if (first) KK_TRY(draft_with(s, m->proposer, chosen, err));
    }
    s->draft_s += kk_now() - from;
    return KK_OK;
}

/* ---- how much of it --------------------------------------------------------------------- */

/* Classes double the match: 2 and 3 tokens, 4 to 7, 8 to 15, more. */
static int32_t class_of(int32_t match) {
    int32_t class = 0;
    while (class + 1 < KK_DRAFT_CLASSES && match >= 4 << class) class ++;
    return class;
}

static bool drafts_short(const kk_drafting_member *m) {
    return m->proposer->is_short && m->proposer->is_short(m->self);
}

/* A draft that costs nothing is made before its length is chosen; others are made to that length.
 * */
static void list_alternatives(const step *s, int32_t i, kk_choice *c) {
    const kk_round *r = s->rounds[i];
    const int32_t free = free_member(r);
    c->n_from = r->drafting->n;
    for (int32_t k = 0; k < c->n_from; k++) {
        kk_drafting_member *m = &r->drafting->member[k];
        c->from[k] = (kk_alternative){.seen = &m->seen,
                                      .max = k == free ? s->at_hand[i] : most_drafts(r, k, 0),
                                      .draft_class = k == free ? class_of(s->match[i]) : 0,
                                      .free = m->proposer->free,
                                      .short_head = drafts_short(m)};
    }
}

/* A draft of a fixed length: one that was made already, or else by the first proposer that can
 * draft. */
static void fix_length(kk_choice *c, int32_t most) {
    c->who = 0;
    for (int32_t k = 0; k < c->n_from; k++)
        if (c->from[k].free && c->from[k].max > 0) c->who = k;
    c->n = c->n_from > 0 ? least(c->from[c->who].max, most) : 0;
}

/* The controller has the rows that drafts of a fixed length leave. */
static void choose_lengths(step *s) {
    const int32_t exact = s->all->exact_rows, fit = kk_round_rows(s->all);
    const int32_t wanted = exact && exact < fit ? exact : fit;
    /* Every session has its own row, whatever the device promises. */
    const int32_t most = wanted > s->n ? wanted : s->n;
    const int32_t share = most / s->n;
    int32_t left = most;
    bool asks = false;
    for (int32_t i = 0; i < s->n; i++) {
        kk_choice *c = &s->choice[i], fixed = {0};
        *c = (kk_choice){0};
        list_alternatives(s, i, s->rounds[i]->draft_fixed ? &fixed : c);
        fix_length(&fixed, share - 1);
        left -= fixed.n;
        asks |= c->n_from > 0;
    }
    if (asks) kk_controller_choose(costs_of(s), s->choice, s->n, left);
    for (int32_t i = 0; i < s->n; i++) {
        kk_round *r = s->rounds[i];
        kk_choice *c = &s->choice[i];
        if (r->draft_fixed) {
            *c = (kk_choice){0};
            list_alternatives(s, i, c);
            fix_length(c, share - 1);
        }
        if (c->n > 0 && c->who == free_member(r)) r->n_draft = c->n;
    }
}

/* ---- rows reserved ---------------------------------------------------------------------- */

/* Rows of tokens before the anchor that are in the cache and not committed. */
static int32_t open_rows(const kk_round *r) {
    const int64_t held = kk_cache_len(r->cache);
    return held < r->len ? (int32_t)(r->len - 1 - held) : 0;
}

/* Rows in the caches of all sessions, and at their proposers, which may do work for it. */
static kk_status reserve_rows(step *s, kk_gemma4_group *groups, kk_err *err) {
    const double from = kk_now();
    s->rows = 0;
    for (int32_t i = 0; i < s->n; i++) {
        kk_round *r = s->rounds[i];
        kk_gemma4_group *g = &groups[i];
        *g = (kk_gemma4_group){.cache = r->cache,
                               .layout = r->layout,
                               .tokens = r->tokens + r->len - 1,
                               .ahead = open_rows(r),
                               .n_rows = r->n_draft + 1,
                               .n_logits = r->n_draft + 1,
                               .counts = r->counts};
        s->rows += g->n_rows;
        kk_taps taps;
        KK_TRY(kk_drafting_reserve(r->drafting, g->tokens, g->n_rows, &taps, err));
        g->taps = taps.buf;
        g->tap_row = taps.row;
        KK_TRY(kk_cache_reserve(r->cache, g->ahead + g->n_rows, err));
    }
    s->draft_s += kk_now() - from;
    return KK_OK;
}

/* What was reserved for this round; rows that are open keep their pages. */
static void unreserve(kk_round *r) {
    if (open_rows(r) == 0) kk_cache_commit(r->cache, kk_cache_len(r->cache));
    kk_drafting_commit(r->drafting, 0);
}

/* Nothing was drafted after all. */
static bool drop_drafts(step *s) {
    bool any = false;
    for (int32_t i = 0; i < s->n; i++) {
        kk_round *r = s->rounds[i];
        any |= r->n_draft > 0;
        r->n_draft = 0;
        unreserve(r);
    }
    return any;
}

static kk_status match(step *s, kk_round *r, int32_t first, const kk_pick *picked, kk_err *err);

/* ---- rounds in flight ------------------------------------------------------------------- */

/* The choice is the largest logit, and nothing else of the row is wanted: the device makes it. */
static bool is_greedy(const kk_round *r) {
    const kk_choose_opts *a = &r->choose;
    return kk_sampling_is_greedy(r->sampling) && !a->n_bias && !a->mask && !a->mask_at &&
           !a->logprobs;
}

/* Whether the device makes the choice: what it asks for is known before the tokens are. */
static bool is_the_devices(const kk_rounds *all, const kk_round *r) {
    return is_greedy(r) || (all->samples && !r->choose.mask_at);
}

/* The proposer that drafts in rounds ahead; NULL: they are plain. */
static const kk_drafting_member *drafter_ahead(const kk_round *r) {
    return r->drafting->n > 0 ? &r->drafting->member[0] : NULL;
}

/* Rounds of one session, whose rows are all stored, and whose choices and drafts need no host. */
static bool goes_ahead(const step *s) {
    const kk_round *r = s->rounds[0];
    const kk_drafting_member *m = drafter_ahead(r);
    const bool drafts =
        !m || (r->drafting->n == 1 && m->proposer->enqueue && m->proposer->can_go_ahead(m->self));
    return s->all->ahead && s->n == 1 && drafts && r->layout->latents.rank == 0 &&
           is_the_devices(s->all, r);
}

/* What the device is asked for after n tokens that are known here and `pending` that are not. */
static void ask(kk_choose_row *row, const kk_round *r, int32_t n, int32_t pending) {
    const kk_choose_opts *a = &r->choose;
    *row = (kk_choose_row){.how = *r->sampling,
                           .history = r->tokens,
                           .n_history = n,
                           .n_pending = pending,
                           .logprobs = a->logprobs,
                           .n_best = a->n_logprobs,
                           .bias = a->bias,
                           .n_bias = a->n_bias,
                           .mask = a->mask};
}

static kk_status read_flight(const kk_rounds *all, kk_flight *f, kk_err *err) {
    KK_TRY(kk_gemma4_picked(all->model, f->ticket, f->pick, f->n_draft + 1, &f->took_s, err));
    f->draft_s = kk_gemma4_lap_s(all->model, f->ticket);
    f->read = true;
    return KK_OK;
}

/* Tokens of a flight's draft that are right, as the device counts them: a stop id does not end
 * it. */
static int32_t right_of(const kk_flight *f) {
    int32_t n = 0;
    while (n < f->n_draft && f->pick[n].drafted == f->pick[n].token) n++;
    return n;
}

/* Reads what a session has in flight, before the device's place for choices is used by another.  A
 * round that cannot be read is forgotten: the session runs it again, and reports the error then. */
static void land(kk_rounds *all) {
    kk_round *r = all->in_flight;
    bool lost = false;
    all->in_flight = NULL;
    for (int i = 0; r && i < 2; i++) {
        kk_flight *f = &r->flight[i];
        if (!f->queued || f->read) continue;
        lost = lost || read_flight(all, f, NULL) != KK_OK;
        if (lost) *f = (kk_flight){0};
    }
}

/* How many tokens a round drafts that comes after `before` tokens at most. */
static void choose_flight(const step *s, kk_flight *f, int32_t before) {
    const kk_round *r = s->rounds[0];
    kk_choice *c = &f->choice;
    int32_t rows = least(kk_round_rows(s->all), KK_PICK_ROWS);
    if (s->all->exact_rows > 0) rows = least(rows, s->all->exact_rows);
    *c = (kk_choice){.n_from = r->drafting->n};
    if (c->n_from == 0) return;
    const int32_t most = least(most_drafts(r, 0, before), rows - 1);
    kk_drafting_member *m = &r->drafting->member[0];
    c->from[0] = (kk_alternative){
        .seen = &m->seen, .max = most > 0 ? most : 0, .short_head = drafts_short(m)};
    if (r->draft_fixed)
        fix_length(c, rows - 1);
    else
        kk_controller_choose(costs_of(s), c, 1, rows);
}

/* Where a round begins, and what of that only the device knows. */
typedef struct {
    int32_t ahead;      /* rows of the round in flight before it, or the least of them that count */
    int32_t most_ahead; /* the most of them */
    int32_t anchor;     /* -1: the device has it */
    const kk_buf *shift; /* NULL: ahead is how many they are */
} beginning;

static beginning begins(const kk_rounds *all, const kk_round *r, int32_t ahead) {
    const kk_flight *f = &r->flight[0];
    if (ahead == 0) return (beginning){.anchor = r->tokens[r->len - 1]};
    if (!f->read)
        return (beginning){
            .ahead = 1,
            .most_ahead = f->n_draft + 1,
            .anchor = -1,
            .shift = f->n_draft ? kk_gemma4_right(all->model) : NULL,
        };
    const int32_t right = right_of(f);
    return (beginning){right + 1, right + 1, f->pick[right].token, NULL};
}

/* The drafter's part of a round; where its taps go. */
static kk_status enqueue_draft(const kk_rounds *all, const kk_round *r, const beginning *b,
                               int32_t n, kk_gemma4_group *g, kk_err *err) {
    const kk_drafting_member *m = drafter_ahead(r);
    kk_gemma4 *model = all->model;
    kk_ahead a = {.n = n,
                  .ids = kk_gemma4_ids(model),
                  .start = r->len - 1 + b->ahead,
                  .flying = b->most_ahead,
                  .tokens = r->tokens,
                  .len = r->len + (b->anchor >= 0 ? b->ahead : 0),
                  .shift = b->shift};
    KK_TRY(kk_gemma4_lap(model, false, err));
    if (b->anchor >= 0 && n > 0) {
        KK_TRY(kk_gemma4_set_id(model, a.ids, b->anchor, err));
        KK_TRY(kk_gemma4_set_id(model, m->proposer->anchor(m->self), b->anchor, err));
    }
    KK_TRY(m->proposer->enqueue(m->proposer, m->self, &a, err));
    KK_TRY(kk_gemma4_lap(model, true, err));
    g->taps = a.taps.buf;
    g->tap_row = a.taps.row;
    g->ids = a.ids;
    return KK_OK;
}

/* Row i has the first i tokens of the draft before it, and a plain round that is enqueued ahead the
 * token that it begins with. */
static kk_status choose_on_device(const kk_rounds *all, const kk_round *r, const beginning *b,
                                  int32_t rows, int64_t *ticket, kk_err *err) {
    const kk_drafting_member *m = drafter_ahead(r);
    kk_choose_row row[KK_PICK_ROWS];
    const bool greedy = is_greedy(r), known = b->anchor >= 0;
    assert(greedy || known || !m);
    for (int32_t i = 0; !greedy && i < rows; i++) {
        ask(&row[i], r, r->len + (known ? b->ahead : 0), known ? i : 1);
        row[i].pending = m ? 1 : 0;
    }
    return m ? kk_gemma4_choose_drafted(all->model, greedy ? NULL : row,
                                        m->proposer->anchor(m->self), ticket, err)
             : kk_gemma4_choose(all->model, greedy ? NULL : row, ticket, err);
}

/* Enqueues the round after `ahead` others. */
static kk_status enqueue(const step *s, int32_t ahead, kk_err *err) {
    kk_rounds *all = s->all;
    kk_round *r = s->rounds[0];
    kk_flight *f = &r->flight[ahead];
    const beginning b = begins(all, r, ahead);
    for (int32_t i = 0; ahead && b.anchor >= 0 && i < b.ahead; i++)
        r->tokens[r->len + i] = r->flight[0].pick[i].token;
    *f = (kk_flight){.ahead = b.anchor < 0};
    choose_flight(s, f, b.most_ahead);
    const int32_t n = f->choice.n;
    kk_gemma4_group g = {.cache = r->cache,
                         .layout = r->layout,
                         .tokens = b.anchor >= 0 && n == 0 ? &b.anchor : NULL,
                         .ahead = b.ahead,
                         .shift = b.shift,
                         .most_shift = b.most_ahead - b.ahead,
                         .n_rows = n + 1,
                         .n_logits = n + 1};
    const kk_gemma4_forward_args args = {
        .groups = &g, .n_groups = 1, .tapped = s->all->tapped, .n_tapped = s->all->n_tapped};
    KK_TRY(kk_cache_reserve(r->cache, b.most_ahead + n + 1, err));
    if (drafter_ahead(r)) KK_TRY(enqueue_draft(all, r, &b, n, &g, err));
    KK_TRY(kk_gemma4_forward(all->model, &args, err));
    KK_TRY(choose_on_device(all, r, &b, n + 1, &f->ticket, err));
    f->queued = true;
    f->n_draft = n;
    all->in_flight = r;
    return KK_OK;
}

/* Rows enter a sink when they are committed, and the row after them looks for them there: true
 * while the first `len` tokens do not fill it. */
static bool fills_sink(const kk_round *r, int32_t len) {
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        if (kk_cache_how(r->cache)->bounds[k].sink >= len) return true;
    return false;
}

/* At a memory limit a draft may ask for a page that plain decoding does without. */
static kk_status enqueue_first(step *s, kk_err *err) {
    kk_round *r = s->rounds[0];
    kk_status st = enqueue(s, 0, err);
    if (st != KK_ENOMEM || r->flight[0].choice.n == 0) return st;
    const int32_t max = r->draft_max;
    unreserve(r);
    r->draft_max = 0;
    st = enqueue(s, 0, err);
    r->draft_max = max;
    return st;
}

/* This round, unless it is in flight already, and the next, unless this is known to be the last. */
static kk_status enqueue_all(step *s, kk_err *err) {
    kk_round *r = s->rounds[0];
    if (!r->flight[0].queued) KK_TRY(enqueue_first(s, err));
    const int32_t most = r->flight[0].n_draft + 1; /* tokens of this one */
    const bool fits = r->tokens_left > most && r->len + most < r->cap &&
                      kk_cache_how(r->cache)->max_block > most + KK_MAX_DRAFT;
    const bool waits = drafter_ahead(r) && !is_greedy(r);
    if (!fits || waits || s->all->company || fills_sink(r, r->len) || r->flight[1].queued)
        return KK_OK;
    const kk_status st = enqueue(s, 1, err);
    if (st == KK_OK) return KK_OK;
    r->flight[1] = (kk_flight){0};
    return st == KK_ENOMEM ? KK_OK : st; /* it is asked for again when its turn comes */
}

/* The token after row i of the round. */
static void take(kk_round *r, int32_t i, kk_pick pick) {
    r->hash_after[i] = kk_hash_add(i ? r->hash_after[i - 1] : r->hash, pick.digest);
    r->tokens[r->len + i] = pick.token;
    r->n_out = i + 1;
    r->near_tie[i] = pick.near_tie;
    r->stopped = kk_stop_at(&r->stop, pick.token);
}

/* Logits that are not finite end a draft: the next round has them in its first row, and fails. */
static bool is_broken(kk_round *r, int32_t i, const kk_pick *pick) {
    if (pick->broken) r->broken = i == 0;
    return pick->broken;
}

/* The outcome of the round that was enqueued first.  Where it is shorter than what the device
 * matched, the round behind it began elsewhere, and is forgotten. */
static kk_status adopt(step *s, kk_err *err) {
    kk_round *r = s->rounds[0];
    kk_flight *f = &r->flight[0];
    const bool waited = !f->read;
    if (waited) KK_TRY(read_flight(s->all, f, err));
    s->untimed = !waited && f->took_s == 0;
    s->rows = f->n_draft + 1;
    s->choice[0] = f->choice;
    r->n_draft = f->n_draft;
    KK_TRY(match(s, r, 0, f->pick, err));
    if (r->n_out != right_of(f) + 1) r->flight[1] = (kk_flight){0};
    r->stats->ahead += f->ahead;
    if (r->counts) kk_cache_count(r->cache, r->len - 1, s->rows, r->counts);
    return KK_OK;
}

/* The round that was adopted is over; true: the next one is in flight. */
static bool next_flight(kk_round *r) {
    r->flight[0] = r->flight[1];
    r->flight[1] = (kk_flight){0};
    return r->flight[0].queued;
}

static void forget_flights(kk_rounds *all, kk_round *r) {
    if (all->in_flight == r) all->in_flight = NULL;
    r->flight[0] = r->flight[1] = (kk_flight){0};
}

void kk_round_end(kk_rounds *all, kk_round *r) {
    forget_flights(all, r);
    kk_cache_commit(r->cache, kk_cache_len(r->cache));
    kk_drafting_commit(r->drafting, 0);
}

/* Its time is the device's own: the host finds done what was enqueued a round ago.  On a device
 * without a clock it is what is waited for here, and not what the caller does meanwhile. */
static kk_status run_ahead(step *s, kk_err *err) {
    const double from = kk_now();
    KK_TRY(enqueue_all(s, err));
    KK_TRY(adopt(s, err));
    const kk_flight *f = &s->rounds[0]->flight[0];
    s->verify_s = f->took_s > 0 ? f->took_s : kk_now() - from;
    s->draft_s = f->draft_s;
    if (f->n_draft > 0) s->pass_s = f->draft_s;
    return KK_OK;
}

/* ---- forward ---------------------------------------------------------------------------- */

static kk_status forward_all(step *s, kk_err *err) {
    kk_gemma4_group groups[KK_MAX_GROUPS];
    kk_status st = reserve_rows(s, groups, err);
    /* At a memory limit a draft may ask for a page that plain decoding does without. */
    if (st == KK_ENOMEM && drop_drafts(s)) st = reserve_rows(s, groups, err);
    if (st != KK_OK) return st;
    const double from = kk_now();
    const kk_gemma4_forward_args args = {.groups = groups,
                                         .n_groups = s->n,
                                         .tapped = s->all->tapped,
                                         .n_tapped = s->all->n_tapped,
                                         .restorer = s->all->restorer};
    KK_TRY(kk_gemma4_forward(s->all->model, &args, err));
    s->verify_s = kk_now() - from;
    return KK_OK;
}

/* ---- choose and match ------------------------------------------------------------------- */

/* Sampled choices are the device's where it works beside the host: on others, to draw for rows of a
 * draft that may not count would cost more than it saves. */
static bool is_picked(const kk_rounds *all, const kk_round *r) {
    return is_greedy(r) || (all->ahead && is_the_devices(all, r));
}

/* Choices are the device's, which makes them for all rows at once with all its threads;
 * rows that turn out not to count cost less than to wait for each verdict. */
static bool picks(const step *s) {
    bool any = false;
    for (int32_t i = 0; i < s->n; i++) any |= is_picked(s->all, s->rounds[i]);
    return any && s->rows <= KK_PICK_ROWS;
}

/* How every row of the forward is chosen, those that the host chooses left out; false: the largest
 * logit of each will do. */
static bool ask_all(const step *s, kk_choose_row *rows) {
    bool any = false;
    for (int32_t i = 0, k = 0; i < s->n; i++) {
        const kk_round *r = s->rounds[i];
        const bool samples = is_picked(s->all, r) && !is_greedy(r);
        for (int32_t n = 0; n <= r->n_draft; n++, k++) {
            rows[k] = (kk_choose_row){0};
            if (samples) ask(&rows[k], r, r->len + n, 0);
        }
        any |= samples;
    }
    return any;
}

/* What the round's sampling makes of the logits of its row i, which lie in r; the tokens before the
 * choice are those of plain decoding, since the draft held until here.  False: nothing may be
 * chosen. */
static bool choose(const kk_rounds *all, kk_round *r, int32_t i, kk_pick *pick) {
    const kk_choose_opts *a = &r->choose;
    const int32_t n = r->len + i;
    const uint32_t *mask = a->mask_at ? a->mask_at(a->user, r->tokens, n) : NULL;
    const kk_sample_row row = {.logits = r->logits,
                               .history = r->tokens,
                               .n = n,
                               .bias = a->bias,
                               .n_bias = a->n_bias,
                               .mask = mask ? mask : a->mask};
    pick->token = kk_sample(all->sampler, r->sampling, &row);
    if (pick->token < 0) return false;
    bool finite;
    pick->near_tie =
        all->ties && is_greedy(r) && kk_near_tie(r->logits, all->vocab, KK_LOGIT_TOLERANCE);
    pick->digest = kk_hash_digest_of(r->logits, (size_t)all->vocab, &finite);
    pick->broken = !finite;
    if (a->logprobs && finite)
        kk_sample_logprobs(all->sampler, r->logits, pick->token, a->n_logprobs, &a->logprobs[i]);
    return true;
}

static kk_status read_logits(step *s, kk_round *r, int32_t row, kk_err *err) {
    const double from = kk_now();
    KK_TRY(kk_gemma4_logits(s->all->model, row, r->logits, err));
    if (row == 0) s->verify_s += kk_now() - from; /* a device that queues is done now */
    return KK_OK;
}

/* The draft lies on the timeline, where what is chosen replaces it, or with the device's picks. */
static void note_draft(kk_round *r, const kk_pick *picked) {
    const bool on_device = picked && r->flight[0].queued;
    for (int32_t i = 0; i < r->n_draft; i++)
        r->draft[i] = on_device ? picked[i].drafted : r->tokens[r->len + i];
}

/* Rows are taken one after the other as long as the draft holds.  first: this session's first row
 * of the forward; picked: what was chosen for all rows of it, NULL if nothing was yet. */
static kk_status match(step *s, kk_round *r, int32_t first, const kk_pick *picked, kk_err *err) {
    note_draft(r, picked);
    r->greedy = is_greedy(r);
    for (int32_t i = 0; i <= r->n_draft; i++) {
        const int32_t drafted = i < r->n_draft ? r->draft[i] : -1;
        if (!picked) KK_TRY(read_logits(s, r, first + i, err));
        kk_pick pick;
        if (picked) {
            pick = picked[first + i];
        } else if (!choose(s->all, r, i, &pick)) {
            r->refused = i == 0; /* what was chosen before is an outcome; the next round has none */
            break;
        }
        if (is_broken(r, i, &pick)) break;
        if (!s->all->ties) pick.near_tie = false; /* devices that are exact do not write it */
        take(r, i, pick);
        if (picked && r->choose.logprobs) r->choose.logprobs[i] = pick.logprobs;
        if (pick.token != drafted) break;
        r->n_right = i + 1;
        if (r->stopped) break;
    }
    return KK_OK;
}

static kk_status match_all(step *s, kk_err *err) {
    const double from = kk_now() - s->verify_s; /* verify_s grows by the time waited for */
    kk_pick pick[KK_PICK_ROWS];
    const bool picked = picks(s);
    int64_t ticket;
    double took_s;
    if (picked) {
        kk_choose_row rows[KK_PICK_ROWS];
        const bool asks = ask_all(s, rows);
        KK_TRY(kk_gemma4_choose(s->all->model, asks ? rows : NULL, &ticket, err));
        KK_TRY(kk_gemma4_picked(s->all->model, ticket, pick, s->rows, &took_s, err));
    }
    for (int32_t i = 0, first = 0; i < s->n; first += s->rounds[i++]->n_draft + 1) {
        const bool its = picked && is_picked(s->all, s->rounds[i]);
        KK_TRY(match(s, s->rounds[i], first, its ? pick : NULL, err));
    }
    const double chose = kk_now() - from - s->verify_s;
    for (int32_t i = 0; i < s->n; i++) s->rounds[i]->stats->choose_s += chose;
    return KK_OK;
}

/* ---- what was learned ------------------------------------------------------------------- */

static void count(const step *s, int32_t i) {
    const kk_round *r = s->rounds[i];
    const kk_choice *c = &s->choice[i];
    kk_spec_stats *t = r->stats;
    t->rounds++;
    t->rows += r->n_draft + 1;
    t->drafted += r->n_draft;
    t->accepted += r->n_right;
    t->histogram[r->n_right]++;
    t->chosen[c->n]++;
    t->drafts[r->n_draft]++;
    t->looking += c->exploring;
    t->draft_s += s->draft_s;
    t->verify_s += s->verify_s;
    if (r->n_draft == 0) return;
    const kk_spec spec = r->drafting->member[c->who].spec;
    kk_spec_part *by = &t->by[spec <= KK_SPEC_NGRAM ? spec : 0];
    by->rounds++;
    by->drafted += r->n_draft;
    by->accepted += r->n_right;
    by->drafts[r->n_draft]++;
}

/* A draft that was made and not used is judged by the tokens that were chosen instead. */
static void watch_at_hand(const step *s, int32_t i, kk_choice *c) {
    const kk_round *r = s->rounds[i];
    const int32_t free = free_member(r), judged = least(s->at_hand[i], r->n_out);
    int32_t right = 0;
    if (free < 0 || judged == 0 || (r->n_draft > 0 && c->who == free)) return;
    while (right < judged && r->at_hand[right] == r->tokens[r->len + right]) right++;
    kk_controller_watched(c, free, judged, right);
}

/* Proposers are told what was chosen, up to the first token that was drafted wrong. */
static void tell_chosen(const step *s, int32_t i) {
    const kk_round *r = s->rounds[i];
    const kk_choice *c = &s->choice[i];
    const int32_t n = r->n_draft > 0 ? least(r->n_out, r->n_draft) : r->n_out;
    for (int32_t k = 0; k < r->drafting->n; k++) {
        const kk_drafting_member *m = &r->drafting->member[k];
        const int32_t *tokens = r->tokens + r->len;
        const int32_t outside = m->proposer->chose ? m->proposer->chose(m->self, tokens, n) : 0;
        if (r->n_draft == 0 || c->who != k || !c->from[k].short_head) continue;
        r->stats->short_rounds++;
        r->stats->short_missed += outside;
    }
}

static void learn_session(const step *s, int32_t i) {
    kk_round *r = s->rounds[i];
    kk_choice c = s->choice[i];
    /* A stop id that was drafted, or a mask that allows nothing, ends the round without a verdict
     * on the draft after it. */
    const bool unjudged = r->n_right == r->n_out;
    for (int32_t k = 0; k < r->drafting->n; k++)
        r->drafting->member[k].steady = r->n_draft > 0 && k == c.who;
    tell_chosen(s, i);
    if (c.n_from == 0) return;
    kk_controller_saw(costs_of(s), &c, unjudged ? r->n_right : r->n_draft, r->n_right);
    watch_at_hand(s, i, &c);
}

static void learn(const step *s) {
    kk_spent spent = {
        .sessions = s->n, .rows = s->rows, .verify_s = s->verify_s, .draft_s = s->pass_s};
    int32_t by_short = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const kk_choice *c = &s->choice[i];
        spent.exploring |= c->exploring;
        if (c->n_from == 0 || c->from[c->who].free) continue;
        spent.drafted += s->rounds[i]->n_draft;
        by_short += c->from[c->who].short_head ? s->rounds[i]->n_draft : 0;
    }
    /* Two passes that were timed together say nothing of either head. */
    spent.short_head = by_short > 0;
    if (by_short < spent.drafted && by_short > 0) spent.drafted = 0;
    if (!s->untimed) kk_controller_spent(costs_of(s), &spent);
    for (int32_t i = 0; i < s->n; i++) {
        learn_session(s, i);
        count(s, i);
    }
}

/* Waits for drafts before the forward, and for the choices after it. */
static kk_status run_now(step *s, kk_err *err) {
    kk_status st = draft_all(s, false, err);
    if (st == KK_OK) choose_lengths(s);
    if (st == KK_OK) st = draft_all(s, true, err);
    if (st == KK_ENOMEM) {
        drop_drafts(s);
        st = KK_OK;
    }
    if (st == KK_OK) st = forward_all(s, err);
    return st == KK_OK ? match_all(s, err) : st;
}

kk_status kk_round_run(kk_rounds *all, kk_round *const *rounds, int32_t n, kk_err *err) {
    const int32_t rows = least(least(all->max_rows, all->max_logits), KK_MAX_GROUPS);
    if (n < 1 || n > rows)
        return kk_fail(err, KK_EINVAL, "a round of %d sessions: between 1 and %d", n, rows);
    for (int32_t i = 0; i < n; i++) {
        assert(rounds[i]->tokens_left > 0 && rounds[i]->len > 0 && rounds[i]->len < rounds[i]->cap);
        assert(kk_cache_len(rounds[i]->cache) < rounds[i]->len);
        rounds[i]->n_draft = rounds[i]->n_right = 0;
        rounds[i]->refused = rounds[i]->broken = false;
    }
    step s = {.all = all, .rounds = rounds, .n = n};
    const bool ahead = goes_ahead(&s);
    if (all->in_flight != rounds[0] || !ahead) land(all);
    kk_status st = ahead ? run_ahead(&s, err) : run_now(&s, err);
    if (st == KK_OK) {
        learn(&s);
        return KK_OK;
    }
    for (int32_t i = 0; i < n; i++) {
        forget_flights(all, rounds[i]);
        unreserve(rounds[i]);
        rounds[i]->n_out = 0;
    }
    return st;
}

void kk_round_first(const kk_rounds *all, kk_round *r) {
    assert(r->tokens_left > 0 && r->len > 0 && r->len < r->cap);
    assert(kk_cache_len(r->cache) == r->len);
    r->n_draft = r->n_right = 0;
    r->greedy = is_greedy(r);
    kk_pick pick;
    r->broken = false;
    r->refused = !choose(all, r, 0, &pick);
    if (!r->refused && !is_broken(r, 0, &pick)) take(r, 0, pick);
}

kk_status kk_round_diagnose(kk_rounds *all, kk_round *r, kk_err *err) {
    const int64_t held = kk_cache_len(r->cache);
    const kk_gemma4_group g = {.cache = r->cache,
                               .layout = r->layout,
                               .tokens = r->tokens + r->len - 1,
                               .n_rows = 1,
                               .n_logits = 1};
    const kk_gemma4_forward_args args = {.groups = &g, .n_groups = 1, .restorer = all->restorer};
    if (held == r->len)
        return kk_fail(err, KK_ENUMERIC, "the logits after position %d are not finite", r->len - 1);
    KK_TRY(kk_cache_reserve(r->cache, 1, err));
    const kk_status st = kk_gemma4_diagnose(all->model, &args, err);
    kk_cache_commit(r->cache, held);
    return st;
}

bool kk_round_in_flight(const kk_round *r) { return r->flight[0].queued; }

void kk_round_keep(kk_round *r, int32_t n_keep) {
    assert(n_keep >= 0 && n_keep <= r->n_out);
    if (n_keep > 0) r->hash = r->hash_after[n_keep - 1];
    r->len += n_keep;
    r->tokens_left -= n_keep;
    r->n_out = 0;
    r->unsettled += n_keep;
}

void kk_round_settle(kk_round *r, int32_t n_open) {
    const double from = kk_now();
    /* Every token but the last is in the cache; also the last, while nothing follows a prompt. */
    const int64_t held = kk_cache_len(r->cache), last = r->len - 1 - n_open;
    const int64_t keep = held > last ? held : last;
    const bool flies = n_open == 0 && r->unsettled > 0 && next_flight(r);
    if (flies || n_open > 0)
        kk_cache_advance(r->cache, keep);
    else
        kk_cache_commit(r->cache, keep);
    kk_drafting_commit(r->drafting, (int32_t)(keep - held));
    r->unsettled = n_open;
    r->stats->commit_s += kk_now() - from;
}

void kk_round_commit(kk_round *r, int32_t n_keep) {
    kk_round_keep(r, n_keep);
    kk_round_settle(r, 0);
}

bool kk_round_may_go_on(const kk_rounds *all, const kk_round *r, int32_t n_open) {
    const kk_choose_opts *a = &r->choose;
    const int32_t len = r->len + r->n_out;
    const bool fits = r->tokens_left > r->n_out && len < r->cap &&
                      n_open < kk_cache_how(r->cache)->max_block && !fills_sink(r, len - n_open);
    /* mask_at may ask what the caller has seen, and logprobs have one place a generation. */
    return fits && !all->ahead && r->n_out > 0 && !r->stopped && r->drafting->n == 0 &&
           r->layout->latents.rank == 0 && !a->mask_at && !a->logprobs;
}

/* Takes n plain rounds, of rows from the anchor on, off the counters. */
static void uncount(kk_round *r, int32_t n) {
    kk_key_counts counts = {0};
    kk_spec_stats *t = r->stats;
    kk_cache_count(r->cache, r->len - 1, n, &counts);
    if (r->counts) {
        r->counts->queries -= counts.queries;
        r->counts->keys_stored -= counts.keys_stored;
    }
    t->rounds -= n;
    t->rows -= n;
    t->histogram[0] -= n;
    t->chosen[0] -= n;
    t->drafts[0] -= n;
}

void kk_round_drop(kk_round *r) {
    uncount(r, 1);
    r->n_out = 0;
}

void kk_round_forget(kk_round *r, int32_t n) {
    if (n == 0) return;
    assert(n > 0 && n <= r->unsettled && n <= open_rows(r) + 1 && r->drafting->n == 0);
    r->len -= n;
    r->tokens_left += n;
    r->unsettled -= n;
    uncount(r, n);
}
