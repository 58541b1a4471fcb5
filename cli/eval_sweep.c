/* eval_sweep.c - `kakeya eval sweep`: how good rebuilt rows must be; and what it shares with kv and
 * memory. */
#define _GNU_SOURCE
#include "cli/eval_sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/eval_accept.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/tasks/needle.h"
#include "eval/tasks/sweep.h"

/* ---- what the kinds share ---------------------------------------------------------------- */

bool eval_split(const char *list, eval_names *out) {
    *out = (eval_names){.n = 0};
    if (!list) return true;
    out->copy = strdup(list);
    bool good = out->copy != NULL;
    for (char *at = out->copy, *part; good && (part = strsep(&at, ","));) {
        good = *part && out->n < EVAL_NAMES;
        if (good) out->name[out->n++] = part;
    }
    if (!good) eval_names_free(out);
    return good;
}

void eval_names_free(eval_names *n) {
    free(n->copy);
    *n = (eval_names){.n = 0};
}

_Static_assert((int)KK_ASK_RUNGS == (int)KK_NEEDLE_RUNGS, "kinds take ladders of one length");

bool eval_read_ladder(const verb *v, const char *text, int32_t ladder[KK_ASK_RUNGS],
                      int32_t *n_rungs, int *code) {
    int32_t *list;
    size_t n;
    const char *bad;
    if (!options_int_list(text, 1, KK_HAYSTACK_MOST_LINES, &list, &n, &bad)) {
        *code = options_wrong(v, "--ladder takes lines from 1 to %d; '%.20s' is not one",
                              KK_HAYSTACK_MOST_LINES, bad);
        return false;
    }
    const bool fits = n > 0 && n <= KK_ASK_RUNGS;
    if (fits) {
        memcpy(ladder, list, n * sizeof *list);
        *n_rungs = (int32_t)n;
    } else {
        *code = options_wrong(v, "--ladder takes 1 to %d rungs", KK_ASK_RUNGS);
    }
    free(list);
    return fits;
}

/* The table of options knows the last one alone. */
bool eval_collect_texts(const verb *v, int argc, char **argv, const char *files[EVAL_NAMES],
                        size_t *n, int *code) {
    *n = 0;
    for (int i = 0; i < argc; i++) {
        const char *file = NULL;
        if (strcmp(argv[i], "--text") == 0 && i + 1 < argc)
            file = argv[++i];
        else if (strncmp(argv[i], "--text=", 7) == 0)
            file = argv[i] + 7;
        if (!file) continue;
        if (*n == EVAL_NAMES) {
            *code = options_wrong(v, "--text is given more than %d times", EVAL_NAMES);
            return false;
        }
        files[(*n)++] = file;
    }
    return true;
}

bool eval_read_texts(const verb *v, const eval_texts_args *a, int argc, char **argv,
                     kk_ask_draw *draw, kk_quality_source *source, eval_files *files, int *code) {
    size_t n;
    *draw = (kk_ask_draw){.samples = a->samples, .seed = a->seed};
    const char *ladder = a->ladder ? a->ladder : "70";
    if (!eval_read_ladder(v, ladder, draw->ladder, &draw->n_rungs, code)) return false;
    if (!eval_collect_texts(v, argc, argv, files->file, &n, code)) return false;
    const bool shipped = loader_shipped("prompts", files->folder, sizeof files->folder);
    *source = (kk_quality_source){.paths = files->file,
                                  .n_paths = n,
                                  .prompts = shipped ? files->folder : NULL,
                                  .most = a->text_tokens};
    return true;
}

void eval_progress(bool quiet, const char *name, int32_t done, int32_t total) {
    if (quiet || !term_controls(stderr)) return;
    fputs("\r\033[K", stderr);
    if (total) fprintf(stderr, "%s: %d of %d", name, done, total);
    fflush(stderr);
}

/* ---- options ----------------------------------------------------------------------------- */

typedef struct {
    loader_args load;
    loader_cache_args cache;
    eval_texts_args texts;
    const char *alphas;
    destination_report report;
    bool quiet;
} sweep_args;

#define AT(field) offsetof(sweep_args, field)
static const option sweep_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(sweep_args, load),
    LOADER_PROJECTION_OPTIONS(sweep_args, load),
    OPTION_HEADING("The sweep"),
    OPTION_STRING(NULL, "alphas", "LIST", AT(alphas),
                  "shares of true rows, from 0 (all rebuilt) to 1 (default: 0,0.25,0.5,0.75,1; 1, "
                  "the identity, is always among them)"),
    EVAL_TEXTS_OPTIONS(sweep_args, texts),
    OPTION_HEADING("Context"),
    LOADER_KEEP_OPTIONS(sweep_args, cache),
    LOADER_FORMAT_OPTION(AT(cache.kv_format)),
    OPTION_HEADING("Output"),
    DESTINATION_REPORT_OPTIONS(sweep_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(sweep_args, load),
};

static bool read_alphas(const char *text, kk_sweep_opts *o, int *code) {
    eval_names list;
    if (!eval_split(text ? text : "0,0.25,0.5,0.75,1", &list) || list.n >= KK_SWEEP_ALPHAS) {
        *code = options_wrong(&eval_sweep, "--alphas takes 1 to %d numbers with commas between",
                              KK_SWEEP_ALPHAS - 1);
        return false;
    }
    bool good = true;
    for (size_t i = 0; i < list.n && good; i++) {
        char *end;
        const float alpha = strtof(list.name[i], &end);
        good = *end == 0 && alpha >= 0 && alpha <= 1;
        if (!good)
            *code = options_wrong(&eval_sweep,
                                  "--alphas takes numbers from 0 to 1; '%.20s' is not "
                                  "one",
                                  list.name[i]);
        o->alpha[o->n_alphas++] = alpha;
    }
    eval_names_free(&list);
    return good;
}

