/* proposers.c - the table of proposers that may draft in an engine's sessions, and how a session
 * gets one; see engine.h and session.h.
 *
 * To add a proposer: its own files, its number in kakeya.h, and here its name and what the engine
 * has for it.  Sessions, rounds, checkpoints and saved files know proposers by this table alone. */
#include <assert.h>
#include <string.h>

#include "core/hash.h"
#include "engine/fingerprint.h"
#include "engine/session.h"
#include "propose/ngram.h"

enum { NGRAM_DRAFTS = 15 };

const char *kk_spec_name(kk_spec s) {
    switch (s) {
    case KK_SPEC_NONE: return "none";
    case KK_SPEC_DFLASH: return "dflash";
    case KK_SPEC_NGRAM: return "ngram";
    default: return "auto";
    }
}

/* ---- the table -------------------------------------------------------------------------- */

static kk_status add_taps(kk_rounds *all, const kk_proposer_entry *entry, kk_err *err) {
    assert(entry->taps && entry->n_taps > 0);
    if (all->n_tapped == 0) {
        all->tapped = entry->taps;
        all->n_tapped = entry->n_taps;
    }
    if (entry->n_taps == all->n_tapped &&
        memcmp(entry->taps, all->tapped, (size_t)entry->n_taps * sizeof *entry->taps) == 0)
        return KK_OK;
    return kk_fail(err, KK_EINVAL, "%s wants the outputs of other layers than an earlier proposer",
                   entry->proposer->name);
}

kk_status kk_engine_add_proposer(kk_engine *e, kk_spec as, const kk_proposer_entry *entry,
                                 kk_err *err) {
    if ((int)as <= KK_SPEC_NONE || (int)as >= KK_MOST_SPECS || e->proposers[as].proposer)
        return kk_fail(err, KK_EINVAL, "number %d is not free for the proposer %s", (int)as,
                       entry->proposer->name);
    assert(entry->standard >= 1 && entry->standard <= KK_MAX_DRAFT);
    if (entry->proposer->wants_taps) KK_TRY(add_taps(&e->rounds, entry, err));
    e->proposers[as] = *entry;
    return KK_OK;
}

kk_status kk_engine_open_proposers(kk_engine *e, kk_err *err) {
    const kk_proposer_entry ngram = {.proposer = &kk_propose_ngram, .standard = NGRAM_DRAFTS};
    KK_TRY(kk_engine_add_proposer(e, KK_SPEC_NGRAM, &ngram, err));
    if (!e->dflash) return KK_OK;
    const kk_drafter_config *c = kk_dflash_config(e->dflash);
    const kk_proposer_entry dflash = {.proposer = &kk_propose_dflash,
                                      .shared = &e->dflash_shared,
                                      .pages = &e->draft_pages,
                                      .taps = c->taps,
                                      .n_taps = c->n_taps,
                                      .most = c->block - 1,
                                      .standard = c->block - 1,
                                      .fingerprint = kk_engine_drafter_fingerprint,
                                      .identity = kk_engine_drafter_identity};
    return kk_engine_add_proposer(e, KK_SPEC_DFLASH, &dflash, err);
}

kk_proposer_entry *kk_engine_proposer(kk_engine *e, kk_spec spec) {
    const bool known = (int)spec > KK_SPEC_NONE && (int)spec < KK_MOST_SPECS;
    return known && e->proposers[spec].proposer ? &e->proposers[spec] : NULL;
}

uint64_t kk_engine_proposer_fingerprint(kk_engine *e, const kk_proposer_entry *entry) {
    if (entry->fingerprint) return entry->fingerprint(e);
    const char *name = entry->proposer->name;
    const uint64_t h = kk_hash_bytes(KK_HASH_START, name, strlen(name));
    return h ? h : 1;
}

uint64_t kk_engine_proposer_identity(kk_engine *e, const kk_proposer_entry *entry) {
    return entry->identity ? entry->identity(e) : 0;
}

/* ---- a session's ------------------------------------------------------------------------ */

/* AUTO is the drafter and what followed last time where there is a drafter, else plain decoding. */
static kk_spec chosen(const kk_engine *e, kk_spec spec) {
    return spec == KK_SPEC_AUTO && !e->dflash ? KK_SPEC_NONE : spec;
}

kk_spec kk_session_first_spec(kk_spec spec) { return spec == KK_SPEC_AUTO ? KK_SPEC_DFLASH : spec; }

