/* trainer.h - makes a projection for a verifier: texts, captured rows, a closed-form start, steps,
 * and what came of it on texts held out.
 *
 * Everything is a function of the options and of the number of threads: texts, splits, batches and
 * sums.  A run that was stopped, or that failed, goes on from its last state with `resume` and ends
 * with the bits of a run that was not. */
#ifndef KK_TRAIN_TRAINER_H
#define KK_TRAIN_TRAINER_H

#include "kakeya.h"
#include "train/adamw.h"

enum { KK_TRAIN_TAPS = 16, KK_TRAIN_LAYERS = 256 };

typedef enum {
    KK_TRAIN_READING,   /* tokens of texts */
    KK_TRAIN_CAPTURING, /* rows of all */
    KK_TRAIN_STEPPING,  /* steps of all */
    KK_TRAIN_JUDGING,   /* rows held out, of all */
    KK_TRAIN_SIZING,    /* nothing yet: what sums on the device will take */
    KK_TRAIN_SOLVING,   /* steps of a solution from such sums, of all */
    KK_TRAIN_PHASES
} kk_train_phase;

typedef struct {
    kk_train_phase phase;
    int64_t done, total;    /* total 0: not known */
    double left_s;          /* expected; negative: not known */
    double loss, lr, ratio; /* stepping: means since the last line of the curve */
    bool line;   /* worth keeping: a line of the curve is complete; of other phases, now and then */
    double rate; /* rows per second; 0: not known */
    const char *what;                             /* solving: the step that was done */
    double seconds;                               /* of it */
    size_t device_bytes, device_free, host_bytes; /* sizing */
} kk_train_event;

typedef struct {
    kk_engine_opts engine;
    const char *out;                     /* folder of the projection */
    const char *source;                  /* "taps", "context", "embed", "drafter-kv" */
    int32_t n_taps, taps[KK_TRAIN_TAPS]; /* none: the drafter's */
    int32_t rank;
    const char *layers;       /* "all", "sliding", "full" */
    const char *const *paths; /* texts; none: prompts and what the model says */
    size_t n_paths;
    const char *prompts;                   /* folder of prompt sets; NULL: none */
    int64_t tokens;                        /* trained on, needles apart; 0: all */
    int32_t predict;                       /* tokens the model says to a prompt */
    int32_t length, needles, needle_lines; /* tokens of a text; documents with a code; lines */
    bool normed_targets;                   /* ridge.h */
    double lambda;                         /* ridge.h; 0: its own */
    double full_weight; /* ridge: how much full layers count beside sliding ones; 0: alike */
    const char *loss;   /* "ridge", or one of losses.h */
    kk_adamw_opts adamw;
    double k_dir, v_dir, k_mag, v_mag;
    int32_t sink, window, chunk;
    int32_t log_every, checkpoint_every; /* steps; no checkpoints: 0 */
    const char *init_from;               /* a projection; NULL: ridge */
    bool resume;
    bool replace; /* a projection, report or state that is there */
    uint64_t seed;
    /* Where the sums of the closed form are made: "host", in BLAS; "device", where the model runs
     * (sums.h); NULL: there if it has memory of its own and can. */
    const char *sums;
    const char *report, *command; /* NULL: none; not known */
    /* False stops with KK_ESTOPPED; a run that steps then keeps its state.  May be NULL. */
    bool (*on_event)(void *user, const kk_train_event *e);
    void *user;
} kk_train_opts;

/* Squared error of rebuilt rows, normalised as attention sees them, over their square. */
typedef struct {
    bool restored, full, k_eq_v;
    double k, v; /* K = V: the same */
} kk_train_layer;

typedef struct {
    int32_t n_layers, rank, n_in;
    int64_t params, sequences, rows, held_rows;
    kk_train_layer start[KK_TRAIN_LAYERS], end[KK_TRAIN_LAYERS]; /* held_rows 0: not known */
    double read_s, collect_s, solve_s, train_s;
    double add_s, add_flop; /* of collect_s, sums on the device, and operations; 0: on the host */
    int32_t steps, resumed_at;       /* 0: from the beginning */
    double initial_loss, final_loss; /* steps */
    double ratio;                    /* attention's output, of the last lines; 0: not measured */
    char skipped[400]; /* what was found at the paths and not read, as a sentence; "": nothing */
} kk_train_result;

kk_status kk_train_run(const kk_train_opts *opts, kk_train_result *out, kk_err *err);

#endif
