/* lossless.h - one drafted generation against a plain one, and everything that must be equal.
 *
 * A stage is one prompt in one cache format and under one policy, evaluated once per engine: by
 * one without a drafter and with one thread, whose sessions decode plainly, and by engines with a
 * drafter and one or two threads, whose sessions draft.  A reference is a plain generation and the
 * turn after it, with the sessions as they were left.  A case forks the evaluated prompt, drafts
 * its way through the same, and is compared: tokens, hash of the logits, reason of the end,
 * lengths, anchor, the bytes of every cache row, bytes counted, and all of that again after the
 * next turn.
 *
 * Nothing here fails a test by itself: a case says what differed. */
#ifndef KK_TESTS_LOSSLESS_H
#define KK_TESTS_LOSSLESS_H

#include <stdio.h>

#include "core/hash.h"
#include "engine/session.h"
#include "eval/texts/lossless_plan.h"
#include "propose/ngram.h"
#include "support/lossless_prompts.h"
#include "support/rounds.h"
#include "support/same_cache.h"

enum { MOST_BLOCK = 16, SAMPLINGS = 4, ENDINGS = 3, FORESIGHT = 16, MOST_TOKENS = 64, TURN = 6 };
enum { NEXT_TOKENS = 6, SAY = 400 };

/* ---- settings ----------------------------------------------------------------------------- */

typedef enum {
    BY_DFLASH,     /* the drafter; where a block is longer than its own, the plain run goes on */
    BY_CONTROLLER, /* the drafter, as much of it as the controller wants */
    BY_NGRAM,
    BY_RIGHT,  /* every token is right */
    BY_WRONG,  /* none is */
    BY_DEPTH,  /* right as far as a depth that grows from round to round, then wrong */
    BY_CHANCE, /* any number of tokens, any number of them right, some outside the vocabulary */
    PROPOSERS,
} lossless_proposer;
#define lossless_proposers kk_lossless_proposers
#define lossless_samplings kk_lossless_samplings
enum { CONSTRAINED = 2, MOST_VOCAB = 4096, BEST = 3 }; /* which of them, and what it is given */
static const kk_sampling lossless_sampling[SAMPLINGS] = {
    {.temp = 0},
    {.temp = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 5},
    {.temp = 1.3f,
     .min_p = 0.02f,
     .repeat_penalty = 1.2f,
     .frequency_penalty = 0.3f,
     .penalty_last_n = 32,
     .seed = 77},
    {.temp = 0.6f,
     .repeat_penalty = 1.1f,
     .presence_penalty = 0.5f,
     .penalty_last_n = -1,
     .seed = 1099511627779u},
};

typedef enum { AT_LENGTH, AT_STOP_ID, AT_CALLBACK } lossless_ending;
#define lossless_endings kk_lossless_endings
/* How it ends follows from the prompt and the sampling alone. */
static inline lossless_ending lossless_ending_of(uint32_t prompt, int32_t sampling) {
    return (lossless_ending)kk_lossless_ending((int32_t)prompt, sampling);
}

typedef enum { KEEPS_ALL, KEEPS_WINDOW, KEEPS_RESTORED, POLICIES } lossless_policy;
#define lossless_policies kk_lossless_policies

/* What a stage keeps: by turns sliding layers, full ones or both, with windows that hold the
 * longest round, and chunks that rounds cross. */
static inline kk_session_opts lossless_keeping(lossless_policy policy, uint32_t seed,
                                               int32_t model_window) {
    static const kk_session_opts reaches[] = {
        {.sink = 4, .window = 32, .chunk = 32},  {.sink = 1, .window = 20, .chunk = 7},
        {.sink = 64, .window = 16, .chunk = 64}, {.sink = -1, .window = 64, .chunk = 1},
        {.sink = 4, .window = 64, .chunk = 64},
    };
    const kk_keep keep = policy == KEEPS_WINDOW ? KK_KEEP_WINDOW : KK_KEEP_RESTORED;
    if (policy == KEEPS_ALL) return (kk_session_opts){0};
    kk_session_opts o = reaches[seed / 3 % (sizeof reaches / sizeof *reaches)];
    const bool narrow = o.window > model_window; /* a window of its own for full layers alone */
    o.kv_sliding = seed % 3 != 1 && !narrow ? keep : KK_KEEP_ALL;
    o.kv_full = seed % 3 != 2 || narrow ? keep : KK_KEEP_ALL;
    o.latents = (kk_kv_format)(policy == KEEPS_RESTORED ? seed / 5 % 2 : 0); /* bf16, f32 */
    return o;
}

