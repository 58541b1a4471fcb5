/* gate_recall.c - rules about recall: the answers are read again. */
#include <stdio.h>
#include <string.h>

#include "eval/reports/gate_rules.h"
#include "eval/texts/haystack.h"

static void visit_codes(kk_gate *g, const char *where, const json_t *o) {
    const json_t *answers = kk_gate_answers(o);
    for (size_t i = 0; i < json_array_size(answers); i++) {
        const char *code = kk_gate_text(json_array_get(answers, i), "expected");
        if (strspn(code, " \t\r\n") == strlen(code))
            kk_gate_say(g, "%s: sample %zu looks for an empty code", where, i);
        else if (strlen(code) >= sizeof((kk_haystack *)NULL)->code)
            kk_gate_say(g, "%s: the code of sample %zu has %zu characters", where, i, strlen(code));
    }
}

static void rule_empty_needle(kk_gate *g) { kk_gate_walk(g, visit_codes); }

/* Whether the answer names the code, judged as the evaluation judges. */
static bool found(const json_t *row) {
    kk_haystack doc = {.lines = 0};
    const char *code = kk_gate_text(row, "expected");
    if (!*code || strlen(code) >= sizeof doc.code) return false;
    snprintf(doc.code, sizeof doc.code, "%s", code);
    return kk_haystack_found(&doc, kk_gate_text(row, "answer"));
}

static size_t recount(kk_gate *g, const char *where, const json_t *answers) {
    size_t hits = 0;
    for (size_t i = 0; i < json_array_size(answers); i++) {
        const json_t *row = json_array_get(answers, i);
        const bool hit = found(row);
        hits += hit;
        if (hit != kk_gate_true(row, "hit"))
            kk_gate_say(g, "%s: sample %zu is said to be a %s, and its answer '%.60s' %s %.24s",
                        where, i, hit ? "miss" : "hit", kk_gate_text(row, "answer"),
                        hit ? "names" : "does not name", kk_gate_text(row, "expected"));
    }
    return hits;
}

static void compare(kk_gate *g, const char *where, const json_t *o, const char *key, double is) {
    double said;
    if (kk_gate_number(o, key, &said) && !kk_gate_same(said, is))
        kk_gate_say(g, "%s: `%s` is %.6g, and the answers give %.6g", where, key, said, is);
}

static void visit_answers(kk_gate *g, const char *where, const json_t *o) {
    const json_t *answers = kk_gate_answers(o);
    const size_t n = json_array_size(answers);
    if (n == 0) return;
    const size_t hits = recount(g, where, answers);
    compare(g, where, o, "samples", (double)n);
    compare(g, where, o, "hits", (double)hits);
    compare(g, where, o, "recall", (double)hits / (double)n);
}

static void rule_recall_recount(kk_gate *g) { kk_gate_walk(g, visit_answers); }

/* ---- scope -------------------------------------------------------------------------------- */

static const json_t *rung_of(const kk_gate *g, const char *arm, double lines) {
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        if (strcmp(kk_gate_text(r, "arm"), arm) == 0 && kk_gate_number_or(r, "lines", -1) == lines)
            return r;
    }
    return NULL;
}

static void same_documents(kk_gate *g, const json_t *first, const json_t *rung) {
    const char *arm = kk_gate_text(rung, "arm");
    const double lines = kk_gate_number_or(rung, "lines", 0);
    if (!first || kk_gate_size(first, "rows") != kk_gate_size(rung, "rows")) {
        kk_gate_say(g, "%.40s answered %zu documents of %.0f lines, the first arm %zu", arm,
                    kk_gate_size(rung, "rows"), lines, kk_gate_size(first, "rows"));
        return;
    }
    for (size_t i = 0; i < kk_gate_size(rung, "rows"); i++) {
        const json_t *a = kk_gate_item(first, "rows", i), *b = kk_gate_item(rung, "rows", i);
        if (strcmp(kk_gate_text(a, "expected"), kk_gate_text(b, "expected")) == 0 &&
            kk_gate_number_or(a, "tokens", 0) == kk_gate_number_or(b, "tokens", 0))
            continue;
        kk_gate_say(g, "%.40s, %.0f lines, sample %zu: another document than the first arm's", arm,
                    lines, i);
        return;
    }
}

static void complete_ladder(kk_gate *g, const char *arm) {
    const json_t *settings = json_object_get(g->report, "settings");
    for (size_t i = 0; i < kk_gate_size(settings, "ladder"); i++) {
        const double lines = json_number_value(kk_gate_item(settings, "ladder", i));
        if (!rung_of(g, arm, lines))
            kk_gate_say(g, "%.40s has no rung of %.0f lines, which is on the ladder", arm, lines);
    }
}

static void rule_recall_scope(kk_gate *g) {
    const char *first = kk_gate_text(kk_gate_item(g->report, "rungs", 0), "arm"), *last = "";
    for (size_t i = 0; i < kk_gate_size(g->report, "rungs"); i++) {
        const json_t *r = kk_gate_item(g->report, "rungs", i);
        const char *arm = kk_gate_text(r, "arm");
        if (strcmp(arm, last) != 0) complete_ladder(g, arm);
        last = arm;
        if (strcmp(arm, first) != 0)
            same_documents(g, rung_of(g, first, kk_gate_number_or(r, "lines", -1)), r);
    }
}

static bool has_quality(const kk_gate *g, const char *arm) {
    for (size_t i = 0; i < kk_gate_size(g->report, "quality"); i++)
        if (strcmp(kk_gate_text(kk_gate_item(g->report, "quality", i), "arm"), arm) == 0)
            return true;
    return false;
}

static void rule_recall_alone(kk_gate *g) {
    const json_t *gate = kk_gate_get(g->report, "gate");
    for (size_t i = 0; i < kk_gate_size(gate, "checks"); i++) {
        const json_t *c = kk_gate_item(gate, "checks", i);
        const char *arm = kk_gate_text(c, "arm"), *figure = kk_gate_text(c, "figure");
        if (strncmp(figure, "recall", 6) != 0 || strcmp(arm, "exact") == 0) continue;
        if (!has_quality(g, arm))
            kk_gate_say(g, "%.40s is judged by recall, and no KL of it was measured", arm);
    }
}

/* ---- the rules ---------------------------------------------------------------------------- */

static const kk_gate_entry answers_rules[] = {
    {"EMPTY_NEEDLE", rule_empty_needle, "every recalled code is a code"},
    {"RECALL_RECOUNT", rule_recall_recount,
     "hits and recall are what the answers give when they are read again"},
};
KK_GATE_GROUP(answers, answers_rules);

static const kk_gate_entry scope_rules[] = {
    {"RECALL_SCOPE", rule_recall_scope, "all arms answer the same documents on all rungs"},
    {"RECALL_ALONE", rule_recall_alone,
     "a gate on an arm that drops or rebuilds rows also looks at KL, to which recall is blind"},
};
KK_GATE_GROUP(scope, scope_rules);
