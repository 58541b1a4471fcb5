/* cmd_bench.c - `kakeya bench`: speed on this machine, as a table and as a JSON report. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "eval/bench.h"

typedef struct {
    loader_args load;
    const char *arms, *rows, *report, *kv_format;
    int32_t ctx, predict, prefill, repeat;
    bool quiet;
} bench_args;

#define AT(field) offsetof(bench_args, field)
static const option bench_options[] = {
    LOADER_MODEL_OPTIONS(bench_args, load),
    OPTION_HEADING("What is timed"),
    OPTION_STRING(NULL, "arms", "LIST", AT(arms), "ways to decode: plain"),
    {.kind = OPT_INT,
     .brief = "c",
     .name = "ctx",
     .alias = "ctx-size",
     .arg = "N",
     .offset = AT(ctx),
     .min = 1,
     .max = 1 << 24,
     .help = "tokens in the context when decoding begins (default: 64)"},
    OPTION_INT("n", "predict", "N", AT(predict), 1, 1 << 20,
               "tokens decoded in each repeat (default: 32)"),
    OPTION_INT(NULL, "prefill", "N", AT(prefill), 0, 1 << 20,
               "tokens of the timed prefill; 0: none (default: 512)"),
    OPTION_STRING(NULL, "rows", "LIST", AT(rows),
                  "rows of a forward to compare; none: leave it out (default: 1,2,4,8,16)"),
    OPTION_INT(NULL, "repeat", "N", AT(repeat), 1, 64, "repeats; medians are shown (default: 5)"),
    OPTION_CHOICE("kv-format", "TYPE", AT(kv_format), "bf16 f32", "q8 q4 d4 e8",
                  "how K/V rows are stored: bf16 (default) or f32"),
    OPTION_HEADING("Output"),
    OPTION_STRING(NULL, "report", "FILE", AT(report), "write a JSON report"),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(bench_args, load),
};

/* Says what is going on: one line that changes on a terminal, lines in a log. */
static bool on_step(void *user, const char *what) {
    const bench_args *a = user;
    if (what && !a->quiet)
        fprintf(stderr, term_controls(stderr) ? "\r\033[K%s..." : "%s...\n", what);
    fflush(stderr);
    return term_signal() == 0;
}

static void end_steps(const bench_args *a) {
    if (!a->quiet && term_controls(stderr)) fprintf(stderr, "\r\033[K");
}

static bool read_rows(const bench_args *a, kk_bench_opts *o, int *code) {
    if (a->rows && strcmp(a->rows, "none") == 0) return true;
    int32_t *list;
    size_t n;
    const char *bad;
    if (!options_int_list(a->rows ? a->rows : "1,2,4,8,16", 1, 128, &list, &n, &bad)) {
        *code = options_wrong(&verb_bench, "--rows takes counts from 1 to 128; '%.20s' is not one",
                              bad);
        return false;
    }
    if (n == 0 || n > KK_BENCH_ROWS || list[0] != 1) {
        free(list);
        *code = options_wrong(&verb_bench, "--rows takes up to %d counts, 1 first, or none",
                              KK_BENCH_ROWS);
        return false;
    }
    memcpy(o->rows, list, n * sizeof *list);
    o->n_rows = (int32_t)n;
    free(list);
    return true;
}

static bool check_arms(const char *arms, int *code) {
    if (!arms || strcmp(arms, "plain") == 0) return true;
    *code = options_wrong(&verb_bench, "--arms %s: only plain is part of this build", arms);
    return false;
}

/* ---- the table --------------------------------------------------------------------------- */

static void print_passes(const char *label, const kk_bench_pass *p, int32_t n, int64_t bytes) {
    if (n == 0) return;
    const double one = p[0].seconds.median;
    printf("%-12s", label);
    for (int32_t i = 0; i < n; i++) printf("  %d: %.2fx", p[i].rows, p[i].ratio);
    printf("   (1 row: %.1f ms, %.1f GB/s)\n", 1e3 * one, (double)bytes / one / 1e9);
}

