/* rounds.h - a session's part of a round, for tests that run rounds themselves. */
#ifndef KK_TESTS_ROUNDS_H
#define KK_TESTS_ROUNDS_H

#include "core/hash.h"
#include "engine/session.h"

/* As kk_generate would start it; stats is borrowed and added to. */
static inline kk_round round_of(kk_session *s, const kk_sampling *how, int32_t tokens,
                                kk_spec_stats *stats) {
    return (kk_round){.cache = s->cache,
                      .layout = s->layout,
                      .tokens = s->tokens,
                      .cap = s->ctx,
                      .logits = s->logits,
                      .sampling = how,
                      .drafting = &s->drafting,
                      .draft_max = s->draft_max,
                      .draft_fixed = s->draft_fixed,
                      .stats = stats,
                      .len = s->len,
                      .tokens_left = tokens,
                      .hash = KK_HASH_START};
}

/* The session's state at its drafter; the caches of those that keep K/V rows of their own. */
static inline kk_drafting_member *drafter_of(kk_session *s) {
    return s->drafting.n ? &s->drafting.member[0] : NULL;
}
static inline kk_cache *drafter_cache(kk_session *s) {
    const kk_drafting_member *m = drafter_of(s);
    return m && m->proposer->cache ? m->proposer->cache(m->self) : NULL;
}

/* Whoever drafted for the session, this one does now: with that one's state where it is made of
 * that one, and with none where it is not. */
static inline void draft_instead(kk_session *s, const kk_proposer *p) {
    s->drafting.n = 1;
    s->drafting.member[0].proposer = p;
}

/* One round, or the first token after a prompt, with all of its outcome kept. */
static inline kk_status round_step(kk_session *s, kk_round *r, kk_err *err) {
    if (kk_session_settled(s))
        kk_round_first(&s->engine->rounds, r);
    else
        KK_TRY(kk_round_run(&s->engine->rounds, &r, 1, err));
    kk_round_commit(r, r->n_out);
    s->len = r->len;
    return KK_OK;
}

#endif
