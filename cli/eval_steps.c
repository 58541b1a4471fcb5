/* eval_steps.c - `kakeya eval steps`: restored decoding, and restored decoding with drafts, held
 * against exact plain decoding, with PASS or FAIL for each.  The table goes to stdout, the progress
 * to stderr. */
#include "cli/eval_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/eval_accept.h"
#include "cli/eval_sweep.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/measure/steps.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    const char *policy, *sets, *text;
    destination_report report;
    uint64_t seed;
    int32_t lines, samples, predict, turns, text_tokens;
    float min_restored, min_drafted, max_kl;
    bool quiet;
} steps_args;

#define AT(field) offsetof(steps_args, field)
static const option steps_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(steps_args, load),
    LOADER_PROJECTION_OPTIONS(steps_args, load),
    OPTION_HEADING("What is run"),
    OPTION_CHOICE("policy", "NAME", AT(policy), "restored restored-sliding restored-full", NULL,
                  "layers that rebuild their rows: all (restored, default), sliding or full ones"),
    OPTION_INT(NULL, "lines", "N", AT(lines), 1, KK_HAYSTACK_MOST_LINES,
               "lines of padding of a document, give or take 15 % (default: 70)"),
    OPTION_INT(NULL, "samples", "N", AT(samples), 1, KK_NEEDLE_SAMPLES, "documents (default: 10)"),
    OPTION_SEED("s", "seed", "N", AT(seed), "names the documents (default: 42)"),
    OPTION_INT("n", "predict", "N", AT(predict), 32, 1 << 20,
               "tokens of a turn, and most of an answer (default: 64)"),
    OPTION_INT(NULL, "turns", "N", AT(turns), 5, KK_BENCH_MAX_REPEAT,
               "timed turns of every way to decode, in alternation (default: 5)"),
    OPTION_STRING(NULL, "set", "LIST", AT(sets),
                  "text of the turns by name: code, chat, needle, json, edit, prose (default: "
                  "code)"),
    OPTION_STRING(NULL, "text", "FILE", AT(text),
                  "a text to compare distributions on, or prompts where it ends in .jsonl; may be "
                  "given several times (default: those of the shipped prompts that no projection "
                  "is trained on)"),
    OPTION_INT(NULL, "text-tokens", "N", AT(text_tokens), 1, 1 << 20,
               "tokens taken of a text whose distributions are compared, at most (default: 1024)"),
    OPTION_HEADING("Limits"),
    OPTION_REAL("min-restored", "X", AT(min_restored), 0, 100,
                "step 1: least speed of restored decoding, over exact (default: 0.85)"),
    OPTION_REAL("min-drafted", "X", AT(min_drafted), 0, 100,
                "step 2: least speed of restored decoding with drafts, over exact plain decoding "
                "(default: 1)"),
    OPTION_REAL("max-kl", "X", AT(max_kl), 0, 100,
                "both: most mean KL against exact (default: any)"),
    OPTION_HEADING("Context"),
    LOADER_ROWS_OPTIONS(steps_args, cache),
    LOADER_FORMAT_OPTION(AT(cache.kv_format)),
    LOADER_DRAFT_MAX_OPTION(AT(cache.draft_max)),
    OPTION_FLAG(NULL, "draft-fixed", AT(cache.draft_fixed),
                "always draft --draft-max tokens, whether it pays or not"),
    OPTION_INT(NULL, "draft-ctx", "N", AT(cache.draft_ctx), 1, 1 << 30,
               "tokens the drafter's full layers look back over (default: all)"),
    OPTION_HEADING("Output"),
    DESTINATION_REPORT_OPTIONS(steps_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(steps_args, load),
};

static bool on_step(void *user, const char *what) {
    const steps_args *a = user;
    if (what && !a->quiet && term_controls(stderr)) fprintf(stderr, "\r\033[K%s...", what);
    fflush(stderr);
    return term_signal() == 0;
}

/* ---- the table --------------------------------------------------------------------------- */

static void print_way(const kk_steps_result *r, int32_t arm) {
    const kk_needle_rung *exact = &r->needle.arm[0].rung[0], *own = &r->needle.arm[arm].rung[0];
    const double bytes = (double)kk_needle_kv_bytes(own);
    static const char *const names[] = {"exact", "restored", "restored, drafted"};
    if (arm)
        printf("step %d  ", arm);
    else
        printf("%-8s", "");
    printf("%-18s %6.2f %9.1f %7.2fx", names[arm], own->recall, r->tok_s[arm],
           arm ? r->speed[arm - 1] : 1.0);
    if (arm)
        printf(" %9.5f", r->needle.arm[arm].sum.mean_kl);
    else
        printf(" %9s", "-");
    printf(" %10s %6.2fx", term_bytes(bytes).text,
           bytes > 0 ? (double)kk_needle_kv_bytes(exact) / bytes : 0);
    if (arm) printf("  %s", r->holds[arm - 1] ? "PASS" : "FAIL");
    putchar('\n');
}

/* Why a step fails, check by check. */
static void print_failures(const kk_steps_result *r) {
    for (int32_t i = 0; i < r->n_checks; i++) {
        const kk_needle_check *c = &r->check[i];
        if (c->holds) continue;
        printf("        %s: %s is %.4g, and the limit is %.4g\n", c->arm, c->figure, c->value,
               c->limit);
    }
}

