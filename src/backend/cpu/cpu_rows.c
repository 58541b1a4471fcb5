/* cpu_rows.c - operations that touch each row on its own: embedding, norms, activations. */
#include <stdatomic.h>

#include "backend/angles.h"
#include "backend/cpu/device.h"
#include "backend/sample.h"
#include "core/digest.h"

typedef struct {
    kk_dev *dev;
    const void *args;
} rows_job;

static void each_row(kk_dev *dev, int32_t n_rows, int64_t width, kk_loop_fn fn, const void *args) {
    rows_job j = {dev, args};
    kk_threads_loop(dev->threads, n_rows, kk_cpu_row_grain(width), fn, &j);
}

/* The id of row r, from wherever they are. */
static int32_t id_of(const int32_t *token, const kk_buf *chosen, int64_t r) {
    return chosen ? ((const int32_t *)chosen->data)[r] : token[r];
}

static void embed_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const kk_embed_args *a = ((const rows_job *)arg)->args;
    const size_t n = (size_t)a->table->m.n_in;
    for (int64_t r = begin; r < end; r++) {
        float *y = kk_buf_f(a->out) + (size_t)r * n;
        kk_weight_floats(a->table, id_of(a->token, a->chosen, r), y);
        for (size_t i = 0; i < n; i++) y[i] *= a->scale;
    }
}

kk_status kk_cpu_embed(kk_dev *dev, const kk_embed_args *a, kk_err *err) {
    (void)err;
    each_row(dev, a->n_rows, a->table->m.n_in, embed_rows, a);
    return KK_OK;
}

static void norm_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const kk_norm_args *a = j->args;
    const size_t n = (size_t)a->dim;
    for (int64_t r = begin; r < end; r++)
        j->dev->k->norm(kk_buf_f(a->out) + (size_t)r * n, kk_buf_f(a->x) + (size_t)r * n,
                        a->w ? kk_buf_f(a->w) : NULL, a->dim, a->eps);
}

kk_status kk_cpu_norm(kk_dev *dev, const kk_norm_args *a, kk_err *err) {
    (void)err;
    each_row(dev, a->n_rows, a->dim, norm_rows, a);
    return KK_OK;
}

void kk_cpu_frequencies(const kk_rope *p, float *freq) {
    kk_frequencies(freq, p->theta, p->factor, p->n_rot, p->head_dim);
}

static void rope_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const kk_rope_args *a = j->args;
    const int32_t n = a->rope.n_rot;
    float freq[KK_MAX_HEAD_DIM / 2];
    kk_cpu_frequencies(&a->rope, freq);
    for (int64_t r = begin; r < end; r++)
        j->dev->k->angles(kk_buf_f(a->table) + (size_t)((a->first + r) * 2 * n), freq, n,
                          a->pos ? a->pos[r] : a->pos0 + r);
}

kk_status kk_cpu_rope(kk_dev *dev, const kk_rope_args *a, kk_err *err) {
    (void)err;
    rows_job j = {dev, a};
    kk_threads_loop(dev->threads, a->n, 32, rope_rows, &j);
    return KK_OK;
}

static void residual_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    const rows_job *j = arg;
    const kk_residual_args *a = j->args;
    const size_t n = (size_t)a->dim;
    float *normed = kk_thread_scratch(j->dev, thread);
    for (int64_t r = begin; r < end; r++) {
        const float *add = kk_buf_f(a->a) + (size_t)r * n;
        if (a->w) {
            j->dev->k->norm(normed, add, kk_buf_f(a->w), a->dim, a->eps);
            add = normed;
        }
        j->dev->k->add_scale(kk_buf_f(a->x) + (size_t)r * n, add, a->dim, a->scale);
    }
}

kk_status kk_cpu_residual(kk_dev *dev, const kk_residual_args *a, kk_err *err) {
    if ((size_t)a->dim * sizeof(float) > dev->thread_stride)
        return kk_fail(err, KK_EINVAL, "rows of %d values are too wide", a->dim);
    each_row(dev, a->n_rows, a->dim, residual_rows, a);
    return KK_OK;
}

