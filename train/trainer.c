/* trainer.c - a run from texts to a projection on disk; see trainer.h.
 *
 * Rows pass through memory once: the regression adds them up as they are captured, and only a run
 * that will take steps keeps some of them. */
#include "train/trainer.h"

#include <string.h>

#include "core/clock.h"
#include "train/linalg.h"
#include "train/ridge.h"
#include "train/training.h"

enum { ROWS = 256 };                               /* rows of a forward */
static const size_t most_stored = (size_t)3 << 30; /* bytes of rows kept for steps */

kk_status kk_training_tell(const kk_training *t, kk_train_event e, kk_err *err) {
    if (!t->opts->on_event || t->opts->on_event(t->opts->user, &e)) return KK_OK;
    return kk_fail(err, KK_ESTOPPED, "stopped");
}

/* ---- what was asked for ------------------------------------------------------------------ */

static kk_status check_numbers(const kk_train_opts *o, kk_err *err) {
    if (o->rank < 1)
        return kk_fail(err, KK_EINVAL, "a projection of rank %d rebuilds nothing: 1 is the least",
                       o->rank);
    if (o->sink < 0 || o->window < 0 || o->chunk < 1)
        return kk_fail(err, KK_EINVAL, "sink %d, window %d, chunk %d: no cache keeps such rows",
                       o->sink, o->window, o->chunk);
    if (o->sink + o->window == 0)
        return kk_fail(err, KK_EINVAL, "sink and window are both 0: some rows must stay exact");
    if (o->length < 2)
        return kk_fail(err, KK_EINVAL, "texts of %d tokens are too short", o->length);
    return KK_OK;
}

static kk_status read_choices(kk_training *t, kk_err *err) {
    static const char *const layers[] = {"all", "sliding", "full"};
    const kk_train_opts *o = t->opts;
    bool known = false;
    if (!kk_source_named(o->source, &t->how.source))
        return kk_fail(err, KK_EINVAL, "there is no source '%.40s'", o->source);
    if (!kk_loss_named(o->loss, &t->loss))
        return kk_fail(err, KK_EINVAL, "there is no loss '%.40s'", o->loss);
    for (int i = 0; i < 3; i++)
        if (strcmp(o->layers, layers[i]) == 0) {
            t->layers = (kk_layer_choice)i;
            known = true;
        }
    if (!known) return kk_fail(err, KK_EINVAL, "there are no layers '%.40s'", o->layers);
    return check_numbers(o, err);
}

/* The drafter's taps are what a session has at hand anyway. */
static kk_status choose_taps(kk_training *t, kk_err *err) {
    const kk_train_opts *o = t->opts;
    if (t->how.source != KK_SOURCE_TAPS) return KK_OK;
    t->how.n_taps = o->n_taps;
    memcpy(t->how.taps, o->taps, sizeof o->taps);
    if (o->n_taps) return KK_OK;
    if (!t->engine->dflash && o->engine.synthetic) {
        t->how.n_taps = kk_projection_spread_taps(kk_engine_config(t->engine), t->how.taps);
        return KK_OK;
    }
    if (!t->engine->dflash)
        return kk_fail(err, KK_EINVAL, "there is no drafter whose taps could be read: name layers");
    const kk_drafter_config *d = kk_dflash_config(t->engine->dflash);
    t->how.n_taps = d->n_taps;
    memcpy(t->how.taps, d->taps, sizeof t->how.taps);
    return KK_OK;
}

/* ---- texts and rows ---------------------------------------------------------------------- */

static bool on_text(void *user, int64_t tokens) {
    const kk_training *t = user;
    return kk_training_tell(
               t, (kk_train_event){.phase = KK_TRAIN_READING, .done = tokens, .left_s = -1},
               NULL) == KK_OK;
}

