/* generate.c - runs rounds until something ends them, and hands out the tokens.
 *
 * Tokens are put on the timeline one by one as the callback sees them, and the round commits as
 * many as it saw: stopping inside a draft leaves what stopping a plain generation there would
 * leave.  A generation that fails keeps the tokens already handed out. */
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "engine/session.h"

static kk_status check_choices(const kk_session *s, const kk_generate_opts *o, kk_err *err) {
    const int32_t vocab = s->engine->rounds.vocab;
    KK_TRY(kk_sampling_check(&o->sampling, err));
    KK_TRY(kk_bias_check(o->bias, o->n_bias, vocab, err));
    if (o->mask && !kk_mask_allows_any(o->mask, vocab))
        return kk_fail(err, KK_EINVAL, "mask allows none of the %d tokens", vocab);
    if (o->n_logprobs < 0 || o->n_logprobs > KK_MAX_LOGPROBS)
        return kk_fail(err, KK_EINVAL, "n_logprobs is %d: between 0 and %d", o->n_logprobs,
                       KK_MAX_LOGPROBS);
    if (o->n_logprobs && !o->on_logprobs)
        return kk_fail(err, KK_EINVAL, "n_logprobs is %d, and no on_logprobs to take them",
                       o->n_logprobs);
    return KK_OK;
}

static kk_status check_start(const kk_session *s, const kk_generate_opts *o, kk_err *err) {
    KK_TRY(check_choices(s, o, err));
    if (o->max_tokens < 0)
        return kk_fail(err, KK_EINVAL, "max_tokens is %d: 0 or more (0: until a stop id)",
                       o->max_tokens);
    if (s->len == 0)
        return kk_fail(err, KK_EINVAL, "nothing to continue: append at least one token first");
    if (s->len == s->ctx)
        return kk_fail(err, KK_ECONTEXT, "the context of %d tokens is full: raise `ctx`", s->ctx);
    return KK_OK;
}

/* logprobs: [KK_MAX_DRAFT + 1] */
static kk_choose_opts choose_opts_of(const kk_generate_opts *o, void *user, kk_logprobs *logprobs) {
    return (kk_choose_opts){.bias = o->bias,
                            .n_bias = o->n_bias,
                            .mask = o->mask,
                            .mask_at = o->mask_at,
                            .user = user,
                            .n_logprobs = o->n_logprobs,
                            .logprobs = o->on_logprobs ? logprobs : NULL};
}

static kk_round start(kk_session *s, const kk_generate_opts *o, kk_spec_stats *stats) {
    const kk_config *c = kk_engine_config(s->engine);
    const int32_t space = s->ctx - s->len;
    kk_round r = {.cache = s->cache,
                  .layout = s->layout,
                  .counts = &s->counts,
                  .tokens = s->tokens,
                  .cap = s->ctx,
                  .logits = s->logits,
                  .sampling = &o->sampling,
                  .drafting = &s->drafting,
                  .draft_max = s->draft_max,
                  .draft_fixed = s->draft_fixed,
                  .stats = stats,
                  .len = s->len,
                  .tokens_left = o->max_tokens && o->max_tokens < space ? o->max_tokens : space,
                  .hash = KK_HASH_START};
    if (!o->ignore_eos)
        r.stop = (kk_stop){.model_ids = c->stop_ids,
                           .n_model_ids = (size_t)c->n_stop_ids,
                           .user_ids = o->stop_ids,
                           .n_user_ids = o->n_stop_ids};
    return r;
}

/* A generation as its caller's thread sees it. */
typedef struct {
    kk_session *s;
    const kk_generate_opts *opts;
    kk_round *round;
    kk_result *result;
    kk_outcome last; /* the last outcome, n_given tokens of which were handed out */
    int32_t n_given;
    bool any;
    bool forwarded; /* the last outcome is a round's, not the choice after a prompt */
} generation;

/* The first token after a prompt needs no forward: its logits are known. */
static void choose_first(generation *g) {
    kk_engine_lock(g->s->engine);
    const double from = kk_now();
    kk_round_first(&g->s->engine->rounds, g->round);
    g->result->decode_s += kk_now() - from;
    kk_engine_unlock(g->s->engine);
    kk_outcome_of(g->round, &g->last);
}

static void note_time(kk_round_times *t, double seconds) {
    if (t && t->n < t->cap) t->seconds[t->n++] = seconds;
}

