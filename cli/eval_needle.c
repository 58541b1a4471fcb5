/* eval_needle.c - `kakeya eval needle`: codes hidden in long documents, asked of one or several
 * ways to keep K/V rows.  Tables go to stdout, the answers as they come (-v) and the progress to
 * stderr. */
#include "cli/eval_needle.h"
#include "cli/eval_sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/eval_accept.h"
#include "cli/loader.h"
#include "cli/needle_table.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/tasks/needle.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    const char *ladder, *arms, *text;
    destination_report report;
    uint64_t seed;
    int32_t samples, predict, text_tokens;
    kk_needle_limits limits;
    bool raw, print, quiet, verbose;
} needle_args;

#define AT(field) offsetof(needle_args, field)
static const option needle_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(needle_args, load),
    LOADER_PROJECTION_OPTIONS(needle_args, load),
    OPTION_HEADING("What is asked"),
    OPTION_STRING(NULL, "arms", "LIST", AT(arms),
                  "what is compared: exact, window (rows are dropped), restored (rows are rebuilt "
                  "by the projection), drafted (restored, and the drafter drafts); exact is always "
                  "among them (default: the first three with -mp, else exact)"),
    OPTION_STRING(NULL, "ladder", "LIST", AT(ladder),
                  "lines of padding of each rung, give or take 15 % (default: 70,280)"),
    OPTION_INT(NULL, "samples", "N", AT(samples), 1, KK_NEEDLE_SAMPLES,
               "documents of each rung (default: 10)"),
    OPTION_SEED("s", "seed", "N", AT(seed), "names the documents (default: 42)"),
    OPTION_INT("n", "predict", "N", AT(predict), 1, 1 << 20,
               "most tokens of an answer (default: 32)"),
    OPTION_FLAG(NULL, "raw", AT(raw), "continue the document as it is, not as a user's turn"),
    OPTION_FLAG(NULL, "print", AT(print), "print the first document and ask nothing"),
    OPTION_STRING(NULL, "text", "FILE", AT(text),
                  "a text to compare arms on, or prompts where it ends in .jsonl; may be given "
                  "several times (default: those of the shipped prompts that no projection is "
                  "trained on)"),
    OPTION_INT(NULL, "text-tokens", "N", AT(text_tokens), 1, 1 << 20,
               "tokens taken of a text, at most (default: 2048)"),
    OPTION_HEADING("Output"),
    OPTION_REAL("min-recall", "X", AT(limits.min_recall), 0, 1,
                "fail when a rung recalls less than this share (the arm window apart)"),
    OPTION_REAL("max-kl", "X", AT(limits.max_kl), 0, 100,
                "fail when the mean KL of restored against exact is more"),
    OPTION_REAL("min-kv-ratio", "X", AT(limits.min_kv_ratio), 0, 1000,
                "fail when the K/V of exact is not so many times that of restored, at every rung"),
    DESTINATION_REPORT_OPTIONS(needle_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    OPTION_FLAG("v", "verbose", AT(verbose), "show every answer as it comes, and recall by depth"),
    OPTION_HEADING("Context"),
    OPTION_INT("c", "ctx-size", "N", AT(cache.ctx), 1, 1 << 30,
               "most tokens held (default: what the longest document needs)"),
    LOADER_KEEP_OPTIONS(needle_args, cache),
    LOADER_FORMAT_OPTION(AT(cache.kv_format)),
    OPTION_INT(NULL, "draft-ctx", "N", AT(cache.draft_ctx), 1, 1 << 30,
               "tokens the drafter's full layers look back over (default: all)"),
    LOADER_DEVICE_OPTIONS(needle_args, load),
};

/* ---- what is asked ----------------------------------------------------------------------- */

/* The arms that are asked for, in words or by what else was given. */
static bool wanted_arms(const needle_args *a, bool wanted[KK_NEEDLE_ARMS], int *code) {
    const bool restores = a->load.projection && strcmp(a->load.projection, "none") != 0;
    const kk_keep sliding = loader_keep(a->cache.kv_sliding), full = loader_keep(a->cache.kv_full);
    wanted[KK_NEEDLE_EXACT] = true;
    if (!a->arms) {
        wanted[KK_NEEDLE_RESTORED] =
            restores || sliding == KK_KEEP_RESTORED || full == KK_KEEP_RESTORED;
        wanted[KK_NEEDLE_WINDOW] =
            wanted[KK_NEEDLE_RESTORED] || sliding != KK_KEEP_ALL || full != KK_KEEP_ALL;
        return true;
    }
    for (const char *at = a->arms; *at;) {
        const size_t len = strcspn(at, ", ");
        bool known = len == 0;
        for (kk_needle_way w = 0; w < KK_NEEDLE_ARMS; w++) {
            const char *name = kk_needle_way_name(w);
            if (len != strlen(name) || strncmp(at, name, len) != 0) continue;
            wanted[w] = known = true;
        }
        if (!known) {
            *code = options_wrong(&eval_needle,
                                  "there is no arm '%.*s'; the arms are: exact, window, restored, "
                                  "drafted",
                                  len < 40 ? (int)len : 40, at);
            return false;
        }
        at += len + (at[len] != 0);
    }
    return true;
}

