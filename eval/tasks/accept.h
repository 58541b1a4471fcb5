/* accept.h - how much of what is drafted is right, by kinds of text, and whether drafting changed
 * anything.
 *
 * Every prompt is continued twice: plainly, and with drafts of always the same length, so that
 * the figures are the proposer's and not the controller's.  The second must give the tokens and
 * the logits (by their hash) of the first.  With a second embedding scale the drafter is opened
 * twice and both are measured on the same prompts. */
#ifndef KK_EVAL_ACCEPT_H
#define KK_EVAL_ACCEPT_H

#include <jansson.h>

#include "eval/texts/promptset.h"
#include "eval/texts/subset.h"
#include "kakeya.h"

enum { KK_ACCEPT_SETS = 16, KK_ACCEPT_ARMS = 2 };

typedef struct {
    int32_t prompts;   /* continued */
    int32_t different; /* of them not as plain decoding continues them */
    int64_t tokens;
    kk_spec_stats spec;
    double rate;   /* accepted of drafted; 0: nothing was drafted */
    double length; /* tokens of a round: what it accepted and one more */
} kk_accept_figures;

typedef struct {
    char name[64];
    kk_accept_figures arm[KK_ACCEPT_ARMS];
} kk_accept_set;

/* One prompt, drafted. */
typedef struct {
    int32_t set, arm;
    uint64_t prompt, text; /* hashes of its ids and of what they were made of */
    int32_t tokens;
    kk_spec_stats spec;
    /* Hashes of what was generated and of its logits: drafted, and by plain decoding. */
    uint64_t tokens_hash, logits_hash, plain_tokens, plain_logits;
} kk_accept_row;

typedef struct {
    kk_machine machine;
    kk_model_info model;
    kk_device_info device;
    kk_drafter_info drafter[KK_ACCEPT_ARMS]; /* of each arm; layers 0: none */
    kk_fingerprints prints;
    kk_accept_row *row;
    size_t n_rows, cap_rows;
    kk_spec spec;
    int32_t ctx;
    kk_accept_set set[KK_ACCEPT_SETS], all;
    int32_t n_sets, n_arms;
    bool lossless; /* nothing was different */
} kk_accept_result;

typedef struct {
    kk_engine_opts engine;
    kk_session_opts session; /* format, proposer, draft_max, draft_ctx; the rest is set here */
    const char *other_scale; /* a second embedding scale, beside "once"; NULL: as the engine says */
    const char *names;       /* sets by name, with commas between; NULL: a file */
    const char *folder;      /* of the named sets; NULL: it was not found */
    const char *file;        /* JSONL */
    int32_t samples;         /* prompts of each set, at most */
    int32_t predict;         /* most tokens after a prompt; 0: what the prompt says */
    kk_sampling sampling;
    kk_subset subset; /* which prompts of all sets are continued */
    /* Told before each prompt; false stops with KK_ESTOPPED.  May be NULL. */
    bool (*on_prompt)(void *user, const char *set, int32_t done, int32_t total);
    void *user;
} kk_accept_opts;

/* On failure *out holds nothing; otherwise release it. */
kk_status kk_accept_run(const kk_accept_opts *opts, kk_accept_result *out, kk_err *err);
void kk_accept_release(kk_accept_result *r);
/* command: what was typed; NULL: not known.  The report is NULL without memory. */
json_t *kk_accept_report(const kk_accept_opts *opts, const kk_accept_result *r,
                         const char *command);
kk_status kk_accept_write(kk_writer *to, const kk_accept_opts *opts, const kk_accept_result *r,
                          const char *command, kk_err *err);

/* Adds what one generation did. */
void kk_spec_stats_add(kk_spec_stats *to, const kk_spec_stats *more);

#endif