static kk_status read_texts(kk_training *t, kk_err *err) {
    const kk_train_opts *o = t->opts;
    const kk_corpus_opts how = {.engine = t->engine,
                                .paths = o->paths,
                                .n_paths = o->n_paths,
                                .prompts = o->prompts,
                                .length = o->length,
                                .predict = o->predict,
                                .needles = o->needles,
                                .most_lines = o->needle_lines,
                                .tokens = o->tokens,
                                .random = o->engine.synthetic && !o->n_paths,
                                .seed = o->seed,
                                .on_text = on_text,
                                .user = t};
    const double begin = kk_now();
    KK_TRY(kk_corpus_new(&t->corpus, &how, err));
    t->out->read_s = kk_now() - begin;
    kk_corpus_skipped_text(&t->corpus.skipped, t->out->skipped, sizeof t->out->skipped);
    int32_t longest = 0;
    for (size_t i = 0; i < t->corpus.n; i++)
        if (!t->corpus.texts[i].held && t->corpus.texts[i].n > longest)
            longest = t->corpus.texts[i].n;
    if (longest > o->sink + o->window) return KK_OK;
    return kk_fail(err, KK_EINVAL,
                   "the longest text to train on has %d tokens: sink %d and window %d keep all of "
                   "it exact, and nothing is left to rebuild",
                   longest, o->sink, o->window);
}

/* Bytes of the rows of a text. */
static size_t row_bytes(const kk_training *t) {
    const kk_config *c = kk_engine_config(t->engine);
    size_t n = (size_t)t->theta.n_encoders * (size_t)t->theta.config.n_in;
    for (int32_t i = 0; i < c->n_layer; i++) {
        const kk_layer_config *l = &c->layer[i];
        n += (l->k_eq_v ? 1u : 2u) * (size_t)l->n_kv_head * (size_t)l->head_dim;
        if (t->how.attention) n += (size_t)c->n_head * (size_t)l->head_dim + (size_t)c->hidden;
    }
    return n * sizeof(float);
}

/* Whether steps are to draw from a text: every k-th, so that all kinds are there, when not all
 * fit. */
static bool wanted(const kk_training *t, size_t text) {
    if (!t->stored) return false;
    const size_t bytes = row_bytes(t) * (size_t)t->corpus.tokens[0];
    const size_t k = bytes / most_stored + 1;
    return text % k == 0;
}

/* Captures every text of one side; see_rows is shown each, with its number and, unless sums on the
 * device are all that wants them, its rows. */
typedef struct {
    kk_training *t;
    kk_ridge *ridge; /* NULL: none */
    kk_sums *sums;   /* the same */
} collecting;
typedef kk_status (*see_rows)(const collecting *c, const kk_text *text, const kk_captured *rows,
                              size_t number, kk_err *err);

/* Rows that someone on the host wants come there, also of a text whose sums the device has. */
static kk_status run_text(const collecting *c, const kk_text *text, size_t number, see_rows see,
                          kk_err *err) {
    const kk_captured *rows = NULL;
    if (c->sums) KK_TRY(kk_sums_run(c->sums, text->ids, text->n, err));
    if (!c->sums || wanted(c->t, number))
        KK_TRY(kk_capture_run(c->t->capture, text->ids, text->n, &rows, err));
    return see(c, text, rows, number, err);
}

static kk_status capture(const collecting *c, bool held, see_rows see, kk_err *err) {
    enum { LINE_S = 10 };
    kk_training *t = c->t;
    const double begin = kk_now();
    double line = begin;
    kk_train_event e = {.phase = held ? KK_TRAIN_JUDGING : KK_TRAIN_CAPTURING,
                        .total = t->corpus.tokens[held],
                        .left_s = -1};
    for (size_t i = 0, number = 0; i < t->corpus.n; i++) {
        const kk_text *text = &t->corpus.texts[i];
        if (text->held != held) continue;
        KK_TRY(kk_training_tell(t, e, err));
        KK_TRY(run_text(c, text, number++, see, err));
        e.done += text->n;
        const double now = kk_now();
        e.left_s = (now - begin) / (double)e.done * (double)(e.total - e.done);
        e.rate = now > begin ? (double)e.done / (now - begin) : 0;
        e.line = c->sums && now - line > LINE_S;
        if (e.line) line = now;
    }
    e.line = c->sums;
    return kk_training_tell(t, e, err);
}

/* ---- the regression, and rows kept for steps --------------------------------------------- */

static kk_status store(kk_training *t, const kk_captured *rows, kk_err *err) {
    KK_TRY(kk_captured_copy(&t->stored[t->n_stored], rows, kk_engine_config(t->engine), err));
    t->n_stored++;
    t->stored_rows += rows->n_rows;
    return KK_OK;
}

