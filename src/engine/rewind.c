/* rewind.c - checkpoints, and going back to an earlier point of the timeline; see session.h.
 *
 * Going back to len leaves its last token as the anchor, unless a checkpoint of exactly len kept
 * that token's logits.  The ways there, cheapest first: such a checkpoint; the rows themselves,
 * as far as the sliding layers still hold them; the nearest earlier checkpoint, or the start,
 * and an evaluation of the rest.
 *
 * A checkpoint costs nothing when it is taken, since the session holds its pages too, and a window
 * of pages once the session has gone on.  It is charged for that window at once, less what the
 * checkpoint before it holds as well, so that the budget is kept without looking at it again. */
#include <string.h>

#include "engine/session.h"

enum { FIRST_POINTS = 8, MOST_POINTS = 4096 };

/* ---- the list --------------------------------------------------------------------------- */

static void drop(kk_session *s, kk_point *p) {
    kk_engine_lock(s->engine);
    const bool last = --p->refs == 0;
    kk_engine_unlock(s->engine);
    if (!last) return;
    kk_session_unmark(s, &p->marks);
    kk_session_row_give(s, p->logits);
    kk_free(p);
}

void kk_session_drop_checkpoints(kk_session *s, int32_t after_len) {
    while (s->n_points > 0 && s->points[s->n_points - 1]->len > after_len)
        drop(s, s->points[--s->n_points]);
    if (after_len >= 0) return;
    kk_free(s->points);
    s->points = NULL;
    s->cap_points = 0;
}

static kk_status grow(kk_session *s, int32_t n, kk_err *err) {
    if (n <= s->cap_points) return KK_OK;
    int32_t cap = s->cap_points ? s->cap_points : FIRST_POINTS;
    while (cap < n) cap *= 2;
    kk_point **more = kk_calloc((size_t)cap, sizeof(kk_point *));
    if (!more) return kk_fail(err, KK_ENOMEM, "no memory for %d checkpoints", n);
    if (s->n_points) memcpy(more, s->points, (size_t)s->n_points * sizeof(kk_point *));
    kk_free(s->points);
    s->points = more;
    s->cap_points = cap;
    return KK_OK;
}

kk_status kk_session_share_checkpoints(kk_session *s, const kk_session *from, kk_err *err) {
    KK_TRY(grow(s, from->n_points, err));
    kk_engine_lock(s->engine);
    for (int32_t i = 0; i < from->n_points; i++) {
        s->points[i] = from->points[i];
        s->points[i]->refs++;
    }
    s->n_points = from->n_points;
    kk_engine_unlock(s->engine);
    return KK_OK;
}

int32_t kk_session_checkpoints(const kk_session *s, int32_t *lens, int32_t cap) {
    for (int32_t i = 0; i < s->n_points && i < cap; i++) lens[i] = s->points[i]->len;
    return s->n_points;
}

/* ---- the budget ------------------------------------------------------------------------- */

/* What checkpoint i may come to hold alone. */
static int64_t bytes_of(const kk_session *s, int32_t i) {
    const kk_point *p = s->points[i], *older = i > 0 ? s->points[i - 1] : NULL;
    int64_t bytes = p->logits ? (int64_t)s->engine->rounds.vocab * (int64_t)sizeof(float) : 0;
    return bytes + kk_session_marks_bytes(&p->marks, older ? &older->marks : NULL);
}

static int64_t bytes_of_all(const kk_session *s) {
    int64_t sum = 0;
    for (int32_t i = 0; i < s->n_points; i++) sum += bytes_of(s, i);
    return sum;
}

/* The one that a rewind to a place drawn at random would miss least, the newest apart: without it,
 * places up to the next one are evaluated from the one before it. */
static int32_t least_missed(const kk_session *s) {
    int32_t best = 0;
    double least = 0;
    for (int32_t i = 0; i + 1 < s->n_points; i++) {
        const int32_t len = s->points[i]->len, before = i > 0 ? s->points[i - 1]->len : 0;
        const double missed = (double)(len - before) * (s->points[i + 1]->len - len);
        if (i == 0 || missed < least) least = missed, best = i;
    }
    return best;
}

static void keep_budget(kk_session *s) {
    while (s->n_points > 1 &&
           (s->n_points > MOST_POINTS || bytes_of_all(s) > s->checkpoint_bytes)) {
        const int32_t i = least_missed(s);
        drop(s, s->points[i]);
        s->n_points--;
        memmove(&s->points[i], &s->points[i + 1], (size_t)(s->n_points - i) * sizeof(kk_point *));
    }
}

/* ---- taking one ------------------------------------------------------------------------- */

static kk_status take(kk_session *s, kk_point **out, kk_err *err) {
    kk_point *p = kk_zalloc(sizeof *p);
    if (!p) return kk_fail(err, KK_ENOMEM, "no memory for a checkpoint");
    *p = (kk_point){.refs = 1, .len = s->len};
    kk_status st = KK_OK;
    if (kk_session_settled(s)) {
        p->logits = kk_session_row_take(s);
        if (p->logits)
            memcpy(p->logits, s->logits, (size_t)s->engine->rounds.vocab * sizeof(float));
        else
            st = kk_fail(err, KK_ENOMEM, "no memory for a checkpoint");
    }
    if (st == KK_OK) st = kk_session_mark(s, &p->marks, err);
    if (st != KK_OK) {
        drop(s, p);
        return st;
    }
    *out = p;
    return KK_OK;
}

kk_status kk_session_checkpoint(kk_session *s, kk_err *err) {
    const int32_t n = s->n_points;
    if (s->len == 0 || s->checkpoint_bytes < 0 || (n > 0 && s->points[n - 1]->len == s->len))
        return KK_OK;
    kk_point *taken = NULL;
    KK_TRY(grow(s, n + 1, err));
    KK_TRY(take(s, &taken, err));
    s->points[s->n_points++] = taken;
    keep_budget(s);
    return KK_OK;
}

/* ---- going back ------------------------------------------------------------------------- */

static const kk_point *nearest(const kk_session *s, int32_t len) {
    for (int32_t i = s->n_points - 1; i >= 0; i--)
        if (s->points[i]->len <= len) return s->points[i];
    return NULL;
}

static bool truncate_rows(kk_session *s, int32_t rows) {
    kk_engine_lock(s->engine);
    const bool done = rows <= kk_cache_len(s->cache) &&
                      kk_drafting_can_truncate(&s->drafting, rows) &&
                      kk_cache_truncate(s->cache, rows);
    if (done) {
        kk_cache_commit(s->cache, rows);
        kk_drafting_truncate(&s->drafting, rows);
    }
    kk_engine_unlock(s->engine);
    return done;
}

static void adopt(kk_session *s, const kk_point *p) {
    kk_session_go_back(s, &p->marks);
    if (p->logits) memcpy(s->logits, p->logits, (size_t)s->engine->rounds.vocab * sizeof(float));
}

/* The long way.  The present state is held by a mark until the new one is whole. */
static kk_status evaluate_again(kk_session *s, const kk_point *from, int32_t rows,
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
    const kk_point *p = nearest(s, len);
    if (p && p->len == len)
        adopt(s, p);
    else if (!truncate_rows(s, rows))
        KK_TRY(evaluate_again(s, p, rows, &cost, err));
    s->len = len;
    kk_session_drop_checkpoints(s, len);
    if (evaluated) *evaluated = cost;
    return KK_OK;
}
