/* training_report.c - what a run did and what came of it, as one JSON object; docs/reports.md has
 * the schema. */
#include <string.h>

#include "eval/reports/report.h"
#include "eval/tasks/quality.h"
#include "train/training.h"

static json_t *settings_json(const kk_training *t) {
    const kk_train_opts *o = t->opts;
    const kk_adamw_opts *a = &o->adamw;
    json_t *taps = json_array(), *paths = json_array();
    for (int32_t i = 0; i < t->theta.config.n_taps; i++)
        json_array_append_new(taps, json_integer(t->theta.config.taps[i]));
    for (size_t i = 0; i < o->n_paths; i++)
        json_array_append_new(paths, kk_report_text(o->paths[i], strlen(o->paths[i])));
    json_t *s = json_pack(
        "{s:s, s:o, s:i, s:s, s:o, s:I, s:i, s:i, s:i, s:i, s:s, s:s, s:s?, s:i, s:i, s:i, s:I}",
        "source", o->source, "taps", taps, "rank", o->rank, "layers", o->layers, "data", paths,
        "tokens", (json_int_t)o->tokens, "length", o->length, "predict", o->predict, "needles",
        o->needles, "needle_lines", o->needle_lines, "ridge_targets",
        o->normed_targets ? "normed" : "raw", "loss", o->loss, "init_from", o->init_from, "sink",
        o->sink, "window", o->window, "chunk", o->chunk, "seed", (json_int_t)o->seed);
    json_object_set_new(s, "ridge_full", kk_report_real(o->full_weight > 0 ? o->full_weight : 1));
    json_object_set_new(s, "ridge", kk_report_real(o->lambda)); /* 0: the solver's own */
    if (t->out->add_flop > 0) json_object_set_new(s, "sums", json_string("device"));
    if (t->loss == KK_LOSS_RIDGE) return s;
    json_object_set_new(s, "lambdas",
                        json_pack("{s:o, s:o, s:o, s:o}", "k_dir", kk_report_real(o->k_dir),
                                  "v_dir", kk_report_real(o->v_dir), "k_mag",
                                  kk_report_real(o->k_mag), "v_mag", kk_report_real(o->v_mag)));
    json_object_set_new(s, "optimiser",
                        json_pack("{s:s, s:i, s:o, s:s, s:i, s:o, s:o, s:i, s:i}", "name", "adamw",
                                  "steps", a->steps, "lr", kk_report_real(a->lr), "schedule",
                                  a->constant ? "const" : "cosine", "warmup", a->warmup,
                                  "weight_decay", kk_report_real(a->weight_decay), "clip",
                                  kk_report_real(a->clip), "log_every", o->log_every,
                                  "checkpoint_every", o->checkpoint_every));
    return s;
}

static json_t *projection_json(const kk_training *t) {
    const kk_projection_config *c = &t->theta.config;
    json_t *layers = json_array(), *taps = json_array();
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->layer[i].restored) json_array_append_new(layers, json_integer(i));
    for (int32_t i = 0; i < c->n_taps; i++) json_array_append_new(taps, json_integer(c->taps[i]));
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:I, s:o, s:o}", "source",
                     kk_source_name(c->source), "rank", c->rank, "n_in", c->n_in, "taps", taps,
                     "layers", layers, "params", (json_int_t)t->theta.n_params, "model",
                     kk_report_hash(c->verifier), "drafter", kk_report_hash(c->drafter));
}

/* ---- errors on texts held out ------------------------------------------------------------ */

static json_t *error_json(double error, double power) {
    return json_pack("{s:o, s:o, s:o}", "error", kk_report_real(error), "power",
                     kk_report_real(power), "rel_mse",
                     kk_report_real(power > 0 ? error / power : 0));
}

static json_t *blocks_json(const kk_training *t, const kk_fit *f) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < t->theta.n_blocks; i++) {
        const kk_theta_block *b = &t->theta.block[i];
        const kk_fit_block *e = &f->block[i];
        json_array_append_new(rows,
                              json_pack("{s:i, s:s, s:o, s:o}", "layer", b->layer, "part",
                                        b->both    ? "kv"
                                        : b->value ? "v"
                                                   : "k",
                                        "normed", error_json(e->normed_error, e->normed_energy),
                                        "raw", error_json(e->raw_error, e->raw_energy)));
    }
    return rows;
}

