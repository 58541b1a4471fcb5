/* parity.c - runs a model beside a dumped reference.
 *
 * It drives the model itself and not the engine, because it needs what the engine does not show:
 * logits of every row, hidden states of every layer, and control over how rows are fed. */
#include "eval/parity.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/checkpoint.h"
#include "format/safetensors.h"
#include "model/gemma4.h"

static const int32_t pieces[KK_PARITY_WAYS] = {0, 1, 3, 7, 16};

/* The reference's numbers; views into the mapped file. */
typedef struct {
    kk_map map;
    kk_safetensors list;
    const kk_tensor *tokens, *logits, *greedy;
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
    kk_kv_layout layout;
    kk_pool *pool[KK_KINDS];
    kk_cache *cache;
    int32_t n_tokens, n_taps;
    int32_t *tokens;
    int32_t tap_layer[KK_MAX_LAYERS + 1];
    float *taps;            /* of one forward: [n_taps][rows][hidden] */
    float *logits, *hidden; /* of this way: [T][V] and [n_taps][T][hidden] */
    float *first_logits, *first_hidden;
} subject;

/* ---- the reference ----------------------------------------------------------------------- */

static const kk_tensor *find(const kk_safetensors *list, const char *name) {
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->tensors[i].name, name) == 0) return &list->tensors[i];
    return NULL;
}

/* A tensor that must be there with this type and these dims (-1: any size). */
static kk_status need(const expected *x, const char *name, kk_dtype type, int32_t n_dims,
                      int64_t d0, int64_t d1, const kk_tensor **out, kk_err *err) {
    const kk_tensor *t = find(&x->list, name);
    if (!t) return kk_fail(err, KK_EFORMAT, "expect.safetensors has no tensor '%s'", name);
    if (t->dtype != type || t->n_dims != n_dims || (d0 >= 0 && t->dims[0] != d0) ||
        (n_dims > 1 && t->dims[1] != d1))
        return kk_fail(err, KK_EFORMAT, "expect.safetensors: '%s' has the wrong type or shape",
                       name);
    *out = t;
    return KK_OK;
}

static kk_status open_expected(expected *x, const char *folder, const kk_config *c, kk_err *err) {
    char *path = kk_path_join(folder, "expect.safetensors");
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    kk_status st = kk_map_open(&x->map, path, err);
    if (st == KK_OK) st = kk_safetensors_parse(&x->list, x->map.span, "expect.safetensors", err);
    kk_free(path);
    KK_TRY(st);
    KK_TRY(need(x, "tokens", KK_I32, 1, -1, 0, &x->tokens, err));
    const int64_t n = x->tokens->dims[0];
    if (n < 1 || n > 4096)
        return kk_fail(err, KK_EFORMAT,
                       "expect.safetensors: %lld tokens; 1 to 4096 can be compared", (long long)n);
    KK_TRY(need(x, "logits", KK_F32, 2, n, c->vocab, &x->logits, err));
    KK_TRY(need(x, "greedy", KK_I32, 1, -1, 0, &x->greedy, err));
    for (int32_t i = 0; i <= c->n_layer; i++) {
        char name[24];
        snprintf(name, sizeof name, "hidden.%d", i);
        if (find(&x->list, name))
            KK_TRY(need(x, name, KK_F32, 2, n, c->hidden, &x->hidden[i], err));
    }
    return KK_OK;
}

static void close_expected(expected *x) {
    kk_safetensors_free(&x->list);
    kk_map_close(&x->map);
}

/* ---- the model --------------------------------------------------------------------------- */

