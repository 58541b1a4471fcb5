/* parity_devices.h - one model on two devices: what they choose after the same tokens, and what
 * their drafters' drafts are worth.
 *
 * Both read a prompt drawn by a seed and then what the first device chooses, with K/V in float32;
 * so one near tie does not make all that follows differ.  A choice that differs is a near tie where
 * the second device's two largest logits are nearer than the logits of both devices are to each
 * other. */
#ifndef KK_EVAL_PARITY_DEVICES_H
#define KK_EVAL_PARITY_DEVICES_H

#include "kakeya.h"

typedef struct {
    const char *device, *against; /* names of devices */
    int32_t prompt, steps;        /* tokens; 0: 40 and 48 */
} kk_parity_devices_opts;

typedef struct {
    int32_t n, equal, near;       /* choices compared, equal ones, and near ties among the others */
    double most;                  /* the largest difference of two logits */
    bool drafts;                  /* the model has a drafter beside it, in dflash/ */
    int64_t drafted, accepted[2]; /* tokens drafted on the first, and accepted on each */
    bool text_equal;              /* of the drafted generations */
    bool ok; /* all choices are equal or near ties; drafts are accepted alike where all are equal */
} kk_parity_devices_report;

kk_status kk_parity_devices(const char *model, const kk_parity_devices_opts *opts,
                            kk_parity_devices_report *out, kk_err *err);

#endif
