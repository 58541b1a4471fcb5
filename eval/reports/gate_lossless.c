/* gate_lossless.c - rules about what is called lossless: that drafting changed no token and no
 * logits.
 *
 * Reports store hashes of what every arm generated, for every generation; whether two are the same
 * is found here. */
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"

/* Generations that were compared with plain decoding, those of them that differ, and rows that
 * cannot be compared. */
typedef struct {
    size_t compared, different, other;
} likeness;

/* Whether both have hashes of their tokens and logits, and the same ones. */
static bool alike(const json_t *a, const json_t *b, bool *known) {
    const char *tokens = kk_gate_text(a, "tokens_hash"), *logits = kk_gate_text(a, "logits_hash");
    const char *t = kk_gate_text(b, "tokens_hash"), *l = kk_gate_text(b, "logits_hash");
    *known = *tokens && *logits && *t && *l;
    return strcmp(tokens, t) == 0 && strcmp(logits, l) == 0;
}

static void compare(likeness *l, const json_t *a, const json_t *b) {
    bool known;
    const bool same = alike(a, b, &known);
    l->compared += known;
    l->other += !known;
    l->different += known && !same;
}

/* Rows of sets have several runs, turns of policies are one run each. */
static void look(likeness *l, const json_t *row, const json_t *plain) {
    const json_t *runs = json_object_get(row, "runs"), *first = kk_gate_item(plain, "runs", 0);
    if (json_is_array(runs)) {
        if (json_array_size(runs) == 0) l->other++;
        for (size_t i = 0; i < json_array_size(runs); i++)
            compare(l, json_array_get(runs, i), first);
    } else {
        compare(l, row, plain);
    }
}

static void look_all(likeness *l, const json_t *set, const json_t *arm) {
    const json_t *plain = json_object_get(json_object_get(set, "arms"), "plain");
    if (kk_gate_size(arm, "rows") == 0) l->other++;
    for (size_t i = 0; i < kk_gate_size(arm, "rows"); i++)
        look(l, kk_gate_item(arm, "rows", i), kk_gate_item(plain, "rows", i));
}

/* ---- what is said of it -------------------------------------------------------------------- */

typedef void (*said_fn)(kk_gate *g, const char *where, const json_t *o, const likeness *l);

static void unproven(kk_gate *g, const char *where, const json_t *o, const likeness *l) {
    const json_t *said = json_object_get(o, "lossless");
    if (!json_is_boolean(said))
        kk_gate_say(g, "%s: `lossless` is neither true nor false", where);
    else if (json_is_true(said) && (l->compared == 0 || l->other))
        kk_gate_say(g, "%s is called lossless, and %zu rows have no hashes to compare", where,
                    l->other);
}

static void contradicted(kk_gate *g, const char *where, const json_t *o, const likeness *l) {
    const json_t *said = json_object_get(o, "lossless");
    const double different = kk_gate_number_or(o, "different", 0);
    if (l->other || !json_is_boolean(said)) return;
    if (json_is_true(said) != (l->different == 0) || (json_is_true(said) && different > 0))
        kk_gate_say(g, "%s is called %s, and %zu of %zu generations differ", where,
                    json_is_true(said) ? "lossless" : "not lossless", l->different, l->compared);
    else if (kk_gate_get(o, "different") && different != (double)l->different)
        kk_gate_say(g, "%s: `different` is %.0f, and %zu generations differ", where, different,
                    l->different);
}

/* Over all sets. */
static void each_total(kk_gate *g, said_fn fn) {
    const char *name;
    json_t *arm;
    json_object_foreach(json_object_get(g->report, "arms"), name, arm) {
        likeness l = {0};
        if (!kk_gate_get(arm, "lossless")) continue;
        for (size_t i = 0; i < kk_gate_size(g->report, "sets"); i++) {
            const json_t *set = kk_gate_item(g->report, "sets", i);
            look_all(&l, set, json_object_get(json_object_get(set, "arms"), name));
        }
        fn(g, name, arm, &l);
    }
}

static void each_timed(kk_gate *g, said_fn fn) {
    const json_t *set;
    for (size_t i = 0; (set = kk_gate_timed(g, i)); i++) {
        const char *name;
        json_t *arm;
        json_object_foreach(json_object_get(set, "arms"), name, arm) {
            char where[96];
            likeness l = {0};
            /* Plain decoding of a policy is the record itself. */
            if (strcmp(name, "plain") == 0 && !kk_gate_get(arm, "lossless")) continue;
            snprintf(where, sizeof where, "%.30s on %.40s", name, kk_gate_timed_name(set));
            look_all(&l, set, arm);
            fn(g, where, arm, &l);
        }
    }
}

/* Rows of an entry of `sets` or `all` of an acceptance: those of its set and scale. */
static void each_accepted(kk_gate *g, const json_t *o, const char *where, said_fn fn) {
    const char *set = kk_gate_text(o, "set");
    const json_t *scale = kk_gate_get(o, "embed_scale");
    likeness l = {0};
    for (size_t i = 0; i < kk_gate_size(g->report, "rows"); i++) {
        const json_t *row = kk_gate_item(g->report, "rows", i);
        const json_t *own = kk_gate_get(row, "embed_scale");
        if (*set && strcmp(set, "all") != 0 && strcmp(set, kk_gate_text(row, "set")) != 0) continue;
        if (scale && own && !json_equal(scale, own)) continue;
        compare(&l, row, json_object_get(row, "plain"));
    }
    fn(g, where, o, &l);
}

static void each_said(kk_gate *g, said_fn fn) {
    static const char *const lists[] = {"sets", "all"};
    if (kk_gate_like(g, "bench")) {
        each_total(g, fn);
        each_timed(g, fn);
    }
    if (!kk_gate_is(g, "accept")) return;
    each_accepted(g, g->report, "the report", fn);
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < kk_gate_size(g->report, lists[k]); i++) {
            char where[40];
            snprintf(where, sizeof where, "%s[%zu]", lists[k], i);
            each_accepted(g, kk_gate_item(g->report, lists[k], i), where, fn);
        }
}

/* Where a report says it, something above computes it. */
static bool is_computed(const kk_gate *g, const char *where) {
    if (kk_gate_like(g, "bench"))
        return strncmp(where, "arms.", 5) == 0 || strncmp(where, "sets[", 5) == 0 ||
               strncmp(where, "policies[", 9) == 0;
    return kk_gate_is(g, "accept") &&
           (strcmp(where, "the report") == 0 || strncmp(where, "sets[", 5) == 0 ||
            strncmp(where, "all[", 4) == 0);
}

static void visit_stray(kk_gate *g, const char *where, const json_t *o) {
    if (json_object_get(o, "lossless") && !is_computed(g, where))
        kk_gate_say(g, "%s: `lossless` stands where nothing can be compared", where);
}

static void rule_lossless_unproven(kk_gate *g) {
    each_said(g, unproven);
    kk_gate_walk(g, visit_stray);
}

static void rule_lossless_contradicted(kk_gate *g) { each_said(g, contradicted); }

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry lossless_rules[] = {
    {"LOSSLESS_UNPROVEN", rule_lossless_unproven,
     "lossless means equal hashes of tokens and of logits, generation by generation"},
    {"LOSSLESS_CONTRADICTED", rule_lossless_contradicted,
     "lossless and the count of differences are what the hashes say"},
};
KK_GATE_GROUP(lossless, lossless_rules);