/* ---- the table and the picture ----------------------------------------------------------- */

static void print_ratio(double x) {
    if (x < 0)
        printf(" %9s", "-");
    else
        printf(" %9.4f", x);
}

static void print_table(const kk_sweep_result *r) {
    printf("%6s %7s %10s %10s %9s %9s %9s %9s %9s\n", "alpha", "recall", "mean KL", "worst KL",
           "rel. mse", "sliding", "full", "effective", "normed");
    for (int32_t i = 0; i < r->n_rows; i++) {
        const kk_sweep_row *w = &r->row[i];
        printf("%6.3g %7.2f %10.3g %10.3g", w->alpha, w->recall, w->mean_kl, w->worst_kl);
        for (int k = 0; k < 3; k++) print_ratio(w->rel_mse[k]);
        print_ratio(w->effective);
        print_ratio(w->normed[0]);
        putchar('\n');
    }
    printf("%6s %7.2f\n", "exact", r->exact);
}

/* Recall and KL as bars, KL by the largest of them. */
static void print_picture(const kk_sweep_result *r) {
    enum { WIDTH = 30 };
    static const char bar[WIDTH + 1] = "##############################";
    double most = 0;
    for (int32_t i = 0; i < r->n_rows; i++)
        if (r->row[i].mean_kl > most) most = r->row[i].mean_kl;
    printf("\n%6s %-*s %s\n", "alpha", WIDTH + 1, "recall", "mean KL");
    for (int32_t i = 0; i < r->n_rows; i++) {
        const kk_sweep_row *w = &r->row[i];
        const int recall = (int)(w->recall * WIDTH + 0.5);
        const int kl = most > 0 ? (int)(w->mean_kl / most * WIDTH + 0.5) : 0;
        printf("%6.3g %-*.*s %.*s%s\n", w->alpha, WIDTH + 1, recall, bar, kl, bar,
               w->alpha == r->knee ? "  <- knee" : "");
    }
}

/* ---- the kind ---------------------------------------------------------------------------- */

static bool tell(void *user, int32_t done, int32_t total) {
    const sweep_args *a = user;
    eval_progress(a->quiet, "alphas", done, total);
    return term_signal() == 0;
}

/* What does not fit, or does not go together, says itself what to do. */
static int failed(const sweep_args *a, const kk_err *err) {
    if (err->code == KK_ECONTEXT || err->code == KK_EINVAL) return output_failed(err->msg, NULL);
    return loader_failed(&a->load, err);
}

static int measure(const sweep_args *a, const kk_sweep_opts *o) {
    kk_sweep_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_sweep_run(o, &r, &err);
    eval_progress(a->quiet, "", 0, 0);
    if (st != KK_OK) return failed(a, &err);
    print_table(&r);
    print_picture(&r);
    fflush(stdout);
    const int code = !a->report.file || kk_sweep_write(a->report.file, &r, &err) == KK_OK
                         ? EXIT_DONE
                         : output_error(&err);
    kk_sweep_release(&r);
    return code;
}

static int run(int argc, char **argv) {
    sweep_args a = {.cache = LOADER_CACHE_DEFAULTS, .texts = EVAL_TEXTS_DEFAULTS};
    kk_sweep_opts o = {.tell = tell, .user = &a};
    loader_path path;
    eval_files files;
    int code;
    if (!options_parse(&eval_sweep, argc - 1, argv + 1, &a, NULL, &code)) return code;
    a.load.restores = a.load.keeps_few = true;
    if (!read_alphas(a.alphas, &o, &code)) return code;
    if (!eval_read_texts(&eval_sweep, &a.texts, argc, argv, &o.draw, &o.source, &files, &code))
        return code;
    o.session = loader_session_opts(&a.cache);
    o.predict = a.texts.predict;
    char *command = eval_command(argc, argv);
    o.command = command;
    if (loader_options(&eval_sweep, &a.load, &path, &o.engine, &code) &&
        destination_open_report(&a.report, &o.engine, o.source.paths, o.source.n_paths, &code))
        code = measure(&a, &o);
    destination_close_report(&a.report);
    free(command);
    return code;
}

const verb eval_sweep = {
    .name = "eval sweep",
    .summary = "how good rebuilt K/V rows must be",
    .usage = "-mp DIR [options]",
    .about = "Rebuilds K/V rows as a mix of true and rebuilt ones, from all rebuilt (alpha 0) to\n"
             "all true (1), and shows for each mix the needles found, the KL of next-token\n"
             "distributions against exact caches, and the mean square error of what the\n"
             "projection rebuilds, by kind of layers.  The knee is the least alpha whose recall\n"
             "is within 0.05 of that of alpha 1; there logits must be those of exact caches, and\n"
             "if they are not, it fails.",
    .examples = "  kakeya eval sweep -mp projection --report sweep.json\n"
                "  kakeya eval sweep -mp projection --alphas 0,0.1,0.2,0.3 --ladder 70,280\n"
                "  kakeya eval sweep -mp projection --kv-full restored --samples 10\n",
    .options = sweep_options,
    .n_options = OPTION_COUNT(sweep_options),
    .run = run,
};
