/* round.c - see round.h.
 *
 * Nothing here knows whether a draft was right before it is compared, and nothing is kept from
 * a row that was not chosen: hence tokens, hashes and caches are those of plain decoding. */
#include "decode/round.h"

#include <assert.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"

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

/* The most that neither the outcome's limit nor the context would cut. */
static int32_t most_drafts(const kk_round *r, int32_t member) {
    const int32_t fits = least(r->tokens_left - 1, r->cap - r->len - 1);
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
        const int32_t max = chosen ? s->choice[i].n : most_drafts(r, free_member(r));
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

/* A draft that costs nothing is made before its length is chosen; others are made to that length.
 * */
static void list_alternatives(const step *s, int32_t i, kk_choice *c) {
    const kk_round *r = s->rounds[i];
    const int32_t free = free_member(r);
    c->n_from = r->drafting->n;
    for (int32_t k = 0; k < c->n_from; k++) {
        kk_drafting_member *m = &r->drafting->member[k];
        c->from[k] = (kk_alternative){.seen = &m->seen,
                                      .max = k == free ? s->at_hand[i] : most_drafts(r, k),
                                      .draft_class = k == free ? class_of(s->match[i]) : 0,
                                      .free = m->proposer->free};
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
    const int32_t most = least(s->all->max_rows, s->all->max_logits), share = most / s->n;
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

/* ---- rounds in flight ------------------------------------------------------------------- */

/* The choice is the largest logit, and nothing else of the row is wanted: the device makes it. */
static bool is_greedy(const kk_round *r) {
    const kk_choose_opts *a = &r->choose;
    return kk_sampling_is_greedy(r->sampling) && !a->n_bias && !a->mask && !a->mask_at &&
           !a->logprobs;
}

/* Plain greedy rounds of one session, whose rows are all stored. */
static bool goes_ahead(const step *s) {
    const kk_round *r = s->rounds[0];
    return s->all->ahead && s->n == 1 && r->drafting->n == 0 && r->layout->latents.rank == 0 &&
           is_greedy(r);
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
        lost =
            lost || kk_gemma4_picked(all->model, f->ticket, &f->pick, 1, &f->took_s, NULL) != KK_OK;
        f->read = true;
        if (lost) *f = (kk_flight){0};
    }
}

/* Enqueues the round after `ahead` others.  Its token is on the host, or where the device chose
 * it. */
static kk_status enqueue(kk_rounds *all, kk_round *r, int32_t ahead, kk_err *err) {
    kk_flight *f = &r->flight[ahead];
    const bool known = ahead == 0 || r->flight[0].read;
    if (ahead && known) r->tokens[r->len] = r->flight[0].pick.token;
    *f = (kk_flight){.ahead = !known};
    const kk_gemma4_group g = {.cache = r->cache,
                               .layout = r->layout,
                               .tokens = known ? r->tokens + r->len - 1 + ahead : NULL,
                               .ahead = ahead,
                               .n_rows = 1,
                               .n_logits = 1,
                               .counts = &f->counts};
    const kk_gemma4_forward_args args = {.groups = &g, .n_groups = 1};
    KK_TRY(kk_cache_reserve(r->cache, ahead + 1, err));
    KK_TRY(kk_gemma4_forward(all->model, &args, err));
    KK_TRY(kk_gemma4_choose(all->model, &f->ticket, err));
    f->queued = true;
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

/* This round, unless it is in flight already, and the next, unless this is known to be the last. */
static kk_status enqueue_all(step *s, kk_err *err) {
    kk_round *r = s->rounds[0];
    s->rows = 1;
    if (!r->flight[0].queued) KK_TRY(enqueue(s->all, r, 0, err));
    const bool fits =
        r->tokens_left > 1 && r->len + 1 < r->cap && kk_cache_how(r->cache)->max_block > 1;
    if (!fits || s->all->company || fills_sink(r, r->len) || r->flight[1].queued) return KK_OK;
    const kk_status st = enqueue(s->all, r, 1, err);
    return st == KK_ENOMEM ? KK_OK : st; /* it is asked for again when its turn comes */
}

static void add_counts(kk_key_counts *to, const kk_key_counts *a) {
    if (!to) return;
    to->queries += a->queries;
    to->keys_stored += a->keys_stored;
    to->keys_rebuilt += a->keys_rebuilt;
    to->rows_rebuilt += a->rows_rebuilt;
}

/* The token after row i of the round. */
static void take(kk_round *r, int32_t i, kk_pick pick) {
    r->hash_after[i] = kk_hash_add(i ? r->hash_after[i - 1] : r->hash, pick.digest);
    r->tokens[r->len + i] = pick.token;
    r->n_out = i + 1;
    r->stopped = kk_stop_at(&r->stop, pick.token);
}

/* Logits that are not finite end a draft: the next round has them in its first row, and fails. */
static bool is_broken(kk_round *r, int32_t i, const kk_pick *pick) {
    if (pick->broken) r->broken = i == 0;
    return pick->broken;
}

/* The outcome of the round that was enqueued first. */
static kk_status adopt(step *s, kk_err *err) {
    kk_round *r = s->rounds[0];
    kk_flight *f = &r->flight[0];
    const bool waited = !f->read;
    if (waited) KK_TRY(kk_gemma4_picked(s->all->model, f->ticket, &f->pick, 1, &f->took_s, err));
    s->untimed = !waited && f->took_s == 0;
    assert(f->pick.token >= 0 && f->pick.token < s->all->vocab);
    f->read = true;
    if (!is_broken(r, 0, &f->pick)) take(r, 0, f->pick);
    r->stats->ahead += f->ahead;
    add_counts(r->counts, &f->counts);
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
}

/* Its time is the device's own: the host finds done what was enqueued a round ago.  On a device
 * without a clock it is what is waited for here, and not what the caller does meanwhile. */
static kk_status run_ahead(step *s, kk_err *err) {
    const double from = kk_now();
    KK_TRY(enqueue_all(s, err));
    KK_TRY(adopt(s, err));
    const double took = s->rounds[0]->flight[0].took_s;
    s->verify_s = took > 0 ? took : kk_now() - from;
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

/* Greedy choices are the device's, which makes them for all rows at once with all its threads;
 * rows that turn out not to count cost less than to wait for each verdict.  Not where a round in
 * flight may have its choice in their place. */
static bool picks(const step *s) {
    bool any_greedy = false;
    for (int32_t i = 0; i < s->n; i++) any_greedy |= is_greedy(s->rounds[i]);
    return any_greedy && s->rows <= KK_PICK_ROWS && (!s->all->ahead || s->n > 1);
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

/* Rows are taken one after the other as long as the draft holds.  first: this session's first row
 * of the forward; picked: what was chosen for all rows of it, NULL if nothing was yet. */
static kk_status match(step *s, kk_round *r, int32_t first, const kk_pick *picked, kk_err *err) {
    for (int32_t i = 0; i <= r->n_draft; i++) {
        const int32_t drafted = i < r->n_draft ? r->tokens[r->len + i] : -1;
        if (!picked) KK_TRY(read_logits(s, r, first + i, err));
        kk_pick pick;
        if (picked) {
            pick = picked[first + i];
        } else if (!choose(s->all, r, i, &pick)) {
            r->refused = i == 0; /* what was chosen before is an outcome; the next round has none */
            break;
        }
        if (is_broken(r, i, &pick)) break;
        take(r, i, pick);
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
        KK_TRY(kk_gemma4_choose(s->all->model, &ticket, err));
        KK_TRY(kk_gemma4_picked(s->all->model, ticket, pick, s->rows, &took_s, err));
    }
    for (int32_t i = 0, first = 0; i < s->n; first += s->rounds[i++]->n_draft + 1) {
        const bool greedy = is_greedy(s->rounds[i]);
        KK_TRY(match(s, s->rounds[i], first, picked && greedy ? pick : NULL, err));
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

static void learn_session(const step *s, int32_t i) {
    kk_round *r = s->rounds[i];
    kk_choice c = s->choice[i];
    /* A stop id that was drafted, or a mask that allows nothing, ends the round without a verdict
     * on the draft after it. */
    const bool unjudged = r->n_right == r->n_out;
    for (int32_t k = 0; k < r->drafting->n; k++)
        r->drafting->member[k].steady = r->n_draft > 0 && k == c.who;
    if (c.n_from == 0) return;
    kk_controller_saw(costs_of(s), &c, unjudged ? r->n_right : r->n_draft, r->n_right);
    watch_at_hand(s, i, &c);
}

static void learn(const step *s) {
    kk_spent spent = {
        .sessions = s->n, .rows = s->rows, .verify_s = s->verify_s, .draft_s = s->pass_s};
    for (int32_t i = 0; i < s->n; i++) {
        const kk_choice *c = &s->choice[i];
        if (c->n_from > 0 && !c->from[c->who].free) spent.drafted += s->rounds[i]->n_draft;
        spent.exploring |= c->exploring;
    }
    if (!s->untimed) kk_controller_spent(costs_of(s), &spent);
    for (int32_t i = 0; i < s->n; i++) {
        learn_session(s, i);
        count(s, i);
    }
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
    if ((ahead || n > 1) && all->in_flight != rounds[0]) land(all);
    kk_status st = draft_all(&s, false, err);
    if (st == KK_OK) choose_lengths(&s);
    if (st == KK_OK) st = draft_all(&s, true, err);
    if (st == KK_ENOMEM) {
        drop_drafts(&s);
        st = KK_OK;
    }
    if (st == KK_OK) st = ahead ? run_ahead(&s, err) : forward_all(&s, err);
    if (st == KK_OK && !ahead) st = match_all(&s, err);
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
