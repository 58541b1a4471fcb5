/* gate_speed.c - rules about rates, their spread, and drafting. */
#include <string.h>

#include "eval/reports/gate_rules.h"

/* ---- rates -------------------------------------------------------------------------------- */

static void compare(kk_gate *g, const char *where, const json_t *o, const char *key, double is,
                    const char *of) {
    double said;
    if (kk_gate_number(o, key, &said) && !kk_gate_same(said, is))
        kk_gate_say(g, "%s: `%s` is %.6g, and %s give %.6g", where, key, said, of, is);
}

/* Any object with tokens, seconds and tok_s, and the rows it is of. */
static void visit_rates(kk_gate *g, const char *where, const json_t *o) {
    double tokens, seconds, sum;
    if (!kk_gate_number(o, "tokens", &tokens) || !kk_gate_number(o, "seconds", &seconds)) return;
    if (seconds > 0) compare(g, where, o, "tok_s", tokens / seconds, "tokens over seconds");
    if (kk_gate_size(o, "rows") == 0) return;
    if (kk_gate_sum(o, "rows", "tokens", &sum)) compare(g, where, o, "tokens", sum, "its rows");
    if (kk_gate_sum(o, "rows", "seconds", &sum)) compare(g, where, o, "seconds", sum, "its rows");
}

/* The arms over all sets are the sums of the sets. */
static void check_all_sets(kk_gate *g) {
    const char *name;
    json_t *arm;
    if (!kk_gate_is(g, "bench") || kk_gate_size(g->report, "sets") == 0) return;
    json_object_foreach(json_object_get(g->report, "arms"), name, arm) {
        double tokens = 0, seconds = 0;
        for (size_t i = 0; i < kk_gate_size(g->report, "sets"); i++) {
            const json_t *set = kk_gate_item(g->report, "sets", i);
            const json_t *one = json_object_get(json_object_get(set, "arms"), name);
            tokens += kk_gate_number_or(one, "tokens", 0);
            seconds += kk_gate_number_or(one, "seconds", 0);
        }
        compare(g, name, arm, "tokens", tokens, "the sets");
        compare(g, name, arm, "seconds", seconds, "the sets");
    }
}

/* The first token of an answer comes from the document's own logits and takes no round. */
static void visit_rung(kk_gate *g, const char *where, const json_t *o) {
    double tokens = 0, decoded = 0, prefill_s, decode_s;
    const size_t n = kk_gate_size(o, "rows");
    if (n == 0 || !kk_gate_sum(o, "rows", "prefill_s", &prefill_s) ||
        !kk_gate_sum(o, "rows", "decode_s", &decode_s))
        return;
    for (size_t i = 0; i < n; i++) {
        const json_t *row = kk_gate_item(o, "rows", i);
        const double generated = kk_gate_number_or(row, "generated", 0);
        tokens += kk_gate_number_or(row, "tokens", 0);
        decoded += generated > 1 ? generated - 1 : 0;
    }
    compare(g, where, o, "tokens", tokens / (double)n, "its rows");
    if (prefill_s > 0) compare(g, where, o, "prefill_tok_s", tokens / prefill_s, "its rows");
    if (decode_s > 0) compare(g, where, o, "decode_tok_s", decoded / decode_s, "its rows");
}

static void rule_rate_recount(kk_gate *g) {
    if (!kk_gate_is(g, "needle")) kk_gate_walk(g, visit_rates);
    check_all_sets(g);
    if (kk_gate_like(g, "needle")) kk_gate_walk(g, visit_rung);
}

/* ---- spread ------------------------------------------------------------------------------- */

static bool is_spread(const json_t *o) {
    double x;
    return kk_gate_number(o, "median", &x) && kk_gate_number(o, "min", &x) &&
           kk_gate_number(o, "max", &x) && kk_gate_number(o, "n", &x);
}

/* A spread, or one for each of several engines. */
static bool are_spreads(const json_t *o) {
    const char *key;
    json_t *v;
    if (is_spread(o)) return true;
    if (json_object_size(o) == 0) return false;
    json_object_foreach((json_t *)o, key, v) if (!is_spread(v)) return false;
    return true;
}

static bool ends(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What a table of costs predicts was not measured. */
static bool is_measured_rate(const char *key) {
    return ends(key, "tok_s") && strcmp(key, "predicted_tok_s") != 0 &&
           strcmp(key, "best_tok_s") != 0;
}

static const json_t *beside(const json_t *o, const char *key) {
    const char *other;
    json_t *v;
    const size_t len = strlen(key);
    json_object_foreach((json_t *)o, other, v) if (strncmp(other, key, len) == 0 &&
                                                   strcmp(other + len, "_spread") == 0) return v;
    return NULL;
}

static void visit_spread(kk_gate *g, const char *where, const json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v) {
        if (!is_measured_rate(key) || json_is_null(v)) continue;
        if (json_is_object(v) ? !are_spreads(v) : !is_spread(beside(o, key)))
            kk_gate_say(g, "%s: the rate `%.40s` has no spread {median, min, max, n}", where, key);
    }
}

static void rule_spread_missing(kk_gate *g) { kk_gate_walk(g, visit_spread); }

