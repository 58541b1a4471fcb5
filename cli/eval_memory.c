/* eval_memory.c - `kakeya eval memory`: bytes of a session against its context. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/destination.h"
#include "cli/eval_accept.h"
#include "cli/eval_sweep.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "eval/tasks/footprint.h"

typedef struct {
    loader_args load;
    loader_cache_args cache;
    eval_texts_args texts;
    const char *projections, *tokens, *restore;
    destination_report report;
    bool fill, quality, quiet;
} memory_args;

#define AT(field) offsetof(memory_args, field)
static const option memory_options[] = {
    LOADER_MODEL_OPTIONS(memory_args, load),
    OPTION_HEADING("What is measured"),
    OPTION_STRING(NULL, "tokens", "LIST", AT(tokens),
                  "lengths of the context (default: 1024,4096,8192)"),
    OPTION_STRING(
        NULL, "projections", "LIST", AT(projections),
        "folders of projections to compare, with commas between (default: the one of -mp)"),
    OPTION_CHOICE("restore", "LAYERS", AT(restore), "all sliding full", NULL,
                  "which layers they restore (default: all)"),
    OPTION_INT(NULL, "sink", "N", AT(cache.sink), 0, 64,
               "rows kept of the start by window and restored (default: 4)"),
    OPTION_INT(NULL, "window", "N", AT(cache.window), 0, 1 << 30,
               "rows kept before the present chunk (default: 64)"),
    OPTION_INT(NULL, "chunk", "N", AT(cache.chunk), 1, 4096,
               "rows go so many at a time (default: 64)"),
    OPTION_INT(NULL, "draft-ctx", "N", AT(cache.draft_ctx), 1, 1 << 30,
               "measure also with the drafter's full layers looking back over so many tokens"),
    OPTION_FLAG(NULL, "fill", AT(fill),
                "take the pages of so many tokens and compute only the last one; always so with "
                "--synthetic"),
    OPTION_HEADING("Recall and KL beside the bytes"),
    OPTION_FLAG(NULL, "quality", AT(quality), "measure them, at every length"),
    EVAL_SAMPLES_OPTIONS(memory_args, texts),
    OPTION_HEADING("Output"),
    DESTINATION_REPORT_OPTIONS(memory_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(memory_args, load),
};

/* ---- what is measured -------------------------------------------------------------------- */

static bool read_tokens(const char *text, kk_footprint_opts *o, int *code) {
    int32_t *list;
    size_t n;
    const char *bad;
    if (!options_int_list(text ? text : "1024,4096,8192", 1, 1 << 30, &list, &n, &bad)) {
        *code = options_wrong(&eval_memory,
                              "--tokens takes lengths of 1 or more; '%.20s' is not "
                              "one",
                              bad);
        return false;
    }
    bool good = n > 0 && n <= KK_FOOTPRINT_LENGTHS;
    for (size_t i = 0; i < n && good; i++) {
        good = i == 0 || list[i] > list[i - 1];
        o->tokens[i] = list[i];
        o->n_lengths = (int32_t)i + 1;
    }
    if (!good)
        *code = options_wrong(&eval_memory,
                              "--tokens takes 1 to %d lengths, each longer than the "
                              "one before",
                              KK_FOOTPRINT_LENGTHS);
    free(list);
    return good;
}

/* Folders by --projections, or the one that the loader found. */
static bool read_projections(const memory_args *a, kk_footprint_opts *o, eval_names *names,
                             int *code) {
    if (!eval_split(a->projections, names) || names->n > KK_FOOTPRINT_PROJECTIONS) {
        *code =
            options_wrong(&eval_memory, "--projections takes 1 to %d folders with commas between",
                          KK_FOOTPRINT_PROJECTIONS);
        return false;
    }
    if (names->n && a->load.projection) {
        *code = options_wrong(&eval_memory, "-mp and --projections exclude each other");
        return false;
    }
    for (size_t i = 0; i < names->n; i++) o->projection[o->n_projections++] = names->name[i];
    if (!names->n && o->engine.projection) o->projection[o->n_projections++] = o->engine.projection;
    o->engine.projection = NULL;
    return true;
}

static kk_session_opts session_of(const memory_args *a) {
    kk_session_opts s = loader_session_opts(&a->cache);
    s.draft_ctx = 0;
    if (a->restore && strcmp(a->restore, "full") != 0) s.kv_sliding = KK_KEEP_RESTORED;
    if (a->restore && strcmp(a->restore, "sliding") != 0) s.kv_full = KK_KEEP_RESTORED;
    return s;
}

/* ---- the tables -------------------------------------------------------------------------- */

static const kk_mem_category kv_categories[] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL,
                                                KK_MEM_KV_LATENTS, KK_MEM_KV_DRAFTER};

static void print_row(const kk_footprint_result *r, const kk_footprint_row *w) {
    double total = 0;
    printf("%-34s %7d", r->policy[w->policy], w->tokens);
    for (size_t i = 0; i < OPTION_COUNT(kv_categories); i++) {
        total += (double)w->bytes[kv_categories[i]];
        printf(" %10s", term_bytes((double)w->bytes[kv_categories[i]]).text);
    }
    printf(" %10s %10s", term_bytes(total).text,
           term_bytes((double)w->bytes[KK_MEM_WORKSPACE]).text);
    if (w->recall >= 0) printf(" %7.2f %9.3g", w->recall, w->mean_kl);
    putchar('\n');
}

