/* losses.c - the losses by name and in float; see losses.h. */
#include "train/losses.h"

#include <cblas.h>

static const char *const names[KK_LOSSES] = {"ridge",    "mse",          "cos_mag",
                                             "combined", "attn_distill", "attn_distill_hybrid"};

const char *kk_loss_name(kk_loss_kind k) { return names[k]; }

bool kk_loss_named(const char *name, kk_loss_kind *out) {
    for (int i = 0; i < KK_LOSSES; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (kk_loss_kind)i;
        return true;
    }
    return false;
}

bool kk_loss_attends(kk_loss_kind k) {
    return k == KK_LOSS_ATTN_DISTILL || k == KK_LOSS_ATTN_DISTILL_HYBRID;
}

const char *kk_loss_part_name(kk_loss_part p) {
    static const char *const parts[KK_LOSS_PARTS] = {"mse_k", "mse_v", "cos_k", "cos_v", "mag_k",
                                                     "mag_v", "var_k", "var_v", "mse_o"};
    return parts[p];
}

void kk_loss_weights(const kk_loss_setup *s, double w[KK_LOSS_PARTS]) {
    const bool hybrid = s->kind == KK_LOSS_ATTN_DISTILL_HYBRID;
    const bool shape = s->kind == KK_LOSS_COS_MAG || s->kind == KK_LOSS_COMBINED;
    const double half = shape ? 0.5 : 0, var = s->kind == KK_LOSS_COMBINED ? 0.05 : 0;
    w[KK_PART_MSE_K] = w[KK_PART_MSE_V] = s->kind == KK_LOSS_MSE ? 0.5 : 0;
    w[KK_PART_COS_K] = hybrid ? s->k_dir : half;
    w[KK_PART_COS_V] = hybrid ? s->v_dir : half;
    w[KK_PART_MAG_K] = hybrid ? s->k_mag : half;
    w[KK_PART_MAG_V] = hybrid ? s->v_mag : half;
    w[KK_PART_VAR_K] = w[KK_PART_VAR_V] = var;
    w[KK_PART_OUTPUT] = kk_loss_attends(s->kind) ? 1 : 0;
}

bool kk_loss_rebuilds(const kk_loss_setup *s, int32_t start, int32_t n_rows) {
    const kk_config *c = s->model;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const bool has = s->shape->v_block[c->layer[i].kv_source] >= 0 && !s->skip[i];
        const int32_t window = c->layer[i].kind == KK_SLIDING ? c->window : c->context;
        const int32_t from = start - window + 1 > s->sink ? start - window + 1 : s->sink;
        if (has && start < n_rows && start - s->window > from) return true;
    }
    return false;
}

#define REAL float
#define REAL_GEMM cblas_sgemm
#define REAL_EXP expf
#define STEP kk_loss_step
#include "train/losses_body.h"
