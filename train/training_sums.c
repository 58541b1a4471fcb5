/* training_sums.c - a run whose closed form is added up on the device: whether it is, what it takes
 * of memory, and its solution; see training.h. */
#include <string.h>

#include "train/training.h"

/* Why this run's sums cannot be made there; NULL: they can. */
static const char *refuse(const kk_training *t) {
    if (t->opts->init_from) return "a run from another projection adds nothing up";
    return kk_sums_refuse(&t->how);
}

kk_status kk_training_choose_sums(kk_training *t, bool *device, kk_err *err) {
    const char *asked = t->opts->sums, *why = refuse(t);
    const bool host = asked && strcmp(asked, "host") == 0;
    *device = !why && !host && (asked || t->engine->backend->own_memory);
    if (!asked || host) return KK_OK;
    if (strcmp(asked, "device") != 0)
        return kk_fail(err, KK_EINVAL, "sums are made on the host or the device, not '%.20s'",
                       asked);
    return why ? kk_fail(err, KK_EINVAL, "the device was to make the sums: %s", why) : KK_OK;
}

static kk_status tell_sizes(const kk_training *t, const kk_sums_opts *o, kk_err *err) {
    kk_sums_bytes need;
    kk_dev_facts facts;
    KK_TRY(kk_sums_need(&need, o, err));
    t->engine->backend->describe(t->engine->dev, &facts);
    const kk_train_event e = {.phase = KK_TRAIN_SIZING,
                              .left_s = -1,
                              .line = true,
                              .device_bytes = need.device,
                              .device_free = (size_t)facts.memory.free,
                              .host_bytes = need.host};
    return kk_training_tell(t, e, err);
}

kk_status kk_training_open_sums(kk_training *t, const kk_ridge_opts *how, kk_err *err) {
    const kk_sums_opts o = {
        .from = &t->how, .shape = &t->theta, .ridge = *how, .rows = t->engine->rounds.max_rows};
    KK_TRY(tell_sizes(t, &o, err));
    return kk_sums_new(&t->sums, &o, err);
}

static kk_status on_step(void *user, int32_t step, const char *what, double seconds, kk_err *err) {
    const kk_training *t = user;
    const kk_train_event e = {.phase = KK_TRAIN_SOLVING,
                              .done = step + 1,
                              .total = KK_SUMS_STEPS,
                              .left_s = -1,
                              .line = true,
                              .what = what,
                              .seconds = seconds};
    return kk_training_tell(t, e, err);
}

/* Judging wants the device's memory for nothing that lies there now. */
kk_status kk_training_solve_sums(kk_training *t, kk_err *err) {
    const kk_sums_watch watch = {on_step, t};
    const kk_status st = kk_sums_solve(t->sums, &t->theta, &watch, err);
    const kk_sums_times spent = kk_sums_spent(t->sums);
    t->out->add_s = spent.add_s;
    t->out->add_flop = spent.flop;
    kk_sums_free(t->sums);
    t->sums = NULL;
    return st;
}