static kk_status step(generation *g, kk_err *err) {
    g->forwarded = g->any || !kk_session_settled(g->s);
    if (!g->forwarded) {
        choose_first(g);
    } else {
        kk_outcome next;
        kk_schedule_round(g->s, g->round, g->any ? &g->last : NULL, &next);
        g->last = next;
        g->result->decode_s += next.seconds;
        g->result->syncs += next.syncs;
        g->result->rounds += next.st == KK_OK;
        if (next.st == KK_OK) note_time(g->s->times, next.seconds);
    }
    g->any = true;
    g->n_given = 0;
    if (g->last.st != KK_OK && err) *err = g->last.err;
    if (g->last.refused)
        return kk_fail(err, KK_EINVAL, "the mask allows no token at position %d", g->last.at);
    return g->last.broken ? KK_ENUMERIC : g->last.st; /* finish() says why */
}

/* A generation that nothing stopped has used up its tokens or the context. */
static kk_stop_reason stop_of(const generation *g) {
    const int32_t most = g->opts->max_tokens;
    const bool all = most > 0 && g->result->n_tokens == most;
    return g->s->len == g->s->ctx && !all ? KK_STOP_CONTEXT : KK_STOP_LENGTH;
}

/* Choices that the device might have made otherwise, in this generation and of the engine. */
static void count_ties(const generation *g) {
    kk_engine *e = g->s->engine;
    int32_t near = 0;
    if (!e->rounds.ties || !g->last.greedy) return;
    for (int32_t i = 0; i < g->n_given; i++) near += g->last.near_tie[i];
    g->result->near_ties += near;
    atomic_fetch_add(&e->choices, g->n_given);
    atomic_fetch_add(&e->near_ties, near);
}

/* True: go on. */
static bool emit(generation *g, kk_on_token on_token, void *user) {
    const kk_outcome *o = &g->last;
    kk_result *result = g->result;
    bool wanted = true;
    if (g->forwarded && g->opts->on_round)
        g->opts->on_round(user, o->draft, o->n_draft, o->n_right);
    while (g->n_given < o->n && wanted) {
        if (g->opts->on_logprobs)
            g->opts->on_logprobs(user, &g->round->choose.logprobs[g->n_given]);
        g->s->len++;
        const int32_t id = g->s->tokens[o->at + g->n_given++];
        wanted = !on_token || on_token(user, id);
    }
    const bool ended = o->stopped && g->n_given == o->n;
    result->n_tokens += g->n_given;
    count_ties(g);
    result->logits_hash = o->hash_after[g->n_given - 1];
    result->stop = ended ? KK_STOP_EOS : !wanted ? KK_STOP_CALLBACK : stop_of(g);
    return !ended && wanted && (!g->opts->max_tokens || result->n_tokens < g->opts->max_tokens) &&
           g->s->len < g->s->ctx;
}

/* Leaves the session with the tokens that were handed out. */
static kk_status finish(generation *g, kk_status st, kk_err *err) {
    kk_rounds *all = &g->s->engine->rounds;
    kk_schedule_leave(g->s, g->round, &g->last, g->n_given);
    kk_engine_lock(g->s->engine);
    kk_round_settle(g->round, 0);
    kk_round_end(all, g->round);
    if (g->last.broken) st = kk_round_diagnose(all, g->round, err);
    if (st == KK_OK) kk_drafting_pool(&g->s->drafting);
    kk_engine_unlock(g->s->engine);
    return st;
}

kk_status kk_generate(kk_session *s, const kk_generate_opts *opts, kk_on_token on_token, void *user,
                      kk_result *result, kk_err *err) {
    static const kk_generate_opts standard = {0};
    kk_result mine;
    if (!opts) opts = &standard;
    if (!result) result = &mine;
    *result = (kk_result){.logits_hash = KK_HASH_START};
    KK_TRY(check_start(s, opts, err));
    s->sampling = opts->sampling;
    s->sampled = true;
    kk_logprobs logprobs[KK_MAX_DRAFT + 1];
    kk_round r = start(s, opts, &result->spec);
    r.choose = choose_opts_of(opts, user, logprobs);
    generation g = {.s = s, .opts = opts, .round = &r, .result = result};
    kk_status st;
    kk_schedule_enter(s, &r);
    do {
        st = step(&g, err);
    } while (st == KK_OK && emit(&g, on_token, user));
    return finish(&g, st, err);
}
