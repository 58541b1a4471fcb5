/* bench_table.h - the parts of the bench's table that compare: arms, K/V formats, policies. */
#ifndef KAKEYA_CLI_BENCH_TABLE_H
#define KAKEYA_CLI_BENCH_TABLE_H

#include "eval/measure/bench.h"

/* A line about how long rounds took: nothing of none. */
void bench_print_rounds(const kk_bench_rounds *r);
void bench_print_sets(const kk_bench_opts *o, const kk_bench_result *r);
void bench_print_attention(const kk_bench_opts *o, const kk_bench_result *r);
void bench_print_sessions(const kk_bench_opts *o, const kk_bench_result *r);
void bench_print_sampling(const kk_bench_opts *o, const kk_bench_result *r);
void bench_print_policies(const kk_bench_opts *o, const kk_bench_result *r);

#endif
