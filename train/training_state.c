/* training_state.c - the state of a run in a file, so that it can go on; see training.h.
 *
 * The file is numbers in the machine's own order, with a hash of what they belong to (options,
 * texts, shapes) in front and a hash of everything behind.  It is written beside itself and
 * renamed, so that a full disk leaves the state before. */
#include <string.h>

#include "core/writer.h"
#include "format/projection.h"
#include "train/training.h"

enum { MAGIC = 0x314b4b54, MOST_LINES = 1 << 24 };

typedef struct {
    uint32_t magic, step;
    uint64_t belongs; /* to which run */
    uint64_t n_params, n_curve;
    int64_t in_sum;
    double initial_loss;
    kk_training_line sum;
} head;

static uint64_t hash(uint64_t h, const void *data, size_t n) {
    const unsigned char *at = data;
    for (size_t i = 0; i < n; i++) h = (h ^ at[i]) * 1099511628211u;
    return h;
}

static uint64_t hash_text(uint64_t h, const char *s) { return s ? hash(h, s, strlen(s) + 1) : h; }

/* Everything the bits of a run depend on. */
static uint64_t belongs(const kk_training *t) {
    const kk_train_opts *o = t->opts;
    const kk_adamw_opts *a = &o->adamw;
    const double reals[] = {a->lr,    a->weight_decay, a->clip,   o->k_dir,      o->v_dir,
                            o->k_mag, o->v_mag,        o->lambda, o->full_weight};
    const int64_t ints[] = {a->steps,         a->warmup, a->constant,         o->sink,
                            o->window,        o->chunk,  o->log_every,        o->normed_targets,
                            (int64_t)o->seed, t->loss,   t->theta.config.rank};
    uint64_t h = hash(1469598103934665603u, reals, sizeof reals);
    h = hash(h, ints, sizeof ints);
    h = hash(h, &t->theta.config, sizeof t->theta.config);
    h = hash_text(h, o->init_from);
    for (size_t i = 0; i < t->corpus.n; i++)
        h = hash(h, t->corpus.texts[i].ids, (size_t)t->corpus.texts[i].n * sizeof(int32_t));
    return h;
}

char *kk_training_state_path(const kk_training *t) {
    return kk_path_join(t->opts->out, "training.state");
}

/* The parts of the file behind its head. */
typedef struct {
    void *data;
    size_t bytes;
} part;

static void list_parts(const kk_training *t, part out[4]) {
    const size_t bytes = t->theta.n_params * sizeof(float);
    out[0] = (part){t->curve, t->n_curve * sizeof *t->curve};
    out[1] = (part){t->theta.params, bytes};
    out[2] = (part){t->m, bytes};
    out[3] = (part){t->v, bytes};
}

/* ---- writing ----------------------------------------------------------------------------- */

static kk_status put(kk_writer *w, const void *data, size_t n, uint64_t *h, kk_err *err) {
    *h = hash(*h, data, n);
    return n ? kk_writer_put(w, data, n, err) : KK_OK;
}

static kk_status write_all(const kk_training *t, kk_writer *w, kk_err *err) {
    head begin; /* with its padding, which is hashed too */
    part parts[4];
    uint64_t h = 1469598103934665603u;
    memset(&begin, 0, sizeof begin);
    begin.magic = MAGIC;
    begin.step = (uint32_t)t->step;
    begin.belongs = belongs(t);
    begin.n_params = t->theta.n_params;
    begin.n_curve = t->n_curve;
    begin.in_sum = t->in_sum;
    begin.initial_loss = t->initial_loss;
    begin.sum = t->sum;
    KK_TRY(put(w, &begin, sizeof begin, &h, err));
    list_parts(t, parts);
    for (int i = 0; i < 4; i++) KK_TRY(put(w, parts[i].data, parts[i].bytes, &h, err));
    return kk_writer_put(w, &h, sizeof h, err);
}

kk_status kk_training_save(const kk_training *t, kk_err *err) {
    char *path = kk_training_state_path(t);
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    const kk_writer_opts opts = {.replace = true};
    kk_writer *w;
    kk_status st = kk_writer_open(&w, path, &opts, err);
    kk_free(path);
    if (st != KK_OK) return st;
    st = write_all(t, w, err);
    if (st == KK_OK) st = kk_writer_commit(w, err);
    kk_writer_close(w);
    return st;
}

/* ---- reading ----------------------------------------------------------------------------- */

static kk_status get(kk_reader *r, void *to, size_t n, uint64_t *h, kk_err *err) {
    if (n) KK_TRY(kk_reader_get(r, to, n, err));
    *h = hash(*h, to, n);
    return KK_OK;
}

static kk_status check(const kk_training *t, const head *begin, const char *path, kk_err *err) {
    if (begin->magic != MAGIC)
        return kk_fail(err, KK_EFORMAT, "'%.150s' is not the state of a training", path);
    if (begin->belongs != belongs(t))
        return kk_fail(err, KK_EINVAL,
                       "'%.150s' is the state of a run with other options, texts or models", path);
    if (begin->n_params != t->theta.n_params || begin->n_curve > MOST_LINES ||
        begin->step > (uint32_t)t->opts->adamw.steps)
        return kk_fail(err, KK_EFORMAT, "'%.150s' is damaged: its sizes do not fit", path);
    return KK_OK;
}

static kk_status read_all(kk_training *t, kk_reader *r, const char *path, kk_err *err) {
    head begin;
    part parts[4];
    uint64_t h = 1469598103934665603u, expected;
    KK_TRY(get(r, &begin, sizeof begin, &h, err));
    KK_TRY(check(t, &begin, path, err));
    const size_t lines = (size_t)begin.n_curve;
    if (!kk_grow((void **)&t->curve, &t->cap_curve, lines + 1, sizeof *t->curve))
        return kk_fail(err, KK_ENOMEM, "no memory for the curve");
    t->n_curve = lines;
    list_parts(t, parts);
    for (int i = 0; i < 4; i++) KK_TRY(get(r, parts[i].data, parts[i].bytes, &h, err));
    KK_TRY(kk_reader_get(r, &expected, sizeof expected, err));
    if (expected != h)
        return kk_fail(err, KK_EFORMAT, "'%.150s' is damaged: its checksum does not match", path);
    t->step = (int32_t)begin.step;
    t->in_sum = (int32_t)begin.in_sum;
    t->initial_loss = begin.initial_loss;
    t->sum = begin.sum;
    return KK_OK;
}

kk_status kk_training_load(kk_training *t, kk_err *err) {
    char *path = kk_training_state_path(t);
    kk_reader *r = NULL;
    if (!path) return kk_fail(err, KK_ENOMEM, "no memory for a path");
    kk_status st = kk_reader_open(&r, path, err);
    if (st == KK_OK) st = read_all(t, r, path, err);
    kk_reader_close(r);
    kk_free(path);
    return st;
}
