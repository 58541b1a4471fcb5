/* lossless_plan.h - the cases of `make lossless-all`: which prompt is decoded with which settings.
 *
 * A group is one prompt in one K/V format: all numbers of threads, ways of sampling and lengths of
 * drafts.  The rest follows from the number of the prompt and from these.  The program that runs
 * the cases and the gate that checks its report have the plan from here. */
#ifndef KK_EVAL_LOSSLESS_PLAN_H
#define KK_EVAL_LOSSLESS_PLAN_H

#include <stdint.h>

enum {
    KK_LOSSLESS_KINDS = 5,
    KK_LOSSLESS_LENGTHS = 4,
    KK_LOSSLESS_SIZES = 44,
    KK_LOSSLESS_PROMPTS = KK_LOSSLESS_SIZES * KK_LOSSLESS_KINDS,
    KK_LOSSLESS_POLICIES = 3,
    KK_LOSSLESS_THREADS = 2,
    KK_LOSSLESS_SAMPLINGS = 4,
    KK_LOSSLESS_BLOCKS = 16, /* rows of a round: 1 to so many */
    KK_LOSSLESS_PROPOSERS = 7,
    KK_LOSSLESS_ENDINGS = 3,
    KK_LOSSLESS_TOKENS = 12, /* the most that a generation of a case has */
    KK_LOSSLESS_GROUP = KK_LOSSLESS_THREADS * KK_LOSSLESS_SAMPLINGS * KK_LOSSLESS_BLOCKS,
    /* What the texts are drawn by. */
    KK_LOSSLESS_SEED = 7,
    KK_LOSSLESS_DOCUMENT_SEED = 11,
};

static const char *const kk_lossless_kinds[KK_LOSSLESS_KINDS] = {"code", "prose", "needle", "chat",
                                                                 "random"};
static const char *const kk_lossless_lengths[KK_LOSSLESS_LENGTHS] = {
    "within a page", "within the window", "window wrapped", "wrapped several times"};
static const char *const kk_lossless_policies[KK_LOSSLESS_POLICIES] = {"native", "window",
                                                                       "restored"};
static const char *const kk_lossless_samplings[KK_LOSSLESS_SAMPLINGS] = {
    "greedy", "top-k top-p", "penalised, biased, masked", "cool, long memory"};
static const char *const kk_lossless_proposers[KK_LOSSLESS_PROPOSERS] = {
    "dflash", "controller", "ngram", "always right", "always wrong", "wrong at a depth", "chance"};
static const char *const kk_lossless_endings[KK_LOSSLESS_ENDINGS] = {"length", "stop id",
                                                                     "callback"};

/* Tokens of prompts: of each size there is one of every kind. */
static const int32_t kk_lossless_sizes[KK_LOSSLESS_SIZES] = {
    1,   2,   3,   5,   8,   11,  13,  17,  20,  24,  28,  31,   33,   36,  40,
    47,  50,  56,  61,  62,  63,  64,  65,  80,  100, 127, 128,  129,  150, 191,
    193, 256, 300, 510, 511, 512, 513, 575, 577, 640, 960, 1024, 1100, 1600};

/* What a prompt of n tokens has left behind, of pages of 64 and a window of 512. */
static inline int32_t kk_lossless_length(int32_t n) {
    return n < 64 ? 0 : n < 512 ? 1 : n < 1024 ? 2 : 3;
}
static inline int32_t kk_lossless_policy(int32_t prompt, int32_t format) {
    return (prompt + format) % KK_LOSSLESS_POLICIES;
}
static inline int32_t kk_lossless_ending(int32_t prompt, int32_t sampling) {
    return (prompt + sampling) % KK_LOSSLESS_ENDINGS;
}
/* threads and block count from 0.  Each proposer meets each value of every axis. */
static inline int32_t kk_lossless_proposer(int32_t prompt, int32_t format, int32_t threads,
                                           int32_t sampling, int32_t block) {
    return (prompt + block + 3 * sampling + 5 * format + 2 * threads) % KK_LOSSLESS_PROPOSERS;
}

#endif
