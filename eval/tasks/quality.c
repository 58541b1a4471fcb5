/* quality.c - sessions read a text in step, and their logits are compared row by row; see
 * quality.h.
 *
 * Only the rows of one piece are held at a time: those of the exact session, and one of an arm. */
#include "eval/tasks/quality.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/session.h"

/* ---- two rows ----------------------------------------------------------------------------- */

/* log of the sum of exponentials; not finite when a value is not. */
static double log_sum(const float *x, int32_t n) {
    double most = (double)x[0];
    for (int32_t i = 1; i < n; i++)
        if ((double)x[i] > most) most = (double)x[i];
    double sum = exp((double)x[0] - most);
    for (int32_t i = 1; i < n; i++) sum += exp((double)x[i] - most);
    return most + log(sum);
}

double kk_quality_kl(const float *exact, const float *arm, int32_t vocab) {
    const double norm_exact = log_sum(exact, vocab), norm_arm = log_sum(arm, vocab);
    double kl = 0;
    for (int32_t i = 0; i < vocab; i++) {
        const double p = (double)exact[i] - norm_exact, q = (double)arm[i] - norm_arm;
        kl += exp(p) * (p - q);
    }
    return kl < 0 ? 0 : kl; /* rounding */
}

double kk_quality_loss(const float *logits, int32_t vocab, int32_t token) {
    return log_sum(logits, vocab) - (double)logits[token];
}

kk_quality_sum kk_quality_sum_up(const kk_quality_row *rows, size_t n) {
    kk_quality_sum s = {0};
    double same = 0, of = 0;
    for (size_t i = 0; i < n; i++) {
        const kk_quality_row *r = &rows[i];
        s.rows += r->rows;
        s.mean_kl += r->rows * r->mean_kl;
        s.loss_change += r->rows * (r->loss_arm - r->loss_exact);
        if (i == 0 || r->worst_kl > s.worst_kl) s.worst_kl = r->worst_kl;
        same += r->same_prefix;
        of += r->same_of;
    }
    if (s.rows) s.mean_kl /= (double)s.rows, s.loss_change /= (double)s.rows;
    if (of > 0) s.same = same / of;
    return s;
}

/* ---- one text ----------------------------------------------------------------------------- */

typedef struct {
    const kk_quality_opts *opts;
    const kk_quality_text *text;
    kk_quality_row *rows;
    int32_t vocab, piece;                     /* most rows of a pass */
    kk_session *session[1 + KK_QUALITY_ARMS]; /* exact first */
    int32_t n_sessions;
    float *exact, *arm; /* [piece, vocab] */
    int32_t *said[2];   /* continuations: of exact, of an arm */
} reading;

/* The next n tokens of a session, and the logits of all of them. */
static kk_status forward(kk_session *s, const int32_t *tokens, int32_t n, float *out, kk_err *err) {
    kk_engine *e = s->engine;
    const size_t vocab = (size_t)e->rounds.vocab;
    const kk_gemma4_group group = {.cache = s->cache,
                                   .layout = s->layout,
                                   .tokens = tokens,
                                   .n_rows = n,
                                   .n_logits = n,
                                   .counts = &s->counts};
    const kk_gemma4_forward_args args = {.groups = &group, .n_groups = 1, .restorer = e->restorer};
    kk_engine_lock(e);
    kk_status st = kk_cache_reserve(s->cache, n, err);
    if (st == KK_OK) st = kk_gemma4_forward(e->model, &args, err);
    for (int32_t i = 0; i < n && st == KK_OK; i++)
        st = kk_gemma4_logits(e->model, i, out + (size_t)i * vocab, err);
    kk_cache_commit(s->cache, st == KK_OK ? s->len + n : s->len);
    kk_engine_unlock(e);
    if (st != KK_OK) return st;
    memcpy(s->tokens + s->len, tokens, (size_t)n * sizeof *tokens);
    memcpy(s->logits, out + (size_t)(n - 1) * vocab, vocab * sizeof *out);
    s->len += n;
    return KK_OK;
}

/* The last row has nothing that follows, and is not compared. */
static kk_status compare(const reading *r, int32_t arm, int32_t at, int32_t n, kk_err *err) {
    const kk_quality_text *t = r->text;
    kk_quality_row *row = &r->rows[arm];
    for (int32_t i = 0; i < n && at + i < t->n - 1; i++) {
        const size_t place = (size_t)i * (size_t)r->vocab;
        const int32_t next = t->ids[at + i + 1];
        const double kl = kk_quality_kl(r->exact + place, r->arm + place, r->vocab);
        if (!isfinite(kl))
            return kk_fail(err, KK_EDEVICE, "logits of token %d of '%s' are not finite", at + i,
                           t->name);
        row->rows++;
        row->mean_kl += kl;
        if (kl > row->worst_kl) row->worst_kl = kl;
        row->loss_exact += kk_quality_loss(r->exact + place, r->vocab, next);
        row->loss_arm += kk_quality_loss(r->arm + place, r->vocab, next);
    }
    return KK_OK;
}

/* How many of the next rows may share a pass of every session. */
static int32_t pass(const reading *r, int32_t at) {
    const int32_t left = r->text->n - at;
    int32_t n = left < r->piece ? left : r->piece;
    for (int32_t i = 0; i < r->n_sessions; i++) n = kk_session_pass(r->session[i], at, n);
    return n;
}

static kk_status tell(const reading *r, int32_t done, kk_err *err) {
    const kk_quality_opts *o = r->opts;
    if (!o->on_rows || o->on_rows(o->user, r->text, done)) return KK_OK;
    return kk_fail(err, KK_ESTOPPED, "stopped after %d tokens of '%s'", done, r->text->name);
}

