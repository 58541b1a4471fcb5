/* adamw.h - AdamW as PyTorch has it by default (betas 0.9 and 0.999, eps 1e-8), with gradients
 * clipped by their norm and a rate that warms up and falls as a cosine. */
#ifndef KK_TRAIN_ADAMW_H
#define KK_TRAIN_ADAMW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    double lr;           /* at its peak */
    double weight_decay; /* share of the rate by which weights shrink in each step */
    double clip;         /* most norm of a gradient; 0: any */
    int32_t steps, warmup;
    bool constant; /* the peak at every step */
} kk_adamw_opts;

/* The rate of a step, counted from 1: up to the peak over `warmup` steps, then down to a hundredth
 * of it. */
double kk_adamw_rate(const kk_adamw_opts *o, int32_t step);
/* Scales the gradient to a norm of at most `clip`; returns the norm it had. */
double kk_adamw_clip(float *grad, size_t n, double clip);
/* One step; m and v are the running means of the gradient and its square, zero before the first. */
void kk_adamw_step(const kk_adamw_opts *o, int32_t step, float *params, const float *grad, float *m,
                   float *v, size_t n);

#endif
