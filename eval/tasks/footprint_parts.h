/* footprint_parts.h - what the files of footprint share. */
#ifndef KK_EVAL_FOOTPRINT_PARTS_H
#define KK_EVAL_FOOTPRINT_PARTS_H

#include "engine/session.h"
#include "eval/tasks/footprint.h"

typedef struct {
    char name[64];
    kk_session_opts session;
    int32_t engine; /* 0: without a projection */
    int32_t rank;   /* 0: nothing is restored */
} kk_footprint_policy;

typedef struct {
    const kk_footprint_opts *opts;
    kk_footprint_result *out;
    bool fill;
    kk_engine *engine; /* the one at hand */
    bool has_drafter;
    kk_footprint_policy policy[KK_FOOTPRINT_POLICIES];
    int32_t n_policies, done, total;
    kk_quality_text text; /* of the longest length */
    kk_ask_set set[KK_FOOTPRINT_LENGTHS];
    int32_t ladder[KK_FOOTPRINT_LENGTHS]; /* lines of the rung its documents are drawn from */
    kk_ask_result *asked;                 /* [length][KK_FOOTPRINT_POLICIES] */
    json_t *run, *projections;
    json_t *left_out; /* names of policies whose format this model does not fit */
} kk_footprint;

bool kk_footprint_go_on(const void *of);
/* What is read and asked, for all engines. */
kk_status kk_footprint_read(kk_footprint *f, kk_err *err);
/* Recall and KL of the policies of an engine at one length. */
kk_status kk_footprint_quality(kk_footprint *f, int32_t engine, int32_t length, kk_err *err);
kk_ask_result *kk_footprint_asked(const kk_footprint *f, int32_t length, int32_t policy);
json_t *kk_footprint_report(kk_footprint *f);
/* Gives back what it holds, but for the result. */
void kk_footprint_forget(kk_footprint *f);

#endif
