/* sweep.c - one alpha after the other, over the same documents and texts. */
#include "eval/tasks/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "engine/saved.h"
#include "engine/session.h"
#include "eval/reports/report.h"
#include "eval/tasks/sweep_rows.h"

/* What one alpha gave. */
typedef struct {
    kk_ask_result asked;
    kk_row_errors raw, normed;
} found;

typedef struct {
    const kk_sweep_opts *opts;
    kk_session_opts session; /* defaults filled in */
    float alpha[KK_SWEEP_ALPHAS];
    int32_t n, done;
    kk_engine *engine;
    kk_ask_set set;
    kk_quality_source source;
    kk_quality_texts texts;
    found *found; /* [n] */
    kk_ask_result exact;
    kk_sweep_result *out;
} sweep;

static bool go_on(void *user) {
    const sweep *s = user;
    return !s->opts->tell || s->opts->tell(s->opts->user, s->done, s->n + 1);
}

static bool on_text(void *user, const kk_quality_text *text, int32_t done) {
    (void)text, (void)done;
    return go_on(user);
}

/* ---- what is asked ----------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* In order, each once, and the identity among them. */
static kk_status choose_alphas(sweep *s, kk_err *err) {
    const kk_sweep_opts *o = s->opts;
    float all[KK_SWEEP_ALPHAS + 1];
    if (o->n_alphas < 1 || o->n_alphas >= KK_SWEEP_ALPHAS)
        return kk_fail(err, KK_EINVAL, "%d alphas; 1 to %d are possible", o->n_alphas,
                       KK_SWEEP_ALPHAS - 1);
    for (int32_t i = 0; i < o->n_alphas; i++)
        if (!(o->alpha[i] >= 0 && o->alpha[i] <= 1))
            return kk_fail(err, KK_EINVAL, "an alpha of %g: true rows are mixed in by 0 to 1",
                           (double)o->alpha[i]);
    memcpy(all, o->alpha, (size_t)o->n_alphas * sizeof *all);
    all[o->n_alphas] = 1;
    qsort(all, (size_t)o->n_alphas + 1, sizeof *all, by_size);
    for (int32_t i = 0; i <= o->n_alphas; i++)
        if (i == 0 || all[i] > all[i - 1]) s->alpha[s->n++] = all[i];
    return KK_OK;
}

static kk_status choose_cache(sweep *s, kk_err *err) {
    kk_projection_info p;
    kk_session *tried;
    if (!kk_engine_projection(s->engine, &p))
        return kk_fail(err, KK_EINVAL, "a sweep needs a projection, and none is loaded: -mp");
    s->session = s->opts->session;
    if (s->session.kv_sliding == KK_KEEP_ALL && s->session.kv_full == KK_KEEP_ALL) {
        if (p.sliding_layers) s->session.kv_sliding = KK_KEEP_RESTORED;
        if (p.full_layers) s->session.kv_full = KK_KEEP_RESTORED;
    }
    s->session.spec = KK_SPEC_NONE;
    s->session.ctx = 0;
    /* A session knows the defaults, and what does not go together. */
    KK_TRY(kk_session_new_diagnosed(&tried, s->engine, &s->session, 0, err));
    kk_session_options(tried, &s->session);
    kk_session_free(tried);
    s->session.ctx = 0;
    return KK_OK;
}

static int32_t kept(int32_t rows) { return rows > 0 ? rows : 0; }

static int32_t resident(const sweep *s) {
    return kept(s->session.sink) + kept(s->session.window) + s->session.chunk;
}

static kk_status draw(sweep *s, kk_err *err) {
    kk_model_info model;
    KK_TRY(kk_ask_documents(&s->set, s->engine, &s->opts->draw, err));
    kk_engine_info(s->engine, &model);
    if (kk_ask_longest(&s->set) + s->opts->predict > model.context)
        return kk_fail(err, KK_ECONTEXT,
                       "the longest document needs a context of %d tokens, and this model takes at "
                       "most %d: leave that rung out",
                       kk_ask_longest(&s->set) + s->opts->predict, model.context);
    if (kk_ask_shortest(&s->set) <= resident(s))
        return kk_fail(err, KK_EINVAL,
                       "the shortest document has %d tokens, and sink, window and chunk keep %d: "
                       "nothing would be rebuilt",
                       kk_ask_shortest(&s->set), resident(s));
    s->source = s->opts->source;
    s->source.tok = kk_engine_tokenizer(s->engine);
    s->source.from = resident(s);
    return kk_quality_read(&s->texts, &s->source, err);
}

/* ---- one alpha --------------------------------------------------------------------------- */

typedef struct {
    sweep *of;
    found *found;
} asking;

static kk_status after_read(void *user, kk_session *session, kk_err *err) {
    const asking *a = user;
    return kk_session_errors(session, &a->found->raw, &a->found->normed, err);
}

