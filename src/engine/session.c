/* session.c - a session's life, and the evaluation of tokens; see session.h.
 *
 * Appending is atomic.  One chunk is committed only when it is whole; before several, the cache
 * is marked, and a failure or a stop goes back to the mark. */
#define _GNU_SOURCE
#include "engine/session.h"

#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/hash.h"

enum { DEFAULT_CTX = 4096 };
static const int64_t DEFAULT_CHECKPOINTS = (int64_t)1 << 30; /* bytes; kakeya.h says so */

/* ---- life ------------------------------------------------------------------------------- */

float *kk_session_row_take(kk_session *s) {
    return kk_mem_take(&s->engine->mem, KK_MEM_WORKSPACE,
                       (size_t)s->engine->rounds.vocab * sizeof(float));
}

void kk_session_row_give(kk_session *s, float *row) {
    kk_mem_give(&s->engine->mem, KK_MEM_WORKSPACE, row,
                (size_t)s->engine->rounds.vocab * sizeof(float));
}

static kk_status check_opts(const kk_engine *e, const kk_session_opts *o, kk_err *err) {
    const int32_t most = kk_engine_config(e)->context;
    if (o->ctx < 0 || o->ctx > most)
        return kk_fail(err, KK_EINVAL, "a context of %d tokens: this model takes 1 to %d", o->ctx,
                       most);
    if (o->checkpoint_bytes < -1)
        return kk_fail(err, KK_EINVAL,
                       "checkpoints of %lld bytes: 0 (the default), -1 (none) or more",
                       (long long)o->checkpoint_bytes);
    KK_TRY(kk_backend_stores(e->backend, o->kv_format, err));
    if (e->pages.fits[o->kv_format]) return KK_OK;
    kk_kv_layout unfit; /* for the reason it gives */
    return kk_kv_layout_init(&unfit, kk_gemma4_kv_shape(e->model), o->kv_format, NULL, err);
}

/* diagnosis: NULL in production; the session's own when this succeeds, else still the caller's. */
static kk_status open_session(kk_session **out, kk_engine *e, const kk_session_opts *opts,
                              kk_diagnosis *diagnosis, kk_err *err) {
    static const kk_session_opts standard = {0};
    *out = NULL;
    if (!opts) opts = &standard;
    KK_TRY(check_opts(e, opts, err));
    KK_TRY(kk_session_check_spec(e, opts, err));
    kk_session_keeps keeps;
    KK_TRY(kk_session_keeping(&keeps, e, opts, diagnosis, err));
    kk_session *s = kk_zalloc(sizeof *s);
    if (!s) return kk_fail(err, KK_ENOMEM, "no memory for a session");
    const int32_t context = kk_engine_config(e)->context;
    s->engine = e;
    kk_task_init(&s->task, s);
    s->format = opts->kv_format;
    s->keeps = keeps;
    s->diagnosis = diagnosis;
    s->layout = &e->pages.layout[opts->kv_format];
    s->ctx = opts->ctx ? opts->ctx : context < DEFAULT_CTX ? context : DEFAULT_CTX;
    s->spec = opts->spec;
    s->draft_max = opts->draft_max;
    s->draft_fixed = opts->draft_fixed;
    s->draft_ctx = opts->draft_ctx;
    s->checkpoint_bytes = opts->checkpoint_bytes ? opts->checkpoint_bytes : DEFAULT_CHECKPOINTS;
    s->tokens = kk_malloc((size_t)s->ctx * sizeof *s->tokens);
    s->logits = kk_session_row_take(s);
    kk_status st = s->tokens && s->logits
                       ? kk_session_open_cache(s, err)
                       : kk_fail(err, KK_ENOMEM, "no memory for a session of %d tokens", s->ctx);
    if (st == KK_OK) st = kk_session_open_proposers(s, err);
    if (st == KK_OK) st = kk_session_check_drafts(s, err);
    kk_engine_lock(e);
    e->n_sessions++;
    kk_engine_unlock(e);
    if (st != KK_OK) {
        s->diagnosis = NULL;
        kk_session_free(s);
        return st;
    }
    *out = s;
    return KK_OK;
}

kk_status kk_session_new(kk_session **out, kk_engine *e, const kk_session_opts *opts, kk_err *err) {
    return open_session(out, e, opts, NULL, err);
}

kk_status kk_session_new_diagnosed(kk_session **out, kk_engine *e, const kk_session_opts *opts,
                                   float mix, kk_err *err) {
    *out = NULL;
    kk_diagnosis *diagnosis = kk_zalloc(sizeof *diagnosis);
    if (!diagnosis) return kk_fail(err, KK_ENOMEM, "no memory for a session's diagnosis");
    diagnosis->mix = mix;
    const kk_status st = open_session(out, e, opts, diagnosis, err);
    if (st != KK_OK) kk_free(diagnosis);
    return st;
}