static void print_table(const kk_steps_opts *o, const kk_steps_result *r) {
    const kk_model_info *m = &r->needle.model;
    const kk_session_opts *how = &r->needle.arm[1].how;
    printf("model   %s %s, %d layers; projection %s, rank %d\n", m->name, m->weight_type, m->layers,
           r->needle.projection.source, r->needle.projection.rank);
    printf("policy  %s; sink %d, window %d, chunk %d\n", kk_bench_way_name(o->way),
           how->sink > 0 ? how->sink : 0, how->window > 0 ? how->window : 0, how->chunk);
    printf("runs    %d documents of %.0f tokens; %d turns of %d tokens of %s at context %d\n",
           r->needle.arm[0].rung[0].n_samples, r->needle.arm[0].rung[0].tokens, o->turns,
           o->predict, r->bench->policy_text, r->needle.ctx);
    printf("%-26s %6s %9s %8s %9s %10s %7s\n", "", "recall", "tok/s", "x exact", "mean KL", "K/V",
           "less");
    for (int32_t i = 0; i <= KK_STEPS; i++) print_way(r, i);
    print_failures(r);
}

/* ---- the kind ---------------------------------------------------------------------------- */

static int conclude(const kk_steps_result *r) {
    const bool both = !r->holds[0] && !r->holds[1];
    if (r->holds[0] && r->holds[1]) return EXIT_DONE;
    return output_failed(both           ? "steps 1 and 2 failed"
                         : !r->holds[0] ? "step 1 failed"
                                        : "step 2 failed",
                         NULL);
}

static int measure(const steps_args *a, const kk_steps_opts *o) {
    kk_steps_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_steps_run(o, &r, &err);
    if (!a->quiet && term_controls(stderr)) fprintf(stderr, "\r\033[K");
    if (st != KK_OK)
        return err.code == KK_ECONTEXT || err.code == KK_EINVAL ? output_failed(err.msg, NULL)
                                                                : loader_failed(&a->load, &err);
    print_table(o, &r);
    fflush(stdout);
    int code = conclude(&r);
    if (a->report.file && kk_steps_write(a->report.file, o, &r, &err) != KK_OK)
        code = output_error(&err);
    kk_steps_release(&r);
    return code;
}

static kk_bench_way way_of(const char *policy) {
    for (kk_bench_way w = 0; policy && w < KK_BENCH_WAYS; w++)
        if (strcmp(kk_bench_way_name(w), policy) == 0) return w;
    return KK_BENCH_RESTORED;
}

static bool check_parts(const kk_steps_opts *o, int *code) {
    if (o->engine.projection && o->engine.drafter) return true;
    *code = options_wrong(&eval_steps, "%s: name one with %s",
                          o->engine.projection ? "step 2 drafts, and there is no drafter"
                                               : "both steps rebuild rows, and there is no "
                                                 "projection",
                          o->engine.projection ? "-md DRAFTER" : "-mp DIR");
    return false;
}

static int run(int argc, char **argv) {
    steps_args a = {.cache = LOADER_CACHE_DEFAULTS,
                    .seed = 42,
                    .lines = 70,
                    .samples = 10,
                    .predict = 64,
                    .turns = 5,
                    .text_tokens = 1024,
                    .min_restored = 0.85f,
                    .min_drafted = 1,
                    .max_kl = -1};
    const char *texts[EVAL_NAMES];
    loader_path path;
    char prompts[4096];
    int code;
    if (!options_parse(&eval_steps, argc - 1, argv + 1, &a, NULL, &code)) return code;
    a.load.restores = a.load.keeps_few = true;
    kk_steps_opts o = {.way = way_of(a.policy),
                       .kv_format = loader_kv_format(a.cache.kv_format),
                       .keep = loader_session_opts(&a.cache),
                       .lines = a.lines,
                       .samples = a.samples,
                       .seed = a.seed,
                       .predict = a.predict,
                       .turns = a.turns,
                       .sets = a.sets ? a.sets : "code",
                       .texts = texts,
                       .text_tokens = a.text_tokens,
                       .draft_max = a.cache.draft_max,
                       .draft_ctx = a.cache.draft_ctx,
                       .draft_fixed = a.cache.draft_fixed,
                       .least_speed = {(double)a.min_restored, (double)a.min_drafted},
                       .max_kl = a.max_kl,
                       .on_step = on_step,
                       .user = &a};
    if (a.sets && !eval_check_sets(&eval_steps, a.sets, &code)) return code;
    if (a.text && !eval_collect_texts(&eval_steps, argc, argv, texts, &o.n_texts, &code))
        return code;
    if (!loader_options(&eval_steps, &a.load, &path, &o.engine, &code)) return code;
    if (!check_parts(&o, &code)) return code;
    if (loader_shipped("prompts", prompts, sizeof prompts)) o.prompts = prompts;
    if (!destination_open_report(&a.report, &o.engine, texts, o.n_texts, &code)) return code;
    char *command = eval_command(argc, argv);
    o.command = command;
    code = measure(&a, &o);
    free(command);
    destination_close_report(&a.report);
    return code;
}

const verb eval_steps = {
    .name = "eval steps",
    .summary = "whether restored and drafted decoding keep up with exact: PASS or FAIL",
    .usage = "[-m MODEL] [-mp DIR] [-md DRAFTER] [options]",
    .about = "Holds two ways to decode against exact plain decoding of the same model.  Step 1\n"
             "rebuilds K/V rows by the projection and must reach 0.85 of its speed; step 2 drafts\n"
             "as well and must be as fast.  Both must recall the codes of documents as well as\n"
             "exact does, to 5 points, and must have rebuilt rows in each; drafts may not change\n"
             "a token.  Speed is measured in alternating turns on ordinary text, at the context\n"
             "that the documents need.  Exit status 1: a step failed.",
    .examples = "  kakeya eval steps\n"
                "  kakeya eval steps -m gemma-4-26B-A4B -mp projection -md drafter --lines 280\n"
                "  kakeya eval steps --policy restored-sliding --max-kl 0.05 --report steps.json\n",
    .options = steps_options,
    .n_options = OPTION_COUNT(steps_options),
    .run = run,
};
