/* gate_steps.c - rules about steps: restored and drafted decoding against exact plain decoding.
 *
 * Both are of the second policy of the report, exact is the first; all took their turns on the same
 * pieces of text.  What a step must show is asked of the report's own gate here, so that a check
 * that was left out or a limit that was widened is found. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

enum { STEPS = 2, EXACT = 0, REBUILT = 1 };
static const char *const arms[STEPS] = {"restored", "drafted"};

static const json_t *turns_of(const kk_gate *g, size_t policy, const char *arm) {
    const json_t *p = kk_gate_item(g->report, "policies", policy);
    return json_object_get(json_object_get(p, "arms"), arm);
}

/* The arm of the rebuilding policy that a step is about; NULL: no step is of that name. */
static const json_t *step_turns(const kk_gate *g, const char *arm) {
    if (strcmp(arm, arms[0]) == 0) return turns_of(g, REBUILT, "plain");
    if (strcmp(arm, arms[1]) == 0) return turns_of(g, REBUILT, "dflash");
    return NULL;
}

static double rate_of(const json_t *turns) {
    double tokens = 0, seconds = 0;
    if (!kk_gate_sum(turns, "rows", "tokens", &tokens) ||
        !kk_gate_sum(turns, "rows", "seconds", &seconds) || seconds <= 0)
        return 0;
    return tokens / seconds;
}

static bool same_text(const json_t *a, const json_t *b, const char *key) {
    const char *x = kk_gate_text(a, key);
    return *x && strcmp(x, kk_gate_text(b, key)) == 0;
}

/* Turns that did not give the tokens and logits of the plain ones, or do not say what they gave. */
static double different(const kk_gate *g) {
    const json_t *plain = turns_of(g, REBUILT, "plain"), *dflash = turns_of(g, REBUILT, "dflash");
    double n = 0;
    for (size_t i = 0; i < kk_gate_size(dflash, "rows"); i++) {
        const json_t *a = kk_gate_item(dflash, "rows", i), *b = kk_gate_item(plain, "rows", i);
        n += !same_text(a, b, "tokens_hash") || !same_text(a, b, "logits_hash");
    }
    return n;
}

