/* cmd_bench.c - `kakeya bench`: speed on this machine, as a table and as a JSON report.  What the
 * arms of a comparison look like in the table is in bench_table.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_table.h"
#include "cli/destination.h"
#include "cli/eval_accept.h"
#include "cli/flags.h"
#include "cli/loader.h"
#include "cli/output.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "eval/measure/bench.h"
#include "eval/texts/promptset.h"

typedef struct {
    loader_args load;
    loader_cache_args keep; /* of the policies */
    const char *arms, *policies, *sets, *prompts, *trace, *rows, *kv_format, *ctx;
    destination_report report;
    int32_t predict, prefill, repeat, samples, sessions, draft_max, draft_ctx;
    float read_s;
    bool draft_fixed, attention, sampling, quiet;
} bench_args;

#define AT(field) offsetof(bench_args, field)
static const option bench_options[] = {
    LOADER_MODEL_OPTIONS(bench_args, load),
    OPTION_HEADING("What is timed"),
    OPTION_STRING(NULL, "arms", "LIST", AT(arms),
                  "ways to decode, compared on the same prompts: plain, dflash, ngram, auto "
                  "(default: plain alone)"),
    {.kind = OPT_STRING,
     .brief = "c",
     .name = "ctx",
     .alias = "ctx-size",
     .arg = "LIST",
     .offset = AT(ctx),
     .help = "tokens in the context when decoding begins; decoding is timed at each of several, in "
             "ascending order, all else at the first (default: 64; 1024 with --policies)"},
    OPTION_INT("n", "predict", "N", AT(predict), 1, 1 << 20,
               "tokens decoded in each repeat (default: 32; of arms on texts: what the prompt "
               "says)"),
    OPTION_INT(NULL, "prefill", "N", AT(prefill), 0, 1 << 20,
               "tokens of the timed prefill; 0: none (default: 512)"),
    OPTION_STRING(NULL, "rows", "LIST", AT(rows),
                  "rows of a forward to compare; none: leave it out (default: 1,2,4,8,16)"),
    OPTION_FLAG(NULL, "attention", AT(attention),
                "compare attention for one row over the K/V formats at context --ctx"),
    OPTION_FLAG(NULL, "sampling", AT(sampling),
                "compare decoding with temperature, filters, penalties and log-probabilities with "
                "greedy decoding at --ctx"),
    OPTION_INT(
        NULL, "sessions", "N", AT(sessions), 2, KK_BENCH_MOST_SESSIONS,
        "sessions that decode at --ctx in threads of their own, against the same one by one; "
        "and a prompt that arrives beside one (default: none)"),
    OPTION_INT(NULL, "repeat", "N", AT(repeat), 1, 64, "repeats; medians are shown (default: 5)"),
    OPTION_REAL("read-time", "SECONDS", AT(read_s), 0.01, 60,
                "how long memory is read each time that its bandwidth is measured (default: 1)"),
    LOADER_FORMAT_OPTION(AT(kv_format)),
    OPTION_HEADING("What layers keep"),
    {.kind = OPT_STRING,
     .name = "policies",
     .arg = "LIST",
     .alone = "all",
     .offset = AT(policies),
     .help = "compare decoding at --ctx by what layers keep of their rows: exact, window, "
             "restored-sliding, restored-full, restored (default: all that the projection can "
             "do)"},
    LOADER_ROWS_OPTIONS(bench_args, keep),
    OPTION_HEADING("Arms"),
    OPTION_STRING(NULL, "set", "LIST", AT(sets),
                  "prompts of arms and text of policies by name: code, chat, needle, json, edit, "
                  "prose (default: code; random ids for models without a tokenizer)"),
    OPTION_STRING(NULL, "prompts", "FILE", AT(prompts),
                  "instead: a JSONL file with text, prompt, messages or ids on each line"),
    OPTION_INT(NULL, "samples", "N", AT(samples), 1, KK_PROMPTSET_MOST - 1,
               "prompts of each set that are timed; one more warms up (default: 8; 3 of random "
               "ids)"),
    LOADER_DRAFT_MAX_OPTION(AT(draft_max)),
    OPTION_FLAG(NULL, "draft-fixed", AT(draft_fixed),
                "always draft --draft-max tokens, whether it pays or not"),
    OPTION_INT(NULL, "draft-ctx", "N", AT(draft_ctx), 1, 1 << 30,
               "tokens the drafter's full layers look back over (default: all)"),
    OPTION_STRING(NULL, "accept-trace", "geom:P:SEED", AT(trace),
                  "of dflash on random weights: each drafted token is right with chance P, given "
                  "that those before it are"),
    OPTION_HEADING("Output"),
    DESTINATION_REPORT_OPTIONS(bench_args, report),
    OPTION_FLAG("q", "quiet", AT(quiet), "no progress"),
    LOADER_DEVICE_OPTIONS(bench_args, load),
};

