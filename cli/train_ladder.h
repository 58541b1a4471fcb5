/* train_ladder.h - `kakeya train projection --ladder`: what is looked at before a training, and the
 * climb with the projection that came of it. */
#ifndef KAKEYA_CLI_TRAIN_LADDER_H
#define KAKEYA_CLI_TRAIN_LADDER_H

#include "cli/loader.h"
#include "eval/tasks/ladder.h"

typedef struct {
    const char *rungs; /* as typed; NULL: no ladder */
    int32_t samples, predict, text_tokens;
    kk_needle_limits limits;
    bool json;
} ladder_args;
#define LADDER_DEFAULTS                                                                            \
    {                                                                                              \
        .samples = 10, .predict = 32, .text_tokens = 1024, .limits = {                             \
            .min_recall = -1,                                                                      \
            .max_kl = 0.05f,                                                                       \
            .min_kv_ratio = -1                                                                     \
        }                                                                                          \
    }

#define LADDER_OPTIONS(T, m)                                                                       \
    OPTION_HEADING("Ladder"),                                                                      \
        {.kind = OPT_STRING,                                                                       \
         .name = "ladder",                                                                         \
         .arg = "LIST",                                                                            \
         .alone = "70,280",                                                                        \
         .offset = offsetof(T, m.rungs),                                                           \
         .help = "check weights and device first, and afterwards ask for codes in documents of "   \
                 "so many lines with the projection, one rung after the other, up to the first "   \
                 "that fails; a report of each is put into --out (default: 70,280)"},              \
        OPTION_INT(NULL, "samples", "N", offsetof(T, m.samples), 1, KK_NEEDLE_SAMPLES,             \
                   "documents of each rung (default: 10)"),                                        \
        OPTION_INT(NULL, "text-tokens", "N", offsetof(T, m.text_tokens), 1, 1 << 20,               \
                   "tokens taken of a text whose distributions are compared, at most (default: "   \
                   "1024)"),                                                                       \
        OPTION_REAL("min-recall", "X", offsetof(T, m.limits.min_recall), 0, 1,                     \
                    "a rung fails below this recall (default: 5 points below exact)"),             \
        OPTION_REAL("max-kl", "X", offsetof(T, m.limits.max_kl), 0, 100,                           \
                    "a rung fails above this mean KL against exact (default: 0.05)"),              \
        OPTION_REAL("min-kv-ratio", "X", offsetof(T, m.limits.min_kv_ratio), 0, 1000,              \
                    "a rung fails when the K/V of exact is not so many times its own (default: "   \
                    "any)")

/* A ladder that is being climbed. */
typedef struct {
    const ladder_args *args;
    const loader_args *load;
    const char *out; /* the projection's folder */
    bool force;      /* replace reports that are there */
    bool quiet;
    kk_needle_opts needle; /* engine without a projection, sessions, rungs */
    json_t *checks;        /* what was looked at, for --json */
} ladder_run;

/* Reads the rungs and says how the sessions are to be; false after saying what is wrong. */
bool ladder_read(const verb *v, ladder_run *l, int *code);
/* Weights, device and whether the documents fit, with PASS or FAIL for each; an exit code. */
int ladder_check(ladder_run *l);
/* Climbs, with PASS or FAIL for each rung; trained, the summary of the training for --json, is
 * released, and may be NULL; json is where that goes, NULL: nowhere.  An exit code. */
int ladder_climb(ladder_run *l, json_t *trained, const char *json);
void ladder_release(ladder_run *l);

#endif
