/* eval_sweep.h - the kinds of `kakeya eval` that vary how rows are kept: sweep, kv and memory; and
 * the options they share. */
#ifndef KAKEYA_CLI_EVAL_SWEEP_H
#define KAKEYA_CLI_EVAL_SWEEP_H

#include "cli/options.h"
#include "eval/tasks/sweep_ask.h"

extern const verb eval_sweep, eval_kv, eval_memory;

/* What is asked and read. */
typedef struct {
    const char *ladder, *text;
    uint64_t seed;
    int32_t samples, predict, text_tokens;
} eval_texts_args;
#define EVAL_TEXTS_DEFAULTS                                                                        \
    { .seed = 42, .samples = 5, .predict = 32, .text_tokens = 1024 }

#define EVAL_TEXTS_OPTIONS(T, m)                                                                   \
    OPTION_HEADING("What is asked and read"),                                                      \
        OPTION_STRING(NULL, "ladder", "LIST", offsetof(T, m.ladder),                               \
                      "lines of padding of each rung, give or take 15 % (default: 70)"),           \
        EVAL_SAMPLES_OPTIONS(T, m),                                                                \
        OPTION_INT(NULL, "text-tokens", "N", offsetof(T, m.text_tokens), 2, 1 << 30,               \
                   "tokens taken of a text, at most (default: 1024)")

#define EVAL_SAMPLES_OPTIONS(T, m)                                                                 \
    OPTION_INT(NULL, "samples", "N", offsetof(T, m.samples), 1, KK_ASK_SAMPLES,                    \
               "documents of each rung (default: 5)"),                                             \
        OPTION_SEED("s", "seed", "N", offsetof(T, m.seed), "names the documents (default: 42)"),   \
        OPTION_INT("n", "predict", "N", offsetof(T, m.predict), 1, 1 << 20,                        \
                   "most tokens of an answer (default: 32)"),                                      \
        OPTION_STRING(NULL, "text", "FILE", offsetof(T, m.text),                                   \
                      "a text to compare next-token distributions on, or prompts where it ends "   \
                      "in .jsonl; may be given several times (default: the shipped prompts that "  \
                      "training holds out)")

/* Names in a list with commas between; they point into *copy. */
enum { EVAL_NAMES = 32 };
typedef struct {
    char *copy;
    const char *name[EVAL_NAMES];
    size_t n;
} eval_names;
/* False: too many, one is empty, or no memory.  NULL is no name. */
bool eval_split(const char *list, eval_names *out);
void eval_names_free(eval_names *n);

/* What the source of texts points to. */
typedef struct {
    const char *file[EVAL_NAMES];
    char folder[4096];
} eval_files;
/* The rungs of a ladder, and every --text of argv; false after saying what is wrong. */
bool eval_read_ladder(const verb *v, const char *text, int32_t ladder[KK_ASK_RUNGS],
                      int32_t *n_rungs, int *code);
bool eval_collect_texts(const verb *v, int argc, char **argv, const char *files[EVAL_NAMES],
                        size_t *n, int *code);
/* Documents and texts of these arguments, every --text of argv among them; false after saying what
 * is wrong. */
bool eval_read_texts(const verb *v, const eval_texts_args *a, int argc, char **argv,
                     kk_ask_draw *draw, kk_quality_source *source, eval_files *files, int *code);
/* "NAME 40 %" on the terminal's last line; erased when total is 0. */
void eval_progress(bool quiet, const char *name, int32_t done, int32_t total);

#endif