typedef struct {
    double error, power;
} sum;

static void add(sum *s, const kk_fit_block *b, bool both) {
    s->error += (both ? 2 : 1) * b->normed_error;
    s->power += (both ? 2 : 1) * b->normed_energy;
}

/* By layer over K and V, of normalised rows; a raw key counts as both. */
static json_t *layers_json(const kk_training *t, const kk_fit *f, sum kinds[KK_LAYER_KINDS]) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < t->theta.config.n_layer; i++) {
        const kk_kind kind = kk_engine_config(t->engine)->layer[i].kind;
        sum s = {0, 0};
        if (!t->theta.config.layer[i].restored) continue;
        for (int32_t b = 0; b < t->theta.n_blocks; b++)
            if (t->theta.block[b].layer == i) {
                add(&s, &f->block[b], t->theta.block[b].both);
                add(&kinds[kind], &f->block[b], t->theta.block[b].both);
            }
        json_t *row = error_json(s.error, s.power);
        json_object_set_new(row, "layer", json_integer(i));
        json_object_set_new(row, "kind", json_string(kind == KK_FULL ? "full" : "sliding"));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *ratio_json(sum s) {
    return s.power > 0 ? kk_report_real(s.error / s.power) : json_null();
}

static json_t *stage_json(const kk_training *t, const char *loss, int32_t steps, double seconds,
                          const kk_fit *f) {
    sum kinds[KK_LAYER_KINDS] = {{0, 0}, {0, 0}};
    if (f->rows == 0) /* nothing was held out: an error of nothing is not 0 */
        return json_pack("{s:s, s:i, s:o, s:n, s:[], s:[]}", "loss", loss, "steps", steps,
                         "seconds", kk_report_real(seconds), "rel_mse", "layers", "blocks");
    json_t *layers = layers_json(t, f, kinds);
    const sum all = {kinds[0].error + kinds[1].error, kinds[0].power + kinds[1].power};
    return json_pack("{s:s, s:i, s:o, s:{s:o, s:o, s:o}, s:o, s:o}", "loss", loss, "steps", steps,
                     "seconds", kk_report_real(seconds), "rel_mse", "all", ratio_json(all),
                     "sliding", ratio_json(kinds[KK_SLIDING]), "full", ratio_json(kinds[KK_FULL]),
                     "layers", layers, "blocks", blocks_json(t, f));
}

static json_t *stages_json(const kk_training *t) {
    const kk_train_result *r = t->out;
    json_t *rows = json_array();
    json_array_append_new(rows, stage_json(t, t->opts->init_from ? "init_from" : "ridge", 0,
                                           r->solve_s, &t->fit_start));
    if (t->loss != KK_LOSS_RIDGE)
        json_array_append_new(rows, stage_json(t, t->opts->loss, t->step, r->train_s, &t->fit_end));
    return rows;
}

/* ---- steps ------------------------------------------------------------------------------- */

static json_t *named(const double *x, const double *weight) {
    json_t *o = json_object();
    for (int p = 0; p < KK_LOSS_PARTS; p++)
        if (weight[p] > 0)
            json_object_set_new(o, kk_loss_part_name((kk_loss_part)p), kk_report_real(x[p]));
    return o;
}

static json_t *curve_json(const kk_training *t) {
    const bool attends = kk_loss_attends(t->loss);
    double weight[KK_LOSS_PARTS];
    json_t *rows = json_array();
    if (t->loss == KK_LOSS_RIDGE) return rows;
    kk_loss_weights(&t->setup, weight);
    for (size_t i = 0; i < t->n_curve; i++) {
        const kk_training_line *l = &t->curve[i];
        json_array_append_new(
            rows, json_pack("{s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "stage", 1, "step",
                            (int)l->step, "lr", kk_report_real(l->lr), "loss",
                            kk_report_real(l->loss), "grad_norm", kk_report_real(l->grad_norm),
                            "output_ratio", attends ? kk_report_real(l->ratio) : json_null(),
                            "parts", named(l->part, weight), "weights", named(weight, weight)));
    }
    return rows;
}

/* Results of the last step: means by layer, and for attention's output the ratio of summed
 * squares. */
static json_t *diagnostic_json(const kk_training *t) {
    const kk_loss_result *r = &t->last;
    double weight[KK_LOSS_PARTS];
    if (t->loss == KK_LOSS_RIDGE) return json_null();
    kk_loss_weights(&t->setup, weight);
    json_t *o = named(r->part, weight);
    if (!r->outputs) return o;
    const double n = (double)r->outputs;
    json_object_set_new(o, "abs_o_target", kk_report_real(r->output_abs / n));
    json_object_set_new(o, "mean_square_o_target", kk_report_real(r->output_energy / n));
    json_object_set_new(o, "mean_square_ratio", kk_report_real(r->output_error / r->output_energy));
    return o;
}

/* ---- texts ------------------------------------------------------------------------------- */

static json_t *texts_json(const kk_training *t, bool held) {
    int texts[KK_TEXT_KINDS] = {0};
    int64_t rows = 0;
    int n = 0;
    for (size_t i = 0; i < t->corpus.n; i++) {
        if (t->corpus.texts[i].held != held) continue;
        texts[t->corpus.texts[i].kind]++;
        rows += t->corpus.texts[i].n;
        n++;
    }
    json_t *kinds = json_object();
    for (int k = 0; k < KK_TEXT_KINDS; k++)
        if (texts[k] || k != KK_TEXT_RANDOM)
            json_object_set_new(kinds, kk_text_kind_name((kk_text_kind)k), json_integer(texts[k]));
    return json_pack("{s:i, s:I, s:o}", held ? "texts" : "sequences", n, held ? "rows" : "tokens",
                     (json_int_t)rows, "kinds", kinds);
}

kk_status kk_training_report(kk_training *t, kk_err *err) {
    const kk_train_opts *o = t->opts;
    const kk_train_result *r = t->out;
    json_t *train = texts_json(t, false), *held = texts_json(t, true);
    json_object_set_new(train, "seeds", json_pack("[I]", (json_int_t)kk_corpus_seed(o->seed)));
    json_object_set_new(train, "stored_rows", json_integer((json_int_t)t->stored_rows));
    const bool random = o->engine.synthetic && !o->n_paths;
    json_object_set_new(held, "seeds",
                        random ? json_pack("[I]", (json_int_t)kk_corpus_held_seed(o->seed))
                               : json_array());
    const bool steps = t->loss != KK_LOSS_RIDGE;
    json_t *body = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:o}",
        "settings", settings_json(t), "train", train, "evaluation", held, "n_params",
        (json_int_t)t->theta.n_params, "n_sequences", (json_int_t)r->sequences, "read_seconds",
        kk_report_real(r->read_s), "collect_seconds", kk_report_real(r->collect_s), "solve_seconds",
        kk_report_real(r->solve_s), "train_seconds", kk_report_real(r->train_s), "initial_loss",
        steps ? kk_report_real(r->initial_loss) : json_null(), "final_loss",
        steps ? kk_report_real(r->final_loss) : json_null(), "loss_reduction_factor",
        steps && r->final_loss > 0 ? kk_report_real(r->initial_loss / r->final_loss) : json_null(),
        "final_diagnostic", diagnostic_json(t), "resumed_at", r->resumed_at, "stages",
        stages_json(t), "curve", curve_json(t));
    const kk_quality_source read = {
        .paths = o->paths, .n_paths = o->n_paths, .prompts = random ? NULL : o->prompts};
    if (body && r->add_flop > 0)
        json_object_set_new(body, "sums",
                            json_pack("{s:o, s:o}", "seconds", kk_report_real(r->add_s), "flop",
                                      kk_report_real(r->add_flop)));
    if (body) json_object_set_new(body, "files", kk_quality_files_json(&read));
    json_t *run = kk_report_run(t->engine, &o->engine, o->command);
    if (run) json_object_set_new(run, "projection", projection_json(t));
    return kk_report_put(t->report, kk_report_new("projection", kk_report_join(run, body)), err);
}