static void print_table(const kk_footprint_opts *o, const kk_footprint_result *r) {
    printf("%-34s %7s %10s %10s %10s %10s %10s %10s%s\n", "policy", "tokens", "sliding", "full",
           "latents", "drafter", "K/V in all", "workspace", o->quality ? "  recall   mean KL" : "");
    for (int32_t l = 0; l < o->n_lengths; l++)
        for (int32_t i = 0; i < r->n_rows; i++)
            if (r->row[i].tokens == o->tokens[l]) print_row(r, &r->row[i]);
}

static void print_growth(const kk_footprint_opts *o, const kk_footprint_result *r) {
    if (r->n_growths == 0) return;
    printf("\nGrowth from %d to %d tokens, bytes a token:\n", o->tokens[0],
           o->tokens[o->n_lengths - 1]);
    printf("%-34s %-28s %9s %7s  %s\n", "policy", "of", "bytes", "fewer", "than");
    for (int32_t i = 0; i < r->n_growths; i++) {
        const kk_footprint_growth *g = &r->growth[i];
        printf("%-34s %-28s %9.1f", r->policy[g->policy],
               g->drafter ? "kv.full + latents + drafter" : "kv.full + kv.latents",
               g->bytes_per_token);
        if (g->against >= 0) printf(" %6.2fx  %s", g->ratio, r->policy[g->against]);
        putchar('\n');
    }
}

/* ---- the kind ---------------------------------------------------------------------------- */

static bool tell(void *user, int32_t done, int32_t total) {
    const memory_args *a = user;
    eval_progress(a->quiet, "engines", done, total);
    return term_signal() == 0;
}

static int measure(const memory_args *a, const kk_footprint_opts *o) {
    kk_footprint_result r;
    kk_err err;
    term_on_signal(TERM_ASK);
    const kk_status st = kk_footprint_run(o, &r, &err);
    eval_progress(a->quiet, "", 0, 0);
    if (st != KK_OK)
        return err.code == KK_ECONTEXT || err.code == KK_EINVAL ? output_failed(err.msg, NULL)
                                                                : loader_failed(&a->load, &err);
    print_table(o, &r);
    print_growth(o, &r);
    fflush(stdout);
    const int code = !a->report.file || kk_footprint_write(a->report.file, &r, &err) == KK_OK
                         ? EXIT_DONE
                         : output_error(&err);
    kk_footprint_release(&r);
    return code;
}

static bool read_all(memory_args *a, kk_footprint_opts *o, loader_path *path, eval_names *names,
                     int *code) {
    a->load.restores = a->projections == NULL;
    a->load.keeps_few = true;
    if (!read_tokens(a->tokens, o, code)) return false;
    if (a->quality && (a->fill || a->load.synthetic)) {
        *code = options_wrong(&eval_memory, "--quality needs rows that are computed: not with %s",
                              a->fill ? "--fill" : "--synthetic");
        return false;
    }
    if (!loader_options(&eval_memory, &a->load, path, &o->engine, code)) return false;
    return read_projections(a, o, names, code);
}

/* Texts and projections are read. */
static bool open_report(destination_report *r, const kk_footprint_opts *o, const eval_names *names,
                        int *code) {
    const char *read[2 * EVAL_NAMES];
    size_t n = 0;
    for (size_t i = 0; i < o->source.n_paths; i++) read[n++] = o->source.paths[i];
    for (size_t i = 0; i < names->n; i++) read[n++] = names->name[i];
    return destination_open_report(r, &o->engine, read, n, code);
}

static int run(int argc, char **argv) {
    memory_args a = {.cache = LOADER_CACHE_DEFAULTS, .texts = EVAL_TEXTS_DEFAULTS};
    kk_footprint_opts o = {.tell = tell, .user = &a};
    kk_ask_draw unused;
    loader_path path;
    eval_names names = {.n = 0};
    eval_files files;
    int code;
    if (!options_parse(&eval_memory, argc - 1, argv + 1, &a, NULL, &code)) return code;
    char *command = eval_command(argc, argv);
    if (read_all(&a, &o, &path, &names, &code) &&
        eval_read_texts(&eval_memory, &a.texts, argc, argv, &unused, &o.source, &files, &code) &&
        open_report(&a.report, &o, &names, &code)) {
        o.session = session_of(&a);
        o.draft_ctx = a.cache.draft_ctx;
        o.fill = a.fill;
        o.quality = a.quality;
        o.samples = a.texts.samples;
        o.seed = a.texts.seed;
        o.predict = a.texts.predict;
        o.command = command;
        code = measure(&a, &o);
    }
    destination_close_report(&a.report);
    free(command);
    eval_names_free(&names);
    return code;
}

const verb eval_memory = {
    .name = "eval memory",
    .summary = "bytes of a session against its context, for every way to keep rows",
    .usage = "[-m MODEL] [-mp DIR | --projections LIST] [options]",
    .about = "Makes sessions of several lengths that keep their K/V rows exactly (in bf16, q8 and\n"
             "q4), drop them (window) or restore them (by each projection, with latents in bf16\n"
             "and q8), and shows the allocator's account of each, and how fast it grows.  With\n"
             "--quality, needles found and the KL of next-token distributions stand beside it.",
    .examples = "  kakeya eval memory -mp projection --report memory.json\n"
                "  kakeya eval memory --projections r64,r128,r256 --quality --draft-ctx 512\n"
                "  kakeya eval memory --synthetic 26b-a4b:q4_0 -mp synthetic:256 \\\n"
                "      --tokens 1024,8192,32768,131072\n",
    .options = memory_options,
    .n_options = OPTION_COUNT(memory_options),
    .run = run,
};
