/* footprint.c - one engine after the other (without a projection, then with each), and on each of
 * them one length after the other, so that what an engine keeps for the longest context so far is
 * no longer than the session's at hand. */
#include "eval/tasks/footprint.h"

#include <stdio.h>
#include <string.h>

#include "eval/reports/report.h"
#include "eval/tasks/footprint_parts.h"

/* ---- ways to keep rows -------------------------------------------------------------------- */

/* Packed formats take heads and latents of whole groups; other models do without them. */
static bool fits(const kk_footprint *f, const kk_session_opts *s, int32_t rank) {
    return f->engine->pages.fits[s->kv_format] &&
           (!f->has_drafter || f->engine->draft_pages.fits[s->kv_format]) &&
           rank % kk_kv_format_get(s->latents)->group == 0;
}

static kk_status add_policy(kk_footprint *f, const char *name, kk_session_opts session,
                            int32_t engine, int32_t rank, kk_err *err) {
    if (!fits(f, &session, rank)) {
        json_array_append_new(f->left_out, json_string(name));
        return KK_OK;
    }
    if (f->n_policies == KK_FOOTPRINT_POLICIES)
        return kk_fail(err, KK_EINVAL, "more than %d ways to keep rows", KK_FOOTPRINT_POLICIES);
    kk_footprint_policy *p = &f->policy[f->n_policies++];
    *p = (kk_footprint_policy){.session = session, .engine = engine, .rank = rank};
    snprintf(p->name, sizeof p->name, "%s", name);
    return KK_OK;
}

/* Once as it is, and once with the drafter's context bounded. */
static kk_status add_pair(kk_footprint *f, const char *name, kk_session_opts session,
                          int32_t engine, int32_t rank, kk_err *err) {
    char bounded[64];
    KK_TRY(add_policy(f, name, session, engine, rank, err));
    if (!f->opts->draft_ctx) return KK_OK;
    snprintf(bounded, sizeof bounded, "%.40s, draft-ctx %d", name, f->opts->draft_ctx);
    session.draft_ctx = f->opts->draft_ctx;
    return add_policy(f, bounded, session, engine, rank, err);
}

static kk_status add_plain(kk_footprint *f, kk_err *err) {
    const kk_session_opts *s = &f->opts->session;
    const kk_session_opts bf16 = {.kv_format = KK_KV_BF16};
    const kk_session_opts q8 = {.kv_format = KK_KV_Q8}, q4 = {.kv_format = KK_KV_Q4};
    const kk_session_opts window = {.kv_sliding = KK_KEEP_WINDOW,
                                    .kv_full = KK_KEEP_WINDOW,
                                    .sink = s->sink,
                                    .window = s->window,
                                    .chunk = s->chunk};
    KK_TRY(add_pair(f, "exact bf16", bf16, 0, 0, err));
    KK_TRY(add_policy(f, "exact q8", q8, 0, 0, err));
    KK_TRY(add_policy(f, "exact q4", q4, 0, 0, err));
    return add_policy(f, "window", window, 0, 0, err);
}

static bool is_taken(const kk_footprint *f, const char *name) {
    for (int32_t i = 0; i < f->n_policies; i++)
        if (strcmp(f->policy[i].name, name) == 0) return true;
    return false;
}

/* "restored r128 bf16"; two projections of one rank are told apart by their place. */
static kk_status add_restored(kk_footprint *f, int32_t engine, kk_err *err) {
    static const kk_kv_format formats[] = {KK_KV_BF16, KK_KV_Q8};
    kk_projection_info p;
    if (!kk_engine_projection(f->engine, &p))
        return kk_fail(err, KK_EINVAL, "projection %d was not loaded", engine);
    kk_session_opts s = f->opts->session;
    if (s.kv_sliding != KK_KEEP_RESTORED && s.kv_full != KK_KEEP_RESTORED)
        s.kv_sliding = s.kv_full = KK_KEEP_RESTORED;
    s.kv_format = KK_KV_BF16;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char name[40];
        s.latents = formats[i];
        snprintf(name, sizeof name, "restored r%d %s", p.rank, kk_kv_format_name(formats[i]));
        if (is_taken(f, name))
            snprintf(name, sizeof name, "restored r%d#%d %s", p.rank, engine,
                     kk_kv_format_name(formats[i]));
        KK_TRY(add_pair(f, name, s, engine, p.rank, err));
    }
    return KK_OK;
}