static void print_memory(const kk_bench_result *r) {
    printf("memory      ");
    for (int c = 0; c < KK_MEM_CATEGORIES; c++)
        if (r->bytes[c])
            printf("  %s %s", kk_mem_category_name((kk_mem_category)c),
                   term_bytes((double)r->bytes[c]).text);
    printf("\n");
    if (r->resident_over_weights >= 0)
        printf("              %s resident beside the weights\n",
               term_bytes((double)r->resident_over_weights).text);
}

static void print_table(const kk_bench_opts *o, const kk_bench_result *r) {
    const kk_model_info *m = &r->model;
    printf("model         %s %s, %d layers%s, %s, %s read per token\n", m->name, m->weight_type,
           m->layers, o->engine.synthetic ? " of random weights" : "",
           term_bytes((double)m->weight_bytes).text, term_bytes((double)m->token_bytes).text);
    printf("machine       %s, %s, %d threads\n", r->machine.name, r->device.isa, r->device.threads);
    printf("bandwidth     %.1f GB/s read before, %.1f after\n", r->bandwidth_before / 1e9,
           r->bandwidth_after / 1e9);
    printf("decode        %.2f tok/s  (%.2f to %.2f in %d repeats of %d tokens at context %d)\n",
           r->decode_tok_s.median, r->decode_tok_s.min, r->decode_tok_s.max, r->decode_tok_s.n,
           o->predict, o->ctx);
    printf("              %.1f GB/s of weights, %.0f %% of the bandwidth; %.1f ms per round\n",
           r->decode_bytes_s / 1e9, 100 * r->decode_share, r->round_ms);
    if (r->prefill_tok_s.n)
        printf("prefill       %.1f tok/s  (%.1f to %.1f in %d repeats of %d tokens)\n",
               r->prefill_tok_s.median, r->prefill_tok_s.min, r->prefill_tok_s.max,
               r->prefill_tok_s.n, o->prefill);
    print_passes("rows, model", r->whole, r->n_whole, m->token_bytes);
    print_passes("rows, dense", r->dense, r->n_dense, r->dense_bytes);
    print_memory(r);
}

static int run(int argc, char **argv) {
    bench_args a = {.ctx = 64, .predict = 32, .prefill = 512, .repeat = 5};
    loader_path path;
    int code;
    if (!options_parse(&verb_bench, argc, argv, &a, NULL, &code)) return code;
    kk_bench_opts o = {.ctx = a.ctx,
                       .predict = a.predict,
                       .prefill = a.prefill,
                       .repeat = a.repeat,
                       .on_step = on_step,
                       .user = &a};
    if (!check_arms(a.arms, &code) || !read_rows(&a, &o, &code)) return code;
    if (!loader_options(&verb_bench, &a.load, &path, &o.engine, &code)) return code;
    o.kv_format = a.kv_format && strcmp(a.kv_format, "f32") == 0 ? KK_KV_F32 : KK_KV_BF16;

    term_on_signal(TERM_ASK);
    kk_bench_result r;
    kk_err err;
    kk_status st = kk_bench_run(&o, &r, &err);
    end_steps(&a);
    if (st != KK_OK) return loader_failed(&a.load, &err);
    print_table(&o, &r);
    if (a.report && kk_bench_write(a.report, &o, &r, &err) != KK_OK) return output_error(&err);
    return EXIT_DONE;
}

const verb verb_bench = {
    .name = "bench",
    .summary = "measure decode and prefill speed beside this machine's bandwidth",
    .usage = "[-m MODEL | --synthetic SPEC] [options]",
    .about = "Measures how fast a model decodes and prefills, how much of the memory bandwidth\n"
             "(measured in the same run) that is, and what more rows in a forward cost: of the\n"
             "whole model, and of dense q4_0 matrices alone.  --synthetic needs no weights.",
    .examples = "  kakeya bench --synthetic 26b-a4b:q4_0\n"
                "  kakeya bench --synthetic 26b-a4b:q4_0:12 -n 64 --report bench.json\n"
                "  kakeya bench -m gemma-4-26b-a4b-q4_0.gguf --ctx 4096 --rows none\n",
    .options = bench_options,
    .n_options = OPTION_COUNT(bench_options),
    .run = run,
};
