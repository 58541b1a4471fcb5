/* cmd_train.c - `kakeya train`: makes what a model needs beside its own weights.
 *
 * The projection that rebuilds K/V rows; counts of tokens are train_counts.c's.  The table goes to
 * stdout, the progress and the curve to stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/train_counts.h"
#include "cli/train_ladder.h"
#include "cli/verbs.h"
#include "train/entry.h"

typedef struct {
    loader_args load;
    ladder_args ladder;
    const char *out, *source, *taps, *layers, *data, *loss, *schedule, *init_from, *report;
    const char *targets, *sums;
    uint64_t seed;
    int32_t rank, tokens, length, predict, needles, needle_lines, steps, warmup, log_every;
    int32_t checkpoint_every, sink, window, chunk;
    float lr, weight_decay, clip, k_dir, v_dir, k_mag, v_mag, ridge, full_weight;
    bool resume, force, quiet;
} train_args;

#define AT(field) offsetof(train_args, field)
static const option train_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(train_args, load),
    OPTION_STRING(
        NULL, "synthetic", "SPEC", AT(load.synthetic),
        "instead of a model: its shapes with random weights, as in 26b-a4b:bf16[:LAYERS], "
        "and random ids instead of texts"),
    OPTION_HEADING("Projection"),
    OPTION_STRING("o", "out", "DIR", AT(out), "folder to write it to"),
    OPTION_CHOICE("source", "NAME", AT(source), "taps context embed drafter-kv", NULL,
                  "what it reads: taps (outputs of some layers, default), context (the drafter's "
                  "view of them), embed (the token alone), drafter-kv (for comparison)"),
    OPTION_STRING(NULL, "taps", "LIST", AT(taps),
                  "layers to read, from 0 (default: those the drafter reads; of --synthetic three "
                  "spread over the model)"),
    OPTION_INT(NULL, "rank", "N", AT(rank), 1, 8192, "values kept per position (default: 256)"),
    OPTION_CHOICE("layers", "WHICH", AT(layers), "all sliding full", NULL,
                  "layers it rebuilds: all (default), sliding or full"),
    OPTION_HEADING("Texts"),
    OPTION_STRING(NULL, "data", "PATH", AT(data),
                  "file or folder to train on, .jsonl with \"text\" or \"messages\" per line among "
                  "them; more may follow behind the options (default: the "
                  "shipped prompts and what the model says to them)"),
    OPTION_INT(NULL, "tokens", "N", AT(tokens), 1, 1 << 30,
               "tokens to train on, documents with a code apart (default: 40000)"),
    OPTION_INT(NULL, "length", "N", AT(length), 16, 1 << 20,
               "most tokens of a text (default: 1024)"),
    OPTION_INT(NULL, "predict", "N", AT(predict), 0, 1 << 20,
               "tokens the model says to a prompt (default: 256)"),
    OPTION_INT(NULL, "needles", "N", AT(needles), 0, 100000,
               "documents with a code to find (default: 12)"),
    OPTION_INT(NULL, "needle-lines", "N", AT(needle_lines), 20, 100000,
               "most lines of one (default: 120)"),
    OPTION_SEED("s", "seed", "N", AT(seed), "names texts and draws (default: 0)"),
    OPTION_HEADING("Loss"),
    OPTION_CHOICE(
        "loss", "NAME", AT(loss), "ridge mse cos_mag combined attn_distill attn_distill_hybrid",
        NULL,
        "ridge: closed form, no steps (default); mse, cos_mag, combined, attn_distill and "
        "attn_distill_hybrid take steps from there"),
    OPTION_CHOICE("ridge-targets", "KIND", AT(targets), "raw normed", NULL,
                  "rows as they are (default), or normalised head by head"),
    OPTION_REAL("ridge", "X", AT(ridge), 0, 1,
                "regularisation, of the mean square of a feature (default: 1e-5)"),
    OPTION_REAL("ridge-full", "X", AT(full_weight), 0, 1e6,
                "how much full layers count beside sliding ones (default: 1)"),
    OPTION_REAL("lambda-k-dir", "X", AT(k_dir), 0, 1e6, "hybrid: weight of K's direction (1)"),
    OPTION_REAL("lambda-v-dir", "X", AT(v_dir), 0, 1e6, "hybrid: weight of V's direction (1)"),
    OPTION_REAL("lambda-k-mag", "X", AT(k_mag), 0, 1e6, "hybrid: weight of K's size (0.1)"),
    OPTION_REAL("lambda-v-mag", "X", AT(v_mag), 0, 1e6, "hybrid: weight of V's size (0.1)"),
    OPTION_INT(NULL, "sink", "N", AT(sink), 0, 1 << 20, "first rows that stay exact (default: 4)"),
    OPTION_INT(NULL, "window", "N", AT(window), 0, 1 << 20,
               "last rows before a chunk that stay exact (default: 32)"),
    OPTION_INT(NULL, "chunk", "N", AT(chunk), 1, 1 << 20,
               "rows of an aligned chunk of queries (default: 32)"),
    OPTION_HEADING("Steps"),
    OPTION_INT(NULL, "steps", "N", AT(steps), 1, 1 << 30, "steps (default: 500)"),
    OPTION_REAL("lr", "X", AT(lr), 1e-12, 10, "rate at its peak (default: 1e-4)"),
    OPTION_CHOICE("lr-schedule", "NAME", AT(schedule), "cosine const", NULL,
                  "cosine: down to a hundredth (default)"),
    OPTION_INT(NULL, "warmup", "N", AT(warmup), 0, 1 << 30,
               "steps up to the peak (default: a twentieth)"),
    OPTION_REAL("weight-decay", "X", AT(weight_decay), 0, 10, "(default: 0.01)"),
    OPTION_REAL("clip", "X", AT(clip), 0, 1e9, "most norm of a gradient; 0: any (default: 1)"),
    OPTION_STRING(NULL, "init-from", "DIR", AT(init_from),
                  "start from this projection (default: from ridge)"),
    OPTION_INT(NULL, "checkpoint-every", "N", AT(checkpoint_every), 1, 1 << 30,
               "steps between states that are kept (default: 100)"),
    OPTION_FLAG(NULL, "resume", AT(resume), "go on from the state in --out"),
    LADDER_OPTIONS(train_args, ladder),
    OPTION_HEADING("Output"),
    OPTION_INT(NULL, "log-every", "N", AT(log_every), 1, 1 << 30,
               "steps of a line of the curve (default: 50)"),
    OPTION_STRING(NULL, "report", "FILE", AT(report),
                  "write a JSON report; -: to standard output, and all else to standard error"),
    OPTION_FLAG(NULL, "json", AT(ladder.json),
                "the same as --report -; with --ladder: one JSON object with checks, training and "
                "rungs on standard output, and all else to standard error"),
    OPTION_FLAG(NULL, "force", AT(force), "replace a projection and reports that are there"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(train_args, load),
    OPTION_CHOICE("sums", "WHERE", AT(sums), "host device", NULL,
                  "where the sums of the closed form are made: on the host, with its rows copied "
                  "there, or on the device, chunk by chunk (default: on a device with memory of "
                  "its own, where the source is taps)"),
};

extern const verb train_projection;

/* ---- while it runs ----------------------------------------------------------------------- */

