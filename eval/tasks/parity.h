/* parity.h - compares the engine with a dumped reference, number by number.
 *
 * A case is a folder with config.json, model.safetensors and expect.safetensors: `tokens` [T],
 * `logits` [T, V] after the soft-cap, `hidden.0` (the scaled embedding) to `hidden.N` (after the
 * final norm) [T, hidden], and `greedy` [n], what the reference generates after the tokens.  A
 * case may have a drafter in dflash/; parity_drafter.c says what is compared of it.
 *
 * The tokens are fed in one piece, in pieces of several sizes and one by one, with K/V in
 * float32.  Each way must agree with the reference within a tolerance, and the ways with each
 * other to the bit: a row may not depend on the rows it came with.
 *
 * A device that rounds what it multiplies cannot keep to the largest difference of float32: there
 * the root mean square of differences, relative to the reference's, is judged, and a token may be
 * another where the two were closer than differences within the tolerance could bring them. */
#ifndef KK_EVAL_PARITY_H
#define KK_EVAL_PARITY_H

#include "kakeya.h"

enum { KK_PARITY_WAYS = 5 };

typedef struct {
    double tol_logits, tol_hidden; /* 0: 2e-4 and 5e-4 */
    double tol_rms;                /* judges instead of these; 0: on "cuda" 0.02, else not */
    int32_t threads;               /* 0: all cores */
    const char *isa;               /* NULL: the best */
    const char *device;            /* NULL: "cpu" */
} kk_parity_opts;

/* The largest difference of a kind; NaN when one of the numbers was. */
typedef struct {
    double max;
    double rms; /* root mean square difference over that of the reference; of tensors the largest */
    int64_t row, column;
    int32_t layer; /* hidden states: N of hidden.N */
} kk_parity_gap;

typedef struct {
    int32_t piece; /* rows of a forward; 0: all at once */
    kk_parity_gap logits, hidden;
    bool same_bits; /* as the first way */
    bool ok;
} kk_parity_way;

/* The case's drafter, when it has one: its dumped blocks.  Everything keeps to tol_logits. */
typedef struct {
    bool present;
    int32_t n_blocks, block;        /* how many, of how many rows */
    const char *embed_scale;        /* "1", "once" or "twice": what its rows were scaled with */
    kk_parity_gap taps;             /* max 0 where the dump has none */
    kk_parity_gap hidden, logits;   /* layer: the block */
    int32_t n_drafts, drafts_equal; /* tokens drafted, and how many the reference would draft */
    int32_t drafts_near;            /* others, that it nearly would: with tol_rms */
    bool same_bits;                 /* however its context was fed */
    bool ok;
} kk_parity_draft;

typedef struct {
    int32_t n_tokens, vocab, n_layer, n_hidden;
    char isa[64];
    int32_t threads;
    double tol_logits, tol_hidden, tol_rms; /* tol_rms 0: it does not judge */
    kk_parity_way way[KK_PARITY_WAYS];
    int32_t n_ways;
    int32_t n_greedy, greedy_equal; /* tokens, and how many agree before the first difference */
    int32_t greedy_near;            /* differences that were near ties, which tol_rms passes over */
    kk_parity_draft drafter;
    bool ok; /* something was compared, and everything holds */
} kk_parity_report;

/* Fails when the case cannot be read or run; out->ok says whether it agrees. */
kk_status kk_parity_run(const char *folder, const kk_parity_opts *opts, kk_parity_report *out,
                        kk_err *err);

#endif