static bool read_arms(needle_args *a, kk_needle_opts *o, int *code) {
    bool wanted[KK_NEEDLE_ARMS] = {false};
    if (!wanted_arms(a, wanted, code)) return false;
    for (kk_needle_way w = 0; w < KK_NEEDLE_ARMS; w++)
        if (wanted[w]) o->arms[o->n_arms++] = w;
    a->load.restores = wanted[KK_NEEDLE_RESTORED] || wanted[KK_NEEDLE_DRAFTED];
    a->load.keeps_few = a->load.restores || wanted[KK_NEEDLE_WINDOW];
    if (a->load.restores || (a->limits.max_kl < 0 && a->limits.min_kv_ratio < 0)) return true;
    *code = options_wrong(&eval_needle, "%s is about the arm restored, which is not asked for",
                          a->limits.max_kl < 0 ? "--min-kv-ratio" : "--max-kl");
    return false;
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
    const double share = 100.0 * (double)e->done / (double)e->total;
    const kk_needle_rung *r = e->rung;
    if (e->moment == KK_NEEDLE_COMPARED) {
        fprintf(stderr, "\r\033[Kordinary text: %.0f %% compared", share);
        return;
    }
    fprintf(stderr, "\r\033[K%s, %d lines: document %d, %.0f %% read",
            kk_needle_way_name(e->arm->way), r->lines, (int)(e->sample - r->samples) + 1, share);
    if (r->n_samples) fprintf(stderr, "; %d of %d found", r->hits, r->n_samples);
}

static void show_question(const kk_needle_event *e) {
    const kk_needle_sample *s = e->sample;
    erase_line();
    fprintf(stderr, "%s%s, %d lines, %s tokens, %s at %.0f %%:%s ", term_dim(stderr),
            kk_needle_way_name(e->arm->way), s->doc.lines, term_count(s->tokens).text, s->doc.code,
            100 * kk_haystack_depth(&s->doc), term_reset(stderr));
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
    if (!a->quiet && (e->moment == KK_NEEDLE_READING || e->moment == KK_NEEDLE_COMPARED))
        show_progress(e);
    if (a->verbose && e->moment == KK_NEEDLE_TEXT) {
        if (e->sample->generated == 1) show_question(e);
        show_text(e->text, e->len);
    }
    if (a->verbose && e->moment == KK_NEEDLE_JUDGED)
        fprintf(stderr, " %s(%s)%s\n", term_dim(stderr), e->sample->hit ? "found" : "missed",
                term_reset(stderr));
    fflush(stderr);
    return term_signal() == 0;
}

/* ---- the gate ---------------------------------------------------------------------------- */

static int short_of_recall(const needle_args *a, const kk_needle_result *r) {
    char what[200];
    for (int32_t arm = 0; arm < r->n_arms; arm++)
        for (int32_t i = 0; i < r->arm[arm].n_rungs; i++) {
            const kk_needle_rung *g = &r->arm[arm].rung[i];
            const kk_needle_way way = r->arm[arm].way;
            if (way == KK_NEEDLE_WINDOW || (float)g->recall >= a->limits.min_recall) continue;
            snprintf(what, sizeof what,
                     "%s: %d of %d needles found in %d lines: less than --min-recall %g",
                     kk_needle_way_name(way), g->hits, g->n_samples, g->lines,
                     (double)a->limits.min_recall);
            return output_failed(what, a->verbose ? NULL : "-v shows the answers.");
        }
    return EXIT_FAILED;
}

/* The first check that does not hold is said; the report has all. */
static int judge(const needle_args *a, const kk_needle_result *r) {
    kk_needle_check check[KK_NEEDLE_CHECKS];
    const int32_t n = kk_needle_judge(r, &a->limits, check);
    char what[200];
    for (int32_t i = 0; i < n; i++) {
        const kk_needle_check *c = &check[i];
        if (c->holds) continue;
        if (strcmp(c->figure, "recall") == 0) return short_of_recall(a, r);
        if (strcmp(c->figure, "restored_rows") == 0)
            snprintf(what, sizeof what, "%s: no row was rebuilt in some document", c->arm);
        else
            snprintf(what, sizeof what, "%s: %s is %.4g, and the limit is %.4g", c->arm, c->figure,
                     c->value, c->limit);
        return output_failed(what, NULL);
    }
    return EXIT_DONE;
}

