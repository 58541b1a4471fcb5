/* bench_parts.h - what the files of the bench share. */
#ifndef KK_EVAL_BENCH_PARTS_H
#define KK_EVAL_BENCH_PARTS_H

#include "eval/measure/bench.h"
#include "eval/texts/promptset.h"

/* Tells what happens next; KK_ESTOPPED when that is not wanted. */
kk_status kk_bench_step(const kk_bench_opts *o, const char *what, kk_err *err);
/* Sorts x. */
kk_bench_spread kk_bench_spread_of(double *x, int32_t n);
struct json_t *kk_bench_spread_json(const kk_bench_spread *s);
/* With the samples it is of. */
struct json_t *kk_bench_rates_json(const kk_bench_spread *s, const double *rate);

/* Of the rounds of one generation, in order; and another's beside those that are there. */
kk_bench_rounds kk_bench_rounds_of(const double *seconds, int32_t n);
void kk_bench_rounds_add(kk_bench_rounds *to, const kk_bench_rounds *more);
struct json_t *kk_bench_rounds_json(const kk_bench_rounds *r);

/* Whether every set has prompts that fit, before anything is measured. */
kk_status kk_bench_arms_check(const kk_bench_opts *o, kk_engine *e, kk_err *err);
/* Compares the arms on every set. */
kk_status kk_bench_arms(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out, kk_err *err);
/* What forwards and drafts cost.  A pass measures every row count once, in the middle of the answer
 * to the prompt at hand; passes take their turn with the arms, before every round of generations
 * and after the last, so that what is predicted for a prompt and what is measured see the same
 * context and the same machine.  The set's tables are filled from all of them. */
typedef struct kk_bench_costs kk_bench_costs;
kk_status kk_bench_costs_new(kk_bench_costs **out, const kk_bench_opts *o, kk_engine *e,
                             kk_err *err);
/* From here on behind this prompt, which is borrowed, and whose answers have up to so many
 * tokens. */
kk_status kk_bench_costs_behind(kk_bench_costs *c, const kk_prompt *p, int32_t answer, kk_err *err);
void kk_bench_costs_free(kk_bench_costs *c); /* NULL is fine */
kk_status kk_bench_costs_pass(kk_bench_costs *c, kk_err *err);
int32_t kk_bench_costs_passes(const kk_bench_costs *c); /* so far */
void kk_bench_costs_fill(const kk_bench_costs *c, kk_bench_set *set);
/* Seconds of rounds with these drafts, from the passes since the first-th. */
double kk_bench_costs_predict(const kk_bench_costs *c, int32_t first, const kk_spec_stats *rounds);
/* Seconds of a pass of so many rows, between the nearest that were measured; 0: none was. */
double kk_bench_cost(const kk_bench_pass *p, int32_t n, int32_t rows);
/* A session as an arm decodes in it. */
kk_session_opts kk_bench_session(const kk_bench_opts *o, kk_spec arm, int32_t ctx);
/* Seconds that memory is read for when its bandwidth is measured. */
double kk_bench_read_s(const kk_bench_opts *o);
/* Of the device the engine runs on: how fast it reads so many bytes (0: more than any cache holds),
 * what is taken of its memory, and whether that is its own. */
kk_status kk_bench_read_rate(kk_engine *e, int64_t bytes, double seconds, double *out, kk_err *err);
void kk_bench_device_memory(kk_engine *e, kk_bench_result *out);
bool kk_bench_is_remote(const kk_engine *e);
double kk_bench_copy_s(const kk_engine *e);
/* Seconds of a forward of these rows behind the session, which stays as it is. */
kk_status kk_bench_forward(kk_session *s, const int32_t *ids, int32_t rows, double *seconds,
                           kk_err *err);
/* How many distinct experts a layer uses for them, on average, and the bytes of weights that is;
 * both 0 for a model without experts. */
kk_status kk_bench_experts(kk_session *s, const int32_t *ids, int32_t rows, kk_bench_pass *out,
                           kk_err *err);
/* Compares attention over K/V formats at the shapes of the model. */
kk_status kk_bench_attend(const kk_bench_opts *o, kk_bench_result *out, kk_err *err);
/* Compares sessions alone and together; and their part of the report, NULL: there is none. */
kk_status kk_bench_share(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out, kk_err *err);
struct json_t *kk_bench_sessions_json(const kk_bench_opts *o, const kk_bench_result *r);
/* Compares ways to sample with greedy decoding; and their part of the report, NULL: there is
 * none. */
kk_status kk_bench_sample(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out, kk_err *err);
struct json_t *kk_bench_sampling_json(const kk_bench_opts *o, const kk_bench_result *r);
/* Whether policies are to be compared; whether they can be, before anything is measured; the
 * comparison, of sessions beside which the engine has no other. */
bool kk_bench_compares(const kk_bench_opts *o);
kk_status kk_bench_policies_check(const kk_bench_opts *o, kk_engine *e, kk_err *err);
kk_status kk_bench_policies(const kk_bench_opts *o, kk_engine *e, kk_bench_result *out,
                            kk_err *err);
/* The acceptance that is replayed, or null: a trace is said to be one wherever its figures
 * stand. */
struct json_t *kk_bench_trace_json(const kk_bench_opts *o);
/* The `policies` of a report, and what they add to its settings; NULL: none were compared. */
struct json_t *kk_bench_policies_settings(const kk_bench_opts *o, const kk_bench_result *r);
struct json_t *kk_bench_policies_json(const kk_bench_opts *o, const kk_bench_result *r);

#endif
