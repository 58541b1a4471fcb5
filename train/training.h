/* training.h - one run of the trainer, for the files that share it. */
#ifndef KK_TRAIN_TRAINING_H
#define KK_TRAIN_TRAINING_H

#include "train/corpus.h"
#include "train/fit.h"
#include "train/losses.h"
#include "train/sums.h"
#include "train/trainer.h"

/* A line of the curve: means over the steps since the line before. */
typedef struct {
    double step, lr, loss, grad_norm, ratio, part[KK_LOSS_PARTS];
} kk_training_line;

typedef struct {
    const kk_train_opts *opts;
    kk_train_result *out;
    kk_engine *engine;
    kk_projection_files files; /* open from the beginning, as is the report */
    kk_writer *report;         /* NULL: none */
    bool made_folder;          /* the folder of the projection is new */
    kk_capture_opts how;
    kk_loss_kind loss;
    kk_layer_choice layers;
    kk_corpus corpus;
    kk_capture *capture;
    kk_sums *sums; /* NULL: the host adds up */
    kk_theta theta;
    float *start; /* parameters before the first step; NULL: there are no steps */

    kk_captured *stored; /* sequences that steps draw from */
    size_t n_stored;
    int64_t stored_rows;

    kk_loss_setup setup;
    float *weights[2 * KK_MAX_LAYERS]; /* what setup points to */
    float *grad, *m, *v;
    int32_t step;         /* steps done */
    kk_training_line sum; /* sums of the curve's current line, and its number of steps */
    int32_t in_sum;
    kk_training_line *curve;
    size_t n_curve, cap_curve;
    double initial_loss; /* loss of the first step */
    kk_loss_result last;
    kk_fit fit_start, fit_end;
} kk_training;

/* Tells what happens; KK_ESTOPPED when that is not wanted. */
kk_status kk_training_tell(const kk_training *t, kk_train_event e, kk_err *err);

/* Whether sums are made on the device, by the options and by what it can; refused, where that was
 * asked for and cannot be. */
kk_status kk_training_choose_sums(kk_training *t, bool *device, kk_err *err);
/* Says what they take, and takes it. */
kk_status kk_training_open_sums(kk_training *t, const kk_ridge_opts *how, kk_err *err);
kk_status kk_training_solve_sums(kk_training *t, kk_err *err);

/* All steps, from t->step on. */
kk_status kk_training_steps(kk_training *t, kk_err *err);
kk_status kk_training_prepare(kk_training *t, kk_err *err); /* what steps need of the model */

/* The state of a run in OUT/training.state: parameters, means, curve, step.  A state of other
 * options, texts or shapes is refused. */
kk_status kk_training_save(const kk_training *t, kk_err *err);
kk_status kk_training_load(kk_training *t, kk_err *err);
char *kk_training_state_path(const kk_training *t); /* kk_free it; NULL: no memory */

/* Opens what the run will write, and refuses what it may not replace. */
kk_status kk_training_open_outputs(kk_training *t, kk_err *err);
void kk_training_close_outputs(kk_training *t);
/* Writes the projection and its report, if there is one, the projection's configuration last: what
 * is there at any time is all of the training before, all of this one, or no projection. */
kk_status kk_training_write(kk_training *t, kk_err *err);
/* Puts the report into its file. */
kk_status kk_training_report(kk_training *t, kk_err *err);

#endif