static void glu_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const kk_glu_args *a = j->args;
    const size_t n = (size_t)a->dim;
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        const float *up = kk_buf_f(a->up) + r * (size_t)a->up_stride + (size_t)a->up_offset;
        j->dev->k->glu(kk_buf_f(a->out) + r * n, kk_buf_f(a->gate) + r * n, up, a->dim, a->act);
    }
}

kk_status kk_cpu_glu(kk_dev *dev, const kk_glu_args *a, kk_err *err) {
    (void)err;
    each_row(dev, a->n_rows, 4 * (int64_t)a->dim, glu_rows, a); /* exponentials */
    return KK_OK;
}

static void ple_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const kk_ple_args *a = j->args;
    const size_t n = (size_t)a->n_layer * (size_t)a->dim;
    const float half_root = 0.70710678118654752f;
    for (int64_t r = begin; r < end; r++) {
        float *y = kk_buf_f(a->out) + (size_t)r * n;
        const float *c = kk_buf_f(a->proj) + (size_t)r * n;
        kk_weight_floats(a->table, id_of(a->token, a->chosen, r), y);
        for (int32_t l = 0; l < a->n_layer; l++, y += a->dim, c += a->dim) {
            float scaled[KK_MAX_HEAD_DIM];
            for (int32_t i = 0; i < a->dim; i++) scaled[i] = c[i] * a->proj_scale;
            j->dev->k->norm(scaled, scaled, kk_buf_f(a->w), a->dim, a->eps);
            for (int32_t i = 0; i < a->dim; i++) y[i] = (scaled[i] + y[i] * a->scale) * half_root;
        }
    }
}

kk_status kk_cpu_ple(kk_dev *dev, const kk_ple_args *a, kk_err *err) {
    if (a->dim > KK_MAX_HEAD_DIM)
        return kk_fail(err, KK_EINVAL, "per-layer inputs of %d values are too wide", a->dim);
    each_row(dev, a->n_rows, (int64_t)a->n_layer * a->dim, ple_rows, a);
    return KK_OK;
}

kk_status kk_cpu_gather(kk_dev *dev, const kk_gather_args *a, kk_err *err) {
    (void)dev;
    (void)err;
    const size_t n = (size_t)a->dim, stride = a->out_stride ? a->out_stride : n;
    for (int32_t i = 0; i < a->n; i++)
        memcpy(kk_buf_f(a->out) + a->out_at + (size_t)i * stride,
               kk_buf_f(a->x) + (size_t)(a->row ? a->row[i] : a->first + i) * n, n * sizeof(float));
    return KK_OK;
}

static void softcap_pieces(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const kk_softcap_args *a = j->args;
    j->dev->k->softcap(kk_buf_f(a->x) + begin, (int32_t)(end - begin), a->cap);
}

kk_status kk_cpu_softcap(kk_dev *dev, const kk_softcap_args *a, kk_err *err) {
    (void)err;
    rows_job j = {dev, a};
    kk_threads_loop(dev->threads, (int64_t)a->n_rows * a->dim, 16384, softcap_pieces, &j);
    return KK_OK;
}

/* A banned id is left out by looking on both sides of it, should it be the largest. */
static int32_t largest_of(const kk_kernels *k, const float *x, int32_t n, int32_t banned) {
    const int32_t best = k->largest(x, n);
    if (best != banned || n == 1) return best;
    const int32_t after = banned + 1;
    if (banned == 0) return after + k->largest(x + after, n - after);
    const int32_t low = k->largest(x, banned);
    if (after == n) return low;
    const int32_t high = after + k->largest(x + after, n - after);
    return x[high] > x[low] || (isnan(x[low]) && !isnan(x[high])) ? high : low;
}