/* ---- one session ------------------------------------------------------------------------- */

static kk_status fill_caches(kk_session *s, int32_t n, kk_err *err) {
    KK_TRY(kk_cache_fill(s->cache, n, NULL, err));
    for (int32_t i = 0; i < s->drafting.n; i++) {
        const kk_drafting_member *m = &s->drafting.member[i];
        if (m->proposer->cache) KK_TRY(kk_cache_fill(m->proposer->cache(m->self), n, NULL, err));
    }
    return KK_OK;
}

kk_status kk_session_fill(kk_session *s, int32_t n, kk_err *err) {
    const int32_t some_token = 1;
    if (n < 1 || n > s->ctx || s->len != 0)
        return kk_fail(err, KK_EINVAL, "%d tokens for a session of %d with %d in it", n, s->ctx,
                       s->len);
    kk_engine_lock(s->engine);
    const kk_status st = fill_caches(s, n - 1, err);
    kk_engine_unlock(s->engine);
    KK_TRY(st);
    for (int32_t i = 0; i < n - 1; i++) s->tokens[i] = some_token;
    s->len = n - 1;
    return kk_session_append(s, &some_token, 1, NULL, NULL, err);
}

static bool on_read(void *user, int64_t done, int64_t total) {
    (void)done, (void)total;
    return kk_footprint_go_on(user);
}

/* Rows that wait for a proposer are brought to where they will lie. */
static kk_status settle(kk_session *s, kk_err *err) {
    kk_engine_lock(s->engine);
    const kk_status st = kk_drafting_flush(&s->drafting, err);
    kk_engine_unlock(s->engine);
    return st;
}

static kk_status measure(kk_footprint *f, kk_footprint_row *row, kk_err *err) {
    kk_session_opts how = f->policy[row->policy].session;
    kk_session *s;
    kk_key_counts counts;
    how.ctx = row->tokens;
    KK_TRY(kk_session_new(&s, f->engine, &how, err));
    kk_status st = f->fill
                       ? kk_session_fill(s, row->tokens, err)
                       : kk_session_append(s, f->text.ids, (size_t)row->tokens, on_read, f, err);
    if (st == KK_OK) st = settle(s, err);
    if (st == KK_OK) {
        kk_engine_memory(f->engine, row->bytes);
        kk_session_key_counts(s, &counts);
        row->restored_rows = counts.rows_rebuilt;
    }
    kk_session_free(s);
    return st;
}

/* ---- one engine -------------------------------------------------------------------------- */

static kk_footprint_row *row_at(const kk_footprint *f, int32_t length, int32_t policy) {
    for (int32_t i = 0; i < f->out->n_rows; i++)
        if (f->out->row[i].policy == policy && f->out->row[i].tokens == f->opts->tokens[length])
            return &f->out->row[i];
    return NULL;
}

static kk_status measure_length(kk_footprint *f, int32_t engine, int32_t length, kk_err *err) {
    for (int32_t p = 0; p < f->n_policies; p++) {
        if (f->policy[p].engine != engine) continue;
        kk_footprint_row *row = &f->out->row[f->out->n_rows];
        *row = (kk_footprint_row){
            .policy = p, .tokens = f->opts->tokens[length], .recall = -1, .mean_kl = -1};
        KK_TRY(measure(f, row, err));
        f->out->n_rows++;
    }
    if (!f->opts->quality) return KK_OK;
    KK_TRY(kk_footprint_quality(f, engine, length, err));
    for (int32_t p = 0; p < f->n_policies; p++) {
        const kk_ask_result *asked = kk_footprint_asked(f, length, p);
        kk_footprint_row *row = row_at(f, length, p);
        if (f->policy[p].engine != engine || !asked->n) continue;
        row->recall = (double)asked->hits / asked->n;
        row->mean_kl = asked->sum.mean_kl;
    }
    return KK_OK;
}

