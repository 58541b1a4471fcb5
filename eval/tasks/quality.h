/* quality.h - what recall is blind to: how far a cache that forgets rows, rebuilds them or packs
 * them moves the next-token distributions of ordinary text.
 *
 * A text is read by an exact session and by one session of every arm, side by side and token for
 * token, and at each position after the first `from` their distributions are compared: KL in nats,
 * exact against arm, and the loss on the token that follows.  At its end all of them go on
 * greedily, and the tokens that are still equal are counted.  A row's bits do not depend on how
 * rows are grouped, so the pieces a text is read in change nothing.
 *
 * Texts are files, or the shipped prompts of which a projection is not trained: those that
 * kk_quality_held_out names, by which training chooses too. */
#ifndef KK_EVAL_QUALITY_H
#define KK_EVAL_QUALITY_H

#include <jansson.h>

#include "eval/texts/subset.h"
#include "kakeya.h"

enum { KK_QUALITY_LEAST_ROWS = 256, KK_QUALITY_ARMS = 8 };

/* ---- texts -------------------------------------------------------------------------------- */

typedef struct {
    char name[80];
    int32_t *ids;
    int32_t n;
} kk_quality_text;

typedef struct {
    kk_quality_text *texts;
    size_t n, cap;
    int64_t rows;      /* positions that can be compared */
    int32_t too_short; /* prompts left out, because they have no such position */
} kk_quality_texts;

typedef struct {
    const kk_tokenizer *tok;
    const char *const
        *paths;          /* files, one text each, or sets of prompts where they end in .jsonl */
    size_t n_paths;      /* 0: what is held out of the folder */
    const char *prompts; /* folder of prompt sets; NULL: there is none */
    int32_t from;        /* the first position that is compared */
    int32_t most;        /* tokens taken of a text */
    kk_subset subset;    /* which of the texts are kept */
} kk_quality_source;

/* Files must be long enough for something to be compared, and all together give
 * KK_QUALITY_LEAST_ROWS positions. */
kk_status kk_quality_read(kk_quality_texts *out, const kk_quality_source *from, kk_err *err);
void kk_quality_free(kk_quality_texts *t); /* zero value is fine; leaves it zero */
/* Whether a text is kept from training: one of ten, by its name or its ids. */
bool kk_quality_held_out(const void *name, size_t len);

/* ---- the comparison ----------------------------------------------------------------------- */

typedef struct {
    char text[80];
    int32_t rows; /* positions compared */
    double mean_kl, worst_kl;
    double loss_exact, loss_arm; /* nats per token */
    int32_t same_prefix, same_of;
} kk_quality_row;

typedef struct {
    int64_t rows;
    double mean_kl, worst_kl, loss_change; /* means weighted by rows */
    double same;                           /* of the tokens of continuations, that are equal */
} kk_quality_sum;

typedef struct {
    kk_engine *engine;
    const kk_session_opts *exact, *arms; /* ctx and spec of these are not looked at */
    int32_t n_arms;
    /* [n_arms] true rows are mixed into those that an arm rebuilds by so much; negative: into none.
     * NULL: into none of any arm. */
    const float *mix;
    int32_t from;    /* the first position that is compared */
    int32_t predict; /* tokens of a continuation */
    /* Told as a text is read; false stops with KK_ESTOPPED.  May be NULL. */
    bool (*on_rows)(void *user, const kk_quality_text *text, int32_t done);
    void *user;
} kk_quality_opts;

/* rows [n_arms], one for each arm. */
kk_status kk_quality_measure(const kk_quality_opts *opts, const kk_quality_text *text,
                             kk_quality_row *rows, kk_err *err);
kk_quality_sum kk_quality_sum_up(const kk_quality_row *rows, size_t n);

/* KL of two rows of logits in nats, exact against arm: never negative, 0 when they are equal, and
 * not finite when a logit is not. */
double kk_quality_kl(const float *exact, const float *arm, int32_t vocab);
/* Nats that a row of logits gives to a token. */
double kk_quality_loss(const float *logits, int32_t vocab, int32_t token);

/* ---- in reports --------------------------------------------------------------------------- */

/* A quality row and a sum of quality, with the arm's name first; arm NULL: without. */
json_t *kk_quality_json(const char *arm, const kk_quality_row *row);
json_t *kk_quality_sum_json(const char *arm, const kk_quality_sum *sum);
/* The files they were read from, as kk_report_file says them. */
json_t *kk_quality_files_json(const kk_quality_source *from);
/* Which texts they were. */
json_t *kk_quality_texts_json(const kk_quality_texts *t, const kk_quality_source *from);

#endif
