/* needle_table.c - see needle_table.h. */
#include "cli/needle_table.h"

#include <stdio.h>

#include "cli/options.h"
#include "cli/term.h"

static const kk_mem_category kv_categories[] = {KK_MEM_KV_SLIDING, KK_MEM_KV_FULL,
                                                KK_MEM_KV_DRAFTER, KK_MEM_KV_LATENTS};

static bool holds_any(const kk_needle_result *r, kk_mem_category c) {
    for (int32_t a = 0; a < r->n_arms; a++)
        for (int32_t i = 0; i < r->arm[a].n_rungs; i++)
            if (r->arm[a].rung[i].bytes[c]) return true;
    return false;
}

/* ---- rungs ------------------------------------------------------------------------------- */

static double per_query(int64_t keys, const kk_key_counts *r) {
    return r->queries ? (double)keys / (double)r->queries : 0;
}

static void print_rung(const kk_needle_result *r, const kk_needle_arm *arm,
                       const kk_needle_rung *g) {
    if (r->n_arms > 1) printf("%-9s ", kk_needle_way_name(arm->way));
    printf("%7d %8.0f %8d %7.2f %14.1f %13.1f", g->lines, g->tokens, g->n_samples, g->recall,
           g->prefill_tok_s, g->decode_tok_s);
    for (size_t i = 0; i < OPTION_COUNT(kv_categories); i++)
        if (holds_any(r, kv_categories[i]))
            printf(" %12s", term_bytes((double)g->bytes[kv_categories[i]]).text);
    if (r->n_arms > 1)
        printf(" %9.1f %9.1f", per_query(g->counts.keys_stored, &g->counts),
               per_query(g->counts.keys_rebuilt, &g->counts));
    putchar('\n');
}

static void print_rungs(const kk_needle_result *r) {
    if (r->n_arms > 1) printf("%-9s ", "arm");
    printf("%7s %8s %8s %7s %14s %13s", "lines", "tokens", "samples", "recall", "prefill tok/s",
           "decode tok/s");
    for (size_t i = 0; i < OPTION_COUNT(kv_categories); i++)
        if (holds_any(r, kv_categories[i])) printf(" %12s", kk_mem_category_name(kv_categories[i]));
    if (r->n_arms > 1) printf(" %9s %9s", "keys read", "rebuilt");
    putchar('\n');
    for (int32_t a = 0; a < r->n_arms; a++)
        for (int32_t i = 0; i < r->arm[a].n_rungs; i++)
            print_rung(r, &r->arm[a], &r->arm[a].rung[i]);
}

/* ---- arms against exact ------------------------------------------------------------------ */

static void print_arm(const kk_needle_result *r, const kk_needle_arm *arm) {
    const kk_needle_rung *exact = &r->arm[0].rung[r->arm[0].n_rungs - 1];
    const kk_needle_rung *last = &arm->rung[arm->n_rungs - 1];
    const double own = (double)kk_needle_kv_bytes(last);
    printf("%-9s", kk_needle_way_name(arm->way));
    if (arm->way == KK_NEEDLE_EXACT)
        printf(" %9s %9s %9s %7s", "-", "-", "-", "-");
    else
        printf(" %9.5f %9.4f %+9.4f %5.0f %%", arm->sum.mean_kl, arm->sum.worst_kl,
               arm->sum.loss_change, 100 * arm->sum.same);
    printf(" %12s %6.2f", term_bytes(own).text,
           own > 0 ? (double)kk_needle_kv_bytes(exact) / own : 0);
    printf("  ");
    for (int32_t i = 0; i < arm->n_rungs; i++) printf(" %.2f", arm->rung[i].recall);
    putchar('\n');
}

static void print_arms(const kk_needle_result *r) {
    const kk_session_opts *how = &r->arm[r->n_arms - 1].how;
    printf("\nagainst exact, on %lld positions of %zu texts %s (sink %d, window %d, chunk %d",
           (long long)r->arm[1].sum.rows, r->texts.n,
           r->source.n_paths ? "given" : "held out of training", how->sink > 0 ? how->sink : 0,
           how->window > 0 ? how->window : 0, how->chunk);
    if (r->projection.rank) printf("; %s, rank %d", r->projection.source, r->projection.rank);
    printf(")\n%-9s %9s %9s %9s %7s %12s %6s   %s\n", "arm", "mean KL", "worst KL", "loss", "same",
           "K/V", "less", "recall");
    for (int32_t a = 0; a < r->n_arms; a++) print_arm(r, &r->arm[a]);
}

/* ---- depths ------------------------------------------------------------------------------ */

enum { DEPTHS = 5 };

static void print_cell(const kk_needle_rung *g, int bin) {
    char text[32];
    int hits = 0, n = 0;
    for (int32_t i = 0; i < g->n_samples; i++) {
        const int own = (int)(kk_haystack_depth(&g->samples[i].doc) * DEPTHS);
        if ((own < DEPTHS ? own : DEPTHS - 1) != bin) continue;
        n++;
        hits += g->samples[i].hit;
    }
    snprintf(text, sizeof text, "%d/%d", hits, n);
    printf(" %7s", n ? text : ".");
}

/* Depth down, length to the right, arm beside arm. */
static void print_depths(const kk_needle_result *r) {
    printf("\nfound, by depth and tokens\n%10s", "");
    for (int32_t a = 0; a < r->n_arms; a++)
        printf("  %*s", 8 * r->arm[a].n_rungs, kk_needle_way_name(r->arm[a].way));
    printf("\n%10s", "");
    for (int32_t a = 0; a < r->n_arms; a++) {
        printf("  ");
        for (int32_t i = 0; i < r->arm[a].n_rungs; i++) printf(" %7.0f", r->arm[a].rung[i].tokens);
    }
    putchar('\n');
    for (int bin = 0; bin < DEPTHS; bin++) {
        printf("%3d-%3d %% ", 100 * bin / DEPTHS, 100 * (bin + 1) / DEPTHS);
        for (int32_t a = 0; a < r->n_arms; a++) {
            printf("  ");
            for (int32_t i = 0; i < r->arm[a].n_rungs; i++) print_cell(&r->arm[a].rung[i], bin);
        }
        putchar('\n');
    }
}

static bool missed_any(const kk_needle_result *r) {
    for (int32_t a = 0; a < r->n_arms; a++)
        for (int32_t i = 0; i < r->arm[a].n_rungs; i++)
            if (r->arm[a].rung[i].hits < r->arm[a].rung[i].n_samples) return true;
    return false;
}

void needle_print(const kk_needle_result *r, bool depths) {
    const kk_model_info *m = &r->model;
    printf("model    %s %s, %d layers, %s\n", m->name, m->weight_type, m->layers,
           term_bytes((double)m->weight_bytes).text);
    printf("machine  %s, %s, %d threads\n", r->machine.name, r->device.isa, r->device.threads);
    print_rungs(r);
    if (r->n_arms > 1) print_arms(r);
    if (depths || missed_any(r)) print_depths(r);
}
