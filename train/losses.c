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

kk_visible_rule kk_loss_rule(const kk_loss_setup *s, int32_t mask) {
    return (kk_visible_rule){.mask = mask,
                             .evicts = true,
                             .bounds = {.window = s->window, .sink = s->sink, .chunk = s->chunk}};
}

bool kk_loss_rebuilds(const kk_loss_setup *s, int32_t start, int32_t n_rows) {
    const kk_config *c = s->model;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const bool has = s->shape->v_block[c->layer[i].kv_source] >= 0 && !s->skip[i];
        const kk_visible_rule rule =
            kk_loss_rule(s, c->layer[i].kind == KK_SLIDING ? c->window : 0);
        if (has && start < n_rows && kk_visible_gone(kk_sees(&rule, start)) > 0) return true;
    }
    return false;
}

#define REAL float
#define REAL_GEMM cblas_sgemm
#define REAL_EXP expf
#define STEP kk_loss_step
#include "train/losses_body.h"
