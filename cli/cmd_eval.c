/* cmd_eval.c - `kakeya eval`: what a model can do, measured by asking it.
 *
 * Two kinds, each with options of its own: needle, here, and accept, in eval_accept.c.  Tables go
 * to stdout, the answers as they come (-v) and the progress to stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval_accept.h"
#include "cli/eval_sweep.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "eval/needle.h"

typedef struct {
    loader_args load;
    const char *ladder, *report, *kv_format;
    uint64_t seed;
    int32_t samples, predict, ctx;
    float min_recall;
    bool raw, print, quiet, verbose;
} needle_args;

#define AT(field) offsetof(needle_args, field)
static const option needle_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(needle_args, load),
    OPTION_HEADING("What is asked"),
    OPTION_STRING(NULL, "ladder", "LIST", AT(ladder),
                  "lines of padding of each rung, give or take 15 % (default: 70,280)"),
    OPTION_INT(NULL, "samples", "N", AT(samples), 1, KK_NEEDLE_SAMPLES,
               "documents of each rung (default: 10)"),
    OPTION_SEED("s", "seed", "N", AT(seed), "names the documents (default: 42)"),
    OPTION_INT("n", "predict", "N", AT(predict), 1, 1 << 20,
               "most tokens of an answer (default: 32)"),
    OPTION_FLAG(NULL, "raw", AT(raw), "continue the document as it is, not as a user's turn"),
    OPTION_FLAG(NULL, "print", AT(print), "print the first document and ask nothing"),
    OPTION_HEADING("Output"),
    OPTION_REAL("min-recall", "X", AT(min_recall), 0, 1,
                "fail when a rung recalls less than this share"),
    OPTION_STRING(NULL, "report", "FILE", AT(report), "write a JSON report"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    OPTION_FLAG("v", "verbose", AT(verbose), "show every answer as it comes"),
    OPTION_HEADING("Context"),
    OPTION_INT("c", "ctx-size", "N", AT(ctx), 1, 1 << 30,
               "most tokens held (default: what the longest document needs)"),
    LOADER_FORMAT_OPTION(AT(kv_format)),
    LOADER_DEVICE_OPTIONS(needle_args, load),
};

extern const verb eval_needle;

/* ---- what is asked ----------------------------------------------------------------------- */

static bool read_ladder(const needle_args *a, kk_needle_opts *o, int *code) {
    int32_t *list;
    size_t n;
    const char *bad, *text = a->ladder ? a->ladder : "70,280";
    if (!options_int_list(text, 1, KK_HAYSTACK_MOST_LINES, &list, &n, &bad)) {
        *code = options_wrong(&eval_needle, "--ladder takes lines from 1 to %d; '%.20s' is not one",
                              KK_HAYSTACK_MOST_LINES, bad);
        return false;
    }
    const bool fits = n > 0 && n <= KK_NEEDLE_RUNGS;
    if (fits) {
        memcpy(o->ladder, list, n * sizeof *list);
        o->n_rungs = (int32_t)n;
    } else {
        *code = options_wrong(&eval_needle, "--ladder takes 1 to %d rungs", KK_NEEDLE_RUNGS);
    }
    free(list);
    return fits;
}

static int print_document(const kk_needle_opts *o) {
    int32_t low, high;
    kk_twister t;
    char *text;
    size_t len;
    kk_err err;
    kk_haystack_rung(o->ladder[0], &low, &high);
    kk_twister_seed(&t, o->seed);
    const kk_haystack doc = kk_haystack_draw(&t, low, high);
    if (kk_haystack_text(&doc, &text, &len, &err) != KK_OK) return output_error(&err);
    fwrite(text, 1, len, stdout);
    putchar('\n');
    kk_free(text);
    return EXIT_DONE;
}

/* ---- while it runs ----------------------------------------------------------------------- */

static void erase_line(void) {
    if (term_controls(stderr)) fputs("\r\033[K", stderr);
}

static void show_progress(const kk_needle_event *e) {
    if (!term_controls(stderr)) return;
    const kk_needle_rung *r = e->rung;
    fprintf(stderr, "\r\033[K%d lines: document %d, %.0f %% read", r->lines,
            (int)(e->sample - r->samples) + 1, 100.0 * (double)e->done / (double)e->total);
    if (r->n_samples) fprintf(stderr, "; %d of %d found", r->hits, r->n_samples);
}

