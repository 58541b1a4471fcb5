/* ladder.h - a projection on documents that get longer, rung by rung, until one fails.
 *
 * A rung is a run of needle.h with the arms exact and restored and one length of documents; its
 * checks are those of kk_needle_judge.  A rung that fails is the last that is run: longer documents
 * cost more and would say no more about the projection. */
#ifndef KK_EVAL_LADDER_H
#define KK_EVAL_LADDER_H

#include "eval/tasks/needle.h"

typedef struct {
    int32_t lines; /* asked for */
    bool run;      /* false: a rung before it failed */
    bool holds;
    double tokens; /* of a document, on average */
    double recall_exact, recall;
    double mean_kl;
    double kv_ratio; /* K/V bytes of exact over those of restored */
    kk_needle_check check[KK_NEEDLE_CHECKS];
    int32_t n_checks;
} kk_ladder_rung;

typedef struct {
    kk_needle_opts needle; /* its ladder holds the rungs, and its engine the projection */
    kk_needle_limits limits;
    /* After every rung that ran, with what a report of it is made of; a failure ends the climb with
     * that status.  May be NULL. */
    kk_status (*on_rung)(void *user, const kk_ladder_rung *rung, const kk_needle_opts *opts,
                         const kk_needle_result *result, kk_err *err);
    void *user;
} kk_ladder_opts;

/* rungs [needle.n_rungs] are all filled, those that did not run with their lines alone.  True in
 * *holds: all ran and passed. */
kk_status kk_ladder_climb(const kk_ladder_opts *opts, kk_ladder_rung *rungs, bool *holds,
                          kk_err *err);

#endif