static void show_left(double seconds) {
    if (seconds >= 0) fprintf(stderr, ", %d:%02d left", (int)seconds / 60, (int)seconds % 60);
}

static void show_bar(const kk_train_event *e) {
    static const char *const phases[KK_TRAIN_PHASES] = {
        "reading texts", "capturing rows", "training", "judging", "sizing", "solving"};
    fprintf(stderr, "%s: %s", phases[e->phase], term_count(e->done).text);
    if (e->total) fprintf(stderr, " of %s", term_count(e->total).text);
    if (e->phase == KK_TRAIN_STEPPING) fprintf(stderr, ", loss %.5f", e->loss);
    if (e->rate > 0) fprintf(stderr, ", %s rows/s", term_count((int64_t)e->rate).text);
    if (e->what) fprintf(stderr, ", %s in %.1f s", e->what, e->seconds);
    show_left(e->left_s);
}

static void show_sizes(const kk_train_event *e) {
    fprintf(stderr, "sums take %.2f GB of the device", 1e-9 * (double)e->device_bytes);
    if (e->device_free) fprintf(stderr, ", where %.1f GB are free", 1e-9 * (double)e->device_free);
    fprintf(stderr, ", and their solution %.2f GB here", 1e-9 * (double)e->host_bytes);
}

static void show_step(const kk_train_event *e) {
    fprintf(stderr, "step %6lld  loss %.6f  lr %.2e", (long long)e->done, e->loss, e->lr);
    if (e->ratio > 0) fprintf(stderr, "  attention's error %.5f of its square", e->ratio);
    show_left(e->left_s);
}