static kk_status open_device(subject *m, const kk_parity_opts *opts, int32_t max_rows,
                             kk_err *err) {
    m->be = kk_backend_named("cpu");
    if (!m->be) return kk_fail(err, KK_EDEVICE, "this build has no cpu backend");
    kk_dev_opts dev = {
        .threads = opts->threads, .isa = opts->isa, .mem = &m->mem, .max_rows = max_rows};
    KK_TRY(m->be->open(&m->dev, &dev, err));
    kk_gemma4_opts mo = {.backend = m->be,
                         .dev = m->dev,
                         .mem = &m->mem,
                         .max_rows = max_rows,
                         .max_logits = max_rows};
    KK_TRY(kk_gemma4_new(&m->model, m->ckpt, &mo, err));
    KK_TRY(kk_kv_layout_init(&m->layout, kk_gemma4_kv_shape(m->model), KK_F32, err));
    static const kk_mem_category category[KK_KINDS] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL};
    for (int k = 0; k < KK_KINDS; k++)
        if (m->layout.page_bytes[k])
            KK_TRY(kk_pool_new(&m->pool[k], &m->mem, category[k], m->layout.page_bytes[k], err));
    return KK_OK;
}

/* Copies the tokens, which may lie unaligned in the file, and checks them, which is the caller's
 * part of a forward. */
static kk_status take_tokens(subject *m, const expected *x, kk_err *err) {
    m->tokens = kk_calloc((size_t)m->n_tokens, sizeof *m->tokens);
    if (!m->tokens) return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", m->n_tokens);
    memcpy(m->tokens, x->tokens->data.base, (size_t)m->n_tokens * sizeof *m->tokens);
    for (int32_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i] < 0 || m->tokens[i] >= m->config->vocab)
            return kk_fail(err, KK_EFORMAT,
                           "expect.safetensors: token %d is %d, of a vocabulary of %d", i,
                           m->tokens[i], m->config->vocab);
    return KK_OK;
}

/* hidden.i is the output of layer i - 1: tap -1 is the scaled embedding, and the last one is
 * taken after the final norm, tap n_layer. */