static bool keep_on(void *user) { return go_on(((const asking *)user)->of); }

static kk_status ask(sweep *s, int32_t i, kk_err *err) {
    asking a = {s, &s->found[i]};
    kk_ask_how how = {.engine = s->engine,
                      .session = s->session,
                      .predict = s->opts->predict,
                      .after_read = after_read,
                      .go_on = keep_on,
                      .user = &a};
    how.mix = &s->alpha[i];
    KK_TRY(kk_ask_all(&s->found[i].asked, &s->set, &how, err));
    s->done++;
    return KK_OK;
}

static kk_session_opts exact_session(const sweep *s) {
    return (kk_session_opts){.kv_format = s->session.kv_format, .spec = KK_SPEC_NONE};
}

static kk_status ask_exact(sweep *s, kk_err *err) {
    const kk_ask_how how = {.engine = s->engine,
                            .session = exact_session(s),
                            .predict = s->opts->predict,
                            .go_on = go_on,
                            .user = s};
    return kk_ask_all(&s->exact, &s->set, &how, err);
}

static kk_status compare(sweep *s, kk_err *err) {
    const kk_session_opts exact = exact_session(s);
    kk_session_opts arm[KK_SWEEP_ALPHAS];
    kk_ask_result *out[KK_SWEEP_ALPHAS];
    for (int32_t i = 0; i < s->n; i++) {
        arm[i] = s->session;
        out[i] = &s->found[i].asked;
    }
    const kk_quality_opts how = {.engine = s->engine,
                                 .exact = &exact,
                                 .arms = arm,
                                 .mix = s->alpha,
                                 .n_arms = s->n,
                                 .from = s->source.from,
                                 .predict = s->opts->predict,
                                 .on_rows = on_text,
                                 .user = s};
    return kk_ask_quality(&how, &s->texts, out, err);
}

