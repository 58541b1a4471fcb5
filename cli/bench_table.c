/* bench_table.c - what each arm did on each set of prompts, what attention costs by format, and
 * what decoding costs by what layers keep. */
#include "cli/bench_table.h"

#include <stdio.h>

#include "cli/term.h"

static const char *arm_name(kk_spec arm) {
    return arm == KK_SPEC_NONE ? "plain" : kk_spec_name(arm);
}

static void print_counts(const int64_t *n) {
    int last = KK_MAX_DRAFT;
    while (last > 0 && n[last] == 0) last--;
    for (int i = 0; i <= last; i++) printf(" %lld", (long long)n[i]);
}

/* Where the time of a round went, in percent. */
static void print_parts(const kk_bench_arm *m) {
    const kk_spec_stats *t = &m->spec;
    const double one = m->seconds > 0 ? 100 / m->seconds : 0;
    const double rest = m->seconds - t->draft_s - t->verify_s - t->choose_s - t->commit_s;
    printf("              draft %.1f %%, verify %.1f %%, choose %.1f %%, commit %.2f %%, other "
           "%.2f %%; not forwards: %.2f %%\n",
           one * t->draft_s, one * t->verify_s, one * t->choose_s, one * t->commit_s, one * rest,
           100 * m->overhead);
}

void bench_print_rounds(const kk_bench_rounds *r) {
    const double cv = kk_bench_rounds_cv(r);
    if (r->n == 0) return;
    printf("              rounds %.3g ms, longest %.3g, first", r->sum_ms / (double)r->n,
           r->longest_ms);
    for (int32_t i = 0; i < r->n_first; i++) printf(" %.3g", r->first_ms[i]);
    if (cv >= 0) printf("; CV %.1f %% after the first %d", 100 * cv, KK_BENCH_FIRST);
    printf("\n");
}

static void print_drafting(const kk_bench_arm *m) {
    const kk_spec_stats *t = &m->spec;
    printf("              %.2f tokens from %.2f rows per round; %lld of %lld drafted accepted; "
           "rounds by tokens accepted:",
           m->accept_len, m->rows, (long long)t->accepted, (long long)t->drafted);
    print_counts(t->histogram);
    printf("\n              rounds by tokens drafted:");
    print_counts(t->drafts);
    printf(" (%lld to learn)\n", (long long)t->looking);
    if (t->short_rounds)
        printf("              %lld of %lld drafts by the short head; %lld tokens lay outside it\n",
               (long long)t->short_rounds, (long long)t->by[KK_SPEC_DFLASH].rounds,
               (long long)t->short_missed);
    if (t->by[KK_SPEC_DFLASH].rounds == 0 || t->by[KK_SPEC_NGRAM].rounds == 0) return;
    printf("              ");
    for (kk_spec p = KK_SPEC_DFLASH; p <= KK_SPEC_NGRAM; p++)
        printf("%s %lld rounds, %lld of %lld accepted%s", kk_spec_name(p),
               (long long)t->by[p].rounds, (long long)t->by[p].accepted,
               (long long)t->by[p].drafted, p < KK_SPEC_NGRAM ? "; " : "\n");
}

static void print_arm(const kk_bench_arm *m, kk_spec arm) {
    const double predicted = m->predicted_s > 0 ? (double)m->tokens / m->predicted_s : 0;
    printf("  %-10s  %8.1f tok/s  %5.2fx  %.2f of the %.1f predicted; lossless: %s", arm_name(arm),
           m->tok_s, m->speedup, m->of_predicted, predicted, m->different ? "NO" : "yes");
    if (arm == KK_SPEC_NONE) printf("; %.0f %% of its floor", 100 * m->floor_share);
    printf("\n");
    print_parts(m);
    bench_print_rounds(&m->rounds);
    if (arm != KK_SPEC_NONE) print_drafting(m);
    if (m->best_tok_s > 0)
        printf("              best by the costs: drafts of %d, %.1f tok/s; %.2f of it\n",
               m->best_draft, m->best_tok_s, m->tok_s / m->best_tok_s);
}

/* A forward of one row, and everything else in units of it. */
static void print_costs(const kk_bench_set *s) {
    if (s->n_verify == 0) return;
    printf("  costs       1 row %.2f ms; rows", 1e3 * s->verify[0].seconds.median);
    for (int32_t i = 1; i < s->n_verify; i++)
        printf(" %d: %.2fx", s->verify[i].rows, s->verify[i].ratio);
    if (s->n_draft) {
        printf("; a draft of");
        for (int32_t i = 0; i < s->n_draft; i++)
            if (i == 0 || i == s->n_draft - 1)
                printf(" %d: %.2f ms (%.2fx)", s->draft[i].rows, 1e3 * s->draft[i].seconds.median,
                       s->draft[i].ratio);
    }
    printf("\n");
}

static void print_set(const kk_bench_opts *o, const kk_bench_set *s) {
    printf("%-13s %d prompts of %.0f tokens\n", s->name, s->prompts, s->prompt_tokens);
    for (int32_t i = 0; i < o->n_arms; i++) print_arm(&s->arm[i], o->arms[i]);
    print_costs(s);
}