static void show_line(const kk_train_event *e) {
    if (term_controls(stderr)) fputs("\r\033[K", stderr);
    if (e->phase == KK_TRAIN_STEPPING)
        show_step(e);
    else if (e->phase == KK_TRAIN_SIZING)
        show_sizes(e);
    else
        show_bar(e);
    fputc('\n', stderr);
}

static bool on_event(void *user, const kk_train_event *e) {
    const train_args *a = user;
    const bool bar = !a->quiet && !e->line && term_controls(stderr);
    if (!a->quiet && e->line) show_line(e);
    if (bar) fputs("\r\033[K", stderr);
    if (bar) show_bar(e);
    fflush(stderr);
    return term_signal() == 0;
}

/* ---- what came of it --------------------------------------------------------------------- */

typedef struct {
    double k, v, full;
    int n, n_full;
} errors;

static errors mean_errors(const kk_train_result *r, const kk_train_layer *l) {
    errors e = {0};
    for (int32_t i = 0; i < r->n_layers; i++) {
        if (!l[i].restored) continue;
        e.n += !l[i].full;
        e.n_full += l[i].full;
        e.k += l[i].full ? 0 : l[i].k;
        e.v += l[i].full ? 0 : l[i].v;
        e.full += l[i].full ? (l[i].k + l[i].v) / 2 : 0;
    }
    if (e.n) e.k /= e.n, e.v /= e.n;
    if (e.n_full) e.full /= e.n_full;
    return e;
}

static void print_errors(const char *name, errors e) {
    printf("%-20s", name);
    if (e.n) printf(" %10.4f %10.4f", e.k, e.v);
    if (!e.n) printf(" %10s %10s", "-", "-");
    if (e.n_full) printf(" %10.4f", e.full);
    putchar('\n');
}

static void print_result(const train_args *a, const kk_train_result *r) {
    printf("projection  %s, rank %d of %d features, %s parameters, in %s\n", a->source, r->rank,
           r->n_in, term_count(r->params).text, a->out);
    printf("texts       %s rows of %s sequences; %s rows held out\n", term_count(r->rows).text,
           term_count(r->sequences).text, term_count(r->held_rows).text);
    if (r->skipped[0]) printf("passed over %s\n", r->skipped);
    printf("seconds     reading %.1f, capturing %.1f, solving %.1f, steps %.1f\n", r->read_s,
           r->collect_s, r->solve_s, r->train_s);
    if (r->add_flop > 0)
        printf("sums        on the device, %.1f s of capturing, %.1f TFLOP/s in float64\n",
               r->add_s, r->add_s > 0 ? 1e-12 * r->add_flop / r->add_s : 0);
    if (r->steps)
        printf("loss        %.6f at first, %.6f at last\n", r->initial_loss, r->final_loss);
    if (r->held_rows == 0) {
        printf(
            "\nerror       not known: no rows were held out; give more texts, of which one in ten "
            "is\n");
        return;
    }
    printf("\nerror of rows held out, normalised, over their square\n");
    printf("%-20s %10s %10s %10s\n", "", "sliding K", "sliding V", "full");
    if (r->steps) print_errors(a->init_from ? "at first" : "ridge", mean_errors(r, r->start));
    print_errors(a->loss, mean_errors(r, r->end));
}

