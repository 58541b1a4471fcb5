/* choose_cases.h - choices of any device against the sampler, from the same logits, bit for bit.
 *
 * A case draws a vocabulary, rows of logits of some kind, and options for each row; the device
 * chooses for all rows at once, and the sampler for one after the other.  Tokens, digests and
 * log-probabilities are equal, not near. */
#ifndef KK_TESTS_CHOOSE_CASES_H
#define KK_TESTS_CHOOSE_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sample.h"
#include "core/hash.h"

enum { CC_ROWS = 16, CC_HISTORY = 700, CC_PENDING = 24, CC_BIAS = 40 };

typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    kk_mem *mem;
    uint64_t random;
    int32_t vocab, n_rows;
    kk_sampler *sampler;
    float *logits; /* [CC_ROWS, vocab] */
    uint32_t *mask;
    kk_buf *x, *token, *pending;
    int32_t history[CC_HISTORY], later[CC_PENDING];
    kk_logit_bias bias[CC_ROWS][CC_BIAS];
    kk_choose_row row[CC_ROWS];
    char what[200]; /* the first difference */
} choose_world;

static uint32_t cc_below(choose_world *w, uint32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->random >> 32) * n >> 32);
}
static float cc_uniform(choose_world *w) { return (float)cc_below(w, 1 << 24) * 0x1p-24f; }

static bool cc_open(choose_world *w, int32_t vocab, kk_err *err) {
    const size_t n = (size_t)vocab * CC_ROWS * sizeof(float);
    w->vocab = vocab;
    w->logits = malloc(n);
    w->mask = calloc((size_t)vocab / 32 + 1, sizeof *w->mask);
    return w->logits && w->mask && kk_sampler_new(&w->sampler, w->mem, vocab, err) == KK_OK &&
           w->be->buf_new(w->dev, KK_MEM_WORKSPACE, n, &w->x, err) == KK_OK &&
           w->be->buf_new(w->dev, KK_MEM_WORKSPACE, KK_PICK_ROWS * 4, &w->token, err) == KK_OK &&
           w->be->buf_new(w->dev, KK_MEM_WORKSPACE, sizeof w->later, &w->pending, err) == KK_OK;
}

static void cc_close(choose_world *w) {
    w->be->buf_free(w->dev, w->x);
    w->be->buf_free(w->dev, w->token);
    w->be->buf_free(w->dev, w->pending);
    kk_sampler_free(w->sampler);
    free(w->logits);
    free(w->mask);
    w->x = w->token = w->pending = NULL;
    w->sampler = NULL;
    w->logits = NULL;
    w->mask = NULL;
}

/* Kinds of rows: like a model's, flat, clustered, tied, all equal, with values far apart, with
 * some that are not finite. */
enum { CC_KINDS = 8 };
static void cc_fill(choose_world *w, float *x, uint32_t kind) {
    for (int32_t i = 0; i < w->vocab; i++) {
        const float u = cc_uniform(w), v = cc_uniform(w);
        const float bell = sqrtf(-2 * logf(u + 1e-7f)) * cosf(6.2831853f * v);
        switch (kind) {
        case 0: x[i] = 3 * bell + (cc_below(w, 4096) == 0 ? 12 * u : 0); break;
        case 1: x[i] = bell; break;
        case 2: x[i] = 7 + 1e-4f * bell; break;
        case 3: x[i] = (float)(int32_t)(4 * bell) / 4; break;
        case 4: x[i] = -2.5f; break;
        case 5: x[i] = bell * expf(20 * v - 10); break;
        case 6: x[i] = u < 0.5f ? 0.0f : -0.0f; break;
        default:
            x[i] = u < 0.001f ? NAN : u < 0.002f ? -INFINITY : bell;
            if (u > 0.9999f && v < 0.3f) x[i] = INFINITY;
            break;
        }
    }
}