/* The last alpha is 1: the same path with true rows must change nothing. */
static kk_status check_identity(const sweep *s, kk_err *err) {
    const kk_ask_result *one = &s->found[s->n - 1].asked;
    for (int32_t i = 0; i < s->set.n; i++)
        if (one->answer[i].logits_hash != s->exact.answer[i].logits_hash)
            return kk_fail(err, KK_EDEVICE,
                           "alpha 1 is not the identity: logits of document %d differ", i);
    for (size_t i = 0; i < one->n_quality; i++)
        if (one->quality[i].worst_kl != 0 || one->quality[i].same_prefix != one->quality[i].same_of)
            return kk_fail(err, KK_EDEVICE, "alpha 1 is not the identity: KL of '%s' is %g",
                           one->quality[i].text, one->quality[i].worst_kl);
    return KK_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

static json_t *settings_json(const sweep *s) {
    const kk_session_opts *o = &s->session;
    json_t *alphas = json_array(), *ladder = json_array();
    for (int32_t i = 0; i < s->n; i++)
        json_array_append_new(alphas, kk_report_real((double)s->alpha[i]));
    for (int32_t i = 0; i < s->opts->draw.n_rungs; i++)
        json_array_append_new(ladder, json_integer(s->opts->draw.ladder[i]));
    return json_pack("{s:o, s:o, s:i, s:I, s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:o}", "alphas",
                     alphas, "ladder", ladder, "samples", s->opts->draw.samples, "seed",
                     (json_int_t)s->opts->draw.seed, "predict", s->opts->predict, "kv_sliding",
                     kk_saved_policy(KK_SLIDING, o->kv_sliding), "kv_full",
                     kk_saved_policy(KK_FULL, o->kv_full), "kv_format",
                     kk_kv_format_name(o->kv_format), "latents", kk_kv_format_name(o->latents),
                     "sink", kept(o->sink), "window", kept(o->window), "chunk", o->chunk, "texts",
                     kk_quality_texts_json(&s->texts, &s->source));
}

static json_t *row_json(const sweep *s, int32_t i) {
    const found *f = &s->found[i];
    const double left = 1 - (double)s->alpha[i];
    json_t *o =
        json_pack("{s:o, s:o, s:o, s:o, s:{s:o, s:o}}", "alpha",
                  kk_report_real((double)s->alpha[i]), "rel_mse", kk_row_errors_ratios(&f->raw, 1),
                  "effective_rel_mse", kk_row_errors_ratios(&f->raw, left * left), "layers",
                  kk_row_errors_layers(&f->raw), "normed", "rel_mse",
                  kk_row_errors_ratios(&f->normed, 1), "layers", kk_row_errors_layers(&f->normed));
    if (!o) return NULL;
    json_object_set_new(o, "rows_compared", json_integer(f->raw.rows));
    kk_ask_into(o, &s->set, &f->asked);
    return o;
}

static json_t *report_json(const sweep *s) {
    json_t *rows = json_array(), *exact = json_object();
    for (int32_t i = 0; i < s->n; i++) json_array_append_new(rows, row_json(s, i));
    kk_ask_into(exact, &s->set, &s->exact);
    json_t *body =
        json_pack("{s:o, s:o, s:o, s:{s:i, s:i, s:b}, s:o, s:o}", "settings", settings_json(s),
                  "files", kk_quality_files_json(&s->source), "knee", kk_report_real(s->out->knee),
                  "identity", "documents", s->set.n, "texts", (int)s->texts.n, "same_logits",
                  check_identity(s, NULL) == KK_OK, "exact", exact, "rows", rows);
    return kk_report_new(
        "sweep",
        kk_report_join(kk_report_run(s->engine, &s->opts->engine, s->opts->command), body));
}

/* ---- all of it --------------------------------------------------------------------------- */

double kk_sweep_knee(const kk_sweep_row *rows, int32_t n) {
    double knee = 1, full = 0;
    for (int32_t i = 0; i < n; i++)
        if (rows[i].alpha == 1) full = rows[i].recall;
    for (int32_t i = 0; i < n; i++)
        if (rows[i].alpha < knee && rows[i].recall >= full - 0.05 - 1e-9) knee = rows[i].alpha;
    return knee;
}

static bool has_kind(const kk_row_errors *e, bool full) {
    for (int32_t i = 0; i < e->n_layer; i++)
        if (e->layer[i].counted && e->layer[i].full == full) return true;
    return false;
}

static void ratios(double out[3], const kk_row_errors *e) {
    out[0] = kk_row_errors_ratio(e, KK_ERRORS_ALL);
    out[1] = has_kind(e, false) ? kk_row_errors_ratio(e, KK_ERRORS_SLIDING) : -1;
    out[2] = has_kind(e, true) ? kk_row_errors_ratio(e, KK_ERRORS_FULL) : -1;
}

static void sum_up(sweep *s) {
    kk_sweep_result *r = s->out;
    r->n_rows = s->n;
    for (int32_t i = 0; i < s->n; i++) {
        const found *f = &s->found[i];
        const double left = 1 - (double)s->alpha[i];
        kk_sweep_row *row = &r->row[i];
        *row = (kk_sweep_row){.alpha = (double)s->alpha[i],
                              .recall = (double)f->asked.hits / f->asked.n,
                              .mean_kl = f->asked.sum.mean_kl,
                              .worst_kl = f->asked.sum.worst_kl,
                              .restored_rows = f->asked.counts.rows_rebuilt};
        ratios(row->rel_mse, &f->raw);
        ratios(row->normed, &f->normed);
        row->effective = left * left * row->rel_mse[0];
    }
    r->exact = (double)s->exact.hits / s->exact.n;
    r->knee = kk_sweep_knee(r->row, r->n_rows);
}

static kk_status run(sweep *s, kk_err *err) {
    KK_TRY(choose_alphas(s, err));
    if (s->opts->predict < 1)
        return kk_fail(err, KK_EINVAL, "answers of %d tokens", s->opts->predict);
    KK_TRY(kk_engine_open(&s->engine, &s->opts->engine, err));
    KK_TRY(choose_cache(s, err));
    KK_TRY(draw(s, err));
    s->found = kk_calloc((size_t)s->n, sizeof *s->found);
    if (!s->found) return kk_fail(err, KK_ENOMEM, "no memory for %d alphas", s->n);
    KK_TRY(ask_exact(s, err));
    for (int32_t i = 0; i < s->n; i++) KK_TRY(ask(s, i, err));
    KK_TRY(compare(s, err));
    KK_TRY(check_identity(s, err));
    sum_up(s);
    s->out->report = report_json(s);
    if (!s->out->report) return kk_fail(err, KK_ENOMEM, "no memory for the report");
    return KK_OK;
}

kk_status kk_sweep_run(const kk_sweep_opts *opts, kk_sweep_result *out, kk_err *err) {
    *out = (kk_sweep_result){.n_rows = 0};
    sweep s = {.opts = opts, .out = out};
    const kk_status st = run(&s, err);
    for (int32_t i = 0; s.found && i < s.n; i++) kk_ask_release(&s.found[i].asked);
    kk_free(s.found);
    kk_ask_release(&s.exact);
    kk_quality_free(&s.texts);
    kk_ask_free(&s.set);
    kk_engine_close(s.engine);
    if (st != KK_OK) kk_sweep_release(out);
    return st;
}

void kk_sweep_release(kk_sweep_result *r) {
    json_decref(r->report);
    *r = (kk_sweep_result){.n_rows = 0};
}

kk_status kk_sweep_write(kk_writer *to, const kk_sweep_result *r, kk_err *err) {
    return kk_report_write(to, json_incref(r->report), err);
}
