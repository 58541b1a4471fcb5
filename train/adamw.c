/* adamw.c - see adamw.h. */
#include "train/adamw.h"

#include <math.h>

static const double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, pi = 3.14159265358979323846;

double kk_adamw_rate(const kk_adamw_opts *o, int32_t step) {
    if (o->constant) return o->lr;
    if (step <= o->warmup && o->warmup > 0) return o->lr * step / o->warmup;
    const int32_t rest = o->steps - o->warmup > 1 ? o->steps - o->warmup : 1;
    const double at = (double)(step - o->warmup) / rest, done = at < 0 ? 0 : at > 1 ? 1 : at;
    return 0.01 * o->lr + 0.99 * o->lr * 0.5 * (1 + cos(pi * done));
}

double kk_adamw_clip(float *grad, size_t n, double clip) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)grad[i] * (double)grad[i];
    const double norm = sqrt(sum);
    if (clip <= 0 || !(norm > clip)) return norm;
    const float scale = (float)(clip / norm);
    for (size_t i = 0; i < n; i++) grad[i] *= scale;
    return norm;
}

void kk_adamw_step(const kk_adamw_opts *o, int32_t step, float *params, const float *grad, float *m,
                   float *v, size_t n) {
    const double lr = kk_adamw_rate(o, step), keep = 1 - lr * o->weight_decay;
    const double first = 1 / (1 - pow(beta1, step)), second = 1 / (1 - pow(beta2, step));
    for (size_t i = 0; i < n; i++) {
        const double g = (double)grad[i];
        m[i] = (float)(beta1 * (double)m[i] + (1 - beta1) * g);
        v[i] = (float)(beta2 * (double)v[i] + (1 - beta2) * g * g);
        const double by = (double)m[i] * first / (sqrt((double)v[i] * second) + eps);
        params[i] = (float)((double)params[i] * keep - lr * by);
    }
}