kk_step_figure kk_gate_step_figure(const kk_gate *g, const char *name, const char *arm,
                                   double *out) {
    const json_t *turns = step_turns(g, arm);
    const double exact = rate_of(turns_of(g, EXACT, "plain"));
    if (!kk_gate_is(g, "steps")) return KK_STEP_NO_FIGURE;
    if (strcmp(name, "speed_ratio") == 0) {
        if (exact <= 0 || rate_of(turns) <= 0) return KK_STEP_NO_ROWS;
        *out = rate_of(turns) / exact;
        return KK_STEP_AT_LEAST;
    }
    if (strcmp(name, "different") == 0) {
        *out = different(g);
        return kk_gate_size(turns, "rows") ? KK_STEP_AT_MOST : KK_STEP_NO_ROWS;
    }
    return KK_STEP_NO_FIGURE;
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* As many as the settings say, on the pieces that exact decoded behind. */
static void check_turns(kk_gate *g, const char *name, const json_t *turns) {
    const json_t *exact = turns_of(g, EXACT, "plain");
    const json_t *settings = json_object_get(g->report, "settings");
    const double tokens = kk_gate_number_or(settings, "predict", 0);
    const size_t n = kk_gate_size(turns, "rows");
    if (n < KK_GATE_SAMPLES || (double)n != kk_gate_number_or(settings, "repeat", 0) ||
        tokens < KK_GATE_TOKENS) {
        kk_gate_say(g,
                    "%s: %zu turns of %.0f tokens; %d of %d are the least, and %.0f were asked "
                    "for",
                    name, n, tokens, KK_GATE_SAMPLES, KK_GATE_TOKENS,
                    kk_gate_number_or(settings, "repeat", 0));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *row = kk_gate_item(turns, "rows", i);
        if (kk_gate_number_or(row, "tokens", 0) != tokens)
            kk_gate_say(g, "%s, turn %zu: %.0f tokens, and turns are of %.0f", name, i,
                        kk_gate_number_or(row, "tokens", 0), tokens);
        if (!same_text(row, kk_gate_item(exact, "rows", i), "prompt"))
            kk_gate_say(g, "%s, turn %zu: behind another text than exact", name, i);
        for (size_t k = 0; k < i; k++)
            if (same_text(row, kk_gate_item(turns, "rows", k), "prompt"))
                kk_gate_say(g, "%s, turns %zu and %zu are behind the same text", name, k, i);
    }
}

/* ---- the checks of a step ------------------------------------------------------------------- */

static void need_check(kk_gate *g, const char *figure, const char *arm, double limit) {
    const json_t *c = kk_gate_check_of(g, figure, arm);
    double said;
    if (!c || !kk_gate_number(c, "limit", &said))
        kk_gate_say(g, "the gate has no check of %s of %s", figure, arm);
    else if (!kk_gate_same(said, limit))
        kk_gate_say(g, "%s of %s is held to %.6g, and the limit is %.6g", figure, arm, said, limit);
}

static void need_checks(kk_gate *g, size_t step) {
    static const char *const speeds[STEPS] = {"min_restored_speed", "min_drafted_speed"};
    const json_t *settings = json_object_get(g->report, "settings");
    const char *arm = arms[step];
    double limit;
    if (kk_gate_number(settings, speeds[step], &limit)) need_check(g, "speed_ratio", arm, limit);
    need_check(g, "recall_drop", arm, KK_GATE_RECALL_DROP);
    need_check(g, "restored_rows", arm, 1);
    if (step == 1) need_check(g, "different", arm, 0);
    if (kk_gate_number(settings, "max_kl", &limit)) need_check(g, "mean_kl", arm, limit);
}

static bool all_hold(const kk_gate *g, const char *arm) {
    const json_t *gate = json_object_get(g->report, "gate");
    bool all = true;
    for (size_t i = 0; i < kk_gate_size(gate, "checks"); i++) {
        const json_t *c = kk_gate_item(gate, "checks", i);
        if (strcmp(kk_gate_text(c, "arm"), arm) == 0) all &= kk_gate_true(c, "holds");
    }
    return all;
}

static void check_step(kk_gate *g, size_t step) {
    const json_t *s = kk_gate_item(g->report, "steps", step);
    const char *arm = arms[step];
    double said, is;
    if (strcmp(kk_gate_text(s, "arm"), arm) != 0 ||
        kk_gate_number_or(s, "step", 0) != (double)(step + 1))
        kk_gate_say(g, "step %zu is of the arm '%.30s', not of %s", step + 1,
                    kk_gate_text(s, "arm"), arm);
    need_checks(g, step);
    if (kk_gate_step_figure(g, "speed_ratio", arm, &is) == KK_STEP_AT_LEAST &&
        (!kk_gate_number(s, "speed_ratio", &said) || !kk_gate_same(said, is)))
        kk_gate_say(g, "step %zu has %.6g of the speed of exact, and its turns give %.6g", step + 1,
                    kk_gate_number_or(s, "speed_ratio", 0), is);
    if (kk_gate_true(s, "holds") != all_hold(g, arm))
        kk_gate_say(g, "step %zu is said %s, and its checks %s", step + 1,
                    kk_gate_true(s, "holds") ? "to hold" : "not to hold",
                    all_hold(g, arm) ? "all hold" : "do not all hold");
}

static void rule_steps_recount(kk_gate *g) {
    const json_t *rebuilt = kk_gate_item(g->report, "policies", REBUILT);
    if (kk_gate_size(g->report, "steps") != STEPS || kk_gate_size(g->report, "policies") != 2 ||
        !kk_gate_restored(g, rebuilt)) {
        kk_gate_say(g,
                    "there are %zu steps and %zu policies; 2 and exact and one that rebuilds "
                    "rows are needed",
                    kk_gate_size(g->report, "steps"), kk_gate_size(g->report, "policies"));
        return;
    }
    check_turns(g, "exact", turns_of(g, EXACT, "plain"));
    for (size_t i = 0; i < STEPS; i++) {
        check_turns(g, arms[i], step_turns(g, arms[i]));
        check_step(g, i);
    }
    if (kk_gate_number_or(step_turns(g, "drafted"), "drafted", 0) <= 0 &&
        kk_gate_true(kk_gate_item(g->report, "steps", 1), "holds"))
        kk_gate_say(g, "step 2 holds, and drafted nothing");
}

/* ---- the rules ------------------------------------------------------------------------------ */

static const kk_gate_entry steps_rules[] = {
    {"STEPS_RECOUNT", rule_steps_recount,
     "a step is of turns paired with exact ones, and holds when all of its checks do"},
};
KK_GATE_GROUP(steps, steps_rules);
