/* rewind.c - checkpoints, and going back to an earlier point of the timeline; see session.h.
 *
 * Going back to len leaves its last token as the anchor, unless a checkpoint of exactly len kept
 * that token's logits.  The ways there, cheapest first: such a checkpoint; the rows themselves,
 * as far as the sliding layers still hold them; the nearest earlier checkpoint, or the start,
 * and an evaluation of the rest. */
#include <string.h>

#include "engine/session.h"

static void drop(kk_session *s, kk_checkpoint_mark *c) {
    kk_session_unmark(s, &c->marks);
    kk_session_row_give(s, c->logits);
    *c = (kk_checkpoint_mark){0};
}

void kk_session_drop_checkpoints(kk_session *s, int32_t after_len) {
    while (s->n_checkpoints > 0 && s->checkpoints[s->n_checkpoints - 1].len > after_len)
        drop(s, &s->checkpoints[--s->n_checkpoints]);
}

static kk_status take_checkpoint(kk_session *s, kk_checkpoint_mark *out, kk_err *err) {
    *out = (kk_checkpoint_mark){.len = s->len};
    if (kk_session_settled(s)) {
        out->logits = kk_session_row_take(s);
        if (!out->logits) return kk_fail(err, KK_ENOMEM, "no memory for a checkpoint");
        memcpy(out->logits, s->logits, (size_t)s->engine->rounds.vocab * sizeof(float));
    }
    const kk_status st = kk_session_mark(s, &out->marks, err);
    if (st != KK_OK) drop(s, out);
    return st;
}

kk_status kk_session_checkpoint(kk_session *s, kk_err *err) {
    const int32_t n = s->n_checkpoints;
    if (s->len == 0 || (n > 0 && s->checkpoints[n - 1].len == s->len)) return KK_OK;
    kk_checkpoint_mark taken;
    KK_TRY(take_checkpoint(s, &taken, err));
    if (n == KK_MAX_CHECKPOINTS) {
        drop(s, &s->checkpoints[0]);
        memmove(&s->checkpoints[0], &s->checkpoints[1], (size_t)(n - 1) * sizeof taken);
        s->n_checkpoints--;
    }
    s->checkpoints[s->n_checkpoints++] = taken;
    return KK_OK;
}

static const kk_checkpoint_mark *nearest(const kk_session *s, int32_t len) {
    for (int32_t i = s->n_checkpoints - 1; i >= 0; i--)
        if (s->checkpoints[i].len <= len) return &s->checkpoints[i];
    return NULL;
}

static bool truncate_rows(kk_session *s, int32_t rows) {
    kk_engine_lock(s->engine);
    const bool done = rows <= kk_cache_len(s->cache) &&
                      (!s->context || kk_context_reaches(s->context, rows)) &&
                      kk_cache_truncate(s->cache, rows);
    if (done) {
        kk_cache_commit(s->cache, rows);
        if (s->context) kk_context_truncate(s->context, rows);
    }
    kk_engine_unlock(s->engine);
    return done;
}

static void adopt(kk_session *s, const kk_checkpoint_mark *c) {
    kk_session_go_back(s, &c->marks);
    if (c->logits) memcpy(s->logits, c->logits, (size_t)s->engine->rounds.vocab * sizeof(float));
}

/* The long way.  The present state is held by a mark until the new one is whole. */
static kk_status evaluate_again(kk_session *s, const kk_checkpoint_mark *from, int32_t rows,
                                int32_t *evaluated, kk_err *err) {
    static const kk_session_marks start = {0};
    kk_session_marks before;
    KK_TRY(kk_session_mark(s, &before, err));
    kk_session_go_back(s, from ? &from->marks : &start);
    *evaluated = rows - (int32_t)kk_cache_len(s->cache);
    const kk_status st = kk_session_evaluate(s, rows, false, NULL, NULL, err);
    if (st != KK_OK) {
        kk_session_go_back(s, &before);
        *evaluated = 0;
    }
    kk_session_unmark(s, &before);
    return st;
}

kk_status kk_session_rewind(kk_session *s, int32_t len, int32_t *evaluated, kk_err *err) {
    int32_t cost = 0;
    if (evaluated) *evaluated = 0;
    if (len < 0 || len > s->len)
        return kk_fail(err, KK_EINVAL, "rewind to %d of %d tokens", len, s->len);
    if (len == s->len) return KK_OK;
    const int32_t rows = len > 0 ? len - 1 : 0;
    const kk_checkpoint_mark *c = nearest(s, len);
    if (c && c->len == len)
        adopt(s, c);
    else if (!truncate_rows(s, rows))
        KK_TRY(evaluate_again(s, c, rows, &cost, err));
    s->len = len;
    kk_session_drop_checkpoints(s, len);
    if (evaluated) *evaluated = cost;
    return KK_OK;
}