void kk_session_free(kk_session *s) {
    if (!s) return;
    kk_session_drop_checkpoints(s, -1);
    kk_session_row_give(s, s->logits);
    kk_free(s->tokens);
    kk_engine_lock(s->engine);
    kk_drafting_close(&s->drafting);
    kk_cache_free(s->cache);
    s->engine->n_sessions--;
    kk_engine_unlock(s->engine);
    kk_task_free(&s->task);
    kk_free(s->own_layout);
    kk_free(s->diagnosis);
    kk_free(s);
}

kk_status kk_session_fork(kk_session **out, kk_session *s, kk_err *err) {
    *out = NULL;
    kk_session *copy;
    kk_session_marks m;
    kk_session_opts same;
    kk_session_options(s, &same);
    KK_TRY(s->diagnosis ? kk_session_new_diagnosed(&copy, s->engine, &same, s->diagnosis->mix, err)
                        : kk_session_new(&copy, s->engine, &same, err));
    const kk_status st = kk_session_mark(s, &m, err);
    if (st != KK_OK) {
        kk_session_free(copy);
        return st;
    }
    kk_session_go_back(copy, &m);
    kk_session_unmark(s, &m);
    const kk_status shared = kk_session_share_checkpoints(copy, s, err);
    if (shared != KK_OK) {
        kk_session_free(copy);
        return shared;
    }
    memcpy(copy->tokens, s->tokens, (size_t)s->len * sizeof *s->tokens);
    copy->len = s->len;
    kk_drafting_inherit(&copy->drafting, &s->drafting);
    copy->sampling = s->sampling;
    copy->sampled = s->sampled;
    copy->other_weights = s->other_weights;
    if (kk_session_settled(s))
        memcpy(copy->logits, s->logits, (size_t)s->engine->rounds.vocab * sizeof(float));
    *out = copy;
    return KK_OK;
}

kk_status kk_session_fork_at(kk_session **out, kk_session *s, int32_t len, int32_t *evaluated,
                             kk_err *err) {
    *out = NULL;
    if (evaluated) *evaluated = 0;
    if (len < 0 || len > s->len)
        return kk_fail(err, KK_EINVAL, "a fork at %d of %d tokens", len, s->len);
    kk_session *copy;
    KK_TRY(kk_session_fork(&copy, s, err));
    const kk_status st = kk_session_rewind(copy, len, evaluated, err);
    if (st != KK_OK) {
        kk_session_free(copy);
        return st;
    }
    *out = copy;
    return KK_OK;
}

void kk_session_options(const kk_session *s, kk_session_opts *out) {
    const kk_session_keeps *k = &s->keeps;
    *out = (kk_session_opts){.ctx = s->ctx,
                             .kv_format = s->format,
                             .spec = s->spec,
                             .draft_max = s->draft_max,
                             .draft_fixed = s->draft_fixed,
                             .draft_ctx = s->draft_ctx,
                             .checkpoint_bytes = s->checkpoint_bytes,
                             .kv_sliding = k->kind[KK_SLIDING],
                             .kv_full = k->kind[KK_FULL],
                             .sink = k->sink ? k->sink : -1,
                             .window = k->window ? k->window : -1,
                             .chunk = k->chunk,
                             .latents = k->latents};
}

void kk_session_key_counts(const kk_session *s, kk_key_counts *out) { *out = s->counts; }

void kk_session_cache(const kk_session *s, kk_cache_use *out) {
    *out = (kk_cache_use){.rows = kk_cache_len(s->cache)};
    for (int k = 0; k < KK_LAYER_KINDS; k++)
        out->kv_bytes += kk_cache_bytes(s->cache, (kk_kind)k) +
                         (int64_t)kk_cache_sink_bytes(s->cache, (kk_kind)k);
}

int32_t kk_session_len(const kk_session *s) { return s->len; }
const int32_t *kk_session_tokens(const kk_session *s) { return s->tokens; }
int32_t kk_session_ctx(const kk_session *s) { return s->ctx; }
kk_spec kk_session_spec(const kk_session *s) { return s->spec; }

bool kk_session_other_weights(const kk_session *s) { return s->other_weights; }

bool kk_session_sampling(const kk_session *s, kk_sampling *out) {
    *out = s->sampling;
    return s->sampled;
}

bool kk_session_settled(const kk_session *s) {
    return s->len > 0 && kk_cache_len(s->cache) == s->len;
}

/* ---- marks under the lock --------------------------------------------------------------- */