typedef struct {
    int32_t block; /* rows of a round: 1 and the drafts */
    int32_t threads;
    int32_t sampling;
    lossless_proposer proposer;
} lossless_setting;

static inline bool lossless_say(char why[SAY], const char *what, int64_t got, int64_t want) {
    snprintf(why, SAY, "%s: %lld, plain %lld", what, (long long)got, (long long)want);
    return false;
}

#define LOSSLESS_TRY(call)                                                                         \
    do {                                                                                           \
        kk_err err_ = {0}, *err = &err_;                                                           \
        if ((call) != KK_OK) {                                                                     \
            snprintf(why, SAY, "%.100s: %.240s", #call, err_.msg);                                 \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/* ---- proposers that know the plain run ---------------------------------------------------- */

typedef struct {
    kk_proposer as; /* with the drafter's state, where the session has one */
    lossless_proposer who;
    const int32_t *plain; /* the timeline, and what plain decoding would say after it */
    int32_t len, vocab, calls;
    uint64_t random;
    int32_t own; /* tokens that drafter drafts at most */
} lossless_oracle;

static inline int32_t lossless_right_ones(lossless_oracle *o, int32_t n) {
    switch (o->who) {
    case BY_WRONG: return 0;
    case BY_DEPTH: return o->calls % (n + 1);
    case BY_CHANCE: return (int32_t)random_below(&o->random, (uint32_t)n + 1);
    default: return n;
    }
}

static inline void lossless_fill(lossless_oracle *o, kk_draft *d, int32_t from) {
    d->n = o->who == BY_CHANCE ? (int32_t)random_below(&o->random, (uint32_t)d->max + 1) : d->max;
    const int32_t right = lossless_right_ones(o, d->n);
    for (int32_t i = from; i < d->n; i++) {
        const int32_t next = d->len + i < o->len ? o->plain[d->len + i] : 3;
        const int32_t off = 1 + (int32_t)random_below(&o->random, (uint32_t)o->vocab - 1);
        const bool outside = o->who == BY_CHANCE && off % 3 == 0;
        d->out[i] = i < right ? next : outside ? o->vocab + off : (next + off) % o->vocab;
    }
}

static inline kk_status lossless_draft(const kk_proposer *me, kk_draft *drafts, int32_t n,
                                       kk_err *err) {
    lossless_oracle *o = (lossless_oracle *)me;
    for (int32_t k = 0; k < n; k++) {
        kk_draft *d = &drafts[k], own = *d;
        own.n = 0;
        if (o->who == BY_DFLASH) {
            if (own.max > o->own) own.max = o->own;
            KK_TRY(kk_propose_dflash.draft(&kk_propose_dflash, &own, 1, err));
        }
        lossless_fill(o, d, own.n);
        o->calls++;
    }
    return KK_OK;
}

/* A session with a drafter has two proposers: the second is n-gram's. */
static inline void lossless_without_ngram(kk_session *s) {
    if (s->drafting.n < 2) return;
    const kk_drafting_member *m = &s->drafting.member[1];
    if (m->proposer->close) m->proposer->close(m->self);
    s->drafting.n = 1;
}

/* Drafts by ngram, beside the drafter where the session has one, whose state must follow. */
static inline bool lossless_by_ngram(kk_session *s, char why[SAY]) {
    const kk_proposer_opts how = {.mem = &s->engine->mem, .max_len = s->ctx};
    if (s->drafting.n < 2)
        LOSSLESS_TRY(kk_drafting_add(&s->drafting, &kk_propose_ngram, &how, NULL, err));
    if (s->drafting.n == 1) return true;
    const kk_drafting_member drafter = s->drafting.member[0];
    s->drafting.member[0] = s->drafting.member[1];
    s->drafting.member[1] = drafter;
    return true;
}

/* Makes a session draft so, whatever it was made to do. */
static inline bool lossless_draft_by(kk_session *s, lossless_oracle *o, int32_t block,
                                     char why[SAY]) {
    s->draft_max = block - 1;
    s->draft_fixed = o->who != BY_CONTROLLER;
    if (s->drafting.n) o->own = kk_dflash_config(s->engine->dflash)->block - 1;
    for (int32_t i = 0; i < s->drafting.n; i++)
        if (s->drafting.member[i].proposer->free) s->drafting.member[i].most = 0;
    if (o->who == BY_NGRAM) return lossless_by_ngram(s, why);
    if (o->who == BY_CONTROLLER) {
        if (s->draft_max > o->own) s->draft_max = o->own;
        return true;
    }
    lossless_without_ngram(s);
    if (s->drafting.n) s->drafting.member[0].most = 0;
    o->as = s->drafting.n ? *s->drafting.member[0].proposer : (kk_proposer){0};
    o->as.name = "oracle";
    o->as.draft = lossless_draft;
    draft_instead(s, &o->as);
    return true;
}

/* ---- comparing ---------------------------------------------------------------------------- */

/* Timeline, anchor, caches; the drafter's context stands for the same rows. */
static inline bool lossless_same_session(const kk_session *got, const kk_session *want,
                                         char why[SAY]) {
    if (got->len != want->len) return lossless_say(why, "length", got->len, want->len);
    for (int32_t i = 0; i < want->len; i++)
        if (got->tokens[i] != want->tokens[i]) {
            snprintf(why, SAY, "token %d is %d, plain %d", i, got->tokens[i], want->tokens[i]);
            return false;
        }
    const int64_t rows = kk_cache_len(got->cache);
    if (rows != kk_cache_len(want->cache))
        return lossless_say(why, "rows in the cache", rows, kk_cache_len(want->cache));
    for (int32_t i = 0; i < got->drafting.n; i++) {
        const kk_drafting_member *m = &got->drafting.member[i];
        if (m->proposer->rows && m->proposer->rows(m->self) != rows)
            return lossless_say(why, "rows of a proposer's state", m->proposer->rows(m->self),
                                rows);
    }
    return same_cache(got->cache, want->cache, true, why, SAY);
}

/* ---- one generation ----------------------------------------------------------------------- */

typedef struct {
    int32_t stop_after; /* the callback says stop at this token; 0: never */
    int32_t seen[MOST_TOKENS + FORESIGHT], n;
    kk_logprobs logprobs[MOST_TOKENS + FORESIGHT];
    int32_t n_logprobs;
    uint32_t mask[MOST_VOCAB / 32];
    kk_result r;
} lossless_run;

/* Where tokens come in fours all ids may follow, else those in which the last token's hash has a
 * bit set: about half. */
static inline const uint32_t *lossless_mask(void *user, const int32_t *tokens, int32_t n) {
    lossless_run *run = user;
    uint64_t random = (uint64_t)(uint32_t)tokens[n - 1] * 2654435761u + (uint32_t)n;
    if (n % 4 == 0) return NULL;
    for (int i = 0; i < MOST_VOCAB / 32; i++) run->mask[i] = random_below(&random, UINT32_MAX);
    return run->mask;
}

static inline void lossless_take_logprobs(void *user, const kk_logprobs *of) {
    lossless_run *run = user;
    run->logprobs[run->n_logprobs++] = *of;
}

/* What is asked for beside a sampling. */
static inline void lossless_constrain(kk_generate_opts *how, int32_t which) {
    static const kk_logit_bias bias[] = {{5, 2.5f}, {17, -INFINITY}, {5, -0.25f}};
    if (which != CONSTRAINED) return;
    how->bias = bias;
    how->n_bias = sizeof bias / sizeof *bias;
    how->mask_at = lossless_mask;
    how->n_logprobs = BEST;
    how->on_logprobs = lossless_take_logprobs;
}

static inline bool lossless_listen(void *user, int32_t id) {
    lossless_run *run = user;
    run->seen[run->n++] = id;
    return run->n != run->stop_after;
}

static inline bool lossless_generate(kk_session *s, const kk_generate_opts *how, int32_t stop_after,
                                     lossless_run *run, char why[SAY]) {
    run->n = run->n_logprobs = 0;
    run->stop_after = stop_after;
    LOSSLESS_TRY(kk_generate(s, how, lossless_listen, run, &run->r, err));
    return true;
}

static inline bool lossless_same_logprob(kk_logprob a, kk_logprob b) {
    return a.id == b.id && memcmp(&a.logprob, &b.logprob, sizeof a.logprob) == 0;
}

/* Bits, not values. */
static inline bool lossless_same_logprobs(const lossless_run *got, const lossless_run *want,
                                          char why[SAY]) {
    if (got->n_logprobs != want->n_logprobs)
        return lossless_say(why, "log-probabilities", got->n_logprobs, want->n_logprobs);
    for (int32_t i = 0; i < want->n_logprobs; i++) {
        const kk_logprobs *a = &got->logprobs[i], *b = &want->logprobs[i];
        bool same = lossless_same_logprob(a->chosen, b->chosen) && a->n_best == b->n_best &&
                    a->chosen.id == got->seen[i];
        for (int32_t k = 0; same && k < b->n_best; k++)
            same = lossless_same_logprob(a->best[k], b->best[k]);
        if (!same) return lossless_say(why, "log-probabilities of token", i, i);
    }
    return true;
}

static inline bool lossless_same_run(const lossless_run *got, const lossless_run *want,
                                     char why[SAY]) {
    for (int32_t i = 0; i < got->n && i < want->n; i++)
        if (got->seen[i] != want->seen[i]) {
            snprintf(why, SAY, "token %d of %d is %d, plain %d", i, want->n, got->seen[i],
                     want->seen[i]);
            return false;
        }
    if (got->n != want->n || got->r.n_tokens != want->r.n_tokens)
        return lossless_say(why, "tokens", got->n, want->n);
    if (got->r.stop != want->r.stop)
        return lossless_say(why, "reason of the end", got->r.stop, want->r.stop);
    if (got->r.logits_hash != want->r.logits_hash)
        return lossless_say(why, "hash of the logits", (int64_t)got->r.logits_hash,
                            (int64_t)want->r.logits_hash);
    return lossless_same_logprobs(got, want, why);
}

/* ---- references --------------------------------------------------------------------------- */

typedef struct {
    kk_engine *plain;      /* without a drafter, one thread */
    kk_engine *drafted[2]; /* with one; by threads - 1 */
    /* rounds of --spec auto in which each of its members drafted, by kk_spec */
    int64_t auto_rounds[KK_SPEC_NGRAM + 1];
    int64_t by_short, by_full, missed; /* drafts of the engine with a short head; tokens outside */
} lossless_world;

typedef struct {
    bool made;
    lossless_ending ending;
    kk_generate_opts how;
    int32_t stop_id, stop_after;
    int32_t *future; /* the timeline, were nothing to end it */
    int32_t n_future;
    lossless_run run, next;
    kk_session *ended, *after; /* as the generation and the turn after it left them */
} lossless_reference;

typedef struct {
    lossless_world *world;
    const lossless_prompt *prompt;
    uint32_t seed;
    int32_t tokens;                 /* at most, of a generation */
    int32_t turn[TURN], n_turn;     /* appended after it */
    kk_session *plain, *drafted[2]; /* with the prompt evaluated; drafted: when first used */
    lossless_reference ref[SAMPLINGS];
    kk_kv_format format;
    lossless_policy policy;
    lossless_oracle oracle; /* of the case at hand */
    /* Chains of tokens and hashes of logits over the cases, of the references they were held
     * against and of what came out. */
    uint64_t plain_hash, drafted_hash;
} lossless_stage;

static inline bool lossless_evaluate(lossless_stage *st, kk_engine *e, kk_spec spec,
                                     kk_session **out, char why[SAY]) {
    const lossless_prompt *p = st->prompt;
    kk_session_opts opts = lossless_keeping(st->policy, st->seed, kk_engine_config(e)->window);
    opts.ctx = p->n + MOST_TOKENS + FORESIGHT + TURN + NEXT_TOKENS;
    opts.kv_format = st->format;
    opts.spec = spec;
    LOSSLESS_TRY(kk_session_new(out, e, &opts, err));
    LOSSLESS_TRY(kk_session_append(*out, p->ids, (size_t)p->n, NULL, NULL, err));
    return true;
}

static inline bool lossless_look_ahead(lossless_stage *st, lossless_reference *r, char why[SAY]) {
    kk_generate_opts how = r->how;
    kk_session *s;
    lossless_run run;
    how.max_tokens += FORESIGHT;
    how.ignore_eos = true;
    LOSSLESS_TRY(kk_session_fork(&s, st->plain, err));
    const bool good = lossless_generate(s, &how, 0, &run, why);
    r->n_future = s->len;
    r->future = malloc((size_t)s->len * sizeof *r->future);
    if (!r->future) abort();
    memcpy(r->future, s->tokens, (size_t)s->len * sizeof *r->future);
    kk_session_free(s);
    return good;
}

static inline void lossless_choose_end(lossless_stage *st, lossless_reference *r, int32_t which) {
    uint64_t random = st->seed * 977u + (uint32_t)which;
    const int32_t least = st->tokens / 3 + 1;
    const int32_t n = least + (int32_t)random_below(&random, (uint32_t)(st->tokens - least + 1));
    r->ending = lossless_ending_of(st->seed, which);
    r->how = (kk_generate_opts){
        .max_tokens = n, .sampling = lossless_sampling[which], .ignore_eos = true};
    lossless_constrain(&r->how, which);
}

static inline void lossless_apply_end(const lossless_stage *st, lossless_reference *r) {
    const int32_t n = r->how.max_tokens;
    if (r->ending == AT_LENGTH) return;
    r->how.max_tokens = n + FORESIGHT / 2;
    if (r->ending == AT_CALLBACK) {
        r->stop_after = n;
        return;
    }
    r->stop_id = r->future[st->prompt->n + n - 1];
    r->how.stop_ids = &r->stop_id;
    r->how.n_stop_ids = 1;
    r->how.ignore_eos = false;
}

static inline kk_generate_opts lossless_next(const lossless_reference *r) {
    kk_generate_opts next = r->how;
    next.max_tokens = NEXT_TOKENS;
    next.n_stop_ids = 0;
    next.ignore_eos = true;
    return next;
}

static inline bool lossless_refer(lossless_stage *st, int32_t which, char why[SAY]) {
    lossless_reference *r = &st->ref[which];
    if (r->made) return true;
    r->made = true;
    lossless_choose_end(st, r, which);
    if (!lossless_look_ahead(st, r, why)) return false;
    lossless_apply_end(st, r);
    LOSSLESS_TRY(kk_session_fork(&r->ended, st->plain, err));
    if (!lossless_generate(r->ended, &r->how, r->stop_after, &r->run, why)) return false;
    const kk_generate_opts next = lossless_next(r);
    LOSSLESS_TRY(kk_session_fork(&r->after, r->ended, err));
    LOSSLESS_TRY(kk_session_append(r->after, st->turn, (size_t)st->n_turn, NULL, NULL, err));
    return lossless_generate(r->after, &next, 0, &r->next, why);
}

/* ---- stages and cases --------------------------------------------------------------------- */

/* index: of the prompt; it draws how generations end.  tokens: the longest of them. */
static inline bool lossless_stage_open(lossless_stage *st, lossless_world *w,
                                       const lossless_prompt *p, uint32_t index,
                                       kk_kv_format format, lossless_policy policy, int32_t tokens,
                                       char why[SAY]) {
    *st = (lossless_stage){.world = w,
                           .prompt = p,
                           .seed = index,
                           .tokens = tokens,
                           .format = format,
                           .policy = policy};
    uint64_t random = index;
    const uint32_t vocab = (uint32_t)kk_engine_config(w->plain)->vocab;
    st->n_turn = 1 + (int32_t)random_below(&random, TURN);
    for (int32_t i = 0; i < st->n_turn; i++) st->turn[i] = (int32_t)random_below(&random, vocab);
    return lossless_evaluate(st, w->plain, KK_SPEC_NONE, &st->plain, why);
}

static inline void lossless_stage_close(lossless_stage *st) {
    for (int i = 0; i < SAMPLINGS; i++) {
        free(st->ref[i].future);
        kk_session_free(st->ref[i].ended);
        kk_session_free(st->ref[i].after);
    }
    kk_session_free(st->plain);
    kk_session_free(st->drafted[0]);
    kk_session_free(st->drafted[1]);
    *st = (lossless_stage){0};
}

/* Which head drafted, and who did where the controller had the choice. */
static inline void lossless_count_auto(lossless_world *w, const kk_session *s,
                                       const lossless_setting *how, const lossless_run *run) {
    const kk_spec_stats *t = &run->r.spec;
    const bool own = how->proposer == BY_CONTROLLER || how->proposer == BY_DFLASH;
    if (own && kk_dflash_short_rows(s->engine->dflash) > 0) {
        w->by_short += t->short_rounds;
        w->by_full += t->by[KK_SPEC_DFLASH].rounds - t->short_rounds;
        w->missed += t->short_missed;
    }
    if (how->proposer != BY_CONTROLLER || s->drafting.n < 2) return;
    for (int i = 0; i <= KK_SPEC_NGRAM; i++) w->auto_rounds[i] += run->r.spec.by[i].rounds;
}

static inline void lossless_chain(uint64_t *hash, const lossless_run *run) {
    *hash = kk_hash_bytes(*hash, run->seen, (size_t)run->n * sizeof *run->seen);
    *hash = kk_hash_bytes(*hash, &run->r.logits_hash, sizeof run->r.logits_hash);
}

static inline bool lossless_live(lossless_stage *st, kk_session *s, const lossless_setting *how,
                                 char why[SAY]) {
    const lossless_reference *r = &st->ref[how->sampling];
    const int32_t vocab = st->world->plain->rounds.vocab;
    lossless_run run, next;
    st->oracle = (lossless_oracle){.who = how->proposer,
                                   .plain = r->future,
                                   .len = r->n_future,
                                   .vocab = vocab,
                                   .random = st->seed * 31u + (uint32_t)how->block};
    if (!lossless_draft_by(s, &st->oracle, how->block, why)) return false;
    if (!lossless_generate(s, &r->how, r->stop_after, &run, why)) return false;
    lossless_count_auto(st->world, s, how, &run);
    lossless_chain(&st->plain_hash, &r->run);
    lossless_chain(&st->drafted_hash, &run);
    if (!lossless_same_run(&run, &r->run, why)) return false;
    if (!lossless_same_session(s, r->ended, why)) return false;
    const kk_generate_opts then = lossless_next(r);
    st->oracle.plain = r->after->tokens;
    st->oracle.len = r->after->len;
    LOSSLESS_TRY(kk_session_append(s, st->turn, (size_t)st->n_turn, NULL, NULL, err));
    if (!lossless_generate(s, &then, 0, &next, why)) return false;
    lossless_count_auto(st->world, s, how, &next);
    lossless_chain(&st->plain_hash, &r->next);
    lossless_chain(&st->drafted_hash, &next);
    if (!lossless_same_run(&next, &r->next, why)) return false;
    return lossless_same_session(s, r->after, why);
}

/* Runs one setting; false: why says what differed. */
static inline bool lossless_case(lossless_stage *st, const lossless_setting *how, char why[SAY]) {
    kk_session **base = &st->drafted[how->threads - 1], *s = NULL;
    kk_engine *e = st->world->drafted[how->threads - 1];
    why[0] = 0;
    if (!lossless_refer(st, how->sampling, why)) return false;
    if (!*base && !lossless_evaluate(st, e, KK_SPEC_AUTO, base, why)) return false;
    LOSSLESS_TRY(kk_session_fork(&s, *base, err));
    const bool good = lossless_live(st, s, how, why);
    kk_session_free(s);
    return good;
}

/* ---- worlds ------------------------------------------------------------------------------- */

static inline void lossless_world_close(lossless_world *w) {
    kk_engine_close(w->plain);
    kk_engine_close(w->drafted[0]);
    kk_engine_close(w->drafted[1]);
    *w = (lossless_world){0};
}

/* how: the model, its drafter and its projection.  The short head, where there is one, drafts in
 * the engine of two threads, so that the full one does as well. */
static inline bool lossless_world_open(lossless_world *w, const kk_engine_opts *how,
                                       char why[SAY]) {
    kk_engine_opts opts = *how;
    *w = (lossless_world){0};
    opts.no_pin = true;
    for (opts.threads = 1; opts.threads <= 2; opts.threads++) {
        opts.draft_vocab = opts.threads == 2 ? how->draft_vocab : NULL;
        LOSSLESS_TRY(kk_engine_open(&w->drafted[opts.threads - 1], &opts, err));
    }
    opts.threads = 1;
    opts.drafter = opts.draft_vocab = NULL;
    LOSSLESS_TRY(kk_engine_open(&w->plain, &opts, err));
    return true;
}

/* No session's pages are left behind. */
static inline bool lossless_world_empty(const lossless_world *w, char why[SAY]) {
    const kk_engine *all[] = {w->plain, w->drafted[0], w->drafted[1]};
    for (int i = 0; i < 3; i++) {
        int64_t b[KK_MEM_CATEGORIES];
        kk_engine_memory(all[i], b);
        const int64_t kv =
            b[KK_MEM_KV_SLIDING] + b[KK_MEM_KV_FULL] + b[KK_MEM_KV_DRAFTER] + b[KK_MEM_KV_LATENTS];
        if (kv) return lossless_say(why, "bytes of K/V left behind", kv, 0);
    }
    return true;
}

#endif
