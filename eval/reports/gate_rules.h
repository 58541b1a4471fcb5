/* gate_rules.h - what the files of rules share: how a rule looks into a report and how it speaks.
 *
 * A report is hostile: any member may be missing or of another type.  The readers below answer for
 * all of them, so that a rule says only what it is about. */
#ifndef KK_EVAL_GATE_RULES_H
#define KK_EVAL_GATE_RULES_H

#include "eval/reports/gate.h"

struct kk_gate_kind;

typedef struct {
    kk_verdict *verdict;
    const json_t *report;
    const struct kk_gate_kind *kind;
    const char *code; /* of the rule at work */
    size_t said;      /* by it */
    bool older;       /* one that members of later schemas are not asked of: gate_older.c */
    kk_status status;
} kk_gate;

/* ---- limits -------------------------------------------------------------------------------- */

/* All limits of rules are here and in gate.h.  tests/tools/mutate_gate.py steps each of them up and
 * down by one in its last digit; a test fails for every step. */
enum {
    KK_GATE_SAMPLES = 5,       /* the least samples of a speed-up */
    KK_GATE_TOKENS = 32,       /* the least tokens of its median sample */
    KK_GATE_KL_ROWS = 256,     /* the least positions of a KL */
    KK_GATE_ACCEPTED = 20,     /* of so many tokens of a speed-up, one came from a draft */
    KK_GATE_COMMIT_DIGITS = 7, /* the least digits of a commit */
    KK_GATE_WARM_ROUNDS = 8,   /* rounds that are told one by one, and called warm-up */
    KK_GATE_LONG_ROUNDS = 32,  /* rounds from which KK_GATE_ROUND_SHARE holds */
    KK_GATE_EXACT_ROWS = 32,   /* the most rows of a round that are measured to be exact */
    KK_GATE_MOST_SAID = 8,     /* findings of one rule; the rest is counted */
};
/* The most that prefill times of an arm may differ, as a factor. */
#define KK_GATE_PREFILL_SPREAD 3.0
/* The most that a restored arm may recall less than exact decoding. */
#define KK_GATE_RECALL_DROP 0.05
/* What six digits of two numbers may lose between them: of the larger, and near 0. */
#define KK_GATE_SAME 2e-5
#define KK_GATE_SAME_NEAR_0 1e-9
/* How far a figure may be beyond a limit of six digits: of the limit, and near 0. */
#define KK_GATE_BEYOND 1e-6
#define KK_GATE_BEYOND_NEAR_0 1e-9
/* Differences of recalls and of losses are written with six digits of what they are of. */
#define KK_GATE_DROP_DIGITS 2e-6
#define KK_GATE_LOSS_DIGITS 1e-4
/* What sums of floats leave of a KL of 0, in nats. */
#define KK_GATE_KL_OF_NONE 1e-6
/* How far a formula for bytes may be from bytes that were measured, as a share of these. */
#define KK_GATE_FORMULA 0.01
/* Weights in memory over those of the model: a few tables more. */
#define KK_GATE_WEIGHTS_OVER 1.02
/* What six digits of a mean and a deviation leave of single times of rounds. */
#define KK_GATE_ROUND_DIGITS 1e-4
/* The least share of a long generation's seconds that its rounds take; the rest is the choice of
 * the first token and what the caller does with tokens. */
#define KK_GATE_ROUND_SHARE 0.5

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
/* The check of an arm's figure in the report's own `gate`; NULL: there is none. */
const json_t *kk_gate_check_of(const kk_gate *g, const char *figure, const char *arm);
bool kk_gate_is(const kk_gate *g, const char *kind);
/* The same, but a report of steps is like a needle, for its rungs, and like a bench, for its
 * policies. */
bool kk_gate_like(const kk_gate *g, const char *kind);
/* Equal but for the six digits that reports are written with. */
bool kk_gate_same(double a, double b);
/* Sum of a number over a list; false when an item has none. */
bool kk_gate_sum(const json_t *o, const char *list, const char *key, double *out);