static void cc_options(choose_world *w, kk_sampling *how) {
    static const float temps[] = {0.8f, 1, 0.1f, 1.5f, 50, 1e-6f};
    static const float ps[] = {0.95f, 0.5f, 1e-6f, 0.999999f, 0.05f};
    memset(how, 0, sizeof *how);
    how->temp = cc_below(w, 8) ? temps[cc_below(w, 6)] : 0;
    if (cc_below(w, 2)) {
        const int32_t most[] = {1, 40, 64, 300, w->vocab, 2 * w->vocab};
        how->top_k = 1 + (int32_t)cc_below(w, (uint32_t)most[cc_below(w, 6)]);
    }
    if (cc_below(w, 2)) how->top_p = ps[cc_below(w, 5)];
    if (cc_below(w, 4) == 0) how->min_p = cc_below(w, 3) ? 0.05f * cc_uniform(w) : 1e-15f;
    if (cc_below(w, 3) == 0) how->repeat_penalty = 0.7f + cc_uniform(w);
    if (cc_below(w, 4) == 0) how->frequency_penalty = cc_uniform(w) - 0.3f;
    if (cc_below(w, 4) == 0) how->presence_penalty = cc_uniform(w) - 0.3f;
    how->penalty_last_n = (int32_t)cc_below(w, 4) * 50 - 1;
    how->seed = w->random;
}

/* A list with ids that come again, and some that nothing may choose. */
static size_t cc_bias(choose_world *w, kk_logit_bias *bias) {
    const size_t n = cc_below(w, 3) ? 0 : 1 + cc_below(w, CC_BIAS);
    for (size_t i = 0; i < n; i++) {
        bias[i].id = (int32_t)cc_below(w, (uint32_t)(w->vocab < 50 ? w->vocab : 50));
        if (cc_below(w, 2)) bias[i].id = w->vocab - 1 - bias[i].id;
        bias[i].bias = cc_below(w, 8) ? 6 * cc_uniform(w) - 3 : -INFINITY;
    }
    return n;
}

static void cc_mask(choose_world *w) {
    const uint32_t of = cc_below(w, 3);
    for (int32_t i = 0; i <= w->vocab / 32; i++) {
        w->mask[i] = of == 0 ? cc_below(w, 0xffffffffu) : of == 1 ? 0x01000001u : 0;
        if (of && cc_below(w, 4)) w->mask[i] = 0;
    }
    const int32_t some = (int32_t)cc_below(w, (uint32_t)w->vocab);
    w->mask[some / 32] |= 1u << some % 32;
}

/* Rows follow one another in one session, as those of a draft do: each has one token more. */
static void cc_draw(choose_world *w, uint32_t kind) {
    const int64_t known = 1 + cc_below(w, CC_HISTORY);
    w->n_rows = 1 + (int32_t)cc_below(w, CC_ROWS);
    for (int32_t i = 0; i < CC_HISTORY; i++)
        w->history[i] = (int32_t)cc_below(w, (uint32_t)(w->vocab < 90 ? w->vocab : 90));
    for (int32_t i = 0; i < CC_PENDING; i++)
        w->later[i] = (int32_t)cc_below(w, (uint32_t)(w->vocab < 90 ? w->vocab : 90));
    cc_mask(w);
    for (int32_t r = 0; r < w->n_rows; r++) {
        kk_choose_row *row = &w->row[r];
        memset(row, 0, sizeof *row);
        cc_fill(w, w->logits + (size_t)r * (size_t)w->vocab,
                kind < CC_KINDS ? kind : cc_below(w, CC_KINDS));
        cc_options(w, &row->how);
        row->history = w->history;
        row->n_history = known;
        row->pending = (int32_t)cc_below(w, 4);
        row->n_pending = r;
        row->bias = w->bias[r];
        row->n_bias = cc_bias(w, w->bias[r]);
        row->mask = cc_below(w, 4) ? NULL : w->mask;
        row->logprobs = cc_below(w, 3) == 0;
        row->n_best = (int32_t)cc_below(w, KK_MAX_LOGPROBS + 1);
        if (cc_below(w, 8) == 0) memset(row, 0, sizeof *row); /* a greedy one among them */
    }
}

