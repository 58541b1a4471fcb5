/* gate_pairs.c - rules about arms that took turns: that they continued the same prompts, that each
 * prompt stands there once, and that tokens, times and speed-ups follow from their runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "eval/reports/gate_rules.h"

typedef void (*arm_fn)(kk_gate *g, const char *where, const json_t *plain, const json_t *arm);

/* Every arm of every set and policy, with plain decoding beside it. */
static void each_arm(kk_gate *g, arm_fn fn) {
    const json_t *set;
    for (size_t i = 0; (set = kk_gate_timed(g, i)); i++) {
        const json_t *arms = json_object_get(set, "arms");
        const char *name;
        json_t *arm;
        json_object_foreach((json_t *)(uintptr_t)arms, name, arm) {
            char where[96];
            snprintf(where, sizeof where, "%.30s on %.40s", name, kk_gate_timed_name(set));
            fn(g, where, json_object_get(arms, "plain"), arm);
        }
    }
}

/* ---- the same prompts, each once ----------------------------------------------------------- */

static void paired(kk_gate *g, const char *where, const json_t *plain, const json_t *arm) {
    static const char *const keys[] = {"prompt", "prompt_tokens", "tokens"};
    const size_t n = kk_gate_size(arm, "rows");
    if (n != kk_gate_size(plain, "rows")) {
        kk_gate_say(g, "%s: %zu rows, and plain decoding has %zu", where, n,
                    kk_gate_size(plain, "rows"));
        return;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 3; k++) {
            const json_t *a = json_object_get(kk_gate_item(arm, "rows", i), keys[k]);
            const json_t *b = json_object_get(kk_gate_item(plain, "rows", i), keys[k]);
            if (!a || !b || !json_equal(a, b))
                kk_gate_say(g, "%s: `%s` of row %zu is not that of plain decoding", where, keys[k],
                            i);
        }
}
static void rule_arms_unpaired(kk_gate *g) { each_arm(g, paired); }

static void distinct(kk_gate *g, const char *where, const json_t *plain, const json_t *arm) {
    (void)plain;
    for (size_t i = 0; i < kk_gate_size(arm, "rows"); i++)
        for (size_t j = 0; j < i; j++) {
            const char *one = kk_gate_text(kk_gate_item(arm, "rows", i), "prompt");
            if (strcmp(one, kk_gate_text(kk_gate_item(arm, "rows", j), "prompt")) == 0)
                kk_gate_say(g, "%s: rows %zu and %zu are of the same prompt", where, j, i);
        }
}
static void rule_rows_repeated(kk_gate *g) { each_arm(g, distinct); }

/* A round gives its accepted tokens and one more; a stop id among them takes that one away.  The
 * tokens of an acceptance count the first one too, which takes no round. */
static void check_tokens(kk_gate *g, const char *where, const json_t *row, double first) {
    const double tokens = kk_gate_number_or(row, "tokens", 0) - first;
    const double rounds = kk_gate_number_or(row, "rounds", 0);
    const double accepted = kk_gate_number_or(row, "accepted", 0);
    if (tokens > rounds + accepted || tokens < rounds + accepted - 1)
        kk_gate_say(g, "%s: %.0f tokens, and %.0f rounds with %.0f accepted give %.0f", where,
                    tokens, rounds, accepted, rounds + accepted);
}

static void counted(kk_gate *g, const char *where, const json_t *plain, const json_t *arm) {
    static const char *const keys[] = {"rounds", "drafted", "accepted"};
    (void)plain;
    for (size_t i = 0; i < kk_gate_size(arm, "rows"); i++)
        check_tokens(g, where, kk_gate_item(arm, "rows", i), 0);
    for (size_t k = 0; k < 3; k++) {
        double sum, said;
        if (kk_gate_sum(arm, "rows", keys[k], &sum) && kk_gate_number(arm, keys[k], &said) &&
            sum != said)
            kk_gate_say(g, "%s: `%s` is %.0f, and its rows give %.0f", where, keys[k], said, sum);
    }
}

static void rule_tokens_recount(kk_gate *g) {
    each_arm(g, counted);
    for (size_t i = 0; kk_gate_is(g, "accept") && i < kk_gate_size(g->report, "rows"); i++) {
        char where[40];
        snprintf(where, sizeof where, "rows[%zu]", i);
        check_tokens(g, where, kk_gate_item(g->report, "rows", i), 1);
    }
}