/* ---- the kind ---------------------------------------------------------------------------- */

static bool read_taps(const train_args *a, kk_train_opts *o, int *code) {
    int32_t *list;
    size_t n;
    const char *bad;
    if (!a->taps) return true;
    if (!options_int_list(a->taps, 0, KK_TRAIN_LAYERS - 1, &list, &n, &bad)) {
        *code =
            options_wrong(&train_projection, "--taps takes layers from 0; '%.20s' is not one", bad);
        return false;
    }
    const bool fits = n > 0 && n <= KK_TRAIN_TAPS;
    if (fits) {
        memcpy(o->taps, list, n * sizeof *list);
        o->n_taps = (int32_t)n;
    } else {
        *code = options_wrong(&train_projection, "--taps takes 1 to %d layers", KK_TRAIN_TAPS);
    }
    free(list);
    return fits;
}

static char *typed(int argc, char **argv) {
    static const char start[] = "kakeya train";
    size_t cap = sizeof start, n = sizeof start - 1;
    for (int i = 0; i < argc; i++) cap += strlen(argv[i]) + 3;
    char *text = malloc(cap);
    if (!text) return NULL;
    memcpy(text, start, sizeof start);
    for (int i = 0; i < argc; i++) {
        const char *quote = strpbrk(argv[i], " \t\n\"$&;|<>*?()") || !argv[i][0] ? "'" : "";
        n += (size_t)snprintf(text + n, cap - n, " %s%s%s", quote, argv[i], quote);
    }
    return text;
}

static kk_train_opts to_opts(const train_args *a) {
    return (kk_train_opts){
        .out = a->out,
        .source = a->source,
        .rank = a->rank,
        .layers = a->layers,
        .tokens = a->tokens,
        .length = a->length,
        .predict = a->predict,
        .needles = a->needles,
        .needle_lines = a->needle_lines,
        .normed_targets = strcmp(a->targets, "normed") == 0,
        .lambda = (double)a->ridge,
        .full_weight = (double)a->full_weight,
        .loss = a->loss,
        .adamw = {.lr = (double)a->lr,
                  .weight_decay = (double)a->weight_decay,
                  .clip = (double)a->clip,
                  .steps = a->steps,
                  .warmup = a->warmup >= 0 ? a->warmup : a->steps / 20,
                  .constant = strcmp(a->schedule, "const") == 0},
        .k_dir = (double)a->k_dir,
        .v_dir = (double)a->v_dir,
        .k_mag = (double)a->k_mag,
        .v_mag = (double)a->v_mag,
        .sink = a->sink,
        .window = a->window,
        .chunk = a->chunk,
        .log_every = a->log_every,
        .checkpoint_every = a->checkpoint_every,
        .init_from = a->init_from,
        .resume = a->resume,
        .replace = a->force,
        .seed = a->seed,
        .sums = a->sums,
        .report = a->report,
        .on_event = on_event,
        .user = (void *)a,
    };
}

static json_t *result_json(const train_args *a, const kk_train_result *r) {
    return json_pack("{s:s, s:s, s:i, s:I, s:I, s:o, s:s?}", "projection", a->out, "loss", a->loss,
                     "rank", r->rank, "parameters", (json_int_t)r->params, "rows",
                     (json_int_t)r->rows, "seconds",
                     output_real(r->read_s + r->collect_s + r->solve_s + r->train_s), "report",
                     a->report && strcmp(a->report, "-") != 0 ? a->report : NULL);
}

