/* session.c - a session's life, and the evaluation of tokens; see session.h.
 *
 * Appending is atomic.  One chunk is committed only when it is whole; before several, the cache
 * is marked, and a failure or a stop goes back to the mark. */
#include "engine/session.h"

#include <string.h>

enum { DEFAULT_CTX = 4096 };

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
    if (o->kv_format != KK_KV_BF16 && o->kv_format != KK_KV_F32)
        return kk_fail(err, KK_EINVAL, "no K/V format has the number %d", o->kv_format);
    return KK_OK;
}

static kk_status open_cache(kk_session *s, kk_err *err) {
    kk_engine *e = s->engine;
    const kk_cache_opts how = {
        .layout = s->layout,
        .pool = {e->pool[s->format][0], e->pool[s->format][1]},
        .policy = {[KK_KIND_SLIDING] = &kk_kv_native, [KK_KIND_FULL] = &kk_kv_exact},
        .reach = {[KK_KIND_SLIDING] = {.window = s->layout->shape.window}},
        .max_len = s->ctx,
        .max_block = e->rounds.max_rows};
    kk_engine_lock(e);
    const kk_status st = kk_cache_new(&s->cache, &how, err);
    kk_engine_unlock(e);
    return st;
}

kk_status kk_session_new(kk_session **out, kk_engine *e, const kk_session_opts *opts, kk_err *err) {
    static const kk_session_opts standard = {0};
    *out = NULL;
    if (!opts) opts = &standard;
    KK_TRY(check_opts(e, opts, err));
    kk_session *s = kk_zalloc(sizeof *s);
    if (!s) return kk_fail(err, KK_ENOMEM, "no memory for a session");
    const int32_t context = kk_engine_config(e)->context;
    s->engine = e;
    s->format = opts->kv_format;
    s->layout = &e->layout[opts->kv_format];
    s->ctx = opts->ctx ? opts->ctx : context < DEFAULT_CTX ? context : DEFAULT_CTX;
    s->proposer = kk_propose_none;
    s->tokens = kk_malloc((size_t)s->ctx * sizeof *s->tokens);
    s->logits = kk_session_row_take(s);
    kk_status st = s->tokens && s->logits
                       ? open_cache(s, err)
                       : kk_fail(err, KK_ENOMEM, "no memory for a session of %d tokens", s->ctx);
    kk_engine_lock(e);
    e->n_sessions++;
    kk_engine_unlock(e);
    if (st != KK_OK) {
        kk_session_free(s);
        return st;
    }
    *out = s;
    return KK_OK;
}

void kk_session_free(kk_session *s) {
    if (!s) return;
    kk_session_drop_checkpoints(s, -1);
    kk_session_row_give(s, s->logits);
    kk_free(s->tokens);
    kk_engine_lock(s->engine);
    kk_cache_free(s->cache);
    s->engine->n_sessions--;
    kk_engine_unlock(s->engine);
    kk_free(s);
}

kk_status kk_session_fork(kk_session **out, kk_session *s, kk_err *err) {
    *out = NULL;
    kk_session *copy;
    kk_mark *m;
    const kk_session_opts same = {.ctx = s->ctx, .kv_format = s->format};
    KK_TRY(kk_session_new(&copy, s->engine, &same, err));
    const kk_status st = kk_session_mark(s, &m, err);
    if (st != KK_OK) {
        kk_session_free(copy);
        return st;
    }
    kk_session_go_back(copy, m);
    kk_session_unmark(s, m);
    memcpy(copy->tokens, s->tokens, (size_t)s->len * sizeof *s->tokens);
    copy->len = s->len;
    copy->proposer = s->proposer;
    if (kk_session_settled(s))
        memcpy(copy->logits, s->logits, (size_t)s->engine->rounds.vocab * sizeof(float));
    *out = copy;
    return KK_OK;
}

int32_t kk_session_len(const kk_session *s) { return s->len; }
const int32_t *kk_session_tokens(const kk_session *s) { return s->tokens; }
int32_t kk_session_ctx(const kk_session *s) { return s->ctx; }

bool kk_session_settled(const kk_session *s) {
    return s->len > 0 && kk_cache_len(s->cache) == s->len;
}

/* ---- marks under the lock --------------------------------------------------------------- */

