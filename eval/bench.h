/* bench.h - how fast a model decodes and prefills here, beside how fast this machine reads.
 *
 * Memory bandwidth is measured in the same run, before and after; warm-up is on other tokens
 * than the ones timed; medians come with their spread.  The figures are of the engine as a
 * program uses it (kakeya.h), but for the rows of dense matrices, which time one operation of
 * the backend. */
#ifndef KK_EVAL_BENCH_H
#define KK_EVAL_BENCH_H

#include "kakeya.h"

enum { KK_BENCH_ROWS = 8 };

typedef struct {
    kk_engine_opts engine;
    kk_kv_format kv_format;
    int32_t ctx;     /* tokens in the context when decoding begins */
    int32_t predict; /* tokens decoded in each repeat */
    int32_t prefill; /* tokens of the timed prefill; 0: none */
    int32_t repeat;
    int32_t rows[KK_BENCH_ROWS]; /* 1 first */
    int32_t n_rows;              /* 0: no rows are timed */
    /* Told what happens next; false stops the bench with KK_ESTOPPED.  May be NULL. */
    bool (*on_step)(void *user, const char *what);
    void *user;
} kk_bench_opts;

/* Of n measurements. */
typedef struct {
    double median, min, max;
    int32_t n;
} kk_bench_spread;

typedef struct {
    int32_t rows;
    kk_bench_spread seconds; /* of one pass */
    double ratio;            /* to one row */
} kk_bench_pass;

typedef struct {
    kk_machine machine;
    kk_model_info model;
    kk_device_info device;
    double bandwidth_before, bandwidth_after; /* bytes per second */
    double bandwidth;                         /* the larger, which shares are of */
    double load_s;
    kk_bench_spread decode_tok_s, prefill_tok_s; /* prefill n 0: not timed */
    double decode_bytes_s;                       /* weights read while decoding */
    double decode_share;                         /* of the bandwidth */
    double round_ms;
    uint64_t logits_hash; /* of the last repeat */
    /* A forward of so many rows: of the whole model, its experts included, and of dense q4_0
     * matrices larger than any cache. */
    kk_bench_pass whole[KK_BENCH_ROWS], dense[KK_BENCH_ROWS];
    int32_t n_whole, n_dense;
    int64_t dense_bytes;
    int64_t bytes[KK_MEM_CATEGORIES];
    int64_t resident_over_weights; /* anonymous memory of the process, less weights; -1: unknown */
} kk_bench_result;

/* What a synthetic model would be, without making it. */
kk_status kk_bench_inspect(const char *synthetic, kk_model_info *out, kk_err *err);

kk_status kk_bench_run(const kk_bench_opts *opts, kk_bench_result *out, kk_err *err);

/* Writes the result with its settings, machine, commit and date as one JSON object.  The file
 * appears whole or not at all. */
kk_status kk_bench_write(const char *path, const kk_bench_opts *opts, const kk_bench_result *r,
                         kk_err *err);

#endif