static kk_status read_text(reading *r, kk_err *err) {
    const kk_quality_text *t = r->text;
    const int32_t from = r->opts->from;
    for (int32_t i = 0; i < r->n_sessions && from > 0; i++)
        KK_TRY(kk_session_append(r->session[i], t->ids, (size_t)from, NULL, NULL, err));
    for (int32_t at = from, n; at < t->n; at += n) {
        n = pass(r, at);
        KK_TRY(forward(r->session[0], t->ids + at, n, r->exact, err));
        for (int32_t i = 1; i < r->n_sessions; i++) {
            KK_TRY(forward(r->session[i], t->ids + at, n, r->arm, err));
            KK_TRY(compare(r, i - 1, at, n, err));
        }
        KK_TRY(tell(r, at + n, err));
    }
    return KK_OK;
}

/* ---- what they go on to say --------------------------------------------------------------- */

typedef struct {
    int32_t *ids;
    int32_t n;
} spoken;

static bool on_token(void *user, int32_t id) {
    spoken *s = user;
    s->ids[s->n++] = id;
    return true;
}

static kk_status go_on(const reading *r, int32_t i, spoken *out, kk_err *err) {
    const kk_generate_opts how = {.max_tokens = r->opts->predict};
    kk_result result;
    *out = (spoken){.ids = r->said[i > 0]};
    return kk_generate(r->session[i], &how, on_token, out, &result, err);
}

static kk_status compare_continuations(reading *r, kk_err *err) {
    spoken exact, arm;
    KK_TRY(go_on(r, 0, &exact, err));
    for (int32_t i = 1; i < r->n_sessions; i++) {
        kk_quality_row *row = &r->rows[i - 1];
        KK_TRY(go_on(r, i, &arm, err));
        row->same_of = exact.n;
        while (row->same_prefix < exact.n && row->same_prefix < arm.n &&
               exact.ids[row->same_prefix] == arm.ids[row->same_prefix])
            row->same_prefix++;
    }
    return KK_OK;
}

/* ---- all of it ---------------------------------------------------------------------------- */

static kk_status open_sessions(reading *r, kk_err *err) {
    const kk_quality_opts *o = r->opts;
    for (int32_t i = 0; i <= o->n_arms; i++) {
        kk_session_opts how = i ? o->arms[i - 1] : *o->exact;
        how.ctx = r->text->n + o->predict;
        how.spec = KK_SPEC_NONE; /* drafts change nothing but the time it takes */
        how.draft_max = 0;
        const bool diagnosed = i && o->mix && o->mix[i - 1] >= 0;
        KK_TRY(diagnosed
                   ? kk_session_new_diagnosed(&r->session[i], o->engine, &how, o->mix[i - 1], err)
                   : kk_session_new(&r->session[i], o->engine, &how, err));
        r->n_sessions = i + 1;
    }
    return KK_OK;
}

static kk_status take_buffers(reading *r, kk_err *err) {
    const kk_engine *e = r->opts->engine;
    size_t floats;
    r->vocab = e->rounds.vocab;
    r->piece = e->rounds.max_logits;
    if (!kk_mul((size_t)r->vocab, (size_t)r->piece, &floats))
        return kk_fail(err, KK_ENOMEM, "no memory for logits");
    r->exact = kk_calloc(floats, sizeof *r->exact);
    r->arm = kk_calloc(floats, sizeof *r->arm);
    for (int i = 0; i < 2; i++)
        r->said[i] = kk_calloc((size_t)r->opts->predict, sizeof *r->said[i]);
    if (r->exact && r->arm && r->said[0] && r->said[1]) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory for %d rows of logits", 2 * r->piece);
}

static kk_status measure(reading *r, kk_err *err) {
    KK_TRY(take_buffers(r, err));
    KK_TRY(open_sessions(r, err));
    KK_TRY(read_text(r, err));
    KK_TRY(compare_continuations(r, err));
    for (int32_t i = 0; i < r->opts->n_arms; i++) {
        kk_quality_row *row = &r->rows[i];
        row->mean_kl /= row->rows;
        row->loss_exact /= row->rows;
        row->loss_arm /= row->rows;
        /* The mean of equal numbers may come out a rounding above them. */
        if (row->mean_kl > row->worst_kl) row->mean_kl = row->worst_kl;
    }
    return KK_OK;
}

static kk_status check(const kk_quality_opts *o, const kk_quality_text *t, kk_err *err) {
    if (o->n_arms < 1 || o->n_arms > KK_QUALITY_ARMS)
        return kk_fail(err, KK_EINVAL, "%d arms to compare; 1 to %d are possible", o->n_arms,
                       KK_QUALITY_ARMS);
    if (o->from < 0 || o->from > t->n - 2)
        return kk_fail(err, KK_EINVAL, "'%s' has %d tokens: nothing to compare from token %d on",
                       t->name, t->n, o->from);
    if (o->predict < 1) return kk_fail(err, KK_EINVAL, "continuations of %d tokens", o->predict);
    return KK_OK;
}

kk_status kk_quality_measure(const kk_quality_opts *opts, const kk_quality_text *text,
                             kk_quality_row *rows, kk_err *err) {
    KK_TRY(check(opts, text, err));
    reading r = {.opts = opts, .text = text, .rows = rows};
    for (int32_t i = 0; i < opts->n_arms; i++) {
        rows[i] = (kk_quality_row){.rows = 0};
        snprintf(rows[i].text, sizeof rows[i].text, "%s", text->name);
    }
    const kk_status st = measure(&r, err);
    for (int32_t i = 0; i < r.n_sessions; i++) kk_session_free(r.session[i]);
    kk_free(r.exact);
    kk_free(r.arm);
    for (int i = 0; i < 2; i++) kk_free(r.said[i]);
    return st;
}
