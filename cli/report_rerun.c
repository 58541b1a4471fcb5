/* report_rerun.c - `kakeya report rerun`: executes a report again and says where it differs.
 *
 * Lines go to stdout: what is different first, then what is shown, times beside times, what was not
 * compared, and the verdict; progress goes to stderr. */
#include "cli/report_rerun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval_sweep.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/reports/gate.h"

typedef struct {
    loader_args load;
    option_words files;
    const char *projections;
    uint64_t seed;
    int32_t rows;
    bool json, quiet, verbose;
    const kk_rerun *rerun; /* while it runs */
} rerun_args;

#define AT(field) offsetof(rerun_args, field)
static const option rerun_options[] = {
    OPTION_INT(NULL, "rows", "N", AT(rows), 1, 1 << 20,
               "execute so many rows, drawn by the seed (default: all)"),
    OPTION_SEED("s", "seed", "N", AT(seed), "names the draw (default: 0)"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object with all that was found"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress, and only what is different"),
    OPTION_FLAG("v", "verbose", AT(verbose), "also what a controller chose otherwise"),
    OPTION_HEADING("What the report was made with, where it is not shipped"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(rerun_args, load),
    LOADER_PROJECTION_OPTIONS(rerun_args, load),
    OPTION_STRING(NULL, "projections", "LIST", AT(projections),
                  "folders of projections, in the order of the report, with commas between"),
    {.kind = OPT_WORDS,
     .name = "file",
     .arg = "FILE",
     .offset = AT(files),
     .help = "a text or prompts, found by the name; may be given several times"},
    LOADER_DEVICE_OPTIONS(rerun_args, load),
};

/* ---- what it is executed with ------------------------------------------------------------- */

static bool has(const kk_rerun *r, const char *part) {
    return json_is_object(json_object_get(r->stored, part));
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* The report's own projection, or the one projection of a report of several. */
static const json_t *projection_of(const kk_rerun *r) {
    const json_t *list = json_object_get(r->stored, "projections");
    if (json_array_size(list) == 1) return json_array_get(list, 0);
    return json_object_get(r->stored, "projection");
}

/* As many threads as the report had, where this machine has the cores: workspaces depend on it. */
static void take_machine(const kk_rerun *r, loader_args *a) {
    const json_t *m = json_object_get(r->stored, "machine");
    const json_int_t threads = json_integer_value(json_object_get(m, "threads"));
    const bool cpu = strcmp(text_of(m, "device"), "cpu") == 0;
    kk_machine here;
    kk_machine_info(&here);
    if (!a->threads && cpu && threads > 0 && threads <= here.cores) a->threads = (int32_t)threads;
    if (!a->device && cpu) a->device = "cpu";
    if (!a->isa && cpu && strcmp(text_of(m, "isa"), "reference") == 0) a->isa = "reference";
}

typedef struct {
    char projection[40], draft_vocab[16];
} random_names; /* of what goes with random weights */

/* Random weights are made from the name of their shapes; what is not named comes with the program,
 * and is checked by its fingerprint. */
static void take_models(const kk_rerun *r, rerun_args *a, random_names *names) {
    const json_t *drafter = json_object_get(r->stored, "drafter");
    const json_int_t short_rows = json_integer_value(json_object_get(drafter, "short_rows"));
    const json_t *model = json_object_get(r->stored, "model"), *p = projection_of(r);
    const bool synthetic = json_is_true(json_object_get(model, "synthetic"));
    const bool trains = strcmp(text_of(r->stored, "kind"), "projection") == 0;
    if (synthetic && !a->load.model) {
        a->load.synthetic = text_of(model, "source");
        if (has(r, "drafter") && !a->load.drafter) a->load.drafter = "synthetic";
        snprintf(names->draft_vocab, sizeof names->draft_vocab, "%d", (int)short_rows);
        if (short_rows > 0 && !a->load.draft_vocab) a->load.draft_vocab = names->draft_vocab;
        snprintf(names->projection, sizeof names->projection, "synthetic:%lld",
                 (long long)json_integer_value(json_object_get(p, "rank")));
        if (json_is_object(p) && !a->load.projection) a->load.projection = names->projection;
    }
    if (!has(r, "drafter")) a->load.drafter = "none";
    if (!json_is_object(p) || trains) a->load.projection = "none";
    a->load.restores = json_is_object(p) && !trains && !a->projections;
}

/* ---- while it runs ------------------------------------------------------------------------ */

static void erase_line(const rerun_args *a) {
    if (!a->quiet && term_controls(stderr)) fputs("\r\033[K", stderr);
}

static bool tell(void *user, const char *what) {
    const rerun_args *a = user;
    if (what && !a->quiet && term_controls(stderr)) {
        fprintf(stderr, "\r\033[K%s", what);
        fflush(stderr);
    }
    return term_signal() == 0;
}

static kk_status train(void *user, const json_t *stored, json_t **report, kk_err *err) {
    const rerun_args *a = user;
    (void)stored;
    return report_rerun_train(a->rerun, report, err);
}

/* ---- what was found ------------------------------------------------------------------------ */

static size_t count(const kk_comparison *c, kk_compared what) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) n += c->finding[i].what == what;
    return n;
}