static kk_status check_lengths(const kk_footprint *f, kk_err *err) {
    const kk_footprint_opts *o = f->opts;
    kk_model_info model;
    kk_engine_info(f->engine, &model);
    const int32_t most = model.context - (o->quality ? o->predict : 0);
    for (int32_t i = 0; i < o->n_lengths; i++)
        if (o->tokens[i] > most)
            return kk_fail(err, KK_ECONTEXT, "%d tokens%s: this model takes at most %d",
                           o->tokens[i], o->quality ? " and an answer" : "", model.context);
    return KK_OK;
}

/* Engine 0 has no projection; engine i has projection i - 1. */
static kk_status on_engine(kk_footprint *f, int32_t i, kk_err *err) {
    kk_engine_opts how = f->opts->engine;
    how.projection = i ? f->opts->projection[i - 1] : NULL;
    how.key_cache = -1; /* the engine's, whatever its sessions hold */
    KK_TRY(kk_engine_open(&f->engine, &how, err));
    KK_TRY(check_lengths(f, err));
    if (i == 0) {
        f->has_drafter = f->engine->dflash != NULL;
        if (f->opts->draft_ctx && !f->has_drafter)
            return kk_fail(err, KK_EINVAL,
                           "--draft-ctx bounds a drafter's context, and none is loaded");
        f->run = kk_report_run(f->engine, &how, f->opts->command);
        KK_TRY(kk_footprint_read(f, err));
        KK_TRY(add_plain(f, err));
    } else {
        json_array_append_new(f->projections, kk_report_projection(f->engine));
        KK_TRY(add_restored(f, i, err));
    }
    for (int32_t l = 0; l < f->opts->n_lengths; l++) KK_TRY(measure_length(f, i, l, err));
    kk_report_count_ties(f->run, f->engine);
    kk_engine_close(f->engine);
    f->engine = NULL;
    return KK_OK;
}

/* ---- growth ------------------------------------------------------------------------------ */

static double slope(const kk_footprint *f, int32_t policy, bool drafter) {
    const int32_t last = f->opts->n_lengths - 1;
    const kk_footprint_row *a = row_at(f, 0, policy), *b = row_at(f, last, policy);
    int64_t sum = b->bytes[KK_MEM_KV_FULL] - a->bytes[KK_MEM_KV_FULL] +
                  b->bytes[KK_MEM_KV_LATENTS] - a->bytes[KK_MEM_KV_LATENTS];
    if (drafter) sum += b->bytes[KK_MEM_KV_DRAFTER] - a->bytes[KK_MEM_KV_DRAFTER];
    return (double)sum / (b->tokens - a->tokens);
}

static bool same_cache(const kk_footprint_policy *a, const kk_footprint_policy *b) {
    const kk_session_opts *x = &a->session, *y = &b->session;
    return x->kv_sliding == y->kv_sliding && x->kv_full == y->kv_full &&
           x->kv_format == y->kv_format && x->latents == y->latents && a->rank == b->rank;
}

static void add_growth(kk_footprint *f, int32_t policy, int32_t against, bool drafter) {
    kk_footprint_growth *g = &f->out->growth[f->out->n_growths++];
    const bool other = against >= 0 && !same_cache(&f->policy[policy], &f->policy[against]);
    *g = (kk_footprint_growth){.policy = policy,
                               .against = other ? against : -1,
                               .drafter = drafter,
                               .bytes_per_token = slope(f, policy, drafter)};
    if (other && g->bytes_per_token > 0) g->ratio = slope(f, against, drafter) / g->bytes_per_token;
    if (g->ratio <= 0) g->against = -1;
}

