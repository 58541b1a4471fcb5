/* drafting.c - see drafting.h. */
#include "propose/drafting.h"

#include <assert.h>

/* ---- life ------------------------------------------------------------------------------- */

static kk_status check_member(const kk_drafting *d, const kk_proposer *p, kk_err *err) {
    if (d->n == KK_MAX_PROPOSERS)
        return kk_fail(err, KK_EINVAL, "%s would be proposer %d of a session: %d at most", p->name,
                       d->n + 1, KK_MAX_PROPOSERS);
    for (int32_t i = 0; i < d->n; i++)
        if (p->wants_taps && d->member[i].proposer->wants_taps)
            return kk_fail(err, KK_EINVAL, "%s and %s both want the verifier's hidden states",
                           d->member[i].proposer->name, p->name);
    assert(!p->absorb || p->wants_taps);
    return KK_OK;
}

kk_status kk_drafting_add(kk_drafting *d, const kk_proposer *p, const kk_proposer_opts *opts,
                          kk_acceptance *known, kk_err *err) {
    static const kk_acceptance nothing = {0};
    KK_TRY(check_member(d, p, err));
    kk_drafting_member *m = &d->member[d->n];
    *m = (kk_drafting_member){.proposer = p, .known = known};
    if (p->open) KK_TRY(p->open(&m->self, opts, err));
    kk_acceptance_begin(&m->seen, known ? known : &nothing);
    d->n++;
    return KK_OK;
}

void kk_drafting_close(kk_drafting *d) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->close) d->member[i].proposer->close(d->member[i].self);
    *d = (kk_drafting){0};
}

/* ---- rows come in ----------------------------------------------------------------------- */

kk_status kk_drafting_reserve(kk_drafting *d, const int32_t *tokens, int32_t n, kk_taps *taps,
                              kk_err *err) {
    *taps = (kk_taps){0};
    for (int32_t i = 0; i < d->n; i++) {
        const kk_drafting_member *m = &d->member[i];
        kk_taps unwanted = {0};
        if (!m->proposer->reserve) continue;
        KK_TRY(m->proposer->reserve(m->self, tokens, n, m->proposer->wants_taps ? taps : &unwanted,
                                    err));
    }
    return KK_OK;
}

void kk_drafting_commit(kk_drafting *d, int32_t n) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->commit) d->member[i].proposer->commit(d->member[i].self, n);
}

/* The one that may fail comes first: the others cannot, and nothing has to be undone. */
kk_status kk_drafting_absorb(kk_drafting *d, int32_t n, kk_err *err) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->absorb)
            KK_TRY(d->member[i].proposer->absorb(d->member[i].self, n, err));
    for (int32_t i = 0; i < d->n; i++) {
        const kk_proposer *p = d->member[i].proposer;
        if (!p->absorb && p->commit) p->commit(d->member[i].self, n);
    }
    return KK_OK;
}

kk_status kk_drafting_flush(kk_drafting *d, kk_err *err) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->flush)
            KK_TRY(d->member[i].proposer->flush(d->member[i].self, err));
    return KK_OK;
}

/* ---- and are taken back ----------------------------------------------------------------- */

bool kk_drafting_can_truncate(const kk_drafting *d, int64_t rows) {
    for (int32_t i = 0; i < d->n; i++) {
        const kk_proposer *p = d->member[i].proposer;
        if (p->can_truncate && !p->can_truncate(d->member[i].self, rows)) return false;
    }
    return true;
}

void kk_drafting_truncate(kk_drafting *d, int64_t rows) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->truncate)
            d->member[i].proposer->truncate(d->member[i].self, rows);
}

bool kk_drafting_stands_for(const kk_drafting *d, int64_t rows) {
    for (int32_t i = 0; i < d->n; i++) {
        const kk_proposer *p = d->member[i].proposer;
        if (p->rows && p->rows(d->member[i].self) != rows) return false;
    }
    return true;
}

kk_status kk_drafting_mark(kk_drafting *d, kk_drafting_marks *out, kk_err *err) {
    *out = (kk_drafting_marks){0};
    for (int32_t i = 0; i < d->n; i++) {
        const kk_drafting_member *m = &d->member[i];
        if (!m->proposer->mark) continue;
        out->of[i].proposer = m->proposer;
        const kk_status st = m->proposer->mark(m->self, &out->of[i].mark, err);
        if (st == KK_OK) continue;
        kk_drafting_unmark(out);
        return st;
    }
    return KK_OK;
}

void kk_drafting_unmark(kk_drafting_marks *m) {
    for (int i = 0; i < KK_MAX_PROPOSERS; i++)
        if (m->of[i].mark) m->of[i].proposer->unmark(m->of[i].mark);
    *m = (kk_drafting_marks){0};
}

int64_t kk_drafting_marks_bytes(const kk_drafting_marks *m, const kk_drafting_marks *older) {
    int64_t sum = 0;
    for (int i = 0; i < KK_MAX_PROPOSERS; i++)
        if (m->of[i].mark && m->of[i].proposer->mark_bytes)
            sum += m->of[i].proposer->mark_bytes(m->of[i].mark, older ? older->of[i].mark : NULL);
    return sum;
}

void kk_drafting_restore(kk_drafting *d, const kk_drafting_marks *m) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->restore)
            d->member[i].proposer->restore(d->member[i].self, m->of[i].mark);
}

/* ---- and what is kept of them ----------------------------------------------------------- */

int kk_drafting_saved(const kk_drafting *d) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].proposer->save) return i;
    return -1;
}

void kk_drafting_pool(const kk_drafting *d) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->member[i].known) kk_acceptance_pool(d->member[i].known, &d->member[i].seen);
}

void kk_drafting_inherit(kk_drafting *d, const kk_drafting *from) {
    for (int32_t i = 0; i < d->n && i < from->n; i++) d->member[i].seen = from->member[i].seen;
}