/* Whether it is one of the reports that were taken before some members were asked for. */
bool kk_gate_is_older(const json_t *report);

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

/* Figures of a report of steps: speed over exact, and turns that drafts changed. */
typedef enum {
    KK_STEP_NO_FIGURE,
    KK_STEP_NO_ROWS,
    KK_STEP_AT_LEAST,
    KK_STEP_AT_MOST
} kk_step_figure;
kk_step_figure kk_gate_step_figure(const kk_gate *g, const char *name, const char *arm,
                                   double *out);
/* The same of reports about a server. */
kk_step_figure kk_gate_serving_figure(const kk_gate *g, const char *name, const char *arm,
                                      double *out);

/* ---- rules, groups of rules, kinds ----------------------------------------------------------- */

/* The number behind an option of the command, where it is there; of a list the first. */
bool kk_gate_typed(const kk_gate *g, const char *option, double *out);

typedef void (*kk_gate_check_fn)(kk_gate *g);

typedef struct {
    const char *code;
    kk_gate_check_fn check;
    const char *text; /* what must be so */
} kk_gate_entry;

/* Rules about one thing, which several kinds of reports may be held to. */
typedef struct {
    const kk_gate_entry *rule;
    size_t n;
} kk_gate_group;

#define KK_GATE_GROUP(name, list)                                                                  \
    const kk_gate_group kk_group_##name = {list, sizeof(list) / sizeof *(list)}

/* Of all kinds. */
extern const kk_gate_group kk_group_envelope, kk_group_exact, kk_group_members, kk_group_values,
    kk_group_rates, kk_group_quality, kk_group_answers, kk_group_checks, kk_group_bytes,
    kk_group_lossless, kk_group_plan, kk_group_shares, kk_group_words;
/* Of some kinds. */
extern const kk_gate_group kk_group_restored, kk_group_trace, kk_group_policies, kk_group_sessions,
    kk_group_scope, kk_group_bits, kk_group_knee, kk_group_training, kk_group_drafting,
    kk_group_speedup, kk_group_growth, kk_group_rounds, kk_group_steps, kk_group_pairs,
    kk_group_sampling, kk_group_serving;

/* What a member must be.  TIME and RATE are greater than 0, COUNT is whole and not negative, SIZE
 * is whole and greater than 0, LIST and SPREAD are not empty. */
typedef enum {
    KK_MEMBER_TEXT,
    KK_MEMBER_HASH, /* 16 hexadecimal digits */
    KK_MEMBER_BOOL,
    KK_MEMBER_NUMBER,
    KK_MEMBER_COUNT,
    KK_MEMBER_SIZE,
    KK_MEMBER_TIME,
    KK_MEMBER_RATE,
    KK_MEMBER_LIST,
    KK_MEMBER_OBJECT,
    KK_MEMBER_SPREAD, /* {median, min, max, n} */
} kk_member_type;

/* A member by its path: names with a slash between, `*` for every item of a list or member of an
 * object, `?` behind a name that may be absent or null.  "3:" before it: the reports of
 * gate_older.c that name an older schema may lack it. */
typedef struct {
    const char *path;
    kk_member_type type;
} kk_gate_member;

/* A kind of reports: what its reports hold, and the rules they are held to besides those of all. */
typedef struct kk_gate_kind {
    const char *name;
    const kk_gate_member *member;
    size_t n_members;
    const kk_gate_group *const *group;
    size_t n_groups;
} kk_gate_kind;

#define KK_GATE_KIND(kind, members, groups)                                                        \
    const kk_gate_kind kk_kind_##kind = {                                                          \
        .name = #kind,                                                                             \
        .member = members,                                                                         \
        .n_members = sizeof(members) / sizeof *(members),                                          \
        .group = groups,                                                                           \
        .n_groups = sizeof(groups) / sizeof *(groups),                                             \
    }

/* Judges by a table of kinds other than the program's own. */
kk_status kk_gate_check_kinds(const kk_gate_kind *const *kinds, size_t n_kinds, const char *text,
                              size_t len, kk_verdict *out, kk_err *err);

#endif
