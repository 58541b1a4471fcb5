/* controller.h - how many tokens to draft, from what rounds cost here and what was accepted.
 *
 * Costs are the engine's: the time of a verify forward by its rows, and of a draft by its
 * tokens, measured as rounds go by.  Acceptance is the session's: how often the draft at each
 * depth was right when all before it were.  A choice maximises expected tokens per second over
 * all sessions of a round together; 0 for all of them is plain decoding.  A session alone whose
 * drafts were all right so far gives up to 2 % of it for a longer one, to learn more.
 *
 * Drafting must never cost much, whatever is drafted.  So each session has two accounts, counted
 * in tokens of plain decoding: what its drafts gained is added, what they cost is taken off, and
 * a draft that they could not bear if it failed is not made.  Drafts expected to pay live on the
 * credit; those made only to learn, looks, on the purse.  A small allowance at the start and one
 * in a hundred of all rounds feed them, and looks that keep failing become rare.
 *
 * No clock and no chance in here: the same calls give the same choices.  A zeroed kk_costs and a
 * zeroed kk_acceptance know nothing and are valid.  The caller sees to it that calls on one
 * kk_costs do not overlap. */
#ifndef KK_PROPOSE_CONTROLLER_H
#define KK_PROPOSE_CONTROLLER_H

#include "kakeya.h"

enum { KK_COST_ROWS = 64 };

/* Seconds by number of rows, learned.  Rows not measured are taken from their neighbours. */
typedef struct {
    double seconds[KK_COST_ROWS + 1];
    double weight[KK_COST_ROWS + 1]; /* recent measurements; 0: none */
} kk_cost_table;

typedef struct {
    kk_cost_table verify;      /* by rows of the forward, over all sessions */
    kk_cost_table draft;       /* by tokens drafted by proposers that are not free, all sessions */
    int64_t undrafted;         /* rounds since one of those was run */
    double total_s, looking_s; /* spent in all, and of it extra in rounds that looked */
} kk_costs;

/* What a session's drafts were worth, by depth, the recent ones counting most. */
typedef struct {
    double tried[KK_MAX_DRAFT], right[KK_MAX_DRAFT];
    int32_t reached;              /* depths that it tried itself; of others it knows by hearsay */
    bool broken;                  /* a draft of its own was not right to its end */
    int32_t streak;               /* drafts in a row that began right; negative: wrong */
    double credit, purse;         /* tokens gained less lost: by drafts that should pay, by looks */
    int32_t idle;                 /* rounds since the last draft */
    int32_t patience;             /* rounds to wait before looking again */
    int32_t last_n, last_right;   /* the last draft, until it is settled */
    bool last_free, last_looking; /* how it was made */
} kk_acceptance;

typedef struct {
    kk_acceptance *seen;
    int32_t max;  /* most tokens to draft: room, context, block; 0: none now */
    bool free;    /* drafting costs no forward of its own (ngram) */
    int32_t n;    /* the choice */
    bool looking; /* made to learn, not expected to pay */

    int32_t cap;              /* scratch: what the credit bears */
    int32_t grown;            /* scratch: twice a draft that was right to its end, else 0 */
    double rate, alive, next; /* scratch: chances at depth n, up to it, and one further */
} kk_choice;

/* Fills n and looking of every choice.  most_rows: rows the forward can hold in all, >= n. */
void kk_controller_choose(const kk_costs *costs, kk_choice *choices, int32_t n, int32_t most_rows);
/* What came of a session's draft: `drafted` tokens of it were put to the test, the first `right`
 * of which were accepted.  Tokens that were never judged, behind a stop id or a limit, do not
 * count as drafted.  drafted 0: the proposer had nothing, or was not asked. */
void kk_controller_saw(kk_acceptance *seen, int32_t drafted, int32_t right);

/* What sessions before it saw, a session begins with, as a few drafts of its own, and with what
 * they left to be spent on looks; and adds what it saw itself.  Of depths that drafts no longer
 * reach, soon nothing is known: what was right there may have been another text's. */
void kk_acceptance_begin(kk_acceptance *seen, const kk_acceptance *known);
void kk_acceptance_pool(kk_acceptance *known, const kk_acceptance *seen);

/* What a round took, over all its sessions. */
typedef struct {
    int32_t sessions;
    int32_t rows;    /* of the verify forward: sessions + all drafted tokens */
    int32_t drafted; /* tokens, by proposers that are not free; 0: none was run */
    double verify_s, draft_s;
    bool looking; /* any of the choices was */
} kk_spent;
void kk_controller_spent(kk_costs *costs, const kk_spent *spent);

/* Expected tokens of a round that drafts n: for reports. */
double kk_acceptance_tokens(const kk_acceptance *seen, int32_t n);
/* Seconds at so many rows, measured or inferred; 0: nothing was measured. */
double kk_cost_at(const kk_cost_table *t, int32_t rows);

#endif