static kk_status collect_rows(const collecting *c, const kk_text *text, const kk_captured *rows,
                              size_t number, kk_err *err) {
    kk_training *t = c->t;
    if (c->ridge) kk_ridge_add(c->ridge, rows);
    t->out->sequences++;
    t->out->rows += text->n;
    return rows && wanted(t, number) ? store(t, rows, err) : KK_OK;
}

static kk_status collect(kk_training *t, kk_ridge *ridge, kk_err *err) {
    const double begin = kk_now();
    const collecting c = {t, ridge, t->sums};
    if (t->loss != KK_LOSS_RIDGE) {
        t->stored = kk_calloc(t->corpus.n, sizeof *t->stored);
        if (!t->stored) return kk_fail(err, KK_ENOMEM, "no memory for %zu texts", t->corpus.n);
    }
    KK_TRY(capture(&c, false, collect_rows, err));
    t->out->collect_s = kk_now() - begin;
    return KK_OK;
}

/* Rows, and from them the start: the regression, or another projection. */
static kk_status begin_from(kk_training *t, kk_err *err) {
    const kk_config *c = kk_engine_config(t->engine);
    double weight[KK_MAX_LAYERS];
    for (int32_t i = 0; i < c->n_layer; i++)
        weight[i] =
            c->layer[i].kind == KK_FULL && t->opts->full_weight > 0 ? t->opts->full_weight : 1;
    const kk_ridge_opts how = {.lambda = t->opts->lambda,
                               .eps = c->eps,
                               .raw = !t->opts->normed_targets,
                               .layer_weight = weight};
    kk_ridge *ridge = NULL;
    bool device = false;
    KK_TRY(kk_training_choose_sums(t, &device, err));
    if (t->opts->init_from)
        KK_TRY(kk_theta_read(&t->theta, t->opts->init_from, err));
    else if (device)
        KK_TRY(kk_training_open_sums(t, &how, err));
    else
        KK_TRY(kk_ridge_new(&ridge, &t->theta, &how, err));
    kk_status st = collect(t, ridge, err);
    const double begin = kk_now();
    if (st == KK_OK && ridge) st = kk_ridge_solve(ridge, &t->theta, err);
    if (st == KK_OK && t->sums) st = kk_training_solve_sums(t, err);
    t->out->solve_s = kk_now() - begin;
    kk_ridge_free(ridge);
    return st;
}

/* ---- judging ----------------------------------------------------------------------------- */

static kk_status judge_rows(const collecting *c, const kk_text *text, const kk_captured *rows,
                            size_t number, kk_err *err) {
    kk_training *t = c->t;
    (void)text;
    (void)number;
    const float eps = kk_engine_config(t->engine)->eps;
    KK_TRY(kk_fit_add(&t->fit_end, &t->theta, rows, eps, err));
    if (!t->start) return KK_OK;
    kk_theta start = t->theta;
    start.params = t->start;
    return kk_fit_add(&t->fit_start, &start, rows, eps, err);
}

static void fill_layers(const kk_training *t, const kk_fit *f, kk_train_layer *out) {
    for (int32_t i = 0; i < t->theta.n_blocks; i++) {
        const kk_theta_block *b = &t->theta.block[i];
        kk_train_layer *l = &out[b->layer];
        const double e = kk_fit_normed(&f->block[i]);
        l->restored = true;
        l->full = kk_engine_config(t->engine)->layer[b->layer].kind == KK_FULL;
        l->k_eq_v = b->both;
        if (b->value) l->v = e;
        if (!b->value || b->both) l->k = e;
    }
}

static kk_status judge(kk_training *t, kk_err *err) {
    const collecting c = {t, NULL, NULL};
    if (t->corpus.tokens[1]) KK_TRY(capture(&c, true, judge_rows, err));
    if (!t->start) t->fit_start = t->fit_end;
    fill_layers(t, &t->fit_start, t->out->start);
    fill_layers(t, &t->fit_end, t->out->end);
    t->out->held_rows = t->fit_end.rows;
    return KK_OK;
}

