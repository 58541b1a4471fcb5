/* steps.h - does decoding keep up with exact plain decoding, step by step?
 *
 * Step 1 rebuilds rows and decodes plainly; step 2 rebuilds rows and drafts.  Each is held against
 * exact plain decoding of the same engine: its speed must reach a share of that one's, documents
 * must be recalled as well, rows must have been rebuilt, and drafts must not change a token.
 *
 * Recall and K/V bytes are those of documents (needle.h), arms exact, restored and drafted.  Speed
 * is of turns on ordinary text (bench_policies.c) at the context that the documents need, because
 * an answer of a few tokens times nothing. */
#ifndef KK_EVAL_STEPS_H
#define KK_EVAL_STEPS_H

#include "eval/measure/bench.h"
#include "eval/tasks/needle.h"

enum { KK_STEPS = 2 };

typedef struct {
    kk_engine_opts engine; /* with a projection and a drafter */
    kk_bench_way way;      /* which layers rebuild; one of the ways that do */
    kk_kv_format kv_format;
    kk_session_opts keep; /* sink, window, chunk and latents of them */
    int32_t lines, samples;
    uint64_t seed;
    int32_t predict; /* most tokens of an answer, and tokens of a turn */
    int32_t turns;
    const char *sets;         /* texts of turns, by name; */
    const char *prompts;      /*   the folder of prompts; NULL: there is none */
    const char *const *texts; /* files whose distributions are compared; */
    size_t n_texts;           /*   0: of the folder, what is held out of training */
    int32_t text_tokens;      /* most of one */
    int32_t draft_max, draft_ctx;
    bool draft_fixed;
    double least_speed[KK_STEPS]; /* of exact plain decoding */
    float max_kl;                 /* mean, against exact; negative: any */
    const char *command;          /* what was typed, for the report; NULL: not known */
    /* Told what happens next; false stops with KK_ESTOPPED.  May be NULL. */
    bool (*on_step)(void *user, const char *what);
    void *user;
} kk_steps_opts;

/* A check of a step is of the arm "restored" or "drafted". */
enum { KK_STEPS_CHECKS = KK_NEEDLE_CHECKS + 4 };

typedef struct {
    kk_needle_result needle; /* exact, restored, drafted, on one rung */
    kk_bench_result *bench;  /* its policies: exact, and the way */
    double tok_s[KK_STEPS + 1];
    double speed[KK_STEPS]; /* over exact */
    kk_needle_check check[KK_STEPS_CHECKS];
    int32_t n_checks;
    bool holds[KK_STEPS];
} kk_steps_result;

/* On failure *out holds nothing; otherwise release it. */
kk_status kk_steps_run(const kk_steps_opts *opts, kk_steps_result *out, kk_err *err);
void kk_steps_release(kk_steps_result *r);
const char *kk_steps_arm(int32_t step); /* of step 0 or 1: "restored", "drafted" */

/* The result as a report, and written. */
struct json_t *kk_steps_report(const kk_steps_opts *opts, const kk_steps_result *r);
kk_status kk_steps_write(kk_writer *to, const kk_steps_opts *opts, const kk_steps_result *r,
                         kk_err *err);

#endif