static bool cc_same_logprobs(const kk_logprobs *a, const kk_logprobs *b) {
    return a->chosen.id == b->chosen.id && a->n_best == b->n_best &&
           memcmp(&a->chosen.logprob, &b->chosen.logprob, sizeof(float)) == 0 &&
           memcmp(a->best, b->best, (size_t)a->n_best * sizeof *a->best) == 0;
}

static bool cc_row_holds(choose_world *w, int32_t r, const kk_pick *got) {
    const kk_choose_row *k = &w->row[r];
    const float *x = w->logits + (size_t)r * (size_t)w->vocab;
    const kk_sample_row row = {.logits = x,
                               .history = k->history,
                               .n = k->n_history + k->n_pending,
                               .pending = w->later + k->pending,
                               .n_pending = k->n_pending,
                               .bias = k->bias,
                               .n_bias = k->n_bias,
                               .mask = k->mask};
    bool finite;
    const uint64_t digest = kk_hash_digest_of(x, (size_t)w->vocab, &finite);
    const int32_t token = kk_sample(w->sampler, &k->how, &row);
    bool holds = got->token == token && got->digest == digest && got->broken == !finite;
    if (k->logprobs && finite) {
        kk_logprobs want;
        kk_sample_logprobs(w->sampler, x, token, k->n_best, &want);
        holds = holds && cc_same_logprobs(&want, &got->logprobs);
    }
    if (holds) return true;
    const kk_sampling *h = &k->how;
    snprintf(w->what, sizeof w->what,
             "vocab %d, row %d of %d: token %d, not %d, digest %d, broken %d; temp %g k %d p %g "
             "min %g pen %g/%g/%g %d bias %zu mask %d logprobs %d/%d",
             w->vocab, r, w->n_rows, got->token, token, got->digest == digest, got->broken,
             (double)h->temp, h->top_k, (double)h->top_p, (double)h->min_p,
             (double)h->repeat_penalty, (double)h->frequency_penalty, (double)h->presence_penalty,
             h->penalty_last_n, k->n_bias, k->mask != NULL, k->logprobs, k->n_best);
    return false;
}

/* One round of choices; kind CC_KINDS: rows of any kind. */
static bool cc_round(choose_world *w, uint32_t kind) {
    kk_err err = {0};
    kk_pick pick[CC_ROWS];
    int32_t token[CC_ROWS];
    int64_t ticket;
    double seconds;
    cc_draw(w, kind);
    const kk_choose_args a = {.token = w->token,
                              .x = w->x,
                              .n_rows = w->n_rows,
                              .dim = w->vocab,
                              .row = w->row,
                              .pending = w->pending};
    const size_t n = (size_t)w->n_rows * (size_t)w->vocab * sizeof(float);
    if (w->be->write(w->dev, w->x, 0, w->logits, n, &err) != KK_OK ||
        w->be->write(w->dev, w->pending, 0, w->later, sizeof w->later, &err) != KK_OK ||
        w->be->choose(w->dev, &a, &ticket, &err) != KK_OK ||
        w->be->picked(w->dev, ticket, pick, w->n_rows, &seconds, &err) != KK_OK ||
        w->be->read(w->dev, w->token, 0, token, (size_t)w->n_rows * 4, &err) != KK_OK) {
        snprintf(w->what, sizeof w->what, "%.180s", err.msg);
        return false;
    }
    for (int32_t r = 0; r < w->n_rows; r++) {
        if (!cc_row_holds(w, r, &pick[r])) return false;
        if (token[r] == pick[r].token) continue;
        snprintf(w->what, sizeof w->what, "row %d: token %d on the device, %d on the host", r,
                 token[r], pick[r].token);
        return false;
    }
    return true;
}

#endif