kk_status kk_session_mark(kk_session *s, kk_session_marks *out, kk_err *err) {
    *out = (kk_session_marks){0};
    kk_engine_lock(s->engine);
    kk_status st = kk_mark_new(&out->cache, s->cache, err);
    if (st == KK_OK) st = kk_drafting_mark(&s->drafting, &out->drafting, err);
    kk_engine_unlock(s->engine);
    if (st != KK_OK) kk_session_unmark(s, out);
    return st;
}

void kk_session_unmark(kk_session *s, kk_session_marks *m) {
    if (m->cache) {
        kk_engine_lock(s->engine);
        kk_mark_free(m->cache);
        kk_drafting_unmark(&m->drafting);
        kk_engine_unlock(s->engine);
    }
    *m = (kk_session_marks){0};
}

int64_t kk_session_marks_bytes(const kk_session_marks *m, const kk_session_marks *older) {
    return kk_mark_bytes(m->cache, older ? older->cache : NULL) +
           kk_drafting_marks_bytes(&m->drafting, older ? &older->drafting : NULL);
}

void kk_session_go_back(kk_session *s, const kk_session_marks *m) {
    kk_engine_lock(s->engine);
    if (m->cache) {
        kk_mark_restore(m->cache, s->cache);
    } else {
        (void)kk_cache_truncate(s->cache, 0);
        kk_cache_commit(s->cache, 0);
    }
    kk_drafting_restore(&s->drafting, &m->drafting);
    kk_engine_unlock(s->engine);
}

/* ---- evaluation ------------------------------------------------------------------------- */

/* One forward, and what proposers make of its rows.  The row of logits goes through the engine's
 * scratch, so that the session's own stay what they were if a later step fails. */
static kk_status run_chunk(kk_session *s, int32_t n, bool with_logits, kk_err *err) {
    kk_engine *e = s->engine;
    const int64_t at = kk_cache_len(s->cache);
    kk_gemma4_group group = {.cache = s->cache,
                             .layout = s->layout,
                             .tokens = s->tokens + at,
                             .n_rows = n,
                             .n_logits = with_logits,
                             .counts = &s->counts};
    const kk_gemma4_forward_args args = {.groups = &group,
                                         .n_groups = 1,
                                         .tapped = e->rounds.tapped,
                                         .n_tapped = e->rounds.n_tapped,
                                         .restorer = e->restorer};
    kk_taps taps;
    KK_TRY(kk_drafting_reserve(&s->drafting, group.tokens, n, &taps, err));
    group.taps = taps.buf;
    group.tap_row = taps.row;
    KK_TRY(kk_cache_reserve(s->cache, n, err));
    KK_TRY(kk_gemma4_forward(e->model, &args, err));
    if (with_logits) KK_TRY(kk_gemma4_logits(e->model, 0, e->row, err));
    if (with_logits && !kk_hash_finite(e->row, (size_t)e->rounds.vocab)) {
        group.taps = NULL;
        group.counts = NULL;
        return kk_gemma4_diagnose(e->model, &args, err);
    }
    /* What fails is this session's, and its rows are not committed. */
    if (!with_logits && !e->backend->queues) KK_TRY(e->backend->instruments->sync(e->dev, err));
    KK_TRY(kk_drafting_absorb(&s->drafting, n, err));
    if (with_logits) memcpy(s->logits, e->row, (size_t)e->rounds.vocab * sizeof *e->row);
    return KK_OK;
}

typedef struct {
    int32_t from, end; /* tokens[from .. end) are evaluated */
    bool with_logits;
    kk_progress progress;
    void *user;
    /* NULL, or marks to be taken before a chunk that alone would have been the only one is cut, as
     * there must be something to go back to when a later part fails. */
    kk_session_marks *before;
} evaluation;

/* Takes those marks; for want of memory the chunk is not cut instead. */
static bool may_cut(kk_session *s, const evaluation *v) {
    const int64_t at = kk_cache_len(s->cache);
    const bool needs = v->before && !v->before->cache && at == v->from && at > 0;
    return !needs || kk_session_mark(s, v->before, NULL) == KK_OK;
}

/* Up to `most` of the next rows; *n says how many, *waited whether somebody waited for the engine's
 * lock meanwhile.  Rounds do not: the schedule starts none while a chunk runs. */
static kk_status evaluate_chunk(kk_session *s, const evaluation *v, int32_t most, int32_t *n,
                                bool *waited, kk_err *err) {
    const int64_t at = kk_cache_len(s->cache);
    *n = kk_session_pass(s, at, kk_schedule_chunk(s, most));
    if (*n < most && !may_cut(s, v)) *n = most;
    const double from = kk_now();
    kk_engine_lock(s->engine);
    const uint64_t tickets = kk_fair_lock_tickets(&s->engine->lock);
    const kk_status st = run_chunk(s, *n, v->with_logits && at + *n == v->end, err);
    kk_cache_commit(s->cache, st == KK_OK ? at + *n : at);
    if (st != KK_OK) kk_drafting_commit(&s->drafting, 0);
    *waited = kk_fair_lock_tickets(&s->engine->lock) != tickets;
    kk_engine_unlock(s->engine);
    kk_schedule_chunk_done(s, st == KK_OK ? *n : 0, kk_now() - from);
    return st;
}

