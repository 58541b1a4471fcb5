/* parity.c - runs a model beside a dumped reference.
 *
 * It drives the model itself and not the engine, because it needs what the engine does not show:
 * logits of every row, hidden states of every layer, and control over how rows are fed. */
#include "eval/tasks/parity.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/tasks/parity_parts.h"

static const int32_t pieces[KK_PARITY_WAYS] = {0, 1, 3, 7, 16};

/* The reference's numbers; views into the mapped file. */
typedef struct {
    kk_parity_file file;
    const kk_tensor *logits, *greedy;
    const kk_tensor *hidden[KK_MAX_LAYERS + 1]; /* by N of hidden.N; NULL: not in the file */
} expected;

/* One model under test and what it computed. */
typedef struct {
    kk_checkpoint *ckpt;
    const kk_backend *be;
    kk_dev *dev;
    kk_mem mem;
    kk_gemma4 *model;
    const kk_config *config;
    kk_parity_pages pages;
    int32_t n_tokens, n_taps;
    int32_t *tokens;
    int32_t tap_layer[KK_MAX_LAYERS + 1];
    float *taps;            /* of one forward: [n_taps][rows][hidden] */
    float *logits, *hidden; /* of this way: [T][V] and [n_taps][T][hidden] */
    float *first_logits, *first_hidden;
} subject;

/* ---- the reference ----------------------------------------------------------------------- */

static kk_status find_expected(expected *x, const kk_config *c, int32_t n, kk_err *err) {
    KK_TRY(kk_parity_need(&x->file, "logits", KK_F32, n, c->vocab, &x->logits, err));
    KK_TRY(kk_parity_need(&x->file, "greedy", KK_I32, -1, 0, &x->greedy, err));
    for (int32_t i = 0; i <= c->n_layer; i++) {
        char name[24];
        snprintf(name, sizeof name, "hidden.%d", i);
        if (kk_parity_find(&x->file, name))
            KK_TRY(kk_parity_need(&x->file, name, KK_F32, n, c->hidden, &x->hidden[i], err));
    }
    return KK_OK;
}

/* ---- the model --------------------------------------------------------------------------- */

static kk_status open_device(subject *m, const kk_parity_opts *opts, int32_t max_rows,
                             kk_err *err) {
    KK_TRY(kk_backend_find(&m->be, opts->device, err));
    kk_dev_opts dev = {.threads = opts->threads,
                       .isa = opts->isa,
                       .mem = &m->mem,
                       .max_rows = max_rows > KK_MAX_DRAFT_BLOCK ? max_rows : KK_MAX_DRAFT_BLOCK};
    KK_TRY(m->be->open(&m->dev, &dev, err));
    kk_gemma4_opts mo = {.backend = m->be,
                         .dev = m->dev,
                         .mem = &m->mem,
                         .max_rows = max_rows,
                         .max_logits = max_rows};
    KK_TRY(kk_gemma4_new(&m->model, m->ckpt, &mo, err));
    return kk_parity_pages_open(&m->pages, kk_gemma4_kv_shape(m->model), &m->mem, m->be, m->dev,
                                err);
}

/* hidden.i is the output of layer i - 1: tap -1 is the scaled embedding, and the last one is
 * taken after the final norm, tap n_layer. */
static kk_status make_buffers(subject *m, const expected *x, kk_err *err) {
    const size_t rows = (size_t)m->n_tokens, dim = (size_t)m->config->hidden;
    for (int32_t i = 0; i <= m->config->n_layer; i++)
        if (x->hidden[i]) m->tap_layer[m->n_taps++] = i < m->config->n_layer ? i - 1 : i;
    const size_t hidden = (size_t)m->n_taps * rows * dim, logits = rows * (size_t)m->config->vocab;
    m->taps = kk_calloc(hidden, sizeof(float));
    m->hidden = kk_calloc(hidden, sizeof(float));
    m->first_hidden = kk_calloc(hidden, sizeof(float));
    m->logits = kk_calloc(logits, sizeof(float));
    m->first_logits = kk_calloc(logits, sizeof(float));
    if (m->taps && m->hidden && m->first_hidden && m->logits && m->first_logits) return KK_OK;
    return kk_fail(err, KK_ENOMEM, "no memory for %d rows to compare", m->n_tokens);
}