/* With a path: a complaint about the file. */
static void print_findings(const char *path, const kk_comparison *c, kk_compared what,
                           const char *label) {
    for (size_t i = 0; i < c->n; i++) {
        const kk_compare_finding *f = &c->finding[i];
        if (f->what == what && path)
            printf("%s: %s %s: the report says %s, the rerun gives %s\n", path, label, f->where,
                   f->stored, f->rerun);
        else if (f->what == what)
            printf("%s %s: %s then, %s now\n", label, f->where, f->stored, f->rerun);
    }
}

static void print_names(const kk_comparison *c, kk_compared what, const char *label) {
    if (!count(c, what)) return;
    printf("%s:", label);
    for (size_t i = 0; i < c->n; i++)
        if (c->finding[i].what == what) printf(" %s", c->finding[i].where);
    putchar('\n');
}

static void print_check(const char *path, const kk_verdict *v) {
    for (size_t i = 0; i < v->n; i++)
        printf("%s: %s: %s\n", path, v->finding[i].code, v->finding[i].text);
}

static void print_result(const rerun_args *a, const kk_rerun *r, const kk_rerun_result *out,
                         const char *path) {
    const kk_comparison *c = &out->found;
    for (size_t i = 0; !a->quiet && i < out->n_notes; i++) printf("%s\n", out->note[i]);
    if (!a->quiet && a->rows && !kk_rerun_unit(r))
        printf("nothing is drawn: %s\n", kk_rerun_whole(r));
    else if (!a->quiet && a->rows)
        printf("drawn: %d of its %s, by the seed %llu\n", a->rows, kk_rerun_unit(r),
               (unsigned long long)a->seed);
    print_findings(path, c, KK_COMPARED_DIFFERENT, "DIFFERENT");
    if (!a->quiet) {
        if (a->verbose) print_findings(NULL, c, KK_COMPARED_SHOWN, "shown");
        print_findings(NULL, c, KK_COMPARED_TIMED, "time");
        if (!a->verbose && count(c, KK_COMPARED_SHOWN))
            printf("%zu values that may differ do (-v shows them)\n", count(c, KK_COMPARED_SHOWN));
        print_names(c, KK_COMPARED_PARTLY, "not compared, being of all rows");
        print_names(c, KK_COMPARED_LACKING, "not compared, because the report lacks them");
    }
    if (c->different)
        printf("%s: %zu of %zu members are different\n", path, c->different, c->compared);
    else if (!a->quiet)
        printf("%s: %zu members are equal\n", path, c->compared);
}

static json_t *findings_json(const kk_comparison *c, kk_compared what, bool names) {
    json_t *list = json_array();
    for (size_t i = 0; i < c->n; i++) {
        const kk_compare_finding *f = &c->finding[i];
        if (f->what != what) continue;
        json_t *where = output_text(f->where, strlen(f->where));
        json_array_append_new(list,
                              names ? where
                                    : json_pack("{s:o, s:o, s:o}", "member", where, "report",
                                                output_text(f->stored, strlen(f->stored)), "rerun",
                                                output_text(f->rerun, strlen(f->rerun))));
    }
    return list;
}

static json_t *check_json(const kk_verdict *v) {
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) json_array_append_new(list, json_string(v->finding[i].code));
    return list;
}

