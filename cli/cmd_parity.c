/* cmd_parity.c - `kakeya parity`: the engine beside dumped reference numbers. */
#include <stdio.h>
#include <string.h>

#include "cli/loader.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "eval/tasks/parity.h"
#include "eval/tasks/parity_devices.h"

typedef struct {
    float tol, tol_hidden, tol_rms;
    int32_t threads;
    const char *isa, *device, *against;
    bool json;
} parity_args;

#define AT(field) offsetof(parity_args, field)
static const option parity_options[] = {
    OPTION_HEADING("Options"),
    OPTION_REAL("tol", "X", AT(tol), 1e-9, 1e9, "largest logit difference allowed (default: 2e-4)"),
    OPTION_REAL("tol-hidden", "X", AT(tol_hidden), 1e-9, 1e9,
                "largest hidden-state difference allowed (default: 5e-4)"),
    OPTION_REAL("tol-rms", "X", AT(tol_rms), 1e-9, 1e9,
                "judge by root mean square differences, relative to the reference, instead; "
                "near ties may fall either way (default with --device cuda: 0.02)"),
    OPTION_INT("t", "threads", "N", AT(threads), 0, 1024, "threads (default: one for every core)"),
    OPTION_STRING(NULL, "isa", "NAME", AT(isa),
                  "for diagnosis: avx512, avx2, neon or reference (default: the best)"),
    OPTION_CHOICE("device", "NAME", AT(device), LOADER_DEVICES, LOADER_DEVICES_TO_COME, "cpu"),
    OPTION_CHOICE("against", "NAME", AT(against), LOADER_DEVICES, NULL,
                  "compare --device with this device instead of the dump: choices after the same "
                  "tokens, and how much of the drafts is accepted; CASE may be any model"),
    OPTION_FLAG(NULL, "json", AT(json), "print one JSON object"),
};

static const char *way_name(int32_t piece, char *out, size_t cap) {
    if (piece == 0) return "one piece";
    if (piece == 1) return "token by token";
    snprintf(out, cap, "pieces of %d", piece);
    return out;
}

static const char *verdict(bool ok) { return ok ? "ok" : "DIFFERS"; }

/* "3.10e-05", and what the root mean square is where that is judged. */
static const char *gap_name(const kk_parity_gap *g, bool rms, char *out, size_t cap) {
    if (rms) snprintf(out, cap, "%.2e, rms %.1e", g->max, g->rms);
    if (!rms) snprintf(out, cap, "%.2e", g->max);
    return out;
}

static void print_drafter(const kk_parity_draft *d, bool rms) {
    printf("  dflash: %d blocks of %d, embedding scale %s, taps differ by %.2e at most\n",
           d->n_blocks, d->block, d->embed_scale, d->taps.max);
    char logits[64], hidden[64], drafts[40], gap[40];
    snprintf(logits, sizeof logits, "%s (row %lld)", gap_name(&d->logits, rms, gap, sizeof gap),
             (long long)d->logits.row);
    snprintf(hidden, sizeof hidden, "%s (block %d, row %lld)",
             gap_name(&d->hidden, rms, gap, sizeof gap), d->hidden.layer, (long long)d->hidden.row);
    snprintf(drafts, sizeof drafts, "%d of %d equal", d->drafts_equal, d->n_drafts);
    printf("  %-16s %-24s %-30s %-9s %s\n", drafts, logits, hidden, d->same_bits ? "yes" : "NO",
           verdict(d->ok));
}

