/* sampling.h - the options that choose how tokens are drawn and where they end, shared by run, chat
 * and session. */
#ifndef KAKEYA_CLI_SAMPLING_H
#define KAKEYA_CLI_SAMPLING_H

#include "cli/options.h"
#include "kakeya.h"

#define SAMPLING_OPTIONS(T, m, temp_default, top_k_default, top_p_default, seed_default)           \
    OPTION_HEADING("Sampling"),                                                                    \
        OPTION_REAL("temp", "X", offsetof(T, m.temp), 0, 100,                                      \
                    "temperature; 0 takes the likeliest token (default: " temp_default ")"),       \
        OPTION_INT(NULL, "top-k", "N", offsetof(T, m.top_k), 0, 1 << 30,                           \
                   "draw from the N likeliest; 0: all (default: " top_k_default ")"),              \
        OPTION_REAL("top-p", "X", offsetof(T, m.top_p), 0, 1,                                      \
                    "draw from the likeliest that sum to X (default: " top_p_default ")"),         \
        OPTION_REAL("min-p", "X", offsetof(T, m.min_p), 0, 1,                                      \
                    "drop tokens under X times the likeliest (default: 0)"),                       \
        OPTION_REAL("repeat-penalty", "X", offsetof(T, m.repeat_penalty), 0, 100,                  \
                    "divides logits of tokens seen before (default: 1, off)"),                     \
        OPTION_REAL("presence-penalty", "X", offsetof(T, m.presence_penalty), -100, 100,           \
                    "taken from logits of tokens seen before (default: 0)"),                       \
        OPTION_REAL("frequency-penalty", "X", offsetof(T, m.frequency_penalty), -100, 100,         \
                    "the same, once for each time seen (default: 0)"),                             \
        OPTION_INT(NULL, "repeat-last-n", "N", offsetof(T, m.penalty_last_n), -1, 1 << 30,         \
                   "tokens the penalties look back over; -1: all (default: 64)"),                  \
    {                                                                                              \
        .kind = OPT_SEED, .brief = "s", .name = "seed", .arg = "N", .offset = offsetof(T, m.seed), \
        .min = -1,                                                                                 \
        .help = "with it a run repeats exactly; -1: a random one, which -v shows "                 \
                "(default: " seed_default ")"                                                      \
    }

/* A seed that was not given: one is drawn when the verb starts. */
#define SAMPLING_DRAW UINT64_MAX
/* Puts a random seed in the place of SAMPLING_DRAW. */
void sampling_draw_seed(uint64_t *seed);

#define SAMPLING_PREDICT_OPTION(T, m, text)                                                        \
    OPTION_INT("n", "predict", "N", offsetof(T, m), -1, 1 << 30, text)

#define SAMPLING_STOP_OPTION(T, m)                                                                 \
    OPTION_WORDS(NULL, "stop", "TEXT", offsetof(T, m),                                             \
                 "end before this text in the text of the answer; may be given several times")

#define SAMPLING_BIAS_OPTION(T, m)                                                                 \
    OPTION_WORDS("l", "logit-bias", "ID(+/-)BIAS", offsetof(T, m),                                 \
                 "added to a token's logit, as in 15043+1 or 15043-2.5; 15043-inf: it is never "   \
                 "chosen.  May be given several times")

/* Reads what --logit-bias was given; out: as many as there are words.  False after saying what is
 * wrong. */
bool sampling_biases(const verb *v, const option_words *given, kk_logit_bias *out, int *code);

#endif
