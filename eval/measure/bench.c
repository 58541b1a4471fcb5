/* bench.c - times the engine the way it is used, and one operation of its backend.
 *
 * Every loop alternates what it compares and takes the median, because a machine's speed drifts
 * by more than the differences of interest.  Tokens are random, but for those the model chooses
 * itself while it decodes. */
#include "eval/measure/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "core/clock.h"
#include "engine/machine.h"
#include "engine/session.h"
#include "eval/measure/bench_parts.h"
#include "eval/reports/report.h"
#include "format/checkpoint.h"

enum { MAX_REPEAT = KK_BENCH_MAX_REPEAT, WARM_TOKENS = 4, WARM_PROMPT = 192, WARM_FORWARDS = 2 };
static const double prefill_budget_s = 60; /* no further repeat of a prefill after this long */

typedef struct {
    const kk_bench_opts *opts;
    kk_bench_result *out;
    kk_engine *engine;
    kk_session *session;
    int32_t *tokens;      /* as long as the longest prompt */
    kk_round_times times; /* [predict]: of the generation at hand */
} bench;

/* ---- small things ------------------------------------------------------------------------ */

kk_status kk_bench_step(const kk_bench_opts *o, const char *what, kk_err *err) {
    if (!o->on_step || o->on_step(o->user, what)) return KK_OK;
    return kk_fail(err, KK_ESTOPPED, "stopped while %s", what ? what : "measuring");
}

static kk_status step(const bench *b, const char *what, kk_err *err) {
    return kk_bench_step(b->opts, what, err);
}

static bool go_on(void *user, int64_t done, int64_t total) {
    const bench *b = user;
    (void)done, (void)total;
    return !b->opts->on_step || b->opts->on_step(b->opts->user, NULL);
}