/* ---- a run ------------------------------------------------------------------------------- */

/* A GPU wants as many rows at once as suit it.  Rows do not change with their number. */
static int32_t forward_rows(const kk_engine_opts *o) {
    const kk_backend *be = NULL;
    if (kk_backend_find(&be, o->device ? o->device : "cuda", NULL) != KK_OK || !be->own_memory ||
        !be->sums)
        return ROWS;
    return be->usable && be->usable(NULL) != KK_OK ? ROWS : 0;
}

static kk_status open_all(kk_training *t, kk_err *err) {
    kk_engine_opts engine = t->opts->engine;
    kk_projection_config config;
    engine.max_rows = forward_rows(&engine);
    KK_TRY(kk_linalg_threads(engine.threads, err));
    KK_TRY(kk_engine_open(&t->engine, &engine, err));
    t->how.engine = t->engine;
    t->how.attention = kk_loss_attends(t->loss);
    KK_TRY(choose_taps(t, err));
    t->how.max_rows = 1;
    KK_TRY(kk_capture_new(&t->capture, &t->how, err)); /* for its complaints, before any work */
    kk_capture_free(t->capture);
    t->capture = NULL;
    KK_TRY(kk_theta_config(&config, &t->how, t->opts->rank, t->layers, err));
    KK_TRY(kk_theta_new(&t->theta, &config, err));
    t->out->n_layers = config.n_layer;
    t->out->rank = config.rank;
    t->out->n_in = config.n_in;
    t->out->params = (int64_t)t->theta.n_params;
    return KK_OK;
}

static kk_status take_steps(kk_training *t, kk_err *err) {
    const size_t n = t->theta.n_params;
    t->start = kk_calloc(n, sizeof *t->start);
    t->grad = kk_calloc(n, sizeof *t->grad);
    t->m = kk_calloc(n, sizeof *t->m);
    t->v = kk_calloc(n, sizeof *t->v);
    if (!t->start || !t->grad || !t->m || !t->v)
        return kk_fail(err, KK_ENOMEM, "no memory to train %zu parameters", n);
    memcpy(t->start, t->theta.params, n * sizeof *t->start);
    KK_TRY(kk_training_prepare(t, err));
    if (t->opts->resume) KK_TRY(kk_training_load(t, err));
    t->out->resumed_at = t->step;
    const double begin = kk_now();
    KK_TRY(kk_training_steps(t, err));
    t->out->train_s = kk_now() - begin;
    return KK_OK;
}

static kk_status train(kk_training *t, kk_err *err) {
    KK_TRY(read_choices(t, err));
    KK_TRY(kk_training_open_outputs(t, err));
    KK_TRY(open_all(t, err));
    KK_TRY(read_texts(t, err));
    t->how.max_rows = kk_corpus_longest(&t->corpus);
    KK_TRY(kk_capture_new(&t->capture, &t->how, err));
    KK_TRY(begin_from(t, err));
    if (t->loss != KK_LOSS_RIDGE) KK_TRY(take_steps(t, err));
    KK_TRY(judge(t, err));
    return kk_training_write(t, err);
}

static void close_all(kk_training *t) {
    for (size_t i = 0; i < t->n_stored; i++) kk_captured_free(&t->stored[i]);
    for (size_t i = 0; i < sizeof t->weights / sizeof *t->weights; i++) kk_free(t->weights[i]);
    kk_free(t->stored);
    kk_free(t->start);
    kk_free(t->grad);
    kk_free(t->m);
    kk_free(t->v);
    kk_free(t->curve);
    kk_theta_free(&t->theta);
    kk_capture_free(t->capture);
    kk_sums_free(t->sums);
    kk_corpus_free(&t->corpus);
    kk_engine_close(t->engine);
    kk_training_close_outputs(t);
}

kk_status kk_train_run(const kk_train_opts *opts, kk_train_result *out, kk_err *err) {
    memset(out, 0, sizeof *out);
    kk_training *t = kk_zalloc(sizeof *t);
    if (!t) return kk_fail(err, KK_ENOMEM, "no memory for a training");
    t->opts = opts;
    t->out = out;
    const kk_status st = train(t, err);
    close_all(t);
    kk_free(t);
    return st;
}
