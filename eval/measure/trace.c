/* trace.c - a proposer around the drafter's; see trace.h. */
#include "eval/measure/trace.h"

#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

/* It is the drafter in all but what is drafted: the session's state stays the drafter's own. */
struct kk_trace {
    kk_proposer as; /* first, so that draft finds the rest */
    kk_trace_opts opts;
    const kk_proposer *drafter;
    int32_t vocab, start, n;
    const int32_t *ids;
    kk_engine *engine;
    kk_buf *record;  /* the ids on the device, for drafts that stay there; NULL: none */
    int32_t n_space; /* ids that it has space for */
    uint64_t state;
};

kk_status kk_trace_parse(kk_trace_opts *out, const char *text, kk_err *err) {
    static const char start[] = "geom:";
    *out = (kk_trace_opts){0};
    char *end = NULL;
    const bool begins = strncmp(text, start, sizeof start - 1) == 0;
    const double p = begins ? strtod(text + sizeof start - 1, &end) : 0;
    if (begins && *end == ':' && end[1] >= '0' && end[1] <= '9' && p > 0 && p < 1) {
        char *last;
        const uint64_t seed = strtoull(end + 1, &last, 10);
        if (*last == 0) {
            *out = (kk_trace_opts){.p = p, .seed = seed};
            return KK_OK;
        }
    }
    return kk_fail(err, KK_EINVAL,
                   "an acceptance trace is geom:P:SEED with P between 0 and 1, not '%.40s'", text);
}

double kk_trace_expected(const kk_trace_opts *opts, int32_t n) {
    double sum = 0, all = 1;
    for (int32_t i = 0; i < n; i++) sum += all *= opts->p;
    return sum;
}

/* Uniform in [0, 1). */
static double draw(kk_trace *t) {
    uint64_t x = t->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

/* One draw a round, whatever length was asked for, so that the acceptance is the same for all. */
static int32_t draw_length(kk_trace *t) {
    int32_t n = 0;
    while (n < KK_MAX_DRAFT && draw(t) < t->opts.p) n++;
    return n;
}

static void put_right(kk_trace *t, kk_draft *d) {
    const int32_t at = d->len - t->start, right = draw_length(t);
    for (int32_t i = 0; i < d->n && i <= right; i++) {
        if (at + i < 0 || at + i >= t->n) return; /* beyond the record */
        const int32_t id = t->ids[at + i];
        d->out[i] = i < right ? id : (id + 1) % t->vocab;
    }
}

static kk_status draft(const kk_proposer *me, kk_draft *drafts, int32_t n, kk_err *err) {
    kk_trace *t = (kk_trace *)me;
    for (int32_t i = 0; i < n; i++) {
        KK_TRY(t->drafter->draft(t->drafter, &drafts[i], 1, err));
        put_right(t, &drafts[i]);
    }
    return KK_OK;
}

/* A draft that the host does not see is made right where it lies. */
static kk_status enqueue(const kk_proposer *me, void *self, kk_ahead *a, kk_err *err) {
    kk_trace *t = (kk_trace *)me;
    KK_TRY(t->drafter->enqueue(t->drafter, self, a, err));
    if (a->n == 0 || !t->record) return KK_OK;
    const kk_replay_args r = {.ids = a->ids,
                              .ids_at = 1,
                              .n = a->n,
                              .record = t->record,
                              .n_record = t->n,
                              .at = a->start + 1 - t->start,
                              .shift = a->shift,
                              .right = draw_length(t),
                              .vocab = t->vocab};
    return t->engine->backend->instruments->replay(t->engine->dev, &r, err);
}

kk_status kk_trace_new(kk_trace **out, kk_session *s, const kk_trace_opts *opts, kk_err *err) {
    *out = NULL;
    const bool drafter = s->drafting.n > 0 && s->drafting.member[0].spec == KK_SPEC_DFLASH;
    kk_drafting_member *m = &s->drafting.member[0];
    if (!drafter) return kk_fail(err, KK_EINVAL, "a trace needs a session that drafts by dflash");
    kk_trace *t = kk_zalloc(sizeof *t);
    if (!t) return kk_fail(err, KK_ENOMEM, "no memory for a trace");
    t->as = *m->proposer;
    t->as.draft = draft;
    t->as.chose = NULL; /* what is right is the trace's to say, whatever a short head knows */
    if (t->as.enqueue) t->as.enqueue = s->engine->backend->instruments->replay ? enqueue : NULL;
    t->engine = s->engine;
    t->drafter = m->proposer;
    t->opts = *opts;
    t->vocab = s->engine->rounds.vocab;
    m->proposer = &t->as;
    *out = t;
    return KK_OK;
}

static void drop_record(kk_trace *t) {
    if (t->record) t->engine->backend->buf_free(t->engine->dev, t->record);
    t->record = NULL;
    t->n_space = 0;
}

void kk_trace_free(kk_trace *t) {
    if (!t) return;
    kk_engine_lock(t->engine);
    drop_record(t);
    kk_engine_unlock(t->engine);
    kk_free(t);
}

static kk_status copy_record(kk_trace *t, const int32_t *ids, int32_t n, kk_err *err) {
    const kk_backend *be = t->engine->backend;
    const size_t bytes = (size_t)n * sizeof *ids;
    if (n > t->n_space) {
        drop_record(t);
        KK_TRY(be->buf_new(t->engine->dev, KK_MEM_WORKSPACE, bytes, &t->record, err));
        t->n_space = n;
    }
    return n ? be->write(t->engine->dev, t->record, 0, ids, bytes, err) : KK_OK;
}

kk_status kk_trace_follow(kk_trace *t, int32_t start, const int32_t *ids, int32_t n,
                          uint64_t stream, kk_err *err) {
    kk_engine_lock(t->engine);
    const kk_status st = t->as.enqueue ? copy_record(t, ids, n, err) : KK_OK;
    kk_engine_unlock(t->engine);
    if (st != KK_OK) return st;
    t->start = start;
    t->ids = ids;
    t->n = n;
    t->state = t->opts.seed * 0xd1342543de82ef95u + stream * 0x2545f4914f6cdd1du;
    return KK_OK;
}