/* Says what is going on: one line that changes, on a terminal. */
static bool on_step(void *user, const char *what) {
    const bench_args *a = user;
    if (what && !a->quiet && term_controls(stderr)) fprintf(stderr, "\r\033[K%s...", what);
    fflush(stderr);
    return term_signal() == 0;
}

static void end_steps(const bench_args *a) {
    if (!a->quiet && term_controls(stderr)) fprintf(stderr, "\r\033[K");
}

static bool read_contexts(const bench_args *a, kk_bench_opts *o, int *code) {
    int32_t *list;
    size_t n;
    const char *bad;
    o->ctx = a->policies ? 1024 : 64;
    if (!a->ctx) return true;
    if (!options_int_list(a->ctx, 1, 1 << 24, &list, &n, &bad)) {
        *code = options_wrong(&verb_bench, "--ctx takes lengths from 1 to %d; '%.20s' is not one",
                              1 << 24, bad);
        return false;
    }
    bool ascends = n > 0 && n <= KK_BENCH_CONTEXTS;
    for (size_t i = 1; ascends && i < n; i++) ascends = list[i] > list[i - 1];
    for (size_t i = 0; ascends && i < n; i++) *(i ? &o->longer[o->n_longer++] : &o->ctx) = list[i];
    free(list);
    if (!ascends)
        *code = options_wrong(&verb_bench, "--ctx takes up to %d lengths in ascending order",
                              KK_BENCH_CONTEXTS);
    return ascends;
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

static bool arm_named(const char *name, size_t len, kk_spec *arm) {
    static const struct {
        const char *name;
        kk_spec arm;
    } arms[] = {{"plain", KK_SPEC_NONE},
                {"dflash", KK_SPEC_DFLASH},
                {"ngram", KK_SPEC_NGRAM},
                {"auto", KK_SPEC_AUTO}};
    for (size_t i = 0; i < OPTION_COUNT(arms); i++)
        if (strlen(arms[i].name) == len && strncmp(name, arms[i].name, len) == 0) {
            *arm = arms[i].arm;
            return true;
        }
    return false;
}

/* Plain decoding is always there, and first: the others are held against it. */
static bool read_arms(const bench_args *a, kk_bench_opts *o, int *code) {
    o->arms[o->n_arms++] = KK_SPEC_NONE;
    for (const char *at = a->arms ? a->arms : "plain"; *at;) {
        const size_t len = strcspn(at, ",");
        kk_spec arm;
        if (!arm_named(at, len, &arm)) {
            *code = options_wrong(&verb_bench,
                                  "--arms takes plain, dflash, ngram and auto; '%.*s' is none of "
                                  "them",
                                  (int)len, at);
            return false;
        }
        bool there = false;
        for (int32_t i = 0; i < o->n_arms; i++) there |= o->arms[i] == arm;
        if (!there) o->arms[o->n_arms++] = arm;
        at += len + (at[len] == ',');
    }
    /* Plain decoding alone is measured on random tokens, unless prompts are given for it. */
    if (o->n_arms == 1 && (a->policies || (!a->sets && !a->prompts))) o->n_arms = 0;
    return true;
}

static bool has_arm(const kk_bench_opts *o, kk_spec arm) {
    for (int32_t i = 0; i < o->n_arms; i++)
        if (o->arms[i] == arm) return true;
    return false;
}

static bool add_policy(kk_bench_opts *o, const char *name, size_t len) {
    for (kk_bench_way w = 0; w < KK_BENCH_WAYS; w++) {
        const char *is = kk_bench_way_name(w);
        if (strlen(is) != len || strncmp(is, name, len) != 0) continue;
        o->ways[w] = true;
        return true;
    }
    return false;
}

static bool read_policies(bench_args *a, kk_bench_opts *o, int *code) {
    if (!a->policies) return true;
    o->ways_possible = strcmp(a->policies, "all") == 0;
    for (int w = 0; w < KK_BENCH_WAYS; w++) o->ways[w] = o->ways_possible;
    for (const char *at = o->ways_possible ? "" : a->policies; *at;) {
        const size_t len = strcspn(at, ",");
        if (!add_policy(o, at, len)) {
            *code = options_wrong(&verb_bench,
                                  "--policies takes exact, window, restored-sliding, "
                                  "restored-full, restored or all; '%.*s' is none of them",
                                  len < 40 ? (int)len : 40, at);
            return false;
        }
        at += len + (at[len] == ',');
    }
    a->load.restores = o->ways[KK_BENCH_RESTORED] || o->ways[KK_BENCH_RESTORED_SLIDING] ||
                       o->ways[KK_BENCH_RESTORED_FULL];
    return true;
}

/* Random weights get a drafter of random weights where one is timed. */
static bool open_options(bench_args *a, kk_bench_opts *o, loader_path *path, int *code) {
    const bool drafts = has_arm(o, KK_SPEC_DFLASH) || has_arm(o, KK_SPEC_AUTO);
    if (drafts && a->load.synthetic && !a->load.drafter) a->load.drafter = "synthetic";
    if (!loader_options(&verb_bench, &a->load, path, &o->engine, code)) return false;
    if (!drafts || o->engine.drafter) return true;
    *code = options_wrong(
        &verb_bench, "the dflash arm needs a drafter, and so does auto: name one with -md DRAFTER");
    return false;
}

static bool read_trace(const bench_args *a, kk_bench_opts *o, int *code) {
    kk_err err;
    if (!a->trace) return true;
    const bool drafts =
        has_arm(o, KK_SPEC_DFLASH) || has_arm(o, KK_SPEC_AUTO) || (a->policies && a->load.drafter);
    if (!drafts || !a->load.synthetic)
        *code = options_wrong(&verb_bench, "--accept-trace is for the dflash arm on --synthetic "
                                           "weights");
    else if (kk_trace_parse(&o->trace, a->trace, &err) != KK_OK)
        *code = options_wrong(&verb_bench, "%s", flags_for(err.msg).text);
    else
        return true;
    return false;
}

static bool read_prompts(const bench_args *a, kk_bench_opts *o, char *folder, size_t cap,
                         int *code) {
    const bool text = !o->engine.synthetic && (!a->prompts || a->sets);
    if (a->sets && a->prompts) {
        *code = options_wrong(&verb_bench, "--set and --prompts exclude each other");
        return false;
    }
    if (a->sets && o->engine.synthetic) {
        *code = options_wrong(&verb_bench, "--set is text, and random weights have no tokenizer");
        return false;
    }
    if (a->sets && !eval_check_sets(&verb_bench, a->sets, code)) return false;
    o->prompts = a->prompts;
    o->folder = loader_shipped("prompts", folder, cap) ? folder : NULL;
    const bool wanted = text && (o->n_arms || a->policies);
    o->sets = !wanted ? NULL : a->sets ? a->sets : o->folder || o->n_arms ? "code" : "needle";
    const bool random = !o->sets && !o->prompts;
    o->samples = a->samples ? a->samples : random ? 3 : 8;
    o->arm_predict = random ? o->predict + 1 : a->predict; /* the first takes no round */
    return true;
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

static void print_decode(const kk_bench_opts *o, const kk_bench_result *r,
                         const kk_bench_decode *d) {
    const double gb = (double)r->token_bytes * d->tok_s.median / 1e9;
    printf("decode        %.2f tok/s  (%.2f to %.2f in %d repeats of %d tokens at context %d)\n",
           d->tok_s.median, d->tok_s.min, d->tok_s.max, d->tok_s.n, o->predict, d->ctx);
    printf("              %.1f GB/s of weights, %.0f %% of the bandwidth; %.*f ms per round\n", gb,
           r->bandwidth > 0 ? 100e9 * gb / r->bandwidth : 0, r->device_total ? 3 : 1, d->round_ms);
    bench_print_rounds(&d->rounds);
    if (r->device_total)
        printf("              %.2f waits per token that left the device idle, %.2f rounds enqueued "
               "ahead\n",
               d->syncs, d->ahead);
}

/* What rows cost on a device that reads each expert once. */
static void print_forwards(const kk_bench_result *r) {
    for (int32_t i = 0; r->device_total && i < r->n_whole; i++) {
        const kk_bench_pass *p = &r->whole[i];
        const double s = p->seconds.median;
        printf("%-14s%.2f ms for %d row%s", i ? "" : "forward", 1e3 * s, p->rows,
               p->rows > 1 ? "s" : "");
        if (p->experts > 0)
            printf(", %.1f distinct experts a layer, %.1f GB, %.0f GB/s, %.0f %% of the bandwidth",
                   p->experts, (double)p->bytes / 1e9, (double)p->bytes / s / 1e9,
                   r->bandwidth > 0 ? 100 * (double)p->bytes / s / r->bandwidth : 0);
        printf("\n");
    }
}

/* Weights of experts that are larger than the GPU's memory, in decoding at the first context. */
static void print_offload(const kk_bench_result *r) {
    const kk_offload *f = &r->decode.offload;
    const double bytes = (double)(f->gpu_bytes + f->host_bytes), tokens = (double)r->decode.tokens;
    if (!f->on_host) return;
    printf("experts       %s on the GPU, %s in host memory; %lld pieces swapped, %lld evicted\n",
           term_bytes((double)f->on_gpu).text, term_bytes((double)f->on_host).text,
           (long long)f->swaps, (long long)f->evicted);
    if (bytes > 0 && tokens > 0)
        printf(
            "              %.1f %% of what was read of them was on the GPU, %lld of %lld matrices "
            "whole; %s a token from the host\n",
            100 * (double)f->gpu_bytes / bytes, (long long)f->hits,
            (long long)(f->hits + f->misses), term_bytes((double)f->host_bytes / tokens).text);
}

static void print_device(const kk_bench_result *r) {
    if (!r->device_total) return;
    printf("              %s of the device's %s over the weights, at most\n",
           term_bytes((double)r->device_over_weights).text,
           term_bytes((double)r->device_total).text);
    printf(
        "fused         %lld of %lld layers, %lld of %lld heads\n", (long long)r->fused.layers_fused,
        (long long)(r->fused.layers_fused + r->fused.layers_by_ops),
        (long long)r->fused.heads_fused, (long long)(r->fused.heads_fused + r->fused.heads_by_ops));
    printf("load          %.2f s, of which %.2f s to copy weights: %.1f GB/s\n", r->load_s,
           r->copy_s, r->copy_s > 0 ? (double)r->model.weight_bytes / r->copy_s / 1e9 : 0);
}

static void print_table(const kk_bench_opts *o, const kk_bench_result *r) {
    const kk_model_info *m = &r->model;
    printf("model         %s %s, %d layers%s, %s, %s read per token\n", m->name, m->weight_type,
           m->layers, o->engine.synthetic ? " of random weights" : "",
           term_bytes((double)m->weight_bytes).text, term_bytes((double)m->token_bytes).text);
    printf("machine       %s, %s, %d threads\n", r->machine.name, r->device.isa, r->device.threads);
    printf("bandwidth     %.1f GB/s read before, %.1f after\n", r->bandwidth_before / 1e9,
           r->bandwidth_after / 1e9);
    print_decode(o, r, &r->decode);
    printf("              %.0f %% of %.1f GB/s, at which a buffer of %s is read\n",
           100 * r->floor_share, r->floor_bytes_s / 1e9, term_bytes((double)r->token_bytes).text);
    for (int32_t i = 0; i < o->n_longer; i++) print_decode(o, r, &r->longer[i]);
    if (r->prefill_tok_s.n)
        printf("prefill       %.1f tok/s  (%.1f to %.1f in %d repeats of %d tokens)\n",
               r->prefill_tok_s.median, r->prefill_tok_s.min, r->prefill_tok_s.max,
               r->prefill_tok_s.n, o->prefill);
    print_passes("rows, model", r->whole, r->n_whole, r->token_bytes);
    print_passes("rows, dense", r->dense, r->n_dense, r->dense_bytes);
    print_forwards(r);
    bench_print_sets(o, r);
    bench_print_attention(o, r);
    bench_print_policies(o, r);
    bench_print_sessions(o, r);
    bench_print_sampling(o, r);
    print_memory(r);
    print_device(r);
    print_offload(r);
}

/* An arm that does not give the tokens of plain decoding is a failure, whatever its speed. */
static int judge(const kk_bench_opts *o, const kk_bench_result *r) {
    int32_t different = 0;
    for (int32_t i = 0; i < o->n_arms; i++) different += r->all.arm[i].different;
    for (int32_t i = 0; i < r->n_policies; i++) different += r->policy[i].dflash.different;
    if (r->sessions.n && !kk_bench_sessions_same(&r->sessions))
        return output_failed("sharing forwards changed what was generated",
                             "This is a fault of the program: please report it with the command.");
    if (different == 0) return EXIT_DONE;
    return output_failed("drafting changed what was generated",
                         "This is a fault of the program: please report it with the command.");
}

static int measure(const bench_args *a, const kk_bench_opts *o, const char *command) {
    kk_bench_result *r = calloc(1, sizeof *r);
    kk_err err;
    if (!r) return output_failed("out of memory", NULL);
    term_on_signal(TERM_ASK);
    kk_status st = kk_bench_run(o, r, &err);
    end_steps(a);
    if (st == KK_OK) print_table(o, r);
    int code = st == KK_OK ? judge(o, r) : loader_failed(&a->load, &err);
    if (st == KK_OK && a->report.file &&
        kk_bench_write(a->report.file, o, r, command, &err) != KK_OK)
        code = output_error(&err);
    kk_bench_release(r);
    free(r);
    return code;
}

static int run(int argc, char **argv) {
    bench_args a = {.prefill = 512, .repeat = 5, .keep = LOADER_CACHE_DEFAULTS};
    loader_path path;
    char folder[4096];
    int code;
    if (!options_parse(&verb_bench, argc, argv, &a, NULL, &code)) return code;
    kk_bench_opts o = {.predict = a.predict ? a.predict : 32,
                       .prefill = a.prefill,
                       .repeat = a.repeat,
                       .read_s = (double)a.read_s,
                       .kv_format = loader_kv_format(a.kv_format),
                       .draft_max = a.draft_max,
                       .draft_ctx = a.draft_ctx,
                       .draft_fixed = a.draft_fixed,
                       .attention = a.attention,
                       .sessions = a.sessions,
                       .sampling = a.sampling,
                       .keep = loader_session_opts(&a.keep),
                       .on_step = on_step,
                       .user = &a};
    if (!read_contexts(&a, &o, &code)) return code;
    if (!read_arms(&a, &o, &code) || !read_rows(&a, &o, &code)) return code;
    if (!read_policies(&a, &o, &code)) return code;
    if (!read_trace(&a, &o, &code) || !open_options(&a, &o, &path, &code)) return code;
    if (!read_prompts(&a, &o, folder, sizeof folder, &code)) return code;
    if (a.sessions > KK_BENCH_LOGITS) o.engine.max_logits = a.sessions; /* a row for each */
    if (!destination_open_report(&a.report, &o.engine, &a.prompts, 1, &code)) return code;
    char *command = output_command("kakeya bench", argc, argv);
    code = measure(&a, &o, command);
    free(command);
    destination_close_report(&a.report);
    return code;
}

const verb verb_bench = {
    .name = "bench",
    .summary = "measure speed beside this machine's bandwidth, and what drafting gains",
    .usage = "[-m MODEL | --synthetic SPEC] [options]",
    .about =
        "Measures how fast a model decodes and prefills, how much of the memory bandwidth\n"
        "(measured in the same run) that is, and what more rows in a forward cost: of the\n"
        "whole model, and of dense q4_0 matrices alone.  --synthetic needs no weights.\n\n"
        "--arms compares ways to decode on the same prompts, in turns, warmed up on others:\n"
        "tokens per second and per round, where the time went, and what a table of measured\n"
        "costs predicts.  Every arm must give the tokens and logits of plain decoding.\n\n"
        "--policies compares what layers keep of their rows, in turns at the same length of\n"
        "context: time of a token, rows that were rebuilt for it, keys that were read, memory,\n"
        "and with a drafter what drafting gains where rows are rebuilt once for a round.\n\n"
        "--sessions compares sessions that decode together, each in a thread of its own, with\n"
        "the same one after the other, and times the tokens of a session while a prompt of\n"
        "4,096 tokens is read beside it.  Everybody must get the logits they get alone.",
    .examples = "  kakeya bench --arms plain,dflash,ngram --set code,needle,json,edit,prose\n"
                "  kakeya bench --arms plain,dflash --draft-max 4 --draft-fixed --set code\n"
                "  kakeya bench --synthetic 26b-a4b:q4_0:12 --arms plain,dflash \\\n"
                "      --accept-trace geom:0.744:1 --prefill 0 --rows none --report bench.json\n"
                "  kakeya bench --synthetic 26b-a4b:q4_0 --ctx 4096 --attention\n"
                "  kakeya bench --policies --ctx 3000 -mp projection --prefill 0 --rows none\n"
                "  kakeya bench --synthetic 26b-a4b:q4_0:12 -n 64 --report bench.json\n"
                "  kakeya bench --sessions 8 --ctx 64 --prefill 0 --rows none\n"
                "  kakeya bench -m gemma-4-26b-a4b-q4_0.gguf --ctx 4096 --rows none\n"
                "  kakeya bench --device cuda --synthetic 26b-a4b:bf16 -mp synthetic:512 \\\n"
                "      --policies exact,restored --ctx 32000 --prefill 0 --rows none\n"
                "  kakeya bench --device cuda --synthetic 26b-a4b:bf16 --ctx 1238,3238 \\\n"
                "      --prefill 3238 --rows 1,4,8,16\n",
    .options = bench_options,
    .n_options = OPTION_COUNT(bench_options),
    .run = run,
};