static bool on_token(void *user, int32_t id) {
    (void)id;
    return go_on(user, 0, 0);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

kk_bench_spread kk_bench_spread_of(double *x, int32_t n) {
    if (n == 0) return (kk_bench_spread){0};
    qsort(x, (size_t)n, sizeof *x, ascending);
    const double median = n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
    return (kk_bench_spread){.median = median, .min = x[0], .max = x[n - 1], .n = n};
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* n random ids, other ones for every seed. */
static const int32_t *random_tokens(bench *b, int32_t n, uint64_t seed) {
    uint64_t state = 0x9e3779b97f4a7c15u * (seed + 1);
    for (int32_t i = 0; i < n; i++)
        b->tokens[i] = (int32_t)(draw(&state) % (uint64_t)b->out->model.vocab);
    return b->tokens;
}

/* The kernel's count of this process's anonymous resident bytes; -1 where it does not say. */
static int64_t resident_anonymous(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long kb = -1;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb < 0 ? -1 : (int64_t)kb * 1024;
}

/* Looked at after every chunk and phase; the largest sample is kept. */
static void note_memory(bench *b) {
    int64_t now = resident_anonymous();
    kk_engine_memory(b->engine, b->out->bytes);
    kk_bench_device_memory(b->engine, b->out);
    if (now < 0) return;
    if (strcmp(b->out->model.format, "synthetic") == 0)
        now -= b->out->bytes[KK_MEM_WEIGHTS_VERIFIER] + b->out->bytes[KK_MEM_WEIGHTS_DRAFTER];
    if (now > b->out->resident_over_weights) b->out->resident_over_weights = now;
}

/* ---- decode and prefill ------------------------------------------------------------------ */

/* Decodes n rounds.  The token before the first of them comes from the logits at hand. */
static kk_status generate(bench *b, int32_t n, kk_result *result, kk_err *err) {
    kk_generate_opts opts = {.max_tokens = n + 1, .ignore_eos = true};
    b->times.n = 0;
    KK_TRY(kk_generate(b->session, &opts, on_token, b, result, err));
    if (result->n_tokens <= n) return kk_fail(err, KK_ESTOPPED, "stopped while decoding");
    return KK_OK;
}

static bool after_chunk(void *user, int64_t done, int64_t total) {
    note_memory(user);
    return go_on(user, done, total);
}

static kk_status append_random(bench *b, int32_t n, uint64_t seed, kk_err *err) {
    return kk_session_append(b->session, random_tokens(b, n, seed), (size_t)n, after_chunk, b, err);
}

static kk_status rewind_to(bench *b, int32_t len, kk_err *err) {
    int32_t evaluated;
    return kk_session_rewind(b->session, len, &evaluated, err);
}

static kk_status warm_up(bench *b, kk_err *err) {
    kk_result ignored;
    KK_TRY(step(b, "warming up", err));
    /* Enough rows to reach every expert: the first touch of a mapped page is not what is timed. */
    KK_TRY(append_random(b, WARM_PROMPT, 1, err));
    KK_TRY(generate(b, WARM_TOKENS, &ignored, err));
    return rewind_to(b, 0, err);
}

/* Behind a context of ctx tokens, of which some may be there already. */
/* Which experts were read from host memory meanwhile. */
static void note_offload(const bench *b, const kk_offload *before, kk_bench_decode *out) {
    kk_engine_offload(b->engine, &out->offload);
    out->offload.hits -= before->hits;
    out->offload.misses -= before->misses;
    out->offload.gpu_bytes -= before->gpu_bytes;
    out->offload.host_bytes -= before->host_bytes;
}

static kk_status time_decode(bench *b, int32_t ctx, kk_bench_decode *out, kk_err *err) {
    const kk_bench_opts *o = b->opts;
    double rate[MAX_REPEAT], round[MAX_REPEAT];
    const int32_t there = kk_session_len(b->session);
    int64_t tokens = 0, syncs = 0, ahead = 0;
    KK_TRY(step(b, "filling the context", err));
    KK_TRY(append_random(b, ctx - there, 2 + (uint64_t)there, err));
    KK_TRY(kk_session_checkpoint(b->session, err));
    KK_TRY(step(b, "decoding", err));
    kk_offload before;
    kk_engine_offload(b->engine, &before);
    for (int32_t i = 0; i < o->repeat; i++) {
        kk_result r;
        KK_TRY(generate(b, o->predict, &r, err));
        KK_TRY(rewind_to(b, ctx, err));
        rate[i] = (double)(r.n_tokens - 1) / r.decode_s;
        round[i] = 1e3 * r.decode_s / (double)r.rounds;
        out->logits_hash = r.logits_hash;
        out->turn[i] = kk_bench_rounds_of(b->times.seconds, b->times.n);
        kk_bench_rounds_add(&out->rounds, &out->turn[i]);
        tokens += r.n_tokens - 1;
        syncs += r.syncs;
        ahead += r.spec.ahead;
    }
    note_offload(b, &before, out);
    out->tokens = tokens;
    out->ctx = ctx;
    memcpy(out->rate, rate, (size_t)o->repeat * sizeof *rate);
    out->tok_s = kk_bench_spread_of(rate, o->repeat);
    out->round_ms = kk_bench_spread_of(round, o->repeat).median;
    out->syncs = (double)syncs / (double)tokens;
    out->ahead = (double)ahead / (double)tokens;
    note_memory(b);
    return KK_OK;
}

static kk_status time_longer(bench *b, kk_err *err) {
    for (int32_t i = 0; i < b->opts->n_longer; i++)
        KK_TRY(time_decode(b, b->opts->longer[i], &b->out->longer[i], err));
    return KK_OK;
}

static kk_status time_prefill(bench *b, kk_err *err) {
    const kk_bench_opts *o = b->opts;
    double rate[MAX_REPEAT];
    int32_t n = 0;
    if (o->prefill == 0) return KK_OK;
    KK_TRY(step(b, "prefilling", err));
    for (const double start = kk_now(); n < o->repeat; n++) {
        if (n > 0 && kk_now() - start > prefill_budget_s) break;
        KK_TRY(rewind_to(b, 0, err));
        const double begin = kk_now();
        KK_TRY(append_random(b, o->prefill, 3 + (uint64_t)n, err));
        rate[n] = (double)o->prefill / (kk_now() - begin);
    }
    memcpy(b->out->prefill_rate, rate, (size_t)n * sizeof *rate);
    b->out->prefill_tok_s = kk_bench_spread_of(rate, n);
    note_memory(b);
    return KK_OK;
}

/* The ids of the r-th count of rows in repeat i: others every time. */
static const int32_t *rows_of(bench *b, int32_t i, int32_t r) {
    return random_tokens(b, b->opts->rows[r], 100 + (uint64_t)(i * KK_BENCH_ROWS + r));
}

/* The distinct experts of all rows that will be timed.  Before, because a forward after one that
 * stops at every layer takes longer. */
static kk_status count_experts(bench *b, kk_err *err) {
    const kk_bench_opts *o = b->opts;
    for (int32_t i = 0; i < o->repeat; i++) {
        for (int32_t r = 0; r < o->n_rows; r++) {
            kk_bench_pass chose = {0};
            if (!go_on(b, 0, 0)) return kk_fail(err, KK_ESTOPPED, "stopped while counting experts");
            KK_TRY(kk_bench_experts(b->session, rows_of(b, i, r), o->rows[r], &chose, err));
            b->out->whole[r].experts += chose.experts / o->repeat;
            b->out->whole[r].bytes += chose.bytes;
        }
    }
    for (int32_t r = 0; r < o->n_rows; r++) b->out->whole[r].bytes /= o->repeat;
    return KK_OK;
}

/* The times of n repeats, beside those of the first count of rows; sorts them. */
static void sum_up(kk_bench_pass *p, int32_t rows, double *seconds, int32_t n,
                   const kk_bench_pass *first) {
    p->rows = rows;
    memcpy(p->sample, seconds, (size_t)n * sizeof *seconds);
    p->n_samples = n;
    p->seconds = kk_bench_spread_of(seconds, n);
    p->ratio = p->seconds.median / first->seconds.median;
}

/* A forward of R rows of the whole model at the decode's context, as a verification of R - 1
 * drafted tokens would be. */
static kk_status time_whole(bench *b, kk_err *err) {
    const kk_bench_opts *o = b->opts;
    double seconds[KK_BENCH_ROWS][MAX_REPEAT], warm;
    if (o->n_rows == 0) return KK_OK;
    KK_TRY(step(b, "timing rows of the whole model", err));
    KK_TRY(count_experts(b, err));
    for (int32_t i = 0; i < o->repeat; i++) {
        for (int32_t r = 0; r < o->n_rows; r++) {
            const int32_t *ids = rows_of(b, i, r);
            if (!go_on(b, 0, 0)) return kk_fail(err, KK_ESTOPPED, "stopped while timing rows");
            for (int k = 0; i == 0 && k < WARM_FORWARDS; k++) /* until the device knows it */
                KK_TRY(kk_bench_forward(b->session, ids, o->rows[r], &warm, err));
            KK_TRY(kk_bench_forward(b->session, ids, o->rows[r], &seconds[r][i], err));
        }
    }
    for (int32_t r = 0; r < o->n_rows; r++)
        sum_up(&b->out->whole[r], o->rows[r], seconds[r], o->repeat, b->out->whole);
    b->out->n_whole = o->n_rows;
    note_memory(b);
    return KK_OK;
}

/* ---- rows of dense matrices -------------------------------------------------------------- */

/* Gate and up matrices of 31B's shape: 8 of 65 MB each, so that no cache holds what is read. */
enum { DENSE_OUT = 21504, DENSE_IN = 5376, DENSE_LAYERS = 4, DENSE_MATS = 2 };

typedef struct {
    const kk_backend *be;
    kk_dev *dev;
    kk_mem mem;
    uint8_t *data;
    size_t bytes;
    kk_weight *weight[DENSE_LAYERS][DENSE_MATS];
    kk_buf *x, *out[DENSE_MATS];
} dense;

/* Random blocks of q4_0: a half-precision scale, then 16 bytes of two values each. */
static void fill_blocks(uint8_t *data, size_t bytes) {
    enum { BLOCK = 18 };
    const uint16_t scale = kk_f32_f16(0.004f);
    uint64_t state = 88172645463325252u;
    for (size_t at = 0; at + BLOCK <= bytes; at += BLOCK) {
        const uint64_t bits[2] = {draw(&state), draw(&state)};
        memcpy(data + at, &scale, sizeof scale);
        memcpy(data + at + sizeof scale, bits, sizeof bits);
    }
}

static kk_status dense_open(dense *d, const bench *b, int32_t max_rows, kk_err *err) {
    size_t one;
    if (!kk_dtype_bytes(KK_Q4_0, (uint64_t)DENSE_OUT * DENSE_IN, &one))
        return kk_fail(err, KK_EINVAL, "dense matrices do not fill q4_0 blocks");
    d->be = kk_backend_named(b->out->device.device);
    kk_dev_opts opts = {.threads = b->out->device.threads,
                        .pin = !b->opts->engine.no_pin,
                        .isa = b->opts->engine.isa,
                        .mem = &d->mem,
                        .max_rows = max_rows};
    KK_TRY(d->be->open(&d->dev, &opts, err));
    d->bytes = one * DENSE_LAYERS * DENSE_MATS;
    d->data = kk_mem_take(&d->mem, KK_MEM_WEIGHTS_VERIFIER, d->bytes);
    if (!d->data) return kk_fail(err, KK_ENOMEM, "no memory for %zu bytes of matrices", d->bytes);
    fill_blocks(d->data, d->bytes);
    for (int l = 0; l < DENSE_LAYERS; l++)
        for (int i = 0; i < DENSE_MATS; i++) {
            kk_matrix m = {.dtype = KK_Q4_0,
                           .n_mat = 1,
                           .n_out = DENSE_OUT,
                           .n_in = DENSE_IN,
                           .data = d->data + one * (size_t)(l * DENSE_MATS + i)};
            KK_TRY(d->be->weight_new(d->dev, &m, &d->weight[l][i], err));
            KK_TRY(
                d->be->prepare(d->dev, &(kk_prepare_args){.w = d->weight[l][i], .n_used = 1}, err));
        }
    const size_t rows = (size_t)max_rows * sizeof(float);
    KK_TRY(d->be->buf_new(d->dev, KK_MEM_WORKSPACE, rows * DENSE_IN, &d->x, err));
    for (int i = 0; i < DENSE_MATS; i++)
        KK_TRY(d->be->buf_new(d->dev, KK_MEM_WORKSPACE, rows * DENSE_OUT, &d->out[i], err));
    return KK_OK;
}

static void dense_close(dense *d) {
    if (!d->dev) return;
    for (int l = 0; l < DENSE_LAYERS; l++)
        for (int i = 0; i < DENSE_MATS; i++)
            if (d->weight[l][i]) d->be->weight_free(d->dev, d->weight[l][i]);
    for (int i = 0; i < DENSE_MATS; i++)
        if (d->out[i]) d->be->buf_free(d->dev, d->out[i]);
    if (d->x) d->be->buf_free(d->dev, d->x);
    kk_mem_give(&d->mem, KK_MEM_WEIGHTS_VERIFIER, d->data, d->bytes);
    d->be->close(d->dev);
}

static kk_status dense_fill_rows(dense *d, int32_t rows, kk_err *err) {
    float row[DENSE_IN];
    uint64_t state = 2463534242u;
    for (int32_t r = 0; r < rows; r++) {
        for (int i = 0; i < DENSE_IN; i++)
            row[i] = (float)(draw(&state) & 0xffff) / 65536.0f - 0.5f;
        KK_TRY(d->be->write(d->dev, d->x, (size_t)r * sizeof row, row, sizeof row, err));
    }
    return KK_OK;
}

/* Seconds of one pass of R rows over all the matrices. */
static kk_status dense_pass(dense *d, int32_t rows, double *seconds, kk_err *err) {
    const double begin = kk_now();
    for (int l = 0; l < DENSE_LAYERS; l++) {
        kk_linear_args a = {.n = DENSE_MATS, .x = d->x, .n_rows = rows};
        for (int i = 0; i < DENSE_MATS; i++) {
            a.out[i] = d->out[i];
            a.w[i] = d->weight[l][i];
        }
        KK_TRY(d->be->linear(d->dev, &a, err));
    }
    KK_TRY(d->be->instruments->sync(d->dev, err));
    *seconds = kk_now() - begin;
    return KK_OK;
}

static kk_status dense_measure(bench *b, dense *d, int32_t max_rows, kk_err *err) {
    const kk_bench_opts *o = b->opts;
    double seconds[KK_BENCH_ROWS][MAX_REPEAT], warm;
    KK_TRY(dense_open(d, b, max_rows, err));
    KK_TRY(dense_fill_rows(d, max_rows, err));
    KK_TRY(dense_pass(d, max_rows, &warm, err));
    for (int32_t i = 0; i < o->repeat; i++)
        for (int32_t r = 0; r < o->n_rows; r++) {
            if (!go_on(b, 0, 0)) return kk_fail(err, KK_ESTOPPED, "stopped while timing rows");
            KK_TRY(dense_pass(d, o->rows[r], &seconds[r][i], err));
        }
    for (int32_t r = 0; r < o->n_rows; r++)
        sum_up(&b->out->dense[r], o->rows[r], seconds[r], o->repeat, b->out->dense);
    b->out->n_dense = o->n_rows;
    b->out->dense_bytes = (int64_t)d->bytes;
    return KK_OK;
}

static kk_status time_dense(bench *b, kk_err *err) {
    int32_t max_rows = 0;
    for (int32_t r = 0; r < b->opts->n_rows; r++)
        if (b->opts->rows[r] > max_rows) max_rows = b->opts->rows[r];
    if (max_rows == 0 || b->out->device_total) return KK_OK; /* packed weights are the CPU's */
    KK_TRY(step(b, "timing rows of dense matrices", err));
    dense d = {0};
    const kk_status st = dense_measure(b, &d, max_rows, err);
    dense_close(&d);
    return st;
}

/* ---- all of it --------------------------------------------------------------------------- */

static kk_status check(const kk_bench_opts *o, kk_err *err) {
    if (o->ctx < 1 || o->predict < 1 || o->prefill < 0)
        return kk_fail(err, KK_EINVAL, "context and tokens must be at least 1");
    if (o->repeat < 1 || o->repeat > MAX_REPEAT)
        return kk_fail(err, KK_EINVAL, "%d repeats; 1 to %d are possible", o->repeat, MAX_REPEAT);
    if (o->n_rows < 0 || o->n_rows > KK_BENCH_ROWS)
        return kk_fail(err, KK_EINVAL, "%d row counts; %d at most", o->n_rows, KK_BENCH_ROWS);
    if (o->sessions < 0 || o->sessions > KK_BENCH_MOST_SESSIONS)
        return kk_fail(err, KK_EINVAL, "%d sessions; %d at most", o->sessions,
                       KK_BENCH_MOST_SESSIONS);
    if (o->n_longer < 0 || o->n_longer > KK_BENCH_CONTEXTS)
        return kk_fail(err, KK_EINVAL, "%d contexts more; %d at most", o->n_longer,
                       KK_BENCH_CONTEXTS);
    for (int32_t i = 0; i < o->n_longer; i++)
        if (o->longer[i] <= (i ? o->longer[i - 1] : o->ctx))
            return kk_fail(err, KK_EINVAL, "contexts are named in ascending order");
    for (int32_t i = 0; i < o->n_rows; i++)
        if (o->rows[i] < 1 || o->rows[i] > 128 || (i == 0 && o->rows[i] != 1))
            return kk_fail(err, KK_EINVAL, "row counts start with 1 and end at 128 at most");
    if (o->n_arms < 0 || o->n_arms > KK_BENCH_ARMS || (o->n_arms && o->arms[0] != KK_SPEC_NONE))
        return kk_fail(err, KK_EINVAL, "arms start with plain decoding; %d at most", KK_BENCH_ARMS);
    if (o->n_arms && (o->samples < 1 || o->samples >= KK_PROMPTSET_MOST))
        return kk_fail(err, KK_EINVAL, "%d prompts of a set; 1 to %d are possible", o->samples,
                       KK_PROMPTSET_MOST - 1);
    return KK_OK;
}

static kk_status open_engine(bench *b, kk_err *err) {
    const kk_bench_opts *o = b->opts;
    KK_TRY(step(b, o->engine.synthetic ? "making random weights" : "opening the model", err));
    const double begin = kk_now();
    KK_TRY(kk_engine_open(&b->engine, &o->engine, err));
    b->out->load_s = kk_now() - begin;
    b->out->copy_s = kk_bench_copy_s(b->engine);
    kk_engine_info(b->engine, &b->out->model);
    kk_engine_device(b->engine, &b->out->device);
    b->out->token_bytes =
        kk_checkpoint_token_bytes(b->engine->checkpoint, b->engine->backend->instruments->stored);
    (void)kk_engine_drafter(b->engine, &b->out->drafter);
    (void)kk_engine_projection(b->engine, &b->out->restores);
    b->out->projection = kk_report_projection(b->engine);
    kk_engine_fingerprints(b->engine, &b->out->prints);

    const int32_t longest = o->n_longer ? o->longer[o->n_longer - 1] : o->ctx;
    const int32_t decode = longest + o->predict + 256;
    const int32_t need = decode > o->prefill ? decode : o->prefill;
    const kk_session_opts session = kk_bench_session(o, KK_SPEC_NONE, need + 1);
    KK_TRY(kk_session_new(&b->session, b->engine, &session, err));
    b->tokens = kk_calloc((size_t)need + 1, sizeof *b->tokens);
    b->times.seconds = kk_calloc((size_t)o->predict, sizeof *b->times.seconds);
    if (!b->tokens || !b->times.seconds)
        return kk_fail(err, KK_ENOMEM, "no memory for %d tokens", need);
    b->times.cap = o->predict;
    b->session->times = &b->times;
    return KK_OK;
}

static void close_engine(bench *b) {
    kk_session_free(b->session);
    if (b->engine) kk_engine_device(b->engine, &b->out->device); /* it counts near ties */
    kk_engine_close(b->engine);
    kk_free(b->tokens);
    kk_free(b->times.seconds);
    b->times.seconds = NULL;
    b->session = NULL;
    b->engine = NULL;
    b->tokens = NULL;
}

static kk_status measure_bandwidth(bench *b, double *out, kk_err *err) {
    KK_TRY(step(b, "measuring memory bandwidth", err));
    return kk_bench_read_rate(b->engine, 0, kk_bench_read_s(b->opts), out, err);
}

static kk_status measure_floor(bench *b, kk_err *err) {
    KK_TRY(step(b, "measuring how fast the weights of a token can be read", err));
    return kk_bench_read_rate(b->engine, b->out->token_bytes, kk_bench_read_s(b->opts) / 2,
                              &b->out->floor_bytes_s, err);
}

static void conclude(kk_bench_result *r) {
    r->bandwidth =
        r->bandwidth_before > r->bandwidth_after ? r->bandwidth_before : r->bandwidth_after;
    r->decode_bytes_s = (double)r->token_bytes * r->decode.tok_s.median;
    r->decode_share = r->bandwidth > 0 ? r->decode_bytes_s / r->bandwidth : 0;
    r->floor_share = r->floor_bytes_s > 0 ? r->decode_bytes_s / r->floor_bytes_s : 0;
}

/* Plain decoding, and what of it the device ran as layers of its own. */
static kk_status time_fused(bench *b, kk_err *err) {
    kk_fused before, *f = &b->out->fused;
    kk_engine_fused(b->engine, &before);
    KK_TRY(time_decode(b, b->opts->ctx, &b->out->decode, err));
    kk_engine_fused(b->engine, f);
    f->layers_fused -= before.layers_fused;
    f->layers_by_ops -= before.layers_by_ops;
    f->heads_fused -= before.heads_fused;
    f->heads_by_ops -= before.heads_by_ops;
    return KK_OK;
}

static kk_status run(bench *b, kk_err *err) {
    KK_TRY(open_engine(b, err));
    if (b->opts->n_arms) KK_TRY(kk_bench_arms_check(b->opts, b->engine, err));
    if (kk_bench_compares(b->opts)) KK_TRY(kk_bench_policies_check(b->opts, b->engine, err));
    if (b->opts->attention && kk_bench_is_remote(b->engine))
        return kk_fail(err, KK_EDEVICE, "attention alone is timed on the CPU only, not on '%s'",
                       b->out->device.device);
    KK_TRY(measure_bandwidth(b, &b->out->bandwidth_before, err));
    KK_TRY(measure_floor(b, err));
    KK_TRY(warm_up(b, err));
    KK_TRY(time_fused(b, err));
    KK_TRY(time_whole(b, err));
    KK_TRY(time_longer(b, err));
    KK_TRY(time_prefill(b, err));
    if (b->opts->n_arms) KK_TRY(kk_bench_arms(b->opts, b->engine, b->out, err));
    note_memory(b);
    kk_session_free(b->session);
    b->session = NULL;
    if (kk_bench_compares(b->opts)) KK_TRY(kk_bench_policies(b->opts, b->engine, b->out, err));
    if (b->opts->sessions) KK_TRY(kk_bench_share(b->opts, b->engine, b->out, err));
    if (b->opts->sampling) KK_TRY(kk_bench_sample(b->opts, b->engine, b->out, err));
    KK_TRY(measure_bandwidth(b, &b->out->bandwidth_after, err));
    close_engine(b); /* its memory may be needed now */
    if (b->opts->attention) KK_TRY(kk_bench_attend(b->opts, b->out, err));
    return time_dense(b, err);
}

kk_status kk_bench_inspect(const char *synthetic, kk_model_info *out, kk_err *err) {
    kk_checkpoint *c;
    KK_TRY(kk_checkpoint_synthetic(&c, synthetic, NULL, err));
    kk_checkpoint_info(c, out);
    kk_checkpoint_close(c);
    return KK_OK;
}

kk_status kk_bench_run(const kk_bench_opts *opts, kk_bench_result *out, kk_err *err) {
    *out = (kk_bench_result){.resident_over_weights = -1};
    KK_TRY(check(opts, err));
    kk_machine_info(&out->machine);
    bench b = {.opts = opts, .out = out};
    const kk_status st = run(&b, err);
    close_engine(&b);
    if (st == KK_OK)
        conclude(out);
    else
        kk_bench_release(out);
    return st;
}

void kk_bench_release(kk_bench_result *r) {
    json_decref(r->projection);
    r->projection = NULL;
    kk_free(r->sessions.gaps);
    r->sessions.gaps = NULL;
    for (int32_t i = 0; i < KK_BENCH_SETS; i++) {
        kk_free(r->set[i].row);
        r->set[i].row = NULL;
    }
}