static void argmax_rows(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    const rows_job *j = arg;
    const kk_argmax_args *a = j->args;
    const int32_t *map = a->map ? a->map->data : NULL;
    for (int64_t r = begin; r < end; r++) {
        const int32_t best =
            largest_of(j->dev->k, kk_buf_f(a->x) + (size_t)r * (size_t)a->dim, a->dim, a->banned);
        a->out[r] = map ? map[best] : best;
    }
}

kk_status kk_cpu_argmax(kk_dev *dev, const kk_argmax_args *a, kk_err *err) {
    (void)err;
    kk_argmax_args here = *a;
    rows_job j = {dev, &here};
    if (a->ids) here.out = (int32_t *)a->ids->data + a->ids_at;
    kk_threads_loop(dev->threads, a->n_rows, 1, argmax_rows, &j);
    return KK_OK;
}

kk_status kk_cpu_ids(kk_dev *dev, const kk_ids_args *a, kk_err *err) {
    (void)dev, (void)err;
    memcpy(a->out->data, a->id, (size_t)a->n * sizeof *a->id);
    return KK_OK;
}

kk_status kk_cpu_replay(kk_dev *dev, const kk_replay_args *a, kk_err *err) {
    (void)dev, (void)err;
    const int32_t *record = a->record->data;
    const int32_t at = a->at + (a->shift ? *(const int32_t *)a->shift->data : 0);
    int32_t *ids = (int32_t *)a->ids->data + a->ids_at;
    for (int32_t i = 0; i < a->n && i <= a->right; i++) {
        if (at + i < 0 || at + i >= a->n_record) break;
        ids[i] = i < a->right ? record[at + i] : (record[at + i] + 1) % a->vocab;
    }
    return KK_OK;
}

/* ---- choices ---------------------------------------------------------------------------- */

/* A piece is so many chunks of one row. */
enum { PIECE = 1024 };

typedef struct {
    const kk_choose_args *args;
    int64_t pieces; /* pieces of `dim` values in a row */
    _Atomic uint64_t sum[KK_PICK_ROWS];
    atomic_bool broken[KK_PICK_ROWS];
} choose_job;

static uint64_t digest_chunks(const float *x, int64_t dim, int64_t begin, int64_t end,
                              int *broken) {
    uint32_t word[KK_DIGEST_WORDS];
    uint64_t sum = 0, carry = 0;
    for (int64_t c = begin; c < end; c++) {
        const int64_t at = c * KK_DIGEST_WORDS, left = dim - at;
        const int n = left < KK_DIGEST_WORDS ? (int)left : KK_DIGEST_WORDS;
        memcpy(word, x + at, (size_t)n * sizeof *word);
        sum += kk_digest_chunk((uint64_t)c, word, n, &carry);
    }
    *broken = kk_digest_broken(carry);
    return sum;
}

static void digest_pieces(void *arg, int64_t begin, int64_t end, int32_t thread) {
    (void)thread;
    choose_job *j = arg;
    const int64_t dim = j->args->dim, chunks = (dim + KK_DIGEST_WORDS - 1) / KK_DIGEST_WORDS;
    for (int64_t p = begin; p < end; p++) {
        const int64_t row = p / j->pieces, from = p % j->pieces * PIECE;
        const int64_t to = from + PIECE < chunks ? from + PIECE : chunks;
        int broken;
        const uint64_t sum =
            digest_chunks(kk_buf_f(j->args->x) + row * dim, dim, from, to, &broken);
        if (broken) atomic_store_explicit(&j->broken[row], true, memory_order_relaxed);
        atomic_fetch_add_explicit(&j->sum[row], sum, memory_order_relaxed);
    }
}

/* The sampler's scratch is taken by the first choice that needs it: few devices ever do. */
static kk_status sampler_for(kk_dev *dev, int32_t vocab, kk_err *err) {
    if (dev->sampler && dev->sampler_vocab == vocab) return KK_OK;
    kk_sampler_free(dev->sampler);
    dev->sampler = NULL;
    dev->sampler_vocab = vocab;
    return kk_sampler_new(&dev->sampler, dev->mem, vocab, err);
}

