/* training_steps.c - the steps of a run: which rows each looks at, the gradient, the curve.
 *
 * A step's draws follow from the seed and its number alone, so that a run that goes on from a
 * state draws what it would have drawn. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "train/training.h"

enum { SOME_ROWS = 256, SOME_CHUNKS = 4 }; /* rows and chunks of a step */

/* ---- what the losses need of the model --------------------------------------------------- */

static kk_status load(kk_training *t, int32_t layer, const char *part, size_t slot,
                      const float **out, kk_err *err) {
    char name[96];
    snprintf(name, sizeof name, "layers.%d.self_attn.%s.weight", layer, part);
    const kk_tensor *w = kk_checkpoint_find(t->engine->checkpoint, name);
    if (!w) return kk_fail(err, KK_EFORMAT, "the model has no tensor '%s'", name);
    const size_t n = (size_t)kk_tensor_values(w);
    float *to = t->weights[slot] = kk_calloc(n, sizeof *to);
    if (!to) return kk_fail(err, KK_ENOMEM, "no memory for '%s'", name);
    kk_tensor_floats(w, 0, to, n);
    *out = to;
    return KK_OK;
}

kk_status kk_training_prepare(kk_training *t, kk_err *err) {
    const kk_train_opts *o = t->opts;
    const kk_config *c = kk_engine_config(t->engine);
    t->setup = (kk_loss_setup){.shape = &t->theta,
                               .model = c,
                               .kind = t->loss,
                               .k_dir = o->k_dir,
                               .v_dir = o->v_dir,
                               .k_mag = o->k_mag,
                               .v_mag = o->v_mag,
                               .sink = o->sink,
                               .window = o->window,
                               .chunk = o->chunk};
    if (!kk_loss_attends(t->loss)) return KK_OK;
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (c->layer[i].kv_source == i)
            KK_TRY(load(t, i, "k_norm", (size_t)i, &t->setup.k_norm[i], err));
        KK_TRY(load(t, i, "o_proj", (size_t)(KK_MAX_LAYERS + i), &t->setup.o_proj[i], err));
    }
    return KK_OK;
}

/* ---- draws ------------------------------------------------------------------------------- */

/* The first n of a shuffled `at`. */
static void draw(kk_twister *random, int32_t *at, int32_t all, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t j = kk_twister_between(random, i, all - 1), x = at[i];
        at[i] = at[j];
        at[j] = x;
    }
}

/* Places of one sequence where a loss can be taken; how many there are is returned. */
static int32_t places(const kk_training *t, const kk_captured *rows, int32_t *at) {
    int32_t n = 0;
    if (!kk_loss_attends(t->loss)) {
        for (int32_t i = 0; i < rows->n_rows; i++) at[n++] = i;
        return n;
    }
    for (int32_t a = 0; a < rows->n_rows; a += t->setup.chunk)
        if (kk_loss_rebuilds(&t->setup, a, rows->n_rows)) at[n++] = a;
    return n;
}

/* A sequence with places, and some of them.  There is one: the texts are long enough. */
static kk_loss_batch choose(const kk_training *t, int32_t *at) {
    const int32_t some = kk_loss_attends(t->loss) ? SOME_CHUNKS : SOME_ROWS;
    kk_twister random;
    kk_twister_seed(&random, t->opts->seed << 32 | (uint32_t)t->step);
    for (;;) {
        const int32_t i = kk_twister_between(&random, 0, (int32_t)t->n_stored - 1);
        const kk_captured *rows = &t->stored[i];
        const int32_t all = places(t, rows, at), n = all < some ? all : some;
        if (!n) continue;
        draw(&random, at, all, n);
        return (kk_loss_batch){rows, at, n};
    }
}

static kk_status check_places(const kk_training *t, int32_t *at, kk_err *err) {
    for (size_t i = 0; i < t->n_stored; i++)
        if (places(t, &t->stored[i], at) > 0) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   "in none of the %zu texts does a query see a row that would be rebuilt: they "
                   "are too short for sink %d, window %d and chunk %d",
                   t->n_stored, t->opts->sink, t->opts->window, t->opts->chunk);
}

/* ---- the curve --------------------------------------------------------------------------- */

static void add_to_line(kk_training *t, double lr, double norm) {
    const kk_loss_result *r = &t->last;
    kk_training_line *s = &t->sum;
    s->step = t->step;
    s->lr = lr;
    s->loss += r->loss;
    s->grad_norm += norm;
    if (r->output_energy > 0) s->ratio += r->output_error / r->output_energy;
    for (int p = 0; p < KK_LOSS_PARTS; p++) s->part[p] += r->part[p];
    t->in_sum++;
}

