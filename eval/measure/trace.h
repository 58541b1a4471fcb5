/* trace.h - drafts that are accepted by a rule, for timing a drafter on random weights.
 *
 * Random weights agree with nothing, so that a drafter of them is never right.  A trace runs the
 * real drafter for its cost and then puts into its draft as many tokens of a recorded plain run
 * as a geometric draw says, and a wrong one behind them; the rest stays the drafter's.  Verifying,
 * matching and the comparison with plain decoding are the real ones. */
#ifndef KK_EVAL_TRACE_H
#define KK_EVAL_TRACE_H

#include "kakeya.h"

typedef struct {
    double p; /* chance that a token is right when all before it are; 0: no trace */
    uint64_t seed;
} kk_trace_opts;

/* "geom:0.744:1"; *out is zero when it is not of that form. */
kk_status kk_trace_parse(kk_trace_opts *out, const char *text, kk_err *err);
/* Tokens expected to be right of n drafted. */
double kk_trace_expected(const kk_trace_opts *opts, int32_t n);

typedef struct kk_trace kk_trace;
/* Takes the place of the drafter in a session that drafts with dflash.  Free it after the
 * session. */
kk_status kk_trace_new(kk_trace **out, kk_session *s, const kk_trace_opts *opts, kk_err *err);
void kk_trace_free(kk_trace *t); /* NULL is fine; before the engine is closed */
/* What plain decoding gives after the first `start` tokens of the session; borrowed.  A number of
 * the stream fixes the lengths that are drawn from now on. */
kk_status kk_trace_follow(kk_trace *t, int32_t start, const int32_t *ids, int32_t n,
                          uint64_t stream, kk_err *err);

#endif