/* ---- the kind ---------------------------------------------------------------------------- */

static int write_report(const needle_args *a, const kk_needle_opts *o, const kk_needle_result *r) {
    kk_err err;
    if (!a->report.file) return EXIT_DONE;
    if (kk_needle_write(a->report.file, o, r, &a->limits, &err) == KK_OK) return EXIT_DONE;
    return output_error(&err);
}

/* A document that does not fit says itself what to do. */
static int failed(const needle_args *a, const kk_err *err) {
    if (err->code == KK_ECONTEXT) return output_failed(err->msg, NULL);
    return loader_failed(&a->load, err);
}

static int ask(const needle_args *a, const kk_needle_opts *o) {
    kk_needle_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_needle_run(o, &r, &err);
    if (!a->quiet) erase_line();
    if (st != KK_OK) return failed(a, &err);
    needle_print(&r, a->verbose);
    fflush(stdout);
    int code = write_report(a, o, &r);
    if (code == EXIT_DONE) code = judge(a, &r);
    kk_needle_release(&r);
    return code;
}

static int run_needle(int argc, char **argv) {
    needle_args a = {.cache = LOADER_CACHE_DEFAULTS,
                     .seed = 42,
                     .samples = 10,
                     .predict = 32,
                     .text_tokens = 2048,
                     .limits = {-1, -1, -1}};
    const char *texts[EVAL_NAMES];
    char prompts[4096];
    loader_path path;
    int code;
    if (!options_parse(&eval_needle, argc - 1, argv + 1, &a, NULL, &code)) return code;
    kk_needle_opts o = {.session = loader_session_opts(&a.cache),
                        .seed = a.seed,
                        .samples = a.samples,
                        .predict = a.predict,
                        .raw = a.raw,
                        .texts = texts,
                        .text_tokens = a.text_tokens,
                        .on_event = on_event,
                        .user = &a};
    const char *ladder = a.ladder ? a.ladder : "70,280";
    if (!eval_read_ladder(&eval_needle, ladder, o.ladder, &o.n_rungs, &code)) return code;
    if (a.print) return print_document(&o);
    if (!read_arms(&a, &o, &code)) return code;
    if (a.text && !eval_collect_texts(&eval_needle, argc, argv, texts, &o.n_texts, &code))
        return code;
    if (!loader_options(&eval_needle, &a.load, &path, &o.engine, &code)) return code;
    if (loader_shipped("prompts", prompts, sizeof prompts)) o.prompts = prompts;
    if (!destination_open_report(&a.report, &o.engine, texts, o.n_texts, &code)) return code;
    char *command = eval_command(argc, argv);
    o.command = command;
    code = ask(&a, &o);
    free(command);
    destination_close_report(&a.report);
    return code;
}

const verb eval_needle = {
    .name = "eval needle",
    .summary = "recall of a code hidden in a long document, and what a cache costs",
    .usage = "[-m MODEL] [options]",
    .about = "Hides a code in long documents of padding, asks the model for it and counts the\n"
             "answers that name it: for each rung of the ladder recall, speed and the memory of\n"
             "the context.  A seed names the documents, here and in tools/tiny/needle.py.\n\n"
             "With a projection (-mp) three ways to keep K/V rows answer the same documents.\n"
             "Because recall is blind to much, their next-token distributions on ordinary text\n"
             "are compared with exact ones too.  Fails when restored rebuilt nothing, or recalls\n"
             "a rung worse than exact by more than 5 points.",
    .examples =
        "  kakeya eval needle\n"
        "  kakeya eval needle --ladder 60,150,300 --samples 50 --report needle.json\n"
        "  kakeya eval needle -m gemma-4-26b-a4b-q4_0.gguf --ladder 280 -v --min-recall 1\n"
        "  kakeya eval needle --print --ladder 150 | kakeya run --chat -n 32\n"
        "  kakeya eval needle -mp projection --ladder 50,145,290 --max-kl 0.05\n"
        "  kakeya eval needle -mp projection --kv-sliding restored --window 32 --chunk 32\n",
    .options = needle_options,
    .n_options = OPTION_COUNT(needle_options),
    .run = run_needle,
};