static void show_question(const kk_needle_sample *s) {
    erase_line();
    fprintf(stderr, "%s%d lines, %s tokens, %s at %.0f %%:%s ", term_dim(stderr), s->doc.lines,
            term_count(s->tokens).text, s->doc.code, 100 * kk_haystack_depth(&s->doc),
            term_reset(stderr));
}

/* An answer stays on its line, and cannot talk to the terminal. */
static void show_text(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        fputc(c < 0x20 || c == 0x7f ? ' ' : c, stderr);
    }
}

static bool on_event(void *user, const kk_needle_event *e) {
    const needle_args *a = user;
    const bool first = e->sample->generated == 1;
    if (!a->quiet && e->moment == KK_NEEDLE_READING) show_progress(e);
    if (a->verbose && e->moment == KK_NEEDLE_TEXT) {
        if (first) show_question(e->sample);
        show_text(e->text, e->len);
    }
    if (a->verbose && e->moment == KK_NEEDLE_JUDGED)
        fprintf(stderr, " %s(%s)%s\n", term_dim(stderr), e->sample->hit ? "found" : "missed",
                term_reset(stderr));
    fflush(stderr);
    return term_signal() == 0;
}

/* ---- the table --------------------------------------------------------------------------- */

static const kk_mem_category kv_categories[] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL,
                                                KK_MEM_KV_DRAFTER, KK_MEM_KV_LATENTS};

static bool holds_any(const kk_needle_result *r, kk_mem_category c) {
    for (int32_t i = 0; i < r->n_rungs; i++)
        if (r->rung[i].bytes[c]) return true;
    return false;
}

static void print_rung(const kk_needle_result *r, const kk_needle_rung *g) {
    printf("%7d %8.0f %8d %7.2f %14.1f %13.1f", g->lines, g->tokens, g->n_samples, g->recall,
           g->prefill_tok_s, g->decode_tok_s);
    for (size_t i = 0; i < OPTION_COUNT(kv_categories); i++)
        if (holds_any(r, kv_categories[i]))
            printf(" %12s", term_bytes((double)g->bytes[kv_categories[i]]).text);
    putchar('\n');
}

static void print_table(const kk_needle_result *r) {
    const kk_model_info *m = &r->model;
    printf("model    %s %s, %d layers, %s\n", m->name, m->weight_type, m->layers,
           term_bytes((double)m->weight_bytes).text);
    printf("machine  %s, %s, %d threads\n", r->machine.name, r->device.isa, r->device.threads);
    printf("%7s %8s %8s %7s %14s %13s", "lines", "tokens", "samples", "recall", "prefill tok/s",
           "decode tok/s");
    for (size_t i = 0; i < OPTION_COUNT(kv_categories); i++)
        if (holds_any(r, kv_categories[i])) printf(" %12s", kk_mem_category_name(kv_categories[i]));
    putchar('\n');
    for (int32_t i = 0; i < r->n_rungs; i++) print_rung(r, &r->rung[i]);
}

static int judge(const needle_args *a, const kk_needle_result *r) {
    char what[200];
    for (int32_t i = 0; i < r->n_rungs; i++) {
        const kk_needle_rung *g = &r->rung[i];
        if ((float)g->recall >= a->min_recall) continue;
        snprintf(what, sizeof what, "%d of %d needles found in %d lines: less than --min-recall %g",
                 g->hits, g->n_samples, g->lines, (double)a->min_recall);
        return output_failed(what, a->verbose ? NULL : "-v shows the answers.");
    }
    return EXIT_DONE;
}

/* ---- the kind ---------------------------------------------------------------------------- */

char *eval_command(int argc, char **argv) { return output_command("kakeya eval", argc, argv); }

static int write_report(const needle_args *a, const kk_needle_opts *o, const kk_needle_result *r,
                        const char *command) {
    kk_err err;
    if (!a->report) return EXIT_DONE;
    if (kk_needle_write(a->report, o, r, a->min_recall, command, &err) == KK_OK) return EXIT_DONE;
    return output_error(&err);
}

/* A document that does not fit says itself what to do. */
static int failed(const needle_args *a, const kk_err *err) {
    if (err->code == KK_ECONTEXT) return output_failed(err->msg, NULL);
    return loader_failed(&a->load, err);
}

