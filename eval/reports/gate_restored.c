/* gate_restored.c - rules about restoration: that it took place, in every sample of an arm that
 * claims it and in none of the others.
 *
 * What is looked at is the engine's count of pairs of layer and position that were rebuilt, not
 * what a report says of itself. */
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

/* The samples of one arm. */
typedef struct {
    char name[64];
    bool restored;                /* what it claims */
    size_t uncounted, none, some; /* samples without a count, with 0, with more */
} path;

typedef void (*path_fn)(kk_gate *g, const path *p);

static void tally(path *p, const json_t *row) {
    double n;
    if (!kk_gate_number(row, "restored_rows", &n))
        p->uncounted++;
    else if (n > 0)
        p->some++;
    else
        p->none++;
}

static void tally_list(path *p, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) tally(p, json_array_get(list, i));
}

/* Rows below this length are all resident, and nothing could be rebuilt. */
static bool too_short(const kk_gate *g, const json_t *row) {
    const json_t *settings = json_object_get(g->report, "settings");
    double kept = 0;
    static const char *const keys[] = {"sink", "window", "chunk"};
    for (size_t i = 0; i < 3; i++)
        kept += kk_gate_number_or(row, keys[i], kk_gate_number_or(settings, keys[i], 0));
    return kk_gate_number_or(row, "tokens", 0) <= kept;
}

/* Entries of a list with the same name are one arm: rungs by `arm`, rows of memory by `policy`. */
static void each_named(kk_gate *g, const char *list, const char *key, path_fn fn) {
    const size_t n = kk_gate_size(g->report, list);
    for (size_t i = 0; i < n; i++) {
        const json_t *first = kk_gate_item(g->report, list, i);
        const char *name = kk_gate_text(first, key);
        path p = {.restored = kk_gate_restored(g, first)};
        bool seen = false;
        snprintf(p.name, sizeof p.name, "%s", name);
        for (size_t j = 0; j < n && !seen; j++) {
            const json_t *one = kk_gate_item(g->report, list, j);
            if (strcmp(kk_gate_text(one, key), name) != 0) continue;
            seen = j < i;
            if (kk_gate_answers(one)) tally_list(&p, kk_gate_answers(one));
            if (kk_gate_is(g, "memory") && !too_short(g, one)) tally(&p, one);
        }
        if (!seen) fn(g, &p);
    }
}

static void each_alpha(kk_gate *g, path_fn fn) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        const double alpha = kk_gate_number_or(row, "alpha", 1);
        if (alpha >= 1) continue; /* the identity may count or not */
        path p = {.restored = true};
        snprintf(p.name, sizeof p.name, "alpha %.4g", alpha);
        if (kk_gate_answers(row))
            tally_list(&p, kk_gate_answers(row));
        else
            tally(&p, row);
        fn(g, &p);
    }
}

static void each_timed(kk_gate *g, path_fn fn) {
    const json_t *set;
    for (size_t i = 0; (set = kk_gate_timed(g, i)); i++) {
        const char *name;
        json_t *arm;
        json_object_foreach(json_object_get(set, "arms"), name, arm) {
            path p = {.restored = strncmp(name, "restored", 8) == 0 || kk_gate_restored(g, arm) ||
                                  kk_gate_restored(g, set)};
            snprintf(p.name, sizeof p.name, "%.20s on %.30s", name, kk_gate_timed_name(set));
            tally_list(&p, json_object_get(arm, "rows"));
            fn(g, &p);
        }
    }
}

static void each_path(kk_gate *g, path_fn fn) {
    if (kk_gate_like(g, "needle")) each_named(g, "rungs", "arm", fn);
    if (kk_gate_is(g, "memory")) each_named(g, "rows", "policy", fn);
    if (kk_gate_is(g, "sweep")) each_alpha(g, fn);
    if (kk_gate_like(g, "bench")) each_timed(g, fn);
}

/* ---- the counts --------------------------------------------------------------------------- */

static void uncounted(kk_gate *g, const path *p) {
    if (p->restored && p->uncounted)
        kk_gate_say(g, "%s: %zu samples without `restored_rows`", p->name, p->uncounted);
}
static void rule_restored_uncounted(kk_gate *g) { each_path(g, uncounted); }

static void nothing(kk_gate *g, const path *p) {
    if (p->restored && p->some == 0 && p->none)
        kk_gate_say(g, "%s is called restored, and in none of %zu samples was a row rebuilt",
                    p->name, p->none);
}
static void rule_restored_nothing(kk_gate *g) { each_path(g, nothing); }

static void mixed(kk_gate *g, const path *p) {
    if (p->some && p->none)
        kk_gate_say(g, "%s: rows were rebuilt in %zu samples, and none in %zu others", p->name,
                    p->some, p->none);
}
static void rule_mixed_paths(kk_gate *g) { each_path(g, mixed); }

static void baseline(kk_gate *g, const path *p) {
    if (!p->restored && p->some && p->none == 0)
        kk_gate_say(g, "%s is not called restored, and rows were rebuilt in all %zu samples",
                    p->name, p->some);
}
static void rule_baseline_restored(kk_gate *g) { each_path(g, baseline); }

/* ---- bytes -------------------------------------------------------------------------------- */