/* The file is one to train on, and not of the model. */
static bool is_of_texts(const kk_err *err) {
    return err->code == KK_EFORMAT && strncmp(err->msg, "line ", 5) == 0;
}

/* trained: takes the result for --json; NULL: nobody does. */
static int run_training(const train_args *a, const kk_train_opts *o, json_t **trained) {
    kk_train_result *r = malloc(sizeof *r);
    const kk_train_api *training;
    kk_err err;
    if (!r) return output_failed("no memory for a result", NULL);
    term_on_signal(TERM_ASK);
    kk_status st = kk_train_load(&training, &err);
    if (st == KK_OK) st = training->run(o, r, &err);
    if (!a->quiet && term_controls(stderr)) fputs("\r\033[K", stderr);
    int code = EXIT_DONE;
    if (st == KK_OK)
        print_result(a, r);
    else
        code = is_of_texts(&err)
                   ? output_failed(err.msg, "A line of a .jsonl file is an object with \"text\" or "
                                            "\"messages\".")
                   : loader_failed(&a->load, &err);
    if (st == KK_OK && trained) *trained = result_json(a, r);
    free(r);
    return code;
}

/* Looks first, trains, climbs. */
static int run_ladder(const train_args *a, const kk_train_opts *o, ladder_run *l,
                      const char *json) {
    json_t *trained = NULL;
    int code = ladder_check(l);
    if (code == EXIT_DONE) code = run_training(a, o, &trained);
    if (code == EXIT_DONE)
        code = ladder_climb(l, trained, json);
    else
        json_decref(trained);
    ladder_release(l);
    return code;
}

/* Sessions of the rungs keep what the training keeps exact. */
static ladder_run ladder_of(const train_args *a, const kk_train_opts *o) {
    ladder_run l = {.args = &a->ladder,
                    .load = &a->load,
                    .out = a->out,
                    .force = a->force || a->resume,
                    .quiet = a->quiet};
    l.needle.engine = o->engine;
    l.needle.prompts = o->prompts;
    l.needle.command = o->command;
    l.needle.session = (kk_session_opts){
        .sink = a->sink ? a->sink : -1, .window = a->window ? a->window : -1, .chunk = a->chunk};
    if (strcmp(a->layers, "full") != 0) l.needle.session.kv_sliding = KK_KEEP_RESTORED;
    if (strcmp(a->layers, "sliding") != 0) l.needle.session.kv_full = KK_KEEP_RESTORED;
    return l;
}

/* Where the report of the training and --json go; false after saying what is wrong. */
static bool open_outputs(train_args *a, kk_train_opts *o, destination_stdout *standard, int *code) {
    const bool both =
        a->ladder.json && a->report && (!a->ladder.rungs || strcmp(a->report, "-") == 0);
    if (both) {
        *code = options_wrong(&train_projection, "--json and --report %s exclude each other%s",
                              a->report, a->ladder.rungs ? "" : ": --json is --report -");
        return false;
    }
    if (a->ladder.json && !a->ladder.rungs) a->report = "-";
    const bool report = a->report && strcmp(a->report, "-") == 0;
    if (!report && !a->ladder.json) return true;
    if (!destination_keep_stdout(standard)) {
        *code = output_failed("cannot keep standard output for the report", NULL);
        return false;
    }
    if (report) o->report = standard->path;
    return true;
}

