/* eval_accept.c - `kakeya eval accept`: how much of what is drafted is right. */
#include "cli/eval_accept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/sampling.h"
#include "cli/term.h"
#include "eval/tasks/accept.h"

typedef struct {
    loader_args load;
    const char *sets, *prompts, *kv_format, *spec, *embed_scale;
    destination_report report;
    kk_sampling sampling;
    int32_t samples, predict, draft_max, draft_ctx;
    bool quiet;
} accept_args;

#define AT(field) offsetof(accept_args, field)
static const option accept_options[] = {
    OPTION_HEADING("Model"),
    OPTION_STRING("m", "model", "MODEL", AT(load.model),
                  "Hugging Face folder or GGUF file (default: the small one shipped with the "
                  "program)"),
    LOADER_DRAFTER_OPTIONS(accept_args, load),
    OPTION_HEADING("Prompts"),
    OPTION_STRING(NULL, "set", "LIST", AT(sets),
                  "sets by name: code, chat, needle, json, edit, prose (default: all of them)"),
    OPTION_STRING(NULL, "prompts", "FILE", AT(prompts),
                  "instead: a JSONL file with text, prompt, messages or ids on each line"),
    OPTION_INT(NULL, "samples", "N", AT(samples), 1, KK_PROMPTSET_MOST,
               "prompts of each set, at most (default: 16)"),
    OPTION_INT("n", "predict", "N", AT(predict), 1, 1 << 20,
               "most tokens after each (default: what the prompt says, else 128)"),
    OPTION_HEADING("Drafting"),
    OPTION_CHOICE("spec", "PROPOSER", AT(spec), "dflash ngram", NULL,
                  "who drafts tokens: dflash or ngram (default: dflash with a drafter, else "
                  "ngram)"),
    LOADER_DRAFT_MAX_OPTION(AT(draft_max)),
    OPTION_INT(NULL, "draft-ctx", "N", AT(draft_ctx), 1, 1 << 30,
               "tokens the drafter's full layers look back over (default: all)"),
    OPTION_CHOICE("embed-scale", "SCALE", AT(embed_scale), "1 once twice", NULL,
                  "compare the drafter with the embedding scaled once and scaled so"),
    SAMPLING_OPTIONS(accept_args, sampling, "0", "0", "1", "0"),
    OPTION_HEADING("Output"),
    DESTINATION_REPORT_OPTIONS(accept_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    OPTION_HEADING("Context"),
    LOADER_FORMAT_OPTION(AT(kv_format)),
    LOADER_DEVICE_OPTIONS(accept_args, load),
};

static const char every_set[] = "code,chat,needle,json,edit,prose";

bool eval_check_sets(const verb *v, const char *names, int *code) {
    for (const char *at = names; *at;) {
        const size_t len = strcspn(at, ",");
        bool known = false;
        for (const char *one = every_set; *one && !known;) {
            const size_t n = strcspn(one, ",");
            known = n == len && strncmp(one, at, n) == 0;
            one += n + (one[n] == ',');
        }
        if (!known) {
            *code = options_wrong(v, "there is no set '%.*s'; the sets are: %s", (int)len, at,
                                  every_set);
            return false;
        }
        at += len + (at[len] == ',');
    }
    if (*names) return true;
    *code = options_wrong(v, "--set is empty; the sets are: %s", every_set);
    return false;
}

static bool check(const accept_args *a, const kk_engine_opts *engine, int *code) {
    if (a->sets && a->prompts)
        *code = options_wrong(&eval_accept, "--set and --prompts exclude each other");
    else if (a->sets && !eval_check_sets(&eval_accept, a->sets, code))
        return false;
    else if (a->embed_scale && a->load.draft_embed_scale)
        *code =
            options_wrong(&eval_accept, "--embed-scale compares; leave out --draft-embed-scale");
    else if (!engine->drafter && a->embed_scale)
        *code =
            options_wrong(&eval_accept, "--embed-scale needs a drafter: name one with -md DRAFTER");
    else if (!engine->drafter && a->spec && strcmp(a->spec, "dflash") == 0)
        *code =
            options_wrong(&eval_accept, "--spec dflash needs a drafter: name one with -md DRAFTER");
    else if (a->embed_scale && a->spec && strcmp(a->spec, "ngram") == 0)
        *code =
            options_wrong(&eval_accept, "--embed-scale is the drafter's: --spec ngram has none");
    else
        return true;
    return false;
}

/* ---- while it runs, and afterwards ------------------------------------------------------- */

static bool on_prompt(void *user, const char *set, int32_t done, int32_t total) {
    const accept_args *a = user;
    if (!a->quiet && term_controls(stderr))
        fprintf(stderr, "\r\033[K%s: %d of %d prompts", set, done, total);
    fflush(stderr);
    return term_signal() == 0;
}

static void print_figures(const char *name, const char *scale, const kk_accept_figures *f) {
    const kk_spec_stats *t = &f->spec;
    printf("%-8s %-6s %7d %8lld %8.3f %8.2f  %-8s", name, scale, f->prompts, (long long)f->tokens,
           f->rate, f->length, f->different ? "no" : "yes");
    int last = KK_MAX_DRAFT;
    while (last > 0 && t->histogram[last] == 0) last--;
    for (int i = 0; i <= last; i++) printf(" %lld", (long long)t->histogram[i]);
    printf("\n");
}

static void print_table(const kk_accept_result *r) {
    const kk_model_info *m = &r->model;
    printf("model    %s %s, %d layers; %s\n", m->name, m->weight_type, m->layers,
           kk_spec_name(r->spec));
    printf("%-8s %-6s %7s %8s %8s %8s  %-8s %s\n", "set", "scale", "prompts", "tokens", "accepted",
           "length", "lossless", "rounds by tokens accepted");
    for (int32_t i = 0; i <= r->n_sets; i++) {
        const kk_accept_set *s = i < r->n_sets ? &r->set[i] : &r->all;
        for (int32_t arm = 0; arm < r->n_arms; arm++)
            print_figures(s->name, r->spec == KK_SPEC_DFLASH ? r->drafter[arm].embed_scale : "-",
                          &s->arm[arm]);
    }
}

static int measure(const accept_args *a, const kk_accept_opts *o, const char *command) {
    kk_accept_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_accept_run(o, &r, &err);
    if (!a->quiet && term_controls(stderr)) fputs("\r\033[K", stderr);
    if (st != KK_OK) {
        const int code = loader_failed(&a->load, &err);
        return err.code == KK_EINVAL ? EXIT_USAGE : code;
    }
    print_table(&r);
    fflush(stdout);
    const bool lossless = r.lossless;
    const bool written =
        !a->report.file || kk_accept_write(a->report.file, o, &r, command, &err) == KK_OK;
    kk_accept_release(&r);
    if (!written) return output_error(&err);
    if (lossless) return EXIT_DONE;
    return output_failed("drafting changed what was generated",
                         "This is a fault of the program: please report it with the command.");
}

static int run(int argc, char **argv) {
    accept_args a = {.samples = 16};
    loader_path path;
    char folder[4096];
    int code;
    if (!options_parse(&eval_accept, argc - 1, argv + 1, &a, NULL, &code)) return code;
    kk_accept_opts o = {.session = {.kv_format = loader_kv_format(a.kv_format),
                                    .draft_max = a.draft_max,
                                    .draft_ctx = a.draft_ctx},
                        .other_scale = a.embed_scale,
                        .names = a.prompts ? NULL
                                 : a.sets  ? a.sets
                                           : every_set,
                        .file = a.prompts,
                        .samples = a.samples,
                        .predict = a.predict,
                        .sampling = a.sampling,
                        .on_prompt = on_prompt,
                        .user = &a};
    sampling_draw_seed(&o.sampling.seed);
    if (!loader_options(&eval_accept, &a.load, &path, &o.engine, &code)) return code;
    if (!check(&a, &o.engine, &code)) return code;
    o.folder = loader_shipped("prompts", folder, sizeof folder) ? folder : NULL;
    o.session.spec = a.spec             ? loader_spec(a.spec)
                     : o.engine.drafter ? KK_SPEC_DFLASH
                                        : KK_SPEC_NGRAM;
    if (!destination_open_report(&a.report, &o.engine, &a.prompts, 1, &code)) return code;
    char *command = eval_command(argc, argv);
    code = measure(&a, &o, command);
    free(command);
    destination_close_report(&a.report);
    return code;
}

const verb eval_accept = {
    .name = "eval accept",
    .summary = "how much of what is drafted is right",
    .usage = "[-m MODEL] [-md DRAFTER] [options]",
    .about = "Continues prompts of several kinds of text plainly and with drafts of always the\n"
             "same length, and shows for each kind how many of the drafted tokens were accepted,\n"
             "the tokens of a round (what it accepted and one more), the rounds by how many they\n"
             "accepted, and whether tokens and logits were those of plain decoding: if they ever\n"
             "are not, it fails.",
    .examples = "  kakeya eval accept\n"
                "  kakeya eval accept --set code,needle --samples 50 --report accept.json\n"
                "  kakeya eval accept --spec ngram --set edit\n"
                "  kakeya eval accept --embed-scale twice --set code\n"
                "  kakeya eval accept --prompts mine.jsonl --temp 0.8 -s 7\n",
    .options = accept_options,
    .n_options = OPTION_COUNT(accept_options),
    .run = run,
};