static bool print_json(const rerun_args *a, const kk_rerun *r, const kk_rerun_result *out,
                       const kk_verdict *v, const char *path) {
    const kk_comparison *c = &out->found;
    json_t *notes = json_array();
    for (size_t i = 0; i < out->n_notes; i++)
        json_array_append_new(notes, output_text(out->note[i], strlen(out->note[i])));
    json_t *drawn = a->rows && kk_rerun_unit(r)
                        ? json_pack("{s:i, s:I, s:s}", "rows", a->rows, "seed", (json_int_t)a->seed,
                                    "of", kk_rerun_unit(r))
                        : json_null();
    return output_json(
        json_pack("{s:o, s:s, s:b, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "file",
                  output_text(path, strlen(path)), "kind", text_of(r->stored, "kind"), "holds",
                  c->different == 0 && v->violations == 0, "check", check_json(v), "drawn", drawn,
                  "notes", notes, "compared", (json_int_t)c->compared, "different",
                  findings_json(c, KK_COMPARED_DIFFERENT, false), "shown",
                  findings_json(c, KK_COMPARED_SHOWN, false), "times",
                  findings_json(c, KK_COMPARED_TIMED, false), "of_all_rows",
                  findings_json(c, KK_COMPARED_PARTLY, true), "lacking",
                  findings_json(c, KK_COMPARED_LACKING, true)));
}

/* ---- the kind ----------------------------------------------------------------------------- */

/* A report that contradicts itself is executed all the same, and fails. */
static int execute(rerun_args *a, kk_rerun *r, const char *path) {
    kk_rerun_result out;
    kk_verdict verdict;
    kk_err err;
    if (kk_gate_file(path, &verdict, &err) != KK_OK) return output_error(&err);
    term_on_signal(TERM_ASK);
    const kk_status st = kk_rerun_run(r, &out, &err);
    erase_line(a);
    int code = EXIT_FAILED;
    if (st == KK_OK) {
        code = out.found.different || verdict.violations ? EXIT_FAILED : EXIT_DONE;
        if (!a->json) print_check(path, &verdict);
        if (!a->json) print_result(a, r, &out, path);
        if (a->json && !print_json(a, r, &out, &verdict, path))
            code = output_failed("out of memory", NULL);
        kk_rerun_result_release(&out);
    } else {
        code = err.code == KK_EINVAL || err.code == KK_EFORMAT ? output_failed(err.msg, NULL)
                                                               : loader_failed(&a->load, &err);
    }
    kk_verdict_release(&verdict);
    return code;
}

static int with_report(rerun_args *a, kk_rerun *r, const char *path) {
    loader_path models;
    eval_names names;
    random_names random;
    char prompts[4096];
    int code;
    if (!eval_split(a->projections, &names))
        return options_wrong(&report_rerun, "--projections takes folders with commas between");
    take_machine(r, &a->load);
    take_models(r, a, &random);
    r->subset = (kk_subset){.n = a->rows, .seed = a->seed};
    r->projections = names.name;
    r->n_projections = names.n;
    r->files = a->files.word;
    r->n_files = (size_t)a->files.n;
    r->prompts = loader_shipped("prompts", prompts, sizeof prompts) ? prompts : NULL;
    r->tell = tell;
    r->train = train;
    r->user = a;
    a->rerun = r;
    if (loader_options(&report_rerun, &a->load, &models, &r->engine, &code))
        code = execute(a, r, path);
    eval_names_free(&names);
    return code;
}

static int run(int argc, char **argv) {
    rerun_args a = {.rows = 0};
    option_words words;
    kk_rerun r;
    kk_err err;
    int code;
    if (!options_parse(&report_rerun, argc - 1, argv + 1, &a, &words, &code)) return code;
    if (kk_rerun_read(&r, words.word[0], &err) != KK_OK)
        return err.code == KK_EFORMAT ? output_failed(err.msg, NULL) : output_error(&err);
    code = with_report(&a, &r, words.word[0]);
    kk_rerun_release(&r);
    return code;
}

const verb report_rerun = {
    .name = "report rerun",
    .summary = "execute a report again and compare",
    .usage = "FILE [--rows N] [options]",
    .about =
        "Reads the settings of a report, executes them again and compares: tokens, hashes,\n"
        "recall, KL, bytes and the acceptance of drafts of fixed length must be equal to the\n"
        "digit.  What a controller chose by time is only shown, and times stand beside each\n"
        "other.  Models, projections and files must be those of the report, by fingerprint and\n"
        "digest.  Exit status 1 when a member is different, which is printed as FILE: DIFFERENT\n"
        "member: both values; or when 'kakeya report check' would refuse the report.",
    .examples = "  kakeya report rerun bench/results/needle-tiny.json --rows 3 -s 7\n"
                "  kakeya report rerun bench/results/memory-tiny.json\n"
                "  kakeya report rerun restored.json -mp r128 --json\n",
    .options = rerun_options,
    .n_options = OPTION_COUNT(rerun_options),
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
