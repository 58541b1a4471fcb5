/* kind_lossless.c - reports of `make lossless-all`: what they hold, and the
 * rules they are held to. */
#include <string.h>

#include "eval/reports/gate_kinds.h"

static const kk_gate_member members[] = {
    {"settings/tokens", KK_MEMBER_SIZE}, {"settings/draft_most", KK_MEMBER_SIZE},
    {"prompts", KK_MEMBER_SIZE},         {"prompt_tokens", KK_MEMBER_SIZE},
    {"cases", KK_MEMBER_SIZE},           {"mismatches", KK_MEMBER_COUNT},
    {"compared", KK_MEMBER_LIST},        {"cases_by", KK_MEMBER_OBJECT},
    {"cases_by/*/*", KK_MEMBER_COUNT},   {"seconds", KK_MEMBER_TIME},
};

static bool compared(const kk_gate *g, const char *what) {
    for (size_t i = 0; i < kk_gate_size(g->report, "compared"); i++) {
        const char *one = json_string_value(kk_gate_item(g->report, "compared", i));
        if (one && strcmp(one, what) == 0) return true;
    }
    return false;
}

static void rule_cases_compared(kk_gate *g) {
    if (!compared(g, "tokens")) kk_gate_say(g, "tokens were not compared");
    if (!compared(g, "logits hash")) kk_gate_say(g, "hashes of logits were not compared");
}

/* Every axis counts every case, and draft lengths are those of the settings. */
static void rule_cases_recount(kk_gate *g) {
    static const char *const axes[] = {"prompt",  "length",   "block",    "format", "policy",
                                       "threads", "sampling", "proposer", "ending"};
    const json_t *by = json_object_get(g->report, "cases_by"), *settings;
    const double cases = kk_gate_number_or(g->report, "cases", 0);
    const char *axis, *name;
    json_t *values, *count;
    settings = json_object_get(g->report, "settings");
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (!json_is_object(json_object_get(by, axes[i])))
            kk_gate_say(g, "cases are not counted by %s", axes[i]);
    json_object_foreach((json_t *)(uintptr_t)by, axis, values) {
        double sum = 0;
        json_object_foreach(values, name, count) sum += json_number_value(count);
        if (sum != cases)
            kk_gate_say(g, "by %.40s there are %.0f cases, and %.0f in all", axis, sum, cases);
    }
    const size_t blocks = json_object_size(json_object_get(by, "block"));
    if ((double)blocks != kk_gate_number_or(settings, "draft_most", 0))
        kk_gate_say(g, "cases of %zu lengths of drafts, and %.0f were asked for", blocks,
                    kk_gate_number_or(settings, "draft_most", 0));
}

static void rule_cases_differ(kk_gate *g) {
    const double mismatches = kk_gate_number_or(g->report, "mismatches", 0);
    if (mismatches > 0)
        kk_gate_say(g, "%.0f of %.0f cases differ", mismatches,
                    kk_gate_number_or(g->report, "cases", 0));
}

static const kk_gate_entry cases_rules[] = {
    {"CASES_COMPARED", rule_cases_compared, "tokens and hashes of logits were compared"},
    {"CASES_RECOUNT", rule_cases_recount, "every axis counts every case"},
    {"CASES_DIFFER", rule_cases_differ, "no case of drafting differs from plain decoding"},
};
static const kk_gate_group cases = {cases_rules, sizeof cases_rules / sizeof *cases_rules};

static const kk_gate_group *const groups[] = {&cases};

KK_GATE_KIND(lossless, members, groups);