void bench_print_sets(const kk_bench_opts *o, const kk_bench_result *r) {
    for (int32_t i = 0; i < r->n_sets; i++) print_set(o, &r->set[i]);
    if (r->n_sets > 1) print_set(o, &r->all);
    if (r->n_sets && o->trace.p > 0)
        printf("              dflash's acceptance is a trace, geom:%g:%llu, not the drafter's own: "
               "%.2f tokens of %d\n",
               o->trace.p, (unsigned long long)o->trace.seed,
               kk_trace_expected(&o->trace, r->drafter.block - 1), r->drafter.block - 1);
}

void bench_print_attention(const kk_bench_opts *o, const kk_bench_result *r) {
    for (int32_t i = 0; i < r->n_attention; i++) {
        const kk_bench_attention *a = &r->attention[i];
        printf("%-12s  %-4s  %.2f ms for one row at context %d, %.2fx; K/V %s, %.3fx\n",
               i ? "" : "attention", kk_kv_format_name(a->format), 1e3 * a->seconds.median, o->ctx,
               a->ratio, term_bytes((double)a->kv_bytes).text, a->kv_ratio);
    }
}

/* ---- policies ---------------------------------------------------------------------------- */

static int64_t kept_bytes(const kk_bench_policy *p) {
    return p->bytes[KK_MEM_KV_SLIDING] + p->bytes[KK_MEM_KV_FULL] + p->bytes[KK_MEM_KV_LATENTS];
}

static void print_drafted(const kk_bench_turns *t) {
    if (t->n == 0) return;
    printf("   %.2f ms, %.2fx, %.2f a round, %.0f rows; lossless: %s", t->ms.median, t->speedup,
           t->accept_len, t->rows_per_token, t->different ? "NO" : "yes");
}

static void print_policy(const kk_bench_policy *p) {
    const kk_bench_turns *t = &p->plain;
    char range[40];
    snprintf(range, sizeof range, "%.2f to %.2f", t->ms.min, t->ms.max);
    printf("  %-16s  %8.2f  %18s  %6.2fx  %8.1f  %8.0f  %7.0f + %-7.0f  %9s",
           kk_bench_way_name(p->way), t->ms.median, range, p->ratio, p->prefill_tok_s.median,
           t->rows_per_token, t->stored_keys, t->rebuilt_keys,
           term_bytes((double)kept_bytes(p)).text);
    print_drafted(&p->dflash);
    printf("\n");
}

void bench_print_policies(const kk_bench_opts *o, const kk_bench_result *r) {
    bool drafts = false;
    const kk_session_opts *how = NULL;
    for (int32_t i = 0; i < r->n_policies; i++) {
        drafts |= r->policy[i].dflash.n > 0;
        if (r->policy[i].way != KK_BENCH_EXACT) how = &r->policy[i].how;
    }
    if (r->n_policies == 0) return;
    printf("policies      %d turns of %d tokens at context %d of %s", o->repeat, o->predict, o->ctx,
           r->policy_text);
    if (how)
        printf("; sink %d, window %d, chunk %d", how->sink > 0 ? how->sink : 0,
               how->window > 0 ? how->window : 0, how->chunk);
    if (r->restores.rank) printf("; rank %d", r->restores.rank);
    printf("\n  %-16s  %8s  %18s  %7s  %8s  %8s  %17s  %9s%s\n", "", "ms/token", "range", "x exact",
           "prefill", "rebuilt", "keys/query", "K/V", drafts ? "   with dflash" : "");
    for (int32_t i = 0; i < r->n_policies; i++) print_policy(&r->policy[i]);
}

void bench_print_sampling(const kk_bench_opts *o, const kk_bench_result *r) {
    for (int32_t i = 0; i < r->n_sampling; i++) {
        const kk_bench_sampling *s = &r->sampling[i];
        printf("%-13s %-12s %8.2f tok/s  %.3fx greedy, %.2f rounds ahead a token",
               i ? "" : "sampling", s->name, s->tok_s.median, s->of_greedy, s->ahead);
        printf(i ? "\n" : " at context %d\n", o->ctx);
    }
}

void bench_print_sessions(const kk_bench_opts *o, const kk_bench_result *r) {
    const kk_bench_sessions *s = &r->sessions;
    if (!s->n) return;
    printf("sessions      %d together %.2f tok/s, alone %.2f: %.2fx at context %d (%d turns)\n",
           s->n, (double)s->all_together.tokens / s->all_together.seconds,
           (double)s->all_alone.tokens / s->all_alone.seconds, s->ratio, o->ctx, s->turns);
    printf("              %.2f sessions in a round; logits %s those of each alone\n",
           (double)s->in_rounds / (double)s->rounds, kk_bench_sessions_same(s) ? "are" : "are NOT");
    printf("              a prompt of %d tokens beside one: longest gap %.1f ms, median %.1f ms; "
           "%.2f s in %lld chunks, alone %.2f s\n",
           s->arriving, 1e3 * s->gap.max, 1e3 * s->gap.median, s->prefill_beside_s,
           (long long)s->chunks, s->prefill_alone_s);
}