static void print_report(const char *folder, const kk_parity_report *r) {
    printf("%s: %d tokens, %d layers, %s, %d threads\n", folder, r->n_tokens, r->n_layer, r->isa,
           r->threads);
    printf("  %-16s %-24s %-30s %s\n", "fed as", "largest logit diff", "largest hidden diff",
           "same bits");
    for (int32_t i = 0; i < r->n_ways; i++) {
        const kk_parity_way *w = &r->way[i];
        char name[24], logits[64], hidden[64], gap[40];
        snprintf(logits, sizeof logits, "%s (row %lld)",
                 gap_name(&w->logits, r->tol_rms > 0, gap, sizeof gap), (long long)w->logits.row);
        snprintf(hidden, sizeof hidden, "%s (hidden.%d, row %lld)",
                 gap_name(&w->hidden, r->tol_rms > 0, gap, sizeof gap), w->hidden.layer,
                 (long long)w->hidden.row);
        printf("  %-16s %-24s %-30s %-9s %s\n", way_name(w->piece, name, sizeof name), logits,
               hidden,
               i == 0         ? "-"
               : w->same_bits ? "yes"
                              : "NO",
               verdict(w->ok));
    }
    printf("  %-16s %d of %d tokens equal%*s%s\n", "greedy", r->greedy_equal, r->n_greedy, 46, "",
           verdict(r->n_greedy > 0 && r->greedy_equal + r->greedy_near == r->n_greedy));
    if (r->greedy_near) printf("  %-16s %d nearer than the tolerance\n", "", r->greedy_near);
    if (r->n_hidden == 0) printf("  no hidden states in expect.safetensors: nothing to compare\n");
    if (r->drafter.present) print_drafter(&r->drafter, r->tol_rms > 0);
    if (r->tol_rms > 0)
        printf("%s  (tolerance: relative root mean square %.1e)\n",
               r->ok ? "agrees" : "DOES NOT AGREE", r->tol_rms);
    else
        printf("%s  (tolerance: logits %.1e, hidden %.1e)\n", r->ok ? "agrees" : "DOES NOT AGREE",
               r->tol_logits, r->tol_hidden);
}

static json_t *way_json(const kk_parity_way *w) {
    char name[24];
    return json_pack("{s:s, s:i, s:o, s:I, s:o, s:i, s:o, s:o, s:b, s:b}", "fed",
                     way_name(w->piece, name, sizeof name), "piece", w->piece, "logits",
                     output_real(w->logits.max), "logits_row", (json_int_t)w->logits.row, "hidden",
                     output_real(w->hidden.max), "hidden_layer", w->hidden.layer, "logits_rms",
                     output_real(w->logits.rms), "hidden_rms", output_real(w->hidden.rms),
                     "same_bits", w->same_bits, "ok", w->ok);
}

static json_t *drafter_json(const kk_parity_draft *d) {
    if (!d->present) return json_null();
    return json_pack("{s:i, s:i, s:s, s:o, s:o, s:i, s:o, s:i, s:i, s:b, s:b}", "blocks",
                     d->n_blocks, "block", d->block, "embed_scale", d->embed_scale, "taps",
                     output_real(d->taps.max), "hidden", output_real(d->hidden.max), "hidden_block",
                     d->hidden.layer, "logits", output_real(d->logits.max), "drafts", d->n_drafts,
                     "drafts_equal", d->drafts_equal, "same_bits", d->same_bits, "ok", d->ok);
}

static bool print_json(const char *folder, const kk_parity_report *r) {
    json_t *ways = json_array();
    for (int32_t i = 0; i < r->n_ways; i++) json_array_append_new(ways, way_json(&r->way[i]));
    return output_json(
        json_pack("{s:o, s:b, s:i, s:i, s:s, s:i, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:b, s:o}",
                  "case", output_text(folder, strlen(folder)), "ok", r->ok, "tokens", r->n_tokens,
                  "layers", r->n_layer, "isa", r->isa, "threads", r->threads, "tol_logits",
                  output_real(r->tol_logits), "tol_hidden", output_real(r->tol_hidden), "tol_rms",
                  r->tol_rms > 0 ? output_real(r->tol_rms) : json_null(), "ways", ways, "greedy",
                  r->n_greedy, "greedy_equal", r->greedy_equal, "greedy_near", r->greedy_near,
                  "drafter_compared", r->drafter.present, "drafter", drafter_json(&r->drafter)));
}

/* ---- two devices --------------------------------------------------------------------------- */

