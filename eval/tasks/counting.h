/* counting.h - counts the tokens of texts, and of what the model says to them, for a drafter's
 * short head; the file's format is in format/counts.h. */
#ifndef KK_EVAL_COUNTING_H
#define KK_EVAL_COUNTING_H

#include "kakeya.h"

typedef struct {
    const kk_tokenizer *tok;
    int32_t vocab;            /* of the model */
    const char *const *paths; /* texts, and .jsonl files as promptset.h has them */
    size_t n_paths;           /* 0: the sets of prompts in the folder: */
    const char *prompts;
    kk_engine *engine;    /* NULL: predict is 0 */
    int32_t predict;      /* tokens that the model says to a prompt of a .jsonl file, counted too */
    kk_progress progress; /* tokens so far, of 0: not known; false stops with KK_ESTOPPED */
    void *user;
} kk_counting_opts;

enum { KK_COUNTING_SIZES = 6 };
typedef struct {
    int64_t texts, tokens, said; /* said: tokens that are the model's */
    int32_t ids;                 /* that came up */
    struct {
        int32_t ids;
        double share; /* of the tokens: the most frequent so many ids */
    } size[KK_COUNTING_SIZES];
} kk_counting_result;

/* Completes `to`. */
kk_status kk_counting_run(const kk_counting_opts *opts, kk_writer *to, kk_counting_result *out,
                          kk_err *err);

#endif
