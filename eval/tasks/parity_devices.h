/* parity_devices.h - one model on two devices: what they choose after the same tokens, and what
 * their drafters' drafts are worth.
 *
 * Both read a prompt drawn by a seed and then what the first device chooses, with K/V in float32;
 * so one near tie does not make all that follows differ.  No logit may differ by more than the
 * tolerance, a share of the root mean square of its row; a choice that differs is a near tie where
 * the second device has both within twice that. */
#ifndef KK_EVAL_PARITY_DEVICES_H
#define KK_EVAL_PARITY_DEVICES_H

#include "kakeya.h"

typedef struct {
    const char *device, *against; /* names of devices */
    int32_t prompt, steps;        /* tokens; 0: 40 and 48 */
    double tol;                   /* share of a row's root mean square; 0: 1e-3 */
} kk_parity_devices_opts;

typedef struct {
    int32_t n, equal, near;       /* choices compared, equal ones, and near ties among the others */
    double most;                  /* the largest difference of two logits, as such a share */
    double tol;                   /* what is allowed */
    bool drafts;                  /* the model has a drafter beside it, in dflash/ */
    int64_t drafted, accepted[2]; /* tokens drafted on the first, and accepted on each */
    bool text_equal;              /* of the drafted generations */
    bool ok; /* logits are near, all choices equal or near ties; drafts are accepted alike where all
              * are equal */
} kk_parity_devices_report;

/* Compares the logits of both devices for one position; and says, after all of them, whether they
 * agree. */
void kk_parity_devices_rows(kk_parity_devices_report *out, const float *a, const float *b,
                            int32_t n);
void kk_parity_devices_judge(kk_parity_devices_report *out);

kk_status kk_parity_devices(const char *model, const kk_parity_devices_opts *opts,
                            kk_parity_devices_report *out, kk_err *err);

#endif
