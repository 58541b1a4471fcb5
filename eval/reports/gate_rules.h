/* gate_rules.h - what the files of rules share: how a rule looks into a report and how it speaks.
 *
 * A report is hostile: any member may be missing or of another type.  The readers below answer for
 * all of them, so that a rule says only what it is about. */
#ifndef KK_EVAL_GATE_RULES_H
#define KK_EVAL_GATE_RULES_H

#include "eval/reports/gate.h"

typedef struct {
    kk_verdict *verdict;
    const json_t *report;
    const char *code; /* of the rule at work */
    bool always;
    size_t said; /* by it */
    kk_status status;
} kk_gate;

/* The least that figures rest on. */
enum { KK_GATE_SAMPLES = 5, KK_GATE_TOKENS = 32, KK_GATE_KL_ROWS = 256 };
#define KK_GATE_PREFILL_SPREAD 3.0

/* What the rule at work found: a sentence with the value.  After a few it only counts. */
void kk_gate_say(kk_gate *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- readers ------------------------------------------------------------------------------ */

const json_t *kk_gate_get(const json_t *o, const char *key); /* NULL: absent, or null */
bool kk_gate_number(const json_t *o, const char *key, double *out);
double kk_gate_number_or(const json_t *o, const char *key, double otherwise);
const char *kk_gate_text(const json_t *o, const char *key); /* "" when it is none */
bool kk_gate_true(const json_t *o, const char *key);
size_t kk_gate_size(const json_t *o, const char *key); /* of a list; 0 when it is none */
const json_t *kk_gate_item(const json_t *o, const char *key, size_t i);
bool kk_gate_is(const kk_gate *g, const char *kind);
/* Equal but for the six digits that reports are written with. */
bool kk_gate_same(double a, double b);
/* Sum of a number over a list; false when an item has none. */
bool kk_gate_sum(const json_t *o, const char *list, const char *key, double *out);

/* Every object of the report with where it lies, as in "sets[2].arms.plain". */
typedef void (*kk_gate_visit)(kk_gate *g, const char *where, const json_t *object);
void kk_gate_walk(kk_gate *g, kk_gate_visit visit);

/* ---- shapes that kinds share --------------------------------------------------------------- */

/* The list of answers to documents of an object: "answers", or "rows" that hold some.  NULL: it
 * has none. */
const json_t *kk_gate_answers(const json_t *o);
/* The settings of the cache of an arm or policy: of needle's `arms`, of a row itself; NULL: not
 * said. */
const json_t *kk_gate_cache(const kk_gate *g, const json_t *row);
bool kk_gate_restored(const kk_gate *g, const json_t *row); /* whether they say restored */
/* Whether two arms keep their rows in the same way. */
bool kk_gate_same_cache(const json_t *a, const json_t *b);

/* The entries of a bench that hold arms with rows: its sets, then its policies.  NULL: no more. */
const json_t *kk_gate_timed(const kk_gate *g, size_t i);
const char *kk_gate_timed_name(const json_t *timed);

/* ---- the rules ----------------------------------------------------------------------------- */

typedef void (*kk_gate_check_fn)(kk_gate *g);

/* gate_envelope.c */
void kk_rule_missing_envelope(kk_gate *g);
void kk_rule_missing_commit(kk_gate *g);
void kk_rule_fingerprint_missing(kk_gate *g);
void kk_rule_fingerprint_mismatch(kk_gate *g);
void kk_rule_not_finite(kk_gate *g);
void kk_rule_synthetic_unlabelled(kk_gate *g);
void kk_rule_trace_unlabelled(kk_gate *g);
void kk_rule_missing_rows(kk_gate *g);
/* gate_restored.c */
void kk_rule_restored_uncounted(kk_gate *g);
void kk_rule_restored_nothing(kk_gate *g);
void kk_rule_restored_no_latents(kk_gate *g);
void kk_rule_mixed_paths(kk_gate *g);
void kk_rule_baseline_restored(kk_gate *g);
void kk_rule_baseline_as_sut(kk_gate *g);
void kk_rule_reach_mismatch(kk_gate *g);
/* gate_policies.c */
void kk_rule_policy_recount(kk_gate *g);
/* gate_sessions.c */
void kk_rule_sessions_recount(kk_gate *g);
/* gate_recall.c */
void kk_rule_empty_needle(kk_gate *g);
void kk_rule_recall_recount(kk_gate *g);
void kk_rule_recall_scope(kk_gate *g);
void kk_rule_recall_alone(kk_gate *g);
/* gate_quality.c */
void kk_rule_kl_recount(kk_gate *g);
void kk_rule_kl_rows(kk_gate *g);
void kk_rule_kl_range(kk_gate *g);
void kk_rule_rel_mse_recount(kk_gate *g);
void kk_rule_bits_recount(kk_gate *g);
void kk_rule_knee_recount(kk_gate *g);
void kk_rule_seeds_overlap(kk_gate *g);
void kk_rule_loss_recount(kk_gate *g);
/* gate_checks.c */
void kk_rule_gate_constant(kk_gate *g);
void kk_rule_gate_recount(kk_gate *g);
/* gate_speed.c */
void kk_rule_rate_recount(kk_gate *g);
void kk_rule_spread_missing(kk_gate *g);
void kk_rule_spread_order(kk_gate *g);
void kk_rule_drafting_never_ran(kk_gate *g);
void kk_rule_lossless_unproven(kk_gate *g);
void kk_rule_lossless_contradicted(kk_gate *g);
void kk_rule_accept_recount(kk_gate *g);
/* gate_rounds.c */
void kk_rule_round_times(kk_gate *g);
/* gate_speedup.c */
void kk_rule_speedup_recount(kk_gate *g);
void kk_rule_speedup_self(kk_gate *g);
void kk_rule_speedup_baseline(kk_gate *g);
void kk_rule_speedup_rows(kk_gate *g);
void kk_rule_speedup_samples(kk_gate *g);
void kk_rule_speedup_tokens(kk_gate *g);
void kk_rule_speedup_warm_up(kk_gate *g);
void kk_rule_speedup_prefill(kk_gate *g);
void kk_rule_speedup_scope(kk_gate *g);
/* gate_memory.c */
void kk_rule_bytes_category(kk_gate *g);
void kk_rule_formula_alone(kk_gate *g);
void kk_rule_formula_mismatch(kk_gate *g);
void kk_rule_memory_claim(kk_gate *g);
void kk_rule_growth_recount(kk_gate *g);

#endif