static kk_training_line mean_line(const kk_training *t) {
    kk_training_line l = t->sum;
    const double n = t->in_sum ? t->in_sum : 1;
    l.loss /= n;
    l.grad_norm /= n;
    l.ratio /= n;
    for (int p = 0; p < KK_LOSS_PARTS; p++) l.part[p] /= n;
    return l;
}

static kk_status end_line(kk_training *t, kk_err *err) {
    if (!kk_grow((void **)&t->curve, &t->cap_curve, t->n_curve + 1, sizeof *t->curve))
        return kk_fail(err, KK_ENOMEM, "no memory for the curve");
    t->curve[t->n_curve++] = mean_line(t);
    t->sum = (kk_training_line){0};
    t->in_sum = 0;
    return KK_OK;
}

/* ---- steps ------------------------------------------------------------------------------- */

/* Names the layer whose share of the loss is not finite. */
static kk_status no_number(const kk_training *t, kk_err *err) {
    int32_t layer = -1;
    for (int32_t i = 0; i < t->setup.model->n_layer && layer < 0; i++)
        if (!isfinite(t->last.layer[i])) layer = i;
    char *path = kk_training_state_path(t);
    const bool kept = path && kk_file_exists(path);
    char where[32] = "";
    if (layer >= 0) snprintf(where, sizeof where, " of layer %d", layer);
    kk_fail(err, KK_EINVAL, "the %s%s is not a number at step %d%s%.120s",
            layer >= 0 ? "loss" : "gradient", where, t->step + 1,
            kept ? "; the last good state is in " : "; no state was kept", kept ? path : "");
    kk_free(path);
    return KK_EINVAL;
}

static kk_status one_step(kk_training *t, int32_t *at, kk_err *err) {
    const kk_adamw_opts *o = &t->opts->adamw;
    const kk_loss_batch batch = choose(t, at);
    const size_t n = t->theta.n_params;
    memset(t->grad, 0, n * sizeof *t->grad);
    KK_TRY(kk_loss_step(&t->setup, &batch, t->theta.params, t->grad, &t->last, err));
    const double norm = kk_adamw_clip(t->grad, n, o->clip);
    if (!isfinite(t->last.loss) || !isfinite(norm)) return no_number(t, err);
    if (t->step == 0) t->initial_loss = t->last.loss;
    t->step++;
    kk_adamw_step(o, t->step, t->theta.params, t->grad, t->m, t->v, n);
    add_to_line(t, kk_adamw_rate(o, t->step), norm);
    return KK_OK;
}

static kk_status tell(kk_training *t, double begin, int32_t first, bool line, kk_err *err) {
    const kk_training_line now = t->in_sum || !t->n_curve ? mean_line(t) : t->curve[t->n_curve - 1];
    const int32_t total = t->opts->adamw.steps, done = t->step - first;
    const kk_train_event e = {.phase = KK_TRAIN_STEPPING,
                              .done = t->step,
                              .total = total,
                              .left_s = done ? (kk_now() - begin) / done * (total - t->step) : -1,
                              .loss = now.loss,
                              .lr = now.lr,
                              .ratio = now.ratio,
                              .line = line};
    const kk_status st = kk_training_tell(t, e, err);
    if (st != KK_ESTOPPED) return st;
    KK_TRY(kk_training_save(t, err));
    return kk_fail(err, KK_ESTOPPED,
                   "stopped after step %d of %d, whose state is kept: --resume "
                   "goes on",
                   t->step, total);
}

static kk_status run(kk_training *t, int32_t *at, kk_err *err) {
    const kk_train_opts *o = t->opts;
    const double begin = kk_now();
    const int32_t first = t->step;
    KK_TRY(check_places(t, at, err));
    while (t->step < o->adamw.steps) {
        KK_TRY(one_step(t, at, err));
        const bool line = t->step % o->log_every == 0 || t->step == o->adamw.steps;
        if (line) KK_TRY(end_line(t, err));
        if (o->checkpoint_every && t->step % o->checkpoint_every == 0)
            KK_TRY(kk_training_save(t, err));
        KK_TRY(tell(t, begin, first, line, err));
    }
    return KK_OK;
}

kk_status kk_training_steps(kk_training *t, kk_err *err) {
    int32_t longest = 1;
    for (size_t i = 0; i < t->n_stored; i++)
        longest = t->stored[i].n_rows > longest ? t->stored[i].n_rows : longest;
    int32_t *at = kk_calloc((size_t)longest, sizeof *at);
    if (!at) return kk_fail(err, KK_ENOMEM, "no memory for %d places", longest);
    const kk_status st = run(t, at, err);
    kk_free(at);
    t->out->steps = t->step;
    if (t->n_curve) {
        t->out->initial_loss = t->initial_loss;
        t->out->final_loss = t->curve[t->n_curve - 1].loss;
        t->out->ratio = t->curve[t->n_curve - 1].ratio;
    }
    return st;
}
