/* controller.h - chooses the proposer of a session's next draft, and its number of tokens.
 *
 * A choice maximises expected tokens per second, over all sessions of a round together; 0 tokens
 * for all of them is plain decoding.  It needs two things, both learned while decoding:
 *
 *   costs       the engine's: seconds of a verify forward by its rows, and of a draft by tokens;
 *   acceptance  each session's, by proposer and depth: how often the token at a depth was right
 *               when all before it were.  Drafts of one proposer that are not equally good by what
 *               the proposer itself knows (how long a suffix an n-gram was found by) are told apart
 *               by a class.
 *
 * Drafting must never cost much, whatever is drafted.  So a session has a budget for each of its
 * proposers, counted in tokens of plain decoding: what its drafts lost is taken off, what they
 * gained is added up to a limit, and one round in a hundred makes up for losses.  Drafts that had
 * been paying may lose `credit`.  A proposer of which too little is known is tried, by exploratory
 * drafts, if it would be better than what is chosen should all that is not known of it turn out
 * well; those, and others that were not seen to pay yet, may lose `exploration`.
 *
 * No clock and no chance in here: the same calls give the same choices.  Zeroed structs know
 * nothing and are valid.  The caller sees to it that calls on one kk_costs do not overlap. */
#ifndef KK_PROPOSE_CONTROLLER_H
#define KK_PROPOSE_CONTROLLER_H

#include "kakeya.h"

enum { KK_COST_ROWS = 64, KK_DRAFT_CLASSES = 4, KK_ALTERNATIVES = 2 };

/* Seconds by number of rows, learned.  Rows not measured are taken from their neighbours. */
typedef struct {
    double seconds[KK_COST_ROWS + 1];
    double weight[KK_COST_ROWS + 1]; /* recent measurements; 0: none */
} kk_cost_table;

typedef struct {
    kk_cost_table verify;        /* by rows of the forward, over all sessions */
    kk_cost_table draft;         /* by tokens of proposers that are not free, over all sessions */
    kk_cost_table draft_short;   /* the same of drafts by a drafter's short head */
    int64_t since_plain;         /* rounds since one without drafts */
    double total_s, exploring_s; /* spent in all, and of it extra in rounds that explored */
} kk_costs;

/* What a session lost by drafts of one proposer, as negative numbers.  The exploration budget also
 * counts earlier gains, which may be lost again. */
typedef struct {
    double credit, exploration; /* tokens of plain decoding */
} kk_draft_budget;

/* What a proposer's drafts were worth in a session, by class and depth, the recent ones counting
 * most. */
typedef struct {
    double tried[KK_DRAFT_CLASSES][KK_MAX_DRAFT], right[KK_DRAFT_CLASSES][KK_MAX_DRAFT];
    int32_t tried_depth[KK_DRAFT_CLASSES]; /* drafted tokens of the session's own longest draft */
    kk_draft_budget budget;
} kk_acceptance;

/* One way to draft for a session in this round. */
typedef struct {
    kk_acceptance *seen;
    int32_t max; /* most tokens, by what was found, free rows, context and block; 0: none now */
    int32_t draft_class; /* < KK_DRAFT_CLASSES; a higher one is at least as good */
    bool free;           /* drafting costs no forward of its own (ngram) */
    bool short_head;     /* what it costs is in draft_short */
} kk_alternative;

typedef struct {
    kk_alternative from[KK_ALTERNATIVES];
    int32_t n_from;
    /* The choice: n tokens of from[who]. */
    int32_t who, n;
    bool exploring; /* an exploratory draft, made to learn */

    int32_t sessions; /* sessions of the round; 0: the controller did not choose */
    bool unproven;    /* too little was observed to expect that it pays */
    double otherwise; /* expected speed-up over plain decoding of what was forgone to explore */
    int32_t cap[KK_ALTERNATIVES]; /* scratch: most tokens that the budget allows */
    int32_t at;                   /* scratch: the alternative under consideration; -1: none */
    double rate, alive, next; /* scratch: acceptance at depth n, of all up to it, and of one more */
} kk_choice;

/* Fills who, n and exploring of every choice.  most_rows: rows the forward can hold in all, >=
 * n. */
void kk_controller_choose(const kk_costs *costs, kk_choice *choices, int32_t n, int32_t most_rows);

/* What a round took, over all its sessions. */
typedef struct {
    int32_t sessions;
    int32_t rows;    /* rows of the verify forward: sessions + all drafted tokens */
    int32_t drafted; /* tokens, by proposers that are not free; 0: none was run */
    double verify_s, draft_s;
    bool exploring;  /* any of the choices was */
    bool short_head; /* all of the drafted tokens were by a short head; else none */
} kk_spent;
void kk_controller_spent(kk_costs *costs, const kk_spent *spent);
/* What came of a session's choice, after the round was counted as spent: `drafted` tokens were
 * verified, the first `right` of which were accepted.  Tokens that were never judged, behind a
 * stop id or a limit, do not count as drafted.  drafted 0: the proposer found nothing, or none
 * was chosen. */
void kk_controller_saw(const kk_costs *costs, kk_choice *choice, int32_t drafted, int32_t right);

/* The same of another alternative than the chosen one, whose draft was made and not verified: the
 * tokens of the round tell by themselves how many of it were right. */
void kk_controller_watched(kk_choice *choice, int32_t k, int32_t drafted, int32_t right);

/* A session begins with a prior from other sessions and the budget that they left, and adds its own
 * observations to the pool.  Depths that drafts no longer get to are soon unknown again: what was
 * right there may have been another text's. */
void kk_acceptance_begin(kk_acceptance *seen, const kk_acceptance *known);
void kk_acceptance_pool(kk_acceptance *known, const kk_acceptance *seen);

/* Expected tokens of a round that drafts n. */
double kk_acceptance_tokens(const kk_acceptance *seen, int32_t draft_class, int32_t n);
/* Seconds at so many rows, measured or inferred; 0: nothing was measured. */
double kk_cost_at(const kk_cost_table *t, int32_t rows);

#endif