static kk_status make_room(subject *m, const expected *x, kk_err *err) {
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
    kk_cache_free(m->cache);
    for (int k = 0; k < KK_KINDS; k++)
        if (m->pool[k]) kk_pool_free(m->pool[k]);
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

static kk_status new_cache(subject *m, int64_t max_len, kk_err *err) {
    kk_cache_free(m->cache);
    m->cache = NULL;
    kk_cache_opts opts = {
        .layout = &m->layout,
        .pool = {m->pool[0], m->pool[1]},
        .policy = {[KK_KIND_SLIDING] = &kk_kv_native, [KK_KIND_FULL] = &kk_kv_exact},
        .max_len = max_len};
    return kk_cache_new(&m->cache, &opts, err);
}

/* Runs n tokens and keeps them, with logits of the last n_logits. */
static kk_status forward(subject *m, const int32_t *tokens, int32_t n, int32_t n_logits,
                         kk_err *err) {
    kk_gemma4_group group = {.cache = m->cache,
                             .layout = &m->layout,
                             .tokens = tokens,
                             .n_rows = n,
                             .n_logits = n_logits};
    kk_gemma4_forward_args args = {.groups = &group,
                                   .n_groups = 1,
                                   .tap_layers = m->tap_layer,
                                   .n_taps = m->n_taps,
                                   .tap_out = m->taps};
    KK_TRY(kk_cache_reserve(m->cache, n, err));
    KK_TRY(kk_gemma4_forward(m->model, &args, err));
    kk_cache_commit(m->cache, kk_cache_len(m->cache) + n);
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

/* Widens the gap by the differences of n rows; what is not a number is wider than anything. */
static void compare(kk_parity_gap *gap, const float *got, const kk_tensor *want, int32_t layer) {
    const int64_t n = kk_tensor_values(want), width = want->dims[1];
    for (int64_t i = 0; i < n && !isnan(gap->max); i++) {
        float w;
        memcpy(&w, want->data.base + (size_t)i * sizeof w, sizeof w);
        const double d = fabs((double)got[i] - (double)w);
        if (d <= gap->max) continue;
        *gap = (kk_parity_gap){d, i / width, i % width, layer};
    }
}

static kk_parity_way judge(const subject *m, const expected *x, int32_t piece, bool first,
                           const kk_parity_report *r) {
    const size_t rows = (size_t)m->n_tokens, dim = (size_t)m->config->hidden;
    kk_parity_way w = {.piece = piece};
    compare(&w.logits, m->logits, x->logits, 0);
    int32_t tap = 0;
    for (int32_t i = 0; i <= m->config->n_layer; i++)
        if (x->hidden[i])
            compare(&w.hidden, m->hidden + (size_t)tap++ * rows * dim, x->hidden[i], i);
    w.same_bits =
        first ||
        (memcmp(m->logits, m->first_logits, rows * (size_t)m->config->vocab * sizeof(float)) == 0 &&
         memcmp(m->hidden, m->first_hidden, (size_t)m->n_taps * rows * dim * sizeof(float)) == 0);
    w.ok = w.same_bits && w.logits.max <= r->tol_logits && w.hidden.max <= r->tol_hidden;
    return w;
}

static int32_t argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Continues the last way's cache token by token and counts how many agree. */
static kk_status compare_greedy(subject *m, const expected *x, kk_parity_report *r, kk_err *err) {
    const int32_t vocab = m->config->vocab;
    int32_t next = argmax(m->logits + (size_t)(m->n_tokens - 1) * (size_t)vocab, vocab);
    for (r->greedy_equal = 0; r->greedy_equal < r->n_greedy; r->greedy_equal++) {
        int32_t want;
        memcpy(&want, x->greedy->data.base + (size_t)r->greedy_equal * sizeof want, sizeof want);
        if (next != want) return KK_OK;
        KK_TRY(forward(m, &next, 1, 1, err));
        KK_TRY(kk_gemma4_logits(m->model, 0, m->logits, err));
        next = argmax(m->logits, vocab);
    }
    return KK_OK;
}

static kk_status compare_all(subject *m, const expected *x, kk_parity_report *r, kk_err *err) {
    for (int32_t i = 0; i < KK_PARITY_WAYS; i++) {
        KK_TRY(new_cache(m, (int64_t)m->n_tokens + r->n_greedy + 1, err));
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

static kk_status run(subject *m, expected *x, const char *folder, const kk_parity_opts *opts,
                     kk_parity_report *r, kk_err *err) {
    KK_TRY(kk_checkpoint_open(&m->ckpt, folder, NULL, err));
    m->config = kk_checkpoint_config(m->ckpt);
    KK_TRY(open_expected(x, folder, m->config, err));
    assert(x->tokens && x->logits && x->greedy);
    m->n_tokens = (int32_t)x->tokens->dims[0];
    KK_TRY(take_tokens(m, x, err));
    KK_TRY(open_device(m, opts, m->n_tokens, err));
    KK_TRY(make_room(m, x, err));
    r->n_tokens = m->n_tokens;
    r->vocab = m->config->vocab;
    r->n_layer = m->config->n_layer;
    r->n_hidden = m->n_taps;
    r->n_greedy = (int32_t)x->greedy->dims[0];
    r->threads = m->be->threads(m->dev);
    snprintf(r->isa, sizeof r->isa, "%s", m->be->isa(m->dev));
    return compare_all(m, x, r, err);
}

kk_status kk_parity_run(const char *folder, const kk_parity_opts *opts, kk_parity_report *out,
                        kk_err *err) {
    static const kk_parity_opts defaults = {0};
    if (!opts) opts = &defaults;
    *out = (kk_parity_report){
        .tol_logits = opts->tol_logits > 0 ? opts->tol_logits : 2e-4,
        .tol_hidden = opts->tol_hidden > 0 ? opts->tol_hidden : 5e-4,
    };
    subject m = {0};
    expected x = {0};
    kk_status st = run(&m, &x, folder, opts, out, err);
    close_model(&m);
    close_expected(&x);
    KK_TRY(st);
    char *drafter = kk_path_join(folder, "dflash");
    out->has_drafter = drafter && kk_dir_exists(drafter);
    kk_free(drafter);
    out->ok = out->n_ways > 0 && out->n_hidden > 0 && out->n_greedy > 0 &&
              out->greedy_equal == out->n_greedy;
    for (int32_t i = 0; i < out->n_ways; i++) out->ok = out->ok && out->way[i].ok;
    return KK_OK;
}