kk_status kk_session_mark(kk_session *s, kk_mark **out, kk_err *err) {
    kk_engine_lock(s->engine);
    const kk_status st = kk_mark_new(out, s->cache, err);
    kk_engine_unlock(s->engine);
    return st;
}

void kk_session_unmark(kk_session *s, kk_mark *m) {
    if (!m) return;
    kk_engine_lock(s->engine);
    kk_mark_free(m);
    kk_engine_unlock(s->engine);
}

void kk_session_go_back(kk_session *s, const kk_mark *m) {
    kk_engine_lock(s->engine);
    if (m) {
        kk_mark_restore(m, s->cache);
    } else {
        (void)kk_cache_truncate(s->cache, 0);
        kk_cache_commit(s->cache, 0);
    }
    kk_engine_unlock(s->engine);
}

/* ---- evaluation ------------------------------------------------------------------------- */

/* One forward.  The row of logits goes through the engine's scratch, so that the session's own
 * stay what they were if reading fails. */
static kk_status run_chunk(kk_session *s, int32_t n, bool with_logits, kk_err *err) {
    kk_engine *e = s->engine;
    const int64_t at = kk_cache_len(s->cache);
    const kk_gemma4_group group = {.cache = s->cache,
                                   .layout = s->layout,
                                   .tokens = s->tokens + at,
                                   .n_rows = n,
                                   .n_logits = with_logits};
    const kk_gemma4_forward_args args = {.groups = &group, .n_groups = 1};
    KK_TRY(kk_cache_reserve(s->cache, n, err));
    KK_TRY(kk_gemma4_forward(e->model, &args, err));
    if (!with_logits) return KK_OK;
    KK_TRY(kk_gemma4_logits(e->model, 0, e->row, err));
    memcpy(s->logits, e->row, (size_t)e->rounds.vocab * sizeof *e->row);
    return KK_OK;
}

static kk_status evaluate_chunk(kk_session *s, int32_t n, bool with_logits, kk_err *err) {
    const int64_t at = kk_cache_len(s->cache);
    kk_engine_lock(s->engine);
    const kk_status st = run_chunk(s, n, with_logits, err);
    kk_cache_commit(s->cache, st == KK_OK ? at + n : at);
    kk_engine_unlock(s->engine);
    return st;
}

kk_status kk_session_evaluate(kk_session *s, int32_t end, bool with_logits, kk_progress progress,
                              void *user, kk_err *err) {
    const int32_t from = (int32_t)kk_cache_len(s->cache), most = s->engine->rounds.max_rows;
    for (int32_t at = from, n; at < end; at += n) {
        n = end - at < most ? end - at : most;
        KK_TRY(evaluate_chunk(s, n, with_logits && at + n == end, err));
        /* After the last chunk there is nothing left to stop. */
        if (progress && !progress(user, at + n - from, end - from) && at + n < end)
            return kk_fail(err, KK_ESTOPPED, "stopped after %d of %d tokens", at + n - from,
                           end - from);
    }
    return KK_OK;
}

/* ---- append ----------------------------------------------------------------------------- */

static kk_status check_tokens(const kk_session *s, const int32_t *tokens, size_t n, kk_err *err) {
    if (n > (size_t)(s->ctx - s->len) && s->len == 0)
        return kk_fail(err, KK_ECONTEXT,
                       "the prompt has %zu tokens, the context holds %d: raise -c", n, s->ctx);
    if (n > (size_t)(s->ctx - s->len))
        return kk_fail(err, KK_ECONTEXT,
                       "%zu tokens after %d are too many, the context holds %d: raise -c", n,
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
    const bool several = end - cached > s->engine->rounds.max_rows;
    kk_mark *before = NULL;
    if (several && cached > 0) KK_TRY(kk_session_mark(s, &before, err));
    memcpy(s->tokens + s->len, tokens, n * sizeof *tokens);
    const kk_status st = kk_session_evaluate(s, end, true, progress, user, err);
    if (st == KK_OK)
        s->len = end;
    else if (several)
        kk_session_go_back(s, before);
    kk_session_unmark(s, before);
    return st;
}

kk_status kk_session_logits(kk_session *s, const float **logits, kk_err *err) {
    *logits = NULL;
    if (s->len == 0) return kk_fail(err, KK_EINVAL, "an empty session has no logits");
    if (!kk_session_settled(s)) KK_TRY(kk_session_evaluate(s, s->len, true, NULL, NULL, err));
    *logits = s->logits;
    return KK_OK;
}