/* ---- runs ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The row is of the run of median time, the lower one of two. */
static void check_runs(kk_gate *g, const char *where, size_t at, const json_t *row) {
    const size_t n = kk_gate_size(row, "runs");
    double *s = n ? kk_calloc(n, sizeof *s) : NULL;
    static const char *const keys[] = {"seconds_min", "seconds", "seconds_max"};
    if (n && !s) g->status = KK_ENOMEM;
    if (!s) return;
    for (size_t i = 0; i < n; i++)
        s[i] = kk_gate_number_or(kk_gate_item(row, "runs", i), "seconds", 0);
    qsort(s, n, sizeof *s, by_value);
    for (size_t k = 0; k < 3; k++) {
        const double said = kk_gate_number_or(row, keys[k], 0);
        bool is = kk_gate_same(said, s[k == 0 ? 0 : n - 1]);
        /* Runs are put in order by their rounds alone, without the commits in their seconds. */
        if (k == 1) {
            is = false;
            const size_t low = (n - 1) / 2;
            for (size_t i = low ? low - 1 : 0; i < n && i <= low + 1; i++)
                is |= kk_gate_same(said, s[i]);
        }
        if (!is)
            kk_gate_say(g, "%s, row %zu: `%s` is %.6g, and that is not of its %zu runs", where, at,
                        keys[k], said, n);
    }
    kk_free(s);
}

static void runs(kk_gate *g, const char *where, const json_t *plain, const json_t *arm) {
    const json_t *settings = json_object_get(g->report, "settings");
    const double repeat = kk_gate_number_or(settings, "repeat", 0);
    (void)plain;
    for (size_t i = 0; i < kk_gate_size(arm, "rows"); i++) {
        const json_t *row = kk_gate_item(arm, "rows", i);
        if (!json_is_array(json_object_get(row, "runs"))) continue;
        if ((double)kk_gate_size(row, "runs") != repeat)
            kk_gate_say(g, "%s, row %zu: %zu runs, and %.0f were asked for", where, i,
                        kk_gate_size(row, "runs"), repeat);
        check_runs(g, where, i, row);
    }
}
static void rule_runs_recount(kk_gate *g) { each_arm(g, runs); }

/* ---- what a speed-up needs ------------------------------------------------------------------ */

static void claims(kk_gate *g, const char *where, const json_t *plain, const json_t *arm) {
    const double tokens = kk_gate_number_or(arm, "tokens", 0);
    const double accepted = kk_gate_number_or(arm, "accepted", 0);
    double speedup;
    if (arm == plain || !kk_gate_number(arm, "speedup", &speedup)) return;
    if (!kk_gate_true(arm, "lossless"))
        kk_gate_say(g, "%s: %.4gx, and it is not shown to be lossless", where, speedup);
    if (accepted * KK_GATE_ACCEPTED < tokens)
        kk_gate_say(g, "%s: %.4gx, and %.0f of %.0f tokens came from drafts", where, speedup,
                    accepted, tokens);
}

static void rule_speedup_drafts(kk_gate *g) {
    const json_t *arms = json_object_get(g->report, "arms");
    const char *name;
    json_t *arm;
    each_arm(g, claims);
    json_object_foreach((json_t *)(uintptr_t)arms, name, arm) {
        claims(g, name, json_object_get(arms, "plain"), arm);
    }
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry pairs_rules[] = {
    {"ARMS_UNPAIRED", rule_arms_unpaired, "arms continue the same prompts by as many tokens"},
    {"ROWS_REPEATED", rule_rows_repeated, "no prompt of an arm stands there twice"},
    {"TOKENS_RECOUNT", rule_tokens_recount, "tokens follow from rounds and accepted tokens"},
    {"RUNS_RECOUNT", rule_runs_recount, "times of a row are those of its runs, as many as asked"},
    {"SPEEDUP_DRAFTS", rule_speedup_drafts,
     "a speed-up is lossless, and one token in 20 or more came from a draft"},
};
KK_GATE_GROUP(pairs, pairs_rules);