static void close_model(subject *m) {
    kk_parity_pages_close(&m->pages);
    kk_gemma4_free(m->model);
    if (m->be) m->be->close(m->dev);
    kk_checkpoint_close(m->ckpt);
    kk_free(m->tokens);
    kk_free(m->taps);
    kk_free(m->hidden);
    kk_free(m->first_hidden);
    kk_free(m->logits);
    kk_free(m->first_logits);
}

/* Runs n tokens and keeps them, with logits of the last n_logits. */
static kk_status forward(subject *m, const int32_t *tokens, int32_t n, int32_t n_logits,
                         kk_err *err) {
    kk_gemma4_group group = {.cache = m->pages.cache,
                             .layout = &m->pages.layout,
                             .tokens = tokens,
                             .n_rows = n,
                             .n_logits = n_logits};
    kk_gemma4_forward_args args = {.groups = &group,
                                   .n_groups = 1,
                                   .tap_layers = m->tap_layer,
                                   .n_taps = m->n_taps,
                                   .tap_out = m->taps};
    KK_TRY(kk_cache_reserve(m->pages.cache, n, err));
    KK_TRY(kk_gemma4_forward(m->model, &args, err));
    kk_cache_commit(m->pages.cache, kk_cache_len(m->pages.cache) + n);
    return KK_OK;
}

/* Feeds all tokens in pieces and gathers logits and hidden states of every row. */
static kk_status feed(subject *m, int32_t piece, kk_err *err) {
    const size_t dim = (size_t)m->config->hidden, vocab = (size_t)m->config->vocab;
    const size_t all = (size_t)m->n_tokens;
    if (piece == 0) piece = m->n_tokens;
    for (int32_t at = 0; at < m->n_tokens; at += piece) {
        const int32_t n = m->n_tokens - at < piece ? m->n_tokens - at : piece;
        KK_TRY(forward(m, m->tokens + at, n, n, err));
        for (int32_t i = 0; i < n; i++)
            KK_TRY(kk_gemma4_logits(m->model, i, m->logits + (size_t)(at + i) * vocab, err));
        for (int32_t t = 0; t < m->n_taps; t++)
            memcpy(m->hidden + ((size_t)t * all + (size_t)at) * dim,
                   m->taps + (size_t)t * (size_t)n * dim, (size_t)n * dim * sizeof(float));
    }
    return KK_OK;
}

/* ---- comparing --------------------------------------------------------------------------- */

static kk_parity_way judge(const subject *m, const expected *x, int32_t piece, bool first,
                           const kk_parity_report *r) {
    const size_t rows = (size_t)m->n_tokens, dim = (size_t)m->config->hidden;
    kk_parity_way w = {.piece = piece};
    kk_parity_widen(&w.logits, m->logits, x->logits, 0);
    int32_t tap = 0;
    for (int32_t i = 0; i <= m->config->n_layer; i++)
        if (x->hidden[i])
            kk_parity_widen(&w.hidden, m->hidden + (size_t)tap++ * rows * dim, x->hidden[i], i);
    w.same_bits =
        first ||
        (memcmp(m->logits, m->first_logits, rows * (size_t)m->config->vocab * sizeof(float)) == 0 &&
         memcmp(m->hidden, m->first_hidden, (size_t)m->n_taps * rows * dim * sizeof(float)) == 0);
    w.ok = w.same_bits && kk_parity_holds(&w.logits, r->tol_logits, r->tol_rms) &&
           kk_parity_holds(&w.hidden, r->tol_hidden, r->tol_rms);
    return w;
}

static int32_t argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Continues the last way's cache token by token and counts how many agree.  A near tie, which
 * only tol_rms allows for, is continued with the reference's token. */
static kk_status compare_greedy(subject *m, const expected *x, kk_parity_report *r, kk_err *err) {
    const int32_t vocab = m->config->vocab;
    const double slack = kk_parity_slack(&r->way[0].logits, r->tol_rms);
    const float *row = m->logits + (size_t)(m->n_tokens - 1) * (size_t)vocab;
    for (int32_t i = 0; i < r->n_greedy; i++) {
        int32_t want;
        memcpy(&want, x->greedy->data.base + (size_t)i * sizeof want, sizeof want);
        if (want < 0 || want >= vocab) return KK_OK;
        const int32_t next = argmax(row, vocab);
        if (next != want && !((double)row[next] - (double)row[want] <= slack && slack > 0))
            return KK_OK;
        r->greedy_equal += next == want;
        r->greedy_near += next != want;
        KK_TRY(forward(m, &want, 1, 1, err));
        KK_TRY(kk_gemma4_logits(m->model, 0, m->logits, err));
        row = m->logits;
    }
    return KK_OK;
}