static void visit_order(kk_gate *g, const char *where, const json_t *o) {
    double min, median, max;
    const bool ms = kk_gate_get(o, "ms") && kk_gate_get(o, "ms_min");
    if (!kk_gate_number(o, ms ? "ms" : "median", &median) ||
        !kk_gate_number(o, ms ? "ms_min" : "min", &min) ||
        !kk_gate_number(o, ms ? "ms_max" : "max", &max))
        return;
    if (min > median || median > max)
        kk_gate_say(g, "%s: min %.6g, median %.6g, max %.6g", where, min, median, max);
}

static void visit_samples(kk_gate *g, const char *where, const json_t *o) {
    const json_t *samples = json_object_get(o, "samples");
    const size_t n = json_array_size(samples);
    double low = 0, high = 0, said;
    if (n == 0 || !is_spread(o)) return;
    for (size_t i = 0; i < n; i++) {
        const double x = json_number_value(json_array_get(samples, i));
        if (i == 0 || x < low) low = x;
        if (i == 0 || x > high) high = x;
    }
    compare(g, where, o, "min", low, "its samples");
    compare(g, where, o, "max", high, "its samples");
    if (kk_gate_number(o, "n", &said) && said != (double)n)
        kk_gate_say(g, "%s: said to be of %.0f samples, and there are %zu", where, said, n);
}

static void rule_spread_order(kk_gate *g) {
    kk_gate_walk(g, visit_order);
    kk_gate_walk(g, visit_samples);
}

/* ---- drafting ----------------------------------------------------------------------------- */

static void rule_drafting_never_ran(kk_gate *g) {
    const char *name;
    json_t *arm;
    double drafted;
    if (kk_gate_is(g, "bench"))
        json_object_foreach(json_object_get(g->report, "arms"), name,
                            arm) if ((strstr(name, "dflash") || strstr(name, "ngram") ||
                                      strcmp(name, "auto") == 0) &&
                                     kk_gate_number(arm, "drafted", &drafted) && drafted <= 0)
            kk_gate_say(g, "the arm %.40s drafted nothing in %.0f rounds", name,
                        kk_gate_number_or(arm, "rounds", 0));
    for (size_t i = 0; kk_gate_is(g, "accept") && i < kk_gate_size(g->report, "all"); i++) {
        const json_t *all = kk_gate_item(g->report, "all", i);
        if (kk_gate_number(all, "drafted", &drafted) && drafted <= 0)
            kk_gate_say(g, "%.40s drafted nothing in %.0f rounds", kk_gate_text(all, "arm"),
                        kk_gate_number_or(all, "rounds", 0));
    }
}

/* Rounds by how many of their tokens were accepted. */
static void check_histogram(kk_gate *g, const char *where, const json_t *o, double rounds,
                            double accepted) {
    double n = 0, tokens = 0;
    if (kk_gate_size(o, "histogram") == 0) return;
    for (size_t i = 0; i < kk_gate_size(o, "histogram"); i++) {
        const double count = json_number_value(kk_gate_item(o, "histogram", i));
        n += count;
        tokens += count * (double)i;
    }
    if (n != rounds || tokens != accepted)
        kk_gate_say(g,
                    "%s: %.0f rounds with %.0f accepted tokens, and the histogram has %.0f with "
                    "%.0f",
                    where, rounds, accepted, n, tokens);
}

/* A short head makes drafts of the drafter's alone. */
static void check_short(kk_gate *g, const char *where, const json_t *o) {
    const json_t *dflash = json_object_get(json_object_get(o, "by"), "dflash");
    const double rounds = kk_gate_number_or(dflash, "rounds", 0);
    double by_short;
    if (kk_gate_number(o, "short_rounds", &by_short) && by_short > rounds)
        kk_gate_say(g, "%s: the short head drafted in %.0f of the drafter's %.0f rounds", where,
                    by_short, rounds);
}

static void visit_acceptance(kk_gate *g, const char *where, const json_t *o) {
    double rounds, drafted, accepted;
    if (!kk_gate_number(o, "rounds", &rounds) || !kk_gate_number(o, "drafted", &drafted) ||
        !kk_gate_number(o, "accepted", &accepted))
        return;
    if (accepted > drafted)
        kk_gate_say(g, "%s: %.0f of %.0f drafted tokens were accepted", where, accepted, drafted);
    if (drafted > 0) compare(g, where, o, "rate", accepted / drafted, "its counts");
    if (rounds > 0) {
        compare(g, where, o, "length", (accepted + rounds) / rounds, "its counts");
        compare(g, where, o, "accept_len", (accepted + rounds) / rounds, "its counts");
    }
    check_histogram(g, where, o, rounds, accepted);
    check_short(g, where, o);
}

static void rule_accept_recount(kk_gate *g) { kk_gate_walk(g, visit_acceptance); }

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry rates_rules[] = {
    {"RATE_RECOUNT", rule_rate_recount,
     "rates are tokens over seconds of all rows, not a mean of rates"},
    {"SPREAD_MISSING", rule_spread_missing, "every rate comes with its spread"},
    {"SPREAD_ORDER", rule_spread_order, "a spread is in order, and of its samples"},
};
KK_GATE_GROUP(rates, rates_rules);

static const kk_gate_entry drafting_rules[] = {
    {"DRAFTING_NEVER_RAN", rule_drafting_never_ran, "an arm that drafts drafted"},
    {"ACCEPT_RECOUNT", rule_accept_recount,
     "acceptance is accepted over drafted, the histogram counts the rounds, and a short head "
     "drafts "
     "in the drafter's"},
};
KK_GATE_GROUP(drafting, drafting_rules);
