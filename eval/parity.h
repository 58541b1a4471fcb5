/* parity.h - compares the engine with a dumped reference, number by number.
 *
 * A case is a folder with config.json, model.safetensors and expect.safetensors: `tokens` [T],
 * `logits` [T, V] after the soft-cap, `hidden.0` (the scaled embedding) to `hidden.N` (after the
 * final norm) [T, hidden], and `greedy` [n], what the reference generates after the tokens.
 *
 * The tokens are fed in one piece, in pieces of several sizes and one by one, with K/V in
 * float32.  Each way must agree with the reference within a tolerance, and the ways with each
 * other to the bit: a row may not depend on the rows it came with. */
#ifndef KK_EVAL_PARITY_H
#define KK_EVAL_PARITY_H

#include "kakeya.h"

enum { KK_PARITY_WAYS = 5 };

typedef struct {
    double tol_logits, tol_hidden; /* 0: 2e-4 and 5e-4 */
    int32_t threads;               /* 0: all cores */
    const char *isa;               /* NULL: the best */
} kk_parity_opts;

/* The largest difference of a kind; NaN when one of the numbers was. */
typedef struct {
    double max;
    int64_t row, column;
    int32_t layer; /* hidden states: N of hidden.N */
} kk_parity_gap;

typedef struct {
    int32_t piece; /* rows of a forward; 0: all at once */
    kk_parity_gap logits, hidden;
    bool same_bits; /* as the first way */
    bool ok;
} kk_parity_way;

typedef struct {
    int32_t n_tokens, vocab, n_layer, n_hidden;
    char isa[16];
    int32_t threads;
    double tol_logits, tol_hidden;
    kk_parity_way way[KK_PARITY_WAYS];
    int32_t n_ways;
    int32_t n_greedy, greedy_equal; /* tokens, and how many agree before the first difference */
    bool has_drafter;               /* the case has dflash/, which is not compared here */
    bool ok;                        /* something was compared, and everything holds */
} kk_parity_report;

/* Fails when the case cannot be read or run; out->ok says whether it agrees. */
kk_status kk_parity_run(const char *folder, const kk_parity_opts *opts, kk_parity_report *out,
                        kk_err *err);

#endif