static kk_status compare_all(subject *m, const expected *x, kk_parity_report *r, kk_err *err) {
    for (int32_t i = 0; i < KK_PARITY_WAYS; i++) {
        KK_TRY(kk_parity_pages_clear(&m->pages, (int64_t)m->n_tokens + r->n_greedy + 1, err));
        KK_TRY(feed(m, pieces[i], err));
        r->way[r->n_ways++] = judge(m, x, pieces[i], i == 0, r);
        if (i == 0) {
            memcpy(m->first_logits, m->logits,
                   (size_t)m->n_tokens * (size_t)r->vocab * sizeof(float));
            memcpy(m->first_hidden, m->hidden,
                   (size_t)m->n_taps * (size_t)m->n_tokens * (size_t)m->config->hidden *
                       sizeof(float));
        }
    }
    return compare_greedy(m, x, r, err);
}

static kk_status compare_drafter(subject *m, const char *folder, kk_parity_report *r, kk_err *err) {
    const kk_parity_bench bench = {m->be,     m->dev,      &m->mem,       m->model,
                                   &m->pages, m->n_tokens, r->tol_logits, r->tol_rms};
    char *drafter = kk_path_join(folder, "dflash");
    if (!drafter) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    kk_status st = KK_OK;
    if (kk_dir_exists(drafter)) st = kk_parity_drafter(drafter, &bench, &r->drafter, err);
    kk_free(drafter);
    return st;
}

static kk_status run(subject *m, expected *x, const char *folder, const kk_parity_opts *opts,
                     kk_parity_report *r, kk_err *err) {
    KK_TRY(kk_checkpoint_open(&m->ckpt, folder, NULL, err));
    m->config = kk_checkpoint_config(m->ckpt);
    KK_TRY(kk_parity_file_open(&x->file, folder, err));
    KK_TRY(kk_parity_tokens(&x->file, m->config->vocab, &m->tokens, &m->n_tokens, err));
    KK_TRY(find_expected(x, m->config, m->n_tokens, err));
    assert(x->logits && x->greedy);
    KK_TRY(open_device(m, opts, m->n_tokens, err));
    KK_TRY(make_buffers(m, x, err));
    r->n_tokens = m->n_tokens;
    r->vocab = m->config->vocab;
    r->n_layer = m->config->n_layer;
    r->n_hidden = m->n_taps;
    r->n_greedy = (int32_t)x->greedy->dims[0];
    kk_dev_facts facts;
    m->be->describe(m->dev, &facts);
    r->threads = facts.threads;
    snprintf(r->isa, sizeof r->isa, "%s", facts.isa);
    KK_TRY(compare_all(m, x, r, err));
    return compare_drafter(m, folder, r, err);
}

kk_status kk_parity_run(const char *folder, const kk_parity_opts *opts, kk_parity_report *out,
                        kk_err *err) {
    static const kk_parity_opts defaults = {0};
    if (!opts) opts = &defaults;
    const bool rounds = opts->device && strcmp(opts->device, "cuda") == 0;
    *out = (kk_parity_report){
        .tol_logits = opts->tol_logits > 0 ? opts->tol_logits : 2e-4,
        .tol_hidden = opts->tol_hidden > 0 ? opts->tol_hidden : 5e-4,
        .tol_rms = opts->tol_rms > 0 ? opts->tol_rms
                   : rounds          ? 0.02
                                     : 0,
    };
    subject m = {0};
    expected x = {0};
    kk_status st = run(&m, &x, folder, opts, out, err);
    close_model(&m);
    kk_parity_file_close(&x.file);
    KK_TRY(st);
    out->ok = out->n_ways > 0 && out->n_hidden > 0 && out->n_greedy > 0 &&
              out->greedy_equal + out->greedy_near == out->n_greedy;
    for (int32_t i = 0; i < out->n_ways; i++) out->ok = out->ok && out->way[i].ok;
    if (out->drafter.present) out->ok = out->ok && out->drafter.ok;
    return KK_OK;
}
