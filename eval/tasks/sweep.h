/* sweep.h - how good must rebuilt rows be?
 *
 * For each alpha a session rebuilds the rows that are gone as alpha * true + (1 - alpha) * rebuilt,
 * before their norms: needles are looked for, distributions of texts are compared with exact ones,
 * and what the projection itself misses of the rows is measured.  Its effect at an alpha is
 * (1 - alpha)^2 of that.  Alpha 1 is the identity, and is always among them: logits must be those
 * of exact caches, bit for bit.
 *
 * Both kinds of layers are restored where the projection can, unless the session says otherwise. */
#ifndef KK_EVAL_SWEEP_H
#define KK_EVAL_SWEEP_H

#include "eval/tasks/sweep_ask.h"

enum { KK_SWEEP_ALPHAS = 32 };

typedef struct {
    kk_engine_opts engine;   /* with a projection */
    kk_session_opts session; /* how rows are kept and stored; ctx is set here */
    float alpha[KK_SWEEP_ALPHAS];
    int32_t n_alphas;
    kk_ask_draw draw;
    int32_t predict;          /* most tokens of an answer, and of a continuation */
    kk_quality_source source; /* of texts; tok and from are set here */
    const char *command;      /* what was typed; NULL: not known */
    /* Told often; false stops with KK_ESTOPPED.  May be NULL. */
    bool (*tell)(void *user, int32_t done, int32_t total);
    void *user;
} kk_sweep_opts;

/* Of one alpha, in the order of alphas. */
typedef struct {
    double alpha, recall, mean_kl, worst_kl;
    double rel_mse[3], normed[3]; /* all, sliding, full; negative: no such layer */
    double effective;             /* rel_mse of all times (1 - alpha)^2 */
    int64_t restored_rows;
} kk_sweep_row;

typedef struct {
    kk_sweep_row row[KK_SWEEP_ALPHAS];
    int32_t n_rows;
    double exact; /* recall of exact caches */
    double knee;
    json_t *report; /* all of it */
} kk_sweep_result;

/* On failure *out holds nothing; otherwise release it.  Fails when alpha 1 is not the identity. */
kk_status kk_sweep_run(const kk_sweep_opts *opts, kk_sweep_result *out, kk_err *err);
void kk_sweep_release(kk_sweep_result *r);
kk_status kk_sweep_write(kk_writer *to, const kk_sweep_result *r, kk_err *err);

/* The least alpha whose recall is within 0.05 of that of alpha 1, which must be among them. */
double kk_sweep_knee(const kk_sweep_row *rows, int32_t n);

#endif