/* Rows that are not greedy; the largest logit of each is chosen before. */
static kk_status sample_rows(kk_dev *dev, const kk_choose_args *a, kk_pick *pick, kk_err *err) {
    for (int32_t r = 0; r < a->n_rows; r++) {
        const kk_choose_row *w = &a->row[r];
        const float *x = kk_buf_f(a->x) + (size_t)r * (size_t)a->dim;
        if (kk_choose_is_greedy(w)) continue;
        KK_TRY(sampler_for(dev, a->dim, err));
        const kk_sample_row row = {
            .logits = x,
            .history = w->history,
            .n = w->n_history + w->n_pending,
            .pending = a->pending ? (const int32_t *)a->pending->data + w->pending : NULL,
            .n_pending = w->n_pending,
            .bias = w->bias,
            .n_bias = w->n_bias,
            .mask = w->mask};
        pick[r].token = kk_sample(dev->sampler, &w->how, &row);
        if (w->logprobs && !pick[r].broken)
            kk_sample_logprobs(dev->sampler, x, pick[r].token, w->n_best, &pick[r].logprobs);
    }
    return KK_OK;
}

/* How much of the draft is what was chosen, and what the next one begins with. */
static void match_draft(const kk_choose_args *a, kk_pick *pick) {
    const int32_t *draft = a->draft->data, n = a->n_rows - 1;
    int32_t right = 0;
    for (int32_t r = 0; r < n; r++) pick[r].drafted = draft[r + 1];
    while (right < n && pick[right].drafted == pick[right].token) right++;
    *(int32_t *)a->right->data = right;
    for (int i = 0; i < 2; i++)
        if (a->next[i]) *(int32_t *)a->next[i]->data = pick[right].token;
}

kk_status kk_cpu_choose(kk_dev *dev, const kk_choose_args *a, int64_t *ticket, kk_err *err) {
    if (a->n_rows < 1 || a->n_rows > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "choices of %d rows at once: 1 to %d", a->n_rows,
                       KK_PICK_ROWS);
    kk_pick *pick = dev->picks[dev->tickets % KK_PICKS];
    int32_t token[KK_PICK_ROWS];
    const kk_argmax_args largest = {
        .out = token, .x = a->x, .n_rows = a->n_rows, .dim = a->dim, .banned = -1};
    KK_TRY(kk_cpu_argmax(dev, &largest, err));
    choose_job j = {.args = a, .pieces = (a->dim - 1) / (PIECE * KK_DIGEST_WORDS) + 1};
    kk_threads_loop(dev->threads, a->n_rows * j.pieces, 1, digest_pieces, &j);
    for (int32_t r = 0; r < a->n_rows; r++)
        pick[r] = (kk_pick){.token = token[r],
                            .broken = atomic_load(&j.broken[r]),
                            .digest = kk_digest_end(atomic_load(&j.sum[r]), (uint64_t)a->dim),
                            .drafted = -1};
    if (a->row) KK_TRY(sample_rows(dev, a, pick, err));
    for (int32_t r = 0; r < a->n_rows; r++) ((int32_t *)a->token->data)[r] = pick[r].token;
    if (a->draft) match_draft(a, pick);
    *ticket = dev->tickets++;
    return KK_OK;
}

kk_status kk_cpu_picked(kk_dev *dev, int64_t ticket, kk_pick *out, int32_t n, double *seconds,
                        kk_err *err) {
    *seconds = 0;
    if (ticket < 0 || ticket >= dev->tickets || ticket + KK_PICKS < dev->tickets || n < 1 ||
        n > KK_PICK_ROWS)
        return kk_fail(err, KK_EINVAL, "choice %lld of %lld is not at hand", (long long)ticket,
                       (long long)dev->tickets);
    memcpy(out, dev->picks[ticket % KK_PICKS], (size_t)n * sizeof *out);
    return KK_OK;
}
