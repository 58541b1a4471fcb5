/* bench_parts.h - what the files of the bench share. */
#ifndef KK_EVAL_BENCH_PARTS_H
#define KK_EVAL_BENCH_PARTS_H

#include "eval/bench.h"
#include "eval/promptset.h"

enum { KK_BENCH_MAX_REPEAT = 64 };

/* Tells what happens next; KK_ESTOPPED when that is not wanted. */
kk_status kk_bench_step(const kk_bench_opts *o, const char *what, kk_err *err);
/* Sorts x. */
kk_bench_spread kk_bench_spread_of(double *x, int32_t n);

/* Compares the arms on every set. */
kk_status kk_bench_arms(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out, kk_err *err);
/* What forwards and drafts cost behind this prompt, into the set's tables. */
kk_status kk_bench_costs(const kk_bench_opts *o, kk_engine *e, const kk_prompt *p,
                         kk_bench_set *set, kk_err *err);
/* Seconds of a pass of so many rows, between the nearest that were measured; 0: none was. */
double kk_bench_cost(const kk_bench_pass *p, int32_t n, int32_t rows);
/* A session as an arm decodes in it. */
kk_session_opts kk_bench_session(const kk_bench_opts *o, kk_spec arm, int32_t ctx);
/* Compares attention over K/V formats at the shapes of the model. */
kk_status kk_bench_attend(const kk_bench_opts *o, kk_bench_result *out, kk_err *err);

#endif
