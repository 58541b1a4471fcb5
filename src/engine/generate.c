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
                  .room = o->max_tokens && o->max_tokens < space ? o->max_tokens : space,
                  .hash = KK_HASH_START};
    if (!o->ignore_eos)
        r.stop = (kk_stop){.model_ids = c->stop_ids,
                           .n_model_ids = (size_t)c->n_stop_ids,
                           .user_ids = o->stop_ids,
                           .n_user_ids = o->n_stop_ids};
    return r;
}

/* The first token after a prompt needs no forward: its logits are at hand. */
static kk_status choose_next(kk_session *s, kk_round *r, kk_result *result, kk_err *err) {
    if (!kk_session_settled(s)) return kk_schedule_round(s, r, result, err);
    kk_engine_lock(s->engine);
    const double from = kk_now();
    kk_round_first(&s->engine->rounds, r);
    result->decode_s += kk_now() - from;
    kk_engine_unlock(s->engine);
    return KK_OK;
}

static kk_status step(kk_session *s, kk_round *r, kk_result *result, kk_err *err) {
    KK_TRY(choose_next(s, r, result, err));
    if (!r->refused && !r->broken) return KK_OK;
    kk_engine_lock(s->engine);
    kk_round_end(&s->engine->rounds, r);
    kk_round_commit(r, 0);
    const kk_status st =
        r->broken ? kk_round_diagnose(&s->engine->rounds, r, err)
                  : kk_fail(err, KK_EINVAL, "the mask allows no token at position %d", r->len);
    kk_engine_unlock(s->engine);
    return st;
}

/* A generation that nothing stopped had no room left. */
static kk_stop_reason stop_of(const kk_session *s, const kk_generate_opts *o,
                              const kk_result *result) {
    const bool all = o->max_tokens > 0 && result->n_tokens == o->max_tokens;
    return s->len == s->ctx && !all ? KK_STOP_CONTEXT : KK_STOP_LENGTH;
}

/* True: go on. */
static bool emit(kk_session *s, kk_round *r, const kk_generate_opts *o, kk_on_token on_token,
                 void *user, kk_result *result) {
    int32_t n = 0;
    bool wanted = true;
    while (n < r->n_out && wanted) {
        if (o->on_logprobs) o->on_logprobs(user, &r->choose.logprobs[n]);
        s->len++;
        const int32_t id = s->tokens[r->len + n++];
        wanted = !on_token || on_token(user, id);
    }
    const bool ended = r->stopped && n == r->n_out;
    kk_round_keep(r, n); /* the caches follow with the next round */
    r->room -= n;
    result->n_tokens += n;
    result->logits_hash = r->hash;
    result->stop = ended ? KK_STOP_EOS : !wanted ? KK_STOP_CALLBACK : stop_of(s, o, result);
    return !ended && wanted && r->room > 0;
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
    kk_status st;
    kk_schedule_enter(s);
    do {
        st = step(s, &r, result, err);
    } while (st == KK_OK && emit(s, &r, opts, on_token, user, result));
    kk_schedule_leave(s);
    kk_engine_lock(s->engine);
    if (r.unsettled > 0) kk_round_settle(&r);
    kk_round_end(&s->engine->rounds, &r);
    if (st == KK_OK) kk_drafting_pool(&s->drafting);
    kk_engine_unlock(s->engine);
    return st;
}