/* Against exact bf16; a bounded drafter also against exact bf16 with one. */
static void grow(kk_footprint *f) {
    if (f->opts->n_lengths < 2) return;
    for (int32_t p = 0; p < f->n_policies; p++) {
        const bool bounded = f->policy[p].session.draft_ctx != 0;
        if (!bounded) add_growth(f, p, 0, false);
        if (f->has_drafter) add_growth(f, p, 0, true);
        if (bounded && p != 1) add_growth(f, p, 1, true);
    }
}

/* ---- all of it --------------------------------------------------------------------------- */

static kk_status check(const kk_footprint_opts *o, kk_err *err) {
    if (o->n_lengths < 1 || o->n_lengths > KK_FOOTPRINT_LENGTHS)
        return kk_fail(err, KK_EINVAL, "%d lengths; 1 to %d are possible", o->n_lengths,
                       KK_FOOTPRINT_LENGTHS);
    for (int32_t i = 0; i < o->n_lengths; i++)
        if (o->tokens[i] < 1 || (i && o->tokens[i] <= o->tokens[i - 1]))
            return kk_fail(err, KK_EINVAL, "a length of %d tokens: lengths are positive and rise",
                           o->tokens[i]);
    if (o->n_projections < 0 || o->n_projections > KK_FOOTPRINT_PROJECTIONS)
        return kk_fail(err, KK_EINVAL, "%d projections; up to %d are possible", o->n_projections,
                       KK_FOOTPRINT_PROJECTIONS);
    if (o->quality && (o->fill || o->engine.synthetic))
        return kk_fail(err, KK_EINVAL,
                       "rows that were not computed answer nothing: without quality");
    return KK_OK;
}

static kk_status run(kk_footprint *f, kk_err *err) {
    const size_t rows = (size_t)KK_FOOTPRINT_POLICIES * (size_t)f->opts->n_lengths;
    KK_TRY(check(f->opts, err));
    f->fill = f->opts->fill || f->opts->engine.synthetic;
    f->out->row = kk_calloc(rows, sizeof *f->out->row);
    f->asked = kk_calloc(rows, sizeof *f->asked);
    f->projections = json_array();
    f->left_out = json_array();
    if (!f->out->row || !f->asked || !f->projections || !f->left_out)
        return kk_fail(err, KK_ENOMEM, "no memory for %zu rows", rows);
    f->total = 1 + f->opts->n_projections;
    for (f->done = 0; f->done < f->total; f->done++) KK_TRY(on_engine(f, f->done, err));
    grow(f);
    f->out->n_policies = f->n_policies;
    for (int32_t p = 0; p < f->n_policies; p++)
        memcpy(f->out->policy[p], f->policy[p].name, sizeof f->out->policy[p]);
    f->out->report = kk_footprint_report(f);
    return f->out->report ? KK_OK : kk_fail(err, KK_ENOMEM, "no memory for the report");
}

bool kk_footprint_go_on(const void *of) {
    const kk_footprint *f = of;
    return !f->opts->tell || f->opts->tell(f->opts->user, f->done, f->total);
}

kk_status kk_footprint_run(const kk_footprint_opts *opts, kk_footprint_result *out, kk_err *err) {
    *out = (kk_footprint_result){.n_rows = 0};
    kk_footprint *f = kk_zalloc(sizeof *f);
    if (!f) return kk_fail(err, KK_ENOMEM, "no memory for a table of footprints");
    f->opts = opts;
    f->out = out;
    const kk_status st = run(f, err);
    kk_engine_close(f->engine);
    kk_footprint_forget(f);
    kk_free(f);
    if (st != KK_OK) kk_footprint_release(out);
    return st;
}

void kk_footprint_release(kk_footprint_result *r) {
    kk_free(r->row);
    json_decref(r->report);
    *r = (kk_footprint_result){.n_rows = 0};
}

kk_status kk_footprint_write(kk_writer *to, const kk_footprint_result *r, kk_err *err) {
    return kk_report_write(to, json_incref(r->report), err);
}