static int ask(const needle_args *a, const kk_needle_opts *o, const char *command) {
    kk_needle_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_needle_run(o, &r, &err);
    if (!a->quiet) erase_line();
    if (st != KK_OK) return failed(a, &err);
    print_table(&r);
    fflush(stdout);
    int code = write_report(a, o, &r, command);
    if (code == EXIT_DONE) code = judge(a, &r);
    kk_needle_release(&r);
    return code;
}

static int run_needle(int argc, char **argv) {
    needle_args a = {.seed = 42, .samples = 10, .predict = 32, .min_recall = -1};
    loader_path path;
    int code;
    if (!options_parse(&eval_needle, argc - 1, argv + 1, &a, NULL, &code)) return code;
    kk_needle_opts o = {.kv_format = loader_kv_format(a.kv_format),
                        .ctx = a.ctx,
                        .seed = a.seed,
                        .samples = a.samples,
                        .predict = a.predict,
                        .raw = a.raw,
                        .on_event = on_event,
                        .user = &a};
    if (!read_ladder(&a, &o, &code)) return code;
    if (a.print) return print_document(&o);
    if (!loader_options(&eval_needle, &a.load, &path, &o.engine, &code)) return code;
    char *command = eval_command(argc, argv);
    code = ask(&a, &o, command);
    free(command);
    return code;
}

const verb eval_needle = {
    .name = "eval needle",
    .summary = "recall of a code hidden in a long document",
    .usage = "[-m MODEL] [options]",
    .about = "Hides a code in long documents of padding, asks the model for it and counts the\n"
             "answers that name it: for each rung of the ladder recall, speed and the memory of\n"
             "the context.  A seed names the documents, here and in tools/tiny/needle.py.",
    .examples = "  kakeya eval needle\n"
                "  kakeya eval needle --ladder 60,150,300 --samples 50 --report needle.json\n"
                "  kakeya eval needle -m gemma-4-26b-a4b-q4_0.gguf --ladder 280 -v --min-recall 1\n"
                "  kakeya eval needle --print --ladder 150 | kakeya run --chat -n 32\n",
    .options = needle_options,
    .n_options = OPTION_COUNT(needle_options),
    .run = run_needle,
};

/* ---- the verb ---------------------------------------------------------------------------- */

static const verb *const kinds[] = {&eval_needle, &eval_accept, &eval_sweep};
static const char *const later_kinds[] = {"kv"};

static const char *kind_name(const verb *kind) { return kind->name + strlen("eval "); }

static int list_kinds(void) {
    fprintf(stderr, "usage: kakeya eval KIND [options]\n\nKinds:\n");
    for (size_t i = 0; i < OPTION_COUNT(kinds); i++)
        fprintf(stderr, "  %-10s %s\n", kind_name(kinds[i]), kinds[i]->summary);
    fprintf(stderr, "\n'kakeya help eval KIND' says more.\n");
    return EXIT_USAGE;
}

static int run(int argc, char **argv) {
    if (argc == 0) return list_kinds();
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        options_help(&verb_eval);
        return EXIT_DONE;
    }
    for (size_t i = 0; i < OPTION_COUNT(kinds); i++)
        if (strcmp(argv[0], kind_name(kinds[i])) == 0) return kinds[i]->run(argc, argv);
    for (size_t i = 0; i < OPTION_COUNT(later_kinds); i++)
        if (strcmp(argv[0], later_kinds[i]) == 0)
            return options_wrong(&verb_eval, "'eval %s' is not part of this build yet", argv[0]);
    if (argv[0][0] == '-')
        return options_wrong(&verb_eval, "the kind comes first, as in 'kakeya eval needle %s'",
                             argv[0]);
    return options_wrong(&verb_eval, "there is no kind '%s'; the kinds are: needle, accept, sweep",
                         argv[0]);
}

const verb verb_eval = {
    .name = "eval",
    .summary = "measure what a model can do: needles found, drafts accepted",
    .usage = "KIND [options]",
    .about = "needle      recall of a code hidden in a long document\n"
             "accept      how much of what is drafted is right, and whether it changed anything\n"
             "sweep       how good rebuilt K/V rows must be\n\n"
             "'kakeya help eval KIND' lists the options of a kind.",
    .examples = "  kakeya eval needle --ladder 60,150,300 --samples 50 --report needle.json\n"
                "  kakeya eval accept --set code,needle,edit --report accept.json\n",
    .kinds = true,
    .run = run,
};
