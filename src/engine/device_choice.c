/* device_choice.c - which device an engine runs on: the one that was asked for, or the fastest here
 * that can do what the options ask. */
#include <stdio.h>

#include "engine/engine.h"

/* What the GPU does not do yet, and a CPU alone has; NULL: nothing of it was asked for. */
static const char *needs_cpu(const kk_engine *e, const kk_engine_opts *o) {
    if (o->isa) return "isa names kernels of the CPU";
    if (o->projection) return "a projection rebuilds rows on the CPU alone";
    for (size_t i = 0; i < kk_checkpoint_count(e->checkpoint); i++)
        if (kk_dtype_is_affine(kk_checkpoint_at(e->checkpoint, i)->dtype))
            return "the GPU does not read weights in MLX's types";
    return NULL;
}

static kk_status usable(const kk_backend **out, const char *name, kk_err *err) {
    KK_TRY(kk_backend_find(out, name, err));
    return (*out)->usable ? (*out)->usable(err) : KK_OK;
}

kk_status kk_engine_find_device(kk_engine *e, const kk_engine_opts *o, kk_err *err) {
    kk_err why = {0};
    if (o->device) {
        snprintf(e->why_device, sizeof e->why_device, "it was asked for");
        return usable(&e->backend, o->device, err);
    }
    const char *reason = needs_cpu(e, o);
    if (!reason && !kk_backend_is_there("cuda")) reason = "no module for GPUs is installed";
    if (!reason && usable(&e->backend, "cuda", &why) == KK_OK) {
        snprintf(e->why_device, sizeof e->why_device, "it is the fastest here");
        return KK_OK;
    }
    snprintf(e->why_device, sizeof e->why_device, "%s", reason ? reason : why.msg);
    return usable(&e->backend, "cpu", err);
}