static void check_latents(kk_gate *g, const char *list, const char *key) {
    for (size_t i = 0; i < kk_gate_size(g->report, list); i++) {
        const json_t *o = kk_gate_item(g->report, list, i);
        const char *name = kk_gate_text(o, key);
        double latents;
        if (kk_gate_restored(g, o) &&
            kk_gate_number(json_object_get(o, "bytes"), "kv.latents", &latents) && latents <= 0)
            kk_gate_say(g, "%.40s is called restored and holds %.0f bytes of latents", name,
                        latents);
    }
}

static void rule_restored_no_latents(kk_gate *g) {
    if (kk_gate_like(g, "needle")) check_latents(g, "rungs", "arm");
    if (kk_gate_like(g, "bench")) check_latents(g, "policies", "policy");
    if (kk_gate_is(g, "memory")) check_latents(g, "rows", "policy");
}

/* ---- what is under test ------------------------------------------------------------------- */

static const json_t *arm_cache(const kk_gate *g, const char *name) {
    return json_object_get(json_object_get(g->report, "arms"), name);
}

static bool is_relative(const char *figure) {
    return strcmp(figure, "recall_drop") == 0 || strcmp(figure, "kv_ratio") == 0 ||
           strcmp(figure, "mean_kl") == 0 || strcmp(figure, "worst_kl") == 0 ||
           strcmp(figure, "restored_rows") == 0;
}

static void check_arms(kk_gate *g) {
    const json_t *exact = arm_cache(g, "exact");
    const json_t *gate = json_object_get(g->report, "gate");
    const char *name;
    json_t *cache;
    json_object_foreach(json_object_get(g->report, "arms"), name,
                        cache) if (cache != exact && kk_gate_same_cache(cache, exact))
        kk_gate_say(g, "the arm %.40s keeps its rows as exact does", name);
    for (size_t i = 0; i < kk_gate_size(gate, "checks"); i++) {
        const json_t *c = kk_gate_item(gate, "checks", i);
        if (strcmp(kk_gate_text(c, "arm"), "exact") == 0 && is_relative(kk_gate_text(c, "figure")))
            kk_gate_say(g, "the check of %.40s is of exact, the baseline itself",
                        kk_gate_text(c, "figure"));
    }
}

static const json_t *policy_row(const kk_gate *g, const char *policy) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        if (strcmp(kk_gate_text(row, "policy"), policy) == 0) return row;
    }
    return NULL;
}

static void rule_baseline_as_sut(kk_gate *g) {
    check_arms(g);
    const json_t *exact = kk_gate_item(g->report, "policies", 0);
    for (size_t i = 1; i < kk_gate_size(g->report, "policies"); i++) {
        const json_t *policy = kk_gate_item(g->report, "policies", i);
        if (kk_gate_same_cache(policy, exact))
            kk_gate_say(g, "the policy %.40s keeps its rows as exact does",
                        kk_gate_text(policy, "policy"));
    }
    for (size_t i = 0; i < kk_gate_size(g->report, "growth"); i++) {
        const json_t *growth = kk_gate_item(g->report, "growth", i);
        const char *policy = kk_gate_text(growth, "policy"), *of = kk_gate_text(growth, "against");
        if (*of && strcmp(policy, of) != 0 &&
            kk_gate_same_cache(policy_row(g, policy), policy_row(g, of)))
            kk_gate_say(g, "%.40s and %.40s keep their rows in the same way", policy, of);
    }
}

/* ---- key counts: the member is called "reach" ----------------------------------------------- */

static void visit_counts(kk_gate *g, const char *where, const json_t *o) {
    const json_t *counts = kk_gate_get(o, "reach");
    double rebuilt, rows, queries, stored;
    if (!counts) return;
    if (!kk_gate_number(counts, "queries", &queries) || queries <= 0 ||
        !kk_gate_number(counts, "keys_stored", &stored) || stored <= 0)
        kk_gate_say(g, "%s: the reach of attention counts no queries or no keys", where);
    if (kk_gate_number(counts, "keys_rebuilt", &rebuilt) &&
        kk_gate_number(o, "restored_rows", &rows) && (rebuilt > 0) != (rows > 0))
        kk_gate_say(g, "%s: attention read %.0f rebuilt keys, and %.0f rows were rebuilt", where,
                    rebuilt, rows);
}

static void rule_reach_mismatch(kk_gate *g) { kk_gate_walk(g, visit_counts); }

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry restored_rules[] = {
    {"RESTORED_UNCOUNTED", rule_restored_uncounted,
     "every sample of a restored arm counts the rows that were rebuilt"},
    {"RESTORED_NOTHING", rule_restored_nothing, "an arm called restored rebuilt rows"},
    {"RESTORED_NO_LATENTS", rule_restored_no_latents,
     "an arm called restored keeps latents, and the allocator knows of them"},
    {"MIXED_PATHS", rule_mixed_paths, "within an arm all samples rebuilt rows, or none did"},
    {"BASELINE_RESTORED", rule_baseline_restored,
     "an arm that is not called restored rebuilt nothing"},
    {"BASELINE_AS_SUT", rule_baseline_as_sut,
     "what is under test is not the baseline by another name"},
    {"REACH_MISMATCH", rule_reach_mismatch,
     "attention read rebuilt keys exactly where rows were rebuilt"},
};
KK_GATE_GROUP(restored, restored_rules);