static void print_pair(const parity_args *a, const kk_parity_devices_report *r) {
    printf("%s against %s: %d of %d choices equal, %d near ties, logits differ by %.2e of their "
           "root mean square at most\n",
           a->device ? a->device : "cpu", a->against, r->equal, r->n, r->near, r->most);
    if (r->drafts)
        printf("drafts: %lld tokens, %lld accepted against %lld, text %s\n", (long long)r->drafted,
               (long long)r->accepted[0], (long long)r->accepted[1],
               r->text_equal ? "equal" : "DIFFERS");
    printf("%s  (tolerance: %.1e of the root mean square)\n", r->ok ? "agrees" : "DOES NOT AGREE",
           r->tol);
}

static bool print_pair_json(const parity_args *a, const kk_parity_devices_report *r) {
    json_t *drafts = r->drafts
                         ? json_pack("{s:I, s:[I, I], s:b}", "drafted", (json_int_t)r->drafted,
                                     "accepted", (json_int_t)r->accepted[0],
                                     (json_int_t)r->accepted[1], "text_equal", r->text_equal)
                         : json_null();
    return output_json(json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:o, s:o}", "device",
                                 a->device ? a->device : "cpu", "against", a->against, "ok", r->ok,
                                 "choices", r->n, "equal", r->equal, "near_ties", r->near, "logits",
                                 output_real(r->most), "drafts", drafts));
}

static int run_against(const parity_args *a, const char *model) {
    const kk_parity_devices_opts how = {
        .device = a->device ? a->device : "cpu", .against = a->against, .tol = (double)a->tol_rms};
    kk_parity_devices_report r;
    kk_err err;
    if (kk_parity_devices(model, &how, &r, &err) != KK_OK) return output_error(&err);
    if (!a->json)
        print_pair(a, &r);
    else if (!print_pair_json(a, &r))
        return output_failed("out of memory for the output", NULL);
    return r.ok ? EXIT_DONE : EXIT_FAILED;
}

static int run(int argc, char **argv) {
    parity_args a = {0};
    option_words words;
    int code;
    if (!options_parse(&verb_parity, argc, argv, &a, &words, &code)) return code;
    if (a.against) return run_against(&a, words.word[0]);
    kk_parity_opts opts = {.tol_logits = (double)a.tol,
                           .tol_hidden = (double)a.tol_hidden,
                           .tol_rms = (double)a.tol_rms,
                           .threads = a.threads,
                           .isa = a.isa,
                           .device = a.device};
    kk_parity_report r;
    kk_err err;
    if (kk_parity_run(words.word[0], &opts, &r, &err) != KK_OK)
        return output_failed(err.msg, "A case is a folder with config.json, model.safetensors and "
                                      "expect.safetensors.");
    if (!a.json)
        print_report(words.word[0], &r);
    else if (!print_json(words.word[0], &r))
        return output_failed("out of memory for the output", NULL);
    return r.ok ? EXIT_DONE : EXIT_FAILED;
}

const verb verb_parity = {
    .name = "parity",
    .summary = "compare the engine with a dumped reference",
    .usage = "CASE [options]",
    .about =
        "Compares logits, hidden states and greedy tokens with those in the folder CASE:\n"
        "config.json, model.safetensors and expect.safetensors (tokens, logits, hidden.N,\n"
        "greedy).  The tokens are fed in one piece, in pieces and one by one; all ways must\n"
        "give the same bits.  A drafter in CASE/dflash is run over this verifier and compared\n"
        "with its dumped blocks (block.N.start, .hidden, .logits).  Exit 0 only if everything\n"
        "agrees.\n\n"
        "A GPU rounds what it multiplies to bf16: with --device cuda differences are judged by\n"
        "their root mean square, and of tokens nearer than the tolerance either will do.",
    .examples = "  kakeya parity tests/data/parity/moe\n"
                "  kakeya parity tests/data/parity/dense --isa reference --json\n"
                "  kakeya parity tests/data/parity/moe --device cuda\n"
                "  kakeya parity tests/data/parity/moe --device mlx --against cpu\n",
    .options = parity_options,
    .n_options = OPTION_COUNT(parity_options),
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