/* Drafts that nothing is said of are as long as is good for the proposer. */
static int32_t most_of(const kk_proposer_entry *entry, int32_t draft_max) {
    if (draft_max == 0) return entry->standard;
    return entry->most && draft_max > entry->most ? entry->most : draft_max;
}

static kk_status check_entry(const kk_proposer_entry *entry, const kk_session_opts *o,
                             kk_err *err) {
    if (entry->most && o->draft_max > entry->most && o->spec != KK_SPEC_AUTO)
        return kk_fail(err, KK_EINVAL, "drafts of %d tokens: this drafter's block holds %d",
                       o->draft_max, entry->most);
    if (!entry->pages || entry->pages->fits[o->kv_format]) return KK_OK;
    kk_kv_layout unfit; /* for the reason it gives */
    return kk_kv_layout_init(&unfit, &entry->pages->layout[KK_KV_BF16].shape, o->kv_format, NULL,
                             err);
}

kk_status kk_session_check_spec(kk_engine *e, const kk_session_opts *o, kk_err *err) {
    const kk_proposer_entry *entry =
        kk_engine_proposer(e, kk_session_first_spec(chosen(e, o->spec)));
    if ((int)o->spec < 0 || (o->spec > KK_SPEC_NGRAM && !entry))
        return kk_fail(err, KK_EINVAL, "no proposer has the number %d", o->spec);
    if (o->spec > KK_SPEC_NONE && !entry)
        return kk_fail(err, KK_EINVAL, "drafting with %s needs a drafter, and none is loaded",
                       kk_spec_name(o->spec));
    if (o->draft_max < 0 || o->draft_max > KK_MAX_DRAFT)
        return kk_fail(err, KK_EINVAL, "drafts of %d tokens: 1 to %d", o->draft_max, KK_MAX_DRAFT);
    if (o->draft_max >= e->rounds.max_logits)
        return kk_fail(err, KK_EINVAL, "drafts of %d tokens: this engine gives logits of %d rows",
                       o->draft_max, e->rounds.max_logits);
    if (o->draft_ctx < 0)
        return kk_fail(err, KK_EINVAL, "a drafter's context of %d rows", o->draft_ctx);
    return entry ? check_entry(entry, o, err) : KK_OK;
}

static kk_status open_member(kk_session *s, kk_spec spec, kk_err *err) {
    kk_engine *e = s->engine;
    kk_proposer_entry *entry = kk_engine_proposer(e, spec);
    if (!entry) return KK_OK;
    kk_proposer_opts how = {.shared = entry->shared,
                            .backend = e->backend,
                            .dev = e->dev,
                            .mem = &e->mem,
                            .max_len = s->ctx,
                            .max_rows = e->rounds.max_rows,
                            .draft_ctx = s->draft_ctx};
    if (entry->pages) {
        how.layout = &entry->pages->layout[s->format];
        for (int k = 0; k < KK_KINDS; k++) how.pool[k] = entry->pages->pool[s->format][k];
    }
    KK_TRY(kk_drafting_add(&s->drafting, entry->proposer, &how, &entry->known, err));
    kk_drafting_member *m = &s->drafting.member[s->drafting.n - 1];
    m->spec = spec;
    m->most = most_of(entry, s->draft_max);
    return KK_OK;
}

/* Sessions that rebuild rows keep as many as a round drafts: the second of two proposers does
 * not raise the number that the first needs. */
static void fit_window(kk_session *s) {
    const kk_session_keeps *k = &s->keeps;
    const bool restored =
        k->kind[KK_SLIDING] == KK_KEEP_RESTORED || k->kind[KK_FULL] == KK_KEEP_RESTORED;
    const int32_t first = s->drafting.member[0].most;
    for (int32_t i = 1; restored && i < s->drafting.n; i++) {
        kk_drafting_member *m = &s->drafting.member[i];
        const int32_t fits = k->window - 1 > first ? k->window - 1 : first;
        if (m->most > fits) m->most = fits;
    }
}

kk_status kk_session_open_proposers(kk_session *s, kk_err *err) {
    kk_engine *e = s->engine;
    s->spec = chosen(e, s->spec);
    kk_engine_lock(e);
    kk_status st = open_member(s, kk_session_first_spec(s->spec), err);
    if (st == KK_OK && s->spec == KK_SPEC_AUTO) st = open_member(s, KK_SPEC_NGRAM, err);
    kk_engine_unlock(e);
    if (st != KK_OK || s->draft_max) return st;
    fit_window(s);
    for (int32_t i = 0; i < s->drafting.n; i++)
        if (s->drafting.member[i].most > s->draft_max) s->draft_max = s->drafting.member[i].most;
    return KK_OK;
}