static int run_projection(int argc, char **argv) {
    train_args a = {.source = "taps",
                    .layers = "all",
                    .loss = "ridge",
                    .schedule = "cosine",
                    .targets = "raw",
                    .rank = 256,
                    .full_weight = 1,
                    .tokens = 40000,
                    .length = 1024,
                    .predict = 256,
                    .needles = 12,
                    .needle_lines = 120,
                    .steps = 500,
                    .warmup = -1,
                    .log_every = 50,
                    .checkpoint_every = 100,
                    .sink = 4,
                    .window = 32,
                    .chunk = 32,
                    .lr = 1e-4f,
                    .weight_decay = 0.01f,
                    .clip = 1,
                    .k_dir = 1,
                    .v_dir = 1,
                    .k_mag = 0.1f,
                    .v_mag = 0.1f,
                    .ladder = LADDER_DEFAULTS};
    const char *paths[1 + sizeof((option_words){0}).word / sizeof(char *)];
    option_words words = {.n = 0};
    loader_path path;
    char prompts[4096];
    int code;
    if (!options_parse(&train_projection, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (!a.out) return options_wrong(&train_projection, "--out names the folder to write to");
    if (words.n && !a.data)
        return options_wrong(&train_projection, "texts are named with --data, as in --data %s",
                             words.word[0]);
    if (a.load.synthetic && a.ladder.rungs)
        return options_wrong(&train_projection, "--ladder asks for codes in documents, which "
                                                "--synthetic has no tokenizer to read");
    kk_train_opts o = to_opts(&a);
    if (!read_taps(&a, &o, &code)) return code;
    if (a.data) paths[o.n_paths++] = a.data;
    for (int i = 0; i < words.n; i++) paths[o.n_paths++] = words.word[i];
    o.paths = paths;
    if (loader_shipped("prompts", prompts, sizeof prompts)) o.prompts = prompts;
    a.load.keeps_few = a.ladder.rungs != NULL;
    if (!loader_options(&train_projection, &a.load, &path, &o.engine, &code)) return code;
    destination_stdout standard;
    char *command = typed(argc, argv);
    o.command = command;
    ladder_run ladder = ladder_of(&a, &o);
    const bool climbs = a.ladder.rungs != NULL;
    if ((!climbs || ladder_read(&train_projection, &ladder, &code)) &&
        open_outputs(&a, &o, &standard, &code))
        code = climbs ? run_ladder(&a, &o, &ladder, a.ladder.json ? standard.path : NULL)
                      : run_training(&a, &o, NULL);
    free(command);
    return code;
}

const verb train_projection = {
    .name = "train projection",
    .summary = "the map that rebuilds K/V rows from what is kept of a position",
    .usage = "--out DIR [-m MODEL] [options] [--data PATH...]",
    .about = "Runs the model over texts, records what its layers store, and finds the linear map\n"
             "of the given rank that rebuilds it best: in closed form, and with --loss by further\n"
             "steps.  One text in ten is held out; the table is about these.\n\n"
             "--ladder makes one command of it: weights, device and documents are checked before,\n"
             "and afterwards codes are asked for in documents that get longer, exactly and with\n"
             "the projection, with PASS or FAIL for each rung.  The first that fails is the last,\n"
             "and the exit status is 1.",
    .examples =
        "  kakeya train projection --out projection\n"
        "  kakeya train projection --out projection --ladder 70,280 --report training.json\n"
        "  kakeya train projection --out projection --rank 512 --data /usr/lib/python3\n"
        "  kakeya train projection --out s5 --layers sliding --loss attn_distill --steps 1000\n"
        "  kakeya train projection --out p --device cuda --synthetic 26b-a4b:bf16\n",
    .options = train_options,
    .n_options = OPTION_COUNT(train_options),
    .max_words = 64,
    .run = run_projection,
};

/* ---- the verb ---------------------------------------------------------------------------- */

static const verb *const kinds[] = {&train_projection, &train_counts};

static int run(int argc, char **argv) { return options_run_kind(&verb_train, argc, argv); }

const verb verb_train = {
    .name = "train",
    .summary = "make a projection, which rebuilds K/V rows, or count tokens for drafts",
    .usage = "KIND [options]",
    .about = "Makes what takes part in decoding beside the model.",
    .examples = "  kakeya train projection --out projection\n"
                "  kakeya train counts --out counts.json\n",
    .kinds = kinds,
    .n_kinds = OPTION_COUNT(kinds),
    .run = run,
};