/* A request that arrives takes the engine's lock a dozen times before its own tokens are evaluated
 * (to open a session, to fork it, to mark it), each time for microseconds.  If a prompt went on as
 * soon as the lock is free, each of them would wait for a chunk.  So after a chunk during which
 * somebody waited, the prompt pauses until nobody has taken the lock for a moment. */
static void let_others_in(kk_engine *e) {
    enum { MOMENTS = 20 };
    const struct timespec moment = {.tv_nsec = 100 * 1000};
    uint64_t before, now = kk_fair_lock_tickets(&e->lock);
    int i = 0;
    do {
        before = now;
        nanosleep(&moment, NULL);
        now = kk_fair_lock_tickets(&e->lock);
    } while (now != before && ++i < MOMENTS);
}

static kk_status evaluate(kk_session *s, const evaluation *v, kk_err *err) {
    const int32_t from = v->from, end = v->end, most = s->engine->rounds.max_rows;
    for (int32_t at = from, n; at < end; at += n) {
        bool waited;
        n = kk_session_pass(s, at, end - at < most ? end - at : most);
        KK_TRY(evaluate_chunk(s, v, n, &n, &waited, err));
        if (waited && at + n < end) let_others_in(s->engine);
        /* After the last chunk there is nothing left to stop. */
        if (v->progress && !v->progress(v->user, at + n - from, end - from) && at + n < end)
            return kk_fail(err, KK_ESTOPPED, "stopped after %d of %d tokens", at + n - from,
                           end - from);
    }
    return KK_OK;
}

kk_status kk_session_evaluate(kk_session *s, int32_t end, bool with_logits, kk_progress progress,
                              void *user, kk_err *err) {
    const evaluation v = {.from = (int32_t)kk_cache_len(s->cache),
                          .end = end,
                          .with_logits = with_logits,
                          .progress = progress,
                          .user = user};
    return evaluate(s, &v, err);
}

/* ---- append ----------------------------------------------------------------------------- */

static kk_status check_tokens(const kk_session *s, const int32_t *tokens, size_t n, kk_err *err) {
    if (n > (size_t)(s->ctx - s->len) && s->len == 0)
        return kk_fail(err, KK_ECONTEXT,
                       "the prompt has %zu tokens, the context holds %d: raise `ctx`", n, s->ctx);
    if (n > (size_t)(s->ctx - s->len))
        return kk_fail(err, KK_ECONTEXT,
                       "%zu tokens after %d are too many, the context holds %d: raise `ctx`", n,
                       s->len, s->ctx);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->engine->rounds.vocab)
            return kk_fail(err, KK_EINVAL, "token %zu is %d, the vocabulary has %d", i, tokens[i],
                           s->engine->rounds.vocab);
    return KK_OK;
}

kk_status kk_session_append(kk_session *s, const int32_t *tokens, size_t n, kk_progress progress,
                            void *user, kk_err *err) {
    KK_TRY(check_tokens(s, tokens, n, err));
    if (n == 0) return KK_OK;
    const int32_t cached = (int32_t)kk_cache_len(s->cache), end = s->len + (int32_t)n;
    const bool several = end - cached > kk_session_pass(s, cached, s->engine->rounds.max_rows);
    kk_session_marks before = {0};
    if (several && cached > 0) KK_TRY(kk_session_mark(s, &before, err));
    memcpy(s->tokens + s->len, tokens, n * sizeof *tokens);
    const evaluation v = {.from = cached,
                          .end = end,
                          .with_logits = true,
                          .progress = progress,
                          .user = user,
                          .before = &before};
    const kk_status st = evaluate(s, &v, err);
    if (st == KK_OK)
        s->len = end;
    else if (several || kk_cache_len(s->cache) != cached)
        kk_session_go_back(s, &before);
    kk_session_unmark(s, &before);
    return st;
}

kk_status kk_session_logits(kk_session *s, const float **logits, kk_err *err) {
    *logits = NULL;
    if (s->len == 0) return kk_fail(err, KK_EINVAL, "an empty session has no logits");
    if (!kk_session_settled(s)) KK_TRY(kk_session_evaluate(s, s->len, true, NULL, NULL, err));
    *logits = s->logits;
    return KK_OK;
}
